"""Events: what ends a trial by itself, and the words for them on the command line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from widemargin.errors import show
from widemargin.types import InputError

from . import losses
from .contract import State, log_scale
from .implicit import grown_margins, per_trial
from .nets import Params
from .problem import Problem
from .stationarity import kkt_residual


class Event:
    """A trial ends where `reached` says so. An event of your own extends this class.

    >>> from widemargin import flows
    >>> from widemargin.types import Dataset
    >>> class Small(flows.Event):
    ...     def reached(self, problem, W, state, start):
    ...         return problem.net.norm2(W) < 1e-4
    >>> decayed = flows.GD(lr=0.1, weight_decay=1.0)
    >>> blank = Dataset([[0.0]], [1.0])  # no gradient: the norm falls by 0.9 a step
    >>> run = flows.train(blank, flows.MLP(1, 1, depth=1), decayed, stop=flows.Stop(1000, until=Small()), record=["norm"])
    >>> run.status, bool(0.009 <= run.records["norm"][-1, 0] < 0.01)
    (('reached',), True)
    """

    dear = False  # whether a look costs as much as several steps: then the loop looks less often

    def prepare(self, problem: Problem, start: Params) -> None:
        """Called before the first look, also in a run that was resumed; `start` holds the parameters at the beginning."""

    def reached(self, problem: Problem, W: Params, state: State, start: Params) -> Tensor:
        """Which trials (B,) are there; W as the rule keeps them (`contract.true_params`)."""
        raise NotImplementedError


@dataclass(frozen=True)
class Time(Event):
    """CB's clock, or the clock of the mean risk, has reached `value`."""

    value: float
    clock: str = "t_cb"

    def reached(self, problem: Problem, W: Params, state: State, start: Params) -> Tensor:
        if self.clock == "t_cb":
            return state.t_cb >= self.value
        return state.log_t_mean >= math.log(self.value)


@dataclass(frozen=True)
class Radius(Event):
    """|W - W0| >= value, over all trained parameters."""

    value: float

    def reached(self, problem: Problem, W: Params, state: State, start: Params) -> Tensor:
        rho = log_scale(W, state)
        gone = sum(
            ((W[name] - start[name] * per_trial((-rho).exp(), W[name])) ** 2).flatten(1).sum(1)
            for name in problem.net.trained
        )
        return 0.5 * gone.log() + rho >= math.log(self.value)  # type: ignore[union-attr]


@dataclass(frozen=True)
class Risk(Event):
    """Mean risk <= value."""

    value: float

    def reached(self, problem: Problem, W: Params, state: State, start: Params) -> Tensor:
        return _log_risk(problem, W, state) <= math.log(self.value)


@dataclass(frozen=True)
class Fitted(Event):
    """Mean risk < l(0)/n: every point is fitted, and psi / |W|^L never falls from here (LR-23, UH-18)."""

    def reached(self, problem: Problem, W: Params, state: State, start: Params) -> Tensor:
        if problem.loss is None:
            raise InputError("until fitted: the squared loss has no such event; give risk=... instead")
        return _log_risk(problem, W, state) < math.log(problem.loss.at_zero / problem.n)


@dataclass(frozen=True)
class Margin(Event):
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
class Stationary(Event):
    """All points are fitted, the KKT residual is at most `residual`, and the normalised margin changes by at most `drift` of
    itself while |W| grows e-fold (where the rule records that)."""

    residual: float = 0.02
    drift: float = 1e-3

    dear = True

    def reached(self, problem: Problem, W: Params, state: State, start: Params) -> Tensor:
        settled = problem.margins(W).amin(1) > 0
        if state.drift is not None:
            settled = settled & (state.drift <= self.drift)
        return settled & (kkt_residual(problem, W, state) <= self.residual)


VALUED: dict[str, Any] = {
    "margin": Margin,
    "radius": Radius,
    "risk": Risk,
    "time": Time,
    "t_cb": Time,
    "t_mean": lambda value: Time(value, "t_mean"),
}


def parse_until(text: str) -> Event:
    """The event of a `text` of the command line, at which each trial ends by itself.

    fitted, stationary, margin=..., radius=..., risk=..., time=... (CB's clock, also t_cb=...) or t_mean=...

    >>> from widemargin.flows import parse_until
    >>> parse_until("risk=0.1")
    Risk(value=0.1)
    """
    if not isinstance(text, str):
        raise InputError(f"an event is a text such as 'risk=0.1', not {show(text)}")
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


def _log_risk(problem: Problem, W: Params, state: State) -> Tensor:
    p = problem.margins(W)
    if problem.loss is None:
        return (p**2).mean(1).log()
    size = problem.net.degree * log_scale(W, state)
    return losses.log_sum(problem.loss, grown_margins(p, size)) - math.log(problem.n)
