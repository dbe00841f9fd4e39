"""The projected distance of the two classes: how far apart they stay when only r dimensions are kept."""

from __future__ import annotations

import dataclasses
import heapq
import math
import operator
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import optimize, sparse
from scipy.spatial.distance import cdist

from widemargin.types import Certificate, Dataset, InputError

from . import qp
from .door import EPS, Door, Progress, Tell, enter

WHOLE = 20  # up to this many dimensions an interior-point method finishes the relaxation
NEAREST = 300  # pairs that a linear program looks at
CLIMB = 20  # linear programs from one start
ROUNDS = 40  # of the interior-point method, each with more pairs
STAGES = 12  # of the smoothed problem, each with a third of the smoothing
NODES, TREE_DIMENSIONS = 2000, 12  # of the tree over signs, for rank 1


def projected(
    data: Dataset,
    rank: int = 2,
    *,
    tol: float = 1e-3,
    seed: int = 0,
    restarts: int = 16,
    time_limit: float | None = None,
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
    door = enter(data, False, tol, time_limit, progress)
    try:
        rank = operator.index(rank)
    except TypeError:
        raise InputError(f"rank must be an integer, not {rank!r}") from None
    if not 1 <= rank <= data.d:
        raise InputError(f"{data.name}: rank must lie between 1 and d = {data.d}, not {rank}")
    if restarts < 1:
        raise InputError(f"restarts must be at least 1, not {restarts!r}")
    if len(np.unique(door.y)) < 2:
        raise InputError(f"{data.name}: a distance between classes needs points of both labels")
    pairs = Pairs.of(door.X, door.y)
    stopped, zero = "", ""
    relaxation: float | None = None
    nearest = pairs.order(pairs.squares())[:1]
    if pairs.squares()[tuple(nearest.T)][0] == 0:
        i, k = pairs.names(nearest)[0]
        zero = f"points {i} and {k} are equal but have different labels"
        frame, chosen, proof = np.eye(rank, data.d), Chosen(nearest, np.ones(1)), _trace_proof(pairs, nearest)
        lower = upper = 0.0
    elif pairs.k <= rank:  # no projection is needed: the closest pair decides
        frame = np.eye(data.d) if rank == data.d else np.vstack([pairs.basis, np.zeros((rank - pairs.k, data.d))])
        chosen, proof = Chosen(nearest, np.ones(1)), _trace_proof(pairs, nearest)
        lower, upper = _reached(door, frame), _shown(door, pairs, rank, proof)
    else:
        rng = np.random.default_rng(seed)
        search = Search(pairs, rank, tol, door.deadline, door.teller())
        try:
            _solve(search, rng, restarts)
        except KeyboardInterrupt:
            stopped = "interrupted"
        stopped = stopped or ("time-limit" if time.perf_counter() > door.deadline else "")
        frame, chosen = search.F @ pairs.basis, search.best
        lower = _reached(door, frame)
        proof = _spectral_proof(door, pairs, rank, chosen)
        upper = _shown(door, pairs, rank, proof)
        trace = _trace_proof(pairs, nearest)
        if (other := _shown(door, pairs, rank, trace)) <= upper:
            upper, proof, chosen = other, trace, Chosen(nearest, np.ones(1))
        relaxation = door.unscale(upper, 1, up=True)
        if rank == 1 and pairs.k <= TREE_DIMENSIONS and not stopped and lower < (1 - tol) * upper:
            tree = SignTree(pairs, search, tol, door.deadline)
            tree.grow()
            frame = tree.v[None] @ pairs.basis
            lower = max(lower, _reached(door, frame))
            frame = frame if _reached(door, frame) >= lower else search.F @ pairs.basis
            value, shown = tree.proof(pairs)
            if value < upper:
                upper, proof = value, shown
            stopped = tree.stopped
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
        stats={"seed": seed, "pairs": int(pairs.squares().size), "dimensions": pairs.k},
    )
    status, reason = certificate.status, certificate.reason
    if status == "rounding":
        status, reason = "stalled", "the relaxation and the best projection found differ; both bounds hold"
    elif status == "stalled":
        reason = f"the tree over signs has {NODES} nodes and is not grown further; both bounds hold"
    bound = {"trace": "trace", "fantope": "fantope", "fantope-pairs": "fantope", "signs": "signs"}[proof["type"]]
    return dataclasses.replace(certificate, proof=proof, bound=bound, status=status, reason=reason)


@dataclass(frozen=True)
class Pairs:
    """Pairs (a, b) of a row of A (label +1) and one of B (label -1), in k coordinates that span all differences."""

    A: np.ndarray  # (n+, k)
    B: np.ndarray  # (n-, k)
    basis: np.ndarray  # (k, d): coordinates c are basis @ (x - mean)
    plus: np.ndarray  # the index of each row of A in the data
    minus: np.ndarray
    X: np.ndarray  # (n, d), scaled

    @staticmethod
    def of(X: np.ndarray, y: np.ndarray) -> Pairs:
        plus, minus = np.flatnonzero(y > 0), np.flatnonzero(y < 0)
        C = X - X.mean(axis=0)
        _, s, V = np.linalg.svd(C, full_matrices=False)
        k = max(1, int((s > s.max() * max(X.shape) * EPS).sum()))
        basis = V[:k] if k < X.shape[1] else np.eye(X.shape[1])
        C = C @ basis.T  # (n, k)
        return Pairs(C[plus], C[minus], basis, plus, minus, X)

    @property
    def k(self) -> int:
        return self.A.shape[1]

    def squares(self, L: np.ndarray | None = None) -> np.ndarray:
        """||L z||^2 of all differences z, (n+, n-); L (r, k), or the distances of the points themselves."""
        if L is None:
            return cdist(self.X[self.plus], self.X[self.minus], "sqeuclidean")
        return cdist(self.A @ L.T, self.B @ L.T, "sqeuclidean")

    def inner(self, M: np.ndarray) -> np.ndarray:
        """<M, z z'> of all differences, fast and with more rounding than `squares`."""
        AM, BM = self.A @ M, self.B @ M
        own = (AM * self.A).sum(axis=1)[:, None] + (BM * self.B).sum(axis=1)
        return own - 2 * (AM @ self.B.T)

    @staticmethod
    def order(values: np.ndarray, most: int = NEAREST) -> np.ndarray:
        """(m, 2) positions of the smallest entries, increasing."""
        flat = values.ravel()
        index = np.argpartition(flat, most)[:most] if most < flat.size else np.arange(flat.size)
        index = index[np.argsort(flat[index], kind="stable")]
        return np.column_stack(np.unravel_index(index, values.shape))

    def z(self, at: np.ndarray) -> np.ndarray:
        return self.A[at[:, 0]] - self.B[at[:, 1]]  # (m, k)

    def names(self, at: np.ndarray) -> list[tuple[int, int]]:
        """The indices in the data of pairs."""
        return [(int(self.plus[a]), int(self.minus[b])) for a, b in at]


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
    deadline: float
    tell: Tell | None = None
    F: np.ndarray = field(init=False)
    low: float = field(default=-1.0, init=False)  # min ||F z||^2
    high: float = field(default=math.inf, init=False)  # what `best` proves, up to rounding
    best: Chosen = field(init=False)

    @property
    def late(self) -> bool:
        return time.perf_counter() > self.deadline

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
    values, vectors = np.linalg.eigh(M)
    root = vectors * np.sqrt(values.clip(0))  # (k, k)
    starts = [
        search.F,
        vectors[:, ::-1][:, :r].T,
        *(_orthonormal(np.vstack([u, root.T[::-1]])[:r]) for u in _splits(pairs)),
    ]
    starts += [_orthonormal(rng.standard_normal((r, pairs.k)) @ root.T) for _ in range(restarts)]
    starts += [_orthonormal(rng.standard_normal((r, pairs.k))) for _ in range(restarts // 2)]
    found = []
    for F in starts:
        if search.closed or search.late:
            return
        F = _ascended(pairs, F)
        found.append((search.offer(F), F))
    found.sort(key=lambda pair: -pair[0])
    small = r * (pairs.k - r) <= 60
    for _, F in found[: 4 if small else 1]:
        climber = Climber(pairs, F)
        steps = CLIMB if small else CLIMB // 4  # each is a linear program in r (k - r) unknowns
        while not search.closed and not search.late and climber.steps < steps and climber.step():
            pass
        search.offer(climber.F)


def _splits(pairs: Pairs) -> list[np.ndarray]:
    """Directions that may separate the classes by a threshold: of least squares, and of the largest margin with a bias."""
    C = np.vstack([pairs.A, pairs.B])
    y = np.repeat([1.0, -1.0], [len(pairs.A), len(pairs.B)])
    rows = np.hstack([C, np.full((len(C), 1), 3 * float(np.linalg.norm(C, axis=1).max()))])
    both = [np.linalg.lstsq(rows, y, rcond=None)[0], qp.solve_factor(rows * y[:, None], 1e-4).q @ (rows * y[:, None])]
    return [u[:-1] for u in both if u[:-1].any()]


def _ascended(pairs: Pairs, F: np.ndarray) -> np.ndarray:
    """F after gradient steps on the soft minimum of ||F z||^2, with less and less smoothing."""
    A, B = pairs.A, pairs.B
    values = pairs.squares(F)
    for part in (0.3, 0.1, 0.03, 0.01):
        mu = part * max(float(np.quantile(values, min(1.0, 50 / values.size))), 1e-300)
        step = 0.0
        for _ in range(30):
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
            result = optimize.linprog(c, rows, (f * f).sum(axis=1) / scale, bounds=limits, method="highs")
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
        solved = _fantope(pairs.z(at) / scale, r, search.deadline)
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
    best, least = M, float(pairs.inner(M).min())
    mu, step = 0.2 * least, 0.0
    for _ in range(STAGES):
        moved, momentum = M, 1.0
        for iteration in range(150):
            gradient, value = _soft_gradient(pairs, pairs.inner(moved), mu)
            step = 1.5 * step or 0.1 * k / max(float(np.linalg.norm(gradient)), 1e-300)
            while True:  # backtracking
                new = _to_fantope(moved + step * gradient, r)
                change = new - moved
                after = pairs.inner(new)
                room = float((gradient * change).sum()) - float((change * change).sum()) / (2 * step)
                if _soft(after, mu) >= value + room - 1e-12 * abs(value) or step < 1e-12:
                    break
                step /= 2
            if float(((new - moved) * (new - M)).sum()) < 0:
                momentum = 1.0  # restart where the momentum points backwards
            following = (1 + math.sqrt(1 + 4 * momentum * momentum)) / 2
            moved = new + (momentum - 1) / following * (new - M)
            M, momentum = new, following
            if after.min() > least:
                best, least = M, float(after.min())
            if iteration % 10 == 9:
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
    at = search.pairs.order(values, 2000)
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


def _fantope(Z: np.ndarray, r: int, deadline: float) -> tuple[np.ndarray, np.ndarray] | None:
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
    settings.time_limit = min(max(deadline - time.perf_counter(), 0.1), 1e6)
    cones = [
        clarabel.ZeroConeT(1),
        clarabel.NonnegativeConeT(m),
        clarabel.PSDTriangleConeT(s),
        clarabel.PSDTriangleConeT(s),
    ]
    found = clarabel.DefaultSolver(sparse.csc_matrix((p + 1, p + 1)), c, A, b, cones, settings).solve()
    x, weight = np.array(found.x), np.array(found.z)[1 : m + 1].clip(0)
    if not np.isfinite(x).all() or not np.isfinite(weight).all() or not weight.any():
        return None
    M = np.zeros((s, s))
    M[row, column] = M[column, row] = x[:-1] / factor
    return M, weight


# ---------------------------------------------------------------- rank 1: a tree over signs


@dataclass
class SignTree:
    """Rank 1: for every pair v . z >= t or -v . z >= t. With some signs s fixed, t <= ||sum q s z|| for weights q on these pairs.

    Best first: the largest bound is branched on the pair that its best v sees least. The first sign is +1, by symmetry.
    """

    pairs: Pairs
    search: Search
    tol: float
    deadline: float
    v: np.ndarray = field(init=False)
    low: float = field(init=False)
    stopped: str = field(default="", init=False)
    nodes: list[Node] = field(default_factory=list, init=False)

    def grow(self) -> None:
        self.v, self.low = self.search.F[0], math.sqrt(self.search.low)
        root = self._node(self.pairs.order(self.pairs.squares(), 1)[0][None], (1.0,))
        queue = [(-root.value, 0)]
        try:
            while queue:
                bound, index = heapq.heappop(queue)
                if self.low >= (1 - 0.5 * self.tol) * -bound:
                    break
                if time.perf_counter() > self.deadline:
                    self.stopped = "time-limit"
                    break
                if len(self.nodes) > NODES:
                    self.stopped = "stalled"
                    break
                node = self.nodes[index]
                at = np.vstack([node.at, node.blind[None]])
                for sign in (1.0, -1.0):
                    child = self._node(at, (*node.signs, sign))
                    node.children.append(len(self.nodes) - 1)
                    heapq.heappush(queue, (-child.value, len(self.nodes) - 1))
        except KeyboardInterrupt:
            self.stopped = "interrupted"

    def _node(self, at: np.ndarray, signs: tuple[float, ...]) -> Node:
        S = self.pairs.z(at) * np.array(signs)[:, None]
        q = qp.solve_factor(S, 1e-10).q
        v = q @ S
        size = float(np.linalg.norm(v))
        value = size / float(q.sum())
        v = v / size if size > 0 else self.v
        squares = self.pairs.squares(v[None])
        squares[tuple(at.T)] = math.inf  # fixed already
        blind = np.array(np.unravel_index(squares.argmin(), squares.shape))
        least = min(float(squares.min()), float((S @ v).min()) ** 2 if size > 0 else 0.0)
        if least > self.low**2:
            self.v, self.low = v, math.sqrt(least)
        if not np.isfinite(squares).any():
            value = min(value, self.low)  # all pairs are fixed
        node = Node(at, signs, q, value, blind)
        self.nodes.append(node)
        return node

    def proof(self, pairs: Pairs) -> tuple[float, dict[str, Any]]:
        """The bound in scaled units, rounding included, and the tree in preorder."""
        number: dict[tuple[int, int], int] = {}
        tree: list[int] = []
        leaves: list[list[float]] = []
        worst = 0.0

        def place(pair: np.ndarray) -> int:
            return number.setdefault((int(pair[0]), int(pair[1])), len(number))

        place(self.nodes[0].at[0])
        stack = [0]
        while stack:
            node = self.nodes[stack.pop()]
            if node.children and len(node.children) == 2:
                tree.append(place(node.blind))
                stack += node.children[::-1]
                continue
            tree.append(-1)
            leaves.append(node.q.tolist())
            Z = pairs.X[pairs.plus[node.at[:, 0]]] - pairs.X[pairs.minus[node.at[:, 1]]]
            size = float(np.abs(Z).max()) * math.sqrt(Z.shape[1])
            value = float(np.linalg.norm((node.q * np.array(node.signs)) @ Z)) / float(node.q.sum())
            worst = max(worst, value * (1 + 1e-14) + 4 * EPS * (len(Z) + Z.shape[1]) * size)
        names = [list(name) for name in pairs.names(np.array(list(number)))]
        return worst, {"type": "signs", "pairs": names, "tree": tree, "leaves": leaves}


@dataclass
class Node:
    at: np.ndarray  # the fixed pairs (m, 2), in the order of the path
    signs: tuple[float, ...]
    q: np.ndarray  # (m,)
    value: float
    blind: np.ndarray  # the pair to branch on
    children: list[int] = field(default_factory=list)


# ---------------------------------------------------------------- bounds that hold in spite of rounding


def _reached(door: Door, frame: np.ndarray) -> float:
    """min ||F z|| / sqrt(max_j sum_k |F F'|_jk), rounding subtracted: the projection to the rows of F keeps at least that."""
    W = door.X @ frame.T  # (n, r)
    size = float(door.size.max()) * float(np.linalg.norm(frame, axis=1).max())
    least = math.sqrt(float(cdist(W[door.y > 0], W[door.y < 0], "sqeuclidean").min()))
    exact = np.array_equal(frame, np.eye(len(frame)))
    slip = 0.0 if exact else 4 * EPS * (door.X.shape[1] + 4) * size * math.sqrt(len(frame))
    gram = float(np.abs(frame @ frame.T).sum(axis=1).max()) * (1 + EPS * (frame.shape[1] + len(frame) + 8))
    return max(0.0, (least - slip) * (1 - EPS * (len(frame) + 12)) / math.sqrt(gram))


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
    return math.sqrt(square) * (1 + EPS * (len(w) + door.X.shape[1] + 16))
