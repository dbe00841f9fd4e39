"""How the tests of the playground reach its modules (with node) and its page (in Chromium)."""

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playing import NODE, Page

from browsing import chrome
from widemargin import play
from widemargin.play.bundle import PAGE


@pytest.fixture(scope="session")
def js():
    """Runs the body of a function of (data, use), use("certify.js") being a module of the page, and returns its result."""
    if NODE is None:
        pytest.skip("needs node")

    def run(body: str, data: Any = None) -> Any:
        code = f"""
        import {{readFileSync}} from "node:fs";
        const data = JSON.parse(readFileSync(0, "utf8")), use = (name) => import(new URL(name, "{PAGE.as_uri()}/"));
        const result = await (async () => {{ {body} }})();
        process.stdout.write(JSON.stringify(result ?? null));"""
        done = subprocess.run(
            [NODE, "--input-type=module", "-e", code], input=json.dumps(data), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    driver = chrome(tmp_path_factory.mktemp("profile"))
    driver.set_script_timeout(120)
    yield driver
    driver.quit()


@pytest.fixture
def page(browser: Any) -> Iterator[Page]:
    yield Page(browser)
    browser.get("about:blank")  # a page that is left open goes on training, beside all tests that follow


@pytest.fixture(scope="session")
def served() -> Iterator[play.Server]:
    """The page as `widemargin play` serves it."""
    with play.Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="session")
def one_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page as `make page` writes it."""
    file = tmp_path_factory.mktemp("one") / "page.html"
    file.write_text(play.page_text(), encoding="utf-8")
    return file
