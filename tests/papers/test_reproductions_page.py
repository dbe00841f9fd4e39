"""docs/reproductions.md says what lies in docs/reproductions/, and docs/make_reproductions.py is what writes it."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from widemargin.papers import REPRODUCTIONS
from widemargin.papers.verdicts import NOT_INFORMATIVE, UNDECIDED

SCRIPT = Path(__file__).parents[2] / "docs" / "make_reproductions.py"


@pytest.fixture(scope="module")
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_reproductions", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_script_writes(make: ModuleType) -> None:
    page = make.PAGE.read_text(encoding="utf-8")
    assert page == make.rewritten(page), "run python docs/make_reproductions.py"


def test_every_folder_is_on_the_page(make: ModuleType) -> None:
    assert {one.name for one in make.folders()} == {one.name for one in make.FOLDERS.iterdir()} <= set(REPRODUCTIONS)
    assert set(make.BEFORE) <= set(REPRODUCTIONS)
    page = make.PAGE.read_text(encoding="utf-8")
    for folder in make.folders():
        for path in folder.glob("*.png"):
            assert f"(reproductions/{folder.name}/{path.name})" in page


def folder(root: Path, id: str, *holds: object) -> None:
    (root / id).mkdir()
    again = {"seed": 7919, "measured": 2.0, "uncertainty": None, "holds": False}
    found = [
        {"claim": f"|x| of {one}", "measured": 1.0, "paper": "-", "holds": one, "uncertainty": None, "reason": ""}
        | ({"chosen_after": "a look", "again": again} if one is True else {})
        for one in holds
    ]
    (root / id / "verdict.json").write_text(json.dumps(found))
    settings = {"scale": "paper", "seed": 0, "device": "cpu", "seconds": 1.5}
    (root / id / "settings.json").write_text(json.dumps(settings))
    (root / id / "figure.png").write_bytes(b"")


def test_counts_and_sections_of_given_folders(make: ModuleType, tmp_path: Path) -> None:
    folder(tmp_path, "uh-mirror", True, True, False, NOT_INFORMATIVE)
    folder(tmp_path, "bn-dyadic", True, "inconclusive", UNDECIDED)
    assert make.counts(tmp_path).splitlines()[2:] == [
        "| bn-dyadic | 5 / 0 / 0 | 1 / 0 / 2 / 0 |",
        "| uh-mirror | 7 / 0 / 0 | 2 / 1 / 0 / 1 |",
        "| all | 12 / 0 / 0 | 3 / 1 / 2 / 1 |",
    ]
    page = f"# before\n\n{make.BEGIN}\nstale\n{make.END}\n\nbetween\n\n{make.PART}\n\nstale\n"
    new = make.rewritten(page, tmp_path)
    assert "stale" not in new and new.startswith("# before\n") and "\nbetween\n" in new
    assert make.rewritten(new, tmp_path) == new
    assert r"| \|x\| of True | 1 | - | yes (chosen after: a look; at seed 7919: 2, no) |" in new
    assert (
        new.index("### bn-dyadic: ") < new.index("(reproductions/bn-dyadic/figure.png)") < new.index("### uh-mirror: ")
    )
