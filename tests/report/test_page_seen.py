"""What a reader sees on the page in a browser: marks, panels, summaries, neurons, the slider, heat maps, formulas."""

import io
import itertools
import re
import time
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

from browsing import CHROMIUM, DRIVER, NARROW, WIDE
from widemargin import data as datasets
from widemargin import flows, margins, report, sweep, theory
from widemargin.report import Page, neurons
from widemargin.report.certificates import box
from widemargin.report.formulas import typeset
from widemargin.report.section import Section
from widemargin.types import Dataset

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver"),
]
DATA = datasets.load("clusters:n=14,k=3,seed=1")


@pytest.fixture(scope="module")
def certs():
    return [margins.f1(DATA, bias=True, time_limit=20), margins.f2(DATA, bias=True), margins.linear(DATA, bias=True)]


def opened(browser, page, folder: Path, size=WIDE) -> None:
    """Write a page and open it."""
    report.write(page, folder / "page.html")
    browser.get_log("browser")
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == NARROW}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get((folder / "page.html").as_uri())
    wait(browser, "return document.documentElement.dataset.ready === 'yes'")


def wait(browser, script: str, *args) -> None:
    for _ in range(300):
        if browser.execute_script(script, *args):
            return
        time.sleep(0.1)
    raise AssertionError(f"never: {script}")


def complaints(browser) -> list[str]:
    return [one["message"] for one in browser.get_log("browser") if one["level"] in ("WARNING", "SEVERE")]


# ---------------------------------------------------------------- intervals


NOTES = """const plot = document.querySelector("[aria-label='Certified intervals']");
const box = (one) => { const r = one.getBoundingClientRect(); return [r.left, r.right, r.top, r.bottom]; };
return [box(plot), [...plot.querySelectorAll(".annotation")].map((one) => [one.textContent, ...box(one)]),
  [...plot.querySelectorAll(".scatterlayer .points")].map((one) => box(one))]"""


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_labels_of_intervals_stand_at_their_marks(browser, certs, tmp_path, size):
    wide = replace(certs[0], lower=0.01 * certs[0].upper, status="time-limit", proved=False)
    opened(browser, report.build([*certs, wide]), tmp_path, size)
    plot, notes, marks = browser.execute_script(NOTES)
    assert len(marks) == 4 and len(notes) == 6  # of the wide one a number at each end, and how it ended
    marks = [marks[k] for k in (0, 2, 3, 1)]  # both of M1 are in the first panel
    places = {(f"[{c.lower:.7g}, {c.upper:.7g}]"): mark for c, mark in zip(certs, marks)}
    for text, left, right, top, _ in notes:
        assert plot[0] - 1 <= left and right <= plot[1] + 1 and top >= plot[2]
        own = [mark for start, mark in places.items() if text.startswith(start)]
        if own:  # its bar is between its left and right end, and just below it
            assert left - 12 <= own[0][0] and own[0][1] <= right + 12 and abs(own[0][2] - top) < 60
    ends = [note for note in notes if note[0] in (f"{wide.lower:.7g}", f"{wide.upper:.7g}")]
    assert abs(ends[0][1] - marks[3][0]) < 12 and abs(ends[1][2] - marks[3][1]) < 12
    assert complaints(browser) == []


def test_every_convention_has_an_axis_of_its_own(browser, certs, tmp_path):
    opened(browser, report.build(certs), tmp_path)
    titles = browser.execute_script(
        """return [...document.querySelectorAll("[aria-label='Certified intervals'] .infolayer text[class$=title]")].map(
        (one) => one.textContent).filter((one) => one)"""
    )
    assert titles == [f"margin, {cert.convention}" for cert in certs] == ["margin, M1", "margin, M7", "margin, M11"]


def test_nothing_that_separates_is_no_green_proof(browser, certs, tmp_path):
    """Beside a bound above 0 that means 0 stands a grey badge."""
    linear = certs[2]
    assert linear.status == "not-separable" and 0 < linear.upper < 1e-10 and linear.proved
    opened(browser, report.build([linear]), tmp_path)
    badges = browser.execute_script(
        "return [...document.querySelectorAll('.badge')].map((one) => [one.className, one.textContent])"
    )
    assert badges == [["badge unknown", "? not separable, up to rounding"]]
    text = browser.execute_script("return document.querySelector('main').textContent")
    assert "no predictor of this kind separates the data, up to rounding" in text
    wrong = (
        report.build([replace(linear, upper=linear.lower)]).sections[0].render()
    )  # of a bound of 0 nothing is rounded
    assert "up to rounding. Its bound" not in wrong
    assert np.isfinite(linear.upper) and re.search(r"Its bound, [\d.e-]+, is proved, re-checked", text)


# ---------------------------------------------------------------- summaries, folded tables


@pytest.fixture(scope="module")
def run():
    """Two trials with weights."""
    record = flows.Record(["default", "weights"], points=20)
    return flows.train(DATA, flows.TwoLayer(3, 12), flows.GD(lr=0.5), stop=200, record=record, bias=True, trials=2)


def test_every_section_begins_with_a_sentence(browser, certs, run, tmp_path):
    page = report.build([*certs, (run, DATA, certs[0]), (run, DATA)])
    opened(browser, page, tmp_path)
    said = browser.execute_script(
        "return [...document.querySelectorAll('section')].map((one) => one.querySelector('h2 + p.summary').textContent)"
    )
    f1, f2, _ = certs

    def largest(cert):
        (shown,) = re.findall(
            rf"the largest {cert.kind.upper()} margin is {cert.lower:.4g} \(proved to (.*?)\);", f"t{said[0][1:]}"
        )
        assert cert.gap <= float(shown) * (1 + 1e-9) and float(shown) < 2 * cert.gap  # rounded up to a digit
        return f"argest {cert.kind.upper()} margin is {cert.lower:.4g} (proved to {shown})"

    assert (
        said[0]
        == f"The l{largest(f1)}; the l{largest(f2)}; nothing of the kind linear separates the data, up to rounding."
    )
    shares = np.sort(run["margin_M2"][-1]) / (f1.upper / 2)
    assert shares[0] > 0
    reached = f"{100 * shares[0]:.1f} % to {100 * shares[1]:.1f} % of it."
    assert said[1] == f"The l{largest(f1)}; training reached {reached}"
    assert said[2].endswith("nothing is certified to compare it with.")
    assert [one["summary"] for one in page.to_dict()["sections"]] == said


def test_a_summary_says_no_more_than_is_known(certs):
    def said(**change):
        return report.build(replace(certs[0], **change)).sections[0].summary

    assert "not re-checked here" in said(data_name="gone.csv") and "proved" not in said(data_name="gone.csv")
    assert "is between" in said(lower=0.5 * certs[0].upper, status="time-limit")
    assert "is not proved" in said(proved=False) and "at least" in said(proved=False)
    assert (
        said(upper=certs[0].lower * (1 - 1e-9), lower=certs[0].lower / 2) == "The checker refuses the F1 certificate."
    )


def test_what_does_not_apply_is_folded_into_a_line_with_a_count(browser, run, certs, tmp_path, monkeypatch):
    given = theory.guarantees(DATA, None, theorems=["MT-14", "CB-20", "WM-2", "MT-19", "LR-20"], time_limit=2)
    monkeypatch.setattr(theory, "guarantees", lambda *args, **keys: given)
    fails = [one for one in given if one.applies is False]
    opened(browser, report.build([certs[0]], bounds=True), tmp_path)
    lines = browser.execute_script(
        """return [...document.querySelectorAll("section > details")].map((one) => [one.open, one.innerText,
        one.querySelectorAll("tbody tr").length])"""
    )
    folded = [one for one in lines if one[1].startswith("What does not apply")]
    assert len(folded) == bool(fails) and all(not one[0] and "\n" not in one[1].strip() for one in lines)
    for _, text, rows in folded:
        assert rows == len(fails) and f"({rows} row" in text
    shown = browser.execute_script(
        "return [...document.querySelectorAll('section > figure.table .badge')].map((one) => one.textContent)"
    )
    order = [word for word in shown if "applies" in word or "not all checked" in word]
    assert order == sorted(order, key=lambda word: "applies" not in word) and not any(
        "does not apply" in w for w in shown
    )


def test_long_tables_are_folded_and_say_what_is_in_them():
    one = Section("run", "", 1)
    one.table("Short", ["a", "b"], [[1, 2]] * 12)
    one.table("Long", ["a", "b"], [[1, 2]] * 13)
    assert one.parts[0].startswith("<figure") and one.parts[1].startswith(
        "<details><summary>Long (13 rows: a, b)</summary>"
    )


# ---------------------------------------------------------------- neurons


def figure(browser, title: str):
    script = "return JSON.parse(JSON.stringify(document.querySelector(`[aria-label='${arguments[0]}']`).data))"
    return browser.execute_script(script, title)


def test_neurons_are_seen_in_the_principal_plane_of_the_data(browser, tmp_path):
    """The widest directions are coordinates 4 and 2 here, the first two have next to no spread."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 5)) * [0.01, 2.0, 0.1, 0.1, 5.0]
    data = Dataset(X, np.where(X[:, 4] > 0, 1, -1), "wide")
    cert = margins.frozen(data, 20)
    opened(browser, Page("", (shown_neurons(cert, data),)), tmp_path)
    _, neurons, *light, rings = figure(browser, "Directions")
    unit = cert.primal.normalized()
    axes = np.linalg.svd(X - X.mean(axis=0))[2][:2]
    order = np.argsort(-np.abs(unit.mass), kind="stable")[: len(neurons["x"])]
    np.testing.assert_allclose(np.abs(neurons["x"]), np.abs(unit.theta[order] @ axes[0]), atol=1e-3)
    np.testing.assert_allclose(np.abs(neurons["y"]), np.abs(unit.theta[order] @ axes[1]), atol=1e-3)
    assert abs(axes[0, 4]) > 0.9 and abs(axes[1, 1]) > 0.9
    assert sum(len(one["x"]) for one in light) == data.n and max(np.abs(one["x"]).max() for one in light) <= 1
    support = np.flatnonzero(np.abs(cert.dual) > 1e-6 * np.abs(cert.dual).max())
    assert (
        sorted(int(text.split(",")[0].split()[1]) for text in rings["text"]) == support.tolist()
        and len(support) < data.n
    )
    assert complaints(browser) == []


def shown_neurons(cert, data):
    part = Section("certificates", "neurons", 1)
    neurons.show(part, cert.primal, data, cert.dual)
    return part


def test_kinks_rings_and_the_certified_boundary_over_the_trained_one(browser, certs, run, tmp_path):
    cert = certs[0]
    opened(browser, report.build([cert, (run, DATA, cert)]), tmp_path)
    alone, over = figure(browser, "F1 (M1): decision"), figure(browser, "Decision")
    support = int((cert.dual > 1e-6 * cert.dual.max()).sum())
    for drawn in (alone, over):
        assert [len(one["x"]) for one in drawn if one.get("name") == "support points"] == [support]
    theta = cert.primal.theta

    def distances(trace, theta):
        """Of both ends of each line, to the nearest kink."""
        ends = np.array([[x, y, 1.0] for x, y in zip(trace["x"], trace["y"]) if x is not None])
        return (
            np.abs(ends @ (theta / np.linalg.norm(theta[:, :2], axis=1, keepdims=True)).T).min(axis=1)
            if len(ends)
            else ends
        )

    for drawn, weights, mass in ((alone, theta, cert.primal.mass), (over, run["W_V"][-1, 0], run["W_a"][-1, 0])):
        lines = [one for one in drawn if str(one.get("name")).startswith("kinks")]
        assert len(lines) == 2 and any(len(one["x"]) for one in lines)
        for line, chosen in zip(lines, (mass > 0, mass < 0)):
            if len(line["x"]):
                assert distances(line, weights[chosen]).max() < 2e-3
    (boundary,) = [one for one in over if one.get("name") == "certified boundary"]
    drawn = [one.get("name") for one in over]
    assert drawn.index("certified boundary") > drawn.index("f = 0")  # plotly draws lines in this order
    line = np.array([[x, y] for x, y in zip(boundary["x"], boundary["y"]) if x is not None])
    g, h, where = box(DATA)
    assert len(line) >= 50 and np.isfinite(line).all()
    cell = np.array([g[1] - g[0], h[1] - h[0]])
    for vertex in line:  # f = 0 within a cell of the grid: it has both signs around the vertex
        f = cert.function(vertex + cell * np.array([[1, 0], [-1, 0], [0, 1], [0, -1]]), DATA)
        assert f.min() <= 0 <= f.max()
    signs = np.sign(cert.function(where, DATA).reshape(len(h), len(g)))
    sides = np.argwhere(signs[:, :-1] * signs[:, 1:] < 0)  # sides of cells that it crosses: none is left out
    for j, i in sides:
        middle = np.array([(g[i] + g[i + 1]) / 2, h[j]])
        assert (np.abs(line - middle) <= cell).all(axis=1).any()
    set_slider(browser, 3)
    moved = [one for one in figure(browser, "Decision") if str(one.get("name")).startswith("kinks")]
    for line, chosen in zip(moved, (run["W_a"][3, 0] > 0, run["W_a"][3, 0] < 0)):
        assert distances(line, run["W_V"][3, 0][chosen]).max() < 2e-3
    assert complaints(browser) == []


def set_slider(browser, value: int) -> None:
    browser.execute_script(
        """const one = document.querySelector("input[type=range]");
        one.value = arguments[0]; one.dispatchEvent(new Event("input", {bubbles: true}));
        window.shown = false; requestAnimationFrame(() => requestAnimationFrame(() => { window.shown = true; }));""",
        str(value),
    )
    wait(browser, "return window.shown")


def test_neurons_of_images_are_images(browser, tmp_path):
    data = datasets.load("digits:n=20,seed=0")
    cert = margins.frozen(data, 12)
    opened(browser, report.build([cert]), tmp_path)
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('.gallery img')].map((one) => [one.naturalWidth, one.naturalHeight, one.complete])"
    )
    assert 1 <= len(sizes) <= 12 and all(one == [88, 88, True] for one in sizes)
    part = Section("certificates", "", 1)
    theta = np.zeros((1, 3072))
    theta[0, 0], theta[0, 1] = 1.0, -1.0  # of the first pixel, colours last: red up, green down
    neurons.show_images(part, theta, np.ones(1), 3072, "mine.csv", None)
    assert part.contents == [{"image": "Neurons as images"}]
    pixels = plt.imread(io.BytesIO(neurons.picture(theta[0], 32, 3)))
    np.testing.assert_allclose(pixels[0, 0, :3], [1, 0, 0.5], atol=0.01)
    grey = plt.imread(io.BytesIO(neurons.picture(np.eye(1, 64)[0] - np.eye(1, 64, 9)[0], 8, 1)))
    np.testing.assert_allclose(grey[0, 0, :3] * 255, [31, 111, 180], atol=1)  # blue above 0
    np.testing.assert_allclose(grey[11, 11, :3] * 255, [217, 102, 31], atol=1)  # orange below, in row 1 and column 1
    part = Section("certificates", "", 1)
    neurons.show_images(part, theta[:, :64], np.ones(1), 64, "parity:d=64,n=10", None)  # 64 numbers that are no image
    assert part.contents == []


# ---------------------------------------------------------------- the slider


COUNTS = """return Object.fromEntries([...document.querySelectorAll('.plot')].map(
    (one) => [one.getAttribute('aria-label'), Number(one.dataset.drawn || 0)]))"""
HOLD = """window.held = []; const real = window.setTimeout;
window.setTimeout = (what, ms, ...more) => ms === 250 ? window.held.push(what) : real.call(window, what, ms, ...more);"""


def at_the_slider(browser, page, tmp_path) -> None:
    """The slider is at the top of the window, and figures are drawn by plotly only when the test says so."""
    opened(browser, page, tmp_path)
    browser.execute_script(HOLD)
    browser.execute_script("document.querySelector('input[type=range]').scrollIntoView()")
    wait(browser, "return document.querySelector(\"[aria-label='Decision']\").getBoundingClientRect().top < 400")
    time.sleep(0.5)  # an observer tells what is seen after a frame or two


def seen_now(browser) -> np.ndarray:
    return plt.imread(io.BytesIO(browser.get_screenshot_as_png()))[:, :, :3]


@pytest.mark.slow
@pytest.mark.parametrize("wish", [pytest.param("light", marks=pytest.mark.long), "dark"])
def test_what_the_slider_moves_looks_as_plotly_draws_it(browser, certs, run, tmp_path, wish):
    """While it moves plotly draws nothing; when it rests it draws the same, once."""
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": wish}]}
    )
    at_the_slider(browser, report.build([(run, DATA, certs[0])]), tmp_path)
    pictures = []
    for k in (16, 17, 14, 15):  # the smallest margin is positive at the first two, so that dashed lines move and go
        before = browser.execute_script(COUNTS)
        set_slider(browser, k)
        pictures.append(seen_now(browser))
        assert browser.execute_script(COUNTS) == before
        browser.execute_script("window.held.at(-1)()")
        for title in ("Decision", "Neurons", "Distribution of margins"):
            drawn = f"{COUNTS.removeprefix('return ')}['{title}']"
            wait(browser, f"return {drawn} === {before[title] + 1}")
        time.sleep(0.2)
        assert np.abs(seen_now(browser) - pictures[-1]).max() < 0.1
    assert all((np.abs(one - two).max(axis=2) > 0.1).sum() > 500 for one, two in itertools.pairwise(pictures))
    assert complaints(browser) == []
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.mark.slow
def test_plotly_draws_lines_that_come_and_figures_under_the_pointer(browser, certs, run, tmp_path):
    from selenium.webdriver.common.action_chains import ActionChains

    at_the_slider(browser, report.build([(run, DATA, certs[0])]), tmp_path)
    set_slider(browser, 14)
    browser.execute_script("window.held.at(-1)()")
    paths = """const plot = document.querySelector("[aria-label='Decision']");
        const k = plot.data.findIndex((one) => one.name === "|f| = margin");
        return plot.querySelectorAll(`.trace${plot._fullData[k].uid} path`).length"""
    wait(browser, f"{paths} === 0")  # the margin is negative there
    set_slider(browser, 17)
    assert browser.execute_script(paths) > 0
    ActionChains(browser).move_to_element(browser.find_element("css selector", "[aria-label='Neurons']")).perform()
    before = browser.execute_script(COUNTS)
    set_slider(browser, 16)
    after = browser.execute_script(COUNTS)
    assert (after["Neurons"], after["Decision"]) == (before["Neurons"] + 1, before["Decision"])
    ActionChains(browser).move_to_element(browser.find_element("css selector", "h1")).perform()  # for the next test
    assert complaints(browser) == []


def test_a_moment_draws_only_what_is_seen(browser, certs, run, tmp_path):
    """Which is what makes it fast: plotly takes 10 to 30 ms for a figure."""
    at_the_slider(browser, report.build([(run, DATA, certs[0])]), tmp_path)
    before = browser.execute_script(COUNTS)
    for k in (13, 15, 11):
        set_slider(browser, k)
    after = browser.execute_script(COUNTS)
    assert after == before  # lines, points and marks move by themselves
    mark = """const plot = document.querySelector("[aria-label='Loss']"), axis = plot._fullLayout.xaxis;
        return [plot.layout.shapes.at(-1).x0, axis._offset + axis.d2p(plot.layout.shapes.at(-1).x0),
        Number(plot.querySelector('.shapelayer path').getAttribute('d').match(/^M([^,]+),/)[1])]"""
    when, expected, x = browser.execute_script(mark)
    np.testing.assert_allclose(when, run["t_mean"][11, 0])
    np.testing.assert_allclose(x, expected, atol=0.1)
    browser.execute_script("window.scrollTo(0, 0)")
    wait(browser, "return document.querySelector(\"[aria-label='Decision']\").getBoundingClientRect().top > 1000")
    time.sleep(0.5)
    set_slider(browser, 2)  # nobody sees it; it is drawn on the way back
    assert browser.execute_script(COUNTS)["Neurons"] == after["Neurons"]
    browser.execute_script("document.querySelector('input[type=range]').scrollIntoView()")
    V = run["W_V"][2, 0]
    order = np.argsort(-np.abs(run["W_a"][-1, 0]) * np.linalg.norm(run["W_V"][-1, 0], axis=1))
    place = float((V[:, 0] / np.linalg.norm(V, axis=1))[order][0])
    wait(
        browser,
        """const plot = document.querySelector("[aria-label='Neurons']"), axis = plot._fullLayout.xaxis;
        const point = plot.querySelectorAll('.trace.scatter')[1].querySelector('.point').getAttribute('transform');
        return Math.abs(Number(point.match(/translate\\(([^,]+),/)[1]) - axis.d2p(arguments[0])) < 0.5""",
        place,
    )
    assert complaints(browser) == []


def test_a_trial_can_be_chosen_and_steps_and_records_are_explained(browser, run, tmp_path):
    opened(browser, report.build([(run, DATA)]), tmp_path)
    choices = browser.execute_script(
        "return [...document.querySelectorAll('select.lists option')].map((o) => o.textContent)"
    )
    assert choices == ["trial 0", "trial 1"]
    X = np.hstack([DATA.X, np.ones((DATA.n, 1))])
    for trial in (1, 0):
        browser.execute_script(
            """const one = document.querySelector("select.lists"); one.value = arguments[0];
            one.dispatchEvent(new Event("input", {bubbles: true}));""",
            str(trial),
        )
        for k in (4, 9):
            set_slider(browser, k)
            V, a = run["W_V"][k, trial], run["W_a"][k, trial]
            expected = np.sort(DATA.y * ((X @ V.T).clip(0) @ a)) / ((V**2).sum() + (a**2).sum())
            np.testing.assert_allclose(
                figure(browser, "Distribution of margins")[0]["x"], expected, rtol=1e-4, atol=1e-8
            )
            order = np.argsort(-np.abs(run["W_a"][-1, trial]) * np.linalg.norm(run["W_V"][-1, trial], axis=1))
            shown = figure(browser, "Neurons")[1]["x"]
            np.testing.assert_allclose(shown, (V[:, 0] / np.linalg.norm(V, axis=1))[order], atol=1e-3)
    text = browser.execute_script("return document.querySelector('main').textContent")
    assert "A step is one update of the weights. A record is a moment at which the run was measured" in text
    assert complaints(browser) == []


# ---------------------------------------------------------------- sweeps


def filled(folder, plan, result):
    store = sweep.Store(folder)
    store.note(plan.name, plan.text(), "0")
    every = list(plan.runs("0"))
    store.add(plan.name, plan.function, "0", plan.seed, every, [result(run.params) for run in every], 1.0)
    store.close()
    return folder


def test_cells_hold_their_numbers_and_networks_are_not_averaged(browser, tmp_path):
    """Two networks, which differ by 100: a map for each of them, and a sentence where a table mixes them."""
    grid = {"lr": [0.1, 0.2, 0.3], "n": [1, 2, 3], "net": ["relu", "srelu"]}
    value = lambda p: {"v": 10 * p["lr"] + 10 * p["n"] + 100 * (p["net"] == "relu"), "w": 1.0}  # noqa: E731
    page = report.build([filled(tmp_path / "s", sweep.Sweep("m:f", grid=grid, repeats=2), value)])
    opened(browser, page, tmp_path)
    for net in grid["net"]:
        (drawn,) = figure(browser, f"Heat map, net = {net}")
        expected = [[value({"lr": lr, "n": n, "net": net})["v"] for lr in grid["lr"]] for n in grid["n"]]
        expected = expected if drawn["x"] == ["0.1", "0.2", "0.3"] else np.transpose(expected).tolist()
        np.testing.assert_allclose(drawn["z"], expected)
        texts = browser.execute_script(
            """return [...document.querySelector(`[aria-label='Heat map, net = ${arguments[0]}']`).querySelectorAll(
            '.heatmap-label text')].map((one) => Number(one.textContent))""",
            net,
        )
        np.testing.assert_allclose(sorted(texts), np.sort(np.ravel(expected)))
    text = browser.execute_script("return document.querySelector('main').textContent")
    assert "That mixes different things: net (relu, srelu)" in text and "These means mix" not in text
    assert complaints(browser) == []


@pytest.mark.parametrize(
    ("name", "values"), [("algorithm", ["gd", "adam"]), ("mine", ["gd", "adam"]), ("width", [4, 16]), ("depth", [2, 3])]
)
def test_rules_and_networks_have_pictures_of_their_own(tmp_path, name, values):
    """Texts of any name, and numbers that are known to make another network."""
    grid = {"lr": [0.1, 0.2, 0.3], "n": [1, 2, 3], name: values}
    plan = sweep.Sweep("m:f", grid=grid)
    (part,) = report.build([filled(tmp_path, plan, lambda p: {"v": p["lr"] + 100 * (p[name] == values[0])})]).sections
    titles = [one["figure"] for one in part.contents if "figure" in one]
    assert {f"Heat map, {name} = {value}" for value in values} <= set(titles) and "Heat map" not in titles


def test_too_many_networks_for_pictures_of_their_own_are_told(tmp_path):
    nets = [f"net {k}" for k in range(8)]
    grid = {"lr": list(range(9)), "n": list(range(10)), "net": nets}
    text = (
        report.build([filled(tmp_path, sweep.Sweep("m:f", grid=grid), lambda p: {"v": 1.0 * p["lr"]})])
        .sections[0]
        .render()
    )
    assert "These means mix different things: they are over net (net 0, net 1, net 2, net 3, net 4, net 5, ...)" in text


# ---------------------------------------------------------------- formulas


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "P(y f(x) <= 0) = O(ln(n)^3 Rad^2/gamma^2)",
            "P(y f(x) ≤ 0) = O(ln(n)<sup>3</sup> Rad<sup>2</sup>/γ<sup>2</sup>)",
        ),
        (
            "C_eps n^(-1/2) (R/Delta_r)^((r+3)/(2-eps))",
            "C<sub>ε</sub> n<sup>-1/2</sup> (R/Δ<sub>r</sub>)<sup>(r+3)/(2-ε)</sup>",
        ),
        ("||y_i phi(x_i)|| >= 2 sqrt(n)", "||y<sub>i</sub> φ(x<sub>i</sub>)|| ≥ 2 √(n)"),
        ("margin_M2 and log_risk, alphabet, x_ij", "margin_M2 and log_risk, alphabet, x_ij"),  # names stay names
        ("<b>gamma_1</b> & &gamma;", "&lt;b&gt;γ<sub>1</sub>&lt;/b&gt; &amp; &amp;gamma;"),
        ("x^<script> y_{<i>}", "x^&lt;script&gt; y<sub>&lt;i&gt;</sub>"),
    ],
)
def test_formulas_are_set_and_texts_stay_texts(text, expected):
    assert typeset(text) == expected


def test_formulas_are_seen_as_formulas(browser, certs, tmp_path, monkeypatch):
    given = theory.guarantees(DATA, None, theorems=["MT-14", "CB-20", "MT-19"], time_limit=2)
    monkeypatch.setattr(theory, "guarantees", lambda *args, **keys: given)
    opened(browser, report.build([certs[2]], bounds=True), tmp_path)
    cells = browser.execute_script(
        "return [...document.querySelectorAll('td[data-name=\"statement and assumptions\"]')].map((one) => one.innerHTML)"
    )
    assert len(cells) == len(list(given))
    whole = "".join(cells)
    assert "≤" in whole and "γ" in whole and "<sub>" in whole and "&lt;=" not in whole and "gamma" not in whole
    reason = browser.execute_script("return document.querySelector('main').innerHTML")
    assert "y<sub>i</sub> x<sub>i</sub>" in reason
