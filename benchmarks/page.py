"""The time slider of the page that `report` writes, in a headless Chromium: frames per second, and processor time of a frame.

    python benchmarks/page.py [PAGE.html ...] [--frames 120] [--rounds 3] [--json FILE]

Without a page, that of the run in docs/report.md is made. Pages that are given are measured in turn, round by round, so that
all meet the same machine. The window has 1280 x 1000 pixels and shows the decision, the neurons and the distribution of margins.
Every frame moves the slider by one moment, as a person who drags it does; the next begins when the browser is ready for it.

- between frames: the median and nine of ten, by the clock on the wall; at most 60 a second are drawn.
- main thread: processor time of scripts, styles, layout and the list of what to paint, per frame.
- all processes: processor time of all that the browser does, painting without a GPU included, per frame.

Needs chromium, chromedriver and selenium. The first line names the machine and its load. Goal: 20 frames a second, so at most
50 ms of processor time on the main thread; exit status 1 if it is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playground import browser

GOAL = 50.0  # ms
DRAG = """
const [count, done] = arguments, slider = document.querySelector("input[type=range]"), last = Number(slider.max), times = [];
let begun = null, k = 0;
const tick = (now) => {
  if (begun !== null) times.push(now - begun);
  begun = now;
  if (k >= count) return done(times);
  const turn = k % (2 * last);
  slider.value = turn <= last ? turn : 2 * last - turn;  // there and back again
  slider.dispatchEvent(new Event("input", {bubbles: true}));
  k += 1;
  requestAnimationFrame(tick);
};
requestAnimationFrame(tick);"""


def example(folder: Path) -> Path:
    """The page of the run in docs/report.md."""
    from widemargin import data, flows, margins, report

    points = data.load("disks:d=2,n=60,seed=1")
    record = flows.Record(["default", "weights"], points=200)
    run = flows.train(
        points,
        flows.TwoLayer(3, 60),
        flows.GradientFlow(),
        stop=flows.Stop(time=1e6),
        trials=2,
        bias=True,
        record=record,
    )
    page = report.build([(run, points, margins.f1(points, bias=True))], title="The slider")
    report.write(page, folder / "page.html")
    return folder / "page.html"


def timed_browser() -> Any:
    driver = browser()
    driver.set_script_timeout(300)
    driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    return driver


def processes(first: int) -> list[int]:
    """A process, its children and theirs."""
    own = [first]
    for task in Path(f"/proc/{first}/task").iterdir():
        for child in (task / "children").read_text().split():
            own += processes(int(child))
    return own


def processor_ms(driver: Any) -> tuple[float, float]:
    """Of the main thread of the page, and of all that the driver started, until now."""
    metrics = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    main = next(one["value"] for one in metrics if one["name"] == "TaskDuration")
    ticks = 0
    for number in processes(driver.service.process.pid):
        ticks += sum(map(int, Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return 1000 * main, 1000 * ticks / os.sysconf("SC_CLK_TCK")


def measure(driver: Any, page: Path, frames: int) -> dict[str, Any]:
    driver.get("about:blank")
    driver.get(page.resolve().as_uri())
    for _ in range(600):
        if driver.execute_script("return document.documentElement.dataset.ready === 'yes'"):
            break
        time.sleep(0.1)
    driver.execute_script("document.querySelector('input[type=range]').scrollIntoView()")
    time.sleep(1.0)  # the page finds out what is seen, and draws it
    driver.execute_async_script(DRAG, 30)  # its code is compiled
    before = processor_ms(driver)
    times = driver.execute_async_script(DRAG, frames)
    main, whole = ((new - old) / frames for new, old in zip(processor_ms(driver), before))
    return {"times": times, "main": main, "all": whole}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE.html")
    parser.add_argument("--frames", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    print(
        f"{platform.machine()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}, no GPU; {options.frames} frames"
    )
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        pages = options.pages or [example(Path(folder))]
        driver = timed_browser()
        try:
            rounds = [{page: measure(driver, page, options.frames) for page in pages} for _ in range(options.rounds)]
        finally:
            driver.quit()
    for page in pages:
        each = [one[page] for one in rounds]
        times = sorted(t for one in each for t in one["times"])
        found[str(page)] = {
            "ms between frames, median": statistics.median(times),
            "ms between frames, 90 %": times[int(0.9 * len(times))],
            "frames per second": 1000 * len(times) / sum(times),
            "ms of the main thread": statistics.median(one["main"] for one in each),
            "ms of all processes": statistics.median(one["all"] for one in each),
        }
        print(page if options.pages else "the run of docs/report.md")
        for name, value in found[str(page)].items():
            print(f"  {name:28} {value:7.1f}")
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0 if all(one["ms of the main thread"] <= GOAL for one in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
