"""Certified max margins of a data set."""

from typing import Any

from ._prune import prune
from .f1 import f1
from .f2 import f2, random_features
from .frozen import frozen
from .linear import linear
from .regression import min_norm_l1, min_norm_l2
from .widths import width_margin_curve

__all__ = [
    "MaxMarginClassifier",
    "MinNormRegressor",
    "f1",
    "f2",
    "frozen",
    "linear",
    "min_norm_l1",
    "min_norm_l2",
    "prune",
    "random_features",
    "width_margin_curve",
]


def __getattr__(name: str) -> Any:
    """The estimators, imported when first asked for: scikit-learn is slow to import and the solvers do not need it."""
    if name in ("MaxMarginClassifier", "MinNormRegressor"):
        from . import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
