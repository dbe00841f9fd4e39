// The search for neurons: all local maxima on the sphere of F(v) = sum_i c_i relu(v . x_i) and of -F, in doubles. F is linear between the
// great circles v . x_i = 0; a maximum is a vertex of them, or the best place of an arc, or the gradient of a cell, and every
// arc and cell is met at a vertex (docs/pricing.md, "enumeration"). What is found here is only proposed: check.js decides.

const SLACK = 1e-9, SAME_LINE = 1e-13;

export function circlesOf(X, n) {  // lines through the points and the axes, with the points of each; X is 3 n numbers
  const lines = [];
  const place = (x, y, z, i) => {
    const size = Math.hypot(x, y, z);
    if (!size) return;
    const u = [x / size, y / size, z / size];
    for (const line of lines) {
      const w = line.u, across = Math.hypot(u[1] * w[2] - u[2] * w[1], u[2] * w[0] - u[0] * w[2], u[0] * w[1] - u[1] * w[0]);
      if (across < SAME_LINE) {
        if (i >= 0) line.points.push([i, u[0] * w[0] + u[1] * w[1] + u[2] * w[2] > 0 ? size : -size]);
        return;
      }
    }
    lines.push({u, points: i >= 0 ? [[i, size]] : []});
  };
  for (let i = 0; i < n; i++) place(X[3 * i], X[3 * i + 1], X[3 * i + 2], i);
  for (let k = 0; k < 3; k++) place(k === 0 ? 1 : 0, k === 1 ? 1 : 0, k === 2 ? 1 : 0, -1);
  return lines;
}

function valueAt(X, n, c, x, y, z) {
  let sum = 0;
  for (let i = 0; i < n; i++) {
    const t = X[3 * i] * x + X[3 * i + 1] * y + X[3 * i + 2] * z;
    if (t > 0) sum += c[i] * t;
  }
  return sum;
}

class Places {  // directions that were found, three numbers each: in one array of doubles, which keeps the sweep fast from its first run
  constructor() { this.list = new Float64Array(300); this.size = 0; }
  add(x, y, z) {
    if (this.size + 3 > this.list.length) { const wider = new Float64Array(2 * this.list.length); wider.set(this.list); this.list = wider; }
    this.list[this.size++] = x; this.list[this.size++] = y; this.list[this.size++] = z;
  }
}

function sweep(U, A, B, m, rounding, up, down) {  // every vertex, and the arcs and cells beside it: maxima of F into up, of -F into down
  const T = new Float64Array(m), more = new Int32Array(m), most = Float64Array.of(-Infinity, -Infinity), corner = Float64Array.of(1, 0, 0, 1, 0, 0);
  for (let i = 0; i < m; i++) for (let j = i + 1; j < m; j++) {
    let v0 = U[3 * i + 1] * U[3 * j + 2] - U[3 * i + 2] * U[3 * j + 1];
    let v1 = U[3 * i + 2] * U[3 * j] - U[3 * i] * U[3 * j + 2];
    let v2 = U[3 * i] * U[3 * j + 1] - U[3 * i + 1] * U[3 * j];
    const sine = Math.sqrt(v0 * v0 + v1 * v1 + v2 * v2);
    v0 /= sine; v1 /= sine; v2 /= sine;
    let count = 0, first = true, p0 = 0, p1 = 0, p2 = 0, q0 = 0, q1 = 0, q2 = 0;
    const zero = 16 * 2 ** -52 / sine;
    for (let k = 0; k < m; k++) {
      const u0 = U[3 * k], u1 = U[3 * k + 1], u2 = U[3 * k + 2];
      let t = v0 * u0 + v1 * u1 + v2 * u2;
      if (k === i || k === j || Math.abs(t) <= zero) {
        if (k !== i && k !== j) {
          if (k < i) { first = false; break; }
          more[count++] = k;
        }
        t = 0;
      }
      T[k] = t;
      if (t > 0) {  // gradients at v (p) and at -v (q)
        p0 += A[k] * u0; p1 += A[k] * u1; p2 += A[k] * u2;
        q0 -= B[k] * u0; q1 -= B[k] * u1; q2 -= B[k] * u2;
      } else if (t < 0) {
        p0 -= B[k] * u0; p1 -= B[k] * u1; p2 -= B[k] * u2;
        q0 += A[k] * u0; q1 += A[k] * u1; q2 += A[k] * u2;
      }
    }
    if (!first) continue;  // where more than two circles meet, the pairs with the first of them have all arcs
    for (let turned = 0; turned < 4; turned++) {  // both ends of the line, both signs of F
      const end = turned & 1 ? -1 : 1, sign = turned & 2 ? -1 : 1, of = turned >> 1, found = turned & 2 ? down : up;
      const g0 = sign * (end > 0 ? p0 : q0), g1 = sign * (end > 0 ? p1 : q1), g2 = sign * (end > 0 ? p2 : q2);
      const value = end * (g0 * v0 + g1 * v1 + g2 * v2);
      if (value > most[of]) { most[of] = value; corner[3 * of] = end * v0; corner[3 * of + 1] = end * v1; corner[3 * of + 2] = end * v2; }
      const best = most[of], small = Math.max(SLACK * best, rounding);
      let highest = value > best / 2;
      for (let pair = 0; pair < 2; pair++) {
        const own = pair ? j : i, other = pair ? i : j, turn = pair ? -1 : 1;
        const o0 = U[3 * own], o1 = U[3 * own + 1], o2 = U[3 * own + 2];
        const l0 = v1 * o2 - v2 * o1, l1 = v2 * o0 - v0 * o2, l2 = v0 * o1 - v1 * o0;
        for (let way = 1; way >= -1; way -= 2) {
          const step = sign * (way * turn > 0 ? A[other] : -B[other]);
          let h0 = g0 + step * U[3 * other], h1 = g1 + step * U[3 * other + 1], h2 = g2 + step * U[3 * other + 2];
          for (let s = 0; s < count; s++) {
            const k = more[s], side = way * (l0 * U[3 * k] + l1 * U[3 * k + 1] + l2 * U[3 * k + 2]);
            const add = sign * (side > 0 ? A[k] : -B[k]);
            h0 += add * U[3 * k]; h1 += add * U[3 * k + 1]; h2 += add * U[3 * k + 2];
          }
          const along = h0 * l0 + h1 * l1 + h2 * l2, slope = h0 * o0 + h1 * o1 + h2 * o2;
          if (way * along > small) highest = false;
          for (let cell = -1; cell <= 1; cell++) {
            let w0, w1, w2;
            if (cell === 0) {
              if (slope + sign * A[own] > small || slope - sign * B[own] < -small) continue;  // the arc is not above both its sides
              w0 = end * value * v0 + along * l0; w1 = end * value * v1 + along * l1; w2 = end * value * v2 + along * l2;
            } else {
              const add = sign * (cell > 0 ? A[own] : -B[own]);
              w0 = h0 + add * o0; w1 = h1 + add * o1; w2 = h2 + add * o2;
              if (cell * (w0 * o0 + w1 * o1 + w2 * o2) < -small) continue;
            }
            if (way * turn * (w0 * U[3 * other] + w1 * U[3 * other + 1] + w2 * U[3 * other + 2]) < -small) continue;
            const size = Math.sqrt(w0 * w0 + w1 * w1 + w2 * w2);  // of F there
            if (!(size > Math.max(best / 2, rounding))) continue;
            let right = true;
            for (let k = 0; k < m && right; k++) {
              const t = w0 * U[3 * k] + w1 * U[3 * k + 1] + w2 * U[3 * k + 2], s = end * T[k];
              right = s > 0 ? t >= -small : s < 0 ? t <= small : true;
            }
            if (right) found.add(w0 / size, w1 / size, w2 / size);
          }
        }
      }
      if (highest) found.add(end * v0, end * v1, end * v2);
    }
  }
  up.add(corner[0], corner[1], corner[2]);
  down.add(corner[3], corner[4], corner[5]);
}

export function peaks(X, n, c, lines, most = 60) {  // the best local maxima of F and those of -F, best first: {v, value}
  const used = lines.map(({u, points}) => {
    let a = 0, b = 0;
    for (const [i, size] of points) if (size > 0) a += c[i] * size; else b -= c[i] * size;
    return {u, a, b, axis: !points.length};
  }).filter(({a, b, u}) => a || b || Math.max(...u.map(Math.abs)) === 1);
  const m = used.length, U = new Float64Array(3 * m), A = new Float64Array(m), B = new Float64Array(m);
  used.forEach(({u, a, b}, k) => { U.set(u, 3 * k); A[k] = a; B[k] = b; });
  const weight = A.reduce((s, v) => s + Math.abs(v), 0) + B.reduce((s, v) => s + Math.abs(v), 0), rounding = 1e-13 * weight;
  const both = [new Places(), new Places()];
  sweep(U, A, B, m, rounding, both[0], both[1]);
  return both.map(({list, size}, k) => {
    const values = new Float64Array(size / 3), kept = [];
    for (let j = 0; j < values.length; j++) values[j] = (k ? -1 : 1) * valueAt(X, n, c, list[3 * j], list[3 * j + 1], list[3 * j + 2]);
    while (kept.length < most) {  // the best one that is none of those before
      let best = -1;
      for (let j = 0; j < values.length; j++) if (values[j] > (best < 0 ? -Infinity : values[best])) best = j;
      if (best < 0) break;
      const x = list[3 * best], y = list[3 * best + 1], z = list[3 * best + 2];
      kept.push({v: [x, y, z], value: values[best]});
      for (let j = 0; j < values.length; j++) if (x * list[3 * j] + y * list[3 * j + 1] + z * list[3 * j + 2] >= 1 - 1e-12) values[j] = -Infinity;
      values[best] = -Infinity;
    }
    return kept;
  });
}
