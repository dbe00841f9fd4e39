"""The largest margin over all two-layer ReLU networks of any width, between a network and a proof."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from widemargin.pricing import pairing, search, signs, symmetry, writing
from widemargin.pricing.points import opposite_pairs, reduce_rank, whitening
from widemargin.spaces import Space
from widemargin.types import Certificate, Dataset, InputError, Measure, check_device

from . import _bounds, _door, _polish, _prune, _qp, _socp
from ._columns import column_lp

Progress = Callable[[float, float, float, str], None]

CONE_LIMIT = 30_000  # n * rank above which the cone program is too slow and particles take over
CONE_COLUMNS = 8000  # patterns * rank in a cone program
STRAIGHT_NODES = 200_000  # nodes of linear bounds tried before the tree turns to quadratic ones
NEAR_ROOT = 1.1  # quadratic root bound over target up to which linear bounds are not tried
CURVED_RANK, ROOT_RANK = 150, 1100  # largest rank for quadratic bounds in the tree, and at its root
LARGE = 100_000  # entries of X from which more than one thread pays
SMALL = 400  # n * rank below which a few local searches are enough to start
WARM_WIDTH, WARM_STEPS = 50, 2000  # of the ascent that finds the first patterns
STARTS = 384  # local searches per side and round on a CPU
PATTERNS = 150  # patterns in a master problem; more made it slower without a better dual on parity and disks
HANDOVER = 1.1  # estimate over lower bound at which the cone program takes over from the linear one
ROUGH = 1.2, 0.04  # an upper bound this far above the lower one is first brought to within the second number
MEND = 2.0  # estimate over lower bound above which the dual of the cone program is mended; 1.02 crawled on disks n=256
CENTRE = 0.7  # weight of the best dual so far in the point where the LP phase prices


def f1(
    data: Dataset,
    space: Space | None = None,
    *,
    bias: bool = False,
    activation: str = "relu",
    tol: float = 1e-3,
    time_limit: float | None = 60.0,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Certificate:
    """Largest margin in the unit ball of F1 (convention M1), certified.

        margin = max_{|nu| <= 1} min_i  y_i int phi(v . x_i) dnu(v)         nu a signed measure on the unit sphere
               = min_{q in simplex} max_{|v| = 1} |sum_i q_i y_i phi(v . x_i)|

    The lower bound is the margin of a network, evaluated. The upper bound is a q with a proof that no unit vector does
    better. Networks come from a linear program over neurons, then from a cone program over activation patterns (`_socp`);
    proofs from branch and bound over patterns (`pricing.signs`), whose maximisers are the next columns. Stops when
    upper - lower <= tol * lower, at `time_limit` seconds, on Ctrl-C, or after four rounds without a better network or dual
    (status "stalled"), and then returns the best of both bounds.

    `progress(seconds, lower, upper, message)` is called after every round.

    Reference: Chizat and Bach (2020), (4) and Proposition 12; Wei, Lee, Liu and Ma (2019), (3.6).
    """
    space = space or _door.as_space(bias, activation)
    if space.activation not in ("relu", "srelu"):
        raise InputError(f"f1 knows activations relu and srelu, not {space.activation!r}")
    check_device(device)
    door = _door.enter(data, space, tol, time_limit)
    # Many small tensor operations: a second thread only waits, and on a busy machine it made solves ten times slower.
    with threads(1 if door.X.size < LARGE else torch.get_num_threads()):
        if space.activation == "srelu":
            from . import _squared

            return _squared.solve(door, tol, seed, device, progress)
        return Solver(door, tol, seed, device, progress).run()


@dataclass
class Dual:
    """An upper bound with the weights that prove it."""

    upper: float
    q: np.ndarray  # (n,) on the distinct points
    bound: str
    logs: tuple[Any, ...] = ()
    proof: dict[str, Any] | None = None


class Solver:
    """State of one solve. All points are scaled, distinct, and written in an orthonormal basis of their span."""

    def __init__(self, door: _door.Door, tol: float, seed: int, device: str, progress: Progress | None):
        self.door, self.tol, self.seed, self.progress = door, tol, seed, progress
        self.rng = np.random.default_rng(seed)
        # Distinct labelled points: a repeated one adds nothing to a minimum.
        labelled = np.hstack([door.X + 0.0, door.y[:, None]])
        _, self.first = np.unique(labelled, axis=0, return_index=True)
        self.X0, self.y = door.X[self.first], door.y[self.first]  # (n, D), (n,)
        self.X, self.basis = reduce_rank(self.X0)  # (n, r), (D, r)
        self.n, self.r = self.X.shape
        self.device = torch.device(device)
        self.Xt = torch.as_tensor(self.X, device=self.device)
        self.whitening = whitening(self.X) if self.n * self.r <= CONE_LIMIT else None
        self.mirrors = opposite_pairs(self.X0)  # (k, 2)
        self.symmetry = symmetry.find(self.X0, self.y) if abs(door.shift) < 20 else None
        self.lower, self.W = 0.0, np.zeros((0, self.r))
        self.signs = np.zeros(0)
        self.dual = self.norm_bound()  # there from the first moment on
        self.V, self.s = np.zeros((0, self.r)), np.zeros(0)  # all neurons met
        # Their activation patterns, as they were met. A neuron that moves often ends on the boundary of its pattern's cone, where
        # some x_i . v is zero up to rounding: the pattern read off it there may be another, and its own would be lost for good.
        self.patterns = np.zeros((0, self.n), dtype=bool)
        self.seen: dict[bytes, int] = {}  # pattern and sign -> the neuron that stands for it
        self.outside = np.zeros(0, dtype=bool)  # which of the neurons the last cone program did without,
        self.recalled: set[int] = set()  # and those that it should not have
        self.lp, self.known = column_lp(self.n), 0  # the linear program has seen the first `known` neurons
        self.columns = (self.V, self.s)
        self.q = self.centre = self.dual.q  # last dual, and the one that looks best, with its estimated value
        self.estimate = self.priced = np.inf  # of the centre, and of the last cone program's dual
        self.support = np.zeros(0, dtype=int)
        self.rounds = self.nodes = self.stuck = 0
        self.hard = False  # whether trees need quadratic bounds
        self.searched = 0.0  # seconds of the last local search
        gpu = self.device.type == "cuda"
        self.starts = int(np.clip((4e11 if gpu else 4e8) / (self.n * self.r), 32, 65536 if gpu else STARTS))

    # ------------------------------------------------------------------ the run

    def run(self) -> Certificate:
        twin = _door.twins(self.door)
        if twin is not None:
            return self.zero(*twin)
        found = _bounds.not_separable(self.door)
        if found is not None:
            return self.zero(*found)
        try:
            self.warm_start()
            self.cheap_bound()
            small = self.n * self.r <= CONE_LIMIT
            if small:
                self.linear_phase(HANDOVER, 80)
            while not self.closed() and not self.late() and self.stuck < 4:
                if small:
                    self.pattern_round()
                else:
                    self.particle_round()
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

    def tell(self, message: str) -> None:
        self.rounds += 1
        if self.progress is not None:
            scale = 2.0**self.door.shift if abs(self.door.shift) < 1000 else 1.0
            self.progress(self.seconds(), self.lower * scale, self.dual.upper * scale, message)

    # ------------------------------------------------------------------ pieces

    def norm_bound(self) -> Dual:
        """relu(t) = (t + |t|) / 2 at q balanced over the classes: |sum c_i x_i| / 2 + sum_{c_i > 0} c_i |x_i| / 2."""
        q = np.where(self.y > 0, 1 / max((self.y > 0).sum(), 1), 1 / max((self.y < 0).sum(), 1))
        q = q / q.sum()
        size = np.linalg.norm(self.X0, axis=1)
        part = max(q[self.y > 0] @ size[self.y > 0], q[self.y < 0] @ size[self.y < 0])
        upper = float(np.linalg.norm((q * self.y) @ self.X0) + part) / 2 * (1 + 1e-12) + 1e-14 * float(size.max())
        return Dual(upper, q, "norm", proof={"type": "norm"})

    def offer_network(self, W: np.ndarray, signs: np.ndarray) -> float:
        """Keep the network sum_k s_k relu(W_k . x) if its margin, from the definition, is the best so far."""
        size = np.linalg.norm(W, axis=1)
        keep = size > 1e-12 * size.max(initial=0.0)
        W, signs, size = W[keep], signs[keep], size[keep]
        if len(W) == 0:
            return 0.0
        margin = float((self.y * ((self.X @ W.T).clip(0) @ signs)).min() / size.sum())
        if margin > self.lower:
            self.lower, self.W, self.signs = margin, W, signs
        return margin

    def features(self, V: np.ndarray, s: np.ndarray) -> np.ndarray:
        return self.y[:, None] * (self.X @ V.T).clip(0) * s  # (n, k)

    def add(self, V: np.ndarray, s: float, most: int) -> int:
        """Take up to `most` of the unit neurons V (best first) whose activation pattern is new.

        A pattern that is known but was left out of the last cone program is recalled: it counts as new, and v stands for it.
        """
        taken: list[int] = []
        recalled = 0
        patterns = V @ self.X.T > 0
        for i, pattern in enumerate(patterns):
            key = np.packbits(pattern).tobytes() + (b"+" if s > 0 else b"-")
            at = self.seen.get(key, -1)
            if 0 <= at < len(self.outside) and self.outside[at] and at not in self.recalled:
                self.V[at] = V[i]
                self.recalled.add(at)
                recalled += 1
            elif at < 0 and pattern.any():
                self.seen[key] = len(self.V) + len(taken)
                taken.append(i)
            if len(taken) + recalled == most:
                break
        self.V, self.s = np.vstack([self.V, V[taken]]), np.append(self.s, np.full(len(taken), s))
        self.patterns = np.vstack([self.patterns, patterns[taken]])
        return len(taken) + recalled

    def fold(self, q: np.ndarray) -> np.ndarray:
        """Clean dual weights: tiny entries to zero (fewer branchings), averaged over the symmetry, summing to one."""
        q = np.where(q > 1e-9 * q.max(), q, 0.0)
        if self.symmetry is not None:
            q = self.symmetry.average(q)
        return q / q.sum()

    def search(self, q: np.ndarray, starts: int, most: int, steps: int = 40) -> tuple[float, int]:
        """Local searches on both sides: the best value found at q, and how many new patterns were taken."""
        best, new, began = 0.0, 0, time.perf_counter()
        Z = self.rng.standard_normal((starts, self.r))
        if self.whitening is not None:
            Z[1::2] = Z[1::2] @ self.whitening
        random = torch.as_tensor(Z, device=self.device)
        own = torch.as_tensor(self.W, device=self.device)
        for s in (1.0, -1.0):
            c = torch.as_tensor(s * q * self.y, device=self.device)
            V, value = search.ascend(self.Xt, c, torch.cat([random, own]), steps)
            order = torch.argsort(-value)
            best = max(best, float(value[order[0]]))
            order = order[value[order] > self.lower * (1 + 0.1 * self.tol)]
            new += self.add(V[order].cpu().numpy(), s, most)
        self.searched = time.perf_counter() - began
        return best, new

    # ------------------------------------------------------------------ phases

    def cheap_bound(self) -> None:
        """What is there for any n and d: the linear predictor, and the root of the tree at its dual and a uniform one."""
        uniform = np.where(self.y > 0, 0.5 / max((self.y > 0).sum(), 1), 0.5 / max((self.y < 0).sum(), 1))
        duals = [self.fold(uniform)]
        early = self.door.started + 0.2 * (self.door.deadline - self.door.started)
        linear = _qp.solve_factor(self.y[:, None] * self.X, 1e-6, early)
        if linear.stopped == "interrupted":
            raise KeyboardInterrupt
        q = linear.q
        u = (q * self.y) @ self.X
        if (self.y * (self.X @ u)).min() > 0:  # separated by a line: u and -u make a network with half its margin
            duals.append(self.fold(q))
            pair = np.vstack([u, -u]) / np.linalg.norm(u)
            self.offer_network(pair, np.array([1.0, -1.0]))
            self.add(pair[:1], 1.0, 1)
            self.add(pair[1:], -1.0, 1)
        if self.n * self.r > CONE_LIMIT:
            self.pairing_bound()
        for q in duals:
            if self.late():
                break
            self.prove(q, 0.0, max_nodes=1)
            if self.late() or self.estimate < HANDOVER * self.lower:
                continue  # the warm start's dual is better than these: their patterns would only fill the programs
            value, _ = self.search(q, self.starts, PATTERNS // len(duals))
            self.offer_centre(q, value)
        self.tell("linear predictor and root bounds")

    def pairing_bound(self) -> None:
        """For large n * d: the bound from pairs of points of the two classes, with a q of its own."""
        if self.r > ROOT_RANK or abs(self.door.shift) >= 20 or self.late():
            return
        until = time.perf_counter() + 0.3 * self.left()
        found = pairing.solve(self.Xt, torch.as_tensor(self.y, device=self.device), until)
        if found is None or found.bound >= self.dual.upper:
            return
        proof, upper = found.write(self.Xt, 2.0**self.door.shift)
        if upper < self.dual.upper:
            proof["pairs"] = [[int(self.first[i]), int(self.first[j]), *rest] for i, j, *rest in proof["pairs"]]
            self.dual = Dual(upper, found.weights(self.n), "pairing", proof=proof)
        self.tell(f"{len(found.T)} pairs")

    def warm_start(self) -> None:
        """A short ascent on a network of random neurons: its patterns and its soft dual are where the programs start."""
        if self.n * self.r < SMALL:
            return
        W = self.rng.standard_normal((WARM_WIDTH, self.r)) / np.sqrt(self.r)
        s = np.resize([1.0, -1.0], WARM_WIDTH)
        to = lambda a: torch.as_tensor(a, device=self.device)  # noqa: E731
        share = time.perf_counter() + 0.25 * min(self.left(), 240.0)
        # Large problems go on with an ascent of their own, so a short one is enough here.
        steps = WARM_STEPS if self.n * self.r <= CONE_LIMIT else WARM_STEPS // 4

        def report(W: torch.Tensor) -> None:
            self.offer_network(W.cpu().numpy(), s)
            self.tell(f"{WARM_WIDTH} particles")

        _, best, q = _polish.polish(self.Xt, to(self.y), to(W), to(s), deadline=share, steps=steps, report=report)
        W = best.cpu().numpy()
        self.offer_network(W, s)
        size = np.linalg.norm(W, axis=1)
        for sign in (1.0, -1.0):
            self.add((W / size[:, None])[(s == sign) & (size > 0)], sign, WARM_WIDTH)
        self.support = np.arange(len(self.V))  # the first cone program is then at least as good as this network
        self.q = self.fold(q.cpu().numpy())
        value, _ = self.search(self.q, self.starts, 40)
        self.offer_centre(self.q, value)
        self.tell(f"{WARM_WIDTH} particles, estimate {value / self.unit():.4f}")

    def linear_phase(self, goal: float, rounds: int) -> None:
        """Column generation over neurons, pricing near the best dual so far, until its estimate is below goal * lower."""
        stalled = 0
        for _ in range(rounds):
            self.add_columns(self.V[self.known :], self.s[self.known :])
            self.known = len(self.V)
            if self.late():
                return
            a, q = self.lp.solve(self.left())
            self.offer_mixture(a)
            point = self.fold(q if np.isinf(self.estimate) else CENTRE * self.centre + (1 - CENTRE) * q)
            value, new = self.search(point, self.starts, 30)
            stalled = 0 if self.offer_centre(point, value) else stalled + 1
            self.tell(f"linear program, {len(self.V)} neurons, estimate {value / self.unit():.4f}")
            if self.lower > 0 and self.estimate < goal * self.lower:
                return
            if new == 0:
                value, new = self.search(self.fold(q), self.starts, 30)
                self.offer_centre(self.fold(q), value)
            if new == 0 or stalled >= 8:
                return

    def add_columns(self, V: np.ndarray, s: np.ndarray) -> None:
        self.lp.add(self.features(V, s))
        self.columns = (np.vstack([self.columns[0], V]), np.append(self.columns[1], s))  # copies: neurons move later

    def offer_mixture(self, a: np.ndarray) -> None:
        V, s = self.columns
        support = np.flatnonzero(a > 1e-9)
        self.offer_network(V[support] * a[support, None], s[support])

    def offer_centre(self, q: np.ndarray, value: float) -> bool:
        """Keep q as the centre of pricing if it looks like the best dual so far."""
        better = value < self.estimate * (1 - 1e-5)
        if better:
            self.centre, self.estimate = q, value
        return better

    def pattern_round(self) -> None:
        """Cone program over the best patterns, then price at its dual: by local search, and by the tree once that is close."""
        chosen, before = self.choose(), self.lower
        self.outside, self.recalled = np.ones(len(self.V), dtype=bool), set()
        self.outside[chosen] = False
        patterns, V, s = self.patterns[chosen], self.V[chosen], self.s[chosen]
        near = self.n if self.n <= 3 * self.r + 60 else 3 * self.r + 40
        master = _socp.solve(self.X, self.y, patterns, s, directions=V, near=near, time_limit=self.left())
        if master.ok:
            self.offer_network(master.W, self.s[chosen])
            size = np.linalg.norm(master.W, axis=1)
            moved = size > 1e-7 * size.max(initial=0.0)  # there may be no pattern at all yet
            self.V[chosen[moved]] = master.W[moved] / size[moved, None]
            self.support = chosen[moved]
            self.add_columns(self.V[self.support], self.s[self.support])
        self.q = q = self.fold(master.q)
        value, new = self.search(q, self.starts, 40)
        self.offer_centre(q, value)
        # A dual of too few patterns, and no better than the last: let the linear program, which keeps all neurons, mend it.
        stale, self.priced = value > 0.98 * self.priced, value
        if value > 1.02 * self.lower and (stale or value > MEND * self.lower):
            count = len(self.V)
            self.linear_phase(1.02, 12)
            new += len(self.V) - count
            if self.estimate < value and self.lower < before * (1 + 1e-3):  # else the next master is the better bet
                q, value = self.centre, self.estimate
        if (value < 1.02 * self.lower or new == 0) and not self.late():
            new += self.prove(q, value)
        self.tell(f"{len(chosen)} patterns, {self.nodes} nodes, estimate {value / self.unit():.6f}")
        self.stuck = 0 if new else self.stuck + 1

    def particle_round(self) -> None:
        """For large n * d: ascend on the network itself, price at its soft dual, and prove what the time allows."""
        width = max(8, min(200, int(2e8 / (self.n * self.r))))
        chosen = self.choose()[:width] if len(self.W) == 0 else np.zeros(0, dtype=int)
        if len(self.W) == 0:
            W, s = self.V[chosen], self.s[chosen]
        else:
            Z = self.q @ self.features(self.V, self.s)
            extra = np.argsort(-Z)[: max(0, width - len(self.W))]
            size = np.linalg.norm(self.W, axis=1).mean()
            W = np.vstack([self.W, 0.1 * size * self.V[extra]])
            s = np.append(self.signs, self.s[extra])
        W = W + 1e-3 * np.linalg.norm(W, axis=1).mean() * self.rng.standard_normal(W.shape) / np.sqrt(self.r)
        to = lambda a: torch.as_tensor(a, device=self.device)  # noqa: E731
        share = time.perf_counter() + 0.4 * self.left() if np.isfinite(self.door.deadline) else np.inf
        _, W_best, q = _polish.polish(self.Xt, to(self.y), to(W), to(s), deadline=share)
        before = self.lower
        self.offer_network(W_best.cpu().numpy(), s)
        self.q = self.fold(q.cpu().numpy())
        value = self.estimate
        if self.left() > self.searched:  # a search does not look at the clock
            value, _ = self.search(self.q, self.starts, 40)
            self.offer_centre(self.q, value)
        self.prove(self.q, value, max_nodes=1 if self.left() > 60 else np.inf)
        self.tell(f"{len(W)} particles, estimate {value / self.unit():.3f}")
        self.stuck = 0 if self.lower > before * (1 + 0.1 * self.tol) else self.stuck + 1

    def unit(self) -> float:
        return self.lower or 1.0

    def choose(self) -> np.ndarray:
        """Indices of the patterns worth having in the master: the network's own, then the best at the last duals."""
        Z = self.features(self.V, self.s)
        value = np.maximum(self.q @ Z, self.centre @ Z)
        value[list(self.recalled)] = np.finfo(float).max
        value[self.support] = np.inf
        most = max(len(self.support) + 60, min(PATTERNS, int(CONE_COLUMNS / self.r)))
        return np.sort(np.argsort(-value)[:most])

    def prove(self, q: np.ndarray, value: float, max_nodes: float = np.inf) -> int:
        """Run the tree at q on both sides; keep the bound if it is the best, and take what it finds as new patterns."""
        if self.dual.bound == "pairing" and self.r > CURVED_RANK:
            return 0  # linear bounds, and the quadratic one of the root, are far above: the time is better spent on networks
        new, logs, uppers = 0, [], []
        known = max(value, self.lower)
        share = 0.5 * self.left() if np.isinf(self.door.deadline) else max(self.left(), 0.0)
        for side, s in enumerate((1.0, -1.0)):
            c = torch.as_tensor(s * q * self.y, device=self.device)
            roots = None
            if self.symmetry is not None and len(self.symmetry.roots):
                roots = torch.as_tensor(self.symmetry.roots @ self.basis, device=self.device)
            folded, linear = self.folded(s * q * self.y)
            tree = signs.Tree(
                self.Xt,
                torch.as_tensor(folded, device=self.device),
                roots,
                torch.as_tensor(linear @ self.X, device=self.device),
            )
            deadline = time.monotonic() + share / (2 - side)
            gpu = self.device.type == "cuda"
            batch, memory = (65536, 8e10) if gpu else (1024, 4e9)
            # Early on, a q that is clearly not optimal is not worth a proof: take its violators and go on. But a first rough
            # bound is worth having.
            rough = max_nodes > 1 and self.dual.upper > ROUGH[0] * self.lower > 0
            early = self.seconds() < 0.5 * (self.door.deadline - self.door.started) and not rough
            give_up = min(self.dual.upper, self.lower * (1 + 10 * self.tol)) if early else np.inf
            # Below `target` the gap is closed: no need to know more.
            target = 0.0 if self.lower == 0 else self.lower * (1 + 0.9 * max(self.tol, ROUGH[1] if rough else 0.0))
            tol = max(0.1 * self.tol, 0.1 * ROUGH[1] if rough else 0.0)
            options: dict[str, Any] = {
                "deadline": deadline,
                "batch": batch,
                "give_up": give_up,
                "memory": memory,
                "target": target,
            }
            # Far from unit scale the integers of a quadratic leaf would not fit; linear bounds have no such limit.
            curved = self.r <= (CURVED_RANK if max_nodes > 1 else ROOT_RANK) and abs(self.door.shift) < 20
            curved &= max_nodes > 1 or self.n * self.r >= SMALL
            # Quadratic bounds close trees in few nodes, linear ones are a hundred times cheaper. So look at the quadratic root,
            # and let linear bounds try first where it is far off; settle for quadratic ones once a tree was too large.
            stages = [(curved, max_nodes)]
            if curved and max_nodes > 1 and not self.hard:
                stages = [(True, 1), (False, STRAIGHT_NODES * (10 if gpu else 1)), (True, max_nodes)]
            while stages:
                bent, most = stages.pop(0)
                options["batch"] = batch // 4 if bent else batch
                result = tree.run(known, tol, max_nodes=most, curved=bent, **options)
                self.nodes += result.nodes
                reached = max(target, max(known, result.value) * (1 + tol))
                if result.bound <= reached * (1 + 1e-9) or result.aborted:
                    break
                if most == 1 and result.bound < NEAR_ROOT * reached:
                    stages = stages[-1:]
                self.hard |= not bent
            values = (result.found @ self.Xt.T).clamp_min(0) @ c
            good = result.found[values > self.lower * (1 + 0.1 * self.tol)]
            new += self.add(good.cpu().numpy(), s, 40)
            logs.append(result.log)
            uppers.append(result.bound)
            known = max(known, result.value)
            share = max(self.left(), 0.0)
            if result.aborted:
                self.estimate = max(self.estimate, known) if q is self.centre else self.estimate
                return new
        if max(uppers) < self.dual.upper:
            self.dual = Dual(max(uppers), q, "tree", tuple(logs))
        return new

    def folded(self, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Weights with opposite points made one, c_j relu(-t) = c_j relu(t) - c_j t; and those of the linear rest."""
        c, linear = c.copy(), np.zeros(self.n)
        i, j = self.mirrors.T
        linear[j] = c[j]
        c[i], c[j] = c[i] + c[j], 0.0
        return c, linear

    # ------------------------------------------------------------------ results

    def zero(self, q: np.ndarray, reason: str) -> Certificate:
        """margin 0: weights on the original points under which every network averages to nothing."""
        return self.certificate("not-separable", 0.0, 0.0, q, "norm", {"type": "norm"}, None, reason)

    def finish(self, status: str) -> Certificate:
        primal = self.network()
        proof, upper = self.proof()
        q = np.zeros(self.door.data.n)
        q[self.first] = self.dual.q
        lower = max(0.0, self.lower_rounded(primal)) if primal is not None else 0.0
        proved = math.isfinite(upper)
        reason = "both bounds hold; the gap is above tol"
        # What is written down decides: it may prove a little less, or more, than the search had.
        if upper - lower <= self.tol * lower * (1 + 1e-6):
            status, reason = "certified", ""
        elif status == "certified":
            status, reason = "rounding", "float64 cannot close the gap to tol; both bounds hold"
        elif status == "stalled":
            reason = "no better network or dual was found in four rounds, before the time limit; both bounds hold"
        return self.certificate(status, lower, upper, q, self.dual.bound, proof, primal, reason, proved)

    def network(self) -> Measure | None:
        """The best network as a measure in the original coordinates, pruned to at most n atoms where that costs nothing."""
        if len(self.W) == 0:
            return None
        size = np.linalg.norm(self.W, axis=1)
        theta, mass = self.W / size[:, None], size * self.signs
        if len(mass) > self.n:
            sign = np.sign(mass)
            columns = (self.X @ theta.T).clip(0) * sign
            until = max(self.door.deadline, time.perf_counter() + 0.5)  # small networks are pruned even when time is up
            pruned = sign * _prune.prune_masses(columns, np.abs(mass), until)
            keep = pruned != 0
            margin = (self.y * ((self.X @ theta[keep].T).clip(0) @ pruned[keep])).min() / np.abs(pruned).sum()
            if margin >= self.lower * (1 - 1e-9):
                theta, mass = theta[keep], pruned[keep]
        # Neurons that the cone program left with next to no mass only clutter the answer.
        for share in (1e-5, 1e-6, 1e-7, 1e-8, 1e-9):
            keep = np.abs(mass) > share * np.abs(mass).sum()
            margin = (self.y * ((self.X @ theta[keep].T).clip(0) @ mass[keep])).min() / np.abs(mass[keep]).sum()
            if margin >= self.lower * (1 - 1e-8):
                theta, mass = theta[keep], mass[keep]
                break
        theta = theta @ self.basis.T  # (m, D)
        theta /= np.linalg.norm(theta, axis=1, keepdims=True)
        return Measure(theta, mass / np.abs(mass).sum(), "relu", self.door.space.bias)

    def lower_rounded(self, primal: Measure) -> float:
        """A number the exact margin of `primal` certainly reaches, in scaled units."""
        score = self.door.y * ((self.door.X @ primal.theta.T).clip(0) @ primal.mass)
        error = 4 * np.finfo(float).eps * (self.X0.shape[1] + len(primal.mass) + 8) * self.door.size
        norm = primal.norm * (1 + 1e-14 * len(primal.mass) ** 0.5)
        return float((score - error).min()) / norm

    def proof(self) -> tuple[dict[str, Any], float]:
        """The proof of the upper bound as it is saved, and the bound it really shows (rounded up)."""
        dual = self.dual
        if dual.proof is not None:
            return dual.proof, dual.upper
        inflated = dual.upper * (1 + 1e-12)
        if any(log is None for log in dual.logs):
            return {"type": "omitted"}, inflated
        roots = self.symmetry.roots if self.symmetry is not None else np.zeros((0, self.X0.shape[1]), dtype=int)
        sides, upper = [], 0.0
        for s, log in zip((1, -1), dual.logs):
            c = s * dual.q * self.y
            folded, linear = self.folded(c)
            side, bound = writing.write(
                log, self.X0, folded, linear @ self.X0, roots, 2.0**self.door.shift, enough=dual.upper
            )
            side["points"] = self.first[side["points"]].tolist()
            side |= {"sign": s, "mirrors": self.first[self.mirrors].tolist(), "roots": roots.tolist()}
            if self.symmetry is not None and len(roots):
                side["rho"] = [int(v) for v in self.symmetry.rho]
            sides.append(side)
            upper = max(upper, bound)
        return {"type": "tree", "sides": sides}, upper

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
        proved: bool = True,
    ) -> Certificate:
        door = self.door
        stats = {"seconds": self.seconds(), "seed": self.seed, "rounds": self.rounds, "nodes": self.nodes}
        return Certificate(
            kind="f1",
            lower=door.unscale(lower, 1, up=False),
            upper=door.unscale(upper, 1, up=True) if math.isfinite(upper) else math.inf,
            dual=q,
            status=status,
            proved=proved,
            bound=bound,
            n=door.data.n,
            d=door.data.d,
            primal=primal,
            bias=door.space.bias,
            activation="relu",
            data_sha256=door.data.sha256(),
            data_name=door.data.name,
            reason=reason,
            proof=proof,
            stats=stats,
        )


@contextmanager
def threads(count: int) -> Iterator[None]:
    """torch on `count` threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
