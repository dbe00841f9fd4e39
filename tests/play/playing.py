"""What the tests of the playground share: random sets of points on its grid, and a browser with the page."""

import json
import shutil
import time
from typing import Any

import numpy as np

NODE = shutil.which("node")
WIDE, NARROW = (1280, 1000), (390, 800)


def random_points(number: int, most: int = 14) -> tuple[np.ndarray, np.ndarray, bool]:
    """X (n, 2) on the grid of the page, y (n,), bias: small sets of all kinds, some with points on lines or twice."""
    rng = np.random.default_rng([20, number])
    n = int(rng.integers(1, most + 1))
    coarse = 2.0 ** rng.integers(-6, 2)  # 1/64 to 2: coarse grids have many points on one line
    X = np.round(rng.uniform(-3, 3, (n, 2)) / coarse) * coarse + 0.0
    return X, np.where(rng.random(n) < 0.5, -1.0, 1.0), bool(number % 3)


class Page:
    """A browser with the page, driven as a person would or through its modules."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, address: str, size: tuple[int, int] = WIDE, dark: bool = False, still: bool = False) -> None:
        self.driver.get("about:blank")
        for log in ("browser", "performance"):
            self.driver.get_log(log)
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == NARROW}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        wishes = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wishes})
        self.driver.get(address)
        self.wait("return document.documentElement.dataset.ready === 'yes'")

    def run(self, script: str, *args: Any) -> Any:
        return self.driver.execute_script(script, *args)

    def wait(self, script: str, *args: Any, seconds: float = 60) -> Any:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = self.run(script, *args)
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError(f"never: {script}")

    def report(self) -> dict[str, Any]:
        return self.run("return playground.report()")

    def certified(self, kind: str = "f1") -> dict[str, Any]:
        """The last certificate of the generation at hand, once it is there."""
        self.wait("const c = playground.certs[arguments[0]]; return c && c.last === true", kind)
        return self.report()["certs"][kind]

    def stop(self) -> None:
        self.run("if (playground.running) document.getElementById('run').click()")
        self.wait("return !playground.waiting")

    def set(self, name: str, value: Any) -> None:
        """A control, as if it had been used."""
        self.run(
            """const one = document.getElementById(arguments[0]);
            if (one.type === "checkbox") one.checked = arguments[1]; else one.value = arguments[1];
            one.dispatchEvent(new Event("input", {bubbles: true})); one.dispatchEvent(new Event("change", {bubbles: true}));""",
            name,
            value if isinstance(value, bool) else str(value),
        )

    def text(self, name: str) -> str:
        return self.run("return document.getElementById(arguments[0]).textContent", name)

    def complaints(self) -> list[str]:
        return [one["message"] for one in self.driver.get_log("browser") if one["level"] in ("WARNING", "SEVERE")]

    def requests(self) -> list[str]:
        events = [json.loads(one["message"])["message"] for one in self.driver.get_log("performance")]
        return [one["params"]["request"]["url"] for one in events if one["method"] == "Network.requestWillBeSent"]
