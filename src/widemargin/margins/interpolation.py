"""The problem behind `min_norm_l1`: the smallest norm of a network that takes given values.

With g = 1 / norm it reads like a margin,

    g = max { t : f(x_i) = t y_i, |f| <= 1 } = min { max_{|v| = 1} |sum_i q_i relu(v . x_i)| : q . y = 1 },

so the solver is that of the F1 margin, with equations. Any q with q . y = 1 and any network with the right values are bounds.
A network of a numerical solver has the right values up to 1e-8; a fixed `frame` of n neurons whose features form a
well-conditioned matrix takes up the rest.
"""

from __future__ import annotations

import math
import time
from fractions import Fraction
from typing import Any

import numpy as np
from scipy import linalg

from widemargin.pricing import write
from widemargin.types import Certificate, Measure

from ._relations import Relations
from .door import EPS, Door, Progress, svd_work
from .engine import LARGEST, prune_masses
from .wide_networks import Solver as MarginSolver

PATTERNS = 120  # patterns in a cone program
CONE_LIMIT = 1e6  # points * dimensions * patterns of a cone program: about 5 seconds
HARD = 1000  # n * rank from which linear bounds of signs are not tried: n = d = 100 has a gap of 16 % with, 8 % without
SINGULAR = 1e13  # condition of the frame from which float64 cannot interpolate


def _lengths(W: np.ndarray) -> np.ndarray:
    """Of the rows (m, r). The squares of huge ones are no numbers."""
    most = np.abs(W).max(axis=1).clip(np.finfo(np.float64).tiny)  # (m,)
    return np.asarray(most * np.linalg.norm(W / most[:, None], axis=1))


def operations(n: int, D: int) -> float:
    """What the span of n points costs, and their frame: a pivoted factorisation of many candidates, at a tenth of the speed."""
    return 150.0 * n**3 + 2 * svd_work(n, D)


def numbers(n: int, D: int) -> float:
    return 40.0 * n * n + 6.0 * n * D


class Solver(MarginSolver):
    """`door` holds the free points (no relation among them) and their targets, in units of 2^power, largest in [1/2, 1).

    `lower` and `upper` bound 1 / norm.
    """

    kind, convention, equal = "l1-regression", "norm", True
    whole = True  # whether `door` has all free points: else its networks are no interpolants
    lost = "float64 cannot close the gap to tol: the points are close to a relation that holds for all networks"

    def __init__(self, door: Door, known: Relations, power: int, tol: float, seed: int, progress: Progress | None):
        super().__init__(door, tol, seed, "cpu", progress)
        self.relations, self.unit_power = known, power - door.shift  # norms are in units of 2^unit_power
        self.frame = make_frame(self.X, self.rng)
        size = np.linalg.norm(self.X, axis=1)
        inverse, self.condition = invert(relu(self.X / size[:, None], self.frame))
        self.inverse = inverse / size
        self.hard = self.n * self.r >= HARD
        self.least = 0.0  # the lower bound of the norm that the proof shows, in the units of the data

    def nothing(self) -> None:
        return None

    def run(self) -> Certificate:
        return super().run() if self.condition < SINGULAR else self.finish("rounding" if self.whole else "time-limit")

    def warm_start(self) -> None:
        """The network of the frame alone, and its neurons with both signs."""
        self.offer_network(np.zeros((0, self.r)), np.zeros(0))
        for s in (1.0, -1.0):
            self.add(self.frame, s, self.n)
            self.add_columns(self.frame, np.full(self.n, s))

    def cheap_bound(self) -> None:
        """There is none: the first dual of the linear program is better than any guess."""

    def round(self) -> bool:
        return self.pattern_round() if self.most() >= self.n + 10 else self.linear_round()

    def linear_round(self) -> bool:
        """For many points: linear programs only, then the tree at their best dual."""
        before, count = (self.lower, self.upper), len(self.V)
        self.linear_phase(1 + self.tol, 20)
        if not self.late():
            self.prove(self.centre, self.estimate)
        better = self.lower > before[0] * (1 + 1e-9) or self.upper < before[1] * (1 - 1e-9)
        return better or len(self.V) > count

    def most(self) -> int:
        """An interpolating network has up to n neurons."""
        return int(min(max(PATTERNS, 2 * self.n, len(self.support) + 60), CONE_LIMIT / (self.n * self.r)))

    def fold(self, q: np.ndarray) -> np.ndarray:
        """Tiny weights to zero (fewer branchings), and q . y = 1."""
        q = np.where(np.abs(q) > 1e-9 * np.abs(q).max(initial=0.0), q, 0.0)
        inner = q @ self.y
        return q / inner if inner > 0 else self.y / (self.y @ self.y)

    def balanced_weights(self) -> np.ndarray:
        return self.fold(self.y)

    def offer_network(self, W: np.ndarray, signs: np.ndarray) -> np.ndarray:
        """Scale sum_k s_k relu(W_k . x) to its targets and keep it if it is the smallest once the frame has made it exact."""
        values = relu(self.X, W) @ signs
        fit = float(values @ self.y)
        scale = float(self.y @ self.y) / fit if fit > 0 else 0.0
        correction = np.zeros(self.n)
        for _ in range(3):
            correction += self.inverse @ (self.y - scale * values - relu(self.X, self.frame) @ correction)
        norm = float(scale * np.linalg.norm(W, axis=1).sum() + np.abs(correction).sum())
        if norm * self.lower < 1:
            self.lower = self.sure = 1 / norm
            W = np.vstack([scale * W, self.frame * np.abs(correction)[:, None]])
            on = W.any(axis=1)
            self.W, self.signs = W[on], np.append(signs, np.sign(correction))[on]
        return values

    # ------------------------------------------------------------------ results

    def shown(self) -> tuple[float, float]:
        with np.errstate(over="ignore", under="ignore"):
            low, high = np.ldexp([1 / self.upper, 1 / self.lower if self.lower else math.inf], self.unit_power)
        return float(low), float(high)

    def finish(self, status: str) -> Certificate:
        if self.dual.bound == "norm" and status != "interrupted" and self.centre is not self.dual.q:
            self.prove(self.centre, self.estimate, root=True)  # out of time before the first proof
        return super().finish(status)

    def network(self) -> Measure | None:
        """The best network, in the units of the data, at most n atoms where that costs nothing."""
        if not self.lower > 0 or not self.whole:
            return None
        size = _lengths(self.W)
        theta = self.W / size[:, None]
        Z = relu(self.X, theta) * self.signs
        light = prune_masses(Z, size, max(self.door.deadline, time.perf_counter() + 0.2))
        with np.errstate(all="ignore"):  # where `rest` is no number, light ones are not taken
            rest = np.abs(self.inverse @ (self.y - Z @ light)).sum()
            mass = self.signs * (light if (light.sum() + rest) * self.lower <= 1 + 1e-9 else size)
            on = mass != 0
            mass = np.ldexp(mass[on], self.unit_power)
        if not np.isfinite(mass).all():
            return None
        return self.measure(theta[on], mass, self.basis)

    def lower_rounded(self, primal: Measure) -> float:
        """One over the norm of the network and the cost of its exact residual in neurons of the frame, rounding included."""
        X, y, size = self.door.X, self.door.y, self.door.size
        theta, mass = primal.theta, np.ldexp(primal.mass, -self.unit_power)
        total = float(np.abs(mass) @ np.linalg.norm(theta, axis=1))
        residual = np.abs(y - relu(X, theta) @ mass)
        residual += 2 * EPS * (X.shape[1] + len(mass) + 8) * (total * size + np.abs(y))
        inverse, condition = invert(relu(X / size[:, None], self.frame @ self.basis.T))
        if not condition < 10 * SINGULAR:
            return 0.0
        # the checker scales points and neurons by powers of two instead of their sizes: a factor 4 covers both
        cost = 4 * float(np.abs(inverse).sum(axis=0).max()) * float((residual / size).sum())
        return 1 / ((total + 2 * cost) * (1 + EPS * (len(mass) + 20)))

    def proof(self) -> tuple[dict[str, Any], float, np.ndarray]:
        dual, names = self.dual, self.relations.free[self.first]
        q, proof, upper = np.zeros(self.door.data.n), dual.proof, dual.upper
        q[names] = dual.q
        if proof is None:
            proof, upper = write(dual.points, dual.q, dual.sides, names, dual.upper)
        maximum = outward(upper, self.door.shift)
        inner = sum(Fraction(a) * Fraction(b) for a, b in zip(dual.q.tolist(), self.door.data.y[names].tolist()))
        exact = inner / Fraction(maximum)
        self.least = min(math.nextafter(float(exact), 0.0), LARGEST) if exact < Fraction(LARGEST) else LARGEST
        return proof | {"maximum": maximum}, upper, q

    def bounds(self, lower: float, upper: float) -> tuple[float, float]:
        """Of the norm, in the units of the data."""
        high = outward((1 + 4 * EPS) / lower, self.unit_power) if lower > 0 else LARGEST
        return min(self.least, high), high

    def extra(self, lower: float, upper: float) -> dict[str, Any]:
        frame = (self.frame @ self.basis.T).tolist()
        return {"relations": self.relations.saved(), "frame": frame} if self.whole else {}


def outward(value: float, power: int) -> float:
    """value * 2^power, rounded up and at most the largest float."""
    with np.errstate(over="ignore", under="ignore"):
        result = float(np.ldexp(value, power))
    return min(math.nextafter(result, math.inf), LARGEST)


def relu(X: np.ndarray, V: np.ndarray) -> np.ndarray:
    return (X @ V.T).clip(0)


def make_frame(X: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """n unit neurons whose features on X (n, r) are as independent as pivoted QR can pick from random candidates.

    Candidates: random directions, the points, and directions that vanish halfway between a point and its nearest
    neighbour (in angle), which tell close points apart.
    """
    n, r = X.shape
    size = np.linalg.norm(X, axis=1, keepdims=True)
    unit = X / size
    cosine = np.abs(unit @ unit.T)
    np.fill_diagonal(cosine, -1)
    nearest = np.argsort(-cosine, axis=1)[:, : min(2, n - 1)]  # (n, 0, 1 or 2)
    first = np.repeat(np.arange(n), nearest.shape[1])
    second = nearest.ravel()
    side = np.sign((unit[first] * unit[second]).sum(1))[:, None]
    middle = unit[first] + np.where(side == 0, 1.0, side) * unit[second]
    middle = np.vstack([middle, unit])
    middle /= np.linalg.norm(middle, axis=1, keepdims=True)
    W = rng.standard_normal((len(middle), r))
    W -= (W * middle).sum(1, keepdims=True) * middle
    V = np.vstack([unit, -unit, W, -W, rng.standard_normal((4 * n + 16, r))])
    length = np.linalg.norm(V, axis=1)
    V = V[length > 1e-9] / length[length > 1e-9, None]
    Z = relu(unit, V)
    Z = Z / np.linalg.norm(Z, axis=0).clip(1e-12)
    pivot = linalg.qr(Z, mode="r", pivoting=True)[1]
    return V[pivot[:n]]


def invert(B: np.ndarray) -> tuple[np.ndarray, float]:
    """The inverse of B (n, n) and its condition number; zero and infinity where B is singular."""
    try:
        inverse = np.linalg.inv(B)
    except np.linalg.LinAlgError:
        return np.zeros_like(B), np.inf
    condition = float(np.linalg.norm(B, 1) * np.linalg.norm(inverse, 1))
    return inverse, condition if np.isfinite(condition) else np.inf
