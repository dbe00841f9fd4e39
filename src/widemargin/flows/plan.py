"""What a run is asked to do: when it ends, what is recorded and when, what is kept on disk."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from widemargin.dataset import as_dataset
from widemargin.errors import show
from widemargin.spaces import as_numbers, as_truth
from widemargin.types import Dataset, InputError

from .contract import Rule
from .events import Event, parse_until
from .fields import take_plain_numbers

MOST = 1_000_000  # steps, where only an event ends the run
POINTS = 200
COUNTED = 2**53  # steps and records; beyond, float64 does not tell neighbours apart
EVERY_CUDA = 20  # steps between looks at events and times on a GPU: each look waits for the device
EVERY_DEAR = 10  # steps of the flow between looks at stationarity, which costs as much as a few of them
EARLY = 1e-6  # first log-spaced time over the last one

Progress = Callable[[float, float, Mapping[str, float]], None]  # seconds, share done (NaN: unknown), last medians


def check_whole(what: str, value: Any, least: int, most: int | None = None, *, empty: bool = True) -> None:
    """An InputError unless the value is an integer of at least, and at most, so much, or None where it may be `empty`."""
    if not (value is None and empty) and (
        isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least
    ):
        raise InputError(f"{what} must be an integer of at least {least}, not {show(value)}")
    if value is not None and most is not None and value > most:
        raise InputError(f"{what} must be at most {most}, not {show(value)}")


@dataclass(frozen=True)
class Stop:
    """When training ends: after `steps`, at `time` of the `clock`, or for each trial on its own at `until`; the first that comes.

    The clock is "mean", of the mean risk, or "cb", CB's; None is the rule's own. `until` is an event or its name (fitted,
    stationary, margin=..., radius=..., risk=...). Events and times are looked at every `check_every` steps.

    >>> from widemargin.flows import Stop
    >>> Stop(2000, until="fitted").event
    Fitted()
    """

    steps: int | None = None
    time: float | None = None
    clock: str | None = None
    until: Event | str | None = None
    check_every: int | None = None

    def __post_init__(self) -> None:
        take_plain_numbers(self)
        check_whole("steps", self.steps, 1, COUNTED)
        check_whole("check_every", self.check_every, 0, COUNTED)
        if self.time is not None and not (isinstance(self.time, int | float) and 0 < self.time <= sys.float_info.max):
            raise InputError(f"time must be a positive number, not {show(self.time)}")
        if not (self.clock is None or (isinstance(self.clock, str) and self.clock in ("mean", "cb"))):
            raise InputError(f"there are two clocks, mean and cb, not {show(self.clock)}")
        if not (self.until is None or isinstance(self.until, Event | str)):
            raise InputError(f"until must be an event or the name of one, not {type(self.until).__name__}")

    @cached_property
    def event(self) -> Event | None:
        return parse_until(self.until) if isinstance(self.until, str) else self.until

    def every(self, rule: Rule, on_gpu: bool) -> int:
        """Steps between looks at events and times."""
        if self.check_every:
            return self.check_every
        every = EVERY_CUDA if on_gpu else 1
        if self.event is not None and self.event.dear:
            every = max(every, EVERY_DEAR if rule.costly else EVERY_DEAR**2)
        return every


@dataclass(frozen=True)
class Record:
    """What is recorded, and when.

    `observe` says what: "default", names of `flows.OBSERVERS`, or a dictionary that may hold functions of a `View`, which return
    (B, ...). `times` says when: a list of steps (of times, if the run ends at a time), or "log" for `points` log-spaced ones, 0
    and the end included. A rule that chooses its own steps is recorded at its first step at or after each time; t_mean and t_cb
    say when that was. `test` is the data of the test error. `progress(seconds, share, medians)` is called a few times a second
    with the medians of the last record.

    >>> from widemargin.flows import Record
    >>> Record(["risk", "margin"], points=30).times
    'log'
    """

    observe: str | Sequence[str] | Mapping[str, Any] = "default"
    times: str | Sequence[float] = "log"
    points: int = POINTS
    test: Dataset | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        take_plain_numbers(self)
        if not isinstance(self.observe, Iterable) or getattr(self.observe, "ndim", 1) != 1:
            raise InputError(f"what is observed must be names or a dictionary of functions, not {show(self.observe)}")
        check_whole("points", self.points, 2, COUNTED, empty=False)
        if not (self.progress is None or callable(self.progress)):
            raise InputError(
                f"progress must be a function of seconds, a share and medians, or None, not {show(self.progress)}"
            )
        if self.test is not None:
            object.__setattr__(self, "test", as_dataset(self.test))


@dataclass(frozen=True)
class Keep:
    """What goes to disk: a run folder `out` (see `runs`) with a checkpoint every so many `seconds`.

    `resume` goes on where the folder ends, with the same results to the last bit. If the disk fills up, training goes on in
    memory and `notes` of the result say so.

    >>> from widemargin.flows import Keep
    >>> Keep("run", resume=True).seconds
    10.0
    """

    out: str | Path | None = None
    resume: bool = False
    seconds: float = 10.0

    def __post_init__(self) -> None:
        if not (self.out is None or isinstance(self.out, str | Path)):
            raise InputError(f"out must be the path of a run folder, not {show(self.out)}")
        as_truth("resume", self.resume)
        if not (isinstance(self.seconds, Real) and self.seconds >= 0):
            raise InputError(
                f"seconds between checkpoints must not be negative: give a number from 0 on, not {show(self.seconds)}"
            )
        if self.out is None and self.resume:
            raise InputError("there is nothing to resume without a run folder; give out")


@dataclass(frozen=True)
class Schedule:
    """A plan for one rule: the marks at which records are taken, steps or times, and the ends."""

    marks: np.ndarray
    timed: bool  # whether these are times
    limit: int | None  # the last step, if there is one
    time: float | None
    clock: str
    event: Event | None
    every: int


def schedule(stop: Stop, record: Record, rule: Rule, cuda: bool) -> Schedule:
    if stop.steps is stop.time is stop.until is None and not rule.ends and isinstance(record.times, str):
        raise InputError(
            "nothing ends this training; give stop=..., a number of steps or a Stop with a time or an event"
        )
    clock = rule.clock if stop.clock is None else stop.clock
    marks, timed, limit = _marks(record, stop, rule.length(clock))
    return Schedule(marks, timed, limit, stop.time, clock, stop.event, stop.every(rule, cuda))


def log_steps(steps: int, points: int) -> np.ndarray:
    """0 and points - 1 log-spaced steps up to the last; rounding joins some."""
    ladder = np.geomspace(1, steps, points - 1).round()
    ladder[-1] = steps  # also where two points are all
    return np.unique(np.concatenate([[0.0], ladder]))


def _marks(record: Record, stop: Stop, length: float) -> tuple[np.ndarray, bool, int | None]:
    """Where records are taken, whether these are times, and the last step if there is one."""
    times, steps, time = record.times, stop.steps, stop.time
    if isinstance(times, str):
        if times != "log":
            raise InputError(f"times must be 'log' or a list of numbers, not {show(times)}")
        if time is not None:
            ladder = np.geomspace(min(max(EARLY * time, length), time), time, record.points - 1)
            ladder[-1] = time  # geomspace rounds
            return np.unique(np.concatenate([[0.0], ladder])), True, steps
        steps = steps or MOST
        return log_steps(steps, record.points), False, steps
    given = np.unique(as_numbers("times", times))
    if given.size == 0 or not np.isfinite(given).all() or given[0] < 0:
        raise InputError("times must be a list of numbers, none of them negative")
    if time is None and (given != given.round()).any():
        raise InputError("times without time=... are steps and must be integers")
    end = (steps or int(given[-1])) if time is None else time
    if given[-1] > end:
        raise InputError(f"a record is asked for at {given[-1]:g}, after the end of training at {end:g}")
    if end == 0:
        raise InputError("times must go beyond 0")
    marks = np.unique(np.append(given, float(end)))
    return marks, time is not None, int(end) if time is None else steps


def differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What a run was asked and is asked now, where these differ, in words."""
    before, after = _flat(was), _flat(now)
    return [
        f"{key} was {_shown(before.get(key), after.get(key))} and is {_shown(after.get(key), before.get(key))}"
        for key in dict.fromkeys([*after, *before])
        if before.get(key) != after.get(key)
    ]


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """{"net": {"m": 5}} as {"net.m": 5}."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= {f"{key}.{sub}": item for sub, item in value.items()} if isinstance(value, Mapping) else {key: value}
    return flat


def _shown(value: Any, other: Any) -> str:
    """A value in a few letters; a list from where it differs from the other one: long ones begin alike."""
    text = json.dumps(value)
    if isinstance(value, list) and isinstance(other, list):
        same = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(value, other))))
        text = f"[..., {json.dumps(value[same:])[1:]}".replace(", ]", "]") if same else text
    return text if len(text) <= 60 else text[:57] + "..."
