"""One measurement: the margins of a batch or of a data set, and the norms they are divided by."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from widemargin.flows import losses
from widemargin.types import InputError, show

from . import tally as t
from .own_norm import Geometry
from .scaling import FREE

NEAR = 0.01  # "at the minimum": within this share of it
HARDEST = 16  # positions of the smallest margins in a record
DERIVED = ("margin_normalized", "psi_normalized", "fitted", "effective", "free")
STEP: dict[str, Any] = {
    "whole": False,
    "quantiles": {},
    "exact": True,
    "at_minimum": None,
}  # what no batch of training has
FEW = ("margin", "psi", "margin_normalized", "psi_normalized", "norm", "error", "loss")


@dataclass(frozen=True)
class Record:
    """Margins at one moment. Logarithms where the number itself may leave floating point.

    margin               min_i f_y - max_{j != y} f_j
    psi                  l^{-1}(sum_i l(p_i)): at most every p_i; positive once all examples are fitted well (UH-5)
    norm, degree         |w_hat| and L: the output is homogeneous of degree L in w_hat
    margin_normalized    margin / |w_hat|^L (UH-4)
    psi_normalized       psi / |w_hat|^L: never falls along gradient flow once psi > 0 (UH-18)
    at_minimum           examples within 1 % of the smallest margin, counted up to 1024
    hardest              positions of the smallest margins, smallest first: examples (or tokens) in the order they came
    effective            exp of the entropy `dual_entropy` of the dual variables q_i ~ |l'(p_i)|: how many examples drive training
    step, name           when, and of what; `whole`: of a data set at fixed parameters, else of a training batch
    n, error, loss       examples, the share that is misclassified, their mean loss; log_loss_sum = log sum_i l(p_i)
    margin_mean          mean over the examples; `quantiles` by level, `exact` where they are of all margins, not of a sample
    wall                 seconds since the monitor was made
    blocks, classes      norms by module; margins and counts by class
    extra                numbers that were given to be kept with the record
    growth               of the outputs when all other parameters are multiplied by 10 (`Homogeneous.growth`)
    excess               sum of the losses over l(0): the theorem speaks below 1

    >>> from widemargin.monitor import Record
    >>> record = Record(
    ...     step=10, name="test", whole=True, n=2, error=0.0, loss=0.03, margin=3.0, margin_mean=3.5, quantiles={0.5: 3.5},
    ...     exact=True, psi=2.5, log_loss_sum=-2.7, norm=5.0, degree=2, at_minimum=1, dual_entropy=0.0,
    ... )
    >>> record.margin_normalized, record.psi_normalized, record.fitted, record.effective
    (0.12, 0.1, True, 1.0)
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
    hardest: Sequence[int] = ()
    extra: Mapping[str, float] = field(default_factory=dict)
    growth: float = 1.0
    excess: float = math.nan

    @property
    def free(self) -> bool:
        """Whether margins over |w_hat|^L grow with the scale of other parameters, so that they mean little."""
        return self.degree is not None and self.growth > FREE

    @property
    def fitted(self) -> bool:
        """Whether the sum of losses is below l(0), where the theorem begins to speak."""
        return self.psi > 0

    @property
    def effective(self) -> float:
        """How many examples drive training: exp of `dual_entropy`."""
        return math.exp(self.dual_entropy)

    @property
    def margin_normalized(self) -> float:
        """margin / |w_hat|^L; nan where no parameters are homogeneous."""
        return self._over_norm(self.margin)

    @property
    def psi_normalized(self) -> float:
        """psi / |w_hat|^L; nan where no parameters are homogeneous."""
        return self._over_norm(self.psi)

    @property
    def psi_own(self) -> float:
        """psi / N(w_hat)^L in the norm N that the optimiser moves in (`extra["own_norm"]`): never falls along steepest descent in
        N once psi > 0 (WM-5); nan where the monitor was not told of an optimiser."""
        return self._over(self.psi, self.extra.get("own_norm", math.nan))

    @property
    def quantiles_normalized(self) -> dict[float, float]:
        """Quantiles of the margins / |w_hat|^L."""
        return {level: self._over_norm(value) for level, value in self.quantiles.items()}

    def _over_norm(self, value: float) -> float:
        return self._over(value, self.norm)

    def _over(self, value: float, norm: float) -> float:
        if self.degree is None or not norm > 0:
            return math.nan
        if not value or not math.isfinite(value):
            return value
        try:
            size = norm**self.degree
        except OverflowError:
            size = math.inf
        if 1e-300 < size < math.inf:
            return value / size
        return math.copysign(_exp(math.log(abs(value)) - self.degree * math.log(norm)), value)

    def as_dict(self) -> dict[str, Any]:
        """All of it under its own name, in plain Python types (infinities and NaN included)."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values |= {name: dict(values[name]) for name in ("quantiles", "blocks", "extra")}
        values |= {"classes": [dict(row) for row in self.classes], "hardest": list(self.hardest)}
        return values | {name: getattr(self, name) for name in DERIVED}

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
            "excess": self.excess,
        }
        if self.at_minimum is not None:
            more["at_minimum"] = float(self.at_minimum)
        more |= {f"margin_q{100 * level:g}": value for level, value in self.quantiles.items()}
        more |= {f"norm/{name}": value for name, value in self.blocks.items()}
        return few | more | dict(self.extra)

    def __str__(self) -> str:
        where = f"{self.name}, step {self.step}" if self.whole else f"step {self.step} (one batch)"
        parts = [f"{self.n} examples", f"error {self.error:.4g}", f"loss {self.loss:.4g}", f"margin {self.margin:.4g}"]
        parts.append(f"psi {self.psi:.4g}")
        if self.degree is not None:
            over = "|w|" if self.degree == 1 else f"|w|^{self.degree}"
            little = " (means little: the scale of other parameters is free)" if self.free else ""
            parts += [f"|w| {self.norm:.4g}", f"psi/{over} {self.psi_normalized:.4g}{little}"]
        if self.excess >= 1:
            parts.append(f"not fitted (the sum of losses is {self.excess:.4g} times what the theorem needs)")
        return f"{where}: {', '.join(parts)}"


def _exp(value: float) -> float:
    """exp, infinite beyond floating point."""
    return math.exp(value) if value < 709.78 else math.inf


@dataclass(frozen=True)
class Falls:
    """How psi / |w_hat|^L did along records, from the first with psi > 0 on, where gradient flow would let it rise alone.

    `pairs` of neighbouring records were looked at and it fell in `count` of them, the last time at step `last`. `deepest` is
    how far below its highest value before it was at worst, as a share of that value. `own` is the same in the optimiser's own
    norm, where the records have it, and `cause` says in words why it fell.

    >>> from widemargin.monitor import Falls
    >>> print(Falls(pairs=9, count=1, deepest=0.25, last=40))
    fell in 1 of 9 pairs, at worst 25.0% below its best, last at step 40
    """

    pairs: int  # of neighbouring records
    count: int  # of pairs where it fell
    deepest: float  # how far below its highest value before it was at worst, as a share of that value
    last: int | None  # step of the last fall
    own: Falls | None = None
    cause: str = ""

    def __str__(self) -> str:
        if not self.count:
            return f"never fell in {self.pairs} pairs of records"
        fell = f"fell in {self.count} of {self.pairs} pairs, at worst {self.deepest:.1%} below its best, last at step {self.last}"
        return fell + (f": {self.cause}" if self.cause else "")


SHRINKS = 0.7  # a fall that is at most this share of itself at half the step is one of the step


def falls(records: Sequence[Record], geometry: Geometry | None = None, half: Sequence[Record] | None = None) -> Falls:
    """Falls of psi / |w_hat|^L along records of one name, in order of steps.

    `records` is a list of k; neighbours make the k - 1 pairs. Rounding may let it fall by a last digit. Where the records have
    the optimiser's own norm, `own` says the same of psi / N(w_hat)^L and `cause` tells falls apart: in the wrong norm (it falls
    in the Euclidean one alone), from momentum or decay (which `geometry`, that of the monitor, knows of), or from long steps.
    `half` are records of the same training with half the learning rate: a fall from long steps is smaller there.

    >>> import torch
    >>> from widemargin.monitor import MarginMonitor, falls
    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> with MarginMonitor(model) as monitor:
    ...     for scale in (3.0, 6.0):  # the same direction: psi / |w| grows with the scale
    ...         model.weight.data = scale * torch.eye(2)
    ...         record = monitor.measure((torch.eye(2), torch.tensor([0, 1])))
    >>> print(falls(monitor.records))
    never fell in 1 pairs of records
    """
    for given in (records, () if half is None else half):
        if not isinstance(given, list | tuple) or not all(hasattr(record, "psi_normalized") for record in given):
            raise InputError(f"records must be a list of what a monitor recorded, not {show(given)}")
        names = dict.fromkeys(getattr(record, "name", "") for record in given)
        if len(names) > 1:
            raise InputError(
                f"these are records of {', '.join(names)}, which are not to be compared; give those of one name"
            )
    euclidean = _falls(records, [record.psi_normalized for record in records])
    if not any("own_norm" in getattr(record, "extra", {}) for record in records):
        return euclidean
    own = _falls(records, [record.psi_own for record in records])
    return replace(euclidean, own=own, cause=_cause(euclidean, own, records, geometry, half))


def _falls(records: Sequence[Record], values: Sequence[float]) -> Falls:
    start = next((k for k, record in enumerate(records) if record.fitted), len(records))
    after, seen = records[start:], np.array(values[start:])
    if len(seen) < 2:
        return Falls(0, 0, 0.0, None)
    down = np.flatnonzero(np.diff(seen) < 0)
    deepest = float((1 - seen / np.maximum.accumulate(seen)).max())
    return Falls(len(seen) - 1, len(down), deepest, after[down[-1] + 1].step if len(down) else None)


def _cause(
    euclidean: Falls, own: Falls, records: Sequence[Record], geometry: Geometry | None, half: Sequence[Record] | None
) -> str:
    """Why it fell, in words; nothing where it did not."""
    if not own.count:
        return "the wrong norm: it never falls in the norm that the optimiser moves in" if euclidean.count else ""
    said = (
        f"it falls in the optimiser's own norm too, in {own.count} of {own.pairs} pairs, at worst by {own.deepest:.1%}"
    )
    if half is not None:
        other = _falls(half, [record.psi_own for record in half])
        if not other.pairs:
            raise InputError("half has no two records after fitting, so that nothing can be compared; train longer")
        if other.deepest <= SHRINKS * own.deepest:
            return f"long steps: {said}, and by {other.deepest:.1%} with half the step"
        said += f", and by {other.deepest:.1%} with half the step, so that it is not the step"
    if geometry is None:
        return f"momentum, decay or long steps: {said}"
    most = max(record.extra.get("own_norm", 0.0) for record in records)
    reasons = []
    if geometry.momentum:
        reasons.append(f"momentum {geometry.momentum:g}")
    if geometry.decay and (geometry.joined == "l2" or not geometry.even or most > 1 / geometry.decay):
        reasons.append(f"weight decay {geometry.decay:g}")
    if reasons:
        return f"{' or '.join(reasons)}: {said}"
    return f"{said}; there is no momentum" + (
        " and the step is not the reason" if half is not None else ": halve the step and give the records as half="
    )


def from_rows(
    rows: np.ndarray, loss: losses.Loss, names: Sequence[str], known: Sequence[Mapping[str, Any]]
) -> list[Record | InputError]:
    """Records from rows (S, COLUMNS or more) of `tally.summary`; a complaint where the row shows that the input was bad.

    `names` say in complaints what a row is of; `known` are the other fields of each record.
    """
    count = rows[:, t.COUNT]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # rows without examples are none
        log_loss = rows[:, t.LOG_LOSS]
        columns = {
            "n": count.astype(int),
            "error": rows[:, t.WRONG] / count,
            "loss": np.exp(log_loss - np.log(count)),
            "margin": rows[:, t.LEAST],
            "margin_mean": rows[:, t.TOTAL] / count,
            "psi": loss.inverse(torch.from_numpy(log_loss.copy())).numpy(),
            "log_loss_sum": log_loss,
            "excess": np.exp(log_loss - _log_at_zero(loss)),
            "dual_entropy": np.maximum(0.0, rows[:, t.DUAL_ENTROPY]),
        }
    bad = (count == 0) | (rows[:, t.OUT_OF_RANGE] != 0) | (rows[:, t.NAN] != 0)
    fields, values = list(columns), zip(*(column.tolist() for column in columns.values()))
    return [
        _complaint(row, what) if wrong else Record(**dict(zip(fields, some)), **more)
        for wrong, row, some, what, more in zip(bad.tolist(), rows, values, names, known)
    ]


def _complaint(numbers: np.ndarray, what: str) -> InputError:
    if numbers[t.OUT_OF_RANGE]:
        return InputError(
            f"{what}: {int(numbers[t.OUT_OF_RANGE])} labels are out of range; labels must be classes that the model has "
            "outputs for (or 0 and 1, or -1 and 1, for one output: other numbers are regression, which has no margins); set "
            "ignore_index to what marks padding"
        )
    if numbers[t.NAN]:
        return InputError(
            f"{what}: {int(numbers[t.NAN])} examples have NaN or infinite logits; the model has diverged, overflowed or "
            "had bad input"
        )
    return InputError(f"{what}: there is no example to measure; the data is empty or every label is ignored")


def from_tally(tally: t.Tally, loss: losses.Loss, levels: Sequence[float], what: str, **known: Any) -> Record:
    """The record of a data set; complains in a sentence where its numbers show that the input was bad."""
    assert tally.numbers is not None
    [found] = from_rows(tally.numbers.cpu().numpy()[None], loss, [what], [STEP | known])
    if isinstance(found, InputError):
        raise found
    return replace(found, whole=True, **_details(tally, levels, found.n, found.margin))


@cache
def _log_at_zero(loss: losses.Loss) -> float:
    """ln l(0): the theorem speaks of sums of losses below l(0)."""
    return float(loss.log(torch.zeros((), dtype=torch.float64)))


def _details(tally: t.Tally, levels: Sequence[float], count: int, least: float) -> dict[str, Any]:
    assert tally.sample is not None and tally.smallest is not None
    priority, values = tally.sample.cpu().numpy()
    kept = np.sort(values[priority <= 1])
    smallest, positions = tally.smallest.cpu().numpy()
    order = np.lexsort((positions, smallest))
    order = order[positions[order] >= 0]
    near = least + NEAR * abs(least) if math.isfinite(least) else least
    return {
        "quantiles": {float(level): _quantile(kept, level) for level in levels},
        "exact": len(kept) == count,
        "at_minimum": int((smallest[order] <= near).sum()),
        "classes": () if tally.classes is None else tuple(_table(tally.classes.cpu().numpy())),
        "hardest": tuple(int(k) for k in positions[order][:HARDEST]),
    }


def _quantile(ordered: np.ndarray, level: float) -> float:
    """numpy's linear quantile of sorted values, which may be infinite."""
    k = level * (len(ordered) - 1)
    low, high = float(ordered[math.floor(k)]), float(ordered[math.ceil(k)])
    return low if low == high or math.isinf(low) else low + (k - math.floor(k)) * (high - low)


def _table(rows: np.ndarray) -> Iterator[dict[str, float]]:
    """Classes that have examples. `dual_share`: their part of the sum of |l'|, what they contribute to the gradient."""
    whole = float(np.logaddexp.reduce(rows[:, 4]))
    for k, (n, wrong, low, total, mass) in enumerate(rows.tolist()):
        if n:
            yield {
                "class": k,
                "n": int(n),
                "error": wrong / n,
                "margin": low,
                "margin_mean": total / n,
                "dual_share": math.exp(mass - whole) if mass > -math.inf else 0.0,
            }
