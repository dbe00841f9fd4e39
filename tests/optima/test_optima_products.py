"""Optima by products of parts: the weights are their own, and the certificates verify like all others."""

from __future__ import annotations

import numpy as np
import pytest

from widemargin import optima
from widemargin.optima import problem
from widemargin.optima.solver import Solver
from widemargin.types import Certificate, Dataset


def multiplied(data: Dataset, loss: str, decay: float, output_bias: str | None, **keys) -> tuple[Solver, Certificate]:
    """A few rounds for the network, then products alone for the proof."""
    entered = problem.enter(data, loss, decay, True, output_bias, keys.get("weights"), 1e-3, 60.0)
    solver = Solver(entered, 1e-3, 0, "cpu", None)
    for _ in range(4):
        solver.improve()
        solver.smoothen()
        c = solver.pull()
        solver.centre, solver.steepest = c, solver.search(c)
    solver.multiply(0.5)
    return solver, solver.finish("time-limit")


@pytest.mark.parametrize(
    ("loss", "output_bias"),
    [
        ("logistic", "free"),
        ("squared", None),
        ("squared", "decayed"),
        ("squared-hinge", "free"),
        ("exp", "decayed"),
        ("hinge", None),
    ],
)
def test_every_loss_is_proved_and_checked(loss: str, output_bias: str | None):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((14, 8))
    data = Dataset(X, np.where(X[:, 0] + 0.5 * rng.standard_normal(14) > 0, 1.0, -1.0))
    top = 0.5 if loss == "exp" else optima.largest_decay(data, loss=loss, output_bias=None, bias=True).upper
    solver, cert = multiplied(data, loss, 0.2 * top, output_bias, weights=rng.uniform(0.5, 2, 14))
    assert solver.multiplied and cert.bound == "products"
    assert cert.verify(data).ok, str(cert.verify(data))
    # 5 % at most as measured: the network is a few rounds old, and the relaxation is not tight
    assert cert.upper / cert.lower < 1.1
    low = {"upper": cert.lower * (1 - 1e-3)}  # a false bound of the network is refused, whatever the proof
    assert not type(cert)(**{**cert.__dict__, **low}).verify(data).ok


def test_it_agrees_with_trees_on_the_optimum():
    rng = np.random.default_rng(7)
    X = rng.standard_normal((14, 7))
    data = Dataset(X, rng.choice([-1.0, 1.0], 14))
    decay = 0.1 * optima.largest_decay(data, loss="squared", bias=True).upper
    _, cert = multiplied(data, "squared", decay, "free")
    other = optima.f1(data, loss="squared", weight_decay=decay, tol=1e-3, bias=True)
    assert other.verify(data).ok
    assert cert.lower <= other.upper and other.lower <= cert.upper


def test_a_constant_network_has_nothing_to_weigh():
    rng = np.random.default_rng(3)
    data = Dataset(rng.standard_normal((15, 10)), rng.choice([-1.0, 1.0], 15))
    decay = 2 * optima.largest_decay(data, loss="squared", bias=True).upper
    _, cert = multiplied(data, "squared", decay, "free")
    assert cert.bound != "products" and cert.verify(data).ok
