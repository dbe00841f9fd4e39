"""The largest margin over all two-layer ReLU networks of any width, leaky or not, between a network and a proof."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from widemargin.pricing import QUADRATIC_RANK, Priced, listed, listing, own, price, worth_products, write
from widemargin.pricing.points import Points, reduce_rank, whitening
from widemargin.pricing.search import maxima
from widemargin.spaces import Space, as_space
from widemargin.types import Certificate, Dataset, Measure, check_device

from . import _polish, programs, qp, squared, turns
from .answers import solves
from .door import EPS, Door, Progress, choose_space, distinct_rows, enter, norm_bound, not_separable, twins
from .engine import Neurons, lightest, threads

CONE_LIMIT = 30_000  # n * rank above which the cone program is too slow and particles take over
CONE_COLUMNS = 8000  # patterns * rank in a cone program
LARGE = 100_000  # entries of X from which more than one thread pays
SEARCH_THERE = 20_000  # n * rank from which local searches go to the GPU, too
SMALL_PROBLEM = 400  # n * rank below which a few local searches are enough to start
WARM_WIDTH, WARM_STEPS = 50, 2000  # of the ascent that finds the first patterns
STARTS = 384  # local searches per side and round on a CPU
A_VALUE = 48  # bytes that these take at a time for each value at a point
PATTERNS = 150  # patterns in a master problem; more made it slower without a better dual on parity and disks
HANDOVER = 1.1  # estimate over lower bound at which the cone program takes over from the linear one
ROUGH = 1.2, 0.04  # an upper bound this far above the lower one is first brought to within the second number
PRODUCTS_FIRST = 80  # points from which bounds from products come before trees, not after
TREES_SHARE = 0.4  # of the time, for trees that come before
MEND = 2.0  # estimate over lower bound above which the dual of the cone program is mended; 1.02 crawled on disks n=256
WORKING, WORKING_RANK = 200, 8  # more points than that, in at most so many dimensions, are not all in play
START_ROWS, GROW_ROWS = 120, 60  # points in play at first, and how many may join in a round
GROW_AT = 0.2  # of tol: how far below those in play a margin is worth a new point
CLIMB = 6, 40  # largest rank for exact local maxima, and how many of the best starts
CENTRE = 0.7  # weight of the best dual so far in the point where the LP phase prices


@solves()
def f1(
    data: Dataset,
    space: Space | None = None,
    *,
    bias: bool | None = None,
    activation: str | None = None,
    tol: float = 1e-3,
    time_limit: float | None = 60.0,
    memory: float | None = None,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Certificate:
    """Largest margin in the unit ball of F1 (convention M1), certified.

        margin = max_{|nu| <= 1} min_i  y_i int phi(v . x_i) dnu(v)         nu a signed measure on the unit sphere
               = min_{q in simplex} max_{|v| = 1} |sum_i q_i y_i phi(v . x_i)|

    phi is that of `space`, or of `activation`: "relu", "srelu", "leaky" (slope 0.01) or "leaky:0.2".

    The lower bound is the margin of a network, evaluated. The upper bound is a q with a proof that no unit vector does
    better. Networks come from a linear program over neurons, then from a cone program over activation patterns (`programs`);
    proofs from branch and bound over patterns (`pricing.signs`), whose maximisers are the next columns. Stops when
    upper - lower <= tol * lower, at `time_limit` seconds, on Ctrl-C, or after four rounds without a better network or dual
    (status "stalled"), and then returns the best of both bounds.

    `progress(seconds, lower, upper, message)` is called after every round.

    Reference: Chizat and Bach (2020), (4) and Proposition 12; Wei, Lee, Liu and Ma (2019), (3.6).

    >>> import widemargin as wm
    >>> xor = wm.Dataset([[1, 1], [-1, -1], [1, -1], [-1, 1]], [1, 1, -1, -1])
    >>> cert = wm.margins.f1(xor)
    >>> cert.lower <= 2**0.5 / 4 <= cert.upper, cert.gap < 1e-3, cert.verify(xor).ok
    (True, True, True)
    """
    space = choose_space(space, bias, activation)
    as_space(space.activation)  # an InputError for a space of one's own: proofs are for the activations that are known
    check_device(device)
    door = enter(data, space, tol, time_limit, memory=memory)

    def solve(door: Door) -> Certificate:
        # Many small tensor operations: a second thread only waits, and on a busy machine it made solves ten times slower.
        with threads(1 if door.X.size < LARGE else torch.get_num_threads()):
            if space.degree == 2:
                return squared.Solver(door, tol, seed, device, progress).run()
            return Solver(door, tol, seed, device, progress).run()

    most = door.most(turns.WORK[space.degree], turns.NUMBERS)
    if most == data.n:
        return solve(door)

    def part(some: Dataset, seconds: float | None) -> Certificate:
        return solve(enter(some, space, tol, seconds, memory=memory))

    return turns.in_turns(door, most, part, lambda cert, block: network_margins(door, cert.primal, block))


def network_margins(door: Door, primal: Measure | None, block: slice) -> np.ndarray:
    """At most the margins of a network at the points of a block, in the units of the data."""
    if primal is None:
        return np.zeros(len(door.y[block]))
    space, m = door.space, len(primal.mass)
    score = door.y[block] * (space.phi(door.X[block] @ primal.theta.T) @ primal.mass)
    error = 4 * space.degree * EPS * (door.X.shape[1] + m + 8) * door.size[block] ** space.degree
    margins = (score - error * primal.norm) / (primal.norm * (1 + 1e-14 * (8 + m**0.5)))
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.ldexp(margins * (1 - 4 * EPS), door.shift * space.degree))


@dataclass
class Dual:
    """An upper bound with the weights that prove it."""

    upper: float
    q: np.ndarray  # (n,) on the rows in play when it was found; later rows have weight 0
    bound: str
    points: Points
    sides: tuple[Priced, ...] = ()
    proof: dict[str, Any] | None = None


def _search_work(door: Door, r: int) -> float:
    """What the local searches of a round may multiply, in time and in memory."""
    return min(door.limits.search_work(), door.limits.memory * r / A_VALUE)


class Solver(Neurons):
    """All points are scaled, distinct, and written in an orthonormal basis of their span.

    Of many points in few dimensions only some are in play at a time: a dual of these is a dual of all, and points at which the
    network of a round does worst join in. `lower` is the margin over the points in play, `sure` that over all.
    """

    share = 0.9
    rows: np.ndarray  # the points in play

    def __init__(self, door: Door, tol: float, seed: int, device: str, progress: Progress | None):
        super().__init__(door, tol, seed, progress)
        # Distinct labelled points: a repeated one adds nothing to a minimum.
        self.first = distinct_rows(np.hstack([door.X, door.y[:, None]]))
        X, self.basis = reduce_rank(door.X[self.first])  # (n, r), (D, r)
        self.all_X, self.all_y = X, door.y[self.first]
        n, self.r = X.shape
        # A GPU only waits for small tensors: there it has the trees, and the rest stays here.
        self.trees = torch.device(device)
        self.device = self.trees if n * self.r >= SEARCH_THERE else torch.device("cpu")
        gpu = self.device.type == "cuda"
        self.working = not self.equal and n > WORKING and self.r <= WORKING_RANK
        if self.working:
            self.first = self.first[self.rng.permutation(n)]
            self.all_X, self.all_y = door.X[self.first] @ self.basis, door.y[self.first]
        self.sure, self.sure_W, self.sure_signs = 0.0, np.zeros((0, self.r)), np.zeros(0)
        self.no_neurons(self.r)
        self.W, self.signs = self.sure_W, self.sure_signs
        self.rows, self.n = np.zeros(0, dtype=int), 0  # the points in play
        self.play(self.balanced(START_ROWS) if self.working else np.arange(n))
        self.dual = self.norm_bound()  # there from the first moment on
        self.upper = self.dual.upper
        self.q = self.centre = self.dual.q  # last dual, and the one that looks best
        self.priced = math.inf  # value of the last cone program's dual
        self.hard = False  # whether trees over signs need quadratic bounds
        chance = worth_products(n, self.r) and not (self.equal or self.working or self.points.far or self.slope)
        self.multiplied = not chance  # whether products have been tried, or need not be
        most = 65536 if gpu else STARTS if self.n * self.r >= SMALL_PROBLEM else STARTS // 4
        self.starts = int(np.clip((4e11 if gpu else _search_work(door, self.r)) / self.X.size, 8, most))

    def balanced(self, count: int) -> np.ndarray:
        """About `count` of the points, as many of one class as of the other where there are."""
        return np.sort(np.concatenate([np.flatnonzero(self.all_y == s)[: count // 2] for s in (1, -1)]))

    def play(self, rows: np.ndarray) -> None:
        """Let the points `rows` (indices into all, those in play first) be the ones in play."""
        old, self.rows = len(self.rows), rows
        self.X, self.y, self.n = self.all_X[rows], self.all_y[rows], len(rows)
        labels = None if self.equal else self.y
        door, X0 = self.door, self.door.X[self.first[rows]]
        self.points = Points(X0, labels, door.shift, self.trees, self.basis, self.slope, memory=door.limits.memory)
        self.Xt = self.to(self.X)
        self.small = self.equal or self.n * self.r <= CONE_LIMIT
        self.climbs = self.n * self.r >= SMALL_PROBLEM and self.r <= CLIMB[0]
        self.whitening = whitening(self.X) if self.small else None
        self.widen(old)
        if old:
            self.q, self.centre = (np.append(q, np.zeros(self.n - old)) for q in (self.q, self.centre))
            self.lower = 0.0
            self.offer_network(self.W, self.signs)

    # ------------------------------------------------------------------ the run

    def nothing(self) -> tuple[np.ndarray, dict[str, Any], float, str] | None:
        none = twins(self.door) or not_separable(self.door)
        return (none[0], {"type": "norm"}, 0.0, none[1]) if none is not None else None

    def start(self) -> None:
        self.warm_start()
        self.cheap_bound()
        if self.small:
            # Where local maxima are exact the linear program goes to the end; else the cone program is better at it.
            exact = self.climbs or listed(self.points, self.q)
            self.linear_phase(1 + 0.3 * self.tol if exact else HANDOVER, 400 if exact else 80)
            if exact and not self.closed() and self.estimate < self.lower * (1 + 0.9 * self.tol):
                self.prove(self.centre, self.estimate)
            if self.closed() and self.n * self.r < SMALL_PROBLEM and not self.late():
                self.pattern_round()  # a cone program costs next to nothing here, and knows the last digits

    def round(self) -> bool:
        return self.pattern_round() if self.small else self.particle_round()

    def met(self) -> float:
        return self.sure

    # ------------------------------------------------------------------ pieces

    def balanced_weights(self) -> np.ndarray:
        count = np.where(self.y > 0, (self.y > 0).sum(), (self.y < 0).sum())
        return 1 / count / (1 / count).sum()

    def norm_bound(self) -> Dual:
        q = self.balanced_weights()
        upper = norm_bound(self.points.X0, self.weights(q), self.slope)
        return Dual(upper, q, "norm", self.points, proof={"type": "norm"})

    def offer_network(self, W: np.ndarray, signs: np.ndarray) -> np.ndarray:
        """Margins at all points of sum_k s_k phi(W_k . x), from the definition; kept if the least is the best so far."""
        size = np.linalg.norm(W, axis=1)
        keep = size > 1e-12 * size.max(initial=0.0)
        W, signs, size = W[keep], signs[keep], size[keep]
        if len(W) == 0:
            return np.zeros(len(self.all_y))
        margins = self.all_y * (self.phi(self.all_X @ W.T) @ signs) / size.sum()
        lower, sure = float(margins[self.rows].min()), float(margins.min())
        if lower > self.lower:
            self.lower, self.W, self.signs = lower, W, signs
        if sure > self.sure:
            self.sure, self.sure_W, self.sure_signs = sure, W, signs
        return margins

    def grow(self, margins: np.ndarray) -> bool:
        """Points where a network's `margins` (n,) are below those of the points in play join these."""
        if not self.working:
            return False
        least = float(margins[self.rows].min())
        below = np.flatnonzero(margins < least - GROW_AT * self.tol * abs(least))
        below = below[np.argsort(margins[below], kind="stable")]
        if len(below) == 0:
            return False
        # Those in one cell of the network tell the same story: the worst of each cell first.
        cells = np.packbits(self.all_X[below] @ self.W.T > 0, axis=1)
        _, first = np.unique(cells, axis=0, return_index=True)
        worst = np.sort(first)[:GROW_ROWS]
        rest = np.setdiff1d(np.arange(len(below)), worst)[: max(0, GROW_ROWS - len(worst))]
        self.play(np.append(self.rows, below[np.append(worst, rest)]))
        return True

    def fold(self, q: np.ndarray) -> np.ndarray:
        return self.points.cleaned(q)

    def to(self, array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(array, device=self.device)

    def search(self, q: np.ndarray, starts: int, most: int, steps: int = 40) -> tuple[float, int]:
        """Local searches on both sides: the best value found at q, and how many new patterns were taken."""
        if listed(self.points, q):
            return self.exact_search(q, most) if self.affords(2 * listing(self.points, q)) else (math.inf, 0)
        best, new = 0.0, 0
        Z = self.rng.standard_normal((starts, self.r))
        if self.whitening is not None:
            Z[1::2] = Z[1::2] @ self.whitening
        begin, climbers = self.to(np.vstack([Z, self.W])), CLIMB[1] if self.climbs else 0
        for s in (1.0, -1.0):
            V, value = maxima(self.points, self.Xt, s * self.weights(q), begin, steps, climbers, self.door.deadline)
            best = max(best, float(value[0]))
            new += self.add(V[value > self.lower * (1 + 0.1 * self.tol)].cpu().numpy(), s, most)
        return best, new

    def exact_search(self, q: np.ndarray, most: int) -> tuple[float, int]:
        """The same where all directions can be listed; then the value is a bound, too."""
        new, sides = 0, []
        for s in (1.0, -1.0):
            priced = price(self.points, s * self.weights(q), known=0.0, tol=self.tol, seconds=0.0)
            V = priced.directions.cpu().numpy()
            value = s * (q @ self.features(V, np.ones(len(V))))
            new += self.add_all(V[value > self.lower * (1 + 0.1 * self.tol)], s, most)
            sides.append(priced)
        self.take_dual(Dual(max(priced.bound for priced in sides), q, "enumeration", self.points, tuple(sides)))
        return max(priced.value for priced in sides), new

    # ------------------------------------------------------------------ phases

    def cheap_bound(self) -> None:
        """What is there for any n and d: the linear predictor, and the root of the tree at its dual and a uniform one."""
        duals = [self.fold(self.balanced_weights())]
        early = self.door.started + 0.2 * (self.door.deadline - self.door.started)
        linear = qp.solve_factor(self.y[:, None] * self.X, 1e-6, early)
        if linear.stopped == "interrupted":
            raise KeyboardInterrupt
        u = (linear.q * self.y) @ self.X
        if (self.y * (self.X @ u)).min() > 0:  # separated by a line: u and -u make a network with half its margin
            duals.append(self.fold(linear.q))
            pair = np.vstack([u, -u]) / np.linalg.norm(u)
            self.offer_network(pair, np.array([1.0, -1.0]))
            self.add(pair[:1], 1.0, 1)
            self.add(pair[1:], -1.0, 1)
        if not self.small:
            self.own_bound("pairing", 0.3)
        for q in duals:
            if self.late():
                break
            self.prove(q, 0.0, root=True)
            if self.late() or self.estimate < HANDOVER * self.lower:
                continue  # the warm start's dual is better than these: their patterns would only fill the programs
            value, _ = self.search(q, self.starts, PATTERNS // len(duals))
            self.offer_centre(q, value)
        self.tell("linear predictor and root bounds")

    def own_bound(self, way: str, share: float) -> None:
        """A bound that brings its own q, within a share of the time: from `pairing`, or from `products`, which comes once."""
        if self.closed() or self.late() or (way == "products" and self.multiplied):
            return
        self.multiplied |= way == "products"
        until, enough = time.perf_counter() + share * self.left(), self.lower * (1 + 0.5 * self.tol)
        for bound in own(way, self.points, self.first[self.rows], until, enough):
            self.take_dual(Dual(bound.upper, bound.q, way, self.points, proof=bound.proof))
            self.tell(bound.said)

    def warm_start(self) -> None:
        """A short ascent on a network of random neurons: its patterns and its soft dual are where the programs start."""
        if self.n * self.r < SMALL_PROBLEM:
            return
        W = self.rng.standard_normal((WARM_WIDTH, self.r)) / np.sqrt(self.r)
        s = np.resize([1.0, -1.0], WARM_WIDTH)
        share = time.perf_counter() + 0.25 * min(self.left(), 240.0)
        # Large problems go on with an ascent of their own, so a short one is enough here.
        steps = WARM_STEPS if self.small else WARM_STEPS // 4

        def report(W: torch.Tensor) -> None:
            self.offer_network(W.cpu().numpy(), s)
            self.tell(f"{WARM_WIDTH} particles")

        W, dual = self.polished(W, s, share, steps=steps, report=report)
        self.offer_network(W, s)
        size = np.linalg.norm(W, axis=1)
        for sign in (1.0, -1.0):
            self.add((W / size[:, None])[(s == sign) & (size > 0)], sign, WARM_WIDTH)
        self.support = np.arange(len(self.V))  # the first cone program is then at least as good as this network
        self.q = dual
        value, _ = self.search(self.q, self.starts, 40)
        self.offer_centre(self.q, value)
        self.tell(f"{WARM_WIDTH} particles, estimate {value / self.unit():.4f}")

    def polished(self, W: np.ndarray, s: np.ndarray, until: float, **options: Any) -> tuple[np.ndarray, np.ndarray]:
        """The best network met on an ascent from the network W (m, r), s (m,), and its soft dual."""
        begin = (self.to(array) for array in (self.y, W, s))
        _, best, q = _polish.polish(self.Xt, *begin, slope=self.slope, deadline=until, **options)
        return best.cpu().numpy(), self.fold(q.cpu().numpy())

    def linear_phase(self, goal: float, rounds: int) -> None:
        """Column generation over neurons, pricing near the best dual so far, until its estimate is below goal * lower."""
        stalled = 0
        for _ in range(rounds):
            self.add_columns(self.V[self.known :], self.s[self.known :])
            self.known = len(self.V)
            if self.late():
                return
            a, q = self.lp.solve(self.left())
            if self.grow(self.offer_mixture(a)):
                stalled, q = 0, np.append(q, np.zeros(self.n - len(q)))
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

    def offer_mixture(self, a: np.ndarray) -> np.ndarray:
        V, s = self.columns
        support = np.flatnonzero(a > 1e-9)
        return self.offer_network(V[support] * a[support, None], s[support])

    def pattern_round(self) -> bool:
        """Cone program over the best patterns, then price at its dual: by local search, and by the tree once that is close."""
        chosen, before = self.choose(), self.lower
        self.leave_out_all_but(chosen)
        patterns, V, s = self.patterns[chosen], self.V[chosen], self.s[chosen]
        near = self.n if self.equal or self.n <= 3 * self.r + 60 else 3 * self.r + 40
        target = self.y * self.lower if self.equal else self.y  # so that gamma is about 1
        limits: dict[str, Any] = {"near": near, "time_limit": self.left(), "slope": self.slope}
        master = programs.solve_patterns(self.X, target, patterns, s, interpolate=self.equal, directions=V, **limits)
        grown, self.q = False, self.fold(master.q)
        if master.ok:
            margins = self.offer_network(master.W, self.s[chosen])
            size = np.linalg.norm(master.W, axis=1)
            moved = size > 1e-7 * size.max(initial=0.0)  # there may be no pattern at all yet
            self.V[chosen[moved]] = master.W[moved] / size[moved, None]
            self.support = chosen[moved]
            self.add_columns(self.V[self.support], self.s[self.support])
            grown = self.grow(margins)
        q = self.q  # as long as the points in play are now
        value, new = self.search(q, self.starts, 40)
        self.offer_centre(q, value)
        # A dual of too few patterns, and no better than the last: let the linear program, which keeps all neurons, mend it.
        stale, self.priced = value > 0.98 * self.priced, value
        if value > 1.02 * self.lower and (stale or value > MEND * self.lower) and not grown:
            count = len(self.V)
            self.linear_phase(1.02, 12)
            new += len(self.V) - count
            if self.estimate < value and self.lower < before * (1 + 1e-3):  # else the next master is the better bet
                q, value = self.centre, self.estimate
        if (value < 1.02 * self.lower or new == 0) and not self.late() and not grown:
            new += self.prove(q, value)
        if self.lower <= before * (1 + 0.1 * self.tol) and not (self.closed() or grown or self.late()):
            # The cone program's digits have ended: the linear one has more, over the neurons that it has found.
            self.offer_mixture(self.lp.solve(self.left())[0])
        self.tell(f"{len(chosen)} patterns, {self.n} points, {self.nodes} nodes, estimate {value / self.unit():.6f}")
        return new > 0 or grown

    def particle_round(self) -> bool:
        """For large n * d: ascend on the network itself, price at its soft dual, and prove what the time allows."""
        width = max(8, min(200, int(2e8 / (self.n * self.r))))
        if len(self.W) == 0:
            chosen = self.choose()[:width]
            W, s = self.V[chosen], self.s[chosen]
        else:
            Z = self.q @ self.features(self.V, self.s)
            extra = np.argsort(-Z)[: max(0, width - len(self.W))]
            size = np.linalg.norm(self.W, axis=1).mean()
            W = np.vstack([self.W, 0.1 * size * self.V[extra]])
            s = np.append(self.signs, self.s[extra])
        W = W + 1e-3 * np.linalg.norm(W, axis=1).mean() * self.rng.standard_normal(W.shape) / np.sqrt(self.r)
        share = time.perf_counter() + 0.4 * self.left() if np.isfinite(self.door.deadline) else np.inf
        before, value = self.lower, self.estimate
        W, self.q = self.polished(W, s, share)
        self.offer_network(W, s)
        if not self.late():
            value, _ = self.search(self.q, self.starts, 40)
            self.offer_centre(self.q, value)
        self.own_bound("products", 0.75)
        self.prove(self.q, value, root=self.left() > 60)
        self.tell(f"{len(W)} particles, estimate {value / self.unit():.3f}")
        return self.lower > before * (1 + 0.1 * self.tol)

    def most(self) -> int:
        """How many patterns a cone program may have."""
        return max(len(self.support) + 60, min(PATTERNS, int(CONE_COLUMNS / self.r)))

    def prove(self, q: np.ndarray, value: float, root: bool = False) -> int:
        """Price at q on both sides; keep the bound if it is the best, and take what is found as new patterns."""
        # A search that lists all directions is a proof. And linear bounds, and the quadratic one of the root, are far above a
        # pairing's: there the time is better spent on networks.
        if listed(self.points, q) or (self.dual.bound in ("pairing", "products") and self.r > QUADRATIC_RANK):
            return 0
        if not root and self.n >= PRODUCTS_FIRST:
            self.own_bound("products", 0.35)
        new, known, sides = 0, max(value, self.lower), []
        end = self.door.deadline if self.multiplied or root else time.perf_counter() + TREES_SHARE * self.left()
        for side, s in enumerate((1.0, -1.0)):
            c = s * self.weights(q)
            # Early on, a q that is clearly not optimal is not worth a proof: take its violators and go on. But a first rough
            # bound is worth having.
            rough = not root and self.r > CLIMB[0] and self.upper > ROUGH[0] * self.lower > 0
            early = self.seconds() < 0.5 * (self.door.deadline - self.door.started) and not rough
            priced = price(
                self.points,
                c,
                known=known,
                tol=max(0.1 * self.tol, 0.1 * ROUGH[1] if rough else 0.0),
                seconds=max(0.0, min(end - time.perf_counter(), 1e9)) / (2 - side),
                # Below `target` the gap is closed: no need to know more.
                target=self.lower * (1 + 0.8 * max(self.tol, ROUGH[1] if rough else 0.0)),
                give_up=min(self.upper, self.lower * (1 + 10 * self.tol)) if early else np.inf,
                root=root,
                hard=self.hard,
            )
            self.nodes += priced.nodes
            self.hard |= priced.hard
            V = priced.directions.cpu().numpy()
            new += self.add(V[self.phi(V @ self.X.T) @ c > self.lower * (1 + 0.1 * self.tol)], s, 40)
            sides.append(priced)
            known = max(known, priced.value)
            if priced.aborted:
                self.estimate = max(self.estimate, known) if q is self.centre else self.estimate
                return new
        self.take_dual(Dual(max(priced.bound for priced in sides), q, "tree", self.points, tuple(sides)))
        if not root and time.perf_counter() > end:
            self.own_bound("products", 0.5)
        return new

    # ------------------------------------------------------------------ results

    def network(self) -> Measure | None:
        """The best network as a measure in the original coordinates, pruned to at most n atoms where that costs nothing."""
        if len(self.sure_W) == 0:
            return None
        size = np.linalg.norm(self.sure_W, axis=1)
        V = self.sure_W / size[:, None]
        until = max(self.door.deadline, time.perf_counter() + 0.5)  # small networks are pruned even when time is up
        mass = lightest(self.all_y[:, None] * self.phi(self.all_X @ V.T) * self.sure_signs, size, until)
        on = mass > 0
        return self.measure(V[on], (mass * self.sure_signs)[on] / mass.sum(), self.basis)

    def proof(self) -> tuple[dict[str, Any], float, np.ndarray]:
        dual = self.dual
        names = self.first[self.rows[: dual.points.n]]
        q = np.zeros(self.door.data.n)
        q[names] = dual.q
        if dual.proof is not None:
            return dual.proof, dual.upper, q
        proof, upper = write(dual.points, dual.q * dual.points.y, dual.sides, names, dual.upper)
        return proof, upper, q
