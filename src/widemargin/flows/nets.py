"""The networks of the five papers, batched over trials, with gradients in closed form where they are shallow.

Parameters are a dictionary of tensors with a leading dimension B, one entry per trial. A net knows its initial law, its outputs
and the pull-back of weights on the points, sum_i g_i df(x_i)/dW, which is all that a training rule needs. X is (1, n, d) or
(B, n, d). The ReLU has derivative 0 at 0 (LR-3 allows any fixed value in [0, 1]); `flow` says what the gradient flow does there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from widemargin.types import InputError, Measure

Params = dict[str, Tensor]


@dataclass(frozen=True)
class Net:
    """What every net has. Subclasses are frozen dataclasses with the sizes and choices as fields."""

    d: int  # features, bias coordinate included where the data has one
    m: int  # neurons

    name = "net"
    trained: tuple[str, ...] = ()  # parameters that training moves
    homogeneous: tuple[str, ...] = ()  # the subset in which the output is homogeneous
    degree: int = 2  # and its degree
    outputs: int = 1  # classes, or 1

    def __post_init__(self) -> None:
        if self.d < 1 or self.m < 1:
            raise InputError(f"{self.name}: a network needs at least one feature and one neuron (width {self.m})")

    def init(self, trials: int, seed: int) -> dict[str, np.ndarray]:
        """Initial parameters of trials 0..B-1; trial b depends on (seed, b) alone, so a batch is a loop."""
        each = [self.draw(np.random.default_rng([seed, trial])) for trial in range(trials)]
        return {name: np.stack([one[name] for one in each]) for name in each[0]}

    def draw(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def evaluate(self, W: Params, X: Tensor) -> tuple[Tensor, Any]:
        """Outputs (B, n), or (B, n, K) with several classes, and what `pull` can use again (activations)."""
        raise NotImplementedError

    def forward(self, W: Params, X: Tensor) -> Tensor:
        return self.evaluate(W, X)[0]

    def pull(self, W: Params, X: Tensor, g: Tensor, saved: Any = None) -> Params:
        """sum_i g_i df(x_i)/dW for the trained parameters, g (B, n) or (B, n, K); `saved` from `evaluate` at the same W."""
        raise NotImplementedError

    def gram(self, W: Params, X: Tensor) -> Tensor:
        """<df(x_i)/dW, df(x_j)/dW> over the trained parameters (B, n, n)."""
        raise NotImplementedError

    def push(self, W: Params, X: Tensor, V: Params) -> Tensor:
        """Derivative of the outputs (B, n) along the direction V in the trained parameters."""
        raise NotImplementedError

    def neurons(self, W: Params) -> tuple[Tensor, Tensor] | None:
        """Signed mass (B, m) on unit directions (B, m, d): the network as a measure, if it is one."""
        return None

    def measure(self, W: Params, trial: int, bias: bool = False) -> Measure | None:
        """Trial `trial` as a Measure."""
        parts = self.neurons(W)
        if parts is None:
            return None
        mass, theta = (part[trial].detach().double().cpu().numpy() for part in parts)
        return Measure(theta, mass, getattr(self, "activation", "relu"), bias)

    def norm2(self, W: Params) -> Tensor:
        """Squared Euclidean norm (B,) of the homogeneous parameters."""
        return sum((W[name].flatten(1) ** 2).sum(1) for name in self.homogeneous)  # type: ignore[return-value]


@dataclass(frozen=True)
class TwoLayer(Net):
    """f(x) = scale sum_j a_j phi(v_j . x), phi = relu or its square (LR-1, CB-1, CB-17).

    `init`: "lr" a ~ N(0, 1/m), V ~ N(0, 1/d); "cb" all coordinates N(0, 1); "sphere" v uniform on the sphere, a = +-1;
    `law_scale` multiplies it. `mean_field` puts CB's 1/m in front. `train`: "both" layers or the "output" layer alone
    (with init "cb" the output weights then start at 0, as in CB's experiments). Squared ReLU follows CB-1: outer weights are
    signs and stay, only V is trained, and the network is 2-homogeneous in V.
    """

    activation: str = "relu"
    law: str = "lr"
    law_scale: float = 1.0
    mean_field: bool = False
    train: str = "both"

    name = "relu"

    def __post_init__(self) -> None:
        super().__post_init__()
        for what, value, allowed in (
            ("activation", self.activation, ("relu", "srelu")),
            ("law", self.law, ("lr", "cb", "sphere")),
            ("train", self.train, ("both", "output")),
        ):
            if value not in allowed:
                raise InputError(f"two-layer network: {what} {value!r} is not one of {', '.join(allowed)}")
        moving = ("a",) if self.train == "output" else ("V",) if self.activation == "srelu" else ("a", "V")
        object.__setattr__(self, "trained", moving)
        object.__setattr__(self, "homogeneous", moving)
        object.__setattr__(self, "degree", 1 if self.train == "output" else 2)

    @property
    def factor(self) -> float:
        return 1 / self.m if self.mean_field else 1.0

    def draw(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        a, V = rng.standard_normal(self.m), rng.standard_normal((self.m, self.d))
        if self.law == "lr":
            a, V = a / np.sqrt(self.m), V / np.sqrt(self.d)
        if self.law == "sphere" or self.activation == "srelu":
            a = np.where(a >= 0, 1.0, -1.0)
        if self.law == "sphere":
            V = V / np.linalg.norm(V, axis=1, keepdims=True)
        if self.train == "output" and self.law == "cb":
            a = np.zeros_like(a)
        grown = self.law_scale
        return {"a": a * (1.0 if self.activation == "srelu" else grown), "V": V * grown}

    def evaluate(self, W: Params, X: Tensor) -> tuple[Tensor, Tensor]:
        H = (X @ W["V"].mT).clamp_min_(0)  # (B, n, m)
        phi = H if self.activation == "relu" else H * H
        return self.factor * (phi @ W["a"][:, :, None])[:, :, 0], H

    def pull(self, W: Params, X: Tensor, g: Tensor, saved: Tensor | None = None) -> Params:
        H = (X @ W["V"].mT).clamp_min_(0) if saved is None else saved
        g = self.factor * g
        out: Params = {}
        if "a" in self.trained:
            out["a"] = (g[:, None, :] @ (H if self.activation == "relu" else H * H))[:, 0]
        if "V" in self.trained:
            slope = (H > 0).to(H.dtype) if self.activation == "relu" else 2 * H
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
            change = change + (phi @ V["a"][:, :, None])[:, :, 0]
        if "V" in self.trained:
            change = change + ((slope * (X @ V["V"].mT)) @ W["a"][:, :, None])[:, :, 0]
        return self.factor * change

    def _features(self, W: Params, X: Tensor) -> tuple[Tensor, Tensor]:
        H = (X @ W["V"].mT).clamp_min_(0)
        return (H, (H > 0).to(H.dtype)) if self.activation == "relu" else (H * H, 2 * H)

    def neurons(self, W: Params) -> tuple[Tensor, Tensor]:
        size = W["V"].norm(dim=2)
        power = size if self.activation == "relu" else size**2
        return self.factor * W["a"] * power, W["V"] / size.clamp_min(1e-300)[:, :, None]
