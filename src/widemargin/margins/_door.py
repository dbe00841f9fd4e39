"""What the kernel, linear and frozen margins share: scaling at the door, and bounds that hold in spite of rounding."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from widemargin.spaces import Space, as_space, extend
from widemargin.types import Certificate, Dataset, InputError, Measure

EPS = float(np.finfo(np.float64).eps)
Progress = Callable[[float, float, float, str], None]  # seconds, lower, upper, message
Tell = Callable[[float, float, str], None]  # the same in scaled units, on the clock of the door
TINY = "the margin is too small for a float; multiply X by a constant"
NOTHING = 1e-9  # of what the weights would prove: below it a bound is rounding


@dataclass(frozen=True)
class Door:
    """Validated data: X (n, D) extended and divided by 2^shift, so that its largest entry lies in [1/2, 1).

    y are the labels -1 and +1, or what else `enter` was asked for.
    """

    data: Dataset
    bias: bool
    neurons: Space | None  # None: this margin has none
    X: np.ndarray
    y: np.ndarray
    size: np.ndarray  # norms of the rows of X
    shift: int
    started: float
    deadline: float
    progress: Progress | None = None

    @property
    def space(self) -> Space:
        assert self.neurons is not None
        return self.neurons

    def teller(self, degree: int = 1) -> Tell | None:
        """What a solver calls with bounds in scaled units; None where nobody listens."""
        if self.progress is None:
            return None
        listener, unit = self.progress, 2.0 ** (degree * self.shift) if abs(degree * self.shift) < 1000 else 1.0

        def tell(lower: float, upper: float, message: str) -> None:
            listener(time.perf_counter() - self.started, max(lower, 0.0) * unit, upper * unit, message)

        return tell

    def unscale(self, value: float, degree: int, up: bool) -> float:
        """value * 2^(shift * degree), rounded outward."""
        if value == 0:
            return 0.0
        try:
            result = math.ldexp(value, self.shift * degree)
        except OverflowError:
            raise InputError(
                f"{self.data.name}: the margin exceeds the largest float; divide X by a constant"
            ) from None
        return math.nextafter(result, math.inf if up else 0.0)

    def certificate(
        self,
        kind: str,
        lower: float,
        upper: float,
        q: np.ndarray,
        *,
        degree: int,
        tol: float,
        convention: str,
        stopped: str = "",
        zero: str = "",
        primal: Measure | None = None,
        extra: Mapping[str, Any],
        stats: Mapping[str, Any],
    ) -> Certificate:
        """The certificate of bounds in scaled units. `zero` is the reason why the margin is 0, if it is."""
        reason = zero
        if zero:
            status, lower = "not-separable", 0.0
        elif lower >= (1 - tol) * upper:
            status = "certified"
        elif stopped:
            status, reason = stopped, "stopped before the gap reached tol; both bounds hold"
        else:
            status, reason = "rounding", "float64 cannot close the gap to tol; both bounds hold"
        low, high = self.unscale(max(lower, 0.0), degree, up=False), self.unscale(upper, degree, up=True)
        if status == "certified" and low == 0 < high:
            status, reason = "rounding", TINY
        if (tell := self.teller(degree)) is not None:
            tell(lower, upper, status)
        return Certificate(
            kind=kind,
            lower=low,
            upper=high,
            dual=q,
            status=status,
            proved=True,
            bound="dual",
            n=self.data.n,
            d=self.data.d,
            primal=primal,
            bias=self.bias,
            activation=self.neurons.activation if self.neurons is not None else "relu",  # where nobody reads it
            convention=convention,
            data_sha256=self.data.sha256(),
            data_name=self.data.name,
            reason=reason,
            proof={"type": "dual"},
            extra=extra,
            stats={"seconds": time.perf_counter() - self.started, "seed": None, **stats},
        )


def choose_space(space: Space | None, bias: bool | None, activation: str | None) -> Space:
    """The space, or that of `bias` and `activation`; an InputError where both are given and do not agree."""
    usual = None if activation is None else as_space(activation).activation
    if space is None:
        return as_space(usual or "relu", bool(bias))
    for name, asked, has in (("bias", bias, space.bias), ("activation", usual, space.activation)):
        if asked is not None and asked != has:
            raise InputError(
                f"{name}={asked!r} contradicts the space {space!r}, which has {has!r}; leave one of them out"
            )
    return space


def enter(
    data: Dataset,
    space: Space | bool,
    tol: float,
    time_limit: float | None,
    progress: Progress | None = None,
    *,
    signs: bool = True,
) -> Door:
    """Data through the door; without `signs` its targets may be any numbers, such as class numbers or values.

    A margin without neurons gives its bias for the space.
    """
    started = time.perf_counter()
    if not 0 < tol < 1:
        raise InputError(f"tol must lie between 0 and 1, not {tol!r}")
    if time_limit is not None and not time_limit > 0:
        raise InputError(f"time_limit must be a positive number of seconds, not {time_limit!r}")
    y = data.signs() if signs else data.y
    bias, neurons = (space, None) if isinstance(space, bool) else (space.bias, space)
    X = extend(data.X, bias)
    shift = math.frexp(float(np.abs(X).max()))[1]
    X = np.ldexp(X, -shift)
    if (~(X * X).any(axis=1) & data.X.any(axis=1)).any():
        raise InputError(
            f"{data.name}: the sizes of the points differ by more than 1e150; rescale or remove the tiny ones"
        )
    deadline = math.inf if time_limit is None else started + time_limit
    return Door(data, bias, neurons, X, y, np.linalg.norm(X, axis=1), shift, started, deadline, progress)


def product(A: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, float]:
    """A @ x in blocks, and e such that the result errs by at most e (|A| @ |x|)."""
    n = len(x)
    block = max(64, math.isqrt(n))
    parts = [A[:, i : i + block] @ x[i : i + block] for i in range(0, n, block)]
    return np.sum(parts, axis=0), EPS * (min(block, n) + len(parts) + 2)


def bounds_factor(Z: np.ndarray, size: np.ndarray, u: np.ndarray, q: np.ndarray) -> tuple[float, float]:
    """lower <= min_i z_i.u / ||u||, and upper >= ||sum q_i z_i|| / sum q; size_i >= ||z_i|| up to rounding."""
    scores, e = product(Z, u)
    length = float(np.linalg.norm(u)) or 1.0
    lower = float((scores / length - (e + 4 * EPS) * size).min())
    lower -= abs(lower) * EPS * (len(u) + 8)
    nearest, e = product(Z.T, q)
    upper = float(np.linalg.norm(nearest)) * (1 + EPS * (len(u) + 8)) + (e + 4 * EPS) * float(q @ size)
    return lower, upper / float(q.sum()) * (1 + 2 * EPS * len(q) + 8 * EPS)


def twins(door: Door) -> tuple[np.ndarray, str] | None:
    """Integer weights that prove margin 0: a point without features, or one point with both labels."""
    zero = np.flatnonzero(~door.X.any(axis=1))
    if len(zero):
        q = np.zeros(len(door.X))
        q[zero[0]] = 1
        return q, f"point {zero[0]} is the origin, where every function of this space vanishes"
    first: dict[bytes, int] = {}
    X = door.X + 0.0  # -0.0 becomes 0.0
    for i, row in enumerate(X):
        j = first.setdefault(row.tobytes(), i)
        if door.y[i] != door.y[j]:
            q = np.zeros(len(X))
            q[[i, j]] = 1
            return q, f"points {j} and {i} are equal but have different labels"
    return None


def nothing_left(upper: float, q: np.ndarray, size: np.ndarray) -> bool:
    """Whether `upper` is rounding beside sum_i q_i size_i, what q would prove if its points did not contradict each other.

    The largest size would not do: beside one point of size 1e10 the margin of a separable set is as small as rounding.
    """
    return upper <= NOTHING * float(q @ size) / float(q.sum())


def integer_weights(q: np.ndarray) -> np.ndarray | None:
    """Small integers proportional to q, if q is close to such."""
    ratio = np.where(q > 1e-6 * q.max(), q / q.max(), 0)
    for top in range(1, 61):
        guess = np.rint(top * ratio)
        if np.abs(top * ratio - guess).max() < 1e-4:
            return guess
    return None


def vanishes(X: np.ndarray, c: np.ndarray, linear: bool) -> bool:
    """Whether sum_i c_i x_i = 0, and unless `linear` also sum_i c_i relu(v . x_i) = 0 for all v; in exact arithmetic.

    relu(t) = (t + |t|) / 2, and the functions |v . x| of different lines are linearly independent, so the second holds
    when sum_i c_i x_i = 0 and sum_i c_i ||x_i|| = 0 over the points of each line through 0. It is the same for a leaky ReLU.
    """
    index = np.flatnonzero(c)
    if len(index) * X.shape[1] > 100_000:
        return False
    total = [Fraction(0)] * X.shape[1]
    lines: dict[tuple[Fraction, ...], Fraction] = defaultdict(Fraction)
    for i in index:
        weight = Fraction(float(c[i]))
        row = [Fraction(float(x)) for x in X[i]]
        total = [t + weight * x for t, x in zip(total, row)]
        lead = next((x for x in row if x), Fraction(1))
        lines[tuple(x / lead for x in row)] += weight * abs(lead)
    return not any(total) and (linear or not any(lines.values()))
