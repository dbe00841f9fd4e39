"""Certified max margins of a data set."""

from typing import Any

import widemargin.needs_torch  # noqa: F401  first: it says what to install where torch is missing

from .batchnorm_networks import batchnorm
from .given_neurons import frozen
from .kernel_machines import f2, random_features
from .linear_classifiers import linear
from .multiclass import multiclass_f1, multiclass_linear
from .neural_collapse import collapse
from .neurons import prune
from .projections import projected
from .regression import min_norm_l1, min_norm_l2
from .tangent_kernels import (
    linear_transports,
    ntk,
    ntk_kernel,
    parity_transport,
    positive_transport,
    tangent,
    transport_margin,
)
from .wide_networks import f1
from .widths import width_margin_curve

__all__ = [
    "MaxMarginClassifier",
    "MinNormRegressor",
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
