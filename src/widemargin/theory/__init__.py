"""What a margin guarantees: theorems as functions, inequalities as checks along runs."""

from .evaluate import Guarantees, check, guarantees, order
from .facts import Facts, facts
from .guarantee import THEOREMS, Assumption, Guarantee, Huge, Theorem
from .inequality import CHECKS, Inequality
from .track import Track, follow

__all__ = [
    "CHECKS",
    "THEOREMS",
    "Assumption",
    "Facts",
    "Guarantee",
    "Guarantees",
    "Huge",
    "Inequality",
    "Theorem",
    "Track",
    "check",
    "facts",
    "follow",
    "guarantees",
    "order",
]
