"""Wasserstein gradient flow of particles, with or without births (MT-24 to MT-28)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from widemargin.errors import show

from ..contract import Rule, State
from ..nets import Params
from ..problem import Problem
from ..streams import FOR_BIRTHS, FOR_PLACES, sphere_points, uniforms
from .steps import check_numbers, guard, mean_field, move, require, slopes, tick

BORN = 10**6  # particles that a step may add


@dataclass(frozen=True)
class WassersteinFlow(Rule[State]):
    """Wasserstein gradient flow of particles theta = (a, v) for sum_i l(y_i f(x_i)) + lam int |theta|^2 (MT-24, MT-25).

    f = (1/m) sum_j a_j relu(v_j . x), a net with the 1/m. Each particle moves by eta v(theta) = `-eta grad L'[rho](theta)`.
    `reduction`: "sum" (MT) or "mean" of the losses. `scheme`: "discrete" is one explicit step (MT-27), "continuous" one step of
    Heun's method, of second order in eta.

    >>> import torch
    >>> from widemargin import flows
    >>> from widemargin.types import Dataset
    >>> problem = flows.pose(flows.TwoLayer(1, 1, mean_field=True), Dataset([[1.0]], [1.0]), "exp")
    >>> W = {"a": torch.ones(1, 1, dtype=torch.float64), "V": torch.ones(1, 1, 1, dtype=torch.float64)}
    >>> rule = flows.WassersteinFlow(eta=1.0, lam=0.0)
    >>> after, state = rule.step(problem, W, rule.init(problem, W))
    >>> round(after["a"].item(), 6)  # 1 + exp(-1)
    1.367879
    """

    eta: float = 0.01
    lam: float = 1e-4
    reduction: str = "sum"
    scheme: str = "discrete"

    def __post_init__(self) -> None:
        check_numbers(self, above=("eta",), least={"lam": 0})
        kind = type(self).__name__
        named = isinstance(self.reduction, str) and self.reduction in ("sum", "mean")
        require(named, f"{kind}: reduction {show(self.reduction)} is not one of sum, mean")
        known = ("discrete", "continuous")
        named = isinstance(self.scheme, str) and self.scheme in known
        require(named, f"{kind}: scheme {show(self.scheme)} is not one of {', '.join(known)}")

    def check(self, problem: Problem) -> None:
        net = problem.net
        particles = set(net.trained) == {"a", "V"} and mean_field(net)
        require(
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
class PerturbedWassersteinFlow(WassersteinFlow):
    """WassersteinFlow in which mass decays at rate sigma and is born again uniformly on the unit sphere S^d (MT-26 to MT-28).

    After each step a particle is replaced by a fresh uniform point with probability eta sigma (1 - exp(-eta sigma) in the
    continuous scheme). `weighted`: instead, all masses shrink by 1 - eta sigma and `births` particles with the missing mass are
    added every `every` steps: exact in expectation, with a growing number of particles. Because the objective is 2-homogeneous
    and velocities are 1-homogeneous in a particle, a particle of mass w is one of mass 1/m that is sqrt(m w) times as long.

    `seed` is that of births and places; eta, lam, `reduction` and `scheme` as in WassersteinFlow.

    >>> import numpy as np
    >>> from widemargin import flows
    >>> from widemargin.types import Dataset
    >>> net = flows.TwoLayer(1, 5, law="cb", mean_field=True)
    >>> rule = flows.PerturbedWassersteinFlow(eta=1.0, sigma=1.0)  # with eta sigma = 1 every particle is born again
    >>> run = flows.train(Dataset([[1.0]], [1.0]), net, rule, stop=1)
    >>> length = run.final["a"] ** 2 + (run.final["V"] ** 2).sum(2)
    >>> bool(np.allclose(length, 1))
    True
    """

    sigma: float = 1e-3
    seed: int = 0
    weighted: bool = False
    births: int = 1
    every: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, least={"sigma": 0, "births": 1, "every": 1})
        require(
            self.births <= BORN, f"PerturbedWassersteinFlow: births must be at most {BORN}, not {show(self.births)}"
        )
        require(
            self.eta * self.sigma <= 1, "PerturbedWassersteinFlow: eta sigma is a probability and must be at most 1"
        )

    @property
    def graph(self) -> bool:
        return not self.weighted or self.sigma == 0

    @property
    def grows(self) -> bool:  # type: ignore[override]
        return self.weighted

    def step(self, problem: Problem, W: Params, state: State) -> tuple[Params, State]:
        moved, after, log_risk = self._drift(problem, W, state)
        if self.sigma > 0:
            rate = self.eta * self.sigma
            chance = rate if self.scheme == "discrete" else -math.expm1(-rate)
            moved = self._bear(problem, moved, state, chance) if self.weighted else self._replace(moved, state, chance)
        return guard(W, state, moved, after, log_risk)

    def _replace(self, W: Params, state: State, chance: float) -> Params:
        _, m, d = W["V"].shape
        trial, taken = state.trial, state.taken
        lucky = uniforms(self.seed, FOR_BIRTHS, trial, taken, m) < chance  # (B, m)
        fresh = sphere_points(self.seed, FOR_PLACES, trial, taken, m, d + 1).to(W["V"])
        return W | {
            "a": torch.where(lucky, fresh[:, :, 0], W["a"]),
            "V": torch.where(lucky[:, :, None], fresh[:, :, 1:], W["V"]),
        }

    def _bear(self, problem: Problem, W: Params, state: State, chance: float) -> Params:
        shrunk = math.sqrt(1 - chance)
        W = W | {"a": W["a"] * shrunk, "V": W["V"] * shrunk}
        if (state.step + 1) % self.every:
            return W
        lost = 1 - (1 - chance) ** self.every
        long = math.sqrt(problem.net.m * lost / self.births)
        d = W["V"].shape[2]
        fresh = sphere_points(self.seed, FOR_PLACES, state.trial, state.taken, self.births, d + 1).to(W["V"])
        return W | {
            "a": torch.cat([W["a"], long * fresh[:, :, 0]], 1),
            "V": torch.cat([W["V"], long * fresh[:, :, 1:]], 1),
        }
