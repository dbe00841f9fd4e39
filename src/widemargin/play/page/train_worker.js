// The Worker that trains. Every message has the number of the generation it belongs to; older ones are dropped on both ends.

import {Run} from "./train.js";

export function trainWorker(scope) {
  let run = null, gen = -1, resume = null;
  const BUDGET = 11, BRIEF = 3, DRAGGED = 5, MANY = 60;  // milliseconds of steps for one frame
  const channel = new MessageChannel();  // a pause that lets messages in
  channel.port1.onmessage = () => resume?.();
  const pause = () => new Promise((go) => { resume = go; channel.port2.postMessage(0); });

  function frame() {
    const shown = run.shown(), {curve} = run, flat = new Float64Array(5 * curve.length);
    curve.forEach(({step, f1, f2, risk, objective}, k) => flat.set([step, f1, f2, risk, objective], 5 * k));
    const arrays = [shown.theta, shown.mass, shown.theta2, shown.mass2, shown.dual, shown.margins, flat];
    scope.postMessage({type: "frame", gen, shown, curve: flat}, arrays.map((one) => one.buffer));
  }

  async function until(steps, own) {  // those of a link, which may be many: frames on the way, and an end when something else is asked
    while (own === gen && run.steps < steps && !run.diverged) {
      const begun = performance.now();
      while (run.steps < steps && !run.diverged && performance.now() - begun < MANY) run.advance(1);
      frame();
      await pause();
    }
  }

  const failed = (error) => scope.postMessage({type: "failed", gen, why: error.message});

  scope.onmessage = ({data}) => {
    try {
      if (data.type === "start") {
        gen = data.gen;
        run = new Run(data.settings);
        if (data.steps) { until(data.steps, gen).catch(failed); return; }
        const begun = performance.now();  // while dragging a few steps are shown at once
        if (data.warm) while (performance.now() - begun < DRAGGED && run.steps < data.warm && !run.diverged) run.advance(1);
        frame();
      } else if (data.type === "go" && data.gen === gen && run) {
        const begun = performance.now(), budget = data.brief ? BRIEF : BUDGET, want = run.steps + (data.exactly || Math.ceil(data.least + run.steps * data.rate));
        while (run.steps < want && !run.diverged && (data.exactly || performance.now() - begun < budget)) run.advance(1);
        frame();
      }
    } catch (error) { failed(error); }
  };
}

if (typeof document === "undefined" && typeof self !== "undefined" && self.name === "train") trainWorker(self);
