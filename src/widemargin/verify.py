"""The checker: re-proves a certificate from its saved form and the data (docs/certificates.md), in exact arithmetic.

It shares no code with the solvers and imports only the standard library and numpy. Every double is read as the
rational it is. Matrices are integers over one power of two; `matmul` multiplies them exactly. Square roots are
integer square roots rounded in the safe direction. Floating point appears in two places and is trusted in neither
beyond what is checked afterwards: inside `matmul`, where every partial sum is an integer below 2^53 (so a float64
matrix product is exact in any order of summation), and in `positive_semidefinite`, where a floating-point Cholesky
factor is only a guess whose residual is then bounded exactly.
The statistical bounds of kind ntk are the exception: their samples are drawn again and averaged in float64.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cmp_to_key, lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

FORMAT = "widemargin-certificate-1"
CONVENTION = {
    "f1": "M1",
    "frozen": "M1",
    "f2": "M7",
    "rf": "M7",
    "bn": "M9",
    "ntk": "M8",
    "tangent": "tangent",
    "linear": "M11",
    "projected": "distance",
    "collapse": "NC",
    "l1-regression": "norm",
    "l2-regression": "norm",
    "linear-multiclass": "MT2-linear",
    "f1-multiclass": "M1",
}
MULTICLASS = ("linear-multiclass", "f1-multiclass")
REGRESSION = ("l1-regression", "l2-regression")
LARGEST = float(np.finfo(np.float64).max)  # stands for infinity in `upper`
DEGREE = {"relu": 1, "srelu": 2}
UNIT = 32  # multipliers of points with negative weight are integers over 2^UNIT
ROOT_BITS = 64  # square roots are rounded up to a multiple of 2^-ROOT_BITS of the integer grid
LEAF_BLOCK = 4096
ESTIMATE = "is an estimate and was not checked"
CHANCE = "with probability at least"


@dataclass(frozen=True)
class Verdict:
    """What the checker found. `failed` names the first item that does not hold; `checks` are (item, detail) pairs."""

    ok: bool
    failed: str | None
    checks: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        if not self.ok:
            detail = next((d for name, d in self.checks if name == self.failed and d), "")
            return f"NOT verified, {self.failed}" + (f" ({detail})" if detail else "")
        said = "; ".join(f"{name} {detail}" for name, detail in self.checks if name.endswith("bound"))
        if CHANCE in said:
            return f"verified on the evaluation sample, drawn again: {said}"
        return ("lower bound verified, upper bound NOT: " if ESTIMATE in said else "verified exactly: ") + said

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, "failed": self.failed, "checks": [list(pair) for pair in self.checks]}


def data_hash(X: ArrayLike, y: ArrayLike) -> str:
    """SHA-256 of "n d\\n", X row by row, y; numbers as little-endian float64."""
    X, y = np.asarray(X, dtype="<f8"), np.asarray(y, dtype="<f8")
    state = hashlib.sha256(f"{X.shape[0]} {X.shape[1]}\n".encode())
    state.update(np.ascontiguousarray(X).tobytes())
    state.update(np.ascontiguousarray(y).tobytes())
    return state.hexdigest()


def digest(body: Mapping[str, Any]) -> str:
    """SHA-256 of the JSON text of all fields except `digest`, keys sorted, without spaces."""
    rest = {k: v for k, v in body.items() if k != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def check(payload: Mapping[str, Any], X: ArrayLike, y: ArrayLike) -> Verdict:
    """Check both bounds of a certificate for the data X (n, d), y (n,). Never raises on a malformed payload."""
    done: list[tuple[str, str]] = []
    stage = ["format"]
    try:
        _run(payload, X, y, done, stage)
    except _Fail as fail:
        return Verdict(False, fail.item, (*done, (fail.item, fail.detail)))
    except Exception as error:  # a payload may hold anything; the verdict names the item that could not be read
        item = f"{stage[0]}: malformed"
        return Verdict(False, item, (*done, (item, f"{type(error).__name__}: {str(error)[:200]}")))
    return Verdict(True, None, tuple(done))


class _Fail(Exception):
    def __init__(self, item: str, detail: str = "") -> None:
        super().__init__(item)
        self.item, self.detail = item, detail


def _need(condition: bool, item: str, detail: str = "") -> None:
    if not condition:
        raise _Fail(item, detail)


def _run(payload: Mapping[str, Any], X: Any, y: Any, done: list[tuple[str, str]], stage: list[str]) -> None:
    _need(isinstance(payload, Mapping), "format: the certificate is not an object")
    _need(payload.get("format") == FORMAT, "format", f"expected {FORMAT!r}")
    kind, activation = payload.get("kind"), payload.get("activation")
    _need(isinstance(kind, str) and kind in CONVENTION, f"format: no rule to check kind {str(kind)[:40]!r}")
    assert isinstance(kind, str)
    _need(
        payload.get("convention") == CONVENTION[kind], f"format: kind {kind} is stated in convention {CONVENTION[kind]}"
    )
    _need(kind == "linear" or (isinstance(activation, str) and activation in DEGREE), "format: unknown activation")
    _need(type(payload.get("proved")) is bool, "format: proved is not true or false")
    _need(isinstance(payload.get("status"), str), "format: status is not a text")
    done.append(("format", f"{FORMAT}, kind {kind}"))

    stage[0] = "digest"
    try:
        found = digest(payload)
    except (TypeError, ValueError, RecursionError) as error:
        raise _Fail("digest", f"the certificate is not JSON ({error})") from None
    _need(payload.get("digest") == found, "digest", "the certificate was changed after it was written")
    done.append(("digest", found))

    stage[0] = "shape"
    problem = _problem(payload, X, y)
    what = "real targets" if kind in REGRESSION else "labels -1 and +1"
    if kind in MULTICLASS:
        what = f"{_classes(problem)} classes"
    done.append(("shape", f"n={payload['n']}, d={payload['d']}, bias={payload['bias']}, {what}"))

    stage[0] = "data hash"
    data = payload.get("data")
    _need(isinstance(data, Mapping) and data.get("sha256") == data_hash(X, y), "data hash", "made for other data")
    done.append(("data hash", data_hash(X, y)))

    stage[0] = "lower <= upper"
    lower, upper = _number(payload.get("lower"), "lower"), _number(payload.get("upper"), "upper")
    _need(upper >= 0, "lower <= upper: upper is negative", "every margin is at least 0")
    _need(lower <= upper, "lower <= upper")
    _need(isinstance(payload.get("extra"), Mapping), "format: extra is not an object")
    if kind in REGRESSION:
        done.append(("lower <= upper", f"[{_show(lower)}, {_show(upper)}]"))
        _regression(problem, payload, lower, upper, done, stage)
        return
    unreachable = payload["status"] == "not-separable"
    _need(lower == 0 or not unreachable, "lower <= upper: status not-separable with a nonzero lower bound")
    done.append(("lower <= upper", f"[{_show(lower)}, {_show(upper)}]"))

    stage[0] = "lower bound"
    rules = _KINDS[kind](problem, payload)
    if lower <= 0:
        done.append(("lower bound", f"{_show(lower)}, which the zero function reaches"))
    else:
        done.append(("lower bound", f"{_show(lower)} {rules.lower(lower)}"))

    stage[0] = "dual"
    if kind in MULTICLASS:
        rows, bits = _rows(payload.get("dual"), _classes(problem), "dual", len(problem.y))
        weights = rows.ravel().tolist()
    else:
        weights, bits = _vector(payload.get("dual"), len(problem.y), "dual")
    for i, w in enumerate(weights):
        _need(w >= 0, f"dual: entry {i} is negative")
    total = sum(weights)
    _need(total > 0, "dual: all entries are zero")
    off = abs(Fraction(total, 1 << bits) - 1)
    _need(unreachable or off <= Fraction(1, 10**9), "dual: the entries do not sum to one", f"off by {_show(off)}")
    done.append(("dual", f"{sum(w > 0 for w in weights)} of {len(weights)} weights are positive"))

    stage[0] = "upper bound"
    if not payload["proved"] and kind != "ntk":
        done.append(("upper bound", f"{_show(upper)} {ESTIMATE}"))
        return
    proof = payload.get("proof")
    _need(
        isinstance(proof, Mapping) and proof.get("type") not in (None, "omitted"),
        "upper bound: the proof is not stored in this certificate",
    )
    assert isinstance(proof, Mapping)
    done.append(("upper bound", f"{_show(upper)} {rules.upper(upper, weights, total, proof)}"))


# ---------------------------------------------------------------- reading numbers


def _show(value: Fraction | int) -> str:
    try:
        return f"{float(value):.9g}"
    except OverflowError:
        return "a number beyond 1e308"


def _number(value: Any, what: str) -> Fraction:
    good = (type(value) is int and value.bit_length() <= 1100) or (isinstance(value, float) and math.isfinite(value))
    _need(good, f"{what}: not a finite number")
    return Fraction(value)


def _integer(value: Any, what: str, low: int, high: int) -> int:
    _need(type(value) is int and low <= value <= high, f"{what}: not an integer in the allowed range")
    return value


def _list(value: Any, what: str, length: int | None = None) -> Sequence[Any]:
    _need(isinstance(value, list | tuple), f"{what}: missing or not a list")
    _need(length is None or len(value) == length, f"{what}: has {len(value)} entries, expected {length}")
    return value


def _ratios(values: Sequence[Any], what: str) -> list[tuple[int, int]]:
    """(numerator, k) with value = numerator / 2^k."""
    out = []
    for i, v in enumerate(values):
        if type(v) is int and v.bit_length() <= 1100:
            out.append((v, 0))
        elif isinstance(v, float) and math.isfinite(v):
            a, b = v.as_integer_ratio()
            out.append((a, b.bit_length() - 1))
        else:
            raise _Fail(f"{what}: entry {i} is not a finite number")
    return out


def _vector(values: Any, length: int, what: str) -> tuple[list[int], int]:
    """Integers and k with value_i = integer_i / 2^k."""
    ratios = _ratios(_list(values, what, length), what)
    k = max((b for _, b in ratios), default=0)
    return [a << (k - b) for a, b in ratios], k


def _rows(values: Any, columns: int, what: str, rows: int | None = None) -> tuple[np.ndarray, int]:
    """An integer matrix (object array) and k with value = integer / 2^k."""
    values = _list(values, what, rows)
    ratios = [_ratios(_list(row, f"{what}, row {j}", columns), f"{what}, row {j}") for j, row in enumerate(values)]
    k = max((b for row in ratios for _, b in row), default=0)
    return _objects([[a << (k - b) for a, b in row] for row in ratios], len(ratios), columns), k


def _objects(rows: Sequence[Sequence[int]], m: int, n: int) -> np.ndarray:
    out = np.zeros((m, n), dtype=object)
    for j, row in enumerate(rows):
        out[j, :] = row
    return out


def _column(values: Sequence[int]) -> np.ndarray:
    return _objects([[v] for v in values], len(values), 1)


def integers(A: np.ndarray) -> tuple[np.ndarray, int]:
    """A finite float64 array as (integers, k), A = integers / 2^k exactly; int64 where they fit, else Python ints."""
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


# ---------------------------------------------------------------- exact linear algebra


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


def _squares(A: np.ndarray) -> list[int]:
    """The squared Euclidean norm of every row."""
    out: list[int] = []
    for start in range(0, len(A), 256):
        block = A[start : start + 256].astype(object)
        out += [int(v) for v in (block * block).sum(axis=1)]
    return out


def sqrt_up(n: int, bits: int = ROOT_BITS) -> int:
    """The least integer r with r / 2^bits >= sqrt(n)."""
    s = math.isqrt(n << (2 * bits))
    return s + (s * s != n << (2 * bits))


def positive_semidefinite(S: np.ndarray) -> bool:
    """Whether the symmetric integer matrix S is positive semidefinite: True is proved, False is "no, or too close".

    S is scaled by powers of two to a diagonal in [1/4, 1) and rounded to a grid. With a floating-point Cholesky factor
    L of a slightly smaller matrix, rounded to integers, S - L L' is computed exactly; if it is diagonally dominant
    (rounding to the grid included), S is positive semidefinite. Up to size 12 exact elimination decides the rest.
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
    try:
        rows = [[(v << grid) >> (hi + hj) for v, hj in zip(row, half)] for row, hi in zip(S.tolist(), half)]
        if max(max(map(abs, row)) for row in rows) > 1 << (grid + 1):
            return False  # |S_ij|^2 <= S_ii S_jj fails
        scaled = _objects(rows, n, n)
        A = np.array([[v / (1 << grid) for v in row] for row in rows])
        shift = n * 2.0**-50
        while shift < 2.0**-16:
            if _dominated(scaled, A, shift, grid):
                return True
            shift *= 32
    except np.linalg.LinAlgError:
        pass
    return n <= 12 and _eliminate(S)


def _dominated(scaled: np.ndarray, A: np.ndarray, shift: float, grid: int) -> bool:
    n = len(A)
    L = np.linalg.cholesky(A - shift * np.eye(n))
    if not np.isfinite(L).all() or np.abs(L).max() > 4:
        return False
    factor = np.rint(np.ldexp(L, grid // 2)).astype(np.int64)
    residual = scaled - matmul(factor, factor.T)
    diagonal = residual.diagonal()
    others = abs(residual).sum(axis=1) - abs(diagonal)
    return bool(np.all(diagonal >= others + (n - 1)))  # `scaled` was rounded down by less than one unit per entry


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


# ---------------------------------------------------------------- the data


@dataclass(frozen=True)
class _Problem:
    """X = grid / 2^k with the bias coordinate appended; targets y / 2^ky (labels: -1, +1); phi(t) = relu(t)^degree."""

    grid: np.ndarray  # (n, D)
    k: int
    y: list[int]
    degree: int
    ky: int = 0

    @property
    def D(self) -> int:
        return self.grid.shape[1]


def _problem(payload: Mapping[str, Any], X: Any, y: Any) -> _Problem:
    X, y = np.asarray(X, dtype=np.float64), np.asarray(y, dtype=np.float64)
    _need(X.ndim == 2 and X.size > 0 and y.shape == (len(X),), "shape: the data need X (n, d) and y (n,)")
    _need(bool(np.isfinite(X).all()), "shape: X holds NaN or infinity")
    for name, size in (("n", X.shape[0]), ("d", X.shape[1])):
        value = payload.get(name)
        _need(type(value) is int and value == size, f"shape: {name}", f"the data have {name}={size}")
    _need(type(payload.get("bias")) is bool, "shape: bias is not true or false")
    _need(bool(np.isfinite(y).all()), "shape: y holds NaN or infinity")
    if payload.get("kind") in MULTICLASS:
        _need(bool((y == np.floor(y)).all()) and set(y) == set(range(max(2, len(set(y))))), "labels: not 0, ..., K-1")
    else:
        for i in np.flatnonzero((y != 1) & (y != -1)):
            _need(payload.get("kind") in REGRESSION, f"labels: row {i} is neither -1 nor +1")
    grid, k = integers(X)
    targets, ky = integers(y)
    if payload["bias"]:
        one = np.full((len(X), 1), 1 << k, dtype=np.int64 if k < 62 and grid.dtype != object else object)
        grid = np.hstack([grid.astype(object) if one.dtype == object else grid, one])
    return _Problem(grid, k, [int(v) for v in targets.tolist()], DEGREE.get(str(payload.get("activation")), 1), ky)


def _features(problem: _Problem, rows: np.ndarray) -> np.ndarray:
    """phi(x_i . v_j) on the integer grids, (n, m)."""
    H = matmul(problem.grid, rows.T)
    H = np.where(H > 0, H, 0)
    return H * H if problem.degree == 2 else H


def _sides(proof: Mapping[str, Any], name: str) -> dict[int, Mapping[str, Any]]:
    sides = _list(proof.get("sides"), f"{name}: sides", 2)
    out: dict[int, Mapping[str, Any]] = {}
    for side in sides:
        _need(isinstance(side, Mapping), f"{name}: a side is not an object")
        sign = side.get("sign")
        _need(type(sign) is int and sign in (1, -1) and sign not in out, f"{name}: sides need the signs +1 and -1")
        out[sign] = side
    return out


def _signed(sign: int) -> str:
    return "+1" if sign > 0 else "-1"


# ---------------------------------------------------------------- kinds


@dataclass(frozen=True)
class _Rules:
    """How one kind of certificate checks its bounds; both return a short text or raise _Fail."""

    lower: Callable[[Fraction], str]
    upper: Callable[[Fraction, list[int], int, Mapping[str, Any]], str]


def _only_dual(proof: Mapping[str, Any]) -> None:
    _need(proof.get("type") == "dual", "upper bound: this kind needs proof.type = dual")


def _measure_lower(problem: _Problem, payload: Mapping[str, Any], lower: Fraction) -> tuple[str, np.ndarray]:
    primal = payload.get("primal")
    _need(isinstance(primal, Mapping), "lower bound: no primal is stored")
    assert isinstance(primal, Mapping)
    theta, _ = _rows(primal.get("theta"), problem.D, "lower bound: primal.theta")
    mass, _ = _vector(primal.get("mass"), len(theta), "lower bound: primal.mass")
    squares = _squares(theta)
    sizes = squares if problem.degree == 2 else [sqrt_up(s) for s in squares]
    bits = 0 if problem.degree == 2 else ROOT_BITS
    norm = sum(abs(m) * s for m, s in zip(mass, sizes))
    _need(norm > 0, "lower bound: the primal is zero")
    values = matmul(_features(problem, theta), _column(mass))[:, 0]
    # y_i f(x_i) 2^-(degree k) >= lower norm 2^-bits; the powers of two of theta and mass cancel
    need = (lower.numerator * norm) << (problem.degree * problem.k)
    scale = lower.denominator << bits
    for i, (s, v) in enumerate(zip(problem.y, values)):
        _need(s * v * scale >= need, f"lower bound: point {i}", "its margin is below lower")
    return f"is reached at all {len(problem.y)} points by {len(mass)} atoms", theta


def _f1(problem: _Problem, payload: Mapping[str, Any]) -> _Rules:
    def upper(bound: Fraction, weights: list[int], total: int, proof: Mapping[str, Any]) -> str:
        kind = proof.get("type")
        if kind == "pairing" and problem.degree == 1:
            return f"is proved by pairing ({_pairing(problem, weights, total, bound, proof)})"
        table = _PROOFS[problem.degree]
        _need(isinstance(kind, str) and kind in table, "upper bound: no such proof type for this activation")
        assert isinstance(kind, str)
        sides = _sides(proof, kind) if kind not in ("norm", "enumeration") else {1: {}, -1: {}}
        said = []
        for sign in (1, -1):
            c = [sign * s * w for s, w in zip(problem.y, weights)]
            said.append(table[kind](problem, c, total, bound, sides[sign], f"{kind} side {_signed(sign)}"))
        return f"is proved by {kind}" + ("" if not said[0] else f" (side +1: {said[0]}, side -1: {said[1]})")

    return _Rules(lambda lower: _measure_lower(problem, payload, lower)[0], upper)


def _linear(problem: _Problem, payload: Mapping[str, Any]) -> _Rules:
    def lower(bound: Fraction) -> str:
        u, _ = _rows([payload["extra"].get("u")], problem.D, "lower bound: extra.u")
        norm2 = _squares(u)[0]
        _need(norm2 > 0, "lower bound: u is zero")
        need = bound**2 * norm2 * 4**problem.k
        for i, (s, v) in enumerate(zip(problem.y, matmul(problem.grid, u.T)[:, 0])):
            _need(s * v >= 0 and v * v >= need, f"lower bound: point {i}", "its margin is below lower")
        return f"is reached at all {len(problem.y)} points by u"

    def upper(bound: Fraction, weights: list[int], total: int, proof: Mapping[str, Any]) -> str:
        _only_dual(proof)
        c = _column([s * w for s, w in zip(problem.y, weights)])
        norm2 = _squares(matmul(c.T, problem.grid))[0]
        _need(norm2 <= (bound * total * 2**problem.k) ** 2, "upper bound: the norm of sum q_i y_i x_i is larger")
        return "is proved by the dual weights"

    return _Rules(lower, upper)


def _frozen(problem: _Problem, payload: Mapping[str, Any]) -> _Rules:
    directions, _ = _rows(payload["extra"].get("directions"), problem.D, "format: extra.directions")

    def lower(bound: Fraction) -> str:
        said, theta = _measure_lower(problem, payload, bound)
        known = {_ray(row) for row in directions.tolist()}
        for j, row in enumerate(theta.tolist()):
            _need(_ray(row) in known, f"lower bound: atom {j} is not one of the directions")
        return said

    def upper(bound: Fraction, weights: list[int], total: int, proof: Mapping[str, Any]) -> str:
        _only_dual(proof)
        c = _column([s * w for s, w in zip(problem.y, weights)])
        values = matmul(_features(problem, directions).T, c)[:, 0]
        limit = bound * total * 2 ** (problem.degree * problem.k)
        for j, (value, norm2) in enumerate(zip(values, _squares(directions))):
            good = abs(value) <= limit * norm2 if problem.degree == 2 else value * value <= limit**2 * norm2
            _need(good, f"upper bound: direction {j}", "its value under the dual weights is larger")
        return f"is proved by the dual weights over {len(directions)} directions"

    return _Rules(lower, upper)


def _rf(problem: _Problem, payload: Mapping[str, Any]) -> _Rules:
    directions, _ = _rows(payload["extra"].get("directions"), problem.D, "format: extra.directions")
    m = len(directions)
    _need(m > 0, "format: extra.directions: empty")
    squares = _squares(directions)
    power = problem.degree  # z_ij = y_i phi(v_j . x_i) / ||v_j||^power
    bits = 128 + max(s.bit_length() for s in squares)

    def inverse(norm2: int) -> tuple[int, int]:
        """1 / ||v||^power between two integers over 2^bits (0 for v = 0, where phi is 0)."""
        if norm2 == 0:
            return 0, 0
        if power == 2:
            return (1 << bits) // norm2, -((-1 << bits) // norm2)
        return (1 << 2 * bits) // sqrt_up(norm2, bits), -((-1 << 2 * bits) // math.isqrt(norm2 << 2 * bits))

    def lower(bound: Fraction) -> str:
        a, _ = _vector(payload["extra"].get("a"), m, "lower bound: extra.a")
        norm2 = sum(v * v for v in a)
        _need(norm2 > 0, "lower bound: a is zero")
        ends = [sorted((v * lo, v * hi)) for v, (lo, hi) in zip(a, map(inverse, squares))]
        F = matmul(_features(problem, directions), _objects(ends, m, 2))
        need = bound**2 * m * norm2 * 4 ** (power * problem.k + bits)
        for i, (s, (lo, hi)) in enumerate(zip(problem.y, F.tolist())):
            least = lo if s > 0 else -hi
            _need(least >= 0 and least * least >= need, f"lower bound: point {i}", "its margin is below lower")
        return f"is reached at all {len(problem.y)} points by a"

    def upper(bound: Fraction, weights: list[int], total: int, proof: Mapping[str, Any]) -> str:
        _only_dual(proof)
        c = _column([s * w for s, w in zip(problem.y, weights)])
        values = matmul(_features(problem, directions).T, c)[:, 0]
        most = sum(-((-v * v << bits) // s**power) for v, s in zip(values, squares) if s)  # rounded up
        limit = (bound * total) ** 2 * m * 4 ** (power * problem.k) * 2**bits
        _need(most <= limit, "upper bound: the norm of z'q is larger")
        return f"is proved by the dual weights over {m} features"

    return _Rules(lower, upper)


GRID = 192  # batch-normalised preactivations are enclosed in integers over 2^GRID
NEURONS = 256  # neurons at a time


def _bn_weights(problem: _Problem, extra: Mapping[str, Any]) -> tuple[np.ndarray, Callable[[int, int], np.ndarray]]:
    """a (m,), and a function that gives the rows start..stop of V (to be asked for in order); drawn, or as stored."""
    m = _integer(extra.get("width"), "format: extra.width", 1, 10**6)
    stored = extra.get("directions")
    if stored is None:
        seed, trial = (_integer(extra.get(name), f"format: extra.{name}", 0, 1 << 64) for name in ("seed", "trial"))
        rng = np.random.default_rng([seed, trial])
        a = rng.standard_normal(m) / np.sqrt(m)
        return a, lambda start, stop: rng.standard_normal((stop - start, problem.D)) / np.sqrt(problem.D)
    for j, row in enumerate(_list(stored, "format: extra.directions", m)):
        _ratios(_list(row, f"format: extra.directions, row {j}", problem.D), f"format: extra.directions, row {j}")
    _ratios(_list(extra.get("a"), "format: extra.a", m), "format: extra.a")
    V = np.array(stored, dtype=np.float64)
    return np.array(extra["a"], dtype=np.float64), lambda start, stop: V[start:stop]


def _bn_slope(B: np.ndarray, y: list[int], q: list[int]) -> int:
    """Twice a Lipschitz constant of v -> sum_i q_i y_i relu(v . b_i), over 2^ROOT_BITS, rounded up."""
    plain = 2 * sum(w * sqrt_up(s) for w, s in zip(q, _squares(B)))
    mean = sqrt_up(_squares(matmul(_column([s * w for s, w in zip(y, q)]).T, B))[0])
    G, w = matmul(B, B.T), _column(q)
    fourth = sum(q) ** 2 * int(matmul(matmul(w.T, G * G), w)[0, 0])
    root = math.isqrt(fourth)
    return min(plain, mean + sqrt_up(root + (root * root != fourth)))


def _bn(problem: _Problem, payload: Mapping[str, Any]) -> _Rules:
    extra, n, y = payload["extra"], len(problem.y), problem.y
    _need(not payload["bias"] and problem.degree == 1, "format: kind bn has no bias and activation relu")
    part = extra.get("part")
    _need(part in ("a", "c", "sum"), "format: extra.part is neither a, c nor sum")
    names = ("a", "c") if part == "sum" else (str(part),)
    eps, delta = (_number(extra.get(name), f"format: extra.{name}") for name in ("eps", "displacement"))
    _need(eps >= 0 and delta >= 0, "format: extra.eps and extra.displacement must not be negative")
    a, rows = _bn_weights(problem, extra)
    m = len(a)
    outer, ka = integers(a)
    factors = {"a": [1] * m, "c": [int(v) for v in outer.tolist()]}  # of the features, over 2^bits
    factor_bits = {"a": 0, "c": ka}
    bounds: dict[str, tuple[Fraction, Fraction]] = {}
    u, q = {}, {}
    for name in names:
        both = extra.get(f"gamma_{name}")
        _need(isinstance(both, Mapping), f"format: extra.gamma_{name} is not an object")
        bounds[name] = (_number(both.get("lower"), f"gamma_{name}"), _number(both.get("upper"), f"gamma_{name}"))
        u[name] = _vector(extra.get(f"weights_{name}"), m, f"lower bound: extra.weights_{name}")[0]
        dual = payload.get("dual") if name == names[0] else extra.get(f"dual_{name}")
        q[name] = _vector(dual, n, f"dual of gamma_{name}")[0]
        _need(min(q[name]) >= 0 and sum(q[name]) > 0, f"dual of gamma_{name}: negative or zero")
    move, km = np.zeros((0, problem.D), dtype=object), 0
    if extra.get("move") is not None:
        _need(extra["move"] != "omitted", "lower bound: the moved weights are not stored in this certificate")
        move, km = _rows(extra["move"], problem.D, "lower bound: extra.move", m)
        _need(sum(_squares(move)) <= m * delta**2 * 4**km, "lower bound: the weights moved by more than displacement")

    grid = problem.grid.astype(object)
    B = n * grid - grid.sum(axis=0)  # n 2^k xbar
    state = hashlib.sha256(a.astype("<f8").tobytes())
    reached = {name: [(0, 0)] * n for name in names}  # enclosures of sum_j u_j z_ij, over 2^(GRID + factor bits)
    most = dict.fromkeys(names, 0)  # at least ||z' q||^2, over 2^(GRID + 2 factor bits)
    e, ke = eps.numerator, eps.denominator.bit_length() - 1
    for start in range(0, m, NEURONS):
        stop = min(start + NEURONS, m)
        V = rows(start, stop)
        state.update(V.astype("<f8").tobytes())
        block, kv = integers(V)
        P = matmul(B, block.T)  # n 2^(k + kv) <v_j, xbar_i>
        # <v_j, xbar_i> / N(v_j) = P_ij sqrt(D / M_j)
        D = n << ke
        M = [(int(s) << ke) + (e * n**3 << (2 * (problem.k + kv))) for s in (P * P).sum(axis=0)]
        bits = GRID + max(v.bit_length() for v in M)
        roots = [math.isqrt((D << (2 * bits)) // v) if v else 0 for v in M]
        low, high = P * _column(roots).T, P * _column([r + (v > 0) for r, v in zip(roots, M)]).T
        low, high = (
            np.where(P > 0, low, high) >> (bits - GRID),
            (np.where(P > 0, high, low) >> (bits - GRID)) + (P != 0),
        )
        if len(move):
            moved = (matmul(B, move[start:stop].T) << GRID) // (n << (problem.k + km))
            low, high = low + moved, high + moved + 1
        low, high = np.where(low > 0, low, 0), np.where(high > 0, high, 0)
        active = np.where(P > 0, P, 0)
        for name in names:
            factor = factors[name][start:stop]
            weight = [f * v for f, v in zip(factor, u[name][start:stop])]
            plus, minus = _column([max(w, 0) for w in weight]), _column([max(-w, 0) for w in weight])
            down = (matmul(low, plus) - matmul(high, minus))[:, 0].tolist()
            up = (matmul(high, plus) - matmul(low, minus))[:, 0].tolist()
            reached[name] = [(f + r, g + s) for (f, g), r, s in zip(reached[name], down, up)]
            c = _column([s * w for s, w in zip(y, q[name])])
            values = matmul(active.T, c)[:, 0].tolist()
            most[name] += sum(-((-((f * v) ** 2) * D << GRID) // w) for f, v, w in zip(factor, values, M) if w)
    known = "format: extra.weights_sha256: the drawn weights are not those of the certificate"
    _need(extra.get("weights_sha256") == state.hexdigest(), known, "made with another version of numpy?")

    for name in names:
        least = bounds[name][0]
        norm2 = sum(v * v for v in u[name])
        need = least**2 * m * norm2 * 4 ** (GRID + factor_bits[name])
        if least > 0:
            _need(norm2 > 0, f"lower bound: extra.weights_{name} is zero")
            for i, (s, (f, g)) in enumerate(zip(y, reached[name])):
                worst = f if s > 0 else -g
                good = worst >= 0 and worst * worst >= need
                _need(good, f"lower bound: point {i}", f"its margin is below the lower bound of gamma_{name}")

    def lower(bound: Fraction) -> str:
        total = sum(max(least, Fraction(0)) for least, _ in bounds.values())
        _need(bound <= total, "lower bound: larger than those of its parts together")
        return f"is reached at all {n} points by the weights of gamma_{' and gamma_'.join(names)}"

    def upper(bound: Fraction, weights: list[int], total: int, proof: Mapping[str, Any]) -> str:
        _only_dual(proof)
        for name in names:
            largest = Fraction(max(abs(f) for f in factors[name]), 1 << factor_bits[name])
            slope = _bn_slope(B, y, q[name]) if delta else 0
            cost = delta * largest * Fraction(slope, n << (ROOT_BITS + problem.k + 1))
            room = bounds[name][1] * sum(q[name]) - cost
            limit = room**2 * m * 2 ** (GRID + 2 * factor_bits[name])
            _need(room >= 0 and most[name] <= limit, f"upper bound: gamma_{name} is not shown to be that small")
        _need(bound >= sum(top for _, top in bounds.values()), "upper bound: smaller than those of its parts together")
        return f"is proved by the dual weights over {m} neurons"

    return _Rules(lower, upper)


def _kernel(problem: _Problem, extra: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, Fraction, Fraction, str]:
    """low, high, least, most, a note: the kernel is K / c with low <= K <= high (integers) and least <= c <= most."""
    n, kernel = len(problem.y), extra.get("kernel")
    if kernel == "given":
        K, bits = _rows(extra.get("gram"), n, "format: extra.gram", n)
        _need(bool((K == K.T).all()), "format: extra.gram is not symmetric")
        note = ", for the Gram matrix stored in the certificate (taken as given, assumed positive semidefinite)"
        return K, K, Fraction(1 << bits), Fraction(1 << bits), note
    known = kernel in ("relu", "ntk") and problem.degree == 1
    _need(known, "format: extra.kernel is neither relu, ntk (both with relu) nor given")
    low, high = ntk_kernel(problem.grid, str(extra.get("part"))) if kernel == "ntk" else relu_kernel(problem.grid)
    pi_low, pi_high = _pi()
    scale = 2 * problem.D * 4**problem.k  # low / 2^P <= 2 pi D 4^k kernel <= high / 2^P
    return low, high, Fraction(scale * pi_low), Fraction(scale * pi_high), ""


def _f2(problem: _Problem, payload: Mapping[str, Any]) -> _Rules:
    extra, n = payload["extra"], len(problem.y)
    low, high, least, most, note = _kernel(problem, extra)

    def product(w: list[int]) -> tuple[list[int], list[int]]:
        """Enclosures of sum_j y_i y_j K_ij w_j."""
        v = [s * x for s, x in zip(problem.y, w)]
        plus, minus = _column([max(x, 0) for x in v]), _column([max(-x, 0) for x in v])
        down = (matmul(low, plus) - matmul(high, minus))[:, 0]
        up = (matmul(high, plus) - matmul(low, minus))[:, 0]
        ends = [(a, b) if s > 0 else (-b, -a) for s, a, b in zip(problem.y, down.tolist(), up.tolist())]
        return [a for a, _ in ends], [b for _, b in ends]

    def quadratic(w: list[int], ends: tuple[list[int], list[int]]) -> int:
        return sum(x * (b if x > 0 else a) for x, a, b in zip(w, *ends))  # an upper bound of w' K w

    def lower(bound: Fraction) -> str:
        alpha, _ = _vector(extra.get("alpha"), n, "lower bound: extra.alpha")
        ends = product(alpha)
        size = quadratic(alpha, ends)
        _need(size > 0, "lower bound: alpha is zero")
        need = bound**2 * most * size
        for i, v in enumerate(ends[0]):
            _need(v >= 0 and v * v >= need, f"lower bound: point {i}", "its margin is below lower")
        return f"is reached at all {n} points by alpha{note}"

    def upper(bound: Fraction, weights: list[int], total: int, proof: Mapping[str, Any]) -> str:
        _only_dual(proof)
        size = quadratic(weights, product(weights))
        _need(size <= (bound * total) ** 2 * least, "upper bound: the norm q'Kq is larger")
        return f"is proved by the dual weights{note}"

    return _Rules(lower, upper)


def _projected(problem: _Problem, payload: Mapping[str, Any]) -> _Rules:
    rank = _integer(payload["extra"].get("rank"), "format: extra.rank", 1, problem.D)
    plus, minus = ([i for i, s in enumerate(problem.y) if s == sign] for sign in (1, -1))

    def lower(bound: Fraction) -> str:
        frame, _ = _rows(payload["extra"].get("frame"), problem.D, "lower bound: extra.frame", rank)
        gram = matmul(frame, frame.T)
        most = max(int(v) for v in abs(gram).sum(axis=1))  # at least the largest eigenvalue of F F'
        _need(most > 0, "lower bound: the frame is zero")
        W = matmul(problem.grid, frame.T)  # (n, rank)
        sizes, inner = _squares(W), matmul(W[plus], W[minus].T).tolist()
        need = bound**2 * most * 4**problem.k
        for i, row in zip(plus, inner):
            for k, v in zip(minus, row):
                _need(
                    sizes[i] + sizes[k] - 2 * v >= need,
                    f"lower bound: points {i} and {k}",
                    "their distance is below lower",
                )
        return f"is reached by all {len(plus) * len(minus)} pairs in the span of the frame"

    def upper(bound: Fraction, weights: list[int], total: int, proof: Mapping[str, Any]) -> str:
        kind = proof.get("type")
        if kind == "signs":
            _need(rank == 1, "upper bound: a tree over signs needs rank 1")
            return f"is proved by signs ({_sign_tree(problem, bound, proof)})"
        _need(kind in ("trace", "fantope", "fantope-pairs"), "upper bound: no such proof type for this kind")
        entries = [_list(entry, "upper bound: pairs", 3) for entry in _list(proof.get("pairs"), "upper bound: pairs")]
        Z = _differences(problem, [entry[:2] for entry in entries])
        w, _ = _vector([entry[2] for entry in entries], len(entries), "upper bound: weights of the pairs")
        _need(all(v >= 0 for v in w) and sum(w) > 0, "upper bound: the weights of the pairs are not nonnegative")
        if kind == "trace":
            most = sum(v * s for v, s in zip(w, _squares(Z)))
            _need(most <= bound**2 * sum(w) * 4**problem.k, "upper bound: the weighted mean of the distances is larger")
        else:
            _fantope(problem, bound, rank, Z, w, proof, kind == "fantope-pairs")
        return f"is proved by weights on {len(w)} pairs ({kind})"

    return _Rules(lower, upper)


def _differences(problem: _Problem, pairs: Sequence[Any]) -> np.ndarray:
    """x_i - x_k on the integer grid for pairs of different labels."""
    n, rows = len(problem.y), []
    _need(len(pairs) > 0, "upper bound: no pairs are stored")
    for i, k in pairs:
        i, k = (_integer(v, "upper bound: pairs", 0, n - 1) for v in (i, k))
        _need(problem.y[i] != problem.y[k], "upper bound: a pair has equal labels")
        rows.append([int(a) - int(b) for a, b in zip(problem.grid[i].tolist(), problem.grid[k].tolist())])
    return _objects(rows, len(rows), problem.D)


def _fantope(
    problem: _Problem, bound: Fraction, rank: int, Z: np.ndarray, w: list[int], proof: Mapping[str, Any], by_pairs: bool
) -> None:
    """sum q z z' <= t I + B B', or by pairs Z Z' <= t diag(1 / q) + B B'; in units of 4^shift."""
    t = _number(proof.get("t"), "upper bound: t")
    _need(t >= 0, "upper bound: t is negative")
    shift = _integer(proof.get("shift"), "upper bound: shift", -1200, 1200)
    total, size = sum(w), len(Z) if by_pairs else problem.D
    stored = _list(proof.get("B"), "upper bound: B", size)
    columns = len(_list(stored[0], "upper bound: B"))
    B, kb = _rows(stored, columns, "upper bound: B", size)
    BB = matmul(B, B.T)
    unit = Fraction(4) ** (problem.k + shift)  # X in units of 2^shift is grid / sqrt(unit)
    weight = w if by_pairs else [1] * size
    trace = sum(Fraction(v * s, 4**kb) for v, s in zip(weight, _squares(B))) / (total if by_pairs else 1)
    _need(rank * t + trace <= bound**2 / Fraction(4) ** shift, "upper bound: rank t + tr B B' is larger")
    if by_pairs:
        _need(all(v > 0 for v in w), "upper bound: a pair has weight zero")
        K, scale = matmul(Z, Z.T), unit
        diagonal = [t * total / v * scale for v in w]
    else:
        K, scale = matmul((_column(w) * Z).T, Z), unit * total
        diagonal = [t * scale] * size
    # all in units of 2^-e, the diagonal rounded down
    bits = 2 * kb + max(0, -2 * (problem.k + shift))
    e = bits + 128
    S = BB * int(scale * 2**e / 4**kb) - K * 2**e
    for j, v in enumerate(diagonal):
        S[j, j] += math.floor(v * 2**e)
    _need(positive_semidefinite(S), "upper bound: t I + B B' is not shown to dominate the weighted pairs")


def _sign_tree(problem: _Problem, bound: Fraction, proof: Mapping[str, Any]) -> str:
    Z = _differences(problem, [_list(pair, "signs: pairs", 2) for pair in _list(proof.get("pairs"), "signs: pairs")])
    tree, leaves = _list(proof.get("tree"), "signs: tree"), _list(proof.get("leaves"), "signs: leaves")
    limit, at, leaf = bound**2 * 4**problem.k, 0, 0
    stack: list[list[tuple[int, int]]] = [[(0, 1)]]  # v -> -v: the first pair has v . z >= 0
    while stack:
        path = stack.pop()
        _need(at < len(tree), "signs: the tree ends early")
        branch = _integer(tree[at], "signs: tree", -1, len(Z) - 1)
        at += 1
        if branch >= 0:
            stack += [[*path, (branch, -1)], [*path, (branch, 1)]]
            continue
        _need(leaf < len(leaves), "signs: there are too few leaves")
        q, _ = _vector(leaves[leaf], len(path), f"signs, leaf {leaf}")
        _need(all(v >= 0 for v in q) and sum(q) > 0, f"signs, leaf {leaf}: its weights are not nonnegative")
        c = _column([v * s for v, (_, s) in zip(q, path)])
        size = _squares(matmul(c.T, Z[[p for p, _ in path]]))[0]
        _need(size <= limit * sum(q) ** 2, f"signs, leaf {leaf}: its bound is larger than upper")
        leaf += 1
    _need(at == len(tree) and leaf == len(leaves), "signs: the tree has entries to spare")
    return f"{leaf} leaves"


def _collapse(problem: _Problem, payload: Mapping[str, Any]) -> _Rules:
    extra, n = payload["extra"], len(problem.y)

    def lower(bound: Fraction) -> str:
        beta, _ = _rows(extra.get("beta"), problem.D, "lower bound: extra.beta")
        r = len(beta)
        _need(r > 0, "lower bound: no cone is stored")
        signs = [
            _integer(v, "lower bound: extra.signs", -1, 1) for v in _list(extra.get("signs"), "lower bound: signs", r)
        ]
        gamma, eps = (_number(extra.get(key), f"lower bound: extra.{key}") for key in ("gamma_nc", "eps"))
        _need(0 < eps < gamma, "lower bound: not 0 < eps < gamma_nc")
        _need(type(extra.get("strict")) is bool, "lower bound: extra.strict is not true or false")
        _need(bound * r <= gamma, "lower bound: gamma_nc / r is smaller")
        across2 = gamma**2 * (eps**2 / 4 if extra["strict"] else eps / 2)
        unit = 4**problem.k
        inner, sizes = matmul(problem.grid, beta.T).tolist(), _squares(problem.grid)
        lengths = _squares(beta)
        for k, size in enumerate(lengths):
            _need(size > 0, f"lower bound: beta {k} is zero")
        for i, row in enumerate(inner):
            inside = 0
            for k, v in enumerate(row):
                # beta is divided by its length: (beta . x)^2 = v^2 / length in units of 4^-k
                own = (
                    signs[k] == problem.y[i]
                    and v > 0
                    and v * v >= gamma**2 * unit * lengths[k]
                    and sizes[i] * lengths[k] - v * v <= across2 * unit * lengths[k]
                )
                polar = v < 0 and v * v >= eps**2 * unit * lengths[k]
                _need(own or polar, f"lower bound: point {i} is neither in cone {k} nor in its polar")
                inside += own
            _need(inside > 0, f"lower bound: point {i} is in no cone")
        return f"is gamma_nc / r of {r} cones that hold all {n} points"

    def upper(bound: Fraction, weights: list[int], total: int, proof: Mapping[str, Any]) -> str:
        _need(proof.get("type") == "cone", "upper bound: this kind needs proof.type = cone")
        i = _integer(proof.get("point"), "upper bound: point", 0, n - 1)
        q, _ = _vector(proof.get("weights"), n, "upper bound: weights")
        _need(all(v >= 0 for v in q) and sum(q) > 0, "upper bound: the weights are not nonnegative")
        c = [v if j == i else -v for j, v in enumerate(q)]
        _need(
            all(j == i or v == 0 or problem.y[j] != problem.y[i] for j, v in enumerate(q)),
            "upper bound: a point of the same label has a weight",
        )
        size = _squares(matmul(_column(c).T, problem.grid))[0]
        if size == 0:
            return "holds, since there are no such cones: the weights prove eps <= 0"
        clique = [
            _integer(v, "upper bound: clique", 0, n - 1) for v in _list(proof.get("clique"), "upper bound: clique")
        ]
        _need(len(set(clique)) == len(clique) > 0, "upper bound: the clique is empty or names a point twice")
        G = matmul(problem.grid[clique], problem.grid[clique].T)
        short = min(_squares(problem.grid)) <= 4 * 4**problem.k  # then eps < gamma_nc <= 2
        for a, j in enumerate(clique):
            for b, k in enumerate(clique[:a]):
                apart = problem.y[j] != problem.y[k] or (short and G[a, b] <= 0)
                _need(apart, f"upper bound: points {j} and {k} could be in one cone")
        _need(size <= (bound * q[i] * len(clique)) ** 2 * 4**problem.k, "upper bound: the distance is larger")
        return (
            f"is proved by the distance of point {i} from the other class and {len(clique)} points in different cones"
        )

    return _Rules(lower, upper)


# --- several classes: dual weights are n rows of K, g_i = sum_j q_ij (e_{y_i} - e_j)


def _classes(problem: _Problem) -> int:
    return max(problem.y) + 1


def _dual_vectors(problem: _Problem, weights: list[int]) -> np.ndarray:
    """g (n, K) in units of the weights."""
    n, K = len(problem.y), _classes(problem)
    g = -_objects([weights[i * K : (i + 1) * K] for i in range(n)], n, K)
    for i, label in enumerate(problem.y):
        _need(g[i, label] == 0, f"dual: row {i} has a weight on its own class")
        g[i, label] = -sum(g[i].tolist())
    return g


def _least_gaps(problem: _Problem, scores: np.ndarray) -> list[int]:
    """f_{y_i} - max_{j != y_i} f_j for integer scores (n, K)."""
    return [
        row[label] - max(v for j, v in enumerate(row) if j != label) for label, row in zip(problem.y, scores.tolist())
    ]


def _linear_multiclass(problem: _Problem, payload: Mapping[str, Any]) -> _Rules:
    K = _classes(problem)

    def lower(bound: Fraction) -> str:
        U, _ = _rows(payload["extra"].get("U"), problem.D, "lower bound: extra.U", K)
        norm2 = sum(_squares(U))
        _need(norm2 > 0, "lower bound: U is zero")
        need = bound**2 * norm2 * 4**problem.k
        for i, v in enumerate(_least_gaps(problem, matmul(problem.grid, U.T))):
            _need(v >= 0 and v * v >= need, f"lower bound: point {i}", "its margin is below lower")
        return f"is reached at all {len(problem.y)} points by U"

    def upper(bound: Fraction, weights: list[int], total: int, proof: Mapping[str, Any]) -> str:
        _only_dual(proof)
        norm2 = sum(_squares(matmul(_dual_vectors(problem, weights).T, problem.grid)))
        _need(norm2 <= (bound * total * 2**problem.k) ** 2, "upper bound: the norm of sum g_i x_i' is larger")
        return "is proved by the dual weights"

    return _Rules(lower, upper)


def _f1_multiclass(problem: _Problem, payload: Mapping[str, Any]) -> _Rules:
    K = _classes(problem)
    _need(problem.degree == 1, "format: no rule to check this activation")

    def lower(bound: Fraction) -> str:
        extra = payload["extra"]
        theta, _ = _rows(extra.get("theta"), problem.D, "lower bound: extra.theta")
        outer, _ = _rows(extra.get("outer"), K, "lower bound: extra.outer", len(theta))
        norm = sum(sqrt_up(a * b) for a, b in zip(_squares(theta), _squares(outer)))
        _need(norm > 0, "lower bound: the network is zero")
        need = (bound.numerator * norm) << problem.k
        scale = bound.denominator << ROOT_BITS
        for i, v in enumerate(_least_gaps(problem, matmul(_features(problem, theta), outer))):
            _need(v * scale >= need, f"lower bound: point {i}", "its margin is below lower")
        return f"is reached at all {len(problem.y)} points by {len(theta)} neurons"

    def upper(bound: Fraction, weights: list[int], total: int, proof: Mapping[str, Any]) -> str:
        kind = proof.get("type")
        _need(isinstance(kind, str) and kind in _VECTOR_PROOFS, "upper bound: no such proof type for several classes")
        assert isinstance(kind, str)
        said = _VECTOR_PROOFS[kind](problem, _dual_vectors(problem, weights), total, bound, proof)
        return f"is proved by {kind}" + (f" ({said})" if said else "")

    return _Rules(lower, upper)


def _tangent(problem: _Problem, payload: Mapping[str, Any]) -> _Rules:
    _need(payload["extra"].get("kernel") == "given", "format: kind tangent needs extra.kernel = given")
    return _f2(problem, payload)


def _ntk(problem: _Problem, payload: Mapping[str, Any]) -> _Rules:
    extra = payload["extra"]
    _need(payload.get("activation") == "relu", "format: kind ntk needs activation relu")
    _need(extra.get("part") in ("total", "outer", "inner"), "format: extra.part is not total, outer or inner")
    _need(extra.get("transport") in ("sup", "l2"), "format: extra.transport is neither sup nor l2")
    if payload["proved"]:
        _need(extra.get("kernel") == "ntk", "format: a proved ntk margin needs extra.kernel = ntk")
        exact = _f2(problem, payload)
        if extra["transport"] == "l2":
            return exact

        def none(bound: Fraction) -> str:
            raise _Fail("lower bound: a kernel function is no proof for transports in the sup norm")

        return _Rules(none, exact.upper)  # the sup margin is at most the L2 margin
    _need(extra["transport"] == "sup", "format: transport l2 needs proved = true")
    found = _SampledMargin(problem, payload)
    said = f"holds {CHANCE} {found.confidence:g} over {found.samples} samples"

    def lower(bound: Fraction) -> str:
        _need(bound <= Fraction(found.lower) * found.unit, "lower bound: the evaluation sample gives less")
        return said

    def upper(bound: Fraction, weights: list[int], total: int, proof: Mapping[str, Any]) -> str:
        _need(proof.get("type") == "samples", "upper bound: this bound needs proof.type = samples")
        _need(bound >= Fraction(found.upper) * found.unit, "upper bound: the evaluation sample gives more")
        return said

    return _Rules(lower, upper)


class _SampledMargin:
    """Both statistical bounds of an ntk certificate (docs/certificates.md), in units of `unit`."""

    def __init__(self, problem: _Problem, payload: Mapping[str, Any]) -> None:
        extra, n, D = payload["extra"], len(problem.y), problem.D
        self.samples = N = _integer(extra.get("samples"), "format: extra.samples", 2, 10**10)
        self.confidence = float(_number(extra.get("confidence"), "format: extra.confidence"))
        _need(0 < self.confidence < 1, "format: extra.confidence is not between 0 and 1")
        bins = _integer(extra.get("bins"), "format: extra.bins", 1, 10**4)
        _need(bins == 1 or extra["part"] == "total", "format: extra.bins must be 1 for one layer")
        floor = np.array([float(_number(v, "extra.floor")) for v in _list(extra.get("floor"), "extra.floor", bins)])
        a, b = (float(_number(v, "extra.control")) for v in _list(extra.get("control"), "extra.control", 2))
        _need(
            bool((floor >= 0).all()) and a >= 0 and b >= 0, "format: a negative entry in extra.floor or extra.control"
        )
        q = np.array([float(_number(v, "dual")) for v in _list(payload.get("dual"), "dual", n)])
        _need(bool((q >= 0).all()) and q.sum() > 0, "dual: not in the simplex")
        q = q / q.sum()

        top = max(1, max(int(abs(v)).bit_length() for v in problem.grid.ravel().tolist()))
        self.unit = Fraction(2) ** (top - problem.k)
        X = np.array([[v / (1 << top) for v in row] for row in problem.grid.tolist()])  # exact
        y = np.array(problem.y, dtype=np.float64)
        S, C, P, R = ntk_radial(D, bins, extra["part"])
        c, norms = q * y, np.sqrt((X * X).sum(axis=1))
        names = ("part", "seed", "bins", "control", "floor")
        words = [payload["data"]["sha256"], payload["dual"], *(extra.get(name) for name in names)]
        seed = hashlib.sha256(json.dumps(words, separators=(",", ":")).encode()).digest()
        rng = np.random.default_rng(int.from_bytes(seed, "big"))

        block = max(1, 2**18 // (n + D))
        z1, z2, v1, v2 = np.zeros(n), np.zeros(n), 0.0, 0.0
        for start in range(0, N, block):
            s = rng.standard_normal((min(block, N - start), D))
            s /= np.sqrt((s * s).sum(axis=1))[:, None]
            z, value = np.zeros((len(s), n)), np.zeros(len(s))
            for sign in (1.0, -1.0):
                t = sign * (s @ X.T)
                relu, active = np.maximum(t, 0), np.where(t > 0, 1.0, 0.0)
                u, g = relu @ c, (active * c) @ X
                g2 = (g * g).sum(axis=1)
                f = np.sqrt(np.outer(u * u, S**2) + np.outer(g2, C**2))
                f = np.maximum(np.maximum(f, floor), 1e-300)
                A, B = (S**2 / f).sum(axis=1), (C**2 / f).sum(axis=1)
                z += y * (relu * ((A - a) * u)[:, None] + active * ((g @ X.T) * (B - b)[:, None])) / 2
                value += np.sqrt(np.outer(u * u, P**2) + np.outer(g2, R**2)).sum(axis=1) / 2
                value -= (a * u * u + b * g2) / 4
            z1, z2 = z1 + z.sum(axis=0), z2 + (z * z).sum(axis=0)
            v1, v2 = v1 + value.sum(), v2 + (value * value).sum()

        unit_rows = X / np.where(norms > 0, norms, 1)[:, None]
        known = np.zeros(n)  # y_i E[a u relu(s.x_i) + b 1[s.x_i > 0] g.x_i]
        for i in range(n):
            near, far = (np.sqrt(((unit_rows[i] + e * unit_rows) ** 2).sum(axis=1)) for e in (-1, 1))
            angle = 2 * np.arctan2(near, far)
            size, dot = norms[i] * norms, X @ X[i]
            turn = (math.pi - angle) * dot
            known[i] = y[i] * (c @ (a * (size * np.sin(angle) + turn) / D + b * turn)) / (2 * math.pi)
        L = math.log(2 * (n + 1) / (1 - self.confidence))
        reach = (np.linalg.norm(c @ X) + np.linalg.norm(np.sqrt(q)[:, None] * X, 2)) / 2  # of |g|
        spans = norms * (np.hypot(S, C).sum() + (a + b) * reach)
        span = np.hypot(P, R).sum() * reach + (a + b) / 2 * reach**2
        wide = np.sqrt(2 * L / N * ((z2 - z1 * z1 / N) / (N - 1)).clip(0)) + 7 * L * spans / (3 * (N - 1))
        self.lower = float((known + z1 / N - wide).min())
        spread = max(float(v2 - v1 * v1 / N) / (N - 1), 0.0)
        self.upper = float(q @ known / 2 + v1 / N + math.sqrt(2 * L * spread / N) + 7 * L * span / (3 * (N - 1)))


_KINDS: dict[str, Callable[[_Problem, Mapping[str, Any]], _Rules]] = {
    "ntk": _ntk,
    "tangent": _tangent,
    "linear-multiclass": _linear_multiclass,
    "f1-multiclass": _f1_multiclass,
    "f1": _f1,
    "linear": _linear,
    "projected": _projected,
    "collapse": _collapse,
    "frozen": _frozen,
    "rf": _rf,
    "bn": _bn,
    "f2": _f2,
}


# ---------------------------------------------------------------- regression
#
# lower <= the least norm of a function f with f(x_i) = y_i for all i <= upper.


def _regression(
    problem: _Problem,
    payload: Mapping[str, Any],
    lower: Fraction,
    upper: Fraction,
    done: list[tuple[str, str]],
    stage: list[str],
) -> None:
    n, kind, extra = len(problem.y), payload["kind"], payload["extra"]
    _need(kind != "l1-regression" or problem.degree == 1, "format: no rule to check this activation")
    stage[0] = "dual"
    lam, bits = _vector(payload.get("dual"), n, "dual")
    inner = Fraction(sum(a * b for a, b in zip(problem.y, lam)), 1 << (problem.ky + bits))  # y . lam
    done.append(("dual", f"{sum(w != 0 for w in lam)} of {n} weights are not zero"))
    proof = payload.get("proof")
    _need(isinstance(proof, Mapping), "lower bound: the proof is not an object")
    assert isinstance(proof, Mapping)
    if payload["status"] == "no-interpolation" and payload["proved"]:
        stage[0] = "lower bound"
        _need(upper == Fraction(LARGEST), "lower <= upper: upper must be the largest float where nothing interpolates")
        _need(inner != 0, "lower bound: the targets do not break the relation")
        _need(_vanishes(problem, lam), "lower bound: the weights are not a relation of the points")
        done.append(
            ("lower bound", "infinity: the targets break a relation that holds for every function of the space")
        )
        return
    rule = _l1_rule if kind == "l1-regression" else _l2_rule
    show_lower, show_upper = rule(problem, extra, lam, bits)
    stage[0] = "lower bound"
    if lower <= 0:
        done.append(("lower bound", f"{_show(lower)}, no norm is smaller"))
    else:
        _need(proof.get("type") not in (None, "omitted"), "lower bound: the proof is not stored in this certificate")
        done.append(("lower bound", f"{_show(lower)} {show_lower(lower, inner, proof)}"))
    stage[0] = "upper bound"
    if not payload["proved"]:
        done.append(("upper bound", f"{_show(upper)} {ESTIMATE}"))
        return
    free = _free_points(problem, extra)
    done.append(("upper bound", f"{_show(upper)} {show_upper(upper, free, payload)}"))


def _vanishes(problem: _Problem, c: list[int]) -> bool:
    """Whether sum_i c_i phi(v . x_i) = 0 for all v. True is proved.

    relu(t) = (t + |t|) / 2 and relu(t)^2 = (t^2 + t |t|) / 2: it is enough that sum_i c_i x_i (or sum_i c_i x_i x_i')
    is zero, and that on each line through 0 the sum of the other parts is.
    """
    lines: dict[tuple[int, ...], int] = {}
    total: dict[tuple[int, ...], int] = {}
    for i, weight in enumerate(c):
        row = problem.grid[i].tolist() if weight else []
        if not any(row):
            continue
        u, g = _ray(row), math.gcd(*row)
        if next(v for v in u if v) < 0:
            u, g = tuple(-v for v in u), -g
        lines[u] = lines.get(u, 0) + weight * (abs(g) if problem.degree == 1 else g * abs(g))
        for a, v in enumerate(row):
            for b in range(a, problem.D) if problem.degree == 2 else (a,):
                total[a, b] = total.get((a, b), 0) + weight * v * (row[b] if problem.degree == 2 else 1)
    return not any(lines.values()) and not any(total.values())


def _free_points(problem: _Problem, extra: Mapping[str, Any]) -> list[int]:
    """The points without a relation; right values at these, and at earlier ones, imply that of each other point."""
    n, related = len(problem.y), set[int]()
    stored = []
    for j, item in enumerate(_list(extra.get("relations", []), "upper bound: extra.relations")):
        name = f"upper bound: relation {j}"
        _need(isinstance(item, Mapping), f"{name}: not an object")
        point = _integer(item.get("point"), name, 0, n - 1)
        _need(point not in related, f"{name}: its point has one already")
        related.add(point)
        c = [0] * n
        for pair in _list(item.get("weights"), name):
            i, w = _list(pair, name, 2)
            _integer(i, name, 0, n - 1)
            c[i] += _integer(w, name, -(1 << 1100), 1 << 1100)
        _need(c[point] != 0, f"{name}: its point has no weight")
        _need(sum(w * t for w, t in zip(c, problem.y)) == 0, f"{name}: the targets break it")
        stored.append((name, point, c))
    known = set(range(n)) - related
    for name, point, c in stored:
        _need(all(not w or i in known or i == point for i, w in enumerate(c)), f"{name}: it uses a later point")
        _need(_vanishes(problem, c), f"{name}: it does not hold for all functions")
        known.add(point)
    return sorted(set(range(n)) - related)


_Bounds = tuple[
    Callable[[Fraction, Fraction, Mapping[str, Any]], str], Callable[[Fraction, list[int], Mapping[str, Any]], str]
]


def _l1_rule(problem: _Problem, extra: Mapping[str, Any], lam: list[int], bits: int) -> _Bounds:
    def lower(bound: Fraction, inner: Fraction, proof: Mapping[str, Any]) -> str:
        kind = proof.get("type")
        _need(isinstance(kind, str) and kind in _PROOFS[1], "lower bound: no such proof type")
        assert isinstance(kind, str)
        most = _number(proof.get("maximum"), "lower bound: proof.maximum")
        _need(most > 0, "lower bound: proof.maximum is not positive")
        sides = _sides(proof, kind) if kind not in ("norm", "enumeration") else {1: {}, -1: {}}
        for sign in (1, -1):
            c = [sign * w for w in lam]
            _PROOFS[1][kind](problem, c, 1 << bits, most, sides[sign], f"{kind} side {_signed(sign)}")
        _need(bound * most <= inner, "lower bound: y . lam is smaller than lower times the maximum")
        return f"is proved by the dual weights and {kind}"

    def upper(bound: Fraction, free: list[int], payload: Mapping[str, Any]) -> str:
        primal = payload.get("primal")
        _need(isinstance(primal, Mapping), "upper bound: no primal is stored")
        assert isinstance(primal, Mapping)
        theta, kt = _rows(primal.get("theta"), problem.D, "upper bound: primal.theta")
        mass, km = _vector(primal.get("mass"), len(theta), "upper bound: primal.mass")
        norm = Fraction(sum(abs(m) * sqrt_up(s) for m, s in zip(mass, _squares(theta))), 1 << (ROOT_BITS + kt + km))
        values = matmul(_features(problem, theta), _column(mass))[:, 0].tolist()
        values = values or [0] * len(problem.y)
        residuals = [
            abs(Fraction(problem.y[i], 1 << problem.ky) - Fraction(values[i], 1 << (problem.k + kt + km))) for i in free
        ]
        cost = Fraction(0)
        if any(residuals):
            cost = _repair(problem, free, residuals, extra)
        _need(norm + cost <= bound, "upper bound: the norm of the network, residual included, is larger")
        return f"is the norm of {len(mass)} atoms, of which at most {_show(cost)} makes their values exact"

    return lower, upper


def _repair(problem: _Problem, free: list[int], residuals: list[Fraction], extra: Mapping[str, Any]) -> Fraction:
    """A norm with which neurons of extra.frame can take any values of at most these sizes at the free points.

    S_ij = relu(v_j . x_i) 2^-(a_i + b_j) on the integer grids, 2^b_j >= |v_j|. For a matrix R (a floating-point inverse
    of S, a guess) with |S R - I| = delta < 1 in the norm max_k sum_i, S R is invertible and S w = r has the solution
    w = R (S R)^-1 r with |w|_1 <= |R| |r|_1 / (1 - delta); neuron j with w_j costs at most |w_j|.
    """
    frame, _ = _rows(extra.get("frame"), problem.D, "upper bound: extra.frame", len(free))
    a = [(math.isqrt(s) + 1).bit_length() for s in _squares(problem.grid[free])]
    b = [(math.isqrt(s) + 1).bit_length() for s in _squares(frame)]
    H = _features(problem, frame)[free].tolist()
    top = max(a) + max(b)
    rows = [[v << (top - ai - bj) for v, bj in zip(row, b)] for row, ai in zip(H, a)]
    S = np.array([[v / (1 << top) for v in row] for row in rows])
    try:
        R = np.linalg.inv(S)
    except np.linalg.LinAlgError:
        raise _Fail("upper bound: the frame is singular") from None
    _need(bool(np.isfinite(R).all()), "upper bound: the frame is singular")
    whole, k = integers(R)
    m = len(free)
    E = matmul(_objects(rows, m, m), whole.astype(object))
    one = 1 << (top + k)
    for i in range(m):
        E[i, i] -= one
    delta = Fraction(max(int(v) for v in abs(E).sum(axis=0)), one)
    _need(delta < 1, "upper bound: the frame is too close to singular")
    size = Fraction(max(int(v) for v in abs(whole.astype(object)).sum(axis=0)), 1 << k)
    total = sum(r * Fraction(1 << problem.k, 1 << ai) for r, ai in zip(residuals, a))
    return size * total / (1 - delta)


def _l2_rule(problem: _Problem, extra: Mapping[str, Any], lam: list[int], bits: int) -> _Bounds:
    low, high, least, most, note = _kernel(problem, extra)
    plus, minus = _column([max(w, 0) for w in lam]), _column([max(-w, 0) for w in lam])
    down = (matmul(low, plus) - matmul(high, minus))[:, 0].tolist()  # low and high ends of K lam, times least .. most
    up = (matmul(high, plus) - matmul(low, minus))[:, 0].tolist()
    square = sum(w * (b if w > 0 else a) for w, a, b in zip(lam, down, up))  # an upper bound of lam' K lam
    norm2 = Fraction(max(square, 0)) / least / 4**bits

    def lower(bound: Fraction, inner: Fraction, proof: Mapping[str, Any]) -> str:
        _need(proof.get("type") == "dual", "lower bound: this kind needs proof.type = dual")
        _need(inner >= 0 and inner**2 >= bound**2 * norm2, "lower bound: y . b / sqrt(b' K b) is smaller")
        _need(norm2 > 0, "lower bound: b is zero")
        return f"is proved by the dual weights{note}"

    def upper(bound: Fraction, free: list[int], payload: Mapping[str, Any]) -> str:
        squares = Fraction(0)
        for i in free:
            target = Fraction(problem.y[i], 1 << problem.ky)
            ends = [Fraction(v, 1 << bits) / c for v in (down[i], up[i]) for c in (least, most)]
            squares += max(abs(target - v) for v in ends) ** 2
        cost = Fraction(0)
        if squares:
            smallest = _number(extra.get("smallest"), "upper bound: extra.smallest")
            _need(smallest > 0, "upper bound: extra.smallest is not positive")
            pick = np.ix_(free, free)
            width = max(int(v) for v in (high[pick] - low[pick]).sum(axis=1))
            S = low[pick].copy()
            for i in range(len(free)):
                S[i, i] -= math.ceil(smallest * most) + width
            _need(positive_semidefinite(S), "upper bound: extra.smallest is not shown to bound the eigenvalues")
            cost = _root_up(squares / smallest)
        _need(_root_up(norm2) + cost <= bound, "upper bound: the norm, residual included, is larger")
        return f"is the norm of sum_j b_j k(x_j, .), of which at most {_show(cost)} makes its values exact{note}"

    return lower, upper


def _root_up(value: Fraction, bits: int = 120) -> Fraction:
    """At least sqrt(value), close to it in relative terms."""
    if value == 0:
        return value
    shift = bits + max(0, value.denominator.bit_length() - value.numerator.bit_length())
    scaled = -((-value.numerator << (2 * shift)) // value.denominator)
    return Fraction(math.isqrt(scaled) + 1, 1 << shift)


# ---------------------------------------------------------------- proofs of the upper bound of f1
#
# Each takes integer weights c (c_i / total are the signed dual weights) and shows, for all ||v|| <= 1,
#     sum_i c_i phi(v . X_i) <= bound total 2^(degree k)        (X_i the integer grid).


def _ray(row: Sequence[int]) -> tuple[int, ...]:
    """The primitive integer vector in the direction of the row (zero for zero)."""
    g = math.gcd(*map(int, row))
    return tuple(int(v) // g for v in row) if g else tuple(0 for _ in row)


def _norm(problem: _Problem, c: list[int], total: int, bound: Fraction, side: Mapping[str, Any], name: str) -> str:
    lines: dict[tuple[int, ...], int] = {}
    for weight, row in zip(c, problem.grid.tolist()):
        if weight and any(row):
            u = _ray(row)
            g = math.gcd(*row)
            if next(v for v in u if v) < 0:
                u = tuple(-v for v in u)
            lines[u] = lines.get(u, 0) + weight * g
    mean = _squares(matmul(_column(c).T, problem.grid))[0]
    most = sqrt_up(mean) + sum(b * sqrt_up(sum(v * v for v in u)) for u, b in lines.items() if b > 0)
    limit = 2 * bound * total * 2 ** (problem.k + ROOT_BITS)
    _need(most <= limit, f"{name}: the norm bound is larger than upper")
    return f"{len(lines)} lines"


def _spectral(problem: _Problem, c: list[int], total: int, bound: Fraction, side: Mapping[str, Any], name: str) -> str:
    plus = [i for i, v in enumerate(c) if v > 0]
    minus = [i for i, v in enumerate(c) if v < 0]
    scale, ks = _vector(side.get("scale"), len(plus), f"{name}: scale")
    for j, v in enumerate(scale):
        _need(v > 0, f"{name}: scale entry {j} is not positive")
    w, kw = _vector(side.get("w"), len(minus), f"{name}: w")
    for j, v in enumerate(w):
        _need(abs(v) <= 1 << kw, f"{name}: w entry {j} is outside [-1, 1]")
    lam = _number(side.get("lam"), f"{name}: lam")
    _need(lam >= 0, f"{name}: lam is negative")
    coefficient = [0] * len(c)
    for i in plus:
        coefficient[i] = c[i] << kw
    for i, v in zip(minus, w):
        coefficient[i] = c[i] * ((1 << kw) - v)
    g2 = _squares(matmul(_column(coefficient).T, problem.grid))[0]  # 4^(k + kw) total^2 ||g||^2
    first = Fraction(sum(c[i] * s for i, s in zip(plus, scale)), total << (ks + 1))
    room = 2 * bound - first - lam
    _need(room >= 0 and g2 <= (room * total * 2 ** (problem.k + kw)) ** 2, f"{name}: the sum is larger than upper")
    # lam I - sum_i (c_i / (2 s_i)) x_i x_i' >= 0
    inner = [2 * lam * Fraction(s, 1 << ks) for s in scale]
    good = _gram_below(problem, [c[i] for i in plus], plus, total, inner)
    _need(good, f"{name}: lam is not shown to be an upper bound of the eigenvalues")
    return f"{len(plus)} scales"


def _gram_below(problem: _Problem, weights: list[int], index: list[int], total: int, limits: list[Fraction]) -> bool:
    """Whether sum_i (w_i / (total l_i)) x_i x_i' <= I, w_i > 0, l_i >= 0 (l_i = 0 needs x_i = 0).

    The same as diag(l_i total / w_i) - X X' >= 0, and after multiplication by w_i on both sides an integer matrix.
    """
    X = problem.grid[index]
    if any(l == 0 and any(row) for l, row in zip(limits, X.tolist())):
        return False
    keep = [j for j, l in enumerate(limits) if l > 0]
    X, weights, limits = X[keep], [weights[j] for j in keep], [limits[j] for j in keep]
    n, D = X.shape
    if n == 0:
        return True

    def small() -> bool:
        common = math.lcm(*(l.denominator for l in limits))
        w = _column(weights)
        S = -common * (w * w.T) * matmul(X, X.T)
        for j, l in enumerate(limits):
            S[j, j] += weights[j] * l.numerator * (common // l.denominator) * total << (2 * problem.k)
        return positive_semidefinite(S)

    if n <= D:
        return small()
    # total 4^k 2^bits I - sum_i ceil(2^bits w_i / l_i) X_i X_i'
    largest = max(Fraction(w) / l for w, l in zip(weights, limits))
    bits = max(0, 160 + largest.denominator.bit_length() - largest.numerator.bit_length())
    rounded = [-((-w * l.denominator << bits) // l.numerator) for w, l in zip(weights, limits)]
    S = -matmul(X.T, _column(rounded) * X.astype(object))
    for j in range(D):
        S[j, j] += total << (2 * problem.k + bits)
    return positive_semidefinite(S) or (n <= 12 and small())


def _pairing(problem: _Problem, weights: list[int], total: int, bound: Fraction, proof: Mapping[str, Any]) -> str:
    """relu(s) - relu(t) <= relu(s - t): points of the two classes in pairs p = (i, j), y_i = 1, y_j = -1, d = x_i - x_j.

    With T_p >= 0 and a_p > 0, T relu(t) <= T t / 2 + a t^2 + T^2 / (16 a). What q and the pairs differ by, rest_i, is at
    most |rest_i| |x_i|. So on the unit ball the objective of side +1 is at most

        sum_p T_p^2 / (16 a_p) + sum_i |rest_i| |x_i| + v' M v + g . v,   M = sum_p a_p d_p d_p',   g = sum_p T_p d_p / 2,

    and side -1 has -g instead of g, which is the same at -v. With e = bound - the first two sums - lam this is at most
    `bound` if and only if [[lam I - M, -g/2], [-g'/2, e]] is positive semidefinite (lam >= 0).
    """
    n, k, limit = len(weights), problem.k, 1 << 1100
    s = _integer(proof.get("shift"), "pairing: shift", 0, 1024)
    lam = _integer(proof.get("lam"), "pairing: lam", 0, limit)
    rest, h = [w << s for w in weights], [0] * n
    laplacian = np.zeros((n, n), dtype=object)  # M = X' laplacian X
    kappa = Fraction(0)
    pairs = _list(proof.get("pairs"), "pairing: pairs")
    for entry in pairs:
        i, j, T, a = _list(entry, "pairing: pairs", 4)
        i, j = (_integer(v, "pairing: pairs", 0, n - 1) for v in (i, j))
        T, a = _integer(T, "pairing: pairs", 0, limit), _integer(a, "pairing: pairs", 1, limit)
        _need(problem.y[i] > 0 > problem.y[j], "pairing: pairs are not of a point with label +1 and one with label -1")
        for at, sign in ((i, 1), (j, -1)):
            rest[at] -= T * total
            h[at] += sign * T
            laplacian[at, at] += a
        laplacian[i, j] -= a
        laplacian[j, i] -= a
        kappa += Fraction(T * T, a << (s + 4))
    lengths = [sqrt_up(square) for square in _squares(problem.grid)]  # 2^(ROOT_BITS + k) |x_i|, rounded up
    kappa += Fraction(sum(abs(r) * l for r, l in zip(rest, lengths)), total << (s + ROOT_BITS + k))
    grid = problem.grid
    S = np.zeros((problem.D + 1, problem.D + 1), dtype=object)
    S[:-1, :-1] = -matmul(grid.T, matmul(laplacian, grid))  # in units of 2^-(s + 2k)
    g = matmul(_column(h).T, grid)[0]  # 2 g in units of 2^-(s + k)
    for r in range(problem.D):
        S[r, r] += lam << (2 * k)
        S[r, -1] = S[-1, r] = -int(g[r]) << k  # four times the entry, and so the corner sixteen times
    S[-1, -1] = math.floor(16 * (bound - kappa - Fraction(lam, 1 << s)) * (1 << (s + 2 * k)))
    _need(positive_semidefinite(S), "pairing: the bound is larger than upper")
    return f"{len(pairs)} pairs"


def _eigen(problem: _Problem, c: list[int], total: int, bound: Fraction, side: Mapping[str, Any], name: str) -> str:
    lam = _number(side.get("lam"), f"{name}: lam")
    _need(0 <= lam <= bound, f"{name}: lam is negative or larger than upper")
    plus = [i for i, v in enumerate(c) if v > 0]
    good = _gram_below(problem, [c[i] for i in plus], plus, total, [lam] * len(plus))
    _need(good, f"{name}: lam is not shown to be an upper bound of the eigenvalues")
    return f"{len(plus)} points"


@dataclass(frozen=True)
class _Tree:
    points: list[int]
    roots: np.ndarray  # (r, D) integers
    shift: int
    states: np.ndarray  # (leaves, points) int8: 0 free, 1 active, -1 inactive
    leaves: Sequence[Any]


def _read_tree(
    problem: _Problem, c: list[int], weights: list[int], side: Mapping[str, Any], name: str, any_sign: bool
) -> _Tree:
    shift = _integer(side.get("shift"), f"{name}: shift", 0, 1024)
    points = [_integer(i, f"{name}: points", 0, len(c) - 1) for i in _list(side.get("points"), f"{name}: points")]
    _need(len(set(points)) == len(points), f"{name}: a point is listed twice")
    roots = _roots(problem, weights, side, name)
    tree = _list(side.get("tree"), f"{name}: tree")
    leaves = _list(side.get("leaves"), f"{name}: leaves")
    _need(len(tree) <= 2 * len(leaves), f"{name}: tree and leaves do not match")
    branch = [any_sign or c[i] > 0 for i in points]
    states = np.zeros((len(leaves), len(points)), dtype=np.int8)
    current = bytearray(len(points))  # 0 free, 1 active, 255 inactive
    path: list[int] = []  # branch points from the root; `current` tells which child we are in
    at, finished = 0, False
    for position, entry in enumerate(tree):
        _need(not finished, f"{name}: the tree goes on after its last leaf")
        _need(
            type(entry) is int and -1 <= entry < len(points), f"{name}: tree entry {position} is no point and no leaf"
        )
        if entry >= 0:
            _need(branch[entry], f"{name}: tree entry {position} branches on a point without positive weight")
            _need(current[entry] == 0, f"{name}: tree entry {position} branches twice on one point")
            current[entry] = 1
            path.append(entry)
            continue
        _need(at < len(leaves), f"{name}: more leaves in the tree than in leaves")
        states[at] = np.frombuffer(current, dtype=np.int8)
        at += 1
        while path and current[path[-1]] == 255:
            current[path.pop()] = 0
        if path:
            current[path[-1]] = 255
        else:
            finished = True
    _need(finished, f"{name}: the tree is not complete")
    _need(at == len(leaves), f"{name}: more leaves stored than the tree has")
    return _Tree(points, roots, shift, states, leaves)


def _roots(problem: _Problem, c: list[int], side: Mapping[str, Any], name: str) -> np.ndarray:
    roots = _list(side.get("roots", []), f"{name}: roots")
    if not roots:
        return np.zeros((0, problem.D), dtype=object)
    rows = [_list(r, f"{name}: root {j}", problem.D) for j, r in enumerate(roots)]
    for j, row in enumerate(rows):
        for v in row:
            _integer(v, f"{name}: root {j}", -(1 << 512), 1 << 512)
    rho, _ = _vector(side.get("rho"), problem.D, f"{name}: rho")
    weights: dict[tuple[int, ...], int] = {}
    for x, weight in zip(map(tuple, problem.grid.tolist()), c):
        weights[x] = weights.get(x, 0) + weight
    weights = {x: w for x, w in weights.items() if w and any(x)}
    for j, row in enumerate(rows):
        _need(sum(a * b for a, b in zip(rho, row)) > 0, f"{name}: root {j} is not on the side of rho")
        size = sum(v * v for v in row)
        for x, w in weights.items():
            twice = 2 * sum(a * b for a, b in zip(x, row))
            moved = [size * a - twice * b for a, b in zip(x, row)]
            image = tuple(v // size for v in moved)
            good = all(v == size * a for v, a in zip(moved, image)) and weights.get(image) == w
            _need(good, f"{name}: root {j} is not a symmetry of the weighted points")
    return _objects(rows, len(rows), problem.D)


def _leaf_block(rows: Sequence[Any], index: Sequence[int], width: int, name: str) -> np.ndarray:
    for j, row in zip(index, rows):
        _need(isinstance(row, list | tuple) and len(row) == width, f"{name}, leaf {j}: needs {width} multipliers")
        kinds = set(map(type, row))
        _need(kinds <= {int}, f"{name}, leaf {j}: a multiplier is not an integer")
        _need(width == 0 or min(row) >= 0, f"{name}, leaf {j}: a multiplier is negative")
        _need(width == 0 or max(row).bit_length() <= 1100, f"{name}, leaf {j}: a multiplier is too large")
    big = any(max(row) >> 62 for row in rows) if width else False
    return _objects(rows, len(rows), width) if big else np.array(rows, dtype=np.int64).reshape(len(rows), width)


def _fold_mirrors(problem: _Problem, c: list[int], side: Mapping[str, Any], name: str) -> tuple[list[int], np.ndarray]:
    """Fold each listed pair x_j = -x_i into one term, c_j relu(-t) = c_j relu(t) - c_j t: new c, and sum_j c_j x_j."""
    c, used = list(c), set[int]()
    linear = np.zeros(problem.D, dtype=object)
    for pair in _list(side.get("mirrors", []), f"{name}: mirrors"):
        i, j = (_integer(v, f"{name}: mirrors", 0, len(c) - 1) for v in _list(pair, f"{name}: mirrors", 2))
        _need(i != j and not {i, j} & used, f"{name}: mirrors name a point twice")
        _need(bool((problem.grid[i] == -problem.grid[j]).all()), f"{name}: points {i} and {j} are not opposite")
        used |= {i, j}
        linear = linear + c[j] * problem.grid[j].astype(object)
        c[i], c[j] = c[i] + c[j], 0
    return c, linear


def _quadratic_leaf(
    problem: _Problem,
    tree: _Tree,
    weight: list[int],
    linear: np.ndarray,
    total: int,
    bound: Fraction,
    index: int,
    name: str,
) -> bool:
    """c_i relu(t) <= a_i t^2 + b_i t + kappa_i for the t the leaf allows, so its objective is at most

        sum kappa_i + lam + max_{|v| <= 1} (v' M v + g . v - lam |v|^2),   M = sum a_i x_i x_i',   g = sum b_i x_i + linear.

    Two points whose signs s_i, s_j the leaf has fixed may add pi s_i s_j t_i t_j >= 0 with any pi >= 0 (`pairs`), that is
    pi s_i s_j (x_i x_j' + x_j x_i') / 2 to M. All this is at most `bound` if and only if
    [[lam I - M, -g/2], [-g'/2, bound - sum kappa_i - lam]] is positive semidefinite (lam >= 0).
    Any a, b, lam >= 0 may be given: kappa_i is worked out here.
    """
    leaf, P, s, k = tree.leaves[index], len(tree.points), tree.shift, problem.k
    a, b = (_list(leaf.get(key), f"{name}: {key}", P + extra) for key, extra in (("a", 0), ("b", len(tree.roots))))
    limit = 1 << 1100
    a = [_integer(v, f"{name}: a", -limit, limit) for v in a]
    b = [_integer(v, f"{name}: b", -limit, limit) for v in b]
    lam = _integer(leaf.get("lam"), f"{name}: lam", 0, limit)
    _need(all(v >= 0 for v in b[P:]), f"{name}: a root has a negative multiplier")
    grid = problem.grid[tree.points].astype(object)
    kappa = Fraction(0)
    for i, square in enumerate(_squares(grid)):
        state, c = int(tree.states[index, i]), weight[i]
        length = Fraction(sqrt_up(square), 1 << (ROOT_BITS + k))  # |x_i| rounded up
        curve = Fraction(-a[i] * square, 1 << (s + 2 * k))  # -a_i |x_i|^2
        worst = Fraction(0)
        # t >= 0 with slope c - b_i, then t <= 0 with slope b_i in -t
        for allowed, slope in (
            (state >= 0, Fraction(c, total) - Fraction(b[i], 1 << s)),
            (state <= 0, Fraction(b[i], 1 << s)),
        ):
            if not allowed:
                continue
            if a[i] > 0:
                value = slope * slope / (4 * Fraction(a[i], 1 << s)) if slope > 0 else Fraction(0)
            else:
                value = slope * length + curve
            worst = max(worst, value)
        kappa += worst
    twice = 2 * matmul((_column(a) * grid).T, grid)  # 2 M in units of 2^-(s + 2k)
    for entry in _list(leaf.get("pairs", []), f"{name}: pairs"):
        i, j, pi = _list(entry, f"{name}: pairs", 3)
        i, j = (_integer(v, f"{name}: pairs", 0, P - 1) for v in (i, j))
        pi = _integer(pi, f"{name}: pairs", 0, limit)
        signs = int(tree.states[index, i]) * int(tree.states[index, j])
        _need(i != j and signs != 0, f"{name}: pairs name a point whose sign is not fixed")
        outer = np.outer(grid[i], grid[j])
        twice = twice + signs * pi * (outer + outer.T)
    rows = np.vstack([grid, tree.roots << k]) if len(tree.roots) else grid
    g = total * matmul(_column(b).T, rows)[0] + (linear << s)  # in units of 1 / (total 2^(s + k))
    corner = 2 * (bound - kappa - Fraction(lam, 1 << s)) * total * total * (1 << (s + 2 * k))
    S = np.zeros((problem.D + 1, problem.D + 1), dtype=object)
    S[:-1, :-1] = -twice
    for j in range(problem.D):
        S[j, j] += lam << (2 * k + 1)
        S[j, -1] = S[-1, j] = -int(g[j]) << k
    S[-1, -1] = math.floor(corner)
    return positive_semidefinite(S)


def _relu_tree(problem: _Problem, c: list[int], total: int, bound: Fraction, side: Mapping[str, Any], name: str) -> str:
    weights = c
    c, linear = _fold_mirrors(problem, weights, side, name)
    tree = _read_tree(problem, c, weights, side, name, any_sign=False)
    listed = set(tree.points)
    for i, v in enumerate(c):
        _need(v <= 0 or i in listed, f"{name}: point {i} has positive weight and is not among points")
    P, k = len(tree.points), problem.k
    grid = problem.grid[tree.points].astype(object)
    weight = [c[i] for i in tree.points]
    positive = np.array([v > 0 for v in weight], dtype=bool)
    weighted = _column(weight) * grid  # (P, D)
    spanning = np.vstack([grid, tree.roots << k]) if len(tree.roots) else grid  # (P + roots, D)
    sizes = _column([w * sqrt_up(s) if w > 0 else 0 for w, s in zip(weight, _squares(grid))])
    top = max(UNIT, tree.shift)
    # In units of 1 / (total 2^(k + top)), `extra` further bits where the square roots and upper need them:
    numerator, ku = bound.numerator, bound.denominator.bit_length() - 1
    extra = ku + ROOT_BITS + 1
    ceiling = numerator * total << (k + top + ROOT_BITS + 1)
    curved = [j for j, leaf in enumerate(tree.leaves) if isinstance(leaf, Mapping)]
    for j in curved:
        room = _quadratic_leaf(problem, tree, weight, linear, total, bound, j, f"{name}, leaf {j}")
        _need(room, f"{name}, leaf {j}: its bound is larger than upper")
    straight = [j for j, leaf in enumerate(tree.leaves) if not isinstance(leaf, Mapping)]
    for begin in range(0, len(straight), LEAF_BLOCK):
        index = straight[begin : begin + LEAF_BLOCK]
        K = _leaf_block([tree.leaves[j] for j in index], index, P + len(tree.roots), name)
        state = tree.states[index]
        free = (state == 0) & positive
        for what, bad in (
            ("a free point has a multiplier", free & (K[:, :P] != 0)),
            ("a multiplier of a negative weight exceeds 2^32", ~positive & (K[:, :P] > 1 << UNIT)),
        ):
            if bad.any():
                raise _Fail(f"{name}, leaf {index[int(np.argwhere(bad)[0][0])]}: {what}")
        share = np.where(
            positive, (1 << (UNIT - 1)) * (state + 1).astype(np.int64), 0
        )  # active 2^UNIT, free half of it, else 0
        share = np.where(positive, share, K[:, :P])
        signs = np.hstack([np.where(positive, state, 0), np.ones((len(K), len(tree.roots)), dtype=np.int8)])
        R = matmul(share.astype(np.int64), weighted) << (top - UNIT)
        R = R + (matmul(signs * K, spanning) * (total << (top - tree.shift))) + (linear << top)
        squares = (R * R).sum(axis=1) if problem.D else np.zeros(len(K), dtype=object)
        constants = matmul(free.astype(np.int64), sizes)[:, 0]  # 2^(ROOT_BITS + 1) total 2^k const
        for j, (square, constant) in enumerate(zip(squares.tolist(), constants.tolist())):
            room = ceiling - (constant << (top + ku))
            if room < 0 or square << (2 * extra) > room * room:
                raise _Fail(f"{name}, leaf {index[j]}: its bound is larger than upper")
    return f"{len(tree.leaves)} leaves"


def _eigen_tree(
    problem: _Problem, c: list[int], total: int, bound: Fraction, side: Mapping[str, Any], name: str
) -> str:
    tree = _read_tree(problem, c, c, side, name, any_sign=True)
    _need(len(tree.roots) == 0, f"{name}: roots are not part of this proof")
    D = problem.D
    upper_part = np.triu_indices(D)
    grid = problem.grid.astype(object)
    squares = _column(c) * (grid[:, upper_part[0]] * grid[:, upper_part[1]])  # c_i x_i x_i', (n, D (D + 1) / 2)
    rest = np.array([v > 0 for v in c], dtype=np.int64)  # free: only positive weights count
    ku = bound.denominator.bit_length() - 1
    # In units of 1 / (total 4^k 2^(shift + ku + 1)):
    ceiling = bound.numerator * total << (2 * problem.k + tree.shift + 1)
    seen: dict[tuple[int, int], np.ndarray] = {}

    def pair(p: int, q: int) -> np.ndarray:
        key = (min(p, q), max(p, q))
        if key not in seen:
            a, b = grid[tree.points[p]], grid[tree.points[q]]
            seen[key] = a[upper_part[0]] * b[upper_part[1]] + b[upper_part[0]] * a[upper_part[1]]
        return seen[key]

    for start in range(0, len(tree.leaves), LEAF_BLOCK):
        state = tree.states[start : start + LEAF_BLOCK]
        use = np.tile(rest, (len(state), 1))
        use[:, tree.points] = np.where(state == 0, use[:, tree.points], state == 1)
        M = matmul(use, squares) << (tree.shift + 1)
        for j in range(len(state)):
            leaf = f"{name}, leaf {start + j}"
            entries = M[j]
            for triple in _list(tree.leaves[start + j], leaf):
                p, q, size = _list(triple, f"{leaf}: triple", 3)
                for index in (p, q):
                    _integer(index, f"{leaf}: triple", 0, len(tree.points) - 1)
                _integer(size, f"{leaf}: multiplier", 0, 1 << 1100)
                sign = int(state[j, p]) * int(state[j, q])
                _need(sign != 0, f"{leaf}: a triple uses a free point")
                entries = entries + pair(p, q) * (sign * size * total)
            S = np.zeros((D, D), dtype=object)
            S[upper_part] = -(entries << ku)
            S.T[upper_part] = S[upper_part]
            for a in range(D):
                S[a, a] += ceiling
            _need(positive_semidefinite(S), f"{leaf}: its bound is not shown to be at most upper")
    return f"{len(tree.leaves)} leaves"


def _enumeration(
    problem: _Problem, c: list[int], total: int, bound: Fraction, side: Mapping[str, Any], name: str
) -> str:
    _need(problem.D <= 2, f"{name}: needs at most two dimensions")
    rows = [(row[0], row[1] if problem.D == 2 else 0) for row in problem.grid.tolist()]
    items = [(w, x) for w, x in zip(c, rows) if w and any(x)]
    at: dict[tuple[int, ...], list[tuple[int, tuple[int, int]]]] = {
        d: [] for d in ((1, 0), (0, 1), (-1, 0), (0, -1))
    }  # directions in which a point becomes zero, and the axes, so that every arc is shorter than half a turn
    for w, x in items:
        e, f = _ray(x)
        at.setdefault((-f, e), []).append((w, x))
        at.setdefault((f, -e), []).append((w, x))

    def half(d: tuple[int, ...]) -> int:
        return 0 if d[1] > 0 or (d[1] == 0 and d[0] > 0) else 1

    def order(a: tuple[int, ...], b: tuple[int, ...]) -> int:
        if half(a) != half(b):
            return half(a) - half(b)
        cross = a[0] * b[1] - a[1] * b[0]
        return -1 if cross > 0 else int(cross < 0)

    directions = sorted(at, key=cmp_to_key(order))
    limit = bound * total * 2 ** (problem.degree * problem.k)
    scale, top = limit.denominator, limit.numerator  # sum <= top / scale
    first, second = directions[0], directions[1]
    middle = (first[0] + second[0], first[1] + second[1])
    sums = [0, 0, 0]  # degree 1: the gradient; degree 2: the matrix (xx, xy, yy)

    def toggle(w: int, x: tuple[int, int]) -> None:
        if problem.degree == 1:
            sums[0] += w * x[0]
            sums[1] += w * x[1]
        else:
            sums[0] += w * x[0] * x[0]
            sums[1] += w * x[0] * x[1]
            sums[2] += w * x[1] * x[1]

    for w, x in items:
        if x[0] * middle[0] + x[1] * middle[1] > 0:
            toggle(w, x)
    for j, a in enumerate(directions):
        b = directions[(j + 1) % len(directions)]
        if j:  # crossing a: the points orthogonal to it change sides
            for w, x in at[a]:
                entering = x[0] * b[0] + x[1] * b[1] > 0
                toggle(w if entering else -w, x)
        if problem.degree == 1:
            g0, g1 = sums[0], sums[1]
            value = g0 * a[0] + g1 * a[1]
            good = value <= 0 or (value * scale) ** 2 <= top * top * (a[0] ** 2 + a[1] ** 2)
            inside = a[0] * g1 - a[1] * g0 >= 0 and g0 * b[1] - g1 * b[0] >= 0
            good = good and (not inside or (g0 * g0 + g1 * g1) * scale * scale <= top * top)
        else:
            xx, xy, yy = (v * scale for v in sums)

            def form(p: tuple[int, ...], q: tuple[int, ...], m: tuple[int, int, int] = (xx, xy, yy)) -> int:
                quadratic = m[0] * p[0] * q[0] + m[1] * (p[0] * q[1] + p[1] * q[0]) + m[2] * p[1] * q[1]
                return top * (p[0] * q[0] + p[1] * q[1]) - quadratic

            aa, ab, bb = form(a, a), form(a, b), form(b, b)
            good = aa >= 0 and bb >= 0 and (ab >= 0 or ab * ab <= aa * bb)
        _need(good, f"{name}: the maximum is larger than upper")
    return f"{len(directions)} arcs"


_Proof = Callable[[_Problem, list[int], int, Fraction, Mapping[str, Any], str], str]
_PROOFS: dict[int, dict[str, _Proof]] = {
    1: {"norm": _norm, "spectral": _spectral, "tree": _relu_tree, "enumeration": _enumeration},
    2: {"eigen": _eigen, "eigen-tree": _eigen_tree, "enumeration": _enumeration},
}


# ---------------------------------------------------------------- proofs of the upper bound of f1-multiclass
#
# Each takes integer vectors g (n, K) and shows |F(u)| <= bound total 2^k |u| for all u, where
# F(u) = sum_i g_i relu(u . X_i), X_i the integer grid.

LAMBDA = 64  # multipliers of cones are integers over this
W_BITS = 8  # vertices of covers are integers over 2^W_BITS


def _copositive(C: np.ndarray) -> bool:
    """Whether a' C a >= 0 for all a >= 0. True is proved: C, or C less its positive entries off the diagonal, is
    positive semidefinite."""
    if positive_semidefinite(C):
        return True
    C = C.copy()
    for k, l in np.ndindex(*C.shape):
        if k != l and C[k, l] > 0:
            C[k, l] = 0
    return positive_semidefinite(C)


def _cells(entries: Sequence[Any], roots: list[list[tuple[int, ...]]], name: str) -> list[list[tuple[int, ...]]]:
    """The leaves of a forest of splits in preorder: -1, or [k, l, s] for a new vertex 2^s v_k + v_l (v_k + 2^-s v_l)."""
    leaves, stack, entries = [], roots[::-1], list(entries)[::-1]
    while stack:
        cone = stack.pop()
        _need(bool(entries), f"{name}: the tree ends too early")
        entry = entries.pop()
        if entry == -1:
            leaves.append(cone)
            continue
        k, l, s = _list(entry, f"{name}: a split", 3)
        k, l = (_integer(v, f"{name}: a split", 0, len(cone) - 1) for v in (k, l))
        s = _integer(s, f"{name}: a split", -1000, 1000)
        _need(k != l, f"{name}: a split of one vertex")
        a, b = 1 << max(s, 0), 1 << max(-s, 0)
        middle = tuple(a * v + b * w for v, w in zip(cone[k], cone[l]))
        stack.append([*cone[:k], middle, *cone[k + 1 :]])
        stack.append([*cone[:l], middle, *cone[l + 1 :]])
    _need(not entries, f"{name}: the tree has too many entries")
    return leaves


def _vector_norm(problem: _Problem, g: np.ndarray, total: int, bound: Fraction, proof: Mapping[str, Any]) -> str:
    """relu(t) = (t + |t|) / 2, and points on one line through 0 share |u . x| / |x|."""
    lines: dict[tuple[int, ...], np.ndarray] = {}
    for vector, row in zip(g, problem.grid.tolist()):
        if any(row):
            u = _ray(row)
            if next(v for v in u if v) < 0:
                u = tuple(-v for v in u)
            lines[u] = lines.get(u, 0 * vector) + vector * math.gcd(*row)
    most = sqrt_up(sum(_squares(matmul(g.T, problem.grid))))
    most += sum(sqrt_up(int((v * v).sum()) * sum(x * x for x in u)) for u, v in lines.items())
    _need(most <= 2 * bound * total * 2 ** (problem.k + ROOT_BITS), "norm: the bound is larger than upper")
    return ""


def _vector_enumeration(problem: _Problem, g: np.ndarray, total: int, bound: Fraction, proof: Mapping[str, Any]) -> str:
    """Between neighbouring directions a, b orthogonal to points F is linear: F(s a + t b) = s F(a) + t F(b), s, t >= 0."""
    _need(problem.D <= 2, "enumeration: needs at most two dimensions")
    rows = [(row[0], row[1] if problem.D == 2 else 0) for row in problem.grid.tolist()]
    items = [(v, x) for v, x in zip(g.tolist(), rows) if any(v) and any(x)]
    ends = {(1, 0), (0, 1), (-1, 0), (0, -1)}
    for _, x in items:
        e, f = _ray(x)
        ends |= {(-f, e), (f, -e)}

    def order(a: tuple[int, int], b: tuple[int, int]) -> int:
        half = [0 if d[1] > 0 or (d[1] == 0 and d[0] > 0) else 1 for d in (a, b)]
        cross = a[0] * b[1] - a[1] * b[0]
        return half[0] - half[1] or (-1 if cross > 0 else int(cross < 0))

    directions = sorted(ends, key=cmp_to_key(order))
    limit = (bound * total * 2**problem.k) ** 2
    X = _objects([x for _, x in items], len(items), 2)
    G = _objects([v for v, _ in items], len(items), g.shape[1])
    H = matmul(_objects(directions, len(directions), 2), X.T)
    F = matmul(np.where(H > 0, H, 0), G).tolist()
    for j, a in enumerate(directions):
        b, Fa, Fb = directions[(j + 1) % len(directions)], F[j], F[(j + 1) % len(directions)]
        aa, ab, bb = (
            limit * (p[0] * q[0] + p[1] * q[1]) - sum(v * w for v, w in zip(P, Q))
            for p, P, q, Q in ((a, Fa, a, Fa), (a, Fa, b, Fb), (b, Fb, b, Fb))
        )
        _need(aa >= 0 and bb >= 0 and (ab >= 0 or ab * ab <= aa * bb), "enumeration: the maximum is larger than upper")
    return f"{len(directions)} arcs"


def _vector_cones(problem: _Problem, g: np.ndarray, total: int, bound: Fraction, proof: Mapping[str, Any]) -> str:
    D, K = problem.D, g.shape[1]
    _need(D <= 12, "cones: needs few dimensions")
    roots = [
        [tuple(sign * (j == k) for j in range(D)) for k, sign in enumerate(signs)]
        for signs in itertools.product((1, -1), repeat=D)
    ]
    cones = _cells(_list(proof.get("tree"), "cones: tree"), roots, "cones")
    leaves = _list(proof.get("leaves"), "cones: leaves", len(cones))
    used = [i for i in range(len(g)) if g[i].any()]
    place = {i: j for j, i in enumerate(used)}
    X, G = problem.grid[used].astype(object), g[used]
    GG = _squares(G)
    numerator, denominator = bound.numerator * total << problem.k, bound.denominator
    seen: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = {}

    def at(v: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """u . x_i (n,) and F(u) (K,) at u = v."""
        if v not in seen:
            t = (X * np.array(v, dtype=object)).sum(axis=1)
            seen[v] = t, (np.where(t > 0, t, 0)[:, None] * G).sum(axis=0)
        return seen[v]

    for j, (cone, leaf) in enumerate(zip(cones, leaves)):
        name = f"cones, leaf {j}"
        found = [at(v) for v in cone]
        tau = _objects([t.tolist() for t, _ in found], D, len(used))
        F = _objects([f.tolist() for _, f in found], D, K)
        w = F.sum(axis=0)
        if not w.any():
            w[:2] = 1, -1
        ww = int((w * w).sum())
        s, along = (G * w).sum(axis=1), (F * w).sum(axis=1)
        free = [i for i in range(len(used)) if (tau[:, i] > 0).any() and (tau[:, i] < 0).any()]
        lam = [LAMBDA // 2] * len(used)
        for entry in _list(leaf, name):
            i, value = _list(entry, name, 2)
            _need(type(i) is int and i in place, f"{name}: no such point")
            lam[place[i]] = _integer(value, f"{name}: multiplier", 0, LAMBDA)
        # in units of 2^-(ROOT_BITS): A bounds |w . F|, e the free points across w, p |F(v_k)| across w
        alpha, beta, e = along * LAMBDA, -along, np.zeros(D, dtype=object)
        for i in free:
            plus, minus = np.where(tau[:, i] > 0, tau[:, i], 0), np.where(tau[:, i] < 0, -tau[:, i], 0)
            rest = plus if plus.sum() <= minus.sum() else minus
            if s[i] < 0:
                alpha = alpha - s[i] * (lam[i] * plus + (LAMBDA - lam[i]) * minus)
            else:
                beta = beta + s[i] * rest
            e = e + sqrt_up(ww * GG[i] - int(s[i]) ** 2) * rest
        A = np.maximum(alpha, beta * LAMBDA)
        FF = matmul(F, F.T)
        p = np.array([sqrt_up(ww * int(FF[k, k]) - int(along[k]) ** 2) for k in range(D)], dtype=object)
        one, unit = 1 << (2 * ROOT_BITS), LAMBDA * LAMBDA
        V = _objects(cone, D, D)
        cross = np.outer(p, e) + np.outer(e, p) + np.outer(e, e)
        B = one * (np.outer(A, A) + unit * (ww * FF - np.outer(along, along))) + unit * cross
        C = (one * unit * ww * numerator**2) * matmul(V, V.T) - denominator**2 * B
        _need(_copositive(C), f"{name}: its bound is larger than upper")
    return f"{len(cones)} cones"


def _vector_cover(problem: _Problem, g: np.ndarray, total: int, bound: Fraction, proof: Mapping[str, Any]) -> str:
    K = g.shape[1]
    basis = []
    for row in _list(proof.get("basis"), "cover: basis", K - 1):
        basis.append([_integer(v, "cover: basis", -(1 << 30), 1 << 30) for v in _list(row, "cover: basis", K)])
        _need(sum(basis[-1]) == 0, "cover: a vector of the basis does not sum to zero")
    _need(_independent(basis), "cover: the basis is not linearly independent")
    roots = [
        [tuple(sign * v for v in row) for row, sign in zip(basis, signs)]
        for signs in itertools.product((1, -1), repeat=K - 1)
    ]
    cones = _cells(_list(proof.get("tree"), "cover: tree"), roots, "cover")
    known: dict[tuple[int, ...], Fraction] = {}
    for j, item in enumerate(_list(proof.get("vertices"), "cover: vertices")):
        name = f"cover, vertex {j}"
        _need(isinstance(item, Mapping) and isinstance(item.get("side"), Mapping), f"{name}: not an object")
        w = [_integer(v, name, -(1 << 60), 1 << 60) for v in _list(item.get("w"), name, K)]
        most = _number(item.get("maximum"), f"{name}: maximum")
        _need(most >= 0, f"{name}: maximum is negative")
        c = [int(v) for v in matmul(g, _column(w))[:, 0]]
        _relu_tree(problem, c, total << W_BITS, most, item["side"], name)
        known[tuple(w)] = most
    for j, cone in enumerate(cones):
        name = f"cover, cone {j}"
        _need(all(w in known for w in cone), f"{name}: a vertex has no proof")
        b = [known[w] for w in cone]
        bits = max(v.denominator for v in [*b, bound])
        column = _column([int(v * bits) << W_BITS for v in b])
        W, top = _objects(cone, K - 1, K), int(bound * bits)
        C = top * top * matmul(W, W.T) - column @ column.T
        _need(_copositive(C), f"{name}: its bound is larger than upper")
    return f"{len(cones)} cones, {len(known)} scalar proofs"


def _independent(rows: list[list[int]]) -> bool:
    """Whether integer vectors are linearly independent, by exact elimination."""
    left = [[Fraction(v) for v in row] for row in rows]
    while left:
        row = left.pop()
        lead = next((j for j, v in enumerate(row) if v), None)
        if lead is None:
            return False
        left = [[v - other[lead] / row[lead] * r for v, r in zip(other, row)] for other in left]
    return True


_VectorProof = Callable[[_Problem, np.ndarray, int, Fraction, Mapping[str, Any]], str]
_VECTOR_PROOFS: dict[str, _VectorProof] = {
    "norm": _vector_norm,
    "enumeration": _vector_enumeration,
    "cones": _vector_cones,
    "cover": _vector_cover,
}


# ---------------------------------------------------------------- the relu kernel, enclosed

PRECISION = 160  # fixed point: numbers are integers over 2^PRECISION
SLACK = 1 << 13  # more than the error of `_atan` and `_pi` in units of 2^-PRECISION, see there


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
def _pi() -> tuple[int, int]:
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


def relu_kernel(grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Enclosures of 2^P |x| |x'| (sin t + (pi - t) cos t) for all pairs of integer rows.

    |x| |x'| sin t = sqrt(|x|^2 |x'|^2 - (x.x')^2) is the root of an exact integer, so parallel points give exactly 0;
    (pi - t) x.x' needs t = atan2(that root, x.x').
    """
    gram = matmul(grid, grid.T).tolist()
    n = len(gram)
    low, high = np.zeros((n, n), dtype=object), np.zeros((n, n), dtype=object)
    for i in range(n):
        for j in range(i, n):
            low[i, j], high[i, j] = _kernel_entry(gram[i][i], gram[j][j], gram[i][j])
            low[j, i], high[j, i] = low[i, j], high[i, j]
    return low, high


def ntk_kernel(grid: np.ndarray, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Enclosures of 2^P 2 pi D times the NTK kernel for all pairs of integer rows.

    outer: |x| |x'| (sin t + (pi - t) cos t); inner: D (pi - t) x.x'; total: their sum.
    """
    D, outer = grid.shape[1], relu_kernel(grid)
    if part == "outer":
        return outer
    gram = matmul(grid, grid.T).tolist()
    areas = [[gram[i][i] * gram[j][j] - xy * xy for j, xy in enumerate(row)] for i, row in enumerate(gram)]
    least = _objects([[math.isqrt(area << (2 * PRECISION)) for area in row] for row in areas], len(gram), len(gram))
    most = _objects([[r + (area > 0) for r, area in zip(*rows)] for rows in zip(least.tolist(), areas)], *least.shape)
    inner = D * (outer[0] - most), D * (outer[1] - least)
    return inner if part == "inner" else (outer[0] + inner[0], outer[1] + inner[1])


def ntk_radial(D: int, bins: int, part: str) -> np.ndarray:
    """Rows S, C, P, R of docs/certificates.md for the NTK margin, by Gauss-Legendre sums over rho < 2 and the angle."""
    nodes, weights = np.polynomial.legendre.leggauss(40)
    cells = 16  # of rho and, for one bin, of the angle; 40 nodes in each
    rho = ((np.arange(cells)[:, None] + (nodes + 1) / 2) * (2 / cells)).ravel()
    rho_weights = np.tile(weights, cells) / cells
    log_constant = math.log(4) - math.log(2 * math.pi) / 2 + D / 2 * math.log(D / 2) - math.lgamma(D / 2)
    pieces = bins if part == "total" else cells
    rows = np.zeros((5, pieces))  # of rho, with the factors 1, sin, cos, sin^2, cos^2
    for k in range(pieces):
        t = (k + (nodes + 1) / 2) * math.pi / (2 * pieces)
        sin, cos = np.sin(t), np.cos(t)
        exponent = (D + 1) * np.log(rho)[:, None] + (D - 1) * np.log(sin) + log_constant
        density = np.exp(exponent - np.outer(rho**2 / 2, cos**2 + D * sin**2))  # times rho
        mass = (rho_weights @ density) * weights * math.pi / (4 * pieces)
        rows[:, k] = [mass @ factor for factor in (np.ones_like(t), sin, cos, sin**2, cos**2)]
    E, S, C, S2, C2 = rows
    if part != "total":
        one = np.array([[S.sum()], [0.0]] if part == "outer" else [[0.0], [C.sum()]])
        return np.vstack([one, one])
    return np.array([S, C, np.sqrt(E * S2), np.sqrt(E * C2)])


def _kernel_entry(xx: int, yy: int, xy: int) -> tuple[int, int]:
    P = PRECISION
    pi_low, pi_high = _pi()
    area = xx * yy - xy * xy
    if area == 0:  # parallel: t = 0 or pi, or a zero point
        return (xy * pi_low, xy * pi_high) if xy > 0 else (0, 0)
    root = math.isqrt(area << (2 * P))  # root <= 2^P sqrt(area) <= root + 1
    if xy == 0:
        return root, root + 1
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
    if xy > 0:
        return root + xy * (pi_low - b), root + 1 + xy * (pi_high - a)
    return max(0, root + xy * b), root + 1 + xy * a
