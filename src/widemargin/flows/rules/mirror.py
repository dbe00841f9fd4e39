"""The mirror form of product networks (UH-9)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from widemargin.errors import show

from ..contract import Rule, State
from ..nets import Params
from ..problem import Problem
from .steps import check_numbers, guard, move, require, slopes, tick_log


@dataclass(frozen=True, kw_only=True)
class MirrorState(State):
    log_u: Tensor  # (B, m)


@dataclass(frozen=True)
class Mirror(Rule[MirrorState]):
    """u = |a b| by exponentiated gradients, d ln u = -2 d(risk)/du, and the other parameters by plain ones (UH-9).

    Steps of length lr in CB's clock (clock="cb", risk replaced by ln risk) or in that of the mean risk (clock="mean"). Needs
    |a_j| = |b_j| at the start, which the flow keeps; ln u is kept in the state, so that u may be as small as it likes.

    >>> import torch
    >>> from widemargin import flows
    >>> from widemargin.types import Dataset
    >>> problem = flows.pose(flows.Scalar(1, 1), Dataset([[1.0]], [1.0]), "exp")
    >>> W = {name: torch.ones(1, 1, dtype=torch.float64) for name in "ab"} | {"V": torch.ones(1, 1, 1, dtype=torch.float64)}
    >>> rule = flows.Mirror(lr=0.5)
    >>> after, state = rule.step(problem, W, rule.init(problem, W))
    >>> round((after["a"] * after["b"]).item(), 6)  # exp(2 lr), since d ln risk / du = -1
    2.718282
    """

    lr: float = 0.01
    clock: str = "cb"

    def __post_init__(self) -> None:
        check_numbers(self, above=("lr",))
        named = isinstance(self.clock, str) and self.clock in ("cb", "mean")
        require(named, f"Mirror: clock {show(self.clock)} is not one of cb, mean")

    def check(self, problem: Problem) -> None:
        fits = {"a", "b"} <= set(problem.net.trained)
        require(
            fits, f"the mirror flow needs products a_j b_j of outer weights, which {problem.net.name} does not have"
        )
        require(problem.loss is not None, "the mirror flow is about margins; the squared loss has none")

    def init(self, problem: Problem, W: Params) -> MirrorState:
        begun = super().init(problem, W)
        a, b = W["a"].abs(), W["b"].abs()
        balanced = torch.allclose(a, b, rtol=1e-6, atol=0.0) and bool((a > 0).all())
        require(balanced, "the mirror flow needs |a_j| = |b_j| > 0 at the start; use a balanced initial law")
        return MirrorState(**vars(begun), log_u=a.log() + b.log())

    def step(self, problem: Problem, W: Params, state: MirrorState) -> tuple[Params, MirrorState]:
        p, saved = problem.look(W)
        weights, log_risk = slopes(problem, p, "soft_margin" if self.clock == "cb" else "mean")
        grads = problem.pull(W, weights, saved)
        # df/da_j = b_j F_j, so F_j beta_j, beta_j = sgn(a_j b_j), is the derivative by u_j
        drift = grads["a"] * W["a"].sign() / W["b"].abs()  # (B, m)
        log_u = (state.log_u + 2 * self.lr * drift).clamp_min(-1200)  # so that b stays a number to divide by
        root = (log_u / 2).exp()
        moved = move(W, {name: grad for name, grad in grads.items() if name not in ("a", "b")}, self.lr)
        moved |= {"a": W["a"].sign() * root, "b": W["b"].sign() * root}
        log_dt = torch.full_like(log_risk, math.log(self.lr))
        clock = (log_dt - log_risk, log_risk, log_dt.exp()) if self.clock == "cb" else (log_dt, log_risk)
        after = replace(tick_log(state, *clock), log_u=log_u)
        return guard(W, state, moved, after, log_risk)
