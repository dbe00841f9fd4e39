"""Margins in the kernel space F2, exact and with finitely many random features."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from widemargin.spaces import Space, as_numbers, as_space, sphere
from widemargin.types import Certificate, Dataset, InputError
from widemargin.verify.kernels import GIVEN

from . import qp, rows
from .answers import solves
from .door import (
    EPS,
    Door,
    Progress,
    check_count,
    check_seed,
    choose_space,
    enter,
    equal_rows,
    integer_weights,
    nothing_left,
    product,
    twins,
    vanishes,
)
from .linear_classifiers import separable
from .qp import Tell

MATRIX_BLOCK = 2**19  # entries of a kernel matrix between two looks at the clock
ROWS = 256  # of a given kernel matrix that are looked at together
SEEN = 16  # columns of it by which rows are told apart at first
MATRICES = 2  # as large as a given kernel matrix, at a time
COLUMNS, ROW = 100, 1000  # so many columns take as long as a number of a matrix; a row takes as long as so many numbers
DIRECTION = 8.0  # numbers' room that an entry of a direction takes, most of it in the certificate
PASSES = 50  # operations for each number of the points that a matrix is made of

Kernel = str | Callable[[np.ndarray, np.ndarray], ArrayLike] | ArrayLike


@solves()
def f2(
    data: Dataset,
    space: Space | Kernel | None = None,
    *,
    bias: bool | None = None,
    activation: str | None = None,
    kernel: Kernel | None = None,
    tol: float = 1e-6,
    time_limit: float | None = None,
    memory: float | None = None,
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
    return in_space(enter(data, space, tol, time_limit, progress, memory=memory), kernel)


def in_space(door: Door, kernel: Kernel | None = None) -> Certificate:
    """The certificate of kind f2 with the kernel of the door's neurons, or with one of one's own."""
    y, D = door.y, door.X.shape[1]
    extra: dict[str, Any]
    if kernel is None:
        space = door.space
        degree, X, plain = space.degree, door.X, as_space(space.activation)  # X has the bias coordinate
        own = float(plain.kernel(np.eye(1, D))[0, 0])  # k depends on sizes and angles alone
        size, blur = math.sqrt(own) * door.size**degree, EPS * (2 * D + 30) * 2 ** (degree - 1)
        problem = Gram(door, lambda a, b: plain.kernel(X[a], X[b]), size, blur)
        extra, twin, whole = {"kernel": space.activation}, twins(door), True
    else:
        degree = 0
        K, whole = _gram(door, kernel)
        extra = {"kernel": "given", "gram": K}  # as it is: lists of so many numbers take longer than the solution
        problem = Gram(door, lambda a, b: K[a][:, b], np.sqrt(K.diagonal()), 0.0)
        twin = _zero_point(K, y)
    stats: dict[str, Any] = {}
    if twin is None:
        solved = rows.solve(problem, door.tol, door.teller(degree))
        q, zero, stopped, lower, upper = solved.q, "", solved.stopped, solved.lower, solved.upper
        stats = solved.stats | {"support": int((q > 0).sum())}
        nothing = lower <= 0 and upper <= 4 * problem.noise and not stopped
        if nothing and not (degree == 1 and separable(door)):  # by a linear function, which is in the space
            zero = f"a mixture of the points vanishes in F2 up to rounding ({upper / problem.size.max():.1g} of their size)"
            integers = integer_weights(q)
            if integers is not None and degree == 1 and vanishes(door, integers * y, linear=False):
                q, zero = integers, "a mixture of the points vanishes in F2, exactly: no function separates the classes"
                upper = problem.bound(q)
        alpha = solved.predictor.weights if solved.predictor is not None else q
    else:
        (q, zero), lower, stopped = twin, 0.0, ""
        upper, alpha = problem.bound(q), q
    if not whole and not stopped:
        # Not all of the matrix was looked at: nothing is certified.
        stopped, zero, q = "time-limit", "", q / q.sum()
    extra["alpha"] = alpha.tolist()
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


@solves()
def random_features(
    data: Dataset,
    directions: int | ArrayLike,
    *,
    bias: bool = False,
    activation: str = "relu",
    seed: int = 0,
    tol: float = 1e-6,
    time_limit: float | None = None,
    memory: float | None = None,
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
    door = enter(data, as_space(activation, bias=bias), tol, time_limit, progress, memory=memory)
    V, drawn = unit_directions(directions, door, seed)
    m, degree, phi, y = len(V), door.space.degree, door.space.phi, door.y
    unit = V / np.linalg.norm(V, axis=1, keepdims=True)
    size = door.size**degree
    blur = EPS * (degree * (2 * V.shape[1] + 10) + 4)  # of one feature, relative to size

    def features(index: Any) -> np.ndarray:
        return np.asarray(phi(door.X[index] @ unit.T) * y[index, None] / np.sqrt(m))  # (k, m), row norms at most size

    problem = rows.Features(door, features, m, labels=y, size=size, blur=blur * size)
    conflict = twins(door)
    stats: dict[str, Any] = {"seed": seed if drawn else None}
    a, lower, stopped = np.zeros(m), 0.0, ""
    if conflict is None:
        solved = rows.solve(problem, tol, door.teller(degree))
        q, zero, stopped, lower, upper = solved.q, "", solved.stopped, solved.lower, solved.upper
        stats |= solved.stats
        a = a if solved.predictor is None else solved.predictor
        if lower <= 0 and nothing_left(upper, q, size) and not stopped:
            zero = f"the features are not separable up to rounding ({upper / size.max():.1g} of their size)"
            if solved.stats["method"] == "zero":
                zero = f"all features of point {int(q.argmax())} are zero"
    else:
        q, zero = conflict
        problem.Z = features(some := np.flatnonzero(q))
        upper = problem.upper(some, q[some])
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


def unit_directions(directions: int | ArrayLike, door: Door, seed: int) -> tuple[np.ndarray, bool]:
    """Directions (m, D) as given, or m uniform ones; and whether they were drawn here."""
    D = door.X.shape[1]
    if isinstance(directions, int | np.integer) and not isinstance(directions, bool):
        check_seed("directions", seed)
        m = check_count("directions", directions, 1)
        door.limits.hold(DIRECTION * m * D, f"{m} directions in {D} dimensions")
        return sphere(m, D, seed), True
    V = np.array(as_numbers("directions", directions))
    if V.ndim != 2 or V.shape[1] != D or len(V) == 0:
        raise InputError(f"directions must have shape (m, {D}), one row per direction, not {V.shape}")
    top = np.abs(V).max(axis=1)
    bad = np.flatnonzero(~((top > 1e-100) & (top < 1e100)))
    if len(bad):
        raise InputError(f"direction {bad[0]} is zero, not finite, or beyond 1e-100..1e100; rescale or remove it")
    return V, False


def _gram(door: Door, kernel: Kernel) -> tuple[np.ndarray, bool]:
    """The given kernel as a checked symmetric matrix, and whether the time was enough to see that it is one of a kernel."""
    n, points = door.data.n, door.space.extend(door.data.X)
    if n > GIVEN:
        raise InputError(
            f"a kernel matrix may have {GIVEN} points, which a checker looks at, not {n}; give fewer points"
        )
    door.limits.hold(MATRICES * float(n) * n, f"the kernel matrix of {n} points")
    values = kernel(points, points) if callable(kernel) else kernel
    given = as_numbers("the kernel matrix", values)
    if given.shape != (n, n):
        raise InputError(
            f"the kernel matrix must have shape ({n}, {n}), one row and column per point, not {given.shape}"
        )
    top = max(float(given.max()), -float(given.min()))
    if not np.isfinite(top):
        raise InputError("the kernel matrix has NaN or infinity")
    K = np.empty((n, n))
    for start in range(0, n, ROWS):  # what is below the diagonal, on both sides: exactly symmetric
        rows, until = slice(start, start + ROWS), min(start + ROWS, n)
        below, above = given[rows, :until], given[:until, rows].T
        off = np.abs(below - above)
        if off.max() > 1e-10 * top:
            i, j = (int(v) for v in np.unravel_index(off.argmax(), off.shape))
            i += start
            raise InputError(f"the kernel matrix is not symmetric: entries ({i}, {j}) and ({j}, {i}) differ")
        K[rows, :until] = below
        K[:start, rows] = below[:, :start].T
        K[rows, rows] = _mirror(below[:, start:])
    if (K.diagonal() < 0).any():
        raise InputError("the kernel matrix is not positive semidefinite: its diagonal has a negative entry")
    if 0 < top < 1e-250 or top > 1e250:
        raise InputError(f"the kernel matrix has entries of size {top:.3g}; multiply it by a constant")
    part = door.limits.largest(n, lambda k: k**3 / 3, lambda k: 3.0 * k * k)
    if top > 0:
        try:
            qp._factorize(K[:part, :part] / top, 1e-10)
        except linalg.LinAlgError:
            raise InputError("the kernel matrix is not positive semidefinite") from None
    return K, part == n


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
    alike = equal_rows(K[:, :SEEN])  # a few columns tell most rows apart
    for group in np.unique(alike[y != y[alike]]):
        some = np.flatnonzero(alike == group)
        first = equal_rows(K[some])
        wrong = np.flatnonzero(y[some] != y[some[first]])
        if len(wrong):
            i, j = int(some[wrong[0]]), int(some[first[wrong[0]]])
            q = np.zeros(len(K))
            q[[i, j]] = 1
            return q, f"points {j} and {i} are equal in F2 but have different labels"
    return None


@dataclass(frozen=True)
class Expansion:
    """f = sum_i weights_i y_i k(x_i, .), of which the `some` with weight are kept, and at least the square of its norm."""

    weights: np.ndarray  # (n,)
    some: np.ndarray
    square: float


class Gram(rows.Rows):
    """A hard margin in the space of a kernel: `entries` gives k(x_i, x_j) of two sets of points, off by blur size_i size_j."""

    def __init__(self, door: Door, entries: Callable[[Any, Any], np.ndarray], size: np.ndarray, blur: float):
        super().__init__(door, len(door.y), door.y, size)
        self.entries, self.blur, self.noise = entries, blur, 0.0
        self.K, self.first_time = np.zeros((0, 0)), True
        self.columns = door.X.shape[1] if blur else 0  # a matrix that was given has its entries already

    def matrix(self, index: np.ndarray) -> np.ndarray:
        """K_ij = y_i y_j k(x_i, x_j) of some points, exactly symmetric."""
        k, y = len(index), self.door.y[index]
        if self.first_time:
            K = self.entries(index, index)
        else:
            K = np.empty((k, k))
            for block in self.door.limits.blocks(k, k, MATRIX_BLOCK):
                K[block] = self.entries(index[block], index)
        K = _mirror(K)
        K *= y
        K *= y[:, None]
        return K

    def solve(self, rows: np.ndarray, tol: float, tell: Tell | None) -> tuple[Any, qp.Progress]:
        self.K = self.matrix(rows)
        self.first_time = False
        steps = qp.solve(self.K, tol, self.door.deadline, tell)
        _, _, square, _ = _bounds(self.K, self.size[rows], self.blur, steps.q)
        weights = np.zeros(self.n)
        weights[rows] = steps.q
        return Expansion(weights, np.flatnonzero(weights), square), steps

    def upper(self, rows: np.ndarray, q: np.ndarray) -> float:
        _, upper, _, self.noise = _bounds(self.K, self.size[rows], self.blur, q)
        return upper

    def bound(self, q: np.ndarray) -> float:
        """The upper bound that weights (n,) of a few points, whose mixture vanishes, prove; exactly 0 where they see nothing."""
        some = np.flatnonzero(q)
        size = self.size[some]
        unit = float(size.max())
        if not unit:
            return 0.0
        if unit * (EPS * unit) > np.finfo(float).smallest_normal:
            return _bounds(self.matrix(some), size, self.blur, q[some])[1]
        # Beside the others they are so small that squares of their sizes, or the errors of those, are lost.
        return _bounds(np.zeros((len(some), len(some))), size / unit, self.blur, q[some])[1] * unit

    def judge(self, predictor: Any, block: slice) -> np.ndarray:
        f, door = predictor, self.door
        if len(self.K) == self.n:
            K, q = self.K[block], f.weights
        else:
            K, q = self.entries(block, f.some) * door.y[block, None] * door.y[f.some], f.weights[f.some]
        if not f.square > 0:
            return np.zeros(len(K))
        Kq, e = product(K, q)
        margins = (Kq - self.spread(K, block, f.weights, q, e)) / math.sqrt(f.square)
        return np.asarray(margins - np.abs(margins) * 8 * EPS)

    def spread(self, K: np.ndarray, block: slice, weights: np.ndarray, q: np.ndarray, e: float) -> np.ndarray:
        """The error of K q."""
        room = float(weights @ self.size) * self.size[block] if self.blur else np.abs(K) @ q
        return (e + self.blur + 8 * EPS) * room

    def width(self, predictor: Any) -> int:
        if len(self.K) == self.n:
            return 4 * self.n
        k = len(predictor.some)
        return 4 * k + k * self.columns // COLUMNS + self.columns + ROW

    def most(self) -> int:
        D = self.columns
        return rows.in_play(self, lambda k: k**3 / 3 + (2.0 * k + PASSES) * k * D, lambda k: 5.0 * k * k + 4.0 * k * D)


def _bounds(K: np.ndarray, size: np.ndarray, blur: float, q: np.ndarray) -> tuple[float, float, float, float]:
    """lower <= min (Kq) / sqrt(q'Kq), upper >= sqrt(q'Kq) / sum q, square >= q'Kq, and the size of rounding in upper.

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
    return float(lower - abs(lower) * 8 * EPS), upper, square, float(np.sqrt(error)) / total
