import itertools

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.optimize import linprog

from widemargin import Dataset
from widemargin.margins import f1
from widemargin.pricing import squares
from widemargin.types import Certificate, Measure

pytestmark = pytest.mark.usefixtures("one_thread")


def margin(data: Dataset, **options) -> Certificate:
    """The certificate, checked: bounds in order, proved, exactly verified, and never more than the network shows."""
    certificate = f1(data, activation="srelu", **{"time_limit": 20.0} | options)
    verdict = certificate.verify(data)
    assert verdict.ok, str(verdict)
    assert certificate.proved and certificate.kind == "f1" and certificate.activation == "srelu"
    assert 0 <= certificate.lower <= certificate.upper
    assert_allclose(certificate.dual.sum(), certificate.dual.sum() if certificate.status == "not-separable" else 1)
    if certificate.primal is not None:
        assert certificate.lower <= certificate.primal.margin(data) * (1 + 1e-12)
        assert certificate.primal.margin(data) <= certificate.upper * (1 + 1e-12)
    return certificate


def closed(data: Dataset, **options) -> Certificate:
    certificate = margin(data, **options)
    assert certificate.status == "certified" and certificate.gap <= 1e-3
    return certificate


def random(n: int, d: int, seed: int) -> Dataset:
    rng = np.random.default_rng(seed)
    return Dataset(rng.standard_normal((n, d)), np.sign(rng.standard_normal(n)))


def directions(d: int, count: int, seed: int = 0) -> np.ndarray:
    if d == 2:
        angle = np.arange(count) * 2 * np.pi / count
        return np.stack([np.cos(angle), np.sin(angle)], 1)
    V = np.random.default_rng(seed).standard_normal((count, d))
    return V / np.linalg.norm(V, axis=1, keepdims=True)


def grid_margin(data: Dataset, V: np.ndarray) -> float:
    """The margin over networks with neurons V only: a plain linear program, never above the margin."""
    Z = data.y[:, None] * np.maximum(data.X @ V.T, 0) ** 2
    Z = np.hstack([Z, -Z])
    unit = float(np.abs(Z).max())
    A = np.vstack([np.hstack([-Z / unit, np.ones((data.n, 1))]), np.append(np.ones(Z.shape[1]), 0.0)])
    result = linprog(
        np.append(np.zeros(Z.shape[1]), -1.0),
        A,
        np.append(np.zeros(data.n), 1.0),
        bounds=[(0, None)] * Z.shape[1] + [(None, None)],
        method="highs",
    )
    return float(result.x[-1]) * unit


def dual_value(data: Dataset, q: np.ndarray, V: np.ndarray) -> float:
    q = q / q.sum()
    return float(np.abs((q * data.y) @ np.maximum(data.X @ V.T, 0) ** 2).max())


XOR = Dataset([[1, 1], [-1, -1], [1, -1], [-1, 1]], [1, 1, -1, -1])


# ---------------------------------------------------------------- closed forms


def test_one_point_has_margin_its_squared_norm():
    for x in ([2.0], [3.0, 4.0], [1.0, -2.0, 2.0], list(np.full(20, 0.5))):
        for label in (1, -1):
            certificate = closed(Dataset([x], [label]))
            assert_allclose([certificate.lower, certificate.upper], float(np.dot(x, x)), rtol=1e-9)


def test_opposite_points_with_opposite_labels():
    """q = (1/2, 1/2): (relu(t)^2 + relu(-t)^2) / 2 = t^2 / 2, and two neurons e1, -e1 with masses +-1/2 reach 1/2."""
    for X in ([[1.0, 0.0], [-1.0, 0.0]], [[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]):
        certificate = closed(Dataset(X, [1, -1]))
        assert_allclose([certificate.lower, certificate.upper], 0.5, rtol=1e-9)


def test_xor():
    """q uniform: (v.a)^2 / 4 - (v.b)^2 / 4 with a = (1, 1), b = (1, -1) is v1 v2 <= 1/2; four neurons reach 1/2."""
    certificate = closed(XOR)
    assert_allclose([certificate.lower, certificate.upper], 0.5, rtol=1e-6)
    assert_allclose(grid_margin(XOR, directions(2, 360)), 0.5, rtol=1e-9)
    assert closed(XOR, bias=True).lower > 0.5  # the constant coordinate adds to every point


def test_orthogonal_points():
    """x_i = e_i, all labels 1: sum q_i relu(v_i)^2 <= max q, so 1/d."""
    certificate = closed(Dataset(np.eye(4), np.ones(4)))
    assert certificate.bound == "eigen"
    assert_allclose([certificate.lower, certificate.upper], 0.25, rtol=1e-3)


# ---------------------------------------------------------------- margin 0


@pytest.mark.parametrize(
    "X, y, bound",
    [
        ([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]], [1, -1], "eigen"),
        ([[0.3, 0.1], [0.3, 0.1], [1.0, 2.0]], [1, -1, 1], "enumeration"),
        ([[0.3, 0.1, 0.7], [0.3, 0.1, 0.7], [1.0, 2.0, 0.0]], [1, -1, 1], "eigen-tree"),
        ([[0.3] * 20, [0.3] * 20], [1, -1], "eigen-tree"),
        ([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]], [1, -1], "eigen-tree"),
    ],
)
def test_points_that_no_network_separates(X, y, bound):
    certificate = margin(Dataset(X, y))
    assert certificate.status == "not-separable" and certificate.bound == bound
    assert certificate.lower == certificate.upper == 0 and certificate.reason


@pytest.mark.parametrize("extra", [0, 1])
def test_even_combination_that_vanishes(extra):
    """x and -x with one label count t^2, and (v.e1)^2 + (v.e2)^2 = ((v.a)^2 + (v.b)^2) / 2."""
    a = [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]]
    certificate = margin(Dataset(np.hstack([a, np.zeros((8, extra))]), [1] * 4 + [-1] * 4))
    assert certificate.status == "not-separable" and certificate.upper == 0


def test_two_labels_on_one_ray_up_to_rounding():
    x = np.array([[0.1, 0.7, 0.2, 1.1]])
    for D in (1, 2, 4):
        certificate = margin(Dataset(np.vstack([x[:, :D], 4.0 * x[:, :D], 0.5 * x[:, :D]]), [1, -1, 1]))
        assert certificate.status == "not-separable" and certificate.upper <= 1e-9


# ---------------------------------------------------------------- against other ways to the same number


@pytest.mark.parametrize("n, seed", [(3, 0), (8, 1), (15, 2), (15, 3)])
def test_plane_against_a_fine_grid(n, seed):
    data = random(n, 2, seed)
    certificate = closed(data)
    assert certificate.bound in ("enumeration", "eigen")
    V = directions(2, 2000)
    value = grid_margin(data, V)
    assert value <= certificate.upper * (1 + 1e-6)
    assert value >= certificate.lower * 0.99
    assert dual_value(data, certificate.dual, V) <= certificate.upper


def test_one_dimension():
    """No points of one ray with both labels: each side is scaled by its smallest point, and the two share the mass."""
    certificate = closed(Dataset([[2.0], [3.0], [-1.0]], [1, 1, -1]))
    assert certificate.lower <= 4 / 5 * (1 + 1e-12) and certificate.upper * (1 + 1e-12) >= 4 / 5


@pytest.mark.parametrize("n, d, seed, bias", [(9, 3, 0, False), (8, 2, 1, True), (10, 4, 2, False)])
def test_tree_between_sampled_duals_and_networks(n, d, seed, bias):
    data = random(n, d, seed)
    certificate = closed(data, bias=bias)
    X = np.hstack([data.X, np.ones((n, 1))]) if bias else data.X
    flat = Dataset(X, data.y)
    V = directions(X.shape[1], 20_000, seed)
    assert dual_value(flat, certificate.dual, V) <= certificate.upper
    assert grid_margin(flat, V[:3000]) <= certificate.upper * (1 + 1e-6)


def test_lifted_plane_agrees_with_the_plane():
    """The same points in three dimensions go through the tree, in two through the enumeration."""
    data = random(7, 2, 5)
    flat = closed(data)
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((4, 4)))[0][:2]
    lifted = closed(Dataset(data.X @ turn, data.y))
    assert lifted.bound == "eigen-tree"
    assert flat.lower <= lifted.upper * (1 + 1e-9) and lifted.lower <= flat.upper * (1 + 1e-9)


def test_trained_network_stays_below():
    data = random(7, 3, 7)
    certificate = closed(data)
    torch.manual_seed(0)
    X, y = torch.tensor(data.X), torch.tensor(data.y)
    W = torch.randn(40, 3, dtype=torch.float64, requires_grad=True)
    a = torch.randn(40, dtype=torch.float64, requires_grad=True)
    for _ in range(300):  # gradient ascent on a soft minimum of the normalised margins
        f = (X @ W.T).clamp_min(0) ** 2 @ a
        loss = torch.logsumexp(-y * f / (a.abs() @ (W**2).sum(1)) * 300, 0)
        for p, g in zip((W, a), torch.autograd.grad(loss, (W, a))):
            p.data -= 0.1 * g / g.norm()
    trained = Measure(W.detach().numpy(), a.detach().numpy(), "srelu").margin(data)
    assert 0 < trained <= certificate.upper
    for seed in range(20):
        rng = np.random.default_rng(seed)
        measure = Measure(rng.standard_normal((30, 3)), rng.standard_normal(30), "srelu")
        assert measure.margin(data) <= certificate.upper


# ---------------------------------------------------------------- invariances


def test_invariances():
    data = random(7, 3, 11)
    plain = closed(data)
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((3, 3)))[0]
    order = np.random.default_rng(2).permutation(7)
    for X, y, factor in (
        (data.X @ turn, data.y, 1.0),
        (3.0 * data.X[order], -data.y[order], 9.0),
        (np.vstack([data.X, data.X[:3]]), np.append(data.y, data.y[:3]), 1.0),
        (np.hstack([data.X, np.zeros((7, 2))]), data.y, 1.0),
    ):
        other = closed(Dataset(X, y))
        assert other.lower <= factor * plain.upper * (1 + 1e-9)
        assert factor * plain.lower <= other.upper * (1 + 1e-9)


@pytest.mark.parametrize("power", [-300, 300])
def test_extreme_scales(power):
    data = random(6, 3, 3)
    plain, other = closed(data), closed(Dataset(np.ldexp(data.X, power), data.y))
    assert_allclose(other.lower, np.ldexp(plain.lower, 2 * power), rtol=1e-12)
    assert_allclose(other.upper, np.ldexp(plain.upper, 2 * power), rtol=1e-12)


# ---------------------------------------------------------------- how it ends


def test_time_limit_keeps_valid_bounds():
    data = random(60, 12, 0)
    certificate = margin(data, time_limit=0.3)
    assert certificate.status == "time-limit" and certificate.upper < np.inf and certificate.reason
    assert certificate.stats["seconds"] < 6


@pytest.mark.parametrize("when", ["eigenvalue", "linear", "tree"])
def test_interrupt_keeps_the_best_so_far(when):
    said = []

    def progress(seconds, lower, upper, message):
        said.append(message)
        if message.startswith(when):
            raise KeyboardInterrupt

    data = random(16, 5, 1)
    certificate = margin(data, progress=progress, tol=1e-9)
    assert certificate.status == "interrupted" and np.isfinite(certificate.upper)
    assert said and all(isinstance(text, str) for text in said)


def test_same_seed_same_certificate():
    data = random(6, 3, 4)
    a, b = closed(data, seed=3), closed(data, seed=3)
    assert a.lower == b.lower and a.upper == b.upper


# ---------------------------------------------------------------- parts


def test_circle_finds_the_maximum():
    for seed in range(5):
        data = random(9, 2, seed)
        c = data.y * np.random.default_rng(seed).random(9)
        V, value = squares.circle(data.X, c)
        fine = squares.objective(data.X, c, directions(2, 100_000))
        best = max(value, default=0.0)
        assert fine.max() <= best * (1 + 1e-12) and best <= fine.max() * (1 + 1e-6)
        assert_allclose(squares.objective(data.X, c, V), value)


def test_multipliers_reach_the_semidefinite_optimum():
    cp = pytest.importorskip("cvxpy")
    rng = np.random.default_rng(0)
    for r, f in ((3, 5), (5, 7)):
        U = rng.standard_normal((f, r))
        U *= np.sign(U @ rng.standard_normal(r))[:, None] / np.linalg.norm(U, axis=1, keepdims=True)
        A = (U.T * rng.standard_normal(f)) @ U
        i, j = np.array(list(itertools.combinations(range(f), 2))).T
        V = cp.Variable((r, r), PSD=True)
        problem = cp.Problem(cp.Maximize(cp.trace(A @ V)), [cp.trace(V) == 1, U @ V @ U.T >= 0])
        optimum = problem.solve(solver="CLARABEL")
        batch = [torch.as_tensor(x)[None] for x in (A, U[i], U[j], np.ones(len(i), dtype=bool))]
        value, N, _ = squares.lower_top(*batch, optimum - 1e-6 * abs(optimum), 30)
        B = np.einsum("k,ki,kj->ij", N[0].numpy(), U[i], U[j])
        assert (N >= 0).all()
        assert_allclose(np.linalg.eigvalsh(A + (B + B.T) / 2)[-1], float(value[0]), rtol=1e-9)
        assert_allclose(float(value[0]), optimum, rtol=1e-3)
