"""Margins of logits, and what is kept of them when there are too many to keep.

For labels y and outputs f the hard margin is f_y - max_{j != y} f_j and the soft one p = f_y - log sum_{j != y} exp f_j, so that
the cross-entropy is the logistic loss at p. With one output and labels 0, 1 (or -1, 1) both are the signed output.

`summary` reduces margins to ten numbers whose rows can be merged (`merge`) in any order: over batches, and over ranks. `Tally`
adds what needs more than numbers: a sample for quantiles, the smallest margins, a table of classes. Its memory does not grow
with the number of examples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from widemargin.flows import losses
from widemargin.types import InputError

from . import _kernels

SAMPLE = 65_536  # margins kept for quantiles: exact up to here, then a sample with rank error below 0.002
SMALLEST = 1_024  # smallest margins kept, with their positions
CHUNK = 1 << 23  # entries of logits worked on at once
CACHE = 1 << 18  # on a CPU: what is read again should still be in its cache
WAITING = 1 << 13  # entries of logits that wait for the next flush as they are
CLASSES = 1_000  # no table beyond: a vocabulary is no list of classes

FLOATS = {torch.float64, torch.float32, torch.float16, torch.bfloat16}  # the usual ones; and the usual integers
INTEGERS = {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool}

# Columns of a summary.
COUNT, WRONG, OUT_OF_RANGE, NAN, LEAST, TOTAL, LEAST_SOFT, LOG_LOSS, LOG_SLOPE, DUAL_ENTROPY = range(10)
COLUMNS = 10
_ADDED, _LEAST, _LOGARITHMS = [COUNT, WRONG, OUT_OF_RANGE, NAN, TOTAL], [LEAST, LEAST_SOFT], [LOG_LOSS, LOG_SLOPE]


class Margins(NamedTuple):
    """Margins of examples in a row, (N,), or of S batches, (S, N)."""

    soft: Tensor
    hard: Tensor
    keep: Tensor  # which are not ignored
    labels: Tensor  # class of each, 0 where it is ignored
    bad: Tensor  # how many labels are out of range, a scalar on the device or (S,)
    classes: int


class Raw(NamedTuple):
    """Logits (N, K) and targets (N,) of a small batch, copied: their margins can wait."""

    logits: Tensor
    targets: Tensor


class Rows(NamedTuple):
    """Soft and hard margins (2, N) of a large batch, and its targets (N,), copied: which of them count can wait."""

    both: Tensor
    targets: Tensor
    classes: int


def raw(logits: Tensor, targets: Tensor, class_axis: int | None = None) -> Raw | None:
    """A copy of a batch small enough to wait, for cross-entropy; None of a large one. Complains as `margins` does.

    Call it without gradients.
    """
    if not (isinstance(logits, Tensor) and isinstance(targets, Tensor)):
        return None
    if not _plain(logits.shape, logits.dtype, targets.shape, targets.dtype, class_axis):
        if not 0 < logits.numel() <= WAITING:
            return None
        logits, targets = classes_last(logits, targets, class_axis)
        logits, targets = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
    return Raw(logits.clone(), targets.clone())


@lru_cache  # steps of training have few shapes, and little time
def _plain(shape: torch.Size, dtype: torch.dtype, want: torch.Size, kind: torch.dtype, axis: int | None) -> bool:
    """Whether these are the logits (N, K) and targets (N,) of a small batch, in the usual types."""
    usual = len(shape) == 2 and dtype in FLOATS and kind in INTEGERS
    return usual and 0 < shape.numel() <= WAITING and _class_axis(shape, want, axis) == 1


def rows(logits: Tensor, targets: Tensor, class_axis: int | None = None) -> Rows:
    """Margins of a batch, for cross-entropy; on a GPU in two calls. Complains as `margins` does."""
    _check_tensors(logits, targets)
    logits, targets = classes_last(logits.detach(), targets, class_axis)
    if logits.ndim == 1:
        logits, targets = logits[None], targets[None]
    targets = targets.to(logits.device, torch.int64, copy=True, memory_format=torch.contiguous_format)
    both = _kernels.rows(logits, targets)
    if both is None:
        both = _in_pieces(logits, targets.clamp(0, logits.shape[-1] - 1))
    return Rows(both, targets.view(-1), logits.shape[-1])


def joined(batches: Sequence[Raw] | Sequence[Rows], ignore_index: int = -100) -> Margins:
    """Margins (S, N) of S equally large batches, those of small ones on the CPU: what is done with so few costs less there."""
    first, targets = batches[0], torch.cat([batch.targets for batch in batches])  # stacking looks at each once more
    if isinstance(first, Raw):
        both, targets, classes = rows(torch.cat([batch[0] for batch in batches]), targets, -1)
        both, targets = both.cpu().unflatten(1, (len(batches), -1)), targets.cpu()
    else:
        both, classes = torch.stack([batch[0] for batch in batches], 1), first.classes
    targets = targets.view(both.shape[1:])
    labels, keep = targets.clamp(0, classes - 1), targets != ignore_index
    return Margins(both[0], both[1], keep, labels, (keep & (labels != targets)).sum(-1), classes)


def margins(
    logits: Tensor, targets: Tensor, loss: str = "ce", ignore_index: int = -100, class_axis: int | None = None
) -> Margins:
    """Soft and hard margins in the precision of the logits, at least float32; no value is moved to the host.

    Cross-entropy: classes lie in axis `class_axis` of the logits. Left out, it is the last axis, (..., K) and (...), or axis 1
    as torch's cross_entropy has it, (N, K, ...) and (N, ...), whichever fits the targets; where both fit it must be given.
    Logits of -inf are classes that are masked out. Other logits that are not finite make the example's margins NaN.
    """
    if loss == "ce":
        soft, hard, keep, labels, bad, classes = joined([rows(logits, targets, class_axis)], ignore_index)
        return Margins(soft[0], hard[0], keep[0], labels[0], bad[0], classes)
    _check_tensors(logits, targets)
    check_floating(logits)
    logits, targets = _pairs(logits.detach(), targets.detach().to(logits.device))
    signs, keep, bad = _signs(targets, ignore_index)
    wide = _wide(logits.dtype)
    p = signs.to(wide) * logits.to(wide)
    p = p.masked_fill(p.isinf(), torch.nan)
    return Margins(p, p, keep, (signs > 0).long(), bad, 2)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """In which margins are computed."""
    return dtype if dtype == torch.float64 else torch.float32


def _check_tensors(logits: Tensor, targets: Tensor) -> None:
    if not (isinstance(logits, Tensor) and isinstance(targets, Tensor)):
        kind = type(targets if isinstance(logits, Tensor) else logits).__name__
        raise InputError(f"logits and targets must be torch tensors, not a {kind}")


def check_floating(logits: Tensor) -> None:
    if not logits.is_floating_point():
        raise InputError(
            f"logits must be floating point, not {logits.dtype}; give the model's outputs before any argmax"
        )


def classes_last(logits: Tensor, targets: Tensor, axis: int | None) -> tuple[Tensor, Tensor]:
    """Logits (..., K) and targets (...)."""
    check_floating(logits)
    if targets.is_floating_point() or targets.is_complex():
        raise InputError(_not_classes(logits, targets))
    where = _class_axis(logits.shape, targets.shape, axis)
    return logits if where == logits.ndim - 1 else logits.movedim(where, -1), targets


@lru_cache
def _class_axis(shape: tuple[int, ...], want: tuple[int, ...], axis: int | None) -> int:
    """The axis of the logits in which the classes lie."""
    shape, want = tuple(shape), tuple(want)
    fits = [k for k in dict.fromkeys((len(shape) - 1, 1)) if 0 <= k < len(shape) and shape[:k] + shape[k + 1 :] == want]
    if axis is not None:
        fits = [k for k in fits if k == axis % len(shape)]
    if not fits:
        where = "" if axis is None else f" with the classes in axis {axis}"
        raise InputError(
            f"logits {shape} and targets {want} do not belong together{where}; cross-entropy needs (..., K) and (...) or "
            '(N, K, ...) and (N, ...); one output per example, or several labels that are a decision each, need loss="bce"'
        )
    if len(fits) > 1:
        raise InputError(
            f"the classes of logits {shape} with targets {want} may lie in the last axis or in axis 1; "
            "set class_axis to -1 or to 1"
        )
    if shape[fits[0]] < 2:
        raise InputError('logits have one class only; for one output per example use loss="bce"')
    return fits[0]


def _not_classes(logits: Tensor, targets: Tensor) -> str:
    """What targets are that are no class indices, and what to do."""
    one_output = logits.shape == targets.shape or logits.shape == (*targets.shape, 1)
    several = logits.shape == targets.shape and targets.ndim > 1 and targets.shape[-1] > 1
    values = torch.zeros(0) if targets.is_complex() else targets.detach().reshape(-1)[:SAMPLE]
    decided = bool(((values == 0) | (values.abs() == 1)).all()) and len(values) > 0
    if several and decided and bool((targets.sum(-1) == 1).all()):
        return "targets must be class indices (integers), and these are one-hot rows; give targets.argmax(-1)"
    if several and decided:
        return 'targets are several labels for each example; give loss="bce", which takes each as a decision'
    if one_output and decided:
        return 'targets are labels 0 and 1 of one output for each example; give loss="bce"'
    if one_output and not (several and bool(((values >= 0) & (values <= 1)).all())):
        return (
            "targets are real numbers: this is regression, which has no margins; the monitor is for classes (for one output and "
            'two classes there is loss="bce")'
        )
    return "targets must be class indices (integers); probabilities and smoothed labels have no margin, give the class itself"


def _in_pieces(logits: Tensor, labels: Tensor) -> Tensor:
    """Soft and hard margins (2, N) of logits (..., K) and labels (...) within range."""
    classes, wide = logits.shape[-1], _wide(logits.dtype)
    chunk = CACHE if logits.device.type == "cpu" else CHUNK
    parts = []
    # First some examples, then some rows of them: reshaping all of a transposed or shifted tensor at once would copy it.
    some = max(1, chunk // max(1, math.prod(logits.shape[1:])))
    for f_some, own_some in zip(logits.split(some), labels.split(some)):
        rows = max(1, chunk // classes)
        for f, own in zip(f_some.reshape(-1, classes).split(rows), own_some.reshape(-1, 1).split(rows)):
            f = f.to(wide)
            others = f.scatter(1, own, -torch.inf)
            value, top = f.gather(1, own), others.amax(1, keepdim=True)
            value = value.masked_fill(torch.maximum(value, top) == torch.inf, torch.nan)
            # logsumexp by hand: in place, and with the maximum that is known. The bound is for rows of -inf alone.
            beyond = others.sub_(top.clamp_min(torch.finfo(wide).min)).exp_().sum(1, keepdim=True).log_()
            hard = value - top
            parts.append(torch.cat([hard - beyond, hard], 1))
    return torch.cat(parts).T


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


def _signs(targets: Tensor, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    """Signs of labels 0, 1 or -1, 1; which are not ignored; how many are neither. Both 0 and -1 in one batch are no labels."""
    targets = targets.double()
    keep = targets != ignore_index
    zero, minus = keep & (targets == 0), keep & (targets == -1)
    bad = (keep & ~zero & ~minus & (targets != 1)).sum()
    bad = bad + torch.where(zero.any() & minus.any(), minus.sum(), 0)
    return torch.where(targets > 0, 1.0, -1.0), keep, bad


# ---------------------------------------------------------------- ten numbers


def summary(soft: Tensor, hard: Tensor, keep: Tensor, bad: Tensor, loss: losses.Loss) -> Tensor:
    """(..., N) margins to (..., COLUMNS), in float64.

    A tie counts as an error: the model does not decide for the label. NaN margins are counted and left out.
    """
    if not soft.shape[-1]:  # a row without examples: one that is left out
        soft, hard, keep = (torch.nn.functional.pad(v, (0, 1)) for v in (soft, hard, keep))
    broken = torch.isnan(soft) | torch.isnan(hard)
    valid = keep & ~broken
    soft, hard = (torch.where(valid, v.double(), torch.inf) for v in (soft, hard))  # +inf is passed over below
    log_slope = loss.log_slope(soft)
    slopes = torch.logsumexp(log_slope, -1)
    log_share = log_slope - slopes[..., None]  # -inf where the margin is infinite, NaN where all are
    parts = {
        COUNT: valid.sum(-1),
        WRONG: (valid & (hard <= 0)).sum(-1),
        OUT_OF_RANGE: bad,
        NAN: (keep & broken).sum(-1),
        LEAST: hard.amin(-1),
        TOTAL: torch.where(valid, hard, 0).sum(-1),
        LEAST_SOFT: soft.amin(-1),
        LOG_LOSS: torch.logsumexp(loss.log(soft), -1),
        LOG_SLOPE: slopes,
        DUAL_ENTROPY: -torch.where(log_share > -torch.inf, log_share.exp() * log_share, 0).sum(-1),
    }
    return torch.stack([parts[k].double() for k in range(COLUMNS)], -1)


def merge(rows: Tensor) -> Tensor:
    """(R, ..., COLUMNS) summaries of separate examples to (..., COLUMNS), that of all of them."""
    out = torch.empty_like(rows[0])
    out[..., _ADDED] = rows[..., _ADDED].sum(0)
    out[..., _LEAST] = rows[..., _LEAST].amin(0)
    out[..., _LOGARITHMS] = torch.logsumexp(rows[..., _LOGARITHMS], 0)
    log_share = rows[..., LOG_SLOPE] - out[..., LOG_SLOPE]
    within = log_share.exp() * (rows[..., DUAL_ENTROPY] - log_share)  # the entropy of a mixture of disjoint parts
    out[..., DUAL_ENTROPY] = torch.where(log_share > -torch.inf, within, 0).sum(0)
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
    smallest: Tensor | None = None  # (2, <= SMALLEST): hard margin and position, -1 where there is no example
    classes: Tensor | None = None  # (K, 5): count, wrong, least, total, ln of the sum of |l'|
    _generator: torch.Generator | None = field(default=None, repr=False)

    def add(self, margins: Margins) -> None:
        """Add a batch; its values stay on their device."""
        row = summary(margins.soft, margins.hard, margins.keep, margins.bad, self.loss)
        valid = margins.keep & ~torch.isnan(margins.hard)
        hard = torch.where(valid, margins.hard.double(), math.inf)
        position = torch.arange(self.seen, self.seen + len(hard), device=hard.device, dtype=torch.float64)
        position = torch.where(valid, position, -1)
        self.seen += len(hard)
        self.numbers = row if self.numbers is None else merge(torch.stack([self.numbers, row]))
        if self._generator is None:
            self._generator = torch.Generator(hard.device).manual_seed(self.seed)
        priority = torch.rand(len(hard), generator=self._generator, device=hard.device, dtype=torch.float64)
        priority = torch.where(valid, priority, 2.0)  # beyond 1: ignored and broken ones, kept only while there is room
        self._keep(torch.stack([priority, hard]), torch.stack([hard, position]))
        if self.table and margins.classes <= CLASSES:
            self._classify(_class_rows(margins, self.loss))

    def _keep(self, sample: Tensor, smallest: Tensor) -> None:
        self.sample = _first(sample, self.sample, SAMPLE)
        self.smallest = _first(smallest, self.smallest, SMALLEST)

    def _classify(self, rows: Tensor) -> None:
        old = self.classes
        if old is not None:
            most = max(len(old), len(rows))  # multiple choice: not every question has as many answers
            rows = _merge_classes(torch.stack([_padded(old, most), _padded(rows, most)]))
        self.classes = rows

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
        if other.classes is not None:
            self._classify(other.classes)

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


def _class_rows(margins: Margins, loss: losses.Loss) -> Tensor:
    """(K, 5) of a batch."""
    hard, labels = margins.hard.double(), margins.labels
    valid = margins.keep & ~torch.isnan(hard)
    zero = torch.zeros(margins.classes, dtype=torch.float64, device=hard.device)

    def added(values: Tensor) -> Tensor:
        return zero.index_add(0, labels, torch.where(valid, values.double(), 0))

    least = (zero + math.inf).scatter_reduce(0, labels, torch.where(valid, hard, math.inf), "amin")
    log_slope = torch.where(valid, loss.log_slope(margins.soft.double()), -math.inf)
    top = (zero - math.inf).scatter_reduce(0, labels, log_slope, "amax")
    shift = torch.where(top.isfinite(), top, 0)
    mass = zero.index_add(0, labels, (log_slope - shift[labels]).exp()).log() + shift
    return torch.stack([added(valid), added(hard <= 0), least, added(hard), mass], 1)


def _padded(rows: Tensor, count: int) -> Tensor:
    """Rows of classes without examples added, up to `count`."""
    if len(rows) == count:
        return rows
    empty = rows.new_tensor([0, 0, math.inf, 0, -math.inf])
    return torch.cat([rows, empty.expand(count - len(rows), -1)])


def _merge_classes(rows: Tensor) -> Tensor:
    """(R, K, 5) to (K, 5)."""
    mass = torch.logsumexp(rows[..., 4], 0)
    return torch.stack([rows[..., 0].sum(0), rows[..., 1].sum(0), rows[..., 2].amin(0), rows[..., 3].sum(0), mass], 1)
