"""One ReLU neuron in three dimensions:  F(v) = sum_i c_i relu(v . x_i) <= limit |v|  for all v, by a complete list.

The great circles v . x_i = 0, one for each line through 0 that has points, and those of the three axes, cut the sphere
into cells on which F is linear. A maximiser is a vertex of these circles, or the gradient of a cell projected to the
plane of one of its arcs, or the gradient of a cell; and every arc and cell has a vertex, because the axes are there.
So all arcs and cells are met by going through the vertices, at each through the circles that meet there, and along each
in both directions.

Which circles meet at which vertex is decided in integers. The rest is float64 first: with unit vectors and weights
whose absolute values sum to 1, each rounding error is bounded (see `Sphere`), and what is closer than that is decided
in integers too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from .exact import ray
from .reading import Problem, need

LINES = 1024  # circles, whose pairs are the vertices
STEPS = 1 << 23  # in integers, some seconds
BLOCK = 1 << 20  # floats that are held at a time
NEAR = 2.0**-47  # more than the error of a product of unit vectors, see `Sphere`
LOOK = 32  # circles that a candidate is compared with before F is worked out
Vector = tuple[int, int, int]
AXES: tuple[Vector, ...] = ((1, 0, 0), (0, 1, 0), (0, 0, 1))


def dot(a: Sequence[int], b: Sequence[int]) -> int:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def cross(a: Sequence[int], b: Sequence[int]) -> Vector:
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]


def units(rows: Sequence[Sequence[int]]) -> np.ndarray:
    """Integer vectors divided by their lengths, (N, 3). A quotient of integers is correctly rounded, the squared length
    has a relative error of 4 u, u = 2^-53: each entry is off by less than 6 u of itself, or by an underflow."""
    sizes = [max(abs(v) for v in row) for row in rows]
    A = np.array([[v / size for v in row] for row, size in zip(rows, sizes)])
    return A / np.sqrt((A * A).sum(axis=1, keepdims=True))


def lines_of(problem: Problem, c: list[int]) -> dict[Vector, list[int]]:
    """Primitive integer vectors u, one for each line, and the weights (a, b) of a relu(v . u) + b relu(-v . u)."""
    lines: dict[Vector, list[int]] = {}
    for weight, row in zip(c, problem.grid.tolist()):
        if weight and any(row):
            x, y, z = ray(row)
            back = (x or y or z) < 0
            u = (-x, -y, -z) if back else (x, y, z)
            lines.setdefault(u, [0, 0])[back] += weight * math.gcd(*row)
    lines = {u: pair for u, pair in lines.items() if any(pair)}
    for axis in AXES:
        lines.setdefault(axis, [0, 0])
    return lines


def meetings(lines: Sequence[Vector]) -> dict[Vector, list[int]]:
    """Every vertex up to its sign, as a primitive integer vector, with all the circles through it."""
    met: dict[Vector, list[int]] = {}
    for j, b in enumerate(lines):
        for i in range(j):
            x, y, z = cross(lines[i], b)
            g = math.gcd(x, y, z)
            if (x or y or z) < 0:
                g = -g
            v = (x // g, y // g, z // g)
            here = met.get(v)
            if here is None:
                met[v] = [i, j]
            elif here[-1] != j:
                here.append(j)
    return met


class Sphere:
    """The check of one side. `limit` is in units of the integer grid.

    Errors, with u = 2^-53, m circles, eps = (m + 64) 2^-52 = 2 (m + 64) u, and weights a with sum |a| <= 1:
    - an entry of a unit vector is off by 6 u of itself, so a product of two by 15 u, and that of one with the cross
      product of two others by 44 u: both signs are right outside +-NEAR = 64 u;
    - a gradient is a sum of at most m terms, each off by 8 u, in any order: off by (m + 14) u < eps / 2;
    - its projection is off by at most eps, and so are its length and its product with a unit vector by 2 eps: a
      comparison with 0 or with the limit is right outside +-4 eps;
    - F(w), |w| <= 1, is off by eps for the computed w and 2 eps for the true one (F has slope at most 1), and limit |w|
      with limit <= 2 by 4 eps: F(w) <= limit |w| is right outside +-8 eps.
    """

    def __init__(self, lines: dict[Vector, list[int]], limit: Fraction, name: str) -> None:
        self.lines, self.weights, self.limit, self.name = list(lines), list(lines.values()), limit, name
        self.steps = 0
        m = len(self.lines)
        need(m <= LINES, f"{name}: {m} great circles, more than {LINES} are not looked at in three dimensions")
        roots = [math.isqrt(dot(u, u) << 128) for u in self.lines]  # 2^64 |u|
        total = sum((abs(a) + abs(b)) * root for (a, b), root in zip(self.weights, roots))
        a, b = np.array([[p * root / total for p in pair] for pair, root in zip(self.weights, roots)]).T
        self.U = units(self.lines)
        self.plus, self.minus = a[:, None] * self.U, -b[:, None] * self.U  # gradients where v . u > 0, and where < 0
        self.both, self.constant = a + b, b @ self.U  # a relu(t) + b relu(-t) = (a + b) relu(t) - b t
        self.level = float(min(limit * (1 << 64) / total, Fraction(2)))  # F <= sum |a| <= 2 always
        self.eps = (m + 64) * 2.0**-52
        # signs of v . u are those of (v 2^e) . (u 2^-e), with e such that points of columns of different size are round
        largest = np.abs(self.U[[any(pair) for pair in self.weights]]).max(axis=0)
        exponents = [int(e) for e in np.frexp(np.where(largest > 0, largest, 1.0))[1]]
        self.shift = [e - min(exponents) for e in exponents]
        top = max(self.shift)
        self.round = units([[v << (top - e) for v, e in zip(u, self.shift)] for u in self.lines])
        self.look = np.unique(np.linspace(0, m - 1, min(m, LOOK)).astype(int))

    def run(self) -> str:
        met = meetings(self.lines)
        groups: dict[int, list[Vector]] = {}
        for v, here in met.items():
            groups.setdefault(len(here), []).append(v)
        for size, vertices in groups.items():
            step = max(1, BLOCK // (len(self.lines) + 6 * size * size))
            for start in range(0, len(vertices), step):
                some = vertices[start : start + step]
                self.block(some, np.array([met[v] for v in some]))
        return f"{2 * len(met)} vertices"

    def spend(self, steps: int) -> None:
        self.steps += steps
        need(self.steps <= STEPS, f"{self.name}: not decided, too many places are too close to upper or to each other")

    def block(self, vertices: list[Vector], here: np.ndarray) -> None:
        """All arcs and cells at some vertices v and -v, at each of which the circles here (B, k) meet."""
        U, near = self.U, 4 * self.eps
        V = units(vertices)  # (B, 3)
        T = units([[z << e for z, e in zip(v, self.shift)] for v in vertices]) @ self.round.T  # (B, m)
        np.put_along_axis(T, here, np.inf, axis=1)
        for b, k in np.argwhere(np.abs(T) <= NEAR).tolist():
            self.spend(1)
            # never 0: the circle does not pass here
            T[b, k] = 1.0 if dot(vertices[b], self.lines[k]) > 0 else -1.0
        np.put_along_axis(T, here, 0.0, axis=1)
        above, below = (T > 0).astype(float), (T < 0).astype(float)
        local = U[here]  # (B, k, 3)
        along = np.cross(V[:, None, :], local)  # where each circle goes from v
        D = along @ local.transpose(0, 2, 1)  # (B, k, k): its sides of the other circles
        itself = np.arange(here.shape[1])
        D[:, itself, itself] = np.inf
        for b, i, j in np.argwhere(np.abs(D) <= NEAR).tolist():
            self.spend(1)
            t = cross(vertices[b], self.lines[here[b, i]])
            D[b, i, j] = 1.0 if dot(t, self.lines[here[b, j]]) > 0 else -1.0  # never 0: another circle through v
        D[:, itself, itself] = 0.0
        D = np.sign(D)
        plus, minus = self.plus[here], self.minus[here]
        look = self.look
        sides = np.sign(T[:, look])  # (B, l)
        for end in (1, -1):  # the vertex is end v
            on, off = (above, below) if end > 0 else (below, above)
            g0 = on @ self.plus + off @ self.minus  # (B, 3)
            value = end * (g0 * V).sum(axis=1)
            for b in np.flatnonzero(value > self.level - near).tolist():
                self.compare(tuple(end * v for v in vertices[b]))
            for way in (1, -1):  # the arcs go from there along way (v x u)
                S = way * D
                g = g0[:, None, :] + (S > 0).astype(float) @ plus + (S < 0).astype(float) @ minus  # (B, k, 3)
                for side in (0, 1, -1):  # the arc itself, the cells on the sides +u and -u of it
                    if side == 0:
                        w = g - (g * local).sum(axis=2, keepdims=True) * local
                    else:
                        w = g + (plus if side > 0 else minus)
                    size = np.sqrt((w * w).sum(axis=2))  # (B, k)
                    rows, which = np.nonzero(size > self.level - near)
                    w, size, index = w[rows, which], size[rows, which], here[rows, which]
                    # on the right side of the circles that meet here, and of some others
                    right = (S[rows, which] * (local[rows] @ w[:, :, None])[:, :, 0]).min(axis=1) >= -near
                    right &= (end * sides[rows] * (w @ U[look].T)).min(axis=1) >= -near
                    if side:
                        right &= side * (w * U[index]).sum(axis=1) >= -near
                    rows, index, w, size = rows[right], index[right], w[right], size[right]
                    step = max(1, BLOCK // len(U))
                    for start in range(0, len(w), step):
                        some = slice(start, start + step)
                        F = np.maximum(w[some] @ U.T, 0.0) @ self.both - w[some] @ self.constant
                        for at in np.flatnonzero(F - self.level * size[some] > -2 * near).tolist():
                            at += start
                            self.compare(self.candidate(vertices[rows[at]], int(index[at]), end, way, side))

    def candidate(self, v: Vector, i: int, end: int, way: int, side: int) -> tuple[int, ...]:
        """The gradient of the arc along way (v x u_i) from end v, projected (side 0), or of a cell beside it."""
        self.spend(len(self.lines))
        u = self.lines[i]
        t = cross(v, u)
        g = [0, 0, 0]
        for k, (line, (a, b)) in enumerate(zip(self.lines, self.weights)):
            sign = side if k == i else end * dot(v, line) or way * dot(t, line)
            weight = a if sign > 0 else -b if sign < 0 else 0
            if weight:
                g = [p + weight * q for p, q in zip(g, line)]
        if side:
            return tuple(g)
        uu, ug = dot(u, u), dot(u, g)
        return tuple(uu * p - ug * q for p, q in zip(g, u))

    def compare(self, w: tuple[int, ...]) -> None:
        """F(w) <= limit |w| in integers."""
        self.spend(len(self.lines))
        value = 0
        for line, (a, b) in zip(self.lines, self.weights):
            t = dot(w, line)
            value += a * t if t > 0 else -b * t
        top, scale = self.limit.numerator, self.limit.denominator
        good = value <= 0 or (value * scale) ** 2 <= top * top * dot(w, w)
        need(good, f"{self.name}: the maximum is larger than upper")


def sphere(problem: Problem, c: list[int], total: int, bound: Fraction, name: str) -> str:
    """sum_i c_i relu(v . X_i) <= bound total 2^k |v| for all v in three dimensions."""
    need(bound >= 0, f"{name}: upper is negative")
    lines = lines_of(problem, c)
    if not any(map(any, lines.values())):
        return "nothing has weight"
    return Sphere(lines, bound * total * 2**problem.k, name).run()
