"""`widemargin margin` and `verify`: certificates of data sets, computed and re-checked."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from widemargin import data as datasets
from widemargin import verify as exact
from widemargin.types import Certificate, Dataset, InputError

from .options import (
    INTERRUPTED,
    Command,
    check_device,
    check_writable,
    integer,
    number,
    read_certificate,
    readable,
    sources,
    use_threads,
)
from .screen import Progress, finite_json, plain, print_rich, say, solver_progress, terminal

KINDS = ("f1", "f2", "linear", "frozen", "rf")
CONVENTIONS = {
    "M1": "sum of |mass| at most 1 on unit inner weights",
    "M7": "unit ball of the random feature kernel, uniform probability on the sphere",
    "M11": "unit Euclidean norm of u",
}
NARROW = 102  # columns the table of certificates needs; below, one sentence each


def margin(options: argparse.Namespace) -> int:
    """Compute, print and save margins."""
    kinds, source = _kinds(options)
    paths = _save_paths(options.save, kinds)
    data = datasets.load(source, options.label)
    data.signs()
    for note in data.notes:
        say(f"{data.name}: {note}")
    check_device(options.device)
    certs: list[Certificate] = []
    status = 0
    with use_threads(options.threads):
        for kind in kinds:
            try:
                with solver_progress(kind) as report:
                    certs.append(solve(kind, data, options, report))
            except KeyboardInterrupt:
                say(f"interrupted before {kind} had a result")
                status = INTERRUPTED
            if status or certs[-1].status == "interrupted":
                status = INTERRUPTED
                break
    if options.json:
        if len(kinds) > 1 or certs:
            shown = [finite_json(cert.summary()) for cert in certs]
            print(json.dumps(shown if len(kinds) > 1 else shown[0], allow_nan=False))
    elif certs:
        print_certificates(data, certs)
    sys.stdout.flush()
    for cert in certs if paths else ():
        save_certificate(cert, paths[cert.kind])
        say(f"certificate of {cert.kind} written to {paths[cert.kind]}")
    return status


def solve(kind: str, data: Dataset, options: Any, report: Progress | None = None) -> Certificate:
    """The margin of one kind with the options of the command line."""
    keys: dict[str, Any] = {"bias": options.bias, "time_limit": options.time_limit}
    if options.tol is not None:
        keys["tol"] = options.tol
    if kind == "linear":
        from widemargin.margins.linear import linear

        return linear(data, **keys)
    keys["activation"] = options.activation
    if kind == "f2":
        from widemargin.margins.f2 import f2

        return f2(data, **keys)
    keys["seed"] = options.seed
    if kind == "frozen":
        from widemargin.margins.frozen import frozen

        return frozen(data, options.width, **keys)
    if kind == "rf":
        from widemargin.margins.f2 import random_features

        return random_features(data, options.width, **keys)
    from widemargin.margins.f1 import f1

    return f1(data, device=options.device, progress=report, **keys)


def verify(options: argparse.Namespace) -> int:
    """Re-check a saved certificate in exact arithmetic."""
    payload = read_certificate(options.certificate)
    data = datasets.load(options.data, options.label)
    for note in data.notes:
        say(f"{data.name}: {note}")
    verdict = exact.check(payload, data.X, data.y)
    fields = payload if isinstance(payload, Mapping) else {}
    if options.json:
        said = {key: fields.get(key) for key in ("kind", "lower", "upper", "convention", "proved")}
        print(json.dumps(finite_json(verdict.to_dict() | (said if verdict.ok else {})), allow_nan=False))
        return 0 if verdict.ok else 1
    from rich.table import Table

    table = Table(title=plain(f"{options.certificate} for {data}"), title_justify="left")
    table.add_column("checked", no_wrap=True)
    table.add_column("result", overflow="fold")
    for item, detail in verdict.checks:
        failed = item == verdict.failed
        table.add_row(plain(item), plain(f"FAILED {detail}".rstrip() if failed else detail or "ok"))
    print_rich(table)
    if verdict.ok:
        print(f"{fields.get('kind')} margin ({fields.get('convention')}): {verdict}")
        return 0
    print(str(verdict))
    return 1


def print_certificates(data: Dataset, certs: Sequence[Certificate]) -> None:
    from rich.table import Table

    table = Table(title=plain(str(data)), title_justify="left")
    for column in ("kind", "margin", "gap", "status", "bound", "convention", "atoms", "seconds"):
        right = column in ("gap", "atoms", "seconds")
        table.add_column(column, justify="right" if right else "left", no_wrap=column != "bound")
    for cert in certs:
        bound = cert.bound if cert.proved else f"{cert.bound}, NOT proved"
        seconds = cert.stats.get("seconds")
        table.add_row(
            plain(cert.kind),
            plain(f"[{cert.lower:.7g}, {cert.upper:.7g}]"),
            plain(f"{cert.gap:.2g}"),
            plain(cert.status),
            plain(bound),
            plain(cert.convention),
            plain(str(cert.atoms) if cert.primal is not None else "-"),
            plain("-" if seconds is None else f"{seconds:.2f}"),
        )
    console = terminal()
    if console.width < NARROW:
        print(data)
        for cert in certs:
            print(f"{cert}, {cert.stats.get('seconds') or 0:.2f} seconds")
    else:
        print_rich(table)
    for convention in dict.fromkeys(cert.convention for cert in certs):
        print(f"{convention}: {CONVENTIONS.get(convention, 'see docs/notation.md')}")
    for cert in certs:
        if cert.reason:
            print(f"{cert.kind}: {cert.reason}")


def _kinds(options: argparse.Namespace) -> tuple[list[str], str]:
    """The kinds, once each, and the data; `--kind f1 f2 DATA` leaves DATA among the kinds."""
    words = [word for words in options.kind or [["f1"]] for word in words]
    source = options.data
    if source is None:
        if len(words) < 2 or not words[-1] or words[-1] in KINDS:
            raise InputError("there is no DATA; give a file or a spec such as parity:d=20,n=64")
        source = words.pop()
    kinds = [kind for word in words for kind in word.split(",") if kind]
    for kind in kinds:
        if kind not in KINDS:
            raise InputError(f"unknown kind {kind[:40]!r}; choose from {', '.join(KINDS)}")
    if not kinds:
        raise InputError(f"--kind is empty; choose from {', '.join(KINDS)}")
    return list(dict.fromkeys(kinds)), source


def save_certificate(cert: Certificate, path: Path) -> None:
    if not math.isfinite(cert.upper):
        raise InputError(f"{cert.kind} has no upper bound yet, so nothing was saved; give it a longer --time-limit")
    cert.save(path)


def _save_paths(save: str | None, kinds: Sequence[str]) -> dict[str, Path]:
    """Where each certificate goes: CERT itself, or with the kind in its name if there are several."""
    if save is None:
        return {}
    path = Path(save)
    if not path.name:
        raise InputError(f"--save {save!r} is no file name; give one such as cert.json")
    if len(kinds) == 1:
        paths = {kinds[0]: path}
    else:
        ending = "".join(s for s in path.suffixes[-2:] if s in (".json", ".gz")) or path.suffix
        stem = path.name.removesuffix(ending)
        paths = {kind: path.with_name(f"{stem}.{kind}{ending}") for kind in kinds}
    for one in paths.values():
        check_writable(str(one))
    return paths


def add(command: Command) -> None:
    one = command("margin", margin, "compute the largest margin, with a certificate", epilog=sources())
    one.add_argument(
        "data", metavar="DATA", nargs="?", help="a .csv, .npz or .npy file, or a spec such as parity:d=20,n=64"
    )
    one.add_argument(
        "--kind",
        nargs="+",
        action="append",
        metavar="KIND",
        help=f"one or more of {', '.join(KINDS)}, separated by spaces or commas [f1]",
    )
    one.add_argument(
        "--bias",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="extend every point by a coordinate 1 [--no-bias]",
    )
    one.add_argument(
        "--activation", choices=("relu", "srelu"), default="relu", help="the neurons; linear has none [relu]"
    )
    readable(one)
    one.add_argument(
        "--tol",
        type=number(0, 1, "a number between 0 and 1"),
        help="stop at this relative gap [1e-3 for f1, 1e-9 for linear, 1e-6 for the others]",
    )
    one.add_argument(
        "--time-limit",
        metavar="S",
        default=60.0,
        type=number(0, math.inf, "a positive number of seconds"),
        help="seconds for each kind; the result then says time-limit, and both bounds hold [60]",
    )
    one.add_argument("--seed", type=integer(0, 2**63 - 1), default=0, help="of everything random [0]")
    one.add_argument(
        "--width", metavar="M", type=integer(1, 10**6), default=1000, help="random neurons of frozen, rf [1000]"
    )
    one.add_argument("--threads", metavar="N", type=integer(1, 1024), help="threads to use [the library's choice]")
    one.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="where f1 searches; others use the cpu [cpu]"
    )
    one.add_argument(
        "--save",
        metavar="CERT.json",
        help="write the certificate (.gz: compressed); with several kinds one file each, CERT.f1.json, CERT.f2.json",
    )
    one.add_argument("--json", action="store_true", help="print one object, or a list for several kinds")

    one = command("verify", verify, "re-check a saved certificate in exact arithmetic")
    one.add_argument("certificate", metavar="CERT", help="a file written by --save")
    one.add_argument("data", metavar="DATA", help="the data it was made for")
    readable(one)
    one.add_argument("--json", action="store_true", help="print the verdict as one object")
