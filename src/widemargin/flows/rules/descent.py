"""Gradient descent on the mean risk, on all points or on a few at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from widemargin.types import InputError, show

from ..contract import Rule, S, State
from ..nets import Params
from ..problem import Problem
from ..streams import FOR_ORDER, ParityStream, Sampler, uniforms
from .examples import drawn, in_turn, picked
from .steps import check_numbers, guard, move, require, slopes, tick

ORDERS = ("replacement", "epochs", "stream")


def weight_decay_schedule(epoch: int, dataset: str = "cifar10") -> float:
    """The annealed weight decay of MT's Table 1 (MT-34, with the text's 2e-4 for CIFAR-10, E-MT-12)."""
    dataset = dataset if isinstance(dataset, str) else show(dataset)  # arrays compare entry by entry
    if dataset == "cifar10":
        return 2e-4 * (0.2 if epoch >= 60 else 1.0) * 0.5 ** sum(epoch >= mark for mark in (90, 120, 140, 160))
    if dataset == "cifar100":
        return 5e-4 * 0.2 ** sum(epoch >= mark for mark in (60, 120, 160))
    raise InputError(f"no weight decay schedule is known for {show(dataset)}; choose cifar10 or cifar100")


def learning_rate_schedule(epoch: int, lr: float = 0.1) -> float:
    """MT-34: lr times 0.2 at epochs 60, 120 and 160."""
    return lr * 0.2 ** sum(epoch >= mark for mark in (60, 120, 160))


@dataclass(frozen=True)
class Descent(Rule[S]):
    """What GD and SGD share: rates, constant or annealed.

    `schedule`: "cifar10" or "cifar100" anneals weight decay and lr as in MT-34, `epoch` steps being one epoch; the decay that
    the schedule gives replaces `weight_decay`.
    """

    lr: float = 0.1
    weight_decay: float = 0.0
    schedule: str | None = None
    epoch: int = 1

    def __post_init__(self) -> None:
        check_numbers(self, above=("lr",), least={"weight_decay": 0, "epoch": 1})
        if self.schedule is not None:
            weight_decay_schedule(0, self.schedule)

    @property
    def graph(self) -> bool:
        return self.schedule is None

    def length(self, clock: str) -> float:
        return self.lr if clock == "mean" else 0.0

    def rates(self, step: int) -> tuple[float, float]:
        """lr and weight decay at a step."""
        if self.schedule is None:
            return self.lr, self.weight_decay
        epoch = step // self.epoch
        return learning_rate_schedule(epoch, self.lr), weight_decay_schedule(epoch, self.schedule)


@dataclass(frozen=True)
class GD(Descent[State]):
    """W <- W - lr (d(mean risk)/dW + weight_decay W) (BN-4, LR-4 with small steps).

    `schedule`: "cifar10" or "cifar100" anneals lr and `weight_decay` as in MT-34, `epoch` steps being one epoch.

    >>> import torch
    >>> from widemargin import flows
    >>> from widemargin.types import Dataset
    >>> problem = flows.pose(flows.MLP(1, 1, depth=1), Dataset([[1.0]], [1.0]), "logistic")  # f(x) = w x, one point x = 1
    >>> W = {"W1": torch.zeros(1, 1, 1, dtype=torch.float64)}
    >>> rule = flows.GD(lr=1.0)
    >>> after, state = rule.step(problem, W, rule.init(problem, W))
    >>> after["W1"].item()  # the logistic loss has slope -1/2 at 0
    0.5
    """

    def step(self, problem: Problem, W: Params, state: State) -> tuple[Params, State]:
        lr, decay = self.rates(state.step)
        p, saved = problem.look(W)  # (B, n)
        weights, log_risk = slopes(problem, p)
        moved = move(W, problem.pull(W, weights, saved), lr, decay)
        return guard(W, state, moved, tick(state, lr, log_risk), log_risk)


@dataclass(frozen=True, kw_only=True)
class SGDState(State):
    slopes: Tensor  # (B,) sum_s |l'_s| over the steps so far (LR-13)
    order: Tensor | None = None  # (B, n) order of the points in this epoch


@dataclass(frozen=True)
class SGD(Descent[SGDState]):
    """GD on a few examples a step (LR-3: one fresh example).

    `order`: "replacement" draws them uniformly, "epochs" goes through a new random order of the data in each epoch, "stream"
    takes them as they lie in the data (one pass is LR's SGD on n samples). With a `sampler(trial (B,), step (B,), count) ->
    (X (B, count, d), y (B, count))` every example is fresh from a law.

    `batch` examples a step, drawn with `seed`; lr, `weight_decay`, `schedule` and `epoch` as in GD.

    >>> import numpy as np
    >>> from widemargin import flows
    >>> from widemargin.types import Dataset
    >>> data = Dataset([[1.0], [-3.0]], [1.0, -1.0])
    >>> line = flows.MLP(1, 1, depth=1)  # f(x) = w x
    >>> run = flows.train(data, line, flows.SGD(lr=1.0, order="stream"), loss="exp", stop=1, record=["weights"])
    >>> w = run.records["W_W1"][:, 0, 0, 0]
    >>> bool(abs(w[1] - w[0] - np.exp(-w[0])) < 1e-12)  # the first step sees the first example alone
    True
    """

    batch: int = 1
    order: str = "replacement"
    seed: int = 0
    sampler: Sampler | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, least={"batch": 1})
        known = isinstance(self.order, str) and self.order in ORDERS
        require(known, f"SGD: order {show(self.order)} is not one of {', '.join(ORDERS)}")
        drawn = self.sampler is None or callable(self.sampler)
        require(drawn, f"SGD: sampler must be a function of trials, steps and a count, not {show(self.sampler)}")

    def looks_at(self, n: int) -> int:
        return int(self.batch)

    @property
    def graph(self) -> bool:
        on_device = self.order != "epochs" if self.sampler is None else isinstance(self.sampler, ParityStream)
        return super().graph and on_device

    def check(self, problem: Problem) -> None:
        if self.sampler is None and self.order == "epochs":
            require(
                self.batch <= problem.n, f"SGD: a batch of {self.batch} examples is more than the {problem.n} points"
            )

    def init(self, problem: Problem, W: Params) -> SGDState:
        begun = super().init(problem, W)
        return SGDState(**vars(begun), slopes=torch.zeros_like(begun.t_cb))

    def examples(self, problem: Problem, state: SGDState) -> tuple[Problem, SGDState]:
        """The problem on this step's examples, (B, batch) of them, and the state with the order of the epoch if there is one."""
        if self.sampler is None and self.order == "stream":
            return in_turn(problem, state, self.batch), state
        if self.sampler is not None or self.order == "replacement":
            return drawn(problem, state, self.batch, self.seed, self.sampler), state
        # The order of an epoch is drawn anew from the number of the epoch, so nothing depends on when the run was resumed.
        per = -(-problem.n // self.batch)
        order = state.order
        if order is None or state.step % per == 0:
            epoch = torch.full_like(state.trial, state.step // per)
            order = uniforms(self.seed, FOR_ORDER, state.trial, epoch, problem.n).argsort(1)
        begin = state.step % per * self.batch
        return picked(problem, order[:, begin : begin + self.batch]), replace(state, order=order)

    def step(self, problem: Problem, W: Params, state: SGDState) -> tuple[Params, SGDState]:
        lr, decay = self.rates(state.step)
        sample, state = self.examples(problem, state)
        p, saved = sample.look(W)  # (B, k)
        weights, log_risk = slopes(sample, p)
        moved = move(W, sample.pull(W, weights, saved), lr, decay)
        after = replace(tick(state, lr, log_risk), slopes=state.slopes + weights.abs().sum(1))
        return guard(W, state, moved, after, log_risk)
