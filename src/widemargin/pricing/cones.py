"""The pricing problem of few dimensions by a tree over cones: cost per node n times the rank, whatever the points' scales.

A node is a simplicial cone with generators g_1 .. g_r. For v = sum_k mu_k g_k, mu >= 0, convexity gives
relu(x . v) <= sum_k mu_k relu(x . g_k), and -relu(x . v) <= -b x . v for any b in [0, 1]. So with any such b_i

    sum_i c_i relu(x_i . v) <= w . mu,    w_k = sum_{c_i > 0} c_i relu(x_i . g_k) + sum_{c_i < 0} c_i b_i x_i . g_k,

and any p with p . g_k >= w_k for all k shows w . mu <= p . v <= |p| |v|: the bound of the cone is |p|. A cone that is not good
enough is cut in two at a point of the edge along which the chord lies farthest above the function.

Generators are integer combinations of the rows of one integer matrix, the frame, in whose coordinates the points are round.
So a tree is proved by its shape alone: whoever reads it makes the same cones, exactly.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .points import Priced, Terms

LARGEST_RANK = 8  # largest rank: the sphere has 2^r orthants
LARGEST_INTEGER = 2.0**24  # of the integers of a generator
UNDECIDED, ROUNDS = 8, 12  # points whose slopes b are improved, those that matter most, and rounds over them
STORED = 2_000_000  # nodes up to which the proof is kept: a checker would take minutes over more
WRITING = 1e-6  # seconds to write a node down
SWEEPS, PIVOTS = 2, 8  # of coordinate descent for p, and of block pivoting from there


@dataclass
class Shape:
    """Nodes in order of creation: the 2^r orthants first, then two children for every cut."""

    parent: list[Tensor] = field(default_factory=list)
    edge: list[Tensor] = field(default_factory=list)  # of the parent's cut: i r + j, i < j


class Cones(Terms):
    """The problem with a frame, (r, r): its rows in an orthonormal basis of the points' span."""

    def __init__(self, X: Tensor, c: Tensor, frame: Tensor, linear: Tensor | None = None):
        super().__init__(X, c, None, linear)
        self.frame, self.r = frame, X.shape[1]
        # The tree as it stands: the open cones, all nodes as a proof, the largest bound of closed ones, directions that were met.
        signs = list(itertools.product([1.0, -1.0], repeat=self.r))
        self.L = torch.diag_embed(torch.tensor(signs, device=X.device, dtype=X.dtype))
        self.U, v, value, self.edge = self.bound(self.L)
        self.ids, self.nodes, self.told = torch.arange(len(signs), device=X.device), len(signs), 0
        self.shape: Shape | None = Shape([torch.full((len(signs),), -1)], [torch.full((len(signs),), -1)])
        self.closed, self.best, self.met = 0.0, float(value.max()), [(value, v)]

    def bound(self, L: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Bounds (B,) of cones with integer coordinates L (B, r, r); a direction in each and its value; the edge to cut."""
        p, r = self.positive, self.r
        G = L @ self.frame
        G = G / G.norm(dim=2, keepdim=True)
        T = G @ self.X.T  # (B, r, n)
        up, minus = T.clamp_min(0), T[:, :, p:]
        w = up[:, :, :p] @ self.c[:p] + G @ self.linear  # (B, r)
        b = up[:, :, p:].sum(1) / minus.abs().sum(1).clamp_min(1e-300)
        A, _ = torch.linalg.inv_ex(G)
        K = A.mT @ A
        m = min(UNDECIDED, len(self.c) - p)
        if m:
            b = self.slopes(w, minus, b, A, m)
            w = w + torch.einsum("brn,bn->br", minus, b * self.c[p:])
        s = torch.zeros_like(w)
        diagonal = K.diagonal(dim1=1, dim2=2)
        z = (K @ w[:, :, None])[:, :, 0]  # K (w + s)
        for _ in range(SWEEPS):
            for k in range(r):
                new = (s[:, k] - z[:, k] / diagonal[:, k]).clamp_min(0)
                z = z + K[:, :, k] * (new - s[:, k])[:, None]
                s[:, k] = new
        s = self.pivot(K, w, s)
        q = (A @ (w + s)[:, :, None])[:, :, 0]
        U = torch.nan_to_num(q.norm(dim=1), nan=math.inf)
        u = G.mean(1)
        u = u / u.norm(dim=1, keepdim=True)
        height = (G @ u[:, :, None])[:, :, 0]
        flat = (w / height.clamp_min(1e-300)).amax(1).clamp_min(0)
        flat = torch.where((height > 1e-6).all(1), flat, math.inf)  # else a multiple of u is not above every w_k
        q = torch.where((flat < U)[:, None], u, q)
        U = torch.minimum(U, flat)
        v = torch.nan_to_num(q / q.norm(dim=1, keepdim=True).clamp_min(1e-300))
        value = (v @ self.X.T).clamp_min(0) @ self.c + v @ self.linear
        down, weight = up - T, self.c.abs()
        gap = torch.stack([torch.minimum(up[:, k : k + 1], down) @ weight for k in range(r)], 1)  # (B, r, r)
        gap = gap + gap.mT
        cosine = G @ G.mT
        size = ((1 + cosine) / 2).clamp_min(1e-12).sqrt()
        gap = gap / size + 0.5 * (1 / size - 1) * w.amax(1).clamp_min(0)[:, None, None]
        gap = gap - 1e300 * torch.tril(torch.ones_like(gap[0]))
        return U, v, value, gap.flatten(1).argmax(1)

    def slopes(self, w: Tensor, minus: Tensor, b: Tensor, A: Tensor, m: int) -> Tensor:
        """Better b (B, n-) of the points whose sign is open: coordinate descent on |p| over their b and the slack s."""
        p, r, n = self.positive, self.r, minus.shape[2]
        open_ = torch.minimum(minus.amax(1), (-minus).amax(1)) * -self.c[p:]
        index = torch.topk(open_, m, dim=1).indices if m < n else torch.arange(n, device=w.device).expand(len(w), n)
        rows = torch.cat([(self.c[p:, None] * self.X[p:])[index], A.mT / A.norm(dim=1)[:, :, None]], 1)  # (B, m + r, r)
        start = w + torch.einsum("brn,bn->br", minus, b * self.c[p:])
        at = (A @ start[:, :, None])[:, :, 0]  # p, (B, r)
        H = rows @ rows.mT
        x = torch.cat([b.gather(1, index), torch.zeros_like(w)], 1)
        free = (open_ > 0).gather(1, index).to(w.dtype)
        low = torch.cat([x[:, :m] * (1 - free), torch.zeros_like(w)], 1)
        high = torch.cat([torch.maximum(x[:, :m], free), torch.full_like(w, math.inf)], 1)
        z = (rows @ at[:, :, None])[:, :, 0]
        diagonal = H.diagonal(dim1=1, dim2=2).clamp_min(1e-300)
        for _ in range(ROUNDS):
            for k in range(m + r):
                new = (x[:, k] - z[:, k] / diagonal[:, k]).clamp(low[:, k], high[:, k])
                z = z + H[:, :, k] * (new - x[:, k])[:, None]
                x[:, k] = new
        return b.scatter(1, index, x[:, :m])

    def pivot(self, K: Tensor, w: Tensor, s: Tensor) -> Tensor:
        """s >= 0 with s . K (w + s) = 0 and K (w + s) >= 0, by block pivoting from the guess s; any s >= 0 is as valid."""
        first, free = s, s > 0
        Kw = (K @ w[:, :, None])[:, :, 0]
        eye = torch.eye(self.r, device=K.device, dtype=K.dtype)
        for _ in range(PIVOTS):
            both = free[:, :, None] & free[:, None, :]
            solved, _ = torch.linalg.solve_ex(torch.where(both, K, eye), torch.where(free, -Kw, 0.0))
            z = Kw + (K @ solved[:, :, None])[:, :, 0]
            scale = 1e-12 * Kw.abs().amax(1, keepdim=True)
            wrong = torch.where(free, solved < 0, z < -scale)
            if not bool(wrong.any()):
                break
            free = free ^ wrong
        new = torch.nan_to_num(solved).clamp_min(0)
        value = lambda s: ((w + s) * (K @ (w + s)[:, :, None])[:, :, 0]).sum(1)  # noqa: E731
        return torch.where((value(new) < value(first))[:, None], new, first)

    def run(
        self,
        known: float,
        tol: float,
        *,
        deadline: float,
        beat: Callable[[], None] | None = None,
        batch: int,
        target: float = 0.0,
        max_nodes: float = math.inf,
        give_up: float = math.inf,
    ) -> Priced:
        """Cut cones, the worst bound first, until all are at most max(target, max(known, best found) (1 + tol)).

        Called again it goes on where it stopped.
        """
        while True:
            self.close_but(max(target, max(known, self.best) * (1 + tol)) < self.U)
            if beat is not None:
                beat()
            writing = self.nodes * WRITING if self.shape is not None else 0.0
            late = time.monotonic() + writing > deadline or self.nodes >= max_nodes
            if late or len(self.U) == 0 or max(known, self.best) > give_up:
                break
            if self.nodes >= STORED:
                self.shape = None
            self.grow(batch)
        bound = max(self.closed, float(self.U.max()) if len(self.U) else 0.0)
        nodes, self.told = self.nodes - self.told, self.nodes
        values, directions = (torch.cat(parts) for parts in zip(*self.met))
        order = torch.argsort(-values)[:200]
        aborted = max(known, self.best) > give_up
        return Priced(float(values.max()), bound, nodes, directions[order], self.shape, aborted)

    def close_but(self, live: Tensor) -> None:
        """Close all open cones but those that are `live`."""
        if not bool(live.all()):
            self.closed = max(self.closed, float(self.U[~live].max()))
            self.L, self.U, self.edge, self.ids = self.L[live], self.U[live], self.edge[live], self.ids[live]

    def grow(self, batch: int) -> None:
        """Cut the `batch` cones with the largest bounds."""
        top = torch.topk(self.U, min(batch, len(self.U))).indices
        middle = cut(self.L[top], self.edge[top])
        fits = (middle.abs().amax(1) <= LARGEST_INTEGER) & (self.r > 1)  # a ray has no edge
        rest = torch.ones_like(self.U, dtype=torch.bool)
        if not bool(fits.all()):  # these stay as they are
            rest[top[~fits]] = False
            self.close_but(rest)
            return
        L, edge, parent = self.L[top], self.edge[top], self.ids[top]
        row = torch.arange(len(top), device=L.device)
        first, second = L.clone(), L.clone()
        first[row, edge // self.r], second[row, edge % self.r] = middle, middle
        child = torch.cat([first, second])
        U, v, value, cuts = self.bound(child)
        ids = torch.arange(self.nodes, self.nodes + len(child), device=L.device)
        self.nodes += len(child)
        if self.shape is not None:
            self.shape.parent.append(torch.cat([parent, parent]).cpu())
            self.shape.edge.append(torch.cat([edge, edge]).cpu())
        self.best = max(self.best, float(value.max()))
        good = torch.topk(value, min(16, len(value))).indices
        self.met.append((value[good], v[good]))
        rest[top] = False
        self.L, self.U = torch.cat([self.L[rest], child]), torch.cat([self.U[rest], U])
        self.edge, self.ids = torch.cat([self.edge[rest], cuts]), torch.cat([self.ids[rest], ids])


def cut(L: Tensor, edge: Tensor) -> Tensor:
    """Where the cones L (B, r, r) are cut: on the edge i r + j, the two generators scaled by powers of two to about one size."""
    row, r = torch.arange(len(L), device=L.device), L.shape[1]
    a, b = L[row, edge // r], L[row, edge % r]
    shift = torch.frexp(torch.stack([a, b]).abs().amax(2)).exponent  # (2, B)
    highest = shift.amax(0)
    middle = torch.ldexp(a, (highest - shift[0])[:, None]) + torch.ldexp(b, (highest - shift[1])[:, None])
    halve = torch.ones(len(L), dtype=torch.bool, device=L.device)
    while bool((halve := halve & ~(middle.abs() % 2 == 1).any(1)).any()):
        middle = torch.where(halve[:, None], middle / 2, middle)
    return middle
