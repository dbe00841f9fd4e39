"""Time limits of all margins and optima: how far each goes beyond its limit, over kinds and sizes.

    python benchmarks/limits.py                          the table of docs/cost.md
    python benchmarks/limits.py --kinds f2 ntk --sizes 20000x5 --limits 5

Prints wall and processor seconds on one thread, how far the first are beyond limit + 10 % + 0.5 s, and the interval. The data are
two classes with a gap of 1 between them, `n`x`d`; making them is not counted. On a busy machine use `--clock cpu`: then solvers
look at processor time, and both columns show it. 98000x3x200 is 200 classes, for the kinds that take any number of them.
"""

from __future__ import annotations

import argparse
import platform
import resource
import time
from typing import Any

import numpy as np
import torch

import widemargin
from widemargin import Certificate, Dataset, kinds

SIZES = ("1000x5", "2000x2000", "5000x50", "20000x5", "100000x5", "1000000x5", "200000x2", "98000x3x200")
LIMITS = (1.0, 5.0)
WIDTH = 1000  # random neurons of frozen, rf and bn
DECAY = 0.01  # weight decay of optima


def data(n: int, d: int, targets: str, classes: int = 0) -> Dataset:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    y = np.where(X[:, 0] > 0, 1.0, -1.0)
    X[:, 0] += 0.5 * y
    if classes:
        y = np.floor(classes * (np.arctan2(X[:, 1], X[:, 0]) / (2 * np.pi) % 1.0))
    elif targets == "classes":
        y = (X[:, 0] > 0) + 1.0 * (np.abs(X[:, 1]) > 0.7)
    elif targets == "values":
        y = X[:, 0] ** 2
    elif targets == "several values":
        return Dataset(X, np.column_stack([X[:, 0] ** 2, np.abs(X[:, -1])]), f"n={n}, d={d}")
    return Dataset(X, y, f"n={n}, d={d}")


def solve(row: kinds.Kind, one: Dataset, limit: float) -> Certificate:
    keys: dict[str, Any] = {"time_limit": limit}
    for option in ("width",):
        if option in row.options:
            keys[row.options[option][0]] = WIDTH
    if row.needs == "weight_decay":
        keys["weight_decay"] = DECAY
        keys["loss"] = {"signs": "logistic", "classes": "cross-entropy"}.get(row.targets, "squared")
    elif row.needs == "jacobian":
        keys["jacobian"] = one.X  # of a linear network
    certificate: Certificate = getattr(getattr(widemargin, row.room), row.function)(one, **keys)
    return certificate


def main() -> None:
    offered = [name for name, row in kinds.KINDS.items() if row.needs in ("", "weight_decay", "jacobian")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", default=offered, choices=offered)
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="NxD")
    parser.add_argument("--limits", nargs="+", type=float, default=LIMITS)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="what limits are measured by [wall]")
    options = parser.parse_args()
    if options.clock == "cpu":  # on a busy machine: as an idle one would do, but for the clocks inside libraries
        time.perf_counter = time.monotonic = time.process_time
    torch.set_num_threads(1)
    print(f"{platform.machine()}, Python {platform.python_version()}, one thread")
    print("| kind | n x d | limit | wall | processor | over | lower | upper | status |")
    print("|---|---|---|---|---|---|---|---|---|")
    worst = 0.0
    for name in options.kinds:  # what is imported when it is first needed does not count
        solve(kinds.KINDS[name], data(12, 2, kinds.KINDS[name].targets), 1.0)
    for size in options.sizes:
        n, d, *classes = (int(float(part)) for part in size.split("x"))
        for name in options.kinds:
            row = kinds.KINDS[name]
            if classes and row.targets != "classes":
                continue
            one = data(n, d, row.targets, *classes)
            for limit in options.limits:
                wall, used = time.perf_counter(), time.process_time()
                try:
                    cert = solve(row, one, limit)
                    said = f"{cert.lower:.4g} | {cert.upper:.4g} | {cert.status}"
                except MemoryError:
                    said = "- | - | MemoryError"
                wall, used = time.perf_counter() - wall, time.process_time() - used
                over = max(0.0, wall - 1.1 * limit - 0.5)
                worst = max(worst, over)
                print(f"| {name} | {size} | {limit:g} | {wall:.1f} | {used:.1f} | {over:.1f} | {said} |", flush=True)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"\nworst overrun beyond limit + 10 % + 0.5 s: {worst:.1f} s; most memory {memory:.1f} GB")


if __name__ == "__main__":
    main()
