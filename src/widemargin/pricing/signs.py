"""Branch and bound for the pricing problem  max_{|v| <= 1} sum_i c_i relu(v . x_i), in batches of nodes.

Terms with c_i < 0 are concave and need no branching. A node fixes the sign of v . x_i for some points with c_i > 0; the
others are bounded by the chord relu(t) <= (t + |x_i|) / 2. For any slopes b_i the objective on the node's region is at most

    sum_i kappa_i(b_i) + || sum_i b_i x_i ||,      kappa_i(b) = max over the allowed t of c_i relu(t) - b t,

and kappa_i = c_i |x_i| / 2 at b_i = c_i / 2 (free), 0 at b_i >= c_i (active), b_i <= 0 (inactive), c_i <= b_i <= 0 (c_i < 0).
So a node is a box-constrained least-squares problem in b of which *every* feasible point is a valid bound: nodes are solved
inexactly by accelerated projected gradient, warm-started from the parent, thousands at a time.

That relaxation is weak while many points are free: it lets every |v . x_i| be |x_i| at once. Nodes it does not close get a
quadratic bound from the moments of v (`moments`). On 2-parity with n=128, d=20 the root is then within 3 % where the linear
bound is off by a factor 3, and a few nodes prove 1 % where the linear tree needed millions.

Two more ideas keep the tree small. Looking ahead: for every free point the best bound of both children over the one changed
slope is a closed form; a child below the target is closed at once and its sibling's sign is fixed without a branching.
Symmetry: reflections that leave the weighted points unchanged let v be restricted to a chamber v . r >= 0 (rows `roots`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from .moments import FrankWolfe, LoggedQuadraticBounds, QuadraticBounds, Splitting, beginning, held, relaxation
from .points import ACTIVE, FREE, INACTIVE, Priced, Terms
from .search import shortest

STEPS = 30  # gradient steps per node; 15 and 60 both gave slower proofs on parity and disks
LEAVE_AFTER = 20_000  # nodes before a run that cannot improve the bound is left: they find violators
GRACE = 0.2  # seconds beyond the deadline that the root of quadratic bounds may take
NEWTON_RANK = 12  # largest rank for interior-point steps in a node,
NEWTON_NODES = 1000  # and how many nodes are tried without them
NEWTON_WORK = 2e7  # operations of a step of a batch: more take seconds, and no clock is looked at inside
# A sum of unit vectors that is shorter, relative to its weights, is taken for 0; it is worked out exactly when written.
NOTHING = 1e-10
WRITING = 1.5e-5, 5e-4  # seconds to write a node down, with linear and with quadratic bounds,
PRODUCT = 2e-10  # and for each of its products with a point's coordinate, those of the other side too
LOOK = 0.1  # of the nodes that a tree may have, after which it first asks whether it will be done by then
NEAR = 1.05  # nodes this close to the limit get a second round of steps
RECORD_BYTES = 1 << 27  # above this the proof is not kept
CPU_BYTES, GPU_SHARE = (
    4e9,
    0.3,
)  # memory of open nodes, and the share of a GPU's free memory: their arrays grow by copies
GROWTH = 4  # times their own size that these take while they grow, with all that is made of a batch


@dataclass
class Log:
    """The tree as it grew, enough to write every leaf's slopes down. Arrays over nodes in order of creation."""

    points: Tensor  # (n',) indices of the rows used, positive coefficients first
    parent: list[Tensor] = field(default_factory=list)
    branch: list[Tensor] = field(default_factory=list)  # index into points
    sign: list[Tensor] = field(default_factory=list)
    slopes: list[Tensor] = field(default_factory=list)  # (B, rows)
    # Node ids, and their quadratic bounds.
    quadratic: list[tuple[Tensor, LoggedQuadraticBounds]] = field(default_factory=list)
    empty: list[Tensor] = field(default_factory=list)  # nodes whose signs no direction has
    fixes: list[Tensor] = field(default_factory=list)  # (k, 3): node, point, sign it was fixed to
    fix_slope: list[Tensor] = field(default_factory=list)  # slope of that point in the closed child
    bytes: int = 0


class Tree(Terms):
    """Branch and bound over the signs of the positive terms.

    `columns` are those of the points as they are written down, which may be far more than their rank; `memory` is that in bytes
    which it may take.
    """

    def __init__(
        self,
        X: Tensor,
        c: Tensor,
        roots: Tensor | None = None,
        linear: Tensor | None = None,
        columns: int = 0,
        memory: float = math.inf,
    ):
        super().__init__(X, c, roots, linear)
        self.columns, self.memory = columns, memory

    def evaluate(
        self, sign: Tensor, start: Tensor, steps: int = STEPS, limit: float = np.inf, everywhere: bool = False
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Bound, slopes, const and residual of nodes `sign` (B, p), from the slopes `start` (B, rows) of their parents.

        Above `limit` nodes without free points, or all of them (`everywhere`), are solved to the end.
        """
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
        chords = free & self.signed
        const = chords.to(start.dtype) @ (half * self.rp)  # (B,)
        b = torch.clamp(start * self.size, low, high)
        first, first_norm = b, (self.linear + b @ self.unit).norm(dim=1)
        z, t = b, 1.0
        for _ in range(steps):
            new = torch.clamp(z - ((self.linear + z @ self.unit) @ self.unit.T) / self.lipschitz, low, high)
            t_new = (1 + (1 + 4 * t * t) ** 0.5) / 2
            z, b, t = new + (t - 1) / t_new * (new - b), new, t_new
        if self.rows.shape[1] <= NEWTON_RANK:
            # Gradient steps crawl where points are nearly parallel. A node without free points has nothing else left to try.
            poor = const + (self.linear + b @ self.unit).norm(dim=1) > limit
            poor = torch.nonzero(poor & (chords.logical_not().all(1) | everywhere)).flatten()
            if len(poor):
                b[poor] = shortest(self.unit, self.linear, low[poor], high[poor], b[poor], self.typical)
        r = self.linear + b @ self.unit  # (B, d)
        worse = r.norm(dim=1) > first_norm  # never above the parent: the start is the parent's bound or better
        b = torch.where(worse[:, None], first, b)
        r = torch.where(worse[:, None], self.linear + first @ self.unit, r)
        return const + r.norm(dim=1), b / self.size, const, r

    def empty(self, sign: Tensor, last: Tensor) -> Tensor:
        """Whether no direction has the fixed signs, given that some has those without the last, of point `last` (B,).

        By Gordan's theorem that is so if and only if a sum of b_i s_i x_i, b_i >= 0, vanishes, and here b is positive at the last
        one. Bounds do not see it: they allow v = 0, where chords of free points are above 0.
        """
        active, inactive = sign == ACTIVE, sign == INACTIVE
        low = torch.where(inactive, -torch.inf, 0.0).to(self.unit.dtype)
        high = torch.where(active, torch.inf, 0.0).to(self.unit.dtype)
        row = torch.arange(len(sign), device=sign.device)
        low[row, last] = high[row, last] = torch.where(active[row, last], 1.0, -1.0).to(self.unit.dtype)
        unit = self.unit[: self.positive]
        b = shortest(unit, torch.zeros_like(unit[0]), low, high, torch.zeros_like(low), 1.0)
        return (b @ unit).norm(dim=1) < NOTHING * b.abs().sum(1)

    def children(self, const: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """For every positive point: bounds of its active and inactive child over its own slope, and those slopes."""
        h = r @ self.xp.T  # (B, p)
        square, norm2 = (self.rp**2).clamp_min(1e-300), (r * r).sum(1, keepdim=True)  # a point may be 0
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
        target: float = 0.0,
        give_up: float = np.inf,
        max_nodes: float = np.inf,
        quadratic: bool = True,
        empties: bool = True,
        beat: Callable[[], None] | None = None,
    ) -> Priced:
        """Explore until the maximum is known to be at most max(target, max(known, best found) * (1 + tol)).

        `known` need not be attained on this side. Stops early, with a valid bound, at `deadline`, at `max_nodes`, or as soon
        as a value above `give_up` has been found and enough nodes were seen. Quadratic bounds cost about ten linear ones,
        so they pay where trees are large. `empties`: whether nodes whose signs no direction has are closed.
        """
        device, dtype, p, rows, memory = self.X.device, self.X.dtype, self.positive, len(self.rows), self.memory
        if self.rows.shape[1] <= NEWTON_RANK and device.type == "cpu":
            batch = max(min(batch, int(NEWTON_WORK / (rows * self.rows.shape[1] ** 2 + 1))), 32)
        whole = Log(self.points.cpu())
        log: Log | None = whole  # None where it has grown too large to be kept
        sign = torch.full((1, p), FREE, dtype=torch.int8, device=device)
        U, b, _, r = self.evaluate(sign, torch.zeros(1, rows, dtype=dtype, device=device), steps=300)
        value, v = self.value(r)
        best, met = max(known, float(value.max())), [(value, v)]
        root = torch.tensor([-1])
        _append(whole, root, root, root, b)
        limit = max(target, best * (1 + tol)) + 1e-300
        if device.type == "cuda":
            memory = math.inf  # of the machine, not of the GPU
        else:
            quadratic = (
                quadratic and time.monotonic() + beginning(self) <= deadline + GRACE and held(self) <= memory / 2
            )
        closeness = max(limit / max(known, 1e-300) - 1, tol)
        moments = relaxation(self, closeness, deadline, memory / 2) if quadratic else None
        state = torch.zeros(1, 0, device=device)
        if moments is not None and float(U.max()) > limit:
            bounds, state, v = moments.solve(sign, moments.start(), moments.root_steps)
            if float(bounds.bound) < float(U):
                _append_quadratic(
                    whole, torch.zeros(1, dtype=torch.long), bounds, torch.zeros(1, dtype=torch.long, device=device)
                )
            U = torch.minimum(U, bounds.bound)
            value, v = self.value(v)
            met.append((value, v))
            best = max(best, float(value.max()))
            limit = max(target, best * (1 + tol)) + 1e-300
        ids = torch.zeros(1, dtype=torch.long, device=device)
        pool = Pool(sign=sign, slopes=b, state=state, U=U, ids=ids)
        nodes, aborted = 1, False
        # Bytes that open nodes may have; the nodes at which to look at the bound next, and the bound at half as many.
        memory = min(CPU_BYTES, memory / GROWTH)
        if device.type == "cuda":
            memory = GPU_SHARE * torch.cuda.mem_get_info(device)[0]
        look, before = 0.5 * LOOK * max_nodes, np.inf
        while pool.count:
            if beat is not None:
                beat()
            top, highest = pool.best(batch)
            if highest <= limit:
                break
            # What is not written down was not proved in time.
            each = WRITING[moments is not None] + PRODUCT * rows * self.columns
            writing = 0.0 if log is None else nodes * each
            if time.monotonic() + writing > deadline or nodes >= max_nodes or pool.bytes() > memory:
                break
            if best > give_up and nodes > (LEAVE_AFTER if self.X.shape[1] > NEWTON_RANK else NEWTON_NODES):
                aborted = True
                break
            if nodes >= look:
                # With every doubling of a tree the bound falls by the same or less.
                if highest - limit > (before - highest) * np.log2(max_nodes / nodes):
                    break
                look, before = 2 * nodes, highest
            if pool.crowded(memory / 4):  # no room for breadth: finish the nodes that are nearly closed
                top = pool.lowest(batch)
            if log is not None and log.bytes > RECORD_BYTES:
                log = None
            node = pool.take(top)
            node, branch = self.expand(node, limit, log, moments)
            # two children each, or the node itself where every sign is fixed but its problem is not solved well yet
            done = branch < 0
            child = {name: torch.cat([array, array[~done]]) for name, array in node.items()}
            index, k = torch.arange(len(branch), device=device)[~done], len(branch)
            child["sign"][index, branch[~done]] = ACTIVE
            child["sign"][torch.arange(k, len(child["U"]), device=device), branch[~done]] = INACTIVE
            U, child["slopes"], _, r = self.evaluate(
                child["sign"], child["slopes"], limit=limit, everywhere=nodes > NEWTON_NODES
            )
            child["U"] = torch.minimum(U, child["U"])  # what holds for the parent holds for its part
            value, v = self.value(r)
            parents, child["ids"] = child["ids"], torch.arange(nodes, nodes + len(U), device=device)
            if log is not None:
                right = torch.full((len(U) - k,), INACTIVE, device=device)
                signs = torch.cat([torch.where(done, FREE, ACTIVE), right])
                _append(log, parents, torch.cat([branch, branch[~done]]), signs, child["slopes"])
            nodes += len(U)
            if len(U):
                best = max(best, float(value.max()))
                good = torch.topk(value, min(32, len(value))).indices
                met.append((value[good], v[good]))
            limit = max(target, best * (1 + tol)) + 1e-300
            last, alive = torch.cat([branch, branch[~done]]), child["U"] > limit
            if empties and nodes > NEWTON_NODES and len(self.xp) and self.rows.shape[1] <= NEWTON_RANK:
                index = torch.nonzero(alive & (last >= 0)).flatten()
                gone = index[self.empty(child["sign"][index], last[index])]
                alive[gone] = False
                if log is not None:
                    log.empty.append(child["ids"][gone].cpu())
            child = {name: array[alive] for name, array in child.items()}
            if moments is not None and len(child["U"]):
                v = self.quadratic_bounds(child, moments, torch.arange(len(child["U"]), device=device), log)
                near = torch.nonzero((child["U"] > limit) & (child["U"] < NEAR * limit)).flatten()
                if len(near):  # a little more work may close them
                    v[near] = self.quadratic_bounds(child, moments, near, log)
                value, v = self.value(v)
                good = torch.topk(value, min(32, len(value))).indices
                met.append((value[good], v[good]))
                best = max(best, float(value.max()))
                limit = max(target, best * (1 + tol)) + 1e-300
                child = {name: array[child["U"] > limit] for name, array in child.items()}
            pool.replace(top, child)
        bound = limit
        if pool.count:
            _, highest = pool.best(1)
            bound = max(limit, highest)
        values, directions = torch.cat([f[0] for f in met]), torch.cat([f[1] for f in met])
        order = torch.argsort(-values)[:400]
        return Priced(float(values.max()), bound, nodes, directions[order], log, aborted)

    def quadratic_bounds(
        self, nodes: dict[str, Tensor], moments: Splitting | FrankWolfe, chosen: Tensor, log: Log | None
    ) -> Tensor:
        """Quadratic bounds of the nodes `chosen`: lowers their U, moves their state on, returns a direction of each."""
        bounds, nodes["state"][chosen], v = moments.solve(nodes["sign"][chosen], nodes["state"][chosen], moments.steps)
        better = torch.nonzero(bounds.bound < nodes["U"][chosen]).flatten()
        if log is not None and len(better):
            _append_quadratic(log, nodes["ids"][chosen][better].cpu(), bounds, better)
        nodes["U"][chosen] = torch.minimum(nodes["U"][chosen], bounds.bound)
        return v

    def expand(self, node: dict[str, Tensor], limit: float, log: Log | None, moments: Splitting | FrankWolfe | None):
        """Look ahead at the chosen nodes: close children that are below the limit, choose where to branch."""
        S, B, ids = node["sign"], node["slopes"], node["ids"]
        free = (S == FREE) & self.signed
        const = free.to(B.dtype) @ (0.5 * self.cp * self.rp)
        r = self.linear + B @ self.rows
        active, inactive, slope_active, slope_inactive = self.children(const, r)
        to_active, to_inactive = free & (inactive <= limit), free & (active <= limit)
        dead = (to_active & to_inactive).any(1)
        if log is not None:
            for mask, sign, slope in (
                (to_active, ACTIVE, slope_inactive),
                (to_inactive & ~to_active, INACTIVE, slope_active),
            ):
                self._log_fixes(log, ids, mask, sign, slope)
            # a node of which both children of one point are closed is finished: record the other child too
            both = (to_active & to_inactive).to(torch.int8).argmax(1)[dead]
            at = torch.nonzero(dead).flatten()
            log.fixes.append(torch.stack([ids[at], both, torch.full_like(both, 2)], 1).cpu())
            log.fix_slope.append(slope_active[at, both].cpu())
        S = torch.where(to_active, ACTIVE, torch.where(to_inactive, INACTIVE, S)).to(torch.int8)
        free = (S == FREE) & self.signed
        if moments is not None:  # where the relaxation is most undecided about the sign of t
            mean, square = moments.moments(node["state"])  # (B, p)
            score = self.cp * self.rp * (square - mean**2).clamp_min(1e-12).sqrt()
        else:
            U = (const + r.norm(dim=1))[:, None]
            score = (U - active).clamp_min(1e-12) * (U - inactive).clamp_min(1e-12)
        branch = torch.where(free, score, -torch.inf).argmax(1)
        branch = torch.where(free.any(1), branch, -1)
        keep = ~dead
        node = {name: array[keep] for name, array in (node | {"sign": S}).items()}
        return node, branch[keep]

    def _log_fixes(self, log: Log, ids: Tensor, mask: Tensor, sign: int, slope: Tensor) -> None:
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


def _append_quadratic(log: Log, ids: Tensor, bounds: QuadraticBounds, chosen: Tensor) -> None:
    entry = bounds.log(chosen)
    log.quadratic.append((ids, entry))
    log.bytes += 8 * (entry.a.numel() + entry.b.numel()) + 24 * sum(map(len, entry.pairs))


class Pool:
    """Open nodes in growing arrays; closed slots are reused, so a round costs its batch and one top-k."""

    def __init__(self, **arrays: Tensor):
        self.arrays = {name: array.clone() for name, array in arrays.items()}
        self.count = len(self.arrays["U"])  # slots in use, holes included

    def bytes(self) -> int:
        return sum(array.element_size() * array.numel() for array in self.arrays.values())

    def best(self, batch: int) -> tuple[Tensor, float]:
        top = torch.topk(self.arrays["U"][: self.count], min(batch, self.count))
        return top.indices[top.values > -torch.inf], float(top.values[0])

    def crowded(self, memory: float) -> bool:
        return self.count / len(self.arrays["U"]) * self.bytes() > memory

    def lowest(self, batch: int) -> Tensor:
        U = self.arrays["U"][: self.count]
        return torch.topk(torch.where(-torch.inf < U, U, torch.inf), min(batch, self.count), largest=False).indices

    def take(self, slots: Tensor) -> dict[str, Tensor]:
        return {name: array[slots] for name, array in self.arrays.items()}

    def replace(self, slots: Tensor, new: dict[str, Tensor]) -> None:
        """Put the nodes `new` in place of those in `slots`."""
        size, U = len(new["U"]), self.arrays["U"]
        reuse = min(len(slots), size)
        for name, array in self.arrays.items():
            array[slots[:reuse]] = new[name][:reuse]
        U[slots[reuse:]] = -torch.inf
        extra = size - reuse
        if extra > 0:
            self._reserve(self.count + extra)
            for name, array in self.arrays.items():
                array[self.count : self.count + extra] = new[name][reuse:]
            self.count += extra
        elif len(slots) > reuse:
            open_ = torch.nonzero(U[: self.count] > -torch.inf).flatten()
            if len(open_) < self.count // 2:
                for array in self.arrays.values():
                    array[: len(open_)] = array[open_].clone()
                self.count = len(open_)

    def _reserve(self, size: int) -> None:
        if size <= len(self.arrays["U"]):
            return
        size = max(size, int(1.5 * len(self.arrays["U"])))
        for name, old in self.arrays.items():
            new = old.new_empty((size, *old.shape[1:]))
            new[: self.count] = old[: self.count]
            self.arrays[name] = new
