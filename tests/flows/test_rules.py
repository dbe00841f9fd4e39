"""Rules against naive loops with autograd, batches against single trials, and the bounds of CB's Propositions 6 and 7."""

from __future__ import annotations

import contextlib
import io
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from checks import noise
from widemargin import Dataset, InputError, data, flows, margins
from widemargin.flows import losses, rules, streams
from widemargin.flows._graph import WARM, Stepper
from widemargin.flows.contract import restored
from widemargin.flows.names import make_rule
from widemargin.flows.nets import MLP, BatchNorm, Frozen, Net, Normalized, Params, Scalar, TwoLayer
from widemargin.flows.problem import Problem, pose
from widemargin.flows.rules import (
    GD,
    SGD,
    Adam,
    AdamW,
    CoordinateDescent,
    Mirror,
    NeuronNormAscent,
    NormalizedGD,
    OutputLayerAscent,
    PerturbedWassersteinFlow,
    Rule,
    SignDescent,
    SmoothMarginAscent,
    Spectral,
    State,
    Steepest,
    TwoPhase,
    WassersteinFlow,
    WeaklyRegularized,
    follow_path,
    neuron_norm_bound,
    output_layer_bound,
    weight_decay_schedule,
)
from widemargin.flows.streams import LawStream, ParityStream

POINTS = noise(7, 3, 0)
RELU = TwoLayer(d=3, m=6, law="cb")
FIELD = TwoLayer(d=3, m=6, law="cb", mean_field=True)
OUTPUT = TwoLayer(d=3, m=6, law="cb", mean_field=True, train="output")

# name: (rule, net, loss), each of which goes through the tests of every rule
CASES: dict[str, tuple[Rule, Net, str]] = {
    "gd": (GD(0.3, weight_decay=0.01), RELU, "logistic"),
    "gd-squared": (GD(0.05), RELU, "squared"),
    "gd-deep": (GD(0.05), MLP(d=3, m=5, depth=3), "exp"),
    "gd-batchnorm": (GD(0.1), BatchNorm.with_data(POINTS.X, 6, eps=0.1), "logistic"),
    "adamw": (AdamW(0.02, beta1=0.8, beta2=0.95, weight_decay=0.1), RELU, "logistic"),
    "sign": (SignDescent(0.02, power=0.5), RELU, "exp"),
    "sign-momentum": (SignDescent(0.02, momentum=0.9, weight_decay=0.1), RELU, "logistic"),
    "coordinate": (CoordinateDescent(0.1), RELU, "logistic"),
    "spectral": (Spectral(0.05), MLP(d=3, m=5, depth=3), "exp"),
    "muon": (Spectral(0.05, momentum=0.95, nesterov=True, iterations=5), RELU, "logistic"),
    "steepest": (Steepest(0.1, norm="l2"), RELU, "squared"),
    "ngd": (NormalizedGD(0.5), RELU, "exp"),
    "sgd": (SGD(0.1, seed=3), RELU, "logistic"),
    "sgd-epochs": (SGD(0.1, batch=3, order="epochs", seed=3), RELU, "logistic"),
    "sgd-stream": (SGD(0.1, batch=2, order="stream"), RELU, "logistic"),
    "sgd-online": (SGD(0.1, batch=2, sampler=ParityStream(3)), RELU, "logistic"),
    "cb": (SmoothMarginAscent(0.5), FIELD, "logistic"),
    "cb-code": (SmoothMarginAscent(0.5, variant="code"), FIELD, "exp"),
    "cb-output": (SmoothMarginAscent(0.5, variant="code"), OUTPUT, "exp"),
    "prop6": (NeuronNormAscent(), Frozen(d=3, m=6), "exp"),
    "prop7": (OutputLayerAscent(), OUTPUT, "exp"),
    "mirror": (Mirror(0.05), Normalized(d=3, m=6), "logistic"),
    "mirror-scalar": (Mirror(0.05, clock="mean"), Scalar(d=3, m=6), "exp"),
    "wgf": (WassersteinFlow(0.02), FIELD, "logistic"),
    "wgf-heun": (WassersteinFlow(0.02, scheme="continuous", reduction="mean"), FIELD, "logistic"),
    "pwgf": (PerturbedWassersteinFlow(0.1, sigma=3.0, seed=5), FIELD, "logistic"),
    "pwgf-weighted": (PerturbedWassersteinFlow(0.1, sigma=1.0, weighted=True, births=2, every=2), FIELD, "logistic"),
    "weakreg": (WeaklyRegularized(first=1e-3, last=1e-4), RELU, "logistic"),
    "weakreg-squared": (WeaklyRegularized(first=1e-3, last=1e-4, reduction="sum"), RELU, "squared"),
    "two-phase": (TwoPhase(lr1=2.0, batch1=4, steps1=2, lr2=0.2), RELU, "logistic"),
    "adam": (Adam(0.05), RELU, "logistic"),
    "adam-ball": (Adam(0.05, only=("a",), unit=("a",), sharpness=5.0), RELU, "logistic"),
}


def setting(net: Net, loss: str, points: Dataset = POINTS, trials: int = 3, seed: int = 1) -> tuple[Problem, Params]:
    return pose(net, points, loss), tensors(net, trials, seed)


def tensors(net: Net, trials: int, seed: int = 1) -> Params:
    return {name: torch.tensor(value) for name, value in net.init(trials, seed).items()}


def run(rule: Rule, problem: Problem, W: Params, steps: int, state: State | None = None) -> tuple[Params, State]:
    state = rule.init(problem, W) if state is None else state
    for _ in range(steps):
        W, state = rule.step(problem, W, state)
    return W, state


def one(W: dict[str, Any], trial: int) -> dict[str, Any]:
    return {k: v[trial : trial + 1] if isinstance(v, Tensor) else v for k, v in W.items()}


# Every rule


@pytest.mark.parametrize("name", CASES)
def test_a_batch_is_a_loop_of_single_trials(name: str):
    rule, net, loss = CASES[name]
    problem, W = setting(net, loss)
    together, state = run(rule, problem, W, 7)
    for trial in range(3):
        begin = replace(rule.init(problem, one(W, trial)), trial=torch.tensor([trial]))
        alone, single = run(rule, problem, one(W, trial), 7, begin)
        assert_close(alone, one(together, trial), rtol=1e-9, atol=1e-11)
        for key in ("t_cb", "log_t_mean", "status", "taken"):
            assert_close(getattr(single, key), getattr(state, key)[trial : trial + 1])


@pytest.mark.parametrize("name", CASES)
def test_a_saved_state_goes_on_bit_by_bit(name: str):
    rule, net, loss = CASES[name]
    problem, W = setting(net, loss)
    straight, end = run(rule, problem, W, 9)
    half, state = run(rule, problem, W, 4)
    for value in vars(state).values():
        assert isinstance(value, Tensor | dict | int | None)
        for part in value.values() if isinstance(value, dict) else [value]:
            assert not isinstance(part, Tensor) or len(part) == 3
    file = io.BytesIO()
    torch.save((half, vars(state)), file)
    file.seek(0)
    half, fields = torch.load(file, weights_only=True)
    resumed, again = run(rule, problem, half, 5, restored(rule.init(problem, W), fields))
    assert type(again) is type(end) is type(state)
    assert_close(resumed, straight, rtol=0, atol=0)
    known = [{name: value for name, value in vars(one).items() if value is not None} for one in (again, end)]
    assert_close(*known, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", [name for name, (rule, _, _) in CASES.items() if rule.graph])
def test_a_recorded_step_is_written_into_the_tensors_it_began_from(name: str, monkeypatch: pytest.MonkeyPatch):
    """On a GPU a recorded step is replayed on its own tensors. With a recorder that just runs it, recording is one more step."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", contextlib.nullcontext)
    rule, net, loss = CASES[name]
    problem, W = setting(net, loss)
    expected, end = run(rule, problem, W, WARM + 1)
    stepper = Stepper(problem, rule, W, graph=True)
    stepper(WARM)
    assert stepper.graph is not None and stepper.state.step == WARM  # host numbers count when a graph is replayed
    known = [{k: v for k, v in vars(one).items() if v is not None and k != "step"} for one in (stepper.state, end)]
    assert_close(stepper.W, expected, rtol=0, atol=0)
    assert_close(*known, rtol=0, atol=0, equal_nan=True)


def test_the_state_of_another_version_is_refused():
    problem, W = setting(RELU, "logistic")
    fresh = SGD().init(problem, W)
    fields = dict(vars(fresh))
    del fields["order"]  # may be None, as in a checkpoint from before there was such a field
    assert restored(fresh, fields).order is None
    for bad in ({"slopes": None}, {"momentum": W["a"]}):
        odd = fields | bad
        if bad == {"slopes": None}:
            del odd["slopes"]
        with pytest.raises(InputError, match=f"another version of this rule.*{next(iter(bad))}"):
            restored(fresh, odd)


@pytest.mark.parametrize("name", CASES)
def test_a_diverged_trial_is_frozen_and_the_others_go_on(name: str):
    rule, net, loss = CASES[name]
    problem, W = setting(net, loss)
    well = run(rule, problem, W, 6)[0]
    state = rule.init(problem, W)
    part = net.trained[0]
    bad = W | {part: W[part].clone()}
    bad[part][1] = torch.nan if name.startswith(("adam", "mirror")) else 1e308  # NaN, or overflow in the first step
    ill, state = run(rule, problem, bad, 6, state)
    assert state.status.tolist() == [0, 1, 0]
    assert state.taken.tolist()[1] < 6
    kept = bad[part][1]
    assert_close(ill[part][1][: len(kept)], kept, equal_nan=True, rtol=0, atol=0)
    for trial in (0, 2):
        assert_close(one(ill, trial), one(well, trial), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["gd", "cb", "sgd", "ngd", "adam"])
def test_single_precision_stays_single(name: str):
    rule, net, loss = CASES[name]
    problem = pose(net, POINTS, loss, dtype="float32")
    W = {k: v.float() for k, v in tensors(net, 2).items()}
    W, state = run(rule, problem, W, 3)
    assert {v.dtype for v in W.values()} == {torch.float32} and state.t_cb.dtype == torch.float32


def test_a_finished_trial_does_not_move():
    problem, W = setting(RELU, "logistic")
    rule = GD(0.3)
    state = replace(rule.init(problem, W), status=torch.tensor([0, 2, 0], dtype=torch.int8))
    new, state = run(rule, problem, W, 4, state)
    assert_close(new["V"][1], W["V"][1], rtol=0, atol=0)
    assert state.status.tolist() == [0, 2, 0] and state.taken.tolist() == [4, 0, 4] and state.t_cb[1] == 0


# Single steps against autograd


def gradient(
    W: Params, trial: int, risk: Any, factor: float = 1.0, X: np.ndarray | None = None, y: Any = None
) -> Params:
    """d risk(p) / dW of one trial of a two-layer net, written out."""
    V, a = (W[k][trial].clone().requires_grad_() for k in ("V", "a"))
    points = torch.tensor(POINTS.X if X is None else X)
    labels = torch.tensor(POINTS.y if y is None else y)
    f = factor * torch.relu(points @ V.T) @ a
    grads = torch.autograd.grad(risk(labels * f), (V, a))
    return dict(zip(("V", "a"), grads))


def logistic(p: Tensor) -> Tensor:
    return torch.log1p(torch.exp(-p)).mean()


def soft_min(p: Tensor) -> Tensor:
    return math.log(len(p)) - torch.logsumexp(-p, 0)


def test_gd_and_its_clocks():
    problem, W = setting(RELU, "logistic")
    new, state = run(GD(0.3, weight_decay=0.01), problem, W, 1)
    for trial in range(3):
        g = gradient(W, trial, logistic)
        for k in g:
            assert_close(new[k][trial], W[k][trial] - 0.3 * (g[k] + 0.01 * W[k][trial]))
        risk = logistic(problem.margins(W)[trial])
        assert_close(state.t_cb[trial], 0.3 * risk)
    assert_close(state.log_t_mean.exp(), torch.full((3,), 0.3, dtype=torch.float64))


def test_gd_on_the_squared_loss_descends_half_the_mean_square():
    points = Dataset(POINTS.X, np.linspace(-1, 1, 7))
    problem, W = setting(RELU, "squared", points)
    new, _ = run(GD(0.1), problem, W, 1)
    for trial in range(3):
        g = gradient(W, trial, lambda f: 0.5 * ((torch.tensor(points.y) - f) ** 2).mean(), y=np.ones(7))
        for k in g:
            assert_close(new[k][trial], W[k][trial] - 0.1 * g[k])


@pytest.mark.parametrize("order", ["replacement", "epochs", "stream"])
def test_sgd_is_gd_on_the_examples_of_the_step(order: str):
    problem, W = setting(RELU, "logistic")
    rule = SGD(0.2, batch=3, order=order, seed=11)
    state = rule.init(problem, W)
    W, state = rule.step(problem, W, state)
    seen = []
    sample, _ = rule.examples(problem, state)
    new, after = rule.step(problem, W, state)
    for trial in range(3):
        X, y = sample.X[trial].numpy(), sample.y[trial].numpy()
        for x, label in zip(X, y):
            row = int(np.flatnonzero((x == POINTS.X).all(1))[0])
            assert POINTS.y[row] == label
            seen.append(row)
        g = gradient(W, trial, logistic, X=X, y=y)
        for k in g:
            assert_close(new[k][trial], W[k][trial] - 0.2 * g[k])
    if order == "stream":
        assert seen == [3, 4, 5] * 3
    else:
        assert seen[:3] != seen[3:6]
    p = sample.margins(W)
    assert_close(after.slopes - state.slopes, torch.sigmoid(-p).mean(1))


def test_epochs_see_every_point_once():
    problem, W = setting(RELU, "logistic")
    rule = SGD(0.01, batch=3, order="epochs", seed=2)
    state = rule.init(problem, W)
    orders = []
    for _ in range(4):
        rows: list[Tensor] = []
        for _ in range(3):
            sample, state = rule.examples(problem, state)
            rows.append(sample.X)
            W, state = rule.step(problem, W, state)
        epoch = torch.cat(rows, 1)
        for trial in range(3):
            assert_close(epoch[trial].sort(0)[0], problem.X[0].sort(0)[0])
        orders.append(epoch)
    assert not torch.equal(orders[0], orders[1]) and not torch.equal(orders[0][0], orders[0][1])


def test_random_streams_are_uniform_and_independent_of_the_batch():
    trial, step = torch.arange(50), torch.full((50,), 7)
    u = streams.uniforms(1, 0, trial, step, 400)
    assert_close(u.mean().item(), 0.5, atol=0.01, rtol=0)
    assert_close(u.var().item(), 1 / 12, atol=0.002, rtol=0)
    corr = torch.corrcoef(u)
    assert float((corr - torch.eye(50)).abs().max()) < 0.25
    assert len(u.unique()) == u.numel()
    for other in (streams.uniforms(2, 0, trial, step, 400), streams.uniforms(1, 1, trial, step, 400)):
        assert float((other - u).abs().mean()) == pytest.approx(1 / 3, abs=0.01)
    assert_close(streams.uniforms(1, 0, trial[20:22], step[20:22], 30), u[20:22, :30], rtol=0, atol=0)
    points = streams.sphere_points(0, 3, trial, step, 200, 3)
    assert_close(points.norm(dim=2), torch.ones(50, 200, dtype=torch.float64))
    second = torch.einsum("bki,bkj->ij", points, points) / 10_000
    assert_close(second, torch.eye(3, dtype=torch.float64) / 3, atol=0.02, rtol=0)


def test_fresh_examples_from_a_law():
    parity = ParityStream(6, S=(1, 4), seed=3)
    X, y = parity(torch.arange(4), torch.tensor([0, 1, 2, 3]), 5000)
    assert_close(y, 6 * X[:, :, 1] * X[:, :, 4])
    same = ParityStream(6, S=(1, 4), seed=np.int64(3))(torch.arange(4), torch.tensor([0, 1, 2, 3]), 5000)
    assert_close(same[0], X)
    assert float(X.mean((0, 1)).abs().max()) < 0.03
    law = LawStream(lambda rng, k: (rng.standard_normal((k, 3)), rng.choice([-1.0, 1.0], k)), seed=4)
    X, y = law(torch.tensor([5, 2]), torch.tensor([9, 9]), 6)
    rng = np.random.default_rng([4, 2, 9])
    assert_close(X[1], torch.tensor(rng.standard_normal((6, 3))))
    problem, W = setting(RELU, "logistic")
    new, _ = run(SGD(0.2, batch=6, sampler=law), problem, one(W, 0), 1)
    X, y = law(torch.tensor([0]), torch.tensor([0]), 6)
    g = gradient(W, 0, logistic, X=X[0].numpy(), y=y[0].numpy())
    assert_close(new["V"][0], W["V"][0] - 0.2 * g["V"])


def test_normalized_gd_only_goes_down_and_adapts_its_step():
    problem, W = setting(RELU, "exp")
    rule = NormalizedGD(4.0)
    state = rule.init(problem, W)
    risk = losses.log_sum(losses.EXP, problem.margins(W))
    for _ in range(200):
        before, W_before = state, W
        W, state = rule.step(problem, W, state)
        new = losses.log_sum(losses.EXP, problem.margins(W))
        took = state.taken > before.taken
        assert bool((new <= risk).all())
        assert_close(state.h, before.h * torch.where(took, 2**0.2, 0.5))
        assert bool(((W["V"] != W_before["V"]).any(-1).any(-1) == took).all())
        risk = new
    assert bool((state.rejected > 0).all()) and bool((risk < -20).all())
    for trial in range(3):  # one step is GD with lr / risk
        g = gradient(W_before, trial, soft_min)
        if took[trial]:
            assert_close(W["V"][trial], W_before["V"][trial] + before.h[trial] * g["V"])


def test_normalized_gd_stops_before_its_margins_overflow():
    plane = data.bad_kkt_plane(alpha=0.1)
    traj = flows.train(
        plane, TwoLayer(2, 30), NormalizedGD(), loss="exp", stop=1500, trials=2, record=flows.Record(points=30)
    )
    assert np.isfinite(traj["margin_M2"]).all() and np.isfinite(traj["norm"]).all()
    assert (traj["norm"][-1] > 1e100).all() and (traj["margin_M2"][-1] > 0).all()


@pytest.mark.parametrize("variant", ["paper", "code"])
def test_cb_moves_by_m_times_the_gradient(variant: str):
    problem, W = setting(FIELD, "exp")
    rule = SmoothMarginAscent(0.5, variant=variant)
    W, state = run(rule, problem, W, 2)
    new, _ = rule.step(problem, W, state)
    rate = 0.5 / math.sqrt(3 if variant == "paper" else 4)  # t = 2; the code's count starts at 1
    for trial in range(3):
        g = gradient(W, trial, soft_min, 1 / 6)
        for k in g:
            assert_close(new[k][trial], W[k][trial] + rate * 6 * g[k])


def test_the_code_of_cb_scales_the_output_layer():
    problem, W = setting(OUTPUT, "exp")
    W = W | {"a": 3 * torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))}
    new, _ = run(SmoothMarginAscent(0.5, variant="code"), problem, W, 1)
    for trial in range(3):
        g = gradient(W, trial, soft_min, 1 / 6)
        beta = max(1.0, math.sqrt(float((W["a"][trial] ** 2).mean())))
        assert beta > 1
        assert_close(new["a"][trial], W["a"][trial] + beta * 0.5 / math.sqrt(2) * 6 * g["a"])
        assert_close(new["V"][trial], W["V"][trial], rtol=0, atol=0)


@pytest.mark.parametrize("train", ["both", "output"])
def test_cb_in_nets_without_the_prefactor_is_the_same_after_the_time_change(train: str):
    field = replace(FIELD, train=train)
    plain = replace(field, mean_field=False)
    problem, w = setting(field, "exp")
    shrink = 6**-0.5 if train == "both" else 1 / 6
    W = {k: v * (shrink if train == "both" or k == "a" else 1) for k, v in w.items()}
    for variant in ("paper", "code"):
        one_way, _ = run(SmoothMarginAscent(0.5, variant), problem, w, 20)
        other, _ = run(SmoothMarginAscent(0.5, variant), pose(plain, POINTS, "exp"), W, 20)
        assert_close(field.forward(one_way, problem.X), plain.forward(other, problem.X), rtol=1e-9, atol=1e-11)


def test_cb_reaches_nearly_the_whole_margin_of_a_parity():
    net = TwoLayer(d=5, m=64, law="cb", mean_field=True)
    problem, W = setting(net, "exp", data.parity(5, marginal="full"), trials=2)
    W, _ = run(SmoothMarginAscent(0.5), problem, W, 3000)
    reached = problem.margins(W).amin(1) / (net.norm2(W) / 64)
    best = 1 / math.sqrt(40) / 2
    assert bool((reached >= 0.95 * best).all()), reached / best
    assert bool((reached <= best * (1 + 1e-12)).all())


# Propositions 6 and 7


def near(seed: int) -> tuple[Dataset, np.ndarray]:
    """Points near e1 with label 1 and two directions near it: so easy that the bounds say something early."""
    rng = np.random.default_rng(seed)
    return Dataset(np.eye(4)[[0, 0]] + 0.05 * rng.standard_normal((2, 4)), np.ones(2)), np.eye(4)[[0, 1]] + 0.01


@pytest.mark.parametrize("easy", [False, True])
def test_proposition_6_at_every_step(easy: bool):
    for seed in range(1 if easy else 2):  # the hard ones are looked at for fewer steps
        points, V = noise(12, 4, seed), np.random.default_rng([9, seed]).standard_normal((20, 4))
        if easy:
            points, V = near(seed)
        m = 2 * len(V)
        net = Frozen(d=4, m=m, directions=V, r0=10.0 if easy else 1.0)
        problem, W = setting(net, "exp", points, trials=1)
        half = margins.frozen(points, V)
        assert half.lower > 0
        Z = points.y[:, None] * (points.X @ W["V"][0].numpy().T).clip(0) * W["b"][0].numpy()  # (n, m)
        rule = NeuronNormAscent()
        state = rule.init(problem, W)
        assert_close(state.size[0].item(), np.abs(Z).max())
        growth, best = 0.0, -math.inf
        for t in range(1, 1001 if easy else 201):
            a = W["r"][0].numpy() ** 2 / m
            beta = a.sum()
            q = np.exp(-(Z @ a) + (Z @ a).min())
            g = Z.T @ (q / q.sum())
            eta = 1 / (16 * np.abs(Z).max() * math.sqrt(t))
            growth, best = growth + 1 / (beta * math.sqrt(t)), max(best, float((Z @ a).min() / beta))
            before = W["r"][0]
            W, state = rule.step(problem, W, state)
            assert_close(W["r"][0], before * torch.tensor(1 + 2 * eta * g), rtol=1e-9, atol=0.0)  # CB-13
            mirrored = a / beta * (1 + 2 * eta * g) ** 2  # CB-15
            new = W["r"][0].numpy() ** 2
            np.testing.assert_allclose(new / new.sum(), mirrored / mirrored.sum(), rtol=1e-9)
            bound = neuron_norm_bound(half.upper / 2, np.abs(Z).max(), points.n, m, t, growth)
            assert best >= bound
            assert_close(rule.bound(problem, state, half.upper / 2)[0], bound)
            assert_close(state.best[0].item(), best)
        assert best <= half.upper / 2 * (1 + 1e-9)
    if easy:
        assert bound > 0 and best > 0.9 * half.lower / 2
        assert math.log(beta / 100) > 0.2 * half.lower / 2 * math.sqrt(1000)  # CB-16


@pytest.mark.parametrize("easy", [False, True])
def test_proposition_7_at_every_step(easy: bool):
    for seed, prefactor in ((0, True), (1, False)):
        points = near(seed)[0] if easy else noise(12, 4, seed)
        net = TwoLayer(d=4, m=40, law="sphere", mean_field=prefactor, train="output")
        problem, W = setting(net, "exp", points, trials=1)
        W["a"] = torch.zeros_like(W["a"])
        gamma = margins.random_features(points, W["V"][0].numpy())
        assert gamma.lower > 0
        Z = points.y[:, None] * (points.X @ W["V"][0].numpy().T).clip(0)
        rule = OutputLayerAscent()
        state = rule.init(problem, W)
        assert_close(state.size[0].item(), np.abs(Z).max())
        a, beta, best = np.zeros(40), 1.0, -math.inf
        for t in range(1, 1001 if easy else 201):
            beta = max(beta, math.sqrt(40) * np.linalg.norm(a))
            best = max(best, float((Z @ a).min() / beta))
            q = np.exp(-(Z @ a) + (Z @ a).min())
            a = a + beta * math.sqrt(2) / (np.abs(Z).max() * math.sqrt(t)) * (Z.T @ (q / q.sum())) / 40
            W, state = rule.step(problem, W, state)
            np.testing.assert_allclose(W["a"][0].numpy() / (40 if prefactor else 1), a, rtol=1e-6, atol=1e-9)
            bound = output_layer_bound(gamma.upper, np.abs(Z).max(), points.n, t)
            assert best >= bound
            assert_close(rule.bound(problem, state, gamma.upper)[0], bound)
        assert_close(state.best[0].item(), best, rtol=1e-6, atol=1e-9)
        assert best <= gamma.upper * (1 + 1e-9)
        if easy:
            assert bound > 0 and best > 0.9 * gamma.lower


# Mirror


def test_the_mirror_flow_is_the_product_flow():
    net = Normalized(d=3, m=6)
    problem, W = setting(net, "logistic", trials=2)
    fine, _ = run(GD(2e-3), problem, W, 1000)  # the flow of (a, b, V) to order 2e-3
    errors = []
    for lr, steps in ((0.04, 50), (0.02, 100)):
        new, state = run(Mirror(lr, clock="mean"), problem, W, steps)
        assert_close(state.log_t_mean.exp(), torch.full((2,), 2.0, dtype=torch.float64))
        assert_close(new["a"].abs(), new["b"].abs(), rtol=0, atol=0)
        assert torch.equal(new["a"].sign(), W["a"].sign())
        assert_close(state.log_u.exp(), (new["a"] * new["b"]).abs())
        exact = (fine["a"] * fine["b"]).abs()
        errors.append(float(((new["a"] * new["b"]).abs() / exact - 1).abs().max()))
    assert errors[1] < 0.01 and 0.35 < errors[1] / errors[0] < 0.75  # first order


def test_a_mirror_step_is_an_exponentiated_gradient():
    problem, W = setting(Normalized(d=3, m=6), "logistic")
    new, _ = run(Mirror(0.1, clock="mean"), problem, W, 1)
    F = problem.net.features(W, problem.X)
    beta = (W["a"] * W["b"]).sign()
    u = (W["a"] * W["b"]).abs().requires_grad_()
    p = problem.y * ((F * beta[:, None, :]) @ u[:, :, None])[:, :, 0]
    (g,) = torch.autograd.grad(torch.log1p(torch.exp(-p)).mean(1).sum(), u)
    assert_close((new["a"] * new["b"]).abs(), (u * torch.exp(-2 * 0.1 * g)).detach())
    flow, _ = run(GD(0.1), problem, W, 1)
    assert_close(new["V"], flow["V"])


# Particles


def test_wgf_moves_particles_by_the_velocity_of_the_objective():
    problem, W = setting(FIELD, "logistic")
    new, _ = run(WassersteinFlow(0.05, lam=0.01), problem, W, 1)
    for trial in range(3):
        g = gradient(W, trial, lambda p: 7 * logistic(p), 1 / 6)
        for k in g:
            assert_close(new[k][trial], W[k][trial] - 0.05 * (6 * g[k] + 2 * 0.01 * W[k][trial]))


def test_heun_is_of_second_order():
    problem, W = setting(FIELD, "logistic", trials=1)
    fine, _ = run(WassersteinFlow(1e-4, scheme="continuous"), problem, W, 500)
    gaps = []
    for eta in (0.005, 0.0025):
        new, _ = run(WassersteinFlow(eta, scheme="continuous"), problem, W, round(0.05 / eta))
        gaps.append(float((new["V"] - fine["V"]).abs().max()))
    assert gaps[1] < 0.4 * gaps[0]


def test_perturbed_wgf_without_noise_is_wgf():
    problem, W = setting(FIELD, "logistic")
    for weighted in (False, True):
        noisy, _ = run(PerturbedWassersteinFlow(0.05, sigma=0.0, weighted=weighted), problem, W, 5)
        plain, _ = run(WassersteinFlow(0.05), problem, W, 5)
        assert_close(noisy, plain, rtol=0, atol=0)


def test_particles_are_born_again_on_the_sphere():
    net = TwoLayer(d=3, m=4000, law="cb", mean_field=True)
    problem, W = setting(net, "logistic", trials=2)
    rule = PerturbedWassersteinFlow(0.05, sigma=4.0, seed=1)
    new, _ = run(rule, problem, W, 1)
    moved, _ = run(WassersteinFlow(0.05), problem, W, 1)
    reborn = (new["V"] != moved["V"]).any(2)
    assert_close(reborn.double().mean(1), torch.full((2,), 0.2, dtype=torch.float64), atol=0.03, rtol=0)
    size = (new["V"] ** 2).sum(2) + new["a"] ** 2
    assert_close(size[reborn], torch.ones_like(size[reborn]))
    assert not torch.equal(reborn[0], reborn[1])
    assert_close(new["a"][~reborn], moved["a"][~reborn], rtol=0, atol=0)


def test_the_objective_falls_at_the_rate_of_mt_e7():
    """dL/dt = -sigma E_rho L' + sigma E_U L' - E_rho |v|^2, in expectation over the births."""
    problem, W = setting(FIELD, "logistic", trials=1)
    lam, sigma, eta = 0.05, 0.7, 1e-6
    rule = PerturbedWassersteinFlow(eta, lam=lam, sigma=sigma, weighted=True, births=40_000)
    new, _ = run(rule, problem, W, 1)
    assert new["V"].shape == (1, 40_006, 3)
    before, after = (rules.distributional_objective(problem, one, lam) for one in (W, new))
    theta = torch.randn(40_000, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    theta = theta / theta.norm(dim=1, keepdim=True)
    slope = -problem.y[0] * torch.sigmoid(-problem.margins(W)[0])  # dR / df_i

    def variation(a: Tensor, V: Tensor) -> Tensor:
        return (torch.relu(V @ problem.X[0].T) * a[:, None]) @ slope + lam * (a**2 + (V**2).sum(1))

    v, _ = rule.velocity(problem, W)
    speed = (v["a"] ** 2).sum() / 6 + (v["V"] ** 2).sum() / 6
    born, gone = variation(theta[:, 0], theta[:, 1:]).mean(), variation(W["a"][0], W["V"][0]).mean()
    expected = sigma * (born - gone) - speed
    assert_close((after - before)[0] / eta, expected, rtol=0.01, atol=0.02)


def test_weighted_particles_keep_the_total_mass():
    problem, W = setting(FIELD, "logistic")
    rule = PerturbedWassersteinFlow(
        1e-9, sigma=1e8, weighted=True, births=2, every=3
    )  # hardly any motion, a tenth dies each step
    new, _ = run(rule, problem, W, 3)
    grown = (new["V"] ** 2).sum((1, 2)) + (new["a"] ** 2).sum(1)
    old = (W["V"] ** 2).sum((1, 2)) + (W["a"] ** 2).sum(1)
    assert_close(grown / 6, 0.9**3 * old / 6 + (1 - 0.9**3), rtol=1e-5, atol=0.0)


# The weakly regularised path


@dataclass(frozen=True)
class Linear(Net):
    """f(x) = v . x, for which the path is known to end at the hard margin."""

    name = "linear"

    def __post_init__(self) -> None:
        for key, value in {"trained": ("v",), "homogeneous": ("v",), "degree": 1, "outputs": 1}.items():
            object.__setattr__(self, key, value)

    def draw(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {"v": rng.standard_normal(self.d)}

    def evaluate(self, W: Params, X: Tensor) -> tuple[Tensor, Any]:
        return (X @ W["v"][:, :, None])[:, :, 0], None

    def pull(self, W: Params, X: Tensor, g: Tensor, saved: Any = None) -> Params:
        return {"v": (g[:, :, None] * X).sum(1)}


def separable(n: int, d: int, seed: int) -> Dataset:
    points = noise(n, d, seed)
    return Dataset(points.X, np.where(points.X @ np.ones(d) > 0, 1.0, -1.0))


@pytest.mark.parametrize(("loss", "reduction"), [("logistic", "mean"), ("exp", "sum"), ("squared", "sum")])
def test_the_objective_of_the_path_and_its_gradient(loss: str, reduction: str):
    def risk(p: Tensor) -> Tensor:
        # labels are signs, so (y - f)^2 = (1 - y f)^2
        each = {"logistic": torch.log1p(torch.exp(-p)), "exp": torch.exp(-p), "squared": (1 - p) ** 2}[loss]
        return each.mean() if reduction == "mean" else each.sum()

    problem, W = setting(RELU, loss)
    rule = WeaklyRegularized(reduction=reduction, power=1.5)
    value, grad, _ = rule.objective(problem, W, torch.log(torch.full((3,), 0.02, dtype=torch.float64)))
    for trial in range(3):
        norm = RELU.norm2(one(W, trial))[0].sqrt()
        total = risk(torch.tensor(POINTS.y) * RELU.forward(one(W, trial), problem.X)[0]) + 0.02 * norm**1.5
        assert_close(value[trial], total.log())
        g = gradient(W, trial, risk)
        flat = torch.cat([(g[k] + 0.02 * 1.5 * norm**-0.5 * W[k][trial]).flatten() for k in RELU.trained]) / total
        assert_close(grad[trial], flat)


def test_the_path_of_a_linear_classifier_ends_at_the_hard_margin():
    points = separable(15, 3, 2)
    best = margins.linear(points)
    net = Linear(d=3, m=1)
    problem, W = setting(net, "logistic", points, trials=2)
    rule = WeaklyRegularized(first=1e-1, inner=200)
    W, state = follow_path(problem, W, rule)
    assert state.status.tolist() == [2, 2] and len(rule.lambdas) == 14
    assert rule.lambdas[-1] == pytest.approx(1e-14)
    norm, margin = state.path_norm, state.path_margin
    assert bool((norm.diff(dim=1) > 0).all()) and bool((margin.diff(dim=1) > -1e-3 * best.lower).all())
    assert bool((margin <= best.upper * (1 + 1e-9)).all()) and bool((margin[:, -1] >= 0.97 * best.lower).all())
    # MT-4 at each minimiser: n log(1 + exp(-|Theta| gamma*)) >= log(1 + exp(-|Theta| gamma_lambda))
    left = 15 * torch.log1p(torch.exp(-norm * best.upper))
    assert bool((left * (1 + 1e-6) >= torch.log1p(torch.exp(-norm * margin))).all())


@pytest.mark.parametrize("law", ["mean", "sum"])
def test_the_path_minimises_each_objective(law: str):
    """Against scipy on the linear classifier, at a moderate lambda."""
    from scipy.optimize import minimize

    points = separable(15, 3, 4)
    problem, W = setting(Linear(d=3, m=1), "logistic", points, trials=1)
    rule = WeaklyRegularized(first=1e-2, last=1e-3, per_decade=1, reduction=law, inner=200, tol=1e-12)
    W, state = follow_path(problem, W, rule)
    scale = 15 if law == "sum" else 1

    def objective(v: np.ndarray) -> float:
        return scale * np.log1p(np.exp(-points.y * (points.X @ v))).mean() + 1e-3 * v @ v

    found = minimize(objective, np.zeros(3), tol=1e-12)
    assert_close(W["v"][0], torch.tensor(found.x), rtol=1e-4, atol=1e-4)
    assert_close(state.path_loss[0, -1].exp().item(), found.fun, rtol=1e-9, atol=0.0)


def test_the_path_of_a_two_layer_net_reaches_the_certified_margin():
    points = data.parity(4, marginal="full")
    best = margins.f1(points).lower / 2
    problem, W = setting(TwoLayer(d=4, m=16), "logistic", points, trials=2)
    _, state = follow_path(problem, W, WeaklyRegularized(per_decade=0.5, inner=150))
    margin, norm = state.path_margin, state.path_norm
    assert bool((norm.diff(dim=1) > 0).all())
    assert bool((margin <= best * (1 + 1e-6)).all())
    assert bool((margin[:, -1] >= 0.98 * best).all()), margin / best
    # The norm at the end is that of the best direction: |Theta|^2 gamma ~ ln(1 / lambda)
    assert bool(((norm[:, -1] ** 2 * best - 32).abs() < 5).all())


def test_the_path_in_depth_and_for_several_classes():
    points = noise(6, 2, 0)
    three = Dataset(points.X, np.array([0.0, 1, 2, 0, 1, 2]))
    for net, sample, loss in ((MLP(d=2, m=12, depth=3), points, "logistic"), (MLP(d=2, m=12, outputs=3), three, "ce")):
        problem, W = setting(net, loss, sample, trials=1)
        _, state = follow_path(problem, W, WeaklyRegularized(first=1e-4, last=1e-8, per_decade=0.5, inner=150))
        assert bool((state.path_norm.diff(dim=1) > 0).all())
        assert float(state.path_margin[0, -1]) > 0
        assert float(state.path_margin[0, -1]) >= float(state.path_margin[0, 0]) * (1 - 1e-3)


def test_the_path_of_a_regression_ends_near_an_interpolant_of_small_norm():
    rng = np.random.default_rng(0)
    points = Dataset(rng.standard_normal((8, 3)), rng.standard_normal(8))
    least = margins.min_norm_l1(points)
    problem, W = setting(TwoLayer(d=3, m=40), "squared", points, trials=2)
    W, state = follow_path(problem, W, WeaklyRegularized(first=1e-2, last=1e-8, per_decade=0.5, inner=200))
    residual = problem.margins(W).abs().amax(1)
    assert bool((residual < 1e-4).all()), residual
    norm = state.path_norm[:, -1] ** 2 / 2
    assert bool((norm >= least.lower * (1 - 1e-4)).all()) and bool((norm <= 1.1 * least.upper).all()), (
        norm / least.upper
    )


# Two phases, Adam, schedules


def test_two_phases_move_one_layer_each():
    problem, W = setting(RELU, "logistic")
    rule = TwoPhase(lr1=2.0, steps1=1, decay1=1.0, kept=1, lr2=0.3, batch2=2, decay2=0.1)
    state = rule.init(problem, W)
    first, state = rule.step(problem, W, state)
    assert_close(first["a"], torch.zeros_like(W["a"]))
    for trial in range(3):
        # the correlation with the labels: the gradient at outputs that count as zero
        active = (POINTS.X @ W["V"][trial].numpy().T > 0) * (0.5 * POINTS.y / 7)[:, None]
        step = W["a"][trial].numpy()[:, None] * (active.T @ POINTS.X)
        V = W["V"][trial].numpy().copy()
        V[:, :-1] = 2.0 * step[:, :-1]
        assert_close(first["V"][trial], torch.tensor(V))
    sample = rules.examples.drawn(problem, state, 2, 0, None)
    second, state = rule.step(problem, first, state)
    assert_close(second["V"], first["V"], rtol=0, atol=0)
    for trial in range(3):
        g = gradient(first, trial, logistic, X=sample.X[trial].numpy(), y=sample.y[trial].numpy())
        assert_close(second["a"][trial], first["a"][trial] - 0.3 * g["a"])


def symmetric(W: Params) -> Params:
    """The second half of the neurons as a copy of the first with opposite outer weights: f = 0."""
    half = W["a"].shape[1] // 2
    a, V = W["a"][:, :half], W["V"][:, :half]
    return W | {"a": torch.cat([a, -a], 1), "V": torch.cat([V, V], 1)}


def test_two_phases_learn_a_parity_from_fresh_examples():
    net = TwoLayer(d=12, m=64)
    problem = pose(net, data.parity(12, n=500, seed=1), "logistic")
    rule = TwoPhase(lr1=30.0, batch1=4000, decay1=1.0, lr2=3.0, batch2=20, sampler=ParityStream(12))
    problem_W = tensors(net, 2)
    W = symmetric(problem_W)
    assert_close(net.forward(W, problem.X), torch.zeros(2, 500, dtype=torch.float64))
    W, state = run(rule, problem, W, 1)
    inner = W["V"] ** 2
    assert float(inner[:, :, :2].sum() / inner.sum()) > 0.5  # the support
    W, state = run(rule, problem, W, 400, state)
    assert bool(((problem.margins(W) <= 0).double().mean(1) < 0.1).all())


def test_adam_is_torch_adam():
    problem, W = setting(RELU, "logistic")
    new, _ = run(Adam(0.05), problem, W, 5)
    for trial in range(3):
        parts = {k: W[k][trial].clone().requires_grad_() for k in ("V", "a")}
        theirs = torch.optim.Adam(parts.values(), lr=0.05)
        for _ in range(5):
            theirs.zero_grad()
            f = torch.relu(torch.tensor(POINTS.X) @ parts["V"].T) @ parts["a"]
            logistic(torch.tensor(POINTS.y) * f).backward()
            theirs.step()
        for k, part in parts.items():
            assert_close(new[k][trial], part.detach())


def test_adam_estimates_the_margin_of_the_output_layer_from_below():
    """BN-24: V frozen, outer weights in the unit ball; the exact value is a convex problem."""
    points = separable(10, 3, 1)
    net = TwoLayer(d=3, m=30, law="sphere")
    problem, W = setting(net, "logistic", points, trials=1)
    W["a"] = W["a"] / math.sqrt(30)
    best = margins.random_features(points, W["V"][0].numpy())
    W, _ = run(Adam(0.02, only=("a",), unit=("a",), sharpness=60.0), problem, W, 1500)
    assert float(W["a"].norm()) == pytest.approx(1)
    reached = float(problem.margins(W).min()) / math.sqrt(30)
    assert 0.9 * best.lower <= reached <= best.upper * (1 + 1e-9)
    moved, _ = run(Adam(0.1, radius=0.25), problem, W, 50)
    for k in ("a", "V"):
        assert float((moved[k] - W[k]).flatten(1).norm(dim=1).max()) <= 0.25 * (1 + 1e-12)


def test_weight_decay_is_annealed_as_in_the_table():
    golden = {0: 2e-4, 59: 2e-4, 60: 4e-5, 90: 2e-5, 120: 1e-5, 140: 5e-6, 161: 2.5e-6}
    for epoch, value in golden.items():
        assert weight_decay_schedule(epoch, "cifar10") == pytest.approx(value, rel=1e-12)
    assert weight_decay_schedule(0, "cifar100") == 5e-4
    assert weight_decay_schedule(161, "cifar100") == pytest.approx(4e-6, rel=1e-12)
    with pytest.raises(InputError, match="cifar10 or cifar100"):
        weight_decay_schedule(0, "mnist")
    rule = GD(0.1, schedule="cifar10", epoch=10)
    assert rule.rates(599) == (0.1, 2e-4)
    assert rule.rates(1610) == pytest.approx((0.1 * 0.2**3, 2.5e-6))
    problem, W = setting(RELU, "logistic")
    late = replace(rule.init(problem, W), step=1610)
    new, _ = rule.step(problem, W, late)
    g = gradient(W, 0, logistic)
    assert_close(new["V"][0], W["V"][0] - 0.1 * 0.2**3 * (g["V"] + 2.5e-6 * W["V"][0]))


# The door


def test_every_name_makes_its_rule():
    kinds = {
        "gd": GD,
        "ngd": NormalizedGD,
        "sgd": SGD,
        "cb": SmoothMarginAscent,
        "prop6": NeuronNormAscent,
        "prop7": OutputLayerAscent,
        "mirror": Mirror,
    }
    kinds |= {
        "wgf": WassersteinFlow,
        "pwgf": PerturbedWassersteinFlow,
        "weakreg": WeaklyRegularized,
        "two-phase": TwoPhase,
        "adam": Adam,
    }
    for name, kind in kinds.items():
        assert type(make_rule(name)) is kind
    assert make_rule("sgd", lr=0.3, batch=4, seed=None) == SGD(0.3, batch=4)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("magic", {}, "unknown algorithm 'magic'"),
        ("gd", {"sigma": 1.0}, "no option 'sigma'"),
        ("gd", {"lr": 0.0}, "lr must be a number above 0"),
        ("gd", {"lr": math.nan}, "lr must be"),
        ("gd", {"schedule": "mnist"}, "cifar10 or cifar100"),
        ("sgd", {"batch": 0}, "batch"),
        ("sgd", {"order": "backwards"}, "order 'backwards'"),
        ("cb", {"variant": "book"}, "variant 'book'"),
        ("ngd", {"shrink": 1.5}, "below 1"),
        ("mirror", {"clock": "wall"}, "clock 'wall'"),
        ("wgf", {"scheme": "implicit"}, "scheme 'implicit'"),
        ("pwgf", {"eta": 2.0, "sigma": 1.0}, "probability"),
        ("weakreg", {"first": 1e-9, "last": 1e-3}, "last must not exceed first"),
        ("weakreg", {"reduction": "max"}, "not mean or sum"),
        ("two-phase", {"sampler": ParityStream(3)}, "give batch1"),
        ("adam", {"beta2": 1.0}, "below 1"),
        ("spectral", {"iterations": 10**6}, "at most 1000, not 1000000"),
        ("adam", {"sharpness": 10**30}, "must be a number below 2\\^63, or have a decimal point"),
        ("gd", {"lr": 10**400}, "lr must be a number below"),
        ("pwgf", {"births": 10**12}, "births must be at most 1000000"),
    ],
)
def test_options_that_make_no_sense_are_refused(name: str, options: dict[str, Any], says: str):
    with pytest.raises(InputError, match=says):
        make_rule(name, **options)


@pytest.mark.parametrize(
    ("rule", "net", "loss", "says"),
    [
        (NormalizedGD(), RELU, "squared", "squared loss"),
        (SmoothMarginAscent(), RELU, "squared", "squared loss"),
        (SmoothMarginAscent(variant="code"), RELU, "logistic", "loss exp"),
        (NeuronNormAscent(), RELU, "exp", "norms of neurons with frozen directions"),
        (
            NeuronNormAscent(),
            TwoLayer(d=3, m=4, law="cb", activation="srelu"),
            "exp",
            "norms of neurons with frozen directions",
        ),
        (NeuronNormAscent(), Frozen(d=3, m=6), "logistic", "loss exp"),
        (OutputLayerAscent(), RELU, "exp", "output layer alone"),
        (Mirror(), RELU, "logistic", "products"),
        (WassersteinFlow(), RELU, "logistic", "1/m"),
        (PerturbedWassersteinFlow(), OUTPUT, "logistic", "both layers"),
        (TwoPhase(), OUTPUT, "logistic", "inner"),
        (Adam(only=("c",)), RELU, "logistic", "no trained parameter 'c'"),
        (SGD(batch=20, order="epochs"), RELU, "logistic", "more than the 7 points"),
        (WeaklyRegularized(), Normalized(d=3, m=6), "logistic", "homogeneous"),
    ],
)
def test_nets_that_make_no_sense_are_refused(rule: Rule, net: Net, loss: str, says: str):
    problem, W = setting(net, loss)
    with pytest.raises(InputError, match=says):
        rule.init(problem, W)


def test_the_mirror_needs_a_balanced_start():
    problem, W = setting(Normalized(d=3, m=6), "logistic")
    with pytest.raises(InputError, match="balanced"):
        Mirror().init(problem, W | {"a": 2 * W["a"]})
