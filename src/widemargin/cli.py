"""The command line: `widemargin margin`, `verify`, `train`, `plot`, `data`, `demo`.

Results go to standard output, everything else to standard error. Exit status: 0 a result, 1 a certificate that does
not hold, 2 bad input, 130 interrupted. What is slow to import is imported where it is used.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import math
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import widemargin
from widemargin import data as datasets
from widemargin import verify as exact
from widemargin.types import Certificate, Dataset, InputError, write_atomically

if TYPE_CHECKING:
    from rich.console import Console

KINDS = ("f1", "f2", "linear", "frozen", "rf")
CONVENTIONS = {
    "M1": "sum of |mass| at most 1 on unit inner weights",
    "M7": "unit ball of the random feature kernel, uniform probability on the sphere",
    "M11": "unit Euclidean norm of u",
}
DEMO = "parity:d=20,n=64,seed=0"
VERIFY_BYTES = 64_000_000  # the demo re-checks proofs up to this size, so that it ends in time
EVERY = 10.0  # seconds between lines of progress where there is no terminal
NARROW = 102  # columns the table of certificates needs; below, one sentence each
INTERRUPTED, PIPE_CLOSED = 130, 141
NETS = ("relu", "srelu", "output", "frozen", "scalar", "product", "normalized", "batchnorm", "mlp")
ALGORITHMS = tuple(
    ["gf", "gd", "ngd", "sgd", "cb", "prop6", "prop7", "mirror", "wgf", "pwgf", "weakreg", "two-phase", "adam"]
)
STEPS = 10_000  # of training, where nothing is said
MOST_ROWS = 12  # trials shown one by one

Progress = Callable[[float, float, float, str], None]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        options = _parser().parse_args(argv)
        status = options.run(options)
        sys.stdout.flush()
        return status
    except InputError as error:
        return _complain(_in_cli_words(str(error)))
    except BrokenPipeError:  # the reader went away, as in `| head`
        _drop_stdout()
        return PIPE_CLOSED
    except OSError as error:
        _drop_stdout()
        where = f"{error.filename}: " if error.filename else ""
        return _complain(f"{where}{error.strerror or error}; check the path and the space left on the disk")
    except MemoryError:
        return _complain("there is not enough memory for this problem; use fewer points or a smaller --width")
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED


# ---------------------------------------------------------------- commands


def margin(options: argparse.Namespace) -> int:
    """Compute, print and save margins."""
    kinds, source = _kinds(options)
    paths = _save_paths(options.save, kinds)
    data = datasets.load(source, options.label)
    data.signs()
    for note in data.notes:
        _say(f"{data.name}: {note}")
    _check_device(options.device)
    certs: list[Certificate] = []
    status = 0
    with _threads(options.threads):
        for kind in kinds:
            try:
                with _progress(kind) as report:
                    certs.append(solve(kind, data, options, report))
            except KeyboardInterrupt:
                _say(f"interrupted before {kind} had a result")
                status = INTERRUPTED
            if status or certs[-1].status == "interrupted":
                status = INTERRUPTED
                break
    if options.json:
        if len(kinds) > 1 or certs:
            shown = [_finite(cert.summary()) for cert in certs]
            print(json.dumps(shown if len(kinds) > 1 else shown[0], allow_nan=False))
    elif certs:
        _print_certificates(data, certs)
    sys.stdout.flush()
    for cert in certs if paths else ():
        _save(cert, paths[cert.kind])
        _say(f"certificate of {cert.kind} written to {paths[cert.kind]}")
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
    payload = _read_certificate(options.certificate)
    data = datasets.load(options.data, options.label)
    for note in data.notes:
        _say(f"{data.name}: {note}")
    verdict = exact.check(payload, data.X, data.y)
    fields = payload if isinstance(payload, Mapping) else {}
    if options.json:
        said = {key: fields.get(key) for key in ("kind", "lower", "upper", "convention", "proved")}
        print(json.dumps(_finite(verdict.to_dict() | (said if verdict.ok else {})), allow_nan=False))
        return 0 if verdict.ok else 1
    from rich.table import Table

    table = Table(title=_plain(f"{options.certificate} for {data}"), title_justify="left")
    table.add_column("checked", no_wrap=True)
    table.add_column("result", overflow="fold")
    for item, detail in verdict.checks:
        failed = item == verdict.failed
        table.add_row(_plain(item), _plain(f"FAILED {detail}".rstrip() if failed else detail or "ok"))
    _print_rich(table)
    if verdict.ok:
        print(f"{fields.get('kind')} margin ({fields.get('convention')}): {verdict}")
        return 0
    print(str(verdict))
    return 1


def train(options: argparse.Namespace) -> int:
    """Train a batch of networks, print where they ended, keep the run."""
    from widemargin import flows

    _refuse(options)
    _check_device(options.device)
    regression = options.loss == "squared"
    data = datasets.load(options.data, options.label, targets=regression)
    test = None if options.test is None else datasets.load(options.test, options.label, targets=regression)
    for one in (data, test):
        for note in one.notes if one is not None else ():
            _say(f"{one}: {note}")
    if not regression:
        data.signs()
    net, rule = _net_and_rule(options, data)
    if net.outputs > 1:  # classes 0 and 1
        data, test = _as_classes(data), None if test is None else _as_classes(test)
    if options.certify and "M1" not in _conventions(net):
        raise InputError(f"--certify is about two-layer networks on the points themselves; --net {options.net} is none")
    steps = options.steps
    if steps is None and options.time is None and options.until is None and options.algorithm != "weakreg":
        steps = STEPS
    with _threads(options.threads):
        with _training(options) as report:
            found = flows.train(
                data,
                net,
                rule,
                loss=options.loss,
                steps=steps,
                time=options.time,
                clock=options.clock,
                until=options.until,
                trials=options.trials,
                seed=options.seed,
                bias=options.bias,
                observe=["default", "weights"] if options.weights else "default",
                points=options.points,
                device=options.device,
                dtype=options.dtype,
                test=test,
                out=options.out,
                resume=options.resume,
                checkpoint_seconds=options.checkpoint_seconds,
                progress=report,
            )
        status = INTERRUPTED if found.interrupted else 0
        cert = None
        if options.certify and not status:
            cert = _certified(data, net, options)
            status = INTERRUPTED if cert["status"] == "interrupted" else 0
    said = _with_fraction(found.summary(), cert)
    if options.json:
        print(json.dumps(_finite(said), allow_nan=False))
    else:
        _print_training(data, found, said)
    sys.stdout.flush()
    for note in found.notes:
        _say(note)
    if any(note.startswith("cannot write") for note in found.notes):
        return 2
    if options.out is not None:
        _say(f"run {'interrupted; go on with --resume' if found.interrupted else 'kept'}: {options.out}")
    return status


def plot(options: argparse.Namespace) -> int:
    """Draw a run."""
    from widemargin import flows, plots

    target = options.out or str(Path(options.run_folder) / "run.png")
    ending = Path(target).suffix.lower().removeprefix(".")
    if ending not in ("png", "pdf", "svg"):
        raise InputError(f"cannot draw to {target!r}: the name must end in .png, .pdf or .svg")
    found = flows.load(options.run_folder)
    for note in found.notes:
        _say(note)
    _check_writable(target)
    cert = flows.load_certificate(options.run_folder)
    figure = plots.trajectory(found, None if cert is None else (cert["lower"], cert["upper"]))
    picture = io.BytesIO()
    figure.savefig(picture, format=ending)
    write_atomically(Path(target), picture.getvalue())
    _say(f"{found} drawn to {target}")
    return 0


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
    if options.out is not None and not (options.out and _legal(options.out)):
        raise InputError(f"cannot write {options.out[:80]!r}: this is no legal folder name; choose another")


def _net_and_rule(options: argparse.Namespace, data: Dataset) -> tuple[Any, Any]:
    from dataclasses import fields

    from widemargin.flows import flow, nets, rules

    make = flow.GradientFlow if options.algorithm == "gf" else type(rules.make_rule(options.algorithm))
    names = [one.name for one in fields(make)]
    for_net: dict[str, Any] = {}
    for_rule: dict[str, Any] = {"seed": options.seed} if "seed" in names else {}
    if options.lr is not None:
        rate = next((name for name in ("lr", "eta") if name in names), None)
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
            known = ", ".join(dict.fromkeys([*nets.KINDS[options.net][2], *names]))
            raise InputError(
                f"--net {options.net} and --algorithm {options.algorithm} have no option {key!r}, only {known}"
            )
    if options.net == "batchnorm" and not for_net.get("minibatch"):
        for_net["data"] = data.X
    try:
        net = nets.make_net(options.net, data.d + int(options.bias), options.width, **for_net)
        return net, make(**for_rule)
    except TypeError as error:  # a word where a number belongs
        raise InputError(f"--option {', '.join(options.option)}: a value is of the wrong kind ({error})") from None


def _value(text: str) -> Any:
    """A number, true or false where the text is one, otherwise the text."""
    try:
        value = json.loads(text.lower() if text.lower() in ("true", "false") else text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text


def _as_classes(data: Dataset) -> Dataset:
    return Dataset(data.X, (data.signs() + 1) / 2, data.name, data.classes)


def _conventions(net: Any) -> tuple[str, ...]:
    import torch

    drawn = {name: torch.tensor(value) for name, value in net.init(1, 0).items()}
    return tuple(net.normalizers(drawn)) if net.outputs == 1 else ()


def _certified(data: Dataset, net: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Lower and upper bound of the F1 margin (M1); from the run folder where it is there already."""
    from widemargin import flows
    from widemargin.margins.f1 import f1

    kept = None if options.out is None else flows.load_certificate(options.out)
    if kept is not None and kept["data"]["sha256"] == data.sha256() and kept["bias"] == options.bias:
        return kept
    with _progress("f1") as report:
        cert = f1(
            data,
            bias=options.bias,
            activation=getattr(net, "activation", "relu"),
            time_limit=options.time_limit,
            seed=options.seed,
            progress=report,
        )
    if options.out is not None and math.isfinite(cert.upper):
        flows.save_certificate(options.out, cert)
    return cert.summary()


def _with_fraction(said: dict[str, Any], cert: Mapping[str, Any] | None) -> dict[str, Any]:
    """The summary with every key that the contract promises, and each trial's share of the largest margin."""
    for trial in said["trials"]:
        for key in ("margin_M2", "psi", "train_error", "test_error"):
            trial.setdefault(key, None)
    if cert is None:
        return said
    keys = ("kind", "lower", "upper", "gap", "status", "proved", "convention")
    said["certificate"] = {key: cert[key] for key in keys}
    upper = cert["upper"] or 0.0
    halves = any(trial.get("margin_M2") is not None for trial in said["trials"])  # the best M2 is half of the best M1
    said["fraction_convention"] = "M2" if halves else "M1"
    for trial in said["trials"]:
        reached = trial["margin_M2"] if halves else trial["margin_M1"]
        best = upper / 2 if halves else upper
        trial["fraction"] = reached / best if math.isfinite(best) and best > 0 else None
    return said


def _print_training(data: Dataset, found: Any, said: Mapping[str, Any]) -> None:
    from rich.table import Table

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
    table = Table(
        title=_plain(f"{data}, {found.config['net']['net']}, {found.config['rule']['class']}"), title_justify="left"
    )
    for column in ("trial", "status", *names):
        table.add_column(_plain(column), justify="left" if column == "status" else "right", no_wrap=True)
    if len(trials) <= MOST_ROWS:
        for trial in trials:
            table.add_row(str(trial["trial"]), trial["status"], *(_cell(name, trial) for name in names))
    else:
        for word, choose in (("median", 0.5), ("least", 0.0), ("most", 1.0)):
            row = {name: _quantile([trial.get(name) for trial in trials], choose) for name in names}
            row["log_risk"] = _quantile([trial.get("log_risk") for trial in trials], choose)
            table.add_row(word, "", *(_cell(name, row) for name in names))
    _print_rich(table)
    print(f"{found}, {said['seconds']:.1f} seconds")
    cert = said.get("certificate")
    if cert is not None:
        proved = "" if cert["proved"] else ", upper bound NOT proved"
        print(f"largest margin (M1) in [{cert['lower']:.7g}, {cert['upper']:.7g}], {cert['status']}{proved}")
        shares = [trial["fraction"] for trial in trials if trial["fraction"] is not None]
        if shares:
            print(
                f"training reached {min(shares):.2%} to {max(shares):.2%} of the upper bound"
                f" (convention {said['fraction_convention']})"
            )


def _quantile(values: Sequence[Any], share: float) -> float | None:
    known = sorted(value for value in values if value is not None and not math.isnan(value))
    return known[round(share * (len(known) - 1))] if known else None


def _cell(name: str, trial: Mapping[str, Any]) -> Any:
    value = trial.get(name)
    if value is None:
        return "-"
    if name == "risk" and value == 0 and trial.get("log_risk") is not None:
        return _plain(f"1e{trial['log_risk'] / math.log(10):.0f}")  # below floating point
    return _plain(f"{value:.0f}" if name == "step" else f"{value:.1%}" if name == "fraction" else f"{value:.5g}")


@contextlib.contextmanager
def _training(options: argparse.Namespace) -> Iterator[Callable[[float, float, Mapping[str, float]], None]]:
    """Progress of training: a bar with loss, margin and time left on a terminal, otherwise a line now and then."""

    def line(seconds: float, share: float, now: Mapping[str, float]) -> str:
        margins = ("margin_M2", "margin_M1", "margin_M4", "margin_M10", "margin_MT2")
        shown = next((f"  {name} {now[name]:.5g}" for name in margins if name in now), "")
        loss = f"ln risk {now['log_risk']:.4g}" if "log_risk" in now else ""
        left = f"  {seconds * (1 - share) / share:.0f} s left" if 0 < share < 1 else ""
        return f"step {now.get('step', 0):.0f}  {loss}{shown}{left}"

    console = _console(stderr=True)
    if not console.is_terminal:
        last = 0.0

        def report(seconds: float, share: float, now: Mapping[str, float]) -> None:
            nonlocal last
            if seconds - last >= EVERY and share < 1:
                last = seconds
                done = "" if math.isnan(share) else f" {share:4.0%}"
                _say(f"train {seconds:6.1f} s{done}  {line(seconds, share, now)}")

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


def write_data(options: argparse.Namespace) -> int:
    """Write a named data set to a file."""
    data = datasets.load(options.spec, options.label)
    _check_writable(options.out)
    datasets.save_dataset(data, options.out)
    for note in data.notes:
        _say(f"{data.name}: {note}")
    _say(f"{data} written to {options.out}")
    return 0


def demo(options: argparse.Namespace) -> int:
    """The main job on one small problem, with pictures."""
    started = time.perf_counter()
    folder = _make_folder(options.out)
    data = datasets.load(DEMO)
    _say(f"two of {data.d} bits decide the label (2-sparse parity): {data}")
    asked = argparse.Namespace(bias=False, activation="relu", seed=0, device="cpu", width=1000, time_limit=60.0)
    records: list[tuple[float, float, float, str]] = []
    certs = []
    with _threads(1):  # for so small a problem more are slower, by far where other programs run
        for kind, tol in (("f1", 1e-4), ("f2", 1e-6), ("linear", 1e-6)):
            asked.tol = tol
            with _progress(kind) as report:
                keep = _recorded(report, records) if kind == "f1" else report
                certs.append(solve(kind, data, asked, keep))
            if certs[-1].status == "interrupted":
                break
    files = []
    for cert in certs:
        files.append(folder / f"{cert.kind}.json.gz")
        _save(cert, files[-1])
    _print_certificates(data, certs)
    status = INTERRUPTED if certs[-1].status == "interrupted" else 0
    witness = 1 / math.sqrt(8 * data.d)
    first = certs[0]
    print(f"4 neurons that know the two bits reach 1/sqrt(8 d) = {witness:.7g} (M1), {_compare(first, witness)}.")
    if not status:
        status = _demo_verify(files[0], data)
    files += _demo_pictures(folder, certs, records, witness)
    if not status:
        files.append(_demo_training(folder, data, first))
    print(f"{time.perf_counter() - started:.0f} seconds. Written:")
    for path in files:
        print(f"  {path}")
    return status


def _demo_training(folder: Path, data: Dataset, cert: Certificate) -> Path:
    """How much of the largest margin training reaches: a few networks, against the certified line."""
    from widemargin import flows, plots

    net, steps, trials = flows.TwoLayer(data.d, 100), 600, 3
    with _threads(1):
        traj = flows.train(data, net, flows.NormalizedGD(), loss="exp", steps=steps, trials=trials, points=80)
    shares = 2 * traj["margin_M2"][-1] / cert.upper  # M2 is half of M1
    print(
        f"{trials} networks of {net.m} neurons after {steps} steps of loss-normalised gradient descent reach "
        f"{shares.min():.0%} to {shares.max():.0%} of the largest margin."
    )
    path = folder / "training.png"
    _save_figure(plots.trajectory(traj, cert), path)
    return path


def _compare(cert: Certificate, value: float) -> str:
    if cert.upper < value:
        return "but the certified interval lies below that: please report this"
    return f"at least {value / cert.upper:.1%} of the largest margin on these points"


def _demo_verify(path: Path, data: Dataset) -> int:
    size = len(gzip.decompress(path.read_bytes()))
    if size > VERIFY_BYTES:
        print(f"The proof has {size / 1e6:.0f} MB; check it with: widemargin verify {path} {DEMO}")
        return 0
    with _progress("exact check"):
        started = time.perf_counter()
        verdict = exact.check(_read_certificate(str(path)), data.X, data.y)
    print(f"f1 certificate re-read and {verdict} ({time.perf_counter() - started:.1f} s, rational arithmetic)")
    return 0 if verdict.ok else 1


def _demo_pictures(folder: Path, certs: Sequence[Certificate], records: list[Any], witness: float) -> list[Path]:
    from widemargin import plots

    first = certs[0]
    figures = {"margins": plots.intervals(certs, {"4 neurons on the two bits, 1/sqrt(8 d) (M1)": witness})}
    if first.primal is not None:
        figures["neurons"] = plots.neurons(first.primal)
    seconds = first.stats.get("seconds") or (records[-1][0] if records else 0.0)
    records.append((float(seconds), first.lower, first.upper, first.status))
    figures["progress"] = plots.progress(records, "F1 margin of 2-sparse parity: bounds over time", "margin (M1)")
    paths = []
    for name, figure in figures.items():
        paths.append(folder / f"{name}.png")
        _save_figure(figure, paths[-1])
    return paths


def _save_figure(figure: Any, path: Path) -> None:
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_atomically(path, picture.getvalue())


def _recorded(report: Progress, records: list[tuple[float, float, float, str]]) -> Progress:
    def both(seconds: float, lower: float, upper: float, message: str) -> None:
        records.append((seconds, lower, upper, message))
        report(seconds, lower, upper, message)

    return both


# ---------------------------------------------------------------- what is printed


def _print_certificates(data: Dataset, certs: Sequence[Certificate]) -> None:
    from rich.table import Table

    table = Table(title=_plain(str(data)), title_justify="left")
    for column in ("kind", "margin", "gap", "status", "bound", "convention", "atoms", "seconds"):
        right = column in ("gap", "atoms", "seconds")
        table.add_column(column, justify="right" if right else "left", no_wrap=column != "bound")
    for cert in certs:
        bound = cert.bound if cert.proved else f"{cert.bound}, NOT proved"
        seconds = cert.stats.get("seconds")
        table.add_row(
            _plain(cert.kind),
            _plain(f"[{cert.lower:.7g}, {cert.upper:.7g}]"),
            _plain(f"{cert.gap:.2g}"),
            _plain(cert.status),
            _plain(bound),
            _plain(cert.convention),
            _plain(str(cert.atoms) if cert.primal is not None else "-"),
            _plain("-" if seconds is None else f"{seconds:.2f}"),
        )
    console = _console()
    if console.width < NARROW:
        print(data)
        for cert in certs:
            print(f"{cert}, {cert.stats.get('seconds') or 0:.2f} seconds")
    else:
        _print_rich(table)
    for convention in dict.fromkeys(cert.convention for cert in certs):
        print(f"{convention}: {CONVENTIONS.get(convention, 'see docs/notation.md')}")
    for cert in certs:
        if cert.reason:
            print(f"{cert.kind}: {cert.reason}")


def _print_rich(table: Any) -> None:
    """Through `print`, since rich would end the program by itself where the reader has gone."""
    console = _console()
    with console.capture() as captured:
        console.print(table)
    print(captured.get(), end="")


def _plain(text: str) -> Any:
    """Text that rich prints as it is, brackets included."""
    from rich.text import Text

    return Text("".join(c if c.isprintable() else "?" for c in text))


def _console(stderr: bool = False) -> Console:
    """A console that does not cut tables where there is no terminal to measure."""
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, markup=False, width=160)


def _finite(value: Any) -> Any:
    """JSON has no infinity: null instead."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _say(text: str) -> None:
    """A note, on standard error; without one there is nobody to tell."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def _complain(text: str) -> int:
    line = " ".join(text.split())  # one line, whatever the names in it hold
    _say(f"widemargin: {''.join(c if c.isprintable() else '?' for c in line)}")
    return 2


def _in_cli_words(text: str) -> str:
    """The library speaks of arguments where the command line has options."""
    text = text.replace(", or read y as numbers with targets=True", "")
    return text.replace("with label=", "with --label").replace("label=", "--label ")


def _drop_stdout() -> None:
    """Point standard output at nothing, so that the interpreter does not stumble over it again at its end."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _progress(what: str) -> Iterator[Progress]:
    """Show how a solver gets on: a live line on a terminal, otherwise a line now and then."""
    console = _console(stderr=True)
    if console.is_terminal:
        with console.status(f"{what} ...") as status:
            yield lambda *now: status.update(_plain(_progress_line(what, *now)[: console.width - 4]))
        return
    last = 0.0

    def report(seconds: float, lower: float, upper: float, message: str) -> None:
        nonlocal last
        if seconds - last >= EVERY:
            last = seconds
            _say(_progress_line(what, seconds, lower, upper, message))

    yield report


def _progress_line(what: str, seconds: float, lower: float, upper: float, message: str) -> str:
    return f"{what} {seconds:6.1f} s  [{lower:.6g}, {upper:.6g}]  {message}"


# ---------------------------------------------------------------- what is read


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


def _save(cert: Certificate, path: Path) -> None:
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
        _check_writable(str(one))
    return paths


def _check_writable(name: str) -> None:
    """Refuse early what could not be written after a long computation."""
    if not _legal(name):
        raise InputError(f"cannot write {name[:80]!r}: this is no legal file name; choose another")
    path = Path(name)
    if path.is_dir():
        raise InputError(f"cannot write {name}: it is a folder; give a file name")
    if not path.parent.is_dir():
        raise InputError(f"cannot write {name}: there is no folder {path.parent}; make it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise InputError(f"cannot write {name}: the folder {path.parent} is not writable; choose another")


def _legal(name: str) -> bool:
    try:
        return b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        return False


def _make_folder(name: str) -> Path:
    try:
        folder = Path(name)
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot make the folder {name[:80]!r}: {why}; choose another with --out") from None
    _check_writable(str(folder / "f1.json.gz"))
    return folder


def _read_certificate(name: str) -> Any:
    try:
        raw = Path(name).read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read the certificate {name[:200]!r}: {why}; check the path") from None
    try:
        text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{name}: the gzip file is damaged ({error}); save the certificate again") from None
    try:
        return json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}: this is not JSON ({error}); give a file written by --save") from None


def _check_device(device: str) -> None:
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise InputError("--device cuda: torch finds no CUDA device here; use --device cpu")


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Use `count` threads in torch and in the linear algebra below numpy and scipy."""
    if count is None:
        yield
        return
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    _say(f"using {count} thread{'s' * (count > 1)}")
    try:
        with threadpool_limits(count):
            yield
    finally:
        torch.set_num_threads(before)


class _Parser(argparse.ArgumentParser):
    """Bad options end in one sentence, like all bad input."""

    def error(self, message: str) -> NoReturn:
        _complain(f"{message}; see {self.prog} --help")
        raise SystemExit(2)


def _number(low: float, high: float, what: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low < value < high:
            raise argparse.ArgumentTypeError(f"must be {what}, not {text[:40]!r}")
        return value

    return read


def _integer(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must be an integer from {low} to {high}, not {text[:40]!r}")
        return value

    return read


def _parser() -> _Parser:
    parser = _Parser(
        prog="widemargin",
        description="Certified largest margins of data sets: lower <= margin <= upper, with proofs to re-check.",
        epilog="exit status: 0 a result, 1 a certificate that does not hold, 2 bad input, 130 interrupted",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"widemargin {widemargin.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str, **keys: Any) -> _Parser:
        one = commands.add_parser(name, help=text, description=f"{text}.", allow_abbrev=False, **keys)
        one.set_defaults(run=run)
        return one

    def readable(one: _Parser) -> None:
        one.add_argument("--label", metavar="NAME", help="the column (or .npz array) with the labels [y or label]")

    one = command("margin", margin, "compute the largest margin, with a certificate", epilog=_sources())
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
        type=_number(0, 1, "a number between 0 and 1"),
        help="stop at this relative gap [1e-3 for f1, 1e-9 for linear, 1e-6 for the others]",
    )
    one.add_argument(
        "--time-limit",
        metavar="S",
        default=60.0,
        type=_number(0, math.inf, "a positive number of seconds"),
        help="seconds for each kind; the result then says time-limit, and both bounds hold [60]",
    )
    one.add_argument("--seed", type=_integer(0, 2**63 - 1), default=0, help="of everything random [0]")
    one.add_argument(
        "--width", metavar="M", type=_integer(1, 10**6), default=1000, help="random neurons of frozen, rf [1000]"
    )
    one.add_argument("--threads", metavar="N", type=_integer(1, 1024), help="threads to use [the library's choice]")
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

    one = command("train", train, "train networks and record margins on the way", epilog=_sources())
    one.add_argument("data", metavar="DATA", help="a .csv, .npz or .npy file, or a spec such as parity:d=20,n=64")
    one.add_argument("--net", choices=NETS, default="relu", help="the network [relu]")
    one.add_argument("--width", metavar="M", type=_integer(1, 10**7), default=100, help="neurons [100]")
    one.add_argument("--algorithm", choices=ALGORITHMS, default="gd", help="the training rule [gd]")
    one.add_argument("--loss", choices=("exp", "logistic", "ce", "squared"), default="logistic", help="[logistic]")
    one.add_argument("--lr", type=_number(0, math.inf, "a positive number"), help="learning rate [the rule's own]")
    one.add_argument(
        "--option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="any other field of the net or the rule, such as law=cb, depth=3, batch=8; may be repeated",
    )
    one.add_argument("--steps", metavar="N", type=_integer(1, 10**12), help=f"end after N steps [{STEPS}]")
    one.add_argument("--time", metavar="T", type=_number(0, math.inf, "a positive number"), help="end at this time")
    one.add_argument(
        "--clock", choices=("mean", "cb"), help="what --time counts: flow of the mean risk, or CB's [mean]"
    )
    one.add_argument(
        "--until",
        metavar="EVENT",
        help="end each trial at fitted (risk < l(0)/n), stationary, margin=..., radius=... or risk=...",
    )
    one.add_argument("--trials", metavar="B", type=_integer(1, 10**6), default=1, help="independent networks [1]")
    one.add_argument("--seed", type=_integer(0, 2**63 - 1), default=0, help="of everything random [0]")
    one.add_argument("--bias", action=argparse.BooleanOptionalAction, default=False, help="a coordinate 1 [--no-bias]")
    readable(one)
    one.add_argument("--test", metavar="DATA", help="data for the test error")
    one.add_argument("--points", metavar="K", type=_integer(2, 10**6), default=200, help="log-spaced records [200]")
    one.add_argument("--weights", action="store_true", help="record the weights themselves too")
    one.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="[cpu]")
    one.add_argument("--dtype", choices=("float64", "float32"), default="float64", help="[float64]")
    one.add_argument("--threads", metavar="N", type=_integer(1, 1024), help="threads to use [the library's choice]")
    one.add_argument("--out", metavar="RUN", help="keep configuration, records and checkpoints in this folder")
    one.add_argument("--resume", action="store_true", help="go on with the run in --out, to the same last bit")
    one.add_argument(
        "--checkpoint-seconds",
        metavar="S",
        type=_number(0, math.inf, "a positive number of seconds"),
        default=10.0,
        help="seconds between checkpoints [10]",
    )
    one.add_argument("--certify", action="store_true", help="also certify the largest margin, and compare")
    one.add_argument(
        "--time-limit",
        metavar="S",
        default=60.0,
        type=_number(0, math.inf, "a positive number of seconds"),
        help="seconds for the certificate [60]",
    )
    one.add_argument("--json", action="store_true", help="print one object with the last records of every trial")

    one = command("plot", plot, "draw margins, loss, norms and rotations of a run")
    one.add_argument("run_folder", metavar="RUN", help="a folder written by train --out")
    one.add_argument("--out", metavar="FILE.png", help="the picture, .png, .pdf or .svg [RUN/run.png]")

    one = command("data", write_data, "write a named data set to a file", epilog=_sources())
    one.add_argument("spec", metavar="SPEC", help="a spec such as parity:d=20,n=64,seed=0 (or a file to convert)")
    one.add_argument("--out", metavar="FILE", required=True, help="FILE.npz or FILE.csv")
    readable(one)

    one = command("demo", demo, "the margins of 2-sparse parity, checked and drawn (under two minutes)")
    one.add_argument("--out", metavar="DIR", default="demo-output", help="where to write [demo-output]")
    return parser


def _sources() -> str:
    names = "; ".join(f"{name}: {', '.join(keys)}" for name, (_, keys) in datasets.SOURCES.items())
    return f"specs are NAME:KEY=VALUE,... with these names and keys. {names}."
