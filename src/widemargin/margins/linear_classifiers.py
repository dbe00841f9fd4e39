"""The hard margin of linear classifiers through the origin."""

from __future__ import annotations

import numpy as np

from widemargin.kinds import VECTOR_NORMS
from widemargin.types import Certificate, Dataset

from . import norms, rows
from .answers import solves
from .door import Door, Progress, enter, integer_weights, nothing_left, product, twins, vanishes


@solves()
def linear(
    data: Dataset,
    *,
    norm: str = "l2",
    bias: bool = False,
    tol: float = 1e-9,
    time_limit: float | None = None,
    memory: float | None = None,
    progress: Progress | None = None,
) -> Certificate:
    """Largest margin of x -> u . x (convention M11), as a convex quadratic program, or as a linear one in another norm.

        margin = max_{||u|| <= 1} min_i y_i u . x_i = min_{q in simplex} ||sum_i q_i y_i x_i||

    `norm` is that of u: "l2", "linf" (the largest entry, what sign descent and Adam with small constants maximise; convention
    M11-linf) or "l1" (the sum of entries, coordinate descent and boosting; M11-l1). The norm on the right is its dual.

    With `bias` every point is extended by a coordinate 1 and u has d + 1 entries. `extra["u"]` is the best direction, of any
    length.

    >>> import widemargin as wm
    >>> data = wm.Dataset([[3.0, 4.0], [-3.0, -4.0], [6.0, 8.0]], [1, -1, 1])
    >>> cert = wm.margins.linear(data)
    >>> abs(cert.lower - 5) < 1e-6, cert.verify(data).ok
    (True, True)
    >>> [round(wm.margins.linear(data, norm=norm).lower, 6) for norm in ("l1", "linf")]  # the largest entry of x, and the sum
    [4.0, 7.0]
    """
    norms.check_norm(norm, VECTOR_NORMS)
    door = enter(data, bias, tol, time_limit, progress, memory=memory)
    return euclidean(door) if norm == "l2" else _in_norm(door, norm)


def euclidean(door: Door) -> Certificate:
    """The certificate of kind linear."""
    twin, y = twins(door), door.y
    stats: dict[str, object] = {}
    if twin is None:
        solved = rows.solve(_signed_points(door), door.tol, door.teller())
        q, zero, stopped, lower, upper, stats = solved.q, "", solved.stopped, solved.lower, solved.upper, solved.stats
        u = solved.predictor if solved.predictor is not None else np.zeros(door.X.shape[1])
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


def separable(door: Door) -> bool:
    """Whether a linear classifier separates the points, rounding included; true as well where there was no time to find out."""
    solved = rows.solve(_signed_points(door), door.tol)
    return solved.lower > 0 or bool(solved.stopped)


def _signed_points(door: Door) -> rows.Features:
    X, y = door.X, door.y
    return rows.Features(door, lambda index: X[index] * y[index, None], X.shape[1], labels=y, size=door.size)


def _in_norm(door: Door, norm: str) -> Certificate:
    """The certificate of another norm than the Euclidean one."""
    X, y = door.X, door.y
    twin, u, stopped = twins(door), np.zeros(X.shape[1]), ""
    stats: dict[str, object] = {}
    if twin is not None:
        (q, zero), lower, upper = twin, 0.0, 0.0
    else:
        Z = X * y[:, None]

        def values(A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            scores, e = product(Z, A[0])
            return scores, e * (np.abs(Z) @ np.abs(A[0]))

        def weighted(q: np.ndarray) -> tuple[np.ndarray, float]:
            nearest, e = product(Z.T, q)
            return nearest[None], e * float((np.abs(Z).T @ q).max())

        points = norms.Rows(len(Z), (1, Z.shape[1]), lambda index: Z[index], values, weighted)
        solved = norms.largest(points, norm, door.tol, door.limits, door.teller())
        if solved.lower <= 0 and solved.stopped in ("", "stalled"):
            norms.offer_also(points, norm, rows.solve(_signed_points(door), door.tol), solved)
        q, u, lower, upper, stopped = solved.q, solved.A[0], solved.lower, solved.upper, solved.stopped
        stats, zero = {"rounds": solved.rounds, "rows": solved.rows}, ""
        reach = np.abs(Z).max(axis=1) if norm == "l1" else np.abs(Z).sum(axis=1)
        if lower <= 0 and nothing_left(upper, q, reach) and stopped in ("", "stalled"):
            zero = "0 lies in the convex hull of the points y_i x_i up to rounding"
            whole = integer_weights(q)
            if whole is not None and vanishes(door, whole * y, linear=True):
                q, upper, zero = whole, 0.0, "0 lies in the convex hull of the points y_i x_i (exactly)"
    extra = {"u": u.tolist(), "norm": norm}
    return door.certificate(
        "linear",
        (lower, upper),
        q,
        degree=1,
        convention=VECTOR_NORMS[norm],
        stopped=stopped,
        zero=zero,
        extra=extra,
        stats=stats,
    )
