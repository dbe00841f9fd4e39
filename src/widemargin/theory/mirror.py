"""Margins of product networks <a * b, F(x; V)> along gradient flow, which is a mirror flow in u = |a * b| (UH).

Notation: z_i = y_i sign(a b) * F(x_i), p >= 0 with ||p||_1 = 1 a comparator with <p, z_i> >= gamma during training, and
c = ln(tn) / gamma the size of the reference c p at time t. Times may be doubly exponential, so t is a number or a `Huge` and
all sizes are kept as logarithms. M5 divides by ||u||_1, M4 by ||a||^2 + ||b||^2 = 2 ||u||_1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike

from widemargin.types import InputError

from . import conditions
from ._rooms import losses
from .arguments import Convention, Count, Loss, Nonnegative, Positive, Probability, checked, not_below, one_of
from .comparators import width_for_comparator
from .conditions import Known, Measured, at_least, at_most, given, in_unit_ball, seen
from .guarantee import Assumption, Guarantee, Huge, Value, assuming, from_log, from_loglog, log_of, states, version

Phase = Annotated[str, one_of("early", "late")]
Divergence = Annotated[float, not_below(0, "the divergence KL(p, u(0))")]
EXP_MOST = 700.0  # exponents up to which exp fits into floating point


# ---------------------------------------------------------------- the reference at time t


@dataclass(frozen=True)
class Reference:
    """The comparator c p, c = ln(tn)/gamma, and R = KL(c p, u(0)) / c = KL(p, u(0)) + ln c - ||u(0)||_1 (1 - 1/c) (E-UH-4)."""

    log_t: float  # infinite where ln t is beyond floating point
    loglog: float  # ln ln(tn), always finite
    log_c: float
    R: float
    n: int
    loss: str

    @property
    def log_norm(self) -> float:
        """ln of (8R + 2) c + 16/n >= sup ||u_s||_1."""
        return float(np.logaddexp(math.log(8 * self.R + 2) + self.log_c, math.log(16 / self.n)))

    @property
    def log_spent(self) -> float:
        """ln of R c + 2/n >= 2 int_0^t L_s(u_s) ds."""
        return float(np.logaddexp(math.log(max(self.R, 1e-300)) + self.log_c, math.log(2 / self.n)))

    @property
    def log_psi(self) -> float:
        """ln of l^{-1}((nRc/2 + 1) / t) <= psi(u_t); -inf where that is not positive."""
        if math.isinf(self.log_t):
            return self.loglog  # psi is ln t up to rounding
        log_sum = self.log_spent + math.log(self.n / 2)  # of n times the budget of the loss
        psi = smooth_margin(log_sum - self.log_t, self.loss)
        return math.log(psi) if psi > 0 else -math.inf

    @property
    def log_norm_sharp(self) -> float:
        """ln of c x, x - 1 - ln x = R + 2/(nc), x >= 1: the same bound on ||u_s||_1 without losing a factor 8."""
        room = self.R + math.exp(math.log(2 / self.n) - self.log_c)
        x = 1 + room + math.sqrt(2 * room)
        for _ in range(60):  # Newton's method on a convex function, from the right
            x -= (x - 1 - math.log(x) - room) / (1 - 1 / x) if x > 1 else 0.0
        return self.log_c + math.log(max(x, 1.0))


@checked
def reference(
    kl: Divergence, gamma: Positive, t: Value, n: Count, start: Positive = 1.0, loss: Loss = "logistic"
) -> Reference:
    """The reference of UH Lemma 3.4 from KL(p, u(0)), the margin gamma of p, the time t, and start = ||u(0)||_1."""
    log_t = log_of(t)
    if isinstance(t, Huge) and t.loglog > EXP_MOST:
        log_t, loglog = math.inf, t.loglog
    elif log_t + math.log(n) > 0:
        loglog = math.log(log_t + math.log(n))
    else:
        raise InputError(f"mirror flow: t n must exceed 1, not {float(t) * n:.6g}; the theorems are about later times")
    log_c = loglog - math.log(gamma)
    return Reference(log_t, loglog, log_c, max(kl + log_c - start * (1 - math.exp(-log_c)), 0.0), n, loss)


def smooth_margin(log_sum: float, loss: str) -> float:
    """l^{-1}(s) from ln s: -ln s, or -ln(e^s - 1)."""
    if loss == "exp":
        return -log_sum
    s = math.exp(min(log_sum, EXP_MOST))
    if log_sum < -30:
        return -log_sum - s / 2
    return -math.log(math.expm1(s)) if s < 1 else -(s + math.log1p(-math.exp(-s)))


def first_time(condition: Callable[[float], bool], n: int) -> float:
    """The smallest ln t, t n > 1, at which a condition that stays true begins to hold (evaluated there), by bisection."""
    low = -math.log(n) + 1e-9
    high, step = low + 1.0, 1.0
    while not condition(high):
        low, step = high, 2 * step
        high += step
        if high > 1e300:
            raise InputError("mirror flow: no time is late enough")
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (low, middle) if condition(middle) else (middle, high)
    return high


def _flow_assumptions(gamma: float, along: Measured, balanced: Known) -> list[Assumption]:
    """`along`: the smallest margin of p during training, where it was measured."""
    kept, unseen = f"<p, z_i(s)> >= {gamma:.6g} for all i and s <= t", "the margin of p during training was not given"
    return [
        given("training is gradient flow on the mean logistic or exponential risk", None, "not checked here"),
        given("|a_j(0)| = |b_j(0)|, so that u follows the mirror flow", balanced),
        seen(kept, along, along is not None and along >= gamma, unseen=unseen),
    ]


# ---------------------------------------------------------------- theorems


@states("UH-7", "UH Lemma A.1 (4)", quantity="margin", unit="M5")
@assuming("||u||_1 <= C2 ||ubar||_1", "L_exp(u) <= C5 exp(-gamma C2 ||ubar||_1 / C3)", "||ubar||_1 is large enough")
def margin_from_loss(
    log_risk: float,
    n: Count,
    norm: Positive,
    reference_norm: Positive,
    gamma: Positive,
    C2: Positive,
    C3: Positive,
    C5: Positive,
) -> Guarantee:
    """A small exponential loss at a moderate norm means a margin

    min_i <u, z_i> / ||u||_1 >= gamma / (2 C3) from ln L_exp(u), ||u||_1 and ||ubar||_1 (UH-7, E-UH-12).

    >>> from widemargin import theory
    >>> print(theory.mirror.margin_from_loss(-20.0, n=10, norm=15.0, reference_norm=20.0, gamma=0.5, C2=1, C3=1, C5=1))
    UH-7: margin (M5) 0.25, applies [UH Lemma A.1 (4)]
    """
    allowed = math.log(C5) - gamma * C2 * reference_norm / C3
    needed = 2 * C3 / (gamma * C2) * math.log(2 * n * C5)
    return Guarantee(
        f"min_i <u, z_i> / ||u||_1 >= gamma / (2 C3) = {gamma / (2 * C3):.6g}",
        gamma / (2 * C3),
        (
            at_most("||u||_1", norm, C2 * reference_norm),
            seen(f"ln of the exponential risk <= {allowed:.6g}", log_risk, log_risk <= allowed),
            seen(f"||ubar||_1 >= {needed:.6g}", reference_norm, reference_norm >= needed, "||ubar||_1 is"),
        ),
    )


@version("UH-7", "UH Lemma A.1 (1)", quantity="margin")
def margin_from_risk(log_risk: float, n: Count, norm: Positive, loss: Loss = "logistic", unit: str = "M5") -> Guarantee:
    """min_i p_i / size >= psi / size with psi = l^{-1}(n L): the version of UH-7 without constants (UH Lemma A.1 (1)).

    `log_risk` is ln of the mean risk L, `norm` the size of the network in the convention `unit`.
    """
    psi = smooth_margin(log_risk + math.log(n), loss)
    fitted = log_risk + math.log(n) < math.log(losses.as_loss(loss).at_zero)
    return Guarantee(
        f"every margin is at least psi = l^-1(n L) = {psi:.6g}, so at least {psi / norm:.6g} of the size",
        psi / norm,
        (Assumption("the sum of losses is below l(0)", bool(fitted), f"ln of it is {log_risk + math.log(n):.6g}"),),
        unit=unit,
        numbers={"psi": psi},
    )


@states("UH-12", "UH Lemma 3.4", quantity="norm")
@assuming("gradient flow, |a(0)| = |b(0)|", "a comparator p keeps margin gamma until t")
def norm_budget(
    kl: Divergence,
    gamma: Positive,
    t: Value,
    n: Count,
    *,
    start: Positive = 1.0,
    loss: Loss = "logistic",
    along: Measured = None,
    balanced: Known = None,
    feature_size: Measured = None,
    convention: Convention = "derived",
) -> Guarantee:
    """Until time t the norm of u and the spent loss stay below budgets set by the divergence of a good comparator

    sup_{s<=t} ||u_s||_1 <= (8R + 2) c + 16/n (printed: + 32), and the budgets of the loss, in `numbers`.

    2 int G <= 2 int L <= R c + 2/n (printed: + 2); L(u_t) <= (R c / 2 + 1/n) / t; ||u_t||_1 <= ||u_0||_1 exp(R c + 2/n) where
    |z_ij| <= 1. `kl` is KL(p, u(0)), `start` ||u(0)||_1; `norm_sharp` solves x - 1 - ln x = R + 2/(nc), norm = c x, which is
    what the proof gives before its last step. UH-12, E-UH-4, E-UH-9.

    >>> from widemargin import theory
    >>> print(theory.mirror.norm_budget(kl=2.0, gamma=0.2, t=1e6, n=20))
    UH-12: norm 3829.3, not all assumptions checked [UH Lemma 3.4]
    """
    at = reference(kl, gamma, t, n, start, loss)
    c = from_log(at.log_c)
    if convention == "printed":
        log_norm = float(np.logaddexp(math.log(8 * at.R + 2) + at.log_c, math.log(32)))
        log_spent = float(np.logaddexp(math.log(max(at.R, 1e-300)) + at.log_c, math.log(2)))
    else:
        log_norm, log_spent = at.log_norm, at.log_spent
    growth = from_log(math.exp(log_spent) + math.log(start)) if log_spent < EXP_MOST else Huge(log_spent)
    norm = from_log(log_norm)
    limit = at_most("|z_ij|", feature_size, 1.0)
    return Guarantee(
        f"||u_s||_1 <= {conditions.show(norm)} for all s <= t",
        norm,
        tuple(_flow_assumptions(gamma, along, balanced)),
        numbers={
            "R": at.R,
            "reference_norm": c,
            "spent": from_log(log_spent),  # bound on 2 int L, and on 2 int G
            "risk": from_log(log_spent - math.log(2) - at.log_t) if at.log_t < math.inf else 0.0,
            "norm_sharp": from_log(at.log_norm_sharp),
            "norm_from_growth": growth,
            "norm_from_growth_needs": limit.text,
        },
    )


@states("UH-13", "UH Lemma 3.4 (1), (2)", quantity="margin", unit="M5")
@assuming("gradient flow, |a(0)| = |b(0)|", "a comparator p keeps margin gamma until t", "t is large enough")
def early_margin(
    kl: Divergence,
    gamma: Positive,
    t: Value | None,
    n: Count,
    *,
    start: Positive = 1.0,
    norm_factor: Positive | None = None,
    loss: Loss = "logistic",
    along: Measured = None,
    balanced: Known = None,
    convention: Convention = "derived",
) -> Guarantee:
    """After a time polynomial in R/gamma the margin is at least gamma over a multiple of R

    min_i <z_i, u_t> / ||u_t||_1 >= l^{-1}((nRc/2 + 1)/t) / ((8R + 2) c + 16/n) where that is positive (UH-13, E-UH-7).

    `norm_factor` = C with ||u_t||_1 <= C c replaces the norm in the denominator by C c. Printed: gamma / (2(1 + R)), or
    gamma / (2C) if C <= 4 + R, for t >= (20 R / gamma)^4. Without t, the first time with l^{-1}(...) >= ln(tn) / 2 (printed: the
    first that is late enough) is used; it is the number `time`.

    >>> from widemargin import theory
    >>> print(theory.mirror.early_margin(kl=2.0, gamma=0.2, t=1e6, n=20))
    UH-13: margin (M5) 0.0014061, not all assumptions checked [UH Lemma 3.4 (1), (2)]
    """

    def late_enough(log_t: float) -> bool:
        at = reference(kl, gamma, from_log(log_t), n, start, loss)
        if convention == "printed":
            return log_t >= 4 * math.log(max(20 * at.R / gamma, 1e-300))
        return at.log_psi >= math.log((log_t + math.log(n)) / 2)

    first = from_log(first_time(late_enough, n))
    t = first if t is None else t
    at = reference(kl, gamma, t, n, start, loss)
    notes = _flow_assumptions(gamma, along, balanced)
    if convention == "printed":
        log_t1 = 4 * math.log(max(20 * at.R / gamma, 1e-300))
        notes.append(at_least("t", t, from_log(log_t1)))
        value = gamma / (2 * (1 + at.R)) if norm_factor is None else gamma / (2 * norm_factor)
        if norm_factor is not None:
            notes.append(at_most("C", norm_factor, 4 + at.R))
    else:
        log_size = at.log_norm if norm_factor is None else math.log(norm_factor) + at.log_c
        value = math.exp(at.log_psi - log_size)
        detail = f"ln psi is at least {at.log_psi:.6g}" if value else "the bound on the sum of losses is not below l(0)"
        notes.append(Assumption("t is large enough that psi > 0 follows", value > 0, detail))
    if norm_factor is not None:
        notes.append(given(f"||u_t||_1 <= {norm_factor:.6g} c", None))
    return Guarantee(
        f"min_i <z_i, u_t> / ||u_t||_1 >= {value:.6g} at t = {conditions.show(t)}",
        value,
        tuple(notes),
        numbers={
            "R": at.R,
            "reference_norm": from_log(at.log_c),
            "time": first,
            "with_sharp_norm": math.exp(at.log_psi - at.log_norm_sharp),
            # What Markov's inequality and the norm bound of the lemma support (E-UH-7).
            "from_printed_norm": gamma / (2 * (8 * at.R + 2 + 32 * math.exp(-at.log_c))),
        },
    )


def offset(n: int, loss: str) -> float:
    """<q, p> <= psi + this, q the dual weights, where psi >= 0: 2 ln n + 1 (logistic), ln n (exponential)."""
    return math.log(n) if loss == "exp" else 2 * math.log(n) + 1


@states("UH-14", "UH Lemma 3.5, A.3", quantity="margin", unit="M5")
@assuming("gradient flow, |a(0)| = |b(0)|", "p keeps margin gamma from s0 to t", "psi >= 0 at s0")
def smooth_margin_rate(
    time: ArrayLike,
    norm: ArrayLike,
    slope: ArrayLike,
    kl: float,
    gamma: Positive,
    n: Count,
    *,
    start_psi: Measured = None,
    loss: Loss = "logistic",
    safe: bool = True,
    convention: Convention = "derived",
) -> Guarantee:
    """The smooth margin approaches gamma at the rate of the divergence over the time in the clock of the dual

    Lower bounds of psi_t / ||u_t||_1 at recorded times s_0 < s_1 < ... (T,) from ||u_s||_1 and |l'(psi_s)| there (UH-14).

        psi_t / ||u_t||_1 >= gamma - KL(p, u_{s0}/||u_{s0}||_1) / (2 xi) - offset int omega_s / ||u_s||_1 ds / xi,

    omega = |l'(psi)| / n, xi = int omega. `kl` is that divergence at the first record; psi must be >= 0 there. `safe` bounds the
    integrals by sums, which is rigorous because omega falls and ||u|| grows; otherwise the trapezoidal rule. The value is the
    bound at the last time, `series` all of them (-inf at the first). Printed (3.5): gamma - offset/||u_t||_1 - kl/xi with kl =
    KL(p, u(0)) and records from 0 on; `A.3` then has the appendix's form (E-UH-8).

    >>> from widemargin import theory
    >>> print(theory.mirror.smooth_margin_rate([0, 100, 200], [100, 120, 140], [0.5, 0.4, 0.3], kl=0.1, gamma=0.5, n=4))
    UH-14: margin (M5) 0.45223, not all assumptions checked [UH Lemma 3.5, A.3]
    """
    s, size, slope = (np.asarray(values, dtype=np.float64) for values in (time, norm, slope))
    if not (s.ndim == 1 and len(s) > 1 and s.shape == size.shape == slope.shape and (np.diff(s) > 0).all()):
        raise InputError("smooth_margin_rate: give increasing times, norms and slopes of the same length, at least 2")
    omega, dt, shift = slope / n, np.diff(s), offset(n, loss)
    drag = omega / size
    if safe:
        xi, dragged = np.cumsum(omega[1:] * dt), np.cumsum(drag[:-1] * dt)
    else:
        xi, dragged = (np.cumsum((values[1:] + values[:-1]) / 2 * dt) for values in (omega, drag))
    numbers = {}
    if convention == "derived":
        tail = gamma - (kl / 2 + shift * dragged) / xi
    else:
        tail = gamma - shift / size[1:] - kl / xi
        numbers["A.3"] = np.append(-np.inf, gamma - shift / size[1:] - (kl + np.log(size[1:]) - 1 + 1 / size[1:]) / xi)
    series = np.append(-np.inf, tail)
    fitted = seen("psi >= 0 at the first record", start_psi, start_psi is not None and start_psi >= 0, unseen="")
    return Guarantee(
        f"psi_t / ||u_t||_1 >= {series[-1]:.6g} at t = {s[-1]:.6g}",
        float(series[-1]),
        (*_flow_assumptions(gamma, None, None), fitted),
        numbers=numbers | {"series": series, "xi": float(xi[-1])},
    )


@states("UH-15", "UH Lemma A.4", quantity="margin", unit="M5")
@assuming("gradient flow, |a(0)| = |b(0)|", "a comparator p keeps margin gamma until t", "t is doubly exponential")
def late_margin(
    kl: Divergence,
    gamma: Positive,
    n: Count,
    t: Value | None = None,
    *,
    start: Positive = 1.0,
    best: Positive = 1.0,
    share: Probability = 0.5,
    loss: Loss = "logistic",
    along: Measured = None,
    balanced: Known = None,
    convention: Convention = "derived",
) -> Guarantee:
    """After a doubly exponential time the margin is a constant share of gamma

    min_i <u_t, z_i> / ||u_t||_1 >= share * gamma from the number `time` on (UH-15, E-UH-8).

    Printed: gamma / 16 for t >= e + exp(exp(4 n KL(p, u(0)) / gamma)), whose proof has gaps. Derived here from UH-14's correct
    inequality, with g = (1 - share) gamma / 2 and best >= every margin (1 if |z_ij| <= 1; the offset o is 2 ln n + 1):

    - psi >= l^{-1}((nRc/2 + 1)/s) and ||u|| >= psi / best. At the `warm_time` s1 this gives ||u|| >= o / g; UH-12 bounds
      ||u_{s1}|| <= N and KL(p, u_{s1}/||u_{s1}||) <= K = R + 2/(nc);
    - from then on d ln||u|| <= 2 omega (psi + o)/||u|| <= 2 omega (best + g), so 2 xi >= ln(||u_t|| / N) / (best + g);
    - so psi_t / ||u_t|| >= gamma - g - K (best + g) / ln(||u_t|| / N), which is gamma - 2 g once
      best ||u_t|| >= l^{-1}((nRc/2 + 1)/t) >= best N exp(K (best + g) / g). This is doubly exponential in K best / gamma and
      no longer in n.

    >>> from widemargin import theory
    >>> print(theory.mirror.late_margin(kl=2.0, gamma=0.2, n=20))
    UH-15: margin (M5) 0.1, not all assumptions checked [UH Lemma A.4]
    """
    notes = _flow_assumptions(gamma, along, balanced)
    if convention == "printed":
        loglog = 4 * n * kl / gamma
        small = loglog < math.log(EXP_MOST)
        time: Value = math.e + math.exp(math.exp(loglog)) if small else from_loglog(loglog)
        value, numbers = gamma / 16, {}
    else:
        gap, shift = (1 - share) * gamma / 2, offset(n, loss)
        enough = math.log(best * max(shift / gap, 1.0))
        log_s = first_time(lambda x: reference(kl, gamma, from_log(x), n, start, loss).log_psi >= enough, n)
        warm = reference(kl, gamma, from_log(log_s), n, start, loss)
        K = warm.R + math.exp(math.log(2 / n) - warm.log_c)
        log_goal = math.log(best) + warm.log_norm + K * (best + gap) / gap
        if log_goal < EXP_MOST - 10:
            log_t = first_time(lambda x: reference(kl, gamma, from_log(x), n, start, loss).log_psi >= log_goal, n)
            time = from_log(log_t)
        else:
            time = from_loglog(log_goal)  # ln t - ln(nRc/2 + 1) is ln t up to rounding
        value = share * gamma
        numbers = {"warm_time": from_log(log_s), "warm_norm": from_log(warm.log_norm), "warm_kl": K}
        notes.append(at_least("best", best, gamma))
    notes.append(at_least("t", t, time))
    return Guarantee(
        f"min_i <u_t, z_i> / ||u_t||_1 >= {value:.6g} for t >= {conditions.show(time)}",
        value,
        tuple(notes),
        numbers=numbers | {"time": time},
    )


@states("UH-17", "UH Theorem 3.1 (proof)", quantity="movement")
@assuming("gradient flow", "C1, C2 bound the inner products of feature gradients")
def feature_drift(
    p_max: Nonnegative, C1: Nonnegative, C2: Nonnegative, integral_G: Nonnegative, norm: Nonnegative
) -> Guarantee:
    """The features move little where gradients of different units barely overlap

    |<p, z_i(tau) - z_i(0)>| <= (C1 ||p||_inf + C2) (int_0^tau G) sup_{s<=tau} ||u_s||_1 (UH-17).

    >>> from widemargin import theory
    >>> print(theory.mirror.feature_drift(p_max=1.0, C1=0.01, C2=0.0, integral_G=2.0, norm=5.0))
    UH-17: movement 0.1, not all assumptions checked [UH Theorem 3.1 (proof)]
    """
    value = (C1 * p_max + C2) * integral_G * norm
    return Guarantee(
        f"no margin of p changes by more than {value:.6g}",
        value,
        (given("gradient flow, |a(0)| = |b(0)|", None), given("C1 and C2 hold for all s <= tau", None)),
    )


def _of_phase(
    phase: str, kl: float, gamma: float, t: Value | None, n: int, late: dict[str, Any], **keys: Any
) -> tuple[Guarantee, Value, Value]:
    """UH-13 or UH-15, the time from which on it holds, and t, that time by default."""
    inner = early_margin(kl, gamma, t, n, **keys) if phase == "early" else late_margin(kl, gamma, n, t, **late, **keys)
    time: Value = inner.numbers["time"]
    return inner, time, time if t is None else t


@states("UH-16", "UH Theorem 3.1", quantity="margin", unit="M4")
@assuming(
    "gradient flow, |a(0)| = |b(0)|", "p has margin gamma at the start", "||p||_inf and C2 are small", "t is large"
)
def margin_of_product_net(
    gamma: Positive,
    kl: Divergence,
    t: Value | None,
    n: Count,
    p_max: Positive,
    C1: Measured,
    C2: Measured,
    *,
    start: Positive = 1.0,
    phase: Phase = "early",
    best: Positive = 1.0,
    share: Probability = 0.5,
    loss: Loss = "logistic",
    balanced: Known = None,
    convention: Convention = "derived",
) -> Guarantee:
    """If some comparator is good at the start and features move slowly, gradient flow reaches a margin

    min_i y_i h(x_i; w_t) / (||a||^2 + ||b||^2) from a comparator p of margin gamma at time 0 (UH-16; C1, C2: UH-22).

    Derived: if (C1 ||p||_inf + C2) (Rc + 2/n)/2 ((8R + 2)c + 16/n) <= gamma/2, with c = ln(tn)/(gamma/2), the margin of p stays
    above gamma/2 (UH-12, UH-17); then half of UH-13 or UH-15 at gamma/2 (E-UH-5, 6). `composed` takes the printed lemmas at
    face value: gamma / (8(1 + R)), gamma/64. Printed: ||p||_inf <= gamma^3 / (4 C1 [..]^2), C2 <= gamma / (4 [..]^2), [..] =
    ln(tn)(8R + 2) + 32, R = KL(p, u(0)); then gamma / (4(1 + R)) for t >= (20R/gamma)^4, and gamma/32 for
    t >= e + exp(exp(4nR/gamma)).

    >>> from widemargin import theory
    >>> print(theory.mirror.margin_of_product_net(gamma=0.2, kl=2.0, t=1e6, n=20, p_max=0.01, C1=1e-6, C2=0.0))
    UH-16: margin (M4) 0.00026624, not all assumptions checked [UH Theorem 3.1]
    """
    still = C1 == 0 and C2 == 0
    notes = _flow_assumptions(gamma, None, balanced)[:2]
    if convention == "printed":
        if phase == "early":
            time = from_log(4 * math.log(max(20 * kl / gamma, 1e-300)))
            value = gamma / (4 * (1 + kl))
        else:
            late = late_margin(kl, gamma, n, start=start, convention="printed")
            time, value = late.numbers["time"], gamma / 32
        t = time if t is None else t
        loglog = reference(kl, 1.0, t, n, start, loss).loglog
        log_bracket = float(np.logaddexp(loglog + math.log(8 * kl + 2), math.log(32)))
        allowed = from_log(3 * math.log(gamma) - math.log(4 * C1) - 2 * log_bracket) if C1 else math.inf
        notes.append(at_most("||p||_inf", None if C1 is None else p_max, allowed))
        notes.append(at_most("C2", C2, from_log(math.log(gamma / 4) - 2 * log_bracket)))
        notes.append(at_least("t", t, time))
        numbers: dict[str, Any] = {"time": time, "R": kl}
    else:
        along = gamma if still else gamma / 2  # features that do not move keep the margin
        keys: dict[str, Any] = {"start": start, "loss": loss, "balanced": balanced, "along": along}
        inner, time, t = _of_phase(phase, kl, along, t, n, {"best": best, "share": share}, **keys)
        value, at = float(inner.value) / 2, reference(kl, along, t, n, start, loss)
        log_moves = at.log_spent - math.log(2) + at.log_norm
        if C1 is None or C2 is None:
            drift = None
        else:
            drift = from_log(math.log(C1 * p_max + C2) + log_moves) if C1 * p_max + C2 > 0 else 0.0
        notes.append(at_most("drift of <p, z_i>", drift, gamma / 2))
        notes += [note for note in inner.assumptions if note.text.startswith(("t ", "best "))]
        rule = gamma / (8 * (1 + at.R)) if phase == "early" else gamma / 64
        numbers = {"time": time, "R": at.R, "drift": drift, "composed": rule, "log_moves": log_moves}
    return Guarantee(
        f"min_i y_i h(x_i) / (||a||^2 + ||b||^2) >= {value:.6g} at t = {conditions.show(t)}",
        value,
        tuple(notes),
        numbers=numbers,
    )


@states("UH-22", "UH Theorem 4.1 (proof)", quantity="constant")
@assuming("F_j(x) = relu(<v_j / ||v_j||, x>)")
def gradient_constants(V: ArrayLike, X: ArrayLike) -> Guarantee:
    """Gradients of the features of a normalized shallow network: at most max ||x||^2 / min ||v||^2, and none across units

    C1 = max_{i,j} 1[v_j.x_i >= 0] (||x_i||^2 - (v_j.x_i / ||v_j||)^2) / ||v_j||^2 and C2 = 0 (UH-22).

    The maximum over pairs (i, r) is at i = r by Cauchy-Schwarz. `bound` is max ||x||^2 / min ||v||^2, which holds for every V
    with these norms, so along gradient flow, which keeps ||v_j||.

    >>> from widemargin import theory
    >>> print(theory.mirror.gradient_constants([[1.0, 0.0], [0.0, 2.0]], [[0.6, 0.8]]))
    UH-22: constant 0.64, applies [UH Theorem 4.1 (proof)]
    """
    V, X = np.asarray(V, dtype=np.float64), np.asarray(X, dtype=np.float64)
    if V.ndim != 2 or X.ndim != 2 or V.shape[1] != X.shape[1] or not V.any(axis=1).all():
        raise InputError("gradient_constants: V (m, d) and X (n, d) must have the same d, and no row of V may be zero")
    size = np.linalg.norm(V, axis=1)
    H = X @ (V / size[:, None]).T  # (n, m)
    across = ((X**2).sum(1)[:, None] - H**2).clip(0) * (H >= 0) / size**2
    bound = float((X**2).sum(1).max() / size.min() ** 2)
    return Guarantee(
        f"C1 = {across.max():.6g} here, at most {bound:.6g} along gradient flow; C2 = 0",
        float(across.max()),
        (),
        numbers={"C2": 0.0, "bound": bound},
    )


# ---------------------------------------------------------------- shallow networks


@states("UH-23", "UH Theorem 4.1", quantity="margin", unit="M4")
@assuming(
    "gradient flow", "the F1 margin on the support is gamma", "||x|| <= 1", "width exponential in d", "t is large"
)
def margin_of_normalized_net(
    gamma: Positive,
    d: Count,
    n: Count,
    delta: Probability,
    t: Value | None = None,
    *,
    m: Measured = None,
    radius: Measured = None,
    phase: Phase = "early",
    share: Probability = 0.5,
    constant: float = 1.0,
    convention: Convention = "derived",
) -> Guarantee:
    """Gradient flow on a wide normalized shallow network reaches a share of the F1 margin, and so a small test error

    min_i y_i h / ||(a, b)||^2 of sum_j a_j b_j relu(<v_j/||v_j||, x>), started from uniform v, a, b = +-1/sqrt(m) (UH-23).

    Derived chain (E-UH-15): UH-21 gives a comparator of margin gamma/4; C1 <= 1 and C2 = 0 (UH-22) and ||p||_inf <= 1/sqrt(m)
    let it keep gamma/8 if m >= [(Rc + 2/n)((8R + 2)c + 16/n) / (gamma/4)]^2 (UH-16); then half of UH-13 at gamma/8, or of UH-15:
    share * gamma / 16 (gamma/32 for share 1/2). Printed: t >= 20R/gamma, m >= max(2^10 ln(tn)^2 d^2 / gamma^8, width of UH-21),
    gamma / (32 d ln(1/gamma)); late gamma/32. `test_error` is of the order of UH-24 with `constant` in front.

    >>> from widemargin import theory
    >>> print(theory.mirror.margin_of_normalized_net(gamma=0.2, d=4, n=20, delta=0.05))
    UH-23: margin (M4) 4.0041e-05, not all assumptions checked [UH Theorem 4.1]
    """
    start = width_for_comparator(gamma, d, n, delta, convention=convention)
    bound = start.numbers["kl"]
    if convention == "printed":
        if phase == "late":
            time = late_margin(bound, gamma, n, convention="printed").numbers["time"]
            value = gamma / 32
        else:
            time = max(20 * bound / gamma, 1.0)
            value = gamma / (32 * d * math.log(1 / gamma)) if gamma < 1 else math.inf
        t = time if t is None else t
        loglog = reference(bound, 1.0, t, n).loglog
        log_m = math.log(1024) + 2 * loglog + 2 * math.log(d) - 8 * math.log(gamma)
    else:
        along = gamma / 8
        inner, time, t = _of_phase(phase, bound, along, t, n, {"share": share})
        value, at = float(inner.value) / 2, reference(bound, along, t, n)
        log_m = 2 * (at.log_spent + at.log_norm - math.log(gamma / 4))
    width = from_log(max(log_m, log_of(start.value)))
    return Guarantee(
        f"margin (M4) at least {value:.6g} at t = {conditions.show(t)} and width {conditions.show(width)}",
        value,
        (
            given(
                "training is gradient flow on the mean logistic risk, from the law of UH-2", None, "not checked here"
            ),
            conditions.on_the_support(f"the F1 margin {gamma:.6g}"),
            in_unit_ball(radius),
            at_least("m", m, width),
            at_least("t", t, time),
        ),
        numbers={
            "width": width,
            "time": time,
            "test_error_up_to_a_constant": conditions.order_of_test_error(value, n, delta, constant),
            "test_error_constant": constant,
        },
    )
