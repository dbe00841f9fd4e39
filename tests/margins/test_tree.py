"""Branch and bound for one neuron: its bound against brute force, samples and symmetry; and the test for margin 0."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import linprog

from checks import ascended, brute_force, directions, dual_values, features, noise, repeated, unit
from widemargin import Dataset
from widemargin.data import parity
from widemargin.margins.door import enter, not_separable, twins
from widemargin.pricing.moments import FrankWolfe, Splitting
from widemargin.pricing.points import find_symmetry
from widemargin.pricing.signs import ACTIVE, FREE, INACTIVE, Priced, Tree
from widemargin.spaces import ReLU

TIGHT = 1 + 1e-11  # float64 bounds hold up to this
MODES = [{"quadratic": False}, {"quadratic": True}]
modes = pytest.mark.parametrize("mode", MODES, ids=str)


def price(X, c, known=0.0, tol=1e-6, roots=None, linear=None, seconds=20.0, batch=256, **options) -> Priced:
    as_tensor = lambda a: None if a is None else torch.as_tensor(np.array(a, dtype=np.float64))  # noqa: E731
    tree = Tree(as_tensor(X), as_tensor(c), as_tensor(roots), as_tensor(linear))
    return tree.run(known, tol, deadline=time.monotonic() + seconds, batch=batch, **options)


def problem(n: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of different lengths and weights of both signs that sum to one in absolute value."""
    rng = np.random.default_rng(seed)
    c = rng.standard_normal(n)
    return rng.standard_normal((n, d)) * 10 ** rng.uniform(-0.5, 0.5, (n, 1)), c / np.abs(c).sum()


def check_pricing(result: Priced, X: np.ndarray, c: np.ndarray, linear: np.ndarray | None = None) -> None:
    """value <= maximum <= bound at thousands of directions, and what the tree found is what it says."""
    linear = np.zeros(X.shape[1]) if linear is None else np.asarray(linear)
    assert result.value <= result.bound * TIGHT
    found = result.directions.numpy()
    size = np.linalg.norm(found, axis=1)
    assert_allclose(size[size > 0], 1, rtol=1e-9)  # where a relaxation has no direction, found holds the zero vector
    values = dual_values(found, X, c) + found @ linear
    assert_allclose(values.max(), result.value, rtol=1e-9, atol=1e-13)
    V = directions(X, 4000, seed=1)
    best = V[np.argsort(-dual_values(V, X, c) - V @ linear)[:200]]
    V = np.vstack([V, found, ascended(X, c, best)])
    assert (dual_values(V, X, c) + V @ linear).max() <= result.bound * TIGHT


# ---------------------------------------------------------------------- the bound


@modes
@repeated("n, d", [(1, 1), (6, 1), (7, 2), (8, 3), (6, 4)], 0, 1, 3)
def test_the_bound_is_brute_force_over_sign_patterns(n: int, d: int, mode: dict):
    for seed in range(3):
        X, c = problem(n, d, seed)
        exact, _ = brute_force(X, c)
        result = price(X, c, tol=1e-6, **mode)
        check_pricing(result, X, c)
        assert exact <= result.bound * TIGHT
        assert result.bound <= max(exact * (1 + 1e-6) * TIGHT, 1e-200)
        if exact > 0:
            assert result.value >= exact * (1 - 1e-6)


@modes
@pytest.mark.parametrize("limit", [1, 10, math.inf])
def test_no_direction_beats_the_bound_of_an_unfinished_tree(limit: float, mode: dict):
    for seed, (n, d) in enumerate([(20, 3), (30, 6), (60, 2)]):
        X, c = problem(n, d, seed)
        result = price(X, c, tol=1e-3, max_nodes=limit, batch=64, seconds=2.0, **mode)
        check_pricing(result, X, c)
        if limit == 1:
            assert result.nodes == 1


@modes
def test_a_larger_tree_has_a_smaller_bound(mode: dict):
    X, c = problem(30, 5, 5)
    bounds = [price(X, c, tol=1e-4, max_nodes=limit, batch=16, **mode).bound for limit in (1, 10, 100, 1000)]
    assert bounds[-1] < 0.99 * bounds[0]
    if not mode.get("quadratic"):  # a child need not inherit the quadratic bound of its parent
        for few, many in itertools.pairwise(bounds):
            assert many <= few * TIGHT


@modes
def test_a_deadline_in_the_past_still_gives_a_bound(mode: dict):
    X, c = problem(50, 8, 6)
    started = time.monotonic()
    result = price(X, c, tol=1e-9, seconds=-1.0, **mode)
    assert time.monotonic() - started < 5
    check_pricing(result, X, c)
    assert math.isfinite(result.bound)


@modes
def test_a_value_known_from_elsewhere_stops_the_tree(mode: dict):
    X, c = problem(8, 3, 7)
    exact, _ = brute_force(X, c)
    result = price(X, c, known=1.5 * exact, tol=1e-6, **mode)
    assert exact <= result.bound <= 1.5 * exact * (1 + 1e-6) * TIGHT
    assert result.log is not None
    assert result.nodes <= price(X, c, known=0.0, tol=1e-6, **mode).nodes
    near = price(X, c, known=0.5 * exact, tol=1e-6, **mode)
    assert exact <= near.bound * TIGHT and near.bound <= exact * (1 + 1e-6) * TIGHT


@modes
def test_batches_do_not_change_the_answer(mode: dict):
    X, c = problem(12, 3, 8)
    for batch in (2, 1024):
        result = price(X, c, tol=1e-5, batch=batch, **mode)
        check_pricing(result, X, c)
        assert_allclose(result.bound, price(X, c, tol=1e-5, **mode).bound, rtol=2e-5)


@modes
def test_weights_of_one_sign(mode: dict):
    X = problem(9, 3, 9)[0]
    negative = price(X, -np.ones(9) / 9, **mode)  # nothing above 0 in a concave problem that the zero vector solves
    assert -1e-9 <= negative.bound <= 1e-3
    check_pricing(negative, X, -np.ones(9) / 9)
    some = np.zeros(9)
    some[4] = 1.0
    single = price(X, some, **mode)
    assert_allclose(single.bound, np.linalg.norm(X[4]), rtol=1e-6)
    X = np.abs(X)  # all active at once: a linear problem
    positive = price(X, np.ones(9) / 9, **mode)
    assert_allclose(positive.bound, np.linalg.norm(X.mean(axis=0)), rtol=2e-6)


@modes
def test_scales(mode: dict):
    X, c = problem(8, 3, 10)
    exact, _ = brute_force(X, c)
    for data, weight in ((1e-6, 1.0), (1.0, 1e-9), (1e3, 1e3)):
        result = price(data * X, weight * c, tol=1e-6, **mode)
        assert exact * data * weight <= result.bound * TIGHT
        assert result.bound <= exact * data * weight * (1 + 1e-6) * TIGHT


@repeated("spread", [0.0, 0.05, 1.0], 0, 1)
def test_the_bound_of_every_node_holds_on_its_region(spread: float):
    """Signs of some positive points fixed as at v: the node's bound is at least the value at v.

    With a small spread all points are nearly parallel, and a bound that is a few per cent too low is seen.
    """
    rng = np.random.default_rng(11)
    n, d = 12, 4
    for _ in range(2):
        X = np.eye(d)[0] * rng.choice([-1.0, 1.0], (n, 1)) + spread * rng.standard_normal((n, d))
        c = np.append(rng.random(8), -rng.random(4))  # positive first, as the tree orders them
        V = np.vstack([ascended(X, c, rng.standard_normal((100, d))), unit(rng.standard_normal((100, d)))])
        sign = np.where(V @ X[:8].T > 0, ACTIVE, INACTIVE)
        sign[rng.random(sign.shape) < rng.random((200, 1))] = FREE
        sign[:20] = FREE
        tree, nodes = Tree(torch.as_tensor(X), torch.as_tensor(c)), torch.as_tensor(sign.astype(np.int8))
        value = dual_values(V, X, c)
        slopes = torch.zeros(200, n, dtype=torch.float64)
        bounds = [tree.evaluate(nodes, slopes, steps)[0].numpy() for steps in (1, 30, 300)]
        for moments in (Splitting(tree), FrankWolfe(tree)):
            start = moments.start().expand(200, -1)
            bounds += [moments.solve(nodes, start, steps)[0].bound.numpy() for steps in (1, 8, 80)]
        for bound in bounds:
            assert (value <= bound * TIGHT).all()
        if spread == 0:  # one line: the linear bound of the root is exact when all weights are positive
            single = Tree(torch.as_tensor(np.abs(X)), torch.as_tensor(np.abs(c)))
            root = torch.full((1, n), FREE, dtype=torch.int8)
            bound = single.evaluate(root, torch.zeros(1, n, dtype=torch.float64), 300)[0]
            assert_allclose(float(bound), np.abs(c).sum(), rtol=1e-9)


# ---------------------------------------------------------------------- linear terms, mirrors, roots


@modes
def test_a_linear_term(mode: dict):
    for seed in range(4):
        X, c = problem(7, 3, 20 + seed)
        linear = np.random.default_rng(seed).standard_normal(3) * 0.3
        exact, _ = brute_force(X, c, linear)
        result = price(X, c, linear=linear, tol=1e-6, **mode)
        check_pricing(result, X, c, linear)
        assert exact <= result.bound * TIGHT and result.bound <= exact * (1 + 1e-6) * TIGHT


@modes
def test_only_a_linear_term(mode: dict):
    """What is left of (x, +1) and (-x, -1) with equal weights once they are folded into one."""
    result = price(np.eye(2), np.zeros(2), linear=[0.3, 0.4], **mode)
    assert_allclose(result.bound, 0.5, rtol=1e-6)
    assert_allclose(np.abs(result.directions.numpy()[0]), [0.6, 0.8], rtol=1e-6)


@modes
def test_opposite_points_may_be_folded(mode: dict):
    """c' relu(-t) = c' relu(t) - c' t, so a pair is one point and a linear term."""
    X, c = problem(4, 3, 30)
    other = np.random.default_rng(31).standard_normal(4) / 10
    exact, _ = brute_force(np.vstack([X, -X]), np.append(c, other))
    folded = price(X, c + other, linear=-other @ X, tol=1e-6, **mode)
    whole = price(np.vstack([X, -X]), np.append(c, other), tol=1e-6, **mode)
    for result in (folded, whole):
        assert exact <= result.bound * TIGHT and result.bound <= exact * (1 + 1e-6) * TIGHT


@modes
@repeated("k, d", [(2, 3), (2, 4), (4, 4), (1, 3)], 2, 3)
def test_roots_restrict_the_search_and_not_the_maximum(k: int, d: int, mode: dict):
    data = parity(d, k=k, marginal="full")
    symmetry = find_symmetry(data.X, data.y)
    assert symmetry is not None and len(symmetry.roots)
    for sign in (1.0, -1.0):
        c = sign * data.y / data.n
        plain = price(data.X, c, tol=1e-6, **mode)
        chamber = price(data.X, c, roots=symmetry.roots, tol=1e-6, **mode)
        check_pricing(plain, data.X, c)
        check_pricing(chamber, data.X, c)
        assert_allclose(chamber.bound, plain.bound, rtol=2e-6)


# ---------------------------------------------------------------------- symmetry


def reflected(X: np.ndarray, root: np.ndarray) -> np.ndarray:
    return X - np.outer(X @ root, root) * (2 / (root @ root))


def positions(X: np.ndarray, image: np.ndarray) -> np.ndarray:
    distance = np.abs(X[:, None] - image[None]).max(axis=2)  # (n, n)
    assert (distance.min(axis=0) < 1e-12).all(), "the image of a point is not a point"
    return distance.argmin(axis=0)


@pytest.mark.parametrize(("k", "d"), [(1, 2), (2, 2), (2, 4), (3, 4), (4, 4), (2, 6), (6, 6)])
def test_reflections_of_the_cube_are_symmetries(k: int, d: int):
    data = parity(d, k=k, marginal="full")
    symmetry = find_symmetry(data.X, data.y)
    assert symmetry is not None
    roots = symmetry.roots.astype(float)
    for root in roots:
        assert_array_equal(data.y[positions(data.X, reflected(data.X, root))], data.y)
        assert root @ symmetry.rho.astype(float) > 0
    # signs of the coordinates without a label (d - k), and permutations of both blocks
    assert len(roots) >= d - k + (k > 1)
    assert len(np.unique(symmetry.orbit)) == 1  # with flips of all labels, every corner is an image of every other


def test_every_direction_has_an_image_in_the_chamber_with_the_same_value():
    data = parity(5, k=2, marginal="full")
    symmetry = find_symmetry(data.X, data.y)
    assert symmetry is not None
    roots = symmetry.roots.astype(float)
    q = symmetry.average(np.random.default_rng(0).random(data.n))
    V = unit(np.random.default_rng(1).standard_normal((50, 5)))
    images = V.copy()
    for _ in range(1000):
        low = images @ roots.T
        worst = low.argmin(axis=1)
        below = low[np.arange(len(V)), worst] < -1e-14
        if not below.any():
            break
        for j in np.flatnonzero(below):
            images[j] = reflected(images[j : j + 1], roots[worst[j]])[0]
    assert (images @ roots.T >= -1e-12).all()
    assert_allclose(dual_values(images, data.X, q * data.y), dual_values(V, data.X, q * data.y), atol=1e-12)


def test_averaging_over_orbits_keeps_the_mass_and_never_raises_the_dual():
    rng = np.random.default_rng(2)
    for labels in (np.repeat([1.0, -1.0], [4, 4]), np.array([1.0, -1, -1, 1, 1, 1, 1, 1]), np.ones(8)):
        X = np.vstack([parity(2, marginal="full").X, 2 * np.eye(2), -2 * np.eye(2)])
        symmetry = find_symmetry(X, labels)
        assert symmetry is not None
        norms = np.linalg.norm(X, axis=1)
        for orbit in np.unique(symmetry.orbit):
            assert np.ptp(norms[symmetry.orbit == orbit]) < 1e-12
        for _ in range(5):
            q = rng.random(8)
            mean = symmetry.average(q)
            assert_allclose(mean.sum(), q.sum(), rtol=1e-14)
            assert_allclose(symmetry.average(mean), mean, rtol=1e-13)
            assert_allclose(np.bincount(symmetry.orbit, mean), np.bincount(symmetry.orbit, q), rtol=1e-13)
            dual = [max(brute_force(X, s * w * labels)[0] for s in (1, -1)) for w in (q, mean)]
            assert dual[1] <= dual[0] * TIGHT


def test_random_data_has_no_symmetry():
    for seed in range(10):
        data = noise(12, 4, seed)
        assert find_symmetry(data.X, data.y) is None


def test_a_symmetry_leaves_a_changed_point_where_it_is():
    data = parity(3, k=2, marginal="full")
    X, y = data.X.copy(), data.y.copy()
    X[0] *= 1 + 1e-15
    y[0] = -y[0]
    for points, labels in ((X, data.y), (data.X, y)):
        symmetry = find_symmetry(points, labels)
        assert symmetry is None or (symmetry.orbit == symmetry.orbit[0]).sum() == 1
        for root in [] if symmetry is None else symmetry.roots.astype(float):
            where = positions(points, reflected(points, root))
            assert where[0] == 0
            assert_array_equal(labels[where], labels)


# ---------------------------------------------------------------------- margin 0


def vanishing(data: Dataset, seed: int) -> bool:
    """Whether some q in the simplex has sum_i q_i y_i relu(v . x_i) = 0 for all v: tested at many random v."""
    V = np.random.default_rng(seed).standard_normal((8 * data.n, data.d))
    Z = data.y[:, None] * features(V, data.X)  # (n, m)
    m = Z.shape[1]
    A = np.vstack([np.hstack([Z.T, -np.ones((m, 1))]), np.hstack([-Z.T, -np.ones((m, 1))])])
    total = np.append(np.ones(data.n), 0.0)[None]
    result = linprog(np.append(np.zeros(data.n), 1.0), A, np.zeros(2 * m), total, [1.0], bounds=(0, None))
    assert result.status == 0
    return result.fun < 1e-9


@pytest.mark.parametrize("d", [1, 2, 3])
def test_margin_zero_is_found_exactly_when_it_is_there(d: int):
    rng = np.random.default_rng(d)
    seen = {True: 0, False: 0}
    for trial in range(80):
        n = int(rng.integers(2, 9))
        X = rng.integers(-2, 3, (n, d)).astype(float)
        X[~X.any(axis=1), 0] = 1.0
        if trial % 2:
            X = np.vstack([X, -X[: n // 2 + 1]])
        data = Dataset(X, rng.choice([-1.0, 1.0], len(X)))
        door = enter(data, ReLU(), 1e-3, None)
        found = twins(door) or not_separable(door)
        truth = vanishing(data, trial)
        seen[truth] += 1
        assert (found is not None) == truth, f"X={X.tolist()}, y={data.y.tolist()}"
        if found is not None:
            q, reason = found
            assert (q >= 0).all() and q.sum() > 0 and reason
            V = directions(X, 500, seed=0)
            assert np.abs(dual_values(V, X, q * data.y)).max() <= 1e-12 * q.sum() * np.abs(X).max()
    assert min(seen.values()) >= 5, seen
