"""`widemargin reproduce`: the figures and tables of the papers, with verdicts on what they claim."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from widemargin.types import InputError

from .options import INTERRUPTED, Command, check_device, integer, legal, use_threads
from .screen import finite_json, plain, print_rich, say

WORDS = {True: "yes", False: "NO", None: "inconclusive"}


def reproduce(options: argparse.Namespace) -> int:
    """Reproduce what is asked for, one after the other; status 1 if a claim fails."""
    from widemargin import papers

    if options.ids == ["list"]:
        return _list(options)
    check_device(options.device)
    if not (options.out and legal(options.out)):
        raise InputError(f"cannot write {options.out[:80]!r}: this is no legal folder name; choose another")
    chosen = papers.find(options.ids, options.scale)
    done: list[tuple[Any, list[Any], float]] = []
    status = 0
    with use_threads(options.threads):
        for one in chosen:
            say(f"{one.id}: {one.shows}")
            started = time.perf_counter()
            try:
                verdicts = papers.run(
                    one,
                    options.out,
                    scale=options.scale,
                    device=options.device,
                    seed=options.seed,
                    say=lambda text, one=one: say(f"{one.id}  {text}"),  # type: ignore[misc]
                )
            except InputError as error:
                if len(chosen) == 1:
                    raise
                say(f"{one.id}  left out: {error}")  # a file that is not there must not cost the others
                verdicts = [papers.Verdict(one.shows, "-", "", None, reason=f"left out: {error}")]
            except KeyboardInterrupt:
                say(f"interrupted in {one.id}; the same command goes on from here")
                status = INTERRUPTED
                break
            done.append((one, verdicts, time.perf_counter() - started))
    if not status and any(verdict.holds is False for _, verdicts, _ in done for verdict in verdicts):
        status = 1
    if options.json:
        shown = [
            {"id": one.id, "seconds": round(seconds, 2), "verdicts": [verdict.to_dict() for verdict in verdicts]}
            for one, verdicts, seconds in done
        ]
        print(json.dumps(finite_json(shown), allow_nan=False))
    else:
        _print(done)
    return status


def _list(options: argparse.Namespace) -> int:
    from widemargin import papers

    known = list(papers.REPRODUCTIONS.values())
    if options.json:
        print(json.dumps([one.to_dict() for one in known]))
        return 0
    from rich.table import Table

    table = Table()
    for column in ("id", "paper", "shows", "quick, 2 cores", "paper, 1 GPU"):
        table.add_column(column, no_wrap=column != "shows", justify="right" if "," in column else "left")
    for one in known:
        table.add_row(plain(one.id), plain(one.paper), plain(one.shows), f"{one.quick:.0f} s", f"{one.full:.0f} s")
    print_rich(table)
    return 0


def _print(done: list[tuple[Any, list[Any], float]]) -> None:
    from rich.table import Table

    table = Table()
    for column in ("id", "claim", "measured", "paper", "holds"):
        table.add_column(column, no_wrap=column in ("id", "holds"), overflow="fold")
    for one, verdicts, _ in done:
        for verdict in verdicts:
            measured = verdict.measured if isinstance(verdict.measured, str) else f"{verdict.measured:.4g}"
            if verdict.uncertainty is not None:
                more = verdict.uncertainty
                measured += f" ({more})" if isinstance(more, str) else f" +- {more:.2g}"
            table.add_row(
                *(plain(text) for text in (one.id, verdict.claim, measured, verdict.paper, WORDS[verdict.holds]))
            )
    print_rich(table)
    for one, verdicts, seconds in done:
        for verdict in verdicts:
            if verdict.holds is not True and verdict.reason:
                print(f"{one.id}: {verdict.claim}: {verdict.reason}")
        say(f"{one.id}: {seconds:.1f} s")


def add(command: Command) -> None:
    one = command("reproduce", reproduce, "reproduce figures and tables of the papers, with verdicts")
    one.add_argument(
        "ids", metavar="ID", nargs="+", help="ids of `reproduce list`, a paper (UH, LR, MT, BN, CB), or all"
    )
    one.add_argument(
        "--scale", choices=("quick", "paper"), default="quick", help="minutes on a laptop, or the papers' [quick]"
    )
    one.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="[cpu]")
    one.add_argument("--out", metavar="DIR", default="reproductions", help="where to write DIR/ID/ [reproductions]")
    one.add_argument("--seed", type=integer(0, 2**63 - 1), default=0, help="of everything random [0]")
    one.add_argument("--threads", metavar="N", type=integer(1, 1024), help="threads to use [the library's choice]")
    one.add_argument("--json", action="store_true", help="print a list of objects")
