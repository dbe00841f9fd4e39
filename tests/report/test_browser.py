"""The page in a real browser: no errors, no requests, sliders that move what they should, no overflow on a phone."""

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from browsing import CHROMIUM, DRIVER, NARROW, WIDE
from widemargin import data as datasets
from widemargin import flows, margins, report, sweep

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver"),
]
DATA = datasets.load("clusters:n=14,k=3,seed=1")


@pytest.fixture(scope="module")
def trained():
    record = flows.Record(["default", "weights"], points=20)
    return flows.train(DATA, flows.TwoLayer(3, 12), flows.GD(lr=0.5), stop=200, record=record, bias=True)


@pytest.fixture(scope="module")
def page(tmp_path_factory, trained):
    folder = tmp_path_factory.mktemp("page")
    plan = sweep.Sweep(
        "train", name="s", fixed={"data": "x"}, grid={"width": [4, 16, 64], "kind": ["a", "b"]}, repeats=3
    )
    store = sweep.Store(folder / "store")
    store.note(plan.name, plan.text(), "0")
    every = list(plan.runs("0"))
    rows = [{"first_result": float(k), "second_result": -1.5 * k} for k in range(len(every))]
    store.add(plan.name, plan.function, "0", 0, every, rows, 1.0)
    store.close()
    cert = margins.f1(DATA, bias=True, time_limit=20)
    long = "a very long title without any_place_to_break_a_line_" + "x" * 200
    built = report.build(
        [cert, margins.f2(DATA, bias=True), (trained, DATA, cert), folder / "store"], title=long, checks=True
    )
    report.write(built, folder / "page.html")
    return folder / "page.html"


def opened(browser, page: Path, size=WIDE, dark=False) -> None:
    browser.get("about:blank")
    for log in ("browser", "performance"):
        browser.get_log(log)
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == NARROW}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    wish = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [wish]})
    browser.get(page.as_uri())
    wait(browser, "return document.documentElement.dataset.ready === 'yes'")


def wait(browser, script: str, *args) -> None:
    for _ in range(300):
        if browser.execute_script(script, *args):
            return
        time.sleep(0.1)
    raise AssertionError(f"never: {script}")


def named(browser, title: str) -> str:
    """The id of the figure of this title."""
    return browser.execute_script("return document.querySelector(`[aria-label='${arguments[0]}']`).id", title)


def trace(browser, title: str, number: int, key: str):
    script = "return arguments[2].split('.').reduce((one, k) => one[k], document.getElementById(arguments[0]).data[arguments[1]])"
    return browser.execute_script(script, named(browser, title), number, key)


def set_control(browser, kind: str, value: int) -> None:
    browser.execute_script(
        """const one = document.querySelector(arguments[0]);
        one.value = arguments[1]; one.dispatchEvent(new Event("input", {bubbles: true}));
        window.shown = false; requestAnimationFrame(() => requestAnimationFrame(() => { window.shown = true; }));""",
        kind,
        str(value),
    )
    wait(browser, "return window.shown")


def complaints(browser) -> list[str]:
    return [one["message"] for one in browser.get_log("browser") if one["level"] in ("WARNING", "SEVERE")]


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_it_loads_without_errors_and_without_requests(browser, page, size):
    opened(browser, page, size)
    assert complaints(browser) == []
    events = [json.loads(one["message"])["message"] for one in browser.get_log("performance")]
    urls = [one["params"]["request"]["url"] for one in events if one["method"] == "Network.requestWillBeSent"]
    assert page.as_uri() in urls
    assert all(url == page.as_uri() or url.startswith(("data:", "blob:")) for url in urls)
    drawn = browser.execute_script(
        "return [...document.querySelectorAll('.plot')].map((one) => one.querySelectorAll('svg').length)"
    )
    assert len(drawn) > 10 and all(drawn)


def test_nothing_sticks_out_on_a_phone(browser, page):
    opened(browser, page, NARROW)
    width, shown = browser.execute_script(
        "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert width <= shown == NARROW[0]
    widths = browser.execute_script(
        "return [...document.querySelectorAll('.plot .main-svg')].map((one) => one.clientWidth)"
    )
    assert widths and max(widths) <= NARROW[0]


def test_tables_of_sentences_need_no_scrolling_on_a_phone(browser, page):
    wide = "return [...document.querySelectorAll('table.stack')].map(t => [t.scrollWidth, t.parentNode.clientWidth])"
    opened(browser, page, NARROW)
    sizes = browser.execute_script(wide)
    assert sizes and all(inner <= outer for inner, outer in sizes)
    shown = "return getComputedStyle(document.querySelector('table.stack thead')).display"
    assert browser.execute_script(shown) == "none"
    opened(browser, page, WIDE)
    assert browser.execute_script(shown) == "table-header-group"


def test_the_time_slider_moves_neurons_decision_margins_and_marks(browser, page, trained):
    opened(browser, page)
    last = int(browser.execute_script("return document.querySelector('input[type=range]').max"))
    X = np.hstack([DATA.X, np.ones((DATA.n, 1))])
    for k in (0, last // 2, last):
        set_control(browser, "input[type=range]", k)
        V, a = trained["W_V"][k, 0], trained["W_a"][k, 0]
        size = (V**2).sum() + (a**2).sum()
        expected = np.sort(DATA.y * ((X @ V.T).clip(0) @ a)) / size
        np.testing.assert_allclose(trace(browser, "Distribution of margins", 0, "x"), expected, rtol=1e-4, atol=1e-8)
        order = np.argsort(-np.abs(trained["W_a"][-1, 0]) * np.linalg.norm(trained["W_V"][-1, 0], axis=1))
        np.testing.assert_allclose(
            trace(browser, "Neurons", 1, "x"), (V[:, 0] / np.linalg.norm(V, axis=1))[order], atol=1e-3
        )
        colours = trace(browser, "Neurons", 1, "marker.color")
        assert [one.startswith("rgba(31,111,180") for one in colours] == (a[order] > 0).tolist()
        x, y, z = (np.array(trace(browser, "Decision", 0, key)) for key in "xyz")
        grid = np.stack([*np.meshgrid(x, y), np.ones((len(y), len(x)))], axis=-1)
        f = (grid @ V.T).clip(0) @ a / size  # (len(y), len(x))
        np.testing.assert_allclose(z, f, rtol=6e-3, atol=1e-5)  # x and y are rounded, too
        m = expected[0]
        for number, levels in ((1, [0.0]), (2, [-m, m] if m > 0 else [])):
            lines = np.array([trace(browser, "Decision", number, key) for key in "xy"], dtype=float)
            lines = lines[:, np.isfinite(lines[0])]
            assert bool(lines.size) == any((f < level).any() and (f > level).any() for level in levels)
            if lines.size:  # vertices are on sides of cells, and f is linear but for kinks within a cell
                at = (np.vstack([lines, np.ones(lines.shape[1])]).T @ V.T).clip(0) @ a / size
                steps = max(np.abs(np.diff(f, axis=0)).max(), np.abs(np.diff(f, axis=1)).max())
                assert np.abs(at[:, None] - levels).min(axis=1).max() < 0.5 * steps
        assert f"record {k}" in browser.execute_script("return document.querySelector('output').textContent")
        marks = browser.execute_script(
            "return document.getElementById(arguments[0]).layout.shapes.map((one) => one.x0)",
            named(browser, "Normalised margin"),
        )
        if k:
            np.testing.assert_allclose(marks[-1], trained["t_mean"][k, 0])
        lines = "return document.getElementById(arguments[0]).querySelectorAll('.shapelayer path').length"
        assert browser.execute_script(lines, named(browser, "Loss")) == (k > 0)  # a logarithmic axis has no place for 0
    assert complaints(browser) == []


def test_no_button_sends_a_figure_elsewhere(browser, page):
    opened(browser, page)
    titles = browser.execute_script(
        "return [...document.querySelectorAll('.modebar-btn')].map((one) => one.getAttribute('data-title'))"
    )
    assert "Download plot as a PNG" in titles and not any("Share" in one or "loud" in one for one in titles)


def test_figures_agree_with_the_slider_after_going_back(browser, page):
    opened(browser, page)
    set_control(browser, "input[type=range]", 5)
    expected = trace(browser, "Distribution of margins", 0, "x")
    browser.get("about:blank")
    browser.back()
    wait(browser, "return document.documentElement.dataset.ready === 'yes'")
    said = "return document.querySelector('output').textContent.endsWith(`record ${arguments[0]}`)"
    value = browser.execute_script("return document.querySelector('input[type=range]').value")
    wait(browser, said, value)
    if value == "5":  # browsers may also begin anew
        assert trace(browser, "Distribution of margins", 0, "x") == expected


def test_certified_intervals_can_be_read_on_a_phone(browser, tmp_path):
    cert = replace(
        margins.linear(DATA, bias=True), lower=0.01234567, upper=0.1234567, proved=False, status="time-limit"
    )
    report.write(report.build(cert), tmp_path / "page.html")
    opened(browser, tmp_path / "page.html", NARROW)
    outside = browser.execute_script(
        """const plot = document.getElementById(arguments[0]), box = plot.getBoundingClientRect();
        return [...plot.querySelectorAll('.annotation text')].filter(
          (one) => one.getBoundingClientRect().right > box.right || one.getBoundingClientRect().top < box.top).length""",
        named(browser, "Certified intervals"),
    )
    assert outside == 0


def test_play_runs_to_the_end_and_stops(browser, page):
    opened(browser, page)
    last = int(browser.execute_script("return document.querySelector('input[type=range]').max"))
    set_control(browser, "input[type=range]", last - 2)
    browser.execute_script("document.querySelector('.control button').click()")
    wait(browser, "return document.querySelector('input[type=range]').value === arguments[0]", str(last))
    wait(browser, "return document.querySelector('.control button').getAttribute('aria-label') === 'play'")
    assert f"record {last}" in browser.execute_script("return document.querySelector('output').textContent")


def test_another_result_of_a_sweep_can_be_chosen(browser, page):
    opened(browser, page)
    first = np.array(trace(browser, "Heat map", 0, "z"))
    set_control(browser, "select", 1)
    np.testing.assert_allclose(np.array(trace(browser, "Heat map", 0, "z")), -1.5 * first)
    np.testing.assert_allclose(trace(browser, "Along width", 2, "y"), -1.5 * first[0])
    title = "return document.getElementById(arguments[0]).layout.yaxis.title.text"
    assert browser.execute_script(title, named(browser, "Along width")) == "second_result"


def test_colours_follow_the_theme_and_print_is_light(browser, page):
    opened(browser, page, dark=True)
    ink = "return document.getElementById(arguments[0]).layout.font.color"
    name = named(browser, "Loss")
    assert browser.execute_script(ink, name) == "#e6e8ea"
    shades = [one[1] for one in trace(browser, "Decision", 0, "colorscale")]
    assert shades == ["#f29455", "#14171a", "#62aef0"]  # orange below 0, blue above
    browser.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    wait(browser, f"{ink} === '#222222'", name)
    assert browser.execute_script("return [...document.querySelectorAll('details')].some((one) => one.open)")
    browser.execute_script("window.dispatchEvent(new Event('afterprint'))")
    wait(browser, f"{ink} === '#e6e8ea'", name)
    printed = browser.execute_cdp_cmd("Page.printToPDF", {})["data"]
    assert printed.startswith("JVBERi") and complaints(browser) == []
