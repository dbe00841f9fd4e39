"""Certified optima of training with weight decay.

The words that they share are those of `margins`: `data` is a `Dataset` with X (n, d) and y (n,), labels or targets as the loss
takes them, or y (n, K), K targets for each point, or X and y in its place, as in f1(X, y, weight_decay=0.01); with `bias` the
neurons have biases; the search ends where upper - lower <= `tol` times lower, or after `time_limit` seconds (None: no limit),
and both bounds hold whenever it ends. `seed` is of random starts, `device` is where the search for neurons runs ("cpu", "cuda",
"cuda:NUMBER"), and `progress` a function (seconds, lower, upper, message) called on the way.
"""

from typing import Any

import widemargin.needs_torch  # noqa: F401  first: it says what to install where torch is missing

from .kernel_machines import f2
from .largest import Interval, largest_decay
from .paths import Path, Point, path
from .trained_networks import Gap, gap
from .wide_networks import f1

__all__ = [
    "Gap",
    "Interval",
    "MaxMarginClassifier",
    "Path",
    "Point",
    "ReluNetClassifier",
    "ReluNetRegressor",
    "f1",
    "f2",
    "gap",
    "largest_decay",
    "path",
]


def __getattr__(name: str) -> Any:
    """The estimators, imported when first asked for: scikit-learn is slow to import and the solvers do not need it."""
    if name in ("MaxMarginClassifier", "ReluNetClassifier", "ReluNetRegressor"):
        from . import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
