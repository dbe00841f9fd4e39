"""What a solve may use: a clock and bytes. Every margin keeps both in the same way.

A call into a library (a factorisation, a program, a sort) does not look at the clock. So its size is chosen beforehand, such that
it takes no more than a `step`, a small share of the time limit; loops over rows go block by block and look at the clock between.
"""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from widemargin.types import InputError, show

SHARE, LEAST = 0.05, 0.05  # a step is this share of the time limit, and that many seconds more
BLOCK = 2**21  # numbers in one block of rows
USUAL = 4e9  # bytes that are taken to be free where nobody says how many are
GROUPS = Path("/sys/fs/cgroup")


class Late(Exception):
    """The time limit came in the middle of something that no bound needs."""


@dataclass(frozen=True)
class Limits:
    """Seconds and bytes. Times are those of time.perf_counter."""

    started: float
    deadline: float
    memory: float

    def left(self) -> float:
        return self.deadline - time.perf_counter()

    def late(self) -> bool:
        return time.perf_counter() > self.deadline

    def check(self) -> None:
        """Raise `Late` where the time is over."""
        if self.late():
            raise Late

    def step(self) -> float:
        """Seconds that one call may take which does not look at the clock."""
        return SHARE * (self.deadline - self.started) + LEAST

    def blocks(self, n: int, width: int, most: int = BLOCK) -> Iterator[slice]:
        """Slices of n rows with about `most` numbers each, where a row has `width`; raises `Late` between them."""
        step = max(1, int(min(most, self.memory / 32)) // max(1, width))
        for start in range(0, n, step):
            if start:
                self.check()
            yield slice(start, min(start + step, n))

    def largest(self, most: int, operations: Callable[[int], float], numbers: Callable[[int], float]) -> int:
        """The largest size up to `most` (at least 1) whose `operations` fit into a step and whose `numbers` into the memory."""

        def fits(size: int) -> bool:
            return 8 * numbers(size) <= self.memory and (
                math.isinf(self.deadline) or operations(size) <= self.step() * speed()
            )

        if fits(most):
            return most
        low, high = 1, most  # it fits, it does not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low


def open_limits(time_limit: float | None, memory: float | None, started: float) -> Limits:
    deadline = math.inf if time_limit is None else started + float(min(time_limit, 1e18))
    if memory is None:
        return Limits(started, deadline, 0.5 * free_memory())
    if isinstance(memory, bool) or not isinstance(memory, int | float | np.number) or not 0 < memory < math.inf:
        raise InputError(f"memory must be a positive number of bytes, not {show(memory)}")
    return Limits(started, deadline, float(memory))


@functools.cache
def speed() -> float:
    """Floating-point operations a second of a dense factorisation on this machine, from one that takes a millisecond or two."""
    A = np.random.default_rng(0).standard_normal((256, 256))
    A = A @ A.T + 256 * np.eye(256)
    best = math.inf
    for _ in range(3):
        began = time.perf_counter()
        np.linalg.cholesky(A)
        best = min(best, time.perf_counter() - began)
    return min(max(256**3 / 3 / best, 1e9), 1e11)


def free_memory() -> float:
    """Bytes that can be used before the machine, or the group of processes that this one is in, runs out of them."""
    free = math.inf
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = 1024.0 * int(line.split()[1])
    except (OSError, ValueError):
        pass
    if math.isinf(free):
        try:
            free = float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        except (AttributeError, ValueError, OSError):  # not on every system
            free = USUAL
    for most, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            limit, now = int((GROUPS / most).read_text()), int((GROUPS / used).read_text())
        except (OSError, ValueError):  # no such group, or "max"
            continue
        free = min(free, float(max(limit - now, 0)))
    return max(free, 1e8)


def bytes_in_words(count: float) -> str:
    """A number of bytes for a sentence: 3.2 GB."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"
