"""One neuron of few dimensions, by cutting all directions into simplicial cones: the proof `cones` (relu).

On a cone with generators g_1 .. g_r, v = sum_k mu_k g_k with mu >= 0, relu lies below its chords and -relu below lines:

    sum_i c_i relu(x_i . v) <= sum_k mu_k w_k,   w_k = sum_{c_i > 0} c_i relu(x_i . g_k) - sum_{c_i < 0} beta_i x_i . g_k,

0 <= beta_i <= |c_i|, and any p with p . g_k >= w_k bounds it by |p| |v|. The file has the cones only. beta and p are found
here in floating point; then they are integers, and the two inequalities are shown for these in whole numbers.

Generators are integer combinations lam of the frame's rows R, so x . g = lam . (R x). Where c_i < 0 and the sign of x_i . v
is the same on the whole cone, beta_i is 0 or |c_i| and nothing is lost. So w_k is the value at g_k, found once for each
generator with great accuracy, plus what the few open points lose:

    w_k = F(g_k) + sum_{open} [ (|c_i| - beta_i) relu(x_i . g_k) + beta_i relu(-x_i . g_k) ].
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from .exact import column, matmul, objects, root_up, squares
from .reading import Problem, Refused, integer, listed, need
from .tree import fold_mirrors

ROWS = 8  # of a frame: 2^r orthants
FRAME_BITS = 512
GENERATOR = 1 << 24  # the largest entry of a generator
POINT_BITS = 34  # of R x: with 8 products by 25 bits the sums stay below 2^62
WEIGHT_BITS = 60
OPEN_BITS = 29  # of the weights of open points: times their heights, summed, below 2^62
PI_BITS = 58
UNIT_BITS = 200  # no w has more, and it is a double
FORM_BITS = 192  # of the quadratic form of |p|^2
LEAVES = 4096  # at a time, fewer where there are many points
NUMBERS = 1 << 21  # leaves times points at a time
NEWTON = 40  # steps of the interior-point method
# rounds of the search for beta, and how many open points it moves; the last by interior points, which flat cones need
STAGES = ((0, 0), (12, 8), (60, 16), (NEWTON, 64))
SWEEPS, PIVOTS = 2, 8  # of the search for p


@dataclass(frozen=True)
class _Forest:
    generators: np.ndarray  # (m, r) int64, all different
    leaves: np.ndarray  # (L, r) which generators, in preorder


@dataclass(frozen=True)
class _Side:
    """c_i x_i in coordinates of the frame, x_i . g = lam . heights_i within |lam|_1 blur_i / 2, in units of 2^shift."""

    frame: np.ndarray  # (r, r) float, the rows over 2^scale in an orthonormal basis
    heights: np.ndarray  # (r, n) int64, points with positive weight first
    weights: np.ndarray  # (n,) int64, rounded up
    positive: int  # how many weights are positive
    blur: np.ndarray  # (n,) int64, 1 where heights were rounded
    linear: np.ndarray  # (r, 1) integers, l . g = lam . linear
    shift: int
    unit: int  # of |p|, for the search: upper times 2^scale
    pi_shift: int  # p . g = lam . pi 2^pi_shift
    form: np.ndarray  # (r, r) integers, |p|^2 <= upper^2 if pi' form pi + form_slack |pi|_1^2 <= form_limit
    form_slack: int
    form_limit: int

    def generators(self, lam: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """F(g) (m,), rounded up, as Python ints; x_i . g (m, n-) of the points with negative weight."""
        n, p = len(self.weights), self.positive
        below = np.empty((len(lam), n - p), dtype=np.int64)
        total = np.zeros(len(lam), dtype=object)
        step = max(1, (1 << 19) // max(n, 1))
        for start in range(0, len(lam), step):
            some = slice(start, start + step)
            part = lam[some]
            T = np.zeros((len(part), n), dtype=np.int64)
            for j in range(part.shape[1]):
                T += part[:, j : j + 1] * self.heights[j]
            below[some] = T[:, p:]
            h = self.radius(part)[:, None] * self.blur
            T[:, :p] += h[:, :p]
            T[:, p:] -= h[:, p:]
            total[some] = matmul(np.maximum(T, 0, out=T), column(self.weights.tolist()))[:, 0]
        straight = matmul(lam, self.linear)[:, 0]
        return total + _over(straight, self.shift), below

    def radius(self, lam: np.ndarray) -> np.ndarray:
        """How far lam . heights may be from the truth where heights were rounded."""
        return np.asarray((np.abs(lam).sum(-1) + 1) >> 1)


@dataclass(frozen=True)
class _Block:
    """Some leaves; their open points as a list of pairs (leaf, point), sorted by leaf."""

    lam: np.ndarray  # (B, r, r) int64
    values: np.ndarray  # (B, r) F at the generators, Python ints
    leaf: np.ndarray  # (P,)
    weight: np.ndarray  # (P,) int64, absolute value
    point: np.ndarray  # (P,) its column of heights
    T: np.ndarray  # (r, P) int64, x . g

    def some(self, index: np.ndarray) -> _Block:
        place = np.full(len(self.lam), -1)
        place[index] = np.arange(len(index))
        keep = place[self.leaf] >= 0
        leaf = place[self.leaf[keep]]
        return _Block(self.lam[index], self.values[index], leaf, self.weight[keep], self.point[keep], self.T[:, keep])

    def sums(self, values: np.ndarray) -> np.ndarray:
        """(r, P) -> (B, r), added over the pairs of each leaf."""
        out = np.zeros((len(self.lam), len(values)), dtype=values.dtype)
        if len(self.leaf):
            first = self.first()
            out[self.leaf[first]] = np.add.reduceat(values, first, axis=1).T
        return out

    def first(self) -> np.ndarray:
        """Where the pairs of a leaf begin, for leaves that have some."""
        return np.flatnonzero(np.diff(self.leaf, prepend=-1))


def relu_cones(problem: Problem, c: list[int], total: int, bound: Fraction, side: Mapping[str, Any], name: str) -> str:
    weights, linear = fold_mirrors(problem, c, side, name)
    rows = listed(side.get("frame"), f"{name}: frame")
    r = len(rows)
    need(1 <= r <= min(problem.D, ROWS), f"{name}: the frame has {r} rows, not 1 to {min(problem.D, ROWS)}")
    largest = 1 << FRAME_BITS
    rows = [
        [integer(v, f"{name}: frame", -largest, largest) for v in listed(row, f"{name}: frame", problem.D)]
        for row in rows
    ]
    frame = objects(rows, r, problem.D)
    determinant, adjugate = _adjugate(matmul(frame, frame.T))
    need(determinant > 0, f"{name}: the rows of the frame are linearly dependent")
    order = [i for i, w in enumerate(weights) if w > 0] + [i for i, w in enumerate(weights) if w < 0]
    limit = bound * total * 2**problem.k
    if r < problem.D:
        limit -= _beside(problem, frame, weights, order, linear, determinant, adjugate)
    need(limit >= 0, f"{name}: the points are too far from the span of the frame")
    forest = _forest(side.get("tree"), r, name)
    form = _side(problem, frame, [weights[i] for i in order], order, linear, limit, determinant, adjugate)
    step = max(1, min(LEAVES, NUMBERS // max(1, len(order))))
    for start in range(0, len(forest.leaves), step):
        block = _block(form, forest, slice(start, start + step))
        left = np.arange(len(block.lam))
        for rounds, undecided in STAGES:
            good = np.zeros(len(left), dtype=bool)
            room = max(1, (1 << 20) // (undecided + r) ** 2)
            for at in range(0, len(left), room):
                good[at : at + room] = _proved(form, block.some(left[at : at + room]), rounds, undecided)
            left = left[~good]
            if not len(left):
                break
        need(not len(left), f"{name}, leaf {start + int(left[0]) if len(left) else 0}: its bound is larger than upper")
    return f"{len(forest.leaves)} cones"


def _adjugate(S: np.ndarray) -> tuple[int, np.ndarray]:
    """Determinant and adjugate of an integer matrix, by elimination without fractions; (0, ...) if it has none."""
    n = len(S)
    rows = [[int(v) for v in row] + [int(i == j) for j in range(n)] for i, row in enumerate(S)]
    previous = 1
    for k in range(n):
        pivot = next((i for i in range(k, n) if rows[i][k]), None)
        if pivot is None:
            return 0, S
        if pivot != k:  # never for a Gram matrix of independent rows
            rows[k], rows[pivot] = rows[pivot], [-v for v in rows[k]]
        first = rows[k]
        for i in range(n):
            if i != k:
                factor = rows[i][k]
                rows[i] = [(first[k] * v - factor * w) // previous for v, w in zip(rows[i], first)]
        previous = first[k]
    return previous, objects([row[n:] for row in rows], n, n)


def _beside(
    problem: Problem,
    frame: np.ndarray,
    weights: list[int],
    order: list[int],
    linear: np.ndarray,
    determinant: int,
    adjugate: np.ndarray,
) -> Fraction:
    """sum_i |c_i| d_i + d_l, rounded up: what the points and the mirrors' vector have beside the span of the frame.

    d^2 = |x|^2 - y' (R R')^-1 y with y = R x, and (R R')^-1 is the adjugate over the determinant. Only the root is rounded.
    """
    beside = Fraction(0)
    step = max(1, (1 << 16) // problem.D)
    for start in range(0, len(order) + 1, step):
        index = order[start : start + step]
        rows, factors = problem.grid[index].astype(object), [abs(weights[i]) for i in index]
        if start + step > len(order):
            rows, factors = np.vstack([rows, linear[None]]), [*factors, 1]
        Y = matmul(rows, frame.T)  # (m, r)
        inside = (matmul(Y, adjugate) * Y).sum(axis=1)
        for factor, square, part in zip(factors, squares(rows), inside.tolist()):
            left = square * determinant - part
            if left > 0:
                beside += factor * root_up(Fraction(left, determinant))
    return beside


def _forest(tree: Any, r: int, name: str) -> _Forest:
    """The structure first: every cut has two children, and every orthant its tree. Then all cones, a level at a time."""
    tree = listed(tree, f"{name}: tree")
    need(len(tree) >= 1 << r, f"{name}: the tree has {len(tree)} entries for {1 << r} orthants")
    cuts = [i < j for i in range(r) for j in range(r)]
    # What is to come: 2 (the parent's place) + (0 for the first, 1 for the second child), or ~orthant.
    waiting = array("q", range(-(1 << r), 0))
    place, depth = array("q"), array("q")
    for position, code in enumerate(tree):
        if not waiting:
            raise Refused(f"{name}: the tree goes on after its last leaf")
        if type(code) is not int or not -1 <= code < r * r or (code >= 0 and not cuts[code]):
            raise Refused(f"{name}: tree entry {position} is no edge and no leaf")
        at = waiting.pop()
        place.append(at)
        depth.append(depth[at >> 1] + 1 if at >= 0 else 0)
        if code >= 0:
            waiting.append(2 * position + 1)
            waiting.append(2 * position)
    need(not waiting, f"{name}: the tree is not complete")
    codes, above = np.array(tree, dtype=np.int64), np.array(place)
    inner = codes >= 0
    number = 2 * r + np.cumsum(inner) - 1  # the generator that a cut makes
    made = np.zeros((2 * r + int(inner.sum()), r), dtype=np.int32)
    made[:r], made[r : 2 * r] = np.eye(r), -np.eye(r)
    cones = np.zeros((len(codes), r), dtype=np.int32)
    order = np.argsort(np.array(depth), kind="stable")
    levels = np.cumsum(np.bincount(np.array(depth)))
    for level, (start, stop) in enumerate(zip([0, *levels[:-1]], levels)):
        nodes = order[start:stop]
        if level == 0:
            minus = (~above[nodes])[:, None] >> np.arange(r - 1, -1, -1) & 1
            cones[nodes] = np.arange(r) + r * minus
        else:
            parent, second = above[nodes] >> 1, above[nodes] & 1
            cones[nodes] = cones[parent]
            cones[nodes, np.where(second, codes[parent] % r, codes[parent] // r)] = number[parent]
        cut = nodes[inner[nodes]]
        a, b = (made[cones[cut, at]].astype(np.int64) for at in (codes[cut] // r, codes[cut] % r))
        bits = [np.frexp(np.abs(part).max(axis=1, initial=0).astype(float))[1].astype(np.int64) for part in (a, b)]
        most = np.maximum(*bits)
        m = (a << (most - bits[0])[:, None]) + (b << (most - bits[1])[:, None])
        low = np.bitwise_or.reduce(m, axis=1)
        m = m // (low & -low)[:, None]
        large = np.abs(m).max(axis=1, initial=0) > GENERATOR
        if large.any():
            raise Refused(f"{name}: tree entry {cut[int(large.argmax())]} makes a generator with entries above 2^24")
        made[number[cut]] = m
    different, where = np.unique(made, axis=0, return_inverse=True)  # cones that share an edge share its cut
    return _Forest(different.astype(np.int64), where.reshape(-1)[cones[~inner]])


def _bits(values: Any) -> int:
    return max((abs(int(v)).bit_length() for v in values), default=0)


def _over(value: Any, shift: int) -> Any:
    """value / 2^shift rounded up."""
    return -(-value >> shift) if shift > 0 else value << -shift


def _side(
    problem: Problem,
    frame: np.ndarray,
    weights: list[int],
    order: list[int],
    linear: np.ndarray,
    limit: Fraction,
    determinant: int,
    adjugate: np.ndarray,
) -> _Side:
    """sum_i weights_i relu(x_i . v) + linear . v <= limit |v| is to be shown."""
    r, n = len(frame), len(order)
    Y = matmul(frame, problem.grid[order].astype(object).T).tolist()  # (r, n)
    drop = [max(0, _bits(Y[j][i] for j in range(r)) - POINT_BITS) for i in range(n)]
    heights = np.array([[(v + (1 << e >> 1)) >> e for v, e in zip(row, drop)] for row in Y], dtype=np.int64).reshape(
        r, n
    )
    weights = [w << e for w, e in zip(weights, drop)]
    along = matmul(frame, linear[:, None])  # (r, 1)
    # Small weights are made large, so that their beta has as many bits.
    shift = max(_bits(weights) - WEIGHT_BITS, _bits(along[:, 0]) - 2 * WEIGHT_BITS)
    rounded = np.array([_over(w, shift) for w in weights], dtype=np.int64)
    scale = _bits(frame.flat)
    _, triangle = np.linalg.qr(np.array([[v / (1 << scale) for v in row] for row in frame.tolist()]).T)
    limit = limit * Fraction(2) ** -shift
    unit = min(max(1, int(limit * (1 << scale))), 1 << UNIT_BITS)
    reach = int(limit * max(sum(abs(v) for v in row) for row in frame.tolist()))
    pi_shift = reach.bit_length() - PI_BITS
    # pi' adj pi 4^pi_shift <= limit^2 det, both over 2^less
    less = max(0, _bits(adjugate.flat) - FORM_BITS)
    ceiling = limit * limit * determinant / (1 << less) * Fraction(4) ** -pi_shift
    return _Side(
        triangle.T,
        heights,
        rounded,
        sum(w > 0 for w in weights),
        np.array([int(e > 0) for e in drop], dtype=np.int64),
        along,
        shift,
        unit,
        pi_shift,
        adjugate >> less,
        int(less > 0),
        ceiling.numerator // ceiling.denominator,
    )


def _block(side: _Side, forest: _Forest, some: slice) -> _Block:
    used, index = np.unique(forest.leaves[some], return_inverse=True)
    index = index.reshape(-1, forest.leaves.shape[1])  # (B, r)
    lam = forest.generators[used]
    values, below = side.generators(lam)
    h = side.radius(lam)[:, None] * side.blur[side.positive :]
    above, under = below > -h, below < h
    rises, falls = np.zeros((2, len(index), below.shape[1]), dtype=bool)
    for k in range(index.shape[1]):
        rises |= above[index[:, k]]
        falls |= under[index[:, k]]
    leaf, point = np.nonzero(rises & falls)
    weight = -side.weights[side.positive :][point]
    T = np.stack([below[index[leaf, k], point] for k in range(index.shape[1])])
    return _Block(lam[index], values[index], leaf, weight, side.positive + point, T)


def _proved(side: _Side, block: _Block, rounds: int, undecided: int) -> np.ndarray:
    """Which leaves are proved, (B,). What floating point says about beta and p is only a guess."""
    with np.errstate(all="ignore"):
        G = block.lam @ side.frame
        length = np.linalg.norm(G, axis=2)  # (B, r)
        G = G / length[:, :, None]
        A = _inverse(G)
        share, near = _slopes(side, block, G, A, length, rounds, undecided)  # (P,) in [0, 1]
    w = block.values + _losses(side, block, share)  # (B, r) Python ints
    with np.errstate(all="ignore"):
        p = _shortest(G, A, (w / side.unit).astype(float) / length, near)  # (B, r)
        guess = (p @ side.frame.T) * float(Fraction(side.unit) / Fraction(2) ** side.pi_shift)
        guess = np.clip(np.nan_to_num(guess), -(2.0**62), 2.0**62)
    pi = np.rint(guess).astype(np.int64)
    # lam . pi >= w: missing parts are added along the signs of the orthant, where lam . signs = |lam|_1 >= 1
    high, low = ((block.lam @ part[:, :, None])[:, :, 0].astype(object) for part in (pi >> 30, pi & ((1 << 30) - 1)))
    missing = _over(w, side.pi_shift) - (high << 30) - low
    more = np.maximum(-(-missing // np.abs(block.lam).sum(axis=2)), 0).max(axis=1)  # (B,)
    pi = pi.astype(object) + more[:, None] * np.sign(block.lam.sum(axis=1))
    square = (matmul(pi, side.form) * pi).sum(axis=1) + side.form_slack * np.abs(pi).sum(axis=1) ** 2
    return (square <= side.form_limit).astype(bool)


def _losses(side: _Side, block: _Block, share: np.ndarray) -> np.ndarray:
    """sum_{open} (|c_i| - beta_i) relu(x_i . g_k) + beta_i relu(-x_i . g_k), rounded up, (B, r) Python ints.

    beta_i = share_i |c_i| rounded down to OPEN_BITS, the rest of |c_i| rounded up; heights are rounded up to what a
    sum over the open points leaves room for in 63 bits.
    """
    B = len(block.lam)
    if not len(share):
        return np.zeros((B, 1), dtype=object)
    drop = max(0, int(block.weight.max()).bit_length() - OPEN_BITS)
    low = block.weight >> drop
    beta = np.clip(np.floor(share * low), 0, low).astype(np.int64)
    rest = -(-block.weight >> drop) - beta
    h = side.radius(block.lam).T[:, block.leaf] * side.blur[block.point]  # (r, P)
    rise, fall = np.maximum(block.T + h, 0), np.maximum(h - block.T, 0)
    first, most = block.first(), np.zeros(B, dtype=np.int64)
    most[block.leaf[first]] = np.maximum.reduceat(np.maximum(rise, fall).max(axis=0), first)
    count = int(np.bincount(block.leaf).max())
    room = 62 - (OPEN_BITS + 2) - count.bit_length()
    bits = np.frexp(most.astype(float))[1].astype(np.int64)
    down = np.maximum(bits - room, 0)  # (B,)
    at = down[block.leaf]
    sums = block.sums(rest * -(-rise >> at) + beta * -(-fall >> at))
    return sums.astype(object) << (down + drop).astype(object)[:, None]


def _inverse(G: np.ndarray) -> np.ndarray:
    try:
        return np.linalg.inv(G)
    except np.linalg.LinAlgError:
        return np.linalg.pinv(np.nan_to_num(G))


def _slopes(
    side: _Side, block: _Block, G: np.ndarray, A: np.ndarray, length: np.ndarray, rounds: int, undecided: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """beta_i / |c_i| for each pair: the chord's, then |p| is made small over those of the largest open points and the
    slack s >= 0 of p . g_k = w_k + s_k, by coordinate descent or, at last, by interior points; and that p.
    """
    weight = block.weight / float(side.unit)  # (P,)
    M = block.T * (weight * (1 / length).T[:, block.leaf])  # (r, P)
    up = np.maximum(M, 0)
    share = np.nan_to_num(up.sum(axis=0) / np.abs(M).sum(axis=0))
    if rounds == 0 or len(share) == 0:
        return share, None
    B, r = length.shape
    size = np.minimum(M.max(axis=0), -M.min(axis=0))
    order = np.lexsort((-size, block.leaf))
    first = np.searchsorted(block.leaf, np.arange(B))
    rank = np.arange(len(order)) - first[block.leaf]  # leaves are sorted, so block.leaf[order] is block.leaf
    chosen = (rank < undecided) & (size[order] > 0)
    pair, rank = order[chosen], rank[chosen]
    if not len(pair):
        return share, None
    leaf, m = block.leaf[pair], int(rank.max()) + 1
    try:
        X = np.linalg.solve(side.frame, side.heights.astype(float)).T  # (n, r)
    except np.linalg.LinAlgError:  # independent rows that doubles do not tell apart
        return share, None
    rows = np.zeros((B, m + r, r))
    rows[leaf, rank] = -weight[pair, None] * X[block.point[pair]]
    rows[:, m:] = A.transpose(0, 2, 1) / np.linalg.norm(A, axis=1)[:, :, None]
    x, high = np.zeros((B, m + r)), np.zeros((B, m + r))
    x[leaf, rank], high[leaf, rank] = share[pair], 1.0
    high[:, m:] = np.inf
    start = (block.values / side.unit).astype(float) / length + block.sums(up - share * M)
    p = (A @ start[:, :, None])[:, :, 0]
    if rounds == NEWTON:
        p = p - (x[:, None, :] @ rows)[:, 0]
        x = _interior(rows, p, high)
        share[pair] = np.nan_to_num(x[leaf, rank])
        return share, p + (x[:, None, :] @ rows)[:, 0]
    H = rows @ rows.transpose(0, 2, 1)
    z = (rows @ p[:, :, None])[:, :, 0]
    diagonal = np.maximum(H.diagonal(axis1=1, axis2=2), 1e-300)
    for _ in range(rounds):
        for k in range(m + r):
            new = np.clip(x[:, k] - z[:, k] / diagonal[:, k], 0, high[:, k])
            z += H[:, :, k] * (new - x[:, k])[:, None]
            x[:, k] = new
    share[pair] = np.nan_to_num(x[leaf, rank])
    return share, None


def _interior(rows: np.ndarray, p: np.ndarray, high: np.ndarray) -> np.ndarray:
    """x (B, k) that nearly minimises |p + sum_i x_i rows_i| over 0 <= x <= high, by an interior-point method.

    Every step solves (R R' + D) dx = right, D diagonal, through the r x r matrix I + R' D^-1 R.
    """
    r = rows.shape[2]
    limited = np.isfinite(high) & (high > 0)
    moves = high > 0
    unit = np.linalg.norm(p, axis=1)[:, None] + 1e-300
    x = np.where(limited, 0.5 * high, 0.1 * unit) * moves
    low, up = np.where(moves, x, 1.0), np.where(limited, high - x, 1.0)
    g = p + (x[:, None, :] @ rows)[:, 0]
    scale = np.linalg.norm(g, axis=1)[:, None] * np.abs(x).max(axis=1)[:, None] + 1e-300
    z, y = np.where(moves, scale / low, 0.0), np.where(limited, scale / up, 0.0)
    count = np.maximum(moves.sum(axis=1) + limited.sum(axis=1), 1)[:, None]
    best, length = x, np.linalg.norm(g, axis=1)
    for _ in range(NEWTON):
        mu = 0.1 * (z * low + y * up).sum(axis=1)[:, None] / count
        into, out = np.where(moves, mu / low, 0.0), np.where(limited, mu / up, 0.0)
        inverse = np.where(moves, 1 / np.maximum(z / low + y / up, 1e-280), 0.0)
        small = np.eye(r) + (rows * inverse[:, :, None]).transpose(0, 2, 1) @ rows
        step = inverse * (into - out - (rows @ g[:, :, None])[:, :, 0])
        try:
            inner = np.linalg.solve(small, (step[:, None, :] @ rows)[:, 0, :, None])[:, :, 0]
        except np.linalg.LinAlgError:
            break
        step = step - inverse * (rows @ inner[:, :, None])[:, :, 0]
        dz = np.where(moves, into - z - z / low * step, 0.0)
        dy = np.where(limited, out - y + y / up * step, 0.0)
        reach = np.maximum(np.where(moves, -step / low, 0.0), np.where(limited, step / up, 0.0)).max(axis=1)[:, None]
        dual = np.maximum(np.where(moves, -dz / z, 0.0), np.where(limited, -dy / y, 0.0)).max(axis=1)[:, None]
        a, d = 0.995 / np.maximum(reach, 0.995), 0.995 / np.maximum(dual, 0.995)
        x, z, y = x + a * step, z + d * dz, y + d * dy
        low, up = np.where(moves, low + a * step, 1.0), np.where(limited, up - a * step, 1.0)
        g = p + (x[:, None, :] @ rows)[:, 0]
        better = np.linalg.norm(g, axis=1) < length
        best = np.where(better[:, None], np.clip(x, 0, high), best)
        length = np.where(better, np.linalg.norm(g, axis=1), length)
    return best


def _shortest(G: np.ndarray, A: np.ndarray, w: np.ndarray, near: np.ndarray | None) -> np.ndarray:
    """A short p with G p >= w, (B, r): p = A (w + s) with s >= 0 by coordinate descent and block pivoting, or a multiple
    of the mean generator.
    """
    r = w.shape[1]
    K = A.transpose(0, 2, 1) @ A
    s, z = np.zeros_like(w), (K @ w[:, :, None])[:, :, 0]
    first = z.copy()
    diagonal = K.diagonal(axis1=1, axis2=2)
    for _ in range(SWEEPS):
        for k in range(r):
            new = np.maximum(s[:, k] - z[:, k] / diagonal[:, k], 0)
            z = z + K[:, :, k] * (new - s[:, k])[:, None]
            s[:, k] = new
    tried = [s]
    free = s > 0
    for _ in range(PIVOTS):
        both = free[:, :, None] & free[:, None, :]
        try:
            solved = np.linalg.solve(np.where(both, K, np.eye(r)), np.where(free, -first, 0)[:, :, None])[:, :, 0]
        except np.linalg.LinAlgError:
            break
        z = first + (K @ solved[:, :, None])[:, :, 0]
        tried[1:] = [np.maximum(np.nan_to_num(solved), 0)]
        wrong = np.where(free, solved < 0, z < -1e-12 * np.abs(first).max(axis=1, keepdims=True))
        if not wrong.any():
            break
        free = free ^ wrong
    u = G.mean(axis=1)
    u = u / np.linalg.norm(u, axis=1)[:, None]
    height = (G @ u[:, :, None])[:, :, 0]
    flat = np.where(height.min(axis=1) > 0, np.maximum((w / height).max(axis=1), 0), np.inf)
    P = np.stack([(A @ (w + s)[:, :, None])[:, :, 0] for s in tried] + [flat[:, None] * u])  # (3, B, r)
    if near is not None:  # what it lacks in p . g_k >= w_k is added to it later
        P = np.concatenate([P, near[None]])
    best = np.nan_to_num(np.linalg.norm(P, axis=2), nan=np.inf).argmin(axis=0)
    return P[best, np.arange(len(w))]
