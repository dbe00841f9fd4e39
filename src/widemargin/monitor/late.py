"""Late training: gradients that round to zero, and updates that only make the weights longer.

The gradient of cross-entropy at an example's own output is softmax - 1 = -1 / (1 + e^p), p its soft margin. In floating point it
is exactly 0 once e^-p is at most half of the rounding of 1: such an example is lost to training, however long that goes on, while
others still move the weights.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from .model import local_part
from .tally import Margins

HALF = 0.5  # share of lost examples at which the warning is given


def vanishing_margin(dtype: torch.dtype) -> float:
    """The soft margin beyond which the gradient at the own output rounds to 0 in numbers of this `dtype`: -ln(eps / 2).

    >>> import torch
    >>> from widemargin.monitor import vanishing_margin
    >>> [round(vanishing_margin(dtype), 2) for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64)]
    [5.55, 7.62, 16.64, 36.74]
    """
    return -math.log(torch.finfo(dtype).eps / 2)


def softmax_dtype(logits: Tensor) -> torch.dtype:
    """The numbers in which torch computes cross-entropy: those of the logits, and float32 under autocast."""
    kind = logits.device.type
    return torch.float32 if torch.is_autocast_enabled(kind) and logits.dtype != torch.float64 else logits.dtype


def lost_ones(margins: Margins, dtype: torch.dtype) -> Tensor:
    """[examples whose gradient rounds to zero, all examples], on the device."""
    lost = (margins.soft > vanishing_margin(dtype)) & margins.keep
    return torch.stack([lost.sum(), margins.keep.sum()]).double()


class Late:
    """Watches a run: the shares of lost examples, and of the update that lies along the weights."""

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        self.dtype = dtype  # of the softmax; None: seen from the logits
        self.used: torch.dtype | None = None
        self.before: list[Tensor] = []
        self.half: int | None = None  # the first step at which half of the examples are lost

    def lost(self, margins: Margins, logits: Tensor) -> Tensor:
        self.used = self.dtype or softmax_dtype(logits)
        return lost_ones(margins, self.used)

    def along(self, parameters: Sequence[Tensor], world: int = 1) -> Tensor:
        """<dw, w>, |dw|^2 and |w|^2 for the update dw since the last look; NaN at the first. Of several ranks this one's share.

        The share of the update that lies along w is <dw, w>^2 / (|dw|^2 |w|^2).
        """
        parts = [local_part(p.detach(), world) for p in parameters]
        before, self.before = self.before, [p.clone() for p, _ in parts]
        if not parts or len(before) != len(parts):
            return torch.full((3,), math.nan, dtype=torch.float64)
        dots = torch.zeros(3, dtype=torch.float64, device=before[0].device)
        for (new, copies), old in zip(parts, before):
            w = old.reshape(-1) if old.dtype in (torch.float32, torch.float64) else old.reshape(-1).float()
            d = new.reshape(-1).to(w.dtype) - w
            dots = (
                dots.to(w.device) + torch.stack([torch.dot(d, w), torch.dot(d, d), torch.dot(w, w)]).double() / copies
            )
        return dots

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
