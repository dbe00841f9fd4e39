// The whole state of the page as plain values, checked, in and out of the address.

export const limits = {points: 150};  // 400 where Python is at hand
export const STEP = 64, FARTHEST = 100, MOST_STEPS_LINK = 1e9;
const LEAST_DECAY = 1e-6;  // with less the best network is beyond what doubles tell from none
export const RATES = {ngd: 0.5, gd: 0.1, adam: 0.01, flow: 1};
const CHOICES = {mode: ["both", "output", "frozen"], start: ["drawn", "linear"], rule: ["flow", "gd", "ngd", "adam"], loss: ["logistic", "exp"]};
const NUMBERS = {  // least, most, whole
  width: [2, 500, true], scale: [0.01, 40, false], lr: [1e-4, 1000, false], decay: [0, 10, false], seed: [0, 999999, true], steps: [0, MOST_STEPS_LINK, true],
};

export const snap = (x) => Math.round(x * STEP) / STEP + 0;  // + 0: no negative zero

export function fresh(points = [], more = {}) {
  return {points, bias: true, width: 100, scale: 1, mode: "both", start: "drawn", rule: "flow", lr: 1, decay: 0, loss: "logistic", seed: 0, steps: 0, ...more};
}

export function tidy(state) {  // rules without a decay have none, and gradient flow no rate
  const out = {...state};
  if (!["gd", "adam"].includes(out.rule) || out.mode !== "both") out.decay = 0;
  return out;
}

export function toHash(state) {
  const {points, bias, ...rest} = state, query = new URLSearchParams({v: "1", bias: bias ? "1" : "0"});
  for (const key of [...Object.keys(CHOICES), ...Object.keys(NUMBERS)]) query.set(key, String(rest[key]));
  query.set("p", points.map(([x, y, label]) => `${x * STEP}_${y * STEP}${label > 0 ? "p" : "m"}`).join("."));
  return `#${query}`;
}

export function fromHash(hash) {  // a state, or an Error whose message is a sentence
  const query = new URLSearchParams(hash.replace(/^#/, "")), wrong = (what) => { throw new Error(`This link is not one of ours: ${what}.`); };
  if (query.get("v") !== "1") wrong("it has no version");
  const state = fresh();
  const bias = query.get("bias") ?? "1";
  if (!["0", "1"].includes(bias)) wrong("bias is unknown");
  state.bias = bias === "1";
  for (const [key, allowed] of Object.entries(CHOICES)) {
    const value = query.get(key) ?? state[key];
    if (!allowed.includes(value)) wrong(`${key} is unknown`);
    state[key] = value;
  }
  for (const [key, [least, most, whole]] of Object.entries(NUMBERS)) {
    const text = query.get(key);
    if (text === null) continue;
    const value = Number(text);
    const tiny = key === "decay" && value > 0 && value < LEAST_DECAY;
    if (text.trim() === "" || !(value >= least && value <= most) || (whole && !Number.isInteger(value)) || tiny) wrong(`${key} is out of range`);
    state[key] = value;
  }
  const list = query.get("p");
  const texts = list ? list.split(".") : [];
  if (texts.length > limits.points) wrong(`it has ${texts.length} points, and the page takes ${limits.points}`);
  state.points = texts.map((text) => {
    const found = /^(-?\d{1,6})_(-?\d{1,6})([pm])$/.exec(text);
    if (!found) wrong("a point cannot be read");
    const [x, y] = [Number(found[1]) / STEP + 0, Number(found[2]) / STEP + 0];
    if (Math.max(Math.abs(x), Math.abs(y)) > FARTHEST) wrong("a point is too far away");
    return [x, y, found[3] === "p" ? 1 : -1];
  });
  return tidy(state);
}

export function readTable(text) {  // two numeric columns and a label, separated by commas, semicolons or spaces
  const rows = text.split(/\r?\n/).map((line) => line.trim()).filter((line) => line && !line.startsWith("#"));
  if (rows.length && !/^[-+.\d]/.test(rows[0])) rows.shift();  // a line of names
  if (!rows.length) throw new Error("The file holds no rows; it needs two columns with coordinates and one with labels.");
  if (rows.length > limits.points)
    throw new Error(`The file has ${rows.length.toLocaleString("en")} points, and the page takes ${limits.points}; \`widemargin margin\` takes them all.`);
  // 1 and 1.0 are one label
  const plain = (label) => (label !== "" && Number.isFinite(Number(label)) ? String(Number(label)) : label);
  const cells = rows.map((row) => (/[,;]/.test(row) ? row.split(/[,;]/).map((cell) => cell.trim()) : row.split(/\s+/)));
  for (const row of cells) if (row.length === 3) row[2] = plain(row[2]);
  const labels = [...new Set(cells.map((row) => row[2]))].sort((a, b) => Number(a) - Number(b) || (a < b ? -1 : 1));
  if (labels.length > 2) throw new Error(`The third column has ${labels.length} different labels; two are needed.`);
  return cells.map((row, k) => {
    const [x, y] = [Number(row[0]), Number(row[1])];
    if (row.length !== 3 || row.includes("") || !Number.isFinite(x) || !Number.isFinite(y)) throw new Error(`Row ${k + 1} of the file is not two numbers and a label.`);
    if (Math.max(Math.abs(x), Math.abs(y)) > FARTHEST) throw new Error(`Row ${k + 1} of the file is farther than ${FARTHEST} from the centre; scale the points down.`);
    const one = labels.length === 1 ? Number(row[2]) > 0 : row[2] === labels[1];
    return [snap(x), snap(y), one ? 1 : -1];
  });
}

export function remarks(state) {  // sentences about points that ask for one
  const {points, bias} = state, out = [];
  if (!points.length) return ["There are no points. Click into the square, or choose some below."];
  if (new Set(points.map((p) => p[2])).size < 2) out.push("All points have one label. That is allowed: the margin is then how positive a network of size 1 can be at all of them.");
  const seen = new Map();
  for (const [x, y, label] of points) {
    const key = `${x} ${y}`;
    if (seen.has(key) && seen.get(key) !== label) { out.push("Two points with different labels lie on top of each other, so no network separates them: the margin is 0."); break; }
    seen.set(key, label);
  }
  if (!bias && points.some(([x, y]) => !x && !y)) out.push("Without a bias every network is 0 at the origin, where a point lies: the margin is 0.");
  return out;
}
