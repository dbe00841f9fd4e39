"""Trees with weights of their own: their bounds are bounds, the weights move, and what is written verifies."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from widemargin import pricing
from widemargin.data import load
from widemargin.margins import f1, wide_networks
from widemargin.optima import f1 as optimum
from widemargin.optima import solver as optima_solver
from widemargin.pricing import margin_goal, price, price_together, weights, worth_moving
from widemargin.pricing.points import Points
from widemargin.types import Dataset


def noise(n: int, d: int, seed: int) -> Dataset:
    rng = np.random.default_rng(seed)
    return Dataset(rng.standard_normal((n, d)), np.resize([1, -1], n), name=f"noise:{n},{d}")


def points_of(data: Dataset) -> Points:
    return Points(data.X.copy(), data.y.astype(float), 0, torch.device("cpu"), np.eye(data.d))


def together(data: Dataset, monkeypatch, nodes: int, moves: bool) -> tuple[np.ndarray, float, Points]:
    """Weights and bound of trees of about `nodes` nodes from uniform weights on."""
    points = points_of(data)
    if not moves:
        monkeypatch.setattr(weights.Own, "optimise", lambda self, moves: None)
    done = weights.Own.done
    monkeypatch.setattr(weights.Own, "done", lambda self: done(self) or sum(s.nodes for s in self.sides) >= nodes)
    c = data.y / data.n
    c, sides = price_together(points, c, margin_goal(points, 1e-9), np.zeros((0, data.n)), 1e9)
    monkeypatch.undo()
    return c, max(side.bound for side in sides), points


def values(points: Points, c: np.ndarray) -> float:
    """The largest |sum_i c_i relu(v . x_i)| over many random directions."""
    V = np.random.default_rng(0).standard_normal((20_000, points.r))
    V /= np.linalg.norm(V, axis=1, keepdims=True)
    return float(np.abs((V @ points.X.T).clip(0) @ c).max())


@pytest.mark.parametrize("n,d", [(30, 5), (40, 30)])  # both solvers of quadratic bounds
def test_moved_weights_have_a_lower_bound_and_it_is_one(n: int, d: int, monkeypatch):
    data = noise(n, d, 0)
    _, still, _ = together(data, monkeypatch, 16, moves=False)
    c, moved, points = together(data, monkeypatch, 16, moves=True)
    assert moved < 0.98 * still
    assert np.abs(c).sum() == pytest.approx(1, abs=1e-12) and (np.sign(c) == data.y).all()
    assert values(points, c) <= moved
    # The maximum itself, closed by the other way.
    for s in (1.0, -1.0):
        assert price(points, s * c, known=0.0, tol=1e-2, seconds=60.0, target=0.9 * moved).value <= moved * (1 + 1e-9)


def test_cuts_are_slopes_of_the_bounds(monkeypatch):
    """At moments that solve the relaxation, the bound at other weights is above the cut, and next to it nearby."""
    data = noise(24, 4, 1)
    points, c = points_of(data), data.y / data.n
    side = weights.Side(points, 1.0, c)
    side.grow(1, lambda: None)
    side.grow(2, lambda: None)

    def bounds(c: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        side.weigh(c)
        bounds, state, _ = side.solve(torch.arange(len(side.U)), 3000, lambda: None)
        return bounds.bound, state

    bound, state = bounds(c)
    cuts = side.cuts(bound, state)
    order = torch.topk(bound, len(bound)).indices
    assert cuts @ c == pytest.approx(bound[order].numpy(), rel=1e-9)
    turn = np.random.default_rng(0).uniform(-1, 1, data.n)
    far, _ = bounds(c * (1 + 0.5 * turn))
    assert (far[order].numpy() >= cuts @ (c * (1 + 0.5 * turn)) * (1 - 1e-3)).all()
    near, _ = bounds(c * (1 + 0.01 * turn))
    slope = (near - bound)[order].numpy() / 0.01
    assert slope == pytest.approx(cuts @ (c * turn), abs=0.02 * float(bound.max()))


def test_margins_are_left_to_weights_of_their_own_and_verify(monkeypatch):
    """Every tree counts as far off, at once."""
    used = []
    solve = pricing.price_together
    monkeypatch.setattr(wide_networks, "FAR", 1.0)
    monkeypatch.setattr(pricing, "PATIENCE", 0.0)
    monkeypatch.setattr(pricing, "HALF_WAY", 0.0)
    monkeypatch.setattr(wide_networks, "price_together", lambda *a: used.append(1) or solve(*a))
    data = load("disks:d=15,n=40,k=3,seed=0,reading=code")
    cert = f1(data, tol=1e-2, time_limit=4)
    assert used and cert.bound == "tree"
    assert cert.verify(data).ok and cert.lower <= cert.upper < math.inf


def test_optima_with_weights_of_their_own_verify(monkeypatch):
    used = []
    solve = pricing.price_together
    monkeypatch.setattr(optima_solver, "FAR", 1.0)
    monkeypatch.setattr(pricing, "PATIENCE", 0.0)
    monkeypatch.setattr(pricing, "HALF_WAY", 0.0)

    def spy(*rest):
        out = solve(*rest)
        used.append(out)
        return out

    monkeypatch.setattr(optima_solver, "price_together", spy)
    data = noise(60, 12, 0)
    for loss in ("squared", "logistic"):
        used.clear()
        cert = optimum(data, loss=loss, weight_decay=0.02, time_limit=4)
        assert used and cert.verify(data).ok, loss
        assert 0 < cert.lower <= cert.upper


def test_opposite_points_and_leaky_relus_keep_the_weights_of_the_network():
    X = np.random.default_rng(0).standard_normal((20, 5))
    y = np.resize([1.0, -1.0], 20)
    assert worth_moving(Points(X, y, 0, torch.device("cpu"), np.eye(5)))
    assert not worth_moving(Points(X, y, 0, torch.device("cpu"), np.eye(5), 0.1))
    assert not worth_moving(Points(np.vstack([X, -X]), np.append(y, y), 0, torch.device("cpu"), np.eye(5)))
