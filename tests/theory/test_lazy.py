"""Theorems about training near the start, against simulations, quadrature and the printed formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from widemargin import Dataset, InputError, flows, margins
from widemargin.theory import THEOREMS, arguments, facts, lazy, lazy_on_runs

GAMMA, DELTA = 0.1, 0.01
RECORDS = ("step", "t_mean", "log_t_mean", "log_risk", "risk", "moved", "sums")


def covered(hits: np.ndarray, promise: float) -> None:
    """The share of hits is at least the promise up to three standard errors of the promised share."""
    error = math.sqrt(promise * (1 - promise) / len(hits))
    assert hits.mean() >= promise - 3 * error, f"{hits.mean():.4f} of {len(hits)}, promised {promise:.4f}"


def separable(n: int = 12, d: int = 4, seed: int = 0) -> Dataset:
    """Points of the unit ball with a linear margin of 0.3 along the first coordinate."""
    rng = np.random.default_rng(seed)
    y = np.where(np.arange(n) % 2, 1.0, -1.0)
    X = rng.standard_normal((n, d))
    X[:, 0] = 0
    X *= 0.6 / np.linalg.norm(X, axis=1, keepdims=True)
    X[:, 0] = y * rng.uniform(0.3, 0.6, n)
    return Dataset(X, y, f"separable(seed={seed})")


# ---------------------------------------------------------------- margins of transports


@pytest.mark.parametrize("d", [1, 2, 5, 40])
def test_truncated_means_against_samples(d: int):
    rng = np.random.default_rng(d)
    N = 400_000
    a, first, rest = (
        rng.standard_normal(N),
        rng.standard_normal(N) / math.sqrt(d),
        rng.chisquare(d - 1, N) / d if d > 1 else 0,
    )
    inside = a**2 + first**2 + rest <= 4
    for value, sample in ((lazy.truncated_mean(d), np.abs(first)), (lazy.truncated_outer_mean(d), np.abs(a))):
        sample = sample * inside
        assert abs(sample.mean() - value) <= 4 * sample.std() / math.sqrt(N)


@pytest.mark.parametrize("d", [1, 3, 10, 300, 10_000])
def test_linear_margins_give_the_others(d: int):
    for of, constant in (("global", 1 / 2), ("inner", 1 / 32), ("outer", 1 / (16 * math.sqrt(d)))):
        found = lazy.margins_of_linear_data(0.4, d, of)
        assert_allclose(found.value, 0.4 * constant)
        assert found.value <= found.numbers["exact"]


def test_transports_of_linear_data_by_sampling():
    data = separable()
    u, d = np.eye(4)[0], 4
    rng = np.random.default_rng(1)
    a, V = rng.standard_normal(200_000), rng.standard_normal((200_000, d)) / math.sqrt(d)
    on = a**2 + (V**2).sum(1) <= 4
    H = data.X @ V.T  # (n, N)
    outer = data.y[:, None] * H.clip(0) * (np.sign(V @ u) * on)
    inner = data.y[:, None] * (H > 0) * (data.X @ u)[:, None] * (np.abs(a) * on)
    own = data.y * data.X[:, 0]  # the margin of each point
    for terms, mean in ((outer, lazy.truncated_mean(d)), (inner, lazy.truncated_outer_mean(d))):
        error = 4.5 * terms.std(axis=1) / math.sqrt(terms.shape[1])
        assert (np.abs(terms.mean(axis=1) - own / 2 * mean) <= error).all()
    certificate = margins.linear(data)
    for one in THEOREMS["LR-10"].apply(facts(data)):
        assert one.applies and one.value <= one.numbers["exact"] * (1 + 1e-12)
    found = THEOREMS["LR-10"].apply(facts(data))[0]
    assert_allclose(found.value, certificate.lower / 2)
    assert margins.f1(data).upper >= found.value


def test_positive_transport_by_sampling():
    d, gamma = 3, None
    beta, alpha = np.eye(3)[:2], np.array([0.4, 0.6])
    rng = np.random.default_rng(2)
    X = np.abs(rng.standard_normal((6, d)))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    gamma = float(((X @ beta.T).clip(0) @ alpha).min())
    a, V = rng.standard_normal(200_000), rng.standard_normal((200_000, d)) / math.sqrt(d)
    theta = margins.positive_transport(alpha, beta)(np.column_stack([a, V]))[:, 0] * (a**2 + (V**2).sum(1) <= 4)
    assert theta.max() <= 1 and theta.min() >= 0
    terms = (X @ V.T).clip(0) * theta
    found = lazy.ntk_from_positive_network(gamma, d, positive_weights=True, one_label=True, unit_points=True)
    error = 4 * terms.std(axis=1).max() / math.sqrt(terms.shape[1])
    assert found.applies and found.value == gamma / (8 * math.sqrt(d))
    assert found.value <= found.numbers["exact"] <= terms.mean(axis=1).min() + error
    one = Dataset(X, np.ones(6), "positive")
    assert THEOREMS["LR-20"].apply(facts(one)).applies is True
    assert THEOREMS["LR-20"].apply(facts(separable())) is None
    assert lazy.ntk_from_positive_network(gamma, d, one_label=False).applies is False


# ---------------------------------------------------------------- the start


@pytest.mark.parametrize(("m", "d", "delta"), [(5, 3, 0.2), (50, 2, 0.1), (300, 10, 0.05)])
def test_bounds_at_the_start_hold_as_often_as_promised(m: int, d: int, delta: float):
    n, trials = 8, 1500
    rng = np.random.default_rng(m)
    X = rng.standard_normal((n, d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    found = lazy.start_bounds(m, d, n, delta, radius=1.0, start=True)
    assert found.applies and found.probability == pytest.approx(1 - 4 * delta)
    a = rng.standard_normal((trials, m)) / math.sqrt(m)
    outputs, inner = np.empty(trials), np.empty(trials)
    for k in range(trials):
        V = rng.standard_normal((m, d)) / math.sqrt(d)
        outputs[k], inner[k] = np.abs((X @ V.T).clip(0) @ a[k]).max(), np.linalg.norm(V)
    covered(outputs <= found.value, found.probability)
    covered(np.linalg.norm(a, axis=1) <= found.numbers["outer"], 1 - delta)
    covered(inner <= found.numbers["inner"], 1 - delta)
    # It is loose, but not a bound that any number would satisfy.
    assert (outputs <= found.value / 100).mean() < found.probability
    assert lazy.start_bounds(m, d, n, delta, radius=1.5).applies is False


def test_the_comparator_is_aligned_as_often_as_promised():
    """The outer transport sgn(u.v) on linear data: its margin is known exactly, and the left side is computed."""
    data, d, m, delta, trials = separable(n=6), 4, 3000, 0.1, 60
    gamma = float((data.y * data.X[:, 0]).min()) / 2 * lazy.truncated_mean(d)
    rng = np.random.default_rng(3)
    R, r = 2.0, 1.5
    bound = lazy.comparator_alignment(gamma, m, 6, delta, R, r, radius=1.0, start=True)
    assert bound.applies and bound.numbers["outer"] > bound.value
    hits, start, sharp = [], [], []
    for _ in range(trials):
        a, V = rng.standard_normal(m) / math.sqrt(m), rng.standard_normal((m, d)) / math.sqrt(d)
        on = m * a**2 + (V**2).sum(1) <= 4
        theta = np.sign(V[:, 0]) * on / math.sqrt(m), np.zeros((m, d))
        da, dV = rng.standard_normal(m), rng.standard_normal((m, d))
        scale = R / math.hypot(np.linalg.norm(da), np.linalg.norm(dV))
        W = a + scale * da, V + scale * dV
        left = lazy.alignment((a, V), W, theta, data.X, data.y, r).min()
        hits.append(left >= bound.value)
        sharp.append(left >= bound.numbers["outer"])
        start.append(lazy.alignment((a, V), (a, V), theta, data.X, data.y, 1.0, 0.0).min() >= bound.numbers["at_start"])
    for seen in (hits, start, sharp):
        covered(np.array(seen), 1 - 7 * delta)


def test_alignment_is_the_derivative_along_the_comparator():
    rng = np.random.default_rng(4)
    data = separable()
    (a0, V0), (a, V), (ta, tV) = ((rng.standard_normal(7), rng.standard_normal((7, 4))) for _ in range(3))

    def p(a: np.ndarray, V: np.ndarray) -> np.ndarray:
        return data.y * ((data.X @ V.T).clip(0) @ a)

    found = lazy.alignment((a0, V0), (a, V), (ta, tV), data.X, data.y, 0.7, 0.3)
    da, dV = 0.7 * ta + 0.3 * a0, 0.7 * tV + 0.3 * V0
    h = 1e-6
    slope = (p(a + h * da, V + h * dV) - p(a - h * da, V - h * dV)) / (2 * h)
    assert_allclose(found, slope - 0.3 * p(a, V), rtol=1e-6, atol=1e-7)


def test_both_forms_of_the_comparator_bound():
    m, n, R, r = 10**6, 20, 10.0, 1.25
    L, root = math.log(n / DELTA), 1000.0
    derived = lazy.comparator_alignment(GAMMA, m, n, DELTA, R, r)
    printed = lazy.comparator_alignment(GAMMA, m, n, DELTA, R, r, convention="printed")
    lead = GAMMA * r * root
    assert_allclose(derived.value, lead - r * (math.sqrt(32 * L) + 4 * R + 4) - (4 * L + 4 * R + R**2))
    assert_allclose(
        printed.value, lead - r * (math.sqrt(32 * L) + 8 * R + 4) - (4 * L + 2 * R + 2 * R * root + 4 * root)
    )
    big = lazy.comparator_alignment(GAMMA, 10**8, n, DELTA, R, R / 8)
    assert_allclose(big.numbers["simple"], GAMMA * R / 8 * 1e4 / 2 - 160 * (R / 8) ** 2)
    assert big.numbers["simple"] <= big.value
    assert lazy.comparator_alignment(GAMMA, m, n, DELTA, R, r, part="total").applies is False
    assert printed.convention == "printed" and derived.convention == "derived"


# ---------------------------------------------------------------- SGD


def test_the_martingale_bound_holds_as_often_as_promised():
    """Adaptive probabilities: the conditional mean depends on what was seen before."""
    rng = np.random.default_rng(5)
    trials, t, delta = 4000, 200, 0.1
    level, seen, expected = np.full(trials, 0.3), np.zeros(trials), np.zeros(trials)
    for _ in range(t):
        hit = rng.random(trials) < level
        size = rng.uniform(0, 1, trials)
        expected += level / 2
        seen += hit * size
        level = np.clip(level * np.where(hit, 0.7, 1.02), 1e-3, 0.9)
    for convention in arguments.CONVENTIONS:
        bound = [lazy.freedman_transfer(float(s), delta, convention=convention).value for s in seen]
        covered(expected <= np.array(bound), 1 - delta)
    found, printed = (lazy.freedman_transfer(3.0, delta, convention=one) for one in arguments.CONVENTIONS)
    assert_allclose(printed.value, 12 + 4 * math.log(1 / delta))
    assert_allclose(found.value * (3 - math.e), 3 + math.log(1 / delta))
    assert found.value < printed.value
    error = lazy.freedman_transfer(3.0, delta, 500)
    assert error.quantity == "test error of iterates" and error.value == pytest.approx(2 * found.value / 500)
    assert (
        lazy.freedman_transfer(3.0, delta, 10).vacuous
        and lazy.freedman_transfer(3.0, delta, fresh=False).applies is False
    )


def test_the_theorem_of_sgd():
    t = 10**6
    found = lazy.sgd_test_error(GAMMA, t, DELTA)
    assert_allclose(found.value, 8 * math.log(1 / DELTA) / t + 2560 / (t * GAMMA**2))
    assert_allclose(found.numbers["width"], max((64 * math.log(t / DELTA) / GAMMA) ** 2, (640 / GAMMA) ** 2))
    assert found.probability == pytest.approx(1 - 8 * DELTA)
    printed = lazy.sgd_test_error(GAMMA, t, DELTA, convention="printed")
    assert printed.probability == pytest.approx(1 - 7 * DELTA)
    assert_allclose(printed.numbers["width"], (64 * math.log(t / DELTA) / GAMMA) ** 2)
    edge = (640 / GAMMA) ** 2
    assert_allclose(lazy.sgd_test_error(GAMMA, 100, DELTA).numbers["width"], edge)  # ln(t/delta) < 10
    assert lazy.sgd_test_error(GAMMA, t, DELTA, m=edge * 1.0001).numbers["step_sizes"] is not None
    assert lazy.sgd_test_error(GAMMA, t, DELTA, m=edge * 0.9999).numbers["step_sizes"] is None
    low, high = lazy.sgd_test_error(GAMMA, t, DELTA, m=4 * edge).numbers["step_sizes"]
    assert_allclose([low, high], [GAMMA / (10 * 2 * 640 / GAMMA), GAMMA**2 / 6400])
    keys = {"m": 4 * edge, "radius": 1.0, "loss": "logistic", "start": True}
    good = lazy.sgd_test_error(GAMMA, t, DELTA, eta=1.2 * low, **keys)
    assert good.applies is None and not any(one.holds is False for one in good.assumptions)
    assert_allclose(good.numbers["movement"], 80 * 1.2 * low * math.sqrt(4 * edge) / GAMMA)
    for wrong in (
        {"eta": 2 * high},
        {"loss": "exp"},
        {"radius": 2.0},
        {"m": 100.0},
        {"part": "inner"},
        {"fresh": False},
    ):
        assert lazy.sgd_test_error(GAMMA, t, DELTA, **(keys | wrong)).applies is False
    steps = lazy.steps_for_sgd(0.05, GAMMA, DELTA)
    assert_allclose(lazy.sgd_test_error(GAMMA, steps, DELTA).value, 0.05)


# ---------------------------------------------------------------- gradient flow


def test_loss_and_derivative():
    for z in np.linspace(-5, 40, 400):
        slope, loss = 1 / (1 + math.exp(z)), math.log1p(math.exp(-z))
        found = lazy.loss_from_derivative(slope)
        assert_allclose(found.numbers["exact"], loss, rtol=1e-9, atol=1e-15)
        assert found.applies is (slope <= 1 / 8)
        if found.applies:
            assert loss <= 8 / 7 * slope <= found.value == 2 * slope
    assert lazy.loss_from_derivative(0.1, "exp").numbers["exact"] == 0.1
    assert math.log1p(math.exp(2.0)) > 2 / (1 + math.exp(-2.0))  # the condition is needed


def test_constants_of_gradient_flow():
    n, m, L = 30, 10**8, math.log(30 / DELTA)
    moved = lazy.margin_after_moving(GAMMA, n, DELTA, m=m)
    assert moved.numbers["radius"] == pytest.approx(GAMMA * 1e4 / 32)
    assert moved.value == GAMMA**2 / 4096 and moved.numbers["rebalanced"] == GAMMA / 4096
    width = moved.numbers["width"]
    # E-LR-9: the derived width is where the comparator still gives half, the printed one is not.
    for convention, enough in (("derived", True), ("printed", False)):
        width = lazy.margin_after_moving(GAMMA, n, DELTA, convention=convention).numbers["width"]
        R = GAMMA * math.sqrt(width) / 32
        bound = lazy.comparator_alignment(GAMMA, math.ceil(width), n, DELTA, R, 1.0, 0.0).value
        assert (bound >= GAMMA * math.sqrt(width) / 2 * (1 - 1e-6)) is enough
    assert_allclose(width, 256 * L / GAMMA**2)
    flow = lazy.margin_of_flow(GAMMA, n, DELTA)
    assert_allclose(flow.numbers["width"], (640 * L / GAMMA) ** 2)
    assert flow.probability == pytest.approx(1 - 15 * DELTA) and flow.value == moved.value
    expected = math.log(n) ** 3 / (n * (GAMMA / 4096) ** 2) + math.log(1 / DELTA) / n
    assert_allclose(flow.numbers["test_error_at_radius_up_to_a_constant"], expected)
    assert_allclose(
        lazy.margin_of_flow(GAMMA, n, DELTA, constant=0.5).numbers["test_error_up_to_a_constant"],
        0.5 * (math.log(n) ** 3 / (n * (GAMMA**2 / 4096) ** 2) + math.log(1 / DELTA) / n),
    )
    risk = lazy.training_risk_of_flow(GAMMA, 100.0, n, DELTA, m=m)
    assert risk.value == 1 / 500 and risk.numbers["movement"] == pytest.approx(GAMMA * 1e4 / 80)
    assert_allclose(risk.numbers["width"], (640 * math.log(100 / DELTA) / GAMMA) ** 2)
    assert lazy.training_risk_of_flow(GAMMA, 10.0, n, DELTA).applies is False  # t < n
    assert lazy.training_risk_of_flow(GAMMA, 10.0, n, DELTA, convention="printed").applies is None
    assert lazy.margin_of_flow(GAMMA, n, DELTA, m=100.0).applies is False
    assert lazy.margin_after_moving(GAMMA, n, DELTA, m=m, moved=1.0).applies is False
    # Lemma 2.4 at the width of Theorem 2.2, after Lemma 2.3 at time n.
    assert lazy.margin_after_moving(GAMMA, n, DELTA).numbers["width"] <= flow.numbers["width"]


def test_rebalancing_keeps_the_function():
    rng = np.random.default_rng(6)
    a, V, X = rng.standard_normal(9), rng.standard_normal((9, 3)) * 5, rng.standard_normal((11, 3))

    def outputs(a: np.ndarray, V: np.ndarray) -> np.ndarray:
        return (X @ V.T).clip(0) @ a

    def size(a: np.ndarray, V: np.ndarray) -> float:
        return float((a**2).sum() + (V**2).sum())

    for g in (None, 0.1, 3.0):
        assert_allclose(outputs(*lazy.rebalance(a, V, g)), outputs(a, V), rtol=1e-12)
    best = size(*lazy.rebalance(a, V))
    assert_allclose(best, 2 * np.linalg.norm(a) * np.linalg.norm(V), rtol=1e-12)
    assert all(best <= size(*lazy.rebalance(a, V, g)) * (1 + 1e-12) for g in np.geomspace(1e-3, 10, 50))
    assert_allclose(size(*lazy.rebalance(a, V, 4.0)), (a**2).sum() / 4 + 4 * (V**2).sum())
    with pytest.raises(InputError, match="g must be"):
        lazy.rebalance(a, V, -1.0)


def test_training_risk_and_movement_along_a_flow():
    """Easy data, a width far below the theorem's: its conclusions hold all the same, `applies` says no."""
    x = np.array([[1.0, 0.0], [0.8, 0.6]])
    data = Dataset(x, [1.0, 1.0], "easy")
    net = flows.TwoLayer(2, 4000)
    run = flows.train(data, net, flows.GradientFlow(), stop=flows.Stop(time=2.0, clock="mean"), record=RECORDS)
    known = facts(data, run)
    gamma = lazy_on_runs.outer_margin(known)
    assert gamma is not None
    found = THEOREMS["LR-16"].apply(known)
    assert found.applies is False and run["risk"][-1, 0] <= found.value
    assert np.hypot(run["moved_a"], run["moved_V"])[-1, 0] <= found.numbers["movement"] * 10
    for id in ("LR-15", "LR-17"):
        assert THEOREMS[id].apply(known).applies is False
    assert THEOREMS["LR-21"].apply(known).applies is True
    assert known.normalized("M2") >= float(THEOREMS["LR-17"].apply(known).value)


# ---------------------------------------------------------------- on data and runs


def test_on_data_alone():
    far = Dataset(5 * separable().X, separable().y, "far")
    known = facts(far)
    gamma = lazy_on_runs.outer_margin(known.unit)
    assert gamma is not None and gamma >= margins.linear(known.unit.data).lower / 2 * lazy.truncated_mean(4) * (
        1 - 1e-9
    )
    found = THEOREMS["LR-12"].apply(known)
    assert found.quantity == "samples"
    assert_allclose(found.value, lazy.steps_for_sgd(lazy_on_runs.TARGET, gamma, known.delta))
    assert_allclose(lazy.sgd_test_error(gamma, found.value, known.delta).value, lazy_on_runs.TARGET)
    assert "sampled" in found.assumptions[0].detail  # better than what the linear margin proves
    assert found.applies is None and found.numbers["width"] >= (640 / gamma) ** 2
    for id in ("LR-15", "LR-16", "LR-17"):
        one = THEOREMS[id].apply(known)
        assert one.applies is None and one.numbers["width"] > 1e5 and not one.vacuous
    assert THEOREMS["LR-14"].apply(known) is None and THEOREMS["LR-21"].apply(known) is None


def test_on_a_run_of_sgd():
    data = separable(n=200, seed=3)
    keys = {"net": flows.TwoLayer(4, 30), "stop": 200, "record": RECORDS}
    once = facts(data, flows.train(data, rule=flows.SGD(lr=0.3, order="stream"), **keys))
    found = THEOREMS["LR-14"].apply(once)
    total = once.last("slopes")
    assert_allclose(found.value, 2 / (3 - math.e) * (total + math.log(20)) / 200)
    assert found.applies is None and found.quantity == "test error of iterates" and not found.vacuous
    again = facts(data, flows.train(data, rule=flows.SGD(lr=0.3), **keys))
    assert THEOREMS["LR-14"].apply(again).applies is False  # drawn with replacement: not fresh
    theorem = THEOREMS["LR-12"].apply(once)
    assert theorem.applies is False and theorem.vacuous  # 30 units, 200 steps
    law = once.net.draw(np.random.default_rng(0))
    assert law["V"].shape == (30, 4)


def test_the_promise_of_freedman_against_the_true_error():
    """Fresh examples of a known law: the mean test error over the iterates is below the bound."""
    train, test = separable(n=150, seed=8), separable(n=4000, seed=9)
    run = flows.train(
        train,
        flows.TwoLayer(4, 50),
        flows.SGD(lr=0.3, order="stream"),
        stop=150,
        record=flows.Record((*RECORDS, "test_error"), times=list(range(151)), test=test),
        trials=5,
    )
    for trial in range(5):
        bound = THEOREMS["LR-14"].apply(facts(train, run, trial=trial))
        assert run["test_error"][:-1, trial].mean() <= bound.value


def test_bad_input():
    with pytest.raises(InputError, match="gamma"):
        lazy.sgd_test_error(0.0, 10, 0.1)
    with pytest.raises(InputError, match="delta"):
        lazy.margin_of_flow(0.1, 10, 1.5)
    with pytest.raises(InputError, match="part"):
        lazy.margin_of_flow(0.1, 10, 0.1, part="middle")
    with pytest.raises(InputError, match="r_theta"):
        lazy.comparator_alignment(0.1, 10, 10, 0.1, 1.0, -1.0)
    with pytest.raises(InputError, match="sum"):
        lazy.freedman_transfer(-1.0, 0.1)
