"""Rewrite what docs/reproductions.md says about docs/reproductions/*/: the counts of verdicts, and the part at the papers' scale.

    python docs/make_reproductions.py

Run it after the folders of new runs (verdict.json, settings.json, pictures) were copied there.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from widemargin.papers import REPRODUCTIONS
from widemargin.papers.verdicts import NOT_INFORMATIVE, UNDECIDED, count, measured, word

HERE = Path(__file__).parent
PAGE, FOLDERS = HERE / "reproductions.md", HERE / "reproductions"
BEGIN, END = "<!-- counts: docs/make_reproductions.py writes this -->", "<!-- end of counts -->"
PART = "## At the papers' scale"
NAMES = ("true", "false", "undecided", "not informative")
INTERVAL = re.compile(r"(?:^|95 percent in )(\[[^]]*\])")


def verdicts(folder: Path) -> list[dict[str, Any]]:
    """Those of a folder. Runs of version 0.1 say inconclusive for undecided, and have no chosen_after."""
    found = json.loads((folder / "verdict.json").read_text(encoding="utf-8"))
    return [one | {"holds": UNDECIDED if one["holds"] == "inconclusive" else one["holds"]} for one in found]


def folders(root: Path = FOLDERS) -> list[Path]:
    """Those that have verdicts, in the order of `widemargin reproduce list`."""
    return [root / id for id in REPRODUCTIONS if (root / id / "verdict.json").is_file()]


def counts(root: Path = FOLDERS) -> str:
    """Verdicts of every id, as a table."""
    rows = [
        (f"[{one.name}](#{one.name})", count(verdicts(one)), REPRODUCTIONS[one.name].shows) for one in folders(root)
    ]
    total = {name: sum(found[name] for _, found, _ in rows) for name in NAMES}
    lines = [f"| id | what | {' / '.join(NAMES)} |", "|---|---|---|"]
    for id, found, shows in [*rows, ("all", total, "")]:
        lines.append(f"| {id} | {quoted(shows)} | {' / '.join(str(found[name]) for name in NAMES)} |")
    return "\n".join(lines)


def section(folder: Path) -> str:
    """One reproduction: its pictures, and to unfold its verdicts that could have been false."""
    one = REPRODUCTIONS[folder.name]
    settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    run = f"{settings['device']}, {settings['seconds']:.0f} s"
    pictures = [f"![{one.shows}](reproductions/{one.id}/{path.name})" for path in sorted(folder.glob("*.png"))]
    files = ", ".join(f"[{name}](reproductions/{one.id}/{name})" for name in ("verdict.json", "settings.json"))
    fold = [
        f'<details markdown="1"><summary>{one.shows}</summary>',
        claims(verdicts(folder)),
        f"{files} ({run}).",
        "</details>",
    ]
    return "\n\n".join([f"### {one.id}", *pictures, *fold])


def claims(found: list[dict[str, Any]]) -> str:
    """A table of those that could have been false; verdict.json has the others, and all that the table leaves out."""
    lines = ["| claim | measured | holds |", "|---|---|---|"]
    for one in found:
        if one["holds"] != NOT_INFORMATIVE:
            again = one.get("again")
            holds = word(one["holds"]) + (f" (seed {again['seed']}: {word(again['holds'])})" if again else "")
            cells = (one["claim"], short(one), holds + (f": {one['reason']}" if one["reason"] else ""))
            lines.append(f"| {' | '.join(quoted(cell) for cell in cells)} |")
    return "\n".join(lines)


def short(verdict: dict[str, Any]) -> str:
    """What was measured, with an interval or an error but without further words."""
    more = verdict["uncertainty"]
    if isinstance(more, str):
        found = INTERVAL.search(more)
        return measured(verdict | {"uncertainty": None}) + (f" in {found[1]}" if found else "")
    return measured(verdict)


def quoted(value: str) -> str:
    """A bar inside a cell would end it."""
    return value.replace("|", "\\|")


def rewritten(page: str, root: Path = FOLDERS) -> str:
    """The page with its counts and its second part made anew; everything else is kept."""
    start, end, part = page.index(BEGIN) + len(BEGIN), page.index(END), page.index(f"{PART}\n")
    parts = "\n\n".join(section(folder) for folder in folders(root))
    return f"{page[:start]}\n{counts(root)}\n{page[end:part]}{PART}\n\n{parts}\n"


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
