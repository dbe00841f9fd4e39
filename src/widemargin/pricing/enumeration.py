"""The pricing problem of rank 1 to 3 by a complete list: max over |v| = 1 of F(v) = sum_i c_i relu(v . x_i).

F is linear where no v . x_i changes sign. On the circle that is on at most 2 n arcs, and a maximiser is an end of an arc or
the gradient of one. On the sphere n great circles make at most n (n - 1) vertices, 2 n (n - 1) arcs and n (n - 1) + 2 cells,
and a maximiser is a vertex, or the gradient of an arc projected to its plane, or the gradient of a cell. All arcs and cells
are met at the vertices: at the vertex of circles i and j, along i and along j, forwards and back. The three axes are added as
circles without weight, so that every arc and cell has a vertex whatever the rank of the points.

Doubles are enough for the gradients: one that rounding moves out of its cell lies next to an arc with the same value. They are
not enough for the signs of v . x_i at the vertices of nearly parallel points, whose cells are far narrower than the crossing of
two of them is known. So the signs are found in coordinates in which the points are round; these, and the crossings, are worked
out with twice the digits.
"""

from __future__ import annotations

import numpy as np

BLOCK = 1 << 20  # floats that are held at a time
FOUND = 200
WORK = 1 << 26  # products of candidates on the circle with points, for which there is always time
LOOK = 32  # circles that a candidate is compared with before F is worked out
SLACK = 1e-9  # what is this close to being a local maximum counts as one
SMALLEST = 900  # a coordinate is scaled by at most 2^SMALLEST, so that no double overflows
PARALLEL = 1e-13  # two lines with a smaller angle are one
FLAT = 1e-14  # directions in which the points are thinner than that, relative to the widest, are stretched no further
NEAR = 16 * 2.0**-52  # a product of unit vectors below it may be 0
SPLIT = 2.0**27 + 1  # halves of a double's digits


def enumerate3(X: np.ndarray, c: np.ndarray) -> tuple[float, float, np.ndarray]:
    """(value, bound, found) for X (n, d), d <= 3: the largest F, met at found[0]; value (1 + 1e-9), at least 0, and what
    float64 may lose of sum_i |c_i| |x_i|, which `proof.type = "enumeration"` proves (on the circle, where no direction is a
    cross product, 1 + 1e-12); the best local maxima (k, d), k <= 200, of at least half the value, and the best vertex.
    `seconds` tells how long it takes.
    """
    d = X.shape[1]
    length = np.linalg.norm(X, axis=1)
    keep = (c != 0) & (length > 0)
    X, c, length = X[keep], c[keep], length[keep]
    weight = float(np.abs(c) @ length)
    if d == 1:
        V = np.array([[1.0], [-1.0]])
    elif not weight:
        V = np.eye(d)
    else:
        V = (_circle if d == 2 else _sphere)(X, c)
    V, values = _best(V, X, c)
    kept: list[int] = []
    for k in range(len(V)):
        if len(kept) < FOUND and (not kept or float((V[kept] @ V[k]).max()) < 1 - 1e-12):
            kept.append(k)
    value = float(values[0])
    rounding = 2e-15 * (len(X) + 64) * weight
    return value, max(value, 0.0) * (1 + (1e-9 if d == 3 else 1e-12)) + rounding, V[kept]


def seconds(n: int, d: int) -> float:
    """Of `enumerate3` for n points on one core, more or less; it does not look at the clock."""
    return 1.5e-8 * float(n) ** 3 if d == 3 else n * (4e-7 + 3e-9 * _most(n))


def _most(n: int) -> int:
    """How many candidates on the circle are compared to the last digit."""
    return int(np.clip(WORK / max(n, 1), FOUND, 8 * FOUND))


def _best(V: np.ndarray, X: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The best 8 FOUND directions, many of which may be the same, and their values, best first."""
    step = max(1, BLOCK // max(1, len(X)))
    values = np.concatenate([np.maximum(V[s : s + step] @ X.T, 0.0) @ c for s in range(0, len(V), step)])
    order = np.argsort(-values, kind="stable")[: 8 * FOUND]
    return V[order], values[order]


def _circle(X: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The best local maxima on the circle (N, 2), by sorting the directions in which a point becomes zero."""
    theta = np.arctan2(X[:, 1], X[:, 0])
    gradient = c[:, None] * X
    ends = np.concatenate([theta - np.pi / 2, theta + np.pi / 2]) % (2 * np.pi)  # becoming active, inactive
    change = np.concatenate([gradient, -gradient])
    order = np.argsort(ends)
    ends, change = ends[order], change[order]
    widths = np.diff(ends, append=ends[0] + 2 * np.pi)
    first = int(widths.argmax())  # its middle is far from all ends: there the active points are certain
    ends, change, widths = (np.roll(z, -first, axis=0) for z in (ends, change, widths))
    middle = ends[0] + widths[0] / 2
    active = X @ [np.cos(middle), np.sin(middle)] > 0
    change[0] = gradient[active].sum(axis=0)
    g = np.cumsum(change, axis=0)  # (2 n, 2): the gradient after each end
    v = np.column_stack([np.cos(ends), np.sin(ends)])
    t = np.column_stack([-v[:, 1], v[:, 0]])
    small = SLACK * float(np.abs(gradient).max())
    top = ((g * t).sum(axis=1) <= small) & ((np.roll(g, 1, axis=0) * t).sum(axis=1) >= -small)
    size = np.linalg.norm(g, axis=1)
    beyond = (np.arctan2(g[:, 1], g[:, 0]) - ends + SLACK) % (2 * np.pi)
    # a gradient may be far smaller than its terms and still the maximum; below 2^-60 of them it is rounding
    inside = (beyond <= widths + 2 * SLACK) & (size > 2.0**-60 * float(np.abs(gradient).max()))
    at_ends = (g * v).sum(axis=1)  # F there, up to what float64 loses in the sums
    best = int(at_ends.argmax())
    V = np.concatenate([v[best : best + 1], v[top], g[inside] / size[inside, None]])
    order = np.argsort(-np.concatenate([at_ends[best : best + 1], at_ends[top], size[inside]]), kind="stable")
    return V[order[: _most(len(X))]]


def best_of_arcs(X: np.ndarray, g: np.ndarray, most: int) -> tuple[np.ndarray, int]:
    """For vectors g (n, K) and points X (n, 2): directions (`most`, 2) where |F| is largest, up to rounding, and how many arcs.

    Arcs end where a point becomes active or inactive. On an arc |F(u)| = |M u| is largest at an end or at +- the top singular
    vector of M, which sums along the circle give for all arcs.
    """
    on, K = g.any(axis=1) & X.any(axis=1), g.shape[1]
    used = X[on]
    angle = np.arctan2(used[:, 1], used[:, 0])
    ends = np.concatenate([angle - np.pi / 2, angle + np.pi / 2, np.arange(4) * np.pi / 2]) % (2 * np.pi)
    order = np.argsort(ends)
    ends = ends[order]
    after = np.append(ends[1:], ends[0] + 2 * np.pi)
    middle = (ends + after) / 2
    widest = int((after - ends).argmax())  # in its middle the active points are certain
    pieces = (g[on][:, :, None] * used[:, None, :]).reshape(-1, 2 * K)  # (m, 2 K)
    change = np.roll(np.concatenate([pieces, -pieces, np.zeros((4, 2 * K))])[order], -widest, axis=0)
    change[0] = pieces[used @ [np.cos(middle[widest]), np.sin(middle[widest])] > 0].sum(axis=0)
    M = np.roll(change.cumsum(axis=0), widest, axis=0).reshape(-1, K, 2)  # (arcs, K, 2)
    gram = np.einsum("lkd,lke->lde", M, M)
    turn = 0.5 * np.arctan2(2 * gram[:, 0, 1], gram[:, 0, 0] - gram[:, 1, 1])
    turn = middle + (turn - middle + np.pi / 2) % np.pi - np.pi / 2  # of both, the one near the arc
    at = np.concatenate([turn.clip(ends, after), ends])
    V = np.column_stack([np.cos(at), np.sin(at)])
    value = np.linalg.norm(np.einsum("lkd,ld->lk", np.concatenate([M, M]), V), axis=1)
    return V[np.argsort(-value)[:most]], len(ends)


def _lines(X: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Unit vectors U (m, 3), one for each line, and weights of a relu(v . u) + b relu(-v . u); the axes are the last three.

    Beside them a vector of each line with all its digits.
    """
    X, c = np.concatenate([X, np.eye(3)]), np.concatenate([c, np.zeros(3)])
    length = np.linalg.norm(X, axis=1)
    U = X / length[:, None]
    n = len(U)
    root = np.arange(n)
    for start in range(0, n, step := max(1, BLOCK // (3 * n))):
        near = np.linalg.norm(np.cross(U[start : start + step, None], U[None]), axis=2) < PARALLEL
        root[start : start + step] = (near * np.arange(1, n + 1)).argmax(axis=1)  # the last: an axis where it is one
    back = (U * U[root]).sum(axis=1) < 0
    a = np.bincount(root[~back], (c * length)[~back], n)
    b = np.bincount(root[back], (c * length)[back], n)
    keep = (a != 0) | (b != 0) | (np.arange(n) >= n - 3)
    return U[keep], a[keep], b[keep], X[keep]


def _unit(V: np.ndarray) -> np.ndarray:
    """Rows divided by their lengths; by their largest entries first, whose squares may be beyond all doubles."""
    V = V / np.abs(V).max(axis=1, keepdims=True)
    unit: np.ndarray = V / np.linalg.norm(V, axis=1, keepdims=True)
    return unit


def _product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """a b and what it lacks, in doubles (Dekker)."""
    p, high, low = a * b, [], []
    for z in (a, b):
        top = SPLIT * z
        high.append(top - (top - z))
        low.append(z - high[-1])
    return p, ((high[0] * high[1] - p) + high[0] * low[1] + low[0] * high[1]) + low[0] * low[1]


def _sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """a + b and what it lacks (Knuth)."""
    s = a + b
    part = s - a
    return s, (a - (s - part)) + (b - part)


def _times(Y: np.ndarray, M: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Y M for Y (m, 3), M (3, 3), with twice the digits: as a sum of two."""
    total, rest = _product(Y[:, :1], M[0])
    for k in (1, 2):
        more, lacks = _product(Y[:, k : k + 1], M[k])
        total, lost = _sum(total, more)
        rest = rest + (lacks + lost)
    return _sum(total, rest)


def _cross(a: np.ndarray, b: np.ndarray, a_rest: np.ndarray, b_rest: np.ndarray) -> np.ndarray:
    """(a + a_rest) cross (b + b_rest), rows (N, 3), rounded once: doubles alone lose the digits of nearly parallel vectors."""
    ahead, behind = [1, 2, 0], [2, 0, 1]
    p, p_lacks = _product(a[:, ahead], b[:, behind])
    q, q_lacks = _product(a[:, behind], b[:, ahead])
    total, lost = _sum(p, -q)
    rest = a_rest[:, ahead] * b[:, behind] + a[:, ahead] * b_rest[:, behind]
    rest = rest - a_rest[:, behind] * b[:, ahead] - a[:, behind] * b_rest[:, ahead]
    crossed: np.ndarray = total + (lost + (p_lacks - q_lacks) + rest)
    return crossed


def _round(X: np.ndarray, heard: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Vectors R (m, 3) of length about 1, and what they lack, and B (3, 3) of positive determinant: x . (B u) has the sign of
    r . u for all u, and the rows of R that are `heard` (m,) are as round as can be.
    """
    # by powers of two, so that all digits are kept: rows, then columns
    Y = np.ldexp(X, -np.frexp(np.abs(X).max(axis=1))[1][:, None])
    size = np.abs(Y[heard]).max(axis=0, initial=0.0)  # no line at all where the weights of each cancel
    scale = np.exp2(np.round(np.log2(np.where(size > 0, size, 1.0))).clip(-SMALLEST, 0))
    Y = Y / scale
    Y = np.ldexp(Y, -np.frexp(np.abs(Y).max(axis=1))[1][:, None])
    _, size, Q = np.linalg.svd(np.vstack([Y[heard], np.zeros((3, 3))]), full_matrices=False)
    size = size / (size[0] or 1.0)
    M = Q.T / np.where(size > 0, size, 1.0).clip(FLAT)  # (3, 3)
    M[:, 0] *= 1.0 if np.linalg.det(Q) > 0 else -1.0
    R, rest = _times(Y, M)
    power = -np.frexp(np.abs(R).max(axis=1))[1][:, None]
    return np.ldexp(R, power), np.ldexp(rest, power), M / scale[:, None]


def _sphere(X: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Local maxima on the sphere (N, 3) that are at least half as large as the best vertex, and the best vertex."""
    U, a, b, whole = _lines(X, c)  # U (m, 3)
    m = len(U)
    plus, minus = a[:, None] * U, -b[:, None] * U  # the gradients where v . u > 0, and where < 0
    both = np.concatenate([plus, minus], axis=1)  # (m, 6)
    rounding = 1e-13 * float(np.abs(a).sum() + np.abs(b).sum())
    R, rest, back = _round(whole, (a != 0) | (b != 0))
    unit = _unit(R)
    look = np.unique(np.linspace(0, m - 1, min(m, LOOK)).astype(int))
    first, second = np.triu_indices(m, 1)
    best, corner, directions = -np.inf, U[0], []
    step = max(1, BLOCK // m)
    for start in range(0, len(first), step):
        i, j = first[start : start + step], second[start : start + step]
        W = _unit(_cross(R[i], R[j], rest[i], rest[j]))  # the vertex in round coordinates
        V = _unit(W @ back.T)
        T = W @ unit.T  # (B, m)
        zero = np.abs(T) <= NEAR
        row = np.arange(len(V))
        zero[row, i] = zero[row, j] = True
        # where more than two circles meet, the pairs with the first of them have all arcs
        keep = zero.argmax(axis=1) == i
        i, j, V, W, T, zero = i[keep], j[keep], V[keep], W[keep], T[keep], zero[keep]
        row = np.arange(len(V))
        T[zero] = 0.0
        sides = np.sign(T[:, look])
        above, below = (T > 0).astype(float) @ both, (T < 0).astype(float) @ both  # (B, 6)
        zero[row, i] = zero[row, j] = False
        more_row, more = np.nonzero(zero)  # further circles through the vertex
        for end in (1, -1):  # the vertex is end V
            on, off = (above, below) if end > 0 else (below, above)
            g0 = on[:, :3] + off[:, 3:]
            value = end * (g0 * V).sum(axis=1)
            if len(value) and value.max() > best:
                best, corner = float(value.max()), end * V[int(value.argmax())]
            highest = value > best / 2
            small = max(SLACK * best, rounding)
            for own, other, turn in ((i, j, 1), (j, i, -1)):
                along = np.cross(V, U[own])
                ahead = np.cross(W[more_row], unit[own[more_row]])  # the same in round coordinates
                for way in (1, -1):  # the arc from end V along way (V x U[own]); the other circle's side is way turn
                    g = g0 + (plus if way * turn > 0 else minus)[other]
                    if len(more):
                        side = way * (ahead * unit[more]).sum(axis=1)
                        add = np.where(side[:, None] > 0, plus[more], minus[more])
                        for axis in range(3):
                            g[:, axis] += np.bincount(more_row, add[:, axis], len(g))
                    highest &= way * (g * along).sum(axis=1) <= small
                    slope = (g * U[own]).sum(axis=1)
                    ridge = (slope + a[own] <= small) & (slope - b[own] >= -small)  # the arc is above both its sides
                    for cell in (0, 1, -1):
                        if cell == 0:
                            # g less its part along U[own], which may be far larger than what is left
                            w = (end * value)[:, None] * V + (g * along).sum(axis=1)[:, None] * along
                            right = ridge
                        else:
                            w = g + (plus if cell > 0 else minus)[own]
                            right = cell * (w * U[own]).sum(axis=1) >= -small
                        right = right & (way * turn * (w * U[other]).sum(axis=1) >= -small)
                        at = np.flatnonzero(right)
                        size = np.linalg.norm(w[at], axis=1)
                        at, w, size = (z[size > max(best / 2, rounding)] for z in (at, w[at], size))
                        good = (end * sides[at] * (w @ U[look].T)).min(axis=1, initial=0.0) >= -small
                        directions.append(w[good] / size[good, None])
            directions.append(end * V[highest])
        if sum(map(len, directions)) > BLOCK // 64:
            directions = [_best(np.concatenate(directions), X, c)[0]]
    return np.concatenate([corner[None], *directions])
