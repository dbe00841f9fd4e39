"""What is recorded, from its definition."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from widemargin import Dataset, InputError, Measure, data, flows, margins
from widemargin.flows import GD, MLP, GradientFlow, Record, TwoLayer, make_net, pose, train
from widemargin.flows.contract import true_params
from widemargin.flows.observe import OBSERVERS, Setting, View, choose, dual_value, record

DATA = data.clusters(n=14, seed=1)
PARITY = data.parity(d=4, n=12, seed=0)
NET = TwoLayer(2, 9)


@pytest.fixture(scope="module")
def traj():
    test = data.clusters(n=30, seed=2)
    return train(DATA, NET, GD(lr=0.5), stop=60, trials=2, record=Record(["default", "weights"], points=8, test=test))


def weights_at(traj, k, b):
    return traj["W_a"][k, b], traj["W_V"][k, b]


def test_numbers_of_the_function(traj):
    for k in range(len(traj.t)):
        for b in range(2):
            a, V = weights_at(traj, k, b)
            p = DATA.y * ((DATA.X @ V.T).clip(0) @ a)
            loss = np.log1p(np.exp(-p))
            assert_allclose(traj["risk"][k, b], loss.mean(), rtol=1e-10)
            assert_allclose(traj["log_risk"][k, b], math.log(loss.mean()), rtol=1e-10)
            assert_allclose(traj["margin"][k, b], p.min(), rtol=1e-10)
            assert_allclose(traj["train_error"][k, b], (p <= 0).mean())
            psi = -math.log(math.expm1(loss.sum()))
            assert_allclose(traj["psi"][k, b], psi, rtol=1e-9)
            norm2 = (a**2).sum() + (V**2).sum()
            assert_allclose(traj["norm"][k, b], math.sqrt(norm2), rtol=1e-12)
            assert_allclose(traj["margin_M2"][k, b], p.min() / norm2, rtol=1e-10)
            assert_allclose(traj["psi_normalized"][k, b], psi / norm2, rtol=1e-9)
            assert_allclose(traj["margin_M1"][k, b], Measure(V, a).margin(DATA), rtol=1e-10)
            slope = 1 / (1 + np.exp(p))
            assert_allclose(traj["q"][k, b], slope / slope.sum(), rtol=1e-9)
            assert_allclose(traj["log_Q"][k, b], math.log(1 / (1 + math.exp(psi))), rtol=1e-9)


def test_numbers_of_the_neurons(traj):
    a0, V0 = weights_at(traj, 0, 1)
    a, V = weights_at(traj, -1, 1)
    size = np.linalg.norm(V, axis=1)
    assert_allclose(traj["neuron_norm"][-1, 1], np.abs(a) * size, rtol=1e-10)
    cosine = (V * V0).sum(1) / size / np.linalg.norm(V0, axis=1)
    assert_allclose(traj["rotation"][-1, 1], cosine, rtol=1e-9)
    assert_allclose(traj["rotation"][0], 1.0)
    assert_allclose(traj["moved_a"][-1, 1], np.linalg.norm(a - a0), rtol=1e-10)
    assert_allclose(traj["moved_V"][-1, 1], np.linalg.norm(V - V0), rtol=1e-10)
    change = (a**2 - size**2) - (a0**2 - (V0**2).sum(1))
    assert_allclose(traj["balance"][-1, 1], np.abs(change).max(), rtol=1e-9)
    mass = np.abs(a) * size
    assert_allclose(traj["effective_neurons"][-1, 1], mass.sum() ** 2 / (mass**2).sum(), rtol=1e-10)


def test_test_error(traj):
    test = data.clusters(n=30, seed=2)
    a, V = weights_at(traj, -1, 0)
    assert_allclose(traj["test_error"][-1, 0], (test.y * ((test.X @ V.T).clip(0) @ a) <= 0).mean())


def test_clocks(traj):
    assert_allclose(traj["t_mean"][:, 0], 0.5 * traj.t, rtol=1e-12)
    assert_allclose(traj["step"][:, 0], traj.t)
    assert (np.diff(traj["t_cb"], axis=0) > 0).all()


def test_what_is_dear_is_recorded_now_and_then():
    traj = train(DATA, NET, GD(lr=0.5), stop=200, record=Record(["kkt_residual", "risk"], points=90))
    known = np.isfinite(traj["kkt_residual"][:, 0])
    assert 10 <= known.sum() <= 25 and known[0] and known[-1]
    assert np.isfinite(traj["risk"]).all()


@pytest.mark.parametrize("slope", [0.0, 0.3])
def test_the_dual_estimate_is_the_maximum_over_a_circle(slope: float):
    net = replace(NET, activation=f"leaky:{slope!r}") if slope else NET
    problem = pose(net, DATA, "logistic")
    W = {name: torch.tensor(value) for name, value in net.init(3, 0).items()}
    q = torch.softmax(torch.randn(3, DATA.n, generator=torch.Generator().manual_seed(0), dtype=torch.float64), 1)
    found = dual_value(problem, q, net.neurons(W)[1])
    turn = np.linspace(0, 2 * np.pi, 100_001)
    circle = np.stack([np.cos(turn), np.sin(turn)], 1)
    features = (DATA.X @ circle.T).clip(0) - slope * (-DATA.X @ circle.T).clip(0)
    for b in range(3):
        best = np.abs((q[b].numpy() * DATA.y) @ features).max()
        assert_allclose(found[b].item(), best, rtol=2e-3)
        assert found[b].item() <= best * (1 + 1e-4)  # the grid stops short of kinks


@pytest.mark.parametrize("activation", ["relu", "leaky:0.3"])
def test_no_trajectory_beats_the_certificate_and_no_dual_goes_below_it(traj, activation: str):
    if activation != "relu":
        traj = train(
            DATA, replace(NET, activation=activation), GD(lr=0.5), stop=2000, trials=2, record=Record(points=8)
        )
        assert traj["margin_M1"][-1].min() > 0  # all points are right in the end
    cert = margins.f1(DATA, activation=activation, tol=1e-4)
    assert cert.proved
    assert traj["margin_M1"].max() <= cert.upper
    assert traj["margin_M2"].max() <= cert.upper / 2
    # The bound of any q is at least the margin; its estimate may fall short of it a little.
    assert traj["dual_estimate"].min() >= cert.lower * (1 - 1e-2)
    assert_allclose(traj["gap_estimate"], traj["dual_estimate"] - traj["margin_M1"], rtol=1e-9)


def test_a_logarithmic_scale_changes_nothing_but_the_size():
    problem = pose(NET, DATA, "logistic")
    W = {name: torch.tensor(value) for name, value in NET.init(2, 3).items()}
    state = GD().init(problem, W)
    big = {name: 3.0 * value for name, value in W.items()}
    scaled = replace(state, log_scale=torch.full((2,), math.log(3.0), dtype=torch.float64))
    observers, _ = choose("default", Setting(problem, False, 2, 1))
    plain, logged = (record(observers, View(problem, *at, W)) for at in ((big, state), (W, scaled)))
    for name, value in plain.items():
        assert_allclose(logged[name].numpy(), value.numpy(), rtol=1e-9, atol=1e-9, err_msg=name)
    assert_allclose(View(problem, W, scaled, W).margins.numpy(), problem.margins(big).numpy())
    assert_allclose(true_params(problem, W, scaled)["V"].numpy(), big["V"].numpy())


def test_margins_far_beyond_floating_point_stay_numbers():
    problem = pose(NET, DATA, "exp")
    W = {name: torch.tensor(value) for name, value in NET.init(1, 3).items()}
    state = replace(GD().init(problem, W), log_scale=torch.tensor([300.0], dtype=torch.float64))
    observers, _ = choose(["margins", "psi_normalized", "log_norm", "log_risk"], Setting(problem, False, 1, 1))
    row = record(observers, View(problem, W, state, W))
    assert all(np.isfinite(value.numpy()).all() for value in row.values()), row
    assert_allclose(row["psi_normalized"].numpy(), row["margin_M2"].numpy(), rtol=1e-6)


def test_gradient_flow_is_recorded_in_true_size():
    traj = train(
        PARITY, TwoLayer(4, 16), GradientFlow(), record=Record(["default", "weights"], times=range(0, 170, 10))
    )
    W = {name: torch.tensor(traj[f"W_{name}"][-1]) for name in ("a", "V")}
    p = PARITY.y * ((PARITY.X @ W["V"][0].numpy().T).clip(0) @ W["a"][0].numpy())
    assert_allclose(traj["margin"][-1, 0], p.min(), rtol=1e-9)
    assert_allclose(traj["moved_a"][-1, 0], np.linalg.norm(traj["W_a"][-1, 0] - traj["W_a"][0, 0]), rtol=1e-9)
    smooth = traj["psi_normalized"][traj["log_risk"][:, 0] < math.log(math.log(2) / PARITY.n), 0]
    assert len(smooth) > 3 and (np.diff(smooth) > -1e-6 * smooth.max()).all()
    assert traj["honest"][-1, 0] in (0.0, 1.0)


def test_several_classes():
    X = np.concatenate([DATA.X, DATA.X[:7] + 3])
    y = np.concatenate([(DATA.y + 1) / 2, np.full(7, 2.0)])
    three = Dataset(X, y)
    net = MLP(2, 8, outputs=3, depth=2)
    traj = train(three, net, GD(lr=0.3), stop=20, loss="ce", record=["default", "weights"])
    f = (X @ traj["W_W1"][-1, 0].T).clip(0) @ traj["W_W2"][-1, 0].T
    own = f[np.arange(len(y)), y.astype(int)]
    others = np.where(np.eye(3, dtype=bool)[y.astype(int)], -np.inf, f)
    assert_allclose(traj["margin"][-1, 0], (own - others.max(1)).min(), rtol=1e-9)
    assert_allclose(traj["train_error"][-1, 0], (own <= others.max(1)).mean())
    assert_allclose(traj["risk"][-1, 0], (np.log(np.exp(f).sum(1)) - own).mean(), rtol=1e-9)


def test_regression_has_a_risk_and_no_margins():
    real = Dataset(DATA.X, np.sin(DATA.X[:, 0]))
    traj = train(real, NET, GD(lr=0.05), loss="squared", stop=30, record=Record(test=real))
    assert not [name for name in traj.records if "margin" in name or name in ("psi", "q", "train_error")]
    assert_allclose(traj["risk"], traj["test_error"])
    with pytest.raises(InputError, match="makes no sense here"):
        train(real, NET, GD(), loss="squared", stop=30, record="margins")


def test_own_functions_of_a_view():
    seen = {
        "norm": None,
        "size": "norm",
        "when": lambda view: view.t,
        "p": lambda view: view.margins,
        "both": lambda view: {"wrong": (view.margins <= 0).sum(1), "step": view.state.taken},
    }
    traj = train(DATA, NET, GD(lr=0.5), stop=10, trials=2, record=seen)
    assert_allclose(traj["norm"], traj["size"])
    assert_allclose(traj["when"][-1], 5.0)
    assert traj["p"].shape == (len(traj.t), 2, DATA.n)
    assert_allclose(traj["wrong"], (traj["p"] <= 0).sum(2))
    assert_allclose(traj["step"][:, 0], traj.t)


def test_long_records_are_left_out_of_huge_runs_unless_asked_for():
    problem = pose(NET, DATA, "logistic")
    chosen, notes = choose("default", Setting(problem, False, 10**6, 200))
    assert not {"q", "rotation", "neuron_norm"} & set(chosen) and "ask for them by name" in notes[0]
    chosen, _ = choose(["default", "q"], Setting(problem, False, 10**6, 200))
    assert "q" in chosen


@pytest.mark.parametrize(
    "kind", ["relu", "srelu", "output", "frozen", "scalar", "product", "normalized", "batchnorm", "mlp"]
)
def test_every_net_is_recorded(kind):
    options = {"data": DATA.X} if kind == "batchnorm" else {}
    traj = train(DATA, make_net(kind, 2, 8, **options), GD(lr=0.05), stop=6, trials=2)
    names = [name for name in traj.records if name.startswith("margin_")]
    assert len(names) >= 2, names
    for name in traj.records:
        if name != "log_t_mean":
            assert np.isfinite(traj[name][1:]).all(), name  # an output layer that starts at 0 has no margin there
        assert traj[name].shape[:2] == (len(traj.t), 2)


def test_every_observer_says_what_it_is():
    for name, known in OBSERVERS.items():
        assert name in ("t_cb", "log_t_mean", "log_risk", "train_error", "test_error", "margins", "log_norm") or (
            known.observer.__doc__
        ), name


def test_balance_of_flows():
    """a_j^2 - |v_j|^2 does not move along the flow: with half the step, half the error of GD. Equal |a_j|, |b_j| stay equal."""
    keys = {"record": ["balance"]}
    drift = [train(DATA, NET, GD(lr=lr), stop=round(2 / lr), **keys)["balance"][-1, 0] for lr in (0.02, 0.01)]
    assert 1.6 < drift[0] / drift[1] < 2.4
    assert train(DATA, make_net("scalar", 2, 8), GD(lr=0.02), stop=50, **keys)["balance"].max() < 1e-14
    assert flows.OBSERVERS is OBSERVERS


def test_trials_of_their_own_widths_are_recorded():
    traj = train(PARITY, TwoLayer(4, 6, widths=(2, 6)), GD(lr=0.1), stop=3, trials=2)
    assert traj["effective_neurons"].shape == (4, 2) and (traj["effective_neurons"][:, 0] <= 2 + 1e-9).all()
