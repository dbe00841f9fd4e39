"""The divergence of measures on neurons (UH-8), and comparators: good measures among the directions of the start (UH-21)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from widemargin.types import Dataset, InputError, Measure

from . import conditions
from .arguments import Convention, Count, Positive, Probability
from .conditions import Measured, at_least, given, in_unit_ball
from .guarantee import Guarantee, assuming, from_log, log_of, states
from .simplex import best_mixture


def kl(v: ArrayLike, u: ArrayLike) -> float:
    """KL(v, u) = <v, ln(v/u)> + <1, u - v>, the Bregman divergence of sum_j (u_j ln u_j - u_j) (UH Lemma 3.3, UH-8); v, u (m,).

    >>> from widemargin.theory import comparators
    >>> comparators.kl([1.0, 0.0], [1.0, 1.0])  # the mass that is missing
    1.0
    """
    v, u = np.asarray(v, dtype=np.float64), np.asarray(u, dtype=np.float64)
    if v.shape != u.shape or (v < 0).any() or (u < 0).any():
        raise InputError("kl: give two nonnegative vectors of the same length")
    if (u[v > 0] == 0).any():
        return math.inf
    on = v > 0
    return float((v[on] * np.log(v[on] / u[on])).sum() + u.sum() - v.sum())


def size_divergence(x: float) -> float:
    """Q(x) = ln x + 1/x - 1 >= 0, zero at 1 (UH Lemma A.2)."""
    return math.log(x) + 1 / x - 1


def kl_parts(r: ArrayLike, q: ArrayLike) -> tuple[float, float]:
    """KL(r, q) = ||r|| KL(r/||r||, q/||q||) + ||r|| Q(||r||/||q||), norms l1, r, q (m,): the two terms (UH Lemma A.2).

    >>> from widemargin.theory import comparators
    >>> r, q = [1.0, 1.0], [1.0, 3.0]
    >>> round(sum(comparators.kl_parts(r, q)), 12) == round(comparators.kl(r, q), 12)
    True
    """
    r, q = np.asarray(r, dtype=np.float64), np.asarray(q, dtype=np.float64)
    a, b = float(r.sum()), float(q.sum())
    return a * kl(r / a, q / b), a * size_divergence(a / b)


def kl_bounds(r: ArrayLike, q: ArrayLike) -> tuple[float, float]:
    """The two lower bounds of KL(r, q), r, q (m,), in UH Lemma A.2, with the coefficient ||r||_1 of the first term (E-UH-14).

    >>> from widemargin.theory import comparators
    >>> max(comparators.kl_bounds([1.0, 1.0], [1.0, 3.0])) <= comparators.kl([1.0, 1.0], [1.0, 3.0])
    True
    """
    r, q = np.asarray(r, dtype=np.float64), np.asarray(q, dtype=np.float64)
    a, b = float(r.sum()), float(q.sum())
    shape = a * kl(r / a, q / b)
    first = shape + (b >= a) * a / 2 * (math.sqrt(a / b) - math.sqrt(b / a)) ** 2
    return first, shape + (b >= 2 * a) * b / 8


# ---------------------------------------------------------------- comparators at the start (UH-21)


@dataclass(frozen=True)
class Comparator:
    """p >= 0 (m,) with mass 1: its margin min_i <p, z_i>, KL(p, u(0)), largest entry, and the mass that found no match."""

    p: np.ndarray
    margin: float
    kl: float
    largest: float
    missed: float = 0.0


def signed_features(data: Dataset, V: ArrayLike, beta: ArrayLike) -> np.ndarray:
    """z_ij = y_i beta_j relu(v_j . x_i / ||v_j||) (n, m)."""
    V = np.asarray(V, dtype=np.float64)
    H = (data.X @ (V / np.linalg.norm(V, axis=1, keepdims=True)).T).clip(0)
    return data.signs()[:, None] * np.asarray(beta, dtype=np.float64) * H


def sample_p_bar(
    measure: Measure, V: ArrayLike, beta: ArrayLike, data: Dataset, radius: float, k: int | None = None, seed: int = 0
) -> Comparator:
    """The comparator of UH Lemma B.1: every atom of `measure` spread evenly over the units within `radius` of it (UH-21).

    `measure` is a good network of any width (the primal of `margins.f1`); units have directions V (m, d) and signs beta. With k,
    its atoms are first replaced by k random ones of weight 1/k (Maurey). All m units may serve every atom, without splitting
    them into k groups: then ||p||_inf and KL(p, 1/m) only get smaller, and the printed width is enough (F-UH-2).

    >>> from widemargin.theory import comparators
    >>> from widemargin.types import Dataset, Measure
    >>> data, net = Dataset([[1.0, 0.0], [0.0, 1.0]], [1, -1]), Measure([[1.0, 0.0], [0.0, 1.0]], [0.5, -0.5])
    >>> comparators.sample_p_bar(net, V=[[2.0, 0.0], [0.0, 3.0]], beta=[1, -1], data=data, radius=0.1).margin
    0.5
    """
    unit = measure.normalized()
    mass = np.abs(unit.mass) / np.abs(unit.mass).sum()
    if k is not None:
        mass = np.random.default_rng(seed).multinomial(k, mass) / k
    V, beta = np.asarray(V, dtype=np.float64), np.asarray(beta, dtype=np.float64)
    U = V / np.linalg.norm(V, axis=1, keepdims=True)
    near = (2 - 2 * unit.theta @ U.T).clip(0) <= radius**2  # (atoms, m)
    near &= np.sign(unit.mass)[:, None] == np.sign(beta)
    count = near.sum(1)
    p = (mass / np.maximum(count, 1)) @ near  # (m,)
    return _comparator(p, signed_features(data, V, beta), np.full(len(V), 1 / len(V)), float(mass[count == 0].sum()))


def best_p_bar(Z: ArrayLike, u0: ArrayLike | None = None, temperature: float = 0.0) -> Comparator:
    """A comparator for features Z (n, m) and u0 (m,), by default 1/m: max_p min_i <p, z_i> - temperature KL(p, u(0)) (UH-21).

    At temperature 0 a linear program, with few units and so a large ||p||_inf; otherwise p_j ~ u_j(0) exp(<q, z_j> / temperature)
    with the q of the simplex that minimises the dual. What is returned is evaluated, so it need not be the best.

    >>> from widemargin.theory import comparators
    >>> comparators.best_p_bar([[1.0, 0.0], [0.0, 1.0]]).margin
    0.5
    """
    from scipy.optimize import minimize

    Z = np.asarray(Z, dtype=np.float64)
    n, m = Z.shape
    u = np.full(m, 1 / m) if u0 is None else np.asarray(u0, dtype=np.float64)
    if temperature == 0:
        p = best_mixture(Z)
        return _comparator(np.full(m, 1 / m) if p is None else p, Z, u)
    log_u = np.log(u)

    def dual(r: np.ndarray) -> tuple[float, np.ndarray]:
        q = np.exp(r - r.max())
        q /= q.sum()
        score = log_u + q @ Z / temperature
        top = score.max()
        w = np.exp(score - top)
        slope = Z @ (w / w.sum())  # derivative by q
        return temperature * (top + math.log(w.sum())), q * (slope - q @ slope)

    r = minimize(dual, np.zeros(n), jac=True, method="L-BFGS-B", options={"maxiter": 500}).x
    q = np.exp(r - r.max())
    score = log_u + (q / q.sum()) @ Z / temperature
    return _comparator(np.exp(score - score.max()), Z, u)


def _comparator(p: np.ndarray, Z: np.ndarray, u: np.ndarray, missed: float = 0.0) -> Comparator:
    if not p.sum() > 0:
        return Comparator(p, -math.inf, math.inf, 0.0, 1.0)
    p = p / p.sum()
    return Comparator(p, float((Z @ p).min()), max(kl(p, u), 0.0), float(p.max()), missed)


@states("UH-21", "UH Lemma B.1", quantity="width")
@assuming("v_j uniform on the sphere, signs uniform", "the F1 margin is gamma", "||x|| <= 1", "m is exponential in d")
def width_for_comparator(
    gamma: Positive,
    d: Count,
    n: Count,
    delta: Probability,
    *,
    m: Measured = None,
    radius: Measured = None,
    convention: Convention = "derived",
) -> Guarantee:
    """At exponential width random units contain a comparator with a quarter of the F1 margin

    m >= 2^10 ln(2n/(delta gamma))^2 (8/gamma)^(2d-2): with probability 1 - delta some p has margin gamma/4 (UH-21).

    KL(p, 1/m) <= ln 8 + (d-1) ln(8/gamma) and ||p||_inf <= 1/sqrt(m). Printed: KL <= (d-1) ln(48/gamma), for which the proof
    would need 2/3 of the expected number of units in each cap; it has half of it. `width_sharp` is what the proof needs if
    the k = 16 n / gamma^2 atoms share all units: max(2 ln(k/delta), 4) / tau^2, tau = (1/4)(gamma/8)^(d-1).

    >>> from widemargin import theory
    >>> print(theory.comparators.width_for_comparator(gamma=0.2, d=4, n=20, delta=0.05))
    UH-21: width 2.8853e+14, not all assumptions checked [UH Lemma B.1]
    """
    log_caps = (2 * d - 2) * math.log(8 / gamma)
    width = from_log(math.log(1024) + 2 * math.log(math.log(2 * n / (delta * gamma))) + log_caps)
    sharp = from_log(math.log(16 * max(2 * math.log(16 * n / (gamma**2 * delta)), 4.0)) + log_caps)
    bound = (d - 1) * math.log(48 / gamma) if convention == "printed" else comparator_kl(gamma, d)
    return Guarantee(
        f"width {conditions.show(width)} is enough for a comparator of margin {gamma / 4:.6g} at the start",
        width,
        (
            given("v_j uniform on the sphere, signs of a_j b_j uniform", None, "the law of the start"),
            in_unit_ball(radius),
            at_least("m", m, width),
        ),
        numbers={"margin": gamma / 4, "kl": bound, "log_p_max": -log_of(width) / 2, "width_sharp": sharp},
    )


def comparator_kl(gamma: float, d: int) -> float:
    """ln(2/tau) = ln 8 + (d - 1) ln(8/gamma): each atom has at least half the expected number m tau of units."""
    return math.log(8) + (d - 1) * math.log(8 / gamma)
