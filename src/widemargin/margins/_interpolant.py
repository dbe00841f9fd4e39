"""The solver behind `min_norm_l1`: column generation between an interpolating network and a dual that a tree proves.

With g = 1 / norm the problem reads like a margin,

    g = max { t : f(x_i) = t y_i, |f| <= 1 } = min { max_{|v| = 1} |sum_i q_i relu(v . x_i)| : q . y = 1 },

so the phases are those of the F1 solver: a linear program over neurons that prices near its best dual, then cone
programs over activation patterns, then the branch-and-bound tree. Any q with q . y = 1 and any network with the right
values are bounds. A network of a numerical solver has the right values up to 1e-8; a fixed `frame` of n neurons whose
features form a well-conditioned matrix takes up the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy import linalg

from widemargin.pricing import search, signs, writing
from widemargin.pricing.points import opposite_pairs, reduce_rank

from . import _prune, _socp
from ._columns import column_lp

STARTS = 256  # local searches per side and round
PATTERNS = 120  # patterns in a cone program
CONE_LIMIT = 1e6  # points * dimensions * patterns of a cone program: about 5 seconds
MAX_NODES = 300_000  # of one tree: beyond that its proof takes longer to write down than to find
CELLS = 400  # points in a plane up to which all activation patterns are listed
CENTRE = 0.7  # weight of the best dual so far in the point where the linear program prices
Tell = Callable[[float, float, str], None]


class Solver:
    """X (n, D) free points (no relation among them), entries about 1; y (n,) targets, largest in [1/2, 1).

    The proof is written for the points 2^shift X.
    """

    def __init__(self, X: np.ndarray, y: np.ndarray, shift: int, tol: float, seed: int, deadline: float, tell: Tell):
        self.X0, self.y, self.tol, self.deadline, self.tell = X, y, tol, deadline, tell
        self.curved = abs(shift) < 20  # quadratic bounds are written as integers in the units of the data
        self.scale = 2.0**shift if self.curved else 1.0  # linear ones do not depend on them
        self.started = time.perf_counter()
        self.rng = np.random.default_rng(seed)
        self.X, self.basis = reduce_rank(X)  # (n, r), (D, r)
        self.n, self.r = self.X.shape
        self.Xt = torch.as_tensor(self.X)
        self.mirrors = opposite_pairs(X)
        self.cells = cells(self.X) if self.r <= 2 and self.n <= CELLS else None  # (k, r), or None
        self.norm = np.inf  # of the best network, theta (m, r) and mass (m,)
        self.theta, self.mass = np.zeros((0, self.r)), np.zeros(0)
        self.bound, self.q = np.inf, np.zeros(self.n)  # a proved maximum at q, with q . y = 1
        self.logs: tuple[Any, ...] = ()
        self.centre, self.estimate = np.zeros(self.n), np.inf
        self.V, self.s = np.zeros((0, self.r)), np.zeros(0)  # neurons met, one per pattern and sign
        self.patterns = np.zeros(
            (0, self.n), dtype=bool
        )  # theirs when they were met: V moves, also to a cone's boundary
        self.seen: dict[bytes, int] = {}  # pattern and sign -> the neuron that stands for it
        self.outside = np.zeros(0, dtype=bool)  # which of the neurons the last cone program did without,
        self.recalled: set[int] = set()  # and those that it should not have
        self.support, self.fresh = np.zeros(0, dtype=int), 0
        self.rounds = self.nodes = 0
        self.status = "stalled"

    def run(self) -> None:
        try:
            self.frame = make_frame(self.X, self.rng)
            size = np.linalg.norm(self.X, axis=1)
            self.inverse, self.condition = invert(relu(self.X / size[:, None], self.frame))
            self.inverse = self.inverse / size
            if not self.condition < 1e13:
                self.status = "rounding"
                return
            self.offer(np.zeros((0, self.r)), np.zeros(0))
            self.lp, self.columns, self.known = column_lp(self.n, self.y / self.norm), self.V, 0
            self.column_signs = self.s
            self.V = np.vstack([self.frame, self.frame])
            self.s = np.repeat([1.0, -1.0], len(self.frame))
            self.patterns = self.V @ self.X.T > 0
            if self.cells is not None:
                for s in (1.0, -1.0):
                    self.add(self.cells, s, len(self.cells))
            self.linear_phase(1.1, 60)
            stuck = 0
            while not self.closed() and not self.late() and stuck < 4:
                small = self.most() >= self.n + 10
                stuck = 0 if (self.pattern_round() if small else self.linear_round()) else stuck + 1
            if self.late():
                self.status = "time-limit"
            if not self.logs and self.centre.any():
                self.prove(self.centre, self.estimate)  # out of time: the bound of the tree's root
        except KeyboardInterrupt:
            self.status = "interrupted"
        if self.closed():
            self.status = "certified"

    def closed(self) -> bool:
        return self.norm * self.bound <= 1 + self.tol * (1 - 1e-9)

    def late(self) -> bool:
        return time.perf_counter() > self.deadline

    def left(self) -> float:
        return max(self.deadline - time.perf_counter(), 0.0)

    def say(self, message: str) -> None:
        self.rounds += 1
        self.tell(0.0 if np.isinf(self.bound) else 1 / self.bound, self.norm, message)

    # ------------------------------------------------------------------ both bounds

    def offer(self, V: np.ndarray, a: np.ndarray) -> None:
        """Keep the network sum_j a_j relu(v_j . x), V unit, if it is the smallest once the frame has made it exact."""
        values, correction = relu(self.X, V) @ a, np.zeros(self.n)
        for _ in range(3):
            correction += self.inverse @ (self.y - values - relu(self.X, self.frame) @ correction)
        norm = float(np.abs(a).sum() + np.abs(correction).sum())
        if norm < self.norm:
            self.norm, self.theta, self.mass = norm, np.vstack([V, self.frame]), np.append(a, correction)

    def clean(self, q: np.ndarray) -> np.ndarray:
        """Tiny weights to zero (fewer branchings), and q . y = 1."""
        q = np.where(np.abs(q) > 1e-9 * np.abs(q).max(initial=0.0), q, 0.0)
        inner = q @ self.y
        return q / inner if inner > 0 else self.y / (self.y @ self.y)

    def offer_centre(self, q: np.ndarray, value: float) -> bool:
        better = value < self.estimate * (1 - 1e-5)
        if better:
            self.centre, self.estimate = q, value
        return better

    # ------------------------------------------------------------------ neurons

    def add(self, V: np.ndarray, s: float, most: int) -> int:
        """Take up to `most` of the unit neurons V (best first) whose pattern is new, or was left out of the last cone program."""
        taken: list[int] = []
        recalled = 0
        patterns = V @ self.X.T > 0
        for i, pattern in enumerate(patterns):
            key = np.packbits(pattern).tobytes() + (b"+" if s > 0 else b"-")
            at = self.seen.get(key, -1)
            if 0 <= at < len(self.outside) and self.outside[at] and at not in self.recalled:
                self.V[at] = V[i]
                self.recalled.add(at)
                recalled += 1
            elif at < 0 and pattern.any():
                self.seen[key] = len(self.V) + len(taken)
                taken.append(i)
            if len(taken) + recalled == most:
                break
        self.V, self.s = np.vstack([self.V, V[taken]]), np.append(self.s, np.full(len(taken), s))
        self.patterns = np.vstack([self.patterns, patterns[taken]])
        return len(taken) + recalled

    def search(self, q: np.ndarray, most: int) -> tuple[float, int]:
        """Local searches on both sides: the best value at q, and how many new patterns were taken."""
        best, new = 0.0, 0
        if self.cells is not None:
            return self.largest(q), 0
        starts = torch.as_tensor(np.vstack([self.rng.standard_normal((STARTS, self.r)), self.theta]))
        for s in (1.0, -1.0):
            V, value = search.ascend(self.Xt, torch.as_tensor(s * q), starts, 40)
            order = torch.argsort(-value)
            best = max(best, float(value[order[0]]))
            order = order[value[order] > (1 + 0.1 * self.tol) / self.norm]
            new += self.add(V[order].numpy(), s, most)
        return best, new

    def largest(self, q: np.ndarray) -> float:
        """max_{|v| <= 1} |sum_i q_i relu(v . x_i)| in the plane: at a gradient of a cell, or where a point vanishes."""
        assert self.cells is not None
        V = ((self.cells @ self.X.T > 0) * q) @ self.X
        if self.r == 2:
            V = np.vstack([V, -V, self.X[:, ::-1] * [1, -1], self.X[:, ::-1] * [-1, 1]])
        V = np.vstack([V, self.cells])
        V = V / np.linalg.norm(V, axis=1, keepdims=True).clip(1e-300)
        return float(np.abs(q @ relu(self.X, V)).max())

    # ------------------------------------------------------------------ phases

    def linear_phase(self, goal: float, rounds: int) -> None:
        stalled = 0
        for _ in range(rounds):
            new_V, new_s = self.V[self.known :], self.s[self.known :]
            self.add_columns(new_V, new_s)
            self.known = len(self.V)
            if self.late():
                return
            a, q = self.lp.solve(self.left())
            if not q.any():
                return
            if a.sum() > 0 and a.any():
                values = relu(self.X, self.columns) @ (a * self.column_signs)
                size = float(self.y @ self.y) / max(float(values @ self.y), 1e-300)
                on = a > 1e-9 * a.max()
                if np.isfinite(size) and size < 1e6 * self.norm:
                    self.offer(self.columns[on], (size * a * self.column_signs)[on])
            q = self.clean(q)
            point = q if np.isinf(self.estimate) else self.clean(CENTRE * self.centre + (1 - CENTRE) * q)
            value, new = self.search(point, 30)
            stalled = 0 if self.offer_centre(point, value) else stalled + 1
            self.say(f"linear program, {len(self.V)} neurons, estimate {1 / value if value else 0:.4f}")
            if self.estimate < goal / self.norm:
                return
            if new == 0:
                value, new = self.search(q, 30)
                self.offer_centre(q, value)
            if new == 0 or stalled >= 8:
                return

    def add_columns(self, V: np.ndarray, s: np.ndarray) -> None:
        self.lp.add(relu(self.X, V) * s)
        self.columns, self.column_signs = np.vstack([self.columns, V]), np.append(self.column_signs, s)

    def pattern_round(self) -> bool:
        """A cone program over the best patterns, then price at its dual. Whether anything new came of it."""
        chosen = self.choose()
        self.outside, self.recalled = np.ones(len(self.V), dtype=bool), set()
        self.outside[chosen] = False
        before, patterns = (self.norm, self.bound), self.patterns[chosen]
        target = self.y / self.norm  # so that gamma is about 1
        master = _socp.solve(self.X, target, patterns, self.s[chosen], interpolate=True, time_limit=self.left())
        q = self.centre
        if master.ok:
            size = np.linalg.norm(master.W, axis=1)
            moved = size > 1e-9 * size.max()
            V, s = master.W[moved] / size[moved, None], self.s[chosen[moved]]
            self.offer(V, size[moved] * s * self.norm / master.gamma if master.gamma > 0 else 0 * s)
            self.V[chosen[moved]] = V
            self.support = chosen[moved]
            self.add_columns(V, s)
            q = self.clean(master.q)
        value, new = self.search(q, 40)
        self.offer_centre(q, value)
        if value > 1.02 / self.norm:
            count = len(self.V)
            self.linear_phase(1.02, 12)
            new += len(self.V) - count
            if self.estimate < value:
                q, value = self.centre, self.estimate
        if (value < 1.02 / self.norm or new == 0) and not self.late():
            new += self.prove(q, value)
        self.say(f"{len(chosen)} patterns, {self.nodes} nodes, estimate {1 / value if value else 0:.6f}")
        return new > 0 or self.norm < before[0] * (1 - 1e-9) or self.bound < before[1] * (1 - 1e-9)

    def linear_round(self) -> bool:
        """For many points: linear programs only, then the tree at their best dual."""
        before, count = (self.norm, self.bound), len(self.V)
        self.linear_phase(1 + self.tol, 20)
        if not self.late():
            self.prove(self.centre, self.estimate)
        self.say(f"{len(self.V)} neurons, {self.nodes} nodes")
        better = self.norm < before[0] * (1 - 1e-9) or self.bound < before[1] * (1 - 1e-9)
        return better or len(self.V) > count

    def most(self) -> int:
        """How many patterns a cone program may have."""
        return int(min(max(PATTERNS, 2 * self.n, len(self.support) + 60), CONE_LIMIT / (self.n * self.r)))

    def choose(self) -> np.ndarray:
        value = self.s * (self.centre @ relu(self.X, self.V))
        value[list(self.recalled)] = np.finfo(float).max
        value[self.support] = np.inf
        value[self.fresh :] = np.inf
        self.fresh = len(self.V)
        if self.cells is not None:
            value[:] = np.inf  # all patterns there are
        most = len(value) if self.cells is not None else self.most()
        return np.sort(np.argsort(-value)[:most])

    def prove(self, q: np.ndarray, value: float) -> int:
        """Run the tree at q on both sides; keep the bound if it is the best, and take what it finds as new patterns."""
        size = float(np.abs(q).sum())
        if self.cells is not None and self.X0.shape[1] <= 2:
            if value < self.bound:
                self.bound, self.q, self.logs = value, q, ("enumeration",)
            return 0
        weights, new, logs, uppers = q / size, 0, [], []
        known = max(value, 1 / self.norm) / size
        early = self.left() > time.perf_counter() - self.started
        for side, s in enumerate((1.0, -1.0)):
            c, linear, _ = self.folded(s * weights)
            tree = signs.Tree(self.Xt, torch.as_tensor(c), None, torch.as_tensor(linear @ self.X))
            wait = self.left() / (2 - side) if np.isfinite(self.deadline) else 1e9
            give_up = min(self.bound, (1 + 10 * self.tol) / self.norm) / size if early else np.inf
            result = tree.run(
                known,
                0.3 * self.tol,
                deadline=time.monotonic() + 0.8 * wait,
                batch=1024,
                give_up=give_up,
                max_nodes=MAX_NODES,
                curved=self.curved,
            )
            self.nodes += result.nodes
            found = result.found.numpy()
            good = found[s * (q @ relu(self.X, found)) > (1 + 0.1 * self.tol) / self.norm]
            new += self.add(good, s, 40)
            logs.append(result.log)
            uppers.append(result.bound)
            known = max(known, result.value)
            if result.aborted:
                self.estimate = max(self.estimate, known * size) if q is self.centre else self.estimate
                return new
        if max(uppers) * size < self.bound:
            self.bound, self.q, self.logs = max(uppers) * size, q, tuple(logs)
        return new

    def folded(self, c: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weights with opposite points made one, c_j relu(-t) = c_j relu(t) - c_j t; of the linear rest; and the pairs.

        The tree needs some weight to branch on, so where nothing but a linear function is left the pairs stay apart.
        """
        whole, linear = c.copy(), np.zeros(self.n)
        i, j = self.mirrors.T
        linear[j] = c[j]
        whole[i], whole[j] = c[i] + c[j], 0.0
        return (whole, linear, self.mirrors) if whole.any() else (c, np.zeros(self.n), self.mirrors[:0])

    # ------------------------------------------------------------------ results

    def network(self) -> tuple[np.ndarray, np.ndarray]:
        """Unit directions (m, D) and masses of the best network, at most n atoms where that costs nothing."""
        Z = relu(self.X, self.theta) * np.sign(self.mass)
        light = _prune.prune_masses(Z, np.abs(self.mass))
        mass = np.sign(self.mass) * light
        rest = np.abs(self.inverse @ (self.y - relu(self.X, self.theta) @ mass)).sum()
        if light.sum() + rest > self.norm * (1 + 1e-9):
            mass = self.mass
        on = mass != 0
        theta = self.theta[on] @ self.basis.T
        return theta / np.linalg.norm(theta, axis=1, keepdims=True), mass[on]

    def proof(self, names: np.ndarray) -> tuple[dict[str, Any], np.ndarray, float]:
        """The proof as it is saved (`names` are the indices of the points in the data), its weights, the maximum."""
        if not self.logs:
            q = self.centre if self.centre.any() else self.y
            weights = q / np.abs(q).sum()
            return {"type": "norm"}, weights, self.norm_bound(weights)
        weights = self.q / float(np.abs(self.q).sum())
        if any(log is None for log in self.logs):
            return {"type": "omitted"}, weights, self.bound / float(np.abs(self.q).sum()) * (1 + 1e-12)
        if self.logs == ("enumeration",):
            slack = 1e-13 * float(np.abs(weights) @ np.linalg.norm(self.X0, axis=1))
            return {"type": "enumeration"}, weights, self.largest(weights) * (1 + 1e-12) + slack
        roots = np.zeros((0, self.X0.shape[1]), dtype=int)
        sides, most = [], 0.0
        for s, log in zip((1, -1), self.logs):
            c, linear, mirrors = self.folded(s * weights)
            side, bound = writing.write(log, self.X0, c, linear @ self.X0, roots, self.scale)
            side["points"] = names[side["points"]].tolist()
            sides.append(side | {"sign": s, "mirrors": names[mirrors].tolist()})
            most = max(most, bound)
        return {"type": "tree", "sides": sides}, weights, most

    def norm_bound(self, c: np.ndarray) -> float:
        """The bound of proof type `norm`, for weights of both signs: relu(t) = (t + |t|) / 2."""
        size = np.linalg.norm(self.X0, axis=1)
        bound = 0.5 * float(np.linalg.norm(c @ self.X0))
        bound += 0.5 * max(float(c.clip(0) @ size), float((-c).clip(0) @ size))
        return bound * (1 + 1e-12) + 1e-14 * float(np.abs(c) @ size)


def relu(X: np.ndarray, V: np.ndarray) -> np.ndarray:
    return (X @ V.T).clip(0)


def cells(X: np.ndarray) -> np.ndarray:
    """One unit vector per activation pattern of points X (n, r), r <= 2: the middle of each arc between two changes."""
    if X.shape[1] == 1:
        return np.array([[1.0], [-1.0]])
    angle = np.arctan2(X[:, 1], X[:, 0])
    turn = np.sort(np.concatenate([angle + np.pi / 2, angle - np.pi / 2]) % (2 * np.pi))
    turn = np.append(turn, turn[0] + 2 * np.pi)
    middle = (turn[1:] + turn[:-1]) / 2
    middle = middle[np.diff(turn) > 0]
    return np.stack([np.cos(middle), np.sin(middle)], axis=1)


def make_frame(X: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """n unit neurons whose features on X (n, r) are as independent as pivoted QR can pick from random candidates.

    Candidates: random directions, the points, and directions that vanish halfway between a point and its nearest
    neighbour (in angle), which tell close points apart.
    """
    n, r = X.shape
    size = np.linalg.norm(X, axis=1, keepdims=True)
    unit = X / size
    cosine = np.abs(unit @ unit.T)
    np.fill_diagonal(cosine, -1)
    nearest = np.argsort(-cosine, axis=1)[:, : min(2, n - 1)]  # (n, 0, 1 or 2)
    first = np.repeat(np.arange(n), nearest.shape[1])
    second = nearest.ravel()
    side = np.sign((unit[first] * unit[second]).sum(1))[:, None]
    middle = unit[first] + np.where(side == 0, 1.0, side) * unit[second]
    middle = np.vstack([middle, unit])
    middle /= np.linalg.norm(middle, axis=1, keepdims=True)
    W = rng.standard_normal((len(middle), r))
    W -= (W * middle).sum(1, keepdims=True) * middle
    V = np.vstack([unit, -unit, W, -W, rng.standard_normal((4 * n + 16, r))])
    length = np.linalg.norm(V, axis=1)
    V = V[length > 1e-9] / length[length > 1e-9, None]
    Z = relu(unit, V)
    Z = Z / np.linalg.norm(Z, axis=0).clip(1e-12)
    pivot = linalg.qr(Z, mode="r", pivoting=True)[1]
    return V[pivot[:n]]


def invert(B: np.ndarray) -> tuple[np.ndarray, float]:
    """The inverse of B (n, n) and its condition number; zero and infinity where B is singular."""
    try:
        inverse = np.linalg.inv(B)
    except np.linalg.LinAlgError:
        return np.zeros_like(B), np.inf
    condition = float(np.linalg.norm(B, 1) * np.linalg.norm(inverse, 1))
    return inverse, condition if np.isfinite(condition) else np.inf
