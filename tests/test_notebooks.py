"""What a fresh notebook shows: certificates as cards, pictures as pictures, a bar while a search or training runs."""

from __future__ import annotations

import base64
import math

import pytest

from widemargin import notebooks

nbformat = pytest.importorskip("nbformat", reason="notebooks are executed with nbclient and ipykernel")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

CELLS = [
    "import numpy as np, widemargin as wm\n"
    "X = np.array([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]]); y = ['same', 'same', 'other', 'other']\n"
    "cert = wm.margins.f1(X, y); cert",
    "wm.plots.intervals([cert])",
    "wm.plots.decision(cert, X, y)",
    "run = wm.flows.train(X, y, wm.flows.TwoLayer(2, 6), wm.flows.GD(), stop=30); run",
    "wm.plots.trajectory(run, cert)",
    "wm.report.build([cert])",
    "wm.margins.of(run, X, y)",
    "from widemargin import notebooks; notebooks.AFTER = notebooks.EVERY = 0.0\n"
    "wm.flows.train(X, y, wm.flows.TwoLayer(2, 6), wm.flows.GD(), stop=2000); None",
    "noise = np.random.default_rng(0); points = noise.standard_normal((12, 4))\n"
    "wm.margins.f1(points, noise.random(12) > 0.5); None",
    "print(repr(cert)); print(repr(run)); wm.Dataset(X, y)",
]


@pytest.fixture(scope="module")
def shown() -> list[list]:
    """The outputs of the cells, in a kernel that has imported nothing before."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS])
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    return [cell["outputs"] for cell in notebook.cells]


def data(outputs: list) -> dict:
    return next(one["data"] for one in outputs if one["output_type"] == "execute_result")


@pytest.mark.slow
def test_a_certificate_is_a_card(shown):
    found = data(shown[0])
    assert len(found["text/plain"]) < 400 and found["text/plain"].startswith("<Certificate: largest margin (F1)")
    card = found["text/html"]
    assert "<svg" in card and "proved" in card and "cert.save(" in card and len(card) < 6000


@pytest.mark.slow
@pytest.mark.parametrize("cell", [1, 2, 4])
def test_pictures_are_seen(shown, cell: int):
    picture = base64.b64decode(data(shown[cell])["image/png"])
    assert picture.startswith(b"\x89PNG") and len(picture) > 5000


@pytest.mark.slow
def test_runs_pages_and_shares_are_short(shown):
    for cell, words in ((3, "keep=folder"), (5, "report.write"), (6, "this network")):
        found = data(shown[cell])
        assert len(found["text/plain"]) < 400 and words in found["text/html"] and len(found["text/html"]) < 6000
    printed = "".join(one["text"] for one in shown[9] if one["output_type"] == "stream")
    assert len(printed) < 600 and len(data(shown[9])["text/plain"]) < 200


@pytest.mark.slow
@pytest.mark.parametrize(("cell", "words"), [(7, "step"), (8, "s  [")])
def test_a_bar_while_it_runs(shown, cell: int, words: str):
    """It came, moved, and went: what is left at the end is empty."""
    left = [one for one in shown[cell] if one["output_type"] == "display_data"]
    assert len(left) == 1 and left[0]["data"]["text/html"] == ""
    assert not [one for one in shown[cell] if one["output_type"] == "error"], words


def test_nothing_is_drawn_outside_of_notebooks(capsys):
    assert not notebooks.in_notebook()
    with notebooks.watched(None, lambda *_: (math.nan, "")) as progress:
        assert progress is None
    assert capsys.readouterr().out == ""


def test_what_is_shown_is_escaped():
    assert (
        "<b>" not in notebooks.bar(0.5, "<b>")
        and "50.0%" in notebooks.bar(0.5, "x")
        and "0.0%" in notebooks.bar(math.nan, "x")
    )
    assert "<b>" not in notebooks.card("<b>", "", {"<b>": "<b>"}, "<b>")
    for lower, upper, mark in (
        (0.0, 0.0, None),
        (0.1, math.inf, None),
        (1.0, 2.0, 1.5),
        (-1.0, 2.0, -1.0),
        (0.0, 1e300, 1e299),
    ):
        drawn = notebooks.interval(lower, upper, mark, "<b>")
        assert "nan" not in drawn and "inf" not in drawn and "<b>" not in drawn
