"""Margins in the space of a kernel: kinds f2 and tangent, and the kernels of l2-regression and ntk.

With K_ij = y_i y_j k(x_i, x_j), a function sum_j alpha_j y_j k(x_j, .) has the values (K alpha)_i y_i and the norm
sqrt(alpha' K alpha); and for every f of norm 1, min_i y_i f(x_i) <= sum_i q_i y_i f(x_i) <= sqrt(q' K q). Kernels
that belong to the data are computed here and enclosed between integers over a power of two; each name is allowed for
its kinds only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from .exact import angle, column, matmul, pi, positive_semidefinite
from .reading import Problem, Rules, need, only_dual, rows_of, vector

PARTS = ("total", "outer", "inner")
ROUND_OFF = 33  # a stored Gram matrix may miss positive semidefiniteness by 2^-ROUND_OFF of its largest diagonal entry


@dataclass(frozen=True)
class Kernel:
    """The kernel matrix (without labels) is K / c with low <= K <= high (integers) and least <= c <= most.

    `given`: it is the certificate's own matrix, and `note` says so; otherwise it was computed from the data.
    """

    name: str
    low: np.ndarray  # (n, n)
    high: np.ndarray
    least: Fraction
    most: Fraction
    given: bool = False
    note: str = ""

    def product(self, w: list[int]) -> tuple[list[int], list[int]]:
        """Enclosures of sum_j K_ij w_j."""
        plus, minus = column([max(v, 0) for v in w]), column([max(-v, 0) for v in w])
        down = (matmul(self.low, plus) - matmul(self.high, minus))[:, 0].tolist()
        up = (matmul(self.high, plus) - matmul(self.low, minus))[:, 0].tolist()
        return down, up

    def quadratic(self, w: list[int], ends: tuple[list[int], list[int]]) -> int:
        """An upper bound of w' K w, from the enclosures of K w."""
        return sum(v * (high if v > 0 else low) for v, low, high in zip(w, *ends))


def kernel(problem: Problem, payload: Mapping[str, Any]) -> Kernel:
    """The kernel that `extra.kernel` names.

    relu (activation relu) and srelu (activation srelu): E phi(v . x) phi(v . x') over uniform unit v. ntk: kind ntk,
    relu. given: any symmetric matrix that is positive semidefinite up to rounding.
    """
    extra, kind, activation = payload["extra"], payload["kind"], payload.get("activation")
    name, D, k = extra.get("kernel"), problem.D, problem.k
    names = {
        "f2": (activation, "given"),
        "l2-regression": (activation, "given"),
        "tangent": ("given",),
        "ntk": ("ntk",),
    }
    allowed = names[kind]
    need(isinstance(name, str) and name in allowed, f"format: extra.kernel is not {' or '.join(map(str, allowed))}")
    if name == "given":
        return _given(problem, extra)
    assert isinstance(name, str)
    low, high = ntk_kernel(problem.grid, str(extra.get("part"))) if name == "ntk" else KERNELS[name](problem.grid)
    scale = 2 * D * 4**k if name != "srelu" else 2 * D * (D + 2) * 16**k  # low / 2^P <= scale pi kernel <= high / 2^P
    pi_low, pi_high = pi()
    return Kernel(name, low, high, Fraction(scale * pi_low), Fraction(scale * pi_high))


def _given(problem: Problem, extra: Mapping[str, Any]) -> Kernel:
    n = len(problem.y)
    K, bits = rows_of(extra.get("gram"), n, "format: extra.gram", n)
    need(bool((K == K.T).all()), "format: extra.gram is not symmetric")
    top = max(int(v) for v in K.diagonal())
    shifted = K << ROUND_OFF
    for i in range(n):
        shifted[i, i] += top
    good = top >= 0 and positive_semidefinite(shifted)
    need(good, "format: extra.gram is not shown to be positive semidefinite, even up to rounding")
    note = ", for the Gram matrix stored in the certificate (taken as given; positive semidefinite up to rounding)"
    return Kernel("given", K, K, Fraction(1 << bits), Fraction(1 << bits), True, note)


def f2(problem: Problem, payload: Mapping[str, Any]) -> Rules:
    """(K alpha)_i >= lower sqrt(alpha' K alpha) for all i; sqrt(q' K q) <= upper. Each side is taken at the end of
    its enclosure that is against the bound, and compared as squares.
    """
    n = len(problem.y)
    K = kernel(problem, payload)

    def signed_product(w: list[int]) -> tuple[list[int], list[int]]:
        """Enclosures of sum_j y_i y_j K_ij w_j."""
        ends = zip(problem.y, *K.product([s * v for s, v in zip(problem.y, w)]))
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
        size = K.quadratic(weights, signed_product(weights))
        need(size <= (bound * total) ** 2 * K.least, "upper bound: the norm q'Kq is larger")
        return f"is proved by the dual weights{K.note}"

    # "gram" and "tangent" are about the stored matrix itself; M7 is about the data
    unfounded = K.given and payload.get("convention") == "M7"
    reach2 = Fraction(max(int(v) for v in K.high.diagonal())) / K.least if K.given else None
    return Rules(lower, upper, given=unfounded, reach2=reach2)


def _angles(grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gram matrix (n, n), and the enclosures of `angle` (4, n, n)."""
    gram = matmul(grid, grid.T)
    n = len(gram)
    out = np.zeros((4, n, n), dtype=object)
    for i in range(n):
        for j in range(i, n):
            out[:, i, j] = out[:, j, i] = angle(int(gram[i, i]), int(gram[j, j]), int(gram[i, j]))
    return gram, out


def relu_kernel(grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Enclosures of 2^P |x| |x'| (sin t + (pi - t) cos t) for all pairs of integer rows."""
    gram, (sin_low, sin_high, turn_low, turn_high) = _angles(grid)
    low = sin_low + gram * np.where(gram > 0, turn_low, turn_high)
    return np.where(low > 0, low, 0), sin_high + gram * np.where(gram > 0, turn_high, turn_low)


def srelu_kernel(grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Enclosures of 2^P |x|^2 |x'|^2 (3 sin t cos t + (pi - t) (1 + 2 cos^2 t)) for all pairs of integer rows."""
    gram, (sin_low, sin_high, turn_low, turn_high) = _angles(grid)
    sizes = gram.diagonal()
    even = np.outer(sizes, sizes) + 2 * gram * gram
    low = 3 * gram * np.where(gram > 0, sin_low, sin_high) + even * turn_low
    return np.where(low > 0, low, 0), 3 * gram * np.where(gram > 0, sin_high, sin_low) + even * turn_high


def ntk_kernel(grid: np.ndarray, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Enclosures of 2^P 2 pi D times the NTK kernel for all pairs of integer rows.

    outer: |x| |x'| (sin t + (pi - t) cos t); inner: D (pi - t) x.x'; total: their sum.
    """
    need(part in PARTS, "format: extra.part is not total, outer or inner")
    D = grid.shape[1]
    gram, (sin_low, sin_high, turn_low, turn_high) = _angles(grid)
    turns = gram * np.where(gram > 0, turn_low, turn_high), gram * np.where(gram > 0, turn_high, turn_low)
    factor = {"outer": 1, "inner": D, "total": D + 1}[part]
    sines = (0, 0) if part == "inner" else (sin_low, sin_high)
    return sines[0] + factor * turns[0], sines[1] + factor * turns[1]


KERNELS = {"relu": relu_kernel, "srelu": srelu_kernel}
