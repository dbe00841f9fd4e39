"""Margins of regularised minimisers, and the gap between l1 and l2, against minimisation and Monte Carlo."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize

from checks import repeated
from widemargin import Dataset, InputError, data, margins, optima
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
        one = data.xor_with_noise(4, 60, seed=seed)
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
        drawn = data.xor_with_noise(d, 20_000, reject=False, seed=1)
        u = V[0]
        seen = drawn.y * (drawn.X @ u).clip(0)
        assert abs(seen.mean() - mean[0]) < 4 * seen.std() / math.sqrt(20_000)
    below = 0
    for seed in range(20):
        one = data.xor_with_noise(10, 80, reject=False, seed=seed)
        bound = reg.kernel_margin_gap(80, 10, 0.3, law=True)
        below += margins.f2(one).lower <= bound.value
    assert below >= 14 and bound.applies  # at least 0.7 of them
    assert reg.kernel_margin_gap(80, 5).applies is False
    assert bound.numbers["gamma_l1"] == pytest.approx(math.sqrt(2) / 4)
    plane = data.xor_with_noise(2, 50, seed=0)
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


# ---------------------------------------------------------------- networks of nearly the least objective (WM-4)

PHI = {"logistic": lambda z: np.logaddexp(0, -z), "exp": lambda z: np.exp(-z)}


@pytest.mark.parametrize("loss", PHI)
def test_the_share_is_the_worst_that_the_two_inequalities_allow(loss):
    """Any norm N and margin m with phi(N m)/n + decay N <= factor min_M phi(M gamma) + decay M, on fine grids of N, M and m."""
    phi, N = PHI[loss], np.geomspace(1e-3, 1e4, 40_001)
    seen = 0
    for decay, gamma, n, factor in (
        (1e-2, 0.5, 3, 1.0),
        (1e-4, 0.2, 20, 1.0),
        (1e-4, 2.0, 20, 1.3),
        (1e-9, 1.0, 7.5, 1.01),
    ):
        found = reg.decayed_margin(decay, gamma, n, factor=factor, loss=loss)
        most = factor * (phi(N * gamma) + decay * N).min()
        assert_allclose(found.numbers["most"], most, rtol=1e-6)
        left = n * (most - decay * N)  # phi(N m) is at most this
        N_, left = N[left > 0], left[left > 0]
        m = (-np.log(np.expm1(left)) if loss == "logistic" else -np.log(left)) / N_
        assert_allclose(found.value, m.min(), rtol=1e-4)
        seen += found.value > 0
    assert seen == 4
    assert reg.decayed_margin(0.4, 1.0, 5, loss=loss).value == -math.inf  # n times the least objective is above phi(0)
    assert reg.decayed_margin(50.0, 1.0, 1, loss=loss).value == -math.inf
    assert_allclose(reg.decayed_margin(0.01, 1.0, 1, loss=loss).value, 1)  # of one point


def test_how_small_the_decay_must_be():
    """In closed form for exp; else by its definition. The share grows as the decay falls, to 1 / factor and no further."""
    for share, n, factor in ((0.5, 20, 1.0), (0.9, 20, 1.01), (0.7, 300, 1.2), (0.95, 5, 1.0)):
        known = 0.3 * math.exp(1 - math.log(n / share) / (1 - share * factor))
        assert_allclose(reg.decay_for_margin(share, 0.3, n, factor=factor, loss="exp"), known, rtol=1e-9)
        for loss, classes in (("logistic", 2), ("exp", 2), ("logistic", 5)):
            keys = {"loss": loss, "classes": classes, "factor": factor}
            decay = reg.decay_for_margin(share, 0.3, n, **keys)
            assert_allclose(reg.decayed_margin(decay, 0.3, n, **keys).value, 0.3 * share, rtol=1e-6)
            shares = [reg.decayed_margin(decay * 10.0**k, 0.3, n, **keys).numbers["share"] for k in range(-40, 5)]
            assert all(one >= two for one, two in pairwise(shares)) and shares[0] < 1 / factor
    assert reg.decay_for_margin(0.999, 1.0, 20) == 0  # e^-3000
    for loss, end in (
        ("logistic", 0.5),
        ("exp", 1.0),
    ):  # one point: all or nothing, and at gamma / 2 the best network is 0
        decay = reg.decay_for_margin(0.9, 1.0, 1, loss=loss)
        assert_allclose(decay, end, rtol=1e-5)
        for less in (1.0, 1 - 1e-9, 0.9):
            assert reg.decayed_margin(less * decay, 1.0, 1, loss=loss).value >= 0.9
    assert_allclose(reg.decayed_margin(1e-300, 1.0, 2, factor=1.25).numbers["share"], 0.8, atol=3e-3)
    more = [reg.decayed_margin(1e-6, 1.0, 20, classes=k).value for k in (2, 3, 10)]
    assert more[0] > more[1] > more[2] > 0.5
    for bad in ({"factor": 0.9}, {"loss": "hinge"}, {"classes": 1}, {"loss": "exp", "classes": 3}):
        with pytest.raises(InputError, match="decayed_margin: "):
            reg.decayed_margin(0.1, 1.0, 2, **bad)
    with pytest.raises(InputError, match=r"only shares below 0\.8 are sure"):
        reg.decay_for_margin(0.8, 1.0, 2, factor=1.25)


def test_the_constants_of_the_rate_are_needed():
    """x = 1, -1 with labels 1, -1 and weights 1, eps: f = a relu(x) - b relu(-x), margins a and b, norm a + b, gamma = 1/2.

    Best are a = ln(1/(decay (1 + eps))) and b = a + ln(eps) for exp. The light point has a margin that the rate for two points
    does not allow; that with n = the sum of the weights over the smallest does. And a worse network has a smaller margin.
    """
    eps, decay = 1e-4, 1e-9
    a = -math.log(decay * (1 + eps))
    b = a + math.log(eps)

    def objective(b: float) -> float:
        return (math.exp(-a) + eps * math.exp(-b)) / (1 + eps) + decay * (a + b)

    share = 2 * b / (a + b)
    rate = lambda n, factor=1.0: reg.decayed_margin(decay, 0.5, n, loss="exp", factor=factor).numbers["share"]  # noqa: E731
    n = (1 + eps) / eps
    assert rate(n) <= share < rate(2)
    found = optima.path(
        Dataset([[1.0], [-1.0]], [1, -1]), [decay], loss="exp", bias=False, output_bias=None, weights=[1, eps]
    )
    assert_allclose(found[0].margin, share / 2, rtol=1e-4)
    best = margins.f1(Dataset([[1.0], [-1.0]], [1, -1]), bias=False)
    along = reg.guaranteed_along(found, best)
    factor = found[0].upper / found[0].lower
    assert_allclose(along.column("guaranteed"), best.lower * rate(n, factor), rtol=1e-6)
    worse = 0.3 * b
    factor = objective(worse) / objective(b)
    assert rate(n, factor) <= 2 * worse / (a + worse) < rate(n)


def test_no_largest_margin_where_points_have_no_weight():
    """The margins of the path are those of the other points, and may be larger: it was below them."""
    points = Dataset([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.01]], [1, -1, -1])
    best = margins.f1(points)
    keys = {"output_bias": None, "weights": [1.0, 1.0, 0.0]}
    along = reg.guaranteed_along(optima.path(points, [1e-3, 1e-6], **keys), best)
    assert along.column("margin")[-1] > 2 * best.upper and "largest" not in along.names
    assert (along.column("guaranteed") <= along.column("margin")).all()


@repeated("loss, mode", [("logistic", None), ("exp", "free"), ("logistic", "decayed"), ("exp", None)], 0, 1)
def test_every_point_of_a_path_has_the_guaranteed_margin(loss, mode):
    told = 0
    for seed, tol in ((0, 1e-3), (1, 0.2), (2, 1e-6)):
        rng = np.random.default_rng(seed)
        n = 6 + 3 * seed
        points = Dataset(rng.standard_normal((n, 2)), np.resize([1, -1, 1], n)[rng.permutation(n)], f"random {seed}")
        best = margins.f1(points, bias=True, tol=1e-4)
        found = optima.path(points, np.geomspace(1e-1, 1e-13, 5), loss=loss, output_bias=mode, tol=tol, bias=True)
        along = reg.guaranteed_along(found, best)
        margin, sure = along.column("margin"), along.column("guaranteed")
        assert ((margin >= sure) | (sure == -math.inf)).all()  # a constant network has no margin
        assert (along.column("largest") == best.upper).all()
        assert (sure < best.lower).all()
        if mode is None:
            assert (margin <= best.upper * (1 + 1e-9)).all()
            assert margin[-1] > 0.8 * best.lower / (1 + tol)
        told += int((sure > 0).sum())
        assert sure[-1] > 0.6 * best.lower
        assert "guaranteed" in str(along).splitlines()[0] and "guaranteed" not in str(found)
    assert told >= 7


def test_what_cannot_stand_beside_a_path():
    points = Dataset([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.5]], [1, 1, -1], "three")
    best = margins.f1(points, bias=True)
    found = optima.path(points, [0.01], bias=True)
    for certificate, path, words in (
        (margins.f1(points), found, "differs in the bias"),
        (margins.f1(POINTS, bias=True), found, "other points"),
        (margins.f2(points), found, "of kind f2"),
        (best, optima.path(points, [0.01], loss="hinge", bias=True), "not hinge"),
        (
            margins.f1(Dataset([[1.0], [1.0]], [1, -1]), bias=True),
            optima.path(Dataset([[1.0], [1.0]], [1, -1]), [0.1], bias=True),
            "no certified margin",
        ),
    ):
        with pytest.raises(InputError, match=words):
            reg.guaranteed_along(path, certificate)
    for columns in ({"norm": [1.0]}, {"other": [1.0, 2.0]}):
        with pytest.raises(InputError, match="must have 1 numbers"):
            found.beside(**columns)
