"""Distances between the classes after a projection: kind projected."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from .exact import column, matmul, positive_semidefinite, squares
from .reading import BLOCK, Problem, Rules, differences, fits, integer, listed, need, number, rows_of, vector


def projected(problem: Problem, payload: Mapping[str, Any]) -> Rules:
    """Lower: |F (x_i - x_k)|^2 >= lower^2 lam for all pairs of different labels, lam >= the largest eigenvalue of F
    F' (the largest sum of absolute values in a row), since the projection P to the rows of F has |P z|^2 >= |F z|^2 /
    lam.

    Upper: for weights q on pairs, min |P z|^2 <= sum q |P z|^2 <= the sum of the `rank` largest eigenvalues of A =
    sum q z z', which `trace` bounds by tr A, and `fantope` by rank t + tr B B' with A <= t I + B B'; or by signs, see
    `_sign_tree`.
    """
    rank = integer(payload["extra"].get("rank"), "format: extra.rank", 1, problem.D)
    need(not payload["bias"], "format: kind projected has no bias")
    plus, minus = ([i for i, s in enumerate(problem.y) if s == sign] for sign in (1, -1))
    need(bool(plus and minus), "labels: both classes are needed, a distance between them is bounded")

    def lower(bound: Fraction) -> str:
        frame, _ = rows_of(payload["extra"].get("frame"), problem.D, "lower bound: extra.frame", rank)
        gram = matmul(frame, frame.T)
        most = max(int(v) for v in abs(gram).sum(axis=1))  # at least the largest eigenvalue of F F'
        need(most > 0, "lower bound: the frame is zero")
        W = matmul(problem.grid, frame.T)  # (n, rank)
        sizes, across = squares(W), W[minus].T
        least = bound**2 * most * 4**problem.k
        for i in plus:
            for k, v in zip(minus, matmul(W[[i]], across)[0]):
                need(
                    sizes[i] + sizes[k] - 2 * v >= least,
                    f"lower bound: points {i} and {k}",
                    "their distance is below lower",
                )
        return f"is reached by all {len(plus) * len(minus)} pairs in the span of the frame"

    def upper(bound: Fraction, weights: list[int], total: int, proof: Mapping[str, Any]) -> str:
        kind = proof.get("type")
        if kind == "signs":
            need(rank == 1, "upper bound: a tree over signs needs rank 1")
            return f"is proved by signs ({_sign_tree(problem, bound, proof)})"
        need(kind in ("trace", "fantope", "fantope-pairs"), "upper bound: no such proof type for this kind")
        entries = [listed(entry, "upper bound: pairs", 3) for entry in listed(proof.get("pairs"), "upper bound: pairs")]
        pairs = _pairs(problem, [entry[:2] for entry in entries])
        w, _ = vector([entry[2] for entry in entries], len(entries), "upper bound: weights of the pairs")
        need(all(v >= 0 for v in w) and sum(w) > 0, "upper bound: the weights of the pairs are not nonnegative")
        if kind == "trace":
            most = sum(v * s for v, s in zip(w, _lengths(problem, pairs)))
            need(most <= bound**2 * sum(w) * 4**problem.k, "upper bound: the weighted mean of the distances is larger")
        else:
            _fantope(problem, bound, rank, pairs, w, proof, kind == "fantope-pairs")
        return f"is proved by weights on {len(w)} pairs ({kind})"

    # a distance of 0 is a point with both labels: nothing is rounded
    return Rules(lower, upper, reach2=[Fraction(0)] * len(problem.y))


def _pairs(problem: Problem, stored: Sequence[Any]) -> list[tuple[int, int]]:
    """Indices of points with different labels."""
    n, pairs = len(problem.y), []
    need(len(stored) > 0, "upper bound: no pairs are stored")
    for i, k in stored:
        i, k = (integer(v, "upper bound: pairs", 0, n - 1) for v in (i, k))
        need(problem.y[i] != problem.y[k], "upper bound: a pair has equal labels")
        pairs.append((i, k))
    return pairs


def _differences(problem: Problem, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """x_i - x_k on the integer grid."""
    first, second = ([pair[side] for pair in pairs] for side in (0, 1))
    return problem.grid[first].astype(object) - problem.grid[second].astype(object)


def _lengths(problem: Problem, pairs: Sequence[tuple[int, int]]) -> Iterator[int]:
    """|x_i - x_k|^2 on the integer grid; many pairs and many dimensions do not multiply."""
    step = max(1, BLOCK // problem.D)
    for start in range(0, len(pairs), step):
        yield from squares(_differences(problem, pairs[start : start + step]))


def _fantope(
    problem: Problem,
    bound: Fraction,
    rank: int,
    pairs: Sequence[tuple[int, int]],
    w: list[int],
    proof: Mapping[str, Any],
    by_pairs: bool,
) -> None:
    """sum q z z' <= t I + B B', or by pairs Z Z' <= t diag(1 / q) + B B'; in units of 4^shift."""
    t = number(proof.get("t"), "upper bound: t")
    need(t >= 0, "upper bound: t is negative")
    shift = integer(proof.get("shift"), "upper bound: shift", -1200, 1200)
    total, size = sum(w), len(pairs) if by_pairs else problem.D
    fits(problem, size, "upper bound: t I + B B'")
    stored = listed(proof.get("B"), "upper bound: B", size)
    columns = len(listed(stored[0], "upper bound: B"))
    B, kb = rows_of(stored, columns, "upper bound: B", size)
    BB = matmul(B, B.T)
    unit = Fraction(4) ** (problem.k + shift)  # X in units of 2^shift is grid / sqrt(unit)
    weight = w if by_pairs else [1] * size
    trace = sum(Fraction(v * s, 4**kb) for v, s in zip(weight, squares(B))) / (total if by_pairs else 1)
    need(rank * t + trace <= bound**2 / Fraction(4) ** shift, "upper bound: rank t + tr B B' is larger")
    if by_pairs:
        need(all(v > 0 for v in w), "upper bound: a pair has weight zero")
        Z = _differences(problem, pairs)
        K, scale = matmul(Z, Z.T), unit
        diagonal = [t * total / v * scale for v in w]
    else:
        K, scale = differences(problem, [(i, k, v) for (i, k), v in zip(pairs, w)]), unit * total
        diagonal = [t * scale] * size
    # all in units of 2^-e, the diagonal rounded down
    bits = 2 * kb + max(0, -2 * (problem.k + shift))
    e = bits + 128
    S = BB * int(scale * 2**e / 4**kb) - K * 2**e
    for j, v in enumerate(diagonal):
        S[j, j] += math.floor(v * 2**e)
    need(positive_semidefinite(S), "upper bound: t I + B B' is not shown to dominate the weighted pairs")


def _sign_tree(problem: Problem, bound: Fraction, proof: Mapping[str, Any]) -> str:
    """Rank 1: for a unit v and t = min |v . z|, each pair has v . z >= t or -v . z >= t; by v -> -v the first has the
    sign +.

    On a leaf with signs s and weights q >= 0, t sum q <= v . sum q s z <= |sum q s z|, which must be at most bound
    sum q.
    """
    pairs = _pairs(problem, [listed(pair, "signs: pairs", 2) for pair in listed(proof.get("pairs"), "signs: pairs")])
    tree, leaves = listed(proof.get("tree"), "signs: tree"), listed(proof.get("leaves"), "signs: leaves")
    limit, at, leaf = bound**2 * 4**problem.k, 0, 0
    # v -> -v: the first pair has v . z >= 0. A path is a pair (the path above it, the branching), so that deep trees stay small.
    stack: list[tuple[Any, tuple[int, int]]] = [(None, (0, 1))]
    while stack:
        last = stack.pop()
        need(at < len(tree), "signs: the tree ends early")
        branch = integer(tree[at], "signs: tree", -1, len(pairs) - 1)
        at += 1
        if branch >= 0:
            stack += [(last, (branch, -1)), (last, (branch, 1))]
            continue
        need(leaf < len(leaves), "signs: there are too few leaves")
        path, above = [], last
        while above is not None:
            above, here = above
            path.append(here)
        path.reverse()
        q, _ = vector(leaves[leaf], len(path), f"signs, leaf {leaf}")
        need(all(v >= 0 for v in q) and sum(q) > 0, f"signs, leaf {leaf}: its weights are not nonnegative")
        c: dict[int, int] = {}  # sum q s z = sum_i c_i x_i
        for v, (p, s) in zip(q, path):
            for i, sign in zip(pairs[p], (s, -s)):
                c[i] = c.get(i, 0) + sign * v
        size = squares(matmul(column(list(c.values())).T, problem.grid[list(c)]))[0]
        need(size <= limit * sum(q) ** 2, f"signs, leaf {leaf}: its bound is larger than upper")
        leaf += 1
    need(at == len(tree) and leaf == len(leaves), "signs: the tree has entries to spare")
    return f"{leaf} leaves"
