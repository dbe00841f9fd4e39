"""Where results go: one SQLite file in a folder.

SQLite because it is in Python itself, survives `kill -9` at any moment (a transaction is there or not), lets several processes
write in turn, and answers SQL on a million rows in seconds without loading them. Rows are added and never changed:

    runs       one row a run: key, sweep, function, version, seed, trial, then a column for every parameter and result
    log        key, seconds, finished: what differs from one execution to the next is kept apart
    failures   key, params, traceback, finished: of runs that failed; they are not in `runs` and will be tried again
    meta       format and version

The folder also holds certificates/, certified margins that runs share.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import widemargin
from widemargin.types import InputError

from .plan import Run

FORMAT = "widemargin-sweep-1"
FILE = "results.sqlite"
OWN = ("key", "sweep", "function", "version", "seed", "trial")
WAIT = 60.0  # seconds to wait for another writer
MOST = 1_900  # columns that SQLite can hold, some left over


class Store:
    """An open folder of results. One process may have several; several processes may have one each."""

    def __init__(self, folder: str | os.PathLike[str], create: bool = True):
        self.folder = Path(folder)
        path = self.folder / FILE
        if not create and not path.is_file():
            raise InputError(
                f"{folder} holds no results of a sweep; give the folder that `widemargin sweep --store` wrote"
            )
        with _spoken(self.folder):
            if create:
                self.folder.mkdir(parents=True, exist_ok=True)
            self.db = sqlite3.connect(path, timeout=WAIT, isolation_level=None, check_same_thread=False)
            if create:
                self._begin()
            self._check()

    def _begin(self) -> None:
        self.db.execute("pragma journal_mode = wal")
        self.db.execute("pragma synchronous = normal")
        with self._transaction():
            self.db.execute("create table if not exists meta (name text primary key, value text)")
            self.db.execute(
                "create table if not exists runs (key text primary key, sweep text, function text, version text, "
                "seed integer, trial integer) without rowid"
            )
            self.db.execute("create table if not exists log (key text, seconds real, finished real)")
            self.db.execute(
                "create table if not exists failures (key text, params text, traceback text, finished real)"
            )
            self.db.execute("insert or ignore into meta values ('format', ?)", (FORMAT,))
            self.db.execute("insert or ignore into meta values ('version', ?)", (widemargin.__version__,))

    def _check(self) -> None:
        try:
            meta = dict(self.db.execute("select name, value from meta").fetchall())
        except sqlite3.DatabaseError:
            raise InputError(
                f"{self.folder / FILE} is no store of a sweep, or is damaged; choose another folder"
            ) from None
        if meta.get("format") != FORMAT:
            raise InputError(
                f"{self.folder} was written in the format {meta.get('format')}, this version writes {FORMAT}; "
                "choose another --store"
            )
        self.version = meta.get("version", "")

    def check_version(self) -> None:
        """A sweep adds to the store of its own version only; any version may read."""
        if self.version != widemargin.__version__:
            raise InputError(
                f"{self.folder} was written by widemargin {self.version} and this is {widemargin.__version__}; "
                "its rows can be read (widemargin query), but choose another --store to run in"
            )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self.db.execute("begin immediate")
        try:
            yield
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self.db.execute("rollback")
            raise
        self.db.execute("commit")

    # ------------------------------------------------------------ writing

    def add(
        self, sweep: str, function: str, version: str, seed: int, runs: Sequence[Run], rows: Sequence[Mapping[str, Any]],
        seconds: float,
    ) -> None:  # fmt: skip
        """Store the results of a batch, all of them or, if this process dies, none."""
        each = []
        for run, row in zip(runs, rows):
            known = dict(zip(OWN, (run.key, sweep, function, version, seed, run.trial)))
            params = {_column(name): _cell(value) for name, value in run.params.items()}
            # A result that is called like a parameter stands beside it.
            results = {
                (f"result_{name}" if name in params or name in OWN else _column(name)): _cell(v)
                for name, v in row.items()
            }
            each.append(known | params | results)
        with _spoken(self.folder), self._transaction():
            self._widen(each)
            for one in each:
                names = ", ".join(_quoted(name) for name in one)
                marks = ", ".join("?" * len(one))
                self.db.execute(f"insert or ignore into runs ({names}) values ({marks})", list(one.values()))
            share = seconds / max(1, len(runs))
            self.db.executemany("insert into log values (?, ?, ?)", [(run.key, share, time.time()) for run in runs])

    def fail(self, run: Run, text: str) -> None:
        with _spoken(self.folder), self._transaction():
            row = (run.key, json.dumps(run.params, sort_keys=True), text, time.time())
            self.db.execute("insert into failures values (?, ?, ?, ?)", row)

    def _widen(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add columns for names that are new."""
        there = {name.lower() for name in self.columns()}
        for name in dict.fromkeys(name for row in rows for name in row):
            if name.lower() in there:
                continue
            if len(there) >= MOST:
                raise InputError(f"the table has {MOST} columns, no more fit; use `keep` to store fewer results")
            self.db.execute(f"alter table runs add column {_quoted(name)}")
            there.add(name.lower())

    # ------------------------------------------------------------ reading

    def columns(self) -> list[str]:
        return [row[1] for row in self.db.execute("pragma table_info(runs)")]

    def done(self, keys: Sequence[str]) -> set[str]:
        """Which of these runs are stored."""
        found: set[str] = set()
        for k in range(0, len(keys), 500):
            some = keys[k : k + 500]
            marks = ", ".join("?" * len(some))
            found |= {row[0] for row in self.db.execute(f"select key from runs where key in ({marks})", some)}
        return found

    def __len__(self) -> int:
        return self.db.execute("select count(*) from runs").fetchone()[0]

    def close(self) -> None:
        self.db.close()


def query(folder: str | os.PathLike[str], sql: str) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
    """Names of the columns, and the rows one by one, of an SQL query; nothing can be changed by it."""
    path = Path(folder) / FILE
    Store(folder, create=False).close()
    db = sqlite3.connect(f"file:{path.resolve()}?mode=ro", uri=True, timeout=WAIT)
    for name, function in (("sqrt", math.sqrt), ("ln", math.log), ("exp", math.exp)):
        db.create_function(name, 1, _quiet(function), deterministic=True)
    db.create_aggregate("median", 1, _Median)  # type: ignore[arg-type]
    db.create_aggregate("stdev", 1, _Deviation)  # type: ignore[arg-type]
    try:
        cursor = db.execute(sql)
    except (sqlite3.Error, sqlite3.Warning) as error:
        names = [row[1] for row in db.execute("pragma table_info(runs)")]
        shown = ", ".join(names[:40]) + (", ..." if len(names) > 40 else "")
        raise InputError(f"the query failed: {error}; the table runs has the columns {shown}") from None
    if cursor.description is None:
        raise InputError("the query returns nothing; write a select")
    return [part[0] for part in cursor.description], iter(cursor)


def load(folder: str | os.PathLike[str], sql: str = "select * from runs order by key") -> Any:
    """The table, or what a query returns, as a pandas DataFrame."""
    try:
        import pandas as pd
    except ImportError:
        raise InputError("load needs pandas; install it, or use query") from None
    names, rows = query(folder, sql)
    return pd.DataFrame(list(rows), columns=names)


class _Median:
    def __init__(self) -> None:
        self.values: list[float] = []

    def step(self, value: float | None) -> None:
        if value is not None:
            self.values.append(value)

    def finalize(self) -> float | None:
        import statistics

        return statistics.median(self.values) if self.values else None


class _Deviation:
    """Standard deviation of a sample (n - 1), by Welford's recurrence."""

    def __init__(self) -> None:
        self.n, self.mean, self.squares = 0, 0.0, 0.0

    def step(self, value: float | None) -> None:
        if value is not None:
            self.n += 1
            change = value - self.mean
            self.mean += change / self.n
            self.squares += change * (value - self.mean)

    def finalize(self) -> float | None:
        return math.sqrt(self.squares / (self.n - 1)) if self.n > 1 else None


def _quiet(function: Any) -> Any:
    def one(value: Any) -> Any:
        try:
            return None if value is None else function(value)
        except (ValueError, OverflowError, TypeError):
            return None

    return one


def _cell(value: Any) -> Any:
    """What SQLite holds: NaN would become NULL there, infinities are texts it sorts as numbers."""
    if isinstance(value, bool):
        return int(value)
    if value is None or isinstance(value, int | float | str):
        return value if not isinstance(value, int) or abs(value) < 2**63 else float(value)
    return json.dumps(value, default=str)


def _column(name: str) -> str:
    return re.sub(r"[\x00-\x1f\"]", "_", name)[:100]


def _quoted(name: str) -> str:
    return f'"{name}"'


@contextlib.contextmanager
def _spoken(folder: Path) -> Iterator[None]:
    """Errors of disk and database as a sentence."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise InputError(
                f"{folder} is being written by another process that does not let go; try again later"
            ) from None
        raise InputError(
            f"{folder} cannot be written: {error}; what was stored before is safe, make room and run the same command again"
        ) from None
    except sqlite3.DatabaseError as error:
        raise InputError(
            f"{folder / FILE} is no store of a sweep, or is damaged ({error}); choose another folder"
        ) from None
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror or error}; choose another --store") from None
