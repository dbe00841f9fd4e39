"""`widemargin train` and `widemargin plot`: what they print, where, and that bad input ends in one sentence."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from test_cli import refused, run
from widemargin import Dataset, Trajectory, cli, flows, plots
from widemargin.types import InputError

SMALL = "parity:d=4,n=12,seed=0"
PROMISED = {"margin_M2", "psi", "risk", "train_error", "test_error", "norm", "t_mean", "status"}


def trained(*argv):
    status, out, err = run("train", *argv, "--json")
    assert status == 0, err
    return json.loads(out)


def test_json_has_the_last_records_of_every_trial():
    found = trained(SMALL, "--width", 8, "--steps", 20, "--trials", 3, "--lr", 0.3)
    assert len(found["trials"]) == 3 and found["steps"] == 20
    for number, trial in enumerate(found["trials"]):
        assert trial.keys() >= PROMISED and trial["trial"] == number and trial["status"] == "finished"
        assert abs(trial["t_mean"] - 6.0) < 1e-9
    assert found["trials"][0]["test_error"] is None


def test_a_table_for_people():
    status, out, err = run(
        "train", SMALL, "--width", 8, "--steps", 10, "--trials", 2, "--test", "parity:d=4,n=30,seed=1", "--verbose"
    )
    assert status == 0 and "margin_M2" in out and "test_error" in out and "2 trials (2 finished)" in out
    assert err == ""
    status, out, _ = run("train", SMALL, "--width", 8, "--steps", 10, "--trials", 20)
    assert status == 0 and "median" in out and "most" in out


@pytest.mark.parametrize(
    ("net", "algorithm", "more"),
    [
        ("relu", "gd", ()),
        ("relu", "ngd", ()),
        ("relu", "sgd", ("--option", "batch=3")),
        ("relu", "cb", ("--option", "law=cb")),
        ("relu", "gf", ()),
        ("relu", "adam", ()),
        ("relu", "wgf", ("--option", "mean_field=true")),
        ("relu", "pwgf", ("--option", "mean_field=true", "--option", "sigma=0.1")),
        ("relu", "pwgf", ("--option", "mean_field=true", "--option", "weighted=true")),
        ("relu", "weakreg", ("--option", "last=1e-4")),
        ("relu", "two-phase", ()),
        ("srelu", "gd", ()),
        ("leaky", "gd", ("--certify",)),
        ("leaky", "gf", ("--option", "activation=leaky:0.2")),
        ("output", "prop7", ("--loss", "exp")),
        ("output", "gf", ()),
        ("frozen", "prop6", ("--loss", "exp")),
        ("scalar", "mirror", ()),
        ("product", "gd", ()),
        ("normalized", "gf", ()),
        ("batchnorm", "gd", ()),
        ("mlp", "gd", ("--option", "depth=3")),
        ("mlp", "gd", ("--option", "outputs=2", "--loss", "ce")),
    ],
)
def test_every_net_and_algorithm(net, algorithm, more):
    found = trained(SMALL, "--net", net, "--algorithm", algorithm, "--width", 8, "--steps", 12, "--trials", 2, *more)
    assert [trial["status"] for trial in found["trials"]] == ["finished"] * 2
    assert all(np.isfinite(trial["risk"]) for trial in found["trials"])


def test_certify_reports_the_fraction(tmp_path):
    out = tmp_path / "run"
    argv = (SMALL, "--width", 20, "--steps", 300, "--lr", 1, "--certify", "--out", out)
    found = trained(*argv)
    cert, (trial,) = found["certificate"], found["trials"]
    assert cert["lower"] <= cert["upper"] and cert["proved"] and found["fraction_convention"] == "M2"
    assert 0 < trial["fraction"] <= 1
    assert abs(trial["fraction"] - 2 * trial["margin_M2"] / cert["upper"]) < 1e-12
    assert trained(*argv, "--resume")["trials"] == found["trials"]  # neither trained nor certified again
    kept = out / "certificate.json.gz"
    for other in (
        ("margin", SMALL, "--kind", "f2"),
        ("gap", out, "--weight-decay", 0.1),
    ):  # of another kind in its place
        assert run(*other, "--save", kept)[0] == 0
        again = trained(*argv, "--resume")["certificate"]
        assert again["kind"] == "f1" and again["lower"] <= cert["upper"] and cert["lower"] <= again["upper"]
    status, said, _ = run("plot", out)
    assert status == 0 and said == "" and (out / "run.png").read_bytes()[:4] == b"\x89PNG"


def test_events():
    found = trained(SMALL, "--width", 20, "--lr", 1, "--until", "fitted", "--trials", 2)
    for trial in found["trials"]:
        assert trial["status"] == "reached" and trial["risk"] < np.log(2) / 12 and trial["step"] < 10_000
    found = trained(SMALL, "--width", 20, "--lr", 0.1, "--until", "radius=0.5")
    moved = np.hypot(found["trials"][0]["moved_a"], found["trials"][0]["moved_V"])
    assert 0.5 <= moved < 0.6


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--resume",), "--out RUN"),
        (("--steps", 5, "--time", 2), "one of them"),
        (("--certify", "--loss", "squared"), "squared loss has none"),
        (("--certify", "--net", "batchnorm"), "--net batchnorm is none"),
        (("--net", "batchnorm", "--bias"), "takes away"),
        (("--clock", "cb"), "--time too"),
        (("--algorithm", "gf", "--lr", 1), "no learning rate"),
        (("--option", "depth"), "KEY=VALUE"),
        (("--option", "depth=3"), "no option 'depth'"),
        (("--option", "law=moon"), "law"),
        (("--option", "law_scale=big"), "law_scale"),
        (("--algorithm", "prop6"), "prop"),
        (("--algorithm", "mirror"), "mirror flow"),
        (("--net", "frozen", "--width", 7), "even"),
        (("--algorithm", "gf", "--loss", "squared"), "gradient flow"),
        (("--until", "bored"), "choose fitted"),
        (("--until", "radius=x"), "radius=x"),
        (("--width", 0), "--width"),
        (("--lr", -1), "--lr"),
        (("--net", "cnn"), "--net"),
        (("--test", "parity:d=5,n=9"), "has 5"),
    ],
)
def test_what_makes_no_sense_is_refused(argv, words):
    assert words.lower() in refused("train", SMALL, *argv).lower()


def test_bad_data_and_places_are_refused(tmp_path):
    bad = tmp_path / "bad.csv"
    bad.write_text("x,y\n1,1\nnan,-1\n")
    assert "NaN" in refused("train", bad) or "nan" in refused("train", bad)
    (tmp_path / "file").write_text("")
    assert "cannot write" in refused("train", SMALL, "--out", tmp_path / "file" / "run")
    assert "not a run" in refused("plot", tmp_path)
    assert "not a run" in refused("plot", tmp_path / "nowhere")
    (tmp_path / "file").write_text("{}")
    assert "not a run" in refused("plot", tmp_path / "file")


@pytest.mark.parametrize(
    "argv",
    [
        ("--algorithm", "prop6"),
        ("--algorithm", "mirror"),
        ("--algorithm", "wgf"),
        ("--algorithm", "two-phase", "--loss", "squared"),
        ("--algorithm", "prop7"),
        ("--algorithm", "ngd", "--loss", "squared"),
        ("--algorithm", "cb", "--loss", "squared"),
        ("--algorithm", "gf", "--loss", "squared"),
    ],
)
def test_a_refused_start_leaves_nothing_behind(argv, tmp_path):
    kept = tmp_path / "new" / "run"
    refused("train", SMALL, "--width", 4, "--steps", 3, *argv, "--out", kept)
    assert not (tmp_path / "new").exists()
    trained(SMALL, "--width", 4, "--steps", 3, "--out", kept)


def test_a_refused_place_is_left_as_it_was(tmp_path, monkeypatch):
    (tmp_path / "thesis.tex").write_text("x")
    monkeypatch.chdir(tmp_path)
    assert "other files" in refused("train", SMALL, "--steps", 1, "--width", 2, "--out", ".")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_runs_resume_and_other_configurations_are_refused(tmp_path):
    argv = (SMALL, "--width", 8, "--steps", 20, "--out", tmp_path / "run")
    found = trained(*argv)
    assert "already holds a run" in refused("train", *argv)
    assert trained(*argv, "--resume")["trials"] == found["trials"]
    assert "seed was 0 and is 1" in refused("train", *argv, "--resume", "--seed", 1)
    for name in ("checkpoint-0", "checkpoint-1"):
        (tmp_path / "run" / name).write_bytes(b"x")
    assert "damaged" in refused("train", *argv, "--resume")
    assert "must end in .png" in refused("plot", tmp_path / "run", "--out", tmp_path / "a.jpeg")


def test_a_full_disk_is_said_after_the_result(tmp_path, monkeypatch):
    from widemargin.flows import runs

    write = runs.write_atomically

    def scarce(path, content):
        if path.parent.name == "records" and path.name > "00000.npz":
            raise OSError(28, "No space left on device", str(path))
        write(path, content)

    monkeypatch.setattr(runs, "write_atomically", scarce)
    status, out, err = run("train", SMALL, "--width", 8, "--steps", 20, "--out", tmp_path / "run", "--json")
    assert status == 2 and json.loads(out)["trials"][0]["status"] == "finished"
    assert err.startswith("widemargin: cannot write") and err.count("\n") == 1 and "No space left" in err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_ctrl_c_keeps_the_run_and_exits_130(tmp_path, name):
    """And so do a machine that stops and a terminal that is closed, each with its own status."""
    number = getattr(signal, name)
    out = tmp_path / "run"
    command = [sys.executable, "-m", "widemargin", "train", SMALL, "--width", "8", "--steps", "100000000", "--json"]
    process = subprocess.Popen([*command, "--out", str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (out / "checkpoint-0").exists() and process.poll() is None:
        time.sleep(0.01)
    time.sleep(0.3)
    os.kill(process.pid, number)
    said, error = process.communicate()
    assert process.returncode == 128 + number, error
    assert not [path for path in out.rglob(".*.*")]
    found = json.loads(said)
    assert found["interrupted"] and found["trials"][0]["status"] == "running"
    assert flows.load(out).stats["steps"] == found["steps"] > 0


# ---------------------------------------------------------------- pictures


def panels(figure):
    return [axes.get_title(loc="left") for axes in figure.axes]


def test_a_picture_of_every_kind_of_run():
    data = Dataset(np.eye(3), np.array([1.0, -1.0, 1.0]), "name with $ in it")
    net = flows.TwoLayer(3, 5)
    traj = flows.train(data, net, flows.GD(), stop=20, trials=3)
    figure = plots.trajectory(traj, (0.2, 0.25))
    assert len(figure.axes) == 6 and "M2" in panels(figure)[0]
    lines = [line.get_label() for line in figure.axes[0].get_lines()]
    assert any("at most 0.125" in str(label) for label in lines)  # half of the bound in M1
    flow = flows.train(data, net, flows.GradientFlow(), stop=40, trials=2)
    assert len(plots.trajectory(flow).axes) == 6
    deep = flows.train(data, flows.MLP(3, 5), flows.GD(), stop=5)
    assert len(plots.trajectory(deep).axes) == 3
    real = flows.train(data, net, flows.GD(), loss="squared", stop=5)
    assert plots.trajectory(real).axes
    few = flows.train(data, net, flows.GD(), stop=5, record=["risk"])
    plots.trajectory(few).savefig(os.devnull, format="png")
    with pytest.raises(InputError, match="no records"):
        plots.trajectory(Trajectory(np.zeros(0), {}, {}, ("running",)))


def test_the_time_left_is_told_where_it_is_known(monkeypatch):
    """An event may come at any time, so that nobody knows when."""
    monkeypatch.setattr(cli.screen, "EVERY", 0.0)
    _, _, told = run("train", SMALL, "--width", 8, "--steps", 400)
    assert " s left" in told
    _, _, told = run("train", SMALL, "--width", 8, "--lr", 1e-3, "--until", "radius=0.5", "--steps", 400)
    assert "step" in told and " s left" not in told
