"""`widemargin fit` and `gap`: what they print, save and refuse."""

import json
import pickle
import re
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from test_cli import refused, run
from widemargin import Certificate, Dataset, InputError, cli, data, margins, optima, theory
from widemargin.cli import fit as command
from widemargin.optima import losses
from widemargin.verify import __main__ as checker

SPEC = "clusters:n=16,d=2,k=2,seed=0"
DATA = data.load(SPEC)


def network(seed=0, m=6, outputs=1):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(2, m), torch.nn.ReLU(), torch.nn.Linear(m, outputs))


@pytest.fixture
def model(tmp_path):
    torch.save(network().state_dict(), tmp_path / "model.pt")
    return tmp_path / "model.pt"


# ---------------------------------------------------------------- fit


def test_fit_is_what_the_library_computes():
    keys = {"loss": "squared-hinge", "weight_decay": 0.02, "bias": False, "output_bias": "decayed", "seed": 3}
    argv = ("--loss", "squared-hinge", "--weight-decay", 0.02, "--no-bias", "--output-bias", "decayed", "--seed", 3)
    status, out, err = run("fit", SPEC, "--bias", *argv, "--tol", 1e-4, "--json")
    found, known = json.loads(out), optima.f1(DATA, tol=1e-4, **({"bias": True} | keys))
    assert (status, err) == (0, "")
    assert (found["lower"], found["upper"]) == (known.lower, known.upper) and found["gap"] <= 1e-4
    assert {key: found[key] for key in keys} == keys
    assert_allclose(found["mean_loss"] + 0.02 * (found["norm"] + found["offset"] ** 2 / 2), found["upper"], rtol=1e-9)


def test_a_table_and_sentences(monkeypatch):
    status, out, _ = run("fit", SPEC, "--bias", "--weight-decay", 0.02)
    assert status == 0 and "logistic loss, biases, free output bias" in out and "certified" in out
    assert "objective: mean loss + (weight decay / 2) |weights|^2 of the best network" in out
    monkeypatch.setenv("COLUMNS", "60")
    status, out, _ = run("fit", SPEC, "--bias", "--weight-decay", 0.02, "--output-bias", "none")
    assert status == 0 and "decay 0.02: objective [" in out and "no output bias" in out


def test_paths(tmp_path):
    save = tmp_path / "c.json.gz"
    status, out, err = run("fit", SPEC, "--bias", "--path", "1e-3:0.1:3", "--save", save, "--json")
    found = json.loads(out)
    assert status == 0
    assert_allclose([one["weight_decay"] for one in found], [0.1, 0.01, 0.001], rtol=1e-12)
    for k, one in enumerate(found, 1):
        file = tmp_path / f"c.{k}.json.gz"
        assert str(file) in err and Certificate.load(file).upper == one["upper"]
        assert run("verify", file, SPEC)[0] == 0
    _, out, _ = run("fit", SPEC, "--bias", "--path", 2, "--json")
    known = optima.path(DATA, 2, bias=True)
    assert [one["upper"] for one in json.loads(out)] == [point.upper for point in known]


def test_targets_of_a_regression_are_read_saved_and_verified(tmp_path):
    rows = [f"{a:.3f},{b:.3f},{a * b + 0.5:.3f}" for a, b in np.random.default_rng(0).standard_normal((12, 2))]
    table, save = tmp_path / "t.csv", tmp_path / "c.json"
    table.write_text("\n".join(["x0,x1,y", *rows]))
    status, out, _ = run("fit", table, "--bias", "--loss", "squared", "--weight-decay", 0.05, "--save", save, "--json")
    assert status == 0 and json.loads(out)["error"] is None
    assert run("verify", save, table)[0] == 0
    said = refused("fit", table, "--weight-decay", 0.05)
    assert "the loss logistic needs labels -1 and +1" in said and "or --loss squared" in said
    assert "or --loss cross-entropy" in said and "loss=" not in said
    changed = table.read_text().replace(rows[0], rows[0] + "1")
    table.write_text(changed)
    assert run("verify", save, table)[0] == 1


def test_labels_are_mapped_and_said(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("x0,x1,y\n1,1,no\n-1,-1,no\n1,-1,yes\n-1,1,yes\n")
    status, out, err = run("fit", table, "--bias", "--weight-decay", 0.05, "--json")
    assert status == 0 and "no" in err and json.loads(out)["status"] == "certified"


@pytest.mark.parametrize(
    ("labels", "loss", "y", "said"),
    [
        (("0", "1"), "squared", (0, 1), "targets 0 and 1, as they are"),
        (("2", "7.5"), "squared", (2, 7.5), "targets 2 and 7.5, as they are"),
        (("-1", "1"), "squared", (-1, 1), ""),
        (("no", "yes"), "squared", (-1, 1), "label 'no' -> -1, 'yes' -> +1"),
        (("0", "1"), "logistic", (-1, 1), "label 0 -> -1, 1 -> +1"),
    ],
)
def test_what_two_labels_are_taken_for(labels, loss, y, said, tmp_path):
    """Numbers are targets of the squared loss; words are classes, and for the other losses numbers are, too."""
    table, save = tmp_path / "t.csv", tmp_path / "c.json"
    X = np.array([(1, 1), (-1, -1), (1, -1), (-1, 1)])
    table.write_text("\n".join(["x0,x1,y", *(f"{a},{b},{labels[int(a * b < 0)]}" for a, b in X)]))
    argv = ("--loss", loss, "--weight-decay", 0.05)
    status, out, err = run("fit", table, "--bias", *argv, "--save", save, "--json")
    assert status == 0 and said in err and (said or "targets" not in err)
    known = Dataset(X, [y[int(a * b < 0)] for a, b in X])
    found, cert = json.loads(out), optima.f1(known, loss=loss, weight_decay=0.05, bias=True)
    assert_allclose((found["lower"], found["upper"]), (cert.lower, cert.upper), rtol=1e-6)
    assert Certificate.load(save).data_sha256 == known.sha256() and run("verify", save, table)[0] == 0


def test_a_certificate_of_numbers_as_labels_is_still_verified(tmp_path):
    table, save = tmp_path / "t.csv", tmp_path / "c.json"
    table.write_text("x0,x1,y\n1,1,0\n-1,-1,0\n1,-1,1\n-1,1,1\n")
    optima.f1(data.load(str(table)), loss="squared", weight_decay=0.05, bias=True).save(save)
    assert run("verify", save, table)[0] == 0


def test_the_losses_are_those_of_the_library():
    assert (*losses.LOSSES, losses.CLASSES) == command.LOSSES


def test_both_bounds_are_told_on_the_way(monkeypatch):
    monkeypatch.setattr(cli.screen, "EVERY", 0.0)
    _, _, err = run("fit", SPEC, "--bias", "--weight-decay", 0.02)
    lines = [line for line in err.splitlines() if line.startswith("fit ")]
    assert lines and all("[" in line and "decay 0.02: " in line for line in lines)


def test_interruption(monkeypatch):
    from widemargin.optima.solver import Solver

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Solver, "start", stop)
        status, out, _ = run("fit", SPEC, "--bias", "--weight-decay", 0.02, "--json")
        assert status == 130 and json.loads(out)["status"] == "interrupted"
        status, out, _ = run("fit", SPEC, "--bias", "--path", "3")
        assert status == 130 and out.endswith("1 of 3 decays were done\n")
    monkeypatch.setattr(Solver, "__init__", stop)
    status, out, err = run("fit", SPEC, "--bias", "--path", "3")
    assert (status, out) == (130, "") and "interrupted before" in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "give one of --weight-decay, a number, and --path"),
        (("--weight-decay", 1, "--path", 3), "give one of"),
        (("--weight-decay", 0), "--weight-decay: must be a positive number"),
        (("--weight-decay", "nan"), "--weight-decay"),
        (("--weight-decay", "inf"), "--weight-decay"),
        (("--weight-decay", "1e-300"), "out of all proportion"),
        (("--path", "1:2"), "--path"),
        (("--path", "1:0.1:3"), "LOW:HIGH:COUNT"),
        (("--path", "0:1:3"), "--path"),
        (("--path", "0"), "--path"),
        (("--path", "a:b:c"), "--path"),
        (("--path", 3, "--output-bias", "decayed"), "give LOW:HIGH:COUNT"),
        (("--weight-decay", 1, "--loss", "cubic"), "--loss"),
        (("--weight-decay", 1, "--output-bias", "yes"), "--output-bias"),
        (("--weight-decay", 1, "--tol", 2), "--tol"),
        (("--weight-decay", 1, "--time-limit", 0), "--time-limit"),
        (("--weight-decay", 1, "--save", "no/such/folder/c.json"), "no folder"),
        (("--weight-decay", 1, "--label", "y"), "--label"),
    ],
)
def test_bad_options(options, words):
    assert words in refused("fit", SPEC, *options)


def test_bad_data(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("x0,y\n1,a\n2,b\n3,c\n")
    assert "y has 3 classes" in refused("fit", table, "--weight-decay", 1)
    table.write_text("x0,y\n1,1\n2,1\n")
    said = refused("fit", table, "--weight-decay", 1)
    assert "all labels are equal" in said and "use --output-bias none or decayed" in said
    assert run("fit", table, "--bias", "--weight-decay", 0.1, "--output-bias", "none")[0] == 0
    assert "no data set" in refused("fit", "nothing", "--weight-decay", 1)
    assert "without decay there is no best network" in refused("fit", SPEC, "--weight-decay", 0)
    assert "must be a positive number, not '-1'" in refused("fit", SPEC, "--weight-decay", -1)


def test_uneven_columns_are_told_of_where_the_bounds_do_not_meet(tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((150, 9)), rng.integers(0, 2, 150)
    for scale, told in ((1000.0, True), (1.0, False)):
        rows = [",".join(map(repr, [*row[:-1], scale * row[-1], label])) for row, label in zip(X.tolist(), y.tolist())]
        (tmp_path / "t.csv").write_text("\n".join(["a,b,c,d,e,f,g,h,i,y", *rows]))
        argv = ("--weight-decay", 1e-4, "--time-limit", 0.1, "--tol", 1e-9)
        status, out, _ = run("fit", tmp_path / "t.csv", "--bias", *argv)
        assert status == 0 and "time-limit" in out
        assert ("the columns' standard deviations go from" in out) == told


def test_a_path_is_drawn_with_what_is_guaranteed(tmp_path):
    picture = tmp_path / "path.png"
    status, out, err = run(
        "fit", SPEC, "--bias", "--path", "1e-9:1e-2:3", "--output-bias", "none", "--json", "--plot", picture
    )
    assert status == 0 and len(json.loads(out)) == 3 and picture.read_bytes().startswith(b"\x89PNG")
    best, path = margins.f1(DATA, bias=True, tol=1e-3), optima.path(DATA, [1e-9], output_bias=None, bias=True)
    words = re.search(
        r"in \[(\S+), (\S+)\]; at the smallest decay the network has margin (\S+), of which (\S+) is guaranteed", err
    )
    assert_allclose([float(word) for word in words.groups()[:2]], [best.lower, best.upper], rtol=1e-2)
    known = theory.regularization.guaranteed_along(path, best).column("guaranteed")[0]
    assert_allclose(float(words[4]), known, rtol=1e-2)
    assert f"path drawn to {picture}" in err
    status, _, err = run("fit", SPEC, "--bias", "--path", "0.1:0.2:2", "--plot", tmp_path / "b.svg")
    assert status == 0 and "of which nothing is guaranteed" in err
    assert "--plot draws a path" in refused("fit", SPEC, "--weight-decay", 0.1, "--plot", picture)
    assert "must end in .png, .pdf, .svg" in refused("fit", SPEC, "--path", 3, "--plot", tmp_path / "a.gif")


# ---------------------------------------------------------------- gap


def test_gap_of_a_state_dict(model, tmp_path):
    save = tmp_path / "c.json"
    argv = ("gap", model, SPEC, "--weight-decay", 0.02)
    status, out, err = run(*argv, "--save", save)
    known = optima.gap(network(), DATA.X, DATA.y, weight_decay=0.02)
    assert status == 0 and out == f"{known}\n" and out.startswith("objective ") and str(save) in err
    assert f"d=2; {known.width} neurons, logistic loss, biases, decayed output bias, weight decay 0.02\n" in err
    assert run("verify", save, SPEC)[0] == 0
    status, out, _ = run(*argv, "--json", "--output-bias", "free", "--loss", "hinge")
    found, known = json.loads(out), optima.gap(
        network(), DATA.X, DATA.y, weight_decay=0.02, output_bias="free", loss="hinge"
    )  # fmt: skip
    assert (found["objective"], found["above"]) == (known.objective, known.above)
    asked = {"weight_decay": 0.02, "loss": "hinge", "output_bias": "free"}
    assert asked.items() <= found["certificate"].items()
    assert found["certificate"]["upper"] == known.certificate.upper


def test_a_saved_gap_knows_its_file(model, tmp_path, monkeypatch):
    """The label column, what the labels were called and the scales: a page finds the points again, and re-checks the proof."""
    monkeypatch.chdir(tmp_path)
    rows = [",".join([*map(repr, map(float, x)), "yes" if y > 0 else "no"]) for x, y in zip(DATA.X, DATA.y)]
    Path("mine.csv").write_text("\n".join(["a,b,outcome", *rows]))
    argv = ("gap", model, "mine.csv", "--label", "outcome", "--standardize", "--weight-decay", 0.02, "--save", "c.json")
    assert run(*argv)[0] == 0
    kept = json.loads(Path("c.json").read_text())["data"]
    assert kept["label"] == "outcome" and kept["labels"] == [["no", -1], ["yes", 1]] and "standardized" in kept
    assert run("report", "c.json", "--out", "page.html")[0] == 0
    page = Path("page.html").read_text()
    assert "The least training objective is 0." in page and "(proved" in page


def test_gap_of_checkpoints_and_safetensors(model, tmp_path):
    usual = run("gap", model, SPEC, "--weight-decay", 0.02)[1]
    torch.save({"epoch": 3, "model_state_dict": network().state_dict()}, tmp_path / "checkpoint.pt")
    assert run("gap", tmp_path / "checkpoint.pt", SPEC, "--weight-decay", 0.02)[1] == usual
    save_file = pytest.importorskip("safetensors.torch").save_file
    save_file(network().state_dict(), tmp_path / "model.safetensors")
    assert run("gap", tmp_path / "model.safetensors", SPEC, "--weight-decay", 0.02)[1] == usual


def test_gap_of_a_run(tmp_path):
    """The weights and the data are those of the run; the objective is that of its own network."""
    argv = ("--width", 8, "--steps", 300, "--trials", 2, "--option", "weight_decay=0.02", "--out", tmp_path / "run")
    assert run("train", SPEC, *argv, "--bias")[0] == 0
    status, out, _ = run("gap", tmp_path / "run", "--weight-decay", 0.02, "--trial", 1, "--json")
    assert status == 0
    from widemargin import flows

    final = flows.load(tmp_path / "run").final
    V, a = final["V"][1], final["a"][1]
    t = DATA.y * (np.maximum(np.hstack([DATA.X, np.ones((16, 1))]) @ V.T, 0) @ a)
    objective = np.log1p(np.exp(-t)).mean() + 0.01 * ((V**2).sum() + (a**2).sum())
    found = json.loads(out)
    assert_allclose(found["objective"], objective, rtol=1e-12)
    assert found["certificate"]["lower"] < objective and found["certificate"]["bias"]
    assert "trials 0 to 1" in refused("gap", tmp_path / "run", "--weight-decay", 0.02, "--trial", 2)
    for loss, called in (("exp", "exp"), ("squared", "squared"), ("ce", "logistic")):  # its own, not the usual one
        assert run("train", SPEC, *argv[:2], "--steps", 5, "--loss", loss, "--out", tmp_path / loss)[0] == 0
        status, _, err = run("gap", tmp_path / loss, "--weight-decay", 0.02)
        assert status == 0 and f" {called} loss" in err
    assert "leave DATA out" in refused("gap", tmp_path / "run", SPEC, "--weight-decay", 0.02)
    assert run("train", SPEC, *argv[:4], "--net", "srelu", "--algorithm", "gd", "--out", tmp_path / "other")[0] == 0
    assert "the network of this run is not" in refused("gap", tmp_path / "other", "--weight-decay", 0.02)


class Evil:
    def __reduce__(self):
        return print, ("this must not run",)


def test_a_model_that_unpacks_to_far_more_is_not_unpacked(tmp_path):
    """torch would, without a bound."""
    torch.save({"w": torch.zeros(1 << 25)}, tmp_path / "plain.pt")
    with (
        zipfile.ZipFile(tmp_path / "plain.pt") as plain,
        zipfile.ZipFile(tmp_path / "packed.pt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    said = refused("gap", tmp_path / "packed.pt", SPEC, "--weight-decay", 0.02)
    assert "unpacks to 1342" in said and "write it again without compression" in said


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_of_tensors_are_no_weights(tmp_path):
    state = network().state_dict() | {"0.weight": torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)])}
    torch.save(state, tmp_path / "nested.pt")
    assert "0.weight of the state dict is no array of numbers" in refused(
        "gap", tmp_path / "nested.pt", SPEC, "--weight-decay", 0.02
    )


def test_a_checkpoint_with_names_of_its_own_is_told_which_are_read(tmp_path):
    torch.save({"net": network().state_dict(), "epoch": 3}, tmp_path / "own.pt")
    said = refused("gap", tmp_path / "own.pt", SPEC, "--weight-decay", 0.02)
    assert "net of the state dict is no array of numbers, but OrderedDict" in said
    assert said.endswith("under one of the names state_dict, model_state_dict, model\n")


def test_the_file_that_was_looked_at_is_the_one_that_is_loaded(tmp_path, monkeypatch):
    """Another may take its name meanwhile."""
    from widemargin.cli import models

    wide, narrow = torch.nn.Linear(2, 3).state_dict(), torch.nn.Linear(2, 1).state_dict()
    torch.save(wide, tmp_path / "net.pt")
    torch.save(narrow, tmp_path / "other.pt")
    check = models.check_archive

    def replacing(file, name):
        check(file, name)
        (tmp_path / "other.pt").replace(tmp_path / "net.pt")

    monkeypatch.setattr(models, "check_archive", replacing)
    assert models.state_dict(str(tmp_path / "net.pt"))["weight"].shape == (3, 2)


def test_pickles_are_never_run(tmp_path, capsys):
    for name, write in (
        ("whole.pt", torch.save),
        ("plain.pkl", lambda value, path: path.write_bytes(pickle.dumps(value))),
    ):
        write({"a": Evil()}, tmp_path / name)
        said = refused("gap", tmp_path / name, SPEC, "--weight-decay", 1)
        assert "save model.state_dict()" in said
    torch.save(network(), tmp_path / "module.pt")
    assert "could run code; save model.state_dict() instead" in refused(
        "gap", tmp_path / "module.pt", SPEC, "--weight-decay", 1
    )
    assert "must not run" not in capsys.readouterr().out


def test_bad_models(model, tmp_path, monkeypatch):
    decay = ("--weight-decay", 0.1)
    assert "there is no such file" in refused("gap", tmp_path / "none.pt", SPEC, *decay)
    assert "there is no such file" in refused("gap", "a\0b", SPEC, *decay)
    assert "there is no DATA" in refused("gap", model, *decay)
    assert "--trial is for runs" in refused("gap", model, SPEC, *decay, "--trial", 0)
    assert "--weight-decay" in refused("gap", model, SPEC)
    assert "takes 2 features, but X has 3" in refused("gap", model, "parity:d=3,n=4", *decay)
    (tmp_path / "empty.pt").write_bytes(b"")
    assert "cannot be read as a state dict" in refused("gap", tmp_path / "empty.pt", SPEC, *decay)
    (tmp_path / "text.pt").write_text("hello")
    assert "it is damaged, or of another format; save" in refused("gap", tmp_path / "text.pt", SPEC, *decay)
    (tmp_path / "cert.json").write_text('{"format": "widemargin-certificate-1"}')  # no code at all
    assert "of another format; save" in refused("gap", tmp_path / "cert.json", SPEC, *decay)
    (tmp_path / "half.pt").write_bytes(model.read_bytes()[:300])
    assert "half.pt" in refused("gap", tmp_path / "half.pt", SPEC, *decay)
    (tmp_path / "bad.safetensors").write_bytes(b"no tensors here")
    assert "safetensors" in refused("gap", tmp_path / "bad.safetensors", SPEC, *decay)
    torch.save({"0.weight": torch.ones(3, 2)}, tmp_path / "one.pt")
    assert "one.pt: a state dict of" in refused("gap", tmp_path / "one.pt", SPEC, *decay)
    assert "one.pt: a state dict of" in refused("margin", SPEC, "--model", tmp_path / "one.pt")
    wide = {"0.weight": torch.ones(1, 1).expand(2 * 10**7, 2), "2.weight": torch.ones(1, 1).expand(1, 2 * 10**7)}
    torch.save(wide, tmp_path / "wide.pt")  # 2 kB
    assert "take 480000000 bytes as numbers, far more than" in refused("gap", tmp_path / "wide.pt", SPEC, *decay)
    torch.save({"model": wide}, tmp_path / "wide.pt")
    assert "take 480000000 bytes as numbers, far more than" in refused("gap", tmp_path / "wide.pt", SPEC, *decay)
    torch.save(torch.ones(3), tmp_path / "tensor.pt")
    assert "holds a Tensor" in refused("gap", tmp_path / "tensor.pt", SPEC, *decay)
    torch.save(network(outputs=3).state_dict(), tmp_path / "three.pt")
    assert "3 outputs" in refused("gap", tmp_path / "three.pt", SPEC, *decay)
    torch.save({"0.weight": network()[0].weight.data, "2.weight": network()[2].weight.data}, tmp_path / "bare.pt")
    assert "no bias; leave it out" in refused("gap", tmp_path / "bare.pt", SPEC, *decay, "--output-bias", "free")
    assert "is not a run" in refused("gap", tmp_path, *decay)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    assert "safetensors is not installed" in refused("gap", tmp_path / "bad.safetensors", SPEC, *decay)


def test_several_classes_from_fit_to_report(tmp_path, capsys):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((24, 2))
    words = np.array(["low", "mid", "high"])[np.digitize(X[:, 0], [-0.5, 0.5])]
    table = tmp_path / "three.csv"
    table.write_text("a,b,label\n" + "".join(f"{x[0]},{x[1]},{word}\n" for x, word in zip(X, words)))
    asked = ("--loss", "cross-entropy", "--weight-decay", "0.05", "--tol", "0.02")
    cert = tmp_path / "c.json"
    assert cli.main(["fit", str(table), "--bias", *asked, "--json", "--save", str(cert)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["kind"] == "f1-multiclass-optimum" and said["status"] == "certified" and said["atoms"] > 0
    assert said["mean_loss"] + 0.05 * said["norm"] == pytest.approx(said["upper"], rel=1e-9)
    assert cli.main(["verify", str(cert), str(table)]) == 0
    model = tmp_path / "m.pt"
    torch.manual_seed(0)
    torch.save(network(outputs=3).state_dict(), model)
    assert cli.main(["gap", str(model), str(table), *asked, "--save", str(tmp_path / "g.json")]) == 0
    assert "the best of any width is between" in capsys.readouterr().out
    assert cli.main(["report", str(cert), str(tmp_path / "g.json"), "--out", str(tmp_path / "r.html")]) == 0
    page = (tmp_path / "r.html").read_text()
    assert "several classes" in page and "cross-entropy" in page
    assert "take the loss cross-entropy" in refused("fit", table, "--weight-decay", 0.1)


def test_several_targets_from_fit_to_report(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20, 2))
    Y = np.column_stack([np.abs(X[:, 0]), X[:, 0] * X[:, 1]])
    np.savez("two.npz", X=X, y=Y)
    asked = ("--loss", "squared", "--weight-decay", "0.05", "--tol", "0.02")
    assert cli.main(["fit", "two.npz", "--bias", *asked, "--json", "--save", "c.json"]) == 0
    out, err = capsys.readouterr()
    said = json.loads(out)
    assert "2 targets for each point" in err and len(said["offset"]) == 2
    assert said["kind"] == "f1-multitarget-optimum" and said["status"] == "certified" and said["atoms"] > 0
    assert said["mean_loss"] + 0.05 * said["norm"] == pytest.approx(said["upper"], rel=1e-9)
    assert cli.main(["verify", "c.json", "two.npz"]) == 0 and checker.main(["c.json", "two.npz"]) == 0
    np.savez("other.npz", X=X, y=Y + 1e-9)
    assert cli.main(["verify", "c.json", "other.npz"]) == 1 and checker.main(["c.json", "other.npz"]) == 1
    torch.manual_seed(0)
    torch.save(network(outputs=2).state_dict(), "m.pt")
    assert cli.main(["gap", "m.pt", "two.npz", *asked, "--save", "g.json"]) == 0
    assert cli.main(["fit", "two.npz", "--bias", *asked[:2], "--path", "3", "--tol", "0.1", "--save", "p.json"]) == 0
    assert "the best of any width is between" in capsys.readouterr().out
    files = ["c.json", "g.json", *(f"p.{k}.json" for k in (1, 2, 3))]
    assert cli.main(["report", *files, "--out", "r.html"]) == 0
    page = (tmp_path / "r.html").read_text()
    assert "several targets" in page and "<h1>Optima of training</h1>" in page and "are not found, so" not in page
    assert "--loss squared --weight-decay 0.05" in page
    # What cannot be.
    assert "2 columns" in refused("fit", "two.npz", "--weight-decay", 0.1)
    assert "2 columns" in refused("fit", "two.npz", "--loss", "cross-entropy", "--weight-decay", 0.1)
    assert "2 columns" in refused("margin", "two.npz")
    assert "choose .npz" in refused_data(Dataset(X, Y), "two.csv")
    np.savez("words.npz", X=X, y=np.array([["a", "b"]] * 20))
    assert "holds text" in refused("fit", "words.npz", *asked)
    np.savez("nan.npz", X=X, y=np.where(Y > 1, np.nan, Y))
    assert "row" in refused("fit", "nan.npz", *asked) and "column" in refused("fit", "nan.npz", *asked)
    np.savez("short.npz", X=X, y=Y[:5])
    assert "(5, 2)" in refused("fit", "short.npz", *asked)
    torch.save(network(outputs=3).state_dict(), "three.pt")
    status, out, err = run("gap", "three.pt", "two.npz", *asked)
    assert (status, out) == (2, "") and "3 outputs" in err.splitlines()[-1]  # after the line that says what y is


def refused_data(points, name):
    with pytest.raises(InputError) as said:
        data.save_dataset(points, name)
    return str(said.value)
