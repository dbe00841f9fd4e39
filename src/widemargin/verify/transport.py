"""The NTK margin: kind ntk, proved as a kernel margin or, for transports in the sup norm, on a sample that is drawn
again.

The statistical rule is the one that is not exact: it averages in float64. What it accepts holds with a probability,
and the verdict says so.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from .kernels import PARTS, f2
from .reading import Problem, Refused, Rules, few, integer, listed, need, number

BINS = 64  # most bins of the angle
SAMPLES = 10**9  # most samples, and
WORK = 1 << 32  # most samples times (points + dimensions + bins): some minutes
DIMENSIONS = 10**6  # most dimensions: the constants are computed for so many
TINY = 1e-290  # below this float64 loses its relative precision
SAFETY = 1e-12  # for rounding, as a share of the length of a variable's interval, and
RADIAL = 4e-15  # as much more for every dimension: the relative error of the constants of `ntk_radial`


def ntk(problem: Problem, payload: Mapping[str, Any]) -> Rules:
    """Proved: the margin of the NTK kernel, which is the margin for transport l2 and an upper bound of the one for sup.

    Not proved: both bounds of `SampledMargin`, which hold with probability at least `extra.confidence` over the sample.
    """
    extra = payload["extra"]
    need(payload.get("activation") == "relu", "format: kind ntk needs activation relu")
    need(extra.get("part") in PARTS, "format: extra.part is not total, outer or inner")
    need(extra.get("transport") in ("sup", "l2"), "format: extra.transport is neither sup nor l2")
    l2 = extra["transport"] == "l2"
    need(l2 or payload["convention"] == "M8", "format: convention M8-l2 is for transport l2")
    if payload["proved"]:
        exact = f2(problem, payload)
        if l2:
            return exact

        def none(bound: Fraction) -> str:
            raise Refused("lower bound: a kernel function is no proof for transports in the sup norm")

        return Rules(none, exact.upper)  # the sup margin is at most the L2 margin
    need(not l2, "format: transport l2 needs proved = true")
    sampled = SampledMargin(problem, payload)
    said = f"holds with probability at least {sampled.confidence!r} over {sampled.samples} samples"

    def lower(bound: Fraction) -> str:
        need(bound <= Fraction(sampled.lower) * sampled.unit, "lower bound: the evaluation sample gives less")
        return said

    def upper(bound: Fraction, weights: list[int], total: int, proof: Mapping[str, Any]) -> str:
        need(proof.get("type") == "samples", "upper bound: this bound needs proof.type = samples")
        need(bound >= Fraction(sampled.upper) * sampled.unit, "upper bound: the evaluation sample gives more")
        return said

    return Rules(lower, upper, chance=sampled.confidence)


def sample_key(sha256: str, dual: Any, extra: Mapping[str, Any]) -> int:
    """The seed of the evaluation sample: a hash of the data, the weights and everything else the bounds depend on.

    Nothing that enters the bounds is left out, so that none of it can be chosen after a look at the sample.
    """
    names = ("part", "seed", "bins", "control", "floor", "samples", "confidence")
    words = ["ntk-2", sha256, dual, *(extra.get(name) for name in names)]
    return int.from_bytes(hashlib.sha256(json.dumps(words, separators=(",", ":")).encode()).digest(), "big")


class SampledMargin:
    """Both statistical bounds of an ntk certificate (docs/certificates.md), in units of `unit`.

    Variables are divided by the lengths of their intervals before they are squared, and theta = (S u, C g) / f by its
    own length, so that no square leaves the range of float64 whatever the sizes of points and weights. Means and
    variances are merged block by block from deviations, not from sums of squares, which would cancel.
    """

    def __init__(self, problem: Problem, payload: Mapping[str, Any]) -> None:
        extra, n, D = payload["extra"], len(problem.y), problem.D
        need(
            extra.get("key") == 2,
            "format: extra.key is not 2: the sample's key leaves out samples and confidence, solve again",
        )
        self.samples = N = integer(extra.get("samples"), "format: extra.samples", 2, SAMPLES)
        self.confidence = float(number(extra.get("confidence"), "format: extra.confidence"))
        need(0 < self.confidence < 1, "format: extra.confidence is not between 0 and 1")
        bins = integer(extra.get("bins"), "format: extra.bins", 1, BINS)
        need(bins == 1 or extra["part"] == "total", "format: extra.bins must be 1 for one layer")
        need(N * (n + D + bins) <= WORK, "format: extra.samples: too many for so many points")
        few(problem, "shape")
        need(D <= DIMENSIONS, "shape: too many dimensions for a sample")
        integer(extra.get("seed"), "format: extra.seed", 0, 1 << 128)
        floor = np.array([float(number(v, "extra.floor")) for v in listed(extra.get("floor"), "extra.floor", bins)])
        a, b = (float(number(v, "extra.control")) for v in listed(extra.get("control"), "extra.control", 2))
        small = bool((floor >= 0).all()) and min(a, b) >= 0 and max(a, b, floor.max()) <= 1e100
        need(small, "format: an entry of extra.floor or extra.control is negative or above 1e100")
        q = np.array([float(number(v, "dual")) for v in listed(payload.get("dual"), "dual", n)])
        need(bool((q >= 0).all()) and 1e-100 < q.sum() < 1e100, "dual: not in the simplex")
        q = q / q.sum()

        top = max(1, max(int(abs(v)).bit_length() for v in problem.grid.ravel().tolist()))
        self.unit = Fraction(2) ** (top - problem.k)
        X = np.array([[v / (1 << top) for v in row] for row in problem.grid.tolist()])  # rounded only below 2^-1022
        norms = np.array([_length(row) for row in X])
        there = np.array([any(row) for row in problem.grid.tolist()])
        need(bool((norms[there] > 1e-100).all()), "shape: the sizes of the points differ by more than 1e100")
        y = np.array(problem.y, dtype=np.float64)
        S, C, P, R = ntk_radial(D, bins, extra["part"])
        c = q * y
        reach = (_length(c @ X) + float(np.linalg.norm(np.sqrt(q)[:, None] * X, 2))) / 2 * (1 + 1e-9)  # of |u| and |g|
        point = float(np.hypot(S, C).sum()) + (a + b) * reach
        span = float(np.hypot(P, R).sum()) * reach + (a + b) / 2 * reach**2
        scale, size = norms * point, np.where(norms > 0, norms, 1.0)
        need(0 < point < 1e100 and span < 1e100, "format: extra.control is too large")

        rng = np.random.default_rng(sample_key(payload["data"]["sha256"], payload["dual"], extra))
        block = max(1, (1 << 18) // (n + D + bins))
        points, whole = _Moments(n), _Moments(1)
        for start in range(0, N, block):
            s = rng.standard_normal((min(block, N - start), D))
            s /= np.sqrt((s * s).sum(axis=1))[:, None]
            z, value = np.zeros((len(s), n)), np.zeros(len(s))
            for sign in (1.0, -1.0):
                t = sign * (s @ (X / size[:, None]).T)  # s . x_i / |x_i|
                relu, active = np.maximum(t, 0), np.where(t > 0, 1.0, 0.0)
                u, g = relu @ (c * size), (active * c) @ X
                top_g = np.abs(g).max(axis=1)
                g_size = top_g * np.sqrt(((g / np.where(top_g > 0, top_g, 1)[:, None]) ** 2).sum(axis=1))
                f = np.maximum(np.hypot(np.outer(u, S), np.outer(g_size, C)), floor)
                large = f > TINY  # where f is tiny, 0 is as good a transport
                inverse = np.where(large, 1 / np.where(large, f, 1), 0.0)
                Au = ((u[:, None] * S * inverse) * S).sum(axis=1)  # each factor S u / f is at most 1
                Bg = ((g_size[:, None] * C * inverse) * C).sum(axis=1)
                along = (g / np.where(g_size > 0, g_size, 1)[:, None]) @ (X / size[:, None]).T  # g . x_i / (|g| |x_i|)
                z += y * (relu * (Au - a * u)[:, None] + active * along * (Bg - b * g_size)[:, None]) / 2
                value += np.hypot(np.outer(u, P), np.outer(g_size, R)).sum(axis=1) / 2
                value -= (a * u * u + b * g_size * g_size) / 4
            points.add(z / point)
            whole.add((value / (span or 1.0))[:, None])

        # y_i E[a u relu(s . x_i) + b 1[s . x_i > 0] g . x_i] / |x_i|
        unit_rows = X / size[:, None]
        known = np.zeros(n)
        for i in range(n):
            near, far = (np.sqrt(((unit_rows[i] + e * unit_rows) ** 2).sum(axis=1)) for e in (-1, 1))
            angle = 2 * np.arctan2(near, far)
            turn = (math.pi - angle) * (unit_rows @ unit_rows[i])
            known[i] = y[i] * ((c * norms) @ (a * (np.sin(angle) + turn) / D + b * turn)) / (2 * math.pi)
        known = np.where(norms > 0, known, 0.0)
        L = math.log(2 * (n + 1) / (1 - self.confidence))

        safety = SAFETY + RADIAL * D

        def width(variance: np.ndarray) -> np.ndarray:
            """Of variables in intervals of length 1 (Maurer and Pontil 2009, Theorem 4), with room for rounding."""
            return np.sqrt(2 * L / N * variance) + 7 * L / (3 * (N - 1)) + safety

        self.lower = float((norms * known + scale * (points.mean - width(points.variance()))).min())
        mean, wide = float(whole.mean[0]), float(width(whole.variance())[0])
        slack = safety * float(q @ (norms * np.abs(known)))
        self.upper = float(q @ (norms * known)) / 2 + span * (mean + wide) + slack


class _Moments:
    """Mean and sum of squared deviations of columns, merged block by block."""

    def __init__(self, n: int) -> None:
        self.count, self.mean, self.squares = 0, np.zeros(n), np.zeros(n)

    def add(self, block: np.ndarray) -> None:
        mean = block.mean(axis=0)
        total = self.count + len(block)
        step = mean - self.mean
        self.squares = self.squares + ((block - mean) ** 2).sum(axis=0) + step**2 * (self.count * len(block) / total)
        self.mean = self.mean + step * (len(block) / total)
        self.count = total

    def variance(self) -> np.ndarray:
        return self.squares / (self.count - 1)


def _length(row: np.ndarray) -> float:
    """The Euclidean norm, without squares that underflow."""
    top = float(np.abs(row).max())
    return top * math.sqrt(float(((row / top) ** 2).sum())) if top > 0 else 0.0


def ntk_radial(D: int, bins: int, part: str) -> np.ndarray:
    """Rows S, C, P, R of docs/certificates.md for the NTK margin, by Gauss-Legendre sums over rho < 2 and the angle.

    The density has a ridge at |v| = 1 whose width falls like D^(-1/2): the pieces are as many as resolve it, whatever
    the number of bins.
    """
    nodes, weights = np.polynomial.legendre.leggauss(40)
    cells = 16 * max(1, math.isqrt(D // 2000))  # of rho, and at least as many of the angle; 40 nodes in each
    rho = ((np.arange(cells)[:, None] + (nodes + 1) / 2) * (2 / cells)).ravel()
    rho_weights = np.tile(weights, cells) / cells
    log_constant = math.log(4) - math.log(2 * math.pi) / 2 + D / 2 * math.log(D / 2) - math.lgamma(D / 2)
    per = -(-cells // bins)  # pieces of a bin
    rows = np.zeros((5, bins * per))  # of rho, with the factors 1, sin, cos, sin^2, cos^2
    for k in range(bins * per):
        t = (k + (nodes + 1) / 2) * math.pi / (2 * bins * per)
        sin, cos = np.sin(t), np.cos(t)
        exponent = (D + 1) * np.log(rho)[:, None] + (D - 1) * np.log(sin) + log_constant
        density = np.exp(exponent - np.outer(rho**2 / 2, cos**2 + D * sin**2))  # times rho
        mass = (rho_weights @ density) * weights * math.pi / (4 * bins * per)
        rows[:, k] = [mass @ factor for factor in (np.ones_like(t), sin, cos, sin**2, cos**2)]
    E, S, C, S2, C2 = rows.reshape(5, bins, per).sum(axis=2)
    if part != "total":
        total = np.array([[S.sum()], [0.0]] if part == "outer" else [[0.0], [C.sum()]])
        return np.vstack([total, total])
    return np.array([S, C, np.sqrt(E) * np.sqrt(S2), np.sqrt(E) * np.sqrt(C2)])
