"""The projected distance of the two classes: how far apart they stay when only r dimensions are kept."""

from __future__ import annotations

import dataclasses
import math
import operator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import optimize, sparse

from widemargin.types import Certificate, Dataset, InputError, show

from . import qp
from ._sign_tree import NODES, TREE_DIMENSIONS, SignTree
from .answers import solves
from .door import EPS, Door, Late, Limits, Progress, Tell, check_count, check_seed, enter, twins
from .pairs import NEAREST, Pairs, in_play, nearest
from .programs import solve_cones

FEW = 1000  # points that are judged whatever the clock says
LOST_SQUARES = 1e-160  # distance whose square is lost
TINY = 1e-250  # squared distance, in scaled units, below which digits are lost
WHOLE = 20  # up to this many dimensions an interior-point method finishes the relaxation
WEIGHTED = 2000  # pairs with weight in the smoothed problem, at most
CLIMB = 20  # linear programs from one start
ROUNDS = 40  # of the interior-point method, each with more pairs
STAGES = 12  # of the smoothed problem, each with a third of the smoothing


@solves()
def projected(
    data: Dataset,
    rank: int = 2,
    *,
    tol: float = 1e-3,
    seed: int = 0,
    restarts: int = 16,
    time_limit: float | None = None,
    memory: float | None = None,
    progress: Progress | None = None,
) -> Certificate:
    """Projected interclass distance (convention "distance"), CB (10) (CB-19).

        Delta_r = max over orthogonal projections P of rank r of min_{y_i != y_k} ||P (x_i - x_k)||

    `lower` is reached by the rows of `extra["frame"]` (r, d), found by a search. `upper` is proved by weights q on pairs: with
    D_ik = (x_i - x_k)(x_i - x_k)', Delta_r^2 <= sum of the r largest eigenvalues of sum q_ik D_ik, the dual of the relaxation of
    projections to the Fantope {0 <= M <= I, tr M = r}. The relaxation can have a gap, above all for small r; then both bounds are
    returned as they are. For r = 1 a tree over the signs of v . (x_i - x_k) closes it in few dimensions. `extra["relaxation"]`
    is the bound of the relaxation. Delta_r grows with r, and Delta_d is the least distance of two points of different classes.

    `restarts` is the number of random starts of that search.

    >>> import widemargin as wm
    >>> data = wm.Dataset([[0.0, 0.0], [3.0, 4.0]], [1, -1])
    >>> cert = wm.margins.projected(data, rank=1)
    >>> abs(cert.lower - 5) < 1e-2, cert.verify(data).ok
    (True, True)
    """
    door = enter(data, False, tol, time_limit, progress, memory=memory)
    try:
        rank = operator.index(rank)
    except TypeError:
        raise InputError(f"rank must be an integer, not {show(rank)}") from None
    if not 1 <= rank <= data.d:
        raise InputError(f"{data.name}: rank must lie between 1 and d = {data.d}, not {show(rank)}")
    check_count("restarts", restarts, 1)
    check_seed("projected", seed)
    if len(np.unique(door.y)) < 2:
        raise InputError(f"{data.name}: a distance between classes needs points of both labels")
    chosen_points, twin = in_play(door), twins(door, origin=False)
    if twin is not None:  # what shows that the distance is 0 must be among the pairs
        chosen_points = np.union1d(chosen_points, np.flatnonzero(twin[0]))
    pairs = Pairs.of(door, chosen_points)
    whole = len(chosen_points) == data.n
    stopped, zero = "", ""
    relaxation: float | None = None
    close = pairs.order(pairs.squares())[:1]
    if twin is not None:
        zero, ends = twin[1], np.flatnonzero(twin[0])
        plus, minus = ends if door.y[ends[0]] > 0 else ends[::-1]
        at = np.array([[np.flatnonzero(pairs.plus == plus)[0], np.flatnonzero(pairs.minus == minus)[0]]])
        frame, chosen, proof = np.eye(rank, data.d), Chosen(at, np.ones(1)), _trace_proof(pairs, at)
        lower = upper = 0.0
    elif pairs.squares()[tuple(close.T)][0] < TINY or (pairs.k <= rank and whole):
        # no projection is needed, as the closest pair decides; or it is so close that float64 cannot tell more
        frame = np.eye(data.d) if rank == data.d else pairs.basis[:rank]
        chosen, proof = Chosen(close, np.ones(1)), _trace_proof(pairs, close)
        lower, upper = _reached(door, frame), _shown(door, pairs, rank, proof)
    else:
        search = Search(pairs, rank, tol, door.limits, door.teller())
        try:
            with np.errstate(all="ignore"), suppress(np.linalg.LinAlgError):  # what comes of it is judged
                _solve(search, np.random.default_rng(seed), restarts)
        except KeyboardInterrupt:
            stopped = "interrupted"
        stopped = stopped or ("time-limit" if door.limits.late() else "")
        frame, chosen = search.F @ pairs.basis, search.best
        if not len(chosen.weight):  # all weights were lost in rounding
            chosen = Chosen(close, np.ones(1))
        lower = _reached(door, frame)
        proof = _spectral_proof(door, pairs, rank, chosen)
        upper = _shown(door, pairs, rank, proof)
        trace = _trace_proof(pairs, close)
        if (other := _shown(door, pairs, rank, trace)) <= upper:
            upper, proof, chosen = other, trace, Chosen(close, np.ones(1))
        relaxation = door.unscale(upper, 1, up=True)
        if rank == 1 and pairs.k <= TREE_DIMENSIONS and not stopped and lower < (1 - tol) * upper:
            tree = SignTree(pairs, search.F[0], math.sqrt(max(search.low, 0.0)), tol, door.limits)
            with np.errstate(all="ignore"), suppress(np.linalg.LinAlgError):
                tree.grow()
            other_frame = tree.v[None] @ pairs.basis
            if (reached := _reached(door, other_frame)) > lower:
                lower, frame = reached, other_frame
            value, shown = tree.proof(pairs)
            if value < upper:
                upper, proof = value, shown
            stopped = tree.stopped
        if not stopped and not whole and lower < (1 - tol) * upper:
            stopped = "time-limit"
    frame = np.vstack([frame, np.zeros((rank - len(frame), data.d))])  # some points may span fewer dimensions than all
    q = np.zeros(data.n)
    for (i, k), w in zip(pairs.names(chosen.at), chosen.weight / chosen.weight.sum()):
        q[i] += w / 2
        q[k] += w / 2
    certificate = door.certificate(
        "projected",
        (lower, max(upper, lower)),
        q,
        degree=1,
        convention="distance",
        stopped=stopped,
        zero=zero,
        extra={"rank": rank, "frame": frame.tolist(), "relaxation": relaxation},
        stats={"seed": seed, "pairs": len(pairs.A) * len(pairs.B), "dimensions": pairs.k},
    )
    status, reason = certificate.status, certificate.reason
    if status == "rounding":
        status, reason = "stalled", "the relaxation and the best projection found differ; both bounds hold"
    elif status == "stalled":
        reason = f"the tree over signs has {NODES} nodes and is not grown further; both bounds hold"
    bound = {"trace": "trace", "fantope": "fantope", "fantope-pairs": "fantope", "signs": "signs"}[proof["type"]]
    return dataclasses.replace(certificate, proof=proof, bound=bound, status=status, reason=reason)


@dataclass(frozen=True)
class Chosen:
    at: np.ndarray  # (m, 2)
    weight: np.ndarray  # (m,) positive


@dataclass
class Search:
    """The best frame F (r, k) and the best weights so far, in squared distances."""

    pairs: Pairs
    rank: int
    tol: float
    limits: Limits
    tell: Tell | None = None
    F: np.ndarray = field(init=False)
    low: float = field(default=-1.0, init=False)  # min ||F z||^2
    high: float = field(default=math.inf, init=False)  # what `best` proves, up to rounding
    best: Chosen = field(init=False)
    most: int = field(init=False)  # pairs with weight, whose eigenvalues the proof needs

    def __post_init__(self) -> None:
        d = self.pairs.X.shape[1]
        self.most = self.limits.largest(
            WEIGHTED, lambda m: (4.0 * m * d + 12.0 * min(m, d) ** 2) * min(m, d), lambda m: 4.0 * m * d
        )

    @property
    def late(self) -> bool:
        return self.limits.late()

    @property
    def closed(self) -> bool:
        return self.low >= (1 - 0.5 * self.tol) ** 2 * self.high

    def offer(self, F: np.ndarray) -> float:
        value = float(self.pairs.squares(F).min())
        if value > self.low:
            self.low, self.F = value, F
            self.report("projection")
        return value

    def report(self, what: str) -> None:
        if self.tell is not None:
            self.tell(math.sqrt(max(self.low, 0.0)), math.sqrt(self.high), f"a better {what}")

    def prove(self, chosen: Chosen) -> float:
        Z = self.pairs.z(chosen.at) * np.sqrt(chosen.weight / chosen.weight.sum())[:, None]
        value = float((np.linalg.svd(Z, compute_uv=False)[: self.rank] ** 2).sum())
        if value < self.high:
            self.high, self.best = value, chosen
            self.report("bound")
        return value


def _solve(search: Search, rng: np.random.Generator, restarts: int) -> None:
    pairs, r = search.pairs, search.rank
    near = pairs.order(pairs.squares())
    search.prove(Chosen(near[:1], np.ones(1)))
    Z = pairs.z(near)
    scatter = np.linalg.svd(Z, full_matrices=False)[2]
    search.offer(_orthonormal(np.vstack([scatter, rng.standard_normal((r, pairs.k))])[:r]))
    M = _relaxation(search)
    # Random frames with covariance M: where the relaxation is tight, its top eigenvectors are the answer.
    if search.late:
        return
    values, vectors = np.linalg.eigh(M)
    root = vectors * np.sqrt(values.clip(0))  # (k, k)
    starts = [
        search.F,
        vectors[:, ::-1][:, :r].T,
        *(_orthonormal(np.vstack([u, root.T[::-1]])[:r]) for u in _splits(search)),
    ]
    starts += [_orthonormal(rng.standard_normal((r, pairs.k)) @ root.T) for _ in range(restarts)]
    starts += [_orthonormal(rng.standard_normal((r, pairs.k))) for _ in range(restarts // 2)]
    tried = []
    for F in starts:
        if search.closed or search.late:
            return
        F = _ascended(search, F)
        tried.append((search.offer(F), F))
    tried.sort(key=lambda pair: -pair[0])
    small = r * (pairs.k - r) <= 60
    for _, F in tried[: 4 if small else 1]:
        climber = Climber(pairs, F, search.limits)
        steps = CLIMB if small else CLIMB // 4  # each is a linear program in r (k - r) unknowns
        while not search.closed and not search.late and climber.steps < steps and climber.step():
            pass
        search.offer(climber.F)


def _splits(search: Search) -> list[np.ndarray]:
    """Directions that may separate the classes by a threshold: of least squares, and of the largest margin with a bias."""
    pairs = search.pairs
    C = np.vstack([pairs.A, pairs.B])
    y = np.repeat([1.0, -1.0], [len(pairs.A), len(pairs.B)])
    rows = np.hstack([C, np.full((len(C), 1), 3 * float(np.linalg.norm(C, axis=1).max()))])
    both = [
        np.linalg.lstsq(rows, y, rcond=None)[0],
        qp.solve_factor(rows * y[:, None], 1e-4, search.limits.deadline).q @ (rows * y[:, None]),
    ]
    return [u[:-1] for u in both if u[:-1].any()]


def _ascended(search: Search, F: np.ndarray) -> np.ndarray:
    """F after gradient steps on the soft minimum of ||F z||^2, with less and less smoothing."""
    pairs = search.pairs
    A, B = pairs.A, pairs.B
    values = pairs.squares(F)
    for part in (0.3, 0.1, 0.03, 0.01):
        mu = part * max(float(np.quantile(values, min(1.0, 50 / values.size))), 1e-300)
        step = 0.0
        for _ in range(30):
            if search.late:
                return F
            low = float(values.min())
            q = np.exp((low - values) / mu)  # (n+, n-)
            value = low - mu * math.log(float(q.sum()))
            q /= q.sum()
            FA, FB = F @ A.T, F @ B.T
            G = 2 * ((FA * q.sum(axis=1) - FB @ q.T) @ A + (FB * q.sum(axis=0) - FA @ q) @ B)  # 2 F sum q z z'
            G -= (G @ F.T) @ F  # orthogonal to the span
            length = float((G * G).sum())
            step = 2 * step or 0.3 * math.sqrt(len(F) / max(length, 1e-300))
            for _ in range(20):
                new = _orthonormal(F + step * G)
                after = pairs.squares(new)
                if _soft(after, mu) >= value + 0.3 * step * length:
                    break
                step /= 3
            else:
                break
            F, values = new, after
    return F


def _orthonormal(F: np.ndarray) -> np.ndarray:
    return np.linalg.qr(F.T)[0].T


@dataclass
class Climber:
    """Sequential linear programs: F moves to the span of F + N G, G the complement of F, where to first order
    ||P z||^2 = ||F z||^2 + 2 (F z)' N (G z); N maximises the least of these over the nearest pairs, |N_ij| <= radius."""

    pairs: Pairs
    F: np.ndarray  # (r, k)
    limits: Limits
    radius: float = 0.1
    steps: int = 0
    value: float = field(init=False)

    def __post_init__(self) -> None:
        self.value = float(self.pairs.squares(self.F).min())

    def step(self) -> bool:
        """False when nothing improves any more."""
        self.steps += 1
        r, k = self.F.shape
        G = np.linalg.qr(np.vstack([self.F, np.eye(k)]).T)[0].T[r:k]  # (k - r, k)
        squares = self.pairs.squares(self.F)
        Z = self.pairs.z(self.pairs.order(squares, min(NEAREST, 20 + 4 * r * (k - r))))
        f, g = Z @ self.F.T, Z @ G.T
        slope = 2 * (f[:, :, None] * g[:, None, :]).reshape(len(Z), -1)  # (m, r (k - r))
        scale = max(self.value, 1e-300)
        rows = np.hstack([-slope / scale, np.ones((len(Z), 1))])
        c = np.append(np.zeros(slope.shape[1]), -1.0)
        while self.radius > 1e-9:
            limits = [(-self.radius, self.radius)] * slope.shape[1] + [(None, None)]
            seconds = {"time_limit": min(max(self.limits.left(), 0.01), 1e6)}
            result = optimize.linprog(
                c, rows, (f * f).sum(axis=1) / scale, bounds=limits, method="highs", options=seconds
            )
            if result.status == 1:  # the time is over
                return False
            if result.status == 0:
                if -result.fun <= 1 + 1e-12:
                    return False
                F = _orthonormal(self.F + result.x[:-1].reshape(r, -1) @ G)
                value = float(self.pairs.squares(F).min())
                if value > self.value * (1 + 1e-13):
                    good = value - self.value > 0.5 * (-result.fun - 1) * scale
                    self.F, self.value = F, value
                    self.radius *= 2 if good else 0.7
                    return True
            self.radius /= 4
        return False


# ---------------------------------------------------------------- the relaxation


def _relaxation(search: Search) -> np.ndarray:
    """max t s.t. <M, z z'> >= t for all pairs, 0 <= M <= I, tr M = r: the best M found; weights go to `search`.

    First the smoothed problem; then, in few dimensions, an interior-point method over the pairs that matter.
    """
    pairs, r = search.pairs, search.rank
    M, best = _smoothed(search)
    if pairs.k > WHOLE:
        return M
    scale = math.sqrt(float(np.median(pairs.squares())))
    at = pairs.order(pairs.inner(M), 100)
    for _ in range(ROUNDS):
        if search.closed or search.late or search.high - best <= 0.1 * search.tol * search.high:
            break
        solved = _fantope(pairs.z(at) / scale, r, search.limits)
        if solved is None:
            break
        U, weight = solved
        values, vectors = np.linalg.eigh(U)
        values = values.clip(0, 1)
        values *= min(1.0, r / values.sum())
        squares = pairs.squares(np.sqrt(values)[:, None] * vectors.T)
        if (least := float(squares.min())) > best:
            best, M = least, (vectors * values) @ vectors.T
        keep = weight > 1e-9 * weight.max()
        search.prove(Chosen(at[keep], weight[keep]))
        more = np.unique(np.vstack([at, pairs.order(squares, 60)]), axis=0)
        if len(more) == len(at):
            break
        at = more
    return M


def _smoothed(search: Search) -> tuple[np.ndarray, float]:
    """max over the Fantope of -mu log sum exp(-<M, z z'> / mu) by accelerated projected gradients, mu -> 0.

    Where M is optimal, the weights q ~ exp(-<M, z z'> / mu) prove a bound that is off by at most mu log(number of pairs).
    """
    pairs, r = search.pairs, search.rank
    k = pairs.k
    M = np.eye(k) * r / k
    values = pairs.inner(M)
    best, least = M, float(values.min())
    mu, step = max(0.2 * least, 1e-12 * float(values.max())), 0.0  # rounding may leave nothing of the least
    for _ in range(STAGES):
        moved, momentum = M, 1.0
        for iteration in range(150):
            gradient, value = _soft_gradient(pairs, pairs.inner(moved), mu)
            step = 1.5 * step or 0.1 * k / max(float(np.linalg.norm(gradient)), 1e-300)
            for _ in range(60):  # backtracking
                new = _to_fantope(moved + step * gradient, r)
                change = new - moved
                after = pairs.inner(new)
                room = float((gradient * change).sum()) - float((change * change).sum()) / (2 * step)
                if _soft(after, mu) >= value + room - 1e-12 * abs(value) or step < 1e-12 or search.late:
                    break
                step /= 2
            if float(((new - moved) * (new - M)).sum()) < 0:
                momentum = 1.0  # restart where the momentum points backwards
            following = (1 + math.sqrt(1 + 4 * momentum * momentum)) / 2
            moved = new + (momentum - 1) / following * (new - M)
            M, momentum = new, following
            if after.min() > least:
                best, least = M, float(after.min())
            if iteration % 10 == 9 or search.late:
                gap = _prove_soft(search, after, mu) - float(after.min())
                if gap <= 1.5 * mu * math.log(after.size) + 0.05 * search.tol * search.high or search.late:
                    break
        if search.closed or search.late or search.high - least <= 0.2 * search.tol * search.high:
            break
        mu /= 3
    return best, least


def _soft(values: np.ndarray, mu: float) -> float:
    low = float(values.min())
    return low - mu * math.log(float(np.exp((low - values) / mu).sum()))


def _soft_gradient(pairs: Pairs, values: np.ndarray, mu: float) -> tuple[np.ndarray, float]:
    """sum q z z' with q ~ exp(-values / mu), and the soft minimum."""
    low = float(values.min())
    q = np.exp((low - values) / mu)  # (n+, n-)
    total = float(q.sum())
    q /= total
    A, B = pairs.A, pairs.B
    cross = A.T @ q @ B
    gradient = (A.T * q.sum(axis=1)) @ A + (B.T * q.sum(axis=0)) @ B - cross - cross.T
    return gradient, low - mu * math.log(total)


def _prove_soft(search: Search, values: np.ndarray, mu: float) -> float:
    at = search.pairs.order(values, search.most)
    weight = np.exp((values.min() - values[tuple(at.T)]) / mu)
    keep = weight > 1e-6
    return search.prove(Chosen(at[keep], weight[keep]))


def _to_fantope(M: np.ndarray, r: int) -> np.ndarray:
    """The nearest matrix with eigenvalues in [0, 1] and trace r: eigenvalues clip(e - shift, 0, 1)."""
    e, V = np.linalg.eigh((M + M.T) / 2)
    corners = np.sort(np.concatenate([e, e - 1]))  # the trace is linear in the shift between these
    traces = (e - corners[:, None]).clip(0, 1).sum(axis=1)  # decreasing
    j = int(np.searchsorted(-traces, -r, side="left"))
    if j == 0 or traces[j - 1] == traces[j]:
        shift = corners[j]
    else:
        shift = corners[j - 1] + (traces[j - 1] - r) / (traces[j - 1] - traces[j]) * (corners[j] - corners[j - 1])
    return (V * (e - shift).clip(0, 1)) @ V.T


def _fantope(Z: np.ndarray, r: int, limits: Limits) -> tuple[np.ndarray, np.ndarray] | None:
    """The relaxation for a few pairs z (m, s): M (s, s) and the weights of the pairs."""
    import clarabel  # where used: the package must import on machines without it

    m, s = Z.shape
    row, column = np.triu_indices(s)
    order = np.lexsort((row, column))
    row, column = row[order], column[order]  # upper triangle, column by column
    factor = np.where(row == column, 1.0, math.sqrt(2))
    p = len(row)
    identity = (row == column).astype(float)
    inner = Z[:, row] * Z[:, column] * factor  # (m, p): <z z', M> in the coordinates svec(M)
    A = sparse.vstack(
        [
            sparse.csc_matrix(np.append(identity, 0.0)[None]),
            sparse.csc_matrix(np.hstack([-inner, np.ones((m, 1))])),
            sparse.hstack([-sparse.identity(p), sparse.csc_matrix((p, 1))]),
            sparse.hstack([sparse.identity(p), sparse.csc_matrix((p, 1))]),
        ]
    ).tocsc()
    b = np.concatenate([[float(r)], np.zeros(m + p), identity])
    c = np.append(np.zeros(p), -1.0)
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_threads = 1
    settings.time_limit = min(max(limits.left(), 0.05), 1e6)
    cones = [
        clarabel.ZeroConeT(1),
        clarabel.NonnegativeConeT(m),
        clarabel.PSDTriangleConeT(s),
        clarabel.PSDTriangleConeT(s),
    ]
    solution = solve_cones(sparse.csc_matrix((p + 1, p + 1)), c, A, b, cones, settings)
    x, weight = np.array(solution.x), np.array(solution.z)[1 : m + 1].clip(0)
    if not np.isfinite(x).all() or not np.isfinite(weight).all() or not weight.any():
        return None
    M = np.zeros((s, s))
    M[row, column] = M[column, row] = x[:-1] / factor
    return M, weight


# ---------------------------------------------------------------- bounds that hold in spite of rounding


def _reached(door: Door, frame: np.ndarray) -> float:
    """min ||F z|| / sqrt(max_j sum_k |F F'|_jk), rounding subtracted: the projection to the rows of F keeps at least that.

    0 where the time is over before all pairs have been looked at.
    """
    if not np.isfinite(frame).all() or not frame.any():
        return 0.0
    exact = np.array_equal(frame, np.eye(len(frame)))
    try:
        W = (
            door.X
            if exact
            else np.concatenate([door.X[b] @ frame.T for b in door.limits.blocks(len(door.y), frame.size)])
        )
        least = float(nearest(W[door.y > 0], W[door.y < 0], door)[0].min())  # W (n, r)
    except Late:
        if len(door.y) > FEW:
            return 0.0
        return _reached(dataclasses.replace(door, limits=dataclasses.replace(door.limits, deadline=math.inf)), frame)
    size = float(door.size.max()) * float(np.linalg.norm(frame, axis=1).max())
    slip = 0.0 if exact else 4 * EPS * (door.X.shape[1] + 4) * size * math.sqrt(len(frame))
    gram = float(np.abs(frame @ frame.T).sum(axis=1).max()) * (1 + EPS * (frame.shape[1] + len(frame) + 8))
    return max(0.0, (least - slip - LOST_SQUARES) * (1 - EPS * (len(frame) + 12)) / math.sqrt(gram))


def _trace_proof(pairs: Pairs, at: np.ndarray) -> dict[str, Any]:
    return {"type": "trace", "pairs": [[i, k, 1] for i, k in pairs.names(at)]}


def _spectral_proof(door: Door, pairs: Pairs, rank: int, chosen: Chosen) -> dict[str, Any]:
    """A = sum q z z' <= t I + B B', so the sum of the r largest eigenvalues is at most r t + ||B||^2 (docs/certificates.md)."""
    order = np.argsort(-chosen.weight)
    order = order[chosen.weight[order] > 1e-7 * chosen.weight.max()]
    names, w = pairs.names(chosen.at[order]), chosen.weight[order] / chosen.weight[order].sum()
    Z = np.array([door.X[i] - door.X[k] for i, k in names])  # (m, d)
    S = Z * np.sqrt(w)[:, None]
    small = len(Z) < Z.shape[1]
    # eigenvalues of S S' and S' S agree; B lives on the smaller side
    values, vectors = np.linalg.eigh(S @ S.T if small else S.T @ S)
    values, vectors = values[::-1].clip(0), vectors[:, ::-1]
    slack = 2e-14 * (len(values) + 8) * float(values.sum())
    t = float(values[rank]) + slack if len(values) > rank else slack
    B = vectors[:, :rank] * np.sqrt((values[:rank] - t + slack).clip(0))
    if small:
        B = B / np.sqrt(w)[:, None]
    body = {"pairs": [[i, k, float(v)] for (i, k), v in zip(names, w)], "t": t, "B": B.tolist(), "shift": door.shift}
    return {"type": "fantope-pairs" if small else "fantope", **body}


def _shown(door: Door, pairs: Pairs, rank: int, proof: dict[str, Any]) -> float:
    """The distance that a proof shows, in scaled units, rounded up."""
    w = np.array([v for _, _, v in proof["pairs"]], dtype=float)
    if proof["type"] == "trace":
        Z = np.array([door.X[i] - door.X[k] for i, k, _ in proof["pairs"]])
        square = float(w @ (Z * Z).sum(axis=1) / w.sum())
    else:
        B = np.array(proof["B"])
        each = (B * B).sum(axis=1) * (w / w.sum() if proof["type"] == "fantope-pairs" else 1.0)
        square = rank * proof["t"] + float(each.sum())
    return math.sqrt(square) * (1 + EPS * (len(w) + door.X.shape[1] + 16)) + LOST_SQUARES
