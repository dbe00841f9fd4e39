"""Colours, figures and panels that all pictures share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Blue and orange stay apart for colour-blind readers and in print.
PLUS, MINUS, INK, QUIET = "#1f6fb4", "#d9661f", "#222222", "#8a8a8a"
THIRD = "#2f8f5b"
POINTS = 2_000  # of one curve
LOG_RATIO = 20  # margins further apart than this are drawn on a logarithmic axis
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


def short(name: str, most: int = 60) -> str:
    """The name without anything that matplotlib would read as mathematics, or has no sign for."""
    name = "".join(letter if letter.isprintable() else "?" for letter in name).replace("$", r"\$")
    return name if len(name) <= most else name[: most - 3] + "..."
