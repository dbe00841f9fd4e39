"""UH, Theorem 1.1, part 2, formally Theorem 3.6: "If there exists a time t with L(w(t)) < l(0)/n, then L(w(s)) -> 0 and the
smooth margin ... is nondecreasing".

Smooth margins of partially homogeneous networks along gradient descent, with smaller and smaller steps (UH-18).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap

from widemargin.flows import losses
from widemargin.papers.drawing import figure_of, log_axis
from widemargin.papers.jobs import Arrays, Job, Outcome, reproduction
from widemargin.papers.statistics import two_errors
from widemargin.papers.verdicts import Verdict, either, own
from widemargin.plots import INK, MINUS, PLUS

from .deep_networks import CLASSES, HIDDEN, INPUTS, MAPS, TOKENS, WIDE, Params, start

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES: dict[str, dict[str, Any]] = {
    "quick": {"seeds": 8, "until": 20.0, "steps": (0.1, 0.05, 0.025), "n": 20, "looks": 20},
    "paper": {"seeds": 16, "until": 20.0, "steps": (0.1, 0.05, 0.025), "n": 20, "looks": 40},
}


FLOOR = 1e-6  # falls smaller than this are drawn there
BEGIN = 1.0  # S = -ln(sum of losses) from which on margins are followed; the theorem begins at -ln ln 2 = 0.37
HATS = {"resnet": ("gain", "shift", "head"), "transformer": ("gain", "head")}  # in these f is 2-homogeneous


def soft_margins(kind: str, W: Params, x: Tensor, labels: Tensor) -> Tensor:
    """p_i = f_y - logsumexp of the others (n,), so that cross-entropy is ln(1 + e^-p)."""
    F = MAPS[kind](W, x) * W["gain"]
    f = (F + W["shift"] if "shift" in W else F) @ W["head"]
    return losses.class_margin(f, labels)[0]


def log_sum(kind: str, W: Params, x: Tensor, labels: Tensor) -> Tensor:
    """ln of the sum of the losses: n times the risk."""
    return losses.log_sum(losses.LOGISTIC, soft_margins(kind, W, x, labels))


def length2(W: Params, names: Sequence[str]) -> Tensor:
    return torch.stack([W[name].square().sum() for name in names]).sum()


@reproduction(
    "uh-monotone", paper="UH", quick=45, full=60, claims=("UH-18",),
    shows="Theorem 3.6: the normalised margin of a residual network and a transformer never falls",
)  # fmt: skip
def reproduce(job: Job) -> Outcome:
    size = SIZES[job.scale]
    measured: Arrays = {"steps": np.array(size["steps"])}
    for kind in MAPS:
        for h in size["steps"]:
            key = {name: size[name] for name in ("seeds", "until", "n", "looks")} | {"kind": kind, "h": h}
            row = job.keep(f"{kind}-{h}", key, lambda kind=kind, h=h: descend(kind, h, size, job.seed, job.device))  # type: ignore[misc]
            measured |= {f"{kind}_{h}_{name}": values for name, values in row.items()}
    settings = size | {
        "width": WIDE, "hidden": HIDDEN, "classes": CLASSES, "inputs": INPUTS, "tokens": TOKENS, "dtype": "float64",
        "clock": "GD on all parameters with step h / ||grad S||^2 times grad S, S = -ln(sum of losses): gradient flow in the "
        "clock of S, which raises S by h a step and lets the loss fall far below what fixed steps reach",
        "labels": "random, so that the networks must fit them with all of their parameters",
    }  # fmt: skip
    words = (
        "w_hat is the gain (and shift) of the last normalisation and the head, in which the outputs are 2-homogeneous. "
        "p = f_y - logsumexp of the other outputs is not, but <dp, w_hat> = 2 (p + entropy) >= 2 p, which the proof needs. "
        "At large steps the normalised margin dips a little; the dips shrink with the step, and along the flow its rate is "
        "never negative. Divided by the wrong power of the norm it falls. Divided by the norm of an inner matrix it does not "
        "fall, because the matrix hardly grows: monotone is not yet meaningful, as UH says of its definition."
    )
    return Outcome({"uh-monotone": draw_monotone(measured)}, measured, settings, judge_monotone(measured), words)


def descend(kind: str, h: float, size: Mapping[str, Any], seed: int, device: str) -> Arrays:
    """psi / |w_hat|^2, the same with the power 4, |w_hat|, psi / |A|^2 of an inner matrix: (steps, B); rates of the first two."""
    B, n = size["seeds"], size["n"]
    rng = np.random.default_rng([seed, 1])
    x = torch.as_tensor(
        rng.standard_normal((B, n, INPUTS) if kind == "resnet" else (B, n, TOKENS, INPUTS)), device=device
    )
    labels = torch.as_tensor(rng.integers(CLASSES, size=(B, n)), device=device)
    W = {name: torch.as_tensor(value, device=device) for name, value in start(kind, B, seed).items()}
    hat, inner = HATS[kind], ("A1",) if kind == "resnet" else ("A",)

    def up(W: Params, x: Tensor, labels: Tensor) -> Tensor:
        return -log_sum(kind, W, x, labels)  # S

    def quotients(W: Params, x: Tensor, labels: Tensor) -> Tensor:
        psi = losses.LOGISTIC.inverse(log_sum(kind, W, x, labels))
        size2 = length2(W, hat)
        return torch.stack([psi / size2, psi / size2**2, size2.sqrt(), psi / length2(W, inner)])

    climb, values = vmap(grad(up)), vmap(up)
    look, slopes = vmap(quotients), vmap(jacrev(quotients))
    W = fit(W, climb, values, x, labels)
    steps = round(size["until"] / h)
    looked = set(np.linspace(0, steps - 1, size["looks"]).round().astype(int).tolist())
    rows, rates = [look(W, x, labels)], []
    for step in range(steps):
        g = climb(W, x, labels)
        square = sum(gradient.flatten(1).square().sum(1) for gradient in g.values())
        if step in looked:
            J = slopes(W, x, labels)
            along = sum((J[name] * g[name][:, None]).flatten(2).sum(2) for name in g)  # (B, 4)
            rates.append(along / square[:, None] / rows[-1])  # of ln(quotient), in the clock of S
        W = {name: value + (h / square).view(-1, *[1] * (value.dim() - 1)) * g[name] for name, value in W.items()}
        rows.append(look(W, x, labels))
    series = torch.stack(rows).cpu().numpy()  # (steps + 1, B, 4)
    return {"series": series, "rates": torch.stack(rates).cpu().numpy()}


def fit(W: Params, climb: Any, values: Any, x: Tensor, labels: Tensor, most: int = 2000) -> Params:
    """Adam until every sum of losses is below e^-1 < l(0) = ln 2, where the theorem has begun. It does not speak of the way."""
    first = {name: torch.zeros_like(value) for name, value in W.items()}
    second = dict(first)
    for step in range(1, most + 1):
        done = values(W, x, labels) > BEGIN
        if bool(done.all()):
            break
        g = climb(W, x, labels)
        first = {name: 0.9 * first[name] + 0.1 * g[name] for name in g}
        second = {name: 0.99 * second[name] + 0.01 * g[name] ** 2 for name in g}
        for name in W:
            move = first[name] / (1 - 0.9**step) / ((second[name] / (1 - 0.99**step)).sqrt() + 1e-8)
            W = W | {name: W[name] + 0.01 * torch.where(done.view(-1, *[1] * (move.dim() - 1)), 0.0, move)}
    return W


def drop(series: np.ndarray) -> np.ndarray:
    """The largest fall below an earlier value, relative to it: (steps, ...) -> (...)."""
    top = np.maximum.accumulate(series, axis=0)
    return np.asarray(((top - series) / np.abs(top)).max(axis=0))


def judge_monotone(measured: Arrays) -> list[Verdict]:
    steps, out = measured["steps"], []
    for kind in MAPS:
        falls = np.array([drop(measured[f"{kind}_{h}_series"])[:, 0] for h in steps])  # (steps, B)
        wrong = float(drop(measured[f"{kind}_{steps[-1]}_series"])[:, 1].max())
        often = float((np.diff(measured[f"{kind}_{steps[-1]}_series"][:, :, 0], axis=0) < 0).mean())
        rates = measured[f"{kind}_{steps[-1]}_rates"]
        least, _, grows, _ = rates.min(axis=(0, 1))
        before = falls.max(axis=0)
        left = falls[-1][before > 0] / before[before > 0]  # at most 1, for every seed that falls at some step
        mean, two = (float(left.mean()), float(two_errors(left))) if len(left) else (0.0, 0.0)
        out += [
            Verdict(
                f"{kind}: psi/|w_hat|^2 does not fall along the flow (least d ln/dS at the records >= -1e-10)",
                float(least), "nondecreasing", bool(least >= -1e-10),
            ),
            Verdict(
                f"{kind}: |w_hat| grows along the flow (least d ln/dS at the records > 0)",
                float(grows), "> 0", bool(grows > 0),
            ),
            Verdict(
                f"{kind}: falls under GD are the error of its steps (what the smallest step leaves of the largest fall, mean "
                "over the seeds that fall; at most half by 2 s.e., or no fall at all)",
                mean, "nondecreasing", either(not falls[-1].any() or mean + two <= 0.5, mean - two > 0.5),
                f"+- {two:.2g}, {len(left)} of {falls.shape[1]} seeds fall; largest falls "
                f"{', '.join(f'{fall:.2g}' for fall in falls.max(axis=1))}; {often:.1%} of the smallest steps dip",
                chosen_after="the number of seeds at the quick scale, raised from 4 when of those few fell at all",
            ),
            Verdict(
                f"{kind}: control: the same test fails with the wrong power, psi/|w_hat|^4 (largest fall > 1%)",
                wrong, "not claimed", own(wrong > 0.01), f"least rate {float(rates[:, :, 1].min()):.2g}",
                "shows that the first test can fail" if wrong > 0.01 else "the first test cannot fail here",
            ),
        ]  # fmt: skip
    return out


def draw_monotone(measured: Arrays) -> Figure:
    steps = measured["steps"]
    figure = figure_of(11.5, 3.9)
    panels = figure.subplots(1, 3)
    for axes, kind in zip(panels, MAPS):
        h = steps[-1]
        series = measured[f"{kind}_{h}_series"]
        clock = h * np.arange(len(series))
        for column, colour, style, name in (
            (0, PLUS, "-", r"$\psi/|\hat w|^2$"),
            (1, MINUS, "--", r"wrong power: $\psi/|\hat w|^4$"),
        ):
            lines = series[:, :, column] / series[0, :, column]
            for b in range(lines.shape[1]):
                axes.plot(clock, lines[:, b], style, color=colour, lw=1.3, alpha=0.8, label=name if b == 0 else None)
        axes.set_yscale("log")
        log_axis(axes.yaxis)
        axes.set_xlabel(r"$-\ln$(sum of losses) gained")
        axes.set_title({"resnet": "residual network", "transformer": "transformer"}[kind], loc="left", fontsize=11)
        axes.legend(frameon=False, fontsize=9, loc="lower right")
    panels[0].set_ylabel("over its value at the start")
    for kind, colour, style in (("resnet", PLUS, "o-"), ("transformer", MINUS, "s-")):
        falls = np.array([drop(measured[f"{kind}_{h}_series"])[:, 0].max() for h in steps])
        panels[2].plot(
            steps, falls.clip(FLOOR), style, color=colour, label={"resnet": "residual network"}.get(kind, kind)
        )
        if kind == "resnet":
            panels[2].plot(steps, falls[0] * (steps / steps[0]) ** 2, ":", color=INK, lw=1, label=r"$h^2$")
    panels[2].set_xscale("log")
    panels[2].set_yscale("log")
    panels[2].set_xticks(steps, [f"{h:g}" for h in steps])
    panels[2].set_xticks([], minor=True)
    panels[2].set_xlabel("step h of S")
    panels[2].set_ylabel("largest relative fall (none drawn as 1e-6)")
    panels[2].set_title(r"Falls of $\psi/|\hat w|^2$ under GD", loc="left", fontsize=11)
    panels[2].legend(frameon=False, fontsize=9)
    return figure
