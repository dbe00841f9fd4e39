"""Propositions 6 and 7 of CB at every step of actual ascents."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from widemargin import Dataset, InputError, data, flows, margins
from widemargin.theory import THEOREMS, ascent, facts

CHECKED = {"steps": True, "uniform": True, "exponential": True}


def features(seed: int, n: int = 6, m: int = 20) -> np.ndarray:
    """A matrix z with positive l1 margin."""
    Z = np.random.default_rng(seed).standard_normal((n, m))
    Z[:, 0] = np.abs(Z[:, 0]) + 0.1
    return Z / np.abs(Z).max()


@pytest.mark.parametrize("seed", range(3))
def test_proposition_6_and_norm_growth_at_every_step(seed: int):
    Z = features(seed)
    gamma, t = ascent.simplex_margin(Z), 3000
    betas, passed = ascent.replay(Z, t)
    best = np.maximum.accumulate(passed)
    growth = np.cumsum(1 / (betas * np.sqrt(np.arange(1, t + 1))))
    assert best[-1] <= gamma + 1e-9
    tight = -math.inf
    for s in range(1, t + 1, 7):
        found = ascent.frozen_ascent_margin(gamma, 1.0, 6, 20, s, growth[s - 1], **CHECKED)
        sharp = ascent.frozen_ascent_margin(gamma, 1.0, 6, 20, s, growth[s - 1], convention="sharp", **CHECKED)
        assert found.applies and found.value <= best[s - 1] and sharp.value <= best[s - 1]
        assert sharp.value >= found.value
        tight = max(tight, sharp.value)
        if s > 1:
            grown = ascent.norm_growth(passed[: s - 1], 1.0, math.log(betas[0]), update=True)
            assert grown.numbers["log_beta"] <= math.log(betas[s - 1]) + 1e-9
    assert math.log(betas[-1]) > 0.3 * min(1, gamma) * math.sqrt(t) / 2  # the order of Lemma 18
    assert ascent.frozen_ascent_margin(gamma, 1.0, 6, 20, 10, 1.0, steps=False).applies is False
    assert ascent.norm_growth(passed, 1.0, update=False).applies is False


def test_replay_is_the_definition():
    """r <- r + eta m grad F of F = -log mean exp(-(1/m) z . r^2), by finite differences."""
    Z = features(4, 3, 5)
    r = np.ones(5)

    def F(r: np.ndarray) -> float:
        return -math.log(np.exp(-(Z @ r**2) / 5).mean())

    betas, passed = ascent.replay(Z, 4)
    for s in range(4):
        assert_allclose(betas[s], (r**2).sum() / 5, rtol=1e-7)
        assert_allclose(passed[s], (Z @ r**2).min() / (r**2).sum(), rtol=1e-6)
        slope = np.array([(F(r + 1e-6 * e) - F(r - 1e-6 * e)) / 2e-6 for e in np.eye(5)])
        r = r + 5 * slope / (16 * np.abs(Z).max() * math.sqrt(s + 1))


def output_ascent(Z: np.ndarray, t: int) -> tuple[np.ndarray, np.ndarray]:
    """beta(s) and min_i z_i . abar(s) of Proposition 7, straight from its definition."""
    m, size = Z.shape[1], np.abs(Z).max()
    r, beta, betas, passed = np.zeros(m), 1.0, [], []
    for s in range(t):
        a = r / m
        beta = max(beta, math.sqrt(m) * float(np.linalg.norm(a)))
        p = Z @ a
        betas.append(beta)
        passed.append(float(p.min() / beta))
        q = np.exp(p.min() - p)
        r = r + beta * math.sqrt(2) / (size * math.sqrt(s + 1)) * (q @ Z) / q.sum()
    return np.array(betas), np.array(passed)


@pytest.mark.parametrize("seed", range(3))
def test_proposition_7_at_every_step(seed: int):
    Z = features(seed)
    gamma = margins.f2(Dataset(Z, np.ones(6), "z"), kernel=Z @ Z.T / 20).lower
    t = 3000
    betas, passed = output_ascent(Z, t)
    best, inverse = np.maximum.accumulate(passed), np.cumsum(1 / betas)
    assert best[-1] <= gamma * (1 + 1e-5)
    for s in range(1, t + 1, 7):
        found = ascent.output_ascent_margin(gamma, 1.0, 6, s, steps=True, zero=True, exponential=True)
        sharp = ascent.output_ascent_margin(gamma, 1.0, 6, s, inverse_betas=float(inverse[s - 1]))
        assert found.applies and found.value <= best[s - 1] + 1e-12 and sharp.value <= best[s - 1] + 1e-12
        assert sharp.numbers["printed"] == found.value
    assert sharp.value > found.value
    assert sharp.value > 0
    eta = betas[:-1] * math.sqrt(2) / np.sqrt(np.arange(1, t))
    assert (betas[1:] >= gamma * np.cumsum(eta) * (1 - 1e-9)).all()  # beta >= gamma_2 sum eta (E-CB-6)
    assert ascent.output_ascent_margin(gamma, 1.0, 6, 5, zero=False).applies is False


@pytest.mark.parametrize("C", [0.05, 0.3, 0.866, 1.2, math.sqrt(2)])
def test_the_last_step_of_proposition_7(C: float):
    """The slowest beta allowed, beta(t) = max(1, C sum beta(s)/sqrt(s+1)), still has sum 1/beta <= sqrt(6t)/C from t = 1 on,
    although beta(t) >= 2C sqrt(t+1)/sqrt 6 itself may fail at the start."""
    beta, total = [1.0], 0.0
    for s in range(2000):
        total += beta[-1] / math.sqrt(s + 1)
        beta.append(max(1.0, C * total))
    t = np.arange(1, len(beta) + 1)
    assert (np.cumsum(1 / np.array(beta)) <= np.sqrt(6 * t) / C * (1 + 1e-12)).all()
    if C > 1:
        assert beta[1] < 2 * C * math.sqrt(2) / math.sqrt(6)


def test_runs_of_the_training_rules():
    one = data.clusters(12, 2, 1, sep=3.0, seed=1)
    net = flows.Frozen(2, 16, law="paired")
    run = flows.train(one, net, flows.NeuronNormAscent(), loss="exp", stop=400, seed=1)
    found = THEOREMS["CB-14"].apply(facts(one, run))
    best = np.nanmax(run["margin_M6"])
    assert found.applies and found.value <= best
    known = facts(one, run)
    half = margins.frozen(one, known.start["V"][:8], tol=1e-9)
    assert_allclose(found.numbers["gamma"], half.lower / 2, rtol=1e-6)
    out = flows.TwoLayer(2, 16, train="output", mean_field=True, law="sphere")
    run = flows.train(one, out, flows.OutputLayerAscent(), loss="exp", stop=400, seed=1)
    found = THEOREMS["CB-18"].apply(facts(one, run))
    assert found.applies and found.value <= np.nanmax(
        run["margin_M7_raw"] if "margin_M7_raw" in run.records else run["margin_M7"]
    )
    assert THEOREMS["CB-14"].apply(facts(one, run)) is None and THEOREMS["CB-18"].apply(facts(one)) is None


def test_formulas():
    gamma, size, n, m, t, growth = 0.4, 2.0, 5, 30, 4, 0.7
    printed = ascent.frozen_ascent_margin(gamma, size, n, m, t, growth).value
    assert_allclose(printed, gamma - (8 * math.log(m) + math.log(4) + 1) - 2 * math.log(5) * growth)
    S, H = 1 + 2**-0.5 + 3**-0.5 + 0.5, 25 / 12
    sharp = ascent.frozen_ascent_margin(gamma, size, n, m, t, growth, convention="sharp").value
    assert_allclose(sharp, gamma - size * (4 * math.log(m) + 0.375 * H) / S - math.log(5) * growth / S)
    found = ascent.output_ascent_margin(gamma, size, n, t).value
    assert_allclose(found, gamma - (2 * math.sqrt(2) + math.sqrt(3) * math.log(5) / gamma))


def test_bad_input():
    with pytest.raises(InputError, match="between -size and size"):
        ascent.norm_growth([2.0], 1.0)
    assert ascent.step_sums(4) == pytest.approx((1 + 2**-0.5 + 3**-0.5 + 0.5, 25 / 12))
