"""What the commands read: options, file names, certificates; bad ones end in one sentence."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from widemargin import data as datasets
from widemargin import verify as exact
from widemargin.disk import make_folders
from widemargin.errors import did_you_mean
from widemargin.saved import says_certificate
from widemargin.spaces import as_space
from widemargin.types import Dataset, InputError

from .screen import complain, say

INTERRUPTED, PIPE_CLOSED = 130, 141  # exit statuses

Command = Callable[..., "Parser"]  # command(name, run, text, **keys) -> the parser of its options


def legal(name: str) -> bool:
    try:
        return b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        return False


def check_writable(name: str) -> None:
    """Refuse early what could not be written after a long computation."""
    if not legal(name):
        raise InputError(f"cannot write {name[:80]!r}: this is no legal file name; choose another")
    path = Path(name)
    if path.is_dir():
        raise InputError(f"cannot write {name}: it is a folder; give a file name")
    if path.exists() and not path.is_file():
        raise InputError(f"cannot write {name}: it is a device or a pipe; give a file name")
    if not path.parent.is_dir():
        raise InputError(f"cannot write {name}: there is no folder {path.parent}; make it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise InputError(f"cannot write {name}: the folder {path.parent} is not writable; choose another")


def check_kept(out: str, inputs: Iterable[str | Path | None], among: bool = False) -> None:
    """Refuse to write over what the command reads; with `among` also into its folders. None and specs of data are no files."""
    places = [os.path.realpath(out), os.path.join(os.path.realpath(os.path.dirname(out)), os.path.basename(out))]
    for name in inputs:
        if name is None or not legal(str(name)) or not os.path.exists(name):
            continue
        same = os.path.exists(out) and os.path.samefile(out, name)
        if same or (among and any(Path(place).is_relative_to(os.path.realpath(name)) for place in places)):
            where = "over or into" if among else "over"
            raise InputError(f"cannot write {out} {where} {name}, which this command reads; choose another place")


def check_certificate_kept(name: str) -> None:
    """Refuse to write a certificate over a file of another kind. Remains of a certificate are no loss."""
    try:
        with open(name, "rb") as file:
            begins = file.read(2)
    except OSError:  # none there, or for the one who writes to stumble over
        return
    known = says_certificate(name) if begins else True
    if not (known or (known is None and begins[:1] in (b"{", b"\x1f"))):
        raise InputError(
            f"cannot write a certificate over {name}, which is none; remove it first, or choose another name"
        )


def check_page_kept(name: str) -> None:
    """Refuse to write a page over a file of another kind, such as the data of a run that it shows."""
    try:
        with open(name, "rb") as file:
            begins = file.read(100).lstrip().lower()
    except OSError:  # none there, or for the one who writes to stumble over
        return
    if begins and not begins.startswith(b"<!doctype html"):
        raise InputError(f"cannot write a page over {name}, which is none; remove it first, or choose another name")


def make_folder(name: str) -> Path:
    try:
        folder = Path(name)
        make_folders(folder)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot make the folder {name[:80]!r}: {why}; choose another with --out") from None
    check_writable(str(folder / "f1.json.gz"))
    return folder


def read_certificate(name: str) -> Any:
    try:
        return exact.load(name)
    except ValueError as error:
        raise InputError(str(error)) from None


@contextlib.contextmanager
def use_threads(count: int | None) -> Iterator[None]:
    """Use `count` threads in torch and in the linear algebra below numpy and scipy."""
    if count is None:
        yield
        return
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    say(f"using {count} thread{'s' * (count > 1)}")
    try:
        with threadpool_limits(count):
            yield
    finally:
        torch.set_num_threads(before)


class Parser(argparse.ArgumentParser):
    """Bad options end in one sentence, like all bad input."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = ", ".join(map(str, action.choices))
            raise argparse.ArgumentError(
                action, f"invalid choice: {value!r}{did_you_mean(value, action.choices)} (choose from {known})"
            )

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, left = self.parse_known_args(args, namespace)
        if left:
            known = getattr(options, "options_known", ())
            near = did_you_mean(left[0].partition("=")[0], known) if left[0].startswith("-") else ""
            # The whole command line is parsed here, and what was not understood belongs to one command of it.
            whole = f"{self.prog} {getattr(options, 'command', None) or ''}".rstrip()
            complain(f"unrecognized arguments: {' '.join(left)}{near}; see {whole} --help")
            raise SystemExit(2)
        return options

    def _print_message(self, message: str, file: Any = None) -> None:
        """Help and version. argparse says nothing where they cannot be written, and ends as if they had been."""
        print(message, end="", file=file or sys.stderr, flush=True)

    def error(self, message: str) -> NoReturn:
        complain(f"{message}; see {self.prog} --help")
        raise SystemExit(2)


def number(low: float, high: float, what: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low < value < high:
            raise argparse.ArgumentTypeError(f"must be {what}, not {text[:40]!r}")
        return value

    return read


def integer(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must be an integer from {low} to {high}, not {text[:40]!r}")
        return value

    return read


def activation(text: str) -> str:
    try:
        return as_space(text).activation
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def sources() -> str:
    names = "; ".join(f"{name}: {', '.join(keys)}" for name, (_, keys) in datasets.SOURCES.items())
    return f"specs are NAME:KEY=VALUE,... with these names and keys. {names}."


def standardizable(parser: Parser) -> None:
    parser.add_argument(
        "--standardize", action="store_true", help="first give every column mean 0 and standard deviation 1"
    )


def prepared(data: Dataset, options: argparse.Namespace) -> Dataset:
    """The data as the options ask for them, and what was changed on the way told."""
    if getattr(options, "standardize", False):
        data = data.standardize()
    for note in data.notes:
        say(f"{data.name}: {note}")
    return data


def readable(parser: Parser) -> None:
    parser.add_argument("--label", metavar="NAME", help="the column (or .npz array) with the labels [y or label]")


# Options that several commands have, each with the same meaning and limits.


def seeded(parser: Parser) -> None:
    parser.add_argument("--seed", type=integer(0, 2**63 - 1), default=0, help="of everything random [0]")


def talkative(parser: Parser) -> None:
    parser.add_argument(
        "--verbose", action="store_true", help="all digits, and the codes of margins and proofs (docs/notation.md)"
    )


def threaded(parser: Parser) -> None:
    parser.add_argument("--threads", metavar="N", type=integer(1, 1024), help="threads to use [the library's choice]")


def placed(parser: Parser, text: str = "") -> None:
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help=f"{text} [cpu]".strip())


def precise(parser: Parser, default: float | None, text: str) -> None:
    known = number(0, 1, "a number between 0 and 1")
    parser.add_argument("--tol", type=known, default=default, help=f"stop at this relative gap [{text}]")


def timed(parser: Parser, text: str) -> None:
    kind = number(0, math.inf, "a positive number of seconds")
    parser.add_argument("--time-limit", metavar="S", default=60.0, type=kind, help=f"{text} [60]")


def sized(parser: Parser) -> None:
    parser.add_argument(
        "--memory", metavar="BYTES", type=amount, help="for matrices, as in 4GB or 500MB [half of what is free]"
    )


def amount(text: str) -> float:
    """Bytes: a number, or one with kB, MB, GB or TB (or KiB, MiB, GiB, TiB) behind it."""
    word = text.strip().lower()
    for power, letter in enumerate("kmgt", 1):
        for ending, unit in ((f"{letter}ib", 1024.0), (f"{letter}b", 1000.0)):
            if word.endswith(ending):
                return number(0, math.inf, "a size such as 4GB or 500MB")(word.removesuffix(ending)) * unit**power
    return number(0, math.inf, "a size such as 4GB or 500MB")(word.removesuffix("b"))
