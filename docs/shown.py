"""What README.md and docs/ show below their Python blocks and shell commands: run again, compared, and rewritten.

    python docs/shown.py              # runs every page, says what differs, exits with 1 if anything does
    python docs/shown.py --update     # rewrites what differs (`make docs-update`)
    python docs/shown.py optima.md    # these pages only

Numbers are compared to the digits shown: whole numbers are equal, others differ by at most one in their last digit. Seconds are
free: numbers before `s` or `seconds`, and columns of that name. So is what is smaller than 1e-6, if both are: that is rounding.
A comment before a block says where the clock or the machine has a part in its numbers:

    <!-- numbers within 5 % -->       every number, whole ones too
    <!-- any numbers -->              the text alone is compared
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"(?:^<!-- (?P<rule>numbers within [\d.]+ %|any numbers) -->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
HASH = re.compile(r"\b[0-9a-f]{64}\b")
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.]*[a-df-zA-Z_])")
ANY_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?(e[-+]?\d+)?")
SECONDS = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?= s\b| seconds\b)")
FRAME = re.compile(r"[\s─-╿]+")  # spaces and the lines of tables
PROGRESS = re.compile(r"^(f1|train|fit) +[\d.]+ s .*$", re.MULTILINE)
ROUNDING = 1e-6  # numbers below are not compared with each other


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int  # of its first line
    start: int  # where the text stands in the page
    rule: str


@dataclass(frozen=True)
class Shown:
    """What stands in a page, and what is printed now."""

    line: int
    what: str  # the command, or a word for the block
    start: int
    shown: str
    printed: str
    rule: str

    def differs(self) -> str:
        """In words; "" where they agree."""
        return difference(self.shown, self.printed, self.rule)


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            m["language"],
            m["text"],
            text.count("\n", 0, m.start("text")) + 1,
            m.start("text"),
            (m["rule"] or "").strip(),
        )
        for m in BLOCK.finditer(text)
    ]


def words(text: str) -> str:
    """The text without its numbers, spacing and table lines."""
    return FRAME.sub(" ", ANY_NUMBER.sub("#", HASH.sub("#", PROGRESS.sub("", text)))).strip()


def without_seconds(text: str) -> str:
    """Without numbers of seconds, in sentences and in the columns of tables that have this name."""
    lines, columns = [], set[int]()
    for line in SECONDS.sub("#", HASH.sub("#", PROGRESS.sub("", text))).splitlines():
        cells = re.split("[│┃]", line)
        if len(cells) > 2:
            if "┃" in line:
                columns = {k for k, cell in enumerate(cells) if cell.strip() == "seconds"}
            line = "│".join("#" if k in columns else cell for k, cell in enumerate(cells))
        lines.append(line)
    return "\n".join(lines)


def numbers(text: str) -> list[str]:
    return NUMBER.findall(without_seconds(text))


def agree(shown: str, printed: str, share: float | None) -> bool:
    a, b = float(shown), float(printed)
    if shown == printed or (abs(a) < ROUNDING and abs(b) < ROUNDING):
        return True
    if share is not None:
        return abs(a - b) <= share * max(abs(a), abs(b))
    if re.fullmatch(r"[-+]?\d+", shown):
        return a == b and "." not in printed
    mantissa, _, exponent = shown.partition("e")
    last = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    return abs(a - b) <= 1.001 * last


def difference(shown: str, printed: str, rule: str = "") -> str:
    if words(shown) != words(printed):
        return f"shown\n{shown}printed\n{printed}"
    if rule == "any numbers":
        return ""
    share = float(rule.split()[2]) / 100 if rule else None
    pairs = list(zip(numbers(shown), numbers(printed), strict=True))
    wrong = [f"{a} is now {b}" for a, b in pairs if not agree(a, b, share)]
    return "; ".join(wrong)


def run(page: Path) -> Iterator[Shown]:
    """Runs the page in the working folder: first its Python blocks, which share their names, then its shell commands."""
    from widemargin import cli

    found, names = blocks(page), {"__name__": "__main__"}
    for block, below in zip(found, [*found[1:], None]):
        if block.language != "python":
            continue
        if named := re.match(r"# (\w+\.py)\n", block.text):  # a file that later blocks find in the folder
            Path(named[1]).write_text(block.text, encoding="utf-8")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile("\n" * (block.line - 1) + block.text, page.name, "exec"), names)
        if below is not None and below.language == "text":
            yield Shown(below.line, "the Python block above it", below.start, below.text, out.getvalue(), below.rule)
    for block in found:
        if block.language != "console":
            continue
        at = block.start
        for part in re.split(r"^(?=\$ )", block.text, flags=re.MULTILINE):
            if part.startswith("$ "):
                command, _, shown = part.partition("\n")
                arguments = shlex.split(command[2:])
                assert arguments[0] == "widemargin", f"{page.name}, line {block.line}: can only show widemargin"
                out = io.StringIO()
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                    status = cli.main(arguments[1:])
                assert status == 0, f"{page.name}: {command} ends with {status}: {out.getvalue()}"
                yield Shown(block.line, command[2:], at + len(command) + 1, shown, out.getvalue(), block.rule)
            at += len(part)


def rewrite(page: Path, stale: list[Shown]) -> None:
    text = page.read_text(encoding="utf-8")
    for shown in sorted(stale, key=lambda shown: -shown.start):  # from the end, so that places stay where they are
        text = text[: shown.start] + shown.printed + text[shown.start + len(shown.shown) :]
    page.write_text(text, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", help="names of pages; all of them by default")
    parser.add_argument("--update", action="store_true", help="rewrite what differs")
    given = parser.parse_args()
    os.environ.pop("FORCE_COLOR", None)
    os.environ["COLUMNS"] = "150"
    differs = False
    for page in [page for page in PAGES if not given.pages or page.name in given.pages]:
        before = os.getcwd()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                results = list(run(page))
            finally:
                os.chdir(before)
        stale = [shown for shown in results if shown.differs()]
        for shown in stale:
            print(f"{page.name}, line {shown.line}, {shown.what}: {shown.differs()}", flush=True)
        if given.update:
            rewrite(page, stale)
        differs |= bool(stale)
    return int(differs and not given.update)


if __name__ == "__main__":
    sys.exit(main())
