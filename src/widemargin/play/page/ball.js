// The sphere of neurons, front and back: each neuron a dot, over the heat map of g(v) = |sum_i q_i y_i relu(v . x_i)| at the
// network's own weights q. Green rings are the neurons of the certified best network.

import {fit, ramp} from "./colours.js";

const PIXELS = 72;

export class Ball {
  constructor(canvas, changed) {
    Object.assign(this, {canvas, yaw: 0.55, pitch: -0.5, rings: []});
    this.picture = [new ImageData(PIXELS, PIXELS), new ImageData(PIXELS, PIXELS)];
    this.small = this.picture.map(() => Object.assign(document.createElement("canvas"), {width: PIXELS, height: PIXELS}));
    let from = null;
    canvas.addEventListener("pointerdown", (event) => { from = [event.clientX, event.clientY]; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointermove", (event) => {
      if (!from) return;
      this.turn((event.clientX - from[0]) * 0.01, (event.clientY - from[1]) * 0.01);
      from = [event.clientX, event.clientY];
      changed();
    });
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { from = null; });
    canvas.addEventListener("keydown", (event) => {
      const by = {ArrowLeft: [-0.15, 0], ArrowRight: [0.15, 0], ArrowUp: [0, -0.15], ArrowDown: [0, 0.15]}[event.key];
      if (by) { event.preventDefault(); this.turn(...by); changed(); }
    });
  }

  turn(x, y) { this.yaw += x; this.pitch = Math.min(1.5, Math.max(-1.5, this.pitch + y)); }

  axes() {  // rows: right, up and towards the eye, in coordinates of neurons
    const [c, s, p, q] = [Math.cos(this.yaw), Math.sin(this.yaw), Math.cos(this.pitch), Math.sin(this.pitch)];
    const eye = [p * s, -p * c, -q], right = [c, s, 0];
    return [right, [eye[1] * right[2] - eye[2] * right[1], eye[2] * right[0] - eye[0] * right[2], eye[0] * right[1] - eye[1] * right[0]], eye];
  }

  heat(points, bias, dual, colours) {
    const [right, up, eye] = this.axes(), n = points.length, P = new Float64Array(4 * n), z = bias ? 1 : 0;
    let used = 0;
    for (let i = 0; i < n; i++) {
      const [x, y, label] = points[i], c = dual[i] * label;
      if (Math.abs(c) < 1e-7) continue;
      P.set([c, right[0] * x + right[1] * y + right[2] * z, up[0] * x + up[1] * y + up[2] * z, eye[0] * x + eye[1] * y + eye[2] * z], used);
      used += 4;
    }
    const front = new Float64Array(PIXELS * PIXELS), back = new Float64Array(PIXELS * PIXELS);
    let most = 1e-300;
    for (let row = 0; row < PIXELS; row++) for (let k = 0; k < PIXELS; k++) {
      const x = (k + 0.5) * 2 / PIXELS - 1, y = 1 - (row + 0.5) * 2 / PIXELS, r = x * x + y * y, at = row * PIXELS + k;
      if (r > 1.04) { front[at] = back[at] = -1; continue; }
      const w = Math.sqrt(Math.max(0, 1 - r));
      let f = 0, b = 0;
      for (let i = 0; i < used; i += 4) {
        const flat = P[i + 1] * x + P[i + 2] * y, deep = P[i + 3] * w, t = flat + deep, u = flat - deep;
        if (t > 0) f += P[i] * t;
        if (u > 0) b += P[i] * u;
      }
      front[at] = Math.abs(f);
      back[at] = Math.abs(b);
      most = Math.max(most, front[at], back[at]);
    }
    [front, back].forEach((values, side) => {
      const bytes = this.picture[side].data;
      for (let k = 0; k < values.length; k++) {
        if (values[k] < 0) bytes[4 * k + 3] = 0;
        else ramp(colours.heat, (values[k] / most) ** 2, bytes, 4 * k);
      }
      this.small[side].getContext("2d").putImageData(this.picture[side], 0, 0);
    });
  }

  draw(shown, points, bias, colours) {
    fit(this.canvas);
    const pen = this.canvas.getContext("2d"), {width, height} = this.canvas, ratio = width / Math.max(1, this.canvas.clientWidth);
    pen.clearRect(0, 0, width, height);
    const r = Math.min(width / 4, height / 2) * 0.9, centres = [[width / 4, height / 2], [3 * width / 4, height / 2]];
    if (shown && points.length && shown.dual.length === points.length) {
      this.heat(points, bias, shown.dual, colours);
      centres.forEach(([x, y], side) => {
        pen.save();
        pen.beginPath();
        pen.arc(x, y, r, 0, 2 * Math.PI);
        pen.clip();
        pen.imageSmoothingEnabled = true;
        pen.drawImage(this.small[side], x - r, y - r, 2 * r, 2 * r);
        pen.restore();
      });
    }
    pen.strokeStyle = colours.quiet;
    pen.fillStyle = colours.quiet;
    pen.lineWidth = ratio;
    pen.font = `${12 * ratio}px system-ui, sans-serif`;
    pen.textAlign = "left";
    centres.forEach(([x, y], side) => {
      pen.beginPath();
      pen.arc(x, y, r, 0, 2 * Math.PI);
      pen.stroke();
      pen.fillText(side ? "back" : "front", x - r * 1.02, y - r * 0.88);
    });
    const axes = this.axes(), place = (v) => {
      const [x, y, z] = axes.map((a) => a[0] * v[0] + a[1] * v[1] + a[2] * v[2]), [cx, cy] = centres[z >= 0 ? 0 : 1];
      return [cx + r * x, cy - r * y];
    };
    pen.lineWidth = 2.2 * ratio;
    pen.strokeStyle = colours.best;
    for (const [v, size] of this.rings) {
      pen.beginPath();
      pen.arc(...place(v), (5 + 9 * Math.sqrt(size)) * ratio, 0, 2 * Math.PI);
      pen.stroke();
    }
    if (!shown) return;
    const {theta, mass} = shown;
    let most = 1e-300;
    for (const a of mass) most = Math.max(most, Math.abs(a));
    pen.lineWidth = 0.8 * ratio;
    pen.strokeStyle = colours.paper;
    for (let j = 0; j < mass.length; j++) {
      const size = (1.4 + 4.2 * Math.sqrt(Math.abs(mass[j]) / most)) * ratio, [x, y] = place([theta[3 * j], theta[3 * j + 1], theta[3 * j + 2]]);
      pen.fillStyle = mass[j] > 0 ? colours.plus : colours.minus;
      pen.beginPath();
      if (mass[j] > 0) pen.arc(x, y, size, 0, 2 * Math.PI);
      else pen.rect(x - size * 0.85, y - size * 0.85, 1.7 * size, 1.7 * size);
      pen.fill();
      pen.stroke();
    }
  }

  best(theta, mass) {  // the certified network
    const total = (mass ?? []).reduce((s, v) => s + Math.abs(v), 0);
    this.rings = (theta ?? []).map((v, j) => [[v[0], v[1], v[2] ?? 0], Math.abs(mass[j]) / total]).filter(([, share]) => share > 0.01);
  }
}
