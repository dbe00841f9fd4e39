"""Pieces on a CPU, recorded graphs and fused kernels on a GPU: the same numbers as plain steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from widemargin.data import parity
from widemargin.flows import _graph, _kernels, losses
from widemargin.flows._graph import Stepper
from widemargin.flows.nets import TwoLayer
from widemargin.flows.problem import pose
from widemargin.flows.rules import GD

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def setting(device: str = "cpu", trials: int = 5, own_data: bool = False, dtype: str = "float64"):
    sets = [parity(d=6, n=12, seed=seed) for seed in range(trials)]
    net = TwoLayer(6, 9)
    problem = pose(net, sets if own_data else sets[0], "logistic", device=device, dtype=dtype)
    kind = getattr(torch, dtype)
    return problem, {k: torch.tensor(v, device=device, dtype=kind) for k, v in net.init(trials, 0).items()}


def plain_steps(problem, W, steps: int):
    rule = GD(lr=0.3)
    state = rule.init(problem, W)
    for _ in range(steps):
        W, state = rule.step(problem, W, state)
    return W, state


@pytest.mark.parametrize("own_data", [False, True])
@pytest.mark.parametrize("cache", [1, 250, 10**6])
def test_pieces_change_nothing(monkeypatch, own_data: bool, cache: int):
    monkeypatch.setattr(_graph, "CACHE", cache)
    problem, W = setting(own_data=own_data)
    stepper = Stepper(problem, GD(lr=0.3), W)
    stepper(7)
    expected, state = plain_steps(problem, W, 7)
    assert stepper.state.step == 7
    for name in expected:
        np.testing.assert_allclose(stepper.W[name], expected[name], rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(stepper.state.t_cb, state.t_cb, rtol=1e-12)


def test_going_on_from_a_state():
    problem, W = setting()
    once, twice = Stepper(problem, GD(lr=0.3), W), Stepper(problem, GD(lr=0.3), W)
    once(10)
    twice(4)
    again = Stepper(problem, GD(lr=0.3), twice.W, twice.state)
    again(6)
    for name in once.W:
        assert torch.equal(once.W[name], again.W[name])
    assert again.state.step == 10


@gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_recorded_step_is_a_step(dtype: str):
    problem, W = setting("cuda", dtype=dtype)
    recorded, eager = Stepper(problem, GD(lr=0.3), W), Stepper(problem, GD(lr=0.3), W, graph=False)
    recorded(20)
    eager(20)
    assert recorded.graph is not None and eager.graph is None
    for name in W:
        assert torch.equal(recorded.W[name], eager.W[name])
    assert recorded.state.step == 20 and torch.equal(recorded.state.t_cb, eager.state.t_cb)


@gpu
@pytest.mark.parametrize("shape", [(3, 7, 5, 4), (2, 64, 20, 16), (4, 100, 33, 130), (1, 300, 64, 70)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shared", [True, False])
def test_fused_kernels(shape, dtype, shared: bool):
    B, n, d, m = shape
    generator = torch.Generator("cuda").manual_seed(0)
    draw = lambda *size: torch.randn(*size, device="cuda", dtype=dtype, generator=generator)  # noqa: E731
    X, V, a, g = draw(1 if shared else B, n, d), draw(B, m, d), draw(B, m), draw(B, n)
    assert _kernels.usable(X)
    H = (X @ V.mT).clamp_min(0)
    tol = {"rtol": 1e-4, "atol": 1e-3} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-11}
    torch.testing.assert_close(_kernels.forward(X, V, a), (H @ a[:, :, None])[:, :, 0], **tol)
    grad_a, grad_V = _kernels.backward(X, V, a, g)
    torch.testing.assert_close(grad_a, (g[:, None] @ H)[:, 0], **tol)
    torch.testing.assert_close(grad_V, a[:, :, None] * (((H > 0).to(dtype) * g[:, :, None]).mT @ X), **tol)


@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loss", ["exp", "logistic"])
@pytest.mark.parametrize("kind", ["mean", "soft_margin", "unit"])
@pytest.mark.parametrize("spread", [1.0, 30.0, 3000.0])
def test_fused_weights(dtype, loss: str, kind: str, spread: float):
    p = spread * torch.randn(5, 77, device="cuda", dtype=dtype, generator=torch.Generator("cuda").manual_seed(1))
    p = p if kind != "mean" or loss == "logistic" else p.abs()  # e^{3000} is no number
    fused = _kernels.dual(p, loss == "logistic", kind)
    assert fused is not None
    law = losses.LOSSES[loss]
    tol = {"rtol": 2e-4, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-13}
    torch.testing.assert_close(fused[0], losses.weights(law, p, kind), **tol)
    torch.testing.assert_close(fused[1], losses.log_sum(law, p), **tol)
