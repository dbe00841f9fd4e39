"""Largest margins, with certificates."""

from .f2 import f2, random_features
from .frozen import frozen
from .linear import linear
from .regression import min_norm_l2

__all__ = ["f2", "frozen", "linear", "min_norm_l2", "random_features"]
