"""The constants of the batch normalisation theorems: random tests, coverage, and every inequality of the proofs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from widemargin import Dataset, InputError, data, flows, margins
from widemargin.theory import THEOREMS, facts
from widemargin.theory import normalized as bn


def centred(n: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points with mean 0 and largest norm 1, and their covariance."""
    X = np.random.default_rng(seed).standard_normal((n, d))
    X -= X.mean(axis=0)
    X /= np.linalg.norm(X, axis=1).max()
    return X, X.T @ X / n


@pytest.mark.parametrize("eps", [0.0, 0.3])
def test_normaliser_inequalities(eps: float):
    rng = np.random.default_rng(0)
    X, S = centred(9, 4, 1)
    for _ in range(200):
        u, v = rng.standard_normal((2, 4)) * rng.uniform(0.01, 10)
        found = bn.normalizer_lipschitz(u, v, S, eps)
        got = found.numbers
        assert found.applies and got["difference"] <= found.value * (1 + 1e-12) <= got["distance"] * (1 + 1e-9)
        assert got["Sigma_v"] <= got["v_Sigma"] * (1 + 1e-12) <= got["N_v"] * (1 + 1e-9)
        assert_allclose(got["v_Sigma"] ** 2, ((X @ v) ** 2).mean())
    assert bn.normalizer_lipschitz(u, v, 2 * np.eye(4)).applies is False
    with pytest.raises(InputError, match="Sigma"):
        bn.normalizers(np.ones((2, 3)), S)


def test_normaliser_bound():
    assert bn.normalizer_bound(0.04).value == 5.0 and bn.normalizer_bound(0.04).applies
    assert bn.normalizer_bound(0.0, 0.25, 50, 200).value == 10.0 and bn.normalizer_bound(0.0, 0.25, 50, 200).applies
    assert bn.normalizer_bound(0.0, 0.25, 50, 4).applies is False and bn.normalizer_bound(0.0).applies is False
    _, S = centred(300, 120, 2)
    rng, over = np.random.default_rng(3), 0
    least = float(np.linalg.eigvalsh(S)[0])
    found = bn.normalizer_bound(0.0, least, 50, 120, 0.05)
    for _ in range(50):
        over += (1 / bn.normalizers(rng.standard_normal((50, 120)) / math.sqrt(120), S)).max() > found.value
    assert over == 0
    assert (1 / bn.normalizers(rng.standard_normal((50, 120)), S, 0.3)).max() <= bn.normalizer_bound(0.3).value


@pytest.mark.parametrize("c", [0.2, 0.5, 0.9])
def test_perturbation_lemmas(c: float):
    """Lemmas B.2 and D.1 for random moves of the inner weights up to beta_V."""
    rng = np.random.default_rng(int(10 * c))
    X, S = centred(12, 3, 5)
    for trial in range(40):
        eps = (0.0, 0.1)[trial % 2]
        V = rng.standard_normal((6, 3)) * rng.uniform(0.3, 3)
        N = bn.normalizers(V, S, eps)
        eps_N, eps_V = float((1 / N).max()), float(np.linalg.norm(V, axis=1).max())
        base = bn.perturbation_constants(eps_N, eps_V, c, centred=True)
        k = base.numbers
        move = rng.standard_normal(V.shape)
        j = int(N.argmin())
        if trial % 3 == 0:
            move[np.arange(6) != j] = 0
            move[j] = -V[j]
        W = V + move / np.linalg.norm(move) * k["beta_V"] * rng.uniform(0.5, 1)
        s, M = np.linalg.norm(W - V, axis=1), bn.normalizers(W, S, eps)
        assert (k["rho_N"] / N * (1 + 1e-9) >= 1 / M).all()
        assert (np.abs(1 / M - 1 / N) <= k["beta_N"] * s * (1 + 1e-9) + 1e-12).all()
        assert (np.abs(X @ (V / N[:, None]).T) <= k["eps_ratio"]).all()
        for i in range(6):
            P = np.eye(3) - np.outer(S @ W[i], W[i]) / M[i] ** 2
            assert (
                np.linalg.norm(X @ P.T, axis=1).max()
                <= base.value
                <= bn.perturbation_constants(eps_N, eps_V, c, convention="printed").value
            )
        omega = V / N[:, None] + 0.1 * rng.standard_normal(V.shape)
        for i in range(6):
            e = float(np.linalg.norm(V[i] / N[i] - omega[i]))
            one = bn.preactivation_bounds(float(s[i]), eps_N, eps_V, c, e, centred=True)
            new, old, far = X @ W[i] / M[i], X @ V[i] / N[i], X @ omega[i]
            assert one.applies and np.abs(new - old).max() <= one.value + 1e-9
            assert np.abs(new).max() <= one.numbers["new"] + 1e-9
            assert np.abs(new - far).max() <= one.numbers["against_effective"] + 1e-9
            assert np.abs(far).max() <= one.numbers["effective"] + 1e-9
            assert np.abs((new > 0) * new - (far > 0) * far).max() <= one.numbers["activation"] + 1e-9
    assert bn.perturbation_constants(1.0, c=1.5).applies is False
    assert bn.preactivation_bounds(9.0, 1.0).applies is False
    assert bn.preactivation_bounds(0.1, 0.5, convention="printed").applies is False  # E-BN-7: needs eps_N >= 1


def test_instantiation_of_the_paper():
    """c = 1/2, eps_V = 2, eps_N >= 1: beta_Pi <= 9 eps_N by the sharper form, while the printed one is 8 eps_N + 2."""
    for eps_N in (1.0, 1.5, 4.0):
        assert_allclose(bn.perturbation_constants(eps_N).value, 4 * eps_N + 2)
        assert_allclose(bn.perturbation_constants(eps_N, convention="printed").value, 8 * eps_N + 2)
        K = bn.preactivation_bounds(0.0, eps_N, convention="printed").numbers["K"]
        assert K / (2 * eps_N) <= 3 * eps_N**2 and K / (2 * eps_N) + 2 * eps_N <= 5 * eps_N**2


def test_coverage_at_the_start():
    """BN-15 and BN-16 over draws of the initial weights."""
    m, d, n, delta, draws = 40, 80, 10, 0.2, 300
    X, S = centred(n, d, 3)
    rng = np.random.default_rng(0)
    norms, outputs, sharp, long, rows = 0, 0, 0, 0, 0
    bound = bn.initial_norm_bounds(m, d, delta, law=True)
    for _ in range(draws):
        a, V = rng.standard_normal(m) / math.sqrt(m), rng.standard_normal((m, d)) / math.sqrt(d)
        N = bn.normalizers(V, S)
        found = bn.initial_output_bound(float((1 / N).max()), n, delta, law=True, centred=True, normal=True)
        p = np.abs((X @ (V / N[:, None]).T).clip(0) @ a).max()
        size = np.linalg.norm(V, axis=1)
        norms += np.linalg.norm(a) > bound.value
        long += size.max() > bound.numbers["v_most"]
        rows += size.max() > 2 or (1 / size).max() > 5
        outputs += p > found.value
        sharp += p > found.numbers["gaussian"]
    room = 3 * math.sqrt(delta * (1 - delta) * draws)
    assert norms <= delta * draws + room and long <= delta * draws + room and rows <= 2 * delta * draws
    assert outputs <= 4 * delta * draws and sharp <= 2 * delta * draws + room
    assert bound.applies and bn.initial_norm_bounds(1000, 10, delta).applies is False
    assert bn.initial_output_bound(1.0, n, delta, centred=False).applies is False


def test_dyadic_margin():
    """Golden ratios of the infinite network with coefficients sgn(u . v). Averaging over the sign of v_j first leaves
    |v_j| 1[|u_j v_j| > |rest|], which has little noise."""
    for d, golden in ((2, 0.9256), (4, 1.116), (6, 1.348)):
        found = bn.dyadic_margin(d, wide=True)
        linear = found.numbers["gamma_linear"]
        assert_allclose(linear, margins.linear(data.dyadic(d)).lower, rtol=1e-6)
        v = np.random.default_rng(d).standard_normal((400_000, d)) / math.sqrt(d)
        scale = 2.0 ** -np.arange(1, d + 1)
        own = v / scale
        decides = np.abs(own) > np.abs(own.sum(axis=1, keepdims=True) - own)
        ratio = np.abs(v) * decides * scale / np.sqrt((v**2 * scale**2 / d).sum(axis=1))[:, None] / 2
        assert_allclose(ratio.mean(axis=0).min() / linear, golden, rtol=0.02)
        inside = np.abs(np.linalg.norm(v, axis=1) - 2.25) <= 1.75
        assert (ratio * inside[:, None]).mean(axis=0).min() >= found.value and found.applies
    assert_allclose(bn.dyadic_margin(2).numbers["gamma_linear"], 0.2236068, rtol=1e-6)
    assert bn.dyadic_margin(600).numbers["log_gamma_linear"] < -400
    assert bn.dyadic_margin(4, wide=False).applies is False
    assert THEOREMS["BN-9"].apply(facts(data.dyadic(3))) is not None


# ---------------------------------------------------------------- the theorems


WIDE = [(gamma, eps_N) for gamma in (1e-3, 0.1, 0.5) for eps_N in (1.0, 2.0, 10.0)]


@pytest.mark.parametrize(("gamma", "eps_N"), WIDE)
def test_derived_constants_satisfy_every_inequality_of_the_proofs(gamma: float, eps_N: float):
    n, t, delta, d = 1000, 1e6, 0.01, 2000
    for factor in (1.0, 100.0, 1e6):
        m = factor * math.exp(bn.least_width(gamma, eps_N, n, t, delta)) * (1 + 1e-9)
        R = bn.radius(gamma, m, eps_N)
        assert R >= 8
        sgd = bn.sgd_error(gamma, eps_N, m, n, d, t, delta)
        slack = bn.proof_slack(gamma, eps_N, m, n, t, delta, R, sgd.numbers["eta"])
        assert min(slack.values()) >= -1e-9, slack
        assert_allclose(4 * R / (sgd.numbers["eta"] * gamma * math.sqrt(m)), 2**18 * eps_N**4 / gamma**2)
        assert_allclose(sgd.value, 8 * (2**18 * eps_N**4 / gamma**2 + math.log(1 / delta)) / t)
        assert sgd.applies is None  # the margin and the law were not checked
        gd = bn.gd_error(gamma, eps_N, m, n, d, t, delta)
        slack = bn.proof_slack(gamma, eps_N, m, n, t, delta, 8.0, gd.numbers["eta"])
        assert min(slack.values()) >= -1e-9, slack
        assert_allclose(4 * 8 / (gd.numbers["eta"] * gamma * math.sqrt(m)), 2**18 * eps_N**4 / gamma**2)
        assert gd.applies is None
        for found in (
            bn.misalignment_bound(R, gamma, eps_N, m, n, d, delta),
            bn.alignment_bound(R, gamma, eps_N, m, n, d, delta),
        ):
            assert found.applies is None, found.assumptions


@pytest.mark.parametrize(("gamma", "eps_N"), WIDE)
def test_printed_constants_do_not_fit_together(gamma: float, eps_N: float):
    """E-BN-3: R < 8 at the printed width. E-BN-4: the printed step breaks the radius, and 4R/(eta gamma sqrt m) = 112/27."""
    n, t, delta = 100, 100, 0.1
    m = math.exp(bn.least_width(gamma, eps_N, n, t, delta, "printed"))
    R = bn.radius(gamma, m, eps_N)
    log = math.log(5 * n * t / delta)
    assert_allclose(R, 2 ** (29 / 6) * log**0.25 / (27 * math.sqrt(eps_N)))
    assert R < 8
    found = bn.sgd_error(gamma, eps_N, m, n, 10_000, t, delta, convention="printed")
    slack = bn.proof_slack(gamma, eps_N, m, n, t, delta, R, found.numbers["eta"])
    assert slack["R >= 8"] < 0 and slack["printed radius"] < -1e4
    assert_allclose(4 * R / (found.numbers["eta"] * gamma * math.sqrt(m)), 112 / 27)
    assert_allclose(found.value, 2**15 * eps_N**4 / (gamma**2 * t) + 4 * math.log(10) / t)
    assert bn.sgd_error(gamma, eps_N, m, n, 10_000, t, delta).applies is False  # too narrow for the derived constants


def test_conventions_of_gradient_descent():
    args = (0.1, 1.0, 1e20, 10_000, 1000, 1e9, 0.05)
    printed, proof, ours = (bn.gd_error(*args, convention=one) for one in ("printed", "proof", "derived"))
    spread = 6 * math.sqrt(math.log(40) / 20_000)
    assert_allclose(printed.value, 2**17 * 1e20 ** (1 / 3) / (0.1 ** (1 / 3) * 1e9 * 100) + 4 * math.log(20) / 1e9)
    assert_allclose(proof.value, 2**19 * 100 / 1e9 + 2 * 2560 / 10 + spread)
    assert_allclose(ours.value, 2**19 * 100 / 1e9 + 150 * 1e10 / 100 + spread)
    assert bn.gd_error(*args, eta=1.0).applies is False and bn.sgd_error(*args, eta=1.0).applies is False
    assert bn.gd_error(0.1, 0.5, 1e20, 100, 1000, 10).applies is False  # eps_N < 1
    assert bn.sgd_error(0.1, 1.0, 1e20, 100, 10, 10).applies is False  # m > delta exp(d/8)


def test_misalignment_on_networks_inside_gamma():
    """The left side of Lemma D.2 itself, at random points of Gamma, is below the polynomial in R."""
    rng = np.random.default_rng(0)
    m, d, n, delta = 60, 100, 8, 0.2
    X, S = centred(n, d, 1)
    a, V = rng.standard_normal(m) / math.sqrt(m), rng.standard_normal((m, d)) / math.sqrt(d)
    eps = 0.5
    N = bn.normalizers(V, S, eps)
    eps_N = max(1.0, float((1 / N).max()))
    assert np.linalg.norm(a) <= 2 and np.linalg.norm(V, axis=1).max() <= 2
    most = 0.0
    for R in (0.5, 2.0, 8.0):
        alpha = 4 * eps_N**2 * R**2
        for _ in range(20):
            da, dc = rng.standard_normal((2, m))
            size = math.hypot(np.linalg.norm(da), np.linalg.norm(dc))
            a1, c1 = a + R * da / size, 1 + R * dc / size
            D = rng.standard_normal((m, d))
            V1 = V + D / np.linalg.norm(D) / (2 * eps_N)
            N1 = bn.normalizers(V1, S, eps)
            pre = X @ (V1 / N1[:, None]).T
            on = c1 * pre > 0
            first = np.abs((c1 * pre).clip(0) @ a)
            second = np.abs((on * pre * a1) @ (c1 - 1))
            inner = X @ (V1 - V).T - pre / N1 * ((V1 - V) @ S * V1).sum(axis=1)  # <v' - v, (I - Sigma v v'/N^2) x>
            third = alpha * np.abs((on * inner / N1) @ (a1 * c1))
            total = float((first + second + third).max())
            assert total <= bn.misalignment(R, eps_N, n, delta)
            most = max(most, total / bn.misalignment(R, eps_N, n, delta))
    assert most > 0
    assert bn.misalignment(2.0, 1.0, n, delta) - bn.misalignment(2.0, 1.0, n, delta, "printed") == 72 * 4
    assert bn.misalignment_bound(1e6, 0.1, 1.0, 1e20, n, 1000).applies is False
    assert bn.alignment_bound(4.0, 0.1, 1.0, 1e20, n, 1000).applies is False


def test_martingale_transfer_covers():
    """g_s Bernoulli with a mean that depends on the past; the bound fails at most delta of the time."""
    rng, delta, failed = np.random.default_rng(0), 0.1, 0
    for _ in range(400):
        mean, observed, expected = 0.5, 0.0, 0.0
        for _ in range(60):
            seen = float(rng.random() < mean)
            observed, expected = observed + seen, expected + mean
            mean = 0.02 if seen == 0 else 0.6
        failed += expected > bn.martingale_transfer(observed, delta).value
    assert failed <= delta * 400
    ours, printed = (bn.martingale_transfer(3.0, 0.1, convention=one).value for one in ("derived", "printed"))
    assert_allclose(printed, 12 + 4 * math.log(10))
    assert_allclose(ours, (3 + math.log(10)) / (3 - math.e))
    assert ours < printed and bn.martingale_transfer(3.0, fresh=False).applies is False


def test_on_a_run():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((12, 4))
    one = Dataset(X / np.linalg.norm(X, axis=1).max() / 2, np.sign(X[:, 0]), "signs")
    net = flows.BatchNorm.with_data(one.X, 16, eps=0.01)
    run = flows.train(one, net, flows.GD(lr=0.1), loss="logistic", stop=20, seed=1)
    known = facts(one, run)
    found = THEOREMS["BN-11"].apply(known)
    assert found.applies is False and THEOREMS["BN-10"].apply(known) is None  # width 16 is far too small; no SGD
    V, start = known.start["V"], known.start
    S = np.cov(one.X.T, bias=True)
    N = bn.normalizers(V, S, 0.01)
    got = THEOREMS["BN-15"].apply(known)
    assert_allclose(got.value, 4 * (1 / N).max() * math.log(12 / 0.05))
    assert got.assumptions[1].holds
    p = ((one.X - one.X.mean(axis=0)) @ (V / N[:, None]).T).clip(0) @ start["a"]
    assert np.abs(p).max() <= got.value
    assert THEOREMS["BN-5"].apply(known).value >= (1 / N).max()
    assert THEOREMS["BN-16"].apply(known).applies is False
    H = ((one.X - one.X.mean(axis=0)) @ (V / N[:, None]).T).clip(0)
    gamma = margins.random_features(Dataset(np.hstack([H, np.zeros((12, 0))]), one.y, "h"), np.eye(16)).lower
    assert f"gamma = {gamma:.4g}"[:14] in found.assumptions[0].detail
    assert THEOREMS["BN-5"].apply(facts(one)) is None
