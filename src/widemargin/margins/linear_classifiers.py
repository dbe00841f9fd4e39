"""The hard margin of linear classifiers through the origin."""

from __future__ import annotations

from widemargin.types import Certificate, Dataset

from . import qp
from .door import Progress, bounds_factor, enter, integer_weights, nothing_left, twins, vanishes


def linear(
    data: Dataset,
    *,
    bias: bool = False,
    tol: float = 1e-9,
    time_limit: float | None = None,
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
    door = enter(data, bias, tol, time_limit, progress)
    Z = door.X * door.y[:, None]
    found = twins(door)
    stats: dict[str, object] = {}
    if found is None:
        solved = qp.solve_factor(Z, tol / 4, door.deadline, door.teller())
        q, zero, stopped = solved.q, "", solved.stopped
        stats = {"steps": solved.steps, "method": solved.method}
        u = qp.direction(Z, q, tol / 2)
        lower, upper = bounds_factor(Z, door.size, u, q)
        if lower <= 0 and nothing_left(upper, q, door.size) and not stopped:
            zero = "0 lies in the convex hull of the points y_i x_i up to rounding"
            whole = integer_weights(q)
            if whole is not None and vanishes(Z, whole, linear=True):
                q, upper, zero = whole, 0.0, "0 lies in the convex hull of the points y_i x_i (exactly)"
    else:
        (q, zero), lower, upper, u, stopped = found, 0.0, 0.0, 0 * Z[0], ""
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
