"""The least objective of training two-layer ReLU networks of any width with weight decay, between a network and a proof."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import ArrayLike

from widemargin.kinds import labels_for_loss
from widemargin.margins.answers import solves
from widemargin.margins.engine import Progress, threads
from widemargin.types import Certificate, Dataset, check_device

from . import problem, several_outputs
from .solver import Solver

LARGE = 100_000  # entries of X from which more than one thread pays


@solves(labels_for_loss)
def f1(
    data: Dataset,
    *,
    loss: str = "logistic",
    weight_decay: float,
    bias: bool = False,
    output_bias: str | None = "free",
    weights: ArrayLike | None = None,
    tol: float = 1e-3,
    time_limit: float | None = 60.0,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Certificate:
    """The best that training with weight decay can reach, certified.

        P = min over networks f of  sum_i w_i loss(y_i, f(x_i) + b) / sum_i w_i + weight_decay |f|
          = max over c of  sum_i inf_t [w_i loss(y_i, t) + c_i t] / sum_i w_i,
                           |sum_i c_i relu(v . x_i)| <= weight_decay sum_i w_i  for all unit v

    over two-layer ReLU networks f of any width; |f| = sum_j |a_j| |v_j| is half the sum of the squares of all weights at the best
    scaling of the two layers, so that P is the least value of `mean loss + (weight_decay / 2) |weights|^2`. `bias`: the neurons
    have biases, which are decayed like other weights. `output_bias`: "free", "decayed" (weight_decay / 2 b^2), or None.
    Losses: logistic, squared (of any targets), hinge, squared-hinge, exp; docs/optima.md has all of them. cross-entropy: classes
    y = 0, ..., K-1 and networks with K outputs, |f| = sum_j |a_j| |v_j| with a_j in R^K; they are in extra["theta"] and
    extra["outer"], and the certificate is of kind f1-multiclass-optimum. Squared with y (n, K): K real targets for each point,
    |y_i - f(x_i)|^2 / 2, such networks, and kind f1-multitarget-optimum.

    `upper` is the objective of `primal` with the output bias extra["offset"]. `lower` is what `dual` proves. Stops when
    upper - lower <= tol * lower, at `time_limit` seconds, or on Ctrl-C, and returns both bounds as they are then.
    `progress(seconds, lower, upper, message)` is called after every round.

    Reference: Wei, Lee, Liu and Ma (2019), Section 3; Pilanci and Ergen (2020).

    `weights` w is (n,), all 1 where left out.

    >>> import widemargin as wm
    >>> one = wm.Dataset([[3.0, 4.0]], [1.0])  # min over t of (1 - t)^2 / 2 + t / |x|
    >>> cert = wm.optima.f1(one, loss="squared", weight_decay=1.0, bias=False, output_bias=None)
    >>> abs(cert.upper - 0.18) < 1e-3, cert.verify(one).ok
    (True, True)
    """
    check_device(device)
    entered = problem.enter(data, loss, weight_decay, bias, output_bias, weights, tol, time_limit)
    with threads_for(entered):
        return solver(entered, tol, seed, device, progress).run()


def solver(
    entered: problem.Problem | problem.SeveralProblem, tol: float, seed: int, device: str, progress: Progress | None
) -> Solver | several_outputs.Solver:
    if isinstance(entered, problem.SeveralProblem):
        return several_outputs.Solver(entered, tol, seed, device, progress)
    return Solver(entered, tol, seed, device, progress)


@contextmanager
def threads_for(entered: problem.Training) -> Iterator[None]:
    """As many threads as a problem of this size can use, and no warnings: steps that overflow are refused by line searches."""
    with threads(1 if entered.door.X.size < LARGE else torch.get_num_threads()), np.errstate(all="ignore"):
        yield
