"""CB, Section 7, of Figure 1: "The F1-max-margin classifier is non-smooth and piecewise affine ... In contrast, the max-margin
classifier in F2 has a smooth decision boundary".

Training both layers and training the output layer alone on random sets in the plane, beside the certified max-margin
classifiers of F1 and F2 (CB-28).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from widemargin import flows, margins
from widemargin.data import disks
from widemargin.papers.drawing import figure_of, tidy
from widemargin.papers.jobs import Job, Outcome, reproduction
from widemargin.papers.verdicts import UNDECIDED, Verdict
from widemargin.plots import INK, PLUS, THIRD
from widemargin.spaces import ReLU
from widemargin.types import Dataset

from .judging import LOOSE, judge, share_of
from .networks import ARMS, certified_f1, f1_margin, feature_certificate, outputs, two_layer
from .plane import draw_plane, plane_points

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# `rtol` and `flow` are the tolerance and the most steps of gradient flow, which ends earlier where it is stationary.
SIZES: dict[str, dict[str, Any]] = {
    "quick": {
        "k": 3,
        "n": 24,
        "m": 200,
        "m_output": 1000,
        "rtol": 3e-3,
        "flow": 600,
        "fine": 0,
        "sets": 6,
        "tol": 0.01,
        "grid": 261,
    },
    "paper": {
        "k": 4,
        "n": 100,
        "m": 1000,
        "m_output": 1000,
        "rtol": 3e-3,
        "flow": 800,
        "fine": 200,
        "sets": 6,
        "tol": 0.02,
        "grid": 321,
    },
}


NAMES = {"both": "both layers", "output": "output layer"}


@dataclass(frozen=True)
class FineEnd(flows.GradientFlow):
    """Gradient flow that has a tenth of the tolerance from step `fine_from` on.

    A step may be wrong by rtol |W|, which is much beside a small normalised margin: the computed one then wobbles below that
    of the flow, which cannot fall. A few finer steps bring it back.
    """

    fine_from: int = 0

    def step(self, problem: flows.Problem, W: dict[str, Tensor], state: Any) -> Any:
        rtol = self.rtol if state.step < self.fine_from else self.rtol / 10
        return flows.GradientFlow(rtol).step(problem, W, state)


# Time of the authors' 300 000 steps of Figure 1 in the clock of the flow (7), the sum of 0.5 / sqrt(t + 2).
THEIR_TIME = 546.0
FLOW_AFTER = "gradient flow instead of the authors' ascent, after the ascent had 0.890 of the maximum at seed 0"


@reproduction(
    "cb-1", paper="CB", quick=80, full=1160, claims=("CB-28",),
    shows="Figure 1: decision boundaries in the plane, both layers against output layer, four training sets",
)  # fmt: skip
def reproduce(job: Job) -> Outcome:
    size = SIZES[job.scale]
    several = size["sets"]
    sets = [disks(k=size["k"], d=3, n=size["n"], seed=several * job.seed + b, reading="code") for b in range(several)]
    line, points = plane_points(size["grid"])
    runs = {arm: _plane_run(job, arm, sets, size, points) for arm in ("both", "output")}
    best = job.keep("references", size, lambda: _references(job, sets, size, points))
    bends = {arm: np.array([bend_share(line, f) for f in runs[arm]["f"]]) for arm in runs}
    away = {
        f"{arm}_{ref}": ((runs[arm]["f"] > 0) != (best[ref] > 0)).mean(axis=(1, 2))
        for arm in runs
        for ref in ("f1", "f2")
    }
    verdicts = judge_figure_1(runs, best, bends, away)
    figure = _draw_figure_1(line, sets, runs, best)
    arrays = {f"{arm}_{key}": value for arm in runs for key, value in runs[arm].items()}
    arrays |= {f"reference_{key}": value for key, value in best.items()} | {"line": line}
    arrays |= {f"bends_{arm}": value for arm, value in bends.items()}
    arrays |= {f"away_{pair}": value for pair, value in away.items()}
    words = (
        f"Both layers against the output layer alone on random training sets in the plane, four of {several} drawn. Both "
        f"are trained by gradient flow, the dynamics of Theorem 3, until it is stationary or has taken {size['flow']} steps: "
        "after the authors' 300 000 steps of ascent neither was near its limit, and the output layer did not fit its training "
        "points. Dashed lines, which the paper could not draw, are the max-margin classifiers of F1 (with a certificate of its "
        "margin) and of F2 (of infinitely many random neurons, in closed form). Right: the margin of both layers along "
        "the flow; dotted, the time at which the authors stopped."
    )
    if size["fine"]:
        words += (
            f" The last {size['fine']} of {size['flow']} steps have a tenth of the tolerance. Before them the computed margin "
            "wobbles, which is the error of the steps: that of the flow cannot fall."
        )
    return Outcome({"figure": figure}, arrays, size | {"reading": "code"}, verdicts, words)


def judge_figure_1(
    runs: dict[str, dict[str, np.ndarray]],
    best: dict[str, np.ndarray],
    bends: dict[str, np.ndarray],
    away: dict[str, np.ndarray],
) -> list[Verdict]:
    wrong = {arm: int(runs[arm]["wrong"].sum()) for arm in runs}
    margin, lower, upper = 2 * runs["both"]["margin"][-1], best["lower"], best["upper"]  # M1
    then = 2 * runs["both"]["margin_then"] / upper
    reached = runs["output"]["margin"][-1] / best["rf"]  # M7 of the same neurons
    left = {arm: runs[arm]["neurons"] / runs[arm]["neurons_start"] for arm in runs}
    holds = share_of(margin, lower, upper, 0.9)
    return [
        Verdict(
            "Both arms fit every training point of every set at the end (number of points that are not is 0)",
            float(sum(wrong.values())),
            "the decision boundary between the two classes after training",
            sum(wrong.values()) == 0,
            f"both layers {wrong['both']}, output layer {wrong['output']}",
            chosen_after=FLOW_AFTER,
        ),
        judge(
            "The boundary of both layers is piecewise affine, that of the output layer smooth: a tenth of its length "
            "holds more of its turning (difference of shares > 0.1)",
            bends["both"] - bends["output"],
            "non-smooth and piecewise affine against smooth (Section 7), by eye",
            least=0.1,
            note=f"means {bends['both'].mean():.2f} against {bends['output'].mean():.2f}",
        ),
        judge(
            "Solutions in F1 are sparse: what training leaves of the effective number of directions is, for both layers, below "
            "half of what it is for the output layer",
            left["both"] / left["output"],
            "the mass constraint favours sparse solutions",
            most=0.5,
            note=f"both layers {left['both'].mean():.3f} of the start, {runs['both']['neurons'].mean():.1f} directions; "
            f"output layer {left['output'].mean():.3f}",
        ),
        judge(
            "Both layers: the classifier is that of F1, not of F2 (share of the plane where its sign differs from F2's "
            "minus that where it differs from F1's is above 0)",
            away["both_f2"] - away["both_f1"],
            "leads to a max margin classifier in F1",
            least=0.0,
            note=f"{away['both_f1'].mean():.3f} from F1, {away['both_f2'].mean():.3f} from F2",
        ),
        judge(
            "Output layer: the classifier is that of F2, not of F1 (share of the plane where its sign differs from F1's "
            "minus that where it differs from F2's is above 0)",
            away["output_f1"] - away["output_f2"],
            "leads to a max margin classifier in F2",
            least=0.0,
            note=f"{away['output_f2'].mean():.3f} from F2, {away['output_f1'].mean():.3f} from F1",
            chosen_after=FLOW_AFTER
            + "; at the quick scale its width, the paper's 1000, after 100 had been undecided there",
        ),
        Verdict(
            "Output layer: the limit is the max margin of its random neurons (least share of the certified maximum at the "
            "end at least 0.99)",
            float(reached.min()),
            "converges to the max-margin classifier of its random features (Section 5)",
            bool((reached >= 0.99).all()),
            f"largest {reached.max():.6f}",
            chosen_after=FLOW_AFTER,
        ),
        Verdict(
            "Both layers: margin at the end over the certified maximum, least of the sets (at least 0.9)",
            float((margin / upper).min()),
            "max margin (Theorem 3)",
            holds,
            f"mean {(margin / upper).mean():.3f}, certified to {float((1 - lower / upper).max()):.1%}; at the authors' "
            f"time least {then.min():.3f}, mean {then.mean():.3f}",
            LOOSE if holds == UNDECIDED else "",
            FLOW_AFTER
            + "; at the quick scale m = 200 after m = 100 had ended at 0.872 on a set of seed 5; at the papers' scale "
            "a tenth of the tolerance in the last 200 steps, after seeds 0 and 7919 had ended at 0.732 and 0.878 without, by "
            "margins that fell, as those of the flow cannot (so 7919 played a part; docs/reproductions.md has seed 31)",
        ),
    ]


def _draw_figure_1(
    line: np.ndarray, sets: list[Dataset], runs: dict[str, dict[str, np.ndarray]], best: dict[str, np.ndarray]
) -> Figure:
    shown = min(4, len(sets))
    figure = figure_of(2.35 * shown + 3.2, 5.2)
    grid = figure.add_gridspec(2, shown + 1, width_ratios=[1] * shown + [1.3])
    for row, arm in enumerate(runs):
        ref = "f1" if arm == "both" else "f2"
        for b in range(shown):
            axes = figure.add_subplot(grid[row, b])
            draw_plane(axes, line, runs[arm]["f"][b], (sets[b].X, sets[b].y))
            axes.contour(line, line, best[ref][b], levels=[0], colors=[THIRD], linewidths=1.2, linestyles="--")
            if b == 0:
                axes.set_ylabel(NAMES[arm], fontsize=11)
    axes = figure.add_subplot(grid[:, shown])
    time, share = runs["both"]["time"], 2 * runs["both"]["margin"] / best["upper"]
    for b in range(len(sets)):
        axes.plot(time[:, b].clip(1e-3), share[:, b], color=PLUS, lw=1.2, alpha=0.7)
    axes.axvline(THEIR_TIME, color=INK, lw=1, ls=":")
    axes.axhline(1, color=THIRD, lw=1.2)
    axes.set_xscale("log")
    axes.set_xlim(left=1)
    axes.set_ylim(0, 1.05)
    axes.set_xlabel("time of the flow")
    axes.set_title("share of the certified maximum", fontsize=10)
    tidy(axes)
    figure.suptitle("Solid: trained. Dashed green: max margin (top F1, bottom F2)", fontsize=10)
    return figure


def _plane_run(job: Job, arm: str, sets: list[Dataset], size: dict[str, Any], points: np.ndarray) -> dict[str, Any]:
    def compute() -> dict[str, Any]:
        m = size["m_output" if arm == "output" else "m"]
        traj = job.train(
            f"train-{arm}",
            sets,
            two_layer(3, m, ARMS[arm]),
            FineEnd(size["rtol"], fine_from=size["flow"] - size["fine"]),
            loss="exp",
            stop=flows.Stop(size["flow"], until="stationary"),
            record=flows.Record(["margins", "train_error", "t_cb"], points=80),
            # the flow of an output layer is small and waits for the host at every step
            device="cpu" if arm == "output" else job.device,
        )
        start = two_layer(3, m, "both").init(len(sets), job.seed)  # an output layer alone starts at 0
        margin = traj["margin_M7_raw"] if arm == "output" else f1_margin(traj)  # (T, B)
        time = traj["t_cb"] / m  # CB's own, see flows.rules
        return {
            "f": np.stack([outputs(job, traj, b, points).reshape(size["grid"], -1) for b in range(len(sets))]),
            "neurons": [effective_directions(traj.final["a"][b], traj.final["V"][b]) for b in range(len(sets))],
            "neurons_start": [effective_directions(start["a"][b], start["V"][b]) for b in range(len(sets))],
            "margin": margin,
            "time": time,
            "margin_then": [np.interp(THEIR_TIME, time[:, b], margin[:, b]) for b in range(len(sets))],
            "wrong": (traj["train_error"][-1] * size["n"]).round(),
        }

    return job.keep(f"plane-{arm}", size | {"train": ARMS[arm]}, compute)


def _references(job: Job, sets: list[Dataset], size: dict[str, Any], points: np.ndarray) -> dict[str, Any]:
    """Max-margin classifiers of F1 and F2 on the grid, certified F1 margins (M1), and margins of the random neurons (M7)."""
    f1s = [certified_f1(job, data, size["tol"], 30) for data in sets]
    V = two_layer(3, size["m_output"], "output").init(len(sets), job.seed)["V"]
    shape = (size["grid"], size["grid"])
    return {
        "f1": np.stack([cert.primal(points).reshape(shape) for cert in f1s]),  # type: ignore[misc]
        "f2": np.stack([kernel_classifier(data, points).reshape(shape) for data in sets]),
        "rf": [feature_certificate(data, V[b]).lower for b, data in enumerate(sets)],
        "lower": [cert.lower for cert in f1s],
        "upper": [cert.upper for cert in f1s],
    }


def kernel_classifier(data: Dataset, points: np.ndarray) -> np.ndarray:
    """The max-margin classifier of F2: of infinitely many random neurons. (Their lengths only multiply the kernel.)"""
    weights = np.asarray(margins.f2(data).extra["alpha"]) * data.y
    return np.concatenate([ReLU().kernel(part, data.X) @ weights for part in np.array_split(points, 20)])


def effective_directions(a: np.ndarray, V: np.ndarray, degrees: float = 2.0) -> float:
    """1 / the probability that two neurons, drawn by their mass |a| |v|, have one sign and directions within some degrees."""
    norm = np.linalg.norm(V, axis=1).clip(1e-300)
    share = np.abs(a) * norm
    share = share / share.sum()
    unit = V / norm[:, None]
    same = (unit @ unit.T >= math.cos(math.radians(degrees))) & (np.sign(a)[:, None] == np.sign(a))
    return float(1 / (share @ same @ share))


def bend_share(line: np.ndarray, f: np.ndarray, chord: float = 0.025, top: float = 0.1) -> float:
    """Share of the boundary's total turning that its `top` share of most bent vertices hold, chords of equal length.

    1 for few straight pieces with corners, about 0.2 to 0.4 for a smooth curve.
    """
    from contourpy import contour_generator

    turns = []
    for path in contour_generator(line, line, f).lines(0.0):
        path = np.asarray(path)
        along = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(path, axis=0), axis=1))])
        count = int(along[-1] / chord)
        if count < 3:
            continue
        even = np.column_stack([np.interp(np.linspace(0, along[-1], count + 1), along, path[:, c]) for c in (0, 1)])
        step = np.diff(even, axis=0)
        angle = np.arctan2(step[:, 1], step[:, 0])
        turns.append(np.abs((np.diff(angle) + math.pi) % (2 * math.pi) - math.pi))
    if not turns:
        return math.nan
    each = np.sort(np.concatenate(turns))[::-1]
    return float(each[: max(1, round(top * len(each)))].sum() / max(each.sum(), 1e-300))
