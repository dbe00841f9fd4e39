"""Ascents of the smooth margin over weights on fixed features, with the best margin so far (CB-13, CB-17)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from .. import losses
from ..contract import Rule, State
from ..nets import Net, Params
from ..problem import Problem
from .steps import guard, mean_field, move, require, slopes, tick_log


@dataclass(frozen=True, kw_only=True)
class FeatureState(State):
    size: Tensor  # (B,) |z|_inf
    beta: Tensor  # (B,) the norm of a at the last step
    best: Tensor  # (B,) max_{s < t} min_i z_i . abar(s), which the bound of the proposition concerns


F = TypeVar("F", bound=FeatureState)


@dataclass(frozen=True)
class FeatureAscent(Rule[F]):
    """What the ascents of CB's Propositions 6 and 7 share: one trained parameter r, exponential loss, |z|_inf, best margin."""

    title = ""
    degree = 0
    needs = ""

    def check(self, problem: Problem) -> None:
        net = problem.net
        require(problem.loss == losses.EXP, f"{self.title} is about the exponential loss; give loss exp")
        alone = len(net.trained) == 1 and net.trained[0] != "V" and net.outputs == 1 and net.degree == self.degree
        require(alone, f"{self.title} trains {self.needs}, not a network of kind {net.name}")

    def init(self, problem: Problem, W: Params) -> F:
        begun = super().init(problem, W)
        zero = begun.t_cb
        size = feature_size(problem, W)
        return FeatureState(**vars(begun), size=size, beta=zero + 1, best=zero - torch.inf)  # type: ignore[return-value]

    def pace(self, net: Net, W: Params, state: F, root: Tensor) -> tuple[Tensor, Tensor]:
        """beta(t) and the factor of grad F (B,), root = sqrt(t + 1)."""
        raise NotImplementedError

    def summed(self, after: F, beta: Tensor, root: Tensor) -> F:
        """The state after a step, with the sums that a rule has besides."""
        return after

    def step(self, problem: Problem, W: Params, state: F) -> tuple[Params, F]:
        p, saved = problem.look(W)
        weights, log_risk = slopes(problem, p, "soft_margin")
        root = (state.taken + 1).to(p.dtype).sqrt()
        beta, rate = self.pace(problem.net, W, state, root)
        moved = move(W, problem.pull(W, weights, saved), rate)
        after = replace(
            tick_log(state, rate.log() - log_risk, log_risk, rate),
            beta=beta,
            best=torch.maximum(state.best, p.amin(1) / beta),
        )
        return guard(W, state, moved, self.summed(after, beta, root), log_risk)

    def bound(self, problem: Problem, state: F, gamma: float | Tensor) -> Tensor:
        """The right-hand side for `best` (B,), from the best margin gamma of the features."""
        raise NotImplementedError


def feature_size(problem: Problem, W: Params) -> Tensor:
    """max_ij |z_ij| (B,), z_ij the features of the trained parameter, read from the pull-back of single points at r = 1."""
    net = problem.net
    (name,) = net.trained
    ones = W | {name: torch.ones_like(W[name])}
    saved = problem.look(ones)[1]
    size = W[name].new_zeros(len(W[name]))
    for i in range(problem.n):
        pick = W[name].new_zeros(len(W[name]), problem.n)
        pick[:, i] = 1
        size = torch.maximum(size, problem.pull(ones, pick, saved)[name].flatten(1).abs().amax(1))
    return size / (net.degree / (net.m if mean_field(net) else 1))
