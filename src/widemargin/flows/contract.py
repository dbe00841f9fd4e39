"""What the training loop knows of a rule: a small contract, which a rule of your own keeps as well as those in `rules`.

A rule is a frozen dataclass. `init(problem, W)` makes its state, `step(problem, W, state)` returns new parameters and the state
after a step of all trials, and `clock` says which clock the time of a run is meant in. The rest of `Rule` has answers that a rule
may change. A state is a frozen dataclass that extends `State` by what the rule carries from step to step. Its fields are tensors
with a leading dimension B, dictionaries of such, plain numbers that all trials share, or None: all that checkpoints, batches cut
into pieces and recorded steps need to know. In a net with the 1/m of the mean field, dp_i has the 1/m too, and CB's own time,
dW/dt = m grad S, is t_cb / m.

A trial whose status is not 0 does not move, and one whose next parameters or loss are not finite is left at its last good step
with status 1 (`rules.guard`). A step should not wait for the device: masks stay on it, and rates come from `taken`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from widemargin.errors import brief
from widemargin.types import InputError

from .nets import Params
from .problem import Problem

RUNNING, DIVERGED, FINISHED = 0, 1, 2


@dataclass(frozen=True, kw_only=True)
class State:
    """What every rule carries from step to step, for B trials.

    `step` counts the steps of the batch, `taken` (B,) those of each trial, `trial` (B,) has their numbers and `status` (B,) is 0
    running, 1 diverged or 2 finished. `t_cb` (B,) is CB's clock and `log_t_mean` (B,) ln of the clock of the mean risk. The
    others are None unless the rule knows them: `log_scale` (B,) is ln of the factor by which the true parameters are larger than
    W, `dual` (B, n) has weights of the points, `gates` (B, n, m) derivatives of the units, `drift` (B,) the relative change of
    the normalised margin per unit of ln |W|.

    >>> import torch
    >>> from widemargin import flows
    >>> from widemargin.types import Dataset
    >>> problem = flows.pose(flows.MLP(1, 1, depth=1), Dataset([[1.0]], [1.0]), "exp")  # f(x) = w x, one point x = 1
    >>> W = {"W1": torch.zeros(1, 1, 1, dtype=torch.float64)}
    >>> state = flows.GD().init(problem, W)
    >>> state.step, state.status.tolist(), state.t_cb.tolist(), state.log_scale
    (0, [0], [0.0], None)
    """

    step: int  # number of steps taken
    t_cb: Tensor  # (B,) CB's clock, dW/dt = sum_i |l'_i| / sum l  dp_i (rules without a meaningful clock count steps)
    log_t_mean: Tensor  # (B,) ln of the clock of the mean risk; dt_cb = mean risk dt_mean
    status: Tensor  # (B,) int8: 0 running, 1 diverged, 2 finished
    taken: Tensor  # (B,) int64 steps taken by each trial; it stops where the trial stopped
    trial: Tensor  # (B,) int64 numbers of the trials. Random streams depend on (seed, trial, taken) alone: a batch is a loop
    log_scale: Tensor | None = None  # (B,) ln of the factor by which the true homogeneous parameters are larger than W
    dual: Tensor | None = None  # (B, n) weights of the points, where the rule solved for them
    gates: Tensor | None = None  # (B, n, m) derivatives of the units, likewise
    drift: Tensor | None = None  # (B,) change of the normalised margin, relative and per unit of ln |W|

    __repr__ = brief

    def notes(self) -> tuple[str, ...]:
        """Sentences for the notes of a finished run."""
        return ()


S = TypeVar("S", bound=State)
T = TypeVar("T")


@dataclass(frozen=True)
class Rule(Generic[S]):
    """A training rule; what the loop asks of it.

    `clock`, `ends`, `grows` and `costly` are its answers about itself; a rule of your own has at least a `step`.

    >>> from dataclasses import replace
    >>> import torch
    >>> from widemargin import flows
    >>> from widemargin.types import Dataset
    >>> class Signs(flows.Rule):
    ...     def step(self, problem, W, state):
    ...         p, saved = problem.look(W)  # margins (B, n)
    ...         grads = problem.pull(W, torch.ones_like(p), saved)
    ...         moved = {name: W[name] + 0.25 * grad.sign() for name, grad in grads.items()}
    ...         return moved, replace(state, step=state.step + 1, taken=state.taken + 1)
    >>> run = flows.train(Dataset([[1.0]], [1.0]), flows.MLP(1, 1, depth=1), Signs(), stop=8, record=["moved"])
    >>> float(run.records["moved_W1"][-1, 0])
    2.0
    """

    clock = "mean"  # or "cb": the clock of `time`, unless the user says otherwise
    ends = False  # whether the rule itself finishes every trial
    grows = False  # whether neurons are added on the way
    costly = False  # whether a step costs as much as a look at stationarity
    copies = 2  # of all parameters that are in memory at once, at least

    @property
    def graph(self) -> bool:
        """Whether a step can be recorded and replayed: it asks the host nothing and no Python number in it changes."""
        return True

    def check(self, problem: Problem) -> None:
        """An InputError if the rule makes no sense for this problem."""

    def init(self, problem: Problem, W: Params) -> S:
        """The state before the first step. A rule with more in its state extends this: `MyState(**vars(begun), more=...)`."""
        self.check(problem)
        first = next(iter(W.values()))
        zero = first.new_zeros(len(first))
        return State(  # type: ignore[return-value]
            step=0,
            t_cb=zero,
            log_t_mean=zero - torch.inf,
            status=zero.to(torch.int8),
            taken=zero.to(torch.int64),
            trial=torch.arange(len(first), device=first.device),
        )

    def step(self, problem: Problem, W: Params, state: S) -> tuple[Params, S]:
        """Parameters and state after a step of all trials; W is left as it is."""
        raise InputError(f"the rule {type(self).__name__} has no step(problem, W, state); see `flows.Rule`")

    def looks_at(self, n: int) -> int:
        """How many examples a step looks at where there are `n`; the most where that changes."""
        return n

    def length(self, clock: str) -> float:
        """How long a step is in a clock, "mean" or "cb", if all are equally long; 0 if they are not."""
        return 0.0


def log_scale(W: Params, state: State) -> Tensor:
    """ln of the factor (B,) by which the true homogeneous parameters are larger than W."""
    first = next(iter(W.values()))
    return first.new_zeros(len(first)) if state.log_scale is None else state.log_scale


def true_params(problem: Problem, W: Params, state: State) -> Params:
    """The parameters themselves (infinite where they do not fit into floating point)."""
    if state.log_scale is None:
        return W
    factor = state.log_scale.exp()
    return W | {name: W[name] * factor.reshape(-1, *[1] * (W[name].ndim - 1)) for name in problem.net.homogeneous}


def each(change: Callable[..., Tensor], what: T, *others: Any) -> T:
    """`change` of every tensor in parameters or a state, and of what lies at its place in `others` (None if nothing does)."""
    if isinstance(what, Tensor):
        return change(what, *others)  # type: ignore[return-value]
    if isinstance(what, Mapping):
        parts = {
            key: each(change, value, *(None if other is None else other.get(key) for other in others))
            for key, value in what.items()
        }
        return parts  # type: ignore[return-value]
    if is_dataclass(what) and not isinstance(what, type):
        fields = {
            key: each(change, value, *(getattr(other, key, None) for other in others))
            for key, value in vars(what).items()
        }
        return type(what)(**fields)
    return what


def restored(fresh: S, fields: Mapping[str, Any]) -> S:
    """The state with these fields, those of a checkpoint; `fresh` is one of the same rule. What may be None may be missing."""
    known = vars(fresh)
    missing = [name for name, value in known.items() if name not in fields and value is not None]
    odd = [*missing, *(name for name in fields if name not in known)]
    if odd:
        raise InputError(
            f"the checkpoint was written by another version of this rule, whose state differs in {', '.join(odd)}; "
            "start again in a new folder"
        )
    return replace(fresh, **fields)
