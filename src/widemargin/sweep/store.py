"""Where results go: one SQLite file in a folder.

SQLite because it is in Python itself, survives `kill -9` at any moment (a transaction is there or not), lets several processes
write in turn, and answers SQL on a million rows in seconds without loading them. Rows are added and never changed:

    runs       one row a run: key, sweep, function, version, seed, trial, then a column for every parameter and result
    log        key, seconds, finished: what differs from one execution to the next is kept apart
    failures   key, params, trial, traceback, finished, sweep, version: a row each time a run failed; it will be tried again
    sweeps     name, plan, version: what was asked for, as JSON
    meta       format and version

The folder also holds certificates/, certified margins that runs share, and batches.lock, by which drivers agree on who does what.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sqlite3
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import widemargin
from widemargin.disk import identity, make_folders, open_lock
from widemargin.json_values import plain_json
from widemargin.types import InputError, show

from .plan import OWN, Run, Sweep, encodable, read_plan
from .sql import LONGEST, TOO_SLOW, TURN, Clock, add_functions, begin_alone, bounded, only_reading

FORMAT = "widemargin-sweep-1"
FILE = "results.sqlite"
LOCKS = "batches.lock"
DAMAGED = (sqlite3.Error, UnicodeDecodeError)  # the latter where names or sentences of SQLite are no text any more
WAIT = 60.0  # seconds to wait for another writer
LOOKS = 1.0  # seconds that a store is looked through before more is written to it
MOST = 1_900  # columns that SQLite can hold, some left over
TOO_LONG = "longer than 16 MB, which is all that is read"
CUT = 1_000_000  # characters of a traceback that are kept, the last ones
CHUNK = 50_000  # rows that `load` holds as Python objects at a time
GONE = "{} was removed or replaced while a sweep was writing to it; rows from then on are not stored, run the same command again"
FULL = "{} cannot be written: {}; what was stored before is safe, make room and run the same command again"
LOCKED = "{} is being written by another process that does not let go; try again later"
HEAD = "Traceback (most recent call last):"
TABLES = ("meta", "runs", "log", "failures", "sweeps")


class Store:
    """An open folder of results. One process may have several; several processes may have one each.

    `folder` is made where there is none. What is stored is never changed, so that a sweep can go on where it ended. `wait` is
    how many seconds another process may hold the file, until that is an InputError.

    >>> from widemargin.sweep import Run, Store, query
    >>> store = Store("results")
    >>> store.add("mine", "square", "1", 0, [Run("a1", {"x": 3}, 0)], [{"y": 9.0}], seconds=0.1)  # the number of new rows
    1
    >>> store.close()
    >>> names, rows = query("results", "select x, y from runs")
    >>> names, list(rows)
    (['x', 'y'], [(3, 9.0)])
    """

    def __init__(self, folder: str | os.PathLike[str], *, wait: float = WAIT):
        if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait < 1e9:
            raise InputError(f"wait must be a number of seconds, not {show(wait)}")
        self.folder, self.wait = _folder(folder), wait
        path = self.folder / FILE
        # Before anything is written to a file that may be another's.
        self.version = _meta(folder, wait) if check_store(folder, wait) else widemargin.__version__
        with _in_one_sentence(self.folder):
            make_folders(self.folder)
            self.db = bounded(sqlite3.connect(path, timeout=wait, isolation_level=None, check_same_thread=False))
            try:
                self._place = identity(path)
                self._check_pages()
                if self.version == widemargin.__version__:
                    self._begin()
            except BaseException:
                self.db.close()
                raise
        self._locks: Any = None

    def _begin(self) -> None:
        """Make what is missing, in a store that this version may add to."""
        self._write_ahead()
        self.db.execute("pragma synchronous = normal")
        with self._transaction():
            self.db.execute("create table if not exists meta (name text primary key, value text)")
            self.db.execute(
                "create table if not exists runs (key text primary key, sweep text, function text, version text, "
                "seed integer, trial integer) without rowid"
            )
            self.db.execute("create table if not exists log (key text, seconds real, finished real)")
            self.db.execute(
                "create table if not exists failures (key text, params text, trial integer, traceback text, finished real, "
                "sweep text, version text)"
            )
            there = _table(self.db, "failures")
            for name in ("sweep", "version"):  # stores of earlier days have none
                if name not in there:
                    self.db.execute(f"alter table failures add column {name} text")
            self.db.execute(
                "create table if not exists sweeps (name text, plan text, version text, primary key (name, plan, version))"
            )
            self.db.execute("insert or ignore into meta values ('format', ?)", (FORMAT,))
            self.db.execute("insert or ignore into meta values ('version', ?)", (widemargin.__version__,))

    def _check_pages(self) -> None:
        """Whether the pages of the file belong together, as far as a second of looking can tell: rows that are put on damaged
        ones may not be found again."""
        clock = Clock(LOOKS)
        self.db.set_progress_handler(clock, TURN)
        try:
            said = self.db.execute("pragma quick_check(1)").fetchone()[0]
        except sqlite3.OperationalError:
            if not clock.over:
                raise
            said = "ok"
        finally:
            self.db.set_progress_handler(None, 0)
        if said != "ok":
            raise sqlite3.DatabaseError(" ".join(str(said).split())[:200])

    def _write_ahead(self) -> None:
        """Readers then never wait for writers nor writers for readers. SQLite itself does not wait for its turn to switch."""
        began = time.monotonic()
        while True:
            try:
                self.db.execute("pragma journal_mode = wal")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() - began > self.wait:
                    raise
                time.sleep(0.02)

    def check_version(self) -> None:
        """A sweep adds to the store of its own version only; any version may read."""
        if self.version != widemargin.__version__:
            raise InputError(
                f"{self.folder} was written by widemargin {self.version} and this is {widemargin.__version__}; "
                "its rows can be read (widemargin query), but choose another --store to run in"
            )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            begin_alone(self.db, self.wait)  # in here: Ctrl-C may come when it has begun
            yield
            if identity(self.folder / FILE) != self._place:  # SQLite would go on in a file that has no name any more
                raise InputError(GONE.format(self.folder))
            self.db.execute("commit")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self.db.execute("rollback")
            raise

    # ------------------------------------------------------------ writing

    def note(self, name: str, plan: str, version: str) -> None:
        """Write down what a sweep asks for."""
        if len(plan) > LONGEST // 2:
            raise InputError("the plan has more than 8 MB as JSON; give fewer or shorter values, and several sweeps")
        with _in_one_sentence(self.folder), self._transaction():
            self.db.execute("insert or ignore into sweeps values (?, ?, ?)", (name, plan, version))

    def add(
        self, sweep: str, function: str, version: str, seed: int, runs: Sequence[Run], rows: Sequence[Mapping[str, Any]],
        seconds: float,
    ) -> int:  # fmt: skip
        """Store the results of a batch, all of them or, if this process dies, none; a run that is there stays as it is.

        Returns how many are new.
        """
        each = [
            dict(zip(OWN, (run.key, sweep, function, version, seed, run.trial))) | cells(run.params, row)
            for run, row in zip(runs, rows)
        ]
        share, now, new = seconds / max(1, len(runs)), time.time(), 0
        with _in_one_sentence(self.folder), self._transaction():
            self._widen(each)
            for row in each:
                names = ", ".join(quoted(name) for name in row)
                marks = ", ".join("?" * len(row))
                # Not "or ignore": where a table refuses a row for anything else, it would be lost without a word.
                sql = f"insert into runs ({names}) values ({marks}) on conflict (key) do nothing"
                if self.db.execute(sql, list(row.values())).rowcount:
                    new += 1
                    self.db.execute("insert into log values (?, ?, ?)", (row["key"], share, now))
        return new

    def fail(self, runs: Sequence[Run], texts: Sequence[str], sweep: str = "", version: str = "") -> None:
        """Write down that runs raised, with the text of each failure."""
        rows = [
            (
                run.key,
                json.dumps(run.params, sort_keys=True),
                run.trial,
                _cell(text[-CUT:]),
                time.time(),
                sweep,
                version,
            )
            for run, text in zip(runs, texts)
        ]
        names = "key, params, trial, traceback, finished, sweep, version"
        with _in_one_sentence(self.folder), self._transaction():
            self.db.executemany(f"insert into failures ({names}) values (?, ?, ?, ?, ?, ?, ?)", rows)

    def _widen(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add columns for names that are new."""
        there = {name.lower(): name for name in self.columns()}
        for name in dict.fromkeys(name for row in rows for name in row):
            known = there.get(name.lower())
            if known is not None and known != name:
                raise InputError(f"the column {name!r} would differ from {known!r} in case only; rename one of them")
            if known is not None:
                continue
            if len(there) >= MOST:
                raise InputError(f"the table has {MOST} columns, no more fit; use `keep` to store fewer results")
            self.db.execute(f"alter table runs add column {quoted(name)}")
            there[name.lower()] = name

    # ------------------------------------------------------------ who does what

    def claim(self, key: str) -> bool:
        """Take the batch of this name, unless another living process has it. Where a system has no such locks: yes.

        The lock is on one byte of a file, so the system gives it back when its owner dies, however that happens.
        """
        try:
            import fcntl
        except ImportError:
            return True
        if self._locks is None:
            with _in_one_sentence(self.folder):
                self._locks = os.fdopen(open_lock(self.folder / LOCKS), "r+b")
        try:
            fcntl.lockf(self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(key[:12], 16))
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            return True
        return True

    def release(self, key: str) -> None:
        """Let other drivers have the batch that was claimed under `key`."""
        if self._locks is not None:
            import fcntl

            with contextlib.suppress(OSError):
                fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, int(key[:12], 16))

    # ------------------------------------------------------------ reading

    def columns(self) -> list[str]:
        """Names of all columns of the table."""
        with _in_one_sentence(self.folder):
            return _table(self.db, "runs")

    def count(self, sweep: str, function: str, version: str, seed: int) -> int:
        """How many rows a sweep has."""
        sql = "select count(*) from runs where sweep = ? and function = ? and version = ? and seed = ?"
        with _in_one_sentence(self.folder):
            return self.db.execute(sql, (sweep, function, version, seed)).fetchone()[0]

    def not_kept(self, plan: Sweep, version: str) -> list[str]:
        """Results that a plan keeps, and that stored runs lack because an earlier plan that shares runs with it kept fewer.

        Rows never change, so they would stay without them. ["all results"] where this plan keeps all and the earlier did not.
        """
        missing: dict[str, None] = {}
        there = set(self.columns())
        with _in_one_sentence(self.folder):
            for name, text in self.db.execute("select name, plan from sweeps where version = ?", (version,)):
                try:
                    earlier = read_plan(text)
                except ValueError as error:
                    raise InputError(
                        f"{self.folder / FILE} is damaged (a plan of {show(name)}: {error}); its rows can still be read "
                        "(widemargin query), but choose another --store"
                    ) from None
                kept = earlier.get("keep")
                if kept is None or not plan.shares_runs(earlier):
                    continue
                params = {*plan.fixed, *plan.grid, *plan.random}
                reserved = {name.lower() for name in (*OWN, *params)}
                if plan.keep is None:
                    lacking = ["all results"]
                    empty = there - {*OWN, *params, *(_column(name, reserved) for name in kept)}
                else:
                    lacking = [name for name in plan.keep if name not in kept]
                    empty = there & {_column(name, reserved) for name in lacking}
                sql = "select 1 from runs where sweep = ? and function = ? and version = ? and seed = ?"
                sql += "".join(f" and {quoted(column)} is null" for column in sorted(empty)) + " limit 1"
                if lacking and self.db.execute(sql, (name, plan.function, version, plan.seed)).fetchone():
                    missing |= dict.fromkeys(lacking)
        return list(missing)

    def done(self, keys: Sequence[str]) -> set[str]:
        """Which of these runs are stored."""
        done: set[str] = set()
        with _in_one_sentence(self.folder):
            for k in range(0, len(keys), 500):
                some = keys[k : k + 500]
                marks = ", ".join("?" * len(some))
                done |= {row[0] for row in self.db.execute(f"select key from runs where key in ({marks})", some)}
        return done

    def __len__(self) -> int:
        with _in_one_sentence(self.folder):
            return self.db.execute("select count(*) from runs").fetchone()[0]

    def close(self) -> None:
        """Close the file; what was added stays."""
        self.db.close()
        if self._locks is not None:
            self._locks.close()


def cells(params: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters and results of one run as cells; a result that is called like a parameter is called result_NAME."""
    stored = {name: _cell(value) for name, value in params.items()}
    reserved = {name.lower() for name in (*OWN, *params)}
    taken = set(reserved)
    for name, value in row.items():
        if not isinstance(name, str) or not name or "\0" in name or len(name) > 200 or not encodable(name):
            raise InputError(f"a result is called {name!r}; a name must be a text of 1 to 200 characters")
        column = _column(name, reserved)
        if column.lower() in taken:
            raise InputError(
                f"two results would be called {column!r} (in a table upper and lower case are one); rename one"
            )
        taken.add(column.lower())
        try:
            stored[column] = _cell(value)
        except Exception as error:  # of a value's own str(), too
            raise InputError(f"the result {name!r} cannot be stored: {error}; return numbers, texts or lists") from None
    return stored


def check_size(stored: Mapping[str, Any]) -> None:
    """An InputError where the cells of a row are more than readers take, some left over for SQLite's own bytes."""
    if sum(len(value.encode()) for value in stored.values() if isinstance(value, str)) > LONGEST - (1 << 17):
        raise InputError("parameters and results of a run are longer than 16 MB; return less, or use `keep`")


def _column(name: str, reserved: Collection[str]) -> str:
    return f"result_{name}" if name.lower() in reserved else name


def last_words(traceback: str) -> str:
    """The line "Error: words" of the last exception, which is the first below its frames; or the last line of all.

    What follows it is the rest of its message and may look like anything.
    """
    lines = traceback.strip().splitlines() or ["no message"]
    if HEAD in lines:
        frames = len(lines) - lines[::-1].index(HEAD)
        return next((line for line in lines[frames:] if not line.startswith(" ")), lines[-1])
    return next((line for line in reversed(lines) if re.match(r"[A-Za-z_][\w.]*: ", line)), lines[-1])


# ---------------------------------------------------------------- reading


def query(
    folder: str | os.PathLike[str], sql: str, *, time_limit: float = math.inf
) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
    """Names of the columns, and the rows one by one, of an SQL query; nothing can be changed by it.

    Beyond SQL of SQLite there are median(x), stdev(x) (of a sample), sqrt, ln, log10, exp and pow. NULL stands for NaN and for
    results that a run does not have.

    `folder` is the store, and `sql` asks of the table runs. A query that takes longer than `time_limit` seconds, until its last
    row is taken, ends with an InputError, and so does one with a value of more than 16 MB.

    >>> from widemargin.sweep import Run, Store, query
    >>> store = Store("results")
    >>> runs = [Run(f"a{x}", {"x": x}, 0) for x in (1, 2, 3)]
    >>> store.add("mine", "square", "1", 0, runs, [{"y": float(run.params["x"] ** 2)} for run in runs], seconds=0.1)
    3
    >>> store.close()
    >>> names, rows = query("results", "select median(y), sqrt(max(y)) as root from runs")
    >>> names[1], list(rows)
    ('root', [(4.0, 3.0)])
    """
    if not isinstance(sql, str) or not encodable(sql):
        raise InputError(f"a query must be a text of SQL, not {show(sql)}")
    if not isinstance(time_limit, int | float) or not time_limit > 0:
        raise InputError(f"time_limit must be a positive number of seconds, not {show(time_limit)}")
    _meta(folder)
    with _reading(folder):
        db = _reader(folder)
    clock, known = Clock(min(time_limit, 1e9)), []
    try:
        known = _table(db, "runs")
        db.set_progress_handler(clock, TURN)
        db.set_authorizer(only_reading)
        add_functions(db)
        clock.ring(db)
        cursor = db.execute(sql)
    except BaseException as error:
        clock.stop()
        with contextlib.closing(db):
            if not isinstance(error, (*DAMAGED, sqlite3.Warning, OverflowError, SystemError)):
                raise
            raise _failed(error, known, clock, db) from None
    if cursor.description is None:
        clock.stop()
        db.close()
        raise InputError("the query returns nothing; write a select")
    rows = _rows(db, cursor, clock)
    next(rows)  # it has begun: where it is dropped, even without a row taken, the store and the clock are let go
    return [part[0] for part in cursor.description], rows


def _rows(db: sqlite3.Connection, cursor: sqlite3.Cursor, clock: Clock) -> Iterator[tuple[Any, ...]]:
    try:
        yield ()
        for row in cursor:
            if clock():  # rows can be long and made in few steps, and whoever takes them needs time too
                raise sqlite3.OperationalError("interrupted")
            yield row
    except (*DAMAGED, OverflowError, SystemError) as error:
        raise _failed(error, [], clock, db) from None
    finally:
        clock.stop()
        db.close()


def _failed(
    error: Exception, names: Sequence[str], clock: Clock, db: sqlite3.Connection
) -> InputError | KeyboardInterrupt:
    text = str(error)
    if clock.over or (text == "interrupted" and clock()):
        return InputError(TOO_SLOW.format(clock.limit))
    if "too big" in text:
        return InputError(f"a value is {TOO_LONG}; ask for other columns, or for less of them")
    # Python hands text that is no UTF-8 to none of our functions: it says one of these things, according to the version.
    broken = isinstance(error, UnicodeDecodeError | SystemError)
    if broken or (text.startswith("user-defined") and _has_broken_text(db)):
        return InputError("the store is damaged: some of its text is none; ask for other columns, or add the runs anew")
    if text == "interrupted" or text.startswith("user-defined"):
        # Ctrl-C came while Python had its turn, in the progress handler or in a function of ours. They raise nothing else.
        return KeyboardInterrupt()
    if any(words in text for words in ("not authorized", "authorization denied", "prohibited")):
        return InputError("a query can only read; write a select")
    if any(words in text for words in ("image is malformed", "malformed database", "disk I/O", "not a database")):
        return InputError(f"the store is damaged ({text}); copy what can be read with `sqlite3 {FILE} .recover`")
    shown = ", ".join(names[:40]) + (", ..." if len(names) > 40 else "")
    return InputError(f"the query failed: {text}" + (f"; the table runs has the columns {shown}" if names else ""))


def _has_broken_text(db: sqlite3.Connection) -> bool:
    """Whether the table cannot be read, or has text that is no UTF-8, which functions of ours cannot be called with."""
    db.text_factory = bytes
    try:
        for row in db.execute("select * from runs"):
            for value in row:
                if isinstance(value, bytes):
                    value.decode()
    except DAMAGED:
        return True
    return False


def load(folder: str | os.PathLike[str], sql: str | None = None) -> Any:
    """The table, or what a query returns, as a pandas DataFrame; what is missing is NaN.

    The whole table comes in the order of the keys, with its own columns first, then parameters and results by name: nothing
    depends on the order in which runs were computed.

    `folder` is the store; `sql` is a query of `query`. The table has one row for each run.

    >>> from widemargin.sweep import Run, Store, load
    >>> store = Store("results")
    >>> store.add("mine", "square", "1", 0, [Run("a1", {"x": 3}, 0)], [{"y": 9.0}], seconds=0.1)
    1
    >>> store.close()
    >>> load("results")[["x", "y"]].to_dict("records")
    [{'x': 3, 'y': 9.0}]
    """
    try:
        import pandas as pd
    except ImportError:
        raise InputError("load needs pandas; install it, or use query") from None
    if sql is None:
        others, parameters = _names(folder)
        chosen = [*OWN, *sorted(parameters), *sorted(set(others) - parameters)]
        sql = f"select {', '.join(quoted(name) for name in chosen)} from runs order by key"
    names, rows = query(folder, sql)
    parts: list[Any] = []
    while some := [row for _, row in zip(range(CHUNK), rows)]:
        each = {k: column for k, column in enumerate(zip(*some)) if any(value is not None for value in column)}
        # Columns are called by number, since a query may use a name twice; those without values are filled below.
        parts.append(pd.DataFrame(each, index=range(len(some)), columns=list(each)))
    whole = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    whole = whole.reindex(columns=range(len(names)))
    whole.columns = names
    return whole


def _names(folder: str | os.PathLike[str]) -> tuple[list[str], set[str]]:
    """Columns of `runs` beyond its own, and which of them are parameters of its sweeps."""
    _meta(folder)
    with _reading(folder), contextlib.closing(_reader(folder)) as db:
        there = [name for name in _table(db, "runs") if name not in OWN]
    params = {name for plan in plans(folder) for part in ("fixed", "grid", "random") for name in plan[part]}
    return there, params & set(there)


def plans(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """What sweeps asked for, the last one last. What cannot be read is left out: rows do not need it."""
    _meta(folder)
    with _reading(folder), contextlib.closing(_reader(folder)) as db:
        if not _table(db, "sweeps"):
            return []
    read = []
    for (text,) in query(folder, "select plan from sweeps order by rowid")[1]:
        with contextlib.suppress(ValueError):
            read.append(read_plan(text))
    return read


def _table(db: sqlite3.Connection, name: str) -> list[str]:
    """Its columns."""
    return [row[1] for row in db.execute(f"pragma table_info({name})")]


def _reader(folder: str | os.PathLike[str], wait: float = WAIT) -> sqlite3.Connection:
    path = Path(folder) / FILE
    # A folder that is not ours to write in has no room for SQLite's shared memory; without a log there is nothing to share.
    frozen = not os.access(folder, os.W_OK) and not Path(f"{path}-wal").exists()
    place = f"file:{quote(os.fsencode(path.resolve()))}?mode=ro{'&immutable=1' * frozen}"
    return bounded(sqlite3.connect(place, uri=True, timeout=wait))


@contextlib.contextmanager
def _reading(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Errors of a store that is read as a sentence: it may be removed or replaced at any moment."""
    path = Path(folder) / FILE
    try:
        yield
    except DAMAGED as error:
        if "disk I/O" in str(error) or "is full" in str(error):
            raise InputError(FULL.format(folder, error)) from None
        if "locked" in str(error):
            raise InputError(LOCKED.format(folder)) from None
        if "unable to open" in str(error):  # which says nothing of what is in it
            raise InputError(f"{path} cannot be opened; check that you may read it, and `ulimit -n`") from None
        raise InputError(f"{path} is no store of a sweep, or is damaged ({error}); choose another folder") from None


def _meta(folder: str | os.PathLike[str], wait: float = WAIT) -> str:
    """The version that wrote a store; InputError where it is none."""
    meta = _all_meta(folder, wait)
    if not meta:
        raise InputError(f"{folder} holds no results of a sweep; give the folder that `widemargin sweep --store` wrote")
    return meta.get("version", "")


def _all_meta(folder: str | os.PathLike[str], wait: float = WAIT) -> dict[str, str]:
    """What a store says of itself; nothing where there is none, or another process is about to make one."""
    path = _folder(folder) / FILE
    _check_regular(path)
    if not path.is_file() or not path.stat().st_size:
        return {}
    with _reading(folder), contextlib.closing(_reader(folder, wait)) as db:
        clock = Clock(WAIT)
        db.set_progress_handler(clock, TURN)
        if not db.execute("select count(*) from sqlite_master").fetchone()[0]:
            return {}
        _check_tables(db, path)
        rows = db.execute("select substr(name, 1, 100), substr(value, 1, 1000) from meta limit 100").fetchall()
    meta = {name: value for name, value in rows if isinstance(name, str) and isinstance(value, str)}
    if meta.get("format") != FORMAT:
        raise InputError(
            f"{folder} was written in the format {show(meta.get('format'))}, this version knows {FORMAT}; choose another --store"
        )
    return meta


def _check_regular(path: Path) -> None:
    """SQLite would open what lies there and wait: for ever, if it is a pipe."""
    for name in (path, *(Path(f"{path}{end}") for end in ("-journal", "-wal", "-shm"))):
        with contextlib.suppress(OSError):  # nothing there, or nothing to be seen
            if not stat.S_ISREG(name.stat().st_mode):
                raise InputError(
                    f"{name} is no file but a folder, a device or a pipe; remove it, or choose another folder"
                )


def _is_name(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:  # half a character
        return False
    return True


def _folder(folder: Any) -> Path:
    path = os.fspath(folder) if isinstance(folder, str | os.PathLike) else None
    if not isinstance(path, str) or "\0" in path or not _is_name(path):
        raise InputError(f"a store is the path of a folder, not {show(folder)}")
    return Path(path)


def _check_tables(db: sqlite3.Connection, path: Path) -> None:
    """An InputError where a table of ours is none: a view could ask for anything, and take for ever."""
    # In SQL upper and lower case are one.
    rows = db.execute("select type, lower(name), substr(sql, 1, 100) from sqlite_master")
    kinds = {name: (kind, sql) for kind, name, sql in rows}
    there = [name for name in TABLES if name in kinds or name in ("meta", "runs")]  # of old stores some have not all
    for name in there:
        kind, sql = kinds.get(name, ("", ""))
        plain = kind == "table" and not str(sql).lower().replace("\n", " ").startswith("create virtual")
        if plain:
            plain = all(row[6] == 0 for row in db.execute(f"pragma table_xinfo({name})"))  # else a column is computed
        if not plain:
            raise InputError(
                f"{path} is no store of a sweep, or is damaged ({name} is no plain table); choose another folder"
            )
    needed = {"runs": OWN, "meta": ("name", "value"), "log": ("key", "seconds", "finished"), "sweeps": ("plan",),
               "failures": ("key", "params", "traceback", "finished")}  # fmt: skip
    for name in there:
        lost = [column for column in needed[name] if column not in _table(db, name)]
        if lost:
            raise InputError(f"{path} is damaged (the table {name} has no column {lost[0]}); choose another folder")
    if any(kind == "trigger" for kind, _ in kinds.values()):
        raise InputError(f"{path} has triggers, which a store of a sweep has not; choose another folder")


def check_store(folder: str | os.PathLike[str], wait: float = WAIT) -> bool:
    """Whether there is a store; InputError where there is something else, or nothing could be made."""
    path = _folder(folder)
    with _in_one_sentence(path):
        if path.exists() and not path.is_dir():
            raise NotADirectoryError(20, "it is no folder")
    return bool(_all_meta(folder, wait))


def _cell(value: Any) -> Any:
    """What SQLite holds: truth values are 0 and 1, NaN is NULL (SQLite has none), infinities stay."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, int):
        if -(2**63) <= value < 2**63:
            return value
        try:
            return float(value)
        except OverflowError:  # above 1.8e308
            return str(value)
    if value is None or isinstance(value, float):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()  # lone surrogates are no text
    return as_json(value)


def as_json(value: Any) -> str:
    """A list or mapping as text; null for NaN and infinities, which JSON has not."""
    return json.dumps(plain_json(value, unknown=str), allow_nan=False)


def quoted(name: str) -> str:
    """A name in SQL."""
    return '"' + name.replace('"', '""') + '"'


@contextlib.contextmanager
def _in_one_sentence(folder: Path) -> Iterator[None]:
    """Errors of disk and database as a sentence."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise InputError(LOCKED.format(folder)) from None
        if "full" in str(error) or "disk I/O" in str(error):
            raise InputError(FULL.format(folder, error)) from None
        raise InputError(f"{folder} cannot be written: {error}; choose another --store") from None
    except sqlite3.DataError as error:
        if "too big" not in str(error):
            raise
        raise InputError(f"{folder / FILE} has a value {TOO_LONG}; choose another --store") from None
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise InputError(
            f"{folder / FILE} is no store of a sweep, or is damaged ({error}); choose another folder"
        ) from None
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror or error}; choose another --store") from None
