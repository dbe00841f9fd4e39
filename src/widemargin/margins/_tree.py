"""Branch and bound for the pricing problem  max_{|v| <= 1} sum_i c_i relu(v . x_i), in batches of nodes.

Terms with c_i < 0 are concave and need no branching. A node fixes the sign of v . x_i for some points with c_i > 0; the
others are bounded by the chord relu(t) <= (t + |x_i|) / 2. For any slopes b_i the objective on the node's region is at most

    sum_i kappa_i(b_i) + || sum_i b_i x_i ||,      kappa_i(b) = max over the allowed t of c_i relu(t) - b t,

and kappa_i = c_i |x_i| / 2 at b_i = c_i / 2 (free), 0 at b_i >= c_i (active), b_i <= 0 (inactive), c_i <= b_i <= 0 (c_i < 0).
So a node is a box-constrained least-squares problem in b of which *every* feasible point is a valid bound: nodes are solved
inexactly by accelerated projected gradient, warm-started from the parent, thousands at a time.

That relaxation is weak while many points are free: it lets every |v . x_i| be |x_i| at once. Nodes it does not close get a
quadratic bound. For any curvatures a_i and slopes b_i with c_i relu(t) <= a_i t^2 + b_i t + kappa_i on the node's range of t,

    objective <= sum_i kappa_i + max_{|v| <= 1} (v' M v + g . v),        M = sum_i a_i x_i x_i',   g = sum_i b_i x_i,

a trust-region problem with an exact dual in one number lam. Minimised over (a, b) this is the dual of a semidefinite program over
the mean of v and of v v'; it is solved by Frank-Wolfe on that program, whose state is (mean of t_i, mean of t_i^2), a few
steps per node from the parent's state. On 2-parity with n=128, d=20 the root is within 4 % where the linear bound is off by
a factor 3, and 11 nodes prove 1 % where the linear tree needed millions.

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
CURVED_STEPS = 8  # Frank-Wolfe steps per node for the quadratic bound, and at the root
CURVED_ROOT = 80
# Large trees need sharper bounds: on disks n=128 the gap after 70 s went from 34 % (8 steps) to 5 % (24).
HARD_AFTER, HARD_STEPS = 1000, 24
CURVED_MEMORY = 2e8  # entries of the matrices M worked on at once
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
    curved: list[tuple[Tensor, Tensor, Tensor, Tensor]] = field(default_factory=list)  # node ids, a, b, lam
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
        self.penalty = 2 * float(self.c.abs().max()) if len(points) else 0.0

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

    def start(self, nodes: int) -> tuple[Tensor, Tensor]:
        """Frank-Wolfe state at the root: mean 0, and v spread over the whole sphere."""
        square = (self.size**2 / self.rows.shape[1]).expand(nodes, -1).clone()
        return torch.zeros_like(square), square

    def majorants(self, sign: Tensor, mean: Tensor, square: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Curvatures a (B, n'), slopes b (B, rows) and sum of kappa (B,) that are best at the moments of t.

        Free points with c > 0: c relu(t) <= c t / 2 + c (t^2 / s + s) / 4, best at s^2 = mean of t^2. Points with c < 0:
        relu(t) is at least 0, t and (t + t^2 / |x|) / 2, mixed by a softmax because Frank-Wolfe needs smoothness. Fixed signs:
        a slope that grows where the mean has the wrong sign.
        """
        p, n = self.positive, len(self.c)
        free, active = sign == FREE, sign == ACTIVE
        s = torch.maximum(square[:, :p].clamp_min(0).sqrt(), 1e-3 * self.rp)
        heat = 0.02 * self.size
        size, t = self.size[p:n], mean[:, p:n]
        mix = torch.softmax(torch.stack([torch.zeros_like(t), t, (t + square[:, p:n] / size) / 2]) / heat[p:n], 0)
        wrong = torch.where(active, -mean[:, :p], mean[:, :p]) / heat[:p]
        push = self.penalty * torch.sigmoid(wrong - 2)
        b_fixed = torch.where(active, self.cp + push, -push)
        roots = self.penalty * torch.sigmoid(-mean[:, n:] / heat[n:] - 2)
        a = torch.cat([torch.where(free, self.cp / (4 * s), 0.0), self.c[p:] * mix[2] / (2 * size)], 1)
        b = torch.cat([torch.where(free, 0.5 * self.cp, b_fixed), self.c[p:] * (mix[1] + mix[2] / 2), roots], 1)
        return a, b, torch.where(free, self.cp * s / 4, 0.0).sum(1)

    def curve(self, sign: Tensor, mean: Tensor, square: Tensor, steps: int, first: bool):
        """Frank-Wolfe on the semidefinite relaxation: the best bound met with its (a, b, lam), the state, and the last v."""
        block = max(1, int(CURVED_MEMORY / (self.X.shape[1] ** 2 + len(self.rows))))
        if len(sign) > block:
            parts = [
                self.curve(sign[i : i + block], mean[i : i + block], square[i : i + block], steps, first)
                for i in range(0, len(sign), block)
            ]
            return tuple(torch.cat(column) for column in zip(*parts))
        best = None
        for step in range(steps):
            a, b, kappa = self.majorants(sign, mean, square)
            M = (self.X.T * a[:, None, :]) @ self.X  # (B, d, d)
            g = self.linear + b @ self.rows
            value, lam, v, spare, top = trust_region(M, g)
            bound = kappa + value
            if best is None:
                best = [bound, a, b, lam]
            else:
                better = bound < best[0]
                best = [
                    torch.where(better.view(-1, *[1] * (new.dim() - 1)), new, old)
                    for new, old in zip((bound, a, b, lam), best)
                ]
            t = v @ self.rows.T
            t2 = t * t + spare[:, None] * (top @ self.rows.T) ** 2
            eta = 2 / (step + 3) if first else 0.35 / (1 + 0.3 * step)
            mean, square = (1 - eta) * mean + eta * t, (1 - eta) * square + eta * t2
        assert best is not None
        bound, a, b, lam = best
        return bound, a, b, lam, mean, square, v

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
        target: float = 0.0,
        give_up: float = np.inf,
        record: bool = True,
        max_nodes: float = np.inf,
        memory: float = 4e9,
        curved: bool = True,
    ) -> Pricing:
        """Explore until the maximum is known to be at most max(target, max(known, best found) * (1 + tol)).

        `known` need not be attained on this side. Stops early, with a valid bound, at `deadline`, at `max_nodes`, or as soon
        as a value above `give_up` has been found and enough nodes were seen. Quadratic bounds cost about ten linear ones,
        so they pay where trees are large.
        """
        device, dtype, p, rows = self.X.device, self.X.dtype, self.positive, len(self.rows)
        log = Log(self.points.cpu()) if record else None
        sign = torch.full((1, p), FREE, dtype=torch.int8, device=device)
        U, b, _, r = self.evaluate(sign, torch.zeros(1, rows, dtype=dtype, device=device), steps=300)
        value, v = self.value(r)
        best, found = max(known, float(value.max())), [(value, v)]
        if log is not None:
            root = torch.tensor([-1])
            _append(log, root, root, root, b)
        mean, square = self.start(1)
        if curved and float(U.max()) > max(target, best * (1 + tol)) + 1e-300:
            bent, a, slopes, lam, mean, square, v = self.curve(sign, mean, square, CURVED_ROOT, True)
            if log is not None and float(bent) < float(U):
                log.curved.append((torch.zeros(1, dtype=torch.long), a.cpu(), slopes.cpu(), lam.cpu()))
            U = torch.minimum(U, bent)
            value, v = self.value(v)
            found.append((value, v))
            best = max(best, float(value.max()))
        limit = max(target, best * (1 + tol)) + 1e-300
        pool = Pool(
            sign=sign,
            slopes=b,
            mean=mean.float(),
            square=square.float(),
            U=U,
            ids=torch.zeros(1, dtype=torch.long, device=device),
        )
        nodes, aborted = 1, False
        while pool.count:
            top, highest = pool.best(batch)
            if highest <= limit:
                break
            if time.monotonic() > deadline or nodes >= max_nodes or pool.bytes() > memory:
                break
            if best > give_up and nodes > LEAVE_AFTER:
                aborted = True
                break
            if pool.crowded(memory / 4):  # no room for breadth: finish the nodes that are nearly closed
                top = pool.lowest(batch)
            node = pool.take(top)
            if log is not None and log.bytes > RECORD_BYTES:
                log = None
            node, branch = self.expand(node, limit, log, curved)
            # two children each, or the node itself where every sign is fixed but its problem is not solved well yet
            done = branch < 0
            child = {name: torch.cat([array, array[~done]]) for name, array in node.items()}
            index, k = torch.arange(len(branch), device=device)[~done], len(branch)
            child["sign"][index, branch[~done]] = ACTIVE
            child["sign"][torch.arange(k, len(child["U"]), device=device), branch[~done]] = INACTIVE
            U, child["slopes"], _, r = self.evaluate(child["sign"], child["slopes"])
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
                found.append((value[good], v[good]))
            limit = max(target, best * (1 + tol)) + 1e-300
            child = {name: array[child["U"] > limit] for name, array in child.items()}
            if curved and len(child["U"]):
                steps = CURVED_STEPS if nodes < HARD_AFTER else HARD_STEPS
                mean, square = child["mean"].to(dtype), child["square"].to(dtype)
                bent, a, slopes, lam, mean, square, v = self.curve(child["sign"], mean, square, steps, False)
                child["mean"], child["square"] = mean.float(), square.float()
                better = bent < child["U"]
                if log is not None and bool(better.any()):
                    log.curved.append(
                        (child["ids"][better].cpu(), a[better].cpu(), slopes[better].cpu(), lam[better].cpu())
                    )
                    log.bytes += 16 * int(better.sum()) * rows
                child["U"] = torch.minimum(child["U"], bent)
                value, v = self.value(v)
                good = torch.topk(value, min(32, len(value))).indices
                found.append((value[good], v[good]))
                best = max(best, float(value.max()))
                limit = max(target, best * (1 + tol)) + 1e-300
                child = {name: array[child["U"] > limit] for name, array in child.items()}
            pool.replace(top, child)
        bound = limit
        if pool.count:
            _, highest = pool.best(1)
            bound = max(limit, highest)
        values, directions = torch.cat([f[0] for f in found]), torch.cat([f[1] for f in found])
        order = torch.argsort(-values)[:400]
        return Pricing(float(values.max()), bound, nodes, directions[order], log, aborted)

    def expand(self, node: dict[str, Tensor], limit: float, log: Log | None, curved: bool):
        """Look ahead at the chosen nodes: close children that are below the limit, choose where to branch."""
        S, B, ids = node["sign"], node["slopes"], node["ids"]
        free = S == FREE
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
        free = S == FREE
        p = self.positive
        if curved:  # where the relaxation is most undecided about the sign of t
            square, mean = node["square"][:, :p].to(B.dtype), node["mean"][:, :p].to(B.dtype)
            score = self.cp * (square.clamp_min(0).sqrt() - mean.abs() + 1e-9)
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
        size = max(size, 2 * len(self.arrays["U"]))
        for name, old in self.arrays.items():
            new = old.new_empty((size, *old.shape[1:]))
            new[: self.count] = old[: self.count]
            self.arrays[name] = new


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
