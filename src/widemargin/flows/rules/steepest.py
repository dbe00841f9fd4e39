"""Steepest descent in a norm, with steps of given length (docs/steepest.md)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from widemargin.errors import show

from .. import geometry
from ..contract import Rule, State
from ..nets import Params
from ..problem import Problem
from .steps import check_numbers, guard, require, slopes, tick_log


@dataclass(frozen=True, kw_only=True)
class SteepestState(State):
    first: Params  # averages of the gradients; empty without momentum


@dataclass(frozen=True)
class Descent(Rule[SteepestState]):
    """What rules of steepest descent share: W <- (1 - h weight_decay) W + h s, with s the steepest direction along the gradient.

    h is `lr` / t^`power` at step t = 1, 2, ..., the length of the step in the rule's own norm. With `momentum` the gradient of
    the mean risk is averaged, m <- momentum m + gradient, and s is the direction of m (`nesterov`: of gradient + momentum m);
    the average is then of gradients in floating point, which vanish at margins of about 700. Without momentum the direction comes
    from the logarithms of the losses, and never does.
    """

    # W <- (1 - h weight_decay) W + h s, h = lr / t^power
    lr: float = 0.01
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    power: float = 0.0

    def __post_init__(self) -> None:
        kind = type(self).__name__
        check_numbers(self, above=("lr",), least={"momentum": 0, "weight_decay": 0, "power": 0})
        require(self.momentum < 1 and self.power <= 1, f"{kind}: momentum must be below 1, and power at most 1")
        require(isinstance(self.nesterov, bool), f"{kind}: nesterov must be True or False, not {show(self.nesterov)}")
        require(bool(self.momentum) or not self.nesterov, f"{kind}: nesterov needs a momentum above 0")

    @property
    def geometry(self) -> str:
        """The norm: l2, linf, l1 or spectral."""
        raise NotImplementedError

    def direction(self, G: Params) -> Params:
        """The steepest direction along G, of norm 1."""
        return geometry.steepest(G, self.geometry)

    def init(self, problem: Problem, W: Params) -> SteepestState:
        begun = super().init(problem, W)
        names = problem.net.trained if self.momentum else ()
        return SteepestState(**vars(begun), first={name: torch.zeros_like(W[name]) for name in names})

    def step(self, problem: Problem, W: Params, state: SteepestState) -> tuple[Params, SteepestState]:
        p, saved = problem.look(W)
        scaled = not self.momentum and problem.loss is not None  # the direction does not depend on the scale
        weights, log_risk = slopes(problem, p, "soft_margin" if scaled else "mean")
        grads = problem.pull(W, weights, saved)
        G, first = {name: grads[name] for name in problem.net.trained}, state.first
        if self.momentum:
            first = {name: self.momentum * first[name] + grad for name, grad in G.items()}
            G = {name: G[name] + self.momentum * first[name] for name in G} if self.nesterov else first
        h = self.rate(state)  # (B,)
        moved = dict(W)
        for name, s in self.direction(G).items():
            length = h.view(-1, *[1] * (s.ndim - 1))
            moved[name] = W[name] + length * (s - self.weight_decay * W[name] if self.weight_decay else s)
        after = replace(tick_log(state, h.log(), log_risk), first=first)
        return guard(W, state, moved, after, log_risk)

    def rate(self, state: State) -> Tensor:
        """The length (B,) of the next step."""
        return self.lr * (state.taken + 1).to(state.t_cb.dtype) ** -self.power


@dataclass(frozen=True)
class Steepest(Descent):
    """Steepest descent in the norm of your choice: `norm` is "l2", "linf", "l1" or "spectral".

    lr is the length of a step in that norm, over t^`power` at step t. `momentum`, `nesterov` and `weight_decay` (decoupled) are
    as in `SignDescent`. Along small steps without them psi / N(w)^L never falls once psi > 0 (WM-5, docs/steepest.md).

    >>> import torch
    >>> from widemargin import flows
    >>> from widemargin.types import Dataset
    >>> problem = flows.pose(flows.MLP(2, 1, depth=1), Dataset([[3.0, 4.0]], [1.0]), "exp")  # f(x) = w . x
    >>> W = {"W1": torch.zeros(1, 1, 2, dtype=torch.float64)}
    >>> for norm in ("l2", "linf", "l1"):
    ...     rule = flows.Steepest(lr=0.5, norm=norm)
    ...     print([round(v, 6) for v in rule.step(problem, W, rule.init(problem, W))[0]["W1"].flatten().tolist()])
    [0.3, 0.4]
    [0.5, 0.5]
    [0.0, 0.5]
    """

    norm: str = "l2"

    def __post_init__(self) -> None:
        super().__post_init__()
        geometry.check_norm(self.norm)

    @property
    def geometry(self) -> str:
        return self.norm

    @property
    def graph(self) -> bool:
        return self.norm != "spectral"  # a decomposition asks the host
