"""Training near the start: what the NTK margin guarantees for SGD and gradient flow on two-layer ReLU networks (LR Section 2).

The network is sum_j a_j relu(v_j . x), a ~ N(0, 1/m), V ~ N(0, 1/d), ||x|| <= 1. In LR the margin gamma allows transports of both
layers with a ~ N(0, 1); with the network's a ~ N(0, 1/m) only the outer layer's part grows like sqrt(m) (E-LR-4). So gamma is
the margin of outer transports here: `part="outer"`; with convention "printed" any part is taken.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from . import conditions
from .arguments import Convention, Count, Loss, Nonnegative, Positive, Probability, checked, not_below, one_of
from .conditions import Known, Measured, at_least, at_most, given, in_unit_ball, seen
from .guarantee import Assumption, Guarantee, assuming, states

Part = Annotated[str, one_of("outer", "inner", "total")]
FRESH = "every step uses one fresh, independent example of the law"


def _layer(part: str, convention: str) -> list[Assumption]:
    """The margin must be that of outer transports, unless the printed theorem is asked for."""
    if convention == "printed":
        return []
    return [Assumption("gamma is the margin of transports of the outer layer", part == "outer", f"it is of the {part}")]


def _law(start: Known) -> Assumption:
    return given("the start is a ~ N(0, 1/m), V ~ N(0, 1/d), both layers are trained", start)


# ---------------------------------------------------------------- margins of transports


def truncated_mean(d: int) -> float:
    """E[|v_1| 1[a^2 + ||v||^2 <= 4]] for a ~ N(0, 1), v ~ N(0, I/d): what a transport sgn(u . v) collects, by quadrature."""
    from scipy import integrate, special, stats

    share = math.exp(special.gammaln(d / 2) - special.gammaln((d + 1) / 2)) / math.sqrt(math.pi)  # E|v_1| / ||v||
    radius = stats.chi(d, scale=1 / math.sqrt(d))

    def inside(r: float) -> float:
        return float(r * special.erf(math.sqrt(max(4 - r * r, 0.0) / 2)) * radius.pdf(r))

    return share * float(integrate.quad(inside, 0, 2, limit=200, points=[min(1.0, 2.0)])[0])


def truncated_outer_mean(d: int) -> float:
    """E[|a| 1[a^2 + ||v||^2 <= 4]] for the same law: what a transport sgn(a) u of the inner layer collects, by quadrature."""
    from scipy import integrate, stats

    square = stats.chi2(d, scale=1 / d)

    def inside(a: float) -> float:
        return float(2 * a * stats.norm.pdf(a) * square.cdf(4 - a * a))

    return float(integrate.quad(inside, 0, 2, limit=200)[0])


@states("LR-10", "LR Proposition 1.5", quantity="margin")
@assuming("some unit u has y_i u.x_i >= gamma_hat")
def margins_of_linear_data(
    linear: Positive, d: Count, of: Annotated[str, one_of("global", "inner", "outer")] = "global"
) -> Guarantee:
    """Linearly separable data have NTK and global margins of the order of the linear one

    gamma_gl >= gamma_hat/2; transports: inner gamma_hat/32, outer gamma_hat/(16 sqrt(d)) (LR-10).

    theta = sgn(a) u on the inner layer, sgn(u.v) on the outer one, both 0 where ||w|| > 2. `exact` is what these give on a
    point of margin gamma_hat: by the symmetry v -> -v, (gamma_hat/2) E|a| 1[..] and (gamma_hat/2) E|v_1| 1[..].

    >>> from widemargin import theory
    >>> print(theory.lazy.margins_of_linear_data(linear=0.3, d=10))
    LR-10: margin (M1) 0.15, applies [LR Proposition 1.5]
    """
    name, value, exact = {
        "global": ("the global margin", linear / 2, linear / 2),
        "inner": ("the NTK margin, inner layer,", linear / 32, linear / 2 * truncated_outer_mean(d)),
        "outer": ("the NTK margin, outer layer,", linear / (16 * math.sqrt(d)), linear / 2 * truncated_mean(d)),
    }[of]
    return Guarantee(
        f"{name} is at least {value:.6g}",
        value,
        (given(f"the linear margin is at least {linear:.6g}", True, "as given"),),
        unit="M1" if of == "global" else "M8",
        numbers={"exact": exact},
    )


@states("LR-20", "LR Lemma A.1", quantity="margin", unit="M8")
@assuming("all alpha_k > 0, sum 1", "all y_i = +1", "||x_i|| = 1")
def ntk_from_positive_network(
    gamma: Positive, d: Count, *, positive_weights: Known = None, one_label: Known = None, unit_points: Known = None
) -> Guarantee:
    """If all labels and all weights of a reference network are positive, the NTK margin is the global one over 8 sqrt(d)

    gamma_ntk >= gamma_gl / (8 sqrt(d)), by the transport `margins.positive_transport` of the outer layer (LR-20).

    `exact`: Jensen's inequality gives gamma_gl E[v_1 1[v_1 >= 0] 1[||w|| <= 2]], half of `truncated_mean`.

    >>> from widemargin import theory
    >>> print(theory.lazy.ntk_from_positive_network(gamma=0.2, d=4, positive_weights=True))
    LR-20: margin (M8) 0.0125, not all assumptions checked [LR Lemma A.1]
    """
    value = gamma / (8 * math.sqrt(d))
    return Guarantee(
        f"the NTK margin (outer layer) is at least {value:.6g}",
        value,
        (
            given("all weights of the reference network are positive", positive_weights),
            given("all labels are +1", one_label),
            given("||x_i|| = 1", unit_points),
        ),
        numbers={"exact": gamma * truncated_mean(d) / 2},
    )


# ---------------------------------------------------------------- the start


@states("LR-21", "LR Lemma A.2", quantity="output", fails=4)
@assuming("a ~ N(0, 1/m), V ~ N(0, 1/d)", "||x|| <= 1")
def start_bounds(
    m: Count, d: Count, n: Count, delta: Probability, *, radius: Measured = None, start: Known = None
) -> Guarantee:
    """Sizes of the layers and outputs of the network at its random start

    max_i |f(x_i)| <= 4 ln(n/delta) with probability 1 - 4 delta (LR-21; the proof needs ln(n/delta) >= 1/2).

    `outer`: ||a|| <= 1 + sqrt(2 ln(1/delta)/m); `inner`: ||V|| <= sqrt(m) + sqrt(2 ln(1/delta)/d); each with probability
    1 - delta.

    >>> from widemargin import theory
    >>> print(theory.lazy.start_bounds(m=10_000, d=10, n=100, delta=0.05))
    LR-21: output 30.404, not all assumptions checked [LR Lemma A.2]
    """
    value = 4 * math.log(n / delta)
    return Guarantee(
        f"at the start no |f(x_i)| exceeds {value:.6g}",
        value,
        (_law(start), in_unit_ball(radius), at_least("ln(n/delta)", math.log(n / delta), 0.5)),
        numbers={
            "outer": 1 + math.sqrt(2 * math.log(1 / delta) / m),
            "inner": math.sqrt(m) + math.sqrt(2 * math.log(1 / delta) / d),
        },
    )


@states("LR-22", "LR Lemma A.3", quantity="constant", fails=7)
@assuming("the NTK margin is gamma", "||x|| <= 1", "m >= 2 ln(1/delta)", "||W' - W|| <= R")
def comparator_alignment(
    gamma: Positive,
    m: Count,
    n: Count,
    delta: Probability,
    R: Nonnegative,
    r_theta: Nonnegative,
    r_w: Nonnegative = 1.0,
    *,
    part: Part = "outer",
    radius: Measured = None,
    start: Known = None,
    convention: Convention = "derived",
) -> Guarantee:
    """Near the start the comparator W_0 + r theta is aligned with every gradient

    Lower bound of <r_theta thetabar + r_w W, dp_i(W')> - r_w p_i(W') for ||W - W'|| <= R, all i (LR-22, E-LR-10).

    With L = ln(n/delta): gamma r_theta sqrt(m) - r_theta [sqrt(32 L) + 4R + 4] - r_w [4L + 4R + R^2] (the proof). Printed:
    - r_theta [sqrt(32 L) + 8R + 4] - r_w [4L + 2R + 2R sqrt(m) + 4 sqrt(m)]. `outer` is what the proof gives for transports of
    the outer layer, whose terms are at most 2 and whose thetabar has norm 1: - r_theta [sqrt(8L) + R]. `at_start` is part 1.

    >>> from widemargin import theory
    >>> print(theory.lazy.comparator_alignment(gamma=0.1, m=10**6, n=100, delta=0.05, R=5.0, r_theta=1.0))
    LR-22: constant -14.999, not all assumptions checked [LR Lemma A.3]
    """
    notes = _layer(part, convention)
    L, root = math.log(n / delta), math.sqrt(m)
    lead = gamma * r_theta * root
    proof = r_w * (4 * L + 4 * R + R**2)
    if convention == "printed":
        value = lead - r_theta * (math.sqrt(32 * L) + 8 * R + 4) - r_w * (4 * L + 2 * R + 2 * R * root + 4 * root)
    else:
        value = lead - r_theta * (math.sqrt(32 * L) + 4 * R + 4) - proof
    numbers = {"at_start": gamma * root - math.sqrt(32 * L), "outer": lead - r_theta * (math.sqrt(8 * L) + R) - proof}
    if r_w == 1 and math.isclose(r_theta, R / 8) and R >= 8 and m >= (64 * L / gamma) ** 2:
        numbers["simple"] = lead / 2 - 160 * r_theta**2
    return Guarantee(
        f"<r_theta thetabar + r_w W, dp_i(W')> - r_w p_i(W') >= {value:.6g} for all i",
        value,
        (*notes, _law(start), in_unit_ball(radius), at_least("m", m, 2 * math.log(1 / delta)), at_least("L", L, 0.5)),
        numbers=numbers,
    )


def alignment(
    W0: tuple[ArrayLike, ArrayLike],
    W: tuple[ArrayLike, ArrayLike],
    theta: tuple[ArrayLike, ArrayLike],
    X: ArrayLike,
    y: ArrayLike,
    r_theta: float,
    r_w: float = 1.0,
) -> np.ndarray:
    """The left side of LR-22, <r_theta theta + r_w W0, dp_i(W)> - r_w p_i(W) (n,), for pairs (a (m,), V (m, d))."""
    (a0, V0), (a, V), (ta, tV) = ((np.asarray(a, float), np.asarray(V, float)) for a, V in (W0, W, theta))
    X, y = np.asarray(X, dtype=np.float64), np.asarray(y, dtype=np.float64)
    H = X @ V.T  # (n, m)
    toward_a, toward_V = r_theta * ta + r_w * a0, r_theta * tV + r_w * V0
    slope = y * (H.clip(0) @ toward_a + ((H > 0) * (X @ toward_V.T)) @ a)
    return slope - r_w * y * (H.clip(0) @ a)


# ---------------------------------------------------------------- SGD


@states("LR-14", "LR Lemma B.1")
@assuming("each step takes a fresh independent example", "|l'| <= 1 (logistic loss)")
def freedman_transfer(
    total: Annotated[float, not_below(0, "the sum of |l'_s|")],
    delta: Probability,
    t: Count | None = None,
    *,
    fresh: Known = None,
    convention: Convention = "derived",
) -> Guarantee:
    """The sum of expected derivatives of the loss along SGD is at most a multiple of the sum of those that were seen

    sum_{s<t} E|l'(p(W_s))| <= (total + ln(1/delta)) / (3 - e), total = sum_s |l'_s| (LR-14). Printed: 4 (total + ln(1/delta)).

    With t steps the value is a test error: 1[p <= 0] <= 2 |l'(p)|, so the mean over s < t of Pr[p(W_s) <= 0] is at most 2/t times
    that, and so is the smallest. `sum` is the bound on the sum.

    >>> from widemargin import theory
    >>> print(theory.lazy.freedman_transfer(total=12.0, delta=0.05, t=1000))
    LR-14: test error of iterates 0.10646, not all assumptions checked [LR Lemma B.1]
    """
    factor = 4.0 if convention == "printed" else 1 / (3 - math.e)
    bound = factor * (total + math.log(1 / delta))
    value = bound if t is None else 2 * bound / t
    says = f"the sum of expected |l'| is at most {bound:.6g}"
    if t is not None:
        says = f"the test error of the networks W_0, ..., W_(t-1) is at most {value:.6g} on average"
    return Guarantee(
        says,
        value,
        (given(FRESH, fresh),),
        quantity="constant" if t is None else "test error of iterates",
        numbers={"sum": bound},
    )


@checked
def steps_for_sgd(error: Positive, gamma: Positive, delta: Probability) -> float:
    """t = (8 ln(1/delta) + 2560/gamma^2) / error: SGD steps, and samples, for this test error (LR Theorem 2.1)."""
    return (8 * math.log(1 / delta) + 2560 / gamma**2) / error


@states("LR-12", "LR Theorem 2.1", quantity="test error of iterates", fails={"derived": 8, "printed": 7})
@assuming(
    "logistic loss, one fresh example a step", "NTK margin gamma on the support", "||x|| <= 1", "m and eta in range"
)
def sgd_test_error(
    gamma: Positive,
    t: Positive,
    delta: Probability,
    *,
    m: Measured = None,
    eta: Measured = None,
    radius: Measured = None,
    loss: str | None = None,
    fresh: Known = None,
    start: Known = None,
    part: Part = "outer",
    convention: Convention = "derived",
) -> Guarantee:
    """Some iterate of SGD has a test error of the order 1 / (t gamma^2), at a width of the order 1 / gamma^2

    min_{s<t} Pr[p(W_s) <= 0] <= 8 ln(1/delta)/t + 2560/(t gamma^2), with probability 1 - 8 delta (printed: 7; LR-12, E-LR-7).

    For m >= (64 ln(t/delta)/gamma)^2 and eta in [gamma/(10 sqrt(m)), gamma^2/6400], not empty iff m >= (640/gamma)^2. `movement`:
    max_{s<t} ||W_s - W_0|| <= 80 eta sqrt(m)/gamma. Without m the smallest width with a range is used, without eta the largest.

    >>> from widemargin import theory
    >>> print(theory.lazy.sgd_test_error(gamma=0.1, t=10**6, delta=0.05))
    LR-12: test error of iterates 0.25602, not all assumptions checked [LR Theorem 2.1]
    """
    notes = _layer(part, convention)
    width = max(64 * math.log(t / delta) / gamma, 0.0) ** 2
    nonempty = (640 / gamma) ** 2
    needed = width if convention == "printed" else max(width, nonempty)
    used = max(width, nonempty) if m is None else float(m)
    low, high = gamma / (10 * math.sqrt(used)), gamma**2 / 6400
    step = high if eta is None else eta
    value = 8 * math.log(1 / delta) / t + 2560 / (t * gamma**2)
    return Guarantee(
        f"some of the first {t:.6g} networks has test error at most {value:.6g}",
        value,
        (
            *notes,
            conditions.on_the_support(f"the NTK margin {gamma:.6g}"),
            in_unit_ball(radius),
            given("the loss is logistic", None if loss is None else loss == "logistic", loss or ""),
            given(FRESH, fresh),
            _law(start),
            at_least("m", m, needed),
            seen(
                f"the step size lies in [{low:.6g}, {high:.6g}]", eta, low * (1 - 1e-12) <= step <= high * (1 + 1e-12)
            ),
        ),
        numbers={
            "width": needed,
            "step_sizes": [low, high] if low <= high * (1 + 1e-12) else None,
            "movement": 80 * step * math.sqrt(used) / gamma,
        },
    )


# ---------------------------------------------------------------- gradient flow


@states("LR-26", "LR Lemma B.2", quantity="training risk")
@assuming("|l'| <= 1/8")
def loss_from_derivative(slope: Positive, loss: Loss = "logistic") -> Guarantee:
    """A small derivative of the loss means a small loss

    l <= 2 |l'| where |l'| <= 1/8, for the logistic and the exponential loss (LR-26, E-LR-12).

    `exact` is l itself, -ln(1 - |l'|) or |l'|; for |l'| <= 1/8 it is at most (8/7) |l'|.

    >>> from widemargin import theory
    >>> print(theory.lazy.loss_from_derivative(slope=0.01))
    LR-26: training risk 0.02, applies [LR Lemma B.2]
    """
    exact = slope if loss == "exp" else -math.log1p(-slope) if slope < 1 else math.inf
    return Guarantee(
        f"the loss is at most {2 * slope:.6g}", 2 * slope, (at_most("|l'|", slope, 1 / 8),), numbers={"exact": exact}
    )


@states("LR-16", "LR Lemma 2.3", quantity="training risk", fails=7)
@assuming("NTK margin gamma", "||x|| <= 1", "m >= (640 ln(t/delta)/gamma)^2", "t >= n")
def training_risk_of_flow(
    gamma: Positive,
    t: Positive,
    n: Count,
    delta: Probability,
    *,
    m: Measured = None,
    radius: Measured = None,
    start: Known = None,
    flow: Assumption | None = None,
    part: Part = "outer",
    convention: Convention = "derived",
) -> Guarantee:
    """Gradient flow has training risk at most 1/(5t) while it has hardly moved

    Rhat(W_t) <= 1/(5t) with probability 1 - 7 delta, for t >= n (E-LR-8; printed: any t) (LR-16).

    `movement`: sup_{s<=t} ||W_s - W_0|| <= gamma sqrt(m)/80. `risk_sharp` = 1/(10t): the proof has mean |l'| <= 1/(20t) and then
    uses 1/(10t).

    >>> from widemargin import theory
    >>> print(theory.lazy.training_risk_of_flow(gamma=0.1, t=1000.0, n=100, delta=0.05))
    LR-16: training risk 0.0002, not all assumptions checked [LR Lemma 2.3]
    """
    notes = _layer(part, convention)
    if convention == "derived":
        notes += [at_least("t", t, float(n)), at_least("ln(t/delta)", math.log(t / delta), 1.0)]
    width = (640 * math.log(t / delta) / gamma) ** 2
    used = width if m is None else float(m)
    return Guarantee(
        f"the training risk at time {t:.6g} is at most {1 / (5 * t):.6g}",
        1 / (5 * t),
        (
            *notes,
            flow or given("training is gradient flow on the mean logistic or exponential risk", None),
            in_unit_ball(radius),
            _law(start),
            at_least("m", m, width),
        ),
        numbers={"width": width, "movement": gamma * math.sqrt(used) / 80, "risk_sharp": 1 / (10 * t)},
    )


@states("LR-17", "LR Lemma 2.4", quantity="margin", unit="M2", fails=7)
@assuming("NTK margin gamma on the sample", "||x|| <= 1", "width", "fitted before moving half as far")
def margin_after_moving(
    gamma: Positive,
    n: Count,
    delta: Probability,
    *,
    m: Measured = None,
    moved: Measured = None,
    fitted: Known = None,
    radius: Measured = None,
    start: Known = None,
    flow: Assumption | None = None,
    part: Part = "outer",
    convention: Convention = "derived",
) -> Guarantee:
    """Once gradient flow has moved by gamma sqrt(m)/32 its margin is at least gamma^2/4096, after rebalancing gamma/4096

    psi(W_s)/||W_s||^2 >= gamma^2/4096 from the time on at which ||W_t - W_0|| = R = gamma sqrt(m)/32 (LR-17).

    `rebalanced`: gamma/4096 for (a/sqrt(gamma), V sqrt(gamma)) at that time (`rebalance`). Width:
    ((sqrt(32 L) + 4)/(0.375 gamma))^2, L = ln(n/delta) (E-LR-9; printed: 256 L/gamma^2, too small for the proof unless L >= 137).
    `fitted`: some W_tau with ||W_tau - W_0|| <= R/2 has a sum of losses below l(0). `moved` is ||W_s - W_0|| at the time in
    question.

    >>> from widemargin import theory
    >>> print(theory.lazy.margin_after_moving(gamma=0.1, n=100, delta=0.05, fitted=True))
    LR-17: margin (M2) 2.4414e-06, not all assumptions checked [LR Lemma 2.4]
    """
    notes = _layer(part, convention)
    L = math.log(n / delta)
    width = 256 * L / gamma**2 if convention == "printed" else ((math.sqrt(32 * L) + 4) / (0.375 * gamma)) ** 2
    far = gamma * math.sqrt(width if m is None else m) / 32
    return Guarantee(
        f"the margin (M2) is at least {gamma**2 / 4096:.6g} once the weights have moved by {far:.6g}",
        gamma**2 / 4096,
        (
            *notes,
            flow or given("training is gradient flow on the mean logistic or exponential risk", None),
            in_unit_ball(radius),
            _law(start),
            at_least("m", m, width),
            given(f"the points are fitted before the weights have moved by {far / 2:.6g}", fitted),
            at_least("||W - W_0||", moved, far),
        ),
        numbers={"width": width, "radius": far, "rebalanced": gamma / 4096},
    )


@checked
def rebalance(a: ArrayLike, V: ArrayLike, g: Positive | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(a/sqrt(g), V sqrt(g)) for outer weights a (m,) and inner weights V (m, d): the same function (LR Lemma 2.4).

    By default g = ||a||/||V||, which makes the squared norm smallest, 2 ||a|| ||V||.

    >>> from widemargin.theory import lazy
    >>> a, V = lazy.rebalance([4.0], [[1.0, 0.0]])
    >>> a.tolist(), V.tolist()
    ([2.0], [[2.0, 0.0]])
    """
    a, V = np.asarray(a, dtype=np.float64), np.asarray(V, dtype=np.float64)
    if g is None:
        g = float(np.linalg.norm(a) / np.linalg.norm(V)) if V.any() and a.any() else 1.0
    return a / math.sqrt(g), V * math.sqrt(g)


@states("LR-15", "LR Theorem 2.2", quantity="margin", unit="M2", fails=15)
@assuming("NTK margin gamma on the support", "||x|| <= 1", "m >= (640 ln(n/delta)/gamma)^2")
def margin_of_flow(
    gamma: Positive,
    n: Count,
    delta: Probability,
    *,
    m: Measured = None,
    radius: Measured = None,
    start: Known = None,
    flow: Assumption | None = None,
    constant: float = 1.0,
    part: Part = "outer",
    convention: Convention = "derived",
) -> Guarantee:
    """Gradient flow at width (640 ln(n/delta)/gamma)^2 reaches margin gamma^2/4096 and keeps it

    With probability 1 - 15 delta: ||W_t - W_0|| = gamma sqrt(m)/32 at some t, and psi/||W_s||^2 >= gamma^2/4096 for s >= t.

    `test_error_up_to_a_constant` and `test_error_at_radius_up_to_a_constant` are of the orders ln(n)^3/(n gamma^4) and
    ln(n)^3/(n gamma^2) of the theorem, with
    `constant` in front and the margins gamma^2/4096 and gamma/4096 put in (LR-15, Lemma 2.5).

    >>> from widemargin import theory
    >>> print(theory.lazy.margin_of_flow(gamma=0.1, n=100, delta=0.05))
    LR-15: margin (M2) 2.4414e-06, not all assumptions checked [LR Theorem 2.2]
    """
    notes = _layer(part, convention)
    width = (640 * math.log(n / delta) / gamma) ** 2
    far = gamma * math.sqrt(width if m is None else m) / 32
    return Guarantee(
        f"gradient flow reaches margin (M2) {gamma**2 / 4096:.6g} when it has moved by {far:.6g}, and keeps it",
        gamma**2 / 4096,
        (
            *notes,
            conditions.on_the_support(f"the NTK margin {gamma:.6g}"),
            flow or given("training is gradient flow on the mean logistic or exponential risk", None),
            in_unit_ball(radius),
            _law(start),
            at_least("m", m, width),
        ),
        numbers={
            "width": width,
            "radius": far,
            "rebalanced": gamma / 4096,
            **conditions.orders_of_test_error(
                constant, n, delta, test_error=gamma**2 / 4096, test_error_at_radius=gamma / 4096
            ),
        },
    )
