"""`widemargin reproduce`, and the folder that a reproduction leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from test_cli import refused, run
from widemargin import flows, margins, papers
from widemargin.papers import Job, Outcome, Verdict
from widemargin.papers.jobs import OTHER, Reproduction
from widemargin.papers.verdicts import HOLDS, count, table
from widemargin.types import Dataset, InputError


def picture():
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2, 2))
    figure.subplots().plot([0, 1])
    return figure


@pytest.fixture
def toy(monkeypatch):
    """A reproduction that counts how often it computes; the seed decides its verdict."""
    calls = []

    def function(job: Job) -> Outcome:
        def compute():
            calls.append(job.seed)
            return {"x": np.arange(3.0) + job.seed}

        x = job.keep("numbers", {"n": 3}, compute)["x"]
        verdict = Verdict(
            "the mean is below 2", float(x.mean()), "it is small", bool(x.mean() < 2), 0.1, "a large seed"
        )
        return Outcome({"figure": picture()}, {"x": x}, {"n": 3}, [verdict], "Three numbers.")

    def missing(job: Job) -> Outcome:
        raise InputError("the file is not there; give it")

    registry = {
        "toy-1": Reproduction("toy-1", "TOY", "a toy", 1, 1, function),
        "toy-2": Reproduction("toy-2", "TOY", "a toy without its file", 1, 1, missing),
        "toy-3": Reproduction("toy-3", "TOY", "a long toy", 1, 9999, function, (), True),
    }
    for module in ("widemargin.papers", "widemargin.papers.jobs"):
        monkeypatch.setattr(sys.modules[module], "REPRODUCTIONS", registry)
    return calls


def test_the_folder_of_a_reproduction(toy, tmp_path):
    status, out, _ = run("reproduce", "toy-1", "--out", tmp_path, "--json")
    (found,) = json.loads(out)
    assert status == 0 and found["verdicts"][0]["holds"] is True and found["verdicts"][0]["measured"] == 1.0
    folder = tmp_path / "toy-1"
    names = {path.name for path in folder.iterdir()}
    assert {"figure.png", "figure.pdf", "data.npz", "settings.json", "verdict.json", "README.md"} <= names
    settings = json.loads((folder / "settings.json").read_text())
    assert settings["scale"] == "quick" and settings["seed"] == 0 and settings["settings"] == {"n": 3}
    assert json.loads((folder / "verdict.json").read_text()) == found["verdicts"]
    assert np.load(folder / "data.npz")["x"].tolist() == [0, 1, 2]
    assert "the mean is below 2" in (folder / "README.md").read_text()


def test_what_was_kept_is_not_computed_again_and_damage_is(toy, tmp_path):
    for _ in range(2):
        assert run("reproduce", "toy-1", "--out", tmp_path)[0] == 0
    assert toy == [0]
    (kept,) = (tmp_path / "toy-1" / "kept").glob("*.npz")
    kept.write_bytes(kept.read_bytes()[:50])
    assert run("reproduce", "toy-1", "--out", tmp_path)[0] == 0
    assert toy == [0, 0]


def test_a_claim_that_fails_is_said(toy, tmp_path):
    status, out, _ = run("reproduce", "toy-1", "--out", tmp_path, "--seed", 5)
    assert status == 1 and "NO" in out and "a large seed" in out


def test_a_missing_file_costs_one_figure_only(toy, tmp_path):
    assert "the file is not there" in refused_after("reproduce", "toy-2", "--out", tmp_path)
    status, out, err = run("reproduce", "all", "--out", tmp_path, "--json")
    found = {one["id"]: one["verdicts"] for one in json.loads(out)}
    assert status == 0 and set(found) == {"toy-1", "toy-2", "toy-3"} and "left out" in err
    assert found["toy-2"][0]["holds"] == "undecided"


def test_a_verdict_has_four_values():
    for holds in HOLDS:
        assert Verdict("c", 1.0, "p", holds).to_dict()["holds"] is holds
    for holds in (None, 1, 0, "inconclusive", np.True_):
        with pytest.raises(ValueError, match="true, false, undecided or not informative"):
            Verdict("c", 1.0, "p", holds)
    several = [Verdict("c", 1.0, "p", holds) for holds in (*HOLDS, True)]
    assert count(several) == {"true": 2, "false": 1, "undecided": 1, "not informative": 1}
    assert count(one.to_dict() for one in several) == count(several)


def test_a_setting_chosen_after_a_look_is_run_on_a_seed_that_was_not_looked_at(monkeypatch, tmp_path):
    seeds = []

    def function(job: Job) -> Outcome:
        seeds.append(job.seed)
        value = float(job.seed)
        verdicts = [
            Verdict("small", value, "p", value < 2, 0.5, chosen_after="a first look at seed 0"),
            Verdict("fixed before", value, "p", value < 2),
        ]
        return Outcome({}, {}, {}, verdicts, "Words.")

    one = Reproduction("toy", "TOY", "a toy", 1, 1, function)
    looked, fixed = papers.run(one, tmp_path)
    assert seeds == [0, OTHER] and fixed.again is None
    assert looked.holds is True
    assert looked.again == {"seed": OTHER, "measured": float(OTHER), "uncertainty": 0.5, "holds": False}
    written = json.loads((tmp_path / "toy" / "verdict.json").read_text())
    assert written[0]["chosen_after"] and written[0]["again"]["holds"] is False
    shown = (tmp_path / "toy" / "README.md").read_text()
    assert f"chosen after: a first look at seed 0; at seed {OTHER}: 7919 +- 0.5, no" in shown
    assert table([fixed.to_dict()]).count("chosen after") == 0


def refused_after(*argv):
    """The last line of a refusal that comes after notes on progress."""
    status, out, err = run(*argv)
    assert status == 2 and out == ""
    return err.splitlines()[-1]


def test_what_takes_very_long_is_left_out_of_all_at_the_papers_scale(toy):
    assert [one.id for one in papers.find(["all"], "paper")] == ["toy-1", "toy-2"]
    assert [one.id for one in papers.find(["toy-3"], "paper")] == ["toy-3"]
    assert len(papers.find(["TOY"], "quick")) == 3


def test_list():
    status, out, _ = run("reproduce", "list", "--json")
    found = json.loads(out)
    assert status == 0 and len(found) == len(papers.REPRODUCTIONS) >= 24
    assert {"LR", "MT", "BN", "CB", "UH"} == {one["paper"] for one in found}
    assert "cb-2d" in run("reproduce", "list")[1]


def test_refusals(tmp_path):
    assert "there is no reproduction 'cb-9'" in refused("reproduce", "cb-9", "--out", tmp_path)
    (tmp_path / "file").write_text("")
    assert "cannot make the folder" in refused_after("reproduce", "cb-2a", "--out", tmp_path / "file")


@pytest.mark.long
def test_processes_give_the_same_verdicts(tmp_path):
    status, out, _ = run(
        "reproduce", "cb-2a", "bn-dyadic", "--out", tmp_path / "two", "--jobs", 2, "--threads", 1, "--json"
    )
    both = json.loads(out)
    assert [one["id"] for one in both] == ["cb-2a", "bn-dyadic"]
    alone = json.loads(run("reproduce", "bn-dyadic", "--out", tmp_path / "one", "--threads", 1, "--json")[1])
    assert both[1]["verdicts"] == alone[0]["verdicts"] and status == 1  # the code's disks are not uniform (E-CB-10)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs signals of Unix")
def test_ctrl_c_ends_all_processes_and_begins_no_other(toy, tmp_path, monkeypatch):
    """Also where it came to this process alone."""
    script, begun = tmp_path / "python", tmp_path / "begun"
    script.write_text(f"#!/bin/sh\necho $$ >> {begun}\necho $WIDEMARGIN_PARENT >> {begun}.by\nexec sleep 60\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    started = time.perf_counter()
    try:
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        status, _, said = run("reproduce", "toy-1", "toy-2", "toy-3", "--jobs", 2, "--out", tmp_path / "out")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert status == 130 and said == "interrupted; the same command goes on from here\n"
    assert time.perf_counter() - started < 10
    numbers = begun.read_text().split()
    assert len(numbers) == 2
    for number in numbers:
        with pytest.raises(ProcessLookupError):
            os.kill(int(number), 0)
    assert Path(f"{begun}.by").read_text().split() == [str(os.getpid())] * 2


def interrupted(*_):
    signal.raise_signal(signal.SIGINT)


def searched(job):
    data = Dataset([[1.0, 2.0], [2.0, -1.0], [-1.0, 0.5]], [1, -1, 1])
    return job.keep("f1", {}, lambda: {"f1": margins.f1(data, progress=interrupted).lower})


def trained(job):
    data, record = Dataset([[1.0, 2.0], [2.0, -1.0]], [1, -1]), flows.Record(progress=interrupted)
    run = job.train("net", data, flows.TwoLayer(2, 3), flows.GD(), stop=10**8, record=record)
    return {"steps": run.stats["steps"]}


@pytest.mark.parametrize("compute", [searched, trained])
def test_ctrl_c_in_a_search_or_a_training_ends_the_reproduction(tmp_path, compute):
    """They end with what they have, which was judged, and kept as if it were the whole; the reproduction went on."""

    def function(job):
        found = compute(job)
        return Outcome({}, found, {}, [Verdict("all is well", 1.0, "", True)], "Half.")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        papers.run(Reproduction("half", "TOY", "half of a thing", 1, 1, function), tmp_path)
    assert not list(tmp_path.rglob("f1-*.npz")) and not (tmp_path / "half" / "verdict.json").exists()
    assert signal.getsignal(signal.SIGINT) is before


TWICE = """
import sys
from widemargin import __main__ as door
sys.argv, sys.executable = ["widemargin", *sys.argv[2:]], sys.argv[1]
sys.exit(door.main())
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs signals of Unix")
def test_a_second_signal_does_not_end_the_first_ones_work(tmp_path):
    """It came before the processes had been ended, and they were waited for."""
    script, begun = tmp_path / "python", tmp_path / "begun"
    script.write_text(f"#!/bin/sh\necho $$ >> {begun}\nexec sleep 1000\n")
    script.chmod(0o755)
    words = [sys.executable, "-c", TWICE, script, "reproduce", "cb", "--jobs", "2", "--out", tmp_path / "out"]
    process = subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (begun.exists() and begun.read_text().count("\n") == 2) and process.poll() is None:
        time.sleep(0.01)
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
    try:
        _, said = process.communicate(timeout=100)
    finally:
        process.kill()
        gone = [_ended(int(number)) for number in begun.read_text().split()]
    assert process.returncode == 143 and said == "interrupted; the same command goes on from here\n"
    assert gone == [True, True]


def _ended(number):
    """Whether there is no such process; there is none afterwards."""
    try:
        os.kill(number, signal.SIGKILL)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs to know its parent")
def test_a_process_whose_parent_is_gone_ends(tmp_path):
    """Else what --jobs has begun would go on for hours after a kill."""
    words = [sys.executable, "-m", "widemargin", "reproduce", "cb-2d", "--scale", "paper", "--out", str(tmp_path)]
    gone = os.environ | {"WIDEMARGIN_PARENT": str(os.getppid())}
    assert subprocess.run(words, env=gone, stderr=subprocess.DEVNULL).returncode == 1
    assert not (tmp_path / "cb-2d" / "verdict.json").exists()
