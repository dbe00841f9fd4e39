"""A step in which the dual and the kinks are implicit: what the gradient flow and the KKT residual both solve.

`implicit_weights` finds the weights of the points after a step, `Gates` the derivatives of units at their kinks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import losses
from .losses import Loss
from .nets import Params, TwoLayer
from .problem import Problem

LOG_SIZE_MOST = 690.0  # ln |W|^L up to which p(W) fits into floating point: 1e299


def implicit_weights(
    loss: Loss, p: Tensor, K: Tensor, h: Tensor, beta: Tensor, limit: int = 80
) -> tuple[Tensor, Tensor]:
    """w = weights(beta (p + h K w)) for p (B, n), K (B, n, n), h and beta (B,); and where it was found (B,).

    Newton's method for eta = beta (p + h K w(eta)). With eps = 1 / beta and s the sigmoid of eta (1 for the exponential loss)

        R = eps eta - p - h K w,    dR/deta = eps I + h K (diag(w s) - w w').

    It starts at a temperature eps at which the weights vary little and lowers it tenfold a step; no step lets a weight grow
    by more than e^3.
    """
    eps = 1 / beta
    e = torch.maximum(eps, (p.amax(1) - p.amin(1)) / 8)
    eta = p / e[:, None]
    n = p.shape[1]
    unit = torch.eye(n, dtype=p.dtype, device=p.device)
    sane = p.isfinite().all(1) & K.isfinite().flatten(1).all(1) & h.isfinite() & beta.isfinite()
    K, done = torch.where(sane[:, None, None], h[:, None, None] * K, unit), ~sane
    eta = torch.where(sane[:, None], eta, torch.zeros_like(eta))
    for _ in range(limit):
        w = losses.weights(loss, eta, "soft_margin")
        bend = torch.ones_like(eta) if loss.name == "exp" else torch.sigmoid(eta)
        Kw = (K @ w[:, :, None])[:, :, 0]
        R = e[:, None] * eta - p - Kw
        J = e[:, None, None] * unit + K * (w * bend)[:, None, :] - Kw[:, :, None] * w[:, None, :]
        d = -torch.linalg.solve_ex(J, R[:, :, None])[0][:, :, 0]
        rise = (w * d).sum(1, keepdim=True) - bend * d  # of ln w
        damp = (3 / rise.amax(1).clamp_min(1e-300)).clamp_max(1.0)
        eta = torch.where(done[:, None], eta, eta + damp[:, None] * d)
        blur = 8 * torch.finfo(p.dtype).eps * (p.abs() + Kw).amax(1) / e  # rounding of the margins, in eta
        close = (w * rise.abs()).amax(1) < 1e-7 + blur  # the error after this step is its square
        done = done | ((e <= eps) & close & (damp == 1))
        colder = torch.where(done | (damp <= 0.5), e, torch.maximum(eps, e / 10))
        # margins stay, so eta grows; its common part is moved by hand, or rounding of that part would swamp the rest
        w = losses.weights(loss, eta, "soft_margin")
        eta = eta + ((e / colder - 1) * (w * eta).sum(1) / w.sum(1))[:, None]
        e = colder
        if bool((done | ~eta.isfinite().all(1)).all()):
            break
    w = losses.weights(loss, eta, "soft_margin")
    return w, done & sane & w.isfinite().all(1)


class Gates:
    """A two-layer ReLU net whose units at a kink have derivatives in [0, 1]. t_ij = v_j . x_i, S their derivatives (B, n, m)."""

    sweeps = 10

    def __init__(self, problem: Problem, W: Params, gates: Tensor):
        net, self.X, self.y = problem.net, problem.X, problem.y
        assert isinstance(net, TwoLayer)
        self.net, self.a = net, W["a"][:, None, :]  # (B, 1, m)
        self.XX = self.X @ self.X.mT
        self.t = self.X @ W["V"].mT  # (B, n, m)
        self.on = (self.t > 0).to(self.t.dtype)
        self.H = self.t.clamp_min(0)
        self.S = torch.where((gates > 0) & (gates < 1), gates, self.on)
        self.p = self.y * net.factor * (self.H * self.a).sum(2)

    @staticmethod
    def apply_to(problem: Problem) -> bool:
        net = problem.net
        return type(net) is TwoLayer and net.activation == "relu" and "V" in net.trained

    def gram(self) -> Tensor:
        slope = self.S * self.a
        K = self.H @ self.H.mT + self.XX * (slope @ slope.mT)
        return self.net.factor**2 * self.y[:, :, None] * K * self.y[:, None, :]

    def pull(self, w: Tensor, h: Tensor, sweeps: int | None = None) -> tuple[Params, Tensor]:
        """A'w with the gates after a step h (B,), and these gates.

        A gate is open to choice where v_j can reach its kink within the step and the other side pushes back (C_ij < 0), or where
        v_j lies on it exactly. There v_j . x_i = 0 after the step with S_ij in [0, 1], or ends below with 0 or above with 1: the
        optimality conditions of a convex problem in S, solved by Jacobi sweeps with row sums as diagonal, which converge.
        """
        pulled = self.net.factor * (w * self.y)  # (B, n)
        C = pulled[:, :, None] * self.a  # (B, n, m)
        step = h[:, None, None]
        size = C.abs()
        near = self.XX.abs()
        choice = ((C < 0) & (self.t.abs() <= step * (near @ size))) | ((self.t == 0) & (C != 0))
        reach = step * (near @ (size * choice))
        turn = torch.where(reach > 0, -C.sign() / reach.clamp_min(1e-300), torch.zeros_like(C)) * choice
        S = torch.where(choice, self.S, self.on)
        step = step.expand(len(C), 1, 1) * self.XX
        for _ in range(self.sweeps if sweeps is None else sweeps):
            S = ((step @ (C * S)).add_(self.t).mul_(turn).add_(S)).clamp_(0, 1)  # turn is 0 where there is no choice
        F = {"a": (pulled[:, None, :] @ self.H)[:, 0], "V": (C * S).mT @ self.X}
        return {name: F[name] for name in self.net.trained}, S


def gram(problem: Problem, W: Params, saved: Any) -> Tensor:
    """<dp_i/dW, dp_j/dW>; with several classes from n pull-backs."""
    if problem.net.outputs == 1:
        return problem.gram(W)
    B, n = len(next(iter(W.values()))), problem.n
    unit = torch.eye(n, dtype=problem.X.dtype, device=problem.X.device)
    rows = []
    for i in range(n):
        row = problem.pull(W, unit[i].expand(B, n), saved)
        rows.append(torch.cat([part.flatten(1) for part in row.values()], 1))
    A = torch.stack(rows, 1)  # (B, n, P)
    return A @ A.mT


def grown_margins(p: Tensor, log_size: Tensor) -> Tensor:
    return p * log_size.clamp_max(LOG_SIZE_MOST + 10)[:, None].exp()


def per_trial(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *[1] * (like.ndim - 1))
