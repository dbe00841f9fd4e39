"""`widemargin reproduce`: the figures and tables of the papers, with verdicts on what they claim."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from widemargin.json_values import plain_json
from widemargin.types import InputError, check_device

from .options import INTERRUPTED, Command, integer, legal, placed, seeded, threaded, use_threads
from .screen import print_lines, print_table, say

Done = tuple[Any, list[Any], float]  # reproduction, verdicts, seconds
# In the environment of a process that --jobs has begun, who did: that one may be killed, and nobody else waits for it.
PARENT = "WIDEMARGIN_PARENT"


def reproduce(options: argparse.Namespace) -> int:
    """Reproduce what is asked for, one after the other; status 1 if a claim fails."""
    from widemargin import papers

    begun_by = os.environ.pop(PARENT, "")
    if begun_by.isdecimal():
        from widemargin.sweep.engines import end_with

        end_with(int(begun_by))
    if options.ids == ["list"]:
        return _list(options)
    check_device(options.device)
    if not (options.out and legal(options.out)):
        raise InputError(f"cannot write {options.out[:80]!r}: this is no legal folder name; choose another")
    chosen = papers.find(options.ids, options.scale)
    done: list[Done] = []
    status = 0
    try:
        for entry in _parallel(chosen, options) if options.jobs > 1 else _serial(chosen, options):
            done.append(entry)
    except KeyboardInterrupt:
        say("interrupted; the same command goes on from here")
        status = INTERRUPTED
    if not status and any(verdict.holds is False for _, verdicts, _ in done for verdict in verdicts):
        status = 1
    if options.json:
        shown = [
            {
                "id": reproduction.id,
                "seconds": round(seconds, 2),
                "verdicts": [verdict.to_dict() for verdict in verdicts],
            }
            for reproduction, verdicts, seconds in done
        ]
        print(json.dumps(plain_json(shown), allow_nan=False))
    else:
        _print(done)
    return status


def _serial(chosen: list[Any], options: argparse.Namespace) -> Iterator[Done]:
    from widemargin import papers

    with use_threads(options.threads):
        for reproduction in chosen:
            say(f"{reproduction.id}: {reproduction.shows}")
            started = time.perf_counter()
            try:
                verdicts = papers.run(
                    reproduction,
                    options.out,
                    scale=options.scale,
                    device=options.device,
                    seed=options.seed,
                    say=lambda text, reproduction=reproduction: say(f"{reproduction.id}  {text}"),  # type: ignore[misc]
                )
            except InputError as error:
                if len(chosen) == 1:
                    raise
                verdicts = [_left_out(reproduction, str(error))]  # a file that is not there must not cost the others
            yield reproduction, verdicts, time.perf_counter() - started


def _parallel(chosen: list[Any], options: argparse.Namespace) -> Iterator[Done]:
    """Each in a process of its own, --jobs at a time, the longest first; results in the order of the list."""
    from widemargin.papers import Verdict

    words = ["--scale", options.scale, "--device", options.device, "--out", options.out, "--seed", str(options.seed)]
    words += [] if options.threads is None else ["--threads", str(options.threads)]
    running: set[subprocess.Popen[str]] = set()
    ended = threading.Event()

    def work(reproduction: Any) -> Done:
        started = time.perf_counter()
        command = [sys.executable, "-m", "widemargin", "reproduce", reproduction.id, *words, "--json"]
        mine = os.environ | {PARENT: str(os.getpid())}
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=mine) as run:
            running.add(run)
            printed, told = run.communicate()
            running.remove(run)
        if ended.is_set():  # what was broken off is no verdict
            return reproduction, [], 0.0
        if run.returncode not in (0, 1) or not printed:
            last = (told.strip().splitlines() or ["no message"])[-1].removeprefix("widemargin: ")
            return reproduction, [_left_out(reproduction, last)], time.perf_counter() - started
        say(f"{reproduction.id}  done")
        (said,) = json.loads(printed)
        return reproduction, [Verdict(**verdict) for verdict in said["verdicts"]], time.perf_counter() - started

    longest = sorted(chosen, key=lambda known: -(known.full if options.scale == "paper" else known.quick))
    pool = ThreadPoolExecutor(options.jobs)
    tasks = {known.id: pool.submit(work, known) for known in longest}
    try:
        for reproduction in chosen:
            yield tasks[reproduction.id].result()
    finally:  # after Ctrl-C, which a terminal sends to all of them, none is begun any more, and none is waited for
        ended.set()
        pool.shutdown(wait=False, cancel_futures=True)
        begun = [task for task in tasks.values() if not task.cancelled()]
        for end in (subprocess.Popen.terminate, subprocess.Popen.kill):
            if wait(begun, timeout=1.0).not_done:
                for run in list(running):
                    end(run)


def _left_out(reproduction: Any, why: str) -> Any:
    from widemargin.papers import UNDECIDED, Verdict

    say(f"{reproduction.id}  left out: {why}")
    return Verdict(reproduction.shows, "-", "", UNDECIDED, reason=f"left out: {why}")


def _list(options: argparse.Namespace) -> int:
    from widemargin import papers

    known = list(papers.REPRODUCTIONS.values())
    if options.json:
        print(json.dumps([reproduction.to_dict() for reproduction in known]))
        return 0
    columns = ("id", "paper", "shows", "quick, 2 cores", "paper, 1 GPU")
    rows = [[row.id, row.paper, row.shows, f"{row.quick:.0f} s", f"{row.full:.0f} s"] for row in known]
    print_table("", columns, rows, right=columns[3:], folded=["shows"])
    return 0


def _print(done: list[Done]) -> None:
    from widemargin.papers.verdicts import count, measured, other, word

    rows = []
    for reproduction, verdicts, _ in done:
        for verdict in verdicts:
            holds = "NO" if verdict.holds is False else word(verdict.holds)
            rows.append([reproduction.id, verdict.claim, measured(verdict.to_dict()), verdict.paper, holds])
    print_table("", ("id", "claim", "measured", "paper", "holds"), rows, folded=("claim", "measured", "paper"))
    for reproduction, verdicts, seconds in done:
        for verdict in verdicts:
            if verdict.holds is not True and verdict.reason:
                print_lines([f"{reproduction.id}: {verdict.claim}: {verdict.reason}"])
            if verdict.chosen_after:
                beside = f"; {other(verdict.to_dict())}" if verdict.again else ""
                print_lines([f"{reproduction.id}: {verdict.claim}: chosen after: {verdict.chosen_after}{beside}"])
        say(f"{reproduction.id}: {seconds:.1f} s")
    counts = count(verdict for _, verdicts, _ in done for verdict in verdicts)
    print(", ".join(f"{number} {name}" for name, number in counts.items()))


def add(command: Command) -> None:
    parser = command("reproduce", reproduce, "reproduce figures and tables of the papers, with verdicts")
    parser.add_argument(
        "ids", metavar="ID", nargs="+", help="ids of `reproduce list`, a paper (UH, LR, MT, BN, CB), or all"
    )
    parser.add_argument(
        "--scale", choices=("quick", "paper"), default="quick", help="minutes on a laptop, or the papers' [quick]"
    )
    placed(parser)
    parser.add_argument("--out", metavar="DIR", default="reproductions", help="where to write DIR/ID/ [reproductions]")
    parser.add_argument("--jobs", metavar="N", type=integer(1, 64), default=1, help="processes at a time [1]")
    seeded(parser)
    threaded(parser)
    parser.add_argument("--json", action="store_true", help="print a list of objects")
