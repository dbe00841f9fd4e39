"""Verdicts on numbers with intervals, certified or over trials, as MT's figures have them."""

from __future__ import annotations

import math

from widemargin.papers.verdicts import UNDECIDED, Holds, Verdict
from widemargin.types import Certificate

TOLERANCE = 0.25  # of an exponent, half of the 1/2 that separates the rates that the paper compares


def above(low: float, high: float) -> Holds:
    """Whether a number is positive, from its interval: yes, no, or undecided where the interval has both signs."""
    return True if low > 0 else False if high < 0 else UNDECIDED


def grows_at_most(power: float, low: float, high: float) -> Holds:
    """Whether an exponent with this interval supports growth like x^power at most: one rule for all exponents.

    Supported when the whole interval is below power + TOLERANCE, refuted when it is above power, else undecided.
    """
    return True if high < power + TOLERANCE else False if low > power else UNDECIDED


def judged(
    claim: str, interval: tuple[float, float, float], paper: str, holds: Holds, more: str = "", reason: str = "",
    chosen_after: str = "",
) -> Verdict:  # fmt: skip
    """A verdict on a number with an interval."""
    value, low, high = interval
    if holds == UNDECIDED and not reason:
        reason = "the interval does not decide" if math.isfinite(low) else "too few trials for an interval"
    shown = f"95 percent in [{low:.3g}, {high:.3g}]" if math.isfinite(low) else "no interval"
    return Verdict(
        claim, value if math.isfinite(value) else "unknown", paper, holds, shown + more, reason, chosen_after
    )


def interval_of(cert: Certificate) -> list[float]:
    return [cert.lower, cert.upper]
