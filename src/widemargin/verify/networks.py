"""Margins of two-layer networks, of fixed features and of linear predictors: kinds f1, frozen, rf, linear.

A lower bound is the margin of the predictor that is stored. An upper bound is weak duality at the stored weights q >=
0 with sum q_i = 1: for every predictor f of norm at most 1, min_i y_i f(x_i) <= sum_i q_i y_i f(x_i), which is at
most the norm dual to that of f at the vector of the features' weighted sums.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from .exact import ROOT_BITS, column, matmul, objects, ray, sqrt_up, squares
from .neuron import both_sides, pairing
from .norms import in_norm, norm_of
from .reading import (
    Problem,
    Rules,
    feature_blocks,
    need,
    network_values,
    only_dual,
    rows_of,
    vector,
)

INVERSE = 128  # bits after the point, at least, of 1 / |v|


def measure_lower(problem: Problem, payload: Mapping[str, Any], lower: Fraction) -> tuple[str, np.ndarray]:
    """y_i f(x_i) >= lower N for all i, where N = sum_j |mass_j| |theta_j|^degree is rounded up (lower > 0, so that is
    the safe side).
    """
    primal = payload.get("primal")
    need(isinstance(primal, Mapping), "lower bound: no primal is stored")
    assert isinstance(primal, Mapping)
    theta, _ = rows_of(primal.get("theta"), problem.D, "lower bound: primal.theta")
    mass, _ = vector(primal.get("mass"), len(theta), "lower bound: primal.mass")
    sizes = squares(theta)
    sizes = sizes if problem.degree == 2 else [sqrt_up(s) for s in sizes]
    bits = 0 if problem.degree == 2 else ROOT_BITS
    norm = sum(abs(m) * s for m, s in zip(mass, sizes))
    need(norm > 0, "lower bound: the primal is zero")
    values = network_values(problem, theta, column(mass))[:, 0]
    # y_i f(x_i) 2^-fine >= lower norm 2^-bits; the powers of two of theta and mass cancel
    wanted = (lower.numerator * norm) << problem.fine
    scale = lower.denominator << bits
    for i, (s, v) in enumerate(zip(problem.y, values)):
        need(s * v * scale >= wanted, f"lower bound: point {i}", "its margin is below lower")
    return f"is reached at all {len(problem.y)} points by {len(mass)} neurons", theta


def f1(problem: Problem, payload: Mapping[str, Any]) -> Rules:
    """max over |v| <= 1 of sum_i c_i phi(v . x_i) <= upper for both sides c_i = +-q_i y_i, by one of the proofs of
    neuron.py, tree.py.
    """

    def upper(bound: Fraction, weights: list[int], total: int, proof: Mapping[str, Any]) -> str:
        kind = proof.get("type")
        if kind == "pairing" and problem.is_relu:
            return f"is proved by pairing ({pairing(problem, weights, total, bound, proof)})"
        c = [s * w for s, w in zip(problem.y, weights)]
        return f"is proved by {both_sides(problem, c, total, bound, proof, 'upper bound')}"

    return Rules(lambda lower: measure_lower(problem, payload, lower)[0], upper)


LINEAR = {"l2": "M11", "l1": "M11-l1", "linf": "M11-linf"}  # the norms of linear, and their conventions


def linear(problem: Problem, payload: Mapping[str, Any]) -> Rules:
    """y_i u . x_i >= lower |u| for all i; |sum_i q_i y_i x_i| <= upper. Both are compared as squares; other norms than
    the Euclidean one have rules of their own.
    """
    norm = norm_of(payload, "l2", LINEAR)
    if norm != "l2":
        return in_norm(
            problem,
            norm,
            lambda: rows_of([payload["extra"].get("u")], problem.D, "lower bound: extra.u")[0],
            lambda u: [s * int(v) for s, v in zip(problem.y, matmul(problem.grid, u.T)[:, 0])],
            lambda weights: matmul(column([s * w for s, w in zip(problem.y, weights)]).T, problem.grid),
        )
    return hard_margin(problem, payload)


def hard_margin(problem: Problem, payload: Mapping[str, Any], note: str = "") -> Rules:
    """The rules of `linear` in the Euclidean norm; `note` ends the sentences."""

    def lower(bound: Fraction) -> str:
        u, _ = rows_of([payload["extra"].get("u")], problem.D, "lower bound: extra.u")
        norm2 = squares(u)[0]
        need(norm2 > 0, "lower bound: u is zero")
        wanted = bound**2 * norm2 * 4**problem.k
        for i, (s, v) in enumerate(zip(problem.y, matmul(problem.grid, u.T)[:, 0])):
            need(s * v >= 0 and v * v >= wanted, f"lower bound: point {i}", "its margin is below lower")
        return f"is reached at all {len(problem.y)} points by u{note}"

    def upper(bound: Fraction, weights: list[int], total: int, proof: Mapping[str, Any]) -> str:
        only_dual(proof)
        c = column([s * w for s, w in zip(problem.y, weights)])
        norm2 = squares(matmul(c.T, problem.grid))[0]
        need(norm2 <= (bound * total * 2**problem.k) ** 2, "upper bound: the norm of sum q_i y_i x_i is larger")
        return f"is proved by the dual weights{note}"

    return Rules(lower, upper)


def weighted_features(problem: Problem, rows: np.ndarray, weights: list[int]) -> list[int]:
    """sum_i q_i y_i phi(v_j . x_i) on the integer grids, (m,)."""
    c = column([s * w for s, w in zip(problem.y, weights)])
    return [int(v) for _, H in feature_blocks(problem, rows) for v in matmul(H.T, c)[:, 0]]


def frozen(problem: Problem, payload: Mapping[str, Any]) -> Rules:
    """As f1 with atoms among the stored directions v_j; |sum_i q_i y_i phi(v_j . x_i)| <= upper |v_j|^degree for all j."""
    directions, _ = rows_of(payload["extra"].get("directions"), problem.D, "format: extra.directions")

    def lower(bound: Fraction) -> str:
        said, theta = measure_lower(problem, payload, bound)
        known = {ray(row) for row in directions.tolist()}
        for j, row in enumerate(theta.tolist()):
            need(ray(row) in known, f"lower bound: neuron {j} is not one of the directions")
        return said

    def upper(bound: Fraction, weights: list[int], total: int, proof: Mapping[str, Any]) -> str:
        only_dual(proof)
        values = weighted_features(problem, directions, weights)
        limit = bound * total * 2**problem.fine
        for j, (value, norm2) in enumerate(zip(values, squares(directions))):
            good = abs(value) <= limit * norm2 if problem.degree == 2 else value * value <= limit**2 * norm2
            need(good, f"upper bound: direction {j}", "its value under the dual weights is larger")
        return f"is proved by the dual weights over {len(directions)} directions"

    return Rules(lower, upper)


def rf(problem: Problem, payload: Mapping[str, Any]) -> Rules:
    """With z_ij = y_i phi(v_j . x_i) / |v_j|^degree: (z a)_i >= lower sqrt(m) |a| for all i; |z' q| <= upper sqrt(m).

    1 / |v_j| is enclosed between two integers over a power of two; relu(t)^degree is not negative, so its sums over j
    are enclosed with the ends chosen by the signs of a, and what a leaky ReLU takes from them, slope relu(-t), with the
    ends exchanged. The squares in |z' q|^2 are divided by |v_j|^(2 degree) and rounded up.
    """
    directions, _ = rows_of(payload["extra"].get("directions"), problem.D, "format: extra.directions")
    m = len(directions)
    need(m > 0, "format: extra.directions: empty")
    lengths = squares(directions)
    power = problem.degree  # z_ij = y_i phi(v_j . x_i) / ||v_j||^power
    bits = INVERSE + max(s.bit_length() for s in lengths)

    def inverse(norm2: int) -> tuple[int, int]:
        """1 / ||v||^power between two integers over 2^bits (0 for v = 0, where phi is 0)."""
        if norm2 == 0:
            return 0, 0
        if power == 2:
            return (1 << bits) // norm2, -((-1 << bits) // norm2)
        return (1 << 2 * bits) // sqrt_up(norm2, bits), -((-1 << 2 * bits) // math.isqrt(norm2 << 2 * bits))

    def lower(bound: Fraction) -> str:
        a, _ = vector(payload["extra"].get("a"), m, "lower bound: extra.a")
        norm2 = sum(v * v for v in a)
        need(norm2 > 0, "lower bound: a is zero")
        ends = [sorted((v * lo, v * hi)) for v, (lo, hi) in zip(a, map(inverse, lengths))]
        mass, plain = objects(ends, m, 2), replace(problem, slope=0, bits=0)
        F = network_values(plain, directions, mass) << problem.bits
        if problem.slope:
            F = F - problem.slope * network_values(plain, -directions, mass)[:, ::-1]
        wanted = bound**2 * m * norm2 * 4 ** (problem.fine + bits)
        for i, (s, (lo, hi)) in enumerate(zip(problem.y, F.tolist())):
            least = lo if s > 0 else -hi
            need(least >= 0 and least * least >= wanted, f"lower bound: point {i}", "its margin is below lower")
        return f"is reached at all {len(problem.y)} points by a"

    def upper(bound: Fraction, weights: list[int], total: int, proof: Mapping[str, Any]) -> str:
        only_dual(proof)
        values = weighted_features(problem, directions, weights)
        most = sum(-((-v * v << bits) // s**power) for v, s in zip(values, lengths) if s)  # rounded up
        limit = (bound * total) ** 2 * m * 4**problem.fine * 2**bits
        need(most <= limit, "upper bound: the norm of z'q is larger")
        return f"is proved by the dual weights over {m} features"

    return Rules(lower, upper)
