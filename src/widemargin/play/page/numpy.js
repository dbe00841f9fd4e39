// Normal numbers as numpy's default_rng([seed, trial]).standard_normal draws them, so that a network starts where Python's does:
// SeedSequence, PCG64 (XSL-RR) and the ziggurat of 256 layers.

const M64 = (1n << 64n) - 1n, M128 = (1n << 128n) - 1n;
const MULTIPLIER = 0x2360ed051fc65da44385df649fccf645n;

function seeds(entropy) {  // numpy's SeedSequence: four 64-bit words from a list of 32-bit words
  let a = 0x43b0d7e5;
  const hash = (value) => {
    value = Math.imul(value ^ a, (a = Math.imul(a, 0x931e8875) >>> 0)) >>> 0;
    return (value ^ (value >>> 16)) >>> 0;
  };
  const mixed = (x, y) => {
    const z = (Math.imul(x, 0xca01f9dd) - Math.imul(y, 0x4973f715)) >>> 0;
    return (z ^ (z >>> 16)) >>> 0;
  };
  const pool = [0, 1, 2, 3].map((k) => hash(entropy[k] ?? 0));
  for (let from = 0; from < 4; from++)
    for (let to = 0; to < 4; to++) if (from !== to) pool[to] = mixed(pool[to], hash(pool[from]));
  for (let from = 4; from < entropy.length; from++)
    for (let to = 0; to < 4; to++) pool[to] = mixed(pool[to], hash(entropy[from]));
  let b = 0x8b51f9dd;
  const words = [];
  for (let k = 0; k < 8; k++) {
    let value = pool[k % 4] ^ b;
    b = Math.imul(b, 0x58f38ded) >>> 0;
    value = Math.imul(value, b) >>> 0;
    words.push(BigInt((value ^ (value >>> 16)) >>> 0));
  }
  return [0, 1, 2, 3].map((k) => words[2 * k] | (words[2 * k + 1] << 32n));
}

const RADIUS = 3.6541528853610087963519472518, AREA = 0.0049286732339746519;  // of 256 layers under exp(-x^2 / 2)
const LAYERS = (() => {
  const edge = new Float64Array(256), height = new Float64Array(256), inner = new Float64Array(256);
  const bell = (x) => Math.exp(-0.5 * x * x);
  edge[255] = RADIUS;
  height[255] = bell(RADIUS);
  edge[0] = AREA / height[255];
  inner[0] = RADIUS * height[255] / AREA;
  height[0] = 1;
  for (let i = 254; i >= 1; i--) {
    edge[i] = Math.sqrt(-2 * Math.log(AREA / edge[i + 1] + height[i + 1]));
    inner[i + 1] = edge[i] / edge[i + 1];
    height[i] = bell(edge[i]);
  }
  inner[1] = 0;
  return {edge, height, inner};
})();

export class Normals {
  constructor(...entropy) {
    const words = entropy.flatMap((e) => (e > 0xffffffff ? [e % 2 ** 32, Math.floor(e / 2 ** 32)] : [e]));
    const [high, low, streamHigh, streamLow] = seeds(words);
    this.step = (((streamHigh << 64n) | streamLow) << 1n | 1n) & M128;
    this.state = this.step;
    this.state = (this.state + ((high << 64n) | low)) & M128;
    this.state = (this.state * MULTIPLIER + this.step) & M128;
  }

  word() {  // 64 bits
    this.state = (this.state * MULTIPLIER + this.step) & M128;
    const x = (this.state >> 64n) ^ (this.state & M64), turn = this.state >> 122n;
    return ((x >> turn) | (x << (64n - turn))) & M64;
  }

  uniform() { return Number(this.word() >> 11n) / 2 ** 53; }

  next() {
    for (;;) {
      const r = this.word(), layer = Number(r & 0xffn), back = (r >> 8n) & 1n, part = Number((r >> 9n) & 0xfffffffffffffn);
      const size = part / 2 ** 52 * LAYERS.edge[layer], x = back ? -size : size;
      if (part / 2 ** 52 < LAYERS.inner[layer]) return x;
      if (layer === 0) {
        for (;;) {
          const far = -Math.log1p(-this.uniform()) / RADIUS, high = -Math.log1p(-this.uniform());
          if (high + high > far * far) return (BigInt(part) >> 8n) & 1n ? -(RADIUS + far) : RADIUS + far;
        }
      }
      const {height} = LAYERS;
      if ((height[layer - 1] - height[layer]) * this.uniform() + height[layer] < Math.exp(-0.5 * x * x)) return x;
    }
  }

  array(count) { return Float64Array.from({length: count}, () => this.next()); }
}
