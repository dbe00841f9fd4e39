"""What is recorded along training: numbers of every trial, computed from its parameters at one moment.

An observer is a function of a `View` that returns a tensor (B, ...), or a dictionary of such. The margins of a view are those of
the true parameters on a scale of their own: a rule may keep the homogeneous parameters W normalised and their size in `log_scale`
of its state, so that p(W_true) = exp(L log_scale) p(W). Normalised margins then never overflow, and the others are formed last.

A user's observer is passed as it is, `record={"name": function}`. To add one for all: write a function, add it to OBSERVERS with
the condition under which it makes sense.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from widemargin.errors import brief, did_you_mean
from widemargin.spaces import as_space
from widemargin.types import InputError

from . import losses, stationarity
from .contract import State, log_scale, true_params
from .nets import Net, Params, TwoLayer
from .own_parts import during
from .problem import Problem

Observer = Callable[["View"], Tensor | Mapping[str, Tensor]]

STARTS, CLIMB = 12, 60  # local searches for the bound of the dual, and steps of each: an estimate to about 1e-3
COLD = math.log(1e2)  # ln |W|^L from which the weights are those that the flow solved for
SPARSE = 25  # moments at which what is dear is recorded; NaN at the others
QUICK = (
    100_000  # trials * points * neurons up to which the KKT residual is recorded by default: above, it takes seconds
)
LONG_RECORD = 40_000_000  # numbers of one record over the whole run, up to which what is long is recorded by default


@dataclass(frozen=True)
class View:
    """The trials at one moment; what several observers need is computed once.

    `t` (B,) is the clock of the mean risk, `params` the true parameters, `margins` (B, n) those of the points, `q` (B, n) the
    weights of the points, `state` that of the rule; `W` are the parameters as the rule keeps them.

    `problem` is the net on the training data, `test` that on test data if there is any, `start` holds the true parameters at the
    beginning.

    >>> import torch
    >>> from widemargin import flows
    >>> from widemargin.types import Dataset
    >>> problem = flows.pose(flows.MLP(1, 1, depth=1), Dataset([[1.0], [-2.0]], [1.0, -1.0]), "exp")
    >>> W = {"W1": torch.full((1, 1, 1), 3.0, dtype=torch.float64)}
    >>> view = flows.View(problem, W, flows.GD().init(problem, W), W)
    >>> view.margins.tolist(), round(view.q[0, 0].item(), 6)  # exp(-3) / (exp(-3) + exp(-6))
    ([[3.0, 6.0]], 0.952574)
    """

    problem: Problem
    W: Params
    state: State
    start: Params  # true parameters at the beginning
    test: Problem | None = None

    @cached_property
    def scaled(self) -> tuple[Tensor, Tensor]:
        """Outputs of W on the training points (B, n) or (B, n, K), and ln of the factor of the true ones (B,)."""
        net = self.problem.net
        return net.forward(self.W, self.problem.X), net.degree * log_scale(self.W, self.state)

    @cached_property
    def log_factor(self) -> Tensor:
        return self.scaled[1]

    __repr__ = brief

    @property
    def t(self) -> Tensor:
        """The clock of the mean risk (B,)."""
        return self.state.log_t_mean.exp()

    @cached_property
    def margins(self) -> Tensor:
        """True margins (B, n), residuals for the squared loss."""
        f, log_factor = self.scaled
        f = f * log_factor.exp().reshape(-1, *[1] * (f.ndim - 1))
        if self.problem.loss is None:
            return self.problem.y - f
        if self.problem.net.outputs > 1:
            return losses.class_margin(f, self.problem.y.expand(f.shape[:2]))[0]
        return self.problem.y * f

    @cached_property
    def hard(self) -> Tensor:
        """min_i of y f, or of f_y - max_{j != y} f_j, for W (B,): multiply by exp(log_factor) for the true ones."""
        return _decision_margins(self.problem, self.scaled[0]).amin(1)

    @cached_property
    def params(self) -> Params:
        return true_params(self.problem, self.W, self.state)

    @cached_property
    def neurons(self) -> tuple[Tensor, Tensor]:
        """Mass (B, m) of W, not of the true parameters, and unit directions (B, m, d)."""
        neurons = self.problem.net.neurons(self.W)
        assert neurons is not None  # `applies` has asked
        return neurons

    @cached_property
    def q(self) -> Tensor:
        # At a huge |W|^L rounding of p would decide the softmax; the flow knows its weights from the equations it solves.
        known = self.state.dual
        softmax = losses.weights(self.problem.loss, self.margins, "unit")  # type: ignore[arg-type]
        if known is None or self.state.log_scale is None:
            return softmax
        unit = known / known.sum(1, keepdim=True).clamp_min(1e-300)
        return torch.where((self.log_factor > COLD)[:, None], unit, softmax)

    @cached_property
    def sizes(self) -> dict[str, Tensor]:
        """What margins are divided by, by convention, for W."""
        return self.problem.net.normalizers(self.W)

    @cached_property
    def pricing(self) -> Tensor:
        return dual_value(self.problem, self.q, self.neurons[1])


def _decision_margins(problem: Problem, f: Tensor) -> Tensor:
    """Margins (B, n) in the sense of the decision: y f, or f_y minus the largest other output."""
    if problem.net.outputs == 1:
        return problem.y * f
    return losses.hard_class_margin(f, problem.y.expand(f.shape[:2]))


def dual_value(problem: Problem, q: Tensor, directions: Tensor, steps: int = CLIMB) -> Tensor:
    """max_{|v| = 1} |sum_i q_i y_i phi(v . x_i)| (B,) as far as local search finds it: an estimate from below.

    For the q of a trajectory it tends to be attained near the network's own neurons, so these are the starts, beside the
    points themselves. With an exact maximum the value would be an upper bound of every margin in convention M1 (CB-24).
    """
    X, c = problem.X, q * problem.y  # (1 or B, n, d), (B, n)
    space = as_space(getattr(problem.net, "activation", "relu"))
    # A fixed choice of starts, so that records do not depend on anything but the parameters.
    pull = (space.phi(directions @ X.mT) * c[:, None, :]).sum(2).abs()  # (B, m)
    best = pull.topk(min(STARTS, pull.shape[1]), dim=1).indices
    V = directions.gather(1, best[:, :, None].expand(-1, -1, directions.shape[2]))
    heavy = q.topk(min(STARTS // 2, q.shape[1]), dim=1).indices
    points = X.expand(len(q), -1, -1).gather(1, heavy[:, :, None].expand(-1, -1, X.shape[2]))
    mean = (c[:, :, None] * X).sum(1, keepdim=True)
    V = torch.cat([V, points, -points, mean, -mean], 1)
    V = V / V.norm(dim=2, keepdim=True).clamp_min(1e-300)  # (B, s, d)
    t = V @ X.mT  # (B, s, n)
    value = (space.phi(t) * c[:, None, :]).sum(2)
    sign = torch.where(value >= 0, 1.0, -1.0).to(V.dtype)  # each start climbs on its own side
    value = value.abs()
    step = torch.full_like(value, 0.5)[:, :, None]
    for _ in range(steps):
        slope = (t > 0).to(V.dtype).clamp_min(space.slope) if space.degree == 1 else 2 * t.clamp_min(0)
        G = sign[:, :, None] * ((slope * c[:, None, :]) @ X)
        U = V + step * G / G.norm(dim=2, keepdim=True).clamp_min(1e-300)
        U = U / U.norm(dim=2, keepdim=True).clamp_min(1e-300)
        t_new = U @ X.mT
        new = sign * (space.phi(t_new) * c[:, None, :]).sum(2)
        up = (new > value)[:, :, None]
        V, t = torch.where(up, U, V), torch.where(up, t_new, t)
        value = torch.where(up[:, :, 0], new, value)
        step = torch.where(up, step * 1.5, step * 0.5)
    return value.amax(1)


# ---------------------------------------------------------------- observers


def step(view: View) -> Tensor:
    """Steps that each trial has taken."""
    return view.state.taken.to(torch.float64)


def t_cb(view: View) -> Tensor:
    return view.state.t_cb


def log_t_mean(view: View) -> Tensor:
    return view.state.log_t_mean


def t_mean(view: View) -> Tensor:
    """The clock of the mean risk; infinite beyond floating point, where log_t_mean goes on."""
    return view.t


def log_risk(view: View) -> Tensor:
    if view.problem.loss is None:
        return (view.margins**2).mean(1).log()
    return losses.log_sum(view.problem.loss, view.margins) - math.log(view.problem.n)


def risk(view: View) -> Tensor:
    """Mean loss; the mean squared residual for the squared loss."""
    return log_risk(view).exp()


def train_error(view: View) -> Tensor:
    return _error(_decision_margins(view.problem, view.scaled[0]))


def test_error(view: View) -> Tensor:
    assert view.test is not None
    if view.problem.loss is None:
        return (view.test.margins(view.params) ** 2).mean(1)
    return _error(_decision_margins(view.test, view.test.net.forward(view.W, view.test.X)))


def _error(hard: Tensor) -> Tensor:
    """Share of points that are not on the right side; NaN where a margin is."""
    wrong = (hard <= 0).to(hard.dtype)
    return torch.where(hard.isnan(), hard, wrong).mean(1)


def margin(view: View) -> Tensor:
    """min_i p_i, not normalised."""
    return view.hard * view.log_factor.exp()


def psi(view: View) -> Tensor:
    """The smooth margin l^{-1}(sum_i l(p_i)), not normalised (CLAIMS 0.4)."""
    return losses.psi(view.problem.loss, view.margins)  # type: ignore[arg-type]


def psi_normalized(view: View) -> Tensor:
    """psi / |W|^L over the homogeneous parameters: never falls along gradient flow once risk < l(0)/n (LR-23, UH-18)."""
    net = view.problem.net
    size = 0.5 * net.degree * net.norm2(view.W).log() + view.log_factor
    return psi(view) * (-size).exp()


def margins(view: View) -> dict[str, Tensor]:
    return {f"margin_{name}": view.hard / size for name, size in view.sizes.items()}


def norm(view: View) -> Tensor:
    """Euclidean norm of the homogeneous parameters."""
    return log_norm(view).exp()


def log_norm(view: View) -> Tensor:
    return 0.5 * view.problem.net.norm2(view.W).log() + log_scale(view.W, view.state)


def q(view: View) -> Tensor:
    """Weights of the points, in the simplex (CLAIMS 0.5)."""
    return view.q


def log_Q(view: View) -> Tensor:
    """ln |l'(psi)|."""
    return losses.log_Q(view.problem.loss, view.margins)  # type: ignore[arg-type]


def dual_estimate(view: View) -> Tensor:
    """max_v |sum_i q_i y_i phi(v . x_i)| by local search: an estimate of the bound that q gives on M1 margins."""
    return view.pricing


def gap_estimate(view: View) -> Tensor:
    """That bound minus the margin in M1: 0 where the network is optimal (CB-24). An estimate, from below."""
    return view.pricing - view.hard / view.neurons[0].abs().sum(1)


def kkt_residual(view: View) -> Tensor:
    """How far W is from a KKT point of the margin problem (LR-19)."""
    return stationarity.kkt_residual(view.problem, view.W, view.state)


def neuron_norm(view: View) -> Tensor:
    """|a_j| |v_j| (B, m)."""
    return view.neurons[0].abs() * view.log_factor.exp()[:, None]


def rotation(view: View) -> Tensor:
    """Cosine of the angle between each neuron's direction and its first one (B, m) (LR-32)."""
    first = view.problem.net.neurons(view.start)
    assert first is not None
    return (view.neurons[1] * first[1]).sum(2).clamp(-1, 1)


def effective_neurons(view: View) -> Tensor:
    """(sum_j |mass_j|)^2 / sum_j mass_j^2: m if all are equal, 1 if one has all the mass."""
    mass = view.neurons[0].abs()
    share = mass / mass.sum(1, keepdim=True)
    return 1 / (share**2).sum(1)


def moved(view: View) -> dict[str, Tensor]:
    """|W - W_0| of every trained layer."""
    return {
        f"moved_{name}": (view.params[name] - view.start[name]).flatten(1).norm(dim=1)
        for name in view.problem.net.trained
    }


def balance(view: View) -> Tensor:
    """max_j |change of a_j^2 - |v_j|^2| since the start: 0 along gradient flow on both layers."""
    return (_balance(view, view.params) - _balance(view, view.start)).abs().amax(1)


def _pair(net: Net) -> tuple[str, str] | None:
    """The outer and inner parameters whose squares differ by a constant along gradient flow, if there are such."""
    for inner in ("b", "c"):
        if "a" in net.trained and inner in net.trained:
            return "a", inner
    return ("a", "V") if isinstance(net, TwoLayer) and set(net.trained) == {"a", "V"} else None


def _balance(view: View, W: Params) -> Tensor:
    outer, inner = _pair(view.problem.net)  # type: ignore[misc]
    return W[outer] ** 2 - (W[inner] ** 2).reshape(*W[outer].shape, -1).sum(2)


def path(view: View) -> dict[str, Tensor]:
    """What the weakly regularised path has found for each lambda so far; nothing for other rules."""
    return _kept(view, "path_norm", "path_margin", "path_loss")


def sums(view: View) -> dict[str, Tensor]:
    """sum_s |l'_s| over the steps of SGD so far, as `slopes` (LR-13, BN-21); nothing for other rules."""
    return _kept(view, "slopes")


def honesty(view: View) -> dict[str, Tensor]:
    """Whether a gradient flow is still one (see `rules.gradient_flow`); nothing for other rules."""
    return _kept(view, "honest", "left")


def _kept(view: View, *names: str) -> dict[str, Tensor]:
    """What the rule itself keeps under these names."""
    return {name: getattr(view.state, name) for name in names if hasattr(view.state, name)}


def weights(view: View) -> dict[str, Tensor]:
    """The parameters themselves: a snapshot."""
    return {f"W_{name}": value for name, value in view.params.items()}


@dataclass(frozen=True)
class Setting:
    """What decides which observers make sense."""

    problem: Problem
    test: bool  # whether there is test data
    trials: int
    rows: int
    grows: bool = False  # whether neurons are added on the way

    @cached_property
    def is_measure(self) -> bool:
        """Whether the net says what its neurons are, tried on a draw."""
        try:
            drawn = self.problem.net.init(1, 0)
        except InputError:  # a net that differs between trials is drawn for all of them
            drawn = self.problem.net.init(self.trials, 0)
        W = {name: torch.tensor(value, dtype=torch.float64) for name, value in drawn.items()}
        return self.problem.net.neurons(W) is not None

    @property
    def classifies(self) -> bool:
        return self.problem.loss is not None

    @property
    def prices(self) -> bool:
        """Whether the dual of the margin is a maximum over neurons that are unit vectors in the space of the points."""
        return self.classifies and self.is_measure

    @property
    def balances(self) -> bool:
        return _pair(self.problem.net) is not None and not self.grows

    @property
    def has_kkt(self) -> bool:
        return self.classifies and self.problem.net.outputs == 1

    @property
    def turns(self) -> bool:
        return self.is_measure and not self.grows


@dataclass(frozen=True)
class Known:
    observer: Observer
    applies: Callable[[Setting], bool] = lambda setting: True
    default: bool = True
    dear: bool = False  # costs as much as many steps
    long: str = ""  # "m" or "n": the second dimension of the record, for what is more than a number per trial


OBSERVERS: dict[str, Known] = {
    "step": Known(step),
    "t_cb": Known(t_cb),
    "t_mean": Known(t_mean),
    "log_t_mean": Known(log_t_mean),
    "risk": Known(risk),
    "log_risk": Known(log_risk),
    "train_error": Known(train_error, lambda on: on.classifies),
    "test_error": Known(test_error, lambda on: on.test),
    "margin": Known(margin, lambda on: on.classifies),
    "psi": Known(psi, lambda on: on.classifies),
    "psi_normalized": Known(psi_normalized, lambda on: on.classifies),
    "margins": Known(margins, lambda on: on.classifies),  # margin_M1, margin_M2, ...: those that apply
    "norm": Known(norm),
    "log_norm": Known(log_norm),
    "log_Q": Known(log_Q, lambda on: on.classifies),
    "dual_estimate": Known(dual_estimate, lambda on: on.prices, dear=True),
    "gap_estimate": Known(gap_estimate, lambda on: on.prices, dear=True),
    "kkt_residual": Known(kkt_residual, lambda on: on.has_kkt, dear=True),
    "effective_neurons": Known(effective_neurons, lambda on: on.is_measure),
    "moved": Known(moved, lambda on: not on.grows),
    "balance": Known(balance, lambda on: on.balances),
    "q": Known(q, lambda on: on.classifies, long="n"),
    "neuron_norm": Known(neuron_norm, lambda on: on.turns, long="m"),
    "rotation": Known(rotation, lambda on: on.turns, long="m"),
    "path": Known(path),
    "honesty": Known(honesty),
    "sums": Known(sums),
    "weights": Known(weights, lambda on: not on.grows, default=False),
}


def choose(asked: str | Sequence[str] | Mapping[str, Any], on: Setting) -> tuple[dict[str, Observer], tuple[str, ...]]:
    """Observers by name, and notes on what was left out.

    `asked`: "default"; names ("default" may be one of them); or a dictionary from a name to a function of a `View`, to the name
    of an observer, or None for the one of that name.
    """
    if isinstance(asked, str):
        asked = [asked]
    pairs: dict[str, Any] = dict(asked) if isinstance(asked, Mapping) else dict.fromkeys(asked)
    chosen: dict[str, Observer] = {}
    left: list[str] = []
    for name, what in pairs.items():
        if name == "default" and what is None:
            for usual, known in OBSERVERS.items():
                if known.default and known.applies(on):
                    length = {"n": on.problem.n, "m": on.problem.net.m, "": 1}[known.long]
                    slow = usual == "kkt_residual" and on.trials * on.problem.n * on.problem.net.m > QUICK
                    if slow or on.rows * on.trials * length > LONG_RECORD:
                        left.append(usual)
                    else:
                        chosen.setdefault(usual, known.observer)
        elif name == "t":
            raise InputError("a record cannot be called 't', which is when it was taken; choose another name")
        elif not isinstance(name, str):
            raise InputError(f"an observer has a name, which is a text, as in {{'mine': function}}; {name!r} is none")
        elif callable(what):
            chosen[name] = _own(name, what)
        else:
            chosen[name] = _named(name if what is None else what, on)
    notes = (f"not recorded, to save time or memory: {', '.join(left)}; ask for them by name",) if left else ()
    return chosen, notes


def _named(name: Any, on: Setting) -> Observer:
    known = OBSERVERS.get(name) if isinstance(name, str) else None
    if known is None:
        raise InputError(
            f"there is no observer {name!r}{did_you_mean(name, OBSERVERS)}; choose from {', '.join(OBSERVERS)}, or give a "
            "function"
        )
    if not known.applies(on):
        what = "test data" if name == "test_error" else "another net, loss or rule"
        raise InputError(f"the observer {name!r} makes no sense here; it needs {what}")
    return known.observer


def _own(name: str, fn: Observer) -> Observer:
    """A user's observer, whose shapes are checked."""
    try:
        inspect.signature(fn).bind(None)
    except TypeError:
        raise InputError(f"the observer {name!r} must take one argument, a View") from None
    except ValueError:  # a builtin has no signature
        pass

    shapes: dict[str, tuple[int, ...]] = {}  # of what it returned first, by name

    def checked(key: Any, value: Any, trials: Tensor) -> Tensor:
        if not isinstance(key, str) or key == "t":
            raise InputError(f"the observer {name!r} returned a record called {key!r}; it must be a text, and not 't'")
        try:
            value = torch.as_tensor(value, device=trials.device).detach()
        except (TypeError, ValueError, RuntimeError):
            raise InputError(f"the observer {name!r} returned a {type(value).__name__}, not numbers") from None
        if value.is_complex():
            raise InputError(f"the observer {name!r} returned complex numbers; return their real and imaginary parts")
        if value.ndim == 0 or len(value) != len(trials):
            raise InputError(
                f"the observer {name!r} returned shape {tuple(value.shape)}; it must have one row per trial, "
                f"here {len(trials)}"
            )
        return value

    def observer(view: View) -> Tensor | Mapping[str, Tensor]:
        versions = [value._version for value in view.W.values()]
        with during(f"by the observer {name!r}"):
            result = fn(view)
        if versions != [value._version for value in view.W.values()]:
            raise InputError(f"the observer {name!r} changed the parameters in place; it may only look at them")
        parts = result if isinstance(result, Mapping) else {name: result}
        records = {key: checked(key, value, view.log_factor) for key, value in parts.items()}
        now = {key: tuple(value.shape) for key, value in records.items()}
        if not shapes:
            shapes.update(now)
        elif now != shapes:
            raise InputError(f"the observer {name!r} returned {now} after {shapes}; names and shapes must stay")
        return records

    return observer


def dear(observers: Mapping[str, Observer]) -> set[str]:
    """Names of those that are recorded now and then only."""
    slow = {known.observer for known in OBSERVERS.values() if known.dear}
    return {name for name, observer in observers.items() if observer in slow}


def record(observers: Mapping[str, Observer], view: View) -> Params:
    """All records of one moment, on the device."""
    row: Params = {}
    with torch.no_grad():
        for name, observer in observers.items():
            value = observer(view)
            row |= {name: value} if isinstance(value, Tensor) else value
    return row
