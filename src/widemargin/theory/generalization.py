"""From a margin to the test error: Rademacher complexities, the bounds of the papers, and sharper ones with explicit constants.

Every bound says: with probability 1 - delta over n independent points, P(y f(x) <= 0) is at most `value` for every f of the class
with that margin on the sample. Complexities here are empirical, given the points:

    Rad(F) = (1/n) E_eps sup_{f in F} sum_i eps_i f(x_i)

Two steps turn them into bounds (Koltchinskii and Panchenko 2002). For a margin g fixed in advance, the ramp loss is
1/g-Lipschitz, lies in [0, 1] and vanishes on the sample, so by symmetrisation, contraction and McDiarmid's inequality

    P(y f(x) <= 0) <= 2 E Rad / g + sqrt(ln(1/delta) / (2n)) <= 2 Rad / g + 3 sqrt(ln(2/delta) / (2n)).

For a margin seen afterwards take the union over a grid of margins fixed in advance. The papers quote the first form, with
4 Rad / gamma after the union over powers of two, but insert the empirical Rad of the second: "derived" pays for that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from widemargin.types import InputError

from ._rooms import optimize, special
from .arguments import Convention, Count, Positive, Probability, Ratio, Share, Space, checked, one_of
from .complexity import rademacher_hull, rademacher_kernel
from .conditions import Known, Measured
from .guarantee import Assumption, Guarantee, assuming, holding, states

GRID = 1.2  # ratio of the margins tried in advance by our own bounds
FIXED = "the grid of margins was fixed before the data"
RADII = "the grid of radii was fixed before the data"
IID = "the points are independent draws of one law"
SEPARATED = "the margin on the sample is positive"


@checked
def ramp_loss(a: ArrayLike, gamma: Positive) -> np.ndarray:
    """The ramp at margins a (n,): 1 for a <= 0, 1 - a/gamma up to gamma, then 0 (MT Section C).

    >>> from widemargin.theory import generalization
    >>> generalization.ramp_loss([-1.0, 0.25, 2.0], gamma=0.5).tolist()
    [1.0, 0.5, 0.0]
    """
    return np.clip(1 - np.asarray(a, dtype=np.float64) / gamma, 0, 1)


# ---------------------------------------------------------------- from complexity to error


def deviation(n: int, delta: float, empirical: bool = True) -> float:
    """3 sqrt(ln(2/delta)/(2n)) for an empirical complexity, sqrt(ln(1/delta)/(2n)) for its mean over samples."""
    return 3 * math.sqrt(math.log(2 / delta) / (2 * n)) if empirical else math.sqrt(math.log(1 / delta) / (2 * n))


def grid_margin(gamma: float, scale: float, ratio: float) -> tuple[float, float]:
    """The largest g = scale ratio^-j, j any integer, with g <= gamma, and its share of delta: 2 / (3 (|j| + 1)(|j| + 2)).

    The shares add up to 1, so a union over the grid, fixed before the data, holds for every gamma.
    """
    j = math.ceil(math.log(scale / gamma) / math.log(ratio) - 1e-12)
    g = scale * ratio**-j
    while g > gamma:  # rounding
        j, g = j + 1, g / ratio
    return g, 2 / (3 * (abs(j) + 1) * (abs(j) + 2))


def _in_advance(what: str, value: float, scale: float, ratio: float, usual: float, fixed: bool = False) -> Assumption:
    """Whether the grid scale ratio^j was fixed before the data. The union bound pays for the choice among its entries by the
    share of entry j; it does not pay for a scale that the sample chose, as one through the value itself is (j = 0)."""
    grid = f"scale {scale:g}, ratio {ratio:g}"
    if fixed:
        return Assumption(what, True, f"one value, {value:.6g}; the caller says that it was fixed before the data")
    if (scale, ratio) == (1, usual):
        return Assumption(what, True, f"{grid}: those of this library for all data")
    if math.isclose(scale, value, rel_tol=1e-9):
        return Assumption(what, False, f"{grid}: the scale is the value that was seen on the sample")
    return Assumption(what, None, f"{grid}, as given: only the caller knows if they depend on the sample")


def _iid() -> Assumption:
    return Assumption(IID, None, "not checked: it concerns how the data were collected")


def _separated(gamma: float) -> Assumption:
    return Assumption(SEPARATED, gamma > 0, f"gamma = {gamma:.6g}")


def _within(gamma: float, C: float, known: Known, what: str = "|f(x)| <= C for every f and x of the law") -> Assumption:
    if gamma > C:
        return Assumption(what, False, f"the margin {gamma:.6g} exceeds C = {C:.6g}")
    return Assumption(what, known, f"C = {C:.6g}" + (" is the largest value of the sample" if known is None else ""))


def _spread(convention: str, gamma: float, C: float, n: int, delta: float, empirical: bool = True) -> float:
    """Deviation terms of 4 Rad / gamma + ...: margins C 2^(1-j), j >= 1, with shares 1 / (j (j + 1)) of delta.

    The margin used lies in (gamma/2, gamma], and its j + 1 is at most log2(8C/gamma). Printed, as the papers quote it:
    sqrt(ln log2(4C/gamma) / n) + sqrt(ln(1/delta) / (2n)).
    """
    chance = math.sqrt(math.log(1 / delta) / (2 * n))
    if convention == "printed":
        return math.sqrt(math.log(math.log2(4 * max(C, gamma) / gamma)) / n) + chance
    union = 2 * math.log(math.log2(8 * max(C, gamma) / gamma))
    return 3 * math.sqrt((math.log(2 / delta) + union) / (2 * n)) if empirical else math.sqrt(union / (2 * n)) + chance


@states("MT-15", "MT Theorem C.1")
@assuming(IID, "|f(x)| <= C for every f and x of the law")
def ramp_margin_bound(
    ramp_risk: Share,
    rademacher: Positive,
    gamma: Positive,
    C: Positive,
    n: Count,
    delta: Probability = 0.05,
    *,
    C_known: Known = None,
    empirical: bool = True,
    convention: Convention = "derived",
) -> Guarantee:
    """A small ramp loss at margin gamma bounds the test error, for all margins at once.

    P(y f <= 0) <= mean ramp loss + 4 Rad/gamma + deviation, C = sup ||phi(x)|| in the dual norm (MT-15).

    Derived: 3 sqrt((ln(2/delta) + 2 ln log2(8C/gamma)) / (2n)) for the empirical Rad that MT inserts, and sqrt(ln
    log2(8C/gamma)/n) + sqrt(ln(1/delta)/(2n)) for its mean (`empirical=False`). Printed: the latter with 4C and the empirical
    Rad; the shares 1/j^2 of delta which that needs add up to 1.64. `rademacher` is of the unit ball.

    >>> from widemargin import theory
    >>> print(theory.generalization.ramp_margin_bound(ramp_risk=0.1, rademacher=0.01, gamma=0.5, C=1.0, n=10_000))
    MT-15: test error 0.23392, not all assumptions checked [MT Theorem C.1]
    """
    leading, spread = 4 * rademacher / gamma, _spread(convention, gamma, C, n, delta, empirical)
    return Guarantee(
        "P(y f(x) <= 0) <= mean ramp loss + 4 Rad/gamma + deviation",
        ramp_risk + leading + spread,
        (_iid(), _within(gamma, C, C_known)),
        numbers={
            "ramp_risk": ramp_risk,
            "leading": leading,
            "deviation": spread,
            "rademacher": rademacher,
            "gamma": gamma,
        },
    )


@states("CB-22", "CB Theorem 22")
@assuming(IID, SEPARATED, "|f(x)| <= C for every f and x of the law")
def class_margin_bound(
    rademacher: Positive,
    gamma: Positive,
    C: Positive,
    n: Count,
    delta: Probability = 0.05,
    *,
    C_known: Known = None,
    empirical: bool = True,
    convention: Convention = "derived",
) -> Guarantee:
    """A margin gamma in a class of known complexity bounds the test error, for all margins at once.

    P(y f < 0) <= 4 Rad/gamma + sqrt(ln log2(4C/gamma)/n) + sqrt(ln(1/delta)/(2n)) (CB-22, printed).

    Derived as in `ramp_margin_bound`; `empirical=False` where Rad is a bound on its mean, such as B radius/sqrt(n).

    >>> from widemargin import theory
    >>> print(theory.generalization.class_margin_bound(rademacher=0.01, gamma=0.5, C=1.0, n=10_000))
    CB-22: test error 0.13392, not all assumptions checked [CB Theorem 22]
    """
    leading, spread = 4 * rademacher / gamma, _spread(convention, gamma, C, n, delta, empirical)
    return Guarantee(
        "P(y f(x) <= 0) <= 4 Rad/gamma + deviation",
        leading + spread,
        (_iid(), _separated(gamma), _within(gamma, C, C_known)),
        numbers={"leading": leading, "deviation": spread, "rademacher": rademacher, "gamma": gamma, "C": C},
    )


@states("MT-7", "MT Theorem 3.1")
@assuming(IID, SEPARATED, "||x|| <= C for every x of the law")
def network_margin_bound(
    gamma: Positive,
    n: Count,
    mean_square: Positive,
    C: Positive,
    delta: Probability = 0.05,
    *,
    C_known: Known = None,
    convention: Convention = "derived",
) -> Guarantee:
    """A two-layer ReLU network with normalised margin gamma has small test error.

    (6/gamma) sqrt(D/n) + deviation, gamma = min_i y_i f(x_i) / ||Theta||^2 (M2), D = ||X||_F^2/n, C = sup ||x|| (MT-7).

    The leading term is 4 Rad / gamma_alpha with Rad <= 3 ||X||_F/n and gamma_alpha >= 2 gamma, the margin in M1. Printed:
    sqrt(ln log2(4C/gamma)/n) + sqrt(ln(1/delta)/(2n)). Derived: what an empirical Rad costs, at gamma_alpha
    (`ramp_margin_bound`).

    >>> from widemargin import theory
    >>> print(theory.generalization.network_margin_bound(gamma=0.5, n=10_000, mean_square=1.0, C=1.0))
    MT-7: test error 0.17147, not all assumptions checked [MT Theorem 3.1]
    """
    leading = 6 / gamma * math.sqrt(mean_square / n)
    spread = _spread(convention, gamma if convention == "printed" else 2 * gamma, C, n, delta)
    return Guarantee(
        "P(y f(x) <= 0) <= (6/gamma) sqrt(D/n) + deviation",
        leading + spread,
        (_iid(), _separated(gamma), _within(2 * gamma, C, C_known, "||x|| <= C for every x of the law")),
        numbers={"leading": leading, "deviation": spread, "gamma_M1": 2 * gamma, "D": mean_square},
    )


@states("MT-14", "MT Lemma 3.4")
@assuming(IID, SEPARATED, "||x|| <= C for every x of the law")
def kernel_margin_bound(
    gamma: Positive,
    n: Count,
    d: Count,
    mean_square: Positive,
    C: Positive,
    delta: Probability = 0.05,
    *,
    C_known: Known = None,
    constant: Positive = 1.0,
    convention: Convention = "derived",
) -> Guarantee:
    """The max-margin kernel classifier of ReLU features has test error of order sqrt(D/(dn)) / gamma.

    (2 sqrt 2/gamma) sqrt(D/(dn)) + deviation, gamma in M7 (MT-14): Rad <= ||X||_F/(n sqrt(2d)), sup ||phi|| = C/sqrt(2d).

    Printed: `constant` times (1/gamma) sqrt(D/(dn)) + sqrt(ln max(log2(C sqrt(1/d)/gamma), 2)/n) + sqrt(ln(1/delta)/n); the kappa
    in its logarithm must cancel (E-MT-7) and is left out here.

    >>> from widemargin import theory
    >>> print(theory.generalization.kernel_margin_bound(gamma=0.2, n=10_000, d=4, mean_square=1.0, C=1.0))
    MT-14: test error 0.12425, not all assumptions checked [MT Lemma 3.4]
    """
    size = C / math.sqrt(2 * d)
    if convention == "printed":
        leading = constant * math.sqrt(mean_square / (d * n)) / gamma
        log = math.log(max(math.log2(max(C / math.sqrt(d) / gamma, 1)), 2))
        spread = constant * (math.sqrt(log / n) + math.sqrt(math.log(1 / delta) / n))
    else:
        leading = 4 * rademacher_kernel(n * mean_square / (2 * d), n) / gamma
        spread = _spread(convention, gamma, size, n, delta)
    return Guarantee(
        "P(y f(x) <= 0) <= (2 sqrt 2/gamma) sqrt(D/(dn)) + deviation",
        leading + spread,
        (_iid(), _separated(gamma), _within(gamma, size, C_known, "||x|| <= C for every x of the law")),
        explicit=convention == "derived",
        numbers={"leading": leading, "deviation": spread},
    )


# ---------------------------------------------------------------- orders only


@checked
def _optimistic(
    unit: str, rademacher: float, gamma: float, n: int, delta: float, constant: float, radius: float
) -> Guarantee:
    value = constant * (math.log(n) ** 3 * (rademacher / gamma) ** 2 + math.log(1 / delta) / n)
    return Guarantee(
        "P(y f(x) <= 0) = O(ln(n)^3 Rad^2/gamma^2 + ln(1/delta)/n)",
        value,
        (_iid(), _separated(gamma), Assumption("||x|| <= 1", radius <= 1 + 1e-12, f"largest ||x_i|| = {radius:.6g}")),
        unit=unit,
        explicit=False,
        numbers={"rademacher": rademacher, "constant": constant},
    )


@states("UH-24", "UH end of Appendix B")
@assuming(IID, SEPARATED, "||x|| <= 1")
def fast_rate_l1(
    gamma: Positive, n: Count, delta: Probability = 0.05, constant: Positive = 1.0, radius: Positive = 1.0
) -> Guarantee:
    """A margin gamma in the l1 norm of outer weights on unit ReLUs gives test error of order ln(n)^3/(n gamma^2).

    constant (ln(n)^3/(n gamma^2) + ln(1/delta)/n), gamma in M5 (UH-24): Srebro, Sridharan and Tewari (2010), Theorem 5, with
    Rad <= 1/sqrt(n). The constant is not known; 1 is a placeholder, so `explicit` is False.

    >>> from widemargin import theory
    >>> print(theory.generalization.fast_rate_l1(gamma=0.2, n=100_000))
    UH-24: test error (M5) 0.38153 up to a constant, not all assumptions checked [UH end of Appendix B]
    """
    return _optimistic("M5", 1 / math.sqrt(n), gamma, n, delta, constant, radius)


@states("LR-18", "LR Lemma 2.5")
@assuming(IID, SEPARATED, "||x|| <= 1")
def fast_rate_l2(
    gamma: Positive, n: Count, delta: Probability = 0.05, constant: Positive = 1.0, radius: Positive = 1.0
) -> Guarantee:
    """A margin gamma in the squared norm of all parameters gives test error of order ln(n)^3/(n gamma^2).

    As `fast_rate_l1` with gamma in M2 and Rad <= 1/(2 sqrt n), the hull halved (LR-18).

    >>> from widemargin import theory
    >>> print(theory.generalization.fast_rate_l2(gamma=0.2, n=100_000))
    LR-18: test error (M2) 0.095406 up to a constant, not all assumptions checked [LR Lemma 2.5]
    """
    return _optimistic("M2", 0.5 / math.sqrt(n), gamma, n, delta, constant, radius)


# ---------------------------------------------------------------- regression


@states("MT-22", "MT Lemmas D.4, D.5", quantity="population risk")
@assuming(IID, "the loss lies in [-c, c] and is M-Lipschitz in the prediction", RADII)
def regression_bound(
    mean_loss: float,
    norm: Positive,
    frobenius: Positive,
    n: Count,
    d: Count,
    delta: Probability = 0.05,
    *,
    c: Positive = 1.0,
    M: Positive = 1.0,
    kind: Annotated[str, one_of("l1", "l2")] = "l1",
    scale: Positive = 1.0,
    lipschitz: Known = None,
    convention: Convention = "derived",
) -> Guarantee:
    """A regression function of known norm has population loss close to its mean loss on the sample.

    E loss <= mean loss + 2 M Rad(B) + 6c sqrt(ln(2/delta_j)/(2n)), B = scale 2^j the first with B >= norm, j >= 0 (MT-22).

    `norm` is ||alpha||_1, or the M7 norm sqrt(kappa) ||alpha||_2 for kind="l2"; delta_j = delta/2^(j+1). Printed (l1): mean
    loss + 12 M max(1, norm ||X||_F)/n + c sqrt((ln(1/delta) + ln max(1, 2 norm ||X||_F))/(2n)); l2 with M max(1, ..)/(n sqrt
    d), up to constants. That proof takes classes whose radius 2^j/||X||_F depends on the sample, the range of [-c, c] as c, not
    2c, and an empirical Rad where the mean belongs; we fix the radii by `scale` and pay for the rest.

    >>> from widemargin import theory
    >>> print(theory.generalization.regression_bound(mean_loss=0.1, norm=2.0, frobenius=100.0, n=10_000, d=4))
    MT-22: population risk 0.25558, not all assumptions checked [MT Lemmas D.4, D.5]
    """
    if not -c <= mean_loss <= c:
        raise InputError(f"regression_bound: mean_loss must lie in [-c, c] = [{-c:g}, {c:g}], not {mean_loss!r}")
    if convention == "printed":
        size = max(1.0, norm * frobenius)
        radii = Assumption(RADII, False, "printed: powers of two over ||X||_F, which the sample gives")
        leading = 12 * M * size / n if kind == "l1" else M * size / (n * math.sqrt(d))
        double = max(1.0, (2 if kind == "l1" else 1) * norm * frobenius)
        spread = c * math.sqrt((math.log(1 / delta) + math.log(double)) / (2 * n))
    else:
        j = max(0, math.ceil(math.log2(norm / scale) - 1e-12))
        B = scale * 2.0**j
        rad = rademacher_hull(frobenius, n, B) if kind == "l1" else rademacher_kernel(frobenius**2 / (2 * d), n, B)
        radii, leading = _in_advance(RADII, norm, scale, 2.0, 2.0), 2 * M * rad
        spread = 2 * c * deviation(n, delta / 2 ** (j + 1))
    return Guarantee(
        f"E loss <= mean loss + complexity + deviation (Lemma {'D.4' if kind == 'l1' else 'D.5'})",
        mean_loss + leading + spread,
        holding(_iid(), (lipschitz, f"c = {c:g}, M = {M:g}"), radii),
        explicit=convention == "derived" or kind == "l1",
        numbers={"leading": leading, "deviation": spread, "trivial": c},
    )


# ---------------------------------------------------------------- projected distance


def _whole_space(space: str, r: int, d: int | None) -> Assumption:
    full = True if space == "f1" else None if d is None else r == d
    return Assumption("F2 only for r = d", full, f"space {space}, r = {r}")


@states("CB-20", "CB Theorem 8, Theorem 21")
@assuming(
    IID, "||x|| <= R", "Delta_r of the sample is at least Delta_r of the law", "Delta_r <= C(r)", "F2 only for r = d"
)
def projected_distance_bound(
    Delta: Positive,
    R: Positive,
    r: Count,
    n: Count,
    delta: Probability = 0.05,
    *,
    eps: Probability = 0.5,
    C_eps: Positive = 1.0,
    C_2: Positive = 1.0,
    C: Measured = None,
    space: Space = "f1",
    d: int | None = None,
    R_known: Known = None,
) -> Guarantee:
    """If the classes stay apart after projection to r dimensions, the F1 max-margin classifier has small test error.

    C_eps n^(-1/2) (R/Delta)^((r+3)/(2-eps)) + sqrt(ln B/n) + sqrt(ln(1/delta)/(2n)),
    B = log2(4 (R+1) C_2) + (r+2) log2(R/Delta) (CB-20). The constants C(r), C_eps(r), C_2(r) are not given in the paper; 1 is a
    placeholder. E-CB-7: the sample's Delta_r is never below the law's, so the hypothesis printed "<=" reads ">=".

    >>> from widemargin import theory
    >>> print(theory.generalization.projected_distance_bound(Delta=0.5, R=1.0, r=2, n=10_000))
    CB-20: test error 0.12698 up to a constant, not all assumptions checked [CB Theorem 8, Theorem 21]
    """
    B = math.log2(4 * (R + 1) * C_2) + (r + 2) * math.log2(R / Delta)
    log_value = (r + 3) / (2 - eps) * math.log(R / Delta)
    value = C_eps / math.sqrt(n) * math.exp(log_value) if log_value < 700 else math.inf
    value += math.sqrt(max(math.log(max(B, 1)), 0) / n) + math.sqrt(math.log(1 / delta) / (2 * n))
    return Guarantee(
        f"P(y f(x) < 0) <= C_eps n^(-1/2) (R/Delta_r)^((r+3)/(2-eps)) + lower order, r = {r}",
        value,
        holding(
            _iid(),
            (R_known, f"R = {R:.6g}"),
            Assumption("Delta is Delta_r of the law (the sample's is at least that)", None, f"Delta = {Delta:.6g}"),
            (None, "C(r) is not known") if C is None else (Delta <= C, f"C(r) = {C:g}"),
            _whole_space(space, r, d),
        ),
        explicit=False,
        numbers={"B": B, "exponent": (r + 3) / (2 - eps), "r": r, "Delta": Delta},
    )


@states("CB-21", "CB Lemma 20", quantity="margin")
@assuming("||x_i|| <= R", "F2 only for r = d", "C(r) and C_eps(r) have the values supplied")
def projected_distance_margin(
    Delta: Positive,
    R: Positive,
    r: Count,
    *,
    eps: Probability = 0.5,
    C_eps: Positive = 1.0,
    C: Positive = 1.0,
    radius: Measured = None,
    space: Space = "f1",
    d: int | None = None,
) -> Guarantee:
    """If the classes stay apart after projection to r dimensions, the F1 margin is at least a power of their distance.

    gamma >= min(C(r), C_eps(r) (Delta_r/R)^((r+3)/(2-eps))); every r gives such a bound, so the best one counts (print: min
    over r, E-CB-7). Constants as in `projected_distance_bound`. Margins of F1 are M3 (with bias), of F2 M7.

    >>> from widemargin import theory
    >>> print(theory.generalization.projected_distance_margin(Delta=0.5, R=1.0, r=2))
    CB-21: margin (M3) 0.099213 up to a constant, not all assumptions checked [CB Lemma 20]
    """
    inside = None if radius is None else radius <= R * (1 + 1e-12)
    largest = "" if radius is None else f", largest {radius:.6g}"
    return Guarantee(
        f"margin >= min(C(r), C_eps (Delta_r/R)^((r+3)/(2-eps))), r = {r}",
        min(C, C_eps * (Delta / R) ** ((r + 3) / (2 - eps))),
        holding(
            (inside, f"R = {R:.6g}{largest}"),
            _whole_space(space, r, d),
            (None, f"{C:g} and {C_eps:g}; the paper gives none"),
        ),
        unit="M3" if space == "f1" else "M7",
        explicit=False,
        numbers={"exponent": (r + 3) / (2 - eps), "r": r, "Delta": Delta},
    )


# ---------------------------------------------------------------- sharper, with explicit constants


@states("WM-1", "widemargin, from Koltchinskii and Panchenko (2002)")
@assuming(IID, SEPARATED, FIXED)
def hull_margin_bound(
    gamma: Positive,
    frobenius: Positive,
    n: Count,
    delta: Probability = 0.05,
    *,
    radius: Positive | None = None,
    scale: Positive = 1.0,
    ratio: Ratio = GRID,
    fixed: bool = False,
) -> Guarantee:
    """A margin of measures on unit ReLUs bounds the test error, with the sharpest constants we can prove.

    2 Rad/g + 3 sqrt(ln(2/delta_g)/(2n)), Rad = 1.5 ||X||_F/n, gamma in M1, g the grid margin below gamma (`grid_margin`).

    Assumes independent points of one law, and `scale`, `ratio` and `delta` chosen before the data. With `radius`, a bound on
    ||x|| over the whole law, E Rad <= 1.5 radius/sqrt(n) and the deviation is sqrt(ln(1/delta_g)/(2n)). Both hold; give one or
    the other. `fixed`: gamma was chosen before the data, so g = gamma and delta_g = delta. Proof: docs/proofs.md, 1 to 3.

    >>> from widemargin import theory
    >>> print(theory.generalization.hull_margin_bound(gamma=0.5, frobenius=100.0, n=10_000))
    WM-1: test error (M1) 0.12029, not all assumptions checked [widemargin, from Koltchinskii and Panchenko (2002)]
    """
    frob = frobenius if radius is None else radius * math.sqrt(n)
    return _grid_bound("M1", rademacher_hull(frob, n), gamma, n, delta, radius, frobenius, scale, ratio, fixed)


@states("WM-2", "widemargin, from Bartlett and Mendelson (2002)")
@assuming(IID, SEPARATED, FIXED)
def ball_margin_bound(
    gamma: Positive,
    trace: Positive,
    n: Count,
    delta: Probability = 0.05,
    *,
    radius: Positive | None = None,
    scale: Positive = 1.0,
    ratio: Ratio = GRID,
    fixed: bool = False,
    unit: str = "M7",
) -> Guarantee:
    """A margin in a kernel ball, or of a linear classifier, bounds the test error, with explicit constants.

    As `hull_margin_bound` with Rad = sqrt(sum_i k(x_i, x_i))/n; `radius` bounds sqrt(k(x, x)) over the law. For linear
    classifiers (M11) trace = ||X||_F^2, for the kernel of unit ReLUs (M7) ||X||_F^2/(2d). Proof: docs/proofs.md, 1 to 3.

    >>> from widemargin import theory
    >>> print(theory.generalization.ball_margin_bound(gamma=0.5, trace=2500.0, n=10_000))
    WM-2: test error (M7) 0.078813, not all assumptions checked [widemargin, from Bartlett and Mendelson (2002)]
    """
    frob = math.sqrt(trace) if radius is None else radius * math.sqrt(n)
    return _grid_bound(unit, frob / n, gamma, n, delta, radius, math.sqrt(trace), scale, ratio, fixed)


def _grid_bound(
    unit: str, rad: float, gamma: float, n: int, delta: float, radius: Measured, frob: float,
    scale: float, ratio: float, fixed: bool,
) -> Guarantee:  # fmt: skip
    g, share = (gamma, 1.0) if fixed else grid_margin(gamma, scale, ratio)
    spread = deviation(n, delta * share, empirical=radius is None)
    listed = [_iid(), _separated(gamma), _in_advance(FIXED, gamma, scale, ratio, GRID, fixed)]
    if radius is not None:
        inside = None if frob <= radius * math.sqrt(n) * (1 + 1e-12) else False
        listed.append(Assumption("radius bounds the norm over the whole law", inside, f"radius {radius:.6g}"))
    return Guarantee(
        "P(y f(x) <= 0) <= 2 Rad/g + deviation",
        2 * rad / g + spread,
        tuple(listed),
        unit=unit,
        numbers={"leading": 2 * rad / g, "deviation": spread, "rademacher": rad, "grid": g, "gamma": gamma},
    )  # fmt: skip


def kl_inverse(p: float, c: float) -> float:
    """The largest q with kl(p, q) = p ln(p/q) + (1-p) ln((1-p)/(1-q)) <= c."""
    if c <= 0 or p >= 1:
        return min(p, 1.0)

    def over(q: float) -> float:
        first = p * math.log(p / q) if p > 0 else 0.0
        return first + (1 - p) * math.log((1 - p) / (1 - q)) - c

    top = 1 - 1e-15
    return 1.0 if over(top) <= 0 else float(optimize.brentq(over, max(p, 1e-300), top, xtol=1e-14))


@states("WM-3", "Langford and Shawe-Taylor (2002), with Maurer's constant", unit="margin of unit vectors")
@assuming(IID)
def pac_bayes_margin_bound(
    margins: float | Sequence[float] | np.ndarray, n: Count, delta: Probability = 0.05
) -> Guarantee:
    """Margins of a linear or kernel classifier on points scaled to length 1 bound its test error at the fast rate.

    2 kl^-1(mean_i Phi(-mu m_i), (mu^2/2 + ln(2 sqrt(n)/delta))/n), the smallest over mu > 0; m_i = y_i <w, psi_i>/||psi_i||.

    ||w|| = 1 in a Hilbert space with features psi. Assumes independent points of one law; no bound on the norm of x is needed.
    It holds for all w and mu at once, so both may be chosen on the sample. n + 1 stands for 2 sqrt(n) where n < 8. `margins`:
    all of them, or one number for their minimum. Proof: docs/proofs.md, 4.

    >>> from widemargin import theory
    >>> theory.generalization.pac_bayes_margin_bound(0.3, n=1000).shown
    '0.11866'
    """
    m = np.atleast_1d(np.asarray(margins, dtype=np.float64))
    if m.ndim != 1 or not np.isfinite(m).all() or (np.abs(m) > 1 + 1e-9).any() or len(m) not in (1, n):
        raise InputError(
            f"pac_bayes_margin_bound: give one margin or n = {n} of them, each between -1 and 1 (y <w, psi> / ||psi||, ||w|| = 1)"
        )
    log_xi = math.log(2 * math.sqrt(n) if n >= 8 else n + 1)

    def bound(mu: float) -> float:
        return 2 * kl_inverse(float(special.ndtr(-mu * m).mean()), (mu * mu / 2 + log_xi + math.log(1 / delta)) / n)

    mus = np.geomspace(0.1, max(1.0, 3 * math.sqrt(n)), 60)
    best = int(np.argmin([bound(mu) for mu in mus]))
    low, high = mus[max(best - 1, 0)], mus[min(best + 1, len(mus) - 1)]
    fine = np.geomspace(low, high, 30)
    mu = float(fine[int(np.argmin([bound(value) for value in fine]))])
    return Guarantee(
        "P(y f(x) <= 0) <= 2 kl^-1(mean Phi(-mu m_i), (mu^2/2 + ln(2 sqrt(n)/delta))/n)",
        min(bound(mu), 2.0),
        (_iid(),),
        numbers={
            "mu": mu,
            "gibbs_sample": float(special.ndtr(-mu * m).mean()),
            "log_gibbs_least": float(special.log_ndtr(-mu * m.min())),
        },
    )
