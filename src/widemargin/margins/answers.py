"""What a certificate is given on its way out: the tolerance that was asked for, and advice where its bounds are far apart."""

from __future__ import annotations

import functools
import inspect
import math
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec

import numpy as np

from widemargin import kinds, notebooks
from widemargin.dataset import Labels, TakesData, takes_data
from widemargin.types import Certificate, Dataset

P = ParamSpec("P")
FAR = 0.9  # the gap from which on a result says little
UNEVEN = 10  # columns whose sizes differ by more than this are told of
MANY = 8  # features from which on fewer would help


def solves(
    labels: Labels = "signs",
) -> Callable[[Callable[Concatenate[Any, P], Certificate]], TakesData[P, Certificate]]:
    """`takes_data` for functions that return a certificate."""

    def decorate(function: Callable[Concatenate[Any, P], Certificate]) -> TakesData[P, Certificate]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def solving(data: Dataset, *args: Any, **keys: Any) -> Certificate:
            given = signature.bind_partial(data, *args, **keys)
            given.apply_defaults()
            asked = given.arguments

            def line(seconds: float, lower: float, upper: float, message: str) -> tuple[float, str]:
                share = seconds / asked["time_limit"] if asked.get("time_limit") else math.nan
                return share, f"{seconds:.1f} s  [{lower:.6g}, {upper:.6g}]  {message}"

            with np.errstate(
                over="ignore"
            ):  # points of any size: what overflows in a search is judged like all that it finds
                if keys.get("progress") is None and "IPython" in sys.modules:
                    with notebooks.watched(None, line) as progress:
                        cert: Any = function(data, *args, **keys | {"progress": progress})
                else:
                    cert = function(data, *args, **keys)
            return finish(cert, data, asked.get("tol"))

        return takes_data(labels)(solving)

    return decorate


def outside() -> int:
    """The stacklevel of the line that called into this package: how deep a warning lies differs."""
    frame, level = sys._getframe(1), 1  # that of whoever warns
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("widemargin."):
        frame, level = frame.f_back, level + 1
    return level


class ConvergenceWarning(UserWarning):
    """What scikit-learn has under this name, where nobody has imported that: it takes a second, after the time limit."""


def finish(cert: Certificate, data: Dataset, tol: float | None) -> Certificate:
    """The certificate with the tolerance that was asked for; a ConvergenceWarning where it says little."""
    said = advice(cert, data)
    if said:
        theirs = getattr(sys.modules.get("sklearn.exceptions"), "ConvergenceWarning", ConvergenceWarning)
        warnings.warn(said, theirs, stacklevel=outside())
    return replace(cert, stats={**cert.stats, "tol": tol})


def advice(cert: Certificate, data: Dataset, shell: bool = False) -> str:
    """What would help where a search ended with bounds that are far apart; empty where they are not."""
    if cert.status not in ("time-limit", "stalled") or cert.gap < FAR:
        return ""
    helps = []
    with np.errstate(all="ignore"):
        size = data.X.std(axis=0)
    size = size[(size > 0) & np.isfinite(size)]
    if data.standardized is None and len(size) and size.max() > UNEVEN * size.min():
        way = "--standardize" if shell else "Dataset(X, y).standardize()"
        helps.append(
            f"standardise the columns, whose standard deviations go from {size.min():.3g} to {size.max():.3g} ({way})"
        )
    if data.d >= MANY:
        helps.append(f"use fewer than {data.d} features")
    if cert.status == "time-limit":
        helps.append(f"give it a longer {'--time-limit' if shell else 'time_limit'}")
    what = kinds.quantity(cert.convention)
    if what == "margin":
        helps.append(
            f"ask for {'widemargin fit' if shell else 'optima.f1'} instead of a margin where the data is noisy"
        )
    else:
        helps.append("take a larger weight decay" if what == "objective" else "take fewer points")
    seconds = cert.stats.get("seconds") or 0.0
    return (
        f"{data.name}: after {seconds:.0f} s the {what} is only known to lie in [{cert.lower:.4g}, {cert.upper:.4g}]. "
        f"What would help: {'; '.join(helps)}."
    )
