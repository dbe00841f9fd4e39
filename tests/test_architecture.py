"""docs/architecture.md against the package: its picture has the rooms in their order, its paths are those of real calls."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from checks import files_entered, noise
from test_house import ORDER
from widemargin import flows, margins, monitor

PAGE = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
SRC = Path(margins.__file__).parents[1]
NOT_DRAWN = {"__main__", "needs_torch"}  # a line or two each
LISTED = re.compile(r"^\| `([\w/]+\.py)` \| .+ \|$", re.MULTILINE)


def path_of(call: str) -> list[str]:
    """The files that the page lists for a call."""
    section = PAGE.partition(f"### `{call}`\n")[2].partition("\n#")[0]
    assert section.count("\n| ") - 1 == len(LISTED.findall(section)), "a file is listed in another form"
    return LISTED.findall(section)


def certified(folder: Path) -> Callable[[], None]:
    listed, tree = noise(20, 2, seed=0), noise(12, 4, seed=0)

    def call() -> None:
        assert margins.f1(listed, time_limit=None).bound == "enumeration"
        assert margins.f1(tree, time_limit=None).bound == "tree"

    return call


def trained(folder: Path) -> Callable[[], None]:
    data, net, descent, flow = noise(20, 2, seed=0), flows.TwoLayer(2, 8), flows.GD(0.1), flows.GradientFlow()

    def call() -> None:
        for rule, out in ((descent, folder / "run"), (flow, None)):
            assert flows.train(data, net, rule, stop=5, keep=out).status == ("finished",)

    return call


def watched(folder: Path) -> Callable[[], None]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    X, y = torch.randn(8, 2), torch.tensor([0, 1] * 4)
    watching = monitor.MarginMonitor(model, out=folder / "records")
    assert watching._store is not None
    watching._store.before = time.monotonic()  # so that its thread waits a second, and this one writes

    def call() -> None:
        for _ in range(3):
            watching.step(logits=model(X), targets=y)
        watching.flush()
        assert len(watching.records) == 3
        watching.close()

    return call


@pytest.mark.parametrize(
    ("call", "made"), [("margins.f1", certified), ("flows.train", trained), ("MarginMonitor.step", watched)]
)
def test_the_path_of_a_call(call: str, made: Callable[[Path], Callable[[], None]], tmp_path, one_thread):
    listed = path_of(call)
    assert len(listed) > 5 and len(set(listed)) == len(listed)
    gone = [name for name in listed if not (SRC / name).is_file()]
    assert not gone, f"the page names files that are gone: {gone}"
    entered = files_entered(made(tmp_path))
    assert not entered - set(listed), (
        f"{call} enters files that the page does not name: {sorted(entered - set(listed))}"
    )
    assert not set(listed) - entered, f"{call} does not enter these: {sorted(set(listed) - entered)}"
    assert listed == [*entered], f"the files are entered in another order: {[*entered]}"


def test_the_picture_has_every_room_in_its_row():
    """From the top: a row of the picture is a row of ORDER, less what is no room."""
    picture = re.search(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert picture is not None
    rows = [line.strip("│ ").split("│") for line in picture[1].splitlines() if re.match(r" │ +\w", line)]
    rooms = {room for row in ORDER for room in row} - NOT_DRAWN
    drawn = [{word for part in row for word in re.split(r" {2,}", part.strip())[0].split(", ")} & rooms for row in rows]
    assert drawn == [row - NOT_DRAWN for row in reversed(ORDER) if row - NOT_DRAWN]


def test_every_file_that_the_page_names_is_there():
    for name in re.findall(r"`((?:\w+/)*\w+\.py)`", PAGE):
        assert (SRC / name).is_file() or (SRC.parents[1] / name).is_file(), name
