// JSON as Python reads and writes it. A certificate's digest is that of Python's text, in which 1.0, 1 and 1e-07 differ from
// what JavaScript would write, so numbers keep the text they came with.

const MOST_DIGITS = 4300;  // of an integer, as in Python: longer ones take long to read and are no numbers of a certificate

export class Literal {  // a number of a file
  constructor(text) {
    this.text = text;
    this.whole = /^-?\d+$/.test(text);  // an integer for Python
  }
  get value() { return Number(this.text); }
}

export function readJson(text) {  // objects, arrays, strings, booleans, null, and numbers as Literal
  let at = 0, deep = 0;
  const fail = (why) => { throw new Error(`this is no JSON: ${why} at character ${at}`); };
  const skip = () => { while (" \t\n\r".includes(text[at]) && at < text.length) at++; };
  const string = () => {
    const found = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
    found.lastIndex = at;
    const one = found.exec(text);
    if (!one) fail("a text that does not end");
    at += one[0].length;
    return JSON.parse(one[0]);
  };
  const value = () => {
    skip();
    const c = text[at];
    if (++deep > 100) fail("too deep");
    let out;
    if (c === "{") {
      out = {};
      at++; skip();
      if (text[at] === "}") at++;
      else for (;;) {
        skip();
        if (text[at] !== '"') fail("a name is missing");
        const key = string();
        if (Object.hasOwn(out, key) || key === "__proto__") fail(`the name ${key.slice(0, 40)} comes twice`);
        skip();
        if (text[at++] !== ":") fail("a colon is missing");
        out[key] = value();
        skip();
        const next = text[at++];
        if (next === "}") break;
        if (next !== ",") fail("a comma is missing");
      }
    } else if (c === "[") {
      out = [];
      at++; skip();
      if (text[at] === "]") at++;
      else for (;;) {
        out.push(value());
        skip();
        const next = text[at++];
        if (next === "]") break;
        if (next !== ",") fail("a comma is missing");
      }
    } else if (c === '"') out = string();
    else {
      const found = /true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
      found.lastIndex = at;
      const one = found.exec(text);
      if (!one) fail("something unknown");
      if (one[0].length > MOST_DIGITS && /^-?\d+$/.test(one[0])) fail("an integer of too many digits");
      at += one[0].length;
      out = {true: true, false: false, null: null}[one[0]];
      if (out === undefined) out = new Literal(one[0]);
    }
    deep--;
    return out;
  };
  const out = value();
  skip();
  if (at < text.length) fail("more than one value");
  return out;
}

export function pythonNumber(x) {  // repr of a float that is not an integer, or of an integer below 10^21 without a point
  if (Number.isInteger(x) && Math.abs(x) < 1e21) return Object.is(x, -0) ? "-0.0" : String(x);
  return pythonFloat(x);
}

function pythonFloat(x) {
  const [digits, exponent] = Math.abs(x).toExponential().split("e");
  const power = Number(exponent), sign = x < 0 || Object.is(x, -0) ? "-" : "";
  if (power >= -4 && power < 16) {
    const plain = digits.replace(".", "");
    if (power < 0) return `${sign}0.${"0".repeat(-power - 1)}${plain}`;
    const left = plain.slice(0, power + 1).padEnd(power + 1, "0"), right = plain.slice(power + 1);
    return `${sign}${left}.${right || "0"}`;
  }
  return `${sign}${digits}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
}

function pythonText(text) {
  return JSON.stringify(text).replace(/[\u007f-\uffff]/g, (c) =>
    `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

const order = (a, b) => {  // by code points, as Python sorts
  const p = [...a], q = [...b];
  for (let i = 0; i < Math.min(p.length, q.length); i++)
    if (p[i] !== q[i]) return p[i].codePointAt(0) - q[i].codePointAt(0);
  return p.length - q.length;
};

export function pythonJson(value) {  // keys sorted, no spaces
  if (value instanceof Literal) return value.whole ? BigInt(value.text).toString() : pythonFloat(value.value);
  if (value === null || typeof value === "boolean") return String(value);
  if (typeof value === "number") return pythonNumber(value);
  if (typeof value === "string") return pythonText(value);
  if (Array.isArray(value)) return `[${value.map(pythonJson).join(",")}]`;
  return `{${Object.keys(value).sort(order).map((k) => `${pythonText(k)}:${pythonJson(value[k])}`).join(",")}}`;
}
