"""The tangent margin: gradients of a network's outputs, given themselves or by their inner products."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from checks import moved, noise
from widemargin import Dataset, InputError, margins, verify
from widemargin.margins import given_gradients, kernel_machines, ntk, random_features, tangent


def test_the_tangent_margin_of_wide_networks_tends_to_the_l2_margin():
    points, m = noise(6, 3, seed=14), 60_000
    W = np.random.default_rng(15).standard_normal((m, 4)) / [1.0, *[math.sqrt(3)] * 3]  # rows (a, v)
    P = points.X @ W[:, 1:].T  # (n, m)
    J = np.concatenate([P.clip(0)[:, :, None], ((P > 0) * W[:, 0])[:, :, None] * points.X[:, None, :]], axis=2)
    certificate = tangent(points, jacobian=J.reshape(6, -1))
    assert certificate.kind == "tangent" and certificate.gap < 1e-6 and certificate.verify(points)
    assert_allclose(certificate.lower / math.sqrt(m), ntk(points, transport="l2").lower, rtol=0.03)


def test_the_tangent_margin_of_frozen_features_is_theirs():
    points = noise(7, 3, seed=16)
    V = np.random.default_rng(17).standard_normal((50, 3))
    V /= np.linalg.norm(V, axis=1, keepdims=True)
    features = random_features(points, V)

    def jacobian(X: np.ndarray) -> np.ndarray:
        return (X @ V.T).clip(0) / math.sqrt(50)

    for certificate in (
        tangent(points, jacobian=jacobian),
        tangent(points, gram=jacobian(points.X) @ jacobian(points.X).T),
        tangent(points, gram=lambda X: jacobian(X) @ jacobian(X).T),
    ):
        assert_allclose(certificate.lower, features.lower, rtol=1e-6)
        assert certificate.verify(points)
        for name, factor in (("lower", 1.001), ("upper", 0.999)):
            assert not verify.check(
                moved(certificate, **{name: getattr(certificate, name) * factor}), points.X, points.y
            )
        assert verify.check(moved(certificate, kernel="relu"), points.X, points.y).answer == verify.REFUSED


def line(n: int, P: int, seed: int) -> tuple[Dataset, np.ndarray]:
    """Gradients (n, P) with a margin of 1/2 and more in their first entry, and points that have nothing to do with them."""
    rng = np.random.default_rng(seed)
    y = rng.choice([-1.0, 1.0], n)
    J = rng.standard_normal((n, P))
    J[:, 0] = y * (0.5 + np.abs(J[:, 0]))
    return Dataset(rng.standard_normal((n, 2)), y, "line"), J


@pytest.mark.parametrize(("n", "P"), [(30, 3), (9, 40)])
def test_gradients_and_their_products_have_one_margin(n, P):
    """With few parameters the gradients are stored, with many their products; both are the linear margin of the gradients."""
    data, J = line(n, P, seed=n)
    found, products = tangent(data, jacobian=J), tangent(data, gram=J @ J.T)
    assert found.extra["kernel"] == ("jacobian" if n >= P else "given") and products.extra["kernel"] == "given"
    truth = margins.linear(Dataset(J, data.y)).lower
    for cert in (found, products):
        assert cert.status == "certified" and cert.n == n and cert.d == 2
        assert_allclose(cert.lower, truth, rtol=1e-6)
        assert cert.verify(data).answer == "proved exactly"


def test_no_time_for_products():
    """n^2 P operations are more than a short limit allows: the gradients themselves do."""
    data, J = line(400, 30_000, seed=5)
    cert = tangent(data, jacobian=J, time_limit=1e-3)
    assert cert.extra["kernel"] == "jacobian" and cert.upper < math.inf
    assert cert.verify(data).failed is None


def test_a_certificate_of_gradients_is_saved_and_read(tmp_path):
    data, J = line(20, 4, seed=6)
    cert = tangent(data, jacobian=J)
    cert.save(tmp_path / "tangent.json")
    again = type(cert).load(tmp_path / "tangent.json")
    assert again.verify(data).answer == "proved exactly" and "kernel jacobian" in str(again.verify(data))
    assert_allclose(again.extra["jacobian"], J, rtol=0)
    with pytest.raises(InputError, match="knows no values beside"):
        again.function(data.X)


def test_forged_gradients():
    data, J = line(20, 4, seed=7)
    cert = tangent(data, jacobian=J)

    def answer(**changed):
        payload = cert.payload()
        payload["extra"] |= changed
        payload["digest"] = verify.digest(payload)
        return verify.check(payload, data.X, data.y)

    assert answer().ok
    assert "its margin is below lower" in str(answer(jacobian=(0.9 * J).tolist()))
    assert "is larger" in str(answer(jacobian=(1.1 * J).tolist()))
    assert "is zero" in str(answer(u=[0.0] * 4))
    for bad in (
        [],
        J[:-1].tolist(),
        [*J[:-1].tolist(), [1.0]],
        [[]] * 20,
        [["x"] * 4] * 20,
        None,
        {},
        [[math.nan] * 4] * 20,
    ):
        assert answer(jacobian=bad).answer == verify.REFUSED
    assert answer(u=[1.0] * 5).answer == verify.REFUSED
    assert answer(kernel="relu").answer == answer(kernel="given").answer == verify.REFUSED


def test_gradients_that_vanish_or_contradict():
    data = Dataset(np.eye(3), [1, -1, 1])
    zero = tangent(data, jacobian=[[1.0, 2.0], [0.0, 0.0], [1.0, 0.0]])
    twins = tangent(data, jacobian=[[1.0, 2.0], [1.0, 2.0], [1.0, 0.0]])
    for cert, words in (
        (zero, "point 1 has the gradient 0"),
        (twins, "points 0 and 1 have equal gradients but different"),
    ):
        assert cert.status == "not-separable" and cert.verify(data).answer == "proved exactly"
        assert words in cert.reason


def test_a_matrix_that_is_too_large_is_a_sentence(monkeypatch):
    data, J = line(30, 3, seed=8)
    with pytest.raises(InputError, match=r"of 30 points would take 14.4 kB, more than the 10 kB"):
        tangent(data, gram=J @ J.T, memory=1e4)
    monkeypatch.setattr(kernel_machines, "GIVEN", 29)
    with pytest.raises(InputError, match="may have 29 points, which a checker looks at, not 30"):
        margins.f2(data, kernel=lambda X, Z: 1 / 0)  # not asked for
    monkeypatch.setattr(given_gradients, "GIVEN", 5)
    assert tangent(data, jacobian=np.hstack([J] * 20)).extra["kernel"] == "jacobian"


def test_a_stored_matrix_of_very_many_points_is_not_looked_at(monkeypatch):
    data, J = line(12, 30, seed=9)
    cert = tangent(data, jacobian=J)
    monkeypatch.setattr(verify.kernels, "GIVEN", 11)
    assert "more than 11 points are not looked at" in str(cert.verify(data))


def test_a_given_matrix_in_several_blocks(monkeypatch):
    data, J = line(30, 40, seed=10)
    whole = tangent(data, gram=J @ J.T)
    monkeypatch.setattr(kernel_machines, "ROWS", 7)
    K = J @ J.T * (1 + 1e-15 * np.tril(np.ones((30, 30))))  # not exactly symmetric
    parts = tangent(data, gram=K)
    assert_allclose(parts.lower, whole.lower, rtol=1e-6)
    stored = np.array(parts.extra["gram"])
    assert (stored == stored.T).all() and (np.tril(stored) == np.tril(K)).all()
    K[20, 9] *= 1.1
    with pytest.raises(InputError, match=r"entries \(20, 9\) and \(9, 20\) differ"):
        tangent(data, gram=K)
    K[20, 9] = math.inf
    with pytest.raises(InputError, match="NaN or infinity"):
        tangent(data, gram=K)


def test_bad_input_is_refused_in_one_sentence():
    points = noise(4, 3, seed=0)
    for message, options in (
        ("either jacobian", {}),
        ("either jacobian", {"jacobian": np.ones((4, 2)), "gram": np.eye(4)}),
        ("one row per point", {"jacobian": np.ones((3, 2))}),
        ("NaN or infinity", {"jacobian": np.full((4, 2), np.nan)}),
        ("numbers only", {"jacobian": [["a"], ["b"], ["c"], ["d"]]}),
        (r"shape \(4, 4\)", {"gram": np.eye(3)}),
    ):
        with pytest.raises(InputError, match=message):
            tangent(points, **options)
