// The page: state, workers, panels and controls. A change of the state begins a new generation; whatever an older one still sends
// is dropped.

import {Ball} from "./ball.js";
import {themeColours} from "./colours.js";
import {PRESETS} from "./presets.js";
import {asCommand, asPython} from "./python.js";
import {Race} from "./race.js";
import {Replay} from "./replay.js";
import {Stage} from "./stage.js";
import {FARTHEST, MOST_STEPS_LINK, RATES, fresh, fromHash, limits, readTable, remarks, snap, tidy, toHash} from "./state.js";
import {Story} from "./story.js";
import {headlines} from "./words.js";

const workerAt = (name) => new Worker(new URL(`${name}_worker.js`, import.meta.url), {type: "module", name});

const PACE = {1: [1, 0.004], 2: [2, 0.02], 3: [8, 0.08]};  // steps of a frame: at least, and as a share of those so far
const STILL = matchMedia("(prefers-reduced-motion: reduce)"), NIGHT = matchMedia("(prefers-color-scheme: dark)");
const WIDTHS = (k) => Math.round(2 * 250 ** (k / 100)), SCALES = (k) => Number((0.01 * 4000 ** (k / 100)).toPrecision(2));

const ALONE = 150;  // points up to which the page certifies by itself
const SEARCHING = 1000;  // while a verdict is looked for, training takes little of the processor, but no longer than this

const inside = (v) => Math.min(Math.max(v, -FARTHEST), FARTHEST);

class Playground {
  constructor() {
    this.get = (id) => document.getElementById(id);
    this.gen = 0;
    this.server = document.documentElement.dataset.server === "yes";
    if (this.server) limits.points = 400;
    this.history = [];
    this.running = !STILL.matches;
    this.certs = {};
    this.own = [];
    this.frames = 0;
    this.said = 0;
    this.stage = new Stage({
      add: (x, y) => this.addPoint(x, y), move: (i, x, y) => this.movePoint(i, x, y), flip: (i) => this.flip(i), remove: (i) => this.remove(i),
      begin: (added) => { if (!added) this.remember(); }, done: () => this.restart(), nudge: (i, dx, dy) => this.nudge(i, dx, dy),
    });
    this.ball = new Ball(this.get("ball"), () => { this.dirty = true; });
    this.race = new Race(this.get("race"));
    this.story = new Story((state) => {
      this.change(state, {view: true});
      this.running = !STILL.matches;
      this.showControls();
    });
    this.colours = themeColours();
    NIGHT.addEventListener("change", () => { this.colours = themeColours(); this.dirty = true; });
    new ResizeObserver(() => { this.dirty = true; }).observe(document.body);
    this.certifier = workerAt("certify");
    this.trainer = workerAt("train");
    for (const worker of [this.trainer, this.certifier]) {
      worker.onmessage = ({data}) => this.hear(data);
      worker.onerror = (event) => this.note(`A part of the page could not be started (${event.message ?? "no worker"}); serve it with \`widemargin play\`.`);
    }
    this.controls();
    this.begin();
    requestAnimationFrame(() => this.tick());
  }

  begin() {
    let state = fresh(PRESETS.xor.points(), {bias: false});
    if (location.hash.length > 1) {
      try {
        state = fromHash(location.hash);
        if (state.steps) this.running = false;
      } catch (error) { this.warning = `${error.message} The page begins with XOR instead.`; }
    }
    this.state = state;
    this.view();
    this.restart();
    document.documentElement.dataset.ready = "yes";
    if (this.server && location.search === "?run") this.replayed();
  }

  async replayed() {  // a run of Python's, until something is changed
    const answer = await fetch("run.json");
    if (!answer.ok) return this.note("The server has no run to replay.");
    const run = await answer.json();
    this.replay = new Replay(run);
    this.replay.onmessage = ({data}) => this.hear(data);
    this.replay.state = this.state = fresh(run.points, {bias: run.bias, loss: run.loss, width: Math.min(500, Math.max(2, run.mass[0].length))});
    this.warning = `This is the run ${run.name}, recorded by Python. Change anything to train here.`;
    this.view();
    this.restart();
  }

  get trains() { return this.replay && this.state === this.replay.state ? this.replay : this.trainer; }

  // ------------------------------------------------------------ changes

  remember() {
    this.history.push(this.state);
    if (this.history.length > 100) this.history.shift();
  }

  change(more, {view = false, keep = true} = {}) {
    if (keep) this.remember();
    this.warning = "";
    this.state = tidy({...this.state, steps: 0, ...more});
    if (view) this.view();
    this.restart();
  }

  undo() {
    const before = this.history.pop();
    if (!before) return;
    this.state = before;
    this.view();
    this.restart();
    this.say("Undone.");
  }

  view() {  // the square shows all points, and no less than 2 on each side
    const most = this.state.points.reduce((m, [x, y]) => Math.max(m, Math.abs(x), Math.abs(y)), 0);
    this.stage.look(Math.max(2, snap(1.25 * most)));
  }

  addPoint(x, y) {
    const {points} = this.state;
    if (points.length >= limits.points) { this.note(`The page takes ${limits.points} points; \`widemargin margin\` takes more.`); return -1; }
    this.change({points: [...points, [inside(x), inside(y), Number(this.get("paint").value)]]});
    return points.length;
  }

  movePoint(i, x, y) {
    const points = this.state.points.slice(), [a, b] = [inside(x), inside(y)];
    if (!points[i] || (points[i][0] === a && points[i][1] === b)) return;
    points[i] = [a, b, points[i][2]];
    this.state = {...this.state, points, steps: 0};
    this.warning = "";
    this.restart({warm: true});
  }

  nudge(i, dx, dy) {
    const [x, y] = this.state.points[i];
    this.remember();
    this.movePoint(i, snap(x + dx), snap(y + dy));
    const limit = this.stage.half;
    if (Math.max(Math.abs(x + dx), Math.abs(y + dy)) > limit) { this.view(); this.restart(); }
  }

  flip(i) {
    const points = this.state.points.slice();
    points[i] = [points[i][0], points[i][1], -points[i][2]];
    this.change({points});
  }

  remove(i) {
    this.change({points: this.state.points.filter((_, k) => k !== i)});
    const next = this.stage.buttons[Math.min(i, this.stage.buttons.length - 1)];
    (next ?? this.get("add")).focus();
  }

  restart({warm = false} = {}) {  // a new generation: both workers begin anew
    this.gen++;
    this.asking?.abort();  // Python need not answer what is no longer asked
    this.certs = {};
    this.firsts = {};
    this.progress = {};
    this.own = [];
    this.curve = null;
    this.waiting = true;
    this.begun = performance.now();
    const {state} = this, steps = this.steps;
    if (this.shown && this.shown.margins.length !== state.points.length) this.shown = null;
    if (!warm) { this.stage.release(); this.stage.network("f1", null); this.stage.network("f2", null); this.ball.best(null); }
    this.stage.place(state.points);
    this.stage.weigh(null);
    this.note(this.warning || remarks(state).join(" "), !this.warning || this.trains === this.replay);
    if (state.points.length) {
      this.trains.postMessage({type: "start", gen: this.gen, settings: state, steps: state.steps, warm: warm ? Math.max(steps, 30) : 0});
      clearTimeout(this.soon);
      const remote = state.points.length > ALONE, ask = () => {
        this.certifier.postMessage({type: "solve", gen: this.gen, settings: this.state, remote, view: this.stage.frame()});
        if (remote) this.askPython();
      };
      if (warm) this.soon = setTimeout(ask, 25); else ask();
    } else { this.shown = null; this.certifier.postMessage({type: "solve", gen: this.gen, settings: state}); }
    this.showControls();
    this.words();
    this.dirty = true;
    clearTimeout(this.addressed);  // browsers bound how often an address may change
    this.addressed = setTimeout(() => history.replaceState(null, "", toHash({...this.state, steps: 0})), 400);
  }

  async askPython() {  // the certificate of many points, from widemargin on this computer; it is checked here all the same
    const {gen, state} = this, {points, bias} = state;
    this.asking = new AbortController();
    try {
      const answer = await fetch("certify", {method: "POST", body: JSON.stringify({points, bias}), signal: this.asking.signal}), text = await answer.text();
      if (gen !== this.gen) return;
      if (answer.ok) this.certifier.postMessage({type: "judge", gen, settings: state, text});
      else this.note(`Python could not certify these points: ${text}.`);
    } catch { if (gen === this.gen) this.note("Python does not answer any more; start `widemargin play` again."); }
  }

  get steps() { return this.shown ? this.shown.step : 0; }

  // ------------------------------------------------------------ workers

  hear(message) {
    if (message.type === "checked") return this.told(message.verdict, message.about);
    if (message.gen !== this.gen) return;
    if (message.type === "frame") {
      this.shown = message.shown;
      this.curve = message.curve;
      this.waiting = this.shown.step < this.state.steps && !this.shown.diverged;  // a link's steps are still being taken
      this.frames++;
      this.stage.mark(this.shown.margins);
      if (this.shown.diverged && this.running) { this.running = false; this.showControls(); }
    } else if (message.type === "progress") this.progress[message.kind] = message;  // for the race and the words; the network is the same
    else if (message.type === "certificate") this.certified(message);
    else if (message.type === "bound") { this.own.push([message.step, Math.min(message.value, this.own.at(-1)?.[1] ?? Infinity)]); this.asked = 0; }
    else if (message.type === "failed") this.note(`Something went wrong on this page (${message.why}); change a point or reset.`);
    if (["progress", "bound"].includes(message.type)) this.newer = true; else this.dirty = true;
  }

  certified(message) {
    this.firsts[message.kind] ??= message.ms;
    this.certs[message.kind] = message;
    const proved = message.verdict.answer === "proved exactly", shown = message.lower > 0 && message.theta;
    if (message.kind === (this.state.decay ? "f1-optimum" : "f1")) {
      this.stage.network("f1", shown ? message.theta.map((v) => [v[0], v[1], v[2] ?? 0]) : null, message.mass);
      this.ball.best(shown ? message.theta : null, message.mass);
      this.stage.weigh(message.dual);
    } else if (message.kind === "f2") this.stage.field("f2", message.field);
    if (proved && message.kind === (this.state.decay ? "f1-optimum" : "f1") && message.last) this.say(headlines(this).plain);
  }

  tick() {
    requestAnimationFrame(() => this.tick());
    if (document.hidden) return;
    const now = performance.now(), due = !STILL.matches || now - (this.went ?? 0) > 500;
    if (this.running && !this.waiting && this.shown && due) {
      this.went = now;
      this.waiting = true;
      const [least, rate] = PACE[this.get("speed").value], brief = !this.main() && now - this.begun < SEARCHING;
      this.trains.postMessage({type: "go", gen: this.gen, least, rate, brief});
    }
    if (!this.dirty && !this.newer) return;
    const {state, colours} = this;
    if (this.dirty) {
      this.stage.draw(this.shown, colours);
      this.ball.draw(this.shown, state.points, state.bias, colours);
    }
    this.dirty = this.newer = false;
    this.race.draw({curve: this.curve, bounds: this.bounds(), own: this.own, decay: state.decay, colours});
    if (now - (this.worded ?? 0) > 90) { this.worded = now; this.words(); }
    this.askBound(now);
    if (this.running && now - this.said > 6000 && this.certs.f1) this.say(headlines(this).brief);
  }

  askBound(now) {  // what the weights of the network itself would prove, now and then
    const {state, shown, own} = this;
    if (this.asked && now - this.asked < 3000) return;
    if (state.decay || !shown || !this.certs.rf || state.points.length > 100 || state.mode !== "both") return;
    if (own.length && shown.step < 1.08 * own.at(-1)[0] + 1) return;
    this.asked = now;
    this.certifier.postMessage({type: "bound", gen: this.gen, settings: state, step: shown.step, dual: shown.dual});
  }

  bounds() {
    const of = (kind) => {
      const cert = this.certs[kind], on = this.progress[kind];
      if (cert) return {lower: cert.lower, upper: on && cert.last !== true ? Math.min(cert.upper, on.upper) : cert.upper, proved: cert.verdict.answer === "proved exactly"};
      return on ? {lower: on.lower, upper: on.upper, proved: false} : null;
    };
    return {f1: of(this.state.mode === "frozen" ? "frozen" : "f1"), f2: of("rf"), optimum: of("f1-optimum"), best: of("f1")};
  }

  words() {
    const said = headlines(this);
    for (const [id, text] of Object.entries(said.texts)) if (this.get(id).textContent !== text) this.get(id).textContent = text;
    this.get("badge").className = `badge ${said.badge}`;
    this.get("verdict").dataset.state = said.badge === "yes" ? "proved" : "wait";
    for (const [id, value] of Object.entries(said.meters)) this.get(id).value = value;
    this.get("lane2").closest("div").hidden = Boolean(this.state.decay);
    this.get("download").disabled = !this.main();
  }

  main() { return this.certs[this.state.decay ? "f1-optimum" : "f1"]; }

  note(text, mild = false) {
    const box = this.get("note");
    box.hidden = !text;
    box.classList.toggle("mild", mild);
    if (box.textContent !== text) box.textContent = text;
  }

  say(text) {
    this.said = performance.now();
    this.get("live").textContent = text;
  }

  // ------------------------------------------------------------ controls

  controls() {
    const {get} = this, on = (id, event, act) => get(id).addEventListener(event, act);
    get("preset").append(new Option("your own", ""), ...Object.entries(PRESETS).map(([key, {name}]) => new Option(name, key)));
    on("preset", "change", (event) => { if (event.target.value) this.preset(event.target.value); });
    on("run", "click", () => { this.running = !this.running; this.showControls(); });
    on("step", "click", () => {
      this.running = false;
      if (this.shown && !this.waiting) { this.waiting = true; this.trains.postMessage({type: "go", gen: this.gen, exactly: 1}); }
      this.showControls();
    });
    on("reset", "click", () => { if (this.state.steps) this.state = {...this.state, steps: 0}; this.restart(); });
    on("undo", "click", () => this.undo());
    on("add", "click", () => { const i = this.addPoint(0, 0); if (i >= 0) this.stage.buttons[i].focus(); });
    on("clear", "click", () => this.change({points: []}));
    on("width", "input", () => this.change({width: WIDTHS(get("width").value)}, {keep: this.slid("width")}));
    on("scale", "input", () => this.change({scale: SCALES(get("scale").value)}, {keep: this.slid("scale")}));
    for (const id of ["mode", "loss", "start"]) on(id, "change", () => this.change({[id]: get(id).value}));
    on("rule", "change", () => this.change({rule: get("rule").value, lr: RATES[get("rule").value]}));
    on("decay", "change", () => {
      const decay = Number(get("decay").value), {rule} = this.state, fine = ["gd", "adam"].includes(rule);
      this.change({decay, mode: decay ? "both" : this.state.mode, rule: decay && !fine ? "gd" : rule, lr: decay && !fine ? RATES.gd : this.state.lr});
    });
    for (const [id, whole] of [["lr", false], ["seed", true]])
      on(id, "change", () => {
        const {min, max} = get(id), value = Number(get(id).value), good = get(id).value !== "" && value >= Number(min) && value <= Number(max) && (!whole || Number.isInteger(value));
        if (good) this.change({[id]: value});
        else { this.showControls(); this.note(`${id === "lr" ? "The step size" : "The seed"} must be ${whole ? "a whole number" : "a number"} from ${min} to ${max}.`); }
      });
    on("bias", "change", () => this.change({bias: get("bias").checked}));
    on("share", "click", () => this.copy(location.href.split("#")[0] + toHash({...this.state, steps: Math.min(this.steps, MOST_STEPS_LINK)}), "The link is copied."));
    for (const [id, write, said] of [["python", asPython, "Copied as Python."], ["command", asCommand, "Copied as commands."]])
      on(id, "click", () => {
        if (this.state.points.length) this.copy(write(this.state, this.steps, this.shown?.time), said);
        else this.note("There is no run to copy: there are no points.");
      });
    on("download", "click", () => this.download());
    on("file", "change", (event) => { const [file] = event.target.files; if (file) this.open(file); event.target.value = ""; });
    on("skip", "click", (event) => { event.preventDefault(); get("run").focus(); });  // addresses hold the state, not places of the page
    on("controls", "submit", (event) => event.preventDefault());
    addEventListener("keydown", (event) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z" && !event.target.closest?.("input, textarea")) { event.preventDefault(); this.undo(); }
    });
    addEventListener("hashchange", () => {
      try {
        const state = fromHash(location.hash);
        this.remember();
        this.state = state;
      } catch (error) { return this.note(`${error.message} The page stays as it was.`); }
      this.warning = "";
      this.running = !this.state.steps && this.running;
      this.view();
      this.restart();
    });
    const stage = get("stage");
    addEventListener("dragover", (event) => { event.preventDefault(); stage.classList.add("over"); });
    addEventListener("dragleave", () => stage.classList.remove("over"));
    addEventListener("drop", (event) => { event.preventDefault(); stage.classList.remove("over"); const [file] = event.dataTransfer.files; if (file) this.open(file); });
  }

  slid(id) {  // one entry in the history for one pull at a slider
    const now = performance.now(), again = this.slider === id && now - this.sliding < 800;
    this.slider = id;
    this.sliding = now;
    return !again;
  }

  preset(key) {
    const {points, bias} = PRESETS[key];
    this.change({points: points(), bias}, {view: true});
  }

  scene(k) { this.story.begin(k); }

  showControls() {
    const {get, state} = this, put = (id, value) => { if (get(id).value !== String(value)) get(id).value = String(value); };
    get("run").textContent = this.running ? "Pause" : "Run";
    get("undo").disabled = !this.history.length;
    for (const id of ["mode", "rule", "loss", "lr", "seed", "start"]) put(id, state[id]);
    if (![...get("decay").options].some((one) => Number(one.value) === state.decay)) get("decay").append(new Option(String(state.decay), String(state.decay)));
    put("decay", state.decay);
    get("bias").checked = state.bias;
    get("lr").disabled = state.rule === "flow";
    get("width-text").textContent = String(state.width);
    get("scale-text").textContent = String(state.scale);
    if (WIDTHS(get("width").value) !== state.width) put("width", Math.round(100 * Math.log(state.width / 2) / Math.log(250)));
    if (SCALES(get("scale").value) !== state.scale) put("scale", Math.round(100 * Math.log(state.scale / 0.01) / Math.log(4000)));
    const text = JSON.stringify(state.points);
    put("preset", Object.keys(PRESETS).find((key) => JSON.stringify(this.presetPoints(key)) === text) ?? "");
  }

  presetPoints(key) { return (this.known ??= {})[key] ??= PRESETS[key].points(); }

  async copy(text, said) {
    const box = this.get("copied");
    box.hidden = false;
    box.value = text;
    try { await navigator.clipboard.writeText(text); } catch { box.select(); said = "Select and copy the text below."; }
    this.say(said);
    this.get("copied").setAttribute("aria-label", said);
  }

  download() {
    const cert = this.main();
    if (!cert) return;
    const link = Object.assign(document.createElement("a"), {href: URL.createObjectURL(new Blob([cert.text], {type: "application/json"})), download: `${cert.kind}.json`});
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    this.say("The certificate is saved; widemargin verify accepts it.");
  }

  async open(file) {  // points from a table, or a certificate for the points on the page
    if (file.size > 4e6) return this.note("This file has more than 4 MB; the page takes tables of up to 150 points, and certificates.");
    let text;
    try { text = await file.text(); } catch { return this.note("This file cannot be read; a folder cannot be opened."); }
    if (text.trimStart().startsWith("{"))
      return this.certifier.postMessage({type: "check", id: 0, text, X: this.state.points.map(([x, y]) => [x, y]), y: this.state.points.map((p) => p[2])});
    try { this.change({points: readTable(text)}, {view: true}); } catch (error) { this.note(error.message); }
  }

  told({answer, failed}, about) {  // which margin it is about, too: a file may say less than one hopes
    this.note(`The certificate in the file is ${answer} for these points${failed ? `: ${failed}` : about}.`, answer === "proved exactly");
  }

  report() {  // the numbers of the page, for tests and measurements
    const {gen, state, steps, frames, certs, shown, running} = this;
    const brief = Object.fromEntries(Object.entries(certs).map(([kind, c]) => [kind,
      {lower: c.lower, upper: c.upper, answer: c.verdict.answer, failed: c.verdict.failed, checkMs: c.checkMs, ms: c.ms, firstMs: this.firsts[kind], last: c.last === true, text: c.text}]));
    return {gen, state, steps, frames, running, certs: brief, f1: shown?.f1, f2: shown?.f2, risk: shown?.risk, objective: shown?.objective, own: this.own};
  }
}

if (typeof document !== "undefined") window.playground = new Playground();
