"""The losses: value, slope and curvature at an output t, and what the dual makes of them (docs/optima.md).

For labels y = -1, +1 a loss is phi(y t), phi decreasing and convex; the squared loss takes any targets. With s = -slope, the dual
of one point is  inf_t loss(y, t) + s t,  which is concave in s and finite for s in a range that depends on y.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

from widemargin.errors import did_you_mean
from widemargin.types import InputError, show

Function = Callable[[np.ndarray], np.ndarray]

CHECKED = 2.0**-140  # `verify` adds up exp and log with 160 bits after the point: it sees no loss below some 2^-150


@dataclass(frozen=True)
class Loss:
    """phi(m) of the margin m = y t with its first two derivatives, and dual(s) = inf_m phi(m) + s m for 0 <= s <= most."""

    name: str
    phi: Function
    first: Function
    second: Function
    conjugate: Function
    most: float  # largest -phi'
    inverse: Function  # the m with -phi'(m) = s,
    steepness: Function  # and -dm/ds there
    labels: bool = True  # whether y must be -1 or +1
    least: float = 0.0  # what a checker may add

    def value(self, y: np.ndarray, t: np.ndarray) -> np.ndarray:
        return self.phi(y * t)

    def value_above(self, y: np.ndarray, t: np.ndarray, error: np.ndarray) -> np.ndarray:
        """At least the value at any output within `error` of t, as a checker sees it."""
        return self.phi(y * t - error) + self.least

    def pull(self, y: np.ndarray, t: np.ndarray) -> np.ndarray:
        """-d loss / dt: what a point asks for."""
        return -y * self.first(y * t)

    def curvature(self, y: np.ndarray, t: np.ndarray) -> np.ndarray:
        return self.second(y * t)

    def dual(self, y: np.ndarray, s: np.ndarray) -> np.ndarray:
        """inf_t loss(y, t) + s t for s in `limits`."""
        return self.conjugate(y * s)

    def dual_slopes(self, y: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First derivative of `dual` in s, which is the t where its infimum is, and minus the second; s inside `limits`."""
        return y * self.inverse(y * s), self.steepness(y * s)

    def limits(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Between which s the dual is finite."""
        far = y * self.most
        return np.minimum(0.0, far), np.maximum(0.0, far)

    def smoothed(self, width: float) -> Loss:
        """A loss with a curvature, at most `width` / 2 below this one."""
        return self


@dataclass(frozen=True)
class Hinge(Loss):
    """max(0, 1 - m). It has no curvature: a solver takes max over s in [0, 1] of s (1 - m) - width s^2 / 2 instead."""

    def smoothed(self, width: float) -> Loss:
        return Loss(
            self.name,
            lambda m: np.where(m < 1 - width, 1 - m - width / 2, (1 - m).clip(0) ** 2 / (2 * width)),
            lambda m: -((1 - m) / width).clip(0, 1),
            lambda m: ((m > 1 - width) & (m < 1)) / width,
            lambda s: s - width * s * s / 2,
            1.0,
            lambda s: 1 - width * s,
            lambda s: np.full_like(s, width),
        )


@dataclass(frozen=True)
class Squared(Loss):
    """(y - t)^2 / 2 for any targets y."""

    def value(self, y: np.ndarray, t: np.ndarray) -> np.ndarray:
        return 0.5 * (y - t) ** 2

    def value_above(self, y: np.ndarray, t: np.ndarray, error: np.ndarray) -> np.ndarray:
        return 0.5 * (np.abs(y - t) + error) ** 2

    def pull(self, y: np.ndarray, t: np.ndarray) -> np.ndarray:
        return y - t

    def curvature(self, y: np.ndarray, t: np.ndarray) -> np.ndarray:
        return np.ones_like(t)

    def dual(self, y: np.ndarray, s: np.ndarray) -> np.ndarray:
        return s * y - 0.5 * s * s

    def dual_slopes(self, y: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return y - s, np.ones_like(s)

    def limits(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.full_like(y, -np.inf), np.full_like(y, np.inf)


def _softplus(m: np.ndarray) -> np.ndarray:
    return np.logaddexp(0.0, -m)


def _spread(m: np.ndarray) -> np.ndarray:
    return special.expit(-m) * special.expit(m)


def _zero(m: np.ndarray) -> np.ndarray:
    return np.zeros_like(m)


def _exp(m: np.ndarray) -> np.ndarray:
    return np.exp(np.minimum(-m, 700.0))  # a line search may look far out


LOSSES = {
    loss.name: loss
    for loss in (
        Loss(
            "logistic",
            _softplus,
            lambda m: -special.expit(-m),
            _spread,
            lambda s: special.entr(s) - special.xlog1py(1 - s, -s),
            1.0,
            lambda s: np.log1p(-s) - np.log(s),
            lambda s: 1 / (s * (1 - s)),
            least=CHECKED,
        ),
        Squared("squared", _zero, _zero, _zero, _zero, np.inf, _zero, _zero, False),
        Hinge(
            "hinge", lambda m: (1 - m).clip(0), lambda m: -1.0 * (m < 1), _zero, lambda s: s, 1.0, np.ones_like, _zero
        ),
        Loss(
            "squared-hinge",
            lambda m: 0.5 * (1 - m).clip(0) ** 2,
            lambda m: -(1 - m).clip(0),
            lambda m: 1.0 * (m < 1),
            lambda s: s - 0.5 * s * s,
            np.inf,
            lambda s: 1 - s,
            np.ones_like,
        ),
        Loss(
            "exp",
            _exp,
            lambda m: -_exp(m),
            _exp,
            lambda s: s + special.entr(s),
            np.inf,
            lambda s: -np.log(s),
            lambda s: 1 / s,
            least=CHECKED,
        ),
    )
}


CLASSES = "cross-entropy"  # of several outputs, in outputs.py


# What PyTorch and others call them: how a name begins, in small letters.
ELSEWHERE = {
    "bce": "BCEWithLogitsLoss is 'logistic' with labels -1 and +1",
    "binarycrossentropy": "with a sigmoid it is 'logistic' with labels -1 and +1",
    "softmargin": "SoftMarginLoss is 'logistic'",
    "mse": "'squared' is half of MSELoss: docs/optima.md",
    "crossentropy": f"write {CLASSES!r}",
    "ce": f"write {CLASSES!r}",
}


def is_classes(name: object) -> bool:
    """Whether this is the loss of several classes. What is no text at all is left for `named` to refuse."""
    return isinstance(name, str) and name == CLASSES


def named(name: str) -> Loss:
    if not isinstance(name, str) or name not in LOSSES:
        if is_classes(name):
            why = " (of several classes there are optima.f1, path, gap and largest_decay)"
            raise InputError(f"loss must be one of {', '.join(LOSSES)}, not {name!r}{why}")
        word = "".join(c for c in show(name).lower() if c.isalpha())
        meant = next((f"; {usual}" for key, usual in ELSEWHERE.items() if word.startswith(key)), "")
        meant = meant or did_you_mean(name, (*LOSSES, CLASSES))
        raise InputError(f"loss must be one of {', '.join(LOSSES)}, {CLASSES}, not {show(name)}{meant}")
    return LOSSES[name]
