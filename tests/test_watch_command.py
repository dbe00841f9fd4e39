"""`widemargin watch`, and `widemargin plot` of a monitor's records: what they print, exit statuses, what they wait for."""

import io
import json
import math
import os
import platform
import pty
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from test_cli import refused, run
from widemargin.cli import watch
from widemargin.monitor import MarginMonitor, store
from widemargin.monitor.record import Record

pytestmark = pytest.mark.usefixtures("one_thread")

BASE = Record(
    step=0, name="train", whole=True, n=40, error=0.0, loss=0.1, margin=1.0, margin_mean=2.0, exact=True,
    quantiles={0.0: 1.0, 0.1: 1.5, 0.25: 1.7, 0.5: 2.0, 0.75: 2.3, 0.9: 2.5}, psi=0.5, log_loss_sum=-1.0, norm=2.0, degree=2,
    at_minimum=2, dual_entropy=math.log(10), wall=1.5, blocks={"0": 1.0, "head": 1.7},
    classes=tuple(
        {"class": k, "n": 4, "error": 0.0, "margin": 1.0 + (7 * k) % 10, "margin_mean": 2.0, "dual_share": 0.1} for k in range(10)
    ),
)  # fmt: skip
HOMOGENEOUS = {"names": ["0.weight", "head.weight"], "degree": 2, "summary": "", "notes": ["a note"]}
CONFIG = {"model": "Net", "loss": "ce", "parameters": 1234, "homogeneous": HOMOGENEOUS}
PROMISED = {"run", "model", "parameters", "loss", "homogeneous", "degree", "notes", "state", "age", "records", "series"}
PROMISED |= {"free", "left_out"}
OF_A_SERIES = {
    "records", "whole", "step", "n", "error", "loss", "margin", "psi", "norm", "margin_normalized", "psi_normalized",
    "effective", "wall", "fitted", "fitted_step", "psi_normalized_fitted", "falls", "largest_fall", "largest_fall_share",
    "largest_fall_step", "how_far",
}  # fmt: skip


def kept(folder, records, config=CONFIG):
    one = store.Store(folder, config)
    one.append(records)
    one.close()
    return folder


def rising(psis, norm=2.0, **keys):
    return [replace(BASE, step=10 * (k + 1), psi=psi, norm=norm, **keys) for k, psi in enumerate(psis)]


def told(folder, *argv):
    status, out, err = run("watch", folder, "--once", "--json", *argv)
    assert status == 0 and err == ""
    return json.loads(out)


# ---------------------------------------------------------------- what is said


def test_json(tmp_path):
    steps = [
        replace(BASE, name="step", whole=False, step=k, classes=(), quantiles={}, at_minimum=None) for k in range(5)
    ]
    found = told(kept(tmp_path / "run", [*steps, *rising([-4.0, 0.4, 0.8])]))
    assert found.keys() == PROMISED and found["series"].keys() == {"step", "train"}
    assert (found["model"], found["degree"], found["state"], found["records"]) == ("Net", 2, "ended", 8)
    assert found["homogeneous"] == ["0.weight", "head.weight"] and 0 <= found["age"] < 1e5
    train = found["series"]["train"]
    assert train.keys() == OF_A_SERIES and train["whole"] and not found["series"]["step"]["whole"]
    assert (train["step"], train["fitted_step"], train["falls"], train["largest_fall"]) == (30, 20, 0, 0.0)
    assert train["psi_normalized"] == pytest.approx(0.2) and train["psi_normalized_fitted"] == pytest.approx(0.1)
    assert train["largest_fall_step"] is None and train["effective"] == pytest.approx(10)
    assert told(tmp_path / "run", "--name", "train")["series"].keys() == {"train"}


def test_falls_are_counted_from_the_definition(tmp_path):
    """Against a loop over all pairs of records after the first with psi > 0."""
    psis = [-3.0, 0.1, 0.5, 0.45, 0.9, 0.7, 0.65, 0.8, -0.2, 1.0]
    norms = [1.0, 2.0, 2.0, 2.0, 2.5, 2.5, 2.6, 2.6, 2.6, 2.7]
    records = [replace(one, norm=norm) for one, norm in zip(rising(psis), norms)]
    values = [p / w**2 for p, w in zip(psis, norms)][1:]
    worst = max((values[i] - values[j], -j, values[i]) for j in range(len(values)) for i in range(j + 1))
    found = told(kept(tmp_path / "run", records))["series"]["train"]
    assert found["falls"] == sum(b < a for a, b in pairwise(values))
    assert found["largest_fall"] == pytest.approx(worst[0], rel=1e-12)
    assert found["largest_fall_share"] == pytest.approx(worst[0] / worst[2], rel=1e-12)
    assert found["largest_fall_step"] == records[1 - worst[1]].step and found["fitted_step"] == 20


def test_what_cannot_be_said_is_null(tmp_path):
    records = rising([-math.inf, -2.0], degree=None, norm=0.0, margin=-math.inf)
    found = told(kept(tmp_path / "run", records, CONFIG | {"homogeneous": {"names": [], "degree": 0}}))
    train = found["series"]["train"]
    assert found["degree"] is None and train["psi_normalized"] is None and train["margin"] is None
    assert train["fitted"] is False and train["fitted_step"] is None and train["falls"] is None
    status, out, _ = run("watch", tmp_path / "run", "--once")
    assert status == 0 and "no homogeneous parameters were found" in out and "|w|" not in out


def test_a_frame_for_people(tmp_path):
    kept(tmp_path / "run", [*rising([-4.0, 0.4, 0.8, 0.6]), *rising([-9.0, -8.0], name="test", error=0.25)])
    status, out, err = run("watch", tmp_path / "run", "--once")
    assert status == 0 and err == "" and "\x1b" not in out
    lines = out.splitlines()
    assert (
        "ended, last record" in lines[0]
        and "1234 parameters" in lines[1]
        and "degree 2: 0.weight, head.weight" in lines[2]
    )
    cells = {line.split("  ")[0].strip(): line.split()[-2:] for line in lines if line[:1].strip()}
    assert (
        cells["error"] == ["0", "0.25"] and cells["psi/|w|^2"] == ["0.15", "-2"] and cells["fitted at"] == ["20", "-"]
    )
    assert cells["since fitted"] == ["+0.05", "-"]
    assert "fell once since it was fitted, at most 0.05 (25 %) at step 40" in out
    assert "not fitted: psi is not above 0 yet" in out and " 0.1 to 0.2, from 20 on" in out
    assert "class" not in out
    _, out, _ = run("watch", tmp_path / "run", "--once", "--classes", "--name", "train")
    rows = [line.split() for line in out.split("smallest margins first (2 more)")[1].splitlines()[2:] if line.strip()]
    assert [row[0] for row in rows] == ["0", "3", "6", "9", "2", "5", "8", "1"] and "\ntest" not in out
    classes = told(tmp_path / "run", "--classes")["series"]["train"]["classes"]
    assert [row["class"] for row in classes] == [0, 3, 6, 9, 2, 5, 8, 1, 4, 7]


@pytest.mark.parametrize(("width", "encoding"), [(80, "utf-8"), (60, "utf-8"), (80, "ascii"), (200, "utf-8")])
def test_it_fits_the_terminal(tmp_path, width, encoding):
    names = ["train", "test", "a-rather-long-name-of-a-validation-set", "d", "e", "f", "g"]
    records = [replace(one, name=name) for name in names for one in rising(np.linspace(-1e-7, 123456.789, 50))]
    kept(tmp_path / ("long" * 30), records)
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(
        width=width, force_terminal=True, file=file, highlight=False, legacy_windows=False, color_system=None
    )
    found, curves = watch._Reader(tmp_path / ("long" * 30), [], True).look()
    console.print(watch._frame(found, curves, console, "q ends watching"))
    file.flush()
    lines = file.buffer.getvalue().decode(encoding).splitlines()
    assert max(map(len, lines)) <= width
    psi = [line.split() for line in lines if line.startswith("psi/|w|^2")]
    assert sum(len(row) - 1 for row in psi) == len(names) and {cell for row in psi for cell in row[1:]} == {"3.086e+04"}
    drawn = watch.BLOCKS if encoding == "utf-8" else watch.LETTERS
    assert sum(drawn[-1] in line and drawn[0] in line for line in lines) >= len(names)


def test_curves():
    steps = np.arange(1, 17)
    assert watch.sparkline(steps, steps, 8) == watch.BLOCKS
    assert watch.sparkline(steps, -steps, 8) == watch.BLOCKS[::-1]
    assert watch.sparkline(steps[:3], [1.0, 5.0, 3.2], 8) == "▁█▅"
    assert watch.sparkline(steps, np.ones(16), 4) == "▁▁▁▁"
    assert watch.sparkline([1, 2, 100], [0.0, 1.0, 1.0], 3) == "▁▁█"  # 0 and 1 share a part; the empty part is like it
    assert watch.sparkline([0, 0, 0], [1.0, 2.2, 3.0], 3) == "▁▅█"  # steps that are not counted: one after the other
    assert watch.sparkline(steps[:4], [math.nan, math.inf, 0.0, 1e308], 4) == "▁█"
    assert watch.sparkline(steps[:2], [math.nan, -math.inf], 4) == "" and watch.sparkline([], [], 4) == ""
    values = [-1e9, *range(1, 20)]
    assert watch.sparkline(range(20), values, 20)[1:] == "█" * 19
    drawn = watch.sparkline(range(20), values, 20, floor=0.1)
    assert drawn == "".join(sorted(drawn)) and set(drawn) == set(watch.BLOCKS)  # the outlier does not flatten the rest


# ---------------------------------------------------------------- what is refused, and what is waited for


def test_refusals(tmp_path):
    assert "no records of a monitor" in refused("watch", tmp_path / "nowhere", "--once")
    assert "leave --once out" in refused("watch", tmp_path, "--once")
    (tmp_path / "file").write_text("")
    assert "is a file" in refused("watch", tmp_path / "file")
    assert "no records of a monitor" in refused("watch", tmp_path)  # other things are in it: nothing to wait for
    assert "no legal folder name" in refused("watch", "")
    assert "--every" in refused("watch", tmp_path, "--every", 0)
    assert run("train", "parity:d=4,n=12,seed=0", "--width", 4, "--steps", 2, "--out", tmp_path / "flow")[0] == 0
    for once in ((), ("--once",)):
        said = refused("watch", tmp_path / "flow", *once)
        assert "holds a run of `widemargin train`" in said and f"widemargin plot {tmp_path / 'flow'}" in said
    kept(tmp_path / "run", rising([1.0]))
    assert "no records called 'val', only train" in refused("watch", tmp_path / "run", "--once", "--name", "val")
    (tmp_path / "run" / "records.parquet").write_bytes(b"x" * 20)
    assert "damaged" in refused("watch", tmp_path / "run")


def test_a_monitor_without_records_yet(tmp_path):
    one = store.Store(tmp_path / "run", CONFIG | {"homogeneous": None})
    status, out, err = run("watch", tmp_path / "run", "--once")
    assert status == 0 and err == "" and "no records yet" in out and "not looked for yet" in out and "running" in out
    found = told(tmp_path / "run")
    assert found["records"] == 0 and found["series"] == {} and found["age"] is None and found["homogeneous"] is None
    assert "no records yet; wait for the first ones" in refused("plot", tmp_path / "run")
    one.close()
    assert "no records: its monitor has ended without any" in refused("plot", tmp_path / "run")
    (tmp_path / "run" / "lock").write_text(f"{ended_process()} {platform.node()}\n")
    assert "no records: its process was killed before the first" in refused("plot", tmp_path / "run")
    assert "killed" in refused("report", tmp_path / "run", "--out", tmp_path / "page.html")


def ended_process() -> int:
    """The number of a process that is no more."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        return process.pid


def test_how_far_it_is_to_the_theorem(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    x, y = torch.randn(30, 3), torch.arange(30) % 2
    with MarginMonitor(net, out=tmp_path / "run") as monitor:
        record = monitor.measure((x, y), name="train")
    assert record.excess == pytest.approx(30 * record.loss / math.log(2), rel=1e-9) and record.excess > 1
    assert f"{record.excess:.4g} times what the theorem needs" in str(record) and "means little" in str(record)
    found = told(tmp_path / "run")
    assert found["free"] and record.free and found["series"]["train"]["how_far"].startswith("46.7 % are right")
    assert f"below {math.log(2) / 30:.3g}, and it is {record.loss:.4g}" in found["series"]["train"]["how_far"]
    _, out, _ = run("watch", tmp_path / "run", "--once")
    said = " ".join(out.split())
    assert (
        "the scale of other parameters is free" in said
        and "not fitted: psi is not above 0 yet; 46.7 % are right" in said
    )


def test_it_waits_and_follows_to_the_end(tmp_path):
    """Off a terminal: a line of JSON for everything new, until the monitor is closed."""
    folder = tmp_path / "later"

    def training():
        time.sleep(0.2)
        one = store.Store(folder, CONFIG)
        time.sleep(0.2)
        for record in rising([0.5, 1.0, 2.0]):
            one.append([record])
            one.write(everything=True)
            time.sleep(0.2)
        one.close()

    thread = threading.Thread(target=training)
    thread.start()
    status, out, err = run("watch", folder, "--json", "--every", 0.02)
    thread.join()
    lines = [json.loads(line) for line in out.splitlines()]
    assert status == 0 and err == f"waiting for records in {folder}: there is no such folder yet\n"
    counts = [line["records"] for line in lines]
    assert counts == sorted(counts) and counts[-1] == 3 and len(lines) >= 3
    assert [line["state"] for line in lines][-1] == "ended" and lines[0]["state"] == "running"


def test_records_that_come_while_the_clock_stands_still_are_seen(tmp_path):
    """A file that grows, or is replaced, under the time that it had."""
    one = store.Store(tmp_path / "run", CONFIG)
    reader = watch._Reader(tmp_path / "run", [], False)
    seen = []
    for k, psi in enumerate([0.5, 1.0, 2.0, 3.0, 4.0]):
        one.next = -math.inf if k % 2 else math.inf  # records.parquet is replaced, newest.arrow grows
        one.fresh.append(store.row(replace(BASE, step=k, psi=psi)))
        one.write()
        for path in (tmp_path / "run").glob("*.*"):
            os.utime(path, (10**9, 10**9))
        state, curves = reader.look()
        seen.append((state["records"], curves["train"]["psi"][-1]))
    one.close()
    assert seen == [(1, 0.5), (2, 1.0), (3, 2.0), (4, 3.0), (5, 4.0)]


def test_other_machines_and_killed_processes(tmp_path):
    kept(tmp_path / "run", rising([1.0]))
    (tmp_path / "run" / "lock").write_text("1 some-other-machine\n")
    assert told(tmp_path / "run")["state"] == "running"  # as far as the age of its records tells
    os.utime(tmp_path / "run" / "records.parquet", (time.time() - 7200, time.time() - 7200))
    assert told(tmp_path / "run")["state"] == "stale" and 7190 < told(tmp_path / "run")["age"] < 1e5
    assert "stale, last record 2 hours ago" in run("watch", tmp_path / "run", "--once")[1]
    process = subprocess.Popen(["true"])
    process.wait()
    (tmp_path / "run" / "lock").write_text(f"{process.pid} {store.platform.node()}\n")
    assert told(tmp_path / "run")["state"] == "killed"


@pytest.mark.parametrize(("key", "status"), [("q", 0), ("ctrl-c", 130)])
def test_on_a_terminal(tmp_path, key, status):
    one = store.Store(tmp_path / "run", CONFIG)  # this process: it is running
    one.append(rising([0.5, 1.0]))
    one.write(everything=True)
    master, slave = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "60"}
    command = [sys.executable, "-m", "widemargin", "watch", str(tmp_path / "run"), "--every", "0.05"]
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True,
        preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(slave)
    seen = b""
    while b"has not fallen" not in seen:
        seen += os.read(master, 65536)
    one.append([replace(BASE, step=4321)])
    one.write(everything=True)
    while b"4321" not in seen:
        seen += os.read(master, 65536)
    if key == "q":
        os.write(master, b"q")
    else:
        os.kill(process.pid, signal.SIGINT)
    try:
        while True:
            seen += os.read(master, 65536)
    except OSError:  # the other end is closed
        pass
    assert process.wait() == status
    os.close(master)
    assert (
        b"Traceback" not in seen and b"q ends watching" in seen and seen.count(b"\x1b[?25l") == seen.count(b"\x1b[?25h")
    )
    one.close()


# ---------------------------------------------------------------- pictures


def test_plot_draws_a_monitor(tmp_path):
    kept(tmp_path / "run", [*rising(np.linspace(-3, 2, 30)), *rising([-9.0, -8.0], name="test", error=0.25)])
    status, out, err = run("plot", tmp_path / "run")
    assert (
        status == 0
        and out == ""
        and err == f"32 records of {tmp_path / 'run'} drawn to {tmp_path / 'run' / 'run.png'}\n"
    )
    assert (tmp_path / "run" / "run.png").read_bytes()[:4] == b"\x89PNG"
    assert run("plot", tmp_path / "run", "--out", tmp_path / "a.svg")[0] == 0
    assert (tmp_path / "a.svg").read_bytes().startswith(b"<?xml")
    assert "must end in .png" in refused("plot", tmp_path / "run", "--out", tmp_path / "a.jpeg")
    assert "no folder" in refused("plot", tmp_path / "run", "--out", tmp_path / "b" / "a.png")


def test_a_picture_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    kept(tmp_path / "run", rising([0.5, 1.0]))
    (tmp_path / "a.png").write_bytes(b"old")

    def half(self, file, **keys):
        file.write(b"\x89PNG")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", half)
    assert "No space left" in refused("plot", tmp_path / "run", "--out", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes() == b"old" and {p.name for p in tmp_path.iterdir()} == {"run", "a.png"}


def test_from_training_to_the_screen(tmp_path):
    """The numbers on the screen are those of the model, recomputed here."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 30, bias=False), nn.ReLU(), nn.Linear(30, 3, bias=False)).double()
    X, y = torch.randn(12, 5, dtype=torch.float64), torch.arange(12) % 3
    rule = torch.optim.SGD(model.parameters(), lr=0.3)
    with MarginMonitor(model, out=tmp_path / "run") as monitor:
        for _ in range(400):
            outputs = model(X)
            loss = nn.functional.cross_entropy(outputs, y)
            rule.zero_grad()
            loss.backward()
            monitor.step(logits=outputs, targets=y)
            rule.step()
        monitor.measure((X, y), name="train")
    found = told(tmp_path / "run")
    train = found["series"]["train"]
    outputs = model(X).detach().numpy()
    own = outputs[np.arange(12), y]
    rest = np.where(np.arange(3) == y.numpy()[:, None], -np.inf, outputs)
    size = sum(float((p.detach() ** 2).sum()) for p in model.parameters())
    total = nn.functional.cross_entropy(torch.tensor(outputs), y, reduction="sum").item()
    np.testing.assert_allclose(train["margin_normalized"], (own - rest.max(1)).min() / size, rtol=1e-10)
    np.testing.assert_allclose(train["psi_normalized"], -np.log(np.expm1(total)) / size, rtol=1e-8)
    assert found["degree"] == 2 and found["series"]["step"]["records"] == 400 and train["step"] == 400
    assert train["fitted"] and found["series"]["step"]["fitted_step"] < 400
    assert run("plot", tmp_path / "run")[0] == 0 and Path(tmp_path / "run" / "run.png").stat().st_size > 10_000


# ---------------------------------------------------------------- many names


@pytest.mark.slow
def test_of_many_names_those_with_most_records_are_shown(tmp_path):
    """60 names and training batches: 50 are shown, 12 drawn, and the others are counted."""
    names = [replace(BASE, step=k, name=f"set {j}") for j in range(60) for k in range(1 + (j >= 11))]
    folder = kept(tmp_path / "run", [*names, replace(BASE, name="step")])
    found = told(folder)
    assert len(found["series"]) == 50 and found["left_out"] == 11 and found["records"] == 60 + 49 + 1
    assert list(found["series"]) == [*(f"set {j}" for j in range(11, 60)), "step"]
    assert "11 names with fewer records are left out" in run("watch", folder, "--once")[1]
    assert told(folder, "--name", "set 0")["series"].keys() == {"set 0"}
    status, _, err = run("plot", folder, "--out", tmp_path / "a.svg")
    assert status == 0 and err.startswith("49 names with fewer records are left out\n")
    status, _, err = run("report", folder, "--out", tmp_path / "a.html")
    assert status == 0 and "11 names with fewer records are left out" in (tmp_path / "a.html").read_text()
