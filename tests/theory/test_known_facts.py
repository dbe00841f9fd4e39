"""What guarantees are asked of: networks in every form, and what is none."""

from __future__ import annotations

import numpy as np
import pytest

from widemargin import Dataset, InputError, Measure, margins, theory


@pytest.mark.parametrize("activation, bias", [("relu", False), ("relu", True), ("srelu", True)])
def test_the_network_of_a_certificate_is_a_network(activation, bias):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((8, 2))
    data = Dataset(X, np.sign(X[:, 0]))
    theta = rng.standard_normal((3, 2 + bias))
    net = Measure(theta, np.array([2.0, -0.5, 1.0]), activation, bias)
    found = theory.guarantees(data, net, theorems=["CB-22"])
    assert np.allclose(found.facts.p, data.y * net(X), rtol=1e-12)
    assert np.isclose(found.facts.measure.norm, net.norm, rtol=1e-12)
    assert found[0] is found.found[0]


def test_what_is_no_run_is_told_in_a_sentence():
    data = Dataset([[1.0, 0.0], [-1.0, 0.0]], [1, -1])
    for given, said in (
        (margins.f1(data), "the network of a certificate is its primal"),
        (3, "not int"),
        ((1, 2), "a pair must be a network"),
        (Measure(np.ones((1, 3)), np.ones(1)), "neurons in 3 dimensions, the points have 2"),
    ):
        with pytest.raises(InputError, match=said):
            theory.guarantees(data, given)


def test_points_in_the_unit_ball_are_asked_as_the_others_were():
    known = theory.Facts(Dataset([[3.0, 0.0], [-4.0, 0.0]], [1, -1]), 0.1, seed=3, time_limit=0.5)
    inside = known.unit
    assert inside.radius == 1 and (inside.delta, inside.seed, inside.time_limit) == (0.1, 3, 0.5)
