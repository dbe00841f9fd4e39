"""Norms of parameters and their steepest directions, for a batch of trials (docs/steepest.md).

    l2          Euclidean norm of all parameters together      the gradient over its length
    linf        largest entry                                  the signs of the gradient
    l1          sum of all entries                             the one entry with the largest derivative
    spectral    largest spectral norm of the blocks            the polar factor of each block

Parameters are dictionaries of tensors (B, ...). A block (B, r, c) is a matrix; (B, m) is a matrix with one row, whose spectral
norm is its length. A steepest direction s has N(s) = 1 and <g, s> = N*(g), N* the dual norm.
"""

from __future__ import annotations

import torch
from torch import Tensor

from widemargin.errors import did_you_mean
from widemargin.types import InputError

from .nets import Params

NORMS = ("l2", "linf", "l1", "spectral")
MUON = (3.4445, -4.7750, 2.0315)  # coefficients of the quintic iteration that Muon is used with
NONE = 1e-12  # singular values below this share of the largest have no direction


def check_norm(norm: str) -> None:
    if norm not in NORMS:
        raise InputError(f"unknown norm {norm!r}{did_you_mean(norm, NORMS)}; choose {', '.join(NORMS)}")


def size(W: Params, norm: str) -> Tensor:
    """The norm (B,) of parameters."""
    each = [_blocks(value) for value in W.values()]
    if norm == "l2":
        return torch.stack([value.flatten(1).square().sum(1) for value in each]).sum(0).sqrt()
    if norm == "linf":
        return torch.stack([value.flatten(1).abs().amax(1) for value in each]).amax(0)
    if norm == "l1":
        return torch.stack([value.flatten(1).abs().sum(1) for value in each]).sum(0)
    return torch.stack([torch.linalg.svdvals(value).amax(1) for value in each]).amax(0)


def dual(G: Params, norm: str) -> Tensor:
    """The dual norm (B,) of a gradient."""
    other = {"l2": "l2", "linf": "l1", "l1": "linf"}.get(norm)
    if other is not None:
        return size(G, other)
    return torch.stack([torch.linalg.svdvals(_blocks(value)).sum(1) for value in G.values()]).sum(0)


def steepest(G: Params, norm: str, iterations: int = 0) -> Params:
    """The steepest direction along G, of norm 1; 0 where G is 0.

    `iterations` of the spectral norm: 0 is the exact polar factor, k > 0 as many steps of Muon's iteration, whose result has
    singular values between about 0.7 and 1.2.
    """
    if norm == "l2":
        length = size(G, "l2")
        return {name: value / _like(length.where(length > 0, 1), value) for name, value in G.items()}
    if norm == "linf":
        return {name: value.sign() for name, value in G.items()}
    if norm == "l1":
        flat = torch.cat([value.flatten(1) for value in G.values()], 1)
        at = flat.abs().argmax(1, keepdim=True)
        top = torch.zeros_like(flat).scatter(1, at, flat.gather(1, at).sign())
        parts = top.split([value[0].numel() for value in G.values()], 1)
        return {name: part.reshape(value.shape) for (name, value), part in zip(G.items(), parts)}
    step = {}
    for name, value in G.items():
        block = _blocks(value)
        step[name] = (newton_schulz(block, iterations) if iterations else polar(block)).reshape(value.shape)
    return step


def polar(G: Tensor) -> Tensor:
    """U V' of G = U S V' (B, r, c), without the directions in which G is 0 up to rounding."""
    sound = G.isfinite().flatten(1).all(1)[:, None, None]  # a trial that diverged must not stop the others
    U, S, Vh = torch.linalg.svd(G.where(sound, 0.0), full_matrices=False)
    keep = (NONE * S[:, :1] < S).to(G.dtype)
    return ((U * keep[:, None, :]) @ Vh).where(sound, torch.nan)


def newton_schulz(G: Tensor, iterations: int) -> Tensor:
    """Nearly the polar factor of G (B, r, c): X <- a X + (b A + c A^2) X with A = X X', from G over its Frobenius norm."""
    a, b, c = MUON
    wide = G.shape[1] > G.shape[2]
    X = G.mT if wide else G
    length = X.flatten(1).norm(dim=1).view(-1, 1, 1)
    X = X / length.where(length > 0, 1)
    for _ in range(iterations):
        A = X @ X.mT
        X = a * X + (b * A + c * A @ A) @ X
    return X.mT if wide else X


def _blocks(value: Tensor) -> Tensor:
    return value[:, None, :] if value.ndim == 2 else value.flatten(2)


def _like(each: Tensor, value: Tensor) -> Tensor:
    return each.view(-1, *[1] * (value.ndim - 1))
