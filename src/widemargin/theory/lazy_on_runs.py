"""The theorems of `lazy` on Facts: margins of transports, the start and the movement of a run put into them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from . import conditions, lazy
from ._rooms import flows
from .guarantee import Assumption, Guarantee, applied
from .known_facts import Facts

CONFIDENCE = 0.99  # of sampled NTK margins
TARGET = 0.1  # test error for which steps are counted where there is no run


@applied("LR-10")
def _margins_of_linear_data(facts: Facts) -> list[Guarantee] | None:
    best = facts.positive("linear")
    if best is None:
        return None
    return [lazy.margins_of_linear_data(best.lower, facts.d, of) for of in ("global", "inner", "outer")]


@applied("LR-20")
def _ntk_from_positive_network(facts: Facts) -> Guarantee | None:
    if len(np.unique(facts.data.y)) > 1 or facts.data.y[0] != 1:
        return None
    best = facts.positive("f1")
    if best is None or best.primal is None:
        return None
    sizes = np.linalg.norm(facts.data.X, axis=1)
    return lazy.ntk_from_positive_network(
        best.lower,
        facts.d,
        positive_weights=bool((best.primal.mass > 0).all()),
        one_label=True,
        unit_points=bool(np.allclose(sizes, 1, rtol=0, atol=1e-9)),
    )


@applied("LR-21")
def _start_bounds(facts: Facts) -> Guarantee | None:
    if not isinstance(facts.net, flows.TwoLayer):
        return None
    return lazy.start_bounds(facts.net.m, facts.d, facts.n, facts.delta, radius=facts.radius, start=lr_start(facts))


@applied("LR-14")
def _freedman_transfer(facts: Facts) -> Guarantee | None:
    total, t = facts.last("slopes"), facts.last("step")
    if total is None or not t or facts.loss != "logistic" or facts.rule.get("batch", 1) != 1:
        return None
    return lazy.freedman_transfer(total, facts.delta, int(t), fresh=_fresh(facts, int(t)))


def _fresh(facts: Facts, t: int) -> bool | None:
    """Whether SGD saw each example once; that they are independent cannot be checked."""
    rule = facts.rule
    if rule.get("class") != "SGD" or rule.get("batch", 1) != 1:
        return False
    once = rule.get("sampler") is not None or (rule.get("order") in ("stream", "epochs") and t <= facts.n)
    return None if once else False


@applied("LR-12")
def _sgd_test_error(facts: Facts) -> Guarantee | None:
    run = facts.rule.get("class") == "SGD" and isinstance(facts.net, flows.TwoLayer)
    known = facts if run else facts.unit
    gamma = outer_margin(known)
    if gamma is None:
        return None
    steps = facts.last("step") if run else None
    if not steps:
        needed = lazy.steps_for_sgd(TARGET, gamma, facts.delta)
        guarantee = lazy.sgd_test_error(gamma, needed, facts.delta, radius=known.radius)
        says = f"{needed:.6g} steps of SGD on fresh examples reach test error {TARGET:g} at some step"
        return _sourced(replace(guarantee, statement=says, value=needed, quantity="samples"), known, gamma)
    keys: dict[str, Any] = {"m": facts.m, "radius": known.radius, "loss": facts.loss, "start": lr_start(facts)}
    keys |= {"eta": facts.rule.get("lr"), "fresh": _fresh(facts, int(steps))}
    return _sourced(lazy.sgd_test_error(gamma, steps, facts.delta, **keys), known, gamma)


def _near_start(facts: Facts) -> tuple[Facts, float] | None:
    """The facts to use, points rescaled to the unit ball where there is no two-layer network, and their outer margin."""
    known = facts if isinstance(facts.net, flows.TwoLayer) else facts.unit
    gamma = outer_margin(known)
    return None if gamma is None else (known, gamma)


@applied("LR-16", _near_start)
def _training_risk_of_flow(facts: Facts, known: Facts, gamma: float) -> Guarantee:
    t = facts.last("t_mean") if known is facts and isinstance(facts.net, flows.TwoLayer) else None
    guarantee = lazy.training_risk_of_flow(
        gamma, t if t else float(facts.n), facts.n, facts.delta, **_of_net(facts, known)
    )
    return _sourced(guarantee, known, gamma)


@applied("LR-17", _near_start)
def _margin_after_moving(facts: Facts, known: Facts, gamma: float) -> Guarantee:
    keys = _of_net(facts, known)
    fitted = None
    if keys.get("m") is not None and known is facts:
        moved = _movement(facts)
        if moved is not None and facts.run is not None and "log_risk" in facts.run.records:
            log_risk = facts.run["log_risk"]
            near = moved <= gamma * math.sqrt(facts.m or 1) / 64
            below = log_risk[:, facts.trial] < math.log((1 if facts.loss == "exp" else math.log(2)) / facts.n)
            fitted = bool((near & below).any())
            keys["moved"] = float(moved[-1])
    return _sourced(lazy.margin_after_moving(gamma, facts.n, facts.delta, fitted=fitted, **keys), known, gamma)


@applied("LR-15", _near_start)
def _margin_of_flow(facts: Facts, known: Facts, gamma: float) -> Guarantee:
    return _sourced(lazy.margin_of_flow(gamma, facts.n, facts.delta, **_of_net(facts, known)), known, gamma)


# ---------------------------------------------------------------- what Facts say


def outer_margin(facts: Facts) -> float | None:
    """A lower bound on the NTK margin of outer transports: sampled (`margins.ntk`), or proved from the linear margin (LR-10)."""
    best = max(_sampled(facts), _from_linear(facts))
    return best if best > 0 else None


def _sampled(facts: Facts) -> float:
    cert = facts.margin("ntk", part="outer", confidence=CONFIDENCE)
    return 0.0 if cert is None else cert.lower


def _from_linear(facts: Facts) -> float:
    cert = facts.positive("linear")
    return 0.0 if cert is None else cert.lower / 2 * lazy.truncated_mean(facts.d)


def _sourced(guarantee: Guarantee, known: Facts, gamma: float) -> Guarantee:
    """With where the margin of the sample comes from as one more assumption."""
    proved = gamma <= _from_linear(known)
    detail = "proved, from the linear margin" if proved else f"a sampled bound, right with probability {CONFIDENCE}"
    source = Assumption(f"the NTK margin (outer layer) of the sample is at least {gamma:.6g}", True, detail)
    return replace(guarantee, assumptions=(source, *guarantee.assumptions))


def _of_net(facts: Facts, known: Facts) -> dict[str, Any]:
    """Arguments about the network and the run; without a two-layer network only the radius."""
    if not isinstance(facts.net, flows.TwoLayer):
        return {"radius": known.radius}
    return {"m": facts.net.m, "radius": facts.radius, "start": lr_start(facts), "flow": conditions.gradient_flow(facts)}


def lr_start(facts: Facts) -> bool | None:
    """Whether the network is LR's: both layers of a ReLU network trained from its law."""
    net = facts.net
    if not isinstance(net, flows.TwoLayer):
        return None
    return bool(
        net.law == "lr"
        and net.law_scale == 1
        and net.train == "both"
        and net.activation == "relu"
        and not net.mean_field
        and net.widths is None
    )


def _movement(facts: Facts) -> np.ndarray | None:
    """||W_s - W_0|| at every record of the trial."""
    if facts.run is None or not {"moved_a", "moved_V"} <= set(facts.run.records):
        return None
    return np.hypot(*(facts.run.records[name][:, facts.trial] for name in ("moved_a", "moved_V")))
