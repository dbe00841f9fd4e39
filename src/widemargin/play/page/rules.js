// Steps of training, as the rules of widemargin.flows make them: gradient descent, normalised gradient descent, Adam; and gradient
// flow, here by explicit steps with error control (flows has implicit ones, which go farther).

import {slopes, unitWeights} from "./losses.js";

const copy = (parts) => parts.map((part) => part.slice());
const square = (parts) => parts.reduce((sum, part) => part.reduce((s, v) => s + v * v, sum), 0);

function move(net, from, grads, rate, decay = 0) {
  net.trained.forEach((part, k) => {
    for (let i = 0; i < part.length; i++) part[i] = from[k][i] + rate * (grads[k][i] - decay * from[k][i]);
  });
}

class Rule {
  constructor(net, loss) {
    Object.assign(this, {net, loss, steps: 0, taken: 0, time: 0, clock: 0});  // time of the rule itself; clock: CB's, ds = risk dt
    this.restart();
    this.average = unitWeights(loss, this.p);
  }
  restart() { this.p = this.net.look(); }
  moved(weights, ds) {  // the weights of the points that made this step, averaged over about the last quarter of CB's clock
    const before = this.clock, sum = weights.reduce((s, v) => s + v, 0);
    this.clock += ds;
    const part = before > 0 ? 1 - (before / this.clock) ** 4 : 1;
    if (sum > 0) for (let i = 0; i < weights.length; i++) this.average[i] += part * (weights[i] / sum - this.average[i]);
  }
}

export class Descent extends Rule {
  constructor(net, loss, {lr, decay = 0}) { super(net, loss); this.lr = lr; this.decay = decay; }
  step() {
    const {weights, logRisk} = slopes(this.loss, this.p, "mean");
    move(this.net, copy(this.net.trained), this.net.pull(weights), this.lr, this.decay);
    this.moved(weights, this.decay ? this.lr : this.lr * Math.exp(logRisk));
    this.steps++; this.taken++; this.time += this.lr;
    this.restart();
  }
}

export class NormalizedDescent extends Rule {
  constructor(net, loss, {lr}) { super(net, loss); this.h = lr * net.m; }  // CB's clock, with the 1/m in front of the net
  step() {
    const {weights, logRisk} = slopes(this.loss, this.p, "soft_margin");
    const grads = this.net.pull(weights), before = copy(this.net.trained), {h} = this;
    move(this.net, before, grads, h);
    const p = this.net.look(), after = slopes(this.loss, p, "mean").logRisk;
    const noise = 8 * 2 ** -52 * (1 + Math.abs(logRisk));
    this.steps++;
    if (logRisk - after >= 0.1 * h * square(grads) - noise && after > -1e300) {
      this.moved(weights, h);
      this.p = p; this.taken++; this.time += h; this.h = h * 2 ** 0.2;
    } else {
      this.net.trained.forEach((part, k) => part.set(before[k]));
      this.h = h * 0.5;
      this.restart();
    }
  }
}

export class AdamRule extends Rule {
  constructor(net, loss, {lr, decay = 0}) {
    super(net, loss);
    Object.assign(this, {lr, decay, first: net.trained.map((p) => new Float64Array(p.length)), second: net.trained.map((p) => new Float64Array(p.length))});
  }
  step() {
    const {weights, logRisk} = slopes(this.loss, this.p, "mean"), grads = this.net.pull(weights);
    this.moved(weights, this.decay ? this.lr : this.lr * Math.exp(logRisk));
    const one = 1 - 0.9 ** (this.taken + 1), two = 1 - 0.999 ** (this.taken + 1);
    this.net.trained.forEach((part, k) => {
      const a = this.first[k], b = this.second[k];
      for (let i = 0; i < part.length; i++) {
        const g = grads[k][i] - this.decay * part[i];
        a[i] = 0.9 * a[i] + (1 - 0.9) * g;
        b[i] = 0.999 * b[i] + (1 - 0.999) * g * g;
        part[i] += this.lr * (a[i] / one) / (Math.sqrt(b[i] / two) + 1e-8);
      }
    });
    this.steps++; this.taken++; this.time += this.lr;
    this.restart();
  }
}

const ERROR = 2e-3;  // of a step, relative to |W|

export class FlowRule extends Rule {  // dW/ds = sum_i w_i dp_i/dW, w_i = |l'_i| / sum l, Heun's steps
  constructor(net, loss) { super(net, loss); this.h = 0; }
  step() {
    const {net, loss} = this, before = copy(net.trained);
    const here = slopes(loss, this.p, "soft_margin").weights, first = net.pull(here), pace = Math.sqrt(square(first));
    this.steps++;
    if (!(pace > 0)) return;
    const size = Math.sqrt(square(before)) + (net.degree === 1 ? 1 / pace : 0), speed = pace / size;  // an output layer starts at 0
    if (!this.h) this.h = 1e-3 / speed;
    const h = Math.min(this.h, 0.1 / speed);
    move(net, before, first, h);
    const there = slopes(loss, net.look(), "soft_margin").weights, second = net.pull(there);
    let error = 0;
    first.forEach((part, k) => part.forEach((v, i) => { error += (second[k][i] - v) ** 2; }));
    error = 0.5 * h * Math.sqrt(error) / size / ERROR;
    this.h = h * Math.min(3, Math.max(0.2, 0.9 / Math.sqrt(error + 1e-12)));
    if (error <= 1) {
      move(net, before, first.map((part, k) => part.map((v, i) => 0.5 * (v + second[k][i]))), h);
      this.moved(here.map((v, i) => v + there[i]), h);
      this.taken++; this.time += h;
    } else net.trained.forEach((part, k) => part.set(before[k]));
    this.restart();
  }
}

export const RULES_BY_NAME = {gd: Descent, ngd: NormalizedDescent, adam: AdamRule, flow: FlowRule};
