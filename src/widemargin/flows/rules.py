"""Training rules: what one step does to a batch of trials.

A rule is a small frozen dataclass. `start(problem, W)` makes its state (a dictionary of tensors and numbers, all of it saved in
checkpoints), `step(problem, W, state)` returns new parameters and state. The loop in `train` knows nothing else. Every state has

    step         number of steps taken
    t_cb         (B,) CB's clock, dW/dt = sum_i |l'_i| / sum l  dp_i        (rules without a meaningful clock count steps)
    log_t_mean   (B,) ln of the clock of the mean risk; dt_cb = mean risk dt_mean
    status       (B,) int8: 0 running, 1 diverged, 2 finished
    taken        (B,) int64 steps taken by each trial; it stops where the trial stopped
    trial        (B,) int64 numbers of the trials. Random streams depend on (seed, trial, taken) alone, so a batch is a loop

and a rule adds what it needs; every tensor of a state has a leading dimension B. In a net with the 1/m of the mean field, dp_i
has the 1/m too, and CB's own time, dW/dt = m grad S, is t_cb / m.

A trial whose status is not 0 does not move, and one whose next parameters or loss are not finite is left at its last good step
with status 1 (`guard`). Nothing here waits for the device: masks stay on it, and rates come from `taken`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from widemargin.types import InputError

from . import _kernels, losses
from .nets import Frozen, Net, Params
from .problem import Problem
from .streams import FOR_BIRTHS, FOR_EXAMPLES, FOR_ORDER, FOR_PLACES, ParityStream, Sampler, sphere_points, uniforms

State = dict[str, Any]

RUNNING, DIVERGED, FINISHED = 0, 1, 2


@dataclass(frozen=True)
class Rule:
    @property
    def graph(self) -> bool:
        """Whether a step can be recorded and replayed: it asks the host nothing and no Python number in it changes."""
        return True

    def check(self, problem: Problem) -> None:
        """An InputError if the rule makes no sense for this problem."""

    def start(self, problem: Problem, W: Params) -> State:
        self.check(problem)
        first = next(iter(W.values()))
        zero = first.new_zeros(len(first))
        return {
            "step": 0,
            "t_cb": zero,
            "log_t_mean": zero - torch.inf,
            "status": zero.to(torch.int8),
            "taken": zero.to(torch.int64),
            "trial": torch.arange(len(first), device=first.device),
        }

    def step(self, problem: Problem, W: Params, state: State) -> tuple[Params, State]:
        raise NotImplementedError


# What the rules share


def tick(state: State, dt_mean: Tensor | float, log_risk: Tensor) -> State:
    """The state after a step of length dt_mean in the clock of the mean risk."""
    log_dt = dt_mean.log() if isinstance(dt_mean, Tensor) else torch.full_like(log_risk, math.log(dt_mean))
    return tick_log(state, log_dt, log_risk)


def tick_log(state: State, log_dt_mean: Tensor, log_risk: Tensor, dt_cb: Tensor | None = None) -> State:
    """`dt_cb` where a step is known in CB's clock: as a sum of logarithms it would round by the size of ln risk."""
    t_cb = state["t_cb"] + ((log_dt_mean + log_risk).exp() if dt_cb is None else dt_cb)
    after = {
        "step": state["step"] + 1,
        "t_cb": t_cb,
        "log_t_mean": torch.logaddexp(state["log_t_mean"], log_dt_mean),
    }
    if "taken" in state:
        after["taken"] = state["taken"] + 1
    return state | after


def guard(W: Params, state: State, moved: Params, after: State, log_risk: Tensor | None = None) -> tuple[Params, State]:
    """`moved` and `after` where the trial runs and stayed finite; elsewhere W and state, with status 1 if it diverged.

    The check of parameters is that their sum is finite, one pass; `log_risk` (B,) must not be NaN or +inf either (-inf is a
    perfect fit of the squared loss). Numbers that are not tensors (the step count) are taken from `after`.
    """
    status = state["status"]
    if not status.is_cuda and _all_well(W, status, moved, log_risk):
        return moved, after
    sums = [new.flatten(1).sum(1) for name, new in moved.items() if new is not W[name]]
    sound = torch.isfinite(sum(sums[1:], sums[0])) if sums else torch.ones_like(status, dtype=torch.bool)  # (B,)
    if log_risk is not None:
        sound = sound & (log_risk < torch.inf)
    running = status == RUNNING
    keep = running & sound
    out = {name: new if new is W[name] else _choose(keep, new, W[name]) for name, new in moved.items()}
    kept = {
        name: _choose(keep, new, state[name])
        if isinstance(new, Tensor) and name in state and new is not state[name]
        else new
        for name, new in after.items()
    }
    ended = torch.where(keep, after["status"], status)  # a rule may say that a trial is finished
    return out, kept | {"status": torch.where(running & ~sound, DIVERGED, ended).to(torch.int8)}


def _all_well(W: Params, status: Tensor, moved: Params, log_risk: Tensor | None) -> bool:
    """Whether all trials run and stayed finite: on a CPU asking costs less than the masks, which would change nothing."""
    if status.any() or (log_risk is not None and not log_risk.max() < torch.inf):
        return False
    return all(math.isfinite(new.sum()) for name, new in moved.items() if new is not W[name])


def _choose(keep: Tensor, new: Tensor, old: Tensor) -> Tensor:
    if new.shape != old.shape:  # particles were added; see PerturbedWGF
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


def _mass(net: Net, W: Params, name: str) -> Tensor:
    """CB's a_j (B, m): r_j^2 / m, or r_j / m for an output layer, in nets with and without the 1/m."""
    return W[name] ** net.degree / (net.m if mean_field(net) else 1)


def _require(ok: bool, sentence: str) -> None:
    if not ok:
        raise InputError(sentence)


def _numbers(rule: Rule, *, above: tuple[str, ...] = (), least: dict[str, float] | None = None) -> None:
    """Fields that must be finite and > 0, or finite and at least some value."""
    kind = type(rule).__name__
    bounds = [(name, 0.0, True) for name in above] + [(name, low, False) for name, low in (least or {}).items()]
    for name, low, strict in bounds:
        value = getattr(rule, name)
        good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not good or value < low or (strict and value == low):
            raise InputError(
                f"{kind}: {name} must be a number {'above' if strict else 'of at least'} {low:g}, not {value!r}"
            )


# Examples of a step


FARTHEST = 1e300  # margins up to here can be summed over trials and points without overflow
ORDERS = ("replacement", "epochs", "stream")


def _examples(
    problem: Problem, state: State, batch: int, order: str, seed: int, sampler: Sampler | None, use: int = FOR_EXAMPLES
) -> tuple[Problem, State]:
    """The problem on this step's examples, (B, k) of them, and the state with the order of the epoch if there is one."""
    n, trial, taken = problem.n, state["trial"], state["taken"]
    if sampler is not None:
        X, y = sampler(trial, taken, batch)
        return replace(problem, X=X.to(problem.X), y=y.to(problem.y)), state
    if order == "replacement":
        index = (uniforms(seed, use, trial, taken, batch) * n).long().clamp_max(n - 1)  # (B, k)
    elif order == "stream":
        index = (taken[:, None] * batch + torch.arange(batch, device=trial.device)) % n
    else:
        # The order of an epoch is drawn anew from the number of the epoch, so nothing depends on when the run was resumed.
        per = -(-n // batch)
        if state["step"] % per == 0 or "order" not in state:
            keys = uniforms(seed, FOR_ORDER, trial, torch.full_like(trial, state["step"] // per), n)
            state = state | {"order": keys.argsort(1)}
        begin = state["step"] % per * batch
        index = state["order"][:, begin : begin + batch]
    X = (
        problem.X[0][index]
        if len(problem.X) == 1
        else problem.X.gather(1, index[:, :, None].expand(-1, -1, problem.X.shape[2]))
    )
    y = problem.y[0][index] if len(problem.y) == 1 else problem.y.gather(1, index)
    return replace(problem, X=X, y=y), state


# Descent on the mean risk


def weight_decay_schedule(epoch: int, dataset: str = "cifar10") -> float:
    """The annealed weight decay of MT's Table 1 (MT-34, with the text's 2e-4 for CIFAR-10, E-MT-12)."""
    if dataset == "cifar10":
        return 2e-4 * (0.2 if epoch >= 60 else 1.0) * 0.5 ** sum(epoch >= mark for mark in (90, 120, 140, 160))
    if dataset == "cifar100":
        return 5e-4 * 0.2 ** sum(epoch >= mark for mark in (60, 120, 160))
    raise InputError(f"no weight decay schedule is known for {dataset!r}; choose cifar10 or cifar100")


def learning_rate_schedule(epoch: int, lr: float = 0.1) -> float:
    """MT-34: lr times 0.2 at epochs 60, 120 and 160."""
    return lr * 0.2 ** sum(epoch >= mark for mark in (60, 120, 160))


@dataclass(frozen=True)
class GD(Rule):
    """W <- W - lr (d(mean risk)/dW + weight_decay W) (BN-4, LR-4 with small steps).

    `schedule`: "cifar10" or "cifar100" anneals weight decay and lr as in MT-34, `epoch` steps being one epoch; the decay that
    the schedule gives replaces `weight_decay`.
    """

    lr: float = 0.1
    weight_decay: float = 0.0
    schedule: str | None = None
    epoch: int = 1

    def __post_init__(self) -> None:
        _numbers(self, above=("lr",), least={"weight_decay": 0, "epoch": 1})
        if self.schedule is not None:
            weight_decay_schedule(0, self.schedule)

    @property
    def graph(self) -> bool:
        return self.schedule is None

    def rates(self, step: int) -> tuple[float, float]:
        """lr and weight decay at a step."""
        if self.schedule is None:
            return self.lr, self.weight_decay
        epoch = step // self.epoch
        return learning_rate_schedule(epoch, self.lr), weight_decay_schedule(epoch, self.schedule)

    def step(self, problem: Problem, W: Params, state: State) -> tuple[Params, State]:
        lr, decay = self.rates(state["step"])
        p, saved = problem.look(W)  # (B, n)
        weights, log_risk = slopes(problem, p)
        moved = move(W, problem.pull(W, weights, saved), lr, decay)
        return guard(W, state, moved, tick(state, lr, log_risk), log_risk)


@dataclass(frozen=True)
class SGD(GD):
    """GD on a few examples a step (LR-3: one fresh example).

    `order`: "replacement" draws them uniformly, "epochs" goes through a new random order of the data in each epoch, "stream"
    takes them as they lie in the data (one pass is LR's SGD on n samples). With a `sampler(trial (B,), step (B,), count) ->
    (X (B, count, d), y (B, count))` every example is fresh from a law. `slopes` in the state is sum_s |l'_s| of LR-13.
    """

    batch: int = 1
    order: str = "replacement"
    seed: int = 0
    sampler: Sampler | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _numbers(self, least={"batch": 1})
        _require(self.order in ORDERS, f"SGD: order {self.order!r} is not one of {', '.join(ORDERS)}")

    @property
    def graph(self) -> bool:
        on_device = self.order != "epochs" if self.sampler is None else isinstance(self.sampler, ParityStream)
        return super().graph and on_device

    def check(self, problem: Problem) -> None:
        if self.sampler is None and self.order == "epochs":
            _require(
                self.batch <= problem.n, f"SGD: a batch of {self.batch} examples is more than the {problem.n} points"
            )

    def start(self, problem: Problem, W: Params) -> State:
        state = super().start(problem, W)
        return state | {"slopes": torch.zeros_like(state["t_cb"])}

    def step(self, problem: Problem, W: Params, state: State) -> tuple[Params, State]:
        lr, decay = self.rates(state["step"])
        sample, state = _examples(problem, state, self.batch, self.order, self.seed, self.sampler)
        p, saved = sample.look(W)  # (B, k)
        weights, log_risk = slopes(sample, p)
        moved = move(W, sample.pull(W, weights, saved), lr, decay)
        after = tick(state, lr, log_risk) | {"slopes": state["slopes"] + weights.abs().sum(1)}
        return guard(W, state, moved, after, log_risk)


@dataclass(frozen=True)
class NormalizedGD(Rule):
    """W <- W + h grad S, that is GD with the step h / risk, h chosen so that the loss decreases (after Lyu and Li).

    Each trial has its own h, in CB's clock, starting at `lr`. A step that lowers ln risk by at least `decrease` times the
    first-order gain h |grad S|^2 is taken and h grows; otherwise the trial stays and h shrinks, so a call may move only some of
    the trials. `rejected` counts the others.
    """

    lr: float = 0.5
    grow: float = 2**0.2
    shrink: float = 0.5
    decrease: float = 0.1

    def __post_init__(self) -> None:
        _numbers(self, above=("lr", "shrink"), least={"grow": 1, "decrease": 0})
        _require(self.shrink < 1 and self.decrease < 1, "NormalizedGD: shrink and decrease must be below 1")

    def check(self, problem: Problem) -> None:
        _require(
            problem.loss is not None, "normalised GD follows the smooth margin, which the squared loss does not have"
        )

    def start(self, problem: Problem, W: Params) -> State:
        state = super().start(problem, W)
        zero = state["t_cb"]
        return state | {"h": zero + self.lr * ascent_scale(problem.net), "rejected": torch.zeros_like(state["taken"])}

    def step(self, problem: Problem, W: Params, state: State) -> tuple[Params, State]:
        p, saved = problem.look(W)
        weights, log_risk = slopes(problem, p, "cb")
        grads = problem.pull(W, weights, saved)
        h = state["h"]  # (B,)
        moved = move(W, grads, h)
        _, new_risk = slopes(problem, problem.margins(moved))
        gain = h * sum((grad.flatten(1) ** 2).sum(1) for grad in grads.values())
        noise = 8 * torch.finfo(h.dtype).eps * (1 + log_risk.abs())  # what rounding does to ln risk
        # A step to margins beyond floating point is none: the trial stays where it can still be measured.
        good = (log_risk - new_risk >= self.decrease * gain - noise) & (new_risk > -FARTHEST)
        after = tick_log(state, h.log() - log_risk, log_risk, h)
        after |= {name: torch.where(good, after[name], state[name]) for name in ("t_cb", "log_t_mean", "taken")}
        after["h"] = torch.where(good, h * self.grow, h * self.shrink)
        after["rejected"] = state["rejected"] + (~good)
        moved = {name: new if new is W[name] else _choose(good, new, W[name]) for name, new in moved.items()}
        return guard(W, state, moved, after, log_risk)


# CB's ascents of the smooth margin


@dataclass(frozen=True)
class CB(Rule):
    """CB's ascent, W <- W + (lr / sqrt(t + 1)) m grad S, t = 0, 1, ... (CB-6), in nets with or without the 1/m.

    `variant`: "paper" as above with the loss of the problem. "code" is what the authors ran: the exponential loss, steps
    lr / sqrt(t + 2) because their count starts at 1, and for the output layer alone a factor max(1, sqrt(mean_j b_j^2)).
    """

    lr: float = 0.5
    variant: str = "paper"

    def __post_init__(self) -> None:
        _numbers(self, above=("lr",))
        _require(self.variant in ("paper", "code"), f"CB: variant {self.variant!r} is not one of paper, code")

    def check(self, problem: Problem) -> None:
        _require(
            problem.loss is not None, "CB's ascent follows the smooth margin, which the squared loss does not have"
        )
        if self.variant == "code":
            _require(problem.loss == losses.EXP, "the authors' code of CB uses the exponential loss; give loss exp")

    def step(self, problem: Problem, W: Params, state: State) -> tuple[Params, State]:
        net = problem.net
        p, saved = problem.look(W)
        weights, log_risk = slopes(problem, p, "cb")
        late = 2 if self.variant == "code" else 1
        rate = self.lr * ascent_scale(net) / (state["taken"] + late).to(p.dtype).sqrt()  # (B,)
        if self.variant == "code" and net.degree == 1:
            # sqrt(mean b^2) = sqrt(m) |a| for a = b / m
            size = [_mass(net, W, name).flatten(1).norm(dim=1) for name in net.trained]
            rate = rate * (math.sqrt(net.m) * torch.stack(size).norm(dim=0)).clamp_min(1)
        moved = move(W, problem.pull(W, weights, saved), rate)
        return guard(W, state, moved, tick_log(state, rate.log() - log_risk, log_risk, rate), log_risk)


@dataclass(frozen=True)
class Proposition(Rule):
    """What the ascents of CB's Propositions 6 and 7 share: one trained parameter r, exponential loss, |z|_inf, best margin.

    State: `size` |z|_inf, `beta` the norm of a at the last step, `best` = max_{s < t} min_i z_i . abar(s), which the bound of
    the proposition concerns.
    """

    degree = 0
    needs = ""

    def check(self, problem: Problem) -> None:
        net = problem.net
        _require(problem.loss == losses.EXP, f"{type(self).__name__} is about the exponential loss; give loss exp")
        alone = len(net.trained) == 1 and net.trained[0] != "V" and net.outputs == 1 and net.degree == self.degree
        _require(alone, f"{type(self).__name__} trains {self.needs}, not a network of kind {net.name}")

    def start(self, problem: Problem, W: Params) -> State:
        state = super().start(problem, W)
        zero = state["t_cb"]
        return state | {"size": feature_size(problem, W), "beta": zero + 1, "best": zero - torch.inf}

    def bound(self, problem: Problem, state: State, gamma: float | Tensor) -> Tensor:
        """The right-hand side for `best` (B,), from the best margin gamma of the features."""
        raise NotImplementedError


def feature_size(problem: Problem, W: Params) -> Tensor:
    """max_ij |z_ij| (B,), z_ij the features of the trained parameter, read from the pull-back of single points at r = 1."""
    net = problem.net
    (name,) = net.trained
    ones = W | {name: torch.ones_like(W[name])}
    saved = problem.look(ones)[1]
    size = W[name].new_zeros(len(W[name]))
    for i in range(problem.n):
        one = W[name].new_zeros(len(W[name]), problem.n)
        one[:, i] = 1
        size = torch.maximum(size, problem.pull(ones, one, saved)[name].flatten(1).abs().amax(1))
    return size / (net.degree / (net.m if mean_field(net) else 1))


@dataclass(frozen=True)
class Prop6(Proposition):
    """Norms r_j on frozen directions: r <- r + eta m grad F, eta(t) = 1 / (16 |z|_inf sqrt(t + 1)) (CB-13).

    a_j = r_j^2 / m and beta = |a|_1; `growth` in the state is sum_{s < t} 1 / (beta(s) sqrt(s + 1)). `lr` multiplies eta; the
    proposition is about lr = 1.
    """

    lr: float = 1.0
    degree = 2
    needs = "the norms of neurons with frozen directions"

    def __post_init__(self) -> None:
        _numbers(self, above=("lr",))

    def start(self, problem: Problem, W: Params) -> State:
        state = super().start(problem, W)
        return state | {"growth": torch.zeros_like(state["t_cb"])}

    def step(self, problem: Problem, W: Params, state: State) -> tuple[Params, State]:
        net = problem.net
        p, saved = problem.look(W)
        weights, log_risk = slopes(problem, p, "cb")
        root = (state["taken"] + 1).to(p.dtype).sqrt()
        beta = _mass(net, W, net.trained[0]).sum(1)
        rate = self.lr * ascent_scale(net) / (16 * state["size"] * root)
        moved = move(W, problem.pull(W, weights, saved), rate)
        after = tick_log(state, rate.log() - log_risk, log_risk, rate) | {
            "beta": beta,
            "best": torch.maximum(state["best"], p.amin(1) / beta),
            "growth": state["growth"] + 1 / (beta * root),
        }
        return guard(W, state, moved, after, log_risk)

    def bound(self, problem: Problem, state: State, gamma: float | Tensor) -> Tensor:
        return prop6_bound(gamma, state["size"], problem.n, problem.net.m, state["taken"], state["growth"])


@dataclass(frozen=True)
class Prop7(Proposition):
    """Output layer alone: r <- r + eta m grad F, eta(t) = beta(t) sqrt 2 / (|z|_inf sqrt(t + 1)) (CB-17), r(0) = 0.

    a = r / m and beta(t) = max(1, max_{s <= t} sqrt(m) |a(s)|). `lr` multiplies eta; the proposition is about lr = 1.
    """

    lr: float = 1.0
    degree = 1
    needs = "the output layer alone"

    def __post_init__(self) -> None:
        _numbers(self, above=("lr",))

    def step(self, problem: Problem, W: Params, state: State) -> tuple[Params, State]:
        net = problem.net
        p, saved = problem.look(W)
        weights, log_risk = slopes(problem, p, "cb")
        root = (state["taken"] + 1).to(p.dtype).sqrt()
        beta = torch.maximum(state["beta"], math.sqrt(net.m) * _mass(net, W, net.trained[0]).norm(dim=1))
        rate = self.lr * ascent_scale(net) * beta * math.sqrt(2) / (state["size"] * root)
        moved = move(W, problem.pull(W, weights, saved), rate)
        after = tick_log(state, rate.log() - log_risk, log_risk, rate) | {
            "beta": beta,
            "best": torch.maximum(state["best"], p.amin(1) / beta),
        }
        return guard(W, state, moved, after, log_risk)

    def bound(self, problem: Problem, state: State, gamma: float | Tensor) -> Tensor:
        return prop7_bound(gamma, state["size"], problem.n, state["taken"])


def prop6_bound(
    gamma: float | Tensor, size: float | Tensor, n: int, m: int, t: int | Tensor, growth: float | Tensor
) -> Tensor:
    """CB-14: max_{s < t} min_i z_i . abar(s) is at least this, gamma = gamma_1^{(m)}, size = |z|_inf, t >= 1."""
    steps = torch.as_tensor(t, dtype=torch.float64)
    return gamma - size / steps.sqrt() * (8 * math.log(m) + steps.log() + 1) - 4 * math.log(n) / steps.sqrt() * growth


def prop7_bound(gamma: float | Tensor, size: float | Tensor, n: int, t: int | Tensor) -> Tensor:
    """CB-18: max_{s < t} min_i z_i . abar(s) is at least this, gamma = gamma_2^{(m)} > 0, size = |z|_inf, t >= 1."""
    steps = torch.as_tensor(t, dtype=torch.float64)
    return gamma - size / steps.sqrt() * (2 * math.sqrt(2) + math.sqrt(3) * math.log(n) / gamma)


# The mirror form of product networks


@dataclass(frozen=True)
class Mirror(Rule):
    """u = |a b| by exponentiated gradients, d ln u = -2 d(risk)/du, and the other parameters by plain ones (UH-9).

    Steps of length lr in CB's clock (clock="cb", risk replaced by ln risk) or in that of the mean risk (clock="mean"). Needs
    |a_j| = |b_j| at the start, which the flow keeps; ln u is kept in the state, so that u may be as small as it likes.
    """

    lr: float = 0.01
    clock: str = "cb"

    def __post_init__(self) -> None:
        _numbers(self, above=("lr",))
        _require(self.clock in ("cb", "mean"), f"Mirror: clock {self.clock!r} is not one of cb, mean")

    def check(self, problem: Problem) -> None:
        fits = {"a", "b"} <= set(problem.net.trained)
        _require(
            fits, f"the mirror flow needs products a_j b_j of outer weights, which {problem.net.name} does not have"
        )
        _require(problem.loss is not None, "the mirror flow is about margins; the squared loss has none")

    def start(self, problem: Problem, W: Params) -> State:
        state = super().start(problem, W)
        a, b = W["a"].abs(), W["b"].abs()
        balanced = torch.allclose(a, b, rtol=1e-6, atol=0.0) and bool((a > 0).all())
        _require(balanced, "the mirror flow needs |a_j| = |b_j| > 0 at the start; use a balanced initial law")
        return state | {"log_u": a.log() + b.log()}

    def step(self, problem: Problem, W: Params, state: State) -> tuple[Params, State]:
        p, saved = problem.look(W)
        weights, log_risk = slopes(problem, p, self.clock)
        grads = problem.pull(W, weights, saved)
        # df/da_j = b_j F_j, so F_j beta_j, beta_j = sgn(a_j b_j), is the derivative by u_j
        drift = grads["a"] * W["a"].sign() / W["b"].abs()  # (B, m)
        log_u = (state["log_u"] + 2 * self.lr * drift).clamp_min(-1200)  # so that b stays a number to divide by
        root = (log_u / 2).exp()
        moved = move(W, {name: grad for name, grad in grads.items() if name not in ("a", "b")}, self.lr)
        moved |= {"a": W["a"].sign() * root, "b": W["b"].sign() * root}
        log_dt = torch.full_like(log_risk, math.log(self.lr))
        clock = (log_dt - log_risk, log_risk, log_dt.exp()) if self.clock == "cb" else (log_dt, log_risk)
        after = tick_log(state, *clock) | {"log_u": log_u}
        return guard(W, state, moved, after, log_risk)


# Particles


@dataclass(frozen=True)
class WGF(Rule):
    """Wasserstein gradient flow of particles theta = (a, v) for sum_i l(y_i f(x_i)) + lam int |theta|^2 (MT-24, MT-25).

    f = (1/m) sum_j a_j relu(v_j . x), a net with the 1/m. Each particle moves by eta v(theta) = -eta grad L'[rho](theta).
    `reduction`: "sum" (MT) or "mean" of the losses. `scheme`: "discrete" is one explicit step (MT-27), "continuous" one step of
    Heun's method, of second order in eta.
    """

    eta: float = 0.01
    lam: float = 1e-4
    reduction: str = "sum"
    scheme: str = "discrete"

    def __post_init__(self) -> None:
        _numbers(self, above=("eta",), least={"lam": 0})
        kind = type(self).__name__
        _require(self.reduction in ("sum", "mean"), f"{kind}: reduction {self.reduction!r} is not one of sum, mean")
        known = ("discrete", "continuous")
        _require(self.scheme in known, f"{kind}: scheme {self.scheme!r} is not one of {', '.join(known)}")

    def check(self, problem: Problem) -> None:
        net = problem.net
        particles = set(net.trained) == {"a", "V"} and mean_field(net)
        _require(
            particles, f"{net.name}: particles (a, v) need a two-layer relu network with the 1/m, both layers trained"
        )

    def velocity(self, problem: Problem, W: Params) -> tuple[Params, Tensor]:
        """-grad L'[rho] at the particles, and ln of the mean risk."""
        p, saved = problem.look(W)
        weights, log_risk = slopes(problem, p)
        scale = problem.net.m * (problem.n if self.reduction == "sum" else 1)
        grads = problem.pull(W, weights, saved)
        return {name: scale * grad - 2 * self.lam * W[name] for name, grad in grads.items()}, log_risk

    def step(self, problem: Problem, W: Params, state: State) -> tuple[Params, State]:
        moved, after, log_risk = self._drift(problem, W, state)
        return guard(W, state, moved, after, log_risk)

    def _drift(self, problem: Problem, W: Params, state: State) -> tuple[Params, State, Tensor]:
        v, log_risk = self.velocity(problem, W)
        moved = move(W, v, self.eta)
        if self.scheme == "continuous":
            late, _ = self.velocity(problem, moved)
            moved = move(W, {name: (v[name] + late[name]) / 2 for name in v}, self.eta)
        dt = self.eta * problem.net.m * (problem.n if self.reduction == "sum" else 1)
        return moved, tick(state, dt, log_risk), log_risk


def distributional_objective(problem: Problem, W: Params, lam: float, reduction: str = "sum") -> Tensor:
    """L[rho] (B,) of MT-24 with V = lam |theta|^2."""
    log_risk = slopes(problem, problem.margins(W))[1]
    scale = problem.n if reduction == "sum" else 1
    return scale * log_risk.exp() + lam * sum((W[name].flatten(1) ** 2).sum(1) for name in ("a", "V")) / problem.net.m


@dataclass(frozen=True)
class PerturbedWGF(WGF):
    """WGF in which mass decays at rate sigma and is born again uniformly on the unit sphere S^d (MT-26 to MT-28).

    After each step a particle is replaced by a fresh uniform point with probability eta sigma (1 - exp(-eta sigma) in the
    continuous scheme). `weighted`: instead, all masses shrink by 1 - eta sigma and `births` particles with the missing mass are
    added every `every` steps: exact in expectation, with a growing number of particles. Because the objective is 2-homogeneous
    and velocities are 1-homogeneous in a particle, a particle of mass w is one of mass 1/m that is sqrt(m w) times as long.
    """

    sigma: float = 1e-3
    seed: int = 0
    weighted: bool = False
    births: int = 1
    every: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _numbers(self, least={"sigma": 0, "births": 1, "every": 1})
        _require(self.eta * self.sigma <= 1, "PerturbedWGF: eta sigma is a probability and must be at most 1")

    @property
    def graph(self) -> bool:
        return not self.weighted or self.sigma == 0

    def step(self, problem: Problem, W: Params, state: State) -> tuple[Params, State]:
        moved, after, log_risk = self._drift(problem, W, state)
        if self.sigma > 0:
            rate = self.eta * self.sigma
            chance = rate if self.scheme == "discrete" else -math.expm1(-rate)
            moved = self._bear(problem, moved, state, chance) if self.weighted else self._replace(moved, state, chance)
        return guard(W, state, moved, after, log_risk)

    def _replace(self, W: Params, state: State, chance: float) -> Params:
        _, m, d = W["V"].shape
        trial, taken = state["trial"], state["taken"]
        lucky = uniforms(self.seed, FOR_BIRTHS, trial, taken, m) < chance  # (B, m)
        fresh = sphere_points(self.seed, FOR_PLACES, trial, taken, m, d + 1).to(W["V"])
        return W | {
            "a": torch.where(lucky, fresh[:, :, 0], W["a"]),
            "V": torch.where(lucky[:, :, None], fresh[:, :, 1:], W["V"]),
        }

    def _bear(self, problem: Problem, W: Params, state: State, chance: float) -> Params:
        shrunk = math.sqrt(1 - chance)
        W = W | {"a": W["a"] * shrunk, "V": W["V"] * shrunk}
        if (state["step"] + 1) % self.every:
            return W
        lost = 1 - (1 - chance) ** self.every
        long = math.sqrt(problem.net.m * lost / self.births)
        d = W["V"].shape[2]
        fresh = sphere_points(self.seed, FOR_PLACES, state["trial"], state["taken"], self.births, d + 1).to(W["V"])
        return W | {
            "a": torch.cat([W["a"], long * fresh[:, :, 0]], 1),
            "V": torch.cat([W["V"], long * fresh[:, :, 1:]], 1),
        }


# Two phases


def symmetric_start(W: Params) -> Params:
    """The second half of the neurons as a copy of the first with opposite outer weights: f = 0. The width must be even."""
    half = W["a"].shape[1] // 2
    _require(W["a"].shape[1] == 2 * half, "a symmetric start needs an even number of neurons")
    a, V = W["a"][:, :half], W["V"][:, :half]
    return W | {"a": torch.cat([a, -a], 1), "V": torch.cat([V, V], 1)}


@dataclass(frozen=True)
class TwoPhase(Rule):
    """Two-phase SGD of row c of LR's Table 1 (LR-34); its constants are in the cited paper and are parameters here.

    Phase 1, `steps1` steps: V <- (1 - decay1) V + lr1 times a gradient over `batch1` examples (0: all of the data). With
    `correlation` the outputs count as 0, so that the gradient is the correlation with the labels even if the start is not
    symmetric. The weights of the last `kept` features (a bias) stay. Phase 2: V stays, the outer weights start at 0 (with
    `reset`) and follow SGD with lr2, batch2 and decay2 on the loss, or on the hinge loss. Examples as in SGD.
    """

    lr1: float = 1.0
    batch1: int = 0
    steps1: int = 1
    decay1: float = 0.0
    correlation: bool = True
    kept: int = 0
    lr2: float = 0.1
    batch2: int = 1
    decay2: float = 0.0
    reset: bool = True
    hinge: bool = False
    seed: int = 0
    sampler: Sampler | None = None

    def __post_init__(self) -> None:
        least: dict[str, float] = {"batch1": 0, "steps1": 0, "decay1": 0, "kept": 0, "batch2": 1, "decay2": 0}
        _numbers(self, above=("lr1", "lr2"), least=least)
        fresh = self.sampler is None or self.batch1 > 0
        _require(fresh, "TwoPhase: batch1 = 0 means all of the data, but the examples come from a law; give batch1")

    @property
    def graph(self) -> bool:
        return False  # the phases differ

    def check(self, problem: Problem) -> None:
        both = {"a", "V"} <= set(problem.net.trained) and problem.net.outputs == 1
        _require(both, f"two-phase SGD trains an inner and then an outer layer, which {problem.net.name} does not have")
        _require(problem.loss is not None, "two-phase SGD is about classification; the squared loss is not")
        _require(self.kept < problem.net.d, "TwoPhase: kept must be below the number of features")

    def step(self, problem: Problem, W: Params, state: State) -> tuple[Params, State]:
        assert problem.loss is not None
        first = state["step"] < self.steps1
        size = self.batch1 if first else self.batch2
        sample = problem
        if size:
            sample, state = _examples(problem, state, size, "replacement", self.seed, self.sampler)
        p, saved = sample.look(W)
        weights, log_risk = slopes(sample, p)
        if first and self.correlation:
            weights = slopes(sample, torch.zeros_like(p))[0]
        elif not first and self.hinge:
            weights = (p < 1).to(p.dtype) / p.shape[1]
        grads = sample.pull(W, weights, saved)
        if first:
            step = self.lr1 * grads["V"] - self.decay1 * W["V"]
            if self.kept:
                step[:, :, -self.kept :] = 0
            moved = W | {"V": W["V"] + step}
            if self.reset and state["step"] + 1 == self.steps1:
                moved["a"] = torch.zeros_like(W["a"])
        else:
            moved = move(W, {"a": grads["a"]}, self.lr2, self.decay2)
        return guard(W, state, moved, tick(state, self.lr1 if first else self.lr2, log_risk), log_risk)


# Adam


@dataclass(frozen=True)
class Adam(Rule):
    """Adam on the mean risk, with what BN's Figure 1 asks for (BN-24).

    `only`: the parameters to train (all). `unit`: parameters kept on the unit sphere, each by its tangential gradient (Adam
    with the whole gradient and a projection would stop at sign-like directions); then the gradient is that of ln risk, which
    does not vanish beside `eps`, and `sharpness` times the margins enter it, so that the smallest of them count. `radius`:
    every trained parameter that is not in `unit` stays within this distance of its start.
    """

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    only: tuple[str, ...] = ()
    unit: tuple[str, ...] = ()
    sharpness: float = 1.0
    radius: float | None = None

    def __post_init__(self) -> None:
        _numbers(self, above=("lr", "sharpness"), least={"beta1": 0, "beta2": 0, "eps": 0, "weight_decay": 0})
        _require(self.beta1 < 1 and self.beta2 < 1, "Adam: beta1 and beta2 must be below 1")
        if self.radius is not None:
            _numbers(self, least={"radius": 0})

    def names(self, net: Net) -> tuple[str, ...]:
        return self.only or net.trained

    def check(self, problem: Problem) -> None:
        net = problem.net
        for name in (*self.only, *self.unit):
            known = ", ".join(net.trained)
            _require(name in net.trained, f"Adam: {net.name} has no trained parameter {name!r}; choose among {known}")
        if self.sharpness != 1:
            _require(
                problem.loss is not None, "Adam: sharpness multiplies margins, which the squared loss does not have"
            )

    def start(self, problem: Problem, W: Params) -> State:
        state = super().start(problem, W)
        for name in self.names(problem.net):
            state |= {f"first_{name}": torch.zeros_like(W[name]), f"second_{name}": torch.zeros_like(W[name])}
            if self.radius is not None and name not in self.unit:
                state[f"origin_{name}"] = W[name].clone()
        return state

    def step(self, problem: Problem, W: Params, state: State) -> tuple[Params, State]:
        p, saved = problem.look(W)
        weights, log_risk = slopes(
            problem, self.sharpness * p if self.sharpness != 1 else p, "cb" if self.unit else "mean"
        )
        grads = problem.pull(W, self.sharpness * weights if self.sharpness != 1 else weights, saved)
        count = (state["taken"] + 1).to(p.dtype)
        moved, after = dict(W), tick(state, self.lr, log_risk)
        for name in self.names(problem.net):
            flat = (-1, *[1] * (W[name].ndim - 1))
            grad = grads[name] - self.weight_decay * W[name] if self.weight_decay else grads[name]
            if name in self.unit:
                here = W[name].flatten(1)
                along = (grad.flatten(1) * here).sum(1) / (here**2).sum(1).clamp_min(1e-300)
                grad = grad - along.view(flat) * W[name]
            first = self.beta1 * state[f"first_{name}"] + (1 - self.beta1) * grad
            second = self.beta2 * state[f"second_{name}"] + (1 - self.beta2) * grad**2
            mean = first / (1 - self.beta1**count).view(flat)
            size = (second / (1 - self.beta2**count).view(flat)).sqrt() + self.eps
            new = W[name] + self.lr * mean / size
            if name in self.unit:
                new = new / new.flatten(1).norm(dim=1).view(flat)
            elif self.radius is not None:
                gone = new - state[f"origin_{name}"]
                far = gone.flatten(1).norm(dim=1).view(flat)
                new = state[f"origin_{name}"] + gone * (self.radius / far.clamp_min(max(self.radius, 1e-300)))
            moved[name] = new
            after |= {f"first_{name}": first, f"second_{name}": second}
        return guard(W, state, moved, after, log_risk)
