// This run as Python and as commands of widemargin.

const D = (state) => (state.bias ? 3 : 2);
const even = (state) => state.width + (state.width % 2);

function netText(s) {
  if (s.mode === "frozen") return `flows.Frozen(${D(s)}, ${even(s)}, law="paired", r0=${s.scale})`;
  if (s.mode === "output") return `flows.TwoLayer(${D(s)}, ${s.width}, law="sphere", mean_field=True, train="output")`;
  return `${s.start === "linear" ? "Together" : "flows.TwoLayer"}(${D(s)}, ${s.width}, law="cb", mean_field=True, law_scale=${s.scale})`;
}

function ruleText(s) {
  const m = s.mode === "frozen" ? even(s) : s.width, decay = s.decay ? `, weight_decay=${s.decay} / ${m}` : "";
  return {gd: `flows.GD(lr=${s.lr} * ${m}${decay})`, ngd: `flows.NormalizedGD(lr=${s.lr})`, adam: `flows.Adam(lr=${s.lr}${decay})`, flow: "flows.GradientFlow()"}[s.rule];
}

export function asPython(s, steps, time) {
  const whole = (k) => s.points.map((p) => p[k] * 64).join(", "), py = s.bias ? "True" : "False";
  const lines = [
    "import numpy as np", `from widemargin import Dataset, flows, margins${s.decay ? ", optima" : ""}`, "",
    `X = np.array([[${whole(0)}], [${whole(1)}]]).T / 64`, `y = np.array([${s.points.map((p) => p[2]).join(", ")}])`, 'data = Dataset(X, y, "playground")', "",
    `cert = margins.f1(data, bias=${py}, tol=1e-6)  # no network of any width has a larger margin than cert.upper`, "print(cert)", "print(cert.verify(data))", ""];
  if (s.decay)
    lines.push(`best = optima.f1(data, bias=${py}, loss="${s.loss}", weight_decay=${s.decay}, output_bias=None)`, "print(best)", "print(best.verify(data))", "");
  if (s.start === "linear" && s.mode === "both")
    lines.push("class Together(flows.TwoLayer):", "    def draw(self, rng):  # every neuron starts at the best linear classifier",
      `        u = np.asarray(margins.linear(data, bias=${py}).extra["u"])`, "        V = np.tile(self.law_scale * u / np.linalg.norm(u), (self.m, 1))",
      '        return {"a": np.full(self.m, float(self.law_scale)), "V": V}', "", "");
  const stop = s.rule === "flow" && time > 0 ? `flows.Stop(100_000, time=${time}, clock="cb")` : Math.max(1, steps);
  const name = s.mode === "output" ? "margin_M7" : "margin_M1";
  lines.push(`net = ${netText(s)}`);
  if (s.mode !== "both") {  // the bound of this network's own directions
    const V = `net.init(1, ${s.seed})["V"][0]`, what = s.mode === "output" ? `random_features(data, ${V}` : `frozen(data, ${V}[:${even(s) / 2}]`;
    lines.push(`own = margins.${what}, bias=${py})`, "print(own)", "print(own.verify(data))");
  }
  lines.push(`run = flows.train(data, net, ${ruleText(s)}, loss="${s.loss}", stop=${stop}, bias=${py}, seed=${s.seed})`,
    `print(run["${name}"][-1, 0])  # the margin after ${Math.max(1, steps)} steps of the page`, "");
  return lines.join("\n");
}

export function asCommand(s, steps, time) {
  const bias = s.bias ? " --bias" : "", m = s.mode === "frozen" ? even(s) : s.width;
  const lines = ["cat > points.csv <<'END'", "x1,x2,label", ...s.points.map(([x, y, label]) => `${x},${y},${label}`), "END",
    `widemargin margin points.csv${bias} --tol 1e-6 --save cert.json`, "widemargin verify cert.json points.csv"];
  if (s.decay) lines.push(`widemargin fit points.csv${bias} --loss ${s.loss} --weight-decay ${s.decay} --output-bias none`);
  const net = {both: `--net relu --option law=cb --option mean_field=true --option law_scale=${s.scale}`, output: "--net output --option law=sphere --option mean_field=true",
    frozen: `--net frozen --option law=paired --option r0=${s.scale}`}[s.mode];
  const rule = {gd: `--algorithm gd --lr ${s.lr * m}`, ngd: `--algorithm ngd --lr ${s.lr}`, adam: `--algorithm adam --lr ${s.lr}`, flow: "--algorithm gf"}[s.rule];
  const decay = s.decay ? ` --option weight_decay=${s.decay / m}` : "";
  const length = s.rule === "flow" && time > 0 ? `--time ${time} --clock cb` : `--steps ${Math.max(1, steps)}`;
  lines.push(`widemargin train points.csv${bias} ${net} --width ${m} ${rule}${decay} --loss ${s.loss} ${length} --seed ${s.seed}`, "");
  return lines.join("\n");
}
