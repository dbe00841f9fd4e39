"""`widemargin fit` and `gap`: the least objective of training with weight decay, and how far a trained network is from it."""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from widemargin import data as datasets
from widemargin.json_values import plain_json
from widemargin.types import CONVENTIONS, Dataset, InputError, check_device, write_atomically

from .margin import advised, save_certificate, save_each, save_paths
from .models import is_run, network, trained
from .options import (
    INTERRUPTED,
    Command,
    Parser,
    check_kept,
    check_writable,
    integer,
    number,
    placed,
    precise,
    prepared,
    readable,
    seeded,
    sources,
    standardizable,
    threaded,
    timed,
    use_threads,
)
from .screen import Progress, print_lines, print_table, say, solver_progress

if TYPE_CHECKING:
    from widemargin.optima import Path as Found
    from widemargin.optima import Point
    from widemargin.types import Certificate

LOSSES = (
    "logistic",
    "squared",
    "hinge",
    "squared-hinge",
    "exp",
    "cross-entropy",
)  # `optima` has them, but takes long to import
MODES = {"free": "free", "decayed": "decayed", "none": None}
UNEVEN = 100  # columns whose sizes differ by more than this are told of where the bounds did not meet
PICTURES = (".png", ".pdf", ".svg")


def fit(options: argparse.Namespace) -> int:
    """Compute, print and save least objectives."""
    if (options.weight_decay is None) == (options.path is None):
        raise InputError("give one of --weight-decay, a number, and --path, LOW:HIGH:COUNT or COUNT")
    single = options.path is None
    decays = [options.weight_decay] if single else options.path
    count = decays if isinstance(decays, int) else len(decays)
    names = [f"{k:0{len(str(count))}d}" for k in range(1, count + 1)]
    paths = save_paths(options.save, names, options.data)
    if options.plot is not None:
        if single:
            raise InputError("--plot draws a path; give --path, or leave it out")
        if Path(options.plot).suffix.lower() not in PICTURES:
            raise InputError(f"cannot draw to {options.plot!r}: the name must end in {', '.join(PICTURES)}")
        check_writable(options.plot)
        check_kept(options.plot, [options.data])
        if any(os.path.abspath(path) == os.path.abspath(options.plot) for path in paths.values()):
            raise InputError(f"--save and --plot both write {options.plot}; give them different names")
    data = prepared(_read(options.data, options.label, options.loss), options)
    check_device(options.device)
    from widemargin import optima

    with use_threads(options.threads), solver_progress("fit") as report:
        try:
            path = optima.path(
                data,
                decays,
                bias=options.bias,
                output_bias=MODES[options.output_bias],
                **_search(options, report),
            )
        except KeyboardInterrupt:
            say("interrupted before there was a result")
            return INTERRUPTED
    try:
        if options.json:
            shown = [plain_json(point.summary()) for point in path]
            print(json.dumps(shown[0] if single else shown, allow_nan=False))
        else:
            _print(data, list(path))
            if len(path) < count:
                print(f"{len(path)} of {count} decays were done")
        sys.stdout.flush()
    finally:  # also where the reader has gone: a search may have taken hours
        if paths:
            points = zip(names, path)
            save_each((pt.certificate, paths[name], f"at weight decay {pt.weight_decay:.4g}") for name, pt in points)
        if options.plot is not None:
            _draw(data, path, options)
    return INTERRUPTED if path[-1].certificate.status == "interrupted" else 0


def _search(options: argparse.Namespace, report: Progress) -> dict[str, Any]:
    """What `fit` and `gap` ask of a search alike."""
    names = ("loss", "tol", "time_limit", "seed", "device")
    return {name: getattr(options, name) for name in names} | {"progress": report}


def _draw(data: Dataset, path: Found, options: argparse.Namespace) -> None:
    """The picture of a path, with the largest margin and what is guaranteed of it where MT's theorem says something."""
    from widemargin import margins, plots, theory
    from widemargin.theory.regularization import TAILS

    interrupted = path[-1].certificate.status == "interrupted"
    if options.loss in TAILS and len(np.unique(data.y)) == 2 and not interrupted:
        with use_threads(options.threads), solver_progress("f1") as report:
            best = margins.f1(
                data, bias=options.bias, tol=options.tol, time_limit=options.time_limit, seed=options.seed,
                device=options.device, progress=report,
            )  # fmt: skip
        if best.lower > 0:
            path = theory.regularization.guaranteed_along(path, best)
            sure = float(path.column("guaranteed")[-1])
            say(
                f"largest margin without output bias in [{best.lower:.6g}, {best.upper:.6g}]; at the smallest decay the network "
                f"has margin {path[-1].margin:.6g}, of which {f'{sure:.6g}' if sure > 0 else 'nothing'} is guaranteed (WM-4)"
            )
    figure = plots.path(path.columns(), data.name)
    picture = io.BytesIO()
    figure.savefig(picture, format=Path(options.plot).suffix.lower().removeprefix("."))
    write_atomically(Path(options.plot), picture.getvalue())
    say(f"path drawn to {options.plot}")


def _print(data: Dataset, points: list[Point]) -> None:
    columns = ("decay", "objective", "gap", "search", "loss", "norm", "margin", "error", "neurons", "seconds")
    rows = []
    for point in points:
        cert = point.certificate
        error = "-" if math.isnan(point.error) else f"{100 * point.error:.3g} %"
        rows.append([
            f"{point.weight_decay:.4g}", f"[{cert.lower:.7g}, {cert.upper:.7g}]", f"{cert.gap:.2g}", cert.status_in_words,
            f"{point.loss:.4g}", f"{point.norm:.4g}", _number(point.margin), error, str(point.neurons),
            f"{cert.stats.get('seconds') or 0:.2f}",
        ])  # fmt: skip
    right = [name for name in columns if name not in ("objective", "search")]
    print_table(f"{data}; {_setting(points[0].certificate)}", columns, rows, right, folded=["search"])
    said = [f"objective: {CONVENTIONS['objective']}"]
    said += filter(None, [advised(point.certificate, data) for point in points])
    said += dict.fromkeys(point.certificate.reason for point in points if point.certificate.reason)
    if any(point.certificate.status != "certified" for point in points):
        said += _scales(data)
    print_lines(said)


def _setting(cert: Certificate) -> str:
    """What is trained, in words."""
    bias = "biases" if cert.bias else "no biases"
    last = {"free": "free output bias", "decayed": "decayed output bias"}.get(
        cert.extra["output_bias"], "no output bias"
    )
    return f"{cert.extra['loss']} loss, {bias}, {last}"


def _scales(data: Dataset) -> list[str]:
    """A hint where columns have other units: the decay then weighs on the small ones, and searches take longer."""
    size = data.X.std(axis=0)
    size = size[size > 0]
    if not len(size) or size.max() <= UNEVEN * size.min():
        return []
    return [
        f"the columns' standard deviations go from {size.min():.3g} to {size.max():.3g}; "
        "where they are standardised (--standardize) the decay treats them alike, and bounds usually meet sooner"
    ]


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4g}"


def _read(source: str, label: str | None, loss: str) -> Dataset:
    return datasets.load_for_loss(source, label, loss=loss)


# ------------------------------------------------------------------ a trained network


def gap(options: argparse.Namespace) -> int:
    """Compare a saved network, or one that `widemargin train` left, with the best of any width."""
    paths = save_paths(options.save, ["gap"], options.model, options.data)
    check_device(options.device)
    run = is_run(options)
    if run == (options.data is not None):
        raise InputError(
            f"{options.model} is a folder, and a run has its data in it; leave DATA out"
            if run
            else "there is no DATA; give the file or the spec that the network was trained on"
        )
    if run:
        model, data, loss = trained(options.model, options.trial or 0)
        options.loss = options.loss or loss
    else:
        options.loss = options.loss or "logistic"
        model, data = network(options.model), prepared(_read(options.data, options.label, options.loss), options)
    from widemargin import optima

    with use_threads(options.threads), solver_progress("gap") as report:
        try:
            gap = optima.gap(
                model,
                data,
                weight_decay=options.weight_decay,
                output_bias=options.output_bias,
                **_search(options, report),
            )
        except KeyboardInterrupt:
            say("interrupted before there was a result")
            return INTERRUPTED
    say(f"{data}; {gap.width} neurons, {_setting(gap.certificate)}, weight decay {options.weight_decay:g}")
    try:
        print(json.dumps(plain_json(gap.summary()), allow_nan=False) if options.json else gap)
        if gap.certificate.reason and not options.json:
            print_lines([gap.certificate.reason, *_scales(data)])
        sys.stdout.flush()
    finally:
        if paths:
            save_certificate(gap.certificate, paths["gap"])
            say(f"certificate of the best objective written to {paths['gap']}")
    return INTERRUPTED if gap.certificate.status == "interrupted" else 0


# ------------------------------------------------------------------ options


def _path(text: str) -> int | list[float]:
    """COUNT, or LOW:HIGH:COUNT."""
    what = argparse.ArgumentTypeError(f"must be COUNT or LOW:HIGH:COUNT such as 1e-4:1:20, not {text[:40]!r}")
    parts = text.split(":")
    try:
        count = int(parts[-1])
        ends = [float(part) for part in parts[:-1]]
    except ValueError:
        raise what from None
    if not 1 <= count <= 1000 or len(ends) not in (0, 2):
        raise what
    if not ends:
        return count
    low, high = ends
    if not 0 < low <= high < math.inf:
        raise what
    return [float(v) for v in np.geomspace(low, high, count)]


def _decay(text: str) -> float:
    decay = number(-1e-300, math.inf, "a positive number")(text)
    if decay == 0:
        raise argparse.ArgumentTypeError(
            f"must be a positive number, not {text[:40]!r}: without decay there is no best network (docs/optima.md, Limits)"
        )
    return decay


def _common(parser: Parser, many: bool) -> None:
    readable(parser)
    standardizable(parser)
    precise(parser, 1e-3, "1e-3")
    each = "seconds for each decay" if many else "seconds"
    timed(parser, f"{each}; the result then says time-limit, and both bounds hold")
    seeded(parser)
    threaded(parser)
    placed(parser, "where bounds are computed")
    parser.add_argument(
        "--json", action="store_true", help="print one object" + (", or a list for a path" if many else "")
    )


def add(command: Command) -> None:
    parser = command(
        "fit", fit, "compute the least training objective of any width, with a certificate", epilog=sources()
    )
    parser.add_argument("data", metavar="DATA", help="a .csv, .npz or .npy file, or a spec such as parity:d=20,n=64")
    parser.add_argument(
        "--loss",
        choices=LOSSES,
        default="logistic",
        help="squared takes any targets, several for each point too (y (n, K) in an .npz file), cross-entropy any number of "
        "classes [logistic]",
    )
    parser.add_argument("--weight-decay", metavar="WD", type=_decay, help="of mean loss + (WD / 2) |weights|^2")
    parser.add_argument(
        "--path",
        metavar="LOW:HIGH:COUNT",
        type=_path,
        help="many decays instead of one, log-spaced; COUNT alone: below the largest decay that has an effect",
    )
    parser.add_argument(
        "--bias",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="neurons have biases, which are decayed [--no-bias]",
    )
    parser.add_argument(
        "--output-bias",
        choices=tuple(MODES),
        default="free",
        help="decayed like weights, as by one weight_decay for all parameters in PyTorch, or not [free]",
    )
    _common(parser, many=True)
    parser.add_argument(
        "--save",
        metavar="CERT.json",
        help="write the certificate (.gz: compressed); of a path one file each, CERT.1.json and so on",
    )
    parser.add_argument(
        "--plot",
        metavar="FILE.png",
        help="draw a path, .png, .pdf or .svg, with the largest margin and what is guaranteed of it",
    )

    parser = command("gap", gap, "compare a trained two-layer network with the best of any width", epilog=sources())
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="the state dict of Sequential(Linear, ReLU, Linear), or a checkpoint with it, .pt or .safetensors; or a run",
    )
    parser.add_argument("data", metavar="DATA", nargs="?", help="what it was trained on; runs have their own")
    parser.add_argument("--loss", choices=LOSSES, help="it was trained with [logistic; of a run its own]")
    parser.add_argument(
        "--weight-decay", metavar="WD", type=_decay, required=True, help="it was trained with, as torch.optim has it"
    )
    parser.add_argument(
        "--output-bias",
        choices=("free", "decayed"),
        help="whether the last bias was decayed, if there is one [decayed]",
    )
    parser.add_argument("--trial", metavar="B", type=integer(0, 10**9), help="of a run [0]")
    _common(parser, many=False)
    parser.add_argument(
        "--save", metavar="CERT.json", help="write the certificate of the best objective (.gz: compressed)"
    )
