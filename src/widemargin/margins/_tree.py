"""Branch and bound for the pricing problem  max_{|v| <= 1} sum_i c_i relu(v . x_i), in batches of nodes.

Terms with c_i < 0 are concave and need no branching. A node fixes the sign of v . x_i for some points with c_i > 0; the
others are bounded by the chord relu(t) <= (t + |x_i|) / 2. For any slopes b_i the objective on the node's region is at most

    sum_i kappa_i(b_i) + || sum_i b_i x_i ||,      kappa_i(b) = max over the allowed t of c_i relu(t) - b t,

and kappa_i = c_i |x_i| / 2 at b_i = c_i / 2 (free), 0 at b_i >= c_i (active), b_i <= 0 (inactive), c_i <= b_i <= 0 (c_i < 0).
So a node is a box-constrained least-squares problem in b of which *every* feasible point is a valid bound: nodes are solved
inexactly by accelerated projected gradient, warm-started from the parent, thousands at a time.

Two more ideas keep the tree small. Looking ahead: for every free point the best bound of both children over the one changed
slope is a closed form; a child below the target is closed at once and its sibling's sign is fixed without a branching.
Symmetry: reflections that leave the weighted points unchanged let v be restricted to a chamber v . r >= 0 (rows `roots`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

ACTIVE, INACTIVE, FREE = 1, 0, -1
STEPS = 30  # gradient steps per node; 15 and 60 both gave slower proofs on parity and disks
LEAVE_AFTER = 20_000  # nodes before a run that cannot improve the bound is left: they find violators
RECORD_BYTES = 1 << 27  # above this the proof is not kept


@dataclass
class Pricing:
    """What a run of the tree knows about one side: value <= maximum <= bound."""

    value: float
    bound: float
    nodes: int
    found: Tensor  # (k, d) good unit directions met on the way
    log: Log | None
    aborted: bool = False


@dataclass
class Log:
    """The tree as it grew, enough to write every leaf's slopes down. Arrays over nodes in order of creation."""

    points: Tensor  # (n',) indices of the rows used, positive coefficients first
    parent: list[Tensor] = field(default_factory=list)
    branch: list[Tensor] = field(default_factory=list)  # index into points
    sign: list[Tensor] = field(default_factory=list)
    slopes: list[Tensor] = field(default_factory=list)  # (B, rows)
    fixes: list[Tensor] = field(default_factory=list)  # (k, 3): node, point, sign it was fixed to
    fix_slope: list[Tensor] = field(default_factory=list)  # slope of that point in the closed child
    bytes: int = 0


class Tree:
    """One pricing problem. `rows` are the points with c != 0 (positive first), then the roots of the symmetry."""

    def __init__(self, X: Tensor, c: Tensor, roots: Tensor | None = None, linear: Tensor | None = None):
        self.linear = X.new_zeros(X.shape[1]) if linear is None else linear  # a term linear . v of the objective
        points = torch.nonzero(c).flatten()
        points = points[torch.argsort((c[points] < 0).to(torch.int8), stable=True)]
        self.points, self.c = points, c[points]
        self.positive = int((self.c > 0).sum())
        self.X = X[points]  # (n', d)
        self.rows = self.X if roots is None or len(roots) == 0 else torch.cat([self.X, roots])
        size = self.rows.norm(dim=1).clamp_min(1e-300)
        self.unit, self.size = self.rows / size[:, None], size
        self.lipschitz = torch.linalg.matrix_norm(self.unit, 2) ** 2
        p = self.positive
        self.cp, self.xp, self.rp = self.c[:p], self.X[:p], size[:p]

    def evaluate(self, sign: Tensor, start: Tensor, steps: int = STEPS) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Bound, slopes, const and residual of nodes `sign` (B, p), from the slopes `start` (B, rows) of their parents."""
        p, n, rows = self.positive, len(self.c), len(self.rows)
        active, free = sign == ACTIVE, sign == FREE
        half, zero = 0.5 * self.cp, torch.zeros_like(self.cp)
        infinite = torch.full_like(self.cp, torch.inf)
        low = start.new_zeros(len(sign), rows)
        high = start.new_zeros(len(sign), rows)
        low[:, :p] = torch.where(free, half, torch.where(active, self.cp, -infinite))
        high[:, :p] = torch.where(free, half, torch.where(active, infinite, zero))
        low[:, p:n] = self.c[p:]
        high[:, n:] = torch.inf
        low, high = low * self.size, high * self.size  # slopes of the unit rows: better conditioned
        const = free.to(start.dtype) @ (half * self.rp)  # (B,)
        b = torch.clamp(start * self.size, low, high)
        first, first_norm = b, (self.linear + b @ self.unit).norm(dim=1)
        z, t = b, 1.0
        for _ in range(steps):
            new = torch.clamp(z - ((self.linear + z @ self.unit) @ self.unit.T) / self.lipschitz, low, high)
            t_new = (1 + (1 + 4 * t * t) ** 0.5) / 2
            z, b, t = new + (t - 1) / t_new * (new - b), new, t_new
        r = self.linear + b @ self.unit  # (B, d)
        worse = r.norm(dim=1) > first_norm  # never above the parent: the start is the parent's bound or better
        b = torch.where(worse[:, None], first, b)
        r = torch.where(worse[:, None], self.linear + first @ self.unit, r)
        return const + r.norm(dim=1), b / self.size, const, r

    def children(self, const: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """For every positive point: bounds of its active and inactive child over its own slope, and those slopes."""
        h = r @ self.xp.T  # (B, p)
        square, norm2 = self.rp**2, (r * r).sum(1, keepdim=True)
        up = torch.maximum(0.5 * self.cp, -h / square)  # change of the slope, active child
        down = torch.maximum(0.5 * self.cp, h / square)  # inactive child
        base = const[:, None] - 0.5 * self.cp * self.rp
        active = base + (norm2 + 2 * up * h + up * up * square).clamp_min(0).sqrt()
        inactive = base + (norm2 - 2 * down * h + down * down * square).clamp_min(0).sqrt()
        return active, inactive, 0.5 * self.cp + up, 0.5 * self.cp - down

    def value(self, r: Tensor) -> tuple[Tensor, Tensor]:
        v = r / r.norm(dim=1, keepdim=True).clamp_min(1e-300)
        return (v @ self.X.T).clamp_min(0) @ self.c + v @ self.linear, v

    def run(
        self,
        known: float,
        tol: float,
        *,
        deadline: float,
        batch: int,
        give_up: float = np.inf,
        record: bool = True,
        max_nodes: float = np.inf,
        memory: float = 4e9,
    ) -> Pricing:
        """Explore until the maximum is known to be at most max(known, best found) * (1 + tol).

        `known` need not be attained on this side. Stops early, with a valid bound, at `deadline`, at `max_nodes`, or as soon
        as a value above `give_up` has been found for long enough to be worth leaving.
        """
        device, dtype, p, rows = self.X.device, self.X.dtype, self.positive, len(self.rows)
        log = Log(self.points.cpu()) if record else None
        sign = torch.full((1, p), FREE, dtype=torch.int8, device=device)
        U, b, _, r = self.evaluate(sign, torch.zeros(1, rows, dtype=dtype, device=device), steps=300)
        value, v = self.value(r)
        best, found = max(known, float(value.max())), [(value, v)]
        limit = self.limit(best, tol)
        if log is not None:
            root = torch.tensor([-1])
            _append(log, root, root, root, b)
        pool = Pool(sign, b, U)
        nodes, aborted = 1, False
        while pool.count:
            top, highest = pool.best(batch)
            if highest <= limit:
                break
            if time.monotonic() > deadline or nodes > max_nodes or pool.bytes() > memory:
                break
            if best > give_up and nodes > LEAVE_AFTER:
                aborted = True
                break
            ids, S, B = pool.ids[top], pool.sign[top], pool.slopes[top]
            if log is not None and log.bytes > RECORD_BYTES:
                log = None
            S, B, ids, branch, keep = self.expand(S, B, ids, limit, log)
            # two children each, or the node itself where every sign is fixed but its problem is not solved well yet
            done = branch < 0
            left, right = S.clone(), S[~done].clone()
            index = torch.arange(len(S), device=device)
            left[index[~done], branch[~done]] = ACTIVE
            right[torch.arange(len(right), device=device), branch[~done]] = INACTIVE
            child, start = torch.cat([left, right]), torch.cat([B, B[~done]])
            U, b, _, r = self.evaluate(child, start)
            value, v = self.value(r)
            child_ids = torch.arange(nodes, nodes + len(child), device=device)
            if log is not None:
                signs = torch.cat([torch.where(done, FREE, ACTIVE), torch.full((len(right),), INACTIVE, device=device)])
                _append(log, torch.cat([ids, ids[~done]]), torch.cat([branch, branch[~done]]), signs, b)
            nodes += len(child)
            if len(value):
                best = max(best, float(value.max()))
                limit = self.limit(best, tol)
                good = torch.topk(value, min(32, len(value))).indices
                found.append((value[good], v[good]))
            live = U > limit
            pool.replace(top, child[live], b[live], U[live], child_ids[live])
        bound = limit
        if pool.count:
            _, highest = pool.best(1)
            bound = max(limit, highest)
        values, directions = torch.cat([f[0] for f in found]), torch.cat([f[1] for f in found])
        order = torch.argsort(-values)[:400]
        return Pricing(float(values.max()), bound, nodes, directions[order], log, aborted)

    @staticmethod
    def limit(best: float, tol: float) -> float:
        return best * (1 + tol) + 1e-300

    def expand(self, S: Tensor, B: Tensor, ids: Tensor, limit: float, log: Log | None):
        """Look ahead at the chosen nodes: close children that are below the limit, choose where to branch."""
        free = S == FREE
        const = free.to(B.dtype) @ (0.5 * self.cp * self.rp)
        r = self.linear + B @ self.rows
        active, inactive, slope_active, slope_inactive = self.children(const, r)
        to_active, to_inactive = free & (inactive <= limit), free & (active <= limit)
        dead = (to_active & to_inactive).any(1)
        if log is not None:
            for mask, sign, slope in ((to_active, ACTIVE, slope_inactive), (to_inactive & ~to_active, INACTIVE, slope_active)):
                self._log_fixes(log, ids, mask, sign, slope, S)
            # a node of which both children of one point are closed is finished: record the other child too
            both = (to_active & to_inactive).to(torch.int8).argmax(1)[dead]
            at = torch.nonzero(dead).flatten()
            log.fixes.append(torch.stack([ids[at], both, torch.full_like(both, 2)], 1).cpu())
            log.fix_slope.append(slope_active[at, both].cpu())
        S = torch.where(to_active, ACTIVE, torch.where(to_inactive, INACTIVE, S)).to(torch.int8)
        free = S == FREE
        U = (const + r.norm(dim=1))[:, None]
        score = (U - active).clamp_min(1e-12) * (U - inactive).clamp_min(1e-12)
        branch = torch.where(free, score, -1.0).argmax(1)
        branch = torch.where(free.any(1), branch, -1)
        keep = ~dead
        return S[keep], B[keep], ids[keep], branch[keep], keep

    def _log_fixes(self, log: Log, ids: Tensor, mask: Tensor, sign: int, slope: Tensor, S: Tensor) -> None:
        at = torch.nonzero(mask)  # (k, 2)
        if len(at) == 0:
            return
        log.fixes.append(torch.stack([ids[at[:, 0]], at[:, 1], torch.full_like(at[:, 1], sign)], 1).cpu())
        log.fix_slope.append(slope[at[:, 0], at[:, 1]].cpu())
        log.bytes += 32 * len(at)


def _append(log: Log, parent: Tensor, branch: Tensor, sign: Tensor, slopes: Tensor) -> None:
    for target, tensor in ((log.parent, parent), (log.branch, branch), (log.sign, sign), (log.slopes, slopes)):
        target.append(tensor.cpu())
    log.bytes += 8 * slopes.numel()


class Pool:
    """Open nodes in growing arrays; closed slots are reused, so a round costs its batch and one top-k."""

    def __init__(self, sign: Tensor, slopes: Tensor, U: Tensor):
        self.sign, self.slopes, self.U = sign, slopes, U.clone()
        self.ids = torch.zeros(len(U), dtype=torch.long, device=U.device)
        self.count = len(U)  # slots in use, holes included

    def bytes(self) -> int:
        return self.slopes.element_size() * self.slopes.numel() + self.sign.numel()

    def best(self, batch: int) -> tuple[Tensor, float]:
        top = torch.topk(self.U[: self.count], min(batch, self.count))
        keep = top.values > -torch.inf
        return top.indices[keep], float(top.values[0])

    def replace(self, slots: Tensor, sign: Tensor, slopes: Tensor, U: Tensor, ids: Tensor) -> None:
        reuse = min(len(slots), len(U))
        self._write(slots[:reuse], sign[:reuse], slopes[:reuse], U[:reuse], ids[:reuse])
        self.U[slots[reuse:]] = -torch.inf
        extra = len(U) - reuse
        if extra > 0:
            if self.count + extra > len(self.U):
                self._grow(max(2 * len(self.U), self.count + extra))
            at = torch.arange(self.count, self.count + extra, device=self.U.device)
            self._write(at, sign[reuse:], slopes[reuse:], U[reuse:], ids[reuse:])
            self.count += extra
        elif len(slots) > reuse:
            open_ = torch.nonzero(self.U[: self.count] > -torch.inf).flatten()
            if len(open_) < self.count // 2:
                for name in ("sign", "slopes", "U", "ids"):
                    array = getattr(self, name)
                    array[: len(open_)] = array[open_].clone()
                self.count = len(open_)

    def _write(self, at: Tensor, sign: Tensor, slopes: Tensor, U: Tensor, ids: Tensor) -> None:
        self.sign[at], self.slopes[at], self.U[at], self.ids[at] = sign, slopes, U, ids

    def _grow(self, size: int) -> None:
        for name in ("sign", "slopes", "U", "ids"):
            old = getattr(self, name)
            new = old.new_empty((size, *old.shape[1:]))
            new[: self.count] = old[: self.count]
            setattr(self, name, new)
