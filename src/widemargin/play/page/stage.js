// The square with the points: shading and lines on two canvases, the points as buttons above them, so that mouse, finger and
// keyboard all reach them.

import {fieldOf, smoothLine, zeroLine} from "./field.js";
import {fit} from "./colours.js";
import {snap} from "./state.js";

const GRID = 160, LONG_PRESS = 550, KINKS = 60;

export class Stage {
  constructor(act) {  // act: add, move, flip, remove, done
    const get = (id) => document.getElementById(id);
    Object.assign(this, {act, box: get("stage"), shade: get("shade"), lines: get("lines"), holder: get("points"), half: 2.5, buttons: []});
    this.values = new Float64Array(GRID * GRID);
    this.picture = new ImageData(GRID, GRID);
    this.small = document.createElement("canvas");
    this.small.width = this.small.height = GRID;
    this.best = {f1: null, f2: null};
    this.listen();
  }

  toPlane(event) {
    // Inside the square: a point that is dragged out of it would be shown at its edge and lie elsewhere.
    const box = this.box.getBoundingClientRect(), unit = 2 * this.half / Math.max(box.width, 1), most = Math.floor(64 * this.half) / 64;
    const inside = (v) => Math.min(Math.max(snap(v), -most), most);
    return [inside((event.clientX - box.left) * unit - this.half), inside(this.half - (event.clientY - box.top) * unit)];
  }

  listen() {
    let drag = null;
    const end = () => { if (drag) { clearTimeout(drag.timer); const {moved, added} = drag; drag = null; if (moved || added) this.act.done(); } };
    this.release = () => { clearTimeout(drag?.timer); drag = null; };  // the points are others now: a drag has nothing to move any more
    this.box.addEventListener("pointerdown", (event) => {
      if (event.button || drag) return;  // a second finger
      const button = event.target.closest?.(".point");
      if (button) {
        const i = this.buttons.indexOf(button);
        if (event.shiftKey) { event.preventDefault(); this.act.flip(i); return; }
        drag = {i, moved: false, x: event.clientX, y: event.clientY};
        drag.timer = setTimeout(() => { if (drag && !drag.moved) { drag = null; this.act.flip(i); } }, LONG_PRESS);
      } else {
        event.preventDefault();
        const i = this.act.add(...this.toPlane(event));
        if (i < 0) return;
        drag = {i, moved: false, added: true, x: event.clientX, y: event.clientY};
      }
      this.box.setPointerCapture(event.pointerId);
    });
    this.box.addEventListener("pointermove", (event) => {
      if (!drag) return;
      if (!drag.moved && Math.hypot(event.clientX - drag.x, event.clientY - drag.y) < 4) return;
      clearTimeout(drag.timer);
      if (!drag.moved) { drag.moved = true; this.act.begin(drag.added); }
      this.act.move(drag.i, ...this.toPlane(event));
    });
    this.box.addEventListener("pointerup", end);
    for (const lost of ["pointercancel", "lostpointercapture"]) this.box.addEventListener(lost, end);
    this.holder.addEventListener("keydown", (event) => {
      const i = this.buttons.indexOf(event.target);
      if (i < 0) return;
      const by = (event.shiftKey ? 1 : 8) / 64, [dx, dy] = {ArrowLeft: [-by, 0], ArrowRight: [by, 0], ArrowUp: [0, by], ArrowDown: [0, -by]}[event.key] ?? [0, 0];
      if (dx || dy) { event.preventDefault(); this.act.nudge(i, dx, dy); }
      else if (event.key === " " || event.key === "Enter") { event.preventDefault(); this.act.flip(i); }
      else if (event.key === "Delete" || event.key === "Backspace") { event.preventDefault(); this.act.remove(i); }
    });
  }

  place(points) {  // the buttons, as many as there are points
    while (this.buttons.length > points.length) this.buttons.pop().remove();
    while (this.buttons.length < points.length) {
      const one = document.createElement("button");
      one.type = "button";
      one.className = "point";
      this.holder.append(one);
      this.buttons.push(one);
    }
    points.forEach(([x, y, label], i) => {
      const one = this.buttons[i], inside = (v) => Math.min(Math.max(v, 0.01), 0.99);
      one.style.left = `${100 * inside(0.5 + x / (2 * this.half))}%`;
      one.style.top = `${100 * inside(0.5 - y / (2 * this.half))}%`;
      one.classList.toggle("minus", label < 0);
      const name = `point ${i + 1}, label ${label > 0 ? "plus" : "minus"} one, at ${x}, ${y}`;
      if (one.getAttribute("aria-label") !== name) one.setAttribute("aria-label", name);
    });
  }

  weigh(dual) {  // rings: the weights of the points in the proof
    const most = dual ? Math.max(...dual.map(Math.abs), 1e-300) : 1;
    this.buttons.forEach((one, i) => one.style.setProperty("--weight", dual && i < dual.length ? (4 * Math.sqrt(Math.abs(dual[i]) / most)).toFixed(2) : 0));
  }

  mark(margins) {  // points on the wrong side
    this.buttons.forEach((one, i) => one.classList.toggle("wrong", Boolean(margins) && i < margins.length && !(margins[i] > 0)));
  }

  network(kind, theta, mass) {  // a certified classifier, drawn until it is replaced; null: none
    if (!theta || !mass.length) { this.best[kind] = null; return; }
    const flat = new Float64Array(3 * mass.length);
    theta.forEach((v, j) => flat.set(v, 3 * j));
    this.best[kind] = {values: fieldOf(flat, mass, this.half, GRID, new Float64Array(GRID * GRID)), path: null};
  }

  field(kind, values) { this.best[kind] = values ? {values, path: null} : null; }

  frame() { return {half: this.half, grid: GRID}; }

  look(half) {
    if (half === this.half) return;
    this.half = half;
    this.best = {f1: null, f2: null};
  }

  draw(shown, colours) {
    if (fit(this.shade) | fit(this.lines)) for (const one of Object.values(this.best)) if (one) one.path = null;
    const size = this.lines.width, pen = this.lines.getContext("2d"), ratio = size / Math.max(1, this.lines.clientWidth);
    pen.clearRect(0, 0, size, size);
    if (shown) this.shading(shown, colours);
    else this.shade.getContext("2d").clearRect(0, 0, size, size);
    if (shown) this.kinks(pen, shown, colours, size, ratio);
    for (const [kind, style] of [["f2", {colour: colours.second, dash: [1.5, 6], width: 3}], ["f1", {colour: colours.best, dash: [10, 6], width: 3.2}]]) {
      const one = this.best[kind];
      if (!one) continue;
      one.path ??= smoothLine(one.values, GRID, size);
      pen.lineCap = kind === "f2" ? "round" : "butt";
      pen.setLineDash(style.dash.map((v) => v * ratio));
      pen.strokeStyle = colours.paper;
      pen.lineWidth = (style.width + 2.5) * ratio;
      pen.globalAlpha = 0.55;
      pen.stroke(one.path);
      pen.globalAlpha = 1;
      pen.strokeStyle = style.colour;
      pen.lineWidth = style.width * ratio;
      pen.stroke(one.path);
    }
    pen.setLineDash([]);
    if (shown) {
      pen.strokeStyle = colours.ink;
      pen.lineWidth = 2.4 * ratio;
      pen.stroke(zeroLine(this.values, GRID, size));
    }
  }

  shading({theta, mass, margins}, colours) {
    fieldOf(theta, mass, this.half, GRID, this.values);
    let typical = 1e-300;
    for (const p of margins) typical += Math.abs(p);
    const strength = 1.2 * margins.length / typical, {paper, plus, minus} = colours.rgb, bytes = this.picture.data;
    for (let k = 0; k < this.values.length; k++) {
      const t = this.values[k] * strength, s = t === 0 ? 0 : 0.62 * Math.abs(t) / (1 + Math.abs(t)) + 0.05, to = t > 0 ? plus : minus;
      bytes[4 * k] = paper[0] + s * (to[0] - paper[0]);
      bytes[4 * k + 1] = paper[1] + s * (to[1] - paper[1]);
      bytes[4 * k + 2] = paper[2] + s * (to[2] - paper[2]);
      bytes[4 * k + 3] = 255;
    }
    this.small.getContext("2d").putImageData(this.picture, 0, 0);
    const brush = this.shade.getContext("2d");
    brush.imageSmoothingEnabled = true;
    brush.imageSmoothingQuality = "low";
    brush.drawImage(this.small, 0, 0, this.shade.width, this.shade.height);
  }

  kinks(pen, {theta, mass}, colours, size, ratio) {  // where neurons switch on, as lines as wide as their mass
    let total = 0;
    for (const a of mass) total += Math.abs(a);
    const order = Array.from(mass.keys()).sort((a, b) => Math.abs(mass[b]) - Math.abs(mass[a])).slice(0, KINKS);
    const px = (x) => (0.5 + x / (2 * this.half)) * size, py = (y) => (0.5 - y / (2 * this.half)) * size;
    for (const j of order) {
      const share = Math.abs(mass[j]) / (total || 1), [a, b, c] = [theta[3 * j], theta[3 * j + 1], theta[3 * j + 2]], norm = Math.hypot(a, b);
      if (share < 0.004 || norm < 1e-6) continue;
      const x = -a * c / (norm * norm), y = -b * c / (norm * norm), far = 4 * this.half;
      if (Math.hypot(x, y) > far) continue;
      pen.strokeStyle = mass[j] > 0 ? colours.plus : colours.minus;
      pen.globalAlpha = Math.min(0.75, 0.15 + 2.5 * share);
      pen.lineWidth = Math.max(0.6, Math.min(7, 40 * share)) * ratio;
      pen.beginPath();
      pen.moveTo(px(x - b / norm * far), py(y + a / norm * far));
      pen.lineTo(px(x + b / norm * far), py(y - a / norm * far));
      pen.stroke();
    }
    pen.globalAlpha = 1;
  }
}
