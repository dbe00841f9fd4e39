"""Margins of batch-normalised networks: kind bn."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from .exact import ROOT_BITS, column, integers, matmul, objects, sqrt_up, squares
from .reading import (
    BLOCK,
    LARGEST,
    PAIRS,
    Problem,
    Rules,
    integer,
    listed,
    need,
    number,
    only_dual,
    ratios,
    rows_of,
    vector,
)

GRID = 192  # batch-normalised preactivations are enclosed in integers over 2^GRID
NEURONS = 256  # neurons at a time, fewer where there are many points


def _bn_weights(problem: Problem, extra: Mapping[str, Any]) -> tuple[np.ndarray, Callable[[int, int], np.ndarray]]:
    """a (m,), and a function that gives the rows start..stop of V (to be asked for in order); drawn, or as stored."""
    m = integer(extra.get("width"), "format: extra.width", 1, 10**6)
    stored = extra.get("directions")
    if stored is None:
        seed, trial = (integer(extra.get(name), f"format: extra.{name}", 0, 1 << 64) for name in ("seed", "trial"))
        rng = np.random.default_rng([seed, trial])
        a = rng.standard_normal(m) / np.sqrt(m)
        return a, lambda start, stop: rng.standard_normal((stop - start, problem.D)) / np.sqrt(problem.D)
    V = [
        _doubles(row, problem.D, f"format: extra.directions, row {j}")
        for j, row in enumerate(listed(stored, "format: extra.directions", m))
    ]
    return _doubles(extra.get("a"), m, "format: extra.a"), lambda start, stop: np.array(V[start:stop])


def _doubles(values: Any, length: int, what: str) -> np.ndarray:
    """Numbers as float64, of which the hash of the weights is made; none may need rounding."""
    row = listed(values, what, length)
    for v, (a, b) in zip(row, ratios(row, what)):
        need(abs(v) <= LARGEST and Fraction(float(v)) == Fraction(a, 1 << b), f"{what}: a number is not a double")
    return np.array(row, dtype=np.float64)


def _bn_slope(B: np.ndarray, y: list[int], q: list[int]) -> int:
    """Twice a Lipschitz constant of v -> sum_i c_i relu(v . b_i), c_i = q_i y_i, over 2^ROOT_BITS, rounded up: the smaller of

        2 sum_i |c_i| |b_i|   and   |sum_i c_i b_i| + ((sum_i |c_i|)^2 sum_ik |c_i| |c_k| (b_i . b_k)^2)^(1/4),

    where the weights of equal points are added first, and of many points only the first is looked at.
    """
    weights: dict[tuple[int, ...], int] = {}
    for row, s, w in zip(map(tuple, B.tolist()), y, q):
        weights[row] = weights.get(row, 0) + s * w
    c = [w for w in weights.values() if w]
    if not c:
        return 0
    B = objects([row for row, w in weights.items() if w], len(c), B.shape[1])
    size = [abs(w) for w in c]
    plain = 2 * sum(w * sqrt_up(s) for w, s in zip(size, squares(B)))
    if len(c) > PAIRS:
        return plain
    mean = sqrt_up(squares(matmul(column(c).T, B))[0])
    fourth, each = 0, column(size)
    step = max(1, BLOCK // len(B))
    for start in range(0, len(B), step):
        G = matmul(B[start : start + step], B.T)
        fourth += int(matmul(matmul(each[start : start + step].T, G * G), each)[0, 0])
    fourth = fourth * sum(size) ** 2 << (4 * ROOT_BITS)
    root = math.isqrt(math.isqrt(fourth))
    return min(plain, mean + root + (root**4 != fourth))


def bn(problem: Problem, payload: Mapping[str, Any]) -> Rules:
    """With t_ij = <v_j, xbar_i> / N(v_j) and z_ij = y_i relu(t_ij) (part a) or y_i a_j relu(t_ij) (part c):

        lower_p <= min_i (z u)_i / (sqrt(m) |u|),      |z' q| / (sqrt(m) sum q) + Delta A L <= upper_p,

    L a Lipschitz constant (`_bn_slope`), A = 1 or max_j |a_j|; lower <= the sum of lower_p, upper >= the sum of
    upper_p. t_ij is enclosed between integers over 2^GRID; the ends are chosen by the signs of u; |z' q|^2 is a sum
    of exact squares over N^2, each rounded up.
    """
    extra, n, y = payload["extra"], len(problem.y), problem.y
    need(not payload["bias"] and problem.is_relu, "format: kind bn has no bias and activation relu")
    part = extra.get("part")
    need(part in ("a", "c", "sum"), "format: extra.part is neither a, c nor sum")
    names = ("a", "c") if part == "sum" else (str(part),)
    eps, delta = (number(extra.get(name), f"format: extra.{name}") for name in ("eps", "displacement"))
    need(eps >= 0 and delta >= 0, "format: extra.eps and extra.displacement must not be negative")
    a, rows = _bn_weights(problem, extra)
    m = len(a)
    outer, ka = integers(a)
    factors = {"a": [1] * m, "c": [int(v) for v in outer.tolist()]}  # of the features, over 2^bits
    factor_bits = {"a": 0, "c": ka}
    bounds: dict[str, tuple[Fraction, Fraction]] = {}
    u, q = {}, {}
    for name in names:
        both = extra.get(f"gamma_{name}")
        need(isinstance(both, Mapping), f"format: extra.gamma_{name} is not an object")
        bounds[name] = (number(both.get("lower"), f"gamma_{name}"), number(both.get("upper"), f"gamma_{name}"))
        u[name] = vector(extra.get(f"weights_{name}"), m, f"lower bound: extra.weights_{name}")[0]
        dual = payload.get("dual") if name == names[0] else extra.get(f"dual_{name}")
        q[name] = vector(dual, n, f"dual of gamma_{name}")[0]
        need(min(q[name]) >= 0 and sum(q[name]) > 0, f"dual of gamma_{name}: negative or zero")
    move, km = np.zeros((0, problem.D), dtype=object), 0
    if extra.get("move") is not None:
        need(extra["move"] != "omitted", "lower bound: the moved weights are not stored in this certificate")
        move, km = rows_of(extra["move"], problem.D, "lower bound: extra.move", m)
        need(sum(squares(move)) <= m * delta**2 * 4**km, "lower bound: the weights moved by more than displacement")

    grid = problem.grid.astype(object)
    B = n * grid - grid.sum(axis=0)  # n 2^k xbar
    state = hashlib.sha256(a.astype("<f8").tobytes())
    reached = {name: [(0, 0)] * n for name in names}  # enclosures of sum_j u_j z_ij, over 2^(fine + factor bits)
    most = dict.fromkeys(names, 0)  # at least ||z' q||^2, over 2^(2 fine + 2 factor bits)
    e, ke = eps.numerator, eps.denominator.bit_length() - 1
    # Beside a large eps all preactivations are small: the grid is as much finer.
    top = max(1, max(abs(int(v)) for v in B.ravel().tolist()))
    bits_of_eps = (e * n**2 << (2 * problem.k)).bit_length() - ke
    fine = GRID + max(0, (bits_of_eps - (top * top).bit_length()) // 2)
    step = max(1, min(NEURONS, BLOCK // n))
    for start in range(0, m, step):
        stop = min(start + step, m)
        V = rows(start, stop)
        state.update(V.astype("<f8").tobytes())
        block, kv = integers(V)
        P = matmul(B, block.T)  # n 2^(k + kv) <v_j, xbar_i>
        # <v_j, xbar_i> / N(v_j) = P_ij sqrt(D / M_j)
        D = n << ke
        M = [(int(s) << ke) + (e * n**3 << (2 * (problem.k + kv))) for s in (P * P).sum(axis=0)]
        bits = fine + max(v.bit_length() for v in M)
        roots = [math.isqrt((D << (2 * bits)) // v) if v else 0 for v in M]
        low, high = P * column(roots).T, P * column([r + (v > 0) for r, v in zip(roots, M)]).T
        low, high = (
            np.where(P > 0, low, high) >> (bits - fine),
            (np.where(P > 0, high, low) >> (bits - fine)) + (P != 0),
        )
        if len(move):
            moved = (matmul(B, move[start:stop].T) << fine) // (n << (problem.k + km))
            low, high = low + moved, high + moved + 1
        low, high = np.where(low > 0, low, 0), np.where(high > 0, high, 0)
        active = np.where(P > 0, P, 0)
        for name in names:
            factor = factors[name][start:stop]
            weight = [f * v for f, v in zip(factor, u[name][start:stop])]
            plus, minus = column([max(w, 0) for w in weight]), column([max(-w, 0) for w in weight])
            down = (matmul(low, plus) - matmul(high, minus))[:, 0].tolist()
            up = (matmul(high, plus) - matmul(low, minus))[:, 0].tolist()
            reached[name] = [(f + r, g + s) for (f, g), r, s in zip(reached[name], down, up)]
            c = column([s * w for s, w in zip(y, q[name])])
            values = matmul(active.T, c)[:, 0].tolist()
            most[name] += sum(-((-((f * v) ** 2) * D << (2 * fine)) // w) for f, v, w in zip(factor, values, M) if w)
    known = "format: extra.weights_sha256: the drawn weights are not those of the certificate"
    need(extra.get("weights_sha256") == state.hexdigest(), known, "made with another version of numpy?")

    for name in names:
        least = bounds[name][0]
        norm2 = sum(v * v for v in u[name])
        wanted = least**2 * m * norm2 * 4 ** (fine + factor_bits[name])
        if least > 0:
            need(norm2 > 0, f"lower bound: extra.weights_{name} is zero")
            for i, (s, (f, g)) in enumerate(zip(y, reached[name])):
                worst = f if s > 0 else -g
                good = worst >= 0 and worst * worst >= wanted
                need(good, f"lower bound: point {i}", f"its margin is below the lower bound of gamma_{name}")

    def lower(bound: Fraction) -> str:
        total = sum(max(least, Fraction(0)) for least, _ in bounds.values())
        need(bound <= total, "lower bound: larger than those of its parts together")
        return f"is reached at all {n} points by the weights of gamma_{' and gamma_'.join(names)}"

    def upper(bound: Fraction, weights: list[int], total: int, proof: Mapping[str, Any]) -> str:
        only_dual(proof)
        for name in names:
            largest = Fraction(max(abs(f) for f in factors[name]), 1 << factor_bits[name])
            slope = _bn_slope(B, y, q[name]) if delta else 0
            cost = delta * largest * Fraction(slope, n << (ROOT_BITS + problem.k + 1))
            room = bounds[name][1] * sum(q[name]) - cost
            limit = room**2 * m * 2 ** (2 * fine + 2 * factor_bits[name])
            need(room >= 0 and most[name] <= limit, f"upper bound: gamma_{name} is not shown to be that small")
        need(bound >= sum(top for _, top in bounds.values()), "upper bound: smaller than those of its parts together")
        return f"is proved by the dual weights over {m} neurons"

    # relu(t_ij) <= sqrt(n), so no unit predictor exceeds sqrt(n) max(1, max |a_j|) in a part
    largest = max(Fraction(1), Fraction(max(abs(f) for f in factors["c"]), 1 << ka))
    return Rules(lower, upper, reach2=[Fraction(len(names) ** 2 * n) * largest**2] * n)
