"""What Figures 2b and 2c share: test errors of both layers and of the output layer on the same sets, drawn and judged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from widemargin import flows
from widemargin.papers.drawing import figure_of, tidy
from widemargin.papers.jobs import Job
from widemargin.papers.statistics import interval
from widemargin.papers.verdicts import UNDECIDED, Holds, Verdict
from widemargin.plots import MINUS, PLUS, THIRD
from widemargin.types import Dataset

from .judging import decide
from .networks import ARMS, authors_ascent, feature_classifier, outputs, two_layer

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def error_of(f: np.ndarray, y: np.ndarray) -> float:
    """P(y f < 0), ties counted as correct, as in the authors' code."""
    return float((y * f < 0).mean())


STYLES = {
    "output": ("output layer, in the limit", MINUS, "s-", 2.6),
    "stopped": ("output layer, after the steps", THIRD, "^--", 1.6),
    "both": ("both layers", PLUS, "o-", 2.6),
}


def measure_errors(
    job: Job, size: dict[str, Any], tests: Sequence[tuple[str, list[Dataset], list[Dataset]]]
) -> dict[str, np.ndarray]:
    """Test errors (values, trials) with the shares of training points that are wrong, of

    both       both layers after the authors' steps
    stopped    the output layer after as many
    output     the output layer in the limit of its training: the max-margin classifier of the same random neurons
    """
    errors: dict[str, list[np.ndarray]] = {name + end: [] for name in STYLES for end in ("", "_train")}
    for name, sets, held_out in tests:
        for arm in STYLES:

            def compute(
                arm: str = arm, sets: list[Dataset] = sets, held_out: list[Dataset] = held_out
            ) -> dict[str, Any]:
                if arm == "output":
                    V = two_layer(sets[0].d, size["m"], "output").init(len(sets), job.seed)["V"]
                    fs = [
                        feature_classifier(data, V[b], np.vstack([data.X, held_out[b].X]))
                        for b, data in enumerate(sets)
                    ]
                else:
                    traj = flows.train(
                        sets,
                        two_layer(sets[0].d, size["m"], ARMS["output" if arm == "stopped" else arm]),
                        authors_ascent(size),
                        loss="exp",
                        stop=size["steps"],
                        record=flows.Record(["train_error"], times=[size["steps"]]),
                        device=job.device,
                        seed=job.seed,
                    )
                    fs = [
                        outputs(job, traj, b, np.vstack([data.X, held_out[b].X])) for b, data in enumerate(sets)
                    ]  # training points first
                return {
                    "train": [error_of(f[: data.n], data.y) for f, data in zip(fs, sets)],
                    "test": [error_of(f[data.n :], other.y) for f, data, other in zip(fs, sets, held_out)],
                }

            kept = job.keep(f"{name}-{arm}", size | {"at": name, "train": ARMS.get(arm, arm)}, compute)
            errors[arm].append(kept["test"])
            errors[f"{arm}_train"].append(kept["train"])
    return {key: np.array(value) for key, value in errors.items()}


def advantages(values: Sequence[int], letter: str, errors: dict[str, np.ndarray]) -> list[Verdict]:
    """Both layers against the output layer, in the limit and stopped, at every value of n or d."""
    return [_advantage(values, letter, errors, over, name) for over, name in (("output", LIMIT), ("stopped", STOPPED))]


def _advantage(values: Sequence[int], letter: str, errors: dict[str, np.ndarray], over: str, name: str) -> Verdict:
    """Test error of `over` minus that of both layers above 0 at every value: all intervals above, or one below, or neither."""
    gaps = [interval(row) for row in errors[over] - errors["both"]]
    each = [decide(low, high, 0.0, math.inf) for _, low, high in gaps]
    holds: Holds = True if all(answer is True for answer in each) else False if False in each else UNDECIDED
    worst = min(range(len(values)), key=lambda i: gaps[i][1])
    open_at = [f"{letter} = {value}" for value, answer in zip(values, each) if answer == UNDECIDED]
    mean, low, high = gaps[worst]
    return Verdict(
        f"Mean test error of both layers below that of {name}, at every {letter}",
        mean,
        f"the superiority of training both layers (for all {letter})",
        holds,
        f"least sure difference, at {letter} = {values[worst]}: 95 percent in [{low:.3g}, {high:.3g}], {errors[over].shape[1]} "
        f"trials; largest {max(gap[0] for gap in gaps):.3g}",
        f"the interval has 0 in it at {', '.join(open_at)}" if holds == UNDECIDED else "",
    )


def fitted(errors: dict[str, np.ndarray]) -> Verdict:
    """Whether a comparison of test errors is one of interpolating classifiers."""
    wrong = {arm: float(errors[f"{arm}_train"].max()) for arm in STYLES}
    return Verdict(
        "Both layers, and the output layer in the limit, fit every training point (largest training error of a trial is 0)",
        max(wrong["both"], wrong["output"]),
        "after training",
        max(wrong["both"], wrong["output"]) == 0,
        f"the output layer stopped after the steps has {errors['stopped_train'].mean():.2g} in the mean, {wrong['stopped']:.2g} "
        "at most",
    )


LIMIT = "the output layer in the limit of its training (the max margin of the same random neurons)"
STOPPED = "the output layer stopped after the same steps, as the authors did"


def draw_errors(values: Sequence[int], errors: dict[str, np.ndarray], xlabel: str, log: bool) -> Figure:
    figure = figure_of(5.2, 3.8)
    axes = figure.subplots()
    for arm, (name, colour, style, width) in STYLES.items():
        if arm != "stopped":
            axes.plot(values, errors[arm], color=colour, lw=0.6, alpha=0.35, ls="--")
        axes.plot(values, errors[arm].mean(1), style, color=colour, lw=width, ms=5, label=name)
    if log:
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
    axes.set_xticks(list(values), [str(value) for value in values])
    axes.set_ylim(bottom=0)
    axes.set_xlabel(xlabel)
    axes.set_ylabel("test error")
    axes.legend(frameon=False, fontsize=10)
    tidy(axes)
    return figure


OUTPUT_WORDS = (
    "The authors stop the output layer after the same number of steps as both layers, where it has not fitted its training "
    "points; in the limit it is the max-margin classifier of its random neurons, which is computed."
)
