"""A small Llama learns a + b mod P: it fits the training pairs, then generalises. What does its normalised margin do meanwhile?

    python examples/monitor_transformer.py [--optimizer NAME] [--prime 29] [--steps N] [--device cuda] [--out DIR]
    python examples/monitor_transformer.py --draw DIR [DIR ...] --out FOLDER      # one picture of several runs, made elsewhere

The model comes from the configuration classes of `transformers`, with random weights: nothing is downloaded. The last norm's
gain and the head are homogeneous of degree 2 together, so psi / |w_hat|^2 never falls along gradient flow once the sum of the
cross-entropies is below ln 2, and psi / N(w_hat)^2 along steepest descent in the norm N (docs/steepest.md): both are recorded.
Ways to train, all on the answer token alone:

- adamw  full batch, with weight decay: what shows grokking; its norm is the largest entry, up to its averages
- adam   the same without decay
- muon   matrices by their polar factors, the rest by AdamW, no decay: a mixed maximum; needs torch.optim.Muon
- sign   full batch, the signs of the gradient of ln(loss), no decay: what the theorem is about, up to the length of the step
- gd     full batch, a fixed step, no weight decay: gradient flow with large strides, and a loss that soon hardly moves
- ngd    full batch, gradient of ln(loss): the same path as gd in the limit of small steps, on a clock that does not slow down
- sgd    a quarter of the pairs at a time, no weight decay

DIR gets run.json (what was measured), the picture, records.parquet for `widemargin watch`, and state.pt, from which --resume
goes on; Ctrl-C keeps all that is there. Takes a minute on one CPU core, and a few on a GPU with --device cuda (P = 97).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from widemargin.flows import losses
from widemargin.monitor import MarginMonitor, Record
from widemargin.types import InputError, write_atomically

OPTIMIZERS = ("adamw", "adam", "muon", "sign", "gd", "sgd", "ngd")
RATES = {"adamw": 1e-3, "adam": 1e-3, "muon": 1e-2, "sign": 1e-4, "gd": 0.3, "sgd": 0.1, "ngd": 0.03}
IGNORED = -100
GENERALISES = 0.99  # test accuracy
CURVES = ("psi_normalized", "psi_own", "margin_normalized", "psi", "margin", "norm", "error", "loss")


def pairs(prime: int, share: float, seed: int) -> dict[str, dict[str, Tensor]]:
    """Tokens "a b =" and labels, for training and for the test. Only the position of "=" has a label: the sum.

    a + b and b + a are on the same side: otherwise half of the test would be known from training.
    """
    a, b = torch.triu_indices(prime, prime)
    order = torch.randperm(len(a), generator=torch.Generator().manual_seed(seed))
    cut = round(share * len(a))
    parts = {}
    for name, rows in {"train": order[:cut], "test": order[cut:]}.items():
        one = torch.stack([a[rows], b[rows]], 1)
        both = torch.cat([one, one[one[:, 0] != one[:, 1]].flip(1)])
        tokens = torch.cat([both, torch.full((len(both), 1), prime)], 1)
        labels = torch.full_like(tokens, IGNORED)
        labels[:, 2] = both.sum(1) % prime
        parts[name] = {"input_ids": tokens, "labels": labels}
    return parts


def llama(prime: int, width: int, layers: int, heads: int, seed: int, dtype: torch.dtype) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=prime + 1,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=8,
        tie_word_embeddings=False,
        use_cache=False,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config).to(dtype)
    # transformers' RMSNorm rounds to float32 whatever the model's precision is; torch's is the same function and does not.
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__ == "LlamaRMSNorm":
                norm = nn.RMSNorm(width, eps=child.variance_epsilon, dtype=dtype)
                setattr(module, name, norm)
    return model


def answers(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Logits and labels; labels lie where the answer is predicted, so nothing is shifted."""
    return model(input_ids=batch["input_ids"]).logits, batch["labels"]


class SignSGD(torch.optim.Optimizer):
    """w <- w - lr sign(gradient)."""

    def __init__(self, params: Any, lr: float):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p -= group["lr"] * p.grad.sign()


def muon(model: nn.Module, lr: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices, the head's too, and Adam for the embedding and all vectors, as it is used."""
    named = dict(model.named_parameters())
    matrices = [p for name, p in named.items() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in named.items() if p.ndim != 2 or "embed" in name]
    return [torch.optim.Muon(matrices, lr, weight_decay=0.0), torch.optim.Adam(others, 0.1 * lr, (0.9, 0.98))]


class Trainer:
    """`loss` and gradients at the present parameters, then `update`. On a GPU both are one recorded graph."""

    def __init__(self, model: nn.Module, data: dict[str, Tensor], options: argparse.Namespace):
        self.model, self.data, self.options = model, data, options
        capturable = options.device == "cuda"
        self.optimizers: list[torch.optim.Optimizer]
        if options.optimizer in ("adamw", "adam"):
            self.optimizers = [
                torch.optim.AdamW(
                    model.parameters(),
                    options.lr,
                    (0.9, 0.98),
                    weight_decay=options.weight_decay,
                    capturable=capturable,
                )
            ]
        elif options.optimizer == "muon":
            self.optimizers = muon(model, options.lr)
        elif options.optimizer == "sign":
            self.optimizers = [SignSGD(model.parameters(), options.lr)]
        else:
            self.optimizers = [torch.optim.SGD(model.parameters(), options.lr, weight_decay=options.weight_decay)]
        self.graph: Any = None
        self.wanted = options.graph and options.device == "cuda" and options.optimizer not in ("sgd", "muon")

    def batch(self, step: int) -> dict[str, Tensor]:
        if self.options.optimizer != "sgd":
            return self.data
        size = max(
            1, len(self.data["labels"]) // 4
        )  # four batches are an epoch; the order depends on seed and epoch alone
        generator = torch.Generator().manual_seed(self.options.seed * 1_000_003 + step // 4)
        rows = torch.randperm(len(self.data["labels"]), generator=generator)[(step % 4) * size :][:size]
        return {name: values[rows.to(values.device)] for name, values in self.data.items()}

    def gradients(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, labels and the objective; gradients are in the parameters afterwards."""
        logits, labels = answers(self.model, self.batch(step))
        if self.options.optimizer in (
            "ngd",
            "sign",
        ):  # in the log domain: the cross-entropy itself would soon be 0 in floating point
            p, _ = losses.class_margin(logits[:, -1], labels[:, -1])
            objective = losses.log_sum(losses.LOGISTIC, p) - math.log(len(p))
        else:
            objective = nn.functional.cross_entropy(logits[:, -1], labels[:, -1])
        for parameter in self.model.parameters():  # zeroed and not dropped: a recorded graph needs them where they are
            if parameter.grad is not None:
                parameter.grad.zero_()
        objective.backward()
        return logits.detach(), labels, objective.detach()

    def first(self, step: int) -> None:
        self.now = self.gradients(step)

    def next(self, step: int) -> None:
        """Update the parameters, then gradients there."""
        if self.graph is not None:
            self.graph.replay()
            return
        if self.wanted and step > 10:
            self.record(step)
            return
        self.update()
        self.now = self.gradients(step)

    def update(self) -> None:
        for one in self.optimizers:
            one.step()

    def record(self, step: int) -> None:
        self.wanted = False
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self.update()
                recorded = self.gradients(step)
        except RuntimeError as error:
            print(f"no CUDA graph, steps one by one instead: {str(error).splitlines()[0]}")
            torch.cuda.synchronize()
            self.next(step)
            return
        self.graph, self.now = graph, recorded
        graph.replay()  # recording runs nothing


# ---------------------------------------------------------------- a run


def train(options: argparse.Namespace) -> dict[str, Any]:
    dtype = getattr(torch, options.dtype)
    out = Path(options.out)
    if (out / "monitor.json").exists() and not options.resume:
        raise InputError(f"{out} holds a run already; choose another --out, or --resume to go on with it")
    out.mkdir(parents=True, exist_ok=True)
    data = {
        name: {key: values.to(options.device) for key, values in part.items()}
        for name, part in pairs(options.prime, options.share, options.seed).items()
    }
    model = llama(options.prime, options.width, options.layers, options.heads, options.seed, dtype).to(options.device)
    trainer = Trainer(model, data["train"], options)
    begin, kept = 0, dict[str, list[Any]](step=[], every=[])
    state = out / "state.pt"
    if options.resume and state.exists():
        found = torch.load(state, map_location=options.device, weights_only=True)
        model.load_state_dict(found["model"])
        for one, old in zip(trainer.optimizers, found["optimizers"]):
            one.load_state_dict(old)
        begin, kept = found["step"], found["kept"]
    monitor = MarginMonitor(
        model,
        forward=answers,
        optimizer=trainer.optimizers,
        out=out if importlib.util.find_spec("pyarrow") else None,
        resume=options.resume,
    )
    report = f"{options.optimizer}, P = {options.prime}, {len(data['train']['labels'])} pairs, {options.dtype}"
    print(f"{report}, {sum(p.numel() for p in model.parameters())} parameters, {options.device}")
    whole = options.optimizer != "sgd"  # the training batch is the training set: margins of every step for nothing
    step, started = begin, time.perf_counter()
    trainer.first(begin)
    with _asked_to_stop() as asked:
        for step in range(begin, options.steps + 1):
            if step > begin:
                trainer.next(step)
            if step > begin or not begin:  # what --resume begins with has been measured
                logits, labels, objective = trainer.now
                if whole:
                    monitor.step(logits=logits, targets=labels, loss=objective, step=step)
                if step % options.every == 0 or step == options.steps:
                    found = {name: monitor.measure(part, name, step=step) for name, part in data.items()}
                    kept["every"].append(_row(step, found))
                    if (step // options.every) % 20 == 0 or step == options.steps:
                        print(_line(step, found, time.perf_counter() - started), flush=True)
            if asked:
                print(f"stopped at step {step}; --resume goes on from here")
                break
    seconds = time.perf_counter() - started
    if whole:
        kept["step"] += [(r.step, r.psi_normalized, r.psi, r.psi_own) for r in monitor.records if r.name == "step"]
    subset = monitor.homogeneous
    monitor.close()
    torch.save(
        {
            "model": model.state_dict(),
            "optimizers": [one.state_dict() for one in trainer.optimizers],
            "step": step,
            "kept": kept,
        },
        state,
    )
    geometry = monitor.geometry
    run = {
        "geometry": None if geometry is None else str(geometry),
        "options": {name: value for name, value in vars(options).items() if name not in ("draw", "resume")},
        "homogeneous": None if subset is None else subset.as_dict(),
        "seconds": seconds,
        "steps_per_second": (step - begin) / seconds if seconds else 0.0,
        "curves": {name: [row[name] for row in kept["every"]] for name in (kept["every"][0] if kept["every"] else ())},
        "findings": findings(kept),
    }
    write_atomically(out / "run.json", json.dumps(run, indent=1, allow_nan=True).encode())
    return run


@contextmanager
def _asked_to_stop() -> Iterator[list[int]]:
    """Ctrl-C puts something into the list instead of stopping in the middle of a step; a second one stops at once."""
    asked: list[int] = []
    before = signal.getsignal(signal.SIGINT)

    def ask(number: int, frame: Any) -> None:
        asked.append(number)
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def _row(step: int, found: dict[str, Record]) -> dict[str, float]:
    row: dict[str, float] = {"step": step, "test_accuracy": 1 - found["test"].error, "test_loss": found["test"].loss}
    return row | {name: getattr(found["train"], name) for name in CURVES}


def _line(step: int, found: dict[str, Record], seconds: float) -> str:
    train, test = found["train"], found["test"]
    return (
        f"step {step:7d}  accuracy {1 - train.error:.3f} train {1 - test.error:.3f} test  margin {train.margin:8.3f}  "
        f"|w| {train.norm:7.2f}  psi/|w|^2 {train.psi_normalized:9.5f}  {seconds:.0f} s"
    )


# ---------------------------------------------------------------- what happened


def findings(kept: dict[str, list[Any]]) -> dict[str, Any]:
    """When it fitted and generalised, how psi / |w_hat|^L fell after fitting, and how it went with the test."""
    rows = kept["every"]
    step = np.array([row["step"] for row in rows])
    psi = np.array([row["psi_normalized"] for row in rows])
    test = np.array([row["test_accuracy"] for row in rows])
    fits = np.array([row["error"] == 0 for row in rows])
    fitted = _first(step, fits)
    speaks = _first(step, np.array([row["psi"] > 0 for row in rows]))
    general = _first(step, test >= GENERALISES)
    found: dict[str, Any] = {"fitted": fitted, "loss_below_ln2": speaks, "generalises": general}
    each = [(row["step"], row["psi_normalized"], row["psi"], row.get("psi_own", math.nan)) for row in rows]
    series = np.array(kept["step"] or each, dtype=float)
    found |= {"compared": "every step" if kept["step"] else "every measurement"} | falls(series[:, 1], series[:, 2])
    if series.shape[1] > 3 and np.isfinite(series[:, 3]).all():
        found["own"] = falls(series[:, 3], series[:, 2])
    found["test_accuracy"] = float(test[-1]) if len(test) else None
    between = fits & (step <= (general if general is not None else step.max(initial=0)))
    if between.sum() >= 3 and np.ptp(test[between]) > 0:
        from scipy.stats import spearmanr

        found["rank_correlation"] = float(spearmanr(psi[between], test[between]).statistic)
        found["measurements_between"] = int(between.sum())
        found["psi_half_way"] = _half(step[between], psi[between])
        margin = np.array([row["margin_normalized"] for row in rows])
        found["margin_half_way"] = _half(step[between], margin[between])
        found["test_half_way"] = _half(step[between], test[between])
    return found


def falls(normalized: np.ndarray, psi: np.ndarray) -> dict[str, Any]:
    """Falls of psi / |w_hat|^L once psi > 0: how many, the largest one, and the deepest point below the highest before."""
    start = int(np.argmax(psi > 0)) if (psi > 0).any() else len(psi)
    values = normalized[start:]
    if len(values) < 2:
        return {"steps_after": 0, "falls": 0, "largest_fall": 0.0, "deepest": 0.0}
    change = np.diff(values)
    highest = np.maximum.accumulate(values)
    return {
        "steps_after": len(change),
        "falls": int((change < 0).sum()),
        "largest_fall": float(max(0.0, -change.min())) / float(values.max()),  # in shares of the highest value
        "deepest": float((highest - values).max()) / float(values.max()),
    }


def _first(step: np.ndarray, condition: np.ndarray) -> int | None:
    return int(step[np.argmax(condition)]) if condition.any() else None


def _half(step: np.ndarray, values: np.ndarray) -> int:
    """When half of the rise is done."""
    return int(step[np.argmax(values >= (values[0] + values[-1]) / 2)])


def told(run: dict[str, Any]) -> str:
    f, name = run["findings"], run["options"]["optimizer"]
    lines = [
        f"{name}: fits the training pairs at step {f['fitted']}, sum of losses below ln 2 at {f['loss_below_ln2']}, "
        f"test accuracy {GENERALISES:.0%} at {f['generalises']}"
    ]
    if f["steps_after"]:
        much = "never falls" if not f["falls"] else f"falls {f['falls']} times"
        lines.append(
            f"  psi/|w|^L {much} in {f['steps_after']} comparisons after that ({f['compared']}); largest fall "
            f"{f['largest_fall']:.1e} of its highest value, at most {f['deepest']:.1e} of it below the highest before"
        )
        if own := f.get("own"):
            lines.append(
                f"  in the optimiser's own norm it falls {own['falls']} times in {own['steps_after']}, largest fall "
                f"{own['largest_fall']:.1e}, at most {own['deepest']:.1e} below"
            )
        lines.append(f"  test accuracy at the end {f['test_accuracy']:.3f}")
    if "rank_correlation" in f:
        lines.append(
            f"  rank correlation with test accuracy from fitting to generalising: {f['rank_correlation']:.3f} "
            f"({f['measurements_between']} measurements); half of its rise is done at step {f['psi_half_way']}, "
            f"of the normalised hard margin's at {f['margin_half_way']}, of the test accuracy's at {f['test_half_way']}"
        )
    return "\n".join(lines)


# ---------------------------------------------------------------- the picture


def picture(runs: list[dict[str, Any]]) -> Any:
    """A row per run: accuracies, normalised margins, margin and norm, against the step."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from widemargin.plots import INK, MINUS, PLUS, QUIET, THIRD

    figure = Figure(figsize=(12, 0.5 + 2.9 * len(runs)), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(runs), 3, squeeze=False)
    for run, (left, middle, right) in zip(runs, grid):
        c = {name: np.array(values, dtype=float) for name, values in run["curves"].items()}
        f, options = run["findings"], run["options"]
        x = np.maximum(c["step"], options["every"] / 2)  # step 0 has a place on the logarithmic axis
        left.plot(x, 1 - c["error"], color=MINUS, lw=1.8, label="training pairs")
        left.plot(x, c["test_accuracy"], color=PLUS, lw=1.8, label="other pairs")
        left.set_ylim(-0.03, 1.22)  # room for the legend
        left.set_ylabel(f"{_title(options)}\naccuracy", fontsize=9.5)
        for name, colour, label in (
            ("psi_normalized", INK, "psi / |w|$^2$"),
            ("margin_normalized", QUIET, "margin / |w|$^2$"),
        ):
            middle.plot(x, c[name], color=colour, lw=1.9, label=label)
        if (
            np.isfinite(c.get("psi_own", np.nan)).all() and c["psi_own"].max() > 0
        ):  # to the same height: only its course matters
            own = c["psi_own"] * (c["psi_normalized"].max() / c["psi_own"].max())
            middle.plot(x, own, color=THIRD, lw=1.2, ls="--", label="psi / N(w)$^2$, own norm, scaled")
        middle.axhline(0, color=QUIET, lw=0.6)
        top = max(float(c["margin_normalized"].max()), 1e-9)
        middle.set_ylim(-top, 1.1 * top)  # both come from far below
        right.plot(x, np.where(c["margin"] > 0, c["margin"], np.nan), color=THIRD, lw=1.8, label="margin")
        right.plot(x, c["norm"], color=INK, lw=1.8, ls="--", label="norm |w|")
        right.set_yscale("log")
        for axes in (left, middle, right):
            for at, style in ((f["loss_below_ln2"], ":"), (f["generalises"], "--")):
                if at:
                    axes.axvline(at, color=QUIET, ls=style, lw=1.0, zorder=0)
            axes.set_xscale("log")
            axes.set_xlim(x[0], x[-1])
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(labelsize=9)
            axes.legend(
                frameon=False,
                fontsize=8.5,
                loc="upper left" if axes is left else "best",
                ncols=2 if axes is left else 1,
            )
    for axes, title in zip(grid[0], ("Accuracy", "Normalised margins of (last gain, head)", "Margin and norm")):
        axes.set_title(title, loc="left", fontsize=10.5)
    for axes in grid[-1]:
        axes.set_xlabel("step", fontsize=9.5)
    note = "Vertical lines: dotted where the sum of the losses falls below ln 2, dashed where 99 % of the other pairs are right"
    figure.text(0.01, -0.01, note, fontsize=9, va="top")
    return figure


def _title(options: dict[str, Any]) -> str:
    decay = f", decay {options['weight_decay']:g}" if options["weight_decay"] else ""
    return f"{options['optimizer']}{decay}, P = {options['prime']}"


def draw(runs: list[dict[str, Any]], out: Path) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        print("no matplotlib here: draw the picture elsewhere with --draw")
        return
    figure = picture(runs)
    file = out / "monitor_transformer.png"
    figure.savefig(file, bbox_inches="tight", pil_kwargs={"optimize": True})
    print(f"picture written to {file}")


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    parser.add_argument("--weight-decay", type=float, help="[2 for adamw, on a GPU 1; else 0]")
    parser.add_argument("--lr", type=float, help=f"step [{', '.join(f'{v:g} for {k}' for k, v in RATES.items())}]")
    parser.add_argument("--prime", type=int, help="P [29, on a GPU 97]")
    parser.add_argument("--share", type=float, help="of the pairs for training [0.7, on a GPU 0.5]")
    parser.add_argument("--width", type=int, help="[64, on a GPU 128]")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--steps", type=int, help="[1200, on a GPU 20000]")
    parser.add_argument("--every", type=int, help="steps between two measurements [steps / 200]")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--no-graph", dest="graph", action="store_false", help="no CUDA graph on a GPU")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="monitor_transformer", help="folder [monitor_transformer]")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out, up to --steps")
    parser.add_argument("--quick", action="store_true", help="a few seconds: too short to generalise")
    parser.add_argument("--draw", nargs="+", metavar="DIR", help="only draw these finished runs")
    options = parser.parse_args(words)
    large = options.device == "cuda" and not options.quick
    usual: dict[str, Any] = {"prime": 29, "share": 0.7, "width": 64, "steps": 1200, "weight_decay": 2.0}
    if large:
        usual = {"prime": 97, "share": 0.5, "width": 128, "steps": 20_000, "weight_decay": 1.0}
    elif options.quick:
        usual |= {"prime": 11, "width": 32, "steps": 60}
    if options.optimizer != "adamw":
        usual["weight_decay"] = 0.0
    for name, value in usual.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.lr is None:
        options.lr = RATES[options.optimizer]
    if options.every is None:
        options.every = max(1, options.steps // 200)
    return options


def main(words: list[str] | None = None) -> int:
    options = arguments(words)
    if importlib.util.find_spec("transformers") is None:
        print("this example needs the package transformers: pip install widemargin[transformers]")
        return 0
    if options.draw:
        runs = [json.loads((Path(folder) / "run.json").read_text()) for folder in options.draw]
    else:
        try:
            runs = [train(options)]
        except InputError as error:
            print(f"error: {error}")
            return 2
    for run in runs:
        print(told(run))
    Path(options.out).mkdir(parents=True, exist_ok=True)
    draw(runs, Path(options.out))
    return 0


if __name__ == "__main__":
    if code := main():
        raise SystemExit(code)
