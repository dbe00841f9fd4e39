"""Networks that follow the weakly regularised minimisers, and how they compare with kernels: Figure 3 and Theorem D.6."""

from __future__ import annotations

import math

import numpy as np

from widemargin import flows
from widemargin.types import Dataset

FIT = 0.01  # of the mean square of the targets: a student of a regression that leaves more than this did not fit


def minimisers(
    sets: list[Dataset], m: int, rungs: int, inner: int, regression: bool, device: str, seed: int
) -> dict[str, np.ndarray]:
    """Students, one data set per trial, that follow the minimisers of the objective as lambda falls to 1e-8.

    The path must not begin where the network zero is the minimiser: for the squared loss that is so for
    lambda >= max_v |mean_i y_i relu(v . x_i)|, about 0.35 to 0.9 for these teachers. From there all units leave zero in the same
    few directions and some students never fit their points.
    """
    first = 1e-1 if regression else 1e-2
    rule = flows.WeaklyRegularized(first, 1e-8, per_decade=(rungs - 1) / math.log10(first / 1e-8), inner=inner)
    total = (inner + 1) * len(rule.lambdas)
    out = flows.train(
        sets,
        flows.TwoLayer(sets[0].d, m),
        rule,
        loss="squared" if regression else "logistic",
        stop=total,
        record=flows.Record(["norm"], times=sorted({*range(0, total, 100), total})),
        device=device,
        seed=seed,
    )
    return {name: out.final[name] for name in ("a", "V")}


def fitted(task: str, fit: np.ndarray) -> np.ndarray:
    """Which students fit their points: all of them separated, or at most FIT of the mean square left."""
    return fit <= FIT if task == "regression" else fit > 0


def advantage(kernel: np.ndarray, net: np.ndarray) -> float:
    """ln(mean kernel error/mean network error), errors (trials,)."""
    return float(np.log(kernel.mean() / net.mean()))
