"""`widemargin sweep` and `widemargin query`."""

import contextlib
import csv
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from test_cli import refused, run
from widemargin import sweep

pytestmark = pytest.mark.usefixtures("one_thread")

MINE = """
import time

def f(x, trial=0, bad=-1, pause=0.0):
    time.sleep(pause)
    if x == bad:
        raise ValueError(f"{x} is [bad]")
    return {"y": x + trial / 4, "far": float("inf")}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a function, run in this process for speed; the processes of the engine have tests of their own."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "a.toml").write_text('function = "mine:f"\nrepeats = 2\n[grid]\nx = [1, 2, 3]\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def inline(monkeypatch):
    from widemargin.sweep import drive, engines

    monkeypatch.setattr(drive, "make_engine", lambda *_: engines.Inline())


def test_a_sweep_and_queries(folder, inline):
    status, out, err = run("sweep", "a.toml", "--json")
    found = json.loads(out)
    assert status == 0 and (found["done"], found["total"], found["failed"]) == (6, 6, 0)
    assert found["store"] == "a_results" and "6 of 6 runs are in a_results, 6 of them new" in err
    status, out, err = run("sweep", "a.toml", "--store", "a_results")
    assert status == 0 and out == "" and "0 of them new" in err
    sql = "select x, avg(y) as mean, max(far) as far from runs group by x order by x"
    status, out, _ = run("query", "a_results", sql, "--json")
    assert status == 0
    assert json.loads(out) == [{"x": x, "mean": x + 1 / 8, "far": None} for x in (1, 2, 3)]  # JSON has no infinity
    status, out, _ = run("query", "a_results", sql, "--csv")
    assert status == 0 and list(csv.reader(io.StringIO(out))) == [
        ["x", "mean", "far"], ["1", "1.125", "inf"], ["2", "2.125", "inf"], ["3", "3.125", "inf"],
    ]  # fmt: skip
    status, out, _ = run("query", "a_results", sql)
    assert status == 0 and "mean" in out and "2.125" in out
    assert run("query", "a_results", "select x from runs where x > 9", "--json")[1] == "[]\n"


def test_a_long_table_is_cut_and_says_so(folder):
    numbers = "with recursive c(k) as (select 1 union all select k + 1 from c where k < 1000) select k from c"
    store = sweep.Store(folder / "s")
    store.close()
    status, out, err = run("query", "s", numbers)
    assert status == 0 and "200" in out and "│ 201" not in out and "800 more rows" in err
    assert len(run("query", "s", numbers, "--csv")[1].splitlines()) == 1001
    assert [row["k"] for row in json.loads(run("query", "s", numbers, "--json")[1])] == list(range(1, 1001))


def test_failures_are_told(folder, inline):
    (folder / "a.toml").write_text('function = "mine:f"\nrepeats = 2\n[fixed]\nbad = 2\n[grid]\nx = [1, 2, 3]\n')
    status, out, err = run("sweep", "a.toml")
    assert status == 1 and out == ""
    assert "failed: bad=2, x=2, trial=1: ValueError: 2 is [bad]" in err and "2 runs failed" in err
    status, out, _ = run("query", "a_results", "select params, traceback from failures", "--json")
    first = json.loads(out)[0]
    assert json.loads(first["params"]) == {"bad": 2, "x": 2} and "Traceback" in first["traceback"]


def test_dry_run(folder):
    status, out, _ = run("sweep", "a.toml", "--dry-run", "--workers", "2")
    assert status == 0 and "6 runs, 0 of them stored already; 1 batch to do" in out
    status, out, _ = run("sweep", "a.toml", "--dry-run", "--json")
    assert status == 0 and json.loads(out)["runs"] == 6 and not (folder / "a_results").exists()


BAD = [
    ("function = ", "is no TOML file"),
    ('function = "mine:f"\nrepeat = 3', "unknown key 'repeat'"),
    ('function = "mine:f"\n[grid]\nx = []', "the grid of 'x' is empty"),
    ('function = "mine:f"\n[grid]\nz = [1]', "no parameter 'z'"),
    ('function = "mine:f"\nrepeats = "two"\n[grid]\nx = [1]', "repeats must be an integer"),
    ('function = "mine:f"\nkeep = ["z"]\n[grid]\nx = [1]', "there is no result 'z'"),
    ('function = "train"\n[fixed]\ndata = "parity:d=3,n=8"\nsteps = 5\nwidht = 3', "no parameter 'widht'"),
]


@pytest.mark.parametrize("text, words", BAD, ids=[words for _, words in BAD])
def test_bad_files_are_refused(text, words, folder, inline):
    (folder / "a.toml").write_text(text)
    assert words in refused("sweep", "a.toml")
    assert "keep" in text or not (folder / "a_results").exists()


def test_bad_words_are_refused(folder):
    assert "there is no file nowhere.toml" in refused("sweep", "nowhere.toml")
    assert "must be an integer from 1" in refused("sweep", "a.toml", "--workers", "0")
    assert "invalid choice: 'slurm'" in refused("sweep", "a.toml", "--engine", "slurm")
    assert "an address is that of a cluster" in refused("sweep", "a.toml", "--address", "1.2.3.4:5")
    assert "cannot be written" in refused("sweep", "a.toml", "--store", "mine.py")
    assert "no parameter device" in refused("sweep", "a.toml", "--devices", "cuda:0")
    assert "holds no results of a sweep" in refused("query", "nowhere", "select 1")
    assert not (folder / "a_results").exists() and not (folder / "nowhere").exists()
    pytest.importorskip("ray", reason="Ray is not installed")
    assert "no Ray cluster answers at 127.0.0.1:1" in refused(
        "sweep", "a.toml", "--engine", "ray", "--address", "127.0.0.1:1"
    )
    assert not (folder / "a_results").exists()


def test_stores_that_are_none(folder, inline):
    run("sweep", "a.toml")
    assert "no such column: z" in refused("query", "a_results", "select z from runs")
    assert "a query can only read" in refused("query", "a_results", "delete from runs")
    path = folder / "a_results" / "results.sqlite"
    db = sqlite3.connect(path)
    db.execute("update meta set value = '0.0.1' where name = 'version'")
    db.commit()
    db.close()
    assert "was written by widemargin 0.0.1" in refused("sweep", "a.toml")
    assert run("query", "a_results", "select count(*) as n from runs", "--json")[1] == '[{"n": 6}]\n'
    path.write_bytes(b"x" * 5000)
    assert "is damaged" in refused("sweep", "a.toml")
    assert path.read_bytes() == b"x" * 5000


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc to see who is left")
def test_ctrl_c_keeps_everything_and_leaves_nobody_behind(folder):
    """As from a terminal: the signal goes to the driver and its workers."""
    (folder / "a.toml").write_text(
        'function = "mine:f"\npack = 1\nrepeats = 100\n[fixed]\npause = 0.1\n[grid]\nx = [1]\n'
    )
    words = [sys.executable, "-m", "widemargin", "sweep", "a.toml", "--workers", "2"]
    driver = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while True:
        time.sleep(0.05)
        assert driver.poll() is None
        try:
            if sweep.load("a_results", "select count(*) as n from runs")["n"][0] >= 5:
                break
        except sweep.store.InputError:
            pass
    os.killpg(driver.pid, signal.SIGINT)
    err = driver.communicate()[1]
    assert driver.returncode == 130, err
    assert "interrupted; the same command goes on from here" in err and "Traceback" not in err
    kept = len(sweep.load("a_results"))
    assert 5 <= kept < 100 and f"{kept} of 100 runs are in a_results" in err
    for _ in range(300):
        if not group(driver.pid):
            break
        time.sleep(0.1)
    assert not group(driver.pid)


def group(leader):
    """Living processes of a group."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{entry}/stat") as file:
            state, _, of = file.read().rpartition(")")[2].split()[:3]
            if int(of) == leader and state != "Z":
                found.append(int(entry))
    return found
