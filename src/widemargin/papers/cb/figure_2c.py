"""CB, Section 7: "We observe the superiority of training both layers by plotting the test error versus m or d".

Test errors against the dimension, Figure 2c (CB-29).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from widemargin.data import disks
from widemargin.papers.jobs import Job, Outcome, reproduction
from widemargin.papers.verdicts import Verdict

from .error_curves import OUTPUT_WORDS, advantages, draw_errors, fitted, measure_errors
from .judging import judge

# Quick scale: fewer and larger steps of the authors' ascent (see `authors_ascent`), widths above the number of points.
SIZES: dict[str, dict[str, Any]] = {
    "quick": {"ds": (5, 10, 15, 20, 25), "n": 96, "m": 200, "steps": 3000, "lr": 2.0, "trials": 8, "test": 4000},
    "paper": {
        "ds": (5, 10, 15, 20, 25),
        "n": 256,
        "m": 1000,
        "steps": 50_000,
        "lr": 0.5,
        "trials": 20,
        "test": 4000,
    },
}


def judge_2c(ds: Sequence[int], errors: dict[str, np.ndarray]) -> list[Verdict]:
    return [
        *advantages(ds, "d", errors),
        judge(
            f"Test error of both layers grows from d = {ds[0]} to {ds[-1]}",
            errors["both"][-1] - errors["both"][0],
            "a dependency in d is observed (R grows as sqrt d)",
            least=0.0,
        ),
        judge(
            f"Test error of the output layer, in the limit, grows from d = {ds[0]} to {ds[-1]}",
            errors["output"][-1] - errors["output"][0],
            "no adaptivity to hidden low-dimensional structure",
            least=0.0,
        ),
        fitted(errors),
    ]


@reproduction(
    "cb-2c", paper="CB", quick=45, full=302, claims=("CB-29",),
    shows="Figure 2c: test error against the dimension, both layers and output layer",
)  # fmt: skip
def reproduce(job: Job) -> Outcome:
    size = SIZES[job.scale]
    seeds = [size["trials"] * job.seed + b for b in range(size["trials"])]
    tests = [
        (
            f"d{d}",
            [disks(d=d, n=size["n"], seed=s, reading="code") for s in seeds],
            [disks(d=d, n=size["test"], seed=s, reading="code", sample=1) for s in seeds],
        )
        for d in size["ds"]
    ]
    errors = measure_errors(job, size, tests)
    ds = size["ds"]
    words = (
        f"{size['trials']} labellings of the 9 disks, thin lines, and their mean; n = {size['n']}, m = {size['m']}, "
        f"{size['steps']} steps; "
        "d counts the constant coordinate. A labelling is shared by all d. " + OUTPUT_WORDS
    )
    figure = draw_errors(ds, errors, "d (dimension)", False)
    return Outcome({"figure": figure}, errors | {"d": np.array(ds)}, size | {"k": 3}, judge_2c(ds, errors), words)
