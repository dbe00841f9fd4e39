"""Several classes and the cross-entropy: against two classes, PyTorch, training, margins, and false certificates."""

from __future__ import annotations

import math

import numpy as np
import outputs_shared as shared
import pytest
import torch

from checks import repeated
from widemargin import margins, optima
from widemargin.optima import groups
from widemargin.optima.outputs import ClassPoints, balanced
from widemargin.pricing import several
from widemargin.types import Certificate, Dataset, InputError

MODES = (None, "free", "decayed")


def made(n: int, d: int, K: int, seed: int, scale: float = 1.0) -> Dataset:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    y = ((X**2).sum(axis=1) + 0.7 * rng.standard_normal(n)).argsort().argsort() * K // n
    return Dataset(scale * X, y.astype(float), f"rings {seed}")


def solve(data: Dataset, decay: float, **keys) -> Certificate:
    return optima.f1(data, loss="cross-entropy", weight_decay=decay, **({"bias": True} | {"time_limit": 60} | keys))


@pytest.mark.slow
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("output_bias", [None, "free"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_two_classes_are_the_logistic_loss(seed: int, bias: bool, output_bias: str | None):
    """f_1 - f_0 with the outputs (-a, a) / sqrt 2 of one neuron is sqrt 2 a: the decay is smaller by that factor."""
    data = made(24, 2, 2, seed)
    other = Dataset(data.X, 2 * data.y - 1)
    cert = solve(data, 0.02, bias=bias, output_bias=output_bias, tol=1e-2)
    known = optima.f1(other, weight_decay=0.02 / math.sqrt(2), bias=bias, output_bias=output_bias, tol=1e-6)
    assert cert.status == known.status == "certified"
    assert cert.lower <= known.upper and known.lower <= cert.upper
    assert cert.verify(data).ok


@pytest.mark.parametrize(
    ("n", "d", "K", "bias", "scale", "weighted"),
    [
        (30, 1, 3, True, 1.0, True),
        (25, 2, 4, False, 1e4, False),
        (14, 3, 3, False, 1e-3, True),
        (12, 3, 5, False, 1.0, False),
    ],
)
@pytest.mark.parametrize("output_bias", MODES)
def test_certificates_verify(n, d, K, bias, scale, weighted, output_bias):
    data = made(n, d, K, 3, scale)
    weights = np.random.default_rng(0).uniform(0, 3, n) if weighted else None
    cert = solve(data, 0.03 * scale, bias=bias, output_bias=output_bias, weights=weights, tol=1e-2)
    assert cert.status == "certified" and cert.kind == "f1-multiclass-optimum"
    verdict = cert.verify(data)
    assert verdict.ok, verdict
    assert 0 < cert.atoms <= n * (K - 1)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("output_bias", MODES)
def test_upper_is_what_pytorch_trains(bias: bool, output_bias: str | None):
    data = made(20, 2, 3, 5)
    cert = solve(data, 0.02, bias=bias, output_bias=output_bias, tol=0.05)
    shared.check_upper(data, cert, lambda t: torch.nn.CrossEntropyLoss()(t, torch.tensor(data.y).long()))


@repeated("seed", range(2), 0)
def test_training_never_goes_below_and_comes_near(seed: int):
    data, wd = made(20, 2, 3, 10 + seed), 0.03
    cert = solve(data, wd, output_bias="decayed", tol=1e-2)
    y = torch.tensor(data.y).long()
    best = shared.least_by_adam(data, 3, wd, seed, lambda t: torch.nn.functional.cross_entropy(t, y))
    assert cert.lower <= best
    assert best <= 1.05 * cert.upper  # wide networks find the optimum, or nearly


def test_masses_have_the_slopes_of_an_optimum():
    """|sum_i g_i z_ij| <= lam with equality, and in the direction of the mass, where there is mass."""
    rng = np.random.default_rng(0)
    for offset, ridge in ((False, 0.0), (True, 0.0), (True, 2.0)):
        points = ClassPoints(rng.integers(0, 4, 50), 4, rng.uniform(0.5, 2, 50), 0.8, offset, ridge)
        Z = rng.standard_normal((50, 30)).clip(0)
        Z = np.hstack([Z, Z[:, :5] + 1e-4 * Z[:, 5:10]])  # nearly equal columns
        A, b = groups.fit(points, Z, np.zeros((35, 4)), np.zeros(4))
        g = points.pull(Z @ A + b)
        slope, size = Z.T @ g, np.linalg.norm(A, axis=1)
        assert np.linalg.norm(slope, axis=1).max() <= 0.8 * (1 + 1e-6)
        assert np.abs(slope - 0.8 * A / size[:, None].clip(1e-300))[size > 0].max() < 1e-4
        assert 0 < (size > 0).sum() < 35
        if offset:
            assert np.abs(g.sum(axis=0) - ridge * b).max() < 1e-6
        step = 1e-6 * rng.standard_normal((200, 35, 4))
        value = points.objective(Z @ A + b, size.sum(), b)
        assert all(
            points.objective(Z @ (A + E) + b, np.linalg.norm(A + E, axis=1).sum(), b) >= value - 1e-9 for E in step
        )


def test_vectors_are_balanced_exactly():
    rng = np.random.default_rng(0)
    for K in (2, 3, 7):
        y = np.append(np.arange(K), rng.integers(0, K, 40))
        n = len(y)
        whole = rng.integers(0, 10**6, (n, K)) * (rng.random((n, K)) < 0.3)  # many pairs of classes have no weight
        whole[np.arange(n), y] = 0
        most = whole.sum(axis=1) + 10**7
        changed = balanced(whole, y, most)
        g = [[int(row.sum()) if k == label else -int(row[k]) for k in range(K)] for row, label in zip(changed, y)]
        assert all(sum(column) == 0 for column in zip(*g)) and (changed >= 0).all() and changed.any()
        assert (changed.sum(axis=1) <= most).all() and not changed[np.arange(n), y].any()


def test_limits():
    data = made(24, 2, 3, 0)
    for mode in (None, "free"):
        top = optima.largest_decay(data, loss="cross-entropy", output_bias=mode, tol=1e-3, bias=True)
        assert 0 < top.lower <= top.upper <= 1.01 * top.lower
        above = solve(data, 1.001 * top.upper, output_bias=mode)
        share = np.bincount(data.y.astype(int)) / data.n if mode else np.full(3, 1 / 3)
        assert above.atoms == 0 and above.upper == pytest.approx(-(np.log(share)[data.y.astype(int)]).mean(), rel=1e-9)
        assert above.verify(data).ok
        below = solve(data, 0.9 * top.lower, output_bias=mode, tol=1e-4)
        assert below.atoms > 0 and below.upper < above.upper * (1 - 1e-4)


def test_entries_beside_a_diagonal_of_zeros():
    """With tol=1e-300 searches met them: scaled by the diagonal they were infinite, and eigenvalues did not converge."""
    a = np.array([1e200, -1e200, 1e10, 2.0, -0.4, -2.0])
    C = np.array([[0.0, 1, 1], [1, 0, 1], [1, 1, 0]]) * a[:, None, None] + np.eye(3) * (np.abs(a) < 1e9)[:, None, None]
    with np.errstate(over="ignore"):
        assert [answer.tolist() for answer in several.copositive(C)] == [
            [True, False, True, True, True, False],
            [False, False, False, False, True, False],
        ]


@pytest.mark.slow
def test_weak_decay_has_the_largest_margin():
    """As the decay goes to 0 the normalised margin grows to that of `margins.multiclass_f1`."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((9, 2))
    data = Dataset(X, np.repeat([0.0, 1.0, 2.0], 3))
    margin = margins.multiclass_f1(data, bias=True, tol=1e-3)
    path = optima.path(
        data, [1e-2, 1e-4, 1e-6], loss="cross-entropy", output_bias=None, tol=1e-2, time_limit=20, bias=True
    )
    found = path.column("margin")
    assert (np.diff(found) > 0).all() and found[-1] <= margin.upper
    assert found[-1] >= 0.9 * margin.lower
    assert (path.column("error") == 0)[1:].all() and (np.diff(path.column("norm")) > 0).all()


@pytest.fixture(scope="module")
def true():
    data = made(15, 2, 3, 2)
    return shared.verified(data, solve(data, 0.03, tol=1e-2))


@pytest.mark.parametrize(
    "change",
    [
        *shared.CHANGES,
        lambda p: p["extra"].update(scale=4 * p["extra"]["scale"]),
        lambda p: p["dual"][0].__setitem__(slice(None), [v + 2.0**-20 * (v == 0) for v in p["dual"][0]]),
        lambda p: p["dual"][0].__setitem__(slice(None), [-v for v in p["dual"][0]]),
        lambda p: p["dual"][3].__setitem__(slice(None), [1.1 * v for v in p["dual"][3]]),
        lambda p: p.update(kind="f1-multiclass"),
    ],
)
def test_false_ones_are_refused(true, change):
    shared.check_refused(*true, change)


def test_bad_input_is_said_in_one_sentence():
    data = made(12, 2, 3, 0)
    signs = Dataset(data.X, np.where(data.y > 0, 1.0, -1.0))
    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    for call, word in (
        (lambda: solve(Dataset(data.X, data.y + 0.5), 0.1), "class number"),
        (lambda: solve(data, -1.0), "positive"),
        (lambda: solve(data, 0.1, weights=(data.y > 0).astype(float)), "class 0 has no point"),
        (lambda: optima.f2(data, loss="cross-entropy", weight_decay=0.1, bias=True), "cross-entropy"),
        (lambda: optima.f1(data, loss="logistic", weight_decay=0.1, bias=True), "cross-entropy"),
        (lambda: optima.gap(model, data.X, data.y, loss="cross-entropy", weight_decay=0.1), "2 outputs"),
        (lambda: optima.gap(model, signs.X, signs.y, loss="logistic", weight_decay=0.1), "2 outputs"),
        (lambda: optima.largest_decay(data, loss="cross-entropy", output_bias="decayed", bias=True), "decayed"),
    ):
        with pytest.raises(InputError, match=word) as said:
            call()
        assert "\n" not in str(said.value)


def test_the_classifier_has_one_certificate_and_softmax():
    data = made(24, 2, 3, 4)
    names = np.array(["inner", "middle", "outer"])[data.y.astype(int)]
    model = optima.ReluNetClassifier(0.01, loss="cross-entropy", tol=0.02, time_limit=30, bias=True).fit(data.X, names)
    assert model.certificate_.verify(model.data_).ok and len(model.certificates_) == 1
    P = model.predict_proba(data.X)
    assert P.shape == (24, 3) and np.allclose(P.sum(axis=1), 1) and (names == model.predict(data.X)).mean() > 0.7
    kept = np.log(P[np.arange(24), data.y.astype(int)])
    theta, outer = (np.array(model.certificate_.extra[k]) for k in ("theta", "outer"))
    norm = np.linalg.norm(theta, axis=1) @ np.linalg.norm(outer, axis=1)
    assert -kept.mean() + 0.01 * norm == pytest.approx(model.certificate_.upper, rel=1e-9)
    two = optima.ReluNetClassifier(0.05, loss="cross-entropy", tol=0.02, bias=True).fit(data.X, data.y > 0)
    assert two.decision_function(data.X).shape == (24,) and two.predict_proba(data.X).shape == (24, 2)


def test_a_start_without_neurons_and_output_bias_is_polished():
    """Nothing has mass there, so that there is nothing smooth to step along."""
    points = ClassPoints(np.array([0, 1, 2]), 3, np.full(3, 1 / 3), 1e5, False, 0.0)
    Z, A, b = np.ones((3, 2)), np.zeros((2, 3)), np.zeros(3)
    assert groups._newton(points, Z, A, b, groups._slopes(points, Z, A, b)) is None
