"""Certified optima of training with weight decay."""

from .f1 import f1
from .gap import Gap, gap
from .largest import Interval, largest_decay

__all__ = ["Gap", "Interval", "f1", "gap", "largest_decay"]
