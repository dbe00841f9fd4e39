"""Constants of the distributional objective and the time of the perturbed flow."""

from __future__ import annotations

import math

import numpy as np
import pytest

from widemargin import InputError
from widemargin.spaces import sphere
from widemargin.theory import Huge
from widemargin.theory import wasserstein as w

X = np.random.default_rng(0).standard_normal((6, 3))
C = w.logistic_regularity(X, 0.1)


def test_constants_bound_what_they_should():
    rng = np.random.default_rng(1)
    theta = sphere(20_000, 4, 2)
    Phi = theta[:, :1] * (theta[:, 1:] @ X.T).clip(0)
    assert np.linalg.norm(Phi, axis=1).max() <= C.B_Phi and np.linalg.norm(Phi, axis=1).max() > 0.3 * C.B_Phi
    other = theta + 1e-3 * rng.standard_normal(theta.shape)
    other /= np.linalg.norm(other, axis=1, keepdims=True)
    moved = np.abs(other[:, :1] * (other[:, 1:] @ X.T).clip(0) - Phi)
    assert (moved <= C.M_Phi * np.linalg.norm(other - theta, axis=1)[:, None] * (1 + 1e-9)).all()
    y = rng.choice([-1.0, 1.0], 6)
    for scale in (0.1, 1, 10):
        a = scale * rng.standard_normal((500, 6))
        p = 1 / (1 + np.exp(y * a))
        assert np.linalg.norm(p, axis=1).max() <= C.M_R and (p * (1 - p)).max() <= C.C_R
        slope = (-(y * p) @ Phi[:500].T) + 0.1
        assert np.abs(slope).max() <= C.B_L
        change = np.abs(-(y * p) @ (Phi[:500] - (other[:, :1] * (other[:, 1:] @ X.T).clip(0))[:500]).T)
        assert (change <= C.c_2 * np.linalg.norm((other - theta)[:500], axis=1) + 1e-12).all()
    found = w.distributional_constants(X, 0.1)
    assert found.applies and found.value == C.B_L and found.numbers["c_1"] == C.c_1
    assert w.distributional_constants(X, 0.1, logistic=False).applies is False
    assert C.c_1 == max(6 * 0.25 * C.B_Phi**2, 6 * 0.25 * C.B_Phi * C.M_Phi, C.M_R * C.B_Phi + 0.1)
    with pytest.raises(InputError, match="not all zero"):
        w.logistic_regularity(np.zeros((2, 2)), 0.1)


def test_every_step_of_the_proof_holds_at_the_chosen_noise():
    L_0 = 6 * math.log(2)
    for eps, d in ((0.5, 3), (0.05, 3), (0.05, 20)):
        found = w.perturbed_flow_time(eps, d, L_0, C, differentiable=True)
        got = found.numbers
        sigma, l, W2, t = math.exp(got["log_sigma"]), got["l"], got["W2"], float(found.value)
        below = C.b_V - sigma * t * C.B_L  # Lemma E.9, MT-30: W_t^2 <= (L[rho_0] + sigma t B_L) / (b_V - sigma t B_L)
        assert below > 0 and (L_0 + sigma * t * C.B_L) / below <= W2 * (1 + 1e-12)
        tau = eps / (2 * W2)
        needed = (math.log(W2 / sigma) + 2 * d * math.log(2 * C.c_2 / tau)) / (tau - sigma) + 1
        assert l >= needed * (1 - 1e-12)
        printed = w.growth_time(got["log_sigma"], eps, d, W2, C.c_2, "printed")
        assert printed < needed  # the printed l does not satisfy Lemma E.16
        first, second = w.decrease(got["log_sigma"], eps, l, W2, C.B_L, C.c_1)
        assert min(first, second) == got["decrease"] > 0
        assert t >= 2 * l * L_0 / got["decrease"] * (1 - 1e-9)
        assert found.applies is None  # existence of a solution is not checked
    assert w.perturbed_flow_time(0.5, 3, L_0, C, differentiable=False).applies is False


def test_orders_of_the_time():
    """t grows like d^2 and eps^-4 up to logarithms, and ln(1/sigma) like their logarithm."""
    L_0 = 6 * math.log(2)

    def log_time(eps: float, d: int) -> float:
        value = w.perturbed_flow_time(eps, d, L_0, C).value
        return value.log if isinstance(value, Huge) else math.log(value)

    assert 1.8 < (log_time(0.01, 10**6) - log_time(0.01, 10**5)) / math.log(10) < 2.3
    slope = (log_time(1e-8, 5) - log_time(1e-6, 5)) / math.log(100)
    assert 4 < slope < 4.5
    printed = w.perturbed_flow_time(1e-3, 5, L_0, C, convention="printed")
    assert not printed.explicit and math.isclose(math.log(printed.value), math.log(25e12 * math.log(1e3) ** 2))
    far = w.perturbed_flow_time(1e-100, 5, L_0, C, convention="printed")
    assert isinstance(far.value, Huge) and far.value.log > 900
    tiny = w.Regularity(1, 1e-3, 1e-3, 1e-3, 1e-3, 1.0, 1.0, 1e-3)
    assert w.perturbed_flow_time(3.0, 2, 0.1, tiny, differentiable=True).applies is False  # 4 W^2 c_2 < eps
