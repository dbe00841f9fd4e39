"""How the largest margin grows with the number of neurons."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from widemargin.dataset import takes_data
from widemargin.errors import brief, show
from widemargin.pricing.points import reduce_rank
from widemargin.spaces import ReLU
from widemargin.types import F1_CONVERSIONS, Certificate, Dataset, InputError, Measure

from . import programs
from .door import Door, Limits, Progress, check_number, enter, open_limits
from .engine import prune, threads
from .wide_networks import f1, network_margins

__all__ = ["WidthCurve", "prune", "width_margin_curve"]

HALF = F1_CONVERSIONS["M2"]  # of a margin in M1
STARTS = 64  # random networks per width
STEPS = 200  # of gradient ascent from each
POLISHED = 3  # of these go to the cone program
FLIPS = 40  # changes of one sign in a pattern that are tried
STEP_WORK, CONE_WORK = 20, 5000  # operations for each entry of X and neuron: a step of one network, a cone program


@dataclass(frozen=True)
class WidthCurve:
    """Margins of networks with at most m neurons, in convention M2: min_i y_i f(x_i) / ||all parameters||^2.

    `lower[j]` is the margin of `networks[j]` (None for 0), which has at most `widths[j]` neurons. Where
    `widths[j] >= saturated` it is within the gap of `certificate` of the best; below, it is the best that a search
    found, a lower bound only. `upper` is proved for every width: half of the F1 margin's upper bound.
    """

    widths: tuple[int, ...]
    lower: np.ndarray  # (k,) nondecreasing in the width
    upper: float
    saturated: int  # the number of neurons of the F1 network, at most n
    networks: tuple[Measure | None, ...]
    certificate: Certificate

    __repr__ = brief

    def __str__(self) -> str:
        values = ", ".join(f"{m}: {v:.6g}" for m, v in zip(self.widths, self.lower))
        return f"margins (M2) by width {values}; at most {self.upper:.6g} at any width"


@takes_data()
def width_margin_curve(
    data: Dataset,
    widths: Sequence[int],
    *,
    bias: bool = False,
    tol: float = 1e-3,
    time_limit: float = 60.0,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress | None = None,
) -> WidthCurve:
    """The best margins found with at most m ReLU neurons, for each m in `widths`, under a bound proved for all m.

        gamma^m = max_{||(W, a)|| <= 1} min_i y_i sum_{j <= m} a_j relu(w_j . x_i)

    grows with m and equals half of the F1 margin from m = n on (a measure on n neurons is optimal). From as many
    neurons on as the F1 solver's network has, that network is the answer. Below, the problem is not convex: local
    searches from parts of that network, from the best narrower network and from random ones give lower bounds. Each
    search alternates between the activation patterns and the cone program of the best weights for them.

    `progress(seconds, lower, upper, message)` is that of `f1`, in M1, and then called for every width. Where Ctrl-C ends `f1`,
    nothing is searched for fewer neurons.

    Reference: Wei, Lee, Liu and Ma (2019), Theorems 3.2 and 3.3.

    The curve has `lower` (k,) for k widths, in convention M2.

    >>> import widemargin as wm
    >>> xor = wm.Dataset([[1, 1], [-1, -1], [1, -1], [-1, 1]], [1, 1, -1, -1])
    >>> curve = wm.margins.width_margin_curve(xor, [1, 4], time_limit=10.0)
    >>> float(curve.lower[0]), bool(abs(curve.lower[1] - 2**0.5 / 8) < 1e-3)  # one neuron cannot; four can
    (0.0, True)
    """
    if np.ndim(widths) != 1 and not isinstance(widths, range):
        raise InputError(f"widths must be a list of numbers of neurons, not {show(widths)}")
    for m in widths:
        if isinstance(m, bool) or not isinstance(m, int | np.integer) or m < 1:
            raise InputError(f"widths must be positive integers, not {show(m)}")
    if len(widths) == 0:
        raise InputError("widths is empty; give at least one number of neurons")
    most = check_number("time_limit", time_limit, "be a positive number of seconds", lambda seconds: seconds > 0)
    time_limit = min(most, 1e18)
    started = time.perf_counter()
    certificate = f1(data, bias=bias, tol=tol, time_limit=time_limit / 2, seed=seed, device=device, progress=progress)
    wide = None if certificate.primal is None else prune(certificate.primal, data)
    order = sorted({int(m) for m in widths})
    saturated = 1 if wide is None else len(wide.mass)
    narrow = [m for m in order if m < saturated]
    best: tuple[float, Measure | None] = (0.0, None)
    reached = dict.fromkeys(narrow, best)
    door = enter(data, ReLU(bias=bias), 0.5, None)

    def reached_by(measure: Measure | None) -> float:
        return max(HALF * float(network_margins(door, measure, slice(None)).min()), 0.0)

    if wide is not None and narrow and certificate.status != "interrupted":
        search = _Search(door, wide, seed, open_limits(time_limit, None, started))
        for j, m in enumerate(narrow):
            now = time.perf_counter()
            with threads(1):
                measure = search.run(m, best[1], now + max(search.limits.left(), 0.0) / (len(narrow) - j))
            value = reached_by(measure)
            if value > best[0]:
                best = value, measure
            reached[m] = best
            if progress is not None:
                progress(time.perf_counter() - started, best[0] / HALF, certificate.upper, f"width {m}")
    if wide is not None:
        top = (min(reached_by(wide), certificate.bounds("M2")[1]), wide)
        best = max(best, top, key=lambda pair: pair[0])
    for m in order:
        reached.setdefault(m, best)
    pairs = [reached[int(m)] for m in widths]
    upper = certificate.bounds("M2")[1]
    lower = np.array([min(value, upper) for value, _ in pairs])
    return WidthCurve(
        tuple(int(m) for m in widths), lower, upper, saturated, tuple(measure for _, measure in pairs), certificate
    )


class _Search:
    """Local searches over networks with few neurons, on scaled points in a basis of their span."""

    def __init__(self, door: Door, wide: Measure, seed: int, limits: Limits):
        self.limits = limits
        self.X, self.basis = reduce_rank(door.X / door.size.max())
        self.y, self.bias, self.rng = door.y, door.bias, np.random.default_rng(seed)
        self.wide = wide.theta @ self.basis * np.abs(wide.mass)[:, None]  # (m, r)
        self.wide_signs = np.sign(wide.mass)

    def run(self, m: int, narrower: Measure | None, deadline: float) -> Measure | None:
        """The best network found with at most m neurons."""
        if m == 1 and len(set(self.y)) == 2:
            return None  # one neuron has one sign
        starts = []
        heavy = np.argsort(-np.linalg.norm(self.wide, axis=1))
        starts.append((self.wide[heavy[:m]], self.wide_signs[heavy[:m]]))
        if narrower is not None and len(narrower.mass) < m:
            W = narrower.theta @ self.basis * np.abs(narrower.mass)[:, None]
            more = heavy[self.rng.permutation(len(heavy))[: m - len(W)]]
            starts.append((np.vstack([W, self.wide[more]]), np.append(np.sign(narrower.mass), self.wide_signs[more])))
        if self.affords(STEP_WORK * STARTS * m, deadline):
            starts += self.random(m, deadline)
        best, keep = 0.0, None
        for j, (W, s) in enumerate(starts):
            now = time.perf_counter()
            if now > deadline and j:
                break
            value, W = self.polish(W, s, now + (deadline - now) / (len(starts) - j))
            if value > best:
                best, keep = value, (W, s)
        if keep is None:
            return None
        theta = keep[0] @ self.basis.T
        return Measure(theta, keep[1], "relu", self.bias).normalized()

    def affords(self, work: float, deadline: float) -> bool:
        """Whether there is time until `deadline` for a call that takes so many operations for each entry of X."""
        limits = replace(self.limits, deadline=deadline)
        return not limits.late() and limits.affords(work * self.X.size)

    def margin(self, W: np.ndarray, s: np.ndarray) -> float:
        size = np.linalg.norm(W, axis=1).sum()
        return float((self.y * ((self.X @ W.T).clip(0) @ s)).min() / size) if size > 0 else 0.0

    def random(self, m: int, deadline: float) -> list[tuple[np.ndarray, np.ndarray]]:
        """Gradient ascent of a softened margin from random networks of m neurons; the best few."""
        W = torch.as_tensor(self.rng.standard_normal((STARTS, m, self.X.shape[1])))
        s = np.sign(self.rng.standard_normal((STARTS, m)))
        if m > 1:
            s[:, 0], s[:, 1] = 1.0, -1.0
        signs, X, y = torch.as_tensor(s), torch.as_tensor(self.X), torch.as_tensor(self.y.copy())
        W.requires_grad_(True)
        optimiser = torch.optim.Adam([W], lr=0.05)
        for step in range(STEPS):
            if time.perf_counter() > deadline:
                break
            sharp = 10.0 * 30.0 ** (step / STEPS)
            f = torch.einsum("rmn,rm->rn", (W @ X.T).clamp_min(0), signs)
            margins = y * f / W.norm(dim=2).sum(1, keepdim=True).clamp_min(1e-12)
            loss = torch.logsumexp(-sharp * margins, dim=1).sum() / sharp
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        networks = W.detach().numpy()
        values = np.array([self.margin(w, t) for w, t in zip(networks, s)])
        return [(networks[j], s[j]) for j in np.argsort(-values)[:POLISHED]]

    def polish(self, W: np.ndarray, s: np.ndarray, deadline: float) -> tuple[float, np.ndarray]:
        """Best weights for the patterns of W, then for patterns with one sign changed where a point is on the edge."""
        best, patterns = self.margin(W, s), W @ self.X.T > 0
        value, new = self.weights(patterns, s, deadline)
        if value > best:
            best, W = value, new
        tries = 0
        while tries < FLIPS and time.perf_counter() < deadline:
            size = np.linalg.norm(W, axis=1, keepdims=True) * np.linalg.norm(self.X, axis=1)
            close = np.argwhere(np.abs(W @ self.X.T) <= 1e-6 * size)
            improved = False
            for k, i in close[self.rng.permutation(len(close))]:
                tries += 1
                flipped = patterns.copy()
                flipped[k, i] ^= True
                value, new = self.weights(flipped, s, deadline)
                if value > best * (1 + 1e-9) and value > 0:
                    best, W, patterns, improved = value, new, flipped, True
                    break
                if tries >= FLIPS or time.perf_counter() > deadline:
                    break
            if not improved:
                break
        return best, W

    def weights(self, patterns: np.ndarray, s: np.ndarray, deadline: float) -> tuple[float, np.ndarray]:
        """The best weights of neurons with these patterns (m, n), and their margin; none where there is no time for them."""
        if not self.affords(CONE_WORK * len(patterns), deadline):
            return 0.0, np.zeros((len(patterns), self.X.shape[1]))
        left = deadline - time.perf_counter()
        solution = programs.solve_patterns(self.X, self.y, patterns, s, tol=1e-9, time_limit=left)
        return (self.margin(solution.W, s), solution.W) if solution.ok else (0.0, solution.W)
