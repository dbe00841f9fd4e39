"""Gradient descent with steps that grow as the risk falls."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..contract import Rule, State
from ..nets import Params
from ..problem import Problem
from .steps import ascent_scale, check_numbers, choose, guard, move, require, slopes, tick_log

FARTHEST = 1e300  # margins up to here can be summed over trials and points without overflow


@dataclass(frozen=True, kw_only=True)
class NormalizedGDState(State):
    h: Tensor  # (B,) next step, in CB's clock
    rejected: Tensor  # (B,) steps that were not taken


@dataclass(frozen=True)
class NormalizedGD(Rule[NormalizedGDState]):
    """W <- W + h grad S, that is GD with the step h / risk, h chosen so that the loss decreases (after Lyu and Li).

    Each trial has its own h, in CB's clock, starting at `lr`. A step that lowers ln risk by at least `decrease` times the
    first-order gain h |grad S|^2 is taken and h grows; otherwise the trial stays and h shrinks, so a call may move only some of
    the trials. `rejected` counts the others.

    `grow` and `shrink` are the factors of h after a step that was taken and after one that was not.

    >>> import torch
    >>> from widemargin import flows
    >>> from widemargin.types import Dataset
    >>> problem = flows.pose(flows.MLP(1, 1, depth=1), Dataset([[1.0]], [1.0]), "exp")  # f(x) = w x, one point x = 1
    >>> W = {"W1": torch.zeros(1, 1, 1, dtype=torch.float64)}
    >>> rule = flows.NormalizedGD(lr=0.5)
    >>> after, state = rule.step(problem, W, rule.init(problem, W))
    >>> after["W1"].item(), round((state.h / 0.5).item(), 6) == round(2**0.2, 6)  # |grad S| = 1; the next step is longer
    (0.5, True)
    """

    lr: float = 0.5
    grow: float = 2**0.2
    shrink: float = 0.5
    decrease: float = 0.1

    def __post_init__(self) -> None:
        check_numbers(self, above=("lr", "shrink"), least={"grow": 1, "decrease": 0})
        require(self.shrink < 1 and self.decrease < 1, "NormalizedGD: shrink and decrease must be below 1")

    def check(self, problem: Problem) -> None:
        require(
            problem.loss is not None, "normalised GD follows the smooth margin, which the squared loss does not have"
        )

    def init(self, problem: Problem, W: Params) -> NormalizedGDState:
        begun = super().init(problem, W)
        h = begun.t_cb + self.lr * ascent_scale(problem.net)
        return NormalizedGDState(**vars(begun), h=h, rejected=torch.zeros_like(begun.taken))

    def step(self, problem: Problem, W: Params, state: NormalizedGDState) -> tuple[Params, NormalizedGDState]:
        p, saved = problem.look(W)
        weights, log_risk = slopes(problem, p, "soft_margin")
        grads = problem.pull(W, weights, saved)
        h = state.h  # (B,)
        moved = move(W, grads, h)
        _, new_risk = slopes(problem, problem.margins(moved))
        gain = h * sum((grad.flatten(1) ** 2).sum(1) for grad in grads.values())
        noise = 8 * torch.finfo(h.dtype).eps * (1 + log_risk.abs())  # what rounding does to ln risk
        # A step to margins beyond floating point is none: the trial stays where it can still be measured.
        good = (log_risk - new_risk >= self.decrease * gain - noise) & (new_risk > -FARTHEST)
        after = tick_log(state, h.log() - log_risk, log_risk, h)
        after = replace(
            after,
            t_cb=torch.where(good, after.t_cb, state.t_cb),
            log_t_mean=torch.where(good, after.log_t_mean, state.log_t_mean),
            taken=torch.where(good, after.taken, state.taken),
            h=torch.where(good, h * self.grow, h * self.shrink),
            rejected=state.rejected + (~good),
        )
        moved = {name: new if new is W[name] else choose(good, new, W[name]) for name, new in moved.items()}
        return guard(W, state, moved, after, log_risk)
