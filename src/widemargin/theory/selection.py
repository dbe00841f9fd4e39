"""Beyond the start: what the global margin guarantees at exponential width (LR Section 3).

The proofs follow a potential Phi: while it grows at rate gamma in the clock int Q ds (Q = |l'(psi)|, flow on the sum of losses),
which is CB's clock for the exponential loss, the margin cannot stay below gamma.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from widemargin.types import InputError, Measure

from . import conditions
from ._rooms import flows
from .arguments import Convention, Count, Positive, Probability, checked
from .conditions import Known, Measured, at_least, given, in_unit_ball, seen
from .guarantee import Assumption, Guarantee, applied, assuming, from_log, states
from .known_facts import Facts


@checked
def cap_probability(eps: Positive, d: Count) -> float:
    """Pr[||v - e|| <= eps] for v uniform on the sphere of R^d and a fixed unit e, exactly."""
    from scipy.special import betainc

    if eps >= 2:
        return 1.0
    if d == 1:
        return 0.5
    cosine = 1 - eps**2 / 2
    half = 0.5 * float(betainc((d - 1) / 2, 0.5, 1 - cosine**2))
    return half if cosine >= 0 else 1 - half


@states("LR-31", "LR Lemma C.1", quantity="width")
@assuming("directions uniform on the sphere", "eps <= 2")
def covering_width(
    eps: Positive, d: Count, r: Count, delta: Probability, *, m: Measured = None, share: Positive = 1.0
) -> Guarantee:
    """That many random directions contain one within eps of each of r targets

    m >= 2 (2/eps)^d ln(r/delta): with probability 1 - delta every target has a direction within eps (LR-31).

    From Pr[cap] >= (1/2)(eps/2)^(d-1); `width_proof` is 2 (2/eps)^(d-1) ln(r/delta), which the proof needs, `width_exact` the
    smallest m with (1 - Pr[cap])^m <= delta/r for the exact probability. `share`: only such a share of the directions, at random,
    may serve (1/2 where a random sign must match too); it divides the probability in these two numbers.

    >>> from widemargin import theory
    >>> print(theory.selection.covering_width(eps=0.1, d=3, r=2, delta=0.05))
    LR-31: width 59022, not all assumptions checked [LR Lemma C.1]
    """
    log_ln = math.log(math.log(r / delta))
    width = from_log(math.log(2) + d * math.log(2 / eps) + log_ln)
    proof = from_log(math.log(2 / share) + (d - 1) * math.log(2 / eps) + log_ln)
    cap = min(share * cap_probability(eps, d), 1 - 1e-15)
    exact = math.log(r / delta) / -math.log1p(-cap) if cap > 0 else proof
    return Guarantee(
        f"{conditions.show(width)} random directions contain one within {eps:.6g} of each of {r} targets",
        width,
        (
            given("directions are independent and uniform on the sphere", None, "the law of the start"),
            Assumption("eps <= 2", bool(eps <= 2), f"eps is {eps:.6g}"),
            at_least("m", m, width),
        ),
        numbers={"width_proof": proof, "width_exact": exact, "cap": cap / share},
    )


@states("LR-25", "LR Lemma A.6", quantity="margin", unit="M2")
@assuming(
    "2-homogeneous network, exponential loss, flow on the sum",
    "Phi <= ln||u||/2",
    "dPhi/dt >= Q gamma from some time on",
)
def margin_from_potential(
    rate: Positive, *, below: Known = None, loss: str | None = None, degree: Measured = None
) -> Guarantee:
    """If a potential below ln||u||/2 grows at rate gamma Q, the margin of gradient flow ends at gamma or above

    liminf gamma(u_t) >= gamma_hat, the risk tends to 0 and ||u|| to infinity (LR-25, E-LR-11; M2 for two-layer networks).

    `rate` is the smallest (dPhi/dt)/Q from some time on (`potential_rate`), `below` whether Phi <= (1/2) ln||u|| was seen.

    >>> from widemargin import theory
    >>> print(theory.selection.margin_from_potential(rate=0.3, below=True, loss='exp', degree=2))
    LR-25: margin (M2) 0.3, not all assumptions checked [LR Lemma A.6]
    """
    return Guarantee(
        f"the limit of the margin is at least {rate:.6g}",
        rate,
        (
            given("the network is homogeneous of degree 2", None if degree is None else degree == 2),
            given("the loss is exponential", None if loss is None else loss == "exp", loss or ""),
            given("Phi <= ln||u|| / 2", below),
            given(f"dPhi/dt >= {rate:.6g} Q at all later times", None, "a run shows it up to its end only"),
        ),
    )


def potential_rate(clock: ArrayLike, phi: ArrayLike) -> np.ndarray:
    """Mean of (dPhi/dt)/Q between records, from Phi and the clock int Q dt of the sum flow (t_cb for the exponential loss)."""
    clock, phi = np.asarray(clock, dtype=np.float64), np.asarray(phi, dtype=np.float64)
    if clock.shape != phi.shape or clock.ndim != 1 or not (np.diff(clock) > 0).all():
        raise InputError("potential_rate: give an increasing clock and the potential at the same records")
    return np.diff(phi) / np.diff(clock)


# ---------------------------------------------------------------- neural collapse


@dataclass(frozen=True)
class Collapse:
    """How well points collapse to directions: own inner products >= gamma, others <= -polar, own points `across` off axis."""

    gamma: float
    polar: float
    across: float
    covered: bool  # every point has a direction of its own label


def collapse_of(X: ArrayLike, y: ArrayLike, beta: ArrayLike, signs: ArrayLike) -> Collapse:
    """Points i belong to direction k where signs_k = y_i and beta_k.x_i > 0 (LR Assumption 3.1, E-LR-13)."""
    X, y, beta, signs = (np.asarray(part, dtype=np.float64) for part in (X, y, beta, signs))
    inner = X @ beta.T  # (n, r)
    across = np.sqrt(((X**2).sum(1)[:, None] - inner**2).clip(0))
    own = (signs == y[:, None]) & (inner > 0)
    return Collapse(
        float(inner[own].min()) if own.any() else 0.0,
        float(-inner[~own].max()) if (~own).any() else math.inf,
        float(across[own].max()) if own.any() else 0.0,
        bool(own.any(axis=1).all()),
    )


@states("LR-28", "LR Theorem 3.2", quantity="margin", unit="M2", fails={"derived": 1, "printed": 3})
@assuming(
    "exponential loss, gradient flow", "neural collapse data (gamma_nc, eps)", "||x|| <= 1", "width exponential in d"
)
def collapse_margin(
    gamma_nc: Positive,
    eps: Positive,
    r: Count,
    d: Count,
    n: Count,
    delta: Probability,
    *,
    m: Measured = None,
    polar: Measured = None,
    across: Measured = None,
    covered: Known = None,
    loss: str | None = None,
    radius: Measured = None,
    start: Known = None,
    flow: Assumption | None = None,
    constant: float = 1.0,
    convention: Convention = "derived",
) -> Guarantee:
    """On neural collapse data gradient flow of exponential width ends with at least the margin of the collapsed network

    For all large t psi/||W_t||^2 >= (gamma_nc - eps)/(2r) (printed: 8r), width 4 (2/eps)^(d-1) ln(r/delta) (LR-28, E-LR-14).

    Derived: with the threshold 1 - eps^2/2 in the potential, points must be within gamma_nc eps/2 of their axis (printed:
    gamma_nc sqrt(eps/2)); then dPhi/dt >= Q (gamma_nc - eps)/(2r). A unit must lie within eps of each direction and have its
    sign: probability (1/4)(eps/2)^(d-1). Printed width: 2 (2/eps)^d ln(r/delta), probability 1 - 3 delta.

    >>> from widemargin import theory
    >>> print(theory.selection.collapse_margin(gamma_nc=0.5, eps=0.1, r=3, d=10, n=100, delta=0.05))
    LR-28: margin (M2) 0.066667, not all assumptions checked [LR Theorem 3.2]
    """
    cover = covering_width(eps, d, r, delta, share=0.5)
    printed = convention == "printed"
    width = cover.value if printed else cover.numbers["width_proof"]
    narrow = gamma_nc * (math.sqrt(eps / 2) if printed else eps / 2)
    value = (gamma_nc - eps) / ((8 if printed else 2) * r)
    near = across is not None and across <= narrow * (1 + 1e-9)
    apart = polar is not None and polar >= eps * (1 - 1e-9)
    return Guarantee(
        f"the margin (M2) ends at {value:.6g} or above, at width {conditions.show(width)}",
        value,
        (
            flow or given("training is gradient flow", None),
            given("the loss is exponential", None if loss is None else loss == "exp", loss or ""),
            in_unit_ball(radius),
            given("every point lies on the axis of a direction with its label", covered),
            Assumption(f"eps < gamma_nc = {gamma_nc:.6g}", bool(eps < gamma_nc), f"eps is {eps:.6g}"),
            seen(f"distance of the points from their axes <= {narrow:.6g}", across, near),
            seen(f"other directions: beta_k.x_i <= -{eps:.6g}", None if polar is None else -polar, apart, "largest is"),
            conditions.on_the_support("neural collapse"),
            given("the start is a ~ N(0, 1/m), V ~ N(0, 1/d), both layers are trained", start),
            at_least("m", m, width),
        ),
        numbers={"width": width, **conditions.orders_of_test_error(constant, n, delta, test_error=value)},
    )


def _of_run(facts: Facts, start: Known) -> dict[str, Any]:
    return {"m": facts.m, "loss": facts.loss, "start": start, "flow": conditions.gradient_flow(facts)}


def _best_network(facts: Facts, net: str = "") -> tuple[Facts, bool, float, Measure] | None:
    """The facts to use, points rescaled where the run has no such net, whether it has, and the best F1 margin and network."""
    own = bool(net) and isinstance(facts.net, getattr(flows, net))
    known = facts if own else facts.unit
    best = known.positive("f1")
    return None if best is None or best.primal is None else (known, own, best.lower, best.primal)


@applied("LR-28", partial(_best_network, net="TwoLayer"))
def _collapse_margin(facts: Facts, known: Facts, own: bool, lower: float, best: Measure) -> Guarantee | None:
    """With the directions of the best F1 network; nothing to say where the points do not collapse to them."""
    from .lazy_on_runs import lr_start

    beta, signs = best.theta, np.sign(best.mass)
    at = collapse_of(known.data.X, known.data.signs(), beta, signs)
    narrow = 2 * at.across / at.gamma if at.gamma > 0 else math.inf  # the smallest eps for the cone
    eps = min(at.polar, 1.0)
    if not (at.covered and narrow <= eps and eps > 0):
        return None
    eps = min(max(narrow, at.gamma / 2), eps)
    keys = _of_run(facts, lr_start(facts)) if own else {}
    keys |= {"polar": at.polar, "across": at.across, "covered": at.covered, "radius": known.radius}
    return collapse_margin(at.gamma, eps, len(beta), facts.d, facts.n, facts.delta, **keys)


# ---------------------------------------------------------------- scalar networks


@states("LR-29", "LR Theorem 3.3", quantity="margin", unit="M4", fails={"derived": 1, "printed": 3})
@assuming(
    "f = sum_j a_j relu(b_j v_j.x), v_j fixed and uniform, a_j, b_j = +-m^(-1/4)",
    "exponential loss, gradient flow",
    "width",
)
def scalar_margin(
    gamma: Positive,
    r: Count,
    d: Count,
    n: Count,
    delta: Probability,
    *,
    m: Measured = None,
    loss: str | None = None,
    radius: Measured = None,
    start: Known = None,
    flow: Assumption | None = None,
    constant: float = 1.0,
    convention: Convention = "derived",
) -> Guarantee:
    """A network whose units change only in size reaches a quarter of the global margin at exponential width

    For all large t psi/(||a||^2 + ||b||^2) >= gamma_gl/4, the best being gamma_gl/2 (LR-29, E-LR-15).

    Width 4 (4/gamma)^(d-1) ln(r/delta): some unit lies within gamma/2 of each direction of a reference network of r units and
    has its sign, with probability 1 - delta. Printed: 2 (4/gamma)^d ln(r/delta), probability 1 - 3 delta.

    >>> from widemargin import theory
    >>> print(theory.selection.scalar_margin(gamma=0.2, r=3, d=10, n=100, delta=0.05))
    LR-29: margin (M4) 0.05, not all assumptions checked [LR Theorem 3.3]
    """
    printed = convention == "printed"
    cover = covering_width(gamma / 2, d, r, delta, share=0.5)
    width = cover.value if printed else cover.numbers["width_proof"]
    return Guarantee(
        f"the margin (M4) ends at {gamma / 4:.6g} or above, at width {conditions.show(width)}",
        gamma / 4,
        (
            conditions.on_the_support(f"the global margin {gamma:.6g}"),
            flow or given("training is gradient flow on a and b", None),
            given("the loss is exponential", None if loss is None else loss == "exp", loss or ""),
            in_unit_ball(radius),
            given("v_j uniform on the sphere, a_j and b_j uniform on +-m^(-1/4)", start),
            at_least("m", m, width),
        ),
        numbers={
            "width": width,
            "width_exact": cover.numbers["width_exact"],
            **conditions.orders_of_test_error(constant, n, delta, test_error=gamma / 4),
        },
    )


@applied("LR-29", partial(_best_network, net="Scalar"))
def _scalar_margin(facts: Facts, known: Facts, own: bool, lower: float, best: Measure) -> Guarantee:
    keys = _of_run(facts, True) if own else {}
    return scalar_margin(lower, len(best.mass), facts.d, facts.n, facts.delta, radius=known.radius, **keys)


@applied("LR-31", _best_network)
def _covering_width(facts: Facts, known: Facts, own: bool, lower: float, best: Measure) -> Guarantee:
    return covering_width(lower / 2, facts.d, len(best.mass), facts.delta)
