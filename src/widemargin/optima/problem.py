"""A training problem through the door: checked, and in units in which numbers are about 1 (docs/optima.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from widemargin.margins.door import Door, svd_work
from widemargin.margins.door import enter as through_the_door
from widemargin.margins.multiclass import class_numbers
from widemargin.pricing.points import reduce_rank, whitening
from widemargin.spaces import ReLU
from widemargin.types import Dataset, InputError, show

from .losses import Loss, is_classes, named
from .master import Points
from .outputs import ClassPoints, Outputs, TargetPoints

MODES = (None, "free", "decayed")
MANY = 2  # times as many columns as points: more are not taken for coordinates


@dataclass(frozen=True)
class Training:
    """X is divided by 2^door.shift, weights by 2^weight_power; then objectives are multiplied by the sum of the weights."""

    door: Door
    decay: float
    output_bias: str | None
    weights: np.ndarray | None  # as they were given
    w: np.ndarray  # (n,) as they are used
    weight_power: int

    @property
    def total(self) -> float:
        return math.fsum(self.w)

    def scaled(self, power: int = 0) -> tuple[float, float]:
        """Decays of masses and of an output bias, 0 for a free one, where the targets are divided by 2^power."""
        try:
            lam = self.total * math.ldexp(self.decay, -self.door.shift - power)
            ridge = self.total * self.decay
        except OverflowError:
            lam = ridge = math.inf
        if not (1e-250 < lam < 1e250 and 1e-250 < ridge < 1e250):
            name = self.door.data.name
            raise InputError(
                f"{name}: weight_decay={self.decay:g} is out of all proportion to the data; rescale X or y"
            )
        return lam, ridge if self.output_bias == "decayed" else 0.0

    def held(self, high: float) -> float:
        """An upper bound that can be written."""
        if not math.isfinite(high):
            raise InputError(f"{self.door.data.name}: the least objective is beyond what floats hold; rescale y")
        return high

    def about(self, loss: str, offset: float | list[float], power: int) -> dict[str, Any]:
        out: dict[str, Any] = {
            "loss": loss,
            "weight_decay": self.decay,
            "output_bias": self.output_bias,
            "offset": offset,
        }
        if abs(self.weight_power + power) > 1000:
            raise InputError(
                f"{self.door.data.name}: the sizes of weights and y are beyond what floats hold; rescale them"
            )
        out["scale"] = 2.0 ** (self.weight_power + power)
        return out if self.weights is None else out | {"weights": self.weights.tolist()}


@dataclass(frozen=True)
class Problem(Training):
    """Targets of the squared loss are divided by 2^power."""

    loss: Loss
    points: Points
    power: int

    def saved(self, b: float, power: int) -> dict[str, Any]:
        """What a certificate says about the problem, the output bias b of its network, and its weights, over 2^power."""
        return self.about(self.loss.name, math.ldexp(b, self.power), self.power + power)


@dataclass(frozen=True)
class SeveralProblem(Training):
    """Several outputs: classes, or targets, which are divided by 2^power."""

    points: Outputs
    power: int = 0

    def saved(self, offset: np.ndarray, power: int) -> dict[str, Any]:
        """What a certificate says about the problem, the output bias of its network in units of the data, and its weights."""
        return self.about(self.points.loss, offset.tolist(), self.power + power)


def coordinates(door: Door) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The points (n, r) in a basis (D, r) of their span, the basis, and their whitening, if they need it.

    Where there is no time to find the span, all coordinates are taken; and where these are far more than points, none (r = 0):
    then only networks without neurons are looked at, and one that is given (`along`).
    """
    n, D = door.X.shape
    if door.limits.affords(2 * svd_work(n, D)):
        X, basis = reduce_rank(door.X)
    elif MANY * n >= D:
        X, basis = np.ascontiguousarray(door.X), np.eye(D)
    else:
        X, basis = np.zeros((n, 0)), np.zeros((D, 0))
    r = X.shape[1]
    return X, basis, whitening(X) if r and door.limits.affords(svd_work(n, r)) else None


def along(door: Door, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The points (n, r) in a basis (D, r) of the span of neurons theta (m, D), and the basis."""
    basis = np.linalg.qr(theta.T)[0]
    return door.X @ basis, basis


def enter(
    data: Dataset,
    loss: str,
    weight_decay: float,
    bias: bool,
    output_bias: str | None,
    weights: ArrayLike | None,
    tol: float,
    time_limit: float | None,
) -> Problem | SeveralProblem:
    training = setting(data, weight_decay, bias, output_bias, weights, tol, time_limit)
    if is_classes(loss):
        return of_classes(training)
    return of_targets(training, loss) if data.y.ndim == 2 else of_labels(training, loss)


def of_labels(training: Training, loss: str) -> Problem:
    """One output: labels -1 and +1, or targets of the squared loss."""
    data, chosen = training.door.data, named(loss)
    data.single()
    if chosen.labels and not np.isin(data.y, (-1.0, 1.0)).all():
        raise InputError(f"{data.name}: the loss {loss} needs labels -1 and +1, but y {_instead(data.y)}")
    alike = len(np.unique(data.y[training.w > 0])) == 1
    if alike and chosen.name in ("logistic", "exp") and training.output_bias == "free":
        raise InputError(
            f"{data.name}: all labels are equal, and with a free output bias the loss {loss} has no minimum; "
            "use output_bias=None or 'decayed'"
        )
    power = 0 if chosen.labels else _power(float(np.abs(data.y).max()) or 1.0)
    lam, ridge = training.scaled(power)
    points = Points(np.ldexp(data.y, -power), training.w, lam, training.output_bias is not None, ridge)
    return Problem(**vars(training), loss=chosen, points=points, power=power)


def _instead(y: np.ndarray) -> str:
    """What y has that are no labels -1 and +1, and what to do about it."""
    values = np.unique(y)
    if len(values) == 1:  # any two values are labels, but of one alone nobody can say which
        return f"has {values[0]:g}, and nothing else; give 2 * y - 1 where 0 and 1 are the labels"
    return (
        f"has {len(values)} other values; choose two classes, or loss='squared' for targets, "
        "or loss='cross-entropy' for classes 0, ..., K-1"
    )


def of_classes(training: Training) -> SeveralProblem:
    """One output for each class, and the cross-entropy."""
    data = training.door.data
    y, K = class_numbers(data)
    heard = np.bincount(y, training.w, K)
    if training.output_bias == "free" and not heard.all():
        raise InputError(
            f"{data.name}: class {int(heard.argmin())} has no point of positive weight, and with a free output bias there is no "
            "minimum; leave the class out, or use output_bias=None or 'decayed'"
        )
    lam, ridge = training.scaled()
    points = ClassPoints(y, K, training.w, lam, training.output_bias is not None, ridge)
    return SeveralProblem(**vars(training), points=points)


def of_targets(training: Training, loss: str) -> SeveralProblem:
    """Several real targets for each point, and the squared loss."""
    data = training.door.data
    if named(loss).labels:
        raise InputError(
            f"{data.name}: y has {data.y.shape[1]} columns, and the loss {loss} needs one label for each point; "
            "loss='squared' takes several targets"
        )
    power = _power(float(np.abs(data.y).max()) or 1.0)
    lam, ridge = training.scaled(power)
    points = TargetPoints(np.ldexp(data.y, -power), training.w, lam, training.output_bias is not None, ridge)
    return SeveralProblem(**vars(training), points=points, power=power)


def setting(
    data: Dataset,
    weight_decay: float,
    bias: bool,
    output_bias: str | None,
    weights: ArrayLike | None,
    tol: float,
    time_limit: float | None,
) -> Training:
    """What all losses have in common."""
    try:
        decay = float(weight_decay)
    except Exception:  # objects may raise anything
        decay = math.nan
    if isinstance(weight_decay, bool) or not 0 < decay < math.inf:
        none = "; without decay there is no best network, see Limits in docs/optima.md" if decay == 0 else ""
        raise InputError(f"weight_decay must be a positive number, not {show(weight_decay)}{none}")
    if not (output_bias is None or isinstance(output_bias, str)) or output_bias not in MODES:
        raise InputError(f"output_bias must be 'free', 'decayed' or None, not {show(output_bias)}")
    if not isinstance(bias, bool | np.bool_):
        raise InputError(f"bias must be True or False, not {show(bias)}")
    door = through_the_door(data, ReLU(bias=bool(bias)), tol, time_limit, signs=False, several=True)
    w, given = _weights(data, weights)
    weight_power = _power(float(w.max()))
    return Training(door, decay, output_bias, given, np.ldexp(w, -weight_power), weight_power)


def _power(value: float) -> int:
    """The least k with value <= 2^k."""
    mantissa, power = math.frexp(value)
    return power - (mantissa == 0.5)


def _weights(data: Dataset, weights: ArrayLike | None) -> tuple[np.ndarray, np.ndarray | None]:
    """(n,) weights to work with, and those that were given."""
    if weights is None:
        return np.ones(data.n), None
    try:
        w = np.asarray(weights, dtype=np.float64).copy()  # a tensor warns where np.array is to copy it
    except Exception:  # objects may raise anything
        raise InputError(f"{data.name}: weights must be numbers, one for each point") from None
    if w.shape != (data.n,):
        raise InputError(f"{data.name}: weights must have shape ({data.n},), one for each point, not {w.shape}")
    if not np.isfinite(w).all() or (w < 0).any() or not w.any():
        raise InputError(f"{data.name}: weights must be finite, none negative and not all zero")
    if w[w > 0].min() < 1e-100 * w.max():
        raise InputError(f"{data.name}: weights differ by more than 1e100; set the tiny ones to zero")
    return w, w


def feasible(points: Points, loss: Loss, c: np.ndarray, b: float) -> list[np.ndarray]:
    """Weights c (n,) in the range of the loss, for a free output bias with a sum that is exactly 0.

    For a decayed one there are two: the sum as it is, and the one that an output bias b asks for. Rounding hurts the first where
    the decay is tiny, the second where it is huge.
    """
    low, high = loss.limits(points.y)
    with np.errstate(invalid="ignore"):
        c = np.where(
            points.w > 0, np.clip(c, np.where(low < 0, low * points.w, 0), np.where(high > 0, high * points.w, 0)), 0.0
        )
    if not points.offset or not c.any():
        return [c]
    before = [c] if points.ridge else []
    up, down, wanted = math.fsum(c[c > 0]), -math.fsum(c[c < 0]), points.ridge * b
    if up - down > wanted:
        c = np.where(c > 0, c * (max(0.0, down + wanted) / up if up else 0.0), c)
    else:
        c = np.where(c < 0, c * (max(0.0, up - wanted) / down if down else 0.0), c)
    if not c.any():
        return [*before, c]
    # On a grid of 52 bits sums of integers decide. What is left over is taken from the largest weights of the heavier side.
    grid = math.frexp(float(np.abs(c).max()))[1] - 52
    whole = np.trunc(np.ldexp(c, -grid)).astype(np.int64)
    left = sum(whole.tolist()) - round(math.ldexp(wanted, -grid))
    if abs(left) > 2**62:  # the output bias asks for more than these weights have
        return before or [np.zeros_like(c)]
    sign = 1 if left > 0 else -1
    order = np.argsort(-sign * whole, kind="stable")
    order = order[sign * whole[order] > 0]
    each, rest = divmod(abs(left), max(1, len(order)))
    whole[order] -= sign * each
    whole[order[:rest]] -= sign
    return [*before, np.ldexp(whole.astype(np.float64), grid)]
