"""The pictures of docs/play.md: a screenshot of every scene, and an animation of the page's own frames.

    python docs/make_play_pictures.py [--only NAME ...]

Needs chromium, chromedriver, selenium and Pillow. Steps are taken in fixed numbers, so that the networks are the same every time.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image
from selenium import webdriver

from widemargin import play

HERE = Path(__file__).resolve().parent / "play"
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-dev-shm-usage",
)
SCENES = {"lazy": (0, 4000), "narrow": (1, 3000), "kernel": (2, 3000), "kkt": (3, 400), "decay": (4, 12000)}
WIDE, PHONE = (1280, 930), (390, 1700)
TO = """
const [steps, done] = arguments, page = playground;
const go = () => {
  if (page.waiting) return setTimeout(go, 5);
  if (page.steps >= steps) { page.dirty = true; return requestAnimationFrame(() => requestAnimationFrame(() => {
    page.words(); done(); })); }
  page.waiting = true;
  page.trainer.postMessage({type: "go", gen: page.gen, exactly: Math.min(steps - page.steps, 40)});
  setTimeout(go, 5);
};
go();"""


class Camera:
    def __init__(self, file: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        for flag in FLAGS:
            options.add_argument(flag)
        self.driver: Any = webdriver.Chrome(
            options=options, service=webdriver.ChromeService(shutil.which("chromedriver"))
        )
        self.driver.set_script_timeout(300)
        self.file = file

    def open(self, size: tuple[int, int], dark: bool = False) -> None:
        shape = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
        wish = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [wish]})
        self.driver.get("about:blank")
        self.driver.get(self.file.as_uri())
        self.wait("return window.playground && playground.certs.rf")

    def wait(self, script: str) -> None:
        for _ in range(2400):
            if self.driver.execute_script(script):
                return
            time.sleep(0.05)
        raise SystemExit(f"never: {script}")

    def scene(self, number: int, line: int, change: str = "") -> None:
        self.driver.execute_script(
            """playground.running = false; playground.scene(arguments[0]); playground.running = false;
              playground.story.turn(arguments[1]);
            if (arguments[2]) playground.change(JSON.parse(arguments[2]));
            playground.showControls(); document.activeElement.blur(); scrollTo(0, 0);""",
            *(number, line, change),
        )
        self.wait("return playground.certs.f1 && playground.certs.f1.last && playground.certs.rf && playground.shown")

    def to(self, steps: int) -> None:
        self.driver.execute_async_script(TO, steps)

    def picture(self) -> Image.Image:
        return Image.open(io.BytesIO(self.driver.get_screenshot_as_png())).convert("RGB")


def saved(picture: Image.Image, name: str) -> None:
    picture.save(HERE / name, optimize=True)
    print(f"{name}: {(HERE / name).stat().st_size / 1000:.0f} kB")


def _palette(camera: Camera, frames: list[Image.Image]) -> Image.Image:
    """Colours of some frames, and those of the theme, which fill few pixels and would be lost."""
    rgb = camera.driver.execute_script("return Object.values(playground.colours.rgb).concat(playground.colours.heat)")
    some, (width, height) = frames[:: max(1, len(frames) // 4)], frames[0].size
    sheet = Image.new("RGB", (width, height * len(some) + 40 * len(rgb)))
    for k, one in enumerate(some):
        sheet.paste(one, (0, k * height))
    for k, colour in enumerate(rgb):
        sheet.paste(tuple(colour), (0, height * len(some) + 40 * k, width, height * len(some) + 40 * (k + 1)))
    return sheet.quantize(64, method=Image.Quantize.MEDIANCUT)


def animation(camera: Camera) -> None:
    """Two implicit biases in one run: frames at steps that grow by a constant factor."""
    camera.open((1280, 735))
    camera.driver.execute_script("document.querySelector('header p').remove()")
    camera.scene(0, 0, '{"scale": 10}')
    camera.driver.execute_script(
        """for (const one of ['.scenes', '.help', '#story']) document.querySelector(one).style.display = "none";
        scrollTo(0, 0);
        playground.dirty = true;"""
    )
    frames, steps = [], 0
    while steps < 9000:
        camera.to(steps)
        frames.append(camera.picture().resize((600, 345), Image.Resampling.LANCZOS))
        steps = max(steps + 8, int(steps * 1.25))
    palette = _palette(camera, frames)
    flat = [one.quantize(palette=palette, dither=Image.Dither.NONE) for one in frames]
    name = HERE / "race.gif"
    flat[0].save(
        name, save_all=True, append_images=flat[1:], duration=[170] * (len(flat) - 1) + [2500], loop=0, optimize=True
    )
    print(f"race.gif: {len(flat)} frames, {name.stat().st_size / 1e6:.2f} MB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*SCENES, "dark", "phone", "race"])
    wanted = parser.parse_args().only or [*SCENES, "dark", "phone", "race"]
    HERE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(play.page_text(), encoding="utf-8")
        camera = Camera(file)
        try:
            for name, (number, steps) in SCENES.items():
                if name in wanted:
                    camera.open(WIDE)
                    camera.scene(number, 3)
                    camera.to(steps)
                    saved(camera.picture(), f"{name}.png")
            for name, size, dark in (("dark", WIDE, True), ("phone", PHONE, False)):
                if name in wanted:
                    camera.open(size, dark)
                    camera.driver.execute_script(
                        "playground.running = false; playground.preset('spirals'); playground.showControls()"
                    )
                    camera.wait(
                        "return playground.certs.f1 && playground.certs.f1.last && playground.certs.rf && playground.shown"
                    )
                    camera.to(2500)
                    saved(camera.picture(), f"{name}.png")
            if "race" in wanted:
                animation(camera)
        finally:
            camera.driver.quit()
    return 0


if __name__ == "__main__":
    sys.exit(main())
