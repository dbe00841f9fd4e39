// The largest margin of networks of any width: masses of neurons by a linear program, its dual weights, the neurons that are best
// under them, and again, until the margin of the network and the bound of the weights meet. Ends in a certificate's text.

import {Game} from "./simplex.js";
import {circlesOf, peaks} from "./peaks.js";
import {pythonJson} from "./json.js";
import {dataHash, sha256} from "./sha256.js";

export const ROOM = 1 + 1e-9;  // the bound is written this much above the best neuron found, for rounding and for the exact check
const NEW_PEAKS = 24, SHARE = 0.3, PATIENCE = 30;  // new neurons of a round and side; as good as this share of the best; rounds without progress

export function lifted(X, bias) {  // points as rows of three, with a last coordinate 1, or 0 where there is no bias
  const out = new Float64Array(3 * X.length);
  X.forEach(([x, y], i) => out.set([x, y, bias ? 1 : 0], 3 * i));
  return out;
}

export function column(X3, y, v, sign) {
  return Float64Array.from(y, (label, i) =>
    sign * label * Math.max(0, X3[3 * i] * v[0] + X3[3 * i + 1] * v[1] + X3[3 * i + 2] * v[2]));
}

export function contradiction(X, y, bias) {  // weights of points whose labels contradict each other, or null
  const seen = new Map();
  for (let i = 0; i < X.length; i++) {
    const [a, b] = X[i];
    if (!bias && !a && !b) return [[i, 1]];  // every network is 0 at the origin
    const size = bias ? 1 : Math.max(Math.abs(a), Math.abs(b)), key = `${a / size} ${b / size}`;
    const before = seen.get(key);
    if (before && before.label !== y[i]) {
      return [[before.i, 64 * size], [i, 64 * before.size]];  // on one ray the weights are as 1 / |x|; these are integers
    }
    if (!before) seen.set(key, {i, label: y[i], size});
  }
  return null;
}

export function certificate(body, X, y) {  // the text of a certificate, with its digest
  const whole = {
    format: "widemargin-certificate-1", activation: "relu", n: X.length, d: 2, gap: body.upper > 0 ? 1 - Math.max(0, body.lower) / body.upper : 0,
    seconds: null, seed: null, reason: "", atoms: body.primal ? body.primal.mass.length : 0, conversions: {}, extra: {}, primal: null,
    data: {name: "playground", sha256: dataHash(X, y)}, ...body,
  };
  whole.digest = sha256(new TextEncoder().encode(pythonJson(whole)));
  return pythonJson(whole);
}

export class F1 {  // one problem, solved in rounds
  constructor(X, y, bias) {
    Object.assign(this, {X, y, bias, n: X.length, X3: lifted(X, bias)});
    this.lines = circlesOf(this.X3, this.n);
    this.neurons = [];
    this.lower = 0;
    this.upper = Infinity;
    this.rounds = 0;
    this.stalls = 0;
    this.clash = contradiction(X, y, bias);
    if (this.clash) {
      this.dual = new Float64Array(this.n);
      for (const [i, q] of this.clash) this.dual[i] = q;
      this.upper = 0;
      this.network = {theta: [], mass: []};
      return;
    }
    this.price(Float64Array.from(y, () => 1 / this.n));
  }

  get gap() { return this.upper > 0 ? 1 - this.lower / this.upper : 0; }

  price(q) {  // the best neurons under q: they are new columns, and the largest value is a bound
    let most = 0;
    const c = q.map((v, i) => v * this.y[i]), fresh = [];
    peaks(this.X3, this.n, c, this.lines, NEW_PEAKS).forEach((found, k) => {
      for (const {v, value} of found) {
        most = Math.max(most, value);
        const theta = this.bias ? v : planar(v);
        if (theta) fresh.push([theta, k ? -1 : 1, value]);
      }
    });
    const weight = q.reduce((s, v, i) => s + v * Math.hypot(this.X3[3 * i], this.X3[3 * i + 1], this.X3[3 * i + 2]), 0);
    const bound = most * ROOM + 2e-15 * (this.n + 64) * weight;
    if (bound < this.upper) { this.upper = bound; this.dual = q; }
    for (const [theta, sign, value] of fresh) {
      if (value < SHARE * most) continue;
      const z = column(this.X3, this.y, theta, sign);
      this.neurons.push([theta, sign]);
      if (this.game) this.game.add(z);
      else this.game = new Game(this.n, z);
    }
    return most;
  }

  round() {  // true while it is worth going on
    if (this.clash) return false;
    this.rounds++;
    const before = [this.lower, this.upper], sound = this.game.solve();
    if (!sound && !this.game.refresh()) return false;
    this.take(this.game.masses());
    const q = this.game.weights();
    // Between the weights of the program and the best so far: the program's own jump about while there are few neurons.
    const mixed = this.dual && this.rounds % 2 ? q.map((v, i) => 0.5 * v + 0.5 * this.dual[i]) : q;
    this.price(mixed);
    this.prune();
    const better = this.lower > before[0] * (1 + 1e-10) || this.upper < before[1] * (1 - 1e-10);
    this.stalls = better ? 0 : this.stalls + 1;
    return this.stalls < PATIENCE;
  }

  take(masses) {  // the network of the program, if its margin is the best so far
    const values = new Float64Array(this.n);
    let norm = 0;
    for (const [j, w] of masses) {
      const z = this.game.columns[j];
      norm += w * Math.hypot(...this.neurons[j][0]);
      for (let i = 0; i < this.n; i++) values[i] += w * z[i];
    }
    const margin = Math.min(...values) / norm;
    const safe = margin - 1e-15 * (masses.length + 8) * Math.max(...this.X3.map(Math.abs)) * 4;
    if (safe > this.lower) {
      this.lower = safe;
      this.network = {theta: masses.map(([j]) => [...this.neurons[j][0]]), mass: masses.map(([j, w]) => w * this.neurons[j][1])};
    }
  }

  prune() {  // neurons that are neither used nor near the bound, where there are many
    const {columns, basis} = this.game;
    if (columns.length < 12 * this.n + 400) return;
    const used = new Set(basis.filter((j) => j >= 0)), q = this.game.weights();
    const worth = columns.map((z, j) => [z.reduce((s, v, i) => s + v * q[i], 0), j]).sort((a, b) => b[0] - a[0]);
    const keep = new Set([...used, ...worth.slice(0, 4 * this.n + 100).map(([, j]) => j)]), renamed = new Map();
    const order = [...keep].sort((a, b) => a - b);
    order.forEach((j, k) => renamed.set(j, k));
    this.game.columns = order.map((j) => columns[j]);
    this.neurons = order.map((j) => this.neurons[j]);
    this.game.basis = basis.map((j) => (j >= 0 ? renamed.get(j) : j));
  }

  text() {
    const body = {kind: "f1", convention: "M1", bias: this.bias, bound: "enumeration", proof: {type: "enumeration"}, proved: true};
    const whole = this.bias ? 3 : 2;
    return certificate({...body, lower: this.lower, upper: this.upper, dual: Array.from(this.dual),
      status: this.clash ? "not-separable" : this.lower > 0 ? "certified" : "rounding",
      primal: {theta: this.network ? this.network.theta.map((v) => v.slice(0, whole)) : [], mass: this.network ? this.network.mass : []},
      conversions: {M2: this.lower / 2}}, this.X, this.y);
  }
}

function planar(v) {  // a direction of the plane: points without a bias have no third coordinate
  const size = Math.hypot(v[0], v[1]);
  return size > 1e-9 ? [v[0] / size, v[1] / size, 0] : null;
}
