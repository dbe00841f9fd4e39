"""Commands do not write over what they read, nor certificates over what is none: they refuse before any work."""

import gzip
import os
import sqlite3

import pytest
import torch

from test_cli import SMALL, refused, run
from widemargin import data, margins

WAYS = {
    "margin": ["margin", "{}", "--kind", "linear", "--save"],
    "among kinds": ["margin", "--kind", "f2", "linear", "{}", "--save"],
    "fit": ["fit", "{}", "--weight-decay", "0.1", "--save"],
    "data": ["data", "{}", "--out"],
    "play": ["play", "--data", "{}", "--out"],
}


@pytest.fixture
def points(tmp_path):
    data.save_dataset(data.load(SMALL), tmp_path / "points.npz")
    return tmp_path / "points.npz"


@pytest.mark.parametrize("way", WAYS)
def test_data_are_not_written_over(way, points, tmp_path, monkeypatch):
    before = points.read_bytes()
    (tmp_path / "link.npz").symlink_to(points)
    os.link(points, tmp_path / "hard.npz")
    monkeypatch.setattr(data, "load", lambda *_, **__: pytest.fail("nothing is read before"))
    monkeypatch.setattr(data, "load_for_loss", lambda *_, **__: pytest.fail("nothing is read before"))
    monkeypatch.chdir(tmp_path)
    for given in (points, "points.npz", "link.npz"):
        argv = [word.format(given) for word in WAYS[way]]
        for out in ["points.npz", "./link.npz", points] if way != "among kinds" else []:
            assert f"over {given}, which this command reads" in refused(*argv, out)
    if way == "among kinds":  # these have files of their own, CERT.f2.npz and CERT.linear.npz
        os.rename(points, points := tmp_path / "points.linear.npz")
        argv = [word.format("points.linear.npz") for word in WAYS[way]]
        assert "which this command reads" in refused(*argv, "points.npz")
    assert points.read_bytes() == before


def test_pictures_and_models_are_not_written_over_either(points, tmp_path):
    picture = tmp_path / "points.png"
    os.link(points, picture)
    assert "reads" in refused("fit", points, "--path", "3", "--plot", picture)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    for argv in (
        ["gap", tmp_path / "model.pt", points, "--weight-decay", "0.1"],
        ["margin", points, "--model", tmp_path / "model.pt"],
    ):
        for name in ("model.pt", "points.npz"):
            assert "which this command reads" in refused(*argv, "--save", tmp_path / name)


def test_certificates_replace_certificates_alone(points, tmp_path):
    with sqlite3.connect(tmp_path / "results.sqlite") as store:
        store.execute("create table runs (a)")
    store.close()
    (tmp_path / "config.json").write_text('{"format": "widemargin-run-1"}')
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "notes.csv").write_text("x,y\n1,2\n")
    (tmp_path / "other.json.gz").write_bytes(gzip.compress(b"[]"))
    for name in ("results.sqlite", "config.json", "list.json", "notes.csv", "other.json.gz"):
        before = (tmp_path / name).read_bytes()
        said = refused("margin", SMALL, "--kind", "linear", "--save", tmp_path / name)
        assert f"{name}, which is none; remove it first" in said
        assert "which is none" in refused("fit", SMALL, "--weight-decay", "1", "--save", tmp_path / name)
        assert (tmp_path / name).read_bytes() == before
    (tmp_path / "empty").touch()  # as mktemp leaves it
    (tmp_path / "half.json").write_text('{"kind": "f2", "lower": 0.1, "up')
    margins.linear(data.load(SMALL)).save(tmp_path / "old.json")
    margins.linear(data.load(SMALL)).save(tmp_path / "old.json.gz")
    for name in ("empty", "half.json", "old.json", "old.json.gz"):
        assert run("margin", SMALL, "--kind", "f2", "--save", tmp_path / name)[0] == 0
        assert run("verify", tmp_path / name, SMALL)[0] == 0


def test_pages_replace_pages_alone(points, tmp_path):
    """A page takes the place of pages and of remains, and of nothing else: data that are gone cannot be made again."""
    cert = tmp_path / "cert.json"
    assert run("margin", points, "--kind", "linear", "--save", cert)[0] == 0
    for argv in (["report", cert, "--out"], ["play", "--out"]):
        before = points.read_bytes()
        assert "cannot write a page over" in refused(*argv, points) and points.read_bytes() == before
        page = tmp_path / "page.html"
        page.write_text("")
        for _ in range(2):
            assert run(*argv, page)[0] == 0 and page.read_bytes()


def test_two_outputs_are_two_files(points, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for count, save, plot in (("1", "a.png", "./a.png"), ("2", "a.png", tmp_path / "a.2.png")):
        said = refused("fit", points, "--path", count, "--save", save, "--plot", plot)
        assert f"--save and --plot both write {plot}" in said
    assert sorted(os.listdir(tmp_path)) == ["points.npz"]
