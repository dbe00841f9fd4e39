"""The command line, one module per group of commands.

Results go to standard output, everything else to standard error. Exit status: 0 a result, 1 a certificate or an inequality
that does not hold, 2 bad input, 3 a certificate that holds with a probability, 4 one that is not proved, 130 interrupted (143 by
SIGTERM, 129 by SIGHUP). What is slow to import is imported where it is used.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import widemargin
from widemargin import extras
from widemargin.types import InputError

from . import data, demo, fit, margin, play, report, reproduce, sweep, theory, train, watch
from .options import INTERRUPTED, PIPE_CLOSED, Parser
from .screen import check_working_folder, complain, drop_stdout, in_cli_words, open_missing, say

MANY = (errno.EMFILE, errno.ENFILE)  # too many open files


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    open_missing()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        check_working_folder()
        options = parser().parse_args(argv)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*What would help:")  # commands print it themselves, in their own words
            # numpy and Python about heads of arrays: of Python 2, and damaged ones
            warnings.filterwarnings("ignore", "Reading `.npy`")
            warnings.filterwarnings("ignore", category=SyntaxWarning)
            status = options.run(options)
        sys.stdout.flush()
        return status
    except InputError as error:
        return complain(in_cli_words(str(error)))
    except ModuleNotFoundError as error:
        said = extras.sentence(error.name)
        if said is None:
            raise
        return complain(said)
    except BrokenPipeError:  # the reader went away, as in `| head`
        drop_stdout()
        return PIPE_CLOSED
    except OSError as error:
        drop_stdout()
        where = f"{error.filename}: " if error.filename else ""
        what = "raise the limit (ulimit -n)" if error.errno in MANY else "check the path and the space left on the disk"
        return complain(f"{where}{error.strerror or error}; {what}")
    except (MemoryError, RuntimeError) as error:
        if not _is_exhausted(error):
            raise
        return complain("there is not enough memory for this problem; use fewer points or a smaller --width")
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED


def _is_exhausted(error: Exception) -> bool:
    """Whether this is how Python, numpy or torch say that memory is not enough."""
    words = ("can't allocate memory", "out of memory")  # of a processor, of a GPU
    return isinstance(error, MemoryError) or any(text in str(error) for text in words)


def parser() -> Parser:
    whole = Parser(
        prog="widemargin",
        description="Certified largest margins of data sets: lower <= margin <= upper, with proofs to re-check.",
        epilog="exit status: 0 a result, 1 a certificate or inequality that does not hold, 2 bad input, 130 interrupted",
        allow_abbrev=False,
    )
    whole.add_argument("--version", action="version", version=f"widemargin {widemargin.__version__}")
    commands = whole.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str, **keys: Any) -> Parser:
        added = commands.add_parser(name, help=text, description=f"{text}.", allow_abbrev=False, **keys)
        added.set_defaults(run=run)
        return added

    for group in (margin, fit, train, watch, theory, reproduce, sweep, report, play, data, demo):
        group.add(command)
    for subparser in commands.choices.values():
        subparser.set_defaults(options_known=tuple(subparser._option_string_actions))
    return whole
