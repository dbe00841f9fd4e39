"""Certified optima of training with weight decay."""

from .f1 import f1
from .f2 import f2
from .gap import Gap, gap
from .largest import Interval, largest_decay
from .path import Path, Point, path

__all__ = ["Gap", "Interval", "Path", "Point", "f1", "f2", "gap", "largest_decay", "path"]
