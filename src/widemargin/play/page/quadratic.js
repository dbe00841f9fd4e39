// min x' K x / 2 - b . x over x >= 0, K positive semidefinite, by an active set (Lawson and Hanson): entries come in where the
// slope asks for it, and go out where the minimum over those that are in would make them negative.

function solveOn(K, N, b, active) {  // K_aa x = b_a by a Cholesky factor with a small ridge
  const k = active.length, L = new Float64Array(k * k), x = new Float64Array(k);
  for (let i = 0; i < k; i++) {
    for (let j = 0; j <= i; j++) {
      let sum = K[active[i] * N + active[j]];
      if (i === j) sum += 1e-14 * Math.abs(sum) + 1e-300;
      for (let s = 0; s < j; s++) sum -= L[i * k + s] * L[j * k + s];
      L[i * k + j] = i === j ? Math.sqrt(Math.max(sum, 1e-15 * K[active[i] * N + active[i]] + 1e-300)) : sum / L[j * k + j];
    }
    let y = b[active[i]];
    for (let s = 0; s < i; s++) y -= L[i * k + s] * x[s];
    x[i] = y / L[i * k + i];
  }
  for (let i = k - 1; i >= 0; i--) {
    for (let s = i + 1; s < k; s++) x[i] -= L[s * k + i] * x[s];
    x[i] /= L[i * k + i];
  }
  return x;
}

export function leastQuadratic(K, N, b, start = null, tol = 1e-13) {
  const x = start ? start.slice() : new Float64Array(N), inside = new Uint8Array(N);
  for (let i = 0; i < N; i++) inside[i] = x[i] > 0 ? 1 : 0;
  const scale = Math.max(...b.map(Math.abs), 1e-300);
  let last = -1;
  for (let round = 0; round < 3 * N + 30; round++) {
    for (let inner = 0; inner < N + 5; inner++) {
      const active = [];
      for (let i = 0; i < N; i++) if (inside[i]) active.push(i);
      if (!active.length) break;
      const z = solveOn(K, N, b, active);
      let rate = 1, out = -1;
      active.forEach((i, k) => {
        if (z[k] <= 0 && x[i] - z[k] > 0) {
          const r = x[i] / (x[i] - z[k]);
          if (r < rate) { rate = r; out = i; }
        }
      });
      active.forEach((i, k) => { x[i] += rate * (z[k] - x[i]); });
      if (out < 0) break;
      active.forEach((i) => { if (x[i] <= 1e-15 * scale || i === out) { if (x[i] <= 1e-14 || i === out) { x[i] = 0; inside[i] = 0; } } });
    }
    let enter = -1, most = tol * scale;
    for (let i = 0; i < N; i++) {
      if (inside[i]) continue;
      let slope = b[i];
      for (let j = 0; j < N; j++) if (inside[j]) slope -= K[i * N + j] * x[j];
      if (slope > most && i !== last) { most = slope; enter = i; }
    }
    if (enter < 0) break;
    inside[enter] = 1;
    last = enter;
  }
  return x;
}
