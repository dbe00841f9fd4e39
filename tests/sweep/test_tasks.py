"""The functions that can be swept: each row against the function called by itself."""

import json
import math
import os

import numpy as np
import pytest

from widemargin import data as datasets
from widemargin import flows, kinds, margins, optima, papers, sweep, theory
from widemargin.sweep import Sweep, tasks
from widemargin.sweep.engines import Inline
from widemargin.types import InputError

pytestmark = pytest.mark.usefixtures("one_thread")


def rows_of(plan, folder):
    state = sweep.sweep(plan, folder, engine="inline")
    assert state.failed == 0, state.errors
    return sweep.load(folder)


def test_train_packed_equals_single_runs(tmp_path):
    """Batches of runs with data of two sizes and of their own, against one call of flows.train for each."""
    fixed = {"data": "parity:d=4,n={n},seed={trial}", "steps": 60, "lr": 0.3, "test": "parity:d=4,n=16,seed=9"}
    plan = Sweep("train", fixed=fixed, grid={"width": [5, 9], "n": [6, 10]}, repeats=3, seed=4)
    assert [len(batch) for batch in tasks.batches(plan, "1")] == [6, 6]
    found = rows_of(plan, tmp_path)
    assert len(found) == 12
    for _, row in found.iterrows():
        data = datasets.load(f"parity:d=4,n={row.n},seed={row.trial}")
        traj = flows.train(
            data,
            flows.nets.make_net("relu", 4, row.width),
            flows.make_rule("gd", lr=0.3),
            stop=60,
            seed=4,
            trials=[row.trial],
            record=flows.Record(points=2, test=datasets.load("parity:d=4,n=16,seed=9")),
        )
        last = traj.last(0)
        assert last["t_mean"] == row.t_mean == pytest.approx(18.0) and row.step == 60
        for name in ("margin_M1", "margin_M2", "risk", "norm", "test_error"):
            np.testing.assert_allclose(row[name], last[name], rtol=1e-12, atol=1e-14)


def test_the_share_of_the_certified_margin(tmp_path):
    fixed = {"data": "parity:d=2,n=4,k=2,seed=0", "algorithm": "gf", "time": 1e3, "bias": True, "certify": 20.0}
    plan = Sweep("train", fixed=fixed | {"width": 20}, repeats=3, keep=["margin_M2", "fraction", "certified_upper"])
    found = rows_of(plan, tmp_path)
    cert = margins.f1(datasets.load("parity:d=2,n=4,k=2,seed=0"), bias=True)
    assert cert.gap < 2e-3
    np.testing.assert_allclose(found["certified_upper"], cert.upper, rtol=1e-9)
    np.testing.assert_allclose(found["fraction"], 2 * found["margin_M2"] / cert.upper, rtol=1e-9)
    assert (found["fraction"] <= 1 + 1e-9).all() and found["fraction"].max() > 0.3
    assert "risk" not in found.columns and len(list((tmp_path / "certificates").iterdir())) == 1


def test_other_nets_and_rules(tmp_path):
    for k, fixed in enumerate(
        (
            {"net": "mlp", "depth": 2, "algorithm": "sgd", "batch": 2, "lr": 0.1},
            {"net": "batchnorm", "algorithm": "gd", "lr": 0.1},
            {"net": "srelu", "law_scale": 0.5, "mean_field": True, "lr": 0.1},
        )
    ):
        plan = Sweep("train", fixed={"data": "parity:d=3,n=8,seed={trial}", "steps": 5, "width": 6, **fixed}, repeats=2)
        found = rows_of(plan, tmp_path / str(k))
        assert len(found) == 2 and np.isfinite(found["risk"]).all()


def test_margins(tmp_path):
    fixed = {"data": "parity:d=4,n=12,seed={trial}"}
    found = rows_of(Sweep("margin", fixed=fixed, grid={"kind": ["f1", "linear"]}, repeats=2), tmp_path)
    assert len(found) == 4 and (found["lower"] <= found["upper"]).all() and (found["proved"] == 1).all()
    for _, row in found.iterrows():
        cert = getattr(margins, row.kind)(datasets.load(row.data))
        assert cert.lower <= row.upper + 1e-12 and row.lower <= cert.upper + 1e-12
        assert row.convention == cert.summary()["convention"] and row.status == cert.status


def test_optima(tmp_path):
    """Every row against the function called by itself; a sweep that was stopped goes on; what cannot be swept is refused."""
    fixed = {"data": "clusters:n=12,k=2,sep=1,seed={trial}", "tol": 1e-4, "output_bias": "none", "bias": False}
    grid = {"loss": ["logistic", "squared"], "share": [0.3, 0.02]}
    plan = Sweep("fit", fixed=fixed, grid=grid, repeats=2, seed=3)
    assert plan.pack == 1  # so that the seconds in `log` are those of each run
    found = rows_of(plan, tmp_path)
    assert len(found) == 8 and (found["proved"] == 1).all() and (found["status"] == "certified").all()
    for _, row in found.iterrows():
        data, keys = datasets.load(row.data), {"loss": row.loss, "bias": False, "output_bias": None}
        top = optima.largest_decay(data, **keys)
        assert top.lower * (1 - 2e-3) <= row.decay / row.share <= top.upper * (1 + 2e-3)
        cert = optima.f1(data, weight_decay=row.decay, tol=1e-4, **keys)
        assert cert.lower <= row.upper * (1 + 1e-12) and row.lower <= cert.upper * (1 + 1e-12)
        np.testing.assert_allclose(row["mean_loss"] + row.decay * row["norm"], row.upper, rtol=1e-9)
        assert row.neurons == int(row.neurons) >= 1 and 0 <= row.error <= 1
    state = sweep.sweep(Sweep("fit", fixed=fixed, grid=grid, repeats=3, seed=3), tmp_path, engine="inline")
    assert (state.before, state.done, state.failed) == (8, 12, 0)
    refused = {"data": "parity:d=3,n=8", "share": 0.1}
    for change, words in (
        ({"weight_decay": 0.1}, "one of weight_decay and share"),
        ({"share": -1.0}, "share must be a positive number"),
        ({"loss": "huber"}, "huber"),
        ({"output_bias": "decayed"}, "no largest decay"),
        ({"bias": 1}, "bias must be true or false"),
        ({"width": 3}, "fit has no parameter 'width'"),
    ):
        with pytest.raises(InputError, match=words):
            tasks.check(Sweep("fit", fixed={**refused, **change}))


def test_bounds(tmp_path):
    fixed = {"data": "parity:d=3,n=8", "theorems": ["UH-23", "MT-16", "WM-1"], "time_limit": 20.0}
    found = rows_of(Sweep("bound", fixed=fixed, grid={"delta": [0.05, 0.2]}), tmp_path)
    assert len(found) == 2
    for _, row in found.iterrows():
        direct = theory.guarantees(datasets.load("parity:d=3,n=8"), delta=row.delta, theorems=fixed["theorems"])
        ids = [one.id for one in direct.found]
        assert ids.count("UH-23") == 2 and ids.count("MT-16") == 3 and ids.count("WM-1") == 1
        names = ["UH_23", "UH_23_2", "MT_16", "MT_16_2", "MT_16_3", "WM_1"]
        for name, one in zip(names, direct.found, strict=True):
            np.testing.assert_allclose(row[name], float(one.value), rtol=1e-6)
            assert row[f"{name}_applies"] == one.to_dict()["applies"]


def test_a_bound_beyond_floating_point(monkeypatch):
    class Found:
        def to_dict(self):
            return {"guarantees": [{"id": "A-1", "value": {"loglog": 9.5}, "applies": "no"}]}

    monkeypatch.setattr(theory, "guarantees", lambda *_, **__: Found())
    run = sweep.Run("0" * 32, {"data": "parity:d=2,n=4"}, 0)
    (row,) = tasks._bound([run], 0, tasks.Work("bound", [run], 0))
    assert row == {"A_1": math.inf, "A_1_loglog": 9.5, "A_1_applies": "no"}


@pytest.mark.slow
def test_reproductions(tmp_path):
    found = rows_of(Sweep("reproduce", fixed={"id": "mt-1"}), tmp_path / "s")
    direct = papers.run(papers.find(["mt-1"])[0], tmp_path / "direct")
    assert found["true"][0] == sum(one.holds is True for one in direct) and found["false"][0] == 0
    kept = json.loads(found["verdicts"][0])
    assert [one["claim"] for one in kept] == [one.claim for one in direct]
    assert kept[0]["measured"] == direct[0].to_dict()["measured"]


MINE = """
import numpy as np

def f(x, seed, trial, power=2):
    return {"y": x**power, "r": float(np.random.default_rng(seed).random()), "array": np.arange(2), "t": trial}

def g(x):
    return x

def h(x, **more):
    return {"more": sorted(more)}
"""


def test_functions_of_one_s_own(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    plan = Sweep("mine:f", grid={"x": [2, 3]}, fixed={"power": 3}, repeats=3, folder=tmp_path)
    found = rows_of(plan, tmp_path / "s")
    assert (found["y"] == found["x"] ** 3).all() and (found["t"] == found["trial"]).all()
    assert found["array"][0] == "[0, 1]"
    draws = found.groupby("trial")["r"].agg(["nunique", "first"])
    assert (draws["nunique"] == 1).all() and draws["first"].nunique() == 3  # trials are independent of each other
    other = rows_of(Sweep("mine:f", grid={"x": [2]}, repeats=3, seed=1, folder=tmp_path), tmp_path / "s2")
    assert not set(other["r"]) & set(found["r"])
    found = rows_of(Sweep("mine:h", grid={"x": [2], "z": [3]}, folder=tmp_path), tmp_path / "s3")
    assert json.loads(found["more"][0]) == ["seed", "trial", "z"]
    for function, fixed, words in (
        ("mine:f", {"x": 1, "z": 1}, "mine:f has no parameter 'z'"),
        ("mine:f", {}, "missing a required argument"),
        ("mine:k", {}, "cannot be imported"),
    ):
        with pytest.raises(InputError, match=words):
            tasks.check(Sweep(function, fixed=fixed, folder=tmp_path))
    state = sweep.sweep(Sweep("mine:g", fixed={"x": 1}, folder=tmp_path), tmp_path / "s4", engine="inline")
    assert state.failed == 1 and "must return a mapping" in state.errors[0]


def test_a_changed_function_or_data_file_is_run_again(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    plan = Sweep("mine:f", grid={"x": [2, 3]}, folder=tmp_path)
    first = tasks.version(plan)
    sweep.sweep(plan, tmp_path / "s", engine="inline")
    (tmp_path / "mine.py").write_text(MINE.replace("x**power", "x**power + 1"))
    assert tasks.version(plan) != first
    state = sweep.sweep(plan, tmp_path / "s", engine="inline")
    assert (state.done, state.before) == (2, 0)
    assert sorted(sweep.load(tmp_path / "s")["y"]) == [4, 5, 9, 10]
    other = tmp_path / "elsewhere"  # a module of the same name in another folder is another one
    other.mkdir()
    (other / "mine.py").write_text("def f(x):\n    return {'y': -x}\n")
    assert list(rows_of(Sweep("mine:f", grid={"x": [2]}, folder=other), tmp_path / "s2")["y"]) == [-2]

    path = tmp_path / "points.npz"  # data beside the sweep's file
    for seed in (0, 1):
        datasets.save_dataset(datasets.load(f"parity:d=3,n=16,seed={seed}"), path)
        plan = Sweep("train", fixed={"data": "points.npz", "steps": 3, "width": 4}, folder=tmp_path)
        assert sweep.sweep(plan, tmp_path / "s3", engine="inline").before == 0
    assert sweep.load(tmp_path / "s3")["risk"].nunique() == 2


def test_threads_are_given_back(tmp_path):
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        rows_of(Sweep("train", fixed={"data": "parity:d=3,n=8", "steps": 3, "width": 4}), tmp_path)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


ODD = """
import sys, torch
class Panic(BaseException):
    "As libraries in Rust raise it, and asyncio."
def f(x, y=(), trial=0):
    if x == "panic":
        raise Panic("index out of bounds")
    print("hello")
    if x == "exit":
        sys.exit(0)
    if x == "keys":
        return {"z": {(1, 2): 3}}
    if x == "loop":
        loop = []
        loop.append(loop)
        return {"z": loop}
    if x == "threads":
        torch.set_num_threads(2)
    with open("calls.txt", "a") as file:
        print(x, file=file)
    return {"z": [1.0, float("nan")], "t": torch.tensor([1.0, 2.0]), "threads": torch.get_num_threads()}

def grow(x, y):
    x.append(y)
    return {"s": sum(x)}
"""


def test_one_odd_run_costs_no_other(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd.py").write_text(ODD)
    plan = Sweep("odd:f", grid={"x": ["a", "exit", "panic", "keys", "loop", "threads", "b"]}, folder=tmp_path)
    state = sweep.sweep(plan, tmp_path / "s", engine="inline")
    assert (state.done, state.failed) == (3, 4)
    said = " ".join(state.errors)
    assert (
        "Panic: index out of bounds" in said
        and "SystemExit: 0" in said
        and "TypeError" in said
        and ("ValueError" in said or "RecursionError" in said)
    )
    table = sweep.load(tmp_path / "s").set_index("x")
    assert table.loc["a", "z"] == "[1.0, null]" and table.loc["b", "t"] == "[1.0, 2.0]"
    assert table.loc["b", "threads"] == 1  # whatever the run before has set
    assert (tmp_path / "calls.txt").read_text().split() == ["a", "threads", "b"]  # none of them twice
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("hello") == 6


def test_a_function_may_change_what_it_is_given(tmp_path):
    (tmp_path / "odd.py").write_text(ODD)
    plan = Sweep("odd:grow", fixed={"x": [1, 2]}, grid={"y": [1, 2, 3]}, folder=tmp_path)
    table = rows_of(plan, tmp_path / "s")
    assert sorted(table["s"]) == [4, 5, 6] and set(table["x"]) == {"[1, 2]"}
    assert sweep.sweep(plan, tmp_path / "s", engine="inline").before == 3


def test_code_or_data_that_change_on_the_way_end_the_sweep(tmp_path):
    (tmp_path / "mine.py").write_text("from pathlib import Path\ndef f(x):\n    return {'y': 1}\n")
    plan = Sweep("mine:f", grid={"x": [1, 2, 3]}, pack=1, folder=tmp_path)

    class Editing(Inline):
        def submit(self, function, work):
            if work.runs[0].params.get("x", 0) == 3:
                (tmp_path / "mine.py").write_text("def f(x):\n    return {'y': 2}\n")
            return super().submit(function, work)

    with pytest.raises(InputError, match="is not the one that this sweep began with"):
        sweep.sweep(plan, tmp_path / "s", engine=Editing())
    assert list(sweep.load(tmp_path / "s")["y"]) == [1, 1]
    state = sweep.sweep(plan, tmp_path / "s", engine="inline")  # the new code is another version
    assert (state.done, state.before) == (3, 0)


def test_every_run_knows_its_own_files(tmp_path):
    def save(k, seed):
        datasets.save_dataset(datasets.load(f"parity:d=3,n=8,seed={seed}"), tmp_path / f"d_{k}.npz")

    for k in (1, 2, 3):
        save(k, k)
    fixed = {"steps": 3, "width": 4}
    braces = Sweep("train", fixed={**fixed, "data": "d_{k}.npz"}, grid={"k": [1, 2]}, folder=tmp_path)
    assert sweep.sweep(braces, tmp_path / "s", engine="inline").before == 0
    save(1, 7)
    state = sweep.sweep(braces, tmp_path / "s", engine="inline")
    assert (state.done, state.before) == (2, 1)
    for files, before in ((["d_1.npz", "d_2.npz"], 0), (["d_1.npz", "d_2.npz", "d_3.npz"], 2)):
        plan = Sweep("train", fixed=fixed, grid={"data": files}, folder=tmp_path)
        assert sweep.sweep(plan, tmp_path / "s2", engine="inline").before == before
    assert len(sweep.load(tmp_path / "s2")) == 3
    test = Sweep("train", fixed={**fixed, "data": "d_2.npz", "test": "d_3.npz"}, folder=tmp_path)
    sweep.sweep(test, tmp_path / "s3", engine="inline")
    save(3, 9)
    assert sweep.sweep(test, tmp_path / "s3", engine="inline").before == 0


def test_a_field_of_some_rules_that_data_mentions_is_no_loose_one(tmp_path):
    fixed = {"data": "parity:d=4,n=16,seed={batch}", "steps": 20, "lr": 0.3, "width": 6}
    grid = {"algorithm": ["gd", "sgd"], "batch": [2, 8]}
    keep = ["margin_M2", "risk"]
    packed = rows_of(Sweep("train", fixed=fixed, grid=grid, keep=keep), tmp_path / "packed")
    single = rows_of(Sweep("train", fixed=fixed, grid=grid, keep=keep, pack=1), tmp_path / "single")
    assert packed["risk"].nunique() == 4
    np.testing.assert_allclose(packed["risk"], single["risk"], rtol=1e-12)
    plan = Sweep("train", fixed=fixed | {"batch": 2}, grid={"certify": [True, 1]})
    assert len(list(tasks.batches(plan, "0"))) == 2  # a minute is not a second


def test_the_share_of_squared_relu(tmp_path):
    fixed = {"data": "clusters:n=8,k=2,seed=0", "net": "srelu", "width": 20, "steps": 3000, "lr": 0.2, "certify": 20.0}
    row = rows_of(Sweep("train", fixed=fixed), tmp_path).iloc[0]
    assert row["fraction"] == pytest.approx(row["margin_M1"] / row["certified_upper"]) and 0 < row["fraction"] <= 1


def test_what_the_command_line_takes_a_sweep_takes_too(tmp_path):
    X = np.linspace(-1, 1, 12).reshape(6, 2)
    np.savez(tmp_path / "targets.npz", X=X, y=X[:, 0] ** 2)
    fixed = {"data": "targets.npz", "loss": "squared", "steps": 5, "lr": 0.1, "width": 4}
    assert rows_of(Sweep("train", fixed=fixed, folder=tmp_path), tmp_path / "s")["risk"][0] > 0
    fixed = {"data": "parity:d=3,n=8", "net": "mlp", "outputs": 2, "loss": "ce", "steps": 5, "width": 4}
    assert rows_of(Sweep("train", fixed=fixed), tmp_path / "s2")["risk"][0] > 0


@pytest.mark.parametrize(
    ("function", "more", "words"),
    [
        ("train", {"loss": "zz"}, "loss"),
        ("train", {"until": "zz"}, "until"),
        ("train", {"clock": "zz"}, "clock"),
        ("train", {"dtype": "zz"}, "dtype"),
        ("train", {"algorithm": "wgf"}, "particles"),
        ("train", {"net": "mlp", "certify": True}, "certify is about"),
        ("train", {"loss": "squared", "certify": True}, "certify is about"),
        ("train", {"net": ["relu"]}, "unknown network"),
        ("train", {"algorithm": ["gd"]}, "algorithm must be"),
        ("margin", {"tol": "zz"}, "tol must be"),
        ("margin", {"time_limit": -1}, "time_limit must be"),
        ("margin", {"kind": ["f1"]}, "unknown kind"),
        ("bound", {"delta": 2}, "delta must lie"),
        ("bound", {"delta": "zz"}, "delta must be"),
        ("bound", {"run_or_net": "zz"}, "zz"),
        ("bound", {"theorems": [[1]]}, "theorems must be"),
    ],
)
def test_bad_values_are_refused_before_anything_runs(tmp_path, function, more, words):
    fixed = {"data": "parity:d=3,n=8"} | ({"steps": 3} if function == "train" else {}) | more
    with pytest.raises(InputError, match=words):
        sweep.sweep(Sweep(function, fixed=fixed), tmp_path / "s", engine="inline")
    assert not (tmp_path / "s").exists()


def test_functions_that_cannot_be_asked(tmp_path):
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    for function, words in (("builtins:dict", "does not tell its parameters"), ("leaves:f", "cannot be imported")):
        with pytest.raises(InputError, match=words):
            sweep.sweep(Sweep(function, folder=tmp_path), tmp_path / "s", engine="inline")


def test_no_parameter_names_a_file_to_write():
    """A plan from someone else may run these, so that what they take may at most be read."""
    named = set(tasks.FIT) | set(tasks.BOUND) | {"id", "scale", "device"}
    for kind in kinds.OFFERED:
        named |= set(tasks._margin_names({"kind": kind}))
    for net in flows.nets.KINDS:
        for algorithm in flows.rule_kinds():
            named |= set(tasks._train_names({"net": net, "algorithm": algorithm}))
    assert not named & {
        "out",
        "save",
        "path",
        "folder",
        "file",
        "store",
        "to",
        "checkpoint",
        "resume",
        "progress",
        "record",
    }


def test_a_run_returns_no_more_than_can_be_read_again(tmp_path):
    (tmp_path / "mine.py").write_text("def f(x):\n    return {'y': x, 't': 'a' * (1 << 23), 'u': 'ä' * (1 << 22)}\n")
    plan = Sweep("mine:f", grid={"x": [1, 2]}, folder=tmp_path)
    state = sweep.sweep(plan, tmp_path / "s", engine="inline")
    assert state.failed == 2 and "longer than 16 MB" in state.errors[0] and "use `keep`" in state.errors[0]
    plan = Sweep("mine:f", grid={"x": [1, 2]}, folder=tmp_path, keep=["y", "t"])
    assert len(rows_of(plan, tmp_path / "s")) == 2


def test_a_file_of_the_same_size_and_time_is_another(tmp_path):
    """Copies keep the time of what they copy, and a clock may be set back: 0 is a time like others."""
    path = tmp_path / "data.csv"
    stamps = []
    for label in ("1", "2"):
        path.write_text(f"x,y\n1,{label}\n")
        os.utime(path, (0, 0))
        stamps.append(tasks._stamp(str(path)))
    assert stamps[0] != stamps[1]
