"""What the rules share: clocks, the guard against overflow, slopes and moves."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from widemargin.types import InputError, show

from .. import _kernels, losses
from ..contract import DIVERGED, RUNNING, Rule, S, each
from ..fields import is_beyond, take_plain_numbers
from ..nets import Frozen, Net, Params
from ..problem import Problem


def tick(state: S, dt_mean: Tensor | float, log_risk: Tensor) -> S:
    """The state after a step of length dt_mean in the clock of the mean risk."""
    log_dt = dt_mean.log() if isinstance(dt_mean, Tensor) else torch.full_like(log_risk, math.log(dt_mean))
    return tick_log(state, log_dt, log_risk)


def tick_log(state: S, log_dt_mean: Tensor, log_risk: Tensor, dt_cb: Tensor | None = None) -> S:
    """`dt_cb` where a step is known in CB's clock: as a sum of logarithms it would round by the size of ln risk."""
    return replace(
        state,
        step=state.step + 1,
        t_cb=state.t_cb + ((log_dt_mean + log_risk).exp() if dt_cb is None else dt_cb),
        log_t_mean=torch.logaddexp(state.log_t_mean, log_dt_mean),
        taken=state.taken + 1,
    )


def guard(W: Params, state: S, moved: Params, after: S, log_risk: Tensor | None = None) -> tuple[Params, S]:
    """`moved` and `after` where the trial runs and stayed finite; elsewhere W and state, with status 1 if it diverged.

    The check of parameters is that their sum is finite, one pass; `log_risk` (B,) must not be NaN or +inf either (-inf is a
    perfect fit of the squared loss). Numbers that are not tensors (the step count) are taken from `after`.
    """
    status = state.status
    if not status.is_cuda and _all_well(W, status, moved, log_risk):
        return moved, after
    sums = [new.flatten(1).sum(1) for name, new in moved.items() if new is not W[name]]
    sound = torch.isfinite(sum(sums[1:], sums[0])) if sums else torch.ones_like(status, dtype=torch.bool)  # (B,)
    if log_risk is not None:
        sound = sound & (log_risk < torch.inf)
    running = status == RUNNING
    keep = running & sound

    def kept(new: Tensor, old: Tensor | None) -> Tensor:
        return new if old is None or new is old else choose(keep, new, old)

    ended = torch.where(keep, after.status, status)  # a rule may say that a trial is finished
    told = torch.where(running & ~sound, DIVERGED, ended).to(torch.int8)
    return each(kept, moved, W), replace(each(kept, after, state), status=told)


def _all_well(W: Params, status: Tensor, moved: Params, log_risk: Tensor | None) -> bool:
    """Whether all trials run and stayed finite: on a CPU asking costs less than the masks, which would change nothing."""
    if status.any() or (log_risk is not None and not log_risk.max() < torch.inf):
        return False
    return all(math.isfinite(new.sum()) for name, new in moved.items() if new is not W[name])


def choose(keep: Tensor, new: Tensor, old: Tensor) -> Tensor:
    if new.shape != old.shape:  # particles were added; see PerturbedWassersteinFlow
        old = torch.cat([old, new[:, old.shape[1] :] * 0], 1)
    return torch.where(keep.view(-1, *[1] * (new.ndim - 1)), new, old)


def slopes(problem: Problem, p: Tensor, kind: str = "mean") -> tuple[Tensor, Tensor]:
    """Weights on the points (B, n) whose pull-back is the descent direction, and ln of the mean risk (B,).

    The squared loss has risk mean (y - f)^2 and, as everywhere, the gradient of half of it.
    """
    if problem.loss is None:
        return p / p.shape[1], (p**2).mean(1).log()
    fused = _kernels.dual(p, problem.loss.name == "logistic", kind)
    weights, log_sum = fused or (losses.weights(problem.loss, p, kind), losses.log_sum(problem.loss, p))
    return weights, log_sum - math.log(p.shape[1])


def move(W: Params, grads: Params, lr: float | Tensor, decay: float = 0.0) -> Params:
    """W + lr (grads - decay W), lr a number or (B,)."""
    out = dict(W)
    for name, grad in grads.items():
        step = grad - decay * W[name] if decay else grad
        if isinstance(lr, Tensor):
            out[name] = W[name] + lr.view(-1, *[1] * (grad.ndim - 1)) * step
        else:
            out[name] = torch.add(W[name], step, alpha=lr)
    return out


def mean_field(net: Net) -> bool:
    """Whether the net has the 1/m in front."""
    return bool(getattr(net, "mean_field", isinstance(net, Frozen)))


def ascent_scale(net: Net) -> float:
    """What turns grad S of the net at hand into CB's step (CLAIMS 0.6).

    CB moves w by m grad S in (1/m) sum_j phi(w_j). Without the 1/m the same functions come from W = w / m^{1/L}, L the degree,
    and the same step moves W by m^{1 - 2/L} grad S: by grad S itself if L = 2, and by 1/m of it for an output layer.
    """
    return float(net.m) if mean_field(net) else float(net.m) ** (1 - 2 / net.degree)


def mass(net: Net, W: Params, name: str) -> Tensor:
    """CB's a_j (B, m): r_j^2 / m, or r_j / m for an output layer, in nets with and without the 1/m."""
    return W[name] ** net.degree / (net.m if mean_field(net) else 1)


def require(ok: bool, sentence: str) -> None:
    if not ok:
        raise InputError(sentence)


def check_numbers(rule: Rule, *, above: tuple[str, ...] = (), least: dict[str, float] | None = None) -> None:
    """Fields that must be finite and > 0, or finite and at least some value."""
    kind = type(rule).__name__
    take_plain_numbers(rule)
    bounds = [(name, 0.0, True) for name in above] + [(name, low, False) for name, low in (least or {}).items()]
    for name, low, strict in bounds:
        value = getattr(rule, name)
        good = isinstance(value, int | float) and not isinstance(value, bool) and not is_beyond(value)
        good = good and math.isfinite(value)
        if not good or value < low or (strict and value == low):
            raise InputError(
                f"{kind}: {name} must be a number {'above' if strict else 'of at least'} {low:g}, not {show(value)}"
            )
