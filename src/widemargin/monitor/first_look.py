"""What the first batch shows: margins that would not mean what they seem to. A warning each, once; nothing is changed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from . import tally
from .model import LABELS

MOST = 4_096  # rows that are looked at
NEARLY = 1e-3  # probabilities of low precision sum to 1 up to this
ENOUGH, ENDS = 16, 0.05  # outputs that reach to both ends of [0, 1], and not beyond, are hardly so by chance
DEEP = 8  # operations behind a sigmoid that are looked through: squeeze, indexing, float
APART, FLOOR = 0.05, 1e-3  # a loss that differs by more, relatively and by itself, is another one


class Look:
    """A hook that keeps what a model was last called with. It knows no monitor: a copy of the model, averaged or saved, takes
    none along, and has a hook that keeps nothing."""

    def __init__(self) -> None:
        self.seen: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.seen = args, kwargs

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (Look, "nothing")

    @staticmethod
    def nothing(*_: Any) -> None:
        """What is left of it in a copy."""


def doubts(
    model: nn.Module,
    logits: Tensor,
    targets: Tensor,
    inputs: Any,
    *,
    kind: str,
    class_axis: int | None,
    ignore_index: int,
) -> Iterator[str]:
    """Sentences about logits (..., K) or outputs (n,), their targets, and the inputs that a model made them from."""
    if kind == "ce":
        f, labels = tally.classes_last(logits.detach(), targets.detach(), class_axis)
        rows = f.reshape(-1, f.shape[-1])[:MOST].float()  # (n, K)
        if len(rows) and bool((rows > 0).all()) and bool(((rows.sum(-1) - 1).abs() < NEARLY).all()):
            yield (
                "the logits are probabilities (every row is positive and sums to 1), so that their margins are at most 1; give "
                "the outputs before the softmax"
            )
        elif len(rows) and bool((rows <= 0).all()) and bool((rows.logsumexp(-1).abs() < NEARLY).all()):
            yield (
                "the logits are logarithms of probabilities: their margins are right, but they are homogeneous in no parameters; "
                "give the outputs before the log-softmax"
            )
        kept = labels != ignore_index
        if any(_same(part, labels, kept) for part in _tensors(inputs)):
            yield (
                "the targets are the inputs themselves: a model of the next token has logits[:, :-1] and targets[:, 1:]; shift "
                "them, or take no notice where inputs are to be repeated"
            )
    else:
        outputs = logits.detach().reshape(-1)[:MOST]
        if len(outputs) and bool(((outputs >= 0) & (outputs <= 1)).all()) and _of_a_sigmoid(model, logits, outputs):
            yield (
                "all outputs lie between 0 and 1, as those of a sigmoid do, so that their margins are at most 1; give the "
                "outputs before the sigmoid"
            )


def disagreement(step: int, objective: float, loss: float, n: int) -> str:
    """A sentence where training minimises neither mean nor sum of the losses of these margins, nor a logarithm; else nothing."""
    for measured in (loss, n * loss, *((math.log(loss), math.log(n * loss)) if loss > 0 else ())):
        if abs(objective - measured) <= APART * max(abs(objective), abs(measured)) + FLOOR:
            return ""
    return (
        f"step {step}: the loss that was given, {objective:.4g}, is not the mean loss of these logits, {loss:.4g} (label "
        "smoothing, class weights, a penalty, or other logits): training minimises something else than psi measures, and the "
        "theorem is about the latter"
    )


def _of_a_sigmoid(model: nn.Module, logits: Tensor, outputs: Tensor) -> bool:
    """Whether outputs in [0, 1] were made by a sigmoid: those of a fresh model may all be small and positive as they are."""
    node = logits.grad_fn
    if node is not None:
        for _ in range(DEEP):
            if "Sigmoid" in node.name():
                return True
            before = [one for one, _ in node.next_functions if one is not None]
            if len(before) != 1:
                return False
            node = before[0]
        return False
    if any(isinstance(part, nn.Sigmoid) for part in model.modules()):
        return True
    return len(outputs) >= ENOUGH and bool(outputs.min() < ENDS) and bool(outputs.max() > 1 - ENDS)


def _same(part: Tensor, labels: Tensor, kept: Tensor) -> bool:
    """Whether inputs (n, length) of tokens are the labels, in their shape or in one row."""
    if part.is_floating_point() or part.ndim != 2 or part.shape[1] < 2 or part.numel() != labels.numel():
        return False
    if labels.shape not in (part.shape, (part.numel(),)) or not bool(kept.any()):
        return False
    return bool(torch.equal(part.to(labels.device).reshape(labels.shape)[kept].long(), labels[kept].long()))


def _tensors(part: Any) -> Iterator[Tensor]:
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, Mapping):
        for key, value in part.items():
            if key not in LABELS:
                yield from _tensors(value)
    elif isinstance(part, tuple | list):
        for value in part:
            yield from _tensors(value)
