"""The margin of finitely many given neurons with l1 outer weights."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from widemargin.spaces import as_space
from widemargin.types import Certificate, Dataset, Measure

from . import programs
from .door import EPS, Progress, enter, nothing_left, product, twins
from .kernel_machines import unit_directions


def frozen(
    data: Dataset,
    directions: int | ArrayLike,
    *,
    bias: bool = False,
    activation: str = "relu",
    seed: int = 0,
    tol: float = 1e-6,
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Certificate:
    """Largest margin of signed measures on given directions (convention M1 restricted to them), as a linear program.

        margin = max_{||a||_1 <= 1} min_i sum_j z_ij a_j = min_{q in simplex} max_j |sum_i q_i z_ij|

    z_ij = y_i phi(v_j . x_i) / ||v_j||^k, k the degree of phi; or `directions` many uniform v_j drawn with `seed`.
    The atoms of the primal are rows of `directions`, unchanged.

    Reference: Chizat and Bach (2020), Proposition 6 (M6 of balanced neurons is half of this).

    `directions` is (m, D), D = d, or d + 1 with `bias`.

    >>> import widemargin as wm
    >>> xor = wm.Dataset([[1, 1], [-1, -1], [1, -1], [-1, 1]], [1, 1, -1, -1])
    >>> cert = wm.margins.frozen(xor, xor.X)  # z = diag(y) sqrt(2)
    >>> abs(cert.lower - 2**0.5 / 4) < 1e-6, cert.verify(xor).ok
    (True, True)
    """
    door = enter(data, as_space(activation, bias=bias), tol, time_limit, progress)
    V, drawn = unit_directions(directions, door.X.shape[1], seed)
    D, degree = V.shape[1], door.space.degree
    length = np.linalg.norm(V, axis=1) ** degree
    Z = door.space.phi(door.X @ V.T) / length * door.y[:, None]  # (n, m)
    size = door.size**degree
    blur = EPS * (degree * (D + 4) + 4)  # of one feature, relative to size
    found = twins(door)
    stats: dict[str, Any] = {"seed": seed if drawn else None}
    primal, zero, stopped, lower = None, "", "", 0.0
    if found is None:
        left = None if math.isinf(door.deadline) else door.deadline - time.perf_counter()
        a, q, stopped = programs.matrix_game(Z, left)
        keep = np.flatnonzero(a)
        if len(keep):
            primal = Measure(V[keep], a[keep] / length[keep], activation, bias)
            scores, e = product(door.space.phi(door.X @ primal.theta.T), primal.mass)
            lower = float((scores * door.y / primal.norm - (e + 2 * blur) * size).min())
            lower -= abs(lower) * EPS * (2 * len(keep) + degree * D + 8)
            stats["atoms"] = len(keep)
    else:
        q, zero = found
    sums, e = product(Z.T, q)
    exact = found is not None and zero and not sums.any()
    upper = 0.0 if exact else float(np.abs(sums).max()) + (e + blur) * float(q @ size)
    upper *= (1 + 2 * EPS * (len(q) + 4)) / float(q.sum())
    if not zero and lower <= 0 and nothing_left(upper, q, size) and not stopped:
        zero = f"the features are not separable up to rounding ({upper / size.max():.1g} of their size)"
    if zero or lower <= 0:
        primal = None
    return door.certificate(
        "frozen",
        (lower, upper),
        q,
        degree=degree,
        convention="M1",
        stopped=stopped,
        zero=zero,
        primal=primal,
        extra={"directions": V.tolist()},
        stats=stats,
    )
