"""What steps hold back until a flush: batches that are reduced together, norms, and numbers that are read at once."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from widemargin.errors import show
from widemargin.flows import losses
from widemargin.types import InputError

from . import tally
from .late import Along, products
from .model import Norms, on_host, squared
from .own_norm import OwnNorm

Batch = tally.Raw | tally.Rows | tally.Margins | Tensor
TOGETHER = 32  # small batches whose margins `measure` computes together
AT_ONCE = 1 << 20  # margins reduced together: in float64, with a dozen of numbers for each


class Held(NamedTuple):
    """What a step holds back."""

    batch: Batch  # small: its logits; large: its margins; very large: the row of numbers that they are reduced to
    norms: Norms
    step: int
    objective: Tensor | float | None  # the loss that was given
    alone: bool  # whether that is the loss of this batch
    vanishes: float | None  # the soft margin beyond which gradients round to 0, where late training is watched
    along: Along | None


def length(batch: Batch) -> int:
    """How many margins are held."""
    if isinstance(batch, Tensor):
        return 1
    return len(batch.keep if isinstance(batch, tally.Margins) else batch.targets)


def alike(held: Sequence[Held]) -> Iterator[list[int]]:
    """Numbers of the steps that are reduced together."""
    kinds: dict[tuple[Any, ...], list[int]] = {}
    for k, kept in enumerate(held):
        batch = kept.batch
        kind: tuple[Any, ...] = ()
        if not isinstance(batch, Tensor):
            kind = (type(batch), batch[0].shape, batch[0].dtype, batch[1].dtype, getattr(batch, "classes", 0))
        kinds.setdefault(kind, []).append(k)
    for members in kinds.values():
        some = max(1, AT_ONCE // max(1, length(held[members[0]].batch)))
        yield from (members[k : k + some] for k in range(0, len(members), some))


def reduced(held: Sequence[Held], loss: losses.Loss, ignore_index: int, device: torch.device, world: int = 1) -> Tensor:
    """(S, COLUMNS + 2): summaries, lost examples, and this rank's share of the sum of squares of the homogeneous parameters."""
    rows = torch.empty(len(held), tally.COLUMNS + 2, dtype=torch.float64, device=device)
    for members in alike(held):
        some = [held[k] for k in members]
        rows[members, :-1] = numbers(
            [kept.batch for kept in some], [kept.vanishes for kept in some], loss, ignore_index
        ).to(device)
    rows[:, -1] = squared([kept.norms for kept in held], world=world).to(device)
    return rows


def numbers(batches: Sequence[Any], vanishes: Sequence[float | None], loss: losses.Loss, ignore_index: int) -> Tensor:
    """(S, COLUMNS + 1) of what steps hold back, all of one kind and size: summaries, and how many examples are lost (or NaN)."""
    first = batches[0]
    if isinstance(first, Tensor):
        return torch.stack(list(batches))
    if isinstance(first, tally.Margins):
        wanted = ("soft", "hard", "keep", "bad")
        soft, hard, keep, bad = (torch.stack([getattr(batch, what) for batch in batches]) for what in wanted)
    else:
        soft, hard, keep, _, bad, _ = tally.joined(batches, ignore_index)
    lost = soft.new_full((len(soft),), math.nan, dtype=torch.float64)
    if any(limit is not None for limit in vanishes):
        limits = lost.new_tensor([math.nan if limit is None else limit for limit in vanishes])
        lost = ((soft > limits[:, None]) & keep).sum(-1).where(limits.isfinite(), lost)
    return torch.cat([tally.summary(soft, hard, keep, bad, loss), lost[:, None]], 1)


class Gathering:
    """Adds batches to a tally of `measure`. Small ones of equally many classes wait for each other: launches are what costs."""

    def __init__(self, into: tally.Tally, ignore_index: int) -> None:
        self.into, self.ignore_index = into, ignore_index
        self.waiting: list[tally.Raw] = []

    def add(self, small: tally.Raw | None, margins: Callable[[], tally.Margins]) -> None:
        """The batch itself, if it may wait; else its margins, computed now."""
        others = self.waiting and (small is None or small.logits.shape[1] != self.waiting[0].logits.shape[1])
        if others or len(self.waiting) >= TOGETHER:
            self.end()
        if small is None:
            self.into.add(margins())
        else:
            self.waiting.append(small)

    def end(self) -> None:
        waiting, self.waiting = self.waiting, []
        if waiting:
            logits, targets = (torch.cat([getattr(batch, what) for batch in waiting]) for what in ("logits", "targets"))
            self.into.add(tally.margins(logits, targets, "ce", self.ignore_index, -1))


def joined_margins(parts: Sequence[tally.Margins]) -> tally.Margins:
    if len(parts) == 1:
        return parts[0]
    joined = {what: torch.cat([getattr(part, what) for part in parts]) for what in ("soft", "hard", "keep", "labels")}
    return tally.Margins(**joined, bad=torch.stack([part.bad for part in parts]).sum(), classes=parts[0].classes)


def check_number(given: Any, what: str = "loss") -> Tensor | float:
    """A loss that was given with a step, or another number, copied; call it without gradients."""
    said = f"a {type(given).__name__}"
    if isinstance(given, Tensor):
        if given.numel() == 1 and not given.is_complex():
            return given.clone()
        said = str(tuple(given.shape))
    else:
        with suppress(TypeError, ValueError, OverflowError):
            return float(given)
    raise InputError(f"{what} must be one number, not {said}; reduce it first, or leave it out")


def check_step(step: Any) -> int:
    """A step that was given, as records hold it."""
    with suppress(TypeError, ValueError):
        if -(2**63) <= (whole := operator.index(step)) < 2**63:
            return whole
    raise InputError(f"step must be a whole number, not {show(step)}; count steps, or leave it out")


def check_text(text: Any, what: str) -> None:
    """Complain about a name that records cannot hold."""
    if isinstance(text, str):
        with suppress(UnicodeEncodeError):
            text.encode()
            return
    raise InputError(f"{what}: {show(text)} is no text that can be written; give a name in letters")


def check_names(name: Any, extra: Any) -> dict[str, Any]:
    """What is to be kept with a record of that name: numbers by name."""
    check_text(name, "name")
    if not isinstance(extra, Mapping | None):
        raise InputError(f"extra must be a dictionary of names and numbers, not {show(extra)}")
    for key in extra or ():
        check_text(key, "extra")
    with torch.no_grad():
        return {key: check_number(value, f"extra: {show(key)}") for key, value in (extra or {}).items()}


def read_numbers(values: Sequence[Any]) -> list[float]:
    """Numbers and scalar tensors as numbers, with one wait for the device."""
    tensors = [value if value.ndim == 0 else value.reshape(()) for value in values if isinstance(value, Tensor)]
    read = iter(on_host(tensors).tolist())
    return [next(read) if isinstance(value, Tensor) else float(value) for value in values]


# Columns of what a step knows beside its margins.
SPANS = {"own": slice(0, 2), "lost": slice(2, 4), "along": slice(4, 7)}


def late_table(
    held: Sequence[Held], rows: Tensor, own: OwnNorm | None, world: int = 1
) -> tuple[Tensor, list[list[str]]]:
    """(S, 7) by `SPANS` from what steps hold and `reduced` made of it, and which of these each step knows.

    The size in the optimiser's norm and its error; lost examples and all; <dw, w>, |dw|^2 and |w|^2.
    """
    table = torch.full((len(held), 7), math.nan, dtype=torch.float64)
    known: list[list[str]] = [[] for _ in held]

    def those(name: str, are: Callable[[Held], object]) -> list[int]:
        steps = [k for k, kept in enumerate(held) if are(kept)]
        for k in steps:
            known[k].append(name)
        return steps

    # Some steps may be of the time before there was an optimiser's norm.
    if own is not None and (steps := those("own", lambda kept: kept.norms.lengths)):
        table[steps, SPANS["own"]] = own.sizes([held[k].norms for k in steps], world, rows[steps, -1].cpu())
    if those("lost", lambda kept: kept.vanishes is not None):
        table[:, SPANS["lost"]] = rows[:, [-2, tally.COUNT]].cpu()
    if those("along", lambda kept: kept.along is not None):
        moved = {k: kept.along for k, kept in enumerate(held) if kept.along is not None and kept.along.copies}
        if moved:
            table[list(moved), SPANS["along"]] = products(list(moved.values()))
    return table, known


def late_numbers(
    table: Tensor,
    known: Sequence[Sequence[str]],
    joined: str = "max",
    gather: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None,
) -> list[dict[str, float]]:
    """What steps know beside their margins, as numbers: own_norm and own_error, lost and along.

    `gather` makes of (S, 7) those of all ranks, (R, S, 7), and those of the ranks with examples of their own. Sizes in the
    optimiser's norm are `joined` over ranks as over parameters, examples and products are added.
    """
    if not any(known):
        return [{} for _ in table]
    every, mine = (table[None], table[None]) if gather is None else gather(table)
    size = every[..., 0].square().sum(0).sqrt() if joined == "l2" else every[..., 0].amax(0)
    lost = mine[..., 2].sum(0) / mine[..., 3].sum(0).clamp_min(1)
    dots = every[..., 4:].sum(0)
    columns = {
        "own": {"own_norm": size.tolist(), "own_error": every[..., 1].amax(0).tolist()},
        "lost": {"lost": lost.tolist()},
        "along": {"along": (dots[:, 0] ** 2 / (dots[:, 1] * dots[:, 2])).clamp_max(1.0).tolist()},  # rounding aside
    }
    return [
        {key: values[k] for name in names for key, values in columns[name].items()} for k, names in enumerate(known)
    ]
