"""Training rules: what one step does to a batch of trials.

A rule is a small frozen dataclass. `start(problem, W)` makes its state (a dictionary of tensors and numbers, all of it saved in
checkpoints), `step(problem, W, state)` returns new parameters and state. The loop in `train` knows nothing else. Every state has

    step         number of steps taken
    t_cb         (B,) CB's clock, dW/dt = sum_i |l'_i| / sum l  dp_i        (rules without a meaningful clock count steps)
    log_t_mean   (B,) ln of the clock of the mean risk; dt_cb = mean risk dt_mean
    status       (B,) int8: 0 running, 1 diverged, 2 finished
    taken        (B,) int64 steps taken by each trial; it stops where the trial stopped
    trial        (B,) int64 numbers of the trials. Random streams depend on (seed, trial, taken) alone, so a batch is a loop

and a rule adds what it needs; every tensor of a state has a leading dimension B. In a net with the 1/m of the mean field, dp_i
has the 1/m too, and CB's own time, dW/dt = m grad S, is t_cb / m.

A trial whose status is not 0 does not move, and one whose next parameters or loss are not finite is left at its last good step
with status 1 (`guard`). Nothing here waits for the device: masks stay on it, and rates come from `taken`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .nets import Params
from .problem import Problem

State = dict[str, Any]
RUNNING, DIVERGED, FINISHED = 0, 1, 2


@dataclass(frozen=True)
class Rule:
    @property
    def graph(self) -> bool:
        """Whether a step can be recorded and replayed: it asks the host nothing and no Python number in it changes."""
        return True

    def check(self, problem: Problem) -> None:
        """An InputError if the rule makes no sense for this problem."""

    def start(self, problem: Problem, W: Params) -> State:
        self.check(problem)
        first = next(iter(W.values()))
        zero = first.new_zeros(len(first))
        return {
            "step": 0,
            "t_cb": zero,
            "log_t_mean": zero - torch.inf,
            "status": zero.to(torch.int8),
            "taken": zero.to(torch.int64),
            "trial": torch.arange(len(first), device=first.device),
        }

    def step(self, problem: Problem, W: Params, state: State) -> tuple[Params, State]:
        raise NotImplementedError
