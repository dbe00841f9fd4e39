"""Paths of certified optima: each point is that of a solve of its own, and the limits are those of the theory."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from widemargin import Dataset, InputError, margins, optima, theory

rng = np.random.default_rng(0)
X = rng.standard_normal((20, 2))
NOISY = Dataset(X, np.where(X[:, 0] * X[:, 1] + 0.4 * rng.standard_normal(20) > 0, 1, -1), "noisy")
angle = np.arange(8) * np.pi / 4
RING = Dataset(np.stack([np.cos(angle), 0.7 * np.sin(angle)], 1), np.resize([1, 1, -1, -1], 8), "ring")


@pytest.mark.parametrize(("loss", "mode"), [("logistic", "free"), ("squared", "decayed"), ("hinge", None)])
def test_every_point_is_what_a_solve_of_its_own_gives(loss, mode):
    decays = [0.001, 0.05, 0.01, 0.05]
    found = optima.path(NOISY, decays, loss=loss, output_bias=mode, bias=True)
    assert_array_equal(found.column("weight_decay"), [0.05, 0.01, 0.001])
    for point in found:
        cert = point.certificate
        assert cert.status == "certified" and cert.verify(NOISY).ok
        own = optima.f1(NOISY, loss=loss, weight_decay=point.weight_decay, output_bias=mode, bias=True)
        assert cert.lower <= own.upper and own.lower <= cert.upper
        # Loss, norm, margin and error from the definition.
        t = NOISY.y * cert.function(X)
        phi = {"logistic": np.log1p(np.exp(-t)), "squared": (1 - t) ** 2 / 2, "hinge": np.maximum(0, 1 - t)}[loss]
        assert_allclose(point.loss, phi.mean(), rtol=1e-12)
        assert_allclose(point.norm, np.abs(cert.primal.mass) @ np.linalg.norm(cert.primal.theta, axis=1), rtol=1e-12)
        assert_allclose(point.margin, t.min() / point.norm, rtol=1e-12)
        assert point.error == (t <= 0).mean()
        b = cert.extra["offset"]
        ridge = point.weight_decay * b * b / 2 if mode == "decayed" else 0.0
        assert_allclose(point.loss + point.weight_decay * point.norm + ridge, point.upper, rtol=1e-9)
        assert point.neurons == cert.atoms > 0


def test_along_the_path():
    """P is concave and increasing in the decay; loss falls and norm rises as it falls, all up to the gap of the certificates."""
    found = optima.path(NOISY, 6, tol=1e-6, bias=True)
    largest = optima.largest_decay(NOISY, bias=True)
    decay, lower, upper = (found.column(name) for name in ("weight_decay", "lower", "upper"))
    assert_allclose(decay, largest.lower * 1e-3 ** (np.arange(1, 7) / 6), rtol=1e-12)
    assert (lower[:-1] > upper[1:]).all()
    assert (np.diff(found.column("norm")) > 0).all() and (np.diff(found.column("loss")) < 0).all()
    slope = np.diff(upper) / np.diff(decay)
    assert (np.diff(slope) > 0).all()  # steeper at smaller decays
    # The slope of P is the norm of a best network.
    assert (found.column("norm")[:-1] < slope).all() and (slope < found.column("norm")[1:]).all()
    assert found.column("error")[-1] == 0 < found.column("error")[0]
    assert len(found) == 6 and found[0].weight_decay == decay[0] and len(found[1:3]) == 2
    assert len(str(found).splitlines()) == 7 and "weight_decay" in str(found)


@pytest.mark.parametrize("loss", ["logistic", "exp"])
def test_the_limit_is_the_largest_margin(loss):
    """MT Theorem 4.1, with its error: (wd/2) |Theta|^2 is lam |Theta|^2, and the margin in M2 is half of that in M1."""
    best = margins.f1(RING, bias=True, tol=1e-6)
    decays = np.array([1e-2, 1e-4, 1e-8, 1e-16])
    found = optima.path(RING, decays, loss=loss, output_bias=None, tol=1e-5, bias=True)
    margin = found.column("margin")
    assert (np.diff(margin) > 0).all() and (margin <= best.upper * (1 + 1e-12)).all()
    assert margin[-1] > 0.97 * best.lower > margin[0]
    if loss == "logistic":
        for point in found:
            known = theory.regularization.minimizer_margin(math.sqrt(2 * point.norm), best.lower / 2, RING.n).value
            rate = theory.regularization.weak_regularization_margin(
                point.weight_decay / 2, best.lower / 2, RING.n
            ).value
            assert 2 * rate <= 2 * known * (1 + 1e-3) + 1e-3 and 2 * known <= point.margin
        assert 2 * rate > 0.9 * best.lower


def test_warm_starts_save_rounds():
    decays = np.geomspace(0.01, 0.005, 5)
    rounds = sum(point.certificate.stats["rounds"] for point in optima.path(NOISY, decays, tol=1e-6, bias=True))
    cold = sum(optima.f1(NOISY, weight_decay=v, tol=1e-6, bias=True).stats["rounds"] for v in decays)
    assert rounds < cold


def test_weights_targets_and_constants():
    values = Dataset(X, np.sin(3 * X[:, 0]) + X[:, 1])
    point = optima.path(values, [0.01], loss="squared", bias=True)[0]
    assert math.isnan(point.margin) and math.isnan(point.error) and point.loss > 0
    weights = np.resize([0, 1, 2], 20)
    point = optima.path(NOISY, [0.03], weights=weights, bias=True)[0]
    score = NOISY.y * point.certificate.function(X)
    assert_allclose(point.error, weights @ (score <= 0) / weights.sum())
    assert_allclose(point.margin, score[weights > 0].min() / point.norm)
    above = optima.path(NOISY, [10.0, 0.05], bias=True)  # a constant network, and one that begins with it
    assert above[0].neurons == 0 == above[0].norm and math.isnan(above[0].margin) and above[1].neurons > 0


def test_progress_and_interruption():
    said = []

    def progress(seconds, lower, upper, message):
        said.append(message)
        if message.startswith("decay 0.02"):
            raise KeyboardInterrupt

    found = optima.path(NOISY, [0.05, 0.02, 0.01], progress=progress, bias=True)
    assert [point.certificate.status for point in found] == ["certified", "interrupted"]
    assert said[0].startswith("decay 0.05: ") and all(point.certificate.verify(NOISY).ok for point in found)
    assert found.column("upper")[1] < found.column("upper")[0]  # it began with the network of the first


@pytest.mark.parametrize(
    ("decays", "keys", "words"),
    [
        ([], {}, "decays must be a list of positive numbers, or how many"),
        ([0.1, -1], {}, "positive numbers"),
        ([0.1, math.nan], {}, "positive numbers"),
        ([[0.1]], {}, "positive numbers"),
        ("many", {}, "positive numbers"),
        (0, {}, "from 1 to 10000, not 0"),
        (True, {}, "positive numbers"),
        (3, {"output_bias": "decayed"}, "no largest decay to begin with"),
        (3, {"loss": "cubic"}, "loss must be one of"),
        ([0.1], {"tol": 2}, "tol must lie"),
        ([0.1], {"device": "tpu"}, "device must be"),
    ],
)
def test_one_sentence(decays, keys, words):
    with pytest.raises(InputError, match=words) as caught:
        optima.path(NOISY, decays, **({"bias": True} | keys))
    assert "\n" not in str(caught.value)


def test_no_column_of_this_name():
    with pytest.raises(InputError, match="a path has the columns weight_decay"):
        optima.path(NOISY, [0.1], bias=True).column("height")
    with pytest.raises(InputError, match="constant at every decay"):
        optima.path(Dataset([[1.0], [1.0]], [1, -1]), 3, bias=True)
