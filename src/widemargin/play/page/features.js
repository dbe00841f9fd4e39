// Margins of given neurons: masses with l1 norm (kind "frozen", a linear program) and with l2 norm (kind "rf", a quadratic one).
// Both need no proof but their dual weights.

import {Game} from "./simplex.js";
import {certificate, column, lifted} from "./certify.js";
import {leastQuadratic} from "./quadratic.js";

const rows = (V, D) => Array.from({length: V.length / 3}, (_, j) => Array.from(V.subarray(3 * j, 3 * j + D)));
const sizeOf = (V, j) => Math.hypot(V[3 * j], V[3 * j + 1], V[3 * j + 2]);
const noiseOf = (X3, n) => 4e-16 * (n + 64) * X3.reduce((most, v) => Math.max(most, Math.abs(v)), 0);  // where terms cancel, the rounding of a sum of n

export function frozenMargin(X, y, bias, V) {  // the text of a certificate; V holds 3 m numbers
  const X3 = lifted(X, bias), n = X.length, D = bias ? 3 : 2, m = V.length / 3, used = [];
  let game = null;
  for (let j = 0; j < m; j++)
    for (const sign of [1, -1]) {
      const v = [0, 1, 2].map((x) => V[3 * j + x] / sizeOf(V, j)), z = column(X3, y, v, sign);
      used.push([j, sign]);
      if (game) game.add(z); else game = new Game(n, z);
    }
  game.solve(20000);
  const masses = game.masses(), q = game.weights(), values = new Float64Array(n);
  for (const [k, w] of masses) game.columns[k].forEach((v, i) => { values[i] += w * v; });
  const norm = masses.reduce((s, [, w]) => s + w, 0), noise = noiseOf(X3, n), safe = (v) => v * (1 - 1e-9) - noise;
  const upper = Math.max(0, ...game.columns.map((z) => z.reduce((s, v, i) => s + v * q[i], 0))) * (1 + 1e-9) + noise;
  const lower = Math.max(0, Math.min(upper, safe(Math.min(...values) / norm)));
  const all = rows(V, D);
  return certificate({kind: "frozen", convention: "M1", bias, bound: "dual", proof: {type: "dual"}, proved: true, lower, upper,
    status: lower > 0 ? "certified" : "rounding", dual: Array.from(q), extra: {directions: all},
    primal: {theta: masses.map(([k]) => all[used[k][0]]), mass: masses.map(([k, w]) => w * used[k][1] / sizeOf(V, used[k][0]))}}, X, y);
}

export function kernelAt(x, z, D) {  // E relu(v . x) relu(v . z) over unit v
  const dot = x[0] * z[0] + x[1] * z[1] + x[2] * z[2], a = Math.hypot(...x), b = Math.hypot(...z);
  const across = Math.hypot(x[1] * z[2] - x[2] * z[1], x[2] * z[0] - x[0] * z[2], x[0] * z[1] - x[1] * z[0]);
  return a && b ? (across + (Math.PI - Math.atan2(across, dot)) * dot) / (2 * Math.PI * D) : 0;
}

export function kernelMargin(X, y, bias) {  // kind "f2": infinitely many random neurons, the output layer alone
  const n = X.length, D = bias ? 3 : 2, rows3 = X.map(([u, v]) => [u, v, bias ? 1 : 0]), K = new Float64Array(n * n);
  for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) K[i * n + j] = y[i] * y[j] * kernelAt(rows3[i], rows3[j], D);
  let q = leastQuadratic(K, n, new Float64Array(n).fill(1));
  const sum = q.reduce((s, v) => s + v, 0);
  q = sum > 0 && Number.isFinite(sum) ? q.map((v) => v / sum) : new Float64Array(n).fill(1 / n);
  let size = 0, least = Infinity;
  for (let i = 0; i < n; i++) {
    let value = 0;
    for (let j = 0; j < n; j++) value += K[i * n + j] * q[j];
    size += q[i] * value;
    least = Math.min(least, value);
  }
  const noise = 1e-14 * Math.max(...rows3.map((x) => x[0] ** 2 + x[1] ** 2 + x[2] ** 2)), upper = Math.sqrt(Math.max(size, 0) + noise) * (1 + 1e-9);
  const lower = size > 0 ? Math.max(0, Math.min(upper, (least - noise) / Math.sqrt(size + noise) * (1 - 1e-9))) : 0;
  return certificate({kind: "f2", convention: "M7", bias, bound: "dual", proof: {type: "dual"}, proved: true, lower, upper,
    status: lower > 0 ? "certified" : "rounding", dual: Array.from(q), extra: {kernel: "relu", alpha: Array.from(q)}}, X, y);
}

export function kernelField(X, y, bias, alpha, half, N) {  // the values of sum_j alpha_j y_j k(x_j, .) on the grid of field.js
  const out = new Float64Array(N * N), cell = 2 * half / N, D = bias ? 3 : 2, z = bias ? 1 : 0;
  for (let row = 0; row < N; row++) for (let k = 0; k < N; k++) {
    const here = [(k + 0.5) * cell - half, half - (row + 0.5) * cell, z];
    for (let j = 0; j < X.length; j++) if (alpha[j]) out[row * N + k] += alpha[j] * y[j] * kernelAt([X[j][0], X[j][1], z], here, D);
  }
  return out;
}

export function featureMargin(X, y, bias, V) {  // over a: min_i (z a)_i / (sqrt(m) |a|), z_ij = y_i relu(v_j . x_i) / |v_j|
  const X3 = lifted(X, bias), n = X.length, m = V.length / 3, Z = new Float64Array(n * m), K = new Float64Array(n * n);
  for (let i = 0; i < n; i++) for (let j = 0; j < m; j++) {
    const t = X3[3 * i] * V[3 * j] + X3[3 * i + 1] * V[3 * j + 1] + X3[3 * i + 2] * V[3 * j + 2];
    Z[i * m + j] = t > 0 ? y[i] * t / sizeOf(V, j) : 0;
  }
  for (let i = 0; i < n; i++) for (let k = 0; k <= i; k++) {
    let sum = 0;
    for (let j = 0; j < m; j++) sum += Z[i * m + j] * Z[k * m + j];
    K[i * n + k] = K[k * n + i] = sum / m;
  }
  let q = leastQuadratic(K, n, new Float64Array(n).fill(1));
  const sum = q.reduce((s, v) => s + v, 0);
  q = sum > 0 && Number.isFinite(sum) ? q.map((v) => v / sum) : new Float64Array(n).fill(1 / n);
  const a = new Float64Array(m);
  for (let i = 0; i < n; i++) for (let j = 0; j < m; j++) a[j] += q[i] * Z[i * m + j];
  const noise = noiseOf(X3, n), size = Math.sqrt(a.reduce((s, v) => s + v * v, 0)), upper = size / Math.sqrt(m) * (1 + 1e-9) + noise;
  let least = Infinity;
  for (let i = 0; i < n; i++) {
    let value = 0;
    for (let j = 0; j < m; j++) value += Z[i * m + j] * a[j];
    least = Math.min(least, value);
  }
  const lower = size > 0 ? Math.max(0, Math.min(upper, least / (Math.sqrt(m) * size) * (1 - 1e-9) - noise)) : 0;
  return certificate({kind: "rf", convention: "M7", bias, bound: "dual", proof: {type: "dual"}, proved: true, lower, upper,
    status: lower > 0 ? "certified" : "rounding", dual: Array.from(q), extra: {directions: rows(V, bias ? 3 : 2), a: Array.from(a)}}, X, y);
}
