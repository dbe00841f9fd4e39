"""Every way to a bound, against each other and against a complete list; frames; empty leaves."""

from __future__ import annotations

import math
import time
from fractions import Fraction

import numpy as np
import pytest
import torch

from checks import repeated
from widemargin import pricing
from widemargin.pricing import Stage, cones, outlook, plan, price, signs, writing
from widemargin.pricing.enumeration import enumerate3
from widemargin.pricing.points import Points, exact_span, integer_frame, rank_modulo, reduce_rank
from widemargin.verify.exact import integers
from widemargin.verify.reading import Problem, Refused
from widemargin.verify.tree import relu_tree


def points_of(X: np.ndarray, shift: int = 0) -> Points:
    return Points(X, None, shift, torch.device("cpu"), reduce_rank(X)[1])


def lifted(seed: int, n: int, scales: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray, float]:
    """Points of rank 3 in four columns, the last the sum of two others, so that no list is made; and the true maximum."""
    rng = np.random.default_rng(seed)
    X, c = rng.integers(-40, 41, (n, 3)) * np.array(scales), rng.standard_normal(n)
    X4 = np.hstack([X, X[:, :1] + X[:, 1:2]])
    _, basis = reduce_rank(X4)
    value, _, _ = enumerate3(X4 @ basis, c)
    return X4, c, value


@pytest.mark.parametrize("seed,scales", [(0, (1.0, 1.0, 1.0)), (1, (1.0, 0.125, 8.0)), (2, (0.0625, 1.0, 1.0))])
def test_all_ways_agree_with_the_complete_list(seed: int, scales: tuple[float, ...], monkeypatch):
    X, c, true = lifted(seed, 24, scales)
    points = points_of(X)
    assert points.r == 3 and points.frame is not None
    for way in ("cones", "linear", "quadratic"):
        monkeypatch.setattr("widemargin.pricing.plan", lambda *rest, way=way: [Stage(way, 60.0)])
        found = price(points, c, known=0.999 * true, tol=1e-2, seconds=60.0)
        assert true * (1 - 1e-9) <= found.bound <= true * 1.011, way
        assert found.value <= true * (1 + 1e-9)


def test_a_bound_after_no_time_is_a_bound():
    X, c, true = lifted(3, 30, (1.0, 1.0, 1.0))
    assert price(points_of(X), c, known=0.0, tol=1e-3, seconds=0.0).bound >= true * (1 - 1e-9)
    assert price(points_of(X), c, known=0.0, tol=1e-3, seconds=1.0, root=True).bound >= true * (1 - 1e-9)


def test_small_problems_look_at_all_signs_and_few_dimensions_at_cones():
    rng = np.random.default_rng(0)
    few, many = points_of(rng.standard_normal((20, 4))), points_of(rng.standard_normal((200, 4)))
    assert plan(few, np.resize([1.0, -1.0], 20), 10.0, False, False)[0].way == "linear"
    assert plan(many, np.resize([1.0, -1.0], 200), 10.0, False, False)[0].way == "cones"
    high = points_of(rng.standard_normal((200, 40)))
    assert {stage.way for stage in plan(high, np.resize([1.0, -1.0], 200), 10.0, False, False)} == {
        "quadratic",
        "linear",
    }


def test_a_frame_spans_the_points_exactly_and_makes_them_round():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((50, 3)) * [1.0, 100.0, 0.01]
    frame = integer_frame(X, np.eye(3))
    assert frame is not None
    Y = X @ frame.T.astype(float)
    assert np.linalg.cond(Y) < 3
    # one-hot columns and a bias: dependent, and exactly so
    H = np.hstack([np.eye(3)[rng.integers(3, size=30)], rng.integers(-3, 4, (30, 1)), np.ones((30, 1))])
    _, basis = reduce_rank(H)
    frame = integer_frame(H, basis)
    assert basis.shape[1] == 4 and frame is not None and frame.shape == (4, 5)
    whole = np.vstack([frame.astype(float), H])
    assert np.linalg.matrix_rank(whole) == 4
    assert exact_span(rng.standard_normal((5, 3)), 2) is None  # of rank three


def test_cones_are_cut_on_their_edges_and_stay_within_24_bits():
    rng = np.random.default_rng(2)
    X, c = rng.standard_normal((30, 4)), rng.standard_normal(30)
    tree = cones.Cones(torch.as_tensor(X), torch.as_tensor(c), torch.eye(4, dtype=torch.float64))
    L = torch.diag_embed(torch.tensor([[1.0, -1.0, 1.0, 1.0]], dtype=torch.float64))
    for _ in range(200):
        edge = tree.bound(L)[3]
        i, j = int(edge) // 4, int(edge) % 4
        middle = cones.cut(L, edge)
        plane = torch.stack([L[0, i], L[0, j], middle[0]])
        assert i < j and torch.linalg.matrix_rank(plane) == 2
        weights = torch.linalg.lstsq(torch.stack([L[0, i], L[0, j]]).T, middle.T).solution
        assert (weights > 0).all()
        if float(middle.abs().max()) > cones.LARGEST_INTEGER:
            break
        L = L.clone()
        L[0, i if rng.random() < 0.5 else j] = middle[0]
    out = tree.run(0.0, 1e-12, deadline=time.monotonic() + 20, batch=64, max_nodes=3000)
    assert math.isfinite(out.bound)


@pytest.fixture(scope="module")
def thin() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    X = rng.standard_normal((26, 4)) * [0.05, 1.0, 0.05, 60.0]
    return X, rng.standard_normal(26)


def test_signs_that_no_direction_has_are_found_and_written(thin, monkeypatch):
    """Thin data: most sign patterns are empty. The tree without that rule needs far more nodes, and the bounds agree."""
    points, c = thin
    X, ct = torch.as_tensor(points), torch.as_tensor(c)
    monkeypatch.setattr(signs, "NEWTON_NODES", 0)
    tree = signs.Tree(X, ct)
    found = tree.run(0.0, 1e-3, deadline=math.inf, batch=256, quadratic=False)
    assert found.log is not None and sum(map(len, found.log.empty)) > 10
    side, bound = writing.write(found.log, points, c, np.zeros(4), np.zeros((0, 4), dtype=int), 1.0)
    assert found.value <= bound <= found.bound * (1 + 1e-6)
    assert any(isinstance(leaf, dict) and "empty" in leaf for leaf in side["leaves"])
    monkeypatch.setattr(signs.Tree, "empty", lambda self, sign, last: torch.zeros(len(sign), dtype=torch.bool))
    without = signs.Tree(X, ct).run(0.0, 1e-3, deadline=math.inf, batch=256, quadratic=False)
    assert without.bound == pytest.approx(found.bound, rel=2e-3)
    assert found.nodes < 0.8 * without.nodes


def test_points_that_are_flat_but_for_rounding_have_no_empty_leaves(thin, monkeypatch):
    """A column that is a rounded sum of others: no sum of points vanishes exactly, so a tree must not count on one."""
    monkeypatch.setattr(signs, "NEWTON_NODES", 0)
    points, c = thin
    for extra, flat in ((points[:, :1] + 0.3 * points[:, 1:2], False), (2 * points[:, 1:2], True)):
        X0 = np.hstack([points, extra])
        _, basis = reduce_rank(X0)
        where = Points(X0, None, 0, torch.device("cpu"), basis)
        assert where.r == 4 and where.flat == flat
        priced = price(where, c, known=0.0, tol=1e-3, seconds=60.0, hard=True)
        side, bound = writing.write(priced.log, X0, c, np.zeros(5), np.zeros((0, 5), dtype=int), 1.0)
        assert priced.value <= bound <= priced.bound * (1 + 1e-6)
        assert any(isinstance(leaf, dict) and "empty" in leaf for leaf in side["leaves"]) == flat


def test_relations_that_are_too_long_for_a_certificate_are_not_written(monkeypatch):
    """Entries from 1e-140 to 60: the minors of the points have up to 1770 bits, and no number in a file more than 1100."""
    monkeypatch.setattr(signs, "NEWTON_NODES", 0)
    rng = np.random.default_rng(732001)
    X, c = rng.standard_normal((26, 4)) * [0.05, 1.0, 0.05, 60.0], rng.standard_normal(26)
    X[np.arange(26), rng.integers(0, 4, 26)] = 10.0 ** -rng.integers(80, 140, 26)
    tree = signs.Tree(torch.as_tensor(X), torch.as_tensor(c))
    found = tree.run(0.0, 1e-3, deadline=math.inf, batch=64, quadratic=False)
    whole, k = integers(X)
    weights, kc = integers(c)

    def written() -> tuple[list[int], str]:
        side, bound = writing.write(found.log, X, c, np.zeros(4), np.zeros((0, 4), dtype=int), 1.0)
        empty = [leaf["empty"] for leaf in side["leaves"] if isinstance(leaf, dict)]
        problem = Problem(whole, k, [1] * len(X), 1)
        try:
            relu_tree(problem, weights.tolist(), 1 << kc, Fraction(bound) * 2, side, "tree")
        except Refused as fail:
            return [b.bit_length() for leaf in empty for _, b in leaf], fail.item
        return [b.bit_length() for leaf in empty for _, b in leaf], ""

    assert max(written()[0], default=0) <= 1100 and written()[1] == ""
    monkeypatch.setattr(writing, "LONGEST", math.inf)
    assert max(written()[0]) > 1100 and "not an integer in the allowed range" in written()[1]


@pytest.mark.parametrize("seed", range(5))
def test_the_rank_modulo_a_prime_is_the_rank(seed: int):
    rng = np.random.default_rng(seed)
    r, D = int(rng.integers(1, 5)), int(rng.integers(5, 9))
    whole = rng.integers(-9, 10, (20, r)) @ rng.integers(-9, 10, (r, D)) * 2.0 ** rng.integers(-40, 40, D)
    assert rank_modulo(whole) == np.linalg.matrix_rank(whole / np.abs(whole).max(0).clip(1e-300)) <= r
    assert rank_modulo(np.vstack([whole, np.zeros(D)])) == rank_modulo(whole)
    rounded = rng.standard_normal((20, r)) @ rng.standard_normal((r, D))
    assert rank_modulo(rounded) == D > np.linalg.matrix_rank(rounded)


def test_the_way_that_will_end_lower_goes_on():
    """Open parts that fall as t^(-1/3) from far above, and hardly from near above."""
    cone, sign = [(0.4, 9.0), (3.2, 5.0)], [(0.3, 3.2), (1.2, 3.1)]
    assert outlook(cone, 1.0, 25.6) == pytest.approx(3.0)  # 8 and 4 open at 0.4 and 3.2: 2 at 25.6
    assert outlook(sign, 1.0, 1e3) > outlook(cone, 1.0, 1e3)
    assert outlook(sign, 1.0, 2.0) < outlook(cone, 1.0, 2.0)
    assert outlook(sign[:1], 1.0, 1e3) == pytest.approx(3.2)  # one turn tells nothing of the next
    assert outlook([(1.0, 2.0), (4.0, 2.0)], 1.0, 1e3) == 2.0  # and no progress ends where it is


def test_an_empty_leaf_must_add_up_to_zero():
    """Points x, z and -(x + z) / 2, all of positive weight: only all three active, or all three inactive, is empty."""
    X = np.array([[1.0, 2.0, 0.0, 4.0], [0.0, -1.0, 3.0, 0.5], [-0.5, -0.5, -1.5, -2.25], [0.0, 0.0, 0.0, 0.0]])
    grid, k = integers(X)
    problem = Problem(grid, k, [1, 1, 1, 1], 1)
    active, loose = {"empty": [[0, 1], [1, 1], [2, 2]]}, [0, 0, 0]

    def check(first: object, last: object, bound: float = 2.0) -> str:
        """The tree of all signs of the three points, active first; seven leaves of eight loose."""
        tree = [0, 1, 2, -1, -1, 2, -1, -1, 1, 2, -1, -1, 2, -1, -1]
        side = {"shift": 0, "points": [0, 1, 2], "tree": tree, "leaves": [first, *[loose] * 6, last]}
        try:
            relu_tree(problem, [1, 1, 1, 0], 3, Fraction(bound), side, "side")
        except Refused as refused:
            return str(refused)
        return ""

    # all active: sum x_i / 3 would be the gradient, and its length bounds that leaf as well
    assert check(active, loose) == "" and check(loose, loose) == "" and check(active, active) == ""
    # where the others are within 2.4 and this one is not, it is the relation that closes it
    for relation, why in (
        ([[0, 1], [1, 1], [2, 1]], "add up"),
        ([[0, 1], [1, 1]], "add up"),
        ([[0, 2], [1, 2], [2, 4]], ""),
        ([], "add up"),
        ([[0, 0], [1, 1], [2, 2]], "range"),
        ([[0, -1], [1, -1], [2, -2]], "range"),
        ([[3, 1]], "range"),
        ([[0, 1], [1, 1], [2]], "entries"),
        ("x", "list"),
        ([[0, 1 << 2000], [1, 1 << 2000], [2, 1 << 2001]], "range"),
    ):
        said = check({"empty": relation}, loose)
        assert (said == "") == (why == "") and why in said, (relation, said)


def test_an_empty_leaf_may_only_use_signs_that_are_fixed():
    X = np.array([[1.0, 2.0], [-1.0, -2.0], [1.0, 1.0]])
    grid, k = integers(X)
    problem = Problem(grid, k, [1, 1, 1], 1)
    side = {"shift": 0, "points": [0, 1, 2], "tree": [0, -1, -1], "leaves": [{"empty": [[0, 1], [1, 1]]}, [0, 0, 0]]}
    with pytest.raises(Refused, match="not fixed"):
        relu_tree(problem, [1, 1, 1], 3, Fraction(5), side, "side")
    wrong = {**side, "tree": [0, 1, -1, -1, -1], "leaves": [[0, 0, 0], {"empty": [[0, 1], [1, 1]]}, [0, 0, 0]]}
    with pytest.raises(Refused, match="add up"):  # 0 active and 1 inactive: that is one side of a line, and not empty
        relu_tree(problem, [1, 1, 1], 3, Fraction(5), wrong, "side")


def noise(n: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)), rng.choice([-1, 1], n) / n


@repeated("seed", [2, 3], 1)
def test_quadratic_bounds_of_large_rank_close_their_trees(seed: int):
    """With softer choices in Frank-Wolfe's steps (0.02 in place of HEAT) seed 3 stays 2 % open whatever the tree."""
    X, c = map(torch.as_tensor, noise(60, 28, seed))
    found = signs.Tree(X, c).run(0.0, 1e-3, deadline=math.inf, batch=256, max_nodes=1500)
    assert found.bound <= found.value * (1 + 1e-3) * (1 + 1e-9)


def test_a_tree_of_linear_bounds_that_will_not_be_done_is_left_early():
    X, c = map(torch.as_tensor, noise(50, 30, 0))
    left = signs.Tree(X, c).run(0.0, 1e-3, deadline=math.inf, batch=256, max_nodes=20_000, quadratic=False)
    assert left.nodes < 5000 and left.bound > 1.5 * left.value
    done = signs.Tree(X[:15], c[:15]).run(0.0, 1e-3, deadline=math.inf, batch=8, max_nodes=20_000, quadratic=False)
    assert done.bound <= done.value * (1 + 1e-3) * (1 + 1e-9)


def test_a_ray_is_not_cut():
    """Of rank 1 there are two cones, without edges: where rounding leaves their bounds above the target they stay as they are."""
    X, c = torch.tensor([[1.0], [-2.0]], dtype=torch.float64), torch.tensor([3.0, -1.0], dtype=torch.float64)
    found = cones.Cones(X, c, torch.eye(1, dtype=torch.float64)).run(0.0, -0.5, deadline=math.inf, batch=64)
    assert (found.value, found.bound, found.nodes) == (3.0, 3.0, 2)


def test_where_linear_bounds_fail_quadratic_ones_have_the_rest_of_the_time(monkeypatch):
    """That linear bounds end below the quadratic root is no reason to leave it at that: disks of rank 15 were 20 % off."""
    monkeypatch.setattr(signs, "LOOK", 10.0)  # so that linear bounds go on to the last node that they may have
    monkeypatch.setattr(pricing, "STRAIGHT_NODES", 10_000)
    rng = np.random.default_rng(2)
    X, c = rng.standard_normal((60, 13)), rng.uniform(0, 1, 60)
    c = rng.choice([-1, 1], 60) * c / c.sum()
    found = price(points_of(X), c, known=0.0, tol=1e-3, seconds=600.0)
    assert found.hard and found.bound <= found.value * (1 + 1e-3) * (1 + 1e-9)


def test_a_tree_over_cones_that_is_too_large_to_check_is_not_kept_and_goes_on(monkeypatch):
    X, c = (torch.as_tensor(array) for array in noise(30, 4, 1))
    frame = torch.eye(4, dtype=X.dtype)
    kept = cones.Cones(X, c, frame).run(0.0, 1e-3, deadline=math.inf, batch=64)
    monkeypatch.setattr(cones, "STORED", kept.nodes // 2)
    lost = cones.Cones(X, c, frame).run(0.0, 1e-3, deadline=math.inf, batch=64)
    assert kept.log is not None and lost.log is None
    assert lost.bound == kept.bound and lost.nodes == kept.nodes


def test_a_tree_over_cones_goes_on_where_it_stopped():
    X, c = (torch.as_tensor(array) for array in noise(30, 4, 1))
    frame = torch.eye(4, dtype=X.dtype)
    whole = cones.Cones(X, c, frame).run(0.0, 1e-3, deadline=math.inf, batch=64)
    tree, nodes = cones.Cones(X, c, frame), 0
    for most in (20, 100, math.inf):
        part = tree.run(0.0, 1e-3, deadline=math.inf, batch=64, max_nodes=most)
        nodes += part.nodes
    assert (part.bound, part.value, nodes) == (whole.bound, whole.value, whole.nodes)
    assert torch.cat(part.log.parent).tolist() == torch.cat(whole.log.parent).tolist()
    assert torch.cat(part.log.edge).tolist() == torch.cat(whole.log.edge).tolist()
