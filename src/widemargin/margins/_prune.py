"""Caratheodory's theorem for networks: as few neurons as there are points."""

from __future__ import annotations

import time

import numpy as np
from scipy import linalg

from widemargin.types import Dataset, InputError, Measure

TINY = 2e-15  # singular values below this, relative to the largest, count as zero


def prune(measure: Measure, data: Dataset) -> Measure:
    """At most n atoms of `measure` with new masses: the same values on the data, and a norm that is no larger.

    While the columns s_j phi(theta_j . x_i) of the atoms are linearly dependent, sum_j c_j s_j phi(theta_j . x) = 0 on
    the data, moving the masses |m_j| along c or -c, whichever does not raise their sum, keeps the values until one
    mass is zero. Values are kept up to rounding: about 1e-12 of the norm times the largest point.

    Reference: Wei, Lee, Liu and Ma (2019), Lemma B.1 and Claim B.4.
    """
    unit = measure.normalized()
    if unit.theta.shape[1] != data.d + measure.bias:
        raise InputError(
            f"the measure has directions with {unit.theta.shape[1]} entries but the data need {data.d + measure.bias}"
        )
    columns = np.sign(unit.mass) * unit.features(data.X)  # (n, m)
    scale = np.abs(columns).max(initial=0.0) or 1.0
    mass = prune_masses(columns / scale, np.abs(unit.mass))
    keep = mass > 0
    return Measure(unit.theta[keep], (np.sign(unit.mass) * mass)[keep], unit.activation, unit.bias)


def prune_masses(Z: np.ndarray, mass: np.ndarray, deadline: float = np.inf) -> np.ndarray:
    """Masses a >= 0 with Z a = Z mass, sum a <= sum mass, and linearly independent columns of Z (n, m) where a > 0.

    At `deadline` (on time.perf_counter) it stops early: then more columns than needed may be left, and the rest holds.
    """
    start, target = mass.sum(), Z @ mass
    a = np.zeros(len(mass))
    held: list[int] = []
    for j in np.argsort(-mass, kind="stable"):  # the heaviest first: they are the likeliest to stay
        if mass[j] <= 0:
            continue
        a[j] = mass[j]
        held.append(int(j))
        while len(held) > len(Z) and time.perf_counter() < deadline:
            held = _move(a, held, linalg.qr(Z[:, held].T)[0][:, -1])  # orthogonal to all rows of Z
    while held and time.perf_counter() < deadline:  # at most n now, but they may still be dependent
        _, size, Vt = linalg.svd(Z[:, held], full_matrices=False)
        if size[-1] > TINY * size[0]:
            break
        held = _move(a, held, Vt[-1])
    for _ in range(2):  # what rounding moved is put back on the same atoms
        if not held or time.perf_counter() >= deadline:
            break
        change = linalg.lstsq(Z[:, held], target - Z @ a, cond=1e-13)[0]
        moved = a[held] + change
        if (moved < 0).any() or moved.sum() > start * (1 + 1e-12):
            break
        a[held] = moved
    return a


def lightest(Z: np.ndarray, mass: np.ndarray, deadline: float) -> np.ndarray:
    """Masses >= 0 with next to the same margin min_i (Z a)_i / sum a: of at most n columns of Z (n, m), and none next to 0."""

    def margin(a: np.ndarray) -> float:
        return float((Z @ a).min()) / float(a.sum()) if a.any() else -np.inf

    least = margin(mass)
    if Z.shape[1] > Z.shape[0]:
        pruned = prune_masses(Z, mass, deadline)
        mass = pruned if margin(pruned) >= least * (1 - 1e-9) else mass
    # Neurons that a cone program left with next to no mass only clutter the answer.
    for share in (1e-5, 1e-6, 1e-7, 1e-8, 1e-9):
        some = np.where(mass > share * mass.sum(), mass, 0.0)
        if margin(some) >= least * (1 - 1e-8):
            return some
    return mass


def _move(a: np.ndarray, held: list[int], c: np.ndarray) -> list[int]:
    """Move the masses a[held] > 0 along c, or -c if that is what lowers their sum, until one is zero; those left."""
    c = -c if c.sum() > 0 else c
    step = np.where(c < 0, a[held] / np.where(c < 0, -c, 1.0), np.inf)
    gone = int(step.argmin())
    a[held] = (a[held] + step[gone] * c).clip(0)
    a[held[gone]] = 0.0
    return [i for i in held if a[i] > 0]
