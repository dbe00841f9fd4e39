"""Records on disk: whole at every moment, cheap, of fixed types, and never in the way of training."""

import fcntl
import json
import math
import os
import platform
import signal
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from widemargin.monitor import monitor as monitor_file
from widemargin.monitor import store, tables
from widemargin.monitor.record import Record
from widemargin.monitor.store import Store, load, series
from widemargin.types import InputError

CONFIG = {"model": "Net", "loss": "ce", "parameters": 3, "homogeneous": None}


def record(step, name="step", **keys):
    known = {
        "whole": False,
        "n": 4,
        "error": 0.25,
        "loss": 0.5,
        "margin": -1.0 / (step + 1),
        "margin_mean": 1.0,
        "quantiles": {},
        "exact": True,
        "psi": math.pi * step,
        "log_loss_sum": -1.0,
        "norm": 2.0,
        "degree": 2,
        "at_minimum": None,
        "dual_entropy": 0.1,
    }
    return Record(step=step, name=name, **(known | keys))


def measured(step, name="train", **keys):
    more = {
        "whole": True,
        "quantiles": {0.0: -1.0, 0.5: 1.0},
        "at_minimum": 1,
        "blocks": {"0": 1.5, "head": 2.5},
        "classes": ({"class": 0, "n": 4, "error": 0.25, "margin": -1.0, "margin_mean": 1.0, "dual_share": 1.0},),
        "hardest": (3, 1),
    }
    return record(step, name, **(more | keys))


def written(folder, *records, **keys):
    one = Store(folder, CONFIG, **keys)
    one.append(records)
    one.close()
    return load(folder)


def wait_for(what):
    while not what():
        time.sleep(0.01)


# ---------------------------------------------------------------- what is kept


def test_every_number_comes_back(tmp_path):
    hard = 0.1 + 0.2
    given = [record(1, psi=math.inf), measured(1, margin=-math.inf, norm=hard), record(2, psi=math.nan), record(3)]
    table = written(tmp_path / "run", *given)
    assert table["step"].to_pylist() == [1, 1, 2, 3] and table["name"].to_pylist() == ["step", "train", "step", "step"]
    for one, back in zip(given, table.to_pylist()):
        for key, value in one.scalars(everything=True).items():
            assert back[key] == value or (math.isnan(back[key]) and math.isnan(value)), key
    assert table["psi"].null_count == 0 and math.isnan(table["psi"][2].as_py())  # nan is a number, not a gap
    assert table["norm"][1].as_py() == hard
    assert table["norm/head"].to_pylist() == [None, 2.5, None, None] and table["hardest"][1].as_py() == [3, 1]
    assert json.loads(table["classes"][1].as_py())[0]["n"] == 4


def test_pandas_reads_the_file(tmp_path):
    table = written(tmp_path / "run", record(1), measured(1))
    frame = pd.read_parquet(tmp_path / "run" / "records.parquet")
    assert list(frame.columns) == table.column_names and frame["step"].tolist() == [1, 1]
    assert frame["margin_q50"].isna().tolist() == [True, False] and frame["psi"].tolist() == [math.pi] * 2


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_types_do_not_depend_on_the_order(tmp_path, order):
    """Columns that are missing, or None, in the first rows or in the first writing have the type they get later."""
    bare = record(1, degree=None)
    rows = [bare, measured(2)]
    one = Store(tmp_path / "run", CONFIG)
    for k in order:
        one.append([rows[k]])
        one.write(everything=True)
    one.close()
    types = {field.name: str(field.type) for field in load(tmp_path / "run").schema}
    assert (types["degree"], types["whole"], types["name"], types["classes"]) == ("int64", "bool", "string", "string")
    assert types["hardest"].startswith("list<") and types["hardest"].endswith("int64>")
    rest = types.keys() - {"degree", "step", "whole", "exact", "name", "classes", "hardest"}
    assert {types[name] for name in rest} == {"double"} and {"at_minimum", "norm/0", "margin_q0", "wall"} <= rest


def test_extra_numbers_and_what_is_none(tmp_path):
    table = written(
        tmp_path / "run", record(1, extra={"rate": 1}), record(2, extra={"rate": np.float32(0.5)}), record(3)
    )
    assert table["rate"].to_pylist() == [1.0, 0.5, None]
    for extra, words in (
        ({"phase": "warm"}, "must be a number"),
        ({"psi": 1.0}, "'psi' already"),
        ({"norm/0": 1.0}, "norm/0"),
    ):
        with pytest.raises(InputError, match=words):
            store.row(record(1, extra=extra))


def test_empty_and_foreign_folders(tmp_path):
    one = Store(tmp_path / "run", CONFIG)
    assert len(load(tmp_path / "run")) == 0 and series(tmp_path / "run") == {} and store.age(tmp_path / "run") is None
    one.close()
    with pytest.raises(InputError, match="no records of a monitor"):
        load(tmp_path)
    with pytest.raises(InputError, match="no records of a monitor"):
        store.config(tmp_path)
    (tmp_path / "run" / "records.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(InputError, match="damaged"):
        load(tmp_path / "run")
    (tmp_path / "run" / "monitor.json").write_text('{"format": "widemargin-monitor-9"}')
    with pytest.raises(InputError, match="another version"):
        store.config(tmp_path / "run")


# ---------------------------------------------------------------- going on


def test_resume(tmp_path):
    run = tmp_path / "run"
    written(run, record(1), measured(2))
    with pytest.raises(InputError, match="already holds records"):
        Store(run, CONFIG)
    one = Store(run, CONFIG | {"model": "Other"}, resume=True)
    assert one.last == (2, 0.0) and store.config(run)["model"] == "Other"
    one.append([record(3, extra={"new": 1.0})])
    one.close()
    assert load(run)["step"].to_pylist() == [1, 2, 3] and load(run)["new"].to_pylist() == [None, None, 1.0]
    assert written(tmp_path / "fresh", record(7), resume=True)["step"].to_pylist() == [7]  # nothing there: begin


def test_steps_taken_twice_count_once(tmp_path):
    """Training that goes on from a checkpoint at step 2 replaces what came after it; other names keep theirs."""
    run = tmp_path / "run"
    written(run, record(1), record(2), measured(2), record(3, error=0.9), record(4))
    written(run, record(3, error=0.1), resume=True)
    found = series(run)
    assert found["step"]["step"].tolist() == [1, 2, 3] and found["step"]["error"].tolist() == [0.25, 0.25, 0.1]
    assert found["train"]["step"].tolist() == [2] and len(load(run)) == 6
    assert "margin_q50" in found["train"] and "margin_q50" not in found["step"]
    same = series(written(tmp_path / "same", measured(0, error=0.5), measured(0, error=0.4)))
    assert same["train"]["error"].tolist() == [0.5, 0.4]  # a step that is never counted is no going back


def test_names_that_differ_in_what_numpy_leaves_out(tmp_path):
    found = series(written(tmp_path / "run", record(1, "a"), record(2, "a\0"), record(3, "\0")))
    assert {name: part["step"].tolist() for name, part in found.items()} == {"a": [1], "a\0": [2], "\0": [3]}


def test_what_is_newest_is_counted_once(tmp_path):
    """Rows beyond records.parquet are in newest.arrow; a process killed between the two writings leaves rows in both."""
    run = tmp_path / "run"
    one = Store(run, CONFIG)
    one.append([record(1), record(2)])
    one.write(everything=True)
    one.next = math.inf  # as if writing everything had taken long
    one.append([record(3)])
    one.write()
    one.append([measured(4)])
    one.write()
    assert pq.read_table(run / "records.parquet")["step"].to_pylist() == [1, 2]
    assert pa.ipc.open_stream((run / "newest.arrow").read_bytes()).read_all()["step"].to_pylist() == [3, 4]
    assert load(run)["step"].to_pylist() == [1, 2, 3, 4]
    left = (run / "newest.arrow").read_bytes()
    one.append([record(5)])
    one.close()
    assert not (run / "newest.arrow").exists() and load(run)["step"].to_pylist() == [1, 2, 3, 4, 5]
    (run / "newest.arrow").write_bytes(left)
    assert load(run)["step"].to_pylist() == [1, 2, 3, 4, 5]
    assert written(run, record(6), resume=True)["step"].to_pylist() == [1, 2, 3, 4, 5, 6]


def test_records_are_written_without_another_call(tmp_path):
    """Two measurements in a row, then nothing for long: the second is on disk all the same."""
    one = Store(tmp_path / "run", CONFIG)
    one.append([measured(1)])
    wait_for(lambda: len(load(tmp_path / "run")) == 1)
    one.append([measured(1, "test")])
    wait_for(lambda: len(load(tmp_path / "run")) == 2)
    writer = one.writer
    one.append([measured(1, "late")])
    wait_for(lambda: len(load(tmp_path / "run")) == 3)
    assert writer is not None and one.writer is writer  # one thread for all
    one.close()
    wait_for(lambda: not writer.is_alive())
    one.append([measured(2)])  # after the end: at once
    assert len(load(tmp_path / "run")) == 4


def test_the_configuration_can_change_while_it_runs(tmp_path):
    one = Store(tmp_path / "run", CONFIG)
    one.configure(CONFIG | {"homogeneous": {"names": ["w"], "degree": 1}})
    wait_for(lambda: store.config(tmp_path / "run")["homogeneous"] is not None)
    assert store.config(tmp_path / "run")["homogeneous"]["degree"] == 1
    one.close()


# ---------------------------------------------------------------- killed, crowded, full

RECORD = """
import math, os, sys, time
from widemargin.monitor.record import Record
from widemargin.monitor.store import Store
from widemargin.types import InputError
def record(step):
    return Record(step=step, name="step", whole=False, n=4, error=0.25, loss=0.5, margin=-1.0, margin_mean=1.0, quantiles={},
        exact=True, psi=1.0, log_loss_sum=-1.0, norm=2.0, degree=2, at_minimum=None, dual_entropy=0.1)
"""

KILLED = """
one = Store(sys.argv[1], {})
for step in range(10**9):
    if step >= 300:
        one.next = math.inf  # as if writing everything had taken long: from here on newest.arrow is used
    one.append([record(step)])
    print(step, time.time(), flush=True)
    time.sleep(0.002)
"""

COPIED = """
try:
    Store(sys.argv[2], {}, resume=True)
except InputError as error:
    print(error)
one = Store(sys.argv[1], {})
one.append([record(1)])
one.write()
child = os.fork()
if not child:  # like a worker of a DataLoader
    one.append([record(99)])
    one.close()
    os._exit(0)
os.waitpid(child, 0)
one.append([record(2)])  # and no close(): the program ends
"""


def test_a_program_may_go_to_another_folder(tmp_path, monkeypatch):
    """All records went where nothing was, and were lost."""
    monkeypatch.chdir(tmp_path)
    one = Store("run", {})
    (tmp_path / "other").mkdir()
    monkeypatch.chdir("other")
    one.append([record(1)])
    one.close()
    assert load(tmp_path / "run")["step"].to_pylist() == [1] and not list((tmp_path / "other").iterdir())


def test_a_killed_process_loses_the_last_second_at_most(tmp_path):
    run = tmp_path / "run"
    command = [sys.executable, "-c", RECORD + KILLED, str(run)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    lines: list[str] = []
    thread = threading.Thread(target=lambda: lines.extend(process.stdout))
    thread.start()
    seen, newest = 0, False
    while seen < 900 or not newest:  # read all the time, as a viewer does: never a torn file, never fewer rows
        if store.is_monitor(run):
            count = len(load(run))
            assert count >= seen
            seen = count
            newest |= (run / "newest.arrow").exists()
        assert process.poll() is None
        time.sleep(0.01)
    assert store.state(run) == "running" and newest
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    thread.join()
    process.stdout.close()
    assert store.state(run) == "killed"
    steps = load(run)["step"].to_numpy()
    np.testing.assert_array_equal(steps, np.arange(len(steps)))  # in order, none twice, none missing
    times = [float(line.split()[1]) for line in lines if line.count(" ") == 1 and line.endswith("\n")]
    # What was appended a second before the end is there; another second for a machine that has much else to do.
    assert times[-1] - times[min(len(steps), len(times) - 1)] < store.PAUSE + 1.0
    assert store.PAUSE <= monitor_file.PAUSE / 2  # fast steps came to it half a second late, and waited for a whole one
    assert written(run, record(10**6), resume=True)["step"].to_pylist() == [*steps.tolist(), 10**6]
    assert store.state(run) == "ended" and not (run / "newest.arrow").exists()


def test_other_processes(tmp_path):
    """A second monitor is refused, a copy of the process writes nothing, the end of the program writes what is left."""
    mine = Store(tmp_path / "mine", CONFIG)
    command = [sys.executable, "-W", "ignore", "-c", RECORD + COPIED, str(tmp_path / "run"), str(tmp_path / "mine")]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "another monitor is writing to" in said and f"in process {os.getpid()}" in said
    assert load(tmp_path / "run")["step"].to_pylist() == [1, 2] and store.state(tmp_path / "run") == "ended"
    mine.close()


def test_two_monitors_on_one_folder(tmp_path):
    run = tmp_path / "run"
    one = Store(run, CONFIG)
    with pytest.raises(InputError, match=r"another monitor is writing to .* in this process; close\(\) it first"):
        Store(run, CONFIG, resume=True)
    one.append([record(1)])
    one.close()
    assert written(run, record(2), resume=True)["step"].to_pylist() == [1, 2]


def test_a_place_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "run", f"{tmp_path}/a\0b"):
        with pytest.raises(InputError, match=r"cannot write records to .*; choose another folder"):
            Store(place, CONFIG)


def test_a_full_disk_does_not_stop_training(tmp_path, monkeypatch):
    run = tmp_path / "run"
    one = Store(run, CONFIG)
    write = store.write_atomically

    def full(path, content):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(store, "write_atomically", full)
    one.append([record(1)])
    one.write()
    with pytest.warns(UserWarning, match=r"cannot be written: .*No space left.*; training goes on") as said:
        one.append([record(2)])
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        one.configure(CONFIG | {"model": "later"})
        one.write()
        one.append([measured(3)])
        one.write()
    assert not (run / "records.parquet").exists()
    monkeypatch.setattr(store, "write_atomically", write)
    one.append([record(4)])
    one.close()
    assert load(run)["step"].to_pylist() == [1, 2, 3, 4] and store.config(run)["model"] == "later"


def test_a_disk_that_stays_full_is_said_at_the_end(tmp_path, monkeypatch):
    one = Store(tmp_path / "run", CONFIG)

    def full(path, content):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(store, "write_atomically", full)
    one.append([record(1), record(2)])
    with pytest.warns(UserWarning, match="the last 2 records are lost"):
        one.close()
    with pytest.raises(InputError, match="No space left"):
        Store(tmp_path / "other", CONFIG)
    assert store.state(tmp_path / "other") == "ended"  # the lock was let go


def test_writing_is_rationed(tmp_path, monkeypatch):
    """All writing together, of newest.arrow too, takes 2 % of the time at most, but for one writing of everything."""
    one = Store(tmp_path / "run", CONFIG)
    clock = {"now": 100.0, "used": 0.0}
    monkeypatch.setattr(store.time, "monotonic", lambda: clock["now"])
    monkeypatch.setattr(store.time, "thread_time", lambda: clock["used"])
    costs = []

    def slow(real):
        def encode(table, before=0, *more, **keys):
            costs.append(5e-3 + 5e-5 * (before + len(table)))
            clock["used"] += costs[-1]
            return real(table, before, *more) if more else real(table, **keys)

        return encode

    for name in ("parquet_of", "arrow_bytes"):
        monkeypatch.setattr(store, name, slow(getattr(store, name)))
    monkeypatch.setattr(one, "_soon", lambda: None)
    one.append([record(j) for j in range(2000)])
    one.write()
    for k in range(80):
        one.append([record(2000 + 10 * k + j) for j in range(10)])
        clock["now"] += 1.0
        one.write()
        assert len(load(tmp_path / "run")) == 2000 + 10 * (k + 1)  # never behind, whatever was written
    whole = [cost for cost in costs if cost > 0.1]
    assert 3 <= len(whole) <= 15  # now and then, not every second
    assert sum(costs) <= 80 / 50 + max(whole) and store.SHARE >= 50
    assert one.seconds == pytest.approx(clock["used"])
    one.close()


def interrupted_at(number, monkeypatch):
    """Ctrl-C after so many calls that change the disk; the list says whether it came."""
    left, came = [number], []

    def after(real):
        def call(*given):
            answer = real(*given)
            left[0] -= 1
            if not left[0]:
                came.append(True)
                raise KeyboardInterrupt
            return answer

        return call

    for name in ("fsync", "replace"):
        monkeypatch.setattr(store.os, name, after(getattr(os, name)))
    return came


def written_all_the_same(call, *given):
    """As a loop that was interrupted goes on: close() is called again, by the end of the process at the latest."""
    while True:
        try:
            return call(*given)
        except KeyboardInterrupt:
            pass


def test_ctrl_c_within_a_writing_writes_nothing_twice(tmp_path, monkeypatch):
    came, number = [True], 0
    while came:
        number += 1
        one = Store(tmp_path / str(number), CONFIG)
        one._soon = lambda: None
        steps = 0
        with monkeypatch.context() as patch:
            came = interrupted_at(number, patch)
            for whole in (True, False, False, False, True, False):
                one.next = -math.inf if whole else math.inf
                more = {"extra": {"late": 1.0}} if steps == 9 else {}  # a new column
                one.append([record(steps + k, **more) for k in range(3)])
                steps += 3
                written_all_the_same(one.write)
            written_all_the_same(one.close)
        assert load(tmp_path / str(number))["step"].to_pylist() == list(range(steps)), number
        assert sorted(path.name for path in one.folder.iterdir()) == ["lock", "monitor.json", "records.parquet"]
    assert number > 10


def test_trouble_of_another_kind_than_the_disks_loses_nothing(tmp_path, monkeypatch):
    """The thread that writes goes on, and tries again."""
    one = Store(tmp_path, CONFIG)
    one._soon = lambda: None
    with monkeypatch.context() as patch:

        def no_memory(*_):
            raise MemoryError("malloc of size 8 failed")

        patch.setattr(store, "as_table", no_memory)
        one.append([record(0)])
        one.write()
    assert one.problem == "malloc of size 8 failed"
    with pytest.warns(UserWarning, match="records cannot be written: malloc"):
        one.append([record(1)])
    one.write()
    assert load(tmp_path)["step"].to_pylist() == [0, 1] and not one.problem
    one.close()


def test_a_copy_of_the_process_does_not_say_what_is_watched(tmp_path):
    one = Store(tmp_path, CONFIG)
    one.pid += 1  # as in a fork
    one.configure(CONFIG | {"parameters": 4})
    assert one.writer is None and one.configured
    one.pid -= 1
    one.close()
    assert store.config(tmp_path)["parameters"] == 3


def test_a_hundred_thousand_rows(tmp_path):
    """One writing of 10^5 rows: exact, and small enough to be done again and again."""
    one = Store(tmp_path / "run", CONFIG)
    base = record(0)
    row = store.row(base)
    one.fresh = [row | {"step": k, "psi": float(k) / 7} for k in range(100_000)]
    one.append([replace(base, step=100_000)])
    one.close()
    table = load(tmp_path / "run")
    np.testing.assert_array_equal(table["step"].to_numpy(), np.arange(100_001))
    np.testing.assert_array_equal(table["psi"].to_numpy()[:-1], np.arange(100_000) / 7)
    assert (tmp_path / "run" / "records.parquet").stat().st_size < 30e6


@pytest.mark.slow
def test_memory_does_not_grow_with_the_records(tmp_path, monkeypatch):
    """What pyarrow holds while all is written anew, before and after ten times as many records."""
    held = []
    widened = tables.widened

    def looked(parts, schema):
        held.append(pa.total_allocated_bytes())
        return widened(parts, schema)

    monkeypatch.setattr(tables, "widened", looked)
    one = Store(tmp_path / "run", CONFIG)
    rows = [record(k) for k in range(1_000)]
    peaks = []
    for count in (20, 180):
        for _ in range(count):
            one.append(rows)
        one.write(everything=True)
        held.clear()
        one.append(rows)
        one.write(everything=True)  # copies all that was there
        peaks.append(max(held))
    one.close()
    assert pq.read_metadata(tmp_path / "run" / "records.parquet").num_rows == 202_000 and peaks[1] < 1.5 * peaks[0]


GROWS = """
from widemargin.monitor.store import row
more = {f"norm/{j}": j / 7 for j in range(40)}
one, rows = Store(sys.argv[1], {}), [row(record(k)) | more for k in range(8_000)]
for k in range(64):
    with one.guard:
        one.fresh = rows
    one.write(everything=k in (15, 31, 63))  # as often as the file has doubled
    if k in (15, 63):
        print(int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
one.close()
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc to know a process's memory")
def test_a_process_does_not_grow_with_its_records(tmp_path):
    """Four times as many; it grew by 11 MB before the C library was asked to give back what it keeps."""
    command = [sys.executable, "-c", RECORD + GROWS, str(tmp_path / "run")]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    before, after = map(int, told.split())
    assert len(load(tmp_path / "run")) == 512_000 and after < before + 5e6, (before, after)


THREADS = """
one = Store(sys.argv[1], {})
one._soon = lambda: None
for k in range(3):
    one.append([record(k)] * 9_000)
    one.write(everything=True)
    print(len(os.listdir("/proc/self/task")))
one.close()
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs /proc to know a process's threads")
def test_no_other_threads_read_what_is_copied(tmp_path):
    """Those that read ahead kept memory: 3 MB a minute at 1,000 records a second."""
    command = [sys.executable, "-c", RECORD + THREADS, str(tmp_path / "run")]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert len(told) == 3 and len(set(told)) == 1, told


def test_what_is_said_of_records_that_cannot_be_written_at_the_end(tmp_path, monkeypatch):
    import shutil

    one = Store(tmp_path / "gone", CONFIG)
    one.append([record(1)])
    one.write()
    shutil.rmtree(tmp_path / "gone")
    one.append([record(2)])
    with pytest.warns(UserWarning, match="gone is gone, and 2 records with it"):
        one.close()
    one = Store(tmp_path / "full", CONFIG)
    one.append([record(0), record(1)])
    one.write()
    one.next = math.inf
    one.append([record(2)])
    one.write()
    assert (one.written, one.added) == (2, 1)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "write_atomically", full)
    with pytest.warns(UserWarning, match="all records are kept, the last 1 of them in newest.arrow: .*No space"):
        one.close()
    assert load(tmp_path / "full")["step"].to_pylist() == [0, 1, 2]


def test_a_folder_that_was_replaced_is_not_written_to(tmp_path):
    """In the place of a folder that was moved away there may be another monitor's."""
    one = Store(tmp_path / "run", CONFIG)
    one.append([record(1)])
    one.write()
    (tmp_path / "run").rename(tmp_path / "moved")
    other = Store(tmp_path / "run", CONFIG)
    other.append([record(7)])
    other.write()
    one.append([record(2)])
    one.configure(CONFIG | {"model": "mine"})
    with pytest.warns(UserWarning, match="run is gone, and 2 records with it"):
        one.close()
    assert store.config(tmp_path / "run").get("model") != "mine"
    other.append([record(8)])
    other.close()
    assert load(tmp_path / "run")["step"].to_pylist() == [7, 8]
    assert load(tmp_path / "moved")["step"].to_pylist() == [1]


def test_a_monitor_that_goes_on_is_never_said_to_have_ended(tmp_path, monkeypatch):
    """`watch` ends then."""
    run = tmp_path / "run"
    Store(run, CONFIG).close()
    (run / "lock").write_text(f"999999999 {platform.node()}-with-a-longer-name\n")  # it was killed
    seen = []
    for name in ("pwrite", "ftruncate"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, real=real: (seen.append(store.state(run)), real(*args))[1])
    one = Store(run, CONFIG, resume=True)
    assert seen == ["unknown", "running"] and store.state(run) == "running"
    one.close()
    assert store.state(run) == "ended"


def test_a_process_number_that_is_taken_again_is_no_monitor(tmp_path):
    """After a restart of the machine another process may have the number that the lock names: here it is this one."""
    run = tmp_path / "run"
    Store(run, CONFIG).close()
    (run / "lock").write_text(f"{os.getpid()} {platform.node()}\n")
    assert store.state(run) == "killed"
    Store(run, CONFIG, resume=True).close()
    assert store.state(run) == "ended"


def test_asking_for_the_state_keeps_no_monitor_out(tmp_path):
    """Who asks has the lock for a moment."""
    run = tmp_path / "run"
    Store(run, CONFIG).close()
    asking = (run / "lock").open("rb")
    fcntl.flock(asking, fcntl.LOCK_SH)
    threading.Timer(0.03, asking.close).start()
    one = Store(run, CONFIG, resume=True)
    assert asking.closed and store.state(run) == "running"  # it has waited, and has the lock now
    one.close()
    assert store.state(run) == "ended"


# ------------------------------------------------------------ small files, and what they would become


def repeated_records(folder, times, **columns):
    """A folder of a monitor whose first record is there so many times, in a file that says so in few bytes."""
    written(folder, record(0), record(1))
    table = pa.concat_tables([pq.read_table(folder / "records.parquet").slice(0, 1)] * 1000).combine_chunks()
    for name, value in columns.items():
        table = table.set_column(table.column_names.index(name), name, pa.array([value] * len(table)))
    with pq.ParquetWriter(folder / "records.parquet", table.schema, compression="zstd") as writer:
        writer.write_table(pa.concat_tables([table] * (times // 1000)), row_group_size=1 << 20)


def test_records_that_take_far_more_than_their_file_are_refused_unread(tmp_path, monkeypatch):
    repeated_records(tmp_path / "run", 1_000_000)
    assert (tmp_path / "run" / "records.parquet").stat().st_size < 200_000
    monkeypatch.setattr(pq.ParquetFile, "read", lambda *_: pytest.fail("all is read"))
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *_, **__: pytest.fail("something is read"))
    with pytest.raises(InputError, match=r"unpacks to \d+ bytes, far more than it holds"):
        load(tmp_path / "run")


def test_compressed_batches_are_refused_unread(tmp_path, monkeypatch):
    """A few bytes of them unpack to any amount before anybody could count; monitors write none."""
    repeated_records(tmp_path / "run", 1000)
    table = load(tmp_path / "run").replace_schema_metadata({b"after": b"0"})
    path, packed = tmp_path / "run" / "newest.arrow", pa.BufferOutputStream()
    with pa.ipc.new_stream(packed, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_table(table)
    plain = tables.arrow_bytes(table)
    path.write_bytes(plain + plain[:-9])  # a second head and a batch that is not whole: what is before them counts
    assert len(load(tmp_path / "run")) == 1000
    monkeypatch.setattr(tables, "_whole_ones", lambda *_: pytest.fail("something is read"))
    path.write_bytes(packed.getvalue())
    with pytest.raises(InputError, match=r"newest\.arrow cannot be read \(it is compressed"):
        load(tmp_path / "run")


@pytest.mark.slow
def test_long_names_that_come_again_are_read_a_few_at_a_time(tmp_path):
    repeated_records(tmp_path / "run", 2000, name="x" * 100_000)
    before = pa.total_allocated_bytes()
    with pytest.raises(InputError, match="unpacks to more than"):
        load(tmp_path / "run")
    assert (tmp_path / "run" / "records.parquet").stat().st_size < 100_000
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_many_names_are_told_apart_by_one_sorting(tmp_path, monkeypatch):
    written(tmp_path / "run", *[record(step, f"n{k}") for step in (0, 5, 3) for k in range(300)])
    calls, flat = [], np.flatnonzero
    monkeypatch.setattr(store.np, "flatnonzero", lambda *a: calls.append(1) or flat(*a))
    table = load(tmp_path / "run")
    parts = series(table)
    assert not calls and len(parts) == 300
    assert all(part["step"].tolist() == [0, 3] for part in parts.values())
    assert all(part["psi"].tolist() == [0.0, math.pi * 3] for part in parts.values())
