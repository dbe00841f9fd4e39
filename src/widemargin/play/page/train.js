// One run of the page: the network of the chosen mode and beside it one whose output layer alone is trained, from the same
// directions, step by step with the chosen rule; what is drawn of them, and the curves so far.

import {LOSSES} from "./losses.js";
import {FrozenNet, TwoLayerNet} from "./nets.js";
import {RULES_BY_NAME} from "./rules.js";
import {lifted} from "./certify.js";

const MOST_RECORDS = 400;

function ruleOf(net, settings, own) {  // rates are per neuron: the 1/m in front of the net is taken out again
  const {rule, lr, decay, loss} = settings, per = rule === "gd" ? net.m : 1;
  return new RULES_BY_NAME[rule](net, LOSSES[loss], {lr: lr * per, decay: own ? decay / net.m : 0});
}

const squares = (part) => part.reduce((s, v) => s + v * v, 0);

export class Run {
  constructor(settings) {
    const {points, bias, width, seed, scale, mode, start} = settings, X = points.map(([x, y]) => [x, y]), y = points.map((p) => p[2]);
    const X3 = lifted(X, bias), D = bias ? 3 : 2;
    this.settings = settings;
    this.loss = LOSSES[settings.loss];
    const make = () => (mode === "frozen" ? new FrozenNet(X3, y, {width, D, seed, scale}) : new TwoLayerNet(X3, y, {width, D, seed, scale, start}));
    this.side = ruleOf(new TwoLayerNet(X3, y, {width, D, seed, only: true}), settings, false);
    this.main = mode === "output" ? this.side : ruleOf(make(), settings, true);
    this.diverged = false;
    this.curve = [];
    this.record();
  }

  get steps() { return this.main.steps; }

  advance(count) {
    for (let k = 0; k < count && !this.diverged; k++) {
      this.main.step();
      if (this.side !== this.main) this.side.step();
      if (!this.main.p.every(Number.isFinite)) { this.diverged = true; break; }
      if (this.steps >= this.next) this.record();
    }
  }

  numbers() {  // the margins of both networks and the objective of the first
    const {main, side, settings} = this, own = main.net.neurons(), other = side.net.neurons();
    const l1 = own.mass.reduce((s, v) => s + Math.abs(v), 0), l2 = Math.sqrt(side.net.m * squares(other.mass));
    const risk = main.p.reduce((s, v) => s + Math.exp(this.loss.log(v)), 0) / main.p.length;
    const objective = risk + settings.decay / (2 * main.net.m) * main.net.trained.reduce((s, part) => s + squares(part), 0);
    return {step: this.steps, time: main.time, f1: l1 > 0 ? Math.min(...main.p) / l1 : 0, f2: l2 > 0 ? Math.min(...side.p) / l2 : 0, risk, objective};
  }

  record() {
    this.curve.push(this.numbers());
    this.next = Math.max(this.steps + 1, Math.ceil(this.steps * 1.02));
    if (this.curve.length > MOST_RECORDS) this.curve = this.curve.filter((_, k) => k % 2 === 0 || k > MOST_RECORDS - 40);
  }

  shown() {  // what the page draws, in arrays that can be handed over
    const {theta, mass} = this.main.net.neurons(), other = this.side.net.neurons();
    return {...this.numbers(), theta, mass, mass2: other.mass, theta2: other.theta, dual: this.main.average.slice(),
      margins: Float64Array.from(this.main.p), diverged: this.diverged};
  }
}
