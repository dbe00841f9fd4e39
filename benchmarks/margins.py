"""F1 margins side by side: margin and proved gap against seconds, for widemargin, its peers and simple baselines.

    python benchmarks/margins.py [--data parity disks digits] [--budgets 1 2 5 10 30 60] [--skip-peers] [--json FILE]

The claim to test: after the same seconds on the same machine, widemargin's network has a larger margin than that of
every other method, and it alone has a proved upper bound. A line under each table says whether this run agrees. One
thread for every method (--threads); the first line printed names the machine. The default takes about an hour,
`--budgets 1 2 5 10 --repeats 1` a quarter of one. On a machine with other work use `--clock cpu`: all seconds are then
processor seconds, which one thread on a quiet machine would need.

Every method returns networks f(x) = sum_j a_j relu(W_j . x), and one function, Measure.margin, judges them in
float64: min_i y_i f(x_i) / sum_j |a_j| ||W_j||. A method's entry at a budget is the best margin over its ladder of
settings, each run on its own within that budget; runs under 5 s are repeated and the median counts. That is
generous: users of a peer do not know the best setting, and imports, warm-up, sampling and the building of constraints
are not timed. The points are scaled to root mean square 1 for the peers, the scale their weights lam and steps are
made for. "of bound" is the last margin over the best upper bound that widemargin proved.

- widemargin      f1(tol=1e-6): lower bound, proved upper bound and gap after each round, median of the repeats
- pyscnn          squared loss, group norm, sampled activation patterns; its solvers AL and CVXPY with ECOS
- adelie          logistic loss, group norm, sampled activation patterns, the whole path of lam
- sampled neurons linear program for the best margin over random neurons (HiGHS)
- sampled cones   cone program for the best margin over sampled patterns, the limit lam -> 0 of the two peers (Clarabel)
- ascent          gradient ascent on the soft-min of the margins (Chizat and Bach, 2020), the best network along the way

pyscnn and adelie are installed on first use, each in its own environment under benchmarks/.venv; where that fails, the
row says why. benchmarks/peers.py has the calls.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from peers import METHODS

HERE = Path(__file__).resolve().parent

DATA = {
    "parity": "parity:d=20,n=64,k=2,seed=0",
    "disks": "disks:d=15,n=64,k=3,seed=0,reading=code",
    "digits": "digits:classes=3-8,n=60",
}

# Settings by method, the size first: sizes that cannot end within the largest budget are left out (`climb`).
LADDERS: dict[str, list[dict[str, Any]]] = {
    "pyscnn": [
        *({"gates": g, "lam": 1e-5, "solver": "ecos"} for g in (30, 100, 200, 500, 1000)),
        *({"gates": g, "lam": 1e-3, "solver": "al"} for g in (100, 500, 2000)),
        *({"gates": g, "lam": 1e-3, "solver": "al", "tol": 1e-3} for g in (100, 500, 2000)),
    ],
    "adelie": [
        {"gates": g, "ratio": r, "path": p} for g in (100, 500, 2000, 8000) for r, p in ((1e-4, 10), (1e-6, 40))
    ],
    "sampled_lp": [{"neurons": m} for m in (1_000, 3_000, 10_000, 30_000, 100_000)],
    "sampled_cones": [{"patterns": k} for k in (50, 100, 200, 500, 1_000)],
    "ascent": [{"width": m, "step": s} for m, s in ((50, 0.05), (50, 0.5), (200, 0.5))],
}
TITLES = {"sampled_lp": "sampled neurons", "sampled_cones": "sampled cones"}
INSTALLED = ("pyscnn", "adelie")

Curve = list[tuple[float, float]]  # (seconds, margin) of the networks of one run


def environment(method: str, folder: Path) -> Path:
    """The interpreter of a peer's own environment, made on first use. RuntimeError says why it cannot be."""
    _, packages, bare = METHODS[method]
    home, python = folder / method, folder / method / "bin" / "python"
    stamp, wanted = home / "installed.json", json.dumps([packages, bare, platform.python_version()])
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"installing {method} in {os.path.relpath(home)} ...", flush=True)
    shutil.rmtree(home, ignore_errors=True)
    steps = [[sys.executable, "-m", "venv", str(home)], [str(python), "-m", "pip", "install", "--quiet", *packages]]
    if bare:
        steps.append([str(python), "-m", "pip", "install", "--quiet", "--no-deps", *bare])
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True)
        if done.returncode:
            lines = [x for x in (done.stderr or done.stdout).splitlines() if x.startswith("ERROR")] or [
                "no reason given"
            ]
            raise RuntimeError(f"not installed: {lines[-1].removeprefix('ERROR: ')}")
    stamp.write_text(wanted)
    return python


def execute(
    python: Path | str, method: str, setting: dict[str, Any], source: Path, limit: float, args: argparse.Namespace
) -> dict[str, np.ndarray] | str:
    """What one run of benchmarks/peers.py saved, or one line that says why there is nothing."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "networks.npz"
        command = [
            str(python),
            str(HERE / "peers.py"),
            method,
            json.dumps(setting),
            str(source),
            str(target),
            str(limit),
        ]
        names = ("OMP", "OPENBLAS", "MKL", "NUMEXPR")
        variables = (
            os.environ
            | {f"{name}_NUM_THREADS": str(args.threads) for name in names}
            | {"WIDEMARGIN_BENCH_CLOCK": args.clock}
        )
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=10 * limit + 600)
        except subprocess.TimeoutExpired:
            return "late"
        if -done.returncode in (signal.SIGALRM, signal.SIGPROF):
            return "late"
        if done.returncode or not target.exists():
            return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1][:120]
        with np.load(target) as saved:
            return dict(saved)


def judged(saved: dict[str, np.ndarray], data: Any) -> Curve:
    """The margins of a run's networks, by the definition."""
    from widemargin import Measure

    curve = []
    for k, seconds in enumerate(saved["seconds"]):
        on = saved["which"] == k
        if on.any() and np.isfinite(saved["W"][on]).all() and np.isfinite(saved["a"][on]).all():
            curve.append((float(seconds), Measure(saved["W"][on], saved["a"][on]).margin(data)))
    return curve


def at(curves: Sequence[Curve], budget: float) -> float:
    """The best margin within a budget, median over the repeats; 0 where there is none (the zero function)."""
    return statistics.median(max([0.0, *(m for s, m in curve if s <= budget)]) for curve in curves)


def label(setting: dict[str, Any]) -> str:
    return ", ".join(
        f"{key} {value:g}" if isinstance(value, (int, float)) else str(value) for key, value in setting.items()
    )


def climb(method: str, python: Path | str, source: Path, data: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Run a method's ladder. {"runs": [{"setting", "curves"}, ...], "best": margins by budget, "note": text}."""
    limit, runs, errors = max(args.budgets), [], []
    reached: dict[str, tuple[float, float]] = {}  # size and seconds of the last run, by the rest of the setting
    for setting in LADDERS[method]:
        (size, *_), rest = setting.values(), label(dict(list(setting.items())[1:]))
        last, before = reached.get(rest, (size, 0.0))
        if method != "ascent" and before * size / last > 2 * limit:
            continue  # it would need twice the largest budget even if time grew in proportion to size
        curves: list[Curve] = []
        spent = 0.0
        while len(curves) < args.repeats and spent < 5.0:
            saved = execute(python, method, setting, source, limit, args)
            if isinstance(saved, str):
                if saved == "late":
                    reached[rest] = (size, np.inf)
                else:
                    errors.append(f"{label(setting)}: {saved}")
                break
            curves.append(judged(saved, data))
            spent += float(saved["seconds"].max()) if len(saved["seconds"]) else 5.0
            reached[rest] = (size, spent / len(curves))
        if curves:
            runs.append({"setting": label(setting), "curves": curves})
        if args.verbose:
            taken = f"{at(curves, limit):.6f} in {spent / len(curves):.2f} s" if curves else "not within the limit"
            print(f"  . {method}: {label(setting)}: {taken}", flush=True)
    best = [max([0.0, *(at(run["curves"], budget) for run in runs)]) for budget in args.budgets]
    note = ""
    if best[-1] > 0:
        winner = max(runs, key=lambda run: at(run["curves"], limit))
        taken = statistics.median(max(curve, key=lambda point: point[1])[0] for curve in winner["curves"] if curve)
        note = f"{winner['setting']} ({taken:.1f} s)"
    elif errors:
        note = errors[-1]
    return {"runs": runs, "best": best, "note": note, "errors": errors}


def ours(source: Path, data: Any, args: argparse.Namespace) -> dict[str, Any]:
    """widemargin's bounds by budget, medians over the repeats; the final network is judged here as well."""
    from widemargin import Measure

    limit, traces, verdicts, statuses, claims = max(args.budgets), [], [], [], []
    for _ in range(args.repeats):
        saved = execute(sys.executable, "widemargin", {}, source, limit, args)
        if isinstance(saved, str):
            raise RuntimeError(f"widemargin: {saved}")
        traces.append((saved["trace_seconds"], saved["lower"], saved["upper"]))
        verdicts.append(bool(saved["verified"]))
        statuses.append(str(saved["status"]))
        if len(saved["a"]):
            claims.append(Measure(saved["W"], saved["a"]).margin(data) - saved["lower"][-1])
    lower, upper = [], []
    for budget in args.budgets:
        seen = [[(low, up) for s, low, up in zip(*trace) if s <= budget] for trace in traces]
        lower.append(statistics.median(max([0.0, *(low for low, _ in points)]) for points in seen))
        upper.append(statistics.median(min([np.inf, *(up for _, up in points)]) for points in seen))
    return {
        "lower": lower,
        "upper": upper,
        "final_upper": min(float(trace[2][-1]) for trace in traces),
        "seconds": statistics.median(float(trace[0][-1]) for trace in traces),
        "status": statuses[-1],
        "verified": all(verdicts),
        "lower_minus_judged": max([0.0, *(-c for c in claims)]),
        "traces": [np.array(trace).T.tolist() for trace in traces],
    }


def number(value: float) -> str:
    return "-" if value <= 0 or not np.isfinite(value) else f"{value:.7f}"


def report(
    name: str, data: Any, mine: dict[str, Any], others: dict[str, dict[str, Any]], budgets: Sequence[float]
) -> None:
    """One table and the line that answers the claim."""
    upper = mine["final_upper"]
    gaps = [(u - l) / u if np.isfinite(u) else 1.0 for l, u in zip(mine["lower"], mine["upper"])]
    print(f"\n{name}: {data.name}, n={data.n}, d={data.d}; margin after ...")
    print(f"  {'':27}" + "".join(f"{f'{b:g} s':>11}" for b in budgets) + "   of bound   best setting")
    share = f"{mine['lower'][-1] / upper:>10.2%}" if np.isfinite(upper) else f"{'':10}"
    for title, cells, tail in (
        (
            "widemargin, network",
            [number(v) for v in mine["lower"]],
            f"{share}   {mine['status']} ({mine['seconds']:.1f} s)",
        ),
        ("widemargin, proved bound", [number(v) for v in mine["upper"]], ""),
        (
            "widemargin, proved gap",
            [f"{g:.1e}" for g in gaps],
            f"{'':10}   exact check {'passed' if mine['verified'] else 'FAILED'}",
        ),
    ):
        print(f"  {title:27}" + "".join(f"{cell:>11}" for cell in cells) + f"  {tail}".rstrip())
    for method, result in others.items():
        share = (
            f"{result['best'][-1] / upper:>10.2%}" if np.isfinite(upper) and result["best"][-1] > 0 else f"{'-':>10}"
        )
        cells = "".join(f"{number(v):>11}" for v in result["best"])
        print(f"  {TITLES.get(method, method):27}{cells}  {share}   {result['note']}".rstrip())
    lost = []
    for k, budget in enumerate(budgets):
        method, best = max(((m, r["best"][k]) for m, r in others.items()), key=lambda pair: pair[1], default=("", 0.0))
        if best >= mine["lower"][k]:
            lost.append(
                f"{budget:g} s ({TITLES.get(method, method)} {number(best)}, widemargin {number(mine['lower'][k])})"
            )
    if lost:
        won = len(budgets) - len(lost)
        print(
            f"{name}: widemargin's margin is above every other at {won} of {len(budgets)} budgets, not at "
            + "; ".join(lost)
        )
    else:
        print(f"{name}: widemargin's margin is above every other at every budget")


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=list(DATA), help="names of this file, or any data spec or file")
    parser.add_argument("--budgets", type=float, nargs="+", default=[1, 2, 5, 10, 30, 60], help="seconds")
    parser.add_argument("--methods", nargs="+", choices=list(LADDERS), default=list(LADDERS))
    parser.add_argument("--skip-peers", action="store_true", help="leave out pyscnn and adelie (nothing is installed)")
    parser.add_argument("--repeats", type=int, default=3, help="of widemargin and of runs under 5 s; medians are shown")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: for a machine with other work")
    parser.add_argument("--environments", type=Path, default=HERE / ".venv", help="folder for the peers' environments")
    parser.add_argument("--json", type=Path, help="write every run to this file")
    parser.add_argument("--verbose", action="store_true", help="a line per setting")
    args = parser.parse_args()
    args.budgets = sorted(args.budgets)

    from widemargin.data import load

    print(f"{processor()}, {os.cpu_count()} cores, {args.threads} thread(s) a method, {args.clock} seconds", end="; ")
    print(f"Python {platform.python_version()}, numpy {np.__version__}, {time.strftime('%Y-%m-%d')}", flush=True)
    methods = [m for m in args.methods if not (args.skip_peers and m in INSTALLED)]
    pythons: dict[str, Path | str] = {}
    missing: dict[str, str] = {}
    for method in methods:
        try:
            pythons[method] = environment(method, args.environments) if method in INSTALLED else sys.executable
        except (RuntimeError, OSError) as error:
            missing[method] = str(error)

    record: dict[str, Any] = {
        "machine": processor(),
        "threads": args.threads,
        "clock": args.clock,
        "budgets": args.budgets,
        "data": {},
    }
    for name in args.data:
        data = load(DATA.get(name, name))
        with tempfile.TemporaryDirectory() as folder:
            raw, scaled = Path(folder) / "raw.npz", Path(folder) / "scaled.npz"
            np.savez(raw, X=data.X, y=data.y)
            np.savez(scaled, X=data.X / np.sqrt((data.X**2).mean()), y=data.y)
            mine = ours(raw, data, args)
            others = {}
            for method in methods:
                if method in missing:
                    zeros = [0.0] * len(args.budgets)
                    others[method] = {"runs": [], "best": zeros, "note": missing[method], "errors": [missing[method]]}
                else:
                    others[method] = climb(method, pythons[method], scaled, data, args)
        report(name.partition(":")[0], data, mine, others, args.budgets)
        sys.stdout.flush()
        record["data"][data.name] = {"widemargin": mine} | others
        if args.json:
            args.json.write_text(json.dumps(record))


if __name__ == "__main__":
    main()
