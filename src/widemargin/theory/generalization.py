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
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike

from widemargin.spaces import ReLU, sphere
from widemargin.types import Certificate, InputError

from ._rooms import distance, optimize, special
from .arguments import Convention, Count, Positive, Probability, Ratio, Share, Space, checked, one_of
from .facts import Facts
from .guarantee import NETWORK, Assumption, Guarantee, applied, states

HULL = 1.5  # of unit ReLUs: see rademacher_hull
GRID = 1.2  # ratio of the margins tried in advance by our own bounds
LOW_RANK, PAIRS = (
    2,
    40_000,
)  # ranks below d at which projected distances are looked at, for up to so many pairs of points
FIXED = "the grid of margins was fixed before the data"
RADII = "the grid of radii was fixed before the data"
IID = "the points are independent draws of one law"
SEPARATED = "the margin on the sample is positive"

# ---------------------------------------------------------------- complexities


def rademacher_hull(frobenius: float, n: int, B: float = 1.0, convention: str = "derived") -> float:
    """Rad of {x -> int relu(v . x) dnu(v): total mass of nu at most B} is at most 1.5 B ||X||_F / n.

    By duality it is (B/n) E sup_{||v|| = 1} |sum_i eps_i relu(v . x_i)|, and relu(t) = t/2 + |t|/2. The linear half gives E
    ||sum_i eps_i x_i|| / 2 <= ||X||_F / 2. For the other half, sup |s| <= sup s + sup (-s) where both are at least 0 (take v =
    0), both have the same mean, and contraction bounds it by E ||sum_i eps_i x_i||: together 2 (1/2) ||X||_F. MT Corollary C.5
    prints 3 instead of 1.5 (MT-16); contraction of relu itself would give 2.
    """
    return {"derived": HULL, "printed": 3.0}[convention] * B * frobenius / n


def rademacher_kernel(trace: float, n: int, B: float = 1.0) -> float:
    """Rad of a ball of radius B in the space of a kernel is at most B sqrt(sum_i k(x_i, x_i)) / n, since
    E ||sum_i eps_i k(x_i, .)|| <= sqrt(E ||.||^2) (MT Lemma C.3). For unit ReLUs (M7) k(x, x) = ||x||^2 / (2d) exactly."""
    return B * math.sqrt(trace) / n


def rademacher_linear(frobenius: float, n: int, B: float = 1.0) -> float:
    """Rad of {u . x: ||u|| <= B} is at most B ||X||_F / n."""
    return B * frobenius / n


@checked
def rademacher_monte_carlo(
    X: ArrayLike,
    kind: Annotated[str, one_of("hull", "linear", "kernel")] = "hull",
    samples: int = 400,
    seed: int = 0,
    kernel: ArrayLike | None = None,
) -> tuple[float, float]:
    """Mean and standard error of the unit ball's complexity over draws of the signs: "hull", "linear", "kernel".

    The supremum is exact for the last two and, in at most two dimensions, for the hull (the best neuron of each sign pattern on
    the circle); in more it is the best of 100 ascents over random starts and so a lower estimate.
    """
    points = np.asarray(X, dtype=np.float64)
    n, d = points.shape
    eps = np.random.default_rng(seed).choice([-1.0, 1.0], (samples, n))
    if kind == "linear":
        values = np.linalg.norm(eps @ points, axis=1)
    elif kind == "kernel":
        K = ReLU().kernel(points) if kernel is None else np.asarray(kernel, dtype=np.float64)
        values = np.sqrt(np.einsum("si,ij,sj->s", eps, K, eps).clip(0))
    elif d <= 2:
        values = np.array([_best_on_circle(points, e) for e in eps])
    else:
        starts = sphere(100, d, seed)
        values = np.array([_best_by_ascent(points, e, starts) for e in eps])
    return float(values.mean() / n), float(values.std(ddof=1) / math.sqrt(samples) / n)


def _best_on_circle(X: np.ndarray, e: np.ndarray) -> float:
    """max_{||v|| = 1} |sum_i e_i relu(v . x_i)|: on every arc between two boundaries the sum is g . v with one g."""
    if X.shape[1] == 1:
        return float(max(abs(e @ X.clip(0)[:, 0]), abs(e @ (-X).clip(0)[:, 0])))
    angle = np.arctan2(X[:, 1], X[:, 0])
    ends = np.sort(np.concatenate([angle + np.pi / 2, angle - np.pi / 2]) % (2 * np.pi))
    ends = np.append(ends, ends[0] + 2 * np.pi)
    middle = (ends[1:] + ends[:-1]) / 2
    on = np.column_stack([np.cos(middle), np.sin(middle)]) @ X.T > 0  # (2n, n)
    g = (on * e) @ X  # (2n, 2)
    at_ends = np.column_stack([np.cos(ends), np.sin(ends)])
    best = np.abs((e * (at_ends @ X.T).clip(0)).sum(1)).max()
    for sign in (1, -1):  # the direction of +-g, where it lies inside its own arc
        towards = np.arctan2(sign * g[:, 1], sign * g[:, 0]) % (2 * np.pi)
        towards = np.where(towards < ends[:-1], towards + 2 * np.pi, towards)
        inside = towards <= ends[1:]
        if inside.any():
            best = max(best, np.linalg.norm(g[inside], axis=1).max())
    return float(best)


def _best_by_ascent(X: np.ndarray, e: np.ndarray, V: np.ndarray, steps: int = 15) -> float:
    best = 0.0
    for sign in (1.0, -1.0):
        W = V
        for _ in range(steps):
            g = ((X @ W.T > 0).T * (sign * e)) @ X  # (m, d)
            size = np.linalg.norm(g, axis=1, keepdims=True)
            W = np.where(size > 0, g / np.where(size > 0, size, 1), W)
            best = max(best, float((sign * e @ (X @ W.T).clip(0)).max()))
    return best


@checked
def ramp_loss(a: ArrayLike, gamma: Positive) -> np.ndarray:
    """1 for a <= 0, 1 - a/gamma up to gamma, then 0 (MT Section C)."""
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


def _within(
    gamma: float, C: float, known: bool | None, what: str = "|f(x)| <= C for every f and x of the law"
) -> Assumption:
    if gamma > C:
        return Assumption(what, False, f"the margin {gamma:.6g} exceeds C = {C:.6g}")
    return Assumption(what, known, f"C = {C:.6g}" + (" is the largest value of the sample" if known is None else ""))


def _union_of_halves(gamma: float, C: float, n: int, delta: float, empirical: bool) -> float:
    """Deviation terms of 4 Rad / gamma + ...: margins C 2^(1-j), j >= 1, with shares 1 / (j (j + 1)) of delta.

    The margin used lies in (gamma/2, gamma], and its j + 1 is at most log2(8C/gamma).
    """
    union = 2 * math.log(math.log2(8 * max(C, gamma) / gamma))
    if empirical:
        return 3 * math.sqrt((math.log(2 / delta) + union) / (2 * n))
    return math.sqrt(union / (2 * n)) + math.sqrt(math.log(1 / delta) / (2 * n))


def _quoted(gamma: float, C: float, n: int, delta: float) -> float:
    """sqrt(ln log2(4C/gamma) / n) + sqrt(ln(1/delta) / (2n)), as the papers quote it."""
    return math.sqrt(math.log(math.log2(4 * max(C, gamma) / gamma)) / n) + math.sqrt(math.log(1 / delta) / (2 * n))


@states(
    "MT-15",
    says="A small ramp loss at margin gamma bounds the test error, for all margins at once.",
    assumes=(IID, "|f(x)| <= C for every f and x of the law"),
    reference="MT Theorem C.1",
)
def ramp_margin_bound(
    ramp_risk: Share,
    rademacher: Positive,
    gamma: Positive,
    C: Positive,
    n: Count,
    delta: Probability = 0.05,
    *,
    C_known: bool | None = None,
    empirical: bool = True,
    convention: Convention = "derived",
) -> Guarantee:
    """P(y f <= 0) <= mean ramp loss + 4 Rad/gamma + deviation, C = sup ||phi(x)|| in the dual norm (MT-15).

    Derived: 3 sqrt((ln(2/delta) + 2 ln log2(8C/gamma)) / (2n)) for the empirical Rad that MT inserts, and sqrt(ln
    log2(8C/gamma)/n) + sqrt(ln(1/delta)/(2n)) for its mean (`empirical=False`). Printed: the latter with 4C and the empirical
    Rad; the shares 1/j^2 of delta which that needs add up to 1.64. `rademacher` is of the unit ball.
    """
    printed = convention == "printed"
    spread = _quoted(gamma, C, n, delta) if printed else _union_of_halves(gamma, C, n, delta, empirical)
    leading = 4 * rademacher / gamma
    return Guarantee(
        "P(y f(x) <= 0) <= mean ramp loss + 4 Rad/gamma + deviation",
        ramp_risk + leading + spread,
        (_iid(), _within(gamma, C, C_known)),
        probability=1 - delta,
        numbers={
            "ramp_risk": ramp_risk,
            "leading": leading,
            "deviation": spread,
            "rademacher": rademacher,
            "gamma": gamma,
        },
    )


@states(
    "CB-22",
    says="A margin gamma in a class of known complexity bounds the test error, for all margins at once.",
    assumes=(IID, SEPARATED, "|f(x)| <= C for every f and x of the law"),
    reference="CB Theorem 22",
)
def class_margin_bound(
    rademacher: Positive,
    gamma: Positive,
    C: Positive,
    n: Count,
    delta: Probability = 0.05,
    *,
    C_known: bool | None = None,
    empirical: bool = True,
    convention: Convention = "derived",
) -> Guarantee:
    """P(y f < 0) <= 4 Rad/gamma + sqrt(ln log2(4C/gamma)/n) + sqrt(ln(1/delta)/(2n)) (CB-22, printed).

    Derived as in `ramp_margin_bound`; `empirical=False` where Rad is a bound on its mean, such as B radius/sqrt(n).
    """
    printed = convention == "printed"
    spread = _quoted(gamma, C, n, delta) if printed else _union_of_halves(gamma, C, n, delta, empirical)
    return Guarantee(
        "P(y f(x) <= 0) <= 4 Rad/gamma + deviation",
        4 * rademacher / gamma + spread,
        (_iid(), _separated(gamma), _within(gamma, C, C_known)),
        probability=1 - delta,
        numbers={
            "leading": 4 * rademacher / gamma,
            "deviation": spread,
            "rademacher": rademacher,
            "gamma": gamma,
            "C": C,
        },
    )


@states(
    "MT-7",
    says="A two-layer ReLU network with normalised margin gamma has small test error.",
    assumes=(IID, SEPARATED, "||x|| <= C for every x of the law"),
    reference="MT Theorem 3.1",
)
def network_margin_bound(
    gamma: Positive,
    n: Count,
    mean_square: Positive,
    C: Positive,
    delta: Probability = 0.05,
    *,
    C_known: bool | None = None,
    convention: Convention = "derived",
) -> Guarantee:
    """(6/gamma) sqrt(D/n) + deviation, gamma = min_i y_i f(x_i) / ||Theta||^2 (M2), D = ||X||_F^2/n, C = sup ||x|| (MT-7).

    The leading term is 4 Rad / gamma_alpha with Rad <= 3 ||X||_F/n and gamma_alpha >= 2 gamma, the margin in M1. Printed:
    sqrt(ln log2(4C/gamma)/n) + sqrt(ln(1/delta)/(2n)). Derived: what an empirical Rad costs, at gamma_alpha
    (`ramp_margin_bound`).
    """
    leading = 6 / gamma * math.sqrt(mean_square / n)
    printed = convention == "printed"
    spread = _quoted(gamma, C, n, delta) if printed else _union_of_halves(2 * gamma, C, n, delta, True)
    return Guarantee(
        "P(y f(x) <= 0) <= (6/gamma) sqrt(D/n) + deviation",
        leading + spread,
        (_iid(), _separated(gamma), _within(2 * gamma, C, C_known, "||x|| <= C for every x of the law")),
        probability=1 - delta,
        numbers={"leading": leading, "deviation": spread, "gamma_M1": 2 * gamma, "D": mean_square},
    )


@states(
    "MT-14",
    says="The max-margin kernel classifier of ReLU features has test error of order sqrt(D/(dn)) / gamma.",
    assumes=(IID, SEPARATED, "||x|| <= C for every x of the law"),
    reference="MT Lemma 3.4",
)
def kernel_margin_bound(
    gamma: Positive,
    n: Count,
    d: Count,
    mean_square: Positive,
    C: Positive,
    delta: Probability = 0.05,
    *,
    C_known: bool | None = None,
    constant: Positive = 1.0,
    convention: Convention = "derived",
) -> Guarantee:
    """(2 sqrt 2/gamma) sqrt(D/(dn)) + deviation, gamma in M7 (MT-14): Rad <= ||X||_F/(n sqrt(2d)), sup ||phi|| = C/sqrt(2d).

    Printed: `constant` times (1/gamma) sqrt(D/(dn)) + sqrt(ln max(log2(C sqrt(1/d)/gamma), 2)/n) + sqrt(ln(1/delta)/n); the kappa
    in its logarithm must cancel (E-MT-7) and is left out here.
    """
    size = C / math.sqrt(2 * d)
    if convention == "printed":
        leading = constant * math.sqrt(mean_square / (d * n)) / gamma
        log = math.log(max(math.log2(max(C / math.sqrt(d) / gamma, 1)), 2))
        spread = constant * (math.sqrt(log / n) + math.sqrt(math.log(1 / delta) / n))
    else:
        leading = 4 * rademacher_kernel(n * mean_square / (2 * d), n) / gamma
        spread = _union_of_halves(gamma, size, n, delta, True)
    return Guarantee(
        "P(y f(x) <= 0) <= (2 sqrt 2/gamma) sqrt(D/(dn)) + deviation",
        leading + spread,
        (_iid(), _separated(gamma), _within(gamma, size, C_known, "||x|| <= C for every x of the law")),
        explicit=convention == "derived",
        probability=1 - delta,
        numbers={"leading": leading, "deviation": spread},
    )


@states(
    "MT-16",
    says="The Rademacher complexity of measures on unit ReLUs, and of the kernel ball, is bounded by ||X||_F/n.",
    assumes=("the activation is relu",),
    reference="MT Lemmas C.2 to C.4, Corollary C.5",
)
def rademacher_bound(
    frobenius: Positive,
    n: Count,
    d: Count,
    B: Positive = 1.0,
    kind: Annotated[str, one_of("hull", "kernel", "linear")] = "hull",
    convention: Convention = "derived",
) -> Guarantee:
    """hull: 3 B ||X||_F/n (printed), 1.5 B ||X||_F/n (derived, `rademacher_hull`). kernel: B ||X||_F/(n sqrt(2d)) with B the
    M7 norm; print has sqrt d and sqrt(kappa)||alpha||_2 for B (E-MT-7). linear: B ||X||_F/n."""
    value = {
        "hull": rademacher_hull(frobenius, n, B, convention),
        "kernel": rademacher_kernel(frobenius**2 / ((2 if convention == "derived" else 1) * d), n, B),
        "linear": rademacher_linear(frobenius, n, B),
    }[kind]
    return Guarantee(
        f"empirical Rademacher complexity of the {kind} ball",
        value,
        (Assumption("the activation is relu", True, "stated by the caller"),),
        quantity="constant",
        numbers={"kind": kind},
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
        probability=1 - delta,
        numbers={"rademacher": rademacher, "constant": constant},
    )


@states(
    "UH-24",
    says="A margin gamma in the l1 norm of outer weights on unit ReLUs gives test error of order ln(n)^3/(n gamma^2).",
    assumes=(IID, SEPARATED, "||x|| <= 1"),
    reference="UH end of Appendix B",
)
def fast_rate_l1(
    gamma: Positive, n: Count, delta: Probability = 0.05, constant: Positive = 1.0, radius: Positive = 1.0
) -> Guarantee:
    """constant (ln(n)^3/(n gamma^2) + ln(1/delta)/n), gamma in M5 (UH-24): Srebro, Sridharan and Tewari (2010), Theorem 5, with
    Rad <= 1/sqrt(n). The constant is not known; 1 is a placeholder, so `explicit` is False."""
    return _optimistic("M5", 1 / math.sqrt(n), gamma, n, delta, constant, radius)


@states(
    "LR-18",
    says="A margin gamma in the squared norm of all parameters gives test error of order ln(n)^3/(n gamma^2).",
    assumes=(IID, SEPARATED, "||x|| <= 1"),
    reference="LR Lemma 2.5",
)
def fast_rate_l2(
    gamma: Positive, n: Count, delta: Probability = 0.05, constant: Positive = 1.0, radius: Positive = 1.0
) -> Guarantee:
    """As `fast_rate_l1` with gamma in M2 and Rad <= 1/(2 sqrt n), the hull halved (LR-18)."""
    return _optimistic("M2", 0.5 / math.sqrt(n), gamma, n, delta, constant, radius)


# ---------------------------------------------------------------- regression


@states(
    "MT-22",
    says="A regression function of known norm has population loss close to its mean loss on the sample.",
    assumes=(IID, "the loss lies in [-c, c] and is M-Lipschitz in the prediction", RADII),
    reference="MT Lemmas D.4, D.5",
)
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
    lipschitz: bool | None = None,
    convention: Convention = "derived",
) -> Guarantee:
    """E loss <= mean loss + 2 M Rad(B) + 6c sqrt(ln(2/delta_j)/(2n)), B = scale 2^j the first with B >= norm, j >= 0 (MT-22).

    `norm` is ||alpha||_1, or the M7 norm sqrt(kappa) ||alpha||_2 for kind="l2"; delta_j = delta/2^(j+1). Printed (l1): mean
    loss + 12 M max(1, norm ||X||_F)/n + c sqrt((ln(1/delta) + ln max(1, 2 norm ||X||_F))/(2n)); l2 with M max(1, ..)/(n sqrt
    d), up to constants. That proof takes classes whose radius 2^j/||X||_F depends on the sample, the range of [-c, c] as c, not
    2c, and an empirical Rad where the mean belongs; we fix the radii by `scale` and pay for the rest.
    """
    if not -c <= mean_loss <= c:
        raise InputError(f"regression_bound: mean_loss must lie in [-c, c] = [{-c:g}, {c:g}], not {mean_loss!r}")
    if convention == "printed":
        size = max(1.0, norm * frobenius)
        leading = 12 * M * size / n if kind == "l1" else M * size / (n * math.sqrt(d))
        double = max(1.0, (2 if kind == "l1" else 1) * norm * frobenius)
        spread = c * math.sqrt((math.log(1 / delta) + math.log(double)) / (2 * n))
    else:
        j = max(0, math.ceil(math.log2(norm / scale) - 1e-12))
        B = scale * 2.0**j
        rad = rademacher_hull(frobenius, n, B) if kind == "l1" else rademacher_kernel(frobenius**2 / (2 * d), n, B)
        leading = 2 * M * rad
        spread = 2 * c * deviation(n, delta / 2 ** (j + 1))
    return Guarantee(
        f"E loss <= mean loss + complexity + deviation (Lemma {'D.4' if kind == 'l1' else 'D.5'})",
        mean_loss + leading + spread,
        (
            _iid(),
            Assumption(
                "the loss lies in [-c, c] and is M-Lipschitz in the prediction", lipschitz, f"c = {c:g}, M = {M:g}"
            ),
            _in_advance(RADII, norm, scale, 2.0, 2.0)
            if convention == "derived"
            else Assumption(RADII, False, "printed: powers of two over ||X||_F, which the sample gives"),
        ),
        quantity="population risk",
        explicit=convention == "derived" or kind == "l1",
        probability=1 - delta,
        numbers={"leading": leading, "deviation": spread, "trivial": c},
    )


# ---------------------------------------------------------------- batch normalisation


@states(
    "BN-23",
    says="The Rademacher complexity of batch-normalised networks near initialisation is bounded by the reach of their rows.",
    assumes=("mean and covariance of the normalisation are fixed, not taken from the sample",),
    reference="BN Lemma F.1",
)
def batchnorm_rademacher(
    B: Positive,
    rho: Positive,
    frobenius: Positive,
    n: Count,
    v0: Positive = 2.0,
    *,
    fixed: bool | None = None,
    convention: Convention = "derived",
) -> Guarantee:
    """Class {sum_j |a_j c_j / N(v_j)| <= B, ||V - V_0|| <= rho}: 1.5 B (rho + v0) ||Xbar||_F / n, v0 >= max_j ||v_0j|| (BN-23).

    Printed: 4 B rho ||Xbar||_F / n. Its proof drops v_0j from a supremum over j, which is no equality (E-BN-6): at rho = 0 the
    class still holds every combination of the initial neurons. Rows lie in the ball of radius rho + v0 about 0, and the hull of
    its ReLUs has the constant of `rademacher_hull`.
    """
    value = 4 * B * rho * frobenius / n if convention == "printed" else rademacher_hull(frobenius, n, B * (rho + v0))
    return Guarantee(
        "empirical Rademacher complexity of batch-normalised networks",
        value,
        (Assumption("mean and covariance of the normalisation are fixed, not taken from the sample", fixed),),
        quantity="constant",
        numbers={"reach": rho + v0},
    )


@checked
def sigmoid_slope(rho: Probability) -> tuple[float, float]:
    """g = -l' of the logistic loss is rho(1 - rho)-Lipschitz on [ln(1/rho - 1), inf) for rho <= 1/2: (start, slope) (BN-23)."""
    return math.log(1 / rho - 1), rho * (1 - rho) if rho <= 0.5 else 0.25


# ---------------------------------------------------------------- projected distance


@states(
    "CB-20",
    says="If the classes stay apart after projection to r dimensions, the F1 max-margin classifier has small test error.",
    assumes=(
        IID,
        "||x|| <= R",
        "Delta_r of the sample is at least Delta_r of the law",
        "Delta_r <= C(r)",
        "F2 only for r = d",
    ),
    reference="CB Theorem 8, Theorem 21",
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
    C: float | None = None,
    space: Space = "f1",
    d: int | None = None,
    R_known: bool | None = None,
) -> Guarantee:
    """C_eps n^(-1/2) (R/Delta)^((r+3)/(2-eps)) + sqrt(ln B/n) + sqrt(ln(1/delta)/(2n)),
    B = log2(4 (R+1) C_2) + (r+2) log2(R/Delta) (CB-20). The constants C(r), C_eps(r), C_2(r) are not given in the paper; 1 is a
    placeholder. E-CB-7: the sample's Delta_r is never below the law's, so the hypothesis printed "<=" reads ">="."""
    B = math.log2(4 * (R + 1) * C_2) + (r + 2) * math.log2(R / Delta)
    value = C_eps / math.sqrt(n) * (R / Delta) ** ((r + 3) / (2 - eps))
    value += math.sqrt(max(math.log(max(B, 1)), 0) / n) + math.sqrt(math.log(1 / delta) / (2 * n))
    full = None if d is None else r == d
    return Guarantee(
        f"P(y f(x) < 0) <= C_eps n^(-1/2) (R/Delta_r)^((r+3)/(2-eps)) + lower order, r = {r}",
        value,
        (
            _iid(),
            Assumption("||x|| <= R", R_known, f"R = {R:.6g}"),
            Assumption("Delta is Delta_r of the law (the sample's is at least that)", None, f"Delta = {Delta:.6g}"),
            Assumption(
                "Delta_r <= C(r)",
                None if C is None else Delta <= C,
                "C(r) is not known" if C is None else f"C(r) = {C:g}",
            ),
            Assumption("F2 only for r = d", True if space == "f1" else full, f"space {space}, r = {r}"),
        ),
        explicit=False,
        probability=1 - delta,
        numbers={"B": B, "exponent": (r + 3) / (2 - eps), "r": r, "Delta": Delta},
    )


@states(
    "CB-21",
    says="If the classes stay apart after projection to r dimensions, the F1 margin is at least a power of their distance.",
    assumes=("||x_i|| <= R", "F2 only for r = d", "C(r) and C_eps(r) have the values supplied"),
    reference="CB Lemma 20",
)
def projected_distance_margin(
    Delta: Positive,
    R: Positive,
    r: Count,
    *,
    eps: Probability = 0.5,
    C_eps: Positive = 1.0,
    C: Positive = 1.0,
    radius: float | None = None,
    space: Space = "f1",
    d: int | None = None,
) -> Guarantee:
    """gamma >= min(C(r), C_eps(r) (Delta_r/R)^((r+3)/(2-eps))); every r gives such a bound, so the best one counts (print: min
    over r, E-CB-7). Constants as in `projected_distance_bound`. Margins of F1 are M3 (with bias), of F2 M7."""
    inside = None if radius is None else radius <= R * (1 + 1e-12)
    return Guarantee(
        f"margin >= min(C(r), C_eps (Delta_r/R)^((r+3)/(2-eps))), r = {r}",
        min(C, C_eps * (Delta / R) ** ((r + 3) / (2 - eps))),
        (
            Assumption("||x_i|| <= R", inside, f"R = {R:.6g}" + ("" if radius is None else f", largest {radius:.6g}")),
            Assumption(
                "F2 only for r = d", True if space == "f1" else None if d is None else r == d, f"space {space}, r = {r}"
            ),
            Assumption(
                "C(r) and C_eps(r) have the values supplied", None, f"{C:g} and {C_eps:g}; the paper gives none"
            ),
        ),
        quantity="margin",
        unit="M3" if space == "f1" else "M7",
        explicit=False,
        numbers={"exponent": (r + 3) / (2 - eps), "r": r, "Delta": Delta},
    )


# ---------------------------------------------------------------- sharper, with explicit constants


@states(
    "WM-1",
    says="A margin of measures on unit ReLUs bounds the test error, with the sharpest constants we can prove.",
    assumes=(IID, SEPARATED, FIXED),
    reference="widemargin, from Koltchinskii and Panchenko (2002)",
)
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
    """2 Rad/g + 3 sqrt(ln(2/delta_g)/(2n)), Rad = 1.5 ||X||_F/n, gamma in M1, g the grid margin below gamma (`grid_margin`).

    Assumes independent points of one law, and `scale`, `ratio` and `delta` chosen before the data. With `radius`, a bound on
    ||x|| over the whole law, E Rad <= 1.5 radius/sqrt(n) and the deviation is sqrt(ln(1/delta_g)/(2n)). Both hold; give one or
    the other. `fixed`: gamma was chosen before the data, so g = gamma and delta_g = delta. Proof: docs/proofs.md, 1 to 3.
    """
    frob = frobenius if radius is None else radius * math.sqrt(n)
    return _grid_bound("M1", rademacher_hull(frob, n), gamma, n, delta, radius, frobenius, scale, ratio, fixed)


@states(
    "WM-2",
    says="A margin in a kernel ball, or of a linear classifier, bounds the test error, with explicit constants.",
    assumes=(IID, SEPARATED, FIXED),
    reference="widemargin, from Bartlett and Mendelson (2002)",
)
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
    """As `hull_margin_bound` with Rad = sqrt(sum_i k(x_i, x_i))/n; `radius` bounds sqrt(k(x, x)) over the law. For linear
    classifiers (M11) trace = ||X||_F^2, for the kernel of unit ReLUs (M7) ||X||_F^2/(2d). Proof: docs/proofs.md, 1 to 3."""
    frob = math.sqrt(trace) if radius is None else radius * math.sqrt(n)
    return _grid_bound(unit, frob / n, gamma, n, delta, radius, math.sqrt(trace), scale, ratio, fixed)


def _grid_bound(
    unit: str, rad: float, gamma: float, n: int, delta: float, radius: float | None, frob: float,
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
        probability=1 - delta,
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


@states(
    "WM-3",
    says="Margins of a linear or kernel classifier on points scaled to length 1 bound its test error at the fast rate.",
    assumes=(IID,),
    reference="Langford and Shawe-Taylor (2002), with Maurer's constant",
)
def pac_bayes_margin_bound(
    margins: float | Sequence[float] | np.ndarray, n: Count, delta: Probability = 0.05
) -> Guarantee:
    """2 kl^-1(mean_i Phi(-mu m_i), (mu^2/2 + ln(2 sqrt(n)/delta))/n), the smallest over mu > 0; m_i = y_i <w, psi_i>/||psi_i||.

    ||w|| = 1 in a Hilbert space with features psi. Assumes independent points of one law; no bound on the norm of x is needed.
    It holds for all w and mu at once, so both may be chosen on the sample. n + 1 stands for 2 sqrt(n) where n < 8. `margins`:
    all of them, or one number for their minimum. Proof: docs/proofs.md, 4.
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
    mu = float(fine[int(np.argmin([bound(one) for one in fine]))])
    return Guarantee(
        "P(y f(x) <= 0) <= 2 kl^-1(mean Phi(-mu m_i), (mu^2/2 + ln(2 sqrt(n)/delta))/n)",
        min(bound(mu), 2.0),
        (_iid(),),
        unit="margin of unit vectors",
        probability=1 - delta,
        numbers={
            "mu": mu,
            "gibbs_sample": float(special.ndtr(-mu * m).mean()),
            "log_gibbs_least": float(special.log_ndtr(-mu * m.min())),
        },
    )


# ---------------------------------------------------------------- on data


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
