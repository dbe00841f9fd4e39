"""The examples of a step of stochastic descent."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..contract import State
from ..problem import Problem
from ..streams import FOR_EXAMPLES, Sampler, uniforms


def drawn(problem: Problem, state: State, batch: int, seed: int, sampler: Sampler | None) -> Problem:
    """The problem on `batch` examples for each trial, fresh from the law of a sampler or drawn from the data with replacement."""
    if sampler is not None:
        X, y = sampler(state.trial, state.taken, batch)
        return replace(problem, X=X.to(problem.X), y=y.to(problem.y))
    shares = uniforms(seed, FOR_EXAMPLES, state.trial, state.taken, batch)
    return picked(problem, (shares * problem.n).long().clamp_max(problem.n - 1))


def in_turn(problem: Problem, state: State, batch: int) -> Problem:
    """The problem on the next `batch` examples as they lie in the data."""
    places = state.taken[:, None] * batch + torch.arange(batch, device=state.trial.device)
    return picked(problem, places % problem.n)


def picked(problem: Problem, index: Tensor) -> Problem:
    """The problem on the points of these numbers (B, k)."""
    X = (
        problem.X[0][index]
        if len(problem.X) == 1
        else problem.X.gather(1, index[:, :, None].expand(-1, -1, problem.X.shape[2]))
    )
    y = problem.y[0][index] if len(problem.y) == 1 else problem.y.gather(1, index)
    return replace(problem, X=X, y=y)
