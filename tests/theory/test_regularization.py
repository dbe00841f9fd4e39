"""Margins of regularised minimisers, and the gap between l1 and l2, against minimisation and Monte Carlo."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize

from widemargin import Dataset, InputError, data, margins
from widemargin.spaces import ReLU, sphere
from widemargin.theory import THEOREMS, facts
from widemargin.theory import regularization as reg

POINTS = Dataset([[1.0, 0.2], [0.8, -0.4], [-1.0, 0.3], [-0.5, -0.6], [0.9, 0.9]], [1, 1, -1, -1, 1], "five")


def minimiser(lam: float, r: float = 2) -> np.ndarray:
    """argmin mean logistic + lam ||u||^r of a linear classifier (a = 1), by BFGS from the max-margin direction."""
    Z = POINTS.X * POINTS.y[:, None]
    u = np.asarray(margins.linear(POINTS).extra["u"])

    def value(w: np.ndarray) -> float:
        return float(np.logaddexp(0, -Z @ w).mean() + lam * np.linalg.norm(w) ** r)

    def slope(w: np.ndarray) -> np.ndarray:
        p = 1 / (1 + np.exp(Z @ w))
        return -(p @ Z) / len(Z) + lam * r * np.linalg.norm(w) ** (r - 2) * w

    best = min(
        (minimize(value, s * u, jac=slope, method="BFGS", options={"gtol": 1e-13}) for s in (1, 10, 100)),
        key=lambda f: f.fun,
    )
    return best.x


@pytest.mark.parametrize("r", [1.5, 2.0, 3.0])
def test_minimisers_obey_mt_3_and_4(r: float):
    star = margins.linear(POINTS).upper
    Z, last = POINTS.X * POINTS.y[:, None], 0.0
    for lam in 10.0 ** -np.arange(1, 9):
        w = minimiser(lam, r)
        M = float(np.linalg.norm(w))
        gamma = float((Z @ w).min()) / M
        found = reg.minimizer_margin(M, star, 5, a=1, minimiser=True)
        assert found.value <= gamma + 1e-7
        low, high = reg.regularized_loss_bounds(gamma, M, lam, 5, r=r, a=1)
        loss = float(np.logaddexp(0, -Z @ w).mean() + lam * M**r)
        assert low <= loss <= high
        weak = reg.weak_regularization_margin(lam, star, 5, r=r, a=1, minimiser=True)
        assert weak.numbers["norm_least"] <= M * (1 + 1e-6) and weak.numbers["norm_most"] * (1 + 1e-6) >= M
        assert weak.value <= gamma + 1e-7 and weak.value <= found.value + 1e-9
        assert weak.value >= last - 1e-9 or last == 0  # grows as lam falls
        last = weak.value
    assert last > 0.75 * star and weak.numbers["norm_least"] > 5
    assert reg.weak_regularization_margin(1.0, star, 5, a=1).applies is False


def test_the_margin_bound_grows_with_the_norm_to_the_largest_margin():
    """(1 + (l-1) e^{-M g})^n - 1 has logarithm convex in M, so the bound is increasing."""
    for n, classes in ((1, 3), (2, 2), (50, 2), (1000, 10)):
        values = [reg._margin_at(M, 0.3, n, classes) for M in np.geomspace(0.1, 1e4, 200)]
        assert (np.diff(values) >= -1e-12).all()
        assert_allclose(values[-1], 0.3 - math.log(n * (classes - 1)) / 1e4, rtol=1e-6)
    exact = -math.log((1 + 4 * math.exp(-2 * 0.3)) ** 7 - 1) / 2
    assert_allclose(reg._margin_at(2.0, 0.3, 7, 5), exact)


def test_smallest_powers_of_theorem_2_2():
    for n, c in ((2, 14.7), (3, 10.2), (10, 6.11), (100, 4.19), (1000, 3.53), (10**5, 2.98)):
        found = reg.smallest_c(n)
        assert abs(found - c) < 0.03
        for factor, reaches in ((1.001, True), (1.5, True), (10, True), (0.999, False)):
            star = 0.37
            one = reg.approximate_minimizer_margin(star, star / n ** (found * factor), n)
            assert (one.value >= star / 8) == reaches
    with pytest.raises(InputError, match="at least 2"):
        reg.smallest_c(1)


def test_approximate_minimisers_keep_their_margin():
    """Points with at most twice the least loss, found by pushing the margin down, stay above the certificate."""
    star, Z = margins.linear(POINTS).upper, POINTS.X * POINTS.y[:, None]
    lam = star**2 / 5**6.0
    w = minimiser(lam)
    least = float(np.logaddexp(0, -Z @ w).mean() + lam * (w @ w))
    found = reg.approximate_minimizer_margin(star, lam, 5, r=2, a=1, within=True)
    assert found.applies is None and found.value > 0
    rng, seen = np.random.default_rng(0), 1.0
    for _ in range(20_000):
        v = w * math.exp(0.3 * rng.standard_normal()) + rng.standard_normal(2) * rng.uniform(0, 12)
        if np.logaddexp(0, -Z @ v).mean() + lam * (v @ v) <= 2 * least:
            seen = min(seen, float((Z @ v).min() / np.linalg.norm(v)))
    assert found.value <= seen < 0.9 * star
    bad = reg.approximate_minimizer_margin(star, 0.5, 5, r=2, a=1)
    assert bad.applies is False
    printed = reg.approximate_minimizer_margin(star, star / 5**3.0, 5, convention="printed")
    assert printed.applies is False and printed.value == star / 8


# ---------------------------------------------------------------- l1 against l2


def test_uniform_dual_bounds_the_kernel_margin():
    for seed in range(5):
        one = data.mt_distribution(4, 60, seed=seed)
        bound = reg.uniform_dual_bound(ReLU().kernel(one.X), one.y)
        assert margins.f2(one).upper <= bound.value * (1 + 1e-9) and bound.applies
        V = sphere(200_000, 4, 1)
        mean = (one.y @ (one.X @ V.T).clip(0)) / 60
        assert_allclose(bound.value, math.sqrt((mean**2).mean()), rtol=0.02)
    assert reg.uniform_dual_bound(np.eye(2), [1, 2]).applies is False
    assert_allclose(THEOREMS["MT-19"].apply(facts(one)).value, bound.value)


def test_relu_pair_identity():
    """Claim D.2 by quadrature, with c_1 = 1/sqrt(2 pi) and c_2 = 1 (even 1/sqrt(2 pi) for a^2)."""
    z = np.linspace(-12, 12, 200_001)
    density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    for a in (-3.0, -0.5, 0.0, 0.01, 0.7, 2.0, 6.0):
        both = ((a + z).clip(0) + (-a + z).clip(0)) * density
        value = np.trapezoid(both, z) - 2 / math.sqrt(2 * math.pi)
        assert_allclose(reg.relu_pair_gap(a), value, atol=1e-8)
        assert -1e-15 <= reg.relu_pair_gap(a) <= min(abs(a), a * a / math.sqrt(2 * math.pi)) + 1e-15


def test_kernel_margin_falls_on_the_xor_law():
    """Theorem 3.5 with constants: coverage, the mean feature against Monte Carlo, and the l1 margin that stays."""
    for d in (7, 10, 16):
        V = sphere(400_000, d, 3)
        t = np.linalg.norm(V[:, 2:], axis=1)
        mean = t / 4 * (reg.relu_pair_gap((V[:, 0] + V[:, 1]) / t) - reg.relu_pair_gap((V[:, 0] - V[:, 1]) / t))
        assert (mean**2).mean() <= reg.mean_feature_bound(d)
        drawn = data.mt_distribution(d, 20_000, reject=False, seed=1)
        u = V[0]
        seen = drawn.y * (drawn.X @ u).clip(0)
        assert abs(seen.mean() - mean[0]) < 4 * seen.std() / math.sqrt(20_000)
    below = 0
    for seed in range(20):
        one = data.mt_distribution(10, 80, reject=False, seed=seed)
        bound = reg.kernel_margin_gap(80, 10, 0.3, law=True)
        below += margins.f2(one).lower <= bound.value
    assert below >= 14 and bound.applies  # at least 0.7 of them
    assert reg.kernel_margin_gap(80, 5).applies is False
    assert bound.numbers["gamma_l1"] == pytest.approx(math.sqrt(2) / 4)
    plane = data.mt_distribution(2, 50, seed=0)
    assert margins.f1(plane).lower >= math.sqrt(2) / 4 - 1e-6
    printed = reg.kernel_margin_gap(80, 10, convention="printed")
    assert not printed.explicit and printed.value < printed.numbers["order"]  # E-MT-8


def test_regression_gap_identity():
    """E[v' k^-1 v] = n, Monte Carlo over targets, and the l1 norm of one ReLU."""
    X = np.random.default_rng(0).standard_normal((6, 3))
    K = ReLU().kernel(X)
    v = (sphere(200_000, 3, 5) @ X.T).clip(0)
    values = (v * np.linalg.solve(K, v.T).T).sum(axis=1)
    found = reg.regression_gap(6, uniform=True, invertible=True)
    assert abs(values.mean() - found.value) < 4 * values.std() / math.sqrt(len(values)) and found.applies
    assert margins.min_norm_l1(Dataset(X, v[0], "one relu"), tol=1e-7).upper <= 1 + 1e-6
    assert_allclose(margins.min_norm_l2(Dataset(X, v[0], "one relu")).upper, math.sqrt(values[0]), rtol=1e-5)
    twice = facts(Dataset(np.vstack([X, X[:1]]), np.append(v[0], v[0, 0]), "twice"))
    assert THEOREMS["MT-23"].apply(twice).applies is False


def test_regression_minimisers_are_short():
    """MT-21 on one point x = 1: the minimiser of (w relu(u) - y)^2 + lam (w^2 + u^2) has w = u and norm^2 = 2 (y - lam)."""
    y = 0.8
    for lam in (0.3, 0.01, 1e-5):
        found = reg.regression_minimizer_norm(y, lam, m=1, n=1, feasible=True, minimiser=True)
        square = 2 * (y - lam)
        assert found.applies and square <= found.value and lam**2 <= found.numbers["training_risk"]
        grid = np.linspace(0, 1.5, 3001)
        assert_allclose(grid[np.argmin((grid**2 - y) ** 2 + 2 * lam * grid**2)] ** 2 * 2, square, atol=3e-3)
    assert_allclose(square, found.value, rtol=1e-4)
    assert reg.regression_minimizer_norm(y, 0.1, m=1, n=2).applies is False
    one = THEOREMS["MT-21"].apply(facts(Dataset([[1.0], [-2.0]], [0.5, 0.25], "two")))
    assert_allclose(one.value, 2 * (0.5 + 0.125), rtol=1e-5)
