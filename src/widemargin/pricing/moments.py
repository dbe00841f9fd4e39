"""Quadratic bounds of the nodes of the pricing tree, from the moments of v (`signs` says what a node is).

For any curvatures a_i and slopes b_i with c_i relu(t) <= a_i t^2 + b_i t + kappa_i on a node's range of t = v . x_i, and any
pi_ij >= 0 on pairs of points whose signs s_i, s_j the node has fixed (there s_i s_j t_i t_j >= 0),

    objective <= sum_i kappa_i + max_{|v| <= 1} (v' M v + g . v),
    M = sum_i a_i x_i x_i' + sum_{i < j} pi_ij s_i s_j (x_i x_j' + x_j x_i') / 2,      g = sum_i b_i x_i,

a trust-region problem with an exact dual in one number lam. Minimised over the multipliers this is the dual of a semidefinite
program over m = E v and V = E v v':

    maximise  sum_free c_i (t_i + sqrt(q_i)) / 2 + sum_active c_i t_i - sum_{c_i < 0} |c_i| max(0, t_i, (t_i + q_i / |x_i|) / 2)
    where     t_i = x_i . m,  q_i = x_i' V x_i,  V >= m m',  tr V <= 1,
              s_i t_i >= 0,  s_i |x_i| t_i >= q_i,  s_i s_j x_i' V x_j >= 0       for fixed points.

Whatever multipliers a solver stops with, the bound they give is valid, so the solvers stop early. There are two:
`Splitting` (Douglas-Rachford) factors a matrix of order r (r + 3) / 2 per node and is within 1 % after ten steps from the
parent's state; `FrankWolfe` has steps of cost r^3 for larger ranks r, and leaves the last two kinds of constraints out.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import pad

from .points import ACTIVE, FREE, Terms

NOWHERE = (
    1e-150  # points are in units in which the largest is about 1: shorter ones are 0, and their squares no divisors
)
QUADRATIC_RANK = 150  # largest rank for quadratic bounds in a tree
SPLIT_RANK = 26  # largest rank for `Splitting`
AN_ENTRY = 80  # bytes of all matrices of one size that are there at a time, for each of their entries
BEGIN = 1.2e-8  # seconds for each entry of the matrices that it begins with
RELAX = 1.6  # over-relaxation of the splitting; 1 and 1.9 were slower
HEAT = 5e-3  # of `FrankWolfe`'s soft choices, in lengths of points: 0.02 left trees of noise 2 % open for ever, 0.001 is slow
KEPT = 64  # multipliers of pairs, the largest, that a node hands on; all of them would fill the memory, and close no tree sooner
WEIGHT = 2.0  # of its quadratic terms, in units of the mean |c_i| |x_i|: 1 to 3 were best on parity and disks


@dataclass
class Pairs:
    """Multipliers pi (B, D, D), upper triangles, of the pairs among D points per node, `index` (B, D) into the positive ones."""

    index: Tensor
    pi: Tensor


@dataclass
class QuadraticBounds:
    """Quadratic bounds of B nodes with the multipliers that show them."""

    bound: Tensor  # (B,)
    a: Tensor  # (B, n') curvatures
    b: Tensor  # (B, rows) slopes of points and roots
    lam: Tensor  # (B,)
    pairs: list[Pairs] = field(default_factory=list)  # one per block of nodes, in order

    def log(self, chosen: Tensor) -> LoggedQuadraticBounds:
        """The nodes `chosen`, off the device, with their pairs as lists of (i, j, pi)."""
        lists: list[list[tuple[int, int, float]]] = []
        for part in self.pairs:
            rows: list[list[tuple[int, int, float]]] = [[] for _ in range(len(part.index))]
            at = torch.nonzero(part.pi)
            i, j = part.index[at[:, 0], at[:, 1]], part.index[at[:, 0], at[:, 2]]
            values = part.pi[at[:, 0], at[:, 1], at[:, 2]]
            for node, *pair in zip(at[:, 0].tolist(), i.tolist(), j.tolist(), values.tolist()):
                rows[node].append((pair[0], pair[1], pair[2]))
            lists.extend(rows)
        keep = chosen.tolist()
        pairs = [lists[node] if lists else [] for node in keep]
        return LoggedQuadraticBounds(self.a[chosen].cpu(), self.b[chosen].cpu(), self.lam[chosen].cpu(), pairs)


@dataclass
class LoggedQuadraticBounds:
    a: Tensor
    b: Tensor
    lam: Tensor
    pairs: list[list[tuple[int, int, float]]]


def concatenate(parts: list[QuadraticBounds]) -> QuadraticBounds:
    a, b = torch.cat([part.a for part in parts]), torch.cat([part.b for part in parts])
    bound, lam = torch.cat([part.bound for part in parts]), torch.cat([part.lam for part in parts])
    return QuadraticBounds(bound, a, b, lam, [pairs for part in parts for pairs in part.pairs])


def relaxation(tree: Terms, tol: float, deadline: float, memory: float = math.inf) -> Splitting | FrankWolfe:
    """The solver for this rank, with as much at once as fits into `memory` (bytes). On a GPU single precision is a third faster;
    its rounding costs about 1e-5 of the bound."""
    solver: Splitting | FrankWolfe
    if tree.rows.shape[1] > SPLIT_RANK:
        solver = FrankWolfe(tree, deadline)
    else:
        single = tree.X.device.type == "cuda" and tol > 1e-3
        solver = Splitting(tree, torch.float32 if single else torch.float64)
    solver.memory = min(solver.memory, memory / AN_ENTRY)
    return solver


def beginning(tree: Terms) -> float:
    """Seconds, more or less, that its root takes on a CPU, which does not look at the clock."""
    d = tree.rows.shape[1]
    return BEGIN * tree.positive * float(d + d * (d + 1) // 2) ** 2 if d <= SPLIT_RANK else 0.0


def held(tree: Terms) -> float:
    """Bytes, more or less, that it takes at its root."""
    d, p = tree.rows.shape[1], tree.positive
    k = d * (d + 1) // 2
    outer = 8.0 * p * k * (k + d) if d <= SPLIT_RANK else 0.0
    return outer + AN_ENTRY * float(d + k if d <= SPLIT_RANK else d) ** 2


class Splitting:
    """Douglas-Rachford splitting: a linear solve in (m, V), then one small projection or proximal step per constraint.

    Its state is a number per constraint, float32, concatenated (B, s): the arguments of the proximal steps for the rows t
    (points and roots), q (points) and the matrix [V m; m' 1], the multipliers of the lines q <= s |x| t (positive points), and
    places and values of the largest multipliers of pairs, which come into being with the signs. Points are scaled to length one
    here, so c stands for c |x|.
    """

    root_steps, steps = 120, 10
    memory, gpu_memory = 3e6, 1.2e9  # entries of the factored matrices worked on at once

    def __init__(self, tree: Terms, dtype: torch.dtype = torch.float64):
        self.tree, self.n, self.p = tree, len(tree.c), tree.positive
        self.unit = tree.unit.to(dtype)  # (rows, d)
        self.c = (tree.c * tree.size[: self.n]).to(dtype)
        self.linear = tree.linear.to(dtype)
        self.rho = WEIGHT * float(self.c.abs().mean())
        rows, d = self.unit.shape
        device = self.unit.device
        self.d, self.k = d, d + d * (d + 1) // 2
        self.upper = torch.triu_indices(d, d, device=device)
        first, second = self.upper
        self.twice = torch.where(first == second, 1.0, 2.0).to(dtype)
        points = self.unit[: self.n]
        self.square = points[:, first] * points[:, second] * self.twice  # (n', d (d + 1) / 2): q_i = square_i . vec V
        self.metric = torch.cat([torch.full((d,), 2.0, device=device, dtype=dtype), self.twice])
        self.corner = torch.triu_indices(d + 1, d + 1, device=device)
        i, j = torch.triu_indices(self.p, self.p, 1, device=device)
        # Place of a pair in the state; the last place takes what is no pair.
        self.place = torch.full((self.p, self.p), len(i), device=device)
        self.place[i, j] = self.place[j, i] = torch.arange(len(i), device=device)
        self.kept = min(KEPT, len(i))
        self.widths = [rows, self.n, self.p, self.corner.shape[1], self.kept, self.kept]
        # The part of the linear system that no sign changes: q of all points, t of negative ones and roots.
        always = self.unit[self.p :]
        self.base = torch.diag(self.metric)
        self.base[:d, :d] += always.T @ always
        self.base[d:, d:] += self.square.T @ self.square
        square = self.square[: self.p]
        self.outer = torch.einsum("pi,pj->pij", square, square).flatten(1)  # (p, K K)
        self.mixed = torch.einsum("pi,pj->pij", self.unit[: self.p], square).flatten(1)  # (p, d K)

    # ------------------------------------------------------------------ states

    def start(self) -> Tensor:
        """State at the root: mean 0, v spread over the whole sphere, multipliers zero."""
        z = self.unit.new_zeros(1, self.k)
        z[:, self.d :] = (self.twice == 1).to(z.dtype) / self.d
        t, q = self.rows(z)
        i, j = self.corner
        nothing = z.new_zeros(1, self.kept)
        none = nothing + self.place[0, 0] if self.p else nothing
        return torch.cat([t, q, torch.zeros_like(q[:, : self.p]), self.matrix(z)[:, i, j], none, nothing], 1).float()

    def whole(self, corner: Tensor) -> Tensor:
        Z = corner.new_zeros(len(corner), self.d + 1, self.d + 1)
        i, j = self.corner
        Z[:, i, j] = Z[:, j, i] = corner
        return Z

    def matrix(self, z: Tensor) -> Tensor:
        """[V m; m' 1] of z = (m, vec V)."""
        d, (i, j) = self.d, self.upper
        Z = z.new_zeros(len(z), d + 1, d + 1)
        Z[:, i, j] = Z[:, j, i] = z[:, d:]
        Z[:, :d, d] = Z[:, d, :d] = z[:, :d]
        Z[:, d, d] = 1.0
        return Z

    def rows(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """t (B, rows) and q (B, n') at z."""
        return z[:, : self.d] @ self.unit.T, z[:, self.d :] @ self.square.T

    def moments(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Means of t and t^2 of the positive points, in units of their lengths (B, p)."""
        Z, X = project(self.whole(state.split(self.widths, 1)[3])), self.unit[: self.p].to(state.dtype)
        return Z[:, : self.d, self.d] @ X.T, ((X @ Z[:, : self.d, : self.d]) * X).sum(2)

    # ------------------------------------------------------------------ steps

    def solve(self, sign: Tensor, state: Tensor, steps: int) -> tuple[QuadraticBounds, Tensor, Tensor]:
        """Bounds after `steps` steps from `state`, the new states, and a direction v (B, d) of each node."""
        block = max(1, int((self.gpu_memory if sign.is_cuda else self.memory) / self.k**2))
        parts = [self._solve(sign[i : i + block], state[i : i + block], steps) for i in range(0, len(sign), block)]
        bounds, states, directions = zip(*parts)
        return concatenate(list(bounds)), torch.cat(states), torch.cat(directions)

    def _solve(self, sign: Tensor, state: Tensor, steps: int) -> tuple[QuadraticBounds, Tensor, Tensor]:
        p, d, dtype = self.p, self.d, self.unit.dtype
        t, q, line, corner, places, values = state.to(dtype).split(self.widths, 1)
        fixed = (sign != FREE).to(dtype)  # (B, p)
        s = torch.where(sign == ACTIVE, 1.0, -1.0).to(dtype) * fixed
        inverse = self.inverse(s, fixed)
        linear = self.linear / self.rho + (0.5 * self.c[:p] * (1 - fixed) / self.rho) @ self.unit[:p]  # (B, d)
        # Pairs among the D fixed points of a node: gathered, because D is much smaller than p.
        held = sign != FREE
        D = int(held.sum(1).max())
        index = torch.argsort((~held).to(torch.int8), dim=1, stable=True)[:, :D]  # (B, D)
        there = fixed.gather(1, index)
        X = self.unit[index] * (s.gather(1, index) * there)[:, :, None]  # (B, D, d), so that signs are all +
        spot = self.place[index[:, :, None], index[:, None, :]].flatten(1)  # (B, D D)
        known = there[:, :, None] * there[:, None, :] * (1 - torch.eye(D, device=t.device, dtype=dtype))
        Z = self.whole(corner)
        near_Z = project(Z)
        flat = t.new_zeros(len(t), p * (p - 1) // 2 + 1).scatter_(1, places.long(), values)
        pairs = (X @ near_Z[:, :d, :d] @ X.mT).clamp_min(0) - flat.gather(1, spot).view(len(t), D, D) * known
        i, j = self.upper
        now_t, now_q = self.rows(torch.cat([near_Z[:, :d, d], near_Z[:, i, j]], 1))
        line = (s * now_t[:, :p] - now_q[:, :p]).clamp_min(0) - line
        for _ in range(steps):
            near_t, near_q = self.prox(sign, s, t, q)
            near_line, near_pairs = line.clamp_min(0), pairs.clamp_min(0)
            # Where the linear system should meet the rows: reflected through the proximal points.
            weight_t, weight_q = 2 * near_t - t, 2 * near_q - q
            goal_line = (2 * near_line - line) * fixed
            weight_t[:, :p] = weight_t[:, :p] * fixed + s * goal_line
            weight_q[:, :p] = weight_q[:, :p] * (1 - fixed) - goal_line
            goal_Z = 2 * near_Z - Z
            N = goal_Z[:, :d, :d] + 0.5 * X.mT @ (pairs.abs() * known) @ X  # 2 max(x, 0) - x = |x|
            right = torch.cat(
                [
                    linear + weight_t @ self.unit + 2 * goal_Z[:, :d, d],
                    weight_q @ self.square + self.twice * N[:, i, j],
                ],
                1,
            )  # (B, k)
            z = (inverse @ right[:, :, None])[:, :, 0]
            new_t, new_q = self.rows(z)
            new_Z = self.matrix(z)
            step_t, step_q = t + RELAX * (new_t - near_t), q + RELAX * (new_q - near_q)
            step_t[:, :p] = torch.where(held, step_t[:, :p], new_t[:, :p])
            step_q[:, :p] = torch.where(held, new_q[:, :p], step_q[:, :p])
            t, q = step_t, step_q
            line = line + RELAX * (s * new_t[:, :p] - new_q[:, :p] - near_line)
            pairs = pairs + RELAX * (X @ new_Z[:, :d, :d] @ X.mT - near_pairs)
            Z = Z + RELAX * (new_Z - near_Z)
            near_Z = project(Z)
        pi = (-pairs).clamp_min(0) * known  # multipliers over rho
        quadratic = self.bound(sign, s, t, q, line, pi, index)
        values, order = torch.topk(pi.triu(1).flatten(1), min(self.kept, D * D))
        nowhere, more = flat.shape[1] - 1, (0, self.kept - values.shape[1])
        places = torch.where(values > 0, spot.gather(1, order), nowhere).to(dtype)
        places, values = pad(places, more, value=nowhere), pad(values, more)
        k, m = self.corner
        state = torch.cat([t, q, (-line).clamp_min(0) * fixed, Z[:, k, m], places, values], 1).float()
        return quadratic, state, near_Z[:, :d, d].to(self.tree.X.dtype)

    def inverse(self, s: Tensor, fixed: Tensor) -> Tensor:
        """Inverse of the linear system's matrix (B, k, k) at the fixed signs s.

        A fixed point swaps its row q for t, s t - q, and the pairs: the sum over pairs of the squares of x_i' D x_j is
        (tr D F D F - sum_i (x_i' D x_i)^2) / 2 with F = sum x_i x_i', so no list of pairs is needed.
        """
        d, (i, j) = self.d, self.upper
        X = self.unit[: self.p]
        F = X.T @ (fixed[:, :, None] * X)  # (B, d, d)
        K = self.base.expand(len(s), -1, -1).clone()
        K[:, :d, :d] += 2 * F
        cross = -(s @ self.mixed).view(len(s), d, -1)
        K[:, :d, d:] += cross
        K[:, d:, :d] += cross.mT
        FI, FJ = F[:, i] * (0.25 * self.twice)[:, None], F[:, j]
        both = FI[:, :, i] * FJ[:, :, j] + FI[:, :, j] * FJ[:, :, i]
        K[:, d:, d:] += both * self.twice
        K[:, d:, d:] -= 0.5 * (fixed @ self.outer).view(len(s), len(i), len(i))
        eye = torch.eye(self.k, device=K.device, dtype=K.dtype)
        half = torch.linalg.solve_triangular(torch.linalg.cholesky(K), eye, upper=False)
        return half.mT @ half

    def prox(self, sign: Tensor, s: Tensor, t: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """Proximal points of the rows t and q; those that the node does not use are left where they are."""
        p, n, rho = self.p, self.n, self.rho
        fixed, c = sign != FREE, self.c[:p] / rho
        held = t[:, :p] + torch.where(sign == ACTIVE, c, 0.0)
        near_t = torch.where(fixed, s * (s * held).clamp_min(0), t[:, :p])
        # maximise c sqrt(q) / 2 - rho (q - q0)^2 / 2: with u = sqrt(q), u^3 - q0 u - c / (4 rho) = 0
        q0, k = q[:, :p], 0.25 * c
        u = q0.clamp_min(0).sqrt() + k ** (1 / 3)
        for _ in range(5):
            u2 = u * u
            u = u - (u * (u2 - q0) - k) / (3 * u2 - q0)
        near_q = torch.where(fixed, q0, u * u)
        # minimise C max(0, t, (t + q) / 2) + |.|^2 / 2: what is taken away is a projection onto the triangle of slopes
        slope_t, slope_q = project_triangle(t[:, p:n], q[:, p:], -self.c[p:] / rho)
        near_t = torch.cat([near_t, t[:, p:n] - slope_t, t[:, n:].clamp_min(0)], 1)
        return near_t, torch.cat([near_q, q[:, p:] - slope_q], 1)

    def bound(
        self, sign: Tensor, s: Tensor, t: Tensor, q: Tensor, line: Tensor, pi: Tensor, index: Tensor
    ) -> QuadraticBounds:
        """The bound that the multipliers of a state give, in the units of the tree; pi (B, D, D) is over rho."""
        p, n, tree = self.p, self.n, self.tree
        near_t, near_q = self.prox(sign, s, t, q)
        fixed = sign != FREE
        b, a = self.rho * (near_t - t), self.rho * (near_q - q)
        hold = self.rho * (-line).clamp_min(0) * fixed
        b[:, :p] = torch.where(fixed, b[:, :p] + s * hold, 0.5 * self.c[:p])
        there = tree.size > NOWHERE  # points that are 0 have no part in the form
        b = torch.where(there, b / tree.size, 0.0)
        b[:, n:] = b[:, n:].clamp_min(0)
        a[:, :p] = torch.where(fixed, -hold, a[:, :p])
        a = torch.where(there[:n], a / tree.size[:n] ** 2, 0.0)
        size = torch.where(there[: self.p], tree.rp, torch.inf)[index]  # (B, D)
        pi = torch.where(pi > 1e-3, self.rho * pi, 0.0).triu(1)  # few, so that proofs stay short
        pi = pi / (size[:, :, None] * size[:, None, :])
        X = tree.xp[index] * s.gather(1, index)[:, :, None].to(tree.X.dtype)  # (B, D, d)
        M = (tree.X.T * a[:, None, :]) @ tree.X + sym(X.mT @ pi @ X)  # (B, d, d)
        value, lam, *_ = trust_region(M, tree.linear + b @ tree.rows)
        return QuadraticBounds(tree.kappa(sign, a, b) + value, a, b, lam, [Pairs(index, pi)])


class FrankWolfe:
    """Frank-Wolfe on the semidefinite program without the last constraints; the state is the means of t and of t^2."""

    root_steps, steps = 80, 12
    memory = 2e8  # entries of the matrices M worked on at once

    def __init__(self, tree: Terms, deadline: float = math.inf):
        self.tree, self.deadline = tree, deadline  # of time.monotonic: one step of rank 1000 takes half a second
        self.penalty = 2 * float(tree.c.abs().max()) if len(tree.c) else 0.0

    def start(self) -> Tensor:
        square = (self.tree.size**2 / self.tree.rows.shape[1])[None]
        return torch.cat([torch.zeros_like(square), square], 1).float()

    def moments(self, state: Tensor) -> tuple[Tensor, Tensor]:
        p, rows = self.tree.positive, len(self.tree.rows)
        size = self.tree.rp.to(state.dtype)
        return state[:, :p] / size, state[:, rows : rows + p] / size**2

    def majorants(self, sign: Tensor, mean: Tensor, square: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Curvatures a (B, n'), slopes b (B, rows) and sum of kappa (B,) that are best at the moments of t.

        Free points with c > 0: c relu(t) <= c t / 2 + c (t^2 / s + s) / 4, best at s^2 = mean of t^2. Points with c < 0:
        relu(t) is at least 0, t and (t + t^2 / |x|) / 2, mixed by a softmax because Frank-Wolfe needs smoothness. Fixed signs:
        a slope that grows where the mean has the wrong sign.
        """
        tree = self.tree
        p, n = tree.positive, len(tree.c)
        free, active = sign == FREE, sign == ACTIVE
        s = torch.maximum(square[:, :p].clamp_min(0).sqrt(), 1e-3 * tree.rp)
        heat = HEAT * tree.size
        size, t = tree.size[p:n], mean[:, p:n]
        mix = torch.softmax(torch.stack([torch.zeros_like(t), t, (t + square[:, p:n] / size) / 2]) / heat[p:n], 0)
        wrong = torch.where(active, -mean[:, :p], mean[:, :p]) / heat[:p]
        push = self.penalty * torch.sigmoid(wrong - 2)
        b_fixed = torch.where(active, tree.cp + push, -push)
        roots = self.penalty * torch.sigmoid(-mean[:, n:] / heat[n:] - 2)
        a = torch.cat([torch.where(free, tree.cp / (4 * s), 0.0), tree.c[p:] * mix[2] / (2 * size)], 1)
        b = torch.cat([torch.where(free, 0.5 * tree.cp, b_fixed), tree.c[p:] * (mix[1] + mix[2] / 2), roots], 1)
        a = torch.where(tree.size[:n] > NOWHERE, a, 0.0)  # points that are 0 have no part in the form
        return a, b, torch.where(free, tree.cp * s / 4, 0.0).sum(1)

    def solve(self, sign: Tensor, state: Tensor, steps: int) -> tuple[QuadraticBounds, Tensor, Tensor]:
        """The best bounds met in `steps` steps from `state`, the new states, and the last direction v (B, d) of each node."""
        block = max(1, int(self.memory / (self.tree.X.shape[1] ** 2 + len(self.tree.rows))))
        parts = [self._solve(sign[i : i + block], state[i : i + block], steps) for i in range(0, len(sign), block)]
        bounds, states, directions = zip(*parts)
        return concatenate(list(bounds)), torch.cat(states), torch.cat(directions)

    def _solve(self, sign: Tensor, state: Tensor, steps: int) -> tuple[QuadraticBounds, Tensor, Tensor]:
        tree, best = self.tree, None
        mean, square = state.to(tree.X.dtype).chunk(2, 1)
        for step in range(steps):
            if best is not None and time.monotonic() > self.deadline:
                break
            a, b, kappa = self.majorants(sign, mean, square)
            M = (tree.X.T * a[:, None, :]) @ tree.X  # (B, d, d)
            value, lam, v, spare, top = trust_region(M, tree.linear + b @ tree.rows)
            if best is None:
                best = QuadraticBounds(kappa + value, a, b, lam)
            else:
                wins = kappa + value < best.bound
                best.bound, best.lam = torch.where(wins, kappa + value, best.bound), torch.where(wins, lam, best.lam)
                best.a, best.b = torch.where(wins[:, None], a, best.a), torch.where(wins[:, None], b, best.b)
            t = v @ tree.rows.T
            t2 = t * t + spare[:, None] * (top @ tree.rows.T) ** 2
            eta = 2 / (step + 3) if steps == self.root_steps else 0.25 / (1 + 0.3 * step)
            mean, square = (1 - eta) * mean + eta * t, (1 - eta) * square + eta * t2
        assert best is not None
        return best, torch.cat([mean, square], 1).float(), v


def sym(M: Tensor) -> Tensor:
    return 0.5 * (M + M.mT)


def project(Z: Tensor) -> Tensor:
    """Nearest positive semidefinite matrices of trace at most 2."""
    spectrum, Q = torch.linalg.eigh(Z)
    down = spectrum.flip(1)
    over = (down.cumsum(1) - 2) / torch.arange(1, Z.shape[1] + 1, device=Z.device, dtype=Z.dtype)
    count = (down > over).sum(1, keepdim=True).clamp_min(1)
    level = over.gather(1, count - 1).clamp_min(0)  # what the trace constraint takes from every eigenvalue
    return (Q * (spectrum - level).clamp_min(0)[:, None, :]) @ Q.mT


def project_triangle(x: Tensor, y: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """Nearest points to (x, y) in the triangle size * conv{(0, 0), (1, 0), (1/2, 1/2)}, which has a right angle at the top."""
    inside = (y >= 0) & (y <= x) & (x + y <= size)
    # the three edges: the base, and the two legs, in coordinates along (1, 1) and (1, -1)
    along, across = (x + y) / 2, (x - y) / 2
    base = (torch.minimum(x.clamp_min(0), size), torch.zeros_like(y))
    u = torch.minimum(along.clamp_min(0), size / 2)
    left = (u, u)
    w = torch.minimum(across.clamp_min(0), size / 2)
    right = (size / 2 + w, size / 2 - w)
    best_x, best_y = x, y
    best = torch.where(inside, 0.0, torch.inf).to(x.dtype)
    for px, py in (base, left, right):
        far = (px - x) ** 2 + (py - y) ** 2
        closer = far < best
        best = torch.where(closer, far, best)
        best_x, best_y = torch.where(closer, px, best_x), torch.where(closer, py, best_y)
    return best_x, best_y


def trust_region(M: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """max_{|v| <= 1} v' M v + g . v for a batch: upper bound, lam, v of the Lagrangian, 1 - |v|^2, top eigenvector.

    The dual  lam + g' (lam I - M)^-1 g / 4  is an upper bound for every lam >= 0 above the spectrum of M. Newton's method on
    1 / |v(lam)| = 1 climbs to the best one from below; where it stops does not matter for validity.
    """
    spectrum, Q = torch.linalg.eigh(M)  # (B, d)
    h = (g[:, None, :] @ Q)[:, 0]
    size, top = g.norm(dim=1, keepdim=True), spectrum[:, -1:].clamp_min(0)
    floor = top + 1e-9 * (size + top) + 1e-300
    lam = torch.maximum(floor, spectrum[:, -1:] + h[:, -1:].abs() / 2)
    for _ in range(7):
        w = h / (2 * (lam - spectrum))
        norm2 = (w * w).sum(1, keepdim=True)
        slope = (w * w / (lam - spectrum)).sum(1, keepdim=True)
        step = (norm2.sqrt() - 1) * norm2 / slope.clamp_min(1e-300)
        lam = torch.maximum(floor, lam + step)
    w = h / (2 * (lam - spectrum))
    value = lam[:, 0] + 0.25 * (h * h / (lam - spectrum)).sum(1)
    v = (Q @ w[:, :, None])[:, :, 0]
    return value, lam[:, 0], v, (1 - (w * w).sum(1)).clamp_min(0), Q[:, :, -1]
