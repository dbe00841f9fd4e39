"""phi and phi' of a tensor, for the networks whose activation is a choice."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

from widemargin.spaces import Space, as_space


class Activated(Protocol):
    @property
    def activation(self) -> str: ...


def space_of(net: Activated) -> Space:
    return as_space(net.activation)


def rectified(T: Tensor, net: Activated) -> Tensor:
    """H in the place of T: phi(T) where phi has degree 1, and relu(T), whose square is phi(T), where it has degree 2."""
    slope = space_of(net).slope
    return nn.functional.leaky_relu_(T, slope) if slope else T.clamp_min_(0)


def powered(H: Tensor, net: Activated) -> Tensor:
    """phi(T) from H."""
    return H if space_of(net).degree == 1 else H * H


def slopes_of(H: Tensor, net: Activated) -> Tensor:
    """phi'(T) from H."""
    space = space_of(net)
    if space.degree == 2:
        return 2 * H
    return (H > 0).to(H.dtype).clamp_min_(space.slope) if space.slope else H.sign()
