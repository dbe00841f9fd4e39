import time
from fractions import Fraction
from operator import mul
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from widemargin import Dataset, InputError, Measure
from widemargin.margins import f1, programs
from widemargin.margins import widths as curves
from widemargin.margins.engine import prune_masses
from widemargin.margins.widths import prune, width_margin_curve

XOR = Dataset([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]], [1.0, 1.0, -1.0, -1.0])


def random_data(n: int, d: int, seed: int) -> Dataset:
    rng = np.random.default_rng(seed)
    return Dataset(rng.standard_normal((n, d)), np.where(np.arange(n) % 2, 1.0, -1.0))


def random_measure(m: int, d: int, seed: int, bias: bool = False, activation: str = "relu") -> Measure:
    rng = np.random.default_rng(seed)
    return Measure(rng.standard_normal((m, d + bias)), rng.standard_normal(m), activation, bias)


@pytest.mark.parametrize("activation", ["relu", "srelu"])
@pytest.mark.parametrize(
    ("n", "d", "m", "bias"), [(5, 3, 40, False), (8, 2, 9, True), (12, 4, 200, True), (6, 6, 3, False)]
)
def test_pruning_keeps_the_values_and_the_norm(n: int, d: int, m: int, bias: bool, activation: str):
    data = random_data(n, d, seed=m)
    measure = random_measure(m, d, seed=n, bias=bias, activation=activation)
    pruned = prune(measure, data)
    assert len(pruned.mass) <= min(n, m)
    assert_allclose(pruned(data.X), measure(data.X), rtol=0, atol=1e-10 * measure.norm)
    assert pruned.norm <= measure.norm * (1 + 1e-12)
    kept = measure.normalized().theta
    assert all((np.abs(kept - theta).max(axis=1) == 0).any() for theta in pruned.theta)  # no new directions


def test_pruning_where_features_are_dependent():
    data = random_data(6, 3, seed=0)
    theta = np.vstack([data.X[:2], data.X[:2] * 2, -data.X[:1]])  # the same neuron twice, and with opposite masses
    measure = Measure(theta, np.array([1.0, 2.0, 3.0, -0.25, 1.0]))
    pruned = prune(measure, data)
    assert len(pruned.mass) == 3
    assert_allclose(pruned(data.X), measure(data.X), atol=1e-12)
    assert_allclose(pruned.norm, measure.norm - 2 * 0.5 * np.linalg.norm(data.X[1]), rtol=1e-12)
    dead = Measure([[-1.0, 0.0, 0.0]], [5.0])  # zero on all points
    assert len(prune(dead, Dataset([[1.0, 0.0, 0.0]], [1.0])).mass) == 0
    assert len(prune(Measure(np.zeros((0, 3)), np.zeros(0)), data).mass) == 0
    with pytest.raises(InputError, match="entries"):
        prune(random_measure(3, 2, seed=0), data)


def test_pruning_that_runs_out_of_time_keeps_the_values_and_the_norm():
    rng = np.random.default_rng(0)
    Z, mass = rng.standard_normal((40, 300)), rng.random(300)
    whole, cut = prune_masses(Z, mass), prune_masses(Z, mass, time.perf_counter() + 0.01)
    late = prune_masses(Z, mass, -np.inf)
    assert (whole > 0).sum() <= 40 <= (cut > 0).sum() <= (late > 0).sum() == 300
    for a in (whole, cut, late):
        assert (a >= 0).all() and a.sum() <= mass.sum() * (1 + 1e-12)
        assert_allclose(Z @ a, Z @ mass, rtol=0, atol=1e-10 * mass.sum())


def test_pruning_an_optimal_network_keeps_its_margin():
    data = random_data(7, 3, seed=1)
    measure = f1(data).primal
    spread = Measure(np.vstack([measure.theta, measure.theta]), np.append(measure.mass, measure.mass) / 2)
    pruned = prune(spread, data)
    assert len(pruned.mass) <= data.n
    assert pruned.margin(data) >= measure.margin(data) * (1 - 1e-10)


def m2_margin(measure: Measure, data: Dataset) -> float:
    """min_i y_i f(x_i) over the squared norm of all parameters of the balanced network."""
    W, a = measure.to_network()
    X = np.hstack([data.X, np.ones((data.n, 1))]) if measure.bias else data.X
    return float((data.y * ((X @ W.T).clip(0) @ a)).min() / ((W**2).sum() + (a**2).sum()))


@pytest.mark.parametrize(("n", "d", "bias", "seed"), [(5, 2, True, 2), (6, 3, False, 3)])
def test_the_curve_grows_and_is_flat_from_n(n: int, d: int, bias: bool, seed: int):
    data = random_data(n, d, seed)
    curve = width_margin_curve(data, [1, 2, 3, n - 1, n, n + 2], bias=bias, seed=1, time_limit=30)
    assert (np.diff(curve.lower) >= 0).all() and (curve.lower <= curve.upper).all()
    assert curve.lower[0] == 0  # one neuron has one sign
    assert curve.saturated <= n and len(set(curve.lower[np.array(curve.widths) >= curve.saturated])) == 1
    certificate = curve.certificate
    assert certificate.status == "certified"
    assert curve.upper == certificate.upper / 2 and curve.lower[-1] >= certificate.lower / 2 * (1 - 1e-9)
    for m, value, network in zip(curve.widths, curve.lower, curve.networks):
        if network is None:
            assert value == 0
            continue
        assert len(network.mass) <= m
        assert_allclose(m2_margin(network, data), value, rtol=1e-9)
    assert "any width" in str(curve)


def test_xor_needs_four_neurons_and_three_with_a_bias():
    """Each point needs an active neuron of its own sign, and none is active at x and -x."""
    curve = width_margin_curve(XOR, [1, 3, 4, 9], time_limit=30)
    assert_allclose(curve.lower, [0, 0, np.sqrt(2) / 8, np.sqrt(2) / 8], rtol=1e-3)
    with_bias = width_margin_curve(XOR, [1, 3], bias=True, time_limit=30)
    assert with_bias.lower[0] == 0 and with_bias.lower[1] > 0.01


@pytest.mark.parametrize("seed", [0, 1])
def test_two_neurons_against_brute_force(seed: int):
    """Two neurons in the plane: all pairs of directions on a grid and all shares of the mass."""
    rng = np.random.default_rng(seed)
    u, v = rng.standard_normal((2, 2))
    X = rng.standard_normal((5, 2))
    f = (X @ u).clip(0) - (X @ v).clip(0)
    while np.abs(f).min() < 0.05 or abs(np.sign(f).sum()) == 5:
        X = rng.standard_normal((5, 2))
        f = (X @ u).clip(0) - (X @ v).clip(0)
    data = Dataset(X, np.sign(f))
    curve = width_margin_curve(data, [2], seed=seed, time_limit=30)
    angle = np.linspace(0, 2 * np.pi, 181)
    H = (np.stack([np.cos(angle), np.sin(angle)], 1) @ X.T).clip(0)  # (181, n)
    best = 0.0
    for share in np.linspace(0.02, 0.98, 49):
        P, N = share * H * data.y, (1 - share) * H * data.y
        best = max(best, float((P[:, None] - N[None]).min(axis=2).max()))
    assert curve.lower[0] >= best / 2 * (1 - 1e-3)
    assert curve.lower[0] <= best / 2 * 1.1 + 0.01


def test_all_labels_equal_need_one_neuron_or_a_few():
    data = Dataset([[1.0, 0.2], [2.0, -0.3], [1.0, 0.0]], [1.0, 1.0, 1.0])
    curve = width_margin_curve(data, [1, 2, 3], time_limit=5)
    assert_allclose(curve.lower, curve.upper, rtol=2e-3)


def test_not_separable_and_bad_input():
    twice = Dataset([[1.0, 0.0], [1.0, 0.0]], [1.0, -1.0])
    curve = width_margin_curve(twice, [3, 1], time_limit=5)
    assert curve.upper == 0 and (curve.lower == 0).all() and curve.networks == (None, None) and curve.widths == (3, 1)
    for widths in ([0], [1.5], [], [True]):
        with pytest.raises(InputError, match="widths"):
            width_margin_curve(XOR, widths)


@pytest.mark.parametrize(("base", "n", "d", "seed"), [(1e8, 8, 4, 6), (1e8, 8, 4, 0), (1e8, 10, 3, 1)])
def test_a_margin_is_reached_in_spite_of_rounding(base: float, n: int, d: int, seed: int):
    """Points far from the origin: the margin as floats have it was larger than that of the network."""
    rng = np.random.default_rng(seed)
    data = Dataset(base + rng.standard_normal((n, d)), np.where(np.arange(n) % 2, 1.0, -1.0))
    curve = width_margin_curve(data, [3, n], time_limit=1.0)
    assert curve.lower[-1] > 0
    for value, network in zip(curve.lower, curve.networks):
        if network is not None:
            theta, mass = ([[Fraction(v) for v in row] for row in a] for a in (network.theta, network.mass[:, None]))
            points = [[Fraction(v) for v in x] for x in data.X]
            f = [sum(a * max(0, sum(map(mul, v, x))) for (a,), v in zip(mass, theta)) for x in points]
            assert float(min(map(mul, map(int, data.y), f))) >= 2 * value * network.norm * (1 - 1e-14)


def test_no_search_is_begun_where_the_time_is_over(monkeypatch):
    """60 widths of 300 points took 6 s where the limit was half a second: a cone program for each, whatever the time."""
    asked = []

    def solve(*args, time_limit, **keys):
        asked.append(time_limit)
        return programs.solve_patterns(*args, time_limit=time_limit, **keys)

    monkeypatch.setattr(curves, "programs", SimpleNamespace(solve_patterns=solve))
    rng = np.random.default_rng(0)
    X = rng.standard_normal((100, 6))
    curve = width_margin_curve(X, np.where(X[:, 0] * X[:, 1] > 0, 1.0, -1.0), range(1, 60), time_limit=1.0)
    assert curve.saturated > 20 and all(limit > -0.05 for limit in asked)


def test_ctrl_c_ends_the_search():
    """It ended the first half of the work, and the second half went on."""
    said = []

    def progress(seconds, lower, upper, message):
        said.append(message)
        if lower > 0:
            raise KeyboardInterrupt

    curve = width_margin_curve(random_data(12, 2, 0), [1, 2, 3, 20], bias=True, time_limit=30, progress=progress)
    assert curve.certificate.status == "interrupted" and not any(message.startswith("width") for message in said)
    assert curve.saturated > 3 and curve.networks[:3] == (None, None, None)
    assert (curve.lower[:3] == 0).all() and 0 < curve.lower[3] <= curve.upper
