// exp and log for the checker: series in integers over 2^160, every rounding counted (docs/certificates.md, "The least objective").

import {absBig, bitLength, ceilDiv, floorDiv} from "./exact.js";

export const PLACES = 160n;
const UNIT = 1n << PLACES, SLACK_BITS = 1n << 10n, FAR_DOWN = 112n, FAR_UP = 1000n;

function atanhSeries(numerator, denominator) {  // 2^P atanh(z), z in [0, 1/3], off by less than a quarter of the slack
  const u = (numerator << PLACES) / denominator, square = (u * u) >> PLACES;
  let term = u, total = 0n;
  for (let j = 1n; term; j += 2n) {
    total += term / j;
    term = (term * square) >> PLACES;
  }
  return total;
}

const LOG2 = 2n * atanhSeries(1n, 3n), LOG2_LOW = LOG2 - SLACK_BITS, LOG2_HIGH = LOG2 + SLACK_BITS;

export function logEnds(a, b) {  // an enclosure of 2^P log(a / b), a, b > 0
  let k = BigInt(bitLength(a) - bitLength(b));
  if (k >= 0n) b <<= k; else a <<= -k;
  if (3n * a > 4n * b) { b *= 2n; k += 1n; } else if (3n * a < 2n * b) { a *= 2n; k -= 1n; }
  let small = 2n * atanhSeries(absBig(a - b), a + b);
  if (a < b) small = -small;
  const [low, high] = k < 0n ? [LOG2_HIGH, LOG2_LOW] : [LOG2_LOW, LOG2_HIGH];
  return [small - SLACK_BITS + k * low, small + SLACK_BITS + k * high];
}

export function restBelow(w, u) {  // at most 2^P (w - u) log(w / (w - u)), 0 <= u <= w
  if (u === w) return 0n;
  const one = (w - u) * logEnds(w, w - u)[0], other = ((w - u) * u << PLACES) / w;
  return one > other ? one : other;
}

export function expAbove(x) {  // at least 2^P exp(x / 2^P)
  if (x <= -FAR_DOWN * UNIT) return 1n;
  if (x > FAR_UP * UNIT) throw new Error("upper bound: the loss at a point is beyond every double");
  const k = floorDiv(x, LOG2_HIGH), r = x - k * (k >= 0n ? LOG2_LOW : LOG2_HIGH);
  let total = 0n, term = UNIT, j = 0n;
  while (term > 1n) {
    total += term;
    j += 1n;
    term = ceilDiv(term * r, j * UNIT);
  }
  total += 2n;
  return k >= 0n ? total << k : ceilDiv(total, 1n << -k);
}

export function softplusAbove(x) {  // at least 2^P log(1 + exp(x / 2^P))
  const more = logEnds(UNIT + expAbove(-absBig(x)), UNIT)[1];
  return (x > 0n ? x : 0n) + (more > 0n ? more : 0n);
}
