"""Margins in the space of a kernel: kinds f2 and tangent, and the kernels of l2-regression, f2-optimum and ntk.

With K_ij = y_i y_j k(x_i, x_j), a function sum_j alpha_j y_j k(x_j, .) has the values (K alpha)_i y_i and the norm
sqrt(alpha' K alpha); and for every f of norm 1, min_i y_i f(x_i) <= sum_i q_i y_i f(x_i) <= sqrt(q' K q). Kernels
that belong to the data are computed here and enclosed between integers over a power of two; each name is allowed for
its kinds only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from .exact import angle, column, matmul, pi, positive_semidefinite, squares
from .networks import hard_margin
from .reading import BLOCK, PAIRS, Problem, Rules, listed, need, only_dual, rows_of, vector

PARTS = ("total", "outer", "inner")
GIVEN = 1 << 13  # points whose matrix may be stored: 15 GB to look at, and a quarter of an hour
ROUND_OFF = 33  # a stored Gram matrix may miss positive semidefiniteness by 2^-ROUND_OFF of its largest diagonal entry


Block = tuple[np.ndarray, np.ndarray]  # low and high ends of entries


@dataclass(frozen=True)
class Kernel:
    """The kernel matrix (without labels) is K / c with low <= K <= high (integers) and least <= c <= most.

    `block(rows, columns)` gives the ends of a part of K; the whole is not held, since a file that names a kernel is far
    smaller than its matrix. `given`: it is the certificate's own matrix, and `note` says so; otherwise it was computed
    from the data.
    """

    n: int
    block: Callable[[Sequence[int], Sequence[int]], Block]
    least: Fraction
    most: Fraction
    given: bool = False
    note: str = ""
    seen: dict[tuple[int, ...], tuple[list[int], list[int]]] = field(default_factory=dict)

    def product(self, w: list[int], only: bool = False) -> tuple[list[int], list[int]]:
        """Enclosures of sum_j K_ij w_j; `only` where w_i is not 0. K is symmetric: of its blocks those from the diagonal on are
        made, or where few points have a weight the columns of these alone.
        """
        if tuple(w) in self.seen:  # alpha and q are often equal
            return self.seen[tuple(w)]
        n, some = self.n, [j for j, v in enumerate(w) if v]
        need(n * len(some) <= PAIRS**2, f"format: extra.kernel: more than {PAIRS}^2 pairs are not looked at")
        ends = [np.zeros(n, dtype=object), np.zeros(n, dtype=object)]
        plus, minus = column([max(v, 0) for v in w]), column([max(-v, 0) for v in w])
        if only or 2 * len(some) <= n:
            rows, step = some if only else list(range(n)), max(1, BLOCK // max(1, len(some)))
            for start in range(0, len(rows), step):
                here = rows[start : start + step]
                blocks = self.block(here, some)
                for end, near, other in zip(ends, blocks, blocks[::-1]):
                    end[here] = (matmul(near, plus[some]) - matmul(other, minus[some]))[:, 0]
            if only:
                return ends[0].tolist(), ends[1].tolist()
        else:
            step = max(1, BLOCK // n)
            for start in range(0, n, step):
                stop = min(start + step, n)
                blocks = self.block(range(start, stop), range(start, n))
                for end, near, other in zip(ends, blocks, blocks[::-1]):
                    end[start:stop] += (matmul(near, plus[start:]) - matmul(other, minus[start:]))[:, 0]
                    near, other = near[:, stop - start :].T, other[:, stop - start :].T
                    end[stop:] += (matmul(near, plus[start:stop]) - matmul(other, minus[start:stop]))[:, 0]
        self.seen.clear()
        self.seen[tuple(w)] = ends[0].tolist(), ends[1].tolist()
        return self.seen[tuple(w)]

    def submatrix(self, index: list[int]) -> tuple[np.ndarray, int]:
        """The low ends of K at some points, and by how much K may differ from them, as the norm of a matrix."""
        m = len(index)
        need(m <= PAIRS, f"format: extra.kernel: all pairs of more than {PAIRS} points are not looked at")
        low, spread = np.zeros((m, m), dtype=object), np.zeros(m, dtype=object)
        step = max(1, BLOCK // max(m, 1))
        for start in range(0, m, step):
            stop = min(start + step, m)
            here, high = self.block(index[start:stop], index[start:])
            low[start:stop, start:], low[start:, start:stop] = here, here.T
            spread[start:stop] += (high - here).sum(axis=1)
            spread[stop:] += (high - here)[:, stop - start :].sum(axis=0)
        return low, max((int(v) for v in spread), default=0)

    def quadratic(self, w: list[int], ends: tuple[list[int], list[int]]) -> int:
        """An upper bound of w' K w, from the enclosures of K w."""
        return sum(v * (high if v > 0 else low) for v, low, high in zip(w, *ends))


def kernel(problem: Problem, payload: Mapping[str, Any]) -> Kernel:
    """The kernel that `extra.kernel` names.

    The name of the activation: E phi(v . x) phi(v . x') over uniform unit v. ntk: kind ntk, relu. given: any symmetric
    matrix that is positive semidefinite up to rounding.
    """
    extra, kind, activation = payload["extra"], payload["kind"], payload.get("activation")
    name, D, k = extra.get("kernel"), problem.D, problem.k
    names = {
        "f2": (activation, "given"),
        "l2-regression": (activation, "given"),
        "f2-optimum": (activation,),
        "tangent": ("given",),  # or jacobian, which has no matrix
        "ntk": ("ntk",),
    }
    allowed = names[kind]
    need(isinstance(name, str) and name in allowed, f"format: extra.kernel is not {' or '.join(map(str, allowed))}")
    if name == "given":
        return _given(problem, extra)
    assert isinstance(name, str)
    part = str(extra.get("part"))
    need(name != "ntk" or part in PARTS, "format: extra.part is not total, outer or inner")

    def block(rows: Sequence[int], columns: Sequence[int]) -> Block:
        X, Z = problem.grid[list(rows)], problem.grid[list(columns)]
        if name == "ntk":
            return ntk_kernel(X, part, Z)
        ends = KERNELS["srelu" if problem.degree == 2 else "relu"](X, Z)
        return _leaky(X, Z, ends, problem.slope, problem.bits) if problem.slope else ends

    # low / 2^P <= scale pi kernel <= high / 2^P
    scale = 2 * D * (D + 2) * 16**k if problem.degree == 2 else 2 * D * 4 ** (k + problem.bits)
    pi_low, pi_high = pi()
    return Kernel(len(problem.y), block, Fraction(scale * pi_low), Fraction(scale * pi_high))


def _given(problem: Problem, extra: Mapping[str, Any]) -> Kernel:
    n = len(problem.y)
    need(n <= GIVEN, f"format: extra.gram: matrices of more than {GIVEN} points are not looked at")
    K, bits = rows_of(extra.get("gram"), n, "format: extra.gram", n)
    need(bool((K == K.T).all()), "format: extra.gram is not symmetric")
    top = max(int(v) for v in K.diagonal())
    shifted = K << ROUND_OFF
    for i in range(n):
        shifted[i, i] += top
    good = top >= 0 and positive_semidefinite(shifted)
    need(good, "format: extra.gram is not shown to be positive semidefinite, even up to rounding")
    note = ", for the Gram matrix stored in the certificate (taken as given; positive semidefinite up to rounding)"

    def block(rows: Sequence[int], columns: Sequence[int]) -> Block:
        part = K[np.ix_(list(rows), list(columns))]
        return part, part

    return Kernel(n, block, Fraction(1 << bits), Fraction(1 << bits), True, note)


def f2(problem: Problem, payload: Mapping[str, Any]) -> Rules:
    """(K alpha)_i >= lower sqrt(alpha' K alpha) for all i; sqrt(q' K q) <= upper. Each side is taken at the end of
    its enclosure that is against the bound, and compared as squares.
    """
    n = len(problem.y)
    K = kernel(problem, payload)

    def signed_product(w: list[int], only: bool = False) -> tuple[list[int], list[int]]:
        """Enclosures of sum_j y_i y_j K_ij w_j; `only` where w_i is not 0."""
        ends = zip(problem.y, *K.product([s * v for s, v in zip(problem.y, w)], only))
        flipped = [(a, b) if s > 0 else (-b, -a) for s, a, b in ends]
        return [a for a, _ in flipped], [b for _, b in flipped]

    def lower(bound: Fraction) -> str:
        alpha, _ = vector(payload["extra"].get("alpha"), n, "lower bound: extra.alpha")
        ends = signed_product(alpha)
        size = K.quadratic(alpha, ends)
        need(size > 0, "lower bound: alpha is zero")
        need_square = bound**2 * K.most * size
        for i, v in enumerate(ends[0]):
            need(v >= 0 and v * v >= need_square, f"lower bound: point {i}", "its margin is below lower")
        return f"is reached at all {n} points by alpha{K.note}"

    def upper(bound: Fraction, weights: list[int], total: int, proof: Mapping[str, Any]) -> str:
        only_dual(proof)
        size = K.quadratic(weights, signed_product(weights, True))
        need(size <= (bound * total) ** 2 * K.least, "upper bound: the norm q'Kq is larger")
        return f"is proved by the dual weights{K.note}"

    # "gram" and "tangent" are about the stored matrix itself; M7 is about the data
    unfounded = K.given and payload.get("convention") == "M7"
    reach2 = [Fraction(max(int(K.block([i], [i])[1][0, 0]), 0)) / K.least for i in range(n)] if K.given else None
    return Rules(lower, upper, given=unfounded, reach2=reach2)


def tangent(problem: Problem, payload: Mapping[str, Any]) -> Rules:
    """As f2 for the matrix of inner products of gradients that is given; or, where these are stored themselves, as linear with
    them in place of the points.
    """
    extra, n = payload["extra"], len(problem.y)
    if extra.get("kernel") != "jacobian":
        return f2(problem, payload)
    stored = listed(extra.get("jacobian"), "format: extra.jacobian", n)
    width = len(listed(stored[0], "format: extra.jacobian, row 0"))
    need(width > 0, "format: extra.jacobian has no columns")
    grid, k = rows_of(stored, width, "format: extra.jacobian")
    reach2 = [Fraction(s, 4**k) for s in squares(grid)]
    note = ", for the gradients stored in the certificate (taken as given)"
    return replace(hard_margin(replace(problem, grid=grid, k=k), payload, note), reach2=reach2)


def _angles(X: np.ndarray, Z: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x . z (m, n), |x|^2 |z|^2 (m, n), and the enclosures of `angle` (4, m, n), for the rows of X and Z (None: X)."""
    xx, zz = squares(X), squares(X if Z is None else Z)
    gram = matmul(X, (X if Z is None else Z).T)
    out = np.zeros((4, *gram.shape), dtype=object)
    same = len(X) if Z is None or np.array_equal(Z[: len(X)], X) else 0  # Z begins with X: half of that part is enough
    for i, size in enumerate(xx):
        for j in range(i if same else 0, len(zz)):
            out[:, i, j] = angle(size, zz[j], int(gram[i, j]))
            if j < same:
                out[:, j, i] = out[:, i, j]
    return gram, np.outer(column(xx)[:, 0], column(zz)[:, 0]), out


def relu_kernel(X: np.ndarray, Z: np.ndarray | None = None) -> Block:
    """Enclosures of 2^P |x| |z| (sin t + (pi - t) cos t) for all pairs of integer rows of X and Z (None: X).

    X is (m, D), Z (n, D); both ends are (m, n). t is the angle of x and z, and 2^P the common factor of all enclosures, so
    that only ratios mean something.

    >>> import numpy as np
    >>> import widemargin as wm
    >>> low, high = wm.verify.relu_kernel(np.array([[1, 0]]), np.array([[1, 0], [0, 1]]))  # pi and 1, times 2^P
    >>> bool(low[0, 0] / high[0, 1] <= np.pi <= high[0, 0] / low[0, 1]), low[0, 0] / high[0, 1] > 3.14159
    (True, True)
    """
    gram, _, (sin_low, sin_high, turn_low, turn_high) = _angles(X, Z)
    low = sin_low + gram * np.where(gram > 0, turn_low, turn_high)
    return np.where(low > 0, low, 0), sin_high + gram * np.where(gram > 0, turn_high, turn_low)


def _leaky(X: np.ndarray, Z: np.ndarray, relu: Block, slope: int, bits: int) -> Block:
    """Enclosures of 2^P 4^bits |x| |z| ((1 - a)^2 (sin t + (pi - t) cos t) + 2 pi a cos t), a = slope / 2^bits > 0, from
    those of relu: phi(t) = (1 - a) relu(t) + a t, and E relu(v . x) v . z = x . z / (2 D), so that a adds a x . z / D.
    """
    line, share = matmul(X, Z.T).astype(object) * (slope << (bits + 1)), ((1 << bits) - slope) ** 2
    low, high = (line * end for end in pi())
    return share * relu[0] + np.where(line > 0, low, high), share * relu[1] + np.where(line > 0, high, low)


def srelu_kernel(X: np.ndarray, Z: np.ndarray | None = None) -> Block:
    """Enclosures of 2^P |x|^2 |z|^2 (3 sin t cos t + (pi - t) (1 + 2 cos^2 t)) for all pairs of integer rows.

    X is (m, D), Z (n, D), X where left out; both ends are (m, n). t is the angle of x and z, and 2^P as in `relu_kernel`.

    >>> import numpy as np
    >>> import widemargin as wm
    >>> low, high = wm.verify.srelu_kernel(np.array([[1, 0]]), np.array([[1, 0], [0, 1]]))  # 3 pi and pi / 2, times 2^P
    >>> low[0, 0] / high[0, 1] <= 6 <= high[0, 0] / low[0, 1]
    True
    """
    gram, sizes, (sin_low, sin_high, turn_low, turn_high) = _angles(X, Z)
    even = sizes + 2 * gram * gram
    low = 3 * gram * np.where(gram > 0, sin_low, sin_high) + even * turn_low
    return np.where(low > 0, low, 0), 3 * gram * np.where(gram > 0, sin_high, sin_low) + even * turn_high


def ntk_kernel(X: np.ndarray, part: str, Z: np.ndarray | None = None) -> Block:
    """Enclosures of 2^P 2 pi D times the NTK kernel for all pairs of integer rows.

    outer: |x| |z| (sin t + (pi - t) cos t); inner: D (pi - t) x.z; total: their sum.

    X (m, D) and Z (n, D), X where left out, hold integers; `part` is "outer", "inner" or "total". Both ends are (m, n), t is the
    angle of x and z, and 2^P the common factor of all enclosures.

    >>> import numpy as np
    >>> import widemargin as wm
    >>> low, high = wm.verify.ntk_kernel(np.array([[3, 4]]), "total")
    >>> one = wm.verify.relu_kernel(np.array([[1, 0]]))  # 2^P pi
    >>> 74.999 * one[0].item() < low.item() <= high.item() < 75.001 * one[1].item()  # 2 D (1 / (2 D) + 1 / 2) |x|^2 = 75
    True
    """
    D = X.shape[1]
    gram, _, (sin_low, sin_high, turn_low, turn_high) = _angles(X, Z)
    turns = gram * np.where(gram > 0, turn_low, turn_high), gram * np.where(gram > 0, turn_high, turn_low)
    factor = {"outer": 1, "inner": D, "total": D + 1}[part]
    sines = (0, 0) if part == "inner" else (sin_low, sin_high)
    return sines[0] + factor * turns[0], sines[1] + factor * turns[1]


KERNELS = {"relu": relu_kernel, "srelu": srelu_kernel}
