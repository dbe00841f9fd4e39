"""`widemargin demo`: the main job on one small problem, with pictures."""

from __future__ import annotations

import argparse
import gzip
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from widemargin import data as datasets
from widemargin import verify as exact
from widemargin.types import Certificate, Dataset, Trajectory

from .margin import print_certificates, save_certificate, solve
from .options import Command, make_folder, read_certificate, use_threads
from .screen import Progress, save_figure, say, solver_progress

DEMO = "parity:d=20,n=64,seed=0"
VERIFY_BYTES = 64_000_000  # the demo re-checks proofs up to this size, so that it ends in time


def demo(options: argparse.Namespace) -> int:
    """The main job on one small problem, with pictures."""
    started = time.perf_counter()
    folder = make_folder(options.out)
    data = datasets.load(DEMO)
    say(f"two of {data.d} bits decide the label (2-sparse parity): {data}")
    asked = argparse.Namespace(bias=False, activation="relu", seed=0, device="cpu", width=1000, time_limit=60.0)
    records: list[tuple[float, float, float, str]] = []
    certs = []
    with use_threads(1):  # for so small a problem more are slower, by far where other programs run
        for kind, tol in (("f1", 1e-4), ("f2", 1e-6), ("linear", 1e-6)):
            asked.tol = tol
            with solver_progress(kind) as report:
                keep = _recorded(report, records) if kind == "f1" else report
                certs.append(solve(kind, data, asked, keep))
            if certs[-1].status == "interrupted":
                break
    files = []
    for cert in certs:
        files.append(folder / f"{cert.kind}.json.gz")
        save_certificate(cert, files[-1])
    print_certificates(data, certs)
    if certs[-1].status == "interrupted":
        raise KeyboardInterrupt  # pictures and a page would take seconds
    witness = 1 / math.sqrt(8 * data.d)
    first = certs[0]
    print(f"4 neurons that know the two bits reach 1/sqrt(8 d) = {witness:.7g} (M1), {_compare(first, witness)}.")
    status = _demo_verify(files[0], data)
    files += _demo_pictures(folder, certs, records, witness)
    shown: list[Any] = list(certs)
    if not status:
        path, traj = _demo_training(folder, data, first)
        files.append(path)
        shown.append((traj, data, first))
    files.append(folder / "report.html")
    _demo_report(files[-1], shown, bounds=not status)
    print(f"{time.perf_counter() - started:.0f} seconds. Written:")
    for path in files:
        print(f"  {path}")
    print(f"Open {files[-1]} in a browser to look at all of it.")
    print("`widemargin play` opens a page on which you draw points and watch training race a proof.")
    return status


def _demo_report(path: Path, shown: Sequence[Any], bounds: bool) -> None:
    from widemargin import report

    say("writing the page, with what the theorems guarantee" if bounds else "writing the page")
    with use_threads(1):
        report.write(report.build(shown, title="Margins of 2-sparse parity", bounds=bounds), path)


def _demo_training(folder: Path, data: Dataset, cert: Certificate) -> tuple[Path, Trajectory]:
    """How much of the largest margin training reaches: a few networks, against the certified line."""
    from widemargin import flows, plots

    net, steps, trials = flows.TwoLayer(data.d, 100), 600, 3
    with use_threads(1):
        traj = flows.train(
            data,
            net,
            flows.NormalizedGD(),
            loss="exp",
            stop=steps,
            record=flows.Record(["default", "weights"], points=80),
            trials=trials,
        )
    if traj.interrupted:
        raise KeyboardInterrupt
    shares = traj["margin_M2"][-1] / cert.bounds("M2")[1]
    print(
        f"{trials} networks of {net.m} neurons after {steps} steps of loss-normalised gradient descent reach "
        f"{shares.min():.0%} to {shares.max():.0%} of the largest margin."
    )
    path = folder / "training.png"
    save_figure(plots.trajectory(traj, cert), path)
    return path, traj


def _compare(cert: Certificate, value: float) -> str:
    if cert.upper < value:
        return "but the certified interval lies below that: please report this"
    return f"at least {value / cert.upper:.1%} of the largest margin on these points"


def _demo_verify(path: Path, data: Dataset) -> int:
    size = len(gzip.decompress(path.read_bytes()))
    if size > VERIFY_BYTES:
        print(f"The proof has {size / 1e6:.0f} MB; check it with: widemargin verify {path} {DEMO}")
        return 0
    with solver_progress("exact check"):
        started = time.perf_counter()
        verdict = exact.check(read_certificate(str(path)), data.X, data.y)
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
        save_figure(figure, paths[-1])
    return paths


def _recorded(report: Progress, records: list[tuple[float, float, float, str]]) -> Progress:
    def both(seconds: float, lower: float, upper: float, message: str) -> None:
        records.append((seconds, lower, upper, message))
        report(seconds, lower, upper, message)

    return both


def add(command: Command) -> None:
    parser = command("demo", demo, "the margins of 2-sparse parity, checked and drawn (under two minutes)")
    parser.add_argument("--out", metavar="DIR", default="demo-output", help="where to write [demo-output]")
