"""The page in Firefox, which speaks WebDriver BiDi itself: the same page, another engine of JavaScript and of pictures."""

import json
import re
import shutil
import subprocess
import time
from typing import Any

import pytest

from widemargin import verify

websocket = pytest.importorskip("websocket", reason="needs websocket-client")
FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
RIGHT, DELETE = "\ue014", "\ue017"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(FIREFOX is None, reason="needs firefox")]


class Firefox:
    """A Firefox without a window, with its profile in this folder."""

    def __init__(self, profile: Any) -> None:
        quiet = ("browser.shell.checkDefaultBrowser", "datareporting.policy.dataSubmissionEnabled")
        (profile / "user.js").write_text("".join(f'user_pref("{name}", false);\n' for name in quiet), encoding="utf-8")
        words = [FIREFOX, "--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port", "0"]
        log, found = profile / "log.txt", None
        with log.open("w") as file:
            self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=file)
        while found is None:
            if self.process.poll() is not None:
                pytest.skip("this firefox does not start here")
            time.sleep(0.05)
            found = re.search(r"BiDi listening on (ws://\S+)\n", log.read_text(encoding="utf-8"))
        self.socket = websocket.create_connection(f"{found[1]}/session", timeout=120, suppress_origin=True)
        self.sent, self.events = 0, []
        self.ask("session.new", capabilities={})
        self.ask("session.subscribe", events=["log.entryAdded", "network.beforeRequestSent"])
        self.tab = self.ask("browsingContext.getTree")["contexts"][0]["context"]
        self.ask("browsingContext.setViewport", context=self.tab, viewport={"width": 1280, "height": 1000})

    def ask(self, method: str, **params: Any) -> Any:
        self.sent += 1
        self.socket.send(json.dumps({"id": self.sent, "method": method, "params": params}))
        while (said := json.loads(self.socket.recv())).get("id") != self.sent:
            self.events.append(said)
        assert said["type"] == "success", said
        return said["result"]

    def run(self, body: str) -> Any:
        code = f"JSON.stringify((() => {{ {body} }})() ?? null)"
        said = self.ask("script.evaluate", expression=code, target={"context": self.tab}, awaitPromise=False)
        assert said["type"] == "success", said
        return json.loads(said["result"]["value"])

    def wait(self, body: str) -> Any:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if found := self.run(body):
                return found
            time.sleep(0.05)
        raise AssertionError(f"never: {body}")

    def act(self, kind: str, *steps: dict[str, Any]) -> None:
        actions = [{"type": kind, "id": kind, "actions": list(steps)}]
        self.ask("input.performActions", context=self.tab, actions=actions)

    def heard(self, method: str) -> list[Any]:
        return [one["params"] for one in self.events if one.get("method") == method]

    def close(self) -> None:
        self.ask("browser.close")
        self.socket.close()
        self.process.wait()


@pytest.fixture(scope="module")
def firefox(tmp_path_factory):
    browser = Firefox(tmp_path_factory.mktemp("firefox"))
    yield browser
    browser.close()


@pytest.mark.parametrize("way", [pytest.param("served", marks=pytest.mark.long), "file"])
def test_it_trains_certifies_and_listens_in_firefox(firefox, served, one_file, way):
    address = served.address if way == "served" else one_file.as_uri()
    firefox.events.clear()
    firefox.ask("browsingContext.navigate", context=firefox.tab, url=address, wait="complete")
    last = "const c = window.playground?.certs.f1; return c && c.last === true && playground.report().certs.f1"
    cert = firefox.wait(last)
    X, y = [[1.0, 1], [-1, -1], [1, -1], [-1, 1]], [1.0, 1, -1, -1]
    assert cert["answer"] == "proved exactly" and verify.check(json.loads(cert["text"]), X, y).ok
    assert 0.35355 <= cert["lower"] <= cert["upper"] <= 0.35356
    firefox.wait("return playground.get('badge').textContent === 'proved' && playground.steps > 30")
    keys = [{"type": kind, "value": key} for key in (RIGHT, " ", DELETE) for kind in ("keyDown", "keyUp")]
    firefox.run("playground.stage.buttons[2].focus()")
    firefox.act("key", *keys[:4])
    assert firefox.run("return playground.state.points[2]") == [1.125, -1, 1]  # an arrow moved it, Space flipped it
    firefox.act("key", *keys[4:])
    assert firefox.run("return playground.state.points.length") == 3
    x, y = firefox.run("const b = playground.stage.buttons[0].getBoundingClientRect(); return [b.x + 15, b.y + 15]")
    places = [{"type": "pointerMove", "x": int(x) + by, "y": int(y) + by, "duration": 20} for by in (0, 20, 40)]
    firefox.act(
        "pointer", places[0], {"type": "pointerDown", "button": 0}, *places[1:], {"type": "pointerUp", "button": 0}
    )
    moved = firefox.run("return playground.state.points[0]")
    assert moved[0] > 1 > moved[1]
    assert firefox.wait(last)["answer"] == "proved exactly"
    assert firefox.heard("log.entryAdded") == []
    urls = [one["request"]["url"] for one in firefox.heard("network.beforeRequestSent")]
    assert all(url.startswith((address, "data:")) for url in urls), urls
