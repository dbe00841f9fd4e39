"""The store: what goes in comes out, whatever dies, and what is not a store is left alone."""

import contextlib
import json
import math
import os
import sqlite3
import subprocess
import sys
import threading
import time
import tracemalloc

import numpy as np
import pytest

import widemargin
from widemargin.sweep import Run, Store, Sweep, dry_run, load, query
from widemargin.sweep import store as storing
from widemargin.types import InputError


def add(store, rows, params=None, start=0):
    runs = [Run(f"{start + k:032x}", params or {"a": 1}, k) for k in range(len(rows))]
    return store.add("s", "f", "1", 0, runs, rows, 1.0)


def everything(folder, sql="select * from runs order by key"):
    names, rows = query(folder, sql)
    return [dict(zip(names, row)) for row in rows]


def test_rows_are_added_once_and_never_changed(tmp_path):
    store = Store(tmp_path / "s")
    assert add(store, [{"x": 1.5}, {"x": 2.5}]) == 2
    assert add(store, [{"x": 9.0}, {"x": 9.0}, {"x": 3.5}]) == 1  # two are there already
    assert len(store) == 3 and store.done([f"{k:032x}" for k in range(5)]) == {f"{k:032x}" for k in range(3)}
    store.close()
    assert [row["x"] for row in everything(tmp_path / "s")] == [1.5, 2.5, 3.5]
    assert len(everything(tmp_path / "s", "select * from log")) == 3


def test_special_numbers_texts_and_names(tmp_path):
    row = {
        "nan": math.nan, "inf": math.inf, "less": -math.inf, "tiny": 5e-324, "third": 1 / 3, "yes": True, "big": 2**62,
        "bigger": 2**70, "none": None, "text": "it's \"so\" \n ü", 'a "quoted" name': 1, "semi;colon -- x": 2,
        "list": [1, 2], "half": "\ud800", "huge": -(10**400),
    }  # fmt: skip
    store = Store(tmp_path)
    add(store, [row, {"third": 2 / 3}])
    store.close()
    first, second = everything(tmp_path)
    assert first["nan"] is None and first["inf"] == math.inf and first["less"] == -math.inf
    assert first["tiny"] == 5e-324 and first["third"] == 1 / 3 and first["yes"] == 1 and first["big"] == 2**62
    assert first["bigger"] == float(2**70) and first["text"] == row["text"] and first["list"] == "[1, 2]"
    assert first['a "quoted" name'] == 1 and first["semi;colon -- x"] == 2
    assert first["half"] == "\\ud800" and first["huge"] == f"-1{'0' * 400}"  # as text: infinity would be wrong
    assert second["third"] == 2 / 3 and second["text"] is None
    frame = load(tmp_path)
    assert math.isnan(frame["nan"][0]) and frame["nan"].dtype == np.float64 and frame["none"].isna().all()
    assert frame["inf"][0] == math.inf and frame["third"].tolist() == [1 / 3, 2 / 3]
    assert everything(tmp_path, "select avg(nan) as m, count(nan) as n from runs") == [{"m": None, "n": 0}]


def test_lists_are_json_whatever_is_in_them(tmp_path):
    row = {
        "u": [1, math.nan, (math.inf, 2)],
        "v": {"x": -math.inf, "y": np.array([1.5, math.nan]), "z": np.float32("nan")},
        "w": np.array([[1, 2]]),
        "d": np.float64("nan"),
    }
    store = Store(tmp_path)
    add(store, [row])
    store.close()
    (found,) = everything(tmp_path)

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    read = {name: json.loads(found[name], parse_constant=refuse) for name in "uvw"}
    assert read == {"u": [1, None, [None, 2]], "v": {"x": None, "y": [1.5, None], "z": None}, "w": [[1, 2]]}
    assert found["d"] is None


class Rude:
    def __str__(self):
        raise RuntimeError("no words")


ENDLESS: list = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    "row, words",
    [
        ({"": 1}, "1 to 200 characters"),
        ({"z\ud800": 1}, "1 to 200 characters"),
        ({"z\0": 1}, "1 to 200 characters"),
        ({3: 1}, "1 to 200 characters"),
        ({"x": 10**5000}, "the result 'x' cannot be stored"),
        ({"x": [10**5000]}, "the result 'x' cannot be stored"),
        ({"x": ENDLESS}, "the result 'x' cannot be stored"),
        ({"x": {(1, 2): 3}}, "the result 'x' cannot be stored"),
        ({"x": [Rude()]}, "the result 'x' cannot be stored"),
    ],
)
def test_results_that_no_table_holds(row, words, tmp_path):
    with pytest.raises(InputError, match=words):
        storing.cells({"a": 1}, row)
    store = Store(tmp_path)
    with pytest.raises(InputError, match=words):
        add(store, [{"fine": 1}, row])
    assert len(store) == 0
    store.close()


def test_results_called_like_parameters_or_columns_stand_beside_them(tmp_path):
    store = Store(tmp_path)
    add(store, [{"width": 7, "seed": 8, "Trial": 9}], {"width": 4})
    store.close()
    (row,) = everything(tmp_path)
    assert (row["width"], row["result_width"], row["result_seed"], row["result_Trial"]) == (4, 7, 8, 9)


def test_names_that_differ_in_case_only(tmp_path):
    store = Store(tmp_path)
    with pytest.raises(InputError, match="upper and lower case are one"):
        add(store, [{"x": 1, "X": 2}])
    add(store, [{"x": 1}])
    with pytest.raises(InputError, match="in case only"):
        add(store, [{"X": 2}], start=5)
    assert len(store) == 1
    store.close()


def test_a_frame_does_not_depend_on_the_order_of_arrival(tmp_path):
    one, two = Store(tmp_path / "1"), Store(tmp_path / "2")
    first, second = Run("0" * 32, {"a": 1}, 0), Run("1" * 32, {"a": 2}, 0)
    for store, order in ((one, [(first, {"x": 1.0}), (second, {"y": 2, "b": "t"})]), (two, [])):
        order = order or [(second, {"y": 2, "b": "t"}), (first, {"x": 1.0})]
        for run, row in order:
            store.add("s", "f", "1", 0, [run], [row], 1.0)
        store.note("s", '{"fixed": {"a": 1}, "grid": {}, "random": {}}', "1")
        store.close()
    frame = load(tmp_path / "1")
    assert frame.equals(load(tmp_path / "2"))
    assert list(frame.columns) == ["key", "sweep", "function", "version", "seed", "trial", "a", "b", "x", "y"]


def test_statistics_in_sql(tmp_path):
    x = np.random.default_rng(0).standard_normal(101)
    store = Store(tmp_path)
    add(store, [{"x": float(v)} for v in x] + [{"x": math.nan}])
    store.close()
    sql = "select avg(x) as a, median(x) as m, stdev(x) as s, sqrt(4) as r, ln(-1) as l, exp(1) as e, pow(2, 3) as p from runs"
    (found,) = everything(tmp_path, sql)
    np.testing.assert_allclose(
        [found["a"], found["m"], found["s"]], [x.mean(), np.median(x), x.std(ddof=1)], rtol=1e-13
    )
    assert found["r"] == 2 and found["l"] is None and found["e"] == math.e and found["p"] == 8


def test_text_that_is_none_is_not_taken_for_an_interrupt(tmp_path):
    """SQLite cannot hand it to a function of ours, and says no more than when Ctrl-C came in one."""
    store = Store(tmp_path)
    add(store, [{"x": 1.0}, {"x": 2.0}])
    store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "results.sqlite")) as db, db:
        db.execute("update runs set x = cast(x'd7' as text) where x = 2")
    with pytest.raises(InputError, match="the store is damaged: some of its text is none"):
        everything(tmp_path, "select median(x), stdev(x) from runs")


@pytest.mark.parametrize(
    "sql",
    [
        "drop table runs", "delete from runs", "update runs set x = 2", "insert into log values (1, 2, 3)",
        "attach 'other.sqlite' as o", "create table t (x)", "pragma journal_mode = delete", "vacuum into 'copy.sqlite'",
        "select writefile('x', 'y')", "select nothing from runs", "select * from runs; select 1", "", "selct 1",
        "select load_extension('x')",
    ],
)  # fmt: skip
def test_a_query_can_only_read(sql, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path)
    add(store, [{"x": 1.0}])
    store.close()
    before = (tmp_path / storing.FILE).read_bytes()
    with pytest.raises(InputError):
        list(query(tmp_path, sql)[1])
    assert (tmp_path / storing.FILE).read_bytes() == before
    assert [row["x"] for row in everything(tmp_path)] == [1.0]  # what is in the log of SQLite counts too
    assert {path.name for path in tmp_path.iterdir()} <= {storing.FILE, f"{storing.FILE}-wal", f"{storing.FILE}-shm"}


@pytest.mark.parametrize(
    "sql", ["vacuum into 'copy.sqlite'", "vacuum", "delete from runs", "begin", "pragma user_version"]
)
def test_a_query_that_writes_is_told_why_it_is_refused(sql, tmp_path):
    Store(tmp_path).close()
    with pytest.raises(InputError, match=r"^a query can only read; write a select$"):
        query(tmp_path, sql)


@pytest.mark.parametrize("sql", [3, None, b"select 1", "select '\ud800'"])
def test_a_query_is_a_text(sql, tmp_path):
    Store(tmp_path).close()
    with pytest.raises(InputError, match="a query must be a text"):
        query(tmp_path, sql)


@pytest.mark.skipif(sys.platform != "linux", reason="counts open files by /proc")
def test_a_query_whose_rows_nobody_takes_is_let_go(tmp_path):
    Store(tmp_path).close()
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        query(tmp_path, "select 1")
    deadline = time.monotonic() + 10  # a timer that was cancelled ends when its thread has its turn
    while threading.active_count() > before[0] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before


def test_words_about_a_query_that_fails(tmp_path):
    Store(tmp_path).close()
    for sql, words in (("select cast(x'fffe' as text)", "decode"), ("select json('[')", "malformed JSON")):
        with pytest.raises(InputError, match=f"the query failed: .*{words}"):
            list(query(tmp_path, sql)[1])


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are texts there")
def test_a_folder_whose_name_is_no_text(tmp_path):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff ?#%41")
    store = Store(folder)
    add(store, [{"x": 1.0}])
    store.close()
    assert [row["x"] for row in everything(folder)] == [1.0]


def test_failures_tell_their_sweep_and_version(tmp_path):
    run, other = Run("0" * 32, {"a": 1}, 0), Run("1" * 32, {"a": 2}, 1)
    store = Store(tmp_path)
    store.fail([run, other], ["first", "half \ud800"], "widths", "1")
    store.fail([run], ["second"], sweep="widths", version="1")
    store.fail([run], ["without"])
    store.close()
    names = ("key", "params", "trial", "traceback", "sweep", "version")
    found = everything(tmp_path, f"select {', '.join(names)} from failures order by rowid")
    assert [tuple(row.values()) for row in found] == [
        ("0" * 32, '{"a": 1}', 0, "first", "widths", "1"),
        ("1" * 32, '{"a": 2}', 1, "half \\ud800", "widths", "1"),
        ("0" * 32, '{"a": 1}', 0, "second", "widths", "1"),
        ("0" * 32, '{"a": 1}', 0, "without", "", ""),
    ]


def test_a_store_from_before_failures_told_their_sweep(tmp_path):
    run = Run("0" * 32, {"a": 1}, 0)
    store = Store(tmp_path)
    add(store, [{"x": 1.0}])
    store.db.execute("drop table failures")
    store.db.execute("create table failures (key text, params text, trial integer, traceback text, finished real)")
    store.db.execute("insert into failures values ('k', '{}', 0, 'old', 1.5)")
    store.close()
    for _ in range(2):
        store = Store(tmp_path)
        store.fail([run], ["new"], "s", "1")
        store.close()
    found = everything(tmp_path, "select traceback, sweep, version from failures order by rowid")
    assert [tuple(row.values()) for row in found] == [("old", None, None), ("new", "s", "1"), ("new", "s", "1")]
    assert len(everything(tmp_path)) == 1


def test_what_an_earlier_plan_did_not_keep(tmp_path):
    def plan(keep, **keys):
        return Sweep("mine:f", **{"name": "s", "grid": {"a": [1, 2]}} | keys, keep=keep)

    store = Store(tmp_path)
    narrow, wide = plan(["x"]), plan(["x", "y", "seed"])
    assert store.not_kept(wide, "1") == []
    store.note("s", narrow.text(), "1")
    assert store.not_kept(wide, "1") == []  # nothing is stored yet
    run = Run("0" * 32, {"a": 1}, 0)
    store.add("s", "mine:f", "1", 0, [run], [{"x": 1.0}], 0.0)
    assert store.not_kept(wide, "1") == ["y", "seed"] and store.not_kept(plan(None), "1") == ["all results"]
    assert store.not_kept(plan(["y"], name="t"), "1") == ["y"]
    for other in (narrow, plan(["y"], grid={"a": [3]}), plan(["y"], seed=1), plan(["y"], grid={"b": [1]})):
        assert store.not_kept(other, "1") == []
    assert store.not_kept(wide, "2") == []
    # Columns that others have filled, and a result that is called like a column of the table.
    store.note("t", plan(["x", "y", "seed"], name="t").text(), "1")
    store.add("t", "mine:f", "1", 0, [Run("1" * 32, {"a": 2}, 0)], [{"x": 1.0, "y": 2.0, "seed": 3}], 0.0)
    assert store.not_kept(wide, "1") == ["y", "seed"] and store.not_kept(plan(None), "1") == ["all results"]
    store.db.execute("update runs set y = 2.0, result_seed = 3")  # as if no run lacked them
    assert store.not_kept(wide, "1") == []
    store.close()


def test_no_store_a_damaged_one_and_another_program_s_file(tmp_path):
    with pytest.raises(InputError, match="holds no results"):
        query(tmp_path, "select 1")
    assert not list(tmp_path.iterdir())
    path = tmp_path / storing.FILE
    path.write_bytes(b"this is no database" * 100)
    for attempt in (lambda: Store(tmp_path), lambda: query(tmp_path, "select 1"), lambda: load(tmp_path)):
        with pytest.raises(InputError, match="no store of a sweep, or is damaged"):
            attempt()
    assert path.read_bytes() == b"this is no database" * 100
    path.unlink()
    db = sqlite3.connect(path)
    db.execute("create table mine (x)")
    db.commit()
    db.close()
    before = path.read_bytes()
    with pytest.raises(InputError, match="no store of a sweep"):
        Store(tmp_path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("own", [", primary key (key), check (trial > 5)", ", primary key (trial), unique (key)", ""])
def test_a_table_that_refuses_rows_is_told(own, tmp_path):
    """Rows that it refused were lost without a word, and counted as stored."""
    Store(tmp_path / "s").close()
    with contextlib.closing(sqlite3.connect(tmp_path / "s" / "results.sqlite")) as db:
        db.execute("drop table runs")
        db.execute(
            f"create table runs (key text, sweep text, function text, version text, seed integer, trial integer{own})"
        )
    store = Store(tmp_path / "s")
    with pytest.raises(InputError, match=r"is damaged|cannot be written"):
        add(store, [{"x": 1.0}])
        add(store, [{"x": 2.0}], start=7)  # the same trial, of another key
    store.close()


def test_a_file_cut_short(tmp_path):
    store = Store(tmp_path)
    add(store, [{"x": float(k), "t": "long " * 20} for k in range(5000)])
    store.close()
    path = tmp_path / storing.FILE
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(InputError, match="damaged"):
        list(query(tmp_path, "select sum(x) from runs")[1])


def test_another_version_or_format(tmp_path, monkeypatch):
    store = Store(tmp_path / "v")
    add(store, [{"x": 1.0}])
    store.close()
    monkeypatch.setattr(widemargin, "__version__", "9.9.9")
    db = sqlite3.connect(tmp_path / "v" / storing.FILE)
    db.execute("pragma journal_mode = delete")
    db.execute("drop table log")  # as if that version had none
    db.close()
    before = (tmp_path / "v" / storing.FILE).read_bytes()
    store = Store(tmp_path / "v")
    assert store.version != "9.9.9" and (tmp_path / "v" / storing.FILE).read_bytes() == before
    with pytest.raises(InputError, match=r"written by widemargin .* and this is 9\.9\.9"):
        store.check_version()
    store.close()
    assert len(everything(tmp_path / "v")) == 1  # still read
    db = sqlite3.connect(tmp_path / "v" / storing.FILE)
    db.execute("update meta set value = 'widemargin-sweep-7' where name = 'format'")
    db.commit()
    db.close()
    for attempt in (Store, lambda folder: query(folder, "select 1")):
        with pytest.raises(InputError, match="widemargin-sweep-7"):
            attempt(tmp_path / "v")


def test_a_full_disk_loses_nothing(tmp_path):
    store = Store(tmp_path)
    add(store, [{"x": float(k)} for k in range(100)])
    pages = store.db.execute("pragma page_count").fetchone()[0]
    store.db.execute(f"pragma max_page_count = {pages + 2}")  # as far as SQLite can tell, the disk ends here
    with pytest.raises(InputError, match="make room and run the same command again"):
        add(store, [{"x": float(k), "t": "long " * 100} for k in range(1000)], start=1000)
    store.db.execute("pragma max_page_count = 1000000")
    assert len(store) == 100  # the batch is not there in part
    assert add(store, [{"x": 1.0}], start=5000) == 1
    store.close()
    assert len(everything(tmp_path)) == 101


def test_a_full_file_system(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)], capture_output=True)
    if made.returncode:
        pytest.skip("a small file system cannot be mounted here (root only)")
    try:
        store = Store(folder)
        stored = 0
        with pytest.raises(InputError, match="make room"):
            for k in range(1000):
                stored += add(store, [{"x": float(j), "t": "long " * 20} for j in range(20)], start=20 * k)
        assert 0 < len(store) == stored
        store.close()
        assert len(everything(folder)) == stored
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match="cannot be written"):
            Store(place)
    store = Store(tmp_path / "s")
    add(store, [{"x": 1.0}])
    store.close()
    # A read-only folder has no room for SQLite's shared memory, and root may write anyway: so ask for the way taken then.
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert [row["x"] for row in everything(tmp_path / "s")] == [1.0]
    assert [path.name for path in (tmp_path / "s").iterdir()] == [storing.FILE]


WRITER = """
import sys
from widemargin.sweep import Run, Store
store = Store(sys.argv[1])
print("ready", flush=True)
for k in range(int(sys.argv[2]), 10**9, int(sys.argv[3])):
    store.add("s", "f", "1", 0, [Run(f"{k:032x}", {"a": k}, j) for j in range(1)], [{"x": k / 3}], 0.0)
    print(k, flush=True)
"""


def test_writers_killed_in_the_middle_leave_whole_rows(tmp_path):
    """Two processes write into a new store at once and are killed: all they had said they stored is there."""
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "s"), str(k), "2"], stdout=subprocess.PIPE, text=True
        )
        for k in range(2)
    ]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    said = [int(writer.stdout.readline()) for writer in writers for _ in range(30)]
    for writer in writers:
        writer.kill()
    said += [int(line) for writer in writers for line in writer.stdout.read().splitlines() if line]
    for writer in writers:
        writer.wait()
        writer.stdout.close()
    found = {row["a"]: row["x"] for row in everything(tmp_path / "s")}
    assert set(said) <= set(found) and len(found) <= len(said) + 2  # one more each, stored but not said
    assert all(x == a / 3 for a, x in found.items())
    (logged,) = everything(tmp_path / "s", "select count(*) as n, count(distinct key) as k from log")
    assert logged == {"n": len(found), "k": len(found)}


def test_a_claim_ends_with_its_owner(tmp_path):
    store = Store(tmp_path)
    code = "import sys; from widemargin.sweep import Store; s = Store(sys.argv[1]); print(s.claim('ab' * 16), flush=1); input()"
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout.readline() == "True\n"
    assert not store.claim("ab" * 16) and store.claim("cd" * 16)
    other.kill()
    other.communicate()
    assert store.claim("ab" * 16)
    store.close()


def test_many_rows_in_little_memory(tmp_path):
    store = Store(tmp_path)
    runs = 60_000
    for start in range(0, runs, 20_000):
        add(store, [{"m": k % 7, "x": float(k)} for k in range(start, start + 20_000)], start=start)
    store.close()
    tracemalloc.start()
    names, rows = query(tmp_path, "select m, avg(x), count(*) from runs group by m order by m")
    found = list(rows)
    total = sum(row[0] for row in query(tmp_path, "select x, * from runs")[1])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert names[0] == "m" and [row[2] for row in found] == [len(range(k, runs, 7)) for k in range(7)]
    np.testing.assert_allclose([row[1] for row in found], [np.mean(range(k, runs, 7)) for k in range(7)], rtol=1e-13)
    assert peak < 2e6 and total == sum(range(runs))


def test_a_frame_is_made_in_parts(tmp_path, monkeypatch):
    store = Store(tmp_path)
    add(store, [{"x": float(k), "late": 5 if k >= 25 else None, "t": "a"} for k in range(30)])
    store.close()
    whole = load(tmp_path)
    monkeypatch.setattr(storing, "CHUNK", 7)
    assert load(tmp_path).equals(whole) and whole["x"].tolist() == [float(k) for k in range(30)]
    assert whole["late"].isna().sum() == 25 and list(load(tmp_path, "select x, x from runs limit 2").columns) == [
        "x",
        "x",
    ]
    assert load(tmp_path, "select x from runs where x < 0").shape == (0, 1)


def test_the_last_words_of_a_traceback():
    text = (
        "Traceback (most recent call last):\n  File x\ntorch.AcceleratorError: CUDA error: bad\nCompile to see more.\n"
    )
    assert storing.last_words(text) == "torch.AcceleratorError: CUDA error: bad"
    chain = "Traceback (most recent call last):\n  File x\nKeyError: 3\n\nDuring handling, another:\n\n"
    text = "Traceback (most recent call last):\n  File x\n    f()\n"
    for said, rest in (
        ("ValueError: true", "\nfake: ok\n"),
        ("ValueError: shapes", "\n  (3,)\n  (4,)\nfake: ok"),
        ("AssertionError", ""),
        ("AssertionError", "\nnote: see there"),
        ("mine.Error(KeyError): x", "\nfake: ok"),
    ):
        assert storing.last_words(text + said + rest) == storing.last_words(chain + text + said + rest) == said
    assert storing.last_words(text) == "f()".rjust(7)
    assert storing.last_words("the worker died") == "the worker died" and storing.last_words("") == "no message"


@pytest.mark.parametrize("other", [False, True])
def test_a_store_that_was_removed_gets_no_rows(other, tmp_path):
    """SQLite goes on in a file that has no name any more, and what it holds would be lost and said to be stored."""
    place, moved = tmp_path / "results", tmp_path / "moved"
    store = Store(place)
    add(store, [{"y": 1.0}])
    place.rename(moved)
    if other:
        Store(place).close()
    with pytest.raises(InputError, match="removed or replaced"):
        add(store, [{"y": 2.0}], start=1)
    store.close()
    assert len(everything(moved)) == 1 and place.exists() == other
    assert not other or len(everything(place)) == 0


@pytest.mark.parametrize(
    ("ask", "values"),
    [
        (load, ["\ud800", b"x", 3]),
        (Store, ["\ud800", b"x", 3]),
        (lambda value: Store("store", wait=value), ["x", None, -1, math.nan, 10**400]),
        (
            lambda value: dry_run(Sweep("margin", fixed={"kind": "linear", "data": "dyadic:d=2"}), sample=value),
            ["x", None, -1, 1j],
        ),
    ],
)
def test_arguments_of_another_type_are_one_sentence(ask, values, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for value in values:
        with pytest.raises(InputError):
            ask(value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "read", [lambda at: query(at, "select 1"), storing.plans, load], ids=["query", "plans", "load"]
)
def test_a_store_that_is_gone_while_it_is_read_is_one_sentence(tmp_path, monkeypatch, read):
    Store(tmp_path / "s").close()
    look, seen = storing._meta, []

    def going(folder, *more):
        said = look(folder, *more)
        seen.append(said)
        (tmp_path / "s" / "results.sqlite").unlink()
        return said

    monkeypatch.setattr(storing, "_meta", going)
    with pytest.raises(InputError, match=r"results\.sqlite cannot be opened; check that you may read it"):
        read(tmp_path / "s")
    assert seen == [widemargin.__version__]
