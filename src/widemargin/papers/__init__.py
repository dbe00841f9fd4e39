"""Every figure and table of the five papers, by one command."""

import widemargin.needs_torch  # noqa: F401  first: it says what to install where torch is missing

# These modules register their reproductions when they are imported.
from . import bn, cb, lr, mt, uh
from .reproduction import (
    NOT_INFORMATIVE,
    REPRODUCTIONS,
    UNDECIDED,
    Job,
    Outcome,
    Reproduction,
    Verdict,
    count,
    find,
    reproduction,
    run,
)

__all__ = [
    "NOT_INFORMATIVE",
    "REPRODUCTIONS",
    "UNDECIDED",
    "Job",
    "Outcome",
    "Reproduction",
    "Verdict",
    "bn",
    "cb",
    "count",
    "find",
    "lr",
    "mt",
    "reproduction",
    "run",
    "uh",
]
