"""Late training: gradients that round to zero, and updates that only make the weights longer.

The gradient of cross-entropy at an example's own output is softmax - 1 = -1 / (1 + e^p), p its soft margin. In floating point it
is exactly 0 once e^-p is at most half of the rounding of 1: such an example is lost to training, however long that goes on, while
others still move the weights.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from widemargin.errors import show
from widemargin.types import InputError

from .model import local_part, on_host

HALF = 0.5  # share of lost examples at which the warning is given


def vanishing_margin(dtype: torch.dtype) -> float:
    """The soft margin beyond which the gradient at the own output rounds to 0 in numbers of this `dtype`: -ln(eps / 2).

    >>> import torch
    >>> from widemargin.monitor import vanishing_margin
    >>> [round(vanishing_margin(dtype), 2) for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64)]
    [5.55, 7.62, 16.64, 36.74]
    """
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise InputError(
            f"dtype must be one of torch's for numbers with a point, such as torch.bfloat16, not {show(dtype)}"
        )
    return -math.log(torch.finfo(dtype).eps / 2)


def softmax_dtype(logits: Tensor) -> torch.dtype:
    """The numbers in which torch computes cross-entropy: those of the logits, and float32 under autocast."""
    kind = logits.device.type
    return torch.float32 if torch.is_autocast_enabled(kind) and logits.dtype != torch.float64 else logits.dtype


class Along(NamedTuple):
    """An update dw and the weights w before it, of each parameter that this rank holds; scalars on the device."""

    dots: Sequence[Tensor] = ()  # <dw, w>
    steps: Sequence[Tensor] = ()  # |dw|
    sizes: Sequence[Tensor] = ()  # |w|
    copies: Sequence[float] = ()  # on how many ranks the same is held; nothing where there was no look before


def products(updates: Sequence[Along]) -> Tensor:
    """(S, 3): <dw, w>, |dw|^2 and |w|^2 of updates, this rank's share; one wait for the device."""
    values = on_host([value for update in updates for part in update[:3] for value in part]).view(len(updates), 3, -1)
    values[:, 1:].square_()
    return (values / torch.tensor(updates[0].copies, dtype=torch.float64)).sum(-1)


class Late:
    """Watches a run: the shares of lost examples, and of the update that lies along the weights."""

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        self.dtype = dtype  # of the softmax; None: seen from the logits
        self.used: torch.dtype | None = None
        self.before: list[Tensor] = []
        self.half: int | None = None  # the first step at which half of the examples are lost

    def vanishes(self, logits: Tensor) -> float:
        """The soft margin beyond which an example is lost."""
        self.used = self.dtype or softmax_dtype(logits)
        return vanishing_margin(self.used)

    def along(self, parameters: Sequence[Tensor], world: int = 1) -> Along:
        """The update since the last look. The share of it that lies along w is <dw, w>^2 / (|dw|^2 |w|^2)."""
        parts = [local_part(p, world) for p in parameters]
        new = [p if p.dtype in (torch.float32, torch.float64) else p.float() for p, _ in parts]
        old = self.before
        if not new or [p.shape for p in old] != [p.shape for p in new]:
            self.before = [p.clone() for p in new]
            return Along()
        if any(p.dtype != w.dtype or p.device != w.device or w.is_inference() for p, w in zip(new, old)):
            self.before = old = [w.to(p.device, p.dtype, copy=True) for p, w in zip(new, old)]
        update = torch._foreach_sub(new, old)
        dots = [torch.dot(d.reshape(-1), w.reshape(-1)) for d, w in zip(update, old)]
        found = Along(dots, torch._foreach_norm(update), torch._foreach_norm(old), [copies for _, copies in parts])
        torch._foreach_copy_(old, new)
        return found

    def see(self, step: int, share: float) -> None:
        """Warn at the first step at which half of the examples are lost."""
        if self.half is None and share >= HALF:
            self.half = step
            name = str(self.used).removeprefix("torch.")
            wide = "float64" if self.used in (torch.float32, torch.float64) else "float32"
            warnings.warn(
                f"step {step}: the gradients of {share:.0%} of the examples round to zero in {name}, so they take no part in "
                f"training; compute the softmax in {wide} (logits.{'double' if wide == 'float64' else 'float'}()), or scale the "
                "logits down (a temperature, weight decay)",
                stacklevel=4,
            )
