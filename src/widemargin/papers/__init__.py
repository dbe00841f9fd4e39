"""Every figure and table of the five papers, by one command."""

# These modules register their reproductions when they are imported.
from . import bn, cb, lr, mt, uh
from .reproduction import REPRODUCTIONS, Job, Outcome, Reproduction, Verdict, find, reproduction, run

__all__ = [
    "REPRODUCTIONS",
    "Job",
    "Outcome",
    "Reproduction",
    "Verdict",
    "bn",
    "cb",
    "find",
    "lr",
    "mt",
    "reproduction",
    "run",
    "uh",
]
