"""Checks of arguments that every data source shares; each failure is one InputError."""

from __future__ import annotations

import math
import operator
from typing import Any

from widemargin.errors import did_you_mean
from widemargin.types import InputError, show

MOST_POINTS = 10**7  # rows of any data set
MOST_NUMBERS = 10**8  # entries of X of a generated data set, 0.8 GB


def integer(name: str, key: str, value: Any, low: int, high: int = MOST_POINTS) -> int:
    """`value` as an int in [low, high]."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not low <= number <= high:
        raise InputError(f"{name}: {key} must be an integer from {low} to {high}, not {show(value)}")
    return number


def number(name: str, key: str, value: Any, low: float, high: float) -> float:
    """`value` as a float in [low, high]."""
    try:
        x = float(value)
    except (TypeError, ValueError, OverflowError):
        x = math.nan
    if not low <= x <= high:
        raise InputError(f"{name}: {key} must be a number from {low:g} to {high:g}, not {show(value)}")
    return x


def choice(name: str, key: str, value: Any, legal: tuple[str, ...]) -> str:
    if value not in legal:
        raise InputError(
            f"{name}: {key} must be one of {', '.join(legal)}, not {show(value)}{did_you_mean(value, legal)}"
        )
    return value


def seed(name: str, value: Any) -> int:
    return integer(name, "seed", value, 0, 2**63 - 1)


def shape(name: str, n: Any, d: Any, *, least_d: int = 1) -> tuple[int, int]:
    """n and d as integers of a size that fits in memory."""
    n, d = integer(name, "n", n, 1), integer(name, "d", d, least_d)
    if n * d > MOST_NUMBERS:
        raise InputError(
            f"{name}: n * d = {n * d} numbers is too large, so choose n and d with n * d <= {MOST_NUMBERS}"
        )
    return n, d


def spec_name(source: str, **values: Any) -> str:
    """The spec that draws the same data again: source:key=value,... (values of None are left out)."""
    parts = [f"{key}={spec_value(value)}" for key, value in values.items() if value is not None]
    return f"{source}:{','.join(parts)}" if parts else source


def spec_value(value: Any) -> str:
    value = value.item() if hasattr(value, "item") else value  # of numpy or torch
    if isinstance(value, bool):
        return str(value).lower()
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)
