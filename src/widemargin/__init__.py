"""widemargin: certified margins of neural networks, and the training that reaches them."""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # that of `typing`, whose import the command line need not wait for
if TYPE_CHECKING:
    from typing import Any

    from widemargin import (
        data,
        flows,
        margins,
        monitor,
        optima,
        papers,
        play,
        plots,
        report,
        spaces,
        sweep,
        theory,
        verify,
    )
    from widemargin.types import Certificate, Dataset, InputError, Measure, Trajectory

try:
    from ._version import __version__  # the build writes it, from the last git tag
except ImportError:  # a checkout that was never installed
    __version__ = "0.1.0"
__all__ = [
    "Certificate",
    "Dataset",
    "InputError",
    "Measure",
    "Trajectory",
    "data",
    "flows",
    "margins",
    "monitor",
    "optima",
    "papers",
    "play",
    "plots",
    "report",
    "spaces",
    "sweep",
    "theory",
    "verify",
]
TYPES = ("Certificate", "Dataset", "InputError", "Measure", "Trajectory")


def __getattr__(name: str) -> Any:
    """Rooms are imported when they are first used: the checker must not need torch, and the command line should start at once."""
    if name in TYPES:
        return getattr(importlib.import_module("widemargin.types"), name)
    if name in __all__:
        return importlib.import_module(f"widemargin.{name}")
    from .errors import did_you_mean

    raise AttributeError(f"module 'widemargin' has no attribute {name!r}{did_you_mean(name, __all__)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
