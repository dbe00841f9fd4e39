"""What is needed for a test error, fitted as powers of d and 1/eps with intervals, and the rule that judges an exponent."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from widemargin.papers.verdicts import UNDECIDED, Holds

LEVELS = (0.2, 0.1, 0.05)  # the test errors that Table 1 is measured at
ERROR = 0.1  # the one that widths are measured at
SLACK = 0.25  # what logarithms, which the table hides, may add to an exponent over the range of d
RESAMPLES = 1000


def crossing(n: np.ndarray, middle: np.ndarray, level: float) -> np.ndarray:
    """The n at which middle (R, k), errors on the grid n (k,), passes the level, between grid points on ln n (R,).

    Infinite where it does not; n[0] where it is below at once.
    """
    below = middle <= level
    k = below.argmax(1)
    rows = np.arange(len(middle))
    before = np.maximum(k - 1, 0)
    drop = np.where(k > 0, middle[rows, before] - middle[rows, k], 1.0)
    part = np.where(k > 0, (middle[rows, before] - level) / np.where(drop > 0, drop, 1.0), 0.0)
    crossed = n[before] * (n[k] / n[before]) ** part
    return np.where(below.any(1), crossed, math.inf)


def search_samples(
    errors: Callable[[int], np.ndarray], d: int, levels: Sequence[float] = LEVELS, most: int = 12
) -> tuple[np.ndarray, np.ndarray]:
    """Test errors (k, B) on a grid of n with ratio sqrt 2 from above the largest level to one n past the smallest (medians)."""
    grid = [2 * d]
    tried = [errors(2 * d)]
    while np.median(tried[0]) <= max(levels) and grid[0] > 4:  # too easy: go down
        grid.insert(0, round(grid[0] / math.sqrt(2)))
        tried.insert(0, errors(grid[0]))

    def reached() -> int:
        return sum(bool(np.median(errors) <= min(levels)) for errors in tried)

    while reached() < 2 and len(grid) < most:  # the n past it is for the resampling
        grid.append(round(grid[-1] * math.sqrt(2)))
        tried.append(errors(grid[-1]))
    return np.array(grid), np.stack(tried)


def width_needed(widths: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """The width at which half of the trials succeed, shares (R, k), between those tried on ln m (R,); infinite if none does."""
    return crossing(widths, -np.asarray(shares, dtype=float), -0.5 - 1e-12)


@dataclass(frozen=True)
class Cells:
    """What is needed at every d and test error (D, E), and the same for resampled trials (R, D, E). Infinite: not reached."""

    d: np.ndarray
    needed: np.ndarray
    resampled: np.ndarray
    trials: int

    def spread(self) -> np.ndarray:
        """95 percent intervals (2, D, E) of what is needed."""
        return np.percentile(self.resampled, (2.5, 97.5), axis=0, method="nearest")

    def plus(self, more: np.ndarray) -> Cells:
        """With `more` (D,) added."""
        extra = np.asarray(more, dtype=float)[:, None]
        return replace(self, needed=self.needed + extra, resampled=self.resampled + extra)


def middle(hits: np.ndarray, axis: int = 0) -> np.ndarray:
    """The upper median over trials: finite only if more than half are, or exactly the half and one."""
    return np.take(np.sort(hits, axis=axis), hits.shape[axis] // 2, axis=axis)


def cells_of_hits(d: Sequence[int], hits: Sequence[np.ndarray], seed: int = 0) -> Cells:
    """From steps (B, E) of every d."""
    rng = np.random.default_rng(seed)
    needed = np.stack([middle(times) for times in hits])
    draws = [middle(times[rng.integers(len(times), size=(RESAMPLES, len(times)))], axis=1) for times in hits]
    return Cells(np.asarray(d), needed, np.stack(draws, axis=1), len(hits[0]))


def cells_of_errors(
    d: Sequence[int],
    tried: Sequence[tuple[np.ndarray, np.ndarray]],
    levels: Sequence[float] = LEVELS,
    seed: int = 0,
) -> Cells:
    """From a grid of n and test errors (k, B) of every d."""
    rng = np.random.default_rng(seed)

    def all_levels(n: np.ndarray, medians: np.ndarray) -> np.ndarray:  # (R, k) -> (R, E)
        return np.stack([crossing(n, medians, level) for level in levels], axis=1)

    def again(errors: np.ndarray) -> np.ndarray:  # (R, k)
        B = errors.shape[1]
        return np.stack([np.median(row[rng.integers(B, size=(RESAMPLES, B))], axis=1) for row in errors], axis=1)

    needed = np.concatenate([all_levels(n, np.median(errors, axis=1)[None]) for n, errors in tried])
    draws = [all_levels(n, again(errors)) for n, errors in tried]
    return Cells(np.asarray(d), needed, np.stack(draws, axis=1), tried[0][1].shape[1])


def cells_of_widths(
    d: Sequence[int], tried: Sequence[tuple[np.ndarray, np.ndarray]], trials: int, seed: int = 0
) -> Cells:
    """From widths (k,) and shares (k,) of successful trials of every d; resampled are the numbers of successes."""
    rng = np.random.default_rng(seed)
    needed = [width_needed(widths, shares[None]) for widths, shares in tried]
    # One success and one failure are added, so that a share of 0 or 1 is not taken for certain.
    draws = [
        width_needed(
            widths, rng.binomial(trials, (trials * shares + 0.5) / (trials + 1), (RESAMPLES, len(shares))) / trials
        )
        for widths, shares in tried
    ]
    return Cells(np.asarray(d), np.stack(needed), np.stack(draws, axis=1)[:, :, None], trials)


@dataclass(frozen=True)
class Exponent:
    """A fitted power, its interval, and that of resampling trials alone, without the misfit."""

    value: float
    low: float
    high: float
    sampled: tuple[float, float] = (-math.inf, math.inf)
    trials: int = 0


def slopes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Least squares slopes of y (R, k) against x (k,); NaN where one of y is not finite."""
    far = x - x.mean()
    good = np.isfinite(y).all(1)
    return np.where(good, np.where(good[:, None], y, 0.0) @ far / (far @ far), math.nan)


def fit(cells: Cells, against: str = "d", levels: Sequence[float] = LEVELS) -> Exponent:
    """k, or q, of needed ~ C d^k eps^-q by least squares on logarithms; on this grid the one does not depend on the other.

    The interval has the 95 percent interval of resampled trials, and that of every fit with one value of d (of eps) left out:
    so it contains how far the numbers are from a power. A value that was not reached leaves it unbounded.
    """
    with np.errstate(invalid="ignore"):
        if against == "d":
            x = np.log(cells.d.astype(float))
            y, again = np.log(cells.needed).mean(1), np.log(cells.resampled).mean(2)
        else:
            x = -np.log(np.asarray(levels, dtype=float))
            y, again = np.log(cells.needed).mean(0), np.log(cells.resampled).mean(1)
    if not np.isfinite(y).all() or len(x) < 3:
        return Exponent(math.nan, -math.inf, math.inf, trials=cells.trials)
    every = np.arange(len(x))
    ends = [_interval(slopes(x[use], again[:, use])) for use in (every, *(np.delete(every, k) for k in every))]
    low, high = min(end[0] for end in ends), max(end[1] for end in ends)
    return Exponent(float(slopes(x, y[None])[0]), low, high, ends[0], cells.trials)


def _interval(draws: np.ndarray) -> tuple[float, float]:
    """The middle 95 percent; a draw without a value counts on both sides."""
    lost = np.isnan(draws)
    low = np.sort(np.where(lost, -math.inf, draws))[math.floor(0.025 * (len(draws) - 1))]
    high = np.sort(np.where(lost, math.inf, draws))[math.ceil(0.975 * (len(draws) - 1))]
    return float(low), float(high)


def decide(exponent: Exponent, claimed: float) -> Holds:
    """The rule for exponents: an upper bound d^claimed, up to logarithms and constants, against an interval.

    Supported where the whole interval lies below claimed + SLACK (what logarithms may add over such a range), else refuted
    where the whole interval lies above the claimed exponent, else undecided. An interval between the two is supported.
    """
    if exponent.high < claimed + SLACK:
        return True
    return False if exponent.low > claimed else UNDECIDED


def decide_equal(exponent: Exponent, claimed: float) -> Holds:
    """Supported where the whole interval lies within SLACK of the claimed exponent, refuted where none of it does."""
    if exponent.low > claimed - SLACK and exponent.high < claimed + SLACK:
        return True
    return False if exponent.low > claimed + SLACK or exponent.high < claimed - SLACK else UNDECIDED


def narrowed(measure: Callable[[int], Cells], settled: Callable[[Cells], bool], least: int, most: int) -> Cells:
    """Cells with as many trials as it takes: doubled until all is settled or there are `most` of them."""
    trials = least
    while True:
        cells = measure(trials)
        if settled(cells) or 2 * trials > most:
            return cells
        trials *= 2


def blocks(trials: int, least: int) -> list[range]:
    """0 to trials as the doublings made them, so that what was measured before is kept."""
    ends = [0, least]
    while ends[-1] < trials:
        ends.append(2 * ends[-1])
    return [range(a, b) for a, b in itertools.pairwise(ends)]
