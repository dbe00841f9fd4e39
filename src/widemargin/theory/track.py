"""A run as the checks see it: what was recorded, the data, and the parameters at every record where they were kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from widemargin.dataset import takes_data_second
from widemargin.errors import brief
from widemargin.types import Dataset, InputError, Trajectory, show

from ._rooms import flows, losses, names, torch

if TYPE_CHECKING:
    from torch import Tensor

NEEDED = ("step", "t_cb", "t_mean", "log_risk", "psi", "margin", "norm", "log_norm", "moved", "weights")
MOST, MOST_STEPS = 2e7, 5000  # numbers, and steps, up to which a run is made again


class _Fields(dict[str, Any]):
    def __missing__(self, key: str) -> Any:
        raise InputError(
            f"the run is damaged: its records are of a rule with {key}, which {self.get('class')} has not; train it again"
        )


@dataclass(frozen=True)
class Track:
    """T records of B trials. Arrays are (T, B, ...); what the run did not record is None.

    `run` is the run, `problem` its net on its data in float64 on the CPU, X (1, n, d) or (B, n, d) with the bias coordinate,
    `start` the parameters (B, ...) at the beginning, `sets` the data sets.

    >>> from widemargin import flows, theory
    >>> from widemargin.types import Dataset
    >>> data = Dataset([[1.0], [-1.0]], [1, -1])
    >>> run = flows.train(data, flows.TwoLayer(1, 4), flows.GD(), stop=5, trials=3, record=["weights", "risk"])
    >>> track = theory.follow(run, data)
    >>> track.rule, track.shape == (len(track.t), 3), track.p.shape == (*track.shape, 2)
    ('GD', True, True)
    """

    run: Trajectory
    problem: flows.Problem  # float64, on the CPU; X (1 or B, n, d), bias coordinate included
    start: Mapping[str, Tensor]  # parameters at the beginning (B, ...)
    sets: Sequence[Dataset] = ()

    __repr__ = brief

    @property
    def net(self) -> flows.Net:
        """The network."""
        return self.problem.net

    @property
    def n(self) -> int:
        """Number of points."""
        return self.problem.n

    @property
    def loss(self) -> str:
        """exp, logistic, ce or squared."""
        return self.run.config["loss"]

    @property
    def rule(self) -> str:
        """Class of the training rule: GradientFlow, GD, SGD, SmoothMarginAscent, ..."""
        return self.run.config["rule"]["class"]

    @property
    def options(self) -> Mapping[str, Any]:
        """Fields of the training rule; an InputError for one that it does not have."""
        return _Fields(self.run.config["rule"])

    @property
    def is_flow(self) -> bool:
        """Whether the run follows a gradient flow closely: the flow itself, or gradient descent (whose steps are finite)."""
        return self.rule in ("GradientFlow", "GD")

    @property
    def t(self) -> np.ndarray:
        """Steps or times (T,) of the records."""
        return self.run.t

    @property
    def shape(self) -> tuple[int, int]:
        """(T, B): numbers of records and of trials."""
        return len(self.run.t), self.run.trials

    def get(self, name: str) -> np.ndarray | None:
        """Record `name` (T, B, ...) if there is one."""
        return self.run.records.get(name)

    def known(self, name: str) -> Any:
        """Record `name`, or W, p or psi; None where the run did not keep what it takes."""
        return getattr(self, name) if name in ("W", "p", "psi") else self.get(name)

    def once(self, name: str, make: Callable[[Track], Any]) -> Any:
        """What `make` makes of the track, kept under `name`: as cached_property does it, which a frozen dataclass allows."""
        kept = f"_{name}"
        if kept not in self.__dict__:
            self.__dict__[kept] = make(self)
        return self.__dict__[kept]

    @cached_property
    def t_mean(self) -> np.ndarray:
        """The clock of the mean risk (T, B)."""
        return self.run["t_mean"]

    @cached_property
    def every_step(self) -> bool:
        """Whether every step was recorded, so that sums over steps are exact."""
        step = self.get("step")
        return step is not None and bool((np.diff(step, axis=0) <= 1).all())

    @cached_property
    def W(self) -> list[dict[str, Tensor]] | None:
        """Parameters (B, ...) at each record, where the run kept them (observe weights)."""
        kept = {name[2:]: values for name, values in self.run.records.items() if name.startswith("W_")}
        if not kept:
            return None
        rest = {name: value for name, value in self.start.items() if name not in kept}
        return [
            {**rest, **{k: torch.as_tensor(v[i], dtype=torch.float64) for k, v in kept.items()}}
            for i in range(len(self.t))
        ]

    @cached_property
    def p(self) -> np.ndarray | None:
        """Margins y_i f(x_i) (T, B, n) at each record, from the parameters."""
        if self.W is None or self.problem.loss is None or not len(self.t):
            return None
        with torch.no_grad():
            return np.stack([self.problem.margins(W).numpy() for W in self.W])

    @cached_property
    def reach(self) -> np.ndarray:
        """max(|x|, 1) of the longest point (B,), squared for squared ReLUs."""
        long = self.problem.X.norm(dim=2).amax(1).clamp_min(1).expand(self.shape[1]).numpy()
        return long ** (2 if getattr(self.net, "activation", "relu") == "srelu" else 1)

    @cached_property
    def summands(self) -> np.ndarray:
        """How large what is added to get a margin can be (T, B): sums over neurons may cancel, their rounding does not.

        |W|^L max(|x|, 1), squared for squared ReLUs, bounds sums of absolute values for every net that is homogeneous.
        """
        if self.W is not None:
            size = np.stack([self.net.norm2(W).numpy() for W in self.W]) ** (self.net.degree / 2)
        else:
            size = (
                np.exp(self.net.degree * self.run["log_norm"])
                if "log_norm" in self.run.records
                else np.zeros(self.shape)
            )
        return size * self.reach

    def of_p(self, function: Any) -> np.ndarray | None:
        """A function of `flows.losses` such as psi, log_Q, log_G at every record (T, B)."""
        return None if self.p is None else function(self.problem.loss, torch.as_tensor(self.p)).numpy()

    @cached_property
    def psi(self) -> np.ndarray | None:
        """The smooth margin l^{-1}(sum_i l(p_i)) (T, B)."""
        kept = self.get("psi")
        return kept if kept is not None else self.of_p(losses.psi)

    @cached_property
    def log_risk(self) -> np.ndarray:
        """ln of the mean loss (T, B)."""
        return self.run["log_risk"]

    @cached_property
    def fitted(self) -> np.ndarray:
        """Where the mean risk is below l(0)/n (T, B). A flow stays there; steps of finite size need not."""
        if self.problem.loss is None:
            return np.zeros(self.shape, bool)
        return self.log_risk < np.log(self.problem.loss.at_zero / self.n)


@takes_data_second("values")
def follow(
    run: Trajectory | str | os.PathLike[str],
    data: Dataset | Sequence[Dataset] | None = None,
    net: flows.Net | None = None,
) -> Track:
    """The track of a run folder, or of a Trajectory `run` with its `data` (X (n, d), y (n,)): what checks look at.

    `net` only where it cannot be built from the run's configuration (product networks with feature maps of the user's own).

    >>> from widemargin import flows, theory
    >>> from widemargin.types import Dataset
    >>> data = Dataset([[1.0], [-1.0]], [1, -1])
    >>> run = flows.train(data, flows.TwoLayer(1, 4), flows.GD(), stop=5, trials=3, record=["weights", "risk"])
    >>> theory.follow(run, data).start["V"].shape
    torch.Size([3, 4, 1])
    """
    if not isinstance(run, Trajectory):
        data = flows.load_data(run) if data is None else data
        run = flows.load(run)
    if data is None:
        raise InputError("a trajectory in memory does not hold its data; give data too, or the folder of the run")
    config = run.config
    outputs = config["net"].get("outputs", 1)
    if not isinstance(outputs, int):
        raise InputError(f"the run is damaged: its network has {show(outputs)} outputs; train it again")
    how = "values" if config["loss"] == "squared" else "numbers" if outputs > 1 else "signs"
    sets = [each.labelled(how) for each in ([data] if isinstance(data, Dataset) else data)]
    if [each.sha256() for each in sets] != config["data"]["sha256"]:
        raise InputError(
            f"{sets[0].name} is not the data of this run ({config['data']['names'][0]}); give the data it used"
        )
    names.check_kept(config["rule"])
    if net is None:
        net = flows.rebuild_net(config["net"], [each.X for each in sets])
    problem = flows.pose(net, sets if len(sets) > 1 else sets[0], config["loss"], bias=config["bias"])
    start = {name: torch.as_tensor(value) for name, value in net.init(config["trials"], config["seed"]).items()}
    _check_sizes(run, start, {"n": problem.n, "m": getattr(net, "m", None)})
    return Track(run, problem, start, sets)


def _check_sizes(run: Trajectory, start: Mapping[str, Tensor], sizes: Mapping[str, int | None]) -> None:
    """An InputError where a run holds records of another network or of other points, or parameters of another network.

    Rules may have added neurons, the second dimension of parameters, to the last ones.
    """
    wrong = [
        f"records {name}"
        for name, known in flows.OBSERVERS.items()
        if known.long and name in run.records and run.records[name].shape[2:] != (sizes[known.long],)
    ]
    for name, value in start.items():
        kept, final = run.records.get(f"W_{name}"), run.final.get(name)
        fits = kept is None or kept.shape[1:] == value.shape
        if fits and final is not None:
            fits = (final.ndim, len(final), *final.shape[2:]) == (value.ndim, *value.shape[:1], *value.shape[2:])
        wrong += [] if fits else [f"parameters {name}"]
    if wrong:
        raise InputError(
            f"the run is damaged: its {wrong[0]} are of another network or of other points; train it again"
        )


def every_step(track: Track) -> Track | None:
    """The same run of descent or a flow with every step recorded, parameters too; None where that is too much."""
    config, steps = track.run.config, int(np.nanmax(track.run["step"]))
    numbers = sum(value.numel() for value in track.start.values())
    if not track.is_flow or not track.sets or steps * numbers > MOST or steps > MOST_STEPS:
        return None
    fields = {name: value for name, value in track.options.items() if name not in ("class", "until")}
    run = flows.train(
        track.sets if len(track.sets) > 1 else track.sets[0],
        track.net,
        getattr(flows, track.rule)(**fields),
        loss=track.loss,
        stop=steps,
        record=flows.Record(
            [*dict.fromkeys([*(name for name in config["observe"] if name in flows.OBSERVERS), *NEEDED])],
            times=list(range(steps + 1)),
        ),
        **{name: config[name] for name in ("trials", "seed", "bias", "dtype")},
    )
    if run.interrupted:  # half a run is none
        raise KeyboardInterrupt
    return follow(run, track.sets, track.net)


def same_run(track: Track, closer: Track) -> bool:
    """Whether a run that was made again passes the records of the first."""
    for name in ("log_norm", "log_risk", "psi"):
        mine, other = track.get(name), closer.get(name)
        if mine is None or other is None:
            continue
        for b in range(track.shape[1]):
            at = np.searchsorted(closer.run["step"][:, b], track.run["step"][:, b])
            if not np.allclose(
                mine[:, b], other[np.minimum(at, len(other) - 1), b], rtol=1e-6, atol=1e-6, equal_nan=True
            ):
                return False
    return True
