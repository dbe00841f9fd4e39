// What the page says: the verdict, the shares, and the same for the live region.

const digits = (v, k = 5) => (v === 0 ? "0" : v.toPrecision(k));
const between = ({lower, upper}) => {  // enough digits to tell the ends apart, and no more than seven
  const gap = upper > 0 ? 1 - lower / upper : 1, k = Math.min(7, Math.max(3, Math.ceil(-Math.log10(Math.max(gap, 1e-9))) + 1));
  return `[${floorTo(lower, k)}, ${ceilTo(upper, k)}]`;
};

function rounded(v, k, direction) {  // outward, so that what is shown holds too
  if (!(v > 0)) return "0";
  const unit = 10 ** (Math.floor(Math.log10(v)) + 1 - k), out = direction(v / unit) * unit;
  return Number(out.toPrecision(k)).toString();
}
const floorTo = (v, k) => rounded(v, k, Math.floor), ceilTo = (v, k) => rounded(v, k, Math.ceil);
const percent = (v) => `${(100 * Math.min(v, 9.99)).toFixed(v > 0.9995 && v < 1 ? 2 : 1)} %`;

export function headlines(page) {
  const {state, shown, certs} = page, bounds = page.bounds(), decay = state.decay > 0, main = decay ? bounds.optimum : bounds.best;
  const cert = certs[decay ? "f1-optimum" : "f1"], texts = {}, meters = {lane1: 0, lane2: 0};
  let badge = "unknown", plain = "";
  if (!state.points.length) {
    Object.assign(texts, {badge: "no points", headline: "", sentence: "Click into the square to add points."});
  } else if (!main || !main.proved) {
    texts.badge = cert && cert.verdict.answer === "refused" ? "not proved" : "searching";
    if (texts.badge === "not proved") badge = "no";
    texts.headline = main && Number.isFinite(main.upper) ? `between ${digits(main.lower, 4)} and ${digits(main.upper, 4)}, not proved yet` : "";
    texts.sentence = badge === "no" ? `The exact check says: ${cert.verdict.failed}.` : "A network from below, weights of the points from above, until they meet.";
  } else {
    badge = "yes";
    texts.badge = "proved";
    const time = `Checked exactly, in your browser, in ${Math.max(1, Math.round(cert.checkMs))} ms.`;
    if (decay) texts.headline = `No network of any width has an objective below ${floorTo(main.lower, 6)}.`;
    else if (main.upper < 1e-9) texts.headline = main.upper === 0 ? "No network separates these points." : `No network has a margin above ${main.upper.toExponential(1)}.`;
    else texts.headline = `No network of any width has a margin above ${ceilTo(main.upper, 6)}.`;
    texts.sentence = `The ${decay ? "least objective" : "largest margin"} lies in ${between(main)}. ${time}`;
    plain = `Proved. ${texts.headline} ${time}`;
  }
  const lane = (id, name, value, bound, best) => {
    texts[`${id}-name`] = name;
    const share = bound && bound.upper > 0 && Number.isFinite(value) ? value / bound.upper : null;
    meters[id] = share === null ? 0 : Math.min(Math.max(share, 0), 1);
    texts[`${id}-text`] = !Number.isFinite(value) ? "" : share === null || !Number.isFinite(share) || bound.upper < 1e-9 ? "cannot fit" : `${digits(value, 4)}  ${share < 0 ? "not fitted" : percent(share)}`;
    return best;
  };
  if (decay) {
    const value = shown?.objective, low = main?.lower ?? 0;
    texts["lane1-name"] = "This network";
    meters.lane1 = value ? Math.min(1, low / value) : 0;
    texts["lane1-text"] = value ? `${digits(value, 4)}  +${(100 * (value / Math.max(low, 1e-12) - 1)).toFixed(1)} %` : "";
    texts["lane2-name"] = "";
    texts["lane2-text"] = "";
  } else {
    lane("lane1", {both: "Both layers", output: "Both layers", frozen: "Frozen directions"}[state.mode], state.mode === "output" ? NaN : shown?.f1 ?? NaN, bounds.f1);
    lane("lane2", "Output layer alone", shown?.f2 ?? NaN, bounds.f2);
  }
  texts["race-title"] = decay ? "Objective" : "Race";
  texts["race-legend"] = decay ? "of this network over steps, above the least of any network" : "margins and bounds over steps; grey: what its own weights prove";
  const step = shown ? `Step ${shown.step}. ` : "";
  const brief = decay ? `${step}Objective ${texts["lane1-text"]}.` : `${step}Margin with both layers ${texts["lane1-text"]} of the bound, output layer ${texts["lane2-text"]}.`;
  if (page.shown?.diverged) texts.sentence = `${texts.sentence} The run has diverged: choose a smaller step size.`;
  return {badge, texts, meters, plain, brief};
}
