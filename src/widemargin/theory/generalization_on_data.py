"""The bounds of `generalization` on Facts: which classifiers of the data and of a run they say something about."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from widemargin.spaces import ReLU
from widemargin.types import Certificate

from ._rooms import distance
from .complexity import rademacher_bound, rademacher_hull
from .generalization import (
    ball_margin_bound,
    class_margin_bound,
    fast_rate_l1,
    fast_rate_l2,
    hull_margin_bound,
    kernel_margin_bound,
    network_margin_bound,
    pac_bayes_margin_bound,
    projected_distance_bound,
    projected_distance_margin,
    ramp_loss,
    ramp_margin_bound,
    regression_bound,
)
from .guarantee import NETWORK, Guarantee, applied
from .known_facts import Facts

LOW_RANK = 2  # ranks below d at which projected distances are looked at,
PAIRS = 40_000  # for up to so many pairs of points
NAMES = {"linear": "linear classifier", "f2": "kernel classifier"}


def _lower(cert: Certificate | None) -> float | None:
    return None if cert is None or not cert.lower > 0 else float(cert.lower)


def _is_hull(facts: Facts) -> bool:
    """Whether the trained network is a measure on unit ReLUs of the points as given."""
    return facts.measure is not None and facts.measure.activation == "relu" and not facts.measure.bias


def _margins_M1(facts: Facts) -> list[tuple[str, float]]:
    """Margins in M1: the largest one of the data, as certified, and that of the trained network, where they are positive."""
    reached = facts.normalized("M1") if _is_hull(facts) else None
    found = [("F1 network of largest margin", _lower(facts.margin("f1"))), (NETWORK, reached)]
    return [(name, gamma) for name, gamma in found if gamma is not None and gamma > 0]


def _for(who: str, guarantee: Guarantee) -> Guarantee:
    return replace(guarantee, about=who)


def _two_classes(facts: Facts) -> bool:
    return bool(np.isin(facts.data.y, (-1.0, 1.0)).all())


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
        ramp_margin_bound(float(ramp_loss(a, gamma).mean()), rad, gamma, facts.radius, facts.n, facts.delta)
        for gamma in np.quantile(a, np.linspace(0, 1, 21)).tolist()
        if gamma > 0
    ]
    return _for(NETWORK, min(tried, key=lambda one: float(one.value))) if tried else None


@applied("CB-22")
def _class_on(facts: Facts) -> list[Guarantee] | None:
    if not _two_classes(facts):
        return None
    rad = rademacher_hull(_frobenius(facts), facts.n)
    return [
        _for(who, class_margin_bound(rad, gamma, facts.radius, facts.n, facts.delta))
        for who, gamma in _margins_M1(facts)
    ] or None


@applied("MT-7")
def _network_on(facts: Facts) -> list[Guarantee] | None:
    if not _two_classes(facts):
        return None
    D = _frobenius(facts) ** 2 / facts.n
    return [
        _for(who, network_margin_bound(gamma / 2, facts.n, D, facts.radius, facts.delta))
        for who, gamma in _margins_M1(facts)
    ] or None


@applied("MT-14")
def _kernel_on(facts: Facts) -> list[Guarantee] | None:
    if not _two_classes(facts):
        return None
    gamma = _lower(facts.margin("f2"))
    if gamma is None:
        return None
    D = _frobenius(facts) ** 2 / facts.n
    return [
        _for(
            "kernel classifier of largest margin",
            kernel_margin_bound(gamma, facts.n, facts.d, D, facts.radius, facts.delta),
        )
    ]


@applied("UH-24")
def _fast_l1_on(facts: Facts) -> list[Guarantee] | None:
    if not _two_classes(facts):
        return None
    R = max(facts.radius, 1.0)  # divide the points by R: margins are divided too
    return [_for(who, fast_rate_l1(gamma / R, facts.n, facts.delta)) for who, gamma in _margins_M1(facts)] or None


@applied("LR-18")
def _fast_l2_on(facts: Facts) -> list[Guarantee] | None:
    if not _two_classes(facts):
        return None
    R = max(facts.radius, 1.0)
    return [_for(who, fast_rate_l2(gamma / 2 / R, facts.n, facts.delta)) for who, gamma in _margins_M1(facts)] or None


@applied("MT-16")
def _rademacher_on(facts: Facts) -> list[Guarantee]:
    return [rademacher_bound(_frobenius(facts), facts.n, facts.d, kind=kind) for kind in ("hull", "kernel", "linear")]


@applied("MT-22")
def _regression_on(facts: Facts) -> list[Guarantee] | None:
    """The interpolants of least norm under the loss min(1, |f - y|): mean loss 0, M = 1, c = 1 (its range [0, 1] is inside)."""
    if _two_classes(facts):
        return None
    found = []
    for kind, solver in (("l1", "min_norm_l1"), ("l2", "min_norm_l2")):
        cert = facts.margin(solver)
        if cert is not None and cert.proved and math.isfinite(cert.upper) and cert.upper > 0:
            frob = _frobenius(facts)
            one = regression_bound(0.0, cert.upper, frob, facts.n, facts.d, facts.delta, kind=kind, lipschitz=True)
            found.append(_for("interpolant of least norm, loss min(1, |f - y|)", one))
    return found or None


@applied("CB-20")
def _projected_on(facts: Facts) -> list[Guarantee] | None:
    return [
        projected_distance_bound(Delta, facts.radius, r, facts.n, facts.delta, d=facts.d)
        for r, Delta in _interclass(facts)
    ] or None


@applied("CB-21")
def _projected_margin_on(facts: Facts) -> list[Guarantee] | None:
    return [
        projected_distance_margin(Delta, facts.radius, r, radius=facts.radius, d=facts.d)
        for r, Delta in _interclass(facts)
    ] or None


def _interclass(facts: Facts) -> list[tuple[int, float]]:
    """(r, Delta_r) for small r, from below as the search of `margins.projected` reaches it, and for r = d, the smallest distance
    between points of different classes. Which r is the best depends on constants C(r) that nobody knows."""
    if not _two_classes(facts) or len(np.unique(facts.data.y)) < 2:
        return []
    X, y = facts.data.X, facts.data.y
    found = []
    for r in range(1, min(LOW_RANK, facts.d - 1) + 1):
        if np.sum(y > 0) * np.sum(y < 0) <= PAIRS:  # a short search: the constants are not known anyway
            cert = facts.margin("projected", rank=r, restarts=2, tol=0.05)
            found.append((r, 0.0 if cert is None else float(cert.lower)))
    halves = np.array_split(X[y > 0], max(1, int((y > 0).sum()) // 500))
    found.append((facts.d, min(float(distance.cdist(part, X[y < 0]).min()) for part in halves)))
    return [(r, Delta) for r, Delta in found if Delta > 0]


@applied("WM-1")
def _hull_on(facts: Facts) -> list[Guarantee] | None:
    if not _two_classes(facts):
        return None
    frob = _frobenius(facts)
    return [
        _for(who, hull_margin_bound(gamma, frob, facts.n, facts.delta)) for who, gamma in _margins_M1(facts)
    ] or None


@applied("WM-2")
def _ball_on(facts: Facts) -> list[Guarantee] | None:
    if not _two_classes(facts):
        return None
    square, found = _frobenius(facts) ** 2, []
    for kind, trace, unit in (("linear", square, "M11"), ("f2", square / (2 * facts.d), "M7")):
        gamma = _lower(facts.margin(kind))
        if gamma is not None:
            found.append(
                _for(
                    f"{NAMES[kind]} of largest margin", ball_margin_bound(gamma, trace, facts.n, facts.delta, unit=unit)
                )
            )
    return found or None


@applied("WM-3")
def _pac_bayes_on(facts: Facts) -> list[Guarantee] | None:
    """The max-margin classifiers themselves; any margins of a fixed classifier may be used, not only those the solver
    certifies."""
    if not _two_classes(facts):
        return None
    found: list[Guarantee] = []
    for kind in ("linear", "f2"):
        cert = facts.margin(kind)
        if cert is None or not cert.lower > 0:
            continue
        m = _angles(facts, cert)
        found.append(_for(f"{NAMES[kind]} of largest margin", pac_bayes_margin_bound(m, facts.n, facts.delta)))
    return found or None


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
