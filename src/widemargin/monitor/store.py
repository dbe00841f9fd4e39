"""Records on disk: a folder that is readable at every moment, while a monitor writes to it and after that was killed.

    monitor.json      what is watched
    records.parquet   one row a record; written anew now and then, as often as 1.6 % of the time allows
    newest.arrow      rows since then; those of each second are added at its end, and what is not whole there does not count
    lock              held while a monitor writes; its process and machine, empty once it has ended

Every other file is written under another name first and then renamed. Writing is done twice a second, in a thread of its own, so
a killed process loses the last second's records at most, and a training loop waits for no disk. What is written is not held in
memory. Where the disk is full, as many rows as fit are written, the oldest first; the others are kept and tried again.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import platform
import threading
import time
import warnings
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from widemargin.disk import as_folder, identity, is_locked, make_folders, open_lock, read_file, read_json
from widemargin.errors import show
from widemargin.forms import Misfit, listed, maybe, number, table, text, whole
from widemargin.types import InputError, write_atomically

from .record import Record
from .tables import (
    CONFIG,
    NEWEST,
    RECORDS,
    arrow_bytes,
    as_table,
    count_rows,
    damaged,
    give_back_memory,
    joined,
    parquet_of,
    read_table,
    widened,
)

FORMAT = "widemargin-monitor-1"
LOCK = "lock"
PAUSE = 0.5  # seconds between two writings; a monitor holds steps back before, and a second is all that may be lost
SHARE = 64  # all writing together may take 1 / SHARE of the time
TRIES = 10  # to get the lock
NAMES = 50  # that are shown; a monitor has a few, and a page or a screen has no room for more
# What the configuration and the table of classes in a record hold.
CONFIGURED = table(
    {},
    {
        "model": maybe(text()),
        "parameters": maybe(whole()),
        "loss": maybe(text()),
        "homogeneous": maybe(
            table(
                {},
                {"names": listed(text(10_000)), "degree": maybe(whole(0, 10**6)), "summary": text(10**6),
                 "notes": listed(text(10**6)), "growth": maybe(number())},
            )
        ),
    },
)  # fmt: skip
CLASSES = listed(
    table(
        {"class": whole(), "margin": number(finite=False), "error": number(finite=False)},
        {name: number(finite=False) for name in ("n", "margin_mean", "dual_share")},
    ),
    most=10**5,
)

_OPEN: weakref.WeakSet[Store] = weakref.WeakSet()

# A process forked in the middle of a writing could inherit pyarrow's locks as they are then: forks wait for its end.
_WRITING = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_WRITING.acquire, after_in_parent=_WRITING.release, after_in_child=_WRITING.release
    )  # fmt: skip
    os.register_at_fork(after_in_child=lambda: _let_go())


class Store:
    """Appends records to a folder. Where it cannot write any more it warns once, keeps the records and tries again later."""

    def __init__(self, folder: str | os.PathLike[str], config: Mapping[str, Any], resume: bool = False):
        self.folder, self.pid = as_folder(folder, "out"), os.getpid()
        if not resume and any((self.folder / name).exists() for name in (RECORDS, NEWEST, CONFIG)):
            raise InputError(
                f"{self.folder} already holds records; choose another folder, or resume=True to go on with it"
            )
        try:
            make_folders(self.folder)
            self.folder = self.folder.absolute()  # a program may go to another working folder
            self.lock = _locked(self.folder)
        except InputError:
            raise
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise InputError(f"cannot write records to {self.folder}: {why}; choose another folder") from None
        self.place = None if self.lock is None else identity(self.lock.fileno())
        try:
            there = load(self.folder) if resume and is_monitor(self.folder) else as_table([])
            # Step and wall clock of the last record that was there when it was opened, (0, 0) where none was.
            self.last = (there["step"][-1].as_py(), there["wall"][-1].as_py() or 0.0) if len(there) else (0, 0.0)
            self.written = count_rows(self.folder / RECORDS) if resume else 0  # rows in records.parquet,
            self.added = 0  # those after them in newest.arrow, whose columns are
            self.schema: Any = None
            self.tail = there.slice(self.written)  # and those that are in neither yet, but for
            self.kept = len(self.tail)  # the first ones, in the newest.arrow of a monitor before
            self.config = _as_json(config)
            write_atomically(self.folder / CONFIG, self.config)
        except BaseException as error:
            self._unlock()
            if isinstance(error, OSError):
                raise InputError(f"cannot write records to {self.folder}: {error.strerror}; make room there") from None
            raise
        self.configured = True
        self.fresh: list[dict[str, Any]] = []  # not in any file yet
        self.guard = (
            threading.RLock()
        )  # of `fresh` and `writer`; a handler of a signal that closes may come while it is held
        # One thread for all writings: arrow keeps memory for each thread, and one a second would add up in a day.
        self.writer: threading.Thread | None = None
        self.due, self.ending = threading.Event(), threading.Event()
        self.next = self.before = -np.inf  # when all may be written again; when something was written
        self.seconds = 0.0  # spent writing
        self.problem, self.warned = "", False
        self.closed = False
        _OPEN.add(self)
        atexit.register(self.close)

    def configure(self, config: Mapping[str, Any]) -> None:
        if os.getpid() != self.pid:  # as below: the folder is the training process's
            return
        with _WRITING:
            self.config, self.configured = _as_json(config), False
        self._soon()

    def append(self, records: Sequence[Record], rows: list[dict[str, Any]] | None = None) -> None:
        """Have records written; `rows` are theirs where they are known already."""
        if os.getpid() != self.pid:  # a copy of the training process: the records are not its own
            return
        rows = [row(record) for record in records] if rows is None else rows
        with self.guard:
            self.fresh += rows
        self._soon()
        if self.problem and not self.warned:
            self.warned = True
            warnings.warn(
                f"records cannot be written: {self.problem}; training goes on, and they are kept to be written later",
                stacklevel=4,
            )

    def write(self, everything: bool = False) -> None:
        """Write what is new; `records.parquet` itself if it is time for it, or if `everything` is asked for."""
        with _WRITING:
            began = time.thread_time()
            try:
                self._take()
                self._write_files(everything, began)
                self.problem = ""
            except Exception as error:  # of the disk, of memory, of records.parquet that another program has changed:
                self.problem = " ".join(str(error).split()) or type(error).__name__  # whatever it is, it is tried again
            finally:
                if self.closed:
                    self._unlock()
            self.before = time.monotonic()
            self.seconds += time.thread_time() - began

    # Ctrl-C may come anywhere, and close() be called again then. What is counted changes in one assignment, after the writing.

    def _take(self) -> None:
        """Move what has come to the tail."""
        some = len(self.fresh)
        if some:
            tail = joined([self.tail, as_table(self.fresh[:some])])
            with self.guard:
                self.tail, self.fresh = tail, self.fresh[some:]

    def _write_files(self, everything: bool, began: float) -> None:
        if not self._is_there():
            raise ValueError(f"{self.folder} was replaced by another folder")
        if self.added and identity(self.folder / LOCK) and not (self.folder / NEWEST).exists():
            self.added = 0  # somebody has removed what was there; what comes is not to be lost with it
        new = len(self.tail) > 0 or (everything and self.added > 0)
        if self.closed and (new or not self.configured):
            self._take_up()
        if not self.configured:
            write_atomically(self.folder / CONFIG, self.config)
            self.configured = True
        if not new:
            return
        try:
            self._write_rows(everything, began)
        except OSError:
            self._add_what_fits()
            raise

    def _take_up(self) -> None:
        """Have the folder once more after it was let go; another monitor may be at work there, or have gone on in it."""
        self.lock = _locked(self.folder)
        if len(load(self.folder)) != self.written + self.added + self.kept:
            raise ValueError(f"another monitor has gone on in {self.folder} since this one was closed")

    def _write_rows(self, everything: bool, began: float) -> None:
        soon = time.monotonic() < self.next and self.added + len(self.tail) <= self.written
        if not everything and soon:
            self._add(len(self.tail))
            give_back_memory()
            self.next += SHARE * (time.thread_time() - began)  # these writings count too
            return
        try:
            # A newest.arrow of a monitor before has rows that are in `tail`; it stays until they are in records.parquet.
            write_atomically(self.folder / RECORDS, parquet_of(self.tail, self.written, self.added, self.folder))
        finally:  # a full disk is not tried every second either
            self.next = time.monotonic() + SHARE * (time.thread_time() - began)
        written, none = self.written + self.added + len(self.tail), as_table([])
        self.written, self.added, self.tail, self.kept = written, 0, none, 0
        (self.folder / NEWEST).unlink(missing_ok=True)
        give_back_memory(everything=True)

    def _add(self, some: int) -> None:
        """Move the first rows of the tail to the end of newest.arrow; on an error both are as they were before."""
        rows = self.tail.slice(0, some)
        # An empty slice would keep the memory of all rows.
        rest = self.tail.slice(some) if some < len(self.tail) else as_table([])
        path, after = self.folder / NEWEST, {b"after": str(self.written).encode()}
        added = self.added + len(rows)
        # Until the end: where that is not reached, nobody knows what the file holds, but that it begins with what was added.
        schema, self.schema = self.schema, None
        if (
            not self.added or schema is None or not set(rows.column_names) <= set(schema.names)
        ):  # it begins, or has new columns from now on
            there = [read_table(path).slice(0, self.added).replace_schema_metadata(None)] if self.added else []
            both = joined([*there, rows])
            write_atomically(path, arrow_bytes(both.replace_schema_metadata(after)))
            schema = both.schema
        else:
            content = arrow_bytes(widened([rows], schema), bare=True)
            with path.open("r+b", buffering=0) as file:
                end = file.seek(0, os.SEEK_END)
                try:
                    if file.write(content) < len(content):
                        raise OSError(28, "No space left on device", str(path))
                    os.fsync(file.fileno())
                except BaseException:
                    file.truncate(end)
                    self.schema = schema
                    raise
        self.schema, self.added, self.tail, self.kept = schema, added, rest, 0

    def _add_what_fits(self) -> None:
        """The disk has no room for all records: the first ones, as many as fit."""
        some = len(self.tail)
        while some and (self.added or some >= self.kept):  # a file with fewer would replace one that has them
            try:
                self._add(some)
                some = min(some, len(self.tail))
            except OSError:
                some //= 2

    def _soon(self) -> None:
        """Have a thread write, `PAUSE` after the last time."""
        if self.closed:
            self.write(everything=True)
            return
        self.due.set()
        with self.guard:
            if self.writer is None or not self.writer.is_alive():
                self.writer = threading.Thread(target=self._keep_writing, name="widemargin records", daemon=True)
                # Where there is no room for a thread there may be with the next records; at the end close() writes.
                with contextlib.suppress(RuntimeError):
                    self.writer.start()

    def _keep_writing(self) -> None:
        while self.due.wait():
            self.due.clear()
            if self.ending.wait(max(0.0, self.before + PAUSE - time.monotonic())):
                return
            self.write()

    def close(self) -> None:
        """Write everything and let others have the folder. Records may still come; each is written at once."""
        if os.getpid() != self.pid:
            return
        self.ending.set()
        self.due.set()
        self.write(everything=True)
        kept = ""
        if self.problem:
            kept = f"all records are kept, the last {self.added + self.kept} of them in {NEWEST}: {self.problem}"
            if not self.folder.is_dir() or not self._is_there():
                every = self.written + self.added + len(self.tail) + len(self.fresh)
                kept = f"{self.folder} is gone, and {every} records with it"
            elif lost := len(self.tail) - self.kept + len(self.fresh):
                kept = f"the last {lost} records are lost: {self.problem}"
        self.closed = True
        self._unlock()
        atexit.unregister(self.close)
        if kept:  # last: where warnings are errors, the folder is let go all the same
            warnings.warn(kept, stacklevel=3)

    def _is_there(self) -> bool:
        """Whether no other monitor has the folder: in the place of one that was removed there may be another's."""
        return self.place is None or identity(self.folder / LOCK) in (None, self.place)

    def _unlock(self) -> None:
        if self.lock is not None:
            import fcntl

            with contextlib.suppress(OSError):
                self.lock.truncate(0)
                fcntl.flock(self.lock, fcntl.LOCK_UN)  # for copies of this process too
            self.lock.close()
            self.lock = None


def row(record: Record) -> dict[str, Any]:
    """A flat row: all scalars, and the table of classes as JSON."""
    for key, value in record.extra.items():
        if hasattr(record, key) or key.startswith(("norm/", "margin_q")):
            raise InputError(f"extra: records have a column {key!r} already; choose another name")
        try:
            float(value)
        except (TypeError, ValueError, OverflowError):
            raise InputError(f"extra: {show(key)} must be a number, not {show(value, 40)}") from None
    return {
        "step": record.step,
        "name": record.name,
        "whole": record.whole,
        "degree": record.degree,
        "exact": record.exact,
        "wall": record.wall,
        "growth": record.growth,
        **record.scalars(everything=True),
        **{key: float(value) for key, value in record.extra.items()},
        "classes": json.dumps(record.classes) if record.classes else None,
        "hardest": list(record.hardest) or None,
    }


# ---------------------------------------------------------------- reading


def is_monitor(folder: str | os.PathLike[str]) -> bool:
    """Whether `folder` is one that `MarginMonitor(out=...)` writes to.

    >>> from widemargin.monitor import is_monitor
    >>> is_monitor(".")
    False
    """
    return (as_folder(folder) / CONFIG).is_file()


def load(folder: str | os.PathLike[str]) -> Any:
    """The records of a folder in the order they were written, a pyarrow table; empty where nothing has been written yet.

    `folder` is what was given as `out`. One row for each record, one column for each of its fields, in the units of `Record`.

    >>> import torch
    >>> from widemargin.monitor import MarginMonitor, load
    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> with MarginMonitor(model, out="run") as monitor:
    ...     record = monitor.measure((torch.eye(2), torch.tensor([0, 1])), name="test")
    >>> table = load("run")
    >>> table.num_rows, table["name"].to_pylist(), table["margin"].to_pylist() == [record.margin]
    (1, ['test'], True)
    """
    if not is_monitor(folder):
        raise InputError(
            f"{folder} holds no records of a monitor; give the folder that MarginMonitor(out=...) writes to"
        )
    # In this order: what moves from newest.arrow to records.parquet meanwhile is seen in both, and counted once.
    newest, written = read_table(Path(folder) / NEWEST), read_table(Path(folder) / RECORDS)
    written = as_table([]) if written is None else written
    if newest is None:
        return written
    told = (newest.schema.metadata or {}).get(b"after", b"0")
    if not told.isdigit() or len(told) > 12:
        raise damaged(Path(folder) / NEWEST, "it does not say after which records it goes on")
    after = int(told)
    if after > len(written):
        raise damaged(Path(folder) / RECORDS, f"it has {len(written)} records, and {NEWEST} goes on after {after}")
    return joined([written, newest.slice(max(0, len(written) - after))]).replace_schema_metadata(None)


def config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What a monitor's `folder` is about: the loss, the homogeneous parameters and their degree, by name.

    >>> import torch
    >>> from widemargin.monitor import MarginMonitor, config
    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> with MarginMonitor(model, out="run") as monitor:
    ...     record = monitor.measure((torch.eye(2), torch.tensor([0, 1])))
    >>> config("run")["loss"], config("run")["homogeneous"]["names"]
    ('ce', ['weight'])
    """
    path = as_folder(folder) / CONFIG
    try:
        known = read_json(path)
    except OSError:
        raise InputError(
            f"{folder} holds no records of a monitor; give the folder that MarginMonitor(out=...) writes to"
        ) from None
    except ValueError as error:
        raise damaged(path, error) from None
    if not isinstance(known, dict):
        raise damaged(path, "it is no object")
    if known.get("format") != FORMAT:
        said = str(known.get("format"))[:60]
        raise InputError(f"{folder} was written by another version ({said}); this one reads {FORMAT}")
    try:
        CONFIGURED(known, "")
    except (Misfit, RecursionError) as error:
        raise damaged(path, error) from None
    return known


def classes(text: str) -> list[dict[str, Any]]:
    """The table of classes of a record; an InputError where it is none."""
    try:
        rows = json.loads(text)
        CLASSES(rows, "classes")
    except (ValueError, RecursionError) as error:
        said = " ".join(str(error).split())[:200]
        raise InputError(f"the table of classes in the records is damaged ({said}); leave --classes out") from None
    return rows


def series(records: Any) -> dict[str, dict[str, np.ndarray]]:
    """The columns of every name among the records (a table, or the folder), those that have values.

    Steps do not fall: where training was taken up again at an earlier step, what it has passed a second time replaces the first.

    A column is (k,) for k records of that name.

    >>> import torch
    >>> from widemargin.monitor import MarginMonitor, series
    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> with MarginMonitor(model, out="run") as monitor:
    ...     for step in (0, 10):
    ...         record = monitor.measure((torch.eye(2), torch.tensor([0, 1])), name="test", step=step)
    >>> series("run")["test"]["step"].tolist()
    [0, 10]
    """
    table = load(records) if isinstance(records, str | os.PathLike) else records
    if not {"name", "step"} <= set(getattr(table, "column_names", ())):
        raise InputError(f"records must be a table that load returns, or the folder, not {show(records)}")
    return _columns(table, _rows_of(table))


def shown(
    folder: str | os.PathLike[str], wanted: Sequence[str] = (), most: int = NAMES
) -> tuple[dict[str, dict[str, np.ndarray]], list[str], int]:
    """`series` of the names that a page or a screen has room for, all names, and the number of records.

    `wanted` are the names that are asked for, all where there are none. Those with most records are chosen, training sets and
    batches before others.
    """
    table = load(folder)
    rows = _rows_of(table)
    asked = {name: own for name, own in rows.items() if name in wanted or not wanted}
    first = sorted(asked, key=lambda name: (name not in ("train", "step"), -len(asked[name])))[:most]
    chosen = {name: own for name, own in asked.items() if name in set(first)} if len(asked) > most else asked
    return _columns(table, chosen), list(rows), sum(map(len, rows.values()))


def _rows_of(table: Any) -> dict[str, np.ndarray]:
    """The rows of each name whose steps do not come again later, by one sorting for all names."""
    if not len(table):
        return {}
    names, steps = table["name"].combine_chunks().dictionary_encode(), np.asarray(table["step"])
    order = np.argsort(np.asarray(names.indices), kind="stable")
    ends = np.cumsum(np.bincount(np.asarray(names.indices), minlength=len(names.dictionary)))
    parts = {}
    for name, rows in zip(names.dictionary.to_pylist(), np.split(order, ends[:-1])):
        own = steps[rows].astype(float)
        back = np.where(np.diff(own) < 0, own[1:], np.inf)  # to which step training went back after this record
        again = np.minimum.accumulate([np.inf, *back[::-1]])[::-1]
        parts[name] = rows[own < again]
    return parts


def _columns(table: Any, parts: Mapping[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """The columns of these rows for each name; they are brought into order once, and cut without copies."""
    if not parts:
        return {}
    ordered = table.take(np.concatenate([*parts.values()])).combine_chunks()
    columns = {key: ordered[key].combine_chunks() for key in ordered.column_names}
    series: dict[str, dict[str, np.ndarray]] = {}
    start = 0
    for name, rows in parts.items():
        own = {key: column.slice(start, len(rows)) for key, column in columns.items()}
        series[name] = {
            key: part.to_numpy(zero_copy_only=False) for key, part in own.items() if part.null_count < len(part)
        }
        start += len(rows)
    return series


def state(folder: str | os.PathLike[str]) -> str:
    """ "running", "ended", "killed", or "unknown" where the monitor is on another machine."""
    held = is_locked(Path(folder) / LOCK)  # before the file is read: a monitor that ends empties it first
    try:
        first = read_file(Path(folder) / LOCK, 10_000).partition(b"\n")[0]  # what follows is of a monitor before
        pid, _, host = first.decode().strip().partition(" ")
    except (OSError, ValueError):
        return "unknown"
    if not pid:
        return "ended"
    if host != platform.node() or os.name != "posix" or not (pid.isascii() and pid.isdecimal() and len(pid) < 10):
        return "unknown"
    try:
        os.kill(int(pid), 0)  # asks whether it is there
    except ProcessLookupError:  # a copy of it may still have the lock
        return "killed"
    except OSError:
        pass
    # After a restart of the machine another process may have that number.
    return "killed" if held is False else "running"


def until_when(folder: str | os.PathLike[str]) -> str:
    """How a sentence on a folder without records goes on: whether any will come."""
    return {
        "ended": ": its monitor has ended without any; measure something, or call step, before it is closed",
        "killed": ": its process was killed before the first one was written",
    }.get(state(folder), f" yet; wait for the first ones (`widemargin watch {folder}`)")


def age(folder: str | os.PathLike[str]) -> float | None:
    """Seconds since records were written; None where none has been."""
    times = []
    for name in (RECORDS, NEWEST):
        with contextlib.suppress(OSError):
            times.append((Path(folder) / name).stat().st_mtime)
    return max(0.0, time.time() - max(times)) if times else None


def _let_go() -> None:
    """In a copy of the process: the lock is the process's that trains, and a copy that outlives it must not keep it."""
    for store in list(_OPEN):
        if store.lock is not None:
            store.lock.close()  # which does not unlock: the other process has it open
            store.lock = None


def _as_json(config: Mapping[str, Any]) -> bytes:
    return json.dumps({"format": FORMAT, **config}, indent=1, allow_nan=False).encode()


def _locked(folder: Path) -> Any:
    """The open lock file, this process's alone. The system lets go of it when the process ends, however it ends."""
    try:
        import fcntl
    except ImportError:  # not posix
        return None
    file = os.fdopen(open_lock(folder / LOCK), "r+")
    try:
        for _ in range(TRIES):  # one who asks for the state has it for a moment
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.01)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        who = file.read().partition(" ")[0]
        file.close()
        where = (
            "in this process; close() it first" if who == str(os.getpid()) else f"in process {who}; wait for its end"
        )
        raise InputError(f"another monitor is writing to {folder}, {where}, or choose another folder") from None
    except OSError:  # a file system without locks
        pass
    # Over what is there, and cut then: an empty file would say for a moment that the monitor has ended.
    size = os.pwrite(file.fileno(), f"{os.getpid()} {platform.node()}\n".encode(), 0)
    os.ftruncate(file.fileno(), size)
    return file
