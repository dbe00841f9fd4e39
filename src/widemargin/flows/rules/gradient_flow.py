"""Gradient flow far past the smallest loss (UH-3, LR-4, CB-5..7), with error control, one trial as stiff as the next.

The clock is CB's: dW/ds = sum_i w_i dp_i/dW with w_i = |l'_i| / sum_k l_k, and ds = (mean risk) dt_mean. A net homogeneous of
degree L in all that is trained carries its size as a logarithm, W = e^rho Y with |Y| = 1: then p(W) = e^{L rho} p(Y), and in the
clock ds' = e^{(L - 2) rho} ds, with rho fixed during a step, dY/ds' = sum_i w_i(e^{L rho} p(Y)) dp_i(Y); after a step the length
of Y is folded into rho. The parameters of a run are then Y, and `log_scale` of the state is rho (`true_params` gives W).

Two things make this flow stiff, and both are motions that slide along a surface where the field jumps.

- The dual w is a softmax at inverse temperature beta = |W|^L. Explicit steps throw it from one point to another as soon as
  h beta |dp|^2 > 1. Here the dual is implicit: a step of length h from Y is Y + h A'w, A = dp/dW at Y, with w the weights *after*
  the step, w = weights(beta (p + h K w)), K = A A'. These are n equations, solved by Newton's method along decreasing
  temperatures (`implicit_weights`); for the exponential loss they are a strictly convex problem, so this works at any beta.
- A ReLU whose gradient pushes v_j . x_i to 0 from both sides (a_j y_i < 0) stays on v_j . x_i = 0, where the maximum margin
  puts most neurons in the end; explicit steps chatter there and lose margin in proportion to h. Here the derivatives of such
  units at 0 are unknown gates in [0, 1], chosen so that the neuron ends on the surface if it can: a small box-constrained problem
  per neuron, warm-started from the step before (`Gates`). As h -> 0 this is the minimum-norm Clarke element, which is also what
  is used at pre-activations that are exactly 0 (`clarke_min_norm`). Done for two-layer ReLU nets that train V; other nets
  have the derivative 0 at 0 and, where they slide, small steps.

These linearly implicit Euler steps are extrapolated (1, 2 and 3 substeps) to order 3 or 2, with an embedded error estimate per
trial. Everything is one tensor program with masks; a trial does not feel the others.

An honest flow. `left` of the state is a set of bits and `honest` says that none is set:
    1  beta went above `beta_max`, where rounding of p(Y) would decide the dual. The softmax is kept at beta_max; Y follows the
       sliding motion beta -> infinity up to ln(n) / beta_max in the margins, while psi and both clocks still use the true size
    2  the error was not met at the smallest step, so the step was taken all the same
    4  the equations of the dual were not solved at the smallest step; the trial stops there, as a diverged one
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from widemargin.types import InputError, show

from .. import losses
from ..contract import DIVERGED, FINISHED, RUNNING, Rule, State
from ..events import Event, Radius, Stationary, Time
from ..implicit import LOG_SIZE_MOST, Gates, gram, grown_margins, implicit_weights, per_trial
from ..nets import Params
from ..problem import Problem

TEMPERED, FORCED, UNSOLVED = 1, 2, 4
EXTRAPOLATE = {1: ((1.0,),), 2: ((-1.0, 2.0), (0.0, 1.0)), 3: ((0.5, -4.0, 4.5), (0.0, -2.0, 3.0))}  # result, embedded


def is_scaled(problem: Problem) -> bool:
    """Whether the norm is carried as a logarithm: one output, homogeneous in all that is trained, a loss of margins."""
    net = problem.net
    return problem.loss is not None and net.outputs == 1 and set(net.trained) == set(net.homogeneous)


@dataclass(frozen=True, kw_only=True)
class FlowState(State):
    """log_scale is rho, for nets homogeneous in all parameters; W is then Y. The dual and, in two-layer ReLU nets, the gates are
    those of the last step: the softmax cannot be had from p(Y) at large beta. `drift` is that of a step in min p(Y)."""

    dual: Tensor
    drift: Tensor
    h: Tensor  # (B,) next step in the clock s'
    error: Tensor  # (B,) last error over rtol
    left: Tensor  # (B,) bits, see the module
    honest: Tensor  # (B,) no bit is set
    tried: Tensor  # (B,) steps including the rejected ones
    begun: Params | None = None  # the first parameters, where an event needs them

    def notes(self) -> tuple[str, ...]:
        gone = int((~self.honest).sum())
        text = f"{gone} of {len(self.honest)} trials left the regime where they are gradient flow; docs/training.md says how"
        return (text,) if gone else ()


@dataclass(frozen=True)
class GradientFlow(Rule[FlowState]):
    """One adaptive step, taken or rejected, of the flow dW/ds = sum_i w_i dp_i/dW (see the module).

    `rtol` bounds the estimated error of a step in W, relative to |W|; the estimate is that of the order below. With `until`
    a trial ends (status 2) where the event happens, to about 1e-6 of |W|: steps across it are taken again, shorter; a time in
    CB's clock is hit to rounding. The loop may watch events itself instead and then stops up to one step later.

    `order` is 2 or 3. `beta_max` is the inverse temperature from which on the dual is that of beta_max, `largest` bounds the
    growth of ln |W| in a step, and below a movement `smallest` of Y the error is no longer asked.

    >>> from widemargin import flows
    >>> from widemargin.types import Dataset
    >>> point = Dataset([[1.0]], [1.0])  # with f(x) = w x and the exponential loss, dw/ds = 1 in CB's clock
    >>> rule = flows.GradientFlow(until=flows.parse_until("time=2"))
    >>> run = flows.train(point, flows.MLP(1, 1, depth=1), rule, loss="exp", stop=100, record=["moved"])
    >>> round(float(run.records["moved_W1"][-1, 0]), 6), run.status
    (2.0, ('finished',))
    """

    rtol: float = 1e-4
    order: int = 2
    until: Event | None = None
    beta_max: float = 1e8
    largest: float = 0.5  # growth of ln |W| in a step
    smallest: float = 1e-7  # movement of Y in a step at which the error is no longer asked

    costly = True

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
        if not (self.until is None or isinstance(self.until, Event)):
            raise InputError(f"gradient flow: until must be an event of widemargin.flows, not {show(self.until)}")

    def init(self, problem: Problem, W: Params) -> FlowState:
        begun = super().init(problem, W)
        zero = begun.t_cb
        p = problem.margins(W)
        assert problem.loss is not None
        gates = None
        if Gates.apply_to(problem):
            gates = (problem.X @ W["V"].mT > 0).to(p.dtype) + zero[:, None, None]  # (B, n, m)
        near = isinstance(self.until, Radius)
        known = {
            "dual": losses.weights(problem.loss, p, "soft_margin").nan_to_num(),
            "drift": zero + torch.inf,
            "gates": gates,
            "log_scale": zero if is_scaled(problem) else None,
        }
        return FlowState(
            **(vars(begun) | known),
            h=zero - 1,  # chosen at the first step
            error=zero + 1,
            left=zero.to(torch.int64),
            honest=zero == 0,
            tried=zero.to(torch.int64),
            begun={name: W[name].clone() for name in problem.net.trained} if near else None,
        )

    def step(self, problem: Problem, W: Params, state: FlowState) -> tuple[Params, FlowState]:
        loss, net = problem.loss, problem.net
        assert loss is not None
        running = state.status == RUNNING
        here = _Point(W, state.log_scale, state.dual, state.gates, torch.zeros_like(state.t_cb))
        here = _fold(problem, here)
        first = _Local(problem, here, self.beta_max)
        speed = first.speed(here.w)  # (B,)
        h = torch.where(state.h > 0, state.h, 1e-3 / speed.clamp_min(1e-300))
        h = torch.minimum(h, self.largest / speed.clamp_min(1e-300))
        wish, clock = h, self.until if isinstance(self.until, Time) and self.until.clock == "t_cb" else None
        if clock is not None:  # the last step ends there
            rate = torch.ones_like(h) if here.rho is None else ((net.degree - 2) * here.rho).exp()
            h = torch.minimum(h, (clock.value - state.t_cb).clamp_min(0) * rate)

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
            losses.log_sum(loss, grown_margins(p, size)) - math.log(problem.n) for p, size in ((p0, size0), (p1, size1))
        )
        grown = torch.zeros_like(h) if new.rho is None or here.rho is None else new.rho - here.rho
        bends = 2 * (local.speed(new.w) / speed.clamp_min(1e-300)).clamp_min(1e-300).log()
        log_dt = _log_mean_time(new.t.clamp_min(1e-300).log(), -risk0, -risk1, bends)

        happened = torch.zeros_like(running)
        if clock is not None:
            happened = state.t_cb + new.t >= clock.value * (1 - 1e-9)
        elif self.until is not None:
            later = torch.logaddexp(state.log_t_mean, log_dt)
            then = replace(state, t_cb=state.t_cb + new.t, log_t_mean=later, log_scale=new.rho)
            happened = self._happened(problem, new, then, W if state.begun is None else state.begun)
            if not isinstance(self.until, Stationary):
                across = take & happened & (h * speed > 1e-6)
                take, met = take & ~across, met & ~across
                error = torch.where(across, torch.full_like(error, 4.0**self.order), error)

        # Step sizes: proportional and integral control, at most doubled, at least a fifth
        k = float(self.order)
        safe = error.clamp(1e-10, 1e10).nan_to_num(1e10)
        grow = 0.9 * safe ** (-0.7 / k) * state.error.clamp_min(1e-10) ** (0.4 / k)
        shrink = torch.where(sound, 0.9 * safe ** (-1 / k), torch.full_like(h, 0.2))
        factor = torch.where(take & met, grow.clamp(0.2, 2.0), shrink.clamp(0.2, 0.9))
        factor = torch.where(take & ~met, torch.ones_like(h), factor)

        margin0, margin1 = p0.amin(1), p1.amin(1)
        drift = (margin1 - margin0).abs() / (margin1.abs() * grown.abs()).clamp_min(1e-300)
        left = state.left | torch.where(size1 > math.log(self.beta_max), TEMPERED, 0)
        left = left | torch.where(take & ~met, FORCED, 0)
        full = take & ((size1 > LOG_SIZE_MOST) | happened)
        left = torch.where(take, left, state.left) | torch.where(lost, UNSOLVED, 0)
        status = torch.where(lost, DIVERGED, torch.where(full, FINISHED, state.status)).to(torch.int8)
        clock_turn = torch.where(take, (net.degree - 2) * grown, torch.zeros_like(h)).exp()  # ds' depends on rho
        after = replace(
            state,
            step=state.step + 1,
            t_cb=torch.where(take, state.t_cb + new.t, state.t_cb),
            log_t_mean=torch.where(take, torch.logaddexp(state.log_t_mean, log_dt), state.log_t_mean),
            status=status,
            taken=torch.where(take, state.taken + 1, state.taken),
            log_scale=None if new.rho is None else torch.where(take, new.rho, state.log_scale),  # type: ignore[arg-type]
            dual=_where(take, new.w, state.dual),
            gates=None if new.gates is None else _where(take, new.gates, state.gates),  # type: ignore[arg-type]
            drift=torch.where(take, drift, state.drift),
            h=torch.where(running, torch.where(take & (h < wish), wish, h * factor) * clock_turn, state.h),
            error=torch.where(take, safe, state.error),
            left=left,
            honest=left == 0,
            tried=state.tried + running,
        )
        moved = {name: _where(take, new.W[name], W[name]) for name in net.trained}
        return W | moved, after

    def _happened(self, problem: Problem, new: _Point, then: FlowState, begun: Params) -> Tensor:
        assert self.until is not None
        if isinstance(self.until, Stationary):
            early = then.drift > self.until.drift
            if bool(early.all()):  # the residual costs as much as a step
                return torch.zeros_like(early)
        return self.until.reached(problem, new.W, then, begun)


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
    W = point.W | {name: point.W[name] / per_trial(size, point.W[name]) for name in problem.net.homogeneous}
    return _Point(W, point.rho + size.log(), point.w, point.gates, point.t)


class _Local:
    """p, A and K at a point, and linearly implicit Euler steps from it."""

    def __init__(self, problem: Problem, point: _Point, beta_max: float):
        self.problem, self.point = problem, point
        self.log_beta = _log_beta(problem, point)
        self.beta = self.log_beta.clamp_max(math.log(beta_max)).exp()
        self.kinks: Gates | None = None
        if point.gates is not None:
            self.kinks = Gates(problem, point.W, point.gates)
            self.p, self.K = self.kinks.p, self.kinks.gram()
        else:
            self.p, self.saved = problem.look(point.W)
            self.K = gram(problem, point.W, self.saved)

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
        W = point.W | {name: point.W[name] + per_trial(length, grad) * grad for name, grad in F.items()}
        dt = h if point.rho is None else h * ((2 - L) * point.rho).exp()
        return _Point(W, point.rho, w, gates, point.t + dt), solved


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


def _distance(names: tuple[str, ...], here: _Point, there: _Point) -> Tensor:
    """How far two points of one step are from each other (B,), relative to their size."""
    gap = sum(((here.W[name] - there.W[name]) ** 2).flatten(1).sum(1) for name in names)
    size = sum((here.W[name] ** 2).flatten(1).sum(1) for name in names)
    least = 1e-300 if here.rho is None else 1.0  # |Y| = 1, unless an output layer starts at 0
    return (gap / size.clamp_min(least)).sqrt()  # type: ignore[union-attr, operator]


def _log_mean_time(log_h: Tensor, g0: Tensor, g1: Tensor, bends: Tensor) -> Tensor:
    """ln of the integral of e^g over a step of length h in CB's clock, g = -ln risk, from g and its slopes at both ends.

    1 / g' is taken linear in g, which makes it exact where e^g grows by any factor; `bends` = ln(g'(end) / g'(start)).
    """
    delta = (g1 - g0).clamp_min(0)
    ratio = bends.clamp(-30, 30).exp()  # (1 / g0') / (1 / g1')
    small = delta < 1e-2
    safe = torch.where(small, torch.ones_like(delta), delta)
    first = torch.where(small, 1 - delta / 2 + delta**2 / 6, -torch.expm1(-safe) / safe)
    decay = (-safe).exp() * (1 + safe)
    second = torch.where(small, 0.5 - delta / 3 + delta**2 / 8, (1 - decay) / (safe * safe).clamp_min(1e-300))
    share = (first - (1 - ratio) * second) / (0.5 * (1 + ratio))
    return log_h + g1 + share.clamp_min(1e-300).log()


def _where(keep: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(per_trial(keep, new), new, old)


def _away(x: Tensor) -> Tensor:
    return torch.where(x == 0, torch.ones_like(x), x)
