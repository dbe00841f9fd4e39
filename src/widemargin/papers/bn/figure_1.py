"""BN, caption of Figure 1: "gamma_a contributes most of the value to gamma as gamma_c is relatively tiny".

Margins of batch-normalised networks on cats and dogs against width, certified, and beside them what Adam reaches (BN-24).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from widemargin import data, margins
from widemargin.papers.drawing import figure_of, width_axis
from widemargin.papers.jobs import Arrays, Job, Outcome, reproduction
from widemargin.papers.statistics import two_errors
from widemargin.papers.verdicts import NOT_INFORMATIVE, UNDECIDED, Verdict, either, own
from widemargin.plots import INK, MINUS, PLUS
from widemargin.types import Dataset

from .features import features

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES: dict[str, dict[str, Any]] = {
    "quick": {"n": 150, "widths": (128, 256, 512, 1024), "seeds": 5, "steps": 3000, "moved": 512},
    "paper": {"n": 1000, "widths": (512, 1024, 2048, 4096, 8192), "seeds": 5, "steps": 30_000, "moved": 2048},
}


RATES = (0.01, 0.02, 0.05, 0.1)  # of Adam; the paper's range, the best for every width is kept
FAIR = 10_000  # BN takes 10000 to 30000 steps of Adam: what it says of its margins begins there


@reproduction(
    "bn-1", paper="BN", quick=25, full=150, claims=("BN-24",),
    shows="Figure 1: gamma_a and gamma_c against width on CIFAR-10 cats and dogs, certified beside Adam",
)  # fmt: skip
def reproduce(job: Job) -> Outcome:
    """gamma_a, gamma_c of Assumption 1.2 (M9): the certified optimum, and BN's estimate by reference networks (BN-24)."""
    size = SIZES[job.scale]
    sets = [data.cifar_cats_dogs(n=size["n"], seed=job.seed + s, unit=True) for s in range(size["seeds"])]
    rows = []
    for m in size["widths"]:
        key = {"m": m, "sets": [data.sha256() for data in sets], "moved": size["moved"]}
        exact = job.keep(f"exact-{m}", key, lambda m=m: certified(sets, m, job.seed, m <= size["moved"]))  # type: ignore[misc]
        key |= {"steps": size["steps"], "early": size["steps"] // 3, "rates": RATES}
        adam = job.keep(f"adam-{m}", key, lambda m=m: reference(sets, m, size["steps"], job.seed, job.device))  # type: ignore[misc]
        rows.append(exact | adam)
    measured = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    measured["widths"] = np.array(size["widths"])
    settings = size | {
        "data": [data.name for data in sets],
        "rates": RATES,
        "eps": 0.0,
        "open": "The paper names neither the widths, nor the rate and number of steps of each width, nor whether seeds share "
        "their points. Here a seed draws points and weights, all widths share them, and of the paper's range of rates the one "
        "with the largest margin is kept for every width and seed.",
    }
    words = (
        "The paper estimates gamma_a and gamma_c from below, by networks trained with Adam. With frozen inner weights both are "
        "hard margins of convex problems, so the optimum can be certified; it is drawn beside Adam's estimate. Inner weights "
        "that may move within Delta_V <= gamma / 32 are bounded from above as well."
    )
    return Outcome(
        {"bn-1": draw_figure_1(measured)}, measured, settings, judge_figure_1(measured, size["steps"]), words
    )


def certified(sets: Sequence[Dataset], m: int, seed: int, moved: bool) -> Arrays:
    """Bounds (S, 2) of gamma_a, gamma_c with frozen inner weights; for the first set also with Delta_V <= gamma / 32."""
    certs = [margins.batchnorm(data, m, seed=seed, trial=s) for s, data in enumerate(sets)]
    out = {
        f"gamma_{part}": np.array([[cert.extra[f"gamma_{part}"][end] for end in ("lower", "upper")] for cert in certs])
        for part in ("a", "c")
    }
    out["eps_N"] = np.array([cert.extra["eps_N"] for cert in certs])
    out["moved"] = np.full(2, np.nan)  # bounds of gamma_a + gamma_c
    if moved and certs[0].lower > 0:
        more = margins.batchnorm(sets[0], m, seed=seed, displacement=certs[0].lower / 32, moves=4)
        out["moved"] = np.array([more.lower, more.upper])
    return out


def reference(sets: Sequence[Dataset], m: int, steps: int, seed: int, device: str) -> Arrays:
    """Margins (S, rates) of reference networks trained with Adam in float32, evaluated in float64 (BN Appendix A.2).

    At the end and, as `early`, after a third of the steps.
    """
    Z, a = (np.stack(part) for part in zip(*(features(data, m, seed, s) for s, data in enumerate(sets))))
    looks = (steps // 3, steps)
    early_a, adam_a = adam(Z, a, RATES, looks, device)
    early_c, adam_c = adam(Z * a[:, None, :], np.ones_like(a), RATES, looks, device)
    return {"adam_a": adam_a, "adam_c": adam_c, "early_a": early_a, "early_c": early_c}


def adam(
    Z: np.ndarray, start: np.ndarray, rates: Sequence[float], looks: Sequence[int], device: str
) -> list[np.ndarray]:
    """min_i (Z u)_i / (||u|| sqrt(m)) (S, rates) after each of `looks` steps, u found by Adam on the mean logistic loss.

    Z (S, n, m), start (S, m). One network per data set and rate; Adam with its default constants; the gradient is written out.
    """
    points = torch.as_tensor(Z, dtype=torch.float32, device=device)
    turned = points.mT.contiguous()
    each = [torch.tensor(start, dtype=torch.float32, device=device) for _ in rates]  # (S, m) for each rate
    optimiser = torch.optim.Adam([{"params": [u], "lr": rate} for u, rate in zip(each, rates)])
    out = []
    for step in range(1, max(looks) + 1):
        gradients = turned @ torch.sigmoid(-(points @ torch.stack(each, dim=2))) / -points.shape[1]  # (S, m, R)
        for u, gradient in zip(each, gradients.unbind(2)):
            u.grad = gradient
        optimiser.step()
        if step in looks:
            weights = torch.stack(each, dim=2).double().cpu().numpy()
            weights /= np.linalg.norm(weights, axis=1, keepdims=True)
            out.append((Z @ weights).min(axis=1) / math.sqrt(Z.shape[2]))
    return out


def judge_figure_1(measured: Arrays, steps: int) -> list[Verdict]:
    lower = {part: measured[f"gamma_{part}"][:, :, 0] for part in ("a", "c")}  # (widths, seeds)
    upper = {part: measured[f"gamma_{part}"][:, :, 1].clip(1e-300) for part in ("a", "c")}
    best = {part: measured[f"adam_{part}"].max(axis=2) for part in ("a", "c")}
    above = max(float((best[part] / upper[part]).max()) for part in ("a", "c"))
    ratio = upper["c"] / lower["a"].clip(1e-300)
    mean, two = ratio.mean(axis=1), two_errors(ratio)
    worst = int(mean.argmax())
    gap = max(float((1 - lower[part] / upper[part]).max()) for part in ("a", "c"))
    out = [
        Verdict(
            "the certified gap of gamma_a and gamma_c is below 1e-3 at every width and seed",
            gap, "-", own(gap < 1e-3), reason="a check of our solver",
        ),
        Verdict(
            "Adam's margins stay below the certified optimum (largest ratio <= 1)",
            above, "lower bounds", own(above <= 1 + 1e-9), reason="no network beats the optimum: a check of our solver",
        ),
        Verdict(
            "gamma_a carries almost everything: gamma_c / gamma_a <= 0.1 at every width (largest mean, +- 2 s.e.)",
            float(mean[worst]),
            "gamma_c is relatively tiny",
            either((mean + two <= 0.1).all(), (mean - two > 0.1).any()),
            float(two[worst]),
        ),
    ]  # fmt: skip
    for name, values in (("certified gamma_a + gamma_c", lower["a"] + lower["c"]), ("Adam's", best["a"] + best["c"])):
        rises = np.diff(values, axis=0)  # paired by seed
        mean, two = rises.mean(axis=1), two_errors(rises)
        least = int((mean - two).argmin())
        out.append(
            Verdict(
                f"larger widths are better: {name} rises from each width to the next (smallest mean rise, +- 2 s.e.)",
                float(mean[least]),
                "larger widths tend to be better",
                either((mean > two).all(), (mean < -two).any()),
                float(two[least]),
            )
        )
    out += [judge_share(measured, part, steps) for part in ("a", "c")]
    known = np.isfinite(measured["moved"][:, 1])
    if known.any():
        frozen = {end: (side["a"] + side["c"])[known, 0] for end, side in (("lower", lower), ("upper", upper))}
        gain = float((measured["moved"][known, 1] / frozen["lower"] - 1).max())
        proved = float((measured["moved"][known, 0] / frozen["upper"] - 1).max())
        out.append(
            Verdict(
                "letting V move by Delta_V <= gamma/32 raises gamma by less than 2% (proved upper bound on the rise)",
                gain, "nearly equivalent", own(proved < 0.02),
                reason="gamma_a cannot rise by more than Delta_V max|xbar|, a part of 1/32, on any data",
            )
        )  # fmt: skip
    return out


def judge_share(measured: Arrays, part: str, steps: int) -> Verdict:
    """Is Adam's margin after a third of the steps at least 0.75 of its limit, where it separates the points?

    The limit is at most the certified optimum and at least the margin at the end, so the share lies between two numbers.
    """
    last, early = measured[f"adam_{part}"], measured[f"early_{part}"]  # (widths, seeds, rates)
    rate = last.argmax(axis=2)[:, :, None]
    last, early = (np.take_along_axis(margin, rate, axis=2)[:, :, 0] for margin in (last, early))
    fits = (last > 0).all(axis=1)
    name = f"Adam's gamma_{part} is at least 0.75 of its limit at a third of its steps (worst width that it separates, +- 2 s.e.)"
    said = "at least 0.75, by extrapolation"
    if not fits.any():
        return Verdict(name, "-", said, UNDECIDED, reason="Adam separates the points of every seed at no width")
    least = early[fits] / measured[f"gamma_{part}"][fits, :, 1].clip(1e-300)  # of the optimum
    most = early[fits] / last[fits]
    low, high = int(least.mean(axis=1).argmin()), int(most.mean(axis=1).argmin())
    two, two_high = two_errors(least), two_errors(most)
    holds = either(
        (least.mean(axis=1) - two >= 0.75).all(), (most.mean(axis=1) + two_high < 0.75).any()
    )  # fmt: skip
    narrow = "" if fits.all() else f"; not judged at width {', '.join(str(m) for m in measured['widths'][~fits])}"
    reason = f"at least this share of the limit, at most {most[high].mean():.3g} +- {two_high[high]:.2g}{narrow}"
    if steps // 3 < FAIR:
        holds, reason = NOT_INFORMATIVE, f"{reason}; the paper says it of {FAIR} to {3 * FAIR} steps"
    return Verdict(name, float(least[low].mean()), said, holds, float(two[low]), reason)


def draw_figure_1(measured: Arrays) -> Figure:
    m = measured["widths"]
    figure = figure_of(11.5, 3.7)
    both, small, share = figure.subplots(1, 3)
    lines = []
    for part, colour in (("a", PLUS), ("c", MINUS)):
        exact, best = measured[f"gamma_{part}"][:, :, 0], measured[f"adam_{part}"].max(axis=2)
        lines += [(part, colour, "o-", exact, "certified"), (part, colour, "s--", best, "Adam")]
        ratio = best / measured[f"gamma_{part}"][:, :, 1].clip(1e-300)
        share.errorbar(
            m, ratio.mean(1), two_errors(ratio), fmt="s--", color=colour, capsize=3, label=rf"$\gamma_{part}$"
        )
    for part, colour, style, values, name in lines:
        filled = {"markerfacecolor": "white"} if name == "Adam" else {}
        for axes in (both, small) if part == "c" else (both,):
            axes.errorbar(
                m, values.mean(1), two_errors(values), fmt=style, color=colour, capsize=3, label=rf"$\gamma_{part}$, {name}",
                **filled,
            )  # fmt: skip
    share.axhline(0.75, color=INK, lw=1, ls=":", label="0.75, as the paper expects")
    for axes, title in (
        (both, r"$\gamma_a$ and $\gamma_c$"),
        (small, r"$\gamma_c$ alone"),
        (share, "Adam over the certified optimum"),
    ):
        width_axis(axes, m)
        axes.set_ylim(0, 1.05 if axes is share else None)
        axes.set_title(title, loc="left", fontsize=11)
        axes.legend(frameon=False, fontsize=9)
    both.set_ylabel(r"$\gamma$, mean of seeds $\pm$ 2 s.e.")
    small.set_ylabel(r"$\gamma_c$, in thousandths")
    small.yaxis.set_major_formatter(lambda value, _: f"{1000 * value:g}")
    return figure
