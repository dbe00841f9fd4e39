"""Test errors of networks of Table 1 along a stream of examples, or after training: when they reach the levels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from widemargin import data, flows
from widemargin.types import Dataset

from .exponents import LEVELS


@dataclass(frozen=True)
class Lazy(flows.TwoLayer):
    """f(x) = (1/sqrt m) sum_j s_j relu(w_j . x), s_j = +-1 stay, w_j ~ N(0, I) are trained: row a of Table 1 (LR-34)."""

    name = "lazy"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(trained=("V",), homogeneous=("V",), degree=1)

    @property
    def factor(self) -> float:
        return 1 / math.sqrt(self.m)

    def draw(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {"a": rng.choice([-1.0, 1.0], self.m), "V": rng.standard_normal((self.m, self.d))}


class Learned(flows.Event):
    """Ends a trial when its test error is at most the smallest of `levels`; `first` (B, levels) has the steps of each level.

    The error is that on the whole cube if d <= 10, else on 1024 fresh corners. A run looks every `every` steps and at its end.
    """

    def __init__(self, d: int, every: int, steps: int, levels: Sequence[float] = LEVELS):
        self.d, self.every, self.steps, self.levels = d, every, steps, tuple(levels)

    def __repr__(self) -> str:
        return f"Learned(d={self.d}, levels={self.levels})"

    def prepare(self, problem: flows.Problem, start: Mapping[str, Tensor]) -> None:
        test = held_out(self.d)
        self.X, self.y = (torch.tensor(part).to(problem.X) for part in (test.X[None], test.y[None]))
        trials = len(next(iter(start.values())))
        self.first, self.looks = np.full((trials, len(self.levels)), math.inf), 0

    def reached(self, problem: flows.Problem, W: dict[str, Tensor], state: flows.State, start: Any) -> Tensor:
        self.looks += 1
        error = (self.y * problem.net.forward(W, self.X) <= 0).to(self.X).mean(1)  # (B,)
        note(self.first, error.cpu().numpy(), min(self.looks * self.every, self.steps), self.levels)
        return error <= min(self.levels)


def note(first: np.ndarray, error: np.ndarray, step: int, levels: Sequence[float]) -> None:
    """Write `step` into first (B, levels) where the errors (B,) are at most the level for the first time."""
    new = (error[:, None] <= np.asarray(levels)) & np.isinf(first)
    first[new] = step


def held_out(d: int) -> Dataset:
    return data.parity(d, marginal="full") if d <= 10 else data.parity(d, 1024, seed=10**6)


def looked_at(d: int) -> int:
    """Steps between looks at the test error."""
    return max(1, d * d // 10)


def hitting_times(
    d: int, net: flows.Net, rule: flows.Rule, steps: int, trials: Sequence[int], seed: int, device: str
) -> np.ndarray:
    """Steps (B, levels) until the test error is at most a level, looked at every d^2 / 10 steps; infinite if `steps` do not do.

    Theorem 2.1 is about the best iterate, so the first time counts.
    """
    every = looked_at(d)
    event = Learned(d, every, steps)
    flows.train(
        data.parity(d, 2, seed=0),  # only its shape counts: examples are fresh
        net,
        rule,
        stop=flows.Stop(steps, until=event, check_every=every),
        record=flows.Record(["step"], times=[steps]),
        trials=trials,
        seed=seed,
        device=device,
    )
    return event.first


def errors_after(
    d: int, n: int, net: flows.Net, rule: flows.Rule, steps: int, trials: Sequence[int], seed: int, device: str
) -> np.ndarray:
    """Test errors (B,) after full-batch training on B sets of n examples."""
    sets = [data.parity(d, n, seed=seed + 10_000 * n + b) for b in trials]
    record = flows.Record(["test_error"], times=[steps], test=held_out(d))
    run = flows.train(sets, net, rule, stop=steps, record=record, trials=trials, seed=seed, device=device)
    return run["test_error"][-1]
