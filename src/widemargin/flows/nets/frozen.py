"""Frozen directions: only the sizes of the neurons are trained (CB-13)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from widemargin.spaces import as_numbers
from widemargin.types import InputError

from .activations import powered, rectified, space_of
from .base import Net, Params, mix, polar, unit


@dataclass(frozen=True)
class Frozen(Net):
    """f(x) = (1/m) sum_j r_j^2 z_j(x), only r is trained, r(0) = r0 (CB-13).

    z_j(x) = b_j relu(v_j . x) with theta_j = (v_j, b_j) on one unit sphere, so that M6, the margin over (1/m) sum_j r_j^2, is
    CB's gamma_1^(m). `law`: "sphere" theta uniform there; "balanced" |b_j| = ||v_j|| = 1/sqrt(2), v uniform, random sign;
    "paired" the same with both signs of each of m/2 directions: z is then half of the unit features, and the best M6 is half
    of the M1 margin of these directions (`margins.frozen`); "features" takes the points themselves as z (d = m). Squared ReLU:
    z_j = b_j relu(v_j . x)^2, b_j = +-1 and unit v_j (CB-1), where M6 is M1.

    `directions` (m, d), with `signs` (m,) or random ones, or (m/2, d) for both signs of each, replace drawn ones (balanced).

    d features, m neurons; `activation` may also be leaky. The parameter r is (B, m).

    >>> import torch
    >>> from widemargin.flows import Frozen
    >>> net = Frozen(d=2, m=2, law="features")  # the points are the features: f(x) = (r1^2 x1 + r2^2 x2) / 2
    >>> W = {"r": torch.tensor([[1.0, 2.0]])}
    >>> net.forward(W, torch.tensor([[[2.0, 0.0], [0.0, 1.0]]]))
    tensor([[1., 2.]])
    >>> net.normalizers(W)["M6"]  # (1 + 4) / 2
    tensor([2.5000])
    """

    law: str = "paired"
    activation: str = "relu"
    r0: float = 1.0
    directions: np.ndarray | None = field(default=None, compare=False, repr=False)
    signs: np.ndarray | None = field(default=None, compare=False, repr=False)

    name = "frozen"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of(law=("sphere", "balanced", "paired", "features"))
        self._set(activation=space_of(self).activation)
        self._positive("r0")
        self._set(trained=("r",), homogeneous=("r",))
        if self.law == "features" and self.d != self.m:
            raise InputError(f"frozen: the points are the features here, so the width {self.m} must be {self.d}")
        if self.law == "features" and self.directions is not None:
            raise InputError("frozen: the points are the features here; leave the directions out")
        if self.directions is not None:
            self._check_directions(as_numbers("frozen: directions", self.directions))
        elif self.signs is not None:
            raise InputError("frozen: signs come with given directions; give both or neither")
        elif self.law == "paired" and self.m % 2:
            raise InputError(f"frozen: width {self.m} must be even, because directions come with both signs")

    def _check_directions(self, V: np.ndarray) -> None:
        rows = (self.m,) if self.signs is not None or self.m % 2 else (self.m, self.m // 2)
        if V.ndim != 2 or V.shape[1] != self.d or len(V) not in rows:
            raise InputError(f"frozen: directions must have shape ({self.m}, {self.d}), not {V.shape}")
        if not (np.isfinite(V).all() and V.any(axis=1).all()):
            raise InputError("frozen: a direction is zero or not finite; remove it")
        self._set(directions=V)
        if self.signs is not None:
            signs = as_numbers("frozen: signs", self.signs)
            if signs.shape != (self.m,) or not np.isin(signs, (-1.0, 1.0)).all():
                raise InputError(f"frozen: signs must be {self.m} numbers -1 or +1")
            self._set(signs=signs)

    def draw(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        r = np.full(self.m, float(self.r0))
        if self.law == "features":
            return {"r": r}
        if self.directions is not None:
            V, paired = self.directions, len(self.directions) < self.m
        elif self.law == "sphere" and space_of(self).degree == 1:
            theta = unit(rng.standard_normal((self.m, self.d + 1)))
            return {"r": r, "b": theta[:, -1], "V": theta[:, :-1]}
        else:
            paired = self.law == "paired"
            V = rng.standard_normal((self.m // 2 if paired else self.m, self.d))
        if paired:
            V, b = np.vstack([V, V]), np.repeat([1.0, -1.0], len(V))
        else:
            b = self.signs if self.signs is not None else rng.choice([-1.0, 1.0], self.m)
        V, half = unit(V), np.sqrt(0.5) if space_of(self).degree == 1 else 1.0
        return {"r": r, "b": half * b, "V": half * V}

    def features(self, W: Params, X: Tensor) -> Tensor:
        if self.law == "features":
            return X
        H = rectified(X @ W["V"].mT, self)  # (B, n, m)
        return powered(H, self) * W["b"][:, None, :]

    def outer(self, W: Params) -> Tensor:
        return W["r"] ** 2 / self.m

    def evaluate(self, W: Params, X: Tensor) -> tuple[Tensor, Tensor]:
        z = self.features(W, X)
        return mix(z, self.outer(W)), z

    def pull(self, W: Params, X: Tensor, g: Tensor, saved: Tensor | None = None) -> Params:
        z = self.features(W, X) if saved is None else saved
        return {"r": 2 / self.m * W["r"] * (g[:, None, :] @ z)[:, 0]}

    def gram(self, W: Params, X: Tensor) -> Tensor:
        J = self._slopes(W, X)
        return J @ J.mT

    def push(self, W: Params, X: Tensor, V: Params) -> Tensor:
        return mix(self._slopes(W, X), V["r"])

    def _slopes(self, W: Params, X: Tensor) -> Tensor:
        return 2 / self.m * self.features(W, X) * W["r"][:, None, :]

    def neurons(self, W: Params) -> tuple[Tensor, Tensor] | None:
        if self.law == "features":
            return None
        size, theta = polar(W["V"])
        return self.outer(W) * W["b"] * size ** space_of(self).degree, theta

    def _conventions(self, W: Params) -> dict[str, Tensor]:
        parts = self.neurons(W)
        return {"M6": self.outer(W).sum(1)} | ({} if parts is None else {"M1": parts[0].abs().sum(1)})
