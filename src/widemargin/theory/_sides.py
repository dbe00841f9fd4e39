"""What the checks along runs share: the worst of many inequalities at one record, and how well records give an integral."""

from __future__ import annotations

from typing import Any

import numpy as np

from .inequality import Inequality
from .track import Track

QUIET = np.errstate(all="ignore")  # runs end at infinite norms and at margins of 0; what is no number is not checked


def worst(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both sides (T, B) at the entry of least slack, of sides (T, B, ...) that hold for all later indices; NaN counts last."""
    left, right = np.broadcast_arrays(np.asarray(left, float), np.asarray(right, float))
    left, right = left.reshape(*left.shape[:2], -1), right.reshape(*right.shape[:2], -1)
    slack = np.where(np.isfinite(right - left), right - left, np.inf)
    at = slack.argmin(2)[:, :, None]
    return np.take_along_axis(left, at, 2)[:, :, 0], np.take_along_axis(right, at, 2)[:, :, 0]


def entry(
    track: Track,
    id: str,
    statement: str,
    reference: str,
    left: Any,
    right: Any,
    applies: Any = True,
    allowance: Any = 0.0,
    **more: Any,
) -> Inequality:
    """An Inequality at every record of the track, all sides broadcast to (T, B); they are 0 where it does not apply."""
    sides = [np.broadcast_to(np.asarray(side, float), track.shape) for side in (left, right, allowance)]
    where = np.broadcast_to(np.asarray(applies, bool), track.shape) & np.isfinite(sides).all(0)
    low, high, room = (np.where(where, side, 0.0) for side in sides)
    return Inequality(id, statement, reference, track.t, low, high, where, allowance=room, **more)


def precision(track: Track) -> float:
    """Relative accuracy of sums over neurons and points in the floating point numbers of the run."""
    return 1e4 * float(np.finfo(track.run.config.get("dtype", "float64")).eps)


def steps(values: np.ndarray) -> np.ndarray:
    """Change since the record before (T, ...), 0 at the first."""
    return np.concatenate([np.zeros_like(values[:1]), np.diff(values, axis=0)])


def trapezoid(dt: np.ndarray, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Integral of f over the time dt (T, ...) since the record before, and how far off it may be.

    Where f is monotone between two records the integral lies within dt |change of f| / 2 of the trapezoid. The changes over
    the intervals before and after are added, for an f that turns in between.
    """
    change = np.abs(steps(f))
    before = np.concatenate([np.zeros_like(change[:1]), change[:-1]])
    after = np.concatenate([change[1:], np.zeros_like(change[:1])])
    previous = np.concatenate([f[:1], f[:-1]])
    return dt * (f + previous) / 2, dt * (change + before + after) / 2


def before(values: np.ndarray) -> np.ndarray:
    """The record before (T, ...); the first stays."""
    return np.concatenate([values[:1], values[:-1]])
