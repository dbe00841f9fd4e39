"""`widemargin train` and `plot`: batches of networks, kept as runs and drawn."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from widemargin import data as datasets
from widemargin.errors import did_you_mean
from widemargin.json_values import plain_json
from widemargin.kinds import ENDED
from widemargin.types import Certificate, Dataset, InputError, check_device, write_atomically

from . import screen
from .options import (
    INTERRUPTED,
    Command,
    check_writable,
    integer,
    legal,
    number,
    placed,
    prepared,
    readable,
    seeded,
    sources,
    standardizable,
    talkative,
    threaded,
    timed,
    use_threads,
)
from .screen import complain, print_lines, print_table, say, solver_progress, terminal

NETS = ("relu", "srelu", "leaky", "output", "frozen", "scalar", "product", "normalized", "batchnorm", "mlp")
ALGORITHMS = tuple(
    "gf gd ngd sgd cb prop6 prop7 mirror wgf pwgf weakreg two-phase adam adamw steepest sign coordinate spectral".split()  # noqa: SIM905
)
STEPS = 10_000  # of training, where nothing is said
MOST_ROWS = 12  # trials shown one by one
IN_WORDS = {  # what records are called in tables; --verbose has their own names
    "t_mean": "time",
    "train_error": "errors",
    "test_error": "test errors",
    "margin_M2": "margin",
    "margin_M1": "balanced margin",
    "margin_M4": "margin",
    "margin_M10": "margin",
    "margin_MT2": "margin",
    "psi": "smooth margin",
    "fraction": "share of best",
}


def train(options: argparse.Namespace) -> int:
    """Train a batch of networks, print where they ended, keep the run."""
    from widemargin import flows

    _refuse(options)
    check_device(options.device)
    regression = options.loss == "squared"
    data = datasets.load(options.data, options.label, targets=regression)
    test = None if options.test is None else datasets.load(options.test, options.label, targets=regression)
    data = prepared(data, options)
    if test is not None:
        test = prepared(test if data.standardized is None else test.rescale(*data.standardized), argparse.Namespace())
    if not regression:
        data.signs()
    net, rule = _net_and_rule(options, data)
    if net.outputs > 1:  # classes 0 and 1
        data, test = flows.as_classes(data), None if test is None else flows.as_classes(test)
    if options.certify and "M1" not in net.conventions():
        raise InputError(f"--certify is about two-layer networks on the points themselves; --net {options.net} is none")
    steps = options.steps
    if steps is None and options.time is None and options.until is None and options.algorithm != "weakreg":
        steps = STEPS
    with use_threads(options.threads):
        with _training(options) as report:
            run = flows.train(
                data,
                net,
                rule,
                loss=options.loss,
                stop=flows.Stop(steps, time=options.time, clock=options.clock, until=options.until),
                record=flows.Record(
                    ["default", "weights"] if options.weights else "default",
                    points=options.points,
                    test=test,
                    progress=report,
                ),
                keep=flows.Keep(options.out, resume=options.resume, seconds=options.checkpoint_seconds),
                trials=options.trials,
                seed=options.seed,
                bias=options.bias,
                device=options.device,
                dtype=options.dtype,
            )
        status = INTERRUPTED if run.interrupted else 0
        cert = None
        if options.certify and not status:
            cert = _certified(data, net, options)
            status = INTERRUPTED if cert.status == "interrupted" else 0
    said = _with_fraction(run.summary(), cert)
    if options.json:
        print(json.dumps(plain_json(said), allow_nan=False))
    else:
        _print_training(data, run, said, options.verbose)
    sys.stdout.flush()
    trouble = [note for note in run.notes if note.startswith("cannot write")]
    for note in run.notes:
        if note not in trouble:
            say(note)
    if trouble:
        return complain("; ".join(trouble))
    if options.out is not None:
        say(f"run {'interrupted; go on with --resume' if run.interrupted else 'kept'}: {options.out}")
    return status


def plot(options: argparse.Namespace) -> int:
    """Draw a run, or the records of a monitor."""
    from widemargin import flows, monitor, plots

    target = options.out or str(Path(options.run_folder) / "run.png")
    ending = Path(target).suffix.lower().removeprefix(".")
    if ending not in ("png", "pdf", "svg"):
        raise InputError(f"cannot draw to {target!r}: the name must end in .png, .pdf or .svg")
    if legal(options.run_folder) and monitor.is_monitor(options.run_folder):
        said, figure = _drawn_records(options.run_folder, target)
    else:
        run = flows.load(options.run_folder)
        for note in run.notes:
            say(note)
        check_writable(target)
        cert = flows.load_certificate(options.run_folder)
        figure = plots.trajectory(run, cert)
        said = str(run)
    picture = io.BytesIO()
    figure.savefig(picture, format=ending)
    write_atomically(Path(target), picture.getvalue())
    say(f"{said} drawn to {target}")
    return 0


def _drawn_records(folder: str, target: str) -> tuple[str, Any]:
    """What a monitor has recorded: in words, and its picture."""
    from widemargin import plots
    from widemargin.monitor import store
    from widemargin.plots.monitors import NAMES

    known = store.config(folder)
    series, all_names, count = store.shown(folder, most=NAMES)
    if not series:
        raise InputError(f"{folder} holds no records{store.until_when(folder)}")
    check_writable(target)
    names, degree = ((known.get("homogeneous") or {}).get(key) for key in ("names", "degree"))
    part = f", w: {len(names)} parameters, homogeneous of degree {degree}" if names else ""
    if len(all_names) > len(series):
        say(f"{len(all_names) - len(series)} names with fewer records are left out")
    return f"{count} records of {folder}", plots.records(series, f"{known.get('model')}{part}")


def _refuse(options: argparse.Namespace) -> None:
    """Combinations that make no sense."""
    if options.resume and options.out is None:
        raise InputError("--resume needs the folder of the run; give --out RUN")
    if options.steps is not None and options.time is not None:
        raise InputError("--steps and --time both say when to end; give one of them")
    if options.certify and options.loss == "squared":
        raise InputError("--certify compares margins, and the squared loss has none; leave one of them out")
    if options.bias and options.net == "batchnorm":
        raise InputError("--bias adds a constant feature, which batch normalisation takes away; leave it out")
    if options.clock is not None and options.time is None:
        raise InputError("--clock says what --time counts; give --time too")
    if options.out is not None and not (options.out and legal(options.out)):
        raise InputError(f"cannot write {options.out[:80]!r}: this is no legal folder name; choose another")


def _net_and_rule(options: argparse.Namespace, data: Dataset) -> tuple[Any, Any]:
    from dataclasses import fields

    from widemargin.flows import nets
    from widemargin.flows.fields import only_plain
    from widemargin.flows.names import rate_field, rule_from_words, rule_kind

    make = rule_kind(options.algorithm)
    names = [field.name for field in fields(make)]
    for_net: dict[str, Any] = {}
    for_rule: dict[str, Any] = {"seed": options.seed} if "seed" in names else {}
    if options.lr is not None:
        rate = rate_field(make)
        if rate is None:
            raise InputError(f"--algorithm {options.algorithm} has no learning rate; leave --lr out")
        for_rule[rate] = options.lr
    for text in options.option:
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--option {text[:60]!r} must be KEY=VALUE")
        if key in nets.KINDS[options.net][2]:
            for_net[key] = _value(value)
        elif key in names:
            for_rule[key] = _value(value)
        else:
            there = dict.fromkeys([*nets.KINDS[options.net][2], *names])
            raise InputError(
                f"--net {options.net} and --algorithm {options.algorithm} have no option {key!r}{did_you_mean(key, there)}, "
                f"only {', '.join(there)}"
            )
    if options.net == "batchnorm" and not for_net.get("minibatch"):
        for_net["data"] = data.X
    plain = {key: value for key, value in for_net.items() if key != "data"}
    for_net |= only_plain(nets.CLASSES[options.net], plain, f"--net {options.net}")
    net = nets.make_net(options.net, data.d + int(options.bias), options.width, **for_net)
    return net, rule_from_words(options.algorithm, for_rule)


def _value(text: str) -> Any:
    """A number, true or false where the text is one, otherwise the text."""
    try:
        value = json.loads(text.lower() if text.lower() in ("true", "false") else text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float) else text


def _certified(data: Dataset, net: Any, options: argparse.Namespace) -> Certificate:
    """Lower and upper bound of the F1 margin (M1); from the run folder where it is there already."""
    from widemargin import flows
    from widemargin.margins.wide_networks import f1

    kept = None if options.out is None else flows.load_certificate(options.out)
    activation = getattr(net, "activation", "relu")
    asked = ("f1", data.sha256(), options.bias, activation)
    if kept is not None and (kept.kind, kept.data_sha256, kept.bias, kept.activation) == asked:
        return kept
    with solver_progress("f1") as report:
        cert = f1(
            data,
            bias=options.bias,
            activation=activation,
            time_limit=options.time_limit,
            seed=options.seed,
            progress=report,
        )
    if options.out is not None and math.isfinite(cert.upper):
        flows.save_certificate(options.out, cert)
    return cert


def _with_fraction(said: dict[str, Any], cert: Certificate | None) -> dict[str, Any]:
    """The summary with every key that the contract promises, and each trial's share of the largest margin."""
    for trial in said["trials"]:
        for key in ("margin_M2", "psi", "train_error", "test_error"):
            trial.setdefault(key, None)
    if cert is None:
        return said
    keys = ("kind", "lower", "upper", "gap", "status", "proved", "convention")
    said["certificate"] = {key: cert.summary()[key] for key in keys}
    recorded = any(trial.get("margin_M2") is not None for trial in said["trials"])
    convention = said["fraction_convention"] = "M2" if "M2" in cert.conversions and recorded else "M1"
    best = cert.bounds(convention)[1]
    for trial in said["trials"]:
        reached = trial[f"margin_{convention}"]
        trial["fraction"] = reached / best if math.isfinite(best) and best > 0 else None
    return said


def _print_training(data: Dataset, run: Any, said: Mapping[str, Any], verbose: bool) -> None:
    trials = said["trials"]
    wanted = (
        "step",
        "t_mean",
        "risk",
        "train_error",
        "test_error",
        "margin_M2",
        "margin_M1",
        "psi",
        "norm",
        "fraction",
    )
    extra = () if any(t.get("margin_M1") is not None for t in trials) else ("margin_M4", "margin_M10", "margin_MT2")
    names = [name for name in (*wanted, *extra) if any(trial.get(name) is not None for trial in trials)]
    net = run.config["net"]
    name = net["activation"] if net["net"] == "relu" else net["net"]  # two-layer networks are called by their neurons
    rows = []
    if len(trials) <= MOST_ROWS:
        for trial in trials:
            rows.append([str(trial["trial"]), trial["status"], *(_cell(name, trial) for name in names)])
    else:
        for word, choose in (("median", 0.5), ("least", 0.0), ("most", 1.0)):
            row = {name: _quantile([trial.get(name) for trial in trials], choose) for name in names}
            row["log_risk"] = _quantile([trial.get("log_risk") for trial in trials], choose)
            rows.append([word, "", *(_cell(name, row) for name in names)])
    columns = ["trial", "status", *(each if verbose else IN_WORDS.get(each, each) for each in names)]
    right = [column for column in columns if column != "status"]
    print_table(f"{data}, {name}, {run.config['rule']['class']}", columns, rows, right)
    print_lines([f"{run}, {said['seconds']:.1f} seconds"])
    cert = said.get("certificate")
    if cert is not None:
        proved = "" if cert["proved"] else ", upper bound NOT proved"
        code = " (M1)" if verbose else ""
        ended = ENDED.get(cert["status"], cert["status"])
        print_lines(
            [f"largest margin of any network{code} in [{cert['lower']:.7g}, {cert['upper']:.7g}], {ended}{proved}"]
        )
        shares = [trial["fraction"] for trial in trials if trial["fraction"] is not None]
        if shares:
            code = f" (convention {said['fraction_convention']})" if verbose else ""
            if max(shares) > 0:
                print_lines([f"training reached {min(shares):.2%} to {max(shares):.2%} of the upper bound{code}"])
            else:
                print_lines(["no network classifies all points yet, so that none has a positive margin"])


def _quantile(values: Sequence[Any], share: float) -> float | None:
    known = sorted(value for value in values if value is not None and not math.isnan(value))
    return known[round(share * (len(known) - 1))] if known else None


def _cell(name: str, trial: Mapping[str, Any]) -> str:
    value = trial.get(name)
    if value is None:
        return "-"
    if name == "risk" and value == 0 and trial.get("log_risk") is not None:
        return f"1e{trial['log_risk'] / math.log(10):.0f}"  # below floating point
    return f"{value:.0f}" if name == "step" else f"{value:.1%}" if name == "fraction" else f"{value:.5g}"


@contextlib.contextmanager
def _training(options: argparse.Namespace) -> Iterator[Callable[[float, float, Mapping[str, float]], None]]:
    """Progress of training: a bar with loss, margin and time left on a terminal, otherwise a line now and then."""

    def line(seconds: float, share: float, now: Mapping[str, float]) -> str:
        margins = ("margin_M2", "margin_M1", "margin_M4", "margin_M10", "margin_MT2")
        shown = next((f"  {name} {now[name]:.5g}" for name in margins if name in now), "")
        loss = f"ln risk {now['log_risk']:.4g}" if "log_risk" in now else ""
        known = options.until is None and 0 < share < 1  # an event may come at any time
        left = f"  {seconds * (1 - share) / share:.0f} s left" if known else ""
        return f"step {now.get('step', 0):.0f}  {loss}{shown}{left}"

    console = terminal(stderr=True)
    if not console.is_terminal:
        last = 0.0

        def report(seconds: float, share: float, now: Mapping[str, float]) -> None:
            nonlocal last
            if seconds - last >= screen.EVERY and share < 1:
                last = seconds
                done = "" if math.isnan(share) else f" {share:4.0%}"
                say(f"train {seconds:6.1f} s{done}  {line(seconds, share, now)}")

        yield report
        return
    from rich.progress import BarColumn, Progress, TextColumn

    with Progress(
        BarColumn(30), TextColumn("{task.description}", markup=False), console=console, transient=True
    ) as bar:
        task = bar.add_task("train", total=1.0)
        yield lambda seconds, share, now: bar.update(
            task, completed=0.0 if math.isnan(share) else share, description=line(seconds, share, now)
        )


def add(command: Command) -> None:
    parser = command("train", train, "train networks and record margins on the way", epilog=sources())
    parser.add_argument("data", metavar="DATA", help="a .csv, .npz or .npy file, or a spec such as parity:d=20,n=64")
    parser.add_argument("--net", choices=NETS, default="relu", help="the network [relu]")
    parser.add_argument("--width", metavar="M", type=integer(1, 10**7), default=100, help="neurons [100]")
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="gd", help="the training rule [gd]")
    parser.add_argument("--loss", choices=("exp", "logistic", "ce", "squared"), default="logistic", help="[logistic]")
    parser.add_argument("--lr", type=number(0, math.inf, "a positive number"), help="learning rate [the rule's own]")
    parser.add_argument(
        "--option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="any other field of the net or the rule, such as law=cb, depth=3, batch=8; may be repeated",
    )
    parser.add_argument("--steps", metavar="N", type=integer(1, 10**12), help=f"end after N steps [{STEPS}]")
    parser.add_argument("--time", metavar="T", type=number(0, math.inf, "a positive number"), help="end at this time")
    parser.add_argument(
        "--clock", choices=("mean", "cb"), help="what --time counts: flow of the mean risk, or CB's [mean]"
    )
    parser.add_argument(
        "--until",
        metavar="EVENT",
        help="end each trial at fitted (risk < l(0)/n), stationary, margin=..., radius=... or risk=...",
    )
    parser.add_argument("--trials", metavar="B", type=integer(1, 10**6), default=1, help="independent networks [1]")
    seeded(parser)
    parser.add_argument(
        "--bias", action=argparse.BooleanOptionalAction, default=False, help="a coordinate 1 [--no-bias]"
    )
    readable(parser)
    standardizable(parser)
    parser.add_argument("--test", metavar="DATA", help="data for the test error")
    parser.add_argument("--points", metavar="K", type=integer(2, 10**6), default=200, help="log-spaced records [200]")
    parser.add_argument("--weights", action="store_true", help="record the weights themselves too")
    placed(parser)
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64", help="[float64]")
    threaded(parser)
    parser.add_argument("--out", metavar="RUN", help="keep configuration, records and checkpoints in this folder")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out, to the same last bit")
    parser.add_argument(
        "--checkpoint-seconds",
        metavar="S",
        type=number(0, math.inf, "a positive number of seconds"),
        default=10.0,
        help="seconds between checkpoints [10]",
    )
    parser.add_argument("--certify", action="store_true", help="also certify the largest margin, and compare")
    timed(parser, "seconds for the certificate")
    parser.add_argument("--json", action="store_true", help="print one object with the last records of every trial")
    talkative(parser)

    parser = command("plot", plot, "draw margins, loss, norms and rotations of a run, or what a monitor recorded")
    parser.add_argument(
        "run_folder", metavar="RUN", help="a folder written by train --out, or by MarginMonitor(out=...)"
    )
    parser.add_argument("--out", metavar="FILE.png", help="the picture, .png, .pdf or .svg [RUN/run.png]")
