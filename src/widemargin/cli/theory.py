"""`widemargin bound`, `check` and `theorems`: what a margin guarantees, and whether a run obeys the theory."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from widemargin import data as datasets
from widemargin.json_values import plain_json
from widemargin.spaces import extend
from widemargin.types import Dataset

from .options import (
    Command,
    integer,
    number,
    prepared,
    readable,
    seeded,
    sources,
    standardizable,
    threaded,
    timed,
    use_threads,
)
from .screen import plain, print_lines, print_table, terminal

WORDS = {True: "yes", False: "no", None: "not checked"}


def bound(options: argparse.Namespace) -> int:
    """Every guarantee that could apply to data, and to a run on them."""
    from widemargin import theory

    data = datasets.load(options.data, options.label)
    data = prepared(data, options)
    data.signs()
    if options.bias and options.run_folder is None:  # a run knows whether it had a bias
        data = Dataset(extend(data.X, bias=True), data.y, data.name, data.classes)
    with use_threads(options.threads), _progress("bound") as report:
        given = theory.guarantees(
            data,
            options.run_folder,
            delta=options.delta,
            theorems=options.theorem,
            trial=options.trial,
            seed=options.seed,
            time_limit=options.time_limit,
            progress=report,
        )
    if options.json:
        print(json.dumps(plain_json(given.to_dict()), allow_nan=False))
        return 0
    if not list(given):
        print_lines([
            "None of these theorems says anything of data, or of a run, alone; `widemargin theorems "
            f"{' '.join(options.theorem)}` tells what they are about."
        ])  # fmt: skip
        return 0
    _print_guarantees(given)
    return 0


def check(options: argparse.Namespace) -> int:
    """Every inequality along a run; status 1 if one that is proved fails, 0 otherwise, undecided ones included."""
    from widemargin import theory

    with use_threads(options.threads), _progress("check") as report:
        checks = theory.check(options.run_folder, progress=report)
    violated = [each for each in checks if each.violated]
    undecided = [each for each in checks if each.word == "undecided"]
    if options.json:
        shown = {
            "run": options.run_folder,
            "violated": [each.id for each in violated],
            "undecided": [each.id for each in undecided],
            "checks": [each.to_dict() for each in checks],
        }
        print(json.dumps(plain_json(shown), allow_nan=False))
        return 1 if violated else 0
    _print_checks(checks)
    if undecided:
        print(f"{len(undecided)} undecided: what finite steps may have cost there exceeds half of what is compared")
    for each in violated:
        print(f"VIOLATED {each}")
    return 1 if violated else 0


def theorems(options: argparse.Namespace) -> int:
    """The theorems that there are, those of a paper, or all about those with the given ids."""
    from widemargin import theory

    shown = []
    for word in [_by_author(word).upper() for word in options.ids] or theory.PAPERS:
        paper = word in theory.PAPERS
        shown += [(theorem, not paper) for theorem in (theory.theorems(word) if paper else [theory.theorem(word)])]
    if options.json:
        print(json.dumps([theorem.to_dict() | (theorem.usage() if full else {}) for theorem, full in shown]))
        return 0
    for theorem, full in shown:
        if full:
            print(f"{theorem}\n")
            continue
        print(f"{theorem.id}  {theorem.says} [{theorem.reference}; theory.{theorem.theme}.{theorem.name}]")
        for text in theorem.assumes:
            print(f"    assumes {text}")
    return 0


def _by_author(word: str) -> str:
    """The letters of the paper of an author; any other word as it is."""
    from widemargin.references import PAPERS

    names = {author.partition(",")[0].lower(): letters for letters, paper in PAPERS.items() for author in paper.authors}
    return names.get(word.lower(), word)


# ---------------------------------------------------------------- what is printed


def _print_guarantees(guarantees: Any) -> None:
    facts, rows = guarantees.facts, []
    for guarantee in guarantees:
        marks = ["vacuous"] if guarantee.explicit and guarantee.vacuous else []
        if guarantee.convention == "printed":
            marks.append("as printed")
        rows.append([
            guarantee.id, guarantee.quantity + (f" ({guarantee.unit})" if guarantee.unit else ""),
            guarantee.shown + (f" [{', '.join(marks)}]" if marks else ""), WORDS[guarantee.applies],
            guarantee.about, guarantee.statement, guarantee.reference,
        ])  # fmt: skip
    columns = ("id", "quantity", "value", "applies", "about", "says", "reference")
    print_table(f"{facts.data}, delta {facts.delta:g}", columns, rows, folded=("about", "says", "reference"))
    for guarantee in guarantees:
        failed = [
            f"{a.text}{' (' + a.detail + ')' if a.detail else ''}" for a in guarantee.assumptions if a.holds is False
        ]
        if failed:
            print_lines([f"{guarantee.id} does not apply: {'; '.join(failed)}"])
    best = guarantees.best
    if best is None:
        print_lines(
            [
                "No bound on the test error says anything here: all are at least 1, up to a constant, or an assumption fails."
            ]
        )
        return
    about = f" of the {best.about}" if best.about else ""
    print_lines([f"best bound on the test error{about}: {float(best.value):.4g} ({best.id}, {best.reference})"])
    unchecked = [a.text for a in best.assumptions if a.holds is None]
    if unchecked:
        print_lines([f"  if {'; and '.join(unchecked)}"])


def _print_checks(checks: Any) -> None:
    rows = []
    for check in checks:
        least = check.smallest or {}
        rows.append([
            check.id, check.word, f"{check.checked} + {check.undecided}?" if check.undecided else str(check.checked),
            f"{least['slack']:.3g}" if least else "-", f"{least['allowance']:.3g}" if least else "-",
            f"{least['t']:.4g}" if least else "-", check.statement, check.note,
        ])  # fmt: skip
    columns = ("id", "holds", "records", "smallest slack", "allowance", "at t", "says", "note")
    print_table("", columns, rows, right=columns[2:6], folded=("says", "note"))


@contextlib.contextmanager
def _progress(what: str) -> Iterator[Callable[[str, float], None] | None]:
    console = terminal(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with console.status(f"{what} ...") as status:
        yield lambda id, share: status.update(plain(f"{what} {share:4.0%}  {id}"))


def add(command: Command) -> None:
    parser = command("bound", bound, "evaluate every guarantee that could apply", epilog=sources())
    parser.add_argument("data", metavar="DATA", help="a .csv, .npz or .npy file, or a spec such as parity:d=20,n=64")
    parser.add_argument("--run", metavar="RUN", dest="run_folder", help="a folder written by train --out on these data")
    parser.add_argument("--trial", metavar="B", type=integer(0, 10**6), default=0, help="which network of the run [0]")
    parser.add_argument(
        "--delta",
        type=number(0, 1, "a number between 0 and 1"),
        default=0.05,
        help="bounds hold with probability 1 - delta (or a multiple of delta, as each says) [0.05]",
    )
    parser.add_argument("--theorem", metavar="ID", nargs="+", help="only these, such as MT-7 LR-15 [all]")
    parser.add_argument(
        "--bias", action="store_true", help="extend every point by a coordinate 1 (with --run: as it was)"
    )
    seeded(parser)
    timed(parser, "seconds for each margin that is needed")
    threaded(parser)
    parser.add_argument("--json", action="store_true", help="print one object")
    readable(parser)
    standardizable(parser)

    parser = command("check", check, "check every inequality of the papers along a run")
    parser.add_argument(
        "run_folder", metavar="RUN", help="a folder written by train --out; more is checked with --weights"
    )
    threaded(parser)
    parser.add_argument("--json", action="store_true", help="print one object")

    parser = command(
        "theorems", theorems, "list the theorems, or say all about some: statement, assumptions, how to call"
    )
    parser.add_argument("ids", metavar="ID", nargs="*", help="papers, such as CB, or ids, such as CB-22 [all theorems]")
    parser.add_argument("--json", action="store_true", help="print a list of objects")
