"""Margins in the kernel space F2, exact and with finitely many random features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from widemargin.spaces import Space, as_space, sphere
from widemargin.types import Certificate, Dataset, InputError

from . import qp
from .door import (
    EPS,
    Door,
    Progress,
    bounds_factor,
    choose_space,
    enter,
    integer_weights,
    nothing_left,
    product,
    twins,
    vanishes,
)

Kernel = str | Callable[[np.ndarray, np.ndarray], ArrayLike] | ArrayLike


def f2(
    data: Dataset,
    space: Space | Kernel | None = None,
    *,
    bias: bool | None = None,
    activation: str | None = None,
    kernel: Kernel | None = None,
    tol: float = 1e-6,
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Certificate:
    """Largest margin in the unit ball of F2 (convention M7; gram for a kernel of one's own): the hard margin of the kernel SVM.

        margin = max_{||f|| <= 1} min_i y_i f(x_i) = min_{q in simplex} sqrt(q' K q),   K_ij = y_i y_j k(x_i, x_j)

    k is the random feature kernel of `space` (or of `bias` and `activation`), in closed form; or a function k(X, Z),
    which sees points with the bias coordinate, or the matrix (n, n) of its values. `extra["alpha"]` holds the
    weights of f = sum_i alpha_i y_i k(x_i, .).

    Reference: Wei, Lee, Liu and Ma (2019), (3.8); Chizat and Bach (2020), (5).

    >>> import widemargin as wm
    >>> one = wm.Dataset([[3.0, 4.0]], [1])  # |f(x)| <= ||f|| sqrt(k(x, x)), and k(x, x) = |x|^2 / (2 d)
    >>> cert = wm.margins.f2(one)
    >>> abs(cert.lower - 2.5) < 1e-6, abs(cert.upper - 2.5) < 1e-6
    (True, True)
    """
    if space is not None and not isinstance(space, Space):
        if kernel is not None:
            raise InputError("f2 got two kernels; give one")
        space, kernel = None, space
    if isinstance(kernel, str):  # the name of an activation
        if activation not in (None, kernel):
            raise InputError(f"activation={activation!r} contradicts kernel={kernel!r}; leave one of them out")
        if space is None:
            space = as_space(kernel, bias=bool(bias))
        activation, kernel = kernel, None
    elif kernel is not None and activation is not None:
        raise InputError(f"activation={activation!r} has no meaning for a kernel of one's own; leave one of them out")
    space = choose_space(space, bias, activation)
    door = enter(data, space, tol, time_limit, progress)
    y, plain = door.y, as_space(space.activation)
    extra: dict[str, Any]
    if kernel is None:
        K, degree = _mirror(plain.kernel(door.X)), space.degree  # door.X has the bias coordinate
        D = door.X.shape[1]
        size = np.sqrt(K.diagonal())
        blur, extra = EPS * (2 * D + 30) * 2 ** (degree - 1), {"kernel": space.activation}
        found = twins(door)
    else:
        K, degree = _gram(data, door, kernel), 0
        extra = {"kernel": "given", "gram": K.tolist()}
        size, blur, found = np.sqrt(K.diagonal()), 0.0, _zero_point(K, y)
    K *= y
    K *= y[:, None]
    stats: dict[str, Any] = {}
    if found is None:
        solved = qp.solve(K, tol / 4, door.deadline, door.teller(degree))
        q, zero, stopped = solved.q, "", solved.stopped
        lower, upper, noise = _bounds(K, size, blur, q)
        stats = {"steps": solved.steps, "method": solved.method, "support": int((q > 0).sum())}
        if lower <= 0 and upper <= 4 * noise and not stopped:
            zero = f"a mixture of the points vanishes in F2 up to rounding ({upper / size.max():.1g} of their size)"
            whole = integer_weights(q)
            if whole is not None and degree == 1 and vanishes(door.X, whole * y, linear=False):
                q, zero = whole, "a mixture of the points vanishes in F2, exactly: no function separates the classes"
                upper = _bounds(K, size, blur, q)[1]
    else:
        (q, zero), lower, stopped = found, 0.0, ""
        upper = _bounds(K, size, blur, q)[1] if K[q > 0].any() else 0.0
    extra["alpha"] = q.tolist()
    return door.certificate(
        "f2",
        (lower, upper),
        q,
        degree=degree,
        convention="M7" if kernel is None else "gram",
        stopped=stopped,
        zero=zero,
        extra=extra,
        stats=stats,
    )


def random_features(
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
    """Largest margin of m fixed features with l2 outer weights (convention M7, finite).

        margin = max_{sqrt(m) ||a|| <= 1} min_i sum_j z_ij a_j = min_{q in simplex} ||z' q|| / sqrt(m)

    z_ij = y_i phi(v_j . x_i), v_j the given directions divided by their norms, or `directions` many uniform ones drawn
    with `seed`. Tends to `f2` as m grows.

    Reference: Chizat and Bach (2020), Proposition 7.

    `directions` is (m, D), D = d, or d + 1 with `bias`; `extra["a"]` (m,) are the outer weights.

    >>> import widemargin as wm
    >>> data = wm.Dataset([[2.0, 0.0], [-2.0, 0.0]], [1, -1])
    >>> cert = wm.margins.random_features(data, [[1.0, 0.0], [-1.0, 0.0]])  # z = diag(2, -2)
    >>> abs(cert.lower - 1) < 1e-6, cert.verify(data).ok
    (True, True)
    """
    door = enter(data, as_space(activation, bias=bias), tol, time_limit, progress)
    V, drawn = unit_directions(directions, door.X.shape[1], seed)
    m, degree = len(V), door.space.degree
    unit = V / np.linalg.norm(V, axis=1, keepdims=True)
    Z = door.space.phi(door.X @ unit.T) * door.y[:, None] / np.sqrt(m)  # (n, m), row norms at most size
    size = door.size**degree
    blur = EPS * (degree * (2 * V.shape[1] + 10) + 4)  # of one feature, relative to size
    conflict = twins(door)
    stats: dict[str, Any] = {"seed": seed if drawn else None}
    if conflict is None and not Z.any(axis=1).all():
        i = int(np.flatnonzero(~Z.any(axis=1))[0])
        conflict = np.eye(len(Z))[i], f"all features of point {i} are zero"
    if conflict is None:
        solved = qp.solve_factor(Z, tol / 4, door.deadline, door.teller(degree))
        q, zero, stopped = solved.q, "", solved.stopped
        stats |= {"steps": solved.steps, "method": solved.method}
    else:
        (q, zero), stopped = conflict, ""
    a = qp.direction(Z, q, tol / 2)
    lower, upper = bounds_factor(Z, size, a, q)
    lower, upper = float((lower - blur * size).min()), upper + blur * float(q @ size) / float(q.sum())
    if not zero and lower <= 0 and nothing_left(upper, q, size) and not stopped:
        zero = f"the features are not separable up to rounding ({upper / size.max():.1g} of their size)"
    extra = {"directions": V.tolist(), "a": a.tolist()}
    return door.certificate(
        "rf",
        (lower, upper),
        q,
        degree=degree,
        convention="M7",
        stopped=stopped,
        zero=zero,
        extra=extra,
        stats=stats,
    )


def unit_directions(directions: int | ArrayLike, D: int, seed: int) -> tuple[np.ndarray, bool]:
    """Directions (m, D) as given, or m uniform ones; and whether they were drawn here."""
    if isinstance(directions, int | np.integer):
        return sphere(int(directions), D, seed), True
    try:
        V = np.array(directions, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"directions must hold numbers only ({error})") from None
    if V.ndim != 2 or V.shape[1] != D or len(V) == 0:
        raise InputError(f"directions must have shape (m, {D}), one row per direction, not {V.shape}")
    top = np.abs(V).max(axis=1)
    bad = np.flatnonzero(~((top > 1e-100) & (top < 1e100)))
    if len(bad):
        raise InputError(f"direction {bad[0]} is zero, not finite, or beyond 1e-100..1e100; rescale or remove it")
    return V, False


def _gram(data: Dataset, door: Door, kernel: Kernel) -> np.ndarray:
    """The given kernel as a checked symmetric matrix."""
    points = door.space.extend(data.X)
    values = kernel(points, points) if callable(kernel) else kernel
    try:
        K = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"the kernel matrix must hold numbers only ({error})") from None
    n = data.n
    if K.shape != (n, n):
        raise InputError(f"the kernel matrix must have shape ({n}, {n}), one row and column per point, not {K.shape}")
    if not np.isfinite(K).all():
        raise InputError("the kernel matrix has NaN or infinity")
    top = float(np.abs(K).max())
    if np.abs(K - K.T).max() > 1e-10 * top:
        i, j = np.unravel_index(np.abs(K - K.T).argmax(), K.shape)
        raise InputError(f"the kernel matrix is not symmetric: entries ({i}, {j}) and ({j}, {i}) differ")
    K = _mirror(K)
    if (K.diagonal() < 0).any():
        raise InputError("the kernel matrix is not positive semidefinite: its diagonal has a negative entry")
    if top > 0:
        try:
            qp._factorize(K / top, 1e-10)
        except linalg.LinAlgError:
            raise InputError("the kernel matrix is not positive semidefinite") from None
    return K


def _mirror(K: np.ndarray) -> np.ndarray:
    """The lower half of K on both sides: exactly symmetric."""
    return np.tril(K) + np.tril(K, -1).T


def _zero_point(K: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, str] | None:
    """Integer weights q with q'Kq = 0 exactly: a point of norm 0, or equal points with different labels."""
    zero = np.flatnonzero(K.diagonal() == 0)
    if len(zero):
        q = np.zeros(len(K))
        q[zero[0]] = 1
        return q, f"point {zero[0]} has norm 0 in F2, where every function vanishes"
    first: dict[bytes, int] = {}
    for i, row in enumerate(K):
        j = first.setdefault(row.tobytes(), i)
        if y[i] != y[j]:
            q = np.zeros(len(K))
            q[[i, j]] = 1
            return q, f"points {j} and {i} are equal in F2 but have different labels"
    return None


def _bounds(K: np.ndarray, size: np.ndarray, blur: float, q: np.ndarray) -> tuple[float, float, float]:
    """lower <= min (Kq) / sqrt(q'Kq), upper >= sqrt(q'Kq) / sum q, and the size of rounding in upper.

    With blur > 0, |K_ij| <= size_i size_j and each entry of K may be off by blur size_i size_j.
    """
    Kq, e = product(K, q)
    total = float(q.sum())
    spread = (e + blur + 8 * EPS) * (float(q @ size) * size if blur else np.abs(K) @ q)  # error of Kq
    error = 2 * float(q @ spread) + EPS * len(q) * float(q @ np.abs(Kq))  # of q'Kq
    square = max(float(q @ Kq), 0.0) + error
    lower = float((Kq - spread).min()) / np.sqrt(square) if square > 0 else 0.0
    wide = 1 + 2 * EPS * (len(q) + 8)
    upper = float(np.sqrt(square)) / total * wide
    return float(lower - abs(lower) * 8 * EPS), upper, float(np.sqrt(error)) / total
