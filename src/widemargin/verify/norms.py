"""Linear margins in other norms than the Euclidean one: kinds linear and linear-multiclass with `extra.norm`.

For every predictor A with N(A) <= 1 the least margin is at most the weighted mean of all, <A, C> <= N*(C), where C is
the weighted sum of the points. Both norms are exact in integers but for singular values, which are bounded by a guess of
the decomposition whose rest is counted (docs/certificates.md, Linear margins in other norms).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from .exact import ROOT_BITS, matmul, sqrt_up, squares
from .reading import Problem, Rules, need, only_dual

GUESS = 60  # bits after the point of the factors that are guessed
DUAL = {"l1": "max", "max": "l1", "linf": "l1", "spectral": "nuclear", "nuclear": "spectral"}


def norm_of(payload: Mapping[str, Any], usual: str, conventions: Mapping[str, str]) -> str:
    """The norm that the certificate names, if its convention says the same; `usual` where it names none."""
    norm = payload["extra"].get("norm", usual)
    need(isinstance(norm, str) and norm in conventions, "format: extra.norm is no norm of this kind")
    need(
        payload["convention"] == conventions[norm],
        "format: the convention is not that of extra.norm",
        f"expected {conventions[norm]}",
    )
    return norm


def rounded_up(A: np.ndarray, norm: str) -> Fraction:
    """At least the norm of an integer matrix, l1, max (linf), spectral or nuclear; the first two exactly."""
    sizes = abs(A.astype(object))
    if norm == "l1":
        return Fraction(int(sizes.sum()))
    if norm in ("max", "linf"):
        return Fraction(int(sizes.max()))
    return singular(A)[norm == "nuclear"]


def singular(A: np.ndarray) -> tuple[Fraction, Fraction]:
    """At least the largest singular value of an integer matrix, and at least the sum of all."""
    A = A.astype(object)
    most = int(abs(A).max())
    if most == 0:
        return Fraction(0), Fraction(0)
    drop = max(0, most.bit_length() - 900)  # a guess in floating point: what is far below the largest may be lost
    shift = most.bit_length() - drop
    near = np.array([[float(v >> drop) for v in row] for row in A.tolist()]) * 2.0**-shift
    left, values, right = np.linalg.svd(near, full_matrices=False)
    need(bool(np.isfinite(values).all()), "singular values: the matrix could not be decomposed")
    # A = L diag(s) R' + E in units of 2^-(3 GUESS) 2^(shift + drop)
    L, R = (_grid(part) for part in (left, right.T))
    s = [int(v) for v in np.rint(np.ldexp(values, GUESS))]
    unit = 3 * GUESS - shift - drop
    whole = A * (1 << max(unit, 0))
    E = whole - matmul(L * np.array(s, dtype=object), R.T) * (1 << max(-unit, 0))
    over = 1 << max(unit, 0)
    rest = Fraction(sqrt_up(sum(squares(E))), over << ROOT_BITS)
    k = len(s)
    # |L|^2 <= the largest row sum of L'L, in units of 4^-GUESS
    both = Fraction(_spread(L) * _spread(R), 1 << (2 * GUESS + 2 * ROOT_BITS))
    scale = Fraction(2) ** (shift + drop - GUESS)
    largest = both * max(s) * scale + rest
    total = both * sum(s) * scale + rest * Fraction(sqrt_up(k), 1 << ROOT_BITS)
    return largest, total


def _grid(part: np.ndarray) -> np.ndarray:
    return np.rint(np.ldexp(part, GUESS)).astype(np.int64).astype(object)


def _spread(L: np.ndarray) -> int:
    """At least the largest singular value of L, in units of 2^-(GUESS + ROOT_BITS) where L is in those of 2^-GUESS."""
    inner = matmul(L.T, L)
    return sqrt_up(max(int(row) for row in abs(inner).sum(axis=1)))


def in_norm(
    problem: Problem,
    norm: str,
    predictor: Callable[[], np.ndarray],
    least: Callable[[np.ndarray], list[int]],
    weighted: Callable[[list[int]], np.ndarray],
) -> Rules:
    """The rules of a norm: `predictor` reads A on an integer grid, `least` gives its margin at each point, and `weighted`
    the matrix C in units of the weights.
    """

    def lower(bound: Fraction) -> str:
        A = predictor()
        size = rounded_up(A, norm)
        need(size > 0, "lower bound: the predictor is zero")
        wanted = bound * size * 2**problem.k
        for i, v in enumerate(least(A)):
            need(v >= wanted, f"lower bound: point {i}", "its margin is below lower")
        return f"is reached at all {len(problem.y)} points in the norm {norm}"

    def upper(bound: Fraction, weights: list[int], total: int, proof: Mapping[str, Any]) -> str:
        only_dual(proof)
        most = rounded_up(weighted(weights), DUAL[norm])
        need(most <= bound * total * 2**problem.k, "upper bound: the dual norm of the weighted points is larger")
        return f"is proved by the dual weights in the norm {DUAL[norm]}"

    reach2 = None
    if norm in ("l1", "max", "linf"):
        each = [rounded_up(row[None], DUAL[norm]) for row in problem.grid]
        reach2 = [(v / 2**problem.k) ** 2 for v in each]
    return Rules(lower, upper, reach2=reach2)
