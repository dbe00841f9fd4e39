"""What mkdocs does beside the pages: the playground as one file, playground.html, which docs/play.md shows."""

from typing import Any

from mkdocs.structure.files import File, Files

from widemargin import play


def on_files(files: Files, config: Any) -> Files:
    files.append(File.generated(config, "playground.html", content=play.page_text()))
    return files
