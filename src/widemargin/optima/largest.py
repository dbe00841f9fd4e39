"""The decay from which on the best network is constant."""

from __future__ import annotations

import dataclasses
import math
import time
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize

from widemargin.dataset import takes_data
from widemargin.kinds import labels_for_loss
from widemargin.margins.door import EPS, norm_bound
from widemargin.margins.engine import threads
from widemargin.pricing import several
from widemargin.types import Dataset, InputError, check_device

from . import problem, several_outputs
from .bounds import power_of
from .master import constant
from .outputs import GRID
from .solver import Solver


class Interval(NamedTuple):
    """A number between two: lower <= number <= upper, in the units of the number.

    >>> import widemargin as wm
    >>> decay = wm.optima.Interval(4.9, 5.0)
    >>> decay.lower <= 5.0 <= decay.upper
    True
    """

    lower: float
    upper: float


@takes_data(labels_for_loss)
def largest_decay(
    data: Dataset,
    *,
    loss: str = "logistic",
    bias: bool = False,
    output_bias: str | None = "free",
    weights: ArrayLike | None = None,
    tol: float = 1e-3,
    time_limit: float | None = 60.0,
    seed: int = 0,
    device: str = "cpu",
) -> Interval:
    """Two numbers with the largest decay between them: from it on the best network is the best constant, below it is not.

        largest decay = max over |v| = 1 of |sum_i c_i relu(v . x_i)| / sum_i w_i,   c_i = -w_i loss'(y_i, b), b the best constant

    `lower` is met by a neuron, `upper` is proved. (Where the hinge loss has its kink at the best constant c is not unique, and
    the least maximum counts.) For output_bias "free" or None; a decayed output bias has no such number (docs/optima.md).

    `weights` w is (n,), all 1 where left out.

    >>> import widemargin as wm
    >>> one = wm.Dataset([[3.0, 4.0]], [1.0])  # c = 1 and v along x: |x| = 5
    >>> found = wm.optima.largest_decay(one, loss="squared", bias=False, output_bias=None)
    >>> found.lower <= 5 * (1 + 1e-12) and 5 * (1 - 1e-12) <= found.upper
    True
    """
    if isinstance(output_bias, str) and output_bias == "decayed":
        raise InputError(
            "largest_decay needs output_bias 'free' or None: with a decayed one the best constant depends on the decay"
        )
    check_device(device)
    entered = problem.enter(data, loss, 1.0, bias, output_bias, weights, tol, time_limit)
    if isinstance(entered, problem.SeveralProblem):
        return _of_several(entered, tol, seed, device)
    with threads(1), np.errstate(all="ignore"):
        solver = Solver(entered, tol, seed, device, None)
        points, chosen = entered.points, entered.loss
        open_ = np.zeros(0, dtype=int)
        if loss == "hinge" and output_bias == "free":
            up, down = (float(points.w[points.y == s].sum()) for s in (1, -1))
            c = points.w * points.y
            if abs(up - down) > 4 * EPS * len(c) * (up + down):
                open_ = np.flatnonzero(points.y == (1 if up > down else -1))
                c[open_] *= min(up, down) / max(up, down)
        else:
            b = constant(points, chosen, 1e-14)
            c = points.pull(chosen, np.full(data.n, b))
        rest = abs(float(c.sum())) if output_bias == "free" else 0.0  # the slope that rounding left at b
        least = _least(solver, c, open_) if len(open_) else 0.0
        value = solver.search(c)
        value = value if math.isfinite(value) else 0.0  # no time for a search
        bounds = [norm_bound(entered.door.X, c)]
        for side, s in enumerate((1.0, -1.0) if solver.r and solver.can_begin() else ()):
            bounds = bounds if side else []
            share = max(solver.left(), 0.0) / (2 - side)
            priced = solver.price(c, s, known=value, tol=0.5 * tol, seconds=min(share, 1e9))
            value = max(value, priced.value * 2.0 ** power_of(c))
            bounds.append(priced.bound * 2.0 ** power_of(c))
    error = 2 * rest * float(entered.door.size.max()) + 1e-13 * float(np.abs(c) @ entered.door.size)
    low, high = (least if len(open_) else value) - error, max(bounds) + error
    unit = math.ldexp(1.0, entered.door.shift + entered.power) / entered.total
    return Interval(max(0.0, low * unit * (1 - 1e-14)), high * unit * (1 + 1e-14))


def _of_several(entered: problem.SeveralProblem, tol: float, seed: int, device: str) -> Interval:
    """The same with vectors g_i for c_i, minus the slopes of the losses at the best constant."""
    with threads(1), np.errstate(all="ignore"):
        solver = several_outputs.Solver(entered, tol, seed, device, None)
        points = entered.points
        if points.offset:
            solver.b = points.best_offset(np.zeros((solver.n, points.K)))
        q, power = points.dual_weights(solver.outputs())
        value, g = float(solver.search(q, power)[1][0]) if solver.r else 0.0, points.vectors(q)
        bound = several.norm(entered.door.X, g).upper
        if entered.door.X.shape[1] <= 2 and not solver.late():
            bound = several.enumeration(entered.door.X, g)[0].upper
        unscale = partial(entered.door.unscale, degree=1, up=True)
        until = min(entered.door.deadline, time.perf_counter() + 1e9)
        while bound > value * (1 + tol) and entered.door.X.shape[1] > 2 and not solver.late():
            higher = False
            for proof in several.price(solver.where, g, value * (1 + 0.5 * tol), until, solver.rng, unscale):
                bound = min(bound, proof.upper)
                near = proof.directions @ solver.basis if proof.directions.size else solver.V[:0]
                met = float(several.values(solver.X, g, near).max(initial=0.0))
                higher |= met > value * (1 + 0.5 * tol)
                value = max(value, met)
                if bound <= value * (1 + tol):
                    break
            if not higher or time.perf_counter() > until:
                break
    # q is on a grid: all vectors together are off by at most 4 n K steps of it.
    error = 2.0 ** -(GRID - 2) * points.K * solver.n * float(entered.door.size.max())
    unit = math.ldexp(1.0, entered.door.shift + entered.power + power) / entered.total
    return Interval(max(0.0, (value - error) * unit * (1 - 1e-14)), (bound + error) * unit * (1 + 1e-14))


def _least(solver: Solver, c: np.ndarray, open_: np.ndarray) -> float:
    """Make the largest |sum_i c_i relu(v . x_i)| as small as it can be with c_i, i in `open_`, between 0 and w_i y_i and of the
    same sum: c is changed, and what comes back is a bound from below.
    """
    w, y, total = solver.points.w[open_], solver.points.y[open_], float(c[open_].sum())
    V = np.zeros((0, solver.r))
    rest = np.where(np.isin(np.arange(len(c)), open_), 0.0, c)
    least = 0.0
    for _ in range(200):
        solver.points = dataclasses.replace(solver.points, lam=max(least, 1e-12 * float(np.abs(c) @ solver.size)))
        solver.V = np.zeros((0, solver.r))
        slope = solver.search(c)
        if slope <= least * (1 + 0.2 * solver.tol) or not len(solver.V) or solver.late():
            break
        V = np.vstack([V, solver.V])
        Z = (solver.X @ V.T).clip(0)  # (n, m)
        A, fixed = Z[open_].T * y, Z.T @ rest  # (m, k), (m,)
        bound = -np.ones((2 * len(V), 1))
        program = optimize.linprog(
            np.append(np.zeros(len(open_)), 1.0),
            np.hstack([np.vstack([A, -A]), bound]),
            np.append(-fixed, fixed),
            np.append(np.ones(len(open_)), 0.0)[None],
            [abs(total)],
            bounds=[(0, float(v)) for v in w] + [(0, None)],
            method="highs",
            options={"time_limit": min(max(solver.left(), 0.01), 1e6)},
        )
        if program.status != 0:
            break
        c[open_] = np.clip(program.x[:-1], 0, w) * y
        least = max(least, float(program.fun) * (1 - 1e-7))
    return least
