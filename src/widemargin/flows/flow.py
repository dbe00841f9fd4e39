"""Gradient flow far past the smallest loss (UH-3, LR-4, CB-5..7), with error control, one trial as stiff as the next.

The clock is CB's: dW/ds = sum_i w_i dp_i/dW with w_i = |l'_i| / sum_k l_k, and ds = (mean risk) dt_mean. A net homogeneous of
degree L in all that is trained carries its size as a logarithm, W = e^rho Y with |Y| = 1: then p(W) = e^{L rho} p(Y), and in the
clock ds' = e^{(L - 2) rho} ds, with rho fixed during a step, dY/ds' = sum_i w_i(e^{L rho} p(Y)) dp_i(Y); after a step the length
of Y is folded into rho. The parameters of a run are then Y, and state["log_scale"] is rho (`unscaled` gives W).

Two things make this flow stiff, and both are motions that slide along a surface where the field jumps.

- The dual w is a softmax at inverse temperature beta = |W|^L. Explicit steps throw it from one point to another as soon as
  h beta |dp|^2 > 1. Here the dual is implicit: a step of length h from Y is Y + h A'w, A = dp/dW at Y, with w the weights *after*
  the step, w = weights(beta (p + h K w)), K = A A'. These are n equations, solved by Newton's method along decreasing
  temperatures (`implicit_weights`); for the exponential loss they are a strictly convex problem, so this works at any beta.
- A ReLU whose gradient pushes v_j . x_i to 0 from both sides (a_j y_i < 0) stays on v_j . x_i = 0, where the maximum margin
  puts most neurons in the end; explicit steps chatter there and lose margin in proportion to h. Here the derivatives of such
  units at 0 are unknown gates in [0, 1], chosen so that the neuron ends on the surface if it can: a small box-constrained problem
  per neuron, warm-started from the step before (`_Gates`). As h -> 0 this is the minimum-norm Clarke element, which is also what
  is used at pre-activations that are exactly 0 (`clarke_min_norm`). Done for two-layer ReLU nets that train V; other nets
  have the derivative 0 at 0 and, where they slide, small steps.

These linearly implicit Euler steps are extrapolated (1, 2 and 3 substeps) to order 3 or 2, with an embedded error estimate per
trial. Everything is one tensor program with masks; a trial does not feel the others.

An honest flow. state["left"] is a set of bits and state["honest"] says that none is set:
    1  beta went above `beta_max`, where rounding of p(Y) would decide the dual. The softmax is kept at beta_max; Y follows the
       sliding motion beta -> infinity up to ln(n) / beta_max in the margins, while psi and both clocks still use the true size
    2  the error was not met at the smallest step, so the step was taken all the same
    4  the equations of the dual were not solved at the smallest step; the trial stops there, as a diverged one
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from widemargin.types import InputError

from . import losses
from .losses import Loss
from .nets import Params, TwoLayer
from .problem import Problem
from .rules import DIVERGED, FINISHED, RUNNING, Rule, State

TEMPERED, FORCED, UNSOLVED = 1, 2, 4
LARGEST = 690.0  # ln |W|^L up to which p(W) fits into floating point: 1e299
EXTRAPOLATE = {1: ((1.0,),), 2: ((-1.0, 2.0), (0.0, 1.0)), 3: ((0.5, -4.0, 4.5), (0.0, -2.0, 3.0))}  # result, embedded


def is_scaled(problem: Problem) -> bool:
    """Whether the norm is carried as a logarithm: one output, homogeneous in all that is trained, a loss of margins."""
    net = problem.net
    return problem.loss is not None and net.outputs == 1 and set(net.trained) == set(net.homogeneous)


def unscaled(problem: Problem, W: Params, state: State) -> Params:
    """The parameters e^rho Y themselves; infinite where they do not fit."""
    rho = state.get("log_scale")
    if rho is None:
        return W
    return W | {name: W[name] * _fit(rho.exp(), W[name]) for name in problem.net.homogeneous}


@dataclass(frozen=True)
class GradientFlow(Rule):
    """One adaptive step, taken or rejected, of the flow dW/ds = sum_i w_i dp_i/dW (see the module).

    `rtol` bounds the estimated error of a step in W, relative to |W|; the estimate is that of the order below. With `until`
    a trial ends (status 2) where the event happens, to about 1e-6 of |W|: steps across it are taken again, shorter; a time in
    CB's clock is hit to rounding. The loop may watch events itself instead and then stops up to one step later. The state adds

        log_scale   (B,) rho, for nets homogeneous in all parameters; W is then Y
        h, error    (B,) next step in the clock s', last error over rtol
        dual        (B, n) weights of the last step: the softmax cannot be had from p(Y) at large beta
        gates       (B, n, m) derivatives of the units in the last step, for two-layer ReLU nets
        drift       (B,) change of min p(Y) over a step, relative and per unit of rho
        left        (B,) bits, honest (B,): see the module;  tried (B,) steps including the rejected ones
    """

    rtol: float = 1e-4
    order: int = 2
    until: Event | None = None
    beta_max: float = 1e8
    largest: float = 0.5  # growth of ln |W| in a step
    smallest: float = 1e-7  # movement of Y in a step at which the error is no longer asked

    @property
    def graph(self) -> bool:
        """A step asks the host whether its equations are solved, so it cannot be recorded."""
        return False

    def check(self, problem: Problem) -> None:
        if problem.loss is None:
            raise InputError(
                "gradient flow runs in the clock of an exponential or logistic loss; the squared loss has none"
            )
        if self.order not in (2, 3):
            raise InputError(f"gradient flow: order {self.order!r} is not 2 or 3")
        for name, value in (("rtol", self.rtol), ("beta_max", self.beta_max), ("largest", self.largest)):
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"gradient flow: {name} must be a positive number, not {value!r}")

    def start(self, problem: Problem, W: Params) -> State:
        state = super().start(problem, W)
        zero = state["t_cb"]
        p = problem.margins(W)
        assert problem.loss is not None
        dual = losses.weights(problem.loss, p, "cb")
        state |= {
            "h": zero - 1,  # chosen at the first step
            "error": zero + 1,
            "dual": dual.nan_to_num(),
            "drift": zero + torch.inf,
            "left": zero.to(torch.int64),
            "honest": zero == 0,
            "tried": zero.to(torch.int64),
        }
        if is_scaled(problem):
            state["log_scale"] = zero
        if isinstance(self.until, Radius):
            state |= {f"start_{name}": W[name].clone() for name in problem.net.trained}
        if _Gates.apply_to(problem):
            state["gates"] = (problem.X @ W["V"].mT > 0).to(p.dtype) + zero[:, None, None]  # (B, n, m)
        return state

    def step(self, problem: Problem, W: Params, state: State) -> tuple[Params, State]:
        loss, net = problem.loss, problem.net
        assert loss is not None
        running = state["status"] == RUNNING
        here = _Point(W, state.get("log_scale"), state["dual"], state.get("gates"), torch.zeros_like(state["t_cb"]))
        here = _fold(problem, here)
        first = _Local(problem, here, self.beta_max)
        speed = first.speed(here.w)  # (B,)
        h = torch.where(state["h"] > 0, state["h"], 1e-3 / speed.clamp_min(1e-300))
        h = torch.minimum(h, self.largest / speed.clamp_min(1e-300))
        wish, clock = h, self.until if isinstance(self.until, Time) and self.until.clock == "t_cb" else None
        if clock is not None:  # the last step ends there
            rate = torch.ones_like(h) if here.rho is None else ((net.degree - 2) * here.rho).exp()
            h = torch.minimum(h, (clock.value - state["t_cb"]).clamp_min(0) * rate)

        ends, solved = [], running
        for parts in range(1, self.order + 1):
            point, local = here, first
            for part in range(parts):
                local = local if part == 0 else _Local(problem, point, self.beta_max)
                point, fine = local.advance(h / parts)
                solved = solved & fine
            ends.append(point)
        best, rough = ([*row] for row in EXTRAPOLATE[self.order])
        new = _mix(ends, best)
        error = _distance(net.trained, new, _mix(ends, rough)) / self.rtol  # (B,)

        sound = solved & error.isfinite()
        tiny = h * speed <= self.smallest
        met = sound & (error <= 1)
        take = running & (met | (sound & tiny))
        lost = running & ~sound & (tiny | ~speed.isfinite())
        new = _fold(problem, new)

        p0, p1 = first.p, problem.margins(new.W)  # of Y
        size0, size1 = first.log_beta, _log_beta(problem, new)  # ln of what turns them into p(W)
        risk0, risk1 = (
            losses.log_sum(loss, _grown(p, size)) - math.log(problem.n) for p, size in ((p0, size0), (p1, size1))
        )
        grown = torch.zeros_like(h) if new.rho is None or here.rho is None else new.rho - here.rho
        bends = 2 * (local.speed(new.w) / speed.clamp_min(1e-300)).clamp_min(1e-300).log()
        log_dt = _log_mean_time(new.t.clamp_min(1e-300).log(), -risk0, -risk1, bends)

        happened = torch.zeros_like(running)
        if clock is not None:
            happened = state["t_cb"] + new.t >= clock.value * (1 - 1e-9)
        elif self.until is not None:
            later = torch.logaddexp(state["log_t_mean"], log_dt)
            then = state | {"t_cb": state["t_cb"] + new.t, "log_t_mean": later, "log_scale": new.rho}
            begun = {name: state.get(f"start_{name}", W[name]) for name in net.trained}
            happened = self._happened(problem, new, then, begun)
            if not isinstance(self.until, Stationary):
                across = take & happened & (h * speed > 1e-6)
                take, met = take & ~across, met & ~across
                error = torch.where(across, torch.full_like(error, 4.0**self.order), error)

        # Step sizes: proportional and integral control, at most doubled, at least a fifth
        k = float(self.order)
        safe = error.clamp(1e-10, 1e10).nan_to_num(1e10)
        grow = 0.9 * safe ** (-0.7 / k) * state["error"].clamp_min(1e-10) ** (0.4 / k)
        shrink = torch.where(sound, 0.9 * safe ** (-1 / k), torch.full_like(h, 0.2))
        factor = torch.where(take & met, grow.clamp(0.2, 2.0), shrink.clamp(0.2, 0.9))
        factor = torch.where(take & ~met, torch.ones_like(h), factor)

        margin0, margin1 = p0.amin(1), p1.amin(1)
        drift = (margin1 - margin0).abs() / (margin1.abs() * grown.abs()).clamp_min(1e-300)
        left = state["left"] | torch.where(size1 > math.log(self.beta_max), TEMPERED, 0)
        left = left | torch.where(take & ~met, FORCED, 0)
        full = take & ((size1 > LARGEST) | happened)
        after: State = {
            "t_cb": state["t_cb"] + new.t,
            "log_t_mean": torch.logaddexp(state["log_t_mean"], log_dt),
            "taken": state["taken"] + 1,
            "error": safe,
            "dual": new.w,
            "drift": drift,
            "left": left,
        }
        if new.rho is not None:
            after["log_scale"] = new.rho
        if new.gates is not None:
            after["gates"] = new.gates
        after = {name: _where(take, value, state[name]) for name, value in after.items()}
        after["left"] = after["left"] | torch.where(lost, UNSOLVED, 0)
        status = torch.where(lost, DIVERGED, torch.where(full, FINISHED, state["status"])).to(torch.int8)
        clock_turn = torch.where(take, (net.degree - 2) * grown, torch.zeros_like(h)).exp()  # ds' depends on rho
        after |= {
            "step": state["step"] + 1,
            "tried": state["tried"] + running,
            "h": torch.where(running, torch.where(take & (h < wish), wish, h * factor) * clock_turn, state["h"]),
            "status": status,
            "honest": after["left"] == 0,
        }
        moved = {name: _where(take, new.W[name], W[name]) for name in net.trained}
        return W | moved, state | after

    def _happened(self, problem: Problem, new: _Point, then: State, begun: Params) -> Tensor:
        assert self.until is not None
        if then["log_scale"] is None:
            then = {name: value for name, value in then.items() if name != "log_scale"}
        if isinstance(self.until, Stationary):
            early = then["drift"] > self.until.drift
            if bool(early.all()):  # the residual costs as much as a step
                return torch.zeros_like(early)
        return self.until.reached(problem, new.W, then, begun)


# One point of the trajectory, and the flow linearised there


@dataclass(frozen=True)
class _Point:
    W: Params
    rho: Tensor | None
    w: Tensor  # dual (B, n)
    gates: Tensor | None
    t: Tensor  # CB's clock since the step began (B,)


def _log_beta(problem: Problem, point: _Point) -> Tensor:
    """ln of the factor that turns p(Y) into p(W); 0 where W is carried itself."""
    return torch.zeros_like(point.t) if point.rho is None else problem.net.degree * point.rho


def _fold(problem: Problem, point: _Point) -> _Point:
    """|Y| = 1, its length moved into rho. An all-zero Y (an output layer that starts at 0) stays."""
    if point.rho is None:
        return point
    size = problem.net.norm2(point.W).sqrt()
    size = torch.where((size > 0) & size.isfinite(), size, torch.ones_like(size))
    W = point.W | {name: point.W[name] / _fit(size, point.W[name]) for name in problem.net.homogeneous}
    return _Point(W, point.rho + size.log(), point.w, point.gates, point.t)


class _Local:
    """p, A and K at a point, and linearly implicit Euler steps from it."""

    def __init__(self, problem: Problem, point: _Point, beta_max: float):
        self.problem, self.point = problem, point
        self.log_beta = _log_beta(problem, point)
        self.beta = self.log_beta.clamp_max(math.log(beta_max)).exp()
        self.kinks: _Gates | None = None
        if point.gates is not None:
            self.kinks = _Gates(problem, point.W, point.gates)
            self.p, self.K = self.kinks.p, self.kinks.gram()
        else:
            self.p, self.saved = problem.look(point.W)
            self.K = _gram(problem, point.W, self.saved)

    def speed(self, w: Tensor) -> Tensor:
        """|A'w| (B,)."""
        return (w * (self.K @ w[:, :, None])[:, :, 0]).sum(1).clamp_min(0).sqrt()

    def advance(self, h: Tensor) -> tuple[_Point, Tensor]:
        """The point after a step (B,) in the clock s', and where the dual was found."""
        problem, point = self.problem, self.point
        loss, L = problem.loss, problem.net.degree
        assert loss is not None
        length = h
        if point.rho is not None:
            # Late in a run Y grows along itself, |Y|' = c |Y|^(L - 1); this length makes the step exact for that
            size = problem.net.norm2(point.W)
            c = (L * (point.w * self.p).sum(1) / torch.where(size > 0, size, torch.ones_like(size))).clamp_min(0)
            rate = (c * h).clamp_max(0.5 / max(L - 2, 0.2)) if L > 1 else torch.zeros_like(c)
            gained = torch.expm1(rate) if L == 2 else (1 - (L - 2) * rate) ** (-1 / (L - 2)) - 1
            length = torch.where(rate > 1e-6, h * gained / _away(rate), h * (1 + 0.5 * (L - 1) * rate))
        w, solved = implicit_weights(loss, self.p, self.K, length, self.beta)
        gates = point.gates
        if self.kinks is not None:
            F, gates = self.kinks.pull(w, length)
        else:
            F = problem.pull(point.W, w, self.saved)
        W = point.W | {name: point.W[name] + _fit(length, grad) * grad for name, grad in F.items()}
        dt = h if point.rho is None else h * ((2 - L) * point.rho).exp()
        return _Point(W, point.rho, w, gates, point.t + dt), solved


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
        w = losses.weights(loss, eta, "cb")
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
        w = losses.weights(loss, eta, "cb")
        eta = eta + ((e / colder - 1) * (w * eta).sum(1) / w.sum(1))[:, None]
        e = colder
        if bool((done | ~eta.isfinite().all(1)).all()):
            break
    w = losses.weights(loss, eta, "cb")
    return w, done & sane & w.isfinite().all(1)


class _Gates:
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


def clarke_min_norm(problem: Problem, W: Params, weights: Tensor, sweeps: int = 2000) -> Params:
    """The element of least norm among sum_i weights_i dp_i, p_i in Clarke's sense: units with v_j . x_i = 0 have any derivative
    in [0, 1]. For two-layer ReLU nets; W are the parameters themselves, or Y (B, ...).

    The flow of UH and LR moves along it. With v_j = 0 it is 0: a neuron without a direction never starts.
    """
    if not _Gates.apply_to(problem):
        return problem.pull(W, weights)
    start = torch.zeros_like(problem.X @ W["V"].mT)
    zero = start.new_zeros(len(start))  # no other kink is reachable in no time
    kinks = _Gates(problem, W, start)
    exact = kinks.t == 0
    C = (kinks.net.factor * weights * kinks.y)[:, :, None] * kinks.a
    reach = kinks.XX.abs() @ (C.abs() * exact)
    turn = torch.where(exact & (reach > 0), -C.sign() / reach.clamp_min(1e-300), torch.zeros_like(C))
    S = kinks.on
    for _ in range(sweeps):
        S = torch.where(exact, (S + turn * (kinks.XX @ (C * S))).clamp(0, 1), S)
    F = kinks.pull(weights, zero, 0)[0]
    return F | {"V": (C * S).mT @ problem.X}


def kkt_residual(problem: Problem, W: Params, state: State | None = None) -> Tensor:
    """Sine of the angle (B,) between W and the direction in which the hard margin grows fastest; 1 if it points back (LR-19).

    W is a KKT point of min |W| s.t. p_i >= 1 if and only if W is a nonnegative combination of the dp_i of the points with the
    smallest margin. The combination tried is the dual of an implicit step at very low temperature, with the derivatives of units
    on their kinks as free as Clarke allows. It does not depend on the size of W. `state` gives the gates of a flow.
    """
    net, loss = problem.net, problem.loss
    if loss is None or net.outputs > 1:
        raise InputError("the KKT residual needs one output and a loss of margins")
    size = net.norm2(W).sqrt()
    Y = W | {name: W[name] / _fit(size.clamp_min(1e-300), W[name]) for name in net.homogeneous}
    gates = (state or {}).get("gates")
    kinks = None
    if _Gates.apply_to(problem):
        kinks = _Gates(problem, Y, problem.X @ Y["V"].mT if gates is None else gates)
        p, K = kinks.p, kinks.gram()
    else:
        p, saved = problem.look(Y)
        K = _gram(problem, Y, saved)
    top = K.diagonal(dim1=1, dim2=2).amax(1).clamp_min(1e-300)
    h = 0.1 / top.sqrt()  # a step a tenth as long as Y at most
    w, _ = implicit_weights(losses.EXP, p, K, h, 1e7 / (h * top))
    F = problem.pull(Y, w) if kinks is None else kinks.pull(w, h, 200)[0]
    dot = sum((F[name] * Y[name]).flatten(1).sum(1) for name in net.homogeneous)
    length = sum((F[name] ** 2).flatten(1).sum(1) for name in net.homogeneous)
    cosine = dot / length.clamp_min(1e-300).sqrt()  # type: ignore[union-attr, operator]
    return torch.where(cosine > 0, (1 - cosine.clamp_max(1) ** 2).clamp_min(0).sqrt(), torch.ones_like(size))


# Events: stop a trial where `reached(problem, W, state, start)` is true; start holds the parameters at the beginning


@dataclass(frozen=True)
class Time:
    """CB's clock, or the clock of the mean risk, has reached `value`."""

    value: float
    clock: str = "t_cb"

    def reached(self, problem: Problem, W: Params, state: State, start: Params) -> Tensor:
        if self.clock == "t_cb":
            return state["t_cb"] >= self.value
        return state["log_t_mean"] >= math.log(self.value)


@dataclass(frozen=True)
class Radius:
    """|W - W0| >= value, over all trained parameters."""

    value: float

    def reached(self, problem: Problem, W: Params, state: State, start: Params) -> Tensor:
        rho = state.get("log_scale")
        rho = torch.zeros_like(state["t_cb"]) if rho is None else rho
        gone = sum(
            ((W[name] - start[name] * _fit((-rho).exp(), W[name])) ** 2).flatten(1).sum(1)
            for name in problem.net.trained
        )
        return 0.5 * gone.log() + rho >= math.log(self.value)  # type: ignore[union-attr]


@dataclass(frozen=True)
class Risk:
    """Mean risk <= value."""

    value: float

    def reached(self, problem: Problem, W: Params, state: State, start: Params) -> Tensor:
        return _log_risk(problem, W, state) <= math.log(self.value)


@dataclass(frozen=True)
class Fitted:
    """Mean risk < l(0)/n: every point is fitted, and psi / |W|^L never falls from here (LR-23, UH-18)."""

    def reached(self, problem: Problem, W: Params, state: State, start: Params) -> Tensor:
        if problem.loss is None:
            raise InputError("until fitted: the squared loss has no such event; give risk=... instead")
        return _log_risk(problem, W, state) < math.log(problem.loss.at_zero / problem.n)


@dataclass(frozen=True)
class Margin:
    """min_i p_i over the size of the network >= value; in M2 where the net has it, else in the first convention it has."""

    value: float
    convention: str | None = None

    def reached(self, problem: Problem, W: Params, state: State, start: Params) -> Tensor:
        sizes = problem.net.normalizers(W)
        names = [self.convention] if self.convention else [*(["M2"] if "M2" in sizes else []), *sizes]
        if names[0] not in sizes:
            raise InputError(f"until margin: this net has no convention {names[0]}; choose one of {', '.join(sizes)}")
        return problem.margins(W).amin(1) >= self.value * sizes[names[0]]


@dataclass(frozen=True)
class Stationary:
    """All points are fitted, the KKT residual is at most `residual`, and the normalised margin changes by at most `drift` of
    itself while |W| grows e-fold (where the rule records that)."""

    residual: float = 0.02
    drift: float = 1e-3

    def reached(self, problem: Problem, W: Params, state: State, start: Params) -> Tensor:
        settled = problem.margins(W).amin(1) > 0
        if "drift" in state:
            settled = settled & (state["drift"] <= self.drift)
        return settled & (kkt_residual(problem, W, state) <= self.residual)


Event = Time | Radius | Risk | Fitted | Margin | Stationary
VALUED: dict[str, Any] = {
    "margin": Margin,
    "radius": Radius,
    "risk": Risk,
    "time": Time,
    "t_cb": Time,
    "t_mean": lambda value: Time(value, "t_mean"),
}


def parse_until(text: str) -> Event:
    """fitted, stationary, margin=..., radius=..., risk=..., time=... (CB's clock, also t_cb=...) or t_mean=..."""
    name, given, value = text.strip().partition("=")
    if not given and name in ("fitted", "stationary"):
        return Fitted() if name == "fitted" else Stationary()
    if name not in VALUED or not given:
        raise InputError(
            f"--until {text!r}: choose fitted, stationary, margin=..., radius=..., risk=..., time=... or t_mean=..."
        )
    try:
        number = float(value)
    except ValueError:
        raise InputError(f"--until {text!r}: {value!r} is not a number") from None
    if not math.isfinite(number) or number <= 0:
        raise InputError(f"--until {text!r}: the value must be positive and finite")
    return VALUED[name](number)


# Small things


def _log_risk(problem: Problem, W: Params, state: State) -> Tensor:
    p, rho = problem.margins(W), state.get("log_scale")
    if problem.loss is None:
        return (p**2).mean(1).log()
    size = torch.zeros_like(p[:, 0]) if rho is None else problem.net.degree * rho
    return losses.log_sum(problem.loss, _grown(p, size)) - math.log(problem.n)


def _grown(p: Tensor, log_size: Tensor) -> Tensor:
    return p * log_size.clamp_max(LARGEST + 10)[:, None].exp()


def _gram(problem: Problem, W: Params, saved: Any) -> Tensor:
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


def _mix(ends: list[_Point], shares: list[float]) -> _Point:
    """The extrapolated point; dual and gates are those of the finest substeps."""
    last = ends[-1]

    def mixed(parts: list[Tensor]) -> Tensor:
        return sum(share * part for share, part in zip(shares, parts))  # type: ignore[return-value]

    W = {
        name: mixed([end.W[name] for end in ends]) if ends[0].W[name] is not last.W[name] else last.W[name]
        for name in last.W
    }
    return _Point(W, last.rho, last.w, last.gates, mixed([end.t for end in ends]))


def _distance(names: tuple[str, ...], one: _Point, two: _Point) -> Tensor:
    """How far two points of one step are from each other (B,), relative to their size."""
    gap = sum(((one.W[name] - two.W[name]) ** 2).flatten(1).sum(1) for name in names)
    size = sum((one.W[name] ** 2).flatten(1).sum(1) for name in names)
    least = 1e-300 if one.rho is None else 1.0  # |Y| = 1, unless an output layer starts at 0
    return (gap / size.clamp_min(least)).sqrt()  # type: ignore[union-attr, operator]


def _log_mean_time(log_h: Tensor, g0: Tensor, g1: Tensor, bends: Tensor) -> Tensor:
    """ln of the integral of e^g over a step of length h in CB's clock, g = -ln risk, from g and its slopes at both ends.

    1 / g' is taken linear in g, which makes it exact where e^g grows by any factor; `bends` = ln(g'(end) / g'(start)).
    """
    delta = (g1 - g0).clamp_min(0)
    ratio = bends.clamp(-30, 30).exp()  # (1 / g0') / (1 / g1')
    small = delta < 1e-2
    safe = torch.where(small, torch.ones_like(delta), delta)
    one = torch.where(small, 1 - delta / 2 + delta**2 / 6, -torch.expm1(-safe) / safe)
    decay = (-safe).exp() * (1 + safe)
    two = torch.where(small, 0.5 - delta / 3 + delta**2 / 8, (1 - decay) / (safe * safe).clamp_min(1e-300))
    share = (one - (1 - ratio) * two) / (0.5 * (1 + ratio))
    return log_h + g1 + share.clamp_min(1e-300).log()


def _fit(per_trial: Tensor, like: Tensor) -> Tensor:
    return per_trial.view(-1, *[1] * (like.ndim - 1))


def _where(keep: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(_fit(keep, new), new, old)


def _away(x: Tensor) -> Tensor:
    return torch.where(x == 0, torch.ones_like(x), x)
