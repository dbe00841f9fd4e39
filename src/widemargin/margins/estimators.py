"""The interpolant of smallest norm as a scikit-learn estimator. The classifiers are in widemargin.optima.estimators."""

from __future__ import annotations

import importlib
import math
import time
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from widemargin.dataset import to_numpy
from widemargin.errors import did_you_mean
from widemargin.spaces import as_space, extend
from widemargin.types import Certificate, Dataset, InputError, show

from . import regression
from .door import EPS, open_limits


class Expansion:
    """f(x) = sum_j b_j k(x_j, x) with a kernel that is homogeneous: points are scaled so that nothing overflows."""

    def __init__(self, X: np.ndarray, bias: bool, activation: str | None) -> None:
        self.bias, self.activation = bias, activation  # activation None: the linear kernel
        self.shift = 0
        self.points = self._extend(X)
        self.shift = math.frexp(float(np.abs(self.points).max()))[1]
        self.points = np.ldexp(self.points, -self.shift)
        self.weights = np.zeros(len(X))
        self.power = 0  # f is 2^power times the sum over scaled points

    def room(self, time_limit: float | None) -> int:
        """Of how many points a matrix can be made and factorised: memory, and one step of the clock."""
        n, D = self.points.shape
        limits = open_limits(time_limit, None, time.perf_counter())
        return limits.largest(n, lambda k: k**3 + (2.0 * k + 50.0) * k * D, lambda k: 10.0 * k * k + 4.0 * k * D)

    def keep(self, some: np.ndarray) -> None:
        """The points `some` alone, as others have no weight."""
        self.points, self.weights = self.points[some], np.zeros(len(some))

    def _extend(self, X: np.ndarray) -> np.ndarray:
        return np.ldexp(extend(X, bias=self.bias), -self.shift)

    def kernel(self, Z: np.ndarray | None = None) -> np.ndarray:
        """k between scaled points: (n, n), or (k, n) from the scaled points Z."""
        if self.activation is None:
            return (self.points if Z is None else Z) @ self.points.T
        plain = as_space(self.activation)
        return plain.kernel(self.points) if Z is None else plain.kernel(Z, self.points)

    def ridged(self, ridge: float) -> np.ndarray:
        """k + ridge * (mean of its diagonal) * I, the ridge large enough for sums of its inverse to keep some digits."""
        k = self.kernel()
        ridge = max(ridge, 1000 * EPS * len(k))
        return k + ridge * (float(k.diagonal().mean()) or 1.0) * np.eye(len(k))

    def __call__(self, X: np.ndarray) -> np.ndarray:
        return np.ldexp(self.kernel(self._extend(X)) @ self.weights, self.power)

    @property
    def degree(self) -> int:
        return 1 if self.activation is None else as_space(self.activation).degree


class MinNormRegressor(RegressorMixin, BaseEstimator):
    """The interpolant f(x_i) = y_i of smallest norm in a function space, with a certificate of that norm.

    Parameters
    ----------
    space : "f1" or "f2"
        Two-layer networks with the variation norm, or the kernel space of random features (one linear system).
    bias : bool
        Extend every point by a coordinate 1, which is part of the norm.
    activation : "relu", "srelu", "leaky" or "leaky:SLOPE"
        The neurons.
    tol, time_limit, seed
        When the search ends, and for f1 its random starts.
    ridge : float
        Only used where no function interpolates (equal points with different targets, say) or none was found in time.
        Then f = sum_j b_j k(x_j, .) with b = (k + ridge * (mean of k's diagonal) * I)^-1 y, least squares with a small
        ridge in f2; with equal points it passes near the mean of their targets. A ridge below 1000 n EPS, EPS = 2.2e-16, would
        be lost in rounding, and is that number. Of more points than
        `time_limit` or the memory have room for, some are taken.

    Attributes
    ----------
    certificate_ : Certificate
        lower <= smallest norm of an interpolant <= upper.
    norm_ : float
        The certificate's upper bound, infinity if nothing interpolates or was found.
    measure_ : Measure or None
        The neurons of f (f1 only).
    soft_ : bool
        Whether f is the ridge solution, not an interpolant.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> import numpy as np
    >>> import widemargin as wm
    >>> X, y = np.array([[0.0], [1.0], [2.0]]), np.array([1.0, 3.0, 2.0])
    >>> fitted = wm.margins.MinNormRegressor(bias=True).fit(X, y)
    >>> fitted.predict(X).round(6).tolist(), fitted.soft_
    ([1.0, 3.0, 2.0], False)
    """

    def __init__(
        self,
        space: str = "f1",
        *,
        bias: bool = False,
        activation: str = "relu",
        tol: float = 1e-3,
        time_limit: float = 60.0,
        seed: int = 0,
        ridge: float = 1e-8,
    ) -> None:
        self.space = space
        self.bias = bias
        self.activation = activation
        self.tol = tol
        self.time_limit = time_limit
        self.seed = seed
        self.ridge = ridge

    def fit(self, X: ArrayLike, y: ArrayLike) -> MinNormRegressor:
        """Find the interpolant of X (n, d) and targets y (n,)."""
        check_choice("space", self.space, ("f1", "f2"))
        check_positive("ridge", self.ridge)
        points, targets = checked(self, to_numpy(X), to_numpy(y), dtype=np.float64, y_numeric=True)
        data = Dataset(points, column_or_1d(targets).astype(np.float64))
        self.certificate_ = self._solve(data)
        cert = self.certificate_
        unmet = cert.upper >= regression.LARGEST  # no function was found that meets all targets
        self.soft_ = cert.status == "no-interpolation" or unmet or (self.space == "f1" and cert.primal is None)
        self.measure_ = None if self.soft_ else cert.primal
        self.norm_ = math.inf if cert.upper >= regression.LARGEST else cert.upper
        self._function = self.measure_ if self.measure_ is not None else self._expand(data)
        return self

    def _expand(self, data: Dataset) -> Expansion:
        expansion = Expansion(data.X, bool(self.bias), self.activation)
        if self.soft_:
            some = np.sort(np.random.default_rng(0).permutation(data.n)[: expansion.room(self.time_limit)])
            expansion.keep(some)
            expansion.power = math.frexp(float(np.abs(data.y).max()))[1]
            y = np.ldexp(data.y[some], -expansion.power)
            expansion.weights = linalg.solve(expansion.ridged(self.ridge), y, assume_a="pos")
        else:  # b scales like X^(-2 degree)
            expansion.weights = np.ldexp(self.certificate_.dual, 2 * expansion.degree * expansion.shift)
        return expansion

    def _solve(self, data: Dataset) -> Certificate:
        options: dict[str, Any] = {"bias": bool(self.bias), "activation": self.activation, "tol": self.tol}
        options |= {"time_limit": self.time_limit}
        if self.space == "f2":
            return regression.min_norm_l2(data, **options)
        return regression.min_norm_l1(data, seed=self.seed, **options)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Values (n,) at the points X (n, d)."""
        check_is_fitted(self)
        points = checked(self, to_numpy(X), dtype=np.float64, reset=False)
        return self._function(points)


def checked(estimator: BaseEstimator, *given: Any, **keys: Any) -> Any:
    """What scikit-learn's `validate_data` returns, without warnings of the sums that it takes: of huge numbers they overflow."""
    with np.errstate(over="ignore", invalid="ignore"):
        return validate_data(estimator, *given, **keys)


def check_choice(name: str, value: Any, legal: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in legal:
        raise InputError(f"{name} must be one of {', '.join(legal)}, not {show(value)}{did_you_mean(value, legal)}")


def check_positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value < math.inf:
        raise InputError(f"{name} must be a positive number, not {show(value)}")


def __getattr__(name: str) -> Any:
    """MaxMarginClassifier is known by this name. Its soft margin needs the room of optima, which comes after this one."""
    if name == "MaxMarginClassifier":
        return importlib.import_module("widemargin.optima.estimators").MaxMarginClassifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
