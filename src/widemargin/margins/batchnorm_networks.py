"""The margin of BN's Assumption 1.2: what the two outer layers of a batch-normalised network can reach at its first weights."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from widemargin.data import dyadic
from widemargin.spaces import ReLU, as_numbers
from widemargin.types import Certificate, Dataset, InputError, show

from . import rows
from .answers import solves
from .door import (
    EPS,
    EXACT,
    NOTHING,
    Door,
    Late,
    Progress,
    bounds_factor,
    check_count,
    check_number,
    check_seed,
    enter,
    product,
    twins,
)
from .engine import LARGEST
from .qp import Progress as Steps

BLOCK = 512  # neurons whose inner weights are in memory at a time
STORED = 200_000  # numbers of moved inner weights that a certificate keeps
BLOCK_SIZE = 2**20  # preactivations in memory at a time
MANY = 2**26  # points times neurons, or numbers of a Gram matrix, from which a shorter way is taken
AT_ONCE = 10_000  # points times neurons that are worked through whatever the clock says
SMALLEST_FEATURE = 1e-120  # the squares of smaller ones, and their errors, are lost
SMALLEST, LARGEST_MOVE, TINY = 1e-100, 1e100, 1e-290  # of moves in scaled units: below the first none is looked for
CHECKED = 2.0**-180  # a checker encloses preactivations with 192 bits after the point, in units of their usual size
UNDERFLOW = 1e-140  # size of a point whose square is lost
DEAD = 0.25  # a neuron whose N(v) is not known to this relative accuracy counts as 0 below, and as anything above


@solves()
def batchnorm(
    data: Dataset,
    width: int = 1024,
    *,
    part: str = "sum",
    eps: float = 0.0,
    displacement: float = 0.0,
    seed: int = 0,
    trial: int = 0,
    V0: ArrayLike | None = None,
    a0: ArrayLike | None = None,
    moves: int = 8,
    tol: float = 1e-3,
    time_limit: float | None = None,
    memory: float | None = None,
    progress: Progress | None = None,
) -> Certificate:
    """gamma = gamma_a + gamma_c of BN Assumption 1.2 (convention M9), each part a hard margin (`part`: "a", "c" or "sum").

        gamma_a = max_{||u|| <= 1} min_i y_i sum_j u_j     relu(<omega_j, xbar_i>) / sqrt(m) = min_q ||Z_a' q|| / sqrt(m)
        gamma_c = max_{||u|| <= 1} min_i y_i sum_j u_j a_j relu(<omega_j, xbar_i>) / sqrt(m) = min_q ||Z_c' q|| / sqrt(m)

    xbar = x - mean, omega_j = v_j / N(v_j), N(v)^2 = v' Sigma v + eps with the covariance Sigma of the data; a neuron with
    N(v) = 0 gives 0. V ~ N(0, 1/d) and a ~ N(0, 1/m) are those of trial `trial` of `flows.nets.BatchNorm` with the same
    seed, or V0 (m, d) and a0 (m,).

    With `displacement` = Delta > 0 the omega_j are free within sqrt(mean_j ||omega_j - v_j / N(v_j)||^2) <= Delta, the same for
    both parts. `lower` is found by up to `moves` steps of ascent. `upper` is proved: relu is 1-Lipschitz, so under any weights
    q gamma_a rises by at most Delta sum_i q_i ||xbar_i|| (or less, `_displacement_cost`), gamma_c by max_j |a_j| times that.

    `extra["gamma_a"]` and `extra["gamma_c"]` hold the bounds of the parts, `extra["eps_N"]` is max_j 1/N(v_j) (BN-5). The same
    for c X as for X if eps = 0, and for X + b always.

    Reference: BN Assumption 1.2 with the factor sqrt(m) and the labels restored (BN-1, BN-5 to BN-7, E-BN-1).

    `width` is m where V0 is not given.

    >>> import widemargin as wm
    >>> data = wm.Dataset([[1.0], [-1.0]], [1, -1])  # Z_a = Z_c = diag(1, -1): both parts are 1/2
    >>> cert = wm.margins.batchnorm(data, V0=[[1.0], [-1.0]], a0=[1.0, 1.0])
    >>> abs(cert.lower - 1) < 1e-3, cert.verify(data).ok
    (True, True)
    """
    if not isinstance(part, str) or part not in PARTS:
        raise InputError(f"part must be one of {', '.join(PARTS)}, not {show(part)}")
    check_count("batchnorm: moves", moves, 0)
    for name, value in (("eps", eps), ("displacement", displacement)):
        check_number(name, value, "be zero or a positive number", lambda size: 0 <= size < math.inf)
    door = enter(data, ReLU(bias=False), tol, time_limit, progress, memory=memory)
    layer = _inner_layer(data.d, width, seed, trial, V0, a0)
    m, n = len(layer.a), data.n
    names = ("a", "c") if part == "sum" else (part,)
    scales = {"a": np.full(m, 1 / math.sqrt(m)), "c": layer.a / math.sqrt(m)}
    radius = _radius(door, displacement, m)
    conflict = twins(door, origin=False)
    features = _normalize(door, layer, eps)
    if conflict is None:
        conflict = _at_the_mean(door, features)

    def solve(features: _Features, most: int) -> dict[str, _Part]:
        parts: dict[str, _Part] = {}
        for name in names:
            if parts and parts[names[0]].stopped == "interrupted":  # the other part is not begun
                features = replace(features, unknown=True)
            parts[name] = _solve(features, scales[name], tol, conflict, most)
        return parts

    size = _in_play(door, m)
    parts = solve(features, size)
    moved, frozen = features, parts
    if radius > SMALLEST and conflict is None and not features.unknown and size == n and layer.fits(door):
        parts, moved = _ascend(features, parts, scales, radius, moves, lambda there: solve(there, size))
    extra: dict[str, Any] = {
        "part": part,
        "eps": float(eps),
        "displacement": float(displacement),
        "width": m,
    } | layer.record()
    lower, upper = 0.0, 0.0
    for name, solved in parts.items():
        dual = frozen[name].q  # the upper bound compares with the features before any move
        above, below = frozen[name].upper, max(solved.lower, 0.0)
        if displacement > 0:
            above += _displacement_cost(features, scales[name], dual, radius)
        if conflict is not None:
            above = 0.0  # wherever the inner weights move: equal points have equal features, and the mean has none
        below = min(below, above)
        extra[f"gamma_{name}"] = {"lower": below, "upper": above}
        extra[f"weights_{name}"] = solved.u.tolist()
        if name != names[0]:  # that of the first is the certificate's own
            extra[f"dual_{name}"] = dual.tolist()
        lower, upper = lower + below, upper + above
    lower, upper = lower * (1 - 2 * EPS), upper * (1 + 2 * EPS)  # of sums of two, as a checker sees them
    move = moved.move
    with np.errstate(divide="ignore", over="ignore"):
        extra["eps_N"] = min(float(np.ldexp((1 / features.N).max(), -door.shift)), LARGEST)
    if move is not None:
        extra["move"] = np.ldexp(move, -door.shift).tolist() if move.size <= STORED else "omitted"
    zero = "" if conflict is None else conflict[1].replace("the origin", "the mean of the points")
    stopped = next((solved.stopped for solved in parts.values() if solved.stopped), "")
    if not zero and lower <= 0 and upper <= NOTHING * math.sqrt(n) * features.usual and not stopped:
        zero = f"the features are not separable up to rounding (margin at most {upper:.1g})"
    if displacement > 0 and not stopped:
        # a local search: nothing closes the gap
        stopped = "time-limit" if time.perf_counter() > door.deadline else "stalled"
    certificate = door.certificate(
        "bn",
        (lower, upper),
        frozen[names[0]].q,
        degree=0,
        convention="M9",
        stopped=stopped,
        zero=zero,
        extra=extra,
        stats={"seed": None if layer.V is not None else seed}
        | {f"method_{name}": solved.method for name, solved in parts.items()},
    )
    if displacement > 0 and certificate.status == "stalled":
        return replace(certificate, reason="the moved inner weights come from a local search; both bounds hold")
    return certificate


PARTS = ("a", "c", "sum")


# --- inner weights --------------------------------------------------------------------------------------------------


@dataclass
class _Layer:
    """Inner weights as given (V), or drawn again for every pass; outer weights a."""

    d: int
    a: np.ndarray  # (m,)
    V: np.ndarray | None
    seed: int = 0
    trial: int = 0
    sha256: str = ""
    held: np.ndarray | None = None

    def fits(self, door: Door) -> bool:
        """Whether all inner weights may be in memory at once."""
        return 8 * 8 * self.d * len(self.a) <= door.limits.memory

    def keep(self) -> None:
        """Hold the drawn weights in memory from now on."""
        self.held = np.concatenate([V for _, V in self.blocks()])

    def blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """V in blocks of rows; fills in the hash of a and V."""
        if self.held is not None:
            for start in range(0, len(self.a), BLOCK):
                yield slice(start, start + BLOCK), self.held[start : start + BLOCK]
            return
        m, state = len(self.a), hashlib.sha256(self.a.astype("<f8").tobytes())
        rng = np.random.default_rng([self.seed, self.trial])
        rng.standard_normal(m)  # a
        for start in range(0, m, BLOCK):
            rows = slice(start, min(start + BLOCK, m))
            if self.V is None:
                V = rng.standard_normal((rows.stop - start, self.d)) / np.sqrt(self.d)
            else:
                V = self.V[rows]
            state.update(V.astype("<f8").tobytes())
            yield rows, V
        self.sha256 = state.hexdigest()

    def record(self) -> dict[str, Any]:
        """What a certificate says about these weights: how they are drawn, or the numbers."""
        if self.V is None:
            return {"seed": self.seed, "trial": self.trial, "weights_sha256": self.sha256}
        return {"directions": self.V.tolist(), "a": self.a.tolist(), "weights_sha256": self.sha256}


def initial_weights(width: int, d: int, seed: int = 0, trial: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """V (m, d) with entries N(0, 1/d) and a (m,) with entries N(0, 1/m) (BN-2), as `flows.nets.BatchNorm` draws them."""
    layer = _inner_layer(d, width, seed, trial, None, None)
    return np.concatenate([V for _, V in layer.blocks()]), layer.a


def _inner_layer(d: int, width: int, seed: int, trial: int, V0: ArrayLike | None, a0: ArrayLike | None) -> _Layer:
    if V0 is None:
        for name, value, least in (("width", width, 1), ("trial", trial, 0)):
            check_count(f"batchnorm: {name}", value, least)
        check_seed("batchnorm", seed)
        if a0 is not None:
            raise InputError("batchnorm: a0 needs V0, the inner weights that belong to it")
        rng = np.random.default_rng([seed, trial])
        return _Layer(d, rng.standard_normal(width) / np.sqrt(width), None, int(seed), int(trial))
    V = np.array(as_numbers("batchnorm: V0", V0))
    a = None if a0 is None else np.array(as_numbers("batchnorm: a0", a0))
    if V.ndim != 2 or V.shape[1] != d or len(V) == 0:
        raise InputError(f"batchnorm: V0 must have shape (m, {d}), one row per neuron, not {V.shape}")
    if a is None:
        a = np.random.default_rng([seed, trial]).standard_normal(len(V)) / np.sqrt(len(V))
    if a.shape != (len(V),):
        raise InputError(f"batchnorm: a0 must have shape ({len(V)},), one number per neuron, not {a.shape}")
    if not (np.isfinite(V).all() and np.isfinite(a).all()) or max(np.abs(V).max(), np.abs(a).max()) > 1e100:
        raise InputError("batchnorm: V0 and a0 must be finite and at most 1e100; rescale them")
    return _Layer(d, a, V)


@dataclass(frozen=True)
class _Features:
    """Preactivations T_ij = <v_j / N_j + move_j, xbar_i>, off by error s_i reach_j + rho |<v_j / N_j, xbar_i>| at most; 0 in dead
    columns, where |truth| <= sqrt(n). `unknown`: there was no time to find N_j."""

    door: Door
    layer: _Layer
    Xbar: np.ndarray  # (n, d)
    N: np.ndarray  # (m,)
    reach: np.ndarray  # (m,), ||v_j|| / N_j
    rho: float
    error: float
    s: np.ndarray  # (n,), sizes of points that the errors refer to
    dead: np.ndarray  # (m,) bool
    unknown: bool = False
    usual: float = 1.0  # size of preactivations: below 1 beside a large eps
    move: np.ndarray | None = None  # (m, d)

    def rows(self, index: Any) -> tuple[np.ndarray, np.ndarray]:
        """T of some points, and the same without the move; (k, m)."""
        X = self.Xbar[index]
        T = np.empty((len(X), len(self.N)))
        alive = ~self.dead & (self.N > 0)
        for block, V in self.layer.blocks():
            on = alive[block]
            T[:, block] = np.where(on, (X @ V.T) / np.where(on, self.N[block], 1.0), 0.0)
        return (T, T) if self.move is None else (T + X @ self.move.T, T)

    def blur(self, index: Any, T: np.ndarray, still: np.ndarray, scale: np.ndarray, known: bool) -> np.ndarray:
        """For each point, at least the length of the errors of its row of features; `known`: dead neurons have no weight."""
        reach = self.reach if self.move is None else self.reach + np.linalg.norm(self.move, axis=1)
        weights, lengths = np.abs(scale), np.sqrt((T * T) @ scale**2)
        if self.move is not None:
            lengths = lengths + np.sqrt((still * still) @ scale**2)
        dead = 0.0 if known else math.sqrt(len(self.s)) * float(np.linalg.norm(weights[self.dead]))
        return np.asarray(
            self.error * self.s[index] * float(np.linalg.norm(weights * reach)) + self.rho * lengths + dead
        )


def _radius(door: Door, displacement: float, m: int) -> float:
    """Of the ball of moves in Frobenius norm, in scaled units."""
    with np.errstate(over="ignore", under="ignore"):
        radius = float(np.ldexp(displacement, door.shift)) * math.sqrt(m)
    if radius > LARGEST_MOVE or (displacement > 0 and radius < TINY):
        raise InputError(f"batchnorm: displacement={displacement:g} is out of proportion to these points; leave it out")
    return radius


def _at_the_mean(door: Door, features: _Features) -> tuple[np.ndarray, str] | None:
    """A point that is the mean of all, exactly: all its features are 0."""
    near = np.flatnonzero(np.linalg.norm(features.Xbar, axis=1) <= 4 * features.error * features.s)
    if len(near) == 0 or door.X.size > EXACT:
        return None
    X = [[Fraction(v) for v in row] for row in door.data.X.tolist()]
    total = [sum(column) for column in zip(*X)]
    for i in near:
        if all(len(X) * v == t for v, t in zip(X[i], total)):
            return np.eye(1, len(X), int(i))[0], f"point {i} is the mean of the points, where every function vanishes"
    return None


def _normalize(door: Door, layer: _Layer, eps: float) -> _Features:
    """N_j = sqrt(v_j' Sigma v_j + eps) from the points themselves, or where these are many from the factor R of Xbar = Q R."""
    (n, d), m, limits = door.X.shape, len(layer.a), door.limits
    first = door.X - door.X.mean(axis=0)
    Xbar = first - first.mean(axis=0)  # twice: what is lost does not depend on where the origin is
    size = np.linalg.norm(first, axis=1)
    s = size + size.mean() + UNDERFLOW
    error = EPS * (n + d + 16)  # |computed <v, xbar_i> - truth| <= error s_i ||v||
    with np.errstate(over="ignore"):
        shifted = float(np.ldexp(eps, -2 * door.shift))
    spread = float(np.abs(Xbar).max())
    if math.isinf(shifted) or math.sqrt(shifted) * SMALLEST_FEATURE > spread > 0:
        raise InputError(f"batchnorm: eps={eps:g} is too large for these points; divide both by a constant")
    rows, lost = Xbar, 0.0
    N, length = np.zeros(m), np.zeros(m)
    if layer.fits(door):
        layer.keep()
    else:
        for _ in layer.blocks():  # for the hash
            pass
    unknown = False
    try:
        if n > 4 * d and n * m > MANY:
            rows, lost = np.zeros((0, d)), 16 * EPS * (n + d) * d  # Higham (2002), Theorem 19.4
            for block in limits.blocks(n, d):
                rows = np.linalg.qr(np.vstack([rows, Xbar[block]]), mode="r")
        for block, V in layer.blocks():
            limits.check()
            step = max(1, BLOCK_SIZE // len(V))
            squares = np.zeros(len(V))
            for start in range(0, len(rows), step):
                P = rows[start : start + step] @ V.T  # (k, block)
                squares += np.einsum("ij,ij->j", P, P)
            N[block] = np.sqrt(squares / n + shifted)
            length[block] = np.linalg.norm(V, axis=1)
    except Late:
        unknown = n * m > AT_ONCE
        if not unknown:
            return _normalize(replace(door, limits=replace(limits, deadline=math.inf)), layer, eps)
    # N is 1-Lipschitz in P / sqrt(n)
    off = (error + lost) * length * float(np.linalg.norm(s)) / math.sqrt(n) + EPS * (n + 8) * N
    dead = ((off > DEAD * N) & (length > 0)) | unknown
    alive = ~dead & (N > 0)
    reach = np.zeros(m)
    reach[alive] = length[alive] / N[alive]
    rho = 2 * float((off[alive] / N[alive]).max(initial=0.0)) + 4 * EPS
    usual = min(1.0, spread / math.sqrt(shifted)) if shifted > 0 else 1.0
    return _Features(door, layer, Xbar, N, reach, rho, 2 * error, s, dead, unknown, usual)


# --- the two hard margins -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """Outer weights u and dual weights q of one part, and its bounds, rounding included."""

    u: np.ndarray  # (m,)
    q: np.ndarray  # (n,)
    lower: float
    upper: float
    method: str = ""
    stopped: str = ""


class _Margin(rows.Features):
    """gamma_a or gamma_c of given features."""

    def __init__(self, features: _Features, scale: np.ndarray, most: int):
        door = features.door
        n, m = len(door.y), len(scale)
        super().__init__(door, self.signed, m, labels=door.y, size=np.full(n, math.sqrt(n) * features.usual))
        self.inner, self.scale, self.limit = features, scale, most

    def signed(self, index: Any) -> np.ndarray:
        T, still = self.inner.rows(index)
        self.seen = (T, still)
        return np.asarray(T.clip(0) * self.door.y[index, None] * self.scale)  # (k, m)

    def solve(self, rows: np.ndarray, tol: float, tell: Any) -> tuple[Any, Steps]:
        u, steps = super().solve(rows, tol, tell)
        return np.where(self.Z.any(axis=0), u, 0.0), steps

    def upper(self, rows: np.ndarray, q: np.ndarray) -> float:
        """At least ||Z' q|| / sum q, rounding added."""
        T, still = self.inner.rows(rows)
        size = np.linalg.norm(self.Z, axis=1) * (1 + 1e-12)
        upper = bounds_factor(self.Z, size, np.zeros(self.m), q)[1]
        blur = self.inner.blur(rows, T, still, self.scale, known=False)
        return upper + float(q @ blur) / float(q.sum()) * (1 + 1e-12) + CHECKED * self.inner.usual

    def judge(self, predictor: Any, block: slice) -> np.ndarray:
        """At most z_i . u / ||u||, rounding subtracted; features of dead neurons are 0, and so are their weights u."""
        Z = self.signed(block)
        T, still = self.seen
        size = np.linalg.norm(Z, axis=1) * (1 + 1e-12)
        scores, e = product(Z, predictor)
        length = float(np.linalg.norm(predictor)) or 1.0
        blur = self.inner.blur(block, T, still, self.scale, known=True)
        margins = scores / length - (e + 4 * EPS) * size - blur - CHECKED * self.inner.usual
        return np.asarray(margins - np.abs(margins) * EPS * (self.m + 8))

    def width(self, predictor: Any) -> int:
        return 4 * self.m

    def most(self) -> int:
        return self.limit


def _in_play(door: Door, m: int) -> int:
    """How many points a margin may have in play."""
    n = len(door.y)
    plain = rows.Features(door, lambda index: door.X[index], m, labels=door.y, size=door.size)
    return min(n, plain.most(), door.limits.largest(n, lambda k: 4.0 * k * m * door.X.shape[1], lambda k: 6.0 * k * m))


def _solve(
    features: _Features, scale: np.ndarray, tol: float, conflict: tuple[np.ndarray, str] | None, most: int
) -> _Part:
    n, m = len(features.s), len(scale)
    if features.unknown and conflict is None:
        # mean_i relu(t_ij) <= sqrt(mean_i t_ij^2) <= 1 for any signs, so equal weights prove |scale| without a look at the data
        upper = float(np.linalg.norm(scale)) * (1 + 1e-12)
        return _Part(np.zeros(m), np.full(n, 1 / n), 0.0, upper, "unit variance", "time-limit")
    problem = _Margin(features, scale, most)
    if conflict is not None:
        some = np.flatnonzero(conflict[0])
        problem.Z = problem.signed(some)
        return _Part(np.zeros(m), conflict[0], 0.0, problem.upper(some, conflict[0][some]), "zero")
    solved = rows.solve(problem, tol)
    u = np.zeros(m) if solved.predictor is None else solved.predictor
    return _Part(u, solved.q, solved.lower, solved.upper, solved.stats["method"], solved.stopped)


# --- moved inner weights --------------------------------------------------------------------------------------------


def _displacement_cost(features: _Features, scale: np.ndarray, q: np.ndarray, radius: float) -> float:
    """How much ||Z' q|| can rise: entry j by |scale_j| L ||delta_j||, and ||delta||_F <= radius.

    L = (1/2) ||sum_i q_i y_i xbar_i|| + (1/2) (sum_ik q_i q_k <xbar_i, xbar_k>^2)^(1/4), or sum_i q_i ||xbar_i|| if smaller,
    for sum q = 1: relu(t) = (t + |t|) / 2, and sum_i q_i |<xbar_i, delta>| <= ||delta|| sqrt(largest eigenvalue of
    sum_i q_i xbar_i xbar_i') (Cauchy and Schwarz), which is at most the Frobenius norm.
    """
    some = np.flatnonzero(q)
    q, y, X, s = q[some] / q.sum(), features.door.y[some], features.Xbar[some], features.s[some]
    error = features.error + EPS * (len(q) + 8)
    L = plain = float(q @ (np.linalg.norm(X, axis=1) + error * s))
    if len(some) ** 2 * X.shape[1] <= MANY:
        mean = float(np.linalg.norm((q * y) @ X)) + error * float(q @ s)
        square = math.sqrt(max(float(q @ ((X @ X.T) ** 2 @ q)), 0.0)) + 2 * error * float(q @ s**2)
        L = min(plain, (mean + math.sqrt(square)) / 2)
    return float(np.abs(scale).max()) * radius * L * (1 + 1e-12) + TINY


def _ascend(
    features: _Features,
    parts: dict[str, _Part],
    scales: dict[str, np.ndarray],
    radius: float,
    moves: int,
    solve: Callable[[_Features], dict[str, _Part]],
) -> tuple[dict[str, _Part], _Features]:
    """Projected ascent of sum of margins over the ball ||delta||_F <= radius; its gradient is that at the optimal (u, q)."""
    door, best, now, step = features.door, parts, features, 1.0
    radius *= 1 - 1e-12
    for _ in range(moves):
        if door.limits.late():
            break
        T = now.rows(slice(None))[0]
        slope = np.zeros(T.shape)  # d value / d T
        for name, part in best.items():
            length = float(np.linalg.norm(part.u)) or 1.0
            slope += np.outer(part.q * door.y / part.q.sum(), scales[name] * part.u / length)
        G = (slope * (T > 0)).T @ features.Xbar  # (m, d)
        G[features.dead] = 0
        length = float(np.linalg.norm(G))
        if not length > 0:
            break
        trial = (0.0 if now.move is None else now.move) + step * radius * (G / length)
        size = float(np.linalg.norm(trial))
        if not 0 < size < math.inf:
            break
        trial *= min(1.0, radius / size)
        there = replace(features, move=trial)
        other = solve(there)
        gain = sum(part.lower for part in other.values()) - sum(part.lower for part in best.values())
        if gain > 0:
            best, now = other, there
            if (tell := door.teller(0)) is not None:
                tell(sum(part.lower for part in best.values()), math.inf, "moved the inner weights")
            if gain <= 1e-6 * sum(part.lower for part in best.values()):
                break
        else:
            step /= 2
    return best, now


# --- the paper's other quantities -----------------------------------------------------------------------------------


def eps_N(V0: ArrayLike, X: ArrayLike, eps: float = 0.0) -> float:
    """max_j 1/N(v_j) (BN Assumption 1.1, BN-5): at most 1/sqrt(eps), infinite if some N(v_j) is 0."""
    X, V = np.asarray(X, dtype=np.float64), np.atleast_2d(np.asarray(V0, dtype=np.float64))
    if X.ndim != 2 or V.ndim != 2 or V.shape[1] != X.shape[1]:
        raise InputError(f"eps_N needs X (n, d) and V0 (m, d), not shapes {X.shape} and {V.shape}")
    Xbar = X - X.mean(axis=0)
    least = min(float(((Xbar @ V[j : j + BLOCK].T) ** 2).mean(axis=0).min()) for j in range(0, len(V), BLOCK))
    return 1 / math.sqrt(least + eps) if least + eps > 0 else math.inf


@dataclass(frozen=True)
class DyadicMargins:
    """Margins of the dyadic data set, see `dyadic_margins`."""

    linear: float
    sign: float
    bound: float  # sqrt(d) / 40 times the linear margin


def dyadic_margins(d: int) -> DyadicMargins:
    """What BN Proposition 1.1 compares on the dyadic data set (BN-8, BN-9, E-BN-9): gamma >= bound = sqrt(d) / 40 linear.

        linear = sqrt(3 / (4^(d+1) - 4)),   in direction u = (2, 4, ..., 2^d)
        sign   = min_j (1/2) 2^-j E[sgn(u . v) v_j / ||v||_Sigma],   Sigma = diag(4^-j / d), v Gaussian

    `sign` is the a-margin of the outer weights sgn(u . v_j) / sqrt(m) as m grows: only the odd part of relu counts. With
    1/r = (2/sqrt(pi)) int_0^inf exp(-t^2 r^2) dt the expectation is that of sgn(u . v) v_j for independent Gaussians of
    variance s_j = 1/(1 + 2 t^2 4^-j), which is sqrt(2/pi) u_j s_j / sqrt(sum_k u_k^2 s_k); the integral over log t is a sum.
    """
    half = np.diag(dyadic(d).X)[:d]  # 2^-j
    step = 0.05
    t = np.exp(np.arange(-45.0, 45.0 + d * math.log(2), step))[
        :, None
    ]  # trapezoidal rule: its error falls as exp(-1/step)
    s = 1 / (1 + 2 * (t * half) ** 2)  # (times, d)
    mass = np.exp(0.5 * np.log(s).sum(axis=1)) / np.sqrt((s / (half / half[-1]) ** 2).sum(axis=1))
    values = step * (mass * t[:, 0]) @ (s * (half[-1] / half))  # int ... u_j s_j, u scaled to end in 1
    linear = math.sqrt(3 / (4 * (4.0**d - 1)))
    sign = float((half * values).min()) * math.sqrt(2 * d) / math.pi
    return DyadicMargins(linear, sign, math.sqrt(d) / 40 * linear)
