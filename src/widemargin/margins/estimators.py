"""The margins and smallest norms as scikit-learn estimators."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from widemargin.spaces import as_space
from widemargin.types import Certificate, Dataset, InputError, Measure

from . import regression
from .f2 import f2
from .linear import linear


class _Expansion:
    """f(x) = sum_j b_j k(x_j, x) with a kernel that is homogeneous: points are scaled so that nothing overflows."""

    def __init__(self, X: np.ndarray, bias: bool, activation: str | None) -> None:
        self.bias, self.activation = bias, activation  # activation None: the linear kernel
        self.shift = 0
        self.points = self._extend(X)
        self.shift = math.frexp(float(np.abs(self.points).max()))[1]
        self.points = np.ldexp(self.points, -self.shift)
        self.weights = np.zeros(len(X))
        self.power = 0  # f is 2^power times the sum over scaled points

    def _extend(self, X: np.ndarray) -> np.ndarray:
        points = np.hstack([X, np.ones((len(X), 1))]) if self.bias else X
        return np.ldexp(points, -self.shift)

    def kernel(self, Z: np.ndarray | None = None) -> np.ndarray:
        """k between scaled points: (n, n), or (k, n) from the scaled points Z."""
        if self.activation is None:
            return (self.points if Z is None else Z) @ self.points.T
        plain = as_space(self.activation)
        return plain.kernel(self.points) if Z is None else plain.kernel(Z, self.points)

    def ridged(self, ridge: float) -> np.ndarray:
        """k + ridge * (mean of its diagonal) * I."""
        k = self.kernel()
        return k + ridge * (float(k.diagonal().mean()) or 1.0) * np.eye(len(k))

    def __call__(self, X: np.ndarray) -> np.ndarray:
        return np.ldexp(self.kernel(self._extend(X)) @ self.weights, self.power)

    @property
    def degree(self) -> int:
        return 1 if self.activation is None else as_space(self.activation).degree


class MaxMarginClassifier(ClassifierMixin, BaseEstimator):
    """The two-class classifier of largest margin in the unit ball of a function space, with a certificate.

    Parameters
    ----------
    space : "f1", "f2" or "linear"
        Two-layer networks with the variation norm, the kernel space of random features, or linear functions.
    bias : bool
        Extend every point by a coordinate 1 (part of the norm, unlike the intercept of an SVM).
    activation : "relu", "srelu", "leaky" or "leaky:SLOPE"
        The neurons of f1 and f2; linear ignores it.
    tol, time_limit, seed
        When the search for the f1 margin ends, and its random starts. f2 and linear use the time limit only.
    ridge : float
        Only used where the data cannot be separated (contradictory points, say) or no separating function was found
        in time. Then the decision function has a soft margin: squared slack, the same as the hard margin of the
        kernel k + ridge * (mean of k's diagonal) * I, k the kernel of f2 (for f1 and f2) or the linear one.

    Attributes
    ----------
    certificate_ : Certificate
        Of the margin in the space: lower <= margin <= upper. Not of the soft-margin function.
    margin_ : float
        The certificate's lower bound. It is reached: min_i y_i f(x_i) for the decision function f, which has norm 1;
        0 if the decision function is soft.
    measure_ : Measure or None
        The neurons of f (f1 only, None where soft).
    soft_ : bool
        Whether the decision function is the soft-margin one.
    classes_, n_features_in_, feature_names_in_
        As in scikit-learn; decision values above 0 mean classes_[1].
    """

    def __init__(
        self,
        space: str = "f1",
        *,
        bias: bool = True,
        activation: str = "relu",
        tol: float = 1e-3,
        time_limit: float = 60.0,
        seed: int = 0,
        ridge: float = 1e-3,
    ) -> None:
        self.space = space
        self.bias = bias
        self.activation = activation
        self.tol = tol
        self.time_limit = time_limit
        self.seed = seed
        self.ridge = ridge

    def fit(self, X: ArrayLike, y: ArrayLike) -> MaxMarginClassifier:
        _choice("space", self.space, ("f1", "f2", "linear"))
        _positive("ridge", self.ridge)
        points, labels = validate_data(self, _plain(X), _plain(y), dtype=np.float64)
        check_classification_targets(labels)
        self.classes_, index = np.unique(labels, return_inverse=True)
        if len(self.classes_) > 2:
            raise ValueError(
                "Only binary classification is supported. The type of the target is multiclass: "
                f"y has {len(self.classes_)} classes; keep two."
            )
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class only ({self.classes_[0]!r}); a margin needs two classes.")
        data = Dataset(points, 2.0 * index - 1)
        options: dict[str, Any] = {"bias": bool(self.bias), "time_limit": self.time_limit}
        if self.space == "linear":
            self.certificate_ = linear(data, **options)
        elif self.space == "f2":
            self.certificate_ = f2(data, activation=self.activation, **options)
        else:
            from .f1 import f1

            self.certificate_ = f1(data, activation=self.activation, tol=self.tol, seed=self.seed, **options)
        self.margin_ = self.certificate_.lower
        self.measure_ = self._measure()
        self.soft_ = not self.margin_ > 0
        self._function = self.measure_ if self.measure_ is not None else self._expand(data)
        return self

    def _measure(self) -> Measure | None:
        """The neurons with norm 1."""
        primal = self.certificate_.primal
        if self.space != "f1" or primal is None or not self.margin_ > 0:
            return None
        return Measure(primal.theta, primal.mass / primal.norm, primal.activation, primal.bias)

    def _expand(self, data: Dataset) -> _Expansion:
        expansion = _Expansion(data.X, bool(self.bias), None if self.space == "linear" else self.activation)
        expansion.power = expansion.degree * expansion.shift
        if self.space == "linear" and not self.soft_:  # u itself is more accurate than the dual weights
            expansion.points = np.atleast_2d(np.asarray(self.certificate_.extra["u"]))
            expansion.weights = np.ones(1) / np.linalg.norm(expansion.points)
            return expansion
        k, cert = expansion.kernel(), self.certificate_
        if self.soft_:
            k = expansion.ridged(self.ridge)
            cert = f2(Dataset(np.ones((data.n, 1)), data.y), kernel=k)  # only the kernel matrix matters
        b = np.asarray(cert.extra["alpha"]) * data.y
        expansion.weights = b / math.sqrt(float(b @ k @ b))
        return expansion

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """f(x) for the function f of norm 1 (in the convention of `certificate_`); above 0 means classes_[1]."""
        check_is_fitted(self)
        points = validate_data(self, _plain(X), dtype=np.float64, reset=False)
        return self._function(points)

    def predict(self, X: ArrayLike) -> np.ndarray:
        positive = self.decision_function(X) > 0
        return self.classes_[positive.astype(int)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


class MinNormRegressor(RegressorMixin, BaseEstimator):
    """The interpolant f(x_i) = y_i of smallest norm in a function space, with a certificate of that norm.

    Parameters
    ----------
    space : "f2" or "f1"
        The kernel space of random features (one linear system), or two-layer networks with the variation norm.
    bias, activation
        As for `MaxMarginClassifier`.
    tol, time_limit, seed
        For f1: when the search ends, and its random starts. f2 uses `tol` only.
    ridge : float
        Only used where no function interpolates (equal points with different targets, say) or none was found in time.
        Then f = sum_j b_j k(x_j, .) with b = (k + ridge * (mean of k's diagonal) * I)^-1 y, least squares with a small
        ridge in f2; with equal points it passes near the mean of their targets.

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
    """

    def __init__(
        self,
        space: str = "f2",
        *,
        bias: bool = True,
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
        _choice("space", self.space, ("f1", "f2"))
        _positive("ridge", self.ridge)
        points, targets = validate_data(self, _plain(X), _plain(y), dtype=np.float64, y_numeric=True)
        data = Dataset(points, column_or_1d(targets))
        self.certificate_ = self._solve(data)
        cert = self.certificate_
        self.soft_ = cert.status == "no-interpolation" or (self.space == "f1" and cert.primal is None)
        self.measure_ = None if self.soft_ else cert.primal
        self.norm_ = math.inf if cert.upper >= regression.LARGEST else cert.upper
        self._function = self.measure_ if self.measure_ is not None else self._expand(data)
        return self

    def _expand(self, data: Dataset) -> _Expansion:
        expansion = _Expansion(data.X, bool(self.bias), self.activation)
        if self.soft_:
            expansion.weights = linalg.solve(expansion.ridged(self.ridge), data.y, assume_a="pos")
        else:  # b scales like X^(-2 degree)
            expansion.weights = np.ldexp(self.certificate_.dual, 2 * expansion.degree * expansion.shift)
        return expansion

    def _solve(self, data: Dataset) -> Certificate:
        options: dict[str, Any] = {"bias": bool(self.bias), "activation": self.activation, "tol": self.tol}
        if self.space == "f2":
            return regression.min_norm_l2(data, **options)
        return regression.min_norm_l1(data, time_limit=self.time_limit, seed=self.seed, **options)

    def predict(self, X: ArrayLike) -> np.ndarray:
        check_is_fitted(self)
        points = validate_data(self, _plain(X), dtype=np.float64, reset=False)
        return self._function(points)


def _plain(values: Any) -> Any:
    """A torch tensor, on whatever device, as a numpy array; anything else as it is."""
    return values.detach().cpu().numpy() if hasattr(values, "detach") else values


def _choice(name: str, value: Any, legal: tuple[str, ...]) -> None:
    if value not in legal:
        raise InputError(f"{name} must be one of {', '.join(legal)}, not {value!r}")


def _positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value < math.inf:
        raise InputError(f"{name} must be a positive number, not {value!r}")
