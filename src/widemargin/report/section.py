"""A section of the page: words, tables and figures as HTML.

A figure is a plotly figure as plain dictionaries. Colours are names, "@plus" or "@plus/0.2" (with opacity), which page.js
replaces by those of the light, dark or print theme. A control (slider or list) holds scenes; a scene says what changes.
"""

from __future__ import annotations

import html
import itertools
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from widemargin.errors import brief
from widemargin.json_values import plain_json

POINTS = 1_000  # of one curve
LINES = 20  # trials drawn one by one
OPEN = 12  # rows of a table that is not folded
COLOURS = ("@plus", "@minus", "@third", "@ink", "@quiet")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
BADGES = {True: ("yes", "&#10003;"), False: ("no", "&#10007;"), None: ("unknown", "?")}

Figure = dict[str, Any]


@dataclass
class Section:
    kind: str  # certificates, run, sweep, monitor, reproduction
    title: str
    number: int = 0
    summary: str = ""  # one sentence: what is found here
    parts: list[str] = field(default_factory=list)
    contents: list[dict[str, str]] = field(
        default_factory=list
    )  # what is shown: {"figure" or "table" or ...: its title}
    _ids: int = 0

    __repr__ = brief

    # ------------------------------------------------------------ words

    def html(self, text: str) -> None:
        self.parts.append(text)

    def paragraph(self, text: str, kind: str = "") -> None:
        self.parts.append(f"<p{f' class={kind}' if kind else ''}>{safe(text)}</p>")

    def heading(self, text: str) -> None:
        self.parts.append(f"<h3>{escape(text)}</h3>")

    def facts(self, pairs: Mapping[str, Any]) -> None:
        """Names and values, one line each."""
        rows = "".join(f"<div><dt>{escape(k)}</dt><dd>{cell(v)}</dd></div>" for k, v in pairs.items() if v is not None)
        self.parts.append(f'<dl class="facts">{rows}</dl>')

    def settings(self, command: str, config: Any, note: str = "") -> None:
        """How to run it again: a command line or a program, and everything that is known about the settings."""
        self.contents.append({"settings": command})
        said = f"<p>{escape(note)}</p>" if note else ""
        code = f"<pre><code>{escape(command)}</code></pre>" if command else ""
        whole = ""
        if config:
            text = json.dumps(config, indent=1, default=str)
            whole = f"<details><summary>All settings</summary><pre><code>{escape(text)}</code></pre></details>"
        self.parts.append(f'<div class="settings"><h3>To run it again</h3>{code}{said}{whole}</div>')

    # ------------------------------------------------------------ tables and figures

    def table(
        self,
        title: str,
        names: Sequence[str],
        rows: Sequence[Sequence[Any]],
        caption: str = "",
        folded: bool | None = None,
    ) -> None:
        """Cells are numbers, texts, or `Html`. `folded` hides it until it is asked for; so is a long one, where it is not given.

        With long texts, cells stand below each other on a narrow screen, each after the name of its column.
        """
        self.contents.append({"table": title})
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
        lines = []
        for row in rows:
            cells = [
                f'<td{_class(entry)} data-name="{escape(name)}">{cell(entry)}</td>' for name, entry in zip(names, row)
            ]
            lines.append(f"<tr>{''.join(cells)}</tr>")
        said = f"<strong>{escape(title)}.</strong> {safe(caption)}".strip()
        # The caption stands outside the part that scrolls on a narrow screen.
        table = (
            f'<figure class="table"><figcaption>{said}</figcaption><div class="scroll" tabindex="0">'
            f"<table{' class=stack' * any('class=long' in line for line in lines)}>"
            f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div></figure>"
        )
        inside = ", ".join(name for name in names if name)
        count = f"{len(rows)} row{'s' * (len(rows) != 1)}"
        fold = f"<details><summary>{escape(title)} ({count}: {escape(inside)})</summary>{table}</details>"
        self.parts.append(fold if folded or (folded is None and len(rows) > OPEN) else table)

    def image(self, title: str, png: bytes, caption: str = "") -> None:
        import base64

        self.contents.append({"image": title})
        data = base64.b64encode(png).decode()
        said = f"<strong>{escape(title)}.</strong> {escape(caption)}".strip()
        picture = f'<img alt="{escape(title)}" src="data:image/png;base64,{data}">'
        self.parts.append(f"<figure>{picture}<figcaption>{said}</figcaption></figure>")

    def gallery(self, title: str, pictures: Sequence[tuple[bytes, str]], caption: str) -> None:
        """Small PNG pictures, each over its own words."""
        import base64

        self.contents.append({"image": title})
        shown = "".join(
            f'<span><img alt="{escape(f"{title}, {text}")}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
            f"<br>{escape(text)}</span>"
            for png, text in pictures
        )
        said = f"<strong>{escape(title)}.</strong> {escape(caption)}".strip()
        self.parts.append(f'<figure><div class="gallery">{shown}</div><figcaption>{said}</figcaption></figure>')

    def open_grid(self) -> None:
        """Figures until `close_grid` stand side by side where there is room."""
        self.parts.append('<div class="grid">')

    def close_grid(self) -> None:
        self.parts.append("</div>")

    def figure(self, title: str, figure: Figure, caption: str, height: int = 330) -> str:
        """Add a figure; the id by which scenes change it."""
        self.contents.append({"figure": title})
        name = self.new_id("figure")
        _decades(figure)
        said = f"<strong>{escape(title)}.</strong> {escape(caption)}".strip()
        self.parts.append(
            f'<figure><div class="plot" id="{name}" style="height:{height}px" role="img" aria-label="{escape(title)}"></div>'
            f"<figcaption>{said}</figcaption>"
            f'<script type="application/json" data-figure="{name}">{to_json(figure)}</script></figure>'
        )
        return name

    def slider(
        self,
        title: str,
        scenes: Sequence[Mapping[str, Any]],
        start: int,
        at: int,
        others: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
        own: str = "",
    ) -> None:
        """A control over time, before part `at`; a scene is {"label", "figures": {id: [{"traces", "set", "layout"}, ..]}}.

        `others` are more lists of as many scenes by name, of which one is chosen; `own` is the name of the first.
        """
        self.contents.append({"slider": title})
        name = self.new_id("control")
        chooser = more = ""
        if others:
            named = "".join(f'<option value="{k}">{escape(text)}</option>' for k, text in enumerate([own, *others]))
            chooser = f'<select class="lists" aria-label="which network">{named}</select>'
            more = "".join(
                f'<script type="application/json" data-other-scenes="{name}">{to_json(list(some))}</script>'
                for some in others.values()
            )
        self.parts.insert(
            at,
            f'<div class="control" data-scenes="{name}">{chooser}<button type="button" aria-label="play">&#9654;</button>'
            f'<label for="{name}">{escape(title)}</label><input type="range" id="{name}" min="0" max="{len(scenes) - 1}" '
            f'value="{start}" step="1"><output for="{name}">{escape(scenes[start]["label"])}</output></div>'
            f'<script type="application/json" data-scenes-of="{name}">{to_json(list(scenes))}</script>{more}',
        )

    def choice(self, title: str, scenes: Sequence[Mapping[str, Any]]) -> None:
        """A list to choose a scene from; the first one is what the figures show."""
        self.contents.append({"choice": title})
        name = self.new_id("control")
        options = "".join(f'<option value="{k}">{escape(scene["label"])}</option>' for k, scene in enumerate(scenes))
        self.parts.append(
            f'<div class="control" data-scenes="{name}"><label for="{name}">{escape(title)}</label>'
            f'<select id="{name}">{options}</select></div>'
            f'<script type="application/json" data-scenes-of="{name}">{to_json(list(scenes))}</script>'
        )

    def new_id(self, what: str) -> str:
        self._ids += 1
        return f"{what}-{self.number}-{self._ids}"

    def render(self) -> str:
        name = f"section-{self.number}"
        said = f'<p class="summary">{escape(self.summary)}</p>' if self.summary else ""
        return (
            f'<section id="{name}" aria-labelledby="{name}-title" class="{self.kind}"><h2 id="{name}-title">'
            f"{escape(self.title)}</h2>{said}{''.join(self.parts)}</section>"
        )


class Html(str):
    """A cell that is HTML already."""


class Digits(str):
    """A cell that is a number, written with as many digits as it needs."""


def badge(holds: bool | None, text: str = "") -> Html:
    """Green, red or grey, always with a sign and a word."""
    name, sign = BADGES[holds]
    word = text or {True: "yes", False: "no", None: "not checked"}[holds]
    return Html(f'<span class="badge {name}"><span aria-hidden="true">{sign}</span> {escape(word)}</span>')


def cell(value: Any) -> str:
    if isinstance(value, Html):
        return str(value)
    return escape(number(value) if _is_number(value) else "-" if value is None else str(value))


def _class(value: Any) -> str:
    """Numbers stand to the right, long texts have room, short ones are not broken."""
    if _is_number(value):
        return " class=number"
    size = len(str(value))
    if isinstance(value, Html):  # badges are short, formulas may be long
        size = 99 if "<ul" in value else 0 if "badge" in value else size
    return " class=long" if size > 60 else " class=word" if size <= 8 else " class=short" if size <= 16 else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number | Digits) and not isinstance(value, bool)


def number(value: Any, digits: int = 6) -> str:
    """A number for a reader."""
    if isinstance(value, Digits):
        return str(value)
    if isinstance(value, int | np.integer):
        return str(int(value))
    return f"{float(value):.{digits}g}"


def escape(text: Any) -> str:
    return html.escape("".join(c if c.isprintable() or c in "\n\t" else "�" for c in str(text)))


def safe(text: str) -> str:
    """HTML as it is, text escaped."""
    return str(text) if isinstance(text, Html) else escape(text)


def words(*parts: str) -> str:
    """A command line."""
    return shlex.join(parts)


# ---------------------------------------------------------------- plotly


def to_json(value: Any) -> str:
    """JSON that can stand in a page: no infinity, and nothing that ends a script."""
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    except ValueError:  # a number beyond floating point, such as the end of an axis: nothing there
        text = json.dumps(plain_json(value), allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").replace("\u2028", "\\u2028")


def numbers(values: Any, digits: int = 6) -> list[Any]:
    """An array as nested lists, rounded to so many digits; null for what is no finite number."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim > 1:
        return [numbers(row, digits) for row in array]
    return [float(f"{v:.{digits}g}") if math.isfinite(v) else None for v in array.tolist()]


def label(text: Any, most: int = 60) -> str:
    """Text of users in a figure: plotly reads some HTML, so it is escaped; and it must not be read as a colour."""
    text = str(text)
    return "\u200b" * text.startswith("@") + escape(text if len(text) <= most else text[: most - 3] + "...")


def line(x: Any, y: Any, name: str, colour: str = "@plus", **more: Any) -> Figure:
    style = {"color": colour, "width": more.pop("width", 2), "dash": more.pop("dash", "solid")}
    x, y = few(np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64))
    mode = "lines" if len(x) > 3 else "lines+markers"  # a single record is no line
    return {"type": "scatter", "mode": mode, "x": numbers(x), "y": numbers(y), "name": name, "line": style, **more}


def band(x: Any, low: Any, high: Any, name: str, colour: str) -> list[Figure]:
    """The area between two curves."""
    x, low, high = few(*(np.asarray(v, dtype=np.float64) for v in (x, low, high)))
    known = np.isfinite(x) & np.isfinite(low) & np.isfinite(high)
    edge = {"type": "scatter", "mode": "lines", "x": numbers(x[known]), "line": {"width": 0}, "hoverinfo": "skip"}
    return [
        {**edge, "y": numbers(low[known]), "showlegend": False},
        {**edge, "y": numbers(high[known]), "name": name, "fill": "tonexty", "fillcolor": colour},
    ]


def few(x: np.ndarray, *columns: np.ndarray) -> tuple[np.ndarray, ...]:
    """At most POINTS of the points of curves. Of each stretch the first point, and the extremes of the first column, stay.

    So peaks do not get lost. Half of the stretches are even in the number of the record, half in its logarithm.
    """
    if len(x) <= POINTS:
        return x, *columns
    even = np.linspace(0, len(x) - 1, POINTS // 6)
    edges = np.unique(np.concatenate([even, np.geomspace(1, len(x) - 1, POINTS // 6)]).astype(int))
    keep = {0, len(x) - 1, *edges.tolist()}
    for start, end in itertools.pairwise(edges):
        part = columns[0][start:end] if columns else x[start:end]
        if np.isfinite(part).any():
            keep |= {int(start + np.nanargmin(part)), int(start + np.nanargmax(part))}
    chosen = np.array(sorted(keep))
    return x[chosen], *(column[chosen] for column in columns)


def layout(x: str, y: str, **more: Any) -> Figure:
    """Axes with titles; `xlog`, `ylog` for logarithmic ones."""
    xaxis = {"title": {"text": x}, "type": "log" if more.pop("xlog", False) else "linear", **more.pop("xaxis", {})}
    yaxis = {"title": {"text": y}, "type": "log" if more.pop("ylog", False) else "linear", **more.pop("yaxis", {})}
    return {"xaxis": xaxis, "yaxis": yaxis, **more}


def _decades(figure: Figure) -> None:
    """Logarithmic axes over several decades have a tick at every power of ten (or every second, ...), short ones a few."""
    for name, form in figure["layout"].items():
        axis, _, which = name.partition("axis")
        if axis not in ("x", "y") or not isinstance(form, dict):
            continue
        form |= {"exponentformat": "power"}  # else plotly writes 150 millionths as 150µ
        if form.get("type") == "log":
            own = [trace for trace in figure["data"] if trace.get(f"{axis}axis", axis) == axis + which]
            values = [v for trace in own for v in trace.get(axis) or () if isinstance(v, float | int) and v > 0]
            decades = math.log10(max(values)) - math.log10(min(values)) if values else 0.0
            if values and not decades:  # plotly would zoom in to the last bits of that value
                form.setdefault("range", [math.log10(values[0]) - 1, math.log10(values[0]) + 1])
            form |= {"dtick": max(1, math.ceil(decades / 8))} if decades >= 2 else {"nticks": 6}


def level(value: float, text: str, across: str = "y", colour: str = "@ink", dash: str = "dot") -> Figure:
    """A line over the whole plot at one value, as a shape."""
    other = "x" if across == "y" else "y"
    return {
        "type": "line", f"{across}0": value, f"{across}1": value, f"{other}0": 0, f"{other}1": 1, f"{other}ref": "paper",
        "line": {"color": colour, "width": 1.5, "dash": dash}, "name": text,
    }  # fmt: skip


def above(top: float, named: Mapping[str, np.ndarray]) -> tuple[Figure, str]:
    """An axis from a little below 0 to a little above `top`, as margins begin far below 0; and what it hides, in words.

    Where no curve comes above 0 the axis shows everything.
    """
    known = {name: values[np.isfinite(values)] for name, values in named.items()}
    if not any((values > 0).any() for values in known.values()):
        return {}, ""
    floor = -0.12 * top
    hidden = "".join(
        f"; the {name} is below it all the time"
        for name, values in known.items()
        if len(values) and (values < floor).all()
    )
    below = any((values < floor).any() for values in known.values())
    return {"range": [floor, 1.12 * top]}, f" What is below the axis is not drawn{hidden}." if below else ""


def spread(values: np.ndarray, ratio: float = 20.0) -> bool:
    """Whether positive values are so far apart that an axis should be logarithmic."""
    known = values[np.isfinite(values)]
    return len(known) > 0 and known.min() > 0 and known.max() >= ratio * known.min()
