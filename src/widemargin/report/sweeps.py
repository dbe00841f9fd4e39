"""A store of a sweep: results over the parameters, aggregated by the database, so that a million rows are no burden."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from widemargin import sweep as sweeping
from widemargin.sweep.plan import OWN
from widemargin.sweep.store import last_words, quoted
from widemargin.sweep.store import plans as stored_plans
from widemargin.types import InputError

from .section import COLOURS, DASHES, Digits, Figure, Section, label, layout, number, numbers, spread, words

SAMPLE = 400  # rows looked at to tell what kind of column it is; keys are hashes, so the first rows are a random sample
RESULTS = 8  # columns of results that are shown, unless others are asked for
CELLS = 20_000  # combinations of parameters
BINS = 24  # of a parameter drawn at random
ROWS = 400  # of a table
CURVES = 8  # lines in one figure
FACETS = 6  # pictures side by side
WRITTEN = (12, 16)  # columns and rows of a map whose cells hold their number
FAILURES = 20
# Averages over these put different networks, rules or data together, and so do averages over any text.
DIFFERENT = ("net", "width", "depth", "algorithm", "rule", "loss", "activation", "kind", "data", "law", "bias", "part")
LIMIT = 120.0  # seconds for a query
TEXTS = 64_000_000  # characters of texts that it may return
SHOWN_FIRST = (
    "fraction",
    "margin_M2",
    "margin_M1",
    "lower",
    "upper",
    "gap",
    "test_error",
    "train_error",
    "risk",
    "psi_normalized",
)
DULL = ("step", "t_cb", "log_t_mean", "log_norm", "log_Q", "margin", "psi", "balance")  # shown last


@dataclass(frozen=True)
class Axis:
    """A parameter that varies: its name, and the SQL by which rows are grouped: its value, or the number of its bin."""

    name: str
    sql: str
    count: int
    middles: tuple[float, ...] = ()  # of the bins

    def value(self, stored: Any) -> Any:
        return self.middles[int(stored)] if self.middles and stored is not None else stored

    @property
    def digits(self) -> int:
        """Enough to tell the middles of neighbouring bins apart."""
        return next(
            k for k in range(3, 18) if len({f"{m:.{k}g}" for m in self.middles}) == len(self.middles) or k == 17
        )


@dataclass(frozen=True)
class Table:
    """Combinations (K, axes) of the parameters, and for every result (K,) count, mean, deviation, least and most."""

    axes: tuple[Axis, ...]
    left: tuple[Axis, ...]  # parameters that vary too, and are averaged over: there are too many combinations
    cells: list[tuple[Any, ...]]
    runs: np.ndarray  # (K,)
    stats: Mapping[str, np.ndarray]  # (5, K): count, mean, deviation (n - 1), least, most


def show(section: Section, folder: Path, columns: Sequence[str] = ()) -> None:
    groups = _rows(
        folder,
        "select sweep, function, version, seed, count(*) from runs group by sweep, function, version, seed order by 1, 2, 3, 4",
    )
    there, none = sweeping.query(folder, "select * from runs limit 0")
    list(none)  # read to its end, a query lets go of the file
    plans = stored_plans(folder)
    total = sum(row[4] for row in groups)
    when = "cast(finished as real)"
    ((seconds, first, last),) = _rows(folder, f"select total(seconds), min({when}), max({when}) from log")
    section.facts(
        {
            "runs": total,
            "sweeps": len(groups),
            "computing": None if seconds is None else f"{seconds:.4g} s in all",
            "between first and last": None if first is None else f"{last - first:.4g} s",
        }
    )
    section.summary = (
        f"{total} run{'s' * (total != 1)} of {', '.join(dict.fromkeys(str(row[1]) for row in groups))}."
        if total
        else ""
    )
    if not total:
        section.paragraph("There are no results yet.")
    for name, function, version, seed, count in groups:
        asked = [plan for plan in plans if (plan["name"], plan["function"], plan["seed"]) == (name, function, seed)]
        section.heading(f"{name}: {function}, {count} runs")
        each = zip(("sweep", "function", "version", "seed"), (name, function, version, seed))
        which = " and ".join(f"{column} is {_literal(value)}" for column, value in each)
        table = aggregate(folder, which, there, asked, columns)
        if len(groups) == 1:
            section.summary = _summary(table, function, count)
        _show_table(section, table)
        for axis in table.left if table.stats else ():
            alone = aggregate(folder, which, there, asked, list(table.stats), [axis])
            _show_along(section, alone, 0)
        if asked:
            file = f"{' '.join(name.split())[:100]}.toml"  # one line, whatever a stranger has called it
            save = f"# save as {file}, then: {' '.join(words('widemargin', 'sweep', file, '--store', str(folder)).split())}\n"
            others = f"{len(asked)} plans of this name have added runs; this is the last of them." * (len(asked) > 1)
            section.settings(save + toml(asked[-1]), asked[-1] if len(asked) == 1 else asked, others)
        else:
            section.settings(
                "", {"sweep": name, "function": function, "version": version, "seed": seed}, "The plan was not kept."
            )
    _show_failures(section, folder)


def _summary(table: Table, function: str, count: int) -> str:
    """What varies, and where the first result is largest."""
    varied = " and ".join(f"{axis.name} ({axis.count})" for axis in (*table.axes, *table.left)) or "seeds alone"
    said = f"{count} runs of {function} over {varied}"
    for name, (n, mean, *_) in table.stats.items():
        known = np.flatnonzero((n > 0) & np.isfinite(mean))
        if len(known) > 1 and table.axes:
            best = known[np.argmax(mean[known])]
            where = ", ".join(f"{axis.name} = {_shown(axis, v)}" for axis, v in zip(table.axes, table.cells[best]))
            others = f", averaged over {', '.join(axis.name for axis in table.left)}" if table.left else ""
            return f"{said}; the mean of {name} is largest at {where}{others}: {number(mean[best], 4)}."
    return f"{said}."


def check_columns(folders: Sequence[Path], columns: Sequence[str]) -> None:
    """Complain of results that no sweep has."""
    there: dict[str, None] = {}
    for folder in folders:
        names, none = sweeping.query(folder, "select * from runs limit 0")
        list(none)
        there |= dict.fromkeys(name for name in names if name not in OWN)
    for name in columns:
        if name not in there:
            known = f"there are {', '.join(there)}" if there else "there are none, as no sweep is given"
            raise InputError(f"--columns: there is no result {name!r}; {known}")


def _rows(folder: Path, sql: str) -> list[tuple[Any, ...]]:
    rows, length = [], 0
    for row in sweeping.query(folder, sql, time_limit=LIMIT)[1]:
        length += sum(len(value) for value in row if isinstance(value, str | bytes))
        if length > TEXTS:
            raise InputError(
                f"{folder} has texts of more than {TEXTS // 10**6} MB, too long for a page; ask by `widemargin query`"
            )
        rows.append(row)
    return rows


def _literal(value: Any) -> str:
    """A value in SQL."""
    if value is None:
        return "null"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    return repr(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"


# ---------------------------------------------------------------- aggregation


def aggregate(
    folder: Path,
    which: str,
    there: Sequence[str],
    plans: Sequence[Mapping[str, Any]],
    columns: Sequence[str] = (),
    along: Sequence[Axis] | None = None,
) -> Table:
    """Over the parameters that vary, or over those of `along`, in the database."""
    sample = _rows(folder, f"select {', '.join(map(quoted, there))} from runs where {which} limit {SAMPLE}")
    values = {name: [row[k] for row in sample if row[k] is not None] for k, name in enumerate(there)}
    axes, params = _axes(values, plans)
    axes = axes if along is None else list(along)
    left: list[Axis] = []
    while len(axes) > 1 and math.prod(axis.count for axis in axes) > CELLS:
        left.insert(0, axes.pop())
    results = _results(values, params, columns)
    # Means first, then squares of distances from the mean of each combination: sums around another value would lose digits
    # where combinations differ by orders of magnitude.
    keys = [f"_axis_{k}" for k in range(len(axes))]
    means = [f"_mean_{k}" for k in range(len(results))]
    parts = ["count(*)"]
    for name, mean in zip(map(quoted, results), means):
        parts += [f"count({name})", mean, f"sum(({name} - {mean}) * ({name} - {mean}))", f"min({name})", f"max({name})"]
    group = f" group by {', '.join(str(k + 1) for k in range(len(axes)))}" if axes else ""
    first = [f"{axis.sql} as {key}" for axis, key in zip(axes, keys)]
    first += [f"avg({quoted(name)}) as {mean}" for name, mean in zip(results, means)]
    match = " and ".join(f"{axis.sql} is {key}" for axis, key in zip(axes, keys)) or "1"
    rows = _rows(
        folder,
        f"with cells as (select {', '.join([*first, '1'])} from runs where {which}{group}) "
        f"select {', '.join([*keys, *parts])} from cells join runs on {match} where {which}{group} "
        f"{group.replace('group', 'order')} limit {4 * CELLS}",
    )
    stats = {}
    for k, name in enumerate(results):
        at = len(axes) + 1 + 5 * k
        block = np.array([[_float(v) for v in row[at : at + 5]] for row in rows], dtype=float).reshape(-1, 5)
        n, mean_, squares, least, most = block.T
        with np.errstate(all="ignore"):
            deviation = np.where((n > 1) & np.isfinite(mean_), np.sqrt(squares / (n - 1)), np.nan)
        stats[name] = np.stack([n, mean_, deviation, least, most])
    runs = np.array([row[len(axes)] for row in rows], dtype=int)
    cells = [tuple(axis.value(v) for axis, v in zip(axes, row)) for row in rows]
    return Table(tuple(axes), tuple(left), cells, runs, stats)


def _float(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _axes(values: Mapping[str, list[Any]], plans: Sequence[Mapping[str, Any]]) -> tuple[list[Axis], set[str]]:
    """The parameters that vary within or between plans, those with most values first, and the names of all parameters."""
    axes = []
    if plans:
        given: dict[str, list[Any]] = {}  # values that are written down
        laws: dict[str, list[Mapping[str, Any]]] = {}
        for plan in plans:
            for name, value in plan.get("fixed", {}).items():
                given.setdefault(name, []).append(value)
            for name, choices in plan.get("grid", {}).items():
                given.setdefault(name, []).extend(choices)
            for name, law in plan.get("random", {}).items():
                given.setdefault(name, []).extend(law.get("choices", ()))
                laws.setdefault(name, []).extend([law] if "choices" not in law else ())
        for name, some in given.items():
            known = [v for v in some if isinstance(v, int | float) and not isinstance(v, bool)]
            if laws.get(name):
                axes.append(_random_axis(name, laws[name], known))
            elif "{" not in str(some):  # a text that takes up other parameters varies with them
                axes.append(Axis(name, quoted(name), len({json.dumps(v) for v in some})))
        axes = [axis for axis in axes if axis.count > 1 and axis.name in values]
        params = set(given)
    else:
        # Parameters come before results, and results mostly differ from run to run.
        params = set()
        for name, some in values.items():
            different = len(set(some))
            if name in OWN:
                continue
            if name == "status" or different > max(60, len(some) // 2):
                break
            params.add(name)
            if different > 1:
                axes.append(Axis(name, quoted(name), different))
    return sorted(axes, key=lambda axis: (bool(axis.middles), -axis.count)), params


def _random_axis(name: str, laws: Sequence[Mapping[str, Any]], known: Sequence[float]) -> Axis:
    """Integers of a short range as they are, of other numbers the middle of their bin. `known` are values from elsewhere."""
    low, high = (float(end([*(law[word] for law in laws), *known])) for end, word in ((min, "low"), (max, "high")))
    column, log = quoted(name), all(law.get("log") for law in laws) and low > 0
    if all(law.get("integer") for law in laws) and high - low < BINS:
        return Axis(name, column, int(high - low) + 1)
    if not high > low:
        return Axis(name, column, 1)
    start, end = (math.log(low), math.log(high)) if log else (low, high)
    width = (end - start) / BINS
    here = f"ln({column})" if log else column
    middles = [start + (k + 0.5) * width for k in range(BINS)]
    middles = [math.exp(m) for m in middles] if log else middles
    place = f"max(0, min({BINS - 1}, cast(({here} - ({start!r})) / {width!r} as integer)))"
    return Axis(name, place, BINS, tuple(middles))


def _results(values: Mapping[str, list[Any]], params: set[str], columns: Sequence[str]) -> list[str]:
    numeric = [
        name
        for name, some in values.items()
        if name not in OWN and name not in params and some and all(isinstance(v, int | float) for v in some)
    ]
    if columns:
        return [name for name in columns if name in numeric]
    rank = {name: k for k, name in enumerate(SHOWN_FIRST)}
    return sorted(numeric, key=lambda name: (rank.get(name, len(SHOWN_FIRST) + (name in DULL)), numeric.index(name)))[
        :RESULTS
    ]


# ---------------------------------------------------------------- figures and tables


def _show_table(section: Section, table: Table) -> None:
    names = list(table.stats)
    if not names:
        section.paragraph("There are no results that are numbers, or none of those asked for.", "quiet")
        return
    left = [axis.name for axis in table.left]
    if table.axes:
        place = len(section.parts)
        scenes: list[dict[str, Any]] = [{"label": name, "figures": {}} for name in names]
        for said, part in facets(table):
            averaged = [*(axis.name for axis in part.axes[2:]), *left]
            over = f"trials{' and ' + ', '.join(averaged) if averaged else ''}"
            mixed = mixes(part, (0, 1))
            section.open_grid()
            two = len(part.axes) > 1
            if two:
                _heat_map(section, part, scenes, over, said)
            if not two or part.axes[1].count <= CURVES:
                _lines(section, part, scenes, over, said)
            section.close_grid()
            if mixed:
                section.paragraph(f"These means mix different things: they are over {mixed}.")
        if len(names) > 1:
            section.choice("result", scenes)
            section.parts.insert(place, section.parts.pop())
    head = [axis.name for axis in table.axes]
    rows = [
        [
            *(_shown(axis, v) for axis, v in zip(table.axes, cell)),
            int(n),
            *(_with_spread(table.stats[k][:, i]) for k in names),
        ]
        for i, (cell, n) in enumerate(zip(table.cells, table.runs))
    ]
    if len(rows) > 1:
        more = f" The first {ROWS} of {len(rows)} combinations." if len(rows) > ROWS else ""
        section.table(
            "By combination",
            [*head, "runs", *names],
            rows[:ROWS],
            f"Mean +- standard deviation over {', '.join(['trials', *left])}; bins of parameters drawn at random by their "
            f"middles.{more}",
            folded=len(rows) > 12,
        )
    for k in range(len(table.axes)) if len(table.axes) > 1 else ():
        _show_along(section, table, k)
    if not table.axes:
        rows = [[name, *(number(v) for v in table.stats[name][:, 0])] for name in names]
        section.table("Results", ["result", "runs", "mean", "deviation", "least", "most"], rows, "Over all runs.")


def _differs(table: Table, k: int) -> bool:
    """Whether an average over axis k puts different networks, rules or data together."""
    return table.axes[k].name in DIFFERENT or any(isinstance(cell[k], str | bool) for cell in table.cells)


def mixes(table: Table, kept: Sequence[int]) -> str:
    """What an average over all but some axes mixes, with values; empty where it mixes repetitions of the same thing."""
    said = []
    for k, axis in enumerate(table.axes):
        if k not in kept and _differs(table, k):
            values = sorted({cell[k] for cell in table.cells}, key=_order)
            shown = [str(_shown(axis, value))[:40] for value in values[:FACETS]] + ["..."] * (len(values) > FACETS)
            said += [f"{axis.name} ({', '.join(shown)})"] if len(values) > 1 else []
    return " and ".join([*said, *(axis.name for axis in table.left if axis.name in DIFFERENT)])


def facets(table: Table) -> list[tuple[str, Table]]:
    """The table, or a part of it for each of the networks, rules and such that its pictures would else average over."""
    apart = [k for k in range(2, len(table.axes)) if _differs(table, k)]
    found = sorted({tuple(cell[k] for k in apart) for cell in table.cells}, key=lambda key: [_order(v) for v in key])
    if not apart or not 1 < len(found) <= FACETS:
        return [("", table)]
    kept = [k for k in range(len(table.axes)) if k not in apart]
    parts = []
    for values in found:
        rows = [i for i, cell in enumerate(table.cells) if tuple(cell[k] for k in apart) == values]
        said = ", ".join(f"{table.axes[k].name} = {_shown(table.axes[k], v)}" for k, v in zip(apart, values))
        cells = [tuple(table.cells[i][k] for k in kept) for i in rows]
        stats = {name: stat[:, rows] for name, stat in table.stats.items()}
        axes = tuple(table.axes[k] for k in kept)
        parts.append((said, Table(axes, table.left, cells, table.runs[rows], stats)))
    return parts


def _show_along(section: Section, table: Table, k: int) -> None:
    """A table over one parameter."""
    axis, (seen, runs, stats) = table.axes[k], _along(table, (k,))
    rows = [
        [_shown(axis, value), int(runs[i]), *(_with_spread(stats[name][:, i]) for name in stats)]
        for i, (value,) in enumerate(seen)
    ]
    mixed = mixes(table, (k,))
    caption = "Mean +- standard deviation over everything else." + f" That mixes different things: {mixed}." * bool(
        mixed
    )
    section.table(f"By {axis.name}", [axis.name, "runs", *stats], rows, caption, folded=True)


def _shown(axis: Axis, value: Any) -> Any:
    return number(value, axis.digits) if axis.middles and value is not None else value


def _labels(axis: Axis, values: Sequence[Any]) -> list[str]:
    """Names of categories in a figure: plotly takes equal ones for one."""
    names = [label(_shown(axis, value)) for value in values]
    return [name + "\u200b" * names[:k].count(name) for k, name in enumerate(names)]


def _with_spread(stats: np.ndarray) -> Digits:
    n, mean, deviation = stats[:3]
    if not n:
        return Digits("-")
    if not math.isfinite(mean):
        return Digits("inf, -inf" if math.isnan(mean) else number(mean))
    return Digits(number(mean, 5) + (f" +- {number(deviation, 2)}" if n > 1 and math.isfinite(deviation) else ""))


def _along(table: Table, chosen: tuple[int, ...]) -> tuple[list[tuple[Any, ...]], np.ndarray, dict[str, np.ndarray]]:
    """The table over some of its axes: counts, means, deviations and extremes put together exactly."""
    keys = [tuple(cell[k] for k in chosen) for cell in table.cells]
    seen = sorted(dict.fromkeys(keys), key=lambda key: [_order(v) for v in key])
    where = {key: i for i, key in enumerate(seen)}
    at = np.array([where[key] for key in keys], dtype=int)
    K = len(seen)
    runs = np.bincount(at, table.runs, K)
    stats = {}
    for name, (n, mean, deviation, least, most) in table.stats.items():
        known = n > 0
        count = np.bincount(at[known], n[known], K)
        with np.errstate(all="ignore"):
            whole = np.bincount(at[known], (n * mean)[known], K) / count
            inside = np.where(n > 1, (n - 1) * deviation**2, 0.0)
            between = np.where(known, n * (mean - whole[at]) ** 2, 0.0)
            spread_ = np.sqrt(np.bincount(at[known], (inside + between)[known], K) / (count - 1))
        low, high = np.full(K, np.inf), np.full(K, -np.inf)
        np.minimum.at(low, at[known], least[known])
        np.maximum.at(high, at[known], most[known])
        stats[name] = np.stack([count, whole, np.where(count > 1, spread_, np.nan), low, high])
    return seen, runs, stats


def _heat_map(section: Section, table: Table, scenes: Sequence[dict[str, Any]], over: str, which: str = "") -> None:
    (a, b), (seen, _, stats) = table.axes[:2], _along(table, (0, 1))
    # Of bins all, so that their axis is even; of other values those that occur.
    xs, ys = (sorted({*axis.middles, *(v[k] for v in seen)}, key=_order) for k, axis in enumerate((a, b)))
    column, row = {v: k for k, v in enumerate(xs)}, {v: k for k, v in enumerate(ys)}

    def filled(name: str) -> dict[str, Any]:
        z = np.full((len(ys), len(xs)), np.nan)
        text = [["" for _ in xs] for _ in ys]
        for (x, y), (n, mean, deviation, least, most) in zip(seen, stats[name].T):
            z[row[y], column[x]] = mean
            text[row[y]][column[x]] = (
                f"{label(name, 40)}: {mean:.5g} +- {deviation:.2g}<br>{least:.5g} to {most:.5g}, {n:.0f} runs"
            )
        return {"z": numbers(z, 5), "text": text, "colorbar.title.text": label(name, 30)}

    first = filled(scenes[0]["label"])
    title = first.pop("colorbar.title.text")
    trace = {
        "type": "heatmap", "x": _labels(a, xs), "y": _labels(b, ys), **first,
        "colorscale": "Cividis", "colorbar": {"thickness": 12, "title": {"text": title}},
        "hovertemplate": f"{label(a.name)} %{{x}}, {label(b.name)} %{{y}}<br>%{{text}}<extra></extra>",
    }  # fmt: skip
    if len(xs) <= WRITTEN[0] and len(ys) <= WRITTEN[1]:
        trace["texttemplate"] = "%{z:.3g}"
    form = layout(label(a.name), label(b.name), xaxis={"type": "category"}, yaxis={"type": "category"})
    title = f"Heat map, {which}" if which else "Heat map"
    name = section.figure(title, {"data": [trace], "layout": form}, f"Means over {over} at each combination.", 420)
    for scene in scenes:
        scene["figures"].setdefault(name, []).append({"traces": [0], "set": filled(scene["label"])})


def _order(value: Any) -> tuple[bool, bool, Any]:
    return value is None, isinstance(value, str), 0 if value is None else value


def _lines(section: Section, table: Table, scenes: Sequence[dict[str, Any]], over: str, which: str = "") -> None:
    """Means along the first parameter, a line for each value of the second."""
    a = table.axes[0]
    second = table.axes[1] if len(table.axes) > 1 else None
    seen, _, stats = _along(table, (0, 1) if second else (0,))
    others = sorted({v[1] for v in seen}, key=_order) if second else [None]
    members = [[i for i, v in enumerate(seen) if second is None or v[1] == other] for other in others]
    plain = all(isinstance(v[0], int | float) for v in seen)
    xs = np.array([v[0] for v in seen], dtype=float) if plain else None
    names = _labels(a, [v[0] for v in seen]) if xs is None else []
    said = [label(f"{second.name} = {_shown(second, other)}") for other in others] if second else ["mean"]
    traces: list[Figure] = []
    for k, some in enumerate(members):
        colour, dash = COLOURS[k % len(COLOURS)], DASHES[(k // len(COLOURS)) % len(DASHES)]
        x = numbers(xs[some]) if xs is not None else [names[i] for i in some]
        common = {"type": "scatter", "x": x, "legendgroup": str(k)}
        edge = {**common, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
        traces += [
            edge,
            {**edge, "fill": "tonexty", "fillcolor": f"{colour}/0.15"},
            {**common, "mode": "lines+markers", "line": {"color": colour, "width": 2, "dash": dash}, "name": said[k],
             "showlegend": second is not None},
        ]  # fmt: skip

    def filled(name: str) -> list[dict[str, Any]]:
        changes = []
        for k, some in enumerate(members):
            mean, deviation = stats[name][1:3, some]
            half = np.where(np.isfinite(deviation), deviation, 0.0)
            text = [
                f"{u:.5g} +- {v:.2g}, {lo:.5g} to {hi:.5g}, {c:.0f} runs" for c, u, v, lo, hi in stats[name][:, some].T
            ]
            low, high = numbers(mean - half), numbers(mean + half)
            changes += [
                {"traces": [3 * k], "set": {"y": low}},
                {"traces": [3 * k + 1], "set": {"y": high}},
                {"traces": [3 * k + 2], "set": {"y": numbers(mean), "text": text}},
            ]
        changes[0]["layout"] = {"yaxis.title.text": label(name)}
        return changes

    for change in filled(scenes[0]["label"]):
        traces[change["traces"][0]] |= change["set"]
    for trace in traces:
        if "text" in trace:
            trace["hovertemplate"] = f"{label(a.name)} %{{x}}: %{{text}}<extra>%{{fullData.name}}</extra>"
    log = xs is not None and spread(xs)
    form = layout(label(a.name), label(scenes[0]["label"]), xlog=log, xaxis={} if plain else {"type": "category"})
    caption = f"Means over {over}; bands are one standard deviation to each side."
    title = f"Along {a.name}, {which}" if which else f"Along {a.name}"
    name = section.figure(title, {"data": traces, "layout": form}, caption, 420)
    for scene in scenes:
        scene["figures"].setdefault(name, []).extend(filled(scene["label"]))


def _show_failures(section: Section, folder: Path) -> None:
    """Runs that failed and have not been done since, by the newest version of each sweep."""
    names, none = sweeping.query(folder, "select * from failures limit 0")
    list(none)
    newest = "(select version from sweeps where name = failures.sweep order by rowid desc limit 1)"
    which = f" and version = {newest}" if "version" in names else ""
    some = _rows(
        folder,
        "select params, traceback, max(finished), count(*) over () from failures "
        f"where key not in (select key from runs){which} group by key order by 3 desc limit {FAILURES}",
    )
    if not some:
        return
    count = some[0][3]
    section.heading("Runs that failed")
    section.table(
        "Failures",
        ["parameters", "what it said"],
        [[str(params)[:300], last_words(str(text))[:500]] for params, text, _, _ in some],
        f"{count} run{'s' * (count != 1)} failed; running the sweep again tries {'them' if count != 1 else 'it'} again.",
    )


# ---------------------------------------------------------------- TOML


def toml(plan: Mapping[str, Any]) -> str:
    """The file of a sweep; its values are numbers, texts, truth values, lists and one level of tables."""
    lines = [f"{_key(k)} = {_value(v)}" for k, v in plan.items() if not isinstance(v, Mapping) and v is not None]
    if not plan.get("samples"):
        lines = [line for line in lines if not line.startswith("samples =")]
    for part in ("fixed", "grid", "random"):
        if plan.get(part):
            lines += ["", f"[{part}]", *(f"{_key(k)} = {_value(v)}" for k, v in plan[part].items())]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)  # numbers, truth values and texts are written alike in JSON and TOML
