"""Where certified F1 margins end: one line for every kind of data that people have, with gap, seconds and the check of the proof.

    python benchmarks/frontier.py [--quick] [--rows small clouds3 ...] [--device cuda] [--seeds 0 1 2] [--no-verify]
                                  [--against REVISION]

Every row has a goal, a gap and the seconds in which it must be reached, and says whether this run agrees. `--quick`: the rows of
a minute on one core. Rows for a GPU are skipped on a CPU unless named. One thread on a CPU. `small` solves --sets random sets
(n 4 to 30, d 1 to 5, bias or not; a quarter with columns scaled by 0.01 to 100, a quarter of small integers). `--against`: every
row twice, with the package as it was at a revision of this repository and as it is, one after the other.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from widemargin.data import load
from widemargin.margins import f1
from widemargin.types import Certificate, Dataset


def small(seed: int) -> tuple[Dataset, bool]:
    """A random set with few points and few features, and whether it has a bias."""
    rng = np.random.default_rng(seed)
    n, d, bias, kind = int(rng.integers(4, 31)), int(rng.integers(1, 6)), bool(rng.integers(2)), int(rng.integers(4))
    X = rng.standard_normal((n, d))
    if kind == 0:
        X = X * 10.0 ** rng.uniform(-2, 2, d)
    elif kind == 1:
        X = rng.integers(-3, 4, (n, d)).astype(float)
    y = rng.choice([-1, 1], n)
    if abs(y.sum()) == n:
        y[0] = -y[0]
    return Dataset(X, y, name=f"small:{seed}"), bias


def plane(seed: int) -> Dataset:
    """29 points in the plane with columns of scale 1 and 100, labels at random."""
    rng = np.random.default_rng(seed)
    return Dataset(rng.standard_normal((29, 2)) * [1.0, 100.0], rng.choice([-1, 1], 29), name=f"plane:{seed}")


def clouds(n: int, d: int, seed: int, apart: float = 6.0) -> Dataset:
    """Two Gaussian clouds `apart` standard deviations from each other."""
    rng = np.random.default_rng(seed)
    y = np.resize([1, -1], n)
    return Dataset(rng.standard_normal((n, d)) + 0.5 * apart * np.outer(y, np.eye(d)[0]), y, name=f"clouds:{n},{d}")


def quadrants(n: int, seed: int) -> Dataset:
    X = np.random.default_rng(seed).uniform(-1, 1, (n, 2))
    return Dataset(X, np.sign(X[:, 0] * X[:, 1]).astype(int), name=f"quadrants:{n}")


def noise(n: int, d: int, seed: int) -> Dataset:
    rng = np.random.default_rng(seed)
    return Dataset(rng.standard_normal((n, d)), rng.choice([-1, 1], n), name=f"noise:{n},{d}")


@dataclass(frozen=True)
class Row:
    name: str
    make: Callable[[int], Dataset]
    tol: float
    seconds: float  # in which a gap of `goal` must be reached
    goal: float
    bias: bool = False
    gpu: bool = False
    quick: bool = False


ROWS = [
    Row("plane", plane, 1e-6, 0.1, 1e-6, quick=True),
    Row("clouds3", lambda seed: clouds(2000, 3, seed), 1e-3, 60, 1e-3, quick=True),
    Row("clouds3-near", lambda seed: clouds(2000, 3, seed, 5.0), 1e-3, 60, 1e-3),
    Row("clouds4", lambda seed: clouds(500, 4, seed), 1e-3, 5, 1e-3, quick=True),
    Row("clouds4-near", lambda seed: clouds(500, 4, seed, 4.0), 1e-3, 20, 1e-3),
    Row("quadrants", lambda seed: quadrants(10_000, seed), 1e-3, 60, 1e-3, bias=True),
    Row("noise8", lambda seed: noise(150, 8, seed), 1e-3, 120, 0.1, gpu=True),
    Row("noise30", lambda seed: noise(60, 30, seed), 1e-3, 30, 1e-3),
    Row("noise40", lambda seed: noise(80, 40, seed), 1e-3, 30, 0.1),
    Row("disks15", lambda seed: load(f"disks:d=15,n=256,reading=code,seed={seed}"), 1e-2, 300, 1e-2, gpu=True),
    Row("mnist4-9", lambda seed: load(f"mnist:classes=4-9,n=200,seed={seed}"), 1e-3, 60, 0.1, gpu=True),
    Row("mnist3-8", lambda seed: load(f"mnist:classes=3-8,n=500,seed={seed}"), 1e-3, 60, 0.15, gpu=True),
    Row("parity64", lambda seed: load(f"parity:d=20,n=64,k=2,seed={seed}"), 1e-6, 12, 1e-6),
    Row("parity128", lambda seed: load(f"parity:d=20,n=128,k=2,seed={seed}"), 1e-3, 8, 1e-3, quick=True),
    Row("digits", lambda seed: load("digits:classes=3-8,n=60"), 1e-3, 5, 1e-3, quick=True),
    Row("disks64", lambda seed: load(f"disks:d=15,n=64,k=3,seed={seed},reading=code"), 1e-3, 30, 1e-3),
]


def gap(certificate: Certificate) -> float:
    return certificate.upper / certificate.lower - 1 if certificate.lower > 0 else float("inf")


def check(certificate: Certificate, data: Dataset, wanted: bool) -> str:
    if not wanted:
        return "not looked at"
    began = time.perf_counter()
    verdict = certificate.verify(data)
    return f"{'verified' if verdict.ok else str(verdict)} in {time.perf_counter() - began:.1f} s"


def run_small(sets: int, first: int, device: str, verify: bool) -> None:
    times, still_open, refused = [], [], []
    for seed in range(first, first + sets):
        data, bias = small(seed)
        began = time.perf_counter()
        certificate = f1(data, bias=bias, tol=1e-3, time_limit=10, device=device)
        if certificate.status == "not-separable":
            continue
        times.append(time.perf_counter() - began)
        if certificate.status != "certified":
            still_open.append(seed)
        if verify and not certificate.verify(data).ok:
            refused.append(seed)
    agrees = not still_open and not refused and max(times) <= 10 and statistics.median(times) <= 0.4
    print(
        f"{'small':14s} {len(times)} separable of {sets} sets from seed {first}: {len(still_open)} open {still_open}, "
        f"{len(refused)} refused {refused}, median {statistics.median(times):.2f} s, longest {max(times):.2f} s"
        f"  [goal: 0 open, median 0.4 s, longest 10 s]  {'yes' if agrees else 'NO'}",
        flush=True,
    )


def compare(revision: str, rows: list[str], more: list[str]) -> None:
    """Every row with the package of `revision` and with this one, each in a process of its own."""
    here = Path(__file__).resolve()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "before"
        subprocess.run(["git", "worktree", "add", "--detach", str(tree), revision], cwd=here.parent, check=True)
        try:
            for row in rows:
                for name, source in (("before", tree / "src"), ("now", here.parents[1] / "src")):
                    command = [sys.executable, str(here), "--rows", row, *more]
                    done = subprocess.run(
                        command, env={**os.environ, "PYTHONPATH": str(source)}, capture_output=True, text=True
                    )
                    said = done.stdout.splitlines()[1:] or [f"{row:14s} {done.stderr.strip().splitlines()[-1]}"]
                    print("\n".join(f"{name:7s} {line}" for line in said), flush=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=here.parent, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", nargs="+", choices=["small", *(row.name for row in ROWS)])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--sets", type=int, default=240)
    parser.add_argument("--no-verify", action="store_true")
    parser.add_argument("--against", metavar="REVISION")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.against:
        usual = [row.name for row in ROWS if (row.quick if args.quick else not row.gpu or args.device != "cpu")]
        more = ["--device", args.device, "--sets", str(60 if args.quick else args.sets)]
        more += ["--seeds", *map(str, args.seeds), *["--no-verify"] * args.no_verify]
        return compare(args.against, args.rows or ["small", *usual], more)
    print(f"{args.device}, {torch.get_num_threads()} thread, torch {torch.__version__}")
    if args.rows is None or "small" in args.rows:
        run_small(60 if args.quick else args.sets, args.seeds[0], args.device, not args.no_verify)
    for row in ROWS:
        chosen = (
            row.name in args.rows if args.rows else (row.quick if args.quick else not row.gpu or args.device != "cpu")
        )
        for seed in args.seeds if chosen else []:
            try:
                data = row.make(seed)
            except Exception as error:  # data that is not on this machine: the row says so, the others go on
                print(f"{row.name:14s} seed {seed}: {error}", flush=True)
                continue
            began = time.perf_counter()
            certificate = f1(data, bias=row.bias, tol=row.tol, time_limit=max(row.seconds, 10), device=args.device)
            seconds = time.perf_counter() - began
            agrees = gap(certificate) <= row.goal * (1 + 1e-9) and seconds <= row.seconds * 1.1 + 0.5
            print(
                f"{row.name:14s} seed {seed}: [{certificate.lower:.6g}, {certificate.upper:.6g}] gap {gap(certificate):.2g} "
                f"in {seconds:.2f} s, {certificate.status} ({certificate.bound}), {check(certificate, data, not args.no_verify)}"
                f"  [goal: {row.goal:g} in {row.seconds:g} s]  {'yes' if agrees else 'NO'}",
                flush=True,
            )


if __name__ == "__main__":
    main()
