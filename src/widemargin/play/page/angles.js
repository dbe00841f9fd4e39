// The kernel of random ReLU neurons for the checker: |x| |z| (sin t + (pi - t) cos t), t the angle of two integer vectors, enclosed
// between integers over 2^160, every rounding counted (docs/certificates.md, kind f2).

import {absBig, ceilDiv, floorDiv, isqrt} from "./exact.js";
import {PLACES} from "./logs.js";

const ATAN_SLACK = 1n << 13n;  // more than the errors of atanOf and of pi

function alternating(first, next) {  // the series of an arc tangent: term / j with changing signs
  let total = 0n;
  for (let j = 1n, term = first; term; j += 2n, term = next(term)) total += j & 2n ? -(term / j) : term / j;
  return total;
}

function atanSmall(numerator, denominator) {  // a ratio in [0, 1/64]; off by less than 64
  const u = (numerator << PLACES) / denominator, square = (u * u) >> PLACES;
  return alternating(u, (term) => (term * square) >> PLACES);
}

const TABLE = [0n];  // 2^P atan(k / 64)
for (let k = 0n; k < 64n; k++) TABLE.push(TABLE.at(-1) + atanSmall(64n, 4096n + k * (k + 1n)));

function atanOf(z) {  // 2^P atan(z / 2^P), 0 <= z <= 2^P
  const k = z >> (PLACES - 6n);
  return TABLE[Number(k)] + atanSmall(64n * z - (k << PLACES), (64n << PLACES) + z * k);
}

const machin = (m) => alternating((1n << PLACES) / m, (term) => term / (m * m));
const PI = 16n * machin(5n) - 4n * machin(239n);
export const PI_LOW = PI - ATAN_SLACK, PI_HIGH = PI + ATAN_SLACK;

function angleEnds(xx, yy, xy) {  // enclosures of |x| |y| sin t and of pi - t
  const area = xx * yy - xy * xy;
  if (area === 0n) return xy > 0n ? [0n, 0n, PI_LOW, PI_HIGH] : [0n, 0n, 0n, 0n];
  const root = isqrt(area << (2n * PLACES));
  if (xy === 0n) return [root, root + 1n, floorDiv(PI_LOW, 2n), floorDiv(PI_HIGH, 2n) + 1n];
  const size = absBig(xy) << PLACES;
  let a, b;
  if (root < size) {
    const z = (root << PLACES) / size, width = ceilDiv((root + 1n) << PLACES, size) - z, at = atanOf(z);
    a = at > ATAN_SLACK ? at - ATAN_SLACK : 0n;
    b = at + width + ATAN_SLACK;
  } else {
    const z = (size << PLACES) / (root + 1n), width = ceilDiv(size << PLACES, root) - z, at = atanOf(z);
    a = PI_LOW / 2n - (at + width + ATAN_SLACK);
    b = PI_HIGH / 2n + 1n - (at - ATAN_SLACK);
  }
  return xy > 0n ? [root, root + 1n, PI_LOW - b, PI_HIGH - a] : [root, root + 1n, a, b];
}

export function kernelEnds(x, z) {  // [low, high] over 2^P
  const dot = (p, q) => p.reduce((sum, v, k) => sum + v * q[k], 0n), xz = dot(x, z);
  const [sinLow, sinHigh, turnLow, turnHigh] = angleEnds(dot(x, x), dot(z, z), xz);
  const low = sinLow + xz * (xz > 0n ? turnLow : turnHigh);
  return [low > 0n ? low : 0n, sinHigh + xz * (xz > 0n ? turnHigh : turnLow)];
}
