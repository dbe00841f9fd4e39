"""Sweeps whose workers, drivers and nodes are killed end in the same table as those that are left in peace."""

import contextlib
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from widemargin import sweep
from widemargin.sweep import Sweep

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("one_thread")]
RUNS = 300
TOML = """
function = "train"
repeats = 30
pack = 4
[fixed]
data = "parity:d=4,n=12,seed={trial}"
lr = 0.5
steps = 80
[grid]
width = [3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
"""


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The undisturbed table, and the file."""
    folder = tmp_path_factory.mktemp("calm")
    path = folder / "plan.toml"
    path.write_text(TOML)
    state = sweep.sweep(Sweep.load(path), folder / "s", engine="inline")
    assert state.done == RUNS and not state.failed
    return path, sweep.load(folder / "s")


def stored(store):
    try:
        return sweep.load(store, "select count(*) as n from runs")["n"][0]
    except Exception:  # not there yet
        return 0


def until(driver, condition):
    """Wait for a condition; False where the driver has ended before."""
    while not condition():
        if driver.poll() is not None:
            return False
        time.sleep(0.05)
    return True


def below(parent):
    """All processes below one."""
    parents = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, above = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            parents[int(entry)] = int(above)
    found, more = set(), {parent}
    while more := {pid for pid, above in parents.items() if above in more}:
        found |= more
    return found


def alive(pids):
    return {
        pid
        for pid in pids
        if os.path.exists(f"/proc/{pid}") and "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    }


def kill(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def line(pid):
    """A process' command line."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def is_worker(pid):
    return "loky" in line(pid) and "tracker" not in line(pid)


def check_equal(store, table):
    found = sweep.load(store)
    assert found["key"].is_unique and len(found) == RUNS
    assert found.equals(table)  # every column of every run, to the last bit
    log = sweep.load(store, "select key from log")["key"]
    assert log.is_unique and set(log) == set(found["key"])
    assert not len(sweep.load(store, "select * from failures"))


def start(path, store, *more, env=None):
    words = [sys.executable, "-m", "widemargin", "sweep", str(path), "--store", str(store), *more]
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=env)


def two_drivers_die(path, store, *words, env):
    for goal in (20, 60):
        driver = start(path, store, *words, env=env)
        assert until(driver, lambda goal=goal: stored(store) >= goal), driver.communicate()[1]
        driver.kill()
        driver.communicate()
    assert stored(store) < RUNS


def finish(driver):
    error = driver.communicate()[1]
    assert driver.returncode == 0, error
    return error


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc to find the workers")
def test_workers_killed_at_random_and_the_driver_twice(calm, tmp_path):
    path, table = calm
    draw, store, killed = random.Random(0), tmp_path / "s", 0
    for goal in (60, 160):  # a driver's life: workers die on the way, then it does
        driver = start(path, store, "--workers", "2")
        assert until(driver, lambda goal=goal: stored(store) >= goal - 50), driver.communicate()[1]
        kill(draw.choice([pid for pid in sorted(below(driver.pid)) if is_worker(pid)]))
        assert until(driver, lambda goal=goal: stored(store) >= goal), driver.communicate()[1]
        workers = below(driver.pid)
        driver.kill()
        driver.communicate()
        assert stored(store) < RUNS  # it was in the middle
        killed += 1
        for _ in range(200):  # workers whose driver has died end by themselves
            if not alive(workers):
                break
            time.sleep(0.1)
        assert not alive(workers)
    driver = start(path, store, "--workers", "2")
    assert until(driver, lambda: stored(store) >= 200), driver.communicate()[1]
    kill(draw.choice([pid for pid in sorted(below(driver.pid)) if is_worker(pid)]))
    assert "workers died" in finish(driver) and killed == 2
    check_equal(store, table)


# ---------------------------------------------------------------- Ray


@pytest.fixture
def cluster():
    """A head and two nodes that compute, with one core each, on this machine: (address, processes, environment)."""
    pytest.importorskip("ray", reason="Ray is not installed")
    place = tempfile.mkdtemp(prefix="wm", dir="/tmp")  # sockets need a short path
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    address = f"127.0.0.1:{port}"
    program = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--block"]
    program += ["--node-ip-address=127.0.0.1", "--disable-usage-stats", "--object-store-memory=80000000"]
    head = ["--head", "--num-cpus=0", f"--port={port}", "--include-dashboard=false", f"--temp-dir={place}"]
    # A token of this cluster's own: others on the machine neither get in nor change it while the test runs.
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    environment = os.environ | token | {"OMP_NUM_THREADS": "1"}
    nodes = []

    def node(*words):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        nodes.append(subprocess.Popen([*program, *words], start_new_session=True, env=environment, **quiet))

    try:
        node(*head)
        for _ in range(600):
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        for _ in range(2):  # one after the other: two that start at the same moment can take the same socket
            node("--num-cpus=1", f"--address={address}")
            until(nodes[-1], lambda: any("ray::" in line(pid) for pid in below(nodes[-1].pid)))
            assert nodes[-1].poll() is None, "a node of Ray did not start"
        yield address, nodes, environment
    finally:
        everything = {pid for node in nodes for pid in below(node.pid)}
        for one in nodes:
            kill_node(one)
        for pid in everything:
            kill(pid)
        shutil.rmtree(place, ignore_errors=True)


def kill_node(node):
    """The machine is gone: all of its processes at once."""
    for pid in below(node.pid):
        kill(pid)
    node.kill()
    node.wait()


def signal_node(node, number):
    for pid in below(node.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def stopped_at_work(node):
    """Stop a node if it is computing a batch; Ray then calls a process after the function."""
    if not any("ray::timed" in line(pid) for pid in below(node.pid)):
        return False
    signal_node(node, signal.SIGSTOP)
    if any("ray::timed" in line(pid) for pid in below(node.pid)):
        return True
    signal_node(node, signal.SIGCONT)  # it was just done
    return False


def test_a_ray_cluster_loses_a_node_and_drivers(calm, cluster, tmp_path):
    path, table = calm
    address, nodes, env = cluster
    store = tmp_path / "s"
    words = ("--engine", "ray", "--address", address)
    two_drivers_die(path, store, *words, env=env)
    driver = start(path, store, *words, env=env)
    caught = []
    assert until(driver, lambda: caught.extend(node for node in nodes[1:] if stopped_at_work(node)) or caught), (
        driver.communicate()[1]
    )
    for node in caught[1:]:
        signal_node(node, signal.SIGCONT)
    kill_node(caught[0])
    assert "workers died" in finish(driver)
    check_equal(store, table)


def test_ray_on_this_machine_alone(calm, tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed")
    path, table = calm
    driver = start(path, tmp_path / "s", "--engine", "ray", "--workers", "2")
    assert until(driver, lambda: stored(tmp_path / "s") > 0), driver.communicate()[1]
    family = below(driver.pid)
    finish(driver)
    check_equal(tmp_path / "s", table)
    for _ in range(300):
        if not alive(family):
            break
        time.sleep(0.1)
    assert not alive(family)


# ---------------------------------------------------------------- Dask


@pytest.fixture
def scheduler():
    """A Dask scheduler and two workers on this machine: (address, workers, environment)."""
    pytest.importorskip("distributed", reason="Dask is not installed")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{one.getsockname()[1]}"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    processes = []

    def begin(kind, *words):
        program = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *words]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        processes.append(subprocess.Popen(program, start_new_session=True, env=environment, **quiet))

    place = tempfile.mkdtemp(prefix="wm", dir="/tmp")
    try:
        begin("scheduler", "--host", address, "--no-dashboard")
        for _ in range(2):
            begin("worker", address, "--nthreads", "1", "--no-dashboard", "--local-directory", place)
        yield address, processes, environment
    finally:
        for one in processes:
            kill_node(one)
        shutil.rmtree(place, ignore_errors=True)


def test_a_dask_cluster_loses_a_node_and_drivers(calm, scheduler, tmp_path):
    path, table = calm
    address, processes, env = scheduler
    store = tmp_path / "s"
    words = ("--engine", "dask", "--address", address)
    two_drivers_die(path, store, *words, env=env)
    driver = start(path, store, *words, env=env)
    assert until(driver, lambda: stored(store) >= 120), driver.communicate()[1]
    kill_node(processes[1])
    finish(driver)
    check_equal(store, table)


def test_a_dask_cluster_loses_its_scheduler(calm, scheduler, tmp_path):
    path, _ = calm
    address, processes, env = scheduler
    store = tmp_path / "s"
    driver = start(path, store, "--engine", "dask", "--address", address, env=env)
    assert until(driver, lambda: stored(store) >= 40), driver.communicate()[1]
    kill_node(processes[0])
    error = driver.communicate()[1]
    assert driver.returncode == 2 and "the Dask scheduler is gone" in error and "Traceback" not in error
    assert 40 <= stored(store) < RUNS


def test_dask_on_this_machine_alone(calm, tmp_path):
    pytest.importorskip("distributed", reason="Dask is not installed")
    path, table = calm
    store = tmp_path / "s"
    driver = start(path, store, "--engine", "dask", "--workers", "2")
    assert until(driver, lambda: stored(store) >= 60), driver.communicate()[1]
    family = below(driver.pid)
    kill(next(pid for pid in sorted(family) if "spawn_main" in line(pid)))
    finish(driver)
    check_equal(store, table)
    for _ in range(300):
        if not alive(family):
            break
        time.sleep(0.1)
    assert not alive(family)


def test_ctrl_c_ends_dask_without_a_word_of_its_workers(calm, tmp_path):
    pytest.importorskip("distributed", reason="Dask is not installed")
    path, _ = calm
    store = tmp_path / "s"
    words = [sys.executable, "-m", "widemargin", "sweep", str(path), "--store", str(store), "--engine", "dask"]
    driver = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert until(driver, lambda: stored(store) >= 20), driver.communicate()[1]
    os.killpg(driver.pid, signal.SIGINT)  # as a terminal does: to the workers too
    error = driver.communicate()[1]
    assert driver.returncode == 130 and "Traceback" not in error and 20 <= stored(store) < RUNS
