"""Pricing with several outputs, max_{|u| <= 1} |F(u)| with F(u) = sum_i g_i relu(u . x_i) in R^K: search and proofs.

Three proofs besides `norm` (docs/certificates.md). `enumeration`: in two dimensions F is linear on each of at most 2 n + 4
arcs. `cones`: u-space is cut into simplicial cones until a quadratic bound closes each. `cover`: the same in w-space, where
|F(u)| = max_{|w| = 1} w . F(u) and the support function S(w) = max_u w . F(u) is convex; each vertex w has a scalar proof.

What is done for many neurons or cones at once (`values`, `ascend`, `climb`, `cell_bounds`) takes numpy arrays or, on a GPU, torch
tensors: both have the same functions under the same names. Scalar proofs run on the device of their points.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from . import search, signs, writing
from .enumeration import best_of_arcs
from .moments import QUADRATIC_RANK
from .points import Points

CONE_DIMENSIONS = 5  # dimensions up to which cones are tried
ARCS = 32, 1600  # directions of arcs that are compared,
AT_ONCE = 2**24  # and these times points times outputs; numbers of directions at points in one array
COVER_OUTPUTS = 9  # dimensions of w up to which covers are tried
# Seconds for one of the 2 r vertices and 2^r cones, by dimension r of w, that a cover begins with, and what a vertex takes more
# for each entry of X.
VERTEX, CELL, ENTRY = 0.03, 3e-4, 3e-7
CONE_ENTRY = 4e-7  # seconds for each of the 2^D cones that cones begin with, edge of them and point with weight
GRACE = 0.1  # seconds that the first of them may take in any case
MOST_CELLS = 200_000
BLOCK, NUMBERS = 2000, 2**22  # cells at once, and numbers of one of the arrays that they take
EPS = float(np.finfo(np.float64).eps)
FAINT = 1e-70  # values whose fourth powers are lost
LARGE = 1e150  # a bound that proves nothing
ROOM = 1e-12  # of the diagonal, for rounding
PAIRS = 10_000  # of a cone and a point that are looked at exactly at once
RAISED = 40  # times that a bound is raised before all cones show it
LAMBDA = 64  # multipliers of cones are integers over this
W_BITS = 8  # vertices w of a cover are integers over 2^W_BITS
W_LIMIT = 2**13  # largest integer entry of w: with weights that are multiples of 2^-38 every w . g_i is exact
LINEAR_ENTRIES = 400  # entries of X up to which trees with linear bounds are given more nodes
VERTICES = 300  # scalar proofs in a cover
CLIMB = 30_000  # entries of X up to which neurons climb along creases: more take seconds
LEAST = 0.01  # seconds that are taken to be left

Key = tuple[int, ...]  # a vertex of a cover
Array = Any  # of numpy, or a tensor
CPU = torch.device("cpu")


def _room(array: Array) -> Any:
    """The functions for such arrays."""
    return torch if isinstance(array, torch.Tensor) else np


def _on(device: torch.device, array: np.ndarray) -> Array:
    """An array where it is worked with: as it is for a CPU, a tensor for a GPU."""
    return array if device.type == "cpu" else torch.as_tensor(array, device=device)


def placed(points: Points, *arrays: np.ndarray) -> tuple[Array, ...]:
    """Arrays on the device of the points."""
    return tuple(_on(points.device, array) for array in arrays)


def fetched(*arrays: Array) -> tuple[np.ndarray, ...]:
    return tuple(array.cpu().numpy() if isinstance(array, torch.Tensor) else array for array in arrays)


def best(V: Array, value: Array, most: int) -> Array:
    """The rows of V with the largest values, best first."""
    return V[_room(value).argsort(-value)[:most]]


@dataclass
class Proof:
    """upper >= max_u |F(u)| for the vectors g (n, K), in the units of X; `saved` is what the certificate stores."""

    upper: float
    g: np.ndarray
    bound: str
    saved: dict[str, Any]
    nodes: int = 0
    directions: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))  # (k, D) good ones that were met


def vectors(q: np.ndarray, y: np.ndarray) -> np.ndarray:
    """g_i = sum_j q_ij (e_{y_i} - e_j), (n, K): those of weights q (n, K) of classes y."""
    g = -q
    g[np.arange(len(y)), y] = q.sum(axis=1)
    return g


def class_weights(g: np.ndarray) -> np.ndarray:
    """The q whose `vectors` g are: they are negative at other classes only."""
    return (-g).clip(0) + 0.0


def free_outputs(g: np.ndarray) -> int:
    """The dimension of the space that F is looked at in: the hyperplane sum w = 0 if all g_i lie there, as those of classes."""
    return g.shape[1] - (not g.sum(axis=1).any())


def values(X: Array, g: Array, V: Array) -> Array:
    """|F(v)| / |v| of the rows of V."""
    xp = _room(V)
    size = xp.linalg.norm(V, axis=1).clip(1e-300)
    step = max(1, min(BLOCK, AT_ONCE // max(len(X), 1)))
    parts = (V[start : start + step] for start in range(0, len(V), step))
    return xp.concatenate([xp.linalg.norm((part @ X.T).clip(0) @ g, axis=1) for part in parts] or [size]) / size


def ascend(X: Array, g: Array, V: Array, steps: int, until: float = math.inf) -> tuple[Array, Array]:
    """Ascend |F(v)| on the sphere from every row of V, at most `until`; each start has its own step, halved on failure."""
    xp = _room(V)
    V = V / xp.linalg.norm(V, axis=1, keepdims=True).clip(1e-300)
    h = (V @ X.T).clip(0)
    F = h @ g
    value = xp.linalg.norm(F, axis=1)
    step = xp.ones_like(V[:, :1])
    for _ in range(steps):
        if time.perf_counter() > until:
            break
        slope = ((F / value[:, None].clip(1e-300)) @ g.T * (h > 0)) @ X
        W = V + step * slope / xp.linalg.norm(slope, axis=1, keepdims=True).clip(1e-300)
        W /= xp.linalg.norm(W, axis=1, keepdims=True).clip(1e-300)
        h_new = (W @ X.T).clip(0)
        F_new = h_new @ g
        new = xp.linalg.norm(F_new, axis=1)
        up = new > value
        V, h, F = (xp.where(up[:, None], a, b) for a, b in ((W, V), (h_new, h), (F_new, F)))
        value = xp.where(up, new, value)
        step = xp.where(up[:, None], 1.5 * step, 0.5 * step)
    return V, value


def climb(X: Array, g: Array, V: Array, rounds: int = 6, until: float = math.inf) -> tuple[Array, Array]:
    """Ascend |F(v)| where gradient steps stall, at the creases of terms with w . g_i < 0; no step begins after `until`.

    With w = F(v) / |F(v)| and c_i = w . g_i, replace c_i relu(t) by c_i 1[t_i > 0] t where c_i > 0: a lower bound of w . F that
    is concave and tight at v. Its maximiser on the ball is the shortest vector sum_i b_i x_i, b_i = c_i lambda_i with
    lambda_i in [0, 1] where c_i < 0.
    """
    xp, value = _room(V), values(X, g, V)
    for _ in range(rounds):
        if time.perf_counter() > until:
            break
        h = (V @ X.T).clip(0)
        F = h @ g
        c = (F / xp.linalg.norm(F, axis=1, keepdims=True).clip(1e-300)) @ g.T  # (L, n)
        base = (c.clip(0) * (h > 0)) @ X
        A = xp.swapaxes(c.clip(max=0)[:, :, None] * X, 1, 2)  # (L, r, n)
        W = base + _times(A, _box_least_squares(base, A, 80, until))
        W /= xp.linalg.norm(W, axis=1, keepdims=True).clip(1e-300)
        new = values(X, g, W)
        up = new > value
        if not up.any():
            break
        V, value = xp.where(up[:, None], W, V), xp.where(up, new, value)
    return V, value


def price(
    points: Points,
    g: np.ndarray,
    goal: float,
    until: float,
    rng: np.random.Generator,
    unscale: Callable[[float], float],
) -> Iterator[Proof]:
    """Proofs of the value of g, hopefully `goal`, those first that are likely to be short; callers stop when one is enough."""
    D, free = points.X0.shape[1], free_outputs(g)
    if D <= 2:
        yield enumeration(points.X0, g)[0]
        return
    # A cover needs few cones if w has one or two dimensions, cones if u has few.
    flat = free == 1 or (free == 2 and D > 3)
    for k, method in enumerate(("cover", "cones") if flat else ("cones", "cover")):
        if k and time.perf_counter() > until:
            return
        left = until - time.perf_counter()
        if method == "cover" and free <= COVER_OUTPUTS:
            tried = left > free * (2 * (VERTEX + ENTRY * points.X.size) + CELL * 2.0**free)
        else:
            tried = method == "cones" and D <= CONE_DIMENSIONS and not points.faint
            tried = tried and max(left, GRACE) > CONE_ENTRY * 2.0**D * D * np.count_nonzero(g.any(axis=1))
        if tried and method == "cover":
            yield cover(points, g, goal, until, rng, unscale)
        elif tried:
            yield cones(points.X0, g, goal, until, device=points.device)


# --- norm and enumeration -----------------------------------------------------------------------------------------------


def norm(X: np.ndarray, g: np.ndarray) -> Proof:
    """relu(t) = (t + |t|) / 2:  |F(u)| <= |sum_i g_i x_i'| / 2 + sum_i |g_i| |x_i| / 2."""
    part = float(np.linalg.norm(g, axis=1) @ np.linalg.norm(X, axis=1))
    upper = (float(np.linalg.norm(g.T @ X)) + part) / 2
    return Proof(upper * (1 + 1e-12) + 1e-14 * part, g, "norm", {"type": "norm"})


def enumeration(X: np.ndarray, g: np.ndarray) -> tuple[Proof, np.ndarray]:
    """At most two dimensions: the maximum of |F|, and the best directions of arcs (arcs, D), best first."""
    n, D = X.shape
    most = int(np.clip(AT_ONCE / max(g.size, 1), *ARCS))
    V, count = best_of_arcs(np.hstack([X, np.zeros((n, 2 - D))]), g, most)
    V = V if D == 2 else V[np.abs(V[:, 0]) > 0.5, :D]
    value = values(X, g, V)
    order = np.argsort(-value)
    size = float(np.linalg.norm(g, axis=1) @ np.linalg.norm(X, axis=1))
    upper = float(value[order[0]]) * (1 + 1e-11) + (1e-13 + 2e-15 * n) * size
    return Proof(upper, g, "enumeration", {"type": "enumeration"}, count), V[order]


# --- quadratic bounds on simplicial cones -------------------------------------------------------------------------------


def copositive(C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether a' C a >= 0 for all a >= 0 is shown for the matrices C (L, r, r): C, or C without its positive entries off
    the diagonal, is positive semidefinite; and whether it is C itself: s^2 W - B stays so where s grows, the other need not."""
    plain = np.einsum("lkk->lk", C).min(axis=1) >= 0
    size = np.sqrt(np.abs(np.einsum("lkk->lk", C)).clip(1e-300))
    C = C / (size[:, :, None] * size[:, None, :])
    itself = plain & semidefinite(C)
    return itself | plain & semidefinite(np.where(np.eye(C.shape[1], dtype=bool), C, C.clip(max=0))), itself


def semidefinite(C: np.ndarray) -> np.ndarray:
    """Whether the matrices (L, r, r) are, as far as their eigenvalues say; those with entries beyond every double are not."""
    known = np.isfinite(C).all(axis=(1, 2))
    return known & (np.linalg.eigvalsh(np.where(known[:, None, None], C, 0.0))[:, 0] >= 0)


def level(W: np.ndarray, B: np.ndarray) -> np.ndarray:
    """(L,) numbers s, nearly the least, for which s^2 W - B is shown to be copositive; inf where none is found."""
    with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is not copositive
        low = np.sqrt((np.einsum("lkk->lk", B) / np.einsum("lkk->lk", W).clip(1e-300)).max(axis=1).clip(1e-300))
        high = low * (1 + 1e-12)
        bad = np.ones(len(W), dtype=bool)
        for _ in range(60):
            bad[bad] = ~copositive(high[bad, None, None] ** 2 * W[bad] - B[bad])[0]
            if not bad.any():
                break
            low[bad], high[bad] = high[bad], 1.3 * high[bad]
        for _ in range(40):
            middle = np.sqrt(low * high)
            good, _ = copositive(middle[:, None, None] ** 2 * W - B)
            low, high = np.where(good, low, middle), np.where(good, middle, high)
    return np.where(bad, np.inf, high)


def common_level(least: float, W: np.ndarray, B: np.ndarray) -> float:
    """A number s >= `least`, nearly the least, for which all s^2 W - B are shown to be copositive, with some room for rounding;
    inf where none is found. What is shown of each at the least s of its own need not be at the largest of these."""
    s, room = least, 1 - ROOM * np.eye(W.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):
        for k in range(RAISED):
            blocks = (slice(at, at + BLOCK) for at in range(0, len(W), BLOCK))
            if all(copositive(s**2 * (W[at] * room) - B[at])[0].all() for at in blocks):
                return s
            s = least * (1 + 1e-5 * 2.0**k)
    return math.inf


def longest_edge(V: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For cones V (L, r, D): the edge k < l with the largest angle, and s such that 2^s v_k and v_l have similar length."""
    size = np.linalg.norm(V, axis=2)
    cosine = np.einsum("lkd,lmd->lkm", V, V) / (size[:, :, None] * size[:, None, :])
    k, l = np.triu_indices(V.shape[1], 1)
    edge = cosine[:, k, l].argmin(axis=1)
    rows = np.arange(len(V))
    first, second = k[edge], l[edge]
    return first, second, np.rint(np.log2(size[rows, second] / size[rows, first])).astype(int)


def split(V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both halves (2 L, r, D) of cones with integer vertices, and the splits (L, 3): k, l, s."""
    k, l, s = longest_edge(V)
    rows = np.arange(len(V))
    middle = V[rows, k] * 2.0 ** s.clip(0)[:, None] + V[rows, l] * 2.0 ** (-s).clip(0)[:, None]
    first, second = V.copy(), V.copy()
    first[rows, l], second[rows, k] = middle, middle
    return np.concatenate([first, second]), np.column_stack([k, l, s])


class Record:
    """A forest of splits as it grew, to be written in preorder."""

    def __init__(self, roots: int):
        self.edge: list[Any] = [-1] * roots
        self.child: list[tuple[int, int]] = [(-1, -1)] * roots
        self.roots = roots

    def add(self, nodes: np.ndarray, edges: np.ndarray) -> np.ndarray:
        """Split `nodes`; the numbers of the new ones, all first halves and then all second."""
        start, count = len(self.edge), len(nodes)
        for j, (node, edge) in enumerate(zip(nodes.tolist(), edges.tolist())):
            self.edge[node], self.child[node] = edge, (start + j, start + count + j)
        self.edge += [-1] * (2 * count)
        self.child += [(-1, -1)] * (2 * count)
        return np.arange(start, start + 2 * count)

    def preorder(self) -> tuple[list[Any], list[int]]:
        """The entries, and the numbers of the leaves in the same order."""
        entries, leaves, stack = [], [], list(range(self.roots))[::-1]
        while stack:
            node = stack.pop()
            entries.append(self.edge[node])
            if self.edge[node] == -1:
                leaves.append(node)
            else:
                stack += self.child[node][::-1]
        return entries, leaves


def cell_bounds(V: Array, X: Array, g: Array) -> tuple[Array, Array, Array, Array]:
    """W, B (L, r, r), the multipliers (L, n), and which are needed: |F(sum_k a_k v_k)|^2 <= a' B a where |w|^2 |.|^2 = a' W a.

    On a cone relu(u . x_i) = sum_k a_k relu(tau_ik) - r_i with 0 <= r_i <= sum_k a_k relu(+- tau_ik), either sign. Along
    w = sum_k F(v_k) the terms with w . g_i < 0 take a mixture lambda of both signs, those with w . g_i > 0 are dropped; across
    w the better sign is taken with |g_i|. All is multiplied by |w|^2. See "cones" in docs/certificates.md.
    """
    xp = _room(V)
    tau = V @ X.T  # (L, r, n)
    plus, minus = tau.clip(0), (-tau).clip(0)
    # What is 0 up to rounding may be on either side in exact arithmetic.
    length = xp.linalg.norm(V, axis=2)
    near = (0.0 if _is_exact(V, X) else 1e-13) * length[:, :, None] * xp.linalg.norm(X, axis=1)
    free = (tau > -near).any(axis=1) & (tau < near).any(axis=1)  # (L, n)
    F = plus @ g  # (L, r, K)
    w = F.sum(axis=1)
    each = xp.linalg.norm(F, axis=2)
    # a direction that is all rounding beside what was added up
    lost = xp.linalg.norm(w, axis=1) <= 1e-12 * (plus @ xp.linalg.norm(g, axis=1)).sum(axis=1)
    lost |= (each < FAINT).all(axis=1)  # squares of squares are lost
    lost &= (F != 0).any(axis=2).any(axis=1)
    usual = xp.zeros_like(w[:1])
    usual[0, 0], usual[0, 1] = 1.0, -1.0
    w = xp.where((w != 0).any(axis=1)[:, None], w, usual)
    ww = (w * w).sum(axis=1)
    # How far F(v_k), and so w, may be off; in what follows w is another one by then, and the g_i lie otherwise to it.
    sizes = xp.linalg.norm(g, axis=1)  # (n,)
    unit = 4 * EPS * (X.shape[1] + len(X) + 8)
    off_F = unit * length * float(sizes @ xp.linalg.norm(X, axis=1))  # (L, r)
    off_w = off_F.sum(axis=1)[:, None]  # (L, 1)
    size_w = xp.sqrt(ww)[:, None]
    off_along = size_w * off_F + each * (off_w + unit * size_w)  # (L, r)
    s = w @ g.T  # (L, n)
    along = xp.einsum("lrk,lk->lr", F, w)
    dent = xp.where(free, (-s).clip(0), 0.0)
    base = along + xp.einsum("ln,lrn->lr", dent, minus)
    A = dent[:, None, :] * tau  # alpha = base + A lambda
    lam = _box_least_squares(base / length, A / length[:, :, None])
    lam = xp.round(lam * LAMBDA) / LAMBDA
    alpha = base + xp.einsum("lrn,ln->lr", A, lam)
    more, even = tau.sum(axis=1), near.sum(axis=1)
    below = more <= 0  # which sign is the better one
    unsure = (
        xp.nonzero(free & (xp.abs(more) < even)) if xp is np else (free & (xp.abs(more) < even)).nonzero(as_tuple=True)
    )
    if len(unsure[0]):
        below[unsure] = xp.asarray(_at_most_zero(*fetched(V, X, *unsure)), device=V.device)
    rest = xp.where(below[:, None, :], plus, minus) * free[:, None, :]
    beta = -along + xp.einsum("ln,lrn->lr", s.clip(0), rest)
    off_s = sizes * (off_w + unit * size_w) * free  # (L, n)
    A = xp.maximum(alpha, beta) + off_along + xp.einsum("ln,lrn->lr", off_s, xp.abs(tau) + near)
    gg, FF = (g * g).sum(axis=1), xp.einsum("lrk,lsk->lrs", F, F)
    across = xp.sqrt((ww[:, None] * gg - s * s).clip(0) + unit * ww[:, None] * gg) + off_s  # |w| |P g_i|
    e = xp.einsum("ln,lrn->lr", across, rest)
    squares = xp.einsum("lrr->lr", FF)
    p = xp.sqrt((ww[:, None] * squares - along**2).clip(0) + unit * ww[:, None] * squares) + off_along

    def outer(a: Array, b: Array) -> Array:
        return a[:, :, None] * b[:, None, :]

    B = outer(A, A) + ww[:, None, None] * FF - outer(along, along) + outer(p, e) + outer(e, p) + outer(e, e)
    whole = size_w * each  # |w| |F(v_k)|
    B = B + unit * outer(whole, whole) + 2 * (outer(whole, off_along) + outer(off_along, whole))
    B[lost] = LARGE
    return ww[:, None, None] * (V @ xp.swapaxes(V, 1, 2)), B, lam, dent > 0


def _is_exact(V: Array, X: Array) -> bool:
    """Whether products of integers V (L, r, D) with X (n, D), and sums of all of them, are not rounded."""
    most = float(abs(V).max()) * float(abs(X).max()) * V.shape[1] * V.shape[2]
    scaled = X * 2.0 ** min(52 - math.frexp(most)[1], 1000)
    return bool((scaled == _room(X).round(scaled)).all())


def _at_most_zero(V: np.ndarray, X: np.ndarray, cones: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Whether sum_k v_k . x <= 0 for pairs of a cone and a point, in exact arithmetic: a tie is one in the checker, too."""
    U = V.astype(np.int64).sum(axis=1).astype(object)  # (L, D)
    mantissa, exponent = np.frexp(X)
    shift = (exponent - exponent.min(where=X != 0, initial=0)).clip(0).astype(object)
    whole = np.ldexp(mantissa, 53).astype(np.int64).astype(object) << shift  # (n, D), X up to a factor
    blocks = (slice(at, at + PAIRS) for at in range(0, len(cones), PAIRS))
    return np.concatenate([((U[cones[at]] * whole[points[at]]).sum(axis=1) <= 0).astype(bool) for at in blocks])


def _times(A: Array, z: Array) -> Array:
    """A z for each of the matrices A (L, r, n) and vectors z (L, n)."""
    return (A @ z[:, :, None])[:, :, 0]


def _box_least_squares(c: Array, A: Array, steps: int = 40, until: float = math.inf) -> Array:
    """lambda in [0, 1]^n with |c + A lambda| small, for c (L, r), A (L, r, n): accelerated projected gradient, until `until`."""
    xp = _room(A)
    back = xp.swapaxes(A, 1, 2)
    rate = 1 / xp.linalg.norm(A @ back, axis=(1, 2)).clip(1e-300)
    lam = z = xp.full_like(A[:, 0], 0.5)
    t = 1.0
    for _ in range(steps):
        if time.perf_counter() > until:
            break
        slope = _times(back, c + _times(A, z))
        new = (z - rate[:, None] * slope).clip(0, 1)
        t_new = (1 + math.sqrt(1 + 4 * t * t)) / 2
        z, lam, t = new + (t - 1) / t_new * (new - lam), new, t_new
    return lam


def cones(
    X: np.ndarray,
    g: np.ndarray,
    goal: float,
    until: float,
    slack: float = 1e-6,
    device: torch.device = CPU,
) -> Proof:
    """max |F| <= about `goal` by subdivision of the orthants, or the best bound at time `until`.

    A cone that does not reach the goal is halved at its longest edge. The bound is inflated by `slack` in the end, to have
    room for the exact check.
    """
    used = np.flatnonzero(g.any(axis=1))
    D, put = X.shape[1], partial(_on, device)
    points, weights = put(X[used]), put(g[used])
    V = np.array([np.diag(s) for s in itertools.product((1.0, -1.0), repeat=D)])
    record, ids, cells = Record(len(V)), np.arange(len(V)), len(V)
    block = min(BLOCK, max(1, NUMBERS // max(1, D * len(used))))
    lams: dict[int, list[list[int]]] = {}
    again: list[tuple[np.ndarray, np.ndarray]] = []  # of cones that need not be shown for a larger bound
    upper, each, kept = goal, 0.0, 1.0  # seconds for a cone, and the share of them that was halved, of the last ones
    while len(V):
        began = time.perf_counter()
        # These and their halves, which take twice as long where they are the last ones.
        later = began + each * len(V) * (1 + 4 * kept) > until
        stop = later or cells > MOST_CELLS or bool(np.abs(V).max() > 2.0**50)
        keep, high = np.zeros(len(V), dtype=bool), []
        for start in range(0, len(V), block):
            part = V[start : start + block]
            middle = (part / np.linalg.norm(part, axis=2, keepdims=True)).sum(axis=1)
            (value,) = fetched(values(points, weights, put(middle)))
            if value.max() > goal:
                # No subdivision can reach the goal, and the neuron is worth more than the bound.
                top, height = ascend(points, weights, put(middle[value > goal]), 40, until)
                top, _ = climb(points, weights, best(top, height, 40), until=until)
                return Proof(math.inf, g, "cones", {}, cells, *fetched(top))
            W, B, lam, need = fetched(*cell_bounds(put(part), points, weights))
            good, stays = copositive(goal**2 * W - B)
            if stop and not good.all():
                high.append((W[~good], B[~good]))
            again.append((W[good & ~stays], B[good & ~stays]))
            whole = np.rint(lam * LAMBDA).astype(np.int64)
            for j in range(len(part)) if stop else np.flatnonzero(good).tolist():
                lams[int(ids[start + j])] = np.column_stack([used[need[j]], whole[j, need[j]]]).tolist()
            keep[start : start + block] = ~good
        if high:
            upper = max(upper, _highest(*(np.concatenate(part) for part in zip(*high))))
            again += high
        if stop or not keep.any():
            break
        each, kept = (time.perf_counter() - began) / len(V), float(keep.mean())
        V, edges = split(V[keep])
        ids = record.add(ids[keep], edges)
        cells += len(V)
    entries, leaves = record.preorder()
    saved = {"type": "cones", "tree": entries, "leaves": [lams[j] for j in leaves]}
    upper = common_level(upper * (1 + slack), *(np.concatenate(part) for part in zip(*again)))
    return Proof(upper, g, "cones", saved, cells)


def _highest(W: np.ndarray, B: np.ndarray) -> float:
    """The largest `level`, worked out for the cones that a bound by entries puts on top; the others keep that bound."""
    with np.errstate(over="ignore"):
        rough = np.sqrt(np.where(B > 0, B / W.clip(1e-300), 0.0).max(axis=(1, 2)))
    rough = np.where((W > 0).all(axis=(1, 2)), rough, np.inf)
    order = np.argsort(-rough)
    top, rest = order[:BLOCK], order[BLOCK:]
    fine = np.minimum(level(W[top], B[top]), rough[top])
    return max(float(fine.max()), float(rough[rest].max(initial=0.0)))


# --- covers -------------------------------------------------------------------------------------------------------------


def cover(
    points: Points,
    g: np.ndarray,
    goal: float,
    until: float,
    rng: np.random.Generator,
    unscale: Callable[[float], float],
    slack: float = 1e-6,
) -> Proof:
    """max |F| by scalar proofs of S(w) = max_u w . F(u) at the vertices w of cones that cover R^K, or the hyperplane sum w = 0
    where all g_i lie in it.

    On a cone S(sum_k a_k w_k) <= sum_k a_k b_k, so |z|^2 <= sum_k a_k b_k for z = F(u) = sum_k a_k w_k in it, and |z| <= s as
    soon as s^2 W - b b' is copositive, W the Gram matrix of the w_k. Cones are halved where estimates of S ask for it; then
    each vertex is proved (`pricing.signs`), no better than its cones need. `unscale` turns a bound into the units of the data,
    rounded up.
    """
    X, Xt = points.X, points.Xt
    free = free_outputs(g)
    begin = rng.standard_normal((int(np.clip(5e6 / X.size, 24, 256)), X.shape[1]))
    there, vectors_there, begin = placed(points, X, g, begin)
    V, value = ascend(there, vectors_there, begin, 60, until)
    if X.size <= CLIMB:
        V, value = climb(there, vectors_there, V, until=until)
    V, value = fetched(V, value)
    rows = _integer_basis((V @ X.T).clip(0) @ g, value, free)
    starts = points.tensor(V)
    slackness = 1 + max(0.1 * (goal / max(float(value.max()), 1e-300) - 1), 1e-5)  # of the estimates
    estimate: dict[Key, float] = {}
    proved: dict[Key, tuple[float, float, dict[str, Any] | None]] = {}  # the bound, and as it is saved
    nodes, met = 0, [np.zeros((0, X.shape[1]))]

    def weights(key: Key) -> np.ndarray:
        return g @ (np.array(key) / 2.0**W_BITS)

    def guess(key: Key) -> float:
        if key not in estimate:
            c = weights(key)
            climbed, value = search.ascend(Xt, points.tensor(c), starts, 30, until=until)
            most = float(value.max())
            if most > 0 and X.size <= CLIMB:
                (top,) = fetched(climbed[torch.argsort(-value)[:10]])
                column, top = placed(points, c[:, None], top)
                most = float(climb(there, column, top, until=until)[1].max())
            estimate[key] = max(most, 0.0)
        return estimate[key] * slackness

    def prove(key: Key, room: float, seconds: float) -> float:
        nonlocal nodes
        if key not in proved:
            side, bound, used, directions = _scalar(
                points, weights(key), guess(key) / slackness, room * slackness, seconds
            )
            bound = math.nextafter(bound, math.inf)
            maximum = unscale(bound)
            # Among the least floats it is more.
            proved[key] = max(bound, math.ldexp(maximum, -points.shift)), maximum, side
            nodes += used
            met.append(directions)
        return proved[key][0]

    def forms(cells: np.ndarray, of: Callable[[Key], float]) -> tuple[np.ndarray, np.ndarray]:
        b = np.array([[of(_key(w)) for w in cell] for cell in cells])
        real = cells / 2.0**W_BITS
        return real @ real.transpose(0, 2, 1), b[:, :, None] * b[:, None, :]

    def levels(cells: np.ndarray, of: Callable[[Key], float]) -> np.ndarray:
        return level(*forms(cells, of))

    cells = np.array([np.array(s)[:, None] * rows for s in itertools.product((1.0, -1.0), repeat=free)])
    record, ids = Record(len(cells)), np.arange(len(cells))

    # Two vertices show how many there is time for.
    began = time.perf_counter()
    for sign in (1, -1):
        prove(_key(sign * rows[0]), 1.0, (until - began) / 8)
    each = max((time.perf_counter() - began) / 2, 0.01)
    most = min(VERTICES, max(4 * (free + 1), int((until - began) / each)))

    def refine(high: np.ndarray, of: Callable[[Key], float]) -> np.ndarray:
        """Halve the highest cone until the goal is reached; the levels of all cones."""
        nonlocal cells, ids
        while free > 1 and len(estimate) < most and high.max() > goal and time.perf_counter() < until:
            j = int(high.argmax())
            halves, edge = split(cells[[j]])
            if np.abs(halves).max() > W_LIMIT:
                break
            new = record.add(ids[[j]], edge)
            cells, ids = np.concatenate([np.delete(cells, j, 0), halves]), np.concatenate([np.delete(ids, j), new])
            high = np.concatenate([np.delete(high, j), levels(halves, of)])
        return high

    high = refine(levels(cells, guess), guess)
    target = max(goal, float(high.max()))
    room = dict.fromkeys(estimate, math.inf)  # a vertex need not be better than its highest cone asks for
    for cell, s in zip(cells, high):
        for w in cell:
            room[_key(w)] = min(room[_key(w)], target / max(s, 1e-300))
    room = {key: factor for key, factor in room.items() if math.isfinite(factor)}
    for j, (key, factor) in enumerate(room.items()):
        prove(key, factor, max(until - time.perf_counter(), LEAST) / (len(room) - j))

    def exactly(key: Key) -> float:
        return prove(key, 1.0, max(until - time.perf_counter(), LEAST) / 4)

    high = refine(levels(cells, exactly), exactly)
    upper = common_level(float(high.max()) * (1 + slack), *forms(cells, exactly))
    vertices = [{"w": list(key), "maximum": maximum, "side": side} for key, (_, maximum, side) in proved.items()]
    saved: dict[str, Any] = {"type": "omitted"}
    if all(side is not None for *_, side in proved.values()):
        entries = record.preorder()[0]
        saved = {"type": "cover", "basis": rows.astype(int).tolist(), "tree": entries, "vertices": vertices}
    return Proof(upper, g, "cover", saved, nodes, np.vstack(met) @ points.basis.T)


def _key(w: np.ndarray) -> Key:
    return tuple(int(v) for v in w)


def _integer_basis(images: np.ndarray, value: np.ndarray, free: int) -> np.ndarray:
    """A basis (free, K) of R^K, or for free = K - 1 of the hyperplane sum w = 0, nearly orthogonal: integers near 2^W_BITS times
    unit vectors.

    The first points to the largest image F(u), the next to the largest rests: so few directions matter.
    """
    K = images.shape[1]
    rows: list[np.ndarray] = []
    images, value = (array / (float(np.abs(array).max()) or 1.0) for array in (images, value))
    rest = np.vstack([images * value[:, None], 1e-9 * np.eye(K)])
    flat = free < K
    rest = rest - rest.mean(axis=1, keepdims=True) if flat else rest
    for _ in range(free):
        b = rest[np.linalg.norm(rest, axis=1).argmax()]
        b = b / np.linalg.norm(b)
        rest = rest - np.outer(rest @ b, b)
        whole = np.rint(b * 2.0**W_BITS)
        whole[np.abs(whole).argmax()] -= whole.sum() if flat else 0.0
        rows.append(whole)
    return np.array(rows)


def _scalar(
    points: Points, c: np.ndarray, known: float, room: float, seconds: float
) -> tuple[dict[str, Any] | None, float, int, np.ndarray]:
    """One side of an f1 proof: max_u sum_i c_i relu(u . x_i) <= bound, as stored; nodes; directions met (k, r)."""
    Xt, D = points.Xt, points.X0.shape[1]
    if (c <= 0).all():
        used: list[int] = np.flatnonzero(c).tolist()
        side = {"shift": 0, "points": used, "tree": [-1], "leaves": [[0] * len(used)]}
        return side, 0.0, 0, np.zeros((0, points.r))
    tree = signs.Tree(Xt, points.tensor(c), columns=D, memory=points.memory)
    target, nodes, deadline = known * room, 0, time.monotonic() + seconds
    # Linear bounds are cheap and enough for small problems; quadratic ones close large trees in few nodes.
    stages: list[tuple[bool, float]] = [(False, math.inf)]
    if Xt.shape[1] <= QUADRATIC_RANK and points.quadratic:
        stages = [(False, 50_000 if Xt.numel() < LINEAR_ENTRIES else 5000), (True, math.inf)]
    met = []
    for quadratic, most in stages:
        result = tree.run(
            known,
            1e-6,
            deadline=deadline,
            batch=256 if quadratic else 1024,
            target=target,
            max_nodes=most,
            quadratic=quadratic,
            beat=points.beat,
            empties=points.flat,
        )
        nodes += result.nodes
        met.append(result.directions)
        known = max(known, result.value)
        if result.bound <= max(target, known * (1 + 1e-6)) * (1 + 1e-9) or time.monotonic() > deadline:
            break
    directions = torch.cat(met).cpu().numpy()
    if result.log is None:
        return None, result.bound * (1 + 1e-12), nodes, directions
    roots = np.zeros((0, D), dtype=int)
    side, bound = writing.write(result.log, points.X0, c, np.zeros(D), roots, points.scale, enough=result.bound)
    return side, bound, nodes, directions
