"""What a reader sees on the page in a browser: marks, panels, summaries, neurons, the slider, heat maps, formulas."""

import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from browsing import CHROMIUM, DRIVER, chrome
from widemargin import data as datasets
from widemargin import margins, report

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver"),
]
DATA = datasets.load("clusters:n=14,k=3,seed=1")
WIDE, NARROW = (1200, 900), (390, 800)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    driver = chrome(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


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
