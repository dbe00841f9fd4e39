// The race: margins over the steps of training on a logarithmic axis, under the bounds that no network exceeds; with weight decay
// the objective, above the least that any network has.

import {fit} from "./colours.js";

const short = (v) => (v === 0 ? "0" : Math.abs(v) >= 0.001 && Math.abs(v) < 1000 ? String(Number(v.toPrecision(3))) : v.toExponential(1));

export class Race {
  constructor(canvas) { this.canvas = canvas; }

  draw({curve, bounds, own, decay, colours}) {
    // curve: rows of step, f1, f2, risk, objective; bounds: {f1, f2, optimum} each {lower, upper, proved}; own: [step, bound] pairs
    fit(this.canvas);
    const pen = this.canvas.getContext("2d"), {width, height} = this.canvas, ratio = width / Math.max(1, this.canvas.clientWidth);
    pen.clearRect(0, 0, width, height);
    const box = {l: 46 * ratio, r: width - 78 * ratio, t: 10 * ratio, b: height - 24 * ratio};
    const rows = curve ? curve.length / 5 : 0, last = rows ? curve[5 * rows - 5] : 0;
    const far = Math.max(2, Math.log10(last + 1)), px = (step) => box.l + (box.r - box.l) * Math.log10(step + 1) / far;
    const top = this.top(curve, rows, bounds, decay, own), py = (v) => box.b - (box.b - box.t) * (Math.min(Math.max(v, top[0]), top[1]) - top[0]) / (top[1] - top[0]);
    pen.font = `${11.5 * ratio}px system-ui, sans-serif`;
    pen.lineWidth = ratio;
    pen.strokeStyle = colours.rule;
    pen.fillStyle = colours.quiet;
    pen.textBaseline = "middle";
    pen.textAlign = "center";
    for (let k = 0; k <= far; k++) {
      const x = px(10 ** k - 1);
      this.line(pen, [[x, box.t], [x, box.b]]);
      pen.fillText(k < 4 ? String(10 ** k) : `10${[..."⁰¹²³⁴⁵⁶⁷⁸⁹"][k]}`, x, box.b + 11 * ratio);
    }
    pen.textAlign = "right";
    const unit = 10 ** Math.floor(Math.log10((top[1] - top[0]) / 2)), step = [1, 2, 5].map((k) => k * unit).find((s) => (top[1] - top[0]) / s <= 5) ?? 10 * unit;
    for (let v = Math.ceil(top[0] / step) * step; v <= top[1]; v += step) {
      const y = py(v);
      this.line(pen, [[box.l, y], [box.r, y]]);
      pen.fillText(short(Math.abs(v) < step / 1e6 ? 0 : v), box.l - 5 * ratio, y);
    }
    const ends = [];
    const series = (column, colour, wide, name) => {
      const points = [];
      if (rows && !Number.isFinite(curve[column])) return;  // a replayed run has one network
      for (let k = 0; k < rows; k++) points.push([px(curve[5 * k]), py(curve[5 * k + column])]);
      pen.strokeStyle = colour;
      pen.lineWidth = wide * ratio;
      this.line(pen, points);
      if (points.length) ends.push([points.at(-1)[1], colour, name]);
    };
    const level = (bound, colour, dash, name, lowerToo = true) => {
      if (!bound || !Number.isFinite(bound.upper)) return;
      pen.strokeStyle = colour;
      pen.fillStyle = colour;
      pen.lineWidth = 2 * ratio;
      pen.globalAlpha = 0.16;
      if (lowerToo) pen.fillRect(box.l, py(bound.upper), box.r - box.l, Math.max(0, py(bound.lower) - py(bound.upper)));
      pen.globalAlpha = bound.proved ? 1 : 0.5;
      pen.setLineDash(dash.map((v) => v * ratio));
      const y = py(decay ? bound.lower : bound.upper);
      this.line(pen, [[box.l, y], [box.r, y]]);
      pen.setLineDash([]);
      pen.globalAlpha = 1;
      ends.push([y, colour, bound.proved ? `${name} ✓` : name]);
    };
    pen.lineCap = "butt";
    if (decay) {
      level(bounds.optimum, colours.best, [8, 5], "least");
      series(4, colours.ink, 2.4, "network");
    } else {
      if (own.length) {
        pen.strokeStyle = colours.quiet;
        pen.lineWidth = 1.3 * ratio;
        const seen = own.filter(([, v]) => v <= top[1]);
        this.line(pen, seen.map(([at, v]) => [px(at), py(v)]));
        if (seen.length) ends.push([py(seen.at(-1)[1]), colours.quiet, "own bound"]);
      }
      level(bounds.f2, colours.second, [1.5, 5], "bound F2", false);
      level(bounds.f1, colours.best, [8, 5], "bound F1");
      series(2, colours.second, 1.8, "F2");
      series(1, colours.ink, 2.6, "F1");
    }
    ends.sort((a, b) => a[0] - b[0]);
    pen.textAlign = "left";
    let before = -Infinity;
    for (const [y, colour, name] of ends) {
      const at = Math.max(y, before + 13 * ratio);
      before = at;
      pen.fillStyle = colour;
      pen.fillText(name, box.r + 5 * ratio, Math.min(at, height - 7 * ratio));
    }
  }

  top(curve, rows, bounds, decay, own) {  // the range of the vertical axis
    if (decay) {
      const low = bounds.optimum ? bounds.optimum.lower : 0, begun = rows ? Math.min(curve[4], Math.max(4 * low, 1)) : 1;
      return [low * 0.85, Math.max(begun, low * 1.2) * 1.05 || 1];
    }
    const most = Math.max(bounds.f1 && Number.isFinite(bounds.f1.upper) ? bounds.f1.upper : 0, bounds.f2 ? bounds.f2.upper : 0, 1e-12);
    let least = 0;
    for (let k = 0; k < rows; k++) least = Math.min(least, curve[5 * k + 1]);
    return [Math.max(least, -0.35 * most), (own.length ? 1.7 : 1.22) * most];  // with room for what the network's own weights prove
  }

  line(pen, points) {
    pen.beginPath();
    points.forEach(([x, y], k) => (k ? pen.lineTo(x, y) : pen.moveTo(x, y)));
    pen.stroke();
  }
}
