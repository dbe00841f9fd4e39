"""Fused kernels for two-layer ReLU networks on a GPU: the n x m activations never leave the chip.

A program owns one trial and a block of neurons and walks over the points. Forward writes a partial output per block, summed
afterwards in a fixed order (no atomics, so results are reproducible); backward recomputes the activations, which is cheaper than
reading them, and accumulates both gradients. Triton is imported where it is used: it comes with the CUDA builds of torch.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor


def usable(X: Tensor) -> bool:
    """Whether the kernels apply: CUDA tensors, float32 or float64, at most 64 features, Triton there."""
    return X.is_cuda and X.shape[2] <= 64 and X.dtype in (torch.float32, torch.float64) and _kernels() is not None


@cache
def _kernels() -> Any:
    try:
        import triton
        import triton.language as tl
        from triton.language.extra import libdevice
    except ImportError:
        return None

    @triton.jit
    def forward(X, V, a, out, n, m, d, x_trial, D: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr):  # type: ignore[no-untyped-def]
        trial, block = tl.program_id(0), tl.program_id(1)
        j, k = block * BM + tl.arange(0, BM), tl.arange(0, D)
        v = tl.load(
            V + trial * m * d + j[None, :] * d + k[:, None], mask=(j[None, :] < m) & (k[:, None] < d), other=0.0
        )
        outer = tl.load(a + trial * m + j, mask=j < m, other=0.0)
        for start in range(0, n, BN):
            i = start + tl.arange(0, BN)
            x = tl.load(
                X + trial * x_trial + i[:, None] * d + k[None, :], mask=(i[:, None] < n) & (k[None, :] < d), other=0.0
            )
            H = tl.maximum(tl.dot(x, v, input_precision="ieee", out_dtype=x.dtype), 0.0)  # (BN, BM)
            f = tl.sum(H * outer[None, :], axis=1)
            tl.store(out + (trial * tl.num_programs(1) + block) * n + i, f, mask=i < n)

    @triton.jit
    def backward(X, V, a, g, out_a, out_V, n, m, d, x_trial, D: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr):  # type: ignore[no-untyped-def]
        trial, block = tl.program_id(0), tl.program_id(1)
        j, k = block * BM + tl.arange(0, BM), tl.arange(0, D)
        v = tl.load(
            V + trial * m * d + j[None, :] * d + k[:, None], mask=(j[None, :] < m) & (k[:, None] < d), other=0.0
        )
        outer = tl.load(a + trial * m + j, mask=j < m, other=0.0)
        grad_a = tl.zeros((BM,), dtype=v.dtype)
        grad_V = tl.zeros((BM, D), dtype=v.dtype)
        for start in range(0, n, BN):
            i = start + tl.arange(0, BN)
            x = tl.load(
                X + trial * x_trial + i[:, None] * d + k[None, :], mask=(i[:, None] < n) & (k[None, :] < d), other=0.0
            )
            weight = tl.load(g + trial * n + i, mask=i < n, other=0.0)
            S = tl.dot(x, v, input_precision="ieee", out_dtype=x.dtype)  # (BN, BM)
            on = tl.where(S > 0, weight[:, None], 0.0).to(x.dtype)
            grad_a += tl.sum(on * S, axis=0)
            grad_V = tl.dot(tl.trans(on), x, grad_V, input_precision="ieee", out_dtype=x.dtype)
        tl.store(out_a + trial * m + j, grad_a, mask=j < m)
        grad_V = grad_V * outer[:, None]
        tl.store(out_V + trial * m * d + j[:, None] * d + k[None, :], grad_V, mask=(j[:, None] < m) & (k[None, :] < d))

    @triton.jit
    def dual(P, out, total, n, LOGISTIC: tl.constexpr, KIND: tl.constexpr, N: tl.constexpr):  # type: ignore[no-untyped-def]
        trial, i = tl.program_id(0), tl.arange(0, N)
        p = tl.load(P + trial * n + i, mask=i < n, other=float("inf"))
        if LOGISTIC:
            near = libdevice.log1p(tl.exp(-tl.abs(p)))  # ln(1 + e^{-|p|})
            log_loss = tl.where(p > 40.0, -p, tl.log(near + tl.maximum(-p, 0.0)))
            log_slope = -(near + tl.maximum(p, 0.0))
        else:
            log_loss, log_slope = -p, -p
        log_loss = tl.where(i < n, log_loss, -float("inf"))
        log_slope = tl.where(i < n, log_slope, -float("inf"))
        top = tl.max(log_loss, axis=0)
        log_sum = top + tl.log(tl.sum(tl.exp(log_loss - top), axis=0))
        if KIND == "mean":
            weight = tl.exp(log_slope) / n
        elif KIND == "soft_margin":
            weight = tl.exp(log_slope - log_sum)
        else:
            high = tl.max(log_slope, axis=0)
            weight = tl.exp(log_slope - high)
            weight = weight / tl.sum(weight, axis=0)
        tl.store(out + trial * n + i, weight, mask=i < n)
        tl.store(total + trial, log_sum)

    return triton, forward, backward, dual


def _blocks(X: Tensor, m: int, back: bool) -> tuple[int, int, int]:
    """Points and neurons per program and the padded number of features: the fastest of those tried on an H200."""
    wide = max(16, 1 << (X.shape[2] - 1).bit_length())
    if m <= 32:
        return 64, 32, wide
    if wide > 16:
        return 64, 64, wide
    if X.dtype == torch.float32:
        return 128, 128, wide
    return (128 if back else 64), 64, wide


def forward(X: Tensor, V: Tensor, a: Tensor) -> Tensor:
    """sum_j a_j relu(v_j . x_i) (B, n) for X (1 or B, n, d), V (B, m, d), a (B, m)."""
    triton, kernel, *_ = _kernels()
    (B, m, d), n = V.shape, X.shape[1]
    BN, BM, D = _blocks(X, m, back=False)
    blocks = triton.cdiv(m, BM)
    parts = torch.empty(B, blocks, n, device=X.device, dtype=X.dtype)
    kernel[(B, blocks)](X, V, a, parts, n, m, d, 0 if len(X) == 1 else n * d, D=D, BN=BN, BM=BM)
    return parts.sum(1)


def backward(X: Tensor, V: Tensor, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """sum_i g_i relu(v_j . x_i) (B, m) and sum_i g_i a_j 1[v_j . x_i > 0] x_i (B, m, d) for g (B, n)."""
    triton, _, kernel, _ = _kernels()
    (B, m, d), n = V.shape, X.shape[1]
    BN, BM, D = _blocks(X, m, back=True)
    out_a, out_V = torch.empty_like(a), torch.empty_like(V)
    stride = 0 if len(X) == 1 else n * d
    kernel[(B, triton.cdiv(m, BM))](X, V, a, g, out_a, out_V, n, m, d, stride, D=D, BN=BN, BM=BM)
    return out_a, out_V


def dual(p: Tensor, logistic: bool, kind: str) -> tuple[Tensor, Tensor] | None:
    """`losses.weights` of p (B, n) and ln of the sum of losses (B,) in one kernel; None where it does not apply."""
    if not p.is_cuda or kind not in ("mean", "soft_margin", "unit") or p.shape[1] > 8192 or _kernels() is None:
        return None
    triton, *_, kernel = _kernels()
    p = p.contiguous()
    out, total = torch.empty_like(p), p.new_empty(len(p))
    kernel[(len(p),)](p, out, total, p.shape[1], LOGISTIC=logistic, KIND=kind, N=triton.next_power_of_2(p.shape[1]))
    return out, total
