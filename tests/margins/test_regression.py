import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.kernel_ridge import KernelRidge

from widemargin import Dataset, InputError
from widemargin.margins import min_norm_l2
from widemargin.spaces import ReLU, SReLU, sphere


def sample(n: int, d: int, seed: int) -> Dataset:
    rng = np.random.default_rng(seed)
    return Dataset(rng.standard_normal((n, d)), rng.standard_normal(n))


@pytest.mark.parametrize("activation", ["relu", "srelu"])
@pytest.mark.parametrize("bias", [False, True])
def test_the_norm_is_the_quadratic_form_of_the_inverse_kernel(activation: str, bias: bool):
    data = sample(12, 4, seed=0)
    certificate = min_norm_l2(data, bias=bias, activation=activation)
    space = (ReLU if activation == "relu" else SReLU)(bias)
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
    assert odd.status == "no-interpolation" and "singular" in odd.reason and odd.lower > 1e5
    linear = min_norm_l2(Dataset(cube, cube[:, 0]))  # in the range of the singular kernel
    assert linear.status == "rounding" and not linear.proved
    k = ReLU().kernel(cube)
    assert_allclose(linear.lower, math.sqrt(cube[:, 0] @ np.linalg.pinv(k, rtol=1e-10) @ cube[:, 0]), rtol=1e-6)


def test_bad_input():
    with pytest.raises(InputError, match="activation"):
        min_norm_l2(sample(3, 2, seed=0), activation="tanh")
