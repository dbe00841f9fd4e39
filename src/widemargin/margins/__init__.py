"""Certified max margins of a data set."""

from .f1 import f1
from .f2 import f2, random_features
from .frozen import frozen
from .linear import linear
from .regression import min_norm_l2

__all__ = ["f1", "f2", "frozen", "linear", "min_norm_l2", "random_features"]
