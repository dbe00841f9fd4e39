"""What a store of a sweep and the records of a monitor bear.

    python benchmarks/load.py [--runs 1000000] [--writers 4] [--seconds 600] [--rate 1000] [--only store|monitor]

store    `--runs` rows are written into one store by `--writers` processes at once, 64 at a time as `sweep` does it, while this
         process asks it (`query`) and builds the page of it (`report`) again and again. At the end every row must be there once.
monitor  `--rate` records a second for `--seconds`, each a step of training with 20 numbers, while this process reads them as
         `watch` does. Memory is looked at every tenth of the time; at the end every record must be there, in order.

Prints one object for each, with the machine's processors; times are wall time.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import multiprocessing
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

BATCH = 64


def write_runs(folder: str, first: int, last: int) -> None:
    """Rows first ... last - 1, as a driver stores them."""
    from widemargin.sweep import Run, Store

    store = Store(folder)
    for start in range(first, last, BATCH):
        numbers = range(start, min(start + BATCH, last))
        runs = [
            Run(f"{k * 0x9E3779B97F4A7C15 % 2**128:032x}", {"width": k % 32, "lr": (k % 7) / 8}, k) for k in numbers
        ]
        rows = [{"margin_M2": math.sin(k), "risk": 1 / (1 + k), "status": "finished"} for k in numbers]
        assert store.add("load", "train", "1", 0, runs, rows, 0.1) == len(runs)
    store.close()


def fill_store(folder: Path, runs: int, writers: int) -> dict[str, Any]:
    """Write, ask and show at the same time; what it took."""
    from widemargin import report
    from widemargin.sweep import Store, Sweep, query

    Store(folder).close()
    plan = Sweep("train", "load", {"data": "parity:d=4,n=8", "steps": 1},
                 {"width": list(range(32)), "lr": [k / 8 for k in range(7)]})  # fmt: skip
    store = Store(folder)
    store.note("load", plan.text(), "1")
    store.close()
    edges = [runs * k // writers for k in range(writers + 1)]
    context = multiprocessing.get_context("spawn")
    pool = [context.Process(target=write_runs, args=(str(folder), *ends)) for ends in itertools.pairwise(edges)]
    began = time.perf_counter()
    for one in pool:
        one.start()
    asked: list[float] = []
    shown: list[float] = []
    seen = 0
    while any(one.is_alive() for one in pool):
        start = time.perf_counter()
        count = next(iter(query(folder, "select count(*) from runs")[1]))[0]
        if count:
            list(query(folder, "select width, avg(margin_M2), stdev(risk) from runs group by width limit 5")[1])
        asked.append(time.perf_counter() - start)
        assert count >= seen, "rows went away"
        seen = count
        if len(asked) % 5 == 1:
            start = time.perf_counter()
            report.build(folder)
            shown.append(time.perf_counter() - start)
        time.sleep(0.2)
    for one in pool:
        one.join()
        assert one.exitcode == 0, one.exitcode
    seconds = time.perf_counter() - began
    (found,) = query(folder, "select count(*), count(distinct trial), min(trial), max(trial) from runs")[1]
    assert found == (runs, runs, 0, runs - 1), found
    start = time.perf_counter()
    list(query(folder, "select width, avg(margin_M2), median(risk) from runs group by width")[1])
    last_query = time.perf_counter() - start
    start = time.perf_counter()
    report.build(folder)
    return {
        "runs": runs, "writers": writers, "seconds": seconds, "rows_per_second": runs / seconds,
        "queries_meanwhile": len(asked), "slowest_query": max(asked, default=0.0),
        "pages_meanwhile": len(shown), "slowest_page": max(shown, default=0.0),
        "query_at_the_end": last_query, "page_at_the_end": time.perf_counter() - start,
        "megabytes": sum(path.stat().st_size for path in folder.iterdir()) / 1e6,
        "memory_of_the_reader": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }  # fmt: skip


def append_records(folder: str, rate: float, seconds: float, told: Any) -> None:
    """A training loop of so many steps a second; tells steps and memory every tenth of the time."""
    from widemargin.monitor.record import Record
    from widemargin.monitor.store import Store

    store = Store(folder, {"model": "Net", "loss": "ce", "parameters": 3, "homogeneous": None})
    began, step, behind = time.perf_counter(), 0, 0.0
    marks = [seconds * k / 10 for k in range(1, 11)]
    while marks:
        now = time.perf_counter() - began
        if now >= marks[0]:
            marks.pop(0)
            told.put((step, resident()))
        due = int(now * rate)
        if step >= due:
            time.sleep(max(0.0, (step + 1) / rate - now))
            continue
        start = time.perf_counter()
        store.append(
            [
                Record(
                    step=step, name="step", whole=False, n=128, error=0.25, loss=math.sin(step), margin=math.cos(step),
                    margin_mean=1.0 / (1 + step), quantiles={0.0: -1.0, 0.5: math.tan(step), 1.0: 2.0}, exact=True,
                    psi=math.sqrt(step), log_loss_sum=-1.0, norm=2.0, degree=2, at_minimum=None, dual_entropy=0.1,
                    blocks={"0": math.sin(2 * step), "head": math.sin(3 * step)},
                )
            ]
        )  # fmt: skip
        behind = max(behind, time.perf_counter() - start)
        step += 1
    store.close()
    told.put((step, resident(), behind, store.seconds))


def resident() -> float:
    """Megabytes of memory that this process has now."""
    with contextlib.suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def fill_records(folder: Path, rate: float, seconds: float) -> dict[str, Any]:
    """Record and read at the same time; what it took."""
    from widemargin.monitor import store

    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    writer = context.Process(target=append_records, args=(str(folder), rate, seconds, told))
    writer.start()
    read: list[float] = []
    memory: list[float] = []
    seen, steps, slowest, writing = 0, 0, 0.0, 0.0
    while True:
        with contextlib.suppress(Exception):  # nothing was told
            said = told.get(timeout=1.0)
            steps = said[0]
            memory.append(said[1])
            if len(said) > 2:
                slowest, writing = said[2:]
                break
        if store.is_monitor(folder) and len(read) < 10_000:
            start = time.perf_counter()
            found = len(store.load(folder))
            read.append(time.perf_counter() - start)
            assert found >= seen, "records went away"
            seen = found
        assert writer.is_alive() or not told.empty(), "the writer died"
    writer.join()
    found = store.load(folder)["step"].to_pylist()
    assert found == list(range(steps)), f"{len(found)} of {steps} records are there"
    return {
        "records": steps, "seconds": seconds, "rate": steps / seconds, "lost": 0, "slowest_append": slowest,
        "seconds_writing": writing, "reads_meanwhile": len(read), "slowest_read": max(read, default=0.0),
        "memory_by_tenths": [round(value, 1) for value in memory],
        "megabytes": sum(path.stat().st_size for path in folder.iterdir()) / 1e6,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10**6)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--only", choices=("store", "monitor"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        if options.only != "monitor":
            found = fill_store(Path(place) / "store", options.runs, options.writers)
            print(json.dumps({"load": "store", "processors": os.cpu_count(), **found}), flush=True)
        if options.only != "store":
            found = fill_records(Path(place) / "monitor", options.rate, options.seconds)
            print(json.dumps({"load": "monitor", "processors": os.cpu_count(), **found}), flush=True)


if __name__ == "__main__":
    main()
