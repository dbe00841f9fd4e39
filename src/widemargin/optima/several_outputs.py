"""Networks with several outputs, for classes or for real targets: the same rounds, with vectors where `solver` has numbers.

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

from widemargin.margins.door import EPS
from widemargin.margins.engine import Engine, Progress, prune_masses
from widemargin.pricing import several
from widemargin.pricing.points import Points as Priceable
from widemargin.types import Certificate

from .groups import fit
from .losses import CLASSES
from .outputs import forward
from .problem import SeveralProblem, along, coordinates

POOL = 200  # neurons that a master may have besides those of the network
NEW = 40  # neurons that a round may add
STARTS, CLIMBERS = 192, 60  # local searches per round, and how many of the best are polished
BEGIN = 1e-6  # seconds for each entry of X and output that a proof takes at the least
AN_ARC, BESIDE = (
    6000,
    20,
)  # operations for each point and output when all arcs of the plane are listed, and numbers held


@dataclass
class Dual:
    """Weights, the objective that they prove, and the bound of the largest |sum_i g_i relu(v . x_i)| that does it.

    What is saved is q (n, K); the weights are 2^power q.
    """

    value: float
    q: np.ndarray
    power: int
    bound: float
    saved: dict[str, Any]


KINDS = {CLASSES: "f1-multiclass-optimum", "squared": "f1-multitarget-optimum"}


class Solver(Engine):
    convention = "objective"
    share = 0.95
    theta: np.ndarray  # (m, D), (m, K) and (K,): the network as it is saved
    outer: np.ndarray
    offset: np.ndarray

    def __init__(self, problem: SeveralProblem, tol: float, seed: int, device: str, progress: Progress | None):
        door, points = problem.door, problem.points
        self.kind = KINDS[points.loss]
        super().__init__(door, tol, seed, progress)
        self.problem, self.points, self.n, self.K = problem, points, len(door.X), points.K
        self.X, self.basis, self.whitening = coordinates(door)  # (n, r), (D, r), (r, r)
        self.r = self.X.shape[1]
        self.flat = door.X.shape[1] <= 2
        self.blind = not self.r  # there are no coordinates to look for neurons in
        self.where = Priceable(door.X, None, door.shift, torch.device(device), self.basis, faint=door.faint)
        self.where.beat, self.where.memory = self.beat, door.limits.memory
        self.V, self.A, self.b = np.zeros((0, self.r)), np.zeros((0, self.K)), np.zeros(self.K)
        self.best_network = self.V, self.A, self.b
        self.upper = self.value()
        q, power = points.dual_weights(self.outputs())
        self.dual = Dual(-math.inf, q, power, math.inf, {"type": "norm"})
        self.offer(several.norm(door.X, points.vectors(q)), q, power)
        self.centre, self.power, self.estimate, self.steepest = q, power, -math.inf, math.inf
        self.attempted = math.inf  # what the last proof left open when it began

    def begin_with(self, theta: np.ndarray, outer: np.ndarray, offset: np.ndarray) -> None:
        """Start from a network in units of the data."""
        if not self.r:
            self.X, self.basis = along(self.door, theta)
            self.r, self.V = self.X.shape[1], self.basis[:0]
            self.best_network = self.V, *self.best_network[1:]
        theta = theta @ self.basis
        size = np.linalg.norm(theta, axis=1)
        on = (size > 0) & outer.any(axis=1)
        self.V = theta[on] / size[on, None]
        self.A = np.ldexp(outer[on] * size[on, None], self.door.shift - self.problem.power)
        if self.points.offset:
            self.b = np.ldexp(np.array(offset, dtype=np.float64), -self.problem.power)
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
        return forward(self.X, self.V, self.A, self.b)

    def value(self) -> float:
        return self.points.objective(self.outputs(), float(np.linalg.norm(self.A, axis=1).sum()), self.b)

    def keep(self) -> None:
        value = self.value()
        if value < self.upper:
            on = self.A.any(axis=1)
            self.upper, self.best_network = value, (self.V[on], self.A[on], self.b)

    def proved(self, q: np.ndarray, power: int, bound: float) -> float:
        """The objective that weights 2^power q prove when the maximum of q is at most `bound`."""
        lam = math.ldexp(self.points.lam, -power)
        return self.points.proved(q, min(1.0, lam / bound) if bound > 0 else 1.0, power)[0]

    def enough(self, q: np.ndarray, power: int, wanted: float) -> float:
        """The largest bound at which q proves `wanted`; 0 if there is none."""
        low, high = 0.0, 1.0
        if self.points.proved(q, 1.0, power)[0] < wanted:
            return 0.0
        for _ in range(40):
            theta = (low + high) / 2
            low, high = (low, theta) if self.points.proved(q, theta, power)[0] >= wanted else (theta, high)
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

    def late(self) -> bool:
        return self.blind or super().late()

    def start(self) -> None:
        """The best constant, unless there is a network to begin with."""
        if not len(self.V):
            self.b = self.points.constant()
            self.keep()
        if not self.late():
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
        q, power = self.points.dual_weights(self.outputs())
        V, value = self.search(q, power)
        lam = math.ldexp(self.points.lam, -power)
        self.slope = float(value[0]) / lam - 1
        estimate = self.proved(q, power, float(value[0]))
        if estimate > self.estimate:
            self.centre, self.power, self.estimate, self.steepest = q, power, estimate, float(value[0])
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
        g = self.points.vectors(q)
        most = np.clip(3e6 / (self.n * (self.r + self.K)), 24, STARTS)
        count = int(np.clip(self.door.limits.search_work() / (self.n * (self.r + self.K)), 4, most))
        Z = self.rng.standard_normal((count, self.r))
        if self.whitening is not None:
            Z[1::2] = Z[1::2] @ self.whitening
        begin, until = np.vstack([self.V[self.A.any(axis=1)], Z]), self.door.deadline
        X, vectors, begin = several.placed(self.where, self.X, g, begin)
        V, value = several.ascend(X, vectors, begin, 40, until)
        if self.X.size <= several.CLIMB:
            V, value = several.climb(X, vectors, several.best(V, value, CLIMBERS), until=until)
        V, value = several.fetched(V, value)
        size, limits = self.n * (self.K + 1), self.door.limits
        self.hurried = self.flat and not (limits.affords(AN_ARC * size) and 8 * BESIDE * size <= limits.memory)
        if self.hurried:
            self.offer(several.norm(self.door.X, g), q, power)
        elif self.flat and not self.late():
            proof, arcs = several.enumeration(self.door.X, g)
            self.offer(proof, q, power)
            V = np.vstack([V, arcs @ self.basis])
            value = np.append(value, several.values(self.X, g, arcs @ self.basis))
        order = np.argsort(-value)
        return V[order], value[order]

    def prove(self, last: bool = False) -> bool:
        """Bound the slopes at the weights that look best; whether it was tried."""
        if self.flat or self.left() < BEGIN * self.X.size * self.K:
            return False  # a search is a proof; or a proof would only begin
        q, power = self.centre, self.power
        self.attempted = self.upper - self.estimate
        goal = self.enough(q, power, self.upper / (1 + 0.9 * self.share * self.tol))
        goal = max(goal, self.steepest * (1 + 1e-5), math.ldexp(self.points.lam, -power))
        g = self.points.vectors(q)
        plain = several.norm(self.door.X, g)
        if plain.upper <= goal:  # points that are 0, or a large decay
            self.offer(plain, q, power)
            return True
        unscale = partial(self.door.unscale, degree=1, up=True)
        until = max(time.perf_counter() + self.left(), time.perf_counter() + 0.2)
        for proof in several.price(self.where, g, goal, until, self.rng, unscale):
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
        low, high = np.ldexp([self.lower / self.problem.total, self.upper / self.problem.total], 2 * self.problem.power)
        return max(float(low), 0.0), float(high)

    def bounds(self, lower: float, upper: float) -> tuple[float, float]:
        return lower, upper

    def written(self) -> tuple[None, dict[str, Any], np.ndarray, float, float]:
        total, dual, power = self.problem.total, self.dual, self.problem.power
        upper = self.saved_network(*self.neurons(), self.best_network[2])
        if not upper <= self.upper * (
            1 + self.tol
        ):  # tiny or huge weights may not be what they were: then a constant may be better
            before = self.theta, self.outer, self.offset
            flat = self.saved_network(self.theta[:0], self.outer[:0], self.points.constant())
            if upper < flat:
                self.theta, self.outer, self.offset = before
            upper = upper if upper < flat else flat
        upper = upper / total * (1 + 8 * EPS)
        lower = self.below() / total * (1 - 8 * EPS)
        with np.errstate(over="ignore", under="ignore"):
            maximum = float(np.ldexp(dual.bound, self.door.shift))
            low, high = float(np.ldexp(lower, 2 * power)), float(np.ldexp(upper, 2 * power))
        proof = dual.saved | {"maximum": max(math.nextafter(maximum, math.inf), 1e-300)}
        high = self.problem.held(math.nextafter(high, math.inf)) if upper else 0.0
        return None, proof, dual.q, min(max(math.nextafter(low, -math.inf), 0.0), high), high

    def saved_network(self, theta: np.ndarray, outer: np.ndarray, b: np.ndarray) -> float:
        """Put a network in units of the door into those of the data, in which it is saved; the objective of what is left."""
        scale = self.problem.power - self.door.shift
        with np.errstate(over="ignore", under="ignore"):
            self.outer, self.offset = np.ldexp(outer, scale), np.ldexp(b, self.problem.power)
            on = self.outer.any(axis=1)
            self.theta, self.outer = theta[on], self.outer[on]
            if not np.isfinite(self.outer).all():
                return math.inf
            return self.above(self.theta, np.ldexp(self.outer, -scale), np.ldexp(self.offset, -self.problem.power))

    def above(self, theta: np.ndarray, outer: np.ndarray, b: np.ndarray) -> float:
        """The objective of a network in units of the door, rounding included."""
        points, size, m = self.points, np.linalg.norm(outer, axis=1), len(outer)
        t = forward(self.door.X, theta, outer, b)
        reach = float(size.sum()) * self.door.size + (float(np.linalg.norm(b)) if m else 0.0)
        unit = EPS * (self.door.X.shape[1] + m + self.K + 16)
        value = float(points.w @ points.losses_above(t, unit, reach)) + points.lam * float(size.sum())
        value += 0.5 * points.ridge * float(b @ b)
        return value * (1 + EPS * (self.n + m + self.door.X.shape[1] + self.K + 64))

    def below(self) -> float:
        """What the saved weights prove, rounding included."""
        points, dual = self.points, self.dual
        theta = min(1.0, math.ldexp(points.lam, -dual.power) / dual.bound) * (1 - 16 * EPS) if dual.bound else 1.0
        value, size = points.proved(dual.q, theta, dual.power)
        return value - EPS * (self.n + 40 * self.K) * size

    def neurons(self) -> tuple[np.ndarray, np.ndarray]:
        """The best network in units of the door, theta (m, D) of length 1 and outer (m, K): at most n r neurons, r the dimension
        of the outputs."""
        V, A, _ = self.best_network
        size = np.linalg.norm(A, axis=1)
        V, A, size = V[size > 0], A[size > 0], size[size > 0]
        frame = self.points.frame  # (K, r)
        if len(V) > self.n * frame.shape[1]:
            W = A / size[:, None]
            rows = ((self.X @ V.T).clip(0)[:, None, :] * (W @ frame).T).reshape(-1, len(V))
            size = prune_masses(rows, size)
            V, A = V[size > 0], W[size > 0] * size[size > 0, None]
        theta = V @ self.basis.T
        return theta / np.linalg.norm(theta, axis=1, keepdims=True).clip(1e-300), A

    def extra(self, lower: float, upper: float) -> dict[str, Any]:
        saved = self.problem.saved(self.offset, self.dual.power)
        return saved | {self.points.outputs: self.K, "theta": self.theta.tolist(), "outer": self.outer.tolist()}

    def stats(self) -> dict[str, Any]:
        return super().stats() | {"atoms": len(self.theta)}
