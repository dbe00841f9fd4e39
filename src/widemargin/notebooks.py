"""What notebooks show: small cards with the interval drawn, bars while something runs. Everything that is shown is escaped."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from html import escape
from typing import Any

AFTER, EVERY = 2.0, 0.5  # seconds before there is a bar, and between its moves
WIDE = 420  # pixels of an interval
BLUE, GREY, ORANGE = "#1f6fb4", "#d9dde2", "#d9661f"


def in_notebook() -> bool:
    """Whether this runs in a kernel that shows HTML; a terminal, IPython's too, does not."""
    shell = sys.modules.get("IPython")
    running = shell.get_ipython() if shell is not None else None
    return running is not None and getattr(running, "kernel", None) is not None


@contextmanager
def watched(progress: Any, line: Callable[..., tuple[float, str]]) -> Iterator[Any]:
    """`progress` as it was given; where there is none, in a notebook, one that moves a bar.

    `line` turns what progress is called with into the share that is done (NaN: unknown) and a line of text.
    """
    if progress is not None or not in_notebook():
        yield progress
        return
    from IPython.display import HTML, display

    started, last, handle = time.perf_counter(), -math.inf, None

    def move(*now: Any) -> None:
        nonlocal last, handle
        clock = time.perf_counter()
        if clock - started < AFTER or clock - last < EVERY:
            return
        last, shown = clock, HTML(bar(*line(*now)))
        if handle is None:
            handle = display(shown, display_id=True)
        else:
            handle.update(shown)

    try:
        yield move
    finally:
        if handle is not None:
            handle.update(HTML(""))


def bar(share: float, text: str) -> str:
    """A bar with a line of text below it; `share` is from 0 to 1, NaN where nobody knows."""
    done = 0.0 if math.isnan(share) else min(max(share, 0.0), 1.0)
    full = f'<div style="width:{100 * done:.1f}%;height:100%;background:{BLUE};border-radius:3px"></div>'
    return (
        f'<div style="font:13px sans-serif"><div style="width:{WIDE}px;max-width:100%;height:6px;background:{GREY};'
        f'border-radius:3px">{full}</div>{escape(text)}</div>'
    )


def interval(lower: float, upper: float, mark: float | None = None, name: str = "") -> str:
    """An interval on an axis from 0, as SVG: a filled bar up to `lower`, the rest up to `upper` hatched, a `mark` below it."""
    known = [value for value in (lower, upper, mark) if value is not None and math.isfinite(value)]
    least, most = min(0.0, *known), max(0.0, *known)
    span = (most - least) or 1.0

    def at(value: float) -> float:
        return 10 + (WIDE - 20) * (value - least) / span

    end = upper if math.isfinite(upper) else most
    parts = [
        f'<rect x="{at(min(0.0, lower)):.1f}" y="14" width="{abs(at(lower) - at(0.0)):.1f}" height="12" fill="{BLUE}"/>',
        f'<rect x="{at(lower):.1f}" y="14" width="{max(at(end) - at(lower), 1.5):.1f}" height="12" fill="{BLUE}" '
        f'fill-opacity="0.25" stroke="{BLUE}"/>',
        f'<line x1="{at(least):.1f}" y1="30" x2="{at(most):.1f}" y2="30" stroke="#888"/>',
        f'<text x="{at(0.0):.1f}" y="43" font-size="11" fill="#666" text-anchor="middle">0</text>',
        f'<text x="{at(end):.1f}" y="43" font-size="11" fill="#666" text-anchor="end">{shown(end)}</text>',
    ]
    if mark is not None and math.isfinite(mark):
        parts.append(
            f'<line x1="{at(mark):.1f}" y1="8" x2="{at(mark):.1f}" y2="30" stroke="{ORANGE}" stroke-width="3"/>'
            f'<text x="{min(max(at(mark), 40), WIDE - 40):.1f}" y="8" font-size="11" fill="{ORANGE}" '
            f'text-anchor="middle">{escape(name)} {shown(mark)}</text>'
        )
    said = f"from {shown(lower)} to {shown(upper)}"
    return (
        f'<svg role="img" aria-label="{escape(said)}" width="{WIDE}" height="48" viewBox="0 0 {WIDE} 48" '
        f'style="max-width:100%">{"".join(parts)}</svg>'
    )


def shown(value: float) -> str:
    """A number as cards have it."""
    return f"{value:.4g}" if math.isfinite(value) else "unknown"


def card(title: str, picture: str, facts: Mapping[str, Any], note: str = "") -> str:
    """A title, a picture (HTML as it is), names with values, and a line of code or advice at the end."""
    rows = "".join(
        f'<tr><th style="text-align:left;padding:1px 12px 1px 0;font-weight:normal;color:#666">{escape(str(name))}</th>'
        f'<td style="text-align:left;padding:1px 0">{escape(str(value))}</td></tr>'
        for name, value in facts.items()
        if value not in (None, "")
    )
    end = f'<div style="color:#666;margin-top:4px"><code>{escape(note)}</code></div>' if note else ""
    return (
        f'<div style="font:13px sans-serif;max-width:640px"><div style="font-weight:600">{escape(title)}</div>'
        f'{picture}<table style="border:none;font-size:13px">{rows}</table>{end}</div>'
    )
