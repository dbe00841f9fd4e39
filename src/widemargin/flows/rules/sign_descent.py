"""Sign descent: steepest descent in the largest entry."""

from __future__ import annotations

from dataclasses import dataclass

from .steepest import Descent


@dataclass(frozen=True)
class SignDescent(Descent):
    """W <- W + h sign(gradient): what Adam does with beta1 = beta2 = eps = 0, and Lion and signSGD up to their momentum.

    h is `lr` / t^`power` at step t, the same for every entry. With `momentum` the signs are those of m <- momentum m + gradient
    (`nesterov`: of gradient + momentum m), and `weight_decay` is decoupled, W <- (1 - h weight_decay) W + h s. Its limits have a
    large margin over the largest entry: `margins.linear(data, norm="linf")`.

    >>> import torch
    >>> from widemargin import flows
    >>> from widemargin.types import Dataset
    >>> problem = flows.pose(flows.MLP(2, 1, depth=1), Dataset([[3.0, -4.0]], [1.0]), "exp")  # f(x) = w . x
    >>> W = {"W1": torch.zeros(1, 1, 2, dtype=torch.float64)}
    >>> rule = flows.SignDescent(lr=0.25)
    >>> rule.step(problem, W, rule.init(problem, W))[0]["W1"].flatten().tolist()
    [0.25, -0.25]
    """

    @property
    def geometry(self) -> str:
        return "linf"
