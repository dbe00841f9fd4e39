"""F1 certificates of data sets with little in them: equal features, tiny points, points near a subspace, large scales."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from checks import assert_encloses, check_certificate, repeated
from widemargin import Dataset
from widemargin.data import parity
from widemargin.margins import f1, f2, frozen, linear, multiclass_linear, random_features
from widemargin.margins.door import enter
from widemargin.margins.wide_networks import Solver
from widemargin.pricing.points import find_symmetry
from widemargin.spaces import ReLU

XOR = Dataset([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]], [1, 1, -1, -1], "xor")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("d", "n", "seed"), [(3, 4, 6), (4, 4, 11), (4, 8, 0), (5, 8, 11)])
def test_equal_features(d: int, n: int, seed: int, bias: bool):
    """Two features are equal in all points, so their exchange is a symmetry that moves nothing."""
    data = parity(d, n=n, seed=seed)
    check_certificate(f1(data, bias=bias, tol=1e-4), data, tol=1e-4, status="certified")


def test_features_that_repeat_others_or_are_constant():
    X = np.array(list(itertools.product([-1.0, 1.0], repeat=3)))
    data = Dataset(X, X[:, 0] * X[:, 1])
    wide = Dataset(np.column_stack([X, X[:, 0], -X[:, 1], np.zeros(8)]), data.y)
    margins = [f1(points, tol=1e-4) for points in (data, wide)]
    for certificate, points in zip(margins, (data, wide)):
        check_certificate(certificate, points, tol=1e-4, status="certified")
    assert margins[1].upper >= margins[0].lower  # more features, and the network may leave them alone


def test_a_reflection_that_moves_nothing_is_no_symmetry():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((6, 3)), np.resize([1.0, -1.0], 6)
    assert find_symmetry(X[:, [0, 1, 2, 2]], y) is None
    assert find_symmetry(np.hstack([X, np.zeros((6, 1))]), y) is None


@pytest.mark.parametrize("c", [1e-5, 1e4, 1e5, 4e5])
def test_multipliers_of_roots_at_other_scales(c: float):
    """In units of the data a root's multiplier grows with the scale, beyond 64 bits."""
    for data, value in ((XOR, math.sqrt(2) / 4), (parity(4, k=2, marginal="full"), 1 / math.sqrt(32))):
        scaled = Dataset(c * data.X, data.y)
        certificate = f1(scaled, tol=1e-4)
        check_certificate(certificate, scaled, tol=1e-4, status="certified")
        assert_encloses(certificate, c * value, 1e-12 * c)


@pytest.mark.parametrize("seed", [1, 2])
def test_two_points_that_are_nearly_equal(seed: int):
    """Terms of size 1 cancel down to a margin of 1e-7: a proof must leave room for their rounding."""
    rng = np.random.default_rng(seed)
    data = Dataset(np.ones((2, 3)) + 1e-7 * rng.standard_normal((2, 3)), [1, -1])
    check_certificate(f1(data, tol=1e-3), data, tol=1e-3, status="certified")


@pytest.mark.parametrize("c", [1e-4, 1e-6])
def test_networks_of_small_points_with_a_bias(c: float):
    """Nearly all directions see all four points or none; those in between are found all the same."""
    data = Dataset(c * XOR.X, XOR.y)
    certificate = f1(data, bias=True, tol=0.5)
    check_certificate(certificate, data, tol=0.5, status="certified")
    assert c * math.sqrt(2) / 4 * (1 - 1e-3) <= certificate.lower <= c * math.sqrt(2) / 4


def test_the_gap_that_is_proved_decides_the_status():
    data = parity(4, n=8, seed=1)
    solver = Solver(enter(data, ReLU(), 1e-2, None), 1e-4, 0, "cpu", None)
    solver.run()
    assert solver.finish("time-limit").status == "certified"
    solver.tol = 1e-9
    assert solver.finish("certified").status == "rounding"


@pytest.mark.parametrize("kind", ["linear", "frozen", "rf", "f2", "multiclass"])
def test_beside_one_large_point_separable_stays_separable(kind: str):
    """The margin of the small points is rounding beside the large one, which does not make 0 of it: nobody may say so."""
    far = Dataset([[3e12, 1e12], [0.7, 0.4]], [1, -1], "one large point")
    near = Dataset([[3.0, 1.0], [0.7, 0.4]], far.y, "the same rays")
    solve = {
        "linear": linear,
        "frozen": lambda data: frozen(data, 40),
        "rf": lambda data: random_features(data, 40),
        "f2": f2,
        "multiclass": lambda data: multiclass_linear(Dataset(data.X, (data.y > 0).astype(int), data.name)),
    }[kind]
    assert solve(near).lower > 0
    found = solve(far)
    data = Dataset(far.X, (far.y > 0).astype(int), far.name) if kind == "multiclass" else far
    assert found.status != "not-separable" and found.verify(data), found


@repeated("activation", ["relu", "leaky", "srelu"], 1, 2)
def test_points_whose_lengths_differ_by_more_than_the_digits_of_a_float(activation: str):
    """Beside far larger points small ones look like rounding, and so do their dimensions; a bound without those is too low."""
    for seed in (0, 1, 4):
        rng = np.random.default_rng(seed)
        n, d = int(rng.integers(2, 10)), int(rng.integers(1, 6))
        X = rng.standard_normal((n, d)) * 2.0 ** rng.integers(-100, 100, (n, 1))
        y = np.where(rng.random(n) < 0.5, 1.0, -1.0)
        y[0], y[-1] = 1, -1
        data = Dataset(X, y)
        assert f1(data, activation=activation, time_limit=0.6).verify(data)


@pytest.mark.parametrize("solve", [f1, f2, lambda data: frozen(data, 30), lambda data: random_features(data, 30)])
def test_a_margin_below_all_floats_is_not_certified(solve):
    """The lower bound is 0 once it is rounded down: the status says so, and the checker agrees."""
    data = Dataset(np.array([[2.0, 1], [1, 2], [-1, 1], [1, -2]]) * 5e-324, [1, -1, 1, -1])
    certificate = solve(data)
    assert (certificate.status, certificate.lower) == ("rounding", 0.0) and certificate.upper <= 1e-322
    assert certificate.verify(data)
