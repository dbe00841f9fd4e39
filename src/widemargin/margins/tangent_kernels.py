"""NTK margins: transports in the sup norm with statistical bounds, in the L2 norm as a kernel margin, finite networks.

    gamma_ntk = max_theta min_i E <theta(w), dp_i(w)> = min_{q in simplex} E 1[|w| < 2] |sum_i q_i dp_i(w)|,
    dp_i(w) = (y_i relu(v.x_i), y_i a 1[v.x_i > 0] x_i),    w = (a, v),  a ~ N(0, 1),  v ~ N(0, I/D)

over theta with |theta(w)| <= 1 and theta(w) = 0 for |w| >= 2. Write v = r s, |s| = 1, and c_i = q_i y_i. Then
sum_i q_i dp_i = (r u, a g) with u(s) = sum_i c_i relu(s.x_i) and g(s) = sum_i c_i 1[s.x_i > 0] x_i, so only s, uniform on
the sphere, must be sampled; the law of (|a|, r) = rho (cos t, sin t) has two dimensions and is integrated. Cut t into
bins, with S_k = E rho sin t, C_k = E rho cos t, E_k = E rho over bin k and rho < 2. For every q:

- Jensen within bins: gamma <= E_s sum_k sqrt(P_k^2 u^2 + R_k^2 |g|^2), P_k^2 = E_k E[rho sin^2 t], R_k^2 = E_k E[rho cos^2 t];
- theta = (S_k u, sgn(a) C_k g) / max(f_k, floor_k), f_k = sqrt(S_k^2 u^2 + C_k^2 |g|^2), is a transport, and
  gamma >= min_i E_s y_i [A u relu(s.x_i) + B 1[s.x_i > 0] g.x_i],  A = sum_k S_k^2 / max(f_k, floor_k), B with C_k^2.

E u relu(s.x_i) and E 1[s.x_i > 0] g.x_i are kernels in closed form, so constants times them are added and subtracted
(control variates). Samples come in pairs s, -s.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammainc, gammaln

from widemargin import kernels
from widemargin.spaces import ReLU
from widemargin.types import Certificate, Dataset, InputError, show

from . import qp, rows
from ._transport import (
    Estimate,
    Moments,
    TransportMargin,
    bernstein,
    check_confidence,
    linear_transports,
    parity_transport,
    positive_transport,
    transport_margin,
)
from .answers import solves
from .door import EPS, Door, Late, Limits, Progress, enter, twins
from .kernel_machines import Gram
from .linear_classifiers import separable

__all__ = [
    "Estimate",
    "TransportMargin",
    "linear_transports",
    "ntk",
    "ntk_kernel",
    "parity_transport",
    "positive_transport",
    "transport_margin",
]

PARTS = ("total", "outer", "inner")
BINS, NODES = 16, 64  # bins of the angle t, and Gauss-Legendre nodes in each
FLOOR = 0.1  # floor_k as a share of the mean of f_k: smooth enough to train, and costs well below a percent
PILOT = 4096
DRAWN = 300.0  # operations that take as long as to draw a number and look at it
BLOCK = 2**17  # numbers in one array
WORK = 2**26  # evaluation samples times points, and
TRAINING = 2**29  # training samples times (points + 40)^2, that the automatic choice does not exceed
SAFETY = 1e-9  # for rounding, as a share of the largest possible value
MOST, MOST_WORK = (
    10**9,
    2**32,
)  # evaluation samples, and these times (points + dimensions + bins), that a checker draws again
RANGE = 1e100  # between the sizes of the points
MOST_POINTS = 16384  # that a checker looks at in a sample
KERNEL_SHARE = 0.25  # of the time, for the margin of transport l2
FEWEST = 100  # samples that are worth an evaluation


def ntk_kernel(X: ArrayLike, Z: ArrayLike | None = None, *, part: str = "total", bias: bool = False) -> np.ndarray:
    """E <df(x; w), df(z; w)>, df = (relu(v.x), a 1[v.x > 0] x), over a ~ N(0, 1), v ~ N(0, I/D): (n, k).

        outer = |x| |z| (sin t + (pi - t) cos t) / (2 pi D),   inner = x.z (pi - t) / (2 pi),   total = outer + inner

    with t the angle between x and z. Points need not have norm 1.

    X is (n, d), Z (k, d), X where left out; `part` is "outer", "inner" or "total".

    >>> import widemargin as wm
    >>> wm.margins.ntk_kernel([[1.0, 0.0]], [[1.0, 0.0], [-1.0, 0.0]]).round(12).tolist()
    [[0.75, 0.0]]
    """
    check_part(part)
    space = ReLU(bias=bias)
    points, others = space.extend(X), None if Z is None else space.extend(Z)
    if others is not None and others.shape[1] != points.shape[1]:
        raise InputError(f"X has {points.shape[1]} columns and Z has {others.shape[1]}; give points of one space")
    return kernels.ntk(points, others, part)


@solves()
def ntk(
    data: Dataset,
    *,
    part: str = "total",
    transport: str = "sup",
    samples: int | None = None,
    confidence: float = 0.99,
    bias: bool = False,
    tol: float | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    memory: float | None = None,
    progress: Progress | None = None,
) -> Certificate:
    """The NTK margin (convention M8, or M8-l2): the largest min_i E <theta(w), dp_i(w)> over transports theta.

    transport "sup": |theta(w)| <= 1, and 0 for |w| >= 2. Weights q are found on training samples (reweighted kernel
    margins); both bounds are then evaluated on `samples` fresh pairs of directions and hold with probability at least
    `confidence`: `proved` is false and `bound` is "confidence". `samples=None` chooses the number from a pilot so that
    the gap should reach `tol` (default 0.05). The seed of the fresh sample is a hash of q and of all that was chosen
    before, so that nothing could be fitted to it.

    transport "l2": E |theta|^2 <= 1 without truncation, never smaller than "sup": the hard margin of the kernel
    `ntk_kernel`, with rigorous bounds (tol 1e-6).

    Where the time is not enough to judge all points on a sample, the bounds are 0 and that of transport l2, which is proved.

    part "outer" or "inner" uses only that layer's gradients (E-LR-4: at the network's initialisation only the outer part
    grows with the width).

    Reference: LR Assumption 1.3 (LR-9), with |theta| <= 1 (E-LR-3); bounds of Maurer and Pontil (2009), Theorem 4.

    >>> import widemargin as wm
    >>> data = wm.Dataset([[1.0, 0.0]], [1])  # one point: the square root of the kernel there, 1 / (2 D) + 1 / 2
    >>> cert = wm.margins.ntk(data, transport="l2")
    >>> abs(cert.lower - 0.75**0.5) < 1e-6, cert.verify(data).ok
    (True, True)
    """
    check_part(part)
    check_confidence(confidence)
    if not isinstance(transport, str) or transport not in ("sup", "l2"):
        raise InputError(f"transport must be 'sup' or 'l2', not {show(transport)}")
    if samples is not None and (isinstance(samples, bool) or not isinstance(samples, int | np.integer) or samples < 2):
        raise InputError(f"samples must be a whole number of at least 2, not {show(samples)}")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"seed must be a whole number that is not negative, not {show(seed)}")
    tol = tol if tol is not None else 1e-6 if transport == "l2" else 0.05
    door = enter(data, ReLU(bias=bias), tol, time_limit, progress, memory=memory)
    if transport == "l2":
        return _kernel_margin(door, part, transport, tol)
    early = replace(door.limits, deadline=door.started + KERNEL_SHARE * (door.deadline - door.started))
    kernel = _kernel_margin(replace(door, limits=early, progress=None), part, transport, 1e-6)
    if progress is not None:
        progress(time.perf_counter() - door.started, 0.0, kernel.upper, "the margin of transport l2 is no smaller")
    if kernel.status == "not-separable":
        return kernel
    above = replace(  # what is proved in any case
        kernel,
        lower=0.0,
        status="time-limit",
        reason="the time was over before all points were judged on a sample; the upper bound is that of transport l2",
    )

    small = door.size[door.size > 0].min()
    if small <= 2 / RANGE:
        raise InputError(
            f"{data.name}: the sizes of the points differ by more than {RANGE / 2:g}; rescale or remove the tiny ones"
        )
    whole = Problem(door.X, door.y, _radial(door.X.shape[1], part))
    bins = BINS if part == "total" else 1
    most = min(MOST, MOST_WORK // (whole.n + whole.D + bins))
    if samples is not None and samples > most:
        raise InputError(f"samples={samples} is too many for {whole.n} points; ask for at most {most}")
    if most < 2 or whole.n > MOST_POINTS:
        reason = f"a sample is for {MOST_POINTS} points at most; the bound is that of transport l2"
        return replace(above, status="stalled", reason=reason)
    drawn = door.limits.largest(2**25, lambda m: DRAWN * m, lambda m: 3.0 * m) // whole.D  # training samples
    if drawn < PILOT:
        return above
    rng = np.random.default_rng([seed, 0])
    q, stopped = np.asarray(kernel.dual, dtype=np.float64), ""
    control, count = (0.0, 0.0), PILOT
    chosen = _trained_points(door, q)
    problem, floor = Problem(whole.X[chosen], whole.y[chosen], whole.table), np.zeros(whole.table.shape[1])
    try:
        try:
            p = q[chosen] / q[chosen].sum()
            p, floor = _train(problem, p, PILOT, rng, tol, door.limits)
            sums = _sums(problem, p, floor, control, _directions(rng, PILOT, problem.D), door.limits)
            deviation, value = float(np.sqrt(sums.points.variance().max())), float(sums.whole.mean)
            # the weights fit the noise of their sample: the margin of the worst point falls by about that noise
            wanted = min(1.5 * deviation * math.sqrt(2 * math.log(whole.n + 1)) / max(tol * value, 1e-300), 1e9) ** 2
            effort = max(1.0, 0 if samples is None else samples * whole.n / WORK)
            room = min(effort * TRAINING / (problem.n + 40) ** 2, drawn)
            p, floor = _train(problem, p, int(np.clip(wanted, PILOT, max(room, PILOT))), rng, tol, door.limits)
            control, count = _plan(problem, p, floor, rng, tol, confidence, door.limits)
        finally:
            q = np.zeros(whole.n)
            q[chosen] = p
        # All samples that the key names must be drawn, so what the clock allows is settled before the first.
        control, rate = _evaluation_speed(whole, q, floor, control, rng, door.limits)
        count = min(count if samples is None else int(samples), most)
        allowed = 0.7 * rate * max(door.limits.left(), 0)
        if count > allowed:
            count, stopped = int(allowed), "time-limit"
            if count < FEWEST:
                return above
    except Late:
        return above
    except KeyboardInterrupt:
        stopped, count = "interrupted", PILOT
        floor = floor if floor.any() else _floor(problem, p, rng, replace(door.limits, deadline=math.inf))

    q = q / q.sum()
    extra: dict[str, Any] = {
        "part": part,
        "transport": "sup",
        "seed": int(seed),
        "bins": bins,
        "control": list(control),
        "floor": floor.tolist(),
        "samples": count,
        "confidence": float(confidence),
        "key": 2,
    }
    until = replace(door.limits, deadline=door.deadline + door.limits.step())
    try:
        try:
            sums = _sums(whole, q, floor, control, _evaluation(data, q, extra, whole.D), until)
        except KeyboardInterrupt:
            stopped, extra["samples"] = "interrupted", PILOT
            sums = _sums(whole, q, floor, control, _evaluation(data, q, extra, whole.D), until)
        lower, upper = _interval(whole, q, control, sums, confidence, until)
    except Late:
        return above
    count = extra["samples"]
    certificate = door.certificate(
        "ntk",
        (lower, upper),
        q,
        degree=1,
        convention="M8",
        stopped=stopped or "stalled",
        extra=extra,
        stats={"seed": int(seed), "samples": count, "confidence": confidence, "l2": kernel.upper},
    )
    if certificate.upper >= above.upper and certificate.lower == 0:
        return replace(
            above, status=certificate.status, reason="the sample shows no more than the margin of transport l2"
        )
    reason = f"both bounds hold with probability at least {confidence!r} over the {count} evaluation samples"
    if certificate.status != "certified":
        reason += "; more samples or a larger tol would close the gap"
    return replace(certificate, proved=False, bound="confidence", proof={"type": "samples"}, reason=reason)


def check_part(part: str) -> None:
    if not isinstance(part, str) or part not in PARTS:
        raise InputError(f"part must be 'total', 'outer' or 'inner', not {show(part)}")


# --- the L2 version --------------------------------------------------------------------------------------------------


def _kernel_margin(door: Door, part: str, transport: str, tol: float) -> Certificate:
    """The hard margin of the NTK kernel, rounding included."""
    X, D = door.X, door.X.shape[1]
    share = {"outer": 1 / (2 * D), "inner": 0.5, "total": 0.5 + 1 / (2 * D)}[part]  # k(x, x) / |x|^2
    size = door.size * math.sqrt(share)
    problem = Gram(door, lambda a, b: ntk_kernel(X[a], X[b], part=part), size, EPS * (2 * D + 25))
    stats: dict[str, Any] = {}
    twin = twins(door)
    if twin is None:
        solved = rows.solve(problem, tol, door.teller())
        q, zero, stopped, lower, upper = solved.q, "", solved.stopped, solved.lower, solved.upper
        stats = solved.stats | {"support": int((q > 0).sum())}
        nothing = lower <= 0 and upper <= 4 * problem.noise and not stopped
        if nothing and not separable(door):  # by a linear function, which is in the space
            zero = f"a mixture of the gradients vanishes up to rounding ({upper / size.max():.1g} of their size)"
        alpha = q if solved.predictor is None else solved.predictor.weights
    else:
        (q, zero), lower, stopped = twin, 0.0, ""
        upper, alpha = problem.bound(q), q
    extra = {"part": part, "transport": transport, "kernel": "ntk", "alpha": alpha.tolist()}
    return door.certificate(
        "ntk",
        (lower, upper),
        q,
        degree=1,
        convention="M8-l2" if transport == "l2" else "M8",
        stopped=stopped,
        zero=zero,
        extra=extra,
        stats=stats,
    )


# --- the law of (|a|, r) ---------------------------------------------------------------------------------------------


def _radial(D: int, part: str) -> np.ndarray:
    """Rows S, C, P, R of the module's docstring, one column per bin; (4, 1) where only one layer counts.

    The density of (|a|, r) is proportional to exp(-a^2/2) r^(D-1) exp(-D r^2/2); the integral over rho < 2 at a fixed
    angle is an incomplete gamma function, the one over the angle is a Gauss-Legendre sum.
    """
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    half = math.pi / (4 * BINS)
    t = half * (2 * np.arange(BINS)[:, None] + 1 + nodes)  # (bins, nodes)
    sin, cos = np.sin(t), np.cos(t)
    beta, shape = cos**2 + D * sin**2, D / 2 + 1
    with np.errstate(divide="ignore"):  # the gamma function underflows where there is no mass
        logarithm = (
            np.log(gammainc(shape, 2 * beta)) + gammaln(shape) + (shape - 1) * math.log(2) - shape * np.log(beta)
        )
    constant = 1.5 * math.log(2) - 0.5 * math.log(math.pi) + D / 2 * math.log(D / 2) - gammaln(D / 2)
    mass = half * weights * np.exp(logarithm + constant + (D - 1) * np.log(sin))  # of rho
    S, C = (mass * sin).sum(axis=1), (mass * cos).sum(axis=1)
    if part == "outer":
        return np.array([[S.sum()], [0.0], [S.sum()], [0.0]])
    if part == "inner":
        return np.array([[0.0], [C.sum()], [0.0], [C.sum()]])
    E = mass.sum(axis=1)
    return np.array([S, C, np.sqrt(E * (mass * sin**2).sum(axis=1)), np.sqrt(E * (mass * cos**2).sum(axis=1))])


# --- samples ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """Points in scaled units, labels, and the table of `_radial`."""

    X: np.ndarray
    y: np.ndarray
    table: np.ndarray

    @property
    def layers(self) -> tuple[bool, bool]:
        """Whether the outer and the inner weights count."""
        return bool(self.table[0].any()), bool(self.table[1].any())

    @property
    def n(self) -> int:
        return len(self.X)

    @property
    def D(self) -> int:
        return self.X.shape[1]


@dataclass
class Sums:
    """Moments over pairs of directions: of the variables of the n points, and of the one of the upper bound."""

    points: Moments  # (n,)
    whole: Moments  # ()


@dataclass(frozen=True)
class Side:
    """What one direction of each pair sees: relu(s.x_i) (N, n), 1[s.x_i > 0] (N, n), u (N,), g (N, D)."""

    relu: np.ndarray
    active: np.ndarray
    u: np.ndarray
    g: np.ndarray

    def size(self) -> np.ndarray:
        return np.einsum("ij,ij->i", self.g, self.g)  # |g|^2

    def weights(self, problem: Problem, floor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A and B."""
        S2, C2 = problem.table[:2] ** 2
        f = np.sqrt(self.u[:, None] ** 2 * S2 + self.size()[:, None] * C2)  # (N, bins)
        f = 1 / np.maximum(f, np.maximum(floor, 1e-300))
        return f @ S2, f @ C2


def _sides(problem: Problem, c: np.ndarray, directions: np.ndarray) -> tuple[Side, Side]:
    """Both directions s and -s of each pair: relu(-t) = relu(t) - t."""
    outer, inner = problem.layers
    P = directions @ problem.X.T
    relu, active, mean = P.clip(0), (P > 0).astype(np.float64), c @ problem.X
    u, g = np.zeros((2, len(P))), np.zeros((2, len(P), problem.D))
    if outer:
        u[0] = relu @ c
        u[1] = u[0] - directions @ mean
    if inner:
        g[0] = active @ (c[:, None] * problem.X)
        g[1] = mean - g[0]
    return Side(relu, active, u[0], g[0]), Side(relu - P, 1 - active, u[1], g[1])


def _directions(rng: np.random.Generator, count: int, D: int) -> Iterator[np.ndarray]:
    """Uniform unit vectors in blocks; the numbers do not depend on the size of the blocks."""
    block = max(1, 2**18 // D)
    for start in range(0, count, block):
        s = rng.standard_normal((min(block, count - start), D))
        yield s / np.linalg.norm(s, axis=1, keepdims=True)


def _pieces(problem: Problem, blocks: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    size = max(1, BLOCK // (problem.n + problem.D))
    for block in blocks:
        for start in range(0, len(block), size):
            yield block[start : start + size]


def _sums(
    problem: Problem,
    q: np.ndarray,
    floor: np.ndarray,
    control: tuple[float, float],
    blocks: Iterator[np.ndarray],
    limits: Limits,
) -> Sums:
    """Moments of the paired variables."""
    (a, b), (outer, inner) = control, problem.layers
    c, X = q * problem.y, problem.X
    P2, R2 = problem.table[2:] ** 2
    sums = Sums(Moments((problem.n,)), Moments(()))
    for directions in _pieces(problem, blocks):
        limits.check()
        z, value = np.zeros((len(directions), problem.n)), np.zeros(len(directions))
        for side in _sides(problem, c, directions):
            A, B = side.weights(problem, floor)
            size = side.size()
            if outer:
                z += side.relu * ((A - a) * side.u)[:, None]
            if inner:
                z += side.active * ((side.g * (B - b)[:, None]) @ X.T)
            f = np.sqrt(side.u[:, None] ** 2 * P2 + size[:, None] * R2).sum(axis=1)
            value += f - (a * side.u**2 + b * size) / 2
        sums.points.add(z * problem.y / 2)
        sums.whole.add(value / 2)
    return sums


def _spans(problem: Problem, q: np.ndarray, control: tuple[float, float]) -> tuple[np.ndarray, float]:
    """Lengths of intervals that contain the paired variables: of every point, and of the upper bound.

    |u| <= |g| <= G = (|sum_i c_i x_i| + largest singular value of diag(sqrt(q)) X) / 2, because g = sum_i c_i (1 + e_i) x_i / 2
    with signs e_i. A point is active in one direction of a pair only, so its variable is at most half of |x_i| times
    sum_k sqrt(S_k^2 + C_k^2) + (a + b) G, in size.
    """
    a, b = control
    spread = float(np.linalg.norm(np.sqrt(q)[:, None] * problem.X, 2))
    G = (float(np.linalg.norm((q * problem.y) @ problem.X)) + spread) / 2 * (1 + 1e-9)
    S, C, P, R = problem.table
    point = float(np.hypot(S, C).sum()) + (a + b) * G
    return np.linalg.norm(problem.X, axis=1) * point, float(np.hypot(P, R).sum()) * G + (a + b) / 2 * G**2


def _interval(
    problem: Problem, q: np.ndarray, control: tuple[float, float], sums: Sums, confidence: float, limits: Limits
) -> tuple[float, float]:
    """The two bounds, from n + 1 one-sided statements."""
    known = _known(problem, q, control, limits)
    spans, span = _spans(problem, q, control)
    width = bernstein(sums.points, spans, problem.n + 1, confidence)
    lower = float((known + sums.points.mean - width - SAFETY * spans).min())
    wide = float(bernstein(sums.whole, span, problem.n + 1, confidence))
    slack = SAFETY * (span + float(q @ np.abs(known)))
    return lower - SAFETY * abs(lower), float(q @ known) / 2 + float(sums.whole.mean) + wide + slack


def _known(problem: Problem, q: np.ndarray, control: tuple[float, float], limits: Limits) -> np.ndarray:
    """y_i E [a u relu(s.x_i) + b 1[s.x_i > 0] g.x_i], in closed form."""
    (a, b), X, some, out = control, problem.X, np.flatnonzero(q), np.zeros(problem.n)
    c = (q * problem.y)[some]
    for block in limits.blocks(problem.n if a or b else 0, len(some), 2**19):
        for factor, part in ((a, "outer"), (b, "inner")):
            if factor:
                out[block] += factor * (ntk_kernel(X[block], X[some], part=part) @ c)
    return np.asarray(problem.y * out)


def _evaluation_speed(
    problem: Problem,
    q: np.ndarray,
    floor: np.ndarray,
    control: tuple[float, float],
    rng: np.random.Generator,
    limits: Limits,
) -> tuple[tuple[float, float], float]:
    """The control variates that there is time for, and how many samples a second the evaluation takes after them."""
    if math.isinf(limits.deadline):
        return control, math.inf
    some, part = np.flatnonzero(q), min(problem.n, 50)
    began = time.perf_counter()
    _known(Problem(problem.X[:part], problem.y[:part], problem.table), np.full(part, 1.0), control, limits)
    pace = (time.perf_counter() - began) / part**2
    if pace * problem.n * len(some) > 0.2 * limits.left():
        control = (0.0, 0.0)
    count = int(np.clip(BLOCK // problem.n, 8, 512))
    began = time.perf_counter()
    _sums(problem, q, floor, control, _directions(rng, count, problem.D), limits)
    return control, count / max(time.perf_counter() - began, 1e-6)


def _evaluation(data: Dataset, q: np.ndarray, extra: dict[str, Any], D: int) -> Iterator[np.ndarray]:
    """The evaluation sample. Its seed is a hash of all that the bounds depend on: nothing is chosen after a look at it."""
    names = ("part", "seed", "bins", "control", "floor", "samples", "confidence")
    words = ["ntk-2", data.sha256(), q.tolist(), *(extra[name] for name in names)]
    key = hashlib.sha256(json.dumps(words, separators=(",", ":")).encode()).digest()
    return _directions(np.random.default_rng(int.from_bytes(key, "big")), extra["samples"], D)


# --- weights and sample sizes ----------------------------------------------------------------------------------------


def _trained_points(door: Door, q: np.ndarray) -> np.ndarray:
    """The points whose weights are trained: all, or those with the largest weights that eigenvalues can be had of."""
    n = len(q)
    most = door.limits.largest(n, lambda k: 25.0 * k**3, lambda k: 12.0 * k * k)
    if most == n:
        return np.arange(n)
    return np.sort(np.argsort(-q, kind="stable")[: max(most, 1)])


def _floor(problem: Problem, q: np.ndarray, rng: np.random.Generator, limits: Limits) -> np.ndarray:
    S2, C2 = problem.table[:2] ** 2
    total, count = np.zeros(problem.table.shape[1]), 0
    for directions in _pieces(problem, _directions(rng, PILOT, problem.D)):
        limits.check()
        for side in _sides(problem, q * problem.y, directions):
            total += np.sqrt(side.u[:, None] ** 2 * S2 + side.size()[:, None] * C2).sum(axis=0)
            count += len(side.u)
    return FLOOR * total / count


def _train(
    problem: Problem, q: np.ndarray, count: int, rng: np.random.Generator, tol: float, limits: Limits
) -> tuple[np.ndarray, np.ndarray]:
    """Weights q near the minimum of E sum_k huber(f_k), by iteratively reweighted least squares, and the floor.

    f <= f^2 / (2 f0) + f0 / 2 turns the problem at q0 into a kernel margin with the kernel E [A relu relu' + B 1 1' x.x'],
    A and B at q0. Its samples are centred by the closed-form kernels, as in the evaluation.
    """
    X, y, n = problem.X, problem.y, problem.n
    directions = np.concatenate(list(_directions(rng, count, problem.D)))
    inner, outer, gram = ntk_kernel(X, part="inner"), ntk_kernel(X, part="outer"), X @ X.T
    floor = _floor(problem, q, rng, limits)
    best, best_q = -math.inf, q
    for _ in range(12):
        a, b = _mean_weights(problem, q, floor, directions[:PILOT])
        R, M = np.zeros((n, n)), np.zeros((n, n))
        for piece in _pieces(problem, iter([directions])):
            for side in _sides(problem, q * y, piece):
                A, B = side.weights(problem, floor)
                if problem.layers[0]:
                    R += side.relu.T @ (side.relu * (A - a)[:, None])
                if problem.layers[1]:
                    M += side.active.T @ (side.active * (B - b)[:, None])
            if limits.late():
                return best_q, floor
        K = (R + gram * M) / (2 * count) + a * outer + b * inner
        K = y[:, None] * y * (K + K.T) / 2
        h = K @ q
        value = float(q @ h)
        reached = float(h.min()) / value if value > 0 else -math.inf
        if reached > best:
            best, best_q = reached, q
        if reached >= 1 - tol / 20:
            break
        q = qp.solve(_nonnegative(K), 1e-6, limits.deadline).q
    return best_q, floor


def _nonnegative(K: np.ndarray) -> np.ndarray:
    """K without its negative eigenvalues, which the centring may leave."""
    values, vectors = np.linalg.eigh(K)
    if values[0] >= 0:
        return K
    K = (vectors * values.clip(0)) @ vectors.T
    return np.asarray((K + K.T) / 2)


def _mean_weights(problem: Problem, q: np.ndarray, floor: np.ndarray, directions: np.ndarray) -> tuple[float, float]:
    """Averages of A weighted by u^2 and of B weighted by |g|^2: the control variates."""
    sums = np.zeros(4)
    for piece in _pieces(problem, iter([directions])):
        for side in _sides(problem, q * problem.y, piece):
            A, B = side.weights(problem, floor)
            u2, size = side.u**2, side.size()
            sums += [A @ u2, u2.sum(), B @ size, size.sum()]
    return float(sums[0] / max(sums[1], 1e-300)), float(sums[2] / max(sums[3], 1e-300))


def _plan(
    problem: Problem,
    q: np.ndarray,
    floor: np.ndarray,
    rng: np.random.Generator,
    tol: float,
    confidence: float,
    limits: Limits,
) -> tuple[tuple[float, float], int]:
    """Control variates and the number of evaluation samples, from a pilot.

    The lower bound should lose at most tol / 2: (sqrt(2 V L) + sqrt(2 V ln n)) / sqrt(N) + 7 span L / (3 N), the second
    root for the minimum over the points.
    """
    pilot = np.concatenate(list(_directions(rng, PILOT, problem.D)))
    a, b = _mean_weights(problem, q, floor, pilot)
    L = math.log(2 * (problem.n + 1) / (1 - confidence))
    best: tuple[float, tuple[float, float]] = (math.inf, (0.0, 0.0))
    for control in dict.fromkeys([(0.0, 0.0), (0.0, b), (a, 0.0), (a, b)]):
        sums = _sums(problem, q, floor, control, iter([pilot]), limits)
        value = (float(q @ _known(problem, q, control, limits)) / 2 + float(sums.whole.mean)) * tol / 2
        root = math.sqrt(float(sums.points.variance().max())) * (
            math.sqrt(2 * L) + math.sqrt(2 * math.log(problem.n + 1))
        )
        linear = 7 / 3 * L * float(_spans(problem, q, control)[0].max())
        # the positive x = sqrt(N) with root / x + linear / x^2 = value
        wanted = min((root + math.sqrt(root**2 + 4 * max(value, 0) * linear)) / max(2 * value, 1e-300), 1e9) ** 2
        best = min(best, (wanted, control))
    return best[1], int(max(min(best[0], WORK / problem.n), PILOT))
