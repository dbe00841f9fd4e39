"""Means over trials and how sure they are: standard errors, intervals, exponents. All papers are judged with these."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit


def standard_error(values: np.ndarray) -> np.ndarray:
    """Of the mean over trials, the last axis; infinite for one trial, which says nothing of others."""
    trials = values.shape[-1]
    if trials < 2:
        return np.full(values.shape[:-1], math.inf)
    return values.std(axis=-1, ddof=1) / math.sqrt(trials)


def mean_error(values: np.ndarray) -> tuple[float, float]:
    """Mean and standard error over trials (B,)."""
    return float(np.mean(values)), float(standard_error(np.asarray(values, dtype=float)))


def two_errors(values: np.ndarray) -> np.ndarray:
    """Two standard errors of the mean over the last axis."""
    return 2 * standard_error(values)


def half_width(values: np.ndarray) -> float:
    """Half of the 95 percent interval of the mean over trials (B,), by Student's t; infinite for one trial."""
    trials = len(values)
    return float(stdtrit(trials - 1, 0.975)) * mean_error(values)[1] if trials > 1 else math.inf


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """The mean over trials (B,) and its 95 percent interval by Student's t; the whole line for one trial."""
    mean, half = float(np.mean(values)), half_width(np.asarray(values, dtype=float))
    return mean, mean - half, mean + half


def over_trials(statistic: Callable[..., Any], *samples: np.ndarray) -> tuple[float, float, float]:
    """statistic(*samples) and its 95 percent interval over trials, the first axis of each sample; NaN if it is not finite.

    Jackknife: Student's t on the pseudo-values k s - (k - 1) s_without_one. For a mean that is the usual interval, and for
    logarithms of means it is wider than a bootstrap's at the few trials of the quick scale, which is too narrow there.
    """
    k = len(samples[0])
    with np.errstate(all="ignore"):
        whole = float(statistic(*samples)) if k else math.nan
        left = np.array(
            [float(statistic(*(np.delete(sample, i, 0) for sample in samples))) for i in range(k if k > 1 else 0)]
        )
    if not (math.isfinite(whole) and len(left) and np.isfinite(left).all()):
        return whole if math.isfinite(whole) else math.nan, math.nan, math.nan
    far = half_width(k * whole - (k - 1) * left)
    return whole, whole - far, whole + far


def exponents(x: ArrayLike, values: ArrayLike) -> np.ndarray:
    """p of values (B, k) ~ x^p for each trial: least squares on log axes; x (k,)."""
    u = np.log(np.asarray(x, dtype=np.float64))
    u = u - u.mean()
    return np.log(np.asarray(values, dtype=np.float64)) @ u / (u @ u)


def mean_exponent(x: ArrayLike, values: ArrayLike) -> tuple[float, float]:
    """The mean over trials of the exponents of values (k, B) ~ x^p, and half of its 95 percent interval."""
    each = exponents(x, np.asarray(values).T)  # (B,)
    return float(each.mean()), half_width(each)
