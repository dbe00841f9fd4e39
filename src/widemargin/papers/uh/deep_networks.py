"""A residual network with LayerNorm and a small transformer: the inner maps on which UH is tried beyond shallow networks."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import gelu

Params = dict[str, Tensor]
WIDE, HIDDEN, CLASSES, INPUTS, TOKENS = 12, 24, 3, 8, 4


def normalize(h: Tensor, centre: bool = True) -> Tensor:
    """LayerNorm (or RMSNorm) without its gain and shift."""
    h = h - h.mean(-1, keepdim=True) if centre else h
    return h / (h.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def resnet(W: Params, x: Tensor) -> Tensor:
    """Features (n, D) of a residual network with biases and LayerNorm everywhere: x (n, d)."""
    h = x @ W["E"] + W["e"]
    for k in "12":
        inner = normalize(h) * W[f"g{k}"] + W[f"s{k}"]
        h = h + torch.relu(inner @ W[f"A{k}"] + W[f"a{k}"]) @ W[f"B{k}"] + W[f"b{k}"]
    return normalize(h)


def transformer(W: Params, x: Tensor, wide: int | None = None) -> Tensor:
    """Features (n, D) of the last token after one block (RMSNorm, attention, GELU): x (n, T, d).

    Two heads of attention, or heads of `wide` coordinates each.
    """
    h = x @ W["E"] + W["P"]  # (n, T, D)
    n, T, D = h.shape
    z = normalize(h, False) * W["g1"]
    wide = wide or D // 2
    q, k, v = ((z @ W[name]).reshape(n, T, D // wide, wide).transpose(1, 2) for name in "QKV")
    mixed = torch.softmax(q @ k.mT / math.sqrt(wide), -1) @ v  # (n, heads, T, wide)
    h = h + mixed.transpose(1, 2).reshape(n, T, D) @ W["O"]
    z = normalize(h, False) * W["g2"]
    h = h + gelu(z @ W["A"] + W["a"]) @ W["B"] + W["b"]
    return normalize(h[:, -1], False)


def shapes(kind: str, D: int = WIDE, H: int = HIDDEN) -> dict[str, tuple[int, ...]]:
    """Shapes of the inner parameters, by name."""
    if kind == "resnet":
        layers = {
            f"{name}{k}": shape
            for k in "12"
            for name, shape in {"g": (D,), "s": (D,), "A": (D, H), "a": (H,), "B": (H, D), "b": (D,)}.items()
        }
        return {"E": (INPUTS, D), "e": (D,)} | layers
    square = dict.fromkeys("QKVO", (D, D))
    return {
        "E": (INPUTS, D), "P": (TOKENS, D), "g1": (D,), **square, "g2": (D,), "A": (D, H), "a": (H,), "B": (H, D), "b": (D,)
    }  # fmt: skip


MAPS: dict[str, Callable[[Params, Tensor], Tensor]] = {"resnet": resnet, "transformer": transformer}
DEEP: dict[str, Callable[[Params, Tensor], Tensor]] = MAPS | {"many heads": lambda W, x: transformer(W, x, 4)}


def start(kind: str, trials: int, seed: int, D: int = WIDE, H: int = HIDDEN) -> dict[str, np.ndarray]:
    """Parameters (B, ...): gains 1, biases N(0, 0.01), matrices N(0, 1 / rows)."""
    drawn: dict[str, list[np.ndarray]] = {}
    for trial in range(trials):
        rng = np.random.default_rng([seed, trial])
        for name, shape in (shapes(kind, D, H) | {"gain": (D,), "shift": (D,), "head": (D, CLASSES)}).items():
            noise = rng.standard_normal(shape)
            scale = 0.1 if len(shape) == 1 else 1 / math.sqrt(shape[0])
            drawn.setdefault(name, []).append(np.ones(shape) if name[0] == "g" else scale * noise)
    return {name: np.stack(values) for name, values in drawn.items() if name != "shift" or kind == "resnet"}
