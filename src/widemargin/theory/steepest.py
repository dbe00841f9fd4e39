"""Steepest descent in any norm: what it does to the margin in that norm (WM-5 to WM-7, docs/steepest.md)."""

from __future__ import annotations

import math

import numpy as np

from .arguments import Count, Finite, Nonnegative, Positive, Share
from .guarantee import Guarantee, assuming, holding, states

MANY = 10**6  # steps that are added up one by one
HOMOGENEOUS = "the output is homogeneous of this degree in w"
STEEPEST = "w moves along a steepest direction, and the other parameters do not raise the loss"
FITTED = "the sum of losses is below l(0)"


@states(
    "WM-5",
    "widemargin, from UH Theorem 3.6 (proof); for all parameters Tsilivis et al. (2024)",
    quantity="margin",
    unit="psi",
)
@assuming(HOMOGENEOUS, STEEPEST, FITTED)
def own_norm_growth(
    psi: Positive, norm: Positive, later: Positive, degree: Positive, *, alignment: Share = 1.0,
    homogeneous: bool | None = None, steepest: bool | None = None,
) -> Guarantee:  # fmt: skip
    """Along steepest descent in a norm N the smooth margin psi over N(w)^L never falls once it is positive.

    psi >= psi_0 (N / N_0)^(c L) at any later time, from psi_0 > 0 at the norm N_0 = `norm`, where the norm is `later`.

    `alignment` c <= 1: the direction only has <-g, w'> >= c N*(g) N(w'), as with momentum or with an approximate polar factor.
    psi itself does not fall either. Proof: docs/steepest.md, 1.

    >>> from widemargin import theory
    >>> theory.steepest.own_norm_growth(psi=1.0, norm=2.0, later=3.0, degree=2).shown
    '2.25'
    """
    power = alignment * degree * (math.log(later) - math.log(norm))
    return Guarantee(
        "psi >= psi_0 max(1, (N / N_0)^(c L))",
        math.exp(min(700.0, math.log(psi) + max(0.0, power))),
        holding(
            (homogeneous, f"degree {degree:g}"), (steepest, f"alignment {alignment:g}"), (True, f"psi_0 = {psi:.6g}")
        ),
        numbers={"normalized": math.exp(max(-745.0, min(709.0, math.log(psi) - degree * math.log(norm))))},
    )


@states("WM-6", "widemargin", quantity="norm", unit="N")
@assuming(HOMOGENEOUS, STEEPEST, FITTED, "the norm of all that decays is at most 1 / decay")
def decayed_steepest(decay: Positive, norm: Positive, *, homogeneous: bool | None = None) -> Guarantee:
    """Decoupled weight decay keeps psi / N(w)^L from falling as long as N(w) <= 1 / decay, which then stays so.

    w' = s - decay w with N(s) = 1, all parameters alike: psi / N(w)^L never falls once psi > 0, if N <= 1 / decay.

    `norm` is the norm N of all parameters that decay now; the value is the largest that is allowed. Proof: docs/steepest.md, 2.

    >>> from widemargin import theory
    >>> print(theory.steepest.decayed_steepest(decay=0.01, norm=5.0))
    WM-6: norm (N) 100, not all assumptions checked [widemargin]
    """
    return Guarantee(
        "N(w) <= 1 / decay",
        1 / decay,
        holding(homogeneous, None, None, (norm * decay <= 1, f"N = {norm:.6g}, 1 / decay = {1 / decay:.6g}")),
    )


@states(
    "WM-7",
    "widemargin; the order is that of Fan, Schmidt and Thrampoulidis (2025)",
    quantity="margin",
    unit="the norm of the rule",
)
@assuming("a linear predictor of norm 1 has margin gamma, and |<x_i, s>| <= radius for all s of norm 1")
def linear_rate(
    gamma: Positive, n: Count, radius: Positive, steps: Count, lr: Positive, *,
    power: Finite = 0.0, psi: float | None = None, norm: Nonnegative = 0.0, separable: bool | None = None,
) -> Guarantee:  # fmt: skip
    """Steepest descent of a linear predictor reaches the largest margin in its own norm, at a rate with constants.

    min_i y_i w . x_i / N(w) >= (psi_0 + gamma A - radius^2 B / 2) / (N_0 + A), exponential loss, after `steps` steps.

    A and B are the sums of h_t and of h_t^2, h_t = lr / t^power the lengths of the steps in the norm N; radius = max_i N*(x_i).
    `psi` and `norm` are those of the start, -ln n and 0 by default. With power 1/2 the rate is of order ln t / sqrt(t), with
    power 0 it ends lr radius^2 / 2 below gamma. Proof: docs/steepest.md, 3.

    >>> from widemargin import theory
    >>> theory.steepest.linear_rate(gamma=0.2, n=100, radius=1.0, steps=10_000, lr=0.1).shown
    '0.14539'
    """
    A, B = lengths(steps, lr, power)
    first = -math.log(n) if psi is None else psi
    return Guarantee(
        "margin >= (psi_0 + gamma A - radius^2 B / 2) / (N_0 + A)",
        (first + gamma * A - radius**2 * B / 2) / (norm + A),
        holding((separable, f"gamma = {gamma:.6g}, radius = {radius:.6g}")),
        numbers={"length": A, "squares": B},
    )


def lengths(steps: int, lr: float, power: float) -> tuple[float, float]:
    """Sums of h_t and h_t^2 over t = 1, ..., steps, h_t = lr / t^power.

    Beyond MANY steps integrals stand for the rest, the first from below and the second from above: the margin that is guaranteed
    grows with the first and falls with the second.
    """
    if power == 0:
        return steps * lr, steps * lr**2
    t = np.arange(1.0, min(steps, MANY) + 1)
    total, squares = float((t**-power).sum()), float((t ** (-2 * power)).sum())
    if steps > MANY:
        total += _integral(MANY + 1.0, steps + 1.0, power)
        squares += _integral(float(MANY), float(steps), 2 * power)
    return lr * total, lr**2 * squares


def _integral(start: float, end: float, power: float) -> float:
    """Of t^-power from start to end."""
    if abs(power - 1) < 1e-9:
        return math.log(end / start)
    return (end ** (1 - power) - start ** (1 - power)) / (1 - power)
