"""Feature spaces: the neurons a margin may use. All that an activation is, but for the checker's own rule, stands here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from widemargin import kernels
from widemargin.errors import InputError, show

__all__ = ["LeakyReLU", "ReLU", "SReLU", "Space", "as_space", "extend", "sphere"]

NAMES = "'relu', 'srelu', 'leaky' or 'leaky:SLOPE' such as 'leaky:0.2'"
SLOPE = 0.01  # of a leaky ReLU, as in torch


class Space(ABC):
    """Features phi(theta . x) of unit directions theta; with `bias` every point is extended by a last coordinate 1.

    `degree` is the k with phi(c t) = c^k phi(t) for c > 0. X is (n, d), theta (m, D), D = d or d + 1; `features` is (n, m) and
    `kernel` (n, k). docs/adding.md has a space of one's own.

    >>> import widemargin as wm
    >>> issubclass(wm.spaces.ReLU, wm.spaces.Space)
    True
    >>> wm.spaces.ReLU(bias=True).extend([[2.0, 3.0]]).tolist()
    [[2.0, 3.0, 1.0]]
    """

    bias: bool
    degree: ClassVar[int]  # phi(c t) = c^degree phi(t) for c > 0
    # phi(t) = relu(t)^degree - slope relu(-t): the pricing problem is one of relu(t)^degree and a linear term (`pricing.Points`)
    slope: float = 0.0

    @property
    @abstractmethod
    def activation(self) -> str:
        """Its name, in certificates too: the checker has a rule for each."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "bias", as_truth("bias", self.bias))

    def extend(self, X: ArrayLike) -> np.ndarray:
        """X (n, d) as the features see it: (n, D), D = d or d + 1."""
        return extend(X, bias=self.bias)

    @abstractmethod
    def phi(self, t: Any) -> Any:
        """The activation, entry by entry, of an array or a tensor."""

    def features(self, theta: ArrayLike, X: ArrayLike) -> np.ndarray:
        """phi(theta_j . x_i): (n, m) for theta (m, D), which need not be unit."""
        extended, theta = self.extend(X), np.atleast_2d(np.asarray(theta, dtype=np.float64))
        if theta.shape[1] != extended.shape[1]:
            bias = "the bias coordinate included" if self.bias else "no bias coordinate"
            raise InputError(f"directions have {theta.shape[1]} entries but points have {extended.shape[1]} ({bias})")
        return self.phi(extended @ theta.T)  # (n, m)

    @abstractmethod
    def kernel(self, X: ArrayLike, Z: ArrayLike | None = None) -> np.ndarray:
        """E phi(v . x_i) phi(v . z_j) over uniform v on the unit sphere of R^D: (n, k); Z = X when left out."""


@dataclass(frozen=True, kw_only=True)
class ReLU(Space):
    """phi(t) = max(0, t).

    The activation of most theorems: `features` of theta (m, D) at X (n, d) are (n, m). `bias` extends the points by a 1.

    >>> import widemargin as wm
    >>> wm.spaces.ReLU().features([[1.0, 0.0], [-1.0, 0.0]], [[2.0, 5.0]]).tolist()
    [[2.0, 0.0]]
    >>> abs(wm.spaces.ReLU().kernel([[3.0, 4.0]]).item() - 25 / 4) < 1e-12  # |x|^2 / (2 D)
    True
    """

    bias: bool = False
    activation = "relu"
    degree: ClassVar[int] = 1

    def phi(self, t: Any) -> Any:
        return t.clip(0)

    def kernel(self, X: ArrayLike, Z: ArrayLike | None = None) -> np.ndarray:
        return kernels.relu(self.extend(X), None if Z is None else self.extend(Z))


@dataclass(frozen=True, kw_only=True)
class SReLU(Space):
    """phi(t) = max(0, t)^2.

    The squared ReLU, of degree 2: networks of it are 3-homogeneous. `bias` extends the points by a 1.

    >>> import widemargin as wm
    >>> wm.spaces.SReLU().features([[1.0, 1.0], [-1.0, 0.0]], [[1.0, 2.0]]).tolist()
    [[9.0, 0.0]]
    """

    bias: bool = False
    activation = "srelu"
    degree: ClassVar[int] = 2

    def phi(self, t: Any) -> Any:
        t = t.clip(0)
        return t * t

    def kernel(self, X: ArrayLike, Z: ArrayLike | None = None) -> np.ndarray:
        return kernels.srelu(self.extend(X), None if Z is None else self.extend(Z))


@dataclass(frozen=True, kw_only=True)
class LeakyReLU(Space):
    """phi(t) = max(0, t) - slope max(0, -t) = (1 - slope) max(0, t) + slope t, 0 <= slope < 1.

    Unlike ReLU it answers on both sides. `bias` extends the points by a 1.

    >>> import widemargin as wm
    >>> wm.spaces.LeakyReLU(slope=0.25).features([[1.0], [-1.0]], [[2.0]]).tolist()
    [[2.0, -0.5]]
    """

    bias: bool = False
    slope: float = SLOPE
    degree: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.slope < 1:
            raise InputError(f"the slope of a leaky ReLU must lie from 0 to below 1, not {self.slope!r}")
        object.__setattr__(self, "slope", abs(float(self.slope)))  # no -0.0

    @property
    def activation(self) -> str:
        return "leaky" if self.slope == SLOPE else f"leaky:{self.slope!r}"

    def phi(self, t: Any) -> Any:
        return t.clip(0) + self.slope * t.clip(None, 0)

    def kernel(self, X: ArrayLike, Z: ArrayLike | None = None) -> np.ndarray:
        """(1 - slope)^2 that of ReLU + slope x . z / D: E relu(v . x) v . z = x . z / (2 D)."""
        X = self.extend(X)
        Z = None if Z is None else self.extend(Z)
        line = X @ (X if Z is None else Z).T
        return (1 - self.slope) ** 2 * kernels.relu(X, Z) + self.slope / X.shape[1] * line


def as_space(activation: str, *, bias: bool = False) -> Space:
    """The space of an activation: "relu", "srelu", "leaky" (slope 0.01) or "leaky:0.2" (any slope from 0 to below 1).

    `bias` extends every point by a last coordinate 1.

    >>> import widemargin as wm
    >>> wm.spaces.as_space("leaky:0.2", bias=True)
    LeakyReLU(bias=True, slope=0.2)
    """
    bias = as_truth("bias", bias)
    if not isinstance(activation, str):
        raise InputError(f"activation must be {NAMES}, not {show(activation, 40)}")
    word, colon, slope = activation.partition(":")
    if word == "leaky":
        try:
            return LeakyReLU(bias=bias, slope=float(slope) if colon else SLOPE)
        except ValueError:  # an InputError is one, too
            raise InputError(
                f"the slope in activation {str(activation)[:40]!r} must be a number from 0 to below 1, as in 'leaky:0.2'"
            ) from None
    if activation not in ("relu", "srelu"):
        raise InputError(f"activation must be {NAMES}, not {str(activation)[:40]!r}")
    return ReLU(bias=bias) if activation == "relu" else SReLU(bias=bias)


def as_truth(name: str, value: Any) -> bool:
    """True or False, also as 1 or 0 or numpy's; an InputError for anything else, which Python would take for one of them."""
    if not (isinstance(value, bool | np.bool_) or (isinstance(value, int | np.integer) and value in (0, 1))):
        raise InputError(f"{name} must be True or False, not {show(value)}")
    return bool(value)


def as_numbers(what: str, values: Any) -> np.ndarray:
    """An array of float64 of arrays, lists and tensors; an InputError where these are no real numbers."""
    values = values.detach().cpu() if hasattr(values, "detach") else values
    try:
        array = np.asarray(values)
        numbers = None if array.dtype.kind in "cMm" else np.asarray(array, dtype=np.float64)
    except MemoryError:
        raise
    except Exception as error:  # objects may raise anything when they are made an array
        why = " ".join(str(error).split())[:120] or type(error).__name__
        raise InputError(f"{what} must hold real numbers only ({why})") from None
    if numbers is None:  # numpy would drop what is imaginary, and count days
        raise InputError(f"{what} must hold real numbers only, not {array.dtype}")
    return numbers


def extend(X: ArrayLike, *, bias: bool) -> np.ndarray:
    """Points X (n, d) as the neurons see them: as they are, or with `bias` with a last coordinate 1, (n, d + 1).

    >>> import widemargin as wm
    >>> wm.spaces.extend([[2.0], [3.0]], bias=True).tolist()
    [[2.0, 1.0], [3.0, 1.0]]
    """
    X = as_numbers("points", X)
    if X.ndim != 2:
        raise InputError(f"points must have two dimensions (points, features), not {X.ndim}")
    return np.hstack([X, np.ones((len(X), 1))]) if as_truth("bias", bias) else X


def sphere(m: int, D: int, seed: int = 0) -> np.ndarray:
    """m independent uniform unit vectors of R^D: (m, D). The same `seed` draws the same ones.

    >>> import numpy as np
    >>> import widemargin as wm
    >>> V = wm.spaces.sphere(5, 3, seed=1)
    >>> V.shape, np.allclose(np.linalg.norm(V, axis=1), 1)
    ((5, 3), True)
    """
    if m < 1 or D < 1:
        raise InputError(f"sphere needs at least one direction and one dimension, not m={m}, D={D}")
    v = np.random.default_rng(seed).standard_normal((m, D))
    return v / np.linalg.norm(v, axis=1, keepdims=True)
