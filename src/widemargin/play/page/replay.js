// A run of Python's flows.train in place of the Worker that trains: the same messages, with frames from a file instead of steps.

import {LOSSES, unitWeights} from "./losses.js";

export class Replay {
  constructor(run) {  // {points, bias, steps: [...], theta: [[3 m numbers], ...], mass: [[m numbers], ...], loss, name}
    this.run = run;
    this.at = 0;
  }

  frame(k, points, bias) {
    const theta = Float64Array.from(this.run.theta[k]), mass = Float64Array.from(this.run.mass[k]), z = bias ? 1 : 0;
    const margins = Float64Array.from(points, ([x, y, label]) => {
      let f = 0;
      for (let j = 0; j < mass.length; j++) f += mass[j] * Math.max(0, theta[3 * j] * x + theta[3 * j + 1] * y + theta[3 * j + 2] * z);
      return label * f;
    });
    const l1 = mass.reduce((s, v) => s + Math.abs(v), 0), loss = LOSSES[this.run.loss];
    const risk = margins.reduce((s, p) => s + Math.exp(loss.log(p)), 0) / margins.length;
    return {step: this.run.steps[k], time: 0, f1: l1 > 0 ? Math.min(...margins) / l1 : 0, f2: NaN, risk, objective: risk, theta, mass,
      theta2: new Float64Array(0), mass2: new Float64Array(0), dual: unitWeights(loss, margins), margins, diverged: false};
  }

  postMessage({type, gen, settings, exactly, rate}) {
    if (type === "start") Object.assign(this, {at: 0, points: settings.points, bias: settings.bias, curve: []});
    else this.at = Math.min(this.at + (exactly ? 1 : Math.max(1, Math.round(50 * rate))), this.run.steps.length - 1);
    while (this.curve.length <= this.at) {
      const {step, f1, risk, objective} = this.frame(this.curve.length, this.points, this.bias);
      this.curve.push([step, f1, NaN, risk, objective]);
    }
    const shown = this.frame(this.at, this.points, this.bias), curve = Float64Array.from(this.curve.slice(0, this.at + 1).flat());
    setTimeout(() => this.onmessage({data: {type: "frame", gen, shown, curve}}), 30);
  }
}
