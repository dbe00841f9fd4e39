"""The bounds of `generalization` on Facts: which classifiers of the data and of a run they say something about."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from widemargin.spaces import ReLU
from widemargin.types import Certificate

from . import generalization as bounds
from ._rooms import distance
from .complexity import rademacher_bound, rademacher_hull
from .guarantee import NETWORK, Guarantee, applied
from .known_facts import Facts

LOW_RANK = 2  # ranks below d at which projected distances are looked at,
PAIRS = 40_000  # for up to so many pairs of points
NAMES = {"linear": "linear classifier", "f2": "kernel classifier"}


def _is_hull(facts: Facts) -> bool:
    """Whether the trained network is a measure on unit ReLUs of the points as given."""
    return facts.measure is not None and facts.measure.activation == "relu" and not facts.measure.bias


def _margins_M1(facts: Facts) -> list[tuple[str, float]]:
    """Margins in M1: the largest one of the data, as certified, and that of the trained network, where they are positive."""
    reached = facts.normalized("M1") if _is_hull(facts) else None
    best = facts.positive("f1")
    margins = [("F1 network of largest margin", None if best is None else best.lower), (NETWORK, reached)]
    return [(name, gamma) for name, gamma in margins if gamma is not None and gamma > 0]


def _for(who: str, guarantee: Guarantee) -> Guarantee:
    return replace(guarantee, about=who)


def _frobenius(facts: Facts) -> float:
    return float(np.linalg.norm(facts.data.X))


@applied("MT-15")
def _ramp_on(facts: Facts) -> Guarantee | None:
    """The trained network; the bound holds for all margins at once, so the best of a few quantiles of its margins may be
    taken."""
    if not _is_hull(facts) or facts.p is None or not facts.measure.norm > 0:  # type: ignore[union-attr]
        return None
    a = facts.p / facts.measure.norm  # type: ignore[union-attr]
    rad = rademacher_hull(_frobenius(facts), facts.n)
    tried = [
        bounds.ramp_margin_bound(
            float(bounds.ramp_loss(a, gamma).mean()), rad, gamma, facts.radius, facts.n, facts.delta
        )
        for gamma in np.quantile(a, np.linspace(0, 1, 21)).tolist()
        if gamma > 0
    ]
    return _for(NETWORK, min(tried, key=lambda given: float(given.value))) if tried else None


def _at_margins(facts: Facts, bound: Callable[[Facts, float], Guarantee]) -> list[Guarantee]:
    """A bound at the margins in M1 of the data and of the trained network."""
    return [_for(who, bound(facts, gamma)) for who, gamma in _margins_M1(facts)]


def _class_bound(facts: Facts, gamma: float) -> Guarantee:
    rad = rademacher_hull(_frobenius(facts), facts.n)
    return bounds.class_margin_bound(rad, gamma, facts.radius, facts.n, facts.delta)


def _network_bound(facts: Facts, gamma: float) -> Guarantee:
    D = _frobenius(facts) ** 2 / facts.n
    return bounds.network_margin_bound(gamma / 2, facts.n, D, facts.radius, facts.delta)


for id, bound in {
    "CB-22": _class_bound,
    "MT-7": _network_bound,
    # divide the points by max(radius, 1): margins are divided too
    "UH-24": lambda facts, gamma: bounds.fast_rate_l1(gamma / max(facts.radius, 1.0), facts.n, facts.delta),
    "LR-18": lambda facts, gamma: bounds.fast_rate_l2(gamma / 2 / max(facts.radius, 1.0), facts.n, facts.delta),
    "WM-1": lambda facts, gamma: bounds.hull_margin_bound(gamma, _frobenius(facts), facts.n, facts.delta),
}.items():
    applied(id, two_classes=True)(partial(_at_margins, bound=bound))


@applied("MT-14", two_classes=True)
def _kernel_on(facts: Facts) -> list[Guarantee] | None:
    cert, D = facts.positive("f2"), _frobenius(facts) ** 2 / facts.n
    if cert is None:
        return None
    guarantee = bounds.kernel_margin_bound(cert.lower, facts.n, facts.d, D, facts.radius, facts.delta)
    return [_for("kernel classifier of largest margin", guarantee)]


@applied("MT-16")
def _rademacher_on(facts: Facts) -> list[Guarantee]:
    return [rademacher_bound(_frobenius(facts), facts.n, facts.d, kind=kind) for kind in ("hull", "kernel", "linear")]


@applied("MT-22", two_classes=False)
def _regression_on(facts: Facts) -> list[Guarantee] | None:
    """The interpolants of least norm under the loss min(1, |f - y|): mean loss 0, M = 1, c = 1 (its range [0, 1] is inside)."""
    guarantees = []
    for kind, solver in (("l1", "min_norm_l1"), ("l2", "min_norm_l2")):
        cert = facts.margin(solver)
        if cert is not None and cert.proved and math.isfinite(cert.upper) and cert.upper > 0:
            frob = _frobenius(facts)
            guarantee = bounds.regression_bound(
                0.0, cert.upper, frob, facts.n, facts.d, facts.delta, kind=kind, lipschitz=True
            )
            guarantees.append(_for("interpolant of least norm, loss min(1, |f - y|)", guarantee))
    return guarantees


@applied("CB-20")
def _projected_on(facts: Facts) -> list[Guarantee] | None:
    return [
        bounds.projected_distance_bound(Delta, facts.radius, r, facts.n, facts.delta, d=facts.d)
        for r, Delta in _interclass(facts)
    ]


@applied("CB-21")
def _projected_margin_on(facts: Facts) -> list[Guarantee] | None:
    return [
        bounds.projected_distance_margin(Delta, facts.radius, r, radius=facts.radius, d=facts.d)
        for r, Delta in _interclass(facts)
    ]


def _interclass(facts: Facts) -> list[tuple[int, float]]:
    """(r, Delta_r) for small r, from below as the search of `margins.projected` reaches it, and for r = d, the smallest distance
    between points of different classes. Which r is the best depends on constants C(r) that nobody knows."""
    if not facts.two_classes or len(np.unique(facts.data.y)) < 2:
        return []
    X, y = facts.data.X, facts.data.y
    distances = []
    for r in range(1, min(LOW_RANK, facts.d - 1) + 1):
        if np.sum(y > 0) * np.sum(y < 0) <= PAIRS:  # a short search: the constants are not known anyway
            cert = facts.margin("projected", rank=r, restarts=2, tol=0.05)
            distances.append((r, 0.0 if cert is None else float(cert.lower)))
    halves = np.array_split(X[y > 0], max(1, int((y > 0).sum()) // 500))
    distances.append((facts.d, min(float(distance.cdist(part, X[y < 0]).min()) for part in halves)))
    return [(r, Delta) for r, Delta in distances if Delta > 0]


@applied("WM-2", two_classes=True)
def _ball_on(facts: Facts) -> list[Guarantee] | None:
    square, guarantees = _frobenius(facts) ** 2, []
    for kind, trace, unit in (("linear", square, "M11"), ("f2", square / (2 * facts.d), "M7")):
        cert = facts.positive(kind)
        if cert is not None:
            guarantee = bounds.ball_margin_bound(cert.lower, trace, facts.n, facts.delta, unit=unit)
            guarantees.append(_for(f"{NAMES[kind]} of largest margin", guarantee))
    return guarantees


@applied("WM-3", two_classes=True)
def _pac_bayes_on(facts: Facts) -> list[Guarantee]:
    """The max-margin classifiers themselves; any margins of a fixed classifier may be used, not only those the solver
    certifies."""
    guarantees: list[Guarantee] = []
    for kind in ("linear", "f2"):
        cert = facts.positive(kind)
        if cert is not None:
            guarantee = bounds.pac_bayes_margin_bound(_angles(facts, cert), facts.n, facts.delta)
            guarantees.append(_for(f"{NAMES[kind]} of largest margin", guarantee))
    return guarantees


def _angles(facts: Facts, cert: Certificate) -> np.ndarray:
    """y_i <w, psi_i> / (||w|| ||psi_i||) (n,) of the certificate's classifier."""
    X, y = facts.data.X, facts.data.signs()
    extra: dict[str, Any] = dict(cert.extra)
    if cert.kind == "linear":
        u = np.asarray(extra["u"])
        size = np.linalg.norm(X, axis=1)
        return y * (X @ u) / np.linalg.norm(u) / np.where(size > 0, size, 1)
    K = ReLU().kernel(X)
    b = np.asarray(extra["alpha"]) * y
    f = K @ b
    return y * f / math.sqrt(b @ f) / np.sqrt(np.where(K.diagonal() > 0, K.diagonal(), 1))
