"""Stores of sweeps, folders of monitors, files of sweeps and of data: an answer or one sentence, whatever they hold."""

import gzip
import io
import json
import shutil
import sqlite3
import subprocess
import sys
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harm import VALUES, check_memory, command, deep, draw, ends, harmed_bytes, harmed_value, share, snapshot

from widemargin import report, sweep
from widemargin.monitor import store as monitors
from widemargin.monitor import tables
from widemargin.monitor.record import Record
from widemargin.sweep import Run, Sweep
from widemargin.types import InputError
from widemargin.verify.files import read_data


def tried(what):
    """Call it; a sentence is as good as an answer."""
    try:
        with ends():
            return what()
    except InputError as error:
        assert "\n" not in str(error) and len(str(error)) < 4000


# ---------------------------------------------------------------- sweeps


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores") / "results"
    plan = Sweep("margin", "mine", {"kind": "f1"}, {"data": ["a", "b"], "x": [1, 2, 3]}, {"z": {"low": 0.1, "high": 9.0}},
                 samples=2, repeats=2)  # fmt: skip
    rows = list(plan.runs("1"))
    one = sweep.Store(folder)
    one.note("mine", plan.text(), "1")
    one.add(
        "mine",
        "margin",
        "1",
        0,
        rows,
        [{"lower": 0.5 * k, "upper": 1.0 * k, "word": "w"} for k in range(len(rows))],
        1.0,
    )
    one.fail([Run("f" * 32, {"x": 4}, 0)], ["Traceback (most recent call last):\nValueError: no"], "mine", "1")
    one.close()
    with sqlite3.connect(folder / "results.sqlite") as db:
        db.execute("pragma journal_mode = delete")
    db.close()
    return folder


def harm_store(rng, folder):
    path = folder / "results.sqlite"
    how = rng.randrange(9)
    if how == 0:
        path.write_bytes(harmed_bytes(rng, path.read_bytes()))
        return
    db = sqlite3.connect(path)
    tables = ["meta", "runs", "log", "failures", "sweeps"]
    name = rng.choice(tables)
    columns = [row[1] for row in db.execute(f"pragma table_info({name})")]
    column = rng.choice(columns)
    value = rng.choice(
        [one for one in VALUES if isinstance(one, str | float | None) and one != "\ud800"] + [b"\x00\xff", 2**62]
    )
    try:
        if how in (1, 2, 3):
            db.execute(f'update {name} set "{column}" = ?', (value,))
        elif how == 4:
            db.execute(f"drop table {name}")
            if rng.random() < 0.5:
                db.execute(f"create view {name} as with recursive c(name, value) as (select 1, 2 union all select name + 1, 2 "
                           "from c) select * from c")  # fmt: skip
        elif how == 5:
            db.execute(f'alter table {name} rename column "{column}" to "{rng.choice(["a b", "x", "KEY2"])}"')
        elif how == 6:
            plan = json.loads(db.execute("select plan from sweeps").fetchone()[0])
            db.execute("update sweeps set plan = ?", (json.dumps(harmed_value(rng, plan)),))
        elif how == 7:
            db.execute("drop table runs")
            more = rng.choice(["", ", check (trial > 5)", ", primary key (trial)", ", unique (key, seed)"])
            db.execute("create table runs (key text, sweep text, function text, version text, seed integer, trial integer"
                       f"{more})")  # fmt: skip
        else:
            db.execute(f"create trigger t after insert on {name} begin delete from runs; end")
        db.commit()
    except (sqlite3.Error, OverflowError):
        pass  # that harm cannot be done
    finally:
        db.close()


def test_damaged_stores(results, tmp_path):
    rng = draw("stores")
    asked = ["select * from runs", "select count(*), stdev(upper), median(lower) from runs", "select * from failures",
             "select plan from sweeps", "select max(x) from runs group by data"]  # fmt: skip
    for k in range(share(190)):
        folder = tmp_path / "results"
        shutil.copytree(results, folder)
        harm_store(rng, folder)
        before = snapshot(folder)
        if k % 4 == 3:
            tried(lambda folder=folder: [one.render() for one in report.build(folder).sections])
        elif k % 8 == 2:
            tried(lambda folder=folder: sweep.load(folder))
        else:
            command("query", folder, rng.choice(asked), rng.choice(["--json", "--csv"]))
        assert {path: v for path, v in snapshot(folder).items() if "-" not in path.name} == before
        shutil.rmtree(folder)
    check_memory()


def test_a_plan_with_lists_within_lists(results, tmp_path):
    """Rows do not need it: the page shows them without it."""
    folder = tmp_path / "results"
    shutil.copytree(results, folder)
    with sqlite3.connect(folder / "results.sqlite") as db:
        plan = json.loads(db.execute("select plan from sweeps").fetchone()[0])
        db.execute("update sweeps set plan = ?", (json.dumps(plan | {"fixed": {"kind": deep(400)}}),))
    db.close()
    assert command("report", folder, "--out", tmp_path / "page.html")[0] == 0
    assert "mine: margin, " in (tmp_path / "page.html").read_text()


def test_going_on_in_a_damaged_store(results, tmp_path):
    """It is refused, or what was to be run is in the store afterwards."""
    rng, ended = draw("more runs"), 0
    plan = tmp_path / "plan.toml"
    plan.write_text('function = "margin"\nname = "mine"\n[fixed]\nkind = "linear"\n[grid]\ndata = ["dyadic:d=2"]\n')
    for _ in range(share(16, 16)):  # some of them end
        folder = tmp_path / "results"
        shutil.copytree(results, folder)
        harm_store(rng, folder)
        assert command("sweep", plan, "--store", folder, "--dry-run")[0] in (0, 2)
        state = tried(lambda folder=folder: sweep.sweep(Sweep.load(plan), folder, engine="inline"))
        if state is not None:
            asked = "select count(*) from runs where data = 'dyadic:d=2' and kind = 'linear'"
            assert state.failed == 0 and list(sweep.query(folder, asked)[1]) == [(1,)]
            ended += 1
        shutil.rmtree(folder)
    assert ended


@pytest.mark.parametrize("harm", ["text", "rowid"])
def test_a_page_says_which_store_is_damaged(results, tmp_path, harm):
    """Its sentence was that of a query, which nobody had asked."""
    folder = tmp_path / "results"
    shutil.copytree(results, folder)
    with sqlite3.connect(folder / "results.sqlite") as db:
        if harm == "text":
            db.execute("update runs set version = cast(x'ff' as text)")
        else:
            db.execute("drop table sweeps")
            db.execute("create table sweeps (plan text primary key) without rowid")
    db.close()
    status, out, said = command("report", folder, "--out", tmp_path / "r.html")
    assert (status, out) == (2, "") and f"widemargin: {folder}: the query failed" in said


def test_any_sql(results):
    rng = draw("sql")
    words = ["select", "*", "from", "runs", "where", "x", "=", "1", "(", ")", "median(", "stdev(", "exp(", "pow(", "'", '"', ";",
             "group by", "attach 'a' as b", "pragma", "limit", "null", "union", "9e999", "--", "/*"
             "randomblob(9)", "cast(x as"]  # fmt: skip
    for _ in range(share(120)):
        command(
            "query",
            results,
            " ".join(rng.choice(words) for _ in range(rng.randrange(1, 9))),
            "--json",
            "--time-limit",
            "5",
        )
    assert len(snapshot(results)) == 1


PLAN = {
    "function": "margin", "name": "n", "repeats": 2, "seed": 1, "keep": ["lower"],
    "fixed": {"kind": "linear", "data": "dyadic:d={x}"}, "grid": {"x": [1, 2]}, 
    "random": {"u": {"low": 0.5, "high": 1.0}}, "samples": 2,
}  # fmt: skip


def toml(value):
    """TOML of what harm has left, as far as TOML can say it."""
    lines = []
    for key, one in value.items():
        if isinstance(one, dict):
            continue
        lines.append(f"{json.dumps(str(key))} = {json.dumps(one, default=str)}")
    for key, one in value.items():
        if isinstance(one, dict):
            lines.append(f"[{json.dumps(str(key))}]")
            for name, inner in one.items():
                text = json.dumps(inner, default=str)
                if isinstance(inner, dict):
                    text = (
                        "{"
                        + ", ".join(f"{json.dumps(str(k))} = {json.dumps(v, default=str)}" for k, v in inner.items())
                        + "}"
                    )
                lines.append(f"{json.dumps(str(name))} = {text}")
    return "\n".join(lines)


def test_files_of_sweeps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng, path = draw("toml"), tmp_path / "p.toml"
    more = [
        "os:system",
        "widemargin.types:write_atomically",
        "{x:999999999}",
        "{x.__class__}",
        "{",
        "train",
        "dyadic:d=2",
        "linear",
    ]
    for k in range(share(140)):
        value = harmed_value(rng, PLAN, more)
        text = toml(value) if isinstance(value, dict) else str(value)
        content = text.encode("utf-8", "surrogatepass")
        path.write_bytes(harmed_bytes(rng, content) if k % 3 == 0 else content)
        command("sweep", path, "--dry-run", "--workers", "1")
    assert not [one for one in tmp_path.iterdir() if one.name != "p.toml"]
    check_memory()


# ---------------------------------------------------------------- monitors


def row(step, name):
    return Record(
        step=step, name=name, whole=name == "train", n=4, error=0.25, loss=0.5, margin=-1.0 / (step + 1), margin_mean=1.0,
        quantiles={0.0: -1.0, 0.5: 1.0}, exact=True, psi=step - 3.0, log_loss_sum=-1.0, norm=2.0, degree=2, at_minimum=1,
        dual_entropy=0.1, blocks={"0": 1.5},
        classes=({"class": 0, "n": 4, "error": 0.25, "margin": -1.0, "margin_mean": 1.0, "dual_share": 1.0},), hardest=(3, 1),
    )  # fmt: skip


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("monitors") / "run"
    known = {"names": ["w"], "degree": 2, "summary": "it is", "notes": ["n"], "evidence": [], "excluded": {}}
    one = monitors.Store(folder, {"model": "Net", "loss": "ce", "parameters": 3, "homogeneous": known})
    one.append([row(step, name) for step in range(8) for name in ("train", "step")])
    one.close()
    tail = monitors.load(folder).slice(0, 3).replace_schema_metadata({b"after": b"16"})
    (folder / "newest.arrow").write_bytes(tables.arrow_bytes(tail))
    return folder


def harm_records(rng, folder):
    how = rng.randrange(4)
    name = rng.choice(["records.parquet", "newest.arrow", "monitor.json", "lock"])
    path = folder / name
    if how == 0:
        path.write_bytes(harmed_bytes(rng, path.read_bytes()))
    elif how == 1 or name in ("monitor.json", "lock"):
        config = json.loads((folder / "monitor.json").read_text())
        (folder / "monitor.json").write_text(json.dumps(harmed_value(rng, config)))
    else:
        table = tables.read_table(path)
        column = rng.choice(table.column_names)
        at = table.column_names.index(column)
        harm = rng.randrange(6)
        if harm == 0:
            table = table.drop_columns([column])
        elif harm == 1:
            table = table.set_column(at, column, pa.array(["x"] * len(table)))
        elif harm == 2:
            table = table.set_column(at, column, pa.nulls(len(table), table.schema.field(column).type))
        elif harm == 3 and pa.types.is_float64(table.schema.field(column).type):
            table = table.set_column(
                at, column, pa.array([rng.choice([np.nan, np.inf, -1e308])] * len(table), pa.float64())
            )
        elif harm == 4:
            table = table.append_column(
                rng.choice(["margin_qx", "margin_q", "norm/", column]), pa.array([1.0] * len(table))
            )
        else:
            table = table.set_column(at, column, pa.array([rng.choice([-1, 0, 2**62])] * len(table), pa.int64()))
        if path.name == "records.parquet":
            pq.write_table(table, path)
        else:
            path.write_bytes(tables.arrow_bytes(table))


def test_damaged_records(records, tmp_path):
    rng = draw("monitors")
    for k in range(share(190)):
        folder = tmp_path / "run"
        shutil.copytree(records, folder)
        harm_records(rng, folder)
        before = snapshot(folder)
        if k % 40 == 7:
            command("plot", folder, "--out", tmp_path / "p.png")
        elif k % 4 == 3:
            tried(lambda folder=folder: [one.render() for one in report.build(folder).sections])
        else:
            command("watch", folder, "--once", "--classes", *(["--json"] if k % 2 else []))
        assert snapshot(folder) == before
        shutil.rmtree(folder)
    check_memory()


def test_columns_that_contradict_their_own_counts(records, tmp_path):
    """A column that may not be empty has no counts of empty values: looking at them, the library ended the process."""
    folder = tmp_path / "run"
    shutil.copytree(records, folder)
    content = (folder / "records.parquet").read_bytes()
    optional = b"\x25\x02\x18\x03psi"  # in the schema: may be empty, is called psi
    assert content.count(optional) == 1
    (folder / "records.parquet").write_bytes(content.replace(optional, b"\x25\x00\x18\x03psi"))
    done = subprocess.run(
        [sys.executable, "-m", "widemargin", "watch", str(folder), "--once"], capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stderr.startswith("widemargin: ") and done.stderr.count("\n") == 1, done


# ---------------------------------------------------------------- data


def test_files_of_data(tmp_path):
    rng = draw("data")
    X, y = np.array([[1.0, 2.0], [3.0, -4.0], [0.5, 0.25]]), np.array([1.0, -1.0, 1.0])
    table = "a,b,y\n1,2,1\n3,-4,-1\n0.5,0.25,1\n"
    packed, plain = io.BytesIO(), io.BytesIO()
    np.savez_compressed(packed, X=X, y=y)
    np.save(plain, X)
    np.save(tmp_path / "d_y.npy", y)
    for k in range(share(270)):
        kind = ("csv", "npz", "npy")[k % 3]
        content = {"csv": table.encode(), "npz": packed.getvalue(), "npy": plain.getvalue()}[kind]
        path = tmp_path / f"d.{kind}"
        path.write_bytes(harmed_bytes(rng, content))
        if k % 10 == 4:
            command("margin", path, "--kind", "linear", "--json", "--time-limit", "5")
        else:
            command("data", path, "--out", tmp_path / "out.npz")
    check_memory()


def test_archives_that_unpack_to_far_more_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "d.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        with archive.open("X.npy", "w", force_zip64=True) as file:
            np.lib.format.write_array_header_1_0(
                file, {"descr": "<f8", "fortran_order": False, "shape": (1, 40_000_000)}
            )
            for _ in range(320):
                file.write(bytes(1_000_000))
        with archive.open("y.npy", "w") as file:
            np.save(file, np.ones(1))
    assert (tmp_path / "d.npz").stat().st_size < 10**6
    status, _, said = command("margin", tmp_path / "d.npz", "--kind", "linear")
    assert status == 2 and "unpacks to" in said
    with zipfile.ZipFile(tmp_path / "raw.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr("X.npy", bytes(320_000_000))  # no array: numpy would give all its bytes
    assert "unpacks to" in command("margin", tmp_path / "raw.npz", "--kind", "linear")[2]
    with pytest.raises(ValueError, match="take 320000000 bytes, far more than its own"):
        read_data(str(tmp_path / "raw.npz"), "linear")
    (tmp_path / "c.json.gz").write_bytes(gzip.compress(b" " * 10**8, 9))
    status, _, said = command("verify", tmp_path / "c.json.gz", "dyadic:d=2")
    assert status == 2 and "unpacks to more than" in said
