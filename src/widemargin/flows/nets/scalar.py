"""One inner scalar per neuron on frozen directions (LR-29)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from .base import Net, Params, mix, polar, unit


@dataclass(frozen=True)
class Scalar(Net):
    """f(x) = sum_j a_j relu(b_j v_j . x), unit v_j stay, a and b are trained, both uniform on +-m^(-1/4) (LR-29).

    Margins: M4 over ||a||^2 + ||b||^2, M5 = M1 over sum_j |a_j b_j|.

    d features, m neurons. Parameters a and b (B, m), directions V (B, m, d).

    >>> import torch
    >>> from widemargin.flows import Scalar
    >>> net = Scalar(d=1, m=1)
    >>> W = {"a": torch.tensor([[2.0]]), "b": torch.tensor([[3.0]]), "V": torch.ones(1, 1, 1)}
    >>> net.forward(W, torch.ones(1, 1, 1))
    tensor([[6.]])
    >>> {name: size.item() for name, size in net.normalizers(W).items() if name != "partial"}
    {'M1': 6.0, 'M4': 13.0, 'M5': 6.0}
    """

    name = "scalar"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(trained=("a", "b"), homogeneous=("a", "b"))

    def draw(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        a, b = rng.choice([-1.0, 1.0], (2, self.m)) * self.m**-0.25
        return {"a": a, "b": b, "V": unit(rng.standard_normal((self.m, self.d)))}

    def evaluate(self, W: Params, X: Tensor) -> tuple[Tensor, Tensor]:
        H = X @ W["V"].mT  # (B, n, m)
        return mix((H * W["b"][:, None, :]).clamp_min_(0), W["a"]), H

    def pull(self, W: Params, X: Tensor, g: Tensor, saved: Tensor | None = None) -> Params:
        H = self._active(W, X, saved)
        pulled = (g[:, None, :] @ H)[:, 0]  # (B, m)
        return {"a": W["b"] * pulled, "b": W["a"] * pulled}

    def gram(self, W: Params, X: Tensor) -> Tensor:
        H = self._active(W, X)
        return (H * (W["a"] ** 2 + W["b"] ** 2)[:, None, :]) @ H.mT

    def push(self, W: Params, X: Tensor, V: Params) -> Tensor:
        return mix(self._active(W, X), W["b"] * V["a"] + W["a"] * V["b"])

    def _active(self, W: Params, X: Tensor, H: Tensor | None = None) -> Tensor:
        """v_j . x_i where the unit is on, else 0: b_j times it is the feature of a_j, a_j times it that of b_j."""
        H = X @ W["V"].mT if H is None else H
        return H * (H * W["b"][:, None, :] > 0)

    def features(self, W: Params, X: Tensor) -> Tensor:
        return ((X @ W["V"].mT) * W["b"].sign()[:, None, :]).clamp_min_(0)

    def outer(self, W: Params) -> Tensor:
        return W["a"] * W["b"].abs()

    def u(self, W: Params) -> Tensor:
        """|a * b| (B, m): the mirror variable of UH-9."""
        return (W["a"] * W["b"]).abs()

    def beta(self, W: Params) -> Tensor:
        """Signs of the outer weights; b's sign turns the direction instead."""
        return W["a"].sign()

    def neurons(self, W: Params) -> tuple[Tensor, Tensor]:
        size, theta = polar(W["V"])
        return self.outer(W) * size, theta * W["b"].sign()[:, :, None]

    def _conventions(self, W: Params) -> dict[str, Tensor]:
        mass = self.neurons(W)[0].abs().sum(1)
        return {"M1": mass, "M4": self.norm2(W), "M5": self.u(W).sum(1)}
