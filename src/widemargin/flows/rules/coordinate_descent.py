"""Coordinate descent: steepest descent in the sum of entries."""

from __future__ import annotations

from dataclasses import dataclass

from .steepest import Descent


@dataclass(frozen=True)
class CoordinateDescent(Descent):
    """W moves by h in the one entry with the largest derivative, over all parameters: boosting, where the model is linear.

    h is `lr` / t^`power` at step t; `momentum`, `nesterov` and `weight_decay` are as in `SignDescent`. Its limits have a large
    margin over the sum of entries: `margins.linear(data, norm="l1")`.

    >>> import torch
    >>> from widemargin import flows
    >>> from widemargin.types import Dataset
    >>> problem = flows.pose(flows.MLP(2, 1, depth=1), Dataset([[3.0, -4.0]], [1.0]), "exp")  # f(x) = w . x
    >>> W = {"W1": torch.zeros(1, 1, 2, dtype=torch.float64)}
    >>> rule = flows.CoordinateDescent(lr=0.25)
    >>> rule.step(problem, W, rule.init(problem, W))[0]["W1"].flatten().tolist()
    [0.0, -0.25]
    """

    @property
    def geometry(self) -> str:
        return "l1"
