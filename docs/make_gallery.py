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
What came out at the papers' scale, claim by claim, is in [reproductions.md](reproductions.md).

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
            with_picture.append(
                f"![{words(example)}]({example.stem}.png)\n\n{words(example)} `examples/{example.name}`\n"
            )
        else:
            without.append(f"| `examples/{example.name}` | {words(example)} |")
    return [*with_picture, "| without a picture | what it shows |\n|---|---|\n" + "\n".join(without) + "\n"]


def reproductions() -> list[str]:
    parts = []
    for paper in PAPERS:
        parts.append(f"## {paper}\n")
        for one in REPRODUCTIONS.values():
            folder = HERE / "reproductions" / one.id
            pictures = [folder / "figure.png", folder / f"{one.id}.png"]
            picture = next((file for file in pictures if file.exists()), None)
            if one.paper == paper and picture is not None:
                shown = picture.relative_to(HERE).as_posix()
                parts.append(f"![{one.shows}]({shown})\n\n{one.shows}. `widemargin reproduce {one.id}`\n")
    return parts


def page() -> str:
    return "\n".join([TOP, *examples(), *reproductions()])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
