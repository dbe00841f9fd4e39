"""All theorems on given data, all inequalities along a given run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from widemargin.dataset import takes_data, takes_data_second
from widemargin.errors import brief, show
from widemargin.types import Dataset, InputError, Measure, Trajectory

from ._rooms import flows
from .catalogue import find, order
from .guarantee import NETWORK, THEOREMS, Guarantee
from .inequality import CHECKS, Check, Inequality
from .known_facts import TIME_LIMIT, Facts, facts
from .track import Track, every_step, follow, same_run

AGAIN = "the run was made again with every step recorded"

Progress = Callable[[str, float], None]  # id, share done


@dataclass(frozen=True)
class Guarantees:
    """Every guarantee that could be evaluated, and the best bound on the test error.

    `found` are the guarantees, `facts` the data and network that they are about.

    >>> from widemargin import theory
    >>> from widemargin.types import Dataset
    >>> given = theory.guarantees(Dataset([[1.0], [-1.0]], [1, -1]), theorems=["CB-22"])
    >>> given[0].id, given.facts.n, given.best is None  # two points guarantee nothing
    ('CB-22', 2, True)
    """

    facts: Facts
    found: tuple[Guarantee, ...]

    __repr__ = brief

    def __iter__(self) -> Iterator[Guarantee]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, k: int) -> Guarantee:
        return self.found[k]

    @property
    def best(self) -> Guarantee | None:
        """The smallest bound on the test error that says something, has explicit constants and no assumption that fails.

        Where a network is given, one about that network if there is any; otherwise about predictors of largest margin.
        """
        useful = [
            given
            for given in self.found
            if given.quantity == "test error"
            and given.explicit
            and given.convention != "printed"
            and given.applies is not False
            and not given.vacuous
        ]
        own = [given for given in useful if given.about == NETWORK]
        return min(own or useful, key=lambda given: float(given.value), default=None)

    def to_dict(self) -> dict[str, Any]:
        """As JSON, with the best bound."""
        data, best = self.facts.data, self.best
        return {
            "data": data.name,
            "n": data.n,
            "d": data.d,
            "delta": self.facts.delta,
            "best": None if best is None else best.to_dict(),
            "guarantees": [given.to_dict() for given in self.found],
        }


@takes_data("binary")
def guarantees(
    data: Dataset,
    run_or_net: Trajectory | str | Path | Measure | tuple[flows.Net, Mapping[str, np.ndarray]] | None = None,
    *,
    delta: float = 0.05,
    theorems: Sequence[str] | None = None,
    trial: int = 0,
    seed: int = 0,
    time_limit: float = TIME_LIMIT,
    progress: Progress | None = None,
) -> Guarantees:
    """Evaluate every theorem (or those of `theorems`, by id) that could apply to the data and the network.

    `run_or_net` is a run folder, a Trajectory, a pair (net, parameters), or a Measure (the network of a certificate, say).
    Margins that a theorem needs are computed once, each within `time_limit` seconds. A theorem that has nothing to say about
    what is given is left out.

    `data` has X (n, d) and y (n,). Bounds on the test error hold with probability 1 - `delta`. `trial` is that of a run, `seed`
    that of the searches for margins, `progress` is called with the id of the next theorem and the share that is done.

    >>> import numpy as np
    >>> from widemargin import theory
    >>> from widemargin.types import Dataset
    >>> y = np.tile([1.0, -1.0], 2000)
    >>> given = theory.guarantees(Dataset(y[:, None], y), theorems=["CB-22"])  # a large margin on many points
    >>> given.best.id, given.best.value < 0.3
    ('CB-22', True)
    """
    if not (progress is None or callable(progress)):
        raise InputError(f"progress must be a function of an id and a share, or None, not {show(progress)}")
    known = facts(data, run_or_net, delta=delta, trial=trial, seed=seed, time_limit=time_limit)
    chosen = [THEOREMS[id] for id in _chosen(theorems, THEOREMS, "theorem")]
    reached: list[Guarantee] = []
    for k, theorem in enumerate(chosen):
        if progress is not None:
            progress(theorem.id, k / len(chosen))
        if theorem.apply is not None:
            given = theorem.apply(known)
            reached += given if isinstance(given, list) else [] if given is None else [given]
    return Guarantees(known, tuple(reached))


@takes_data_second("values")
def check(
    run: Trajectory | str | os.PathLike[str],
    data: Dataset | Sequence[Dataset] | None = None,
    *,
    net: flows.Net | None = None,
    ids: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> list[Inequality]:
    """Evaluate every inequality (or those of `ids`) that the records of a run allow.

    `run` is a run folder, or a Trajectory together with its `data`. More can be checked where the run kept its parameters
    (observe "weights"; --weights on the command line).

    What steps between the records cost is an estimate. So where something fails along descent or a flow that was not recorded at
    every step with its parameters, the run is made again with all of them recorded, and the answer is what that says. A run that
    is too long for it leaves the entry undecided.

    `net` is needed only where it cannot be built from the configuration of the run. `progress` is called with the id of the next
    check and the share that is done.

    >>> from widemargin import flows, theory
    >>> from widemargin.types import Dataset
    >>> data = Dataset([[1.0], [-1.0]], [1, -1])
    >>> record = ["weights", "step", "t_mean", "log_risk", "psi", "log_norm"]
    >>> run = flows.train(data, flows.TwoLayer(1, 20), flows.GD(lr=0.1), loss="exp", stop=50, record=record)
    >>> first = theory.check(run, data, ids=["LR-23"])[0]
    >>> first.statement, first.word
    ('ln |w| grows', 'yes')
    """
    track = follow(run, data, net)
    if not len(track.t):
        raise InputError("the run has no records yet; resume it, or wait for the first one")
    chosen = [CHECKS[id] for id in _chosen(ids, CHECKS, "check")]
    inequalities: list[Inequality] = []
    closer: Track | None = None
    bare = track.W is None  # what steps cost is estimated from other records, which may show none
    estimates = track.is_flow and (bare or not track.every_step)
    for k, entry in enumerate(chosen):
        if progress is not None:
            progress(entry.id, k / len(chosen))
        given = _results(entry, track)
        if estimates and any(each.violated and (bare or _estimated(each)) for each in given):
            closer = closer or every_step(track)
            if closer is None:
                given = [replace(each, estimated=bare or _estimated(each)) for each in given]
            elif same_run(track, closer):
                given = [replace(each, note=_joined(each.note, AGAIN)) for each in _results(entry, closer)]
        if track.rule == "GradientFlow":  # within a step of its solver nothing is recorded, so trapezoids cannot refute
            given = [
                replace(each, estimated=each.estimated or (each.identity and each.scale is not None)) for each in given
            ]
        inequalities += given
    return inequalities


def _results(entry: Check, track: Track) -> list[Inequality]:
    given = entry.function(track)
    return given if isinstance(given, list) else [] if given is None else [given]


def _estimated(inequality: Inequality) -> bool:
    """Whether what happened between the records plays a part."""
    return bool(np.any(inequality.allowance)) or (inequality.identity and inequality.scale is not None)


def _joined(*notes: str) -> str:
    return "; ".join(note for note in notes if note)


def _chosen(asked: Sequence[str] | None, registry: Mapping[str, Any], what: str) -> list[str]:
    """Ids of the registry, or those asked for; an id may also be one that an entry covers beside its own."""
    if asked is None:
        return sorted(registry, key=order)
    if isinstance(asked, str) or not isinstance(asked, Iterable) or getattr(asked, "ndim", 1) != 1:
        raise InputError(f"give ids as a list such as [{next(iter(registry))!r}], not {show(asked)}")
    return list(dict.fromkeys(find(id, registry, what).id for id in asked))
