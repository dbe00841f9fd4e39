import json
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import linprog
from sklearn.kernel_ridge import KernelRidge

from widemargin import Dataset, InputError, verify
from widemargin.data import one_relu
from widemargin.margins import _relations
from widemargin.margins.regression import LARGEST, min_norm_l1, min_norm_l2
from widemargin.spaces import ReLU, SReLU, sphere


def sample(n: int, d: int, seed: int) -> Dataset:
    rng = np.random.default_rng(seed)
    return Dataset(rng.standard_normal((n, d)), rng.standard_normal(n))


@pytest.mark.parametrize("activation", ["relu", "srelu"])
@pytest.mark.parametrize("bias", [False, True])
def test_the_norm_is_the_quadratic_form_of_the_inverse_kernel(activation: str, bias: bool):
    data = sample(12, 4, seed=0)
    certificate = min_norm_l2(data, bias=bias, activation=activation)
    space = (ReLU if activation == "relu" else SReLU)(bias=bias)
    k = space.kernel(data.X)
    exact = math.sqrt(data.y @ np.linalg.solve(k, data.y))
    assert certificate.status == "certified" and certificate.proved and certificate.gap < 1e-6
    assert certificate.lower <= exact * (1 + 1e-9) and exact * (1 - 1e-9) <= certificate.upper
    assert_allclose(k @ certificate.dual, data.y, atol=1e-8)


def test_any_weights_bound_the_norm_from_below():
    data = sample(10, 3, seed=1)
    certificate = min_norm_l2(data)
    k = ReLU().kernel(data.X)
    for seed in range(50):
        b = certificate.dual + np.random.default_rng(seed).standard_normal(10) * 0.1 * np.abs(certificate.dual).max()
        assert data.y @ b / math.sqrt(b @ k @ b) <= certificate.upper * (1 + 1e-12)


def test_a_random_neuron_costs_sqrt_n_on_average():
    """E over uniform u of v' k^-1 v = n, v_i = relu(u . x_i)."""
    n, d, draws = 6, 4, 600
    X = np.random.default_rng(2).standard_normal((n, d))
    V = ReLU().features(sphere(draws, d, seed=3), X).T  # (draws, n)
    squares = np.array([min_norm_l2(Dataset(X, v)).upper ** 2 for v in V])
    assert abs(squares.mean() - n) < 4 * squares.std() / math.sqrt(draws)


def test_it_is_the_limit_of_kernel_ridge_regression():
    data = sample(12, 5, seed=4)
    certificate = min_norm_l2(data)
    k = ReLU().kernel(data.X)
    norms = []
    for weight in (1e-2, 1e-4, 1e-6, 1e-10):
        b = KernelRidge(alpha=weight, kernel="precomputed").fit(k, data.y).dual_coef_
        norms.append(math.sqrt(b @ k @ b))
    assert norms == sorted(norms) and norms[-1] <= certificate.upper
    assert_allclose(norms[-1], certificate.lower, rtol=1e-5)


def test_scaling():
    data = sample(8, 3, seed=5)
    base = min_norm_l2(data)
    for c, s in ((2.0**-400, 8.0), (2.0**400, 2.0**-100)):
        scaled = min_norm_l2(Dataset(c * data.X, s * data.y))
        assert scaled.lower * c / s <= base.upper and base.lower <= scaled.upper * c / s and scaled.gap < 1e-6


def test_repeated_points_and_zero_targets():
    data = sample(6, 3, seed=6)
    twice = Dataset(np.vstack([data.X, data.X[:2]]), np.append(data.y, data.y[:2]))
    base, doubled = min_norm_l2(data), min_norm_l2(twice)
    assert doubled.lower <= base.upper and base.lower <= doubled.upper
    nothing = min_norm_l2(Dataset(data.X, np.zeros(6)))
    assert nothing.lower == nothing.upper == 0 and nothing.status == "certified"


def test_no_interpolation():
    data = sample(6, 3, seed=7)
    clash = min_norm_l2(Dataset(np.vstack([data.X, data.X[:1]]), np.append(data.y, data.y[0] + 1)))
    assert clash.status == "no-interpolation" and "different targets" in clash.reason and clash.upper > 1e300
    origin = min_norm_l2(Dataset(np.vstack([data.X, np.zeros(3)]), np.append(data.y, 1.0)))
    assert origin.status == "no-interpolation" and "origin" in origin.reason
    cube = np.array([[a, b, c] for a in (-1.0, 1) for b in (-1.0, 1) for c in (-1.0, 1)])
    odd = min_norm_l2(Dataset(cube, cube.prod(axis=1)))  # f(x) - f(-x) is linear, and odd parity is not
    assert odd.status == "no-interpolation" and "linear" in odd.reason and odd.lower == odd.upper == LARGEST
    linear = min_norm_l2(Dataset(cube, cube[:, 0]))  # in the range of the singular kernel
    assert linear.status == "certified" and linear.proved and linear.verify(Dataset(cube, cube[:, 0]))
    k = ReLU().kernel(cube)
    assert_allclose(linear.lower, math.sqrt(cube[:, 0] @ np.linalg.pinv(k, rtol=1e-10) @ cube[:, 0]), rtol=1e-6)
    for made in (clash, origin, odd):
        assert made.proved and made.proof == {"type": "relation"}
    close = np.array([[1.0, 0.0], [1.0, 1e-9], [1.0, 2e-9], [0.0, 1.0]])  # singular only up to rounding
    nearly = min_norm_l2(Dataset(close, np.array([0.0, 1.0, 0.0, 0.0])))
    assert nearly.status == "no-interpolation" and not nearly.proved and "up to rounding" in nearly.reason
    assert nearly.lower > 1e5
    assert nearly.verify(Dataset(close, np.array([0.0, 1.0, 0.0, 0.0]))).answer == verify.UNPROVED


@pytest.mark.parametrize("activation", ["relu", "srelu"])
def test_l2_certificates_verify_exactly(activation: str):
    data = sample(9, 3, seed=8)
    doubled = Dataset(np.vstack([data.X, data.X[:2], np.zeros(3)]), np.concatenate([data.y, data.y[:2], [0.0]]))
    for made_for in (data, doubled):
        made = min_norm_l2(made_for, bias=False, activation=activation)
        verdict = made.verify(made_for)
        assert verdict and made.status == "certified", verdict
        assert f"kernel {activation}" in verdict.about
        payload = made.payload()
        for field, value in (("lower", made.upper * 1.001), ("upper", made.lower * 0.999)):
            bad = {**payload, field: value, "lower" if field == "upper" else "upper": 0.0 if field == "upper" else 1e9}
            bad["digest"] = verify.digest(bad)
            assert verify.check(bad, made_for.X, made_for.y).failed.startswith(f"{field} bound")


def test_bad_input():
    with pytest.raises(InputError, match="activation"):
        min_norm_l2(sample(3, 2, seed=0), activation="tanh")


def on_a_grid(data: Dataset, V: np.ndarray, bias: bool) -> float:
    """min sum |a| with sum_j a_j relu(v_j . x_i) = y_i, by linear programming over the neurons V."""
    Z = ReLU(bias=bias).features(V, data.X)  # (n, m)
    result = linprog(np.ones(2 * len(V)), A_eq=np.hstack([Z, -Z]), b_eq=data.y, method="highs")
    assert result.status == 0
    return float(result.fun)


def circle(m: int) -> np.ndarray:
    angle = 2 * np.pi * np.arange(m) / m
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


@pytest.mark.parametrize(("n", "d", "bias"), [(5, 1, True), (7, 1, True), (5, 2, False), (8, 2, False)])
def test_l1_norm_in_the_plane_against_a_fine_grid(n: int, d: int, bias: bool):
    data = sample(n, d, seed=n)
    made = min_norm_l1(data, bias=bias)
    across = ReLU(bias=bias).extend(data.X)[:, ::-1] * [
        1,
        -1,
    ]  # where one point vanishes: the optimum often bends there
    across = across / np.linalg.norm(across, axis=1, keepdims=True)
    grid = on_a_grid(data, np.vstack([circle(3000), across, -across]), bias)
    assert made.status == "certified" and made.gap < 1e-3 and made.proved
    assert made.lower <= grid <= made.upper * (1 + 5e-3)  # a grid has fewer neurons
    assert_allclose(made.primal(data.X), data.y, atol=1e-12)
    assert made.primal.norm <= made.upper and made.atoms <= n
    lam = made.dual / made.proof["maximum"]
    assert np.abs(lam @ ReLU(bias=bias).features(circle(3000), data.X)).max() <= 1 + 1e-12
    assert_allclose(lam @ data.y, made.lower, rtol=1e-9)


@pytest.mark.parametrize(("n", "d", "bias"), [(6, 2, True), (7, 3, False), (9, 4, False)])
def test_l1_norm_in_space_against_sampled_neurons(n: int, d: int, bias: bool):
    data = sample(n, d, seed=10 + n)
    made = min_norm_l1(data, bias=bias)
    assert made.status == "certified" and made.verify(data)
    assert made.bound == ("enumeration" if d + bias == 3 else "tree")
    V = sphere(4000, d + bias, seed=1)
    assert made.lower <= on_a_grid(data, V, bias)
    everything = np.vstack([V, made.primal.theta])
    assert_allclose(on_a_grid(data, everything, bias), made.upper, rtol=2e-3)
    assert np.abs(made.dual @ ReLU(bias=bias).features(everything, data.X)).max() <= made.proof["maximum"] * (1 + 1e-12)
    assert_allclose(made.primal(data.X), data.y, atol=1e-11)


@pytest.mark.parametrize(
    ("n", "d", "bias", "bound"), [(60, 2, False, "enumeration"), (28, 4, False, "cones tree mixed")]
)
def test_l1_norms_of_many_points_in_few_dimensions_close(n: int, d: int, bias: bool, bound: str):
    data = sample(n, d, seed=n + d)
    made = min_norm_l1(data, bias=bias)
    assert made.status == "certified" and made.bound in bound.split() and made.verify(data), str(made.verify(data))
    assert made.lower <= on_a_grid(data, np.vstack([sphere(2000, d + bias, seed=1), made.primal.theta]), bias)
    assert_allclose(made.primal(data.X), data.y, atol=1e-8)
    assert made.primal.norm <= made.upper and made.atoms <= n


def test_l1_norm_of_a_point_and_of_the_line():
    """One point costs |y| / |x|; on the line two points on both sides of 0 cost |y_1| / |x_1| + |y_2| / |x_2|."""
    one = min_norm_l1(Dataset([[3.0, 4.0]], [10.0]))
    assert one.status == "certified" and one.lower <= 2 <= one.upper and one.gap < 1e-9
    line = Dataset([[1.0], [-2.0]], [3.0, -1.0])
    two = min_norm_l1(line)
    assert two.lower <= 3.5 <= two.upper and two.gap < 1e-9 and two.verify(line)


def test_a_single_neuron_has_l1_norm_at_most_one():
    for d, n, seed in ((3, 8, 0), (5, 10, 1)):
        data = one_relu(d, n, seed)
        made = min_norm_l1(data)
        assert made.status == "certified" and made.lower <= 1 and made.upper <= 1 + 1e-3


def test_the_l1_norm_is_at_most_the_l2_norm():
    for seed in range(3):
        for bias in (False, True):
            data = sample(6, 2, seed=20 + seed)
            assert min_norm_l1(data, bias=bias).lower <= min_norm_l2(data, bias=bias).upper


def test_l1_scaling():
    data = sample(6, 2, seed=30)
    base = min_norm_l1(data)
    for c, s in ((1.0, -3.0), (0.1, 1e5), (2.0**-300, 2.0**200)):
        scaled_data = Dataset(c * data.X, s * data.y)
        scaled = min_norm_l1(scaled_data)
        assert scaled.status == "certified" and scaled.verify(scaled_data)
        factor = abs(s) / c
        assert scaled.lower <= base.upper * factor * (1 + 1e-9) and base.lower * factor <= scaled.upper * (1 + 1e-9)
    space = sample(6, 3, seed=36)
    for c in (2.0**-300, 1e3):
        assert min_norm_l1(Dataset(c * space.X, space.y)).verify(Dataset(c * space.X, space.y))


@pytest.mark.parametrize("bias", [False, True])
def test_mutated_l1_certificates_fail(bias: bool):
    data = sample(6, 2, seed=31) if not bias else sample(5, 2, seed=32)
    made = min_norm_l1(data, bias=bias)
    payload = json.loads(json.dumps(made.payload()))
    assert verify.check(payload, data.X, data.y)

    def failed(**fields: object) -> str:
        bad = {**payload, **fields}
        bad["digest"] = verify.digest(bad)
        verdict = verify.check(bad, data.X, data.y)
        assert not verdict
        return str(verdict.failed)

    assert failed(lower=made.upper * (1 + 1e-6), upper=1e9).startswith("lower bound")
    assert failed(lower=0.0, upper=made.primal.norm * (1 - 1e-9)).startswith("upper bound")
    mass = [m * (1 + 1e-6) for m in payload["primal"]["mass"]]
    assert failed(primal={**payload["primal"], "mass": mass}).startswith("upper bound")
    assert failed(primal=None).startswith("upper bound")
    small = {**payload["proof"], "maximum": payload["proof"]["maximum"] * 0.99}
    assert "side" in failed(proof=small)
    assert failed(dual=[-w for w in payload["dual"]]).startswith(("lower bound", "tree", "enumeration"))
    assert failed(dual=[0.0] * data.n).startswith(("lower bound", "tree"))
    assert failed(proof={"type": "omitted"}).startswith("lower bound: the proof is not stored")
    flat = [payload["extra"]["frame"][0]] * data.n
    assert failed(extra={**payload["extra"], "frame": flat}).startswith("upper bound: the frame")
    assert failed(extra={}).startswith("upper bound")
    assert failed(convention="M1").startswith("format")
    assert failed(status="no-interpolation").startswith("lower <= upper")
    assert failed(status="no-interpolation", upper=LARGEST).startswith("lower bound")


CUBE = np.array([[a, b, c] for a in (-1.0, 1) for b in (-1.0, 1) for c in (-1.0, 1)])
PLANE = np.array([[1.0, 2.0], [0.5, -1.0], [3.0, 0.25]])


@pytest.mark.parametrize(
    ("X", "y", "word"),
    [
        (PLANE[[0, 1, 0]], [1.0, 2.0, 1.5], "equal"),
        (np.vstack([PLANE, np.zeros(2)]), [1.0, 2.0, 3.0, 4.0], "origin"),
        (np.vstack([PLANE, 3 * PLANE[:1]]), [1.0, 2.0, 3.0, 4.0], "one ray"),
        (CUBE, CUBE.prod(axis=1), "linear"),
        (np.vstack([PLANE, -PLANE]), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "linear"),
    ],
)
def test_l1_no_interpolation(X: np.ndarray, y: np.ndarray, word: str):
    data = Dataset(X, y)
    made = min_norm_l1(data)
    assert made.status == "no-interpolation" and word in made.reason and made.proved and made.primal is None
    assert made.lower == made.upper == LARGEST and "infinity" in str(made.verify(data))
    V = sphere(200, X.shape[1])
    assert np.abs(made.dual @ ReLU().features(V, X)).max() < 1e-12 * np.abs(made.dual).max() and made.dual @ data.y != 0
    wrong = made.payload() | {"dual": (made.dual * np.arange(1, data.n + 1)).tolist()}
    wrong["digest"] = verify.digest(wrong)
    if word != "origin":
        assert not verify.check(wrong, data.X, data.y)
    if word in ("linear", "one ray"):
        with_bias = min_norm_l1(data, bias=True)
        assert with_bias.status == "certified" and with_bias.verify(data)


def test_l1_with_relations_that_the_targets_keep():
    line = np.array([[1.0, 2.0], [2.0, 4.0], [-0.5, -1.0], [0.0, 0.0], [1.0, 2.0], [1.0, -1.0]])
    for X, y in ((CUBE, CUBE[:, 0]), (line, [1.0, 2.0, 0.25, 0.0, 1.0, 3.0]), (np.vstack([CUBE, 3 * CUBE]), None)):
        targets = np.concatenate([CUBE @ [1.0, 2.0, 3.0]] * 2) * np.repeat([1, 3], 8) if y is None else y
        data = Dataset(X, targets)
        made = min_norm_l1(data)
        assert made.status == "certified" and len(made.extra["relations"]) > 0
        assert made.verify(data), made.verify(data)
        assert_allclose(made.primal(data.X), data.y, atol=1e-11)
        payload = made.payload()
        for relations in ([], payload["extra"]["relations"][1:]):
            bad = payload | {"extra": payload["extra"] | {"relations": relations}}
            bad["digest"] = verify.digest(bad)
            assert verify.check(bad, data.X, data.y).failed.startswith("upper bound")
    # f(x) = u . x costs 2 |u|: relu(t) - relu(-t), and the dual of the cube's symmetry shows that nothing is cheaper
    assert_allclose(min_norm_l1(Dataset(CUBE, CUBE[:, 0])).upper, 2, rtol=2e-3)


@pytest.mark.parametrize("degree", [1, 2])
def test_relations_are_all_relations(degree: int):
    """The number of free points is the rank of the features of many neurons."""
    rng = np.random.default_rng(0)
    for d in (1, 2, 3):
        for _ in range(5):
            X = rng.integers(-2, 3, (int(rng.integers(2, 14)), d)).astype(float)
            known = _relations.find(X, np.zeros(len(X)), degree)
            V = rng.standard_normal((600, d))
            Z = (X @ V.T).clip(0) ** degree
            assert len(known.free) == np.linalg.matrix_rank(Z)
            assert len(known.free) + len(known.relations) == len(X) and known.obstruction is None
            for i, weights in known.relations:
                assert weights[i] != 0
                assert np.abs(sum(w * Z[j] for j, w in weights.items())).max() < 1e-9


def test_l1_edge_cases():
    data = sample(5, 2, seed=33)
    nothing = min_norm_l1(Dataset(data.X, np.zeros(5)))
    assert nothing.lower == nothing.upper == 0 and nothing.status == "certified"
    assert nothing.verify(Dataset(data.X, np.zeros(5)))
    zero = Dataset(np.zeros((2, 2)), np.zeros(2))
    assert min_norm_l1(zero).upper == 0 and min_norm_l1(zero).verify(zero) and min_norm_l2(zero).verify(zero)
    hard = Dataset([[1.0, 0.0], [1.0, 1e-15], [1.0, -1e-15]], [0.0, 1.0, 1.0])
    made = min_norm_l1(hard, time_limit=2.0)
    assert made.status in ("rounding", "certified") and made.verify(hard).failed is None
    with pytest.raises(InputError, match="relu"):
        min_norm_l1(data, activation="srelu")
    with pytest.raises(InputError, match="tol"):
        min_norm_l1(data, tol=2.0)
    lines: list[str] = []
    min_norm_l1(sample(6, 3, seed=34), progress=lambda seconds, low, high, text: lines.append(text))
    assert lines
    short = sample(25, 6, seed=35)
    stopped = min_norm_l1(short, time_limit=0.05)
    assert stopped.status == "time-limit" and 0 <= stopped.lower <= stopped.upper and stopped.verify(short)


def test_a_time_limit_of_some_times_what_the_factorisation_takes_is_enough(monkeypatch):
    """2000 points take a second, and some of them were left out where the limit was five."""
    monkeypatch.setattr(
        "widemargin.margins.regression.speed", lambda: 1e6
    )  # of a machine on which 200 points take that of 60
    points = np.random.default_rng(0).standard_normal((200, 8))
    cert = min_norm_l2(Dataset(points, points[:, 0] ** 2), time_limit=60.0)
    assert cert.status == "certified" and cert.upper < LARGEST
