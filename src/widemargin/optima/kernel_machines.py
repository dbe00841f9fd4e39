"""The least objective over the kernel space of random ReLU features: training of the output layer alone, at infinite width."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from widemargin.kinds import labels_for_loss
from widemargin.margins.answers import solves
from widemargin.margins.door import EPS, Late, Progress, check_progress, product
from widemargin.margins.rows import first_rows
from widemargin.spaces import ReLU
from widemargin.types import Certificate, Dataset, InputError

from . import problem
from .bounds import dual_below, dual_value, power_of, squared
from .losses import Loss
from .master import constant

STEPS = 300
TINY = 120  # targets below 2^-TINY: `verify` has 200 bits after the point for the values of a function
ARMIJO = 1e-4
BLOCK = 256  # rows of K at a time
SHARE = 0.9  # of tol that the steps must reach; the rest is for rounding
# Seconds of a step for n^3, before there was one; and how far one may go beyond the time limit.
SOLVE, GRACE = 2.5e-11, 0.25
PAIRS, MATRICES = 1.6e7, 5  # pairs of points a second that a kernel has, and matrices of a step


@solves(labels_for_loss)
def f2(
    data: Dataset,
    *,
    loss: str = "logistic",
    weight_decay: float,
    bias: bool = False,
    output_bias: str | None = "free",
    weights: ArrayLike | None = None,
    tol: float = 1e-6,
    time_limit: float | None = 60.0,
    progress: Progress | None = None,
) -> Certificate:
    """The best that training the output layer of infinitely many random ReLU features with weight decay can reach, certified.

        P = min over f in F2, b of  sum_i w_i loss(y_i, f(x_i) + b) / W + (weight_decay / 2) |f|^2 [+ (weight_decay / 2) b^2]
          = max over c of  ( sum_i inf_t [w_i loss(y_i, t) + c_i t] - c' K c / (2 weight_decay W) [- (sum c)^2 / ...] ) / W

    W = sum_i w_i, K the random feature kernel of `margins.f2` (with `bias` the points have a coordinate 1). Arguments and losses
    are those of `optima.f1`. `upper` is the objective of
    sum_j alpha_j k(x_j, .) + b, extra["alpha"] and extra["offset"]; `lower` is what `dual` proves.

    `weights` w is (n,), and `output_bias` is "free", "decayed" or None.

    Where the time or the memory is not enough for the kernel of all pairs of points, some of them are solved for: their dual is
    one of all, and their function is judged at all points. Both bounds hold, and the gap is wide.

    >>> import widemargin as wm
    >>> one = wm.Dataset([[3.0, 4.0]], [1.0])  # k = |x|^2 / (2 d): min over t of (1 - t)^2 / 2 + t^2 / (2 k)
    >>> cert = wm.optima.f2(one, loss="squared", weight_decay=1.0, bias=False, output_bias=None)
    >>> abs(cert.upper - 0.5 / 7.25) < 1e-6, cert.verify(one).ok
    (True, True)
    """
    training = problem.setting(data, weight_decay, bias, output_bias, weights, tol, time_limit)
    entered = problem.of_labels(training, loss)
    solver = _Newton(entered, _some(entered), tol, progress)
    try:
        with np.errstate(all="ignore"):  # steps that overflow are refused by line searches
            status = solver.run()
    except KeyboardInterrupt:
        status = "interrupted"
    return solver.certificate(status)


def _some(entered: problem.Problem) -> np.ndarray:
    """The points (k,) that there is room and time for: their kernel, and with all points where these are more."""
    door, on = entered.door, np.flatnonzero(entered.points.w > 0)
    n, pairs = len(door.X), (0.8 * (door.deadline - door.started) + GRACE) * PAIRS
    room = math.sqrt(door.limits.memory / (8 * MATRICES))
    if n <= room and n * n <= pairs:
        return np.arange(n)
    most = int(min(room, len(on), 2 * pairs / (n + math.sqrt(n * n + 4 * pairs)) if math.isfinite(pairs) else n))
    labels = entered.points.y[on] if entered.loss.labels else np.zeros(len(on))
    return on[first_rows(labels, max(most, 1))]


def _symmetric(K: np.ndarray) -> np.ndarray:
    """What is below the diagonal of K stands above it too. In its place, by blocks: copies of a large K take long."""
    for start in range(0, len(K), BLOCK):
        part, rest = slice(start, start + BLOCK), slice(start + BLOCK, None)
        K[part, rest] = K[rest, part].T
        K[part, part] = np.tril(K[part, part]) + np.tril(K[part, part], -1).T
    return K


class _Newton:
    """f = sum_j beta_j k(x_j, .) in units of the door: objective Q(beta, b) + sum_i w_i loss, times the sum of the weights.

    At the minimum lam beta = c, the pull of the points, so a step solves lam (beta + d) = c - H (K d + db), H the curvatures,
    which needs no inverse of K, and, where there is an output bias, lam sum(beta + d) = ridge (b + db).
    """

    def __init__(self, entered: problem.Problem, rows: np.ndarray, tol: float, progress: Progress | None):
        check_progress(progress)
        if entered.power < -TINY:
            raise InputError(
                f"{entered.door.data.name}: the targets are too tiny for a check of kernel values; rescale y"
            )
        self.problem, self.tol, self.progress, self.rows = (
            entered,
            tol,
            progress,
            rows,
        )  # the points that are solved for
        every = entered.points
        self.points = replace(every, y=every.y[rows], w=every.w[rows])
        self.K = _symmetric(ReLU().kernel(entered.door.X[rows]))
        self.n, D = len(rows), entered.door.X.shape[1]
        shift = entered.door.shift
        self.lam = entered.total * math.ldexp(entered.decay, -2 * shift) if abs(shift) < 200 else 0.0
        if not 1e-250 < self.lam < 1e250:
            raise InputError(
                f"{entered.door.data.name}: weight_decay={entered.decay:g} is out of all proportion to the data; rescale X or y"
            )
        self.size, self.blur = np.sqrt(self.K.diagonal()), EPS * (2 * D + 30)
        self.loss = entered.loss
        self.beta, self.b, self.steps = np.zeros(self.n), 0.0, 0
        self.best, self.upper = (self.beta, self.b), math.inf
        self.dual, self.lower = np.zeros(self.n), 0.0
        self.took, self.told = SOLVE * self.n**3, math.inf  # of a step, and when the last one began

    def times(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """K x, how far it may be off, and at least x' K x."""
        Kx, e = product(self.K, x)
        spread = (e + self.blur + 8 * EPS) * float(np.abs(x) @ self.size) * self.size
        square = max(float(x @ Kx), 0.0) + 2 * float(np.abs(x) @ spread) + EPS * self.n * float(np.abs(x) @ np.abs(Kx))
        return Kx, spread, square

    def above(self, beta: np.ndarray, b: float) -> float:
        """The objective, rounding included."""
        points = self.points
        Kx, spread, square = self.times(beta)
        error = spread + 4 * EPS * (np.abs(Kx) + abs(b) + np.abs(points.y))
        value = float(points.w @ self.loss.value_above(points.y, Kx + b, error))
        value += 0.5 * self.lam * square + 0.5 * points.ridge * b * b
        return value * (1 + EPS * (self.n + 64))

    def above_all(self, beta: np.ndarray, b: float) -> float:
        """The same over all points, some of which are not those of `beta`; infinite where there is no time for it, and for
        a constant there is."""
        points, X = self.problem.points, self.problem.door.X
        on = np.flatnonzero(beta)
        value, reach = 0.0, float(np.abs(beta) @ self.size)
        try:
            width = 4 * len(on) + X.shape[1]
            for block in self.problem.door.limits.blocks(len(X), width) if len(on) else (slice(None),):
                t, spread = np.full(len(X[block]), b), np.zeros(len(X[block]))
                if len(on):
                    Kx, e = product(ReLU().kernel(X[block], X[self.rows[on]]), beta[on])
                    size = np.linalg.norm(X[block], axis=1) / math.sqrt(2 * X.shape[1]) * (1 + 1e-12)  # sqrt k(x, x)
                    t, spread = t + Kx, (e + self.blur + 8 * EPS) * reach * size + 4 * EPS * (np.abs(Kx) + abs(b))
                error = spread + 4 * EPS * np.abs(points.y[block]) * bool(len(on))
                value += float(points.w[block] @ self.loss.value_above(points.y[block], t, error))
        except Late:
            return math.inf
        value += 0.5 * self.lam * self.times(beta)[2] + 0.5 * points.ridge * b * b
        return value * (1 + EPS * (len(X) + 64))

    def below(self, c: np.ndarray) -> float:
        """What the weights c prove, rounding included."""
        unit = 2.0 ** power_of(c)  # squares of tiny weights are 0
        square = squared(math.sqrt(self.times(c / unit)[2] / (2 * self.lam)) * unit) * (1 + 32 * EPS)
        return dual_below(self.points, self.loss, c, 1.0) - square

    def keep(self, t: np.ndarray) -> None:
        value = self.above(self.beta, self.b)
        if value < self.upper:
            self.upper, self.best = value, (self.beta, self.b)
        for pull in (self.points.pull(self.loss, t), self.lam * self.beta):
            for c in problem.feasible(self.points, self.loss, pull, self.b):
                if dual_value(self.points, self.loss, c) > self.lower and (value := self.below(c)) > self.lower:
                    self.lower, self.dual = value, c

    def run(self) -> str:
        if self.loss.name == "hinge":
            return self.inside()
        self.b = constant(self.points, self.loss)
        while self.steps < STEPS:
            t = self.K @ self.beta + self.b
            self.keep(t)
            if (status := self.tell()) is not None:
                return status
            fall = self.step(t)
            if fall <= 1e-15 * self.upper:
                break
        return "rounding"

    def tell(self) -> str | None:
        """One step more; why to end, if there is a reason."""
        door, self.steps = self.problem.door, self.steps + 1
        if self.progress is not None:
            self.progress(time.perf_counter() - door.started, *self.shown(), f"step {self.steps}")
        if self.upper - self.lower <= SHARE * self.tol * self.lower:
            return "certified"
        now = time.perf_counter()
        if now > self.told:
            self.took = now - self.told
        self.told = now
        return "time-limit" if now > door.deadline or now + self.took > door.deadline + GRACE else None

    def inside(self) -> str:
        """The hinge loss has no curvature, but its dual is a quadratic program in a box, for steps of an interior point method:

        minimise z' Q z / 2 - sum z,  0 <= z <= w,  y . z = 0 if b is free, which is its multiplier;  c = y z = lam beta
        """
        points, free = self.points, self.points.offset and not self.points.ridge
        on = np.flatnonzero(points.w > 0)
        y, w = points.y[on], points.w[on]
        Q = self.K[np.ix_(on, on)] / self.lam
        if points.ridge:
            Q = Q + 1 / points.ridge
        Q *= y
        Q *= y[:, None]
        if free and (y == y[0]).all():  # a constant has no loss at all
            self.b = 2.0 * float(y[0])
            self.keep(np.full(self.n, self.b))
        z, b = 0.5 * w, 0.0
        s = u = np.full(len(on), 1.0 + float(np.abs(Q @ z).mean()))
        while self.steps < STEPS:
            c = y * z
            self.beta = np.zeros(self.n)
            self.beta[on] = c / self.lam
            self.b = b if free else float(c.sum()) / points.ridge if points.ridge else 0.0
            self.keep(self.K @ self.beta + self.b)
            if (status := self.tell()) is not None:
                return status
            at = _Inside(Q, y, free, z, w - z, s, u, 1 - Q @ z - b * y + s - u)
            try:
                dz, db, ds, du = at.step()
            except (linalg.LinAlgError, ValueError, ArithmeticError):  # singular, not finite, or its products are 0
                break
            rate = at.reach(dz, ds, du)
            if not rate > 1e-8:
                break
            z, b, s, u = z + rate * dz, b + rate * db, s + rate * ds, u + rate * du
            if not (np.isfinite(z).all() and (z > 0).all() and (z < w).all()):
                break
        return "rounding"

    def objective(self, loss: Loss, t: np.ndarray, beta: np.ndarray, b: float) -> float:
        square = float(beta @ (t - b))  # beta' K beta
        points = self.points
        return float(points.w @ loss.value(points.y, t)) + 0.5 * self.lam * square + 0.5 * points.ridge * b * b

    def step(self, t: np.ndarray) -> float:
        """One Newton step with a line search; by how much the objective fell."""
        points, n = self.points, self.n
        c = points.pull(self.loss, t)
        H = points.w * self.loss.curvature(points.y, t)
        if points.offset:  # where no point has a curvature the output bias would be lost
            H = np.maximum(H, 1e-12 * max(float(H.max()), float(points.w.max())))
        A = self.lam * np.eye(n) + H[:, None] * self.K
        right = c - self.lam * self.beta
        slope_b = 0.0
        if points.offset:
            # Both divided by lam, or by what is larger, so that rows are of one size.
            unit = max(self.lam, points.ridge)
            row = np.append(np.full(n, -self.lam / unit), points.ridge / unit)
            A = np.vstack([np.hstack([A, H[:, None]]), row])
            right = np.append(right, (self.lam * float(self.beta.sum()) - points.ridge * self.b) / unit)
            slope_b = float(c.sum()) - points.ridge * self.b
        try:
            move = np.linalg.solve(A, right)
        except np.linalg.LinAlgError:
            move = np.linalg.lstsq(A, right, rcond=None)[0]
        d, db = (move[:n], float(move[n])) if points.offset else (move, 0.0)
        moved = self.K @ d
        model = -float((c - self.lam * self.beta) @ moved) - slope_b * db
        before = self.objective(self.loss, t, self.beta, self.b)
        rate = 1.0
        while rate > 1e-10:
            beta, b = self.beta + rate * d, self.b + rate * db
            reached = self.objective(self.loss, t + rate * (moved + db), beta, b)
            if reached <= before + ARMIJO * rate * min(model, 0.0) + 1e-15 * abs(before):
                self.beta, self.b = beta, b
                return before - reached
            rate /= 2
        return 0.0

    # ------------------------------------------------------------------ results

    def shown(self) -> tuple[float, float]:
        low, high = np.ldexp([self.lower / self.problem.total, self.upper / self.problem.total], 2 * self.problem.power)
        return max(float(low), 0.0), float(high)

    def certificate(self, status: str) -> Certificate:
        entered = self.problem
        if math.isinf(self.upper):  # interrupted before the first step
            self.keep(self.K @ self.beta + self.b)
        n = len(entered.door.X)
        if self.n < n:
            status, self.upper = status if status == "interrupted" else "time-limit", self.above_all(*self.best)
            b = constant(entered.points, self.loss)
            flat = self.above_all(np.zeros(self.n), b)
            if not self.upper <= flat:
                self.upper, self.best = flat, (np.zeros(self.n), b)
        (some, b), power = self.best, power_of(self.dual)
        beta, dual = np.zeros(n), np.zeros(n)
        beta[self.rows], dual[self.rows] = some, self.dual
        with np.errstate(over="ignore", under="ignore"):
            alpha = np.ldexp(beta, entered.power - 2 * entered.door.shift)
            low = float(np.ldexp(self.lower / entered.total * (1 - 8 * EPS), 2 * entered.power))
            high = float(np.ldexp(self.upper / entered.total * (1 + 8 * EPS), 2 * entered.power))
        high = max(high, math.ulp(0.0)) if self.upper > 0 else high  # below the least float it is still no 0
        if not (np.isfinite(alpha).all() and math.isfinite(high)) or (np.abs(alpha[beta != 0]) < 1e-290).any():
            raise InputError(
                f"{entered.door.data.name}: the sizes of X and y are beyond what floats hold; rescale them"
            )
        return entered.door.certificate(
            "f2-optimum",
            (max(low, 0.0), high),
            np.ldexp(dual, -power),
            degree=0,
            convention="objective",
            stopped="" if status in ("certified", "rounding") else status,
            extra=entered.saved(b, power) | {"kernel": "relu", "alpha": alpha.tolist()},
            stats={"steps": self.steps} | ({"points": self.n} if self.n < n else {}),
        )


class _Inside:
    """A point 0 < z < w of the program of `inside`, room = w - z, with the multipliers s, u > 0 of its two sides; `rest` is what
    is missing in the condition Q z - 1 + b y = s - u."""

    def __init__(
        self,
        Q: np.ndarray,
        y: np.ndarray,
        free: bool,
        z: np.ndarray,
        room: np.ndarray,
        s: np.ndarray,
        u: np.ndarray,
        rest: np.ndarray,
    ):
        self.Q, self.y, self.free, self.z, self.room, self.s, self.u, self.rest = Q, y, free, z, room, s, u, rest

    def step(self) -> tuple[np.ndarray, float, np.ndarray, np.ndarray]:
        """Mehrotra's: a step straight to the end shows how far to aim, and what the products of its parts add."""
        self.factor = linalg.cho_factor(self.Q + np.diag(self.s / self.z + self.u / self.room))
        self.solved = linalg.cho_solve(self.factor, self.y)
        dz, _, ds, du = self.towards(np.zeros_like(self.z), np.zeros_like(self.z))
        rate, pairs = self.reach(dz, ds, du), 2 * len(self.z)
        now = float(self.s @ self.z + self.u @ self.room) / pairs
        then = (
            float((self.s + rate * ds) @ (self.z + rate * dz) + (self.u + rate * du) @ (self.room - rate * dz)) / pairs
        )
        aim = now * (then / now) ** 3
        return self.towards(aim - dz * ds, aim + dz * du)

    def towards(self, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, float, np.ndarray, np.ndarray]:
        """The step after which z s and room u are `low` and `high`, to first order."""
        low, high = low / self.z - self.s, high / self.room - self.u
        dz = linalg.cho_solve(self.factor, self.rest + low - high)
        db = float(self.y @ (dz + self.z)) / float(self.y @ self.solved) if self.free else 0.0
        dz = dz - db * self.solved
        return dz, db, low - self.s / self.z * dz, high + self.u / self.room * dz

    def reach(self, dz: np.ndarray, ds: np.ndarray, du: np.ndarray) -> float:
        """How far a step stays inside, at most 1."""
        falls = np.concatenate([-dz / self.z, dz / self.room, -ds / self.s, -du / self.u])
        return min(1.0, 0.995 / max(float(falls.max()), 1e-300))
