"""Table 1 as text and as pictures."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from widemargin.papers.drawing import figure_of

from .exponents import ERROR, LEVELS, Cells, fit
from .rows import MAIN, ROWS, WORDS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _power(cells: Cells, both: bool = True) -> str:
    """d^k eps^-q with intervals."""
    parts = [("d^", fit(cells))] + ([("eps^-", fit(cells, "eps"))] if both else [])
    if any(math.isnan(power.value) for _, power in parts):
        return "not reached"
    return ", ".join(f"{base}{power.value:.2f} [{power.low:.2f}, {power.high:.2f}]" for base, power in parts)


def _cells(samples: Any, widths: Any, steps: Any) -> list[list[str]]:
    """Rows of the table: algorithm, then claimed and measured for m, n, t."""
    rows = []
    for row, (name, _, *claims) in ROWS.items():
        cells = [f"{row}  {name}"]
        for claim, kept, both in zip(claims, (widths, samples, steps), (False, True, True)):
            cells += [claim, _power(kept[row], both) if row in kept else "-"]
        rows.append(cells)
    return rows


def _math(text: str) -> str:
    """d^2/eps as matplotlib sets formulas."""
    text = re.sub(r"d\^(-?[d\d.]+)", r"$d^{\1}$", text)
    text = re.sub(r"eps\^(-?[\d.]+)", r"$\\epsilon^{\1}$", text)
    text = re.sub(r"eps(?![a-z\^])", r"$\\epsilon$", text)
    return r"$\infty$" if text == "inf" else text


HEAD = ("algorithm", "m, paper", "m, measured", "n, paper", "n, measured", "t, paper", "t, measured")


def markdown(samples: Any, widths: Any, steps: Any) -> str:
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in _cells(samples, widths, steps)])


def markdown_tried(tried: Mapping[str, Mapping[float, Cells]]) -> str:
    at = LEVELS.index(ERROR)
    dims = next(iter(next(iter(tried.values())).values())).d
    head = ["row", "setting", f"n for test error 0.1 at d = {', '.join(str(d) for d in dims)}", "n, fitted"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row, kept in tried.items():
        for value, cells in kept.items():
            values = ", ".join(f"{n:.0f}" if math.isfinite(n) else "not reached" for n in cells.needed[:, at])
            lines.append(f"| {row} | {WORDS[row].format(value)} | {values} | {_power(cells)} |")
    return "\n".join(lines)


def draw_table(samples: Any, widths: Any, steps: Any) -> Figure:
    figure = figure_of(16.5, 3.6)
    axes = figure.subplots()
    axes.axis("off")
    cells = [[_math(cell) for cell in row] for row in _cells(samples, widths, steps)]
    drawn = axes.table(
        cells, colLabels=HEAD, cellLoc="left", loc="center", colWidths=[0.23, 0.05, 0.12] + [0.06, 0.24] * 2
    )
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(9)
    drawn.scale(1, 1.5)
    for (row, _), cell in drawn.get_celld().items():
        cell.set_linewidth(0)
        cell.visible_edges = "B"
        cell.set_linewidth(1.2 if row == 0 else 0.4)
        if row == 0:
            cell.set_text_props(weight="bold")
    axes.set_title(
        "2-sparse parity, test errors 0.2, 0.1 and 0.05: what is needed, fitted as powers of d and eps, with intervals "
        "(claims are upper bounds)",
        loc="left",
        fontsize=10,
    )
    return figure


def draw_samples(samples: Mapping[str, Cells], tried: Mapping[str, Mapping[float, Cells]]) -> Figure:
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    from widemargin.plots import INK, MINUS, PLUS, QUIET, THIRD

    figure = figure_of(14, 5)
    axes, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    looks = {
        "a": (MINUS, "o", "-"),
        "b": (MINUS, "s", "--"),
        "b0": (MINUS, "^", ":"),
        "b1": (MINUS, "v", "-."),
        "c": (QUIET, "D", "-"),
        "d": (PLUS, "v", "--"),
        "e": (PLUS, "o", "-"),
        "f": (THIRD, "s", "-"),
    }
    at = LEVELS.index(ERROR)
    names: list[tuple[float, int, str, str]] = []  # of the thin lines: where they end (samples, d), text, colour
    for row, kept in tried.items():
        for setting, cells in kept.items():
            use = np.isfinite(cells.needed[:, at])
            if setting != MAIN[row] and use.any():
                axes.plot(cells.d[use], cells.needed[use, at], color=looks[row][0], lw=0.6, alpha=0.6)
                names.append(
                    (
                        float(cells.needed[use, at][-1]),
                        int(cells.d[use][-1]),
                        f"{row}: {_math(WORDS[row].format(setting).split(',')[0])}",
                        looks[row][0],
                    )
                )
    for row, cells in samples.items():
        colour, mark, line = looks[row]
        k, q = fit(cells), fit(cells, "eps")
        shown = f"$d^{{{k.value:.2f}}}\\epsilon^{{-{q.value:.2f}}}$" if math.isfinite(k.value) else "not reached"
        label = f"{row}  {_math(ROWS[row][0])}: {shown}, paper {_math(ROWS[row][3])}"
        look: dict[str, Any] = {"color": colour, "marker": mark, "ls": line, "ms": 5.5, "lw": 1.4}
        use = np.isfinite(cells.needed[:, at])
        axes.plot(cells.d[use], cells.needed[use, at], label=label, **look)
        use = np.isfinite(cells.needed[-1])
        right.plot(1 / np.array(LEVELS)[use], cells.needed[-1][use], label=f"{row}, d = {cells.d[-1]}", **look)
    d = samples["a"].d.astype(float)
    for power, cells, factor in ((1, samples["e"], 0.6), (2, samples["a"], 2.2)):
        base = cells.needed[:, at]
        if np.isfinite(base).all():
            curve = factor * (base[0] if power == 1 else base[-1]) * (d / (d[0] if power == 1 else d[-1])) ** power
            axes.plot(d, curve, color=INK, lw=0.8, ls="-.")
            axes.annotate(
                f"slope {power}", (d[-1], curve[-1]), (4, 0), textcoords="offset points", fontsize=8, va="center"
            )
    for panel in (axes, right):
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.yaxis.set_major_formatter(ScalarFormatter())
        panel.spines[["top", "right"]].set_visible(False)
    ticks = sorted({int(v) for cells in samples.values() for v in cells.d})
    axes.set_xticks(ticks, [str(v) for v in ticks])
    axes.set_xlabel("dimension d")
    axes.set_ylabel("samples for test error 0.1 (median)")
    axes.legend(frameon=False, fontsize=7, loc="upper left")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * 12)  # room for the legend
    last, above = max(ticks), 0.0
    for y, x, text, colour in sorted(names):
        above = max(y, 1.27 * above)  # one over the other; a line of text is a factor 1.27 on this axis
        said = text if x == last else f"{text}, to d = {x}"
        axes.annotate(said, (last, above), (9, 0), textcoords="offset points", fontsize=6, va="center", color=colour)
    right.set_xticks([1 / level for level in LEVELS], [f"1/{level:g}" for level in LEVELS])
    right.set_xlabel("1 / test error")
    right.set_ylabel("samples at the largest d (median)")
    right.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
