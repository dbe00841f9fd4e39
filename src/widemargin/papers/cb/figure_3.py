"""CB, caption of Figure 3: "The classifier first approaches the max-margin classifier for the tangent kernel (c) and eventually
converges to the F1-max-margin (f)".

A large start and small steps: lazy first, and rich in the end (CB-30).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from widemargin import flows, margins
from widemargin.data import disks
from widemargin.flows.nets import trial_numbers
from widemargin.papers.drawing import figure_of, tidy
from widemargin.papers.jobs import Job, Outcome, reproduction
from widemargin.papers.verdicts import UNDECIDED, Verdict
from widemargin.plots import INK, QUIET, THIRD
from widemargin.types import Certificate, Dataset

from .judging import LOOSE, judge, share_of
from .networks import ConstantStep, certified_f1, evaluate, ladder
from .plane import draw_plane, plane_points

# `rtol` and `flow` are the tolerance and the most steps of gradient flow, which ends earlier where it is stationary.
SIZES: dict[str, dict[str, Any]] = {
    "quick": {
        "sets": 5,
        "n": 24,
        "m": 200,
        "scale": 40.0,
        "step": 1.0,
        "steps": 30_000,
        "rtol": 3e-3,
        "flow": 400,
        "tol": 0.01,
        "grid": 131,
    },
    "paper": {
        "sets": 6,
        "n": 60,
        "m": 1000,
        "scale": 40.0,
        "step": 1.0,
        "steps": 40_000,
        "rtol": 3e-3,
        "flow": 500,
        "tol": 0.01,
        "grid": 201,
    },
}


@dataclass(frozen=True)
class ThenFlow(flows.GradientFlow):
    """`steps` constant steps, and from there on gradient flow, whose error is relative to |W| and so blind to a lazy phase."""

    lr: float = 1e-3
    steps: int = 0

    def init(self, problem: flows.Problem, W: dict[str, Tensor]) -> Any:
        return super().init(_as_two_layer(problem), W)

    def step(self, problem: flows.Problem, W: dict[str, Tensor], state: Any) -> Any:
        if state.step < self.steps:
            return ConstantStep(self.lr).step(problem, W, state)
        if state.step == self.steps:  # what the flow carries from step to step has not been kept up to date
            fresh = self.init(problem, W)
            state = replace(state, **{name: getattr(fresh, name) for name in ("h", "error", "dual", "drift", "gates")})
        return super().step(_as_two_layer(problem), W, state)


def _as_two_layer(problem: flows.Problem) -> flows.Problem:
    """The same problem without the start that a class below draws, so that the flow knows its network."""
    net = problem.net
    assert isinstance(net, flows.TwoLayer)
    return replace(problem, net=flows.TwoLayer(net.d, net.m, mean_field=net.mean_field))


@dataclass(frozen=True)
class LargeStart(flows.TwoLayer):
    """Even trials start at N(0, law_scale^2) as in CB; odd ones have every neuron twice, with both signs, so that f = 0."""

    def init(self, trials: int | Sequence[int], seed: int) -> dict[str, np.ndarray]:
        drawn, half = super().init(trials, seed), self.m // 2
        odd = [row for row, number in enumerate(trial_numbers(trials)) if number % 2]
        for name, sign in (("a", -1.0), ("V", 1.0)):
            drawn[name][odd, half : 2 * half] = sign * drawn[name][odd, :half]
        return drawn


STARTS = ("independent start", "symmetric start")
LAZY_AFTER = (
    "n, m, the step (the paper gives none) and gradient flow for the end, after looks at seed 0 of the quick scale"
)


@reproduction(
    "cb-3", paper="CB", quick=100, full=786, claims=("CB-30",),
    shows="Figure 3: two implicit biases in one training, tangent kernel first, F1 in the end",
)  # fmt: skip
def reproduce(job: Job) -> Outcome:
    size = SIZES[job.scale]
    sets = [disks(k=3, d=3, n=size["n"], seed=size["sets"] * job.seed + s, reading="code") for s in range(size["sets"])]
    line, points = plane_points(size["grid"])
    kept = job.keep("dynamics", size, lambda: _lazy_run(job, size, sets, points))
    f, f1 = kept["f"], kept["f1"]  # (T, points) and (points,) of the set that is drawn
    iterations = kept["time"][:, 0] * size["scale"] ** 2 / size["step"]  # (T, 2), in constant steps
    verdicts = judge_3(kept)
    to_tangent, to_f1, data = kept["to_tangent"][:, 0], kept["to_f1"][:, 0], sets[0]
    closest = to_tangent.argmin(0)
    shown = _snapshots(iterations[:, 1], int(closest[1]))
    figure = figure_of(9.4, 9.6)  # squares that fill the width
    parts = figure.add_gridspec(3, 6, height_ratios=[1, 1, 0.85])
    for place, k in enumerate(shown):
        axes = figure.add_subplot(parts[place // 3, 2 * (place % 3) : 2 * (place % 3) + 2])
        shape = (size["grid"], size["grid"])
        draw_plane(axes, line, f[k].reshape(shape), (data.X, data.y), size=12)
        axes.contour(
            line, line, kept["tangent"].reshape(shape), levels=[0], colors=[QUIET], linewidths=1.2, linestyles=":"
        )
        axes.contour(line, line, f1.reshape(shape), levels=[0], colors=[THIRD], linewidths=1.2, linestyles="--")
        axes.set_title(f"({'abcdef'[place]}) t = {iterations[k, 1]:,.0f}", fontsize=10, loc="left")
    for b in (1, 0):
        t = iterations[:, b]
        axes = figure.add_subplot(parts[2, 3 * (1 - b) : 3 * (1 - b) + 3])
        late = t > 0
        axes.plot(
            t[late],
            to_tangent[late, b],
            color=QUIET,
            lw=2,
            ls=":",
            label="largest margin of the tangent kernel, and the distance to it",
        )
        axes.plot(
            t[late], to_f1[late, b], color=THIRD, lw=2, ls="--", label="largest margin of F1, and the distance to it"
        )
        axes.plot([], [], color=INK, lw=2, label="boundary of the network (a to f)")
        axes.plot(
            t[closest[b]], to_tangent[closest[b], b], "o", color=INK, ms=5, label="closest to the tangent kernel (c)"
        )
        if b == 1:
            for place, k in enumerate(shown):
                if t[k] > 0:
                    axes.axvline(t[k], color=INK, lw=0.5, alpha=0.4)
                    axes.annotate(
                        "abcdef"[place],
                        (t[k], 0.97),
                        (2, 0),
                        xycoords=("data", "axes fraction"),
                        textcoords="offset points",
                        fontsize=8,
                        va="top",
                    )
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("t (iterations)")
        axes.set_ylabel("distance of classifiers")
        where = " (pictures above)" if b else " (as in the paper)"
        axes.set_title(f"({'hg'[b]}) {STARTS[b]}{where}", fontsize=10, loc="left")
        tidy(axes)
    figure.legend(*axes.get_legend_handles_labels(), frameon=False, fontsize=8.5, loc="outside lower center", ncols=2)
    words = (
        f"All weights start at N(0, {size['scale']:g}^2), the step is the constant "
        f"{size['step']:g}/{size['scale']:g}^2; from iteration {size['steps']} on gradient flow takes over and goes further, "
        "t being its time in such steps. Dotted grey: max-margin "
        "classifier of the tangent kernel at the start, dashed green: that of F1, with a certified margin. Distances "
        "are between functions divided "
        "by their norm in L2 of the square. The paper does not say how the start is drawn further, nor n, m and the "
        "step. With an independent start f is "
        "not 0, and at these widths what is left of it blurs the tangent phase; with a symmetric start f = 0 and that "
        "phase is seen alone. Both are run, "
        f"on {size['sets']} data sets; the first is drawn."
    )
    saved = {key: value for key, value in kept.items() if key != "f"} | {"shown_f": f[shown], "line": line}
    return Outcome({"figure": figure}, saved, size | {"k": 3, "d": 3, "reading": "code"}, verdicts, words)


def _snapshots(t: np.ndarray, closest: int) -> list[int]:
    """Six records: the first step, early, closest to the tangent kernel (third, as in the paper), two in between, the end."""
    last = len(t) - 1
    early = int(np.searchsorted(t, max(1.0, t[closest] / 8)))
    between = np.exp(np.linspace(math.log(max(t[closest], 1)), math.log(t[last]), 4))[1:3]
    return [1, early, closest, *(int(np.searchsorted(t, time)) for time in between), last]


def _distance(f: np.ndarray, g: np.ndarray) -> float:
    """|| f/||f|| - g/||g|| ||: 0 for the same classifier up to scale, 2 for the opposite one."""
    f, g = (h / max(np.abs(h).max(), 1e-300) for h in (f, g))  # the flow goes on to values that have no square
    return float(np.linalg.norm(f / max(np.linalg.norm(f), 1e-300) - g / np.linalg.norm(g)))


def judge_3(kept: dict[str, np.ndarray]) -> list[Verdict]:
    """From distances (T, sets, starts) to the two classifiers, margins (sets, starts) at the end and bounds (sets,)."""
    to_tangent, to_f1 = kept["to_tangent"], kept["to_f1"]
    last, several = len(to_tangent) - 1, to_tangent.shape[1]
    verdicts = []
    for b in (1, 0):
        seen, steps = [], []
        for s in range(several):
            k = int(to_tangent[:, s, b].argmin())
            low, end, there = map(float, (to_tangent[k, s, b], to_tangent[-1, s, b], to_f1[k, s, b]))
            seen.append(min(0.8 * end, there) / max(low, 1e-300) if 0 < k < last else 0.0)
            steps.append(kept["t"][k])
        verdicts.append(
            judge(
                f"{STARTS[b]}: the distance to the tangent-kernel max-margin classifier has an interior minimum, at most 0.8 of "
                "its value at the end, and there the classifier is closer to it than to that of F1 (the lesser of 0.8 of the "
                "distance at the end and the distance from F1 then, over the minimum, is above 1; 0 where there is none inside)",
                np.array(seen),
                "first approaches the max-margin classifier of the tangent kernel (c)",
                least=1.0,
                note=f"least {min(seen):.3g}; at steps {min(steps):.0f} to {max(steps):.0f}",
                reason="f(0) is not small beside what the lazy phase adds at this width" if b == 0 else "",
                chosen_after=LAZY_AFTER,
            )
        )
    for b in (1, 0):
        verdicts.append(
            judge(
                f"{STARTS[b]}: at the end the classifier is that of F1 (distance below 0.1)",
                to_f1[-1, :, b],
                "eventually converges to the F1 max margin (f)",
                most=0.1,
                note=f"largest {to_f1[-1, :, b].max():.3f}; signs differ on at most {kept['signs_differ'][:, b].max():.2%}",
                chosen_after=LAZY_AFTER,
            )
        )
    margin, lower, upper = 2 * kept["margin"].min(1), kept["lower"], kept["upper"]  # the lesser of the starts
    holds = share_of(margin, lower, upper, 0.9)
    verdicts.append(
        Verdict(
            "Margin at the end over the certified maximum, least of sets and starts (at least 0.9)",
            float((margin / upper).min()),
            "F1 max margin (Theorem 3)",
            holds,
            f"mean {(margin / upper).mean():.3f} of the lesser start, {several} sets certified to "
            f"{float((1 - lower / upper).max()):.2%}",
            LOOSE if holds == UNDECIDED else "",
            LAZY_AFTER,
        )
    )
    return verdicts


def _lazy_run(job: Job, size: dict[str, Any], sets: list[Dataset], points: np.ndarray) -> dict[str, Any]:
    m, scale, several = size["m"], size["scale"], len(sets)
    net = LargeStart(3, m, law="cb", law_scale=scale, mean_field=True)
    traj = job.train(
        "train",
        [data for data in sets for _ in STARTS],
        net,
        ThenFlow(size["rtol"], lr=size["step"] / scale**2, steps=size["steps"]),
        loss="exp",
        stop=size["steps"] + size["flow"],
        record=flows.Record(
            ["margins", "weights", "t_cb"],
            times=ladder(size["steps"], 50) + [size["steps"] + t for t in ladder(size["flow"], 20)],
        ),
    )
    start = net.init(2 * several, job.seed)
    certs = [certified_f1(job, data, size["tol"], 60) for data in sets]
    square = points[(np.abs(points[:, 1:]) <= 0.5).all(1)]  # that of the data, on which functions are compared
    to_tangent, to_f1 = np.empty((2, len(traj.t), several, 2))
    differ = np.empty((several, 2))
    for s, data in enumerate(sets):
        f1 = certs[s].primal(square)  # type: ignore[misc]
        for b in (0, 1):
            row = 2 * s + b
            tangent = tangent_classifier(start["a"][row], start["V"][row], data, square)[0]
            for k in range(len(traj.t)):
                f = evaluate(traj["W_a"][k, row], traj["W_V"][k, row], square, job.device)
                to_tangent[k, s, b], to_f1[k, s, b] = _distance(f, tangent), _distance(f, f1)
            differ[s, b] = (f * f1 < 0).mean()
    return {
        "t": traj.t,
        "time": (traj["t_cb"] / m).reshape(-1, several, 2),
        "f": [evaluate(traj["W_a"][k, 1], traj["W_V"][k, 1], points, job.device) for k in range(len(traj.t))],
        "tangent": tangent_classifier(start["a"][1], start["V"][1], sets[0], points)[0],
        "f1": certs[0].primal(points),  # type: ignore[misc]
        "to_tangent": to_tangent,
        "to_f1": to_f1,
        "signs_differ": differ,
        "lower": [cert.lower for cert in certs],
        "upper": [cert.upper for cert in certs],
        "margin": traj["margin_M3"][-1].reshape(several, 2),
    }


def tangent_classifier(
    a: np.ndarray, V: np.ndarray, data: Dataset, points: np.ndarray
) -> tuple[np.ndarray, Certificate]:
    """The max-margin classifier over the gradients of (1/m) sum_j a_j relu(v_j . x) at these weights, and its certificate."""

    def gradients(X: np.ndarray) -> np.ndarray:
        h = X @ V.T  # (n, m)
        inner = ((h > 0) * a)[:, :, None] * X[:, None, :]  # (n, m, d)
        return np.hstack([h.clip(0), inner.reshape(len(X), -1)]) / len(a)

    J = gradients(data.X)
    cert = margins.tangent(data, jacobian=J)
    theta = (np.asarray(cert.extra["alpha"]) * data.y) @ J
    return np.concatenate([gradients(part) @ theta for part in np.array_split(points, 20)]), cert
