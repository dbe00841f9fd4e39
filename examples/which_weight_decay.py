"""Which weight decay? Certified optima along the decays, their test errors, and what norm-based bounds say of them.

python examples/which_weight_decay.py [--quick] [--out which_weight_decay.png]

At each decay stands the best two-layer ReLU network of any width (`optima.path`), so that nothing of what is seen is due to
how it was trained. docs/which_decay.md says what is seen. One and a half minutes of one core.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer, make_moons
from sklearn.model_selection import StratifiedKFold, train_test_split

import widemargin as wm

BLUE, ORANGE, GREEN, GREY, INK = "#0072b2", "#d55e00", "#009e73", "#8a8a8a", "#222222"
DELTA = 0.05  # bounds hold with probability 0.95
HUGE = 1e9  # points: where a search for a number of them ends


@dataclass
class Problem:
    """Points to train on and points to test on. The scaler has seen the test points only: bounds are about points that are
    independent of everything that was fixed before."""

    data: wm.Dataset
    X: np.ndarray
    y: np.ndarray
    shares: np.ndarray  # decays over the largest one
    tol: float
    time_limit: float
    folds: int = 0  # of cross-validation


def problem(
    name: str, train: tuple, test: tuple, shares: np.ndarray, tol: float, limit: float, folds: int = 0
) -> Problem:
    mean, scale = test[0].mean(0), test[0].std(0)
    data = wm.Dataset((train[0] - mean) / scale, 2.0 * train[1] - 1, name)
    return Problem(data, (test[0] - mean) / scale, 2.0 * test[1] - 1, shares, tol, limit, folds)


def problems(quick: bool) -> list[Problem]:
    def moons(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        return make_moons(n, noise=0.3, random_state=seed)

    test = moons(20_000, 1)
    if quick:
        return [problem("moons, 60 points", moons(60, 0), test, np.geomspace(0.5, 1e-3, 3), 1e-2, 5.0, 2)]
    X, y = load_breast_cancer(return_X_y=True)
    X1, X2, y1, y2 = train_test_split(X, y, test_size=0.5, random_state=0, stratify=y)
    return [
        problem("moons, 100 points", moons(100, 0), test, np.geomspace(0.5, 1e-4, 12), 1e-3, 20.0, 5),
        problem("moons, 2000 points", moons(2000, 0), test, np.geomspace(0.5, 1e-3, 9), 1e-3, 20.0),
        problem("breast cancer, 284 points", (X1, y1), (X2, y2), np.geomspace(0.5, 1e-3, 8), 1e-2, 3.0),
    ]


def cross_validated(given: Problem, decays: np.ndarray) -> np.ndarray:
    """Mean error on the part that was left out, (len(decays),)."""
    X, y = given.data.X, given.data.y
    errors = []
    for kept, left in StratifiedKFold(given.folds, shuffle=True, random_state=0).split(X, y):
        path = wm.optima.path(
            wm.Dataset(X[kept], y[kept]),
            decays,
            output_bias=None,
            tol=given.tol,
            time_limit=given.time_limit,
            bias=True,
        )
        errors.append([(y[left] * point.certificate.function(X[left]) <= 0).mean() for point in path])
    return np.mean(errors, axis=0)


def ramp_bound(score: np.ndarray, norm: float, frobenius: float, radius: float, n: int, levels: np.ndarray) -> float:
    """MT-15 at the best level of margins; it holds for all of them at once. `n` and `frobenius` may be those of more points."""
    hull = 1.5 * frobenius / n  # Rademacher complexity of networks of norm 1
    return min(
        float(
            wm.theory.generalization.ramp_margin_bound(
                np.clip(1 - score / norm / g, 0, 1).mean(), hull, g, radius, n, DELTA
            ).value
        )
        for g in levels
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small set: to see that it runs")
    parser.add_argument("--out", default="which_weight_decay.png", help="the picture")
    options = parser.parse_args()
    given = problems(options.quick)
    figure, panels = plt.subplots(
        2, len(given), figsize=(4.6 * len(given), 7.4), layout="constrained", squeeze=False, height_ratios=[1.6, 1]
    )
    for (top, bottom), one in zip(panels.T, given):
        show(top, bottom, one)
    panels[0, 0].set_ylabel("error")
    panels[1, 0].set_ylabel("objective")
    for axes in panels[0]:
        axes.set_ylim(0.008, 30)
        axes.set_yticks([0.01, 0.1, 1, 10], ["1 %", "10 %", "100 %", "1000 %"])
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3 if len(given) == 1 else 5, frameon=False)
    panels[1, 0].legend(frameon=False, fontsize=9, loc="lower right")
    figure.savefig(options.out, dpi=100)
    plt.close(figure)
    print(f"picture written to {options.out}")


def show(top: plt.Axes, bottom: plt.Axes, given: Problem) -> None:
    data, n = given.data, given.data.n
    largest = wm.optima.largest_decay(data, output_bias=None, time_limit=given.time_limit, bias=True)
    decays = largest.lower * given.shares
    path = wm.optima.path(data, decays, output_bias=None, tol=given.tol, time_limit=given.time_limit, bias=True)
    scores = [data.y * point.certificate.function(data.X) for point in path]  # no output bias: the bounds have none
    test = np.array([(given.y * point.certificate.function(given.X) <= 0).mean() for point in path])
    folds = cross_validated(given, decays) if given.folds else np.full(len(path), np.nan)
    norms = np.hypot(np.linalg.norm(data.X, axis=1), 1)  # of (x, 1): neurons have biases
    frobenius, radius = float(np.linalg.norm(norms)), float(norms.max())
    levels = np.geomspace(1e-3, radius, 200)
    ramp = np.array([ramp_bound(s, p.norm, frobenius, radius, n, levels) for s, p in zip(scores, path)])
    lipschitz = np.array(
        [
            wm.theory.generalization.regression_bound(
                np.clip(1 - s, 0, 1).mean(), p.norm, frobenius, n, data.d, DELTA, lipschitz=True
            ).value
            for s, p in zip(scores, path)
        ]
    )

    print(f"{data.name}: d={data.d}, largest decay {largest.lower:.4g}, tested on {len(given.y)} points")
    print("  decay     objective             neurons    norm   training  left out  test      MT-15     MT-22")
    for k, point in enumerate(path):
        left = f"{folds[k]:.4f}" if given.folds else "     -"
        print(
            f"  {point.weight_decay:.2e}  [{point.lower:.5f}, {point.upper:.5f}] {point.neurons:6} {point.norm:10.2f}"
            f"   {point.error:.4f}    {left}    {test[k]:.4f} {ramp[k]:9.3f} {lipschitz[k]:9.3f}"
        )
    best, told = int(test.argmin()), int(ramp.argmin())
    print(
        f"  least test error {test[best]:.4f} at decay {decays[best]:.2e}; where MT-15 is least {test[told]:.4f}",
        end="",
    )
    print(f"; where the left-out error is least {test[np.nanargmin(folds)]:.4f}" if given.folds else "")
    spread = math.sqrt(test[best] * (1 - test[best]) / len(given.y))
    print(f"  one standard deviation of the least test error: {spread:.4f}")

    def chosen(count: float) -> float:
        """Test error of the network for which MT-15 is least, had each the same margins on `count` points."""
        more = frobenius * math.sqrt(count / n)
        each = [ramp_bound(s, p.norm, more, radius, int(count), levels) for s, p in zip(scores, path)]
        return float(test[np.argmin(each)])

    count = float(n)
    while count < HUGE and chosen(count) > test[best] + 2 * spread:
        count *= 2
    if count < HUGE:
        print(
            f"  with the same margins on {count:.1e} points MT-15 would be least at a test error of {chosen(count):.4f}"
        )

    top.plot(decays, lipschitz, "D:", color=GREY, ms=4, lw=1.3, label="bound MT-22, clipped hinge loss")
    top.plot(decays, ramp, "s-.", color=GREEN, ms=4, lw=1.4, label="bound MT-15, best margin level")
    top.plot(decays, test, "o-", color=BLUE, ms=5, lw=2, label="test error")
    if given.folds:
        top.plot(decays, folds, "v--", color=INK, ms=4, lw=1.2, label="left-out error of folds")
    error = path.column("error")
    top.plot(
        decays,
        np.where(error > 0, error, np.nan),
        "^--",
        color=ORANGE,
        ms=4,
        lw=1.4,
        label="training error, where not 0",
    )
    top.axhline(1, color=INK, lw=0.8)
    top.axvline(decays[best], color=BLUE, lw=0.8, ls=":")
    top.set_title(data.name, fontsize=11)
    bottom.fill_between(decays, path.column("lower"), path.column("upper"), color=BLUE, alpha=0.3, lw=0)
    bottom.plot(decays, path.column("upper"), "o-", color=BLUE, ms=4, lw=1.4, label="network")
    bottom.plot(decays, path.column("lower"), "-", color=INK, lw=1, label="proved: none is below")
    bottom.set_xlabel("weight decay")
    low, high = float(path.column("lower").min()), float(path.column("upper").max())
    for axes in (top, bottom):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.spines[["top", "right"]].set_visible(False)
    ticks = [t for t in (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5) if low <= t <= high]
    bottom.set_yticks(ticks, [f"{t:g}" for t in ticks])
    bottom.set_yticks([], minor=True)


if __name__ == "__main__":
    main()
