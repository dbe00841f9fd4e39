"""How far a trained network is from the least objective of any network."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from widemargin.dataset import takes_data_second
from widemargin.kinds import labels_for_loss
from widemargin.margins.answers import finish
from widemargin.margins.door import check_data
from widemargin.margins.engine import Progress
from widemargin.margins.models import layers
from widemargin.types import Certificate, Dataset, InputError, Measure, check_device, show

from .problem import SeveralProblem, enter
from .solver import Solver
from .wide_networks import solver, threads_for

TRAINED = ("objective", "loss", "balanced", "width")  # of the network, in extra["trained"] of the certificate
ROUNDING = 1e-12  # of an objective: less above the best that was found is nothing
EXACT = 1e15  # a number from here on has all its digits before the point, and some of them are not its own
NOTHING = 1e-5  # and this is not worth a word beside a gap that is a hundred times as large


@dataclass(frozen=True)
class Gap:
    """A network's objective and the least one of any width: certificate.lower <= least <= certificate.upper.

    `objective` is mean loss + (weight_decay / 2) |parameters|^2 of the network, `loss` the mean loss in it, `balanced` the
    objective at the best scaling of every neuron's two layers, and `width` the number of its neurons. `above` and `at_least`
    enclose how far it is from the least, as a share of it.

    >>> import torch
    >>> import widemargin as wm
    >>> net = {"0.weight": torch.tensor([[0.6, 0.8]]), "2.weight": torch.tensor([[0.16]])}  # the best one, but not balanced
    >>> found = wm.optima.gap(net, [[3.0, 4.0]], [1.0], loss="squared", weight_decay=1.0)
    >>> found.width, round(found.balanced, 4), found.unbalanced > 0.1
    (1, 0.18, True)
    """

    objective: float  # mean loss + (weight_decay / 2) |parameters|^2
    loss: float  # the mean loss in it
    balanced: float  # the objective at the best scaling of every neuron's two layers: the same function
    width: int
    certificate: Certificate

    @property
    def above(self) -> float:
        """(objective - lower) / lower: the objective is at most this share above the least."""
        return _over(self.objective, self.certificate.lower)

    @property
    def at_least(self) -> float:
        """(objective - upper) / upper: and at least this share, as there is a network that has `upper`."""
        return max(0.0, _over(self.objective, self.certificate.upper))

    @property
    def unbalanced(self) -> float:
        """(objective - balanced) / lower: what of `above` is due to unbalanced layers alone."""
        return (
            max(0.0, self.above - _over(self.balanced, self.certificate.lower)) if self.certificate.lower > 0 else 0.0
        )

    def summary(self) -> dict[str, Any]:
        """What `widemargin gap --json` prints."""
        own = ("objective", "loss", "balanced", "width", "above", "at_least", "unbalanced")
        kept = {name: self.certificate.extra[name] for name in ("weight_decay", "loss", "output_bias")}
        return {name: getattr(self, name) for name in own} | {"certificate": self.certificate.summary() | kept}

    def __str__(self) -> str:
        lower, upper = self.certificate.lower, self.certificate.upper
        # Four digits, or as many as two digits of the distance take; bounds are rounded outward.
        places = 3 - math.floor(math.log10(upper)) if upper > 0 else 4
        if 0 < self.objective - lower < lower:
            places = max(places, min(1 - math.floor(math.log10(self.objective - lower)), places + 8))
        low, high = _rounded(lower, places, ROUND_FLOOR), _rounded(upper, places, ROUND_CEILING)
        said = f"objective {_rounded(self.objective, places)}; the best of any width is between {low} and {high}"
        if not lower > 0:
            return said
        least, most = _percent(self.at_least), _percent(self.above)
        if self.at_least <= max(ROUNDING, min(NOTHING, 0.01 * self.above)):
            said += f": at most {_percent(self.above, ROUND_CEILING)} % above"
        elif least == most:
            said += f": {least} % above"
        else:
            least, most = _percent(self.at_least, ROUND_FLOOR), _percent(self.above, ROUND_CEILING)
            said += f": between {least} % and {most} % above"
        share = _percent(_over(self.balanced, lower), ROUND_CEILING)
        less = share != _percent(self.above, ROUND_CEILING)
        return f"{said}, and at most {share} % if its layers were balanced" if less else said


def _over(value: float, best: float) -> float:
    if best > 0:
        return (value - best) / best
    return math.inf if value > 0 else 0.0


def _rounded(value: float, places: int, way: str | None = None) -> str:
    if not math.isfinite(value):
        return str(value)
    if not -12 < places < 16 or abs(value) >= EXACT:
        return f"{Context(prec=6, rounding=way).create_decimal(value).normalize():g}"
    number = Decimal(value).quantize(Decimal(1).scaleb(-max(places, 0)), rounding=way)
    return f"{number:f}"


def _percent(share: float, way: str | None = None) -> str:
    """Two digits, or all before the point."""
    value = 100 * max(share, 0.0)
    if not 1e-12 < value < 1e6:
        return f"{value:.2g}"
    return _rounded(value, max(0, 1 - math.floor(math.log10(value))), way)


@takes_data_second(labels_for_loss)
def gap(
    model: Any,
    data: Dataset,
    *,
    loss: str = "logistic",
    weight_decay: float,
    output_bias: str | None = None,
    weights: ArrayLike | None = None,
    tol: float = 1e-3,
    time_limit: float | None = 60.0,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Gap:
    """How far a trained network is from the best of any width, both in `mean loss + (weight_decay / 2) |parameters|^2`.

    `model` is torch.nn.Sequential(Linear, ReLU, Linear) of any width, with or without biases, with one output, or for
    loss="cross-entropy" one for each class 0, ..., K-1 in y, or for loss="squared" one for each column of y; or the state dict
    of such a network, under any names, or a checkpoint that has it under "state_dict", "model_state_dict" or "model". Networks of
    the same form compete: with biases where it has some. `output_bias`: "decayed" (and None) where one weight_decay is for all
    parameters, which is the usual case; "free" where the last bias is not decayed. The losses are those of `optima.f1`, with
    labels of any two values, the larger of which is +1; "squared" is half of MSELoss, with K outputs K / 2 times MSELoss.

    `Gap.certificate` is that of `optima.f1`, whose network is never worse than this one. Its extra["trained"] keeps the other
    fields, so that a saved certificate still says how far the network was from the best.

    `data` is a Dataset, or X (n, d) and y (n,), or (n, K) of several targets, as arrays, lists, tensors or tables; `weights`
    (n,) are those of the points in the mean.

    >>> import torch
    >>> import widemargin as wm
    >>> net = {"0.weight": torch.tensor([[0.24, 0.32]]), "2.weight": torch.tensor([[0.4]])}
    >>> found = wm.optima.gap(net, [[3.0, 4.0]], [1.0], loss="squared", weight_decay=1.0)  # the least objective is 0.18
    >>> round(found.objective, 4), found.above < 2e-3
    (0.18, True)
    """
    check_data(data)
    check_device(device)
    net = layers(model)
    if data.d != net.W.shape[1]:
        raise InputError(
            f"the network takes {net.W.shape[1]} features, but X has {data.d}; give the X it was trained on"
        )
    if net.c is None and output_bias is not None:
        raise InputError(
            f"output_bias={show(output_bias)}, but the last layer of the network has no bias; leave it out"
        )
    mode = None if net.c is None else "decayed" if output_bias is None else output_bias
    entered = enter(data, loss, weight_decay, net.b is not None, mode, weights, tol, time_limit)
    K = entered.points.K if isinstance(entered, SeveralProblem) else 1
    if len(net.a) != K:
        several = (
            "" if K > 1 else "; for several outputs there are loss='cross-entropy', and loss='squared' with y (n, K)"
        )
        raise InputError(f"the network has {len(net.a)} outputs, but the loss {loss} needs {K} for this y{several}")

    bias = np.zeros(len(net.W)) if net.b is None else net.b
    c = np.zeros(K) if net.c is None else net.c
    with np.errstate(over="ignore", invalid="ignore"):
        t = (data.X @ net.W.T + bias).clip(0) @ net.a.T + c  # (n, K)
        if isinstance(entered, SeveralProblem):
            losses = np.ldexp(entered.points.losses(np.ldexp(t, -entered.power)), 2 * entered.power)
        else:
            losses = entered.loss.value(data.y, t[:, 0])
        mean = float(entered.w @ losses) / entered.total
        inner, outer = np.sqrt((net.W**2).sum(axis=1) + bias**2), np.linalg.norm(net.a, axis=0)
        ridge = 0.5 * entered.decay * float(c @ c) if mode == "decayed" else 0.0
        objective = mean + 0.5 * entered.decay * float(inner @ inner + outer @ outer) + ridge
        balanced = mean + entered.decay * float(inner @ outer) + ridge
    if not math.isfinite(objective):
        raise InputError("the objective of the network is not a finite number; it may have diverged in training")
    with threads_for(entered):
        search = solver(entered, tol, seed, device, progress)
        theta = net.W if net.b is None else np.hstack([net.W, net.b[:, None]])
        if isinstance(search, Solver):
            search.know(Measure.from_network(theta, net.a[0], bias=net.b is not None), float(c[0]))
        else:
            search.know(theta, net.a.T, c)
        cert = finish(search.run(), data, tol)
    comparison = Gap(objective, mean, min(balanced, objective), len(net.W), cert)
    kept = {name: getattr(comparison, name) for name in TRAINED}
    return replace(comparison, certificate=replace(cert, extra={**cert.extra, "trained": kept}))


def of(cert: Certificate) -> Gap | None:
    """The comparison that a certificate was made for, if it was made for one."""
    kept = cert.extra.get("trained")
    return None if kept is None else Gap(**{name: kept[name] for name in TRAINED}, certificate=cert)
