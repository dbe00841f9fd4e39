"""The product head a * b on normalised features, or on any torch feature map (UH-1, UH-2)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from widemargin.types import InputError

from .base import Net, Params, mix, polar, unit


@dataclass(frozen=True)
class Head(Net):
    """h(x) = <a * b, F(x; V)>: what the product nets share. a_j, b_j uniform on +-1/sqrt(m), so u(0) = 1/m (UH-1).

    2-homogeneous in (a, b). Margins: M4 over ||a||^2 + ||b||^2, M5 over ||u||_1, u = |a * b|.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(trained=("a", "b"), homogeneous=("a", "b"))

    def outer(self, W: Params) -> Tensor:
        return W["a"] * W["b"]

    def u(self, W: Params) -> Tensor:
        """|a * b| (B, m): the mirror variable of UH-9."""
        return self.outer(W).abs()

    def beta(self, W: Params) -> Tensor:
        """Signs of a * b (B, m)."""
        return self.outer(W).sign()

    def _draw_outer(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        a, b = rng.choice([-1.0, 1.0], (2, self.m)) / np.sqrt(self.m)
        return {"a": a, "b": b}

    def _pull_outer(self, W: Params, F: Tensor, g: Tensor) -> Params:
        pulled = (g[:, None, :] @ F)[:, 0]  # (B, m)
        return {"a": W["b"] * pulled, "b": W["a"] * pulled}

    def _gram_outer(self, W: Params, F: Tensor) -> Tensor:
        return (F * (W["a"] ** 2 + W["b"] ** 2)[:, None, :]) @ F.mT

    def _push_outer(self, W: Params, F: Tensor, V: Params) -> Tensor:
        return mix(F, W["b"] * V["a"] + W["a"] * V["b"])

    def _conventions(self, W: Params) -> dict[str, Tensor]:
        return {"M4": self.norm2(W), "M5": self.u(W).sum(1)}


@dataclass(frozen=True)
class Normalized(Head):
    """The product head on F_j(x; V) = relu(<v_j / ||v_j||, x>), a, b and V trained, v uniform on the sphere (UH-2).

    d features, m neurons. Parameters a and b (B, m), V (B, m, d). Margins: M4, M5 and M1, which is M5 here.

    >>> import torch
    >>> from widemargin.flows import Normalized
    >>> net = Normalized(d=2, m=1)
    >>> W = {"a": torch.tensor([[2.0]]), "b": torch.tensor([[-1.0]]), "V": torch.tensor([[[5.0, 0.0]]])}
    >>> net.forward(W, torch.tensor([[[3.0, 4.0]]]))  # the length of v plays no part
    tensor([[-6.]])
    >>> net.normalizers(W)["M5"]
    tensor([2.])
    """

    name = "normalized"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(trained=("a", "b", "V"))

    def draw(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return self._draw_outer(rng) | {"V": unit(rng.standard_normal((self.m, self.d)))}

    def features(self, W: Params, X: Tensor) -> Tensor:
        return (X @ polar(W["V"])[1].mT).clamp_min_(0)  # (B, n, m)

    def evaluate(self, W: Params, X: Tensor) -> tuple[Tensor, Tensor]:
        F = self.features(W, X)
        return mix(F, self.outer(W)), F

    def pull(self, W: Params, X: Tensor, g: Tensor, saved: Tensor | None = None) -> Params:
        F = self.features(W, X) if saved is None else saved
        size, theta = polar(W["V"])
        G = (F > 0).to(F.dtype).mT @ (g[:, :, None] * X)  # (B, m, d)
        out = self._pull_outer(W, F, g)
        radial = (g[:, None, :] @ F)[:, 0]  # <G_j, theta_j>
        out["V"] = (self.outer(W) / size)[:, :, None] * (G - radial[:, :, None] * theta)
        return out

    def gram(self, W: Params, X: Tensor) -> Tensor:
        F = self.features(W, X)
        weight = (self.outer(W) / polar(W["V"])[0])[:, None, :]
        S, R = (F > 0) * weight, F * weight
        return self._gram_outer(W, F) + (X @ X.mT) * (S @ S.mT) - R @ R.mT

    def push(self, W: Params, X: Tensor, V: Params) -> Tensor:
        F = self.features(W, X)
        size, theta = polar(W["V"])
        turned = V["V"] - (V["V"] * theta).sum(2, keepdim=True) * theta
        return self._push_outer(W, F, V) + mix((F > 0) * (X @ turned.mT), self.outer(W) / size)

    def neurons(self, W: Params) -> tuple[Tensor, Tensor]:
        return self.outer(W), polar(W["V"])[1]

    def _conventions(self, W: Params) -> dict[str, Tensor]:
        sizes = super()._conventions(W)
        return sizes | {"M1": sizes["M5"]}


def normalized_features(d: int, m: int) -> nn.Module:
    """A simple feature map for the product head: RMSNorm(relu(V x)), bounded by sqrt(m)."""
    return nn.Sequential(nn.Linear(d, m, bias=False), nn.ReLU(), nn.RMSNorm(m, elementwise_affine=False))


@dataclass(frozen=True)
class Product(Head):
    """The product head over any torch feature map (n, d) -> (n, m) (UH-1); by default RMSNorm(relu(V x)).

    The map's parameters are "V.<name>" here, one copy per trial, drawn by the `reset_parameters` of its layers (parameters
    of layers without one start as given). `train_features` says whether they move. The map runs in evaluation mode.

    `feature_map` is that module, or None for the default; d and m are its sizes. Parameters a and b are (B, m).

    >>> import torch
    >>> from widemargin.flows import Product
    >>> net = Product(d=2, m=2, feature_map=torch.nn.Identity())
    >>> W = {"a": torch.tensor([[1.0, 2.0]]), "b": torch.tensor([[1.0, 3.0]])}
    >>> net.forward(W, torch.tensor([[[1.0, 10.0]]]))  # 1 * 1 + 6 * 10
    tensor([[61.]])
    """

    feature_map: nn.Module | None = field(default=None, compare=False, repr=False)
    train_features: bool = True

    name = "product"

    def __post_init__(self) -> None:
        super().__post_init__()
        given = normalized_features(self.d, self.m) if self.feature_map is None else self.feature_map
        if not isinstance(given, nn.Module):
            raise InputError(f"product: the feature map must be a torch module, not {given!r}")
        if any(getattr(module, "track_running_stats", False) for module in given.modules()):
            raise InputError("product: the feature map keeps running statistics; set track_running_stats=False in it")
        made = copy.deepcopy(given).double().eval().requires_grad_(False)
        shape = tuple(made(torch.zeros(2, self.d, dtype=torch.float64)).shape)
        if shape != (2, self.m):
            raise InputError(f"product: the feature map turns 2 points into shape {shape}, but the width is {self.m}")
        moving = tuple(f"V.{name}" for name, _ in made.named_parameters()) if self.train_features else ()
        self._set(feature_map=made, trained=("a", "b", *moving))

    @property
    def _module(self) -> nn.Module:
        assert self.feature_map is not None
        return self.feature_map

    def draw(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        out = self._draw_outer(rng)
        fresh = copy.deepcopy(self._module)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(2**63)))
            for layer in fresh.modules():
                if callable(getattr(layer, "reset_parameters", None)):
                    layer.reset_parameters()  # type: ignore[operator]
        state = [*fresh.named_parameters(), *((k, v) for k, v in fresh.named_buffers() if v.is_floating_point())]
        return out | {f"V.{name}": value.numpy().copy() for name, value in state}

    def _map(self, P: Params, X: Tensor) -> Tensor:
        """F(x; V) (B, n, m) at parameters P, keys "V.<name>"."""

        def of_trial(P: Params, x: Tensor) -> Tensor:
            return torch.func.functional_call(self._module, {name[2:]: value for name, value in P.items()}, (x,))

        if not P:  # a map without parameters
            return torch.vmap(lambda x: of_trial({}, x))(X)
        return torch.vmap(of_trial, (0, None))(P, X[0]) if len(X) == 1 else torch.vmap(of_trial)(P, X)

    def _parts(self, W: Params) -> tuple[Params, Params]:
        """The map's parameters that move, and those that stay."""
        inner = {name: value for name, value in W.items() if name.startswith("V.")}
        return {k: v for k, v in inner.items() if k in self.trained}, {
            k: v for k, v in inner.items() if k not in self.trained
        }

    def features(self, W: Params, X: Tensor) -> Tensor:
        moving, still = self._parts(W)
        return self._map(moving | still, X)

    def forward(self, W: Params, X: Tensor) -> Tensor:
        return mix(self.features(W, X), self.outer(W))

    def evaluate(self, W: Params, X: Tensor) -> tuple[Tensor, tuple[Tensor, Callable[..., Any] | None]]:
        moving, still = self._parts(W)
        if not moving:
            F = self._map(still, X)
            return mix(F, self.outer(W)), (F, None)
        F, back, *_ = torch.func.vjp(lambda P: self._map(P | still, X), moving)
        return mix(F, self.outer(W)), (F, back)

    def pull(self, W: Params, X: Tensor, g: Tensor, saved: Any = None) -> Params:
        F, back = self.evaluate(W, X)[1] if saved is None else saved
        out = self._pull_outer(W, F, g)
        return out if back is None else out | back(self._to_features(W, F, g))[0]

    def _to_features(self, W: Params, F: Tensor, g: Tensor) -> Tensor:
        return (g[..., None] * self.outer(W)[:, None, :]).expand_as(F)

    def gram(self, W: Params, X: Tensor) -> Tensor:
        """Rows of the Jacobian in V are formed one by one: memory n x parameters per trial."""
        F, back = self.evaluate(W, X)[1]
        K = self._gram_outer(W, F)
        if back is None:
            return K
        picks = torch.eye(F.shape[1], dtype=F.dtype, device=F.device)
        rows = torch.vmap(lambda e: back(self._to_features(W, F, e[None]))[0])(picks)
        J = torch.cat([row.flatten(2) for row in rows.values()], 2).transpose(0, 1)  # (B, n, parameters)
        return K + J @ J.mT

    def push(self, W: Params, X: Tensor, V: Params) -> Tensor:
        moving, still = self._parts(W)
        if not moving:
            return self._push_outer(W, self._map(still, X), V)
        F, back, *_ = torch.func.vjp(lambda P: self._map(P | still, X), moving)
        _, along, *_ = torch.func.vjp(lambda u: back(u)[0], torch.zeros_like(F))  # the transpose of the transpose
        turned = along({k: V[k] for k in moving})[0]
        return self._push_outer(W, F, V) + mix(turned, self.outer(W))
