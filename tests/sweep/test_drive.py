"""The driver: what is stored, what is tried again, and that engines agree to the last bit."""

import concurrent.futures as cf
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

import widemargin
from checks import repeated
from widemargin import sweep
from widemargin.sweep import Store, Sweep
from widemargin.sweep import drive as driving
from widemargin.sweep import store as storing
from widemargin.sweep.engines import Inline, Local, make_engine
from widemargin.types import InputError

pytestmark = pytest.mark.usefixtures("one_thread")

MINE = """
import os, time

def f(x, trial, bad=-1):
    if x == bad:
        raise ValueError(f"{x} is bad")
    return {"y": x + trial / 3}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def small(folder, **more):
    return Sweep("mine:f", folder=folder, **({"grid": {"x": [1, 2, 3]}, "repeats": 4, "pack": 2} | more))


def test_running_again_continues(folder):
    first = sweep.sweep(small(folder), folder / "s", engine="inline")
    assert (first.done, first.before, first.failed) == (12, 0, 0) and first.busy > 0
    more = sweep.sweep(small(folder, grid={"x": [1, 2, 3, 4]}), folder / "s", engine="inline")
    assert (more.done, more.before) == (16, 12)
    again = sweep.sweep(small(folder, grid={"x": [1, 2, 3, 4]}), folder / "s", engine="inline")
    assert (again.done, again.before, again.busy) == (16, 16, 0)
    found = sweep.load(folder / "s")
    assert len(found) == 16 and (found["y"] == found["x"] + found["trial"] / 3).all()
    assert len(sweep.load(folder / "s", "select * from sweeps")) == 2


def test_a_failed_run_is_reported_not_stored_and_tried_again(folder):
    plan = small(folder, fixed={"bad": 2}, pack=5)
    state = sweep.sweep(plan, folder / "s", engine="inline")
    assert (state.done, state.failed) == (8, 4)
    assert state.errors == ["bad=2, x=2, trial=0 and 3 more runs: ValueError: 2 is bad"]  # equal ones once
    failures = sweep.load(folder / "s", "select * from failures")
    assert len(failures) == 4 and "Traceback" in failures["traceback"][0] and set(failures["trial"]) == set(range(4))
    assert set(sweep.load(folder / "s")["x"]) == {1, 3}
    assert sweep.sweep(plan, folder / "s", engine="inline").failed == 4
    assert sweep.load(folder / "s", "select count(*) as n from log")["n"][0] == 8


def test_keep_of_an_unknown_result_stops_the_sweep(folder):
    with pytest.raises(InputError, match=r"there is no result 'z' .* there are y"):
        sweep.sweep(small(folder, keep=["y", "z"]), folder / "s", engine="inline")
    with pytest.raises(InputError, match="there is no result 'z'"):
        sweep.dry_run(small(folder, keep=["z"]))
    assert len(sweep.load(folder / "s")) == 0


def test_a_store_whose_runs_lack_what_is_asked_for(folder):
    (folder / "mine.py").write_text("def f(x):\n    return {'y': x, 'z': 2 * x}\n")
    sweep.sweep(small(folder, keep=["y"]), folder / "s", engine="inline")
    with pytest.raises(InputError, match="has runs of this sweep without z; keep what was kept before"):
        sweep.sweep(small(folder, keep=["y", "z"]), folder / "s", engine="inline")
    assert sweep.sweep(small(folder, keep=["y"]), folder / "s", engine="inline").before == 12


def test_ctrl_c_keeps_what_is_done(folder):
    def progress(state):
        if state.done >= 4 and not state.interrupted:
            raise KeyboardInterrupt

    state = sweep.sweep(small(folder), folder / "s", engine="inline", progress=progress)
    assert state.interrupted and state.done == 4 == len(sweep.load(folder / "s"))
    state = sweep.sweep(small(folder), folder / "s", engine="inline")
    assert not state.interrupted and (state.done, state.before) == (12, 4)


def test_ctrl_c_keeps_what_has_come_back_and_was_not_looked_at(folder):
    class Pressed(Inline):
        ahead, count = 5, 0

        def submit(self, function, work):
            self.count += 1
            if self.count == 3:
                raise KeyboardInterrupt
            return super().submit(function, work)

    state = sweep.sweep(small(folder), folder / "s", engine=Pressed())
    assert state.interrupted and state.done == len(sweep.load(folder / "s")) == 4


def busy(store):
    """A connection that writes to a store and does not let go."""
    other = sqlite3.connect(store / "results.sqlite", isolation_level=None, check_same_thread=False)
    other.execute("begin immediate")
    return other


def test_ctrl_c_does_not_wait_for_another_writer(folder):
    """What has come back and cannot be stored is said; the same command goes on from there."""

    class Pressed(Inline):
        ahead, count = 5, 0

        def submit(self, function, work):
            self.count += 1
            if self.count == 3:
                self.other = busy(folder / "s")
                raise KeyboardInterrupt
            return super().submit(function, work)

    engine = Pressed()
    began = time.monotonic()
    state = sweep.sweep(small(folder), folder / "s", engine=engine)
    assert state.interrupted and time.monotonic() - began < storing.WAIT / 2
    assert len(state.errors) == 1 and "is being written by another process" in state.errors[0]
    engine.other.close()
    assert state.done == len(sweep.load(folder / "s")) == 0
    assert sweep.sweep(small(folder), folder / "s", engine="inline").done == 12


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a clock that rings")
def test_ctrl_c_is_seen_while_a_store_waits(folder):
    store = Store(folder / "s")
    other, came = busy(folder / "s"), []

    def ring(*_):
        came.append(time.monotonic())
        other.close()
        raise KeyboardInterrupt

    before, began = signal.signal(signal.SIGALRM, ring), time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            store.note("mine", "{}", "1")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert came[0] - began < storing.WAIT / 2
    store.note("mine", "{}", "1")
    store.close()


def test_ctrl_c_when_a_transaction_has_just_begun(folder, monkeypatch):
    """It is not left open: nothing more could be stored."""
    store, begin = Store(folder / "s"), storing.begin_alone

    def pressed(*given):
        begin(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(storing, "begin_alone", pressed)
        with pytest.raises(KeyboardInterrupt):
            store.note("mine", "{}", "1")
    store.note("mine", "{}", "1")
    store.close()


def test_ctrl_c_in_the_middle_of_training_stores_no_half_run(tmp_path):
    fixed = {"data": "parity:d=4,n=8,seed={trial}", "width": 8, "lr": 1e-6, "steps": 10**9}

    def press() -> None:
        while not (tmp_path / "results.sqlite").exists():  # before that, values are being checked
            time.sleep(0.05)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    state = sweep.sweep(Sweep("train", fixed=fixed, repeats=2), tmp_path, engine="inline")
    assert state.interrupted and len(sweep.load(tmp_path)) == 0


class Dying(Inline):
    """An engine whose workers die as a script says: at its k-th submission of anything."""

    ahead, together, certain, workers = 3, True, False, 3

    def __init__(self, deaths=(), poison=None):
        self.deaths, self.poison = set(deaths), poison
        self.count = self.renewed = 0
        self.most = 0

    def submit(self, function, work):
        self.count += 1
        if self.count in self.deaths or any((run.params.get("x"), run.trial) == self.poison for run in work.runs):
            future = cf.Future()
            future.set_exception(cf.CancelledError())
            return future
        return super().submit(function, work)

    def lost(self, error):
        return isinstance(error, cf.CancelledError)

    def renew(self):
        self.renewed += 1


@pytest.mark.parametrize("together", [True, False])
def test_batches_of_dead_workers_are_handed_out_again(folder, together):
    engine = Dying(deaths={1, 2, 5, 9, 10})
    engine.together = together
    state = sweep.sweep(small(folder), folder / "s", engine=engine)
    assert state.done == 12 and state.failed == 0 and state.lost >= 5
    sweep.sweep(small(folder), folder / "calm", engine="inline")
    assert sweep.load(folder / "s").equals(sweep.load(folder / "calm"))


def test_a_run_that_kills_its_worker_costs_no_other_run(folder):
    state = sweep.sweep(small(folder), folder / "s", engine=Dying(poison=(2, 1)))
    assert (state.done, state.failed) == (11, 1)
    assert state.errors[0].startswith("x=2, trial=1: the worker died 4 times on this run")
    table = sweep.load(folder / "s")
    assert (2, 0) in set(zip(table["x"], table["trial"])) and (2, 1) not in set(zip(table["x"], table["trial"]))
    train = Sweep("train", fixed={"data": "parity:d=2,n=4", "steps": 3, "width": 3}, repeats=6, pack=3)
    state = sweep.sweep(train, folder / "s", engine=Dying(poison=(None, 1)))  # trained together, given up together
    assert (state.done, state.failed) == (3, 3) and "on this batch of 3 runs; try a smaller pack" in state.errors[0]


def test_a_batch_that_is_split_is_claimed_until_its_last_part_is_done(folder, monkeypatch):
    said = []
    release, add = Store.release, Store.add
    monkeypatch.setattr(Store, "release", lambda store, key: said.append("released") or release(store, key))
    monkeypatch.setattr(Store, "add", lambda store, *args: said.append("stored") or add(store, *args))
    plan = small(folder, grid={"x": [2]}, pack=4)
    state = sweep.sweep(plan, folder / "s", engine=Dying(poison=(2, 1)))
    assert (state.done, state.failed) == (3, 1) and said.count("stored") == 3 and said.count("released") == 1


def test_a_worker_that_dies_while_a_batch_is_handed_out(folder):
    class Broken(Dying):
        """A pool that breaks with work in it, and takes no more until it is made anew."""

        broken = False

        def submit(self, function, work):
            self.count += 1
            assert self.count < 100, "the driver asks again and again"
            if self.count == 2:
                self.broken = True
            if self.broken:
                raise cf.CancelledError
            future = cf.Future()
            if self.count == 1:
                future.set_exception(cf.CancelledError())  # lost with the pool
            else:
                future.set_result(function(work))
            return future

        def renew(self):
            self.broken = False

    state = sweep.sweep(small(folder), folder / "s", engine=Broken())
    assert (state.done, state.failed) == (12, 0)


def test_equal_draws_are_one_row_and_the_sweep_is_complete(folder):
    plan = small(folder, grid={}, random={"x": {"low": 1, "high": 3, "integer": True}}, samples=20, repeats=1)
    state = sweep.sweep(plan, folder / "s", engine="inline")
    assert (state.done, state.total, len(sweep.load(folder / "s"))) == (20, 20, 3)
    assert sweep.dry_run(plan, folder / "s").batches == 0
    state = sweep.sweep(plan, folder / "s", engine="inline")
    assert (state.done, state.before) == (20, 20)


def test_runs_that_another_driver_has_stored_meanwhile_are_done(folder):
    class Slow(Inline):
        def submit(self, function, work):
            future = super().submit(function, work)
            sweep.sweep(small(folder, pack=3), folder / "s", engine="inline")  # other batches of the same runs
            return future

    state = sweep.sweep(small(folder, pack=12), folder / "s", engine=Slow())
    assert (state.done, state.before, state.failed) == (12, 12, 0)
    assert len(sweep.load(folder / "s")) == len(sweep.load(folder / "s", "select * from log")) == 12


def test_no_more_processes_than_batches(folder, monkeypatch):
    asked = []

    class Noted(Inline):
        pass

    def make(name, workers=None, address=None, gpus=0.0):
        asked.append((name, workers))
        return Noted() if len(asked) > 1 else make_engine(name, workers, address, gpus)

    monkeypatch.setattr(sweep.drive, "make_engine", make)
    sweep.sweep(small(folder, pack=6), folder / "s", workers=50)
    assert asked == [("local", 50), ("local", 2)]
    monkeypatch.undo()
    for workers in (0, -3, "a"):
        with pytest.raises(InputError, match="workers must be"):
            sweep.dry_run(small(folder), workers=workers)


def test_what_an_engine_cannot_explain_is_raised(folder):
    class Broken(Inline):
        def submit(self, function, work):
            raise ZeroDivisionError("no")

    with pytest.raises(ZeroDivisionError):
        sweep.sweep(small(folder), folder / "s", engine=Broken())


def test_devices_are_shared_and_leave_no_trace(folder):
    (folder / "mine.py").write_text("def f(x, device='none'):\n    return {'used': device}\n")
    plan = small(folder, repeats=1, pack=1)
    sweep.sweep(plan, folder / "s", engine="inline", devices=["cuda:0", "cuda:1"])
    assert "device" not in sweep.load(folder / "s").columns  # a row is the same wherever it was computed

    seen = []

    class Counting(Dying):
        def submit(self, function, work):
            seen.append(work.device)
            return super().submit(function, work)

    sweep.sweep(plan, folder / "s2", engine=Counting(), devices=["cuda:0", "cuda:1"])
    assert sorted(seen) == ["cuda:0", "cuda:0", "cuda:1"]
    with pytest.raises(InputError, match="devices cannot be chosen too"):
        sweep.sweep(small(folder, fixed={"device": "cpu"}), folder / "s", devices=["cuda:0"])
    train = Sweep("train", fixed={"data": "parity:d=2,n=4", "steps": 3})
    for devices, words in ((["abacus"], "device must be"), (["cuda:99"], "torch finds")):
        with pytest.raises(InputError, match=words):
            sweep.sweep(train, folder / "s3", devices=devices)
    with pytest.raises(InputError, match="torch finds"):
        sweep.sweep(Sweep("train", fixed={**train.fixed, "device": "cuda:99"}), folder / "s3")
    assert not (folder / "s3").exists()
    with pytest.raises(InputError, match="no parameter device"):
        sweep.sweep(Sweep("bound", fixed={"data": "parity:d=2,n=4"}), folder / "s", devices=["cuda:0"])


def test_dry_run_counts_and_stores_nothing(folder, monkeypatch):
    monkeypatch.setattr(driving, "ANSWER", 60.0)  # a machine at work elsewhere has time for three
    plan = small(folder)
    found = sweep.dry_run(plan, folder / "s", workers=2)
    assert (found.runs, found.done, found.batches, found.sample, found.workers) == (12, 0, 6, 3, 2)
    assert found.seconds == pytest.approx(found.seconds_per_batch * 3) and not (folder / "s").exists()
    sweep.sweep(small(folder, grid={"x": [1]}), folder / "s", engine="inline")
    found = sweep.dry_run(plan, folder / "s")
    assert (found.runs, found.done, found.batches) == (12, 4, 4) and len(sweep.load(folder / "s")) == 4
    sweep.sweep(plan, folder / "s", engine="inline")
    assert sweep.dry_run(plan, folder / "s").seconds == 0
    with pytest.raises(InputError, match=r"a run fails \(bad=2, x=2, trial=0\): ValueError: 2 is bad"):
        sweep.dry_run(small(folder, fixed={"bad": 2}, grid={"x": [2]}))


def test_failures_are_counted_by_kind(folder, monkeypatch):
    (folder / "mine.py").write_text("def f(x):\n    raise ValueError(f'kind {x % 3}')\n")
    state = sweep.sweep(small(folder, grid={"x": list(range(5))}, repeats=1), folder / "s", engine="inline")
    said = ["x=0, trial=0 and 1 more run: ValueError: kind 0", "x=1, trial=0 and 1 more run: ValueError: kind 1"]
    assert state.failed == 5 and state.errors == [*said, "x=2, trial=0: ValueError: kind 2"]
    monkeypatch.setattr("widemargin.sweep.drive.SHOWN", 2)
    state = sweep.sweep(small(folder, grid={"x": list(range(5))}, repeats=1), folder / "s", engine="inline")
    assert state.failed == 5 and state.errors == said  # those that are told are still counted


@pytest.mark.slow
def test_a_dry_run_does_not_wait_for_a_long_batch(folder):
    (folder / "mine.py").write_text("import time\n\ndef f(x):\n    time.sleep(x)\n    return {'y': x}\n")
    found = sweep.dry_run(small(folder, grid={"x": [60]}, repeats=3, pack=1), workers=1)
    assert found.more and found.sample == 0 and found.batches == 3
    assert 0 < found.seconds_per_batch < 60 and found.seconds == pytest.approx(3 * found.seconds_per_batch)
    # Training says how far it is: the time of all of it.
    plan = Sweep("train", fixed={"data": "parity:d=2,n=4", "steps": 10**8, "lr": 0.1, "width": 4}, pack=1)
    found = sweep.dry_run(plan, workers=1)
    assert not found.more and found.sample == 1 and found.seconds > 60
    # A training that an event may end earlier does not.
    found = sweep.dry_run(Sweep("train", fixed={**plan.fixed, "until": "risk=1e-300"}, pack=1), workers=1)
    assert found.more and found.seconds < 60


def test_the_clock_of_the_caller_goes_on_after_a_dry_run(folder):
    rang = []
    before = signal.signal(signal.SIGALRM, lambda *_: rang.append(True))
    signal.setitimer(signal.ITIMER_REAL, 1000)
    try:
        sweep.dry_run(small(folder), workers=1)
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000 and not rang
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_store_of_another_version_or_an_unknown_engine(folder, monkeypatch):
    plan = small(folder)
    for keys, words in (
        ({"engine": "slurm"}, "unknown engine 'slurm'; choose local, ray or dask"),
        ({"workers": 0.5}, "workers must be"),
        ({"address": "x:1"}, "an address is that of a cluster"),
    ):
        with pytest.raises(InputError, match=words):
            sweep.sweep(plan, folder / "s", **keys)
    assert not (folder / "s").exists()
    sweep.sweep(plan, folder / "s", engine="inline")
    monkeypatch.setattr(widemargin, "__version__", "9.9.9")
    with pytest.raises(InputError, match="choose another --store"):
        sweep.sweep(plan, folder / "s", engine="inline")
    with pytest.raises(InputError, match="choose another --store"):
        sweep.dry_run(plan, folder / "s")
    assert len(sweep.load(folder / "s")) == 12


def test_a_full_disk_stops_the_sweep_and_room_lets_it_go_on(folder, monkeypatch):
    plan = small(folder, grid={"x": list(range(200))}, pack=10)
    begin = Store._begin

    def short(self):
        begin(self)
        self.db.execute("pragma max_page_count = 22")

    monkeypatch.setattr(Store, "_begin", short)
    with pytest.raises(InputError, match="make room and run the same command again"):
        sweep.sweep(plan, folder / "s", engine="inline")
    kept = len(sweep.load(folder / "s"))
    assert 0 < kept < 800 and kept % 10 == 0
    monkeypatch.setattr(Store, "_begin", begin)
    state = sweep.sweep(plan, folder / "s", engine="inline")
    assert (state.done, state.before) == (800, kept) and len(sweep.load(folder / "s")) == 800


def test_progress_says_rate_and_time_left():
    state = driving.Progress(total=100, done=40, before=20, failed=10, seconds=10.0)
    assert state.rate == 2.0 and state.left == 25.0
    assert driving.Progress(total=100).left == float("inf") and driving.Progress(total=5, done=5).left == 0


@pytest.mark.slow
@repeated("workers", [1, 2], 1)
def test_processes_give_the_same_table_as_this_one_and_none_stays(tmp_path, workers):
    fixed = {"data": "clusters:n=8,d=2,k=1,seed={trial}", "steps": 40, "lr": 0.1, "certify": True}
    plan = Sweep("train", fixed=fixed, grid={"width": [5, 40], "law_scale": [0.1, 1.0]}, repeats=5, pack=4)
    tables = []
    for name, engine in (("inline", Inline()), ("local", Local(workers))):
        state = sweep.sweep(plan, tmp_path / name, engine=engine)
        assert state.done == 20 and not state.failed, state.errors
        tables.append(sweep.load(tmp_path / name))
    assert tables[0].equals(tables[1])
    assert tables[0]["margin_M2"].nunique() >= 15
    assert not children(os.getpid(), "loky")


def children(parent, word):
    """Processes below this one with a word in their command line."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    state, above = file.read().rpartition(")")[2].split()[:2]
                with open(f"/proc/{entry}/cmdline") as file:
                    line = file.read().replace("\0", " ")
            except OSError:
                continue
            if int(above) == parent and word in line and "tracker" not in line and state != "Z":
                found.append(int(entry))
    return found


TWO = """
import sys
from widemargin import sweep
plan = sweep.Sweep.load(sys.argv[1], trust=True)
print("ready", flush=True)
input()
state = sweep.sweep(plan, sys.argv[2], engine="inline")
print(state.done, state.done - state.before, state.failed)
"""


def test_two_drivers_share_a_store(folder, tmp_path_factory, monkeypatch):
    (folder / "mine.py").write_text(
        "import os, time\ndef f(x, trial):\n    open(f'begun-{os.getpid()}', 'w').close()\n"
        "    while os.path.exists('both') and len([name for name in os.listdir() if name[:6] == 'begun-']) < 2:\n"
        "        time.sleep(0.02)\n"  # until both have begun, however slow the machine is
        "    with open('done.txt', 'a') as file:\n        file.write(f'run {x} {trial}\\n')\n    return {'y': x / 7 + trial}\n"
    )
    (folder / "both").touch()
    toml = folder / "a.toml"
    toml.write_text('function = "mine:f"\nrepeats = 5\npack = 2\n[grid]\nx = [1, 2, 3, 4, 5, 6, 7, 8]\n')
    drivers = [
        subprocess.Popen(
            [sys.executable, "-c", TWO, str(toml), str(folder / "s")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder,
        )
        for _ in range(2)
    ]  # fmt: skip
    for driver in drivers:
        assert driver.stdout.readline() == "ready\n"
    for driver in drivers:
        driver.stdin.write("\n")
        driver.stdin.flush()
    outs = [driver.communicate()[0].split() for driver in drivers]
    assert [int(out[0]) for out in outs] == [40, 40] and sum(int(out[1]) for out in outs) == 40
    assert min(int(out[1]) for out in outs) > 0  # both have worked
    lines = (folder / "done.txt").read_text().splitlines()
    assert len(lines) == len(set(lines)) == 40  # and no run was computed twice
    monkeypatch.chdir(tmp_path_factory.mktemp("calm"))  # where the function writes its lines
    sweep.sweep(Sweep.load(toml, trust=True), folder / "calm", engine="inline")
    assert sweep.load(folder / "s").equals(sweep.load(folder / "calm"))


def test_ray_is_missing_or_out_of_reach(monkeypatch):
    pytest.importorskip("ray", reason="Ray is not installed")
    with pytest.raises(InputError, match=r"no Ray cluster answers at 127\.0\.0\.1:1: .*; start one"):
        make_engine("ray", address="127.0.0.1:1")
    with pytest.raises(InputError, match="no Ray cluster answers at nonsense:port"):
        make_engine("ray", address="nonsense:port")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match="pip install"):
        make_engine("ray")


def test_dask_is_missing_or_out_of_reach(monkeypatch):
    pytest.importorskip("distributed", reason="Dask is not installed")
    with pytest.raises(InputError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:1: .*; start one"):
        make_engine("dask", address="tcp://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match="pip install"):
        make_engine("dask")


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc to see what a process blocks")
def test_workers_never_see_ctrl_c():
    """Not even while they import, when Python would print a traceback."""
    engine = Local(1)
    try:
        engine.submit(abs, -3)
        for pid in engine._pool._processes:
            with open(f"/proc/{pid}/status") as file:
                (blocked,) = [int(line.split()[1], 16) for line in file if line.startswith("SigBlk")]
            assert blocked >> (signal.SIGINT - 1) & 1
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])  # it is the driver's
    finally:
        engine.close()


def test_what_is_no_plan_no_engine_and_no_store_is_refused(folder):
    plan = small(folder)
    for bad in ("x", None, 3):
        for function in (sweep.sweep, sweep.dry_run):
            with pytest.raises(InputError, match="a plan is a Sweep, not"):
                function(bad, folder / "s")
    for bad in (3, None, Local, ["local"], object()):
        with pytest.raises(InputError, match="unknown engine"):
            sweep.sweep(plan, folder / "s", engine=bad)
    assert not (folder / "s").exists()
    for bad in (3, b"s", "s\0", ["s"]):
        for function in (
            lambda store: sweep.sweep(plan, store, engine="inline"),
            lambda store: sweep.dry_run(plan, store),
            lambda store: sweep.query(store, "select 1"),
            sweep.load,
            Store,
        ):
            with pytest.raises(InputError, match="a store is the path of a folder"):
                function(bad)


def test_workers_that_cannot_start_are_said_in_a_sentence(folder, monkeypatch):
    """As where files cannot be opened any more; loky stumbles over that."""
    from joblib.externals.loky.backend import popen_loky_posix as loky

    def pipe():
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(loky.Popen, "_launch", lambda *_: stumble())

    def stumble():
        try:
            pipe()
        finally:
            raise UnboundLocalError("child_r")

    with pytest.raises(InputError, match="no worker can be started: Too many open files; allow more"):
        sweep.sweep(small(folder), folder / "s", workers=1)
    monkeypatch.setattr(loky.Popen, "_launch", lambda *_: pipe())
    with pytest.raises(InputError, match="no worker can be started: Too many open files; allow more"):
        sweep.sweep(small(folder), folder / "s", workers=1)
