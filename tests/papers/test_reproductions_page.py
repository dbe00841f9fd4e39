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
    escaped = REPRODUCTIONS["uh-mirror"].shows.replace("|", r"\|")
    assert make.counts(tmp_path).splitlines()[2:] == [
        f"| [bn-dyadic](#bn-dyadic) | {REPRODUCTIONS['bn-dyadic'].shows} | 1 / 0 / 2 / 0 |",
        f"| [uh-mirror](#uh-mirror) | {escaped} | 2 / 1 / 0 / 1 |",
        "| all |  | 3 / 1 / 2 / 1 |",
    ]
    page = f"# before\n\n{make.BEGIN}\nstale\n{make.END}\n\nbetween\n\n{make.PART}\n\nstale\n"
    new = make.rewritten(page, tmp_path)
    assert "stale" not in new and new.startswith("# before\n") and "\nbetween\n" in new
    assert make.rewritten(new, tmp_path) == new
    assert r"| \|x\| of True | 1 | yes (seed 7919: no) |" in new
    assert r"| \|x\| of False | 1 | no |" in new and NOT_INFORMATIVE not in new.partition(make.PART)[2]
    assert "(reproductions/bn-dyadic/verdict.json)" in new
    assert (
        new.index("### bn-dyadic\n") < new.index("(reproductions/bn-dyadic/figure.png)") < new.index("### uh-mirror\n")
    )


@pytest.mark.parametrize(
    ("uncertainty", "shown"),
    [
        (None, "1"),
        (0.25, "1 +- 0.25"),
        ("95 percent in [0.5, 1.5], 6 trials; least 0.4", "1 in [0.5, 1.5]"),
        ("[0.5, 1.5]; trials alone [0.9, 1.1]", "1 in [0.5, 1.5]"),
        ("least 0.4 of [3, 4]", "1"),
    ],
)
def test_a_measured_number_is_shown_with_its_interval(make: ModuleType, uncertainty: object, shown: str) -> None:
    assert make.short({"measured": 1.0, "uncertainty": uncertainty}) == shown
