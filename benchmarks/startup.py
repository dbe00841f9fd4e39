"""How fast the front door opens: processor time of what people do first, as a ratio to `python -c "import numpy"`.

    python benchmarks/startup.py [--rounds 9]

Every round starts each command once, one after the other, so that all meet the same machine; ratios are of medians over the
rounds. Goals: `import widemargin` at most 1.5, `widemargin --help`, `theorems`, `query` and `verify` at most 4. The certificate
is that of four points, so that its check takes no time; the store has one run. A dry run of a sweep times a training, so that it
imports torch; it is to answer in 2 seconds. `torch` is there to compare with. Exit status 1 if a goal is missed.

Modules are compiled before, as they are where the package is installed: PYTHONDONTWRITEBYTECODE is not passed on.
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
from pathlib import Path

from widemargin import Dataset, margins
from widemargin.data import save_dataset
from widemargin.sweep import Run, Store

NUMPY = 'python -c "import numpy"'
IMPORT, COMMAND = 1.5, 4.0  # goals, as ratios
DRY_RUN = "widemargin sweep FILE --dry-run"
SECONDS = {DRY_RUN: 2.0}  # goals, in seconds
SWEEP = """function = "train"
repeats = 8
[fixed]
data = "clusters:n={n},k=3,seed={trial}"
steps = 2000
lr = 0.1
[grid]
width = [8, 32, 128]
n = [20, 60]
"""


def commands(folder: Path) -> dict[str, tuple[list[str], float | None]]:
    """What is measured: its name, the words after `python`, and the goal."""
    data = Dataset([[1, 1], [-1, -1], [1, -1], [-1, 1]], [1, 1, -1, -1], "xor")
    csv, cert, runs, plan = (str(folder / name) for name in ("xor.csv", "cert.json", "store", "widths.toml"))
    Path(plan).write_text(SWEEP, encoding="utf-8")
    save_dataset(data, csv)
    margins.f1(data).save(cert)
    store = Store(runs)
    store.add("sweep", "mine:f", "1", 0, [Run("a", {"x": 2}, 0)], [{"y": 5.0}], 1.0)
    store.close()
    tool = ["-m", "widemargin"]
    return {
        NUMPY: (["-c", "import numpy"], None),
        'python -c "import torch"': (["-c", "import torch"], None),
        'python -c "import widemargin"': (["-c", "import widemargin"], IMPORT),
        "widemargin --help": ([*tool, "--help"], COMMAND),
        "widemargin theorems": ([*tool, "theorems"], COMMAND),
        "widemargin query DIR SQL": ([*tool, "query", runs, "select x, y from runs"], COMMAND),
        "widemargin verify CERT DATA": ([*tool, "verify", cert, csv], COMMAND),
        DRY_RUN: ([*tool, "sweep", plan, "--dry-run"], None),
    }


def processor_seconds(words: list[str]) -> float:
    """Of a process, its imports and its end included."""
    known = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *words], env=known, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        asked = commands(Path(folder))
        for words, _ in asked.values():
            processor_seconds(words)  # it is compiled, and its files come into memory
        times: dict[str, list[float]] = {name: [] for name in asked}
        for _ in range(rounds):
            for name, (words, _) in asked.items():
                times[name].append(processor_seconds(words))
    unit, missed = statistics.median(times[NUMPY]), False
    print(f"{platform.machine()}, Python {platform.python_version()}, medians of {rounds} rounds, processor time")
    print(f"{'':32} {'seconds':>8} {'from':>7} {'to':>7} {'ratio':>7}  goal")
    for name, (_, goal) in asked.items():
        seconds = statistics.median(times[name])
        most = SECONDS.get(name) if goal is None else goal * unit
        met = most is None or seconds <= most
        missed |= not met
        said = "" if most is None else f"  {f'{most:g} s' if goal is None else f'{goal:g}'} {'yes' if met else 'NO'}"
        print(f"{name:32} {seconds:8.3f} {min(times[name]):7.3f} {max(times[name]):7.3f} {seconds / unit:7.2f}{said}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
