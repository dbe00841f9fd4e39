import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from widemargin import InputError
from widemargin.spaces import LeakyReLU, ReLU, Space, SReLU, as_space, sphere

SPACES = [ReLU(), ReLU(bias=True), SReLU(), SReLU(bias=True), LeakyReLU(), LeakyReLU(bias=True, slope=0.4)]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_the_closed_form_is_the_mean_over_random_directions(space: Space):
    rng = np.random.default_rng(1)
    X, Z = rng.standard_normal((4, 3)), rng.standard_normal((5, 3))
    m = 200_000
    V = sphere(m, 3 + space.bias, seed=2)
    a, b = space.features(V, X), space.features(V, Z)  # (4, m), (5, m)
    products = a[:, None] * b  # (4, 5, m)
    error = products.std(axis=2) / math.sqrt(m)
    K = space.kernel(X, Z)
    assert (np.abs(products.mean(axis=2) - K) < 4.5 * error + 1e-12).all()
    assert_allclose(space.kernel(X, X), space.kernel(X), rtol=1e-12, atol=1e-15)


def test_golden_values_of_the_relu_kernel():
    x, z = np.array([[3.0, 4.0, 0.0]]), np.array([[0.0, 0.0, 2.0]])
    assert_allclose(ReLU().kernel(x), 25 / 6, rtol=1e-14)  # ||x||^2 / (2 d)
    assert_allclose(ReLU().kernel(x, z), 10 / (2 * np.pi * 3), rtol=1e-14)  # a right angle: sin t = 1
    assert_allclose(SReLU().kernel(x), 625 * 3 / (2 * 3 * 5), rtol=1e-14)  # E relu^4 = E v^4 / 2 = 3 / (2 D (D + 2))
    assert_allclose(SReLU().kernel(x, z), 100 / (4 * 3 * 5), rtol=1e-14)


@pytest.mark.parametrize("angle", [0.0, 1e-9, 1e-5, 0.1, 2.0, math.pi - 1e-3, math.pi])
def test_the_kernel_is_accurate_at_small_and_flat_angles(angle: float):
    import mpmath

    z = np.array([[math.cos(angle), math.sin(angle)]])
    with mpmath.workdps(40):
        t = mpmath.atan2(mpmath.mpf(float(z[0, 1])), mpmath.mpf(float(z[0, 0])))
        s, c = mpmath.sin(t), mpmath.cos(t)
        j1 = float((s + (mpmath.pi - t) * c) / (4 * mpmath.pi))
        j2 = float((3 * s * c + (mpmath.pi - t) * (1 + 2 * c * c)) / (16 * mpmath.pi))
    x = np.array([[1.0, 0.0]])
    assert_allclose(ReLU().kernel(x, z)[0, 0], j1, rtol=0, atol=3e-16)
    assert_allclose(SReLU().kernel(x, z)[0, 0], j2, rtol=0, atol=3e-16)


def test_kernels_are_symmetric_and_positive_semidefinite_and_zero_at_the_origin():
    X = np.random.default_rng(0).standard_normal((40, 3))
    X[7] = 0
    for space in SPACES:
        K = space.kernel(X)
        assert_allclose(K, K.T, rtol=1e-14, atol=0)
        assert np.linalg.eigvalsh(K).min() > -1e-13
    assert_array_equal(ReLU().kernel(X)[7], 0)


def test_leaky_relu_is_that_of_torch_and_its_kernel_follows_from_that_of_relu():
    import torch

    t = np.array([-3.0, -1e-300, 0.0, 1e-300, 2.0])
    X, Z = np.random.default_rng(4).standard_normal((2, 6, 3))
    for slope in (0.0, 0.01, 0.3, 0.999):
        space = LeakyReLU(slope=slope)
        assert_array_equal(space.phi(t), torch.nn.LeakyReLU(slope)(torch.tensor(t)).numpy())
        assert_array_equal(space.phi(torch.tensor(t)).numpy(), space.phi(t))
        relu = ReLU().kernel
        assert_allclose(
            space.kernel(X, Z), (1 + slope**2) * relu(X, Z) - 2 * slope * relu(X, -Z), rtol=1e-12, atol=1e-15
        )
        assert_allclose(space.kernel(X).diagonal(), (1 + slope**2) / 6 * (X**2).sum(1), rtol=1e-14)
        assert as_space(space.activation, bias=True) == LeakyReLU(bias=True, slope=slope)
    assert_array_equal(LeakyReLU(slope=0).kernel(X, Z), ReLU().kernel(X, Z))
    assert (as_space("leaky"), as_space("leaky:.20").activation) == (LeakyReLU(), "leaky:0.2")
    assert as_space("leaky:0.01").activation == LeakyReLU().activation == "leaky"
    assert as_space("leaky:-0.0").activation == "leaky:0.0"


@pytest.mark.parametrize(
    "name", ["leaky:", "leaky:1", "leaky:-0.1", "leaky:nan", "leaky:inf", "leaky:x", "leaky:0.1:0.2"]
)
def test_a_bad_slope_is_one_sentence(name: str):
    with pytest.raises(InputError, match=r"the slope in activation 'leaky:.* from 0 to below 1") as caught:
        as_space(name, bias=True)
    assert "\n" not in str(caught.value) and ". " not in str(caught.value)


@pytest.mark.parametrize("name", ["leaky0.2", "Leaky", "tanh", "", None, 3, "relu:0.1"])
def test_an_unknown_activation_is_one_sentence(name):
    with pytest.raises(InputError, match="activation must be 'relu', 'srelu', 'leaky' or"):
        as_space(name)
    with pytest.raises(InputError, match="slope"):
        LeakyReLU(slope=1.0)


def test_extreme_sizes_neither_overflow_nor_underflow():
    X = np.random.default_rng(0).standard_normal((5, 3))
    assert_allclose(ReLU().kernel(1e150 * X) / 1e300, ReLU().kernel(X), rtol=1e-12, atol=1e-15)
    assert_allclose(ReLU().kernel(1e-150 * X) * 1e300, ReLU().kernel(X), rtol=1e-12, atol=1e-15)


def test_features_check_shapes_and_bias_adds_a_coordinate():
    X = np.ones((2, 3))
    assert ReLU(bias=True).extend(X).shape == (2, 4)
    assert_array_equal(SReLU(bias=True).features([[1.0, 1, 1, 1], [-1, 0, 0, 0]], X), [[16, 0], [16, 0]])
    with pytest.raises(InputError, match="directions have 3 entries but points have 4"):
        ReLU(bias=True).features(np.ones((2, 3)), X)
    with pytest.raises(InputError, match="two dimensions"):
        ReLU().extend(np.ones(3))


def test_sphere_is_uniform_and_reproducible():
    V = sphere(20_000, 4, seed=3)
    assert_allclose(np.linalg.norm(V, axis=1), 1, rtol=1e-14)
    assert_allclose(V.T @ V / len(V), np.eye(4) / 4, atol=0.01)
    assert_array_equal(V, sphere(20_000, 4, seed=3))
    with pytest.raises(InputError):
        sphere(0, 4)
