"""`widemargin bound`, `check`, `theorems`, and the kinds of margins beyond f1."""

from __future__ import annotations

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose

from test_cli import refused, run
from widemargin import theory

pytestmark = pytest.mark.usefixtures("one_thread")
PLANE = "mt:d=2,n=300,seed=1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    words = "--net relu --width 20 --algorithm gf --steps 130 --points 40 --trials 2 --weights --out"
    status, _, err = run("train", "parity:d=3,n=8,marginal=full", *words.split(), out)
    assert status == 0, err
    return out


# ---------------------------------------------------------------- bound


def test_bound_prints_every_guarantee_and_the_best():
    status, out, _ = run("bound", PLANE, "--json")
    found = json.loads(out)
    assert status == 0 and found["n"] == 300 and found["delta"] == 0.05
    assert {"MT-7", "WM-1", "UH-23", "LR-15"} <= {one["id"] for one in found["guarantees"]}
    for one in found["guarantees"]:
        assert one["applies"] in ("yes", "no", "not checked") and one["reference"] and one["statement"]
        assert all(a["holds"] in ("yes", "no", "not checked") for a in one["assumptions"])
    best = found["best"]
    errors = [one["value"] for one in found["guarantees"] if one["quantity"] == "test error" and one["explicit"]]
    assert best["value"] == min(errors) < 1
    status, out, _ = run("bound", PLANE, "--time-limit", 0.3)
    assert status == 0 and "best bound on the test error of the kernel classifier" in out and "exp(exp(" in out


def test_bound_of_some_theorems_at_another_delta():
    values = []
    for delta in ("0.05", "0.001"):
        status, out, _ = run("bound", PLANE, "--theorem", "WM-1", "--delta", delta, "--json")
        (one,) = json.loads(out)["guarantees"]
        assert status == 0 and one["id"] == "WM-1"
        values.append(one["value"])
    assert values[1] > values[0]
    assert "No bound" in run("bound", "parity:d=4,n=12", "--theorem", "MT-7")[1]
    said = run("bound", "parity:d=4,n=12", "--theorem", "CB-14")[1]  # of frozen neurons, in numbers that data have not
    assert "No bound" not in said and "`widemargin theorems CB-14` tells" in " ".join(said.split())


def test_bound_of_a_run_has_bounds_of_the_network(folder):
    status, out, _ = run("bound", "parity:d=3,n=8,marginal=full", "--run", folder, "--json")
    found = json.loads(out)["guarantees"]
    assert status == 0 and {"trained network"} <= {one["about"] for one in found}
    width = next(one for one in found if one["id"] == "LR-15")
    assert width["applies"] == "no" and any("m >=" in a["text"] for a in width["assumptions"] if a["holds"] == "no")


def test_bound_refuses(folder):
    assert "there is no theorem 'LR-99'" in refused("bound", PLANE, "--theorem", "LR-99")
    assert "is not the data of this run" in refused("bound", PLANE, "--run", folder)
    assert "trials 0 to 1" in refused("bound", "parity:d=3,n=8,marginal=full", "--run", folder, "--trial", "2")
    assert "is not a run" in refused("bound", PLANE, "--run", "/nowhere")


# ---------------------------------------------------------------- check


def test_check_finds_nothing_wrong_with_a_good_run(folder):
    status, out, _ = run("check", folder, "--json")
    found = json.loads(out)
    assert status == 0 and found["violated"] == []
    ids = {one["id"] for one in found["checks"] if one["holds"] == "yes"}
    assert {"UH-18", "LR-7", "LR-24", "CB-8"} <= ids
    for one in found["checks"]:
        assert (one["smallest"] is None) == (one["holds"] == "not checked")
    status, out, _ = run("check", folder)
    assert status == 0 and "smallest slack" in out and "VIOLATED" not in out


def test_check_finds_a_run_that_cannot_be(folder, tmp_path):
    """The smooth margin lowered at one record: monotonicity fails, and the status says so."""
    bad = tmp_path / "bad"
    bad.mkdir()
    for path in folder.rglob("*"):
        if path.is_file() and path.name != ".lock":
            target = bad / path.relative_to(folder)
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(path.read_bytes())
    part = sorted((bad / "records").glob("*.npz"))[-1]
    with np.load(part) as file:
        arrays = {name: file[name] for name in file.files}
    assert (arrays["log_risk"][-1] < np.log(np.log(2) / 8)).all(), "the run has fitted its data before its end"
    arrays["psi"][-1] *= 0.1
    arrays["psi_normalized"][-1] *= 0.1
    np.savez(part, **arrays)
    status, out, _ = run("check", bad)
    assert status == 1 and "VIOLATED UH-18" in out
    assert "UH-18" in json.loads(run("check", bad, "--json")[1])["violated"]


def test_check_refuses(tmp_path):
    assert "is not a run" in refused("check", tmp_path)


# ---------------------------------------------------------------- theorems


def test_theorems_lists_all():
    status, out, _ = run("theorems", "--json")
    found = json.loads(out)
    assert status == 0 and [one["id"] for one in found] == sorted(theory.THEOREMS, key=theory.order)
    assert all(one["statement"] and one["reference"] and isinstance(one["assumptions"], list) for one in found)
    status, out, _ = run("theorems")
    assert status == 0 and all(f"{id}  " in out for id in theory.THEOREMS)


def test_theorems_of_one_paper():
    status, out, _ = run("theorems", "CB", "--json")
    ids = [one["id"] for one in json.loads(out)]
    assert status == 0 and ids == ["CB-14", "CB-16", "CB-18", "CB-20", "CB-21", "CB-22"]
    assert json.loads(run("theorems", "mt", "CB", "--json")[1])[-6:] == json.loads(out)
    status, out, _ = run("theorems", "CB")
    assert status == 0 and all(f"{id}  " in out for id in ids) and "MT-7" not in out and "call " not in out


def test_theorems_says_all_about_one():
    status, out, _ = run("theorems", "CB-22")
    assert status == 0
    for words in (
        "CB-22  A margin gamma in a class of known complexity bounds the test error",
        "[CB Theorem 22]",
        "<= 4 Rad/gamma + sqrt(ln log2(4C/gamma)/n)",
        "assumes the margin on the sample is positive",
        "call theory.generalization.class_margin_bound(rademacher, gamma, C, n, delta=0.05, *,",
        "gamma: must be a positive number",
        "delta: must lie strictly between 0 and 1",
        "convention: must be derived or printed",
        "tested in tests/theory/test_generalization.py",
    ):
        assert words in out, words
    (one,) = json.loads(run("theorems", "CB-22", "--json")[1])
    assert one["id"] == "CB-22" and one["arguments"]["delta"] == "must lie strictly between 0 and 1"
    assert set(one) == set(theory.theorem("CB-22").to_dict()) | {"formula", "call", "arguments", "example", "tested"}


def test_theorems_refuses():
    assert "there is no theorem 'CB-23'; the nearest are CB-20, CB-21, CB-22" in refused("theorems", "CB-23")
    assert "there is no theorem 'NTK'; the nearest are " in refused("theorems", "NTK")
    assert refused("theorems", "margins").strip().endswith(", and the papers are UH, LR, MT, BN, CB, WM")


def test_theorems_of_an_author():
    assert run("theorems", "chizat") == run("theorems", "CB") and run("theorems", "Telgarsky") == run("theorems", "LR")


# ---------------------------------------------------------------- margins of the other kinds


def test_margins_of_the_other_kinds(tmp_path):
    cube = "parity:d=4,n=16,marginal=full"
    status, out, err = run(
        "margin", cube, "--kind", "ntk,bn,projected,collapse", "--width", 60, "--json", "--save", tmp_path / "c.json"
    )
    assert status == 0, err
    ntk, bn, projected, collapse = json.loads(out)
    assert ntk["samples"] > 1000 and ntk["confidence"] == 0.99 and 0 < ntk["lower"] < ntk["upper"] and not ntk["proved"]
    assert_allclose(bn["gamma_a"]["lower"] + bn["gamma_c"]["lower"], bn["lower"])
    assert bn["gap"] <= 1e-3 and projected["rank"] == 2 and projected["lower"] <= projected["upper"]
    assert collapse["status"] == "not-found" and collapse["upper"] == 0
    for kind in ("ntk", "bn", "projected", "collapse"):
        status, out, _ = run("verify", tmp_path / f"c.{kind}.json", cube, "--json")
        assert status == (3 if kind == "ntk" else 0) and json.loads(out)["failed"] is None, kind
    status, out, _ = run("margin", cube, "--kind", "ntk", "bn", "--width", 60)
    assert status == 0 and "gamma_a" in out and "probability" in out


def test_ntk_options():
    cube = "parity:d=4,n=16,marginal=full"
    status, out, _ = run("margin", cube, "--kind", "ntk", "--transport", "l2", "--json")
    found = json.loads(out)
    assert status == 0 and found["proved"]
    assert_allclose([found["lower"], found["upper"]], 0.184632, atol=1e-6)
    few, more = (json.loads(run("margin", cube, "--kind", "ntk", "--samples", n, "--json")[1]) for n in (2000, 200_000))
    assert more["samples"] == 200_000 and more["gap"] < few["gap"]
    outer = json.loads(run("margin", cube, "--kind", "ntk", "--part", "outer", "--json")[1])
    assert outer["upper"] < more["lower"]


def test_several_classes_on_request(tmp_path):
    path = tmp_path / "three.csv"
    path.write_text("a,b,y\n1,0,0\n-0.5,0.866,1\n-0.5,-0.866,2\n")
    assert "two classes" in refused("margin", path) or "classes" in refused("margin", path)
    status, out, err = run(
        "margin", path, "--multiclass", "--kind", "f1,linear", "--json", "--save", tmp_path / "c.json"
    )
    assert status == 0, err
    f1, linear = json.loads(out)
    assert_allclose(f1["lower"], 1 / np.sqrt(6), rtol=2e-3)
    assert_allclose(linear["lower"], np.sqrt(3) / 2, rtol=1e-3)
    for kind in ("f1", "linear"):
        status, out, _ = run("verify", tmp_path / f"c.{kind}.json", path, "--json")
        assert status == 0 and json.loads(out)["ok"]
    assert "--multiclass is for" in refused("margin", path, "--multiclass", "--kind", "f2")
    assert "--bias does not apply" in refused("margin", "parity:d=3,n=8", "--kind", "projected", "--bias")
