"""The page: what a path holds, the sections in order, and one HTML file with everything in it.

Nothing is fetched: plotly.js, styles and pictures are in the file, and a content security policy forbids the rest.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import widemargin
from widemargin import notebooks
from widemargin.disk import read_json
from widemargin.errors import as_path, brief, show
from widemargin.saved import misfit
from widemargin.spaces import as_truth
from widemargin.types import Certificate, Dataset, InputError, Trajectory, write_atomically

from . import certificates, monitors, optima, reproductions, runs, sweeps
from .checking import foreign
from .section import Section, escape

MOST = 200  # things in a folder that are reported
FILES = {  # what a folder is, by a file in it
    "config.json": "run",
    "results.sqlite": "sweep",
    "monitor.json": "monitor",
    "records.parquet": "monitor",
    "verdict.json": "reproduction",
}


class Given(NamedTuple):
    kind: str
    what: Any  # a path; a certificate as it is read from a file; (trajectory, data, certificate or None)
    inside: bool = False  # of a folder that was given: it was not asked for by name


@dataclass(frozen=True)
class Page:
    """A page with a `title` and its `sections`, made by `build` and written by `write`; `to_dict` says what it contains.

    >>> import widemargin as wm
    >>> page = wm.report.build(wm.margins.linear(wm.data.dyadic(3)), title="One margin")
    >>> page.title, [section.kind for section in page.sections]
    ('One margin', ['certificates'])
    """

    title: str
    sections: tuple[Section, ...]

    def __str__(self) -> str:
        count = len(self.sections)
        return f"{self.title}, {count} section{'s' * (count != 1)}"

    __repr__ = brief

    def _repr_html_(self) -> str:
        """What notebooks show: what is on the page, and how to write it. The page itself has scripts and wants a file."""
        facts = {f"section {k}": f"{one.title} ({one.kind})" for k, one in enumerate(self.sections[:20], 1)}
        return notebooks.card(self.title, "", facts, 'write it: widemargin.report.write(page, "page.html")')

    def to_dict(self) -> dict[str, Any]:
        """What the page contains."""
        return {
            "title": self.title,
            "sections": [
                {"kind": section.kind, "title": section.title, "summary": section.summary, "contents": section.contents}
                for section in self.sections
            ],
        }

    def html(self) -> str:
        """The page as one text, scripts included."""
        from plotly.offline import get_plotlyjs

        style, own, plotly = _text("page.css"), _text("page.js"), get_plotlyjs()
        allowed = " ".join(f"'sha256-{_hash(script)}'" for script in (plotly, own))
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
            + "\n".join(section.render() for section in self.sections)
            + "\n</main>\n<footer>This page holds everything it shows; nothing is loaded from elsewhere.</footer>\n"
            f"<script>{plotly}</script>\n<script>{own}</script>\n</body>\n</html>\n"
        )


@np.errstate(all="ignore")  # numbers in files may be of any size: what overflows is shown as inf, or not drawn
def build(
    things: Iterable[Any] | str | Path | Certificate,
    *,
    title: str | None = None,
    bounds: bool = False,
    checks: bool = False,
    trial: int = 0,
    time_limit: float = 60.0,
    columns: Sequence[str] = (),
    progress: Callable[[str], None] | None = None,
) -> Page:
    """The page of certificates, runs, stores, monitors and reproductions.

    `things` is one of these, or a list: a path, a certificate, (trajectory, data) or (trajectory, data, certificate). With
    `bounds` every guarantee is evaluated on data and runs, with `checks` every inequality along runs; both take time.
    `columns` are the results of sweeps that are shown. `trial` is the network of a run whose neurons are shown.

    `title` stands at the top, "Margins" where none is given, or "Optima of training" where there is nothing else; `time_limit`
    (seconds) is for what `bounds` needs. Margins keep the convention of their certificate.

    >>> import widemargin as wm
    >>> data = wm.data.dyadic(3)
    >>> page = wm.report.build([wm.margins.linear(data), wm.margins.f2(data)])
    >>> len(page.sections), "M11" in page.html()
    (1, True)
    """
    if not isinstance(trial, Integral) or trial < 0:
        raise InputError(f"trial must be the number of a network, 0 or more, not {show(trial)}")
    bounds, checks = as_truth("bounds", bounds), as_truth("checks", checks)
    if not (title is None or isinstance(title, str)):
        raise InputError(f"title must be a text, not {show(title)}")
    if not (progress is None or callable(progress)):
        raise InputError(f"progress must be a function of a text, or None, not {show(progress)}")
    if (
        isinstance(columns, str)
        or not isinstance(columns, list | tuple)
        or not all(isinstance(c, str) for c in columns)
    ):
        raise InputError(f"columns must be a list of names of results, not {show(columns)}")
    say = progress or (lambda text: None)
    given = [entry for thing in _listed(things) for entry in _given(thing)]
    if not given:
        raise InputError("there is nothing to report; give a certificate, a run, a store of a sweep, or such")
    if columns:
        sweeps.check_columns([entry.what for entry in given if entry.kind == "sweep"], columns)
    sections: list[Section] = []
    refused: list[InputError] = []

    def new(kind: str, name: str) -> Section:
        sections.append(Section(kind, name, len(sections) + 1))
        return sections[-1]

    @contextlib.contextmanager
    def tried(entry: Given) -> Iterator[None]:
        """What was only found in a folder does not stop the page: its section then says why it is not shown."""
        before = len(sections)
        try:
            yield
        except InputError as error:
            if not entry.inside:
                path = entry.what if isinstance(entry.what, Path) else None
                raise error if path is None or str(path) in str(error) else InputError(f"{path}: {error}") from None
            del sections[before:]
            new(entry.kind, f"{entry.what.name} is not shown: {error}")
            refused.append(error)

    certs: list[Certificate] = []
    covered: set[str] = set()
    for entry in given:
        if entry.kind == "certificate":
            with tried(entry):
                cert = certificates.read(entry.what) if isinstance(entry.what, Path) else entry.what
                wrong = misfit(cert.payload()) if cert is entry.what and cert.kind in optima.KINDS else ""
                if wrong:  # what comes from a file has been looked at
                    raise InputError(f"this certificate of kind {cert.kind} is damaged ({wrong}); compute it again")
                certs.append(cert)
        elif bounds:
            with contextlib.suppress(InputError):  # what is wrong with a run is said where it is shown
                covered |= set(runs.covered(entry.kind, entry.what))
    room = reproductions.PICTURES_BYTES
    for some in certificates.grouped(certs):
        say(some[0].data_name)
        own = bounds and some[0].data_sha256 not in covered
        place = optima if all(cert.kind in optima.KINDS for cert in some) else certificates
        place.show(new("certificates", certificates.title(some)), some, own, time_limit)
        covered |= {some[0].data_sha256} - {""}
    for entry in given:
        if entry.kind == "certificate":
            continue
        what, path = entry.what, entry.what if isinstance(entry.what, Path) else Path()
        say(str(path) if path is what else entry.kind)
        with tried(entry):
            if entry.kind == "trajectory":
                section = new("run", runs.title(what[0], ""))
                runs.show(section, *what, "", bounds, checks, trial, time_limit)
            elif entry.kind == "run":
                run = runs.read(path)
                section = new("run", runs.title(run[0], path.name))
                runs.show(section, *run, str(path), bounds, checks, trial, time_limit)
            elif entry.kind == "sweep":
                sweeps.show(new("sweep", f"Sweep: {path.resolve().name}"), path, columns)
            elif entry.kind == "monitor":
                monitors.show(new("monitor", f"Monitor: {path.resolve().name}"), path)
            else:
                room = reproductions.show(new("reproduction", reproductions.title(path)), path, room)
    if len(refused) == len(sections):
        raise refused[0]
    only_optima = len(certs) == len(given) and all(cert.kind in optima.KINDS for cert in certs)
    return Page(title or ("Optima of training" if only_optima else "Margins"), tuple(sections))


def _listed(things: Any) -> list[Any]:
    """One thing is a list of one; a trajectory with its data is one thing too."""
    single = isinstance(things, str | Path) or (
        isinstance(things, tuple) and isinstance((*things, None)[0], Trajectory)
    )
    return list(things) if isinstance(things, Iterable) and getattr(things, "ndim", 1) != 0 and not single else [things]


def _given(thing: Any) -> list[Given]:
    """What one of the things is; InputError where it is nothing that can be reported."""
    if isinstance(thing, str | Path):
        return look(Path(thing))
    if isinstance(thing, Certificate):
        return [Given("certificate", thing)]
    if isinstance(thing, Trajectory):
        raise InputError(
            "a trajectory does not hold its data; give (trajectory, data) or (trajectory, data, certificate)"
        )
    if not isinstance(thing, tuple) or len(thing) not in (2, 3) or not isinstance(thing[0], Trajectory):
        raise InputError(
            f"cannot report {str(thing)[:60]!r}; give a path, a certificate, or (trajectory, data, certificate or None)"
        )
    traj, data, cert = (*thing, None)[:3]
    sets = [data] if isinstance(data, Dataset) else list(data) if isinstance(data, list | tuple) else []
    if not sets or not all(isinstance(data, Dataset) for data in sets):
        raise InputError(f"the data of a trajectory must be a Dataset, or a list of them, not {str(data)[:60]!r}")
    if cert is not None and not isinstance(cert, Certificate):
        raise InputError(f"the certificate of a trajectory must be a Certificate or None, not {str(cert)[:60]!r}")
    wrong = runs.foreign_data(traj.config, sets) or (foreign(traj.config, cert) if cert else "")
    if wrong:
        raise InputError(f"{wrong}; give what belongs to the run on {traj.config['data']['names'][0]}")
    return [Given("trajectory", (traj, sets, cert))]


def write(page: Page, path: str | Path) -> None:
    """Write the page, whole or not at all.

    `path` is an HTML file that needs nothing else.

    >>> from pathlib import Path
    >>> import widemargin as wm
    >>> wm.report.write(wm.report.build(wm.margins.linear(wm.data.dyadic(3))), "page.html")
    >>> Path("page.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    True
    """
    if not isinstance(page, Page):
        raise InputError(f"page must be what report.build returns, not {show(page)}")
    if Path(as_path(path)).is_dir():
        raise InputError(f"cannot write the page to {path}: it is a folder; give a file name")
    write_atomically(Path(path), page.html().encode())


def look(path: Path) -> list[Given]:
    """What lies there: one thing, or each in a folder of them."""
    try:
        if path.is_file():
            kind = FILES.get(path.name, "")
            return [Given(kind, path.parent) if kind else Given("certificate", path)]
        if not path.is_dir():
            raise InputError(f"there is no file or folder {path}")
        if kinds := _kinds(path):
            return [Given(kind, path) for kind in kinds]
        things: list[Given] = []
        for file in sorted(path.iterdir()):
            if file.is_dir():
                things += [Given(kind, file, inside=True) for kind in _kinds(file)]
            elif file.is_file() and file.name.endswith((".json", ".json.gz")) and certificates.is_certificate(file):
                things.append(Given("certificate", file, inside=True))
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read {str(path)[:200]!r}: {why}; check the path") from None
    if not things:
        raise InputError(
            f"{path} holds nothing to report: no run of train --out, store of sweep, records of a monitor, reproduction or "
            "certificate"
        )
    if len(things) > MOST:
        raise InputError(f"{path} holds {len(things)} things to report; give at most {MOST} at a time")
    return things


def _kinds(folder: Path) -> list[str]:
    """What a folder is, by the files in it."""
    kinds = list(dict.fromkeys(kind for name, kind in FILES.items() if (folder / name).is_file()))
    if len(kinds) > 1 and kinds[0] == "run" and _is_foreign(folder / "config.json"):
        del kinds[0]
    return kinds


def _is_foreign(path: Path) -> bool:
    """Whether a config.json is another's: models of Hugging Face are saved with one, where a monitor may write as well."""
    try:
        config = read_json(path)
    except (OSError, ValueError):  # what is wrong with it is said where it is shown
        return False
    return not (isinstance(config, dict) and str(config.get("format")).startswith("widemargin-run"))


def _text(name: str) -> str:
    return resources.files("widemargin.report").joinpath(name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
