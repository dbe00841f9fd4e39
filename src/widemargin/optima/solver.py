"""Rounds between a network and a proof that no network has a smaller objective, until they meet.

Everything is in units of the door: points divided by a power of two, objectives multiplied by the sum of the weights.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from widemargin.margins.door import EPS, norm_bound
from widemargin.margins.engine import GRACE, Engine, Progress, prune_masses
from widemargin.pricing import Priced, listed, listing, price, products, write
from widemargin.pricing.points import Points as Priceable
from widemargin.pricing.search import maxima
from widemargin.types import Certificate, Measure

from .bounds import above, dual_below, dual_value, power_of
from .master import constant, fit
from .problem import Problem, along, coordinates, feasible
from .slide import slide

POOL = 300  # neurons that a master may have besides those of the network
NEW = 40  # neurons that a round may add on each side
CLIMB = 6, 40  # largest rank for exact local maxima, and how many of the best starts
STARTS = 256  # local searches per side and round
CHEAP = 20_000  # n * rank up to which a rough first bound costs next to nothing
CONE_RANK, ROOT_RANK = 8, 150  # ranks above and up to which a quick look tells which side is easier
FEW = 200  # points up to which trees have all the time, and products none, where there are several points per dimension
ENOUGH = 0.01  # of the gap that a round of products must close for another, after the first three
AGAIN = 3  # searches from other starts before a proof that takes long
SLIDES = 6  # steps of the neurons in a round
BEGIN = 1e-5  # seconds for each entry of X that a proof of a side takes at the least


@dataclass
class Dual:
    """Weights c with a bound of the largest |sum_i c_i relu(v . x_i)|, and the objective that they prove."""

    value: float
    c: np.ndarray
    bound: float
    sides: tuple[Priced, ...] = ()  # of c / 2^power
    power: int = 0
    proof: dict[str, Any] | None = None  # what shows the bound, if it is not the sides


class Solver(Engine):
    kind, convention = "f1-optimum", "objective"
    stalled = "no better network or dual was found in four rounds, before the time limit; both bounds hold"
    share = 0.95

    def __init__(self, problem: Problem, tol: float, seed: int, device: str, progress: Progress | None):
        door, points, loss = problem.door, problem.points, problem.loss
        super().__init__(door, tol, seed, progress)
        self.problem, self.points, self.loss, self.n = problem, points, loss, len(door.X)
        self.X, self.basis, self.whitening = coordinates(door)  # (n, r), (D, r), (r, r)
        self.r = self.X.shape[1]
        self.blind = not self.r  # there are no coordinates to look for neurons in
        self.where = Priceable(door.X, None, door.shift, torch.device(device), self.basis)
        self.where.beat, self.where.memory = self.beat, door.limits.memory
        self.W, self.s, self.b = np.zeros((0, self.r)), np.zeros(0), 0.0
        self.V = np.zeros((0, self.r))  # all neurons in play
        self.size = np.linalg.norm(self.X, axis=1)
        self.lower, self.upper = 0.0, math.inf  # of the objective: proved, and met by a network
        self.hard = False
        # Whether products were tried, or need not be: 130 points of wine are 14 % open with them, where trees end at 11 %.
        small = products.POINTS_PER_RANK * self.r < self.n <= FEW
        self.multiplied = self.r < products.LEAST_RANK or small or self.where.far
        self.width, self.smooth = 1.0, loss.smoothed(1.0)
        # A network and a bound that are there from the first moment on.
        self.best_network = self.W, self.s, self.b
        self.upper, c = self.value(), self.pull()
        bound = norm_bound(door.X, c)
        self.dual = Dual(self.proved(c, bound), c, bound, power=power_of(c))
        self.lower = self.dual.value
        self.centre, self.estimate, self.steepest = (
            np.zeros(0),
            -math.inf,
            0.0,
        )  # the dual that looks best, and its largest slope met
        self.attempted = math.inf  # what the last full proof left open when it began

    def begin_with(self, network: Measure, offset: float) -> None:
        """Start from a network in units of the data."""
        if not self.r:
            self.X, self.basis = along(self.door, network.theta)
            self.r = self.X.shape[1]
            self.W, self.V, self.size = self.basis[:0], self.basis[:0], np.linalg.norm(self.X, axis=1)
            self.best_network = self.W, *self.best_network[1:]
        theta, mass = network.theta @ self.basis, np.ldexp(network.mass, self.door.shift - self.problem.power)
        on = (mass != 0) & theta.any(axis=1)
        if not on.any():
            return
        self.W, self.s = theta[on] * np.abs(mass[on])[:, None], np.sign(mass[on])
        self.b = math.ldexp(offset, -self.problem.power) if self.points.offset else 0.0
        self.merge()
        self.keep()

    def continue_from(self, cert: Certificate) -> None:
        """Start from the network of a certificate, such as that of another decay."""
        if cert.primal is not None:
            self.begin_with(cert.primal, cert.extra["offset"])

    def know(self, network: Measure, offset: float) -> None:
        """A network that the result must not be worse than; the solve begins from nothing all the same."""
        self.begin_with(network, offset)
        self.W, self.s, self.b = np.zeros((0, self.r)), np.zeros(0), 0.0

    # ------------------------------------------------------------------ networks and duals

    def outputs(self) -> np.ndarray:
        return (self.X @ self.W.T).clip(0) @ self.s + self.b

    def value(self) -> float:
        """The objective of the network."""
        norm = float(np.linalg.norm(self.W, axis=1).sum())
        return self.points.objective(self.loss, self.outputs(), norm, self.b)

    def pull(self) -> np.ndarray:
        """The dual weights of the network, as they can be saved: in the range of the loss, with sum 0 for a free output bias."""
        c = self.points.pull(self.smooth, self.outputs())
        return max(feasible(self.points, self.loss, c, self.b), key=lambda c: dual_value(self.points, self.loss, c))

    def proved(self, c: np.ndarray, bound: float) -> float:
        """The objective that weights c prove when their maximum is at most `bound`."""
        theta = min(1.0, self.points.lam / bound) if bound > 0 else 1.0
        return dual_value(self.points, self.loss, theta * c)

    def enough(self, c: np.ndarray, wanted: float) -> float:
        """The largest bound at which c proves `wanted`; 0 if there is none."""
        low, high = 0.0, 1.0
        if self.proved(c, self.points.lam) < wanted:
            return 0.0
        for _ in range(40):
            theta = (low + high) / 2
            low, high = (low, theta) if dual_value(self.points, self.loss, theta * c) >= wanted else (theta, high)
        return self.points.lam / high

    def price(self, c: np.ndarray, s: float, **numbers: float | bool) -> Priced:
        """Both signs s of weights c that sum to about 1, as pricing has them; `numbers` are in units of c."""
        unit = 2.0 ** -power_of(c)
        scaled: dict[str, Any] = {
            name: unit * value if name in ("known", "target", "give_up") else value for name, value in numbers.items()
        }
        return price(self.where, s * unit * c, **scaled)

    def offer(self, c: np.ndarray, sides: tuple[Priced, ...]) -> None:
        """Keep c if it proves more than the best so far."""
        power = power_of(c)
        bound = max(side.bound for side in sides) * 2.0**power
        value = self.proved(c, bound)
        if value > self.dual.value:
            self.dual, self.lower = Dual(value, c, bound, sides, power), value

    # ------------------------------------------------------------------ the run

    def nothing(self) -> None:
        return None

    def late(self) -> bool:
        return self.blind or super().late()

    def start(self) -> None:
        """The constant network, which is the best for large decays, unless there is one to begin with."""
        if not len(self.W):
            self.b = constant(self.points, self.smooth)
            self.keep()
            heard = self.points.y[self.points.w > 0]
            if not self.loss.labels and self.points.offset and not self.points.ridge and (heard == heard[0]).all():
                self.b = float(heard[0])  # equal targets, to the last bit
                self.keep()
        self.smoothen()
        if not self.late():
            self.search(self.pull())
        self.tell("first network")

    def smoothen(self) -> None:
        """A loss without curvature is smoothed, less and less as the bounds come closer."""
        if not self.upper > 0:
            return
        gap = 1 - max(self.lower, self.estimate) / self.upper
        self.width = max(0.4 * self.tol, 0.25 * self.width, min(self.width, 0.2 * gap))
        self.smooth = self.loss.smoothed(max(self.width * self.upper / float(self.points.w.sum()), 1e-12))

    def round(self) -> bool:
        before = (self.lower, self.upper, len(self.V))
        self.improve()
        if self.upper < before[1] * (1 - self.tol):
            self.say(f"{len(self.W)} neurons")  # a proof may take long
        self.smoothen()
        c = self.pull()
        slope = self.search(c)
        self.prove(c, slope)
        self.tell(f"{len(self.W)} neurons, largest slope {slope / self.points.lam - 1:.1e}")
        better = self.lower > before[0] * (1 + 1e-9) or self.upper < before[1] * (1 - 1e-9) or len(self.V) != before[2]
        half = self.seconds() > 0.5 * (self.door.deadline - self.door.started)
        if (half or not better) and not self.closed() and self.worthwhile(self.upper - self.estimate):
            return self.prove(self.centre, self.steepest, last=True) or better
        return better

    def improve(self) -> None:
        """Masses of all neurons in play, then moves of those that have some."""
        for _ in range(SLIDES):
            self.masses()
            if self.late():
                break
            moved = slide(self.points, self.smooth, self.X, self.W, self.s, self.b, self.left())
            if moved is None:
                break
            self.W, self.b, gain = moved
            self.merge()
            self.play(self.W)
            if gain < 1e-3 * self.tol * self.upper:
                break
        self.keep()

    def keep(self) -> None:
        """The network, if it is the best so far: steps on a smoothed loss may end higher."""
        value = self.value()
        if value < self.upper:
            self.upper, self.best_network = value, (self.W, self.s, self.b)

    def masses(self) -> None:
        """The best masses of the neurons in play."""
        size = np.linalg.norm(self.W, axis=1)
        own = self.W / size[:, None].clip(1e-300)
        V = np.vstack([own, self.V])
        Z = (self.X @ V.T).clip(0)
        a = np.append(self.s * size, np.zeros(len(self.V)))
        a, self.b = fit(self.points, self.smooth, Z, a, self.b, until=self.door.deadline)
        on = a != 0
        self.W, self.s = V[on] * np.abs(a[on])[:, None], np.sign(a[on])
        self.merge()
        rest = V[~on]
        c = self.points.pull(self.smooth, self.outputs())
        order = np.argsort(-np.abs(Z[:, ~on].T @ c))[:POOL]
        self.V = rest[order]

    def merge(self) -> None:
        """Neurons of one sign and one pattern are one neuron, which is no longer than they were together."""
        keep = np.linalg.norm(self.W, axis=1) > 1e-13 * np.linalg.norm(self.W, axis=1).max(initial=0.0)
        self.W, self.s = self.W[keep], self.s[keep]
        patterns = np.packbits(self.X @ self.W.T > 0, axis=0).T  # (K, bytes)
        # As bytes: numpy would make a record with a field for each, and takes a second for a million points.
        keys = [row.tobytes() for row in np.hstack([patterns, self.s[:, None] > 0])]
        number = {key: k for k, key in enumerate(sorted(set(keys)))}
        group = np.array([number[key] for key in keys], dtype=np.intp)
        W = np.zeros((len(number), self.r))
        np.add.at(W, group, self.W)
        s = np.zeros(len(W))
        s[group] = self.s
        self.W, self.s = W, s

    def play(self, V: np.ndarray, most: int = 10**9) -> int:
        """Take up to `most` of the neurons V, best first, that are not there yet."""
        V = V / np.linalg.norm(V, axis=1, keepdims=True).clip(1e-300)
        known = np.vstack([self.V, self.W / np.linalg.norm(self.W, axis=1, keepdims=True).clip(1e-300)])
        new: list[np.ndarray] = []
        for v in V:
            if len(new) == most:
                break
            if (known @ v).max(initial=-1.0) < 1 - 1e-12 and all(float(u @ v) < 1 - 1e-7 for u in new):
                new.append(v)
        self.V = np.vstack([self.V, *new]) if new else self.V
        return len(new)

    # ------------------------------------------------------------------ pricing

    def search(self, c: np.ndarray) -> float:
        """Neurons that the network should have: the largest |sum_i c_i relu(v . x_i)| that was found."""
        if self.blind:
            return 0.0
        if listed(self.where, c):
            if not self.affords(2 * listing(self.where, c)):
                return math.inf
            sides = tuple(self.price(c, s, known=0.0, tol=self.tol, seconds=0.0) for s in (1.0, -1.0))
            self.offer(c, sides)
            for s, side in zip((1.0, -1.0), sides):
                V = side.directions.cpu().numpy()
                self.play(V[(V @ self.X.T).clip(0) @ (s * c) > self.points.lam * (1 + 1e-12)], NEW)
            return max(side.value for side in sides) * 2.0 ** power_of(c)
        best = 0.0
        most = np.clip(3e6 / self.X.size, 32, STARTS)
        count = int(np.clip(self.door.limits.search_work() / self.X.size, 4, most))
        Z = self.rng.standard_normal((count, self.r))
        if self.whitening is not None:
            Z[1::2] = Z[1::2] @ self.whitening
        Xt, climbers = torch.as_tensor(self.X), CLIMB[1] if self.r <= CLIMB[0] and self.n <= 2000 else 0
        for s in (1.0, -1.0):
            begin = torch.as_tensor(np.vstack([Z, self.W[self.s == s], self.V[:50]]))
            tops, value = maxima(self.where, Xt, s * c, begin, 40, climbers, self.door.deadline)
            best = max(best, float(value[0]))
            self.play(tops[value > self.points.lam * (1 + 1e-12)].numpy(), NEW)
        return best

    def search_again(self, c: np.ndarray, slope: float) -> float:
        """The largest slope at c from other starts, where a proof takes long and there is time for both."""
        if self.r > CONE_RANK and self.left() > 0.3 * (self.door.deadline - self.door.started):
            slope = max([slope, *(self.search(c) for _ in range(AGAIN))])
        return slope

    def prove(self, c: np.ndarray, value: float, last: bool = False) -> bool:
        """Bound the slopes at c, if they look good enough to close the gap, or at the `last` moment. Whether it was tried."""
        estimate = self.proved(c, value)
        if estimate > self.estimate or not len(self.centre):
            self.centre, self.estimate, self.steepest = c, estimate, value
        if listed(self.where, c):
            return False  # a search is a proof
        first = not self.dual.sides
        left = self.upper - estimate
        near = 0.7 if self.r <= CONE_RANK else 0.1  # where proofs take long, the weights should be good
        good = left <= near * self.share * self.tol * estimate and self.worthwhile(left)
        if not (good or last or (first and self.n * self.r <= CHEAP)):
            return False
        if not self.can_begin():
            return False
        root = first and not (good or last)
        if not root:
            more = self.search_again(c, value)
            if more > max(value, self.points.lam) * (1 + 1e-6):  # a neuron was missed: the network gets it first
                if c is self.centre:
                    self.estimate, self.steepest = self.proved(c, more), more
                return True
            self.multiply(0.8)
            if self.closed():
                return True
        # Below `target` the gap is closed: no need to know more.
        target = max(self.enough(c, self.upper / (1 + 0.9 * self.share * self.tol)), self.points.lam)
        sides: dict[float, Priced] = {}
        for k, s in enumerate((1.0, -1.0) if root else self.order(c, value, target)):
            sides[s] = priced = self.price(
                c,
                s,
                known=value,
                tol=0.05 * self.tol,
                seconds=max(self.left(), 0.0) / (2 - k),
                target=target,
                give_up=math.inf if last else target,
                root=root,
                hard=self.hard,
            )
            self.nodes += priced.nodes
            self.hard |= priced.hard
            V = priced.directions.cpu().numpy()
            self.play(V[(V @ self.X.T).clip(0) @ (s * c) > self.points.lam * (1 + 1e-12)], NEW)
            if priced.aborted:
                return True  # there are better neurons, and so better weights
        self.attempted = self.attempted if root else left
        self.offer(c, (sides[1.0], sides[-1.0]))
        return True

    def can_begin(self) -> bool:
        """Whether a proof of both sides would do more than begin."""
        return 2 * BEGIN * self.n * self.r <= self.left() + GRACE

    def worthwhile(self, left: float) -> bool:
        """Whether a proof at weights that leave this much open may end better than the last one, whose left `attempted`."""
        return math.isinf(self.attempted) or 0.05 * self.tol * self.upper < self.attempted > 2 * left

    def order(self, c: np.ndarray, value: float, target: float) -> list[float]:
        """Both signs, the one first that looks easier: what it leaves of its half of the time the other has."""
        if not CONE_RANK < self.r <= ROOT_RANK or self.left() < 1:
            return [1.0, -1.0]
        bounds = {
            s: self.price(c, s, known=value, tol=0.05, seconds=1.0, target=target, root=True).bound for s in (1.0, -1.0)
        }
        return sorted(bounds, key=bounds.__getitem__)

    def multiply(self, share: float) -> None:
        """Once, where it has a chance: the best weights for the bound from products of parts, instead of those of the network."""
        if self.multiplied or self.late() or self.closed() or not self.size.all() or not self.points.w.all():
            return
        self.multiplied = True
        points, device = self.points, self.where.device
        tensor = self.where.tensor
        y, w = points.y, points.w
        price = float(np.linalg.norm(self.best_network[0], axis=1).sum())
        if not (price > 0 and self.centre.any()):  # the constant: there is nothing to weigh
            return
        low, high = self.smooth.limits(y)
        low, high = low * w, high * w
        x = np.clip(self.centre, low + 1e-4 * w, high - 1e-4 * w)  # inside, where there is a limit at all

        def slopes(c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            first, second = self.smooth.dual_slopes(y, c.cpu().numpy() / w)
            return tensor(-first), tensor(second / w)

        goal = products.Goal(
            torch.ones(self.n, dtype=torch.float64, device=device),
            tensor(x),
            tensor(low),
            tensor(high),
            0.0 if points.offset and not points.ridge else None,
            price,  # a bound is worth the norm of the best network
            points.lam,
            slopes,
            1 / points.ridge if points.ridge else 0.0,
            self.upper,
            self.beat,
        )
        until = time.perf_counter() + share * self.left()
        for number, solved in enumerate(products.solve(self.where.Xt, goal, until)):
            before = self.lower
            for c in feasible(points, self.loss, solved.q.cpu().numpy(), self.b):
                shown, power = products.renewed(solved, tensor(c)), power_of(c)
                if shown is None or self.proved(c, shown.bound) <= self.dual.value:
                    continue
                proof, bound = products.write(shown, np.arange(self.n), 2.0**self.door.shift, 2.0**-power)
                bound *= 2.0 ** (power - self.door.shift)
                if proof and (value := self.proved(c, bound)) > self.dual.value:
                    self.dual, self.lower = Dual(value, c, bound, power=power, proof=proof), value
            self.tell(f"{len(solved.sides[0].N)} products")
            if self.closed() or (number > 2 and self.lower - before < ENOUGH * (self.upper - self.lower)):
                break

    # ------------------------------------------------------------------ results

    def shown(self) -> tuple[float, float]:
        low, high = np.ldexp([self.lower / self.problem.total, self.upper / self.problem.total], 2 * self.problem.power)
        return max(float(low), 0.0), float(high)

    def bounds(self, lower: float, upper: float) -> tuple[float, float]:
        return lower, upper

    def extra(self, lower: float, upper: float) -> dict[str, Any]:
        return self.problem.saved(self.best_network[2], self.dual.power)

    def written(self) -> tuple[Measure | None, dict[str, Any], np.ndarray, float, float]:
        problem, power = self.problem, 2 * self.problem.power
        scale, network = problem.power - self.door.shift, self.network()
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            mass = np.ldexp(
                np.ldexp(network.mass, scale), -scale
            )  # what is saved: tiny or huge ones are not what they were
            on = np.isfinite(mass) & (mass != 0)
            primal = Measure(network.theta[on], mass[on], "relu", network.bias)
            b = math.ldexp(math.ldexp(self.best_network[2], problem.power), -problem.power)
            self.best_network = (*self.best_network[:2], b)
            upper = above(problem, primal, b)
        b = constant(self.points, self.smooth)
        empty = Measure(np.zeros((0, self.door.X.shape[1])), np.zeros(0), "relu", self.door.bias)
        if not upper <= (flat := above(problem, empty, b)):  # what rounding may hide beside huge points
            self.best_network, primal, upper = (self.W[:0], self.s[:0], b), empty, flat
        primal = Measure(primal.theta, np.ldexp(primal.mass, scale), "relu", primal.bias)
        unit = 2.0**self.dual.power
        proof: dict[str, Any] = {"type": "norm"}
        bound, c = self.dual.bound / unit, self.dual.c / unit
        if self.dual.proof is not None:
            proof = dict(self.dual.proof)
        elif self.dual.sides:
            proof, bound = write(self.where, c, self.dual.sides, np.arange(self.n), bound)
        bound *= unit
        lower = dual_below(self.points, self.loss, self.dual.c, self.points.lam / bound if bound else 1.0)
        lower, upper = lower / problem.total * (1 - 8 * EPS), upper / problem.total * (1 + 8 * EPS)
        with np.errstate(over="ignore", under="ignore"):
            maximum = float(np.ldexp(bound / unit, self.door.shift))
            low, high = float(np.ldexp(lower, power)), float(np.ldexp(upper, power))
        proof |= {"maximum": max(math.nextafter(maximum, math.inf), 1e-300)}
        high = self.problem.held(math.nextafter(high, math.inf)) if upper else 0.0
        return primal, proof, c, min(max(math.nextafter(low, -math.inf), 0.0), high), high

    def network(self) -> Measure:
        """The best network, in units of the door: at most n neurons."""
        W, signs, _ = self.best_network
        size = np.linalg.norm(W, axis=1)
        W, signs, size = W[size > 0], signs[size > 0], size[size > 0]
        V = W / size[:, None]
        if len(V) > self.n:
            size = prune_masses((self.X @ V.T).clip(0) * signs, size)
            V, signs, size = V[size > 0], signs[size > 0], size[size > 0]
        return self.measure(V, signs * size, self.basis)
