"""One thread after the other: while the parameters that scale are looked for, the model has others than its own."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

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
