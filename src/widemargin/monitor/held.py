"""What steps hold back until a flush: batches that are reduced together, norms, and numbers that are read at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from widemargin.flows import losses

from . import tally
from .model import Norms
from .own_norm import residual

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


def squared(held: Sequence[Norms]) -> Tensor:
    """(S,) sums of squares over the parameters, on the CPU; one wait for the device where all are on the same."""
    flat = [value for values, _ in held for value in values]
    if len({(value.device, value.dtype) for value in flat}) > 1:
        flat = [value.cpu().double() for value in flat]
    values = torch.stack(flat).cpu().double() if flat else torch.zeros(0, dtype=torch.float64)
    copies = torch.tensor([copies for _, each in held for copies in each], dtype=torch.float64)
    step = torch.tensor([k for k, (values_k, _) in enumerate(held) for _ in values_k], dtype=torch.int64)
    return torch.zeros(len(held), dtype=torch.float64).index_add(0, step, values.square() / copies)


def joined_margins(parts: Sequence[tally.Margins]) -> tally.Margins:
    if len(parts) == 1:
        return parts[0]
    joined = {what: torch.cat([getattr(part, what) for part in parts]) for what in ("soft", "hard", "keep", "labels")}
    return tally.Margins(**joined, bad=torch.stack([part.bad for part in parts]).sum(), classes=parts[0].classes)


def read_numbers(values: Sequence[Any]) -> list[float]:
    """Numbers and scalar tensors as numbers, with one wait for the device."""
    tensors = [value.detach().reshape(()) for value in values if isinstance(value, Tensor)]
    read: dict[Any, Any] = {}
    for device in {tensor.device for tensor in tensors}:  # some are on the host: counts, numbers of a power iteration
        there = [tensor.double() for tensor in tensors if tensor.device == device]
        read[device] = iter(torch.stack(there).tolist())
    return [next(read[value.device]) if isinstance(value, Tensor) else float(value) for value in values]


WIDTHS = {"own": 2, "lost": 2, "along": 3}  # numbers that a step keeps of each


def late_numbers(
    held: Sequence[Mapping[str, Any]],
    joined: str = "max",
    gather: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None,
) -> list[dict[str, float]]:
    """What `_extras` kept of each step, as numbers: own_norm and own_error, lost and along.

    `gather` makes of (S, 7) those of all ranks, (R, S, 7), and those of the ranks with examples of their own. Sizes in the
    optimiser's norm are `joined` over ranks as over parameters, examples and products are added.
    """
    if not any(name in kept for kept in held for name in WIDTHS):
        return [{} for _ in held]
    flat = [(k, name, kept[name]) for k, kept in enumerate(held) for name in WIDTHS if name in kept]
    read = iter(read_numbers([part for _, _, value in flat for part in value.reshape(-1)]))
    table = torch.full((len(held), sum(WIDTHS.values())), math.nan, dtype=torch.float64)
    starts = dict(zip(WIDTHS, (0, 2, 4)))
    for k, name, _ in flat:
        for j in range(WIDTHS[name]):
            table[k, starts[name] + j] = next(read)
    every, mine = (table[None], table[None]) if gather is None else gather(table)
    size = every[..., 0].square().sum(0).sqrt() if joined == "l2" else every[..., 0].amax(0)
    lost = mine[..., 2].sum(0) / mine[..., 3].sum(0).clamp_min(1)
    dots = every[..., 4:].sum(0)
    columns: dict[str, dict[str, Any]] = {
        "own": {"own_norm": size, "own_error": [residual(excess) for excess in every[..., 1].amax(0).tolist()]},
        "lost": {"lost": lost},
        "along": {"along": dots[:, 0] ** 2 / (dots[:, 1] * dots[:, 2])},
    }
    return [
        {key: float(values[k]) for name in WIDTHS if name in kept for key, values in columns[name].items()}
        for k, kept in enumerate(held)
    ]
