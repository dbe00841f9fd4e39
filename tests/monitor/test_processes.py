"""Monitors among threads, copies of the process and interrupts: no record is lost, none is there twice, nobody waits for ever."""

import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import pytest
import torch
from test_store import CONFIG, record, wait_for

from widemargin.monitor import MarginMonitor, load, store
from widemargin.monitor import monitor as monitor_file
from widemargin.monitor.store import Store
from widemargin.monitor.turns import Turn, in_turn

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def stepped(monitor, times=1):
    for _ in range(times):
        monitor.step(logits=monitor.model(torch.eye(2)), targets=torch.tensor([0, 1]))


def linear():
    return torch.nn.Linear(2, 2, bias=False)


def run(code, *words):
    whole = "import os, sys, torch\nfrom widemargin.monitor import MarginMonitor\n" + code
    return subprocess.run([sys.executable, "-c", whole, *map(str, words)], capture_output=True, text=True)


def is_free(turn):
    """For another thread than this one."""
    free = []
    other = threading.Thread(target=lambda: free.append(turn.lock().acquire(blocking=False)))
    other.start()
    other.join()
    return free == [True]


# ---------------------------------------------------------------- interrupts


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a clock that rings")
def test_ctrl_c_leaves_no_turn_taken():
    """Else every other thread would wait for ever, the one that closes a dropped monitor included."""

    class Counter:
        def __init__(self):
            self._turn, self.count = Turn(), 0

        @in_turn
        def add(self):
            self.count += 1

    def ring(*_):
        raise KeyboardInterrupt

    counter, before = Counter(), signal.signal(signal.SIGALRM, ring)
    try:
        for _ in range(300):
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 1e-4)
                while True:
                    counter.add()
            assert is_free(counter._turn)
            counter._turn = Turn()  # a thread that has ended has the old one
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", ["reduced", "read_numbers", "from_rows", "row"])
def test_ctrl_c_while_records_are_made_loses_no_step(tmp_path, monkeypatch, name):
    monitor = MarginMonitor(linear(), ["weight"], out=tmp_path / "run")
    stepped(monitor, 5)
    with monkeypatch.context() as patch:

        def pressed(*_):
            raise KeyboardInterrupt

        patch.setattr(monitor_file, name, pressed)
        with pytest.raises(KeyboardInterrupt):
            monitor.flush()
    stepped(monitor, 2)
    monitor.close()
    assert [one.step for one in monitor.records] == list(range(1, 8))
    assert load(tmp_path / "run")["step"].to_pylist() == list(range(1, 8))


def test_a_signal_whose_handler_closes(tmp_path, monkeypatch):
    """It may come while the thread that writes is being made."""
    one = Store(tmp_path, CONFIG)
    monkeypatch.setattr(store.threading.Thread, "start", lambda self: one.close())
    one.append([record(1)])
    assert load(tmp_path)["step"].to_pylist() == [1] and store.state(tmp_path) == "ended"


# ---------------------------------------------------------------- copies of the process


@pytest.mark.slow
@needs_fork
def test_a_copy_of_the_process_that_ends_tells_loggers_nothing():
    done = run(
        "def tell(numbers, step): os.write(1, b'%d ' % step)\n"
        "model = torch.nn.Linear(2, 2, bias=False); monitor = MarginMonitor(model, ['weight'], log=tell)\n"
        "for _ in range(3): monitor.step(logits=model(torch.eye(2)), targets=torch.tensor([0, 1]))\n"
        "if os.fork() == 0: sys.exit(0)\n"
        "os.wait()"
    )
    assert (done.returncode, done.stdout) == (0, "1 2 3 ")


@needs_fork
def test_a_copy_that_outlives_its_process_keeps_nobody_out(tmp_path):
    """Workers of a loader may be at work for a while after the process that trains was killed."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads, which the copies do not use
        training = os.fork()
    if training == 0:
        Store(tmp_path, CONFIG)
        os.write(write, b"%9d" % (os.fork() or os.getpid()))
        time.sleep(1e6)
    pids = {int(os.read(read, 9)), int(os.read(read, 9))}
    copy = (pids - {training}).pop()
    try:
        assert store.state(tmp_path) == "running"
        os.kill(training, signal.SIGKILL)
        os.waitpid(training, 0)
        assert store.state(tmp_path) == "killed"
        Store(tmp_path, CONFIG, resume=True).close()
    finally:
        os.kill(copy, signal.SIGKILL)
        os.close(read)
        os.close(write)


@needs_fork
def test_the_process_itself_keeps_its_lock_when_it_is_copied(tmp_path):
    one = Store(tmp_path, CONFIG)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if (copy := os.fork()) == 0:
            os._exit(0)
    os.waitpid(copy, 0)
    assert store.state(tmp_path) == "running"
    one.close()


# ---------------------------------------------------------------- threads


def test_a_thread_that_cannot_start_is_tried_again(tmp_path, monkeypatch):
    one = Store(tmp_path, CONFIG)
    with monkeypatch.context() as patch:

        def no_room(_):
            raise RuntimeError("can't start new thread")

        patch.setattr(store.threading.Thread, "start", no_room)
        one.append([record(1)])
        assert one.writer is not None and not one.writer.is_alive()
    one.append([record(2)])
    assert one.writer.is_alive()
    wait_for(lambda: len(load(tmp_path)) == 2)  # before anybody has closed it
    assert load(tmp_path)["step"].to_pylist() == [1, 2]
    one.close()


# ---------------------------------------------------------------- the end, and after it


def test_records_after_the_end_take_nothing_from_who_went_on(tmp_path):
    model = linear()
    first = MarginMonitor(model, ["weight"], out=tmp_path / "run")
    stepped(first, 2)
    first.close()
    stepped(first)
    assert len(first.records) == 3 and len(load(tmp_path / "run")) == 3  # nobody else is there
    second = MarginMonitor(model, ["weight"], out=tmp_path / "run", resume=True)
    stepped(second, 4)
    second.flush()
    second._store.write(everything=True)
    stepped(first)
    with pytest.warns(UserWarning, match="another monitor is writing"):
        first.flush()
    second.close()
    with pytest.warns(UserWarning, match="the last 1 records are lost: another monitor has gone on"):
        first.close()
    assert load(tmp_path / "run")["step"].to_pylist() == list(range(1, 8))


def test_a_newest_file_that_was_removed_takes_nothing_along(tmp_path):
    """As `damaged` advises to do."""
    one = Store(tmp_path, CONFIG)
    one._soon = lambda: None
    one.append([record(step) for step in range(10)])
    one.write(everything=True)
    one.next = float("inf")
    one.append([record(10)])
    one.write()
    (tmp_path / "newest.arrow").unlink()
    one.append([record(11)])
    one.write()
    assert not one.problem and load(tmp_path)["step"].to_pylist() == [*range(10), 11]
    one.append([record(12)])
    one.close()
    assert load(tmp_path)["step"].to_pylist() == [*range(10), 11, 12]


@pytest.mark.filterwarnings("error")
def test_a_warning_that_is_an_error_lets_the_folder_go(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    one = Store(tmp_path, CONFIG)
    one._soon = lambda: None
    one.append([record(1)])
    monkeypatch.setattr(store, "write_atomically", full)
    with pytest.raises(UserWarning, match="the last 1 records are lost"):
        one.close()
    assert store.state(tmp_path) == "ended"


@pytest.mark.slow
def test_a_monitor_that_fails_at_the_end_takes_no_other_along(tmp_path):
    """Whichever is closed first: its warning is an error here."""
    done = run(
        "model = torch.nn.Linear(2, 2, bias=False)\n"
        "bad = [MarginMonitor(model, ['weight']) for _ in range(3)]\n"
        "good = [MarginMonitor(model, ['weight'], out=out) for out in sys.argv[1:]]\n"
        "logits = model(torch.eye(2))\n"
        "for one in bad: one.step(logits=logits * float('nan'), targets=torch.tensor([0, 1]))\n"
        "for one in good: one.step(logits=logits, targets=torch.tensor([0, 1]))\n"
        "import warnings; warnings.simplefilter('error')",
        *(tmp_path / str(k) for k in range(3)),
    )
    assert [len(load(tmp_path / str(k))) for k in range(3)] == [1, 1, 1]
    assert "step 1: 2 examples have NaN" in done.stderr
