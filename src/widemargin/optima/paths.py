"""Certified optima along decreasing decays, each begun with the network of the one before."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from widemargin.dataset import takes_data
from widemargin.errors import brief
from widemargin.kinds import labels_for_loss
from widemargin.margins.answers import finish
from widemargin.margins.door import Progress, check_progress
from widemargin.margins.multiclass import margins
from widemargin.types import Certificate, Dataset, InputError, check_device, show

from .largest import largest_decay
from .losses import CLASSES, named
from .outputs import cross_entropy
from .problem import enter
from .wide_networks import solver, threads_for

DEEPEST = 1e-3  # of the largest decay: where a path of a given number of decays ends
MOST = 10_000
COLUMNS = ("weight_decay", "lower", "upper", "loss", "norm", "margin", "error", "neurons")


@dataclass(frozen=True)
class Point:
    """The certified optimum at one decay, and what its network does on the data.

    `margin` is min_i y_i f(x_i) / norm, the output bias included in f, and `error` the share (by weight) of points on the wrong
    side or on neither; of several classes y f is the own output minus the largest other one. Both are nan where the targets are
    no labels, and `margin` where the network is constant.

    `certificate` is that of `optima.f1` at `weight_decay`, `loss` the mean loss of its network, and `norm` the |f| that is
    decayed, sum_j |a_j| |v_j|.

    >>> import widemargin as wm
    >>> one = wm.Dataset([[3.0, 4.0]], [1.0])  # at decay 1 the network's value is 1 - 1 / |x| = 0.8
    >>> (point,) = wm.optima.path(one, [1.0], loss="squared", bias=False, output_bias=None, tol=1e-6)
    >>> round(point.loss, 3), round(point.norm, 3)
    (0.02, 0.16)
    """

    certificate: Certificate
    weight_decay: float
    loss: float  # mean loss
    norm: float  # sum_j |a_j| |v_j|
    margin: float
    error: float

    __repr__ = brief

    @property
    def lower(self) -> float:
        """No network has a smaller objective."""
        return self.certificate.lower

    @property
    def upper(self) -> float:
        """The objective of the network."""
        return self.certificate.upper

    @property
    def neurons(self) -> int:
        """Of the network."""
        return self.certificate.atoms

    def summary(self) -> dict[str, Any]:
        """What `widemargin fit --json` prints."""
        kept = self.certificate.extra
        own = ("weight_decay", "loss", "output_bias", "offset")
        return (
            self.certificate.summary()
            | {key: kept[key] for key in own}
            | {
                "mean_loss": self.loss,
                "norm": self.norm,
                "margin": self.margin,
                "error": self.error,
            }
        )


@dataclass(frozen=True)
class Path(Sequence[Point]):
    """Points from the largest decay to the smallest. `column("norm")` is an array along it.

    `more` are columns that others have put beside it (`beside`), such as the margins that
    `theory.regularization.guaranteed_along` guarantees.

    It is a sequence of its `points`; columns are (k,) for k points.

    >>> import widemargin as wm
    >>> one = wm.Dataset([[3.0, 4.0]], [1.0])
    >>> along = wm.optima.path(one, [0.1, 1.0], loss="squared", bias=False, output_bias=None, tol=1e-6)
    >>> along.column("weight_decay").tolist(), along.column("norm").round(3).tolist()  # (1 - decay / |x|) / |x|
    ([1.0, 0.1], [0.16, 0.196])
    """

    points: tuple[Point, ...]
    more: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    __repr__ = brief

    def __len__(self) -> int:
        return len(self.points)

    def __iter__(self) -> Iterator[Point]:
        return iter(self.points)

    @overload
    def __getitem__(self, index: int) -> Point: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Point]: ...
    def __getitem__(self, index: int | slice) -> Point | Sequence[Point]:
        return self.points[index]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns."""
        return (*COLUMNS, *self.more)

    def column(self, name: str) -> np.ndarray:
        """One column, a number for each point: (k,)."""
        if name not in self.names:
            raise InputError(f"a path has the columns {', '.join(self.names)}, not {show(name)}")
        values = self.more[name] if name in self.more else [getattr(point, name) for point in self.points]
        return np.array(values, dtype=np.float64)

    def columns(self) -> dict[str, np.ndarray]:
        """All of them by name: what `plots.path` draws."""
        return {name: self.column(name) for name in self.names}

    def beside(self, **columns: ArrayLike) -> Path:
        """The path with further columns, a number for each point."""
        added = {}
        for name, values in columns.items():
            array = np.asarray(values, dtype=np.float64)
            if name in COLUMNS or array.shape != (len(self),):
                raise InputError(
                    f"{name} must have {len(self)} numbers, one for each point, and a name that is not taken"
                )
            added[name] = tuple(array.tolist())
        return replace(self, more={**self.more, **added})

    def __str__(self) -> str:
        columns = [[name, *(f"{value:.5g}" for value in self.column(name))] for name in self.names]
        return "\n".join("  ".join(f"{cell:>12}" for cell in row) for row in zip(*columns))


@takes_data(labels_for_loss)
def path(
    data: Dataset,
    decays: int | ArrayLike = 20,
    *,
    loss: str = "logistic",
    bias: bool = False,
    output_bias: str | None = "free",
    weights: ArrayLike | None = None,
    tol: float = 1e-3,
    time_limit: float | None = 60.0,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Path:
    """`optima.f1` at many decays, from the largest to the smallest, each begun with the network of the one before.

    `decays`: positive numbers, or how many; a number of them are log-spaced between the largest decay, at which the best network
    is constant, and a thousandth of it (that end included). Every point has a certificate of its own, to `tol`, with
    `time_limit` seconds for it. Ctrl-C ends the path: its last point then has the status "interrupted".

    `decays` (k,); `loss`, `bias`, `output_bias` and `weights` (n,) are those of `optima.f1`.

    >>> import widemargin as wm
    >>> one = wm.Dataset([[3.0, 4.0]], [1.0])
    >>> along = wm.optima.path(one, 3, loss="squared", bias=False, output_bias=None)
    >>> len(along), abs(along[-1].weight_decay / 0.005 - 1) < 1e-2, along[0].norm < along[-1].norm
    (3, True, True)
    """
    check_device(device)
    check_progress(progress)
    keys: dict[str, Any] = {"loss": loss, "bias": bias, "output_bias": output_bias, "weights": weights}
    points: list[Point] = []
    for decay in _decays(data, decays, keys | {"time_limit": time_limit, "seed": seed, "device": device}):
        entered = enter(data, loss, decay, bias, output_bias, weights, tol, time_limit)
        with threads_for(entered):
            started = solver(entered, tol, seed, device, _named(progress, decay))
            if points:
                started.continue_from(points[-1].certificate)
            points.append(point(finish(started.run(), data, tol), data))
        if points[-1].certificate.status == "interrupted":
            break
    return Path(tuple(points))


def _decays(data: Dataset, decays: int | ArrayLike, keys: dict[str, Any]) -> list[float]:
    """Largest first, each once."""
    if isinstance(decays, int | np.integer) and not isinstance(decays, bool):
        if not 1 <= decays <= MOST:
            raise InputError(f"decays must be numbers, or how many, from 1 to {MOST}, not {show(decays)}")
        if isinstance(keys["output_bias"], str) and keys["output_bias"] == "decayed":
            raise InputError(
                "with a decayed output bias there is no largest decay to begin with; give the decays themselves"
            )
        top = largest_decay(data, **keys).lower
        if not top > 0:
            raise InputError(
                f"{data.name}: the best network is constant at every decay, or the time was over before another was found; "
                "there is no path"
            )
        return [float(v) for v in top * np.geomspace(1, DEEPEST, int(decays) + 1)[1:]]
    try:
        values = np.asarray(decays, dtype=np.float64)
    except Exception:  # objects may raise anything
        values = np.zeros(0)
    if values.ndim != 1 or not len(values) or not (np.isfinite(values) & (values > 0)).all():
        raise InputError("decays must be a list of positive numbers, or how many")
    if len(values) > MOST:
        raise InputError(f"decays must be at most {MOST}, not {len(values)}")
    return sorted({float(v) for v in values}, reverse=True)


def _named(progress: Progress | None, decay: float) -> Progress | None:
    if progress is None:
        return None
    return lambda seconds, lower, upper, message: progress(seconds, lower, upper, f"decay {decay:.4g}: {message}")


def point(cert: Certificate, data: Dataset) -> Point:
    """What the function of a certificate does on its data. In the kernel space `norm` is |f|, and nothing has neurons."""
    kept = cert.extra
    if kept["loss"] == CLASSES or data.y.ndim == 2:
        return _point_of_several(cert, data)
    weights, offset = kept.get("weights"), float(kept.get("offset", 0.0))
    w = np.ones(data.n) if weights is None else np.asarray(weights, dtype=np.float64)
    network = cert.primal
    if cert.kind == "f2-optimum":
        t = cert.function(data.X, data)
        norm = math.sqrt(max(0.0, float(np.asarray(kept["alpha"], dtype=np.float64) @ (t - offset))))
    else:
        t = np.full(data.n, offset) + (network(data.X) if network is not None and cert.atoms else 0.0)
        norm = norm_of(cert)
    total, decay = math.fsum(w), float(kept["weight_decay"])
    mean = float(w @ named(kept["loss"]).value(data.y, t)) / total
    if not np.isin(data.y, (-1.0, 1.0)).all():
        return Point(cert, decay, mean, norm, math.nan, math.nan)
    score = data.y * t
    margin = float(score[w > 0].min()) / norm if norm > 0 else math.nan
    return Point(cert, decay, mean, norm, margin, float(w @ (score <= 0)) / total)


def norm_of(cert: Certificate) -> float:
    """sum_j |a_j| |v_j| of the network of a certificate, of one output or several."""
    if cert.primal is not None or not cert.atoms:
        return cert.primal.norm if cert.primal is not None and cert.atoms else 0.0
    theta, outer = (np.asarray(cert.extra[name], dtype=np.float64) for name in ("theta", "outer"))
    return float(np.linalg.norm(theta, axis=1) @ np.linalg.norm(outer, axis=1))


def _point_of_several(cert: Certificate, data: Dataset) -> Point:
    kept, norm = cert.extra, norm_of(cert)
    t = cert.function(data.X)  # (n, K)
    w = np.ones(data.n) if kept.get("weights") is None else np.asarray(kept["weights"], dtype=np.float64)
    decay, total = float(kept["weight_decay"]), math.fsum(w)
    if data.y.ndim == 2:
        losses = 0.5 * ((data.y - t) ** 2).sum(axis=1)
        return Point(cert, decay, float(w @ losses) / total, norm, math.nan, math.nan)
    y = data.y.astype(np.int64)
    score = margins(t, y)
    margin = float(score[w > 0].min()) / norm if norm > 0 else math.nan
    mean, error = (float(w @ v) / total for v in (cross_entropy(t, y), score <= 0))
    return Point(cert, decay, mean, norm, margin, error)
