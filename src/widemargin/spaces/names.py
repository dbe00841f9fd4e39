"""Activations by their names: the only place that reads them."""

from __future__ import annotations

from widemargin.errors import InputError

from .base import Space
from .leaky import SLOPE, LeakyReLU
from .relu import ReLU, SReLU

NAMES = "'relu', 'srelu', 'leaky' or 'leaky:SLOPE' such as 'leaky:0.2'"


def as_space(activation: str, bias: bool = False) -> Space:
    """The space of an activation: "relu", "srelu", "leaky" (slope 0.01) or "leaky:0.2" (any slope from 0 to below 1)."""
    word, colon, slope = str(activation).partition(":")
    if word == "leaky":
        try:
            return LeakyReLU(bias, float(slope) if colon else SLOPE)
        except ValueError:  # an InputError is one, too
            raise InputError(
                f"the slope in activation {str(activation)[:40]!r} must be a number from 0 to below 1, as in 'leaky:0.2'"
            ) from None
    if activation not in ("relu", "srelu"):
        raise InputError(f"activation must be {NAMES}, not {str(activation)[:40]!r}")
    return ReLU(bias) if activation == "relu" else SReLU(bias)
