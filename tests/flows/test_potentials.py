"""Potentials along the flow: from their definitions, and the rates that the papers prove for them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import linprog

from widemargin import flows
from widemargin.data import parity
from widemargin.types import InputError

DATA = parity(d=3, n=8, seed=0)
NET = flows.Scalar(3, 40)


def best_mixture(trial: int) -> tuple[float, np.ndarray]:
    """The largest margin over mixtures of the neurons of a start, with the signs they have there, and the mixture."""
    start = NET.draw(np.random.default_rng([0, trial]))
    H = np.maximum(DATA.X @ (np.sign(start["b"])[:, None] * start["V"]).T, 0)
    Z = DATA.y[:, None] * H * np.sign(start["a"])
    n, m = Z.shape
    solution = linprog(
        np.r_[np.zeros(m), -1.0], np.c_[-Z, np.ones(n)], np.zeros(n), [np.r_[np.ones(m), 0.0]], [1.0],
        bounds=[(0, None)] * m + [(None, None)],
    )  # fmt: skip
    return solution.x[-1], solution.x[:-1]


def test_growth_is_at_least_half_the_margin_of_the_comparator():
    """LR-29 in CB's clock, exp loss: d Phi / ds >= gamma / 2, and Phi <= ln |W| / 2."""
    pairs = [best_mixture(trial) for trial in range(2)]
    alpha = np.stack([mixture for _, mixture in pairs])
    observe = {"phi": flows.growth(alpha), "t_cb": None, "log_norm": None}
    traj = flows.train(
        DATA,
        NET,
        flows.GradientFlow(),
        loss="exp",
        stop=80,
        trials=2,
        record=flows.Record(observe, times=list(range(81))),
    )
    for trial, (gamma, _) in enumerate(pairs):
        assert gamma > 0.01
        rise, passed = np.diff(traj["phi"][:, trial]), np.diff(traj["t_cb"][:, trial])
        assert (rise >= gamma / 2 * passed * (1 - 1e-3) - 1e-7).all()
        assert (traj["phi"][:, trial] <= traj["log_norm"][:, trial] / 2 + 1e-9).all()


def test_divergence_from_its_definition_and_its_descent():
    """UH-10, UH-12: towards a comparator that fits the data better than the network does, the divergence falls."""
    gamma, mixture = best_mixture(0)
    target = 60.0 / gamma * mixture  # losses of about e^{-60}
    seen: list[np.ndarray] = []

    def outer(view):
        seen.append((view.params["a"] * view.params["b"]).abs().numpy())
        return view.params["a"].sum(1)

    observe = {"kl": flows.divergence(target), "outer": outer}
    traj = flows.train(
        DATA,
        NET,
        flows.GD(lr=0.01),
        loss="exp",
        stop=100,
        trials=1,
        record=flows.Record(observe, times=list(range(0, 101, 10))),
    )
    for row, u in zip(traj["kl"], seen):
        expected = sum((t * math.log(t / v) if t else 0.0) - t + v for t, v in zip(target.tolist(), u[0].tolist()))
        assert_allclose(row[0], expected, rtol=1e-9)
    assert (np.diff(traj["kl"][:, 0]) < 0).all()


def test_refusals():
    with pytest.raises(InputError, match="nonnegative"):
        flows.growth([-1.0, 1.0])
    with pytest.raises(InputError, match="comparator has shape"):
        flows.train(DATA, NET, flows.GD(), stop=1, record={"phi": flows.growth(np.ones(3))})
    with pytest.raises(InputError, match="products"):
        flows.train(DATA, flows.TwoLayer(3, 4), flows.GD(), stop=1, record={"kl": flows.divergence(np.ones(4))})
