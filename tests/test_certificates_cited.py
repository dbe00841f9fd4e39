"""What a certificate says of itself: facts of its run outside the digest, names of labels and columns, BibTeX, a short repr."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import widemargin as wm
from checks import seal
from widemargin import cli, kinds, references, report, verify
from widemargin.types import Certificate, Dataset, InputError
from widemargin.verify.__main__ import main as alone

ROOT = Path(__file__).parents[1]
X = np.array([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]])
TABLE = pd.DataFrame(X, columns=["height", "width"]).assign(species=["oak", "oak", "fir", "fir"])


def written(cert: Certificate) -> dict:
    return json.loads(json.dumps(cert.payload()))


def test_equal_certificates_have_equal_digests(monkeypatch):
    one = wm.margins.f1(TABLE, "species")
    other = dataclasses.replace(
        one, stats={**one.stats, "seconds": 99.0, "date": "2031-01-01T00:00:00Z", "version": "9.9"}
    )
    assert one.payload()["run"] != other.payload()["run"] and one.payload()["digest"] == other.payload()["digest"]
    again = wm.margins.f1(TABLE, "species")
    assert again.payload()["digest"] == one.payload()["digest"]
    assert wm.margins.f1(TABLE, "species", tol=0.1).payload()["digest"] != one.payload()["digest"]


def test_what_the_file_says(tmp_path):
    cert = wm.margins.f1(TABLE, "species")
    body = written(cert)
    assert body["run"]["version"] == wm.__version__ and re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}Z", body["run"]["date"])
    assert body["tol"] == 1e-3
    assert body["data"]["labels"] == [["fir", -1], ["oak", 1]]
    assert (body["data"]["label"], body["data"]["columns"]) == ("species", ["height", "width"])
    cert.save(tmp_path / "c.json")
    read = Certificate.load(tmp_path / "c.json")
    assert written(read) == body and read.data_called == cert.data_called and read.verify(TABLE, "species").ok
    several = wm.margins.multiclass_linear(X, ["a", "b", "c", "a"])
    assert written(several)["data"]["labels"] == [["a", 0], ["b", 1], ["c", 2]]


def test_the_run_is_not_part_of_the_digest_and_all_else_is():
    body = written(wm.margins.f1(TABLE, "species"))
    data = Dataset(TABLE, "species")

    def answer(change: dict) -> str | None:
        return verify.check({**body, **change}, data.X, data.y).failed

    assert answer({"run": {"date": "1999-01-01T00:00:00Z"}, "seconds": 1e6}) is None
    for change in ({"tol": 0.5}, {"seed": 7}, {"data": body["data"] | {"label": "other"}}, {"gap": 0.5}):
        assert answer(change) == "digest", change
    before = {key: value for key, value in body.items() if key not in ("run", "digest")}
    before["digest"] = verify.digest(before)  # as they were written: the digest covers the seconds
    assert verify.check(before, data.X, data.y).ok
    for change in ({"seconds": 1e6}, {"run": {}}, {"run": {"version": "0"}}):
        assert verify.check({**before, **change}, data.X, data.y).failed == "digest", change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"columns": ["one"]}, "data.columns does not have 2 entries"),
        ({"columns": [1, 2]}, "data.columns"),
        ({"labels": [["a", -1, 2]]}, "is no pair"),
        ({"labels": [[["a"], -1]]}, "data.labels"),
        ({"label": 3}, "data.label is no text"),
        ({"standardized": {"mean": [0.0], "scale": [1.0]}}, "does not have 2 entries"),
        ({"standardized": {"mean": [0.0, 0.0]}}, "data.standardized"),
    ],
)
def test_what_names_may_be(change: dict, said: str, tmp_path):
    body = written(wm.margins.f1(TABLE, "species"))
    body["data"] |= change
    (tmp_path / "c.json").write_text(json.dumps(seal(body)))
    with pytest.raises(InputError, match=re.escape(said)):
        Certificate.load(tmp_path / "c.json")


def test_standardised_data(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    raw = pd.DataFrame({"a": 1e4 * rng.standard_normal(12) + 5e4, "b": rng.standard_normal(12), "c": np.full(12, 3.0)})
    raw["kind"] = np.where(raw["a"] > 5e4, "up", "down")
    data = Dataset(raw, "kind").standardize()
    np.testing.assert_allclose(data.X.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(data.X.std(axis=0), [1, 1, 0], atol=1e-12)
    cert = wm.margins.f1(data)
    assert cert.verify(data).ok and cert.verify(raw, "kind").ok and cert.verify(Dataset(raw, "kind")).ok
    other = raw.assign(b=raw["b"] + 1)
    assert cert.verify(other, "kind").failed == "data hash"
    with pytest.raises(InputError, match="standardised already"):
        data.standardize()
    raw.to_csv("raw.csv", index=False)
    assert cli.main(["margin", "raw.csv", "--label", "kind", "--standardize", "--save", "c.json"]) == 0
    assert "standardised" in "".join(capsys.readouterr())
    read = Certificate.load("c.json")
    assert set(read.data_called["standardized"]) == {"mean", "scale"}
    assert cli.main(["verify", "c.json", "raw.csv"]) == 0  # the certificate knows the column
    assert alone(["c.json", "raw.csv"]) == 0  # where only numpy is installed, too
    other.to_csv("other.csv", index=False)
    assert alone(["c.json", "other.csv"]) == 1 == cli.main(["verify", "c.json", "other.csv"])
    command = report.certificates.again(read)
    assert "--label kind --standardize" in command and "verify c.json raw.csv --label kind" in command


def test_to_run_it_again(tmp_path, monkeypatch, capsys):
    """The commands on a page make the same certificate again."""
    monkeypatch.chdir(tmp_path)
    TABLE.to_csv("trees.csv", index=False)
    assert cli.main(["margin", "trees.csv", "--label", "species", "--bias", "--save", "c.json"]) == 0
    first, check = report.certificates.again(Certificate.load("c.json")).splitlines()
    assert "--label species" in first and "--label species" in check and "--tol 0.001" in first
    before = json.loads(Path("c.json").read_text())["digest"]
    assert cli.main(first.split()[1:]) == 0 and cli.main(check.split()[1:]) == 0
    assert json.loads(Path("c.json").read_text())["digest"] == before


# ---------------------------------------------------------------- citations


def test_bibtex_of_a_certificate():
    cert = wm.margins.f1(TABLE, "species")
    text = cert.cite()
    assert text.count("@") == 3 and text.count("{") == text.count("}")
    assert f"version = {{{wm.__version__}}}" in text and cert.payload()["digest"] in text
    assert "Chizat" in text and "Wei, Colin" in text


def test_every_kind_knows_its_papers():
    assert set(references.BEHIND) == set(kinds.KINDS) - {"linear"}  # which is older than any of them
    assert {key for keys in references.BEHIND.values() for key in keys} == set(references.PAPERS)


def test_the_citation_file():
    import yaml

    found = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert found["version"] == wm.__version__ and found["license"] == "MIT"
    told = {one["title"]: [who.get("family-names") for who in one["authors"]] for one in found["references"]}
    for paper in references.PAPERS.values():
        assert told[paper.title] == ([who.partition(",")[0] for who in paper.authors] or [None])
    assert len(told) == len(references.PAPERS)


# ---------------------------------------------------------------- short and shown


def shown_objects() -> dict[str, object]:
    rng = np.random.default_rng(0)
    data = Dataset(rng.standard_normal((24, 3)), np.where(rng.random(24) > 0.5, 1, -1), "noise")
    cert = wm.margins.f2(data)
    run = wm.flows.train(data, wm.flows.TwoLayer(3, 50), wm.flows.GD(), stop=20, record=["weights", "risk"], trials=3)
    checked = wm.theory.check(run, data)
    return {
        "Dataset": data,
        "Certificate": cert,
        "Measure": wm.Measure(rng.standard_normal((500, 3)), np.ones(500)),
        "Trajectory": run,
        "Page": wm.report.build([cert]),
        "Path": wm.optima.path(data, 3, loss="squared", tol=0.1),
        "Guarantees": wm.theory.guarantees(data, theorems=["CB-22"], time_limit=0.2),
        "Facts": wm.theory.facts(data),
        "Track": wm.theory.follow(run, data),
        "Problem": wm.flows.pose(wm.flows.TwoLayer(3, 50), data, "exp"),
        "Inequality": checked[0],
        "WidthCurve": wm.margins.width_margin_curve(data, [1, 2], time_limit=0.3),
    }


def test_reprs_are_short(one_thread):
    for name, one in shown_objects().items():
        assert len(repr(one)) < 400 and "\n" not in repr(one) and name in repr(one), repr(one)[:1000]


def test_cards(one_thread):
    data = Dataset(X, [1, 1, -1, -1], "<script>alert(1)</script>")
    for one in (
        wm.margins.f1(data),
        wm.margins.linear(data),
        wm.flows.train(data, wm.flows.TwoLayer(2, 3), wm.flows.GD(), stop=3),
    ):
        card = one._repr_html_()
        assert len(card) < 6000 and "<script>" not in card
    card = wm.margins.f1(data)._repr_html_()
    assert "<svg" in card and "proved" in card and "cert.save(" in card and "4 points of 2 features" in card
    page = wm.report.build([wm.margins.f1(data)])
    assert "report.write" in page._repr_html_() and "<script>" not in page._repr_html_()
    nothing = dataclasses.replace(wm.margins.f1(data), upper=float("inf"), proved=False, status="time-limit")
    assert "unknown" in nothing._repr_html_() and "upper bound not proved" in nothing._repr_html_()
