// The linear program of a game: masses w >= 0 with sum 1 that make the least entry of Z w largest, and the weights q of the rows
// that show it. Primal simplex with an inverse of the basis that is worked out anew now and then; columns may be added at any
// time, and the solution so far is the start. Rows are moved by tiny different amounts, so that no step is empty (degenerate
// problems are the rule here: symmetric points); the masses at the end are those of the rows as they are.

const REFRESH = 40, TINY_MOVE = 1e-10;

export class Game {
  constructor(rows, column) {
    this.n = rows;
    this.columns = [column];
    let least = 0;
    for (let i = 1; i < rows; i++) if (column[i] < column[least]) least = i;
    // Rows 0..n-1: sum_j z_ij w_j - s_i - t = shift_i; row n: sum_j w_j = 1. Variables: j >= 0 a mass, -1 the value t, -2 - i a slack.
    this.basis = [];
    for (let i = 0; i < rows; i++) this.basis.push(i === least ? -1 : -2 - i);
    this.basis.push(0);
    const scale = Math.max(...column.map(Math.abs), 1e-300);
    this.shift = Float64Array.from({length: rows + 1}, (_, i) => (i === rows ? 1 : i === least ? 0 : -scale * TINY_MOVE * (1 + ((i * 0.6180339887) % 1))));
    this.refresh();
  }

  add(column) { this.columns.push(column); }

  entries(variable, out) {  // a column of the program
    const n = this.n;
    if (variable >= 0) { out.set(this.columns[variable]); out[n] = 1; return out; }
    out.fill(0);
    if (variable === -1) out.fill(-1, 0, n); else out[-2 - variable] = -1;
    return out;
  }

  refresh() {  // the inverse of the basis, by elimination with pivots; and the values of its variables
    const N = this.n + 1, M = new Float64Array(N * 2 * N), column = new Float64Array(N);
    this.basis.forEach((variable, k) => {
      this.entries(variable, column);
      for (let i = 0; i < N; i++) M[i * 2 * N + k] = column[i];
      M[k * 2 * N + N + k] = 1;
    });
    for (let k = 0; k < N; k++) {
      let pivot = k;
      for (let i = k + 1; i < N; i++) if (Math.abs(M[i * 2 * N + k]) > Math.abs(M[pivot * 2 * N + k])) pivot = i;
      if (Math.abs(M[pivot * 2 * N + k]) < 1e-13) return false;
      if (pivot !== k) for (let x = 0; x < 2 * N; x++) [M[k * 2 * N + x], M[pivot * 2 * N + x]] = [M[pivot * 2 * N + x], M[k * 2 * N + x]];
      const over = 1 / M[k * 2 * N + k];
      for (let x = k; x < 2 * N; x++) M[k * 2 * N + x] *= over;
      for (let i = 0; i < N; i++) {
        const factor = M[i * 2 * N + k];
        if (i === k || factor === 0) continue;
        for (let x = k; x < 2 * N; x++) M[i * 2 * N + x] -= factor * M[k * 2 * N + x];
      }
    }
    this.inverse = new Float64Array(N * N);
    for (let i = 0; i < N; i++) this.inverse.set(M.subarray(i * 2 * N + N, (i + 1) * 2 * N), i * N);
    this.values = this.solved(this.shift);
    this.age = 0;
    return true;
  }

  solved(right) {
    const N = this.n + 1, out = new Float64Array(N);
    for (let i = 0; i < N; i++) {
      let sum = 0;
      for (let k = 0; k < N; k++) sum += this.inverse[i * N + k] * right[k];
      out[i] = sum;
    }
    return out;
  }

  prices() {  // the row of the inverse that belongs to t: minus the weights q, then the value
    const N = this.n + 1, at = this.basis.indexOf(-1);
    return this.inverse.slice(at * N, (at + 1) * N);
  }

  solve(steps = 4000) {  // true where no column is better
    const n = this.n, N = n + 1, column = new Float64Array(N), change = new Float64Array(N), {columns} = this, m = columns.length;
    const inside = new Uint8Array(m + n);  // masses, then slacks, that are in the basis
    for (const variable of this.basis) if (variable !== -1) inside[variable >= 0 ? variable : m - 2 - variable] = 1;
    let scale = 0;
    for (const one of columns) for (let i = 0; i < n; i++) scale = Math.max(scale, Math.abs(one[i]));
    for (let step = 0; step < steps; step++) {
      if (this.age >= REFRESH && !this.refresh()) return false;
      const price = this.prices();
      let enter = null, gain = 1e-12 * scale;
      for (let j = 0; j < m; j++) {  // t grows by -(price . column) per unit of what enters
        if (inside[j]) continue;
        const one = columns[j];
        let g = -price[n];
        for (let i = 0; i < n; i++) g -= price[i] * one[i];
        if (g > gain) { gain = g; enter = j; }
      }
      for (let i = 0; i < n; i++)
        if (price[i] > Math.max(1e-12, gain / scale) && !inside[m + i]) { gain = price[i] * scale; enter = -2 - i; }
      if (enter === null) return true;
      this.entries(enter, column);
      let leave = -1, least = Infinity;
      for (let i = 0; i < N; i++) {
        let sum = 0;
        for (let k = 0; k < N; k++) sum += this.inverse[i * N + k] * column[k];
        change[i] = sum;
        if (this.basis[i] === -1 || sum <= 1e-11) continue;
        const room = Math.max(0, this.values[i]) / sum;
        if (room < least - 1e-15 || (room <= least && leave >= 0 && sum > change[leave])) { least = room; leave = i; }
      }
      if (leave < 0) return false;
      const over = 1 / change[leave], base = leave * N;
      for (let k = 0; k < N; k++) this.inverse[base + k] *= over;
      for (let i = 0; i < N; i++) {
        if (i === leave || change[i] === 0) continue;
        for (let k = 0; k < N; k++) this.inverse[i * N + k] -= change[i] * this.inverse[base + k];
        this.values[i] -= change[i] * least;
      }
      this.values[leave] = least;
      const out = this.basis[leave];
      inside[out >= 0 ? out : m - 2 - out] = 0;
      inside[enter >= 0 ? enter : m - 2 - enter] = 1;
      this.basis[leave] = enter;
      this.age++;
    }
    return false;
  }

  masses() {  // [j, w_j] of the program without the tiny moves
    const right = new Float64Array(this.n + 1);
    right[this.n] = 1;
    const exact = this.solved(right), out = [];
    this.basis.forEach((variable, k) => { if (variable >= 0 && exact[k] > 1e-13) out.push([variable, exact[k]]); });
    return out;
  }

  weights() {  // q >= 0 with sum 1
    const price = this.prices(), q = new Float64Array(this.n);
    let sum = 0;
    for (let i = 0; i < this.n; i++) sum += q[i] = Math.max(0, -price[i]);
    return q.map((v) => v / sum);
  }
}
