"""Batch normalisation in one hidden layer (BN-1 to BN-3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from widemargin.spaces import as_numbers
from widemargin.types import InputError, Measure

from .base import Net, Params, mix, trial_numbers


@dataclass(frozen=True)
class BatchNorm(Net):
    """f(x) = sum_j a_j relu(c_j <v_j / N(v_j), x - mu>), N(v)^2 = v' Sigma v + eps (BN-1 to BN-3).

    a ~ N(0, 1/m), c = 1, V ~ N(0, 1/d); all are trained. mu and Sigma are those of the whole data and stay fixed
    (`BatchNorm.with_data`), for one data set or one per trial; Sigma is kept as root' root, never as a matrix d x d when
    n < d. `minibatch` takes them from the points passed in instead, as is done in practice.

    2-homogeneous in (a, c). Margin: M10 over ||a|| ||c||. A unit with N(v) = 0 (possible only if eps = 0) gives 0.

    d features, m neurons. `mean` (S, d) and `root` (S, k, d) are the statistics, S = 1 or one per trial.

    >>> import torch
    >>> from widemargin.flows import BatchNorm
    >>> X = torch.tensor([[[1.0], [5.0]]])  # mean 3, standard deviation 2
    >>> net = BatchNorm.with_data(X[0], m=1)
    >>> W = {"a": torch.tensor([[1.0]]), "c": torch.tensor([[1.0]]), "V": torch.tensor([[[7.0]]])}
    >>> net.forward(W, X).round(decimals=6)  # relu((x - 3) / 2), whatever the length of v
    tensor([[0., 1.]])
    """

    eps: float = 0.0
    minibatch: bool = False
    mean: np.ndarray | None = field(default=None, compare=False, repr=False)  # (S, d), S = 1 or one per trial
    root: np.ndarray | None = field(default=None, compare=False, repr=False)  # (S, k, d), Sigma = root' root

    name = "batchnorm"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.eps) and self.eps >= 0):
            raise InputError(f"batchnorm: eps must be zero or positive, not {self.eps!r}")
        if not self.minibatch and (self.mean is None or self.root is None):
            raise InputError("batchnorm: give the data whose statistics are used, BatchNorm.with_data(X, m)")
        if self.mean is not None and np.shape(self.mean)[-1] != self.d:
            raise InputError(f"batchnorm: the statistics have {np.shape(self.mean)[-1]} features, the network {self.d}")
        self._set(trained=("a", "c", "V"), homogeneous=("a", "c"), _ready={})

    @classmethod
    def with_data(cls, X: ArrayLike, m: int, eps: float = 0.0) -> BatchNorm:
        """The network with the statistics of X (n, d), or of X (B, n, d) with one data set per trial."""
        points = as_numbers("batchnorm: the data", X)
        if points.ndim not in (2, 3) or 0 in points.shape or not np.isfinite(points).all():
            raise InputError(f"batchnorm: the data must be finite numbers of shape (n, d), not {points.shape}")
        points = points.reshape(-1, *points.shape[-2:])
        n, d = points.shape[1:]
        mean = points.mean(axis=1)
        centred = (points - mean[:, None, :]) / np.sqrt(n)
        root = centred if n <= d else np.asarray(np.linalg.qr(centred, mode="r"))
        return cls(d, m, eps=eps, mean=mean, root=root)

    def draw(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        a, V = rng.standard_normal(self.m) / np.sqrt(self.m), rng.standard_normal((self.m, self.d)) / np.sqrt(self.d)
        return {"a": a, "c": np.ones(self.m), "V": V}

    def init(self, trials: int | Sequence[int], seed: int) -> dict[str, np.ndarray]:
        """Statistics that differ between trials travel with the parameters, so that trials can be taken apart."""
        drawn = super().init(trials, seed)
        if self.minibatch or self.mean is None or self.root is None or len(self.mean) == 1:
            return drawn
        count = len(trial_numbers(trials))
        if len(self.mean) != count:
            raise InputError(f"batchnorm: there are statistics of {len(self.mean)} data sets for {count} trials")
        return drawn | {"mean": self.mean.copy(), "root": self.root.copy()}

    def _statistics(self, W: Params, X: Tensor) -> tuple[Tensor, Tensor]:
        """mu (S, 1, d) and the root of Sigma (S, k, d), like X."""
        if self.minibatch:
            if X.shape[1] < 2:
                raise InputError("batchnorm: statistics of a minibatch need at least two points")
            mean = X.mean(1, keepdim=True)
            return mean, (X - mean) / math.sqrt(X.shape[1])
        if "root" in W:
            return W["mean"][:, None, :], W["root"]
        ready: dict[Any, tuple[Tensor, Tensor]] = self._ready  # type: ignore[attr-defined]
        key = (X.dtype, X.device)
        if key not in ready:
            mean, root = (torch.as_tensor(array, dtype=X.dtype, device=X.device) for array in (self.mean, self.root))
            ready[key] = mean[:, None, :], root
        return ready[key]

    def _normalized(self, W: Params, X: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """<v_j / N_j, xbar_i> (B, n, m); 1 / N_j (B, m); Sigma v_j / N_j (B, m, d); xbar."""
        mean, root = self._statistics(W, X)
        Xbar = X - mean
        image = W["V"] @ root.mT  # (B, m, k)
        N = ((image**2).sum(2) + self.eps).sqrt()
        scale = torch.where(N > 0, 1 / N, 0.0)  # (B, m)
        tilt = (image * scale[:, :, None]) @ root  # (B, m, d)
        return (Xbar @ W["V"].mT) * scale[:, None, :], scale, tilt, Xbar

    def evaluate(self, W: Params, X: Tensor) -> tuple[Tensor, Any]:
        saved = self._normalized(W, X)
        return mix((saved[0] * W["c"][:, None, :]).clamp_min_(0), W["a"]), saved

    def pull(self, W: Params, X: Tensor, g: Tensor, saved: Any = None) -> Params:
        P, scale, tilt, Xbar = self._normalized(W, X) if saved is None else saved
        on = (P * W["c"][:, None, :] > 0).to(P.dtype)
        pulled = (g[:, None, :] @ (P * on))[:, 0]  # (B, m), also <v_j, G_j> / N_j
        G = on.mT @ (g[:, :, None] * Xbar)  # (B, m, d)
        turned = (W["a"] * W["c"] * scale)[:, :, None] * (G - pulled[:, :, None] * tilt)
        return {"a": W["c"] * pulled, "c": W["a"] * pulled, "V": turned}

    def gram(self, W: Params, X: Tensor) -> Tensor:
        P, scale, tilt, Xbar = self._normalized(W, X)
        on = (P * W["c"][:, None, :] > 0).to(P.dtype)
        active = P * on
        K = (active * (W["a"] ** 2 + W["c"] ** 2)[:, None, :]) @ active.mT
        k = on * (W["a"] * W["c"] * scale)[:, None, :]  # (B, n, m); df/dv_j = k_ij (xbar_i - P_ij tilt_j)
        kP, kT = k * P, k * (Xbar @ tilt.mT)
        cross = kT @ kP.mT
        return (
            K + (Xbar @ Xbar.mT) * (k @ k.mT) - cross - cross.mT + (kP * (tilt**2).sum(2)[:, None, :]) @ kP.mT
        )  # (B, n, n)

    def push(self, W: Params, X: Tensor, V: Params) -> Tensor:
        P, scale, tilt, Xbar = self._normalized(W, X)
        on = (P * W["c"][:, None, :] > 0).to(P.dtype)
        change = mix(P * on, W["c"] * V["a"] + W["a"] * V["c"])
        shrink = (V["V"] * tilt).sum(2) * scale  # relative growth of N_j
        turned = (Xbar @ V["V"].mT) * scale[:, None, :] - P * shrink[:, None, :]
        return change + mix(on * turned, W["a"] * W["c"])

    def features(self, W: Params, X: Tensor) -> Tensor:
        return (self._normalized(W, X)[0] * W["c"].sign()[:, None, :]).clamp_min_(0)

    def outer(self, W: Params) -> Tensor:
        return W["a"] * W["c"].abs()

    def measure(self, W: Params, trial: int, *, bias: bool = False) -> Measure | None:
        """Trial `trial` on points with a bias coordinate, which carries -<w_j, mu>; none with minibatch statistics."""
        if self.minibatch:
            return None
        mean, root = self._statistics(W, W["V"])
        weights = {name: W[name][trial] for name in ("a", "c", "V")}
        mean, root = mean[trial % len(mean), 0], root[trial % len(root)]
        N = (((weights["V"] @ root.mT) ** 2).sum(1) + self.eps).sqrt()
        inner = weights["V"] * torch.where(N > 0, weights["c"] / N, 0.0)[:, None]  # (m, d)
        shift = -(inner @ mean)[:, None]
        theta = torch.cat([inner[:, :-1], inner[:, -1:] + shift] if bias else [inner, shift], 1)
        theta, mass = theta.detach().double().cpu(), weights["a"].detach().double().cpu()
        return Measure(theta.numpy(), mass.numpy(), "relu", True).normalized()

    def _conventions(self, W: Params) -> dict[str, Tensor]:
        return {"M10": W["a"].norm(dim=1) * W["c"].norm(dim=1)}
