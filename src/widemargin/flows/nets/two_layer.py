"""Two layers, both trained or the output layer alone (LR-1, CB-1, CB-17)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from widemargin.types import InputError

from .. import _kernels
from .activations import powered, rectified, slopes_of, space_of
from .base import Net, Params, mix, polar, trial_numbers, unit


@dataclass(frozen=True)
class TwoLayer(Net):
    """f(x) = scale sum_j a_j phi(v_j . x), phi = relu, leaky or not, or its square (LR-1, CB-1, CB-17).

    `law`: "lr" a ~ N(0, 1/m), V ~ N(0, 1/d); "cb" all coordinates N(0, 1); "sphere" v uniform on the sphere, a = +-1;
    `law_scale` multiplies it. `mean_field` puts CB's 1/m in front. `train`: "both" layers or the "output" layer alone
    (with CB's laws the output weights then start at 0, as in Proposition 7). Squared ReLU follows CB-1: outer weights are
    signs and stay, only V is trained, and the network is 2-homogeneous in V.
    `widths` gives each trial a width of its own, at most m: the other neurons are zero and stay so, since both their gradients
    vanish (but rules that draw neurons anew would revive them).

    Margins: M1 (mass on unit directions), M2 (squared norm; in mean field its mean over neurons, which is CB's M3 when the
    data has a bias coordinate). Output layer alone: M7 is the L2 norm of the weights on unit directions, M7_raw the same on
    the features as they stand (sqrt(m) ||a|| of Proposition 7), which is what training maximises; equal for unit v.

    d features, m neurons, `activation` phi. Parameters a (B, m) and V (B, m, d).

    >>> import torch
    >>> from widemargin.flows import TwoLayer
    >>> net = TwoLayer(d=2, m=2)
    >>> W = {"a": torch.tensor([[1.0, -2.0]]), "V": torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])}
    >>> net.forward(W, torch.tensor([[[3.0, 1.0], [-1.0, 1.0]]]))  # relu(x1) - 2 relu(x2)
    tensor([[ 1., -2.]])
    >>> {name: size.item() for name, size in net.normalizers(W).items() if name != "partial"}  # 1 + 2, and 1 + 4 + 1 + 1
    {'M1': 3.0, 'M2': 7.0}
    """

    activation: str = "relu"
    law: str = "lr"
    law_scale: float = 1.0
    mean_field: bool = False
    train: str = "both"
    widths: tuple[int, ...] | None = None

    name = "relu"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of(law=("lr", "cb", "sphere"), train=("both", "output"))
        self._set(activation=space_of(self).activation)
        self._positive("law_scale")
        if self.widths is not None:
            if self.mean_field or self.train == "output":
                raise InputError("two-layer network: widths per trial need both layers trained and no 1/m in front")
            if not all(1 <= width <= self.m for width in self.widths):
                raise InputError(f"two-layer network: every one of widths must be from 1 to the width {self.m}")
        moving = ("a",) if self.train == "output" else ("V",) if space_of(self).degree == 2 else ("a", "V")
        self._set(trained=moving, homogeneous=moving, degree=1 if self.train == "output" else 2)

    @property
    def factor(self) -> float:
        """What stands in front of the sum over neurons: 1/m in the mean field, else 1."""
        return 1 / self.m if self.mean_field else 1.0

    def init(self, trials: int | Sequence[int], seed: int) -> dict[str, np.ndarray]:
        if self.widths is None:
            return super().init(trials, seed)
        numbers = trial_numbers(trials)
        if len(self.widths) != len(numbers):
            raise InputError(
                f"two-layer network: there are {len(self.widths)} widths for {len(numbers)} trials; give one for each"
            )
        each = []
        for trial, width in zip(numbers, self.widths):
            drawn = dataclasses.replace(self, m=width, widths=None).draw(np.random.default_rng([seed, trial]))
            each.append({k: np.concatenate([v, np.zeros((self.m - width, *v.shape[1:]))]) for k, v in drawn.items()})
        return {name: np.stack([drawn[name] for drawn in each]) for name in each[0]}

    def draw(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        a, V = rng.standard_normal(self.m), rng.standard_normal((self.m, self.d))
        if self.law == "lr":
            a, V = a / np.sqrt(self.m), V / np.sqrt(self.d)
        if self.law == "sphere" or space_of(self).degree == 2:
            a = np.where(a >= 0, 1.0, -1.0)
        if self.law == "sphere":
            V = unit(V)
        if self.train == "output" and self.law != "lr":
            a = np.zeros_like(a)
        grown = self.law_scale
        return {"a": a * (1.0 if space_of(self).degree == 2 else grown), "V": V * grown}

    def evaluate(self, W: Params, X: Tensor) -> tuple[Tensor, Tensor | None]:
        if self._fused(X):
            f = _kernels.forward(X, W["V"].contiguous(), W["a"].contiguous())
            return (f if self.factor == 1 else self.factor * f), None
        H = rectified(X @ W["V"].mT, self)  # (B, n, m)
        return self.factor * mix(powered(H, self), W["a"]), H

    def _fused(self, X: Tensor) -> bool:
        """Whether the kernels that never write the activations out apply."""
        return X.is_cuda and self.activation == "relu" and _kernels.usable(X)

    def pull(self, W: Params, X: Tensor, g: Tensor, saved: Tensor | None = None) -> Params:
        if self.factor != 1:
            g = self.factor * g
        if saved is None and self._fused(X):
            a, V = _kernels.backward(X, W["V"].contiguous(), W["a"].contiguous(), g.contiguous())
            return {name: grad for name, grad in (("a", a), ("V", V)) if name in self.trained}
        H = rectified(X @ W["V"].mT, self) if saved is None else saved
        out: Params = {}
        if "a" in self.trained:
            out["a"] = (g[:, None, :] @ powered(H, self))[:, 0]
        if "V" in self.trained:
            slope = slopes_of(H, self)
            out["V"] = W["a"][:, :, None] * (slope.mT @ (g[:, :, None] * X))  # (B, m, d)
        return out

    def gram(self, W: Params, X: Tensor) -> Tensor:
        phi, slope = self._features(W, X)
        K = X.new_zeros(())
        if "a" in self.trained:
            K = K + phi @ phi.mT
        if "V" in self.trained:
            slope = slope * W["a"][:, None, :]
            K = K + (X @ X.mT) * (slope @ slope.mT)
        return self.factor**2 * K  # (B, n, n)

    def push(self, W: Params, X: Tensor, V: Params) -> Tensor:
        phi, slope = self._features(W, X)
        change = X.new_zeros(phi.shape[:2])
        if "a" in self.trained:
            change = change + mix(phi, V["a"])
        if "V" in self.trained:
            change = change + mix(slope * (X @ V["V"].mT), W["a"])
        return self.factor * change

    def _features(self, W: Params, X: Tensor) -> tuple[Tensor, Tensor]:
        H = rectified(X @ W["V"].mT, self)
        return powered(H, self), slopes_of(H, self)

    def features(self, W: Params, X: Tensor) -> Tensor:
        return self._features(W, X)[0]

    def outer(self, W: Params) -> Tensor:
        return self.factor * W["a"]

    def neurons(self, W: Params) -> tuple[Tensor, Tensor]:
        size, theta = polar(W["V"])
        return self.factor * W["a"] * size ** space_of(self).degree, theta

    def _conventions(self, W: Params) -> dict[str, Tensor]:
        mass = self.neurons(W)[0]
        sizes = {"M1": mass.abs().sum(1)}
        if self.train == "output":
            return sizes | {"M7": math.sqrt(self.m) * mass.norm(dim=1), "M7_raw": self._spread(W["a"])}
        sizes["M2"] = self.factor * self.norm2(W)
        return sizes | ({"M3": sizes["M2"]} if self.mean_field else {})

    def _spread(self, a: Tensor) -> Tensor:
        return math.sqrt(self.m) * self.factor * a.norm(dim=1)
