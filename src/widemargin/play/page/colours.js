// The colours of the theme, as the style sheet has them, for canvases.

const parse = (text) => {
  const hex = text.trim().replace("#", "");
  return [0, 2, 4].map((k) => parseInt(hex.slice(k, k + 2), 16));
};

export function themeColours() {
  const style = getComputedStyle(document.documentElement), out = {rgb: {}};
  for (const name of ["paper", "card", "ink", "quiet", "rule", "plus", "minus", "best", "second", "link"]) {
    out[name] = style.getPropertyValue(`--${name}`).trim();
    out.rgb[name] = parse(out[name]);
  }
  out.dark = out.rgb.paper[0] < 128;
  out.heat = out.dark ? [out.rgb.card, [122, 58, 30], [240, 150, 60], [255, 240, 190]] : [out.rgb.card, [250, 214, 140], [233, 120, 40], [150, 20, 30]];
  return out;
}

export function ramp(stops, t, out, at) {  // a colour between stops, into bytes
  const x = Math.min(Math.max(t, 0), 1) * (stops.length - 1), k = Math.min(stops.length - 2, Math.floor(x)), u = x - k;
  for (let c = 0; c < 3; c++) out[at + c] = stops[k][c] + u * (stops[k + 1][c] - stops[k][c]);
  out[at + 3] = 255;
}

export function fit(canvas) {  // as many pixels as the screen has, at most two per point; whether the size changed
  const ratio = Math.min(window.devicePixelRatio || 1, 2), w = Math.round(canvas.clientWidth * ratio), h = Math.round(canvas.clientHeight * ratio);
  if (canvas.width === w && canvas.height === h) return false;
  canvas.width = w;
  canvas.height = h;
  return true;
}
