"""Multi-class margins: closed forms, other solvers, symmetries, and certificates that verify and cannot be bent."""

import copy
import dataclasses
import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from checks import assert_encloses, changed
from widemargin import data as datasets
from widemargin import verify
from widemargin.margins import f1, linear, multiclass_f1, multiclass_linear, programs, rows
from widemargin.pricing import several
from widemargin.types import Certificate, Dataset, InputError


def random_classes(n: int, d: int, K: int, seed: int) -> Dataset:
    """Points around K centres, the classes in turn."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % K
    return Dataset(1.5 * rng.standard_normal((K, d))[y] + rng.standard_normal((n, d)), y, name=f"n={n},d={d},K={K}")


def simplex(K: int) -> Dataset:
    """K unit vectors in R^K, one of each class, orthogonal."""
    return Dataset(np.eye(K), np.arange(K), name="simplex")


def triangle() -> Dataset:
    angle = np.arange(3) * 2 * np.pi / 3
    return Dataset(np.column_stack([np.cos(angle), np.sin(angle)]), np.arange(3), name="triangle")


def margins_of(scores: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The definition, point by point."""
    return np.array([row[int(k)] - max(v for j, v in enumerate(row) if j != k) for row, k in zip(scores, y)])


def extended(data: Dataset, bias: bool) -> np.ndarray:
    return np.hstack([data.X, np.ones((data.n, 1))]) if bias else data.X


def check_f1(cert: Certificate, data: Dataset, tol: float | None = None) -> None:
    """It verifies; the network reaches lower and not more than upper; no sampled neuron beats upper at the dual weights."""
    assert cert.kind == "f1-multiclass" and cert.convention == "M1" and cert.proved
    assert 0 <= cert.lower <= cert.upper < math.inf
    verdict = cert.verify(data)
    assert verdict.ok and str(verdict).startswith("verified exactly"), str(verdict)
    if tol is not None:
        assert cert.status == "certified" and cert.upper - cert.lower <= tol * cert.lower * (1 + 1e-6), str(cert)
    X, K = extended(data, cert.bias), cert.extra["classes"]
    if cert.lower > 0:
        theta, outer = np.array(cert.extra["theta"]), np.array(cert.extra["outer"])
        size = np.linalg.norm(theta, axis=1) @ np.linalg.norm(outer, axis=1)
        margin = margins_of((X @ theta.T).clip(0) @ outer, data.y).min() / size
        assert cert.lower * (1 - 1e-9) <= margin <= cert.upper * (1 + 1e-9)
        assert len(theta) <= data.n * (K - 1)
    np.testing.assert_allclose(cert.extra["gamma_star"], [cert.lower / 2, cert.upper / 2])
    q = np.asarray(cert.dual) / np.sum(cert.dual)
    assert q.shape == (data.n, K) and (q >= 0).all()
    g = -q
    g[np.arange(data.n), data.y.astype(int)] += q.sum(axis=1)
    V = np.random.default_rng(0).standard_normal((5000, X.shape[1]))
    V = np.vstack([V, several.climb(X, g, V[:50])[0]])
    values = np.linalg.norm((V @ X.T).clip(0) @ g, axis=1) / np.linalg.norm(V, axis=1)
    assert values.max() <= cert.upper * (1 + 1e-9) + 1e-12


# --- linear -------------------------------------------------------------------------------------------------------------


def test_linear_closed_forms():
    """Orthogonal simplex: U = (I - 1 1' / K) / sqrt(K - 1), margin 1 / sqrt(K - 1). Triangle: U = X / sqrt(3)."""
    for K in (2, 3, 5):
        assert_encloses(multiclass_linear(simplex(K)), 1 / math.sqrt(K - 1))
    assert_encloses(multiclass_linear(triangle()), math.sqrt(3) / 2)


@pytest.mark.parametrize("bias", [False, True])
def test_linear_of_two_classes_is_sqrt2_times_the_binary_margin(bias):
    data = random_classes(20, 4, 2, seed=3)
    binary = linear(Dataset(data.X, 2 * data.y - 1), bias=bias)
    cert = multiclass_linear(data, bias=bias)
    assert binary.lower > 0.01
    np.testing.assert_allclose(cert.lower, math.sqrt(2) * binary.lower, rtol=1e-5)
    np.testing.assert_allclose(cert.upper, math.sqrt(2) * binary.upper, rtol=1e-5)


@pytest.mark.parametrize("n,d,K,seed,bias", [(12, 6, 3, 0, False), (20, 12, 4, 1, True), (30, 3, 5, 2, False)])
def test_linear_against_another_solver(n, d, K, seed, bias):
    cp = pytest.importorskip("cvxpy")
    data = random_classes(n, d, K, seed)
    X = extended(data, bias)
    U, gamma = cp.Variable((K, X.shape[1])), cp.Variable()
    S = X @ U.T
    rows = [S[i, int(k)] - S[i, j] >= gamma for i, k in enumerate(data.y) for j in range(K) if j != k]
    value = cp.Problem(cp.Maximize(gamma), [cp.norm(U, "fro") <= 1, *rows]).solve(solver="CLARABEL")
    cert = multiclass_linear(data, bias=bias)
    assert abs(cert.lower - max(value, 0)) <= 1e-5 and abs(cert.upper - max(value, 0)) <= 1e-5, (str(cert), value)
    assert cert.verify(data).ok


def test_linear_with_pairs_in_turn_equals_all_at_once(monkeypatch):
    data = datasets.load("digits:classes=0-1-2,n=60", multiclass=True)
    whole = multiclass_linear(data)
    monkeypatch.setattr(rows, "AT_ONCE", 1)
    monkeypatch.setattr(rows, "START", 30)
    parts = multiclass_linear(data)
    assert whole.stats["pairs"] == 120 and parts.stats["pairs"] <= 120
    assert whole.status == parts.status == "certified"
    assert parts.lower <= whole.upper and whole.lower <= parts.upper
    margin = margins_of(data.X @ np.array(parts.extra["U"]).T, data.y).min() / np.linalg.norm(parts.extra["U"])
    np.testing.assert_allclose(margin, parts.lower, rtol=1e-9)
    assert parts.verify(data).ok


def test_linear_that_no_matrix_separates():
    data = Dataset([[1.0], [2.0], [3.0]], [0, 1, 2])
    cert = multiclass_linear(data)
    assert cert.status == "not-separable" and cert.upper == 0 and cert.verify(data).ok
    with_bias = multiclass_linear(data, bias=True)
    assert with_bias.status == "certified" and with_bias.lower > 0.1


# --- F1: values known otherwise -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("K", [2, 3, 4])
def test_f1_of_the_simplex(K):
    """One neuron per point with w_k = e_k - 1/K reaches 1 / sqrt(K (K - 1)); uniform weights prove it.

    At uniform q the images of the neurons e_k are (e_k - 1/K) / (K - 1), and F(u) = sum_k relu(u_k) (e_k - 1/K) / (K - 1) has
    |F(u)|^2 <= sum_k u_k^2 / (K - 1)^2 less the mean's part, at most that of one neuron.
    """
    data = simplex(K)
    cert = multiclass_f1(data)
    check_f1(cert, data, tol=1e-3)
    assert_encloses(cert, 1 / math.sqrt(K * (K - 1)))


def test_f1_of_the_triangle():
    """Three points at 120 degrees: at most two are active; the best neurons are the points, value 1 / sqrt(6)."""
    cert = multiclass_f1(triangle(), tol=1e-5)
    check_f1(cert, triangle(), tol=1e-5)
    assert cert.bound == "enumeration"
    assert_encloses(cert, 1 / math.sqrt(6))


@pytest.mark.parametrize("n,d,seed,bias", [(10, 2, 0, False), (10, 2, 1, True), (8, 4, 2, False)])
def test_f1_of_two_classes_is_sqrt2_times_the_binary_margin(n, d, seed, bias):
    data = random_classes(n, d, 2, seed)
    binary = f1(Dataset(data.X, 2 * data.y - 1), bias=bias)
    cert = multiclass_f1(data, bias=bias)
    check_f1(cert, data, tol=1e-3)
    assert cert.lower <= math.sqrt(2) * binary.upper and math.sqrt(2) * binary.lower <= cert.upper
    assert binary.status == "certified" and binary.lower > 0


def test_f1_is_at_least_half_of_linear():
    """U x = sum over the singular triples of U, twice each: t = relu(t) - relu(-t); their number is at most K - 1."""
    data = random_classes(9, 2, 3, seed=5)
    line, net = multiclass_linear(data, bias=True), multiclass_f1(data, bias=True)
    assert net.upper >= line.lower / (2 * math.sqrt(2))


@pytest.mark.parametrize(
    "n,d,K,bound", [(20, 2, 3, "enumeration"), (9, 3, 3, "cones"), (8, 3, 4, "cones"), (9, 5, 3, "cover")]
)
def test_f1_certificates(n, d, K, bound):
    data = random_classes(n, d, K, seed=n + d)
    cert = multiclass_f1(data, tol=1e-2)
    check_f1(cert, data, tol=1e-2)
    assert cert.bound == bound


def test_cones_and_cover_agree_with_enumeration():
    """Three proofs of one number: points in a plane of R^3."""
    flat = random_classes(9, 2, 3, seed=1)
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))[0]
    space = np.ascontiguousarray(np.hstack([flat.X, np.zeros((9, 1))]) @ Q)
    plane = multiclass_f1(flat, tol=1e-4)
    check_f1(plane, flat, tol=1e-4)
    q, y = np.asarray(plane.dual), flat.y.astype(int)
    exact = several.enumeration(flat.X, several.vectors(q, y))[0].upper
    scale = 2.0 ** math.frexp(np.abs(space).max())[1]
    found = several.cones(space / scale, several.vectors(q, y), exact / scale * 1.001, math.inf)
    assert exact * (1 - 1e-9) <= found.upper * scale <= exact * 1.0011
    cert = multiclass_f1(Dataset(space, flat.y), tol=1e-2)
    check_f1(cert, Dataset(space, flat.y), tol=1e-2)
    assert cert.lower <= plane.upper and plane.lower <= cert.upper


# --- F1: symmetries and orders ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plane() -> tuple[Dataset, Certificate]:
    data = random_classes(12, 2, 3, seed=4)
    return data, multiclass_f1(data, tol=1e-4)


def assert_same(a: Certificate, b: Certificate, factor: float = 1.0) -> None:
    assert a.status == b.status == "certified"
    np.testing.assert_allclose(a.lower, factor * b.lower, rtol=3e-4)
    np.testing.assert_allclose(a.upper, factor * b.upper, rtol=3e-4)


def test_f1_ignores_rotation_and_the_names_of_classes_and_scales(plane):
    data, cert = plane
    check_f1(cert, data, tol=1e-4)
    c, s = math.cos(1.0), math.sin(1.0)
    assert_same(multiclass_f1(Dataset(data.X @ np.array([[c, s], [-s, c]]), data.y), tol=1e-4), cert)
    assert_same(multiclass_f1(Dataset(data.X, np.array([2, 0, 1])[data.y.astype(int)]), tol=1e-4), cert)
    assert_same(multiclass_f1(Dataset(7.0 * data.X, data.y), tol=1e-4), cert, 7.0)
    assert_same(multiclass_f1(Dataset(data.X[::-1], data.y[::-1]), tol=1e-4, seed=1), cert)


def test_more_points_never_raise_the_margin(plane):
    data, cert = plane
    rng = np.random.default_rng(9)
    more = Dataset(np.vstack([data.X, rng.standard_normal((3, 2))]), np.append(data.y, [0, 1, 2]))
    assert multiclass_f1(more).lower <= cert.upper
    assert multiclass_linear(more, bias=True).lower <= multiclass_linear(data, bias=True).upper
    fewer = multiclass_f1(Dataset(data.X[:6], data.y[:6]))
    assert cert.lower <= fewer.upper


def test_no_trained_network_beats_the_bound(one_thread):
    """Cross entropy drives a network to a good part of the largest margin and, at no step, beyond it."""
    three = triangle()
    X0 = np.vstack([three.X, three.X]) + 0.2 * np.random.default_rng(0).standard_normal((6, 2))
    data = Dataset(X0, np.append(three.y, three.y))
    cert = multiclass_f1(data)
    check_f1(cert, data, tol=1e-3)
    generator = torch.Generator().manual_seed(0)
    X, y = torch.tensor(data.X), torch.tensor(data.y, dtype=torch.long)
    U = (0.3 * torch.randn(30, 2, dtype=torch.float64, generator=generator)).requires_grad_()
    W = (0.3 * torch.randn(30, 3, dtype=torch.float64, generator=generator)).requires_grad_()
    optimiser = torch.optim.Adam([U, W], lr=0.03)
    best = 0.0
    for _ in range(300):
        scores = (X @ U.T).clamp_min(0) @ W
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(scores, y).backward()
        size = float((U.detach().norm(dim=1) * W.detach().norm(dim=1)).sum())
        norm2 = float((U.detach() ** 2).sum() + (W.detach() ** 2).sum())
        margin = margins_of(scores.detach().numpy(), data.y).min()
        assert margin / size <= cert.upper and margin / norm2 <= cert.extra["gamma_star"][1]
        best = max(best, margin / size)
        optimiser.step()
    assert best > 0.5 * cert.upper  # the bound is no empty one


@pytest.mark.slow
def test_three_digits():
    data = datasets.load("digits:classes=0-1-2,n=18", multiclass=True)
    cert = multiclass_f1(data, tol=2e-2, time_limit=60)
    check_f1(cert, data)
    assert cert.bound == "cover" and cert.gap < 0.1, str(cert)


def test_many_features_and_classes_leave_an_honest_gap():
    data = random_classes(10, 7, 5, seed=0)
    cert = multiclass_f1(data, time_limit=1)
    check_f1(cert, data)
    assert cert.bound in ("cover", "norm") and cert.status in ("time-limit", "certified")


# --- margin 0 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "X,y,word",
    [
        ([[1, 0], [1, 0], [0, 1]], [0, 1, 2], "equal"),
        ([[0, 0], [1, 0], [0, 1]], [0, 1, 2], "origin"),
        ([[1, 2], [2, 4], [0, 1]], [0, 1, 2], "ray"),
        # parity of three bits without a bias: f(x) - f(-x) is linear
        ([[a, b, c] for a in (1, -1) for b in (1, -1) for c in (1, -1)], [0, 1, 1, 0, 1, 0, 0, 1], "averages to zero"),
    ],
)
def test_f1_that_no_network_separates(X, y, word):
    data = Dataset(np.array(X, dtype=float), y)
    cert = multiclass_f1(data)
    assert cert.status == "not-separable" and cert.lower == cert.upper == 0 and word in cert.reason
    assert cert.verify(data).ok


# --- the exact check -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates() -> list[tuple[Dataset, Certificate]]:
    cases = [random_classes(6, 2, 3, seed=1), random_classes(6, 3, 3, seed=2), random_classes(6, 4, 3, seed=3)]
    made = [(data, multiclass_f1(data, tol=1e-2)) for data in cases]
    assert [cert.bound for _, cert in made] == ["enumeration", "cones", "cover"]
    return [*made, (cases[2], multiclass_linear(cases[2]))]


def test_bent_bounds_are_refused(certificates):
    for data, cert in certificates:
        assert verify.check(changed(cert), data.X, data.y).ok
        up = verify.check(changed(cert, lower=cert.upper, upper=2 * cert.upper), data.X, data.y)
        assert not up.ok and "lower bound" in str(up.failed)
        # Below the value of the dual weights no proof can go. (A cone proof may have room above that value.)
        down = verify.check(changed(cert, lower=0.0, upper=0.98 * cert.lower), data.X, data.y)
        assert not down.ok, str(cert)
        q = np.array(cert.dual)
        q[0, int(data.y[0])] = 0.25
        assert "dual" in str(verify.check(changed(cert, dual=(q / q.sum()).tolist()), data.X, data.y).failed)
        q = np.array(cert.dual)
        q[0] = 0
        q[0, (int(data.y[0]) + 1) % 3] = 3.0
        assert not verify.check(changed(cert, dual=(q / q.sum()).tolist(), lower=0.0), data.X, data.y).ok
        assert not verify.check(changed(cert), data.X, (data.y + 1) % 3).ok


def test_bent_proofs_are_refused(certificates):
    (_, _), (data, cones), (other, cover), _ = certificates

    def verdict(cert: Certificate, data: Dataset, **fields: object) -> verify.Verdict:
        return verify.check(changed(cert, proof=dict(copy.deepcopy(cert.proof)) | fields), data.X, data.y)

    assert verdict(cones, data).ok and verdict(cover, other).ok
    coarse = verdict(cones, data, tree=[-1] * 8, leaves=[[]] * 8)
    assert not coarse.ok and "larger than upper" in str(coarse.failed)
    assert "ends too early" in str(verdict(cones, data, tree=cones.proof["tree"][:-1]).failed)
    assert not verdict(cones, data, leaves=[[[0, 65]], *cones.proof["leaves"][1:]]).ok
    assert "no such proof" in str(verdict(cones, data, type="pairing").failed)
    assert "not stored" in str(verdict(cones, data, type="omitted").failed)
    assert not verdict(cones, data, type="enumeration").ok

    vertices = copy.deepcopy(cover.proof["vertices"])
    assert "no proof" in str(verdict(cover, other, vertices=vertices[1:]).failed)
    vertices[0]["maximum"] *= 0.9
    assert "leaf" in str(verdict(cover, other, vertices=vertices).failed)
    basis = copy.deepcopy(cover.proof["basis"])
    assert "independent" in str(verdict(cover, other, basis=[basis[0], basis[0]]).failed)
    assert "sum to zero" in str(verdict(cover, other, basis=[basis[0], [1, 0, 0]]).failed)


def test_an_unproved_bound_is_not_passed_as_proved(certificates):
    data, cert = certificates[1]
    said = verify.check(changed(cert, proved=False, status="time-limit"), data.X, data.y)
    assert said.answer == verify.UNPROVED and not said


def test_a_saved_certificate_round_trips(certificates, tmp_path):
    for data, cert in certificates:
        cert.save(tmp_path / "c.json")
        assert verify.check(json.loads((tmp_path / "c.json").read_text()), data.X, data.y).ok


# --- pieces ---------------------------------------------------------------------------------------------------------------


def test_cell_bounds_hold_at_random_points_of_the_cone():
    """|F(u)|^2 |w|^2 <= a' B a and |u|^2 |w|^2 = a' W a for u = sum_k a_k v_k, a >= 0."""
    rng = np.random.default_rng(0)
    X, K = rng.standard_normal((7, 3)), 3
    y = np.arange(7) % K
    q = rng.random((7, K)) * (np.arange(K) != y[:, None])
    g = several.vectors(q, y)
    V = np.round(64 * rng.standard_normal((40, 3, 3)))
    W, B, lam, _ = several.cell_bounds(V, X, g)
    assert ((lam >= 0) & (lam <= 1)).all()
    for j in range(40):
        w2 = W[j, 0, 0] / (V[j, 0] @ V[j, 0])
        for a in rng.exponential(size=(200, 3)) * (rng.random((200, 3)) < 0.7):
            u = a @ V[j]
            F = (X @ u).clip(0) @ g
            np.testing.assert_allclose(a @ W[j] @ a, w2 * (u @ u), rtol=1e-9, atol=1e-9)
            assert w2 * (F @ F) <= (a @ B[j] @ a) * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize("most", [32, 150])
def test_cones_of_points_that_tie_are_those_of_the_checker(most, monkeypatch):
    """Which side of a sign pattern is better on a cone is often a tie. The bound of such a leaf was larger than the checker's,
    and what was shown of it was not shown of that one; what a leaf showed of its own bound it need not show of a larger one."""
    X = np.array([[1 - 2 * (i >> j & 1) for j in range(4)] for i in range(16)], dtype=float)
    X = np.column_stack([X, X.prod(axis=1)])
    y = (np.arange(16) == 2).astype(int)
    q = np.zeros((16, 2))
    q[np.arange(16), 1 - y] = np.array([16, 13, 71, 15, 13, 7, 18, 17, 17, 8, 12, 16, 7, 5, 15, 6]) / 256  # of a search
    g, data = several.vectors(q, y), Dataset(X, y.astype(float))
    monkeypatch.setattr(several, "MOST_CELLS", most)
    found = several.cones(X, g, 0.6, math.inf)
    base = multiclass_f1(data, time_limit=1e-3)
    cert = dataclasses.replace(
        base, lower=0.0, upper=found.upper, dual=q, proof=found.saved, bound="cones", status="stalled",
        extra=base.extra | {"theta": [], "outer": [], "gamma_star": [0.0, found.upper / 2]},
    )  # fmt: skip
    verdict = cert.verify(data)
    assert verdict.failed is None, verdict
    assert several.values(X, g, np.random.default_rng(0).standard_normal((1000, 5))).max() <= found.upper


def test_a_level_that_all_cones_show():
    """Without its positive entries off the diagonal, s^2 W - B need not stay semidefinite where s grows."""
    W = np.array([[1.0, 0.5, -0.75], [0.5, 1.0, -0.75], [-0.75, -0.75, 1.0]])
    B = np.array([[0.3, -20.0, -0.6], [-20.0, 0.3, -0.6], [-0.6, -0.6, 0.3]])
    W, B = np.stack([W, np.eye(3)]), np.stack([B, 10 * np.eye(3)])
    own = several.level(W, B)
    np.testing.assert_allclose(own[1], math.sqrt(10), rtol=1e-9)
    assert own[0] < own[1]
    assert several.copositive(own[1] ** 2 * W - B)[0].tolist() == [False, True]
    s = several.common_level(float(own[1]), W, B)
    assert several.copositive(s**2 * W - B)[0].all() and several.copositive((1.05 * s) ** 2 * W - B)[1].all()
    assert own[1] < s < 3 * own[1]
    assert several.common_level(1.0, W[:0], B[:0]) == 1.0
    assert several.common_level(1.0, W[1:], np.full((1, 3, 3), np.inf)) == math.inf


def test_ties_are_found_in_exact_arithmetic():
    """Signs of sums that rounding hides, beside integers of Python."""
    rng = np.random.default_rng(1_310_000)
    for scale in (1.0, 1e-200, 3.0):
        X = np.array([[0.1, 0.2, -0.3], [1.0, 1e-17, -1.0], [0.1, -0.1, 0.7], [1e-30, 1e30, -1e30]]) * scale
        V = rng.integers(-(2**45), 2**45, (20, 2, 3)).astype(float)
        V[:3, 1] = np.array([[1, 1, 1], [2, 2, 0], [0, 3, 3]]) - V[:3, 0]  # their sums are small
        cones, points = (pairs.ravel() for pairs in np.meshgrid(np.arange(20), np.arange(4)))
        found = several._at_most_zero(V, X, cones, points)
        for cone, point, answer in zip(cones, points, found):
            total = sum(int(v) * Fraction(x) for row in V[cone].tolist() for v, x in zip(row, X[point].tolist()))
            assert answer == (total <= 0)
        assert found[[1 + 20 * 2]].all()  # 2 (0.1 - 0.1)


def test_climb_never_descends_and_master_is_optimal():
    data = random_classes(15, 4, 3, seed=0)
    y = data.y.astype(int)
    V = np.random.default_rng(1).standard_normal((30, 4))
    V /= np.linalg.norm(V, axis=1, keepdims=True)
    W, q = programs.solve_classes(data.X, y, V, 3, 60.0)
    assert q is not None
    margin = margins_of((data.X @ V.T).clip(0) @ W, y).min() / np.linalg.norm(W, axis=1).sum()
    g = several.vectors(q, y)
    np.testing.assert_allclose(margin, several.values(data.X, g, V).max(), rtol=1e-5)  # primal equals dual
    before = several.values(data.X, g, V)
    _, after = several.climb(data.X, g, V)
    assert (after >= before).all() and after.max() > before.max()


# --- input ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "y,word",
    [
        ([0, 0.5, 1], "no class number"),
        ([0, 0, 0], "only one class"),
        ([2, 2, 2], "only one class"),
    ],
)
@pytest.mark.parametrize("solve", [multiclass_f1, multiclass_linear])
def test_labels_that_are_no_class_numbers(y, word, solve):
    with pytest.raises(InputError, match=word):
        solve(Dataset(np.eye(3), y))


@pytest.mark.parametrize("y", [[0, 1, 3], [1, 2, 3], [-1, 0, 5], [0, 1, 1e18]])
@pytest.mark.parametrize("solve", [multiclass_f1, multiclass_linear])
def test_whole_numbers_are_numbered(y, solve):
    named, known = Dataset(np.eye(3), y), Dataset(np.eye(3), [0, 1, 2])
    cert = solve(named)
    assert cert.data_sha256 == known.sha256() and cert.verify(named).ok and cert.verify(known).ok


@pytest.mark.parametrize("solve", [multiclass_f1, multiclass_linear])
def test_bad_options(solve):
    with pytest.raises(InputError, match="tol"):
        solve(triangle(), tol=0)
    with pytest.raises(InputError, match="time_limit"):
        solve(triangle(), time_limit=-1)


def test_data_with_several_classes(tmp_path):
    path = tmp_path / "three.csv"
    path.write_text("a,b,y\n1,0,red\n0,1,blue\n1,1,green\n2,0,red\n")
    data = datasets.load(str(path), multiclass=True)
    assert data.y.tolist() == [2, 0, 1, 2] and data.classes == ("blue", "green", "red") and data.notes
    with pytest.raises(InputError, match="3 classes"):
        datasets.load(str(path))
    np.savez(tmp_path / "three.npz", X=np.eye(3), y=[5, 7, 9])
    assert datasets.load(str(tmp_path / "three.npz"), multiclass=True).y.tolist() == [0, 1, 2]
    np.savez(tmp_path / "one.npz", X=np.eye(3), y=[5, 5, 5])
    with pytest.raises(InputError, match="only one class"):
        datasets.load(str(tmp_path / "one.npz"), multiclass=True)
    with pytest.raises(InputError, match="choose one"):
        datasets.load(str(path), multiclass=True, targets=True)

    ten = datasets.load("digits:classes=0-1-2-3-4-5-6-7-8-9,n=50", multiclass=True)
    assert np.bincount(ten.y.astype(int)).tolist() == [5] * 10 and ten.d == 64
    assert len(datasets.load("digits:classes=9-4", multiclass=True).classes) == 2
    assert set(datasets.load("parity:d=4,n=8", multiclass=True).y) == {0.0, 1.0}
    for bad in ("digits:classes=3", "digits:classes=3-3-4"):
        with pytest.raises(InputError, match="different digits"):
            datasets.load(bad, multiclass=True)
