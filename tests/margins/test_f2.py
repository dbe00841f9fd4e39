import itertools
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from checks import meet, noise
from widemargin import Dataset, InputError
from widemargin.margins import f2, frozen, linear, ntk, qp, random_features
from widemargin.spaces import ReLU, SReLU, sphere


def parity(d: int, k: int) -> Dataset:
    X = np.array(list(itertools.product([-1.0, 1.0], repeat=d)))
    return Dataset(X / math.sqrt(d), np.prod(X[:, :k], axis=1))


@pytest.mark.parametrize("d, value", [(4, 0.053281), (6, 0.028478), (8, 0.018265)])
def test_parity_has_the_margin_of_its_eigenvalue(d: int, value: float):
    def krawtchouk(j: int) -> int:
        return sum((-1) ** i * math.comb(j, i) * math.comb(d - j, 2 - i) for i in range(3))

    def k(t: float) -> float:
        return (math.sqrt(1 - t * t) + (math.pi - math.acos(t)) * t) / (2 * math.pi * d)

    eigenvalue = sum(math.comb(d, j) * k(1 - 2 * j / d) * krawtchouk(j) for j in range(d + 1)) / math.comb(d, 2) / 2**d
    data = parity(d, 2)
    certificate = f2(data)
    assert certificate.gap < 1e-6 and certificate.status == "certified"
    assert certificate.lower <= math.sqrt(eigenvalue) * (1 + 1e-12) <= certificate.upper * (1 + 2e-12)
    assert_allclose(certificate.upper, value, atol=6e-7)
    if d < 8:
        assert certificate.verify(data)


def test_odd_parity_is_not_separable_without_bias_and_is_with_it():
    data = parity(3, 3)
    certificate = f2(data)
    assert certificate.status == "not-separable" and certificate.lower == 0 and certificate.upper < 1e-6
    assert "exactly" in certificate.reason and certificate.verify(data)
    certificate = f2(data, bias=True)
    assert certificate.lower > 0.02 and certificate.verify(data)


@pytest.mark.parametrize("activation", ["relu", "srelu"])
@pytest.mark.parametrize("bias", [False, True])
def test_an_independent_solver_agrees(activation: str, bias: bool):
    import cvxpy

    data = noise(25, 4, seed=1)
    certificate = f2(data, bias=bias, activation=activation)
    assert certificate.gap < 1e-6 and certificate.verify(data)
    space = (ReLU if activation == "relu" else SReLU)(bias=bias)
    L = np.linalg.cholesky(space.kernel(data.X))  # K = Y L L' Y
    u = cvxpy.Variable(25)
    t = cvxpy.Variable()
    problem = cvxpy.Problem(cvxpy.Maximize(t), [cvxpy.multiply(data.y, L @ u) >= t, cvxpy.norm(u) <= 1])
    problem.solve(solver=cvxpy.CLARABEL)
    assert_allclose(problem.value, certificate.lower, rtol=1e-5)


def test_the_ways_to_name_a_kernel_agree():
    data = noise(15, 3, seed=2)
    base = f2(data, ReLU(bias=True))
    gram = ReLU(bias=True).kernel(data.X)
    extended = f2(data, lambda X, Z: ReLU().kernel(X, Z), bias=True)
    for other in (f2(data, bias=True), f2(data, kernel="relu", bias=True), f2(data, gram), extended):
        assert meet(base, other) and other.verify(data)
    assert f2(data, gram).extra["kernel"] == "given"
    assert meet(f2(data, SReLU()), f2(data, kernel="srelu"), slack=0)


def test_bad_kernels_are_refused_in_one_sentence():
    data = noise(4, 2, seed=0)
    K = ReLU().kernel(data.X)
    lopsided = K.copy()
    lopsided[0, 1] += 0.1
    holed = K.copy()
    holed[2, 2] = np.nan
    for message, kernel in (
        ("shape", K[:3]),
        ("NaN", holed),
        ("not symmetric", lopsided),
        ("semidefinite", K - np.eye(4) * np.linalg.eigvalsh(K)[1]),
        ("activation", "tanh"),
        ("numbers only", [["a"] * 4] * 4),
    ):
        with pytest.raises(InputError, match=message):
            f2(data, kernel=kernel)
    with pytest.raises(InputError, match="two kernels"):
        f2(data, K, kernel=K)


def test_invariances():
    data = noise(30, 4, seed=3)
    base = f2(data)
    rng = np.random.default_rng(4)
    rotation = np.linalg.qr(rng.standard_normal((4, 4)))[0]
    order = rng.permutation(30)
    assert meet(base, f2(Dataset(data.X @ rotation, data.y)))
    assert meet(base, f2(Dataset(data.X[order], data.y[order])), slack=0)
    assert meet(base, f2(Dataset(data.X, -data.y)), slack=0)
    assert meet(base, f2(Dataset(np.vstack([data.X, data.X]), np.hstack([data.y, data.y]))), slack=0)
    assert base.lower <= f2(Dataset(data.X[1:], data.y[1:])).upper
    for c in (2.0**-900, 2.0**900):
        scaled = Dataset(c * data.X, data.y)
        certificate = f2(scaled)
        assert certificate.lower / c <= base.upper and base.lower <= certificate.upper / c
        assert certificate.gap < 1e-6 and certificate.verify(scaled)


def test_contradictory_labels_and_the_origin():
    data = noise(6, 3, seed=5)
    twice = Dataset(np.vstack([data.X, data.X[:1]]), np.append(data.y, -data.y[0]))
    origin = Dataset(np.vstack([data.X, np.zeros(3)]), np.append(data.y, 1))
    for bad in (twice, origin):
        for certificate in (f2(bad), f2(bad, kernel=ReLU().kernel(bad.X)), random_features(bad, 20), f2(bad, SReLU())):
            assert certificate.status == "not-separable" and certificate.lower == 0 and certificate.proved
            assert certificate.upper < 1e-6 and certificate.reason and certificate.verify(bad)
    assert f2(origin, bias=True).lower > 0


def test_a_large_problem_reaches_the_tolerance():
    data = noise(900, 30, seed=6)
    certificate = f2(data)
    assert certificate.status == "certified" and certificate.gap < 1e-6
    K = ReLU().kernel(data.X) * data.y * data.y[:, None]
    q = certificate.dual
    assert_allclose(math.sqrt(q @ K @ q), certificate.upper, rtol=1e-8)
    assert_allclose((K @ q).min() / math.sqrt(q @ K @ q), certificate.lower, rtol=1e-8)


@pytest.mark.parametrize("n, m, seed", [(40, 6, 0), (40, 60, 1), (300, 3, 2)])
def test_both_quadratic_solvers_reach_the_same_optimum(n: int, m: int, seed: int):
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((n, m)) + 1.5
    Z[:, 0] = 1 + np.abs(Z[:, 0])  # separable, with K of rank m
    by_factor, by_gram = qp.solve_factor(Z, 1e-9), qp.solve(Z @ Z.T, 1e-9)
    values = [np.linalg.norm(p.q @ Z) for p in (by_factor, by_gram)]
    assert by_factor.gap < 1e-9 and by_gram.gap < 1e-9
    assert_allclose(values[0], values[1], rtol=1e-8)
    assert_array_equal(by_factor.q >= 0, True)


@pytest.mark.parametrize("activation", ["relu", "srelu"])
@pytest.mark.parametrize("m", [8, 40])
def test_random_features_are_a_valid_margin_below_the_frozen_one(m: int, activation: str):
    data = noise(10, 4, seed=7)
    V = 3 * sphere(m, 5, seed=8)  # not unit
    finite = random_features(data, V, bias=True, activation=activation)
    assert finite.verify(data)
    if finite.lower > 0:
        assert finite.gap < 1e-6
    wide = frozen(data, V, bias=True, activation=activation)
    assert finite.lower <= wide.upper
    drawn = random_features(data, m, bias=True, activation=activation, seed=8)
    assert meet(drawn, finite, slack=1e-6) and drawn.stats["seed"] == 8


def test_random_features_tend_to_the_kernel_margin():
    data = noise(8, 3, seed=9)
    exact = f2(data)
    many = random_features(data, 20_000, seed=0)
    assert_allclose(many.lower, exact.lower, rtol=0.05)


def test_a_time_limit_leaves_valid_bounds():
    data = noise(60, 4, seed=10)
    late, full = f2(data, time_limit=1e-9), f2(data)
    assert late.status == "time-limit" and late.verify(data)
    assert late.lower <= full.upper and full.lower <= late.upper


def test_what_a_line_separates_is_not_inseparable():
    """Seconds since 1970 beside a flag, which is the label: linear functions are in these spaces, whatever a matrix says that is
    rounded to 1e-16 of the squares."""
    flag = np.arange(6) % 2
    data = Dataset(np.column_stack([1.7e9 + np.arange(6.0), flag]), 2.0 * flag - 1)
    found = [f2(data), f2(data, bias=True), f2(data, activation="leaky")]
    for cert in (*found, ntk(data, part="outer", transport="l2")):
        assert cert.status == "rounding" and cert.verify(data).failed is None, cert
    for point in (1.7e9, 1.0):  # one point with both labels is another thing
        conflict = Dataset([[point, 0.0], [point, 0.0]], [1, -1])
        assert f2(conflict).status == "not-separable" and f2(conflict).verify(conflict).ok


def test_what_there_was_no_time_to_look_for_is_not_absent(monkeypatch):
    """The weights of the points are known when the time is over, and the line that they stand for would take longer."""
    flag = np.arange(6) % 2
    data = Dataset(np.column_stack([1.7e9 + np.arange(6.0), flag]), 2.0 * flag - 1)

    def at_the_end(Z: np.ndarray, *others: object) -> qp.Progress:
        found = solve_factor(Z, *others)
        found.deadline = 0.0
        return found

    solve_factor = qp.solve_factor
    monkeypatch.setattr(qp, "solve_factor", at_the_end)
    for cert in (f2(data, bias=True), ntk(data, part="outer", transport="l2"), linear(data)):
        assert cert.status in ("rounding", "time-limit") and cert.verify(data).failed is None, cert
