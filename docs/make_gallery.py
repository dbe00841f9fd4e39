"""Write docs/gallery.md: every example and every reproduction, its picture first.

    python docs/make_gallery.py

An example's picture is docs/NAME.png, its words are the first paragraph of its docstring; a reproduction's are those of
`widemargin reproduce list`.
"""

from __future__ import annotations

import ast
from pathlib import Path

from widemargin.papers import REPRODUCTIONS

HERE = Path(__file__).parent
PAGE, EXAMPLES = HERE / "gallery.md", HERE.parent / "examples"
PAPERS = ("CB", "LR", "MT", "UH", "BN")
TOP = """# Gallery

<!-- docs/make_gallery.py writes this page -->

Each example is a file in `examples/` that runs as it is; each reproduction is one command.
[reproductions.md](reproductions.md) has what came out at the papers' scale, claim by claim.

## Examples
"""


def words(example: Path) -> str:
    """The first paragraph of its docstring."""
    said = ast.get_docstring(ast.parse(example.read_text(encoding="utf-8"))) or ""
    return " ".join(said.split("\n\n")[0].split())


def examples() -> list[str]:
    with_picture, without = [], []
    for example in sorted(EXAMPLES.glob("*.py")):
        if (HERE / f"{example.stem}.png").exists():
            with_picture.append((f"{example.stem}.png", words(example), f"`examples/{example.name}`"))
        else:
            without.append(f"| `examples/{example.name}` | {words(example)} |")
    return [wall(with_picture), "| without a picture | what it shows |\n|---|---|\n" + "\n".join(without) + "\n"]


def reproductions() -> list[str]:
    parts = []
    for paper in PAPERS:
        shown = []
        for one in REPRODUCTIONS.values():
            folder = HERE / "reproductions" / one.id
            pictures = [folder / "figure.png", folder / f"{one.id}.png"]
            picture = next((file for file in pictures if file.exists()), None)
            if one.paper == paper and picture is not None:
                shown.append(
                    (picture.relative_to(HERE).as_posix(), f"{one.shows}.", f"`widemargin reproduce {one.id}`")
                )
        parts += [f"## {paper}\n", wall(shown)]
    return parts


def wall(pictures: list[tuple[str, str, str]]) -> str:
    """Pictures in rows of two, each a link to itself at full size, with its words and how to make it."""
    cells = []
    for file, said, made in pictures:
        name = Path(file).parent.name or Path(file).stem
        cells.append(f"[![{name}]({file})]({file})<br>{said} {made}".replace("|", "\\|"))
    cells += [""] * (len(cells) % 2)
    rows = [f"| {left} | {right} |" for left, right in zip(cells[::2], cells[1::2])]
    return "\n".join(["| | |", "|---|---|", *rows, ""])


def page() -> str:
    return "\n".join([TOP, *examples(), *reproductions()])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
