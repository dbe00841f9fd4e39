"""Euler's identity as a sieve: which sets of parameters are worth scaling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .scaling import LARGE, LITTLE, LOOSE, PICKS, SCREEN, Probe, Prober

ROUNDED = {
    torch.float64: 1e-7,
    torch.float32: 1e-3,
}  # how well the identity holds for gradients, in units of |df/dp| |p|
GRADIENTS = 8  # backward passes: mixtures of the outputs at which the identity is looked at


@dataclass
class Euler:
    """Outputs f, and <p, df/dp> of every parameter there.

    By a few backward passes, which give all parameters at once, of random mixtures of the outputs. Where a model cannot be
    differentiated, its gradients are not those of its outputs (a part is detached, say), or hooks of others would see them, by a
    forward pass for each parameter, scaled by a little more than 1.
    """

    f: Tensor
    terms: dict[str, Tensor]
    screen: float
    moved: dict[str, float] | None = None  # |df/dp| |p| over the largest f; None where it is not known
    mix: Tensor | None = None  # (GRADIENTS, PICKS) of the outputs; None: single ones
    exact: float | None = None  # up to which the terms are rounded

    @classmethod
    def of(cls, prober: Prober) -> Euler:
        screen = SCREEN if prober.kind in LITTLE else LOOSE
        if not prober.sharded:
            euler = _by_gradients(prober, screen)
            if euler is not None:
                return euler
        step = LITTLE.get(prober.kind, LARGE)
        f = prober.some(prober.base)
        terms = {name: (prober.some(prober.scaled([name], 1 + step)) - f) / step for name in prober.trained}
        return cls(f, terms, screen)

    def without(self, name: str, prober: Prober) -> Euler:
        """The same where this parameter is 0. If it only adds to the outputs, nothing need be computed anew."""
        f = prober.some(prober.base)
        f = f if self.mix is None else self.mix @ f
        if float((self.f - self.terms[name] - f).abs().max()) > self.screen * float(f.abs().max()):
            return Euler.of(prober)
        return Euler(f, self.terms | {name: torch.zeros_like(f)}, self.screen, self.moved, self.mix, self.exact)

    def fit(self, names: Sequence[str]) -> Probe:
        """The degree that the sum of these terms fits best, and how well."""
        total = torch.stack([self.terms[name] for name in names]).sum(0)
        ratio = float(total @ self.f / (self.f @ self.f))
        degree = round(ratio) if math.isfinite(ratio) else 0
        error = float((total - degree * self.f).abs().max() / (max(1, abs(degree)) * self.f.abs().max()))
        return Probe(tuple(names), degree, error if math.isfinite(error) else math.inf, False)

    def fits(self, probe: Probe) -> bool:
        """Whether the identity holds as well as it must for a set that is homogeneous: gradients are exact up to rounding."""
        if self.exact is None or self.moved is None:
            return probe.error <= self.screen
        return probe.error <= min(self.screen, self.exact * (1 + sum(self.moved[name] for name in probe.names)))

    def across(self, names: Sequence[str]) -> list[str]:
        """Few parameters whose terms sum to a multiple of the outputs, wherever in the model they are; a guess, none if none do.

        A linear program for weights between 0 and 1: those of a set that is homogeneous and has no smaller one in it are alike.
        """
        import numpy as np
        from scipy.optimize import linprog

        names = [name for name in names if bool(self.terms[name].isfinite().all())]
        if not len(names) > 1 or (self.mix is None and len(names) >= len(self.f.unique())):  # too few outputs to tell
            return []
        f = (self.f / self.f.abs().max()).numpy()
        terms = torch.stack([self.terms[name] for name in names], 1).numpy() / float(self.f.abs().max())
        best = np.linalg.lstsq(terms, f, rcond=None)[0]
        if np.linalg.norm(terms @ best - f) > self.screen * np.linalg.norm(f):  # not with any weights
            return []
        some = np.random.default_rng(0).permutation(len(f))[: 2 * len(names) + 16]
        terms, f, ones = terms[some], f[some], np.ones((len(some), 1))
        solution = linprog(  # the largest error, and then the sum of the weights
            [1e-4] * len(names) + [1.0],
            A_ub=np.block([[terms, -ones], [-terms, -ones]]),
            b_ub=np.concatenate([f, -f]),
            bounds=[(0, 1)] * len(names) + [(0, self.screen)],
        )
        return (
            [] if solution.x is None else [name for name, x in zip(names, solution.x) if x > max(solution.x[:-1]) / 2]
        )


def _hooked(prober: Prober) -> bool:
    """Whether somebody listens to backward passes: ours are not for them."""
    modules = prober.model.modules()
    return any(module._backward_hooks or module._backward_pre_hooks for module in modules) or any(
        p._backward_hooks for p in prober.parameters.values()
    )


def _by_gradients(prober: Prober, screen: float) -> Euler | None:
    """None where there are no gradients, or where all of them together are not how the outputs change."""
    if _hooked(prober):
        return None
    mix = torch.randn(GRADIENTS, PICKS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parameters = [prober.parameters[name] for name in prober.trained]
    terms = {name: torch.zeros(GRADIENTS, dtype=torch.float64) for name in prober.trained}
    moved = dict.fromkeys(prober.trained, 0.0)
    try:
        with torch.enable_grad():
            sums = list(mix @ prober.some(prober.run(graph=True)))  # GRADIENTS of them
        for j in range(GRADIENTS):
            grads = torch.autograd.grad(sums[j], parameters, retain_graph=j + 1 < GRADIENTS, allow_unused=True)
            for name, p, grad in zip(prober.trained, parameters, grads):
                if grad is not None:
                    wide = torch.promote_types(p.dtype, torch.float32)
                    value, slope = p.detach().reshape(-1).to(wide), grad.reshape(-1).to(wide)
                    terms[name][j] = float(value @ slope)
                    if j < 2:  # of two mixtures one depends on it if any does
                        moved[name] = max(moved[name], float(value.norm() * slope.norm()))
    except (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError):
        return None
    f = torch.stack(sums).detach()
    size = float(f.abs().max())
    total = torch.stack(list(terms.values())).sum(0) if terms else torch.zeros_like(f)
    if not (size > 0 and bool(total.isfinite().all())):
        return None
    if prober.kind in LITTLE and terms:
        step = LITTLE[prober.kind]
        grown = (mix @ prober.some(prober.scaled(prober.trained, 1 + step)) - f) / step
        if float((grown - total).abs().max()) > screen * float(grown.abs().max()):
            return None
    return Euler(f, terms, screen, {name: value / size for name, value in moved.items()}, mix, ROUNDED.get(prober.kind))
