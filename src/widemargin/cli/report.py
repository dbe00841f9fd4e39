"""`widemargin report`: one self-contained page that shows what came out."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from widemargin.json_values import plain_json
from widemargin.types import InputError

from .options import Command, check_kept, check_page_kept, check_writable, integer, legal, threaded, timed, use_threads
from .screen import print_lines, say


def report(options: argparse.Namespace) -> int:
    """Write the page of everything that was given."""
    from widemargin import report as pages

    check_writable(options.out)
    for name in options.things:
        if not name or not legal(name):
            raise InputError(f"cannot read {name[:80]!r}: this is no legal file name; check it")
    _check_kept(options.out, options.things)
    check_page_kept(options.out)
    columns = [name.strip() for words in options.columns for name in words.split(",") if name.strip()]
    with use_threads(options.threads):
        page = pages.build(
            options.things,
            title=options.title,
            bounds=options.bounds,
            checks=options.checks,
            trial=options.trial,
            time_limit=options.time_limit,
            columns=columns,
            progress=say if options.bounds or options.checks else None,
        )
    pages.write(page, options.out)
    if options.json:
        print(json.dumps(plain_json(page.to_dict() | {"out": options.out}), allow_nan=False))
    else:
        print_lines([section.title for section in page.sections])
    say(f"written to {options.out}; open it in a browser")
    return 0


def _check_kept(out: str, things: Sequence[str]) -> None:
    """Refuse to write over what is reported, or among the files of a run, a store and such."""
    from widemargin.report.page import look

    check_kept(out, (given.what for name in things for given in look(Path(name))), among=True)


def add(command: Command) -> None:
    parser = command("report", report, "write one page with certificates, runs, sweeps, monitors and reproductions")
    parser.add_argument(
        "things",
        metavar="PATH",
        nargs="+",
        help="a certificate (margin, fit or gap --save), a run (train --out), a store (sweep --store), a folder of a monitor or "
        "of a reproduction, or a folder that holds several of them",
    )
    parser.add_argument("--out", metavar="FILE.html", default="report.html", help="the page [report.html]")
    parser.add_argument("--title", help="of the page [Margins, or Optima of training where there are no others]")
    parser.add_argument("--bounds", action="store_true", help="also evaluate every guarantee, which takes time")
    parser.add_argument("--checks", action="store_true", help="also check every inequality along the runs")
    parser.add_argument("--trial", metavar="B", type=integer(0, 10**6), default=0, help="the network that is drawn [0]")
    parser.add_argument(
        "--columns",
        metavar="NAME",
        action="append",
        default=[],
        help="results of sweeps to show, separated by commas [8]",
    )
    timed(parser, "seconds for each margin that --bounds needs")
    threaded(parser)
    parser.add_argument("--json", action="store_true", help="print what the page contains as one object")
