"""One thread after the other: while the parameters that scale are looked for, the model has others than its own.

And who closes what nobody has closed: the end of the process, or of the last name that a monitor had.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from widemargin.types import InputError

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

PATIENCE = 3.0  # seconds that the end of the process waits for a thread that is measuring


class Turn:
    """A lock that its thread may take again; a copy of what has it, in this process or another, has one of its own."""

    def __init__(self) -> None:
        self._lock: Any = threading.RLock()
        self._pid = os.getpid()

    def _ours(self) -> Any:
        if self._pid != os.getpid():  # forked, perhaps while a thread had it that is not here
            self._lock, self._pid = threading.RLock(), os.getpid()
        return self._lock

    def __enter__(self) -> None:
        self._ours().acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def comes(self) -> bool:
        """Whether it is free soon: a thread that never ends would keep the process from its end."""
        free = self._ours().acquire(timeout=PATIENCE)
        if free:
            self._lock.release()
        return free

    def __reduce__(self) -> tuple[type[Turn], tuple[()]]:
        return Turn, ()


def in_turn(method: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[T, P], R]:
    """The same method, which waits until no other thread is in one of its object's."""

    @functools.wraps(method)
    def alone(self: Any, *args: P.args, **keys: P.kwargs) -> R:
        with self._turn:
            return method(self, *args, **keys)

    return alone


_OPEN: weakref.WeakSet[Any] = weakref.WeakSet()


def close_at_exit(monitor: Any) -> tuple[int, int]:
    """Have it closed at the end of the process, as long as it is there; gives the process and the object that this is about."""
    _OPEN.add(monitor)
    atexit.unregister(_close_all)  # what is registered last is called first: before the stores close
    atexit.register(_close_all)
    return os.getpid(), id(monitor)


def close_aside(monitor: Any) -> None:
    """Close it in a thread of its own: an object may be dropped anywhere, even in the middle of the store's own writing."""
    with contextlib.suppress(RuntimeError):  # the interpreter is ending
        end = threading.Thread(target=_close, args=(monitor,), name="widemargin end")
        end.start()
        end.join(PATIENCE)


def _close_all() -> None:
    for monitor in list(_OPEN):
        if monitor.world == 1 and monitor._turn.comes():
            _close(monitor)


def _close(monitor: Any) -> None:
    """Where nobody can take what is raised."""
    try:
        monitor.close()
    except InputError as error:
        warnings.warn(str(error), stacklevel=2)
