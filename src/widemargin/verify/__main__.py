"""`python -m widemargin.verify CERT DATA`: the verdict on a certificate, where only numpy is installed.

Exit status: 0 proved exactly, 1 refused, 2 a file that cannot be read or an answer that cannot be written, 3 holds with a
probability, 4 not proved, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from .files import column_of, load, read_data
from .frame import EXIT, check, data_hash, restored


def main(argv: list[str] | None = None) -> int:
    """The exit status. Whatever goes wrong on the way, it is not that of a certificate that was refused."""
    for name, mode in (("stdout", "w"), ("stderr", "w")):
        # What a process was started without leads nowhere: print would take the other one.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  open as long as the process is
        with contextlib.suppress(AttributeError, ValueError, OSError):
            getattr(sys, name).reconfigure(errors="backslashreplace")  # signs that this stream has not
    try:
        try:
            status = _answer(argv)
        except SystemExit as ended:  # of argparse: 0 for --help, 2 for words that it does not know
            status = 2 if ended.code else 0
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        _say("interrupted")
        return 130
    except MemoryError:
        return _complain("there is not enough memory to check this certificate; use a machine with more")
    except OSError as error:
        with contextlib.suppress(OSError, ValueError):  # else Python stumbles over it again at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader went away, as in `| head`
            return 141
        return _complain(f"cannot write the answer: {error.strerror or error}; check where standard output goes")


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def _complain(text: str) -> int:
    line = " ".join(text.split())  # one line, whatever the names in it hold
    _say(f"widemargin.verify: {''.join(c if c.isprintable() else '?' for c in line)}")
    return 2


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SystemExit(_complain(f"{message}; see {self.prog} --help"))


def _answer(argv: list[str] | None) -> int:
    parser = _Parser(
        prog="python -m widemargin.verify",
        description="Re-check a saved certificate in exact arithmetic.",
        epilog="exit status: 0 proved exactly, 1 refused, 2 bad input, 3 holds with a probability, 4 not proved",
    )
    parser.add_argument("certificate", metavar="CERT", help="a file written by --save")
    parser.add_argument("data", metavar="DATA", help="the data it was made for, .npz or .csv")
    parser.add_argument("--json", action="store_true", help="print the verdict as one object")
    options = parser.parse_args(argv)
    try:
        payload = load(options.certificate)
        kind, loss, made_for, label = _named(payload)
        X, y = read_data(options.data, kind, loss, label)
        signs = False
        if loss == "squared" and data_hash(restored(payload, X, y), y) != made_for:  # or for these labels as -1 and +1
            points, two = read_data(options.data, kind, label=label)
            signs = data_hash(restored(payload, points, two), two) == made_for
            X, y = (points, two) if signs else (X, y)
        column = column_of(options.data, label)
    except ValueError as error:
        return _complain(str(error))
    verdict = check(payload, X, y, column, signs)
    if options.json:
        print(json.dumps(verdict.to_dict()))
    else:
        for item, detail in verdict.checks:
            print(f"{item:16} {detail}")
        print(verdict)
    return EXIT[verdict.answer]


def _named(payload: Any) -> tuple[str, str, Any, str]:
    """Kind, loss, hash of the data and the column of labels, as far as a certificate says them: they decide how a file is read,
    and nothing else."""
    fields = payload if isinstance(payload, Mapping) else {}
    extra, data = (value if isinstance(value, Mapping) else {} for value in (fields.get("extra"), fields.get("data")))
    return str(fields.get("kind")), str(extra.get("loss", "")), data.get("sha256"), str(data.get("label", ""))


if __name__ == "__main__":
    sys.exit(main())
