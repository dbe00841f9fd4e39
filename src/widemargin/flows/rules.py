"""Training rules: what one step does to a batch of trials.

A rule is a small frozen dataclass. `start(problem, W)` makes its state (a dictionary of tensors and numbers, all of it saved in
checkpoints), `step(problem, W, state)` returns new parameters and state. The loop in `train` knows nothing else. Every state has

    step         number of steps taken
    t_cb         (B,) CB's clock, dW/dt = sum_i |l'_i| / sum l  dp_i        (rules without a meaningful clock count steps)
    log_t_mean   (B,) ln of the clock of the mean risk; dt_cb = mean risk dt_mean

and a rule adds what it needs, with a leading dimension B where it differs between trials.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import losses
from .nets import Params
from .problem import Problem

State = dict[str, Any]


@dataclass(frozen=True)
class Rule:
    def start(self, problem: Problem, W: Params) -> State:
        first = next(iter(W.values()))
        zero = first.new_zeros(len(first))
        return {"step": 0, "t_cb": zero, "log_t_mean": zero - torch.inf}

    def step(self, problem: Problem, W: Params, state: State) -> tuple[Params, State]:
        raise NotImplementedError


def tick(state: State, dt_mean: Tensor | float, log_risk: Tensor) -> State:
    """The state after a step of length dt_mean in the clock of the mean risk."""
    dt = torch.as_tensor(dt_mean, dtype=log_risk.dtype, device=log_risk.device)
    return tick_log(state, dt.log() + torch.zeros_like(log_risk), log_risk)


def tick_log(state: State, log_dt_mean: Tensor, log_risk: Tensor) -> State:
    t_cb = state["t_cb"] + (log_dt_mean + log_risk).exp()
    return state | {
        "step": state["step"] + 1,
        "t_cb": t_cb,
        "log_t_mean": torch.logaddexp(state["log_t_mean"], log_dt_mean),
    }


@dataclass(frozen=True)
class GD(Rule):
    """W <- W - lr d(mean risk)/dW (BN-4, LR-4 with small steps)."""

    lr: float = 0.1

    def step(self, problem: Problem, W: Params, state: State) -> tuple[Params, State]:
        p, saved = problem.look(W)  # (B, n)
        if problem.loss is None:
            weights, log_risk = p / problem.n, (p**2).mean(1).log()
        else:
            weights = losses.weights(problem.loss, p, "mean")
            log_risk = losses.log_sum(problem.loss, p) - torch.log(torch.tensor(float(problem.n)))
        grads = problem.pull(W, weights, saved)
        W = W | {name: W[name] + self.lr * grad for name, grad in grads.items()}
        return W, tick(state, self.lr, log_risk)
