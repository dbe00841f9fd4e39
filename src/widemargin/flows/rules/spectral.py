"""Spectral descent: steepest descent in the largest spectral norm of the blocks, as in Muon."""

from __future__ import annotations

from dataclasses import dataclass

from widemargin.errors import show

from .. import geometry
from ..nets import Params
from .steepest import Descent
from .steps import check_numbers, require

MOST = 1000  # iterations; singular values are no nearer to 1 after 10, and nothing looks at a clock between them


@dataclass(frozen=True)
class Spectral(Descent):
    """Every block moves by h times the polar factor U V' of its gradient U S V'; a vector is a matrix with one row.

    `iterations` = 0 takes the exact polar factor; k > 0 takes k steps of the iteration that Muon is used with (5 there), whose
    singular values lie between about 0.7 and 1.2. With `momentum` = 0.95, `nesterov` = True and `iterations` = 5 it is Muon. h is
    `lr` / t^`power` at step t, `weight_decay` is decoupled. Its limits have a large margin over the spectral norm:
    `margins.multiclass_linear(data, norm="spectral")`.

    >>> import torch
    >>> from widemargin import flows
    >>> from widemargin.types import Dataset
    >>> points = Dataset([[2.0, 0.0], [0.0, 0.5]], [0, 1])
    >>> problem = flows.pose(flows.MLP(2, 1, depth=1, outputs=2), points, "ce")  # f(x) = W x
    >>> W = {"W1": torch.zeros(1, 2, 2, dtype=torch.float64)}
    >>> rule = flows.Spectral(lr=1.0)
    >>> moved = rule.step(problem, W, rule.init(problem, W))[0]["W1"][0]
    >>> torch.linalg.svdvals(moved).round(decimals=6).tolist()  # gradient (2, -1/2; -2, 1/2) / 4: of rank one
    [1.0, 0.0]
    """

    iterations: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, least={"iterations": 0})
        require(
            isinstance(self.iterations, int), f"Spectral: iterations must be a whole number, not {self.iterations!r}"
        )
        require(self.iterations <= MOST, f"Spectral: iterations must be at most {MOST}, not {show(self.iterations)}")

    @property
    def geometry(self) -> str:
        return "spectral"

    @property
    def graph(self) -> bool:
        return self.iterations > 0  # a decomposition asks the host

    def direction(self, G: Params) -> Params:
        return geometry.steepest(G, "spectral", self.iterations)
