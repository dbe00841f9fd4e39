"""What every certified margin of wide networks has in common: rounds between a network and a proof, until they meet; and what
those of ReLU networks keep of neurons between rounds, which are new, and how few of them are enough.

A problem brings its start, its rounds, its network and its proof; the engine owns the clock, the best dual by estimate, what is
told on the way, interruption, and the words of the certificate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from scipy import linalg

from widemargin.dataset import takes_data_second
from widemargin.types import Certificate, Dataset, InputError, Measure, show

from .door import EPS, LOST, Door, Progress, about, check_data, check_progress, check_seed, lost
from .programs import ColumnLP

LARGEST = float(np.finfo(np.float64).max)  # stands for no bound at all
GRACE = 0.3  # seconds that a step which looks at no clock may go beyond the time limit
TINY = 2e-15  # singular values below this, relative to the largest, count as zero


class Engine:
    """State of one solve: lower <= margin <= upper, in the units of the door."""

    kind, convention = "f1", "M1"
    patience = 4  # rounds without anything new after which a solve has stalled
    stalled = "no better network or dual was found in four rounds, before the time limit; both bounds hold"
    share = 1.0  # of tol that a search must reach; the rest is for rounding
    step = 1e-5  # by how much, relative, a dual must look better to become the centre of pricing
    lost = LOST

    def __init__(self, door: Door, tol: float, seed: int, progress: Progress | None):
        check_progress(progress)
        self.door, self.tol, self.seed, self.progress = door, tol, seed, progress
        self.phi, self.slope, self.degree = door.space.phi, door.space.slope, door.space.degree
        self.rng = np.random.default_rng(check_seed(self.kind, seed))
        self.lower, self.upper = 0.0, math.inf
        self.dual: Any = None
        self.centre, self.estimate = np.zeros(0), math.inf  # the dual that looks best, and its value as far as known
        self.rounds = self.nodes = 0
        self.hurried = False  # whether a step was left out that there was no time for any more
        self.told = time.perf_counter()

    # What a problem brings.

    def nothing(self) -> tuple[np.ndarray, dict[str, Any], float, str] | None:
        """Weights, proof, upper bound and reason of margin 0, if it is."""
        raise NotImplementedError

    def start(self) -> None:
        """First network and first bounds."""
        raise NotImplementedError

    def round(self) -> bool:
        """One round; whether anything new came of it."""
        raise NotImplementedError

    def network(self) -> Measure | None:
        raise NotImplementedError

    def lower_rounded(self, primal: Measure) -> float:
        """A number that the exact margin of `primal` certainly reaches."""
        door, m = self.door, len(primal.mass)
        score = door.y * (self.phi(door.X @ primal.theta.T) @ primal.mass)
        error = 4 * self.degree * EPS * (door.X.shape[1] + m + 8) * door.size**self.degree
        return float((score - error).min()) / (primal.norm * (1 + 1e-14 * (8 + m**0.5)))

    def best(self) -> tuple[Measure | None, float]:
        """The network as it is saved, and a number that its margin certainly reaches."""
        primal = self.network()
        return primal, max(0.0, self.lower_rounded(primal)) if primal is not None else 0.0

    def proof(self) -> tuple[dict[str, Any], float, np.ndarray]:
        """The proof as it is saved, the bound it shows (rounded up; infinite if none), and its weights on the data."""
        raise NotImplementedError

    def shown(self) -> tuple[float, float]:
        """Both bounds as they are told on the way, in the units of the data."""
        scale = 2.0 ** (self.degree * self.door.shift) if abs(self.door.shift) < 500 else 1.0
        return self.met() * scale, self.upper * scale

    def bounds(self, lower: float, upper: float) -> tuple[float, float]:
        """Both bounds in the units of the data, rounded outward."""
        high = self.door.unscale(upper, self.degree, up=True) if math.isfinite(upper) else math.inf
        return self.door.unscale(lower, self.degree, up=False), high

    def extra(self, lower: float, upper: float) -> dict[str, Any]:
        """What the certificate holds beside the usual, for the bounds it will have."""
        return {}

    # What the engine owns.

    def run(self) -> Certificate:
        zero = self.nothing()
        if zero is not None:
            q, proof, upper, reason = zero
            return self.certificate("not-separable", 0.0, upper, q, proof, None, reason)
        stuck = 0
        try:
            self.start()
            while not self.closed() and not self.late() and stuck < self.patience:
                stuck = 0 if self.round() else stuck + 1
            status = "time-limit" if self.late() or self.hurried else "stalled"
        except KeyboardInterrupt:
            status = "interrupted"
        return self.finish("certified" if self.closed() else status)

    def closed(self) -> bool:
        return self.upper - self.met() <= self.share * self.tol * self.met()

    def met(self) -> float:
        """What a network certainly reaches, up to rounding."""
        return self.lower

    def late(self) -> bool:
        return time.perf_counter() > self.door.deadline

    def unit(self) -> float:
        """What estimates are told in."""
        return self.lower or 1.0

    def seconds(self) -> float:
        return time.perf_counter() - self.door.started

    def left(self) -> float:
        return self.door.deadline - time.perf_counter()

    def affords(self, seconds: float) -> bool:
        """Whether a step that looks at no clock, of about so many seconds, ends in time; what is left out is remembered."""
        self.hurried = seconds > self.left() + GRACE
        return not self.hurried

    def take_dual(self, dual: Any) -> None:
        """Keep the dual, an upper bound with what proves it, if it is the best."""
        if dual.upper < self.upper:
            self.dual, self.upper = dual, dual.upper

    def tell(self, message: str) -> None:
        self.rounds += 1
        self.say(message)

    def say(self, message: str) -> None:
        """In the middle of a round."""
        self.told = time.perf_counter()
        if self.progress is not None:
            self.progress(self.seconds(), *self.shown(), message)

    def beat(self) -> None:
        """Called again and again in long proofs: a word every second."""
        if time.perf_counter() > self.told + 1:
            self.say("proof goes on")

    def offer_centre(self, q: np.ndarray, value: float) -> bool:
        """Keep q as the centre of pricing if it looks like the best dual so far."""
        better = value < self.estimate * (1 - self.step)
        if better:
            self.centre, self.estimate = q, value
        return better

    def stats(self) -> dict[str, Any]:
        return {"seconds": self.seconds(), "seed": self.seed, "rounds": self.rounds, "nodes": self.nodes}

    def measure(self, V: np.ndarray, mass: np.ndarray, basis: np.ndarray) -> Measure:
        """Neurons V (m, r) in `basis` (D, r), and their masses."""
        theta = V @ basis.T
        theta /= np.linalg.norm(theta, axis=1, keepdims=True)
        return Measure(theta, mass, self.door.space.activation, self.door.bias)

    def written(self) -> tuple[Measure | None, dict[str, Any], np.ndarray, float, float]:
        """Network, proof and dual as they are saved, and the two bounds that these show."""
        primal, lower = self.best()
        proof, upper, q = self.proof()
        return primal, proof, q, lower, upper

    def finish(self, status: str) -> Certificate:
        """What is written down decides: it may prove a little less, or more, than the search had."""
        primal, proof, q, lower, upper = self.written()
        if upper - lower <= self.tol * lower * (1 + 1e-6):
            status = "certified"
        elif status == "certified":
            status = "rounding"
        reason = {
            "certified": "",
            "rounding": self.lost,
            "stalled": self.stalled,
        }.get(status, "stopped before the gap reached tol; both bounds hold")
        return self.certificate(status, lower, upper, q, proof, primal, reason)

    def certificate(
        self,
        status: str,
        lower: float,
        upper: float,
        q: np.ndarray,
        proof: dict[str, Any],
        primal: Measure | None,
        reason: str,
    ) -> Certificate:
        door = self.door
        low, high = self.bounds(lower, upper)
        proved = high < LARGEST
        if lost(status, low, high, self.tol):
            status, reason = "rounding", reason or self.lost
        return Certificate(
            kind=self.kind,
            lower=low,
            upper=high,
            dual=q,
            status=status,
            proved=proved,
            bound=proof["type"],
            primal=primal if proved else None,
            bias=door.bias,
            activation=door.space.activation,
            convention=self.convention,
            **about(door.data),
            reason=reason,
            proof=proof,
            extra=self.extra(low, high),
            stats=self.stats(),
        )


class Neurons(Engine):
    """The neurons met, one for each activation pattern, with their linear program.

    They are those of points X (n, r) with labels or targets y (n,), which a problem sets before it calls `widen`.
    """

    equal = False  # whether a network must meet f(x_i) = t y_i, not only y_i f(x_i) >= t: then weights have any signs
    X: np.ndarray
    y: np.ndarray
    n: int

    def no_neurons(self, r: int) -> None:
        if r <= 3:  # maxima are exact there, and steady enough
            self.step = min(self.step, 0.1 * self.tol)
        self.V, self.s = np.zeros((0, r)), np.zeros(0)  # all neurons met
        # Their activation patterns, as they were met. A neuron that moves often ends on the boundary of its pattern's cone, where
        # some x_i . v is zero up to rounding: the pattern read off it there may be another, and its own would be lost for good.
        self.patterns = np.zeros((0, 0), dtype=bool)
        self.columns = (self.V, self.s)  # of the linear program
        self.support = np.zeros(0, dtype=int)  # the neurons of the last cone program's network
        self.q = np.zeros(0)  # the last dual

    def widen(self, old: int) -> None:
        """There are new points, all but the first `old`."""
        new = self.X[old:] @ self.V.T > 0  # (new rows, neurons)
        self.patterns = np.hstack([self.patterns.reshape(len(self.V), old), new.T])
        self.seen = {key(p, s): k for k, (p, s) in enumerate(zip(self.patterns, self.s))}
        self.outside = np.zeros(0, dtype=bool)  # which of the neurons the last cone program did without,
        self.recalled: set[int] = set()  # and those that it should not have
        if not old:
            self.lp, self.known, self.scale = self.empty_lp(), 0, 1.0  # it has seen the first `known` neurons
        else:
            self.lp.add_points(self.features(*self.columns)[old:] / self.scale)

    def most(self) -> int:
        """How many patterns a cone program may have."""
        raise NotImplementedError

    def empty_lp(self) -> ColumnLP:
        return ColumnLP(self.n, self.y if self.equal else None)

    def features(self, V: np.ndarray, s: np.ndarray) -> np.ndarray:
        """What neurons add to the constraints, (n, k)."""
        return (1.0 if self.equal else self.y[:, None]) * self.phi(self.X @ V.T) * s

    def weights(self, q: np.ndarray) -> np.ndarray:
        """The weights c of the pricing problem at q."""
        return q if self.equal else q * self.y

    def add(self, V: np.ndarray, s: float, most: int) -> int:
        """Take up to `most` of the unit neurons V (best first) whose activation pattern is new.

        A pattern that is known but was left out of the last cone program is recalled: it counts as new, and v stands for it.
        """
        taken: list[int] = []
        recalled = 0
        patterns = V @ self.X.T > 0
        for i, pattern in enumerate(patterns):
            at = self.seen.get(key(pattern, s), -1)
            if 0 <= at < len(self.outside) and self.outside[at] and at not in self.recalled:
                self.V[at] = V[i]
                self.recalled.add(at)
                recalled += 1
            elif at < 0 and (pattern.any() or self.slope > 0):
                self.seen[key(pattern, s)] = len(self.V) + len(taken)
                taken.append(i)
            if len(taken) + recalled == most:
                break
        self.V, self.s = np.vstack([self.V, V[taken]]), np.append(self.s, np.full(len(taken), s))
        self.patterns = np.vstack([self.patterns, patterns[taken]])
        return len(taken) + recalled

    def choose(self) -> np.ndarray:
        """Indices of the patterns worth having in the master: the network's own, then the best at the last duals."""
        Z = self.features(self.V, self.s)
        value = np.maximum(self.q @ Z, self.centre @ Z)
        value[list(self.recalled)] = np.finfo(float).max
        value[self.support] = np.inf
        return np.sort(np.argsort(-value)[: self.most()])

    def leave_out_all_but(self, chosen: np.ndarray) -> None:
        """The next cone program has the patterns `chosen`."""
        self.outside, self.recalled = np.ones(len(self.V), dtype=bool), set()
        self.outside[chosen] = False

    def add_all(self, V: np.ndarray, s: float, most: int) -> int:
        """Take the neurons V, exact maxima, best first. A known pattern may have its maximum elsewhere by now: to the linear
        program that is another neuron.
        """
        count = len(self.V)
        new = self.add(V, s, most)
        known = np.vstack([self.columns[0][self.columns[1] == s], self.V[count:]])
        near = (0.01 * self.tol * self.lower / self.door.size.max()) ** 2 + 1e-24
        moved = new_directions(V, known, near, near, most)
        self.add_columns(moved, np.full(len(moved), s))
        return new + len(moved)

    def add_columns(self, V: np.ndarray, s: np.ndarray) -> None:
        # Tolerances of the program are absolute: keep the margin near 1.
        if self.lower > 0 and not 0.1 < self.lower / self.scale < 10:
            self.lp, self.scale = self.empty_lp(), self.lower
            self.lp.add(self.features(*self.columns) / self.scale)
        self.lp.add(self.features(V, s) / self.scale)
        self.columns = (np.vstack([self.columns[0], V]), np.append(self.columns[1], s))  # copies: neurons move later


def key(pattern: np.ndarray, s: float) -> bytes:
    return np.packbits(pattern).tobytes() + (b"+" if s > 0 else b"-")


def new_directions(V: np.ndarray, known: np.ndarray, near: float, apart: float, most: int) -> np.ndarray:
    """Up to `most` rows of V (best first) farther than `near` from all of `known` and than `apart` from each other (squares)."""
    fresh: list[np.ndarray] = []
    for v in V:
        if len(known) and ((known - v) ** 2).sum(axis=1).min() <= near:
            continue
        if fresh and ((np.array(fresh) - v) ** 2).sum(axis=1).min() <= apart:
            continue
        fresh.append(v)
        if len(fresh) == most:
            break
    return np.array(fresh).reshape(-1, V.shape[1])


@takes_data_second("values")
def prune(measure: Measure, data: Dataset) -> Measure:
    """At most n atoms of `measure` with new masses: the same values on the data, and a norm that is no larger.

    While the columns s_j phi(theta_j . x_i) of the atoms are linearly dependent, sum_j c_j s_j phi(theta_j . x) = 0 on
    the data, moving the masses |m_j| along c or -c, whichever does not raise their sum, keeps the values until one
    mass is zero. Values are kept up to rounding: about 1e-12 of the norm times the largest point.

    Reference: Wei, Lee, Liu and Ma (2019), Lemma B.1 and Claim B.4.

    >>> import numpy as np
    >>> import widemargin as wm
    >>> data = wm.data.clusters(n=5, d=3)
    >>> wide = wm.Measure(wm.spaces.sphere(40, 3), np.full(40, 1 / 40))
    >>> thin = wm.margins.prune(wide, data)
    >>> len(thin.mass) <= 5, np.allclose(thin(data.X), wide(data.X)), thin.norm <= wide.norm + 1e-12
    (True, True, True)
    """
    if not isinstance(measure, Measure):
        raise InputError(f"measure must be a widemargin.Measure, such as cert.primal, not {show(measure)}")
    check_data(data)
    unit = measure.normalized()
    if unit.theta.shape[1] != data.d + measure.bias:
        raise InputError(
            f"the measure has directions with {unit.theta.shape[1]} entries but the data need {data.d + measure.bias}"
        )
    columns = np.sign(unit.mass) * unit.features(data.X)  # (n, m)
    scale = np.abs(columns).max(initial=0.0) or 1.0
    mass = prune_masses(columns / scale, np.abs(unit.mass))
    keep = mass > 0
    return Measure(unit.theta[keep], (np.sign(unit.mass) * mass)[keep], unit.activation, unit.bias)


def prune_masses(Z: np.ndarray, mass: np.ndarray, deadline: float = np.inf) -> np.ndarray:
    """Masses a >= 0 with Z a = Z mass, sum a <= sum mass, and linearly independent columns of Z (n, m) where a > 0.

    At `deadline` (on time.perf_counter) it stops early: then more columns than needed may be left, and the rest holds.
    """
    start, target = mass.sum(), Z @ mass
    a = np.zeros(len(mass))
    held: list[int] = []
    for j in np.argsort(-mass, kind="stable"):  # the heaviest first: they are the likeliest to stay
        if mass[j] <= 0:
            continue
        a[j] = mass[j]
        held.append(int(j))
        while len(held) > len(Z) and time.perf_counter() < deadline:
            held = _move(a, held, linalg.qr(Z[:, held].T)[0][:, -1])  # orthogonal to all rows of Z
    while held and time.perf_counter() < deadline:  # at most n now, but they may still be dependent
        _, size, Vt = linalg.svd(Z[:, held], full_matrices=False)
        if size[-1] > TINY * size[0]:
            break
        held = _move(a, held, Vt[-1])
    for _ in range(2):  # what rounding moved is put back on the same atoms
        if not held or time.perf_counter() >= deadline:
            break
        change = linalg.lstsq(Z[:, held], target - Z @ a, cond=1e-13)[0]
        moved = a[held] + change
        if (moved < 0).any() or moved.sum() > start * (1 + 1e-12):
            break
        a[held] = moved
    return a


def lightest(Z: np.ndarray, mass: np.ndarray, deadline: float) -> np.ndarray:
    """Masses >= 0 with next to the same margin min_i (Z a)_i / sum a: of at most n columns of Z (n, m), and none next to 0."""

    def margin(a: np.ndarray) -> float:
        return float((Z @ a).min()) / float(a.sum()) if a.any() else -np.inf

    least = margin(mass)
    if Z.shape[1] > Z.shape[0]:
        pruned = prune_masses(Z, mass, deadline)
        mass = pruned if margin(pruned) >= least * (1 - 1e-9) else mass
    # Neurons that a cone program left with next to no mass only clutter the answer.
    for share in (1e-5, 1e-6, 1e-7, 1e-8, 1e-9):
        some = np.where(mass > share * mass.sum(), mass, 0.0)
        if margin(some) >= least * (1 - 1e-8):
            return some
    return mass


def _move(a: np.ndarray, held: list[int], c: np.ndarray) -> list[int]:
    """Move the masses a[held] > 0 along c, or -c if that is what lowers their sum, until one is zero; those left."""
    c = -c if c.sum() > 0 else c
    step = np.where(c < 0, a[held] / np.where(c < 0, -c, 1.0), np.inf)
    gone = int(step.argmin())
    a[held] = (a[held] + step[gone] * c).clip(0)
    a[held[gone]] = 0.0
    return [i for i in held if a[i] > 0]


@contextmanager
def threads(count: int) -> Iterator[None]:
    """torch on `count` threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
