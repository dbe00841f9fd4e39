"""From a tree as it grew to a proof on paper: preorder, leaves, integer multipliers (docs/certificates.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from scipy import optimize

from .cones import Shape
from .signs import ACTIVE, FREE, INACTIVE, Log

UNIT = 32  # multipliers of points with negative weight are integers over 2^UNIT
LONGEST = 1100  # bits of the largest integer that a certificate may hold
BLOCK = 4096
ANCESTORS = 4  # how far up a leaf looks for a better quadratic bound


def write(
    log: Log,
    X: np.ndarray,
    c: np.ndarray,
    linear: np.ndarray,
    roots: np.ndarray,
    root_scale: float,
    enough: float = -np.inf,
) -> tuple[dict[str, Any], float]:
    """The proof of one side as JSON-ready values, and the bound it proves in the units of X (n, D).

    A leaf takes the best of its bounds, or the first that is at most `enough`.
    `root_scale` is the factor between the units of X and those of the original data, in which the roots are integers.
    """
    points = log.points.numpy()
    weight = c[points]
    p = int((weight > 0).sum())
    tree, signs, owners, changes = _preorder(log, p)
    slopes = torch.cat(log.slopes).numpy()  # (nodes, rows)
    shift = 48 + max(0, int(np.ceil(-np.log2(np.abs(weight).max(initial=1e-9)))))
    quadratic = _LogOfQuadraticBounds(log)
    empty = set(torch.cat(log.empty).tolist()) if log.empty else set()
    leaves: list[Any] = []
    upper = 0.0
    rows = np.vstack([X[points], roots.astype(float)]) if len(roots) else X[points]
    size = np.linalg.norm(X[points], axis=1)
    error = np.finfo(float).eps * (len(rows) + X.shape[1] + 16)
    flat: tuple[np.ndarray, np.ndarray] | None = None  # of quadratic leaves, if there are any
    for start in range(0, len(owners), BLOCK):
        block = signs[start : start + BLOCK]
        state = np.array(block, dtype=np.int8).reshape(len(block), p)  # (L, p)
        b = slopes[owners[start : start + BLOCK]].copy()  # (L, rows)
        for j, change in enumerate(changes[start : start + BLOCK]):
            if change is not None:
                b[j, change[0]] = change[1]
        b[:, : len(points)][:, size == 0] = 0.0  # of points that are 0 any slope will do
        # Whole numbers, kept as doubles: steep slopes (of tiny points, or of roots at a large scale) do not fit into 64 bits.
        k = np.zeros(b.shape)
        k[:, :p] = np.where(
            state == ACTIVE,
            np.rint((b[:, :p] - weight[:p]).clip(0) * 2.0**shift),
            np.where(state == INACTIVE, np.rint((-b[:, :p]).clip(0) * 2.0**shift), 0),
        )
        n = len(points)
        k[:, p:n] = np.rint((b[:, p:n] / weight[p:]).clip(0, 1) * 2.0**UNIT)
        k[:, n:] = np.rint(b[:, n:].clip(0) * root_scale * 2.0**shift)
        exact = np.zeros(b.shape)
        exact[:, :p] = np.where(
            state == ACTIVE,
            weight[:p] + k[:, :p] / 2.0**shift,
            np.where(state == INACTIVE, -k[:, :p] / 2.0**shift, weight[:p] / 2),
        )
        exact[:, p:n] = weight[p:] * (k[:, p:n] / 2.0**UNIT)
        exact[:, n:] = k[:, n:] / 2.0**shift / root_scale
        const = (state == FREE) @ (weight[:p] * size[:p] / 2)
        length = np.linalg.norm(rows, axis=1)
        bound = const + np.linalg.norm(linear + exact @ rows, axis=1)
        bound += error * (np.abs(exact) @ length + const + np.linalg.norm(linear) + 1)
        straight: Any = _whole(k)
        for j in range(len(b)):
            relation = _relation(X[points[:p]], state[j]) if owners[start + j] in empty else None
            if relation is not None:
                straight[j], bound[j] = {"empty": relation}, 0.0
                continue
            if changes[start + j] is not None:
                continue
            for candidate in quadratic.bounds(owners[start + j]):
                if bound[j] <= enough:
                    break
                flat = flat or _flat(rows, linear)
                leaf, value = candidate.write(state[j], weight, size, *flat, shift, root_scale, n, X.shape[1])
                if value < bound[j]:
                    straight[j], bound[j] = leaf, value
        upper = max(upper, float(bound.max()))
        leaves.extend(straight)
    side: dict[str, Any] = {"shift": shift, "points": points.tolist(), "tree": tree, "leaves": leaves}
    return side, upper


def cones_side(X0: np.ndarray, frame: Sequence[Sequence[int]], shape: Shape) -> dict[str, Any]:
    """The frame (r rows of integers, as many as X0 (n, D) has columns) and the tree in preorder, as JSON-ready values.

    The two children of a cut follow each other in the order of creation, the first before the second, whatever came between.
    """
    r, D = len(frame), X0.shape[1]
    if any(len(row) != D for row in frame):
        raise ValueError(f"a frame for points in {D} dimensions needs rows of {D} integers")
    parent, edge = torch.cat(shape.parent).numpy(), torch.cat(shape.edge).numpy()
    if (parent[: 1 << r] >= 0).any() or (parent[1 << r :] < 0).any():
        raise ValueError(f"the tree does not start from the {1 << r} orthants of {r} dimensions")
    children = (1 << r) + np.argsort(parent[1 << r :], kind="stable")  # pairs, by parent
    first, second = children[::2], children[1::2]
    codes = np.full(len(parent), -1)
    codes[parent[first]] = edge[first]
    left, right = np.zeros((2, len(parent)), dtype=np.int64)
    left[parent[first]], right[parent[first]] = first, second
    levels = [np.arange(1 << r)]
    while len(levels[-1]):
        inner = levels[-1][codes[levels[-1]] >= 0]
        levels.append(np.concatenate([left[inner], right[inner]]))
    size = np.ones(len(parent), dtype=np.int64)  # of the subtrees
    for level in reversed(levels[:-1]):
        inner = level[codes[level] >= 0]
        size[inner] += size[left[inner]] + size[right[inner]]
    place = np.zeros(len(parent), dtype=np.int64)  # in preorder
    place[levels[0]] = np.cumsum(size[levels[0]]) - size[levels[0]]
    for level in levels[:-1]:
        inner = level[codes[level] >= 0]
        place[left[inner]] = place[inner] + 1
        place[right[inner]] = place[inner] + 1 + size[left[inner]]
    tree = np.empty(len(parent), dtype=np.int64)
    tree[place] = codes
    return {"frame": [[int(v) for v in row] for row in frame], "tree": tree.tolist()}


def _relation(X: np.ndarray, state: np.ndarray) -> list[list[int]] | None:
    """[i, b_i], b_i > 0 integers with sum_i b_i s_i x_i = 0 exactly, over points whose signs s_i are fixed; None if not found.

    They are minors of the points: with entries of very different sizes they may be longer than a certificate can hold.
    """
    fixed = np.flatnonzero(state != FREE)
    signs = np.where(state[fixed] == ACTIVE, 1, -1)
    A = (signs[:, None] * X[fixed] / np.linalg.norm(X[fixed], axis=1, keepdims=True)).T  # (D, k)
    # In the span of the points: where that is smaller, a solution may have one point more than a relation needs.
    U, size, _ = np.linalg.svd(A, full_matrices=False)
    A = U[:, size > 1e-13 * max(A.shape) * size[0]].T @ A  # (r, k)
    b, _ = optimize.nnls(np.vstack([A, np.ones((1, len(fixed)))]), np.append(np.zeros(len(A)), 1.0))
    support = np.flatnonzero(b > 1e-12)
    # The support of a basic solution has one relation, up to a factor: eliminate all but the last column.
    M = [[Fraction(float(v)) * int(signs[i]) for i, v in zip(support, row)] for row in X[fixed[support]].T]
    weights = [Fraction(0)] * (len(support) - 1) + [Fraction(1)]
    pivots: list[int] = []
    for k in range(len(support) - 1):
        at = next((i for i in range(len(M)) if i not in pivots and M[i][k]), None)
        if at is None:
            return None
        M[at] = [v / M[at][k] for v in M[at]]
        M = [row if i == at else [v - row[k] * w for v, w in zip(row, M[at])] for i, row in enumerate(M)]
        pivots.append(at)
    weights[:-1] = [-M[at][-1] for at in pivots]
    if any(row[-1] for i, row in enumerate(M) if i not in pivots) or not all(w > 0 for w in weights):
        return None
    common = math.lcm(*(w.denominator for w in weights))
    whole = [int(w * common) for w in weights]
    factor = math.gcd(*whole)
    if (max(whole) // factor).bit_length() > LONGEST:
        return None
    return [[int(fixed[i]), w // factor] for i, w in zip(support, whole)]


class _LogOfQuadraticBounds:
    """The quadratic bounds of a log. What was shown for a node holds for its descendants, with their signs."""

    def __init__(self, log: Log):
        self.where = {
            int(i): (part, j) for part, entry in enumerate(log.quadratic) for j, i in enumerate(entry[0].tolist())
        }
        self.log, self.parent = log, torch.cat(log.parent).tolist()

    def bounds(self, node: int) -> Iterator[_QuadraticBound]:
        """Of the node and its nearest ancestors that have one."""
        given = 0
        while node >= 0 and given < ANCESTORS:
            if node in self.where:
                part, j = self.where[node]
                bounds = self.log.quadratic[part][1]
                yield _QuadraticBound(bounds.a[j].numpy(), bounds.b[j].numpy(), float(bounds.lam[j]), bounds.pairs[j])
                given += 1
            node = self.parent[node]


@dataclass
class _QuadraticBound:
    a: np.ndarray
    b: np.ndarray
    lam: float
    pairs: list[tuple[int, int, float]]

    def write(self, state, weight, size, rows, linear, shift, root_scale, n, D) -> tuple[dict[str, Any], float]:
        """The leaf in integers, and the bound those integers prove, with room for the checker's factorisation.

        `rows` and `linear` may be given in a basis of their span; D is the dimension that they had before.
        """
        unit = 2.0**shift
        # Points are in scaled units, x = X / root_scale: curvature a of t^2 becomes a / root_scale, lam times root_scale.
        a = np.rint(self.a / root_scale * unit)
        b = np.rint(self.b * unit)
        b[n:] = np.rint(self.b[n:].clip(0) * root_scale * unit)
        lam = np.ceil(self.lam * root_scale * unit * (1 + 1e-9)) + 1
        alpha, slope = a / unit * root_scale, b / unit
        slope[n:] /= root_scale
        level = lam / unit / root_scale
        p = len(state)
        full = np.full(n, FREE)
        full[:p] = state
        kappa = np.zeros(n)
        # Rounding of c, b and g counts by the size of the terms: where they cancel, it is not small next to the bound.
        error = np.finfo(float).eps * (len(rows) + D + 16)
        blur = error * (np.abs(weight) + np.abs(slope[:n]))
        for allowed, gain in ((full != INACTIVE, weight - slope[:n] + blur), (full != ACTIVE, slope[:n] + blur)):
            with np.errstate(divide="ignore", invalid="ignore"):
                bowl = np.where(alpha > 0, gain.clip(0) ** 2 / (4 * alpha), 0.0)
            line = np.where(alpha > 0, 0.0, gain * size - alpha * size**2)
            kappa = np.where(allowed, np.maximum(kappa, np.maximum(bowl, line)), kappa)
        X = rows[:n]
        M = (X.T * alpha) @ X
        whole = []  # pairs of points with fixed signs, pi as integers
        for i, j, pi in self.pairs:
            value = int(np.rint(pi / root_scale * unit))
            if value > 0:
                whole.append([i, j, value])
                same = 1.0 if state[i] == state[j] else -1.0
                outer = np.outer(X[i], X[j])
                M += same * 0.5 * value / unit * root_scale * (outer + outer.T)
        g = linear + slope @ rows
        spectrum, Q = (
            part.numpy() for part in torch.linalg.eigh(torch.as_tensor(M))
        )  # numpy's is 20 times slower at 1000
        h = np.abs(g @ Q) + error * (np.abs(slope) @ np.linalg.norm(rows, axis=1) + np.linalg.norm(linear) + 1)
        rest = level - spectrum
        if rest.min() <= 1e-12 * level:
            return {}, np.inf
        value = kappa.sum() + level + 0.25 * float((h * h / rest).sum())
        value += 1e-11 * (np.abs(kappa).sum() + level + np.abs(alpha) @ size**2 + float(np.abs(M).sum()))
        leaf = {"a": [int(v) for v in a], "b": [int(v) for v in b], "lam": int(lam)}
        if whole:
            leaf["pairs"] = whole
        return leaf, value


def _flat(rows: np.ndarray, linear: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`rows` (m, D) and `linear` (D,) in an orthonormal basis of their span, where that has fewer than D dimensions.

    A quadratic leaf costs an eigenvalue problem: of size 3072 for images it takes half a minute, of size m none. The basis
    is off by rounding; the rooms in `_QuadraticBound.write` count it, like that of all its sums, in units of |alpha| size^2.
    """
    every = np.vstack([rows, linear])
    if len(every) >= rows.shape[1]:
        return rows, linear
    basis, _ = np.linalg.qr(every.T)  # (D, m + 1)
    return rows @ basis, linear @ basis


def _whole(k: np.ndarray) -> list[list[int]]:
    """Doubles that are whole numbers as integers of any size."""
    if np.abs(k).max(initial=0.0) < 2.0**63:
        return k.astype(np.int64).tolist()
    return [[int(v) for v in row] for row in k.tolist()]


def _preorder(log: Log, p: int) -> tuple[list[int], list[np.ndarray], list[int], list[tuple[int, float] | None]]:
    """Preorder of the tree, and for each leaf its signs (p,), the node whose slopes it uses, and one changed slope."""
    parent, branch = torch.cat(log.parent).tolist(), torch.cat(log.branch).tolist()
    sign = torch.cat(log.sign).tolist()
    children: dict[int, list[int]] = {}
    for node in range(1, len(parent)):
        children.setdefault(parent[node], []).append(node)
    fixes: dict[int, list[tuple[int, int, float]]] = {}
    both: dict[int, tuple[int, float]] = {}
    if log.fixes:
        for (node, point, to), slope in zip(torch.cat(log.fixes).tolist(), torch.cat(log.fix_slope).tolist()):
            if to == 2:
                both[node] = (point, slope)
            else:
                fixes.setdefault(node, []).append((point, to, slope))
    tree: list[int] = []
    signs: list[np.ndarray] = []
    owners: list[int] = []
    changes: list[tuple[int, float] | None] = []

    def leaf(state: np.ndarray, owner: int, change: tuple[int, float] | None) -> None:
        tree.append(-1)
        signs.append(state)
        owners.append(owner)
        changes.append(change)

    def with_sign(state: np.ndarray, point: int, to: int) -> np.ndarray:
        new = state.copy()
        new[point] = to
        return new

    # A stack of things still to write, in reverse: (node, its signs, which fix comes next) or a closed child.
    stack: list[tuple[Any, ...]] = [("node", 0, np.full(p, FREE, dtype=np.int8), 0)]
    while stack:
        kind, node, state, extra = stack.pop()
        if kind == "leaf":
            leaf(state, node, extra)
            continue
        if node in both:
            point, slope = both[node]
            other = next(s for i, to, s in fixes[node] if i == point and to == ACTIVE)
            tree.append(point)
            leaf(with_sign(state, point, ACTIVE), node, (point, slope))
            leaf(with_sign(state, point, INACTIVE), node, (point, other))
            continue
        if node not in children:
            leaf(state, node, None)
            continue
        pending = fixes.get(node, [])
        if extra < len(pending):
            point, to, slope = pending[extra]
            tree.append(point)
            open_, closed = with_sign(state, point, to), with_sign(state, point, INACTIVE if to == ACTIVE else ACTIVE)
            if to == ACTIVE:
                stack.append(("leaf", node, closed, (point, slope)))
                stack.append(("node", node, open_, extra + 1))
            else:
                leaf(closed, node, (point, slope))
                stack.append(("node", node, open_, extra + 1))
            continue
        below = children[node]
        if len(below) == 1:  # the same region, solved further
            stack.append(("node", below[0], state, 0))
            continue
        first, second = sorted(below, key=lambda child: -sign[child])
        tree.append(branch[first])
        stack.append(("node", second, with_sign(state, branch[second], INACTIVE), 0))
        stack.append(("node", first, with_sign(state, branch[first], ACTIVE), 0))
    return tree, signs, owners, changes
