"""Small problems of every kind, drawn at random: what a solver writes the checker proves, and no network is below it."""

import numpy as np
import pytest

from checks import repeated
from widemargin import Dataset, InputError, optima

LABELS = ("logistic", "hinge", "squared-hinge", "exp")
LOSSES = (*LABELS, "squared", "cross-entropy")


def drawn(seed):
    """Decimals, integers, columns of different sizes; points that are equal, nearly equal, opposite, on one ray or 0."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.choice([1, 2, 3, 4, 6, 9])), int(rng.choice([1, 1, 2, 2, 3, 4, 6]))
    X = np.round(rng.standard_normal((n, d)), int(rng.choice([0, 1, 2, 15])))
    X = X * 10.0 ** (rng.integers(-2, 3, size=d) if rng.random() < 0.2 else rng.choice([-6, 0, 0, 0, 6]))
    if n > 1:
        i, j = rng.choice(n, 2, replace=False)
        X[i] = rng.choice([np.nan, 1.0, 1 + 1e-12, 0.0, -1.0, 3.0]) * X[j]
        X[i] = np.where(np.isnan(X[i]), X[j] + 0.5, X[i])
    elif rng.random() < 0.3:
        X[:] = 0
    loss = str(rng.choice(LABELS if n < 2 else LOSSES))
    y = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    if loss == "squared":
        y = np.round(rng.standard_normal(n), 1) * 10.0 ** rng.integers(-3, 4)
    if loss == "cross-entropy":
        K = min(n, int(rng.choice([2, 3])))
        y = rng.permutation(np.append(np.arange(K), rng.integers(0, K, size=n - K))).astype(float)
    weights = np.round(rng.random(n), 1) * 10.0 ** rng.integers(-3, 4) if rng.random() < 0.35 else None
    if weights is not None and not weights.any():
        weights = None
    bias, mode = bool(rng.random() < 0.6), [None, "free", "decayed"][rng.integers(3)]
    size = max(float(np.abs(X).max()), 1.0 if bias else 1e-9) * (float(np.abs(y).max()) or 1.0)
    keys = {"loss": loss, "bias": bias, "output_bias": mode, "weights": weights}
    return Dataset(X, y, f"drawn {seed}"), keys | {"weight_decay": size * 10.0 ** rng.uniform(-6, 1.5)}, rng


def objective(data, keys, theta, outer, b):
    """From its definition. theta (m, D), outer (m, K), b (K,)"""
    X = np.hstack([data.X, np.ones((data.n, 1))]) if keys["bias"] else data.X
    t, y, decay = (X @ theta.T).clip(0) @ outer + b, data.y, keys["weight_decay"]
    if keys["loss"] == "cross-entropy":
        t = t - t.max(axis=1, keepdims=True)
        each = np.log(np.exp(t).sum(axis=1)) - t[np.arange(data.n), y.astype(int)]
    else:
        t = t[:, 0]
        m = y * t
        each = {
            "logistic": np.logaddexp(0, -m),
            "squared": (y - t) ** 2 / 2,
            "hinge": (1 - m).clip(0),
            "squared-hinge": (1 - m).clip(0) ** 2 / 2,
            "exp": np.exp((-m).clip(max=600)),
        }[keys["loss"]]
    norm = float(np.linalg.norm(theta, axis=1) @ np.linalg.norm(outer, axis=1))
    ridge = 0.5 * float(b @ b) if keys["output_bias"] == "decayed" else 0.0
    return float(np.average(each, weights=keys["weights"])) + decay * (norm + ridge)


def stored(cert, K):
    """theta, outer and b of the network of a certificate."""
    D = cert.d + cert.bias
    if cert.kind == "f1-multiclass-optimum":
        extra = cert.extra
        return np.reshape(extra["theta"], (-1, D)), np.reshape(extra["outer"], (-1, K)), np.array(extra["offset"])
    return cert.primal.theta, cert.primal.mass[:, None], np.array([cert.extra["offset"]])


@pytest.mark.slow
def test_every_certificate_is_proved_and_no_network_is_below():
    proved = 0
    for seed in range(25):
        data, keys, rng = drawn(seed)
        try:
            cert = optima.f1(data, tol=float(rng.choice([0.1, 1e-3, 1e-6])), time_limit=0.1, **({"bias": True} | keys))
        except InputError as error:
            assert "no minimum" in str(error)  # one class, free output bias
            continue
        verdict = cert.verify(data)
        assert verdict.ok, (seed, str(verdict))
        K = int(data.y.max()) + 1 if keys["loss"] == "cross-entropy" else 1
        theta, outer, b = stored(cert, K)
        own = objective(data, keys, theta, outer, b)
        assert cert.lower * (1 - 1e-9) <= own <= cert.upper * (1 + 1e-9), seed
        for _ in range(20):  # near the best one, and far from it
            far = 10.0 ** rng.uniform(-6, 0)
            some = rng.standard_normal((2, theta.shape[1])) / max(1e-9, float(np.abs(data.X).max()))
            moved = np.vstack([theta * (1 + far * rng.standard_normal(theta.shape)), far * some])
            weights = np.vstack([outer * (1 + far * rng.standard_normal(outer.shape)), rng.standard_normal((2, K))])
            shift = b + (far * rng.standard_normal(K) if keys["output_bias"] else 0.0)
            assert objective(data, keys, moved, weights, shift) >= cert.lower * (1 - 1e-9), seed
        proved += 1
    assert proved > 18


@pytest.mark.parametrize("loss", ["logistic", "squared", "cross-entropy"])
@repeated("mode", [None, "free", "decayed"], 0, 2)
def test_points_that_are_zero_or_cancel(loss, mode):
    """Nothing is left to price: points are 0, or equal with both labels; in four dimensions, which have no list of neurons."""
    y = [0.0, 1.0] if loss == "cross-entropy" else [1.0, -1.0]
    for row in ([0.0, 0.0, 0.0, 0.0], [1.0, 2.0, -0.5, 0.25]):
        data = Dataset([row, row], y)
        keys = {"loss": loss, "bias": False, "output_bias": mode}
        cert = optima.f1(data, weight_decay=0.1, time_limit=2.0, **({"bias": True} | keys))
        assert cert.verify(data).ok
        constant = 0.5 if loss == "squared" else np.log(2)
        assert cert.lower <= constant * (1 + 1e-12) and cert.upper >= constant * (1 - 1e-12)
        assert cert.gap < 1e-3
    if mode != "decayed":
        zero = Dataset(np.zeros((2, 4)), y)
        found = optima.largest_decay(zero, loss=loss, bias=False, output_bias=mode, time_limit=2.0)
        assert found.lower == 0 and found.upper < 1e-12


def test_one_point_at_zero_with_a_decayed_output_bias():
    """min_b log(1 + exp(b)) + 0.1 b^2 / 2: one number, and a pricing problem with nothing in it."""
    data = Dataset(np.zeros((1, 4)), [-1.0])
    cert = optima.f1(
        data, loss="logistic", weight_decay=0.1, bias=False, output_bias="decayed", tol=1e-6, time_limit=2.0
    )
    b = np.linspace(-6, 0, 600_001)
    best = float((np.logaddexp(0, b) + 0.05 * b * b).min())
    assert cert.verify(data).ok and cert.lower <= best <= cert.upper + 1e-9 and cert.gap < 1e-5


@pytest.mark.parametrize(("d", "loss"), [(5, "logistic"), (30, "squared"), (5, "cross-entropy")])
def test_a_point_at_zero_among_others(d, loss):
    """Quadratic bounds of both forms divide by lengths, and one point has none."""
    rng = np.random.default_rng(0)
    X = np.round(rng.standard_normal((18, d)), 1)
    X[3] = 0
    y = rng.integers(0, 3, 18).astype(float) if loss == "cross-entropy" else rng.choice([-1.0, 1.0], 18)
    data = Dataset(X, y)
    cert = optima.f1(data, loss=loss, weight_decay=0.02, bias=False, output_bias="decayed", tol=1e-4, time_limit=0.4)
    assert cert.verify(data).ok and cert.lower > 0
