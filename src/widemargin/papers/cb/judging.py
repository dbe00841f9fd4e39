"""The one rule for what varies over trials in CB's figures, and for shares of a certified maximum."""

from __future__ import annotations

import math

import numpy as np

from widemargin.papers.statistics import interval
from widemargin.papers.verdicts import UNDECIDED, Holds, Verdict


def decide(low: float, high: float, least: float, most: float) -> Holds:
    """Whether a number known to lie in [low, high] lies between `least` and `most`."""
    if least < low and high < most:
        return True
    return False if high < least or low > most else UNDECIDED


def judge(
    claim: str,
    values: np.ndarray,
    paper: str,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    note: str = "",
    reason: str = "",
    chosen_after: str = "",
) -> Verdict:
    """The one rule for what varies over trials: true where the 95 percent interval of the mean lies between `least` and `most`,
    false where it lies outside, else undecided. `reason` is what to say where it is false."""
    mean, low, high = interval(values)
    holds = decide(low, high, least, most)
    why = reason if holds is False else ""
    if holds == UNDECIDED:
        edges = f"[{least:g}, {most:g}]"
        why = (
            f"the interval is neither inside nor outside of {edges}" if len(values) > 1 else "one trial has no interval"
        )
    said = f"95 percent in [{low:.3g}, {high:.3g}], {len(values)} trials" + (f"; {note}" if note else "")
    return Verdict(claim, mean, paper, holds, said, why, chosen_after)


def share_of(margin: np.ndarray, lower: np.ndarray, upper: np.ndarray, least: float) -> Holds:
    """Whether every margin is at least this share of a maximum that is known to lie between `lower` and `upper`."""
    if (margin >= least * upper).all():
        return True
    return False if (margin < least * lower).any() else UNDECIDED


LOOSE = "the certificate is not tight enough to decide"
