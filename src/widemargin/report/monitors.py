"""What a monitor recorded while a model was trained: margins over |w|^L, errors, losses, norms, quantiles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from widemargin.monitor import store
from widemargin.plots import monitors as drawn
from widemargin.types import InputError

from .section import COLOURS, DASHES, Digits, Figure, Section, above, band, label, layout, level, line, number, spread

Series = Mapping[str, np.ndarray]


def _summary(name: str, series: Series, since: int | None) -> str:
    """One sentence: where training stands by the last record of the set `name`, and whether the theorem speaks of it."""
    where = f"At step {int(series['step'][-1])} the error on {name} is {number(_column(series, 'error')[-1], 3)}"
    if since is None:
        return f"{where}; psi is not positive there, so that the theorem says nothing."
    psi = _column(series, "psi_normalized")
    psi = psi[np.isfinite(psi) & (series["step"] >= since)]
    if not len(psi):
        return f"{where}; it is fitted since step {since}."
    grown = f"psi / |w|^L went from {number(psi[0], 3)} to {number(psi[-1], 3)}"
    return f"{where}; since step {since}, when it was fitted, {grown}."


def show(section: Section, folder: Path) -> None:
    config = store.config(folder)
    parts, names_there, records = store.shown(folder)
    if not parts:
        raise InputError(f"{folder} holds no records{store.until_when(folder)}")
    homogeneous = config.get("homogeneous") or {}
    main = drawn.main_of(parts)
    series = parts[main]
    since, state = _fitted(series)
    section.facts(
        {
            "model": config.get("model"),
            "loss": config.get("loss"),
            "parameters": config.get("parameters"),
            "records": records,
            "state": store.state(folder),
            "degree L": homogeneous.get("degree") or None,  # 0: nothing is homogeneous
            f"fitted ({main}: psi > 0)": state,
        }
    )
    section.summary = _summary(main, series, since)
    if len(names_there) > len(parts):
        section.paragraph(f"{len(names_there) - len(parts)} names with fewer records are left out.")
    if homogeneous.get("summary"):
        section.paragraph(f"Here {homogeneous['summary']}.")
    if since is None and not (_column(series, "psi") > 0).any():
        section.paragraph(f"Not fitted yet ({main}): {drawn.how_far(series)}.")
    steps = np.concatenate([part["step"] for part in parts.values()]).astype(float)
    log = spread(steps[steps > 0])
    mark = [] if since is None else [level(float(since), "fitted", "x", "@quiet")]
    said = " Dotted: from here on psi > 0, and psi / |w|^L does not fall along gradient flow." if mark else ""

    def add(title: str, traces: list[Figure], caption: str, name: str, **more: Any) -> None:
        if traces:
            form = layout("step", name, xlog=log, shapes=mark, showlegend=True, **more)
            section.figure(title, {"data": traces, "layout": form}, caption)

    looks = drawn.looks(parts, main)  # the colours of the picture that `plot` draws
    section.open_grid()
    normalized = bool(np.isfinite(_column(series, "margin_normalized")).any())
    ending, over = ("_normalized", " over |w|^L") if normalized else ("", "")
    smooth, hard = _column(series, f"psi{ending}"), _column(series, f"margin{ending}")
    traces = [
        line(series["step"], hard, "smallest margin", "@minus", dash="dash"),
        line(series["step"], smooth, "smooth margin psi"),
    ]
    top = float(np.nanmax(np.concatenate([smooth, hard, [-1e300]])))
    room, hidden = above(top, {"smallest margin": hard, "smooth margin psi": smooth})
    caption = f"Smallest margin and smooth margin{over}.{said}{hidden}"
    if drawn.is_free(series):
        caption += " The scale of other parameters is free, so that this means little."
    if (_column(series, "psi") > 0).any():
        add(f"Margins{over}, {main}", traces, caption, f"margin{over}", yaxis=room)
    else:  # nothing of the theorem to be seen yet: what there is
        quantiles = "margin_q50" in series
        traces = _fan(series, False) if quantiles else [
            line(series["step"], _column(series, "margin_mean"), "mean"),
            line(series["step"], _column(series, "margin"), "smallest", "@minus", dash="dash"),
        ]  # fmt: skip
        words = "Quantiles of the margins" if quantiles else "Mean and smallest margin"
        add(
            f"Margins before fitting, {main}",
            traces,
            f"{words}, not divided by a norm. {drawn.how_far(series)}.",
            "margin",
        )
        excess = drawn.excess_of(series)
        traces = [
            line(series["step"], excess, "sum of losses / l(0)"),
            line(series["step"], np.ones(len(excess)), "the theorem begins", "@quiet", dash="dot", width=1),
        ]
        add(f"To the theorem, {main}", traces, "Below 1, psi is positive and the theorem begins.", "times", ylog=True)
    for column, title, caption in (
        ("error", "Error", "Share of examples that are not classified correctly (nothing is drawn where it is 0)."),
        ("loss", "Loss", "Mean loss; records of single training batches scatter."),
    ):
        traces, values = [], [np.zeros(0)]
        for name, part in parts.items():
            y = _column(part, column)
            batches = name == "step"
            faint = batches and name != main  # beside others
            colour = "@quiet/0.6" if faint else f"@{looks[name][0]}"
            shown = f"{label(name, 24)}{' (batches)' * batches}, ends at {number(y[-1], 3)}"
            values.append(y[y > 0])
            style = {"dash": "solid", "width": 1} if faint else {"dash": looks[name][1], "width": 2}
            traces.append(line(part["step"], np.where(y > 0, y, np.nan), shown, colour, **style))
        add(title, traces, caption, column, ylog=spread(np.concatenate(values)))
    longest = max(parts.values(), key=lambda part: len(part["step"]))
    traces = [line(longest["step"], _column(longest, "norm"), "|w|", "@ink")] if normalized else []
    blocks = max(parts.values(), key=lambda part: len(part["step"]) if _blocks(part) else -1)
    single = _blocks(blocks)[:6]
    for k, key in enumerate(single):
        shown = f"block {label(key.removeprefix('norm/'), 26)}"
        traces.append(
            line(blocks["step"], _column(blocks, key), shown, COLOURS[k % 3], dash=DASHES[1 + k % 4], width=1.5)
        )
    of = ["of the homogeneous parameters w"] * normalized + ["of single blocks"] * bool(single)
    add("Norms", traces, f"The norm {', and '.join(of)}.", "norm", ylog=True)
    if "margin_q50" in series and (_column(series, "psi") > 0).any():
        traces = _fan(series, normalized)
        add(
            f"Margins of the examples, {main}",
            traces,
            f"Quantiles of the margins{over} over the examples.",
            f"margin{over}",
        )
    traces = [
        line(series["step"], _column(series, "n"), "all examples", "@quiet", width=1),
        line(series["step"], _column(series, "effective"), "effective number of examples", "@plus"),
    ]
    if np.isfinite(_column(series, "at_minimum")).any():
        near = _column(series, "at_minimum")
        traces.append(line(series["step"], near, "within 1 % of the smallest margin", "@minus", dash="dash"))
    add(
        f"Examples that drive training, {main}",
        traces,
        "exp of the entropy of the dual variables: how many examples share the gradient.",
        "examples",
        ylog=True,
    )
    traces = []
    measured = drawn.heuristics_of(parts, main) or main
    for k, (key, name) in enumerate(drawn.HEURISTICS.items()):
        y = _column(parts[measured], key)
        top = float(np.nanmax(np.abs(y))) if np.isfinite(y).any() else 0.0
        if top > 0:
            shown = f"{name}, ends at {number(y[-1], 3)}"
            traces.append(line(parts[measured]["step"], y / top, shown, COLOURS[k], dash=DASHES[k]))
    words = "Margins that no scale of parameters changes, each over its largest value. No theorem speaks of them."
    add(f"Heuristics, {measured}", traces, words, "share of the largest")
    section.close_grid()
    keys = ("error", "loss", "margin", "psi", f"margin{ending}", f"psi{ending}")[: 6 if normalized else 4]
    rows = [[name, int(part["step"][-1]), *(_last(part, key) for key in keys)] for name, part in parts.items()]
    names = ["name", "step", *(key.replace("_normalized", over) for key in keys)]
    section.table("Last records", names, rows, "One row for every data set that was measured; step: training batches.")
    section.settings(
        "", config, "A monitor watches a training loop of one's own, so there is no command; what it watched is below."
    )


def _fitted(series: Series) -> tuple[int | None, str]:
    """The step of the record from which on psi > 0, none where that is not so at the end; and in words."""
    psi = _column(series, "psi")
    steps, psi = series["step"][np.isfinite(psi)], psi[np.isfinite(psi)]
    first = int(np.max(np.flatnonzero(psi <= 0), initial=-1)) + 1
    if first < len(psi):
        return int(steps[first]), f"from step {steps[first]}"
    return None, f"no longer, last at step {steps[psi > 0][-1]}" if (psi > 0).any() else "not yet"


def _column(series: Series, name: str) -> np.ndarray:
    """Floats; nan where there are none, and instead of infinities."""
    values = series[name].astype(float) if name in series else np.full(len(series["step"]), np.nan)
    return np.where(np.isfinite(values), values, np.nan)


def _last(series: Series, name: str) -> Digits:
    return Digits(number(_column(series, name)[-1], 5))


def _blocks(series: Series) -> list[str]:
    """Norms of blocks, those that changed most first."""
    keys = [key for key in series if key.startswith("norm/")]

    def change(key: str) -> float:
        values = _column(series, key)
        known = values[np.isfinite(values)]
        return float(np.ptp(known) / max(known.max(), 1e-300)) if len(known) else 0.0

    return sorted(keys, key=lambda key: -change(key))


def _fan(series: Series, normalized: bool) -> list[Figure]:
    scale = np.ones(len(series["step"]))
    if normalized:  # in logarithms: |w|^L may leave floating point
        degree, norm = _column(series, "degree"), _column(series, "norm")
        with np.errstate(all="ignore"):
            scale = np.exp(np.clip(-degree * np.log(np.where(norm > 0, norm, np.nan)), -700, 700))
    levels = sorted(float(key.removeprefix("margin_q")) for key in series if key.startswith("margin_q"))
    q = {share: _column(series, f"margin_q{share:g}") * scale for share in levels}
    traces: list[Figure] = []
    pairs = [(low, 100 - low) for low in levels if 0 < low < 50 and 100 - low in q]
    for (low, high), opacity in zip(pairs[-2:], (0.15, 0.3)):
        traces += band(series["step"], q[low], q[high], f"{low:g} % to {high:g} %", f"@plus/{opacity}")
    traces.append(line(series["step"], q[50.0], "median", "@plus"))
    if 0.0 in q:
        traces.append(line(series["step"], q[0.0], "smallest", "@minus", dash="dash"))
    return traces
