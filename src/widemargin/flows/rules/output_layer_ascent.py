"""Ascent over the output layer alone (CB's Proposition 7)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..nets import Net, Params
from ..problem import Problem
from .feature_ascent import FeatureAscent, FeatureState
from .steps import ascent_scale, check_numbers, mass


@dataclass(frozen=True)
class OutputLayerAscent(FeatureAscent[FeatureState]):
    """Output layer alone: r <- r + eta m grad F, eta(t) = beta(t) sqrt 2 / (|z|_inf sqrt(t + 1)) (CB-17), r(0) = 0.

    a = r / m and beta(t) = max(1, max_{s <= t} sqrt(m) |a(s)|). `lr` multiplies eta; the proposition is about lr = 1.

    >>> import torch
    >>> from widemargin import flows
    >>> from widemargin.types import Dataset
    >>> net = flows.TwoLayer(1, 1, law="sphere", train="output", mean_field=True)
    >>> problem = flows.pose(net, Dataset([[1.0]], [1.0]), "exp")  # one feature z = 1: the best margin is 1
    >>> W = {"a": torch.zeros(1, 1, dtype=torch.float64), "V": torch.ones(1, 1, 1, dtype=torch.float64)}
    >>> rule = flows.OutputLayerAscent()
    >>> state = rule.init(problem, W)
    >>> for _ in range(2):
    ...     W, state = rule.step(problem, W, state)
    >>> round(state.best.item(), 6), bool(rule.bound(problem, state, 1.0) <= state.best)
    (1.0, True)
    """

    lr: float = 1.0
    title = "the ascent over the output layer (prop7)"
    degree = 1
    needs = "the output layer alone"

    def __post_init__(self) -> None:
        check_numbers(self, above=("lr",))

    def pace(self, net: Net, W: Params, state: FeatureState, root: Tensor) -> tuple[Tensor, Tensor]:
        beta = torch.maximum(state.beta, math.sqrt(net.m) * mass(net, W, net.trained[0]).norm(dim=1))
        return beta, self.lr * ascent_scale(net) * beta * math.sqrt(2) / (state.size * root)

    def bound(self, problem: Problem, state: FeatureState, gamma: float | Tensor) -> Tensor:
        return output_layer_bound(gamma, state.size, problem.n, state.taken)


def output_layer_bound(gamma: float | Tensor, size: float | Tensor, n: int, t: int | Tensor) -> Tensor:
    """CB-18: max_{s < t} min_i z_i . abar(s) is at least this, gamma = gamma_2^{(m)} > 0, size = |z|_inf, t >= 1."""
    steps = torch.as_tensor(t, dtype=torch.float64)
    return gamma - size / steps.sqrt() * (2 * math.sqrt(2) + math.sqrt(3) * math.log(n) / gamma)
