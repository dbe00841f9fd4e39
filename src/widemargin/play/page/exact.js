// Exact numbers for the checker: doubles as integers over powers of two, roots of integers, fractions.

const bitsView = new DataView(new ArrayBuffer(8));

export function ratio(x) {  // [m, k] with x = m / 2^k, k >= 0 as small as it can be
  if (Number.isInteger(x)) return [BigInt(x), 0];
  bitsView.setFloat64(0, x);
  const bits = bitsView.getBigUint64(0), field = Number((bits >> 52n) & 2047n);
  let m = (bits & ((1n << 52n) - 1n)) | (field ? 1n << 52n : 0n), k = 1075 - Math.max(field, 1);
  while (!(m & 1n)) { m >>= 1n; k--; }
  return [x < 0 ? -m : m, k];
}

export const bitLength = (n) => n === 0n ? 0 : (n < 0n ? -n : n).toString(16).length * 4 - Math.clz32(
  parseInt((n < 0n ? -n : n).toString(16)[0], 16)) + 28;

export const absBig = (n) => (n < 0n ? -n : n);

export function isqrt(n) {  // the floor of the root, by Newton's method from above
  if (n < 2n) return n;
  let x = 1n << BigInt((bitLength(n) + 1) >> 1);
  for (;;) {
    const next = (x + n / x) >> 1n;
    if (next >= x) return x;
    x = next;
  }
}

export function sqrtUp(n, bits) {  // the least r with r / 2^bits >= sqrt(n)
  const wide = n << BigInt(2 * bits), s = isqrt(wide);
  return s * s === wide ? s : s + 1n;
}

export const floorDiv = (a, b) => { const q = a / b; return a % b !== 0n && (a < 0n) !== (b < 0n) ? q - 1n : q; };
export const ceilDiv = (a, b) => -floorDiv(-a, b);

export function nearest(a, b) {  // a / b as a double, off by less than one unit in the last place; b > 0
  if (a === 0n) return 0;
  const shift = 80 + bitLength(b) - bitLength(a);
  const q = shift >= 0 ? (a << BigInt(shift)) / b : a / (b << BigInt(-shift));
  return Number(q) * 2 ** -Math.ceil(shift / 2) * 2 ** -Math.floor(shift / 2);
}

export const gcd = (a, b) => { while (b) [a, b] = [b, a % b]; return Math.abs(a); };  // of small integers
export const gcdBig = (a, b) => { while (b) [a, b] = [b, a % b]; return a < 0n ? -a : a; };

export class Fraction {  // n / d with d > 0, not reduced: denominators are small or powers of two
  constructor(n, d = 1n) { this.n = n; this.d = d; }
  static of(x) { const [m, k] = ratio(x); return new Fraction(m, 1n << BigInt(k)); }
  plus(o) { return new Fraction(this.n * o.d + o.n * this.d, this.d * o.d); }
  minus(o) { return new Fraction(this.n * o.d - o.n * this.d, this.d * o.d); }
  times(o) { return new Fraction(this.n * o.n, this.d * o.d); }
  over(o) { return o.n < 0n ? new Fraction(-this.n * o.d, -this.d * o.n) : new Fraction(this.n * o.d, this.d * o.n); }
  atMost(o) { return this.n * o.d <= o.n * this.d; }
  get double() { return nearest(this.n, this.d); }
}
