"""`widemargin margin` and `verify`: certificates of data sets, computed and re-checked."""

from __future__ import annotations

import argparse
import inspect
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from widemargin import data as datasets
from widemargin import kinds as kinds_of
from widemargin import verify as exact
from widemargin.dataset import LABEL_COLUMNS
from widemargin.errors import did_you_mean
from widemargin.json_values import plain_json
from widemargin.kinds import KINDS as ROWS
from widemargin.kinds import MATRIX_NORMS, OFFERED, SEVERAL, VECTOR_NORMS, Kind
from widemargin.types import CONVENTIONS, Certificate, Dataset, InputError, check_device, neurons

from .models import is_run, network, trained
from .options import (
    INTERRUPTED,
    Command,
    activation,
    check_certificate_kept,
    check_kept,
    check_writable,
    integer,
    number,
    placed,
    precise,
    prepared,
    read_certificate,
    readable,
    seeded,
    sized,
    sources,
    standardizable,
    talkative,
    threaded,
    timed,
    use_threads,
)
from .screen import Progress, print_lines, print_table, say, solver_progress

# Options of some kinds, as they are where nobody gives them.
ASSUMED = {
    "activation": "relu",
    "width": 1000,
    "part": "total",
    "transport": "sup",
    "rank": 2,
    "eps": 0.0,
    "displacement": 0.0,
}
AGREE, TINY = 1e-3, 1e-12  # gaps at which one number says it, margins that are 0 up to rounding
CHECKED_POINTS, CHECKED_PROOF = 64, 100_000  # points and characters of a proof up to which what is printed is checked
CHECKED = ("f1", "f2", "linear", "frozen", "rf", "f1-multiclass", "linear-multiclass")  # in less than a second then


def margin(options: argparse.Namespace) -> int:
    """Compute, print and save margins."""
    run = is_run(options)
    if options.model is not None:
        return _of_model(options, run)
    kinds, source = _kinds(options)
    paths = save_paths(options.save, kinds, source)
    data = prepared(_load(source, options.label, options.multiclass), options)
    if options.multiclass:
        refused = [kind for kind in kinds if kind not in SEVERAL]
        if refused:
            raise InputError(
                f"--multiclass is for {' and '.join(SEVERAL)}, not for {refused[0]}; leave one of them out"
            )
    else:
        data.signs()
    rows = [ROWS[SEVERAL[kind] if options.multiclass else kind] for kind in kinds]
    _check_apply(options, rows)
    for kind, row in zip(kinds, rows):
        _check_has(options, kind, row)
    check_device(options.device)
    certs: list[Certificate] = []
    status = 0
    try:
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
    finally:  # also where a kind refuses what the others took, or lacks memory: a search may have taken hours
        _tell(data, kinds, certs, paths, options)
    if options.json and len(kinds) > 1 and not certs:  # interrupted: a list all the same
        print("[]")
    return status


def _tell(
    data: Dataset, kinds: Sequence[str], certs: Sequence[Certificate], paths: Mapping[str, Path], options: Any
) -> None:
    """Print and save the certificates that there are, of the first kinds."""
    try:
        if options.json:
            if certs:
                shown = [plain_json(cert.summary() | _more(cert)) for cert in certs]
                print(json.dumps(shown if len(kinds) > 1 else shown[0], allow_nan=False))
        elif certs:
            print_certificates(data, certs, verbose=options.verbose)
        sys.stdout.flush()
    finally:  # also where the reader has gone
        if paths:
            save_each((cert, paths[kind], f"of {kind}") for kind, cert in zip(kinds, certs))


def _of_model(options: argparse.Namespace, run: bool) -> int:
    """The margin of a network of one's own, as a share of the largest."""
    paths = save_paths(options.save, ["f1"], options.model, options.data)
    if options.kind not in (None, [["f1"]]) or options.activation not in (None, "relu") or options.bias or options.norm:
        raise InputError(
            "--model compares with ReLU networks of its own form (f1); leave --kind, --activation, --norm and --bias out"
        )
    _check_apply(options, [ROWS["f1"]])
    if run:
        model, data, _ = trained(options.model, options.trial or 0)
    elif options.data is None:
        raise InputError("there is no DATA; give the file or the spec that the network was trained on")
    else:
        model = network(options.model)
    if options.data is not None:
        data = prepared(_load(options.data, options.label, options.multiclass), options)
    from widemargin import margins

    with use_threads(options.threads), solver_progress("f1") as report:
        try:
            share = margins.of(
                model, data, tol=options.tol or 1e-3, time_limit=options.time_limit, memory=options.memory, seed=options.seed,
                progress=report,
            )  # fmt: skip
        except KeyboardInterrupt:
            say("interrupted before there was a result")
            return INTERRUPTED
    cert = share.certificate
    try:
        if options.json:
            print(json.dumps(plain_json(share.summary()), allow_nan=False))
        else:
            print_lines([str(data), str(share), *filter(None, [cert.reason, advised(cert, data)])])
        sys.stdout.flush()
    finally:
        if paths:
            save_certificate(cert, paths["f1"])
            say(f"certificate of the largest margin written to {paths['f1']}")
    return INTERRUPTED if cert.status == "interrupted" else 0


def _load(source: str, label: str | None, several: bool) -> Dataset:
    return datasets.load(source, label, multiclass=True) if several else datasets.load(source, label)


def _check_apply(options: argparse.Namespace, rows: Sequence[Kind]) -> None:
    """Complain about an option that none of the kinds has: the answer would be to another question."""
    for option in (*ASSUMED, "samples", "confidence"):
        have = [kind for kind in OFFERED if option in ROWS[kind].options]
        if getattr(options, option) not in (None, ASSUMED.get(option)) and not any(
            option in row.options for row in rows
        ):
            raise InputError(
                f"--{option} does not apply to {' and '.join(row.name for row in rows)}; "
                f"leave it out, or ask for --kind {' or '.join(have)}"
            )


def _check_has(options: Any, kind: str, row: Kind) -> None:
    """Complain about a bias or a norm that this kind has not: its margin would be of other networks than those beside it."""
    if options.bias and "bias" not in row.options:
        raise InputError(f"--bias does not apply to {kind}; leave one of them out")
    if getattr(options, "norm", None) and "norm" not in row.options:
        raise InputError(f"--norm does not apply to {kind}; leave it out, or ask for --kind linear")


def solve(kind: str, data: Dataset, options: Any, report: Progress | None = None) -> Certificate:
    """The margin of one kind with the options of the command line."""
    from widemargin import margins

    row = ROWS[SEVERAL[kind] if getattr(options, "multiclass", False) else kind]
    _check_has(options, kind, row)
    function = getattr(margins, row.function)
    given = {option: getattr(options, option, None) for option in row.options}
    asked = {row.options[name][0]: ASSUMED.get(name) if value is None else value for name, value in given.items()}
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
    label = options.label if options.label is not None else _label(payload, options.data)
    several = isinstance(payload, Mapping) and payload.get("kind") in SEVERAL.values()
    optimum = isinstance(payload, Mapping) and payload.get("kind") in exact.OPTIMA
    if optimum:
        data, signs = _of_optimum(options.data, label, payload)
    else:
        data, signs = _load(options.data, label, several), False
    data = prepared(data, options)
    told = options.label is None and label is not None and not _usual(data)
    verdict = exact.check(payload, data.X, data.y, column=data.label if told else "", signs=signs)
    fields = payload if isinstance(payload, Mapping) else {}
    if options.json:
        said = {key: fields.get(key) for key in ("kind", "lower", "upper", "convention", "proved")}
        print(json.dumps(plain_json(verdict.to_dict() | (said if verdict.failed is None else {})), allow_nan=False))
        return exact.EXIT[verdict.answer]
    rows = [
        [item, f"FAILED {detail}".rstrip() if item == verdict.failed else detail or "ok"]
        for item, detail in verdict.checks
    ]
    print_table(f"{options.certificate} for {data}", ["checked", "result"], rows, folded=["result"])
    print(verdict)
    return exact.EXIT[verdict.answer]


def _label(payload: Any, source: str) -> str | None:
    """The column of labels that the certificate names, if the data is a table."""
    kept = payload.get("data") if isinstance(payload, Mapping) else None
    named = kept.get("label") if isinstance(kept, Mapping) else None
    return named if isinstance(named, str) and named and source.lower().endswith(".csv") else None


def _usual(data: Dataset) -> bool:
    """Whether the column of labels is the one that is taken where nobody names any."""
    return [name for name in (data.label, *data.columns) if name in LABEL_COLUMNS] == [data.label]


def _of_optimum(source: str, label: str | None, payload: Mapping[str, Any]) -> tuple[Dataset, bool]:
    """The data of an optimum as its loss takes it; or, and true, with two numbers as labels, if that is what Python gave it."""
    extra, kept = payload.get("extra"), payload.get("data")
    loss = extra.get("loss") if isinstance(extra, Mapping) else None
    data = datasets.load_for_loss(source, label, loss=str(loss))
    made_for = kept.get("sha256") if isinstance(kept, Mapping) else None
    if loss == "squared" and made_for != _hash(payload, data):
        other = datasets.load_for_loss(source, label, loss="labels")
        if made_for == _hash(payload, other):
            return other, True
    return data, False


def _hash(payload: Mapping[str, Any], data: Dataset) -> str:
    """Of the data with the points as the certificate has them."""
    return exact.data_hash(exact.restored(payload, data.X, data.y), data.y)


def print_certificates(data: Dataset, certs: Sequence[Certificate], *, verbose: bool = False) -> None:
    """A row in words for each certificate, a sentence for one alone; with `verbose` all digits, and the codes of kind,
    convention and proof."""
    columns = ["margin", "largest", "gap", "neurons", "proof", "search", "seconds"]
    rows = []
    for cert in certs:
        seconds = cert.stats.get("seconds")
        size = str(cert.atoms) if cert.primal is not None else "-"
        took = "-" if seconds is None else f"{seconds:.2f}"
        row = [
            kinds_of.label(cert.kind),
            in_digits(cert),
            f"{cert.gap:.2g}",
            size,
            _proof(data, cert),
            cert.status_in_words,
        ]
        rows.append([*row, took, cert.kind, cert.convention, cert.bound, cert.status] if verbose else [*row, took])
    columns += ["kind", "convention", "bound", "status"] if verbose else []
    if len(certs) == 1 and not verbose:
        _, value, gap, size, proof, search, took = rows[0]
        network = f", {neurons(int(size))}" if size != "-" else ""
        ended = "" if certs[0].status == "certified" else f"; {search}"
        proof = f"proof {proof}" if proof == "checked" else proof
        print_lines([str(data), f"{certs[0].what} {value} (gap {gap}){network}, {proof}, {took} seconds{ended}"])
    else:
        print_table(str(data), columns, rows, right=("gap", "neurons", "seconds"), folded=("search", "proof"))
    said = []
    if verbose:
        said += [f"{cert.kind} in [{cert.lower!r}, {cert.upper!r}]" for cert in certs]
        for convention in dict.fromkeys(cert.convention for cert in certs):
            said.append(f"{convention}: {CONVENTIONS.get(convention, 'see docs/notation.md')}")
    for cert in certs:
        for key in ("gamma_a", "gamma_c"):
            if cert.kind == "bn" and key in cert.extra:
                said.append(f"bn: {key} in [{cert.extra[key]['lower']:.7g}, {cert.extra[key]['upper']:.7g}]")
        said += [f"{cert.kind}: {cert.reason}"] if cert.reason else []
        said += [advised(cert, data)]
    print_lines([line for line in said if line])


def in_digits(cert: Certificate) -> str:
    """The value to four digits where the bounds agree so far, both of them otherwise."""
    if not math.isfinite(cert.upper):
        return f"at least {cert.lower:.4g}"
    return f"{cert.lower:.4g}" if cert.gap <= AGREE or cert.upper < TINY else f"{cert.lower:.4g} to {cert.upper:.4g}"


def _proof(data: Dataset, cert: Certificate) -> str:
    """The proof of a small certificate is checked on the spot, as `verify` does it; of others it is there to be checked."""
    small = data.n <= CHECKED_POINTS and data.X.size <= CHECKED_POINTS**2 and cert.proved
    small &= len(cert.extra.get("directions", ())) * data.d <= CHECKED_PROOF
    if small and cert.kind in CHECKED and len(str(cert.proof)) <= CHECKED_PROOF:
        return "checked" if cert.verify(data).ok else "FAILED the check"
    return cert.proof_in_words


def advised(cert: Certificate, data: Dataset) -> str:
    """What would help where the bounds are far apart; what costs time to import is imported only there."""
    if cert.status not in ("time-limit", "stalled"):
        return ""
    from widemargin.margins.answers import advice

    return advice(cert, data, shell=True)


def _kinds(options: argparse.Namespace) -> tuple[list[str], str]:
    """The kinds, once each, and the data; `--kind f1 f2 DATA` leaves DATA among the kinds."""
    words = [word for words in options.kind or [["f1"]] for word in words]
    source = options.data
    if source is None:
        if len(words) < 2 or not words[-1] or words[-1] in OFFERED:
            raise InputError("there is no DATA; give a file or a spec such as parity:d=20,n=64")
        source = words.pop()
    kinds = [kind.strip() for word in words for kind in word.split(",") if kind.strip()]
    for kind in kinds:
        if kind not in OFFERED:
            raise InputError(
                f"unknown kind {kind[:40]!r}{did_you_mean(kind, OFFERED)}; choose from {', '.join(OFFERED)}"
            )
    if not kinds:
        raise InputError(f"--kind is empty; choose from {', '.join(OFFERED)}")
    return list(dict.fromkeys(kinds)), source


def save_certificate(cert: Certificate, path: Path) -> None:
    if not math.isfinite(cert.upper):
        raise InputError(f"{cert.kind} has no upper bound yet, so nothing was saved; give it a longer --time-limit")
    cert.save(path)


def save_each(some: Iterable[tuple[Certificate, Path, str]]) -> None:
    """Save certificates, each with the words that it is of. One that cannot be saved does not keep the others from it."""
    trouble: Exception | None = None
    for cert, path, what in some:
        try:
            save_certificate(cert, path)
            say(f"certificate {what} written to {path}")
        except (InputError, OSError) as error:
            trouble = trouble or error
    if trouble is not None:
        raise trouble


def save_paths(save: str | None, kinds: Sequence[str], *inputs: str | None) -> dict[str, Path]:
    """Where each certificate goes: CERT itself, or with the kind in its name if there are several. Never over `inputs`, or over
    a file of another kind."""
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
    for place in paths.values():
        check_writable(str(place))
        check_kept(str(place), inputs)
        check_certificate_kept(str(place))
    return paths


def add(command: Command) -> None:
    parser = command("margin", margin, "compute the largest margin, with a certificate", epilog=sources())
    parser.add_argument(
        "data", metavar="DATA", nargs="?", help="a .csv, .npz or .npy file, or a spec such as parity:d=20,n=64"
    )
    parser.add_argument(
        "--kind",
        nargs="+",
        action="append",
        metavar="KIND",
        help=f"one or more of {', '.join(OFFERED)}, separated by spaces or commas [f1]",
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="how good the margin of this network is, as a share of the largest: the state dict of Sequential(Linear, ReLU, "
        "Linear), .pt or .safetensors, or a run of widemargin train, which has its own data",
    )
    parser.add_argument("--trial", metavar="B", type=integer(0, 10**6), help="with --model RUN: which network [0]")
    parser.add_argument(
        "--bias",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="extend every point by a coordinate 1 [--no-bias]",
    )
    parser.add_argument(
        "--activation",
        metavar="NAME",
        type=activation,
        help="the neurons: relu, srelu, leaky (slope 0.01) or leaky:SLOPE; linear has none [relu]",
    )
    readable(parser)
    standardizable(parser)
    precise(parser, None, "1e-6; f1, bn, collapse, projected 1e-3; ntk 0.05; linear 1e-9")
    timed(parser, "seconds for each kind; the result then says time-limit, and both bounds hold")
    sized(parser)
    seeded(parser)
    parser.add_argument("--width", metavar="M", type=integer(1, 10**6), help="random neurons of frozen, rf, bn [1000]")
    parser.add_argument("--part", choices=("total", "outer", "inner"), help="ntk: which layer moves [total, both]")
    parser.add_argument(
        "--transport", choices=("sup", "l2"), help="ntk: bounded everywhere, or in the mean square [sup]"
    )
    parser.add_argument("--samples", metavar="N", type=integer(1, 10**9), help="ntk: fresh weights that the bounds use")
    parser.add_argument(
        "--confidence", type=number(0, 1, "a number between 0 and 1"), help="ntk: with which the bounds hold [0.99]"
    )
    parser.add_argument(
        "--norm",
        choices=tuple(VECTOR_NORMS | MATRIX_NORMS),
        help="linear: the norm of the weights: l2, l1, linf; with --multiclass frobenius, max, spectral, nuclear, l1 [Euclidean]",
    )
    parser.add_argument("--rank", metavar="R", type=integer(1, 10**6), help="projected: of the projection [2]")
    parser.add_argument("--eps", type=number(-1e-300, math.inf, "zero or a positive number"), help="bn: [0]")
    parser.add_argument(
        "--displacement",
        metavar="D",
        type=number(-1e-300, math.inf, "zero or a positive number"),
        help="bn: how far the inner weights may move, root mean square [0]",
    )
    parser.add_argument(
        "--multiclass", action="store_true", help="f1, linear: more than two classes; own score minus the next"
    )
    threaded(parser)
    placed(parser, "where f1 searches; others use the cpu")
    parser.add_argument(
        "--save",
        metavar="CERT.json",
        help="write the certificate (.gz: compressed); with several kinds one file each, CERT.f1.json, CERT.f2.json",
    )
    parser.add_argument("--json", action="store_true", help="print one object, or a list for several kinds")
    talkative(parser)

    codes = "exit status: 0 proved exactly, 1 refused, 2 bad input, 3 holds with a probability, 4 not proved"
    parser = command("verify", verify, "re-check a saved certificate in exact arithmetic", epilog=codes)
    parser.add_argument("certificate", metavar="CERT", help="a file written by --save")
    parser.add_argument("data", metavar="DATA", help="the data it was made for")
    readable(parser)
    parser.add_argument("--json", action="store_true", help="print the verdict as one object")
