"""Constants of MT Section 4, and the time in which the perturbed Wasserstein gradient flow comes close to the least loss."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from widemargin.types import InputError

from .arguments import POSITIVE, Convention, Count, Positive, checked
from .conditions import Known
from .guarantee import Guarantee, applied, assuming, from_log, holding, states
from .known_facts import Facts


@dataclass(frozen=True)
class Regularity:
    """k outputs; ||grad R|| <= M_R, |Hessian R| <= C_R; on the sphere ||Phi|| <= B_Phi, Phi_i M_Phi-Lipschitz, b_V <= V <= B_V
    and ||grad V|| <= M_V (MT Assumptions E.1 to E.3). B_Phi and M_Phi may be arrays, for several data sets."""

    k: int
    M_R: float
    C_R: float
    B_Phi: Any
    M_Phi: Any
    b_V: float
    B_V: float
    M_V: float

    @property
    def B_L(self) -> Any:
        """|L'[rho]| <= B_L = M_R B_Phi + B_V on the sphere (Lemma E.6)."""
        return self.M_R * self.B_Phi + self.B_V

    @property
    def c_1(self) -> Any:
        """max(k C_R B_Phi^2, k C_R B_Phi M_Phi, B_L) (Lemma E.12)."""
        bend = self.k * self.C_R
        return np.maximum.reduce([bend * self.B_Phi**2, bend * self.B_Phi * self.M_Phi, self.B_L])

    @property
    def c_2(self) -> Any:
        """L' is c_2-Lipschitz on the sphere, c_2 = sqrt(k) M_R M_Phi + M_V (Lemma E.13)."""
        return math.sqrt(self.k) * self.M_R * self.M_Phi + self.M_V


@checked
def logistic_regularity(X: ArrayLike, lam: Positive) -> Regularity:
    """Constants of Example 4.2: Phi_i = w relu(u . x_i), R = sum_i ln(1 + e^{-y_i a_i}), V = lam ||theta||^2 (MT-24).

    |R_i'| <= 1, R_i'' <= 1/4; |w relu(u . x)| <= ||x||/2 and its gradient has norm at most ||x|| on the unit sphere.
    """
    points = np.asarray(X, dtype=np.float64)
    if points.ndim != 2 or not points.any():
        raise InputError("logistic_regularity: X must be points (n, d), not all zero")
    size = np.linalg.norm(points, axis=1)
    n = len(points)
    return Regularity(n, math.sqrt(n), 0.25, float(np.linalg.norm(size)) / 2, float(size.max()), lam, lam, 2 * lam)


@states("MT-24", "MT Section 4, Example 4.2", quantity="constant")
@assuming("the activation is relu", "logistic loss, summed, with V = lam ||theta||^2")
def distributional_constants(X: ArrayLike, lam: float, *, logistic: bool | None = True) -> Guarantee:
    """The distributional logistic objective of two-layer ReLU networks has these Lipschitz and smoothness constants.

    `logistic_regularity` of points X (n, d) as numbers; the value is B_L, the bound on |L'| on the sphere (MT-24).

    >>> from widemargin import theory
    >>> print(theory.wasserstein.distributional_constants([[1.0, 0.0], [0.0, 1.0]], lam=0.1))
    MT-24: constant 1.1, applies [MT Section 4, Example 4.2]
    """
    regularity = logistic_regularity(X, lam)
    return Guarantee(
        "|L'[rho](theta)| <= B_L on the sphere",
        regularity.B_L,
        holding((True, "stated by the caller"), (logistic, f"lam = {lam:g}")),
        numbers=asdict(regularity) | {"B_L": regularity.B_L, "c_1": regularity.c_1, "c_2": regularity.c_2},
    )


@applied("MT-24", two_classes=True)
def _constants_on(facts: Facts) -> Guarantee | None:
    lam = facts.rule.get("lam") if facts.rule.get("class") in ("WassersteinFlow", "PerturbedWassersteinFlow") else None
    if lam is None or not lam > 0:
        return None
    return distributional_constants(facts.data.X, float(lam), logistic=facts.loss == "logistic")


def growth_time(log_sigma: float, eps: float, d: int, W2: float, c_2: float, convention: str = "derived") -> float:
    """The time l after which a descent direction must have been used, for tau = eps/(2 W^2).

    Lemma E.16 needs l >= (ln(W^2/sigma) + 2d ln(2 c_2/tau))/(tau - sigma) + 1, that is
    (W^2/(eps - 2 W^2 sigma)) (2 ln(W^2/sigma) + 4d ln(4 W^2 c_2/eps)) + 1. The proof of Theorem E.4 prints 2d for 4d and drops
    the 1 (convention="printed"), which does not satisfy its own lemma.
    """
    left = eps - 2 * W2 * math.exp(log_sigma)
    if left <= 0:
        return math.inf
    twice = 2 * (math.log(W2) - log_sigma)
    directions = d * math.log(4 * W2 * c_2 / eps)
    return W2 / left * (twice + 2 * directions) if convention == "printed" else W2 / left * (twice + 4 * directions) + 1


def decrease(log_sigma: float, eps: float, l: float, W2: float, B_L: float, c_1: float) -> tuple[float, float]:
    """(E.15): the least decrease of L during time 2l while it is 2 eps above its infimum, in both cases of the proof."""
    noise = math.exp(log_sigma) * l * (W2 + 1)
    rest = eps / (8 * W2) - c_1 * noise
    first = rest**2 / (c_1**2 * W2 * l) - 3 * c_1 * noise if rest > 0 else -math.inf
    return first, l * eps**2 / (4 * W2) - 2 * B_L * noise


@states("MT-29", "MT Theorem 4.3, Theorem E.4", quantity="time")
@assuming(
    "Phi and V are 2-homogeneous and differentiable", "a solution of the dynamics exists", "4 W^2 c_2 >= 2^(1+1/d) eps"
)
def perturbed_flow_time(
    eps: Positive,
    d: Count,
    L_0: Positive,
    constants: Regularity,
    *,
    differentiable: Known = None,
    constant: Positive = 1.0,
    convention: Convention = "derived",
) -> Guarantee:
    """The perturbed Wasserstein gradient flow comes within 2 eps of the least loss in time polynomial in d and 1/eps.

    Time t with min_{s <= t} L[rho_s] - inf L <= 2 eps, and the noise rate sigma it needs (MT-29). theta in R^{d+1}.

    Derived, with the polynomials that the paper hides: put W^2 = 4 L_0/b_V and let sigma be the largest power of 1/2 for which
    (i) sigma t B_L <= min(L_0, b_V/2), so that W_s^2 <= W^2 up to t by Lemma E.9, and (ii) the decrease g per time 2l, (E.15)
    with l of `growth_time`, is at least half of what it is without noise. As L is nonnegative, t = 2l (L_0/g + 1) suffices. t
    grows like ln(1/sigma)^2 while sigma t falls, so such a sigma exists. Lemma E.14 takes the cap of radius r on S^d as at
    least r^{2d}; Ball's lemma gives (r/2)^d/2, enough where c_2/r is at least 2^(1+1/d): the third assumption. Printed: the
    order `constant` (d^2/eps^4) ln(1/eps)^2, sigma = exp(-constant d ln(1/eps)).

    >>> from widemargin import theory
    >>> print(theory.wasserstein.perturbed_flow_time(0.1, 2, 1.0, theory.wasserstein.logistic_regularity([[1.0, 0.0]], 0.1)))
    MT-29: time 1.7539e+18, not all assumptions checked [MT Theorem 4.3, Theorem E.4]
    """
    POSITIVE.check("perturbed_flow_time", "b_V", constants.b_V)
    W2 = 4 * L_0 / constants.b_V
    B_L, c_1, c_2 = constants.B_L, constants.c_1, constants.c_2
    numbers: dict[str, float] = {"W2": W2, "B_L": B_L, "c_1": c_1, "c_2": c_2}
    if convention == "printed":
        log = math.log(max(1 / eps, math.e))
        value = from_log(math.log(constant) + 2 * math.log(d) - 4 * math.log(eps) + 2 * math.log(log))
        log_sigma = -constant * d * log
        l = growth_time(log_sigma, eps, d, W2, c_2, "printed")
    else:
        log_sigma = 0.0
        while True:
            log_sigma -= math.log(2)
            l = growth_time(log_sigma, eps, d, W2, c_2)
            if not 0 < l < math.inf:
                continue
            g = min(decrease(log_sigma, eps, l, W2, B_L, c_1))
            if g < min(decrease(-math.inf, eps, l, W2, B_L, c_1)) / 2:
                continue
            log_t = math.log(2 * l) + math.log(L_0 / g + 1)
            if log_sigma + log_t + math.log(B_L) <= math.log(min(L_0, constants.b_V / 2)):
                break
        value = from_log(log_t)
        numbers["decrease"] = g
    numbers |= {"l": l, "log_sigma": log_sigma}
    return Guarantee(
        "min_{s <= t} L[rho_s] - inf L <= 2 eps",
        value,
        holding(
            (differentiable, "relu is not differentiable"),
            None,
            (4 * W2 * c_2 >= 2 ** (1 + 1 / d) * eps, f"4 W^2 c_2/eps = {4 * W2 * c_2 / eps:.6g}"),
        ),
        explicit=convention == "derived",
        numbers=numbers,
    )


@applied("MT-29", two_classes=True)
def _time_on(facts: Facts) -> Guarantee | None:
    """A run of the perturbed flow on the logistic loss, to a tenth of the loss n ln 2 of the zero network."""
    lam = facts.rule.get("lam") if facts.rule.get("class") == "PerturbedWassersteinFlow" else None
    if lam is None or not lam > 0 or facts.loss != "logistic":
        return None
    L_0 = facts.n * math.log(2)
    return perturbed_flow_time(
        L_0 / 10, facts.d, L_0, logistic_regularity(facts.data.X, float(lam)), differentiable=False
    )
