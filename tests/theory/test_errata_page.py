"""docs/errata.md has every erratum once, in one of four sections, with a computation that exists."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/errata.md").read_text(encoding="utf-8")
FIRST = {"UH": 20, "LR": 17, "MT": 12, "BN": 10, "CB": 11}  # E-UH-1, ...: the errata of the specification
LATER = {"UH": 4, "LR": 2, "MT": 4, "BN": 4, "CB": 2}  # F-UH-1, ...
SECTIONS = ("Wrong statements", "Gaps in proofs", "Sharpenings", "Misprints")
ROW = re.compile(r"(?m)^\| ([EF]-([A-Z]{2})-(\d+)) \|(.*)\|$")
FILES = sorted(path for path in (ROOT / "tests/theory").glob("test_errata_*.py") if path != Path(__file__))


def functions(path: Path) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name.startswith("test_")}


HERE = {name: one for path in FILES for name, one in functions(path).items()}
PARTS = re.split(r"(?m)^## (.*)$", PAGE)
ROWS = {
    section: [(*row[:3], row[3].split("|")) for row in ROW.findall(text)]
    for section, text in zip(PARTS[1::2], PARTS[2::2])
}


def named(cells: list[str]) -> list[str]:
    return re.findall(r"`(?:(?:\w+\.py)::)?test_\w+`", cells[-1])


def test_every_erratum_is_in_one_section_once():
    assert tuple(ROWS) == SECTIONS
    found = [row[0] for rows in ROWS.values() for row in rows]
    wanted = [
        f"{kind}-{paper}-{k}" for kind, n in (("E", FIRST), ("F", LATER)) for paper in n for k in range(1, n[paper] + 1)
    ]
    assert sorted(found) == sorted(wanted)
    for id, _, _, cells in (row for rows in ROWS.values() for row in rows):
        where, _, true, computation = cells
        assert where.strip() and true.strip() and computation.strip(), id


def test_the_counts_of_the_page():
    for section, rows in ROWS.items():
        count = Counter(row[1] for row in rows)
        line = [*(count[paper] for paper in FIRST), len(rows)]
        assert f"| {section.lower()} | {' | '.join(map(str, line))} |" in PAGE


def test_every_computation_exists():
    """Each row names tests, of the two files here or as file::test, or says "reading: why"; every test here is named once."""
    uses: Counter[str] = Counter()
    for rows in ROWS.values():
        for id, paper, k, cells in rows:
            tests = [name.strip("`") for name in named(cells)]
            if not tests:
                assert re.fullmatch(r"reading: \S.*", cells[-1].strip()), id
            for name in tests:
                if "::" in name:
                    file, test = name.split("::")
                    (path,) = (ROOT / "tests").rglob(file)
                    assert test in functions(path), name
                else:
                    kind = "" if id[0] == "E" else "f"
                    assert name.startswith(f"test_{paper.lower()}_{kind}{k}_") and name in HERE, (id, name)
                    uses[name] += 1
    assert uses == Counter(dict.fromkeys(HERE, 1))


def test_wrong_statements_are_refuted_as_printed():
    """Their tests call `assert_refuted`, which asserts the hypotheses and the negation of the conclusion; no others do."""

    def refutes(test: ast.FunctionDef) -> bool:
        calls = (one.func for one in ast.walk(test) if isinstance(one, ast.Call))
        return any(isinstance(called, ast.Name) and called.id == "assert_refuted" for called in calls)

    for section, rows in ROWS.items():
        for id, _, _, cells in rows:
            tests = [HERE[name.strip("`")] for name in named(cells) if "::" not in name]
            assert any(refutes(one) for one in tests) == (section == "Wrong statements"), id
