"""Every id of the papers is implemented and tested, or says why not; docs/claims.md is what the code says."""

from __future__ import annotations

import functools
import re
import runpy
from pathlib import Path

import pytest

import widemargin
import widemargin.papers
from widemargin.theory import CHECKS, THEOREMS

ROOT = Path(__file__).parents[2]
MADE = runpy.run_path(str(ROOT / "docs/make_claims.py"))
CLAIMS = MADE["CLAIMS"]
IDS = [f"{paper}-{k}" for paper, about in MADE["PAPERS"].items() for k in range(1, about["claims"] + 1)]


def test_there_are_151_ids_and_no_others():
    assert len(IDS) == 151 and list(CLAIMS) == IDS
    for one in (*THEOREMS.values(), *CHECKS.values()):
        assert {id for id in one.claims if not id.startswith("WM-")} <= set(IDS), one.id


@functools.cache
def names_of_tests(file: str) -> set[str]:
    return set(re.findall(r"(?m)^def (test_\w+)", (ROOT / "tests" / file).read_text()))


@pytest.mark.parametrize("id", IDS)
def test_an_id_is_implemented_and_tested_or_says_why_not(id: str):
    claim = CLAIMS[id]
    assert set(claim) <= {"title", "where", "tests", "reason"}
    assert MADE["implemented"](id) or claim.get("reason"), f"{id} is neither implemented nor excused"
    assert claim.get("tests") or claim.get("reason"), f"{id} has no test"
    for name in claim.get("where", []):
        thing = widemargin
        for part in name.split("."):
            assert hasattr(thing, part), f"{id}: there is no {name}"
            thing = getattr(thing, part)
    for test in claim.get("tests", []):
        file, _, name = test.partition("::")
        assert name in names_of_tests(file), f"{id}: there is no {test}"


@pytest.mark.parametrize("id", THEOREMS)
def test_a_theorem_is_tested_where_it_says(id: str):
    one = THEOREMS[id]
    assert re.search(rf"\b{one.name}\b", (ROOT / one.tested).read_text()), f"{one.tested} does not name {one.name}"
    tests = CLAIMS.get(id, {"tests": [one.tested.removeprefix("tests/")]})["tests"]
    assert any(test.startswith(one.tested.removeprefix("tests/")) for test in tests)


def test_the_page_is_what_the_code_says():
    assert (ROOT / "docs/claims.md").read_text() == MADE["page"]()
