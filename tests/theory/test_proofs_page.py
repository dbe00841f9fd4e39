"""docs/proofs.md: the docstrings of WM-1 to WM-4 point to it, and its lemmas hold where they can be computed exactly."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy.special import gammaln, xlogy

from widemargin import theory
from widemargin.theory.complexity import _best_on_circle

PAGE = (Path(__file__).parents[2] / "docs/proofs.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("id", ["WM-1", "WM-2", "WM-3", "WM-4"])
def test_the_page_states_and_proves_what_the_docstrings_promise(id):
    one = theory.theorem(id)
    assert "Proof: docs/proofs.md" in one.formula and f"`theory.{one.theme}.{one.name}`" in PAGE
    (section,) = [part for part in PAGE.split("\n## ")[1:] if id in part.splitlines()[0]]
    assert all(word in section for word in ("**Statement.**", "**Assumptions.**", "Proof."))


def test_contraction_by_all_signs():
    rng = np.random.default_rng(0)
    signs = np.array(list(product((1, -1), repeat=6)))
    for _ in range(100):
        T = rng.normal(0, 2, (int(rng.integers(1, 8)), 6))
        for f, L in (
            (np.abs, 1),
            (lambda t: np.maximum(t, 0), 1),
            (lambda t: np.clip(1 - t / 0.5, 0, 1), 2),
            (np.sin, 1),
        ):
            left, right = ((signs @ values.T).max(1).mean() for values in (f(T) - f(0.0), T))
            assert left <= L * right + 1e-12


def test_complexity_of_the_hull_by_all_signs():
    """Every sign and the exact supremum over the circle: between 1 (one point) and 1.5 times |X|_F / n."""
    rng, signs = np.random.default_rng(1), np.array(list(product((1.0, -1.0), repeat=5)))
    assert _best_on_circle(np.array([[1.0, 0.0]]), np.ones(1)) == pytest.approx(1)
    for _ in range(20):
        X = rng.standard_normal((5, 2)) * rng.choice([0.1, 1, 10], (5, 1))
        assert np.mean([_best_on_circle(X, e) for e in signs]) <= 1.5 * np.linalg.norm(X)


def test_the_constant_of_the_pac_bayes_theorem():
    """sum_k C(n, k) (k/n)^k (1 - k/n)^(n-k) <= n + 1, and <= 2 sqrt(n) from 8 on; it is E exp(n kl) for every error rate."""
    for n in (1, 2, 7, 8, 20, 100, 10_000):
        k = np.arange(n + 1)
        choose = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
        own = xlogy(k, k / n) + xlogy(n - k, 1 - k / n)
        xi = np.exp(choose + own).sum()
        assert xi <= n + 1 and (n < 8 or xi <= 2 * math.sqrt(n))
        for e in (0.01, 0.3):
            law = choose + k * math.log(e) + (n - k) * math.log(1 - e)
            kl = own - k * math.log(e) - (n - k) * math.log(1 - e)  # n kl(k/n, e)
            assert np.exp(law + kl).sum() == pytest.approx(xi, rel=1e-9)
