"""The certified optimum of training: closed forms, PyTorch, and networks that were trained."""

import json

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from widemargin import Certificate, Dataset, Measure, optima, pricing, verify

LOSSES = ("logistic", "squared", "hinge", "squared-hinge", "exp")
MODES = (None, "free", "decayed")
rng = np.random.default_rng(0)
X = rng.standard_normal((24, 2))
DATA = Dataset(X, np.where(X[:, 0] * X[:, 1] + 0.4 * rng.standard_normal(24) > 0, 1, -1), "quadrants")
WEIGHTS = rng.uniform(0.2, 2, 24)


def torch_loss(name, y, t):
    m = y * t
    return {
        "logistic": lambda: torch.nn.functional.binary_cross_entropy_with_logits(t, (y + 1) / 2, reduction="none"),
        "squared": lambda: 0.5 * torch.nn.functional.mse_loss(t, y, reduction="none"),
        "hinge": lambda: torch.relu(1 - m),
        "squared-hinge": lambda: 0.5 * torch.relu(1 - m) ** 2,
        "exp": lambda: torch.exp(-m),
    }[name]()


def torch_objective(measure: Measure, b: float, data: Dataset, loss: str, decay: float, mode, weights=None) -> float:
    """Loss and weight decay of nn.Sequential(Linear, ReLU, Linear) with both layers of one size, as a user would write it."""
    W, a = measure.to_network()
    one = torch.nn.Linear(data.d, len(a), bias=measure.bias, dtype=torch.float64)
    two = torch.nn.Linear(len(a), 1, bias=mode is not None, dtype=torch.float64)
    with torch.no_grad():
        one.weight.copy_(torch.as_tensor(W[:, : data.d]))
        two.weight.copy_(torch.as_tensor(a[None]))
        if measure.bias:
            one.bias.copy_(torch.as_tensor(W[:, -1]))
        if mode is not None:
            two.bias.fill_(b)
    model = torch.nn.Sequential(one, torch.nn.ReLU(), two)
    y, w = torch.tensor(data.y), torch.as_tensor(np.ones(data.n) if weights is None else weights)
    each = torch_loss(loss, y, model(torch.tensor(data.X))[:, 0])
    decayed = [p for p in model.parameters() if mode != "free" or p is not two.bias]
    return float(((w * each).sum() / w.sum() + decay / 2 * sum((p**2).sum() for p in decayed)).detach())


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("mode", MODES)
def test_upper_is_the_objective_of_the_pytorch_network(loss, mode):
    """Every loss and output bias, with and without weights and biases: verified, closed, and what PyTorch computes."""
    for bias, weights in ((True, None), (False, WEIGHTS)):
        cert = optima.f1(DATA, loss=loss, weight_decay=0.03, bias=bias, output_bias=mode, weights=weights)
        assert cert.status == "certified" and cert.gap <= 1e-3
        assert cert.verify(DATA).ok, cert.verify(DATA)
        assert 0 < cert.atoms <= DATA.n + 1
        assert (cert.kind, cert.convention, cert.extra["loss"]) == ("f1-optimum", "objective", loss)
        value = torch_objective(cert.primal, cert.extra["offset"], DATA, loss, 0.03, mode, weights)
        assert_allclose(value, cert.upper, rtol=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_no_random_network_is_below_the_bound(loss):
    """The measure's objective is that of the balanced network, and none lies below what is proved."""
    certs = {mode: optima.f1(DATA, loss=loss, weight_decay=0.05, output_bias=mode, bias=True) for mode in MODES}
    draw = np.random.default_rng(1)
    for mode in MODES:
        for m in (1, 3, 20):
            net = Measure(draw.standard_normal((m, 3)), draw.standard_normal(m) / m, "relu", True)
            b = 0.3 if mode else 0.0
            y = DATA.y
            t = net(DATA.X) + b
            plain = {
                "logistic": np.log1p(np.exp(-y * t)),
                "squared": (y - t) ** 2 / 2,
                "hinge": np.maximum(0, 1 - y * t),
                "squared-hinge": np.maximum(0, 1 - y * t) ** 2 / 2,
                "exp": np.exp(-y * t),
            }[loss].mean() + 0.05 * (net.norm + (b * b / 2 if mode == "decayed" else 0))
            value = torch_objective(net, b, DATA, loss, 0.05, mode)
            assert_allclose(value, plain, rtol=1e-12)
            assert value > certs[mode].lower


@pytest.mark.slow
def test_training_ends_above_the_bound_and_not_below_the_network():
    """L-BFGS on fifty neurons from three starts: no run is below the network of the certificate, and the best is close."""
    cert = optima.f1(DATA, loss="logistic", weight_decay=0.01, output_bias="free", bias=True)
    ends = []
    for seed in range(3):
        torch.manual_seed(seed)
        net = torch.nn.Sequential(torch.nn.Linear(2, 50), torch.nn.ReLU(), torch.nn.Linear(50, 1)).double()
        rule = torch.optim.LBFGS(net.parameters(), max_iter=400, line_search_fn="strong_wolfe", history_size=50)
        x, y = torch.tensor(DATA.X), torch.tensor(DATA.y)

        def objective(net=net, x=x, y=y):
            decay = sum((p**2).sum() for p in [*net[0].parameters(), net[2].weight])
            return torch.nn.functional.softplus(-y * net(x)[:, 0]).mean() + 0.005 * decay

        def closure(rule=rule, objective=objective):
            rule.zero_grad()
            value = objective()
            value.backward()
            return value

        rule.step(closure)
        ends.append(float(objective().detach()))
    assert min(ends) > cert.lower and min(ends) > cert.upper * (1 - 1e-9) and min(ends) < 1.05 * cert.upper


ONE = {
    "logistic": lambda z: -z * np.log(z) - (1 - z) * np.log1p(-z),
    "squared": lambda z: z - z * z / 2,
    "hinge": lambda z: z,
    "squared-hinge": lambda z: z - z * z / 2,
    "exp": lambda z: z - z * np.log(z),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("decay", [1e-4, 0.3, 1.2])
def test_one_point_has_a_closed_form(loss, decay):
    """One neuron along x reaches t with norm t / |x|, so P is the dual g at z = decay / |x|, as long as t > 0 there."""
    data = Dataset([[3.0, 4.0]], [1])
    z = decay / 5
    cert = optima.f1(data, loss=loss, weight_decay=decay, bias=False, output_bias=None, tol=1e-6)
    assert cert.status == "certified" and cert.verify(data).ok and cert.atoms == 1
    assert cert.lower * (1 - 1e-9) <= ONE[loss](z) <= cert.upper * (1 + 1e-9)
    assert_allclose(cert.primal.theta, [[0.6, 0.8]], atol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_weights_are_repeated_points(loss):
    """Weight 2 is the point twice, weight 0 is no point at all."""
    weights = np.resize([1, 2, 0, 1], 24)
    twice = Dataset(np.repeat(X, weights, axis=0), np.repeat(DATA.y, weights))
    for mode in ("free", "decayed"):
        keys = {"loss": loss, "weight_decay": 0.05, "output_bias": mode}
        one = optima.f1(DATA, weights=weights, **({"bias": True} | keys))
        two = optima.f1(twice, **({"bias": True} | keys))
        assert one.verify(DATA).ok and two.verify(twice).ok
        assert one.lower <= two.upper and two.lower <= one.upper
        assert not np.asarray(one.dual)[weights == 0].any()


@pytest.mark.parametrize(("scale", "loss"), [(2.0**40, "logistic"), (1e-30, "exp"), (1e25, "hinge"), (1e-3, "squared")])
def test_scaled_points_with_a_scaled_decay_are_the_same_problem(scale, loss):
    usual = optima.f1(DATA, loss=loss, weight_decay=0.03, bias=False, output_bias="free")
    data = Dataset(scale * X, DATA.y)
    cert = optima.f1(data, loss=loss, weight_decay=0.03 * scale, bias=False, output_bias="free")
    assert cert.verify(data).ok and cert.status == "certified"
    assert cert.lower <= usual.upper * (1 + 1e-12) and usual.lower <= cert.upper * (1 + 1e-12)


def test_scaled_targets():
    """y -> 1000 y with decay -> 1000 decay multiplies the objective by 10^6."""
    values = Dataset(X, np.sin(3 * X[:, 0]) + X[:, 1])
    usual = optima.f1(values, loss="squared", weight_decay=0.02, tol=1e-4, bias=True)
    large = optima.f1(Dataset(X, 1000 * values.y), loss="squared", weight_decay=20.0, tol=1e-4, bias=True)
    assert usual.verify(values).ok and large.verify(Dataset(X, 1000 * values.y)).ok
    assert usual.status == large.status == "certified"
    assert large.lower <= 1e6 * usual.upper * (1 + 1e-9) and 1e6 * usual.lower <= large.upper * (1 + 1e-9)


def test_the_dual_of_a_free_output_bias_sums_to_zero_exactly():
    from fractions import Fraction

    for loss in LOSSES:
        cert = optima.f1(DATA, loss=loss, weight_decay=0.02, weights=WEIGHTS, bias=True)
        assert sum(Fraction(float(v)) for v in cert.dual) == 0 and np.abs(cert.dual).max() > 0


def test_points_that_are_equal_opposite_or_zero():
    points = np.array([[1.0, 2.0], [1.0, 2.0], [-1.0, -2.0], [0.0, 0.0], [0.0, 0.0], [2.0, -1.0], [1.0, 2.0], [-1, -2]])
    for labels in ([1, -1, 1, -1, 1, 1, 1, -1], [1, -1, -1, 1, -1, -1, 1, 1]):
        data = Dataset(points, labels)
        for bias in (True, False):
            for loss in ("logistic", "squared"):
                cert = optima.f1(data, loss=loss, weight_decay=0.02, bias=bias)
                assert cert.status == "certified" and cert.verify(data).ok
    data = Dataset([[1.0, 2.0], [1.0, 2.0]], [1, -1])  # nothing can be learned
    cert = optima.f1(data, weight_decay=0.1, bias=True)
    assert cert.atoms == 0
    assert_allclose([cert.lower, cert.upper], np.log(2), rtol=1e-9)


def test_progress_saving_and_loading(tmp_path):
    said = []
    cert = optima.f1(DATA, weight_decay=0.01, progress=lambda *now: said.append(now), bias=True)
    assert said
    for seconds, lower, upper, message in said:
        assert seconds >= 0 and message and 0 <= lower <= cert.upper * (1 + 1e-12) and upper >= cert.lower
    cert.save(tmp_path / "c.json.gz")
    again = Certificate.load(tmp_path / "c.json.gz")
    assert again.payload() == cert.payload() and again.verify(DATA).ok
    assert verify.check(json.loads(json.dumps(cert.payload())), DATA.X, DATA.y).ok
    assert_allclose(again.function(X), cert.primal(X) + cert.extra["offset"], rtol=1e-14)
    assert "least objective" in cert.verify(DATA).about and "loss logistic" in cert.verify(DATA).about


def test_a_solve_that_is_stopped_has_both_bounds():
    """At once, in the middle, by the clock or by the user: a network and a proof are there from the first moment on."""
    best = optima.f1(DATA, weight_decay=0.003, tol=1e-5, bias=True)

    def stop(after):
        def progress(*now):
            after[0] -= 1
            if after[0] < 0:
                raise KeyboardInterrupt

        return progress

    for count in (0, 1):
        cert = optima.f1(DATA, weight_decay=0.003, tol=1e-9, progress=stop([count]), bias=True)
        assert cert.status == "interrupted" and cert.verify(DATA).ok
        assert cert.lower <= best.upper and best.lower <= cert.upper
    cert = optima.f1(DATA, weight_decay=0.003, time_limit=1e-6, bias=True)
    assert cert.status == "time-limit" and cert.verify(DATA).ok and cert.lower > 0


def test_the_same_seed_gives_the_same_certificate():
    """But for the time it took and the second at which it was written, which the digest leaves out."""
    one, two = (optima.f1(DATA, weight_decay=0.02, seed=4, bias=True).payload() for _ in range(2))
    assert one["digest"] == two["digest"]


def test_a_solve_can_begin_with_the_network_of_another_decay():
    from widemargin.optima import problem, solver

    values = Dataset(1e3 * X, 50 * (np.sin(3 * X[:, 0]) + X[:, 1]))
    one = optima.f1(values, loss="squared", weight_decay=3.0, tol=1e-5, bias=True)
    entered = problem.enter(values, "squared", 2.9, True, "free", None, 1e-5, 60.0)
    warm, cold = (solver.Solver(entered, 1e-5, 0, "cpu", None) for _ in range(2))
    warm.begin_with(one.primal, one.extra["offset"])
    t = one.function(values.X)
    objective = ((values.y - t) ** 2 / 2).mean() + 2.9 * one.primal.norm
    assert_allclose(warm.shown()[1], objective, rtol=1e-9)  # its objective at the new decay
    found, usual = warm.run(), cold.run()
    assert found.status == usual.status == "certified" and found.verify(values).ok
    assert found.lower <= usual.upper and usual.lower <= found.upper
    assert warm.rounds < cold.rounds


def test_a_proof_too_large_to_be_kept_is_said_to_be_missing(monkeypatch):
    """The bound holds all the same, as it does for margins; `verify` says that there is nothing to check."""
    rng = np.random.default_rng(8)
    data = Dataset(rng.standard_normal((16, 4)), rng.choice([-1, 1], 16))
    decay = 0.1 * optima.largest_decay(data, bias=True).lower
    kept = optima.f1(data, weight_decay=decay, tol=5e-2, bias=True)
    assert kept.status == "certified" and kept.verify(data).ok
    monkeypatch.setattr(pricing.cones, "STORED", 1)
    monkeypatch.setattr(pricing.signs, "RECORD_BYTES", 1)
    lost = optima.f1(data, weight_decay=decay, tol=5e-2, bias=True)
    assert lost.status == "certified" and lost.proof["type"] == "omitted"
    assert kept.lower <= lost.upper and lost.lower <= kept.upper
    verdict = lost.verify(data)
    assert not verdict.ok and "lower bound: the proof is not stored" in str(verdict)
