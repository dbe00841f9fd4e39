"""Divergences of measures on neurons, against identities; comparators among random units."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from widemargin import Dataset, InputError, margins
from widemargin.theory import comparators

XOR = Dataset(np.array([[1, 1], [-1, -1], [1, -1], [-1, 1]]) / math.sqrt(2), [1, 1, -1, -1], "xor")


def test_the_divergence_is_the_bregman_divergence_of_the_entropy():
    rng = np.random.default_rng(0)
    for _ in range(50):
        v, u = rng.exponential(2, (2, 6))
        entropy = [(x * np.log(x) - x).sum() for x in (v, u)]
        assert_allclose(comparators.kl(v, u), entropy[0] - entropy[1] - np.log(u) @ (v - u), rtol=1e-12)


def test_the_divergence_splits_into_shape_and_size():
    rng = np.random.default_rng(1)
    for _ in range(200):
        r, q = rng.exponential(1, (2, 5)) * 10 ** rng.uniform(-2, 2, (2, 1))
        shape, size = comparators.kl_parts(r, q)
        whole = comparators.kl(r, q)
        assert_allclose(shape + size, whole, rtol=1e-11, atol=1e-12)
        first, second = comparators.kl_bounds(r, q)
        assert second <= first * (1 + 1e-12) and first <= whole * (1 + 1e-12) + 1e-12
        a, b = r / r.sum(), q / q.sum()
        assert comparators.kl(a, b) >= np.abs(a - b).sum() ** 2 / 2


def test_the_nearest_point_of_the_simplex():
    rng = np.random.default_rng(2)
    v = rng.exponential(3, 4)
    least = v.sum() - 1 - math.log(v.sum())  # min over the simplex of KL(p, v), at p = v / ||v||_1 (E-UH-14)
    assert_allclose(least, comparators.kl(v / v.sum(), v), rtol=1e-12)
    assert all(comparators.kl(p, v) >= least for p in rng.dirichlet(np.ones(4), 200))
    assert comparators.kl([0.5, 0.5], [1.0, 0.0]) == math.inf and comparators.kl(
        [0.0, 1.0], [0.5, 0.5]
    ) == pytest.approx(math.log(2))
    with pytest.raises(InputError, match="nonnegative"):
        comparators.kl([1.0], [-1.0])


@pytest.mark.parametrize("k", [None, 2000])
def test_a_comparator_is_found_among_random_units(k: int | None):
    certificate = margins.f1(XOR)
    gamma, m = certificate.lower, 4000
    bound = comparators.comparator_kl(gamma, 2)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        V, beta = rng.standard_normal((m, 2)), rng.choice([-1.0, 1.0], m)
        found = comparators.sample_p_bar(certificate.primal, V, beta, XOR, gamma / 4, k, seed)
        assert found.missed == 0 and found.margin >= gamma / 4
        assert found.kl <= bound and found.largest <= 1 / math.sqrt(m)
        assert_allclose(found.p.sum(), 1)
        Z = comparators.signed_features(XOR, V, beta)
        assert_allclose(found.margin, (Z @ found.p).min(), rtol=1e-12)
    few = comparators.sample_p_bar(certificate.primal, V[:3], beta[:3], XOR, gamma / 4)
    assert few.missed > 0


def test_the_printed_width_for_a_comparator():
    gamma, d, n, delta = 0.2, 3, 40, 0.1
    found = comparators.width_for_comparator(gamma, d, n, delta, convention="printed")
    width = 1024 * math.log(2 * n / (delta * gamma)) ** 2 * (8 / gamma) ** (2 * d - 2)
    assert_allclose(found.value, width, rtol=1e-12)
    assert_allclose(found.numbers["kl"], (d - 1) * math.log(48 / gamma), rtol=1e-12)
