"""The smallest norm of an interpolant in the kernel space F2."""

from __future__ import annotations

import math
import time

import numpy as np
from scipy import linalg

from widemargin.types import Certificate, Dataset

from . import _door

LARGEST = float(np.finfo(np.float64).max)


def min_norm_l2(data: Dataset, *, bias: bool = False, activation: str = "relu", tol: float = 1e-6) -> Certificate:
    """Smallest F2 norm of a function with f(x_i) = y_i, k the random feature kernel of a uniform probability measure.

        norm = min { ||f|| : f(x_i) = y_i } = sqrt(y' k^-1 y) = max_b  y.b / sqrt(b' k b)

    `dual` holds b: the interpolant is f = sum_j b_j k(x_j, .), and by the last form any b bounds the norm from below.
    The upper bound is the norm of that f plus the cost ||y - k b|| / sqrt(smallest eigenvalue of k) of its residual.
    Status "no-interpolation": k is singular and y is not in its range (the norm is infinite, `upper` the largest
    float); status "rounding": k is too close to singular for an upper bound within tol.

    Reference: Wei, Lee, Liu and Ma (2019), (D.4) and Claim D.8, whose ||alpha||_2 is this over sqrt(vol of the sphere).
    """
    space = _door.as_space(bias, activation)
    labels = Dataset(data.X, np.ones(data.n), data.name)  # the targets are any numbers here
    door = _door.enter(labels, space, tol, None)
    keep, clash = _distinct(door.X, data.y)
    X, y = door.X[keep], data.y[keep]
    k = _door.as_space(False, activation).kernel(X)
    n, D, degree = len(X), X.shape[1], space.degree
    bound = door.size[keep] ** degree / np.sqrt(
        2 * D if degree == 1 else 2 * D * (D + 2) / 3
    )  # |k_ij| <= bound_i bound_j
    blur = _door.EPS * (2 * D + 25) * degree * 2
    scale = float(np.abs(y).max()) or 1.0
    target = y / scale
    values, vectors = linalg.eigh(k, check_finite=False)
    noise = _door.EPS * n * float(bound @ bound) + blur * float(bound @ bound)  # of the eigenvalues
    smallest = float(values[0]) - noise
    coefficients = vectors.T @ target
    good = values > 4 * noise if smallest <= 0 else np.ones(n, bool)
    b = vectors[:, good] @ (coefficients[good] / values[good])
    for _ in range(2):  # refinement
        b = b + vectors[:, good] @ (vectors[:, good].T @ (target - k @ b) / values[good])
    outside = float(np.linalg.norm(coefficients[~good]))
    upper = lower = 0.0
    status, reason, proved = "certified", "", True
    if not target.any():
        b = np.zeros(n)
    elif clash or outside > 1e-6 * float(np.linalg.norm(target)):
        if not clash:  # b far out along the component of y that k cannot reach
            b = b + vectors[:, ~good] @ (coefficients[~good] / np.maximum(values[~good], noise))
        lower, upper, status = _lower(k, bound, blur, b, target), LARGEST, "no-interpolation"
        reason = clash or "the kernel matrix is singular and y is not in its range, up to rounding"
    else:
        lower = _lower(k, bound, blur, b, target)
        proved = smallest > 0
        if proved:
            kb, e = _door.product(k, b)
            error = (e + blur + 8 * _door.EPS) * float(np.abs(b) @ bound) * bound
            residual = float(np.linalg.norm(np.abs(target - kb) + error + _door.EPS * np.abs(target)))
            square = (
                max(float(b @ kb), 0.0) + 2 * float(np.abs(b) @ error) + _door.EPS * n * float(np.abs(b) @ np.abs(kb))
            )
            upper = (float(np.sqrt(square)) + residual / float(np.sqrt(smallest))) * (1 + 16 * _door.EPS)
        else:
            upper = float(np.sqrt(max(float(b @ (k @ b)), 0.0)))
            upper = max(upper, lower)
        if not proved or lower < (1 - tol) * upper:
            status, reason = "rounding", "the kernel matrix is too close to singular to prove more in float64"
    power = -degree * door.shift  # the norm scales like y and like X^-degree
    dual = np.zeros(data.n)
    dual[keep] = np.ldexp(b, 2 * power) * scale
    return Certificate(
        kind="l2-regression",
        lower=_scaled(max(lower, 0.0), scale, power, up=False),
        upper=_scaled(upper, scale, power, up=True),
        dual=dual,
        status=status,
        proved=proved,
        bound="dual",
        n=data.n,
        d=data.d,
        bias=bias,
        activation=activation,
        convention="M7",
        data_sha256=data.sha256(),
        data_name=data.name,
        reason=reason,
        proof={"type": "dual"},
        stats={"seconds": time.perf_counter() - door.started, "seed": None, "smallest_eigenvalue": smallest},
    )


def _distinct(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, str]:
    """Indices of the different points, and a sentence if equal points (or the origin) have incompatible targets."""
    keep: list[int] = []
    first: dict[bytes, int] = {}
    clash = ""
    for i, row in enumerate(X + 0.0):
        j = first.setdefault(row.tobytes(), i)
        if not row.any():
            clash = clash or (
                f"point {i} is the origin, where every function vanishes, but its target is not 0" if y[i] else ""
            )
        elif i == j:
            keep.append(i)
        elif y[i] != y[j]:
            clash = clash or f"points {j} and {i} are equal but have different targets"
    return np.array(keep, dtype=int), clash


def _lower(k: np.ndarray, bound: np.ndarray, blur: float, b: np.ndarray, y: np.ndarray) -> float:
    """At most y.b / sqrt(b' k b), rounding included."""
    kb, e = _door.product(k, b)
    mean = float(np.abs(b) @ bound)
    square = float(b @ kb) + (2 * (e + blur + 8 * _door.EPS) + _door.EPS * len(b)) * mean * mean
    if square <= 0:
        return 0.0
    inner = float(y @ b) - _door.EPS * (len(b) + 4) * float(np.abs(y) @ np.abs(b))
    return float(inner / np.sqrt(square) * (1 - np.sign(inner) * 8 * _door.EPS))


def _scaled(value: float, factor: float, power: int, up: bool) -> float:
    """value * factor * 2^power, rounded outward."""
    if value in (0, LARGEST):
        return value
    mantissa, exponent = math.frexp(factor)
    result = float(np.ldexp(value * mantissa * (1 + (4 if up else -4) * _door.EPS), exponent + power))
    return math.nextafter(result, math.inf if up else 0.0)
