// One ReLU neuron in three dimensions, exactly: sum_i c_i relu(v . x_i) <= limit |v| for all v, by the complete list of
// docs/certificates.md ("enumeration", D = 3). This file belongs to the checker and shares nothing with the search.
//
// The great circles v . x_i = 0 and those of the axes cut the sphere into cells on which the sum is linear. The points are
// integers of at most 16 bits, so every vertex and every sign at a vertex is an exact double. Gradients are doubles with a
// known error, and what is closer to the limit than that is decided in integers.

import {absBig, gcd, isqrt, nearest} from "./exact.js";

export const MOST_STEPS = 1 << 16;  // |x| on the grid
const MOST_CIRCLES = 1024, MOST_WORK = 1 << 22, LOOK_AT = 32;

const cross3 = (a, b) => [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];
const dot3 = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];

function primitive(row) {  // the line of an integer vector, and how many times its shortest vector it is
  const g = gcd(gcd(row[0], row[1]), row[2]);
  const u = row.map((v) => v / g);
  return (u[0] || u[1] || u[2]) < 0 ? [u.map((v) => -v), g, true] : [u, g, false];
}

function linesOf(points, c) {  // one entry per line: u, and the weights of a relu(v . u) + b relu(-v . u)
  const lines = new Map();
  points.forEach((row, i) => {
    if (c[i] === 0n || !(row[0] || row[1] || row[2])) return;
    const [u, g, back] = primitive(row), key = u.join();
    if (!lines.has(key)) lines.set(key, {u, a: 0n, b: 0n});
    lines.get(key)[back ? "b" : "a"] += c[i] * BigInt(g);
  });
  for (const [key, line] of lines) if (line.a === 0n && line.b === 0n) lines.delete(key);
  const some = lines.size > 0;
  for (const u of [[1, 0, 0], [0, 1, 0], [0, 0, 1]])
    if (!lines.has(u.join())) lines.set(u.join(), {u, a: 0n, b: 0n});
  return some ? [...lines.values()] : [];
}

function meetings(lines) {  // every vertex up to its sign, with all circles through it
  const met = new Map();
  for (let j = 0; j < lines.length; j++)
    for (let i = 0; i < j; i++) {
      const [v] = primitive(cross3(lines[i].u, lines[j].u)), key = v.join();
      const here = met.get(key);
      if (!here) met.set(key, {v, here: [i, j]});
      else if (here.here.at(-1) !== j) here.here.push(j);
    }
  return met;
}

export function underLimit(points, c, limit) {
  // points: integer rows of three; c: integers; limit: a Fraction, in units of both grids. The reason why not, or "".
  for (const row of points)
    if (row.some((v) => Math.abs(v) > MOST_STEPS)) return "the coordinates have too many digits to be checked here";
  const lines = linesOf(points, c), m = lines.length;
  if (!m) return "";
  if (m > MOST_CIRCLES) return `more than ${MOST_CIRCLES} great circles are not looked at`;
  // Unit vectors (each entry off by 6 u of itself, u = 2^-53) and weights whose absolute values sum to 1.
  const roots = lines.map(({u}) => isqrt(BigInt(dot3(u, u)) << 128n));  // 2^64 |u|
  const total = lines.reduce((sum, {a, b}, k) => sum + (absBig(a) + absBig(b)) * roots[k], 0n);
  const U = new Float64Array(3 * m), plus = new Float64Array(3 * m), minus = new Float64Array(3 * m);
  const A = new Float64Array(m), B = new Float64Array(m);
  lines.forEach(({u, a, b}, k) => {
    const size = Math.sqrt(dot3(u, u));
    A[k] = nearest(a * roots[k], total);
    B[k] = nearest(b * roots[k], total);
    for (let x = 0; x < 3; x++) {
      U[3 * k + x] = u[x] / size;
      plus[3 * k + x] = A[k] * U[3 * k + x];
      minus[3 * k + x] = -B[k] * U[3 * k + x];
    }
  });
  const wide = limit.n << 64n, level = wide >= 2n * total * limit.d ? 2 : nearest(wide, total * limit.d);
  const eps = (m + 64) * 2 ** -52, near = 4 * eps;  // see docs/certificates.md
  const look = [];
  for (let k = 0; k < Math.min(m, LOOK_AT); k++) look.push(Math.round(k * (m - 1) / Math.max(1, Math.min(m, LOOK_AT) - 1)));
  let work = 0;

  function larger(w) {  // whether F(w) > limit |w|, in integers
    work += m;
    let value = 0n;
    for (const {u, a, b} of lines) {
      const t = w[0] * BigInt(u[0]) + w[1] * BigInt(u[1]) + w[2] * BigInt(u[2]);
      value += t > 0n ? a * t : -b * t;
    }
    if (value <= 0n) return false;
    const left = value * limit.d;
    return left * left > limit.n * limit.n * (w[0] * w[0] + w[1] * w[1] + w[2] * w[2]);
  }

  function candidate(v, i, end, way, side) {  // the gradient of an arc, projected (side 0), or of a cell beside it
    work += m;
    const ui = lines[i].u, g = [0n, 0n, 0n];
    lines.forEach(({u, a, b}, k) => {
      const sign = k === i ? side : end * dot3(v, u) || way * turnOf(v, ui, u);
      const weight = sign > 0 ? a : sign < 0 ? -b : 0n;
      if (weight) for (let x = 0; x < 3; x++) g[x] += weight * BigInt(u[x]);
    });
    if (side) return g;
    const u = ui.map(BigInt), uu = u[0] * u[0] + u[1] * u[1] + u[2] * u[2], ug = u[0] * g[0] + u[1] * g[1] + u[2] * g[2];
    return g.map((p, x) => uu * p - ug * u[x]);
  }

  const met = meetings(lines), T = new Float64Array(m), w = new Float64Array(3), g = new Float64Array(3);
  for (const {v, here} of met.values()) {
    const size = Math.sqrt(dot3(v, v)), V = v.map((x) => x / size);
    for (let k = 0; k < m; k++) T[k] = dot3(v, lines[k].u);  // exact: below 2^53
    for (const k of here) T[k] = 0;
    for (let end = 1; end >= -1; end -= 2) {
      let g0 = 0, g1 = 0, g2 = 0;
      for (let k = 0; k < m; k++) {
        const s = end * T[k];
        if (s > 0) { g0 += plus[3 * k]; g1 += plus[3 * k + 1]; g2 += plus[3 * k + 2]; }
        else if (s < 0) { g0 += minus[3 * k]; g1 += minus[3 * k + 1]; g2 += minus[3 * k + 2]; }
      }
      const value = end * (g0 * V[0] + g1 * V[1] + g2 * V[2]);
      if (value > level - near && larger(v.map((x) => BigInt(end * x)))) return "the maximum is larger";
      for (const i of here) {
        const u0 = U[3 * i], u1 = U[3 * i + 1], u2 = U[3 * i + 2];
        for (let way = 1; way >= -1; way -= 2) {
          g[0] = g0; g[1] = g1; g[2] = g2;
          for (const k of here) {
            if (k === i) continue;
            const from = way * turnOf(v, lines[i].u, lines[k].u) > 0 ? plus : minus;
            for (let x = 0; x < 3; x++) g[x] += from[3 * k + x];
          }
          for (let side = -1; side <= 1; side++) {
            if (side === 0) {
              const along = g[0] * u0 + g[1] * u1 + g[2] * u2;
              w[0] = g[0] - along * u0; w[1] = g[1] - along * u1; w[2] = g[2] - along * u2;
            } else {
              const from = side > 0 ? plus : minus;
              for (let x = 0; x < 3; x++) w[x] = g[x] + from[3 * i + x];
            }
            const length = Math.sqrt(w[0] * w[0] + w[1] * w[1] + w[2] * w[2]);
            if (length <= level - near) continue;  // were w there, F would be this length
            let right = side === 0 || side * (w[0] * u0 + w[1] * u1 + w[2] * u2) >= -near;
            for (const k of here) {
              if (!right) break;
              if (k === i) continue;
              const t = w[0] * U[3 * k] + w[1] * U[3 * k + 1] + w[2] * U[3 * k + 2];
              right = way * turnOf(v, lines[i].u, lines[k].u) * t >= -near;
            }
            for (const k of look) {
              if (!right) break;
              const t = w[0] * U[3 * k] + w[1] * U[3 * k + 1] + w[2] * U[3 * k + 2];
              right = end * Math.sign(T[k]) * t >= -near;
            }
            if (!right) continue;  // strictly on the wrong side of a circle
            let F = 0;
            for (let k = 0; k < m; k++) {
              const t = w[0] * U[3 * k] + w[1] * U[3 * k + 1] + w[2] * U[3 * k + 2];
              F += t > 0 ? A[k] * t : -B[k] * t;
            }
            if (F - level * length <= -2 * near) continue;
            if (larger(candidate(v, i, end, way, side))) return "the maximum is larger";
            if (work > MOST_WORK) return "not decided: too many places are too close to the bound";
          }
        }
      }
    }
  }
  return "";
}

function turnOf(v, u, z) {  // the sign of (v x u) . z for two different lines u, z across v: that of the multiple of v that u x z is
  for (let x = 0; x < 3; x++)
    if (v[x]) {
      const [p, q] = [(x + 1) % 3, (x + 2) % 3];
      return Math.sign(u[p] * z[q] - u[q] * z[p]) * Math.sign(v[x]);
    }
  return 0;
}
