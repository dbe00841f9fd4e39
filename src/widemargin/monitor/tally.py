"""Margins of logits, and what is kept of them when there are too many to keep.

For labels y and outputs f the hard margin is f_y - max_{j != y} f_j and the soft one p = f_y - log sum_{j != y} exp f_j, so that
the cross-entropy is the logistic loss at p. With one output and labels 0, 1 (or -1, 1) both are the signed output.

`summary` reduces margins to ten numbers whose rows can be merged (`merge`) in any order: over batches, and over ranks. `Tally`
adds what needs more than numbers: a sample for quantiles, the smallest margins, a table of classes. Its memory does not grow
with the number of examples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from widemargin.flows import losses
from widemargin.types import InputError

SAMPLE = 65_536  # margins kept for quantiles: exact up to here, then a sample with rank error below 0.002
SMALLEST = 1_024  # smallest margins kept, with their positions
CHUNK = 1 << 23  # entries of logits worked on at once
CLASSES = 1_000  # no table beyond: a vocabulary is no list of classes

# Columns of a summary.
COUNT, WRONG, OUT_OF_RANGE, NAN, LEAST, TOTAL, LEAST_SOFT, LOG_LOSS, LOG_SLOPE, MEAN_LOG_SLOPE = range(10)
COLUMNS = 10
_ADDED, _LEAST, _LOGARITHMS = [COUNT, WRONG, OUT_OF_RANGE, NAN, TOTAL], [LEAST, LEAST_SOFT], [LOG_LOSS, LOG_SLOPE]


@dataclass(frozen=True)
class Margins:
    """Margins of examples in a row, (N,)."""

    soft: Tensor
    hard: Tensor
    keep: Tensor  # which are not ignored
    labels: Tensor  # class of each, 0 where it is ignored
    bad: Tensor  # how many labels are out of range, a scalar on the device
    classes: int


def margins(logits: Tensor, targets: Tensor, loss: str = "ce", ignore_index: int = -100) -> Margins:
    """Soft and hard margins in the precision of the logits, at least float32; no value is moved to the host."""
    logits = logits.detach()
    targets = targets.detach()
    if not logits.is_floating_point():
        raise InputError(
            f"logits must be floating point, not {logits.dtype}; give the model's outputs before any argmax"
        )
    wide = logits.dtype if logits.dtype == torch.float64 else torch.float32
    if loss == "ce":
        logits, targets = _rows(logits, targets)
        return _several(logits, targets, wide, ignore_index)
    logits, targets = _pairs(logits, targets)
    signs, keep, bad = _signs(targets, ignore_index, wide)
    p = signs * logits.to(wide)
    return Margins(p, p, keep, (signs > 0).long(), bad, 2)


def _rows(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (N, K) and targets (N,). Classes lie in the last axis, or in axis 1 as torch's cross_entropy has them."""
    if targets.is_floating_point():
        raise InputError(
            "targets must be class indices (integers); probabilities and smoothed labels have no margin, give the class itself"
        )
    shape, want = tuple(logits.shape), tuple(targets.shape)
    if shape[:-1] == want:
        pass
    elif len(shape) >= 3 and (shape[0], *shape[2:]) == want:
        logits = logits.movedim(1, -1)
    else:
        raise InputError(
            f"logits {shape} and targets {want} do not belong together; cross-entropy needs (..., K) and (...), "
            'one output per example needs loss="bce"'
        )
    if logits.shape[-1] < 2:
        raise InputError('logits have one class only; for one output per example use loss="bce"')
    return logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)


def _several(logits: Tensor, targets: Tensor, wide: torch.dtype, ignore_index: int) -> Margins:
    count, classes = logits.shape
    keep = targets != ignore_index
    bad = (keep & ((targets < 0) | (targets >= classes))).sum()
    labels = torch.where(keep, targets, 0).clamp(0, classes - 1).long()
    rows = max(1, CHUNK // classes)
    parts = []
    for k in range(0, count, rows):
        f, own = logits[k : k + rows].to(wide), labels[k : k + rows, None]
        others = f.scatter(1, own, -torch.inf)
        value = f.gather(1, own)[:, 0]
        parts.append(torch.stack([value - torch.logsumexp(others, 1), value - others.amax(1)]))
    both = torch.cat(parts, 1) if parts else logits.new_zeros((2, 0), dtype=wide)
    return Margins(both[0], both[1], keep, labels, bad, classes)


def _pairs(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """One output and one label each, (N,)."""
    if logits.ndim == targets.ndim + 1 and logits.shape[-1] == 1:
        logits = logits[..., 0]
    if logits.shape != targets.shape:
        raise InputError(
            f"outputs {tuple(logits.shape)} and targets {tuple(targets.shape)} must be one number per example each; "
            'for several classes use loss="ce"'
        )
    return logits.reshape(-1), targets.reshape(-1)


def _signs(targets: Tensor, ignore_index: int, wide: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Signs of labels 0, 1 or -1, 1; which are not ignored; how many are neither."""
    keep = targets != ignore_index
    bad = (keep & (targets != 0) & (targets.abs() != 1)).sum()
    return torch.where(targets > 0, 1.0, -1.0).to(wide), keep, bad


# ---------------------------------------------------------------- ten numbers


def summary(soft: Tensor, hard: Tensor, keep: Tensor, bad: Tensor, loss: losses.Loss) -> Tensor:
    """(..., N) margins to (..., COLUMNS), in float64.

    A tie counts as an error: the model does not decide for the label. NaN margins are counted and left out.
    """
    broken = torch.isnan(soft) | torch.isnan(hard)
    valid = keep & ~broken
    soft, hard = (torch.where(valid, v.double(), torch.inf) for v in (soft, hard))  # +inf is passed over below
    log_slope = loss.log_slope(soft)
    log_slopes = torch.logsumexp(log_slope, -1)  # -inf where nothing is valid
    share = torch.where(valid, (log_slope - log_slopes[..., None]).exp(), 0)
    parts = {
        COUNT: valid.sum(-1),
        WRONG: (valid & (hard <= 0)).sum(-1),
        OUT_OF_RANGE: bad,
        NAN: (keep & broken).sum(-1),
        LEAST: hard.amin(-1),
        TOTAL: torch.where(valid, hard, 0).sum(-1),
        LEAST_SOFT: soft.amin(-1),
        LOG_LOSS: torch.logsumexp(loss.log(soft), -1),
        LOG_SLOPE: log_slopes,
        MEAN_LOG_SLOPE: torch.where(valid, share * log_slope, 0).sum(-1),
    }
    return torch.stack([parts[k].double() for k in range(COLUMNS)], -1)


def merge(rows: Tensor) -> Tensor:
    """(R, ..., COLUMNS) summaries of separate examples to (..., COLUMNS), that of all of them."""
    out = torch.empty_like(rows[0])
    out[..., _ADDED] = rows[..., _ADDED].sum(0)
    out[..., _LEAST] = rows[..., _LEAST].amin(0)
    out[..., _LOGARITHMS] = torch.logsumexp(rows[..., _LOGARITHMS], 0)
    share = (rows[..., LOG_SLOPE] - out[..., LOG_SLOPE]).exp()
    out[..., MEAN_LOG_SLOPE] = torch.where(share > 0, share * rows[..., MEAN_LOG_SLOPE], 0).sum(0)
    return out


# ---------------------------------------------------------------- more than numbers


@dataclass
class Tally:
    """Margins of a data set, batch by batch. `seed` decides the sample alone."""

    loss: losses.Loss
    seed: int = 0
    table: bool = True
    numbers: Tensor | None = None  # (COLUMNS,)
    seen: int = 0  # examples and ignored ones, to number them
    sample: Tensor | None = None  # (2, <= SAMPLE): priority and hard margin
    smallest: Tensor | None = None  # (2, <= SMALLEST): hard margin and position
    classes: Tensor | None = None  # (K, 5): count, wrong, least, total, ln of the sum of |l'|
    _generator: torch.Generator | None = field(default=None, repr=False)

    def add(self, found: Margins) -> None:
        """Add a batch; its values stay on their device."""
        row = summary(found.soft, found.hard, found.keep, found.bad, self.loss)
        valid = found.keep & ~torch.isnan(found.hard)
        hard = torch.where(valid, found.hard.double(), math.inf)
        position = torch.arange(self.seen, self.seen + len(hard), device=hard.device, dtype=torch.float64)
        self.seen += len(hard)
        self.numbers = row if self.numbers is None else merge(torch.stack([self.numbers, row]))
        if self._generator is None:
            self._generator = torch.Generator(hard.device).manual_seed(self.seed)
        priority = torch.rand(len(hard), generator=self._generator, device=hard.device, dtype=torch.float64)
        priority = torch.where(valid, priority, 2.0)  # beyond 1: ignored and broken ones, kept only while there is room
        self._keep(torch.stack([priority, hard]), torch.stack([hard, position]))
        if self.table and found.classes <= CLASSES:
            rows = _class_rows(found, self.loss)
            self.classes = rows if self.classes is None else _merge_classes(torch.stack([self.classes, rows]))

    def _keep(self, sample: Tensor, smallest: Tensor) -> None:
        self.sample = _first(sample, self.sample, SAMPLE)
        self.smallest = _first(smallest, self.smallest, SMALLEST)

    def merge(self, other: Tally) -> None:
        """Add another tally of separate examples (another rank's, already on this device)."""
        if other.numbers is None:
            return
        if self.numbers is None:
            self.__dict__.update(other.__dict__)
            return
        self.numbers = merge(torch.stack([self.numbers, other.numbers]))
        assert other.sample is not None and other.smallest is not None
        self._keep(other.sample, other.smallest)
        self.seen += other.seen
        if self.classes is not None and other.classes is not None:
            self.classes = _merge_classes(torch.stack([self.classes, other.classes]))

    def portable(self) -> Tally:
        """The same on the CPU and without a generator, to be sent to another rank."""
        moved: dict[str, Any] = {
            name: value.cpu() if isinstance(value, Tensor) else value
            for name, value in self.__dict__.items()
            if name != "_generator"
        }
        return Tally(**moved)


def _first(new: Tensor, old: Tensor | None, count: int) -> Tensor:
    """The `count` columns with the smallest first row."""
    both = new if old is None else torch.cat([old, new], 1)
    if both.shape[1] <= count:
        return both
    return both[:, torch.topk(both[0], count, largest=False).indices]


def _class_rows(found: Margins, loss: losses.Loss) -> Tensor:
    """(K, 5) of a batch."""
    hard, labels = found.hard.double(), found.labels
    valid = found.keep & ~torch.isnan(hard)
    zero = torch.zeros(found.classes, dtype=torch.float64, device=hard.device)

    def added(values: Tensor) -> Tensor:
        return zero.index_add(0, labels, torch.where(valid, values.double(), 0))

    least = (zero + math.inf).scatter_reduce(0, labels, torch.where(valid, hard, math.inf), "amin")
    log_slope = torch.where(valid, loss.log_slope(found.soft.double()), -math.inf)
    top = (zero - math.inf).scatter_reduce(0, labels, log_slope, "amax")
    shift = torch.where(top.isfinite(), top, 0)
    mass = zero.index_add(0, labels, (log_slope - shift[labels]).exp()).log() + shift
    return torch.stack([added(valid), added(hard <= 0), least, added(hard), mass], 1)


def _merge_classes(rows: Tensor) -> Tensor:
    """(R, K, 5) to (K, 5)."""
    mass = torch.logsumexp(rows[..., 4], 0)
    return torch.stack([rows[..., 0].sum(0), rows[..., 1].sum(0), rows[..., 2].amin(0), rows[..., 3].sum(0), mass], 1)
