"""Losses against decimal arithmetic, and the identities and inequalities between losses, smooth margins and duals."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from widemargin.flows import losses
from widemargin.flows.losses import EXP, LOGISTIC, Loss
from widemargin.types import InputError

BOTH = pytest.mark.parametrize("loss", [EXP, LOGISTIC], ids=lambda loss: loss.name)


def sample(n: int, spread: float, shift: float = 0.0, rows: int = 40, seed: int = 0) -> Tensor:
    return torch.tensor(np.random.default_rng(seed).standard_normal((rows, n)) * spread + shift)


def log1p(x: Decimal) -> Decimal:
    return (1 + x).ln() if x > Decimal("1e-30") else x - x**2 / 2 + x**3 / 3  # the rest is below 1e-90 of it


def expm1(x: Decimal) -> Decimal:
    return x.exp() - 1 if x > Decimal("1e-30") else x + x**2 / 2 + x**3 / 6


def exact(loss: Loss, p: list[float]) -> dict[str, float]:
    """ln l, ln |l'| of the first margin, ln sum l, psi, ln |l'(psi)| and S, in decimal arithmetic."""
    with localcontext() as context:
        context.prec, context.Emin, context.Emax = 100, -(10**9), 10**9
        e = [(-Decimal(x)).exp() for x in p]
        if loss is EXP:
            values, slopes = e, e
        else:
            values, slopes = [log1p(x) for x in e], [x / (1 + x) for x in e]
        total = sum(values, Decimal(0))
        psi = -total.ln() if loss is EXP else -expm1(total).ln()
        at_psi = (-psi).exp()
        Q = at_psi if loss is EXP else at_psi / (1 + at_psi)
        parts = {
            "log": values[0].ln(),
            "slope": slopes[0].ln(),
            "sum": total.ln(),
            "psi": psi,
            "Q": Q.ln(),
            "S": -(total / len(p)).ln(),
            "G": (sum(slopes, Decimal(0)) / len(p)).ln(),
            "soft_margin": slopes[0] / total,
            "psi weights": slopes[0] / Q,
        }
        return {name: float(value) for name, value in parts.items()}


CASES = [
    [0.0],
    [0.3, -0.2, 1.7],
    [6.0, 6.5, 7.0],  # the sum of losses is near where `inverse` changes its formula
    [6.93, 30.0],
    [7.0, 9.0],
    [19.5, 20.5, 21.0],  # around torch's own threshold of softplus
    [35.0, 37.0, 40.1, 41.0],
    [-25.0, 3.0],
    [-300.0, -2.0, 5.0],
    [700.0, 705.0],  # sums of 1e-304
    [750.0, 751.0, 760.0],  # below the smallest float64
    [10000.0, 10001.5, 12000.0],
    [-10000.0, 10000.0],
]


@pytest.mark.parametrize("margins", CASES, ids=str)
@BOTH
def test_against_decimal_arithmetic(loss: Loss, margins: list[float]):
    p, want = torch.tensor(margins, dtype=torch.float64), exact(loss, margins)
    got = {
        "log": loss.log(p)[0],
        "slope": loss.log_slope(p)[0],
        "sum": losses.log_sum(loss, p),
        "psi": losses.psi(loss, p),
        "Q": losses.log_Q(loss, p),
        "S": losses.soft_margin(loss, p),
        "G": losses.log_G(loss, p),
        "soft_margin": losses.weights(loss, p, "soft_margin")[0],
        "psi weights": losses.weights(loss, p, "psi")[0],
    }
    for name, value in want.items():
        rough = 1e-14 * max(1.0, *(abs(x) for x in margins))  # what the rounding of p itself does
        assert float(got[name]) == pytest.approx(
            value, rel=4e-14 + rough * (name in ("soft_margin", "psi weights")), abs=rough
        ), name


@BOTH
def test_the_inverse_inverts_at_every_scale(loss: Loss):
    p = torch.cat([torch.linspace(-50, 60, 5001, dtype=torch.float64), torch.tensor([1e3, 1e4], dtype=torch.float64)])
    assert_close(loss.inverse(loss.log(p)), p, rtol=1e-13, atol=1e-13)
    near = torch.linspace(-7.2, -6.7, 1001, dtype=torch.float64)  # where the formula changes
    assert_close(loss.log(loss.inverse(near)), near, rtol=1e-13, atol=1e-13)


@BOTH
def test_float32(loss: Loss):
    p = sample(6, 8.0, 5.0)
    for function in (losses.psi, losses.log_sum, losses.soft_margin, losses.log_Q, losses.log_G):
        low = function(loss, p.float())
        assert low.dtype == torch.float32
        assert_close(low.double(), function(loss, p), rtol=1e-4, atol=1e-4)
    far = torch.tensor([[1e4, 1.1e4]], dtype=torch.float32)
    assert losses.psi(loss, far).item() == 1e4 and losses.weights(loss, far, "psi").tolist() == [[1.0, 0.0]]


@BOTH
def test_slopes_are_derivatives(loss: Loss):
    p = torch.linspace(-45, 60, 200, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(loss.log(p).exp().sum(), p)
    assert_close(-slope, loss.log_slope(p).exp().detach(), rtol=1e-11, atol=0)
    assert loss.at_zero == pytest.approx(math.exp(float(loss.log(torch.zeros((), dtype=torch.float64)))), rel=1e-15)


@BOTH
def test_weights_are_gradients(loss: Loss):
    for shift in (-3.0, 4.0, 60.0):
        p = sample(7, 2.0, shift).requires_grad_()
        (psi,) = torch.autograd.grad(losses.psi(loss, p).sum(), p, retain_graph=True)
        (S,) = torch.autograd.grad(losses.soft_margin(loss, p).sum(), p)
        with torch.no_grad():
            assert_close(losses.weights(loss, p, "psi"), psi, rtol=1e-9, atol=1e-12)
            assert_close(losses.weights(loss, p, "soft_margin"), S, rtol=1e-10, atol=1e-14)
    p = sample(7, 2.0).requires_grad_()
    (risk,) = torch.autograd.grad(loss.log(p).exp().mean(1).sum(), p)
    assert_close(losses.weights(loss, p.detach(), "mean"), -risk, rtol=1e-12, atol=1e-15)
    with pytest.raises(ValueError, match="unknown kind"):
        losses.weights(loss, p, "dual")


@BOTH
def test_sums_of_weights(loss: Loss):
    for shift in (-5.0, 0.0, 5.0, 50.0, 1e4):
        p = sample(9, 3.0, shift)
        unit, cb, lr = (losses.weights(loss, p, kind).sum(1) for kind in ("unit", "soft_margin", "psi"))
        one = torch.ones_like(unit)
        assert_close(unit, one, rtol=1e-12, atol=0)
        if loss is EXP:
            assert_close(cb, one, rtol=1e-11, atol=0)
            assert_close(lr, one, rtol=1e-11, atol=0)
        else:
            assert (cb <= 1 + 1e-12).all() and (lr >= 1 - 1e-11).all()
            if shift >= 50:
                assert_close(cb, one, rtol=1e-11, atol=0)
        mean = losses.weights(loss, p, "mean").sum(1)
        assert_close(mean, losses.log_G(loss, p).exp(), rtol=1e-12, atol=0)


def test_logistic_slope_at_psi_is_one_minus_the_product():
    for shift in (-4.0, 0.0, 3.0, 12.0):
        p = sample(8, 2.0, shift)
        s = torch.sigmoid(-p)
        product = -torch.expm1(torch.log1p(-s).sum(1))  # 1 - prod(1 - s_i) without cancellation
        assert_close(losses.log_Q(LOGISTIC, p).exp(), product, rtol=1e-12, atol=0)
        M = torch.expm1(torch.log1p(torch.exp(-p)).sum(1))  # prod(1 + e^{-p_i}) - 1
        assert_close(losses.psi(LOGISTIC, p), -M.log(), rtol=1e-12, atol=1e-12)
        assert_close(losses.log_Q(LOGISTIC, p).exp(), M / (1 + M), rtol=1e-12, atol=0)


@pytest.mark.parametrize("n", [1, 2, 10, 200])
def test_logistic_sandwiches(n: int):
    for shift in (-6.0, 0.0, 6.0, 30.0, 2000.0):
        for spread in (0.0, 1.0, 10.0):
            p = sample(n, spread, shift, seed=n)
            tiny = 1e-12 * (1 + p.abs().amax())
            slope, top, mean = LOGISTIC.log_slope(p), losses.log_Q(LOGISTIC, p), losses.log_G(LOGISTIC, p)
            assert (slope.amax(1) <= top + tiny).all()
            assert (top <= torch.logsumexp(slope, 1).clamp_max(0) + tiny).all()
            assert (mean <= top + tiny).all() and (top <= (mean + math.log(n)).clamp_max(0) + tiny).all()
            risk = losses.log_sum(LOGISTIC, p) - math.log(n)
            assert (mean <= risk + tiny).all()  # self-bounding
            psi, least = losses.psi(LOGISTIC, p), p.amin(1)
            assert (psi <= least + tiny).all()
            fitted = psi >= 0
            upper = psi + math.log(n) - math.log(math.log(2))
            assert (least <= upper + tiny)[fitted].all()
            mixed = (losses.weights(LOGISTIC, p, "psi") * p).sum(1)
            assert (psi <= mixed + tiny)[fitted].all()
            assert (mixed <= psi + 2 * math.log(n) + 1 + tiny)[fitted].all()


def test_the_printed_logistic_bound_needs_a_fitted_sample():
    """E-UH-10: p = 0, n = 8 has min p = 0 above psi + 2 ln n + 1."""
    p = torch.zeros(1, 8, dtype=torch.float64)
    assert float(losses.psi(LOGISTIC, p)) + 2 * math.log(8) + 1 == pytest.approx(-0.38, abs=0.01)


@pytest.mark.parametrize("n", [1, 3, 50])
def test_exp_sandwiches_and_offsets(n: int):
    for shift in (-6.0, 0.0, 30.0, 1e4):
        p = sample(n, 2.0, shift, seed=n)
        tiny = 1e-12 * (1 + abs(shift))
        psi, least = losses.psi(EXP, p), p.amin(1)
        assert (psi <= least + tiny).all() and (least <= psi + math.log(n) + tiny).all()
        assert_close(losses.soft_margin(EXP, p), psi + math.log(n), rtol=1e-13, atol=1e-13)
        assert_close(losses.log_Q(EXP, p), losses.log_sum(EXP, p), rtol=1e-14, atol=0)
        assert_close(losses.log_G(EXP, p), losses.log_sum(EXP, p) - math.log(n), rtol=1e-13, atol=1e-13)
        last = None
        for beta in (0.1, 1.0, 7.0, 1000.0):
            soft = losses.soft_margin(EXP, p, beta)
            assert_close(soft, losses.psi(EXP, beta * p) / beta + math.log(n) / beta, rtol=1e-12, atol=1e-11)
            assert (least <= soft + tiny).all() and (soft <= least + math.log(n) / beta + tiny).all()
            lowered = soft - math.log(n) / beta  # nondecreasing in beta
            assert last is None or (lowered >= last - tiny).all()
            last = lowered
        each = torch.linspace(0.5, 3, len(p), dtype=torch.float64)
        fifth = losses.soft_margin(EXP, p[5], float(each[5]))
        assert_close(losses.soft_margin(EXP, p, each)[5], fifth, rtol=1e-13, atol=1e-13)


def test_logarithms_of_n_are_not_rounded_to_float32():
    p = torch.zeros(3, dtype=torch.float64)
    assert float(losses.soft_margin(EXP, p)) == pytest.approx(0, abs=1e-15)
    assert float(losses.log_G(EXP, p)) == pytest.approx(0, abs=1e-15)


def test_fitted_below_the_loss_at_zero():
    for loss in (EXP, LOGISTIC):
        for shift in (0.0, 1.0, 2.0, 3.0):
            p = sample(5, 1.0, shift)
            below = losses.log_sum(loss, p) < math.log(loss.at_zero)
            assert torch.equal(below, losses.psi(loss, p) > 0)
            assert (p[below] > 0).all()


# Several classes


@pytest.mark.parametrize("K", [2, 3, 10])
def test_cross_entropy_is_the_logistic_loss_of_the_class_margin(K: int):
    torch.manual_seed(K)
    f = 3 * torch.randn(4, 7, K, dtype=torch.float64)
    labels = torch.randint(K, (4, 7))
    f.requires_grad_()
    p, slopes = losses.class_margin(f, labels)
    ce = torch.nn.functional.cross_entropy(f.reshape(-1, K), labels.reshape(-1), reduction="none").reshape(4, 7)
    assert_close(LOGISTIC.log(p).exp(), ce, rtol=1e-12, atol=1e-14)
    (auto,) = torch.autograd.grad(p.sum(), f)
    assert_close(slopes, auto, rtol=1e-12, atol=1e-14)
    hard = losses.hard_class_margin(f, labels)
    assert (p <= hard + 1e-12).all() and (hard <= p + math.log(K - 1) + 1e-12).all()
    if K == 2:
        assert_close(p, hard)
        signs = 2.0 * labels - 1
        assert_close(p, signs * (f[..., 1] - f[..., 0]))


def test_class_margins_of_huge_scores():
    f = torch.tensor([[[2e4, -3e4, 1e4], [1e4, 1e4, 3e4]]], dtype=torch.float64)
    p, slopes = losses.class_margin(f, torch.tensor([[0, 1]]))
    assert_close(p, torch.tensor([[1e4, -2e4]], dtype=torch.float64))
    assert_close(losses.hard_class_margin(f, torch.tensor([[0, 1]])), p)
    assert_close(slopes, torch.tensor([[[1.0, 0, -1], [0, 1, -1]]], dtype=torch.float64))
    assert_close(losses.log_sum(LOGISTIC, p[:, :1]), torch.tensor([-1e4], dtype=torch.float64))


def test_names():
    assert losses.as_loss("exp") is EXP and losses.as_loss("ce") is losses.as_loss("logistic") is LOGISTIC
    assert losses.as_loss(EXP) is EXP
    with pytest.raises(InputError, match="unknown loss"):
        losses.as_loss("hinge")
