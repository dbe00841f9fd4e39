"""What SQL on a store has beyond SQLite: functions of numbers, a clock, and bounds of what may be asked for."""

from __future__ import annotations

import contextlib
import math
import sqlite3
import threading
import time
from array import array
from typing import Any

LONGEST = 1 << 24  # bytes of one value: SQLite would make one of a billion, and looks at no clock meanwhile
HEAP = 1 << 29  # bytes of all that SQLite holds in a process that asks for this bound
TURN = 1_000  # steps of SQLite, some microseconds, after which Python may see to a Ctrl-C
BLINK = 200  # milliseconds of waiting for another writer, after which Python may do so
TOO_SLOW = "the query took longer than {:g} seconds; ask for less, or give it more time with --time-limit"
TOO_LARGE = f"the query takes more than {HEAP >> 20} MB of memory; ask for fewer columns, or for less of them"


def bounded(db: sqlite3.Connection) -> sqlite3.Connection:
    """The same connection, which now refuses values longer than LONGEST, whether they are stored or computed."""
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
    return db


def begin_alone(db: sqlite3.Connection, wait: float) -> None:
    """Begin to write, within `wait` seconds. SQLite itself waits for another writer without a look at Ctrl-C."""
    began = time.monotonic()
    before = db.execute("pragma busy_timeout").fetchone()[0]
    db.execute(f"pragma busy_timeout = {BLINK}")
    try:
        while True:
            try:
                db.execute("begin immediate")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() - began > wait:
                    raise
    finally:
        db.execute(f"pragma busy_timeout = {before}")


def bound_memory() -> None:
    """SQLite of this process takes no more than HEAP from now on, whatever the connection: a row may have 2,000 values, each of
    LONGEST. What needs more raises a MemoryError."""
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.execute(f"pragma hard_heap_limit = {HEAP}")


class Clock:
    """Called every `TURN` steps of SQLite: ends a query whose time is over, and lets Python see to a Ctrl-C."""

    def __init__(self, limit: float):
        self.limit, self.end, self.over = limit, time.monotonic() + limit, False
        self._alarm: threading.Timer | None = None

    def ring(self, db: sqlite3.Connection) -> None:
        """Have a query end in time also where a thousand steps take long, such as functions of long texts; until `stop`."""

        def end() -> None:
            with contextlib.suppress(sqlite3.Error):  # it is closed already
                db.interrupt()

        self._alarm = threading.Timer(min(self.limit, threading.TIMEOUT_MAX), end)
        self._alarm.daemon = True
        self._alarm.start()

    def stop(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

    def __call__(self) -> int:
        self.over = time.monotonic() > self.end
        return int(self.over)


def only_reading(action: int, *_: Any) -> int:
    allowed = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
    return sqlite3.SQLITE_OK if action in allowed else sqlite3.SQLITE_DENY


def add_functions(db: sqlite3.Connection) -> None:
    for name, count, function in (
        ("sqrt", 1, math.sqrt), ("ln", 1, math.log), ("log10", 1, math.log10), ("exp", 1, math.exp), ("pow", 2, math.pow),
    ):  # fmt: skip
        db.create_function(name, count, _quiet(function), deterministic=True)
    db.create_aggregate("median", 1, _Median)  # type: ignore[arg-type]
    db.create_aggregate("stdev", 1, _Deviation)  # type: ignore[arg-type]


class _Numbers:
    """Collects the numbers of a column; whatever happens, an aggregate of ours raises nothing but Ctrl-C."""

    def __init__(self) -> None:
        self.values = array("d")  # a quarter of a list: of numbers there may be as many as a minute makes

    def step(self, value: Any) -> None:
        if isinstance(value, int | float):
            self.values.append(value)


class _Median(_Numbers):
    def finalize(self) -> float | None:
        values = sorted(self.values)
        middle = values[(len(values) - 1) // 2 : len(values) // 2 + 1]
        return sum(value / len(middle) for value in middle) if middle else None  # the sum itself may overflow


class _Deviation(_Numbers):
    """Standard deviation of a sample (n - 1), of numbers divided by the largest, so that no square overflows."""

    def finalize(self) -> float | None:
        n, size = len(self.values), max(map(abs, self.values), default=0.0)
        if n < 2 or not math.isfinite(size):
            return None
        if not size:
            return 0.0
        mean = math.fsum(value / size for value in self.values) / n
        return size * math.sqrt(math.fsum((value / size - mean) ** 2 for value in self.values) / (n - 1))


def _quiet(function: Any) -> Any:
    def quiet(*values: Any) -> Any:
        try:
            return None if any(value is None for value in values) else function(*values)
        except (ValueError, OverflowError, TypeError):
            return None

    return quiet
