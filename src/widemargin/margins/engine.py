"""What every certified margin of wide networks has in common: rounds between a network and a proof, until they meet.

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

from widemargin.data import checks
from widemargin.types import Certificate, Measure

from .door import EPS, LOST, Door, Progress, about, check_progress, lost

LARGEST = float(np.finfo(np.float64).max)  # stands for no bound at all


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
        self.rng = np.random.default_rng(checks.seed(self.kind, seed))
        self.lower, self.upper = 0.0, math.inf
        self.dual: Any = None
        self.centre, self.estimate = np.zeros(0), math.inf  # the dual that looks best, and its value as far as known
        self.rounds = self.nodes = 0
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
            status = "time-limit" if self.late() else "stalled"
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


@contextmanager
def threads(count: int) -> Iterator[None]:
    """torch on `count` threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
