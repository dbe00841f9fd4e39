"""Certified intervals as bars: a panel with an axis of its own for each convention, and the numbers at their marks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from widemargin import kinds
from widemargin.plots.style import LOG_RATIO
from widemargin.types import Certificate

from .checking import Checked
from .section import Figure, label, layout, number, numbers

ROW, AXIS, TOP = 84, 62, 24  # pixels of a bar with its words, of an axis with its title, and above all
WIDE = 0.55  # share of the axis from which both ends of a bar have room for a number each
UNREACHED = "no predictor of this kind separates the data, up to rounding"


def inseparable(cert: Certificate) -> bool:
    """Whether nothing separates the data up to rounding: the bound is above 0 and means 0."""
    return cert.status == "not-separable" and cert.upper > 0


def height(certs: Sequence[Certificate]) -> int:
    """Pixels of the picture."""
    return TOP + ROW * len(certs) + AXIS * len({cert.convention for cert in certs})


def intervals(certs: Sequence[Certificate], checked: Sequence[Checked] = ()) -> Figure:
    """One bar for each certificate; `checked` is what is known of each, where something is."""
    checked = checked or [Checked(None, "")] * len(certs)
    names = [_title(c) for c in certs]
    names = [name + "\u200b" * names[:k].count(name) for k, name in enumerate(names)]  # a row each, even for twins
    panels = list(dict.fromkeys(cert.convention for cert in certs))
    traces: list[Figure] = []
    notes: list[Figure] = []
    axes = {panel: _axis([cert for cert in certs if cert.convention == panel]) for panel in panels}
    for name, cert, known in zip(names, certs, checked):
        which = _which(panels.index(cert.convention))
        colour = "@quiet" if not cert.proved or known.refused else "@ink"
        said = _said(cert, known)
        both = f"[{number(cert.lower, 7)}, {number(cert.upper, 7)}]"
        traces.append(
            {
                "type": "scatter", "mode": "lines+markers", "x": numbers([cert.lower, cert.upper], 17), "y": [name, name],
                "xaxis": f"x{which}", "yaxis": f"y{which}", "line": {"color": colour, "width": 6},
                "marker": {"symbol": "line-ns", "size": 18, "line": {"width": 2.5, "color": colour}},
                "hovertemplate": f"%{{x:.12g}}<br>{both}, {label(said)}<extra></extra>",
                "showlegend": False,
            }
        )  # fmt: skip
        notes += _notes(cert, name, said, which, axes[cert.convention])
    form: Figure = {"annotations": notes, "margin": {"l": 90, "r": 15, "t": TOP, "b": 45}}
    inner, used = height(certs) - TOP - 45, 0
    for k, panel in enumerate(panels):
        rows = [name for name, cert in zip(names, certs) if cert.convention == panel]
        top = 1 - used / inner
        used += ROW * len(rows)
        span = [max(0.0, 1 - used / inner) if k + 1 < len(panels) else 0.0, top]
        used += AXIS
        what = kinds.quantity(panel)
        said = label(f"{what}, {panel}" if what == "margin" else what)
        axis = layout(said, "", xlog=axes[panel]["type"] == "log", xaxis=axes[panel])
        form[f"xaxis{_which(k)}"] = axis["xaxis"] | {"anchor": f"y{_which(k)}"}
        form[f"yaxis{_which(k)}"] = axis["yaxis"] | {
            "type": "category", "autorange": False, "range": [len(rows) - 0.5, -0.5], "automargin": True, "domain": span,
            "anchor": f"x{_which(k)}",
        }  # fmt: skip
    return {"data": traces, "layout": form}


def _which(k: int) -> str:
    """What plotly adds to the name of the axes of panel k."""
    return str(k + 1) if k else ""


def _title(cert: Certificate) -> str:
    """Of optima in two lines."""
    if kinds.quantity(cert.convention) == "objective":
        return f"{label(kinds.label(cert.kind))}<br>{label(kinds.detail(cert.kind, cert.extra).removeprefix(', '))}"
    return label(f"{kinds.label(cert.kind)} ({cert.convention})")


def _said(cert: Certificate, known: Checked) -> str:
    if not cert.proved:
        if cert.bound == "confidence":
            return f"{cert.status}, NOT proved: probability {cert.extra.get('confidence')}"
        return f"{cert.status}, {kinds.argued(cert.convention)} bound not proved"
    if known.refused:
        return known.words
    return "not separable, up to rounding" if inseparable(cert) else cert.status


def _axis(certs: Sequence[Certificate]) -> Figure:
    """From 0, or logarithmic where the values are far apart. What is 0 up to rounding does not set the scale."""
    values = [v for c in certs for v in (c.lower, c.upper) if math.isfinite(v) and not inseparable(c)]
    positive = [v for v in values if v > 0]
    apart = bool(positive) and max(positive) > LOG_RATIO * min(positive)
    log = apart and len(positive) == len(values) and not any(map(inseparable, certs))
    top = max(positive, default=1.0)
    if log:
        return {"type": "log", "range": [math.log10(min(positive)) - 0.3, math.log10(top) + 0.1]}
    return {"type": "linear", "range": [0, 1.06 * top]}


def _notes(cert: Certificate, name: str, said: str, which: str, axis: Figure) -> list[dict[str, Any]]:
    """The numbers above the bar with how it ended; where its ends are far apart a number at each, and how it ended below."""
    low, high = axis["range"]

    def place(value: float) -> float:
        """Along the axis; plotly wants the logarithm of a place on a logarithmic one."""
        if math.isnan(value):
            return high
        if axis["type"] == "log":
            value = math.log10(value) if value > 0 else low
        return min(max(value, low), high)

    a, b = place(cert.lower), place(cert.upper)

    def note(at: float, text: str, side: str = "", below: bool = False) -> dict[str, Any]:
        share = (at - low) / ((high - low) or 1.0)
        side = side or ("left" if share < 0.3 else "center" if share < 0.7 else "right")
        return {
            "x": at, "xref": f"x{which}", "xanchor": side, "y": name, "yref": f"y{which}", "align": side,
            "yanchor": "top" if below else "bottom", "yshift": -10 if below else 10, "text": text, "showarrow": False,
            "font": {"size": 12},
        }  # fmt: skip

    ends = number(cert.lower, 7), number(cert.upper, 7)
    if abs(b - a) < WIDE * (high - low):
        return [note((a + b) / 2, f"[{ends[0]}, {ends[1]}]<br>{label(said)}")]
    return [note(a, ends[0], "left"), note(b, ends[1], "right"), note((a + b) / 2, label(said), below=True)]
