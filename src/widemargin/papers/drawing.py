"""What the pictures of all papers share: figures, panels, axes. matplotlib is imported when something is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from widemargin import extras

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


def figure_of(width: float, height: float) -> Figure:
    """An empty figure of so many inches that makes room for its labels."""
    extras.load_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def panels(width: float, height: float, columns: int) -> tuple[Figure, list[Axes]]:
    """A figure with so many tidy panels in a row."""
    figure = figure_of(width, height)
    axes = list(figure.subplots(1, columns, squeeze=False)[0])
    for panel in axes:
        tidy(panel)
    return figure, axes


def lettered(axes: Sequence[Axes]) -> None:
    """(a), (b), ... before the titles, all at the left."""
    for letter, panel in zip("abcdefghijkl", axes):
        title = panel.get_title(loc="left") or panel.get_title()
        panel.set_title("")
        panel.set_title(f"({letter}) {title}".strip(), loc="left", fontsize=10)


def legend_below(axes: Axes, columns: int = 1, below: float = 0.2) -> None:
    """The legend under the panel, clear of its curves."""
    axes.legend(frameon=False, fontsize=8.5, ncols=columns, loc="upper center", bbox_to_anchor=(0.5, -below))


def tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)


def mean_line(axes: Axes, x: np.ndarray, values: np.ndarray, colour: str, label: str, style: str = "o-") -> None:
    """Mean over trials, with a band of two standard errors; values (trials, k), those that are not finite left out."""
    known = np.ma.masked_invalid(values)
    mean = known.mean(0).filled(np.nan)
    error = known.std(0).filled(np.nan) / np.sqrt(np.maximum(known.count(0) - 1, 1))
    axes.plot(x, mean, style, color=colour, lw=1.8, ms=5, label=label)
    axes.fill_between(x, np.maximum(mean - 2 * error, mean / 10), mean + 2 * error, color=colour, alpha=0.2, lw=0)


def width_axis(axes: Axes, m: np.ndarray) -> None:
    """A logarithmic axis of widths with ticks at them."""
    axes.set_xscale("log")
    axes.set_xticks(m, [str(width) for width in m])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("width m")


def log_axis(axis: Axis) -> None:
    """Ticks at 1, 2, 5 times powers of ten, as plain numbers, on a logarithmic axis that is already set."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(NullFormatter())
