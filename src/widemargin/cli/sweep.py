"""`widemargin sweep` and `query`: many runs into one store, and SQL on what came out."""

from __future__ import annotations

import argparse
import contextlib
import csv
import itertools
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from widemargin.json_values import plain_json
from widemargin.types import InputError

from .options import INTERRUPTED, Command, integer, legal, timed
from .screen import EVERY, is_terminal, plain, print_table, say, shown, terminal

ROWS = 200  # that a table on the screen shows
CELL = 1_000  # characters of a text in it
TABLE = 2**20  # characters after which it ends: to set more would take minutes
IN_MEMORY = 2**24  # characters of JSON; more go to a file until all are there
GRACE = 1.0  # seconds after its time, or after Ctrl-C, that a query has to end by itself


def sweep(options: argparse.Namespace) -> int:
    """Run a sweep; status 1 if a run failed."""
    from widemargin import sweep as sweeps

    plan = sweeps.Sweep.load(options.file, trust=options.trust)
    store = options.store or f"{Path(options.file).stem}_results"
    if not legal(store):
        raise InputError(f"cannot write {store[:80]!r}: this is no legal folder name; choose another --store")
    devices = [name.strip() for name in (options.devices or "").split(",") if name.strip()]
    if options.dry_run:
        return _dry_run(plan, store, options)
    with _progress(plan.name) as report:
        state = sweeps.sweep(
            plan,
            store,
            engine=options.engine,
            workers=options.workers,
            address=options.address,
            devices=devices,
            progress=report,
        )
    shown = asdict(state) | {"store": str(store), "rate": state.rate, "left": state.left}
    if options.json:
        print(json.dumps(plain_json(shown), allow_nan=False))
    new = state.done - state.before
    say(f"{state.done} of {state.total} runs are in {store}, {new} of them new, in {_clock(state.seconds)}")
    if state.lost:
        say(f"workers died; batches were handed out again {_count(state.lost, 'time')}")
    for text in state.errors:
        say(f"failed: {text}")
    if state.failed:
        say(f"{_count(state.failed, 'run')} failed, to be tried again")
        say(f'widemargin query {store} "select * from failures" tells more')
    if state.interrupted:
        say("interrupted; the same command goes on from here")
        return INTERRUPTED
    return 1 if state.failed else 0


def _dry_run(plan: Any, store: str, options: argparse.Namespace) -> int:
    from widemargin import sweep as sweeps

    estimate = sweeps.dry_run(plan, store, workers=options.workers)
    if options.json:
        print(json.dumps(asdict(estimate)))
        return 0
    batches = "1 batch" if estimate.batches == 1 else f"{estimate.batches} batches"
    print(f"{_count(estimate.runs, 'run')}, {estimate.done} of them stored already; {batches} to do")
    if estimate.sample or estimate.more:
        timed_ones = f"{estimate.sample} timed" + ", and one broken off" * estimate.more
        print(
            f"a batch takes {'at least ' * estimate.more}{estimate.seconds_per_batch:.3g} s ({timed_ones}), so "
            f"{'at least' if estimate.more else 'about'} {_clock(estimate.seconds)} with "
            f"{_count(estimate.workers, 'worker')} like this process"
        )
    return 0


@contextlib.contextmanager
def _progress(name: str) -> Iterator[Callable[[Any], None]]:
    """A live bar on a terminal, otherwise a line now and then."""
    console = terminal(stderr=True)
    if not console.is_terminal:
        last = 0.0

        def line(state: Any) -> None:
            nonlocal last
            if state.seconds - last >= EVERY:
                last = state.seconds
                say(f"{name}: {state.done} of {state.total} runs, {_words(state)}")

        yield line
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TextColumn("{task.fields[words]}", markup=False), console=console, transient=True) as bar:
        task = bar.add_task(str(plain(name)), total=None, words="")
        yield lambda state: bar.update(task, total=state.total, completed=state.done, words=_words(state))


def _words(state: Any) -> str:
    parts = [f"{state.rate:.3g} runs/s" if state.rate else "starting"]
    if math.isfinite(state.left):
        parts.append(f"{_clock(state.left)} left")
    if state.failed:
        parts.append(f"{state.failed} failed")
    return ", ".join(parts)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _clock(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.3g} s"
    if seconds < 5400:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h"


def query(options: argparse.Namespace) -> int:
    """Print what an SQL query on a store returns."""
    from widemargin import sweep as sweeps
    from widemargin.sweep import sql

    sql.bound_memory()
    try:
        with contextlib.ExitStack() as watched:
            watched.enter_context(_ended(options.time_limit, sql.TOO_SLOW.format(options.time_limit)))
            names, rows = sweeps.query(options.store, options.sql, time_limit=options.time_limit)
            _print_rows(names, _then(rows, watched.close), options)
    except MemoryError:
        raise InputError(sql.TOO_LARGE) from None
    return 0


def _then(rows: Iterator[Any], close: Callable[[], None]) -> Iterator[Any]:
    """The rows, then `close()`: whoever reads what is printed may take all the time he likes."""
    yield from rows
    close()


@contextlib.contextmanager
def _ended(limit: float, sentence: str) -> Iterator[None]:
    """End the process if it is here `GRACE` after the limit, or after Ctrl-C and what ends as it does.

    Within one of its functions SQLite looks at no clock and Python sees no Ctrl-C, and that can take hours: instr of two long
    texts. Another thread can still act, and nothing is lost, since a query only reads.
    """
    import signal
    import socket
    import threading

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ends = [getattr(signal, name, signal.SIGINT) for name in ("SIGTERM", "SIGHUP")]
    ours, other = socket.socketpair()
    other.setblocking(False)
    before = signal.set_wakeup_fd(other.fileno(), warn_on_full_buffer=False)  # told at once of every signal

    def wait() -> None:
        end, status, text = time.monotonic() + limit + GRACE, 2, f"widemargin: {sentence}"
        while (left := end - time.monotonic()) > 0:
            ours.settimeout(min(left, threading.TIMEOUT_MAX))
            with contextlib.suppress(TimeoutError):
                told = ours.recv(1)
                if told == b"":  # closed
                    return
                if told[0] in (signal.SIGINT, *ends):
                    end, status, text = min(end, time.monotonic() + GRACE), 128 + told[0], "interrupted"
        say(text)
        os._exit(status)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        other.close()
        thread.join()
        ours.close()


def _print_rows(names: list[str], rows: Iterator[tuple[Any, ...]], options: argparse.Namespace) -> None:
    if options.csv:
        first = list(itertools.islice(rows, 1))  # where there is none for a reason, that is all that is said
        writer = csv.writer(sys.stdout, lineterminator="\n")
        lines: Iterator[Sequence[Any]] = itertools.chain([names], first, rows)
        if is_terminal(sys.stdout):  # which would obey what is in a text; a file or a pipe gets it as it is
            lines = ([shown(cell) if isinstance(cell, str) else cell for cell in line] for line in lines)
        writer.writerows(lines)
    elif options.json:
        names = _distinct(names)
        with tempfile.SpooledTemporaryFile(IN_MEMORY, "w+", encoding="utf-8") as whole:  # a list, or nothing at all
            whole.write("[")
            for k, row in enumerate(rows):
                for name, value in zip(names, row):
                    if isinstance(value, bytes):
                        raise InputError(f"the column {name!r} holds a blob, which JSON has not; select hex(..) of it")
                whole.write(",\n " * (k > 0) + json.dumps(plain_json(dict(zip(names, row))), allow_nan=False))
            whole.write("]\n")
            whole.seek(0)
            shutil.copyfileobj(whole, sys.stdout)
    else:
        _print_some(_distinct(names), rows)


def _print_some(titles: Sequence[str], rows: Iterator[tuple[Any, ...]]) -> None:
    """The first rows as a table; long texts are cut at once, so that no more than one row is in memory as it was."""
    shown: list[list[str]] = []
    words: set[str] = set()
    length, cut = 0, False
    for row in itertools.islice(rows, ROWS):
        words |= {name for name, value in zip(titles, row) if not isinstance(value, int | float | None)}
        cut = cut or any(isinstance(value, str | bytes) and len(value) > CELL for value in row)
        shown.append([_shown(value) for value in row])
        length += sum(map(len, shown[-1]))
        if length > TABLE:
            break
    more = sum(1 for _ in rows)  # before anything is printed: their time may be over on the way
    right = [name for name in titles if name not in words]
    print_table("", titles, shown, right, folded=[name for name in titles if name in words])
    if cut:
        say(f"texts are shown up to {CELL} characters; --csv and --json print all of them")
    if more:
        say(f"{more} more rows; --csv and --json print all of them, and limit N in the query fewer")


def _distinct(names: Sequence[str]) -> list[str]:
    """Names as keys of an object: one that is there already gets a number, as in a, a_2."""
    distinct: list[str] = []
    for name in names:
        free = (f"{name}_{k}" for k in itertools.count(2))
        distinct.append(
            name if name not in distinct else next(other for other in free if other not in {*distinct, *names})
        )
    return distinct


def _shown(value: Any) -> str:
    if isinstance(value, str | bytes) and len(value) > CELL:
        return f"{value[:CELL]!s}..."
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def add(command: Command) -> None:
    parser = command("sweep", sweep, "run a function over a grid or random draws of its parameters, in parallel")
    parser.add_argument("file", metavar="FILE.toml", help="function, parameters, repeats; docs/sweeps.md tells more")
    parser.add_argument("--engine", choices=("local", "ray", "dask"), default="local", help="who computes [local]")
    parser.add_argument("--workers", metavar="N", type=integer(1, 100_000), help="processes [one for each core]")
    parser.add_argument("--store", metavar="DIR", help="where results go; the same again goes on [FILE_results]")
    parser.add_argument(
        "--address", metavar="A", help="of a Ray or Dask cluster [RAY_ADDRESS, or a new one on this machine]"
    )
    parser.add_argument("--devices", metavar="D,D", help="GPUs to share the batches, such as cuda:0,cuda:1")
    parser.add_argument(
        "--trust",
        action="store_true",
        help="run the function that FILE names, also if it is none of widemargin, or writes files",
    )
    parser.add_argument("--dry-run", action="store_true", help="count runs and batches, and time a few; store nothing")
    parser.add_argument("--json", action="store_true", help="print one object")

    parser = command("query", query, "read the results of a sweep by SQL")
    parser.add_argument("store", metavar="DIR", help="the --store of a sweep")
    parser.add_argument("sql", metavar="SQL", help='such as "select width, avg(margin_M2) from runs group by width"')
    timed(parser, "seconds for the query")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--json", action="store_true", help="print a list of objects")
    which.add_argument("--csv", action="store_true", help="print comma-separated values")
