"""The weakly regularised path: minimisers of loss + lambda |Theta|^r as lambda falls, each from the one before (MT-1, MT-3)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from widemargin.types import InputError

from .. import losses
from ..contract import FINISHED, RUNNING, Rule, State
from ..nets import Params
from ..problem import Problem
from .steps import check_numbers, choose, guard, require, tick_log

ARMIJO, WOLFE = 1e-4, 0.9
MOST = 100_000  # values of lambda
STILL = 1e-5  # of |Theta| times the gradient of the ln objective, where a trial counts as stationary


@dataclass(frozen=True, kw_only=True)
class PathState(State):
    rung: Tensor  # (B,) number of the lambda
    value: Tensor  # ln of the objective at W
    bottom: Tensor  # min_i p_i there
    mark: Tensor  # its value 20 accepted steps ago
    grad: Tensor  # (B, P)
    way: Tensor  # search direction
    slope: Tensor  # along it
    a: Tensor  # next point of the search, between lo and hi
    lo: Tensor
    hi: Tensor
    tries: Tensor
    plain: Tensor  # the direction is that of the gradient
    fresh: Tensor  # nothing is known at W yet
    kicked: Tensor
    best: Tensor  # the best point for this lambda, its value and margin
    best_value: Tensor
    best_bottom: Tensor
    accepted: Tensor
    spent: Tensor
    S: Tensor  # (B, memory, P) pairs of L-BFGS
    Y: Tensor
    path_norm: Tensor  # (B, R), for each lambda
    path_margin: (
        Tensor  # normalised: min_i p_i / |Theta|^L, hard margins if there are several classes; NaN for the squared loss
    )
    path_loss: Tensor  # ln of the objective


@dataclass(frozen=True)
class WeaklyRegularized(Rule[PathState]):
    """Minimise  mean_i l(p_i) + lambda |Theta|^r  for lambda = first, ..., last, `per_decade` values a decade (MT-3).

    Theta are all trained parameters, |.| is Euclidean, r = `power`; `reduction` "sum" puts the sum of the losses there (E-MT-2:
    lambda_mean = lambda_sum / n), and for the squared loss l is (y - f)^2. What is minimised is the logarithm of the objective,
    whose gradient is of order 1 however small lambda is.

    A step evaluates one point of a line search of Lewis and Overton (weak Wolfe conditions by bisection, good at kinks) along
    the L-BFGS direction with `memory` pairs, in each trial by itself. Where the search fails even along the gradient (at a
    kink), the trial is kicked along it by 1e-3 of its norm, at most `kicks` times for each lambda. A trial goes on to the next
    lambda, from the best point it saw, when it is stationary, when the objective fell by less than a factor 1 - tol over the
    last 20 accepted steps, when its kicks are spent, or after `inner` evaluations; after the last lambda its status is 2.
    Narrow networks can stay at poor local minima; several trials or more neurons help.

    >>> import math
    >>> from widemargin import flows
    >>> from widemargin.types import Dataset
    >>> lam = math.exp(-1) / 2  # exp(-w) + lam w^2 is least where exp(-w) = 2 lam w, at w = 1
    >>> rule = flows.WeaklyRegularized(first=lam, last=lam)
    >>> line = flows.MLP(1, 1, depth=1)
    >>> run = flows.train(Dataset([[1.0]], [1.0]), line, rule, loss="exp", record=["path"])
    >>> round(float(run.records["path_norm"][-1, 0, 0]), 3)
    1.0
    """

    first: float = 1e-3
    last: float = 1e-14
    per_decade: float = 1
    power: float = 2.0
    reduction: str = "mean"
    inner: int = 1000
    tol: float = field(default=1e-7, kw_only=True)
    memory: int = 10
    kicks: int = 10

    ends = True

    def __post_init__(self) -> None:
        check_numbers(
            self, above=("first", "last", "per_decade", "power"), least={"inner": 1, "memory": 1, "tol": 0, "kicks": 0}
        )
        require(
            self.last <= self.first, "WeaklyRegularized: lambda falls from first to last, so last must not exceed first"
        )
        require(self.decades <= 300, "WeaklyRegularized: first and last differ by more than 1e300; bring them closer")
        require(
            self.decades * self.per_decade <= MOST,
            f"WeaklyRegularized: per_decade={self.per_decade:g} asks for more than {MOST} values of lambda; give a smaller one",
        )
        require(
            self.reduction in ("mean", "sum"), f"WeaklyRegularized: reduction {self.reduction!r} is not mean or sum"
        )

    @property
    def decades(self) -> float:
        """Between the first and the last lambda."""
        return math.log10(self.first) - math.log10(self.last)

    @property
    def lambdas(self) -> list[float]:
        """The values of lambda, from the first to the last."""
        rungs = max(1, round(math.log10(self.first / self.last) * self.per_decade))
        if self.first == self.last:
            return [self.first]
        return [self.first * (self.last / self.first) ** (k / rungs) for k in range(rungs + 1)]

    @property
    def copies(self) -> int:  # type: ignore[override]
        return int(2 + 2 * self.memory)

    def check(self, problem: Problem) -> None:
        net = problem.net
        whole = set(net.trained) == set(net.homogeneous)
        require(
            whole or problem.loss is None, f"the weakly regularised path needs a homogeneous network, not {net.name}"
        )

    def init(self, problem: Problem, W: Params) -> PathState:
        begun = super().init(problem, W)
        zero, whole = begun.t_cb, torch.zeros_like(begun.taken)
        far, none = zero + torch.inf, whole.to(torch.bool)
        theta = torch.zeros_like(_flat(problem, W))
        pairs = zero.new_zeros(len(zero), self.memory, theta.shape[1])
        path = zero.new_full((len(zero), len(self.lambdas)), torch.nan)
        return PathState(
            **vars(begun),
            rung=whole,
            value=far,
            bottom=zero,
            mark=far,
            grad=theta,
            way=theta,
            slope=zero,
            a=zero,
            lo=zero,
            hi=far,
            tries=whole,
            plain=none,
            fresh=~none,
            kicked=whole,
            best=theta,
            best_value=far,
            best_bottom=zero,
            accepted=whole,
            spent=whole,
            S=pairs,
            Y=pairs,
            path_norm=path,
            path_margin=path,
            path_loss=path,
        )

    def objective(self, problem: Problem, W: Params, log_lam: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """ln of the objective (B,), its gradient (B, P), and p (B, n)."""
        p, saved = problem.look(W)
        theta = _flat(problem, W)
        norm2 = (theta**2).sum(1)
        shift = math.log(problem.n) if self.reduction == "sum" else 0.0
        log_penalty = log_lam + self.power / 2 * norm2.log()
        if problem.loss is None:
            log_risk = (p**2).mean(1).log()
            value = torch.logaddexp(log_risk + shift, log_penalty)
            weights = 2 / problem.n * p * (shift - value).exp()[:, None]
        else:
            log_risk = losses.log_sum(problem.loss, p) - math.log(problem.n)
            value = torch.logaddexp(log_risk + shift, log_penalty)
            share = (log_risk + shift - value).exp()
            weights = share[:, None] * losses.weights(problem.loss, p, "soft_margin")
        pulled = problem.pull(W, weights, saved)
        gain = torch.cat([pulled[name].flatten(1) for name in problem.net.trained], 1)  # (B, P)
        grad = (self.power * (log_penalty - value).exp() / norm2)[:, None] * theta - gain
        return value, grad, p

    def step(self, problem: Problem, W: Params, state: PathState) -> tuple[Params, PathState]:
        theta = _flat(problem, W)
        log_lam = self._log_lambda(state.rung, theta.dtype)
        point = theta + state.a[:, None] * state.way
        there = _unflat(problem, W, point)
        value, grad, p = self.objective(problem, there, log_lam)

        # The search along the way: too far if the value did not fall enough, too near if it still falls steeply.
        fresh = state.fresh
        low_enough = value <= state.value + ARMIJO * state.a * state.slope
        flat_enough = (grad * state.way).sum(1) >= WOLFE * state.slope
        accept = fresh | (low_enough & flat_enough)
        hi = torch.where(low_enough, state.hi, state.a)
        lo = torch.where(low_enough, state.a, state.lo)
        a = torch.where(hi.isfinite(), (lo + hi) / 2, 2 * lo)
        tries = state.tries + 1
        failed = ~accept & (tries >= 40)

        # A new pair, and the next direction
        S, Y = _remember(state, point - theta, grad - state.grad, accept & ~fresh)
        again = failed  # from here on without a past
        S = torch.where((again | fresh)[:, None, None], 0, S)
        Y = torch.where((again | fresh)[:, None, None], 0, Y)
        grad_now = choose(accept, grad, state.grad)
        value_now = torch.where(accept, value, state.value)
        way = _two_loop(grad_now, S, Y)
        slope = (way * grad_now).sum(1)
        turn = accept | failed
        plain = (S.flatten(1) == 0).all(1)
        # The first step of a gradient direction moves Theta by 1 % of its size at most.
        size = theta.norm(dim=1) / way.norm(dim=1).clamp_min(1e-300)
        begin = torch.where(plain, 0.01 * size, torch.ones_like(size))

        # Is this lambda done?
        accepted = state.accepted + accept.long()
        look = accept & ~fresh & (accepted % 20 == 0)
        still = grad_now.norm(dim=1) * theta.norm(dim=1) < STILL
        settled = (look & (state.mark - value_now < self.tol)) | (accept & ~fresh & still)
        spent = state.spent + 1
        stuck = failed & state.plain
        kick = stuck & (state.kicked < self.kicks)
        done = (settled | (stuck & ~kick) | (spent >= self.inner)) & ~fresh
        kick = kick & ~done
        at = choose(accept, point, theta)
        if problem.net.outputs > 1:
            p = losses.hard_class_margin(problem.net.forward(there, problem.X), problem.y.expand(p.shape))
        bottom = torch.where(accept, p.amin(1), state.bottom)

        # The best point for this lambda, where the next one starts; a kick leaves it.
        better = value_now <= state.best_value
        best = choose(better, at, state.best)
        best_value = torch.where(better, value_now, state.best_value)
        best_bottom = torch.where(better, bottom, state.best_bottom)
        at = choose(done, best, at)
        far = 1e-3 * theta.norm(dim=1) / grad_now.norm(dim=1).clamp_min(1e-300)
        at = choose(kick, theta - far[:, None] * grad_now, at)
        last = state.rung == len(self.lambdas) - 1
        zero = torch.zeros_like(a)
        after = replace(
            tick_log(state, zero, zero),  # no clock: it counts steps
            rung=torch.where(done & ~last, state.rung + 1, state.rung),
            value=value_now,
            mark=torch.where(done | kick, torch.inf, torch.where(look, value_now, state.mark)),
            grad=grad_now,
            way=torch.where((done | kick)[:, None], 0, choose(turn, way, state.way)),
            slope=torch.where(done | kick, 0, torch.where(turn, slope, state.slope)),
            a=torch.where(done | kick, 0, torch.where(turn, begin, a)),
            lo=torch.where(turn | done, 0, lo),
            hi=torch.where(turn | done, torch.inf, hi),
            tries=torch.where(turn | done, 0, tries),
            plain=torch.where(turn, plain, state.plain),
            fresh=done | kick,
            kicked=torch.where(done, 0, state.kicked + kick.long()),
            best=best,
            best_value=torch.where(done, torch.inf, best_value),
            best_bottom=best_bottom,
            bottom=bottom,
            accepted=accepted,
            spent=torch.where(done, 0, spent),
            S=S,
            Y=Y,
            status=torch.where(done & last, FINISHED, RUNNING).to(torch.int8),
        )
        moved = _unflat(problem, W, at)
        norm = best.norm(dim=1)
        margin = norm * torch.nan if problem.loss is None else best_bottom / norm**problem.net.degree
        here = (torch.arange(len(self.lambdas), device=a.device) == state.rung[:, None]) & done[:, None]  # (B, R)
        after = replace(
            after,
            path_norm=torch.where(here, norm[:, None], state.path_norm),
            path_margin=torch.where(here, margin[:, None], state.path_margin),
            path_loss=torch.where(here, best_value[:, None], state.path_loss),
        )
        return guard(W, state, moved, after, torch.where(accept, value, zero))

    def _log_lambda(self, rung: Tensor, dtype: torch.dtype) -> Tensor:
        """ln lambda (B,), without a table that would have to be copied to the device."""
        return math.log(self.first) + math.log(self.last / self.first) / max(1, len(self.lambdas) - 1) * rung.to(dtype)


def _flat(problem: Problem, W: Params) -> Tensor:
    return torch.cat([W[name].flatten(1) for name in problem.net.trained], 1)  # (B, P)


def _unflat(problem: Problem, W: Params, theta: Tensor) -> Params:
    out, at = dict(W), 0
    for name in problem.net.trained:
        size = W[name][0].numel()
        out[name] = theta[:, at : at + size].view(W[name].shape)
        at += size
    return out


def _remember(state: PathState, s: Tensor, y: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """The pairs with (s, y) put last, in the trials where it is new and has positive curvature."""
    good = new & ((s * y).sum(1) > 1e-12 * s.norm(dim=1) * y.norm(dim=1))
    out = []
    for old, last in ((state.S, s), (state.Y, y)):
        shifted = torch.cat([old[:, 1:], last[:, None]], 1)
        out.append(torch.where(good[:, None, None], shifted, old))
    return out[0], out[1]


def _two_loop(grad: Tensor, S: Tensor, Y: Tensor) -> Tensor:
    """-H grad of L-BFGS; pairs of zeros are no pairs."""
    sy = (S * Y).sum(2)  # (B, K)
    rho = torch.where(sy > 0, 1 / sy.clamp_min(1e-300), 0)
    q, alphas = grad, []
    for k in range(S.shape[1] - 1, -1, -1):
        alpha = rho[:, k] * (S[:, k] * q).sum(1)
        alphas.append(alpha)
        q = q - alpha[:, None] * Y[:, k]
    yy = (Y[:, -1] ** 2).sum(1)
    q = q * torch.where(yy > 0, sy[:, -1] / yy.clamp_min(1e-300), torch.ones_like(yy))[:, None]
    for k, alpha in zip(range(S.shape[1]), reversed(alphas)):
        beta = rho[:, k] * (Y[:, k] * q).sum(1)
        q = q + (alpha - beta)[:, None] * S[:, k]
    return -q


def follow_path(
    problem: Problem, W: Params, rule: WeaklyRegularized | None = None, max_steps: int = 1_000_000
) -> tuple[Params, PathState]:
    """Runs the path to its end; the answer is in `path_norm`, `path_margin` and `path_loss` of the state."""
    rule = rule or WeaklyRegularized()
    state = rule.init(problem, W)
    for count in range(max_steps):
        W, state = rule.step(problem, W, state)
        if count % 50 == 49 and not bool((state.status == RUNNING).any()):
            return W, state
    raise InputError(
        f"the weakly regularised path did not end within {max_steps} steps; give it more or a larger last lambda"
    )
