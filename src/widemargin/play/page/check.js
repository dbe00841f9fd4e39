// The checker: a certificate's text against points, in exact arithmetic, item by item as docs/certificates.md says.
// Kinds f1 (proofs "enumeration" and "norm"), f2, frozen, rf and f1-optimum, relu, points in the plane. It shares nothing with the search.

import {PI_HIGH, PI_LOW, kernelEnds} from "./angles.js";
import {MOST_STEPS, underLimit} from "./circles.js";
import {Fraction, absBig, bitLength, ceilDiv, gcdBig, isqrt, ratio, sqrtUp} from "./exact.js";
import {Literal, pythonJson, readJson} from "./json.js";
import {PLACES, expAbove, logEnds, restBelow, softplusAbove} from "./logs.js";
import {dataHash, sha256} from "./sha256.js";

export const FORMAT = "widemargin-certificate-1";
const ROOT = 64, THETA = 96n, INVERSE_BITS = 128;
const CONVENTIONS = {f1: "M1", f2: "M7", frozen: "M1", rf: "M7", "f1-optimum": "objective"};
const WORDS = ["time-limit", "stalled", "interrupted", "rounding"];

class RefusedItem extends Error {}

function need(good, item) {
  if (!good) throw new RefusedItem(item);
}

const isObject = (value) => Boolean(value) && typeof value === "object" && !Array.isArray(value) && !(value instanceof Literal);

function numberOf(value, what) {  // a Literal as a Fraction
  need(value instanceof Literal, `${what}: not a number`);
  if (value.whole) {
    const n = BigInt(value.text);
    need(bitLength(n) <= 1100, `${what}: not a finite number`);
    return new Fraction(n);
  }
  need(Number.isFinite(value.value), `${what}: not a finite number`);
  return Fraction.of(value.value);
}

function vectorOf(values, length, what) {  // integers and k with value_i = integer_i / 2^k
  need(Array.isArray(values), `${what}: missing or not a list`);
  need(length === null || values.length === length, `${what}: has ${values.length} entries, expected ${length}`);
  const pairs = values.map((v) => {
    const {n, d} = numberOf(v, what);
    return [n, bitLength(d) - 1];
  });
  const k = pairs.reduce((most, [, b]) => Math.max(most, b), 0);
  return [pairs.map(([a, b]) => a << BigInt(k - b)), k];
}

function rowsOf(values, columns, what) {
  need(Array.isArray(values), `${what}: missing or not a list`);
  values.forEach((row) => need(Array.isArray(row) && row.length === columns, `${what}: a row has not ${columns} entries`));
  const [flat, k] = vectorOf(values.flat(), null, what);
  return [values.map((_, j) => flat.slice(columns * j, columns * (j + 1))), k];
}

const dots = (a, b) => a.reduce((sum, v, x) => sum + v * b[x], 0n);
const relu = (t) => (t > 0n ? t : 0n);

function readData(body, X, y) {  // the points as integers over 2^k, with the bias coordinate
  need(Array.isArray(X) && X.length && X.every((row) => row.length === 2), "shape: the data need two coordinates");
  need(X.flat().every(Number.isFinite), "shape: X holds NaN or infinity");
  for (const [name, size] of [["n", X.length], ["d", 2]])
    need(body[name] instanceof Literal && body[name].whole && body[name].value === size, `shape: ${name}`);
  need(typeof body.bias === "boolean", "shape: bias is not true or false");
  need(y.length === X.length && y.every((v) => v === 1 || v === -1), "labels: not -1 or +1");
  const pairs = X.map((row) => row.map(ratio)), k = Math.max(0, ...pairs.flat().map(([, b]) => b));
  const grid = pairs.map((row) => row.map(([a, b]) => a << BigInt(k - b)));
  if (body.bias) grid.forEach((row) => row.push(1n << BigInt(k)));
  return {grid, k, y: y.map(BigInt), D: body.bias ? 3 : 2};
}

function small(problem) {  // the grid as doubles with three columns, where they are integers of few bits
  const most = BigInt(MOST_STEPS);
  need(problem.grid.flat().every((v) => v <= most && v >= -most),
    "upper bound: the coordinates have too many digits to be checked in a browser; use widemargin verify");
  return problem.grid.map((row) => [Number(row[0]), Number(row[1]), row.length > 2 ? Number(row[2]) : 0]);
}

function networkValues(problem, theta, mass) {
  return problem.grid.map((x) => theta.reduce((sum, v, j) => sum + mass[j] * relu(dots(v, x)), 0n));
}

function measureLower(problem, body, lower) {  // y_i f(x_i) >= lower N
  need(isObject(body.primal), "lower bound: no primal is stored");
  const [theta] = rowsOf(body.primal.theta, problem.D, "lower bound: primal.theta");
  const [mass] = vectorOf(body.primal.mass, theta.length, "lower bound: primal.mass");
  const norm = theta.reduce((sum, v, j) => sum + absBig(mass[j]) * sqrtUp(dots(v, v), ROOT), 0n);
  need(norm > 0n, "lower bound: the primal is zero");
  const wanted = (lower.n * norm) << BigInt(problem.k), scale = lower.d << BigInt(ROOT);
  networkValues(problem, theta, mass).forEach((v, i) => need(problem.y[i] * v * scale >= wanted, `lower bound: point ${i}`));
  return theta;
}

const listed = (problem, c, limit) => underLimit(small(problem), c, limit);

function normed(problem, c, limit) {  // relu(t) = (t + |t|) / 2: half of |sum_i c_i x_i|, and of the positive sums of c_i |x_i| on lines through 0
  const lines = new Map(), mean = problem.grid[0].map((_, x) => problem.grid.reduce((sum, row, i) => sum + c[i] * row[x], 0n));
  problem.grid.forEach((row, i) => {
    const g = row.reduce((a, b) => gcdBig(a, b), 0n);
    if (!c[i] || !g) return;
    const back = row.find((v) => v) < 0n, u = row.map((v) => (back ? -v : v) / g), line = lines.get(u.join()) ?? {u, weight: 0n};
    lines.set(u.join(), {u, weight: line.weight + c[i] * g});
  });
  let most = sqrtUp(dots(mean, mean), ROOT);
  for (const {u, weight} of lines.values()) if (weight > 0n) most += weight * sqrtUp(dots(u, u), ROOT);
  return most * limit.d <= 2n * limit.n << BigInt(ROOT) ? "" : "the norm bound is larger";
}

function bothSides(problem, c, total, bound, proof, what) {  // |sum_i c_i relu(v . x_i)| <= bound total |v|
  const rule = isObject(proof) ? new Map([["enumeration", listed], ["norm", normed]]).get(proof.type) : null;
  need(rule, `${what}: no rule in the browser for this proof; use widemargin verify`);
  const limit = bound.times(new Fraction(total << BigInt(problem.k)));
  for (const s of [1n, -1n]) {
    const why = rule(problem, c.map((v) => s * v), limit);
    need(!why, `${what}: ${why}`);
  }
}

const onlyDual = (proof) => need(isObject(proof) && proof.type === "dual", "upper bound: this kind needs proof.type = dual");
const weighted = (problem, rows, weights) => rows.map((v) =>
  problem.grid.reduce((sum, x, i) => sum + problem.y[i] * weights[i] * relu(dots(v, x)), 0n));

function rayOf(row) {
  const g = row.reduce((a, b) => gcdBig(a, b), 0n);
  return row.map((v) => (g ? v / g : 0n)).join();
}

const RULES = {
  f1: (problem, body) => ({
    lower: (bound) => { measureLower(problem, body, bound); },
    upper: (bound, weights, total) => bothSides(problem, weights.map((w, i) => w * problem.y[i]), total, bound, body.proof, "upper bound"),
  }),
  f2: (problem, body) => {
    need(body.extra.kernel === "relu", "format: no rule in the browser for this kernel; use widemargin verify");
    const {grid, y, D, k} = problem, n = y.length, scale = BigInt(2 * D) << BigInt(2 * k);
    const K = grid.map((x, i) => grid.map((z, j) => (j < i ? null : kernelEnds(x, z))));  // pi scale times the kernel, over 2^P
    const entry = (i, j) => (i < j ? K[i][j] : K[j][i]);
    const product = (w) => grid.map((_, i) => {  // enclosures of y_i sum_j K_ij y_j w_j
      let low = 0n, high = 0n;
      for (let j = 0; j < n; j++) {
        const v = y[i] * y[j] * w[j], [least, most] = entry(i, j);
        low += v * (v > 0n ? least : most);
        high += v * (v > 0n ? most : least);
      }
      return [low, high];
    });
    const quadratic = (w, ends) => w.reduce((sum, v, i) => sum + v * (v > 0n ? ends[i][1] : ends[i][0]), 0n);  // at least w' K w
    return {
      lower: (bound) => {
        const [alpha] = vectorOf(body.extra.alpha, n, "lower bound: extra.alpha"), ends = product(alpha), size = quadratic(alpha, ends);
        need(size > 0n, "lower bound: alpha is zero");
        const wanted = bound.n * bound.n * scale * PI_HIGH * size;
        ends.forEach(([low], i) => need(low >= 0n && low * low * bound.d * bound.d >= wanted, `lower bound: point ${i}`));
      },
      upper: (bound, weights, total) => {
        onlyDual(body.proof);
        const size = quadratic(weights, product(weights)), limit = bound.n * total;
        need(size * bound.d * bound.d <= limit * limit * scale * PI_LOW, "upper bound: the norm q'Kq is larger");
      },
    };
  },
  frozen: (problem, body) => {
    const [directions] = rowsOf(body.extra.directions, problem.D, "format: extra.directions");
    return {
      lower: (bound) => {
        const known = new Set(directions.map(rayOf));
        measureLower(problem, body, bound).forEach((v, j) => need(known.has(rayOf(v)), `lower bound: atom ${j} is not one of the directions`));
      },
      upper: (bound, weights, total) => {
        onlyDual(body.proof);
        const limit = bound.times(new Fraction(total << BigInt(problem.k)));
        weighted(problem, directions, weights).forEach((value, j) => need(
          value * value * limit.d * limit.d <= limit.n * limit.n * dots(directions[j], directions[j]), `upper bound: direction ${j}`));
      },
    };
  },
  rf: (problem, body) => {
    const [directions] = rowsOf(body.extra.directions, problem.D, "format: extra.directions");
    const m = BigInt(directions.length), lengths = directions.map((v) => dots(v, v));
    need(m > 0n, "format: extra.directions: empty");
    const bits = INVERSE_BITS + lengths.reduce((most, s) => Math.max(most, bitLength(s)), 0), wide = BigInt(bits), k = BigInt(problem.k);
    return {
      lower: (bound) => {
        const [a] = vectorOf(body.extra.a, directions.length, "lower bound: extra.a");
        const norm2 = dots(a, a);
        need(norm2 > 0n, "lower bound: a is zero");
        const ends = a.map((v, j) => {
          if (!lengths[j]) return [0n, 0n];
          const low = v * ((1n << 2n * wide) / sqrtUp(lengths[j], bits)), high = v * ceilDiv(1n << 2n * wide, isqrt(lengths[j] << 2n * wide));
          return low < high ? [low, high] : [high, low];
        });
        const least = networkValues(problem, directions, ends.map(([low]) => low));
        const most = networkValues(problem, directions, ends.map(([, high]) => high));
        const wanted = bound.n * bound.n * m * norm2 << 2n * (k + wide);
        problem.y.forEach((s, i) => {
          const value = s > 0n ? least[i] : -most[i];
          need(value >= 0n && value * value * bound.d * bound.d >= wanted, `lower bound: point ${i}`);
        });
      },
      upper: (bound, weights, total) => {
        onlyDual(body.proof);
        const most = weighted(problem, directions, weights).reduce(
          (sum, v, j) => (lengths[j] ? sum + ceilDiv(v * v << wide, lengths[j]) : sum), 0n);
        need(most * bound.d * bound.d <= (bound.n * total) ** 2n * m << (2n * k + wide), "upper bound: the norm of z'q is larger");
      },
    };
  },
};

function optimumItems(problem, body, lower, upper, done) {
  const {extra} = body, n = problem.y.length, loss = extra.loss, mode = extra.output_bias ?? null;
  need(["logistic", "exp"].includes(loss), "format: no rule here for this loss");
  need([null, "free", "decayed"].includes(mode), "format: extra.output_bias is not free, decayed or null");
  need((extra.weights ?? null) === null, "format: no rule here for weights of points");
  const given = (name, usual) => numberOf(Object.hasOwn(extra, name) ? extra[name] : new Literal(usual), `format: extra.${name}`);
  const decay = given("weight_decay", "0"), scale = given("scale", "1"), offset = given("offset", "0");
  need(decay.n > 0n && scale.n > 0n, "format: extra.weight_decay or extra.scale is not positive");
  need(mode !== null || offset.n === 0n, "upper bound: extra.offset is not 0, but there is no output bias");
  const total = new Fraction(BigInt(n));

  const [c, kc] = vectorOf(body.dual, n, "dual"), unit = 1n << BigInt(kc);
  c.forEach((v, i) => {
    const slope = v * problem.y[i];
    need(slope >= 0n, `dual: entry ${i} does not have the sign of its label`);
    need(loss !== "logistic" || slope * scale.n <= scale.d * unit, `dual: entry ${i} is larger than the weight of its point`);
  });
  const sum = c.reduce((a, b) => a + b, 0n);
  need(mode !== "free" || sum === 0n, "dual: the entries do not sum to zero");
  done.push("dual");

  if (lower.n > 0n) {
    const most = numberOf(body.proof?.maximum, "lower bound: proof.maximum");
    need(most.n > 0n, "lower bound: proof.maximum is not positive");
    bothSides(problem, c, unit, most, body.proof, "lower bound");
    let theta = decay.times(total).over(most);
    if (scale.atMost(theta)) theta = scale;
    const bits = THETA + BigInt(Math.max(0, bitLength(theta.d) - bitLength(theta.n)));
    theta = new Fraction((theta.n << bits) / theta.d, 1n << bits);  // rounded down, over a power of two
    const places = BigInt(kc) + bits, weight = 1n << places;
    let sums = 0n;
    c.forEach((v, i) => {
      const u = v * problem.y[i] * theta.n;
      if (!u) return;
      sums += u * logEnds(weight, u)[0] + (loss === "logistic" ? restBelow(weight, u) : u << PLACES);
    });
    let least = new Fraction(sums, 1n << (places + PLACES)).over(total);
    if (mode === "decayed") {
      const mean = theta.times(new Fraction(sum, unit)).over(total);
      least = least.minus(mean.times(mean).over(decay.times(new Fraction(2n))));
    }
    need(lower.atMost(least), "lower bound: the weights prove less");
  }
  done.push("lower bound");

  need(isObject(body.primal), "upper bound: no primal is stored");
  const [theta, kt] = rowsOf(body.primal.theta, problem.D, "upper bound: primal.theta");
  const [mass, km] = vectorOf(body.primal.mass, theta.length, "upper bound: primal.mass");
  const norm = theta.reduce((s, v, j) => s + absBig(mass[j]) * sqrtUp(dots(v, v), ROOT), 0n);
  const shift = BigInt(problem.k + kt + km), bits = shift > BigInt(bitLength(offset.d)) ? shift : BigInt(bitLength(offset.d));
  const moved = offset.n * ((1n << bits) / offset.d);
  let losses = 0n;
  networkValues(problem, theta, mass).forEach((value, i) => {
    const x = -((problem.y[i] * ((value << (bits - shift)) + moved) << PLACES) >> bits);  // a margin rounded down
    losses += loss === "logistic" ? softplusAbove(x) : expAbove(x);
  });
  let most = new Fraction(losses, 1n << PLACES).over(total);
  most = most.plus(decay.times(new Fraction(norm, 1n << BigInt(ROOT + kt + km))));
  if (mode === "decayed") most = most.plus(decay.times(offset).times(offset).over(new Fraction(2n)));
  need(most.atMost(upper), "upper bound: the objective of the network is larger");
  done.push("upper bound");
}

function runItems(text, X, y, done) {
  const body = readJson(text);
  need(isObject(body), "format: the certificate is not an object");
  need(body.format === FORMAT, "format");
  need(typeof body.kind === "string" && Object.hasOwn(CONVENTIONS, body.kind), "format: no rule in the browser for this kind; use widemargin verify");
  need(body.convention === CONVENTIONS[body.kind], "format: the convention is another");
  need(body.activation === "relu", "format: no rule in the browser for this activation; use widemargin verify");
  need(typeof body.proved === "boolean" && typeof body.status === "string", "format: proved or status");
  need(isObject(body.extra), "format: extra is not an object");
  done.push("format");
  const {digest, ...rest} = body;
  if (Object.hasOwn(rest, "run")) { delete rest.run; delete rest.seconds; }  // facts of the run are not part of it
  need(digest === sha256(new TextEncoder().encode(pythonJson(rest))), "digest");
  done.push("digest");
  const problem = readData(body, X, y);
  done.push("shape");
  need(isObject(body.data) && body.data.sha256 === dataHash(X, y), "data hash");
  done.push("data hash");
  const lower = numberOf(body.lower, "lower"), upper = numberOf(body.upper, "upper");
  need(upper.n >= 0n, "lower <= upper: upper is negative");
  need(lower.atMost(upper), "lower <= upper");
  done.push("lower <= upper");
  const unreachable = body.status === "not-separable";
  if (body.kind === "f1-optimum") optimumItems(problem, body, lower, upper, done);
  else {
    need(lower.n === 0n || !unreachable, "lower <= upper: status not-separable with a nonzero lower bound");
    const rules = RULES[body.kind](problem, body);
    if (lower.n > 0n) rules.lower(lower);
    done.push("lower bound");
    const [weights, bits] = vectorOf(body.dual, problem.y.length, "dual");
    weights.forEach((w, i) => need(w >= 0n, `dual: entry ${i} is negative`));
    const total = weights.reduce((a, b) => a + b, 0n);
    need(total > 0n, "dual: all entries are zero");
    const off = absBig(total - (1n << BigInt(bits)));
    need(unreachable || off * 1000000000n <= 1n << BigInt(bits), "dual: the entries do not sum to one");
    done.push("dual");
    if (body.proved) rules.upper(upper, weights, total);
    done.push("upper bound");
  }
  if (body.status === "certified") need(body.proved && (lower.n > 0n || upper.n === 0n), "status: certified, but not so");
  else if (unreachable) need(body.proved && upper.n === 0n && body.kind !== "f1-optimum", "status: not-separable, but upper is not 0; use widemargin verify");
  else need(WORDS.includes(body.status), "status: unknown");
  done.push("status");
  return body.proved ? "proved exactly" : "not proved";
}

export function check(text, X, y) {  // {answer: "proved exactly", "not proved" or "refused", failed, done}
  const done = [];
  try {
    return {answer: runItems(text, X, y, done), failed: null, done};
  } catch (error) {
    const failed = error instanceof RefusedItem ? error.message : `malformed: ${error.message}`;
    return {answer: "refused", failed, done};
  }
}
