"""What margins share: scaling at the door, clock and memory, bounds that hold in spite of rounding, the test for margin 0.

A call into a library (a factorisation, a program, a sort) does not look at the clock. So its size is chosen beforehand, such that
it takes no more than a `step`, a small share of the time limit; loops over rows go block by block and look at the clock between.
"""

from __future__ import annotations

import functools
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

from widemargin.spaces import Space, as_space, as_truth, extend
from widemargin.types import Certificate, Dataset, InputError, Measure, show

EPS = float(np.finfo(np.float64).eps)
Progress = Callable[[float, float, float, str], None]  # seconds, lower, upper, message
Tell = Callable[[float, float, str], None]  # the same in scaled units, on the clock of the door
LOST = "float64 cannot close the gap to tol; both bounds hold"  # why a status is "rounding"
NOTHING = 1e-9  # of what the weights would prove: below it a bound is rounding
TINY_SIZE, ENLARGED = 1e-100, 500  # sizes below the first are computed of points times 2 to the second
SMALLEST_SIZE = 1e-150  # of points that are not 0, beside a largest entry of about 1: their squares are still numbers
SURE = 1e-300  # lower bounds beside entries of about 1
FAINT = 1e-250  # entries beside others of about 1
EXACT = 100_000  # numbers up to which sums are looked at in exact arithmetic
SORTED = 1000  # columns by which distinct rows are put in order
PER_NUMBER = 200  # operations that a look at the lines through all points costs for each of their numbers
SHARE, LEAST = 0.05, 0.05  # a step is this share of the time limit, and that many seconds more
BLOCK = 2**21  # numbers in one block of rows
USUAL = 4e9  # bytes that are taken to be free where nobody says how many are
FREE = 1e8  # bytes that there always are
MOST = 10**9  # neurons, starts, cones
GROUPS = Path("/sys/fs/cgroup")


class Late(Exception):
    """The time limit came in the middle of something that no bound needs."""


@dataclass(frozen=True)
class Limits:
    """Seconds and bytes. Times are those of time.perf_counter."""

    started: float
    deadline: float
    memory: float

    def left(self) -> float:
        return self.deadline - time.perf_counter()

    def late(self) -> bool:
        return time.perf_counter() > self.deadline

    def check(self) -> None:
        """Raise `Late` where the time is over."""
        if self.late():
            raise Late

    def step(self) -> float:
        """Seconds that one call may take which does not look at the clock."""
        return SHARE * (self.deadline - self.started) + LEAST

    def hold(self, numbers: float, what: str) -> None:
        """An InputError that says what so many numbers would take, where there is no memory for them."""
        if 8 * numbers > self.memory:
            raise InputError(
                f"{what} would take {bytes_in_words(8 * numbers)}, more than the {bytes_in_words(self.memory)} "
                "that may be used; ask for less, or allow more with memory"
            )

    def first(self, share: float) -> Limits:
        """The limits of something that may take this share of the time."""
        return replace(self, deadline=self.started + share * (self.deadline - self.started))

    def affords(self, operations: float) -> bool:
        """Whether one call of so many operations, which all else waits for, leaves half of the time for what follows."""
        return operations <= LEAST * speed() or operations <= 0.5 * self.left() * speed()  # a small one needs no clock

    def search_work(self) -> float:
        """Starts times entries of X of local searches on a CPU, whose first values do not look at the clock."""
        return min(4e8, self.step() * speed() / 320)

    def blocks(self, n: int, width: int, most: int = BLOCK) -> Iterator[slice]:
        """Slices of n rows with about `most` numbers each, where a row has `width`; raises `Late` between them."""
        step = max(1, int(min(most, self.memory / 32)) // max(1, width))
        for start in range(0, n, step):
            if start:
                self.check()
            yield slice(start, min(start + step, n))

    def largest(self, most: int, operations: Callable[[int], float], numbers: Callable[[int], float]) -> int:
        """The largest size up to `most` (at least 1) whose `operations` fit into a step and whose `numbers` into the memory."""

        def fits(size: int) -> bool:
            return 8 * numbers(size) <= self.memory and (
                math.isinf(self.deadline) or operations(size) <= self.step() * speed()
            )

        if fits(most):
            return most
        low, high = 1, most  # it fits, it does not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low


def open_limits(time_limit: float | None, memory: float | None, started: float) -> Limits:
    deadline = math.inf if time_limit is None else started + float(min(time_limit, 1e18))
    if memory is None:
        return Limits(started, deadline, 0.5 * free_memory())
    most = check_number("memory", memory, "be a positive number of bytes", lambda size: 0 < size < math.inf)
    return Limits(started, deadline, most)


@functools.cache
def speed() -> float:
    """Floating-point operations a second of a dense factorisation on this machine, from one that takes a millisecond or two."""
    A = np.random.default_rng(0).standard_normal((256, 256))
    A = A @ A.T + 256 * np.eye(256)
    best = math.inf
    for _ in range(3):
        began = time.perf_counter()
        np.linalg.cholesky(A)
        best = min(best, time.perf_counter() - began)
    return min(max(256**3 / 3 / best, 1e9), 1e11)


def svd_work(n: int, D: int) -> float:
    """Operations that the singular values and vectors of (n, D) numbers take, about."""
    return 6.0 * n * D * min(n, D)


def free_memory() -> float:
    """Bytes that can be used before the machine, or the group of processes that this one is in, runs out of them."""
    free = math.inf
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = 1024.0 * int(line.split()[1])
    except (OSError, ValueError):
        pass
    if math.isinf(free):
        try:
            free = float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        except (AttributeError, ValueError, OSError):  # not on every system
            free = USUAL
    for most, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            limit, now = int((GROUPS / most).read_text()), int((GROUPS / used).read_text())
        except (OSError, ValueError):  # no such group, or "max"
            continue
        free = min(free, float(max(limit - now, 0)))
    with suppress(ImportError, OSError, ValueError):  # a limit of this process, `ulimit -v`
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        if limit != resource.RLIM_INFINITY:
            free = min(free, float(limit - pages * os.sysconf("SC_PAGE_SIZE")))
    return max(free, FREE)


def bytes_in_words(count: float) -> str:
    """A number of bytes for a sentence: 3.2 GB."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"


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
    limits: Limits
    tol: float
    progress: Progress | None = None

    @property
    def started(self) -> float:
        return self.limits.started

    @property
    def deadline(self) -> float:
        return self.limits.deadline

    def most(self, operations: float, numbers: float) -> int:
        """How many points may be worked with at once that cost so many operations and numbers for each of their entries.

        The operations are those in the span of the points, which is found first.
        """
        n, D = self.X.shape
        return self.limits.largest(n, lambda k: operations * k * min(k, D) + svd_work(k, D), lambda k: numbers * k * D)

    def exact(self, index: np.ndarray) -> np.ndarray:
        """The rows `index` as they are, (k, D): X has lost digits where the sizes of entries differ by more than 1e290."""
        return extend(self.data.X[index], bias=self.bias)

    @property
    def faint(self) -> bool:
        """Whether products with some entries are lost, or were lost in X already, so that signs of u . x_i cannot be told."""
        return bool(((np.abs(self.X) < FAINT) & (extend(self.data.X, bias=self.bias) != 0)).any())

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
        """value * 2^(shift * degree), rounded outward; 0 for a lower bound so small that X has lost its digits."""
        if value == 0 or (not up and value < SURE):
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
        bounds: tuple[float, float],
        q: np.ndarray,
        *,
        degree: int,
        convention: str,
        stopped: str = "",
        zero: str = "",
        primal: Measure | None = None,
        extra: Mapping[str, Any],
        stats: Mapping[str, Any],
    ) -> Certificate:
        """The certificate of lower and upper `bounds` in scaled units. `zero` is the reason why the margin is 0, if it is."""
        (lower, upper), tol, reason = bounds, self.tol, zero
        if zero:
            status, lower = "not-separable", 0.0
        elif lower >= (1 - tol) * upper:
            status = "certified"
        elif stopped:
            status, reason = stopped, "stopped before the gap reached tol; both bounds hold"
        else:
            status, reason = "rounding", LOST
        low, high = self.unscale(max(lower, 0.0), degree, up=False), self.unscale(upper, degree, up=True)
        if lost(status, low, high, tol):
            status, reason, q = "rounding", zero or LOST, q / q.sum()
        if (tell := self.teller(degree)) is not None:
            with suppress(KeyboardInterrupt):  # the work is done: there is nothing left to interrupt
                tell(lower, upper, status)
        return Certificate(
            kind=kind,
            lower=low,
            upper=high,
            dual=q,
            status=status,
            proved=True,
            bound="dual",
            primal=primal,
            bias=self.bias,
            activation=self.neurons.activation if self.neurons is not None else "relu",  # where nobody reads it
            convention=convention,
            **about(self.data),
            reason=reason,
            proof={"type": "dual"},
            extra=extra,
            stats={"seconds": time.perf_counter() - self.started, "seed": None, **stats},
        )


def about(data: Dataset) -> dict[str, Any]:
    """What every certificate says of its data."""
    return {
        "n": data.n,
        "d": data.d,
        "data_sha256": data.sha256(),
        "data_name": data.name,
        "data_called": data.called(),
    }


def choose_space(space: Space | None, bias: bool | None, activation: str | None) -> Space:
    """The space, or that of `bias` and `activation`; an InputError where both are given and do not agree."""
    usual = None if activation is None else as_space(activation).activation
    if space is None:
        return as_space(usual or "relu", bias=False if bias is None else bias)
    if not isinstance(space, Space):
        raise InputError(
            f"space must be one of widemargin.spaces, not {show(space)}; a bias or an activation goes by its name"
        )
    bias = None if bias is None else as_truth("bias", bias)
    for name, asked, has in (("bias", bias, space.bias), ("activation", usual, space.activation)):
        if asked is not None and asked != has:
            raise InputError(
                f"{name}={asked!r} contradicts the space {space!r}, which has {has!r}; leave one of them out"
            )
    return space


def check_data(data: Any) -> None:
    if not isinstance(data, Dataset):
        raise InputError(
            f"data must be a Dataset, not {type(data).__name__}; give widemargin.Dataset(X, y) or widemargin.data.load(...)"
        )


def check_seed(kind: str, seed: Any) -> int:
    """The seed as an integer from 0 to 2^63 - 1."""
    number = -1 if isinstance(seed, bool) or not isinstance(seed, Integral) else int(seed)
    if not 0 <= number < 2**63:
        raise InputError(f"{kind}: seed must be an integer from 0 to {2**63 - 1}, not {show(seed)}")
    return number


def check_number(name: str, value: Any, must: str, fits: Callable[[float], bool]) -> float:
    """`value` as a float; an InputError that says what it `must` where it is no number, or one that does not fit."""
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    except OverflowError:  # an integer of hundreds of digits
        number = math.inf
    if not fits(number):  # as nan never does
        raise InputError(f"{name} must {must}, not {show(value)}")
    return number


def check_count(name: str, value: Any, least: int) -> int:
    """`value` as an integer from `least` to 10^9."""
    count = least - 1 if isinstance(value, bool) or not isinstance(value, Integral) else int(value)
    if not least <= count <= MOST:
        raise InputError(f"{name} must be an integer from {least} to {MOST}, not {show(value)}")
    return count


def check_progress(progress: Any) -> None:
    if progress is not None and not callable(progress):
        raise InputError(
            f"progress must be a function of seconds, lower, upper and a message, or None, not {show(progress)}"
        )


def enter(
    data: Dataset,
    space: Space | bool,
    tol: float,
    time_limit: float | None,
    progress: Progress | None = None,
    *,
    memory: float | None = None,
    signs: bool = True,
    several: bool = False,
) -> Door:
    """Data through the door; without `signs` its targets may be any numbers, such as class numbers or values, and with `several`
    there may be more than one for each point.

    A margin without neurons gives its bias for the space. `memory` is in bytes; None is half of what is free.
    """
    started = time.perf_counter()
    check_data(data)
    check_progress(progress)
    if not isinstance(tol, Real) or not 0 < tol < 1:
        raise InputError(f"tol must lie between 0 and 1, not {show(tol)}")
    if time_limit is not None and (
        not isinstance(time_limit, Real) or isinstance(time_limit, bool) or not time_limit > 0
    ):
        raise InputError(f"time_limit must be a positive number of seconds, not {show(time_limit)}")
    limits = open_limits(time_limit, memory, started)
    y = data.signs() if signs else data.y if several else data.single()
    bias, neurons = (space.bias, space) if isinstance(space, Space) else (as_truth("bias", space), None)
    X = extend(data.X, bias=bias)
    shift = math.frexp(max(float(X.max()), -float(X.min())))[1]
    X = np.ldexp(X, -shift)
    size = np.sqrt(np.einsum("ij,ij->i", X, X))
    small = np.flatnonzero(size < TINY_SIZE)
    size[small] = np.ldexp(np.linalg.norm(np.ldexp(X[small], ENLARGED), axis=1), -ENLARGED)  # squares lose digits
    if (extend(data.X[small], bias=bias).any(axis=1) & (size[small] < SMALLEST_SIZE)).any():
        raise InputError(
            f"{data.name}: the sizes of the points differ by more than 1e150; rescale or remove the tiny ones"
        )
    return Door(data, bias, neurons, X, y, size, shift, limits, tol, progress)


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


def norm_bound(X: np.ndarray, c: np.ndarray, slope: float = 0.0) -> float:
    """A bound of |sum_i c_i phi(v . x_i)|, |v| = 1, rounded up: phi(t) = ((1 + slope) t + (1 - slope) |t|) / 2, and |t|
    counts on one side only."""
    size = np.linalg.norm(X, axis=1)
    part = max(float(c.clip(0) @ size), float((-c).clip(0) @ size))
    return ((1 + slope) * float(np.linalg.norm(c @ X)) + (1 - slope) * part) / 2 * (1 + 1e-12) + 1e-14 * float(
        np.abs(c) @ size
    )


def equal_rows(X: np.ndarray) -> np.ndarray:
    """(n,) the index of the first row of X (n, D) that is equal to each row."""
    X = np.ascontiguousarray(X) + 0.0  # -0.0 becomes 0.0
    factor = np.random.default_rng(0).integers(1, 2**62, X.shape[1]) * 2 + 1
    code = X.view(np.int64) @ factor  # (n,) modulo 2^64
    order = np.argsort(code, kind="stable")
    new = np.append(True, np.diff(code[order]) != 0)
    first = np.empty(len(X), dtype=np.int64)
    first[order] = order[new][np.cumsum(new) - 1]
    other = np.flatnonzero(first != np.arange(len(X)))
    if not np.array_equal(X[other], X[first[other]]):  # two rows with one code
        _, index, back = np.unique(X, axis=0, return_index=True, return_inverse=True)
        first = index[back.ravel()]
    return first


def distinct_rows(X: np.ndarray) -> np.ndarray:
    """(k,) the index of the first of each of the distinct rows of X (n, D), in lexicographic order of their first columns."""
    first = np.unique(equal_rows(X))
    return np.asarray(first[np.lexsort(X[first, :SORTED][:, ::-1].T)])


def twins(door: Door, *, origin: bool = True) -> tuple[np.ndarray, str] | None:
    """Integer weights that prove margin 0: a point without features, or one point with both labels. Looks at the data as it is.

    `origin`: whether functions vanish there.
    """
    X, q = door.data.X, np.zeros(door.data.n)
    if origin and not door.bias:
        zero = np.flatnonzero(door.size == 0)
        if len(zero):
            q[zero[0]] = 1
            return q, f"point {zero[0]} is the origin, where every function of this space vanishes"
    first = equal_rows(X)
    wrong = np.flatnonzero(door.y != door.y[first])
    if len(wrong) == 0:
        return None
    i = int(wrong[0])
    q[[i, first[i]]] = 1
    return q, f"points {first[i]} and {i} are equal but have different labels"


def lost(status: str, low: float, high: float, tol: float) -> bool:
    """Whether bounds in the units of the data are so near 0 that float64 has too few digits there for what `status` says."""
    few = 0 < high < float(np.finfo(np.float64).tiny)
    return few and (status == "not-separable" or (status == "certified" and high - low > tol * low))


def nothing_left(upper: float, q: np.ndarray, size: np.ndarray) -> bool:
    """Whether `upper` is rounding beside sum_i q_i size_i, what q would prove if its points did not contradict each other.

    The largest size would not do: beside one point of size 1e10 the margin of a separable set is as small as rounding.
    """
    return upper <= NOTHING * float(q @ size) / float(q.sum())


def integer_weights(q: np.ndarray) -> np.ndarray | None:
    """Small integers proportional to q, if q is close to such."""
    some = np.flatnonzero(q > 1e-6 * q.max())
    ratio = q[some] / q.max()
    for top in range(1, 61):
        guess = np.rint(top * ratio)
        if np.abs(top * ratio - guess).max() < 1e-4:
            whole = np.zeros(len(q))
            whole[some] = guess
            return whole
    return None


def vanishes(door: Door, c: np.ndarray, linear: bool) -> bool:
    """Whether sum_i c_i x_i = 0, and unless `linear` also sum_i c_i relu(v . x_i) = 0 for all v; in exact arithmetic.

    relu(t) = (t + |t|) / 2, and the functions |v . x| of different lines are linearly independent, so the second holds
    when sum_i c_i x_i = 0 and sum_i c_i ||x_i|| = 0 over the points of each line through 0. It is the same for a leaky ReLU.
    """
    index = np.flatnonzero(c)
    D = door.X.shape[1]
    if len(index) * D > EXACT:
        return False
    total = [Fraction(0)] * D
    along: dict[tuple[Fraction, ...], Fraction] = defaultdict(Fraction)
    for i, x in zip(index, door.exact(index).tolist()):
        weight = Fraction(float(c[i]))
        row = [Fraction(v) for v in x]
        total = [t + weight * x for t, x in zip(total, row)]
        lead = next((x for x in row if x), Fraction(1))
        along[tuple(x / lead for x in row)] += weight * abs(lead)
    return not any(total) and (linear or not any(along.values()))


def lines(X: np.ndarray) -> np.ndarray:
    """(n,) equal numbers for points on one line through 0 (up to rounding)."""
    size = np.linalg.norm(X, axis=1, keepdims=True)
    unit = X / np.where(size > 0, size, 1)
    lead = np.take_along_axis(unit, np.abs(unit.round(9)).argmax(1)[:, None], 1)
    return np.unique(equal_rows((unit * np.sign(lead)).round(10)), return_inverse=True)[1].ravel()


def shared_lines(door: Door, y: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """(n,) the line through 0 of each point, and the points (k,) of each line on which `y` takes different values.

    None are found where the time for a look at all points is not there: they are points with a margin of 0, and never needed.
    """
    n, D = door.X.shape
    if door.limits.largest(n, lambda m: PER_NUMBER * m * D, lambda m: 8 * m * D) < n:
        return np.arange(n), []
    line = lines(door.X)
    order = np.argsort(line, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(line[order])) + 1)
    return line, [group for group in groups if len(group) > 1 and np.ptp(y[group]) > 0]


def not_separable(door: Door) -> tuple[np.ndarray, str] | None:
    """Weights q (integers where possible) under which sum_i q_i y_i relu(v . x_i) = 0 for all v, if there are any.

    relu(t) = (t + |t|) / 2, and |v . x| of different lines are linearly independent. So the margin is 0 if and only if some
    q has sum_i q_i y_i x_i = 0 and, on each line, sum_i q_i y_i ||x_i|| = 0: a linear program over the lines with both labels.
    A leaky ReLU is ((1 + slope) t + (1 - slope) |t|) / 2: the same q.
    """
    (line, mixed), y = shared_lines(door, door.y), door.y
    if not mixed:
        return None
    pair = opposite_labels_on_a_ray(door, mixed)
    if pair is not None:
        return pair
    index = np.sort(np.concatenate(mixed))
    X, sign = door.X[index], y[index]
    if len(index) * (len(mixed) + X.shape[1]) > EXACT:
        return None
    names = np.array([line[group[0]] for group in mixed])
    onto = (line[index][None] == names[:, None]) * (sign * door.size[index])  # (lines, k)
    weights = cancelling_weights(np.vstack([(sign[:, None] * X).T, onto]), door.limits)
    if weights is None:
        return None
    q = np.zeros(len(y))
    q[index] = weights
    whole = integer_weights(q)
    if whole is None or not vanishes(door, whole * y, linear=False):
        return None
    some = np.flatnonzero(whole)
    text = ", ".join(map(str, some[:6])) + (" ..." if len(some) > 6 else "")
    return whole, (
        f"every two-layer network averages to zero over points {text}: for x and -x, f(x) - f(-x) is linear; "
        "a bias may help"
    )


def cancelling_weights(A: np.ndarray, limits: Limits, method: str = "highs") -> np.ndarray | None:
    """Weights q >= 0 (k,) of sum 1 with A q = 0 for A (m, k), up to rounding; None where there are none, or no time."""
    from scipy.optimize import linprog

    k, b = A.shape[1], np.append(np.zeros(len(A)), 1.0)
    options = {} if math.isinf(limits.deadline) else {"time_limit": max(limits.left(), 0.01)}
    result = linprog(
        np.zeros(k), A_eq=np.vstack([A, np.ones((1, k))]), b_eq=b, bounds=(0, None), method=method, options=options
    )
    return result.x.clip(0) if result.status == 0 else None


def on_rays(door: Door, mixed: list[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The points of each ray on the lines `mixed`, and their sizes relative to each other."""
    for index in mixed:
        size = door.X[index, int(np.abs(door.X[index[0]]).argmax())]
        for sign in (1, -1):
            ray = np.sign(size) == sign
            if ray.sum() > 1:
                yield index[ray], np.abs(size[ray])


def opposite_labels_on_a_ray(door: Door, mixed: list[np.ndarray]) -> tuple[np.ndarray, str] | None:
    """Points x and a x, a > 0, with different labels: weights a and 1 cancel, as a relu(v . x) = relu(v . a x)."""
    for ray, size in on_rays(door, mixed):
        plus, minus = np.flatnonzero(door.y[ray] > 0), np.flatnonzero(door.y[ray] < 0)
        if len(plus) and len(minus):
            a, b = int(plus[0]), int(minus[0])
            i, j = int(ray[a]), int(ray[b])
            q = np.zeros(len(door.y))
            q[i], q[j] = size[b], size[a]
            if vanishes(door, q * door.y, linear=False):
                return (
                    q,
                    f"points {i} and {j} lie on one ray from the origin but have different labels; a bias may help",
                )
    return None
