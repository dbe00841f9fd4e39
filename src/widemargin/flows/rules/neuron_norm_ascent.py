"""Mirror ascent over the masses of neurons with frozen directions: plain ascent over their norms (CB's Proposition 6)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..nets import Net, Params
from ..problem import Problem
from .feature_ascent import FeatureAscent, FeatureState
from .steps import ascent_scale, check_numbers, mass


@dataclass(frozen=True, kw_only=True)
class NeuronNormState(FeatureState):
    growth: Tensor  # (B,) sum_{s < t} 1 / (beta(s) sqrt(s + 1))


@dataclass(frozen=True)
class NeuronNormAscent(FeatureAscent[NeuronNormState]):
    """Norms r_j on frozen directions: r <- r + eta m grad F, eta(t) = 1 / (16 |z|_inf sqrt(t + 1)) (CB-13).

    a_j = r_j^2 / m and beta = |a|_1. `lr` multiplies eta; the proposition is about lr = 1.

    >>> from widemargin import flows
    >>> from widemargin.types import Dataset
    >>> data = Dataset([[2.0, 0.0], [0.0, 1.0]], [1.0, 1.0])  # the best is max min(2 a1, a2) = 2/3, a1 + a2 = 1
    >>> net = flows.Frozen(2, 2, law="features")
    >>> run = flows.train(data, net, flows.NeuronNormAscent(), loss="exp", stop=500, record=["margins"])
    >>> 0.6 < float(run.records["margin_M6"][-1, 0]) <= 2 / 3
    True
    """

    lr: float = 1.0
    title = "the ascent over the norms of neurons (prop6)"
    degree = 2
    needs = "the norms of neurons with frozen directions"

    def __post_init__(self) -> None:
        check_numbers(self, above=("lr",))

    def init(self, problem: Problem, W: Params) -> NeuronNormState:
        begun: FeatureState = super().init(problem, W)
        return NeuronNormState(**vars(begun), growth=torch.zeros_like(begun.t_cb))

    def pace(self, net: Net, W: Params, state: NeuronNormState, root: Tensor) -> tuple[Tensor, Tensor]:
        return mass(net, W, net.trained[0]).sum(1), self.lr * ascent_scale(net) / (16 * state.size * root)

    def summed(self, after: NeuronNormState, beta: Tensor, root: Tensor) -> NeuronNormState:
        return replace(after, growth=after.growth + 1 / (beta * root))

    def bound(self, problem: Problem, state: NeuronNormState, gamma: float | Tensor) -> Tensor:
        return neuron_norm_bound(gamma, state.size, problem.n, problem.net.m, state.taken, state.growth)


def neuron_norm_bound(
    gamma: float | Tensor, size: float | Tensor, n: int, m: int, t: int | Tensor, growth: float | Tensor
) -> Tensor:
    """CB-14: max_{s < t} min_i z_i . abar(s) is at least this, gamma = gamma_1^{(m)}, size = |z|_inf, t >= 1."""
    steps = torch.as_tensor(t, dtype=torch.float64)
    return gamma - size / steps.sqrt() * (8 * math.log(m) + steps.log() + 1) - 4 * math.log(n) / steps.sqrt() * growth
