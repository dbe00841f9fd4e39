// The Worker that certifies: the search in rounds, the exact check of what it found, then the bound of the random features and, with
// weight decay, the least objective. It looks at its messages between rounds and drops what is no longer asked for.

import {F1, lifted} from "./certify.js";
import {check} from "./check.js";
import {featureMargin, frozenMargin, kernelField, kernelMargin} from "./features.js";
import {FrozenNet, TwoLayerNet} from "./nets.js";
import {Optimum} from "./optimum.js";
import {circlesOf, peaks} from "./peaks.js";

const NAMES = {f1: "the margin of any width (F1)", f2: "the margin of the kernel (F2)", rf: "the margin of its own random neurons",
  frozen: "the margin of its own frozen directions", "f1-optimum": "the least objective with the weight decay of the file"};
const aboutOf = ({kind, bias, lower, upper}) => `: ${NAMES[kind]}, ${bias ? "with" : "without"} a bias, lies in [${lower}, ${upper}]`;

export function certifyWorker(scope) {
  let gen = -1;
  const FIRST = 1e-3, LAST = 1e-6, MOST_ROUNDS = 150;
  const channel = new MessageChannel();  // a pause that lets messages in, without the delay of a timer
  let resume = null;
  channel.port1.onmessage = () => resume?.();
  const pause = () => new Promise((go) => { resume = go; channel.port2.postMessage(0); });

  function judged(kind, text, task, more = {}) {
    const begun = performance.now(), verdict = check(text, task.X, task.y);
    const body = JSON.parse(text);
    scope.postMessage({type: "certificate", gen: task.gen, kind, text, verdict, checkMs: performance.now() - begun, ms: performance.now() - task.begun,
      lower: body.lower, upper: body.upper, status: body.status, theta: body.primal?.theta ?? body.extra.directions, mass: body.primal?.mass ?? body.extra.a,
      dual: body.dual, ...more});
  }

  async function rounds(kind, solver, task) {
    let early = false, last = 0;
    while (solver.gap > LAST && solver.rounds < MOST_ROUNDS && solver.round()) {
      if (performance.now() - last > 15) {
        last = performance.now();
        scope.postMessage({type: "progress", gen: task.gen, kind, lower: solver.lower, upper: solver.upper, rounds: solver.rounds, ms: last - task.begun});
        await pause();
        if (task.gen !== gen) return false;
      }
      if (!early && solver.gap <= FIRST) {
        early = true;
        judged(kind, solver.text(), task);
        await pause();
        if (task.gen !== gen) return false;
      }
    }
    judged(kind, solver.text(), task, {last: true});
    await pause();
    return task.gen === gen;
  }

  async function work(task) {
    const {X, y, settings, remote} = task, {bias, width, seed, mode, decay, loss} = settings, D = bias ? 3 : 2, X3 = lifted(X, bias);
    if (decay > 0 && !(await rounds("f1-optimum", new Optimum(X, y, bias, loss, decay), task))) return;
    if (mode === "frozen") {
      const {V} = new FrozenNet(X3, y, {width, D, seed});
      judged("frozen", frozenMargin(X, y, bias, V.subarray(0, V.length / 2)), task);
      await pause();
      if (task.gen !== gen) return;
    }
    if (!remote && !(await rounds("f1", new F1(X, y, bias), task))) return;
    judged("rf", featureMargin(X, y, bias, new TwoLayerNet(X3, y, {width, D, seed, only: true}).V), task, {last: true});
    await pause();
    if (task.gen !== gen) return;
    const text = kernelMargin(X, y, bias), {lower, extra} = JSON.parse(text), {half, grid} = task.view;
    judged("f2", text, task, {last: true, field: lower > 0 ? kernelField(X, y, bias, extra.alpha, half, grid) : null});
  }

  const taskOf = ({settings, remote, view}) => ({gen, settings, remote, view, begun: performance.now(),
    X: settings.points.map(([x, y]) => [x, y]), y: settings.points.map((p) => p[2])});

  let circles = null, circlesGen = -2;
  scope.onmessage = ({data}) => {
    if (data.type === "solve") {
      gen = data.gen;
      const points = data.settings.points;
      if (!points.length) return;
      work(taskOf(data))
        .catch((error) => scope.postMessage({type: "failed", gen: data.gen, why: error.message}));
    } else if (data.type === "bound" && data.gen === gen) {  // what the network's own weights would prove
      const {points, bias} = data.settings, X3 = lifted(points.map(([x, y]) => [x, y]), bias), n = points.length;
      if (circlesGen !== gen) { circles = circlesOf(X3, n); circlesGen = gen; }
      const c = data.dual.map((q, i) => q * points[i][2]);
      const most = Math.max(0, ...peaks(X3, n, c, circles, 1).map(([one]) => one.value));
      scope.postMessage({type: "bound", gen, step: data.step, value: most});
    } else if (data.type === "judge" && data.gen === gen) {  // a certificate from Python
      judged("f1", data.text, taskOf(data), {last: true});
    } else if (data.type === "check") {  // a file that was opened
      const verdict = check(data.text, data.X, data.y);
      scope.postMessage({type: "checked", id: data.id, verdict, about: verdict.failed ? "" : aboutOf(JSON.parse(data.text))});
    }
  };
}

if (typeof document === "undefined" && typeof self !== "undefined" && self.name === "certify") certifyWorker(self);
