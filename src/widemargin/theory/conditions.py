"""Hypotheses that several theorems share, as Assumptions with the numbers that decide them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .guarantee import Assumption, Huge, Value, log_of

if TYPE_CHECKING:
    from .known_facts import Facts

Known = bool | None  # whether a hypothesis holds; None where that is not known
Measured = float | None  # None where it was not
ROUNDING = 1e-12  # points divided by their largest norm may exceed 1 by this


def show(value: Value) -> str:
    return str(value) if isinstance(value, Huge) else f"{value:.6g}"


def at_least(what: str, value: Value | None, needed: Value) -> Assumption:
    """value >= needed, not checked where value is None."""
    holds = None if value is None else log_of(value) >= log_of(needed) - 1e-12
    have = "not given" if value is None else show(value)
    return Assumption(f"{what} >= {show(needed)}", holds, f"{what} is {have}")


def at_most(what: str, value: Value | None, allowed: Value) -> Assumption:
    """value <= allowed, not checked where value is None."""
    holds = None if value is None else log_of(value) <= log_of(allowed) + 1e-12
    have = "not given" if value is None else show(value)
    return Assumption(f"{what} <= {show(allowed)}", holds, f"{what} is {have}")


def seen(text: str, value: Measured, holds: bool, said: str = "it is", unseen: str = "not given") -> Assumption:
    """Something that was decided by `value`, not checked where that was not measured."""
    return Assumption(text, None if value is None else holds, unseen if value is None else f"{said} {value:.6g}")


def in_unit_ball(radius: Measured) -> Assumption:
    holds = None if radius is None else radius <= 1 + ROUNDING
    return Assumption("||x|| <= 1", holds, "not given" if radius is None else f"largest ||x_i|| is {radius:.6g}")


def on_the_support(margin: str) -> Assumption:
    """A margin of the whole law: a sample cannot show it."""
    return Assumption(f"{margin} holds on the support of the law", None, "known on the sample only; cannot be checked")


def given(text: str, holds: Known, detail: str = "") -> Assumption:
    return Assumption(text, holds, detail or ("not given" if holds is None else ""))


def gradient_flow(facts: Facts) -> Assumption:
    """Whether the run follows gradient flow: GD does up to its steps."""
    rule = facts.rule.get("class")
    holds = None if rule is None or rule == "GD" else rule == "GradientFlow"
    detail = {None: "no run", "GD": "gradient descent: steps are finite, not checked"}.get(rule, f"the rule is {rule}")
    return Assumption("training is gradient flow", holds, detail)


def orders_of_test_error(constant: float, n: int, delta: float, **margins: float) -> dict[str, float]:
    """What numbers of a guarantee say of test errors at given margins, by names that say that they are orders."""
    orders = {
        f"{name}_up_to_a_constant": order_of_test_error(gamma, n, delta, constant) for name, gamma in margins.items()
    }
    return orders | {"test_error_constant": constant}


def order_of_test_error(margin: float, n: int, delta: float, constant: float = 1.0) -> float:
    """constant (ln(n)^3 / (n margin^2) + ln(1/delta) / n): the order of LR Lemma 2.5, which has no explicit constant."""
    if margin <= 0:
        return math.inf
    return constant * (math.log(n) ** 3 / (n * margin**2) + math.log(1 / delta) / n)
