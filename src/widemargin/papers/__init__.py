"""Every figure and table of the five papers, by one command. A folder per paper, a file per figure or table.

`device` is where training runs ("cpu", "cuda" or "cuda:NUMBER"), `seed` that of everything random.
"""

import widemargin.needs_torch  # noqa: F401  first: it says what to install where torch is missing

# These folders register their reproductions when they are imported.
from . import bn, cb, lr, mt, uh
from .jobs import REPRODUCTIONS, Job, Outcome, Reproduction, find, reproduction, run
from .verdicts import NOT_INFORMATIVE, UNDECIDED, Verdict, count

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
