"""Sweeps: 2,000 small runs on 2 cores, packed and one by one, and a store of a million rows.

    python benchmarks/sweep.py [--runs 2000] [--single 60] [--rounds 3] [--rows 1000000]

Prints, for sweeps of gradient descent of small networks on data of their own:
- the share of the workers' time that is spent in the runs themselves (all of `tasks.compute`), from the call of `sweep` to its
  return: start of the processes, their imports, sending, storing and ending included;
- how much longer the same runs take one by one in a plain joblib loop over `flows.train` (measured on some of them in every
  round, side by side with the sweep; processes of both are warm, then again with their start).
Then seconds and memory of writing and querying a store.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import joblib
import torch

from widemargin import data as datasets
from widemargin import flows, sweep
from widemargin.sweep import Run, Store, Sweep, tasks

WORKERS = 2
STEPS, WIDTHS = 3000, (16, 32, 64, 128)
SPEC = "clusters:n=20,d=3,seed={}"


def plan(runs: int) -> Sweep:
    fixed = {"data": SPEC.format("{trial}"), "bias": True, "steps": STEPS, "lr": 0.1}
    keep = ["margin_M2", "risk", "status"]
    return Sweep("train", fixed=fixed, grid={"width": list(WIDTHS)}, repeats=runs // len(WIDTHS), keep=keep)


def one_run(width: int, trial: int) -> float:
    """The same training as a user would write it in a loop."""
    torch.set_num_threads(1)
    net = flows.nets.make_net("relu", 4, width)
    rule = flows.make_rule("gd", lr=0.1)
    data = datasets.load(SPEC.format(trial))
    traj = flows.train(data, net, rule, stop=STEPS, trials=[trial], bias=True, record=flows.Record(points=2))
    return traj.last(0)["margin_M2"]


def speed(runs: int, single: int, rounds: int) -> None:
    chosen = [(width, trial) for trial in range(single // len(WIDTHS)) for width in WIDTHS]
    shares, ratios, warm_ratios, packed_times = [], [], [], []
    for k in range(rounds):
        joblib.externals.loky.get_reusable_executor().shutdown(wait=True)
        began = time.perf_counter()
        pool = joblib.Parallel(n_jobs=WORKERS)
        pool(joblib.delayed(one_run)(*one) for one in chosen[: 2 * WORKERS])  # start and imports
        start = time.perf_counter() - began
        began = time.perf_counter()
        values = pool(joblib.delayed(one_run)(*one) for one in chosen)
        plain = (time.perf_counter() - began) / len(chosen) * runs  # of all runs at this pace
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            state = sweep.sweep(plan(runs), folder, workers=WORKERS)
            packed = time.perf_counter() - began
            assert state.done == runs and not state.failed
            table = sweep.load(folder).set_index(["width", "trial"])["margin_M2"]
        worst = max(abs(table[one] - value) for one, value in zip(chosen, values))
        share = state.busy / (WORKERS * packed)
        shares.append(share)
        ratios.append((plain + start) / packed)
        warm_ratios.append(plain / (state.busy / WORKERS))
        packed_times.append(packed)
        print(
            f"round {k + 1}: sweep {packed:.1f} s, {share:.1%} in the runs; plain loop {plain + start:.0f} s at the pace of "
            f"{len(chosen)} runs ({start:.1f} s start), {ratios[-1]:.1f} times as long (without starts {warm_ratios[-1]:.1f}); "
            f"largest difference of a margin {worst:.1e}; load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    middle = statistics.median
    print(
        f"median of {rounds}: {runs} runs in {middle(packed_times):.1f} s, {middle(shares):.1%} in the runs, "
        f"{middle(ratios):.1f} times faster than a plain joblib loop (without starts {middle(warm_ratios):.1f})"
    )


QUERY = """
import resource, sys, time
from widemargin import sweep
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for sql in ("select count(*) from runs", "select width, avg(margin_M2), median(margin_M2) from runs group by width",
            "select * from runs where trial = 77", "select * from runs order by margin_M2 desc limit 5", "select * from runs"):
    began = time.perf_counter()
    count = sum(1 for _ in sweep.query(sys.argv[1], sql)[1])
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{time.perf_counter() - began:7.2f} s  {count:8d} rows  +{(after - before) / 1024:.0f} MB  {sql}", flush=True)
if sys.argv[2:]:
    began = time.perf_counter()
    frame = sweep.load(sys.argv[1])
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{time.perf_counter() - began:7.2f} s  load(): {frame.shape}, +{(after - before) / 1024:.0f} MB", flush=True)
"""


def rows(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        began = time.perf_counter()
        for start in range(0, count, 1000):
            runs = []
            for k in range(min(1000, count - start)):
                key = f"{(start + k) * 0x9E3779B97F4A7C15 % 2**64:016x}{start + k:016x}"  # scattered, as hashes are
                runs.append(Run(key, {"data": f"parity:d=9,n=30,seed={k}", "width": 2 ** (k % 8)}, k))
            found = [
                {f"r{j}": (start + k) / (j + 3) for j in range(8)} | {"margin_M2": 1 / (k + 1)}
                for k in range(len(runs))
            ]
            store.add("s", "train", "1", 0, runs, found, 0.0)
        size = (store.folder / "results.sqlite").stat().st_size
        store.close()
        seconds = time.perf_counter() - began
        print(f"store of {count} rows, 17 columns: written in {seconds:.0f} s, {size / 2**20:.0f} MB", flush=True)
        subprocess.run([sys.executable, "-c", QUERY, folder, "load"], check=True)
    whole = Sweep("math:hypot", grid={"a": list(range(1000))}, repeats=count // 1000, pack=64)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    seen = sum(len(batch) for batch in tasks.batches(whole, "1"))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"a plan of {seen} runs is gone through in {time.perf_counter() - began:.0f} s, +{grown:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--single", type=int, default=60, help="runs of the plain loop in every round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    what = platform.processor() or platform.machine()
    print(f"{what}, {os.cpu_count()} cores, torch {torch.__version__}, joblib {joblib.__version__}")
    if options.runs:
        speed(options.runs, options.single, options.rounds)
    if options.rows:
        rows(options.rows)


if __name__ == "__main__":
    main()
