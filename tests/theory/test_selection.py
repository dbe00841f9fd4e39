"""Theorems about the global margin, against cap probabilities, simulated coverings and small flows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from widemargin import Dataset, InputError, data, flows, margins
from widemargin.theory import THEOREMS, Huge, facts, selection
from widemargin.theory.comparators import best_p_bar
from widemargin.theory.guarantee import log_of

RECORDS = ("step", "t_mean", "t_cb", "log_risk", "margins", "log_norm")
XOR = Dataset(np.array([[1, 1], [-1, -1], [1, -1], [-1, 1]]) / math.sqrt(2), [1, 1, -1, -1], "xor")


def sphere(count: int, d: int, seed: int) -> np.ndarray:
    V = np.random.default_rng(seed).standard_normal((count, d))
    return V / np.linalg.norm(V, axis=1, keepdims=True)


@pytest.mark.parametrize("d", [1, 2, 3, 6])
def test_caps_by_sampling_and_the_lower_bound_of_the_lemma(d: int):
    V = sphere(200_000, d, d)
    for eps in (0.2, 0.7, 1.2, 1.8):
        exact = selection.cap_probability(eps, d)
        share = float((np.linalg.norm(V - np.eye(d)[0], axis=1) <= eps).mean())
        assert abs(share - exact) <= 4 * math.sqrt(max(exact * (1 - exact), 1e-6) / len(V))
        assert exact >= (eps / 2) ** (d - 1) / 2
    assert selection.cap_probability(2.0, d) == 1


def test_caps_never_fall_below_the_lemma():
    for d in (1, 2, 3, 10, 50, 300):
        for eps in np.linspace(0.01, 2, 60):
            assert selection.cap_probability(float(eps), d) >= (eps / 2) ** (d - 1) / 2 * (1 - 1e-12)


@pytest.mark.parametrize(("eps", "d", "r", "delta"), [(0.5, 2, 3, 0.3), (0.8, 3, 4, 0.2)])
def test_that_many_directions_cover(eps: float, d: int, r: int, delta: float):
    targets, trials = sphere(r, d, 100), 400
    found = selection.covering_width(eps, d, r, delta)
    assert found.numbers["width_exact"] <= found.numbers["width_proof"] <= found.value
    for width in (found.numbers["width_exact"], found.value):
        m = math.ceil(width)
        hits = [(np.linalg.norm(sphere(m, d, k)[:, None] - targets, axis=2).min(0) <= eps).all() for k in range(trials)]
        error = 3 * math.sqrt(delta * (1 - delta) / trials)
        assert np.mean(hits) >= 1 - delta - error
    few = [(np.linalg.norm(sphere(2, d, k)[:, None] - targets, axis=2).min(0) <= eps).all() for k in range(trials)]
    assert np.mean(few) < 1 - delta


def test_widths_are_formulas_and_never_overflow():
    found = selection.covering_width(0.1, 4, 7, 0.05)
    assert_allclose(found.value, 2 * 20**4 * math.log(140))
    assert_allclose(found.numbers["width_proof"], 2 * 20**3 * math.log(140))
    assert_allclose(
        selection.covering_width(0.1, 4, 7, 0.05, share=0.5).numbers["width_proof"], 4 * 20**3 * math.log(140)
    )
    logs = [log_of(selection.covering_width(0.1, d, 7, 0.05).value) for d in (2, 50, 784, 100_000)]
    assert np.all(np.diff(logs) > 0) and np.isfinite(logs).all()
    assert isinstance(selection.covering_width(0.1, 784, 7, 0.05).value, Huge)
    assert selection.covering_width(3.0, 4, 7, 0.05).applies is False
    assert selection.covering_width(0.1, 4, 7, 0.05, m=10).applies is False


# ---------------------------------------------------------------- potentials


def test_a_potential_that_grows_means_a_margin():
    """Scalar network, exponential loss: Phi grows at least at half the margin of its comparator, and the margin ends above."""
    net = flows.Scalar(2, 40)
    start = net.init(1, 0)
    signed = np.sign(start["b"][0])[:, None] * start["V"][0]
    Z = XOR.y[:, None] * np.sign(start["a"][0]) * (XOR.X @ signed.T).clip(0)
    alpha = best_p_bar(Z)
    assert 0 < alpha.margin <= margins.frozen(XOR, signed).upper * (1 + 1e-9)
    run = flows.train(
        XOR,
        net,
        flows.GradientFlow(),
        loss="exp",
        stop=flows.Stop(time=25.0, clock="cb"),
        record={**dict.fromkeys(RECORDS), "phi": flows.growth(alpha.p)},
    )
    clock, phi = run["t_cb"][:, 0], run["phi"][:, 0]
    keep = np.append(True, np.diff(clock) > 1e-3)
    clock, phi = clock[keep], phi[keep]
    rate = selection.potential_rate(clock, phi)
    assert rate.min() >= alpha.margin / 2 * (1 - 1e-3)
    assert (phi <= run["log_norm"][keep, 0] / 2 + 1e-9).all()
    found = selection.margin_from_potential(alpha.margin / 2, below=True, loss="exp", degree=2)
    assert found.applies is None and found.value == alpha.margin / 2
    assert run["margin_M4"][-1, 0] >= found.value * 0.98
    assert selection.margin_from_potential(0.1, loss="logistic").applies is False
    with pytest.raises(InputError, match="increasing"):
        selection.potential_rate([1.0, 1.0], [0.0, 1.0])


# ---------------------------------------------------------------- neural collapse


def test_what_collapse_is_measured():
    made = data.neural_collapse(d=3, r=4, n=40, gamma_nc=0.8, eps=0.1, seed=1)
    beta = data.synthetic.simplex_directions(4, 3)
    signs = np.array([1, -1, 1, -1])
    at = selection.collapse_of(made.X, made.y, beta, signs)
    assert at.covered and at.gamma >= 0.8 - 1e-12 and at.polar >= 0.1 - 1e-12
    assert at.across <= 0.8 * math.sqrt(0.05) + 1e-12
    inner = made.X @ beta.T
    assert_allclose(at.gamma, min(inner[i, i % 4] for i in range(40)))
    assert not selection.collapse_of(made.X, -made.y, beta, signs).covered


def test_constants_of_the_theorem_of_collapse():
    keys = {"polar": 0.3, "across": 0.04, "covered": True, "loss": "exp", "radius": 1.0, "start": True}
    found = selection.collapse_margin(0.8, 0.1, 3, 2, 30, 0.05, m=1e9, **keys)
    assert_allclose(found.value, 0.7 / 6)
    assert_allclose(found.numbers["width"], 4 * 20 * math.log(60))
    assert found.applies is None
    printed = selection.collapse_margin(0.8, 0.1, 3, 2, 30, 0.05, convention="printed", **keys)
    assert_allclose(printed.value, 0.7 / 24)
    assert_allclose(printed.numbers["width"], 2 * 20**2 * math.log(60))
    assert printed.probability == pytest.approx(0.85)
    # The corrected condition is narrower: gamma eps / 2 = 0.04 against gamma sqrt(eps / 2) = 0.18.
    wide = keys | {"across": 0.05}
    assert selection.collapse_margin(0.8, 0.1, 3, 2, 30, 0.05, **wide).applies is False
    assert selection.collapse_margin(0.8, 0.1, 3, 2, 30, 0.05, convention="printed", **wide).applies is None
    for wrong in ({"polar": 0.05}, {"loss": "logistic"}, {"radius": 1.2}, {"covered": False}, {"m": 10.0}):
        assert selection.collapse_margin(0.8, 0.1, 3, 2, 30, 0.05, **(keys | wrong)).applies is False
    assert selection.collapse_margin(0.8, 0.9, 3, 2, 30, 0.05, **keys).applies is False


def test_collapse_on_a_flow():
    """The regular simplex itself: the theorem's margin is below what gradient flow has."""
    beta = data.synthetic.simplex_directions(3, 2)
    made = Dataset(beta, [1, -1, 1], "simplex")
    net = flows.TwoLayer(2, 200)
    run = flows.train(
        made, net, flows.GradientFlow(), loss="exp", stop=flows.Stop(time=30.0, clock="cb"), record=RECORDS
    )
    known = facts(made, run)
    found = THEOREMS["LR-28"].apply(known)
    assert found is not None and not any(one.holds is False for one in found.assumptions)
    assert 0 < found.value <= known.normalized("M2")
    assert THEOREMS["LR-28"].apply(facts(XOR)) is None  # other axes at right angles are not polar
    assert THEOREMS["LR-28"].apply(facts(data.parity(d=4, k=2, n=16))) is None


# ---------------------------------------------------------------- scalar networks


def test_constants_of_the_theorem_of_scalar_networks():
    found = selection.scalar_margin(0.25, 4, 3, 50, 0.05, m=1e12, loss="exp", radius=1.0, start=True)
    assert found.value == 0.0625 and found.unit == "M4" and found.applies is None
    assert_allclose(found.numbers["width"], 4 * 16**2 * math.log(80))
    printed = selection.scalar_margin(0.25, 4, 3, 50, 0.05, convention="printed")
    assert_allclose(printed.numbers["width"], 2 * 16**3 * math.log(80))
    assert printed.value == 0.0625 and printed.probability == pytest.approx(0.85)
    assert_allclose(
        found.numbers["test_error_up_to_a_constant"], math.log(50) ** 3 / (50 * 0.0625**2) + math.log(20) / 50
    )
    for wrong in ({"loss": "logistic"}, {"m": 5.0}, {"radius": 3.0}, {"start": False}):
        assert selection.scalar_margin(0.25, 4, 3, 50, 0.05, **wrong).applies is False


def test_scalar_networks_on_a_flow():
    found = THEOREMS["LR-29"].apply(facts(XOR))
    m = math.ceil(float(found.numbers["width"]))
    run = flows.train(
        XOR,
        flows.Scalar(2, m),
        flows.GradientFlow(),
        loss="exp",
        stop=flows.Stop(time=25.0, clock="cb"),
        record=RECORDS,
    )
    known = facts(XOR, run)
    now = THEOREMS["LR-29"].apply(known)
    assert now.applies is None and not any(one.holds is False for one in now.assumptions)
    assert known.normalized("M4") >= now.value
    assert known.normalized("M4") <= known.margin("f1").upper / 2 * (1 + 1e-9)
    logistic = flows.train(XOR, flows.Scalar(2, 10), flows.GD(lr=0.1), stop=50, record=RECORDS)
    assert THEOREMS["LR-29"].apply(facts(XOR, logistic)).applies is False
    cover = THEOREMS["LR-31"].apply(facts(XOR))
    assert cover.quantity == "width" and cover.value > 0


def test_bad_input():
    with pytest.raises(InputError, match="eps"):
        selection.covering_width(-0.1, 3, 2, 0.1)
    with pytest.raises(InputError, match="convention"):
        selection.scalar_margin(0.1, 2, 2, 5, 0.1, convention="read")
    with pytest.raises(InputError, match="rate"):
        selection.margin_from_potential(-1.0)
