"""Certificates that were damaged, or written by someone who means harm: an answer or one sentence, never a traceback."""

import gzip
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from harm import check_memory, command, draw, ends, harmed_bytes, harmed_value, share

from widemargin import margins, optima, report, verify
from widemargin.data import load
from widemargin.types import Certificate, Dataset, InputError

sys.path.insert(0, str(Path(__file__).parents[1] / "verify"))
from corpus import saved, seal, written_before


def optima_made():
    flat, several = (
        Dataset([[1.0, 2.0], [2.0, -1.0], [-1.0, 0.5], [0.5, 0.5], [-2.0, 1.0]], [1, -1, 1, -1, 1]),
        [0, 1, 2, 1, 0],
    )
    weights = [1.0, 2.0, 0.0, 0.5, 1.0]
    made = [
        (optima.f1(flat, loss="logistic", weight_decay=0.05, bias=True), flat),
        (optima.f1(flat, loss="squared", weight_decay=0.05, weights=weights, output_bias="decayed", bias=True), flat),
        (optima.f2(flat, loss="logistic", weight_decay=0.05, bias=True), flat),
        (
            optima.f1(Dataset(flat.X, several), loss="cross-entropy", weight_decay=0.05, bias=True),
            Dataset(flat.X, several),
        ),
    ]
    return [(cert.kind, saved(cert), data.X, data.y) for cert, data in made]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Payloads whose data lie in files beside them, with the place of the data."""
    folder = tmp_path_factory.mktemp("certificates")
    found = []
    for k, (_, payload, X, y) in enumerate([*written_before(), *optima_made()]):
        place = folder / f"data{k}.npz"
        np.savez(place, X=X, y=y)
        found.append((seal(payload | {"data": {**payload["data"], "name": str(place)}}), place))
    return found


def test_whole_ones_are_read_shown_and_verified(made, tmp_path):
    for k, (payload, place) in enumerate(made):
        path = tmp_path / f"{k}.json"
        path.write_text(json.dumps(payload))
        cert = Certificate.load(path)
        assert cert.kind == payload["kind"]
        verdict = verify.check(payload, *np.load(place).values())
        assert verdict.answer != verify.REFUSED or payload["kind"] == "ntk", (k, verdict)  # of an old sample
    page = report.build(tmp_path)
    assert len(page.sections) > 10 and "proved, re-checked" in page.html()
    assert not any("is not shown" in one.title for one in page.sections)


def test_true_is_no_number(made, tmp_path):
    """A page took it for 1, and showed as proved what `verify` refuses."""
    for part in ("dual", "mass"):
        payload = next(one for one, _ in made if one["primal"] and one["primal"]["mass"] and one["dual"])
        harmed = json.loads(json.dumps(payload))
        (harmed if part == "dual" else harmed["primal"])[part][0] = True
        (tmp_path / "c.json").write_text(json.dumps(seal(harmed)))
        with pytest.raises(
            InputError, match=f"c.json: the certificate is damaged .*{part} has entries that are no numbers"
        ):
            Certificate.load(tmp_path / "c.json")


def test_what_they_hold(made, tmp_path):
    """Digests are put right again, so that the content itself is looked at."""
    rng, path, refused = draw("certificates"), tmp_path / "c.json", 0
    for _ in range(share(470)):
        payload, place = rng.choice(made)
        harmed = harmed_value(rng, payload)
        if isinstance(harmed, dict) and rng.random() < 0.9:
            harmed = seal(harmed)
        path.write_text(json.dumps(harmed))
        if rng.random() < 0.3:
            command("verify", path, place)
            continue
        try:
            with ends():
                page = report.build(str(path))
            sections = [one.render() for one in page.sections]
            assert "http://x" not in "".join(sections).replace("&#x27;http://x", "")
        except InputError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            refused += 1
    assert refused
    check_memory()


def test_a_name_that_no_file_can_have(made, tmp_path):
    payload, _ = made[0]
    (tmp_path / "c.json").write_text(json.dumps(seal(payload | {"data": {**payload["data"], "name": "a" * 3000}})))
    assert command("report", tmp_path / "c.json", "--out", tmp_path / "page.html")[0] == 0


def test_a_sampled_margin_that_is_said_to_be_another(tmp_path):
    """A page took it to have a function of the points, which needs weights, and ended in a KeyError."""
    cert = margins.ntk(load("mt:d=2,n=10,seed=0"), samples=5000)
    assert cert.bound == "confidence" and cert.lower > 0
    path = tmp_path / "c.json"
    path.write_text(json.dumps(seal(cert.payload() | {"bound": "dual"})))
    status, _, said = command("report", path, "--out", tmp_path / "page.html")
    assert status == 2 and "extra.alpha" in said


def test_their_bytes(made, tmp_path):
    rng = draw("certificate bytes")
    for k in range(share(160)):
        payload, place = rng.choice(made)
        text = json.dumps(payload).encode()
        path = tmp_path / ("c.json.gz" if k % 2 else "c.json")
        path.write_bytes(harmed_bytes(rng, gzip.compress(text) if k % 2 else text))
        status, _, _ = command("verify", path, place)
        assert status in (1, 2) or payload["kind"] == "ntk" or _same(path, payload)


def _same(path, payload):
    """Whether the harm has left what it says as it was, but for facts of the run, which no digest covers."""
    facts = ("seconds", "run")
    there = verify.load(path)
    return {k: v for k, v in there.items() if k not in facts} == {k: v for k, v in payload.items() if k not in facts}


def test_in_a_folder_one_bad_file_costs_a_line(made, tmp_path):
    rng = draw("folders")
    for k in range(share(10)):
        folder = tmp_path / str(k)
        folder.mkdir()
        (folder / "good.json").write_text(json.dumps(made[0][0]))
        for j in range(6):
            (folder / f"bad{j}.json").write_text(json.dumps(seal(harmed_value(rng, dict(rng.choice(made)[0])))))
        page = report.build(folder)
        assert any(one.kind == "certificates" and "is not shown" not in one.title for one in page.sections)


def test_the_whole_command(made, tmp_path):
    rng, path = draw("report"), tmp_path / "c.json"
    for _ in range(share(6)):
        path.write_text(json.dumps(seal(harmed_value(rng, rng.choice(made)[0]) or {})) if rng.random() < 0.9 else "{}")
        before = sorted(tmp_path.iterdir())
        status, _, _ = command("report", path, "--out", tmp_path / "page.html")
        assert status in (0, 2)
        if status == 2:
            assert sorted(tmp_path.iterdir()) == before
        (tmp_path / "page.html").unlink(missing_ok=True)
