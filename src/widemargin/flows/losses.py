"""Losses in the log domain: sums, smooth margins and dual weights that neither overflow nor vanish (CLAIMS 0.4, 0.5).

A loss is a decreasing function of the margin p = y f (for several classes p = f_y - log sum_{j != y} exp f_j, so that the
cross-entropy is the logistic loss at p). Everything is computed from ln l and ln |l'|: margins of 1e4 and sums of 1e-5000
are ordinary numbers here. Shapes: p (..., n), results (...,) or (..., n).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from widemargin.errors import did_you_mean, show
from widemargin.types import InputError

FAR = 40.0  # beyond it exp(-p) is below the rounding of 1 (torch's own threshold of 20 costs 2e-9)


@dataclass(frozen=True)
class Loss:
    """l_exp(p) = e^{-p} or l_log(p) = ln(1 + e^{-p})."""

    name: str

    def log(self, p: Tensor) -> Tensor:
        """ln l(p)."""
        if self.name == "exp":
            return -p
        near = softplus(-p.clamp_max(FAR), threshold=FAR).log()
        return torch.where(p > FAR, -p, near)  # ln l = -p - e^{-p} / 2 + ...

    def log_slope(self, p: Tensor) -> Tensor:
        """ln |l'(p)|."""
        return -p if self.name == "exp" else -softplus(p, threshold=FAR)

    def inverse(self, log_s: Tensor) -> Tensor:
        """l^{-1}(s) from ln s: -ln s, or -ln(e^s - 1)."""
        if self.name == "exp":
            return -log_s
        s = log_s.exp()
        small = -log_s - s / 2 - s * s / 24  # ln(e^s - 1) = ln s + s / 2 + s^2 / 24 - s^4 / 2880 + ...
        large = -(s + torch.log(-torch.expm1(-s.clamp_min(1e-4))))  # the clamp is for gradients of the unused branch
        return torch.where(log_s < -7.0, small, large)

    @property
    def at_zero(self) -> float:
        """l(0): the sum of losses below it means that all points are fitted."""
        return 1.0 if self.name == "exp" else 0.6931471805599453


EXP, LOGISTIC = Loss("exp"), Loss("logistic")
LOSSES = {"exp": EXP, "logistic": LOGISTIC, "ce": LOGISTIC}


def as_loss(name: str | Loss) -> Loss:
    if isinstance(name, Loss):
        return name
    if not isinstance(name, str) or name not in LOSSES:
        raise InputError(
            f"unknown loss {show(name)}{did_you_mean(name, (*LOSSES, 'squared'))}; choose exp, logistic, ce or squared"
        )
    return LOSSES[name]


def log_sum(loss: Loss, p: Tensor) -> Tensor:
    """ln sum_i l(p_i)."""
    return torch.logsumexp(loss.log(p), -1)


def psi(loss: Loss, p: Tensor) -> Tensor:
    """The smooth margin l^{-1}(sum_i l(p_i)) of UH and LR for a loss l and margins p (..., n); at most min_i p_i.

    >>> import torch
    >>> from widemargin.flows import losses
    >>> exp, p = losses.as_loss("exp"), torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    >>> round(losses.psi(exp, p).item(), 6)
    -0.349012
    """
    return loss.inverse(log_sum(loss, p))


def soft_margin(loss: Loss, p: Tensor, beta: float | Tensor = 1.0) -> Tensor:
    """CB's S_beta(p) = -(1 / beta) ln((1/n) sum_i l(beta p_i)) for a loss l and margins p (..., n).

    >>> import torch
    >>> from widemargin.flows import losses
    >>> exp, p = losses.as_loss("exp"), torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    >>> round(losses.soft_margin(exp, p).item(), 6)
    0.7496
    """
    scale = torch.as_tensor(beta, dtype=p.dtype, device=p.device)
    return -(log_sum(loss, scale[..., None] * p) - math.log(p.shape[-1])) / scale


def weights(loss: Loss, p: Tensor, kind: str) -> Tensor:
    """Weights of the points (..., n) for a loss l and margins p (..., n), by their kind.

    "soft_margin": |l'_i| / sum l        gradient of CB's S; sums to 1 for exp
    "psi":         |l'_i| / |l'(psi)|    gradient of psi; sums to 1 for exp and to at least 1 for logistic
    "mean":        |l'_i| / n            of the mean risk
    "unit":        |l'_i| / sum |l'|     in the simplex

    >>> import torch
    >>> from widemargin.flows import losses
    >>> exp, p = losses.as_loss("exp"), torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    >>> losses.weights(exp, p, "unit").numpy().round(4).tolist()
    [0.7054, 0.2595, 0.0351]
    """
    slope = loss.log_slope(p)
    if kind == "soft_margin":
        return (slope - log_sum(loss, p)[..., None]).exp()
    if kind == "psi":
        return (slope - log_Q(loss, p)[..., None]).exp()
    if kind == "mean":
        return slope.exp() / p.shape[-1]
    if kind == "unit":
        return torch.softmax(slope, -1)
    raise ValueError(f"unknown kind of weights {kind!r}")


def log_Q(loss: Loss, p: Tensor) -> Tensor:
    """ln |l'(psi)| for margins p (..., n): LR's Q. For the logistic loss |l'(psi)| = 1 - prod_i (1 - s_i), s_i = |l'(p_i)|.

    >>> import torch
    >>> from widemargin.flows import losses
    >>> exp, p = losses.as_loss("exp"), torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    >>> round(losses.log_Q(exp, p).item(), 6)  # -psi
    0.349012
    """
    return loss.log_slope(psi(loss, p))


def log_G(loss: Loss, p: Tensor) -> Tensor:
    """ln of UH's G = (1/n) sum_i |l'(p_i)|, the mean slope of a loss l at margins p (..., n).

    >>> import torch
    >>> from widemargin.flows import losses
    >>> exp, p = losses.as_loss("exp"), torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    >>> round(losses.log_G(exp, p).item(), 6)
    -0.7496
    """
    return torch.logsumexp(loss.log_slope(p), -1) - math.log(p.shape[-1])


def class_margin(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """p = f_y - log sum_{j != y} exp f_j (..., n) for outputs (..., n, K), and dp/df (..., n, K). CE = l_log(p)."""
    own, others = _split(outputs, labels)
    p = outputs.masked_fill(~own, 0).sum(-1) - torch.logsumexp(others, -1)
    return p, own.to(outputs.dtype) - torch.softmax(others, -1)


def hard_class_margin(outputs: Tensor, labels: Tensor) -> Tensor:
    """f_y - max_{j != y} f_j (..., n): the margin of MT-2. The soft one above lies between this minus ln(K - 1) and this."""
    own, others = _split(outputs, labels)
    return outputs.masked_fill(~own, 0).sum(-1) - others.amax(-1)


def _split(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Where the own class is (..., n, K), and the outputs with -inf there."""
    classes = torch.arange(outputs.shape[-1], device=outputs.device)  # one_hot would wait for the device
    own = labels[..., None] == classes
    return own, outputs.masked_fill(own, -torch.inf)
