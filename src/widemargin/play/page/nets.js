// The networks of the page, as widemargin.flows draws and evaluates them: f(x) = (1/m) sum_j a_j relu(v_j . x) with both layers
// trained (law "cb"), the same with the output layer alone (law "sphere", a = 0), and (1/m) sum_j r_j^2 b_j relu(v_j . x) with
// frozen directions (law "paired"). Points are rows of three numbers; without a bias the third is 0.

import {Normals} from "./numpy.js";
import {leastQuadratic} from "./quadratic.js";

function drawn(normals, count, D) {  // rows of D numbers, stored with three
  const V = new Float64Array(3 * count);
  for (let j = 0; j < count; j++) for (let x = 0; x < D; x++) V[3 * j + x] = normals.next();
  return V;
}

function toUnit(V, size = 1) {
  for (let j = 0; j < V.length; j += 3) {
    const length = Math.hypot(V[j], V[j + 1], V[j + 2]) / size;
    for (let x = j; x < j + 3; x++) V[x] /= length;
  }
  return V;
}

export function linearDirection(X, y, n) {  // of the largest linear margin: the shortest vector among averages of y_i x_i; null if it is 0
  const G = new Float64Array(n * n), u = [0, 0, 0];
  for (let i = 0; i < n; i++) for (let k = 0; k < n; k++)
    G[i * n + k] = y[i] * y[k] * (X[3 * i] * X[3 * k] + X[3 * i + 1] * X[3 * k + 1] + X[3 * i + 2] * X[3 * k + 2]);
  const q = leastQuadratic(G, n, new Float64Array(n).fill(1)), total = q.reduce((s, v) => s + v, 0);
  for (let i = 0; i < n; i++) for (let x = 0; x < 3; x++) u[x] += q[i] / total * y[i] * X[3 * i + x];
  const size = Math.hypot(...u);
  return size > 1e-6 ? u.map((v) => v / size) : null;
}

class Points {  // what all networks know of the data
  constructor(X3, y) { Object.assign(this, {X: X3, y, n: y.length}); }

  margins(f) {
    for (let i = 0; i < this.n; i++) f[i] *= this.y[i];
    return f;
  }
}

export class TwoLayerNet extends Points {
  constructor(X3, y, {width, D, seed, scale = 1, only = false, start = "drawn"}) {
    super(X3, y);
    const m = this.m = width, normals = new Normals(seed, 0);
    const a = normals.array(m);
    this.V = drawn(normals, m, D);
    if (only) { a.fill(0); toUnit(this.V); }
    else for (const part of [a, this.V]) for (let k = 0; k < part.length; k++) part[k] *= scale;
    const u = start === "linear" && !only ? linearDirection(X3, y, this.n) : null;
    if (u) { a.fill(scale); for (let j = 0; j < m; j++) this.V.set(u.map((v) => scale * v), 3 * j); }  // every neuron there
    this.a = a;
    this.only = only;
    this.degree = only ? 1 : 2;
    this.trained = only ? [this.a] : [this.a, this.V];
    this.H = new Float64Array(this.n * m);
  }

  look() {  // margins y f; H keeps relu(v_j . x_i)
    const {X, V, a, H, n, m} = this, p = new Float64Array(n), over = 1 / m;
    for (let i = 0; i < n; i++) {
      const x = X[3 * i], y = X[3 * i + 1], z = X[3 * i + 2], row = i * m;
      let sum = 0;
      for (let j = 0; j < m; j++) {
        const t = x * V[3 * j] + y * V[3 * j + 1] + z * V[3 * j + 2], h = t > 0 ? t : 0;
        H[row + j] = h;
        sum += a[j] * h;
      }
      p[i] = over * sum;
    }
    return this.margins(p);
  }

  pull(weights) {  // sum_i weights_i dp_i/dW after look
    const {X, V, a, H, n, m, y} = this, ga = new Float64Array(m), over = 1 / m;
    const gV = this.only ? null : new Float64Array(V.length);
    for (let i = 0; i < n; i++) {
      const g = over * weights[i] * y[i], row = i * m, x0 = g * X[3 * i], x1 = g * X[3 * i + 1], x2 = g * X[3 * i + 2];
      for (let j = 0; j < m; j++) {
        const h = H[row + j];
        if (h <= 0) continue;
        ga[j] += g * h;
        if (gV) { gV[3 * j] += a[j] * x0; gV[3 * j + 1] += a[j] * x1; gV[3 * j + 2] += a[j] * x2; }
      }
    }
    return gV ? [ga, gV] : [ga];
  }

  neurons() {  // unit directions (3 m) and masses (m)
    const {a, V, m} = this, mass = new Float64Array(m), theta = V.slice();
    for (let j = 0; j < m; j++) {
      const size = Math.max(Math.hypot(V[3 * j], V[3 * j + 1], V[3 * j + 2]), Number.MIN_VALUE);
      mass[j] = a[j] * size / m;
      for (let x = 0; x < 3; x++) theta[3 * j + x] /= size;
    }
    return {theta, mass};
  }
}

export class FrozenNet extends Points {
  constructor(X3, y, {width, D, seed, scale = 1}) {
    super(X3, y);
    const m = this.m = width + (width % 2), half = Math.SQRT1_2;
    const one = toUnit(drawn(new Normals(seed, 0), m / 2, D), half);
    this.V = new Float64Array(3 * m);
    this.V.set(one);
    this.V.set(one, one.length);
    this.b = Float64Array.from({length: m}, (_, j) => (j < m / 2 ? half : -half));
    this.r = new Float64Array(m).fill(scale);
    this.degree = 2;
    this.trained = [this.r];
    this.Z = new Float64Array(this.n * m);
    for (let i = 0; i < this.n; i++) for (let j = 0; j < m; j++) {
      const t = X3[3 * i] * this.V[3 * j] + X3[3 * i + 1] * this.V[3 * j + 1] + X3[3 * i + 2] * this.V[3 * j + 2];
      this.Z[i * m + j] = t > 0 ? t * this.b[j] : 0;
    }
  }

  look() {
    const {r, Z, n, m} = this, p = new Float64Array(n);
    for (let i = 0; i < n; i++) {
      let sum = 0;
      for (let j = 0; j < m; j++) sum += r[j] * r[j] / m * Z[i * m + j];
      p[i] = sum;
    }
    return this.margins(p);
  }

  pull(weights) {
    const {r, Z, n, m, y} = this, out = new Float64Array(m);
    for (let i = 0; i < n; i++) {
      const g = weights[i] * y[i];
      for (let j = 0; j < m; j++) out[j] += g * Z[i * m + j];
    }
    for (let j = 0; j < m; j++) out[j] *= 2 / m * r[j];
    return [out];
  }

  neurons() {
    const {r, b, V, m} = this;
    return {mass: r.map((v, j) => v * v / m * b[j] * Math.SQRT1_2), theta: V.map((v) => v * Math.SQRT2)};
  }
}
