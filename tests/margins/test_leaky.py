"""Leaky ReLU: phi(t) = relu(t) - a relu(-t), against closed forms, grids, brute force, and ReLU at slope 0."""

from __future__ import annotations

import itertools
import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from checks import (
    assert_encloses,
    brute_force,
    changed,
    check_certificate,
    circle,
    features,
    lp_margin,
    noise,
    repeated,
)
from widemargin import Certificate, Dataset, InputError, Measure, margins, verify
from widemargin.margins import programs
from widemargin.pricing import Stage, listed, price
from widemargin.pricing.points import Points, reduce_rank
from widemargin.pricing.search import maxima
from widemargin.spaces import LeakyReLU, ReLU
from widemargin.verify import reading, tree

XOR = Dataset([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], [1, 1, -1, -1], "xor")


def leaky(slope: float) -> str:
    return f"leaky:{slope!r}"


# ---------------------------------------------------------------- known values


@repeated("seed", range(4), 0)
def test_slope_zero_is_relu(seed: int):
    for d, bias in ((2, False), (2, True), (4, False)):
        data = noise(12, d, seed)
        relu, none = (margins.f1(data, activation=name, bias=bias) for name in ("relu", leaky(0.0)))
        assert_allclose(none.bounds(), relu.bounds(), rtol=1e-9)
        check_certificate(none, data, tol=1e-3)
        relu, none = (margins.f2(data, activation=name, bias=bias) for name in ("relu", leaky(0.0)))
        assert_allclose(none.bounds(), relu.bounds(), rtol=1e-9)
        assert none.verify(data).ok


@pytest.mark.parametrize("slope", [0.01, 0.3, 0.9])
def test_two_opposite_points(slope: float):
    """phi(t) - phi(-t) = (1 + a) t: with different labels the best network is linear, of margin (1 + a) |x| / 2."""
    x = np.array([3.0, -4.0])
    data = Dataset([x, -x], [1, -1])
    cert = margins.f1(data, activation=leaky(slope), tol=1e-6)
    assert_encloses(cert, (1 + slope) * 5 / 2, slack=1e-9)
    check_certificate(cert, data, tol=1e-6)


@repeated("slope", [0.01, 0.3, 0.9], 0, 2)
def test_even_labels_cost_the_slope_and_odd_ones_gain_it(slope: float):
    """On a set with x and -x alike, phi(t) + phi(-t) = (1 - a) |t| is what ReLU has, times 1 - a, and phi(t) - phi(-t) =
    (1 + a) t: with equal labels the margin is (1 - a) times that of ReLU, with opposite ones (1 + a) / 2 times the linear one.
    """
    assert_encloses(margins.f1(XOR, activation=leaky(slope), tol=1e-6), (1 - slope) / 4, slack=1e-9)
    for d in (3, 4):
        P = np.random.default_rng(d).standard_normal((6, d))
        X = np.vstack([P, -P])
        half = np.sign(P @ np.arange(1, d + 1))
        even, odd = Dataset(X, np.append(half, half)), Dataset(X, np.append(half, -half))
        relu = margins.f1(even, tol=1e-6)
        cert = margins.f1(even, activation=leaky(slope), tol=1e-6)
        assert_allclose(cert.bounds(), (1 - slope) * np.array(relu.bounds()), rtol=2e-6)
        check_certificate(cert, even, tol=1e-6)
        cert, line = margins.f1(odd, activation=leaky(slope), tol=1e-6), margins.linear(odd)
        assert_allclose(cert.bounds(), (1 + slope) / 2 * np.array(line.bounds()), rtol=2e-6)
        check_certificate(cert, odd, tol=1e-6)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("slope", [0.01, 0.4])
def test_a_grid_of_directions_in_the_plane_brackets_the_margin(seed: int, slope: float):
    """A linear program over 1440 directions bounds it from below. From above its dual does, with what is between two
    directions: phi has slopes up to 1, so that sum_i q_i y_i phi(v . x_i) moves by at most sum_i q_i |x_i| times the angle.
    """
    rng = np.random.default_rng(seed)
    X = circle(*rng.uniform(0, 360, 9)) * rng.uniform(0.5, 2, (9, 1))
    data = Dataset(X, np.where(np.arange(9) % 3 == 0, -1.0, 1.0))
    V = circle(*np.arange(0, 360, 0.25))
    low, high, q = lp_margin(data.y[:, None] * features(V, X, slope=slope))
    high += math.radians(0.125) * float(q @ np.linalg.norm(X, axis=1))
    cert = margins.f1(data, activation=leaky(slope), tol=1e-6)
    assert low * (1 - 1e-9) <= cert.upper and cert.lower <= high
    assert cert.lower >= low * (1 - 1e-6) and cert.gap < 1e-6
    check_certificate(cert, data, tol=1e-6)


@pytest.mark.parametrize("d", [2, 4])
def test_the_margin_is_near_that_of_relu(d: int):
    """A leaky neuron is two ReLUs with mass 1 + a together, and relu(t) = (phi(t) + a phi(-t)) / (1 - a^2)."""
    for seed, slope in enumerate((0.05, 0.5)):
        data = noise(10, d, seed)
        relu, cert = (margins.f1(data, activation=name, tol=1e-5) for name in ("relu", leaky(slope)))
        assert (1 - slope) * relu.lower <= cert.upper and cert.lower <= (1 + slope) * relu.upper


def test_scaling_rotation_and_a_repeated_point():
    data = noise(14, 4, 3)
    found = margins.f1(data, activation="leaky:0.2", tol=1e-4)
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((4, 4)))[0]
    for X, y, factor in (
        (1e-3 * data.X, data.y, 1e-3),
        (2.0**40 * data.X, data.y, 2.0**40),
        (data.X @ Q, data.y, 1.0),
        (np.vstack([data.X, data.X[:3]]), np.append(data.y, data.y[:3]), 1.0),
    ):
        other = Dataset(X, y)
        cert = margins.f1(other, activation="leaky:0.2", tol=1e-4)
        assert cert.status == "certified" and cert.verify(other).ok
        assert_allclose(cert.bounds(), factor * np.array(found.bounds()), rtol=2e-4)


@repeated("rank", range(2, 7), 0, 2)
def test_random_sets_close_and_verify(rank: int):
    """Ranks 2 to 6, with a bias and without, two slopes; twenty seeds each were looked at once with the same outcome."""
    for seed in (200, 201):
        data = noise(8 + 2 * rank, rank - seed % 2, seed)
        cert = margins.f1(data, activation=("leaky", "leaky:0.3")[seed % 2], bias=bool(seed % 2), time_limit=None)
        check_certificate(cert, data, tol=1e-3, status="certified")


# ---------------------------------------------------------------- the pieces


@pytest.mark.parametrize("seed", range(3))
def test_every_way_to_price_finds_the_maximum(seed: int, monkeypatch):
    """Against all faces of the arrangement, in four dimensions, with two opposite points."""
    rng = np.random.default_rng(seed)
    X, c, slope = rng.integers(-4, 5, (8, 4)).astype(float), rng.standard_normal(8), 0.3
    X[7] = -X[2]
    true, v = brute_force(X, (1 - slope) * c, slope * c @ X)
    assert_allclose(c @ features(v[None], X, slope=slope)[:, 0], true, rtol=1e-12)
    points = Points(X, None, 0, torch.device("cpu"), reduce_rank(X)[1], slope)
    assert len(points.mirrors) and not listed(points, c)
    for way in ("cones", "linear", "quadratic"):
        monkeypatch.setattr("widemargin.pricing.plan", lambda *rest, way=way: [Stage(way, 60.0)])
        found = price(points, c, known=0.999 * true, tol=1e-2, seconds=60.0)
        assert true * (1 - 1e-9) <= found.bound <= true * 1.011, way
    V = torch.as_tensor(rng.standard_normal((200, 4)))
    for climbers in (0, 40):
        U, value = maxima(points, points.Xt, c, V, 60, climbers)
        assert_allclose(value.numpy(), c @ features(U.numpy(), X, slope=slope), atol=1e-12)
        assert true * (1 - (1e-2 if climbers == 0 else 1e-9)) <= float(value[0]) <= true * (1 + 1e-12)


def test_a_complete_list_in_two_and_three_dimensions():
    rng = np.random.default_rng(5)
    for d in (1, 2, 3):
        X, c, slope = rng.standard_normal((7, d)), rng.standard_normal(7), 0.3
        points = Points(X, None, 0, torch.device("cpu"), np.eye(d), slope)
        found = price(points, c, known=0.0, tol=1e-3, seconds=1.0)
        true, _ = brute_force(X, (1 - slope) * c, slope * c @ X)
        assert_allclose((found.value, found.bound), true, rtol=1e-8)


def test_a_cone_program_knows_the_slope():
    """Its value is the margin of the network that it returns, and one with the right patterns reaches the closed form."""
    slope, V = 0.3, circle(0, 90, 180, 270)
    patterns = V @ XOR.X.T > 0
    found = programs.solve_patterns(XOR.X, XOR.y, patterns, np.array([1.0, -1.0, 1.0, -1.0]), slope=slope)
    values = features(found.W, XOR.X, slope=slope) @ [1.0, -1.0, 1.0, -1.0]
    assert_allclose((XOR.y * values).min(), found.gamma, rtol=1e-7)
    assert_allclose(found.gamma, (1 - slope) / 4, rtol=1e-7)


# ---------------------------------------------------------------- margin 0


@pytest.mark.slow
def test_what_has_margin_zero_is_what_has_it_for_relu():
    """phi(t) = ((1 + a) t + (1 - a) |t|) / 2 has both parts of relu, with other factors: the same sets are contradictory."""
    rng, count = np.random.default_rng(0), 0
    for _ in range(30):
        d = int(rng.integers(1, 4))
        X = rng.integers(-2, 3, (int(rng.integers(2, 7)), d)).astype(float)
        data = Dataset(X, rng.choice([-1.0, 1.0], len(X)))
        relu, cert = margins.f1(data), margins.f1(data, activation="leaky:0.4")
        assert (relu.status == "not-separable") == (cert.status == "not-separable")
        assert (cert.upper == 0) == (cert.status == "not-separable") and cert.verify(data).ok
        count += cert.upper == 0
    assert 5 < count < 25
    ray = Dataset([[1.0, 2.0], [3.0, 6.0]], [1, -1])
    assert margins.f1(ray, activation="leaky").upper == 0
    line = Dataset([[1.0, 2.0], [-3.0, -6.0]], [1, 1])  # x and -b x
    assert margins.f1(line, activation="leaky").lower > 0


# ---------------------------------------------------------------- other kinds


@pytest.mark.parametrize("bias", [False, True])
def test_the_kernel_margin(bias: bool):
    """The kernel from its definition by that of ReLU, given as a matrix, has the same margin; and the function has it."""
    data, a = noise(20, 3, 1), 0.3
    relu = ReLU(bias=bias).kernel(data.X)
    X = ReLU(bias=bias).extend(data.X)
    K = (1 + a * a) * relu - 2 * a * ReLU().kernel(X, -X)
    cert = margins.f2(data, activation="leaky:0.3", bias=bias)
    assert_allclose(cert.bounds(), margins.f2(data, kernel=K).bounds(), rtol=1e-6)
    assert cert.status == "certified" and cert.verify(data).ok and cert.extra["kernel"] == "leaky:0.3"
    assert_allclose((data.y * cert.function(data.X, data)).min(), cert.lower, rtol=1e-9)


def test_the_kernel_margin_is_the_limit_of_random_features():
    data = noise(10, 3, 2)
    exact = margins.f2(data, activation="leaky:0.5").lower
    assert abs(margins.random_features(data, 20_000, activation="leaky:0.5").lower / exact - 1) < 0.1


@pytest.mark.parametrize("bias", [False, True])
def test_fixed_directions(bias: bool):
    data, V = noise(12, 3, 4), np.random.default_rng(1).standard_normal((60, 3 + bias))
    X = ReLU(bias=bias).extend(data.X)
    Z = data.y[:, None] * features(V / np.linalg.norm(V, axis=1, keepdims=True), X, slope=0.3)
    low, high, _ = lp_margin(Z)
    cert = margins.frozen(data, V, activation="leaky:0.3", bias=bias)
    assert_allclose(cert.bounds(), (low, high), rtol=1e-7)
    assert cert.verify(data).ok
    cert = margins.random_features(data, V, activation="leaky:0.3", bias=bias)
    a = np.asarray(cert.extra["a"])
    assert_allclose((Z @ a).min() / (math.sqrt(len(V)) * np.linalg.norm(a)), cert.lower, rtol=1e-7)
    assert cert.verify(data).ok and cert.gap < 1e-5


def test_the_smallest_kernel_norm():
    rng = np.random.default_rng(3)
    data = Dataset(rng.standard_normal((9, 3)), rng.standard_normal(9))
    cert = margins.min_norm_l2(data, activation="leaky:0.30")
    K = LeakyReLU(slope=0.3).kernel(data.X)
    assert_encloses(cert, math.sqrt(data.y @ np.linalg.solve(K, data.y)), slack=1e-9)
    assert cert.verify(data).ok and cert.activation == "leaky:0.3"
    assert_allclose(cert.function(data.X, data), data.y, rtol=1e-8)
    with pytest.raises(InputError, match="'relu' only"):
        margins.min_norm_l1(data, activation="leaky")


def test_estimators():
    from widemargin.margins import MinNormRegressor
    from widemargin.optima import MaxMarginClassifier

    data = noise(12, 3, 6)
    for space in ("f1", "f2"):
        model = MaxMarginClassifier(space, activation="leaky:0.2", bias=True).fit(data.X, data.y)
        assert_allclose((data.y * model.decision_function(data.X)).min(), model.margin_, rtol=1e-9)
        assert model.certificate_.activation == "leaky:0.2" and not model.soft_
    model = MinNormRegressor("f2", activation="leaky:0.2", bias=True).fit(data.X, data.y)
    assert_allclose(model.predict(data.X), data.y, rtol=1e-7)


# ---------------------------------------------------------------- certificates


@pytest.fixture(scope="module")
def made() -> list[tuple[Certificate, Dataset]]:
    """By a complete list, by a tree, of the kernel and of fixed directions."""
    return [
        (margins.f1(noise(10, 2, 1), activation="leaky:0.25", bias=True), noise(10, 2, 1)),
        (margins.f1(noise(14, 4, 1), activation="leaky:0.25", tol=1e-4), noise(14, 4, 1)),
        (margins.f2(noise(10, 2, 1), activation="leaky:0.25", bias=True), noise(10, 2, 1)),
        (margins.frozen(noise(10, 2, 1), 40, activation="leaky:0.25", bias=True), noise(10, 2, 1)),
        (margins.random_features(noise(10, 2, 1), 40, activation="leaky:0.25", bias=True), noise(10, 2, 1)),
    ]


def test_a_certificate_says_its_slope_and_no_other_will_do(made):
    for cert, data in made:
        assert cert.verify(data).ok and "activation leaky:0.25" in str(cert.verify(data))
        for name in ("relu", "srelu", "leaky", "leaky:0.26", "leaky:0.24", "leaky:0.9"):
            extra = dict(cert.extra) | ({"kernel": name} if cert.kind == "f2" else {})
            verdict = verify.check(changed(cert, activation=name, extra=extra), data.X, data.y)
            assert verdict.answer == verify.REFUSED, (cert.kind, name)
        for name in (
            "leaky:",
            "leaky:.25",
            "leaky:0.250",
            "leaky:1.0",
            "leaky:nan",
            "leaky:-0.25",
            "leaky:1e400",
            "leakyx",
            7,
        ):
            verdict = verify.check(changed(cert, activation=name), data.X, data.y)
            assert verdict.failed == "format: unknown activation", name


def test_bounds_that_say_more_are_refused(made):
    for cert, data in made:
        for fields in (
            {"lower": cert.upper * 1.001, "upper": 2 * cert.upper},
            {"upper": cert.lower * 0.999, "lower": 0.0},
        ):
            payload = changed(cert, **fields, status="rounding")
            assert verify.check(payload, data.X, data.y).answer == verify.REFUSED


def test_kinds_and_proofs_without_a_rule_are_refused(made):
    cert, data = made[1]
    pairing = {"type": "pairing", "shift": 10, "lam": 1 << 40, "pairs": []}
    verdict = verify.check(changed(cert, proof=pairing, upper=1e6), data.X, data.y)
    assert verdict.failed == "upper bound: no such proof type for this activation"
    classes = Dataset(data.X, np.arange(data.n) % 3)
    several = margins.multiclass_f1(classes, time_limit=0.2)
    payload = changed(several, activation="leaky")
    assert verify.check(payload, classes.X, classes.y).failed == "format: no rule to check this activation"
    fitted = margins.min_norm_l1(data)
    payload = changed(fitted, activation="leaky")
    assert verify.check(payload, data.X, data.y).failed == "format: no rule to check this activation"


def test_a_tree_names_points_of_the_data_only(made):
    """The checker sees 2 n points, x and -x; those that are not in the data are no part of a proof."""
    cert, data = made[1]
    body = json.loads(json.dumps(cert.payload()))
    side = body["proof"]["sides"][0]
    for change in ({"mirrors": [[0, data.n]]}, {"points": [side["points"][0] + data.n, *side["points"][1:]]}):
        sides = [side | change, body["proof"]["sides"][1]]
        verdict = verify.check(changed(cert, proof=body["proof"] | {"sides": sides}), data.X, data.y)
        assert verdict.answer == verify.REFUSED and next(iter(change)) in str(verdict.failed)


def test_saving_loading_and_conversions(made, tmp_path):
    cert, data = made[0]
    cert.save(tmp_path / "c.json")
    again = Certificate.load(tmp_path / "c.json")
    assert again.payload() == cert.payload() and again.activation == "leaky:0.25"
    assert_allclose((data.y * again.function(data.X)).min(), cert.lower, rtol=1e-9)
    assert_allclose(cert.bounds("M2"), np.array(cert.bounds()) / 2, rtol=1e-15)  # phi has degree 1, as ReLU
    assert cert.primal is not None
    W, a = cert.primal.to_network()
    X = np.hstack([data.X, np.ones((data.n, 1))])
    found = (data.y * (features(W, X, slope=0.25) @ a)).min() / ((W**2).sum() + (a**2).sum())
    assert_allclose(found, cert.lower / 2, rtol=1e-9)


def test_a_measure_and_its_pruning():
    rng = np.random.default_rng(0)
    measure = Measure(rng.standard_normal((30, 3)), rng.standard_normal(30), "leaky:0.250")
    assert measure.activation == "leaky:0.25"
    data = noise(8, 3, 0)
    assert_allclose(measure(data.X), features(measure.theta, data.X, slope=0.25) @ measure.mass, rtol=1e-13)
    pruned = margins.prune(measure, data)
    assert len(pruned.mass) <= 8 and pruned.norm <= measure.norm * (1 + 1e-12)
    assert_allclose(pruned(data.X), measure(data.X), atol=1e-10)


def test_contradictions_of_slopes_are_refused():
    for space, activation in itertools.product((LeakyReLU(slope=0.2), ReLU()), ("leaky", "leaky:0.3")):
        for solve in (margins.f1, margins.f2):
            with pytest.raises(InputError, match="contradicts the space"):
                solve(XOR, space, activation=activation)
    assert margins.f1(XOR, LeakyReLU(slope=0.2), activation="leaky:0.20").activation == "leaky:0.2"


def test_a_quadratic_leaf_sees_the_linear_term_of_points_that_it_does_not_name():
    """max of phi(v_1) - phi(v_2) on the unit sphere of R^4 is sqrt(1 + a^2), at v_2 < 0. A proof may leave out the point of
    negative weight, but not what it adds to the linear term: in the span of the first point alone the maximum would be 1."""
    one = reading.Problem(np.eye(4, dtype=np.int64)[:2], 0, [1, -1], 1, slope=1, bits=1)  # a = 1/2
    problem, c, total = reading.as_relu(one, [1, -1], 1)
    assert (c, total) == ([2, -2, -1, 1], 2)

    def side(size: float) -> dict:
        """Both signs of v_1: the objective is at most g . v, g = (b + a, -a) with b = 1 - a where v_1 >= 0 and else 0."""
        lam = math.ceil(size / 2 * 2**30)
        leaves = [{"a": [0], "b": [b], "lam": lam} for b in (2**29, 0)]
        return {"shift": 30, "points": [0], "tree": [0, -1, -1], "leaves": leaves}

    true = math.sqrt(1.25)
    bound = Fraction(true * (1 + 1e-8))
    assert tree.relu_tree(problem, c, total, bound, side(true), "side") == "2 leaves"
    for size in (1.0, 1.05, 0.999 * true):
        with pytest.raises(reading.Refused, match="its bound is larger than upper"):
            tree.relu_tree(problem, c, total, Fraction(size), side(size), "side")
