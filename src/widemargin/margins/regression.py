"""The smallest norm of an interpolant: over two-layer ReLU networks (F1), and in the kernel space (F2)."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from scipy import linalg

from widemargin.spaces import as_space
from widemargin.types import Certificate, Dataset, InputError, Measure, show

from . import _relations, interpolation
from .answers import solves
from .door import EPS, Door, Late, about, bytes_in_words, check_progress, enter, equal_rows, product, speed
from .engine import LARGEST, Progress, threads

RELATIONS_SHARE, PART = 0.3, 0.25  # of the time, for relations, and for one factorisation
TINY = 1e-290  # weights that are all below this have lost digits


@solves("values")
def min_norm_l1(
    data: Dataset,
    *,
    bias: bool = False,
    activation: str = "relu",
    tol: float = 1e-3,
    time_limit: float | None = 60.0,
    memory: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Certificate:
    """Smallest norm of a two-layer ReLU network of any width with f(x_i) = y_i, certified.

        norm = min { |nu| : int relu(v . x_i) dnu(v) = y_i }              nu a signed measure on the unit sphere
             = max { y . lam : |sum_i lam_i relu(v . x_i)| <= 1 for all unit v }

    `primal` is the network; its values are right up to rounding, and `upper` includes what it costs to make them
    exactly right (docs/certificates.md). `dual` holds lam up to a positive factor: lam / proof["maximum"] is feasible,
    and so y . lam / proof["maximum"] bounds the norm from below; the maximum is proved as for the F1 margin. Stops when
    upper - lower <= tol * lower, at `time_limit` seconds, or on Ctrl-C. Status "no-interpolation": no network takes the
    values y, by a relation in `dual` that holds for all networks (both bounds are the largest float); status
    "rounding": the points are too close to such a relation for float64; status "stalled": four rounds brought nothing better.

    Where time or memory are not enough for a network that meets all points, the lower bound is that of some of them and `upper`
    is the largest float: not proved.

    `progress(seconds, lower, upper, message)` is called after every round.

    Reference: Wei, Lee, Liu and Ma (2019), (D.3).

    >>> import widemargin as wm
    >>> one = wm.Dataset([[3.0, 4.0]], [10.0])  # one neuron along x: norm |y| / |x|
    >>> cert = wm.margins.min_norm_l1(one)
    >>> abs(cert.upper - 2) < 1e-3, cert.verify(one).ok
    (True, True)
    """
    if not isinstance(activation, str) or activation != "relu":
        raise InputError(f"the smallest l1 norm is computed for activation 'relu' only, not {show(activation)}")
    space = as_space(activation, bias=bias)
    door = enter(data, space, tol, time_limit, memory=memory, signs=False)
    check_progress(progress)
    D = door.X.shape[1]
    known, some = _known(door, lambda k: interpolation.operations(k, D), lambda k: interpolation.numbers(k, D))
    if known.obstruction is not None:
        stats = {"seconds": time.perf_counter() - door.started, "seed": seed}
        return _impossible(data, "l1-regression", known, bias, activation, stats)
    y = data.y[some]
    if not data.y[known.free].any():
        stats = {"seconds": time.perf_counter() - door.started, "seed": seed, "rounds": 0, "nodes": 0}
        return _zero(data, known, bias, stats)
    whole = len(some) == len(known.free) and known.complete
    known = dataclasses.replace(known, free=some)
    power = math.frexp(float(np.abs(y).max()))[1]  # the largest target is scaled to [1/2, 1)
    door = dataclasses.replace(door, X=door.X[some], y=np.ldexp(y, -power), size=door.size[some])
    with threads(1):
        solver = interpolation.Solver(door, known, power, tol, seed, progress)
        solver.whole = whole
        return solver.run()


def _known(
    door: Door, operations: Callable[[int], float], numbers: Callable[[int], float]
) -> tuple[_relations.Relations, np.ndarray]:
    """The relations of the points, and those of the free points that there are time and memory for: with the largest targets for
    their size, as these need the largest norm."""
    n, y, limits = door.data.n, door.data.y, door.limits
    early = dataclasses.replace(limits, deadline=door.started + RELATIONS_SHARE * (door.deadline - door.started))
    try:
        known = _relations.find(door.exact(np.arange(n)), y, door.space.degree, early)
    except Late:
        known = _relations.Relations(np.flatnonzero(door.size > 0), [], None, complete=False)
        first = equal_rows(door.data.X)  # what is seen at once
        wrong = np.flatnonzero(y != y[first])
        if len(wrong):
            i, j = int(wrong[0]), int(first[wrong[0]])
            reason = f"points {j} and {i} are equal but have different targets"
            known = dataclasses.replace(known, obstruction={i: 1, j: -1}, reason=reason)
    free = known.free
    share = PART * (door.deadline - door.started) * speed() if math.isfinite(door.deadline) else math.inf
    most = len(free)
    if operations(most) > share or 8 * numbers(most) > limits.memory or not known.complete:
        sizes = np.unique(np.geomspace(1, max(most, 1), 200).astype(int))
        fits = [k for k in sizes if operations(int(k)) <= share and 8 * numbers(int(k)) <= limits.memory]
        most = int(max(fits, default=1))
    if most >= len(free):
        return known, free
    need = np.abs(y[free] / (np.abs(y).max() or 1.0)) / door.size[free] ** door.space.degree
    first = equal_rows(door.data.X[free])
    order = np.argsort(-np.where(first == np.arange(len(free)), need, -1.0), kind="stable")[:most]
    return known, np.sort(free[order])


def _zero(data: Dataset, known: _relations.Relations, bias: bool, stats: dict[str, Any]) -> Certificate:
    """All targets are 0, and so is the function."""
    proof = {"type": "norm", "maximum": 1.0}
    extra = {"relations": known.saved(), "frame": []}
    empty = Measure(np.zeros((0, data.d + bias)), np.zeros(0), "relu", bias)
    return Certificate(
        kind="l1-regression",
        lower=0.0,
        upper=0.0,
        dual=np.zeros(data.n),
        status="certified",
        proved=True,
        bound="norm",
        primal=empty,
        bias=bias,
        convention="norm",
        **about(data),
        proof=proof,
        extra=extra,
        stats=stats,
    )


def _impossible(
    data: Dataset,
    kind: str,
    known: _relations.Relations,
    bias: bool,
    activation: str,
    stats: dict[str, Any],
    extra: dict[str, Any] | None = None,
) -> Certificate:
    """No function takes the values y: the relation that they break is the proof, an infinite lower bound."""
    assert known.obstruction is not None
    weights = known.obstruction
    exact = all(abs(w) <= 2**53 for w in weights.values())
    dual = np.zeros(data.n, dtype=np.float64 if exact else object)
    for i, w in weights.items():
        dual[i] = w
    proved = max(abs(w).bit_length() for w in weights.values()) <= 1100  # what a certificate may hold
    return Certificate(
        kind=kind,
        lower=LARGEST if proved else 0.0,
        upper=LARGEST,
        dual=dual if proved else np.zeros(data.n),
        status="no-interpolation",
        proved=proved,
        bound="relation",
        bias=bias,
        activation=activation,
        convention="norm",
        **about(data),
        reason=known.reason,
        proof={"type": "relation"},
        extra=extra or {},
        stats=stats,
    )


@solves("values")
def min_norm_l2(
    data: Dataset,
    *,
    bias: bool = False,
    activation: str = "relu",
    tol: float = 1e-6,
    time_limit: float | None = None,
    memory: float | None = None,
    progress: Progress | None = None,
) -> Certificate:
    """Smallest F2 norm of a function with f(x_i) = y_i, k the random feature kernel of a uniform probability measure.

        norm = min { ||f|| : f(x_i) = y_i } = sqrt(y' k^-1 y) = max_b  y.b / sqrt(b' k b)

    `dual` holds b: the interpolant is f = sum_j b_j k(x_j, .), and by the last form any b bounds the norm from below.
    The upper bound is the norm of that f plus the cost ||y - k b|| / sqrt(smallest eigenvalue of k) of its residual.
    Status "no-interpolation": y breaks a relation in `dual` that holds for all functions of the space (the norm is
    infinite, both bounds are the largest float), or, not proved, k is singular up to rounding and y not in its range;
    status "rounding": k is too close to singular for an upper bound within tol. Where time or memory are not enough for the
    matrix of all points, the lower bound is that of some of them and `upper` is the largest float: not proved.

    Reference: Wei, Lee, Liu and Ma (2019), (D.4) and Claim D.8, whose ||alpha||_2 is this over sqrt(vol of the sphere).

    >>> import widemargin as wm
    >>> one = wm.Dataset([[3.0, 4.0]], [10.0])  # |y| / sqrt(k(x, x)), k(x, x) = |x|^2 / (2 d)
    >>> cert = wm.margins.min_norm_l2(one)
    >>> abs(cert.upper - 4) < 1e-6, cert.verify(one).ok
    (True, True)
    """
    space = as_space(activation, bias=bias)
    activation = space.activation
    door = enter(data, space, tol, time_limit, progress, memory=memory, signs=False)
    known, some = _known(door, lambda n: 1.5 * n**3, lambda n: 6.0 * n * n)
    whole_set = len(some) == len(known.free) and known.complete
    stats: dict[str, Any] = {"seconds": time.perf_counter() - door.started, "seed": None}
    if known.obstruction is not None:
        return _impossible(data, "l2-regression", known, bias, activation, stats, {"kernel": activation})
    keep = some if len(some) else np.arange(1)
    X, y = door.X[keep], data.y[keep]
    k = as_space(activation).kernel(X)
    n, D, degree = len(X), X.shape[1], space.degree
    bound = np.sqrt(k.diagonal())  # |k_ij| <= bound_i bound_j
    blur = EPS * (2 * D + 30) * degree * 2
    scale = float(np.abs(y).max()) or 1.0
    target = y / scale
    values, vectors = linalg.eigh(k, check_finite=False)
    noise = EPS * n * float(bound @ bound) + blur * float(bound @ bound)  # of the eigenvalues
    smallest = 0.9 * (float(values[0]) - noise)  # with room for a checker that works on intervals
    coefficients = vectors.T @ target
    good = values > 4 * noise if smallest <= 0 else np.ones(n, bool)
    b = vectors[:, good] @ (coefficients[good] / values[good])
    with np.errstate(invalid="ignore"):
        for _ in range(2):  # refinement
            b = b + vectors[:, good] @ (vectors[:, good].T @ (target - k @ b) / values[good])
    if not np.isfinite(b).all():
        raise _out_of_range(data)
    outside = float(np.linalg.norm(coefficients[~good]))
    upper = lower = 0.0
    status, reason, proved = "certified", "", True
    if not target.any():
        b = np.zeros(n)
    elif outside > 1e-6 * float(np.linalg.norm(target)):
        # b far out along the component of y that k cannot reach
        floor = noise or 1.0  # a kernel of points that underflow is 0
        b = b + vectors[:, ~good] @ (coefficients[~good] / np.maximum(values[~good], floor))
        lower, upper, status, proved = _lower(k, bound, blur, b, target), LARGEST, "no-interpolation", False
        reason = "the kernel matrix is singular and y is not in its range, up to rounding"
    else:
        lower = _lower(k, bound, blur, b, target)
        proved = smallest > 0
        if proved:
            kb, e = product(k, b)
            error = (e + blur + 8 * EPS) * float(np.abs(b) @ bound) * bound
            residual = float(np.linalg.norm(np.abs(target - kb) + error + EPS * np.abs(target)))
            square = max(float(b @ kb), 0.0) + 2 * float(np.abs(b) @ error) + EPS * n * float(np.abs(b) @ np.abs(kb))
            upper = (float(np.sqrt(square)) + residual / float(np.sqrt(smallest))) * (1 + 16 * EPS)
        else:
            upper = float(np.sqrt(max(float(b @ (k @ b)), 0.0)))
            upper = max(upper, lower)
        if not proved or lower < (1 - tol) * upper:
            status, reason = "rounding", "the kernel matrix is too close to singular to prove more in float64"
    if not whole_set and status != "no-interpolation":
        upper, status, proved = LARGEST, "time-limit", False
        reason = f"the kernel matrix of all points needs more time or {bytes_in_words(48.0 * len(known.free) ** 2)} of memory"
    power = -degree * door.shift  # the norm scales like y and like X^-degree
    dual = np.zeros(data.n)
    extra = _kernel_extra(smallest, -2 * power, activation)
    with np.errstate(over="ignore", under="ignore"):
        dual[keep] = np.ldexp(b * math.frexp(scale)[0], 2 * power + math.frexp(scale)[1])
    top = float(np.abs(dual).max())
    if b.any() and (not TINY < top < math.inf or (proved and "smallest" not in extra)):
        raise _out_of_range(data)
    low, high = _scaled(max(lower, 0.0), scale, power, up=False), _scaled(upper, scale, power, up=True)
    if progress is not None:
        with suppress(KeyboardInterrupt):  # the work is done
            progress(time.perf_counter() - door.started, low, high, status)
    return Certificate(
        kind="l2-regression",
        lower=low,
        upper=high,
        dual=dual,
        status=status,
        proved=proved,
        bound="dual",
        bias=bias,
        activation=activation,
        convention="norm",
        **about(data),
        reason=reason,
        proof={"type": "dual"},
        extra=extra | {"relations": known.saved() if whole_set else []},
        stats=stats | {"seconds": time.perf_counter() - door.started, "smallest_eigenvalue": smallest},
    )


def _out_of_range(data: Dataset) -> InputError:
    return InputError(
        f"{data.name}: the weights of the kernels leave the range of float64; multiply X, or y, by a constant"
    )


def _kernel_extra(smallest: float, power: int, activation: str) -> dict[str, Any]:
    """What a checker needs: the kernel's name and a bound of its smallest eigenvalue, times 2^power."""
    with np.errstate(over="ignore", under="ignore"):
        least = float(np.ldexp(smallest, power))
    return {"kernel": activation} | ({"smallest": least} if smallest > 0 and 0 < least < math.inf else {})


def _lower(k: np.ndarray, bound: np.ndarray, blur: float, b: np.ndarray, y: np.ndarray) -> float:
    """At most y.b / sqrt(b' k b), rounding included."""
    kb, e = product(k, b)
    mean = float(np.abs(b) @ bound)
    square = float(b @ kb) + (2 * (e + blur + 8 * EPS) + EPS * len(b)) * mean * mean
    if square <= 0:
        return 0.0
    inner = float(y @ b) - EPS * (len(b) + 4) * float(np.abs(y) @ np.abs(b))
    return float(inner / np.sqrt(square) * (1 - np.sign(inner) * 8 * EPS))


def _scaled(value: float, factor: float, power: int, up: bool) -> float:
    """value * factor * 2^power, rounded outward."""
    if value in (0, LARGEST):
        return value
    mantissa, exponent = math.frexp(factor)
    result = float(np.ldexp(value * mantissa * (1 + (4 if up else -4) * EPS), exponent + power))
    return math.nextafter(result, math.inf if up else 0.0)
