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
from collections.abc import Callable, Iterator
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

    def lock(self) -> Any:
        """To be entered itself: Ctrl-C between a method of ours that has taken it and the block that lets it go would leave it
        taken for ever."""
        if self._pid != os.getpid():  # forked, perhaps while a thread had it that is not here
            self._lock, self._pid = threading.RLock(), os.getpid()
        return self._lock

    def comes(self) -> bool:
        """Whether it is free soon: a thread that never ends would keep the process from its end."""
        free = self.lock().acquire(timeout=PATIENCE)
        if free:
            self._lock.release()
        return free

    def __reduce__(self) -> tuple[type[Turn], tuple[()]]:
        return Turn, ()


def in_turn(method: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[T, P], R]:
    """The same method, which waits until no other thread is in one of its object's."""

    @functools.wraps(method)
    def alone(self: Any, *args: P.args, **keys: P.kwargs) -> R:
        with self._turn.lock():
            return method(self, *args, **keys)

    return alone


@contextlib.contextmanager
def held_again(monitor: Any, held: list[Any]) -> Iterator[None]:
    """Where Ctrl-C comes while records are made of steps, the steps are held back as they were: the next flush makes them."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception):
            monitor._held = held
        raise


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
    with contextlib.ExitStack() as ends:  # one that fails takes no other along
        for monitor in list(_OPEN):
            # In a copy of the process its steps are not this one's: loggers would have them twice.
            ours = getattr(monitor, "_made", None) == (os.getpid(), id(monitor))
            if ours and monitor.world == 1:
                ends.callback(_close_in_turn, monitor)


def _close_in_turn(monitor: Any) -> None:
    if monitor._turn.comes():
        _close(monitor)


def _close(monitor: Any) -> None:
    """Where nobody can take what is raised."""
    try:
        monitor.close()
    except InputError as error:
        warnings.warn(str(error), stacklevel=2)
