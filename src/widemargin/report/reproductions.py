"""A reproduction of a paper's figure or table: its verdicts and its pictures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from widemargin.disk import read_file, read_json
from widemargin.forms import Misfit, listed, table, text
from widemargin.types import InputError

from .section import Section, badge, number, words

PICTURE_BYTES = 3_000_000  # bytes of one picture in the page
PICTURES_BYTES = 60_000_000  # and of all of them: a page is held in memory several times while it is written
VERDICTS = listed(table({"claim": text(10**5)}, {"paper": text(10**5), "reason": text(10**5)}), most=10**4)
WORDS = {True: "holds", False: "does not hold"}  # else the word itself: undecided or not informative


def title(folder: Path) -> str:
    return f"Reproduction: {_settings(folder).get('id') or folder.resolve().name}"


def show(section: Section, folder: Path, room: int = PICTURES_BYTES) -> int:
    """Fill the section; returns what is left of the `room` for pictures, in bytes."""
    settings = _settings(folder)
    verdicts = _json(folder / "verdict.json")
    try:
        VERDICTS(verdicts, "verdicts")
    except Misfit as error:
        raise InputError(f"{folder / 'verdict.json'} is damaged ({error}); run the reproduction again") from None
    facts = ("scale", "device", "seed", "seconds", "version")
    section.facts({key: settings.get(key) for key in facts})
    section.summary = _summary(verdicts)
    rows = []
    for verdict in verdicts:
        holds = verdict.get("holds") if isinstance(verdict.get("holds"), bool) else None
        shown = badge(holds, str(verdict.get("holds")) if holds is None else WORDS[holds])
        rows.append([shown, verdict["claim"], _measured(verdict), verdict.get("paper", ""), _reason(verdict)])
    section.table(
        "Verdicts",
        ["", "claim", "measured", "paper", "reason"],
        rows,
        "What was measured, and whether it agrees with the paper.",
    )
    full = 0
    for path in sorted(folder.glob("*.png")):
        size = path.stat().st_size if path.is_file() else 0
        if size > PICTURE_BYTES:
            section.paragraph(f"{path.name} is too large for this page; it lies in {folder}.", "quiet")
            continue
        if size > room:
            full += 1
            continue
        room -= size
        picture = read_file(path, PICTURE_BYTES)
        if picture[:8] != b"\x89PNG\r\n\x1a\n":
            raise InputError(f"{path} is no PNG picture; run the reproduction again")
        section.image(path.stem if path.stem != "figure" else f"Figure of {folder.resolve().name}", picture)
    if full:
        section.paragraph(
            f"{full} picture{'s' * (full > 1)} more in {folder}; this page has no room for more.", "quiet"
        )
    known = ["widemargin", "reproduce", str(settings.get("id") or folder.resolve().name)]
    for name in ("scale", "device", "seed"):
        known += [f"--{name}", str(settings[name])] if name in settings else []
    section.settings(words(*known, "--out", str(folder.parent)), settings)
    return room


def _summary(verdicts: list[dict[str, Any]]) -> str:
    """How many claims hold."""
    held, failed = (sum(one.get("holds") is word for one in verdicts) for word in (True, False))
    open_ = len(verdicts) - held - failed
    said = f"{held} of {len(verdicts)} claims hold" + f", {failed} do{'es' * (failed == 1)} not" * bool(failed)
    return said + f", {open_} {'is' if open_ == 1 else 'are'} not decided" * bool(open_) + "."


def _reason(verdict: Mapping[str, Any]) -> str:
    """Why it does not hold or is not decided, what was chosen after a look, and what another seed says."""
    said = [str(verdict["reason"])] if verdict.get("reason") else []
    if verdict.get("chosen_after"):
        said.append(f"chosen after: {verdict['chosen_after']}")
    again = verdict.get("again")
    if isinstance(again, Mapping):
        said.append(f"at seed {again.get('seed')}: {_measured(again)}, {again.get('holds')}")
    return "; ".join(said) or "-"


def _measured(verdict: Mapping[str, Any]) -> str:
    value, more = verdict.get("measured"), verdict.get("uncertainty")
    shown = number(value, 4) if isinstance(value, int | float) else str(value)
    if more is None:
        return shown
    return f"{shown} +- {number(more, 2)}" if isinstance(more, int | float) else f"{shown} ({more})"


def _settings(folder: Path) -> dict[str, Any]:
    if not (folder / "settings.json").is_file():
        return {}
    settings = _json(folder / "settings.json")
    return settings if isinstance(settings, dict) else {}


def _json(path: Path) -> Any:
    try:
        return read_json(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}); run the reproduction again") from None
