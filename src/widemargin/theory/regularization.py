"""What weak regularisation and least norms give: margins of minimisers, and the gap between l1 and l2 (MT Sections 2, 3.4, D)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from widemargin.spaces import ReLU
from widemargin.types import Certificate, InputError

from ._rooms import optimize, special
from .arguments import Classes, Convention, Count, Factor, Loss, Positive, Probability, checked
from .conditions import Known
from .guarantee import Assumption, Guarantee, applied, assuming, holding, states
from .known_facts import Facts

if TYPE_CHECKING:
    from widemargin.optima import Path

BEST = "gamma* > 0 is the largest margin"
MINIMISER = "Theta is a global minimiser"
TAILS = ("logistic", "exp")  # losses phi of which phi(z)/phi(0) falls exponentially


def _log_expm1(log_x: float) -> float:
    """ln(e^x - 1) from ln x, for any size of x."""
    if log_x < -15:
        return log_x + math.exp(log_x) / 2
    x = math.exp(log_x)
    return x + math.log(-math.expm1(-x))


def _log_softplus(s: float) -> float:
    """ln ln(1 + e^s)."""
    return s - math.exp(s) / 2 if s < -15 else math.log(_softplus(s))


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


@checked
def regularized_loss_bounds(
    gamma: float, size: Positive, lam: Positive, n: Count, classes: int = 2, r: Positive = 2, a: Positive = 2
) -> tuple[float, float]:
    """(1/n) ln(1 + e^{-M^a gamma}) + lam M^r <= L_lam(M Theta) <= ln(1 + (l-1) e^{-M^a gamma}) + lam M^r for unit Theta of margin
    gamma, M = `size`; mean cross-entropy, or logistic with l = 2 (MT (A.2), (A.3), MT-4)."""
    z = -(size**a) * gamma
    penalty = lam * size**r
    return _softplus(z) / n + penalty, _softplus(z + math.log(classes - 1)) + penalty


def least_upper_bound(gamma: float, lam: float, classes: int = 2, r: float = 2, a: float = 2) -> float:
    """min over M > 0 of the upper bound above at the max margin: at least the minimum of L_lam."""
    log_top = math.log(max(classes - 1, 1) * gamma ** (r / a) / lam) if lam > 0 else 1.0
    middle = math.log(max(log_top, 1e-3) / gamma) / a

    def value(log_M: float) -> float:
        M = math.exp(log_M)
        return _softplus(math.log(classes - 1) - M**a * gamma) + lam * M**r

    least = optimize.minimize_scalar(value, bounds=(middle - 8, middle + 4), method="bounded", options={"xatol": 1e-10})
    return min(float(least.fun), math.log(classes))  # Theta = 0


@states("MT-4", "MT (A.4), (A.5)", quantity="margin")
@assuming(MINIMISER, BEST)
def minimizer_margin(
    norm: Positive, gamma_star: Positive, n: Count, classes: Classes = 2, a: Positive = 2, *, minimiser: Known = None
) -> Guarantee:
    """The margin of a regularised minimiser of known norm is close to the largest margin.

    n ln(1 + (l-1) e^{-M gamma*}) >= ln(1 + e^{-M gamma}), M = ||Theta||^a, solved for gamma (MT-4):

    gamma >= -(1/M) ln((1 + (l-1) e^{-M gamma*})^n - 1), about gamma* - ln(n (l-1))/M. Mean loss (E-MT-2); any r, lam.

    >>> from widemargin import theory
    >>> print(theory.regularization.minimizer_margin(norm=8.0, gamma_star=0.5, n=100))
    MT-4: margin (M2) 0.42804, not all assumptions checked [MT (A.4), (A.5)]
    """
    return Guarantee(
        "gamma >= -(1/M) ln((1 + (l-1) e^{-M gamma*})^n - 1), M = ||Theta||^a",
        _margin_at(norm**a, gamma_star, n, classes),
        holding(minimiser, (None, f"gamma* = {gamma_star:.6g}")),
        unit="M2" if a == 2 else "",
        numbers={
            "M": norm**a,
            "gamma_star": gamma_star,
            "first_order": gamma_star - math.log(max(n * (classes - 1), 1)) / norm**a,
        },
    )


def _margin_at(M: float, gamma: float, n: int, classes: int) -> float:
    return -_log_expm1(math.log(n) + _log_softplus(math.log(classes - 1) - M * gamma)) / M


@states("MT-3", "MT Theorem 2.1, Theorem A.3, Lemma A.2", quantity="margin")
@assuming(MINIMISER, BEST, "lam is small enough: n U < ln 2")
def weak_regularization_margin(
    lam: Positive,
    gamma_star: Positive,
    n: Count,
    classes: Classes = 2,
    r: Positive = 2,
    a: Positive = 2,
    *,
    minimiser: Known = None,
) -> Guarantee:
    """Minimisers of weakly regularised losses have nearly the largest margin, and their norm grows, as lam falls.

    MT-3 with a rate. U = min_M ln(1 + (l-1) e^{-M^a gamma*}) + lam M^r bounds the minimum, and the minimum is at least (1/n)
    ln(1 + e^{-M gamma*}), M = ||Theta||^a, since no margin exceeds gamma*. So M >= -ln(e^{nU} - 1)/gamma*, which grows without
    end as lam -> 0, and `minimizer_margin`, increasing in M, gives the margin.

    >>> from widemargin import theory
    >>> print(theory.regularization.weak_regularization_margin(lam=1e-6, gamma_star=0.5, n=100))
    MT-3: margin (M2) 0.095408, not all assumptions checked [MT Theorem 2.1, Theorem A.3, Lemma A.2]
    """
    U = least_upper_bound(gamma_star, lam, classes, r, a)
    M = -_log_expm1(math.log(n * U)) / gamma_star
    value = _margin_at(M, gamma_star, n, classes) if M > 0 else -math.inf
    return Guarantee(
        "gamma_lam >= -(1/M) ln((1 + (l-1) e^{-M gamma*})^n - 1) with M >= -ln(e^{nU} - 1)/gamma*",
        value,
        holding(minimiser, (None, f"gamma* = {gamma_star:.6g}"), (n * U < math.log(2), f"n U = {n * U:.6g}")),
        unit="M2" if a == 2 else "",
        numbers={"norm_least": max(M, 0.0) ** (1 / a), "norm_most": (U / lam) ** (1 / r), "U": U},
    )


@states("MT-5", "MT Theorem 2.2", quantity="margin")
@assuming("L(Theta) <= 2 min L", BEST, "X >= 1", "L_UB <= 1/(2n)")
def approximate_minimizer_margin(
    gamma_star: Positive,
    lam: Positive,
    n: Count,
    classes: Classes = 2,
    r: Positive = 2,
    a: Positive = 2,
    *,
    factor: Positive = 2.0,
    within: Known = None,
    convention: Convention = "derived",
) -> Guarantee:
    """A point within a factor 2 of the least regularised loss has a constant fraction of the largest margin.

    -gamma* ln(2n L_UB) / ((2 factor)^{a/r} X), X = ln((l-1) gamma*^{r/a}/lam), L_UB = 2 factor lam (X/gamma*)^{r/a} (MT-5).

    Valid at every lam with X >= 1 and L_UB <= 1/(2n), for L(Theta) <= factor min L. Printed: gamma*/(2 4^{a/r}) if
    lam = gamma*^{r/a}/(n(l-1))^c with c large enough; how large is `smallest_c` (E-MT-4: very small n need more).

    >>> from widemargin import theory
    >>> print(theory.regularization.approximate_minimizer_margin(gamma_star=0.5, lam=1e-6, n=100))
    MT-5: margin (M2) 0.036802, not all assumptions checked [MT Theorem 2.2]
    """
    X = math.log(classes - 1) + r / a * math.log(gamma_star) - math.log(lam)
    N = n * (classes - 1)
    c = (X - math.log(classes - 1)) / math.log(N) if N > 1 else math.inf
    listed = [
        Assumption("L(Theta) <= factor min L", within, f"factor {factor:g}"),
        Assumption(BEST, None, f"gamma* = {gamma_star:.6g}"),
    ]
    if convention == "printed":
        need = smallest_c(n, classes, r / a) if N > 1 else 0.0
        listed.append(Assumption("c is large enough", c >= need, f"c = {c:.6g}, smallest {need:.6g}"))
        value = gamma_star / (2 * 4 ** (a / r))
    else:
        log_UB = math.log(2 * factor * lam) + r / a * (math.log(X) - math.log(gamma_star)) if X > 0 else math.inf
        listed += [
            Assumption("X >= 1", X >= 1, f"X = {X:.6g}"),
            Assumption("L_UB <= 1/(2n)", log_UB <= -math.log(2 * n), f"ln L_UB = {log_UB:.6g}"),
        ]
        value = -gamma_star * (math.log(2 * n) + log_UB) / ((2 * factor) ** (a / r) * X) if X > 0 else -math.inf
    return Guarantee(
        "gamma >= -gamma* ln(2n L_UB) / ((2 factor)^{a/r} X)",
        value,
        tuple(listed),
        unit="M2" if a == 2 else "",
        numbers={"c": c, "X": X},
    )


@checked
def smallest_c(n: Count, classes: Classes = 2, r_over_a: Positive = 1.0) -> float:
    """The smallest c from which on lam = gamma*^{r/a}/(n(l-1))^c makes the certificate of MT-5 at least gamma*/(2 4^{a/r}).

    That is ln(8n X^{r/a}) - c ln N <= -X/2 with X = ln(l-1) + c ln N and X >= 1; it does not depend on gamma*.
    """
    if n * (classes - 1) < 2:
        raise InputError(
            "smallest_c: n (classes - 1) must be at least 2; with one point of two classes no power of n is small"
        )
    log_N = math.log(n * (classes - 1))

    def over(X: float) -> float:  # convex minus linear: negative for all large X
        return math.log(8 * n) + r_over_a * math.log(X) - (X - math.log(classes - 1)) + X / 2

    turn = max(1.0, 2 * r_over_a)  # over falls from here on
    top = turn
    while over(top) > 0:
        top *= 2
    X = turn if over(turn) <= 0 else float(optimize.brentq(over, turn, top, xtol=1e-12))
    return (X - math.log(classes - 1)) / log_N


# ---------------------------------------------------------------- networks of nearly the least objective


def _log_least(log_s: float, loss: str, classes: int = 2) -> float:
    """ln inf_{z >= 0} phi(z) + s z from ln s; phi(z) = ln(1 + (l-1) e^-z), or e^-z.

    exp: s (1 - ln s) up to s = 1, then 1. Else the entropy of s, and s ln(l-1), up to s = (l-1)/l, then ln l.
    """
    if loss == "exp":
        return log_s + math.log1p(-log_s) if log_s < 0 else 0.0
    if log_s >= math.log1p(-1 / classes):
        return math.log(math.log(classes))
    s = math.exp(log_s)
    rest = -(1 - s) * math.log1p(-s) / s if s > 0 else 1.0
    return log_s + math.log(rest - log_s + math.log(classes - 1))


def _two_classes(where: str, loss: str, classes: int) -> None:
    if loss == "exp" and classes != 2:
        raise InputError(f"{where}: the exponential loss has two classes, not {classes}")


@states("WM-4", "widemargin, from MT Theorem 2.1 (proof)", quantity="margin", unit="M1")
@assuming("the objective is at most factor times the least one", "some network of norm 1 has the margin gamma > 0")
def decayed_margin(
    decay: Positive, gamma: Positive, n: Positive, *, factor: Factor = 1.0, loss: Loss = "logistic", classes: Classes = 2,
    near: Known = None, reached: Known = None,
) -> Guarantee:  # fmt: skip
    """A network of nearly the least objective of training with weight decay has nearly the largest margin; how nearly.

    min_i y_i f(x_i)/|f| >= q gamma if objective(f) = mean loss + decay |f| is at most factor times the least: MT-3 and a rate.

    q is the largest number with phi*(n decay/(q gamma)) >= n factor phi*(decay/gamma), phi*(s) = inf_{z >= 0} phi(z) + s z. For
    exp: (1 + ln(gamma/decay))(1 - q factor) = ln(n/q). It grows to 1/factor as the decay falls; -inf where there is none. |f| is
    any norm in which f is homogeneous of degree 1: |nu| with margins in M1 for `optima.f1`, with biases, whatever the output
    bias. `n` is the sum of the weights over the smallest one where points have weights. Proof: docs/proofs.md, 5.

    >>> from widemargin import theory
    >>> print(theory.regularization.decayed_margin(decay=1e-6, gamma=0.5, n=100))
    WM-4: margin (M1) 0.32129, not all assumptions checked [widemargin, from MT Theorem 2.1 (proof)]
    """
    _two_classes("decayed_margin", loss, classes)
    log_lam, own = math.log(decay) - math.log(gamma), 2
    target = math.log(n) + math.log(factor) + _log_least(log_lam, loss, classes)
    top = 0.0 if loss == "exp" else -math.log(2)  # ln of -phi'(0): from there on phi* is phi(0)
    low = math.log(n) + log_lam  # q = 1, where phi* is too small or just enough: it is concave, and 0 at 0
    share = -math.inf  # nothing is known of the sign of the margin
    if low < top and _log_least(top, loss, own) >= target:
        past = _log_least(low, loss, own) - target  # above 0 by rounding only
        log_s = (
            low
            if past >= 0
            else float(optimize.brentq(lambda u: _log_least(u, loss, own) - target, low, top, xtol=1e-13))
        )
        share = min(1.0, math.exp(low - log_s))
    return Guarantee(
        "margin >= q gamma, phi*(n decay/(q gamma)) = n factor phi*(decay/gamma)",
        share * gamma,
        holding((near, f"factor = {factor:.6g}"), (reached, f"gamma = {gamma:.6g}")),
        numbers={"share": share, "most": math.exp(target - math.log(n))},
    )


@checked
def decay_for_margin(
    share: Positive,
    gamma: Positive,
    n: Positive,
    *,
    factor: Factor = 1.0,
    loss: Loss = "logistic",
    classes: Classes = 2,
) -> float:
    """The largest decay at which `decayed_margin` guarantees share gamma; it does at every smaller one, too.

    For exp it is gamma e^(1 - ln(n/share)/(1 - share factor)) where that is at most gamma share/n. 0 where no float is as small.
    `factor`, `loss` and `classes` are those of `decayed_margin`.

    >>> from widemargin.theory import regularization
    >>> decay = regularization.decay_for_margin(0.8, gamma=0.5, n=100)
    >>> regularization.decayed_margin(decay, gamma=0.5, n=100).shown
    '0.4'
    """
    _two_classes("decay_for_margin", loss, classes)
    if not share * factor < 1:
        raise InputError(
            f"decay_for_margin: within a factor {factor:g} of the least objective only shares below {1 / factor:.6g} are sure"
        )

    def over(u: float) -> float:  # falls: phi* at a larger number has the smaller elasticity
        least = math.log(n) + math.log(factor) + _log_least(u, loss, classes)
        return _log_least(u + math.log(n) - math.log(share), loss) - least

    top = 0.0 if loss == "exp" else -math.log(2)  # from n decay/gamma = e^top on the best network of one point is 0
    high = min(0.0, top - math.log(n)) - 1e-6  # less is lost in rounding, as phi* is flat there
    low = high - 1.0
    while over(low) < 0:
        low *= 2
    if over(high) >= 0:
        return gamma * math.exp(high)
    u = float(optimize.brentq(over, low, high, xtol=1e-12))
    return math.exp(u + math.log(gamma)) if u + math.log(gamma) > -745 else 0.0


def guaranteed_along(path: Path, best: Certificate) -> Path:
    """The path with the columns `guaranteed`, the margin that `decayed_margin` gives each network by its own certificate (the
    factor is upper/lower), and `largest`, the certified upper bound on the margin (of networks without an output bias).
    `largest` is left out where points have weight 0, as the margins of a path are those of the others.

    `best` is the certificate of `margins.f1` on the same points, with a bias where the path has one.

    >>> from widemargin import margins, optima, theory
    >>> from widemargin.types import Dataset
    >>> xor = Dataset([[1, 1], [-1, -1], [1, -1], [-1, 1]], [1, 1, -1, -1])
    >>> path = theory.regularization.guaranteed_along(optima.path(xor, [0.1, 1e-4], output_bias=None), margins.f1(xor))
    >>> bool((path.column("guaranteed") <= path.column("largest")).all())
    True
    """
    first = path[0].certificate
    loss, n = first.extra["loss"], float(first.n)
    if best.kind != "f1" or best.activation != first.activation:
        raise InputError(f"guaranteed_along: best is a certificate of kind {best.kind}; give that of margins.f1")
    if best.data_sha256 != first.data_sha256 or best.bias != first.bias:
        raise InputError(
            "guaranteed_along: best is about other points, or differs in the bias; give that of margins.f1"
        )
    if loss not in TAILS:
        raise InputError(f"guaranteed_along: MT's theorem is about the losses {' and '.join(TAILS)}, not {loss}")
    if not best.lower > 0:
        raise InputError(f"guaranteed_along: {best.data_name} has no certified margin, so that nothing is guaranteed")
    largest = {"largest": [best.upper] * len(path)}
    if first.extra.get("weights") is not None:
        w = np.asarray(first.extra["weights"], dtype=np.float64)
        n = math.fsum(w) / float(w[w > 0].min())
        largest = largest if w.all() else {}

    def guaranteed(decay: float, factor: float) -> float:
        return float(decayed_margin(decay, best.lower, n, factor=max(1.0, factor), loss=loss).value)

    margins = [guaranteed(p.weight_decay, p.upper / p.lower) if p.lower > 0 else -math.inf for p in path]
    return path.beside(guaranteed=margins, **largest)


# ---------------------------------------------------------------- the l1 - l2 gap


def relu_pair_gap(a: ArrayLike) -> np.ndarray:
    """E[(a+Z)+ + (-a+Z)+] - 2 E Z+ = E|Z+a| - E|Z| = a (2 Phi(a) - 1) + 2 phi(a) - 2 phi(0), Z ~ N(0,1) (MT Claim D.2, MT-19).

    Between 0 and min(|a|, a^2/sqrt(2 pi)): its slope 2 Phi(a) - 1 is below 1 and its second derivative 2 phi(a) below 2 phi(0).
    """
    a = np.asarray(a, dtype=np.float64)
    return a * (2 * special.ndtr(a) - 1) + 2 * np.expm1(-a * a / 2) / math.sqrt(2 * math.pi)


@states("MT-19", "MT Lemma 3.6", quantity="constant", unit="M7")
@assuming("labels are -1 and +1")
def uniform_dual_bound(K: ArrayLike, y: ArrayLike) -> Guarantee:
    """The kernel margin is at most the norm of the mean of y_i phi(x_i).

    gamma_2 <= sqrt(sum_ij y_i y_j k(x_i, x_j))/n: the dual min_q sqrt(q' K_y q) at q = 1/n (MT-19, exact).

    >>> from widemargin import theory
    >>> print(theory.regularization.uniform_dual_bound([[1.0, 0.5], [0.5, 1.0]], [1, -1]))
    MT-19: constant (M7) 0.5, applies [MT Lemma 3.6]
    """
    gram, signs = np.asarray(K, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if signs.ndim != 1 or gram.shape != (len(signs), len(signs)):
        raise InputError(f"uniform_dual_bound: K has shape {gram.shape} and y {signs.shape}; give K (n, n) and y (n,)")
    return Guarantee(
        "gamma_2 <= ||mean y_i phi(x_i)||",
        math.sqrt(max(float(signs @ gram @ signs), 0.0)) / len(signs),
        holding(bool(np.isin(signs, (-1, 1)).all())),
    )


@applied("MT-19", two_classes=True)
def _uniform_dual_on(facts: Facts) -> Guarantee | None:
    return None if facts.n > 5000 else uniform_dual_bound(ReLU().kernel(facts.data.X), facts.data.y)


@states("MT-18", "MT Theorem 3.5, Lemma 3.7", quantity="constant", unit="M7", fails={"derived": 1})
@assuming("the points are independent draws of MT's law D", "d >= 7")
def kernel_margin_gap(
    n: Count,
    d: Count,
    delta: Probability = 0.05,
    *,
    law: Known = None,
    constant: Positive = 1.0,
    convention: Convention = "derived",
) -> Guarantee:
    """On the XOR law with noise coordinates the l1 margin stays while the kernel margin falls with n and d.

    Upper bound on the kernel margin of n points of D, while gamma_l1 >= sqrt(2)/4 always (MT-18).

    Derived: sqrt((1/(2n) + s_d)/delta), s_d = c/((d-4)(d-6)), c = (12 + 32/pi)/(32 pi) = 0.2206. Proof: Q = ||mean y_i
    phi(x_i)||^2 in L2(tau) bounds gamma_2^2 (`uniform_dual_bound`) and E Q <= E k(x, x)/n + ||E y phi||^2, where E k(x, x) =
    E||x||^2/(2d) = 1/2. For a unit u, E y relu(u . x) = (t/4)(G((u1+u2)/t) - G((u1-u2)/t)), t = ||(u3..ud)||, G =
    `relu_pair_gap` in [0, a^2/sqrt(2 pi)], so its square is at most (|u1|+|u2|)^4/(32 pi t^2); with u = g/||g||, ||g||^2 t^2 >=
    ||(g3..gd)||^4, and E 1/(chi^2_{d-2})^2 = 1/((d-4)(d-6)). Then Markov. Printed: `constant` max(sqrt(ln(n)/n), 1/d), whose
    proof gives ln(n)/sqrt(n) (E-MT-8).

    >>> from widemargin import theory
    >>> print(theory.regularization.kernel_margin_gap(n=1000, d=10))
    MT-18: constant (M7) 0.44035, not all assumptions checked [MT Theorem 3.5, Lemma 3.7]
    """
    mean = mean_feature_bound(d)
    if convention == "printed":
        value = constant * max(math.sqrt(math.log(n) / n), 1 / d)
    else:
        value = math.sqrt((1 / (2 * n) + mean) / delta)
    known = holding((law, "without rejection of long points"), (d >= 7, f"d = {d}"))
    return Guarantee(
        "gamma_2 <= sqrt((1/(2n) + s_d)/delta), while gamma_l1 >= sqrt(2)/4",
        value,
        known if convention == "derived" else known[:1],
        explicit=convention == "derived",
        numbers={"gamma_l1": math.sqrt(2) / 4, "order": max(math.log(n) / math.sqrt(n), 1 / d), "mean_feature": mean},
    )


def mean_feature_bound(d: int) -> float:
    """Upper bound on ||E y phi||^2 in L2(tau) under MT's law D, d >= 7; infinite below."""
    return (12 + 32 / math.pi) / (32 * math.pi * (d - 4) * (d - 6)) if d >= 7 else math.inf


@states("MT-21", "MT Theorem D.3", quantity="norm")
@assuming(MINIMISER, "width m >= n", "the targets can be interpolated")
def regression_minimizer_norm(
    l1_norm: Positive,
    lam: Positive,
    *,
    m: int | None = None,
    n: int | None = None,
    feasible: Known = None,
    minimiser: Known = None,
) -> Guarantee:
    """Weakly regularised least squares of a wide network: norm at most, and in the limit equal to, twice the least l1 norm.

    ||Theta_lam||^2 <= 2 ||alpha_l1||_1 for every lam, with equality in the limit; mean square <= 2 lam ||alpha_l1||_1 (MT-21):
    the balanced network of alpha_l1 has squared norm 2 ||alpha_l1||_1 and interpolates.

    >>> from widemargin import theory
    >>> print(theory.regularization.regression_minimizer_norm(l1_norm=3.0, lam=0.01))
    MT-21: norm 6, not all assumptions checked [MT Theorem D.3]
    """
    wide = None if m is None or n is None else m >= n
    return Guarantee(
        "||Theta_lam||^2 <= 2 ||alpha_l1||_1",
        2 * l1_norm,
        holding(minimiser, (wide, "" if wide is None else f"m = {m}, n = {n}"), feasible),
        numbers={"training_risk": 2 * lam * l1_norm},
    )


@applied("MT-21", two_classes=False)
def _regression_norm_on(facts: Facts) -> Guarantee | None:
    if facts.net is not None and facts.net.outputs > 1:
        return None
    cert = facts.margin("min_norm_l1")
    if cert is None or not math.isfinite(cert.upper) or cert.upper <= 0:
        return None
    return regression_minimizer_norm(cert.upper, 1.0, m=facts.m, n=facts.n, feasible=True)


@states("MT-23", "MT Theorem D.6, Lemma D.7", quantity="constant", unit="M7")
@assuming(
    "the target is relu(u . x), u uniform on the sphere and independent of the points",
    "the kernel matrix is invertible",
)
def regression_gap(n: Count, *, uniform: Known = None, invertible: Known = None) -> Guarantee:
    """One random ReLU as a target has l1 norm at most 1 but squared kernel norm n on average, on any n points.

    E_u[v_u' k^-1 v_u] = trace(k^-1 E v_u v_u') = n, v_u = (relu(u . x_i))_i, k the kernel of the uniform probability; in MT's
    units ||alpha_l2||_2^2 has mean n/kappa, and equality holds (E-MT-10).

    >>> from widemargin import theory
    >>> print(theory.regularization.regression_gap(n=100, uniform=True))
    MT-23: constant (M7) 100, not all assumptions checked [MT Theorem D.6, Lemma D.7]
    """
    return Guarantee(
        "E ||f||^2_{F2} = n while ||f||_{F1} <= 1",
        float(n),
        holding(uniform, invertible),
        numbers={"l1_norm": 1.0},
    )


@applied("MT-23", two_classes=False)
def _regression_gap_on(facts: Facts) -> Guarantee | None:
    if facts.n > 2000:
        return None
    K = ReLU().kernel(facts.data.X)
    least = float(np.linalg.eigvalsh(K)[0])
    return regression_gap(facts.n, invertible=least > 1e-10 * float(np.trace(K)) / facts.n)
