"""kill -9 at random moments, and full disks: nothing is lost that was said to be written, and going on gives the same bits.

Each is tried a few times; the environment variable WIDEMARGIN_CRASHES sets another number (30, say).
"""

import atexit
import contextlib
import math
import os
import resource
import select
import signal
import sys
import time
import traceback
import warnings

import numpy as np
import pyarrow as pa
import pytest
from harm import count, draw

from widemargin import flows, margins, sweep
from widemargin.monitor import store as monitors
from widemargin.monitor.record import Record
from widemargin.sweep import Sweep
from widemargin.types import Certificate, Dataset, InputError

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.usefixtures("one_thread"),
]
CRASHES = int(os.environ.get("WIDEMARGIN_CRASHES", "3"))
DATA = Dataset([[1.0, 2.0], [2.0, -1.0], [-1.0, 0.5], [0.5, 0.5]], [1, -1, 1, -1], "four points")


class Child:
    """A copy of this process that does something, and tells what it has done by a pipe."""

    def __init__(self, work, largest=None):
        count(1)
        self.read, write = os.pipe()
        sys.stdout.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of threads, which the child does not use
            self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(self.read)
                if largest is not None:
                    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
                work(lambda number: os.write(write, b"%d\n" % number))
                status = 0
            except InputError as error:
                os.write(write, f"InputError {error}\n".encode())
                status = 2
            except BaseException:
                os.write(write, traceback.format_exc().encode()[-3000:])
            finally:
                os._exit(status)
        os.close(write)

    def first_word(self):
        """Wait until it has begun."""
        select.select([self.read], [], [])

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def wait(self):
        """Exit status (-9 where it was killed), and all that it said."""
        said = b""
        while piece := os.read(self.read, 65536):
            said += piece
        os.close(self.read)
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        text = said.decode()
        assert "Traceback" not in text, text
        return status, text

    @staticmethod
    def last(text):
        """The last number that was told whole."""
        numbers = [line for line in text.split("\n")[:-1] if line.lstrip("-").isdigit()]
        return int(numbers[-1]) if numbers else 0


# ---------------------------------------------------------------- training


def trained(folder=None, resume=False, tell=None):
    keep = None if folder is None else flows.Keep(folder, resume=resume, seconds=0.02)
    net, rule = flows.TwoLayer(2, 8), flows.SGD(lr=0.1, batch=2)
    record = flows.Record(points=25, progress=None if tell is None else lambda *_: tell(1))
    return flows.train(DATA, net, rule, stop=250, trials=2, record=record, keep=keep)


def same(one, other):
    assert one.status == other.status
    for name in one.records:
        assert np.array_equal(one[name], other[name], equal_nan=True), name
    for name in one.final:
        assert np.array_equal(one.final[name], other.final[name]), name


def test_training_that_is_killed(tmp_path):
    calm, rng, killed = trained(), draw("train"), 0
    for k in range(CRASHES):
        folder = tmp_path / str(k)
        for _ in range(3):
            child = Child(lambda tell, folder=folder: (tell(0), trained(folder, resume=True)))
            child.first_word()
            time.sleep(rng.random() * 0.15)
            killed += child.kill()[0] == -signal.SIGKILL
        same(trained(folder, resume=True), calm)
        same(flows.load(folder), calm)
    assert killed


def test_training_on_a_full_disk(tmp_path):
    """It goes on in memory and says so; what is on the disk can be gone on with."""
    calm, rng = trained(), draw("full disk")
    for k in range(CRASHES):
        folder, most = tmp_path / str(k), rng.choice([3_000, 8_000, 14_000])

        def work(tell, folder=folder):
            found = trained(folder)
            tell(sum("cannot write" in note for note in found.notes))
            same(found, calm)

        status, said = Child(work, most).wait()
        assert status == 0 or "InputError cannot write" in said
        same(trained(folder, resume=True), calm)
        assert not [path for path in folder.rglob(".*.*")]


# ---------------------------------------------------------------- sweeps


PLAN = Sweep("margin", "mine", {"kind": "linear"}, {"data": [f"dyadic:d={d}" for d in range(2, 8)]}, repeats=6)


def swept(folder, tell=None):
    done = None if tell is None else lambda state: tell(state.done)
    return sweep.sweep(PLAN, folder, engine="inline", progress=done)


def rows(folder):
    names, found = sweep.query(folder, "select * from runs order by key")
    return names, list(found)


def test_sweeps_that_are_killed(tmp_path):
    swept(tmp_path / "calm")
    began = time.perf_counter()
    swept(tmp_path / "once more")  # now that everything is imported: how long children have
    rng, killed, whole = draw("sweep"), 0, time.perf_counter() - began
    for k in range(CRASHES):
        folder = tmp_path / str(k)
        for _ in range(2):
            child = Child(lambda tell, folder=folder: swept(folder, tell))
            child.first_word()
            time.sleep(rng.random() * whole / 2)
            status, said = child.kill()
            killed += status == -signal.SIGKILL
            there = next(iter(sweep.query(folder, "select count(*) from runs")[1]))[0]
            assert there >= Child.last(said)
        state = swept(folder)
        assert state.done == len(PLAN) and not state.failed
        assert rows(folder) == rows(tmp_path / "calm")
    assert killed


def test_sweeps_on_a_full_disk(tmp_path):
    swept(tmp_path / "calm")
    rng = draw("full store")
    for k in range(CRASHES):
        folder = tmp_path / str(k)
        sweep.Store(folder).close()
        status, said = Child(
            lambda tell, folder=folder: swept(folder, tell), rng.choice([20_000, 40_000, 60_000])
        ).wait()
        if status:
            assert "InputError" in said and "cannot be written" in said
        there = next(iter(sweep.query(folder, "select count(*) from runs")[1]))[0]
        assert there >= Child.last(said)
        assert swept(folder).done == len(PLAN)
        assert rows(folder) == rows(tmp_path / "calm")


# ---------------------------------------------------------------- certificates


def test_certificates_that_were_being_written(tmp_path):
    """The file is the one before or the one after, whole, or not there at all."""
    certs = [margins.linear(DATA), margins.f2(DATA)]
    rng, killed = draw("save"), 0

    def work(tell, path=tmp_path / "c.json.gz"):
        for k in range(100_000):
            certs[k % 2].save(path)
            tell(k + 1)

    for _ in range(CRASHES):
        child = Child(work)
        time.sleep(rng.random() * 0.2)
        status, said = child.kill()
        killed += status == -signal.SIGKILL
        if Child.last(said) or (tmp_path / "c.json.gz").exists():
            assert Certificate.load(tmp_path / "c.json.gz").kind in ("linear", "f2")
    assert killed == CRASHES


def test_certificates_on_a_full_disk(tmp_path):
    from widemargin import cli

    path = tmp_path / "c.json"
    margins.linear(DATA).save(path)
    before = path.read_bytes()

    def work(tell):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        tell(cli.main(["margin", "dyadic:d=9", "--kind", "linear", "--save", str(path), "--json"]))

    status, said = Child(work, 200).wait()
    assert status == 0 and Child.last(said) == 2
    assert path.read_bytes() == before and [one.name for one in tmp_path.iterdir()] == ["c.json"]


# ---------------------------------------------------------------- monitors


def record(step):
    return Record(
        step=step, name="step", whole=False, n=4, error=0.25, loss=math.sin(step), margin=math.cos(step),
        margin_mean=math.tan(step), quantiles={}, exact=True, psi=math.sqrt(step), log_loss_sum=-1.0,
        norm=2.0, degree=2, at_minimum=None, dual_entropy=0.1,
    )  # fmt: skip


CONFIG = {"model": "Net", "loss": "ce", "parameters": 3, "homogeneous": None}


def steps(folder):
    """Of the records on disk: without holes, in order."""
    found = monitors.load(folder)["step"].to_pylist()
    assert found == list(range(len(found)))
    return len(found)


def test_monitors_that_are_killed(tmp_path):
    rng, most = draw("monitor"), 0
    for k in range(CRASHES):
        folder = tmp_path / str(k)

        def work(tell, folder=folder):
            one, step = monitors.Store(folder, CONFIG), 0
            write = one.write

            def told(everything=False):
                write(everything)
                tell(one.written + one.added)  # all that had come when it began to write is on disk

            one.write = told
            while True:
                one.append([record(step)])
                step += 1
                time.sleep(0.0005)

        child = Child(work)
        child.first_word()
        time.sleep(rng.random())
        status, said = child.kill()
        assert status == -signal.SIGKILL
        assert steps(folder) >= Child.last(said)
        assert monitors.state(folder) == "killed"
        most = max(most, Child.last(said))
    assert most


def test_a_monitor_on_a_full_disk_keeps_what_fits(tmp_path):
    rng = draw("full records")
    for k in range(CRASHES):
        folder, largest = tmp_path / str(k), rng.choice([20_000, 50_000, 100_000])

        def work(tell, folder=folder):
            one = monitors.Store(folder, CONFIG)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for step in range(3_000):
                    one.append([record(step)])
                    if step % 500 == 499:
                        one.write()
                one.close()
            tell(1)

        status, said = Child(work, largest).wait()
        assert status == 0, said
        kept = steps(folder)
        row = max(path.stat().st_size for path in folder.iterdir()) / kept
        assert 0 < kept < 3_000 and (kept + 600) * row > largest / 2  # not much more would have fitted


def test_a_monitor_goes_on_when_there_is_room_again(tmp_path):
    """What did not fit was kept."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    one = monitors.Store(tmp_path, CONFIG)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, before[1]))
        one.append([record(step) for step in range(900)])
        one.write()
        some = steps(tmp_path)
        assert 0 < some < 900 and "too large" in one.problem
        with pytest.warns(UserWarning, match="records cannot be written"):
            one.append([record(step) for step in range(900, 1000)])
        one.write()
        assert some <= steps(tmp_path) < 1000
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    one.close()
    assert steps(tmp_path) == 1000 and not (tmp_path / "newest.arrow").exists()


def test_a_batch_that_was_half_written_does_not_count(tmp_path):
    """And a monitor that goes on there loses nothing else."""
    one = monitors.Store(tmp_path, CONFIG)
    one.append([record(step) for step in range(10)])
    one.write(everything=True)
    one.next = math.inf
    for step in (10, 11):
        one.append([record(step)])
        one.write()
    assert steps(tmp_path) == 12 and (tmp_path / "newest.arrow").exists()
    path = tmp_path / "newest.arrow"
    path.write_bytes(path.read_bytes()[:-20])
    assert steps(tmp_path) == 11
    one._unlock()
    atexit.unregister(one.close)  # as if it had been killed
    again = monitors.Store(tmp_path, CONFIG, resume=True)
    assert again.last[0] == 10
    again.append([record(step) for step in range(11, 14)])
    again.close()
    assert steps(tmp_path) == 14


def left_behind(folder):
    """A folder as a killed monitor leaves it: records 0 to 9 in one file, 10 and 11 in the other."""
    one = monitors.Store(folder, CONFIG)
    one.append([record(step) for step in range(10)])
    one.write(everything=True)
    one.next = math.inf
    one.append([record(10), record(11)])
    one.write()
    assert steps(folder) == 12 and (folder / "newest.arrow").exists()
    one._unlock()
    atexit.unregister(one.close)


def test_a_monitor_that_goes_on_and_is_killed_too_loses_nothing(tmp_path, monkeypatch):
    """What the one before wrote stays until it is in the new file."""

    def work(tell):
        again = monitors.Store(tmp_path, CONFIG, resume=True)
        tell(12)
        monkeypatch.setattr(monitors, "write_atomically", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        again.append([record(12)])
        again.write()

    left_behind(tmp_path)
    status, said = Child(work).wait()
    assert status == -signal.SIGKILL and Child.last(said) == 12
    assert steps(tmp_path) == 12


def test_a_monitor_that_goes_on_on_a_full_disk_keeps_what_was_there(tmp_path, monkeypatch):
    """A file with fewer records does not take the place of one with more, also where only a few fit."""
    left_behind(tmp_path)
    again = monitors.Store(tmp_path, CONFIG, resume=True)
    whole, full = monitors.write_atomically, True

    def room_for_one(path, content):
        if full and (callable(content) or len(pa.ipc.open_stream(content).read_all()) > 1):
            raise OSError(28, "No space left on device", str(path))
        whole(path, content)

    monkeypatch.setattr(monitors, "write_atomically", room_for_one)
    again.append([record(12)])
    again.write()
    assert "No space" in again.problem and steps(tmp_path) == 12
    full = False
    with pytest.warns(UserWarning, match="records cannot be written"):
        again.append([record(13)])
    again.close()
    assert steps(tmp_path) == 14 and not (tmp_path / "newest.arrow").exists()
