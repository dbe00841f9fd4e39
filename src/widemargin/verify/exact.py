"""Exact arithmetic: integer matrices, square roots rounded up, semidefinite matrices, angles between integer vectors.

Every number is an integer over a power of two that the caller keeps track of. Floating point appears in two places
and is trusted in neither beyond what is checked afterwards: inside `matmul`, where every partial sum is an integer
below 2^53 (so a float64 matrix product is exact in any order of summation), and in `positive_semidefinite`, where a
floating-point Cholesky factor is only a guess whose residual is then bounded exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np

TOGETHER = 256  # rows of a matrix that is shown to be positive semidefinite
ROOT_BITS = 64  # square roots are rounded up to a multiple of 2^-ROOT_BITS of the integer grid


def integers(A: np.ndarray) -> tuple[np.ndarray, int]:
    """A finite float64 array as (integers, k), A = integers / 2^k exactly; int64 where they fit, else Python ints.

    The exact arithmetic of the checker is with integers: `A` is of any shape, and so are the integers.

    >>> import numpy as np
    >>> import widemargin as wm
    >>> whole, k = wm.verify.integers(np.array([[0.75, -2.0]]))
    >>> whole.tolist(), k
    ([[3, -8]], 2)
    """
    mantissa, exponent = np.frexp(A)
    m = np.ldexp(mantissa, 53).astype(np.int64)
    e = exponent.astype(np.int64) - 53
    zeros = np.frexp((m & -m).astype(np.float64))[1].astype(np.int64) - 1  # trailing zero bits
    m = np.where(m == 0, 0, m >> zeros.clip(0))
    e = np.where(m == 0, 0, e + zeros)  # A = m 2^e, m odd or zero
    base = min(0, int(e.min(initial=0)))
    width = max((int(abs(v)).bit_length() for v in (m.min(initial=0), m.max(initial=0))), default=0)
    if width + int(e.max(initial=0)) - base <= 62:
        return m << (e - base), -base
    return m.astype(object) << (e - base).astype(object), -base


def _limbs(A: np.ndarray, bits: int) -> list[np.ndarray]:
    """float64 digits with A = sum_i digit_i 2^(bits i): lower digits in [0, 2^bits), the last in [-2^bits, 2^bits)."""
    if A.dtype != object:
        A = A.astype(np.int64)
    width = max(int(A.max()).bit_length(), int(A.min()).bit_length(), 1)
    count = -(-width // bits)
    if A.dtype != object:
        parts = [(A >> (bits * i)) & ((1 << bits) - 1) for i in range(count - 1)] + [A >> (bits * (count - 1))]
        return [part.astype(np.float64) for part in parts]
    per = 60 // bits
    out: list[np.ndarray] = []
    for start in range(0, count, per):
        here = min(per, count - start)
        piece = A >> (bits * start)
        last = start + here == count
        if not last:
            piece = piece & ((1 << (bits * here)) - 1)
        piece = piece.astype(np.int64)
        for i in range(here):
            top = last and i == here - 1
            part = piece >> (bits * i)
            out.append((part if top else part & ((1 << bits) - 1)).astype(np.float64))
    return out


def matmul(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """The exact product of integer matrices (int64 or Python ints), as Python ints.

    Both are cut into digits of `bits` bits with 2 bits + log2(inner) <= 53: each float64 product of digit matrices is
    a sum of integers that stays below 2^53 and so has no rounding error. Digit products of equal weight are added in
    int64, carried, packed into words and only then joined as Python ints.

    `A` is (m, k), `B` (k, n), the product (m, n).

    >>> import numpy as np
    >>> import widemargin as wm
    >>> wm.verify.matmul(np.array([[2**62, 1]]), np.array([[4], [1]])).item() == 2**64 + 1
    True
    """
    (m, inner), n = A.shape, B.shape[1]
    if inner == 0 or m == 0 or n == 0:
        return np.zeros((m, n), dtype=object)
    if m * inner * n <= 2048:
        return A.astype(object) @ B.astype(object)
    if inner > 4096:
        return matmul(A[:, :4096], B[:4096]) + matmul(A[:, 4096:], B[4096:])
    bits = (53 - (inner - 1).bit_length()) // 2
    left, right = _limbs(A, bits), _limbs(B, bits)
    if min(len(left), len(right)) > 200:
        return A.astype(object) @ B.astype(object)
    digits = [np.zeros((m, n), dtype=np.int64) for _ in range(len(left) + len(right))]
    used = [bool(b.any()) for b in right]
    for i, a in enumerate(left):
        if a.any():
            for j, b in enumerate(right):
                if used[j]:
                    digits[i + j] += (a @ b).astype(np.int64)
    for s in range(len(digits) - 1):
        digits[s + 1] += digits[s] >> bits
        digits[s] &= (1 << bits) - 1
    per = 60 // bits
    out = digits[-1].astype(object) << (bits * (len(digits) - 1))
    for start in range(0, len(digits) - 1, per):
        word = digits[start]
        for i in range(1, min(per, len(digits) - 1 - start)):
            word = word | (digits[start + i] << (bits * i))
        out = out + (word.astype(object) << (bits * start) if start else word.astype(object))
    return out


def objects(rows: Sequence[Sequence[int]], m: int, n: int) -> np.ndarray:
    out = np.zeros((m, n), dtype=object)
    for j, row in enumerate(rows):
        out[j, :] = row
    return out


def column(values: Sequence[int]) -> np.ndarray:
    return objects([[v] for v in values], len(values), 1)


def squares(A: np.ndarray) -> list[int]:
    """The squared Euclidean norm of every row."""
    out: list[int] = []
    for start in range(0, len(A), 256):
        block = A[start : start + 256].astype(object)
        out += [int(v) for v in (block * block).sum(axis=1)]
    return out


def sqrt_up(n: int, bits: int = ROOT_BITS) -> int:
    """The least integer r with r / 2^bits >= sqrt(n).

    `bits` is the number of binary digits after the point. Norms of integer vectors are rounded up with it, never down.

    >>> import widemargin as wm
    >>> wm.verify.sqrt_up(2, bits=4), wm.verify.sqrt_up(9, bits=0)  # 23 / 16 >= sqrt(2) > 22 / 16
    (23, 3)
    """
    s = math.isqrt(n << (2 * bits))
    return s + (s * s != n << (2 * bits))


def root_up(value: Fraction, bits: int = 120) -> Fraction:
    """At least sqrt(value), close to it in relative terms."""
    if value == 0:
        return value
    shift = bits + max(0, value.denominator.bit_length() - value.numerator.bit_length())
    scaled = -((-value.numerator << (2 * shift)) // value.denominator)
    return Fraction(math.isqrt(scaled) + 1, 1 << shift)


def root_down(value: Fraction, bits: int = 120) -> Fraction:
    """At most sqrt(value), close to it in relative terms."""
    shift = bits + max(0, value.denominator.bit_length() - value.numerator.bit_length())
    return Fraction(math.isqrt((value.numerator << (2 * shift)) // value.denominator), 1 << shift)


def ray(row: Sequence[int]) -> tuple[int, ...]:
    """The primitive integer vector in the direction of the row (zero for zero)."""
    g = math.gcd(*map(int, row))
    return tuple(int(v) // g for v in row) if g else tuple(0 for _ in row)


def positive_semidefinite(S: np.ndarray) -> bool:
    """Whether the symmetric integer matrix S is positive semidefinite: True is proved, False is "no, or too close".

    S is scaled by powers of two to a diagonal in [1/4, 1) and rounded to a grid. With a floating-point Cholesky factor
    L of a slightly smaller matrix, rounded to integers, S - L L' is computed exactly; if it is diagonally dominant
    (rounding to the grid included), S is positive semidefinite. Up to size 12 exact elimination decides the rest.

    S is (n, n).

    >>> import numpy as np
    >>> import widemargin as wm
    >>> [wm.verify.positive_semidefinite(np.array(S)) for S in ([[2, 1], [1, 2]], [[1, 1], [1, 1]], [[1, 2], [2, 1]])]
    [True, True, False]
    """
    S = S.astype(object)
    diagonal = [int(v) for v in S.diagonal()]
    if any(v < 0 for v in diagonal):
        return False
    keep = [i for i, v in enumerate(diagonal) if v > 0]
    if len(keep) < len(diagonal):  # a zero on the diagonal needs a zero row
        if any(S[i].any() for i, v in enumerate(diagonal) if v == 0):
            return False
        S = S[np.ix_(keep, keep)]
    n = len(keep)
    if n <= 2:
        return _eliminate(S)
    half = [(diagonal[i].bit_length() + 1) // 2 for i in keep]
    grid = 104  # the scaled matrix is held in units of 2^-grid

    def scaled(i: int) -> list[int]:  # a row at a time: all of them take several times what S does
        return [(v << grid) >> (half[i] + h) for v, h in zip(S[i].tolist(), half)]

    A = np.empty((n, n))
    for i in range(n):
        row = scaled(i)
        if max(map(abs, row)) > 1 << (grid + 1):
            return False  # |S_ij|^2 <= S_ii S_jj fails
        A[i] = [v / (1 << grid) for v in row]
    try:
        shift = n * 2.0**-50
        while shift < 2.0**-16:
            if _dominated(scaled, A, shift, grid):
                return True
            shift *= 32
    except np.linalg.LinAlgError:
        pass
    return n <= 12 and _eliminate(S)


def _dominated(scaled: Callable[[int], list[int]], A: np.ndarray, shift: float, grid: int) -> bool:
    n = len(A)
    L = np.linalg.cholesky(A - shift * np.eye(n))
    if not np.isfinite(L).all() or np.abs(L).max() > 4:
        return False
    factor = np.rint(np.ldexp(L, grid // 2)).astype(np.int64)
    for start in range(0, n, TOGETHER):
        some = range(start, min(start + TOGETHER, n))
        residual = objects([scaled(i) for i in some], len(some), n) - matmul(factor[some], factor.T)
        diagonal = residual[range(len(some)), some]
        others = abs(residual).sum(axis=1) - abs(diagonal)
        if not np.all(diagonal >= others + (n - 1)):  # `scaled` was rounded down by less than one unit per entry
            return False
    return True


def _eliminate(S: np.ndarray) -> bool:
    """Exact fraction-free elimination: all pivots >= 0, and a zero pivot has a zero row."""
    rows = [[int(v) for v in row] for row in S]
    previous = 1
    while rows:
        pivot, first = rows[0][0], rows[0]
        if pivot < 0 or (pivot == 0 and any(first)):
            return False
        rest = rows[1:]
        if pivot == 0:
            rows = [row[1:] for row in rest]
            continue
        rows = [[(pivot * row[j] - row[0] * first[j]) // previous for j in range(1, len(row))] for row in rest]
        previous = pivot
    return True


def copositive(C: np.ndarray) -> bool:
    """Whether a' C a >= 0 for all a >= 0. True is proved: C, or C less its positive entries off the diagonal, is
    positive semidefinite."""
    if positive_semidefinite(C):
        return True
    C = C.copy()
    for k, l in np.ndindex(*C.shape):
        if k != l and C[k, l] > 0:
            C[k, l] = 0
    return positive_semidefinite(C)


def independent(rows: list[list[int]]) -> bool:
    """Whether integer vectors are linearly independent, by exact elimination."""
    left = [[Fraction(v) for v in row] for row in rows]
    while left:
        row = left.pop()
        lead = next((j for j, v in enumerate(row) if v), None)
        if lead is None:
            return False
        left = [[v - other[lead] / row[lead] * r for v, r in zip(other, row)] for other in left]
    return True


PRECISION = 160  # fixed point: numbers are integers over 2^PRECISION


SLACK = 1 << 13  # more than the error of `_atan` and `pi` in units of 2^-PRECISION, see there


def _atan_small(numerator: int, denominator: int) -> int:
    """2^P atan(numerator / denominator) for a ratio in [0, 1/64], with an error below 64.

    The argument, its square and the powers are rounded down: with u <= 1/64 each power is off by less than 1.1, each
    quotient by less than 2.1; there are at most P / 12 + 1 < 15 terms and the alternating tail is below 2.
    """
    u = (numerator << PRECISION) // denominator
    square, term, total, j = u * u >> PRECISION, u, 0, 1
    while term:
        total += term // j if j & 2 == 0 else -(term // j)
        term = term * square >> PRECISION
        j += 2
    return total


@lru_cache(maxsize=1)
def _atan_table() -> list[int]:
    """2^P atan(k / 64), k = 0..64, from atan((k+1)/64) - atan(k/64) = atan(64 / (4096 + k (k+1))); error below 64 k."""
    table = [0]
    for k in range(64):
        table.append(table[-1] + _atan_small(64, 4096 + k * (k + 1)))
    return table


def _atan(z: int) -> int:
    """2^P atan(z / 2^P) for 0 <= z <= 2^P, with an error below 64 * 65 < SLACK."""
    k = z >> (PRECISION - 6)
    return _atan_table()[k] + _atan_small(64 * z - (k << PRECISION), (64 << PRECISION) + z * k)


@lru_cache(maxsize=1)
def pi() -> tuple[int, int]:
    """An enclosure of 2^P pi by Machin's formula 16 atan(1/5) - 4 atan(1/239).

    Fewer than 40 and 15 terms, each off by less than 2: an error below 16 * 80 + 4 * 30 + 20 < SLACK.
    """

    def inverse(m: int) -> int:
        term, total, j = (1 << PRECISION) // m, 0, 1
        while term:
            total += term // j if j & 2 == 0 else -(term // j)
            term //= m * m
            j += 2
        return total

    value = 16 * inverse(5) - 4 * inverse(239)
    return value - SLACK, value + SLACK


def angle(xx: int, yy: int, xy: int) -> tuple[int, int, int, int]:
    """Enclosures over 2^P of |x| |y| sin t and of pi - t, from xx = |x|^2, yy = |y|^2, xy = x . y; t is the angle of
    x and y.

    |x| |y| sin t = sqrt(xx yy - xy^2) is the root of an exact integer, so parallel vectors give exactly 0; t is the
    arc tangent of that root over xy. For a zero vector both are 0.
    """
    P = PRECISION
    pi_low, pi_high = pi()
    area = xx * yy - xy * xy
    if area == 0:  # parallel: t = 0 or pi, or a zero vector
        return (0, 0, pi_low, pi_high) if xy > 0 else (0, 0, 0, 0)
    root = math.isqrt(area << (2 * P))  # root <= 2^P sqrt(area) <= root + 1
    if xy == 0:
        return root, root + 1, pi_low // 2, pi_high // 2 + 1
    size = abs(xy) << P
    # an enclosure [a, b] of 2^P times the angle atan2(sqrt(area), |xy|) in [0, pi / 2]
    if root < size:
        z = (root << P) // size
        width = -((-(root + 1) << P) // size) - z
        a = max(0, _atan(z) - SLACK)
        b = _atan(z) + width + SLACK
    else:
        z = (size << P) // (root + 1)
        width = -((-size << P) // root) - z
        c = _atan(z)
        a = pi_low // 2 - (c + width + SLACK)
        b = pi_high // 2 + 1 - (c - SLACK)
    return (root, root + 1, pi_low - b, pi_high - a) if xy > 0 else (root, root + 1, a, b)
