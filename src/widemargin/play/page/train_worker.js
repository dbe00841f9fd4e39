// The Worker that trains. Every message has the number of the generation it belongs to; older ones are dropped on both ends.

import {Run} from "./train.js";

export function trainWorker(scope) {
  let run = null, gen = -1;
  const BUDGET = 11, BRIEF = 3, DRAGGED = 5;  // milliseconds of steps for one frame

  function frame() {
    const shown = run.shown(), {curve} = run, flat = new Float64Array(5 * curve.length);
    curve.forEach(({step, f1, f2, risk, objective}, k) => flat.set([step, f1, f2, risk, objective], 5 * k));
    const arrays = [shown.theta, shown.mass, shown.theta2, shown.mass2, shown.dual, shown.margins, flat];
    scope.postMessage({type: "frame", gen, shown, curve: flat}, arrays.map((one) => one.buffer));
  }

  scope.onmessage = ({data}) => {
    try {
      if (data.type === "start") {
        gen = data.gen;
        run = new Run(data.settings);
        const until = data.steps || 0, begun = performance.now();
        // A link may ask for many steps: they are taken here, with frames on the way. While dragging a few are shown at once.
        if (until) {
          while (run.steps < until && !run.diverged) run.advance(Math.min(until - run.steps, 200));
        } else if (data.warm) while (performance.now() - begun < DRAGGED && run.steps < data.warm && !run.diverged) run.advance(1);
        frame();
      } else if (data.type === "go" && data.gen === gen && run) {
        const begun = performance.now(), budget = data.brief ? BRIEF : BUDGET, want = run.steps + (data.exactly || Math.ceil(data.least + run.steps * data.rate));
        while (run.steps < want && !run.diverged && (data.exactly || performance.now() - begun < budget)) run.advance(1);
        frame();
      }
    } catch (error) {
      scope.postMessage({type: "failed", gen, why: error.message});
    }
  };
}

if (typeof document === "undefined" && typeof self !== "undefined" && self.name === "train") trainWorker(self);
