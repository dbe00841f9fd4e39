"""Several real targets and the squared loss: against one target, PyTorch, the group lasso, interpolation; false certificates."""

from __future__ import annotations

import copy
import math

import numpy as np
import outputs_shared as shared
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import ortho_group
from sklearn.linear_model import MultiTaskLasso

from checks import repeated, seal
from widemargin import margins, optima, theory, verify
from widemargin.optima import groups, kernel_machines, problem, solver, wide_networks
from widemargin.optima.outputs import TargetPoints
from widemargin.pricing import several
from widemargin.types import Certificate, Dataset, InputError

MODES = (None, "free", "decayed")


def made(n: int, d: int, K: int, seed: int, scale: float = 1.0) -> Dataset:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    Y = np.column_stack([np.sin((1 + k) * X[:, 0]) + (0.5 * k * X[:, -1] ** 2) for k in range(K)])
    return Dataset(scale * X, Y + 0.1 * rng.standard_normal((n, K)), f"waves {seed}")


def solve(data: Dataset, decay: float, **keys) -> Certificate:
    return optima.f1(data, loss="squared", weight_decay=decay, **({"bias": True} | {"time_limit": 60} | keys))


def objective(data, cert, theta, outer, b):
    """From its definition, for weights theta (m, D), outer (m, K), b (K,) and the loss and decay of a certificate."""
    X = np.hstack([data.X, np.ones((data.n, 1))]) if cert.bias else data.X
    each = ((data.y - (X @ theta.T).clip(0) @ outer - b) ** 2).sum(axis=1) / 2
    ridge = 0.5 * float(b @ b) if cert.extra["output_bias"] == "decayed" else 0.0
    norm = float(np.linalg.norm(theta, axis=1) @ np.linalg.norm(outer, axis=1))
    return float(np.average(each, weights=cert.extra.get("weights"))) + cert.extra["weight_decay"] * (norm + ridge)


def stored(cert):
    return (np.array(cert.extra[name]) for name in ("theta", "outer", "offset"))


@pytest.mark.parametrize(
    ("n", "d", "K", "bias", "scale", "weighted"),
    [
        (30, 1, 3, True, 1.0, True),
        (25, 2, 4, False, 1e4, False),
        (14, 3, 3, False, 1e-3, True),
        (8, 6, 2, True, 1.0, False),
    ],
)
@pytest.mark.parametrize("output_bias", MODES)
def test_certificates_verify_and_no_network_is_below(n, d, K, bias, scale, weighted, output_bias):
    data, rng = made(n, d, K, 3, scale), np.random.default_rng(0)
    weights = rng.uniform(0, 3, n) * (np.arange(n) != 2) if weighted else None
    cert = solve(data, 0.03 * scale, bias=bias, output_bias=output_bias, weights=weights, tol=1e-2)
    assert cert.status == "certified" and cert.kind == "f1-multitarget-optimum"
    verdict = cert.verify(data)
    assert verdict.ok, verdict
    assert 0 < cert.atoms <= n * K and cert.extra["targets"] == K
    theta, outer, b = stored(cert)
    assert_allclose(objective(data, cert, theta, outer, b), cert.upper, rtol=1e-9)
    for _ in range(30):
        far = 10.0 ** rng.uniform(-5, 0)
        other = [part * (1 + far * rng.standard_normal(part.shape)) for part in (theta, outer, b)]
        assert objective(data, cert, *other) >= cert.lower


@pytest.mark.parametrize("output_bias", [None, "free", "decayed"])
@pytest.mark.parametrize("K", [2, 3])
def test_which_training_it_is(K, output_bias):
    """MSELoss averages over outputs too: with it and the decay l the objective is 2 / K times ours with weight_decay K l / 2."""
    rng = np.random.default_rng(K)
    X, Y = rng.standard_normal((17, 3)), rng.standard_normal((17, K))
    for seed in range(6):
        torch.manual_seed(seed)
        has = output_bias is not None
        model = torch.nn.Sequential(
            torch.nn.Linear(3, 6, bias=bool(seed % 2)), torch.nn.ReLU(), torch.nn.Linear(6, K, bias=has)
        ).double()
        decay = float(rng.uniform(0.01, 1))
        with torch.no_grad():
            mse = float(torch.nn.MSELoss()(model(torch.tensor(X)), torch.tensor(Y)))
            decayed = [p for name, p in model.named_parameters() if name != "2.bias" or output_bias == "decayed"]
            trained = mse + decay / 2 * float(sum((p**2).sum() for p in decayed))
        found = optima.gap(
            model, X, Y, loss="squared", weight_decay=K * decay / 2, output_bias=output_bias, tol=0.5, time_limit=0.05
        )
        assert_allclose(2 / K * found.objective, trained, rtol=1e-12)
        assert_allclose(2 / K * found.loss, mse, rtol=1e-12)
        assert found.certificate.lower <= found.balanced <= found.objective


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("output_bias", MODES)
def test_upper_is_what_pytorch_trains(bias, output_bias):
    data = made(20, 2, 3, 5)
    cert = solve(data, 0.02, bias=bias, output_bias=output_bias, tol=0.05)
    shared.check_upper(data, cert, lambda t: 3 / 2 * torch.nn.MSELoss()(t, torch.tensor(data.y)))


def test_training_never_goes_below_and_comes_near():
    data, wd = made(20, 2, 2, 11), 0.03
    cert = solve(data, wd, output_bias="decayed", tol=1e-2)
    Y = torch.tensor(data.y)
    best = shared.least_by_adam(
        data, 2, wd, 0, lambda t: torch.nn.functional.mse_loss(t, Y)
    )  # K = 2: the mean of |y - t|^2 / 2
    assert cert.lower <= best <= 1.05 * cert.upper


# ---------------------------------------------------------------- limits


@repeated("output_bias", MODES, 1)
def test_targets_along_one_vector_are_one_target(output_bias):
    """y_i = s_i u with a unit u is the problem of s; K copies of s are sqrt(K) s; a target that is 0 changes nothing."""
    one = Dataset(made(14, 2, 2, 0).X, made(14, 2, 2, 0).y[:, 0])
    weights = np.random.default_rng(1).uniform(0.2, 2, 14)
    keys = {"bias": False, "output_bias": output_bias, "weights": weights, "tol": 1e-7}
    known = solve(one, 0.05, **keys)
    for many, target in (
        (np.outer(one.y, [0.6, 0.0, -0.8]), known),
        (np.column_stack([one.y, np.zeros(14)]), known),
        (np.tile(one.y[:, None], (1, 4)), solve(Dataset(one.X, 2 * one.y), 0.05, **keys)),
    ):
        data = Dataset(one.X, many)
        cert = solve(data, 0.05, **keys)
        assert cert.status == target.status == "certified" and cert.verify(data).ok
        assert_allclose([cert.lower, cert.upper], target.upper, rtol=2e-7)


def test_a_column_is_one_target():
    data = made(15, 2, 2, 4)
    column = data.y[:, :1]
    net = {"0.weight": np.eye(2), "2.weight": np.ones((1, 2))}
    first, second = (
        optima.gap(net, data.X, y, loss="squared", weight_decay=0.1, time_limit=30) for y in (column, column[:, 0])
    )
    assert first.certificate.payload()["dual"] == second.certificate.payload()["dual"]
    assert_array_equal(Dataset(data.X, column).y, column[:, 0])


def test_a_rotation_of_the_targets_changes_nothing():
    data = made(16, 2, 3, 7)
    turned = Dataset(data.X, data.y @ ortho_group.rvs(3, random_state=0))
    keys = {"bias": False, "tol": 1e-6}
    assert_allclose(solve(data, 0.05, **keys).upper, solve(turned, 0.05, **keys).upper, rtol=2e-6)


@pytest.mark.parametrize("output_bias", [None, "free"])
def test_from_the_largest_decay_on_the_constant_is_best(output_bias):
    data, weights = made(24, 2, 3, 0), np.resize([1.0, 0.5, 2.0], 24)
    top = optima.largest_decay(data, loss="squared", output_bias=output_bias, weights=weights, bias=True)
    assert 0 < top.lower <= top.upper <= 1.001 * top.lower
    above = solve(data, 1.001 * top.upper, output_bias=output_bias, weights=weights)
    mean = np.average(data.y, axis=0, weights=weights) if output_bias else np.zeros(3)
    constant = np.average(((data.y - mean) ** 2).sum(axis=1), weights=weights) / 2
    assert above.atoms == 0 and above.upper == pytest.approx(constant, rel=1e-9) and above.verify(data).ok
    assert_allclose(above.function(data.X), np.tile(mean, (24, 1)), atol=1e-9)
    below = solve(data, 0.9 * top.lower, output_bias=output_bias, weights=weights, tol=1e-4)
    assert below.atoms > 0 and below.upper < above.upper * (1 - 1e-4)


def test_small_decays_interpolate():
    """Along one vector P is at most decay times the norm of `margins.min_norm_l1`, and with its dual lam at least decay norm -
    decay^2 n |lam|^2 / 2; in general losses go to 0 and P / decay to a norm."""
    scalar = Dataset(made(8, 1, 2, 3).X, made(8, 1, 2, 3).y[:, 0])
    least = margins.min_norm_l1(scalar, bias=True, tol=1e-5)
    line = Dataset(scalar.X, np.outer(scalar.y, [0.6, 0.8]))
    lam = np.asarray(least.dual) / least.proof["maximum"]
    for decay in (1e-4, 1e-6):
        cert = solve(line, decay, output_bias=None, tol=1e-4)
        assert cert.status == "certified" and cert.verify(line).ok and cert.lower <= decay * least.upper
        assert cert.upper >= decay * least.lower - decay**2 * line.n * float(lam @ lam) / 2
    assert_allclose(cert.upper / decay, least.upper, rtol=0.02)
    assert_allclose(cert.function(line.X), line.y, atol=1e-3)
    data = made(8, 1, 2, 3)
    path = optima.path(data, [1e-2, 1e-4, 1e-6], loss="squared", output_bias=None, tol=1e-4, bias=True)
    norm, loss = path.column("norm"), path.column("loss")
    assert (np.diff(norm) > 0).all() and (np.diff(loss) < 0).all() and loss[-1] < 1e-6
    assert norm[-1] == pytest.approx(path[-1].upper / 1e-6, rel=0.02) and np.isnan(path.column("error")).all()
    each = [margins.min_norm_l1(Dataset(data.X, column), bias=True, tol=1e-4) for column in data.y.T]
    assert max(one.lower for one in each) <= norm[-1] * 1.001 <= 1.002 * sum(one.upper for one in each)


@pytest.mark.parametrize("intercept", [False, True])
def test_frozen_neurons_are_the_group_lasso(intercept):
    rng = np.random.default_rng(2)
    for K in (1, 2, 4):
        Z, Y = rng.standard_normal((30, 40)).clip(0), rng.standard_normal((30, K)) + 1
        known = MultiTaskLasso(alpha=0.2, fit_intercept=intercept, tol=1e-14, max_iter=200_000).fit(Z, Y)
        points = TargetPoints(Y, np.ones(30), 0.2 * 30, intercept, 0.0)  # theirs is divided by n
        A, b = groups.fit(points, Z, np.zeros((40, K)), np.zeros(K))
        assert 0 < A.any(axis=1).sum() < 40
        assert_allclose(A, known.coef_.T, atol=1e-8)
        assert_allclose(b, known.intercept_ if intercept else 0.0, atol=1e-8)
        theirs = 0.5 * ((Y - known.predict(Z)) ** 2).sum() + 6 * np.linalg.norm(known.coef_, axis=0).sum()
        assert_allclose(points.objective(Z @ A + b, np.linalg.norm(A, axis=1).sum(), b), theirs, rtol=1e-12)


def test_masses_have_the_slopes_of_an_optimum_beside_a_tiny_decay():
    """The objective does not see such steps: with cone programs alone slopes were off by 6e-5."""
    rng = np.random.default_rng(0)
    Z, Y = rng.standard_normal((8, 60)).clip(0), rng.integers(-2, 3, (8, 3)).astype(float)
    for ridge in (0.0, 1.0):
        points = TargetPoints(Y, np.ones(8), 1e-3, True, ridge)
        A, b = groups.fit(points, Z, np.zeros((60, 3)), np.zeros(3))
        assert groups._slopes(points, Z, A, b).worst < 1e-7


# ---------------------------------------------------------------- proofs


@pytest.mark.parametrize("K", [2, 3])
def test_a_cover_is_one_of_all_outputs(K):
    """The vectors of classes lie in a hyperplane, those of targets do not: a cover of the hyperplane alone proves nothing."""
    data = made(10, 6, K, 1)
    cert = solve(data, 0.05, tol=0.02, output_bias=None)
    assert cert.bound == "cover" and len(cert.proof["basis"]) == K and cert.verify(data).ok
    payload = copy.deepcopy(cert.payload())
    payload["proof"]["basis"] = payload["proof"]["basis"][:-1]
    assert "basis" in verify.check(seal(payload), data.X, data.y).failed
    flat = made(10, 6, K, 1)
    flat = Dataset(flat.X, np.rint(64 * (flat.y - flat.y.mean(axis=1, keepdims=True))))
    flat = Dataset(
        flat.X, flat.y - np.eye(K)[0] * flat.y.sum(axis=1, keepdims=True)
    )  # integers of sum 0 over the outputs
    g = flat.y / 1024
    assert several.free_outputs(g) == K - 1 and several.free_outputs(data.y) == K


@pytest.fixture(scope="module")
def true():
    data = made(15, 2, 3, 2)
    return shared.verified(data, solve(data, 0.03, tol=1e-2))


@pytest.mark.parametrize(
    "change",
    [
        *shared.CHANGES,
        lambda p: p["extra"].update(scale=0.5 * p["extra"]["scale"]),
        lambda p: p["extra"].update(offset=p["extra"]["offset"][:2]),
        lambda p: p["extra"].update(loss="cross-entropy"),
        lambda p: p["extra"].update(weights=[0.0] + [1.0] * 14),
        lambda p: p["dual"][0].__setitem__(0, p["dual"][0][0] + 2.0**-20),
        lambda p: p["dual"].__setitem__(slice(None), [[-v for v in row] for row in p["dual"]]),
        lambda p: p["dual"].pop(),
        lambda p: p["dual"].__setitem__(slice(None), [row[:2] for row in p["dual"]]),
        lambda p: p.update(kind="f1-multiclass-optimum"),
        lambda p: p.update(kind="l1-regression"),
    ],
)
def test_false_ones_are_refused(true, change):
    shared.check_refused(*true, change)


def test_other_data_is_refused(true):
    data, payload = true
    assert "hash" in verify.check(payload, data.X, data.y + 1e-9).failed
    assert "shape" in verify.check(payload, data.X, data.y[:, 0]).failed
    assert "shape" in verify.check(payload, data.X, data.y[:, :1]).failed
    assert "NaN" in verify.check(payload, data.X, np.where(data.y > 1, np.nan, data.y)).failed
    one = optima.f1(Dataset(data.X, data.y[:, 0]), loss="squared", weight_decay=0.1, bias=True)
    assert "shape" in verify.check(one.payload(), data.X, data.y).failed


# ---------------------------------------------------------------- bad input, and estimators


def test_bad_input_is_said_in_one_sentence():
    data = made(12, 2, 3, 0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    words = np.array([["a", "b"]] * 12)
    for call, word in (
        (lambda: optima.f1(data, weight_decay=0.1, bias=True), "one label for each point"),
        (lambda: optima.f1(data, loss="hinge", weight_decay=0.1, bias=True), "one label for each point"),
        (lambda: optima.f1(data, loss="cross-entropy", weight_decay=0.1, bias=True), "3 columns"),
        (lambda: optima.f1(data, loss="mse", weight_decay=0.1, bias=True), "loss must be one of"),
        (lambda: optima.f2(data, loss="squared", weight_decay=0.1, bias=True), "3 columns"),
        (lambda: optima.largest_decay(data, loss="squared", output_bias="decayed", bias=True), "decayed"),
        (lambda: optima.path(data, 3, loss="logistic", bias=True), "one label for each point"),
        (lambda: solve(data, -1.0), "positive"),
        (lambda: solve(data, 0.1, weights=np.ones((12, 3))), "shape"),
        (lambda: Dataset(data.X, data.y[:5]), "12 rows"),
        (lambda: Dataset(data.X, data.y[:, :, None]), r"\(12, 3, 1\)"),
        (lambda: Dataset(data.X, data.y[:, :0]), r"\(12, 0\)"),
        (lambda: Dataset(data.X, np.where(data.y > 1, np.nan, data.y)), r"row \d+, column \d"),
        (lambda: Dataset(data.X, words), "2 columns of labels"),
        (lambda: optima.gap(model, data.X, data.y, loss="squared", weight_decay=0.1), "2 outputs.* needs 3"),
        (lambda: optima.gap(model, data.X, data.y[:, 0], loss="squared", weight_decay=0.1), r"y \(n, K\)"),
        (lambda: optima.gap(model, data.X, data.y[:, :2], loss="logistic", weight_decay=0.1), "one label"),
        (lambda: margins.f1(data), "3 columns"),
        (lambda: margins.multiclass_f1(data), "3 columns"),
        (lambda: margins.min_norm_l1(data), "3 columns"),
        (lambda: margins.min_norm_l2(data), "3 columns"),
        (lambda: theory.guarantees(data), "3 columns"),
    ):
        with pytest.raises(InputError, match=word) as said:
            call()
        assert "\n" not in str(said.value) and len(str(said.value)) < 300


def test_the_regressor_has_several_outputs():
    data = made(24, 2, 2, 4)
    weights = np.resize([1.0, 2.0, 0.0], 24)
    model = optima.ReluNetRegressor(0.02, tol=0.02, time_limit=30, bias=True).fit(data.X, data.y, weights)
    assert model.certificate_.verify(model.data_).ok and model.data_.y.shape == (16, 2)
    t = model.predict(data.X)
    assert t.shape == (24, 2) and model.score(data.X, data.y) > 0.5
    theta, outer, _ = stored(model.certificate_)
    mean = np.average(((data.y - t) ** 2).sum(axis=1), weights=weights) / 2
    norm = np.linalg.norm(theta, axis=1) @ np.linalg.norm(outer, axis=1)
    assert_allclose(mean + 0.02 * norm, model.certificate_.upper, rtol=1e-9)
    twice = np.repeat(np.arange(24), weights.astype(int))
    again = optima.ReluNetRegressor(0.02, tol=0.02, time_limit=30, bias=True).fit(data.X[twice], data.y[twice])
    assert again.data_.sha256() == model.data_.sha256()


# ---------------------------------------------------------------- drawn at random


def drawn(seed):
    """Decimals and integers of sizes 1e-4 to 1e4, equal, nearly equal and opposite points; targets on a line, equal, zero, of
    different sizes; weights with zeros."""
    rng = np.random.default_rng(seed)
    n, d, K = (int(rng.choice(some)) for some in ([1, 2, 3, 5, 8, 12], [1, 1, 2, 2, 3, 4, 6], [1, 2, 2, 3, 4]))
    X = np.round(rng.standard_normal((n, d)), int(rng.choice([0, 1, 15]))) * 10.0 ** rng.choice([-4, -2, 0, 0, 0, 2, 4])
    if n > 1 and rng.random() < 0.5:
        i, j = rng.choice(n, 2, replace=False)
        X[i] = rng.choice([1.0, 1 + 1e-12, 0.0, -1.0, 3.0]) * X[j]
    Y = np.round(rng.standard_normal((n, K)), int(rng.choice([0, 1, 15]))) * 10.0 ** rng.choice([-4, -2, 0, 0, 0, 2, 4])
    what = rng.choice(["any", "line", "zero column", "equal", "spread"])
    if what == "line":
        Y = np.outer(Y[:, 0], rng.integers(-2, 3, K))
    elif what == "zero column":
        Y[:, 0] = 0
    elif what == "equal":
        Y[:] = Y[0]
    elif what == "spread":
        Y = Y * 10.0 ** rng.integers(-4, 5, K)
    weights = np.round(rng.random(n), 1) * 10.0 ** rng.integers(-3, 4) if rng.random() < 0.4 else None
    if weights is not None and rng.random() < 0.5:
        weights[rng.integers(n)] = 0
    if weights is not None and not weights.any():
        weights = None
    bias, mode = bool(rng.random() < 0.6), MODES[rng.integers(3)]
    size = max(float(np.abs(X).max()), 1.0 if bias else 1e-9) * (float(np.abs(Y).max()) or 1.0)
    keys = {"bias": bias, "output_bias": mode, "weights": weights, "decay": size * 10.0 ** rng.uniform(-5, 1.5)}
    return Dataset(X, Y if K > 1 else Y[:, 0], f"drawn {seed}"), keys, rng


@pytest.mark.slow
@repeated("first", [810000, 810020], 0)
def test_every_certificate_is_proved(first):
    """All of the seeds 810000 to 810159 were, with limits up to 3 s; here some of them."""
    certified = 0
    for seed in range(first, first + 20):
        data, keys, rng = drawn(seed)
        cert = solve(data, **keys, tol=float(rng.choice([0.1, 1e-3, 1e-6])), time_limit=0.15)
        verdict = cert.verify(data)
        assert verdict.ok, (seed, str(verdict))
        certified += cert.status == "certified"
    assert certified > 10


def test_targets_that_are_equal_have_no_loss_to_the_last_bit():
    """A mean of equal numbers is off by a rounding: then nothing is proved below 1e-33, and a search stalls."""
    X = made(7, 2, 2, 0).X
    for y in (np.full(7, 0.1), np.tile([0.1, 1e4 / 3], (7, 1)), np.zeros((7, 2))):
        cert = solve(Dataset(X, y), 0.1)
        assert (cert.lower, cert.upper, cert.status) == (0.0, 0.0, "certified") and cert.verify(Dataset(X, y)).ok
        assert (cert.function(X) == y).all()


# ---------------------------------------------------------------- clocks


def test_steps_that_would_end_long_after_the_limit_are_not_begun(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 8))
    labels, targets = Dataset(X, np.where(X[:, 0] > 0, 1.0, -1.0)), Dataset(X, X[:, :2] ** 2)
    monkeypatch.setattr(kernel_machines, "SOLVE", 1.0)  # a step takes days
    cert = optima.f2(labels, weight_decay=0.01, time_limit=100.0, bias=True)
    assert cert.status == "time-limit" and cert.stats["steps"] == 1 and cert.verify(labels).ok
    monkeypatch.setattr(solver, "BEGIN", 1.0)
    monkeypatch.setattr(solver, "price", None)
    one = wide_networks.solver(
        problem.enter(labels, "logistic", 0.01, True, None, None, 1e-3, 100.0), 1e-3, 0, "cpu", None
    )
    assert not one.prove(one.pull(), one.points.lam, last=True)
    g = targets.y / 1024
    found = several.cones(X[:, :3], g, 0.5 * float(several.values(X[:, :3], g, np.eye(3)).max()), math.inf)
    assert found.upper == math.inf and len(found.directions)  # the goal is out of reach
    high = 3 * float(several.values(X[:, :3], g, rng.standard_normal((500, 3))).max())
    whole, cut = (several.cones(X[:, :3], g, high / 2.9, until) for until in (math.inf, 0.0))
    assert cut.nodes < whole.nodes and high / 3 <= whole.upper < cut.upper < math.inf


# ---------------------------------------------------------------- devices


def test_tensors_give_what_arrays_give():
    rng = np.random.default_rng(0)
    X, g, V = rng.standard_normal((30, 4)), rng.standard_normal((30, 3)), rng.standard_normal((20, 4))
    cells = np.array([np.diag(signs) for signs in np.sign(rng.standard_normal((9, 4)))])
    cells[0, 0] = 0.5 * cells[0, 1]  # a flat one
    for call in (
        lambda X, g, V, cells: several.values(X, g, V),
        lambda X, g, V, cells: several.ascend(X, g, V, 15)[1],
        lambda X, g, V, cells: several.climb(X, g, V)[1],
        lambda X, g, V, cells: several.cell_bounds(cells, X, g)[0],
        lambda X, g, V, cells: several.cell_bounds(cells, X, g)[1],
        lambda X, g, V, cells: several.cell_bounds(cells, X, g)[2],
        lambda X, g, V, cells: several.cell_bounds(cells, X, 0 * g)[1],
        lambda X, g, V, cells: several.best(V, several.values(X, g, V), 5),
    ):
        plain = call(X, g, V, cells)
        (found,) = several.fetched(call(*map(torch.as_tensor, (X, g, V, cells))))
        assert isinstance(found, np.ndarray)
        assert_allclose(found, plain, rtol=1e-10, atol=1e-12)


@repeated("n, d", [(20, 1), (16, 3), (9, 5)], 0, 2)
@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
def test_a_whole_solve_with_tensors(n, d, loss, monkeypatch):
    """What a GPU is given, on the CPU."""
    data = made(n, d, 3, 0)
    data = data if loss == "squared" else Dataset(data.X, np.arange(n) % 3)
    keys = {"loss": loss, "weight_decay": 0.05, "tol": 0.05}
    plain, largest = (
        optima.f1(data, **({"bias": True} | keys)),
        optima.largest_decay(data, loss=loss, tol=0.05, bias=True),
    )
    monkeypatch.setattr(several, "_on", lambda device, array: torch.as_tensor(array))
    cert, again = optima.f1(data, **({"bias": True} | keys)), optima.largest_decay(data, loss=loss, tol=0.05, bias=True)
    assert cert.status == "certified" and cert.bound == plain.bound and cert.verify(data).ok
    assert_allclose([cert.lower, cert.upper], plain.upper, rtol=0.05)
    assert again.lower <= largest.upper * (1 + 1e-9) and largest.lower <= again.upper * (1 + 1e-9)


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "d"), [(20, 1), (16, 3), (9, 6)])
@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
def test_a_gpu_gives_a_certificate_that_checks(n, d, loss):
    data = made(n, d, 3, 0)
    data = data if loss == "squared" else Dataset(data.X, np.arange(n) % 3)
    keys = {"loss": loss, "weight_decay": 0.05, "tol": 0.02}
    plain, cert = optima.f1(data, **({"bias": True} | keys)), optima.f1(data, device="cuda", **({"bias": True} | keys))
    assert cert.status == "certified" and cert.verify(data).ok
    assert_allclose([cert.lower, cert.upper], plain.upper, rtol=0.02)
    largest = optima.largest_decay(data, loss=loss, tol=0.05, device="cuda", bias=True)
    assert largest.lower <= optima.largest_decay(data, loss=loss, tol=0.05, bias=True).upper * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("tiny", [False, True])
def test_few_points_of_low_rank_in_thousands_of_columns_verify(tiny):
    """The checker saw no span of the points, and refused a matrix in all columns."""
    rng = np.random.default_rng(5)
    X = rng.integers(-2, 3, (12, 4)).astype(float) @ rng.integers(-2, 3, (4, 4500))
    if tiny:
        X = 1e-170 * rng.standard_normal((12, 4500))
    data = Dataset(X, rng.standard_normal((12, 3)))
    cert = optima.f1(data, loss="squared", bias=tiny, weight_decay=1e-4 if tiny else 1.0, time_limit=1.0)
    assert cert.proved and cert.lower > 0 and cert.verify(data).ok, str(cert.verify(data))
