// The least objective of training with weight decay, mean loss + decay sum_j |mass_j|, over networks of any width: masses of neurons
// by Newton's method over w >= 0, the slopes of the loss as dual weights, the best neurons under them, and again.

import {ROOM, certificate, column, lifted} from "./certify.js";
import {circlesOf, peaks} from "./peaks.js";
import {leastQuadratic} from "./quadratic.js";
import {LOSSES} from "./losses.js";

const value = (loss, p) => Math.exp(LOSSES[loss].log(p)), slope = (loss, p) => Math.exp(LOSSES[loss].logSlope(p));
const curve = (loss, p) => (loss === "exp" ? Math.exp(-p) : slope(loss, p) * (1 - slope(loss, p)));

export class Optimum {
  constructor(X, y, bias, loss, decay) {
    Object.assign(this, {X, y, bias, loss, decay, n: X.length, X3: lifted(X, bias), neurons: [], columns: [], w: new Float64Array(0)});
    this.lines = circlesOf(this.X3, this.n);
    this.p = new Float64Array(this.n);
    this.lower = 0;
    this.upper = Infinity;
    this.rounds = 0;
    this.stalls = 0;
    this.keep();
    this.price();
  }

  get gap() { return this.upper > 0 ? 1 - this.lower / this.upper : 0; }

  objective(p, norm) {
    let sum = 0;
    for (let i = 0; i < this.n; i++) sum += value(this.loss, p[i]);
    return sum / this.n + this.decay * norm;
  }

  keep() {
    const norm = this.w.reduce((s, v) => s + v, 0), reached = this.objective(this.p, norm) * (1 + 1e-12) + 1e-15;
    if (!(reached < this.upper)) return;
    this.upper = reached;
    const on = [...this.w.keys()].filter((j) => this.w[j] > 0);
    this.network = {theta: on.map((j) => this.neurons[j][0]), mass: on.map((j) => this.w[j] * this.neurons[j][1])};
  }

  price() {  // the best neurons under the slopes c of the loss, and what these prove
    const {n, y, loss, decay} = this, c = Float64Array.from(this.p, (p, i) => y[i] * slope(loss, p));
    let most = 0;
    peaks(this.X3, n, c, this.lines, 24).forEach((found, k) => {
      for (const {v, value: height} of found) {
        most = Math.max(most, height);
        const size = this.bias ? 1 : Math.hypot(v[0], v[1]);
        if (height < 0.9 * decay * n || size < 1e-9) continue;
        const theta = this.bias ? v : [v[0] / size, v[1] / size, 0];
        this.neurons.push([theta, k ? -1 : 1]);
        this.columns.push(column(this.X3, y, theta, k ? -1 : 1));
      }
    });
    const weight = c.reduce((s, v, i) => s + Math.abs(v) * Math.hypot(this.X3[3 * i], this.X3[3 * i + 1], this.X3[3 * i + 2]), 0);
    const maximum = most * ROOM + 2e-15 * (n + 64) * weight + 1e-300, theta = Math.min(1, decay * n / maximum);
    let proved = 0;
    for (let i = 0; i < n; i++) {
      const u = theta * Math.abs(c[i]);
      if (u > 0) proved += loss === "exp" ? u - u * Math.log(u) : -u * Math.log(u) - (1 - u) * Math.log1p(-u);
    }
    proved = proved / n * (1 - 1e-12) - 1e-15;
    if (proved > this.lower) { this.lower = proved; this.dual = c; this.maximum = maximum; }
    else if (!this.dual) { this.dual = c; this.maximum = maximum; }
  }

  round() {
    const before = [this.lower, this.upper], {n} = this, m = this.columns.length;
    this.rounds++;
    const w = new Float64Array(m);
    w.set(this.w);
    for (let step = 0; step < 12; step++) {  // Newton: the quadratic model over w >= 0, then a line search
      const p = this.values(w), now = this.objective(p, w.reduce((s, v) => s + v, 0));
      const g = new Float64Array(m), h = Float64Array.from(p, (v) => Math.max(curve(this.loss, v), 1e-12) / n);
      for (let j = 0; j < m; j++) {
        let sum = 0;
        for (let i = 0; i < n; i++) sum += slope(this.loss, p[i]) * this.columns[j][i];
        g[j] = sum / n - this.decay;  // minus the gradient
      }
      const use = [...w.keys()].filter((j) => w[j] > 0 || g[j] > -0.02 * this.decay), N = use.length;
      const H = new Float64Array(N * N), b = new Float64Array(N);
      for (let r = 0; r < N; r++) for (let s = 0; s <= r; s++) {
        const zr = this.columns[use[r]], zs = this.columns[use[s]];
        let sum = 0;
        for (let i = 0; i < n; i++) sum += h[i] * zr[i] * zs[i];
        H[r * N + s] = H[s * N + r] = sum * (r === s ? 1 + 1e-10 : 1);
      }
      for (let r = 0; r < N; r++) { b[r] = g[use[r]]; for (let s = 0; s < N; s++) b[r] += H[r * N + s] * w[use[s]]; }
      const x = leastQuadratic(H, N, b, Float64Array.from(use, (j) => w[j]), 1e-12);
      let model = 0;
      for (let r = 0; r < N; r++) model += g[use[r]] * (x[r] - w[use[r]]);
      if (!(model > 1e-14 * now)) break;
      let rate = 1, next = null;
      for (; rate > 1e-6; rate /= 2) {
        next = w.slice();
        use.forEach((j, r) => { next[j] = Math.max(0, w[j] + rate * (x[r] - w[j])); });
        if (this.objective(this.values(next), next.reduce((s, v) => s + v, 0)) <= now - 1e-4 * rate * model) break;
      }
      if (rate <= 1e-6) break;
      w.set(next);
    }
    const on = [...w.keys()].filter((j) => w[j] > 0), p = this.values(w);
    const worth = (j) => this.columns[j].reduce((s, v, i) => s + v * slope(this.loss, p[i]), 0);
    const rest = [...w.keys()].filter((j) => !(w[j] > 0)).map((j) => [worth(j), j]).sort((a, b) => b[0] - a[0]).slice(0, 60).map(([, j]) => j);
    const order = [...on, ...rest];
    this.neurons = order.map((j) => this.neurons[j]);
    this.columns = order.map((j) => this.columns[j]);
    this.w = Float64Array.from(order, (j) => w[j]);
    this.p = p;
    this.keep();
    this.price();
    const better = this.lower > before[0] * (1 + 1e-9) || this.upper < before[1] * (1 - 1e-9);
    this.stalls = better ? 0 : this.stalls + 1;
    return this.stalls < 4;
  }

  values(w) {
    const p = new Float64Array(this.n);
    for (let j = 0; j < w.length; j++) if (w[j] > 0) for (let i = 0; i < this.n; i++) p[i] += w[j] * this.columns[j][i];
    return p;
  }

  text() {
    const D = this.bias ? 3 : 2, {lower, upper} = this;
    return certificate({kind: "f1-optimum", convention: "objective", bias: this.bias, bound: "enumeration", proved: true, lower, upper,
      proof: {type: "enumeration", maximum: this.maximum}, status: lower > 0 ? "certified" : "rounding", dual: Array.from(this.dual),
      extra: {loss: this.loss, weight_decay: this.decay, output_bias: null, offset: 0, scale: 1},
      primal: {theta: this.network.theta.map((v) => Array.from(v).slice(0, D)), mass: this.network.mass}}, this.X, this.y);
  }
}
