"""Every id of the papers is implemented and tested, or says why not; docs/claims.md is what the code says."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

import widemargin
import widemargin.papers
from widemargin.theory import CHECKS, THEOREMS, claims

ROOT = Path(__file__).parents[2]
IDS = [f"{paper}-{k}" for paper, (count, _) in claims.PAPERS.items() for k in range(1, count + 1)]


def test_there_are_151_ids_and_no_others():
    assert len(IDS) == 151 and list(claims.TABLE) == IDS
    for one in (*THEOREMS.values(), *CHECKS.values()):
        assert {id for id in one.claims if not id.startswith("WM-")} <= set(IDS), one.id


@functools.cache
def names_of_tests(file: str) -> set[str]:
    return set(re.findall(r"(?m)^def (test_\w+)", (ROOT / "tests" / file).read_text()))


@pytest.mark.parametrize("id", IDS)
def test_an_id_is_implemented_and_tested_or_says_why_not(id: str):
    claim = claims.TABLE[id]
    where = claims.implemented(id)
    assert where or claim.reason, f"{id} is neither implemented nor excused"
    assert claim.tests or claim.reason, f"{id} has no test"
    for name in claim.where:
        thing = widemargin
        for part in name.split("."):
            assert hasattr(thing, part), f"{id}: there is no {name}"
            thing = getattr(thing, part)
    for test in claim.tests:
        file, _, name = test.partition("::")
        assert name in names_of_tests(file), f"{id}: there is no {test}"


def test_the_page_is_what_the_code_says():
    assert (ROOT / "docs/claims.md").read_text() == claims.page()
