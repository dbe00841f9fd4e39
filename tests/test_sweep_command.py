"""`widemargin sweep` and `widemargin query`."""

import contextlib
import csv
import importlib
import io
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from test_cli import refused, run
from widemargin import sweep
from widemargin.sweep.plan import ROOMS, computes
from widemargin.types import InputError

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
    status, out, err = run("sweep", "a.toml", "--trust", "--json")
    found = json.loads(out)
    assert status == 0 and (found["done"], found["total"], found["failed"]) == (6, 6, 0)
    assert found["store"] == "a_results" and "6 of 6 runs are in a_results, 6 of them new" in err
    status, out, err = run("sweep", "a.toml", "--trust", "--store", "a_results")
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


BAD_QUERIES = [
    ("select x'00ff' as b", "the column 'b' holds a blob"),
    ("select 1 as b union all select x'00ff'", "the column 'b' holds a blob"),
    ("select '\ud800'", "a query must be a text"),
    ("select cast(x'fffe' as text)", "decode"),
    ("select 1 as b union all select cast(x'fffe' as text)", "decode"),
    ("vacuum into 'copy.sqlite'", "a query can only read"),
]


@pytest.mark.parametrize(
    "sql, words", BAD_QUERIES, ids=[sql.encode("unicode_escape").decode() for sql, _ in BAD_QUERIES]
)
def test_json_is_whole_or_nothing(sql, words, folder):
    sweep.Store("s").close()
    assert words in refused("query", "s", sql, "--json")
    assert not (folder / "copy.sqlite").exists()


def test_json_has_every_column(folder):
    sweep.Store("s").close()
    status, out, _ = run("query", "s", "select 1 as a, 2 as a, 3 as a_2, 4 as a, 5 as b", "--json")
    assert status == 0 and json.loads(out) == [{"a": 1, "a_3": 2, "a_2": 3, "a_4": 4, "b": 5}]
    assert run("query", "s", "select 1 as a, 2 as a", "--json")[1] == '[{"a": 1, "a_2": 2}]\n'


def test_much_json_goes_by_way_of_a_file(folder, monkeypatch):
    from widemargin.cli import sweep as command

    sweep.Store("s").close()
    monkeypatch.setattr(command, "IN_MEMORY", 10)
    numbers = "with recursive c(k) as (select 1 union all select k + 1 from c where k < 50) select k, 'ü' as t from c"
    assert json.loads(run("query", "s", numbers, "--json")[1]) == [{"k": k, "t": "ü"} for k in range(1, 51)]


# The first row is out when the search for the third has begun, which has no end.
ENDLESS = "with recursive c(x) as (select 1 union all select x + 1 from c) select x from c where x < 3 or {} < 0"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("what", ["x", "sqrt(x)"])  # steps of SQLite alone, and functions in Python
def test_ctrl_c_ends_a_long_query(what, name, folder):
    sweep.Store("s").close()
    words = [sys.executable, "-u", "-m", "widemargin", "query", "s", ENDLESS.format(what), "--csv"]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert [child.stdout.readline() for _ in range(2)] == ["x\n", "1\n"]
    child.send_signal(number := getattr(signal, name))
    _, err = child.communicate()
    assert (child.returncode, err) == (128 + number, "interrupted\n")


COUNTING = """
import math, sys
from widemargin.cli import main
math.sqrt = lambda x: print("begun", flush=True) or x
sys.exit(main(["query", "s", sys.argv[1]]))
"""


def test_ctrl_c_ends_a_query_that_has_no_first_row(folder):
    sweep.Store("s").close()
    sql = "with recursive c(x) as (select sqrt(1) union all select x + 1 from c) select count(*) from c"
    words = [sys.executable, "-c", COUNTING, sql]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "begun\n"
    child.send_signal(signal.SIGINT)
    _, err = child.communicate()
    assert (child.returncode, err) == (130, "interrupted\n")


@pytest.mark.parametrize("columns", [60, 80])
def test_wide_rows_are_stacked_in_narrow_terminals(folder, inline, monkeypatch, columns):
    """All columns of all runs: more than fit side by side."""
    assert run("sweep", "a.toml", "--trust")[0] == 0
    wide = "select *, y as a_result_with_a_long_name, x as another_result_with_a_long_name from runs"
    monkeypatch.setenv("COLUMNS", str(columns))
    status, out, _ = run("query", "a_results", wide)
    assert status == 0 and all(len(line) <= columns for line in out.splitlines())
    assert out.count("another_result_with_a_long_name ") == 6 and "\u250f" not in out
    monkeypatch.setenv("COLUMNS", "300")
    assert "\u250f" in run("query", "a_results", wide)[1]


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
    status, out, err = run("sweep", "a.toml", "--trust")
    assert status == 1 and out == ""
    assert "failed: bad=2, x=2, trial=0 and 1 more run: ValueError: 2 is [bad]" in err and "2 runs failed" in err
    status, out, _ = run("query", "a_results", "select params, traceback from failures", "--json")
    first = json.loads(out)[0]
    assert json.loads(first["params"]) == {"bad": 2, "x": 2} and "Traceback" in first["traceback"]


def test_failures_cannot_steer_a_terminal(folder, inline):
    (folder / "mine.py").write_text('def f(x):\n    raise ValueError("a\\u202eb\\x1b[2J\\nfake: ok")\n')
    status, _, err = run("sweep", "a.toml", "--trust")
    assert status == 1 and "failed: x=1, trial=0 and 5 more runs: ValueError: a?b?[2J" in err
    assert "fake" not in err and all(c.isprintable() for c in err.replace("\n", ""))


def test_a_name_cannot_steer_a_terminal(folder, inline, monkeypatch):
    from widemargin.cli import sweep as command

    monkeypatch.setattr(command, "EVERY", 0.0)
    (folder / "a.toml").write_text('name = "a\\u001b[2J"\nfunction = "mine:f"\n[grid]\nx = [1, 2, 3]\n')
    status, _, err = run("sweep", "a.toml", "--trust")
    assert status == 0 and "a?[2J: 3 of 3 runs" in err and "\x1b" not in err


def test_dry_run(folder):
    status, out, _ = run("sweep", "a.toml", "--trust", "--dry-run", "--workers", "2")
    assert status == 0 and "6 runs, 0 of them stored already; 1 batch to do" in out
    status, out, _ = run("sweep", "a.toml", "--trust", "--dry-run", "--json")
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
    assert words in refused("sweep", "a.toml", "--trust")
    assert "keep" in text or not (folder / "a_results").exists()


def test_bad_words_are_refused(folder):
    assert "there is no file nowhere.toml" in refused("sweep", "nowhere.toml")
    assert "must be an integer from 1" in refused("sweep", "a.toml", "--trust", "--workers", "0")
    assert "invalid choice: 'slurm'" in refused("sweep", "a.toml", "--trust", "--engine", "slurm")
    assert "an address is that of a cluster" in refused("sweep", "a.toml", "--trust", "--address", "1.2.3.4:5")
    assert "cannot be written" in refused("sweep", "a.toml", "--trust", "--store", "mine.py")
    assert "no parameter device" in refused("sweep", "a.toml", "--trust", "--devices", "cuda:0")
    assert "holds no results of a sweep" in refused("query", "nowhere", "select 1")
    assert not (folder / "a_results").exists() and not (folder / "nowhere").exists()
    pytest.importorskip("ray", reason="Ray is not installed")
    assert "no Ray cluster answers at 127.0.0.1:1" in refused(
        "sweep", "a.toml", "--trust", "--engine", "ray", "--address", "127.0.0.1:1"
    )
    assert not (folder / "a_results").exists()


def test_stores_that_are_none(folder, inline):
    run("sweep", "a.toml", "--trust")
    assert "no such column: z" in refused("query", "a_results", "select z from runs")
    assert "a query can only read" in refused("query", "a_results", "delete from runs")
    path = folder / "a_results" / "results.sqlite"
    db = sqlite3.connect(path)
    db.execute("update meta set value = '0.0.1' where name = 'version'")
    db.commit()
    db.close()
    assert "was written by widemargin 0.0.1" in refused("sweep", "a.toml", "--trust")
    assert run("query", "a_results", "select count(*) as n from runs", "--json")[1] == '[{"n": 6}]\n'
    path.write_bytes(b"x" * 5000)
    assert "is damaged" in refused("sweep", "a.toml", "--trust")
    assert path.read_bytes() == b"x" * 5000


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc to see who is left")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("send", [os.killpg, os.kill])
def test_ctrl_c_keeps_everything_and_leaves_nobody_behind(folder, name, send):
    """As from a terminal, where the signal goes to the driver and its workers, and as from `kill`, to the driver alone."""
    number = getattr(signal, name)
    (folder / "a.toml").write_text(
        'function = "mine:f"\npack = 1\nrepeats = 100\n[fixed]\npause = 0.1\n[grid]\nx = [1]\n'
    )
    words = [sys.executable, "-m", "widemargin", "sweep", "a.toml", "--trust", "--workers", "2"]
    driver = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while True:
        time.sleep(0.05)
        assert driver.poll() is None
        try:
            if sweep.load("a_results", "select count(*) as n from runs")["n"][0] >= 5:
                break
        except sweep.store.InputError:
            pass
    send(driver.pid, number)
    err = driver.communicate()[1]
    assert driver.returncode == 128 + number, err
    assert "interrupted; the same command goes on from here" in err and "Traceback" not in err and "leaked" not in err
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


def test_a_file_from_someone_else_runs_nothing(folder):
    """Neither a module beside the file nor one of Python's own, not even to count runs."""
    (folder / "widemargin.data.py").write_text("raise SystemExit('ran')")
    for function in ("mine:f", "os:system", "widemargin.data:load2", "widemargin.types:write_atomically", "subprocess:run",
                     "widemargin.cli.reproduce:subprocess", "widemargin:data", ":f", "mine:"):  # fmt: skip
        (folder / "a.toml").write_text(f'function = "{function}"\n[grid]\nx = [1]\ncommand = ["touch ran"]\n')
        for more in ((), ("--dry-run",)):
            said = refused("sweep", "a.toml", *more)
            assert f"a.toml asks to run the function '{function}'" in said and "--trust" in said
    assert sorted(path.name for path in folder.iterdir()) == ["a.toml", "mine.py", "widemargin.data.py"]


UNTRUSTED = [
    ("widemargin.data:save_dataset", 'data = [[[1.0], [2.0]], [1, -1]]\npath = "victim.csv"'),
    ("widemargin.verify:sqrt_up", "n = 1000\nbits = 9"),
    ("widemargin.flows:train", 'data = "dyadic:d=2"\nout = "victim.csv"'),
    ("widemargin.papers:run", 'one = "LL-F1"\nout = "victim.csv"'),
]


@pytest.mark.parametrize("function, fixed", UNTRUSTED, ids=[function for function, _ in UNTRUSTED])
def test_a_file_from_someone_else_calls_no_function_of_ours_that_writes(folder, function, fixed):
    (folder / "victim.csv").write_text("mine")
    (folder / "a.toml").write_text(f'function = "{function}"\n[fixed]\n{fixed}\n')
    for more in ((), ("--dry-run",)):
        said = refused("sweep", "a.toml", *more)
        assert f"'{function}', which is none of widemargin or may write files" in said and "--trust" in said
    assert (folder / "victim.csv").read_text() == "mine"


def test_a_file_from_someone_else_may_call_what_computes(folder):
    (folder / "a.toml").write_text('function = "widemargin.data:load"\n[grid]\nsource = ["dyadic:d=2"]\n')
    assert "returned a Dataset" in refused("sweep", "a.toml", "--dry-run")  # it is run, and is no function for a sweep


def test_what_a_plan_may_call_writes_nothing():
    """By name: a new function that takes a place to write to must be seen by `computes`."""
    for room in ROOMS:
        module = importlib.import_module(f"widemargin.{room}")
        for name in module.__all__:
            if computes(f"widemargin.{room}:{name}"):
                assert not re.match("save|write|export|run", name), (room, name)


def test_a_grid_of_very_many_points_is_counted(folder):
    """And not expanded."""
    grid = "\n".join(f"{name} = {list(range(1, 1001))}" for name in ("x", "trial1", "pause1", "bad1"))
    (folder / "mine.py").write_text("def f(x, trial1, pause1, bad1):\n    return {'y': x}\n")
    (folder / "a.toml").write_text(f'function = "mine:f"\n[grid]\n{grid}\n')
    status, out, _ = run("sweep", "a.toml", "--trust", "--dry-run", "--json", "--workers", "1")
    found = json.loads(out)
    assert status == 0 and (found["runs"], found["done"], found["batches"]) == (10**12, 0, 10**12 // 8)


def test_a_query_ends_in_time(folder):
    sweep.Store("s").close()
    status, _, said = run("query", "s", ENDLESS.format("x"), "--time-limit", "0.2")
    assert status == 2 and "took longer than 0.2 seconds" in said


SLOW = [  # each hours of one function, in which SQLite looks at no clock, or few steps that take long
    "select instr(hex(zeroblob(8000000)), hex(zeroblob(4000000)) || '1')",
    "select printf('%.*c', 2000000000, 'x')",
    "with recursive c(x) as (select 1 union all select x + 1 from c) select count(distinct hex(randomblob(3000000))) from c",
]


@pytest.mark.slow
@pytest.mark.parametrize("sql", SLOW)
def test_a_query_ends_in_time_within_a_function(folder, sql):
    sweep.Store("s").close()
    began = time.monotonic()
    words = [sys.executable, "-m", "widemargin", "query", "s", sql, "--time-limit", "0.5"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (2, "") and time.monotonic() - began < 5
    assert done.stderr.count("\n") == 1 and "took longer than 0.5 seconds" in done.stderr


@pytest.mark.slow
def test_ctrl_c_within_a_function(folder):
    sweep.Store("s").close()
    words = [sys.executable, "-c", COUNTING, f"select sqrt(1), {SLOW[0].removeprefix('select ')}"]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "begun\n"
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=20)
    assert (child.returncode, err) == (130, "interrupted\n")


def test_the_library_ends_a_query_of_long_steps(folder):
    """Without ending the process."""
    sweep.Store("s").close()
    began = time.monotonic()
    with pytest.raises(InputError, match=r"longer than 0\.5 seconds"):
        list(sweep.query("s", SLOW[2], time_limit=0.5)[1])
    assert time.monotonic() - began < 5


@pytest.mark.slow
def test_a_row_has_a_size(folder):
    """As have all values that SQLite holds at a time."""
    sweep.Store("s").close()
    sql = "select " + ", ".join(["hex(zeroblob(8000000))"] * 200)
    words = [sys.executable, "-m", "widemargin", "query", "s", sql]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and "more than 512 MB" in done.stderr


LONG = [
    "select zeroblob(100000000) as b",
    "select hex(zeroblob(9000000)) as b",
    "select group_concat(zeroblob(10000000)) as b from (select 1 union all select 2)",
    "select y as b from runs",
]


@pytest.mark.parametrize("sql", LONG)
@pytest.mark.parametrize("form", [(), ("--csv",), ("--json",)], ids=["table", "csv", "json"])
def test_a_value_has_a_length(folder, sql, form):
    """Computed or stored: SQLite and Python would take seconds and gigabytes for it, and look at no clock."""
    one = sweep.Store("s")
    one.add("a", "f", "1", 0, [sweep.Run("0" * 32, {"x": 1}, 0)], [{"y": 1.0}], 0.0)
    one.close()
    with contextlib.closing(sqlite3.connect("s/results.sqlite")) as db, db:
        db.execute("update runs set y = ?", ("x" * (1 << 24) + "x",))
    assert "a value is longer than 16 MB" in refused("query", "s", sql, *form)
    assert json.loads(run("query", "s", "select x from runs", "--json")[1]) == [{"x": 1}]  # the others can be read


def test_a_page_takes_texts_of_bounded_length(folder, monkeypatch):
    from widemargin.report import sweeps

    one = sweep.Store("s")
    runs = [sweep.Run(f"{k:032}", {"x": k}, 0) for k in range(4)]
    one.add("a", "f", "1", 0, runs, [{"y": 1.0, "t": "a" * 1_000}] * 4, 0.0)
    one.close()
    monkeypatch.setattr(sweeps, "TEXTS", 3_000)
    assert "too long for a page" in refused("report", "s", "--out", "page.html")
    with contextlib.closing(sqlite3.connect("s/results.sqlite")) as db, db:
        db.execute("update runs set t = ?", ("x" * (1 << 24) + "x",))
    assert "longer than 16 MB" in refused("report", "s", "--out", "page.html")
    assert not (folder / "page.html").exists()


def test_the_clock_goes_on_while_rows_are_taken(folder):
    """Rows that take few steps of SQLite and much of everything else; nothing is printed of them."""
    sweep.Store("s").close()
    sql = "with recursive c(x) as (select zeroblob(1000000) union all select x from c) select * from c"
    began = time.monotonic()
    status, out, said = run("query", "s", sql, "--time-limit", "0.3")
    assert (status, out) == (2, "") and "took longer than 0.3 seconds" in said and time.monotonic() - began < 3


def test_a_table_shows_the_beginning_of_long_texts(folder, monkeypatch):
    from widemargin.cli import sweep as command

    sweep.Store("s").close()
    sql = "with recursive c(k) as (select 1 union all select k + 1 from c where k < 50) select k, hex(zeroblob(800)) as t from c"
    status, out, said = run("query", "s", sql)
    assert status == 0 and out.count("0" * 100) and out.count("0") < 60 * 1_000
    assert "texts are shown up to 1000 characters" in said and "more rows" not in said
    monkeypatch.setattr(command, "TABLE", 5_000)
    assert "45 more rows" in run("query", "s", sql)[2]
    assert "texts are shown" not in run("query", "s", "select hex(zeroblob(500)) as t")[2]


def test_a_deviation_of_huge_numbers_is_a_number(folder):
    one = sweep.Store("s")
    runs = [sweep.Run(str(k) * 32, {"x": k}, 0) for k in range(4)]
    one.add("a", "f", "1", 0, runs, [{"v": v, "w": 1.6e308, "z": 0.0} for v in (-9e307, 9e307, -9e307, 9e307)], 0.0)
    one.close()
    status, out, _ = run(
        "query", "s", "select stdev(v) as a, median(w) as b, stdev(z) as c, stdev(key) as d from runs", "--json"
    )
    (found,) = json.loads(out)
    assert status == 0 and abs(found["a"] / (9e307 * (4 / 3) ** 0.5) - 1) < 1e-12
    assert (found["b"], found["c"], found["d"]) == (1.6e308, 0.0, None)


def test_a_view_in_place_of_a_table_is_refused(folder):
    """One that never ends, as a file from someone else may have it."""
    import sqlite3

    sweep.Store("s").close()
    endless = (
        "with recursive c(name, value) as (select 'a', 'b' union all select name || 'a', value from c) select * from c"
    )
    for name in ("meta", "runs", "sweeps", "log"):
        with sqlite3.connect("s/results.sqlite") as db:
            db.execute(f"drop table {name}")
            db.execute(f"create view {name.upper() if name == 'sweeps' else name} as {endless}")
        db.close()
        assert f"{name} is no plain table" in refused("query", "s", "select 1")
        assert f"{name} is no plain table" in refused("sweep", "a.toml", "--trust", "--store", "s")
        (folder / "s" / "results.sqlite").unlink()
        sweep.Store("s").close()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
@pytest.mark.parametrize(
    "name", ["results.sqlite", "results.sqlite-journal", "results.sqlite-wal", "results.sqlite-shm"]
)
def test_a_pipe_in_a_store_is_refused(folder, name):
    """SQLite would wait for whoever writes to it, for ever."""
    sweep.Store("s").close()
    (folder / "s" / name).unlink(missing_ok=True)
    os.mkfifo(folder / "s" / name)
    for words in (
        ("query", "s", "select 1"),
        ("report", "s", "--out", "page.html"),
        ("sweep", "a.toml", "--trust", "--store", "s"),
        ("sweep", "a.toml", "--trust", "--store", "s", "--dry-run"),
    ):
        said = refused(*words)
        assert "pipe" in said or (words[0] == "report" and name == "results.sqlite")


@pytest.mark.parametrize("lock", ["begin exclusive", "begin immediate"])
def test_a_dry_run_does_not_wait_for_another_process(folder, monkeypatch, lock):
    from widemargin.sweep import drive

    monkeypatch.setattr(drive, "GLANCE", 0.1)
    sweep.Store("s").close()
    other = sqlite3.connect("s/results.sqlite", isolation_level=None)
    other.execute("pragma journal_mode = delete")  # a reader of a log would not wait
    other.execute(lock)
    began = time.monotonic()
    said = refused("sweep", "a.toml", "--trust", "--store", "s", "--dry-run")
    other.close()
    assert "is being written by another process" in said and time.monotonic() - began < 5
