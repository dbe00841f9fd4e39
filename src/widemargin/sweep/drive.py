"""Running a sweep: hand out batches, store what comes back, go on after whatever dies."""

from __future__ import annotations

import concurrent.futures as cf
import contextlib
import itertools
import random
import signal
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from widemargin.types import InputError, check_device, show

from . import tasks
from .engines import Engine, make_engine
from .plan import Run, Sweep
from .store import Store, check_store, last_words

SUSPECT = 2  # deaths around a batch after which it is computed alone
ATTEMPTS = 4  # deaths of a batch that is alone
LOOK = 0.2  # seconds between two looks at the progress
SHOWN = 20  # kinds of failures that `Progress` tells in words
COUNTED = 200_000  # runs that a dry run looks at one by one, at most,
COUNTING = 0.15  # and for so many seconds;
GLANCE = 1.0  # seconds that it waits for another process that has the store, at most for each of two looks (and so after Ctrl-C);
ANSWER = 0.3  # the answer is there after so many, whatever a batch takes (torch needs the rest of two to be imported)


@dataclass
class Progress:
    """Where a sweep stands, for the screen.

    Of `total` runs, `done` are stored, `before` of them by earlier calls or by another driver, and `failed` have raised;
    `errors` has their last words, equal ones once with the first of their runs and the number of the others. `lost` batches
    were handed out again after their worker died. `workers` were at work for `busy` seconds of the `seconds` since the call,
    and `interrupted` says that Ctrl-C ended it.

    >>> from widemargin.sweep import Progress
    >>> state = Progress(total=100, done=60, before=20, seconds=4.0)
    >>> state.rate, state.left  # runs a second, and seconds to go
    (10.0, 4.0)
    """

    total: int
    workers: int = 1
    done: int = 0  # stored, those of earlier calls included
    before: int = 0  # of earlier calls, or of another driver
    failed: int = 0
    lost: int = 0  # batches whose worker died, handed out again
    busy: float = 0.0  # seconds that workers spent on batches
    seconds: float = 0.0
    errors: list[str] = field(default_factory=list)  # "params: last line of the traceback", the first few kinds
    interrupted: bool = False

    @property
    def rate(self) -> float:
        """Runs a second, those of this call."""
        return (self.done - self.before) / self.seconds if self.seconds > 0 else 0.0

    @property
    def left(self) -> float:
        """Seconds to go at this rate."""
        open_runs = self.total - self.done - self.failed
        return 0.0 if not open_runs else open_runs / self.rate if self.rate > 0 else float("inf")


def sweep(
    plan: Sweep,
    store: str | Path,
    *,
    engine: str | Engine = "local",
    workers: int | None = None,
    address: str | None = None,
    devices: Sequence[str] = (),
    progress: Callable[[Progress], None] | None = None,
) -> Progress:
    """Run what is not stored yet. Running again continues; Ctrl-C keeps what is done; failed runs are counted and go on record.

    `engine` is "local" (processes of this machine), "ray" or "dask" (the cluster at `address`) or "inline" (this process).
    `devices` are given to the batches as their parameter `device` (["cuda:0", "cuda:1"] for two GPUs, one of them twice for two
    workers on it); by default there is one worker for each.

    `plan` says what to run and `store` is the folder of results. `workers` are processes, by default one for each core.

    >>> from widemargin.sweep import Sweep, load, sweep
    >>> plan = Sweep("margin", fixed={"kind": "linear"}, grid={"data": ["dyadic:d=2", "dyadic:d=3"]}, keep=["lower"])
    >>> state = sweep(plan, "results", engine="inline")
    >>> state.total, state.done, state.failed
    (2, 2, 0)
    >>> (load("results")["lower"] ** -2).round(3).sort_values().tolist()  # (4^(d + 1) - 4) / 3
    [20.0, 84.0]
    """
    _check_plan(plan)
    version = tasks.version(plan)
    if not isinstance(devices, list | tuple) or not all(isinstance(name, str) for name in devices):
        raise InputError(f"devices must be a list of names such as cuda:0, not {show(devices)}")
    if not (progress is None or callable(progress)):
        raise InputError(f"progress must be a function, or None, not {show(progress)}")
    if devices and not tasks.takes_device(plan):
        raise InputError(f"{plan.function} has no parameter device, so devices cannot be chosen; leave them out")
    if devices and "device" in {*plan.fixed, *plan.grid, *plan.random}:
        raise InputError("device is a parameter of the sweep, so devices cannot be chosen too; leave one of them out")
    if (
        isinstance(engine, str) and engine in ("local", "inline") and ":" not in plan.function
    ):  # other machines may have what this one has not
        for name in (*devices, *(value for name, value in plan.extremes() if name == "device")):
            check_device(name)
    check_store(store)
    if isinstance(engine, str):
        many = (len(devices) or None) if workers is None else workers
        if engine == "local":  # no more processes than batches
            most = make_engine("local", many).workers
            many = max(1, sum(1 for _ in itertools.islice(tasks.batches(plan, version), most)))
        made = make_engine(engine, many, address, 1.0 if devices and engine == "ray" else 0.0)
        if engine == "ray" and devices:
            devices = ("cuda",)  # Ray shows every task the one GPU that it has given to it
    else:
        if not all(
            hasattr(engine, part) for part in Engine.__annotations__.keys() | {"submit", "lost", "renew", "close"}
        ):
            raise InputError(f"unknown engine {show(engine)}; choose local, ray, dask or inline")
        made = engine
    state = Progress(len(plan), made.workers)
    try:
        results = Store(store)
        try:
            results.check_version()
            if missing := results.not_kept(plan, version):
                raise InputError(
                    f"{store} has runs of this sweep without {', '.join(missing)}; keep what was kept before, or choose "
                    "another --store"
                )
            results.note(plan.name, plan.text(), version)
            _Driver(plan, version, results, made, tuple(devices), state, progress).run()
        finally:
            results.close()
    finally:
        made.close()
    return state


def _check_plan(plan: Any) -> None:
    if not isinstance(plan, Sweep):
        raise InputError(f"a plan is a Sweep, not {show(plan)}; make one by Sweep(..), or by Sweep.load of a TOML file")
    tasks.check(plan)


@dataclass
class _Claim:
    """What keeps other drivers from a batch, until all its parts are done."""

    key: str
    parts: int = 1


@dataclass
class _Batch:
    runs: list[Run]
    claim: _Claim
    stored: int = 0  # of its runs, before it was computed
    deaths: int = 0
    alone: int = 0  # deaths while nothing else was in flight
    device: str | None = None

    def split(self) -> list[_Batch]:
        """A batch of each run, to be computed alone."""
        self.claim.parts += len(self.runs) - 1
        return [_Batch([run], self.claim, deaths=SUSPECT) for run in self.runs]


class _Driver:
    def __init__(
        self, plan: Sweep, version: str, results: Store, engine: Engine, devices: tuple[str, ...], state: Progress,
        progress: Callable[[Progress], None] | None,
    ):  # fmt: skip
        self.plan, self.version, self.results, self.engine, self.devices = plan, version, results, engine, devices
        self.state, self.progress = state, progress
        self.todo = tasks.batches(plan, version)
        self.elsewhere: deque[list[Run]] = deque()  # batches that another driver has
        self.again: deque[_Batch] = deque()
        self.pending: dict[cf.Future, _Batch] = {}
        self.kinds: dict[
            str, tuple[str, int]
        ] = {}  # failures by their last words: the first run, and how many there are
        self.began = time.perf_counter()
        self.told = -LOOK

    def run(self) -> None:
        try:
            self.tell()
            while True:
                self.fill()
                if self.pending:
                    cf.wait(self.pending, timeout=LOOK, return_when=cf.FIRST_COMPLETED)
                    self.collect()
                elif self.elsewhere:
                    time.sleep(LOOK)
                else:
                    break
                self.tell()
        except KeyboardInterrupt:
            self.state.interrupted = True
            self.results.wait = min(self.results.wait, GLANCE)
            try:
                for future, batch in list(self.pending.items()):  # what has come back is kept
                    if future.done() and not future.cancelled() and future.exception() is None:
                        self.keep(batch, *future.result())
            except InputError as error:  # another process has the store, say
                self.state.errors.append(str(error))
        self.tell()

    def tell(self, at_once: bool = True) -> None:
        now = time.perf_counter() - self.began
        if at_once or now - self.told >= LOOK:
            self.state.seconds = self.told = now
            if self.progress is not None:
                self.progress(self.state)

    # ------------------------------------------------------------ handing out

    def fill(self) -> None:
        while len(self.pending) < self.engine.ahead:
            if not self.engine.certain and any(batch.deaths >= SUSPECT for batch in self.pending.values()):
                return  # it is to be alone
            batch = self.next()
            if batch is None or not self.submit(batch):
                return

    def next(self) -> _Batch | None:
        for _ in range(len(self.again)):
            batch = self.again.popleft()
            if batch.deaths < SUSPECT or not self.pending or self.engine.certain:
                return batch
            self.again.append(batch)
        if self.again:
            return None  # suspects wait for the others to be done
        for runs in self.todo:
            self.tell(at_once=False)
            if opened := self.open(runs):
                return opened
        for _ in range(len(self.elsewhere)):
            if opened := self.open(self.elsewhere.popleft()):
                return opened
        return None

    def open(self, runs: list[Run]) -> _Batch | None:
        """The batch if it is ours to compute: not stored, and no other driver's."""
        keys = [run.key for run in runs]
        mine = self.results.claim(keys[0])
        stored = _stored(self.results, keys)  # after the claim: who gave it up has stored it
        if stored < len(runs) and not mine:
            self.elsewhere.append(runs)
            return None
        self.state.done += stored
        self.state.before += stored
        if stored < len(runs):
            return _Batch(runs, _Claim(keys[0]), stored)
        if mine:
            self.results.release(keys[0])
        return None

    def submit(self, batch: _Batch) -> bool:
        """Whether an engine took it."""
        plan = self.plan
        if self.devices:
            load = Counter(batch.device for batch in self.pending.values())
            batch.device = min(self.devices, key=lambda name: load[name])
        folder = None if plan.folder is None else str(plan.folder)
        place = str(self.results.folder.resolve())
        work = tasks.Work(plan.function, batch.runs, plan.seed, plan.keep, folder, place, batch.device)
        try:
            future = self.engine.submit(timed, work)
        except Exception as error:
            if not self.engine.lost(error):
                raise
            self.again.append(batch)  # a worker died just now: `collect` will see it
            if not self.pending:
                self.engine.renew()
            return not self.pending
        self.pending[future] = batch
        return True

    # ------------------------------------------------------------ taking in

    def collect(self) -> None:
        ready = [future for future in self.pending if future.done()]
        died = False
        for future in ready:
            batch = self.pending[future]
            trouble = cf.CancelledError() if future.cancelled() else future.exception()
            if trouble is None:
                self.keep(batch, *future.result())
                del self.pending[future]
            elif self.engine.lost(trouble):
                died = True
                if not self.engine.together:
                    del self.pending[future]
                    self.retry_or_give_up(batch, alone=self.engine.certain or not self.pending)
            else:
                raise trouble
        if died and self.engine.together:
            self.engine.renew()  # ends what is left of the workers, so nothing of theirs can come back
            alone = len(self.pending) == 1
            for batch in self.pending.values():
                self.retry_or_give_up(batch, alone)
            self.pending.clear()

    def retry_or_give_up(self, batch: _Batch, alone: bool) -> None:
        """A batch has lost its worker. Who is to blame is clear only if it was alone, so that is tried before it is given up.

        Runs that are not trained together are then tried one by one, so that only the guilty one is given up.
        """
        batch.deaths += 1
        batch.alone += alone
        self.state.lost += 1
        if len(batch.runs) > 1 and self.plan.function != "train" and batch.alone >= SUSPECT:
            self.state.done -= batch.stored  # they will be counted one by one
            self.state.before -= batch.stored
            self.again.extend(batch.split())
            return
        if batch.alone < ATTEMPTS:
            self.again.append(batch)
            return
        many = f"this batch of {len(batch.runs)} runs; try a smaller pack" if len(batch.runs) > 1 else "this run"
        text = f"the worker died {batch.alone} times on {many} (out of memory, or a crash in compiled code)"
        self.fail(batch.runs, [text] * len(batch.runs))
        self.release(batch)

    def keep(self, batch: _Batch, outcomes: Sequence[tasks.Outcome], seconds: float) -> None:
        complaint = next((outcome.complaint for outcome in outcomes if outcome.complaint), "")
        if complaint:
            raise InputError(complaint)
        plan, runs = self.plan, batch.runs
        good = [(run, outcome.row) for run, outcome in zip(runs, outcomes) if outcome.row is not None]
        if good:
            kept, rows = zip(*good)
            new = self.results.add(
                plan.name, plan.function, self.version, plan.seed, kept, rows, seconds * len(good) / len(runs)
            )
            self.state.done += len(good) - batch.stored  # runs that are equal, or another driver's by now, are done too
            self.state.before += len(good) - batch.stored - new
        bad = [(run, outcome.traceback) for run, outcome in zip(runs, outcomes) if outcome.row is None]
        if bad:
            self.fail(*zip(*bad))
        self.state.busy += seconds
        self.release(batch)

    def release(self, batch: _Batch) -> None:
        batch.claim.parts -= 1
        if not batch.claim.parts:
            self.results.release(batch.claim.key)

    def fail(self, runs: Sequence[Run], texts: Sequence[str]) -> None:
        self.results.fail(runs, texts, self.plan.name, self.version)
        self.state.failed += len(runs)
        for run, text in zip(runs, texts):
            said = last_words(text)
            if said in self.kinds or len(self.kinds) < SHOWN:
                first, count = self.kinds.get(said, (_words(run), 0))
                self.kinds[said] = first, count + 1
        self.state.errors[:] = [f"{first}{_others(count - 1)}: {said}" for said, (first, count) in self.kinds.items()]


def timed(work: tasks.Work) -> tuple[list[tasks.Outcome], float]:
    began = time.perf_counter()
    return tasks.compute(work), time.perf_counter() - began


def _words(run: Run) -> str:
    return ", ".join([*(f"{name}={value!r}" for name, value in run.params.items()), f"trial={run.trial}"])


def _others(count: int) -> str:
    return f" and {count} more run{'s' * (count > 1)}" if count else ""


def _stored(results: Store, keys: Sequence[str]) -> int:
    there = results.done(keys)
    return sum(key in there for key in keys)  # draws of a random search may be equal


# ---------------------------------------------------------------- dry run


@dataclass(frozen=True)
class Estimate:
    """What a dry run says.

    Of all `runs`, `done` are stored; `batches` are still to do. `sample` of them were timed and took `seconds_per_batch`, so that
    `workers` processes need about `seconds`; at least so long where `more` says that a batch was not awaited to its end.

    >>> from widemargin.sweep import Estimate
    >>> guess = Estimate(runs=100, done=20, batches=40, sample=3, seconds_per_batch=0.5, seconds=10.0, workers=2)
    >>> guess.seconds == guess.batches * guess.seconds_per_batch / guess.workers
    True
    """

    runs: int
    done: int
    batches: int  # still to do
    sample: int  # batches that were timed
    seconds_per_batch: float
    seconds: float  # with this many workers
    workers: int
    more: bool = False  # a batch takes longer than a dry run waits for it


def dry_run(plan: Sweep, store: str | Path | None = None, *, workers: int | None = None, sample: int = 3) -> Estimate:
    """Count, and time a few batches drawn from those to do, in this process; nothing is stored.

    `plan` and `store` are those of `sweep`; without a store nothing is done yet. `sample` batches are timed, and `workers`
    counted on. It answers after 0.3 s: a batch that takes longer is broken off. Training says how far it has come by
    then, which is as good as its time; of anything else the answer is a lower bound, which `more` says. (Batches are broken
    off by a signal. Where there is none, on Windows and off the main thread, the first is awaited.)

    >>> from widemargin.sweep import Sweep, dry_run
    >>> plan = Sweep("margin", fixed={"kind": "linear"}, grid={"data": ["dyadic:d=2", "dyadic:d=3"]})
    >>> guess = dry_run(plan, workers=1)
    >>> guess.runs, guess.done, guess.batches
    (2, 0, 2)
    """
    _check_plan(plan)
    if isinstance(sample, bool) or not isinstance(sample, int) or sample < 0:
        raise InputError(f"sample must be a number of batches, 0 or more, not {show(sample)}")
    count = make_engine("local", workers).workers
    began = time.perf_counter()
    looked, done, open_batches, all_batches = 0, 0, 0, 0
    picks: list[list[Run]] = []
    draw = random.Random(0)
    for runs, stored in _counted(plan, store):
        looked += len(runs)
        all_batches += 1
        done += stored
        if stored < len(runs):
            open_batches += 1
            if len(picks) < sample:
                picks.append(runs)
            elif (k := draw.randrange(open_batches)) < sample:
                picks[k] = runs
        if looked >= COUNTED or time.perf_counter() - began > COUNTING:
            break
    if looked < len(plan):  # too many to look at each: the store is asked, and batches are as full as these
        done = _rows_of(plan, store)
        open_batches = -(-(len(plan) - done) * all_batches // looked)
    times, more = _sampled(plan, picks, began + ANSWER)
    each = sum(times) / len(times) if times else 0.0
    if more:  # what was broken off counts with the time it had
        each = (sum(times) + more) / (len(times) + 1)
    share = each * open_batches / min(count, max(1, open_batches))
    return Estimate(len(plan), done, open_batches, len(times), each, share, count, bool(more))


def _sampled(plan: Sweep, picks: Sequence[list[Run]], until: float) -> tuple[list[float], float]:
    """Seconds of batches that ended by `until` (on time.perf_counter), and those of one that was broken off then, or 0."""
    times: list[float] = []
    with tempfile.TemporaryDirectory() as place:  # certificates are shared there, as they will be in the store
        folder = None if plan.folder is None else str(plan.folder)
        for k, runs in enumerate(picks):
            if times and time.perf_counter() > until:
                break
            reached = [0.0]  # the share of a training that is over
            work = tasks.Work(plan.function, runs, plan.seed, plan.keep, folder, place, tell=reached.append)
            start = time.perf_counter()
            try:
                with _broken_off(until - start):
                    outcomes, seconds = timed(work)
            except tasks.Late:
                late = time.perf_counter() - start
                return ([*times, late / reached[-1]], 0.0) if reached[-1] > 0 else (times, late)
            with contextlib.suppress(tasks.Late), _broken_off(until - time.perf_counter()):
                if k == 0 and 2 * seconds < ANSWER:
                    outcomes, seconds = timed(work)  # the first one also pays for imports
            for outcome, run in zip(outcomes, runs):
                if outcome.complaint:
                    raise InputError(outcome.complaint)
                if outcome.row is None:
                    raise InputError(f"a run fails ({_words(run)}): {last_words(outcome.traceback)}")
            times.append(seconds)
    return times, 0.0


@contextlib.contextmanager
def _broken_off(seconds: float) -> Iterator[None]:
    """Raise `Late` in here after so many seconds, at once where there are none left; never where there are no such signals."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: object) -> None:
        raise tasks.Late

    began = time.monotonic()
    before = signal.signal(signal.SIGALRM, ring)
    rest, interval = signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))  # the clock of whoever calls us, if any
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if rest:
            signal.setitimer(signal.ITIMER_REAL, max(rest - (time.monotonic() - began), 1e-3), interval)


def _rows_of(plan: Sweep, store: str | Path | None) -> int:
    """How many rows a store has of this sweep."""
    if store is None or not check_store(store, GLANCE):
        return 0
    results = Store(store, wait=GLANCE)
    try:
        return min(len(plan), results.count(plan.name, plan.function, tasks.version(plan), plan.seed))
    finally:
        results.close()


def _counted(plan: Sweep, store: str | Path | None) -> Iterator[tuple[list[Run], int]]:
    """Every batch, and how many of its runs are stored."""
    results = None
    if store is not None and check_store(store, GLANCE):
        results = Store(store, wait=GLANCE)
        results.check_version()
    try:
        for runs in tasks.batches(plan, tasks.version(plan)):
            yield runs, 0 if results is None else _stored(results, [run.key for run in runs])
    finally:
        if results is not None:
            results.close()
