"""The least objective in the kernel space: closed forms, other solvers, random features that are trained, exact checks."""

import json
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import optimize

from widemargin import Certificate, Dataset, InputError, margins, optima, verify
from widemargin.margins import door
from widemargin.optima import kernel_machines, losses
from widemargin.spaces import ReLU, sphere

MODES = (None, "free", "decayed")
rng = np.random.default_rng(0)
X = rng.standard_normal((24, 2))
DATA = Dataset(X, np.where(X[:, 0] * X[:, 1] + 0.4 * rng.standard_normal(24) > 0, 1, -1), "quadrants")
WEIGHTS = rng.uniform(0.2, 2, 24)
K = ReLU(bias=True).kernel(X)


def objective(loss, decay, mode, w, alpha, b, K=K, y=DATA.y):
    """From the definition."""
    t = K @ alpha + b
    plain = {
        "logistic": np.logaddexp(0, -y * t),
        "squared": (y - t) ** 2 / 2,
        "hinge": np.maximum(0, 1 - y * t),
        "squared-hinge": np.maximum(0, 1 - y * t) ** 2 / 2,
        "exp": np.exp(-y * t),
    }[loss]
    return w @ plain / w.sum() + decay / 2 * (alpha @ K @ alpha + (b * b if mode == "decayed" else 0.0))


@pytest.mark.parametrize("loss", losses.LOSSES)
@pytest.mark.parametrize("mode", MODES)
def test_upper_is_the_objective_of_its_function_and_both_bounds_verify(loss, mode):
    for bias, weights, decay in ((True, None, 0.03), (False, WEIGHTS, 1e-4)):
        cert = optima.f2(DATA, loss=loss, weight_decay=decay, bias=bias, output_bias=mode, weights=weights)
        assert cert.status == "certified" and cert.gap <= 1e-6
        assert cert.verify(DATA).ok, cert.verify(DATA)
        assert (cert.kind, cert.convention, cert.bound) == ("f2-optimum", "objective", "dual")
        w, alpha, b = np.ones(24) if weights is None else weights, np.array(cert.extra["alpha"]), cert.extra["offset"]
        kernel = ReLU(bias=bias).kernel(X)
        assert_allclose(objective(loss, decay, mode, w, alpha, b, kernel), cert.upper, rtol=1e-10)
        assert_allclose(cert.function(X, DATA), kernel @ alpha + b, rtol=1e-9, atol=1e-12)
        # No function nearby is better: the gap is proved by duality, this is the definition.
        draw = np.random.default_rng(1)
        for size in (1e-3, 0.1):
            other = alpha + size * np.abs(alpha).max() * draw.standard_normal(24)
            assert objective(loss, decay, mode, w, other, b, kernel) >= cert.lower


@pytest.mark.parametrize("loss", ["logistic", "exp", "squared-hinge"])
@pytest.mark.parametrize("mode", MODES)
def test_another_solver_finds_the_same(loss, mode):
    cert = optima.f2(DATA, loss=loss, weight_decay=0.01, output_bias=mode, bias=True)
    L = np.linalg.cholesky(K + 1e-12 * np.eye(24))

    def value(x):
        return objective(loss, 0.01, mode, np.ones(24), np.linalg.solve(L.T, x[:24]), x[24] if mode else 0.0)

    found = optimize.minimize(value, np.zeros(25), method="BFGS", options={"gtol": 1e-7, "maxiter": 2000})
    assert cert.lower <= found.fun * (1 + 1e-9) and found.fun <= cert.upper * (1 + 1e-4)


def test_squared_loss_is_kernel_ridge_regression():
    """alpha = (K + decay n I)^-1 y, and the objective at it."""
    for decay in (1.0, 1e-3):
        cert = optima.f2(DATA, loss="squared", weight_decay=decay, output_bias=None, tol=1e-9, bias=True)
        alpha = np.linalg.solve(K + decay * 24 * np.eye(24), DATA.y)
        assert_allclose(cert.extra["alpha"], alpha, rtol=1e-6)
        value = objective("squared", decay, None, np.ones(24), alpha, 0.0)
        assert cert.lower * (1 - 1e-12) <= value <= cert.upper * (1 + 1e-12)


@pytest.mark.parametrize("decay", [1.0, 0.01, 1e-4])
def test_hinge_loss_is_the_support_vector_machine(decay):
    """scikit-learn's SVC minimises |f|^2 / 2 + C sum hinge, with a free output bias: C = 1 / (decay n)."""
    from sklearn.svm import SVC

    cert = optima.f2(DATA, loss="hinge", weight_decay=decay, bias=True)
    model = SVC(C=1 / (decay * 24), kernel="precomputed", tol=1e-8).fit(K, DATA.y)
    alpha = np.zeros(24)
    alpha[model.support_] = model.dual_coef_[0]
    value = objective("hinge", decay, "free", np.ones(24), alpha, float(model.intercept_[0]))
    assert cert.lower <= value * (1 + 1e-12) and value <= cert.upper * (1 + 1e-5)


def test_it_is_the_training_of_the_output_layer():
    """f(x) = sum_j a_j relu(v_j . x) / sqrt(m), v_j fixed and uniform on the sphere, a decayed: the limit of many neurons."""
    m, decay = 20_000, 0.02
    V = sphere(m, 3, 0)
    Z = np.maximum(np.hstack([X, np.ones((24, 1))]) @ V.T, 0) / math.sqrt(m)  # (n, m)
    a = Z.T @ np.linalg.solve(Z @ Z.T + decay * 24 * np.eye(24), DATA.y)  # the best output weights, squared loss
    trained = ((DATA.y - Z @ a) ** 2).mean() / 2 + decay / 2 * float(a @ a)
    cert = optima.f2(DATA, loss="squared", weight_decay=decay, output_bias=None, bias=True)
    assert_allclose(trained, cert.upper, rtol=5e-3)


@pytest.mark.parametrize("loss", ["logistic", "exp", "hinge"])
def test_small_decays_reach_the_largest_margin(loss):
    """As wd -> 0 the normalised margin goes to `margins.f2`; with the hinge loss it is there once all points are fitted."""
    angle = np.arange(8) * np.pi / 4
    ring = Dataset(np.stack([np.cos(angle), 0.7 * np.sin(angle)], 1), np.resize([1, 1, -1, -1], 8), "ring")
    best = margins.f2(ring, bias=True)
    kernel = ReLU(bias=True).kernel(ring.X)
    last = 0.0
    for decay in (1e-3, 1e-6, 1e-12):
        cert = optima.f2(ring, loss=loss, weight_decay=decay, output_bias=None, bias=True)
        assert cert.verify(ring).ok and cert.status == "certified"
        alpha = np.array(cert.extra["alpha"])
        margin = float((ring.y * (kernel @ alpha)).min()) / math.sqrt(float(alpha @ kernel @ alpha))
        assert margin <= best.upper * (1 + 1e-9) and margin > last * (1 - 1e-6)
        last = margin
    assert last > (0.9999 if loss == "hinge" else 0.9) * best.lower


@pytest.mark.parametrize("loss", losses.LOSSES)
def test_odd_points_and_one_class(loss):
    points = np.array([[1.0, 2], [1, 2], [-1, -2], [0, 0], [0, 0], [2, -1], [1, 2], [-1, -2]])
    for bias in (True, False):
        data = Dataset(points, [1, -1, 1, -1, 1, 1, 1, -1])
        cert = optima.f2(data, loss=loss, weight_decay=0.02, bias=bias)
        assert cert.status == "certified" and cert.verify(data).ok
    data = Dataset(points, np.ones(8))
    for mode in (None, "decayed") if loss in ("logistic", "exp") else MODES:
        cert = optima.f2(data, loss=loss, weight_decay=0.02, output_bias=mode, bias=True)
        assert cert.verify(data).ok and (cert.status == "certified" or cert.upper < 1e-20)
        if mode == "free":
            assert cert.upper < 1e-20


@pytest.mark.parametrize(("scale", "loss"), [(2.0**40, "logistic"), (1e-30, "exp"), (1e25, "hinge"), (1e-3, "squared")])
def test_scaled_points_with_a_scaled_decay_are_the_same_problem(scale, loss):
    usual = optima.f2(DATA, loss=loss, weight_decay=0.03, bias=False)
    data = Dataset(scale * X, DATA.y)
    cert = optima.f2(data, loss=loss, weight_decay=0.03 * scale**2, bias=False)
    assert cert.verify(data).ok and cert.status == "certified"
    assert cert.lower <= usual.upper * (1 + 1e-9) and usual.lower <= cert.upper * (1 + 1e-9)


def test_scaled_targets():
    values = Dataset(X, np.sin(3 * X[:, 0]) + X[:, 1])
    large = Dataset(X, 1000 * values.y)
    one, two = (optima.f2(data, loss="squared", weight_decay=0.02, bias=True) for data in (values, large))
    assert one.verify(values).ok and two.verify(large).ok
    assert_allclose(two.upper, 1e6 * one.upper, rtol=1e-5)
    assert_allclose(two.function(X, large), 1000 * one.function(X, values), rtol=1e-5)


def test_progress_interruption_and_saving(tmp_path):
    said = []
    cert = optima.f2(DATA, weight_decay=1e-3, progress=lambda *now: said.append(now), bias=True)
    assert len(said) > 1 and all(lower <= cert.upper and upper >= cert.lower for _, lower, upper, _ in said)

    def stop(*now):
        raise KeyboardInterrupt

    for loss in ("logistic", "hinge"):
        early = optima.f2(DATA, loss=loss, weight_decay=1e-3, progress=stop, bias=True)
        assert early.status == "interrupted" and early.verify(DATA).ok
        late = optima.f2(DATA, loss=loss, weight_decay=1e-3, time_limit=1e-9, bias=True)
        assert late.status == "time-limit" and late.verify(DATA).ok
    cert.save(tmp_path / "c.json")
    again = Certificate.load(tmp_path / "c.json")
    assert again.payload() == cert.payload() and again.verify(DATA).ok
    assert "least objective" in again.verify(DATA).about and "kernel relu" in again.verify(DATA).about


def test_changed_certificates_are_refused():
    for loss in losses.LOSSES:
        cert = optima.f2(DATA, loss=loss, weight_decay=0.03, weights=WEIGHTS, bias=True)

        def changed(payload=None, loss=loss, cert=cert, **extra):
            body = json.loads(json.dumps(cert.payload())) | (payload or {})
            body["extra"] = body["extra"] | extra
            return verify.check(body | {"digest": verify.digest(body)}, X, DATA.y)

        assert changed().ok
        kept = cert.extra
        assert changed({"lower": cert.upper * (1 + 1e-5), "upper": cert.upper * 1.1}).failed.startswith("lower bound")
        assert changed({"upper": cert.upper * (1 - 1e-6), "lower": cert.lower * 0.9}).failed.startswith("upper bound")
        assert changed(weight_decay=0.031).failed.startswith("upper bound")
        assert changed(weight_decay=0.029).failed.startswith("lower bound")
        assert changed(offset=kept["offset"] + 0.1).failed.startswith("upper bound")
        assert changed(alpha=[1.1 * a for a in kept["alpha"]]).failed.startswith("upper bound")
        assert changed(alpha=kept["alpha"][:-1]).failed.startswith("upper bound")
        assert changed(kernel="given").failed.startswith("format: extra.kernel")
        assert changed({"dual": [1.02 * c for c in cert.dual]}).failed.split(":")[0] in ("dual", "lower bound")
        assert changed({"dual": [-c for c in cert.dual]}).failed.split(":")[0] in ("dual", "lower bound")
        assert changed({"proof": {"type": "norm", "maximum": 1.0}}).failed == (
            "lower bound: this kind needs proof.type = dual"
        )
        assert changed({"kind": "f1-optimum"}).failed is not None
        assert changed(output_bias=None).failed.startswith("upper bound")
        assert not changed({"activation": "leaky"}).ok


def test_one_sentence():
    for keys, words in (
        ({"weight_decay": 0}, "weight_decay must be a positive number"),
        ({"loss": "cubic"}, "loss must be one of"),
        ({"weight_decay": 1e-240}, "out of all proportion"),
        ({"output_bias": 3}, "output_bias must be"),
        ({"tol": 0}, "tol must lie"),
    ):
        with pytest.raises(InputError, match=words):
            optima.f2(Dataset(1e40 * X, DATA.y), **({"bias": True} | {"weight_decay": 0.1} | keys))


@pytest.mark.parametrize("loss", losses.LOSSES)
@pytest.mark.parametrize("mode", MODES)
def test_more_points_than_there_is_time_for(loss, mode, monkeypatch):
    """Some of them are solved for, and both bounds hold for all: they hold what all of them together give."""
    known = optima.f2(DATA, loss=loss, weight_decay=0.03, bias=True, output_bias=mode, weights=WEIGHTS)
    monkeypatch.setattr(kernel_machines, "PAIRS", 5.0)
    cert = optima.f2(DATA, loss=loss, weight_decay=0.03, bias=True, output_bias=mode, weights=WEIGHTS, time_limit=60.0)
    assert cert.stats["points"] < 24 and cert.status == "time-limit"
    assert 0 < cert.lower <= known.upper and known.lower <= cert.upper < math.inf
    assert np.count_nonzero(cert.dual) <= cert.stats["points"]
    assert cert.verify(DATA).ok, cert.verify(DATA)
    w, alpha = WEIGHTS, np.array(cert.extra["alpha"])
    assert_allclose(objective(loss, 0.03, mode, w, alpha, cert.extra["offset"]), cert.upper, rtol=1e-10)


def test_a_kernel_that_does_not_fit_is_that_of_some_points(monkeypatch):
    monkeypatch.setattr(door, "free_memory", lambda: 2 * 8 * kernel_machines.MATRICES * 10.0**2)
    cert = optima.f2(DATA, weight_decay=0.03, bias=True, time_limit=None)
    assert cert.stats["points"] == 10 and cert.verify(DATA).ok
