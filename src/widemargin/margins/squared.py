"""The F1 margin for squared ReLU units: columns from local search, proofs from eigenvalues (`pricing.squares`).

margin = min_{q in simplex} max_{|v| = 1} |sum_i q_i y_i relu(v . x_i)^2|
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from widemargin.pricing import search
from widemargin.pricing.points import Points, reduce_rank
from widemargin.pricing.squares import Proof, Tree, circle, objective, polish, top_eigenvalue
from widemargin.types import Measure

from ._vanishing import zero_margin
from .door import Door, Progress, distinct_rows
from .engine import Engine, new_directions
from .programs import ColumnLP

STARTS = 384  # most local searches per side and round
CENTRE = 0.7  # weight of the best dual so far in the point where the linear program prices
INFLATE = 1e-10  # relative room that the exact check of positive semidefiniteness needs
PROOF_SIZE = 3e6  # leaves times D^2 of a proof, about a minute of exact checking
MAX_LEAVES = 30_000
TELL = 1.0  # seconds after which a growing tree says how far it is


@dataclass
class Dual:
    """An upper bound with the weights that prove it; `trees` for both sides where it took a tree."""

    upper: float
    q: np.ndarray  # (n,) on the distinct points
    bound: str
    trees: tuple[Proof, ...] = ()


class Solver(Engine):
    """All points are scaled, distinct, and written in an orthonormal basis of their span."""

    step = 1e-6

    def __init__(self, door: Door, tol: float, seed: int, device: str, progress: Progress | None):
        super().__init__(door, tol, seed, progress)
        self.first = distinct_rows(np.hstack([door.X, door.y[:, None]]))  # a repeated point adds nothing to a minimum
        self.X0, self.y = door.X[self.first], door.y[self.first]  # (n, D), (n,)
        self.X, self.basis = reduce_rank(self.X0)  # (n, r), (D, r)
        self.n, self.r = self.X.shape
        self.points = Points(self.X0, self.y, door.shift, torch.device(device), self.basis)
        self.plane = self.X0.shape[1] <= 2
        self.Xt = self.points.Xt
        self.square = (self.X**2).sum(1)
        # What rounding does to a squared term, relative to |x|^2: a point also has a part beside the span that is worked in.
        beside = np.linalg.norm(self.X0 - self.X @ self.basis.T, axis=1) / np.linalg.norm(self.X0, axis=1).clip(1e-300)
        self.blur = 1e-13 + 3 * float(beside.max())
        self.dual = Dual(np.inf, np.full(self.n, 1 / self.n), "eigen")
        self.mass, self.atoms, self.atom_signs = np.zeros(0), np.zeros((0, self.r)), np.zeros(0)
        self.V, self.s = np.zeros((0, self.r)), np.zeros(0)  # neurons of the linear program
        self.lp, self.known, self.scale = ColumnLP(self.n), 0, 1.0  # features enter the program divided by `scale`
        self.centre = self.dual.q
        self.goal = 0.5  # share of tol at which the linear program hands over to the tree

    # ------------------------------------------------------------------ the run

    def nothing(self) -> tuple[np.ndarray, dict[str, Any], float, str] | None:
        return zero_margin(self.door)

    def start(self) -> None:
        self.eigen_bound(np.full(self.n, 1 / self.n))
        self.eigen_bound(eigen_dual(self.X, self.y, min(0.1 * self.left(), 20.0)))
        self.tell("eigenvalue bound")

    def round(self) -> bool:
        self.linear_phase()
        if self.closed() or self.late():
            return True
        new = self.known < len(self.V) if self.plane else self.prove()
        if not new:
            self.goal *= 0.4  # the dual is not good enough yet
        return new

    # ------------------------------------------------------------------ dual weights

    def eigen_bound(self, q: np.ndarray) -> None:
        """relu(t)^2 <= t^2: the largest eigenvalue of the positive part bounds each side."""
        q = self.points.cleaned(q)
        upper = max(top_eigenvalue(self.X, q * (self.y == s)) for s in (1, -1))
        self.take_dual(Dual(upper + self.blur * float(q @ self.square), q, "eigen"))

    # ------------------------------------------------------------------ neurons

    def features(self, V: np.ndarray) -> np.ndarray:
        return (self.X @ V.T).clip(0) ** 2  # (n, k)

    def add(self, V: np.ndarray, s: float, most: int) -> int:
        """Take up to `most` of the unit neurons V (best first) whose direction is new."""
        taken = new_directions(V, self.V[self.s == s], 2e-11, 2e-11, most)
        self.V, self.s = np.vstack([self.V, taken]), np.append(self.s, np.full(len(taken), s))
        return len(taken)

    def search(self, q: np.ndarray, most: int = 30) -> tuple[float, int]:
        """Price at q on both sides: the best value found, and how many new neurons were taken. Exact in the plane."""
        best, new = 0.0, 0
        starts = np.vstack([self.rng.standard_normal((min(STARTS, 48 + 16 * self.r), self.r)), self.atoms])
        for s in (1.0, -1.0):
            c = s * q * self.y
            if self.plane:
                V, value = circle(self.X, c)
            else:
                T, _ = search.ascend(self.Xt, self.points.tensor(c), self.points.tensor(starts), 30, 2)
                V, value = polish(self.X, c, T.cpu().numpy())
            met = objective(self.X, c, self.V[self.s == s])  # of all neurons so far
            best = max(best, float(met.max(initial=0.0)))
            if len(value):
                best = max(best, float(value[0]))
                new += self.add(V[value > self.lower * (1 + 0.02 * self.tol)], s, most)
        if self.plane:
            self.take_dual(Dual(best + self.blur * float(q @ self.square), q, "enumeration"))
        return best, new

    def offer_mixture(self, a: np.ndarray) -> None:
        """Keep the network of the linear program if its margin, from the definition, is the best so far."""
        support = np.flatnonzero(a > 1e-10)
        if len(support) == 0:
            return
        V, mass, s = self.V[support], a[support], self.s[support]
        margin = float((self.y * (self.features(V) @ (mass * s))).min() / mass.sum())
        if margin > self.lower:
            self.lower, self.mass, self.atoms, self.atom_signs = margin, mass, V, s

    def linear_phase(self) -> None:
        """Column generation over neurons, pricing near the best dual so far, until dual estimate and network meet."""
        stalled, until = 0, time.perf_counter() + 0.5 * self.left()  # the other half is for a proof
        if len(self.V) == 0:
            self.search(self.points.cleaned(np.full(self.n, 1 / self.n)), 100)
        for _ in range(150):
            if time.perf_counter() > until:
                return
            q = self.master()
            point = self.points.cleaned(q if np.isinf(self.estimate) else CENTRE * self.centre + (1 - CENTRE) * q)
            value, new = self.search(point)
            stalled = 0 if self.offer_centre(point, value) else stalled + 1
            if new == 0 or stalled >= 3:
                q = self.points.cleaned(q)
                value, more = self.search(q)
                new += more
                stalled = 0 if self.offer_centre(q, value) else stalled
            self.tell(f"linear program, {len(self.V)} neurons, estimate {self.estimate / self.unit():.6f}")
            if self.closed() or self.estimate <= self.lower * (1 + self.goal * self.tol) or new == 0 or stalled >= 12:
                return

    def master(self) -> np.ndarray:
        """Solve the linear program over all neurons; its dual weights."""
        margin = self.lower or self.upper
        if not 0.1 < margin / self.scale < 10:  # its tolerances are absolute: keep the margin near 1
            self.lp, self.known, self.scale = ColumnLP(self.n), 0, margin
        V, s = self.V[self.known :], self.s[self.known :]
        self.lp.add(self.y[:, None] * self.features(V) * (s / self.scale))
        self.known = len(self.V)
        a, q = self.lp.solve(self.left())
        self.offer_mixture(a)
        return q

    # ------------------------------------------------------------------ proofs

    def prove(self) -> bool:
        """Grow trees at the best dual on both sides, the worse one first. False if there is nothing more to gain."""
        q, sides = self.centre, (1.0, -1.0)
        trees = [Tree(self.Xt, self.points.tensor(s * q * self.y)) for s in sides]
        known = max(self.lower, self.estimate)
        most = min(MAX_LEAVES, PROOF_SIZE / self.X0.shape[1] ** 2)
        early, told = self.left() / 2, time.perf_counter()
        try:
            while not self.late():
                best = max(known, *(tree.best for tree in trees))
                limit = best * (1 + 0.3 * self.tol)
                worst = max(trees, key=lambda tree: tree.bound)
                if worst.bound <= limit or sum(tree.leaves for tree in trees) > most or not worst.step(limit):
                    break
                if time.perf_counter() - told > TELL:
                    told = time.perf_counter()
                    nodes = sum(tree.nodes for tree in trees)
                    self.tell(f"tree, {nodes} nodes, bound {worst.bound / self.unit():.6g}")
                if best > self.lower * (1 + self.tol) and best > known * (1 + 0.1 * self.tol) and self.left() >= early:
                    break  # this q cannot be certified: the neurons found will mend it
        finally:  # also when interrupted: a tree is valid after every step
            limit = max(known, *(tree.best for tree in trees)) * (1 + 0.3 * self.tol)
            bound = max(limit, *(tree.bound for tree in trees))
            self.nodes += sum(tree.nodes for tree in trees)
            if bound < self.upper:
                proofs = tuple(tree.proof(bound, self.blur) for tree in trees)
                self.take_dual(Dual(max(bound, *(p.bound for p in proofs)), q, "eigen-tree", proofs))
        new = 0
        for s, tree in zip(sides, trees):
            V, value = polish(self.X, s * q * self.y, tree.found())
            new += self.add(V[value > self.lower * (1 + 0.02 * self.tol)], s, 30)
            if len(value):
                self.estimate = max(self.estimate, float(value[0]))
        self.tell(f"tree of {self.nodes} nodes, estimate {self.estimate / self.unit():.6f}")
        return new > 0

    # ------------------------------------------------------------------ results

    def network(self) -> Measure | None:
        if len(self.mass) == 0:
            return None
        return self.measure(self.atoms, self.mass * self.atom_signs / self.mass.sum(), self.basis)

    def proof(self) -> tuple[dict[str, Any], float, np.ndarray]:
        upper, proof = self.upper * (1 + INFLATE), dict[str, Any](type=self.dual.bound)
        if self.dual.bound == "eigen":
            proof["sides"] = [{"sign": s, "lam": self.door.unscale(upper, 2, up=True)} for s in (1, -1)]
        elif self.dual.bound == "eigen-tree":
            proof["sides"] = [{"sign": s} | tree.side(self.first) for s, tree in zip((1, -1), self.dual.trees)]
        q = np.zeros(self.door.data.n)
        q[self.first] = self.dual.q
        return proof, upper, q


def eigen_dual(X: np.ndarray, y: np.ndarray, seconds: float) -> np.ndarray:
    """Weights that make the eigenvalue bound small: min_q lambda_max(sum q_i x_i x_i') per class, then balanced."""
    q, value = np.zeros(len(X)), {}
    for s in (1.0, -1.0):
        index = np.flatnonzero(y == s)
        if len(index):
            q[index], value[s] = smallest_top(X[index], time.perf_counter() + seconds / 2)
    if len(value) == 2:
        q *= np.where(y > 0, value[-1.0], value[1.0])
    return q / q.sum()


def smallest_top(X: np.ndarray, deadline: float) -> tuple[np.ndarray, float]:
    """q in the simplex that makes lambda_max(sum_i q_i x_i x_i') small, and that value, by column generation."""
    n = len(X)
    lp, Z = ColumnLP(n), np.zeros((n, 0))
    q = centre = np.full(n, 1 / n)
    best = np.inf
    for _ in range(200):
        for point in (CENTRE * centre + (1 - CENTRE) * q, q):
            value, Q = np.linalg.eigh((X.T * point) @ X)
            if value[-1] < best:
                best, centre = float(value[-1]), point
            new = (X @ Q[:, value > 0.9 * value[-1]][:, -8:]) ** 2
            lp.add(new)
            Z = np.hstack([Z, new])
        if time.perf_counter() > deadline:
            break
        a, q = lp.solve(max(deadline - time.perf_counter(), 0.05))
        if best - (Z @ a).min() <= 1e-4 * best:
            break
    return centre, best
