"""Errata of MT, BN and CB (docs/errata.md): for each, a computation in which the printed form fails or the correction holds."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
from numpy.testing import assert_allclose
from scipy import optimize

from widemargin import data, margins
from widemargin.types import Dataset

XOR = Dataset([[1, 1], [-1, -1], [1, -1], [-1, 1]], [1, 1, -1, -1], name="xor")


# ---------------------------------------------------------------- MT


def test_mt_2_sum_and_mean_differ_by_the_scale_of_lambda():
    """The minimiser of the sum with lambda is that of the mean with lambda / n."""
    z, lam, n = np.array([0.5, 1.0, 2.0]), 0.3, 3

    def best(weight, lam):
        return optimize.minimize_scalar(lambda w: weight * np.logaddexp(0, -z * w).sum() + lam * w * w, tol=1e-14).x

    assert_allclose(best(1, lam), best(1 / n, lam / n), rtol=1e-6)
    assert abs(best(1, lam) - best(1 / n, lam)) > 0.1


def test_mt_3_margins_are_of_the_normalised_parameters():
    theta, z = np.array([3.0, 4.0]), np.array([[1.0, 0.0], [0.5, 1.0]])
    assert_allclose((z @ (2 * theta)).min(), 2 * (z @ theta).min())  # not normalised: any value
    assert_allclose((z @ (2 * theta)).min() / np.linalg.norm(2 * theta), (z @ theta).min() / np.linalg.norm(theta))


def test_mt_4_an_inequality_of_logarithms():
    x = np.linspace(1e-3, 50, 500)
    assert (np.log1p(x) >= x / (1 + x)).all()
    assert (np.log(x) < x / (1 + x)).any()  # as printed


def test_mt_5_the_smallest_norm_is_one_over_the_margin():
    """min |alpha|_1 with margins at least 1, by linear programming over directions on a fine circle."""
    angle = np.linspace(0, 2 * math.pi, 361)[:-1]
    V = np.column_stack([np.cos(angle), np.sin(angle)])
    Z = XOR.y[:, None] * (XOR.X @ V.T).clip(0)
    solved = optimize.linprog(np.ones(720), -np.hstack([Z, -Z]), -np.ones(4))
    assert_allclose(solved.fun, 1 / (math.sqrt(2) / 4), rtol=1e-6)  # 1 / gamma_l1, where 1 / (2 gamma_l1) is printed


def test_mt_6_the_constant_of_the_generalisation_bound_is_as_printed():
    """4 Rad / gamma_alpha with Rad = 3 |X|_F / n and gamma_alpha = 2 gamma."""
    X, gamma = np.random.default_rng(0).standard_normal((50, 3)), 0.1
    size, n = np.linalg.norm(X), len(X)
    assert_allclose(4 * (3 * size / n) / (2 * gamma), 6 / gamma * math.sqrt(size**2 / n / n))


def test_mt_7_the_volume_of_the_sphere_cancels():
    d, x = 5, np.array([1.0, 2.0, 0.0, -1.0, 0.5])
    u = np.random.default_rng(0).standard_normal((400_000, d))
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    square = (u @ x).clip(0) ** 2
    error = square.std() / math.sqrt(len(u))
    assert abs(square.mean() - x @ x / (2 * d)) < 4 * error  # E relu^2 = |x|^2 / (2d), whatever the volume is
    assert abs(square.mean() - x @ x / d) > 50 * error  # the constant that "<= 1/d" hides


def test_mt_8_the_kernel_margin_of_noise_is_of_order_one_over_root_n_times_a_logarithm():
    """sqrt(log n / n) and log n / sqrt(n) differ, and the second is what the lemma and the final bound use."""
    n, d = 10**6, 10**4
    lemma = max(math.log(n) / math.sqrt(n), 1 / d)
    assert_allclose(
        math.sqrt(1 / n) / lemma, 1 / math.log(n)
    )  # (1/gamma) sqrt(1/n) >= 1/log n, as the theorem concludes
    assert math.sqrt(1 / n) / max(math.sqrt(math.log(n) / n), 1 / d) > 2 / math.log(n)


def test_mt_9_the_four_sign_patterns():
    """The mean of y relu(u.x) over the four signs of (x1, x2) uses each pattern once, -u1 + u2 among them."""
    u1, u2, rest = 0.6, -0.3, 0.2
    patterns = [(1, 1, 1), (-1, -1, 1), (1, -1, -1), (-1, 1, -1)]
    mean = sum(y * max(0.0, s * u1 + t * u2 + rest) for s, t, y in patterns) / 4
    printed = [(1, 1, 1), (-1, -1, 1), (1, -1, -1), (1, -1, -1)]  # the third pattern twice
    wrong = sum(y * max(0.0, s * u1 + t * u2 + rest) for s, t, y in printed) / 4
    assert abs(mean - wrong) > 0.1


def test_mt_10_the_norm_of_the_kernel_interpolant_and_the_factor_four():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((6, 3))
    from widemargin.spaces import ReLU

    K = ReLU().kernel(X)
    u = rng.standard_normal((200_000, 3))
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    v = (X @ u.T).clip(0)
    values = (v * np.linalg.solve(K, v)).sum(0)
    assert abs(values.mean() - 6) < 4 * values.std() / math.sqrt(len(u))  # equality, where one place prints >=
    # E.20: 2-homogeneous L' has <grad L', theta> = 2 L', so E|grad L'|^2 >= (2 E L')^2 / E|theta|^2: a factor 4
    theta, A = rng.standard_normal((1000, 2)), np.array([[1.0, 0.3], [0.3, 0.5]])
    gradient, value = 2 * theta @ A, np.einsum("ij,jk,ik->i", theta, A, theta)
    right = value.mean() ** 2 / (theta**2).sum(1).mean()
    assert (gradient**2).sum(1).mean() >= 4 * right


def test_mt_12_the_schedule_of_the_text():
    epochs = {60: 0.2, 90: 0.5, 120: 0.5, 140: 0.5, 160: 0.5}
    decay = 2e-4 * math.prod(epochs.values())
    assert_allclose(decay, 2.5e-6)
    assert_allclose(5e-4 * math.prod(epochs.values()), 6.25e-6)  # with the 0.0005 of the caption


# ---------------------------------------------------------------- BN


def test_bn_1_the_margin_of_the_features_needs_the_root_of_the_width():
    """With |a| <= 1 the best margin grows like sqrt(m): only divided by it does it have a limit."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((6, 4)), np.array([1, 1, 1, -1, -1, -1])
    raw = []
    for m in (400, 6400):
        V = rng.standard_normal((m, 4))
        F = (X @ (V / np.linalg.norm(V, axis=1, keepdims=True)).T).clip(0)
        raw.append(margins.f2(Dataset(X, y), kernel=F @ F.T).lower)
    assert_allclose(raw[1] / raw[0], 4, rtol=0.15)


def test_bn_2_the_radius_is_one_over_two_eps():
    """1/2 eps_N and 1/(2 eps_N): only the second keeps 1/N bounded, |N(v') - N(v)| <= |v' - v|."""
    eps_N = 5.0
    N = 1 / eps_N
    assert N - 1 / (2 * eps_N) >= N / 2 and N - eps_N / 2 < 0


def test_bn_3_the_width_leaves_no_room_for_the_radius():
    for eps_N, gamma in product((1.0, 5.0), (0.01, 0.3)):
        m = 2**29 * eps_N**3 / gamma**2
        assert gamma ** (1 / 3) * m ** (1 / 6) / (27 * eps_N) < 8
        m = (216 * eps_N) ** 6 / gamma**2
        assert gamma ** (1 / 3) * m ** (1 / 6) / (27 * eps_N) >= 8 * (1 - 1e-12)


def test_bn_4_the_printed_step_size():
    for eps_N, gamma in product((1.0, 3.0), (0.05, 0.3)):
        m = (216 * eps_N) ** 6 / gamma**2
        R = gamma ** (1 / 3) * m ** (1 / 6) / (27 * eps_N)
        printed = 1 / (28 * eps_N * gamma ** (2 / 3) * m ** (1 / 3))
        assert_allclose(4 * R / (printed * gamma * math.sqrt(m)), 112 / 27)  # whatever gamma is
        assert printed * 2**13 * eps_N**4 * math.sqrt(m) / gamma > 1e5 * R / 8
        ours = gamma ** (4 / 3) / (27 * 2**16 * eps_N**5 * m ** (1 / 3))
        assert ours * 2**13 * eps_N**4 * math.sqrt(m) / gamma <= R / 8 * (1 + 1e-9)
        assert_allclose(4 * R / (ours * gamma * math.sqrt(m)), 2**18 * eps_N**4 / gamma**2)
    p = np.linspace(-5, 5, 101)
    wrong, slope = p <= 0, 1 / (1 + np.exp(p))
    assert (wrong <= 2 * slope + 1e-12).all() and (wrong > slope / 2).any()


def test_bn_5_the_last_line_of_the_proof_is_another_bound():
    """The theorem's bound falls below any number with t; the proof ends with one that does not depend on t."""
    gamma, n, m, eps_N = 0.1, 1e4, 1e6, 1.0

    def theorem(t):
        return 2**17 * m ** (1 / 3) * eps_N**4 / (gamma ** (1 / 3) * t * math.sqrt(n))

    proof = 2560 / (gamma * math.sqrt(n))
    assert theorem(1e2) > proof > 1e3 * theorem(1e9)


def test_bn_6_the_complexity_does_not_vanish_with_the_radius():
    rng = np.random.default_rng(0)
    n, rho, B = 50, 1e-3, 1.0
    X = rng.standard_normal((n, 3))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    V = rng.standard_normal((20, 3)) / math.sqrt(3)  # V_0 itself lies in the class
    features = (X @ V.T).clip(0)
    eps = rng.choice([-1.0, 1.0], (2000, n))
    rademacher = B * np.abs(eps @ features).max(1).mean() / n
    assert rademacher > 10 * 4 * B * rho * np.linalg.norm(X) / n  # as printed, without the offset
    reach = np.linalg.norm(V, axis=1).max()
    assert rademacher <= 4 * B * (rho + reach) * np.linalg.norm(X) / n


def test_bn_7_the_perturbation_constant():
    """K = rho_N eps_N + beta_N eps_V is what the proof gives; the printed one is larger since eps_ratio = eps_V eps_N."""
    for eps_N in (1.0, 4.0):
        eps_V, rho_N = 2.0, 2.0
        beta_N = rho_N * eps_N**2
        assert rho_N * eps_N + beta_N * eps_V <= rho_N * eps_N + beta_N * eps_V * eps_N
        assert 4 * eps_N + 2 <= 9 * eps_N


def test_bn_8_steps_and_flow_are_two_algorithms():
    w, eta = 2.0, 0.5  # risk w^2 / 2
    assert abs((1 - eta) * w - math.exp(-eta) * w) > 0.1


def test_bn_9_only_the_odd_part_matters():
    rng = np.random.default_rng(0)
    d, m = 3, 400_000
    V = rng.standard_normal((m, d)) / math.sqrt(d)
    scale = np.array([2.0**-j for j in range(1, d + 1)])
    N = np.sqrt(((V * scale) ** 2).sum(1) / d)  # Sigma = diag(4^-j) / d
    u = 1 / scale / np.linalg.norm(1 / scale)
    for j, y in product(range(d), (1, -1)):
        x = y * scale[j] * np.eye(d)[j]
        left = y * np.sign(V @ u) * ((V / N[:, None]) @ x).clip(0)
        right = y * np.sign(V @ u) * ((V / N[:, None]) @ x) / 2
        assert abs(left.mean() - right.mean()) < 4 * (left - right).std() / math.sqrt(m)
    turn = np.roll(np.eye(d), 1, axis=0)  # a rotation that changes |v|_Sigma
    assert np.abs(np.sqrt((((V @ turn.T) * scale) ** 2).sum(1) / d) - N).max() > 0.1


def test_bn_10_a_maximum_over_neurons_needs_a_union_bound():
    m, delta, rng = 2000, 0.1, np.random.default_rng(0)
    a = np.abs(rng.standard_normal((400, m))).max(1)
    assert (a > math.sqrt(2 * math.log(1 / delta))).mean() > 0.99  # without m in the logarithm it fails always
    assert (a > math.sqrt(2 * math.log(2 * m / delta))).mean() <= delta


# ---------------------------------------------------------------- CB


def test_cb_1_the_gradient_of_S_is_divided_by_the_losses():
    u, e = np.array([0.3, 1.2, -0.5]), 1e-6
    loss, slope = np.logaddexp(0, -u), 1 / (1 + np.exp(u))
    for i in range(3):
        step = e * np.eye(3)[i]
        rate = -(math.log(np.logaddexp(0, -(u + step)).mean()) - math.log(loss.mean())) / e
        assert_allclose(rate, slope[i] / loss.sum(), rtol=1e-4)
        assert abs(rate - slope[i] / slope.sum()) > 0.01  # as printed


def test_cb_3_the_tail_of_the_loss():
    """l ~ e^u holds as u -> -infinity (small losses), not as u -> +infinity."""
    assert_allclose(math.log1p(math.exp(-30)) / math.exp(-30), 1)
    assert math.log1p(math.exp(30)) / math.exp(30) < 1e-10


def test_cb_4_the_derivative_in_beta():
    rng = np.random.default_rng(0)
    for _ in range(50):
        n, beta, e = int(rng.integers(2, 9)), rng.uniform(0.5, 20), 1e-6
        u = rng.standard_normal(n)

        def S(beta, u=u):
            return -np.log(np.exp(-beta * u).mean()) / beta

        rate = (S(beta + e) - S(beta - e)) / (2 * e)
        p = np.exp(-beta * u) / np.exp(-beta * u).sum()
        assert_allclose(rate, -(p * np.log(p * n)).sum() / beta**2, rtol=1e-4, atol=1e-7)
        assert rate >= -math.log(n) / beta**2 - 1e-8 >= -n / beta**2  # log n is enough where n is printed


def test_cb_5_the_error_of_one_mirror_step():
    g = np.linspace(-1, 1, 2001)  # eta ||z|| <= 1/16
    for eta in np.geomspace(1e-6, 1 / 16, 20):
        error = 2 * np.log1p(2 * eta * g) - 4 * eta * g
        assert (error <= 0).all() and (error >= -4.6 * eta**2).all()


def test_cb_6_the_norm_grows_by_the_margin_times_the_steps():
    """Output layer: <a, abar*> with sqrt(m) |abar*| <= 1 grows by at least gamma_2 eta / m a step: beta >= gamma_2 sum eta."""
    rng = np.random.default_rng(0)
    n, m = 5, 12
    Z = rng.standard_normal((n, m)) + 0.8
    gamma = math.sqrt(m) ** -1 * margins.linear(Dataset(Z, np.ones(n))).lower  # max over sqrt(m)|a| <= 1 of min z.a
    r, total, beta = np.zeros(m), 0.0, 1.0
    for t in range(200):
        assert beta >= gamma * total * (1 - 1e-9)
        q = np.exp(-(Z @ r) / m - (-(Z @ r) / m).max())
        eta = beta * math.sqrt(2) / (np.abs(Z).max() * math.sqrt(t + 1))
        r = r + eta * Z.T @ (q / q.sum())
        total += eta
        beta = max(beta, math.sqrt(m) * np.linalg.norm(r / m))
    assert beta < m * gamma * total  # an extra m, as printed, would be wrong


def test_cb_7_a_sample_is_at_least_as_separated_as_its_law():
    whole = data.disks(n=200, d=2, k=3, seed=0)

    def distance(one):
        return min(np.linalg.norm(x - z) for x in one.X[one.y > 0] for z in one.X[one.y < 0])

    part = Dataset(whole.X[:40], whole.y[:40])
    assert distance(part) >= distance(whole)


def test_cb_9_the_two_norms_and_the_factor_two():
    """F2 margin <= F1 margin in M1 (tilde-F1); in the paper's F1, half of it, the inequality fails without the factor 2."""
    f1, f2 = margins.f1(XOR).lower, margins.f2(XOR).lower
    assert f2 <= f1
    one = Dataset([[1.0]], [1])  # here features are constant, so both are equal up to the share of active neurons
    assert margins.f2(one).lower > margins.f1(one).upper / 2


def test_cb_10_text_and_code_draw_different_disks():
    text, code = data.disks(n=4000, d=4, k=2, seed=0), data.disks(n=4000, d=4, k=2, seed=0, reading="code")
    assert (code.X[:, 0] == 1).all() and not (text.X[:, 0] == 1).all()  # the code's d counts the constant

    def radius(plane):
        return np.linalg.norm(plane[:, None] - data.disk_centres(2), axis=2).min(1) * 5

    assert_allclose(np.median(radius(code.X[:, 1:3])), 0.5, atol=0.03)  # uniform radius
    assert_allclose(np.median(radius(text.X[:, :2])), math.sqrt(0.5), atol=0.03)  # uniform area


def test_cb_11_the_bias_changes_the_margin():
    points = Dataset([[1.0], [2.0]], [1, -1])
    assert margins.f1(points).upper == 0 and margins.f1(points, bias=True).lower > 0.05
