"""Ascent of the smooth margin S of all parameters, unnormalised, in CB's clock (CB-6)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from .. import losses
from ..contract import Rule, State
from ..nets import Params
from ..problem import Problem
from .steps import ascent_scale, check_numbers, guard, mass, move, require, slopes, tick_log


@dataclass(frozen=True)
class SmoothMarginAscent(Rule[State]):
    """CB's ascent, W <- W + (lr / sqrt(t + 1)) m grad S, t = 0, 1, ... (CB-6), in nets with or without the 1/m.

    `variant`: "paper" as above with the loss of the problem. "code" is what the authors ran: the exponential loss, steps
    lr / sqrt(t + 2) because their count starts at 1, and for the output layer alone a factor max(1, sqrt(mean_j b_j^2)).

    >>> import torch
    >>> from widemargin import flows
    >>> from widemargin.types import Dataset
    >>> problem = flows.pose(flows.MLP(1, 1, depth=1), Dataset([[1.0]], [1.0]), "exp")  # f(x) = w x, one point x = 1
    >>> W = {"W1": torch.zeros(1, 1, 1, dtype=torch.float64)}
    >>> rule = flows.SmoothMarginAscent(lr=0.5)
    >>> state = rule.init(problem, W)
    >>> for _ in range(2):
    ...     W, state = rule.step(problem, W, state)
    >>> round(W["W1"].item(), 6)  # 0.5 (1 + 1 / sqrt 2), since |grad S| = 1
    0.853553
    """

    lr: float = 0.5
    variant: str = "paper"

    def __post_init__(self) -> None:
        check_numbers(self, above=("lr",))
        require(
            self.variant in ("paper", "code"), f"SmoothMarginAscent: variant {self.variant!r} is not one of paper, code"
        )

    def check(self, problem: Problem) -> None:
        require(problem.loss is not None, "CB's ascent follows the smooth margin, which the squared loss does not have")
        if self.variant == "code":
            require(problem.loss == losses.EXP, "the authors' code of CB uses the exponential loss; give loss exp")

    def step(self, problem: Problem, W: Params, state: State) -> tuple[Params, State]:
        net = problem.net
        p, saved = problem.look(W)
        weights, log_risk = slopes(problem, p, "soft_margin")
        late = 2 if self.variant == "code" else 1
        rate = self.lr * ascent_scale(net) / (state.taken + late).to(p.dtype).sqrt()  # (B,)
        if self.variant == "code" and net.degree == 1:
            # sqrt(mean b^2) = sqrt(m) |a| for a = b / m
            size = [mass(net, W, name).flatten(1).norm(dim=1) for name in net.trained]
            rate = rate * (math.sqrt(net.m) * torch.stack(size).norm(dim=0)).clamp_min(1)
        moved = move(W, problem.pull(W, weights, saved), rate)
        return guard(W, state, moved, tick_log(state, rate.log() - log_risk, log_risk, rate), log_risk)
