"""What a certificate holds, read with care: numbers, lists, matrices, the data, the sides of a proof.

A number is a finite double, which is the rational it is, or an integer of at most 1100 bits; nothing else passes.
Whatever does not fit raises `Refused` with the name of the item.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from .exact import column, integers, matmul

BITS = 1100  # of the largest integer that a certificate may hold
BLOCK = 1 << 17  # entries of a matrix of features, of a kernel or of differences that are held at a time
MATRIX = 1 << 24  # entries of a matrix that is to be positive semidefinite, and 4 times those of the data on top
POINTS = 2048  # points at which a function is to take exact values
PAIRS = 1 << 14  # points of which all pairs are looked at, some minutes
LARGEST = float(np.finfo(np.float64).max)  # stands for infinity in `upper`


class Refused(Exception):
    """An item of the certificate that does not hold, or cannot be read."""

    def __init__(self, item: str, detail: str = "") -> None:
        super().__init__(item)
        self.item, self.detail = item, detail


def need(condition: bool, item: str, detail: str = "") -> None:
    if not condition:
        raise Refused(item, detail)


def show(value: Fraction | int) -> str:
    try:
        return f"{float(value):.9g}"
    except OverflowError:
        return "a number beyond 1e308"


def number(value: Any, what: str) -> Fraction:
    good = (type(value) is int and value.bit_length() <= BITS) or (isinstance(value, float) and math.isfinite(value))
    need(good, f"{what}: not a finite number")
    return Fraction(value)


def integer(value: Any, what: str, low: int, high: int) -> int:
    need(type(value) is int and low <= value <= high, f"{what}: not an integer in the allowed range")
    return value


def listed(value: Any, what: str, length: int | None = None) -> Sequence[Any]:
    need(isinstance(value, list | tuple), f"{what}: missing or not a list")
    need(length is None or len(value) == length, f"{what}: has {len(value)} entries, expected {length}")
    return value


def in_proportion(problem: Problem, size: int) -> bool:
    """Whether a square matrix is no larger than the data allow."""
    return size * size <= MATRIX + 4 * problem.grid.size


def fits(problem: Problem, size: int, what: str) -> None:
    """Refuse a square matrix that is out of proportion to the data: a short file may ask for it."""
    small = in_proportion(problem, size)
    need(small, f"{what}: a matrix of size {size} is too large for {len(problem.y)} points in {problem.D} dimensions")


def few(problem: Problem, what: str) -> None:
    need(len(problem.y) <= PAIRS, f"{what}: all pairs of more than {PAIRS} points are not looked at")


def ratios(values: Sequence[Any], what: str) -> list[tuple[int, int]]:
    """(numerator, k) with value = numerator / 2^k."""
    out = []
    for i, v in enumerate(values):
        if type(v) is int and v.bit_length() <= BITS:
            out.append((v, 0))
        elif isinstance(v, float) and math.isfinite(v):
            a, b = v.as_integer_ratio()
            out.append((a, b.bit_length() - 1))
        else:
            raise Refused(f"{what}: entry {i} is not a finite number")
    return out


def vector(values: Any, length: int, what: str) -> tuple[list[int], int]:
    """Integers and k with value_i = integer_i / 2^k."""
    pairs = ratios(listed(values, what, length), what)
    k = max((b for _, b in pairs), default=0)
    return [a << (k - b) for a, b in pairs], k


def rows_of(values: Any, columns: int, what: str, rows: int | None = None) -> tuple[np.ndarray, int]:
    """An integer matrix (object array) and k with value = integer / 2^k."""
    values, k = listed(values, what, rows), 0
    for j, row in enumerate(values):
        k = max(k, max((b for _, b in ratios(listed(row, f"{what}, row {j}", columns), f"{what}, row {j}")), default=0))
    out = np.zeros((len(values), columns), dtype=object)
    for j, row in enumerate(values):  # a second time: all pairs at once take several times what the matrix does
        out[j] = [a << (k - b) for a, b in ratios(row, what)]
    return out, k


def activation_of(name: Any) -> tuple[int, float] | None:
    """(degree, a) of phi(t) = relu(t)^degree - a relu(-t); None for a name that is not known.

    "leaky" has the slope a = 0.01, and "leaky:A" the one that A is the shortest decimal form of.
    """
    if name in ("relu", "srelu"):
        return (1, 0.0) if name == "relu" else (2, 0.0)
    if not isinstance(name, str) or not name.startswith("leaky"):
        return None
    word = name.removeprefix("leaky:") if name != "leaky" else "0.01"
    try:
        slope = float(word)
    except ValueError:
        return None
    return (1, slope) if 0 <= slope < 1 and repr(slope) == word else None


MULTICLASS = ("linear-multiclass", "f1-multiclass", "f1-multiclass-optimum")


REGRESSION = ("l1-regression", "l2-regression")


SEVERAL = ("f1-multitarget-optimum",)  # several real targets for each point


OPTIMA = ("f1-optimum", "f2-optimum", "f1-multiclass-optimum", *SEVERAL)  # bounds of an objective


# Kinds whose rules do not look at the activation.
PLAIN = ("linear", "linear-multiclass", "projected", "collapse", "tangent")


@dataclass(frozen=True)
class Problem:
    """X = grid / 2^k with the bias coordinate appended; targets y / 2^ky (labels: -1, +1; of SEVERAL a list of K for each point).

    phi(t) = relu(t)^degree - slope / 2^bits relu(-t), with slope = 0 unless the activation is leaky (degree 1).
    `opposite`: the second half of the points is the first, negated.
    """

    grid: np.ndarray  # (n, D)
    k: int
    y: list[Any]
    degree: int
    ky: int = 0
    slope: int = 0
    bits: int = 0
    opposite: bool = False

    @property
    def D(self) -> int:
        return self.grid.shape[1]

    @property
    def is_relu(self) -> bool:
        return self.degree == 1 and self.slope == 0

    @property
    def fine(self) -> int:
        """What `features` gives are the numbers phi(x_i . v_j) times 2^fine (v_j as it stands)."""
        return self.degree * self.k + self.bits


def any_targets(payload: Mapping[str, Any]) -> bool:
    """Whether y may be any numbers."""
    return payload.get("kind") in (*REGRESSION, *SEVERAL) or (
        payload.get("kind") in OPTIMA and payload["extra"].get("loss") == "squared"
    )


def read_problem(payload: Mapping[str, Any], X: Any, y: Any) -> Problem:
    """The data on an integer grid, if they have the certificate's shape and labels of its kind."""
    X, y = np.asarray(X, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if payload.get("kind") in SEVERAL:
        fits = y.ndim == 2 and len(y) == len(X) and y.shape[1] > 1
        need(X.ndim == 2 and X.size > 0 and fits, "shape: the data need X (n, d) and y (n, K), K > 1")
    else:
        need(X.ndim == 2 and X.size > 0 and y.shape == (len(X),), "shape: the data need X (n, d) and y (n,)")
    need(bool(np.isfinite(X).all()), "shape: X holds NaN or infinity")
    for name, size in (("n", X.shape[0]), ("d", X.shape[1])):
        value = payload.get(name)
        need(type(value) is int and value == size, f"shape: {name}", f"the data have {name}={size}")
    need(type(payload.get("bias")) is bool, "shape: bias is not true or false")
    need(bool(np.isfinite(y).all()), "shape: y holds NaN or infinity")
    if payload.get("kind") in MULTICLASS:
        need(bool((y == np.floor(y)).all()) and set(y) == set(range(max(2, len(set(y))))), "labels: not 0, ..., K-1")
    elif not any_targets(payload):
        for i in np.flatnonzero((y != 1) & (y != -1)):
            need(False, f"labels: row {i} is neither -1 nor +1")
    grid, k = integers(X)
    targets, ky = integers(y)
    if payload["bias"]:
        ones = np.full((len(X), 1), 1 << k, dtype=np.int64 if k < 62 and grid.dtype != object else object)
        grid = np.hstack([grid.astype(object) if ones.dtype == object else grid, ones])
    known = (1, 0.0) if payload.get("kind") in PLAIN else activation_of(payload["activation"])
    assert known is not None
    slope, over = known[1].as_integer_ratio()
    labels = targets.tolist()
    return Problem(grid, k, labels, known[0], ky, slope, over.bit_length() - 1)


def as_relu(problem: Problem, c: list[int], total: int) -> tuple[Problem, list[int], int]:
    """The problem of one leaky neuron, sum_i c_i phi(v . x_i) <= bound total, as one of relu: phi(t) = relu(t) - a
    relu(-t), so that the points are x_i with the weights c_i, then -x_i with -a c_i; all times 2^bits.
    """
    if problem.slope == 0:
        return problem, c, total
    weights = [w << problem.bits for w in c] + [-problem.slope * w for w in c]
    both = np.vstack([problem.grid, -problem.grid])
    twice = replace(problem, grid=both, y=2 * problem.y, slope=0, bits=0, opposite=True)
    return twice, weights, total << problem.bits


def features(problem: Problem, rows: np.ndarray) -> np.ndarray:
    """phi(x_i . v_j) on the integer grids, (n, m)."""
    H = matmul(problem.grid, rows.T)
    if problem.slope:
        H = H.astype(object)
        return np.where(H > 0, H << problem.bits, H * problem.slope)
    H = np.where(H > 0, H, 0)
    return H * H if problem.degree == 2 else H


def feature_blocks(problem: Problem, rows: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """`features` of some rows at a time: a file may name far more neurons than fit into memory with all points."""
    step = max(1, BLOCK // len(problem.y))
    for start in range(0, len(rows), step):
        some = slice(start, start + step)
        yield some, features(problem, rows[some])


def network_values(problem: Problem, theta: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """sum_j phi(x_i . theta_j) mass_j on the integer grids, (n, K) for mass (m, K)."""
    total = np.zeros((len(problem.y), mass.shape[1]), dtype=object)
    for some, H in feature_blocks(problem, theta):
        total = total + matmul(H, mass[some])
    return total


def differences(problem: Problem, factors: Sequence[tuple[int, int, int]]) -> np.ndarray:
    """sum_p a_p d_p d_p' over p = (i, j, a), d = x_i - x_j, on the integer grid, (D, D)."""
    total = np.zeros((problem.D, problem.D), dtype=object)
    step = max(1, BLOCK // problem.D)
    for start in range(0, len(factors), step):
        i, j, a = zip(*factors[start : start + step])
        rows = problem.grid[list(i)].astype(object) - problem.grid[list(j)].astype(object)
        total = total + matmul((column(a) * rows).T, rows)
    return total


def classes(problem: Problem) -> int:
    return max(problem.y) + 1


def sides_of(proof: Mapping[str, Any], name: str) -> dict[int, Mapping[str, Any]]:
    sides = listed(proof.get("sides"), f"{name}: sides", 2)
    out: dict[int, Mapping[str, Any]] = {}
    for side in sides:
        need(isinstance(side, Mapping), f"{name}: a side is not an object")
        sign = side.get("sign")
        need(type(sign) is int and sign in (1, -1) and sign not in out, f"{name}: sides need the signs +1 and -1")
        out[sign] = side
    return out


def signed(sign: int) -> str:
    return "+1" if sign > 0 else "-1"


@dataclass(frozen=True)
class Rules:
    """How one kind of certificate checks its bounds; both return a short text or raise Refused.

    `chance`: the bounds hold with this probability only. `given`: they hold for a matrix of the certificate that was
    not computed from the data. `reach2`: the squares of what a unit predictor can reach at each point (None:
    |x_i|^(2 degree)).
    """

    lower: Callable[[Fraction], str]
    upper: Callable[[Fraction, list[int], int, Mapping[str, Any]], str]
    chance: float | None = None
    given: bool = False
    reach2: Sequence[Fraction] | None = None


def only_dual(proof: Mapping[str, Any]) -> None:
    need(proof.get("type") == "dual", "upper bound: this kind needs proof.type = dual")
