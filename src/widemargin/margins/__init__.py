"""Certified max margins of a data set.

The words that they share:

data         a `Dataset`: points X (n, d), labels y (n,) of two classes, or more, or targets; or X and y in its place, as in
             f1(X, y), f1((X, y)) and f1(table, "column"): arrays, lists, tensors, tables of pandas, labels of any two values
bias         every point is extended by a last coordinate 1, whose weight is part of the norm
activation   "relu", "srelu", "leaky" (slope 0.01) or "leaky:SLOPE"
tol          the search ends where the bounds are this close, as a share of the margin
time_limit   seconds, None for no limit; both bounds hold whenever it ends
memory       bytes for matrices, None for half of what is free; what does not fit is solved for some points and judged at all
seed         of random starts, neurons and samples
device       where the search for neurons runs: "cpu", "cuda" or "cuda:NUMBER"
progress     a function (seconds, lower, upper, message) that is called on the way
"""

from typing import Any

import widemargin.needs_torch  # noqa: F401  first: it says what to install where torch is missing

from .batchnorm_networks import batchnorm
from .engine import prune
from .given_gradients import tangent
from .given_neurons import frozen
from .kernel_machines import f2, random_features
from .linear_classifiers import linear
from .multiclass import multiclass_f1, multiclass_linear
from .neural_collapse import collapse
from .own_networks import Share, of
from .projections import projected
from .regression import min_norm_l1, min_norm_l2
from .tangent_kernels import (
    linear_transports,
    ntk,
    ntk_kernel,
    parity_transport,
    positive_transport,
    transport_margin,
)
from .wide_networks import f1
from .widths import width_margin_curve

__all__ = [
    "MaxMarginClassifier",
    "MinNormRegressor",
    "Share",
    "batchnorm",
    "collapse",
    "f1",
    "f2",
    "frozen",
    "linear",
    "linear_transports",
    "min_norm_l1",
    "min_norm_l2",
    "multiclass_f1",
    "multiclass_linear",
    "ntk",
    "ntk_kernel",
    "of",
    "parity_transport",
    "positive_transport",
    "projected",
    "prune",
    "random_features",
    "tangent",
    "transport_margin",
    "width_margin_curve",
]


def __getattr__(name: str) -> Any:
    """The estimators, imported when first asked for: scikit-learn is slow to import and the solvers do not need it."""
    if name in ("MaxMarginClassifier", "MinNormRegressor"):
        from . import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
