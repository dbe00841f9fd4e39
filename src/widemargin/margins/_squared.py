"""The F1 margin for squared ReLU units: columns from local search, proofs from eigenvalues.

    margin = min_{q in simplex} max_{|v| = 1} |sum_i q_i y_i relu(v . x_i)^2|

For fixed signs of v . x_i the inner objective is a quadratic form, so its maximum over a cone of directions is bounded
by the largest eigenvalue of

    A = sum_{active} c_i x_i x_i' + sum_{free, c_i > 0} c_i x_i x_i' + sum_{p, q fixed} N_pq s_p s_q x_p x_q',  N >= 0,

since s_p (v . x_p) >= 0 on the cone. `Tree` branches on signs, worst bound first, many nodes at a time, and lowers each
bound by choosing N (`lower_top`). In the plane the maximum is a finite enumeration (`circle`).
"""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from widemargin.pricing import search, symmetry
from widemargin.pricing.points import reduce_rank
from widemargin.types import Certificate, Measure

from . import _bounds, _door
from ._columns import column_lp
from .engine import Progress

STARTS = 384  # most local searches per side and round
CENTRE = 0.7  # weight of the best dual so far in the point where the linear program prices
STEPS = 12  # interior-point steps on the multipliers of a node
MOST_PAIRS = 96  # with multipliers in one node; usually 3 r, more was slower on parity
ROUNDS = 1  # choices of these pairs per node
INFLATE = 1e-10  # relative room that the exact check of positive semidefiniteness needs
PROOF_SIZE = 3e6  # leaves times D^2 of a proof, about a minute of exact checking
MAX_LEAVES = 30_000
POOL_BYTES = 1 << 30
NULL_POINTS = 8  # a proof that the margin is 0 lists all sign patterns of so many points


def solve(door: _door.Door, tol: float, seed: int, device: str, progress: Progress | None) -> Certificate:
    """Certified F1 margin of the data for phi(t) = relu(t)^2 (see f1)."""
    return Solver(door, tol, seed, device, progress).run()


@dataclass
class Dual:
    """An upper bound with the weights that prove it; `trees` for both sides where it took a tree."""

    upper: float
    q: np.ndarray  # (n,) on the distinct points
    bound: str
    trees: tuple[Proof, ...] = ()


class Solver:
    """State of one solve. All points are scaled, distinct, and written in an orthonormal basis of their span."""

    def __init__(self, door: _door.Door, tol: float, seed: int, device: str, progress: Progress | None):
        self.door, self.tol, self.seed, self.progress = door, tol, seed, progress
        self.rng = np.random.default_rng(seed)
        labelled = np.hstack([door.X + 0.0, door.y[:, None]])
        self.first = np.unique(labelled, axis=0, return_index=True)[1]  # a repeated point adds nothing to a minimum
        self.X0, self.y = door.X[self.first], door.y[self.first]  # (n, D), (n,)
        self.X, self.basis = reduce_rank(self.X0)  # (n, r), (D, r)
        self.n, self.r = self.X.shape
        self.plane = self.X0.shape[1] <= 2
        self.device = torch.device(device)
        self.Xt = torch.as_tensor(self.X, device=self.device)
        self.square = (self.X**2).sum(1)
        self.symmetry = symmetry.find(self.X0, self.y) if abs(door.shift) < 20 else None
        uniform = np.full(self.n, 1 / self.n)
        self.dual, self.lower = Dual(np.inf, uniform, "eigen"), 0.0
        self.mass, self.atoms, self.atom_signs = np.zeros(0), np.zeros((0, self.r)), np.zeros(0)
        self.V, self.s = np.zeros((0, self.r)), np.zeros(0)  # neurons of the linear program
        self.lp, self.known, self.unit = column_lp(self.n), 0, 1.0  # features enter the program divided by `unit`
        self.centre, self.estimate = uniform, np.inf  # the dual that looks best, with its estimated value
        self.goal = 0.5  # share of tol at which the linear program hands over to the tree
        self.rounds = self.nodes = 0

    # ------------------------------------------------------------------ the run

    def run(self) -> Certificate:
        found = zero_margin(self.door)
        if found is not None:
            q, proof, upper, reason = found
            return self.certificate("not-separable", 0.0, upper, q, proof["type"], proof, None, reason)
        try:
            self.eigen_bound(np.full(self.n, 1 / self.n))
            self.eigen_bound(self.eigen_dual())
            self.tell("eigenvalue bound")
            while not self.closed() and not self.late():
                self.linear_phase()
                if self.closed() or self.late():
                    break
                if self.plane:
                    if not self.fresh():
                        break
                elif not self.prove():
                    self.goal *= 0.4  # nothing new was found: the dual is not good enough yet
                    if self.goal < 0.05:
                        break
            status = "time-limit" if self.late() else "stalled"
        except KeyboardInterrupt:
            status = "interrupted"
        return self.finish("certified" if self.closed() else status)

    def closed(self) -> bool:
        return self.dual.upper - self.lower <= self.tol * self.lower

    def late(self) -> bool:
        return time.perf_counter() > self.door.deadline

    def seconds(self) -> float:
        return time.perf_counter() - self.door.started

    def left(self) -> float:
        return self.door.deadline - time.perf_counter()

    def fresh(self) -> bool:
        """Whether the linear program has not yet seen all neurons."""
        return self.known < len(self.V)

    def tell(self, message: str) -> None:
        self.rounds += 1
        if self.progress is not None:
            scale = 4.0**self.door.shift if abs(self.door.shift) < 500 else 1.0
            self.progress(self.seconds(), self.lower * scale, self.dual.upper * scale, message)

    # ------------------------------------------------------------------ dual weights

    def fold(self, q: np.ndarray) -> np.ndarray:
        """Clean dual weights: tiny entries to zero (fewer branchings), averaged over the symmetry, summing to one."""
        q = np.where(q > 1e-9 * q.max(), q, 0.0)
        if self.symmetry is not None:
            q = self.symmetry.average(q)
        return q / q.sum()

    def eigen_bound(self, q: np.ndarray) -> None:
        """relu(t)^2 <= t^2: the largest eigenvalue of the positive part bounds each side."""
        q = self.fold(q)
        upper = max(top_eigenvalue(self.X, q * (self.y == s)) for s in (1, -1))
        upper += 1e-13 * float(q @ self.square)
        if upper < self.dual.upper:
            self.dual = Dual(upper, q, "eigen")

    def eigen_dual(self) -> np.ndarray:
        """Weights that make the eigenvalue bound small: min_q lambda_max(sum q_i x_i x_i') per class, then balanced."""
        share = min(0.1 * self.left(), 20.0)
        q, value = np.zeros(self.n), {}
        for s in (1.0, -1.0):
            index = np.flatnonzero(self.y == s)
            if len(index):
                q[index], value[s] = smallest_top(self.X[index], time.perf_counter() + share / 2)
        if len(value) == 2:
            q *= np.where(self.y > 0, value[-1.0], value[1.0])
        return q / q.sum()

    def offer_centre(self, q: np.ndarray, value: float) -> bool:
        better = value < self.estimate * (1 - 1e-6)
        if better:
            self.centre, self.estimate = q, value
        return better

    # ------------------------------------------------------------------ neurons

    def features(self, V: np.ndarray) -> np.ndarray:
        return (self.X @ V.T).clip(0) ** 2  # (n, k)

    def add(self, V: np.ndarray, s: float, most: int) -> int:
        """Take up to `most` of the unit neurons V (best first) whose direction is new."""
        known, taken = self.V[self.s == s], []
        for v in V:
            if len(known) and float((known @ v).max()) > 1 - 1e-11:
                continue
            taken.append(v)
            known = np.vstack([known, v])
            if len(taken) == most:
                break
        if taken:
            self.V, self.s = np.vstack([self.V, taken]), np.append(self.s, np.full(len(taken), s))
        return len(taken)

    def search(self, q: np.ndarray, most: int = 30) -> tuple[float, int]:
        """Price at q on both sides: the best value found, and how many new neurons were taken. Exact in the plane."""
        best, new = 0.0, 0
        random = torch.as_tensor(self.rng.standard_normal((min(STARTS, 48 + 16 * self.r), self.r)), device=self.device)
        old = torch.as_tensor(self.atoms, device=self.device)
        for s in (1.0, -1.0):
            c = s * q * self.y
            if self.plane:
                V, value = circle(self.X, c)
            else:
                T, _ = search.ascend(self.Xt, torch.as_tensor(c, device=self.device), torch.cat([random, old]), 30, 2)
                V, value = polish(self.X, c, T.cpu().numpy())
            best = max(
                best, float(objective(self.X, c, self.V[self.s == s]).max(initial=0.0))
            )  # all neurons met so far
            if len(value):
                best = max(best, float(value[0]))
                new += self.add(V[value > self.lower * (1 + 0.02 * self.tol)], s, most)
        if self.plane:
            upper = best + 1e-13 * float(q @ self.square)
            if upper < self.dual.upper:
                self.dual = Dual(upper, q, "enumeration")
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
            self.search(self.fold(np.full(self.n, 1 / self.n)), 100)
        for _ in range(150):
            if time.perf_counter() > until:
                return
            q = self.master()
            point = self.fold(q if np.isinf(self.estimate) else CENTRE * self.centre + (1 - CENTRE) * q)
            value, new = self.search(point)
            stalled = 0 if self.offer_centre(point, value) else stalled + 1
            if new == 0 or stalled >= 3:
                q = self.fold(q)
                value, more = self.search(q)
                new += more
                stalled = 0 if self.offer_centre(q, value) else stalled
            self.tell(f"linear program, {len(self.V)} neurons, estimate {self.estimate / (self.lower or 1.0):.6f}")
            if self.closed() or self.estimate <= self.lower * (1 + self.goal * self.tol) or new == 0 or stalled >= 12:
                return

    def master(self) -> np.ndarray:
        """Solve the linear program over all neurons; its dual weights."""
        if (
            self.lower > 0 and not 0.1 < self.lower / self.unit < 10
        ):  # its tolerances are absolute: keep the margin near 1
            self.lp, self.known, self.unit = column_lp(self.n), 0, self.lower
        V, s = self.V[self.known :], self.s[self.known :]
        self.lp.add(self.y[:, None] * self.features(V) * (s / self.unit))
        self.known = len(self.V)
        a, q = self.lp.solve(self.left())
        self.offer_mixture(a)
        return q

    # ------------------------------------------------------------------ proofs

    def prove(self) -> bool:
        """Grow trees at the best dual on both sides, the worse one first. False if there is nothing more to gain."""
        q, sides = self.centre, (1.0, -1.0)
        trees = [Tree(self.Xt, torch.as_tensor(s * q * self.y, device=self.device)) for s in sides]
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
                if time.perf_counter() - told > 1.0:
                    told = time.perf_counter()
                    nodes = sum(tree.nodes for tree in trees)
                    self.tell(f"tree, {nodes} nodes, bound {worst.bound * 4.0**self.door.shift:.6g}")
                if best > self.lower * (1 + self.tol) and best > known * (1 + 0.1 * self.tol) and self.left() >= early:
                    break  # this q cannot be certified: the neurons found will mend it
        finally:  # also when interrupted: a tree is valid after every step
            limit = max(known, *(tree.best for tree in trees)) * (1 + 0.3 * self.tol)
            bound = max(limit, *(tree.bound for tree in trees))
            self.nodes += sum(tree.nodes for tree in trees)
            if bound < self.dual.upper:
                proofs = tuple(tree.proof(bound) for tree in trees)
                self.dual = Dual(max(bound, *(p.bound for p in proofs)), q, "eigen-tree", proofs)
        new = 0
        for s, tree in zip(sides, trees):
            V, value = polish(self.X, s * q * self.y, tree.found())
            new += self.add(V[value > self.lower * (1 + 0.02 * self.tol)], s, 30)
            if len(value):
                self.estimate = max(self.estimate, float(value[0]))
        self.tell(f"tree of {self.nodes} nodes, estimate {self.estimate / (self.lower or 1.0):.6f}")
        return new > 0

    # ------------------------------------------------------------------ results

    def finish(self, status: str) -> Certificate:
        primal = self.network()
        lower = max(0.0, self.lower_rounded(primal)) if primal is not None else 0.0
        upper = self.dual.upper * (1 + INFLATE)
        proof: dict[str, Any] = {"type": self.dual.bound}
        if self.dual.bound == "eigen":
            proof["sides"] = [{"sign": s, "lam": self.door.unscale(upper, 2, up=True)} for s in (1, -1)]
        elif self.dual.bound == "eigen-tree":
            proof["sides"] = [{"sign": s} | tree.side(self.first) for s, tree in zip((1, -1), self.dual.trees)]
        reason = "" if status == "certified" else "stopped before the gap reached tol; both bounds hold"
        if status == "certified" and upper - lower > self.tol * lower * (1 + 1e-6):
            status, reason = "rounding", "float64 cannot close the gap to tol; both bounds hold"
        elif status == "stalled":
            reason = "no better network or dual was found, before the time limit; both bounds hold"
        q = np.zeros(self.door.data.n)
        q[self.first] = self.dual.q
        return self.certificate(status, lower, upper, q, self.dual.bound, proof, primal, reason)

    def network(self) -> Measure | None:
        if len(self.mass) == 0:
            return None
        theta = self.atoms @ self.basis.T  # (m, D)
        theta /= np.linalg.norm(theta, axis=1, keepdims=True)
        return Measure(theta, self.mass * self.atom_signs / self.mass.sum(), "srelu", self.door.space.bias)

    def lower_rounded(self, primal: Measure) -> float:
        """A number the exact margin of `primal` certainly reaches, in scaled units."""
        score = self.door.y * ((self.door.X @ primal.theta.T).clip(0) ** 2 @ primal.mass)
        error = 8 * _door.EPS * (self.X0.shape[1] + len(primal.mass) + 8) * self.door.size**2
        return float((score - error).min()) / (primal.norm * (1 + 1e-14 * (8 + len(primal.mass) ** 0.5)))

    def certificate(
        self,
        status: str,
        lower: float,
        upper: float,
        q: np.ndarray,
        bound: str,
        proof: dict[str, Any],
        primal: Measure | None,
        reason: str,
    ) -> Certificate:
        door = self.door
        return Certificate(
            kind="f1",
            lower=door.unscale(lower, 2, up=False),
            upper=door.unscale(upper, 2, up=True),
            dual=q,
            status=status,
            proved=True,
            bound=bound,
            n=door.data.n,
            d=door.data.d,
            primal=primal,
            bias=door.space.bias,
            activation="srelu",
            data_sha256=door.data.sha256(),
            data_name=door.data.name,
            reason=reason,
            proof=proof,
            stats={"seconds": self.seconds(), "seed": self.seed, "rounds": self.rounds, "nodes": self.nodes},
        )


# ---------------------------------------------------------------- eigenvalues and local maxima


def top_eigenvalue(X: np.ndarray, w: np.ndarray) -> float:
    """lambda_max of sum_i w_i x_i x_i', w >= 0."""
    X = X[w > 0] * np.sqrt(w[w > 0, None])
    return float(np.linalg.norm(X, 2)) ** 2 if len(X) else 0.0


def smallest_top(X: np.ndarray, deadline: float) -> tuple[np.ndarray, float]:
    """q in the simplex that makes lambda_max(sum_i q_i x_i x_i') small, and that value, by column generation."""
    n = len(X)
    lp, Z = column_lp(n), np.zeros((n, 0))
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


def objective(X: np.ndarray, c: np.ndarray, V: np.ndarray) -> np.ndarray:
    return (V @ X.T).clip(0) ** 2 @ c  # (k,)


def polish(X: np.ndarray, c: np.ndarray, V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The best different rows of V, best first, moved to the top eigenvectors of their patterns while that helps."""
    most = max(3, min(60, 300 // X.shape[1]))
    V, value = distinct(V, objective(X, c, V), 1e-4, most)
    live = np.arange(len(V))
    for _ in range(8):
        M = (X.T[None] * (c * (V[live] @ X.T > 0))[:, None, :]) @ X  # (k, r, r)
        W = np.linalg.eigh(M)[1][:, :, -1]
        W *= np.where((W * V[live]).sum(1) < 0, -1.0, 1.0)[:, None]
        other = objective(X, c, W)
        better = other > value[live] * (1 + 1e-14)
        live = live[better]
        if len(live) == 0:
            break
        V[live], value[live] = W[better], other[better]
    return distinct(V, value, 1e-12, most)


def distinct(V: np.ndarray, value: np.ndarray, near: float, most: int) -> tuple[np.ndarray, np.ndarray]:
    """At most `most` rows with a positive value, best first, no two with a cosine above 1 - near."""
    order = np.argsort(-value)
    order = order[value[order] > 0]
    V, value, kept = V[order], value[order], []
    open_ = np.ones(len(V), dtype=bool)
    for j in range(len(V)):
        if open_[j]:
            kept.append(j)
            open_ &= V @ V[j] <= 1 - near
            if len(kept) == most:
                break
    return V[kept], value[kept]


def circle(X: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All local maxima of sum_i c_i relu(v . x_i)^2 on the unit circle (X has one or two columns), best first.

    Between two neighbouring directions orthogonal to points the objective is a quadratic form, so a maximum is one of
    these directions or the top eigenvector of an arc; each is a direction, so evaluating too many does no harm.
    """
    if X.shape[1] == 1:
        V = np.array([[1.0], [-1.0]])
        value = objective(X, c, V)
        order = np.argsort(-value)
        return V[order], value[order]
    used = c != 0
    P, w = X[used], c[used]
    across = np.arctan2(P[:, 1], P[:, 0]) + np.pi / 2
    ends = np.unique(np.concatenate([across, across + np.pi, np.arange(4) * np.pi / 2]) % (2 * np.pi))
    middle = (ends + np.append(ends[1:], ends[0] + 2 * np.pi)) / 2
    W = w[:, None] * np.stack([P[:, 0] ** 2, P[:, 0] * P[:, 1], P[:, 1] ** 2], 1)  # (n, 3)
    turn: list[np.ndarray] = []
    found: list[np.ndarray] = []
    for block in np.array_split(np.arange(len(ends)), -(-len(ends) // 1024)):
        at = middle[block]
        M = (np.stack([np.cos(at), np.sin(at)], 1) @ P.T > 0) @ W
        top = np.arctan2(2 * M[:, 1], M[:, 0] - M[:, 2]) / 2
        top += np.pi * np.rint((at - top) / np.pi)  # of both signs the one nearer to the arc
        here = np.concatenate([ends[block], top])
        turn.append(here)
        found.append(objective(P, w, np.stack([np.cos(here), np.sin(here)], 1)))
    angle, values = np.concatenate(turn), np.concatenate(found)
    return distinct(np.stack([np.cos(angle), np.sin(angle)], 1), values, 1e-12, 400)


# ---------------------------------------------------------------- branch and bound


def lower_top(A: Tensor, a: Tensor, b: Tensor, used: Tensor, limit: float, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Minimise lambda_max(A + sum_k N_k B_k) over N >= 0, B_k = (a_k b_k' + b_k a_k') / 2, each problem until `limit`.

    A primal-dual interior-point method (HKM direction) for  min t, S = t I - A - sum N_k B_k >= 0  and  max <A, V>,
    tr V = 1, <B_k, V> >= 0. A (m, r, r); a, b (m, K, r); `used` (m, K) marks the k that are there. Returns the best
    value, its N (m, K), and the last V; every N >= 0 is valid, so nothing depends on how well it was solved.
    """
    m, r = A.shape[:2]
    eye = torch.eye(r, dtype=A.dtype, device=A.device)
    a, b = a * used[:, :, None], b * used[:, :, None]
    spectrum = torch.linalg.eigvalsh(A)
    best, best_N = spectrum[:, -1].clone(), torch.zeros(m, a.shape[1], dtype=A.dtype, device=A.device)
    best_V = (eye / r).repeat(m, 1, 1)
    live = torch.arange(m, device=A.device)
    scale = spectrum.abs().amax(1).clamp_min(1e-300)
    N = torch.full_like(best_N, 0.1) / used.sum(1, keepdim=True).clamp_min(1)
    z = torch.full_like(N, 1.0 / r)
    V = best_V.clone()
    A = A / scale[:, None, None]

    def total(N: Tensor, a: Tensor, b: Tensor) -> Tensor:
        half = (a * N[:, :, None]).mT @ b
        return (half + half.mT) / 2

    t = torch.linalg.eigvalsh(A + total(N, a, b))[:, -1] + 0.5
    goal = limit / scale
    for _ in range(steps):
        S = t[:, None, None] * eye - A - total(N, a, b)
        L, bad = torch.linalg.cholesky_ex(S)
        if bad.any():
            L = torch.where((bad > 0)[:, None, None], eye, L)
        inverse = torch.cholesky_inverse(L)
        count = used.sum(1) + r
        mu = ((V * S).sum((1, 2)) + (N * z * used).sum(1)) / count
        target = 0.12 * mu
        aV, bV, aS, bS = a @ V, b @ V, a @ inverse, b @ inverse
        H = (
            (bV @ a.mT) * (aS @ b.mT)
            + (bV @ b.mT) * (aS @ a.mT)
            + (aV @ a.mT) * (bS @ b.mT)
            + (aV @ b.mT) * (bS @ a.mT)
        )
        H = H / 4
        H = (H + H.mT) / 2 + torch.diag_embed(torch.where(used, z / N, 1.0))
        VS = V @ inverse
        cross = ((aV * bS).sum(2) + (bV * aS).sum(2)) / 2  # <B_k, V S^-1>
        right = torch.where(used, target[:, None] * (1 / N - (aS * b).sum(2)), 0.0)
        # H dN - cross dt = right;  cross . dN - tr(V S^-1) dt = 1 - target tr S^-1
        trace = VS.diagonal(dim1=1, dim2=2).sum(1)
        factor, bad2 = torch.linalg.cholesky_ex(H + 1e-14 * torch.diag_embed(H.diagonal(dim1=1, dim2=2)))
        solved = torch.cholesky_solve(torch.stack([right, cross], 2), factor)
        p, q = solved[:, :, 0], solved[:, :, 1]
        rest = 1 - target * inverse.diagonal(dim1=1, dim2=2).sum(1) - (cross * p).sum(1)
        dt = rest / ((cross * q).sum(1) - trace)
        dN = p + q * dt[:, None]
        dS = dt[:, None, None] * eye - total(dN, a, b)
        dV = target[:, None, None] * inverse - V - (V @ dS @ inverse + inverse @ dS @ V) / 2
        dz = (target[:, None] - z * dN) / N - z
        good = (
            (bad == 0) & (bad2 == 0) & torch.isfinite(dN).all(1) & torch.isfinite(dt) & torch.isfinite(dV).all(2).all(1)
        )
        dN, dz = torch.where(used & good[:, None], dN, 0.0), torch.where(used & good[:, None], dz, 0.0)
        dt, dS = torch.where(good, dt, 0.0), torch.where(good[:, None, None], dS, 0.0)
        dV = torch.where(good[:, None, None], dV, 0.0)
        primal = torch.minimum(room(L, dS), ratio(N, dN))
        LV, bad3 = torch.linalg.cholesky_ex(V)
        LV = torch.where((bad3 > 0)[:, None, None], eye, LV)
        dual = torch.minimum(room(LV, dV), ratio(z, dz))
        t, N = t + primal * dt, N + primal[:, None] * dN
        V, z = V + dual[:, None, None] * dV, z + dual[:, None] * dz
        V = (V + V.mT) / 2
        value = torch.linalg.eigvalsh(A + total(N, a, b))[:, -1]
        better = value * scale < best[live]
        at = live[better]
        best[at], best_N[at] = (value * scale)[better], (N * scale[:, None] * used)[better]
        best_V[live] = V
        # done: below the limit, or clearly solved and above it
        size = V.diagonal(dim1=1, dim2=2).sum(1)
        reached = (A * V).sum((1, 2)) / size
        feasible = ((a @ V) * b).sum(2).amin(1) > -1e-5 * size
        settled = feasible & (reached > goal) & (value - reached < 0.1 * (value - goal))
        more = good & (bad3 == 0) & (value > goal) & ~settled & (mu > 1e-13)
        if not more.any():
            break
        if not more.all():
            live, A, a, b, used, N, z, V, t, scale, goal = (
                x[more] for x in (live, A, a, b, used, N, z, V, t, scale, goal)
            )
    return best, best_N, best_V


def room(L: Tensor, d: Tensor) -> Tensor:
    """The largest step in [0, 1] that keeps L L' + step d well inside the cone."""
    W = torch.linalg.solve_triangular(L, torch.linalg.solve_triangular(L, d, upper=False).mT, upper=False)
    least = torch.linalg.eigvalsh((W + W.mT) / 2)[:, 0]
    return (0.9 / (-least).clamp_min(1e-300)).clamp_max(1.0)


def ratio(x: Tensor, d: Tensor) -> Tensor:
    return (0.9 / (-d / x).amax(1).clamp_min(1e-300)).clamp_max(1.0)


class Tree:
    """Branch and bound for max_{|v| = 1} sum_i c_i relu(v . x_i)^2 over the signs of v . x_i.

    Signs are 1 (active), -1 (inactive) and 0 (free). Every node keeps the multipliers of at most K pairs of fixed
    points: `pairs` (K,) as first * p + second, and `N` (K,).
    """

    def __init__(self, X: Tensor, c: Tensor):
        self.points = torch.nonzero(c).flatten()
        self.size = X[self.points].norm(dim=1)
        self.U = X[self.points] / self.size[:, None]  # (p, r)
        self.c = c[self.points] * self.size**2
        self.best, self.nodes, self.leaves = 0.0, 1, 1
        (self.p, r), device = self.U.shape, X.device
        self.up = torch.triu_indices(self.p, self.p, 1, device=device)
        self.K = min(self.up.shape[1], max(24, 3 * r), MOST_PAIRS)
        self.batch = 4096 if device.type == "cuda" else 64 if r <= 16 else 8
        # blocks of nodes: parent, sign of the branching, its point
        self.parent, self.sign, self.where = [[-1]], [[0]], [[-1]]
        self.closed: list[tuple[Tensor, ...]] = []  # finished leaves: ids, signs, pairs, multipliers
        self.seen: list[tuple[Tensor, Tensor]] = []
        self.finished = -math.inf  # the largest bound of a leaf that cannot be branched further
        signs = torch.zeros(1, self.p, dtype=torch.int8, device=device)
        pairs = torch.zeros(1, self.K, dtype=torch.long, device=device)
        bound, pairs, N, branch = self.evaluate(signs, pairs, torch.zeros_like(pairs, dtype=torch.float64), math.inf, 1)
        ids = torch.zeros(1, dtype=torch.long, device=device)
        self.open = {"id": ids, "S": signs, "pairs": pairs, "N": N, "U": bound, "at": branch}

    @property
    def bound(self) -> float:
        top = float(self.open["U"].max()) if len(self.open["U"]) else -math.inf
        return max(top, self.finished)

    def base(self, S: Tensor) -> Tensor:
        """A without multipliers, (B, r, r)."""
        use = torch.where(S == 1, self.c, torch.where(S == 0, self.c.clamp_min(0), 0.0))  # (B, p)
        return (self.U.T[None] * use[:, None, :]) @ self.U

    def ends(self, S: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """a, b (B, K, r): on the node's region (v . a_k) (v . b_k) >= 0."""
        i, j = pairs // self.p, pairs % self.p
        sign = (torch.gather(S, 1, i) * torch.gather(S, 1, j)).double()
        return self.U[i] * sign[:, :, None], self.U[j]

    def matrices(self, S: Tensor, pairs: Tensor, N: Tensor) -> Tensor:
        a, b = self.ends(S, pairs)
        half = (a * N[:, :, None]).mT @ b
        return self.base(S) + (half + half.mT) / 2

    def evaluate(
        self, S: Tensor, pairs: Tensor, N: Tensor, limit: float, rounds: int, steps: int = STEPS
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Bounds, pairs, multipliers, where to branch next. Each round takes the pairs most violated by V."""
        value, Q = torch.linalg.eigh(self.matrices(S, pairs, N))
        bound = value[:, -1]
        near = ((value - bound[:, None]) / (0.05 * bound.abs() + 1e-300)[:, None]).exp()
        V = (Q * (near / near.sum(1, keepdim=True))[:, None, :]) @ Q.mT
        pairs, N, work, size = pairs.clone(), N.clone(), pairs.clone(), N.clone()
        several = (S != 0).sum(1) > 1
        for _ in range(rounds):
            live = torch.nonzero((bound > limit) & several).flatten()
            if len(live) == 0:
                break
            chosen, used = self.pick(S[live], work[live], size[live], V[live])
            a, b = self.ends(S[live], chosen)
            new, best, V[live] = lower_top(self.base(S[live]), a, b, used, limit, steps)
            work[live], size[live] = chosen, best
            better = new < bound[live]
            at = live[better]
            bound[at], pairs[at], N[at] = new[better], chosen[better], best[better]
        return bound, pairs, N, self.choose(S, V)

    def pick(self, S: Tensor, pairs: Tensor, N: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
        """The K pairs to use: those with large multipliers so far, then those that V violates most."""
        W = self.U * S.double()[:, :, None]
        table = W @ V @ W.mT  # (B, p, p)
        product = table[:, self.up[0], self.up[1]]  # (B, all pairs)
        there = (S[:, self.up[0]] != 0) & (S[:, self.up[1]] != 0)
        scale = product.abs().amax(1, keepdim=True) + 1e-300
        worst = table.topk(min(4, self.p), dim=2, largest=False).values[:, :, -1]  # not many pairs of one point
        many = (product > worst[:, self.up[0]]) & (product > worst[:, self.up[1]])
        score = torch.where(there, product + many * scale, math.inf)
        i, j = pairs // self.p, pairs % self.p
        flat = i * self.p - i * (i + 1) // 2 + j - i - 1  # position of (i, j) in the upper triangle
        least = N.topk(max(1, self.K // 2), dim=1).values[:, -1:]  # half of the places are for new pairs
        kept = (N - least >= 0) & (N / N.amax(1, keepdim=True).clamp_min(1e-300) > 1e-3)
        bonus = torch.zeros_like(score).scatter_reduce(1, flat.clamp_min(0), kept.double(), "amax")
        score = torch.where(there & (bonus > 0), score - 4 * scale, score)
        lowest = torch.topk(score, self.K, dim=1, largest=False)
        index = lowest.indices
        return self.up[0][index] * self.p + self.up[1][index], torch.isfinite(lowest.values)

    def choose(self, S: Tensor, V: Tensor) -> Tensor:
        """The free point whose term the relaxation overestimates most at V; V's main directions are kept as neurons."""
        out = self.U @ V  # (B, p, r)
        z = (out * self.U).sum(2)  # u_i' V u_i
        towards = S.double() @ self.U  # (B, r) where the fixed signs point
        main = (V @ towards[:, :, None])[:, :, 0]
        scale = (main * towards).sum(1, keepdim=True)
        o = torch.where(scale > 0, (main @ self.U.T) / scale.clamp_min(1e-300).sqrt(), 0.0)  # v . u_i, v oriented
        error = self.c.abs() * (z - self.c.sign() * o * o.abs()) / 2
        v = torch.where(scale > 0, main, V[:, :, 0])
        v = v / v.norm(dim=1, keepdim=True).clamp_min(1e-300)
        v = torch.cat([v, -v])
        value = (v @ self.U.T).clamp_min(0) ** 2 @ self.c
        self.best = max(self.best, float(value.max()))
        good = torch.topk(value, min(4, len(value))).indices
        self.seen.append((value[good], v[good]))
        free = S == 0
        return torch.where(free.any(1), torch.where(free, error, -1.0).argmax(1), -1)

    def step(self, limit: float) -> bool:
        """Branch on the worst open nodes. False if there are none or memory is short."""
        pool = self.open
        if len(pool["U"]) == 0 or self.finished >= self.bound or pool["N"].numel() * 16 > POOL_BYTES:
            return False
        top = torch.topk(pool["U"], min(self.batch, len(pool["U"])))
        chosen = top.indices[top.values > limit]
        at, ids = pool["at"][chosen], pool["id"][chosen]
        left, right = pool["S"][chosen], pool["S"][chosen]
        rows = torch.arange(len(chosen), device=at.device)
        left[rows, at], right[rows, at] = 1, -1
        S = torch.cat([left, right])
        bound, pairs, N, branch = self.evaluate(
            S, pool["pairs"][chosen].repeat(2, 1), pool["N"][chosen].repeat(2, 1), limit, ROUNDS
        )
        last = (branch < 0) & (bound > limit)
        if last.any():  # all signs are fixed: nothing is left but more rounds
            bound[last], pairs[last], N[last], _ = self.evaluate(S[last], pairs[last], N[last], limit, 6, 4 * STEPS)
        done = (bound <= limit) | (branch < 0)
        new = torch.arange(self.nodes, self.nodes + len(S), device=S.device)
        keep = torch.ones(len(pool["U"]), dtype=torch.bool, device=S.device)
        keep[chosen] = False
        fresh = {"id": new, "S": S, "pairs": pairs, "N": N, "U": bound, "at": branch}
        after = {k: torch.cat([pool[k][keep], fresh[k][~done]]) for k in pool}
        parents, points = ids.tolist() * 2, at.tolist() * 2
        signs = [1] * len(ids) + [-1] * len(ids)
        finished = tuple(x[done].cpu() for x in (new, S, pairs, N))
        stays = float(bound[last].max()) if last.any() else -math.inf
        # Only plain assignments from here on: an interrupt finds the tree before or after the step.
        self.parent.append(parents)
        self.sign.append(signs)
        self.where.append(points)
        self.closed.append(finished)
        self.finished = max(self.finished, stays)
        self.open, self.nodes, self.leaves = after, self.nodes + len(S), self.leaves + len(ids)
        return True

    def found(self) -> np.ndarray:
        values, V = torch.cat([v for v, _ in self.seen]), torch.cat([v for _, v in self.seen])
        return V[torch.argsort(-values)[:400]].cpu().numpy()

    def proof(self, limit: float) -> Proof:
        """The tree on paper: preorder, and per leaf integer multipliers, the smallest left out where that is free."""
        leaves = [*self.closed, tuple(self.open[k].cpu() for k in ("id", "S", "pairs", "N"))]
        position = {int(i): (a, b) for a, block in enumerate(leaves) for b, i in enumerate(block[0])}
        parent, sign = list(itertools.chain(*self.parent)), list(itertools.chain(*self.sign))
        where, children = list(itertools.chain(*self.where)), dict[int, dict[int, int]]()
        for node in range(1, len(parent)):
            children.setdefault(parent[node], {})[sign[node]] = node
        tree, order, stack = [], [], [0]
        while stack:
            node = stack.pop()
            if node in children:
                tree.append(where[children[node][1]])
                stack += [children[node][-1], children[node][1]]
            else:
                tree.append(-1)
                order.append(position[node])
        smallest = float((self.c.abs() / self.size**2).max())
        shift = 44 + max(0, math.ceil(-math.log2(smallest)))
        triples: list[list[list[int]]] = []
        bound, device = 0.0, self.size.device
        for start in range(0, len(order), 256):
            block = order[start : start + 256]
            S, pairs, N = (torch.stack([leaves[a][part][b] for a, b in block]).to(device) for part in (1, 2, 3))
            unit = 2.0**shift / (self.size[pairs // self.p] * self.size[pairs % self.p])
            k, value = torch.zeros_like(N), torch.full((len(N),), math.inf, dtype=torch.float64, device=device)
            for keep in (1e-2, 1e-3, 1e-5, 0.0):
                rest = torch.nonzero(value > limit).flatten()
                if len(rest) == 0:
                    break
                part = N[rest]
                part = torch.where(part >= keep * part.amax(1, keepdim=True), part, 0.0) if self.K else part
                k[rest] = (part * unit[rest]).round()
                part = k[rest] / unit[rest]
                top = torch.linalg.eigvalsh(self.matrices(S[rest], pairs[rest], part))[:, -1]
                value[rest] = top + 1e-13 * (self.c.abs().sum() + part.sum(1))
            bound = max(bound, float(value.max()))
            first, second = (pairs // self.p).tolist(), (pairs % self.p).tolist()
            for i, j, row in zip(first, second, k.tolist()):
                triples.append([[x, y, int(w)] for x, y, w in zip(i, j, row) if w > 0])
        return Proof(bound, self.points.cpu().numpy(), tree, triples, shift)


@dataclass
class Proof:
    """One side of an eigen-tree proof, and the bound it shows in scaled units."""

    bound: float
    points: np.ndarray
    tree: list[int]
    triples: list[list[list[int]]] = field(default_factory=list)
    shift: int = 0

    def side(self, first: np.ndarray) -> dict[str, Any]:
        """As it is saved, with the indices of the original points."""
        return {
            "shift": self.shift,
            "points": first[self.points].tolist(),
            "tree": self.tree,
            "leaves": self.triples,
        }


# ---------------------------------------------------------------- margin 0


def zero_margin(door: _door.Door) -> tuple[np.ndarray, dict[str, Any], float, str] | None:
    """Weights, proof, upper bound and reason where the margin is 0 and that can be proved.

    relu(t)^2 = (t^2 + t |t|) / 2, and the functions t |t| of different lines through 0 are linearly independent. With
    x_i = a_i u on its line, sum_i c_i relu(v . x_i)^2 = 0 for all v if and only if sum_i c_i a_i |a_i| = 0 on each line
    and sum_i c_i x_i x_i' = 0.
    """
    X, y, upper = door.X, door.y, 0.0
    twin = _door.twins(door)
    if twin is not None:
        q, reason = twin
        if (q > 0).sum() == 1:
            return q, {"type": "eigen", "sides": [{"sign": s, "lam": 0} for s in (1, -1)]}, 0.0, reason
    else:
        found = null_weights(X, y)
        if found is None:
            found = same_ray(X, y)
            if found is None:
                return None
            upper = 1e-11 * float(found @ door.size**2)  # the weights are right up to rounding only
        q = found
        some = np.flatnonzero(q)
        text = ", ".join(map(str, some[:6])) + (" ..." if len(some) > 6 else "")
        reason = f"every network of squared ReLU units averages to zero over points {text}"
    if X.shape[1] <= 2:
        return q, {"type": "enumeration"}, upper, reason
    points = np.flatnonzero(q)
    if len(points) > NULL_POINTS or (twin is None and upper == 0 and X.shape[1] > 12):
        return None
    sides = [null_tree(X, s * y * q / q.sum(), points, twin is not None) | {"sign": s} for s in (1, -1)]
    return q, {"type": "eigen-tree", "sides": sides}, upper, reason


def same_ray(X: np.ndarray, y: np.ndarray) -> np.ndarray | None:
    """Weights on two points x and a x, a > 0 exactly, with different labels: f(a x) = a^2 f(x) for every network f."""
    line = _bounds.lines(X)
    lead = np.abs(X).argmax(1)
    for l in np.flatnonzero(np.bincount(line) > 1):
        members = np.flatnonzero(line == l)
        way = np.sign(X[members, lead[members[0]]])
        for i, j in itertools.product(members[y[members] > 0][:20], members[y[members] < 0][:20]):
            if way[members == i] != way[members == j]:
                continue
            a, b = ([Fraction(float(x)) for x in X[k]] for k in (i, j))
            if all(x * b[lead[i]] == z * a[lead[i]] for x, z in zip(a, b)):
                q = np.zeros(len(y))
                q[i], q[j] = (X[j] ** 2).sum(), (X[i] ** 2).sum()
                return q / q.sum()
    return None


def null_weights(X: np.ndarray, y: np.ndarray) -> np.ndarray | None:
    """Integer weights q >= 0 with sum_i q_i y_i relu(v . x_i)^2 = 0 for all v, exactly, if such are found."""
    line, D = _bounds.lines(X), X.shape[1]
    u = X / np.linalg.norm(X, axis=1, keepdims=True)
    first = np.unique(line, return_index=True)[1]
    along = np.sign((u * u[first][line]).sum(1))  # which way along its line
    kind = y * along
    count = [np.bincount(line[kind == k], minlength=line.max() + 1) for k in (1, -1)]
    mixed = np.flatnonzero((count[0] > 0) & (count[1] > 0))
    index = np.flatnonzero(np.isin(line, mixed))
    if len(index) == 0 or D > 40 or len(index) > 2000:
        return None
    from scipy.optimize import linprog

    P, sign = X[index], y[index]
    i, j = np.triu_indices(D)
    size = (P**2).sum(1)
    odd = (line[index][None] == mixed[:, None]) * (sign * along[index] * size)  # (lines, k)
    A = np.vstack([(sign[:, None] * P[:, i] * P[:, j]).T, odd, np.ones((1, len(index)))])
    b = np.append(np.zeros(len(A) - 1), 1.0)
    result = linprog(np.zeros(len(index)), A_eq=A, b_eq=b, bounds=(0, None), method="highs-ds")
    if result.status != 0:
        return None
    q = np.zeros(len(y))
    q[index] = result.x.clip(0)
    whole = _door.integer_weights(q)
    return whole if whole is not None and vanishes(X, whole * y) else None


def vanishes(X: np.ndarray, c: np.ndarray) -> bool:
    """Whether sum_i c_i relu(v . x_i)^2 = 0 for all v, in exact arithmetic."""
    D = X.shape[1]
    even = [Fraction(0)] * (D * (D + 1) // 2)
    odd: dict[tuple[Fraction, ...], Fraction] = {}
    for i in np.flatnonzero(c):
        weight, row = Fraction(float(c[i])), [Fraction(float(x)) for x in X[i]]
        even = [e + weight * row[a] * row[b] for e, (a, b) in zip(even, zip(*np.triu_indices(D)))]
        lead = next((x for x in row if x), Fraction(1))
        key = tuple(x / lead for x in row)
        odd[key] = odd.get(key, Fraction(0)) + weight * lead * abs(lead)
    return not any(even) and not any(odd.values())


def null_tree(X: np.ndarray, c: np.ndarray, points: np.ndarray, equal: bool) -> dict[str, Any]:
    """All sign patterns of `points`, where sum_i c_i relu(v . x_i)^2 vanishes: the proof of the bound 0.

    A pattern that some v has gives A = 0. In any other, two points of one line contradict each other; their product is
    a negative multiple of u u' that takes away what the pattern has too much on that line. For two `equal` points all
    numbers are exact, and what is too little is filled up as well, so that A = 0 everywhere.
    """
    P, m, shift = X[points], len(points), 60
    line = _bounds.lines(P)
    leaves = []
    for pattern in itertools.product((1, -1), repeat=m):
        triples = []
        for l in np.unique(line):
            members = np.flatnonzero(line == l)
            a = P[members] @ (P[members[0]] / np.linalg.norm(P[members[0]]))
            s, weight = np.array(pattern)[members], c[points[members]] * a**2
            excess = float(weight[s > 0].sum() - weight[a > 0].sum())
            agree, differ = np.flatnonzero(s * a > 0), np.flatnonzero(s * a < 0)
            if len(agree) == 0 or len(differ) == 0 or excess == 0 or (excess < 0 and not equal):
                continue
            g, h = agree[0], differ[0] if excess > 0 else agree[0]
            k = abs(excess) / float(abs(a[g] * a[h])) * 2.0**shift
            triples.append([int(members[g]), int(members[h]), int(k) if equal else math.ceil(k * (1 + 1e-12)) + 1])
        leaves.append(triples)
    tree = [-1]
    for k in reversed(range(m)):
        tree = [k, *tree, *tree]
    return {"shift": shift, "points": points.tolist(), "tree": tree, "leaves": leaves}
