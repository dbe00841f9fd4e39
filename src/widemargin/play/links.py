"""Data sets as the part of the page's address that holds its state."""

from __future__ import annotations

from urllib.parse import urlencode

import numpy as np

from widemargin.dataset import takes_data
from widemargin.types import Dataset, InputError

STEP = 64  # coordinates are multiples of 1 / STEP
FARTHEST = 100
POINTS = 400  # with the server; the page alone takes 150


@takes_data()
def link(data: Dataset, *, bias: bool = False) -> str:
    """`#...` for a data set of the plane: its points on the grid of the page, which rounds coordinates to multiples of 1/64.

    `data` has X (n, 2) and labels -1 and +1; `bias` is whether neurons have one.

    >>> from widemargin.play import link
    >>> from widemargin.types import Dataset
    >>> link(Dataset([[1.0, -0.5], [0.25, 2.0]], [1, -1]), bias=False)
    '#v=1&bias=0&p=64_-32p.16_128m'
    """
    if data.d != 2:
        raise InputError(f"{data.name}: the playground shows points of the plane, and this data has {data.d} features")
    if data.n > POINTS:
        raise InputError(f"{data.name}: {data.n} points are more than the playground takes ({POINTS}); use fewer")
    if float(np.abs(data.X).max(initial=0.0)) > FARTHEST:
        raise InputError(f"{data.name}: a coordinate is beyond {FARTHEST}; scale the points down")
    grid = np.round(data.X * STEP).astype(int).tolist()
    points = [f"{x}_{y}{'p' if label > 0 else 'm'}" for (x, y), label in zip(grid, data.signs().tolist())]
    return "#" + urlencode({"v": 1, "bias": int(bias), "p": ".".join(points)})
