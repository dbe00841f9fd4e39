"""One measurement: the margins of a batch or of a data set, and the norms they are divided by."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from widemargin.flows import losses
from widemargin.types import InputError

from . import tally as t

NEAR = 0.01  # "at the minimum": within this share of it
FEW = ("margin", "psi", "margin_normalized", "psi_normalized", "norm", "error", "loss")


@dataclass(frozen=True)
class Record:
    """Margins at one moment. Logarithms where the number itself may leave floating point.

    margin               min_i f_y - max_{j != y} f_j
    psi                  l^{-1}(sum_i l(p_i)): at most every p_i; positive once all examples are fitted well (UH-5)
    norm, degree         |w_hat| and L: the output is homogeneous of degree L in w_hat
    margin_normalized    margin / |w_hat|^L (UH-4)
    psi_normalized       psi / |w_hat|^L: never falls along gradient flow once psi > 0 (UH-18)
    at_minimum           examples within 1 % of the smallest margin
    effective            exp of the entropy of the dual variables q_i ~ |l'(p_i)|: how many examples drive training
    """

    step: int
    name: str
    whole: bool  # of a data set at fixed parameters; else of a training batch
    n: int
    error: float
    loss: float
    margin: float
    margin_mean: float
    quantiles: Mapping[float, float]
    exact: bool  # quantiles of all margins, not of a sample
    psi: float
    log_loss_sum: float
    norm: float
    degree: int | None
    at_minimum: int | None
    dual_entropy: float
    wall: float = 0.0  # seconds since the monitor was made
    blocks: Mapping[str, float] = field(default_factory=dict)
    classes: Sequence[Mapping[str, float]] = ()
    hardest: Sequence[int] = ()  # positions of the smallest margins, smallest first
    extra: Mapping[str, float] = field(default_factory=dict)

    @property
    def fitted(self) -> bool:
        """Whether the sum of losses is below l(0), where the theorem begins to speak."""
        return self.psi > 0

    @property
    def effective(self) -> float:
        return math.exp(self.dual_entropy)

    @property
    def margin_normalized(self) -> float:
        return self._over_norm(self.margin)

    @property
    def psi_normalized(self) -> float:
        return self._over_norm(self.psi)

    def _over_norm(self, value: float) -> float:
        if self.degree is None or not self.norm > 0:
            return math.nan
        power = self.degree * math.log(self.norm)
        if abs(power) < 600:
            return value / math.exp(power)
        return value and math.copysign(math.exp(max(-745.0, min(709.0, math.log(abs(value)) - power))), value)

    def scalars(self, everything: bool = False) -> dict[str, float]:
        """The few numbers worth a curve each, or all of them."""
        few = {name: float(getattr(self, name)) for name in FEW}
        if not everything:
            return few | dict(self.extra)
        more: dict[str, Any] = {
            "margin_mean": self.margin_mean,
            "dual_entropy": self.dual_entropy,
            "effective": self.effective,
            "fitted": float(self.fitted),
            "log_loss_sum": self.log_loss_sum,
            "n": float(self.n),
        }
        if self.at_minimum is not None:
            more["at_minimum"] = float(self.at_minimum)
        more |= {f"margin_q{100 * level:g}": value for level, value in self.quantiles.items()}
        more |= {f"norm/{name}": value for name, value in self.blocks.items()}
        return few | more | dict(self.extra)

    def __str__(self) -> str:
        what = f"{self.name}, step {self.step}" if self.whole else f"{self.name}, step {self.step} (one batch)"
        normal = "" if self.degree is None else f", psi/|w|^{self.degree} {self.psi_normalized:.4g}"
        return f"{what}: error {self.error:.4g}, margin {self.margin:.4g}{normal}, {self.n} examples"


def from_numbers(
    numbers: Sequence[float], loss: losses.Loss, *, what: str, tally: t.Tally | None = None,
    levels: Sequence[float] = (), **known: Any,
) -> Record:  # fmt: skip
    """A record from a row of `tally.summary`; complains in a sentence where the row shows that the input was bad."""
    count = int(numbers[t.COUNT])
    if numbers[t.OUT_OF_RANGE]:
        raise InputError(
            f"{what}: {int(numbers[t.OUT_OF_RANGE])} labels are out of range; labels must be classes that the model has "
            "outputs for (or 0 and 1, or -1 and 1, for one output); set ignore_index to what marks padding"
        )
    if numbers[t.NAN]:
        raise InputError(
            f"{what}: {int(numbers[t.NAN])} examples have NaN logits; the model has diverged or its input is bad"
        )
    if not count:
        raise InputError(f"{what}: there is no example to measure; the data is empty or every label is ignored")
    log_loss = float(numbers[t.LOG_LOSS])
    psi = float(loss.inverse(torch.tensor(log_loss, dtype=torch.float64)))
    entropy = float(numbers[t.LOG_SLOPE] - numbers[t.MEAN_LOG_SLOPE]) if numbers[t.LOG_SLOPE] > -math.inf else 0.0
    least = float(numbers[t.LEAST])
    found: dict[str, Any] = {"quantiles": {}, "exact": True, "at_minimum": None, "whole": tally is not None}
    if tally is not None:
        found |= _details(tally, levels, count, least)
    return Record(
        n=count,
        error=float(numbers[t.WRONG]) / count,
        loss=math.exp(min(log_loss, 700.0)) / count,
        margin=least,
        margin_mean=float(numbers[t.TOTAL]) / count,
        psi=psi,
        log_loss_sum=log_loss,
        dual_entropy=max(0.0, entropy),
        **found,
        **known,
    )


def _details(tally: t.Tally, levels: Sequence[float], count: int, least: float) -> dict[str, Any]:
    assert tally.sample is not None and tally.smallest is not None
    priority, values = tally.sample.cpu().numpy()
    kept = values[priority <= 1]
    smallest, positions = tally.smallest.cpu().numpy()
    order = np.argsort(smallest, kind="stable")[:count]
    near = int((smallest[order] <= least + NEAR * abs(least)).sum())
    table: list[dict[str, float]] = []
    if tally.classes is not None:
        rows = tally.classes.cpu().numpy()
        mass = rows[:, 4] - np.logaddexp.reduce(rows[:, 4])
        for k, (n, wrong, low, total, _) in enumerate(rows):
            if n:
                share = float(np.exp(mass[k])) if np.isfinite(mass[k]) else 0.0
                table.append(
                    {
                        "class": k,
                        "n": int(n),
                        "error": wrong / n,
                        "margin": low,
                        "margin_mean": total / n,
                        "dual_share": share,
                    }
                )
    return {
        "quantiles": {level: float(np.quantile(kept, level)) for level in levels},
        "exact": len(kept) == count,
        "at_minimum": near,
        "classes": tuple(table),
        "hardest": tuple(int(k) for k in positions[order][:16]),
    }
