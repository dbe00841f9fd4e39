"""The page holds the numbers it should, shows no text of users as HTML, and asks for nothing from elsewhere."""

import base64
import copy
import hashlib
import html.parser
import json
import re
import tomllib
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from widemargin import data as datasets
from widemargin import flows, margins, report, sweep, theory
from widemargin.monitor import store
from widemargin.monitor.record import Record
from widemargin.report import certificates, players, runs, section, sweeps
from widemargin.report.formulas import typeset
from widemargin.sweep.plan import Run
from widemargin.theory.track import follow
from widemargin.types import Dataset, InputError

pytestmark = pytest.mark.usefixtures("one_thread")

FAST = ["MT-14", "MT-16", "CB-20", "WM-2", "MT-19", "LR-20", "LR-21", "LR-10", "LR-14"]
EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>"
DATA = datasets.load("clusters:n=14,k=3,seed=1")
RECORD = Record(
    step=0, name="train", whole=True, n=40, error=0.1, loss=0.1, margin=1.0, margin_mean=2.0, exact=True,
    quantiles={0.0: 1.0, 0.1: 1.5, 0.5: 2.0, 0.9: 2.5}, psi=0.5, log_loss_sum=-1.0, norm=2.0, degree=2, at_minimum=2,
    dual_entropy=1.0, blocks={"0": 1.0, EVIL: 1.7},
)  # fmt: skip


class Parsed(html.parser.HTMLParser):
    """What an HTML parser sees: tags with their attributes, the text of scripts and of everything else."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.text, self._script = [], [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._script = dict(attrs) if tag == "script" else None

    def handle_endtag(self, tag):
        self._script = None

    def handle_data(self, data):
        if self._script is None:
            self.text.append(data)
        else:
            self.scripts.append((self._script, data))

    @property
    def figures(self):
        return {attrs["data-figure"]: json.loads(text) for attrs, text in self.scripts if "data-figure" in attrs}

    @property
    def scenes(self):
        return {attrs["data-scenes-of"]: json.loads(text) for attrs, text in self.scripts if "data-scenes-of" in attrs}


@pytest.fixture(scope="module")
def certs():
    return [margins.f1(DATA, bias=True, time_limit=20), margins.f2(DATA, bias=True), margins.linear(DATA, bias=True)]


@pytest.fixture(scope="module")
def run(tmp_path_factory, certs):
    """A run with weights, two trials and a certificate."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    net, keep = flows.TwoLayer(3, 12), ["default", "weights"]
    flows.train(
        DATA, net, flows.GD(lr=0.5), stop=300, trials=2, bias=True, record=flows.Record(keep, points=30), keep=folder
    )
    flows.save_certificate(folder, certs[0])
    return folder


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A store of 3 x 2 combinations, 5 trials each, and a failure; results are known."""
    folder = tmp_path_factory.mktemp("stores") / "store"
    plan = sweep.Sweep(
        "train", name="s", fixed={"data": EVIL}, grid={"width": [4, 16, 64], "kind": [EVIL, "b"]}, repeats=5
    )
    fill(
        folder,
        plan,
        lambda k: {"margin_M2": float(np.sin(k) + 1e6), "other": None if k % 3 else k, "status": "finished"},
    )
    one = sweep.Store(folder)
    one.fail([Run("failed", {"width": 4}, 0)], [f"Traceback\nValueError: {EVIL}"])
    one.close()
    return folder


def fill(folder, plan, result):
    one = sweep.Store(folder)
    one.note(plan.name, plan.text(), "0.1.0")
    every = list(plan.runs("0.1.0"))
    one.add(plan.name, plan.function, "0.1.0", plan.seed, every, [result(k) for k in range(len(every))], 1.0)
    one.close()


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("monitors") / "monitor"
    one = store.Store(
        folder, {"model": EVIL, "loss": "ce", "parameters": 3, "homogeneous": {"degree": 2, "summary": "a<b"}}
    )
    one.append([replace(RECORD, step=k, psi=0.1 * k - 1, margin=0.1 * k, norm=1.0 + k) for k in range(1, 30)])
    one.append([replace(RECORD, step=k, name="test", whole=True) for k in range(1, 30)])
    one.close()
    return folder


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproductions") / "cb-9"
    folder.mkdir()
    verdicts = [
        {"claim": EVIL, "measured": 0.5, "paper": "a half", "holds": True, "uncertainty": 0.01, "reason": ""},
        {"claim": "second", "measured": "text", "paper": "-", "holds": False, "uncertainty": None, "reason": "why"},
        {"claim": "third", "measured": 1, "paper": "-", "holds": "undecided", "uncertainty": "x", "reason": ""},
    ]
    (folder / "verdict.json").write_text(json.dumps(verdicts))
    (folder / "settings.json").write_text(json.dumps({"id": "cb-9", "scale": "quick", "device": "cpu", "seed": 3}))
    (folder / "figure.png").write_bytes(PNG)
    return folder


PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture(scope="module")
def page(certs, run, stored, watched, reproduced):
    evil = replace(certs[0], data_name=EVIL)
    built = report.build([*certs, evil, run, stored, watched, reproduced], title=EVIL)
    return built, Parsed(built.html())


# ---------------------------------------------------------------- the page as a whole


def test_the_page_holds_everything_and_asks_for_nothing(page):
    built, found = page
    assert [one.kind for one in built.sections] == ["certificates", "run", "sweep", "monitor", "reproduction"]
    for tag, attrs in found.tags:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            if name in attrs:
                assert attrs[name].startswith(("#", "data:")), (tag, attrs)
        assert not any(name.startswith("on") for name in attrs), (tag, attrs)
    policy = next(attrs["content"] for tag, attrs in found.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy and "http" not in policy and "unsafe-eval" not in policy
    code = [text for attrs, text in found.scripts if not attrs]
    hashes = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in code}
    assert len(code) == 2 and hashes == set(re.findall(r"'sha256-([^']+)'", policy))
    assert code[0].count("plotly.js") and len(built.html()) < 10_000_000


def test_every_section_can_be_reached_and_has_a_heading(page):
    _, found = page
    ids = [attrs["id"] for _, attrs in found.tags if "id" in attrs]
    assert len(set(ids)) == len(ids)
    links = [attrs["href"][1:] for tag, attrs in found.tags if tag == "a"]
    assert len(links) == 5 and set(links) <= set(ids)
    assert sum(tag == "h2" for tag, _ in found.tags) == 6 and sum(tag == "h1" for tag, _ in found.tags) == 1
    plots = [attrs for _, attrs in found.tags if attrs.get("class") == "plot"]
    assert plots and {attrs["id"] for attrs in plots} == set(found.figures)
    assert all(attrs["aria-label"] for attrs in plots)


def test_texts_of_users_stay_texts(page):
    built, found = page
    assert "<script>alert" not in built.html() and "<img src=x" not in built.html()
    assert "".join(found.text).count(EVIL) >= 6  # the title twice, data, parameter, failure, model, claim
    for figure in [*found.figures.values(), *found.scenes.values()]:
        assert "<script" not in json.dumps(figure)  # plotly itself reads some HTML


def test_every_figure_is_one_that_plotly_knows(page):
    from plotly.graph_objects import Figure

    def plain(value):
        if isinstance(value, str):
            return re.sub(r"^@\w+(/[\d.]+)?$", "#123456", value)
        if isinstance(value, list):
            return [plain(one) for one in value]
        return {key: plain(one) for key, one in value.items()} if isinstance(value, dict) else value

    _, found = page
    assert len(found.figures) > 20
    for name, figure in found.figures.items():
        drawn = Figure(plain(figure))  # raises on what is not known
        assert len(drawn.data) > 0, name
        assert (
            max(len(trace.x) if getattr(trace, "x", None) is not None else 0 for trace in drawn.data) <= section.POINTS
        )
    for scenes in found.scenes.values():
        for scene in (scenes[0], scenes[-1]):
            for name, changes in scene["figures"].items():
                figure = Figure(plain(copy.deepcopy(found.figures[name])))
                for change in changes:
                    figure.update_layout({k: v for k, v in change.get("layout", {}).items() if "[" not in k})
                    for k in change["traces"]:
                        figure.data[k].update(
                            {key.replace(".", "_"): v for key, v in plain(change.get("set", {})).items()}
                        )


def test_json_in_a_page_cannot_end_its_script():
    nasty = {"a": "</script><!--", "b": ["&lt;", "\u2028", None, 1.5]}
    text = section.to_json(nasty)
    assert not set(text) & set("<>&\u2028") and json.loads(text) == nasty


def test_contents_are_told(page):
    built, _ = page
    told = json.loads(json.dumps(built.to_dict()))
    assert told["title"] == EVIL and len(told["sections"]) == 5
    kinds = [{kind for one in part["contents"] for kind in one} for part in told["sections"]]
    assert {"figure", "table", "settings", "slider"} <= kinds[1] and "choice" in kinds[2] and "image" in kinds[4]


def test_sections_of_every_kind_have_one_sentence_of_summary(page):
    """Also those of sweeps, monitors and reproductions."""
    built, _ = page
    assert {one.kind for one in built.sections} == {"certificates", "run", "sweep", "monitor", "reproduction"}
    for one in built.sections:
        assert one.summary.endswith(".") and ". " not in one.summary.replace(EVIL, ""), one.summary
        assert f'</h2><p class="summary">{html.escape(one.summary)}</p>' in one.render()


# ---------------------------------------------------------------- certificates


def test_certificates_are_shown_with_their_numbers(page, certs):
    _, found = page
    text = "".join(found.text)
    for cert in certs:
        assert f"{cert.lower:.9g}" in text and f"{cert.upper:.9g}" in text
    for both in certs[0].conversions.values():
        assert f"{both['lower']:.9g}" in text and f"{both['upper']:.9g}" in text
    bars = found.figures["figure-1-1"]["data"]
    assert [bar["x"] for bar in bars[:3]] == [[cert.lower, cert.upper] for cert in certs]
    assert "widemargin margin clusters:n=14,d=2,k=3,sep=3.0,seed=1 --kind f1 --bias" in text


def test_an_unproved_bound_is_grey(certs):
    shown = replace(certs[0], proved=False)
    (bar,) = certificates.intervals([shown])["data"]
    assert bar["line"]["color"] == "@quiet" and "not proved" in bar["hovertemplate"]
    assert certificates.intervals([certs[0]])["data"][0]["line"]["color"] == "@ink"


@pytest.mark.parametrize("kind", ["f1", "f2", "rf", "linear"])
def test_the_function_that_is_drawn_has_the_certified_margin(kind):
    """min_i y_i f(x_i) = lower, as f has norm 1 in its convention."""
    data = DATA if kind != "linear" else Dataset(DATA.X, np.where(DATA.X @ [1.0, 0.3] > 0.2, 1, -1), "halves")
    keys = {"bias": True} | ({"directions": 60} if kind == "rf" else {"time_limit": 20} if kind == "f1" else {})
    make = margins.random_features if kind == "rf" else getattr(margins, kind)
    cert = make(data, **keys)
    f = certificates.function_of(cert, data)
    assert cert.lower > 0
    np.testing.assert_allclose((data.y * f(data.X)).min(), cert.lower, rtol=1e-6)


def test_a_saved_certificate_is_read_and_a_changed_one_is_not(tmp_path, certs, monkeypatch):
    certs[0].save(tmp_path / "c.json")
    read = certificates.read(tmp_path / "c.json")
    assert read.summary() == certs[0].summary() and read.data_sha256 == certs[0].data_sha256 and read.proof
    monkeypatch.setattr(certificates, "PROOF", 10)
    assert not certificates.read(tmp_path / "c.json").proof  # a large one is not kept
    text = (tmp_path / "c.json").read_text()
    (tmp_path / "c.json").write_text(text.replace('"lower": 0.', '"lower": 1.', 1))
    with pytest.raises(InputError, match="digest"):
        certificates.read(tmp_path / "c.json")


def test_decisions_need_the_points(certs):
    built = report.build([replace(certs[0], data_name="gone.csv")])
    titles = [one.get("figure", "") for one in built.sections[0].contents]
    assert not any("decision" in title for title in titles) and "not found" in built.html()
    assert any("decision" in one.get("figure", "") for one in report.build([certs[0]]).sections[0].contents)


# ---------------------------------------------------------------- runs


def test_the_curve_is_what_was_recorded_and_the_line_is_certified(page, run, certs):
    _, found = page
    figure = found.figures["figure-2-1"]
    traj = flows.load(run)
    first = next(trace for trace in figure["data"] if trace["name"] == "smallest margin, trial 0")
    np.testing.assert_allclose(first["y"], traj["margin_M2"][:, 0], rtol=1e-5)
    np.testing.assert_allclose(first["x"][1:], traj["t_mean"][1:, 0], rtol=1e-5)
    levels = [shape["y0"] for shape in figure["layout"]["shapes"] if shape.get("xref") == "paper"]
    np.testing.assert_allclose(levels[:2], [certs[0].upper / 2, certs[0].lower / 2])


@pytest.mark.parametrize("trial", [0, 1])
def test_every_moment_of_the_slider_against_weights_and_records(run, trial):
    """Margins, neurons and decision, computed here with numpy from the recorded weights; the smallest margin was recorded."""
    part = section.Section("run", "", 1)
    traj, sets, cert = runs.read(run)
    runs.show(part, traj, sets, cert, trial=trial)
    found = Parsed(part.render())
    (scenes,) = found.scenes.values()
    names = {title: name for name, title in zip(found.figures, [c["figure"] for c in part.contents if "figure" in c])}
    X = np.hstack([DATA.X, np.ones((DATA.n, 1))])
    moments = np.unique(np.linspace(0, len(traj.t) - 1, players.FRAMES).round()).astype(int)
    assert len(scenes) == len(moments) > 10
    g, h = (np.array(found.figures[names["Decision"]]["data"][0][axis]) for axis in "xy")
    i, j = 7, 30
    for k, scene in zip(moments, scenes):
        assert scene["label"].endswith(f"record {k}")
        V, a = traj["W_V"][k, trial], traj["W_a"][k, trial]
        size = (V**2).sum() + (a**2).sum()
        p = np.sort(DATA.y * ((X @ V.T).clip(0) @ a) / size)
        np.testing.assert_allclose(
            scene["figures"][names["Distribution of margins"]][0]["set"]["x"], p, rtol=1e-4, atol=1e-8
        )
        np.testing.assert_allclose(p[0], traj["margin_M2"][k, trial], rtol=1e-9)
        z = scene["figures"][names["Decision"]][0]["set"]["z"]
        f = (np.array([g[i], h[j], 1.0]) @ V.T).clip(0) @ a / size
        np.testing.assert_allclose(z[j][i], f, rtol=6e-3)  # three digits are kept
        order = np.argsort(-np.abs(traj["W_a"][-1, trial]) * np.linalg.norm(traj["W_V"][-1, trial], axis=1))
        moved = scene["figures"][names["Neurons"]][0]["set"]
        np.testing.assert_allclose(moved["x"], (V[:, 0] / np.linalg.norm(V, axis=1))[order], atol=1e-3)
        assert [one == "@plus/0.65" for one in moved["marker.color"]] == (a[order] > 0).tolist()
        now = scene["figures"].get(names["Normalised margin"])
        if k:
            (place,) = {value for key, value in now[0]["layout"].items() if not key.endswith("visible")}
            np.testing.assert_allclose(place, traj["t_mean"][k, trial])


def test_margins_of_several_classes_are_those_that_were_recorded():
    data = Dataset(DATA.X, (DATA.y + 1) / 2, "classes")
    net = flows.make_net("mlp", 2, 8, outputs=2)
    traj = flows.train(
        data, net, flows.GD(lr=0.2), loss="ce", stop=60, record=flows.Record(["default", "weights"], points=8)
    )
    track = follow(traj, [data])
    for k, W in enumerate(track.W):
        one = players.still(track, W, 0, "MT2", None)
        np.testing.assert_allclose(one.margins.min(), traj["margin_MT2"][k, 0], rtol=1e-9)
    built = report.build([(traj, data, None)])
    assert {"slider": "time"} in built.sections[0].contents


def test_without_weights_the_page_says_so_and_shows_the_end():
    traj = flows.train(DATA, flows.TwoLayer(2, 6), flows.GD(lr=0.5), stop=50, record=flows.Record(points=8))
    built = report.build([(traj, DATA, None)])
    told = built.sections[0].contents
    assert not any("slider" in one for one in told) and {"figure": "Decision"} in told and {"figure": "Neurons"} in told
    assert "Weights were not recorded" in built.html()
    name = f"figure-1-{[c['figure'] for c in told if 'figure' in c].index('Distribution of margins') + 1}"
    shown = Parsed(built.html()).figures[name]["data"][0]["x"]
    np.testing.assert_allclose(shown[0], traj["margin_M2"][-1, 0], rtol=1e-4)


def test_residuals_of_regression_and_a_trial_that_is_not_there():
    data = Dataset(DATA.X, DATA.X[:, 0], "targets")
    traj = flows.train(
        data, flows.TwoLayer(2, 6), flows.GD(lr=0.1), loss="squared", stop=20, record=flows.Record(points=5)
    )
    told = report.build([(traj, data, None)], bounds=True).sections[0].contents
    assert {"figure": "Residuals"} in told and not any("Guarantees" in str(one) for one in told)
    with pytest.raises(InputError, match="trials 0 to 0"):
        report.build([(traj, data, None)], trial=1)


def test_guarantees_of_data_stand_with_its_run_if_there_is_one(monkeypatch, tmp_path):
    seen = []
    fast = theory.guarantees
    monkeypatch.setattr(
        theory, "guarantees", lambda data, run, **keys: seen.append(run) or fast(data, run, theorems=FAST, **keys)
    )
    cert = margins.linear(DATA, bias=True)
    flows.train(
        DATA, flows.TwoLayer(2, 6), flows.GD(lr=0.5), stop=20, record=flows.Record(points=4), keep=tmp_path / "run"
    )
    traj = flows.load(tmp_path / "run")
    squared = flows.train(
        DATA, flows.TwoLayer(2, 6), flows.GD(lr=0.1), loss="squared", stop=20, record=flows.Record(points=4)
    )

    def tables(*things):
        page = report.build(things, bounds=True)
        return [sum("Guarantees" in str(one) for one in section.contents) for section in page.sections]

    assert tables(cert) == [1] and seen == [None]
    assert tables(cert, (traj, DATA, None)) == [0, 1] and tables(cert, tmp_path / "run") == [0, 1]
    assert tables(cert, (squared, DATA, None)) == [1, 0]  # theorems have nothing to say of that run


def test_a_long_curve_keeps_its_ends_and_its_peaks():
    x = np.arange(1, 50_001.0)
    y = np.sin(x / 3000)
    y[31_337] = 9.0
    short_x, short_y = section.few(x, y)
    assert len(short_x) <= section.POINTS and (np.diff(short_x) > 0).all()
    assert short_x[0] == 1 and short_x[-1] == 50_000 and short_y.max() == 9.0
    np.testing.assert_array_equal(short_y, y[short_x.astype(int) - 1])
    assert (short_x < 100).sum() > 20  # early records are seen on a logarithmic axis


def plain(statement):
    """The text of a statement as it is typeset."""
    return "".join(Parsed(typeset(statement)).text)


def test_guarantees_and_checks_are_shown_in_their_colours(run, monkeypatch):
    given = theory.guarantees(DATA, run, theorems=FAST, time_limit=2)  # all of them take long
    checked = theory.check(run)
    asked = []
    monkeypatch.setattr(theory, "guarantees", lambda *args, **keys: asked.append((args, keys)) or given)
    part = section.Section("run", "", 1)
    traj, sets, cert = runs.read(run)
    runs.show(part, traj, sets, cert, bounds=True, checks=True, trial=1, time_limit=2)
    (((data, used), keys),) = asked
    assert data.sha256() == DATA.sha256() and used is traj and keys == {"trial": 1, "time_limit": 2}
    found = Parsed(part.render())
    badges = [attrs["class"] for _, attrs in found.tags if "badge" in attrs.get("class", "")]
    words = {True: "badge yes", False: "badge no", None: "badge unknown"}
    expected = [words[one.applies] for one in given] + [words[one.holds] for one in checked]
    expected += [words[assumption.holds] for one in given for assumption in one.assumptions]
    assert sorted(badges) == sorted(expected) and len(set(badges)) == 3
    text = "".join(found.text)
    for one in given:
        assert one.id in text and plain(one.statement) in text and one.reference in text
        for assumption in one.assumptions:
            assert plain(assumption.text) in text and plain(assumption.detail) in text


# ---------------------------------------------------------------- sweeps


def test_tables_of_a_store_against_numpy(stored):
    names, rows = sweep.query(stored, "select width, kind, margin_M2, other from runs")
    rows = list(rows)
    plan = json.loads(next(iter(sweep.query(stored, "select plan from sweeps")[1]))[0])
    there = ["width", "kind", "data", "margin_M2", "other", "status"]
    table = sweeps.aggregate(stored, "sweep = 's'", there, [plan])
    assert [axis.name for axis in table.axes] == ["width", "kind"] and list(table.stats) == ["margin_M2", "other"]
    assert names == ["width", "kind", "margin_M2", "other"] and len(table.cells) == 6
    for which, seen, stats in (
        ((0, 1), table.cells, table.stats),
        *(((k,), *(sweeps._along(table, (k,))[part] for part in (0, 2))) for k in (0, 1)),
    ):
        for i, cell in enumerate(seen):
            for name, column in (("margin_M2", 2), ("other", 3)):
                own = [
                    row[column]
                    for row in rows
                    if tuple(row[k] for k in which) == tuple(cell) and row[column] is not None
                ]
                n, mean, deviation, least, most = stats[name][:, i]
                assert n == len(own)
                np.testing.assert_allclose([mean, least, most], [np.mean(own), min(own), max(own)], rtol=1e-12)
                if n > 1:  # a millionth of the mean: sums of squares alone would have lost half of the digits
                    np.testing.assert_allclose(deviation, np.std(own, ddof=1), rtol=1e-6)


def test_figures_of_a_store(page):
    _, found = page
    heat = found.figures["figure-3-1"]["data"][0]
    assert len(heat["x"]) == 3 and len(heat["y"]) == 2 and len(heat["z"]) == 2
    scenes = found.scenes["control-3-3"]
    assert [scene["label"] for scene in scenes] == ["margin_M2", "other"]
    assert scenes[0]["figures"]["figure-3-1"][0]["set"]["z"] == heat["z"]
    assert scenes[1]["figures"]["figure-3-1"][0]["set"]["z"] != heat["z"]


def test_bins_of_a_random_parameter_against_numpy(tmp_path):
    plan = sweep.Sweep(
        "train", name="r", fixed={"data": "x"}, random={"lr": {"low": 1e-3, "high": 1.0, "log": True}}, samples=300
    )
    fill(tmp_path, plan, lambda k: {"value": float(k)})
    there = sweep.query(tmp_path, "select * from runs limit 0")[0]
    table = sweeps.aggregate(tmp_path, "1", there, [json.loads(plan.text())])
    lr = np.array([row[0] for row in sweep.query(tmp_path, "select lr from runs")[1]])
    counts, edges = np.histogram(np.log(lr), bins=sweeps.BINS, range=(np.log(1e-3), 0.0))
    np.testing.assert_array_equal(table.runs, counts[counts > 0])
    middles = np.exp((edges[1:] + edges[:-1]) / 2)[counts > 0]
    np.testing.assert_allclose([cell[0] for cell in table.cells], middles, rtol=1e-9)


def test_the_plan_comes_back_as_a_file():
    plan = sweep.Sweep(
        "train", name="a b", fixed={"data": 'x"y\\z\n', "bias": True, "t": 1e-7}, grid={"width": [1, 2], "odd key": ["é", 0.5]},
        random={"lr": {"low": 0.1, "high": 1.0, "log": True}, "k": {"choices": [1, "b"]}}, samples=3, keep=["margin"],
    )  # fmt: skip
    again = sweep.Sweep(**tomllib.loads(sweeps.toml(json.loads(plan.text()))))
    assert again == plan


def test_columns_can_be_chosen(stored):
    built = report.build([stored], columns=["other"])
    assert not any("choice" in one for one in built.sections[0].contents)
    with pytest.raises(InputError, match="'nothing'"):
        report.build([stored], columns=["nothing"])


def test_memory_does_not_grow_with_the_rows(tmp_path):
    peaks = []
    for name, repeats in (("few", 100), ("many", 5_000)):
        plan = sweep.Sweep("train", name=name, fixed={"data": "x"}, grid={"width": [1, 2, 4, 8]}, repeats=repeats)
        fill(tmp_path / name, plan, lambda k: {"value": float(k), "second": k % 7 + 0.5})
        tracemalloc.start()
        report.build([tmp_path / name])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0] + 500_000  # 50 times the rows


# ---------------------------------------------------------------- monitors, reproductions


def test_a_monitor_is_shown_as_recorded(page):
    _, found = page
    margin = found.figures["figure-4-1"]["data"]
    steps = np.arange(1, 30)
    np.testing.assert_allclose(margin[0]["y"], 0.1 * steps / (1 + steps) ** 2, rtol=1e-5)  # margin / |w|^2
    np.testing.assert_allclose(margin[1]["y"], (0.1 * steps - 1) / (1 + steps) ** 2, rtol=1e-5, atol=1e-12)
    assert found.figures["figure-4-1"]["layout"]["shapes"][0]["x0"] == 11  # psi > 0
    fan = next(f for f in found.figures.values() if any(t.get("name") == "10 % to 90 %" for t in f["data"]))
    median = next(trace for trace in fan["data"] if trace.get("name") == "median")
    np.testing.assert_allclose(median["y"], 2.0 / (1 + steps) ** 2, rtol=1e-5)


def test_verdicts_and_pictures_of_a_reproduction(page):
    built, found = page
    text = built.sections[4].render()
    badges = re.findall(r'badge (\w+)"', text)
    assert badges == ["yes", "no", "unknown"] and "0.5 +- 0.01" in text and "1 (x)" in text
    assert base64.b64encode(PNG).decode() in text
    assert "widemargin reproduce cb-9 --scale quick --device cpu --seed 3" in "".join(found.text)


def proved(page):
    """What stands in the column "proved"."""
    text = page.sections[0].render()
    return [html.unescape(word).strip() for word in re.findall(r'data-name="proved">.*?</span> (.*?)</span>', text)]


def test_a_page_checks_small_proofs_again(certs, monkeypatch):
    """And says of the others that it did not; a proof that fails is told."""
    import widemargin.report.checking as checking

    assert proved(report.build(certs[0])) == ["proved, re-checked"]
    wrong = replace(certs[0], upper=certs[0].lower * (1 + 1e-12))
    page = report.build(wrong)
    (said,) = proved(page)
    assert said.startswith("REFUSED by the checker: ") and "larger than upper" in said
    (bar,) = next(iter(Parsed(page.html()).figures.values()))["data"]
    assert bar["line"]["color"] == "@quiet"
    assert proved(report.build(replace(certs[0], data_name="gone.csv"))) == ["not re-checked (its data is not here)"]
    monkeypatch.setattr(checking, "PROOF", 10)
    assert proved(report.build(certs[0])) == ["not re-checked (too large for a page)"]


def test_the_certificate_of_a_run_is_checked_again(run, certs, tmp_path, monkeypatch):
    import shutil

    import widemargin.report.checking as checking

    shutil.copytree(run, tmp_path / "run")
    assert "Dotted: no network" in report.build(tmp_path / "run").sections[0].render()
    flows.save_certificate(tmp_path / "run", replace(certs[0], upper=certs[0].lower))
    text = report.build(tmp_path / "run").sections[0].render()
    assert "is not drawn: REFUSED by the checker" in text and "Dotted: no network" not in text
    path = tmp_path / "run" / "certificate.json.gz"
    path.write_bytes(path.read_bytes()[:-5])  # the run itself is shown all the same
    text = report.build(tmp_path / "run").sections[0].render()
    assert "certificate.json.gz" in text and "is not drawn" in text and "Normalised margin" in text
    monkeypatch.setattr(checking, "PROOF", 10)
    flows.save_certificate(tmp_path / "run", certs[0])
    assert "was not re-checked (too large for a page)" in report.build(tmp_path / "run").sections[0].render()


@pytest.mark.parametrize(
    "name",
    [
        "parity:d=400,n=1000000",
        "mnist:path=/dev/zero",
        "cifar",
        "parity:d=20,n=64,units=99999999999",
        "teacher:units=10000000",
        "parity:d=1000, n=100000",
        "parity:d=1000,n =100000",
        "parity:d=20,marginal=full",
        "cifar: path=.",
    ],
)
def test_a_page_does_not_make_data_that_a_file_names(name, certs, monkeypatch):
    """A certificate of two kilobytes may name gigabytes."""
    from widemargin import data as datasets

    def refuse(*_, **__):
        raise AssertionError("it was made")

    monkeypatch.setattr(datasets, "load", refuse)
    page = report.build(replace(certs[0], data_name=name))
    assert proved(page) == ["not re-checked (its data is not here)"]


def test_a_kind_or_convention_makes_no_link(certs):
    """plotly reads some HTML; what a certificate calls itself is text."""
    for change in ({"kind": "<a href='http://x'>f1</a>"}, {"convention": "<a href='http://x'>M1</a>"}):
        page = report.build(replace(certs[0], **change))
        drawn = json.dumps(Parsed(page.html()).figures)
        assert "<a" not in drawn and "&lt;a href=" in drawn


def test_a_page_reads_no_more_of_files_than_its_bound(tmp_path, certs, monkeypatch):
    """A certificate may name any file: its columns are tried for labels while there is room, and labels of .npy files count."""
    import widemargin.report.checking as checking

    seen = []
    monkeypatch.setattr(checking, "FILE", 3000)
    monkeypatch.setattr(datasets, "load", lambda name, *_, **__: seen.append(name) or Dataset([[1.0]], [1]))
    monkeypatch.chdir(tmp_path)

    def tries(name, size):
        seen.clear()
        (tmp_path / name).write_bytes(b"a,b,c,d,e\n".ljust(size, b"\n"))
        assert checking.load_data(replace(certs[0], data_name=name)) is None
        return len(seen)

    assert [tries("some.csv", size) for size in (100, 500, 2900, 3001)] == [12, 6, 2, 0]
    (tmp_path / "points_y.npy").write_bytes(b"y" * 2901)
    assert tries("points.npy", 100) == 0
    (tmp_path / "points_y.npy").write_bytes(b"y" * 2900)
    assert tries("points.npy", 100) == 2
