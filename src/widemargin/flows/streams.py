"""Random streams that depend on (seed, what for, trial, step) alone: a batch is a loop, and resuming changes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Sampler = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]

GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
FOR_EXAMPLES, FOR_ORDER, FOR_BIRTHS, FOR_PLACES, FOR_DATA = range(5)


def _mix(z: Tensor) -> Tensor:
    """The finaliser of splitmix64 on int64, whose products wrap around; the masks make the shifts logical."""
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * (0xBF58476D1CE4E5B9 - (1 << 64))
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * (0x94D049BB133111EB - (1 << 64))
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


def uniforms(seed: int, use: int, trial: Tensor, step: Tensor, size: int) -> Tensor:
    """(B, size) numbers in (0, 1), float64: a hash of (seed, use, trial, step, place), the same on every device."""
    wrapped = (int(seed) + (1 << 63)) % (1 << 64) - (1 << 63)
    key = _mix(torch.full_like(trial, wrapped) * GOLDEN + (use + 1))
    key = _mix(key + (trial + 1) * GOLDEN)
    key = _mix(key + (step + 1) * GOLDEN)
    place = torch.arange(1, size + 1, device=trial.device)
    bits = (_mix(key[:, None] + place * GOLDEN) >> 11) & ((1 << 53) - 1)
    return (bits.double() + 0.5) * 2.0**-53


def sphere_points(seed: int, use: int, trial: Tensor, step: Tensor, count: int, dim: int) -> Tensor:
    """(B, count, dim) uniform points of the unit sphere, from normals by Box and Muller."""
    half = (count * dim + 1) // 2
    u = uniforms(seed, use, trial, step, 2 * half)
    radius, angle = (-2 * u[:, :half].log()).sqrt(), 2 * math.pi * u[:, half:]
    normal = torch.cat([radius * angle.cos(), radius * angle.sin()], 1)[:, : count * dim].view(-1, count, dim)
    return normal / normal.norm(dim=2, keepdim=True)


@dataclass(frozen=True)
class ParityStream:
    """A sampler of fresh examples of the parity of the coordinates S on {-1/sqrt d, 1/sqrt d}^d, uniform (LR-11, Table 1).

    Called with trials (B,), steps (B,) and a number of examples it returns X (B, count, d) and y (B, count), which depend on
    (seed, trial, step) alone.

    >>> import torch
    >>> from widemargin.flows import ParityStream
    >>> X, y = ParityStream(d=4)(torch.tensor([0, 1]), torch.tensor([7, 7]), 3)  # trials 0 and 1 at step 7, 3 examples each
    >>> X.shape, bool(torch.equal(y, (4 * X[:, :, 0] * X[:, :, 1]).round()))
    (torch.Size([2, 3, 4]), True)
    """

    d: int
    S: tuple[int, ...] = (0, 1)
    seed: int = 0

    def __call__(self, trial: Tensor, step: Tensor, count: int) -> tuple[Tensor, Tensor]:
        u = uniforms(self.seed, FOR_DATA, trial, step, count * self.d).view(-1, count, self.d)
        signs = torch.where(u < 0.5, -1.0, 1.0).double()
        y = torch.ones_like(signs[:, :, 0])
        for s in self.S:  # an index list would be copied to the device, which recorded steps do not allow
            y = y * signs[:, :, s]
        return signs / math.sqrt(self.d), y


@dataclass(frozen=True)
class LawStream:
    """A sampler from `law(rng, count) -> (X (count, d), y (count,))`, one generator for each (seed, trial, step).

    Runs on the host; a law written in torch as in ParityStream avoids the copy.

    >>> import torch
    >>> from widemargin.flows import LawStream
    >>> stream = LawStream(lambda rng, count: (rng.standard_normal((count, 2)), rng.choice([-1.0, 1.0], count)))
    >>> X, y = stream(torch.tensor([0, 1]), torch.tensor([7, 7]), 3)
    >>> X.shape, torch.equal(stream(torch.tensor([1]), torch.tensor([7]), 3)[0], X[1:])  # a trial does not see the others
    (torch.Size([2, 3, 2]), True)
    """

    law: Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]
    seed: int = 0

    def __call__(self, trial: Tensor, step: Tensor, count: int) -> tuple[Tensor, Tensor]:
        numbers = zip(trial.tolist(), step.tolist())
        each = [self.law(np.random.default_rng([self.seed, *number]), count) for number in numbers]
        X, y = (np.stack(part).astype(np.float64) for part in zip(*each))
        return torch.as_tensor(X, device=trial.device), torch.as_tensor(y, device=trial.device)
