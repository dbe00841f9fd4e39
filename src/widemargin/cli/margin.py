"""`widemargin margin` and `verify`: certificates of data sets, computed and re-checked."""

from __future__ import annotations

import argparse
import inspect
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from widemargin import data as datasets
from widemargin import verify as exact
from widemargin.json_values import plain_json
from widemargin.kinds import KINDS as ROWS
from widemargin.kinds import MATRIX_NORMS, OFFERED, SEVERAL, VECTOR_NORMS
from widemargin.types import CONVENTIONS, Certificate, Dataset, InputError, check_device

from .options import (
    INTERRUPTED,
    Command,
    activation,
    check_writable,
    integer,
    number,
    placed,
    precise,
    read_certificate,
    readable,
    seeded,
    sized,
    sources,
    threaded,
    timed,
    use_threads,
)
from .screen import Progress, plain, print_rich, say, solver_progress, terminal

NARROW = 102  # columns the table of certificates needs; below, one sentence each


def margin(options: argparse.Namespace) -> int:
    """Compute, print and save margins."""
    kinds, source = _kinds(options)
    paths = save_paths(options.save, kinds)
    data = _load(source, options.label, options.multiclass)
    if options.multiclass:
        refused = [kind for kind in kinds if kind not in SEVERAL]
        if refused:
            raise InputError(
                f"--multiclass is for {' and '.join(SEVERAL)}, not for {refused[0]}; leave one of them out"
            )
    else:
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
            shown = [plain_json(cert.summary() | _more(cert)) for cert in certs]
            print(json.dumps(shown if len(kinds) > 1 else shown[0], allow_nan=False))
    elif certs:
        print_certificates(data, certs)
    sys.stdout.flush()
    for kind, cert in zip(kinds, certs) if paths else ():
        save_certificate(cert, paths[kind])
        say(f"certificate of {kind} written to {paths[kind]}")
    return status


def _load(source: str, label: str | None, several: bool) -> Dataset:
    return datasets.load(source, label, multiclass=True) if several else datasets.load(source, label)


def solve(kind: str, data: Dataset, options: Any, report: Progress | None = None) -> Certificate:
    """The margin of one kind with the options of the command line."""
    from widemargin import margins

    row = ROWS[SEVERAL[kind] if getattr(options, "multiclass", False) else kind]
    if options.bias and "bias" not in row.options:
        raise InputError(f"--bias does not apply to {kind}; leave one of them out")
    if getattr(options, "norm", None) and "norm" not in row.options:
        raise InputError(f"--norm does not apply to {kind}; leave it out, or ask for --kind linear")
    function = getattr(margins, row.function)
    asked = {argument: getattr(options, option, None) for option, (argument, _) in row.options.items()}
    keys = {name: value for name, value in (asked | {"tol": options.tol}).items() if value is not None}
    if "progress" in inspect.signature(function).parameters:
        keys["progress"] = report
    if (memory := getattr(options, "memory", None)) is not None:
        keys["memory"] = memory
    return function(data, time_limit=options.time_limit, **keys)


def _more(cert: Certificate) -> dict[str, Any]:
    """What the summary of some kinds has beside the usual keys."""
    return {key: cert.extra[key] for key in ROWS[cert.kind].shown if key in cert.extra}


def verify(options: argparse.Namespace) -> int:
    """Re-check a saved certificate in exact arithmetic; exit status 0 proved, 1 refused, 3 with a probability, 4 not proved."""
    payload = read_certificate(options.certificate)
    several = isinstance(payload, Mapping) and payload.get("kind") in SEVERAL.values()
    optimum = isinstance(payload, Mapping) and payload.get("kind") in exact.OPTIMA
    data = _of_optimum(options.data, options.label, payload) if optimum else _load(options.data, options.label, several)
    for note in data.notes:
        say(f"{data.name}: {note}")
    verdict = exact.check(payload, data.X, data.y)
    fields = payload if isinstance(payload, Mapping) else {}
    if options.json:
        said = {key: fields.get(key) for key in ("kind", "lower", "upper", "convention", "proved")}
        print(json.dumps(plain_json(verdict.to_dict() | (said if verdict.failed is None else {})), allow_nan=False))
        return exact.EXIT[verdict.answer]
    from rich.table import Table

    table = Table(title=plain(f"{options.certificate} for {data}"), title_justify="left")
    table.add_column("checked", no_wrap=True)
    table.add_column("result", overflow="fold")
    for item, detail in verdict.checks:
        failed = item == verdict.failed
        table.add_row(plain(item), plain(f"FAILED {detail}".rstrip() if failed else detail or "ok"))
    print_rich(table)
    print(verdict)
    return exact.EXIT[verdict.answer]


def _of_optimum(source: str, label: str | None, payload: Mapping[str, Any]) -> Dataset:
    """The data of an optimum as its loss takes it; or with two numbers as labels, if that is what Python gave it."""
    extra, kept = payload.get("extra"), payload.get("data")
    loss = extra.get("loss") if isinstance(extra, Mapping) else None
    data = datasets.load_for_loss(source, label, loss=str(loss))
    if loss == "squared" and isinstance(kept, Mapping) and kept.get("sha256") != data.sha256():
        other = datasets.load_for_loss(source, label, loss="labels")
        return other if kept.get("sha256") == other.sha256() else data
    return data


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
        for key in ("gamma_a", "gamma_c"):
            if cert.kind == "bn" and key in cert.extra:
                print(f"bn: {key} in [{cert.extra[key]['lower']:.7g}, {cert.extra[key]['upper']:.7g}]")
        if cert.reason:
            print(f"{cert.kind}: {cert.reason}")


def _kinds(options: argparse.Namespace) -> tuple[list[str], str]:
    """The kinds, once each, and the data; `--kind f1 f2 DATA` leaves DATA among the kinds."""
    words = [word for words in options.kind or [["f1"]] for word in words]
    source = options.data
    if source is None:
        if len(words) < 2 or not words[-1] or words[-1] in OFFERED:
            raise InputError("there is no DATA; give a file or a spec such as parity:d=20,n=64")
        source = words.pop()
    kinds = [kind for word in words for kind in word.split(",") if kind]
    for kind in kinds:
        if kind not in OFFERED:
            raise InputError(f"unknown kind {kind[:40]!r}; choose from {', '.join(OFFERED)}")
    if not kinds:
        raise InputError(f"--kind is empty; choose from {', '.join(OFFERED)}")
    return list(dict.fromkeys(kinds)), source


def save_certificate(cert: Certificate, path: Path) -> None:
    if not math.isfinite(cert.upper):
        raise InputError(f"{cert.kind} has no upper bound yet, so nothing was saved; give it a longer --time-limit")
    cert.save(path)


def save_paths(save: str | None, kinds: Sequence[str]) -> dict[str, Path]:
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
        help=f"one or more of {', '.join(OFFERED)}, separated by spaces or commas [f1]",
    )
    one.add_argument(
        "--bias",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="extend every point by a coordinate 1 [--no-bias]",
    )
    one.add_argument(
        "--activation",
        metavar="NAME",
        type=activation,
        default="relu",
        help="the neurons: relu, srelu, leaky (slope 0.01) or leaky:SLOPE; linear has none [relu]",
    )
    readable(one)
    precise(one, None, "1e-6; f1, bn, collapse, projected 1e-3; ntk 0.05; linear 1e-9")
    timed(one, "seconds for each kind; the result then says time-limit, and both bounds hold")
    sized(one)
    seeded(one)
    one.add_argument(
        "--width", metavar="M", type=integer(1, 10**6), default=1000, help="random neurons of frozen, rf, bn [1000]"
    )
    one.add_argument(
        "--part", choices=("total", "outer", "inner"), default="total", help="ntk: which layer moves [total, both]"
    )
    one.add_argument(
        "--transport", choices=("sup", "l2"), default="sup", help="ntk: bounded everywhere, or in the mean square [sup]"
    )
    one.add_argument("--samples", metavar="N", type=integer(1, 10**9), help="ntk: fresh weights that the bounds use")
    one.add_argument(
        "--confidence", type=number(0, 1, "a number between 0 and 1"), help="ntk: with which the bounds hold [0.99]"
    )
    one.add_argument(
        "--norm",
        choices=tuple(VECTOR_NORMS | MATRIX_NORMS),
        help="linear: the norm of the weights: l2, l1, linf; with --multiclass frobenius, max, spectral, nuclear, l1 [Euclidean]",
    )
    one.add_argument("--rank", metavar="R", type=integer(1, 10**6), default=2, help="projected: of the projection [2]")
    one.add_argument("--eps", type=number(-1e-300, math.inf, "zero or a positive number"), default=0.0, help="bn: [0]")
    one.add_argument(
        "--displacement",
        metavar="D",
        type=number(-1e-300, math.inf, "zero or a positive number"),
        default=0.0,
        help="bn: how far the inner weights may move, root mean square [0]",
    )
    one.add_argument(
        "--multiclass", action="store_true", help="f1, linear: more than two classes; own score minus the next"
    )
    threaded(one)
    placed(one, "where f1 searches; others use the cpu")
    one.add_argument(
        "--save",
        metavar="CERT.json",
        help="write the certificate (.gz: compressed); with several kinds one file each, CERT.f1.json, CERT.f2.json",
    )
    one.add_argument("--json", action="store_true", help="print one object, or a list for several kinds")

    codes = "exit status: 0 proved exactly, 1 refused, 2 bad input, 3 holds with a probability, 4 not proved"
    one = command("verify", verify, "re-check a saved certificate in exact arithmetic", epilog=codes)
    one.add_argument("certificate", metavar="CERT", help="a file written by --save")
    one.add_argument("data", metavar="DATA", help="the data it was made for")
    readable(one)
    one.add_argument("--json", action="store_true", help="print the verdict as one object")
