"""The command `widemargin`, and `python -m widemargin`.

Ctrl-C ends it with one line and status 130 at any moment. While modules are being imported it ends at once: an exception in the
middle of an import would come out as something else, or not at all.
"""

from __future__ import annotations

import gc
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

INTERRUPTED = 130
LEAST = 1 << 30  # bytes of addresses that libraries need: with less some of them end the process, in words of their own


class _CtrlC:
    """What Ctrl-C does. `came` says that it did: code in between may have made another exception of it, or swallowed it."""

    importing, came = True, False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        if self.importing or _imports(frame):
            _say("interrupted")
            os._exit(INTERRUPTED)
        raise KeyboardInterrupt


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
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # jobs in the background ignore Ctrl-C
    if ours:
        signal.signal(signal.SIGINT, asked)
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
        if ours:  # what is left is to end, and nothing of that can be interrupted
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        gc.freeze()  # else Python looks through all of torch once more for what could be freed, a third of a second
    return status


if __name__ == "__main__":
    sys.exit(main())
