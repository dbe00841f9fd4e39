// SHA-256 of bytes as 64 hexadecimal digits. Written out because browsers offer theirs in secure places only.

const ROOTS = (() => {  // the first 32 bits of the fractions of cube roots and square roots of primes
  const primes = [];
  for (let n = 2; primes.length < 64; n++) if (primes.every((p) => n % p)) primes.push(n);
  const first = (root) => primes.map((p) => Math.floor((root(p) % 1) * 2 ** 32) >>> 0);
  return {cube: first(Math.cbrt), square: first(Math.sqrt).slice(0, 8)};
})();

export function sha256(bytes) {
  const length = bytes.length, blocks = (length + 72) >>> 6;
  const padded = new Uint8Array(blocks * 64);
  padded.set(bytes);
  padded[length] = 0x80;
  const view = new DataView(padded.buffer);
  view.setUint32(blocks * 64 - 8, Math.floor(length / 2 ** 29));
  view.setUint32(blocks * 64 - 4, (length << 3) >>> 0);
  const h = Uint32Array.from(ROOTS.square), w = new Uint32Array(64);
  const turn = (x, k) => (x >>> k) | (x << (32 - k));
  for (let start = 0; start < padded.length; start += 64) {
    for (let i = 0; i < 16; i++) w[i] = view.getUint32(start + 4 * i);
    for (let i = 16; i < 64; i++) {
      const a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + (turn(a, 7) ^ turn(a, 18) ^ (a >>> 3)) + w[i - 7] + (turn(b, 17) ^ turn(b, 19) ^ (b >>> 10));
    }
    let [a, b, c, d, e, f, g, s] = h;
    for (let i = 0; i < 64; i++) {
      const one = (s + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + ROOTS.cube[i] + w[i]) | 0;
      const two = ((turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      s = g; g = f; f = e; e = (d + one) | 0; d = c; c = b; b = a; a = (one + two) | 0;
    }
    [a, b, c, d, e, f, g, s].forEach((v, i) => { h[i] += v; });
  }
  return Array.from(h, (v) => v.toString(16).padStart(8, "0")).join("");
}

export function dataHash(X, y) {  // of "n d\n", X row by row, y, as little-endian doubles
  const d = X[0].length, head = new TextEncoder().encode(`${X.length} ${d}\n`);
  const bytes = new Uint8Array(head.length + 8 * (X.length * d + y.length)), view = new DataView(bytes.buffer);
  bytes.set(head);
  let at = head.length;
  for (const v of [...X.flat(), ...y]) { view.setFloat64(at, v, true); at += 8; }
  return sha256(bytes);
}
