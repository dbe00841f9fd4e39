"""`widemargin reproduce`: the figures and tables of the papers, with verdicts on what they claim."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from widemargin.json_values import plain_json
from widemargin.types import InputError, check_device

from .options import INTERRUPTED, Command, integer, legal, placed, seeded, threaded, use_threads
from .screen import print_table, say

Done = tuple[Any, list[Any], float]  # reproduction, verdicts, seconds


def reproduce(options: argparse.Namespace) -> int:
    """Reproduce what is asked for, one after the other; status 1 if a claim fails."""
    from widemargin import papers

    if options.ids == ["list"]:
        return _list(options)
    check_device(options.device)
    if not (options.out and legal(options.out)):
        raise InputError(f"cannot write {options.out[:80]!r}: this is no legal folder name; choose another")
    chosen = papers.find(options.ids, options.scale)
    done: list[Done] = []
    status = 0
    try:
        for found in _parallel(chosen, options) if options.jobs > 1 else _serial(chosen, options):
            done.append(found)
    except KeyboardInterrupt:
        say("interrupted; the same command goes on from here")
        status = INTERRUPTED
    if not status and any(verdict.holds is False for _, verdicts, _ in done for verdict in verdicts):
        status = 1
    if options.json:
        shown = [
            {"id": one.id, "seconds": round(seconds, 2), "verdicts": [verdict.to_dict() for verdict in verdicts]}
            for one, verdicts, seconds in done
        ]
        print(json.dumps(plain_json(shown), allow_nan=False))
    else:
        _print(done)
    return status


def _serial(chosen: list[Any], options: argparse.Namespace) -> Iterator[Done]:
    from widemargin import papers

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
                verdicts = [_left_out(one, str(error))]  # a file that is not there must not cost the others
            yield one, verdicts, time.perf_counter() - started


def _parallel(chosen: list[Any], options: argparse.Namespace) -> Iterator[Done]:
    """Each in a process of its own, --jobs at a time, the longest first; results in the order of the list."""
    from widemargin.papers import Verdict

    words = ["--scale", options.scale, "--device", options.device, "--out", options.out, "--seed", str(options.seed)]
    words += [] if options.threads is None else ["--threads", str(options.threads)]

    def work(one: Any) -> Done:
        started = time.perf_counter()
        command = [sys.executable, "-m", "widemargin", "reproduce", one.id, *words, "--json"]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode not in (0, 1) or not run.stdout:
            last = (run.stderr.strip().splitlines() or ["no message"])[-1].removeprefix("widemargin: ")
            return one, [_left_out(one, last)], time.perf_counter() - started
        say(f"{one.id}  done")
        (found,) = json.loads(run.stdout)
        return one, [Verdict(**verdict) for verdict in found["verdicts"]], time.perf_counter() - started

    longest = sorted(chosen, key=lambda one: -(one.full if options.scale == "paper" else one.quick))
    with ThreadPoolExecutor(options.jobs) as pool:
        tasks = {one.id: pool.submit(work, one) for one in longest}
        for one in chosen:
            yield tasks[one.id].result()


def _left_out(one: Any, why: str) -> Any:
    from widemargin.papers import UNDECIDED, Verdict

    say(f"{one.id}  left out: {why}")
    return Verdict(one.shows, "-", "", UNDECIDED, reason=f"left out: {why}")


def _list(options: argparse.Namespace) -> int:
    from widemargin import papers

    known = list(papers.REPRODUCTIONS.values())
    if options.json:
        print(json.dumps([one.to_dict() for one in known]))
        return 0
    columns = ("id", "paper", "shows", "quick, 2 cores", "paper, 1 GPU")
    rows = [[one.id, one.paper, one.shows, f"{one.quick:.0f} s", f"{one.full:.0f} s"] for one in known]
    print_table("", columns, rows, right=columns[3:], folded=["shows"])
    return 0


def _print(done: list[Done]) -> None:
    from widemargin.papers.verdicts import count, measured, other, word

    rows = []
    for one, verdicts, _ in done:
        for verdict in verdicts:
            holds = "NO" if verdict.holds is False else word(verdict.holds)
            rows.append([one.id, verdict.claim, measured(verdict.to_dict()), verdict.paper, holds])
    print_table("", ("id", "claim", "measured", "paper", "holds"), rows, folded=("claim", "measured", "paper"))
    for one, verdicts, seconds in done:
        for verdict in verdicts:
            if verdict.holds is not True and verdict.reason:
                print(f"{one.id}: {verdict.claim}: {verdict.reason}")
            if verdict.chosen_after:
                beside = f"; {other(verdict.to_dict())}" if verdict.again else ""
                print(f"{one.id}: {verdict.claim}: chosen after: {verdict.chosen_after}{beside}")
        say(f"{one.id}: {seconds:.1f} s")
    found = count(verdict for _, verdicts, _ in done for verdict in verdicts)
    print(", ".join(f"{number} {name}" for name, number in found.items()))


def add(command: Command) -> None:
    one = command("reproduce", reproduce, "reproduce figures and tables of the papers, with verdicts")
    one.add_argument(
        "ids", metavar="ID", nargs="+", help="ids of `reproduce list`, a paper (UH, LR, MT, BN, CB), or all"
    )
    one.add_argument(
        "--scale", choices=("quick", "paper"), default="quick", help="minutes on a laptop, or the papers' [quick]"
    )
    placed(one)
    one.add_argument("--out", metavar="DIR", default="reproductions", help="where to write DIR/ID/ [reproductions]")
    one.add_argument("--jobs", metavar="N", type=integer(1, 64), default=1, help="processes at a time [1]")
    seeded(one)
    threaded(one)
    one.add_argument("--json", action="store_true", help="print a list of objects")
