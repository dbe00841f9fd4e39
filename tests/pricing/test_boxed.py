"""Shortest vectors over boxes against scipy, and local maxima that rest on them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import lsq_linear

from checks import repeated
from widemargin.pricing.enumeration import enumerate3
from widemargin.pricing.search import ascend, climb, shortest


def box(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Fixed entries, halflines on either side and intervals."""
    kind = rng.integers(4, size=shape)
    a = rng.standard_normal(shape)
    width = rng.random(shape)
    low = np.where(kind == 1, -np.inf, a)
    high = np.where(kind == 0, a, np.where(kind == 2, np.inf, a + width))
    return low, high


@pytest.mark.parametrize(
    ("own", "scale"),
    [
        (False, 1e-3),
        (True, 1.0),
        *(pytest.param(*case, marks=pytest.mark.long) for case in ((False, 1.0), (True, 1e-3))),
    ],
)
def test_the_shortest_vector_is_that_of_bounded_least_squares(own: bool, scale: float):
    rng = np.random.default_rng(3)
    B, k, r = 15, 12, 4
    rows = rng.standard_normal((B, k, r) if own else (k, r)) * np.array([1.0, 1.0, 1.0, scale])
    rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
    low, high = box(rng, (B, k))
    linear = 3 * rng.standard_normal((B, r))
    tensors = [torch.as_tensor(a) for a in (rows, linear, low, high)]
    b = shortest(*tensors, torch.zeros(B, k, dtype=torch.float64), 1.0).numpy()
    assert (b >= low).all() and (b <= high).all()
    for j in range(B):
        R = rows[j] if own else rows
        free = low[j] < high[j]
        g = linear[j] + low[j][~free] @ R[~free]
        if free.any():
            with np.errstate(invalid="ignore"):  # scipy multiplies infinite bounds by 0
                x = lsq_linear(R[free].T, -g, (low[j][free], high[j][free]), tol=1e-14, max_iter=1000).x
            g = g + x @ R[free]
        length = np.linalg.norm(linear[j] + b[j] @ R)
        assert length <= np.linalg.norm(g) + 1e-6 * (1 + np.linalg.norm(linear[j]))


def test_a_start_that_is_better_is_kept():
    rows = torch.eye(2, dtype=torch.float64)
    low, high = torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)
    start = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    b = shortest(rows, torch.tensor([[-1.0, 0.0]], dtype=torch.float64), low, high, start, 1.0, steps=0)
    assert (b == start).all()


@repeated("seed", range(4), 0, 1)
def test_climbing_ends_at_the_local_maxima_of_the_complete_list(seed: int):
    """In three dimensions all local maxima are known: the best one is reached to the last digits, kinks included."""
    rng = np.random.default_rng(seed)
    X, c = rng.standard_normal((25, 3)), rng.standard_normal(25)
    best, _, _ = enumerate3(X, c)
    Xt, ct = torch.as_tensor(X), torch.as_tensor(c)
    V, before = ascend(Xt, ct, torch.as_tensor(rng.standard_normal((200, 3))), 20)
    V, value = climb(Xt, ct, V, rounds=8)
    assert (value >= before - 1e-12).all()
    assert float(value.max()) <= best * (1 + 1e-9)
    assert float(value.max()) >= best * (1 - 1e-7)
