"""The theorems about batch-normalised shallow networks, with constants that fit together (BN).

f(x) = sum_j a_j relu(c_j <v_j/N(v_j), x - mu>), N(v)^2 = v' Sigma v + eps; a ~ N(0, 1/m), c = 1, V ~ N(0, 1/d) at the start;
U = (a, c); points with ||x - mu|| <= 1. Throughout eps_N >= max(1, max_j 1/N(v_j)) at the start.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike

from widemargin.types import Dataset, InputError

from ._rooms import flows, margins
from .arguments import Convention, Count, Finite, Nonnegative, Positive, Probability, one_of
from .conditions import Known, Measured
from .guarantee import Assumption, Guarantee, applied, assuming, from_log, holding, states
from .known_facts import Facts

CENTRED = "||x - mu|| <= 1 for all points"
MARGIN = "gamma = gamma_a + gamma_c is a margin of the initial features, with Delta_V <= gamma/32"
LAW, STEP = "the initial law is BN's", "the step size is eta"
TRAINED = (MARGIN, LAW, CENTRED, "m within the stated widths", "t is not too large", STEP)


# ---------------------------------------------------------------- the normaliser


def normalizers(V: ArrayLike, Sigma: ArrayLike, eps: float = 0.0) -> np.ndarray:
    """N(v_j) = sqrt(v_j' Sigma v_j + eps) (m,)."""
    V, Sigma = np.atleast_2d(np.asarray(V, dtype=np.float64)), np.asarray(Sigma, dtype=np.float64)
    if Sigma.shape != (V.shape[1], V.shape[1]):
        raise InputError(
            f"normalizers: V has {V.shape[1]} columns but Sigma has shape {Sigma.shape}; give Sigma (d, d)"
        )
    return np.sqrt(np.einsum("jd,de,je->j", V, Sigma, V).clip(0) + eps)


@states("BN-5", "BN Assumption 1.1", quantity="constant")
@assuming("eps > 0, or Sigma is positive definite and m <= delta exp(d/8), d >= 2")
def normalizer_bound(
    eps: Nonnegative, smallest: Nonnegative = 0.0, m: int | None = None, d: int | None = None, delta: Probability = 0.05
) -> Guarantee:
    """The reciprocals of the normalisers are bounded: by 1/sqrt(eps), or by the smallest eigenvalue of the covariance.

    eps_N = min(1/sqrt(eps), 5/sqrt(smallest eigenvalue of Sigma)) bounds max_j 1/N(v_j) (BN-5).

    N(v)^2 >= eps; and N(v)^2 >= smallest ||v||^2 with ||v_j|| >= 1/5 for all j by BN Lemma C.2 (BN-16).

    >>> from widemargin import theory
    >>> print(theory.normalized.normalizer_bound(eps=0.25))
    BN-5: constant 2, applies [BN Assumption 1.1]
    """
    spread = m is not None and d is not None and d >= 2 and math.log(m) <= math.log(delta) + d / 8
    ways = [1 / math.sqrt(eps)] if eps > 0 else []
    if smallest > 0 and (spread or not ways):
        ways.append(5 / math.sqrt(smallest))
    holds = bool(eps > 0 or (smallest > 0 and spread)) if m is not None or eps > 0 or smallest == 0 else None
    return Guarantee(
        "max_j 1/N(v_j) <= eps_N",
        min(ways, default=math.inf),
        holding((holds, f"eps = {eps:g}, smallest eigenvalue {smallest:g}, m = {m}, d = {d}")),
    )


@states("BN-13", "BN Lemma B.1", quantity="constant")
@assuming("the covariance is that of points with ||x - mu|| <= 1")
def normalizer_lipschitz(u: ArrayLike, v: ArrayLike, Sigma: ArrayLike, eps: float = 0.0) -> Guarantee:
    """The normaliser is 1-Lipschitz in the seminorm of the covariance, which is below the Euclidean norm.

    |N(u) - N(v)| <= ||u - v||_Sigma <= ||u - v||; ||Sigma v|| <= ||v||_Sigma <= N(v) (BN-13). Numbers hold the left sides;
    u and v (d,), Sigma (d, d).

    >>> from widemargin import theory
    >>> print(theory.normalized.normalizer_lipschitz([1.0, 0.0], [0.0, 1.0], [[0.2, 0.0], [0.0, 0.8]]))
    BN-13: constant 1, applies [BN Lemma B.1]
    """
    u, v, S = (np.asarray(part, dtype=np.float64) for part in (u, v, Sigma))
    if u.ndim != 1 or v.shape != u.shape or S.shape != (len(u), len(u)):
        raise InputError(
            f"normalizer_lipschitz: u has shape {u.shape}, v {v.shape} and Sigma {S.shape}; give (d,), (d,) and (d, d)"
        )
    N = normalizers(np.stack([u, v]), S, eps)
    value = float(normalizers((u - v)[None], S)[0])
    top = float(np.linalg.eigvalsh(S)[-1])
    return Guarantee(
        "|N(u) - N(v)| <= ||u - v||_Sigma",
        value,
        holding((top <= 1 + 1e-12, f"top eigenvalue {top:.6g}")),
        numbers={
            "difference": float(abs(N[0] - N[1])),
            "distance": float(np.linalg.norm(u - v)),
            "Sigma_v": float(np.linalg.norm(S @ v)),
            "v_Sigma": float(normalizers(v[None], S)[0]),
            "N_v": float(N[1]),
        },
    )


@states("BN-14", "BN Lemma B.2", quantity="constant")
@assuming("0 < c < 1", CENTRED)
def perturbation_constants(
    eps_N: Positive,
    eps_V: Positive = 2.0,
    c: Positive = 0.5,
    *,
    centred: Known = None,
    convention: Convention = "derived",
) -> Guarantee:
    """While the inner weights move less than c/eps_N, the normalisers and the projections stay under control.

    beta_V = c/eps_N, rho_N = 1/(1-c), beta_N = rho_N eps_N^2, eps_ratio = eps_V eps_N; value beta_Pi (BN-14).

    For ||V' - V|| <= beta_V: 1/N'_j <= rho_N/N_j, |1/N'_j - 1/N_j| <= beta_N ||v'_j - v_j||, |<v_j/N_j, x>| <= eps_ratio and
    ||(I - Sigma v' v''/N'^2) x|| <= beta_Pi = max(2, 1 + (eps_V + beta_V) rho_N eps_N); print doubles the product instead of
    adding 1.

    >>> from widemargin import theory
    >>> print(theory.normalized.perturbation_constants(eps_N=1.0))
    BN-14: constant 6, not all assumptions checked [BN Lemma B.2]
    """
    inside = c < 1
    rho_N = 1 / (1 - c) if inside else math.inf
    beta_V = c / eps_N
    reach = (eps_V + beta_V) * rho_N * eps_N
    return Guarantee(
        "norm of (I - Sigma v v'/N^2) x is at most beta_Pi",
        max(2.0, 2 * reach if convention == "printed" else 1 + reach),
        holding((inside, f"c = {c:g}"), centred),
        numbers={"beta_V": beta_V, "rho_N": rho_N, "beta_N": rho_N * eps_N**2, "eps_ratio": eps_V * eps_N},
    )


# ---------------------------------------------------------------- at the start


@states("BN-15", "BN Lemma C.1", quantity="output", fails=4)
@assuming(LAW, CENTRED, "max_j 1/N(v_j) <= eps_N")
def initial_output_bound(
    eps_N: Positive,
    n: Count,
    delta: Probability = 0.05,
    *,
    law: Known = None,
    centred: Known = None,
    normal: Known = None,
) -> Guarantee:
    """The initial outputs are at most 4 eps_N ln(n/delta).

    max_i |p_i(W_0)| <= 4 eps_N ln(n/delta) with probability 1 - 4 delta (BN-15). The number `gaussian` is sharper: given V,
    p_i is Gaussian with deviation at most eps_N max_j ||v_j|| <= 2 eps_N, so 2 eps_N sqrt(2 ln(2n/delta)), 1 - 2 delta.

    >>> from widemargin import theory
    >>> print(theory.normalized.initial_output_bound(eps_N=1.0, n=100))
    BN-15: output 30.404, not all assumptions checked [BN Lemma C.1]
    """
    return Guarantee(
        "max_i |p_i(W_0)| <= 4 eps_N ln(n/delta)",
        4 * eps_N * math.log(n / delta),
        holding(law, centred, normal),
        numbers={"gaussian": 2 * eps_N * math.sqrt(2 * math.log(2 * n / delta))},
    )


def _few(m: float, d: int, delta: float) -> Assumption:
    have, most = math.log(m), math.log(delta) + d / 8
    return Assumption("m <= delta exp(d/8)", have <= most, f"ln m = {have:.6g}, ln delta + d/8 = {most:.6g}")


@states("BN-16", "BN Lemma C.2", quantity="norm", fails=3)
@assuming(LAW, "m <= delta exp(d/8)", "d >= 2")
def initial_norm_bounds(m: Count, d: Count, delta: Probability = 0.05, *, law: Known = None) -> Guarantee:
    """Initial weights have bounded norms: ||a|| near 1, rows of V between 1/5 and 2.

    ||a|| <= 1 + sqrt(2 ln(1/delta)/m); max_j ||v_j|| <= 1 + sqrt(2 ln(m/delta)/d) <= 2; max_j 1/||v_j|| <= 5 (BN-16), each
    with probability 1 - delta. The middle bound includes the union over j that the first display of the paper lacks
    (E-BN-10).

    >>> from widemargin import theory
    >>> print(theory.normalized.initial_norm_bounds(m=1000, d=100))
    BN-16: norm 1.0774, not all assumptions checked [BN Lemma C.2]
    """
    return Guarantee(
        "||a|| <= 1 + sqrt(2 ln(1/delta)/m), ||v_j|| <= 2, 1/||v_j|| <= 5",
        1 + math.sqrt(2 * math.log(1 / delta) / m),
        holding(law, _few(m, d, delta), (d >= 2, f"d = {d}")),
        numbers={"v_most": 1 + math.sqrt(2 * math.log(m / delta) / d), "v_cap": 2.0, "inverse_cap": 5.0},
    )


@states("BN-9", "BN Proposition 1.1", quantity="margin", unit="M9")
@assuming("the network is wide enough for its features to be near their mean")
def dyadic_margin(d: Count, *, wide: Known = None) -> Guarantee:
    """On the dyadic points the batch-normalised margin is at least sqrt(d)/40 times the linear margin.

    gamma_linear = sqrt(3/(4^(d+1) - 4)), gamma >= (sqrt(d)/40) gamma_linear (BN-9). The coefficients are
    sgn(u . v_j) 1[1/2 <= ||v_j|| <= 4]/sqrt(m), u = (2, 4, ..., 2^d); the proof's rotation argument is wrong (E-BN-9), but
    E[y sgn(u . v) relu(v . x/||v||_Sigma)] = (1/2) y E[sgn(u . v) v . x/||v||_Sigma] leaves a large reserve.

    >>> from widemargin import theory
    >>> print(theory.normalized.dyadic_margin(d=16))
    BN-9: margin (M9) 1.3214e-06, not all assumptions checked [BN Proposition 1.1]
    """
    log_linear = 0.5 * (math.log(3) - (d + 1) * math.log(4) - math.log1p(-(4.0**-d)))
    linear = math.exp(log_linear)
    return Guarantee(
        "gamma >= (sqrt(d)/40) gamma_linear",
        math.sqrt(d) / 40 * linear,
        holding(wide),
        numbers={"gamma_linear": linear, "log_gamma_linear": log_linear},
    )


# ---------------------------------------------------------------- alignment


@states("BN-17", "BN Lemma D.1", quantity="constant")
@assuming("||V' - V|| <= beta_V", CENTRED)
def preactivation_bounds(
    distance: Nonnegative,
    eps_N: Positive,
    eps_V: Positive = 2.0,
    c: Positive = 0.5,
    effective: Nonnegative = 0.0,
    *,
    centred: Known = None,
    convention: Convention = "derived",
) -> Guarantee:
    """Preactivations change by at most K times the movement of their row.

    With s = ||v'_j - v_j|| (`distance`) and e = ||v_j/N_j - omega_j|| (`effective`): value K s, K = rho_N eps_N + beta_N
    eps_V (BN-17).

    change <= K s; new <= K s + eps_ratio; against omega <= K s + e; of omega <= e + eps_ratio; of activations <= K s + e +
    eps_ratio. Print has beta_N eps_ratio in K, which needs eps_N >= 1 (E-BN-7).

    >>> from widemargin import theory
    >>> print(theory.normalized.preactivation_bounds(distance=0.1, eps_N=1.0))
    BN-17: constant 0.6, not all assumptions checked [BN Lemma D.1]
    """
    base = perturbation_constants(eps_N, eps_V, c).numbers
    ratio = base["eps_ratio"]
    K = base["rho_N"] * eps_N + base["beta_N"] * (eps_V if convention == "derived" else ratio)
    close = c < 1 and distance <= base["beta_V"] * (1 + 1e-12)
    known = holding((close, f"{distance:.6g} against {base['beta_V']:.6g}"), centred)
    Ks = K * distance
    return Guarantee(
        "|<v'/N', x> - <v/N, x>| <= K ||v' - v||",
        Ks,
        (*known, _normal(eps_N)) if convention == "printed" else known,
        numbers={
            "K": K,
            "new": Ks + ratio,
            "against_effective": Ks + effective,
            "effective": effective + ratio,
            "activation": Ks + effective + ratio,
        },
    )


def radius(gamma: float, m: float, eps_N: float) -> float:
    """R = gamma^(1/3) m^(1/6) / (27 eps_N): how far U may move."""
    return gamma ** (1 / 3) * m ** (1 / 6) / (27 * eps_N)


def least_width(gamma: float, eps_N: float, n: int, t: float, delta: float, convention: str = "derived") -> float:
    """ln of the width the theorems need: max of 2^29 eps_N^3 ln(5nt/delta)^(3/2)/gamma^2 (printed) and (216 eps_N)^6/gamma^2, for
    which R >= 8 (E-BN-3)."""
    printed = 29 * math.log(2) + 3 * math.log(eps_N) + 1.5 * math.log(math.log(5 * n * t / delta)) - 2 * math.log(gamma)
    return printed if convention == "printed" else max(printed, 6 * math.log(216 * eps_N) - 2 * math.log(gamma))


def misalignment(R: float, eps_N: float, n: int, delta: float, convention: str = "derived") -> float:
    """36 e^3 R^4 + 108 e^3 R^3 + 72 e^3 R^2 + 5 e^2 R^2 + 20 e^2 R + 6 e^2 + 4 e ln(n/delta), e = eps_N: the left side of Lemma
    D.2.

    The third term, from sum_j ||v'_j - v_j|| |a_j| |c_j|, is in the paper's sum but lost in its next line; "printed" omits it.
    """
    e = eps_N
    cubic = 36 * e**3 * R**4 + 108 * e**3 * R**3 + (72 * e**3 * R**2 if convention == "derived" else 0.0)
    return cubic + 5 * e**2 * R**2 + 20 * e**2 * R + 6 * e**2 + 4 * e * math.log(n / delta)


def _width_assumptions(
    gamma: float, eps_N: float, n: int, t: float, m: float, d: int, delta: float, convention: str
) -> list[Assumption]:
    have, need = math.log(m), least_width(gamma, eps_N, n, t, delta, convention)
    return [
        Assumption(MARGIN, None, f"gamma = {gamma:.6g}"),
        _normal(eps_N),
        Assumption("m is at least the required width", have >= need - 1e-12, f"ln m = {have:.6g}, required {need:.6g}"),
        _few(m, d, delta),
    ]


def _normal(eps_N: float) -> Assumption:
    return Assumption("eps_N >= 1", eps_N >= 1, f"eps_N = {eps_N:.6g}")


def _below(text: str, left: float, right: float) -> Assumption:
    return Assumption(text, left <= right, f"{left:.6g} against {right:.6g}")


def _in_radius(text: str, least: float, R: float, gamma: float, m: float, eps_N: float) -> Assumption:
    most = radius(gamma, m, eps_N)
    return Assumption(text, least <= R <= most * (1 + 1e-12), f"R = {R:.6g}, at most {most:.6g}")


@states("BN-18", "BN Lemma D.2", quantity="constant", fails=6)
@assuming(MARGIN, "R <= gamma^(1/3) m^(1/6)/(27 eps_N)", "m <= delta exp(d/8)")
def misalignment_bound(
    R: Positive,
    gamma: Positive,
    eps_N: Positive,
    m: Positive,
    n: Count,
    d: Count,
    delta: Probability = 0.05,
    convention: Convention = "derived",
) -> Guarantee:
    """Near initialisation the parts of the prediction that are not aligned with the margin are small.

    |<a, d_a p>| + |<c' - c, d_c p>| + alpha |<V' - V, d_V p>| <= `misalignment` <= R gamma sqrt(m)/32 on Gamma (BN-18).

    >>> from widemargin import theory
    >>> print(theory.normalized.misalignment_bound(R=1.0, gamma=0.1, eps_N=1.0, m=10**14, n=100, d=400))
    BN-18: constant 31250, not all assumptions checked [BN Lemma D.2]
    """
    left, right = misalignment(R, eps_N, n, delta, convention), R * gamma * math.sqrt(m) / 32
    return Guarantee(
        "misaligned parts <= R gamma sqrt(m)/32",
        right,
        (
            Assumption(MARGIN, None, f"gamma = {gamma:.6g}"),
            _normal(eps_N),
            _in_radius("R <= gamma^(1/3) m^(1/6)/(27 eps_N)", 0, R, gamma, m, eps_N),
            _below("the polynomial in R is at most R gamma sqrt(m)/32", left, right),
            Assumption("m <= delta exp(d/8)", math.log(m) <= math.log(delta) + d / 8, f"m = {m:.6g}, d = {d}"),
        ),
        numbers={"polynomial": left},
    )


@states("BN-19", "BN Lemma D.3", quantity="constant", fails=7)
@assuming(MARGIN, "8 <= R <= gamma^(1/3) m^(1/6)/(27 eps_N)", "m within the stated widths")
def alignment_bound(
    R: Positive, gamma: Positive, eps_N: Positive, m: Positive, n: Count, d: Count, delta: Probability = 0.05
) -> Guarantee:
    """Near initialisation every gradient is aligned with the direction of the margin.

    On Gamma: <Uvec, d_U p_i> >= (3/4) gamma sqrt(m), and <Ubar, d_U p_i> - p_i + alpha <V - V', d_V p_i> >= r gamma
    sqrt(m)/2 with r = R/8 (BN-19, value: the second). The first needs 10 e^2 R + 3 sqrt(m) Delta_V + 13 e^2 <= gamma sqrt(m)/4,
    e = eps_N; R >= 8 forces m >= (216 eps_N)^6/gamma^2 (E-BN-3).

    >>> from widemargin import theory
    >>> print(theory.normalized.alignment_bound(R=8.0, gamma=0.1, eps_N=1.0, m=10**18, n=100, d=400))
    BN-19: constant 5e+07, not all assumptions checked [BN Lemma D.3]
    """
    root = gamma * math.sqrt(m)
    loss = 10 * eps_N**2 * R + 3 * root / 32 + 13 * eps_N**2
    return Guarantee(
        "<Ubar, d_U p> - p + alpha <V - V', d_V p> >= r gamma sqrt(m)/2",
        R / 8 * root / 2,
        (
            *_width_assumptions(gamma, eps_N, n, 1, m, d, delta, "printed"),
            _in_radius("8 <= R <= gamma^(1/3) m^(1/6)/(27 eps_N)", 8, R, gamma, m, eps_N),
            _below("the loss of alignment is at most gamma sqrt(m)/4", loss, root / 4),
            Assumption(
                "the misaligned parts are at most R gamma sqrt(m)/32", misalignment(R, eps_N, n, delta) <= R * root / 32
            ),
        ),
        numbers={"first": 0.75 * root, "r": R / 8},
    )


@states("BN-22", "BN Lemma E.2, Corollaries E.3, E.4", quantity="constant")
@assuming("0 <= g <= 1", "each example is fresh: W_s depends on earlier examples only")
def martingale_transfer(
    total: Finite, delta: Probability = 0.05, *, fresh: Known = None, convention: Convention = "derived"
) -> Guarantee:
    """Along SGD the sum of expected values is at most 4 times the observed sum plus 4 ln(1/delta).

    sum_s E g(W_s) <= (sum_s g_s + ln(1/delta))/(3 - e) (Freedman); print rounds 1/(3 - e) = 3.55 up to 4 (BN-22). Used with
    g = |l'| and g = min(l, ln 2).

    >>> from widemargin import theory
    >>> print(theory.normalized.martingale_transfer(total=12.0))
    BN-22: constant 53.23, not all assumptions checked [BN Lemma E.2, Corollaries E.3, E.4]
    """
    factor = 4.0 if convention == "printed" else 1 / (3 - math.e)
    return Guarantee(
        "sum E g <= factor (sum g + ln(1/delta))",
        factor * (total + math.log(1 / delta)),
        holding((True, "stated by the caller"), fresh),
        numbers={"factor": factor},
    )


# ---------------------------------------------------------------- the two theorems


def proof_slack(
    gamma: float, eps_N: float, m: float, n: int, t: float, delta: float, R: float, eta: float
) -> dict[str, float]:
    """Right side minus left side of every inequality that the proofs of BN Theorems 2.1 and 2.2 use, each divided by the right.

    alignment: 10 e^2 R + 3 gamma sqrt(m)/32 + 13 e^2 <= gamma sqrt(m)/4. misalignment: Lemma D.2. horizon: ln(5t) <= r gamma
    sqrt(m)/2. gradients: Lemma E.1, 25 e^2 ((R + sqrt m)^2 + (R + 2)^2) <= 2^11 e^4 m and 324 e^4 (R+2)^2 (R+1)^2 <= 2^16 e^4
    R^4. radius: 2 sqrt(2) r + 2 eta/(5R) + eta (2^13 e^4 sqrt(m)/gamma + 2^20 e^6 R^6/(gamma sqrt m)) <= R; the direction
    (avec, cvec) has norm up to sqrt 2, and alpha = 4 e^2 R^2 brings 2^20 where 2^18 is printed. printed_radius is the step eta
    2^13 e^4 sqrt(m)/gamma <= R/8.
    """
    e, root = eps_N, math.sqrt(m)
    aligned, r = gamma * root, R / 8
    sides = {
        "R >= 8": (8.0, R),
        "alignment": (10 * e**2 * R + 3 * aligned / 32 + 13 * e**2, aligned / 4),
        "misalignment": (misalignment(R, e, n, delta), R * aligned / 32),
        "horizon": (math.log(5 * t), r * aligned / 2),
        "gradient U": (25 * e**2 * ((R + root) ** 2 + (R + 2) ** 2), 2**11 * e**4 * m),
        "gradient V": (324 * e**4 * (R + 2) ** 2 * (R + 1) ** 2, 2**16 * e**4 * R**4),
        "radius": (
            2 * math.sqrt(2) * r + 0.4 * eta / R + eta * (2**13 * e**4 * root / gamma + 2**20 * e**6 * R**6 / aligned),
            R,
        ),
        "printed radius": (eta * 2**13 * e**4 * root / gamma, R / 8),
    }
    return {name: (right - left) / right for name, (left, right) in sides.items()}


@states("BN-10", "BN Theorem 2.1, Theorem E.5", quantity="test error of iterates", fails=20)
@assuming(*TRAINED)
def sgd_error(
    gamma: Positive,
    eps_N: Positive,
    m: Positive,
    n: Count,
    d: Count,
    t: Positive,
    delta: Probability = 0.05,
    *,
    eta: Measured = None,
    convention: Convention = "derived",
) -> Guarantee:
    """SGD on a wide batch-normalised network reaches test error of order 1/(gamma^2 t), and its weights move little.

    min_{s < t} P(error of W_s) <= 2^21 eps_N^4/(gamma^2 t) + 8 ln(1/delta)/t with probability 1 - 20 delta (BN-10, E-BN-4).

    Derived: R = gamma^(1/3) m^(1/6)/(27 eps_N), eta = gamma^(4/3)/(27 2^16 eps_N^5 m^(1/3)), so that eta 2^13 eps_N^4
    sqrt(m)/gamma = R/8 as the proof needs and sum |l'_s| <= 4R/(eta gamma sqrt m) = 2^18 eps_N^4/gamma^2; then 1[error] <= 2
    |l'| and BN-22 give 2 4 2^18, 2 4. The width must make R >= 8 (E-BN-3). Printed: eta = 1/(28 eps_N gamma^(2/3) m^(1/3)) with
    2^15 in Theorem 2.1 and 2^23 in E.5, which no step of the proof gives: with it 4R/(eta gamma sqrt m) = 112/27, and the
    radius inequality fails by many orders.

    >>> from widemargin import theory
    >>> print(theory.normalized.sgd_error(gamma=0.1, eps_N=1.0, m=10**20, n=100, d=400, t=10**10))
    BN-10: test error of iterates 0.020972, not all assumptions checked [BN Theorem 2.1, Theorem E.5]
    """
    printed = convention == "printed"
    R = radius(gamma, m, eps_N)
    step = (
        1 / (28 * eps_N * gamma ** (2 / 3) * m ** (1 / 3))
        if printed
        else gamma ** (4 / 3) / (27 * 2**16 * eps_N**5 * m ** (1 / 3))
    )
    slack = proof_slack(gamma, eps_N, m, n, t, delta, R, step)
    if printed:
        value = 2**15 * eps_N**4 / (gamma**2 * t) + 4 * math.log(1 / delta) / t
    else:
        value = 2**21 * eps_N**4 / (gamma**2 * t) + 8 * math.log(1 / delta) / t
    return Guarantee(
        "min_{s < t} P(sgn f(x; W_s) != y) <= 2^21 eps_N^4/(gamma^2 t) + 8 ln(1/delta)/t",
        value,
        (*_width_assumptions(gamma, eps_N, n, t, m, d, delta, convention), *_training(eta, step, slack, printed)),
        numbers=_plan(gamma, eps_N, n, t, m, delta, R, step, convention)
        | ({"appendix": 2**23 * eps_N**4 / (gamma**2 * t) + 4 * math.log(1 / delta) / t} if printed else {}),
    )


def _training(eta: Measured, step: float, slack: dict[str, float], printed: bool) -> list[Assumption]:
    used = None if eta is None else math.isclose(eta, step, rel_tol=1e-6)
    listed = [
        Assumption(LAW, None),
        Assumption(CENTRED, None),
        Assumption(STEP, used, f"eta = {step:.6g}" + ("" if eta is None else f", used {eta:.6g}")),
    ]
    if not printed:
        failed = [name for name, room in slack.items() if room < -1e-9]
        said = "fails: " + ", ".join(failed) if failed else ""
        listed.append(Assumption("every inequality of the proof holds", not failed, said))
    return listed


def _plan(
    gamma: float, eps_N: float, n: int, t: float, m: float, delta: float, R: float, step: float, convention: str
) -> dict[str, Any]:
    longest = R / 8 * gamma * math.sqrt(m) / 2 - math.log(5)
    return {
        "eta": step,
        "R": R,
        "movement_U": R,
        "movement_V": 1 / (2 * eps_N),
        "width": from_log(least_width(gamma, eps_N, n, t, delta, convention)),
        "t_most": from_log(longest),
    }


@states("BN-11", "BN Theorem 2.2, Theorem F.4", quantity="test error of iterates", fails=20)
@assuming(*TRAINED)
def gd_error(
    gamma: Positive,
    eps_N: Positive,
    m: Positive,
    n: Count,
    d: Count,
    t: Positive,
    delta: Probability = 0.05,
    *,
    eta: Measured = None,
    convention: Annotated[str, one_of("derived", "proof", "printed")] = "derived",
) -> Guarantee:
    """Gradient descent on a wide batch-normalised network reaches small test error, and its weights move little.

    min_{s < t} P(error of W_s) <= 2^19 eps_N^4/(gamma^2 t) + 150 eps_N sqrt(m/n) + 6 sqrt(ln(2/delta)/(2n)) (BN-11, E-BN-5).

    Derived with R = 8, eta = gamma/(2^13 eps_N^4 sqrt m): sum_s mean |l'| <= 4R/(eta gamma sqrt m) = 2^18 eps_N^4/gamma^2,
    P(error) <= 2 E|l'|, and -l' is 1/4-Lipschitz, so 2 (2 Rad/4 + 3 sqrt(ln(2/delta)/(2n))) with the Rad of BN-23 for sum |a_j
    c_j/N(v'_j)| <= 10 (2 sqrt m) 2 eps_N and rows within 1/(2 eps_N) + 2 of 0. The sqrt(m) stays: the paper removes it by
    restricting the class to max_i |l'(p_i)| <= rho on the sample and using slope rho there, but symmetrisation needs a class
    fixed before the sample. "proof" is the last display of that argument with its lost factor 2: 2^19 eps_N^4/(gamma^2 t) + 2
    (2560/(gamma sqrt n) + 3 sqrt(ln(2/delta)/(2n))). "printed" is Theorem 2.2, 2^17 m^(1/3) eps_N^4/(gamma^(1/3) t sqrt n) + 4
    ln(1/delta)/t.

    >>> from widemargin import theory
    >>> print(theory.normalized.gd_error(gamma=0.1, eps_N=1.0, m=10**17, n=10**12, d=400, t=10**8))
    BN-11: test error of iterates 47435, not all assumptions checked, vacuous [BN Theorem 2.2, Theorem F.4]
    """
    printed = convention == "printed"
    R = 8.0
    step = 1 / (28 * eps_N * gamma ** (2 / 3) * m ** (1 / 3)) if printed else gamma / (2**13 * eps_N**4 * math.sqrt(m))
    slack = proof_slack(gamma, eps_N, m, n, t, delta, R, step)
    slack["R within the radius"] = 1 - R / radius(gamma, m, eps_N)
    training, spread = 2**19 * eps_N**4 / (gamma**2 * t), 6 * math.sqrt(math.log(2 / delta) / (2 * n))
    if printed:
        value = 2**17 * m ** (1 / 3) * eps_N**4 / (gamma ** (1 / 3) * t * math.sqrt(n)) + 4 * math.log(1 / delta) / t
    elif convention == "proof":
        value = training + 5120 / (gamma * math.sqrt(n)) + spread
    else:
        value = training + 60 * math.sqrt(m / n) * (0.5 + 2 * eps_N) + spread
    return Guarantee(
        "min_{s < t} P(sgn f(x; W_s) != y) <= 2 mean |l'| + Rad + deviation",
        value,
        (
            *_width_assumptions(gamma, eps_N, n, t, m, d, delta, "printed" if printed else "derived"),
            *_training(eta, step, slack, printed),
        ),
        numbers=_plan(gamma, eps_N, n, t, m, delta, R, step, "printed" if printed else "derived"),
    )


# ---------------------------------------------------------------- on data and a run


def _network(facts: Facts) -> tuple[np.ndarray, np.ndarray, np.ndarray, float] | None:
    """V_0, centred points, N(v_0j) and eps of a batch-normalised network with its initial weights."""
    net = facts.net
    if not isinstance(net, flows.BatchNorm) or facts.start is None or net.minibatch:
        return None
    mean = facts.start.get("mean", None if net.mean is None else net.mean[0])
    root = facts.start.get("root", None if net.root is None else net.root[0])
    if mean is None or root is None:
        return None
    V = np.asarray(facts.start["V"])
    return V, facts.data.X - np.asarray(mean), np.sqrt(((V @ np.asarray(root).T) ** 2).sum(1) + net.eps), net.eps


@applied("BN-5", _network)
def _normalizer_on(facts: Facts, V: np.ndarray, Xbar: np.ndarray, N: np.ndarray, eps: float) -> Guarantee:
    least = max(0.0, float(np.linalg.eigvalsh(Xbar.T @ Xbar / facts.n)[0])) if facts.d <= 2000 else 0.0
    return normalizer_bound(eps, least, len(V), facts.d, facts.delta)


@applied("BN-15", _network)
def _initial_output_on(facts: Facts, V: np.ndarray, Xbar: np.ndarray, N: np.ndarray, eps: float) -> Guarantee:
    inside = bool(np.linalg.norm(Xbar, axis=1).max() <= 1 + 1e-12)
    return initial_output_bound(float((1 / N).max()), facts.n, facts.delta, law=True, centred=inside, normal=True)


@applied("BN-16", _network)
def _initial_norms_on(facts: Facts, V: np.ndarray, *_: Any) -> Guarantee:
    return initial_norm_bounds(len(V), facts.d, facts.delta, law=True)


def _error_on(
    facts: Facts, V: np.ndarray, Xbar: np.ndarray, N: np.ndarray, eps: float, *, theorem: Any, rule: str
) -> Guarantee | None:
    """gamma_a at the initial features, exactly (omega = v/N, Delta_V = 0); gamma_c >= 0 is left out."""
    if facts.rule.get("class") != rule or facts.loss != "logistic":
        return None
    H = (Xbar @ (V / N[:, None]).T).clip(0) / math.sqrt(len(V))  # (n, m)
    cert = margins.f2(Dataset(Xbar, facts.data.y, facts.data.name), kernel=H @ H.T, time_limit=facts.time_limit)
    steps = facts.last("step")
    if not cert.lower > 0 or not steps:
        return None
    eps_N = max(1.0, float((1 / N).max()))
    lr = facts.rule.get("lr")
    eta = float(lr) if isinstance(lr, int | float) else None
    return theorem(float(cert.lower), eps_N, len(V), facts.n, facts.d, steps, facts.delta, eta=eta)


applied("BN-10", _network)(partial(_error_on, theorem=sgd_error, rule="SGD"))
applied("BN-11", _network)(partial(_error_on, theorem=gd_error, rule="GD"))


@applied("BN-9")
def _dyadic_on(facts: Facts) -> Guarantee | None:
    return dyadic_margin(facts.d) if facts.data.name.startswith("dyadic") else None
