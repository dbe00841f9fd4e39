import sys
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import linprog

from checks import noise
from widemargin import Dataset, InputError, extras
from widemargin.margins import f1, frozen
from widemargin.spaces import ReLU, SReLU, sphere


@pytest.mark.parametrize("activation", ["relu", "srelu"])
@pytest.mark.parametrize("bias", [False, True])
def test_an_independent_linear_program_agrees(activation: str, bias: bool):
    data = noise(12, 3, seed=1)
    V = sphere(60, 3 + bias, seed=2) * np.linspace(0.1, 5, 60)[:, None]
    certificate = frozen(data, V, bias=bias, activation=activation)
    assert certificate.status == "certified" and certificate.gap < 1e-6 and certificate.verify(data)
    space = (ReLU if activation == "relu" else SReLU)(bias=bias)
    Z = space.features(V / np.linalg.norm(V, axis=1, keepdims=True), data.X) * data.y[:, None]
    # the dual, from its definition: minimise s with |Z' q| <= s on the simplex
    ones = np.ones((60, 1))
    A = np.vstack([np.hstack([Z.T, -ones]), np.hstack([-Z.T, -ones])])
    simplex = np.append(np.ones(12), 0)[None]
    limits = [(0, None)] * 12 + [(None, None)]
    dual = linprog(np.append(np.zeros(12), 1), A, np.zeros(120), simplex, [1], bounds=limits)
    assert_allclose(certificate.upper, dual.fun, rtol=1e-7)
    primal = certificate.primal
    assert primal is not None and primal.margin(data) >= certificate.lower > 0
    rows = {row.tobytes() for row in V}
    assert all(row.tobytes() in rows for row in primal.theta)


def test_golden_values():
    antipodal = Dataset([[1.0, 0.0], [-1.0, 0.0]], [1, -1])
    certificate = frozen(antipodal, [[1.0, 0.0], [-2.0, 0.0]])
    assert certificate.lower <= 0.5 <= certificate.upper and certificate.gap < 1e-12
    xor = Dataset([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]], [1, 1, -1, -1])
    certificate = frozen(xor, xor.X)
    assert_allclose(certificate.upper, np.sqrt(2) / 4, rtol=1e-9)
    assert certificate.verify(xor) and certificate.conversions["M2"]["upper"] == certificate.upper / 2


def test_more_directions_never_lower_the_margin():
    data, V = noise(8, 3, seed=3), sphere(64, 3, seed=4)
    margins = [frozen(data, V[:m]) for m in (16, 32, 64)]
    for few, many in pairwise(margins):
        assert few.lower <= many.upper and few.verify(data)


def test_scaling_and_extreme_magnitudes():
    data = noise(8, 3, seed=5)
    base = frozen(data, 40, seed=6)
    assert base.stats["seed"] == 6
    for c in (2.0**-900, 2.0**900):
        scaled = Dataset(c * data.X, data.y)
        certificate = frozen(scaled, 40, seed=6)
        assert certificate.lower / c <= base.upper and base.lower <= certificate.upper / c
        assert certificate.gap < 1e-6 and certificate.verify(scaled)


def test_not_separable():
    twice = Dataset([[1.0, 2.0], [1.0, 2.0]], [1, -1])
    certificate = frozen(twice, 10)
    assert certificate.status == "not-separable" and certificate.upper == 0 and certificate.primal is None
    assert "different labels" in certificate.reason and certificate.verify(twice)
    one_sided = Dataset([[1.0, 0.0], [-1.0, 0.0]], [1, 1])
    certificate = frozen(one_sided, [[1.0, 0.0]])  # nothing is active at the second point
    assert certificate.status == "not-separable" and certificate.upper < 1e-12 and certificate.verify(one_sided)


def test_bad_directions_are_refused_in_one_sentence():
    data = noise(4, 3, seed=0)
    for message, directions in (
        (r"shape \(m, 3\)", np.ones((5, 4))),
        ("direction 1 is zero", [[1.0, 0, 0], [0, 0, 0]]),
        ("direction 0", [[np.nan, 0, 0]]),
        ("numbers only", [["a", "b", "c"]]),
        ("from 1 to", 0),
    ):
        with pytest.raises(InputError, match=message):
            frozen(data, directions)


@pytest.mark.parametrize(("package", "solve"), [("highspy", lambda data: frozen(data, 50)), ("clarabel", f1)])
def test_no_other_solver_stands_in_for_one_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, package: str, solve: Callable[[Dataset], object]
):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=package) as caught:
        solve(noise(10, 3, seed=7))
    assert f"needs the package {package}" in str(extras.sentence(caught.value.name))  # what the command line says


def test_a_time_limit_leaves_valid_bounds():
    data = noise(150, 20, seed=8)
    certificate = frozen(data, 600, time_limit=0.02)
    assert certificate.verify(data)
    assert certificate.status in ("time-limit", "certified") and certificate.lower <= certificate.upper


@pytest.mark.parametrize("n", [4, 40])
def test_what_random_features_separate_frozen_neurons_do(n):
    """Seconds since 1970 beside a flag: a program of float64 found weights that cancel up to rounding, and said so."""
    flag = np.arange(n) % 2
    X = np.column_stack([1.7e9 + np.rint(100 * np.random.default_rng(n).random(n)), flag])
    data, V = Dataset(X, 2.0 * flag - 1), np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [-1e-9, 1.0], [1e-9, -1.0]])
    cert = frozen(data, V)
    assert cert.status == "rounding" and cert.lower > 0.45 and cert.upper < 0.51 and cert.verify(data).ok, cert
