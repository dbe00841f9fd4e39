"""LR (Telgarsky, feature selection in low-rotation regimes): Figure 1, Figure 2 and Table 1."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from widemargin import data, flows, margins
from widemargin.types import Dataset

from .reproduction import UNDECIDED, Holds, Job, Outcome, Verdict, reproduction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ERROR = 0.1  # the test error that Table 1 is measured at
SLACK = 0.25  # what logarithms, which the table hides, may add to an exponent over the range of d
WIDE = 1.5  # an interval of an exponent wider than this decides nothing
RESAMPLES = 1000

SIZES: dict[str, dict[str, dict[str, Any]]] = {
    "lr-1": {
        "quick": {"seeds": 10, "lr": 1.0, "steps": 4000, "late_lr": 1.0, "late": 4000, "points": 60},
        "paper": {"seeds": 32, "lr": 0.2, "steps": 20000, "late_lr": 0.5, "late": 16000, "points": 120},
    },
    "lr-2": {
        "quick": {"alphas": (0.01, 0.03, 0.1, 0.3, 0.5, math.sqrt(0.5)), "seeds": 4, "m": 64, "steps": 300, "d": 5},
        "paper": {
            "alphas": (0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, math.sqrt(0.5)),
            "seeds": 10,
            "m": 128,
            "steps": 500,
            "d": 10,
        },
    },
    "lr-table1": {
        "quick": {
            "d": (6, 8, 12, 16),
            "d_scalar": (4, 6, 8),
            "d_width": (6, 8, 12, 16),
            "trials": 10,
            "m_lazy": 512,
            "m_flow": 256,
            "m_scalar": 1024,
            "steps": 300,
            "steps_noisy": 600,
            "steps_scalar": 150,
            "lam": 1e-3,
        },
        "paper": {
            "d": (8, 12, 16, 24, 32, 48),
            "d_scalar": (4, 6, 8, 10),
            "d_width": (8, 12, 16, 24, 32),
            "trials": 32,
            "m_lazy": 4096,
            "m_flow": 1024,
            "m_scalar": 16384,
            "steps": 1000,
            "steps_noisy": 3000,
            "steps_scalar": 400,
            "lam": 3e-4,
        },
    },
}


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Mean over trials and its standard error."""
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.inf


# Figure 1


@dataclass(frozen=True)
class Plane:
    """|a_j| v_j in the first two coordinates (B, m, 2)."""

    def __call__(self, t: Tensor, params: Mapping[str, Tensor]) -> Tensor:
        return params["a"].abs()[:, :, None] * params["V"][:, :, :2]


def top_share(norms: np.ndarray, share: float = 0.1) -> np.ndarray:
    """Part of the sum of the norms (B, m) that the largest share of neurons has, between neurons linearly."""
    m = norms.shape[1]
    curve = np.cumsum(np.sort(norms, axis=1)[:, ::-1], axis=1) / norms.sum(1, keepdims=True)
    return np.array([np.interp(share * m, np.arange(m + 1), np.append(0, row)) for row in curve])


def alignment(norms: np.ndarray, cosines: np.ndarray) -> np.ndarray:
    """Correlation over neurons between norm and cosine (B,); 0 where one of them does not vary."""

    def one(x: np.ndarray, y: np.ndarray) -> float:
        x, y = x - x.mean(), y - y.mean()
        size = math.sqrt((x @ x) * (y @ y))
        return float(x @ y / size) if size > 1e-12 * len(x) else 0.0

    return np.array([one(*pair) for pair in zip(norms, cosines)])


def _figure_1_run(job: Job, m: int, size: Mapping[str, Any], layers: str) -> dict[str, np.ndarray]:
    """Gradient descent for both widths on the same data sets, then steps in CB's clock from the same starts."""
    B = size["seeds"]
    sets = [data.parity(20, 64, seed=1000 * job.seed + s) for s in range(B)]
    net = flows.TwoLayer(20, m, train=layers)

    def compute() -> dict[str, Any]:
        how: dict[str, Any] = {"trials": B, "seed": job.seed, "device": job.device, "points": size["points"]}
        seen = {"plane": Plane(), "rotation": None, "neuron_norm": None, "margin": None, "t_cb": None, "t_mean": None}
        near = flows.train(sets, net, flows.GD(size["lr"]), steps=size["steps"], observe=seen, **how)
        del seen["plane"]
        late = flows.train(sets, net, flows.CB(size["late_lr"]), steps=size["late"], observe=seen, **how)
        found: dict[str, Any] = {"plane": near["plane"], "sign": np.sign(near.final["a"])}
        for name, run in (("", near), ("late_", late)):
            found |= {f"{name}rotation": run["rotation"][-1], f"{name}norm": run["neuron_norm"][-1]}
            found |= {f"{name}median": np.median(run["rotation"], axis=2), f"{name}t_cb": run["t_cb"]}
            found |= {f"{name}top": np.stack([top_share(row) for row in run["neuron_norm"]])}
            found |= {f"{name}margin": run["margin"], f"{name}t_mean": run["t_mean"]}
        return found

    return job.keep(f"m{m}", {"m": m, "layers": layers, **size}, compute)


def judge_figure_1(narrow: Mapping[str, np.ndarray], wide: Mapping[str, np.ndarray]) -> list[Verdict]:
    """Verdicts from what the runs with m = 16 and m = 256 on the same data sets have as `rotation`, `norm` and so on."""
    pair = (narrow, wide)
    median = [np.median(one["rotation"], axis=1) for one in pair]
    more = median[1] - median[0]
    gain, error = mean_and_error(more)
    found = [
        Verdict(
            "rotation is smaller at m = 256: the median cosine is larger than at m = 16 by more than two standard errors",
            f"{median[1].mean():.3f} against {median[0].mean():.3f}",
            "larger width leads to less rotation (Figure 1c)",
            gain > 2 * error,
            f"difference {gain:.3f} +- {error:.3f}",
        ),
        Verdict(
            "the trend is consistent across runs: it has this sign in at least 9 of 10 runs",
            float((more > 0).mean()),
            "consistent across runs",
            bool((more > 0).mean() >= 0.9),
        ),
    ]
    for name, one in zip(("m = 16", "m = 256"), pair):
        r, error = mean_and_error(alignment(one["norm"], one["rotation"]))
        found.append(
            Verdict(
                f"large norm and large rotation go together at {name}: norm and cosine correlate below 0 by two errors",
                r,
                "large norm and large rotation go together",
                r < -2 * error,
                error,
            )
        )
    relative = [(one["norm"] / one["norm"].max(1, keepdims=True)).mean(1) for one in pair]
    gain, error = mean_and_error(relative[0] - relative[1])
    found.append(
        Verdict(
            "norms are more unequal at m = 256: the mean of the curve of Figure 1d is lower by two standard errors",
            f"{relative[1].mean():.3f} against {relative[0].mean():.3f}",
            "larger width leads to greater norm imbalance (Figure 1d)",
            gain > 2 * error,
            f"difference {gain:.3f} +- {error:.3f}",
        )
    )
    top = [top_share(one["norm"]) for one in pair]
    gain, error = mean_and_error(top[1] - top[0])
    found.append(
        Verdict(
            "the largest tenth of the neurons has a larger share of the norm at m = 256 by two standard errors",
            f"{top[1].mean():.3f} against {top[0].mean():.3f}",
            "greater norm imbalance (in words only; this measure is ours)",
            UNDECIDED if abs(gain) <= 2 * error else gain > 0,
            f"difference {gain:.3f} +- {error:.3f}",
            "within two standard errors at this time" if abs(gain) <= 2 * error else "",
        )
    )
    spread = [float(one.std(ddof=1)) for one in median]
    found.append(
        Verdict(
            "m = 16 is noisy, m = 256 regular: the median cosine varies less from run to run at m = 256",
            f"standard deviation {spread[1]:.4f} against {spread[0]:.4f}",
            "Figure 1a is highly noisy, Figures 1b to 1d highly regular",
            spread[1] < spread[0],
        )
    )
    loss, error = mean_and_error(median[1] - np.median(wide["late_rotation"], axis=1))
    late = [float(np.median(one["late_rotation"], axis=1).mean()) for one in pair]
    found.append(
        Verdict(
            "low rotation is a finite-time effect (ours): much later the median cosine at m = 256 has fallen by two errors",
            f"{late[1]:.3f} (m = 16: {late[0]:.3f}) at margin {np.median(wide['late_margin'][-1]):.3g}",
            "nothing on the horizon; Section 4 asks whether low rotation can be proved",
            loss > 2 * error,
            f"fall {loss:.3f} +- {error:.3f}",
        )
    )
    gain, error = mean_and_error(top_share(wide["late_norm"]) - top_share(narrow["late_norm"]))
    found.append(
        Verdict(
            "the norm imbalance stays (ours): much later the largest tenth has a larger share at m = 256 by two errors",
            f"{top_share(wide['late_norm']).mean():.3f} against {top_share(narrow['late_norm']).mean():.3f}",
            "nothing on the horizon",
            gain > 2 * error,
            f"difference {gain:.3f} +- {error:.3f}",
        )
    )
    return found


@reproduction(
    "lr-1", paper="LR", shows="Figure 1: rotations and norms on 2-sparse parity", quick=35, full=40, claims=("LR-32",)
)
def figure_1(job: Job, layers: str = "both") -> Outcome:
    """LR Figure 1 a-d (LR-32), and the same much later. `layers`: "output" is for the test that verdicts can fail."""
    size = SIZES["lr-1"][job.scale]
    runs = {m: _figure_1_run(job, m, size, layers) for m in (16, 256)}
    verdicts = judge_figure_1(runs[16], runs[256])
    shown = data.parity(20, 64, seed=1000 * job.seed)
    arrays = {f"{name}_{m}": value for m, one in runs.items() for name, value in one.items()}
    settings = {
        "data": f"2-sparse parity, d = 20, n = 64, {size['seeds']} data sets, the same for both widths",
        "loss": "logistic",
        "start": "a ~ N(0, 1/m), V ~ N(0, 1/d), as in the paper's Section 1.2",
        "near": f"gradient descent on the mean risk, step {size['lr']}, {size['steps']} steps",
        "late": f"CB's ascent from the same starts, steps {size['late_lr']}/sqrt(t + 1) in its clock, {size['late']} of them",
        "why": "step size, horizon and seeds are not in the paper; time 4000 is where training points are well fitted",
        **size,
    }
    late = {m: float(np.median(one["late_margin"][-1])) for m, one in runs.items()}
    words = (
        f"Two runs of the {size['seeds']} are drawn in (a) and (b). The paper gives no step size, horizon or seeds: ours is "
        f"time {size['lr'] * size['steps']:g} of the mean risk. In (e) and (f) networks from the same starts go on, in CB's "
        f"normalised clock, to unnormalised margins of about {late[256]:.0e}: they rotate after all, also the wide ones, "
        "while the imbalance of norms grows."
    )
    return Outcome({"figure": _draw_1(runs, shown)}, arrays, settings, verdicts, words)


def _draw_1(runs: Mapping[int, Mapping[str, np.ndarray]], shown: Dataset) -> Figure:
    from matplotlib.figure import Figure

    from widemargin.plots import INK, PLUS, THIRD

    figure = Figure(figsize=(11, 6.8), layout="constrained")
    grid = figure.subplots(2, 3)
    for axes, (m, one), letter in zip((grid[0, 0], grid[0, 1]), runs.items(), "ab"):
        _draw_paths(axes, one, shown)
        axes.set_title(f"({letter}) trajectories of $|a_j| v_j$, m = {m}", loc="left", fontsize=10)
    colours = {16: THIRD, 256: PLUS}
    for axes, key, letter, title in (
        (grid[1, 0], "rotation", "c", "sorted rotations"),
        (grid[1, 1], "norm", "d", "sorted relative norms"),
    ):
        for m, one in runs.items():
            values = one[key] if key == "rotation" else one[key] / one[key].max(1, keepdims=True)
            rank = (np.arange(m) + 0.5) / m
            for row in np.sort(values, axis=1):
                axes.plot(rank, row, color=colours[m], lw=0.6, alpha=0.35)
            axes.plot(rank, np.median(np.sort(values, axis=1), axis=0), color=colours[m], lw=2, label=f"m = {m}")
        axes.set_title(f"({letter}) {title}", loc="left", fontsize=10)
        axes.set_xlabel("neurons in order, as a share of the width")
        axes.legend(frameon=False, fontsize=9)
    grid[1, 0].set_ylabel(r"$\langle v_j(0), v_j(t)\rangle\,/\,\|v_j(0)\|\,\|v_j(t)\|$")
    grid[1, 1].set_ylabel(r"$\|a_j v_j\|\,/\,\max_k \|a_k v_k\|$")
    axes, below = grid[0, 2], grid[1, 2]
    for m, one in runs.items():
        for panel, key in ((axes, "late_median"), (below, "late_top")):
            t, rows = np.median(one["late_margin"], axis=1), one[key]
            well = t > 0.05
            low, middle, high = np.percentile(rows, (10, 50, 90), axis=1)
            panel.fill_between(t[well], low[well], high[well], color=colours[m], alpha=0.2, lw=0)
            panel.plot(t[well], middle[well], color=colours[m], lw=2, label=f"m = {m}")
        end = float(np.median(one["margin"][-1]))
        axes.plot([end], [np.median(one["median"][-1])], "o", color=colours[m], mec=INK, ms=6)
        below.plot([end], [np.median(one["top"][-1])], "o", color=colours[m], mec=INK, ms=6)
    axes.set_title("(e) later: median cosine", loc="left", fontsize=10)
    below.set_title("(f) later: share of the largest tenth", loc="left", fontsize=10)
    for panel in (axes, below):
        panel.plot([], [], "o", color="white", mec=INK, ms=6, label="end of (a) to (d)")
        panel.set_xscale("log")
        panel.set_xlabel("smallest margin, not normalised")
        panel.set_ylim(0, 1.02)
        panel.legend(frameon=False, fontsize=9, loc="lower left" if panel is axes else "upper left")
    for panel in grid.flat:
        panel.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_paths(axes: Axes, one: Mapping[str, np.ndarray], shown: Dataset) -> None:
    """One run: neurons from start (thin end) to end (dot), coloured by sgn(a_j), darker if the norm is larger."""
    from widemargin.plots import MINUS, PLUS

    path, sign, norm = one["plane"][:, 0], one["sign"][0], one["norm"][0]
    darkness = np.clip(norm / norm.max(), 0.3, 1)
    for j in np.argsort(norm):
        colour = PLUS if sign[j] > 0 else MINUS
        axes.plot(path[:, j, 0], path[:, j, 1], color=colour, lw=1.1, alpha=darkness[j])
        axes.plot(*path[-1, j], "o", color=colour, ms=4, alpha=darkness[j], mew=0)
    # The data is drawn on the scale of the neurons: only its four directions matter.
    reach = np.abs(path).max()
    rng = np.random.default_rng(0)
    spot = 0.92 * reach * np.sign(shown.X[:, :2]) + 0.035 * reach * rng.standard_normal((shown.n, 2))
    for label, colour, mark in ((1, PLUS, "+"), (-1, MINUS, "x")):
        rows = spot[shown.y == label]
        axes.plot(rows[:, 0], rows[:, 1], mark, color=colour, ms=5, mew=1, label=f"data, y = {label:+d}")
    axes.set_aspect("equal")
    axes.set_xlim(-1.15 * reach, 1.15 * reach)
    axes.set_ylim(-1.15 * reach, 1.5 * reach)
    axes.set_xlabel("coordinate 1")
    axes.set_ylabel("coordinate 2")
    axes.legend(frameon=False, fontsize=8, loc="upper center", ncols=2)


# Figure 2


def linear_point(sets: Sequence[Dataset], m: int = 8) -> tuple[flows.Problem, dict[str, Tensor]]:
    """The network that is the best linear predictor u: all neurons v_j = u, a_j = |u| (LR Proposition 2.6)."""
    u = np.stack([_unit(np.asarray(margins.linear(one, tol=1e-12).extra["u"], dtype=float)) for one in sets])  # (B, d)
    problem = flows.pose(flows.TwoLayer(sets[0].d, m), list(sets), "logistic")
    V = torch.tensor(np.repeat(u[:, None, :], m, axis=1))
    return problem, {"a": torch.ones(V.shape[:2], dtype=V.dtype), "V": V}


def _unit(u: np.ndarray) -> np.ndarray:
    return u / np.linalg.norm(u)


def two_relu_margin(one: Dataset, v1: int, v2: int) -> float:
    """min_x (relu(-v1 . x) + relu(-v2 . x)) / 2 over the data, v1 and v2 rows of it (LR Proposition 2.6, E-LR-16)."""
    H = np.maximum(-one.X @ one.X[[v1, v2]].T, 0)
    return float(H.mean(1).min())


def plane_linear_margin(alpha: float) -> float:
    """sin(arcsin(alpha) / 2), the linear margin of `data.bad_kkt_plane`."""
    return math.sin(math.asin(alpha) / 2)


def _bounds(job: Job, family: str, size: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """What does not need training, against alpha: certified and linear margins, the KKT residual, two ReLUs."""
    sets = [_bad_kkt(family, alpha, size["d"]) for alpha in size["alphas"]]

    def compute() -> dict[str, Any]:
        certified = [margins.f1(one, tol=1e-4) for one in sets]
        problem, W = linear_point(sets)
        second = 1 if family == "plane" else 10
        return {
            "linear": [margins.linear(one).lower for one in sets],
            "lower": [one.lower for one in certified],
            "upper": [one.upper for one in certified],
            "residual": flows.kkt_residual(problem, W).numpy(),
            "two": [two_relu_margin(one, 0, second) for one in sets],
            "linear_M2": (problem.margins(W).amin(1) / problem.net.norm2(W)).numpy(),
        }

    return job.keep(f"{family}-bounds", {"family": family, "alphas": size["alphas"], "d": size["d"]}, compute)


def _flow(job: Job, family: str, size: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Gradient flow for every alpha and seed: margins in M2, and one trained network for every alpha."""
    sets = [_bad_kkt(family, alpha, size["d"]) for alpha in size["alphas"]]

    def compute() -> dict[str, Any]:
        each = [one for one in sets for _ in range(size["seeds"])]
        net = flows.TwoLayer(sets[0].d, size["m"])
        how: dict[str, Any] = {"trials": len(each), "seed": job.seed, "device": job.device, "points": 20}
        run = flows.train(each, net, flows.GradientFlow(), steps=size["steps"], observe=["margins", "log_norm"], **how)
        shape = (len(sets), size["seeds"])
        last = {"found": run["margin_M2"][-1].reshape(shape), "log_norm": run["log_norm"][-1].reshape(shape)}
        a, V = run.final["a"].reshape(*shape, -1), run.final["V"].reshape(*shape, net.m, net.d)
        return last | {"a": a[:, 0], "V": V[:, 0]}

    return job.keep(f"{family}-flow", {"family": family, **size}, compute)


def _bad_kkt(family: str, alpha: float, d: int) -> Dataset:
    if family == "plane":
        return data.bad_kkt_plane(alpha)
    return data.bad_kkt_cones(d=d, n1=10, n2=10, half_angle=0.1, alpha=alpha)


def judge_figure_2(family: str, alphas: Sequence[float], one: Mapping[str, np.ndarray]) -> list[Verdict]:
    """Verdicts on margins (in M2) of gradient flow `found` (alphas, seeds), `linear`, certified `lower` and `upper`."""
    found, half = one["found"], one["linear"] / 2
    name = {"plane": "three points of the plane", "cones": "two cones"}[family]
    ratio = found / one["upper"][:, None] * 2
    over = found.min(1) > one["linear"]  # as printed, in unequal normalisations
    gap = float((one["upper"] / one["lower"] - 1).max())
    return [
        Verdict(
            f"{name}: the linear predictor is a KKT point, residual at most 1e-4 at every alpha",
            float(one["residual"].max()),
            "the maximum margin linear predictor is also a KKT point (Proposition 2.6.1)",
            bool(one["residual"].max() <= 1e-4),
        ),
        Verdict(
            f"{name}: the linear margin becomes arbitrarily small: at most alpha at every alpha",
            float(one["linear"][0]),
            "still a positive margin, but arbitrarily small (Figure 2)",
            bool((one["linear"] > 0).all() and (one["linear"] <= np.asarray(alphas)).all()),
            reason="" if (one["linear"] <= np.asarray(alphas)).all() else "larger than alpha somewhere",
        ),
        Verdict(
            f"{name}: two ReLUs at -v1, -v2 with weights 1/2 have margin at least 1/(2 sqrt 2) at every alpha",
            float(one["two"].min()),
            "prints 1/sqrt 2 (E-LR-16); a much better margin than u's",
            bool(one["two"].min() >= math.sqrt(0.125) - 1e-9),
        ),
        Verdict(
            f"{name}: gradient flow ends strictly above the linear KKT point, gamma_hat/2 in M2, in every run",
            float((found / half[:, None]).min()),
            "lim margin > gamma_hat (Proposition 2.6.2; gamma_hat/2 in the same normalisation, E-LR-16)",
            bool((found > half[:, None]).all()),
            f"smallest ratio of {found.size} runs",
        ),
        Verdict(
            f"{name}: as printed, there is an alpha at which every run ends above gamma_hat itself",
            float(over.sum()),
            "there is a gamma_hat with lim margin > gamma_hat",
            bool(over.any()),
            f"of {len(over)} values of alpha",
        ),
        Verdict(
            f"{name}: gradient flow comes within 3 percent of the certified gamma_gl/2 in every run",
            float(ratio.min()),
            "nothing (the paper's guarantee is gamma_ntk^2/4096 only); the certified line is ours",
            bool(ratio.min() >= 0.97),
            f"certified to {gap:.1e}",
        ),
    ]


@reproduction(
    "lr-2",
    paper="LR",
    shows="Figure 2: gradient flow escapes a bad KKT point",
    quick=35,
    full=90,
    claims=("LR-33", "LR-19"),
)
def figure_2(job: Job) -> Outcome:
    """LR Figure 2 (LR-33, LR-19): the sketch with what training finds, and margins against alpha."""
    size = SIZES["lr-2"][job.scale]
    found = {family: _bounds(job, family, size) | _flow(job, family, size) for family in ("plane", "cones")}
    # The sketch of the paper lives in the plane.
    sketch = _flow(job, "cones", {**size, "alphas": (0.1,), "d": 2, "seeds": 1})
    verdicts = [v for family, one in found.items() for v in judge_figure_2(family, size["alphas"], one)]
    arrays = {f"{family}_{name}": value for family, one in found.items() for name, value in one.items()}
    arrays |= {"alphas": np.array(size["alphas"])} | {f"sketch_{name}": value for name, value in sketch.items()}
    settings = {
        "plane": "v1 at 0, v2 at 135 degrees, z at 90 degrees + arccos(alpha)",
        "cones": f"d = {size['d']}, 10 points in each of two cones of half angle 0.1, z_alpha",
        "algorithm": "gradient flow of the logistic loss from the start of LR Section 1.2, adaptive steps, to |W| > e^50",
        "why": "Figure 2 is a sketch without numbers; the margin against alpha is what Proposition 2.6 is about",
        **size,
    }
    words = (
        "All margins are in the normalisation |W|^2 of the paper (M2), so the linear predictor of margin gamma_hat counts as "
        "gamma_hat/2 (E-LR-16). Gradient flow starts from random weights; its dots lie on the certified line gamma_gl/2."
    )
    figure = _draw_2(_bad_kkt("cones", 0.1, 2), sketch, size["alphas"], found)
    return Outcome({"figure": figure}, arrays, settings, verdicts, words)


def _draw_2(
    shown: Dataset, sketch: Mapping[str, np.ndarray], alphas: Sequence[float], found: Mapping[str, Any]
) -> Figure:
    from matplotlib.figure import Figure

    from widemargin.plots import INK, MINUS, PLUS, QUIET, THIRD

    figure = Figure(figsize=(11.5, 4.1), layout="constrained")
    sketched, *panels = figure.subplots(1, 3, width_ratios=(1, 1.1, 1.1))
    half = 0.1
    for middle, name in ((0.0, "$S_1$"), (0.75 * math.pi + 2 * half, "$S_2$")):
        angle = middle + np.linspace(-half, half, 20)
        corner = np.vstack([[0, 0], 1.12 * np.column_stack([np.cos(angle), np.sin(angle)])])
        sketched.fill(*corner.T, color=PLUS, alpha=0.12, lw=0)
        sketched.annotate(name, 1.24 * np.array([math.cos(middle), math.sin(middle)]), ha="center", va="center")
    sketched.plot(*shown.X[:-1].T, "x", color=PLUS, ms=6, mew=1.3, label="data, y = +1")
    sketched.plot(*shown.X[-1], "D", color=PLUS, mfc="white", ms=6, label=r"the added point $z_\alpha$")
    u = linear_point([shown], 1)[1]["V"][0, 0].numpy()
    _arrow(sketched, 0.8 * u, QUIET, "linear KKT point u")
    mass = np.abs(sketch["a"][0]) * np.linalg.norm(sketch["V"][0], axis=1)
    size = np.linalg.norm(sketch["V"][0], axis=1, keepdims=True)
    theta = sketch["V"][0] / np.where(size > 0, size, 1)
    label = "ReLUs of the trained network"
    for j in np.argsort(-mass):
        if mass[j] < 0.02 * mass.sum():
            break
        _arrow(sketched, 0.8 * theta[j], THIRD, label)
        label = ""
    sketched.set_aspect("equal")
    sketched.set_xlim(-1.4, 1.45)
    sketched.set_ylim(-0.35, 2.0)
    sketched.set_title(r"(a) two cones, $\alpha = 0.1$", loc="left", fontsize=10)
    sketched.legend(frameon=False, fontsize=8, loc="upper center", ncols=1)
    sketched.set_xticks([])
    sketched.set_yticks([])
    names = {"plane": "(b) three points of the plane", "cones": "(c) two cones in higher dimension"}
    for axes, (family, one) in zip(panels, found.items()):
        axes.plot(alphas, (one["lower"] + one["upper"]) / 4, color=INK, lw=1.8, label=r"certified $\gamma_{gl}/2$")
        axes.errorbar(
            alphas,
            one["found"].mean(1),
            [one["found"].mean(1) - one["found"].min(1), one["found"].max(1) - one["found"].mean(1)],
            fmt="o",
            color=THIRD,
            ms=5,
            capsize=3,
            label=f"gradient flow, {one['found'].shape[1]} runs",
        )
        axes.plot(
            alphas, one["two"] / 2, color=MINUS, ls="--", lw=1.5, marker="v", ms=4, label=r"two ReLUs at $-v_1, -v_2$"
        )
        axes.plot(
            alphas, one["linear"] / 2, color=QUIET, lw=1.8, marker="s", ms=4, label=r"linear KKT point $\hat\gamma/2$"
        )
        axes.set_xscale("log")
        axes.set_ylim(0, 0.29)
        axes.set_xlabel(r"$\alpha$")
        axes.set_title(names[family], loc="left", fontsize=10)
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(0.01, 0.42))
    panels[0].set_ylabel(r"margin $\min_i p_i / \|W\|^2$")
    sketched.spines[:].set_visible(False)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _arrow(axes: Axes, tip: np.ndarray, colour: str, label: str) -> None:
    look = {"arrowstyle": "-|>", "color": colour, "lw": 2, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (float(tip[0]), float(tip[1])), (0, 0), arrowprops=look)
    if label:
        axes.plot([], [], color=colour, lw=2, label=label)


# Table 1


@dataclass(frozen=True)
class Lazy(flows.TwoLayer):
    """f(x) = (1/sqrt m) sum_j s_j relu(w_j . x), s_j = +-1 stay, w_j ~ N(0, I) are trained: row a of Table 1 (LR-34)."""

    name = "lazy"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(trained=("V",), homogeneous=("V",), degree=1)

    @property
    def factor(self) -> float:
        return 1 / math.sqrt(self.m)

    def draw(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {"a": rng.choice([-1.0, 1.0], self.m), "V": rng.standard_normal((self.m, self.d))}


class Learned:
    """The test error of a trial is at most `error`: on the whole cube if d <= 10, else on 1024 fresh corners."""

    def __init__(self, d: int, error: float = ERROR):
        self.d, self.error = d, error

    def __repr__(self) -> str:
        return f"Learned(d={self.d}, error={self.error})"

    def prepare(self, problem: flows.Problem, start: Mapping[str, Tensor]) -> None:
        test = held_out(self.d)
        self.X, self.y = (torch.tensor(part).to(problem.X) for part in (test.X[None], test.y[None]))

    def reached(self, problem: flows.Problem, W: dict[str, Tensor], state: Any, start: Any) -> Tensor:
        return (self.y * problem.net.forward(W, self.X) <= 0).to(self.X).mean(1) <= self.error


def held_out(d: int) -> Dataset:
    return data.parity(d, marginal="full") if d <= 10 else data.parity(d, 1024, seed=10**6)


def hitting_times(
    d: int, net: flows.Net, rule: flows.Rule, steps: int, trials: int, seed: int, device: str
) -> np.ndarray:
    """Steps (B,) until the test error is at most 0.1, looked at every d^2 / 10 steps; infinite where `steps` do not do.

    Theorem 2.1 is about the best iterate, so the first time counts.
    """
    run = flows.train(
        data.parity(d, 2, seed=0),  # only its shape counts: examples are fresh
        net,
        rule,
        steps=steps,
        times=[steps],
        until=Learned(d),
        check_every=max(1, d * d // 10),
        trials=trials,
        observe=["step"],
        seed=seed,
        device=device,
    )
    return np.where([word == "reached" for word in run.status], run["step"][-1], math.inf)


def errors_after(
    d: int, n: int, net: flows.Net, rule: flows.Rule, steps: int, trials: int, seed: int, device: str
) -> np.ndarray:
    """Test errors (B,) after full-batch training on B sets of n examples."""
    sets = [data.parity(d, n, seed=seed + 10_000 * n + b) for b in range(trials)]
    how: dict[str, Any] = {"trials": trials, "seed": seed, "device": device, "times": [steps], "steps": steps}
    return flows.train(sets, net, rule, observe=["test_error"], test=held_out(d), **how)["test_error"][-1]


def samples_needed(n: np.ndarray, errors: np.ndarray) -> float:
    """The n at which the median of errors (k, B) over trials passes 0.1, between grid points on ln n; inf if it does not."""
    middle = np.median(errors, axis=1)
    good = np.flatnonzero(middle <= ERROR)
    if not len(good):
        return math.inf
    k = good[0]
    if k == 0:
        return float(n[0])
    part = (middle[k - 1] - ERROR) / (middle[k - 1] - middle[k])
    return float(n[k - 1] * (n[k] / n[k - 1]) ** part)


def search_samples(errors: Callable[[int], np.ndarray], d: int, most: int = 9) -> tuple[np.ndarray, np.ndarray]:
    """Test errors (k, B) on a grid of n with ratio sqrt 2 that begins above and ends below a median of 0.1."""
    grid = [2 * d]
    found = [errors(2 * d)]
    while np.median(found[0]) <= ERROR and grid[0] > 4:  # too easy: go down
        grid.insert(0, round(grid[0] / math.sqrt(2)))
        found.insert(0, errors(grid[0]))
    while np.median(found[-1]) > ERROR and len(grid) < most:
        grid.append(round(grid[-1] * math.sqrt(2)))
        found.append(errors(grid[-1]))
    return np.array(grid), np.stack(found)


@dataclass(frozen=True)
class Slope:
    """ln of what is needed against ln d: exponent, interval, and the values."""

    d: np.ndarray
    needed: np.ndarray
    exponent: float
    low: float
    high: float
    draws: np.ndarray  # exponents of resampled trials


def fit(d: Sequence[int], needed: Sequence[float] | np.ndarray, resampled: np.ndarray) -> Slope:
    """Least squares on logarithms; the interval holds 95 percent of the fits to `resampled` (draws, len(d)).

    Values that were not reached are left out; with fewer than two of them there is nothing to fit.
    """
    x, y = np.log(np.asarray(d, dtype=float)), np.asarray(needed, dtype=float)
    use = np.isfinite(y)
    if use.sum() < 2:
        return Slope(np.asarray(d), y, math.nan, -math.inf, math.inf, np.array([math.nan]))

    def exponents(values: np.ndarray) -> np.ndarray:
        """Slopes (draws,) through the finite ones of values (draws, len(d))."""
        w = use & np.isfinite(values)
        z = np.where(w, np.log(np.where(w, values, 1.0)), 0.0)
        count = w.sum(1, keepdims=True)
        far = np.where(w, x - (w * x).sum(1, keepdims=True) / np.maximum(count, 1), 0.0)
        return np.where(count[:, 0] > 1, (far * z).sum(1) / np.maximum((far**2).sum(1), 1e-300), math.nan)

    draws = exponents(np.asarray(resampled))
    draws = draws[np.isfinite(draws)]
    low, high = np.percentile(draws, (2.5, 97.5)) if len(draws) else (-math.inf, math.inf)
    return Slope(np.asarray(d), y, float(exponents(y[None])[0]), float(low), float(high), draws)


def fit_hits(d: Sequence[int], hits: Sequence[np.ndarray], plus: Sequence[float] | None = None, seed: int = 0) -> Slope:
    """From steps (B,) of every d, and samples spent before."""
    rng = np.random.default_rng(seed)
    more = np.zeros(len(d)) if plus is None else np.asarray(plus)
    needed = [_middle(h) + p for h, p in zip(hits, more)]
    draws = [
        [_middle(rng.choice(h, len(h))) + p if np.isfinite(_middle(h)) else math.inf for h, p in zip(hits, more)]
        for _ in range(RESAMPLES)
    ]
    return fit(d, needed, np.array(draws))


def _middle(hits: np.ndarray) -> float:
    """The upper median: finite only if more than half are, or exactly the half and one."""
    return float(np.sort(hits)[len(hits) // 2])


def fit_errors(d: Sequence[int], found: Sequence[tuple[np.ndarray, np.ndarray]], seed: int = 0) -> Slope:
    """From a grid of n and test errors (k, B) of every d."""
    rng = np.random.default_rng(seed)

    def again(n: np.ndarray, errors: np.ndarray) -> float:
        pick = rng.integers(errors.shape[1], size=errors.shape)
        value = samples_needed(n, np.take_along_axis(errors, pick, 1))
        return value if math.isfinite(value) else float(n[-1])  # the grid ends just below 0.1

    needed = [samples_needed(*one) for one in found]
    draws = [[again(*one) if math.isfinite(v) else math.inf for one, v in zip(found, needed)] for _ in range(RESAMPLES)]
    return fit(d, needed, np.array(draws))


def width_needed(widths: np.ndarray, shares: np.ndarray) -> float:
    """The width at which half of the trials succeed, between those tried on ln m; infinite if it is not among them."""
    good = np.flatnonzero(shares > 0.5)
    if not len(good):
        return math.inf
    k = good[0]
    if k == 0:
        return float(widths[0])
    part = (0.5 - shares[k - 1]) / (shares[k] - shares[k - 1])
    return float(widths[k - 1] * (widths[k] / widths[k - 1]) ** part)


def fit_widths(d: Sequence[int], tried: Sequence[tuple[np.ndarray, np.ndarray]], trials: int, seed: int = 0) -> Slope:
    """From widths and shares of successful trials of every d; the interval is over the numbers of successes."""
    rng = np.random.default_rng(seed)

    def again(widths: np.ndarray, shares: np.ndarray) -> float:
        # One success and one failure are added, so that a share of 0 or 1 is not taken for certain.
        value = width_needed(widths, rng.binomial(trials, (trials * shares + 0.5) / (trials + 1)) / trials)
        return min(value, float(widths[-1]))

    needed = [width_needed(*one) for one in tried]
    draws = [[again(*one) if math.isfinite(v) else math.inf for one, v in zip(tried, needed)] for _ in range(RESAMPLES)]
    return fit(d, needed, np.array(draws))


ROWS: dict[str, tuple[str, str, str, str, str]] = {  # algorithm, technique, claims on m, n, t
    "a": ("SGD, inner layer (Ji-Telgarsky)", "perceptron", "d^8", "d^2/eps", "d^2/eps"),
    "b": ("SGD (Theorem 2.1), tuned step", "perceptron", "d^2", "d^2/eps", "d^2/eps"),
    "b0": ("SGD (Theorem 2.1), step ~ 1/d^2", "perceptron", "d^2", "d^2/eps", "d^2/eps"),
    "c": ("two-phase SGD (Barak et al.)", "correlation", "O(1)", "d^4/eps^2", "d^2/eps^2"),
    "d": ("WF + noise (Wei et al.)", "margin", "inf", "d/eps", "inf"),
    "e": ("WF (Chizat-Bach)", "margin", "inf", "d/eps", "inf"),
    "f": ("scalar GF (Theorem 3.3)", "margin", "d^d", "d/eps", "inf"),
}
CLAIMED = {
    "n": {"a": 2.0, "b": 2.0, "b0": 2.0, "c": 4.0, "d": 1.0, "e": 1.0, "f": 1.0},
    "m": {"a": 8.0, "b": 2.0, "c": 0.0},
    "t": {"a": 2.0, "b": 2.0, "b0": 2.0, "c": 2.0},
}
UNFAIR = (
    "Theorem 2.1 itself needs m >= (640/gamma)^2 > 10^9 and is not run; this is its scaling of the step at m = 4 d^2, where "
    "E-LR-4 leaves d^3 (the next claim)"
)
STEPS_B = (4.0, 8.0, 16.0, 32.0)  # tuned step of row b: these times d/m
LARGEST_B = 0.3  # and at most this, for narrow networks
STEP_C1, STEP_C2, WIDTH_C = 100.0, 0.1, 64
BATCHES_C = (0.25, 0.5, 1.0, 2.0, 4.0)  # first batch over d^2


def _lazy(d: int, m: int, stream: flows.ParityStream) -> tuple[flows.Net, flows.Rule]:
    return Lazy(d, m), flows.SGD(lr=1.0, sampler=stream)


def _sgd(d: int, m: int, step: float, stream: flows.ParityStream) -> tuple[flows.Net, flows.Rule]:
    return flows.TwoLayer(d, m), flows.SGD(lr=min(step, LARGEST_B), sampler=stream)


def _two_phase(d: int, m: int, batch: int, stream: flows.ParityStream) -> tuple[flows.Net, flows.Rule]:
    rule = flows.TwoPhase(lr1=STEP_C1, batch1=batch, lr2=STEP_C2, sampler=stream)
    return flows.TwoLayer(d, m, law="sphere"), rule


def narrowest(succeed: Callable[[int], np.ndarray], widths: Sequence[int]) -> np.ndarray:
    """(2, k) widths and the shares of trials that succeed, up to the first at which more than half do."""
    found: list[tuple[float, float]] = []
    for m in widths:
        found.append((float(m), float(np.mean(succeed(m)))))
        if found[-1][1] > 0.5:
            break
    return np.array(found).T


def _streams(job: Job, d: int, size: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Rows a, b and c in dimension d: steps of every trial, and the smallest widths."""
    stream = flows.ParityStream(d, seed=job.seed + 1)

    def hits(made: tuple[flows.Net, flows.Rule], steps: float) -> np.ndarray:
        return hitting_times(d, *made, math.ceil(steps), size["trials"], job.seed, job.device)

    def compute() -> dict[str, Any]:
        found: dict[str, Any] = {}
        found["a"] = hits(_lazy(d, size["m_lazy"], stream), 12 * d * d)
        m = 4 * d * d
        tried = np.stack([hits(_sgd(d, m, k * d / m, stream), 8 * d * d) for k in STEPS_B])
        best = int(np.argmin([_middle(one) for one in tried]))
        found |= {"b": tried[best], "b_tried": tried, "b_step": STEPS_B[best]}
        # Theorem 2.1 has eta ~ gamma / sqrt m with gamma ~ 1/d: ~ 1/d^2 at this width; 6 makes it the tuned one at d = 6.
        found["b0"] = hits(_sgd(d, m, 6 / d**2, stream), 24 * d * d)
        batches = [max(2, round(k * d * d)) for k in BATCHES_C]
        tried = np.stack([hits(_two_phase(d, WIDTH_C, batch, stream), 4 * d * d) for batch in batches])
        total = [_middle(one) + batch for one, batch in zip(tried, batches)]
        best = int(np.argmin(total))
        found |= {"c": tried[best], "c_tried": tried, "c_batch": batches[best]}
        return found

    def widths() -> dict[str, Any]:
        narrow = [2**k for k in range(1, 10)]
        long_a, long_b, k = 3 * _middle(main["a"]), 3 * _middle(main["b"]), float(main["b_step"])
        batch = min(d**4, 2**15)  # the claim on width comes with d^4 samples
        return {
            "m_a": narrowest(lambda m: np.isfinite(hits(_lazy(d, m, stream), long_a)), narrow),
            "m_b": narrowest(lambda m: np.isfinite(hits(_sgd(d, m, k * d / m, stream), long_b)), narrow),
            "m_c": narrowest(lambda m: np.isfinite(hits(_two_phase(d, m, batch, stream), 4 * d * d)), narrow),
        }

    key = {"d": d, "trials": size["trials"], "m_lazy": size["m_lazy"], "steps_b": STEPS_B}
    main = job.keep(f"streams-d{d}", key, compute)
    if d not in size["d_width"]:
        return main
    return main | job.keep(f"widths-d{d}", key, widths)


def margin_row(row: str, d: int, size: Mapping[str, Any], width: int | None = None) -> tuple[Any, Any, int]:
    """Net, rule and number of steps of a margin-maximising row."""
    if row == "d":
        net = flows.TwoLayer(d, width or size["m_flow"], mean_field=True, law="sphere")
        rule = flows.PerturbedWGF(eta=0.5, lam=size["lam"], sigma=1e-3, reduction="mean")
        return net, rule, size["steps_noisy"]
    if row == "e":
        return flows.TwoLayer(d, width or size["m_flow"]), flows.NormalizedGD(), size["steps"]
    return flows.Scalar(d, width or size["m_scalar"]), flows.NormalizedGD(), size["steps_scalar"]


def _batches(job: Job, row: str, d: int, size: Mapping[str, Any], width: int | None = None) -> dict[str, np.ndarray]:
    """Rows d, e and f: test errors against n."""
    net, rule, steps = margin_row(row, d, size, width)

    def compute() -> dict[str, Any]:
        n, errors = search_samples(
            lambda n: errors_after(d, n, net, rule, steps, size["trials"], job.seed, job.device), d
        )
        return {"n": n, "errors": errors}

    key = {"row": row, "d": d, "width": net.m, "rule": repr(rule), "steps": steps, "trials": size["trials"]}
    return job.keep(f"{row}-d{d}-m{net.m}", key, compute)


def _scalar_widths(job: Job, d: int, n: float, size: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Widths of row f and how often they reach a test error of 0.1 on twice the samples that a wide one needs."""

    def succeed(m: int) -> np.ndarray:
        net, rule, steps = margin_row("f", d, size, m)
        n_more = math.ceil(2 * n)
        return errors_after(d, n_more, net, rule, steps, size["trials"], job.seed, job.device) <= ERROR

    def compute() -> dict[str, Any]:
        return {"m": narrowest(succeed, [2**k for k in range(2, 1 + int(math.log2(size["m_scalar"])))])}

    key = {"d": d, "n": n, "steps": size["steps_scalar"], "trials": size["trials"], "m": size["m_scalar"]}
    return job.keep(f"f-width-d{d}", key, compute)


def judge_exponent(row: str, what: str, slope: Slope, claimed: float) -> Verdict:
    """An exponent against a claimed one, which is an upper bound up to logarithms and constants."""
    words = {"n": "samples grow", "m": "the width grows", "t": "steps grow"}[what]
    width = slope.high - slope.low
    holds: Holds = slope.low <= claimed + SLACK
    reason = ""
    if not math.isfinite(slope.exponent) or not width <= WIDE:
        holds, reason = UNDECIDED, f"the interval of the exponent is {width:.2g} wide"
    return Verdict(
        f"row {row}, {ROWS[row][0]}: {words} at most like d^{claimed:g} (the exponent's interval begins below "
        f"{claimed:g} + {SLACK:g})",
        slope.exponent,
        ROWS[row][{"m": 2, "n": 3, "t": 4}[what]],
        holds,
        f"95 percent in [{slope.low:.2f}, {slope.high:.2f}]",
        reason,
    )


def judge_order(slow: Slope, fast: Slope, names: tuple[str, str]) -> list[Verdict]:
    """Whether the first row needs samples that grow more slowly with d than the second, and fewer at the largest d."""
    rng = np.random.default_rng(0)
    less = rng.choice(slow.draws, 4000) < rng.choice(fast.draws, 4000)
    d = max(set(slow.d.tolist()) & set(fast.d.tolist()), default=None)  # type: ignore[type-var]
    found = [
        Verdict(
            f"samples grow more slowly with d in row {names[0]} (margins) than in row {names[1]} (kernel), "
            "in 95 percent of resamplings",
            f"{slow.exponent:.2f} against {fast.exponent:.2f}",
            "d/eps against d^2/eps",
            bool(less.mean() >= 0.95) if np.isfinite(slow.draws).all() and np.isfinite(fast.draws).all() else UNDECIDED,
            f"{less.mean():.1%}",
        )
    ]
    if d is not None:
        n = [float(one.needed[one.d.tolist().index(d)]) for one in (slow, fast)]
        found.append(
            Verdict(
                f"at the largest d = {d} row {names[0]} needs fewer samples than row {names[1]}",
                f"{n[0]:.0f} against {n[1]:.0f}",
                "d/eps against d^2/eps",
                n[0] < n[1],
            )
        )
    return found


@reproduction(
    "lr-table1",
    paper="LR",
    shows="Table 1: samples, width and steps for test error 0.1 on 2-sparse parity",
    quick=120,
    full=200,
    claims=("LR-34", "LR-29", "LR-11"),
)
def table_1(job: Job) -> Outcome:
    """LR Table 1 (LR-34): every row as an algorithm, and exponents in d fitted to what it needs."""
    size = SIZES["lr-table1"][job.scale]
    dims, few, small = size["d"], [d for d in size["d"] if d in size["d_width"]], size["d_scalar"]
    streams = {d: _streams(job, d, size) for d in dims}
    flowing = {row: {d: _batches(job, row, d, size) for d in dims} for row in ("d", "e")}
    scalar = {d: _batches(job, "f", d, size) for d in small}
    quarter = _batches(job, "f", small[-1], size, size["m_scalar"] // 4)
    samples = {name: fit_hits(dims, [streams[d][name] for d in dims]) for name in ("a", "b", "b0")}
    samples["c"] = fit_hits(dims, [streams[d]["c"] for d in dims], [float(streams[d]["c_batch"]) for d in dims])
    for row, found in (*flowing.items(), ("f", scalar)):
        samples[row] = fit_errors(list(found), [(one["n"], one["errors"]) for one in found.values()])
    steps = {name: samples[name] for name in ("a", "b", "b0")}
    steps["c"] = fit_hits(dims, [streams[d]["c"] for d in dims])
    widths = {row: fit_widths(few, [tuple(streams[d][f"m_{row}"]) for d in few], size["trials"]) for row in "abc"}
    narrow = {d: _scalar_widths(job, d, float(n), size)["m"] for d, n in zip(small, samples["f"].needed)}
    widths["f"] = fit_widths(small, [tuple(one) for one in narrow.values()], size["trials"])
    rest = samples_needed(quarter["n"], quarter["errors"]) / samples["f"].needed[-1]
    verdicts = judge_table(samples, widths, steps, rest)
    arrays = {
        f"{kind}_{row}": np.column_stack([one.d, one.needed])
        for kind, kept in _kinds(samples, widths, steps)
        for row, one in kept.items()
    }
    for d in dims:
        arrays |= {f"d{d}_{name}": value for name, value in streams[d].items()}
    for row, found in (*flowing.items(), ("f", scalar)):
        for d, one in found.items():
            arrays |= {f"{row}_d{d}_{name}": value for name, value in one.items()}
    settings = {
        "needed": "median over trials of the samples (n), for a to c also steps (t), until test error 0.1; width m: where half "
        "of the trials succeed, with three times (f: twice) the samples that the wide network needs",
        "a": f"f = m^(-1/2) sum +-relu(w_j . x), inner layer only, step 1, one fresh example a step, m = {size['m_lazy']}",
        "a_step": "chosen: in trials at m = 256, d = 6 and 12, steps 1, 4 and 16 gave exponents of about 2.0, 1.6, 1.6; so the "
        "verdicts on row a are about step 1",
        "b": f"both layers from LR's start, m = 4 d^2, one fresh example a step, step k d/m, best of k in {STEPS_B}, at most 0.3",
        "b0": "the same with step 6/d^2: the scaling of Theorem 2.1's range at width ~ d^2 with gamma ~ 1/d",
        "c": f"m = {WIDTH_C}, one gradient of V on the first batch (best of {BATCHES_C} times d^2), step {STEP_C1:g}, then SGD "
        f"on the outer layer, step {STEP_C2:g}; its width with a first batch of d^4 (at most 2^15)",
        "d": f"perturbed Wasserstein flow, m = {size['m_flow']}, lambda = {size['lam']:g}, sigma = 1e-3, eta = 0.5",
        "e": f"m = {size['m_flow']}, steps in CB's clock with line search, {size['steps']} of them",
        "f": f"scalar network, m = {size['m_scalar']}, the same, {size['steps_scalar']} steps, d = {small}",
        **size,
    }
    words = (
        "The table's entries are upper bounds up to logarithms, so an exponent below the claimed one agrees with it. Constants "
        "and step sizes are ours, and they matter: row a is about step 1, larger steps need fewer samples."
        f" Row b depends on the step: tuned, its exponent is {samples['b'].exponent:.2f}; with the "
        f"scaling of Theorem 2.1 it is {samples['b0'].exponent:.2f} (E-LR-4: the inner part of the margin does not count "
        "there, and the outer part alone, ~ d^(-3/2), would give d^3).\n\n" + _markdown(samples, widths, steps)
    )
    return Outcome(
        {"figure": _draw_samples(samples), "table": _draw_table(samples, widths, steps)},
        arrays,
        settings,
        verdicts,
        words,
    )


def _kinds(samples: Any, widths: Any, steps: Any) -> tuple[tuple[str, dict[str, Slope]], ...]:
    return ("n", samples), ("m", widths), ("t", steps)


def judge_table(
    samples: Mapping[str, Slope], widths: Mapping[str, Slope], steps: Mapping[str, Slope], rest: float
) -> list[Verdict]:
    """`rest`: by which factor row f needs more samples at a quarter of the width, at its largest d."""
    found = [
        Verdict(
            "the kernel row a really grows like d^2: 2 lies within 0.25 of its interval",
            samples["a"].exponent,
            "d^2/eps, optimal within kernels",
            samples["a"].low - SLACK <= 2 <= samples["a"].high + SLACK,
            f"95 percent in [{samples['a'].low:.2f}, {samples['a'].high:.2f}]",
        )
    ]
    for row, slope in samples.items():
        verdict = judge_exponent(row, "n", slope, CLAIMED["n"][row])
        if row == "b0" and verdict.holds is False:
            # A failure here is not one of the theorem: its constants ask for widths above 10^9, and ours scales them down.
            verdict = replace(verdict, holds=UNDECIDED, reason=UNFAIR)
        if row == "f" and not rest <= 1.15:
            reason = (
                f"the width is not large enough: a quarter of it needs {rest:.2f} times the samples at the largest d"
            )
            verdict = replace(verdict, holds=UNDECIDED, reason=reason)
        found.append(verdict)
        if row == "b0":
            paper = "d^2/eps; d^3/eps with the outer part of the margin only (E-LR-4)"
            found.append(replace(judge_exponent(row, "n", slope, 3.0), paper=paper))
    for row in "de":
        found += judge_order(samples[row], samples["a"], (row, "a"))
    found += [judge_exponent(row, "m", widths[row], claimed) for row, claimed in CLAIMED["m"].items()]
    scalar = widths["f"]
    bounded = scalar.needed <= scalar.d.astype(float) ** scalar.d
    found.append(
        Verdict(
            "row f, scalar GF (Theorem 3.3): a width of at most d^d is enough at every d",
            ", ".join(f"{m:.0f} at d = {d}" for d, m in zip(scalar.d, scalar.needed)),
            "width d^d",
            bool(bounded.all()) if np.isfinite(scalar.needed).all() else UNDECIDED,
            reason="" if np.isfinite(scalar.needed).all() else "not reached with the widths tried",
        )
    )
    found.append(judge_exponent("c", "t", steps["c"], CLAIMED["t"]["c"]))
    return found


def _cells(samples: Any, widths: Any, steps: Any) -> list[list[str]]:
    """Rows of the table: algorithm, then claimed and measured for m, n, t."""
    rows = []
    for row, (name, _, *claims) in ROWS.items():
        cells = [f"{row[0]}{'*' if row == 'b0' else ''}  {name}"]
        for claim, kept in zip(claims, (widths, samples, steps)):
            one = kept.get(row)
            if one is None:
                cells += [claim, "-"]
            elif not math.isfinite(one.exponent):
                cells += [claim, "not reached"]
            else:
                cells += [claim, f"d^{one.exponent:.2f} [{one.low:.2f}, {one.high:.2f}]"]
        rows.append(cells)
    return rows


def _math(text: str) -> str:
    """d^2/eps as matplotlib sets formulas."""
    text = re.sub(r"d\^(-?[d\d.]+)", r"$d^{\1}$", text)
    text = re.sub(r"eps(\^2)?", r"$\\epsilon\1$", text)
    return r"$\infty$" if text == "inf" else text


HEAD = ("algorithm", "m, paper", "m, measured", "n, paper", "n, measured", "t, paper", "t, measured")


def _markdown(samples: Any, widths: Any, steps: Any) -> str:
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in _cells(samples, widths, steps)])


def _draw_table(samples: Any, widths: Any, steps: Any) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.5, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.axis("off")
    cells = [[_math(cell) for cell in row] for row in _cells(samples, widths, steps)]
    drawn = axes.table(
        cells, colLabels=HEAD, cellLoc="left", loc="center", colWidths=[0.25, 0.07, 0.16] + [0.09, 0.16] * 2
    )
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(9)
    drawn.scale(1, 1.5)
    for (row, _), cell in drawn.get_celld().items():
        cell.set_linewidth(0)
        cell.visible_edges = "B"
        cell.set_linewidth(1.2 if row == 0 else 0.4)
        if row == 0:
            cell.set_text_props(weight="bold")
    axes.set_title(
        "2-sparse parity, test error 0.1: what is needed, fitted as a power of d with 95 percent intervals "
        "(claims are upper bounds)",
        loc="left",
        fontsize=10,
    )
    return figure


def _draw_samples(samples: Mapping[str, Slope]) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    from widemargin.plots import INK, MINUS, PLUS, QUIET, THIRD

    figure = Figure(figsize=(7.6, 5), layout="constrained")
    axes = figure.subplots()
    looks = {
        "a": (MINUS, "o", "-"),
        "b": (MINUS, "s", "--"),
        "b0": (MINUS, "^", ":"),
        "c": (QUIET, "D", "-"),
        "d": (PLUS, "v", "--"),
        "e": (PLUS, "o", "-"),
        "f": (THIRD, "s", "-"),
    }
    for row, one in samples.items():
        colour, mark, line = looks[row]
        use = np.isfinite(one.needed)
        star = "*" if row == "b0" else ""
        paper = ROWS[row][3].split("/")[0]
        label = f"{row[0]}{star}  {_math(ROWS[row][0])}: $d^{{{one.exponent:.2f}}}$, paper ${paper}$"
        axes.plot(one.d[use], one.needed[use], color=colour, marker=mark, ls=line, ms=5.5, lw=1.4, label=label)
    d = samples["a"].d.astype(float)
    base = float(samples["e"].needed[0])
    axes.plot(d, base * 0.6 * d / d[0], color=INK, lw=0.8, ls="-.")
    axes.annotate(
        "slope 1", (d[-1], base * 0.6 * d[-1] / d[0]), (4, 0), textcoords="offset points", fontsize=8, va="center"
    )
    top = float(np.nanmax(np.where(np.isfinite(samples["a"].needed), samples["a"].needed, np.nan))) * 2.2
    axes.plot(d, top * (d / d[-1]) ** 2, color=INK, lw=0.8, ls="-.")
    axes.annotate("slope 2", (d[-1], top), (4, 0), textcoords="offset points", fontsize=8, va="center")
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = sorted({int(v) for one in samples.values() for v in one.d})
    axes.set_xticks(ticks, [str(v) for v in ticks])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.set_xlabel("dimension d")
    axes.set_ylabel("samples for test error 0.1 (median)")
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.08, 0.5))
    axes.spines[["top", "right"]].set_visible(False)
    figure.set_size_inches(10.5, 4.8)
    return figure
