"""The plane of Figures 1 and 3: a grid of points [1, x1, x2], and decision regions drawn on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from widemargin.plots import INK, MINUS, PLUS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


EDGE = 0.65  # pictures of the plane show [-EDGE, EDGE]^2


def plane_points(grid: int) -> tuple[np.ndarray, np.ndarray]:
    """A line of the grid and its points [1, x1, x2] (grid^2, 3), second coordinate slowest."""
    line = np.linspace(-EDGE, EDGE, grid)
    x1, x2 = np.meshgrid(line, line)
    return line, np.column_stack([np.ones(grid * grid), x1.ravel(), x2.ravel()])


def draw_plane(
    axes: Axes, line: np.ndarray, f: np.ndarray, data: tuple[np.ndarray, np.ndarray], size: float = 9
) -> None:
    """Regions of the two signs of f (its own scale does not matter), the boundary, and the training points."""
    X, y = data
    axes.contourf(line, line, f, levels=[-np.inf, 0, np.inf], colors=[MINUS, PLUS], alpha=0.18)
    axes.contour(line, line, f, levels=[0], colors=[INK], linewidths=1.3)
    for sign, colour, mark in ((1, PLUS, "o"), (-1, MINUS, "^")):
        axes.scatter(X[y == sign, 1], X[y == sign, 2], s=size, c=colour, marker=mark, linewidths=0, zorder=3)
    axes.set_xlim(-EDGE, EDGE)
    axes.set_ylim(-EDGE, EDGE)
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
