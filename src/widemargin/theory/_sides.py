"""What the checks along runs share: the worst of many inequalities at one record, and how well records give an integral."""

from __future__ import annotations

from typing import Any

import numpy as np

from .inequality import Inequality
from .track import Track

QUIET = np.errstate(all="ignore")  # runs end at infinite norms and at margins of 0; what is no number is not checked


def worst(left: Any, right: Any, allowance: Any = 0.0, scale: Any = None) -> dict[str, np.ndarray]:
    """Of inequalities (T, B, ...) the one nearest to fail at each record, as what `entry` takes (T, B); NaN counts last."""
    given = {"left": left, "right": right, "allowance": allowance} | ({} if scale is None else {"scale": scale})
    sides = np.broadcast_arrays(*(np.asarray(one, float) for one in given.values()))
    flat = [one.reshape(*one.shape[:2], -1) for one in sides]
    room = flat[1] + flat[2] - flat[0]
    at = np.where(np.isfinite(room), room, np.inf).argmin(2)[:, :, None]
    return {name: np.take_along_axis(one, at, 2)[:, :, 0] for name, one in zip(given, flat)}


def entry(
    track: Track,
    id: str,
    statement: str,
    reference: str,
    left: Any,
    right: Any,
    applies: Any = True,
    allowance: Any = 0.0,
    scale: Any = None,
    terms: Any = 0.0,
    **more: Any,
) -> Inequality:
    """An Inequality at every record of the track, all sides broadcast to (T, B); they are 0 where it does not apply.

    `terms` is the size of what was added to get the sides, where that is more than the sides: 1 for logarithms, whose error is
    the relative one of their argument, and the summands of sums that may cancel. Rounding is counted with it.
    """
    sides = [np.broadcast_to(np.asarray(side, float), track.shape) for side in (left, right, allowance)]
    where = np.broadcast_to(np.asarray(applies, bool), track.shape) & np.isfinite(sides).all(0)
    low, high, room = (np.where(where, side, 0.0) for side in sides)
    added = np.where(where, np.abs(np.nan_to_num(np.broadcast_to(terms, track.shape))), 0.0)
    rounding = precision(track) * (added + np.abs(low) + np.abs(high))
    if scale is not None:
        scale = np.where(where, np.broadcast_to(scale, track.shape), 0.0)
    return Inequality(
        id, statement, reference, track.t, low, high, where, allowance=room, rounding=rounding, scale=scale, **more
    )


def eps(track: Track) -> float:
    """Of the floating point numbers of the run."""
    return float(np.finfo(track.run.config.get("dtype", "float64")).eps)


def precision(track: Track) -> float:
    """Relative accuracy of sums over neurons and points in the floating point numbers of the run."""
    return 1e4 * eps(track)


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
