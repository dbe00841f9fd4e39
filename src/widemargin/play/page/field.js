// The value of a two-layer network on a grid of the plane, and the line where it changes its sign (places where it is 0 count as +). Along a row of the grid a neuron has one
// kink, so its values are two entries in running sums: a row costs as many steps as there are neurons and columns, not their product.

export function fieldOf(theta, mass, half, N, out) {  // N x N values; row 0 is the top, at the height +half
  const constant = new Float64Array(N + 1), slope = new Float64Array(N + 1), cell = 2 * half / N;
  let tiny = 0;
  for (let j = 0; j < mass.length; j++) tiny += 1e-12 * half * Math.abs(mass[j]);
  for (let row = 0; row < N; row++) {
    const y = half - (row + 0.5) * cell;
    constant.fill(0);
    slope.fill(0);
    for (let j = 0; j < mass.length; j++) {
      const a = mass[j];
      if (a === 0) continue;
      const d = theta[3 * j] * cell, s = theta[3 * j] * (0.5 * cell - half) + theta[3 * j + 1] * y + theta[3 * j + 2];
      if (d >= 0) {  // active from the first column where s + k d > 0
        const k = s > 0 ? 0 : Math.min(N, Math.floor(-s / d) + 1);
        constant[k] += a * s;
        slope[k] += a * d;
      } else if (s > 0) {
        constant[0] += a * s;
        slope[0] += a * d;
        const k = d === 0 ? N : Math.min(N, Math.ceil(s / -d));
        constant[k] -= a * s;
        slope[k] -= a * d;
      }
    }
    let c = 0, l = 0;
    for (let k = 0; k < N; k++) {
      c += constant[k];
      l += slope[k];
      const value = c + k * l;
      out[row * N + k] = Math.abs(value) > tiny ? value : 0;  // where no neuron is active the sums leave rounding
    }
  }
  return out;
}

export function zeroLine(values, N, size) {  // segments of f = 0 as a path on a canvas of `size` pixels
  const path = new Path2D(), unit = size / N, place = (k) => (k + 0.5) * unit;
  for (let row = 0; row + 1 < N; row++)
    for (let k = 0; k + 1 < N; k++) {
      const a = values[row * N + k], b = values[row * N + k + 1], c = values[(row + 1) * N + k + 1], d = values[(row + 1) * N + k];
      const code = (a >= 0) | ((b >= 0) << 1) | ((c >= 0) << 2) | ((d >= 0) << 3);
      if (code === 0 || code === 15) continue;
      const ends = [];
      if ((a >= 0) !== (b >= 0)) ends.push([place(k + a / (a - b)), place(row)]);
      if ((b >= 0) !== (c >= 0)) ends.push([place(k + 1), place(row + b / (b - c))]);
      if ((c >= 0) !== (d >= 0)) ends.push([place(k + d / (d - c)), place(row + 1)]);
      if ((d >= 0) !== (a >= 0)) ends.push([place(k), place(row + a / (a - d))]);
      for (let e = 0; e + 1 < ends.length; e += 2) {
        path.moveTo(...ends[e]);
        path.lineTo(...ends[e + 1]);
      }
    }
  return path;
}

export function smoothLine(values, N, size) {  // the same, joined into long lines, so that dashes are even
  const unit = size / N, place = (k) => (k + 0.5) * unit, links = new Map();
  const add = (from, to) => { for (const [p, q] of [[from, to], [to, from]]) { if (!links.has(p)) links.set(p, []); links.get(p).push(q); } };
  const at = (key) => {  // edges are numbered: horizontal ones even, vertical ones odd
    const e = key >> 1, row = Math.floor(e / N), k = e % N, a = values[row * N + k];
    if (key & 1) { const d = values[(row + 1) * N + k]; return [place(k), place(row + a / (a - d))]; }
    const b = values[row * N + k + 1];
    return [place(k + a / (a - b)), place(row)];
  };
  for (let row = 0; row + 1 < N; row++)
    for (let k = 0; k + 1 < N; k++) {
      const a = values[row * N + k] >= 0, b = values[row * N + k + 1] >= 0, c = values[(row + 1) * N + k + 1] >= 0, d = values[(row + 1) * N + k] >= 0;
      const ends = [];
      if (a !== b) ends.push((row * N + k) << 1);
      if (b !== c) ends.push(((row * N + k + 1) << 1) | 1);
      if (c !== d) ends.push(((row + 1) * N + k) << 1);
      if (d !== a) ends.push(((row * N + k) << 1) | 1);
      for (let e = 0; e + 1 < ends.length; e += 2) add(ends[e], ends[e + 1]);
    }
  const path = new Path2D(), seen = new Set();
  const walk = (start) => {
    let key = start;
    path.moveTo(...at(key));
    for (;;) {
      seen.add(key);
      const next = links.get(key).find((one) => !seen.has(one));
      if (next === undefined) break;
      path.lineTo(...at(next));
      key = next;
    }
    if (links.get(key).includes(start) && links.get(start).length > 1) path.lineTo(...at(start));
  };
  for (const [key, others] of links) if (others.length === 1 && !seen.has(key)) walk(key);
  for (const key of links.keys()) if (!seen.has(key)) walk(key);
  return path;
}
