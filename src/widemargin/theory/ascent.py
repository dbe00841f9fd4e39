"""Rates of CB's two ascents with frozen directions: what the best iterate's margin is after t steps."""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike

from widemargin.types import InputError

from ._rooms import margins, torch
from .arguments import Count, Positive, one_of
from .conditions import Known, Measured
from .guarantee import Guarantee, applied, assuming, from_log, holding, states
from .known_facts import Facts
from .simplex import best_mixture

MOST = 10**7  # entries of a feature matrix


@states("CB-14", "CB Proposition 6, Proposition 16", quantity="margin", unit="M6")
@assuming("steps eta(t) = 1/(16 |z| sqrt(t+1))", "uniform start", "exponential loss")
def frozen_ascent_margin(
    gamma: Positive,
    size: Positive,
    n: Count,
    m: Count,
    t: Count,
    growth: Positive,
    *,
    steps: Known = None,
    uniform: Known = None,
    exponential: Known = None,
    convention: Annotated[str, one_of("printed", "sharp")] = "printed",
) -> Guarantee:
    """Training the norms of neurons with frozen directions, the best margin approaches the l1 max margin like ln(t)/sqrt(t).

    max_{s < t} min_i z_i . abar(s) >= gamma_1 - (|z|/sqrt t)(8 ln m + ln t + 1) - (4 ln n/sqrt t) growth (CB-14).

    growth = sum_{s < t} 1/(beta(s) sqrt(s+1)), beta = |a|_1; size = max |z_ij|; gamma = gamma_1^(m) (M6). The printed constants
    hold. "sharp" keeps the sums of the proof: with S = sum_{s < t} 1/sqrt(s+1) and H = sum_{s <= t} 1/s, gamma_1 - |z| (4 ln m
    + (6/16) H)/S - ln(n) growth/S.

    >>> from widemargin import theory
    >>> print(theory.ascent.frozen_ascent_margin(gamma=0.2, size=1.0, n=100, m=50, t=10**7, growth=1.0))
    CB-14: margin (M6) 0.17886, not all assumptions checked [CB Proposition 6, Proposition 16]
    """
    root = math.sqrt(t)
    if convention == "printed":
        value = gamma - size / root * (8 * math.log(m) + math.log(t) + 1) - 4 * math.log(n) / root * growth
    else:
        S, H = step_sums(t)
        value = gamma - size * (4 * math.log(m) + 6 / 16 * H) / S - math.log(n) * growth / S
    return Guarantee(
        "max_{s < t} min_i z_i . abar(s) >= gamma_1 - (|z|/sqrt t)(8 ln m + ln t + 1) - (4 ln n/sqrt t) growth",
        value,
        holding(steps, uniform, exponential),
        numbers={"gamma": gamma, "growth": growth, "t": t},
    )


def step_sums(t: int) -> tuple[float, float]:
    """sum_{s=1}^t s^(-1/2) and sum_{s=1}^t 1/s."""
    s = np.arange(1, int(t) + 1, dtype=np.float64)
    return float((s**-0.5).sum()), float((1 / s).sum())


@states("CB-16", "CB Lemmas 17, 18", quantity="norm")
@assuming("beta(t+1) is the update of Proposition 6")
def norm_growth(
    margins_passed: ArrayLike, size: Positive, log_beta_0: float = 0.0, *, update: Known = None
) -> Guarantee:
    """Along that ascent the norm beta grows at least like the exponential of the margins it passes.

    ln beta(t) >= ln beta(0) + 2 sum_{s < t} ln(1 + 2 eta(s) mu(s)), mu(s) = min_i z_i . abar(s), eta(s) = 1/(16 |z|
    sqrt(s+1)) (CB-16).

    beta(t+1) = beta(t) sum_j abar_j (1 + 2 eta g_j)^2 >= beta(t) (1 + 2 eta g . abar)^2, g = Z' p with p in the simplex, so g .
    abar >= mu >= -|z|. With margins near gamma_1 this is the lemma's ln beta >~ min(1, gamma_1) sqrt(t), whose constant is not
    given: about gamma_1 sqrt(t)/(2 |z|). The value is beta(t) itself; `margins_passed` (t,) are mu(0), mu(1), ...

    >>> from widemargin import theory
    >>> print(theory.ascent.norm_growth([0.0, 0.1, 0.15], size=1.0))
    CB-16: norm 1.0399, not all assumptions checked [CB Lemmas 17, 18]
    """
    mu = np.asarray(margins_passed, dtype=np.float64)
    if mu.ndim != 1 or (np.abs(mu) > size * (1 + 1e-9)).any():
        raise InputError("norm_growth: margins_passed must be mu(0), mu(1), ..., each between -size and size")
    eta = 1 / (16 * size * np.sqrt(np.arange(1, len(mu) + 1)))
    log_beta = log_beta_0 + 2 * float(np.log1p(2 * eta * mu).sum())
    return Guarantee(
        "ln beta(t) >= ln beta(0) + 2 sum_{s < t} ln(1 + 2 eta(s) mu(s))",
        from_log(log_beta),
        holding(update),
        numbers={"log_beta": log_beta, "t": len(mu)},
    )


@states("CB-18", "CB Proposition 7, Proposition 19", quantity="margin", unit="M7")
@assuming("steps eta(t) = beta(t) sqrt(2)/(|z| sqrt(t+1))", "r(0) = 0", "exponential loss", "gamma_2 > 0")
def output_ascent_margin(
    gamma: Positive,
    size: Positive,
    n: Count,
    t: Count,
    *,
    inverse_betas: Measured = None,
    steps: Known = None,
    zero: Known = None,
    exponential: Known = None,
) -> Guarantee:
    """Training the output layer alone, the best margin approaches the l2 max margin like 1/sqrt(t).

    max_{s < t} min_i z_i . abar(s) >= gamma_2 - (|z|/sqrt t)(2 sqrt 2 + sqrt(3) ln(n)/gamma_2), gamma_2 = gamma_2^(m) (M7,
    CB-18).

    With `inverse_betas` = sum_{s < t} 1/beta(s) of the run, the step before the last of the proof is used, which is sharper:
    gamma_2 - 2 sqrt 2 |z|/sqrt t - ln(n) inverse_betas/t. The printed value is in `numbers`.

    >>> from widemargin import theory
    >>> print(theory.ascent.output_ascent_margin(gamma=0.2, size=1.0, n=100, t=10**6))
    CB-18: margin (M7) 0.15729, not all assumptions checked [CB Proposition 7, Proposition 19]
    """
    root = math.sqrt(t)
    printed = gamma - size / root * (2 * math.sqrt(2) + math.sqrt(3) * math.log(n) / gamma)
    value = (
        printed if inverse_betas is None else gamma - 2 * math.sqrt(2) * size / root - math.log(n) * inverse_betas / t
    )
    return Guarantee(
        "max_{s < t} min_i z_i . abar(s) >= gamma_2 - (|z|/sqrt t)(2 sqrt 2 + sqrt(3) ln(n)/gamma_2)",
        value,
        holding(steps, zero, exponential, (gamma > 0, f"gamma_2 = {gamma:.6g}")),
        numbers={"printed": printed, "t": t},
    )


# ---------------------------------------------------------------- on a run


def _features(facts: Facts) -> np.ndarray | None:
    """z_ij / y_i (n, m), the output of neuron j at point i per unit of its share a_j, read off at r = e_j."""
    net = facts.net
    if net is None or facts.start is None or len(net.trained) != 1 or net.outputs > 1 or facts.n * net.m > MOST:
        return None
    (name,) = net.trained
    share = 1 / net.m if net.name == "frozen" or getattr(net, "mean_field", False) else 1.0
    W = {key: torch.as_tensor(np.array(value, dtype=np.float64))[None] for key, value in facts.start.items()}
    X = torch.as_tensor(np.array(facts.data.X))[None]
    columns = []
    for j in range(net.m):
        unit = torch.zeros_like(W[name])
        unit[0, j] = 1
        columns.append(net.forward(W | {name: unit}, X)[0].numpy() / share)
    return np.column_stack(columns)


def simplex_margin(Z: np.ndarray) -> float:
    """A lower bound, by the weights found, on gamma_1^(m) = max over the simplex of min_i z_i . a, Z with labels in it (n, m)."""
    a = best_mixture(Z)
    return -math.inf if a is None else float((Z @ a).min())


def replay(Z: np.ndarray, t: int, r0: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """beta(s) and min_i z_i . abar(s), s < t, of the ascent of Proposition 6 from r = r0; Z has the labels in it (n, m)."""
    m = Z.shape[1]
    size, a = np.abs(Z).max(), np.full(m, r0**2 / m)
    betas, passed = np.empty(t), np.empty(t)
    for s in range(t):
        p = Z @ a
        betas[s], passed[s] = a.sum(), p.min() / a.sum()
        q = np.exp(p.min() - p)
        a = a * (1 + 2 * (q @ Z) / q.sum() / (16 * size * math.sqrt(s + 1))) ** 2
    return betas, passed


def _ascent(facts: Facts, rule: str) -> tuple[np.ndarray, int, np.ndarray, dict[str, Any]] | None:
    """Signed features (n, m), the number of steps, the weights at the start, and hypotheses, of a run by this rule."""
    steps = facts.last("step") if facts.rule.get("class") == rule else None
    H = _features(facts) if steps else None
    if H is None or steps is None:
        return None
    start = np.asarray(next(facts.start[name] for name in facts.net.trained))  # type: ignore[index,union-attr]
    keys = {"steps": facts.rule.get("lr") == 1, "exponential": facts.loss == "exp"}
    return H * facts.data.signs()[:, None], int(steps), start, keys


@applied("CB-14", partial(_ascent, rule="NeuronNormAscent"), two_classes=True)
def _frozen_ascent_on(facts: Facts, Z: np.ndarray, t: int, r: np.ndarray, keys: dict[str, Any]) -> Guarantee | None:
    gamma, size = simplex_margin(Z), float(np.abs(Z).max())
    if not gamma > 0 or t * Z.size > 1000 * MOST:
        return None
    betas, _ = replay(Z, t, float(np.abs(r[0])))
    growth = float((1 / (betas * np.sqrt(np.arange(1, t + 1)))).sum())
    return frozen_ascent_margin(gamma, size, len(Z), Z.shape[1], t, growth, uniform=bool(np.ptp(r) == 0), **keys)


@applied("CB-18", partial(_ascent, rule="OutputLayerAscent"), two_classes=True)
def _output_ascent_on(facts: Facts, Z: np.ndarray, t: int, r: np.ndarray, keys: dict[str, Any]) -> Guarantee | None:
    cert = margins.f2(facts.data, kernel=_gram(Z * facts.data.signs()[:, None]), time_limit=facts.time_limit)
    if not cert.lower > 0:
        return None
    return output_ascent_margin(cert.lower, float(np.abs(Z).max()), len(Z), t, zero=not r.any(), **keys)


def _gram(H: np.ndarray) -> np.ndarray:
    return H @ H.T / H.shape[1]
