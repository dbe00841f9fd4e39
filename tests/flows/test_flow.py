"""Gradient flow: order, error control, invariants, the far end of training, kinks, events, batches."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from checks import repeated
from widemargin import data, margins
from widemargin.flows import losses
from widemargin.flows.contract import true_params
from widemargin.flows.events import Fitted, Margin, Radius, Risk, Stationary, Time, parse_until
from widemargin.flows.implicit import implicit_weights
from widemargin.flows.nets import MLP, Frozen, Normalized, Scalar, TwoLayer
from widemargin.flows.problem import pose
from widemargin.flows.rules import DIVERGED, FINISHED
from widemargin.flows.rules.gradient_flow import FORCED, TEMPERED, GradientFlow
from widemargin.flows.stationarity import clarke_min_norm, kkt_residual
from widemargin.types import Dataset, InputError


def real(values):
    return torch.tensor(values, dtype=torch.float64)


pytestmark = pytest.mark.usefixtures("one_thread")


def begin(net, trials=1, seed=0):
    return {name: torch.tensor(value) for name, value in net.init(trials, seed).items()}


def run(rule, problem, W, steps, each=lambda W, state: None):
    """Until all trials have stopped, or for a number of steps; `each` sees every state."""
    state = rule.init(problem, W)
    for _ in range(steps):
        W, state = rule.step(problem, W, state)
        each(W, state)
        if (state.status != 0).all():
            break
    return W, state


def flat(problem, W, state=None):
    true = W if state is None else true_params(problem, W, state)
    return torch.cat([true[name].flatten(1) for name in problem.net.trained], 1)


def fixed_steps(problem, W, order, T, count):
    """T / count in CB's clock at every step."""
    rule = GradientFlow(rtol=1e9, order=order, largest=1e9, until=Time(T))
    state = rule.init(problem, W)
    for _ in range(2 * count):
        size = (torch.zeros(1) if state.log_scale is None else state.log_scale) + 0.5 * problem.net.norm2(W).log()
        turn = ((problem.net.degree - 2) * size).exp() if state.log_scale is not None else 1.0
        W, state = rule.step(problem, W, replace(state, h=T / count * turn + 0 * state.h))
        if (state.status != 0).all():
            break
    return flat(problem, W, state), state


def runge_kutta(problem, W, T, count):
    """Classical steps of W itself, and of t_mean."""
    names, h = problem.net.trained, T / count

    def field(W):
        p = problem.margins(W)
        slow = torch.exp(math.log(problem.n) - losses.log_sum(problem.loss, p))
        return problem.pull(W, losses.weights(problem.loss, p, "soft_margin")) | {"t": slow}

    W = W | {"t": W[names[0]].new_zeros(len(W[names[0]]))}
    for _ in range(count):
        k = [field(W)]
        for share in (0.5, 0.5, 1.0):
            k.append(field({name: W[name] + share * h * k[-1].get(name, 0) for name in W}))
        W = {name: W[name] + sum(c * h / 6 * s.get(name, 0) for c, s in zip((1, 2, 2, 1), k)) for name in W}
    return torch.cat([W[name].flatten(1) for name in names], 1), W["t"]


PARITY = data.parity(4, marginal="full")
DISKS = data.disks(d=2, n=40, k=3, seed=0)
BEST_PARITY = 1 / math.sqrt(8 * 4) / 2  # M2, CLAIMS 0.7.1


def small_init(d, m):
    """CB's experiments without their 1/m (CLAIMS 0.6)."""
    return TwoLayer(d, m, law="cb", law_scale=1 / math.sqrt(m))


# The integrator


@pytest.mark.parametrize("loss", ["exp", "logistic"])
@pytest.mark.parametrize("beta", [0.1, 30.0, 1e4, 1e8])
def test_the_implicit_dual_solves_its_equation(loss, beta):
    rng = np.random.default_rng(3)
    A = torch.tensor(rng.standard_normal((4, 12, 30)))
    p, K = torch.tensor(rng.standard_normal((4, 12))), A @ A.mT
    p = p + 5 * (beta > 1e6)  # fitted, where both losses have weights in the simplex
    h = torch.tensor([0.0, 1e-4, 0.05, 3.0], dtype=torch.float64)
    w, found = implicit_weights(losses.as_loss(loss), p, K, h, torch.full_like(h, beta))
    assert found.all()
    after = beta * (p + h[:, None] * (K @ w[:, :, None])[:, :, 0])
    if beta < 1e6:
        torch.testing.assert_close(losses.weights(losses.as_loss(loss), after, "soft_margin"), w, rtol=0, atol=1e-7)
    else:  # beta times the rounding of margins: equal margins on the support, none smaller
        p_after = after / beta
        least = p_after.amin(1, keepdim=True)
        assert (torch.where(w > 1e-5, p_after - least, 0 * p) < 1e-5).all()
        np.testing.assert_allclose(w.sum(1), 1, atol=1e-9)


NETS = [Scalar(4, 24), TwoLayer(4, 24, train="output"), Normalized(4, 24)]


@pytest.mark.parametrize("net", NETS, ids=lambda net: net.name + str(net.degree))
@repeated("order, loss", [(2, "exp"), (2, "logistic"), (3, "exp")], 1, 2)
def test_order_of_convergence(net, order, loss):
    problem, W = pose(net, PARITY, loss), begin(net, 2)
    T = 2.0
    exact, t_mean = runge_kutta(problem, W, T, 200)
    errors = []
    for count in (8, 16, 32):
        found, state = fixed_steps(problem, W, order, T, count)
        errors.append(float((found - exact).norm() / exact.norm()))
        np.testing.assert_allclose(state.t_cb, T, rtol=1e-8)
    rates = np.log2(np.array(errors[:-1]) / errors[1:])
    assert (rates > order - 0.4).all(), (errors, rates)
    np.testing.assert_allclose(state.log_t_mean.exp(), t_mean, rtol=1e-4)


@pytest.mark.parametrize("net", [small_init(4, 20), MLP(4, 6, depth=3)], ids=lambda net: net.name)
def test_a_tighter_tolerance_changes_less_than_it_promises(net):
    problem, W = pose(net, PARITY, "logistic"), begin(net, 2)
    exact, t_mean = runge_kutta(problem, W, 1.0, 500)
    errors, before = [], None
    for rtol in (4e-4, 2e-4, 1e-4):
        after, state = run(GradientFlow(rtol=rtol, until=Time(1.0)), problem, W, 1000)
        assert (state.status == FINISHED).all()
        assert state.honest.all()
        found = flat(problem, after, state)
        errors.append(((found - exact).norm(dim=1) / exact.norm(dim=1)).max().item())
        if before is not None:
            change = (found - before).norm(dim=1) / exact.norm(dim=1)
            assert (change < rtol * state.taken).all()  # the sum of what its steps allow
        before = found
        np.testing.assert_allclose(state.log_t_mean.exp(), t_mean, rtol=20 * rtol)
    assert errors[-1] < 10 * 1e-4


def test_the_flow_on_the_risk_is_the_same_path():
    """dt_cb = risk dt_mean (CLAIMS 0.6): tiny steps of gradient descent on the mean risk pass through the same points."""
    net = Scalar(4, 12)
    problem, W = pose(net, PARITY, "logistic"), begin(net)
    after, state = run(GradientFlow(rtol=1e-7, order=3, until=Time(1.5)), problem, W, 3000)
    t = float(state.log_t_mean.exp())
    count = 4000
    for _ in range(count):
        p, saved = problem.look(W)
        middle = problem.pull(W, losses.weights(problem.loss, p, "mean"), saved)
        half = W | {name: W[name] + t / count / 2 * grad for name, grad in middle.items()}
        slope = problem.pull(half, losses.weights(problem.loss, problem.margins(half), "mean"))
        W = W | {name: W[name] + t / count * grad for name, grad in slope.items()}
    np.testing.assert_allclose(flat(problem, after, state), flat(problem, W), atol=2e-5)


# Invariants and the far end


@pytest.fixture(scope="module")
def wide():
    """Parity and disks at large width, every step recorded."""
    torch.set_num_threads(1)
    found = {}
    for name, points, bias, m in (("parity", PARITY, False, 200), ("disks", DISKS, True, 300)):
        net = small_init(points.d + bias, m)
        problem, W, records = pose(net, points, "exp", bias=bias), begin(net), []

        def each(W, state, problem=problem, records=records):
            p, size = problem.margins(W), 2 * state.log_scale
            psi = losses.psi(problem.loss, p * size[:, None].exp()) / size.exp()
            gap = W["a"] ** 2 - (W["V"] ** 2).sum(2)
            records.append([float(x) for x in (state.t_cb, state.log_scale, p.min(), psi, state.h)])
            assert (problem.net.norm2(W) - 1).abs().max() < 1e-12 or state.taken == 0
            assert gap.isfinite().all()

        W0 = W
        W, state = run(GradientFlow(), problem, W, 260 if name == "parity" else 400, each)
        found[name] = problem, W0, W, state, np.array(records)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["parity", "disks"])
def test_wide_networks_reach_the_certified_margin(wide, name):
    problem, _, W, state, records = wide[name]
    cert = margins.f1(PARITY) if name == "parity" else margins.f1(DISKS, bias=True)
    best = problem.margins(W).amin(1) / problem.net.norm2(W)
    assert best >= 0.99 * cert.lower / 2
    assert records[:, 2].max() <= cert.upper / 2 * (1 + 1e-12)
    if name == "parity":
        np.testing.assert_allclose(cert.lower / 2, BEST_PARITY, rtol=1e-6)
        assert best > 0.9999 * BEST_PARITY
    q = state.dual[0].numpy()
    np.testing.assert_allclose(q.sum(), 1, atol=1e-9)
    # the trajectory's own dual bounds the margin from above (CB-24): tried at its own neurons and at random directions
    X, y = problem.X[0].numpy(), problem.y[0].numpy()
    V = np.vstack([W["V"][0].numpy(), np.random.default_rng(0).standard_normal((4000, X.shape[1]))])
    value = np.abs((q * y) @ np.clip(X @ V.T, 0, None) / np.linalg.norm(V, axis=1)).max()
    assert cert.lower * (1 - 1e-9) <= value <= 1.01 * cert.upper


@pytest.mark.parametrize("name", ["parity", "disks"])
def test_the_normalised_smooth_margin_never_falls(wide, name):
    records = wide[name][-1]
    t, rho, hard, psi, _ = records.T
    fitted = psi > 0
    start = int(np.flatnonzero(~fitted)[-1]) + 1
    assert start < 0.8 * len(psi)
    rise = np.diff(psi[start:])
    assert rise.min() > -1e-4  # the tolerance of a step, |Y| = 1
    assert psi[start:].max() <= psi[-1] * (1 + 3e-3)
    # LR-23 and UH-19 in CB's clock: d ln|W|^2 / ds >= 2 L psi / |W|^L
    growth, pace = np.diff(rho[start:]), np.diff(t[start:])
    assert (growth >= 0).all()
    assert (growth - 2 * psi[start:-1] * pace > -1e-3 * (growth + 1e-12)).all()
    assert (psi <= hard + 1e-12).all()


def test_balance_is_conserved(wide):
    """a_j^2 - |v_j|^2 (LR-7), in units of |W|^2 at the time."""
    problem, W0, W, state, _ = wide["disks"]
    before = (W0["a"] ** 2 - (W0["V"] ** 2).sum(2)) * (-2 * state.log_scale).exp()
    after = W["a"] ** 2 - (W["V"] ** 2).sum(2)
    assert (after - before).abs().max() < 1e-4
    net = small_init(4, 20)
    problem, W0 = pose(net, PARITY, "exp"), begin(net)
    W, state = run(GradientFlow(rtol=1e-6, until=Time(2.0)), problem, W0, 5000)
    W = true_params(problem, W, state)
    gaps = [(w["a"] ** 2 - (w["V"] ** 2).sum(2)) for w in (W0, W)]
    assert (gaps[1] - gaps[0]).abs().max() < 2e-6 * float(net.norm2(W))


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["logistic", pytest.param("exp", marks=pytest.mark.long)])
def test_runs_far_past_the_smallest_loss(loss):
    net = small_init(4, 60)
    problem, W = pose(net, PARITY, loss), begin(net)
    seen = []

    def each(W, state):
        p = problem.margins(W) * (2 * state.log_scale)[:, None].exp()
        seen.append((float(losses.log_sum(problem.loss, p)), bool(state.honest), float(state.log_t_mean)))

    W, state = run(GradientFlow(largest=1.5), problem, W, 700, each)
    log_loss, honest, log_t = np.array(seen, dtype=float).T
    assert (np.diff(log_loss) <= 0).all()
    assert log_loss[-1] < -1e250
    assert state.status == FINISHED
    assert honest[log_loss > -700].all()  # down to 1e-304 and far beyond nothing is given up
    assert honest[log_loss > -1e6].all()
    assert state.left == TEMPERED
    late = slice(-50, None)
    assert np.isfinite(log_t).all()
    np.testing.assert_allclose(log_t[late] / -log_loss[late], 1, atol=1e-6)  # t_mean ~ 1 / loss
    assert problem.margins(W).min() <= BEST_PARITY * (1 + 1e-9)


@pytest.mark.slow
def test_frozen_directions_reach_the_linear_program():
    V = np.random.default_rng(1).standard_normal((30, 4))
    net = Frozen(4, 60, directions=V)
    problem = pose(net, PARITY, "exp")
    W, _ = run(GradientFlow(), problem, begin(net), 450)
    cert = margins.frozen(PARITY, V)
    reached = float((problem.margins(W).amin(1) / net.normalizers(W)["M6"])[0])
    assert 0.995 * cert.lower / 2 <= reached <= cert.upper / 2 * (1 + 1e-9)


def test_the_output_layer_reaches_the_random_feature_margin():
    net = TwoLayer(4, 60, train="output", law="sphere")
    problem = pose(net, PARITY, "exp")
    start = begin(net, 2)
    assert (start["a"] == 0).all()  # the flow leaves 0 in its own time
    W, state = run(GradientFlow(), problem, start, 320)
    reached = problem.margins(W).amin(1) / net.normalizers(W)["M7"]
    for trial in range(2):
        cert = margins.random_features(PARITY, W["V"][trial].numpy())
        assert 0.999 * cert.lower <= reached[trial] <= cert.upper * (1 + 1e-9)
    # degree 1: t_cb ~ |W| / gamma
    assert (state.log_scale > 20).all()
    speed = state.t_cb.log() - state.log_scale + (problem.margins(W).amin(1) / net.norm2(W).sqrt()).log()
    np.testing.assert_allclose(speed, 0, atol=0.02)


# Kinks


def test_a_neuron_slides_along_its_kink():
    """One neuron between x1 (y = +1) and x2 (y = -1) ends on v . x2 = 0 and moves along it, without small steps."""
    x2 = np.array([0.6, 0.8])
    points = Dataset(np.array([[1.0, 0.0], x2]), np.array([1.0, -1.0]))
    net = TwoLayer(2, 1)
    problem = pose(net, points, "exp")
    W = {"a": real([[1.0]]), "V": real([[[0.9, 0.3]]])}
    path = []
    W, state = run(
        GradientFlow(until=Time(12.0)),
        problem,
        W,
        3000,
        lambda W, state: path.append(float(W["V"][0, 0] @ torch.tensor(x2))),
    )
    assert state.status == FINISHED and state.taken < 400
    assert abs(path[-1]) < 1e-4
    gate = float(state.gates[0, 1, 0])
    assert 0 < gate < 1
    # on the kink the normal force of x1, q1 (x1 . x2), is held by q2 times the gate
    q1, q2 = state.dual[0].tolist()
    np.testing.assert_allclose(gate, q1 * 0.6 / q2, rtol=0.05)


def test_minimum_norm_clarke_element():
    points = Dataset(np.array([[1.0, 0.0], [0.75, 1.0], [0.0, 1.0]]), np.array([1.0, -1.0, 1.0]))
    net = TwoLayer(2, 3)
    problem = pose(net, points, "exp")
    a = real([[1.0, 2.0, -1.0]])
    V = real([[[4.0, -3.0], [0.0, 0.0], [1.0, 1.0]]])  # on the kink of x2; no direction; no kink
    X = torch.tensor(points.X)
    assert float(V[0, 0] @ X[1]) == 0.0
    q = real([[0.3, 0.5, 0.2]])
    F = clarke_min_norm(problem, {"a": a, "V": V}, q)
    # neuron 1: 0.3 x1 - 0.5 s x2, s in [0, 1]: the best s is 0.3 * 0.75 / (0.5 * 1.5625)
    np.testing.assert_allclose(F["V"][0, 0], 0.3 * X[0] - 0.144 * X[1], atol=1e-12)
    np.testing.assert_allclose(F["V"][0, 1], 0, atol=1e-12)
    np.testing.assert_allclose(F["V"][0, 2], -(0.3 * X[0] - 0.5 * X[1] + 0.2 * X[2]), atol=1e-12)
    plain = problem.pull({"a": a, "V": V}, q)
    np.testing.assert_allclose(plain["V"][0, 0], 0.3 * X[0], atol=1e-12)  # derivative 0 at 0: longer
    # the flow starts along it: a start on the kink stays there
    W, _ = run(GradientFlow(until=Time(0.05)), problem, {"a": a, "V": V}, 200)
    assert abs(float(W["V"][0, 0] @ X[1])) < 1e-9
    assert (W["V"][0, 1] == 0).all()


# Events


@pytest.mark.slow
def test_events_are_hit():
    net = small_init(4, 20)
    problem, start = pose(net, PARITY, "logistic"), begin(net, 2)
    for event, value in (
        (Radius(2.0), lambda W, state: (flat(problem, W, state) - flat(problem, start)).norm(dim=1) / 2),
        (
            Risk(0.1),
            lambda W, state: losses.log_sum(problem.loss, problem.margins(true_params(problem, W, state))).exp() / 1.6,
        ),
        (
            Fitted(),
            lambda W, state: (
                losses.log_sum(problem.loss, problem.margins(true_params(problem, W, state))).exp() / math.log(2)
            ),
        ),
        (Margin(0.05), lambda W, state: problem.margins(W).amin(1) / net.norm2(W) / 0.05),
        (Time(3.0), lambda W, state: state.t_cb / 3),
        (Time(50.0, "t_mean"), lambda W, state: state.log_t_mean.exp() / 50),
    ):
        W, state = run(GradientFlow(until=event), problem, start, 1500)
        assert (state.status == FINISHED).all(), event
        np.testing.assert_allclose(value(W, state), 1, rtol=1e-4)


def test_stationary_event_and_kkt_residual():
    net = small_init(4, 100)
    problem = pose(net, PARITY, "exp")
    W0 = begin(net)
    W, state = run(GradientFlow(until=Stationary()), problem, W0, 1000)
    assert state.status == FINISHED
    assert problem.margins(W).min() / net.norm2(W) > 0.99 * BEST_PARITY
    assert kkt_residual(problem, W, state) < 0.02 < 0.5 < kkt_residual(problem, W0)
    # LR-19: a linear predictor, all neurons u, is a KKT point although its margin is poor
    bad = data.bad_kkt_plane(0.1)
    line = margins.linear(bad)
    q = torch.tensor(line.dual)
    u = (q[:, None] * torch.tensor(bad.X) * torch.tensor(bad.signs())[:, None]).sum(0)
    u = u / u.norm()
    lone = TwoLayer(2, 5)
    W = {"a": torch.ones(1, 5, dtype=torch.float64), "V": u.expand(1, 5, 2).clone()}
    assert kkt_residual(pose(lone, bad, "exp"), W) < 1e-3
    assert kkt_residual(pose(lone, bad, "exp"), {name: 1e6 * part for name, part in W.items()}) < 1e-3
    W["V"][0, 0] = real([0.0, -1.0])
    assert kkt_residual(pose(lone, bad, "exp"), W) > 0.1


def test_until_is_parsed():
    assert parse_until("fitted") == Fitted()
    assert parse_until("stationary") == Stationary()
    assert parse_until("margin=0.1") == Margin(0.1)
    assert parse_until("radius=2") == Radius(2.0)
    assert parse_until("risk=1e-9") == Risk(1e-9)
    assert parse_until("time=7") == parse_until("t_cb=7") == Time(7.0)
    assert parse_until("t_mean=7") == Time(7.0, "t_mean")
    for text in ("", "margin", "margin=", "margin=x", "risk=-1", "time=inf", "fitted=1", "never"):
        with pytest.raises(InputError):
            parse_until(text)


# Batches


@pytest.mark.parametrize("net", [small_init(4, 12), MLP(4, 5, depth=3)], ids=lambda net: net.name)
def test_a_batch_is_a_loop(net):
    problem, W = pose(net, PARITY, "exp"), begin(net, 3)
    together, state = run(GradientFlow(), problem, W, 25)
    for trial in range(3):
        alone, single = run(GradientFlow(), problem, {name: part[trial : trial + 1] for name, part in W.items()}, 25)
        assert single.taken == state.taken[trial]
        for name in net.trained:
            np.testing.assert_allclose(alone[name][0], together[name][trial], atol=1e-8)
        np.testing.assert_allclose(single.t_cb[0], state.t_cb[trial], rtol=1e-6)


def test_a_member_that_fails_is_frozen():
    net = small_init(4, 12)
    problem, W = pose(net, PARITY, "exp"), begin(net, 3)
    W["V"][1, 2, 0] = math.nan
    after, state = run(GradientFlow(), problem, W, 80)
    assert state.status.tolist() == [0, DIVERGED, 0]
    assert state.taken[1] == 0 and (state.taken[[0, 2]] > 50).all()
    np.testing.assert_array_equal(after["a"][1], W["a"][1])
    good = {name: part[[0, 2]] for name, part in W.items()}
    alone, _ = run(GradientFlow(), problem, good, 80)
    np.testing.assert_allclose(after["V"][[0, 2]], alone["V"], atol=1e-8)


def test_steps_that_cannot_meet_the_tolerance_are_said():
    net = TwoLayer(4, 12)
    problem = pose(net, PARITY, "exp")
    _, state = run(GradientFlow(rtol=1e-15, smallest=1e-3), problem, begin(net), 30)
    assert state.left == FORCED and not state.honest.any()


def test_what_makes_no_sense_is_refused():
    net = small_init(4, 3)
    for rule, loss in ((GradientFlow(), "squared"), (GradientFlow(order=4), "exp"), (GradientFlow(rtol=0.0), "exp")):
        with pytest.raises(InputError):
            rule.init(pose(net, PARITY, loss), begin(net))
