"""CB's checks hold on small runs, and fail on runs whose records were changed."""

import numpy as np
import pytest
import torch
from along_runs import at, bare, check_holds, parts, spoil

from checks import grouped, repeated
from widemargin import flows
from widemargin.theory import check_ascent as checks
from widemargin.theory import check_frozen
from widemargin.theory.inequality import CHECKS
from widemargin.theory.simplex import best_mixture
from widemargin.theory.track import Track, follow
from widemargin.types import Dataset

ALL = ["default", "weights"]


def plane() -> Dataset:
    rng = np.random.default_rng(4)
    X = rng.standard_normal((8, 2))
    X[:, 0] += np.where(X[:, 0] > 0, 0.3, -0.3)
    return Dataset(X / 2, np.sign(X[:, 0]), "plane")


def track_of(data: Dataset, net: flows.Net, rule: flows.Rule, **options: object) -> Track:
    options = {"observe": ALL, "trials": 2, "seed": 1} | options
    return follow(flows.train(data, net, rule, **grouped(**options)), data)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def flow() -> Track:
    net = flows.make_net("relu", 3, 12, law="cb")
    return track_of(plane(), net, flows.GradientFlow(), loss="exp", time=400.0, bias=True, points=40)


@pytest.fixture(scope="module")
def smooth() -> Track:
    net = flows.make_net("srelu", 3, 12)
    return track_of(plane(), net, flows.GradientFlow(), loss="exp", time=200.0, bias=True, points=40)


@pytest.fixture(scope="module")
def ascent() -> Track:
    net = flows.make_net("relu", 3, 12)
    return track_of(plane(), net, flows.SmoothMarginAscent(lr=0.2), loss="exp", steps=150, times=range(151), bias=True)


@pytest.fixture(scope="module")
def logistic() -> Track:
    net = flows.make_net("relu", 3, 12)
    return track_of(plane(), net, flows.GradientFlow(), loss="logistic", time=10.0, clock="cb", bias=True, points=40)


@pytest.fixture(scope="module")
def frozen() -> Track:
    net = flows.make_net("frozen", 3, 12)
    return track_of(plane(), net, flows.NeuronNormAscent(), loss="exp", steps=100, times=range(101), bias=True)


def simple() -> Dataset:
    """Four points whose own coordinates are the features: the best mixture is the uniform one, with margin 5/8."""
    return Dataset(np.full((4, 4), 0.5) + 0.5 * np.eye(4), np.ones(4), "simple")


@pytest.fixture(scope="module")
def long_frozen() -> Track:
    net = flows.make_net("frozen", 4, 4, law="features", r0=3.0)
    return track_of(simple(), net, flows.NeuronNormAscent(), loss="exp", steps=8000, points=40, trials=1)


@pytest.fixture(scope="module")
def output() -> Track:
    return track_of(
        simple(), flows.make_net("output", 4, 30), flows.OutputLayerAscent(), loss="exp", steps=1000, points=40
    )


# ---------------------------------------------------------------- the flow of neurons


@repeated("name", ["flow", "smooth", "ascent", "frozen"], 0, 2)
def test_norms_of_neurons_grow_at_the_rate_of_cb8(name: str, request: pytest.FixtureRequest) -> None:
    track = request.getfixturevalue(name)
    found = check_holds(checks.wfr_rates(track), "CB-8", "CB-8 Euler")
    assert found["CB-8"].checked > 20
    moved = track.net.trained[-1]
    assert parts(checks.wfr_rates(spoil(track, **{f"W_{moved}": at(-5, 1.5)})))["CB-8"].holds is False


def test_rate_of_cb8_is_the_derivative_of_a_tiny_explicit_step(flow: Track) -> None:
    A = checks.Ascent(flow)
    k, h = 20, 1e-7
    W = flow.W[k]
    weights = flows.losses.weights(flow.problem.loss, flow.problem.margins(W), "soft_margin")
    F = flow.problem.pull(W, weights)
    moved = {name: W[name] + h * flow.net.m * F[name] for name in W}
    before = W["a"] ** 2 + (W["V"] ** 2).sum(2)
    after = moved["a"] ** 2 + (moved["V"] ** 2).sum(2)
    np.testing.assert_allclose((after - before) / h, 4 * A.size2[k] * A.J[k], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["flow", "ascent"])
def test_cone_is_invariant(name: str, request: pytest.FixtureRequest) -> None:
    track = request.getfixturevalue(name)
    check_holds(checks.cone(track), "CB-12")
    assert parts(checks.cone(spoil(track, balance=lambda b: b + 0.5 * track.run["norm"] ** 2)))["CB-12"].holds is False


@pytest.mark.parametrize("name", ["flow", "smooth", "ascent"])
def test_smooth_margin_never_falls(name: str, request: pytest.FixtureRequest) -> None:
    track = request.getfixturevalue(name)
    found = check_holds(checks.smooth_margin(track), "CB-25", "CB-25 rate")
    assert found["CB-25"].checked > 6
    assert np.max(np.asarray(found["CB-25"].allowance)) < 0.2 * np.abs(track.run["psi_normalized"]).max() * track.net.m
    assert parts(checks.smooth_margin(spoil(track, psi_normalized=at(-3, 0.3))))["CB-25"].holds is False


def test_smooth_margin_of_default_records(flow: Track) -> None:
    assert list(check_holds(checks.smooth_margin(bare(flow)), "CB-25")) == ["CB-25"]


def test_rate_of_the_smooth_margin_by_finite_differences(flow: Track) -> None:
    """d/dt S_beta(h(nubar)) at beta = |nu| against a tiny explicit step, and the two sides of the check against it."""
    k, h = 30, 1e-7
    W, m = flow.W[k], flow.net.m
    loss = flow.problem.loss
    weights = flows.losses.weights(loss, flow.problem.margins(W), "soft_margin")
    F = flow.problem.pull(W, weights)
    moved = {name: W[name] + h * m * F[name] for name in W}
    beta = flow.net.norm2(W) / m
    values = [
        flows.losses.soft_margin(loss, flow.problem.margins(V) / (flow.net.norm2(V) / m)[:, None], beta)
        for V in (W, moved)
    ]
    A = checks.Ascent(flow)
    share = A.size2[k] / A.size2[k].sum(1, keepdims=True)
    tangent = (A.v[k] ** 2).sum(2) / A.size2[k] - 4 * A.J[k] ** 2
    mean = (share * A.J[k]).sum(1, keepdims=True)
    formula = (share * (tangent + 4 * (A.J[k] - mean) ** 2)).sum(1)
    np.testing.assert_allclose((values[1] - values[0]).numpy() / h, formula, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["flow", "logistic", "ascent", "output"])
def test_smooth_minimum(name: str, request: pytest.FixtureRequest) -> None:
    track = request.getfixturevalue(name)
    check_holds(checks.soft_minimum(track), "CB-26", "CB-26 below", "CB-26 gradient", "CB-26 argmin")
    shifted = parts(checks.soft_minimum(spoil(track, log_risk=lambda r: r - 3.0)))
    assert shifted["CB-26"].holds is False
    assert parts(checks.soft_minimum(spoil(track, log_risk=lambda r: r + 3.0)))["CB-26 below"].holds is False
    assert parts(checks.soft_minimum(spoil(track, q=np.ones_like)))["CB-26 argmin"].holds is False


@pytest.mark.parametrize("name", ["flow", "logistic", "smooth", "frozen"])
def test_certificate_gap_is_not_negative(name: str, request: pytest.FixtureRequest) -> None:
    track = request.getfixturevalue(name)
    found = check_holds(checks.certificate_gap(track), "CB-24", "CB-24 neurons")
    assert min(found["CB-24"].numbers["last_gap"]) >= 0
    assert parts(checks.certificate_gap(spoil(track, dual_estimate=lambda d: -np.abs(d))))["CB-24"].holds is False
    if name == "flow":  # the flow gets better and better
        gap = found["CB-24"].slack
        known = np.isfinite(gap[:, 0])
        assert gap[known][-1, 0] < gap[known][0, 0]


# ---------------------------------------------------------------- frozen features


@pytest.mark.parametrize("shift", [0.5, -3.0])
def test_the_best_mixture_against_all_vertices_of_a_grid(shift: float) -> None:
    """Also where every margin is negative and no weights at all would be better than any of sum 1."""
    Z = np.random.default_rng(0).standard_normal((3, 3)) + shift
    a = best_mixture(Z)
    grid = np.array([(i, j, 200 - i - j) for i in range(201) for j in range(201 - i)]) / 200
    best = (grid @ Z.T).min(1).max()
    assert a.min() >= 0 and a.sum() == pytest.approx(1)
    assert best <= (Z @ a).min() + 1e-9 <= best + 0.05


def test_proposition6(frozen: Track, long_frozen: Track) -> None:
    check_holds(check_frozen.proposition6(frozen), "CB-14")
    found = check_holds(check_frozen.proposition6(long_frozen), "CB-14")["CB-14"]
    assert found.numbers["gamma"] == pytest.approx([0.625])
    assert found.left[-1, 0] > 0.2  # the bound says something
    assert check_frozen.proposition6(spoil(long_frozen, margin_M6=lambda g: g * 0.5)).holds is False


def test_mirror_ascent(frozen: Track) -> None:
    found = check_holds(check_frozen.mirror_ascent(frozen), "CB-15", "CB-15 below", "CB-15 above", "CB-15 step")
    assert found["CB-15"].checked == 200
    assert parts(check_frozen.mirror_ascent(spoil(frozen, W_r=lambda r: r**1.01)))["CB-15"].holds is False
    assert parts(check_frozen.mirror_ascent(spoil(frozen, log_risk=lambda r: r - 3.0)))["CB-15 above"].holds is False
    assert parts(check_frozen.mirror_ascent(spoil(frozen, log_risk=lambda r: r + 3.0)))["CB-15 below"].holds is False
    backwards = spoil(frozen, W_r=lambda r: 1 / r)
    assert parts(check_frozen.mirror_ascent(backwards))["CB-15 step"].holds is False


def test_norm_growth(frozen: Track) -> None:
    found = check_holds(check_frozen.norm_growth(frozen), "CB-16")["CB-16"]
    assert found.numbers["growth"][0] > 0
    assert check_frozen.norm_growth(spoil(frozen, margin_M6=lambda g: g + 0.5)).holds is False


def test_proposition7(output: Track) -> None:
    found = check_holds(check_frozen.proposition7(output), "CB-18", "CB-18 norm")
    gamma = np.array(found["CB-18"].numbers["gamma"])
    assert (found["CB-18"].left[-1] > 0.1 * gamma).any()  # the bound says something
    assert parts(check_frozen.proposition7(spoil(output, margin=lambda p: p * 0.01)))["CB-18"].holds is False
    assert parts(check_frozen.proposition7(spoil(output, norm=lambda s: s * 0.5)))["CB-18 norm"].holds is False
    for b in range(2):  # gamma_2 against projected ascent on the dual simplex
        Z = check_frozen.Features(output).Z[b]
        q = np.full(4, 0.25)
        for k in range(5000):
            vertex = np.argmin(Z @ (Z.T @ q))
            q += 2 / (k + 2) * (np.eye(4)[vertex] - q)
        assert gamma[b] == pytest.approx(np.linalg.norm(Z.T @ q) / np.sqrt(30), rel=3e-3)


def test_step_insensitivity(output: Track) -> None:
    found = check_holds(check_frozen.step_insensitivity(output), "CB-32")["CB-32"]
    other = track_of(
        simple(), flows.make_net("output", 4, 30), flows.SmoothMarginAscent(lr=2.0), loss="exp", steps=2000, points=40
    )
    numbers = parts(check_frozen.step_insensitivity(other))["CB-32"].numbers
    gamma = np.array(found.numbers["gamma"])
    np.testing.assert_allclose(numbers["gamma"], gamma)
    for one in (found.numbers, numbers):
        assert (np.array(one["shortfall_sqrt_t"]) / np.sqrt(2000) < 0.2 * gamma).all()
    assert check_frozen.step_insensitivity(spoil(output, margin=lambda p: p * 0.01)).holds is False


def test_checks_say_nothing_elsewhere() -> None:
    net = flows.make_net("mlp", 3, 6, depth=3)
    track = track_of(plane(), net, flows.GD(lr=0.1), loss="logistic", steps=5, bias=True, trials=1)
    own = [one for one in CHECKS.values() if one.function.__module__ in (checks.__name__, check_frozen.__name__)]
    assert {one.id for one in own} == {
        "CB-8",
        "CB-12",
        "CB-14",
        "CB-15",
        "CB-16",
        "CB-18",
        "CB-24",
        "CB-25",
        "CB-26",
        "CB-32",
    }
    assert all(one.function(track) is None for one in own if one.id != "CB-26")
    squared = track_of(
        plane(), flows.make_net("relu", 3, 6), flows.GD(lr=0.01), loss="squared", steps=5, bias=True, trials=1
    )
    assert all(one.function(squared) is None for one in own)
    assert torch.is_tensor(squared.start["a"])
