"""The loop: steps of a rule for all trials at once, records on the way, a run folder that survives the process.

Trials do not know of each other, so one that has ended (finished, reached its event, diverged) is set aside with its last values
and the batch goes on. Between records nothing is asked of the device; whatever decides about a trial is looked at on steps that
depend on the step number alone, never on the clock on the wall, so that a resumed run takes the same decisions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import sys
import threading
import time as clocks
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from widemargin import notebooks
from widemargin.dataset import listed, takes_data
from widemargin.spaces import as_truth
from widemargin.types import Dataset, InputError, Trajectory, check_device, content_hash, show

from . import observe as observing
from . import runs
from ._graph import Stepper
from .contract import DIVERGED, FINISHED, Rule, State, each, restored, true_params
from .nets import Net, Params, trial_numbers
from .own_parts import begun, check_net, check_room, check_rule
from .plan import COUNTED, Keep, Progress, Record, Schedule, Stop, check_whole, schedule
from .problem import Problem, as_outputs, pose

BLINK = 0.2  # seconds between reports of progress

T = TypeVar("T")


@takes_data(as_outputs)
def train(
    data: Dataset | Sequence[Dataset],
    net: Net,
    rule: Rule,
    *,
    loss: str = "logistic",
    stop: Stop | int | None = None,
    record: Record | str | Sequence[str] | Mapping[str, Any] = "default",
    keep: Keep | str | Path | None = None,
    trials: int | Sequence[int] | None = None,
    seed: int = 0,
    bias: bool = False,
    device: str = "cpu",
    dtype: str = "float64",
) -> Trajectory:
    """Train a batch of independent networks and record how it goes.

    `data` is one data set for all trials or one per trial. Trial b starts from the parameters of (seed, b) alone, so a batch is
    a loop of single runs; `trials` is their number, or a list of numbers b for some of them only.

    `stop` says when training ends, `record` what is recorded and when, `keep` what goes to disk: see `Stop`, `Record` and `Keep`.
    A plain value is the first field of each: `stop=1000` is so many steps, `record=["risk", "margin"]` are observers,
    `keep="run"` is a run folder. Ctrl-C writes a checkpoint and returns what there is.

    `net` is a network and `rule` a training rule of this room, or of your own; `loss` is "logistic", "exp" or "squared" (see
    `pose`). `bias` appends a coordinate 1 to the points, `dtype` is "float64" or "float32", `device` is where it runs. Records
    are (T, B, ...), final parameters (B, ...).

    >>> from widemargin import flows
    >>> from widemargin.types import Dataset
    >>> xor = Dataset([[1, 1], [-1, -1], [1, -1], [-1, 1]], [1, 1, -1, -1])
    >>> run = flows.train(xor, flows.TwoLayer(2, 20), flows.GD(lr=0.5), stop=100, record=["risk", "train_error"], trials=3)
    >>> run.records["risk"].shape == (len(run.t), 3), run.final["V"].shape, run.status
    (True, (3, 20, 2), ('finished', 'finished', 'finished'))
    >>> float(run.records["train_error"][-1].max())
    0.0
    """
    sets = [data] if isinstance(data, Dataset) else [] if data is None else list(data)
    _check(sets, net, rule, trials, seed, device, dtype)
    bias, seed = as_truth("bias", bias), int(seed)
    stop = stop if isinstance(stop, Stop) else Stop(stop)
    record = record if isinstance(record, Record) else Record(record)
    keep = keep if isinstance(keep, Keep) else Keep(keep)
    numbers = trial_numbers(len(sets) if trials is None else trials)
    count = len(numbers)
    problem = pose(net, sets[0] if len(sets) == 1 else sets, loss, bias=bias, device=device, dtype=dtype)
    check_room(problem, rule, count, *check_net(problem, numbers, seed))
    test = None if record.test is None else record.test.labelled(as_outputs({"loss": loss, "net": net}))
    if test is not None:
        _check_alike(sets[0], test)
    held_out = None if test is None else pose(net, test, loss, bias=bias, device=device, dtype=dtype)
    plan = schedule(stop, record, rule, problem.X.is_cuda)
    setting = observing.Setting(problem, held_out is not None, count, len(plan.marks), rule.grows)
    observers, notes = observing.choose(record.observe, setting)
    config: dict[str, Any] = {
        "format": runs.FORMAT,
        "data": {"names": [data.name for data in sets], "sha256": [data.sha256() for data in sets], "n": problem.n},
        "test": None if test is None else test.sha256(),
        "net": net.config(),
        "rule": _spec(rule),
        "loss": loss,
        "steps": plan.limit,
        "time": plan.time,
        "clock": plan.clock,
        "until": stop.until if stop.until is None or isinstance(stop.until, str) else repr(stop.until),
        "trials": count if numbers == range(count) else [int(number) for number in numbers],
        "seed": seed,
        "bias": bias,
        "observe": list(observers),
        "times": [float(mark) for mark in plan.marks],
        "check_every": plan.every,
        "device": device,
        "dtype": dtype,
    }
    config = json.loads(json.dumps(config))  # as it will be read again
    loop = _Loop(problem, held_out, rule, observers, plan, numbers, seed)
    folder = None if keep.out is None else Path(keep.out)
    goes_on = folder is not None and keep.resume and runs.is_run(folder)
    if not goes_on:  # the folder and the rule may refuse, so ask them before anything is written
        if folder is not None:
            runs.check_free(folder)
        loop.begin()
    with contextlib.ExitStack() as stack:
        lock = None
        if folder is not None:  # before anything there is read or mended
            lock = stack.enter_context(runs.held(folder))
        run, point = _open(keep, config, sets, test)
        if run is not None:
            run.lock = lock
        try:
            rows: list[runs.Row] = []
            if run is not None and point is not None:
                rows = loop.restore(point, run.rows())
            elif goes_on:  # it was killed before its first checkpoint
                loop.begin()
            if run is not None:
                run.mend()
            said = tuple(run.notes) if run is not None else ()
            asked = stack.enter_context(_interrupts())
            progress = record.progress
            if progress is None and "IPython" in sys.modules:
                progress = stack.enter_context(notebooks.watched(None, _line))
            rows, trouble = _drive(loop, rows, run, asked, keep.seconds, progress)
        except Exception:
            if run is not None and not goes_on and loop.step == 0:  # refused at the first step: nothing to resume
                run.discard()
            raise
        final = loop.point()
    for trial in np.flatnonzero(loop.status == "diverged"):
        where = loop.ended[trial]
        notes = (
            *notes,
            f"trial {trial} diverged at step {where}: its parameters or its loss overflowed; try a smaller step",
        )
    return runs.trajectory(rows, final, config, (*said, *loop.stepper.state.notes(), *notes, *trouble))


def _line(seconds: float, share: float, now: Mapping[str, float]) -> tuple[float, str]:
    """What a notebook shows of training."""
    risk = f"  ln risk {now['log_risk']:.4g}" if "log_risk" in now else ""
    return share, f"{seconds:.1f} s  step {now.get('step', 0):.0f}{risk}"


def _drive(
    loop: _Loop,
    rows: list[runs.Row],
    run: runs.Run | None,
    stop: threading.Event,
    pause: float,
    progress: Progress | None,
) -> tuple[list[runs.Row], tuple[str, ...]]:
    """Run the loop to its end; all rows, and a sentence if the disk gave trouble and still does."""
    written = len(rows) if run is not None and run.parts else 0
    trouble: tuple[str, ...] = ()
    began, before = clocks.perf_counter(), loop.seconds
    saved, told = began, began

    def save() -> None:
        nonlocal written, trouble
        if run is None:
            return
        try:
            run.save(rows[written:], loop.point())
            written, trouble = len(rows), ()
        except InputError as error:  # go on in memory, and try again at the next checkpoint
            trouble = (f"{error}; the run on disk ends at an earlier step, what is returned here is complete",)

    whole = True  # whether `rows` has all that the loop has recorded
    try:
        if loop.step == 0 and not rows:
            whole = False
            rows += loop.look()
            whole = True
            save()
        while (loop.status == "running").any() and not stop.is_set():
            whole = False
            rows += loop.advance()
            whole = True
            now = clocks.perf_counter()
            loop.seconds = before + now - began
            if now - saved >= pause:
                save()
                saved = clocks.perf_counter()
            if progress is not None and now - told >= BLINK:
                told = now
                progress(loop.seconds, loop.share(), loop.latest)
    except KeyboardInterrupt:  # from a callback, or a second Ctrl-C, which may come in the middle of a step
        stop.set()
    finally:
        loop.seconds = before + clocks.perf_counter() - began
    extra = loop.close() if not (loop.status == "running").any() else []
    if loop.step_saved != loop.step or written != len(rows) or extra:
        rows += extra
        if whole:  # else a record is missing: the run goes on from its last checkpoint
            save()
    if progress is not None and not stop.is_set():
        progress(loop.seconds, loop.share(), loop.latest)
    return rows, trouble


class _Loop:
    """The trials, where each of them is, and the records that are not complete yet."""

    def __init__(
        self,
        problem: Problem,
        test: Problem | None,
        rule: Rule,
        observers: Mapping[str, observing.Observer],
        plan: Schedule,
        numbers: Sequence[int],
        seed: int,
    ):
        self.problem, self.test, self.rule, self.observers, self.plan = problem, test, rule, observers, plan
        trials = len(numbers)
        self.numbers, self.trials, self.seed = numbers, trials, seed
        self.step, self.step_saved, self.seconds = 0, -1, 0.0
        self.status = np.array(["running"] * trials, dtype=object)
        self.ended = np.full(trials, -1)  # step of the end of each trial
        self.cursor = np.zeros(trials, dtype=np.int64)  # first mark each trial has not passed
        self.pending: dict[int, runs.Row] = {}
        self.latest: dict[str, float] = {}
        self.dear = observing.dear(observers)
        last = len(plan.marks) - 1
        self.rare = {round(k) for k in np.linspace(0, last, observing.SPARSE)}  # marks at which those are recorded
        self.closed = False
        # Where ended trials stand, and where all stood at the last look (a diverged trial goes back there).
        self.aside: tuple[Params, State] | None = None
        self.good: tuple[Params, State] | None = None

    def begin(self) -> None:
        drawn = self.problem.net.init(self.numbers, self.seed)
        device = self.problem.X.device
        W = {name: torch.tensor(value, dtype=self.problem.X.dtype, device=device) for name, value in drawn.items()}
        numbers = torch.tensor(list(self.numbers), device=device)  # random streams go by them
        state = dataclasses.replace(begun(self.rule, self.problem, W), trial=numbers)
        self.stepper = Stepper(self.problem, self.rule, W, state)
        self.start = true_params(self.problem, self.stepper.W, self.stepper.state)
        if self.problem.X.is_cuda:
            self.start = each(torch.clone, self.start)
        self.prepare()

    def prepare(self) -> None:
        if self.plan.event is not None:
            self.plan.event.prepare(self.problem, self.start)

    # ------------------------------------------------------------ steps

    def advance(self) -> list[runs.Row]:
        """One step, and a look if one is due; the rows that became complete."""
        self.stepper(1)
        self.step += 1
        due = self.step == self.plan.limit or (not self.plan.timed and self.step in self.mark_set)
        if due or ((self.plan.timed or self.plan.event is not None) and self.step % self.plan.every == 0):
            return self.look()
        return []

    @property
    def mark_set(self) -> set[int]:
        if not hasattr(self, "_mark_set"):
            self._mark_set = {int(mark) for mark in self.plan.marks}
        return self._mark_set

    def now(self) -> tuple[Params, State]:
        """All trials, the ended ones where they ended."""
        W, state = self.stepper.W, self.stepper.state
        if self.aside is None:
            return W, state
        done = torch.as_tensor(self.status != "running", device=self.problem.X.device)
        return _merge(done, self.aside[0], W), _merge(done, self.aside[1], state)

    def look(self) -> list[runs.Row]:
        """Decide which trials have ended, and record those that pass a mark."""
        W, state = self.now()
        running = self.status == "running"
        ending = np.zeros(self.trials, dtype=bool)
        own = _host(state.status)  # what the rule itself says
        self._end(running & (own == DIVERGED), "diverged", state)
        ending |= running & (own == DIVERGED)
        running = running & ~ending
        lost = running & ~_host(_finite(W, state)).astype(bool)
        if lost.any():
            if self.good is not None:
                back = torch.as_tensor(lost, device=self.problem.X.device)
                W, state = _merge(back, self.good[0], W), _merge(back, self.good[1], state)
            self._end(lost, "diverged")
            running, ending = running & ~lost, ending | lost
        if self.plan.event is not None and self.step > 0:
            hit = running & _host(self.plan.event.reached(self.problem, W, state, self.start)).astype(bool)
            self._end(hit, "reached")
            running, ending = running & ~hit, ending | hit
        where = self._clock(state) if self.plan.timed else np.full(self.trials, float(self.step))
        over = running & (self.step == self.plan.limit)
        if self.plan.time is not None:
            over |= running & (where >= self.plan.time * (1 - 1e-12))
        over |= running & (own == FINISHED)
        self._end(over, "finished")
        ending |= over
        rows = self._record(W, state, where, ending)
        if self.problem.X.is_cuda:  # a replayed graph writes into these tensors
            W, state = each(torch.clone, W), each(torch.clone, state)
        self.good = (W, state)
        if ending.any():
            self.aside = (W, state)
            if (self.status == "running").any():
                self._hold(W, state)
        return rows

    def _hold(self, W: Params, state: State) -> None:
        """Tell the rule which trials have ended, so that it leaves them alone."""
        over = torch.as_tensor(self.status != "running", device=state.status.device) & (state.status == 0)
        told = torch.where(over, FINISHED, state.status).to(state.status.dtype)
        if self.problem.X.is_cuda:
            self.stepper.state.status.copy_(told)  # in place, where a recorded graph reads it
        else:
            self.stepper.load(W, dataclasses.replace(state, status=told))

    def _end(self, which: np.ndarray, word: str, state: State | None = None) -> None:
        self.status[which] = word
        self.ended[which] = self.step if state is None else _host(state.taken)[which]

    def _clock(self, state: State) -> np.ndarray:
        if self.plan.clock == "cb":
            return state.t_cb.double().cpu().numpy()
        return np.exp(state.log_t_mean.double().cpu().numpy())

    def _record(self, W: Params, state: State, where: np.ndarray, ending: np.ndarray) -> list[runs.Row]:
        # Trials running until now pass all marks up to where they are; a trial that diverged passes none by itself.
        moving = (self.status == "running") | ending
        before = self.cursor.copy()
        reached = np.searchsorted(self.plan.marks, where * (1 + 1e-12), side="right")
        self.cursor = np.where(moving & (self.status != "diverged"), np.maximum(before, reached), before)
        still = self.status == "running"
        passed = int(self.cursor[still].min()) if still.any() else int(self.cursor.max())
        if not (self.cursor > before).any() and not any(k < passed for k in self.pending):
            return []
        passing = np.flatnonzero(self.cursor > before)
        taken = {k for trial in passing.tolist() for k in range(before[trial], self.cursor[trial])}
        values = self._values(W, state, bool(self.rare & (taken | {k for k in self.pending if k < passed})))
        for trial in passing.tolist():
            for k in range(before[trial], self.cursor[trial]):
                row = self.pending.setdefault(k, {name: np.full_like(v, np.nan) for name, v in values.items()})
                self._fill(row, k, values, trial)
        rows = []
        for k in sorted(self.pending):
            if k >= passed:
                break
            row = self.pending.pop(k)
            for trial in np.flatnonzero(~still & (self.cursor <= k)).tolist():  # ended before this mark: as it ended
                self._fill(row, k, values, trial)
            rows.append({"t": np.asarray(self.plan.marks[k], dtype=np.float64), **row})
        return rows

    def _fill(self, row: runs.Row, k: int, values: runs.Row, trial: int) -> None:
        for name, value in values.items():
            if name not in self.dear or k in self.rare:
                row[name][trial] = value[trial]

    def _values(self, W: Params, state: State, all_of_them: bool) -> runs.Row:
        view = observing.View(self.problem, W, state, self.start, self.test)
        chosen = {name: observer for name, observer in self.observers.items() if all_of_them or name not in self.dear}
        values = {name: _array(value) for name, value in observing.record(chosen, view).items()}
        for name in self.dear - set(chosen):
            values[name] = np.full(self.trials, np.nan)
        self.latest = {name: float(np.median(v)) for name, v in values.items() if v.ndim == 1}
        return values

    def close(self) -> list[runs.Row]:
        """One more row where the last mark was not reached, because all trials had ended before."""
        if self.closed:
            return []
        self.closed = True
        at_end = not self.pending and self.cursor.max() == len(self.plan.marks)
        if at_end:
            return []
        W, state = self.now()
        self.pending = {}
        # With steps this is where the last trial ended; with times the largest of the trials' own clocks.
        t = float(self._clock(state).max()) if self.plan.timed else float(self.step)
        return [{"t": np.asarray(t), **self._values(W, state, True)}]

    def share(self) -> float:
        """How much is done, from 0 to 1; NaN where only an event will tell."""
        if not (self.status == "running").any():
            return 1.0
        if self.plan.timed and self.plan.time is not None:
            now = self.latest.get("t_cb" if self.plan.clock == "cb" else "t_mean", float("nan"))
            return min(1.0, now / self.plan.time)
        return float("nan") if self.plan.limit is None else self.step / self.plan.limit

    # ------------------------------------------------------------ checkpoints

    def point(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on, on the host."""
        self.step_saved = self.step
        W, state = self.stepper.W, self.stepper.state
        shown = true_params(self.problem, *self.now())
        return {
            "step": self.step,
            "seconds": self.seconds,
            "status": [str(word) for word in self.status],
            "ended": self.ended.tolist(),
            "cursor": self.cursor.tolist(),
            "closed": self.closed,
            "latest": dict(self.latest),
            "pending": {k: {name: torch.tensor(v) for name, v in row.items()} for k, row in self.pending.items()},
            "final": _hosted(shown),
            "start": _hosted(self.start),
            "now": _plain_parts((W, state)),
            "aside": None if self.aside is None else _plain_parts(self.aside),
            "good": None if self.good is None else _plain_parts(self.good),
            "on_host": [name for name, v in vars(state).items() if isinstance(v, Tensor) and not v.is_cuda],
        }

    def restore(self, point: Mapping[str, Any], rows: list[runs.Row]) -> list[runs.Row]:
        device, on_host = self.problem.X.device, set(point["on_host"])
        drawn = self.problem.net.init(self.numbers, self.seed)
        self.start = {name: v.to(device) for name, v in point["start"].items()}
        fresh = begun(self.rule, self.problem, {name: torch.tensor(v).to(self.problem.X) for name, v in drawn.items()})
        runs.check_shapes(point, drawn, fresh, self.rule.grows, self.problem.X)

        def placed(parts: Any) -> tuple[Params, State] | None:
            if parts is None:
                return None
            W, fields = parts
            fields = {name: v if name in on_host else each(lambda v: v.to(device), v) for name, v in fields.items()}
            return {name: v.to(device) for name, v in W.items()}, restored(fresh, fields)

        W, state = placed(point["now"])  # type: ignore[misc]
        self.stepper = Stepper(self.problem, self.rule, W, state)
        self.aside, self.good = placed(point["aside"]), placed(point["good"])
        self.step = self.step_saved = point["step"]
        expected = self._values(*self.now(), False) if rows else {}
        odd = {
            name: value for name, value in expected.items() if name not in rows[0] or rows[0][name].shape != value.shape
        }
        if rows and (odd or len(rows[0]) != len(expected) + 1):
            what = ", ".join(sorted(odd or set(rows[0]) - set(expected) - {"t"}))
            raise InputError(
                f"the records on disk are not those of this run ({what[:200]}); start again in a new folder"
            )
        self.seconds, self.closed, self.latest = point["seconds"], point["closed"], dict(point["latest"])
        self.status = np.array(point["status"], dtype=object)
        self.ended, self.cursor = np.array(point["ended"]), np.array(point["cursor"], dtype=np.int64)
        self.pending = {k: {name: v.numpy() for name, v in row.items()} for k, row in point["pending"].items()}
        self.prepare()
        return rows


# ---------------------------------------------------------------- tensors


def _merge(which: Tensor, ours: T, theirs: T) -> T:
    """`ours` for the trials in `which` (B,), `theirs` for the others; what is shared by all trials is theirs."""

    def merged(new: Tensor, old: Tensor | None) -> Tensor:
        if old is None or not new.ndim or len(new) != len(which):
            return new
        mask = which.to(new.device).reshape(-1, *[1] * (new.ndim - 1))
        if old.shape != new.shape:  # particles were added since; those of an ended trial have no mass
            old = torch.cat([old, torch.zeros_like(new[:, old.shape[1] :])], 1)
        return torch.where(mask, old, new)

    return each(merged, theirs, ours)


def _finite(W: Params, state: State) -> Tensor:
    """Trials (B,) whose parameters and clocks are numbers."""
    good = ~(state.t_cb.isnan() | state.log_t_mean.isnan())
    for value in W.values():
        good = good & value.flatten(1).isfinite().all(1)
    return good


def _hosted(values: T) -> T:
    # Cloned, since a view would be saved with all of the memory it looks into.
    return each(lambda v: v.detach().cpu().clone(), values)


def _plain_parts(parts: tuple[Params, State]) -> list[Any]:
    """Parameters and the fields of a state as they go into a checkpoint."""
    W, state = parts
    return [_hosted(W), dict(vars(_hosted(state)))]


def _host(flags: Any) -> np.ndarray:
    return torch.as_tensor(flags).cpu().numpy()


def _array(value: Tensor) -> np.ndarray:
    value = value.detach().cpu()
    return value.double().numpy().copy()


# ---------------------------------------------------------------- the door


def _check_alike(data: Dataset, test: Dataset) -> None:
    """An InputError where columns or labels of the test set mean another thing than those of the points."""
    for here, there in zip(data.columns, test.columns):
        if here != there:
            raise InputError(
                f"{test.name}: the test set has the column {show(there)} where {data.name} has {show(here)}; give both the same "
                "columns, in the same order"
            )
    numbers = {label: k for k, label in enumerate(data.classes)}
    words = all(isinstance(label, str) for label in (*data.classes, *test.classes))
    moved = any(numbers.get(label, k) != k for k, label in enumerate(test.classes))
    if data.classes != test.classes and (words or moved):
        raise InputError(
            f"{test.name}: the test set has the labels {listed(test.classes)}, and {data.name} has {listed(data.classes)}; "
            "give both the same ones"
        )


def _check(sets: list[Dataset], net: Any, rule: Any, trials: Any, seed: Any, device: str, dtype: str) -> None:
    if not sets or not all(isinstance(data, Dataset) for data in sets):
        raise InputError("data must be a Dataset, or one for each trial")
    if not isinstance(net, Net):
        raise InputError(f"net must be a net, such as those of widemargin.flows, not {type(net).__name__}")
    if not isinstance(rule, Rule):
        raise InputError(f"rule must be a rule, such as those of widemargin.flows, not {type(rule).__name__}")
    check_rule(rule)
    check_whole("trials", _count(trials), 1, COUNTED)
    check_whole("seed", seed, 0, empty=False)
    if trials is not None and len(sets) > 1 and _count(trials) != len(sets):
        raise InputError(
            f"there are {len(sets)} data sets but trials={_count(trials)}; give one set, or one for each trial"
        )
    if not isinstance(dtype, str) or dtype not in ("float32", "float64"):
        raise InputError(f"dtype must be float32 or float64, not {show(dtype)}")
    check_device(device)


def _count(trials: Any) -> Any:
    """How many trials are asked for: a number, or numbers of trials."""
    if not isinstance(trials, list | tuple | range | np.ndarray) or not getattr(trials, "ndim", 1):
        return trials
    if any(isinstance(trial, bool) or not isinstance(trial, int | np.integer) or trial < 0 for trial in trials):
        raise InputError("the numbers of trials must be integers from 0")
    return len(trials)


def _open(
    keep: Keep, config: dict[str, Any], sets: list[Dataset], test: Dataset | None
) -> tuple[runs.Run | None, dict[str, Any] | None]:
    if keep.out is None:
        return None, None
    folder = Path(keep.out)
    if keep.resume and runs.is_run(folder):
        return runs.Run.reopen(folder, config)
    run = runs.Run.create(folder, config, sets, test)
    if keep.resume:
        run.notes.append(f"{folder} held no run yet: this one begins at step 0")
    return run, None


def _spec(thing: Any) -> dict[str, Any]:
    """Class and fields of a net or rule, as JSON."""
    spec: dict[str, Any] = {"class": type(thing).__name__}
    if dataclasses.is_dataclass(thing):
        spec |= {field.name: _plain(getattr(thing, field.name)) for field in dataclasses.fields(thing)}
    return spec


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return {"shape": list(value.shape), "hash": content_hash(value)}
    if dataclasses.is_dataclass(value):
        return _spec(value)
    return getattr(value, "__qualname__", type(value).__qualname__)


@contextlib.contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Ctrl-C asks for an end after the current step; a second one does not wait. Jobs that ignore it go on doing so, and what it
    ends as a whole is ended."""
    stop = threading.Event()
    there = signal.getsignal(signal.SIGINT)
    kept = there == signal.SIG_IGN or getattr(there, "ends_all", False)
    if kept or threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
