"""What the commands say: results on standard output, notes and progress on standard error."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from widemargin.types import write_atomically

if TYPE_CHECKING:
    from rich.console import Console

LONGEST = 2000  # characters of a complaint
EVERY = 10.0  # seconds between lines of progress where there is no terminal

Progress = Callable[[float, float, float, str], None]


def print_rich(table: Any) -> None:
    """Through `print`, since rich would end the program by itself where the reader has gone."""
    console = terminal()
    with console.capture() as captured:
        console.print(table)
    print(captured.get(), end="")


def plain(text: str) -> Any:
    """Text that rich prints as it is, brackets included."""
    from rich.text import Text

    return Text("".join(c if c.isprintable() else "?" for c in text))


def terminal(stderr: bool = False) -> Console:
    """A console that does not cut tables where there is no terminal to measure."""
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, markup=False, width=160)


def say(text: str) -> None:
    """A note, on standard error; without one there is nobody to tell."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def complain(text: str) -> int:
    line = " ".join(text.split())  # one line, whatever the names in it hold
    line = line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."
    say(f"widemargin: {''.join(c if c.isprintable() else '?' for c in line)}")
    return 2


def in_cli_words(text: str) -> str:
    """The library speaks of arguments where the command line has options."""
    text = text.replace(", or read y as numbers with targets=True", "")
    text = text.replace("output_bias=None or 'decayed'", "--output-bias none or decayed")
    text = text.replace("loss='squared'", "--loss squared").replace("loss='cross-entropy'", "--loss cross-entropy")
    text = text.replace("weight_decay=", "--weight-decay ")
    text = text.replace("output_bias=", "--output-bias ").replace("give the decays themselves", "give LOW:HIGH:COUNT")
    return text.replace("with label=", "with --label").replace("label=", "--label ")


def drop_stdout() -> None:
    """Point standard output at nothing, so that the interpreter does not stumble over it again at its end."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def solver_progress(what: str) -> Iterator[Progress]:
    """Show how a solver gets on: a live line on a terminal, otherwise a line now and then."""
    console = terminal(stderr=True)
    if console.is_terminal:
        with console.status(f"{what} ...") as status:
            yield lambda *now: status.update(plain(_progress_line(what, *now)[: console.width - 4]))
        return
    last = 0.0

    def report(seconds: float, lower: float, upper: float, message: str) -> None:
        nonlocal last
        if seconds - last >= EVERY:
            last = seconds
            say(_progress_line(what, seconds, lower, upper, message))

    yield report


def _progress_line(what: str, seconds: float, lower: float, upper: float, message: str) -> str:
    return f"{what} {seconds:6.1f} s  [{lower:.6g}, {upper:.6g}]  {message}"


def save_figure(figure: Any, path: Path) -> None:
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_atomically(path, picture.getvalue())
