"""The command line: what it prints where, its exit status, and that bad input ends in one sentence."""

import contextlib
import gzip
import io
import json
import math
import os
import re
import signal
import string
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import widemargin
from widemargin import Certificate, cli, data, types, verify

KEYS = set(
    [
        "kind",
        "lower",
        "upper",
        "gap",
        "status",
        "proved",
        "bound",
        "convention",
        "n",
        "d",
        "bias",
        "activation",
        "atoms",
        "seconds",
        "seed",
        "conversions",
    ]
)
SMALL = "clusters:n=8,d=2,k=2,seed=0"  # all kinds are quick here
XOR = "x0,x1,y\n1,1,1\n-1,-1,1\n1,-1,-1\n-1,1,-1\n"


def run(*argv):
    """Exit status, standard output, standard error; any exception but SystemExit is a bug."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = cli.main(list(map(str, argv)))
        except SystemExit as end:
            status = end.code or 0
    assert "Traceback" not in err.getvalue()
    return status, out.getvalue(), err.getvalue()


def refused(*argv):
    """The one sentence of a refusal."""
    status, out, err = run(*argv)
    assert status == 2, (argv, out, err)
    assert out == ""
    assert err.startswith("widemargin: ") and err.count("\n") == 1, err
    return err


@pytest.fixture
def xor(tmp_path):
    path = tmp_path / "xor.csv"
    path.write_text(XOR)
    return path


def shell(*argv, **keys):
    command = [sys.executable, "-m", "widemargin", *map(str, argv)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, **keys)


# ---------------------------------------------------------------- margin


def test_json_of_one_kind(xor):
    status, out, err = run("margin", xor, "--json")
    found = json.loads(out)
    assert (status, err) == (0, "")
    assert found.keys() >= KEYS
    assert found["lower"] <= np.sqrt(2) / 4 * (1 + 1e-9) and found["upper"] >= np.sqrt(2) / 4 * (1 - 1e-9)
    assert found["gap"] <= 1e-3
    said = {
        key: found[key] for key in ("kind", "status", "proved", "convention", "n", "d", "bias", "activation", "seed")
    }
    assert said == {
        "kind": "f1",
        "status": "certified",
        "proved": True,
        "convention": "M1",
        "n": 4,
        "d": 2,
        "bias": False,
        "activation": "relu",
        "seed": 0,
    }
    assert_allclose(found["conversions"]["M2"], found["lower"] / 2)


@pytest.mark.parametrize(
    "kinds",
    [
        ("--kind", "f2", "linear", "rf"),
        ("--kind", "f2,linear,rf"),
        ("--kind", "f2", "--kind", "linear", "--kind", "rf,f2"),
        ("--kind", "f2, linear , rf,"),
    ],
)
def test_several_kinds_give_a_list(kinds):
    for argv in ((SMALL, *kinds), (*kinds, SMALL)):
        status, out, _ = run("margin", *argv, "--json", "--width", 20)
        assert status == 0
        assert [one["kind"] for one in json.loads(out)] == ["f2", "linear", "rf"]


def test_options_reach_the_solvers():
    argv = ("margin", SMALL, "--kind", "frozen,rf,f2,linear", "--json", "--width", 30, "--bias", "--seed", 3)
    _, out, err = run(*argv, "--activation", "srelu", "--threads", 1, "--tol", "1e-2")
    frozen, rf, f2, linear = json.loads(out)
    assert all(one["bias"] for one in (frozen, rf, f2, linear))
    assert [one["activation"] for one in (frozen, rf, f2)] == ["srelu"] * 3
    assert frozen["seed"] == rf["seed"] == 3
    expected = widemargin.margins.frozen(data.load(SMALL), 30, bias=True, activation="srelu", seed=3)
    assert_allclose(frozen["lower"], expected.lower, rtol=1e-6)
    assert err == "using 1 thread\n"
    assert json.loads(run(*argv, "--no-bias")[1])[0]["bias"] is False


def test_table_shows_the_convention():
    status, out, err = run("margin", SMALL, "--kind", "f2", "linear", "frozen", "--width", 20, "--verbose")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    for kind, convention in (("f2", "M7"), ("linear", "M11"), ("frozen", "M1")):
        (row,) = [line for line in lines if f" {kind} " in line]
        assert f" {convention} " in row and "certified" in row and "dual" in row
        assert any(line.startswith(f"{convention}: ") for line in lines)


def test_plain_words():
    """One margin is one sentence, several are a table; codes come with --verbose alone."""
    status, out, _ = run("margin", "clusters:n=30,seed=0", "--bias")
    assert status == 0 and re.search(
        r"largest margin \(F1\) 0\.08428 \(gap [\d.e-]+\), \d+ neurons, proof checked, [\d.]+ seconds\n", out
    )
    status, table, _ = run("margin", "clusters:n=30,seed=0", "--kind", "f1", "f2", "linear")
    assert status == 0 and "nothing of this kind separates the data" in table and "neurons" in table
    for code in ("M1", "M7", "M11", "enumeration", "dual", "atoms"):
        assert code not in out and code not in table, code
    _, told, _ = run("margin", "clusters:n=30,seed=0", "--bias", "--verbose")
    assert "M1" in told and "enumeration" in told and "M1: sum of |mass|" in told


@pytest.mark.parametrize(("width", "said"), [(100, "proof checked"), (60_000, "proved")])
def test_a_proof_of_very_many_neurons_is_not_checked_on_the_spot(width, said):
    """It took ten times as long as the margin."""
    status, out, _ = run("margin", "dyadic:d=2", "--kind", "rf", "--width", width)
    assert status == 0 and f", {said}, " in out


NARROW = {
    "margin": ("margin", SMALL, "--kind", "f1", "f2", "linear", "frozen", "--width", 20),
    "margin, all codes": ("margin", SMALL, "--kind", "f2", "linear", "--verbose"),
    "fit": ("fit", SMALL, "--path", "0.01:0.1:2"),
    "train": ("train", SMALL, "--steps", 20, "--trials", 2, "--width", 8, "--certify"),
    "bound": ("bound", SMALL, "--theorem", "CB-22", "MT-7", "LR-15", "UH-23", "--time-limit", 0.2),
    "theorems": ("theorems", "CB-22"),
}


@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize("argv", NARROW.values(), ids=NARROW)
def test_tables_in_narrow_terminals(argv, columns: int, monkeypatch):
    """No cell is cut, none is a column of letters, and what is stacked keeps to the width."""
    monkeypatch.setenv("COLUMNS", str(columns))
    status, out, _ = run(*argv)
    assert status == 0 and "..." not in out and "\u2026" not in out
    tables = [line for line in out.splitlines() if line.startswith(("\u2502", "\u250f"))]
    assert all(len(line) <= columns for line in tables)
    assert all(line.endswith("\u2513") and "\u2533\u2533" not in line for line in tables if line[0] == "\u250f"), (
        "a column is lost"
    )
    heads = [line for line in out.splitlines() if line.startswith("\u2503")]
    assert len(heads) == out.count("\u250f"), "a heading takes several lines: the table is squeezed"
    assert not any(0 < len(line.strip()) <= 2 for line in out.splitlines())
    if argv[0] != "theorems":
        assert not [line for line in out.splitlines() if len(line) > columns]
    monkeypatch.setenv("COLUMNS", "200")
    assert "\u250f" in run(*argv)[1] or argv[0] == "theorems"  # where there is room, a table


NEARLY = {
    "command": (("margn", SMALL), "did you mean margin?"),
    "kind": (("margin", SMALL, "--kind", "lineer"), "did you mean linear?"),
    "option": (("margin", SMALL, "--knd", "f1"), "did you mean --kind?"),
    "option of another command": (
        ("margin", SMALL, "--weight-decay", "1"),
        "--weight-decay 1; see widemargin margin --help",
    ),
    "choice": (("fit", SMALL, "--loss", "logitic", "--weight-decay", 1), "did you mean logistic?"),
    "data set": (("margin", "partiy:d=3,n=8"), "did you mean parity?"),
    "key": (("margin", "parity:d=3,sed=8"), "did you mean seed?"),
    "option of a rule": (("train", SMALL, "--option", "weight_deccay=1"), "did you mean weight_decay?"),
}


@pytest.mark.parametrize(("argv", "said"), NEARLY.values(), ids=NEARLY)
def test_did_you_mean(argv, said: str):
    assert said in refused(*argv)
    assert "did you mean" not in refused("margin", "zzzz:q=1")


def test_a_misspelt_column(tmp_path):
    (tmp_path / "t.csv").write_text("height,species\n1,oak\n2,fir\n")
    assert "did you mean species?" in refused("margin", tmp_path / "t.csv", "--label", "spices")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("shape", ["(2L, 1L)", "(1if 1else 2,)"])
def test_heads_of_arrays_that_libraries_warn_of(tmp_path, shape, recwarn):
    """Of Python 2, which are read, and damaged ones: numpy and Python wrote lines of their own beside ours."""
    np.save(tmp_path / "t_y.npy", [1.0, -1.0])
    head = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    content = np.array([1.0, -1.0]).tobytes()
    (tmp_path / "t.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + content)
    status, _, err = run("data", tmp_path / "t.npy", "--out", tmp_path / "made.npz")
    assert (status, err.count("\n"), recwarn.list) == (0 if "L" in shape else 2, 1, []), err


def test_labels_are_mapped_and_said(tmp_path):
    for first, second in (("0", "1"), ("cat", "dog")):
        path = tmp_path / "labels.csv"
        path.write_text(f"a,b,kind\n1,2,{first}\n2,1,{second}\n-1,3,{first}\n")
        status, out, err = run("margin", path, "--label", "kind", "--kind", "linear", "--json")
        assert status == 0 and json.loads(out)["n"] == 3
        assert first in err and second in err and "-> -1" in err


def test_time_limit_is_a_result():
    status, out, _ = run("margin", "parity:d=20,n=64", "--time-limit", "0.01", "--json")
    found = json.loads(out)
    assert status == 0 and found["status"] == "time-limit"


def test_a_stalled_solve_is_a_result(monkeypatch):
    monkeypatch.setattr(widemargin.margins.wide_networks.Solver, "add", lambda *_: 0)
    status, out, _ = run("margin", "parity:d=4,n=16", "--json")
    found = json.loads(out)
    assert status == 0 and found["status"] == "stalled" and 0 <= found["lower"] < found["upper"]
    status, out, _ = run("margin", "parity:d=4,n=16")
    assert status == 0 and "stalled" in out


def test_save_and_verify(xor, tmp_path):
    for name in ("cert.json", "cert.json.gz"):
        path = tmp_path / name
        status, _, err = run("margin", xor, "--save", path)
        assert status == 0 and str(path) in err
        status, out, _ = run("verify", path, xor)
        assert status == 0 and "verified exactly" in out and "M1" in out
        status, out, err = run("verify", path, xor, "--json")
        verdict = json.loads(out)
        assert (status, err) == (0, "") and verdict["ok"] and verdict["failed"] is None
        assert verdict["convention"] == "M1" and verdict["lower"] <= verdict["upper"]


@pytest.mark.parametrize("bad", [("ntk", "--samples", 1), ("projected", "--rank", 99)])
def test_what_was_found_is_kept_where_a_later_kind_refuses(tmp_path, bad):
    """The search before it may have taken hours."""
    kind, *option = bad
    argv = ("margin", SMALL, "--kind", f"linear,f2,{kind}", *option)
    status, out, err = run(*argv, "--save", tmp_path / "c.json", "--json")
    assert status == 2 and option[0][2:] in err.splitlines()[-1]
    assert [one["kind"] for one in json.loads(out)] == ["linear", "f2"]
    assert sorted(os.listdir(tmp_path)) == ["c.f2.json", "c.linear.json"]
    status, out, err = run(*argv)
    assert status == 2 and "linear" in out and err.count("\n") == 1
    assert refused("margin", SMALL, "--kind", kind, *option, "--json")


def test_what_cannot_be_saved_does_not_keep_the_others_from_it(tmp_path, monkeypatch):
    solve = widemargin.cli.margin.solve

    def unbounded(kind, *more):
        cert = solve(kind, *more)
        return replace(cert, upper=math.inf) if kind == "linear" else cert

    monkeypatch.setattr(widemargin.cli.margin, "solve", unbounded)
    status, _, err = run("margin", SMALL, "--kind", "linear,f2", "--save", tmp_path / "c.json")
    assert status == 2 and os.listdir(tmp_path) == ["c.f2.json"]
    assert err.splitlines()[-1].startswith("widemargin: linear has no upper bound yet")


@pytest.mark.parametrize("option", [("--norm", "l1"), ("--bias",)])
def test_a_bias_or_norm_that_one_kind_has_not_is_refused_before_any_search(tmp_path, monkeypatch, option):
    monkeypatch.setattr(widemargin.cli.margin, "solve", lambda *_: 1 / 0)
    said = refused("margin", SMALL, "--kind", "linear,projected", *option, "--save", tmp_path / "c.json")
    assert f"{option[0]} does not apply to projected" in said and os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "name, files", [("a.json", "a.f2.json a.linear.json"), ("b.json.gz", "b.f2.json.gz b.linear.json.gz")]
)
def test_save_of_several_kinds(tmp_path, name, files):
    assert run("margin", SMALL, "--kind", "f2", "linear", "--save", tmp_path / name)[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == files.split()
    for file in files.split():
        assert run("verify", tmp_path / file, SMALL)[0] == 0


def test_a_failing_save_leaves_nothing(xor, tmp_path, monkeypatch):
    before = sorted(os.listdir(tmp_path))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(types.os, "replace", full)
    status, out, err = run("margin", xor, "--kind", "f2", "--save", tmp_path / "c.json", "--json")
    assert status == 2 and "No space left" in err and err.count("\n") == 1
    assert json.loads(out)["kind"] == "f2"  # the result itself is not lost
    assert "No space left" in refused("data", SMALL, "--out", tmp_path / "d.npz")
    assert sorted(os.listdir(tmp_path)) == before


def test_a_failing_save_keeps_the_old_file(xor, tmp_path, monkeypatch):
    old = tmp_path / "c.json"
    old.write_text(said := '{"format": "widemargin-certificate-1"}')

    def broken(*_):
        raise MemoryError

    monkeypatch.setattr(Certificate, "payload", broken)
    status, _, err = run("margin", xor, "--kind", "f2", "--save", old)
    assert status == 2 and "memory" in err
    assert old.read_text() == said and sorted(os.listdir(tmp_path)) == ["c.json", "xor.csv"]


def test_no_upper_bound_is_not_saved(tmp_path, monkeypatch):
    cert = Certificate("f1", 0.1, np.inf, np.array([0.5, 0.5]), "time-limit", False, "none", 2, 2)
    monkeypatch.setattr(cli.margin, "solve", lambda *_: cert)
    status, out, err = run("margin", SMALL, "--save", tmp_path / "c.json", "--json")
    assert status == 2 and "no upper bound" in err and os.listdir(tmp_path) == []
    assert json.loads(out)["upper"] is None


# ---------------------------------------------------------------- interrupts


def stopped(kind="f1"):
    return Certificate(kind, 0.1, 0.4, np.array([0.5, 0.5]), "interrupted", True, "norm", 2, 2)


def test_interrupt_prints_the_best_so_far(monkeypatch, tmp_path):
    monkeypatch.setattr(cli.margin, "solve", lambda kind, *_: stopped(kind))
    status, out, _ = run("margin", SMALL, "--json", "--save", tmp_path / "c.json")
    assert status == 130 and json.loads(out)["status"] == "interrupted" and (tmp_path / "c.json").exists()
    status, out, _ = run("margin", SMALL, "--kind", "f1", "f2", "--json")
    assert status == 130 and [one["kind"] for one in json.loads(out)] == ["f1"]
    status, out, _ = run("margin", SMALL)
    assert status == 130 and "interrupted; both bounds hold" in out


def test_interrupt_before_a_result(monkeypatch):
    real = cli.margin.solve

    def solve(kind, *rest):
        if kind == "linear":
            raise KeyboardInterrupt
        return real(kind, *rest)

    monkeypatch.setattr(cli.margin, "solve", solve)
    status, out, err = run("margin", SMALL, "--kind", "f2", "linear", "--json")
    assert status == 130 and [one["kind"] for one in json.loads(out)] == ["f2"] and "interrupted" in err
    assert run("margin", SMALL, "--kind", "linear", "--json")[:2] == (130, "")


def test_ctrl_c():
    """A real signal to a real process, once it reports progress: the certificate so far, status 130."""
    code = "import sys; from widemargin import cli; cli.screen.EVERY = 0.0; sys.exit(cli.main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "margin", "parity:d=20,n=64", "--tol", "1e-9", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None and process.stderr.readline().startswith("f1 ")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err
    assert json.loads(out)["status"] == "interrupted"


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "text, words",
    [
        ("a,y\nnan,1\n2,-1\n", "NaN or infinity"),
        ("a,y\ninf,1\n2,-1\n", "NaN or infinity"),
        ("", "empty"),
        ("a,y\n", "empty"),
        ("a,y\n1,1\n2,1\n", "only one class"),
        ("a,y\n1,1\n2,2\n3,3\n", "3 classes"),
        ("a,b\n1,1\n2,-1\n", "no label column"),
        ("a,y\nred,1\n2,-1\n", "holds text"),
        ("a,y\n1,1\n2\n", "fields"),
        ("1,1\n2,-1\n", "header"),
    ],
)
def test_bad_tables(tmp_path, text, words):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    said = refused("margin", path, "--json")
    assert words in said and "bad.csv" in said
    assert "targets=True" not in said and "label=" not in said


def test_other_bad_data(tmp_path):
    lengths = tmp_path / "lengths.npz"
    np.savez(lengths, X=np.ones((3, 2)), y=np.ones(2))
    assert "3 rows" in refused("margin", lengths)
    whole = tmp_path / "whole.npz"
    np.savez(whole, X=np.eye(30), y=np.sign(np.arange(30) - 15.5))
    cut = tmp_path / "cut.npz"
    cut.write_bytes(whole.read_bytes()[:-200])
    assert "damaged" in refused("margin", cut)
    assert "no array" in refused("margin", whole, "--label", "absent")
    assert "folder" in refused("margin", tmp_path)
    assert "absent.csv" in refused("margin", tmp_path / "absent.csv")
    assert "unknown data set" in refused("margin", "party:d=2")
    assert "unknown key" in refused("margin", "parity:e=2")
    assert "no DATA" in refused("margin")
    assert "no DATA" in refused("margin", "--kind", "f2")


def test_odd_but_legal_data(tmp_path):
    """Contradictions and a point at the origin have margin 0; constant columns and extreme sizes are fine."""
    rows = {
        "contradiction": "1,2,1\n1,2,-1\n3,4,1\n",
        "origin": "0,0,1\n1,2,-1\n",
        "constant": "5,1,1\n5,-1,-1\n",
        "tiny": "1e-300,2e-300,1\n-1e-300,1e-300,-1\n",
        "huge": "1e300,2e300,1\n-1e300,1e300,-1\n",
    }
    for name, text in rows.items():
        path = tmp_path / f"{name}.csv"
        path.write_text("a,b,y\n" + text)
        status, out, _ = run("margin", path, "--kind", "f1", "f2", "linear", "frozen", "--json", "--width", 50)
        assert status == 0, name
        for one in json.loads(out):
            if name in ("contradiction", "origin"):
                assert (one["status"], one["lower"]) == ("not-separable", 0), (name, one)
            elif one["kind"] != "frozen":
                assert 0 < one["lower"] <= one["upper"], (name, one)


@pytest.mark.parametrize(
    "options, words",
    [
        (("--tol", "nan"), "--tol"),
        (("--tol", "0"), "--tol"),
        (("--tol", "x"), "--tol"),
        (("--tol", "-1"), "--tol"),
        (("--time-limit", "0"), "--time-limit"),
        (("--time-limit", "nan"), "--time-limit"),
        (("--time-limit", "inf"), "--time-limit"),
        (("--seed", "-1"), "--seed"),
        (("--seed", "1.5"), "--seed"),
        (("--seed", "9" * 5000), "--seed"),
        (("--threads", "0"), "--threads"),
        (("--width", "0"), "--width"),
        (("--kind", "f3"), "unknown kind 'f3'"),
        (("--kind", ","), "--kind is empty"),
        (("--kind",), "--kind"),
        (("--activation", "tanh"), "--activation"),
        (("--activation", "leaky:1"), "--activation"),
        (("--activation", "leaky:"), "--activation"),
        (("--device", "tpu"), "--device"),
        (("--frobnicate",), "--frobnicate"),
        (("--tim", "3"), "--tim"),
        (("extra",), "extra"),
        (("--save", ""), "--save"),
        (("--save", "no/such/folder/c.json"), "no folder"),
        (("--save", "."), "--save"),
        (("--save", "/"), "--save"),
        (("--save", "a\0b"), "no legal file name"),
        (("--save", "\ud800"), "no legal file name"),
        (("--save", "x" * 300), "File name too long"),
        (("--label", "y"), "--label"),
        (("--width", "5"), "--width does not apply to f1; leave it out, or ask for --kind frozen or rf or bn"),
        (("--kind", "linear,ntk", "--activation", "srelu"), "--activation does not apply to linear and ntk"),
        (("--kind", "f1,linear", "--rank", "1"), "--rank does not apply to f1 and linear"),
        (("--confidence", "0.9"), "ask for --kind ntk"),
        (("--part", "inner", "--kind", "bn"), "--part does not apply to bn"),
    ],
)
def test_bad_options(options, words):
    assert words in refused("margin", SMALL, *options)


def test_bad_commands():
    assert "COMMAND" in refused()
    assert "fly" in refused("fly")
    assert "--out" in refused("data", SMALL)


def test_no_cuda(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no CUDA device" in refused("margin", SMALL, "--device", "cuda")


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write anywhere")
def test_unwritable_folder(tmp_path):
    tmp_path.chmod(0o500)
    assert "not writable" in refused("margin", SMALL, "--save", tmp_path / "c.json")


# ---------------------------------------------------------------- verify and data


def test_verify_names_what_is_off(xor, tmp_path):
    path = tmp_path / "c.json"
    run("margin", xor, "--kind", "linear", "f2", "--save", path)
    saved = tmp_path / "c.f2.json"
    payload = json.loads(saved.read_text())
    payload["lower"] *= 2
    saved.write_text(json.dumps(payload))
    status, out, _ = run("verify", saved, xor)
    assert status == 1 and "NOT verified, digest" in out
    saved.write_text(json.dumps(payload | {"digest": verify.digest(payload)}))
    status, out, _ = run("verify", saved, xor, "--json")
    assert status == 1 and json.loads(out)["failed"].startswith("lower")
    status, out, _ = run("verify", tmp_path / "c.linear.json", SMALL)
    assert status == 1 and "shape" in out
    for text in ("[]", "{}", "3", '{"format": NaN}'):
        saved.write_text(text)
        status, out, _ = run("verify", saved, xor, "--json")
        assert status == 1 and json.loads(out)["ok"] is False


def test_verify_refuses_what_it_cannot_read(xor, tmp_path):
    path = tmp_path / "c.json"
    assert "No such file" in refused("verify", path, xor)
    whole = gzip.compress(b"{}" * 1000)
    for content, words in (
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"1" * 10_000, "not JSON"),
        (whole[:-4], "gzip"),
        (whole[:15] + b"\x00\x00" + whole[17:], "gzip"),
        (b"\x1f\x8b", "gzip"),
    ):
        path.write_bytes(content)
        assert words in refused("verify", path, xor)
    path.write_text("{}")
    assert "absent" in refused("verify", path, tmp_path / "absent.csv")


def test_data_round_trip(tmp_path):
    for name in ("d.npz", "d.csv"):
        status, out, err = run("data", "parity:d=3,n=5,seed=1", "--out", tmp_path / name)
        assert (status, out) == (0, "") and name in err
        back = data.load(str(tmp_path / name))
        assert_array_equal(back.X, data.parity(3, 5, seed=1).X)
    assert "must end in" in refused("data", SMALL, "--out", tmp_path / "d.txt")
    assert "no folder" in refused("data", SMALL, "--out", tmp_path / "no" / "d.npz")
    assert "no data set" in refused("data", "nothing", "--out", tmp_path / "e.npz")
    assert sorted(os.listdir(tmp_path)) == ["d.csv", "d.npz"]


# ---------------------------------------------------------------- the process


def test_version_and_help():
    assert run("--version")[:2] == (0, f"widemargin {widemargin.__version__}\n")
    status, out, _ = run("--help")
    assert status == 0 and all(word in out for word in ("margin", "verify", "data", "demo", "130"))
    for command in ("margin", "verify", "data", "demo"):
        assert run(command, "--help")[0] == 0


def test_as_a_process(xor):
    done = shell("margin", xor, "--kind", "linear", "f2", "--json", env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and done.stderr == ""
    assert [one["kind"] for one in json.loads(done.stdout)] == ["linear", "f2"]
    assert "no-such-é" in refused("margin", "no-such-é")


def test_a_reader_that_goes_away():
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "widemargin", "theorems"]
    with subprocess.Popen(command, stdout=write, stderr=subprocess.PIPE, text=True) as process:
        os.close(write)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 141 and err == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_behind_stdout():
    command = [sys.executable, "-m", "widemargin", "theorems"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 2 and "No space left" in done.stderr and done.stderr.count("\n") == 1


def test_help_is_fast():
    """What is slow to import stays away from the command line itself."""
    code = (
        "import sys, widemargin.cli as c; c.parser(); print(*[m for m in ('matplotlib', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "\n"), done


def test_progress_on_a_terminal_and_off(monkeypatch, capsys):
    import rich.console

    with cli.screen.solver_progress("f1") as report:
        report(1.0, 0.1, 0.2, "[early]")
        report(11.0, 0.1, 0.2, "[later]")
    assert capsys.readouterr().err == "f1   11.0 s  [0.1, 0.2]  [later]\n"
    monkeypatch.setattr(rich.console.Console, "is_terminal", True)
    with cli.screen.solver_progress("f1") as report:
        report(11.0, 0.1, 0.2, "[later]")
    assert capsys.readouterr().out == ""


WORDS = """
margin verify data demo fit gap --weight-decay --path 2 --loss hinge
--kind f2 linear frozen rf f2,linear --bias --no-bias --activation relu srelu leaky leaky:0.2 leaky:x
--label y --tol 1e-3 0 nan -1 inf --time-limit 1 --seed --threads --width 7 --device cpu --save --json
--out -- - -h --version clusters:n=6,d=2 parity:d=3,n=4 parity: : clusters:n=x --tol= --seed=-1
"""
words = st.one_of(
    st.sampled_from(WORDS.split()),
    st.text(string.printable, max_size=8),
    st.text(max_size=6),
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(argv=st.lists(words, max_size=7))
@example(["margin", "clusters:n=6,d=2", "--kind", "f2", "--json"])
@example(["margin", "\ud800", "--json"])
@example(["verify", "\0", "\0"])
@example(["data", "parity:d=3,n=4", "--out", "\0.csv"])
def test_any_words(tmp_path_factory, argv):
    """Whatever is typed: no traceback, a known status, and JSON alone on standard output where it was asked for."""
    if "demo" in argv:
        return
    if "margin" in argv and "--kind" not in " ".join(argv):
        argv = [*argv, "--kind", "linear"]  # f1 has its own tests
    with contextlib.chdir(tmp_path_factory.mktemp("words")):
        status, out, err = run(*argv)
    assert status in (0, 1, 2), (argv, err)
    if status == 2:
        assert out == "" and err.count("\n") <= 3, (argv, err)
    elif "--json" in argv and out and not {"-h", "--version"} & set(argv):
        json.loads(out)


numbers = st.one_of(st.floats().map(repr), st.integers(-2, 40).map(str), st.text(max_size=3))
options = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["--tol", "--time-limit", "--seed", "--width"]), numbers),
        st.tuples(st.just("--activation"), st.sampled_from(["relu", "srelu", "leaky:0.5", "tanh"])),
        st.tuples(st.sampled_from(["--bias", "--no-bias", "--bias=1"])),
    ),
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(options=options, kinds=st.lists(st.sampled_from(["f2", "linear", "frozen", "rf"]), min_size=1, unique=True))
def test_any_options(options, kinds):
    argv = [word for pair in options for word in pair]
    status, out, err = run("margin", SMALL, "--kind", *kinds, "--json", "--width=20", *argv)
    assert status in (0, 2), err
    if status == 2:
        assert out == "" and err.count("\n") == 1
    else:
        found = json.loads(out)
        assert [one["kind"] for one in ([found] if len(kinds) == 1 else found)] == kinds


# ---------------------------------------------------------------- demo


def test_demo(tmp_path, monkeypatch):
    monkeypatch.setattr(cli.demo, "DEMO", "parity:d=3,n=8,seed=0,marginal=full")
    status, out, _ = run("demo", "--out", tmp_path / "deep" / "folder")
    assert status == 0
    names = ["f1.json.gz", "f2.json.gz", "linear.json.gz", "margins.png", "neurons.png", "progress.png", "report.html"]
    names.append("training.png")
    assert sorted(os.listdir(tmp_path / "deep" / "folder")) == names
    assert all(name in out for name in names)
    assert "verified exactly" in out and "nothing of this kind separates the data" in out
    assert "steps of loss-normalised gradient descent reach" in out
    (tmp_path / "file").write_text("")
    assert "cannot make the folder" in refused("demo", "--out", tmp_path / "file")


def test_demo_leaves_large_proofs_to_the_user(tmp_path, monkeypatch):
    monkeypatch.setattr(cli.demo, "DEMO", "parity:d=3,n=8,seed=0,marginal=full")
    monkeypatch.setattr(cli.demo, "VERIFY_BYTES", 10)
    status, out, _ = run("demo", "--out", tmp_path)
    assert status == 0 and "check it with: widemargin verify" in out
