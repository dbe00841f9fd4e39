"""An upper bound with weights of its own, from products of the parts of v . x_i: many points in many dimensions.

With t_i = v . x_i let w_i = relu(t_i) and s_i = w_i - t_i = relu(-t_i). Then w_i s_i = 0, and all products of two of the
numbers z = (1, w, s) are nonnegative. So for any g_i, any N_ab >= 0 on pairs of them, and any kappa and lam,

    sum_i c_i w_i <= kappa + lam |v|^2   if   kappa + lam |v|^2 - sum_i c_i w_i - sum_ab N_ab z_a z_b + sum_i g_i w_i s_i >= 0,

and that holds for all v and w as soon as the quadratic form on the right, in (1, v, w), is positive semidefinite. The least
kappa + lam over both sides (c = q y and -q y), over N, g and over q itself is a semidefinite program, the dual of one over
the moments of (1, v, w). On the unit ball p - u . v with p >= |u| is nonnegative, too, and z may have such parts (cuts): their
products with w_i say that the moment of w_i v is no longer than that of w_i. `pairing` is the special case in which the form is
a sum of squares of two points each: on MNIST's 4 against 9 with 200 points it is 25 % above the network, this 5 %.

The program is solved by a primal-dual interior point method (predictor and corrector, the direction of Helmberg, Kojima
and Monteiro). Every constraint is an entry of a matrix, so its linear system is made of products of entries. Only
some pairs are in play: first those of near points, then those at which the moments found are negative, and cuts at moments found.
Whatever it stops with, N, g, lam and q are feasible, so the bound is valid. In place of the least bound the weights may have
another goal, such as the dual of a training problem.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy import linalg
from torch import Tensor

NEAR = 6  # points nearest to a point, up to sign, with which its products come first; 3 were far worse on MNIST
USUAL = 25  # steps that a solve takes: where there is no time for them it does not begin
SPEED = 1.5e10, 5e12  # operations a second that steps come to at the least, on a CPU and on a GPU
# Points per dimension up to which this has a chance against trees, and the least rank. With 60 points of noise in 20 dimensions
# it ends 19 % above the network and with 64 disks in 15 at 37 %, in 6 s; there trees end at 1 % and 2 %. With 100 in 60 both
# are at 10 %.
POINTS_PER_RANK, LEAST_RANK = 2, 9
MOST_PAIRS = 1200, 7000  # in a program, on a CPU and on a GPU
MOST_POINTS = 700  # points; more would take minutes even on a GPU
GAP = 5e-4  # complementarity over bound at which a solve ends,
ROUGH = 5e-2  # and at which the first ones do, which are there to find the pairs that matter
PINNED = 0.1  # complementarity from which on a bound goes to its limit
OFF = 2e-3  # by how much the bound may be off its limit at the end
STEP = 0.9  # of the way to the boundary
START = 0.02  # N over g at the start, where everything is far larger than at the end: from there all is smooth
STEPS = 110
CUTS_AFTER = 2  # rounds: before, it is not yet seen which are broken,
MOST_CUTS = 4  # for each point
BROKEN = 1e-3  # by how much, relative, a moment of z v must be longer than that of z for a cut
LITTLE = 1e-3  # by how much a bound must fall for another round
SLACK = 1e-9  # by which a written form is larger: a checker sees a rounded factor of it,
LOST = 1e-7  # and what kappa, which depends on its inverse, is given for rounding
CUT_BITS = 26  # of a cut's length
SHIFT = 40  # bits after the point in a proof, beside those that its largest numbers lack


@dataclass
class Goal:
    """What is asked of the weights c_i = x_i factor_i: the least f(x) + price * bound.

    Where there is a `limit`, the bound is to come out as that, and the price is only where the search for the right one begins.
    `slopes(x)` are f' and f'' (n,), f'' >= 0, but for `coupling` / 2 times the squared sum of x. x lies between `low` and `high`,
    which may be infinite, and has the sum `total`, if that is a number.
    """

    factor: Tensor
    start: Tensor
    low: Tensor
    high: Tensor
    total: float | None
    price: float = 1.0
    limit: float | None = None
    slopes: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
    coupling: float = 0.0
    size: float | None = None  # what gaps are measured by; None: the bound
    beat: Callable[[], None] | None = None  # called at every step

    @staticmethod
    def margin(y: Tensor) -> Goal:
        """The least bound over all weights q >= 0 with sum one, c = q y."""
        n = len(y)
        return Goal(y, torch.full_like(y, 1 / n), torch.zeros_like(y), torch.full_like(y, math.inf), 1.0)


@dataclass
class Side:
    """One sign: pairs a < b into z (m,), multipliers N (m,) and g (n,) of points scaled to length 1, kappa and lam."""

    sign: float
    a: Tensor
    b: Tensor
    N: Tensor
    g: Tensor
    kappa: float = 0.0
    lam: float = 0.0


@dataclass
class Products:
    """A bound, in the units of the points, with the weights q (n,) and the sides that show it."""

    bound: float
    q: Tensor
    sides: list[Side]
    program: Program


class Program:
    """Points X (n, r) and what is asked of their weights. Inside they have length 1, and bounds are in units of the longest."""

    def __init__(self, X: Tensor, goal: Goal, deadline: float):
        self.goal, self.deadline, self.slow = goal, deadline, False
        self.n, self.r = X.shape
        self.lengths = X.norm(dim=1)
        self.unit = float(self.lengths.max())
        self.X = X / self.lengths[:, None]
        self.weight = goal.factor * self.lengths / self.unit  # (n,) of w_i, for x_i = 1
        self.bounded = torch.cat([torch.isfinite(goal.low), torch.isfinite(goal.high)])  # (2n,)
        n, r = self.n, self.r
        index = torch.arange(n, device=X.device)
        self.w, self.s, self.zero = 1 + index, 1 + n + index, torch.zeros_like(index)  # places in z
        self.cuts = X.new_zeros(0, 1 + r)  # each (p, -u) with p >= |u|: the part p - u . v of z
        self.Z = X.new_zeros(1 + 2 * n, 1 + r + n)  # z = Z (1, v, w)
        self.Z[0, 0] = 1
        self.Z[self.w, r + self.w] = 1
        self.Z[self.s, 1 + r + index] = 1
        self.Z[self.s, 1 : 1 + r] = -self.X

    @property
    def price(self) -> float:
        return self.goal.price * self.unit

    @property
    def limit(self) -> float:
        return math.inf if self.goal.limit is None else self.goal.limit / self.unit

    def with_cuts(self, cuts: Tensor) -> Program:
        """The same with these parts after the others, (k, 1 + r)."""
        other, plain = copy(self), self.Z[: 1 + 2 * self.n]
        other.cuts = cuts
        other.Z = torch.cat([plain, torch.cat([cuts, cuts.new_zeros(len(cuts), self.n)], 1)])
        return other

    def near(self) -> tuple[Tensor, Tensor]:
        """Pairs that matter first: w_i s_j and s_i w_j of points in nearly one direction, w_i w_j and s_i s_j of others."""
        cosine = self.X @ self.X.T
        near = cosine.abs().fill_diagonal_(
            -1
        )  # no point is a neighbour of its own, not even where all others are orthogonal
        j = near.topk(min(NEAR, self.n - 1), 1).indices  # (n, k)
        i = torch.arange(self.n, device=j.device)[:, None].expand_as(j)
        pair = torch.unique((torch.minimum(i, j) * self.n + torch.maximum(i, j)).flatten())
        i, j = pair // self.n, pair % self.n
        same = cosine[i, j] > 0
        return torch.cat([self.w[i], self.s[i]]), torch.cat(
            [torch.where(same, self.s[j], self.w[j]), torch.where(same, self.w[j], self.s[j])]
        )

    def form(self, side: Side, q: Tensor, N: Tensor, g: Tensor, kappa: float, lam: float) -> Tensor:
        """The matrix (1 + r + n, ...) of the quadratic form; linear in all but `side`, which gives the places."""
        F = q.new_zeros(len(self.Z), len(self.Z))
        F.index_put_((self.zero, self.w), -side.sign * q * self.weight, accumulate=True)
        F.index_put_((side.a, side.b), -N, accumulate=True)
        F.index_put_((self.w, self.s), g, accumulate=True)
        S = self.Z.T @ half(F) @ self.Z
        S[0, 0] += kappa
        S.diagonal()[1 : 1 + self.r] += lam
        return half(S)

    def least(self, side: Side, q: Tensor, N: Tensor, g: Tensor, lam: float) -> float | None:
        """The least kappa for these multipliers; None where there is none."""
        S = self.form(side, q, N, g, 0.0, lam)
        size = S.diagonal()[1:].rsqrt()
        L, bad = torch.linalg.cholesky_ex(S[1:, 1:] * size[:, None] * size)
        if int(bad) or not bool(torch.isfinite(size).all()):
            return None
        return float((torch.linalg.solve_triangular(L, (S[1:, 0] * size)[:, None], upper=False) ** 2).sum())

    def slack(self, x: Tensor) -> Tensor:
        """How far x (n,) is from its bounds, (2n,); 1 where there is none."""
        return torch.where(self.bounded, torch.cat([x - self.goal.low, self.goal.high - x]), 1.0)

    def start(self, sign: float, pairs: tuple[Tensor, Tensor], x: Tensor) -> Side:
        """Multipliers that are large against x."""
        a, b = pairs
        size = float((x * self.weight).abs().sum())
        side = Side(sign, a, b, x.new_full((len(a),), START * size), x.new_full((self.n,), size))
        side.lam = size * (1 + 0.5 * float(torch.linalg.matrix_norm(self.X, 2)) ** 2)
        # Not at the very edge, where kappa is huge: twice these pairs are fine, too.
        while self.least(side, x, 2 * side.N, side.g, side.lam) is None:
            side.lam, side.N = 2 * side.lam, side.N / 2
        side.kappa = size + 1.5 * (self.least(side, x, side.N, side.g, side.lam) or 0.0)
        return side


def half(A: Tensor) -> Tensor:
    return (A + A.T) / 2


def both(x: Tensor) -> Tensor:
    """What a change x (n,) is to the distances from low and high, (2n,)"""
    return torch.cat([x, -x])


def across(x: Tensor) -> Tensor:
    """The transpose: (2n,) to (n,)"""
    n = len(x) // 2
    return x[:n] - x[n:]


def room(x: Tensor, dx: Tensor) -> float:
    """The largest step for which x + step dx stays nonnegative."""
    down = dx < 0
    return float((-x[down] / dx[down]).min()) if bool(down.any()) else math.inf


def matrix_room(M: Tensor, dM: Tensor) -> float:
    """The same for positive definite M."""
    L, bad = torch.linalg.cholesky_ex(M)
    if int(bad):
        return 0.0
    inside = torch.linalg.solve_triangular(L, torch.linalg.solve_triangular(L, dM, upper=False).T, upper=False)
    least = float(torch.linalg.eigvalsh(half(inside))[0])
    return -1 / least if least < 0 else math.inf


class Iterate:
    """Both halves of a point: q, mu and the sides; and their multipliers U (moments), u, p, m, which need not be feasible."""

    def __init__(self, program: Program, pairs: list[tuple[Tensor, Tensor]]):
        self.program, goal = program, program.goal
        self.q = goal.start
        self.sides = [program.start(sign, pair, self.q) for sign, pair in zip((1.0, -1.0), pairs)]
        self.mu = 1.5 * max(side.kappa + side.lam for side in self.sides)
        inverse = [torch.linalg.inv(S) for S in self.forms()]
        r, half_price = program.r, 0.5 * program.price
        t = half_price / min(float(inverse[0].diagonal()[1 : 1 + r].sum()), float(inverse[0][0, 0]))
        # On the central path but for the linear conditions, which the first steps mend.
        self.U = [half(t * S) for S in inverse]
        self.u = [t / side.N for side in self.sides]
        self.p = torch.where(program.bounded, t / program.slack(self.q), 0.0)  # (2n,)
        self.m = [t / rest for rest in self.rests()]

    def forms(self) -> list[Tensor]:
        form = self.program.form
        return [form(side, self.q, side.N, side.g, side.kappa, side.lam) for side in self.sides]

    def rests(self) -> list[float]:
        return [self.mu - side.kappa - side.lam for side in self.sides]

    def bound(self) -> float:
        return max(side.kappa + side.lam for side in self.sides)


@dataclass
class Move:
    """A direction."""

    q: Tensor
    mu: float
    x: list[Tensor]  # N, g, kappa, lam of each side
    S: list[Tensor]
    rest: list[float]
    U: list[Tensor]
    u: list[Tensor]
    p: Tensor
    m: list[float]
    price: float


class Newton:
    """The linear system at an iterate, factored: unknowns N, g, kappa and lam of each side are eliminated, q and mu are left.

    Where mu is `pinned` to the limit of the goal, the price is what is unknown.
    """

    def __init__(self, at: Iterate, pinned: bool = False):
        self.at, self.pinned, program = at, pinned, at.program
        self.program = program
        n, r, Z = program.n, program.r, program.Z
        self.S, self.rests = at.forms(), at.rests()
        self.inverse: list[Tensor] = []
        self.parts: list[tuple[Tensor, ...]] = []
        goal, self.slack = program.goal, program.slack(at.q)
        shared = Z.new_zeros(n + 1, n + 1)
        shared[:n, :n] = goal.coupling
        self.slope = Z.new_zeros(n)
        if goal.slopes is not None:
            self.slope, curvature = goal.slopes(at.q)
            shared.diagonal()[:n] += curvature
        shared.diagonal()[:n] += (at.p / self.slack).reshape(2, n).sum(0)
        for k, side in enumerate(at.sides):
            inverse = torch.cholesky_inverse(torch.linalg.cholesky(self.S[k]))
            W, T = Z @ inverse @ Z.T, Z @ at.U[k] @ Z.T
            m = len(side.N)
            a = torch.cat([side.a, program.w, program.zero[:1], program.zero])
            b = torch.cat([side.b, program.s, program.zero[:1], program.w])
            # The form has -factor (z_a z_b) times the unknown.
            factor = torch.cat([Z.new_ones(m), -Z.new_ones(n + 1), side.sign * program.weight])
            Ta, Tb, Wa, Wb = T[a], T[b], W[a], W[b]
            H = Ta[:, a] * Wb[:, b]
            H += Tb[:, b] * Wa[:, a]
            H += Ta[:, b] * Wb[:, a]
            H += Tb[:, a] * Wa[:, b]
            H *= 0.25 * factor[:, None] * factor
            lam = m + n + 1  # its place, after N, g and kappa; then q and mu
            inner = lam + 1
            A = Z.new_zeros(inner + n + 1, inner + n + 1)
            A[:lam, :lam], A[:lam, inner:-1] = H[:lam, :lam], H[:lam, lam:]
            A[inner:-1, :lam], A[inner:-1, inner:-1] = H[lam:, :lam], H[lam:, lam:]
            keep = torch.cat(
                [torch.arange(lam, device=a.device), torch.arange(inner, inner + n, device=a.device)]
            )  # places of the entries
            B = Z @ half(at.U[k][:, 1 : 1 + r] @ inverse[1 : 1 + r]) @ Z.T
            A[keep, lam] = A[lam, keep] = -factor * B[a, b]
            A[lam, lam] = (at.U[k][1 : 1 + r, 1 : 1 + r] * inverse[1 : 1 + r, 1 : 1 + r]).sum()
            A.diagonal()[:m] += at.u[k] / side.N
            rest = Z.new_zeros(inner + n + 1)
            rest[lam - 1], rest[lam], rest[-1] = -1, -1, 1
            A += at.m[k] / self.rests[k] * torch.outer(rest, rest)
            scale = A.diagonal()[:inner].rsqrt()
            C = A[:inner, :inner] * scale[:, None] * scale
            C.diagonal().add_(1e-13)
            C = torch.linalg.cholesky(C)
            Y = torch.cholesky_solve(A[:inner, inner:] * scale[:, None], C) * scale[:, None]
            shared += A[inner:, inner:] - A[inner:, :inner] @ Y
            self.inverse.append(inverse)
            self.parts.append((a, b, factor, keep, rest, A[inner:, :inner].clone(), C, scale, Y))
        K = Z.new_zeros(n + 2, n + 2)
        K[:-1, :-1] = half(shared)
        if goal.total is None:
            K[-1, -1] = 1
        else:
            K[-1, :n] = K[:n, -1] = 1
        self.row = K[n].clone()
        if pinned:
            K[n], K[n, n] = 0, 1
        self.factor = torch.linalg.lu_factor(K)

    def move(self, t: float, second: Move | None) -> Move:
        """The direction to complementary products t, with the second-order terms of a first direction."""
        at, program, Z = self.at, self.program, self.program.Z
        n, r = program.n, program.r
        zero = torch.zeros((), device=Z.device)
        curl = [half(second.U[k] @ second.S[k] @ self.inverse[k]) if second else zero for k in (0, 1)]
        target_q = torch.where(program.bounded, t - (second.p * both(second.q) if second else zero), 0.0)
        target_N = [t - (second.u[k] * second.x[k][: len(at.u[k])] if second else zero) for k in (0, 1)]
        target_m = [t - (second.m[k] * second.rest[k] if second else 0.0) for k in (0, 1)]
        shared = Z.new_zeros(n + 1)
        shared[:n], shared[n] = self.slope - across(target_q / self.slack), program.price
        if program.goal.coupling:
            shared[:n] += program.goal.coupling * at.q.sum()
        first = []
        for k, side in enumerate(at.sides):
            a, b, factor, keep, rest, cross, C, scale, _ = self.parts[k]
            R = t * self.inverse[k] - curl[k]
            G = torch.zeros_like(rest)
            G[keep] = factor * (Z @ R @ Z.T)[a, b]
            G[len(side.N) + n + 1] = -R.diagonal()[1 : 1 + r].sum()
            G[: len(side.N)] -= target_N[k] / side.N
            G -= target_m[k] / self.rests[k] * rest
            inner = len(scale)
            z = torch.cholesky_solve((G[:inner] * scale)[:, None], C)[:, 0] * scale
            shared += G[inner:] - cross @ z
            first.append(z)
        total = program.goal.total
        left = shared.new_full((1,), 0.0 if total is None else total - float(at.q.sum()))
        right, price = torch.cat([-shared, left]), program.goal.price
        if self.pinned:
            right[n] = program.limit - at.mu
        d = torch.linalg.lu_solve(*self.factor, right[:, None])[:, 0]
        if self.pinned:
            price -= float(self.row @ d + shared[n]) / program.unit
        d = d[: n + 1]
        dq, dmu = d[:n], float(d[n])
        p = target_q / self.slack - at.p - at.p / self.slack * both(dq)
        out = Move(dq, dmu, [], [], [], [], [], p, [], price)
        for k, side in enumerate(at.sides):
            m = len(side.N)
            x = -(first[k] + self.parts[k][-1] @ d)
            dkappa, dlam = float(x[-2]), float(x[-1])
            S = program.form(side, dq, x[:m], x[m : m + n], dkappa, dlam)
            rest_k = dmu - dkappa - dlam
            out.x.append(x)
            out.S.append(S)
            out.rest.append(rest_k)
            out.U.append(t * self.inverse[k] - curl[k] - at.U[k] - half(at.U[k] @ S @ self.inverse[k]))
            out.u.append(target_N[k] / side.N - at.u[k] - at.u[k] / side.N * x[:m])
            out.m.append(target_m[k] / self.rests[k] - at.m[k] - at.m[k] / self.rests[k] * rest_k)
        return out

    def steps(self, move: Move) -> tuple[float, float]:
        """How far multipliers and unknowns can go."""
        at = self.at
        up, down = [room(at.p, move.p)], [room(self.slack, torch.where(self.program.bounded, both(move.q), 0.0))]
        for k, side in enumerate(at.sides):
            up += [matrix_room(at.U[k], move.U[k]), room(at.u[k], move.u[k])]
            down += [matrix_room(self.S[k], move.S[k]), room(side.N, move.x[k][: len(side.N)])]
            up += [-at.m[k] / move.m[k]] if move.m[k] < 0 else []
            down += [-self.rests[k] / move.rest[k]] if move.rest[k] < 0 else []
        return min(1.0, STEP * min(up)), min(1.0, STEP * min(down))

    def products(self, move: Move | None = None, up: float = 0.0, down: float = 0.0) -> float:
        """The sum of complementary products, here or after a step."""
        at = self.at
        if move is None:
            total = at.p @ self.slack
            for k, side in enumerate(at.sides):
                total += (at.U[k] * self.S[k]).sum() + at.u[k] @ side.N + at.m[k] * self.rests[k]
            return float(total)
        total = (at.p + up * move.p) @ (self.slack + down * both(move.q))
        for k, side in enumerate(at.sides):
            total += ((at.U[k] + up * move.U[k]) * (self.S[k] + down * move.S[k])).sum()
            total += (at.u[k] + up * move.u[k]) @ (side.N + down * move.x[k][: len(side.N)])
            total += (at.m[k] + up * move.m[k]) * (self.rests[k] + down * move.rest[k])
        return float(total)

    def step(self, centre: bool) -> float:
        """One step; the shorter of its two lengths."""
        at, n = self.at, self.program.n
        here = self.products()
        count = sum(len(S) + len(side.N) + 1 for S, side in zip(self.S, at.sides)) + int(self.program.bounded.sum())
        if centre:
            move = self.move(here / count, None)
        else:
            first = self.move(0.0, None)
            up, down = self.steps(first)
            share = max(self.products(first, up, down), 0.0) / here
            sigma = min(1.0, max(0.01, share ** max(1.0, 3 * min(up, down) ** 2)))
            move = self.move(sigma * here / count, first)
        up, down = self.steps(move)
        if not math.isfinite(up + down + float(move.q.sum()) + float(move.p.sum())):
            return 0.0
        at.q = at.q + down * move.q
        at.mu += down * move.mu
        goal = self.program.goal
        goal.price = max(goal.price + up * (move.price - goal.price), goal.price / 2)
        at.p = at.p + up * move.p
        for k, side in enumerate(at.sides):
            m, x = len(side.N), move.x[k]
            side.N, side.g = side.N + down * x[:m], side.g + down * x[m : m + n]
            side.kappa, side.lam = side.kappa + down * float(x[-2]), side.lam + down * float(x[-1])
            at.U[k], at.u[k] = half(at.U[k] + up * move.U[k]), at.u[k] + up * move.u[k]
            at.m[k] += up * move.m[k]
        return min(up, down)


def follow(program: Program, pairs: list[tuple[Tensor, Tensor]], gap: float) -> Iterate:
    """The program with these pairs in play, solved until the complementary products are below gap * bound."""
    at, short, pinned, goal = Iterate(program, pairs), False, False, program.goal
    began = time.perf_counter()
    for step in range(STEPS):
        if goal.beat is not None:
            goal.beat()
        now = time.perf_counter()
        if now > program.deadline or (step == 2 and began + USUAL / 2 * (now - began) > program.deadline):
            program.slow = True  # slower than it should be: another try would end in the same way
            break
        try:
            newton = Newton(at, pinned)
            left = newton.products() / (program.price * at.mu if goal.size is None else goal.size)
            if left < gap and not (pinned and abs(at.mu / program.limit - 1) > OFF):
                break
            pinned = goal.limit is not None and left < PINNED
            length = newton.step(centre=short)
        except torch.linalg.LinAlgError:
            break  # the last digits are gone; a step that fails leaves the iterate as it was
        short = length < 0.2 and not short
        if length < 1e-6:
            break
    return at


def steepest(program: Program, at: Iterate, k: int) -> Tensor:
    """Cuts (m, 1 + r) that the moments of a side break: of each part z the unit u for which z (1 - u . v) is most negative."""
    moments = program.Z[1 : 1 + 2 * program.n] @ at.U[k][:, : 1 + program.r]  # of z and z v
    mean, along = moments[:, 0], moments[:, 1:]
    length = along.norm(dim=1)
    broken = length > mean * (1 + BROKEN)
    return torch.cat([torch.ones_like(length)[:, None], -along / length[:, None]], 1)[broken]


def violated(program: Program, at: Iterate, k: int, most: int) -> tuple[Tensor, Tensor]:
    """Pairs for the next round: those that carry weight, and those whose moments are most negative."""
    side, width = at.sides[k], len(program.Z)
    T = program.Z @ at.U[k] @ program.Z.T
    size = T.diagonal().clamp_min(1e-300).sqrt()
    correlation = torch.triu(T / size[:, None] / size, 1)
    correlation[program.w, program.s] = 0
    correlation[side.a, side.b] = correlation[side.b, side.a] = 0
    carries = side.N * size[side.a] * size[side.b]
    keep = torch.argsort(-carries)[:most]
    keep = keep[carries[keep] > 1e-3 * carries.max()]
    worst, where = torch.topk(-correlation.flatten(), min(most, correlation.numel()))
    where = where[worst > 1e-3][: max(0, most - len(keep))]
    return torch.cat([side.a[keep], where // width]), torch.cat([side.b[keep], where % width])


def next_round(program: Program, at: Iterate, most: int) -> tuple[Program, list[tuple[Tensor, Tensor]]]:
    """The program with the cuts that its solution breaks, and pairs for both sides; cuts in no pair are dropped."""
    wide = program.with_cuts(torch.cat([program.cuts, *(steepest(program, at, k) for k in (0, 1))]))
    pairs = [violated(wide, at, k, most) for k in (0, 1)]
    first = 1 + 2 * program.n
    used = torch.unique(torch.cat([part for pair in pairs for part in pair]))
    used = used[used >= first][: MOST_CUTS * program.n]
    place = torch.full_like(wide.Z[:, 0], -1, dtype=torch.long)
    place[:first] = torch.arange(first, device=used.device)
    place[used] = first + torch.arange(len(used), device=used.device)
    pairs = [(place[a], place[b]) for a, b in pairs]
    return wide.with_cuts(wide.cuts[used - first]), [(a[a.minimum(b) >= 0], b[a.minimum(b) >= 0]) for a, b in pairs]


def solve(X: Tensor, goal: Goal, deadline: float, enough: float = 0.0) -> Iterator[Products]:
    """Better and better weights for `goal` until `deadline` (of perf_counter), a bound below `enough`, or nothing better.

    Where the goal has more than the bound only who asks can tell what is better, and stop.
    """
    n = len(X)
    if n < 2 or n > MOST_POINTS:
        return
    program = Program(X, goal, deadline)
    pairs = [program.near()] * 2
    gpu = X.device.type == "cuda"
    most = min(16 * n, MOST_PAIRS[1]) if gpu else max(min(12 * n, MOST_PAIRS[0]), len(pairs[0][0]))
    best = math.inf
    for number in itertools.count():
        gap = ROUGH if number < 2 else GAP
        began, size = time.perf_counter(), n + max(len(pair[0]) for pair in pairs)
        cost = 2 * (size**3 / 3 + size**2 * (2 * n + 50) + 30 * sum(X.shape) ** 3)
        if began + USUAL * cost / SPEED[gpu] > deadline:
            break
        at = follow(program, pairs, gap)
        products = renewed(Products(0.0, at.q, at.sides, program), at.q)
        little = number > 2 and (products is None or (goal.slopes is None and products.bound > best * (1 - LITTLE)))
        if products is not None and (goal.slopes is not None or products.bound < best):
            best = min(best, products.bound)
            yield products
        if little or program.slow:
            break
        if best <= enough or 2 * time.perf_counter() - began > deadline:
            break
        more = most if number < 3 else 3 * most // 2
        if number < CUTS_AFTER:
            pairs = [violated(program, at, k, more) for k in (0, 1)]
        else:
            program, pairs = next_round(program, at, more)


def renewed(solved: Products, x: Tensor) -> Products | None:
    """The same multipliers for weights x (n,) that differ a little, with the kappa that these need."""
    program, sides = solved.program, []
    for side in solved.sides:
        kappa = program.least(side, x, side.N, side.g, side.lam)
        if kappa is None:
            return None
        sides.append(replace(side, kappa=kappa))
    return Products(max(side.kappa + side.lam for side in sides) * program.unit, x, sides, program)


def write(solved: Products, names: np.ndarray, scale: float, times: float = 1.0) -> tuple[dict[str, Any], float]:
    """The proof in integers, and the bound it shows, both in the units of the data: its points, at `names`, are `scale` X.

    The weights are taken `times` a number.
    """
    program, n = solved.program, solved.program.n
    grow = program.unit * scale * times  # of the form, and of every bound
    base, rows, program, bits = whole_cuts(program, scale)
    length = torch.cat(
        [
            torch.ones_like(program.lengths[:1]),
            program.lengths.repeat(2) * scale,
            program.Z.new_full((len(rows),), 2.0**bits),
        ]
    )  # of z
    order = np.argsort(names)
    place = np.empty(n, dtype=int)
    place[order] = np.arange(n)
    cuts = {"cuts": {"base": place[base].tolist(), "rows": rows}} if rows else {}
    place = np.concatenate([[0], 1 + place, 1 + n + place, 1 + 2 * n + np.arange(len(rows))])
    sides, upper = [], 0.0
    for side in solved.sides:
        of_N, of_g = grow / (length[side.a] * length[side.b]), grow / length[1 : 1 + n] ** 2
        largest = max(float((side.g * of_g).abs().max()), side.lam * grow)
        shift = max(0, SHIFT - math.floor(math.log2(largest))) + bits * bool(rows)
        unit = 2.0**shift
        N = torch.floor(side.N * of_N * unit)
        g = torch.ceil((side.g * (1 + SLACK) + SLACK * side.g.abs().mean()) * of_g * unit)
        lam = math.ceil(side.lam * (1 + SLACK) * grow * unit)
        kappa = program.least(side, solved.q, N / of_N / unit, g / of_g / unit, lam / grow / unit)
        if kappa is None:
            return {}, math.inf
        first, second = place[side.a.cpu()], place[side.b.cpu()]
        pairs = zip(np.minimum(first, second).tolist(), np.maximum(first, second).tolist(), N.tolist())
        sides.append(
            {
                "sign": int(side.sign),
                "points": names[order].tolist(),
                "shift": shift,
                "lam": lam,
                "free": [int(v) for v in g.cpu().numpy()[order]],
                "pairs": [[i, j, int(v)] for i, j, v in pairs if v > 0],
            }
            | cuts
        )
        upper = max(upper, kappa * (1 + LOST) * grow + lam / unit)
    return {"type": "products", "sides": sides}, upper


def whole_cuts(program: Program, scale: float) -> tuple[np.ndarray, list[list[int]], Program, int]:
    """The cuts as integer combinations of some points, times 2^bits: these points, the rows, the program with them, bits."""
    if not len(program.cuts):
        return np.zeros(0, dtype=int), [], program, 0
    X = program.X.cpu().numpy()
    points = (program.lengths.cpu().numpy() * scale)[:, None] * X  # as in the data
    base = linalg.qr(X.T, mode="r", pivoting=True)[1][
        : min(X.shape)
    ]  # points that span all directions, none of them nearly flat
    bits = CUT_BITS + max(0, math.ceil(math.log2(program.r * float(np.linalg.norm(points[base], axis=1).max()))))
    wanted = -program.cuts[:, 1:].cpu().numpy()  # (k, r) unit vectors
    whole = np.rint(np.ldexp(np.linalg.lstsq(points[base].T, wanted.T)[0].T, bits))
    u = whole @ points[base]
    most = np.ceil(np.linalg.norm(u, axis=1) * (1 + 1e-12))
    cuts = torch.as_tensor(np.ldexp(np.column_stack([most, -u]), -bits)).to(program.cuts)
    return base, [[int(v) for v in row] for row in whole], program.with_cuts(cuts), bits
