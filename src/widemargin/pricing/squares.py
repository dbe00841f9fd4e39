"""The pricing problem of squared ReLU units, max over |v| = 1 of sum_i c_i relu(v . x_i)^2, and its proofs from eigenvalues.

For fixed signs of v . x_i the objective is a quadratic form, so its maximum over a cone of directions is bounded by the largest
eigenvalue of

    A = sum_{active} c_i x_i x_i' + sum_{free, c_i > 0} c_i x_i x_i' + sum_{p, q fixed} N_pq s_p s_q x_p x_q',  N >= 0,

since s_p (v . x_p) >= 0 on the cone. `Tree` branches on signs, worst bound first, many nodes at a time, and lowers each
bound by choosing N (`lower_top`). In the plane the maximum is a finite enumeration (`circle`).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

STEPS = 12  # interior-point steps on the multipliers of a node
MOST_PAIRS = 96  # with multipliers in one node; usually 3 r, more was slower on parity
ROUNDS = 1  # choices of these pairs per node
POOL_BYTES = 1 << 30


def top_eigenvalue(X: np.ndarray, w: np.ndarray) -> float:
    """lambda_max of sum_i w_i x_i x_i', w >= 0."""
    X = X[w > 0] * np.sqrt(w[w > 0, None])
    return float(np.linalg.norm(X, 2)) ** 2 if len(X) else 0.0


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
    reached: list[np.ndarray] = []
    for block in np.array_split(np.arange(len(ends)), -(-len(ends) // 1024)):
        at = middle[block]
        M = (np.stack([np.cos(at), np.sin(at)], 1) @ P.T > 0) @ W
        top = np.arctan2(2 * M[:, 1], M[:, 0] - M[:, 2]) / 2
        top += np.pi * np.rint((at - top) / np.pi)  # of both signs the one nearer to the arc
        here = np.concatenate([ends[block], top])
        turn.append(here)
        reached.append(objective(P, w, np.stack([np.cos(here), np.sin(here)], 1)))
    angle, values = np.concatenate(turn), np.concatenate(reached)
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

    def proof(self, limit: float, blur: float = 1e-13) -> Proof:
        """The tree on paper: preorder, and per leaf integer multipliers, the smallest left out where that is free.

        `blur` is what rounding may do to one term, relative to |x|^2.
        """
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
                value[rest] = top + blur * (self.c.abs().sum() + part.sum(1))
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
