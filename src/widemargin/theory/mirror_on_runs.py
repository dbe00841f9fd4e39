"""The theorems of `mirror` and `comparators` on Facts: the risk, the start and the time of a run put into them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from . import conditions, mirror
from ._rooms import flows, torch
from .comparators import Comparator, best_p_bar, width_for_comparator
from .guarantee import Guarantee, Value, applied, from_log
from .known_facts import Facts

LOSSES = ("logistic", "exp")
TEMPERATURES = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)  # of the comparators that are tried on a network


@applied("UH-7")
def _margin_from_risk(facts: Facts) -> Guarantee | None:
    log_risk = facts.last("log_risk")
    if log_risk is None or facts.loss not in LOSSES or facts.net is None or facts.end is None:
        return None
    sizes = facts.net.normalizers(facts._batched(facts.end))
    unit = next((name for name in ("M5", "M1", "M2", "M6") if name in sizes), None)
    if unit is None or not 0 < (size := float(sizes[unit][0])) < math.inf:
        return None
    return mirror.margin_from_risk(log_risk, facts.n, size, facts.loss, unit)


@applied("UH-21")
def _width_for_comparator(facts: Facts) -> Guarantee | None:
    unit = facts.unit
    best = unit.positive("f1")
    if best is None:
        return None
    normalized = isinstance(facts.net, flows.Normalized)
    return width_for_comparator(
        best.lower, facts.d, facts.n, facts.delta, m=facts.m if normalized else None, radius=unit.radius
    )


@applied("UH-23")
def _margin_of_normalized_net(facts: Facts) -> list[Guarantee] | None:
    unit = facts.unit
    best = unit.positive("f1")
    if best is None or facts.n < 2:
        return None
    m = facts.m if isinstance(facts.net, flows.Normalized) else None
    t = _time(facts) if m is not None and unit is facts else None
    keys: dict[str, Any] = {"m": m, "radius": unit.radius}
    return [
        mirror.margin_of_normalized_net(best.lower, facts.d, facts.n, facts.delta, t, **keys),
        mirror.margin_of_normalized_net(best.lower, facts.d, facts.n, facts.delta, t, phase="late", **keys),
    ]


@dataclass(frozen=True)
class _Start:
    """A product network at its start: comparators, u(0) and the constants of its features."""

    comparators: list[Comparator]
    size: float  # ||u(0)||_1
    balanced: bool
    C1: float | None
    C2: float | None
    best: float

    def keys(self, facts: Facts) -> dict[str, Any]:
        return {"start": self.size, "loss": facts.loss, "balanced": self.balanced}


def _start(facts: Facts) -> _Start | None:
    net = facts.net
    if facts.start is None or facts.loss not in LOSSES or facts.n < 2:
        return None
    if not isinstance(net, flows.Scalar | flows.Normalized | flows.Product):
        return None
    W = facts._batched(facts.start)
    with torch.no_grad():
        F = net.features(W, torch.as_tensor(np.array(facts.data.X))[None])[0].numpy()  # (n, m)
    u, beta = net.u(W)[0].numpy(), net.beta(W)[0].numpy()
    Z = facts.data.signs()[:, None] * beta * F
    if (u <= 0).any():
        return None
    size = float(np.abs(Z).max())
    comparators = [best_p_bar(Z, u, size * T) for T in TEMPERATURES]
    good = [comparator for comparator in comparators if comparator.margin > 0 and comparator.kl < math.inf]
    balanced = bool(np.allclose(np.abs(facts.start["a"]), np.abs(facts.start["b"]), rtol=1e-9, atol=0))
    C1: float | None = 0.0 if isinstance(net, flows.Scalar) else None
    C2 = C1
    if isinstance(net, flows.Normalized):
        C1, C2 = float(mirror.gradient_constants(facts.start["V"], facts.data.X).numbers["bound"]), 0.0
    return _Start(good, float(u.sum()), balanced, C1, C2, facts.radius)


def _time(facts: Facts) -> Value | None:
    log_t = facts.last("log_t_mean")
    return None if log_t is None or log_t + math.log(facts.n) <= 0 else from_log(log_t)


def _better(guarantees: list[Guarantee]) -> Guarantee | None:
    """The largest of those that apply; if none does, the one with the fewest assumptions that fail."""
    return max(guarantees, key=lambda g: (-sum(a.holds is False for a in g.assumptions), float(g.value)), default=None)


def _by_flow(best: Guarantee, facts: Facts) -> Guarantee:
    """With what is known of the rule of the run as the assumption about it."""
    flow = conditions.gradient_flow(facts)
    notes = tuple(flow if note.text.startswith("training is") else note for note in best.assumptions)
    return replace(best, assumptions=notes)


@applied("UH-16")
def _margin_of_product_net(facts: Facts) -> list[Guarantee] | None:
    begin, t = _start(facts), _time(facts)
    if begin is None or t is None:
        return None
    out = []
    for phase in ("early", "late"):
        guarantees = []
        for p in begin.comparators:
            keys = begin.keys(facts) | {"phase": phase, "best": max(begin.best, p.margin)}
            known = (p.margin, p.kl, t, facts.n, p.largest, begin.C1, begin.C2)
            guarantees.append(mirror.margin_of_product_net(*known, **keys))
        best = _better(guarantees)
        if best is not None:
            out.append(_by_flow(best, facts))
    return out


def _frozen(facts: Facts, theorem: Callable[..., Guarantee]) -> Guarantee | None:
    """A bound of Lemma 3.4 or A.4 on a network whose features do not move, with the best of the comparators."""
    t = _time(facts)
    begin = _start(facts) if isinstance(facts.net, flows.Scalar) and t is not None else None
    if begin is None:
        return None
    guarantees = []
    for p in begin.comparators:
        keys = begin.keys(facts) | {"along": p.margin, "t": t, "n": facts.n}
        keys |= {"best": max(begin.best, p.margin)} if theorem is mirror.late_margin else {}
        guarantees.append(theorem(p.kl, p.margin, **keys))
    if theorem is mirror.norm_budget:
        best = min(guarantees, key=lambda given: float(given.value), default=None)
    else:
        best = _better(guarantees)
    return best and _by_flow(best, facts)


for id, theorem in (("UH-12", mirror.norm_budget), ("UH-13", mirror.early_margin), ("UH-15", mirror.late_margin)):
    applied(id)(partial(_frozen, theorem=theorem))


@applied("UH-22")
def _gradient_constants(facts: Facts) -> Guarantee | None:
    W = facts.end if facts.end is not None else facts.start
    if not isinstance(facts.net, flows.Normalized) or W is None:
        return None
    sizes = np.linalg.norm(W["V"], axis=1)  # infinite where a network is too large for numbers with a point
    return mirror.gradient_constants(W["V"], facts.data.X) if (np.isfinite(sizes) & (sizes > 0)).all() else None
