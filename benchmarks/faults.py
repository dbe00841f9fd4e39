"""The fuzzers and the crash tests of `tests/fuzz` at any size, spread over processes, each with seeds of its own.

    python benchmarks/faults.py --inputs 50000 --solves 200 --crashes 30 --processes 16 --seconds 7200

`--inputs` damaged files and calls of commands, `--solves` solves of hostile data, of nearly parallel points, of varied ones and
of tables for each kind of margin, `--crashes` kills of each crash test. They come in rounds, with seeds `--seed`, `--seed` + 1
and so on; after `--seconds` no round begins, and one that has not ended a quarter of the time later is stopped. Prints a line for
each file of tests: rounds, seeds, inputs (a test ends at its first failure), how many rounds failed or did not end, and seconds;
below it what failed. The exit status is 1 if anything did.
To see a failure again: WIDEMARGIN_FUZZ=... WIDEMARGIN_FUZZ_SEED=... python -m pytest TEST, as the line says.

It needs what the tests need: pytest and the extra `train`.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = ("certificates", "commands", "runs", "stores")  # tests/fuzz/test_fuzz_*.py
HOSTILE = ("drawn_points", "nearly_parallel_points", "varied_points", "tables")
DAMAGED, SOLVED = 2000, 20  # inputs of a round, and solves of each kind


@dataclass(frozen=True)
class Job:
    test: str
    setting: dict[str, str]  # environment variables

    def __str__(self) -> str:
        return " ".join([*(f"{name}={value}" for name, value in self.setting.items()), "python -m pytest", self.test])


@dataclass
class Done:
    job: Job
    inputs: int
    seconds: float
    answer: str  # "passed", "failed" or "not ended"
    said: str = ""


def jobs(inputs: int, solves: int, crashes: int, seed: int) -> Iterator[Job]:
    """A round of each file of tests, then the next round."""
    if crashes:
        yield Job("tests/fuzz/test_crashes.py", {"WIDEMARGIN_CRASHES": str(crashes)})
    rounds = [-(-inputs // DAMAGED), -(-solves // SOLVED)]
    for k in range(max(rounds)):
        if k < rounds[0]:
            setting = {
                "WIDEMARGIN_FUZZ": str(min(DAMAGED, inputs - k * DAMAGED)),
                "WIDEMARGIN_FUZZ_SEED": str(seed + k),
            }
            yield from (Job(f"tests/fuzz/test_fuzz_{name}.py", setting) for name in FILES)
        if k < rounds[1]:
            setting = {"WIDEMARGIN_FUZZ": str(SOLVED), "WIDEMARGIN_FUZZ_SEED": str(seed + k * SOLVED)}
            yield from (
                Job(f"tests/fuzz/test_hostile_margins.py::test_every_kind_on_{name}", setting) for name in HOSTILE
            )


def run(job: Job, begin: float, end: float) -> Done | None:
    """The answer of one job; None where it is too late to begin."""
    started = time.monotonic()
    if started > begin:
        return None
    with tempfile.TemporaryDirectory() as folder:
        counted = Path(folder) / "count"
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        setting = os.environ | one_thread | job.setting | {"WIDEMARGIN_FUZZ_COUNT": str(counted)}
        words = ["-o", "addopts=", "-q", "-rfE", "--tb=short", "--color=no", "-p", "no:cacheprovider"]
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", job.test, *words, "--basetemp", f"{folder}/pytest"], cwd=ROOT, env=setting,
            text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            said, _ = process.communicate(timeout=max(1.0, end - started))
            answer = "passed" if process.returncode == 0 else "failed"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
            answer = "not ended"
        inputs = sum(map(int, counted.read_text().split())) if counted.exists() else 0
    print(f"{answer} after {time.monotonic() - started:.0f} s: {job}", file=sys.stderr, flush=True)
    return Done(job, inputs, time.monotonic() - started, answer, "" if answer == "passed" else said[-6000:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=2000, help="damaged files and calls of commands in all [2000]")
    parser.add_argument("--solves", type=int, default=10, help="solves of hostile data for each kind [10]")
    parser.add_argument("--crashes", type=int, default=0, help="kills of each crash test [0: none]")
    parser.add_argument("--seed", type=int, default=800_000, help="the first [800000]")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="at a time [all processors]")
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which no round begins [3600]")
    options = parser.parse_args()
    began = time.monotonic()
    begin, end = began + options.seconds, began + 1.25 * options.seconds + 60
    asked = list(jobs(options.inputs, options.solves, options.crashes, options.seed))
    with ThreadPoolExecutor(options.processes) as pool:
        done = [one for one in pool.map(lambda job: run(job, begin, end), asked) if one is not None]
    table: dict[str, list[Done]] = defaultdict(list)
    for one in done:
        table[one.job.test.removeprefix("tests/fuzz/")].append(one)
    print(f"{platform.machine()}, Python {platform.python_version()}, {options.processes} processes, "
          f"{time.monotonic() - began:.0f} s; {len(asked)} rounds asked for, {len(done)} begun")  # fmt: skip
    print("| test | rounds | seeds | inputs | failed | not ended | seconds |")
    print("|---|---|---|---|---|---|---|")
    for test, some in sorted(table.items()):
        seeds = [
            int(one.job.setting["WIDEMARGIN_FUZZ_SEED"]) for one in some if "WIDEMARGIN_FUZZ_SEED" in one.job.setting
        ]
        shown = f"{min(seeds)} to {max(seeds)}" if seeds else "-"
        counts = [sum(one.answer == answer for one in some) for answer in ("failed", "not ended")]
        inputs, seconds = sum(one.inputs for one in some), sum(one.seconds for one in some)
        print(f"| {test} | {len(some)} | {shown} | {inputs} | {counts[0]} | {counts[1]} | {seconds:.0f} |")
    bad = [one for one in done if one.answer != "passed"]
    print(f"\n{sum(one.inputs for one in done)} inputs in all, {len(bad)} rounds failed or did not end")
    for one in bad:
        print(f"\n{one.answer}: {one.job}\n{one.said}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
