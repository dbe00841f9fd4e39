"""Potentials of the proofs, as observers: how fast the flow moves towards a network that is known to be good.

    traj = flows.train(data, net, rule, stop=1000, record={"kl": flows.divergence(u), "phi": flows.growth(alpha)})

The comparator is the user's: the solution of `margins.frozen` on the directions of the net, or any other.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from widemargin.types import InputError

from .contract import log_scale
from .nets import Normalized, Product, Scalar, TwoLayer
from .observe import Observer, View


def divergence(reference: ArrayLike) -> Observer:
    """UH's D(ubar, u) = sum_j ubar_j ln(ubar_j / u_j) - ubar_j + u_j, u = |a b|, from `reference` ubar (m,) or (B, m) (UH-10).

    Its derivative along the mirror flow is <2 grad L(u), ubar - u>; it is infinite where u_j = 0 < ubar_j.

    >>> from widemargin import flows
    >>> from widemargin.types import Dataset
    >>> start = flows.Scalar(1, 1)  # u = 1 at the start
    >>> rule, record = flows.Mirror(), {"kl": flows.divergence([2.0])}
    >>> run = flows.train(Dataset([[1.0]], [1.0]), start, rule, stop=1, record=record)
    >>> round(float(run.records["kl"][0, 0]), 6)  # 2 ln 2 - 2 + 1
    0.386294
    """
    ubar = _weights(reference)

    def observe(view: View) -> Tensor:
        net, W = view.problem.net, view.W
        if not isinstance(net, Scalar | Normalized | Product):
            raise InputError("divergence is about networks with products a_j b_j: scalar, normalized and product")
        target = _fit(ubar, W["a"])
        log_u = (W["a"] * W["b"]).abs().log() + 2 * log_scale(W, view.state)[:, None]  # (B, m)
        return (torch.special.xlogy(target, target) - torch.where(target > 0, target * log_u, 0.0) - target).sum(
            1
        ) + log_u.exp().sum(1)

    return observe


def growth(weights: ArrayLike) -> Observer:
    """LR's Phi = (1/4) sum_j alpha_j ln |w_j|^2, w_j the parameters of neuron j, for `weights` alpha >= 0, (m,) or (B, m).

    |w_j|^2 = a_j^2 + b_j^2 in a scalar network, a_j^2 + |v_j|^2 in a two-layer one. With sum alpha = 1, Phi <= ln |W| / 2
    (LR-25, LR-29): while alpha mixes the neurons to margin gamma, Phi grows at least at the rate gamma / 2 in CB's clock.

    >>> from widemargin import flows
    >>> from widemargin.types import Dataset
    >>> rule, record = flows.GD(), {"phi": flows.growth([1.0])}
    >>> run = flows.train(Dataset([[1.0]], [1.0]), flows.Scalar(1, 1), rule, stop=1, record=record)
    >>> round(float(run.records["phi"][0, 0]), 6)  # |w|^2 = 2 at the start: ln(2) / 4
    0.173287
    """
    alpha = _weights(weights)

    def observe(view: View) -> Tensor:
        net, W = view.problem.net, view.W
        if isinstance(net, Scalar):
            size = W["a"] ** 2 + W["b"] ** 2
        elif isinstance(net, TwoLayer) and net.train == "both":
            size = W["a"] ** 2 + (W["V"] ** 2).sum(2)
        else:
            raise InputError("growth is about scalar networks and two-layer networks with both layers trained")
        target = _fit(alpha, W["a"])
        return 0.25 * (target * (size.log() + 2 * log_scale(W, view.state)[:, None])).sum(1)

    return observe


def _weights(values: ArrayLike) -> np.ndarray:
    try:
        real = np.asarray(values).dtype.kind != "c"
        out = np.atleast_2d(np.asarray(values, dtype=np.float64) if real else np.nan)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last of tensors that require gradients
        out = np.full((1, 1), np.nan)
    if out.ndim != 2 or not np.isfinite(out).all() or (out < 0).any():
        raise InputError("a comparator is a row of nonnegative numbers, one per neuron, or one such row per trial")
    return out


def _fit(values: np.ndarray, like: Tensor) -> Tensor:
    if values.shape[1] != like.shape[1] or len(values) not in (1, len(like)):
        raise InputError(f"the comparator has shape {values.shape}, the network {tuple(like.shape)} (trials, neurons)")
    return torch.as_tensor(values, dtype=like.dtype, device=like.device)
