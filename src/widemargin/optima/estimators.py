"""The networks that training with weight decay could at best find, and those of largest margin, as scikit-learn estimators."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d

from widemargin import margins
from widemargin.dataset import to_numpy
from widemargin.kinds import VECTOR_NORMS
from widemargin.margins.answers import outside
from widemargin.margins.estimators import Expansion, check_choice, check_positive, checked
from widemargin.margins.rows import first_rows
from widemargin.spaces import as_space
from widemargin.types import Certificate, Dataset, InputError, Measure
from widemargin.verify.kernels import GIVEN

from .losses import CLASSES, is_classes
from .wide_networks import f1


def warn_if_open(cert: Certificate, tol: float) -> None:
    """A ConvergenceWarning with both bounds, if the network is not certified to `tol`."""
    if cert.status != "certified":
        warnings.warn(
            f"the optimum was not certified to tol={tol:g} ({cert.status}): the objective of the network is {cert.upper:.6g}, "
            f"and no network of any width is below {cert.lower:.6g}, a gap of {100 * cert.gap:.3g} %. Both bounds hold; "
            "a larger time_limit, tol or weight_decay helps",
            ConvergenceWarning,
            stacklevel=outside(),
        )


class _ReluNet(BaseEstimator):
    """What classifier and regressor share: the points as the solver has them, the solver, and its network's outputs."""

    weight_decay: float
    bias: bool
    output_bias: str | None
    tol: float
    time_limit: float | None
    seed: int
    device: str

    def _solve(
        self, X: np.ndarray, y: np.ndarray, weights: np.ndarray | None, loss: str
    ) -> tuple[Dataset, Certificate]:
        """The certified optimum, with a warning where the gap stays open."""
        data = Dataset(X, y, "training set")
        cert = f1(
            data,
            loss=loss,
            weight_decay=self.weight_decay,
            bias=self.bias,
            output_bias=self.output_bias,
            weights=weights,
            tol=self.tol,
            time_limit=self.time_limit,
            seed=self.seed,
            device=self.device,
        )
        warn_if_open(cert, self.tol)
        return data, cert


def _merged(
    X: np.ndarray, y: np.ndarray, sample_weight: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Distinct pairs (x, y) of positive weight in sorted order, and their weights (None: all are 1).

    A point of weight k is k equal points, to the last bit of the network: the solver sees one problem, whatever the order of the
    points and however they are repeated.
    """
    w = np.ones(len(X)) if sample_weight is None else sample_weight
    rows, d = np.column_stack([X + 0.0, y + 0.0])[w > 0], X.shape[1]  # -0.0 is 0.0
    rows, index = np.unique(rows, axis=0, return_inverse=True)
    w = np.bincount(index.ravel(), w[w > 0])
    return rows[:, :d], rows[:, d] if y.ndim == 1 else rows[:, d:], None if (w == 1).all() else w


class ReluNetClassifier(ClassifierMixin, _ReluNet):
    """The two-layer ReLU network, of any width, that is the best training with weight decay can find; with a certificate.

    Two classes: the network f and its output bias minimise `mean loss + (weight_decay / 2) |weights|^2` up to `tol`, which is
    proved (`optima.f1`). More classes: with loss="cross-entropy" one network with an output for each class and one certificate;
    with the other losses one network for each class against all others, each with a certificate of its own.

    Parameters
    ----------
    weight_decay : float
        As in PyTorch: docs/optima.md has the table.
    loss : "logistic", "squared", "hinge", "squared-hinge", "exp" or "cross-entropy"
        `predict_proba` exists for the logistic loss and the cross-entropy.
    bias : bool
        The neurons have biases, decayed like all weights.
    output_bias : "free", "decayed" or None
        The last bias: not decayed, decayed, or none.
    tol : float
        The search ends when no network is more than this share below the network's objective.
    time_limit : float or None
        Seconds for each network. If they are over, or the search stalls, before `tol` is reached, the best network found is
        kept, and a ConvergenceWarning gives the gap.
    seed, device
        Of the search.

    Attributes
    ----------
    certificates_, datasets_ : tuples
        One `Certificate` of the least objective, and the `Dataset` it is about, for each network: one for two classes and for
        the cross-entropy, else one for each class in the order of classes_. In a Dataset equal points of one class are merged
        and points of weight 0 left out; it is sorted. `certificate.verify(dataset)` checks the proof.
    certificate_, data_
        The same where there is one only.
    classes_, n_features_in_, feature_names_in_
        As in scikit-learn; of two classes decision values above 0 mean classes_[1].

    Examples
    --------
    >>> import numpy as np
    >>> import widemargin as wm
    >>> X, y = np.array([[1.0, 1], [-1, -1], [1, -1], [-1, 1]]), ["same", "same", "other", "other"]
    >>> fitted = wm.optima.ReluNetClassifier(weight_decay=0.01).fit(X, y)
    >>> fitted.predict(X).tolist(), fitted.certificate_.verify(fitted.data_).ok
    (['same', 'same', 'other', 'other'], True)
    """

    def __init__(
        self,
        weight_decay: float = 0.01,
        loss: str = "logistic",
        *,
        bias: bool = False,
        output_bias: str | None = "free",
        tol: float = 1e-3,
        time_limit: float | None = 5.0,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        self.weight_decay = weight_decay
        self.loss = loss
        self.bias = bias
        self.output_bias = output_bias
        self.tol = tol
        self.time_limit = time_limit
        self.seed = seed
        self.device = device

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> ReluNetClassifier:
        """Points X (n, d) with labels y (n,) of any kind; a point with `sample_weight` 2 is there twice."""
        points, labels = checked(self, to_numpy(X), to_numpy(y), dtype=np.float64)
        check_classification_targets(labels)
        labels = column_or_1d(labels, warn=True)
        weights = _weights(sample_weight, points)
        self.classes_, index = np.unique(labels, return_inverse=True)
        points, index, weights = _merged(points, index, weights)
        if len(np.unique(index)) < len(self.classes_) or len(self.classes_) < 2:
            raise InputError(
                "y has one class only" if len(self.classes_) < 2 else "y has a class without a point of positive weight"
            )
        if is_classes(self.loss):
            targets = [index.astype(np.float64)]
        else:
            ones = [1] if len(self.classes_) == 2 else range(len(self.classes_))
            targets = [np.where(index == label, 1.0, -1.0) for label in ones]
        solved = [self._solve(points, y, weights, self.loss) for y in targets]
        self.datasets_, self.certificates_ = zip(*solved)
        for name in ("data_", "certificate_"):
            self.__dict__.pop(name, None)  # of an earlier fit
        if len(solved) == 1:
            self.data_, self.certificate_ = solved[0]
        return self

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """Outputs of the networks: (n,) for two classes, of the cross-entropy their difference, and (n, classes) for more."""
        check_is_fitted(self)
        points = checked(self, to_numpy(X), dtype=np.float64, reset=False)
        outputs = np.column_stack([cert.function(points) for cert in self.certificates_])
        if len(self.classes_) > 2:
            return outputs
        return outputs[:, 1] - outputs[:, 0] if outputs.shape[1] == 2 else outputs[:, 0]

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The class of the positive side; of more than two classes that of the largest output."""
        outputs = self.decision_function(X)
        return self.classes_[(outputs > 0).astype(int) if outputs.ndim == 1 else outputs.argmax(axis=1)]

    @available_if(lambda self: self.loss in ("logistic", CLASSES))
    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """1 / (1 + exp(-f)) of the outputs f; of more than two classes softmax for the cross-entropy, and for the logistic loss
        divided by their sum, which no certificate is about.
        """
        outputs = self.decision_function(X)
        if outputs.ndim == 1:
            return np.column_stack([expit(-outputs), expit(outputs)])
        if is_classes(self.loss):
            return softmax(outputs, axis=1)
        # In units of the largest, as all may be tiny: log expit(f) = -log(1 + exp(-f)).
        logs = -np.logaddexp(0, -outputs)
        each = np.exp(logs - logs.max(axis=1, keepdims=True))
        return each / each.sum(axis=1, keepdims=True)


class ReluNetRegressor(RegressorMixin, _ReluNet):
    """The two-layer ReLU network, of any width, with the least `mean of |y - f|^2 / 2 + (weight_decay / 2) |weights|^2`.

    y is (n,), or (n, K) with K targets for each point: then it is one network with K outputs, and one certificate.

    Parameters
    ----------
    weight_decay, bias, output_bias, tol, time_limit, seed, device
        As for `ReluNetClassifier`. Targets and points are taken as they are: the decay that is right depends on their size.

    Attributes
    ----------
    certificate_ : Certificate
        lower <= least objective <= upper, which is the objective of the network.
    data_ : Dataset
        What the certificate is about: the training set, sorted, equal points with equal targets merged.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> import numpy as np
    >>> import widemargin as wm
    >>> X, y = np.array([[3.0, 4.0]]), np.array([1.0])  # at decay 0.1 the output is y - 0.1 / |x|
    >>> fitted = wm.optima.ReluNetRegressor(weight_decay=0.1, bias=False, output_bias=None, tol=1e-6).fit(X, y)
    >>> abs(float(fitted.predict(X)[0]) - 0.98) < 1e-3
    True
    """

    def __init__(
        self,
        weight_decay: float = 0.01,
        *,
        bias: bool = False,
        output_bias: str | None = "free",
        tol: float = 1e-3,
        time_limit: float | None = 5.0,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        self.weight_decay = weight_decay
        self.bias = bias
        self.output_bias = output_bias
        self.tol = tol
        self.time_limit = time_limit
        self.seed = seed
        self.device = device

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> ReluNetRegressor:
        """Points X (n, d) with targets y (n,) or (n, K); a point with `sample_weight` 2 is there twice."""
        points, targets = checked(self, to_numpy(X), to_numpy(y), dtype=np.float64, multi_output=True, y_numeric=True)
        weights = _weights(sample_weight, points)
        if targets.ndim != 2 or targets.shape[1] == 1:
            targets = column_or_1d(targets, warn=True)
        targets = targets.astype(np.float64)
        points, targets, weights = _merged(points, targets, weights)
        self.data_, self.certificate_ = self._solve(points, targets, weights, "squared")
        return self

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Values (n,), or (n, K) of K targets, at the points X (n, d)."""
        check_is_fitted(self)
        points = checked(self, to_numpy(X), dtype=np.float64, reset=False)
        return self.certificate_.function(points)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _weights(sample_weight: ArrayLike | None, X: np.ndarray) -> np.ndarray | None:
    if sample_weight is None:
        return None
    w = _check_sample_weight(to_numpy(sample_weight), X, dtype=np.float64, ensure_non_negative=True)
    if not w.any():
        raise InputError("sample_weight is zero for all points")
    return w


class MaxMarginClassifier(ClassifierMixin, BaseEstimator):
    """The two-class classifier of largest margin in the unit ball of a function space, with a certificate.

    Parameters
    ----------
    space : "f1", "f2" or "linear"
        Two-layer networks with the variation norm, the kernel space of random features, or linear functions.
    norm : "l2", "l1" or "linf"
        Of the weights of a linear function; the other spaces have a norm of their own.
    bias : bool
        Extend every point by a coordinate 1 (part of the norm, unlike the intercept of an SVM).
    activation : "relu", "srelu", "leaky" or "leaky:SLOPE"
        The neurons of f1 and f2; linear ignores it.
    tol, time_limit, seed
        When the search for the f1 margin ends, and its random starts. f2 and linear use the time limit only.
    C : float or None
        For ReLU networks (space "f1", activation "relu"). A number: a soft margin instead of the hard one. The network
        minimises C * sum_i max(0, 1 - y_i f(x_i)) + |weights|^2 / 2, C as in scikit-learn's SVC, by `optima.f1` with the
        hinge loss, weight decay 1 / (C n) and no output bias. None: the hard margin, and where the data cannot be
        separated (a point with both labels, say) the soft margin with C = 1. `time_limit` is for each of the two searches.
    ridge : float
        For the other spaces and activations where the data cannot be separated, and for networks where none that
        separates was found in time. Then the decision function has a soft margin: squared slack, the same as the hard
        margin of the kernel k + ridge * (mean of k's diagonal) * I, k the kernel of f2 (for f1 and f2) or the linear one; at
        least 1000 n EPS, EPS = 2.2e-16, as less would be lost in rounding.
        Of more points than `time_limit` or the memory have room for, some are taken.

    Attributes
    ----------
    certificate_ : Certificate
        Of the margin in the space: lower <= margin <= upper. If C is given, of the least objective, as `optimum_`.
    optimum_ : Certificate or None
        Where the hinge loss was minimised: of the least objective, divided by C n. `optimum_.primal` is the network. A
        ConvergenceWarning is given where it is not certified to `tol`.
    margin_ : float
        The certificate's lower bound. It is reached: min_i y_i f(x_i) for the decision function f, which has norm 1;
        0 if the decision function is soft.
    measure_ : Measure or None
        The neurons of f (f1 only, None where soft).
    soft_ : bool
        Whether the decision function is a soft-margin one. Of the hinge loss it is the network as it is, not of norm 1:
        y f < 1 is slack, as for an SVC.
    classes_, n_features_in_, feature_names_in_
        As in scikit-learn; decision values above 0 mean classes_[1].

    Examples
    --------
    >>> import numpy as np
    >>> import widemargin as wm
    >>> X, y = np.array([[1, 1], [-1, -1], [1, -1], [-1, 1]]), ["same", "same", "other", "other"]
    >>> fitted = wm.margins.MaxMarginClassifier().fit(X, y)
    >>> fitted.predict(X).tolist(), abs(fitted.margin_ - 2**0.5 / 4) < 1e-3
    (['same', 'same', 'other', 'other'], True)
    """

    def __init__(
        self,
        space: str = "f1",
        *,
        norm: str = "l2",
        bias: bool = False,
        activation: str = "relu",
        tol: float = 1e-3,
        time_limit: float = 60.0,
        seed: int = 0,
        ridge: float = 1e-3,
        C: float | None = None,
    ) -> None:
        self.space = space
        self.norm = norm
        self.bias = bias
        self.activation = activation
        self.tol = tol
        self.time_limit = time_limit
        self.seed = seed
        self.ridge = ridge
        self.C = C

    def fit(self, X: ArrayLike, y: ArrayLike) -> MaxMarginClassifier:
        """Solve for the margin of X (n, d) with labels y (n,) of two classes."""
        check_choice("space", self.space, ("f1", "f2", "linear"))
        check_choice("norm", self.norm, tuple(VECTOR_NORMS) if self.space == "linear" else ("l2",))
        check_positive("ridge", self.ridge)
        networks = self.space == "f1" and as_space(self.activation).activation == "relu"
        if self.C is not None:
            check_positive("C", self.C)
            if not networks:
                raise InputError(
                    "C needs space='f1' and activation='relu'; elsewhere `ridge` sets how soft the margin is"
                )
        points, labels = checked(self, to_numpy(X), to_numpy(y), dtype=np.float64)
        check_classification_targets(labels)
        self.classes_, index = np.unique(labels, return_inverse=True)
        if len(self.classes_) > 2:
            raise ValueError(
                "Only binary classification is supported. The type of the target is multiclass: "
                f"y has {len(self.classes_)} classes; keep two."
            )
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class only ({self.classes_.tolist()[0]!r}); a margin needs two classes.")
        data = Dataset(points, 2.0 * index - 1)
        self.optimum_: Certificate | None = None
        if self.C is not None:
            self.optimum_ = self.certificate_ = self._soften(data, self.C)
        else:
            self.certificate_ = self._harden(data)
            if networks and self.certificate_.status == "not-separable":
                self.optimum_ = self._soften(data, 1.0)
        self.soft_ = self.optimum_ is not None or not self.certificate_.lower > 0
        self.margin_ = 0.0 if self.soft_ else self.certificate_.lower
        self.measure_ = self._measure()
        stored = self.certificate_ if self.norm != "l2" and not self.soft_ else self.optimum_
        self._function = self.measure_ or (self._expand(data) if stored is None else stored.function)
        return self

    def _harden(self, data: Dataset) -> Certificate:
        """The certified margin."""
        options: dict[str, Any] = {"bias": bool(self.bias), "time_limit": self.time_limit}
        if self.space == "linear":
            return margins.linear(data, norm=self.norm, **options)
        if self.space == "f2":
            return margins.f2(data, activation=self.activation, **options)
        return margins.f1(data, activation=self.activation, tol=self.tol, seed=self.seed, **options)

    def _soften(self, data: Dataset, C: float) -> Certificate:
        """The certified optimum of the hinge loss."""
        cert = f1(
            data,
            loss="hinge",
            weight_decay=1 / (C * data.n),
            bias=bool(self.bias),
            output_bias=None,
            tol=self.tol,
            time_limit=self.time_limit,
            seed=self.seed,
        )
        warn_if_open(cert, self.tol)
        return cert

    def _measure(self) -> Measure | None:
        """The neurons with norm 1."""
        primal = self.certificate_.primal
        if self.space != "f1" or primal is None or self.soft_:
            return None
        return Measure(primal.theta, primal.mass / primal.norm, primal.activation, primal.bias)

    def _expand(self, data: Dataset) -> Expansion:
        expansion = Expansion(data.X, bool(self.bias), None if self.space == "linear" else self.activation)
        expansion.power = expansion.degree * expansion.shift
        if self.space == "linear" and not self.soft_:  # u itself is more accurate than the dual weights
            expansion.points = np.atleast_2d(np.asarray(self.certificate_.extra["u"]))
            expansion.weights = np.ones(1) / np.linalg.norm(expansion.points)
            return expansion
        if self.soft_:
            some = first_rows(data.y, min(expansion.room(self.time_limit), GIVEN))
            expansion.keep(some)
            k, labels = expansion.ridged(self.ridge), Dataset(np.ones((len(some), 1)), data.y[some])
            cert = margins.f2(labels, kernel=k, time_limit=self.time_limit)  # only the kernel matrix matters
            b = np.asarray(cert.extra["alpha"]) * labels.y
        else:
            b = np.asarray(self.certificate_.extra["alpha"]) * data.y
            some = np.flatnonzero(b)
            expansion.keep(some)
            k, b = expansion.kernel(), b[some]
        expansion.weights = b / math.sqrt(float(b @ k @ b))
        return expansion

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """f(x) for the function f of norm 1 (in the convention of `certificate_`); above 0 means classes_[1]."""
        check_is_fitted(self)
        points = checked(self, to_numpy(X), dtype=np.float64, reset=False)
        return self._function(points)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Classes (n,) of the points X (n, d)."""
        positive = self.decision_function(X) > 0
        return self.classes_[positive.astype(int)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags
