"""Margins of several classes: y_i in 0..K-1, f with K outputs, margin min_i f_{y_i}(x_i) - max_{j != y_i} f_j(x_i).

The dual has one weight q_ij >= 0 for each point and wrong class, sum 1, stored as `dual` (n, K) with q_{i, y_i} = 0. With

    g_i = sum_j q_ij (e_{y_i} - e_j)  in R^K

every f in the unit ball has margin at most max_f sum_i g_i . f(x_i). Two classes: both margins here are sqrt(2) times
those of the labels -1 and +1, reached by f = (-h, h) / sqrt(2) with h the best binary function.

Reference: MT (2.2) (MT-2, E-MT-3): gamma* is the largest margin over ||Theta|| <= 1, all parameters in one norm.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from widemargin.kinds import MATRIX_NORMS
from widemargin.pricing import several
from widemargin.pricing.points import Points, reduce_rank
from widemargin.pricing.several import vectors as dual_vectors
from widemargin.spaces import ReLU, Space
from widemargin.types import MULTICLASS_CONVERSIONS, Certificate, Dataset, InputError

from . import norms, programs, rows, turns
from .answers import solves
from .door import (
    EPS,
    EXACT,
    Door,
    Progress,
    cancelling_weights,
    check_data,
    enter,
    integer_weights,
    nothing_left,
    on_rays,
    product,
    shared_lines,
    twins,
    vanishes,
)
from .engine import Engine, lightest, new_directions, threads

STARTS = 192  # local searches per round
AT_ONCE = 4e6  # starts, or climbers, times entries of X: one step of theirs, and what a climb holds, is not too large
COLUMNS = 40  # new neurons per round
MOST_COLUMNS, FEWEST_COLUMNS = 240, 60  # neurons in a master problem, and how many it must be able to have
CLIMBERS = 60  # of them, those that are polished
CENTRE = 0.7  # weight of the best dual so far in the second point that is priced
PATIENCE = 8  # rounds without a better dual before the solver gives up
GRID = 38  # dual weights of F1 are multiples of 2^-GRID, so that w . g_i is exact for small integer w


def class_numbers(data: Dataset) -> tuple[np.ndarray, int]:
    """y as integers and K, the number of classes; an InputError unless y takes exactly the values 0..K-1, K >= 2."""
    check_data(data)
    y = data.single()
    wrong = np.flatnonzero((y != np.floor(y)) | (y < 0))
    advice = "number the classes 0, 1, ..., K-1 (a file: data.load with multiclass=True)"
    if len(wrong):
        raise InputError(f"{data.name}: row {wrong[0]} has the label {y[wrong[0]]:g}, no class number; {advice}")
    values = np.unique(y)
    if len(values) == 1:
        raise InputError(f"{data.name}: y has only one class ({values[0]:g}); several classes are at least two")
    if values[-1] != len(values) - 1:
        gap = int(np.flatnonzero(values != np.arange(len(values)))[0])
        raise InputError(f"{data.name}: no point has the label {gap} although others are larger; {advice}")
    return y.astype(np.int64), len(values)


def margins(scores: np.ndarray, y: np.ndarray) -> np.ndarray:
    """f_{y_i} - max_{j != y_i} f_j of scores (n, K): (n,)."""
    rows = np.arange(len(y))
    others = np.array(scores, dtype=float)
    others[rows, y] = -np.inf
    return np.asarray(scores)[rows, y] - others.max(axis=1)


# --- linear -------------------------------------------------------------------------------------------------------------


@solves("classes")
def multiclass_linear(
    data: Dataset,
    *,
    norm: str = "frobenius",
    bias: bool = False,
    tol: float = 1e-6,
    time_limit: float | None = None,
    memory: float | None = None,
    progress: Progress | None = None,
) -> Certificate:
    """Largest multi-class margin of x -> U x (convention MT2-linear), as a convex quadratic program over pairs.

        margin = max_{||U||_F <= 1} min_{i, j != y_i} (U_{y_i} - U_j) . x_i = min_q ||sum_i g_i x_i'||_F

    `norm` is that of U: "frobenius", "max" (the largest entry, what sign descent maximises; MT2-linear-max), "spectral" (the
    largest singular value, Muon; MT2-linear-spectral), "nuclear" (their sum; MT2-linear-nuclear) or "l1" (the sum of entries;
    MT2-linear-l1). The norm on the right is its dual. With `bias` every point is extended by a coordinate 1. `extra["U"]` (K, D)
    is the best matrix. MT-2 with f = Theta x.

    >>> import widemargin as wm
    >>> data = wm.Dataset([[1.0, 0.0], [-1.0, 0.0]], [0, 1])  # U = (u, -u), |u| = 1 / sqrt(2)
    >>> cert = wm.margins.multiclass_linear(data)
    >>> abs(cert.lower - 2**0.5) < 1e-5, cert.verify(data).ok
    (True, True)
    >>> round(wm.margins.multiclass_linear(data, norm="spectral").lower, 5)  # U has rank one: its length is sqrt(2) |u|
    1.41421
    """
    norms.check_norm(norm, MATRIX_NORMS)
    door, y, K = _enter(data, bias, tol, time_limit, progress, memory)
    twin, D = _twins(door, y, K), door.X.shape[1]
    if norm != "frobenius":
        return _in_norm(door, y, K, norm, twin)
    if twin is not None:
        return _linear_certificate(door, K, (0.0, 0.0), twin, np.zeros((K, D)), "", {})
    problem = Pairs(door, y, K)
    solved = rows.solve(problem, tol, door.teller())
    q, U, zero, upper = problem.on_points(solved.q), solved.predictor, "", solved.upper
    U = np.zeros((K, D)) if U is None else U.reshape(K, D)
    if solved.lower <= 0 and nothing_left(upper, q.sum(1), door.size) and not solved.stopped:
        q, upper, zero = _around_nothing(door, y, q, upper)
    stats = solved.stats | {"pairs": solved.stats["in_play"]}
    return _linear_certificate(door, K, (solved.lower, upper), (q, zero), U, solved.stopped, stats)


def _in_norm(door: Door, y: np.ndarray, K: int, norm: str, twin: tuple[np.ndarray, str] | None) -> Certificate:
    """The certificate of another norm than Frobenius'; `twin` are weights that prove margin 0."""
    X, (n, D) = door.X, door.X.shape
    if twin is not None:
        return _linear_certificate(door, K, (0.0, 0.0), twin, np.zeros((K, D)), "", {}, norm)
    points, others = _pairs(y, K)
    size = np.abs(X)

    def values(U: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scores, e = product(X, U.T)
        off = (e + EPS) * (size @ np.abs(U).T)
        return scores[points, y[points]] - scores[points, others], off[points, y[points]] + off[points, others]

    def spread(q: np.ndarray) -> np.ndarray:
        whole = np.zeros((n, K))
        whole[points, others] = q
        return whole

    def weighted(q: np.ndarray) -> tuple[np.ndarray, float]:
        nearest, e = product(X.T, dual_vectors(spread(q), y))
        return nearest.T, 2 * (e + (K + 4) * EPS) * float((size.T @ spread(q).sum(axis=1)).max())

    pairs = norms.Rows(
        len(points), (K, D), lambda index: _pair_rows(X, y, K, points[index], others[index]), values, weighted
    )
    solved = norms.largest(pairs, norm, door.tol, door.limits, door.teller())
    if solved.lower <= 0 and solved.stopped in ("", "stalled"):
        norms.offer_also(pairs, norm, rows.solve(Pairs(door, y, K), door.tol), solved)
    q, upper, zero = spread(solved.q), solved.upper, ""
    reach = size.max(axis=1) if norm == "l1" else size.sum(axis=1) if norm == "max" else door.size
    if solved.lower <= 0 and nothing_left(upper, q.sum(1), reach) and solved.stopped in ("", "stalled"):
        q, upper, zero = _around_nothing(door, y, q, upper)
    stats = {"rounds": solved.rounds, "pairs": solved.rows, "steps": solved.steps}
    return _linear_certificate(door, K, (solved.lower, upper), (q, zero), solved.A, solved.stopped, stats, norm)


def _around_nothing(door: Door, y: np.ndarray, q: np.ndarray, upper: float) -> tuple[np.ndarray, float, str]:
    """Weights q (n, K) that prove margin 0 up to rounding, or exactly where small integers do; their bound, and the reason."""
    hull = "0 lies in the convex hull of the matrices (e_{y_i} - e_j) x_i'"
    weights = integer_weights(q.ravel())
    if weights is not None:
        whole = weights.reshape(q.shape)
        if all(vanishes(door, g, linear=True) for g in dual_vectors(whole, y).T):
            return whole, 0.0, f"{hull} (exactly)"
    return q, upper, f"{hull} up to rounding"


def _linear_certificate(
    door: Door,
    K: int,
    bounds: tuple[float, float],
    dual: tuple[np.ndarray, str],
    U: np.ndarray,
    stopped: str,
    stats: dict[str, Any],
    norm: str = "frobenius",
) -> Certificate:
    q, zero = dual
    usual = norm == "frobenius"
    return door.certificate(
        "linear-multiclass",
        bounds,
        q,
        degree=1,
        convention=MATRIX_NORMS[norm],
        stopped=stopped,
        zero=zero,
        extra={"U": U.tolist(), "classes": K} | ({} if usual else {"norm": norm}),
        stats=stats,
    )


class Pairs(rows.Features):
    """A row for each (point, wrong class); the predictor is U (K D,)."""

    def __init__(self, door: Door, y: np.ndarray, K: int):
        self.y, self.K = y, K
        size = np.repeat(math.sqrt(2) * door.size, K - 1)  # there may be millions: as few arrays of them as can be
        super().__init__(door, self.pair_rows, K * door.X.shape[1], labels=y, size=size)
        self.blur = EPS * (K + 4) * size

    def first(self, count: int) -> np.ndarray:
        if self.n <= rows.MANY:
            return rows.first_rows(np.repeat(self.y, self.K - 1), count)
        points = rows.first_rows(self.y, count)
        return points * (self.K - 1) + np.random.default_rng(0).integers(self.K - 1, size=len(points))

    def named(self, index: Any) -> tuple[np.ndarray, np.ndarray]:
        """The point and the wrong class of each of the pairs `index`, of which every point has K - 1."""
        pairs = np.arange(*index.indices(self.n)) if isinstance(index, slice) else index
        points, others = np.divmod(pairs, self.K - 1)
        return points, others + (others >= self.y[points])

    def pair_rows(self, index: Any) -> np.ndarray:
        return _pair_rows(self.door.X, self.y, self.K, *self.named(index))

    def judge(self, predictor: Any, block: slice) -> np.ndarray:
        points, others = self.named(block)
        U, X = predictor.reshape(self.K, -1), self.door.X
        across = U[self.y[points]] - U[others]  # (k, D)
        margins = np.einsum("ij,ij->i", X[points], across) / (float(np.linalg.norm(U)) or 1.0)
        margins -= EPS * (X.shape[1] + 12) * self.size[block] + self.blur[block]
        return np.asarray(margins - np.abs(margins) * EPS * (self.m + 8))

    def width(self, predictor: Any) -> int:
        return 4 * self.door.X.shape[1]

    def on_points(self, q: np.ndarray) -> np.ndarray:
        """Weights (n, K) of weights of pairs."""
        out, used = np.zeros((len(self.y), self.K)), np.flatnonzero(q)
        out[self.named(used)] = q[used]
        return out


def _pairs(y: np.ndarray, K: int) -> tuple[np.ndarray, np.ndarray]:
    """All (point, wrong class)."""
    points, others = np.nonzero(np.arange(K) != y[:, None])
    return points, others


def _pair_rows(X: np.ndarray, y: np.ndarray, K: int, points: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(e_{y_i} - e_j) x_i' as rows (P, K D)."""
    Z = np.zeros((len(points), K, X.shape[1]))
    rows = np.arange(len(points))
    Z[rows, y[points]] = X[points]
    Z[rows, others] = -X[points]
    return Z.reshape(len(points), -1)


# --- the door -----------------------------------------------------------------------------------------------------------


def _enter(
    data: Dataset,
    space: Space | bool,
    tol: float,
    time_limit: float | None,
    progress: Progress | None,
    memory: float | None = None,
) -> tuple[Door, np.ndarray, int]:
    y, K = class_numbers(data)
    return enter(data, space, tol, time_limit, progress, memory=memory, signs=False), y, K


def _twins(door: Door, y: np.ndarray, K: int) -> tuple[np.ndarray, str] | None:
    """Weights q (n, K) that prove margin 0: the origin, one point with two labels, or two points on one ray."""
    twin = twins(door)
    if twin is None:
        return _two_on_a_ray(door, y, K)
    q = np.zeros((len(y), K))
    index = np.flatnonzero(twin[0])
    if len(index) == 1:
        q[index[0], (y[index[0]] + 1) % K] = 1
    else:
        i, j = index
        q[i, y[j]] = q[j, y[i]] = 1
    return q, twin[1]


def _two_on_a_ray(door: Door, y: np.ndarray, K: int) -> tuple[np.ndarray, str] | None:
    """Points x and a x, a > 0, of different classes: weights a and 1 cancel."""
    for ray, size in on_rays(door, shared_lines(door, y)[1]):
        other = np.flatnonzero(y[ray] != y[ray[0]])
        if len(other):
            i, j = int(ray[0]), int(ray[other[0]])
            q = np.zeros((len(y), K))
            q[i, y[j]], q[j, y[i]] = size[other[0]], size[0]
            if _vanishes(door, q, y):
                return q, f"points {i} and {j} lie on one ray from the origin but differ in class; a bias may help"
    return None


def _not_separable(door: Door, y: np.ndarray, K: int) -> tuple[np.ndarray, str] | None:
    """Weights q under which sum_i g_i relu(v . x_i) = 0 for all v, if there are any (compare `door.not_separable`).

    A linear program over the lines through 0 with several classes: sum_i g_i x_i' = 0, and on each line
    sum_i g_i ||x_i|| = 0.
    """
    line, mixed = shared_lines(door, y)
    if not mixed:
        return None
    index = np.sort(np.concatenate(mixed))
    X, label, size = door.X[index], y[index], door.size[index]
    if len(index) * (K - 1) * K * (len(mixed) + X.shape[1]) > 10 * EXACT:
        return None
    points, others = _pairs(label, K)
    names = np.array([line[group[0]] for group in mixed])
    onto = (line[index][:, None] == names) * size[:, None]  # (k, lines)
    Z = _pair_rows(np.hstack([X, onto]), label, K, points, others)
    weights = cancelling_weights(Z.T, door.limits)
    if weights is None:
        return None
    q = np.zeros((len(y), K))
    q[index[points], others] = weights
    whole = integer_weights(q.ravel())
    if whole is None or not _vanishes(door, whole.reshape(q.shape), y):
        return None
    return whole.reshape(q.shape), (
        f"every two-layer ReLU network averages to zero over points {', '.join(map(str, np.unique(np.nonzero(q)[0])[:6]))}; "
        "a bias may help"
    )


def _vanishes(door: Door, q: np.ndarray, y: np.ndarray) -> bool:
    g = dual_vectors(q, y)
    return all(vanishes(door, g[:, k], linear=False) for k in range(g.shape[1]))


# --- F1 -----------------------------------------------------------------------------------------------------------------


@solves("classes")
def multiclass_f1(
    data: Dataset,
    *,
    bias: bool = False,
    tol: float = 1e-3,
    time_limit: float | None = 60.0,
    memory: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Certificate:
    """Largest multi-class margin of two-layer ReLU networks of any width (convention M1), between a network and a proof.

        f(x) = sum_j w_j relu(u_j . x),   w_j in R^K,   sum_j ||w_j|| ||u_j|| <= 1
        margin = min_q max_{||u|| = 1} ||sum_i g_i relu(u . x_i)||

    By ||w|| ||u|| <= (||w||^2 + ||u||^2) / 2 the gamma* of MT (2.2), all parameters in one Euclidean norm, is half of this:
    `extra["gamma_star"]` = [lower / 2, upper / 2]. The network is `extra["theta"]` (m, D), `extra["outer"]` (m, K).

    Networks come from column generation: a cone program over given neurons, whose dual q prices new ones by local search.
    The upper bound is the value of q, proved by enumeration of arcs (two dimensions), by a subdivision of the neurons' space
    into cones (few dimensions), or by a covering of the directions w in R^K with one scalar proof each; `norm` is the
    fallback. With many classes and features the last leaves a gap; both bounds always hold.

    >>> import widemargin as wm
    >>> data = wm.Dataset([[1.0, 0.0], [-1.0, 0.0]], [0, 1])  # two classes: sqrt(2) times the margin of labels -1, +1
    >>> cert = wm.margins.multiclass_f1(data)
    >>> abs(cert.lower - 0.5**0.5) < 1e-3, cert.verify(data).ok
    (True, True)
    """
    door, y, K = _enter(data, ReLU(bias=bias), tol, time_limit, progress, memory)

    def solve(door: Door, y: np.ndarray, K: int) -> Certificate:
        with threads(1):
            return Solver(door, y, K, tol, seed, progress).run()

    most = max(min(door.most(turns.WORK[1], turns.NUMBERS), master_points(door, K)), 2 * K)
    if most >= data.n:
        return solve(door, y, K)

    def part(some: Dataset, seconds: float | None) -> Certificate:  # which has all classes
        return solve(*_enter(some, ReLU(bias=bias), tol, seconds, None, memory))

    return turns.in_turns(door, most, part, partial(class_margins, door, y))


def rounded(proof: several.Proof, door: Door) -> several.Proof:
    """The proof with room for what the scaled points may have lost."""
    return replace(proof, upper=proof.upper + 1e-13 * float(proof.g.clip(0).sum(axis=1) @ door.size))


def most_columns(door: Door, n: int, K: int) -> int:
    """Neurons that a master problem of n points may have."""
    pairs = float(n * (K - 1))
    return door.limits.largest(MOST_COLUMNS, lambda m: master_work(n, K, m), lambda m: 8 * pairs * m * K)


def master_work(n: int, K: int, m: int) -> float:
    """Operations until a master problem with m neurons first looks at the clock, about: it is written down, and factorised."""
    # Measured from 3 to 442 classes, within a factor of two.
    return (8e3 + 60.0 * K) * n * (K - 1) * m + 0.2 * float(m * K) ** 3


def master_points(door: Door, K: int) -> int:
    """Points that a master problem with a few neurons can have: one of its steps works out a matrix of all its pairs."""
    width = FEWEST_COLUMNS * K
    return door.limits.largest(len(door.y), lambda k: 4.0 * k * K * width**2, lambda k: 8.0 * k * K * width)


def class_margins(door: Door, y: np.ndarray, cert: Certificate, block: slice) -> np.ndarray:
    """At most the margins of a certificate's network at the points of a block, in the units of the data."""
    theta, outer = (np.array(cert.extra[name]) for name in ("theta", "outer"))
    if len(theta) == 0:
        return np.zeros(len(y[block]))
    least, size = network_margins(door.X[block], door.size[block], y[block], theta, outer)
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.ldexp(least / size * (1 - 4 * EPS), door.shift))


def network_margins(
    X: np.ndarray, length: np.ndarray, y: np.ndarray, theta: np.ndarray, outer: np.ndarray
) -> tuple[np.ndarray, float]:
    """At most the margins (n,) of a network at points X that are `length` long, rounding included, and its norm."""
    scores = (X @ theta.T).clip(0) @ outer
    size = float(np.linalg.norm(outer, axis=1) @ np.linalg.norm(theta, axis=1)) * (1 + 1e-14 * len(theta))
    # every |w_j| |theta_j| |x_i| errs by (D + m + K) roundings, and a margin has two entries
    error = 8 * EPS * (X.shape[1] + len(theta) + outer.shape[1] + 8) * length * size
    return margins(scores, y) - error, size


class Solver(Engine):
    """Points are scaled and written in an orthonormal basis of their span; dual weights are (n, K)."""

    kind, patience, step = "f1-multiclass", 1, 0.0  # a round is many of columns
    stalled = "nothing better was found before the time limit; both bounds hold"

    def __init__(self, door: Door, y: np.ndarray, K: int, tol: float, seed: int, progress: Progress | None = None):
        super().__init__(door, tol, seed, progress)
        self.y, self.K = y, K
        self.X, self.basis = reduce_rank(door.X)  # (n, r), (D, r)
        cpu, memory = torch.device("cpu"), door.limits.memory
        self.points = Points(door.X, None, door.shift, cpu, self.basis, faint=door.faint, memory=memory)
        self.n, self.r = self.X.shape
        self.V = np.zeros((0, self.r))  # neurons of the master problem
        self.columns = most_columns(door, self.n, K)
        self.joining = min(COLUMNS, max(1, self.columns // 2))  # of them, those that come together
        self.at_once = int(max(8, AT_ONCE / self.X.size))
        self.theta, self.outer = np.zeros((0, self.r)), np.zeros((0, K))
        q = (np.arange(K) != y[:, None]) / np.bincount(y, minlength=K)[y][:, None]
        self.dual = several.norm(door.X, dual_vectors(self.exact(q), y))
        self.upper, self.centre, self.stale = self.dual.upper, q / q.sum(), 0

    def nothing(self) -> tuple[np.ndarray, dict[str, Any], float, str] | None:
        none = _twins(self.door, self.y, self.K) or _not_separable(self.door, self.y, self.K)
        return (none[0], {"type": "norm"}, 0.0, none[1]) if none is not None else None

    def round(self) -> bool:
        """Columns while they help, for half of the time left at most; then a proof, which may meet neurons that help."""
        until, moving = time.perf_counter() + 0.5 * self.left(), True
        while moving and not self.closed() and time.perf_counter() < until:
            moving = self.column_round()
        if not self.closed():
            moving |= self.take(self.last_proof(), self.joining) > 0
        return moving

    def exact(self, q: np.ndarray) -> np.ndarray:
        """q as multiples of 2^-GRID that sum to one exactly, small weights left out (fewer branchings)."""
        q = np.where(q > min(1e-6, 1e-3 * self.tol) * q.max(), q, 0.0)
        q = np.rint(q / q.sum() * 2.0**GRID)
        q.flat[q.argmax()] += 2.0**GRID - q.sum()
        return q / 2.0**GRID

    # ------------------------------------------------------------------ networks

    def start(self) -> None:
        """First neurons: the points, their opposites, random directions, and ascents under balanced weights."""
        unit = self.X / np.linalg.norm(self.X, axis=1, keepdims=True).clip(1e-300)
        some = unit[:: max(1, self.n // max(STARTS, self.at_once // 2))]  # of many points those are enough
        starts = np.vstack([some, -some, self.rng.standard_normal((STARTS, self.r))])
        g = dual_vectors(self.centre, self.y)
        V, value = several.ascend(self.X, g, starts, 40, time.perf_counter() + 0.2 * self.left())
        share = min(COLUMNS, max(1, self.columns // 6))
        self.take(several.best(V, value, len(V)), 3 * share)
        self.take(unit[self.rng.permutation(self.n)], 2 * share)
        self.take(self.rng.standard_normal((share, self.r)), share)

    def take(self, V: np.ndarray, most: int) -> int:
        """Add up to `most` rows of V, best first, that are new.

        On a crease a neuron that is off by e loses about e |x|, so those already there must be much closer than the
        accuracy asked for; of those that come together one of a neighbourhood is enough.
        """
        V = V / np.linalg.norm(V, axis=1, keepdims=True).clip(1e-300)
        near = (0.01 * self.tol * self.lower / self.door.size.max()) ** 2 + 1e-24
        fresh = new_directions(V, self.V, near, 1e-4 * self.tol, most)
        self.V = np.vstack([self.V, fresh])
        return len(fresh)

    def column_round(self) -> bool:
        """Solve the master problem, price, prove where nothing is left to gain; false when there is no progress."""
        self.hurried = not self.door.limits.affords(master_work(self.n, self.K, len(self.V)))
        if self.hurried:  # of hundreds of classes it takes seconds
            return False
        W, q = programs.solve_classes(self.X, self.y, self.V, self.K, min(self.left(), 60.0))
        if q is None:
            return False
        self.offer(self.V, W)
        size = np.linalg.norm(W, axis=1)
        if len(self.V) > self.columns:
            self.V = self.V[np.argsort(-size)[: max(1, self.columns // 2)]]
        q = self.exact(q)
        # The dual of the master problem jumps; a mixture with the best one so far prices more steadily.
        mixed = self.exact(CENTRE * self.centre + (1 - CENTRE) * q)
        before, new = self.estimate, 0
        for weights in (q, mixed) if math.isfinite(before) else (q,):
            V, value = self.price(weights)
            self.offer_centre(weights, float(value[0]))
            new += self.take(V[value > self.lower * (1 + 0.05 * self.tol)], self.joining)
        self.stale = 0 if self.estimate < before else self.stale + 1
        self.tell(f"{len(self.V)} neurons, estimate {self.estimate / self.unit():.6f}")
        if self.estimate <= self.lower * (1 + 0.5 * self.tol) and self.door.X.shape[1] > 2:
            violators = self.prove(self.centre, self.lower * (1 + 0.9 * self.tol))
            if len(violators):  # the estimate was wrong
                self.estimate = math.inf
                new += self.take(violators, self.joining)
        return new > 0 and self.stale < PATIENCE

    def price(self, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Neurons with a large |sum_i g_i relu(v . x_i)|, and these values, best first; in two dimensions the best one."""
        g = dual_vectors(q, self.y)
        starts = np.vstack([self.theta, self.rng.standard_normal((STARTS, self.r))])
        V, value = several.ascend(self.X, g, starts, 40, self.door.deadline)
        V = several.best(V, value, min(CLIMBERS, self.at_once))
        V, value = several.climb(self.X, g, V, until=self.door.deadline)
        if self.door.X.shape[1] <= 2:
            proof, arcs = several.enumeration(self.door.X, g)
            self.keep(proof)
            V = np.vstack([V, arcs @ self.basis])
            value = np.append(value, several.values(self.X, g, arcs @ self.basis))
        order = np.argsort(-value)
        return V[order], value[order]

    def offer(self, V: np.ndarray, W: np.ndarray) -> None:
        """Keep the network if its margin, from the definition, is the best so far."""
        size = np.linalg.norm(W, axis=1)

        def margin(keep: np.ndarray) -> float:
            scores = (self.X @ V[keep].T).clip(0) @ W[keep]
            return float(margins(scores, self.y).min()) / float(size[keep].sum())

        best = margin(size > 0) if size.any() else 0.0
        if best > self.lower:
            shares = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 0.0)  # neurons with next to no mass only clutter the answer
            keep = next(k for k in (size > s * size.sum() for s in shares) if margin(k) >= best * (1 - 0.01 * self.tol))
            self.lower, self.theta, self.outer = margin(keep), V[keep], W[keep] / size[keep].sum()

    # ------------------------------------------------------------------ proofs

    def prove(self, q: np.ndarray, goal: float) -> np.ndarray:
        """Upper bounds of the value of q, hopefully `goal`; the best is kept. Returns neurons (k, r) with a value above it."""
        until, met, g = max(self.door.deadline, time.perf_counter() + 0.2), self.V[:0], dual_vectors(q, self.y)
        unscale = partial(self.door.unscale, degree=1, up=True)
        for proof in several.price(self.points, g, goal, until, self.rng, unscale):
            near = self.keep(proof)
            met = near[several.values(self.X, g, near) > goal]
            if len(met) or self.closed():
                break
        value = several.values(self.X, g, met)
        return met[np.argsort(-value)]

    def last_proof(self) -> np.ndarray:
        """The best bound of the best dual in the time left. The goal moves up where neurons are above it; the last of these."""
        goal = max(self.lower * (1 + 0.9 * self.tol), 1e-300)
        for _ in range(4):
            if math.isfinite(self.estimate):
                goal = max(goal, self.estimate * (1 + 0.2 * self.tol))
            met = self.prove(self.centre, goal)
            if not len(met) or self.late():
                break
            self.estimate = float(several.values(self.X, dual_vectors(self.centre, self.y), met).max())
        return met

    def keep(self, proof: several.Proof) -> np.ndarray:
        """Take the proof if it is the best; its directions (k, r)."""
        self.nodes += proof.nodes
        self.take_dual(rounded(proof, self.door))
        return proof.directions @ self.basis if proof.directions.size else np.zeros((0, self.r))

    # ------------------------------------------------------------------ results

    def best(self) -> tuple[None, float]:
        """The network is not a measure: it has several outputs (see `extra`)."""
        self.prune()
        theta = self.theta @ self.basis.T
        self.theta = theta / np.linalg.norm(theta, axis=1, keepdims=True)
        if not len(theta):
            return None, 0.0
        least, size = network_margins(self.door.X, self.door.size, self.y, self.theta, self.outer)
        return None, max(0.0, float(least.min()) / size)

    def proof(self) -> tuple[dict[str, Any], float, np.ndarray]:
        return self.dual.saved, self.dual.upper, several.class_weights(self.dual.g)

    def extra(self, lower: float, upper: float) -> dict[str, Any]:
        theta, outer = (self.theta, self.outer) if lower > 0 else (np.zeros((0, 0)), np.zeros((0, 0)))
        stated = [bound * MULTICLASS_CONVERSIONS["MT2"] for bound in (lower, upper)]
        return {"classes": self.K, "theta": theta.tolist(), "outer": outer.tolist(), "gamma_star": stated}

    def stats(self) -> dict[str, Any]:
        return super().stats() | {"atoms": len(self.theta) if self.lower > 0 else 0}

    def prune(self) -> None:
        """At most n (K - 1) neurons, as far as they keep the margin: only |w_j| changes, so Caratheodory's theorem applies."""
        size = np.linalg.norm(self.outer, axis=1)
        points, others = _pairs(self.y, self.K)
        W = self.outer / size[:, None]
        H = (self.X @ self.theta.T).clip(0)
        columns = H[points] * (W[:, self.y[points]] - W[:, others]).T  # (P, m)
        mass = lightest(columns, size, max(self.door.deadline, time.perf_counter() + 0.5))
        keep = mass > 0
        self.theta, self.outer = self.theta[keep], W[keep] * mass[keep, None] / mass.sum()
