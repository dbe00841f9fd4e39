"""Margins that do not change when the scale of parameters is moved about: for models in which |w_hat|^L means little.

Both are heuristics: no theorem says that they grow in training, or what a large one promises.

    over the layers      min_i hard_i / prod_l |W_l|: the Euclidean norms of all weight matrices whose scale the output follows.
                         A factor that moves from one layer to another changes nothing. Residual branches and biases are not seen.
    over the gradient    hard_i / |d hard_i / dx_i|: how far the inputs are from a tie, to first order. Exact for linear models,
                         and within a linear piece of a ReLU network; no scale of any parameter changes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from widemargin.flows import losses

from . import tally
from .homogeneous import Homogeneous
from .model import LABELS, squares, unwrap

LAYERS, GRADIENT, MEDIAN = "margin_over_layers", "margin_over_gradient", "margin_over_gradient_median"
KEPT = tally.SAMPLE  # margins over the gradient that the median is of


def over_layers(model: nn.Module, homogeneous: Homogeneous | None, margin: float) -> float:
    """The smallest margin over the product of the norms of the layers; in logarithms, as the product may be anything."""
    inner = unwrap(model)
    tables = {id(p) for module in inner.modules() if isinstance(module, nn.Embedding) for p in module.parameters()}
    reasons = {} if homogeneous is None else homogeneous.excluded
    total = 0.0
    for name, p in inner.named_parameters():
        divided_out = "of degree 0" in reasons.get(name, "")
        if p.ndim > 1 and p.is_floating_point() and id(p) not in tables and not divided_out:
            size = float(squares([p]))
            if size <= 0:
                return math.nan
            total += 0.5 * math.log(size)
    if not margin or not math.isfinite(margin):
        return margin
    return math.copysign(math.exp(min(700.0, math.log(abs(margin)) - total)), margin)


class OverGradient:
    """Collects margins over the norms of their gradients, batch by batch."""

    def __init__(self) -> None:
        self.least, self.some, self.count = math.inf, torch.zeros(0), 0

    def add(
        self, run: Callable[[Any], tuple[Tensor, Tensor]], batch: Any, margins: Callable[..., tally.Margins]
    ) -> None:
        """One more pass, with gradients. Adds nothing where inputs are no numbers, or an example has many outputs."""
        leaves: list[Tensor] = []
        inputs = _with_gradients(batch, leaves)
        if not leaves:
            return
        with torch.enable_grad():
            logits, targets = run(inputs)
            batch_margins = margins(logits, targets)
            hard, keep = _hard_margins(logits, targets, batch_margins), batch_margins.keep
            if hard is None or any(len(leaf) != len(hard) for leaf in leaves):
                return
            grads = torch.autograd.grad(hard[keep].sum(), leaves, allow_unused=True)
        flat = [grad.double().flatten(1).square().sum(1) for grad in grads if grad is not None]
        if not flat:
            return
        values = (hard.detach().double() / torch.stack(flat).sum(0).sqrt())[keep].cpu()  # (n,)
        values = values[values.isfinite()]
        if len(values):
            self.least, self.count = min(self.least, float(values.min())), self.count + len(values)
            self.some = torch.cat([self.some, values])[:KEPT]

    def numbers(self) -> dict[str, float]:
        return {GRADIENT: self.least, MEDIAN: float(self.some.median())} if self.count else {}


def _hard_margins(logits: Tensor, targets: Tensor, margins: tally.Margins) -> Tensor | None:
    """Hard margins (n,) that can be differentiated; None where an example has several outputs to decide."""
    if (margins.classes == 2 and logits.shape[-1] == 1) or logits.ndim == 1:
        return logits.reshape(-1) * torch.where(margins.labels > 0, 1.0, -1.0).to(logits.dtype)
    if logits.ndim != 2 or targets.ndim != 1:
        return None
    return losses.hard_class_margin(logits, margins.labels)


def _with_gradients(part: Any, leaves: list[Tensor], label: bool = False) -> Any:
    """The batch with copies of its floating-point inputs, which are put into `leaves`."""
    if isinstance(part, Tensor):
        if label or not part.is_floating_point() or not part.ndim:
            return part
        leaves.append(part.detach().clone().requires_grad_(True))
        return leaves[-1]
    if isinstance(part, Mapping):
        return {key: _with_gradients(value, leaves, key in LABELS) for key, value in part.items()}
    if type(part) in (tuple, list):
        return type(part)(_with_gradients(value, leaves, label or k == 1) for k, value in enumerate(part))
    return part
