"""Steepest descent in any norm: the margin in its own norm never falls (WM-5, WM-6), linear limits and their rate (WM-7)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from checks import repeated
from widemargin import Dataset, InputError, flows, margins, theory
from widemargin.flows import geometry, losses

RULES = {
    "linf": flows.SignDescent,
    "l1": flows.CoordinateDescent,
    "spectral": flows.Spectral,
    "l2": lambda lr, **more: flows.Steepest(lr, norm="l2", **more),
}
KEPT = ["weights", "step", "psi", "margin", "log_risk", "t_mean", "log_norm"]


def points(n: int = 8, d: int = 5, seed: int = 0) -> Dataset:
    return Dataset(np.random.default_rng(seed).standard_normal((n, d)), np.resize([1.0, -1.0], n))


def trained(rule, net, where, steps, loss="exp", seed=0, every=1):
    record = flows.Record(KEPT, times=list(range(0, steps + 1, every)))
    return flows.train(where, net, rule, loss=loss, stop=steps, record=record, seed=seed)


def parameters(run, names):
    return [{name: torch.as_tensor(run[f"W_{name}"][k]) for name in names} for k in range(len(run.t))]


def followed(rule, net, where, length, look=None):
    """psi and W after every step of a path of this length, from the first with psi > 0 on; `look` sees W."""
    problem, W = flows.pose(net, where, "exp"), {k: torch.as_tensor(v) for k, v in net.init(1, 0).items()}
    state, found = rule.init(problem, W), []
    for _ in range(int(length / rule.lr)):
        W, state = rule.step(problem, W, state)
        psi = losses.psi(problem.loss, problem.margins(W)).item()
        if found or psi > 0:
            found.append((psi, W if look is None else look(W)))
    assert len(found) > 30
    return found


def deepest(found, norm, degree, names=None):
    """How far psi / N^L falls below its best, as a share."""
    size = [geometry.size({k: W[k] for k in names or W}, norm).item() for _, W in found]
    f = np.array([psi for psi, _ in found]) / np.array(size) ** degree
    return float((1 - f / np.maximum.accumulate(f)).max())


# ---------------------------------------------------------------- norms and directions


def test_a_steepest_direction_has_norm_one_and_reaches_the_dual_norm():
    torch.manual_seed(0)
    G = {"A": torch.randn(3, 4, 6).double(), "a": torch.randn(3, 5).double()}
    for norm in geometry.NORMS:
        s = geometry.steepest(G, norm)
        inner = sum((G[k] * s[k]).flatten(1).sum(1) for k in G)
        torch.testing.assert_close(geometry.size(s, norm), torch.ones(3).double())
        torch.testing.assert_close(inner, geometry.dual(G, norm))
        for _ in range(50):  # no other direction of norm 1 does better
            other = {k: torch.randn_like(v) for k, v in G.items()}
            size = geometry.size(other, norm)
            assert (sum((G[k] * other[k]).flatten(1).sum(1) for k in G) / size <= inner + 1e-12).all()
    assert all(not value.any() for value in geometry.steepest({"a": torch.zeros(2, 3)}, "spectral").values())


def test_the_iteration_of_muon_comes_near_the_polar_factor():
    torch.manual_seed(1)
    G = torch.randn(4, 8, 5).double()
    near, exact = geometry.newton_schulz(G, 5), geometry.polar(G)
    values = torch.linalg.svdvals(near)
    assert values.min() > 0.6 and values.max() < 1.3
    inner = (G * near).flatten(1).sum(1) / geometry.dual({"G": G}, "spectral") / values.amax(1)
    assert (inner > 0.6).all() and (inner < 1).all()  # the alignment c of WM-5
    torch.testing.assert_close((G * exact).flatten(1).sum(1), geometry.dual({"G": G}, "spectral"))


def test_adamw_without_averages_is_sign_descent_and_with_them_is_that_of_pytorch():
    where, net = points(), flows.TwoLayer(5, 6)
    plain = trained(flows.SignDescent(1e-2), net, where, 40)
    same = trained(flows.AdamW(1e-2, beta1=0.0, beta2=0.0, eps=0.0, weight_decay=0.0), net, where, 40)
    np.testing.assert_allclose(plain["W_V"], same["W_V"], atol=1e-12)
    rule = flows.AdamW(3e-2, beta1=0.8, beta2=0.9, eps=1e-3, weight_decay=0.2)
    run = trained(rule, net, where, 20, loss="logistic")
    W = {name: torch.tensor(run[f"W_{name}"][0], requires_grad=True) for name in net.trained}
    problem = flows.pose(net, where, "logistic")
    torchs = torch.optim.AdamW(W.values(), lr=3e-2, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.2)
    for _ in range(20):
        torchs.zero_grad()
        losses.LOGISTIC.log(problem.margins(W)).exp().mean(1).sum().backward()
        torchs.step()
    np.testing.assert_allclose(run["W_V"][-1], W["V"].detach().numpy(), atol=1e-10)


# ---------------------------------------------------------------- WM-5


@repeated(
    "norm, depth, lr, length",
    [
        ("linf", 3, 4e-3, 1.2),
        ("linf", 2, 4e-3, 1.6),
        ("l1", 2, 8e-2, 30),
        ("spectral", 3, 2e-2, 6),
        ("l2", 3, 4e-2, 12),
    ],
    0,
    2,
    3,
)
def test_the_own_norm_margin_never_falls_beyond_what_shrinks_with_the_step(norm, depth, lr, length):
    net = flows.MLP(5, 20, depth=depth)
    falls = [deepest(followed(RULES[norm](lr / k), net, points(), length), norm, depth) for k in (1, 4)]
    assert falls[1] <= 0.6 * falls[0] + 1e-9 and falls[0] < 0.1, falls


def test_the_wrong_norm_falls_at_any_step():
    """One point x = (8, 1, 0.5), w along x: sign descent leaves the best direction of the Euclidean norm for the signs of x."""
    where, net = Dataset([[8.0, 1.0, 0.5]], [1.0]), flows.MLP(3, 1, depth=1)
    for lr in (2e-2, 5e-3):
        problem, rule = flows.pose(net, where, "exp"), flows.SignDescent(lr)
        W, values = {"W1": torch.tensor([[[0.8, 0.1, 0.05]]]).double()}, []
        state = rule.init(problem, W)
        for _ in range(int(2 / lr)):
            p = problem.margins(W).item()
            values.append((p / geometry.size(W, "l2").item(), p / geometry.size(W, "linf").item()))
            W, state = rule.step(problem, W, state)
        wrong, right = np.array(values).T
        assert (np.diff(right) >= -1e-12).all() and wrong[-1] < 0.8 * wrong[0]


def test_the_wrong_degree_and_the_wrong_subset_fall():
    net = flows.MLP(5, 20, depth=3)
    found = followed(flows.SignDescent(2e-3), net, points(), 1.2)
    assert deepest(found, "linf", 3) < 5e-3
    assert deepest(found, "linf", 9) > 0.3  # the degree is 3
    assert deepest(found, "linf", 20, ["W2"]) > 0.3  # and not 20 in the middle layer


@pytest.mark.parametrize("norm", ["linf", "spectral"])
def test_the_check_along_a_run(norm):
    where, net = points(), flows.TwoLayer(5, 20)
    run = trained(RULES[norm](4e-3 if norm == "linf" else 2e-2), net, where, 400)
    (one,) = theory.check(run, where, ids=["WM-5"])
    assert one.id == "WM-5" and one.word == "yes" and one.checked > 100, str(one)
    psi = run["psi"][:, 0]
    W = parameters(run, net.homogeneous)[-1]
    np.testing.assert_allclose(one.right[-1, 0], math.log(psi[-1]) - 2 * math.log(geometry.size(W, norm).item()))
    # a run whose weights are bent on the way is caught
    bent = {name: value.copy() for name, value in run.records.items()}
    bent["W_V"][-100:] *= 0.5
    bent["psi"][-100:] *= 0.2
    (two,) = theory.check(replace(run, records=bent), where, ids=["WM-5"])
    assert two.word == "no", str(two)


def test_no_check_where_the_direction_is_not_steepest():
    where, net = points(), flows.TwoLayer(5, 10)
    for rule in (flows.SignDescent(2e-3, momentum=0.9), flows.Spectral(1e-2, iterations=5), flows.AdamW(2e-3)):
        run = trained(rule, net, where, 30)
        assert theory.check(run, where, ids=["WM-5"]) == []


def test_an_approximate_direction_has_a_smaller_exponent():
    """Muon's iteration has <g, s> = c N*(g) N(s) with c < 1: psi / N^(c L) never falls."""
    where, net = points(), flows.MLP(5, 20, depth=3)
    found = followed(flows.Spectral(1e-2, iterations=5), net, where, 4)
    problem, aligned = flows.pose(net, where, "exp"), []
    for _, W in found[::10]:
        G = problem.pull(W, losses.weights(problem.loss, problem.margins(W), "psi"))
        s = geometry.steepest(G, "spectral", 5)
        inner = sum((G[k] * s[k]).sum() for k in G) / geometry.size(s, "spectral")
        aligned.append((inner / geometry.dual(G, "spectral")).item())
    c = min(aligned)
    assert 0.5 < c < 1
    assert deepest(found, "spectral", 3 * c) < 1e-3


# ---------------------------------------------------------------- WM-6


def test_decoupled_decay_keeps_it_while_the_norm_is_below_one_over_the_decay():
    where, net, decay = points(), flows.TwoLayer(5, 20), 0.5
    for lr, most in ((4e-3, 3e-2), (1e-3, 6e-3)):
        found = followed(flows.SignDescent(lr, weight_decay=decay), net, where, 6)
        size = np.array([geometry.size(W, "linf").item() for _, W in found])
        assert (size <= 1 / decay).all() and size[-1] > 0.9 / decay
        assert deepest(found, "linf", 2) < most
    run = trained(flows.SignDescent(4e-3, weight_decay=decay), net, where, 500)
    (one,) = theory.check(run, where, ids=["WM-6"])
    assert one.id == "WM-6" and one.word == "yes" and one.checked > 100, str(one)
    given = theory.steepest.decayed_steepest(decay, 1.5)
    assert given.value == 1 / decay and given.assumptions[-1].holds
    assert not theory.steepest.decayed_steepest(decay, 5.0).assumptions[-1].holds


def test_decay_beyond_that_norm_lets_it_fall():
    """x = (1, 0) and (0, 1), w = (N, N): psi = N - ln 2, so that psi / N falls as N sinks from 4 to 1 / decay = 2."""
    where, net = Dataset(np.eye(2), [1.0, 1.0]), flows.MLP(2, 1, depth=1)
    problem, rule = flows.pose(net, where, "exp"), flows.SignDescent(1e-3, weight_decay=0.5)
    W = {"W1": torch.tensor([[[4.0, 4.0]]]).double()}
    state, f = rule.init(problem, W), []
    for _ in range(200):
        f.append(losses.psi(problem.loss, problem.margins(W)).item() / geometry.size(W, "linf").item())
        W, state = rule.step(problem, W, state)
    assert max(np.diff(f)) < 0


# ---------------------------------------------------------------- WM-7 and linear limits


@repeated("norm", ["linf", "l1", "l2", "spectral"], 0, 3)
def test_linear_limits_reach_the_certified_margin_at_the_rate(norm):
    rng = np.random.default_rng(3)
    X, u = rng.standard_normal((30, 5)), rng.standard_normal(5)
    where = Dataset(X + 0.6 * np.sign(X @ u)[:, None] * u / np.linalg.norm(u), np.sign(X @ u))
    net, steps = flows.MLP(5, 1, depth=1), 4000
    cert = margins.linear(where, norm="l2" if norm == "spectral" else norm)
    lr = 0.1 if norm == "linf" else 0.3
    rule = RULES[norm](lr, power=0.5)
    run = trained(rule, net, where, steps, every=50)
    size = geometry.size({"W1": torch.as_tensor(run["W_W1"][-1])}, norm).item()
    reached = run["margin"][-1, 0] / size
    assert 0.85 * cert.lower < reached <= cert.upper * (1 + 1e-9)
    (one,) = theory.check(run, where, ids=["WM-7"])
    assert one.word == "yes" and one.checked > 20 and one.numbers["gamma"] == cert.lower, str(one)
    radius = one.numbers["radius"]
    start = run["psi"][0, 0], geometry.size({"W1": torch.as_tensor(run["W_W1"][0])}, norm).item()
    bound = theory.steepest.linear_rate(cert.lower, 30, radius, steps, lr, power=0.5, psi=start[0], norm=start[1])
    np.testing.assert_allclose(bound.value, one.left[-1, 0], rtol=1e-9)
    assert 0 < bound.value <= reached
    fixed = theory.steepest.linear_rate(cert.lower, 30, radius, 10**7, 1e-3)
    assert abs(fixed.value - (cert.lower - 1e-3 * radius**2 / 2)) < 1e-3  # what a step of one length leaves


@pytest.mark.parametrize(("rule", "norm"), [(flows.SignDescent, "max"), (flows.Spectral, "spectral")])
def test_several_classes_reach_the_margin_of_their_norm(rule, norm):
    rng = np.random.default_rng(4)
    y = np.arange(24) % 3
    where = Dataset(3 * np.eye(3, 6)[y] + 0.5 * rng.standard_normal((24, 6)), y)
    run = trained(rule(1.0, power=0.5), flows.MLP(6, 1, depth=1, outputs=3), where, 1500, loss="ce", every=500)
    cert = margins.multiclass_linear(where, norm=norm)
    U = run["W_W1"][-1, 0]
    scores = where.X @ U.T
    own = scores[np.arange(24), y]
    least = (own - np.where(np.eye(3)[y] > 0, -np.inf, scores).max(1)).min()
    size = np.abs(U).max() if norm == "max" else np.linalg.norm(U, 2)
    assert 0.97 * cert.lower < least / size <= cert.upper * (1 + 1e-9)


def test_the_growth_that_is_guaranteed():
    given = theory.steepest.own_norm_growth(2.0, 3.0, 6.0, 3)
    assert given.value == pytest.approx(16.0) and given.assumptions[2].holds
    assert theory.steepest.own_norm_growth(2.0, 3.0, 6.0, 3, alignment=0.5).value == pytest.approx(2 * 2**1.5)
    assert theory.steepest.own_norm_growth(2.0, 3.0, 1.0, 3).value == 2.0  # psi does not fall either
    total, squares = theory.steepest.lengths(3, 2.0, 1.0)
    assert total == pytest.approx(2 * (1 + 1 / 2 + 1 / 3)) and squares == pytest.approx(4 * (1 + 1 / 4 + 1 / 9))


def test_four_geometries_and_four_norms():
    """The phase picture of docs/steepest.md: a curve never falls in its own norm, and is the highest of the four there."""
    rng = np.random.default_rng(3)
    where = Dataset(rng.standard_normal((16, 6)), np.sign(rng.standard_normal(16)))
    net, table = flows.TwoLayer(6, 40, activation="srelu"), {}
    for norm, lr, length in (("linf", 4e-3, 2), ("spectral", 2e-2, 10), ("l2", 4e-2, 20), ("l1", 4e-2, 120)):
        found = followed(RULES[norm](lr), net, where, length, look=lambda W: {"V": W["V"]})
        assert deepest(found, norm, net.degree) < 2e-2
        psi, w = found[-1]
        table[norm] = {other: psi / geometry.size(w, other).item() ** net.degree for other in geometry.NORMS}
    for norm in geometry.NORMS:
        assert max((table[own][norm], own) for own in table)[1] == norm, table


@pytest.mark.slow
@repeated("norm", ["linf", "l2", "l1", "spectral"], 0, 3)
def test_a_run_whose_records_begin_late_is_no_false_alarm(norm):
    """The rate counts steps from the first record, at which psi and the norm are taken; not from the start of the run."""
    data = Dataset(np.eye(2), np.ones(2))
    kept = flows.Record(["weights", "margin", "psi", "step"], times=list(range(100, 3001, 20)))
    net, rule = flows.MLP(2, 1, depth=1, law_scale=20.0), flows.Steepest(norm=norm, lr=0.01)
    run = flows.train(data, net, rule, loss="exp", stop=3000, record=kept, trials=8)
    (found,) = theory.check(run, data, ids=["WM-7"])
    assert found.holds and found.checked > 500


def test_numbers_of_any_size():
    found = theory.steepest.own_norm_growth(1.0, 1e300, 1.0, 400.0)
    assert found.value == 1.0 and 0 <= found.numbers["normalized"] < 1e-300
    assert theory.steepest.own_norm_growth(1e-300, 1e-300, 1.0, 3.0).numbers["normalized"] > 1e300


@pytest.mark.parametrize("power", [0.3, 0.5, 1.0])
def test_sums_of_very_many_steps_are_on_the_safe_side(power, monkeypatch):
    t = np.arange(1.0, 20_001)
    exact = (0.1 * (t**-power).sum(), 0.01 * (t ** (-2 * power)).sum())
    monkeypatch.setattr(theory.steepest, "MANY", 100)
    total, squares = theory.steepest.lengths(20_000, 0.1, power)
    assert total <= exact[0] * (1 + 1e-12) and squares >= exact[1] * (1 - 1e-12)
    assert_allclose([total, squares], exact, rtol=1e-3)
    assert theory.steepest.linear_rate(0.5, 10, 1.0, 10**12, 0.1, power=0.5).value > 0.49  # at once


def test_half_an_iteration_is_refused():
    with pytest.raises(InputError, match=r"iterations must be a whole number, not 2\.5"):
        flows.Spectral(iterations=2.5)
    with pytest.raises(InputError, match="nesterov must be True or False, not 'yes'"):
        flows.SignDescent(momentum=0.5, nesterov="yes")


@pytest.mark.parametrize("scale", [1.0, 1e-200])
def test_adam_without_its_constant_leaves_entries_without_a_gradient_where_they_are(scale):
    """Neurons that are off everywhere, and gradients whose squares underflow, were divided by 0: the run was called diverged."""
    data = Dataset(scale * np.array([[1.0, 0.5], [-1.0, 0.2]]), [1.0, -1.0])
    net = flows.TwoLayer(2, 6)
    runs = [
        flows.train(data, net, rule, stop=50, trials=4, record=["risk"])
        for rule in (flows.Adam(lr=0.1, eps=0.0), flows.AdamW(lr=0.1, eps=0.0, weight_decay=0.0))
    ]
    assert all(set(run.status) == {"finished"} for run in runs)
    for name, value in runs[0].final.items():
        assert_allclose(value, runs[1].final[name], rtol=1e-9)
