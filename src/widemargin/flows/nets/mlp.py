"""Deep ReLU networks (MT-1, MT-2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from widemargin.types import InputError

from .base import Net, Params, polar

DEEPEST = 10_000  # a step takes seconds there


@dataclass(frozen=True)
class MLP(Net):
    """Deep ReLU network without biases: `depth` weight matrices W1 .. WL, hidden layers of width m (MT-1, MT-2).

    `outputs` = 1 gives a binary classifier (B, n), K >= 2 gives scores (B, n, K). Homogeneous of degree L in all parameters;
    margin MT2 over ||W||^L. `law`: "lr" entries N(0, 1/inputs), which is LR's law at depth 2, or "he" N(0, 2/inputs);
    `law_scale` multiplies it.

    It takes d features. Parameters W1 (B, m, d), W2 (B, m, m), ..., WL (B, outputs, m).

    >>> import torch
    >>> from widemargin.flows import MLP
    >>> net = MLP(d=1, m=1, depth=3)
    >>> W = {name: torch.full((1, 1, 1), 2.0) for name in net.trained}
    >>> net.forward(W, torch.tensor([[[1.0], [-1.0]]]))  # 2 relu(2 relu(2 x))
    tensor([[8., 0.]])
    >>> net.degree, round(net.normalizers(W)["MT2"].item(), 3)  # (3 * 2^2)^(3/2)
    (3, 41.569)
    """

    outputs: int = 1
    depth: int = 3
    law: str = "lr"
    law_scale: float = 1.0

    name = "mlp"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of(law=("lr", "he"))
        self._positive("law_scale")
        if self.depth < 1 or self.outputs < 1:
            raise InputError(f"mlp: depth {self.depth} and {self.outputs} outputs; both must be at least 1")
        if self.depth > DEEPEST:
            raise InputError(f"mlp: a depth of {self.depth} layers is not for this library; at most {DEEPEST}")
        names = tuple(f"W{layer}" for layer in range(1, self.depth + 1))
        self._set(trained=names, homogeneous=names, degree=self.depth)

    def draw(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        sizes = [self.d, *[self.m] * (self.depth - 1), self.outputs]
        gain = self.law_scale * (np.sqrt(2) if self.law == "he" else 1)
        return {
            name: gain * rng.standard_normal((out, inputs)) / np.sqrt(inputs)
            for name, inputs, out in zip(self.trained, sizes[:-1], sizes[1:])
        }

    def evaluate(self, W: Params, X: Tensor) -> tuple[Tensor, list[Tensor]]:
        layers = [X]  # inputs of every layer
        for name in self.trained[:-1]:
            layers.append((layers[-1] @ W[name].mT).clamp_min_(0))
        f = layers[-1] @ W[self.trained[-1]].mT  # (B, n, K)
        return (f[:, :, 0] if self.outputs == 1 else f), layers

    def pull(self, W: Params, X: Tensor, g: Tensor, saved: list[Tensor] | None = None) -> Params:
        layers = self.evaluate(W, X)[1] if saved is None else saved
        signals = self._backward(W, g[:, :, None] if self.outputs == 1 else g, layers)
        return {name: signal.mT @ layer for name, signal, layer in zip(self.trained, signals, layers)}

    def _backward(self, W: Params, g: Tensor, layers: list[Tensor]) -> list[Tensor]:
        """Derivatives with respect to the preactivations of every layer (B, n, width), first layer first."""
        signals = [g]
        for name, layer in zip(self.trained[:0:-1], layers[:0:-1]):
            signals.append((signals[-1] @ W[name]) * (layer > 0))
        return signals[::-1]

    def gram(self, W: Params, X: Tensor) -> Tensor:
        if self.outputs > 1:
            raise InputError(f"mlp: the Gram matrix of gradients needs one output, not {self.outputs}")
        f, layers = self.evaluate(W, X)
        signals = self._backward(W, torch.ones_like(f)[:, :, None], layers)
        return sum((A @ A.mT) * (S @ S.mT) for A, S in zip(layers, signals))  # type: ignore[return-value]

    def push(self, W: Params, X: Tensor, V: Params) -> Tensor:
        layer, change = X, torch.zeros_like(X)
        for name in self.trained[:-1]:
            change = layer @ V[name].mT + change @ W[name].mT
            layer = (layer @ W[name].mT).clamp_min_(0)
            change = change * (layer > 0)
        last = self.trained[-1]
        change = layer @ V[last].mT + change @ W[last].mT
        return change[:, :, 0] if self.outputs == 1 else change

    def neurons(self, W: Params) -> tuple[Tensor, Tensor] | None:
        if self.depth != 2 or self.outputs > 1:
            return None
        size, theta = polar(W["W1"])
        return W["W2"][:, 0] * size, theta

    def _conventions(self, W: Params) -> dict[str, Tensor]:
        sizes = {"MT2": self.norm2(W) ** (self.depth / 2)}
        parts = self.neurons(W)
        if parts is not None:
            sizes |= {"M1": parts[0].abs().sum(1), "M2": sizes["MT2"]}
        return sizes | ({"M11": sizes["MT2"]} if self.depth == self.outputs == 1 else {})
