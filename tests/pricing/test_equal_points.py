"""Weights of training problems: equal points with weights of both signs, and thousands of points in few dimensions."""

import math

import numpy as np
import torch
from numpy.testing import assert_allclose

from widemargin.pricing import enumeration, plan, price, signs, writing
from widemargin.pricing.points import Points, opposite_pairs


def test_equal_points_that_cancel_leave_nothing():
    for d in (1, 2, 3):
        x = np.array([[1.0, 2.0, -1.0][:d], [1.0, 2.0, -1.0][:d], [-2.0, 0.5, 1.0][:d], [-2.0, 0.5, 1.0][:d]])
        value, bound, found = enumeration.enumerate3(x, np.array([1.0, -1.0, 0.5, -0.5]))
        assert abs(value) < 1e-12 and 0 <= bound < 1e-11 and len(found)


def test_each_point_has_one_opposite():
    x = np.array([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
    pairs = opposite_pairs(x)
    assert len(np.unique(pairs)) == pairs.size and [6, 7] in pairs.tolist()
    assert all((x[i] == -x[j]).all() and x[i].any() for i, j in pairs)
    rng = np.random.default_rng(0)
    y = rng.standard_normal((6, 4))
    z = np.vstack([y, y[:3], -y[:2], -y[:2]])  # thirteen, equal and opposite
    c = rng.standard_normal(len(z))
    points = Points(z, None, 0, torch.device("cpu"), np.eye(4))
    found = price(points, c, known=0.0, tol=1e-4, seconds=20.0)
    V = rng.standard_normal((200_000, 4))
    V /= np.linalg.norm(V, axis=1, keepdims=True)
    most = float(((V @ z.T).clip(0) @ c).max())
    assert most <= found.bound and found.bound <= max(found.value, 0) * (1 + 2e-4) + 1e-12
    direction = found.directions[0].numpy()
    assert_allclose(float((z @ direction).clip(0) @ c), found.value, rtol=1e-9)


def test_many_points_in_few_dimensions_are_priced_by_cones_alone():
    rng = np.random.default_rng(1)
    many = Points(rng.standard_normal((1200, 3)), None, 0, torch.device("cpu"), np.eye(3))
    few = Points(rng.standard_normal((400, 3)), None, 0, torch.device("cpu"), np.eye(3))
    assert [stage.way for stage in plan(many, np.ones(1200), 10.0, False, False)] == ["cones"]
    assert {stage.way for stage in plan(few, np.ones(400), 10.0, False, False)} == {"cones", "quadratic"}
    c = rng.standard_normal(1200)
    found = price(many, c, known=0.0, tol=1e-3, seconds=math.inf)
    assert found.value <= found.bound <= found.value * (1 + 1.1e-3)


def test_points_that_are_zero_are_not_branched_on():
    """Training problems have weights there. Both signs of such a point are all directions, and none contradicts others."""
    rng = np.random.default_rng(2)
    X, c = rng.integers(-2, 3, (24, 4)).astype(float), rng.standard_normal(24)
    X, c = X[X.any(axis=1)], c[X.any(axis=1)]
    Z, e = np.vstack([X, np.zeros((6, 4))]), np.append(c, np.ones(6))
    runs = []
    for points, weights in ((X, c), (Z, e)):
        tree = signs.Tree(torch.as_tensor(points), torch.as_tensor(weights))
        found = tree.run(0.0, 1e-6, deadline=math.inf, batch=64, quadratic=False)
        side, bound = writing.write(found.log, points, weights, np.zeros(4), np.zeros((0, 4), dtype=int), 1.0)
        runs.append((found.nodes, len(side["leaves"]), found.value, bound))
    assert runs[0][:2] == runs[1][:2]
    assert_allclose(runs[0][2:], runs[1][2:], rtol=1e-9)
    nothing = signs.Tree(torch.zeros(3, 4, dtype=torch.float64), torch.ones(3, dtype=torch.float64))
    assert nothing.run(0.0, 1e-6, deadline=math.inf, batch=64, quadratic=False).nodes == 1
