"""The command `widemargin`, and `python -m widemargin`.

Ctrl-C ends it with one line and status 130 at any moment. While modules are being imported it ends at once: an exception in the
middle of an import would come out as something else, or not at all. SIGTERM and SIGHUP (a machine that stops, a terminal that is
closed) do what Ctrl-C does, with the status of their own: what is done is kept, and no process or file is left behind.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

INTERRUPTED = 130
LEAST = 1 << 30  # bytes of addresses that libraries need: with less some of them end the process, in words of their own
LEFT = "widemargin cones"  # a thread of `margins.programs.solve_cones`
GRACE = 3.0  # seconds that a command has to end what it has begun, during which other signals change nothing


class _CtrlC:
    """What Ctrl-C does. `came` says that it did: code in between may have made another exception of it, or swallowed it."""

    importing, came, status, deaf = True, False, INTERRUPTED, 0.0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if time.monotonic() < self.deaf:
            return
        self.came = True
        if number != signal.SIGINT:
            self.status = 128 + number
        if self.importing or _imports(frame):
            self.deaf = math.inf
            _say("interrupted")
            os._exit(self.status)
        if number == signal.SIGINT:
            self.deaf = time.monotonic() + GRACE
            raise KeyboardInterrupt
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
            signal.signal(signal.SIGINT, self)
        signal.raise_signal(signal.SIGINT)  # whoever takes Ctrl-C just now, such as a training, is to take this one


def _imports(frame: FrameType | None) -> bool:
    """Whether a module is being imported. Files are whole or absent then, as at any time."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _say(line: str) -> None:
    """One line, without what might be locked just now."""
    try:  # noqa: SIM105  as little as possible is imported before Ctrl-C is taken care of
        os.write(2, f"{line}\n".encode())
    except OSError:
        pass


def _little_memory() -> int:
    """The limit of memory of this process in MB, where it is too low; otherwise 0."""
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return limit >> 20 if limit != resource.RLIM_INFINITY and limit < LEAST else 0


def _in_working_folder() -> bool:
    """Whether this process looks for modules in its working folder first, as `python -m` does and the command does not."""
    try:
        return sys.path[:1] == [os.getcwd()]
    except OSError:  # it is gone
        return False


def main() -> int:
    """Run the command line; the exit status."""
    asked = _CtrlC()
    # Jobs in the background ignore Ctrl-C, and those of nohup SIGHUP.
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    numbers = [number for name in names if (number := getattr(signal, name, None)) is not None]
    free = (signal.default_int_handler, signal.SIG_DFL)
    ours = [number for number in numbers if signal.getsignal(number) in free]
    for number in ours:
        signal.signal(number, asked)
    if not _in_working_folder():  # workers would look for modules there first: Python starts them by -c and -m
        os.environ["PYTHONSAFEPATH"] = "1"
    if most := _little_memory():
        _say(
            f"widemargin: a process may have {most} MB of memory here and needs {LEAST >> 20}; raise the limit (ulimit -v)"
        )
        return 2
    from widemargin.cli import main as command

    asked.importing = False
    try:
        status = command()
    except BaseException as error:
        if not asked.came or isinstance(error, SystemExit):
            raise
        _say("interrupted")
        status = INTERRUPTED
    finally:
        # What is left is to end, and nothing of that can be interrupted; without a word before, SIGTERM ends it at once.
        for number in ours:
            signal.signal(number, signal.SIG_IGN if asked.came or number == signal.SIGINT else signal.SIG_DFL)
        gc.freeze()  # else Python looks through all of torch once more for what could be freed, a third of a second
    status = asked.status if status == INTERRUPTED else status
    if asked.came:
        _end_at_once(status)
    return status


def _end_at_once(status: int) -> None:
    """Where a library still computes what was interrupted: it would come back to a Python that has ended, and abort."""
    import atexit
    import threading

    if any(thread.name == LEFT for thread in threading.enumerate()):
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):
                stream.flush()
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
