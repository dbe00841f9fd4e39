"""CB, caption of Figure 4: "Initializing on the invariant set D allows to avoid a = 0".

A slice of the vector field of the flow, and neurons that start on the cone D and off it (CB-31, CB-12).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from widemargin import flows
from widemargin.data import disks
from widemargin.flows.nets import trial_numbers
from widemargin.papers.drawing import figure_of, tidy
from widemargin.papers.jobs import Job, Outcome, reproduction
from widemargin.papers.verdicts import NOT_INFORMATIVE, Verdict
from widemargin.plots import INK, MINUS, PLUS, QUIET
from widemargin.types import Dataset, Trajectory

from .judging import judge
from .networks import ConstantStep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZES: dict[str, dict[str, Any]] = {
    "quick": {"sets": 12, "n": 30, "m": 200, "steps": 6000, "step": 2e-3, "ratio": 3.0},
    "paper": {"sets": 12, "n": 100, "m": 1000, "steps": 100_000, "step": 2e-4, "ratio": 3.0},
}


@dataclass(frozen=True)
class Cone(flows.TwoLayer):
    """Even trials start on D (outer a_j = +-1, inner unit v_j); odd ones off it, outer weights `ratio` times as large."""

    ratio: float = 3.0

    def init(self, trials: int | Sequence[int], seed: int) -> dict[str, np.ndarray]:
        drawn = super().init(trials, seed)
        drawn["a"][[row for row, number in enumerate(trial_numbers(trials)) if number % 2]] *= self.ratio
        return drawn


@dataclass(frozen=True)
class Inner:
    """For each trial the smallest share ||v_j|| / ||(v_j, a_j)|| and the largest |a_j^2 - ||v_j||^2| / (a_j^2 + ||v_j||^2)."""

    def __call__(self, view: flows.View) -> Tensor:
        inner, outer = view.params["V"].pow(2).sum(2), view.params["a"] ** 2
        share = (inner / (inner + outer)).sqrt().amin(1)
        return torch.stack([share, ((outer - inner).abs() / (outer + inner)).amax(1)], 1)


def field_at(w: np.ndarray, X: np.ndarray, c: np.ndarray) -> np.ndarray:
    """grad F'(w) for w = (v, b) (N, d + 1), F'(w) = b sum_i c_i relu(v . x_i), c_i = p_i y_i, p the gradient of S."""
    v, b = w[:, :-1], w[:, -1:]
    h = v @ X.T  # (N, n)
    return np.hstack([b * (((h > 0) * c) @ X), (h.clip(0) @ c)[:, None]])


@reproduction(
    "cb-4", paper="CB", quick=45, full=303, claims=("CB-31", "CB-12"),
    shows="Figure 4: slice of the vector field of a ReLU neuron, with the invariant cone |b| = ||a||",
)  # fmt: skip
def reproduce(job: Job) -> Outcome:
    size = SIZES[job.scale]
    sets = [disks(k=3, d=3, n=size["n"], seed=size["sets"] * job.seed + s, reading="code") for s in range(size["sets"])]
    data = sets[0]
    kept = job.keep("flow", size, lambda: _cone_run(job, size, sets))
    c, u, path = kept["c"], kept["u"], kept["inner"]  # (n,), (3,), (T, trials, 2)
    rng = np.random.default_rng(job.seed)
    w = rng.standard_normal((20_000, 4))
    grad = field_at(w, data.X, c)
    change = (w[:, :3] * grad[:, :3]).sum(1) - w[:, 3] * grad[:, 3]
    scale = np.linalg.norm(w, axis=1) * np.linalg.norm(grad, axis=1).clip(1e-300)
    verdicts = judge_4(float(np.abs(change / scale).max()), path, kept["finer"], size["ratio"])
    figure = figure_of(9.6, 4.5)
    axes, times = figure.subplots(1, 2, width_ratios=[1.1, 1])
    _draw_slice(axes, u, data.X, c)
    for b, (colour, style, name) in enumerate(((PLUS, "-", "start on D"), (MINUS, "--", "start off D"))):
        times.plot(kept["t"][1:], path[1:, b, 0], color=colour, ls=style, lw=2, label=name)
    times.axhline(math.sqrt(0.5), color=QUIET, lw=0.8, ls=":")
    times.annotate(
        r"$1/\sqrt{2}$",
        (1, math.sqrt(0.5)),
        (-3, 3),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        ha="right",
        fontsize=9,
    )
    times.set_xlim(0, kept["t"][-1])
    times.set_ylim(0, 0.8)
    times.set_xlabel("iterations")
    times.set_ylabel(r"smallest $\|a_j\| / \|w_j\|$ over neurons")
    times.legend(frameon=False, fontsize=9.5, loc="center left")
    tidy(times)
    words = (
        "Left: grad F' of a trained network on the plane of (s, b), neurons (s u, b) with u the direction of its "
        "heaviest neuron; only the part of the field "
        "in that plane is drawn. The field is homogeneous and is tangent to |b| = |s|, so a neuron that starts there "
        "never meets a = 0, where the ReLU is not "
        "differentiable. Right: the same in training. The paper's figure is an illustration without settings."
    )
    return Outcome({"figure": figure}, kept, size | {"k": 3, "d": 3}, verdicts, words)


def judge_4(leaving: float, inner: np.ndarray, finer: np.ndarray, ratio: float) -> list[Verdict]:
    """From the records of `Inner` (T, trials, 2), even trials on D and odd ones off it, at a step and at half of it."""
    on, off = inner[:, ::2], inner[:, 1::2]
    drift = on[:, :, 1].max(0), finer[:, ::2, 1].max(0)  # (sets,) each
    fallen = off[:, :, 0].min(0) / off[0, :, 0]
    return [
        Verdict(
            "||a||^2 - b^2 does not change along the field: a . grad_a - b grad_b over the lengths, largest of 20000 "
            "points (below 1e-12)",
            leaving,
            "||A||^2 - |B|^2 is constant (Lemma 26)",
            NOT_INFORMATIVE if leaving < 1e-12 else False,
            reason="an identity for every 2-homogeneous neuron: a test of our field, not of the paper"
            if leaving < 1e-12
            else "",
        ),
        judge(
            "A network that starts on D stays there: what it leaves D by in training, largest |b^2 - ||a||^2| / (b^2 + ||a||^2) "
            "over neurons and times, is that of finite steps and goes to 0 with them (its exponent in the step is above 0.5)",
            np.log2(drift[0] / drift[1].clip(1e-300)),
            "spt(mu_t) in D for all t",
            least=0.5,
            note=f"at most {drift[0].max():.3g}, with half of the step {drift[1].max():.3g}",
        ),
        Verdict(
            "On D neurons keep away from a = 0: smallest ||a|| / ||w|| over neurons, times and sets is above 0.65",
            float(on[:, :, 0].min()),
            "initializing on D allows to avoid a = 0",
            bool(on[:, :, 0].min() > 0.65),
            "1/sqrt 2 on D itself",
        ),
        judge(
            "Off D they do not: the smallest ||a|| / ||w|| falls below half of its start",
            fallen,
            "initializing on D allows to avoid a = 0",
            most=0.5,
            note=f"|b| = {ratio:g} ||a|| at the start, {off[0, :, 0].mean():.3g}; least {off[:, :, 0].min():.3g}",
            chosen_after="the number of sets, after 4 had been undecided at seed 0 of the quick scale",
        ),
    ]


def _cone_run(job: Job, size: dict[str, Any], sets: list[Dataset]) -> dict[str, Any]:
    def run(parts: int) -> Trajectory:
        """The same time in steps that are this much smaller."""
        steps = size["steps"] * parts
        return flows.train(
            [data for data in sets for _ in ("on", "off")],
            Cone(3, size["m"], law="sphere", mean_field=True, ratio=size["ratio"]),
            ConstantStep(size["step"] / parts),
            loss="exp",
            stop=steps,
            record=flows.Record(
                {"inner": Inner(), "q": None}, times=[float(t) for t in np.unique(np.linspace(0, steps, 400).round())]
            ),
            device=job.device,
            seed=job.seed,
        )

    traj = run(1)
    a, V = traj.final["a"][0], traj.final["V"][0]
    heaviest = int(np.argmax(np.abs(a) * np.linalg.norm(V, axis=1)))
    return {
        "t": traj.t,
        "inner": traj["inner"],
        "finer": run(2)["inner"],
        "c": traj["q"][-1, 0] * sets[0].y,
        "u": V[heaviest] / np.linalg.norm(V[heaviest]),
    }


def _draw_slice(axes: Axes, u: np.ndarray, X: np.ndarray, c: np.ndarray) -> None:
    line = np.linspace(-1, 1, 17)
    s, b = (grid.ravel() for grid in np.meshgrid(line, line))

    def part(s: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        grad = field_at(np.column_stack([s[:, None] * u, b]), X, c)
        return grad[:, :3] @ u, grad[:, 3]

    along, outer = part(s, b)
    axes.quiver(s, b, along, outer, color=QUIET, angles="xy", pivot="mid", width=0.004)
    for sign in (1, -1):
        axes.plot(
            [-1.15, 1.15],
            [-sign * 1.15, sign * 1.15],
            color=INK,
            lw=1.4,
            label="D: $|b| = \\|a\\|$" if sign == 1 else None,
        )
    axes.axvline(0, color=INK, lw=0.6, ls=":")
    up = 1.0 if (X @ u).clip(0) @ c >= 0 else -1.0
    for begin, colour, name in (
        ((0.35, -up * 0.35), PLUS, None),
        ((0.35, up * 0.35), PLUS, "from D"),
        ((0.45, -up * 0.95), MINUS, "from |b| > ||a||"),
    ):
        path = [np.array(begin)]
        for _ in range(4000):
            x, y = part(path[-1][:1], path[-1][1:])
            speed = math.hypot(x[0], y[0])
            if speed < 1e-12 or np.abs(path[-1]).max() > 1.1 or path[-1][0] < 0.004:  # no field at a = 0
                break
            path.append(path[-1] + 0.003 * np.array([x[0], y[0]]) / max(speed, 1e-12))
        track = np.array(path)
        axes.plot(*track.T, color=colour, lw=2.2, label=name)
        axes.plot(*track[0], "o", color=colour, ms=5)
        if colour == MINUS:
            axes.plot(*track[-1], "X", color=colour, ms=8, label="meets a = 0")
    axes.set_xlim(-1.12, 1.12)
    axes.set_ylim(-1.12, 1.12)
    axes.set_aspect("equal")
    axes.set_xlabel("a along u")
    axes.set_ylabel("b")
    axes.legend(fontsize=8.5, loc="lower left", framealpha=0.95)
    tidy(axes)
