import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.svm import LinearSVC

from checks import meet
from widemargin import Dataset, InputError
from widemargin.data import parity
from widemargin.margins import f2, linear


def separable(n: int, d: int, seed: int, gap: float = 0.05) -> Dataset:
    rng = np.random.default_rng(seed)
    X, u = rng.standard_normal((n, d)), rng.standard_normal(d)
    y = np.sign(X @ u)
    return Dataset(X + gap * y[:, None] * u / np.linalg.norm(u), y)


def test_tables_of_few_different_rows_are_inseparable_to_the_last_digit():
    """Parities are; an interior point method has half of the digits where points without weight lie on the boundary too."""
    found = []
    for d, n in itertools.product((2, 3, 4), (8, 16, 40)):
        data = parity(d=d, n=n, seed=d)
        certificate = linear(data)
        assert certificate.status in ("certified", "not-separable"), (d, n, certificate)
        assert certificate.verify(data).ok
        found.append(certificate.status == "not-separable" and certificate.upper == 0)
    assert any(found)


def test_golden_values():
    data = Dataset([[1.0, 0.0], [-1.0, 0.0]], [1, -1])
    certificate = linear(data)
    assert certificate.verify(data)
    assert certificate.lower <= 1 <= certificate.upper < 1 + 1e-12
    for d, value in ((2, 0.2236068), (4, 0.0542326), (8, 0.00338294)):  # the dyadic set: x_j = 2^-j e_j, all labels 1
        data = Dataset(np.diag(0.5 ** np.arange(1, d + 1)), np.ones(d))
        certificate = linear(data)
        exact = np.sqrt(3 / (4.0 ** (d + 1) - 4))
        assert certificate.lower <= exact * (1 + 1e-15) and exact * (1 - 1e-15) <= certificate.upper
        assert certificate.gap < 1e-9 and certificate.verify(data)
        assert_allclose(certificate.lower, value, rtol=3e-6)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("n, d, seed", [(30, 3, 0), (60, 8, 1), (12, 30, 2)])
def test_three_ways_to_the_linear_margin(n: int, d: int, seed: int, bias: bool):
    data = separable(n, d, seed)
    direct = linear(data, bias=bias)
    assert direct.status == "certified" and direct.proved and direct.gap < 1e-9
    assert direct.verify(data)
    kernel = f2(data, bias=bias, kernel=lambda X, Z: X @ Z.T)
    assert kernel.status == "certified" and kernel.verify(data)
    assert meet(direct, kernel)
    svc = LinearSVC(fit_intercept=False, loss="hinge", C=1e6, dual=True, tol=1e-10, max_iter=2_000_000, random_state=0)
    X = np.hstack([data.X, np.ones((n, 1))]) if bias else data.X
    w = svc.fit(X, data.y).coef_[0]
    margin = (data.y * (X @ w)).min() / np.linalg.norm(w)
    assert margin <= direct.upper
    assert_allclose(margin, direct.lower, rtol=1e-4)


def test_many_points_few_features_and_the_reverse():
    for n, d in ((5000, 10), (20, 400)):
        data = separable(n, d, seed=4)
        certificate = linear(data)
        assert certificate.gap < 1e-9 and certificate.status == "certified"
        u = np.array(certificate.extra["u"])
        assert_allclose((data.y * (data.X @ u)).min() / np.linalg.norm(u), certificate.lower, rtol=1e-9)


def test_invariances():
    data = separable(40, 4, seed=5)
    base = linear(data)
    rng = np.random.default_rng(6)
    rotation = np.linalg.qr(rng.standard_normal((4, 4)))[0]
    assert meet(base, linear(Dataset(data.X @ rotation, data.y)))
    order = rng.permutation(40)
    assert meet(base, linear(Dataset(data.X[order], data.y[order])), slack=0)
    double = linear(Dataset(np.vstack([data.X, data.X]), np.hstack([data.y, data.y])))
    assert meet(base, double, slack=0)
    fewer = linear(Dataset(data.X[1:], data.y[1:]))
    assert base.lower <= fewer.upper
    for c in (2.0**-900, 0.25, 2.0**900):
        scaled = linear(Dataset(c * data.X, data.y))
        assert scaled.lower / c <= base.upper and base.lower <= scaled.upper / c
        assert scaled.gap < 1e-9 and scaled.verify(Dataset(c * data.X, data.y))


@pytest.mark.parametrize("size", [1e-300, 1e300])
def test_extreme_magnitudes(size: float):
    base = separable(20, 3, seed=7)
    data = Dataset(size * base.X, base.y)
    certificate = linear(data)
    assert certificate.gap < 1e-9 and certificate.verify(data)
    assert_allclose(certificate.lower / size, linear(base).lower, rtol=1e-9)


def test_not_separable():
    twice = Dataset([[1.0, 2.0], [1.0, 2.0], [0.0, 1.0]], [1, -1, 1])
    cross = Dataset([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], [1, 1, 1])
    origin = Dataset([[1.0, 0.0], [0.0, 0.0]], [1, 1])
    for data, why in ((twice, "different labels"), (cross, "convex hull"), (origin, "origin")):
        certificate = linear(data)
        assert certificate.status == "not-separable" and certificate.proved and why in certificate.reason
        assert certificate.lower == certificate.upper == 0
        assert certificate.verify(data)
    rng = np.random.default_rng(0)
    noise = Dataset(rng.standard_normal((50, 3)), rng.choice([-1.0, 1.0], 50))
    certificate = linear(noise)
    assert certificate.status == "not-separable" and certificate.lower == 0 and certificate.upper < 1e-12
    assert certificate.verify(noise)


def test_a_tiny_margin_is_not_called_zero():
    data = Dataset([[1.0, 1e-5], [-1.0, 1e-5]], [1, 1])
    certificate = linear(data)
    assert certificate.status == "certified" and certificate.verify(data)
    assert_allclose(certificate.lower, 1e-5, rtol=1e-8)


def test_bad_input_is_refused_in_one_sentence():
    data = separable(5, 2, seed=0)
    for message, call in (
        ("labels -1 and", lambda: linear(Dataset(data.X, np.arange(5.0)))),
        ("tol", lambda: linear(data, tol=0)),
        ("time_limit", lambda: linear(data, time_limit=-1)),
        ("1e150", lambda: linear(Dataset([[1e300, 0], [0, 1e-300]], [1, 1]))),
    ):
        with pytest.raises(InputError, match=message):
            call()


def test_a_time_limit_leaves_valid_bounds():
    data = separable(400, 30, seed=1)
    certificate = linear(data, time_limit=1e-9)
    assert certificate.status == "time-limit" and certificate.verify(data)
    assert certificate.lower <= linear(data).upper and linear(data).lower <= certificate.upper
    assert_array_equal(certificate.dual >= 0, True)
