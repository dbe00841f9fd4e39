"""MT, Section 5, of Figure 3: "Two-layer networks clearly outperform kernel methods in test error as n grows".

Students of a random teacher against kernels, in classification and regression, with the bounds of both (MT-33, MT-7, MT-14,
MT-22).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy import linalg

from widemargin import flows, margins, theory
from widemargin.data import relu_teacher
from widemargin.papers.drawing import figure_of, lettered, mean_line, tidy
from widemargin.papers.jobs import Job, Outcome, reproduction
from widemargin.papers.statistics import exponents, over_trials
from widemargin.papers.verdicts import UNDECIDED, Verdict
from widemargin.plots import INK, MINUS, PLUS, THIRD
from widemargin.spaces import ReLU
from widemargin.types import F1_CONVERSIONS, Dataset, Measure

from .judging import TOLERANCE, above, interval_of, judged
from .students import FIT, advantage, fitted, minimisers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES: dict[str, dict[str, Any]] = {
    "quick": {
        "ns": (50, 100, 200, 400),
        "trials": 8,
        "m": 60,
        "rungs": 4,
        "inner": 300,
        "steps": 2000,
        "limit": 0.5,
    },
    "paper": {
        "ns": (50, 100, 200, 400, 800),
        "trials": 100,
        "m": 100,
        "rungs": 7,
        "inner": 300,
        "steps": 20000,
        "limit": 1.0,
    },
}


ARMS = ("path", "descent")  # the two students


def curvature(problem: flows.Problem, W: dict[str, torch.Tensor], rounds: int = 50) -> torch.Tensor:
    """Largest eigenvalue (B,) of the Gram matrix of gradients over n, by power iteration: that of the half mean square."""
    g = torch.ones_like(problem.margins(W))  # (B, n)
    for _ in range(rounds):
        g = g / g.norm(dim=1, keepdim=True)
        g = problem.net.push(W, problem.X, problem.net.pull(W, problem.X, g))
    return g.norm(dim=1) / problem.n


def descended(
    sets: list[Dataset], m: int, steps: int, regression: bool, device: str, seed: int
) -> tuple[dict[str, np.ndarray], float]:
    """Students by plain gradient descent on mean loss + 1e-8 |Theta|^2, as the paper trains, and the learning rate.

    The rate, which the paper does not give, is the reciprocal of the largest curvature at the start over the trials (the
    logistic loss bends at most 1/4), half of what is stable there. Weights have the variance 1/(3 fan-in) of common libraries.
    """
    loss = "squared" if regression else "logistic"
    net = flows.TwoLayer(sets[0].d, m, law_scale=1 / math.sqrt(3))
    problem = flows.pose(net, sets, loss, device=device)
    W = {name: torch.tensor(value, device=device) for name, value in net.init(len(sets), seed).items()}
    lr = (1 if regression else 4) / float(curvature(problem, W).max())
    rule = flows.GD(lr, weight_decay=1e-8 if regression else 2e-8)  # GD has the gradient of half of the squared loss
    out = flows.train(
        sets,
        net,
        rule,
        loss=loss,
        stop=steps,
        record=flows.Record(["norm"], times=[0, steps]),
        device=device,
        seed=seed,
    )
    return {name: out.final[name] for name in ("a", "V")}, lr


def compare(
    n: int, size: Mapping[str, Any], regression: bool, device: str, seed: int, tests: int = 2000
) -> dict[str, np.ndarray]:
    """Test error, value, leading term of the bound (and fit) of both students and of the kernel, (trials,) each.

    Beside them the learning rate of the descent, and for n up to 100 the certified l1 value of trial 0. `size` is that of SIZES.
    """
    teachers = [1000 * seed + b for b in range(size["trials"])]
    sets = [relu_teacher(20, n, seed=teacher, regression=regression) for teacher in teachers]
    held = [relu_teacher(20, tests, seed=teacher, regression=regression, sample=1) for teacher in teachers]
    path = minimisers(sets, size["m"], size["rungs"], size["inner"], regression, device, seed)
    descent, lr = descended(sets, size["m"], size["steps"], regression, device, seed)
    measured: dict[str, np.ndarray] = {"lr": np.array(lr)}
    for arm, W in zip(ARMS, (path, descent)):
        nets = [Measure.from_network(V, a) for V, a in zip(W["V"], W["a"])]
        rows = [_net_row(*each, regression) for each in zip(nets, sets, held)]
        measured |= {
            f"{arm}_{name}": np.array(column) for name, column in zip(("error", "value", "bound", "fit"), zip(*rows))
        }
    rows = [_kernel_row(*each, regression) for each in zip(sets, held)]
    measured |= {f"kernel_{name}": np.array(column) for name, column in zip(("error", "value", "bound"), zip(*rows))}
    measured["certified"] = np.full(2, math.nan)
    if n <= 100:  # beyond, the search does not end in the time given
        solve: Any = margins.min_norm_l1 if regression else partial(margins.f1, device=device)
        measured["certified"] = np.array(interval_of(solve(sets[0], tol=1e-2, time_limit=size["limit"])))
    return measured


def _net_row(net: Measure, data: Dataset, held: Dataset, regression: bool) -> list[float]:
    """Test error, margin in M2 (or l1 norm), leading term of the bound, training fit.

    The fit is the smallest y f, or the mean square that is left over that of the targets.
    """
    f, size = net(held.X), float(np.linalg.norm(data.X))
    if regression:
        fit = float(((net(data.X) - data.y) ** 2).mean() / (data.y**2).mean())
        bound = theory.generalization.regression_bound(
            0.0, net.norm, size, data.n, data.d, kind="l1", convention="printed"
        )
        return [float(((f - held.y) ** 2).mean()), net.norm, float(bound.numbers["leading"]), fit]  # type: ignore[arg-type]
    margin = F1_CONVERSIONS["M2"] * net.margin(data)
    leading = 6 / margin * size / data.n if margin > 0 else math.inf
    return [float((f * held.y <= 0).mean()), margin, leading, float((data.y * net(data.X)).min())]


def _kernel_row(data: Dataset, held: Dataset, regression: bool) -> list[float]:
    """Test error, margin in M7 (or norm), leading term of the bound, of the max-margin or min-norm kernel predictor."""
    space, size = ReLU(), float(np.linalg.norm(data.X))
    if regression:
        b = linalg.cho_solve(linalg.cho_factor(space.kernel(data.X)), data.y)
        norm = math.sqrt(data.y @ b)
        f = space.kernel(held.X, data.X) @ b
        bound = theory.generalization.regression_bound(0.0, norm, size, data.n, data.d, kind="l2", convention="printed")
        return [float(((f - held.y) ** 2).mean()), norm, float(bound.numbers["leading"])]  # type: ignore[arg-type]
    cert = margins.f2(data)
    f = space.kernel(held.X, data.X) @ (np.asarray(cert.extra["alpha"]) * data.y)
    leading = 2 * math.sqrt(2) / cert.lower * size / (data.n * math.sqrt(data.d)) if cert.lower > 0 else math.inf
    return [float((f * held.y <= 0).mean()), cert.lower, leading]


@reproduction(
    "mt-3", paper="MT", shows="Figure 3: networks against kernels, test errors and bounds against n", quick=90, full=391,
    claims=("MT-33", "MT-7", "MT-14", "MT-22"),
)  # fmt: skip
def reproduce(job: Job) -> Outcome:
    size = SIZES[job.scale]
    ns = np.array(size["ns"])
    rest = {name: value for name, value in size.items() if name != "ns"}
    measured: dict[str, dict[str, np.ndarray]] = {}
    for task in ("classification", "regression"):
        each = [
            job.keep(
                f"{task}-{n}",
                {"n": n, "task": task, **rest},
                partial(compare, n, size, task == "regression", job.device, job.seed),
            )
            for n in ns.tolist()
        ]
        measured[task] = {name: np.stack([part[name] for part in each], -1) for name in each[0]}  # (trials, k)
    lost = {
        task: {arm: (~fitted(task, part[f"{arm}_fit"])).sum(0).tolist() for arm in ARMS}
        for task, part in measured.items()
    }
    counts = "; ".join(
        f"{task}, {word}: {', '.join(map(str, lost[task][arm]))}"
        for task in measured
        for arm, word in zip(ARMS, ("minimisers", "descent"))
    )
    words = (
        f"Teachers of 6 units on the unit sphere of R^20 with alternating signs, normal inputs, {size['trials']}"
        " trials, each with a teacher of its own whose points for a smaller n are the first of those for a larger one,"
        f" test errors on 2000 points. There are two students of {size['m']} units. One follows the minimisers of the"
        f" objective, which the theory is about: lambda falls to 1e-8 in {size['rungs']} stages of at most"
        f" {size['inner']} evaluations (L-BFGS). The other is trained as the paper says, {size['steps']} steps of"
        " gradient descent with lambda = 1e-8 (paper: 20000); its learning rate is the reciprocal of the curvature at"
        " the start and its weights have the variance 1/(3 fan-in) that common libraries use. Regression depends on"
        " that: with the variance 1/fan-in descent stays above the kernel (0.16 against 0.12 at n = 400, four"
        " teachers), with 1/(3 fan-in) it is below (0.10). Advantage means ln(mean test error of the kernel/mean test"
        " error of the network), the means being those of the plot, over all trials; intervals are jackknives over"
        " trials. Students that did not fit their points (a point on the wrong side, or more than 1 % of the mean"
        f" square left) are counted in these means and left out of those of the bounds; over n there are {counts}."
        " Kernel predictors are exact. Bounds are leading terms: (6/gamma) sqrt(D/n) against (2 sqrt 2/gamma_2)"
        " sqrt(D/(dn)), and 12 |alpha|_1 |X|_F/n against |alpha|_2 |X|_F/(n sqrt d) with Lipschitz constant 1. Their"
        " constants differ, so the shapes are compared, not the levels. Crosses: the smallest value the bound can have"
        " for any network on trial 0, certified, for n up to 100."
    )
    settings = {
        **size, "d": 20, "units": 6, "margin": 0.1, "test_points": 2000, "lambda": 1e-8, "fit": FIT,
        "first_lambda": {"classification": 1e-2, "regression": 1e-1},
        "lr": {task: part["lr"] for task, part in measured.items()}, "not_fitted": lost,
    }  # fmt: skip
    return Outcome(
        {"figure": _draw(ns, measured)},
        {"n": ns, **{f"{task}_{name}": value for task, part in measured.items() for name, value in part.items()}},
        settings,
        [verdict for task, part in measured.items() for verdict in judge_figure_3(task, ns, part, size["steps"])],
        words,
    )


def judge_figure_3(task: str, ns: np.ndarray, measured: Mapping[str, np.ndarray], steps: int) -> list[Verdict]:
    kernel, first, last = measured["kernel_error"], int(ns[0]), int(ns[-1])
    students = {"path": "minimisers", "descent": f"{steps} steps of gradient descent"}
    after = {
        "path": "width, stages and evaluations; the first lambda was 1 for regression, with students that failed, at seed 0",
        "descent": "the variance of the weights, after test errors of regression at n = 400 and seed 0",
    }
    verdicts = []
    for arm, word in students.items():
        net, lost = measured[f"{arm}_error"], (~fitted(task, measured[f"{arm}_fit"])).sum(0)
        ahead = over_trials(lambda k, e: advantage(k[:, -1], e[:, -1]), kernel, net)
        grown = over_trials(lambda k, e: advantage(k[:, -1], e[:, -1]) - advantage(k[:, 0], e[:, 0]), kernel, net)
        verdicts += [
            judged(
                f"{task}, {word}: network below kernel in test error at n = {last}"
                " (advantage ln(mean kernel error/mean network error) above 0)",
                ahead, "two-layer networks clearly outperform kernels as n grows", above(*ahead[1:]),
                f"; {lost[-1]} of {len(net)} students did not fit", chosen_after=after[arm],
            ),
            judged(
                f"{task}, {word}: the advantage grows with n (n = {last} minus n = {first})",
                grown, "as n grows", above(*grown[1:]),
                f"; {lost[0]} and {lost[-1]} of {len(net)} students did not fit", chosen_after=after[arm],
            ),
        ]  # fmt: skip
    fall = over_trials(lambda k: np.log(k[:, 0].mean() / k[:, -1].mean()), kernel)
    flat = over_trials(lambda b: exponents(ns, b).mean(), measured["kernel_bound"])
    constant = (
        True if flat[1] > -TOLERANCE and flat[2] < TOLERANCE
        else False if flat[1] > TOLERANCE or flat[2] < -TOLERANCE
        else UNDECIDED
    )  # fmt: skip
    return [
        *verdicts,
        judged(
            f"{task}: the kernel's test error falls from n = {first} to {last} (ln of the ratio of the means above 0)",
            fall, "kernel test error decreases", above(*fall[1:]),
        ),
        judged(
            f"{task}: the kernel's bound stays constant: interval of its exponent in n within {TOLERANCE} of 0, half way"
            " to the 1/2 of sqrt(1/n)",
            flat, "appears to stay constant with n", constant,
            chosen_after=f"{TOLERANCE}, as for all exponents; 0.15 was asked before and 0.10 seen at seed 0",
        ),
        _margins_verdict(ns, measured, steps) if task == "classification" else _norms_verdict(ns, measured),
    ]  # fmt: skip


def _margins_verdict(ns: np.ndarray, measured: Mapping[str, np.ndarray], steps: int) -> Verdict:
    """Where the paper sees variance in the network's bound it says why: the best margin was not found."""
    both = fitted("classification", measured["path_fit"][:, -1]) & fitted(
        "classification", measured["descent_fit"][:, -1]
    )
    best, had = (measured[f"{arm}_value"][both, -1] for arm in ARMS)
    gain = over_trials(lambda p, g: np.log(p.mean() / g.mean()), best, had)
    return judged(
        f"classification: {steps} steps of gradient descent do not find the best margin at n = {ns[-1]}"
        " (ln of the mean margin of the minimisers over that of descent above 0)",
        gain, "some variance in the network's bound, likely since the best margin was not found", above(*gain[1:]),
        f"; {int(both.sum())} trials in which both separate",
    )  # fmt: skip


def _norms_verdict(ns: np.ndarray, measured: Mapping[str, np.ndarray]) -> Verdict:
    """Theorem D.6's O(sqrt(d/n)) for the network's bound is that its norm does not exceed the teacher's."""
    rows = []
    for value, fit in zip(measured["path_value"].T, measured["path_fit"].T):  # over n
        rows.append(over_trials(np.mean, value[fitted("regression", fit)] / 6))
    share = np.array(rows)  # (k, 3)
    worst = int(np.nanargmax(share[:, 0])) if np.isfinite(share[:, 0]).any() else 0
    holds = True if (share[:, 2] <= 1.01).all() else False if (share[:, 1] > 1.01).any() else UNDECIDED
    return judged(
        "regression: the minimisers have at most the teacher's l1 norm, so that their bound is at most 72 |X|_F/n at every n"
        " (largest mean of norm/6 over the students that fit, at most 1.01 with its interval)",
        (float(share[worst, 0]), float(share[worst, 1]), float(share[worst, 2])), "O(sqrt(d/n)), Theorem D.6", holds,
        f"; n = {', '.join(map(str, ns))}",
        chosen_after="the first lambda was 1, with students that failed, at seed 0",
    )  # fmt: skip


def _draw(ns: np.ndarray, measured: Mapping[str, Mapping[str, np.ndarray]]) -> Figure:
    figure = figure_of(9.4, 6.6)
    axes = list(figure.subplots(2, 2).ravel())
    for panel in axes:
        tidy(panel)
    titles = {"classification": "0-1 test error", "regression": "squared test error"}
    looks = {"path": (PLUS, "network, minimiser", "o-"), "descent": (THIRD, "network, gradient descent", "^-.")}
    for pair, (task, part) in zip((axes[:2], axes[2:]), measured.items()):
        left, right = pair
        for arm, (colour, label, style) in looks.items():
            fit = fitted(task, part[f"{arm}_fit"])  # (trials, k)
            mean_line(left, ns, part[f"{arm}_error"], colour, label, style)
            for n, lost, mean in zip(ns, (~fit).sum(0), part[f"{arm}_error"].mean(0)):
                if lost:
                    left.annotate(
                        f"{lost} failed", (n, mean), (0, 7), textcoords="offset points", fontsize=7, ha="center",
                        color=colour,
                    )  # fmt: skip
            mean_line(right, ns, np.where(fit, part[f"{arm}_bound"], np.nan), colour, label, style)
        mean_line(left, ns, part["kernel_error"], MINUS, "kernel", "s--")
        left.set_title(f"{task}: error", fontsize=10, loc="left")
        left.set_ylabel(titles[task])
        mean_line(right, ns, part["kernel_bound"], MINUS, "kernel", "s--")
        least = _least_bound(task, ns, part["certified"])
        right.plot(ns, least, "x", color=INK, ms=6, mew=1.6, label="no network has less (certified, trial 0)")
        right.set_title(f"{task}: bound", fontsize=10, loc="left")
        right.set_ylabel("leading term of the bound")
        right.set_yscale("log")
        low, high = right.get_ylim()
        right.set_ylim(min(low, 1.0), max(high, 100.0))
        for panel in pair:
            panel.set_xscale("log")
            panel.set_xticks(ns, [str(n) for n in ns])
            panel.minorticks_off()
            panel.set_xlabel("$n$")
        if task == "regression":
            left.set_yscale("log")
        else:
            left.set_ylim(0, None)
    lettered(axes)
    figure.legend(
        *axes[1].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False, fontsize=9.5
    )
    return figure


def _least_bound(task: str, ns: np.ndarray, certified: np.ndarray) -> np.ndarray:
    """The leading term at the certified end that no network passes; |X|_F^2 = 20 n up to its fluctuation."""
    size = np.sqrt(20 / ns)
    return 12 * certified[0] * size if task == "regression" else 12 / certified[1] * size
