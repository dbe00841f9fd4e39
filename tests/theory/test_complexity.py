"""Rademacher complexities against Monte Carlo, closed forms and the definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from widemargin.spaces import ReLU, sphere
from widemargin.theory import complexity


@pytest.mark.parametrize("shape", ["circle", "line", "short", "space"])
def test_monte_carlo_complexities_lie_below_the_bounds(shape: str):
    rng = np.random.default_rng(3)
    X = {
        "circle": sphere(40, 2, 1),
        "line": rng.standard_normal((30, 1)),
        "short": rng.standard_normal((3, 2)),
        "space": rng.standard_normal((25, 4)),
    }[shape]
    n, d = X.shape
    frob = float(np.linalg.norm(X))
    for kind in ("hull", "linear", "kernel"):
        mean, error = complexity.rademacher_monte_carlo(X, kind, samples=150, seed=2)
        bound = complexity.rademacher_bound(frob, n, d, kind=kind)
        printed = complexity.rademacher_bound(frob, n, d, kind=kind, convention="printed")
        assert mean + 4 * error < bound.value * (1.0 + 4 * error / mean) and mean - 3 * error <= bound.value
        assert bound.value <= printed.value * (1 + 1e-12)
        assert mean > 0.3 * bound.value  # not idle either
    # LR-18, UH-24: Rad of the hull is at most ||X||_F/n, half of that in M2
    mean, error = complexity.rademacher_monte_carlo(X, "hull", samples=150, seed=2)
    assert mean - 3 * error <= frob / n


def test_hull_supremum_on_the_circle_is_exact():
    rng = np.random.default_rng(0)
    angle = np.linspace(0, 2 * np.pi, 20001)
    V = np.column_stack([np.cos(angle), np.sin(angle)])
    for _ in range(10):
        X, e = rng.standard_normal((7, 2)), rng.choice([-1.0, 1.0], 7)
        grid = np.abs(e @ (X @ V.T).clip(0)).max()
        assert grid <= complexity._best_on_circle(X, e) + 1e-12
        assert_allclose(complexity._best_on_circle(X, e), grid, rtol=1e-3)  # a kink may lie between grid angles
        assert (
            0.9 * grid
            <= complexity._best_by_ascent(X, e, sphere(100, 2, 0))
            <= complexity._best_on_circle(X, e) + 1e-12
        )


def test_kernel_complexity_uses_the_exact_trace():
    X = np.random.default_rng(0).standard_normal((20, 3))
    assert_allclose(ReLU().kernel(X).trace(), (X**2).sum() / 6)
    assert_allclose(
        complexity.rademacher_bound(float(np.linalg.norm(X)), 20, 3, kind="kernel").value,
        math.sqrt(ReLU().kernel(X).trace()) / 20,
    )


def test_batch_norm_complexity_needs_the_initial_rows():
    """E-BN-6: as rho -> 0 the printed bound vanishes, the class does not."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((30, 3))
    X -= X.mean(axis=0)
    X /= np.linalg.norm(X, axis=1).max()
    V = rng.standard_normal((50, 3)) / math.sqrt(3)
    eps = rng.choice([-1.0, 1.0], (400, 30))
    H = np.hstack([(X @ V.T).clip(0), (-X @ V.T).clip(0)])
    sup = np.abs(eps @ H).max(axis=1) / 30  # rows of V alone: rho = 0, B = 1
    frob, v0 = float(np.linalg.norm(X)), float(np.linalg.norm(V, axis=1).max())
    honest = complexity.batchnorm_rademacher(1.0, 1e-3, frob, 30, v0)
    printed = complexity.batchnorm_rademacher(1.0, 1e-3, frob, 30, v0, convention="printed")
    assert printed.value < sup.mean() - 4 * sup.std() / 20 < sup.mean() < honest.value
    assert honest.applies is None and complexity.batchnorm_rademacher(1.0, 1.0, frob, 30, fixed=False).applies is False
    start, slope = complexity.sigmoid_slope(0.1)
    z = np.linspace(start, 30, 2000)
    assert (np.exp(z) / (1 + np.exp(z)) ** 2 <= slope + 1e-12).all() and slope <= 0.1
    assert_allclose(1 / (1 + math.exp(start)), 0.1)


def test_both_halves_of_the_hull_bound():
    """relu = t/2 + |t|/2: each half obeys its own bound, on the circle with all neurons of a fine grid."""
    X = sphere(30, 2, 5)
    angle = np.linspace(0, 2 * np.pi, 2000, endpoint=False)
    H = X @ np.array([np.cos(angle), np.sin(angle)])
    eps = np.random.default_rng(1).choice([-1.0, 1.0], (500, 30))
    bent = np.abs(eps @ np.abs(H)).max(axis=1) / 2
    plain = np.abs(eps @ H).max(axis=1) / 2
    frob = math.sqrt(30)
    assert plain.mean() <= frob / 2 and bent.mean() <= frob
