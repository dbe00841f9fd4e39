"""Networks with one output for each class and the cross-entropy: the same rounds, with vectors where `solver` has numbers.

Everything is in units of the door: points divided by a power of two, objectives multiplied by the sum of the weights.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy import special

from widemargin.margins.door import EPS
from widemargin.margins.engine import LARGEST, Engine, Progress
from widemargin.margins.neurons import prune_masses
from widemargin.pricing import several
from widemargin.pricing.points import Points as Priceable
from widemargin.pricing.points import reduce_rank, whitening
from widemargin.types import Certificate

from .groups import ClassPoints, best_offset, fit
from .problem import ClassProblem

POOL = 200  # neurons that a master may have besides those of the network
NEW = 40  # neurons that a round may add
STARTS, CLIMBERS = 192, 60  # local searches per round, and how many of the best are polished
BEGIN = 1e-6  # seconds for each entry of X and class that a proof takes at the least
GRID = 38  # saved weights are multiples of 2^-GRID, so that w . g_i is exact for small integer w


@dataclass
class Dual:
    """Weights q (n, K), the objective that they prove, and the bound of the largest |sum_i g_i relu(v . x_i)| that does it.

    What is saved is q / 2^power, whose sum is between 1/2 and 1.
    """

    value: float
    q: np.ndarray
    power: int
    bound: float
    saved: dict[str, Any]


class Solver(Engine):
    kind, convention = "f1-multiclass-optimum", "objective"
    share = 0.95

    def __init__(self, problem: ClassProblem, tol: float, seed: int, device: str, progress: Progress | None):
        door, points = problem.door, problem.points
        super().__init__(door, tol, seed, progress)
        self.problem, self.points, self.n, self.K = problem, points, len(door.X), points.K
        self.X, self.basis = reduce_rank(door.X)  # (n, r), (D, r)
        self.r = self.X.shape[1]
        self.where = Priceable(door.X, None, door.shift, torch.device("cpu"), self.basis)
        self.where.beat = self.beat
        self.whitening = whitening(self.X)
        self.V, self.A, self.b = np.zeros((0, self.r)), np.zeros((0, self.K)), np.zeros(self.K)
        self.best_network = self.V, self.A, self.b
        self.upper = self.value()
        q, power = self.weights()
        self.dual = Dual(-math.inf, q, power, math.inf, {"type": "norm"})
        self.offer(several.norm(door.X, q, points.y), q, power)
        self.centre, self.power, self.estimate, self.found = q, power, -math.inf, math.inf
        self.attempted = math.inf  # what the last proof left open when it began

    def begin_with(self, theta: np.ndarray, outer: np.ndarray, offset: np.ndarray) -> None:
        """Start from a network in units of the data."""
        theta = theta @ self.basis
        size = np.linalg.norm(theta, axis=1)
        on = (size > 0) & outer.any(axis=1)
        self.V = theta[on] / size[on, None]
        self.A = np.ldexp(outer[on] * size[on, None], self.door.shift)
        if self.points.offset:
            self.b = np.array(offset, dtype=np.float64)
        self.keep()

    def continue_from(self, cert: Certificate) -> None:
        """Start from the network of a certificate, such as that of another decay."""
        theta, outer = (np.asarray(cert.extra[name], dtype=np.float64) for name in ("theta", "outer"))
        if len(theta):
            self.begin_with(theta, outer, np.asarray(cert.extra["offset"], dtype=np.float64))

    def know(self, theta: np.ndarray, outer: np.ndarray, offset: np.ndarray) -> None:
        """A network that the result must not be worse than; the solve begins from nothing all the same."""
        self.begin_with(theta, outer, offset)
        self.V, self.A, self.b = self.V[:0], self.A[:0], np.zeros(self.K)

    # ------------------------------------------------------------------ networks and duals

    def outputs(self) -> np.ndarray:
        return (self.X @ self.V.T).clip(0) @ self.A + self.b

    def value(self) -> float:
        return self.points.objective(self.outputs(), float(np.linalg.norm(self.A, axis=1).sum()), self.b)

    def keep(self) -> None:
        value = self.value()
        if value < self.upper:
            on = self.A.any(axis=1)
            self.upper, self.best_network = value, (self.V[on], self.A[on], self.b)

    def weights(self) -> tuple[np.ndarray, int]:
        """The dual weights of the network as they can be saved, q / 2^power, and the power."""
        points, t = self.points, self.outputs()
        if points.offset and not points.ridge:  # with the best output bias the vectors sum to zero up to rounding
            t = t + best_offset(points, t)
        q = points.w[:, None] * special.softmax(t, axis=1)
        q[np.arange(self.n), points.y] = 0.0
        total = float(q.sum())
        power = math.frexp(total)[1] if total > 0 else 0
        whole = np.floor(np.ldexp(q, GRID - power)).astype(np.int64)
        if points.offset and not points.ridge:
            whole = balanced(
                whole, points.y, np.floor(np.ldexp(points.w, GRID - power)).clip(max=2.0**60).astype(np.int64)
            )
        return np.ldexp(whole.astype(np.float64), -GRID), power

    def proved(self, q: np.ndarray, power: int, bound: float) -> float:
        """The objective that weights 2^power q prove when the maximum of q is at most `bound`."""
        lam = math.ldexp(self.points.lam, -power)
        return entropy(self.points, q, min(1.0, lam / bound) if bound > 0 else 1.0, power)

    def enough(self, q: np.ndarray, power: int, wanted: float) -> float:
        """The largest bound at which q proves `wanted`; 0 if there is none."""
        low, high = 0.0, 1.0
        if entropy(self.points, q, 1.0, power) < wanted:
            return 0.0
        for _ in range(40):
            theta = (low + high) / 2
            low, high = (low, theta) if entropy(self.points, q, theta, power) >= wanted else (theta, high)
        return math.ldexp(self.points.lam, -power) / high

    def offer(self, proof: several.Proof, q: np.ndarray, power: int) -> None:
        """Keep the weights if they prove more than the best so far."""
        if not math.isfinite(proof.upper) or proof.saved.get("type") == "omitted":
            return
        value = self.proved(q, power, proof.upper)
        if value > self.dual.value:
            self.dual, self.lower = Dual(value, q, power, proof.upper, proof.saved), max(value, 0.0)

    # ------------------------------------------------------------------ the run

    def nothing(self) -> None:
        return None

    def start(self) -> None:
        """The best constant, unless there is a network to begin with."""
        if not len(self.V):
            self.A, self.b = fit(self.points, np.zeros((self.n, 0)), self.A, self.b)
            self.keep()
        self.look()
        self.tell("first network")

    def round(self) -> bool:
        before = (self.lower, self.upper, self.estimate)
        self.masses()
        new = self.look()
        self.tell(f"{len(self.best_network[0])} neurons, largest slope {self.slope:.1e}")
        better = self.lower > before[0] * (1 + 1e-9) or self.upper < before[1] * (1 - 1e-9) or new > 0
        half = self.seconds() > 0.5 * (self.door.deadline - self.door.started)
        if (half or not better) and not self.closed() and self.worthwhile(self.upper - self.estimate):
            return self.prove(last=True) or better
        return better

    def worthwhile(self, left: float) -> bool:
        """Whether a proof that leaves `left` open is worth its time after the last one."""
        return left < 0.5 * self.attempted

    def masses(self) -> None:
        """The best masses of the neurons in play."""
        Z = (self.X @ self.V.T).clip(0)
        self.A, self.b = fit(self.points, Z, self.A, self.b, self.left())
        self.keep()
        size = np.linalg.norm(self.A, axis=1)
        on = size > 0
        steep = np.linalg.norm(Z[:, ~on].T @ self.points.pull(self.outputs()), axis=1)
        rest = np.flatnonzero(~on)[np.argsort(-steep)[:POOL]]
        order = np.concatenate([np.flatnonzero(on), rest])
        self.V, self.A = self.V[order], self.A[order]

    def look(self) -> int:
        """New neurons at the weights of the network; how many there are. A proof where it could close the gap."""
        q, power = self.weights()
        V, value = self.search(q, power)
        lam = math.ldexp(self.points.lam, -power)
        self.slope = float(value[0]) / lam - 1
        estimate = self.proved(q, power, float(value[0]))
        if estimate > self.estimate:
            self.centre, self.power, self.estimate, self.found = q, power, estimate, float(value[0])
            left = self.upper - estimate
            if left <= 0.5 * self.share * self.tol * estimate and self.worthwhile(left) and self.door.X.shape[1] > 2:
                self.prove()
        return self.play(V[value > lam * (1 + 1e-9)], NEW)

    def play(self, V: np.ndarray, most: int) -> int:
        """Take up to `most` of the neurons V, best first, that are not there yet."""
        V = V / np.linalg.norm(V, axis=1, keepdims=True).clip(1e-300)
        new: list[np.ndarray] = []
        for v in V:
            if len(new) == most:
                break
            if (self.V @ v).max(initial=-1.0) < 1 - 1e-13 and all(float(u @ v) < 1 - 1e-7 for u in new):
                new.append(v)
        if new:
            self.V, self.A = np.vstack([self.V, *new]), np.vstack([self.A, np.zeros((len(new), self.K))])
        return len(new)

    def search(self, q: np.ndarray, power: int) -> tuple[np.ndarray, np.ndarray]:
        """Neurons with a large |sum_i g_i relu(v . x_i)|, and these values, best first; in two dimensions the best one."""
        g = several.vectors(q, self.points.y)
        count = int(np.clip(3e6 / (self.n * (self.r + self.K)), 24, STARTS))
        Z = self.rng.standard_normal((count, self.r))
        if self.whitening is not None:
            Z[1::2] = Z[1::2] @ self.whitening
        V, value = several.ascend(self.X, g, np.vstack([self.V[self.A.any(axis=1)], Z]), 40, self.door.deadline)
        if self.X.size <= several.CLIMB:
            V, value = several.climb(self.X, g, V[np.argsort(-value)[:CLIMBERS]], until=self.door.deadline)
        if self.door.X.shape[1] <= 2 and not self.late():
            found, arcs = several.enumeration(self.door.X, q, self.points.y)
            self.offer(found, q, power)
            V = np.vstack([V, arcs @ self.basis])
            value = np.append(value, several.values(self.X, g, arcs @ self.basis))
        order = np.argsort(-value)
        return V[order], value[order]

    def prove(self, last: bool = False) -> bool:
        """Bound the slopes at the weights that look best; whether it was tried."""
        if self.door.X.shape[1] <= 2 or self.left() < BEGIN * self.X.size * self.K:
            return False  # a search is a proof; or a proof would only begin
        q, power = self.centre, self.power
        self.attempted = self.upper - self.estimate
        goal = self.enough(q, power, self.upper / (1 + 0.9 * self.share * self.tol))
        goal = max(goal, self.found * (1 + 1e-5), math.ldexp(self.points.lam, -power))
        plain = several.norm(self.door.X, q, self.points.y)
        if plain.upper <= goal:  # points that are 0, or a large decay
            self.offer(plain, q, power)
            return True
        g, unscale = several.vectors(q, self.points.y), partial(self.door.unscale, degree=1, up=True)
        until = max(time.perf_counter() + self.left(), time.perf_counter() + 0.2)
        for proof in several.price(self.where, q, self.points.y, goal, until, self.rng, unscale):
            self.nodes += proof.nodes
            self.offer(proof, q, power)
            if proof.directions.size:
                V = proof.directions @ self.basis
                value = several.values(self.X, g, V)
                if value.max() > goal:  # there are better neurons, and so better weights
                    self.estimate = self.proved(q, power, float(value.max()))
                    self.play(V[np.argsort(-value)], NEW)
                    return True
            if self.closed():
                break
        return True

    # ------------------------------------------------------------------ results

    def shown(self) -> tuple[float, float]:
        """The bounds in units of the data."""
        return max(self.lower / self.problem.total, 0.0), self.upper / self.problem.total

    def bounds(self, lower: float, upper: float) -> tuple[float, float]:
        return lower, upper

    def written(self) -> tuple[None, dict[str, Any], np.ndarray, float, float]:
        total, dual = self.problem.total, self.dual
        self.theta, self.outer = self.neurons()
        upper = self.above(self.theta, self.outer, self.best_network[2]) / total
        self.outer = np.ldexp(self.outer, -self.door.shift)
        lower = self.below() / total
        with np.errstate(over="ignore", under="ignore"):
            maximum = float(np.ldexp(dual.bound, self.door.shift))
        proof = dual.saved | {"maximum": max(math.nextafter(maximum, math.inf), 1e-300)}
        high = min(math.nextafter(upper * (1 + 8 * EPS), math.inf), LARGEST)
        return None, proof, dual.q, min(max(math.nextafter(lower * (1 - 8 * EPS), -math.inf), 0.0), high), high

    def above(self, theta: np.ndarray, outer: np.ndarray, b: np.ndarray) -> float:
        """The objective of a network in units of the door, rounding included: it moves by 2 max_k |dt_k| at most."""
        points, size, m = self.points, np.linalg.norm(outer, axis=1), len(outer)
        t = (self.door.X @ theta.T).clip(0) @ outer + b
        reach = float(size.sum()) * self.door.size + float(np.linalg.norm(b))
        error = 8 * EPS * (self.door.X.shape[1] + m + self.K + 16) * (reach + 1)
        value = float(points.w @ (points.losses(t) + error)) + points.lam * float(size.sum())
        value += 0.5 * points.ridge * float(b @ b)
        return value * (1 + EPS * (self.n + m + self.door.X.shape[1] + self.K + 64))

    def below(self) -> float:
        """What the saved weights prove, rounding included."""
        points, dual = self.points, self.dual
        theta = min(1.0, math.ldexp(points.lam, -dual.power) / dual.bound) * (1 - 16 * EPS) if dual.bound else 1.0
        value = entropy(points, dual.q, theta, dual.power)
        # every z log(w / z) errs by some roundings of z (1 + |log|), and there are K of them that sum to w
        size = float(points.w.sum()) * (1 + math.log(self.K)) + abs(value)
        return value - EPS * (self.n + 40 * self.K) * size

    def neurons(self) -> tuple[np.ndarray, np.ndarray]:
        """The best network in units of the door, theta (m, D) of length 1 and outer (m, K): at most n (K - 1) neurons."""
        V, A, _ = self.best_network
        size = np.linalg.norm(A, axis=1)
        V, A, size = V[size > 0], A[size > 0], size[size > 0]
        if len(V) > self.n * (self.K - 1):
            W = A / size[:, None]
            rows = ((self.X @ V.T).clip(0)[:, None, :] * (W[:, :-1] - W[:, -1:]).T).reshape(-1, len(V))
            size = prune_masses(rows, size)
            V, A = V[size > 0], W[size > 0] * size[size > 0, None]
        theta = V @ self.basis.T
        return theta / np.linalg.norm(theta, axis=1, keepdims=True).clip(1e-300), A

    def extra(self, lower: float, upper: float) -> dict[str, Any]:
        saved = self.problem.saved(self.best_network[2], self.dual.power)
        return saved | {"classes": self.K, "theta": self.theta.tolist(), "outer": self.outer.tolist()}

    def stats(self) -> dict[str, Any]:
        return super().stats() | {"atoms": len(self.theta)}


def entropy(points: ClassPoints, q: np.ndarray, theta: float, power: int) -> float:
    """sum_i w_i H(z_i / w_i), z = theta 2^power q with what is left for the own class; less where the output bias is decayed."""
    z = np.ldexp(theta * q, power)
    on = points.w > 0
    p = z[on] / points.w[on, None]
    own = (1 - p.sum(axis=1)).clip(0)
    value = float(points.w[on] @ (special.entr(p).sum(axis=1) + special.entr(own)))
    if points.ridge:
        total = several.vectors(z, points.y).sum(axis=0)
        value -= float(total @ total) / (2 * points.ridge)
    return value


def balanced(whole: np.ndarray, y: np.ndarray, most: np.ndarray) -> np.ndarray:
    """Integers (n, K) with rows up to `most`, changed a little so that the vectors g_i sum to zero: a class gives what it takes.

    To move d from class a to b, weights of points of a on b fall, the largest first, or weights of points of b on a rise.
    """
    K = whole.shape[1]
    whole = whole.copy()
    of = [np.flatnonzero(y == k) for k in range(K)]
    sums = [int(whole[of[k]].sum()) - int(whole[:, k].sum()) for k in range(K)]
    while any(sums):
        a, b = int(np.argmax(sums)), int(np.argmin(sums))
        left = amount = min(sums[a], -sums[b])
        for i in of[a][np.argsort(-whole[of[a], b])].tolist():
            part = min(left, int(whole[i, b]))
            whole[i, b] -= part
            left -= part
        for i in of[b][np.argsort(whole[of[b]].sum(axis=1) - most[of[b]])].tolist():
            part = min(left, int(most[i]) - int(whole[i].sum()))
            whole[i, a] += part
            left -= part
        if left:
            return np.zeros_like(whole)
        sums[a] -= amount
        sums[b] += amount
    return whole
