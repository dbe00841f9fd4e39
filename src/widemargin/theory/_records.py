"""What the checks along runs share: sums and integrals over records, and what finite steps may cost.

Statements about gradient flow are checked on runs that take steps and are recorded now and then. A function f of the parameters
changes along a step by its derivative along the flow and a rest. The rest is what gradient descent may owe to the size of its
step; it is measured at the records, with the step that would be taken there, and the largest of the nearest records is counted
for every step between them, four times over: a step that was not recorded may have crossed a kink, or have cost what happens to
cancel at the records. The flow's own solver puts W within rtol |W| of the flow at each step, which moves f by at most |grad f|
times that. Nothing else is allowed for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ._rooms import losses, torch
from .inequality import eps
from .track import Track

if TYPE_CHECKING:
    from torch import Tensor

Params = dict[str, "Tensor"]

FEW = 4  # intervals between records
UNSEEN = 4.0  # what a step between two records may have cost, relative to those at the records


def steps(values: np.ndarray) -> np.ndarray:
    """Change since the record before (T, ...), 0 at the first."""
    return np.concatenate([np.zeros_like(values[:1]), np.diff(values, axis=0)])


def trapezoid(dt: np.ndarray, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Integral of f over the time dt (T, ...) since the record before, and how far off it may be.

    Where f is monotone between two records the integral lies within dt |change of f| / 2 of the trapezoid. The changes over
    the intervals before and after are added, for an f that turns in between.
    """
    change = np.abs(steps(f))  # 0 at the first
    after = np.concatenate([change[1:], np.zeros_like(change[:1])])
    return dt * (f + before(f)) / 2, dt * (change + before(change) + after) / 2


def before(values: np.ndarray) -> np.ndarray:
    """The record before (T, ...); the first stays."""
    return np.concatenate([values[:1], values[:-1]])


# ---------------------------------------------------------------- finite steps


def flows_freely(track: Track) -> bool:
    """Whether the run is a gradient flow of the risk alone, or gradient descent at one rate without weight decay."""
    plain = not track.options.get("weight_decay") and track.options.get("schedule") is None
    return track.is_flow and plain and track.problem.loss is not None and track.get("step") is not None


def free_flow(track: Track) -> Track | None:
    """A run that `flows_freely` and has two records at least; None for others."""
    return track if flows_freely(track) and len(track.t) > 1 else None


def honest(track: Track) -> np.ndarray:
    """Where the solver says that it still follows the flow (T, B)."""
    kept = track.get("honest")
    return np.ones(track.shape, bool) if kept is None else kept.astype(bool)


def taken(track: Track) -> np.ndarray:
    """Steps between records (T - 1, B)."""
    return np.diff(track.run["step"], axis=0).clip(0)


def rounded(track: Track, size: np.ndarray) -> np.ndarray:
    """What the steps so far may have rounded off numbers of the given size (T, B, ...) that they should keep."""
    return 500 * eps(track) * (1 + summed(taken(track)))[..., None] * size


def descent(track: Track, W: Params) -> Params:
    """dW/dt in the clock of the mean risk."""
    p, saved = track.problem.look(W)
    assert track.problem.loss is not None
    return track.problem.pull(W, losses.weights(track.problem.loss, p, "mean"), saved)


def cost(track: Track, f: Callable[[Params], Tensor], slope: Callable[[Params], Tensor] | None = None) -> np.ndarray:
    """How far f, (B,) or (B, k), may be off since the start because of finite steps: (T, B) or (T, B, k), nondecreasing in T.

    `slope` is |grad f| where f has several components. The parameters must have been recorded.
    """
    assert track.W is not None
    each = np.stack([_of_a_step(track, W, f, slope) for W in track.W])
    if track.rule == "GD" and not track.every_step:
        each = UNSEEN * each
    steps = taken(track).reshape(*taken(track).shape, *[1] * (each.ndim - 2))
    return summed(steps * _nearby(np.maximum(each[:-1], each[1:])))


def _of_a_step(track: Track, W: Params, f: Callable[[Params], Tensor], slope: Any) -> np.ndarray:
    names = track.net.trained
    free = {name: W[name].clone().requires_grad_(True) for name in names}
    if track.rule == "GD":
        with torch.no_grad():
            g, lr = descent(track, W), float(track.options["lr"])
            then = f(W | {name: W[name] + lr * g[name] for name in names})
        here = f(W | free)
        # The derivative along g is that of the pull-back v -> J'v, paired with g, by v
        v = torch.zeros_like(here, requires_grad=True)
        back = torch.autograd.grad(here, list(free.values()), v, create_graph=True, allow_unused=True)
        paired = sum((part * g[name]).sum() for name, part in zip(names, back) if part is not None)
        change = torch.autograd.grad(paired, v)[0]  # type: ignore[arg-type]
        return (then - here - lr * change).abs().detach().numpy()
    size = sum((W[name] ** 2).flatten(1).sum(1) for name in names).sqrt()  # type: ignore[union-attr]
    rtol = float(track.options["rtol"])
    if slope is not None:
        steep = slope(W)
        return (rtol * size.reshape(-1, *[1] * (steep.ndim - 1)) * steep).numpy()
    grads = torch.autograd.grad(f(W | free).sum(), list(free.values()), allow_unused=True)
    steep = sum((grad.flatten(1) ** 2).sum(1) for grad in grads if grad is not None).sqrt()  # type: ignore[union-attr]
    return (rtol * size * steep).numpy()


def summed(parts: np.ndarray) -> np.ndarray:
    """Sums of the first k parts, k = 0, 1, ...: one row more than the parts."""
    return np.concatenate([np.zeros((1, *parts.shape[1:])), np.cumsum(parts, axis=0)])


def integral(s: np.ndarray, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Integral of f (T, B, ...) over the clock s (T, B) from the first record, by trapezoids, and how far off it may be.

    An integrand that is monotone between two records is known to half the difference of the two times the interval; for the
    others the differences of the neighbouring intervals are considered too. Fewer than FEW intervals do not show how the
    integrand turns: then it is known up to its own size.
    """
    ds = np.diff(s, axis=0).reshape(len(s) - 1, s.shape[1], *[1] * (f.ndim - 2))
    jump = _nearby(np.abs(np.diff(f, axis=0)))
    if len(ds) < FEW:
        jump = 2 * np.maximum(np.abs(f[1:]), np.abs(f[:-1]))
    return summed(ds * (f[:-1] + f[1:]) / 2), summed(ds * jump / 2)


def _nearby(values: np.ndarray) -> np.ndarray:
    """The largest of each interval and its two neighbours: something may have happened between the records."""
    top = values.copy()
    top[1:] = np.maximum(top[1:], values[:-1])
    top[:-1] = np.maximum(top[:-1], values[1:])
    return top


def stretch(applies: np.ndarray, joined: np.ndarray | bool = True) -> np.ndarray:
    """For each record (T, B) the first of the records up to it at all of which `applies`; the next one where it does not.

    What is proved from a time on as long as a hypothesis holds can be used between two records of one stretch, no others.
    `joined`: where the hypothesis holds also between the record and the one before.
    """
    k = np.arange(len(applies))[:, None]
    return np.maximum.accumulate(np.where(applies, np.where(joined, 0, k), k + 1), axis=0)


def ever(flags: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Whether `flags` at a record of the stretch (`stretch`) up to each (T, B)."""
    return np.maximum.accumulate(np.where(flags, np.arange(len(flags))[:, None], -1), axis=0) >= first


def since(sums: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Sums from the first record as sums from the first of each stretch (T, B)."""
    return sums - np.take_along_axis(sums, np.minimum(first, len(sums) - 1), 0)


def never_falls(
    f: np.ndarray, owed: np.ndarray, applies: np.ndarray, joined: np.ndarray | bool = True, unit: float = 0.0
) -> dict[str, np.ndarray]:
    """f (T, B) at each record against its largest value at earlier ones of the same stretch, as what `part` takes.

    `owed` is what finite steps cost f, from `cost`. `unit`: what counts as a change of f even where f is near 0; 1 for
    logarithms and what enters the loss.
    """
    applies = applies & np.isfinite(f)
    first = stretch(applies, joined)
    left, spent = np.full_like(f, -np.inf), np.zeros_like(f)
    top, cheap = f[0], owed[0]
    for k in range(1, len(f)):
        goes_on = first[k] < k
        left[k], spent[k] = np.where(goes_on, top, -np.inf), owed[k] - cheap
        higher = ~goes_on | (f[k] >= top)
        top, cheap = np.where(higher, f[k], top), np.where(higher, owed[k], cheap)
    scale = np.maximum(unit, np.maximum(np.abs(left), np.abs(f)))
    return {"left": left, "right": f, "applies": applies, "allowance": spent, "scale": scale}


def costs(track: Track) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What finite steps may cost psi/|w|^L, psi and ln |w| (T, B), computed once; an estimate without parameters."""
    return track.once("costs", _costs_from_records if track.W is None else _costs)


def _costs(track: Track) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    loss, net = track.problem.loss, track.net
    assert loss is not None

    def psi(W: Params) -> Tensor:
        return losses.psi(loss, track.problem.margins(W))

    normalised = cost(track, lambda W: psi(W) * net.norm2(W) ** (-net.degree / 2))
    return normalised, cost(track, psi), cost(track, lambda W: 0.5 * net.norm2(W).log())


def joined_fitted(track: Track) -> np.ndarray:
    """Where psi > 0 at a record, at the one before, and between them (T, B): psi cannot have lost more than its steps cost.

    Along a flow psi never falls; steps of descent can undo a fit, also between records.
    """
    assert track.psi is not None
    both = np.concatenate([track.fitted[:1], track.fitted[1:] & track.fitted[:-1]])
    if track.every_step or track.rule == "GradientFlow":
        return both
    lost = np.diff(costs(track)[1], axis=0, prepend=0.0)
    return both & (np.minimum(before(track.psi), track.psi) > lost)


def _costs_from_records(track: Track) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Costs of psi/|w|^L, psi and ln |w| without parameters.

    Descent adds lr^2 |grad|^2 to |w|^2 at each step, in sum lr times the fall of the risk, and changes psi by half of lr times
    the variation of its rate beyond first order. For the flow, grad risk = (|l'(psi)|/n) grad psi gives |grad psi| from the rate
    of psi, n psi' / |l'(psi)| = |grad psi|^2.
    """
    psi, norm, L = track.psi, np.exp(track.run["log_norm"]), track.net.degree
    assert psi is not None
    normalised = psi * norm ** (-float(L))
    dt = np.diff(track.t_mean, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.where(dt > 0, np.diff(psi, axis=0) / np.where(dt > 0, dt, 1.0), 0.0)
    if track.rule == "GD":
        lr = float(track.options["lr"])
        turn = np.abs(np.diff(rate, axis=0, prepend=rate[:1]))
        turn = np.maximum(turn, np.abs(np.diff(rate, axis=0, append=rate[-1:])))
        of_psi = lr * turn
        fall = np.abs(np.diff(np.exp(track.log_risk), axis=0))
        of_norm = lr * fall / (2 * norm[:-1] ** 2)
    else:
        rtol = float(track.options["rtol"])
        Q = np.exp(of_loss(track, "log_slope", psi))[1:]
        steep = np.sqrt(track.n * np.abs(rate) / np.where(Q > 0, Q, np.inf))
        steep = np.maximum(steep, L * np.abs(psi[1:]) / norm[1:])
        of_psi = taken(track) * rtol * norm[1:] * steep
        of_norm = taken(track) * rtol
    scale = norm[:-1] ** L
    with np.errstate(over="ignore", invalid="ignore"):
        both = of_psi / scale + L * np.abs(normalised[1:]) * of_norm
    return summed(both), summed(of_psi), summed(of_norm)


def of_loss(track: Track, name: str, p: np.ndarray) -> np.ndarray:
    """`log`, `log_slope` or `inverse` of the loss."""
    return getattr(track.problem.loss, name)(torch.as_tensor(p)).numpy()


def ratio(track: Track, psi: np.ndarray) -> np.ndarray:
    """|l'(psi)| / l(psi): turns the clock of CB into that of |l'(psi)| / n; 1 for the exponential loss, and grows with psi."""
    return np.exp(of_loss(track, "log_slope", psi) - of_loss(track, "log", psi))


def slopes(track: Track) -> np.ndarray:
    """|l'(p_i)| / sum_k l(p_k) (T, B, n): dW/dt = sum_i of these times dp_i in CB's clock.

    Their shares are those that were recorded, if they were: at a large |W| the margins are not known well enough to tell them.
    """
    assert track.problem.loss is not None and track.p is not None
    w = losses.weights(track.problem.loss, torch.as_tensor(track.p), "soft_margin").numpy()
    q = track.get("q")
    return w if q is None else q * w.sum(2, keepdims=True)


def duals_known(track: Track) -> np.ndarray:
    """Where `slopes` are those of the flow, up to each record (T, B): an error of rtol |W| in W is one of about L rtol p in p."""
    yes = honest(track)
    if track.rule != "GradientFlow" or track.get("q") is not None:
        return yes
    assert track.p is not None
    loose = track.net.degree * float(track.options["rtol"]) * np.abs(track.p).max(2) > 0.05
    return yes & ~np.logical_or.accumulate(loose, axis=0)
