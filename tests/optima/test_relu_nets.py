"""The estimators of optima: scikit-learn's own checks, PyTorch's objective, closed forms, and what happens off the path."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from checks import Clock, check_all
from widemargin import Dataset, InputError, optima
from widemargin.margins import door
from widemargin.optima.estimators import MaxMarginClassifier, ReluNetClassifier, ReluNetRegressor

pytestmark = pytest.mark.usefixtures("one_thread")

rng = np.random.default_rng(0)
X = rng.standard_normal((24, 2))
Y = np.where(X[:, 0] * X[:, 1] + 0.4 * rng.standard_normal(24) > 0, 1, -1)
THREE = np.array(["ash", "birch", "cedar"])[np.digitize(X[:, 0], [-0.5, 0.5])]
TARGETS = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(24)


@pytest.fixture
def clock(monkeypatch):
    """A minute for every look: limits cut no single step."""
    door.speed()  # on the real clock
    rooms = ("widemargin.margins", "widemargin.optima", "widemargin.pricing")
    steps = ("widemargin.optima.master", "widemargin.optima.groups", "widemargin.pricing.search")
    return Clock(60.0, monkeypatch, *rooms, still=steps)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_scikit_learn_checks_with_the_default_settings():
    """On the real clock two fits that the time limit ends are not the same: one check of the regressor compares such fits."""
    check_all(ReluNetClassifier(bias=True))
    check_all(
        ReluNetRegressor(bias=True), {"check_regressor_data_not_an_array": "two fits of 5 s each, far from the optimum"}
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "estimator",
    [
        ReluNetClassifier(bias=False, tol=0.3, time_limit=300.0),
        ReluNetRegressor(tol=0.3, time_limit=270.0, bias=True),
    ],
    ids=["classifier", "regressor"],
)
def test_scikit_learn_checks(estimator, clock):
    """Fits that are compared with each other need the same end of the search: the clock is not real."""
    check_all(estimator)
    assert clock.now > 0


# ---------------------------------------------------------------- what is fitted


@pytest.mark.parametrize("loss", ["logistic", "squared", "hinge", "squared-hinge", "exp"])
def test_the_classifier_is_the_certified_optimum(loss):
    """The same bounds as optima.f1 on the same points; the objective, recomputed from the predictions, lies between them."""
    model = ReluNetClassifier(0.03, loss, bias=True).fit(X, np.where(Y > 0, "yes", "no"))
    assert_array_equal(model.classes_, ["no", "yes"])
    plain = optima.f1(Dataset(X, Y), loss=loss, weight_decay=0.03, bias=True)
    cert = model.certificate_
    assert cert.status == "certified" and model.certificates_ == (cert,)
    assert cert.lower <= plain.upper and plain.lower <= cert.upper
    assert cert.verify(model.data_).ok
    m = Y * model.decision_function(X)
    values = {
        "logistic": np.log1p(np.exp(-m)),
        "squared": (1 - m) ** 2 / 2,
        "hinge": (1 - m).clip(0),
        "squared-hinge": (1 - m).clip(0) ** 2 / 2,
        "exp": np.exp(-m),
    }
    assert_allclose(values[loss].mean() + 0.03 * cert.primal.norm, cert.upper, rtol=1e-9)
    assert_array_equal(model.predict(X), np.where(m * Y > 0, "yes", "no"))
    assert hasattr(model, "predict_proba") == (loss == "logistic")


def test_probabilities_are_those_of_the_logistic_loss():
    model = ReluNetClassifier(0.03, bias=True).fit(X, Y)
    p = model.predict_proba(X)
    assert_allclose(p[:, 1], expit(model.decision_function(X)), rtol=1e-12)
    assert_allclose(p.sum(axis=1), 1)
    # With a free output bias the mean of the probabilities is the share of the class: the slope in the bias is 0.
    tight = ReluNetClassifier(0.03, tol=1e-7, bias=True).fit(X, Y)
    assert_allclose(tight.predict_proba(X)[:, 1].mean(), (Y > 0).mean(), atol=1e-6)


def test_a_large_decay_gives_the_constant():
    """Above the largest decay: log odds for the classifier, the (weighted) mean for the regressor."""
    w = np.arange(24.0)
    odds = w[Y > 0].sum() / w[Y < 0].sum()
    assert_allclose(ReluNetClassifier(10.0, bias=True).fit(X, Y, w).decision_function(X), np.log(odds), atol=1e-6)
    assert_allclose(
        ReluNetRegressor(10.0, bias=True).fit(X, TARGETS, w).predict(X), np.average(TARGETS, weights=w), atol=1e-6
    )


def test_several_classes_are_one_against_the_rest():
    model = ReluNetClassifier(0.02, bias=True).fit(X, THREE)
    assert not hasattr(model, "certificate_") and len(model.certificates_) == 3
    outputs = model.decision_function(X)
    for k, (name, cert, data) in enumerate(zip(model.classes_, model.certificates_, model.datasets_)):
        assert cert.verify(data).ok and cert.status == "certified"
        alone = ReluNetClassifier(0.02, bias=True).fit(X, name == THREE)
        assert_allclose(outputs[:, k], alone.decision_function(X), atol=1e-9)
        value = np.log1p(np.exp(-np.where(name == THREE, 1, -1) * outputs[:, k])).mean()
        assert_allclose(value + 0.02 * cert.primal.norm, cert.upper, rtol=1e-9)
    p = model.predict_proba(X)
    assert_allclose(p, expit(outputs) / expit(outputs).sum(axis=1, keepdims=True), rtol=1e-9)
    assert_array_equal(model.predict(X), model.classes_[p.argmax(axis=1)])
    assert model.score(X, THREE) > 0.8
    assert hasattr(model.fit(X, Y), "certificate_") and not hasattr(model.fit(X, THREE), "data_")


def test_the_regressor_is_the_certified_optimum():
    model = ReluNetRegressor(0.01, bias=True).fit(X, TARGETS)
    cert = model.certificate_
    assert cert.status == "certified" and cert.verify(model.data_).ok
    objective = ((TARGETS - model.predict(X)) ** 2).mean() / 2 + 0.01 * cert.primal.norm
    assert_allclose(objective, cert.upper, rtol=1e-9)
    plain = optima.f1(Dataset(X, TARGETS), loss="squared", weight_decay=0.01, bias=True)
    assert cert.lower <= plain.upper and plain.lower <= cert.upper
    free, none = (
        ReluNetRegressor(0.01, output_bias=mode, bias=True).fit(X, TARGETS + 5).certificate_ for mode in ("free", None)
    )
    assert free.upper < none.lower  # a constant 5 costs nothing, or much
    assert_allclose(free.upper, cert.upper, rtol=1e-3)


# ---------------------------------------------------------------- weights and equal points


@pytest.mark.parametrize(
    "estimator, y", [(ReluNetClassifier(0.03, bias=True), Y), (ReluNetRegressor(0.03, bias=True), TARGETS)], ids=str
)
def test_weights_count_points(estimator, y):
    """To the last bit: weight k is k equal points, weight 0 none, in any order. And the weighted objective is the least."""
    w = rng.integers(0, 4, 24)
    weighted = clone(estimator).fit(X, y, w)
    order = rng.permutation(np.repeat(np.arange(24), w))
    repeated = clone(estimator).fit(X[order], y[order])
    assert weighted.data_.n == (w > 0).sum()
    grid = rng.standard_normal((50, 2))
    assert_array_equal(weighted.predict(grid), repeated.predict(grid))
    assert weighted.certificate_.upper == repeated.certificate_.upper
    scaled = clone(estimator).fit(X, y, 8.0 * w).certificate_  # only ratios count
    assert_allclose(scaled.upper, weighted.certificate_.upper, rtol=1e-9)
    loss = "logistic" if isinstance(estimator, ReluNetClassifier) else "squared"
    plain = optima.f1(Dataset(X[order], y[order]), loss=loss, weight_decay=0.03, bias=True)
    assert plain.lower <= weighted.certificate_.upper and weighted.certificate_.lower <= plain.upper


def test_a_point_with_both_labels():
    """Nothing separates it. The best network is still certified."""
    model = ReluNetClassifier(0.03, bias=True).fit(np.vstack([X, X[:1]]), np.append(Y, -Y[0]))
    assert model.certificate_.status == "certified" and model.data_.n == 25


# ---------------------------------------------------------------- off the path


def test_an_open_gap_is_a_warning_with_the_gap():
    points, labels = rng.standard_normal((60, 8)), rng.choice([0, 1], 60)
    with pytest.warns(ConvergenceWarning, match=r"tol=0\.001 \(time-limit\).*a gap of [\d.]+ %"):
        model = ReluNetClassifier(1e-3, time_limit=1e-6, bias=True).fit(points, labels)
    assert model.certificate_.gap > 1e-3
    with pytest.warns(ConvergenceWarning, match="a gap of (99.9|100) %"):  # and not of 1e+02 %
        ReluNetClassifier(1e-7, time_limit=1e-6, bias=True).fit(points, labels)
    with pytest.warns(ConvergenceWarning, match="not certified"):
        ReluNetRegressor(1e-3, time_limit=1e-6, bias=True).fit(points, labels)
    with pytest.warns(ConvergenceWarning, match="not certified"):
        MaxMarginClassifier(C=100.0, time_limit=1e-6, bias=True).fit(points, labels)


@pytest.mark.parametrize("estimator", [ReluNetClassifier, ReluNetRegressor])
def test_bad_parameters(estimator):
    for bad in ({"weight_decay": 0}, {"weight_decay": "a"}, {"tol": -1}, {"time_limit": -1}, {"output_bias": "some"}):
        with pytest.raises(InputError, match=next(iter(bad))):
            estimator(**bad).fit(X, Y)
    with pytest.raises(InputError, match="loss"):
        ReluNetClassifier(loss="absolute", bias=True).fit(X, Y)


@pytest.mark.parametrize(
    "y, weights, words",
    [
        (np.ones(24), None, "one class"),
        (Y, (Y > 0) * 1.0, "a class without a point of positive weight"),
        (Y, np.zeros(24), "zero"),
        (Y, -np.ones(24), "egative"),
        (Y, np.ones(5), "sample_weight"),
        (TARGETS, None, "Unknown label type"),
    ],
)
def test_bad_labels_and_weights(y, weights, words):
    with pytest.raises(ValueError, match=words):
        ReluNetClassifier(bias=True).fit(X, y, weights)


@pytest.mark.parametrize("estimator", [ReluNetClassifier(0.05, bias=True), ReluNetRegressor(0.05, bias=True)], ids=str)
def test_data_of_any_kind(estimator):
    """Data frames with names and tensors give what arrays give; pickles and clones are whole."""
    plain = clone(estimator).fit(X, Y)
    frame = pd.DataFrame(X, columns=["height", "width"])
    framed = clone(estimator).fit(frame, pd.Series(Y))
    assert_array_equal(framed.feature_names_in_, ["height", "width"])
    assert_array_equal(framed.predict(frame), plain.predict(X))
    with pytest.raises(ValueError, match="feature names"):
        framed.predict(frame.rename(columns={"width": "depth"}))
    tensors = clone(estimator).fit(torch.tensor(X), torch.tensor(Y), torch.ones(24))
    assert_array_equal(tensors.predict(torch.tensor(X)), plain.predict(X))
    assert plain.n_features_in_ == 2
    back = pickle.loads(pickle.dumps(plain))
    assert_array_equal(back.predict(X), plain.predict(X))
    assert back.certificate_.verify(back.data_).ok
    with pytest.raises(NotFittedError):
        clone(plain).predict(X)


def test_in_a_pipeline():
    model = make_pipeline(StandardScaler(), ReluNetClassifier(tol=0.01, bias=True))
    search = GridSearchCV(model, {"relunetclassifier__weight_decay": [0.01, 10.0]}, cv=2).fit(X, THREE)
    assert search.best_params_ == {"relunetclassifier__weight_decay": 0.01}


# ---------------------------------------------------------------- MaxMarginClassifier(C=...)


def test_C_is_that_of_an_svc():
    """Two points on the line: f = a relu(x) - b relu(-x) costs C sum (1 - y f)+ + a + b, so a = b = 1 if C > 1, else 0."""
    points, labels = np.array([[1.0], [-1.0]]), np.array([1, -1])
    for C, value in ((3.0, 1.0), (0.5, 0.0)):
        model = MaxMarginClassifier(C=C, bias=False).fit(points, labels)
        assert model.soft_ and model.margin_ == 0 and model.measure_ is None
        assert model.optimum_ is model.certificate_ and model.certificate_.extra["loss"] == "hinge"
        assert_allclose(model.decision_function(points), value * labels, atol=2e-3)
        assert_allclose(model.optimum_.upper * C * 2, min(2.0, 2 * C), rtol=2e-3)  # the objective itself


def test_a_large_C_is_the_hard_margin():
    """C sum slack + |f| with no slack: |f| = 1 / margin, and the direction's margin is the largest."""
    hard = MaxMarginClassifier(bias=True).fit(X, Y)
    soft = MaxMarginClassifier(C=1e4, bias=True).fit(X, Y)
    assert hard.optimum_ is None and not hard.soft_
    norm = soft.optimum_.primal.norm
    assert_allclose((Y * soft.decision_function(X)).min() / norm, hard.margin_, rtol=5e-3)
    assert_allclose(norm * hard.margin_, 1, rtol=5e-3)


def test_data_that_cannot_be_separated_has_the_soft_margin():
    points, labels = np.vstack([X, X[:1]]), np.append(Y, -Y[0])
    model = MaxMarginClassifier(bias=True).fit(points, labels)
    assert model.certificate_.status == "not-separable" and model.soft_ and model.margin_ == 0
    cert = model.optimum_
    assert cert.status == "certified" and cert.verify(Dataset(points, labels)).ok
    given = MaxMarginClassifier(C=1.0, bias=True).fit(points, labels)
    assert_allclose(given.optimum_.upper, cert.upper, rtol=1e-9)
    f = model.decision_function(points)
    objective = (1 - labels * f).clip(0).sum() + cert.primal.norm
    assert cert.lower * 25 * (1 - 1e-9) <= objective <= cert.upper * 25 * (1 + 1e-9)


def test_C_off_the_path():
    for bad in (0, -1.0, np.nan, "a"):
        with pytest.raises(InputError, match="C must be a positive number"):
            MaxMarginClassifier(C=bad, bias=True).fit(X, Y)
    for other in ({"space": "f2"}, {"space": "linear"}, {"activation": "leaky"}):
        with pytest.raises(InputError, match="C needs"):
            MaxMarginClassifier(C=1.0, **other).fit(X, Y)


def test_the_old_names_are_kept():
    from widemargin import margins
    from widemargin.margins import estimators

    assert margins.MaxMarginClassifier is estimators.MaxMarginClassifier is MaxMarginClassifier


@pytest.mark.parametrize(
    ("model", "labels"),
    [
        (ReluNetClassifier(1e-4, tol=1e-9, time_limit=0.05, bias=True), Y),
        (ReluNetClassifier(1e-4, tol=1e-9, time_limit=0.05, bias=True), THREE),
        (ReluNetClassifier(1e-4, "cross-entropy", tol=1e-9, time_limit=0.05, bias=True), THREE),
        (ReluNetRegressor(1e-4, tol=1e-9, time_limit=0.05, bias=True), TARGETS),
        (ReluNetRegressor(1e-4, tol=1e-9, time_limit=0.05, bias=True), X),
        (MaxMarginClassifier(C=1e4, tol=1e-9, time_limit=0.05, bias=True), Y),
    ],
)
def test_a_warning_points_at_the_line_that_called(model, labels):
    with pytest.warns(ConvergenceWarning, match="not certified") as said:
        model.fit(np.hstack([X, X**2, np.sin(5 * X)]), labels)
    assert {warning.filename for warning in said if warning.category is ConvergenceWarning} == {__file__}
