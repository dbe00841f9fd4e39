"""AdamW on the mean risk: Adam with decoupled weight decay."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ..contract import Rule
from ..nets import Params
from ..problem import Problem
from .adam import AdamState
from .steps import check_numbers, guard, require, slopes, tick


@dataclass(frozen=True)
class AdamW(Rule[AdamState]):
    """W <- (1 - lr weight_decay) W + lr m / (sqrt(v) + eps), m and v averages of the gradient and of its square, as in PyTorch.

    `beta1` and `beta2` are the rates of the averages; both are divided by 1 - beta^t. With `eps` = 0 an entry without a gradient
    does not move, and with beta1 = beta2 = 0 as well this is sign descent. `weight_decay` is decoupled: it does not enter the
    averages (`Adam` adds it to the gradient).

    >>> import torch
    >>> from widemargin import flows
    >>> from widemargin.types import Dataset
    >>> problem = flows.pose(flows.MLP(1, 1, depth=1), Dataset([[1.0]], [1.0]), "logistic")  # f(x) = w x, one point x = 1
    >>> W = {"W1": torch.ones(1, 1, 1, dtype=torch.float64)}
    >>> rule = flows.AdamW(lr=0.1, weight_decay=0.5)
    >>> after, state = rule.step(problem, W, rule.init(problem, W))
    >>> round(after["W1"].item(), 6)  # 1 - 0.05, and a first step of length lr
    1.05
    """

    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        check_numbers(self, above=("lr",), least={"beta1": 0, "beta2": 0, "eps": 0, "weight_decay": 0})
        require(self.beta1 < 1 and self.beta2 < 1, "AdamW: beta1 and beta2 must be below 1")

    def init(self, problem: Problem, W: Params) -> AdamState:
        begun = super().init(problem, W)
        zero = {name: torch.zeros_like(W[name]) for name in problem.net.trained}
        return AdamState(**vars(begun), first=zero, second=dict(zero), origin={})

    def step(self, problem: Problem, W: Params, state: AdamState) -> tuple[Params, AdamState]:
        p, saved = problem.look(W)
        weights, log_risk = slopes(problem, p)
        grads = problem.pull(W, weights, saved)
        count = (state.taken + 1).to(p.dtype)
        moved, firsts, seconds = dict(W), {}, {}
        for name in problem.net.trained:
            flat = (-1, *[1] * (W[name].ndim - 1))
            first = self.beta1 * state.first[name] + (1 - self.beta1) * grads[name]
            second = self.beta2 * state.second[name] + (1 - self.beta2) * grads[name] ** 2
            size = (second / (1 - self.beta2**count).view(flat)).sqrt() + self.eps
            mean = first / (1 - self.beta1**count).view(flat)
            ratio = torch.where(size > 0, mean / size.where(size > 0, 1), 0.0)
            moved[name] = (1 - self.lr * self.weight_decay) * W[name] + self.lr * ratio
            firsts[name], seconds[name] = first, second
        after = replace(tick(state, self.lr, log_risk), first=firsts, second=seconds)
        return guard(W, state, moved, after, log_risk)
