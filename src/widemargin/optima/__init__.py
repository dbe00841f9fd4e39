"""Certified optima of training with weight decay."""

from .f1 import f1
from .largest import Interval, largest_decay

__all__ = ["Interval", "f1", "largest_decay"]
