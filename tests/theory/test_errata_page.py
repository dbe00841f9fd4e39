"""docs/errata.md has every erratum, and what it says confirms an erratum exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
COUNT = {"UH": 20, "LR": 17, "MT": 12, "BN": 10, "CB": 11}


def test_every_erratum_is_on_the_page_with_an_existing_test():
    rows = re.findall(r"(?m)^\| (E-([A-Z]{2})-(\d+)) \|.*\| ([^|]+) \|$", (ROOT / "docs/errata.md").read_text())
    assert [row[0] for row in rows] == [f"E-{paper}-{k}" for paper, n in COUNT.items() for k in range(1, n + 1)]
    files = [path for path in (ROOT / "tests/theory").glob("test_errata_*.py") if path != Path(__file__)]
    tests = set(re.findall(r"(?m)^def (test_\w+)", "".join(path.read_text() for path in files)))
    named = {row[3].strip("`") for row in rows if row[3] != "reading"}
    assert named == tests
    for _, paper, k, confirmed in rows:
        assert confirmed == "reading" or confirmed.startswith(f"`test_{paper.lower()}_{k}_")
