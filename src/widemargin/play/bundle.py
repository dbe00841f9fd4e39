"""The page in one file: style and modules in place, workers made from the text of the page itself."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parent / "page"
IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.js";\n', re.M)
# Modules are found beside the page, the workers of the one file in its own text.
WORKERS = re.compile(r"^const workerAt = .*$", re.M)
INSIDE = """const workerAt = (name) => {
  const code = document.getElementById("modules").textContent;
  return new Worker(URL.createObjectURL(new Blob([code], {type: "text/javascript"})), {name});
};"""
ENTRIES = ("train_worker", "certify_worker", "main")  # what nobody imports


def modules() -> dict[str, str]:
    """The text of every module of the page, each after those that it imports."""
    texts = {file.stem: file.read_text(encoding="utf-8") for file in sorted(PAGE.glob("*.js"))}
    ordered: dict[str, str] = {}

    def visit(name: str) -> None:
        if name not in ordered:
            for _, other in IMPORT.findall(texts[name]):
                visit(other)
            ordered[name] = texts[name]

    for name in ENTRIES:
        visit(name)
    return ordered


def page_text() -> str:
    """The whole page as one HTML text, which needs nothing beside it.

    >>> from widemargin.play import page_text
    >>> text = page_text()
    >>> text.startswith("<!doctype html>"), "import {" in text, len(text.encode()) < 400_000
    (True, False, True)
    """
    ordered = modules()
    wanted: dict[str, set[str]] = {name: set() for name in ordered}
    for text in ordered.values():
        for names, other in IMPORT.findall(text):
            wanted[other] |= {name.strip() for name in names.split(",")}
    parts = ['"use strict";']
    for name, text in ordered.items():
        body = IMPORT.sub(lambda line: f"const {{{line[1]}}} = {line[2]}_module;\n", text)
        body = re.sub(r"^export ", "", WORKERS.sub(lambda _: INSIDE, body), flags=re.M)
        here = 'typeof document === "undefined" ? null : ' if name == "main" else ""  # workers have no page
        parts.append(
            f"const {name}_module = {here}(() => {{\n{body}return {{{', '.join(sorted(wanted[name]))}}};\n}})();"
        )
    code, style = "\n".join(parts), (PAGE / "style.css").read_text(encoding="utf-8")
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    html = html.replace('<link rel="stylesheet" href="style.css">', f"<style>\n{style}</style>")
    return html.replace('<script type="module" src="main.js"></script>', f'<script id="modules">\n{code}\n</script>')
