"""What the commands say: results on standard output, notes and progress on standard error."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from widemargin.types import InputError, write_atomically

if TYPE_CHECKING:
    from rich.console import Console

NARROW = 100  # columns of a terminal below which lines are broken here
LONGEST = 2000  # characters of a complaint
FOLDED, SHORT = 20, 32  # columns that a folded text needs at least; letters of what stands in one line with others
HARD = "\u00a0"  # a space at which lines are not broken
SIZES = ("COLUMNS", "LINES", "JUPYTER_COLUMNS", "JUPYTER_LINES")  # of a terminal, where the environment says them
SIZE = re.compile("0*[1-9][0-9]{0,4}")  # up to 99,999
EVERY = 10.0  # seconds between lines of progress where there is no terminal

Progress = Callable[[float, float, float, str], None]


def print_rich(table: Any) -> None:
    """Through `print`, since rich would end the program by itself where the reader has gone."""
    console = terminal()
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[str] = (),
    folded: Sequence[str] = (),
) -> None:
    """A table, where the terminal is wide enough for it; otherwise a few lines for each row.

    `right` are columns of numbers, `folded` those whose text may take several lines.
    """
    from rich.table import Table

    width = terminal().width
    sizes = {name: max([len(name), *(len(row[k]) for row in rows)]) for k, name in enumerate(columns)}
    least = {name: min(size, FOLDED) if name in folded else size for name, size in sizes.items()}
    if sum(least.values()) + 3 * len(columns) + 1 > width:
        _print_stacked(title, columns, rows, width)
        return
    table = Table(title=plain(title) if title else None, title_justify="left")
    for name in columns:
        table.add_column(
            plain(name), justify="right" if name in right else "left", no_wrap=name not in folded, overflow="fold",
            min_width=least[name],
        )  # fmt: skip
    for row in rows:
        table.add_row(*map(plain, row))
    print_rich(table)


def _print_stacked(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> None:
    """What has few letters in one line, what has many below it."""
    out = [*textwrap.wrap(title, width)] if title else []
    for row in rows:
        pairs = [(name, text) for name, text in zip(columns[1:], row[1:]) if text not in ("", "-")]
        whole = [f"{name} {text}".replace(" ", HARD) for name, text in pairs if len(text) <= SHORT]  # not torn apart
        lines = textwrap.wrap(f"{columns[0]} {row[0]}: {', '.join(whole)}", width, subsequent_indent="  ")
        out += [line.replace(HARD, " ") for line in lines]
        for name, text in pairs:
            if len(text) > SHORT:
                out += textwrap.wrap(f"{name}: {text}", width, initial_indent="  ", subsequent_indent="    ")
    for line in out:
        print(shown(line))


def print_lines(lines: Sequence[str]) -> None:
    """Sentences, each on lines of its own, without anything that a terminal would obey; broken at words where it is narrow."""
    width = terminal().width
    for line in lines:
        text = shown(line)
        print("\n".join(textwrap.wrap(text, width, subsequent_indent="  ") if width < NARROW else [text]))


def plain(text: str) -> Any:
    """Text that rich prints as it is, brackets included."""
    from rich.text import Text

    return Text(shown(text))


def shown(text: str) -> str:
    """Text without anything that a terminal would obey."""
    return "".join(c if c.isprintable() else "?" for c in text)


def terminal(stderr: bool = False) -> Console:
    """A console that does not cut tables where there is no terminal to measure."""
    from rich.console import Console

    # rich takes what is set for a size as it is: no columns at all, and signs that are digits but no numbers.
    wrong = [name for name in SIZES if not SIZE.fullmatch(os.environ.get(name, ""))]
    env = {name: value for name, value in os.environ.items() if name not in wrong}
    # FORCE_COLOR and TTY_COMPATIBLE make a terminal of a pipe for rich, which would draw its bars into it.
    forced = None if is_terminal(sys.stderr if stderr else sys.stdout) else False
    console = Console(
        stderr=stderr, highlight=False, markup=False, emoji=False, force_terminal=forced, _environ=env
    )  # fmt: skip
    if console.is_terminal or "COLUMNS" in env:
        return console
    return Console(stderr=stderr, highlight=False, markup=False, width=160, force_terminal=forced, _environ=env)


def is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, OSError, ValueError):  # there is none, or it is closed
        return False


def say(text: str) -> None:
    """A note, on standard error; without one there is nobody to tell. Names in it may hold what a terminal would obey."""
    with contextlib.suppress(OSError, ValueError):
        print(shown(text), file=sys.stderr, flush=True)


def complain(text: str) -> int:
    line = " ".join(text.split())  # one line, whatever the names in it hold
    line = line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."
    say(f"widemargin: {line}")
    return 2


def in_cli_words(text: str) -> str:
    """The library speaks of arguments where the command line has options."""
    more = ", or see --multiclass of margin, and --loss cross-entropy of fit"
    text = text.replace(", or read y with multiclass=True or targets=True", more)
    text = text.replace("output_bias=None or 'decayed'", "--output-bias none or decayed")
    text = text.replace("loss='squared'", "--loss squared").replace("loss='cross-entropy'", "--loss cross-entropy")
    text = text.replace("weight_decay=", "--weight-decay ")
    text = text.replace("output_bias=", "--output-bias ").replace("give the decays themselves", "give LOW:HIGH:COUNT")
    return text.replace("with label=", "with --label").replace("label=", "--label ")


def check_working_folder() -> None:
    """Libraries end the process in a folder that was deleted, without a sentence."""
    try:
        os.getcwd()
    except OSError:
        raise InputError("the working folder is gone; change to one that is there") from None


def open_missing() -> None:
    """Streams that a process was started without (`>&-`, services) lead nowhere from here on.

    Python has None for them, which nothing can be written to, and gives their numbers to the next files that are opened. In the
    order of their numbers, each gets its own. Processes that are started here have them too, as they have all streams: workers
    of a sweep end at once without an output for errors.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115  open as long as the process is
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


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
