"""Rademacher complexities of networks, kernel balls and linear classifiers, given the points: bounds, and Monte Carlo.

Rad(F) = (1/n) E_eps sup_{f in F} sum_i eps_i f(x_i)
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from widemargin.spaces import ReLU, sphere

from ._rooms import enumeration
from .arguments import Convention, Count, Positive, Probability, checked, one_of
from .conditions import Known
from .guarantee import Guarantee, assuming, holding, states

HULL = 1.5  # of unit ReLUs: see rademacher_hull


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
    """Mean and standard error of the unit ball's complexity at points X (n, d), over `samples` draws of the signs.

    `kind` is "hull", "linear" or "kernel"; the last may be given its matrix `kernel` (n, n).
    The supremum is exact for the last two and, in at most two dimensions, for the hull (the best neuron of each sign pattern on
    the circle); in more it is the best of 100 ascents over random starts and so a lower estimate.

    >>> from widemargin.theory import complexity
    >>> mean, error = complexity.rademacher_monte_carlo([[1.0, 0.0], [0.0, 1.0]], "linear")
    >>> round(mean, 6), error < 1e-12  # |sum_i e_i x_i| / n is the same for all signs
    (0.707107, True)
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
    """max_{||v|| = 1} |sum_i e_i relu(v . x_i)| for points of at most two dimensions."""
    return max(enumeration.enumerate3(X, sign * e)[0] for sign in (1.0, -1.0))


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


@states("MT-16", "MT Lemmas C.2 to C.4, Corollary C.5", quantity="constant")
@assuming("the activation is relu")
def rademacher_bound(
    frobenius: Positive,
    n: Count,
    d: Count,
    B: Positive = 1.0,
    kind: Annotated[str, one_of("hull", "kernel", "linear")] = "hull",
    convention: Convention = "derived",
) -> Guarantee:
    """The Rademacher complexity of measures on unit ReLUs, and of the kernel ball, is bounded by ||X||_F/n.

    hull: 3 B ||X||_F/n (printed), 1.5 B ||X||_F/n (derived, `rademacher_hull`). kernel: B ||X||_F/(n sqrt(2d)) with B the
    M7 norm; print has sqrt d and sqrt(kappa)||alpha||_2 for B (E-MT-7). linear: B ||X||_F/n.

    >>> from widemargin import theory
    >>> print(theory.complexity.rademacher_bound(frobenius=10.0, n=100, d=4))
    MT-16: constant 0.15, applies [MT Lemmas C.2 to C.4, Corollary C.5]
    """
    value = {
        "hull": rademacher_hull(frobenius, n, B, convention),
        "kernel": rademacher_kernel(frobenius**2 / ((2 if convention == "derived" else 1) * d), n, B),
        "linear": rademacher_linear(frobenius, n, B),
    }[kind]
    return Guarantee(
        f"empirical Rademacher complexity of the {kind} ball",
        value,
        holding((True, "stated by the caller")),
        numbers={"kind": kind},
    )


# ---------------------------------------------------------------- batch normalisation


@states("BN-23", "BN Lemma F.1", quantity="constant")
@assuming("mean and covariance of the normalisation are fixed, not taken from the sample")
def batchnorm_rademacher(
    B: Positive,
    rho: Positive,
    frobenius: Positive,
    n: Count,
    v0: Positive = 2.0,
    *,
    fixed: Known = None,
    convention: Convention = "derived",
) -> Guarantee:
    """The Rademacher complexity of batch-normalised networks near initialisation is bounded by the reach of their rows.

    Class {sum_j |a_j c_j / N(v_j)| <= B, ||V - V_0|| <= rho}: 1.5 B (rho + v0) ||Xbar||_F / n, v0 >= max_j ||v_0j|| (BN-23).

    Printed: 4 B rho ||Xbar||_F / n. Its proof drops v_0j from a supremum over j, which is no equality (E-BN-6): at rho = 0 the
    class still holds every combination of the initial neurons. Rows lie in the ball of radius rho + v0 about 0, and the hull of
    its ReLUs has the constant of `rademacher_hull`.

    >>> from widemargin import theory
    >>> print(theory.complexity.batchnorm_rademacher(B=1.0, rho=1.0, frobenius=10.0, n=100))
    BN-23: constant 0.45, not all assumptions checked [BN Lemma F.1]
    """
    value = 4 * B * rho * frobenius / n if convention == "printed" else rademacher_hull(frobenius, n, B * (rho + v0))
    return Guarantee(
        "empirical Rademacher complexity of batch-normalised networks",
        value,
        holding(fixed),
        numbers={"reach": rho + v0},
    )


@checked
def sigmoid_slope(rho: Probability) -> tuple[float, float]:
    """g = -l' of the logistic loss is rho(1 - rho)-Lipschitz on [ln(1/rho - 1), inf) for rho <= 1/2: (start, slope) (BN-23)."""
    return math.log(1 / rho - 1), rho * (1 - rho) if rho <= 0.5 else 0.25
