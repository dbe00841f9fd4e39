"""What steps hold back until a flush: batches that are reduced together, norms, and numbers that are read at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from widemargin.flows import losses

from . import tally
from .model import Norms, on_host, squared
from .own_norm import OwnNorm

# What a step holds back: a small batch, margins, or ten numbers; norms; its number; the objective and what else it kept.
Held = tuple[tally.Raw | tally.Margins | Tensor, Norms, int, Mapping[str, Any]]


def alike(held: Sequence[Held]) -> list[list[int]]:
    """Numbers of the steps that can be reduced together."""
    kinds: dict[tuple[Any, ...], list[int]] = {}
    for k, (batch, *_) in enumerate(held):
        if isinstance(batch, tally.Raw):
            kind: tuple[Any, ...] = ("raw", batch.logits.shape, batch.logits.dtype, batch.targets.dtype)
        else:
            kind = (batch.hard.shape, batch.hard.dtype) if isinstance(batch, tally.Margins) else ()
        kinds.setdefault(kind, []).append(k)
    return list(kinds.values())


def reduced(held: Sequence[Held], loss: losses.Loss, ignore_index: int, device: torch.device) -> Tensor:
    """(S, COLUMNS + 1): summaries, and the sum of squares of the homogeneous parameters."""
    rows = torch.empty(len(held), tally.COLUMNS, dtype=torch.float64, device=device)
    for members in alike(held):
        rows[members] = _rows([held[k][0] for k in members], loss, ignore_index).to(device)
    return torch.cat([rows, squared([norm for _, norm, *_ in held]).to(device)[:, None]], 1)


def _rows(batches: Sequence[Any], loss: losses.Loss, ignore_index: int) -> Tensor:
    """(S, COLUMNS) of what steps hold back, all of one kind and size."""
    if isinstance(batches[0], tally.Raw):
        return tally.summaries(batches, loss, ignore_index)
    return summary_of(batches, loss) if isinstance(batches[0], tally.Margins) else torch.stack(list(batches))


def summary_of(group: Sequence[tally.Margins], loss: losses.Loss) -> Tensor:
    """(S, COLUMNS) of margins of equally large batches."""
    soft, hard, keep, bad = (
        torch.stack([getattr(batch, what) for batch in group]) for what in ("soft", "hard", "keep", "bad")
    )
    return tally.summary(soft, hard, keep, bad, loss)


def joined_margins(parts: Sequence[tally.Margins]) -> tally.Margins:
    if len(parts) == 1:
        return parts[0]
    joined = {what: torch.cat([getattr(part, what) for part in parts]) for what in ("soft", "hard", "keep", "labels")}
    return tally.Margins(**joined, bad=torch.stack([part.bad for part in parts]).sum(), classes=parts[0].classes)


def read_numbers(values: Sequence[Any]) -> list[float]:
    """Numbers and scalar tensors as numbers, with one wait for the device."""
    read = iter(on_host([value.reshape(()) for value in values if isinstance(value, Tensor)]).tolist())
    return [next(read) if isinstance(value, Tensor) else float(value) for value in values]


SPANS = {"own": slice(0, 2), "lost": slice(2, 4), "along": slice(4, 7)}  # what a step keeps of each, in a row


def with_sizes(held: Sequence[Held], own: OwnNorm | None) -> list[Mapping[str, Any]]:
    """What else steps kept, and under "own" the size in the optimiser's norm and its error."""
    extras = [extra for *_, extra in held]
    known = [k for k, (_, norms, *_) in enumerate(held) if norms.lengths]  # some may be of the time before it
    if own is not None and known:
        for k, size in zip(known, own.sizes([held[k][1] for k in known])):
            extras[k] = {**extras[k], "own": size}
    return extras


def late_numbers(
    held: Sequence[Mapping[str, Any]],
    joined: str = "max",
    gather: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None,
) -> list[dict[str, float]]:
    """What was kept of each step, as numbers: own_norm and own_error, lost and along.

    `gather` makes of (S, 7) those of all ranks, (R, S, 7), and those of the ranks with examples of their own. Sizes in the
    optimiser's norm are `joined` over ranks as over parameters, examples and products are added.
    """
    table = torch.full((len(held), 7), math.nan, dtype=torch.float64)
    having = {name: [k for k, kept in enumerate(held) if name in kept] for name in SPANS}
    if not any(having.values()):
        return [{} for _ in held]
    for name, steps in having.items():
        if steps:
            table[steps, SPANS[name]] = on_host([held[k][name] for k in steps])
    every, mine = (table[None], table[None]) if gather is None else gather(table)
    size = every[..., 0].square().sum(0).sqrt() if joined == "l2" else every[..., 0].amax(0)
    lost = mine[..., 2].sum(0) / mine[..., 3].sum(0).clamp_min(1)
    dots = every[..., 4:].sum(0)
    columns = {
        "own": {"own_norm": size.tolist(), "own_error": every[..., 1].amax(0).tolist()},
        "lost": {"lost": lost.tolist()},
        "along": {"along": (dots[:, 0] ** 2 / (dots[:, 1] * dots[:, 2])).tolist()},
    }
    return [
        {key: values[k] for name in SPANS if name in kept for key, values in columns[name].items()}
        for k, kept in enumerate(held)
    ]
