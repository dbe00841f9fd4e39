"""The playground in a headless Chromium: frames per second, latency of a drag, seconds to a certificate and to the exact verdict.

    python benchmarks/playground.py [--seconds 5] [--drags 40] [--json FILE]

- frames: medians of the time between frames while a network trains, and the share of frames over budget (16.7 ms
  with up to 40 points
  and 200 neurons, 33.3 ms with 100 points and 500 neurons). Without a GPU canvases are drawn by the processor.
- drag: from the move of a point to the first frame that is drawn with a network of the new points, and to its place
  on the screen.
- certified: from the change of the points to the first certificate (gap at most 1e-3) that the exact check has
  accepted, that check
  included, on a page that was just opened, and after a move; exact: the last check alone.
- first paint, from the one file, with a cold page.

Needs chromium, chromedriver and selenium. The first line names the machine and its load: other work on it makes
  every number worse.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from selenium import webdriver

from widemargin import Dataset, play

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
)
FRAMES = """
const [seconds, done] = arguments, times = [], drawn = [], page = playground, real = page.tick;
page.tick = () => {
  const begun = performance.now(), {dirty} = page;
  real.call(page);
  if (dirty) drawn.push(performance.now() - begun);
};
let last = performance.now(), frames = playground.frames;
const end = last + 1000 * seconds;
const tick = (now) => {
  times.push(now - last);
  last = now;
  if (now < end) requestAnimationFrame(tick);
  else { delete page.tick; done({times: times.slice(1), drawn, frames: page.frames - frames}); }
};
requestAnimationFrame(tick);"""
DRAG = """
const [number, done] = arguments, begun = performance.now(), page = playground, before = page.frames;
page.movePoint(number % page.state.points.length, Math.round(100 * Math.cos(number)) / 64, Math.round(100 *
  Math.sin(3 * number)) / 64);
let moved = null;
const look = () => {
  const now = performance.now();
  moved ??= now - begun;
  if (page.frames > before && !page.dirty) done([moved, now - begun]);
  else requestAnimationFrame(look);
};
requestAnimationFrame(look);"""


def points(n: int, seed: int) -> Dataset:
    rng = np.random.default_rng(seed)
    X = np.round(rng.uniform(-2, 2, (n, 2)) * 64) / 64
    return Dataset(X, np.where(np.sin(2 * X[:, 0]) + np.cos(2 * X[:, 1]) > 0.2, 1.0, -1.0))


def browser() -> Any:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in FLAGS:
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    driver.set_script_timeout(120)
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 1280, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    )
    return driver


def wait(driver: Any, script: str) -> Any:
    for _ in range(2400):
        found = driver.execute_script(script)
        if found:
            return found
        time.sleep(0.025)
    raise SystemExit(f"never: {script}")


def opened(driver: Any, file: Path, data: Dataset, width: int) -> None:
    driver.get("about:blank")
    driver.get(file.as_uri() + play.link(data) + f"&width={width}")
    wait(driver, "return window.playground && playground.certs.rf && playground.steps > 5")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--drags", type=int, default=40)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}, no GPU"
    )
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(play.page_text(), encoding="utf-8")
        found["bytes"] = file.stat().st_size
        driver = browser()
        try:
            paints = []
            for _ in range(5):
                driver.get("about:blank")
                driver.get(file.as_uri())
                paints.append(
                    wait(driver, "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
                )
            found["first paint, ms"] = statistics.median(paints)
            for n, m, budget in ((24, 100, 1000 / 60), (40, 200, 1000 / 60), (100, 500, 1000 / 30)):
                opened(driver, file, points(n, 1), m)
                seen = driver.execute_async_script(FRAMES, options.seconds)
                times = seen["times"]
                found[f"frames n={n} m={m}"] = {
                    "per second, median": 1000 / statistics.median(times),
                    "per second, mean": 1000 * len(times) / sum(times),
                    "networks drawn per second": 1000 * seen["frames"] / sum(times),
                    "ms to draw, median": statistics.median(seen["drawn"]),
                    "ms to draw, tenth best": sorted(seen["drawn"])[len(seen["drawn"]) // 10],
                    "over budget": sum(t > budget + 1 for t in times) / len(times),
                }
            opened(driver, file, points(40, 2), 200)
            drags = [driver.execute_async_script(DRAG, k) for k in range(options.drags)]
            for name, column in (("drag, point moved, ms", 0), ("drag, network drawn, ms", 1)):
                each = sorted(one[column] for one in drags)
                found[name] = {"median": statistics.median(each), "90 %": each[int(0.9 * len(each))]}
            for n, bias in ((10, False), (24, False), (40, False), (40, True), (100, False)):
                first, last, exact = [], [], []
                for seed in range(5):
                    driver.get("about:blank")
                    driver.get(file.as_uri() + play.link(points(n, seed), bias=bias))
                    wait(driver, "return window.playground?.certs.f1?.last === true")
                    script = "const c = playground.certs.f1; return [playground.firsts.f1, c.ms, c.checkMs]"
                    for one, ms in zip((first, last, exact), driver.execute_script(script)):
                        one.append(ms)
                found[f"certified n={n}{', with a bias' if bias else ''}, ms"] = {
                    "first verdict, gap 1e-3": statistics.median(first),
                    "gap 1e-6": statistics.median(last),
                    "exact check alone": statistics.median(exact),
                }
            opened(driver, file, points(40, 0), 200)
            again = []
            for k in range(15):  # the page has run for a while: its code is compiled
                driver.execute_script("playground.movePoint(arguments[0], 1.25 + arguments[0] / 64, 0.5)", k)
                wait(driver, "return playground.certs.f1?.last === true")
                again.append(driver.execute_script("return playground.firsts.f1"))
            found["certified again after a move, n=40, ms"] = statistics.median(again)
        finally:
            driver.quit()
    print(f"load at the end {os.getloadavg()[0]:.1f}")
    for name, value in found.items():
        said = (
            ", ".join(f"{key} {number:.3g}" for key, number in value.items())
            if isinstance(value, dict)
            else f"{value:.6g}"
        )
        print(f"{name}: {said}")
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
