// The exponential and the logistic loss of margins in the log domain, as widemargin.flows has them: sums and weights that neither
// overflow nor vanish.

const FAR = 40;  // beyond it exp(-p) is below the rounding of 1
const softplus = (x) => (x > FAR ? x : Math.log1p(Math.exp(x)));

export const LOSSES = {
  logistic: {log: (p) => (p > FAR ? -p : Math.log(softplus(-p))), logSlope: (p) => -softplus(p)},
  exp: {log: (p) => -p, logSlope: (p) => -p},
};

export function logSumExp(values) {
  let most = -Infinity;
  for (const v of values) most = Math.max(most, v);
  if (!Number.isFinite(most)) return most;
  let sum = 0;
  for (const v of values) sum += Math.exp(v - most);
  return most + Math.log(sum);
}

export function slopes(loss, p, kind) {  // weights of the points, and ln of the mean risk
  const n = p.length, logs = new Float64Array(n), weights = new Float64Array(n);
  for (let i = 0; i < n; i++) logs[i] = loss.log(p[i]);
  const total = logSumExp(logs);
  for (let i = 0; i < n; i++)
    weights[i] = kind === "mean" ? Math.exp(loss.logSlope(p[i])) / n : Math.exp(loss.logSlope(p[i]) - total);
  return {weights, logRisk: total - Math.log(n)};
}

export function unitWeights(loss, p) {  // in the simplex: the dual weights of a network with margins p
  const s = Float64Array.from(p, loss.logSlope), total = logSumExp(s);
  return s.map((v) => Math.exp(v - total));
}
