"""The page: what a path holds, the sections in order, and one HTML file with everything in it.

Nothing is fetched: plotly.js, styles and pictures are in the file, and a content security policy forbids the rest.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import widemargin
from widemargin.types import Certificate, Dataset, InputError, Trajectory, write_atomically

from . import certificates, monitors, reproductions, runs, sweeps
from .section import Section, escape

DEEP = 200  # things in a folder that are reported


@dataclass(frozen=True)
class Page:
    title: str
    sections: tuple[Section, ...]

    def to_dict(self) -> dict[str, Any]:
        """What the page contains."""
        return {
            "title": self.title,
            "sections": [{"kind": one.kind, "title": one.title, "contents": one.contents} for one in self.sections],
        }

    def html(self) -> str:
        from plotly.offline import get_plotlyjs

        style, own, plotly = _text("page.css"), _text("page.js"), get_plotlyjs()
        allowed = " ".join(f"'sha256-{_hash(one)}'" for one in (plotly, own))
        policy = (
            f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; font-src data:; "
            "base-uri 'none'; form-action 'none'"
        )
        entries = "".join(f'<li><a href="#section-{s.number}">{escape(s.title)}</a></li>' for s in self.sections)
        written = time.strftime("%Y-%m-%d %H:%M")
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f'<title>{escape(self.title)}</title>\n<link rel="icon" href="data:,">\n<style>\n{style}</style>\n</head>\n<body>\n'
            f"<header><h1>{escape(self.title)}</h1>"
            f"<p>Written by widemargin {escape(widemargin.__version__)} on {written}. Plots can be zoomed; point at a curve to "
            "read its numbers.</p><noscript><p>The plots need JavaScript; tables and words do not.</p></noscript></header>\n"
            f'<nav aria-labelledby="contents"><h2 id="contents">Contents</h2><ol>{entries}</ol></nav>\n<main>\n'
            + "\n".join(one.render() for one in self.sections)
            + "\n</main>\n<footer>This page holds everything it shows; nothing is loaded from elsewhere.</footer>\n"
            f"<script>{plotly}</script>\n<script>{own}</script>\n</body>\n</html>\n"
        )


def build(
    things: Sequence[Any],
    *,
    title: str = "Margins",
    bounds: bool = False,
    checks: bool = False,
    trial: int = 0,
    time_limit: float = 60.0,
    columns: Sequence[str] = (),
    progress: Callable[[str], None] | None = None,
) -> Page:
    """The page of certificates, runs, stores, monitors and reproductions.

    `things` are paths, certificates, or triples (trajectory, data, certificate or None). With `bounds` every guarantee is
    evaluated on data and runs, with `checks` every inequality along runs; both take time. `columns` are the results of
    sweeps that are shown. `trial` is the network of a run whose neurons are shown.
    """
    say = progress or (lambda text: None)
    given: list[tuple[str, Any]] = []
    for thing in things:
        if isinstance(thing, Certificate):
            given.append(("certificate", certificates.from_memory(thing)))
        elif isinstance(thing, tuple):
            given.append(("trajectory", thing))
        else:
            given += [(kind, path) for kind, path in look(Path(thing))]
    if not given:
        raise InputError("there is nothing to report; give a certificate, a run, a store of a sweep, or such")
    sections: list[Section] = []

    def new(kind: str, name: str) -> Section:
        sections.append(Section(kind, name, len(sections) + 1))
        return sections[-1]

    certs = [certificates.read(one) if isinstance(one, Path) else one for kind, one in given if kind == "certificate"]
    covered = {sha for kind, one in given if bounds for sha in runs.covered(kind, one)}
    for some in certificates.grouped(certs):
        say(some[0]["data"]["name"])
        own = bounds and some[0]["data"].get("sha256") not in covered
        certificates.show(new("certificates", certificates.title(some)), some, own, time_limit)
    for kind, one in given:
        if kind == "certificate":
            continue
        say(str(one) if isinstance(one, Path) else kind)
        if kind == "trajectory":
            traj, data, cert = one
            sets = [data] if isinstance(data, Dataset) else list(data)
            held = None if cert is None else certificates.from_memory(cert)
            assert isinstance(traj, Trajectory)
            section = new("run", runs.title(traj, ""))
            runs.show(section, traj, sets, held, "", bounds, checks, trial, time_limit)
        elif kind == "run":
            found = runs.read(one)
            runs.show(new("run", runs.title(found[0], one.name)), *found, str(one), bounds, checks, trial, time_limit)
        elif kind == "sweep":
            sweeps.show(new("sweep", f"Sweep: {one.resolve().name}"), one, columns)
        elif kind == "monitor":
            monitors.show(new("monitor", f"Monitor: {one.resolve().name}"), one)
        else:
            reproductions.show(new("reproduction", reproductions.title(one)), one)
    return Page(title, tuple(sections))


def write(page: Page, path: str | Path) -> None:
    """Write the page, whole or not at all."""
    write_atomically(Path(path), page.html().encode())


def look(path: Path) -> list[tuple[str, Path]]:
    """What lies there: (kind, path) of one thing, or of each in a folder of them."""
    try:
        if path.is_file():
            inside = {"results.sqlite": "sweep", "records.parquet": "monitor", "verdict.json": "reproduction"}
            if path.name in inside:
                return [(inside[path.name], path.parent)]
            return [("certificate", path)]
        if not path.is_dir():
            raise InputError(f"there is no file or folder {path}")
        kind = _kind(path)
        if kind:
            return [(kind, path)]
        found: list[tuple[str, Path]] = []
        for one in sorted(path.iterdir()):
            if one.is_dir() and (kind := _kind(one)):
                found.append((kind, one))
            elif one.is_file() and one.name.endswith((".json", ".json.gz")) and certificates.is_one(one):
                found.append(("certificate", one))
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read {str(path)[:200]!r}: {why}; check the path") from None
    if not found:
        raise InputError(
            f"{path} holds nothing to report: no run of train --out, store of sweep, records of a monitor, reproduction or "
            "certificate"
        )
    if len(found) > DEEP:
        raise InputError(f"{path} holds {len(found)} things to report; give at most {DEEP} at a time")
    return found


def _kind(folder: Path) -> str:
    for name, kind in (
        ("config.json", "run"),
        ("results.sqlite", "sweep"),
        ("monitor.json", "monitor"),
        ("verdict.json", "reproduction"),
    ):
        if (folder / name).is_file():
            return kind
    return ""


def _text(name: str) -> str:
    return resources.files("widemargin.report").joinpath(name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
