"""The estimators: scikit-learn's own checks, the margin from its definition, and what happens off the path."""

import math
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from checks import Clock, check_all, repeated
from widemargin import Dataset, InputError, Measure, margins
from widemargin.margins.estimators import MinNormRegressor
from widemargin.optima.estimators import MaxMarginClassifier, ReluNetClassifier, ReluNetRegressor

SPACES = ("f1", "f2", "linear")
rng = np.random.default_rng(0)
X = np.vstack([rng.normal(size=(8, 2)) + 3, rng.normal(size=(8, 2)) - 3])
Y = np.repeat([1, -1], 8)
XOR = np.array([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]])
XOR_Y = np.array([1, 1, -1, -1])


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def clock(monkeypatch):
    return Clock(0.5, monkeypatch, "widemargin.margins.")


def test_scikit_learn_checks_f1(clock):
    """Fits that are compared with each other need the same end of the search: the clock is not real."""
    check_all(MaxMarginClassifier(tol=0.3, time_limit=4.0, bias=True))
    assert clock.now > 0


@repeated(
    "estimator",
    [
        MaxMarginClassifier("f2", bias=True),
        MaxMarginClassifier("f2", bias=False, activation="srelu"),
        MaxMarginClassifier("linear", bias=True),
        MinNormRegressor("f2", bias=True),
        MinNormRegressor("f2", bias=False, activation="srelu"),
    ],
    1,
    2,
    4,
    ids=str,
)
def test_scikit_learn_checks(estimator):
    check_all(estimator)


# ---------------------------------------------------------------- classifier


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("space, activation", [("f1", "relu"), ("f2", "relu"), ("f2", "srelu"), ("linear", "relu")])
def test_the_margin_is_reached(space, activation, bias):
    """By definition: the decision function has norm 1 in the space, and its margin is margin_."""
    model = MaxMarginClassifier(space, activation=activation, bias=bias, tol=1e-2).fit(X, Y)
    assert not model.soft_ and 0 < model.margin_ == model.certificate_.lower
    reached = (Y * model.decision_function(X)).min()
    assert_allclose(reached, model.margin_, rtol=1e-5)
    assert_array_equal(model.predict(X), Y)
    assert model.score(X, Y) == 1
    assert (model.measure_ is not None) == (space == "f1")
    if space == "f1":
        assert isinstance(model.measure_, Measure)
        assert_allclose(model.measure_.norm, 1)
    assert model.certificate_.verify(Dataset(X, Y)).ok


def test_xor_in_closed_form():
    model = MaxMarginClassifier(bias=False).fit(XOR, XOR_Y)
    assert model.margin_ <= np.sqrt(2) / 4 * (1 + 1e-9)
    assert_allclose(model.margin_, np.sqrt(2) / 4, rtol=1e-3)
    assert_array_equal(model.predict([[3, 2], [-2, 5]]), [1, -1])


def test_scale_does_not_matter():
    """Without a bias all spaces are homogeneous: tiny and huge points give the same labels and scaled margins."""
    for space, degree in (("f2", 1), ("linear", 1)):
        model = MaxMarginClassifier(space, bias=False).fit(X, Y)
        for size in (1e-200, 1e200):
            scaled = MaxMarginClassifier(space, bias=False).fit(X * size, Y)
            assert_allclose(scaled.margin_ / size**degree, model.margin_, rtol=1e-6)
            assert_allclose(scaled.decision_function(X * size) / size, model.decision_function(X), rtol=1e-6)


def test_the_f1_search_is_repeatable():
    """Where the tolerance ends the search, the same seed gives the same function, to the last bit."""
    first, second = (MaxMarginClassifier(tol=0.05, seed=3, bias=True).fit(X, Y) for _ in range(2))
    assert first.certificate_.status == "certified"
    assert_array_equal(first.decision_function(X), second.decision_function(X))


@pytest.mark.parametrize("space", SPACES)
def test_contradictions_are_fitted_softly(space):
    """A point with both labels: margin 0, said so by the certificate; the others are still classified."""
    points, labels = np.vstack([X, X[:1]]), np.append(Y, -Y[0])
    model = MaxMarginClassifier(space, bias=True).fit(points, labels)
    assert (model.certificate_.status, model.margin_, model.soft_) == ("not-separable", 0, True)
    assert model.measure_ is None
    assert_array_equal(model.predict(X[1:]), Y[1:])
    if space == "f2":  # squared slack pulls the point to 0
        assert abs(model.decision_function(X[:1])[0]) < abs(model.decision_function(X[1:])).min()
    if (
        space == "f1"
    ):  # the hinge loss does not: between -1 and 1 the point costs 2. The objective is proved to be the least.
        optimum = model.optimum_
        slack = (1 - labels * model.decision_function(points)).clip(0)
        assert optimum.verify(Dataset(points, labels)).ok and optimum.gap <= 1e-3
        assert_allclose(slack.sum() + optimum.primal.norm, optimum.upper * len(points), rtol=1e-9)


def test_the_soft_margin_is_the_squared_slack_svm():
    """Independently: min |f|^2 / 2 + sum slack^2 / (2 ridge'), slack = 1 - y f, is solved by the same direction."""
    overlap, labels = rng.normal(size=(30, 2)), np.sign(rng.normal(size=30))
    ridge = 0.1
    model = MaxMarginClassifier("linear", bias=False, ridge=ridge).fit(overlap, labels)
    assert model.soft_
    from scipy.optimize import minimize

    weight = 1 / (ridge * (overlap**2).sum(axis=1).mean())

    def loss(u):
        return u @ u / 2 + weight / 2 * ((1 - labels * (overlap @ u)).clip(0) ** 2).sum()

    u = minimize(loss, np.zeros(2), tol=1e-12).x
    found = np.linalg.lstsq(overlap, model.decision_function(overlap))[0]
    assert_allclose(found / np.linalg.norm(found), u / np.linalg.norm(u), atol=1e-5)


def test_no_time_for_f1_is_soft():
    points, labels = rng.normal(size=(60, 5)), rng.choice([0, 1], 60)
    model = MaxMarginClassifier(time_limit=1e-6, bias=True).fit(points, labels)
    assert model.certificate_.status == "time-limit"
    assert set(model.predict(points)) <= {0, 1}


def test_labels_of_any_kind():
    for first, second in (("cat", "dog"), (0, 1), (3.0, 7.0), (False, True)):
        labels = np.where(Y > 0, second, first)
        model = MaxMarginClassifier("f2", bias=True).fit(X, labels)
        assert_array_equal(model.predict(X), labels)
        assert_array_equal(model.classes_, np.unique(labels))


@pytest.mark.parametrize(
    "labels, words",
    [
        (np.arange(16) % 3, "Only binary classification is supported"),
        (np.ones(16), "one class"),
        (np.linspace(0, 1, 16), "Unknown label type"),
        (Y[:5], "inconsistent numbers"),
    ],
)
def test_bad_labels(labels, words):
    with pytest.raises(ValueError, match=words):
        MaxMarginClassifier("f2", bias=True).fit(X, labels)


def test_bad_parameters():
    for bad in ({"space": "f3"}, {"activation": "tanh"}, {"ridge": 0}, {"ridge": math.nan}, {"time_limit": -1}):
        with pytest.raises(InputError, match=next(iter(bad))):
            MaxMarginClassifier(**({"space": "f2"} | bad)).fit(X, Y)
        if "time_limit" not in bad:
            with pytest.raises(InputError, match=next(iter(bad))):
                MinNormRegressor(**bad).fit(X, Y)


# ---------------------------------------------------------------- regressor


@pytest.mark.parametrize("bias, activation", [(True, "relu"), (False, "relu"), (True, "srelu")])
def test_interpolation(bias, activation):
    targets = rng.normal(size=len(X))
    model = MinNormRegressor("f2", bias=bias, activation=activation).fit(X, targets)
    assert not model.soft_ and model.measure_ is None
    assert_allclose(model.predict(X), targets, atol=1e-6 * np.abs(targets).max())
    assert_allclose(model.norm_, margins.min_norm_l2(Dataset(X, targets), bias=bias, activation=activation).upper)
    scaled = MinNormRegressor("f2", bias=bias, activation=activation).fit(X * 2.0**-40 if not bias else X, targets * 4)
    assert_allclose(scaled.predict(X * 2.0**-40 if not bias else X), targets * 4, atol=4e-6 * np.abs(targets).max())


def test_equal_points_with_different_targets():
    """No function interpolates: the ridge solution passes near their mean, and through the others."""
    points, targets = np.vstack([X, X[:1]]), np.append(np.ones(16), 3.0)
    model = MinNormRegressor("f2", bias=True).fit(points, targets)
    assert (model.certificate_.status, model.soft_, model.norm_) == ("no-interpolation", True, math.inf)
    assert_allclose(model.predict(X), [2.0, *np.ones(15)], atol=1e-3)


def test_a_constant_and_zero():
    assert_array_equal(MinNormRegressor("f2", bias=True).fit(X, np.zeros(16)).predict(X), np.zeros(16))
    assert_allclose(MinNormRegressor("f2", bias=True).fit(X, np.full(16, 1e6)).predict(X), 1e6, rtol=1e-5)


def test_f1_regression():
    """The network interpolates, its norm lies within the certificate, and one ReLU is recovered."""
    targets = (X @ [2.0, 0.0]).clip(0)
    model = MinNormRegressor("f1", bias=False).fit(X, targets)
    assert not model.soft_
    assert_allclose(model.predict(X), targets, atol=1e-6)
    assert_allclose(model.measure_.norm, model.norm_, rtol=1e-3)
    assert model.certificate_.lower <= 2 * (1 + 1e-9) and model.norm_ >= model.certificate_.lower
    clash = MinNormRegressor("f1", bias=True).fit(np.vstack([X, X[:1]]), np.append(targets, targets[0] + 1))
    assert (clash.soft_, clash.measure_, clash.norm_) == (True, None, math.inf)
    assert_allclose(clash.predict(X[1:]), targets[1:], atol=0.01)
    with pytest.raises(InputError, match="relu"):
        MinNormRegressor("f1", activation="srelu", bias=True).fit(X, Y)


# ---------------------------------------------------------------- both


ESTIMATORS = [
    MaxMarginClassifier("f1", tol=0.1, bias=True),
    MaxMarginClassifier("f2", bias=True),
    MaxMarginClassifier("linear", bias=True),
    MinNormRegressor("f2", bias=True),
]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_data_of_any_kind(estimator):
    """Data frames, lists, float32, integers and tensors give what float64 arrays give."""
    plain = clone(estimator).fit(X, Y).predict(X)
    frame = pd.DataFrame(X, columns=["height", "width"])
    framed = clone(estimator).fit(frame, pd.Series(Y))
    assert_array_equal(framed.feature_names_in_, ["height", "width"])
    assert_array_equal(framed.predict(frame), plain)
    with pytest.raises(ValueError, match="feature names"):
        framed.predict(frame.rename(columns={"width": "depth"}))
    assert_array_equal(clone(estimator).fit(X.tolist(), Y.tolist()).predict(X.tolist()), plain)
    tensor = torch.tensor(X, requires_grad=True)
    fitted = clone(estimator).fit(tensor, torch.tensor(Y))
    assert_array_equal(fitted.predict(tensor), plain)
    assert fitted.n_features_in_ == 2
    single = clone(estimator).fit(X.astype(np.float32), Y)
    assert_allclose(single.predict(X.astype(np.float32)), plain, atol=1e-5)
    if estimator.space != "f1":
        assert single.certificate_.data_sha256 == Dataset(X.astype(np.float32), Y).sha256()  # computed in float64


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_refusals(estimator):
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        clone(estimator).fit(scipy.sparse.csr_array(X), Y)
    with pytest.raises(NotFittedError):
        clone(estimator).predict(X)
    broken = X.copy()
    broken[3, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        clone(estimator).fit(broken, Y)
    with pytest.raises(ValueError, match="features"):
        clone(estimator).fit(X, Y).predict(X[:, :1])


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_pickle_clone_and_parameters(estimator):
    fitted = clone(estimator).fit(X, Y)
    back = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(back.predict(X), fitted.predict(X))
    assert back.certificate_.lower == fitted.certificate_.lower
    assert not hasattr(clone(fitted), "certificate_")
    assert clone(fitted).get_params() == estimator.get_params()
    assert clone(estimator).set_params(bias=False).fit(X, Y).certificate_.bias is False


def test_in_a_pipeline():
    scores = cross_val_score(make_pipeline(StandardScaler(), MaxMarginClassifier("f2", bias=True)), X, Y, cv=2)
    assert_array_equal(scores, [1.0, 1.0])
    search = GridSearchCV(MaxMarginClassifier(bias=True), {"space": ["f2", "linear"]}, cv=2).fit(X, Y)
    assert search.best_score_ == 1
    targets = X @ [1.0, -2.0]
    score = cross_val_score(make_pipeline(StandardScaler(), MinNormRegressor("f2", bias=True)), X, targets, cv=4).mean()
    assert score > 0.8 * cross_val_score(Ridge(), X, targets, cv=4).mean()


def test_both_begin_in_the_same_space():
    assert MaxMarginClassifier().space == MinNormRegressor().space == "f1"
    assert MaxMarginClassifier().bias is MinNormRegressor().bias is False


def test_soft_functions_of_many_points_are_those_of_some(monkeypatch):
    """The kernel matrix of all points may have room neither in memory nor in the time limit."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    y = np.where(rng.random(60) < 0.5, 1, -1)
    monkeypatch.setattr("widemargin.margins.door.speed", lambda: 1e5)
    for model in (margins.MaxMarginClassifier("f2", time_limit=1.0), margins.MinNormRegressor("f2", time_limit=1.0)):
        points = np.vstack([X, X[:1]])  # one of them twice, with two labels
        fitted = model.fit(points, np.append(y, -y[0]))
        assert fitted.soft_ and 2 <= len(fitted._function.points) < 30
        assert np.isfinite(fitted.predict(X)).all()


def test_a_soft_margin_has_as_many_points_as_a_kernel_matrix_may_have(monkeypatch):
    for module in ("optima.estimators", "margins.kernel_machines"):
        monkeypatch.setattr(f"widemargin.{module}.GIVEN", 20)
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((30, 2)), rng.choice([-1, 1], 30)
    fitted = margins.MaxMarginClassifier("f2").fit(np.vstack([X, X[:1]]), np.append(y, -y[0]))
    assert fitted.soft_ and len(fitted._function.points) == 20


def test_points_without_weight_are_not_kept():
    X = np.vstack([np.eye(2), -np.eye(2), 5 * np.eye(2) + 3, 5 * np.eye(2) + 4])
    fitted = margins.MaxMarginClassifier("f2", bias=True).fit(X, [1, 1, -1, -1, 1, 1, 1, 1])
    assert not fitted.soft_ and len(fitted._function.points) == np.count_nonzero(fitted.certificate_.extra["alpha"])
    assert (np.sign(fitted.decision_function(X)) == [1, 1, -1, -1, 1, 1, 1, 1]).all()


@pytest.mark.parametrize("estimator", [MaxMarginClassifier, MinNormRegressor, ReluNetClassifier, ReluNetRegressor])
def test_points_whose_sum_overflows_are_fitted_without_a_warning(estimator):
    """scikit-learn adds them all up to find NaN, where infinity less infinity is one."""
    X = np.array([[1.7e308, 1.0], [1.6e308, 0.0], [-1.7e308, 1.0], [-1.6e308, 0.0]] * 2)
    said = ""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            found = estimator(time_limit=0.5).fit(X, np.array([1, 1, 0, 0] * 2)).predict(X)
        except InputError as error:  # of a decay
            said = str(error)
    assert not [each for each in heard if issubclass(each.category, RuntimeWarning)]
    if estimator in (ReluNetClassifier, ReluNetRegressor):
        assert "out of all proportion to the data" in said and "\n" not in said
    else:
        assert not said and ((found > 0.5) == (X[:, 0] > 0)).all()


@pytest.mark.parametrize("n", [5, 100])
@pytest.mark.parametrize("ridge", [1e-12, 1e-16, 1e-300])
def test_a_ridge_that_would_be_lost_in_rounding(ridge, n):
    """It ended in LinAlgError, or in a warning, or the function had no digits: 400 points at 1e-12 were off by a tenth."""
    rng = np.random.default_rng(0)
    points, values = (
        rng.integers(0, 3, (n, 2)).astype(float),
        rng.standard_normal(n),
    )  # equal points with different targets
    usual, model = (MinNormRegressor("f2", ridge=size).fit(points, values) for size in (1e-8, ridge))
    assert model.soft_
    assert_allclose(model.predict(points), usual.predict(points), atol=0.02)
    huge = MinNormRegressor("f2").fit(points, 1e300 * values)
    assert_allclose(huge.predict(points), 1e300 * usual.predict(points), rtol=1e-6, atol=1e295)
    labels = np.where(values > 0, 1, -1)
    model = MaxMarginClassifier("f2", ridge=ridge).fit(points, labels)
    assert model.soft_ and np.isfinite(model.decision_function(points)).all()


def test_nearly_equal_points_of_both_classes_and_no_ridge():
    """The norm of the function is nothing up to rounding: it was divided by, or had a root of a negative number."""
    points = 1e-25 * (1 + 1e-15 * np.random.default_rng(0).standard_normal((9, 4)))
    model = MaxMarginClassifier("f2", ridge=1e-300).fit(points, [1, 1, 1, 1, 1, -1, -1, -1, 1])
    assert model.soft_ and np.isfinite(model.decision_function(points)).all()
    line = np.random.default_rng(2).standard_normal((17, 1))
    model = MaxMarginClassifier("f2", ridge=1e-300).fit(line, np.where(line[:, 0] > np.median(line), "u", "v"))
    assert np.isfinite(model.decision_function(line)).all()


@pytest.mark.parametrize("space", ["f1", "f2"])
def test_targets_of_a_regressor_are_numbers(space):
    """Truth values are 0 and 1, as elsewhere in scikit-learn: they were labels -1 and +1, as were words."""
    points, truths = np.array([[0.0], [1.0], [2.0]]), np.array([False, True, False])
    model = MinNormRegressor(space, bias=True).fit(points, truths)
    assert_allclose(model.predict(points), truths, atol=1e-6)
    assert model.score(points, truths) > 0.999
    with pytest.raises(ValueError, match="could not convert string to float"):
        MinNormRegressor(space).fit(points, ["low", "high", "low"])
