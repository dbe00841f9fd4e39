"""Write docs/claims.md: everything that the five papers define, claim, plot or tabulate, and where it is here.

    python docs/make_claims.py

docs/claims.json has for every id its title, what implements it besides theorems and checks (`where`, names below
`widemargin`), its tests ("file::test", below tests/), and, where it is absent, the `reason`. Theorems and checks register
themselves under their ids (`theory.THEOREMS`, `theory.CHECKS`).
"""

from __future__ import annotations

import json
from pathlib import Path

from widemargin.theory import CHECKS, THEOREMS

HERE = Path(__file__).parent
DATA = json.loads((HERE / "claims.json").read_text())
PAPERS, CLAIMS = DATA["papers"], DATA["claims"]


def implemented(id: str) -> list[str]:
    """Names below `widemargin` that implement an id: those of the file, the theorems, the checks."""
    theorems = [f"theory.{one.theme}.{one.name}" for one in THEOREMS.values() if id in one.claims]
    checks = [f"theory.check ({one.name})" for one in CHECKS.values() if id in one.claims]
    return [*CLAIMS[id].get("where", []), *theorems, *checks]


def page() -> str:
    lines = [
        "# What the papers claim, and where it is",
        "",
        "Written by docs/make_claims.py from docs/claims.json and the code; a test compares. The ids are our own numbering",
        "of what the five papers define, claim, plot or tabulate ([notation.md](notation.md)). `theory.check (name)` is the",
        "check of that name along a run.",
    ]
    for paper, about in PAPERS.items():
        lines += ["", f"## {paper}: {about['title']}", "", "| id | what | where | tests |", "|---|---|---|---|"]
        for k in range(1, about["claims"] + 1):
            id = f"{paper}-{k}"
            claim = CLAIMS[id]
            where = ", ".join(f"`{name}`" for name in implemented(id))
            where = "; ".join(part for part in (where, claim.get("reason")) if part)
            tests = "<br>".join(f"`{name}`" for name in claim.get("tests", []))
            lines.append(f"| {id} | {claim['title']} | {where} | {tests} |")
    lines += ["", "## WM: bounds of our own", "", "| id | what | where |", "|---|---|---|"]
    ours = [one for one in THEOREMS.values() if one.paper == "WM"]
    lines += [f"| {one.id} | {one.says} | `theory.{one.theme}.{one.name}` |" for one in ours]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (HERE / "claims.md").write_text(page())
