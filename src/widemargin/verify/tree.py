"""One neuron, by branching on the signs of v . x_i: the proofs `tree` (relu) and `eigen-tree` (srelu).

Both show what the proofs of neuron.py show. A leaf fixes the signs of some v . x_i; on its region the objective is
bounded by a linear or quadratic function of v, and the leaves together cover all v. A leaf's states are made when it
is looked at: a small file may have many leaves, and the data many points.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from .exact import ROOT_BITS, column, matmul, objects, positive_semidefinite, sqrt_up, squares
from .reading import BITS, Problem, Refused, integer, listed, need, vector
from .span import Span, span

UNIT = 32  # multipliers of points with negative weight are integers over 2^UNIT
LEAF_BLOCK = 4096  # leaves at a time, fewer where there are many points
STATES = 1 << 21  # numbers for a block of leaves, each of up to 1100 bits
TABLE = 1 << 18  # entries of the table of products of an eigen-tree


@dataclass(frozen=True)
class _Tree:
    """A tree whose structure was checked: every inner node has two children and every leaf a proof."""

    points: list[int]
    roots: np.ndarray  # (r, D) integers
    shift: int
    tree: Sequence[int]
    leaves: Sequence[Any]

    def blocks(self, width: int) -> Iterator[tuple[int, np.ndarray]]:
        """The first leaf of a block, and states (leaves, points) int8: 0 free, 1 active, -1 inactive. `width`:
        numbers for a leaf.
        """
        most = max(1, min(LEAF_BLOCK, STATES // max(width, 1)))
        states: list[bytes] = []
        start = 0
        for state in _walk(self.tree, len(self.points)):
            states.append(bytes(state))
            if len(states) == most or start + len(states) == len(self.leaves):
                yield start, np.frombuffer(b"".join(states), dtype=np.int8).reshape(len(states), len(self.points))
                start, states = start + len(states), []


def _walk(tree: Sequence[int], points: int) -> Iterator[bytearray]:
    """The states at every leaf in preorder (0 free, 1 active, 255 inactive), the same array each time."""
    current = bytearray(points)
    path: list[int] = []  # branch points from the root; `current` tells which child we are in
    for entry in tree:
        if entry >= 0:
            current[entry] = 1
            path.append(entry)
            continue
        yield current
        while path and current[path[-1]] == 255:
            current[path.pop()] = 0
        if path:
            current[path[-1]] = 255


def _read_tree(
    problem: Problem, c: list[int], weights: list[int], side: Mapping[str, Any], name: str, any_sign: bool
) -> _Tree:
    """Points, roots and tree of a side; a path branches at most once on a point, and only where c_i > 0 unless
    `any_sign`.
    """
    shift = integer(side.get("shift"), f"{name}: shift", 0, 1024)
    n = len(c) // 2 if problem.opposite else len(c)
    points = [integer(i, f"{name}: points", 0, n - 1) for i in listed(side.get("points"), f"{name}: points")]
    need(len(set(points)) == len(points), f"{name}: a point is listed twice")
    roots = _roots(problem, weights, side, name)
    tree = listed(side.get("tree"), f"{name}: tree")
    leaves = listed(side.get("leaves"), f"{name}: leaves")
    branch = [any_sign or c[i] > 0 for i in points]
    used = bytearray(len(points))
    path: list[int] = []  # branch points from the root, ~p once its first child is done
    at, finished = 0, False
    for position, entry in enumerate(tree):
        need(not finished, f"{name}: the tree goes on after its last leaf")
        need(type(entry) is int and -1 <= entry < len(points), f"{name}: tree entry {position} is no point and no leaf")
        if entry >= 0:
            need(branch[entry], f"{name}: tree entry {position} branches on a point without positive weight")
            need(used[entry] == 0, f"{name}: tree entry {position} branches twice on one point")
            used[entry] = 1
            path.append(entry)
            continue
        at += 1
        while path and path[-1] < 0:
            used[~path.pop()] = 0
        if path:
            path[-1] = ~path[-1]
        else:
            finished = True
    need(finished, f"{name}: the tree is not complete")
    need(at == len(leaves), f"{name}: the tree has {at} leaves, and {len(leaves)} are stored")
    return _Tree(points, roots, shift, tree, leaves)


def _roots(problem: Problem, c: list[int], side: Mapping[str, Any], name: str) -> np.ndarray:
    """Roots r with r . rho > 0 whose reflections map the weighted points onto themselves, exactly.

    Then the maximum is attained at a v with v . r >= 0 for all roots: of the images of a maximiser under the closed
    group that the reflections generate, take one with the largest v . rho; if v . r < 0, its reflection in r has a
    larger one.
    """
    roots = listed(side.get("roots", []), f"{name}: roots")
    if not roots:
        return np.zeros((0, problem.D), dtype=object)
    rows = [listed(r, f"{name}: root {j}", problem.D) for j, r in enumerate(roots)]
    for j, row in enumerate(rows):
        for v in row:
            integer(v, f"{name}: root {j}", -(1 << 512), 1 << 512)
    rho, _ = vector(side.get("rho"), problem.D, f"{name}: rho")
    weights: dict[tuple[int, ...], int] = {}
    for x, weight in zip(map(tuple, problem.grid.tolist()), c):
        weights[x] = weights.get(x, 0) + weight
    weights = {x: w for x, w in weights.items() if w and any(x)}
    for j, row in enumerate(rows):
        need(sum(a * b for a, b in zip(rho, row)) > 0, f"{name}: root {j} is not on the side of rho")
        size = sum(v * v for v in row)
        for x, w in weights.items():
            twice = 2 * sum(a * b for a, b in zip(x, row))
            moved = [size * a - twice * b for a, b in zip(x, row)]
            image = tuple(v // size for v in moved)
            good = all(v == size * a for v, a in zip(moved, image)) and weights.get(image) == w
            need(good, f"{name}: root {j} is not a symmetry of the weighted points")
    return objects(rows, len(rows), problem.D)


def _leaf_block(rows: Sequence[Any], index: Sequence[int], width: int, name: str) -> np.ndarray:
    for j, row in zip(index, rows):
        need(isinstance(row, list | tuple) and len(row) == width, f"{name}, leaf {j}: needs {width} multipliers")
        kinds = set(map(type, row))
        need(kinds <= {int}, f"{name}, leaf {j}: a multiplier is not an integer")
        need(width == 0 or min(row) >= 0, f"{name}, leaf {j}: a multiplier is negative")
        need(width == 0 or max(row).bit_length() <= BITS, f"{name}, leaf {j}: a multiplier is too large")
    big = any(max(row) >> 62 for row in rows) if width else False
    return objects(rows, len(rows), width) if big else np.array(rows, dtype=np.int64).reshape(len(rows), width)


def fold_mirrors(problem: Problem, c: list[int], side: Mapping[str, Any], name: str) -> tuple[list[int], np.ndarray]:
    """Fold each listed pair x_j = -x_i into one term, c_j relu(-t) = c_j relu(t) - c_j t: new c, and sum_j c_j x_j.

    If the second half of all points is the first, negated, that half is folded before, as if it were listed.
    """
    c, used = list(c), set[int]()
    linear = np.zeros(problem.D, dtype=object)
    n = len(c) // 2 if problem.opposite else len(c)
    if problem.opposite:
        linear = matmul(column(c[n:]).T, problem.grid[n:])[0].astype(object)
        c = [a + b for a, b in zip(c[:n], c[n:])] + [0] * n
    for pair in listed(side.get("mirrors", []), f"{name}: mirrors"):
        i, j = (integer(v, f"{name}: mirrors", 0, n - 1) for v in listed(pair, f"{name}: mirrors", 2))
        need(i != j and not {i, j} & used, f"{name}: mirrors name a point twice")
        need(bool((problem.grid[i] == -problem.grid[j]).all()), f"{name}: points {i} and {j} are not opposite")
        used |= {i, j}
        linear = linear + c[j] * problem.grid[j].astype(object)
        c[i], c[j] = c[i] + c[j], 0
    return c, linear


def _mixed(grid: np.ndarray, products: Mapping[tuple[int, int], int]) -> np.ndarray:
    """sum w_ij (x_i x_j' + x_j x_i') for x (P, r), (r, r): the sums over j first, so that a long list costs r for each entry."""
    sums: dict[int, np.ndarray] = {}
    for (i, j), w in products.items():
        sums[i] = sums.get(i, 0) + w * grid[j]
    if not sums:
        return np.zeros((grid.shape[1], grid.shape[1]), dtype=object)
    half = matmul(grid[list(sums)].T, objects([row.tolist() for row in sums.values()], len(sums), grid.shape[1]))
    return half + half.T


@dataclass(frozen=True)
class _Flat:
    """What the quadratic leaves of a side are made of, in the span of its points and roots: all D dimensions, or fewer."""

    span: Span
    squares: list[int]  # |x_i|^2 on the integer grid
    lengths: list[tuple[int, int]]  # |x_i| 2^ROOT_BITS, rounded down and up
    rows: np.ndarray  # (P + roots, r) points and roots times the basis
    linear: np.ndarray  # (r,)

    @staticmethod
    def of(
        problem: Problem, weights: list[int], tree: _Tree, side: Mapping[str, Any], linear: np.ndarray, name: str
    ) -> _Flat:
        grid = problem.grid[tree.points].astype(object)
        rows = np.vstack([grid, tree.roots << problem.k])
        # `linear` is a sum over mirrored points, which need not be among those of the tree
        folded = [i for pair in side.get("mirrors", []) for i in pair]
        if problem.opposite:
            folded += [i for i, w in enumerate(weights) if w]
        mirrored = problem.grid[folded].astype(object)
        space = span(problem, np.vstack([rows, mirrored]), 1, name)
        square = squares(grid)
        above = [sqrt_up(v) for v in square]
        lengths = [(root - (root * root != v << (2 * ROOT_BITS)), root) for v, root in zip(square, above)]
        return _Flat(space, square, lengths, space.products(rows), space.products(linear[None])[0])


def _constants(
    a: list[int], b: list[int], flat: _Flat, states: np.ndarray, weight: list[int], total: int, s: int, k: int
) -> int:
    """sum_i kappa_i, each rounded up to a multiple of 2^-(s + 2k + ROOT_BITS) / total^2, in these units.

    Fractions with a denominator for every a_i would take four times as long.
    """
    kappa = 0
    for i, (curve, c) in enumerate(zip(a, weight)):
        worst, back = 0, b[i] * total  # slopes are over total 2^s
        # t >= 0 with slope c - b_i, then t <= 0 with slope b_i in -t
        for allowed, slope in ((states[i] >= 0, (c << s) - back), (states[i] <= 0, back)):
            if not allowed:
                continue
            if curve > 0:
                value = -(-(slope * slope << (2 * k + ROOT_BITS)) // (4 * curve)) if slope > 0 else 0
            else:
                below, above = flat.lengths[i]
                value = (slope * total * (above if slope > 0 else below) << k) - (
                    curve * flat.squares[i] * total * total << ROOT_BITS
                )
            worst = max(worst, value)
        kappa += worst
    return kappa


def _quadratic_leaf(
    problem: Problem,
    tree: _Tree,
    flat: _Flat,
    leaf: Mapping[str, Any],
    states: np.ndarray,
    weight: list[int],
    total: int,
    bound: Fraction,
    name: str,
) -> bool:
    """c_i relu(t) <= a_i t^2 + b_i t + kappa_i for the t the leaf allows, so its objective is at most

        sum kappa_i + lam + max_{|v| <= 1} (v' M v + g . v - lam |v|^2),   M = sum a_i x_i x_i',   g = sum b_i x_i + linear.

    Two points whose signs s_i, s_j the leaf has fixed may add pi s_i s_j t_i t_j >= 0 with any pi >= 0 (`pairs`),
    that is pi s_i s_j (x_i x_j' + x_j x_i') / 2 to M. All this is at most `bound` if and only if [[lam I - M, -g/2],
    [-g'/2, bound - sum kappa_i - lam]] is positive semidefinite (lam >= 0). Any a, b, lam >= 0 may be given: kappa_i
    is worked out here. It is the largest value of slope t - a t^2 over 0 <= t <= |x_i|, for t >= 0 with slope c_i -
    b_i and for -t with slope b_i: at most slope^2 / (4 a) where a > 0, and for a <= 0 a convex function, whose
    maximum is at 0 or at |x_i|. There |x_i| is rounded up or down by the sign of the slope. The matrix is taken on the
    span of the points and roots (`span`): there [[B' (lam I - M) B, -B' g / 2], [-g' B / 2, ...]].
    """
    P, s, k = len(tree.points), tree.shift, problem.k
    a, b = (listed(leaf.get(key), f"{name}: {key}", P + extra) for key, extra in (("a", 0), ("b", len(tree.roots))))
    limit = 1 << BITS
    a = [integer(v, f"{name}: a", -limit, limit) for v in a]
    b = [integer(v, f"{name}: b", -limit, limit) for v in b]
    lam = integer(leaf.get("lam"), f"{name}: lam", 0, limit)
    need(all(v >= 0 for v in b[P:]), f"{name}: a root has a negative multiplier")
    kappa = Fraction(_constants(a, b, flat, states, weight, total, s, k), (total * total) << (s + 2 * k + ROOT_BITS))
    points = flat.rows[:P]
    twice = 2 * matmul((column(a) * points).T, points)  # 2 M in units of 2^-(s + 2k)
    products: dict[tuple[int, int], int] = {}
    for entry in listed(leaf.get("pairs", []), f"{name}: pairs"):
        i, j, pi = listed(entry, f"{name}: pairs", 3)
        i, j = (integer(v, f"{name}: pairs", 0, P - 1) for v in (i, j))
        pi = integer(pi, f"{name}: pairs", 0, limit)
        signs = int(states[i]) * int(states[j])
        need(i != j and signs != 0, f"{name}: pairs name a point whose sign is not fixed")
        products[i, j] = products.get((i, j), 0) + signs * pi
    twice = twice + _mixed(points, products)
    g = total * matmul(column(b).T, flat.rows)[0] + (flat.linear << s)  # in units of 1 / (total 2^(s + k))
    corner = 2 * (bound - kappa - Fraction(lam, 1 << s)) * total * total * (1 << (s + 2 * k))
    S = np.zeros((flat.span.size + 1, flat.span.size + 1), dtype=object)
    S[:-1, :-1] = flat.span.norm(lam << (2 * k + 1)) - twice
    S[:-1, -1] = S[-1, :-1] = -(g << k)
    S[-1, -1] = math.floor(corner)
    return positive_semidefinite(S)


def _empty_leaf(tree: _Tree, leaf: Mapping[str, Any], states: np.ndarray, zero: list[bool], name: str) -> list[int]:
    """b_i s_i for all points, b_i > 0 at some whose signs s_i the leaf has fixed, one of them not 0. The caller must see
    that sum_i b_i s_i x_i = 0: many leaves are added up together.

    Then no v has s_i (v . x_i) > 0 for all of these. Directions with v . x_i != 0 for all points that are not 0 are dense
    and the objective is continuous, so it is enough to bound it there, and the leaf has none of them.
    """
    out = [0] * len(tree.points)
    for entry in listed(leaf.get("empty"), f"{name}: empty"):
        i, b = listed(entry, f"{name}: empty", 2)
        i = integer(i, f"{name}: empty", 0, len(tree.points) - 1)
        b = integer(b, f"{name}: empty", 1, 1 << BITS)
        need(states[i] != 0, f"{name}: empty names a point whose sign is not fixed")
        out[i] += int(states[i]) * b
    need(not all(z for v, z in zip(out, zero) if v), f"{name}: its points do not add up to zero, or are zero")
    return out


def relu_tree(problem: Problem, c: list[int], total: int, bound: Fraction, side: Mapping[str, Any], name: str) -> str:
    """On the region of a leaf, where the signs of some t_i = v . x_i with c_i > 0 are fixed,

        sum_i c_i relu(t_i) <= sum_{free} c_i |x_i| / 2 + v . r,

    r = sum_{active} c_i x_i + sum_{free} (c_i / 2) x_i + sum_p w_p x_p + sum_roots w_r r, where w_p t_p >= 0 on the
    region and relu(t) >= w t, 0 <= w <= 1, serves the points with c_i < 0. So it is enough that |r| <= bound less the
    first sum, with |x_i| rounded up. A leaf that is an object has a quadratic bound instead.
    """
    weights = c
    c, linear = fold_mirrors(problem, weights, side, name)
    tree = _read_tree(problem, c, weights, side, name, any_sign=False)
    known = set(tree.points)
    for i, v in enumerate(c):
        need(v <= 0 or i in known, f"{name}: point {i} has positive weight and is not among points")
    P, k = len(tree.points), problem.k
    grid = problem.grid[tree.points].astype(object)
    weight = [c[i] for i in tree.points]
    positive = np.array([v > 0 for v in weight], dtype=bool)
    spanning = np.vstack([grid, tree.roots << k, linear[None]])  # (P + roots + 1, D)
    gram = matmul(spanning, spanning.T) if len(spanning) < problem.D else None
    sizes = column([w * sqrt_up(s) if w > 0 else 0 for w, s in zip(weight, squares(grid))])
    top = max(UNIT, tree.shift)
    # In units of 1 / (total 2^(k + top)), `extra` further bits where the square roots and upper need them:
    numerator, ku = bound.numerator, bound.denominator.bit_length() - 1
    extra = ku + ROOT_BITS + 1
    ceiling = numerator * total << (k + top + ROOT_BITS + 1)
    zero = [not any(row) for row in grid.tolist()]
    flat: _Flat | None = None

    def lengths(R: np.ndarray) -> np.ndarray:
        """|sum_p R_p spanning_p|^2 for each row, by the Gram matrix where that is smaller than D."""
        return (R * matmul(R, gram)).sum(axis=1) if gram is not None else (matmul(R, spanning) ** 2).sum(axis=1)

    for start, states in tree.blocks(16 * (P + problem.D)):
        leaves = tree.leaves[start : start + len(states)]
        empty: dict[str, list[int]] = {}
        for j, leaf in enumerate(leaves):
            if isinstance(leaf, Mapping):
                what = f"{name}, leaf {start + j}"
                if "empty" in leaf:
                    empty[what] = _empty_leaf(tree, leaf, states[j], zero, what)
                    continue
                flat = flat or _Flat.of(problem, weights, tree, side, linear, what)
                good = _quadratic_leaf(problem, tree, flat, leaf, states[j], weight, total, bound, what)
                need(good, f"{what}: its bound is larger than upper")
        if empty:
            R = np.zeros((len(empty), len(spanning)), dtype=object)
            R[:, :P] = objects(list(empty.values()), len(empty), P)
            for what, square in zip(empty, lengths(R).tolist()):
                need(square == 0, f"{what}: its points do not add up to zero")
        straight = [j for j, leaf in enumerate(leaves) if not isinstance(leaf, Mapping)]
        index = [start + j for j in straight]
        K = _leaf_block([leaves[j] for j in straight], index, P + len(tree.roots), name)
        state = states[straight]
        free = (state == 0) & positive
        for what, bad in (
            ("a free point has a multiplier", free & (K[:, :P] != 0)),
            ("a multiplier of a negative weight exceeds 2^32", ~positive & (K[:, :P] > 1 << UNIT)),
        ):
            if bad.any():
                raise Refused(f"{name}, leaf {index[int(np.argwhere(bad)[0][0])]}: {what}")
        # active 2^UNIT, free half of it, inactive 0; the multiplier where c_i <= 0
        share = np.where(positive, (1 << (UNIT - 1)) * (state + 1).astype(np.int64), K[:, :P])
        signs = np.hstack([np.where(positive, state, 0), np.ones((len(K), len(tree.roots)), dtype=np.int8)])
        R = np.full((len(K), len(spanning)), 1 << top, dtype=object)  # r as a sum of `spanning`
        R[:, :-1] = (signs * K).astype(object) * (total << (top - tree.shift))
        R[:, :P] += (share.astype(object) * column(weight).T) << (top - UNIT)
        norms = lengths(R)
        constants = matmul(free.astype(np.int64), sizes)[:, 0]  # 2^(ROOT_BITS + 1) total 2^k const
        for j, (square, constant) in enumerate(zip(norms.tolist(), constants.tolist())):
            room = ceiling - (constant << (top + ku))
            if room < 0 or square << (2 * extra) > room * room:
                raise Refused(f"{name}, leaf {index[j]}: its bound is larger than upper")
    return f"{len(tree.leaves)} leaves"


def eigen_tree(problem: Problem, c: list[int], total: int, bound: Fraction, side: Mapping[str, Any], name: str) -> str:
    """On the region of a leaf, with sgn_p = +1 for active and -1 for inactive points, sgn_p v . x_p >= 0, so that

        sum_i c_i relu(v . x_i)^2 <= v' A v,
        A = sum_{active} c_i x_i x_i' + sum_{free, c_i > 0} c_i x_i x_i' + sum_triples k sgn_p sgn_q (x_p x_q' + x_q x_p') / 2

    with any k >= 0; the leaf is proved if bound >= 0 and bound I - A is positive semidefinite on the span of the points.
    """
    tree = _read_tree(problem, c, c, side, name, any_sign=True)
    need(len(tree.roots) == 0, f"{name}: roots are not part of this proof")
    n = len(c)
    need(bound >= 0, f"{name}: the bound is negative")
    used = set(tree.points)
    space = span(problem, problem.grid[[i for i, v in enumerate(c) if v or i in used]], 0, name)
    D = space.size
    upper_part = np.triu_indices(D)
    grid = space.products(problem.grid)  # (n, D)
    rest = np.array([v > 0 for v in c], dtype=np.int64)  # free: only positive weights count
    ku = bound.denominator.bit_length() - 1
    # In units of 1 / (total 4^k 2^(shift + ku + 1)):
    identity = space.norm(bound.numerator * total << (2 * problem.k + tree.shift + 1))
    table = None
    if n * len(upper_part[0]) <= TABLE:
        table = column(c) * (grid[:, upper_part[0]] * grid[:, upper_part[1]])  # c_i x_i x_i', (n, D (D + 1) / 2)

    def sums(use: np.ndarray) -> Iterator[np.ndarray]:
        """sum_i use_i c_i x_i x_i', its upper half, for every row of `use`."""
        if table is not None:
            yield from matmul(use, table)
            return
        for row in use:
            some = np.flatnonzero(row)
            yield matmul((column([c[i] for i in some]) * grid[some]).T, grid[some])[upper_part]

    for start, state in tree.blocks(8 * n + 16 * len(upper_part[0])):
        use = np.tile(rest, (len(state), 1))
        use[:, tree.points] = np.where(state == 0, use[:, tree.points], state == 1)
        for j, M in enumerate(sums(use)):
            leaf = f"{name}, leaf {start + j}"
            entries = M << (tree.shift + 1)
            products: dict[tuple[int, int], int] = {}
            for triple in listed(tree.leaves[start + j], leaf):
                p, q, size = listed(triple, f"{leaf}: triple", 3)
                for index in (p, q):
                    integer(index, f"{leaf}: triple", 0, len(tree.points) - 1)
                integer(size, f"{leaf}: multiplier", 0, 1 << BITS)
                sign = int(state[j, p]) * int(state[j, q])
                need(sign != 0, f"{leaf}: a triple uses a free point")
                at = tree.points[p], tree.points[q]
                products[at] = products.get(at, 0) + sign * size
            if products:
                entries = entries + _mixed(grid, products)[upper_part] * total
            S = np.zeros((D, D), dtype=object)
            S[upper_part] = -(entries << ku)
            S.T[upper_part] = S[upper_part]
            S = S + identity
            need(positive_semidefinite(S), f"{leaf}: its bound is not shown to be at most upper")
    return f"{len(tree.leaves)} leaves"
