"""Theorems about mirror flow, against identities, small flows integrated here, and the printed formulas."""

from __future__ import annotations

import dataclasses
import math
from functools import cache

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.integrate import solve_ivp

from widemargin import Dataset, InputError, flows, margins
from widemargin.theory import THEOREMS, Huge, arguments, comparators, facts, mirror, mirror_on_runs
from widemargin.theory.guarantee import log_of

RECORDS = ("step", "t_mean", "log_t_mean", "log_risk", "margins", "norm")
XOR = Dataset(np.array([[1, 1], [-1, -1], [1, -1], [-1, 1]]) / math.sqrt(2), [1, 1, -1, -1], "xor")


def logistic(p: np.ndarray) -> np.ndarray:
    return np.logaddexp(0, -p)


def psi_of(p: np.ndarray) -> np.ndarray:
    """l^{-1}(sum_i l(p_i)) along the last axis."""
    total = logistic(p).sum(-1)
    return -np.log(np.expm1(total))


@cache
def mirror_run(seed: int) -> dict[str, np.ndarray]:
    """d ln u / ds = (2/n) sum_i |l'_i| z_i with fixed z, u(0) = 1/m, in the clock tau = ln(1 + s), with int L and int G."""
    rng = np.random.default_rng(seed)
    n, m = (5, 9) if seed % 2 else (3, 4)
    hidden = rng.dirichlet(np.ones(m))
    Z = rng.uniform(-1, 1, (n, m))
    Z += np.maximum(0.25 - Z @ hidden, 0)[:, None]  # then hidden has margin at least 0.25 before the next line
    Z /= np.abs(Z).max()

    def field(tau: float, x: np.ndarray) -> np.ndarray:
        p = Z @ np.exp(x[:m])
        slope = 1 / (1 + np.exp(p.clip(-700, 700)))
        rate = math.exp(tau)  # ds/dtau = 1 + s
        return rate * np.concatenate([2 / n * slope @ Z, [logistic(p).mean(), slope.mean()]])

    start = np.concatenate([np.full(m, -math.log(m)), [0.0, 0.0]])
    tau = np.linspace(0, 60, 481)
    found = solve_ivp(field, (0, 60), start, "LSODA", tau, rtol=1e-10, atol=1e-12)
    assert found.success
    u = np.exp(found.y[:m].T)
    p = u @ Z.T
    comparator = comparators.best_p_bar(Z, temperature=0.01)
    return {
        "Z": Z,
        "s": np.expm1(tau),
        "u": u,
        "p": p,
        "psi": np.array([float(mirror.smooth_margin(math.log(total), "logistic")) for total in logistic(p).sum(1)]),
        "norm": u.sum(1),
        "int_L": found.y[m],
        "int_G": found.y[m + 1],
        "kl": np.array(comparator.kl),
        "gamma": np.array(comparator.margin),
        "comparator": comparator.p,
    }


# ---------------------------------------------------------------- the reference


def test_R_is_the_divergence_of_the_scaled_comparator():
    rng = np.random.default_rng(3)
    p, u0, t, n, gamma = rng.dirichlet(np.ones(6)), rng.exponential(1, 6), 1e5, 7, 0.3
    at = mirror.reference(comparators.kl(p, u0), gamma, t, n, start=float(u0.sum()))
    c = math.log(t * n) / gamma
    assert_allclose(math.exp(at.log_c), c, rtol=1e-12)
    assert_allclose(at.R, comparators.kl(c * p, u0) / c, rtol=1e-12)
    assert_allclose(math.exp(at.log_norm), (8 * at.R + 2) * c + 16 / n, rtol=1e-12)
    x = math.exp(at.log_norm_sharp) / c
    assert_allclose(x - 1 - math.log(x), at.R + 2 / (n * c), rtol=1e-10)


# ---------------------------------------------------------------- small loss


def test_margin_from_a_small_loss_never_exceeds_the_margin():
    rng = np.random.default_rng(4)
    checked = 0
    for _ in range(400):
        n, gamma, C2, C3, C5 = 4, 0.2, *rng.uniform(0.5, 3, 3)
        Z, u = rng.uniform(0, 1, (n, 5)), rng.exponential(40, 5)
        log_risk = float(np.log(np.exp(-Z @ u).mean()))
        found = mirror.margin_from_loss(log_risk, n, float(u.sum()), float(u.sum()) / C2, gamma, C2, C3, C5)
        if found.applies:
            checked += 1
            assert (Z @ u).min() / u.sum() >= found.value
    assert checked > 20
    assert mirror.margin_from_loss(0.0, 4, 9.0, 1.0, 0.2, 1.0, 1.0, 1.0).applies is False


def test_margin_from_the_risk():
    rng = np.random.default_rng(5)
    p = rng.uniform(1, 60, 8)
    found = mirror.margin_from_risk(math.log(logistic(p).mean()), 8, 10.0)
    assert_allclose(found.value, psi_of(p) / 10, rtol=1e-9)
    assert found.applies is True and logistic(p).sum() < math.log(2) and found.value <= p.min() / 10
    assert mirror.margin_from_risk(math.log(0.5), 8, 10.0).applies is False
    assert_allclose(mirror.margin_from_risk(-1000.0, 8, 1.0, "exp").value, 1000 - math.log(8))


# ---------------------------------------------------------------- bounds along flows


@pytest.mark.parametrize("seed", range(4))
def test_budgets_hold_along_flows(seed: int):
    run = mirror_run(seed)
    kl, gamma, n = float(run["kl"]), float(run["gamma"]), len(run["Z"])
    assert gamma > 0
    checked = 0
    for k in range(30, len(run["s"]), 15):
        t = float(run["s"][k])
        found = mirror.norm_budget(kl, gamma, t, n, along=gamma, balanced=True, feature_size=1.0)
        top = run["norm"][: k + 1].max()
        assert top <= found.value and top <= found.numbers["norm_sharp"] <= found.value
        assert 2 * run["int_G"][k] <= 2 * run["int_L"][k] <= found.numbers["spent"]
        assert logistic(run["p"][k]).mean() <= found.numbers["risk"]
        assert math.log(run["norm"][k]) <= log_of(found.numbers["norm_from_growth"])
        checked += 1
    assert checked > 20


@pytest.mark.parametrize("seed", range(4))
def test_early_margins_hold_along_flows(seed: int):
    run = mirror_run(seed)
    kl, gamma, n = float(run["kl"]), float(run["gamma"]), len(run["Z"])
    positive = 0
    for k in range(30, len(run["s"]), 15):
        t, measured = float(run["s"][k]), run["p"][k].min() / run["norm"][k]
        found = mirror.early_margin(kl, gamma, t, n, along=gamma, balanced=True)
        C = run["norm"][k] * gamma / math.log(t * n)
        other = mirror.early_margin(kl, gamma, t, n, norm_factor=float(C))
        if found.value > 0:
            positive += 1
            assert float(found.value) <= found.numbers["with_sharp_norm"] <= measured
            assert float(other.value) <= measured
        else:
            assert found.applies is False
    assert positive > 15


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("safe", [True, False])
def test_the_rate_of_the_smooth_margin_holds_along_flows(seed: int, safe: bool):
    run = mirror_run(seed)
    first = int(np.argmax(run["psi"] >= 0))
    late = slice(first, None)
    divergence = comparators.kl(run["comparator"], run["u"][first] / run["norm"][first])
    slope = 1 / (1 + np.exp(run["psi"][late]))
    found = mirror.smooth_margin_rate(
        run["s"][late],
        run["norm"][late],
        slope,
        divergence,
        float(run["gamma"]),
        len(run["Z"]),
        safe=safe,
        start_psi=0.1,
    )
    assert (found.numbers["series"] <= run["psi"][late] / run["norm"][late]).all()
    assert np.isfinite(found.numbers["series"][1:]).all() and found.value == found.numbers["series"][-1]


def test_the_rate_of_the_smooth_margin_is_its_formula():
    """Slopes 1/n and norm e^s have integrals in closed form; the safe sums lie on the safe side of it."""
    s, n, gamma, kl = np.linspace(0, 2, 4001), 5, 0.4, 1.3
    shift, xi, drag = 2 * math.log(n) + 1, 2 / n**2, (1 - math.exp(-2)) / n**2
    exact = gamma - kl / (2 * xi) - shift * drag / xi
    close, safe = (
        mirror.smooth_margin_rate(s, np.exp(s), np.full_like(s, 1 / n), kl, gamma, n, safe=safe).value
        for safe in (False, True)
    )
    assert_allclose(close, exact, rtol=1e-6)
    assert exact - 0.01 <= float(safe) <= exact
    by_exp = mirror.smooth_margin_rate(s, np.exp(s), np.full_like(s, 1 / n), kl, gamma, n, safe=False, loss="exp").value
    assert_allclose(by_exp, gamma - kl / (2 * xi) - math.log(n) * drag / xi, rtol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_the_steps_of_the_late_bound_hold_along_flows(seed: int):
    """At the warm time norm and divergence are as the proof says, and then the clock of the dual runs fast enough."""
    run = mirror_run(seed)
    kl, gamma, n, share = float(run["kl"]), float(run["gamma"]), len(run["Z"]), 0.1
    game = comparators.best_p_bar(run["Z"]).margin
    best = max(game, gamma) + 1e-9
    found = mirror.late_margin(kl, gamma, n, best=best, share=share)
    gap = (1 - share) * gamma / 2
    k = int(np.argmax(run["s"] >= float(found.numbers["warm_time"])))
    assert 0 < k < len(run["s"]) - 50, "the run must go past the warm time"
    norm, direction = run["norm"], run["u"][k] / run["norm"][k]
    assert (
        mirror.offset(n, "logistic") / gap <= norm[k] <= found.numbers["warm_norm"] * 1.1
    )  # the record is a little later
    assert comparators.kl(run["comparator"], direction) <= found.numbers["warm_kl"]
    omega = 1 / (1 + np.exp(run["psi"][k:])) / n
    xi = np.append(0, np.cumsum((omega[1:] + omega[:-1]) / 2 * np.diff(run["s"][k:])))
    assert (np.log(norm[k:] / norm[k]) <= 2 * xi * (best + gap) * 1.01 + 1e-9).all()
    assert (run["psi"][k:] <= best * norm[k:]).all()


def test_the_late_margin_is_reached_at_the_time_it_needs():
    """Equal features: u grows with margin gamma, psi is known, so the time that is asked for can be compared with the flow."""
    n, gamma = 2, 0.5
    found = mirror.late_margin(0.0, gamma, n, best=gamma, share=0.5)
    assert isinstance(found.numbers["time"], Huge)
    log_t = found.numbers["time"].log
    at = mirror.reference(0.0, gamma, found.numbers["time"], n)
    K, gap = found.numbers["warm_kl"], gamma / 4
    goal = math.log(gamma) + math.log(found.numbers["warm_norm"]) + K * (gamma + gap) / gap
    assert_allclose(at.log_psi, goal, rtol=1e-12)  # psi(t) is what the last step of the proof needs
    assert log_t > math.exp(goal)
    # then gamma - gap - K (best + gap) / ln(||u_t|| / N) is the promised share
    log_ratio = at.log_psi - math.log(gamma) - math.log(found.numbers["warm_norm"])
    assert_allclose(gamma - gap - K * (gamma + gap) / log_ratio, 0.5 * gamma, rtol=1e-9)
    assert found.applies is None and mirror.late_margin(0.0, gamma, n, 1e9, best=gamma).applies is False


def test_late_times_are_monotone_and_never_overflow():
    def loglog(value: object) -> float:
        return value.loglog if isinstance(value, Huge) else math.log(math.log(value))

    for convention in arguments.CONVENTIONS:
        times = [
            mirror.late_margin(kl, 0.1, 50, convention=convention).numbers["time"] for kl in (0.5, 2, 40, 1e4, 1e8)
        ]
        assert np.all(np.diff([loglog(one) for one in times]) > 0)
        times = [mirror.late_margin(3, 0.1, n, convention=convention).numbers["time"] for n in (2, 10, 10**4, 10**9)]
        assert np.all(np.diff([loglog(one) for one in times]) > 0)
        times = [mirror.late_margin(3, g, 50, convention=convention).numbers["time"] for g in (0.9, 0.1, 1e-3, 1e-9)]
        assert np.all(np.diff([loglog(one) for one in times]) > 0)
    # The derived time depends on n through logarithms only.
    assert loglog(mirror.late_margin(3, 0.1, 10**9).numbers["time"]) < loglog(
        mirror.late_margin(3, 0.1, 10**4, convention="printed").numbers["time"]
    )


# ---------------------------------------------------------------- printed forms


def test_printed_forms():
    kl, gamma, t, n = 1.5, 0.25, 1e12, 30
    c = math.log(t * n) / gamma
    R = kl + math.log(c) - 1 + 1 / c
    budget = mirror.norm_budget(kl, gamma, t, n, convention="printed")
    assert_allclose(budget.value, (8 * R + 2) * c + 32, rtol=1e-12)
    assert_allclose(budget.numbers["spent"], R * c + 2, rtol=1e-12)
    early = mirror.early_margin(kl, gamma, t, n, convention="printed")
    assert_allclose(early.value, gamma / (2 * (1 + R)), rtol=1e-12)
    needed = next(one for one in early.assumptions if one.text.startswith("t >="))
    assert needed.holds is (t >= (20 * R / gamma) ** 4)
    assert mirror.early_margin(kl, gamma, 10.0, n, convention="printed").applies is False
    assert mirror.early_margin(kl, gamma, t, n, norm_factor=3.0, convention="printed").value == gamma / 6
    late = mirror.late_margin(0.01, gamma, n, convention="printed")
    assert late.value == gamma / 16
    assert_allclose(float(late.numbers["time"]), math.e + math.exp(math.exp(4 * n * 0.01 / gamma)), rtol=1e-12)
    assert {one.convention for one in (budget, early, late)} == {"printed"}
    net = mirror.margin_of_product_net(gamma, kl, t, n, 1e-9, 2.0, 0.0, convention="printed")
    assert_allclose(net.value, gamma / (4 * (1 + kl)), rtol=1e-12)
    bracket = math.log(t * n) * (8 * kl + 2) + 32
    limit = next(one for one in net.assumptions if one.text.startswith("||p||_inf"))
    assert limit.text == f"||p||_inf <= {gamma**3 / (8 * bracket**2):.6g}" and limit.holds
    size = np.linspace(2, 50, 6)
    rate = mirror.smooth_margin_rate(
        np.arange(6.0), size, np.full(6, 0.1), kl, gamma, n, safe=False, convention="printed"
    )
    xi, shift = 0.1 / n * 5, 2 * math.log(n) + 1
    assert_allclose(rate.value, gamma - shift / 50 - kl / xi, rtol=1e-12)
    assert_allclose(rate.numbers["A.3"][-1], gamma - shift / 50 - (kl + math.log(50) - 1 + 1 / 50) / xi, rtol=1e-12)


def test_the_printed_theorem_of_the_shallow_network():
    gamma, d, n, delta = 0.2, 3, 40, 0.1
    found = mirror.margin_of_normalized_net(gamma, d, n, delta, 1e6, convention="printed")
    assert_allclose(found.value, gamma / (32 * d * math.log(1 / gamma)), rtol=1e-12)
    one = 1024 * math.log(1e6 * n) ** 2 * d**2 / gamma**8
    two = 1024 * math.log(2 * n / (delta * gamma)) ** 2 * (8 / gamma) ** (2 * d - 2)
    assert_allclose(found.numbers["width"], max(one, two), rtol=1e-12)
    assert_allclose(found.numbers["time"], 20 * (d - 1) * math.log(48 / gamma) / gamma, rtol=1e-12)
    assert mirror.margin_of_normalized_net(gamma, d, n, delta, phase="late", convention="printed").value == gamma / 32


# ---------------------------------------------------------------- product networks


def test_the_theorem_of_product_networks_is_a_composition():
    gamma, kl, t, n, p_max, C1 = 0.3, 2.0, 1e20, 20, 1e-9, 1.0
    found = mirror.margin_of_product_net(gamma, kl, t, n, p_max, C1, 0.0, balanced=True)
    budget = mirror.norm_budget(kl, gamma / 2, t, n)
    drift = mirror.feature_drift(p_max, C1, 0.0, budget.numbers["spent"] / 2, float(budget.value))
    assert_allclose(found.numbers["drift"], drift.value, rtol=1e-10)
    assert_allclose(found.value, float(mirror.early_margin(kl, gamma / 2, t, n).value) / 2, rtol=1e-12)
    assert found.applies is None  # that it was gradient flow is not checked here
    assert mirror.margin_of_product_net(gamma, kl, t, n, 0.5, C1, 0.0).applies is False
    assert mirror.margin_of_product_net(gamma, kl, 1.0, n, p_max, C1, 0.0).applies is False
    late = mirror.margin_of_product_net(gamma, kl, None, n, p_max, 0.0, 0.0, phase="late", balanced=True)
    assert late.value == gamma / 4 and late.numbers["drift"] == 0 and late.applies is None
    with pytest.raises(InputError, match="phase"):
        mirror.margin_of_product_net(gamma, kl, t, n, p_max, C1, 0.0, phase="soon")


def test_the_chain_of_the_shallow_network():
    gamma, d, n, delta = 0.25, 3, 50, 0.05
    early = mirror.margin_of_normalized_net(gamma, d, n, delta)
    kl, t = comparators.comparator_kl(gamma, d), early.numbers["time"]
    m = float(early.numbers["width"])
    inside = mirror.margin_of_product_net(gamma / 4, kl, t, n, 1 / math.sqrt(m), 1.0, 0.0)
    assert_allclose(inside.value, early.value, rtol=1e-9)
    assert inside.numbers["drift"] <= gamma / 8 * (1 + 1e-9)  # the width is what the drift needs, or more
    late = mirror.margin_of_normalized_net(gamma, d, n, delta, phase="late")
    assert_allclose(late.value, gamma / 32, rtol=1e-12)
    assert isinstance(late.numbers["time"], Huge) and log_of(late.numbers["width"]) > log_of(early.numbers["width"])
    assert mirror.margin_of_normalized_net(gamma, d, n, delta, m=100).applies is False
    assert mirror.margin_of_normalized_net(gamma, d, n, delta, m=1e300, radius=2.0).applies is False
    widths = [log_of(mirror.margin_of_normalized_net(gamma, k, n, delta).numbers["width"]) for k in (2, 5, 100, 5000)]
    assert np.all(np.diff(widths) > 0) and np.isfinite(widths).all()
    margins_ = [float(mirror.margin_of_normalized_net(g, d, n, delta).value) for g in (0.05, 0.1, 0.5)]
    assert np.all(np.diff(margins_) > 0)


def test_features_move_no_more_than_the_bound():
    net = flows.Normalized(2, 30)
    run = flows.train(
        XOR, net, flows.GD(lr=0.02), stop=600, record=flows.Record(["t_mean", "weights"], times=list(range(0, 601, 5)))
    )
    signs = np.sign(run["W_a"][0, 0] * run["W_b"][0, 0])
    Z = np.stack([comparators.signed_features(XOR, V[0], signs) for V in run["W_V"]])  # (T, n, m)
    u = np.abs(run["W_a"] * run["W_b"])[:, 0]  # (T, m)
    p = np.einsum("tnm,tm->tn", Z, u)
    G = (1 / (1 + np.exp(p))).mean(1)
    t = run["t_mean"][:, 0]
    integral = float(((G[1:] + G[:-1]) / 2 * np.diff(t)).sum())
    size = max(float(mirror.gradient_constants(V[0], XOR.X).value) for V in run["W_V"])
    q = comparators.best_p_bar(Z[0], temperature=0.05)
    bound = mirror.feature_drift(q.largest, size, 0.0, integral, float(u.sum(1).max()))
    drift = np.abs((Z[-1] - Z[0]) @ q.p).max()
    assert 0 < drift <= bound.value and bound.vacuous is False
    with pytest.raises(InputError, match="C1"):
        mirror.feature_drift(0.1, -1.0, 0.0, 1.0, 1.0)


def test_gradient_constants_against_automatic_differentiation():
    rng = np.random.default_rng(6)
    V, X = rng.standard_normal((5, 3)) * 1.7, rng.standard_normal((7, 3)) / 2
    found = mirror.gradient_constants(V, X)

    def features(W: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (x @ (W / W.norm(dim=1, keepdim=True)).T).clamp_min(0)

    J = torch.stack(
        [torch.autograd.functional.jacobian(lambda W, x=x: features(W, x), torch.tensor(V)) for x in torch.tensor(X)]
    )
    J = J.reshape(len(X), len(V), -1).numpy()  # (n, m, parameters)
    inner = np.abs(np.einsum("ijp,rkp->ijrk", J, J))
    same = np.einsum("ijrj->ijr", inner)
    assert_allclose(found.value, same.max(), rtol=1e-10)
    off = inner.copy()
    for j in range(len(V)):
        off[:, j, :, j] = 0
    assert off.max() == found.numbers["C2"] == 0
    assert found.value <= found.numbers["bound"]
    with pytest.raises(InputError, match="zero"):
        mirror.gradient_constants(np.zeros((2, 3)), X)


# ---------------------------------------------------------------- comparators at the start


def test_the_best_comparator_of_given_units():
    rng = np.random.default_rng(7)
    V, beta = rng.standard_normal((300, 2)), rng.choice([-1.0, 1.0], 300)
    Z = comparators.signed_features(XOR, V, beta)
    sharp, soft = comparators.best_p_bar(Z), comparators.best_p_bar(Z, temperature=0.05)
    # The LP with both signs of every unit bounds the one with given signs.
    both = margins.frozen(XOR, V)
    assert 0 < soft.margin <= sharp.margin * (1 + 1e-9) <= both.upper * (1 + 1e-8)
    assert soft.kl < sharp.kl and soft.largest < sharp.largest
    # Nothing random beats the regularised value.
    value = soft.margin - 0.05 * soft.kl
    others = rng.dirichlet(np.full(300, 0.3), 2000)
    assert max((Z @ p).min() - 0.05 * comparators.kl(p, np.full(300, 1 / 300)) for p in others) <= value + 1e-6
    assert value >= sharp.margin - 0.05 * sharp.kl - 1e-6
    for seed in range(4):  # features without symmetry: little temperature, nearly the value of the LP
        Z = mirror_run(seed)["Z"]
        assert comparators.best_p_bar(Z, temperature=1e-3).margin >= 0.95 * comparators.best_p_bar(Z).margin > 0


# ---------------------------------------------------------------- on runs


def test_on_a_run_of_a_scalar_network():
    run = flows.train(
        XOR,
        flows.Scalar(2, 60),
        flows.GradientFlow(),
        loss="logistic",
        stop=flows.Stop(time=1e4, clock="mean"),
        record=RECORDS,
    )
    known = facts(XOR, run)
    found = {id: THEOREMS[id].apply(known) for id in ("UH-7", "UH-12", "UH-13", "UH-15", "UH-16", "UH-23")}
    assert found["UH-7"].applies and found["UH-7"].value <= known.normalized("M5")
    assert found["UH-12"].applies and run["norm"].max() ** 2 / 2 <= found["UH-12"].value
    assert found["UH-13"].applies and 0 < float(found["UH-13"].value) <= known.normalized("M5")
    assert found["UH-15"].applies is False  # too early
    early, late = found["UH-16"]
    assert early.applies and 0 < float(early.value) <= known.normalized("M4") and late.applies is False
    for one in (early, late, *found["UH-23"]):
        assert one.to_dict()["id"] == one.id and str(one)


def test_on_a_run_of_a_normalized_network_and_on_data_alone():
    run = flows.train(XOR, flows.Normalized(2, 40), flows.GD(lr=0.05), stop=500, record=RECORDS)
    known = facts(XOR, run)
    early, _ = THEOREMS["UH-16"].apply(known)
    assert early.applies is False  # 40 units: features could move too much for the theorem
    assert THEOREMS["UH-22"].apply(known).value <= 1 + 1e-3
    assert THEOREMS["UH-12"].apply(known) is None
    for lost in (np.nan, np.inf, 0.0):  # features without a direction have no gradient
        ends = {name: lost * value for name, value in run.final.items()}
        gone = facts(XOR, dataclasses.replace(run, final=ends))
        assert THEOREMS["UH-22"].apply(gone) is None
        with np.errstate(all="ignore"):
            assert gone.normalized("M4") is None
    alone = facts(Dataset(3 * XOR.X, XOR.y, "far"))  # rescaled to the unit ball
    width = THEOREMS["UH-21"].apply(alone)
    gamma = margins.f1(XOR).lower
    assert_allclose(float(width.value), float(comparators.width_for_comparator(gamma, 2, 4, 0.05).value), rtol=1e-5)
    assert all(one.applies is None and not one.vacuous for one in THEOREMS["UH-23"].apply(alone))
    assert THEOREMS["UH-16"].apply(alone) is None


def test_the_inverse_of_the_loss_agrees_with_that_of_the_training_room():
    grid = np.concatenate([np.linspace(-700, 3, 500), [-30.0, -7.0, 6.0]])
    for name in mirror_on_runs.LOSSES:
        mine = [mirror.smooth_margin(float(x), name) for x in grid]
        theirs = flows.losses.as_loss(name).inverse(torch.tensor(grid)).numpy()
        assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12)


def test_bad_input():
    with pytest.raises(InputError, match="gamma"):
        mirror.norm_budget(1.0, -0.1, 10.0, 5)
    with pytest.raises(InputError, match="divergence"):
        mirror.early_margin(-1.0, 0.1, 10.0, 5)
    with pytest.raises(InputError, match="exceed 1"):
        mirror.norm_budget(1.0, 0.1, 0.1, 5)
    with pytest.raises(InputError, match="convention"):
        mirror.norm_budget(1.0, 0.1, 10.0, 5, convention="typed")
    with pytest.raises(InputError, match="increasing"):
        mirror.smooth_margin_rate([1.0, 0.5], [1.0, 1.0], [0.1, 0.1], 1.0, 0.1, 4)
