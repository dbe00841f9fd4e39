"""CB, Section 7: "We observe the superiority of training both layers by plotting the test error versus m or d".

The m of this sentence is n (E-CB-10): test errors against the number of training points, Figure 2b (CB-29).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from widemargin.data import disks
from widemargin.papers.jobs import Job, Outcome, reproduction
from widemargin.papers.verdicts import Verdict
from widemargin.types import Dataset

from .error_curves import OUTPUT_WORDS, advantages, draw_errors, fitted, measure_errors
from .judging import judge

# Quick scale: fewer and larger steps of the authors' ascent (see `authors_ascent`), widths above the number of points.
SIZES: dict[str, dict[str, Any]] = {
    "quick": {"ns": (32, 64, 128), "d": 15, "m": 256, "steps": 3000, "lr": 2.0, "trials": 10, "test": 4000},
    "paper": {
        "ns": (32, 64, 128, 256, 512),
        "d": 15,
        "m": 1000,
        "steps": 50_000,
        "lr": 0.5,
        "trials": 20,
        "test": 4000,
    },
}


def prefix(data: Dataset, n: int) -> Dataset:
    """The first n points: the authors' smaller training sets are parts of the largest."""
    return Dataset(data.X[:n], data.y[:n], f"{data.name} (first {n})")


def judge_2b(ns: Sequence[int], errors: dict[str, np.ndarray]) -> list[Verdict]:
    return [
        *advantages(ns, "n", errors),
        judge(
            f"Test error of both layers falls from n = {ns[0]} to {ns[-1]}",
            errors["both"][-1] - errors["both"][0],
            "falls with n",
            most=0.0,
        ),
        fitted(errors),
    ]


@reproduction(
    "cb-2b", paper="CB", quick=30, full=274, claims=("CB-29",),
    shows="Figure 2b: test error against the number of samples, both layers and output layer",
)  # fmt: skip
def reproduce(job: Job) -> Outcome:
    size = SIZES[job.scale]
    seeds = [size["trials"] * job.seed + b for b in range(size["trials"])]
    whole = [disks(d=size["d"], n=max(size["ns"]), seed=s, reading="code") for s in seeds]
    held_out = [disks(d=size["d"], n=size["test"], seed=s, reading="code", sample=1) for s in seeds]
    errors = measure_errors(job, size, [(f"n{n}", [prefix(data, n) for data in whole], held_out) for n in size["ns"]])
    ns = size["ns"]
    words = (
        f"{size['trials']} labellings of the 9 disks, thin lines, and their mean; d = {size['d']} counts the constant "
        "coordinate, m = "
        f"{size['m']}, {size['steps']} steps. Training sets for smaller n are parts of those for larger n. "
        + OUTPUT_WORDS
    )
    figure = draw_errors(ns, errors, "n (number of samples)", True)
    return Outcome({"figure": figure}, errors | {"n": np.array(ns)}, size | {"k": 3}, judge_2b(ns, errors), words)
