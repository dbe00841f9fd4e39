"""Weights at which trees over signs prove more: both sides grow together, and the weights move to where the largest leaf is low.

The weights of the best network make the *maximum* of the pricing problem least. A tree that is far above the maximum has a lower
bound at other weights. On a node of given signs the quadratic bound (`moments`) is a convex function of the weights c,
homogeneous of degree one, because it is a maximum of functions that are linear in c: at moments (m, V) of v, with
t_i = x_i . m and q_i = x_i' V x_i, its slope in c_i is

    (t_i + sqrt(q_i)) / 2 (free),   t_i (active),   0 (inactive),   max(0, t_i, (t_i + q_i / |x_i|) / 2) (c_i < 0).

So at the moments that solve the largest leaves of both sides these are cuts, as neurons are: relu(v . x_i) is the slope of a tree
that is finished. The weights come from

    maximise  gain(c)   where   cut . c <= most   for all cuts,      c in a box around the last ones, signs as they are,

and are kept if all leaves, bounded at them anew from where they were, prove more; else the box shrinks. Then the tree doubles.
Whatever weights it ends with, the bound is one at these weights: nothing is asked of cuts but that they help.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from .moments import LoggedQuadraticBounds, QuadraticBounds, Splitting, concatenate, relaxation
from .points import ACTIVE, FREE, INACTIVE, Points, Priced, Terms
from .signs import CPU_BYTES, GPU_SHARE, RECORD_BYTES, WRITING, Log

MOVES = 2  # tries to move the weights between two doublings of the trees; 3 left less time for nodes, and ended higher
FIRST_MOVES = 15  # at the roots, where they cost next to nothing
CUTS = 300  # largest leaves of a side, and neurons, that are cuts in a move
BOX, LEAST_BOX = 0.2, 0.01  # relative half width of the box, at first and at the least
SMALL = 0.3  # of the mean weight: that much smaller ones may move like
LIGHTEST = (
    1e-6  # of the largest weight: lighter points get that much, so that trees are over the same points all the time
)
ROUNDING = 1e-2  # tolerance that is enough for the bounds of a tree that is far off


@dataclass
class Goal:
    """What is asked of the weights c (n,): the most that they prove.

    `worth(c, bound)` is what they prove if the bound of both sides holds. `slopes(c)` are the first derivative (n,) and minus the
    second (n,) of the gain, concave, of weights whose bound is at most `most`; minus `coupling` / 2 times the square of their sum
    comes on top. `mend(c)` are weights near c that may be used.
    """

    worth: Callable[[np.ndarray, float], float]
    slopes: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    mend: Callable[[np.ndarray], np.ndarray]
    most: float
    wanted: float  # more need not be proved
    high: np.ndarray  # (n,) largest |c_i|
    balanced: bool = False  # whether their sum is 0
    coupling: float = 0.0


def margin_goal(points: Points, wanted: float) -> Goal:
    """The least bound over all weights c = q y, q >= 0 with sum one; it need not be below `wanted`."""

    def mend(c: np.ndarray) -> np.ndarray:
        q = np.abs(c)
        if points.symmetry is not None:
            q = points.symmetry.average(q)
        return np.sign(c) * q / q.sum()

    high = np.full(points.n, np.inf)
    return Goal(lambda c, bound: 1 / bound, lambda c: (np.sign(c), 0 * c), mend, 1.0, 1 / wanted, high)


class Side:
    """The leaves of one side's tree, and the tree itself."""

    def __init__(self, points: Points, sign: float, c: np.ndarray):
        self.points, self.sign, self.nodes = points, sign, 1
        self.weigh(c)
        device = points.device
        self.signs = torch.full((1, self.terms.positive), FREE, dtype=torch.int8, device=device)
        self.state = self.moments.start()
        self.U, self.ids = points.Xt.new_full((1,), torch.inf), torch.zeros(1, dtype=torch.long, device=device)
        self.v = points.Xt.new_zeros(1, points.r)
        root = torch.tensor([-1])
        self.parent, self.branch, self.to = [root], [root], [root]
        self.shown: list[tuple[Tensor, LoggedQuadraticBounds]] = []
        self.recorded = True  # until the record is too large

    def weigh(self, c: np.ndarray) -> None:
        """Let the weights be c."""
        points = self.points
        roots = points.tensor(points.roots @ points.basis) if len(points.roots) else None
        self.terms = Terms(points.Xt, points.tensor(self.sign * c), roots)
        self.moments = relaxation(self.terms, ROUNDING, np.inf)

    def solve(self, leaves: Tensor, steps: int, beat: Callable[[], None]) -> tuple[QuadraticBounds, Tensor, Tensor]:
        """Bounds, states and directions of `leaves`, in batches."""
        parts = []
        for some in leaves.split(65536 if self.U.is_cuda else 256):
            parts.append(self.moments.solve(self.signs[some], self.state[some], steps))
            beat()
        bounds, states, directions = zip(*parts)
        return concatenate(list(bounds)), torch.cat(states), torch.cat(directions)

    def top(self) -> float:
        return float(self.U.max())

    def cuts(self, bound: Tensor, state: Tensor) -> np.ndarray:
        """Slopes (k, n) in the weights of the bounds of the largest leaves, scaled to meet them; 0 for points without weight."""
        terms, p, r = self.terms, self.terms.positive, self.points.r
        most = torch.topk(bound, min(CUTS, len(bound))).indices
        signs, state, bound = self.signs[most], state[most].to(terms.X.dtype), bound[most]
        if isinstance(self.moments, Splitting):
            Z = self.moments.near(state)
            unit = terms.unit[: len(terms.c)]
            t, q = Z[:, :r, r] @ unit.T, ((unit @ Z[:, :r, :r]) * unit).sum(2)  # (k, n')
        else:
            mean, square = state.chunk(2, 1)
            n = len(terms.c)
            t, q = mean[:, :n] / terms.size[:n], square[:, :n] / terms.size[:n] ** 2
        free = (t[:, :p] + q[:, :p].clamp_min(0).sqrt()) / 2
        fixed = torch.where(signs == ACTIVE, t[:, :p], 0.0)
        negative = torch.maximum(t[:, p:], (t[:, p:] + q[:, p:]) / 2)
        slope = (
            torch.cat([torch.where(signs == FREE, free, fixed), negative], 1).clamp_min(0) * terms.size[: len(terms.c)]
        )
        value = slope @ terms.c
        slope = slope * torch.where(value > 0.5 * bound, bound / value, 1.0)[:, None]
        cut = slope.new_zeros(len(slope), self.points.n)
        cut[:, terms.points] = self.sign * slope
        return cut.cpu().numpy()

    def grow(self, count: int, beat: Callable[[], None]) -> None:
        """Two nodes in place of each of the `count` largest leaves that have a free point."""
        free = self.signs == FREE
        U = torch.where(free.any(1), self.U, -torch.inf)
        top = torch.topk(U, min(count, len(U))).indices
        top = top[U[top] > -torch.inf]
        mean, square = self.moments.moments(self.state[top])
        # Where the relaxation is most undecided about the sign of t.
        score = self.terms.cp * self.terms.rp * (square - mean**2).clamp_min(1e-12).sqrt()
        branch = torch.where(free[top], score, -torch.inf).argmax(1)
        keep = torch.ones(len(U), dtype=torch.bool, device=U.device)
        keep[top] = False
        kept, k = int(keep.sum()), len(top)
        parents, twice = self.ids[top].repeat(2), top.repeat(2)
        fresh = torch.arange(self.nodes, self.nodes + 2 * k, device=U.device)
        to = torch.cat([torch.full_like(branch, ACTIVE), torch.full_like(branch, INACTIVE)])
        for name, new in (("signs", None), ("state", None), ("U", None), ("v", None), ("ids", fresh)):
            old = getattr(self, name)
            setattr(self, name, torch.cat([old[keep], old[twice] if new is None else new]))
        young = torch.arange(kept, kept + 2 * k, device=U.device)
        self.signs[young, branch.repeat(2)] = to.to(torch.int8)
        self.nodes += 2 * k
        for record, new in ((self.parent, parents), (self.branch, branch.repeat(2)), (self.to, to)):
            record.append(new.cpu())
        bounds, self.state[young], self.v[young] = self.solve(young, self.moments.steps, beat)
        better = torch.nonzero(
            bounds.bound < self.U[young]
        ).flatten()  # else what holds for the parent holds for its part
        self.record(self.ids[young[better]], bounds, better)
        self.U[young] = torch.minimum(self.U[young], bounds.bound)

    def record(self, ids: Tensor, bounds: QuadraticBounds, chosen: Tensor) -> None:
        if self.recorded:
            self.shown.append((ids.cpu(), bounds.log(chosen)))
            self.recorded = sum(8 * (entry.a.numel() + entry.b.numel()) for _, entry in self.shown) < RECORD_BYTES

    def bytes(self) -> int:
        return sum(array.element_size() * array.numel() for array in (self.signs, self.state, self.U, self.v, self.ids))

    def priced(self) -> Priced:
        value = (self.v @ self.terms.X.T).clamp_min(0) @ self.terms.c / self.v.norm(dim=1).clamp_min(1e-300)
        best = torch.topk(value, min(400, len(value))).indices
        v = self.v[best] / self.v[best].norm(dim=1, keepdim=True).clamp_min(1e-300)
        log = None
        if self.recorded:
            none = torch.zeros(self.nodes, len(self.terms.rows), dtype=torch.float64)
            log = Log(self.terms.points.cpu(), self.parent, self.branch, self.to, [none], self.shown)
        return Priced(float(value.max()), self.top(), self.nodes, v, log)


@dataclass
class Own:
    """The trees of both sides, the weights c (n,) that they are at, and what these prove."""

    points: Points
    goal: Goal
    c: np.ndarray
    deadline: float  # of time.monotonic
    neurons: np.ndarray  # (k, n) cuts that are there from the start
    sides: list[Side] = field(init=False)
    box: float = BOX
    pace: float = 0.0  # seconds of a node's bound
    moved: int = 0  # how often the weights did

    def __post_init__(self) -> None:
        self.sides = [Side(self.points, sign, self.c) for sign in (1.0, -1.0)]

    def run(self) -> None:
        """Grow and move until enough is proved, or the time or the memory is over."""
        if self.consider(self.c, self.sides[0].moments.root_steps)[0]:
            self.optimise(FIRST_MOVES)
        device = self.points.device
        memory = GPU_SHARE * torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else CPU_BYTES
        while not self.done() and sum(side.bytes() for side in self.sides) < memory:
            nodes = sum(side.nodes for side in self.sides)
            while sum(side.nodes for side in self.sides) < 2 * nodes and not self.done():
                side = max(self.sides, key=Side.top)
                before, began = side.nodes, time.monotonic()
                side.grow(min(nodes // 2, 16384 if device.type == "cuda" else 256), self.beat)
                if side.nodes == before:
                    return  # the largest leaf has no free point
                self.pace = (time.monotonic() - began) / (side.nodes - before)
            self.stretch()
            self.optimise(MOVES)

    def beat(self) -> None:
        if self.points.beat is not None:
            self.points.beat()

    def bound(self) -> float:
        return max(side.top() for side in self.sides)

    def done(self) -> bool:
        writing = WRITING[1] * sum(side.nodes for side in self.sides if side.recorded)
        return self.goal.worth(self.c, self.bound()) >= self.goal.wanted or time.monotonic() + writing > self.deadline

    def optimise(self, moves: int) -> None:
        """Up to `moves` tries to move the weights, where there is time for them and as much again."""
        cuts, solver = [self.neurons, *(side.cuts(side.U, side.state) for side in self.sides)], self.sides[0].moments
        for _ in range(moves):
            leaves = sum(len(side.U) for side in self.sides)
            if self.done() or time.monotonic() + 3 * self.pace * leaves > self.deadline:
                return
            before = self.goal.worth(self.c, self.bound())
            c, hoped = self.next(np.vstack(cuts))
            kept, new = self.consider(c, max(solver.steps, solver.root_steps // leaves))
            cuts += new
            if not kept:
                self.box /= 2
            elif self.goal.worth(self.c, self.bound()) - before > 0.5 * (hoped - before):
                self.box = min(1.0, 1.5 * self.box)
            self.moved += kept
            if self.box < LEAST_BOX:
                break
        self.box = max(self.box, LEAST_BOX)

    def stretch(self) -> None:
        """As a larger bound would do: larger weights, where they are worth more. Bounds and what shows them grow with them."""
        factor = self.goal.most / self.bound()
        c = self.goal.mend(factor * self.c)
        if (np.sign(c) != np.sign(self.c)).any() or not self.goal.worth(c, self.goal.most) > self.goal.worth(
            self.c, self.bound()
        ):
            return
        self.c = c
        for side in self.sides:
            side.weigh(c)
            side.U = factor * side.U
            side.shown = [(ids, entry.times(factor)) for ids, entry in side.shown]

    def consider(self, c: np.ndarray, steps: int) -> tuple[bool, list[np.ndarray]]:
        """All leaves at the weights c: whether these are kept, as they prove more, and cuts there."""
        if (np.sign(c) != np.sign(self.c)).any():
            return False, []  # trees over other points
        found, cuts, old = [], [], [(side.terms, side.moments) for side in self.sides]
        for side in self.sides:
            side.weigh(c)
            found.append(side.solve(torch.arange(len(side.U), device=side.U.device), steps, self.beat))
            cuts.append(side.cuts(found[-1][0].bound, found[-1][1]))
        bound = max(float(bounds.bound.max()) for bounds, _, _ in found)
        if self.goal.worth(c, bound) > self.goal.worth(self.c, self.bound()):
            self.c = c
            for side, (bounds, state, v) in zip(self.sides, found):
                side.U, side.state, side.v, side.shown = bounds.bound, state, v, []
                side.record(side.ids, bounds, torch.arange(len(side.U)))
            return True, cuts
        for side, (terms, moments) in zip(self.sides, old):
            side.terms, side.moments = terms, moments
        return False, cuts

    def next(self, cuts: np.ndarray) -> tuple[np.ndarray, float]:
        """The best weights in the box by the cuts (k, n), and what they would prove if those were all."""
        goal = self.goal
        centre = self.c * goal.most / self.bound()
        size = np.abs(centre)
        room = self.box * np.maximum(size, SMALL * size[size > 0].mean()) * (size > 0)
        lightest = LIGHTEST * size.max()
        low, high = np.maximum(size - room, np.minimum(lightest, size)), np.minimum(size + room, goal.high)
        low, high = np.minimum(low, high), np.maximum(low, high)
        sign = np.sign(centre)
        first, second = goal.slopes(centre)
        if goal.coupling:
            first = first - goal.coupling * centre.sum()
        largest = cuts[np.argsort(-(cuts @ centre))[: 3 * CUTS]]
        x = quadratic_program(
            sign * first, second, goal.coupling * np.outer(sign, sign), largest * sign / goal.most, low, high, size,
            sign if goal.balanced else None,
        )  # fmt: skip
        c = goal.mend(sign * np.clip(x, low, high))
        return c, goal.worth(c, float((largest @ c).max()))


def quadratic_program(
    first: np.ndarray,
    second: np.ndarray,
    coupling: np.ndarray,
    cuts: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    start: np.ndarray,
    balance: np.ndarray | None,
) -> np.ndarray:
    """Maximise first . x - (x - start)' (diag(second) + coupling) (x - start) / 2 where cuts x <= 1, low <= x <= high.

    If there is a `balance`, balance . x = 0. Approximate, and `start` where the solver fails.
    """
    import clarabel  # where used: the package must import on machines without it

    n, unit = len(first), float(start.mean())
    H = np.diag(second) + coupling
    worth = float(np.abs(first).max()) or 1.0  # so that all numbers are about 1
    P = sparse.triu(sparse.csc_matrix(H * unit / worth), format="csc")
    cost = -(first + H @ start) / worth
    eye = sparse.identity(n, format="csc")
    rows = [sparse.csc_matrix(cuts * unit), eye, -eye]
    sides = [np.ones(len(cuts)), high / unit, -low / unit]
    kinds = [clarabel.NonnegativeConeT(len(cuts) + 2 * n)]
    if balance is not None:
        rows, sides = [sparse.csc_matrix(balance[None]), *rows], [np.zeros(1), *sides]
        kinds = [clarabel.ZeroConeT(1), *kinds]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_threads = 1
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-6
    A = sparse.vstack(rows).tocsc()
    x = np.array(clarabel.DefaultSolver(P, cost, A, np.concatenate(sides), kinds, settings).solve().x) * unit
    return x if np.isfinite(x).all() else start
