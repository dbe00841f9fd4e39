"""LR's inequalities along runs: they hold where their hypotheses do, and a run that is not what it says is found out."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from along_runs import at, bare, check_proved, results, spoil
from numpy.testing import assert_allclose

from checks import OBSERVE, grouped
from widemargin import Dataset, flows
from widemargin.data import neural_collapse, parity
from widemargin.theory import CHECKS, Inequality, Track, check, check_homogeneous, check_potentials, follow
from widemargin.theory import check_lazy as lazy

PARITY = parity(d=3, n=8, seed=0)
CONES = neural_collapse(d=2, r=3, n=9, gamma_nc=0.8, eps=0.3, seed=0)
ONE = Dataset(np.array([[0.8, 0.6]]), np.array([1.0]), "one point")
RELU, SCALAR = flows.TwoLayer(3, 60), flows.Scalar(3, 40)
IDS = [
    "LR-7",
    "LR-13",
    "LR-14",
    "LR-16",
    "LR-17",
    "LR-22",
    "LR-23",
    "LR-24",
    "LR-25",
    "LR-26",
    "LR-28",
    "LR-29",
    "LR-30",
]


pytestmark = pytest.mark.usefixtures("one_thread")


def trained(data: Dataset, net: flows.Net, rule: flows.Rule, **keys: object) -> Track:
    return follow(flows.train(data, net, rule, **grouped(observe=OBSERVE, **keys)), data, net)


@pytest.fixture(scope="module")
def tracks() -> dict[str, Track]:
    flow = flows.GradientFlow(rtol=1e-5)
    plane = flows.TwoLayer(2, 60)
    return {
        "sgd": trained(PARITY, RELU, flows.SGD(lr=0.02), steps=150, times=list(range(151)), trials=2),
        "sgd, now and then": trained(PARITY, RELU, flows.SGD(lr=0.002), steps=400, points=25),
        "descent": trained(PARITY, RELU, flows.GD(lr=0.05), steps=400, points=40),
        "flow": trained(PARITY, RELU, flow, loss="exp", steps=120, times=list(range(0, 121, 2))),
        "cones, flow": trained(CONES, plane, flow, loss="exp", steps=120, times=list(range(0, 121, 2))),
        "cones, descent": trained(CONES, plane, flows.GD(lr=0.05), steps=600, points=40),
        "scalar flow": trained(PARITY, SCALAR, flow, loss="exp", steps=150, times=list(range(0, 151, 3))),
        "scalar descent": trained(PARITY, SCALAR, flows.GD(lr=0.05), steps=400, points=40),
        "one point": trained(ONE, plane, flow, steps=60, times=list(range(61)), trials=4),
    }


def named(track: Track, id: str, words: str) -> Inequality:
    (one,) = [one for one in results(track, id) if words in one.statement]
    return one


def test_all_are_registered():
    assert set(IDS) <= set(CHECKS)


@pytest.mark.parametrize("id", IDS)
def test_they_hold_on_every_run(tracks, id):
    check_proved(tracks, id)


# the run, what is changed in it, and words of the statement that must fail
SABOTAGE = [
    ("LR-7", "flow", {"W_a": at(20, lambda a: 1.1 * a)}, "stays"),
    ("LR-7", "flow", {"margin": at(20, lambda margin: margin + 0.1)}, "recorded"),
    ("LR-13", "sgd", {"slopes": at(-60, lambda total: 100 * total)}, "B.3"),
    ("LR-13", "sgd", {"W_V": at(3, lambda V: 0 * V)}, "B.2"),
    ("LR-13", "sgd", {"W_V": at(3, lambda V: 10 * V)}, "10 m"),
    ("LR-13", "sgd", {"W_a": at(50, lambda a: a + 1e-3)}, "one example"),
    ("LR-13", "sgd", {"W_a": at(50, lambda a: 0.5 * a)}, "Wbar"),
    ("LR-14", "sgd", {"slopes": at(slice(None), lambda total: 0 * total)}, "E|l'"),
    ("LR-16", "descent", {"moved_a": at(10, lambda x: 0 * x), "moved_V": at(10, lambda x: 0 * x)}, "int mean |l'|"),
    ("LR-16", "flow", {"t_cb": at(-1, lambda s: 100 * s)}, "2 int risk"),
    ("LR-17", "flow", {"psi": at(5, lambda psi: psi - 3)}, "psi(W_t) - psi(W_0)"),
    ("LR-17", "flow", {"W_V": at(5, lambda V: 1e-3 * V), "W_a": at(5, lambda a: 1e-3 * a)}, "|grad psi|"),
    ("LR-17", "one point", {"psi": at(-1, lambda psi: psi - 20)}, "4096"),
    ("LR-22", "descent", {"W_V": at(5, lambda V: 0 * V)}, "r_theta = 1"),
    ("LR-22", "sgd", {"W_V": at(5, lambda V: -9 * V)}, "constants of its own, r_theta = R/8"),
    ("LR-23", "cones, flow", {"log_norm": at(-1, lambda norm: norm - 0.1)}, "grows"),
    ("LR-24", "scalar flow", {"psi": at(10, lambda psi: psi - 3)}, "<= psi"),
    ("LR-25", "flow", {"margin": at(slice(10, None), lambda margin: margin - 30)}, "(ln |w_t|"),
    ("LR-25", "scalar flow", {"log_norm": at(-1, lambda norm: norm - 3)}, "Phi <="),
    ("LR-26", "descent", {"log_risk": at(-1, lambda risk: risk + 1)}, "ln 2G"),
    ("LR-28", "cones, flow", {"W_V": at(-1, lambda V: -V)}, "never falls"),
    ("LR-28", "cones, descent", {"t_cb": at(-1, lambda s: 100 * s)}, "int Q gamma"),
    ("LR-29", "scalar flow", {"W_a": at(20, lambda a: 1.1 * a)}, "a_j^2 = b_j^2"),
    ("LR-29", "scalar flow", {"W_a": at(20, lambda a: -a)}, "signs"),
    ("LR-29", "scalar descent", {"t_cb": at(-1, lambda s: 10 * s)}, "Phi_t - Phi_0"),
    ("LR-29", "scalar flow", {"margin": at(-1, lambda margin: 3 * margin)}, "gamma / 2"),
    ("LR-30", "descent", {"W_a": at(20, lambda a: 1.2 * a)}, "changes by"),
]


@pytest.mark.parametrize(
    "id, name, changes, words", SABOTAGE, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_wrong_run_is_found_out(tracks, id, name, changes, words):
    before = [one for one in results(tracks[name], id) if words in one.statement]
    assert before and all(one.checked > 0 and one.holds for one in before), [str(one) for one in before]
    broken = [one for one in results(spoil(tracks[name], **changes), id) if words in one.statement]
    assert any(one.holds is False for one in broken), [str(one) for one in broken]


# ---------------------------------------------------------------- what the checks are made of


def test_transport_of_the_outer_weights(tracks):
    """|thetabar_j| <= 1/sqrt(m), its margin from the definition, and near the best there is: a dual bound."""
    track = tracks["sgd"]
    view = lazy._lazy(track)
    assert view is not None and view.theta is not None
    for b in range(2):
        Z = PARITY.y[:, None] * np.maximum(PARITY.X @ track.start["V"][b].numpy().T, 0)
        assert np.abs(view.theta[b]).max() <= 1 / math.sqrt(60) + 1e-15
        assert np.linalg.norm(view.theta[b]) <= 1 + 1e-12
        assert_allclose(view.pull[b], (Z @ view.theta[b]).min(), rtol=1e-12)
        # max_theta min_i <= min_q sum_j |(q'Z)_j| / sqrt(m), attained: gradient descent on q comes near it
        q = np.full(8, 1 / 8)
        best = math.inf
        for k in range(6000):
            value = np.abs(q @ Z).sum() / math.sqrt(60)
            best = min(best, value)
            q = q * np.exp(-0.5 / math.sqrt(k + 1) * (Z @ np.sign(q @ Z)) / math.sqrt(60))
            q /= q.sum()
        assert view.pull[b] <= best + 1e-12
        assert view.pull[b] >= best - 5e-3


def test_half_the_pull_near_the_start_is_sharp_enough(tracks):
    """<thetabar, dp_i(W)> >= gamma sqrt m - |W - W_0| max |x| at random W, which all the bounds of the ball come from."""
    track = tracks["descent"]
    view = lazy._lazy(track)
    assert view is not None
    rng = np.random.default_rng(0)
    for size in (0.01, 0.3, 3.0):
        step = rng.standard_normal((1, 60, 3))
        step *= size / np.linalg.norm(step)
        W = dict(track.start) | {"V": track.start["V"] + torch.as_tensor(step)}
        assert view.toward(W).min() >= view.pull[0] - size * view.width[0] - 1e-12


def test_regret_needs_the_right_comparator(tracks):
    """LR-16's regret is an identity up to convexity: with the loss of the linearised margins replaced by 0 it fails."""
    one = named(tracks["flow"], "LR-16", "2 int risk")
    gained = one.right - one.left
    assert (gained[1:] > 0).all()
    moved = np.sqrt(tracks["flow"].run["moved_a"] ** 2 + tracks["flow"].run["moved_V"] ** 2)
    assert_allclose(one.left, moved**2 + 2 * tracks["flow"].run["t_cb"], rtol=1e-12)


def test_default_records_suffice_for_slopes_and_movement(tracks):
    for name, id, words in (("sgd", "LR-13", "B.3"), ("cones, flow", "LR-23", "grows"), ("one point", "LR-17", "4096")):
        track = bare(tracks[name])
        one = named(track, id, words)
        assert one.holds and one.checked > 10
        for other in IDS:
            assert all(found.holds is not False for found in results(track, other))


@pytest.mark.parametrize("rule", [flows.GD(lr=0.05), flows.GradientFlow(), flows.SGD(lr=0.02), flows.SignDescent()])
def test_a_run_with_one_record_is_checked(rule):
    """As one that was stopped at once."""
    run = flows.train(PARITY, flows.TwoLayer(3, 6), rule, stop=5, record=["default", "weights"])
    first = replace(run, t=run.t[:1], records={name: values[:1] for name, values in run.records.items()})
    checks = check(first, PARITY)
    assert {one.id for one in checks} >= {"UH-6", "LR-7"} and not any(one.violated for one in checks)


def test_cones_of_collapsed_data():
    """The directions of the simplex are found up to the noise, their angles are honest, and parity has no such cones."""
    cones = check_potentials._cones(CONES.X, CONES.y)
    assert cones is not None and len(cones.beta) == 3
    from widemargin.data.synthetic import simplex_directions

    cosines = cones.beta @ simplex_directions(3, 2).T
    assert (cosines.max(1) > 0.98).all()
    rng = np.random.default_rng(0)
    for beta, sign, phi in zip(cones.beta, cones.signs, cones.phi):
        across = np.array([-beta[1], beta[0]])
        for angle in rng.uniform(-phi, phi, 200):
            v = math.cos(angle) * beta + math.sin(angle) * across
            own = (CONES.X @ beta > 0) & (CONES.y == sign)
            assert (CONES.X[~own] @ v <= 1e-12).all()
            assert (CONES.X[own] @ v >= cones.gamma - 1e-12).all()
    assert check_potentials._cones(PARITY.X, PARITY.y) is None


def test_the_threshold_of_the_paper_lets_caught_neurons_go():
    """E-LR-14: eps = 0.1, beta = e_1, v = (0.9, 0.436) is caught at 1 - eps, but active on (-0.1, 0.995) of another cone."""
    X = np.array([[1.0, 0.0], [-0.1, math.sqrt(0.99)]])
    y = np.array([1.0, -1.0])
    v = np.array([0.9, math.sqrt(1 - 0.81)])
    assert v[0] >= 1 - 0.1 and X[1] @ v > 0.3 and X[1, 0] <= -0.1
    found = check_potentials._fit_cones(X, y, X, y)
    assert found is not None
    assert math.cos(found.phi[0]) > 0.994  # the corrected threshold, 1 - eps^2 / 2 to first order
    assert_allclose(math.sin(found.phi[0]), 0.1, rtol=1e-6)


def test_potential_against_the_observer_of_flows(tracks):
    """Phi of LR-29 is `flows.growth` of the same weights."""
    track = tracks["scalar flow"]
    phi, _, _ = check_homogeneous._potential(track)
    from widemargin.theory import check_mirror

    alpha = check_mirror._mirror(track).comparator
    observed = flows.growth(alpha)
    W = track.W[7]
    view = flows.View(track.problem, W, flows.GD().init(track.problem, W), W)
    assert_allclose(observed(view), phi[7], rtol=1e-12)


def test_descent_owes_its_balance_to_its_steps(tracks):
    """LR-7: a_j^2 - |v_j|^2 does change along descent, by the second order of its steps and no more."""
    one = named(tracks["descent"], "LR-7", "stays")
    assert one.holds and (one.slack[5:] < 0).all()
    assert (one.allowance[5:, 0] < 50 * one.left[5:, 0]).all()


def test_distance_after_the_radius_is_marked_as_printed(tracks):
    (one,) = [one for one in results(tracks["one point"], "LR-17") if one.id == "LR-17 printed"]
    assert one.note == "printed form, not proved" and one.checked > 0
