"""The margin of BN's Assumption 1.2: what the two outer layers of a batch-normalised network can reach at its first weights."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from widemargin.data import dyadic
from widemargin.spaces import ReLU
from widemargin.types import Certificate, Dataset, InputError

from . import qp
from .door import EPS, Door, Progress, bounds_factor, enter, product, twins
from .engine import LARGEST

BLOCK = 512  # neurons whose inner weights are in memory at a time
STORED = 200_000  # numbers of moved inner weights that a certificate keeps
DEAD = 0.25  # a neuron whose N(v) is not known to this relative accuracy counts as 0 below, and as anything above


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
    if part not in PARTS:
        raise InputError(f"part must be one of {', '.join(PARTS)}, not {part!r}")
    for name, value in (("eps", eps), ("displacement", displacement)):
        if not (math.isfinite(value) and value >= 0):
            raise InputError(f"{name} must be zero or a positive number, not {value!r}")
    door = enter(data, ReLU(bias=False), tol, time_limit, progress)
    layer = _inner_layer(data.d, width, seed, trial, V0, a0)
    features = _normalize(door, layer, eps)
    n, m = features.T.shape
    names = ("a", "c") if part == "sum" else (part,)
    scales = {"a": np.full(m, 1 / math.sqrt(m)), "c": layer.a / math.sqrt(m)}
    conflict = twins(replace(door, X=features.Xbar))

    def solve(T: np.ndarray) -> dict[str, _Part]:
        return {name: _solve(T, door, scales[name], tol, conflict) for name in names}

    parts, T, move = solve(features.T), features.T, None
    radius = math.ldexp(displacement, door.shift) * math.sqrt(m)  # of the ball in Frobenius norm, in scaled units
    frozen = parts
    if radius > 0 and conflict is None:
        parts, move = _ascend(features, parts, scales, door, radius, moves, solve)
        T = features.T if move is None else features.T + features.Xbar @ move.T
    extra: dict[str, Any] = {
        "part": part,
        "eps": float(eps),
        "displacement": float(displacement),
        "width": m,
    } | layer.record()
    lower, upper = 0.0, 0.0
    for name, solved in parts.items():
        below = _lower(features, T, move, scales[name], solved, door)
        dual = frozen[name].q  # the upper bound compares with the features before any move
        above = _upper(features, scales[name], dual, door)
        if radius > 0:
            above += _displacement_cost(features, door.y, scales[name], dual, radius)
        if conflict is not None and "labels" in conflict[1]:
            above = 0.0  # wherever the inner weights move, equal points have equal features
        below = max(below, 0.0)
        extra[f"gamma_{name}"] = {"lower": below, "upper": above}
        extra[f"weights_{name}"] = solved.u.tolist()
        if name != names[0]:  # that of the first is the certificate's own
            extra[f"dual_{name}"] = dual.tolist()
        lower, upper = lower + below, upper + above
    with np.errstate(divide="ignore"):
        extra["eps_N"] = min(float(np.ldexp((1 / features.N).max(), -door.shift)), LARGEST)
    if move is not None:
        extra["move"] = np.ldexp(move, -door.shift).tolist() if move.size <= STORED else "omitted"
    zero = "" if conflict is None else conflict[1].replace("the origin", "the mean of the points")
    stopped = next((solved.stopped for solved in parts.values() if solved.stopped), "")
    if not zero and lower <= 0 and upper <= 1e-9 * math.sqrt(n) and not stopped:
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

    def blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """V in blocks of rows; fills in the hash of a and V."""
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
        for name, value, least in (("width", width, 1), ("seed", seed, 0), ("trial", trial, 0)):
            if not isinstance(value, int | np.integer) or value < least:
                raise InputError(f"batchnorm: {name} must be an integer of at least {least}, not {value!r}")
        if a0 is not None:
            raise InputError("batchnorm: a0 needs V0, the inner weights that belong to it")
        rng = np.random.default_rng([seed, trial])
        return _Layer(d, rng.standard_normal(width) / np.sqrt(width), None, int(seed), int(trial))
    try:
        V = np.array(V0, dtype=np.float64)
        a = None if a0 is None else np.array(a0, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"batchnorm: V0 and a0 must hold numbers only ({error})") from None
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
    """T_ij = <v_j / N_j, xbar_i>, off by error s_i reach_j + rho |T_ij| at most; 0 in dead columns, where |truth| <= sqrt(n)."""

    T: np.ndarray  # (n, m)
    Xbar: np.ndarray  # (n, d)
    N: np.ndarray  # (m,)
    reach: np.ndarray  # (m,), ||v_j|| / N_j
    rho: float
    error: float
    s: np.ndarray  # (n,), sizes of points that the errors refer to
    dead: np.ndarray  # (m,) bool


def _normalize(door: Door, layer: _Layer, eps: float) -> _Features:
    """The preactivations, block by block: Sigma (d, d) is never formed, since v' Sigma v = ||Xbar v||^2 / n."""
    n, d = door.X.shape
    first = door.X - door.X.mean(axis=0)
    Xbar = first - first.mean(axis=0)  # twice: what is lost does not depend on where the origin is
    size = np.linalg.norm(first, axis=1)
    s = size + size.mean()
    error = EPS * (n + d + 16)  # |computed <v, xbar_i> - truth| <= error s_i ||v||
    try:
        shifted = math.ldexp(eps, -2 * door.shift)
    except OverflowError:
        raise InputError("batchnorm: eps is too large for these points; divide both by a constant") from None
    m = len(layer.a)
    T, N, length = np.empty((n, m)), np.empty(m), np.empty(m)
    for rows, V in layer.blocks():
        P = Xbar @ V.T  # (n, block)
        N[rows] = np.sqrt((P * P).mean(axis=0) + shifted)
        length[rows] = np.linalg.norm(V, axis=1)
        T[:, rows] = P
    # N is 1-Lipschitz in P / sqrt(n)
    off = error * length * float(np.linalg.norm(s)) / math.sqrt(n) + EPS * (n + 8) * N
    zero = length == 0
    dead = (off > DEAD * N) & ~zero
    alive = ~dead & (N > 0)
    T[:, ~alive] = 0
    T[:, alive] /= N[alive]
    reach = np.zeros(m)
    reach[alive] = length[alive] / N[alive]
    rho = 2 * float((off[alive] / N[alive]).max(initial=0.0)) + 4 * EPS
    return _Features(T, Xbar, N, reach, rho, 2 * error, s, dead)


# --- the two hard margins -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """Outer weights u and dual weights q of one part, and the margin of u, not yet corrected for rounding."""

    u: np.ndarray  # (m,)
    q: np.ndarray  # (n,)
    value: float
    method: str = ""
    stopped: str = ""


def _signed(T: np.ndarray, y: np.ndarray, scale: np.ndarray) -> np.ndarray:
    Z = T.clip(0)
    Z *= y[:, None]
    Z *= scale
    return Z  # (n, m)


def _solve(T: np.ndarray, door: Door, scale: np.ndarray, tol: float, found: tuple[np.ndarray, str] | None) -> _Part:
    Z = _signed(T, door.y, scale)
    empty = np.flatnonzero(~Z.any(axis=1))
    if found is not None or len(empty):
        q = np.eye(len(Z))[empty[0]] if found is None else found[0]
        return _Part(q @ Z, q, 0.0, "zero")
    progress = qp.solve_factor(Z, tol / 4, door.deadline)
    u = np.where(Z.any(axis=0), qp.direction(Z, progress.q, tol / 2), 0.0)
    length = float(np.linalg.norm(u))
    value = float((Z @ u).min()) / length if length else 0.0
    return _Part(u, progress.q, value, progress.method, progress.stopped)


def _blur(features: _Features, T: np.ndarray, move: np.ndarray | None, scale: np.ndarray) -> np.ndarray:
    """For each point, at least the length of the errors of its row of features."""
    reach = features.reach if move is None else features.reach + np.linalg.norm(move, axis=1)
    weights, rows = np.abs(scale), np.sqrt((T * T) @ scale**2)
    if move is not None:
        rows += np.sqrt((features.T**2) @ scale**2)
    unknown = math.sqrt(len(T)) * float(np.linalg.norm(weights[features.dead]))
    return features.error * features.s * float(np.linalg.norm(weights * reach)) + features.rho * rows + unknown


def _lower(
    features: _Features, T: np.ndarray, move: np.ndarray | None, scale: np.ndarray, one: _Part, door: Door
) -> float:
    """At most min_i z_i . u / ||u||, rounding subtracted; features of dead neurons are 0, and so are their weights u."""
    Z = _signed(T, door.y, scale)
    size = np.linalg.norm(Z, axis=1) * (1 + 1e-12)
    known = replace(features, dead=np.zeros_like(features.dead))
    scores, e = product(Z, one.u)
    length = float(np.linalg.norm(one.u)) or 1.0
    lower = float((scores / length - (e + 4 * EPS) * size - _blur(known, T, move, scale)).min())
    return lower - abs(lower) * EPS * (len(one.u) + 8)


def _upper(features: _Features, scale: np.ndarray, q: np.ndarray, door: Door) -> float:
    """At least ||Z' q|| / sum q, rounding added."""
    Z = _signed(features.T, door.y, scale)
    size = np.linalg.norm(Z, axis=1) * (1 + 1e-12)
    upper = bounds_factor(Z, size, np.zeros(Z.shape[1]), q)[1]
    return upper + float(q @ _blur(features, features.T, None, scale)) / float(q.sum()) * (1 + 1e-12)


# --- moved inner weights --------------------------------------------------------------------------------------------


def _displacement_cost(features: _Features, y: np.ndarray, scale: np.ndarray, q: np.ndarray, radius: float) -> float:
    """How much ||Z' q|| can rise: entry j by |scale_j| L ||delta_j||, and ||delta||_F <= radius.

    L = (1/2) ||sum_i q_i y_i xbar_i|| + (1/2) (sum_ik q_i q_k <xbar_i, xbar_k>^2)^(1/4), or sum_i q_i ||xbar_i|| if smaller,
    for sum q = 1: relu(t) = (t + |t|) / 2, and sum_i q_i |<xbar_i, delta>| <= ||delta|| sqrt(largest eigenvalue of
    sum_i q_i xbar_i xbar_i') (Cauchy and Schwarz), which is at most the Frobenius norm.
    """
    q, X, s = q / q.sum(), features.Xbar, features.s
    error = features.error + EPS * (len(q) + 8)
    plain = float(q @ (np.linalg.norm(X, axis=1) + error * s))
    mean = float(np.linalg.norm((q * y) @ X)) + error * float(q @ s)
    square = math.sqrt(max(float(q @ ((X @ X.T) ** 2 @ q)), 0.0)) + 2 * error * float(q @ s**2)
    L = min(plain, (mean + math.sqrt(square)) / 2)
    return float(np.abs(scale).max()) * radius * L * (1 + 1e-12)


def _ascend(
    features: _Features,
    parts: dict[str, _Part],
    scales: dict[str, np.ndarray],
    door: Door,
    radius: float,
    moves: int,
    solve: Callable[[np.ndarray], dict[str, _Part]],
) -> tuple[dict[str, _Part], np.ndarray | None]:
    """Projected ascent of sum of margins over the ball ||delta||_F <= radius; its gradient is that at the optimal (u, q)."""
    best, move, step = parts, np.zeros((features.T.shape[1], features.Xbar.shape[1])), 1.0
    T, moved = features.T, False
    radius *= 1 - 1e-12
    for _ in range(moves):
        if time.perf_counter() > door.deadline:
            break
        slope = np.zeros(T.shape)  # d value / d T
        for name, part in best.items():
            length = float(np.linalg.norm(part.u)) or 1.0
            slope += np.outer(part.q * door.y / part.q.sum(), scales[name] * part.u / length)
        G = (slope * (T > 0)).T @ features.Xbar  # (m, d)
        G[features.dead] = 0
        length = float(np.linalg.norm(G))
        if length == 0:
            break
        trial = move + step * radius / length * G
        trial *= min(1.0, radius / float(np.linalg.norm(trial)))
        there = features.T + features.Xbar @ trial.T
        other = solve(there)
        gain = sum(part.value for part in other.values()) - sum(part.value for part in best.values())
        if gain > 0:
            best, move, T, moved = other, trial, there, True
            if (tell := door.teller(0)) is not None:
                tell(sum(part.value for part in best.values()), math.inf, "moved the inner weights")
            if gain <= 1e-6 * sum(part.value for part in best.values()):
                break
        else:
            step /= 2
    return (best, move) if moved else (parts, None)


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
