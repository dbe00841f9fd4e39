"""Certified optima of training with weight decay."""

from .f1 import f1

__all__ = ["f1"]
