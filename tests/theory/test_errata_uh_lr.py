"""Errata of UH and LR (docs/errata.md): a small computation for each.

Those of the section "wrong statements" end in `refuted`: an instance with all hypotheses of the printed statement and without its
conclusion. The others show a step of a proof that fails, a better constant, or what a misprint stands for.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose

from checks import assert_refuted, unit
from widemargin import data, margins
from widemargin.types import Dataset


def log_loss(p):
    return np.logaddexp(0, -np.asarray(p, dtype=float))


def slope(p):
    """|l'(p)| of the logistic loss."""
    return 1 / (1 + np.exp(np.asarray(p, dtype=float)))


def inverse(s):
    """l^{-1}(s) = -ln(e^s - 1)."""
    return -np.log(np.expm1(s))


def kl(v, u):
    """The unnormalised divergence <v, ln(v/u)> + <1, u - v>, with 0 ln 0 = 0."""
    v, u = np.asarray(v, dtype=float), np.asarray(u, dtype=float)
    safe = np.where(v > 0, v, 1.0)
    return float((v * np.log(safe / u) + u - v).sum())


def mirror_flow(Z, u, T, steps, count=None):
    """d ln u / ds = (2/n) sum_i |l'(<u, z_i>)| z_i by the midpoint rule, row i of Z `count[i]` times: times, u at them."""
    r, h, path = np.log(u), T / steps, [np.array(u)]
    weight = np.ones(len(Z)) if count is None else np.asarray(count, dtype=float)

    def rate(r):
        return 2 * Z.T @ (weight * slope(Z @ np.exp(r))) / weight.sum()

    for _ in range(steps):
        r = r + h * rate(r + h / 2 * rate(r))
        path.append(np.exp(r))
    return np.linspace(0, T, steps + 1), np.array(path)


Z = np.array([[0.9, -0.2, 0.3], [0.1, 0.8, -0.4]])  # two points, three features, separable by u = (1, 1, 0)


# ---------------------------------------------------------------- UH


def test_uh_1_the_mirror_flow_descends_plus_two_times_the_risk():
    ubar = np.array([2.0, 1.0, 0.5])
    s, u = mirror_flow(Z, np.full(3, 1 / 3), 5.0, 2000)
    grad = -(slope(u @ Z.T) @ Z) / len(Z)  # of the mean risk
    integral = np.trapezoid((2 * grad * (ubar - u)).sum(1), s)
    change = kl(ubar, u[-1]) - kl(ubar, u[0])
    assert_allclose(change, integral, rtol=1e-5)
    assert abs(change + integral) > 0.1  # what f = -2 L would say


def feature_products(V, X):
    """<dF_j(x_i), dF_j(x_r)> of normalised ReLUs F_j = relu(v_j . x / |v_j|) at unit v_j: (m, n, n)."""
    inner = V @ X.T  # (m, n)
    T = (inner > 0)[..., None] * (X - inner[..., None] * V[:, None])  # (m, n, d)
    return T @ T.transpose(0, 2, 1)


def test_uh_2_the_index_k_in_C1_is_idle():
    """C_1 has F_j in both places, so its supremum over i, r, j != k is that over i, r, j."""
    rng = np.random.default_rng(0)
    V, X = unit(rng.standard_normal((4, 3))), rng.standard_normal((5, 3))
    size = np.abs(feature_products(V, X))
    printed = max(size[j].max() for j in range(4) for k in range(4) if j != k)
    assert printed == size.max() > 0.1


def test_uh_3_divergences_need_absolute_values():
    a, b = np.array([0.5, -0.5]), np.array([0.5, 0.5])
    with np.errstate(invalid="ignore"):
        assert math.isnan(kl([0.5, 0.5], a * b))
    assert math.isfinite(kl([0.5, 0.5], np.abs(a * b)))


@pytest.mark.parametrize("c", [0.5, 3.0, 100.0])
def test_uh_4_two_numbers_are_called_R(c):
    p, u0 = np.array([0.7, 0.2, 0.1]), np.array([0.2, 0.3, 0.5])
    assert_allclose(kl(c * p, u0) / c, kl(p, u0) + math.log(c) - 1 + 1 / c, rtol=1e-12)


def test_uh_4_theorem_3_1_fails_where_its_R_is_0():
    """Frozen features, 999 points (1, -0.9) and one (-0.9, 1), p = u(0) = (1/2, 1/2). The many win at first, whatever t is
    asked for with R = KL(p, u(0)) = 0; the R of Lemma 3.4 asks for t >= 7e12."""
    points, count, p = np.array([[1.0, -0.9], [-0.9, 1.0]]), [999, 1], np.array([0.5, 0.5])
    n, gamma, t, R = 1000, (points @ p).min(), 6.0, kl(p, p)
    _, u = mirror_flow(points, p, t, 2000, count)
    margin = (points @ u[-1]).min() / (2 * u[-1].sum())  # over |a|^2 + |b|^2
    given = {
        "margin of p": gamma >= 0.05 - 1e-15,
        "C_1 = C_2 = 0": True,  # features do not depend on V
        "t >= (20 R / gamma)^4": t >= (20 * R / gamma) ** 4,
        "t >= e + exp(exp(4 n R / gamma))": t >= math.e + math.exp(math.exp(4 * n * R / gamma)),
    }
    assert_refuted(given, margin >= gamma / (4 * (1 + R)))
    assert_refuted(given, margin >= gamma / 32)
    assert_refuted(given, 2 * margin >= gamma / 16)  # Lemma A.4
    norm = math.log(t * n) / gamma
    assert t < (20 * (kl(norm * p, p) / norm) / gamma) ** 4


def test_uh_5_the_condition_on_C2_needs_the_third_power():
    gamma, R, log_tn = 0.1, 5.0, 10.0
    norm = log_tn / gamma
    bracket = log_tn * (8 * R + 2) + 32
    drift = (norm * (8 * R + 2) + 32) ** 2  # what multiplies C1 |p|_inf + C2 in the proof
    assert gamma / (4 * bracket**2) * drift > gamma / 2  # the printed condition allows too much
    assert gamma**3 / (4 * bracket**2) * drift <= gamma / 2


def test_uh_6_the_margin_in_the_norm_of_both_layers_is_half():
    u = np.array([0.3, 0.6, 0.1])
    a = b = np.sqrt(u)
    margin = (Z @ (a * b)).min()
    assert_allclose(margin / (a @ a + b @ b), margin / u.sum() / 2)


def test_uh_7_the_norm_bound_gives_a_smaller_constant_than_printed():
    for R, norm in product((0.5, 4.0, 50.0), (1.0, 100.0, 1e9)):
        printed, supported = 1 / (2 * (1 + R)), 1 / (2 * (8 * R + 2 + 32 / norm))
        assert supported < printed / 1.5


def test_uh_7_the_printed_constant_fails_at_small_times():
    """1000 equal points, t = e^gamma / n, so |ubar| = ln(tn)/gamma = 1 and R = KL(p, u(0)): so small that t >= t_1. Such a start
    is that of 491 equal units and 509 others, u(0) = (1/1000, ...)."""
    gamma, n = 0.02, 1000
    Z, p, u0, t = np.array([[1.0, 2 * gamma - 1]]), np.array([0.5, 0.5]), np.array([0.491, 0.509]), math.exp(gamma) / n
    norm = math.log(t * n) / gamma
    R = kl(norm * p, u0) / norm
    _, u = mirror_flow(Z, u0, t, 200)
    assert_refuted(
        {"margin of p": (Z @ p).min() >= gamma - 1e-15, "t >= (20 R / gamma)^4": t >= (20 * R / gamma) ** 4},
        (Z @ u[-1]).min() / u[-1].sum() >= gamma / (2 * (1 + R)),
    )


def test_uh_8_the_rate_of_the_appendix_tends_to_minus_gamma():
    """One point, one feature z = 1: gamma = 1 and all integrals are closed forms."""
    u0 = 1.0
    for u, limit in ((1e3, 0.31), (1e30, 0.03), (1e300, 0.003)):
        xi = math.log(u / u0) / 2  # int |l'(psi)| = (1/2) ln(u/u0), since d ln u = 2 |l'(u)| ds and psi = u
        D = u * math.log(u / u0) - u + u0
        assert abs((1 - D / (u * xi)) - -1) < limit  # printed: the bound goes to -gamma, not to gamma
        assert abs(1 - D / (2 * u * xi)) < limit  # with the factor 2 of the proof: to 0
        assert 1 - kl([1.0], [1.0]) / (2 * xi) == 1  # the corrected form: gamma


def test_uh_9_growth_of_the_norm_has_a_factor_two():
    s, u = mirror_flow(np.array([[1.0]]), np.array([1.0]), 3.0, 3000)
    G = np.trapezoid(slope(u[:, 0]), s)
    assert_allclose(u[-1, 0], math.exp(2 * G), rtol=1e-6)  # one unit feature: equality
    assert u[-1, 0] > math.exp(G) * 1.2


def test_uh_10_smooth_and_hard_margin_of_the_logistic_loss():
    for n in (8, 20):
        psi = inverse(n * log_loss(0.0))
        assert_refuted({"min margin >= 0": True}, psi + 2 * math.log(n) + 1 >= 0)  # all margins 0, the bound is below
    rng = np.random.default_rng(0)
    for _ in range(300):
        n = int(rng.integers(1, 40))
        p = rng.exponential(3, n) + rng.exponential(5) + math.log(n)
        psi = inverse(log_loss(p).sum())
        if psi >= 0:
            assert psi <= p.min() <= psi + math.log(n) + 0.3666


def test_uh_11_the_sandwich_of_the_derivative():
    rng = np.random.default_rng(1)
    for _ in range(200):
        p = rng.normal(0, 4, int(rng.integers(1, 30)))
        s = slope(p)
        top = 1 - np.prod(1 - s)  # = |l'(psi)|
        assert s.mean() - 1e-15 <= top <= min(1, len(p) * s.mean()) + 1e-15


def test_uh_12_the_last_line_of_the_lemma_has_another_constant():
    gamma, C2, norm = 0.5, 0.1, 1e3  # one point, C3 = C5 = 1, u = C2 ubar meets all hypotheses with equality
    assert math.exp(-gamma * C2 * norm) <= math.exp(-gamma * C2 * norm) and norm >= 2 / (gamma * C2) * math.log(2)
    margin = gamma  # <u, z> / |u|_1
    assert margin >= gamma / 2  # gamma / (2 C3), as stated
    assert margin < gamma / (2 * C2)  # as the proof ends


def test_uh_14_the_smallest_divergence_from_the_simplex():
    v = np.array([1.5, 0.9, 0.6])
    best = kl(v / v.sum(), v)
    assert_allclose(best, v.sum() - 1 - math.log(v.sum()))
    assert abs(best - math.log(1 / v.sum())) > 1  # as printed
    rng = np.random.default_rng(0)
    assert all(kl(q, v) >= best - 1e-12 for q in rng.dirichlet(np.ones(3), 200))
    x = np.linspace(0.05, 20, 400)  # Q(x) = ln x + 1/x - 1
    assert (np.where(x >= 1, 1 / x - 1 / x**2 <= (1 - 1 / x**2) / 2 + 1e-15, True)).all()
    assert (1 / x - 1 / x**2 > (1 - 1 / x**2) / 2 + 1e-9).sum() == 0


def test_uh_15_the_printed_width_does_not_meet_the_condition_it_is_for():
    n, d, gamma, t = 100, 5, 0.1, 1e6
    g, log_tn = gamma / 4, math.log(t * n)
    R = (d - 1) * math.log(48 / gamma)
    printed = 2**10 * log_tn**2 * d**2 / gamma**8
    needed = 16 * (log_tn * (8 * R + 2) + 32) ** 4 / g**6
    assert 1 / math.sqrt(needed) <= g**3 / (4 * (log_tn * (8 * R + 2) + 32) ** 2) * (1 + 1e-12)
    assert 1 / math.sqrt(printed) > g**3 / (4 * (log_tn * (8 * R + 2) + 32) ** 2)
    for d, gamma in product((2, 5, 100), (1 / 48, 1e-3, 1e-9)):  # the first margin follows from Theorem 3.1 as printed
        assert gamma / 4 / (4 * (1 + (d - 1) * math.log(48 / gamma))) >= gamma / (32 * d * math.log(1 / gamma))
    assert 1 / 4 / 32 < 1 / 32  # the late one does not: Lemma B.1 hands over gamma/4


def test_uh_16_atoms_of_the_sampled_measure_weigh_one_over_k():
    k = 25
    assert_allclose(np.full(k, 1 / k).sum(), 1)
    assert_allclose(np.full(k, k**-0.5).sum(), 5)  # as printed: mass sqrt(k)


@pytest.mark.parametrize(("d", "k", "exact"), [(3, 2, 24**-0.5), (4, 4, 1 / 16), (3, 3, 0.0)])
def test_uh_17_margins_of_parity(d, k, exact):
    cube = data.parity(d=d, k=k, n=2**d, marginal="full")
    cert = margins.f1(cube, tol=1e-6)
    assert cert.lower <= exact + 1e-9 and exact <= cert.upper + 1e-9
    assert_refuted({"all corners of the cube": len(cube.y) == 2**d}, cert.upper >= 1 / (k * math.sqrt(d)))


def test_uh_18_the_kernel_margins_of_parity():
    """Output layer alone d^-(k+1)/2, tangent kernel d^-k/2, from the eigenvalue of the parity (k = 2)."""

    def eigenvalue(kernel, d):
        total = 0.0
        for j in range(d + 1):
            kraw = sum((-1) ** i * math.comb(j, i) * math.comb(d - j, 2 - i) for i in range(3))
            total += math.comb(d, j) * kernel(1 - 2 * j / d, d) * kraw / math.comb(d, 2)
        return total / 2**d

    def features(t, d):
        angle = math.acos(max(-1, min(1, t)))
        return (math.sqrt(max(0, 1 - t * t)) + (math.pi - angle) * t) / (2 * math.pi * d)

    def tangent(t, d):
        return features(t, d) + t * (math.pi - math.acos(max(-1, min(1, t)))) / (2 * math.pi)

    for d in (40, 80):
        assert_allclose(math.sqrt(eigenvalue(features, d)), 0.399 * d**-1.5, rtol=0.06)
        assert_allclose(math.sqrt(eigenvalue(tangent, d)), 0.564 / d, rtol=0.06)


def test_uh_19_gradient_of_the_outer_layers_and_the_missing_n():
    a, b, F, e = np.array([0.3, -0.7]), np.array([0.9, 0.4]), np.array([0.5, 0.8]), 1e-6
    for j in range(2):
        step = e * np.eye(2)[j]
        assert_allclose((((a + step) * b) @ F - (a * b) @ F) / e, b[j] * F[j], rtol=1e-6)
        assert_allclose(((a * (b + step)) @ F - (a * b) @ F) / e, a[j] * F[j], rtol=1e-6)
    n, u = 10, 8.0  # n equal points with one feature z = 1: |w|^2 = 2u, d ln |w|^2 / ds = 2 |l'(u)|
    psi = inverse(n * log_loss(u))
    right = 2 * 2 / (2 * u) * psi * slope(psi)
    assert right / n <= 2 * slope(u) < right  # with 1/n it holds, without it fails


def test_uh_f1_the_slope_of_the_exponential_loss():
    p = np.array([-1.0, 0.5, 2.0])
    psi = -math.log(np.exp(-p).sum())
    assert psi < 0 and math.exp(-psi) > 1  # |l'(psi)| = n G > 1 for the exponential loss
    top = inverse(log_loss(p).sum())
    assert top < 0 and slope(top) <= 1  # the logistic loss, which the lemma is about


def test_uh_f2_the_divergence_of_lemma_B1_for_three_and_more_dimensions_and_for_two():
    """ln(1/tauhat) with tauhat >= tau/2 = (gamma/8)^(d-1) / 8 is at most (d-1) ln(48/gamma) for d >= 3 and not for d = 2.
    There the exact length of the arc of the points within gamma/4, and Hoeffding at the width of the lemma, give it."""
    for gamma in (1.0, 0.3, 1e-3):
        for d in (2, 3, 4, 50):
            assert (math.log(8) + (d - 1) * math.log(8 / gamma) <= (d - 1) * math.log(48 / gamma)) == (d >= 3)
        for n, delta in product((1, 10, 10**6), (1.0, 0.1, 1e-9)):
            m, k = 2**10 * math.log(2 * n / (delta * gamma)) ** 2 * (8 / gamma) ** 2, math.ceil(16 * n / gamma**2)
            tau = math.asin(gamma / 8) / math.pi  # within distance gamma/4 on the circle, and of one sign in two
            least = tau - math.sqrt(math.log(2 * k / delta) / (2 * m))
            assert math.log(1 / least) <= math.log(48 / gamma) and 1 / (m * least) <= 1 / math.sqrt(m)
    angle = np.linspace(-math.pi, math.pi, 200_001)
    share = (np.hypot(np.cos(angle) - 1, np.sin(angle)) <= 0.3 / 4).mean() / 2
    assert_allclose(math.asin(0.3 / 8) / math.pi, share, rtol=1e-3)


def test_uh_f4_C1_does_not_fall_with_the_width():
    """Unit points: sup |<dF_j(x_i), dF_j(x_r)>| rises to max |x|^2 = 1 as random units are added."""
    rng = np.random.default_rng(0)
    X = unit(rng.standard_normal((5, 3)))
    V = unit(rng.standard_normal((10_000, 3)))
    C1 = [np.abs(feature_products(V[:m], X)).max() for m in (10, 100, 1000, 10_000)]
    assert (np.diff(C1) >= 0).all() and C1[-1] <= 1 + 1e-12
    assert_refuted({"width": len(V) >= 10_000}, C1[-1] < 0.99)


# ---------------------------------------------------------------- LR


def test_lr_1_Q_is_an_absolute_value():
    p = np.array([0.5, 2.0])
    psi = inverse(log_loss(p).sum())
    derivative = -slope(psi)
    assert (-slope(p) / derivative > 0).all() and derivative < 0  # q = |l'_i| / |l'(psi)|; |l'_i| / l'(psi) is negative


def test_lr_2_the_sum_flow_is_n_times_faster():
    """d ln |w|^2 / dt = 4 Q sum_i q_i p_i / |w|^2 holds for the sum of the losses; the mean has another 1/n."""
    a, v, x, n, h = 0.8, 0.8, 1.0, 4, 1e-6
    p = a * v * x
    for count, scale in ((n, 1.0), (1, 1 / n)):  # gradients of the sum, and of the mean
        pull = count * math.exp(-p)
        w2 = (a + h * pull * v * x) ** 2 + (v + h * pull * a * x) ** 2
        rate = (math.log(w2) - math.log(a * a + v * v)) / h
        assert_allclose(rate, scale * 4 * n * math.exp(-p) * p / (a * a + v * v), rtol=1e-5)


def parity_gradients(d, m, x, y, rng, scale):
    """dp/dw of m neurons with a ~ N(0, scale^2) at one point of 2-parity; outer (m,) and inner parts (m, d)."""
    a, V = rng.standard_normal(m) * scale, rng.standard_normal((m, d)) / math.sqrt(d)
    active = (V @ x > 0).astype(float)
    return a, V, y * active * (V @ x), y * (a * active)[:, None] * x


def test_lr_4_an_inner_transport_gains_one_and_not_the_root_of_the_width():
    """Lemma A.3 at W' = W, R = 0, r_w = 0, for one point and the transport of Proposition 1.6, under both laws of W."""
    d, m, delta = 6, 400_000, 0.05
    x = np.array([1.0, 1, 1, -1, 1, -1]) / math.sqrt(d)
    beta = np.array(list(product((1, -1), repeat=2))) / math.sqrt(2)
    sign = np.array([1, -1, -1, 1])
    gains, sizes = [], []
    for scale, seen in (
        (1.0, 1.0),
        (m**-0.5, 1.0),
        (m**-0.5, m**0.5),
    ):  # of Assumption 1.3; of the network; with theta(sqrt(m) a, v)
        a, V, outer, inner = parity_gradients(d, m, x, 1.0, np.random.default_rng(0), scale)
        near = (a * seen) ** 2 + (V**2).sum(1) < 4
        theta = (near * np.sign(a))[:, None] / 2 * (sign * (V[:, :2] @ beta.T >= 0)) @ beta
        each = (theta * inner[:, :2]).sum(1)
        gains.append(each.sum() / math.sqrt(m))
        sizes.append(np.linalg.norm(a))
        if scale == 1:
            gamma = each.mean() - 4 * each.std() / math.sqrt(m)
    assert_allclose(gains[0], 0.0343 * math.sqrt(m), rtol=0.1)
    assert_allclose(gains[2], 0.0343, rtol=0.1)
    assert gains[1] < 0.1
    assert_allclose((near * np.sign(V[:, 0] * V[:, 1]) * outer).sum() / math.sqrt(m), 0.016 * math.sqrt(m), rtol=0.1)
    loss = math.sqrt(32 * math.log(1 / delta)) + 4
    given = {"margin": gamma > 0.03, "|theta| <= 1": (theta**2).sum(1).max() <= 1, "m": m >= 2 * math.log(1 / delta)}
    assert gamma * math.sqrt(m) - loss > 100 * gains[1]  # far from chance: the lemma says 1 - 7 delta = 0.65
    assert_refuted(given, gains[1] >= gamma * math.sqrt(m) - loss)  # a ~ N(0, 1/m): no gain
    assert_refuted(given, sizes[0] <= 2)  # a ~ N(0, 1): |a| is near sqrt(m)


def test_lr_5_the_parity_transport_needs_the_signs_of_alpha():
    d, m = 10, 400_000
    beta = np.array(list(product((1, -1), repeat=2))) / math.sqrt(2)
    values = {}
    for word, sign in (("printed", np.ones(4)), ("corrected", np.array([1, -1, -1, 1]))):
        for y in (1, -1):
            x = np.ones(d) / math.sqrt(d)
            x[1] *= y
            a, V, _, inner = parity_gradients(d, m, x, y, np.random.default_rng(1), 1.0)
            theta = np.sign(a)[:, None] / 2 * (sign * (V[:, :2] @ beta.T >= 0)) @ beta
            values[word, y] = d * (theta * inner[:, :2]).sum() / m
    assert_allclose([values["corrected", 1], values["corrected", -1]], 0.2633, rtol=0.05)
    assert_allclose(values["printed", -1], -0.2633, rtol=0.05)
    assert abs(math.sqrt(2 / math.pi) - np.abs(np.random.default_rng(0).standard_normal(100_000)).mean()) < 0.01
    assert math.sqrt(2 / math.pi) < 1  # E|a| is not at least 1


def test_lr_6_only_the_rebalanced_iterate_has_the_better_constant():
    gamma, m = 0.2, 100
    a, V = np.full(m, 1 / math.sqrt(m)), np.ones((m, 1))  # |a| = 1, |V| = sqrt(m)
    raw, better = (a @ a) + (V**2).sum(), (a @ a) / gamma + (V**2).sum() * gamma
    assert better < raw  # the same function: its margin is larger by about 1/gamma
    assert_allclose(raw / better, 1 / gamma, rtol=0.3)


def test_lr_7_the_interval_of_step_sizes():
    for gamma in (0.01, 0.3):
        least = (640 / gamma) ** 2
        for m, empty in ((0.99 * least, True), (1.01 * least, False)):
            assert (gamma / (10 * math.sqrt(m)) > gamma**2 / 6400) == empty


def test_lr_8_early_times_do_not_make_every_slope_small():
    n = 50
    for t, small in ((10, False), (50, True), (500, True)):
        assert (n / (10 * t) <= 1 / 10) == small


def test_lr_9_the_printed_width_is_too_small():
    gamma, log = 0.1, math.log(1000 / 0.05)
    m = 256 * log / gamma**2
    R = gamma * math.sqrt(m) / 32
    assert math.sqrt(32 * log) + 8 * R > gamma * math.sqrt(m) / 2
    m = ((math.sqrt(32 * log) + 4) / (0.375 * gamma)) ** 2
    R = gamma * math.sqrt(m) / 32
    assert math.sqrt(32 * log) + 4 * R + 4 <= gamma * math.sqrt(m) / 2 * (1 + 1e-12)
    assert (640 * log / gamma) ** 2 > m  # Theorem 2.2's width suffices
    for log, enough in ((135, False), (137, True)):  # with the 4R of the proof the printed width suffices from here on
        assert (((math.sqrt(32 * log) + 4) / 0.375) ** 2 <= 256 * log) == enough


def test_lr_10_the_proof_of_the_comparator_lemma_gives_more():
    for R, m in product((0.0, 1.0, 8.0), (100.0, 1e6)):
        if math.sqrt(m) >= R:
            assert 4 * R + 4 <= 8 * R + 4 and 2 * R + 2 * R * math.sqrt(m) + 4 * math.sqrt(m) >= 4 * R + R * R


@pytest.mark.parametrize(("ratio", "fails"), [(1, False), (3, False), (5, True), (20, True)])
def test_lr_10_the_printed_loss_fails_far_from_the_start(ratio, fails):
    """<W, dp(W')> - p(W') at r_theta = 0, r_w = 1, where all weights moved along one point x, |W - W'| = R = ratio sqrt(m)."""
    m, d, delta, rng = 100, 3, 0.05, np.random.default_rng(0)
    a, V = rng.standard_normal(m) / math.sqrt(m), rng.standard_normal((m, d)) / math.sqrt(d)
    R, x = ratio * math.sqrt(m), np.eye(d)[0]
    step = R / math.sqrt(2 * m)
    near, far = a + step, V + step * x
    on = far @ x > 0
    value = a @ (far @ x).clip(0) + (near * on) @ (V @ x) - near @ (far @ x).clip(0)
    first = 4 * math.log(1 / delta)
    assert value >= -(first + 4 * R + R * R)  # what the proof shows
    conclusion = value >= -(first + 2 * R + 2 * R * math.sqrt(m) + 4 * math.sqrt(m))
    if fails:
        moved = math.sqrt(((near - a) ** 2).sum() + ((far - V) ** 2).sum())
        assert_refuted({"R": moved <= R * (1 + 1e-12), "|a|": a @ a <= 4, "|V|": (V**2).sum() <= 4 * m}, conclusion)
    else:
        assert conclusion


def test_lr_12_small_slopes():
    z = math.log(7)
    assert_allclose(slope(z), 1 / 8)
    assert z < 2
    z = np.linspace(math.log(7), 50, 1000)
    assert (log_loss(z) <= 2 * slope(z)).all() and (1 + np.exp(-z) <= 8 / 7 + 1e-12).all()


def printed_collapse(X, y, beta, gamma, eps):
    """Assumption 3.1 as printed, for one direction: conditions multiplied by y_i, no point need lie in a cone."""
    inner, rest = (X @ beta) * y, np.linalg.norm(X - np.outer(X @ beta, beta), axis=1)
    return (((inner >= gamma) & (rest <= gamma * math.sqrt(eps / 2))) | (inner <= -eps)).all()


def test_lr_13_the_cones_are_not_multiplied_by_the_label():
    found = data.neural_collapse(d=3, r=3, n=12, gamma_nc=0.8, eps=0.1, labels="+-+", seed=0)
    beta, signs = data.simplex_directions(3, 3), np.array([1, -1, 1])
    assert data.check_nc(found.X, found.y, beta, signs, 0.8, 0.1)
    inner = found.y[:, None] * (found.X @ beta.T)  # with the factor y_i, as printed
    assert not ((inner >= 0.8 - 1e-9) | (inner <= -0.1 + 1e-9)).all()
    pair = Dataset(
        [[1, 0], [-1, 0]], [1, -1]
    )  # with it, x and -x of the other label lie in one cone: r = 1, gamma_nc = 1
    given = {"Assumption 3.1": printed_collapse(pair.X, pair.y, np.array([1.0, 0.0]), 1.0, 0.1)}
    assert_refuted(given, margins.f1(pair).upper >= 1)  # "implies Assumption 1.2 with gamma_gl >= gamma_nc / r"


def test_lr_f2_a_point_in_no_cone():
    """Two points of both labels, 2 eps apart, in no cone: their margin is at most eps, gamma_nc is whatever one likes."""
    eps = 0.05
    pair = Dataset([[-eps, math.sqrt(1 - eps**2)], [eps, math.sqrt(1 - eps**2)]], [1, -1])
    given = {"Assumption 3.1": printed_collapse(pair.X, pair.y, np.array([1.0, 0.0]), 1.0, eps)}
    best = margins.f1(pair).upper
    assert_refuted(given, best >= 1)  # gamma_gl >= gamma_nc / r
    assert_refuted(given, best / 2 >= (1 - eps) / 8)  # Theorem 3.2: margins of W in |W|^2, at most half of gamma_gl


def test_lr_14_a_captured_neuron_can_be_active_on_a_polar_point():
    eps, beta = 0.1, np.array([1.0, 0.0])
    v, x = np.array([0.9, math.sqrt(1 - 0.81)]), np.array([-eps, math.sqrt(1 - eps**2)])
    assert v @ beta >= 1 - eps and beta @ x <= -eps  # the threshold of the proof, and a polar point
    assert v @ x > 0.3
    angle = np.linspace(-math.pi, math.pi, 20001)
    unit = np.column_stack([np.cos(angle), np.sin(angle)])
    close = unit[unit @ beta >= 1 - eps**2 / 2]  # the corrected threshold: within distance eps
    polar = unit[unit @ beta <= -eps]
    assert (close @ polar.T).max() <= 1e-3


def test_lr_15_the_potential_grows_at_half_the_rate_of_the_printed_lines():
    a = b = 0.7  # one matched neuron, one point, feature z
    z, h = 0.9, 1e-6
    Q = math.exp(-a * b * z)  # exp loss, sum flow: a' = Q z b, b' = Q z a
    before, after = ((x * x + y * y) for x, y in ((a, b), (a + h * Q * z * b, b + h * Q * z * a)))
    rate = (math.log(after) - math.log(before)) / (4 * h)
    assert_allclose(rate, Q * z / 2, rtol=1e-5)


@pytest.mark.parametrize("alpha", [0.1, 0.5])
def test_lr_16_the_two_relu_predictor(alpha):
    found = data.bad_kkt_cones(d=3, n1=6, n2=6, alpha=alpha, seed=0)
    v1, v2 = found.X[0], found.X[6]
    value = ((found.X @ -v1).clip(0) + (found.X @ -v2).clip(0)) / 2
    assert 1 / (2 * math.sqrt(2)) - 1e-12 <= value.min() < 1 / math.sqrt(2)
    linear = margins.linear(Dataset(found.X, found.y))
    u = np.array(linear.extra["u"]) / np.linalg.norm(linear.extra["u"])
    a = math.sqrt(0.5)  # one balanced neuron along u: squared norm 1, so the KKT point has half of the linear margin
    assert_allclose((a * (found.X @ (a * u)).clip(0)).min(), linear.lower / 2, rtol=1e-6)


def test_lr_17_the_inequality_of_signed_terms():
    a, v, x = -1.0, np.array([3.0, 0.0]), np.array([1.0, 0.0])
    left = a * max(0.0, v @ x)
    right = (a * a + v @ v) / 2 * math.copysign(1, a) * max(0.0, v @ x / np.linalg.norm(v))
    assert left > right and abs(left) <= abs(right)  # as printed, and of absolute values


def test_lr_f1_the_last_time_at_a_distance():
    """Lemma 2.4: a curve of growing norm may be at distance R from its start three times; after the last it stays beyond R. The
    smooth margin and its ratio to |W|^2 only grow, so at the last time they are at least what the proof shows at the first."""
    s = np.linspace(0, 12, 120_001)
    W = (2 + s**2 / 8)[:, None] * np.column_stack([np.cos(2 * s), np.sin(2 * s)])
    assert (np.diff(np.linalg.norm(W, axis=1)) > 0).all()
    far = np.linalg.norm(W - W[0], axis=1) - 3.0
    times = np.flatnonzero(np.diff(np.sign(far)))
    assert len(times) == 3  # no unique time
    assert (far[times[-1] + 1 :] >= 0).all() and not (far[times[0] + 1 :] >= 0).all()
