"""Running a sweep: hand out batches, store what comes back, go on after whatever dies."""

from __future__ import annotations

import concurrent.futures as cf
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from widemargin.types import InputError

from . import tasks
from .engines import Engine, make_engine
from .plan import Run, Sweep
from .store import Store

ATTEMPTS = 5  # of a batch whose worker dies
AHEAD = 2  # batches handed out per worker
LOOK = 0.2  # seconds between two looks at the progress


@dataclass
class Progress:
    """Where a sweep stands, for the screen."""

    total: int
    done: int = 0  # stored, those of earlier calls included
    before: int = 0  # of earlier calls
    failed: int = 0
    lost: int = 0  # batches whose worker died, handed out again
    busy: float = 0.0  # seconds that workers spent on batches
    seconds: float = 0.0
    errors: list[str] = field(default_factory=list)  # "params: last line of the traceback", the first few
    interrupted: bool = False

    @property
    def rate(self) -> float:
        return (self.done - self.before) / self.seconds if self.seconds > 0 else 0.0

    @property
    def left(self) -> float:
        """Seconds to go at this rate."""
        open_runs = self.total - self.done - self.failed
        return open_runs / self.rate if self.rate > 0 else float("inf")


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
    """Run what is not stored yet. Running again continues; Ctrl-C keeps what is done.

    `devices` are given to the batches in turn as their parameter `device` (["cuda:0", "cuda:1"] for two GPUs).
    """
    tasks.check(plan)
    version = tasks.version(plan)
    results = Store(store)
    results.check_version()
    made = make_engine(engine, workers, address, 1.0 if devices else 0.0) if isinstance(engine, str) else engine
    state = Progress(len(plan))
    began = time.perf_counter()

    def tell() -> None:
        state.seconds = time.perf_counter() - began
        if progress is not None:
            progress(state)

    pending: dict[cf.Future, tuple[int, list[Run], int]] = {}
    todo = _open_batches(plan, version, results, state)
    again: list[tuple[int, list[Run], int]] = []
    try:
        tell()
        while True:
            while len(pending) < AHEAD * made.workers:
                item = again.pop() if again else next(todo, None)
                if item is None:
                    break
                number, runs, tried = item
                device = devices[number % len(devices)] if devices else None
                args = (
                    plan.function,
                    _text(plan.folder),
                    runs,
                    plan.seed,
                    plan.keep,
                    str(Path(store).resolve()),
                    device,
                )
                try:
                    future = made.submit(_timed, *args)
                except Exception as error:
                    if not made.lost(error):
                        raise
                    made.renew()
                    future = made.submit(_timed, *args)
                pending[future] = (number, runs, tried)
            if not pending:
                break
            ready, _ = cf.wait(pending, timeout=LOOK, return_when=cf.FIRST_COMPLETED)
            broken = False
            for future in ready:
                number, runs, tried = pending.pop(future)
                trouble = None if future.cancelled() else future.exception()
                if future.cancelled() or (trouble is not None and made.lost(trouble)):
                    broken = True
                    if tried + 1 >= ATTEMPTS:
                        _failed(results, state, runs, f"the worker died {ATTEMPTS} times on this batch ({trouble})")
                    else:
                        state.lost += 1
                        again.append((number, runs, tried + 1))
                    continue
                if trouble is not None:
                    raise trouble
                found, seconds = future.result()
                state.busy += seconds
                _keep(plan, version, results, state, runs, found, seconds)
            if broken:
                made.renew()
            tell()
    except KeyboardInterrupt:
        state.interrupted = True
        for future in pending:
            future.cancel()
        made.close(wait=False)
    finally:
        if not state.interrupted:
            made.close()
        results.close()
        tell()
    return state


@dataclass(frozen=True)
class Estimate:
    """What a dry run says."""

    runs: int
    done: int
    batches: int
    seconds_per_batch: float
    seconds: float  # with this many workers


def dry_run(plan: Sweep, store: str | Path, *, workers: int = 1, sample: int = 3) -> Estimate:
    """Count, and time a few batches spread over the sweep in this process; nothing is stored."""
    tasks.check(plan)
    version = tasks.version(plan)
    state = Progress(len(plan))
    if (Path(store) / "results.sqlite").exists():
        results = Store(store)
        results.check_version()
        todo = [runs for _, runs, _ in _open_batches(plan, version, results, state)]
        results.close()
    else:
        todo = tasks.batches(plan, list(plan.runs(version)))
    picks = sorted({round(k * (len(todo) - 1) / max(1, sample - 1)) for k in range(sample)}) if todo else []
    times = []
    for k in picks:
        found, seconds = _timed(plan.function, _text(plan.folder), todo[k], plan.seed, plan.keep, None, None)
        bad = next((text for row, text in found if row is None), "")
        if bad:
            raise InputError(f"a run fails: {bad.strip().splitlines()[-1]}")
        times.append(seconds)
    each = sum(times) / len(times) if times else 0.0
    return Estimate(state.total, state.done, len(todo), each, each * len(todo) / workers)


def _open_batches(plan: Sweep, version: str, results: Store, state: Progress) -> Iterator[tuple[int, list[Run], int]]:
    """Batches with a run that is not stored, each looked up right before it is handed out: another driver may be at work too."""
    whole = tasks.batches(plan, list(plan.runs(version)))
    state.done = state.before = sum(len(results.done([run.key for run in runs])) for runs in whole)
    for number, runs in enumerate(whole):
        if len(results.done([run.key for run in runs])) < len(runs):
            yield number, runs, 0


def _timed(*args: Any) -> tuple[list[tuple[tasks.Row | None, str]], float]:
    began = time.perf_counter()
    return tasks.compute(*args), time.perf_counter() - began


def _keep(
    plan: Sweep,
    version: str,
    results: Store,
    state: Progress,
    runs: Sequence[Run],
    found: Sequence[Any],
    seconds: float,
) -> None:
    good = [(run, row) for run, (row, _) in zip(runs, found) if row is not None]
    known = results.done([run.key for run, _ in good])
    results.add(
        plan.name, plan.function, version, plan.seed, [run for run, _ in good], [row for _, row in good], seconds
    )
    state.done += len(good) - len(known)
    for run, (row, text) in zip(runs, found):
        if row is None:
            _failed(results, state, [run], text)


def _failed(results: Store, state: Progress, runs: Sequence[Run], text: str) -> None:
    for run in runs:
        results.fail(run, text)
        state.failed += 1
        if len(state.errors) < 5:
            state.errors.append(f"{dict(run.params)}, trial {run.trial}: {text.strip().splitlines()[-1]}")


def _text(folder: Path | None) -> str | None:
    return None if folder is None else str(folder)
