"""What is known about a data set and a trained network, computed when a theorem asks for it and only once."""

from __future__ import annotations

import contextlib
import inspect
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from widemargin.dataset import as_dataset, takes_data
from widemargin.errors import brief, show
from widemargin.spaces import extend
from widemargin.types import Certificate, Dataset, InputError, Measure, Trajectory

from ._rooms import flows, margins, torch
from .track import follow

if TYPE_CHECKING:
    from torch import Tensor

TIME_LIMIT = 60.0  # seconds for one margin


@dataclass(frozen=True)
class Facts:
    """Data, and optionally one trial of a run or a network with weights.

    `start` and `end` are parameters by name (arrays without the trial dimension). `data` is as the network sees it: with a
    bias, the constant coordinate is the last one of `data.X`, and all margins here are those of the extended points.

    `delta` is the probability with which bounds on the test error may fail. `net` is the network, `run` the run that it comes
    from and `trial` the number of the trial. Margins are computed with `seed`, each within `time_limit` seconds.
    Points are (n, d).

    >>> from widemargin import theory
    >>> from widemargin.types import Dataset
    >>> known = theory.Facts(Dataset([[2.0, 0.0], [-2.0, 0.0]], [1, -1]))
    >>> known.n, known.radius, round(known.margin("linear").lower, 6)
    (2, 2.0, 2.0)
    >>> known.unit.radius
    1.0
    """

    data: Dataset
    delta: float = 0.05
    net: flows.Net | None = None
    start: Mapping[str, np.ndarray] | None = None
    end: Mapping[str, np.ndarray] | None = None
    run: Trajectory | None = None
    trial: int = 0
    seed: int = 0
    time_limit: float = field(default=TIME_LIMIT, kw_only=True)
    _certs: dict[Any, Certificate | None] = field(default_factory=dict, init=False, compare=False, repr=False)

    # ------------------------------------------------------------ sizes

    __repr__ = brief

    @property
    def n(self) -> int:
        """Number of points."""
        return self.data.n

    @property
    def d(self) -> int:
        """Number of features, the bias coordinate included."""
        return self.data.d

    @property
    def m(self) -> int | None:
        """Number of neurons, None without a network."""
        return None if self.net is None else self.net.m

    @cached_property
    def radius(self) -> float:
        """max_i ||x_i||."""
        return float(np.linalg.norm(self.data.X, axis=1).max())

    @cached_property
    def two_classes(self) -> bool:
        """Whether all labels are -1 and +1."""
        return bool(np.isin(self.data.y, (-1.0, 1.0)).all())

    @cached_property
    def unit(self) -> Facts:
        """The same with every point divided by max ||x_i||, so that ||x|| <= 1; the network is dropped where that changes it."""
        if self.radius <= 1:
            return self
        inside = Dataset(self.data.X / self.radius, self.data.y, self.data.name)
        return Facts(inside, self.delta, seed=self.seed, time_limit=self.time_limit)

    # ------------------------------------------------------------ margins

    def margin(self, kind: str, **keys: Any) -> Certificate | None:
        """The certificate of a kind of `widemargin.margins` (f1, f2, linear, ntk, batchnorm, ...), or None if it failed."""
        key = (kind, *sorted((name, _hashable(value)) for name, value in keys.items()))
        if key not in self._certs:
            solver = getattr(margins, kind)
            if "time_limit" in inspect.signature(solver).parameters:
                keys.setdefault("time_limit", self.time_limit)
            cert = None
            with contextlib.suppress(InputError):
                cert = solver(self.data, **keys)
            self._certs[key] = cert
        return self._certs[key]

    def positive(self, kind: str) -> Certificate | None:
        """The certificate of a kind where it has a margin above 0."""
        cert = self.margin(kind)
        return None if cert is None or not cert.lower > 0 else cert

    @cached_property
    def measure(self) -> Measure | None:
        """The trained network as a measure on unit directions, if it is one."""
        return None if self.net is None or self.end is None else self.net.measure(self._batched(self.end), 0)

    @cached_property
    def p(self) -> np.ndarray | None:
        """Margins y_i f(x_i) (n,) of the trained network."""
        if self.net is None or self.end is None or self.net.outputs > 1:
            return None
        X = torch.as_tensor(np.array(self.data.X))[None]
        return self.data.signs() * self.net.forward(self._batched(self.end), X)[0].numpy()

    def normalized(self, convention: str) -> float | None:
        """min_i p_i over the size of the trained network in a convention (M1, M2, M4, ...), None where it has none."""
        if self.p is None:
            return None
        size = self.net.normalizers(self._batched(self.end)).get(convention)  # type: ignore[union-attr,arg-type]
        if size is None or not 0 < float(size[0]) < math.inf:  # 0 has no direction, and infinite ones are lost
            return None
        margin = float(self.p.min()) / float(size[0])
        return margin if math.isfinite(margin) else None

    # ------------------------------------------------------------ the run

    @property
    def loss(self) -> str | None:
        """The name of the loss, None without a run."""
        return None if self.run is None else self.run.config.get("loss")

    @property
    def rule(self) -> Mapping[str, Any]:
        """Class name and fields of the training rule, {} without a run."""
        return {} if self.run is None else self.run.config.get("rule", {})

    def last(self, name: str) -> float | None:
        """The last record of this name, None if there is none."""
        if self.run is None or name not in self.run.records:
            return None
        value = float(self.run.records[name][-1, self.trial])
        return value if math.isfinite(value) else None

    def _batched(self, W: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
        return {name: torch.as_tensor(np.array(value, dtype=np.float64))[None] for name, value in W.items()}


def _hashable(value: Any) -> Any:
    return value.tobytes() if isinstance(value, np.ndarray) else value


@takes_data("binary")
def facts(
    data: Dataset,
    run_or_net: Trajectory | str | Path | Measure | tuple[flows.Net, Mapping[str, np.ndarray]] | None = None,
    *,
    delta: float = 0.05,
    trial: int = 0,
    seed: int = 0,
    time_limit: float = TIME_LIMIT,
) -> Facts:
    """What is known of data (X (n, d), y (n,)) and of a trained network: what theorems are evaluated on.

    `run_or_net` is a Trajectory or run folder, of which `trial` is taken, or a pair (net, parameters), or a Measure (the network
    of a certificate), or None. `delta` is the probability with which bounds on the test error may fail. Margins are computed
    when they are asked for, with `seed` and within `time_limit` seconds each.

    >>> from widemargin import flows, theory
    >>> from widemargin.types import Dataset
    >>> data = Dataset([[1.0], [-1.0]], [1, -1])
    >>> run = flows.train(data, flows.TwoLayer(1, 4), flows.GD(), stop=5)
    >>> known = theory.facts(data, run)
    >>> known.m, known.loss, known.p.shape, known.rule["class"]
    (4, 'logistic', (2,), 'GD')
    """
    if not (isinstance(delta, Real) and 0 < delta < 1):
        raise InputError(f"delta must lie strictly between 0 and 1, not {show(delta)}")
    data = as_dataset(data)
    data.single()
    if run_or_net is None:
        return Facts(data, delta, seed=seed, time_limit=time_limit)
    if isinstance(run_or_net, Measure):
        return Facts(*_as_network(data, run_or_net, delta), seed=seed, time_limit=time_limit)
    if isinstance(run_or_net, tuple):
        pair = len(run_or_net) == 2 and isinstance(run_or_net[0], flows.Net) and isinstance(run_or_net[1], Mapping)
        if not pair:
            raise InputError(
                "a pair must be a network of widemargin.flows and its parameters by name: (net, {'a': ..})"
            )
        net, end = run_or_net
        return Facts(data, delta, net, None, dict(end), seed=seed, time_limit=time_limit)
    if not isinstance(run_or_net, Trajectory | str | os.PathLike):
        raise InputError(
            f"run_or_net must be a run (a Trajectory or its folder), a pair (net, parameters) or a Measure, not "
            f"{type(run_or_net).__name__}; the network of a certificate is its primal"
        )
    track = follow(run_or_net, data)
    if not 0 <= trial < track.run.trials:
        raise InputError(f"the run has trials 0 to {track.run.trials - 1}, not {trial}")
    seen = track.problem.X[min(trial, len(track.problem.X) - 1)].numpy()
    start = {name: value[trial].numpy() for name, value in track.start.items()}
    end = start | {name: value[trial] for name, value in track.run.final.items()}
    y = track.problem.y[min(trial, len(track.problem.y) - 1)].numpy()
    extended = Dataset(seen, y, data.name)
    return Facts(extended, delta, track.net, start, end, track.run, trial, seed, time_limit=time_limit)


def _as_network(
    data: Dataset, measure: Measure, delta: float
) -> tuple[Dataset, float, flows.Net, None, dict[str, np.ndarray]]:
    """A measure as a two-layer network, balanced where both of its layers count, on the points as it sees them."""
    X = extend(data.X, bias=measure.bias)  # (n, d) or (n, d + 1)
    if X.shape[1] != measure.theta.shape[1]:
        raise InputError(
            f"the network has neurons in {measure.theta.shape[1]} dimensions, the points have {X.shape[1]}"
        )
    unit = measure.normalized()
    size = np.abs(unit.mass) ** 0.5
    outer = np.sign(unit.mass) * (size if unit.space.degree == 1 else 1.0)
    net = flows.TwoLayer(X.shape[1], max(1, len(size)), activation=unit.activation)
    end = {"a": outer, "V": unit.theta * size[:, None]}
    if not len(size):  # the function 0
        end = {"a": np.zeros(1), "V": np.zeros((1, X.shape[1]))}
    return Dataset(X, data.y, data.name), delta, net, None, end
