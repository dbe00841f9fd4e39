"""`widemargin report`: what it reads, what it refuses, and that nothing is half-written."""

import json
import os
import shlex

import pytest

from test_cli import refused, run
from widemargin import cli, flows

pytestmark = pytest.mark.usefixtures("one_thread")

DATA = "clusters:n=12,k=3,seed=1"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    assert run("margin", DATA, "--kind", "linear", "f2", "--save", folder / "c.json.gz")[0] == 0
    options = ["--width", "8", "--steps", "60", "--points", "12", "--weights", "--bias", "--trials", "2", "--lr", "0.3"]
    assert run("train", DATA, *options, "--out", folder / "run")[0] == 0
    return folder


def test_a_page_of_everything_in_a_folder(made, tmp_path):
    out = tmp_path / "r.html"
    status, printed, said = run("report", made, "--out", out, "--json")
    told = json.loads(printed)
    assert status == 0 and f"written to {out}" in said and told["out"] == str(out)
    assert [one["kind"] for one in told["sections"]] == ["certificates", "run"]
    assert out.read_text().startswith("<!DOCTYPE html>") and os.listdir(tmp_path) == ["r.html"]
    status, printed, _ = run("report", made / "run", made / "c.f2.json.gz", "--out", out, "--title", "Mine & yours")
    assert (
        status == 0
        and printed.startswith("Certified margin: clusters")
        and "<title>Mine &amp; yours</title>" in out.read_text()
    )


TRAININGS = [
    "--algorithm gd --lr 0.3 --steps 40 --points 12 --trials 2 --seed 3 --weights",
    "--algorithm gf --time 3.5 --points 9 --bias --option law=cb",
    "--algorithm sgd --steps 20 --option batch=4 --net frozen --loss exp",
    "--algorithm ngd --net srelu --steps 10 --until fitted",
    "--algorithm adam --net mlp --loss ce --steps 12 --option depth=3 --option outputs=2 --dtype float32",
    "--algorithm cb --net output --steps 15 --width 7",
    "--algorithm gd --loss squared --steps 10 --net scalar",
    "--algorithm gd --steps 10 --net product",
    "--algorithm gd --steps 10 --bias --certify",
]


@pytest.mark.parametrize("options", TRAININGS)
def test_the_command_that_is_shown_gives_the_same_run(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("train", DATA, *shlex.split(f"--width 6 {options}"), "--out", "first")[0] == 0
    status, printed, _ = run("report", "first", "--json")
    assert status == 0
    (command,) = [one["settings"] for one in json.loads(printed)["sections"][0]["contents"] if "settings" in one]
    words = shlex.split(command)
    assert words[0] == "widemargin" and words[-2:] == ["--out", "first"]
    assert "Not all of it can be told" not in (tmp_path / "report.html").read_text()
    assert run(*words[1:-1], "second")[0] == 0
    first, second = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("first", "second"))
    assert first == second
    assert flows.load_certificate("first") is None or flows.load_certificate("second") is not None


def damaged(made, tmp_path, what):
    """A path that cannot be reported, and words of the refusal."""
    place = tmp_path / "bad"
    if what == "nothing there":
        return place, "there is no file or folder"
    if what == "a text":
        place.write_text("hello")
        return place, "is no certificate"
    if what == "other JSON":
        place.write_text('{"a": 1}')
        return place, "is no certificate, run, store"
    if what == "bytes":
        place.write_bytes(b"\x1f\x8b\x00\xff\x00")
        return place, "cannot be read"
    if what == "certificate cut off":
        place.write_bytes((made / "c.f2.json.gz").read_bytes()[:-20])
        return place, "cannot be read"
    place.mkdir()
    if what == "empty folder":
        return place, "holds nothing to report"
    if what == "store of garbage":
        (place / "results.sqlite").write_bytes(b"garbage" * 1000)
        return place, "damaged"
    if what == "run without checkpoints":
        (place / "config.json").write_text((made / "run" / "config.json").read_text())
        return place, "no checkpoint"
    if what == "run of garbage":
        (place / "config.json").write_text("{")
        return place, "damaged"
    if what == "monitor of garbage":
        (place / "monitor.json").write_text("[]")
        return place, "it is no object"
    if what == "records of garbage":
        (place / "monitor.json").write_text('{"format": "widemargin-monitor-1"}')
        (place / "records.parquet").write_bytes(b"x" * 50)
        return place, "records.parquet cannot be read"
    if what == "verdicts of garbage":
        (place / "verdict.json").write_text('{"a": 1}')
        return place, "verdicts is no list"
    if what == "picture of garbage":
        (place / "verdict.json").write_text("[]")
        (place / "figure.png").write_text("no")
        return place, "no PNG"
    (place / "c.json.gz").write_bytes(b"\x1f\x8b")
    return place / "c.json.gz", "cannot be read"


BAD = [
    "nothing there", "a text", "other JSON", "bytes", "certificate cut off", "empty folder", "store of garbage",
    "run without checkpoints", "run of garbage", "monitor of garbage", "records of garbage", "verdicts of garbage",
    "picture of garbage", "a damaged certificate",
]  # fmt: skip


OLD = "<!doctype html>the old page"


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_reported(what, made, tmp_path):
    path, said = damaged(made, tmp_path, what)
    out = tmp_path / "out"
    out.mkdir()
    (out / "r.html").write_text(OLD)
    # What is good beside it does not save it: a page that silently leaves something out would mislead.
    assert said in refused("report", made / "c.f2.json.gz", path, "--out", out / "r.html")
    assert os.listdir(out) == ["r.html"] and (out / "r.html").read_text() == OLD


def test_other_refusals(made, tmp_path, monkeypatch):
    assert "there is no folder" in refused("report", made, "--out", tmp_path / "no" / "r.html")
    assert "it is a folder" in refused("report", made, "--out", tmp_path)
    assert "trials 0 to 1" in refused("report", made / "run", "--trial", 5, "--out", tmp_path / "r.html")
    assert "legal" in refused("report", "a\0b", "--out", tmp_path / "r.html")
    assert "arguments are required" in refused("report")
    assert "'nosuch'" in refused("report", made / "run", "--columns", " , nosuch ", "--out", tmp_path / "r.html")
    assert "'nosuch'" in refused("report", made / "run", "--columns", "nosuch", "--out", tmp_path / "r.html")
    assert os.listdir(tmp_path) == []


def test_the_page_is_not_written_over_what_it_shows(made, tmp_path):
    content = (made / "c.f2.json.gz").read_bytes()
    assert "over or into" in refused("report", made / "c.f2.json.gz", "--out", made / "c.f2.json.gz")
    assert "over or into" in refused("report", made, "--out", made / "c.f2.json.gz")
    (tmp_path / "link.html").symlink_to(made / "c.f2.json.gz")
    assert "over or into" in refused("report", tmp_path / "link.html", "--out", made / "c.f2.json.gz")
    assert "over or into" in refused("report", made / "run", "--out", made / "run" / "config.json")
    assert "over or into" in refused("report", made / "run" / "config.json", "--out", made / "run" / "r.html")
    assert (made / "c.f2.json.gz").read_bytes() == content and not (made / "run" / "r.html").exists()
    assert run("report", made, "--out", made / "r.html")[0] == 0  # beside them there is room
    (made / "r.html").unlink()


def test_report_is_among_the_commands():
    status, out, _ = run("--help")
    assert status == 0 and "report" in out and cli.report.report.__doc__
