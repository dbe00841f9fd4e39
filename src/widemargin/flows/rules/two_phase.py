"""Two-phase SGD: an inner layer first, then the outer one (LR-34)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..contract import Rule, State
from ..nets import Params
from ..problem import Problem
from ..streams import Sampler
from .examples import drawn
from .steps import check_numbers, guard, move, require, slopes, tick


@dataclass(frozen=True)
class TwoPhase(Rule[State]):
    """Two-phase SGD of row c of LR's Table 1 (LR-34); its constants are in the cited paper and are parameters here.

    Phase 1, `steps1` steps: V <- (1 - decay1) V + lr1 times a gradient over `batch1` examples (0: all of the data). With
    `correlation` the outputs count as 0, so that the gradient is the correlation with the labels even if the start is not
    symmetric. The weights of the last `kept` features (a bias) stay. Phase 2: V stays, the outer weights start at 0 (with
    `reset`) and follow SGD with lr2, batch2 and decay2 on the loss, or with `hinge` on the hinge
    loss. Examples are drawn with `seed`, or come from a `sampler`, as in SGD.

    >>> import torch
    >>> from widemargin import flows
    >>> from widemargin.types import Dataset
    >>> problem = flows.pose(flows.TwoLayer(1, 1), Dataset([[1.0]], [1.0]), "logistic")
    >>> W = {"a": torch.ones(1, 1, dtype=torch.float64), "V": torch.ones(1, 1, 1, dtype=torch.float64)}
    >>> rule = flows.TwoPhase(lr1=1.0)
    >>> after, state = rule.step(problem, W, rule.init(problem, W))
    >>> after["V"].item(), after["a"].item()  # 1 + |l'(0)|, and the outer weight starts again
    (1.5, 0.0)
    """

    lr1: float = 1.0
    batch1: int = 0
    steps1: int = 1
    decay1: float = 0.0
    correlation: bool = True
    kept: int = 0
    lr2: float = 0.1
    batch2: int = 1
    decay2: float = 0.0
    reset: bool = True
    hinge: bool = False
    seed: int = 0
    sampler: Sampler | None = None

    def __post_init__(self) -> None:
        least: dict[str, float] = {"batch1": 0, "steps1": 0, "decay1": 0, "kept": 0, "batch2": 1, "decay2": 0}
        check_numbers(self, above=("lr1", "lr2"), least=least)
        fresh = self.sampler is None or self.batch1 > 0
        require(fresh, "TwoPhase: batch1 = 0 means all of the data, but the examples come from a law; give batch1")

    @property
    def graph(self) -> bool:
        return False  # the phases differ

    def looks_at(self, n: int) -> int:
        return int(max(self.batch1 or n, self.batch2))

    def check(self, problem: Problem) -> None:
        both = {"a", "V"} <= set(problem.net.trained) and problem.net.outputs == 1
        require(both, f"two-phase SGD trains an inner and then an outer layer, which {problem.net.name} does not have")
        require(problem.loss is not None, "two-phase SGD is about classification; the squared loss is not")
        require(self.kept < problem.net.d, "TwoPhase: kept must be below the number of features")

    def step(self, problem: Problem, W: Params, state: State) -> tuple[Params, State]:
        assert problem.loss is not None
        first = state.step < self.steps1
        size = self.batch1 if first else self.batch2
        sample = problem
        if size:
            sample = drawn(problem, state, size, self.seed, self.sampler)
        p, saved = sample.look(W)
        weights, log_risk = slopes(sample, p)
        if first and self.correlation:
            weights = slopes(sample, torch.zeros_like(p))[0]
        elif not first and self.hinge:
            weights = (p < 1).to(p.dtype) / p.shape[1]
        grads = sample.pull(W, weights, saved)
        if first:
            step = self.lr1 * grads["V"] - self.decay1 * W["V"]
            if self.kept:
                step[:, :, -self.kept :] = 0
            moved = W | {"V": W["V"] + step}
            if self.reset and state.step + 1 == self.steps1:
                moved["a"] = torch.zeros_like(W["a"])
        else:
            moved = move(W, {"a": grads["a"]}, self.lr2, self.decay2)
        return guard(W, state, moved, tick(state, self.lr1 if first else self.lr2, log_risk), log_risk)
