"""CB, Section 5: "The algorithm converges at essentially the same speed for very different step-sizes".

Propositions 6 and 7: the gap to the largest margin against iterations, beside the bounds that are proved (CB-13, CB-14,
CB-17, CB-18, CB-32).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from widemargin import flows, margins
from widemargin.data import parity
from widemargin.flows import rules
from widemargin.papers.drawing import figure_of, tidy
from widemargin.papers.jobs import Job, Outcome, reproduction
from widemargin.papers.verdicts import NOT_INFORMATIVE, Verdict
from widemargin.plots import INK, MINUS, PLUS, QUIET, THIRD
from widemargin.theory.ascent import frozen_ascent_margin, output_ascent_margin
from widemargin.types import Dataset

from .judging import judge
from .networks import ladder

SIZES: dict[str, dict[str, Any]] = {
    "quick": {"d": 2, "m": 32, "r0": 10.0, "steps": 48_000, "trials": 20},
    "paper": {"d": 2, "m": 64, "r0": 10.0, "steps": 200_000, "trials": 100},
}


@dataclass(frozen=True)
class Read:
    """An observer of an entry of the rule's state. (Not a function, so that its text does not change between runs.)"""

    name: str

    def __call__(self, view: flows.View) -> Tensor:
        return getattr(view.state, self.name)


@reproduction(
    "cb-rates", paper="CB", quick=90, full=373, claims=("CB-13", "CB-14", "CB-17", "CB-18", "CB-32"),
    shows="Propositions 6 and 7: margin gap against iterations on log axes, with the proved bounds",
)  # fmt: skip
def reproduce(job: Job) -> Outcome:
    size = SIZES[job.scale]
    six = job.keep("prop6", size, lambda: _prop6_run(job, size, _rate_sets(job, size)))
    seven = job.keep("prop7", size, lambda: _prop7_run(job, size, _rate_sets(job, size)))
    verdicts = judge_rates(six, seven)
    figure = figure_of(9.8, 4.1)
    left, right = figure.subplots(1, 2)
    for axes, run, title in (
        (left, six, "Proposition 6: norms, directions frozen"),
        (right, seven, "Proposition 7: output layer"),
    ):
        t = run["t"]
        axes.loglog(t, run["gap"], color=PLUS, lw=0.6, alpha=0.4)
        axes.loglog(t, np.median(run["gap"], 1), color=PLUS, lw=2.4, label="measured, median")
        axes.loglog(t, np.median(run["bound_gap"], 1), color=MINUS, lw=2, ls="--", label="proved bound, median")
        axes.axhline(float(np.median(run["gamma"])), color=QUIET, lw=1, ls=":")
        axes.annotate(
            "largest margin",
            (t[1], float(np.median(run["gamma"]))),
            (0, 3),
            textcoords="offset points",
            fontsize=8,
            color=QUIET,
        )
        guide = t**-0.5 * float(np.median(run["gap"][-1])) * t[-1] ** 0.5
        axes.loglog(t, guide, color=INK, lw=0.9, ls="-.", label=r"$t^{-1/2}$")
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("t (iterations)")
        axes.set_ylabel("margin gap")
        tidy(axes)
    sharp = np.median(six["sharp_gap"], 1)
    left.loglog(six["t"], sharp, color=THIRD, lw=1.6, ls="--", label="its proof's sums, median")
    right.loglog(
        seven["decay_t"],
        np.median(seven["decay_gap"], 1),
        color=THIRD,
        lw=2,
        label=r"without $\beta(t)$ in the steps, median",
    )
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=8.5, loc="lower left")
    words = (
        f"2-parity on all corners, d = {size['d']}, {size['trials']} draws of m = {size['m']} neurons. The gap is "
        "the certified largest margin of the random neurons minus the best margin so far. "
        "Bounds are those of the propositions with the constants as printed. The paper has no such figure and no "
        "settings for it; the data was chosen so that its "
        "margin is large and the bounds say something within the run; r(0) = 10 shortens the last term of Proposition 6. "
        "A bound says something where it is below the dotted line."
    )
    measured = {f"prop6_{key}": value for key, value in six.items()} | {
        f"prop7_{key}": value for key, value in seven.items()
    }
    return Outcome({"figure": figure}, measured, size, verdicts, words)


def _rate_sets(job: Job, size: dict[str, Any]) -> list[Dataset]:
    """2-parity on the whole cube, a margin large enough for the bounds to say something; trials differ in their neurons."""
    return [parity(d=size["d"], marginal="full")] * size["trials"]


def _prop6_run(job: Job, size: dict[str, Any], sets: list[Dataset]) -> dict[str, Any]:
    net = flows.Frozen(size["d"], size["m"], law="paired", r0=size["r0"])
    state = {name: Read(name) for name in ("best", "growth", "size")}
    traj = flows.train(
        sets,
        net,
        flows.NeuronNormAscent(),
        loss="exp",
        stop=size["steps"],
        record=flows.Record(state, times=ladder(size["steps"])),
        device=job.device,
        seed=job.seed,
    )
    V = net.init(len(sets), job.seed)["V"][:, : size["m"] // 2]  # the other half has the opposite signs
    certs = [margins.frozen(data, V[b], tol=1e-9) for b, data in enumerate(sets)]
    lower, upper = np.array([cert.bounds("M6") for cert in certs]).T
    bounds = {
        kind: np.array(
            [
                [
                    float(
                        frozen_ascent_margin(
                            lower[b],
                            traj["size"][k, b],
                            sets[b].n,
                            size["m"],
                            int(t),
                            traj["growth"][k, b],
                            convention=kind,
                        ).value
                    )
                    for b in range(len(sets))
                ]
                for k, t in enumerate(traj.t)
            ]
        )
        for kind in ("printed", "sharp")
    }
    return {
        "t": traj.t,
        "best": traj["best"],
        "bound": bounds["printed"],
        "gamma": lower,
        "gap": upper - traj["best"],
        "width": upper - lower,
        "bound_gap": upper - bounds["printed"],
        "sharp_gap": upper - bounds["sharp"],
    }


def _prop7_run(job: Job, size: dict[str, Any], sets: list[Dataset]) -> dict[str, Any]:
    net = flows.TwoLayer(size["d"], size["m"], law="sphere", mean_field=True, train="output")
    keys: dict[str, Any] = {
        "loss": "exp",
        "stop": size["steps"],
        "record": flows.Record({"best": Read("best"), "size": Read("size")}, times=ladder(size["steps"])),
        "device": job.device,
        "seed": job.seed,
    }
    traj = flows.train(sets, net, flows.OutputLayerAscent(), **keys)
    decay = flows.train(sets, net, Decaying(), **keys)
    V = net.init(len(sets), job.seed)["V"]
    certs = [margins.random_features(data, V[b], tol=1e-9) for b, data in enumerate(sets)]
    lower, upper = (np.array([getattr(cert, side) for cert in certs]) for side in ("lower", "upper"))
    bound = np.array(
        [
            [
                float(output_ascent_margin(lower[b], traj["size"][k, b], sets[b].n, int(t)).value)
                for b in range(len(sets))
            ]
            for k, t in enumerate(traj.t)
        ]
    )
    return {
        "t": traj.t,
        "best": traj["best"],
        "bound": bound,
        "gamma": lower,
        "gap": upper - traj["best"],
        "width": upper - lower,
        "bound_gap": upper - bound,
        "decay_t": decay.t,
        "decay_gap": upper - decay["best"],
    }


@dataclass(frozen=True)
class Decaying(flows.OutputLayerAscent):
    """Proposition 7's ascent with steps sqrt 2 / (|z|_inf sqrt(t + 1)), without the growing beta(t) (CB-32)."""

    def step(self, problem: flows.Problem, W: dict[str, Tensor], state: Any) -> Any:
        p, saved = problem.look(W)
        weights, log_risk = rules.slopes(problem, p, "soft_margin")
        spread = math.sqrt(problem.net.m) * (W["a"] / problem.net.m).norm(dim=1)
        beta = torch.maximum(state.beta, spread)
        root = (state.taken + 1).to(p.dtype).sqrt()
        rate = rules.ascent_scale(problem.net) * math.sqrt(2) / (state.size * root)
        moved = rules.move(W, problem.pull(W, weights, saved), rate)
        after = replace(
            rules.tick_log(state, rate.log() - log_risk, log_risk, rate),
            beta=beta,
            best=torch.maximum(state.best, p.amin(1) / beta),
        )
        return rules.guard(W, state, moved, after, log_risk)


LATE = 30  # exponents are fitted over the last factor of this many iterations
RATES_AFTER = "the data (2-parity) and r(0) = 10, after a look at the disks, where the bounds say nothing"


def exponents(t: np.ndarray, gap: np.ndarray, width: np.ndarray) -> np.ndarray:
    """Exponents of the gap (trials,) at late iterations, from gaps that are ten times what the certificate leaves open."""
    slopes = []
    for b in range(gap.shape[1]):
        use = (t >= t[-1] / LATE) & (gap[:, b] > 10 * width[b])
        slopes.append(np.polyfit(np.log(t[use]), np.log(gap[use, b]), 1)[0] if use.sum() >= 5 else math.nan)
    return np.array(slopes)


def log_exponent(t: np.ndarray) -> float:
    """The exponent of log t / sqrt t fitted over the same iterations."""
    late = t >= t[-1] / LATE
    return float(np.polyfit(np.log(t[late]), np.log(np.log(t[late]) / np.sqrt(t[late])), 1)[0])


def judge_rates(six: dict[str, np.ndarray], seven: dict[str, np.ndarray]) -> list[Verdict]:
    # The norm grows like exp(sqrt t), so runs may end before their last step: each has its own times.
    first, second = (exponents(run["t"], run["gap"], run["width"]) for run in (six, seven))
    decay = exponents(seven["decay_t"], seven["decay_gap"], seven["width"])
    steps = np.log10(steps_to_the_same(seven))
    ratio = np.log(seven["decay_gap"][-1] / seven["gap"][-1].clip(1e-300))
    return [
        bound_verdict("Proposition 6", six, "margin >= gamma_1 - (|z|/sqrt t)(8 log m + log t + 1) - ..."),
        bound_verdict("Proposition 7", seven, "margin >= gamma_2 - (|z|/sqrt t)(2 sqrt 2 + sqrt 3 log(n)/gamma_2)"),
        judge(
            "Proposition 6: the gap falls at least as fast as log t/sqrt t (its exponent minus that of log t/sqrt t over the "
            "same iterations is below 0.05)",
            first - log_exponent(six["t"]),
            "O(log t / sqrt t)",
            most=0.05,
            note=f"exponent {first.mean():.3f}",
            chosen_after=RATES_AFTER,
        ),
        judge(
            "Proposition 7: the gap falls at least as fast as 1/sqrt t (its exponent plus 1/2 is below 0.05)",
            second + 0.5,
            "O(1 / sqrt t)",
            most=0.05,
            note=f"exponent {second.mean():.3f}",
            chosen_after=RATES_AFTER,
        ),
        judge(
            "Output layer, steps ~ 1/sqrt t instead of beta(t)/sqrt t: the gap falls at least as fast as log t/sqrt t (its "
            "exponent minus that of log t/sqrt t is below 0.05)",
            decay - log_exponent(seven["decay_t"]),
            "O(log t / sqrt t) (Soudry et al., quoted in Section 5)",
            most=0.05,
            note=f"exponent {decay.mean():.3f}",
            chosen_after=RATES_AFTER,
        ),
        judge(
            "Essentially the same speed, the rates: the exponents with and without beta(t) in the steps differ by less than 0.1",
            second - decay,
            "essentially the same speed for very different step-sizes (Section 5)",
            least=-0.1,
            most=0.1,
            note=f"{second.mean():.3f} with, {decay.mean():.3f} without",
            reason="on this data the larger steps are faster than the bound that the paper proves for them",
            chosen_after=RATES_AFTER,
        ),
        judge(
            "Essentially the same speed, with constants: the steps needed for the same gap, without beta(t) over with it, agree "
            "up to a factor 10 (log10 of their ratio between -1 and 1)",
            steps,
            "essentially the same speed for very different step-sizes (Section 5); it compares bounds, not their constants",
            least=-1.0,
            most=1.0,
            note=f"at the end the gap without beta(t) is {float(np.exp(ratio.mean())):.3g} times the other (geometric mean)",
            reason="without beta(t) far more steps are needed",
            chosen_after=RATES_AFTER,
        ),
    ]


def steps_to_the_same(run: dict[str, np.ndarray]) -> np.ndarray:
    """Steps without beta(t) over steps with it (trials,) until a gap that both reach."""
    ratios = []
    for b in range(run["gap"].shape[1]):
        goal = max(run["gap"][-1, b], run["decay_gap"][-1, b])
        with_it = run["t"][np.argmax(run["gap"][:, b] <= goal)]
        ratios.append(run["decay_t"][np.argmax(run["decay_gap"][:, b] <= goal)] / with_it)
    return np.array(ratios)


def bound_verdict(name: str, run: dict[str, np.ndarray], paper: str) -> Verdict:
    slack = run["best"] - run["bound"]
    broken = int((slack < 0).sum())
    useful = run["bound"] > 0  # (T, trials)
    said = f"least slack {slack.min():.3g}"
    if useful.any():
        said += f"; positive from step {run['t'][useful.any(1)][0]:.0f} on, in {useful.any(0).mean():.0%} of the trials"
    return Verdict(
        f"{name}: the bound holds at every recorded step of every trial (number of violations is 0)",
        float(broken),
        paper,
        False if broken else True if useful.any() else NOT_INFORMATIVE,
        said,
        "" if broken or useful.any() else "the bound stays below 0, so that any margin meets it",
        RATES_AFTER,
    )
