"""Margins of all rows of logits in one pass on a GPU: what is read once and never copied costs next to nothing.

A program owns one example and walks over its classes with a running maximum and sum for each lane, leaving out the example's
own class. Triton is imported where it is used: it comes with the CUDA builds of torch.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

BLOCK = 4_096  # classes looked at together, at most


@cache
def _kernel() -> Any:
    try:
        import triton
        import triton.language as tl
    except ImportError:
        return None

    @triton.jit
    def kernel(F, own, out, count, length, s0, s1, s2, classes, B: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64)
        F += (row // length) * s0 + (row % length) * s1
        mine = tl.minimum(
            tl.maximum(tl.load(own + row), 0), classes - 1
        )  # others than classes count later, or not at all
        value = tl.load(F + mine * s2).to(out.dtype.element_ty)
        top = tl.full((B,), float("-inf"), out.dtype.element_ty)
        total = tl.zeros((B,), out.dtype.element_ty)
        for start in range(0, classes, B):
            j = start + tl.arange(0, B)
            f = tl.load(F + j.to(tl.int64) * s2, mask=(j < classes) & (j != mine), other=float("-inf")).to(
                out.dtype.element_ty
            )
            higher = tl.maximum(top, f)
            base = tl.where(higher == float("-inf"), 0.0, higher)  # classes that are masked out add nothing
            total = total * tl.exp(top - base) + tl.exp(f - base)  # NaN from here on where f is NaN or +inf
            top = higher
        highest = tl.max(top, axis=0)
        base = tl.where(highest == float("-inf"), 0.0, highest)
        value = tl.where(value == float("inf"), float("nan"), value)
        hard = value - highest
        soft = hard - tl.log(tl.sum(total * tl.exp(top - base), axis=0))
        tl.store(out + row, soft)
        tl.store(out + count + row, tl.where(soft != soft, soft, hard))

    return triton, kernel


def rows(logits: Tensor, own: Tensor) -> Tensor | None:
    """Soft and hard margins (2, N) of logits (N, K) or (B, T, K) and targets; None where the kernel is of no use."""
    if not logits.is_cuda or logits.ndim not in (2, 3) or not own.numel() or not _works(logits.device):
        return None
    return _run(logits, own)


def _run(logits: Tensor, own: Tensor) -> Tensor:
    triton, kernel = _kernel()
    wide = logits.dtype if logits.dtype == torch.float64 else torch.float32
    own = own.reshape(-1).contiguous()
    out = torch.empty((2, len(own)), dtype=wide, device=logits.device)
    length, strides = (1, (logits.stride(0), 0)) if logits.ndim == 2 else (logits.shape[1], logits.stride()[:2])
    classes = logits.shape[-1]
    block = min(BLOCK, max(16, triton.next_power_of_2(classes)))
    with torch.cuda.device(logits.device):
        kernel[(len(own),)](logits, own, out, len(own), length, *strides, logits.stride(-1), classes, B=block)
    return out


@cache
def _works(device: torch.device) -> bool:
    """Whether a trial gives the right answer: Triton needs a compiler, which not every machine has."""
    if _kernel() is None:
        return False
    try:
        answer = _run(torch.tensor([[1.0, 3.0, -torch.inf, 2.5]], device=device), torch.tensor([1], device=device))
    except Exception:
        return False
    want = torch.tensor([[3 - torch.log(torch.tensor(1.0).exp() + torch.tensor(2.5).exp())], [0.5]])
    return bool(torch.allclose(answer.cpu(), want, atol=1e-5))
