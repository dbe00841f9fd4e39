"""Pages of what goes wrong: margins that stay negative, certificates of other data, runs that are not there yet."""

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex

from widemargin import data as datasets
from widemargin import flows, margins, monitor, optima, plots, report
from widemargin.monitor import store
from widemargin.monitor.record import Record
from widemargin.report import certificates, page, runs, section
from widemargin.types import InputError

pytestmark = pytest.mark.usefixtures("one_thread")

DATA = datasets.load("clusters:n=14,k=3,seed=1")
OTHER = datasets.load("clusters:n=14,k=3,seed=2")
RECORD = Record(
    step=0, name="train", whole=True, n=40, error=0.1, loss=0.1, margin=1.0, margin_mean=2.0, exact=True,
    quantiles={0.0: 1.0, 0.5: 2.0}, psi=0.5, log_loss_sum=-1.0, norm=1.0, degree=2, at_minimum=2, dual_entropy=1.0,
)  # fmt: skip


def trained(steps=60, lr=0.5, net=None, points=12, **more):
    record = flows.Record(["default", "weights"], points=points)
    return flows.train(DATA, net or flows.TwoLayer(3, 8), flows.GD(lr=lr), stop=steps, record=record, bias=True, **more)


@pytest.fixture(scope="module")
def traj():
    return trained()


@pytest.fixture(scope="module")
def cert():
    return margins.f1(DATA, bias=True, time_limit=20)


def shown(built, title):
    """The figure of this title, and its caption."""
    text = built.sections[0].render()
    (part,) = [one for one in re.findall(r"<figure>.*?</figure>", text, re.S) if f'aria-label="{title}"' in one]
    return json.loads(re.search(r'data-figure="[^"]+">(.*?)</script>', part, re.S)[1]), re.search(
        r"</strong>(.*?)</figcaption>", part, re.S
    )[1]


# ---------------------------------------------------------------- what belongs together


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "frozen"}, "of kind frozen, not f1"),
        ({"data_sha256": "0" * 64, "data_name": "strange"}, "of other data, strange"),
        ({"bias": False, "primal": None}, "without a bias and the run with"),
        ({"activation": "srelu"}, "activation srelu and the run of relu"),
    ],
)
def test_a_certificate_of_something_else_is_not_drawn(change, said, cert, traj, tmp_path):
    with pytest.raises(InputError, match=said):
        report.build([(traj, DATA, replace(cert, **change))])
    trained(keep=tmp_path / "run")
    flows.save_certificate(tmp_path / "run", replace(cert, **change))
    built = report.build(tmp_path / "run")
    text = built.sections[0].render()
    assert "The certificate beside this run is not drawn" in text and said in text
    assert "Dotted: no network of this kind" not in text and "--certify" not in text


def test_data_of_something_else_is_refused(traj, cert):
    for data in (OTHER, [DATA, DATA]):
        with pytest.raises(InputError, match="is not what the run was trained on"):
            report.build([(traj, data, None)])
    assert "Dotted: no network of this kind" in report.build([(traj, DATA, cert)]).sections[0].render()


# ---------------------------------------------------------------- margins below 0


def test_margins_that_stay_negative_are_seen(traj, cert):
    negative = replace(traj, records=traj.records | {"margin_M2": -0.3 - 0 * traj["margin_M2"]})
    built = report.build([(negative, DATA, cert)])
    figure, caption = shown(built, "Normalised margin")
    assert "range" not in figure["layout"]["yaxis"] and "below the axis" not in caption
    text = built.sections[0].render()
    assert "none: the margin is negative" in text and ">none</td>" in text


def test_what_the_axis_of_margins_hides_is_said(traj):
    y = np.linspace(-5.0, 1.0, len(traj.t))[:, None]
    records = {**traj.records, "margin_M2": y, "margin_partial": y, "psi_normalized": y - 2}
    figure, caption = shown(report.build([(replace(traj, records=records), DATA)]), "Normalised margin")
    np.testing.assert_allclose(figure["layout"]["yaxis"]["range"], [-0.12, 1.12])
    assert "not drawn; the smooth margin psi is below it all the time" in caption
    records = {**traj.records, "margin_M2": y + 4.9, "margin_partial": y + 4.9, "psi_normalized": y + 4.9}
    _, caption = shown(report.build([(replace(traj, records=records), DATA)]), "Normalised margin")
    assert "below the axis" not in caption


# ---------------------------------------------------------------- the slider, plotly


def test_the_first_moment_hides_the_mark_and_later_ones_show_it(traj):
    text = report.build([(traj, DATA)]).sections[0].render()
    scenes = json.loads(re.search(r'data-scenes-of="[^"]+">(.*?)</script>', text, re.S)[1])
    name = re.search(r'id="([^"]+)"[^>]*aria-label="Normalised margin"', text)[1]
    seen = [
        [value for key, value in scene["figures"][name][0]["layout"].items() if key.endswith("visible")]
        for scene in scenes
    ]
    assert seen == [[False]] + [[True]] * (len(scenes) - 1)


def test_texts_of_users_are_no_colours_and_axes_have_no_greek_letters():
    assert (
        section.label("@plus") != "@plus" and section.label("@plus").endswith("@plus") and section.label("a@") == "a@"
    )
    part = section.Section("run", "", 1)
    part.figure("a", {"data": [], "layout": section.layout("x", "y", ylog=True)}, "")
    assert part.render().count('"exponentformat":"power"') == 2


def test_a_single_time_has_an_axis_around_it():
    part = section.Section("run", "", 1)
    part.figure(
        "a", {"data": [section.line([0, 1e6, 1e6], [1, 2, 3], "a")], "layout": section.layout("x", "y", xlog=True)}, ""
    )
    figure = json.loads(re.search(r'data-figure="[^"]+">(.*?)</script>', part.render(), re.S)[1])
    np.testing.assert_allclose(figure["layout"]["xaxis"]["range"], [5, 7])


# ---------------------------------------------------------------- to run it again


def test_the_command_of_a_run_says_what_is_missing(traj, cert, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = cert
    command, note = runs.again(traj, "run", kept)
    assert command.endswith("--weights --certify --out run") and note == ""
    assert "--certify" not in runs.again(traj, "run")[0]
    assert "--time-limit" in runs.again(traj, "run", replace(kept, status="time-limit"))[1]
    tested = replace(traj, config=traj.config | {"test": "0" * 64})
    assert runs.again(tested, "run")[1] == "Not kept, so to be added: --test DATA."
    filed = replace(traj, config=traj.config | {"data": traj.config["data"] | {"names": ["points.csv"]}})
    assert "--label NAME" in runs.again(filed, "run")[1]
    assert "--label NAME" in report.build(replace(cert, data_name="points.npz")).sections[0].render()
    assert "--label NAME" not in report.build(cert).sections[0].render()


def test_the_usual_feature_map_is_not_ones_own():
    _, note = runs.again(trained(net=flows.make_net("product", 3, 8)), "run")
    assert "feature_map" not in note
    import torch

    own = flows.make_net("product", 3, 8, feature_map=torch.nn.Linear(3, 8, bias=False))
    assert "feature_map is one's own" in runs.again(trained(net=own), "run")[1]


def test_labels_are_found_in_another_column(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{a!r},{int(y)},{b!r}" for (a, b), y in zip(DATA.X.tolist(), DATA.y)]
    Path("points.csv").write_text("\n".join(["a,kind,b", *rows]) + "\n")
    cert = margins.linear(datasets.load("points.csv", "kind"))
    found = certificates.load_data(cert)
    assert found is not None and found.sha256() == cert.data_sha256
    assert certificates.load_data(replace(cert, data_sha256="0" * 64)) is None


def test_a_page_says_which_points_and_labels_a_certificate_chose(tmp_path, monkeypatch):
    """The file has a column y of -1 and +1, and the page said "proved, re-checked" of its name alone."""
    monkeypatch.chdir(tmp_path)
    Path("points.csv").write_text("a,b,y\n1,2,-1\n0,1,1\n1,-3,1\n")
    usual, other = datasets.load("points.csv"), datasets.load("points.csv", "a")
    column, scaled = "<dt>labels are</dt><dd>column a</dd>", "<dt>points are</dt><dd>standardised</dd>"
    signs = "<dt>targets are</dt><dd>-1 and +1 in place of 0 and 1</dd>"
    numbers = datasets.load_for_loss("points.csv", "a", loss="squared")
    for k, (made, said) in enumerate(
        (
            (margins.linear(usual, bias=True), ()),
            (margins.linear(usual.standardize(), bias=True), (scaled,)),
            (margins.linear(other.standardize(), bias=True), (column, scaled)),
            (optima.f2(usual, loss="squared", weight_decay=0.1), ()),
            (optima.f2(other, loss="squared", weight_decay=0.1), (column, signs)),
            (optima.f2(numbers, loss="squared", weight_decay=0.1), (column,)),
        )
    ):
        made.save(f"{k}.json")
        shown = report.build(f"{k}.json").sections[0].render()
        assert "proved, re-checked" in shown
        assert [words in shown for words in (column, scaled, signs)] == [w in said for w in (column, scaled, signs)], k


def test_the_number_of_records_is_found_without_trying_all(monkeypatch):
    def marks(steps, count):
        return np.unique(np.concatenate([[0.0], np.geomspace(1, steps, count - 1).round()[:-1], [steps]]))

    assert runs._points(trained(steps=7, points=2).config) == 2  # as training itself takes them
    for steps, count in itertools.product((1, 7, 100, 5000, 10**6), (2, 3, 12, 57, 200, 250, 400)):
        times = marks(steps, count)
        tried = next(k for k in (200, *range(2, 401)) if np.array_equal(marks(steps, k), times))
        assert runs._points({"times": times.tolist(), "steps": steps, "time": None}) == tried
    calls = []
    spaced = np.geomspace
    monkeypatch.setattr(np, "geomspace", lambda *args: calls.append(args) or spaced(*args))
    own = [*marks(10**6, 1600).tolist(), 1e6 + 1]
    assert runs._points({"times": own, "steps": 10**6, "time": None}) is None and 0 < len(calls) < 40


# ---------------------------------------------------------------- folders


def test_what_is_not_ready_in_a_folder_does_not_stop_the_page(tmp_path, traj):
    trained(keep=tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.json").write_text((tmp_path / "a" / "config.json").read_text())
    (tmp_path / "c.json.gz").write_bytes(b"\x1f\x8b")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "verdict.json").write_text("[")
    titles = [one.title for one in report.build([tmp_path], bounds=False).sections]
    assert len(titles) == 4 and [one.number for one in report.build(tmp_path).sections] == [1, 2, 3, 4]
    assert titles[0].startswith("c.json.gz is not shown: ") and titles[1].startswith("Run a: relu network")
    assert titles[2].startswith("b is not shown: ") and "has no checkpoint yet" in titles[2]
    assert titles[3].startswith("d is not shown: ")
    with pytest.raises(InputError, match="no checkpoint yet"):
        report.build([tmp_path, tmp_path / "b"])
    for name in ("a/config.json", "c.json.gz"):
        (tmp_path / name).unlink()
    with pytest.raises(InputError, match="no checkpoint yet"):
        report.build([tmp_path])  # nothing there can be shown


def test_a_file_of_a_folder_stands_for_the_folder(tmp_path):
    for name, kind in page.FILES.items():
        (tmp_path / kind).mkdir(exist_ok=True)
        (tmp_path / kind / name).write_text("{}")
        assert page.look(tmp_path / kind / name) == [(kind, tmp_path / kind, False)]
        assert page.look(tmp_path / kind) == [(kind, tmp_path / kind, False)]
    assert [one.inside for one in page.look(tmp_path)] == [True] * 4


# ---------------------------------------------------------------- from Python


def test_a_folder_may_be_several_things_and_hold_a_config_of_others(tmp_path):
    """Models of Hugging Face are saved with a config.json, and monitors may write beside them."""
    one = store.Store(tmp_path / "model", {"model": "Net", "loss": "ce", "parameters": 3})
    one.append([replace(RECORD, step=step) for step in range(3)])
    one.close()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "bert"}')
    for path in (tmp_path, tmp_path / "model"):
        assert [made.kind for made in report.build(path).sections] == ["monitor"]
    trained(steps=2, keep=tmp_path / "run")
    for file in ("monitor.json", "records.parquet"):
        (tmp_path / "run" / file).write_bytes((tmp_path / "model" / file).read_bytes())
    assert [made.kind for made in report.build(tmp_path / "run").sections] == ["run", "monitor"]
    (tmp_path / "model" / "config.json").write_text("{")
    assert [made.kind for made in report.build(tmp_path).sections] == ["run", "monitor", "run", "monitor"]


def test_one_thing_needs_no_list(tmp_path, traj, cert):
    cert.save(tmp_path / "c.json")
    for thing in (cert, tmp_path / "c.json", str(tmp_path / "c.json"), (traj, DATA), (traj, [DATA], cert)):
        assert len(report.build(thing).sections) == 1
    assert len(report.build(one for one in (cert, (traj, DATA))).sections) == 2


def test_other_things_are_refused_in_a_sentence(tmp_path, traj, cert):
    bad = [3, None, [3], [[]], [traj], traj, [(3, DATA)], [(traj,)], [(traj, "data")], [(traj, [])], [(traj, [3])]]
    bad += [[(traj, DATA, "cert.json")], [(traj, DATA, cert, cert)], [], DATA]
    for things in bad:
        with pytest.raises(InputError):
            report.build(things)
    for trial in ("a", -1, 0.5, None):
        with pytest.raises(InputError, match="trial must be"):
            report.build([(traj, DATA)], trial=trial)
    with pytest.raises(InputError, match="no sweep"):
        report.build(cert, columns=["nosuch"])
    with pytest.raises(InputError, match="it is a folder"):
        report.write(report.build(cert), tmp_path)


def test_overflow_and_networks_of_size_zero_are_quiet(traj):
    """Warnings are errors in these tests."""
    wild = replace(traj, records=traj.records | {"log_risk": np.full((len(traj.t), 1), 800.0)})
    assert len(report.build([(wild, DATA)]).sections) == 1
    built = report.build([(trained(net=flows.make_net("output", 3, 8)), DATA)])  # it begins with a = 0
    assert built.sections[0].title.startswith("Run: output network")
    net = flows.make_net("srelu", 3, 8)
    assert report.build([(trained(net=net), DATA)]).sections[0].title.startswith("Run: srelu network")


# ---------------------------------------------------------------- certificates, monitors


def test_a_bound_that_is_infinite_and_notes_in_two_lines(cert, traj):
    figure, _ = shown(report.build(replace(cert, upper=np.inf, lower=-np.inf)), "Certified intervals")
    assert figure["data"][0]["x"] == [None, None]
    figure, _ = shown(report.build(replace(cert, proved=False)), "Certified intervals")
    assert figure["data"][0]["x"] == [cert.lower, cert.upper]
    first, second = figure["layout"]["annotations"][0]["text"].split("<br>")
    assert first.startswith("[") and first.endswith("]") and second == "certified, upper bound not proved"
    assert "Dotted: no" not in report.build([(traj, DATA, replace(cert, upper=np.inf))]).sections[0].render()


def watched(folder, psi, name="step", blocks=False):
    one = store.Store(folder, {"model": "m", "loss": "ce", "parameters": 3, "homogeneous": {"degree": 2}})
    parts = {"0": 1.0} if blocks else {}
    one.append([replace(RECORD, step=k, name=name, psi=v, margin=v + 0.1, blocks=parts) for k, v in enumerate(psi, 1)])
    one.close()
    return report.build(folder)


@pytest.mark.parametrize(
    ("psi", "state", "mark"),
    [
        ([-1, 1, -1, 1, 2], "from step 4", 4),
        ([-1, np.nan, 1, np.nan], "from step 3", 3),
        ([1, 2], "from step 1", 1),
        ([-1, 2, -3], "no longer, last at step 2", None),
        ([-1, -2], "not yet", None),
    ],
)
def test_fitted_means_until_the_end(psi, state, mark, tmp_path):
    built = watched(tmp_path / "m", psi)
    figure, caption = shown(built, "Margins before fitting, step" if max(psi) <= 0 else "Margins over |w|^L, step")
    assert f"<dd>{state}</dd>" in built.sections[0].render()
    assert [one["x0"] for one in figure["layout"]["shapes"]] == ([] if mark is None else [mark])
    assert ("from here on psi" in caption) == (mark is not None)
    summary = built.sections[0].summary
    assert summary.startswith(f"At step {len(psi)} the error on step is ")
    assert (f"since step {mark}, when it was fitted" if mark else "the theorem says nothing") in summary


def test_curves_of_a_monitor_have_the_colours_of_its_picture(tmp_path):
    """By name, in the light theme: who looks from one to the other must not take test for train."""
    torch.manual_seed(0)
    model, x = torch.nn.Linear(2, 2, bias=False), torch.randn(6, 2)
    with monitor.MarginMonitor(model, out=tmp_path / "m") as watched:
        for step in (1, 2):
            watched.step(logits=model(x), targets=torch.arange(6) % 2)
            for name in ("test", "train", "other"):
                watched.measure((x, torch.arange(6) % 2), name=name, step=step)
    picture = plots.records(monitor.series(tmp_path / "m"))
    panel = next(one for one in picture.axes if one.get_title(loc="left").startswith("Loss"))
    drawn = {one.get_label().split(",")[0]: to_hex(one.get_color()) for one in panel.lines if "ends" in one.get_label()}
    script = (Path(section.__file__).parent / "page.js").read_text()
    palette = dict(re.findall(r'(\w+): "(#\w{6})"', script.partition("light: {")[2].partition("}")[0]))
    figure, _ = shown(report.build([tmp_path / "m"]), "Loss")
    on_page = {one["name"].split(",")[0]: one["line"]["color"].strip("@").split("/")[0] for one in figure["data"]}
    assert len(drawn) == 4 and {name: palette[colour] for name, colour in on_page.items()} == drawn


def test_a_single_series_of_a_monitor_has_a_name_and_a_colour(tmp_path):
    built = watched(tmp_path / "m", [-5.0, -4.0, -3.0])
    figure, caption = shown(built, "Margins before fitting, step")
    assert "the theorem begins when" in caption and "Not fitted yet (step)" in built.sections[0].render()
    assert shown(built, "To the theorem, step")[0]["layout"]["yaxis"]["type"] == "log"
    assert "range" not in figure["layout"]["yaxis"]
    figure, _ = shown(built, "Loss")
    assert figure["layout"]["showlegend"] and figure["data"][0]["line"]["color"] == "@plus"
    assert shown(built, "Norms")[1].strip() == "The norm of the homogeneous parameters w."
    built = watched(tmp_path / "n", [-5.0, -1.0, 3.0], blocks=True)
    figure, caption = shown(built, "Margins over |w|^L, step")
    np.testing.assert_allclose(figure["layout"]["yaxis"]["range"], [-0.12 * 3.1, 1.12 * 3.1])
    assert "What is below the axis is not drawn." in caption
    assert "and of single blocks" in shown(built, "Norms")[1]


def test_captions_and_controls_stay_with_what_follows_in_print():
    rules = (Path(section.__file__).parent / "page.css").read_text().partition("@media print")[2]
    (rule,) = re.findall(r"([^}]*)\{ break-after: avoid; \}", rules)
    assert ".control" in rule and "figure.table figcaption" in rule


def test_a_folder_of_too_many_things(tmp_path, cert, monkeypatch):
    for name in ("a", "b", "c"):
        cert.save(tmp_path / f"{name}.json.gz")
    assert len(page.look(tmp_path)) == 3
    monkeypatch.setattr(page, "MOST", 2)
    with pytest.raises(InputError, match="holds 3 things to report; give at most 2"):
        report.build(tmp_path)


def test_pictures_beyond_the_room_of_a_page_are_counted(tmp_path, monkeypatch):
    """A folder of very many pictures is no page of all memory; the room is that of all folders together."""
    from widemargin.report import reproductions

    monkeypatch.setattr(reproductions, "PICTURES_BYTES", 2500)
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "verdict.json").write_text('[{"claim": "one"}]')
        (folder / "settings.json").write_text('{"format": "widemargin-reproduction-1"}')
        for k in range(3):
            (folder / f"{k}.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(992))
    page = report.build([tmp_path / "a", tmp_path / "b"]).html()
    assert page.count("<img alt") == 2
    assert "1 picture more in" in page and "3 pictures more in" in page
