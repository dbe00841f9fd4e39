"""Adam on the mean risk (BN-24)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ..contract import Rule, State
from ..nets import Net, Params
from ..problem import Problem
from .steps import check_numbers, guard, require, slopes, tick


@dataclass(frozen=True, kw_only=True)
class AdamState(State):
    first: Params  # averages of the gradients of the trained parameters, and of their squares
    second: Params
    origin: Params  # where those began that must stay nearby


@dataclass(frozen=True)
class Adam(Rule[AdamState]):
    """Adam on the mean risk, with what BN's Figure 1 asks for (BN-24).

    `only`: the parameters to train (all). `unit`: parameters kept on the unit sphere, each by its tangential gradient (Adam
    with the whole gradient and a projection would stop at sign-like directions); then the gradient is that of ln risk, which
    does not vanish beside `eps`, and `sharpness` times the margins enter it, so that the smallest of them count. `radius`:
    every trained parameter that is not in `unit` stays within this distance of its start.

    lr is the step, `beta1` and `beta2` are the rates of the averages of the gradient and of its square, `weight_decay` times W is
    added to the gradient. With `eps` = 0 an entry without a gradient does not move.

    >>> import torch
    >>> from widemargin import flows
    >>> from widemargin.types import Dataset
    >>> problem = flows.pose(flows.MLP(1, 1, depth=1), Dataset([[1.0]], [1.0]), "logistic")  # f(x) = w x, one point x = 1
    >>> W = {"W1": torch.zeros(1, 1, 1, dtype=torch.float64)}
    >>> rule = flows.Adam(lr=0.1)
    >>> after, state = rule.step(problem, W, rule.init(problem, W))
    >>> round(after["W1"].item(), 6)  # the first step has length lr
    0.1
    """

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    only: tuple[str, ...] = ()
    unit: tuple[str, ...] = ()
    sharpness: float = 1.0
    radius: float | None = None

    def __post_init__(self) -> None:
        check_numbers(self, above=("lr", "sharpness"), least={"beta1": 0, "beta2": 0, "eps": 0, "weight_decay": 0})
        require(self.beta1 < 1 and self.beta2 < 1, "Adam: beta1 and beta2 must be below 1")
        if self.radius is not None:
            check_numbers(self, least={"radius": 0})

    def names(self, net: Net) -> tuple[str, ...]:
        """The parameters that it trains."""
        return self.only or net.trained

    def check(self, problem: Problem) -> None:
        net = problem.net
        for name in (*self.only, *self.unit):
            known = ", ".join(net.trained)
            require(name in net.trained, f"Adam: {net.name} has no trained parameter {name!r}; choose among {known}")
        if self.sharpness != 1:
            require(
                problem.loss is not None, "Adam: sharpness multiplies margins, which the squared loss does not have"
            )

    def init(self, problem: Problem, W: Params) -> AdamState:
        begun = super().init(problem, W)
        names = self.names(problem.net)
        zero = {name: torch.zeros_like(W[name]) for name in names}
        held = [name for name in names if self.radius is not None and name not in self.unit]
        origin = {name: W[name].clone() for name in held}
        return AdamState(**vars(begun), first=zero, second=dict(zero), origin=origin)

    def step(self, problem: Problem, W: Params, state: AdamState) -> tuple[Params, AdamState]:
        p, saved = problem.look(W)
        weights, log_risk = slopes(
            problem, self.sharpness * p if self.sharpness != 1 else p, "soft_margin" if self.unit else "mean"
        )
        grads = problem.pull(W, self.sharpness * weights if self.sharpness != 1 else weights, saved)
        count = (state.taken + 1).to(p.dtype)
        moved, firsts, seconds = dict(W), {}, {}
        for name in self.names(problem.net):
            flat = (-1, *[1] * (W[name].ndim - 1))
            grad = grads[name] - self.weight_decay * W[name] if self.weight_decay else grads[name]
            if name in self.unit:
                here = W[name].flatten(1)
                along = (grad.flatten(1) * here).sum(1) / (here**2).sum(1).clamp_min(1e-300)
                grad = grad - along.view(flat) * W[name]
            first = self.beta1 * state.first[name] + (1 - self.beta1) * grad
            second = self.beta2 * state.second[name] + (1 - self.beta2) * grad**2
            mean = first / (1 - self.beta1**count).view(flat)
            size = (second / (1 - self.beta2**count).view(flat)).sqrt() + self.eps
            step = self.lr * mean / size
            if not self.eps:  # an entry that has had no gradient, as of a neuron that is off everywhere
                step = torch.where(size > 0, step, 0.0)
            new = W[name] + step
            if name in self.unit:
                new = new / new.flatten(1).norm(dim=1).view(flat)
            elif self.radius is not None:
                gone = new - state.origin[name]
                far = gone.flatten(1).norm(dim=1).view(flat)
                new = state.origin[name] + gone * (self.radius / far.clamp_min(max(self.radius, 1e-300)))
            moved[name] = new
            firsts[name], seconds[name] = first, second
        after = replace(tick(state, self.lr, log_risk), first=firsts, second=seconds)
        return guard(W, state, moved, after, log_risk)
