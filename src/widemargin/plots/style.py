"""Colours, figures and panels that all pictures share."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")
# Blue and orange stay apart for colour-blind readers and in print.
PLUS, MINUS, INK, QUIET = "#1f6fb4", "#d9661f", "#222222", "#8a8a8a"
THIRD = "#2f8f5b"
POINTS = 2_000  # of one curve
LOG_RATIO = 20  # margins further apart than this are drawn on a logarithmic axis
LARGEST = 1e150  # numbers that are drawn: an axis of wider ones overflows
DRAWN_SHARE = 1e-3  # neurons with a smaller share of the norm are counted, not drawn


def grid_of(rows: int) -> tuple[Figure, Sequence[Axes]]:
    from .picture import Picture

    figure = Picture(13.2, 0.6 + 3.7 * rows, 130)
    axes = list(figure.subplots(rows, 3, squeeze=False).ravel())
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=9)
    return figure, axes


def figure_of(width: float, height: float, columns: int = 1, ratios: list[float] | None = None) -> tuple[Figure, Any]:
    from .picture import Picture

    figure = Picture(width, height, 150)
    axes: Sequence[Axes] = figure.subplots(1, columns, squeeze=False, width_ratios=ratios)[0]
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=9.5)
    return figure, axes


def drawable(values: Any) -> np.ndarray:
    """An array, with infinity for numbers so large and 0 for numbers so small that matplotlib cannot make an axis for them.

    Damaged files have some.
    """
    values = np.asarray(values)
    if values.dtype.kind != "f":
        return values
    values = np.where(np.abs(values) > LARGEST, np.copysign(np.inf, values), values)
    return np.where(np.abs(values) < 1 / LARGEST, 0.0, values)


def quietly(function: Callable[P, Figure]) -> Callable[P, Figure]:
    """Without warnings: what overflows, is no number or lies outside an axis is not drawn."""

    @functools.wraps(function)
    def drawing(*args: P.args, **keys: P.kwargs) -> Figure:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(*args, **keys)

    return drawing


def logarithmic(axes: Axes) -> None:
    """Make the axis of values logarithmic, if any above 0 is drawn."""
    drawn = (np.asarray(line.get_xydata(), dtype=float) for line in axes.lines)
    if any((np.isfinite(xy).all(axis=1) & (xy[:, 1] > 0)).any() for xy in drawn):
        axes.set_yscale("log")


def legend(axes: Axes, where: Any, columns: int = 1) -> None:
    """What the curves are called, if there are any."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8.5, loc=where, ncols=columns)


def short(name: str, most: int = 60) -> str:
    """The name without anything that matplotlib would read as mathematics, or has no sign for."""
    name = "".join(letter if letter.isprintable() else "?" for letter in name).replace("$", r"\$")
    return name if len(name) <= most else name[: most - 3] + "..."
