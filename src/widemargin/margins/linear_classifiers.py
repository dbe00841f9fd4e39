"""The hard margin of linear classifiers through the origin."""

from __future__ import annotations

import numpy as np

from widemargin.types import Certificate, Dataset

from . import rows
from .door import Progress, enter, integer_weights, nothing_left, twins, vanishes


def linear(
    data: Dataset,
    *,
    bias: bool = False,
    tol: float = 1e-9,
    time_limit: float | None = None,
    memory: float | None = None,
    progress: Progress | None = None,
) -> Certificate:
    """Largest margin of x -> u . x (convention M11), as a convex quadratic program.

        margin = max_{||u|| <= 1} min_i y_i u . x_i = min_{q in simplex} ||sum_i q_i y_i x_i||

    With `bias` every point is extended by a coordinate 1 and u has d + 1 entries. `extra["u"]` is the best direction, of any
    length.

    >>> import widemargin as wm
    >>> data = wm.Dataset([[3.0, 4.0], [-3.0, -4.0], [6.0, 8.0]], [1, -1, 1])
    >>> cert = wm.margins.linear(data)
    >>> abs(cert.lower - 5) < 1e-6, cert.verify(data).ok
    (True, True)
    """
    door = enter(data, bias, tol, time_limit, progress, memory=memory)
    twin, y = twins(door), door.y
    stats: dict[str, object] = {}
    if twin is None:
        problem = rows.Features(
            door, lambda index: door.X[index] * y[index, None], door.X.shape[1], labels=y, size=door.size
        )
        found = rows.solve(problem, tol, door.teller())
        q, zero, stopped, lower, upper, stats = found.q, "", found.stopped, found.lower, found.upper, found.stats
        u = found.predictor if found.predictor is not None else np.zeros(door.X.shape[1])
        if lower <= 0 and nothing_left(upper, q, door.size) and not stopped:
            zero = "0 lies in the convex hull of the points y_i x_i up to rounding"
            whole = integer_weights(q)
            if whole is not None and vanishes(door, whole * y, linear=True):
                q, upper, zero = whole, 0.0, "0 lies in the convex hull of the points y_i x_i (exactly)"
    else:
        (q, zero), lower, upper, u, stopped = twin, 0.0, 0.0, np.zeros(door.X.shape[1]), ""
    return door.certificate(
        "linear",
        (lower, upper),
        q,
        degree=1,
        convention="M11",
        stopped=stopped,
        zero=zero,
        extra={"u": u.tolist()},
        stats=stats,
    )
