"""Limits in which the optimum is known: large decays, small ones, and neurons that do not move."""

import dataclasses
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import special

from widemargin import Dataset, margins, optima
from widemargin.optima import groups, losses, master, outputs, slide

rng = np.random.default_rng(5)
X = rng.standard_normal((20, 2))
NOISY = Dataset(X, np.where(X[:, 0] + 0.7 * rng.standard_normal(20) > 0.3, 1, -1), "noisy")
ANGLE = np.linspace(0, 2 * np.pi, 12, endpoint=False)
RING = Dataset(np.column_stack([np.cos(ANGLE), np.sin(ANGLE)]), np.resize([1, 1, -1], 12), "ring")


@pytest.mark.parametrize("loss", losses.LOSSES)
@pytest.mark.parametrize("mode", [None, "free"])
def test_from_the_largest_decay_on_the_constant_is_best(loss, mode):
    weights = np.resize([1.0, 0.5, 2.0], 20)
    keys = {"loss": loss, "output_bias": mode, "weights": weights}
    largest = optima.largest_decay(NOISY, **({"bias": True} | keys))
    assert 0 < largest.lower <= largest.upper <= largest.lower * (1 + 1e-3)
    above = optima.f1(NOISY, weight_decay=1.001 * largest.upper, tol=1e-4, **({"bias": True} | keys))
    best = {
        "logistic": lambda t, y: np.log1p(np.exp(-y * t)),
        "squared": lambda t, y: (y - t) ** 2 / 2,
        "hinge": lambda t, y: np.maximum(0, 1 - y * t),
        "squared-hinge": lambda t, y: np.maximum(0, 1 - y * t) ** 2 / 2,
        "exp": lambda t, y: np.exp(-y * t),
    }[loss]
    constants = np.linspace(-3, 3, 12001) if mode else np.zeros(1)
    constant = (best(constants[:, None], NOISY.y) @ weights).min() / weights.sum()
    assert above.status == "certified" and above.verify(NOISY).ok
    assert above.lower * (1 - 1e-4) <= constant <= above.upper * (1 + 1e-4)
    below = optima.f1(NOISY, weight_decay=0.9 * largest.lower, tol=1e-5, **({"bias": True} | keys))
    assert below.upper < constant * (1 - 1e-5) and below.verify(NOISY).ok


def test_largest_decay_of_one_point():
    for loss, slope in (("logistic", 0.5), ("squared", 1.0), ("hinge", 1.0), ("squared-hinge", 1.0), ("exp", 1.0)):
        found = optima.largest_decay(Dataset([[3.0, 4.0]], [1]), loss=loss, bias=False, output_bias=None)
        assert found.lower <= 5 * slope <= found.upper
        assert_allclose(found, 5 * slope, rtol=1e-6)


@pytest.mark.parametrize("loss", ["exp", "logistic"])
def test_small_decays_reach_the_largest_margin(loss):
    """At norm N the network of the largest margin g has loss at most exp(-g N). So a best network of norm N and normalised margin
    m >= 0 has exp(-m N) / (2 n) <= exp(-g N) (without the 2 for exp), that is, m >= g - log(2 n) / N.
    """
    best = margins.f1(RING, bias=True)
    last = 0.0
    for decay in (1e-2, 1e-4, 1e-8, 1e-14):
        cert = optima.f1(RING, loss=loss, weight_decay=decay, output_bias=None, tol=1e-4, bias=True)
        assert cert.verify(RING).ok and cert.status == "certified"
        norm, margin = cert.primal.norm, cert.primal.margin(RING)
        assert margin <= best.upper * (1 + 1e-12)
        assert margin >= best.lower - np.log(2 * RING.n) / norm
        last = margin
    assert last > 0.95 * best.lower


def test_small_decays_interpolate():
    """P <= decay norm, as the interpolant is a network; and with its dual lam, P >= decay norm - decay^2 n |lam|^2 / 2."""
    data = Dataset(X[:10], np.cos(2 * X[:10, 0]) + X[:10, 1])
    least = margins.min_norm_l1(data, bias=True, tol=1e-5)
    lam = np.asarray(least.dual) / least.proof["maximum"]
    for decay in (1e-3, 1e-7):
        cert = optima.f1(data, loss="squared", weight_decay=decay, output_bias=None, tol=1e-4, bias=True)
        assert cert.verify(data).ok and cert.status == "certified"
        assert cert.lower <= decay * least.upper
        assert cert.upper >= decay * least.lower - decay**2 * data.n * float(lam @ lam) / 2
        assert cert.primal.norm <= least.upper * (1 + 1e-3)
    assert_allclose(cert.primal.norm, least.upper, rtol=1e-3)
    assert_allclose(cert.function(data.X), data.y, atol=1e-3)


def features(m: int = 40) -> np.ndarray:
    V = np.random.default_rng(2).standard_normal((m, 3))
    return (np.hstack([X, np.ones((20, 1))]) @ V.T).clip(0) / np.linalg.norm(V, axis=1)


@pytest.mark.parametrize("intercept", [False, True])
def test_masses_of_frozen_neurons_are_the_lasso_path(intercept):
    from sklearn.linear_model import Lasso

    Z, y = features(12), NOISY.y + 0.1 * X[:, 0]
    a, b = np.zeros(Z.shape[1]), 0.0
    for alpha in (0.3, 0.1, 0.03, 0.01, 0.003):
        points = master.Points(y, np.ones(20), 20 * alpha, intercept, 0.0)
        a, b = master.fit(points, losses.named("squared"), Z, a, b)
        known = Lasso(alpha=alpha, fit_intercept=intercept, tol=1e-13, max_iter=10**6).fit(Z, y)
        assert_allclose(a, known.coef_, atol=1e-8)
        assert_allclose(b, known.intercept_, atol=1e-8)


@pytest.mark.parametrize("loss", ["logistic", "exp", "squared-hinge"])
@pytest.mark.parametrize("mode", [None, "free", "decayed"])
def test_masses_satisfy_the_conditions_of_an_optimum(loss, mode):
    Z, chosen, w = features(), losses.named(loss), np.resize([1.0, 2.0], 20)
    for lam in (3.0, 0.3, 0.03):
        points = master.Points(NOISY.y, w, lam, mode is not None, 2.0 if mode == "decayed" else 0.0)
        a, b = master.fit(points, chosen, Z, np.zeros(Z.shape[1]), 0.0)
        c = points.pull(chosen, Z @ a + b)
        slopes = Z.T @ c
        assert np.abs(slopes).max() <= lam * (1 + 1e-8)
        assert_allclose(slopes[a != 0], lam * np.sign(a[a != 0]), rtol=1e-8)
        if mode is not None:
            assert_allclose(c.sum(), points.ridge * b, atol=1e-8 * np.abs(c).sum())


@pytest.mark.parametrize("loss", losses.LOSSES)
def test_slopes_curvatures_and_duals_of_the_losses(loss):
    """Against differences, and against the infimum over a grid."""
    chosen = losses.named(loss).smoothed(0.1)
    t, h = np.linspace(-3, 3, 41) + 0.0123, 1e-5
    for label in (1.0, -1.0):
        y = np.full_like(t, label)
        value = lambda t, y=y: chosen.value(y, t)  # noqa: E731
        assert_allclose(chosen.pull(y, t), -(value(t + h) - value(t - h)) / (2 * h), atol=1e-6)
        middle = chosen.pull(y, t - h) - chosen.pull(y, t + h)
        assert_allclose(chosen.curvature(y, t), middle / (2 * h), atol=1e-4 * (1 + np.abs(middle).max() / h))
        s = chosen.pull(y, t)
        low, high = chosen.limits(y)
        assert (s >= low).all() and (s <= high).all()
        assert_allclose(chosen.dual(y, s), value(t) + s * t, atol=1e-9)  # attained where the slope is -s
        grid = np.linspace(-8, 8, 1601)
        every = chosen.value(y[:, None], grid[None]) + s[:, None] * grid
        assert (chosen.dual(y, s) <= every.min(axis=1) + 1e-9).all()


def test_a_step_moves_neurons_into_kinks():
    """From rough neurons with the right patterns nearby a few steps reach the certified optimum, which has neurons in kinks."""
    cert = optima.f1(NOISY, loss="squared", weight_decay=0.02, bias=True, output_bias=None, tol=1e-8)
    Z = np.hstack([X, np.ones((20, 1))])
    theta, mass = cert.primal.theta, cert.primal.mass
    points = master.Points(NOISY.y, np.ones(20), 20 * 0.02, False, 0.0)
    W = theta * np.abs(mass)[:, None] * 1.1 + 0.01 * np.random.default_rng(0).standard_normal(theta.shape)
    s, start = np.sign(mass), None
    for _ in range(30):
        moved = slide.slide(points, losses.named("squared"), Z, W, s, 0.0, 10.0)
        if moved is None:
            break
        W, _, gain = moved
        start = gain if start is None else start
    value = points.objective(losses.named("squared"), (Z @ W.T).clip(0) @ s, np.linalg.norm(W, axis=1).sum(), 0.0) / 20
    assert start is not None and start > 0
    assert_allclose(value, cert.upper, rtol=1e-7)
    on = np.abs(Z @ theta.T) < 1e-7  # (n, m)
    assert on.any()


# ---------------------------------------------------------------- many points


def test_the_best_constant_of_many_points_in_closed_form():
    """Log odds and means, of 10^5 points as of a few; sums of so many have errors at which a line search must not wait."""
    y = np.where(np.arange(100_000) % 7 < 2, 1.0, -1.0)
    w = 1.0 + np.arange(100_000) % 3
    odds = float(w[y > 0].sum() / w[y < 0].sum())
    for loss, best in (("logistic", np.log(odds)), ("exp", 0.5 * np.log(odds)), ("squared", np.average(y, weights=w))):
        points = master.Points(y, w, 1.0, True, 0.0)
        assert_allclose(master.constant(points, losses.named(loss)), best, rtol=1e-9)
    classes = (np.arange(100_000) % 10).clip(6) - 6  # 0.7, 0.1, 0.1, 0.1
    found = outputs.ClassPoints(classes, 4, np.ones(100_000), 1.0, True, 0.0).constant()
    assert_allclose(found - found[1], [np.log(7), 0, 0, 0], atol=1e-12)
    targets = np.column_stack([y, w])
    for ridge in (0.0, 5e4):
        found = outputs.TargetPoints(targets, w, 1.0, True, ridge).constant()
        assert_allclose(found, w @ targets / (w.sum() + ridge), rtol=1e-9)


def test_an_output_bias_of_many_points_takes_few_looks(monkeypatch):
    """It took a thousand, each a pass over all points, where rounding hid that nothing was left to gain."""
    rng = np.random.default_rng(8)
    t, y = 3 * rng.standard_normal((60_000, 4)), rng.integers(4, size=60_000)
    points, looks = outputs.ClassPoints(y, 4, np.ones(60_000), 1.0, True, 0.0), []
    real = outputs.cross_entropy
    monkeypatch.setattr(outputs, "cross_entropy", lambda *args: looks.append(1) or real(*args))
    b = points.best_offset(t)
    assert np.abs(points.pull(t + b).sum(axis=0)).max() < 1e-9 * 60_000 and len(looks) < 30


def test_the_best_offset_where_a_class_is_rare():
    """Newton's method went where the loss is flat, and from there without end."""
    w, start = np.array([0.92, 0.06, 0.0155, 0.0045]), np.array([-1.84, -0.65, -0.88, 1.18])
    points = outputs.ClassPoints(np.arange(4), 4, w, 0.1, True, 0.0)
    t = np.tile(start, (4, 1))
    assert_allclose(special.softmax(start + points.best_offset(t)), w, rtol=1e-12)
    t[0] += [1e-9, 0.0, 0.0, 0.0]  # not all the same any more
    assert np.abs(points.pull(t + points.best_offset(t)).sum(axis=0)).max() <= 1e-12


def test_the_best_offset_of_thousands_of_classes_takes_no_matrix(monkeypatch):
    monkeypatch.setattr(np.linalg, "lstsq", lambda *_, **__: pytest.fail("a matrix of all classes was solved"))
    points = outputs.ClassPoints(np.repeat(np.arange(300), 2), 300, np.full(600, 1 / 600), 0.1, True, 0.0)
    assert_allclose(points.best_offset(np.zeros((600, 300))), np.zeros(300), atol=1e-12)


def drawn_classes(n: int, K: int, seed: int, **more) -> outputs.ClassPoints:
    """Classes of very different sizes, with weights."""
    rng = np.random.default_rng(seed)
    y = np.minimum(rng.geometric(3 / K, size=n) - 1, K - 1)
    y[:K] = np.arange(K)
    keys = {"lam": 0.1, "offset": True, "ridge": 0.0} | more
    return outputs.ClassPoints(y, K, rng.uniform(0, 2, n), **keys)


@pytest.mark.parametrize("block", [1, 100, 10**6])
def test_curvatures_of_classes_are_differences_of_slopes(block, monkeypatch):
    monkeypatch.setattr(outputs, "BLOCK", block)  # a few points at a time
    points, rng, h = drawn_classes(30, 7, 7_000_101), np.random.default_rng(7_000_102), 1e-5
    J, t, Q = rng.standard_normal((30, 3)), rng.standard_normal((30, 7)), points.frame
    H = points.curvature(J, t)
    assert_allclose(H, H.T, atol=1e-13)
    for j in range(3):
        for k in range(6):
            move = h * J[:, j, None] * Q[:, k]
            change = (J.T @ (points.pull(t - move) - points.pull(t + move)) @ Q) / (2 * h)
            assert_allclose(H[6 * j + k], change.ravel(), atol=1e-8)


def test_curvatures_of_sure_classes_keep_their_digits():
    """With shares 1 - e and e of two classes every entry is e, to all digits of e and not of 1."""
    points = outputs.ClassPoints(np.array([0, 0]), 2, np.ones(2), 0.1, True, 0.0)
    t = np.array([[30.0, 0.0], [33.0, 0.0]])
    H = points.curvature(np.ones((2, 1)), t)
    assert_allclose(H, 2 * (np.exp(-30.0) + np.exp(-33.0)), rtol=1e-3)  # 1 - (1 - e) has so many


def test_a_step_has_as_many_neurons_as_there_is_time_for(monkeypatch):
    cost = lambda p: (9 * p) ** 2 * (2.0 * 500 + groups.CONES * 9 * p)  # noqa: E731
    for power in (0.0, cost(1) * 0.99, cost(1), 1e9, 1e12):
        room = groups._room(500, 9, power)
        assert (room == 0 or cost(room) <= power) and cost(room + 1) > power
    assert groups._room(500, 9, np.inf) == groups.MOST_THERE and groups._room(500, 9, -1e12) == 0
    sizes, real = [], groups._model
    monkeypatch.setattr(groups, "_model", lambda points, Z, *rest: sizes.append(Z.shape[1]) or real(points, Z, *rest))
    points, rng = drawn_classes(40, 6, 7_000_103, lam=2.0), np.random.default_rng(7_000_104)
    Z, A, b = rng.standard_normal((40, 60)).clip(0), np.zeros((60, 6)), np.zeros(6)
    for speed in (0.0, 1e3, 1e12):  # for nothing, for some, for all
        sizes.clear()
        monkeypatch.setattr(groups, "speed", lambda speed=speed: speed)
        found, _ = groups.fit(points, Z, A.copy(), b, 1000.0)
        room = groups._room(40, 5, 1000.0 * speed)
        assert all(size < room for size in sizes) and bool(sizes) == (room > 0)
        assert found.any() == (room > 1)


@pytest.mark.parametrize("share", [1e-12, 1e-3, 1.0, 1e4])
def test_the_best_decayed_constant_of_classes(share):
    """Its slopes are zero, class by class, also where a class has no weight, or one has it all."""
    for seed in range(4):
        points = drawn_classes(50, 12, 7_000_110 + seed)
        w = points.w * (points.y != 5) if seed < 3 else (points.y == 5).astype(float)
        points = dataclasses.replace(points, w=w, ridge=share * float(w.sum()))
        b, every = points.constant(), points.grouped().w
        assert_allclose(every - every.sum() * special.softmax(b), points.ridge * b, atol=1e-12 * every.sum())
        assert abs(b.sum()) <= 1e-9 * np.abs(b).sum()
    others = np.delete(np.exp(b - b[5]), 5).sum()  # 1 - the share of the class that has all weight, to all digits
    assert_allclose(every[5] * others / (1 + others), points.ridge * b[5], rtol=1e-9)


@pytest.mark.parametrize("output_bias", ["free", "decayed"])
def test_the_best_constant_of_thousands_of_outputs_takes_no_matrix(output_bias, monkeypatch):
    """1500 classes of different sizes took 4 s where the limit was one; so did 6000 targets."""
    monkeypatch.setattr(groups, "fit", lambda *_: pytest.fail("a matrix of all outputs was made"))
    monkeypatch.setattr(outputs.ClassPoints, "curvature", groups.fit)
    rng = np.random.default_rng(7_000_105)
    classes = Dataset(rng.standard_normal((700, 3)), drawn_classes(700, 300, 7_000_106).y)
    targets = Dataset(classes.X[:4], rng.standard_normal((4, 900)))
    for data, loss in ((classes, "cross-entropy"), (targets, "squared")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cert = optima.f1(data, loss=loss, weight_decay=0.1, output_bias=output_bias, time_limit=1e-9)
        nothing = np.log(300) if data is classes else (data.y**2).sum() / 8
        assert cert.atoms == 0 and 0 <= cert.lower <= cert.upper < nothing


def test_a_constant_is_there_even_when_the_time_is_over():
    X = np.random.default_rng(0).standard_normal((600_000, 4))
    data = Dataset(X, np.where(np.arange(600_000) % 4, 1, -1), "many")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cert = optima.f2(data, weight_decay=0.01, time_limit=1e-9)
    entropy = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    assert 0 <= cert.lower <= cert.upper <= entropy * (1 + 1e-9) and cert.status == "time-limit"


@pytest.mark.parametrize("loss", ["logistic", "hinge", "cross-entropy", "squared"])
def test_thousands_of_points_in_the_plane(loss):
    """The list of all neurons was thought to take n^3: two thousand points had "stalled" at once, ten times too wide."""
    drawn = np.random.default_rng(3).standard_normal((3000, 2))
    y = {"cross-entropy": (drawn[:, 0] > 0) + 1.0 * (drawn[:, 1] > 1), "squared": np.abs(drawn)}
    data = Dataset(drawn, y.get(loss, np.where(drawn[:, 0] + 0.3 * drawn[:, 1] ** 2 > 0.3, 1.0, -1.0)), "plane")
    cert = optima.f1(data, loss=loss, weight_decay=0.02, tol=1e-2)
    assert cert.status == "certified" and cert.upper <= cert.lower * 1.011 and cert.verify(data).ok


def test_a_list_for_which_there_is_no_time_is_not_a_stall(monkeypatch):
    monkeypatch.setattr("widemargin.optima.solver.listing", lambda *_: 1e9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cert = optima.f1(NOISY, loss="logistic", weight_decay=0.01)
    assert cert.status == "time-limit" and 0 < cert.lower < cert.upper and cert.verify(NOISY).ok
