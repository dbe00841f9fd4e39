"""Rewrite what docs/reproductions.md says about docs/reproductions/*/: the counts of verdicts, and the part at the papers' scale.

    python docs/make_reproductions.py

Run it after the folders of new runs (verdict.json, settings.json, pictures) were copied there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from widemargin.papers import REPRODUCTIONS
from widemargin.papers.verdicts import UNDECIDED, count, table

HERE = Path(__file__).parent
PAGE, FOLDERS = HERE / "reproductions.md", HERE / "reproductions"
BEGIN, END = "<!-- counts: docs/make_reproductions.py writes this -->", "<!-- end of counts -->"
PART = "## At the papers' scale"
NAMES = ("true", "false", "undecided", "not informative")
# True, false and inconclusive verdicts at the papers' scale, seed 0, before it was asked of each whether it could be false.
BEFORE = {
    "bn-1": (6, 2, 0), "bn-dyadic": (5, 0, 0), "bn-movement": (6, 0, 2),
    "cb-1": (4, 1, 0), "cb-2a": (3, 1, 0), "cb-2b": (2, 0, 1), "cb-2c": (3, 0, 1), "cb-2d": (5, 0, 1),
    "cb-3": (5, 0, 0), "cb-4": (3, 0, 0), "cb-rates": (5, 0, 0),
    "lr-1": (9, 0, 0), "lr-2": (12, 0, 0), "lr-table1": (16, 1, 1),
    "mt-1": (3, 0, 0), "mt-2": (6, 1, 0), "mt-3": (9, 0, 1), "mt-gap": (6, 0, 0), "mt-regression-gap": (5, 0, 0),
    "mt-table1": (0, 0, 3),
    "uh-constants": (3, 3, 2), "uh-mirror": (7, 0, 0), "uh-monotone": (10, 0, 0), "uh-parity": (10, 4, 0),
}  # fmt: skip


def verdicts(folder: Path) -> list[dict[str, Any]]:
    """Those of a folder. Runs of version 0.1 say inconclusive for undecided, and have no chosen_after."""
    found = json.loads((folder / "verdict.json").read_text(encoding="utf-8"))
    return [one | {"holds": UNDECIDED if one["holds"] == "inconclusive" else one["holds"]} for one in found]


def folders(root: Path = FOLDERS) -> list[Path]:
    """Those that have verdicts, in the order of `widemargin reproduce list`."""
    return [root / id for id in REPRODUCTIONS if (root / id / "verdict.json").is_file()]


def counts(root: Path = FOLDERS) -> str:
    """Verdicts of every id before and now, as a table."""
    rows = []
    for folder in folders(root):
        now = count(verdicts(folder))
        rows.append((folder.name, [*BEFORE.get(folder.name, (0, 0, 0)), 0], [now[name] for name in NAMES]))
    total = [[sum(column) for column in zip(*side)] for side in zip(*((before, now) for _, before, now in rows))]
    lines = [
        "| id | before: true / false / undecided | now: true / false / undecided / not informative |",
        "|---|---|---|",
    ]
    for name, before, now in [*rows, ("all", *total)]:
        lines.append(f"| {name} | {' / '.join(map(str, before[:3]))} | {' / '.join(map(str, now))} |")
    return "\n".join(lines)


def section(folder: Path) -> str:
    """One reproduction: its pictures, and its verdicts to unfold."""
    one = REPRODUCTIONS[folder.name]
    settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    run = f"{settings['scale'].capitalize()} scale, seed {settings['seed']}, {settings['device']}, {settings['seconds']:g} s."
    cells = [{key: quoted(value) for key, value in verdict.items()} for verdict in verdicts(folder)]
    pictures = [f"![{one.shows}](reproductions/{one.id}/{path.name})" for path in sorted(folder.glob("*.png"))]
    fold = [
        '<details markdown="1"><summary>Verdicts, claim by claim</summary>',
        table(cells).rstrip("\n"),
        "</details>",
    ]
    return "\n\n".join([f"### {one.id}: {one.shows}", run, *pictures, *fold])


def quoted(value: Any) -> Any:
    """A bar inside a cell would end it."""
    if isinstance(value, dict):
        return {key: quoted(item) for key, item in value.items()}
    return value.replace("|", "\\|") if isinstance(value, str) else value


def rewritten(page: str, root: Path = FOLDERS) -> str:
    """The page with its counts and its second part made anew; everything else is kept."""
    start, end, part = page.index(BEGIN) + len(BEGIN), page.index(END), page.index(f"{PART}\n")
    parts = "\n\n".join(section(folder) for folder in folders(root))
    return f"{page[:start]}\n{counts(root)}\n{page[end:part]}{PART}\n\n{parts}\n"


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
