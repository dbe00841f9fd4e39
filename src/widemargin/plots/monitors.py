"""Pictures of what a monitor recorded: margins, errors, losses and weights of a network in training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from widemargin.types import InputError, show

from .style import INK, LOG_RATIO, MINUS, PLUS, POINTS, QUIET, THIRD, drawable, grid_of, legend, quietly, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


HEURISTICS = {
    "margin_over_layers": "margin over product of layers",
    "margin_over_gradient": "smallest margin / |gradient in x|",
    "margin_over_gradient_median": "median of it",
}
NAMES = 12  # data sets in a picture; the list of more would leave no room for curves
FREE = 2.0  # growth of the outputs with other parameters, from which on their scale is free


@quietly
def records(series: Mapping[str, Mapping[str, Any]], title: str = "") -> Figure:
    """What a monitor has recorded, against the step: `widemargin.monitor.series(folder)`, columns by name for every data set.

    The margins are those of "train" where it was measured twice or more, otherwise of the first data set that was, otherwise of
    the training batches. A dotted line marks where the data is fitted: psi > 0, from where on psi / |w|^L does not fall along
    gradient flow. Before that the first panel has the quantiles of the margins, the title says how far it is to there, and a
    panel shows how the sum of the losses gets on. Margins that are heuristics (`heuristics=True` of the monitor) have a panel
    that says so. Of more than 12 data sets those with most records are drawn, and the title says how many are not.

    `title` stands above. A column is (k,) for k records.

    >>> import torch
    >>> import widemargin as wm
    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> with wm.monitor.MarginMonitor(model, out="run") as monitor:
    ...     for step in (0, 10):
    ...         record = monitor.measure((torch.eye(2), torch.tensor([0, 1])), name="test", step=step)
    >>> figure = wm.plots.records(wm.monitor.series("run"), title="a linear model")
    >>> len(figure.axes)
    6
    """
    if not isinstance(series, Mapping) or not all(
        isinstance(part, Mapping) and "step" in part for part in series.values()
    ):
        raise InputError(f"series must be what widemargin.monitor.series(folder) returns, not {show(series)}")
    there = [name for name, part in series.items() if len(part["step"])]
    if not there:
        raise InputError("there are no records to draw")
    main = main_of({name: series[name] for name in there})
    first = set(sorted(there, key=lambda name: (name not in (main, "step"), -len(series[name]["step"])))[:NAMES])
    series = {name: {key: drawable(v) for key, v in series[name].items()} for name in there if name in first}
    styles = _styles(series, main)
    fitted = np.flatnonzero(_column(series[main], "psi") > 0)
    spread = "margin_q50" in series[main]
    panels: list[Callable[[Axes], None]] = [
        lambda axes: _draw_normalized(axes, series[main], main),
        lambda axes: _draw_error(axes, series, styles),
        lambda axes: _draw_losses(axes, series, styles),
    ]
    if not len(fitted):
        panels[0] = lambda axes: (_draw_fan if spread else _draw_raw)(axes, series[main], main)
    if any(_power(part) or _blocks(part) for part in series.values()):
        panels.append(lambda axes: _draw_weights(axes, series))
    if not len(fitted):
        panels.append(lambda axes: _draw_excess(axes, series[main], main))
    elif spread:
        panels.append(lambda axes: _draw_fan(axes, series[main], main))
    panels.append(lambda axes: _draw_effective(axes, series[main], main))
    measured = heuristics_of(series, main)
    if measured is not None:
        panels.append(lambda axes: _draw_heuristics(axes, series[measured], measured))
    figure, axes = grid_of(-(-len(panels) // 3))
    steps = np.concatenate([part["step"] for part in series.values()]).astype(float)
    shown = steps[steps > 0]
    log = len(shown) > 0 and shown.max() >= LOG_RATIO * shown.min()
    for draw, panel in zip(panels, axes):
        draw(panel)
        if log:
            panel.set_xscale("log")
        left, right = (shown.min(), shown.max()) if log else (steps.min(), steps.max())
        panel.set_xlim(left, right if right > left else left + 1)
        panel.set_xlabel("step")
        if len(fitted):
            panel.axvline(series[main]["step"][fitted[0]], color=INK, lw=0.9, ls=":", zorder=1)
    for panel in axes[len(panels) :]:
        panel.set_visible(False)
    said = f"{main}: fitted (psi > 0, dotted line) at step {series[main]['step'][fitted[0]]}" if len(fitted) else ""
    said = said or f"{main}: not fitted. {how_far(series[main])}"
    if is_free(series[main]):
        said += "\nThe scale of other parameters is free, so that margins over the norm mean little"
        if measured is None:
            said += "; MarginMonitor(heuristics=True) measures some that it does not change"
    if len(there) > len(series):
        said += f"\n{len(there) - len(series)} names with fewer records are left out"
    lines = [short(line, 150) for line in f"{title}. {said}".removeprefix(". ").split("\n")]
    figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=12)
    return figure


def main_of(series: Mapping[str, Mapping[str, Any]]) -> str:
    """The data set whose margins are drawn: "train" or another that was measured as a whole, and more than once, or the batches.

    `series` are columns (k,) by name for every data set. A single record, say at the end, is no curve.

    >>> from widemargin.plots.monitors import main_of
    >>> once, often = {"step": [9], "whole": [True]}, {"step": [0, 9], "whole": [False, False]}
    >>> main_of({"step": often, "test": once})
    'step'
    """
    whole = [name for name, part in series.items() if bool(part["whole"][-1])]
    known = [*["train"] * ("train" in whole), *whole, *series]
    return next((name for name in known if len(series[name]["step"]) > 1), known[0])


def heuristics_of(series: Mapping[str, Mapping[str, Any]], main: str) -> str | None:
    """The data set of which heuristics were measured, `main` where it can be; none without them.

    `series` are columns (k,) by name for every data set.

    >>> from widemargin.plots.monitors import heuristics_of
    >>> print(heuristics_of({"train": {"step": [0]}}, "train"))
    None
    """
    return next((name for name in (main, *series) if any(key in series[name] for key in HEURISTICS)), None)


def how_far(series: Mapping[str, Any]) -> str:
    """What is fitted at the last record, and how far it is to where the theorem begins, in one sentence.

    `series` are columns (k,) of one data set, as `widemargin.monitor.series` has them.

    >>> import numpy as np
    >>> from widemargin.plots.monitors import how_far
    >>> one = {"step": [9], "n": [10], "error": [0.2], "loss": [np.log(2)], "excess": [10.0]}
    >>> print(how_far({name: np.array(value) for name, value in one.items()}))
    80 % are right; the theorem begins when the mean loss is below 0.0693, and it is 0.6931 (10 times that)
    """
    n, error, loss = (float(_column(series, name)[-1]) for name in ("n", "error", "loss"))
    excess = float(excess_of(series)[-1])
    needed = loss / excess if excess > 0 else math.nan
    if not (excess >= 1 and math.isfinite(needed)):
        return f"{100 * (1 - error):.3g} % are right; the theorem begins when the losses of all {n:.0f} sum to less than l(0)"
    return (
        f"{100 * (1 - error):.3g} % are right; the theorem begins when the mean loss is below {needed:.3g}, and it is {loss:.4g} "
        f"({excess:.3g} times that)"
    )


def excess_of(series: Mapping[str, Any]) -> np.ndarray:
    """Sums of losses over l(0), (k,); records of before they were kept have the logistic loss, mostly."""
    known = _column(series, "excess")
    return np.where(np.isfinite(known), known, np.exp(np.minimum(_column(series, "log_loss_sum"), 700.0)) / math.log(2))


def is_free(series: Mapping[str, Any]) -> bool:
    """Whether margins over the norm grow with the scale of other parameters."""
    growth = _column(series, "growth")
    return bool(_power(series)) and bool(growth[-1] > FREE)


def _column(series: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Floats; nan where there are none, and instead of infinities."""
    values = series[name].astype(float) if name in series else np.full(len(series["step"]), np.nan)
    return np.where(np.isfinite(values), values, np.nan)


LOOKS = (
    ("minus", "dash"),
    ("third", "dashdot"),
    ("ink", "dot"),
    ("quiet", "solid"),
    ("minus", "dot"),
    ("third", "dash"),
)
COLOURS = {"plus": PLUS, "minus": MINUS, "third": THIRD, "ink": INK, "quiet": QUIET}
DASHES = {"solid": "-", "dash": "--", "dashdot": "-.", "dot": ":"}


def looks(names: Iterable[str], main: str) -> dict[str, tuple[str, str]]:
    """A colour and a dash for every name, by name, in pictures and on pages."""
    others = [name for name in names if name not in (main, "step")]
    chosen = {main: ("plus", "solid")} | {name: LOOKS[k % len(LOOKS)] for k, name in enumerate(others)}
    return chosen if main == "step" else chosen | {"step": ("quiet", "solid")}


def _styles(series: Mapping[str, Any], main: str) -> dict[str, dict[str, Any]]:
    """Colours and dashes; training batches, which scatter, in thin grey behind."""
    styles: dict[str, dict[str, Any]] = {}
    for name, (colour, dash) in looks(series, main).items():
        if name in series:
            styles[name] = {"color": COLOURS[colour], "ls": DASHES[dash], "lw": 1.9, "zorder": 3}
    if "step" in series and main != "step":
        styles["step"] |= {"lw": 0.7, "alpha": 0.6, "zorder": 2}
    return styles


def _curve(axes: Axes, step: np.ndarray, y: np.ndarray, **style: Any) -> None:
    few = {"marker": "o", "ms": 4} if len(step) <= 3 else {}  # a single record is no line
    axes.plot(*_few(step, y), **(style | few))


def _few(step: np.ndarray, *columns: np.ndarray) -> tuple[np.ndarray, ...]:
    """At most POINTS rows, evenly spread over the logarithm of the step, so that a picture does not hold all of them."""
    if len(step) <= POINTS:
        return step, *columns
    want = np.geomspace(max(1, step[0]), max(2, step[-1]), POINTS - 2)
    chosen = np.unique([0, *np.minimum(np.searchsorted(step, want), len(step) - 1), len(step) - 1])
    return step[chosen], *(column[chosen] for column in columns)


def _power(series: Mapping[str, np.ndarray]) -> str:
    """|w|^L in mathematics, empty where margins are not normalised."""
    degree = _column(series, "degree")
    if not np.isfinite(degree[-1]) or not np.isfinite(_column(series, "margin_normalized")).any():
        return ""
    return "|w|" if degree[-1] == 1 else f"|w|^{{{degree[-1]:.0f}}}"


def _blocks(series: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {key.removeprefix("norm/"): _column(series, key) for key in series if key.startswith("norm/")}


def _draw_normalized(axes: Axes, series: Mapping[str, np.ndarray], main: str) -> None:
    power = _power(series)
    over, ending = (f"/{power}", "_normalized") if power else ("", "")
    smooth, hard = _column(series, f"psi{ending}"), _column(series, f"margin{ending}")
    label = f"smallest margin{f'${over}$' if over else ''}"
    _curve(axes, series["step"], hard, color=MINUS, ls="--", lw=1.9, label=f"{label}, ends at {hard[-1]:.4g}", zorder=3)
    label = rf"smooth margin $\psi{over}$, ends at {smooth[-1]:.4g}"
    top = float(np.nanmax(np.concatenate([smooth, hard, [-1e300]])))
    if 0 < top < math.inf:
        _curve(axes, series["step"], smooth, color=PLUS, lw=1.9, label=label, zorder=4)
        axes.set_ylim(-0.15 * top, 1.35 * top)  # the start, far below, would flatten the rest
    else:  # psi is a sum over examples, not to be compared with a margin below 0
        axes.plot([], [], color=PLUS, lw=1.9, label=label + " (not drawn)")
        axes.margins(y=0.25)
    axes.axhline(0, color=QUIET, lw=0.6, zorder=0)
    what = "Normalised margins" if power else "Margins (not normalised)"
    what = "Margins over a norm that means little" if is_free(series) else what
    axes.set_title(f"{what}, {short(main, 24)}", loc="left")
    legend(axes, "upper left")


def _draw_raw(axes: Axes, series: Mapping[str, np.ndarray], main: str) -> None:
    """Smallest and mean margin, where no quantiles were measured."""
    for name, label, style in (
        ("margin_mean", "mean", {"color": PLUS}),
        ("margin", "smallest", {"color": MINUS, "ls": "--"}),
    ):
        _curve(axes, series["step"], _column(series, name), lw=1.9, label=label, **style)
    axes.axhline(0, color=QUIET, lw=0.6, zorder=0)
    axes.set_title(f"Margins before fitting, {short(main, 24)}", loc="left")
    legend(axes, "best")


def _draw_excess(axes: Axes, series: Mapping[str, np.ndarray], main: str) -> None:
    """The sum of the losses in units of where the theorem begins."""
    y = excess_of(series)
    _curve(axes, series["step"], y, color=PLUS, lw=1.9, label=f"sum of losses / l(0), ends at {y[-1]:.3g}")
    axes.axhline(1, color=INK, lw=0.9, ls=":", label="here the theorem begins")
    axes.set_yscale("log")
    axes.set_title(f"To the theorem, {short(main, 24)}", loc="left")
    legend(axes, "best")


def _draw_heuristics(axes: Axes, series: Mapping[str, np.ndarray], main: str) -> None:
    """Margins that no scale of parameters changes, each over its largest value: what counts is how they move."""
    for (name, label), (colour, dash) in zip(HEURISTICS.items(), ((PLUS, "-"), (MINUS, "--"), (THIRD, "-."))):
        y = _column(series, name)
        top = float(np.nanmax(np.abs(y), initial=0.0)) if np.isfinite(y).any() else 0.0
        if top > 0:
            _curve(axes, series["step"], y / top, color=colour, ls=dash, lw=1.6, label=f"{label}, ends at {y[-1]:.3g}")
    axes.axhline(0, color=QUIET, lw=0.6, zorder=0)
    axes.set_title(f"Heuristics, each over its largest, {short(main, 12)}", loc="left")
    legend(axes, "best")


def _draw_error(axes: Axes, series: Mapping[str, Any], styles: Mapping[str, Any]) -> None:
    least, most = _several(axes, series, styles, "error")
    axes.set_title("Error", loc="left")
    if most >= LOG_RATIO * least:
        # An error of 0 belongs to the picture: below the smallest one the axis is linear and ends at 0.
        axes.set_yscale("symlog", linthresh=least, linscale=0.5)
        ticks = [0.0, *(10.0**k for k in range(math.ceil(math.log10(least) - 1e-9), 1))]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_ylim(-0.05 * least, 1.3)
    else:
        axes.set_ylim(-0.03 * max(most, 1e-3), 1.15 * max(most, 1e-3))
    legend(axes, "best")


def _draw_losses(axes: Axes, series: Mapping[str, Any], styles: Mapping[str, Any]) -> None:
    least, most = _several(axes, series, styles, "loss")
    if most >= LOG_RATIO * least:
        axes.set_yscale("log")
    axes.set_title("Loss (mean)", loc="left")
    legend(axes, "best")


def _several(axes: Axes, series: Mapping[str, Any], styles: Mapping[str, Any], column: str) -> tuple[float, float]:
    """Draw a column of every data set; its smallest positive value and its largest."""
    every = [np.zeros(0)]
    for name, style in styles.items():
        y = _column(series[name], column)
        label = f"{short(name, 24)}{' (batches)' * (name == 'step')}, ends at {y[-1]:.3g}"
        _curve(axes, series[name]["step"], y, label=label, **style)
        every.append(y[y > 0])
    positive = np.concatenate(every)
    return float(positive.min(initial=np.inf)), float(positive.max(initial=0.0))


def _draw_weights(axes: Axes, series: Mapping[str, Any]) -> None:
    """The norm of the homogeneous parameters, and of the blocks whose norms changed most."""
    from matplotlib.ticker import LogLocator, NullFormatter

    longest = max(series.values(), key=lambda part: len(part["step"]))
    if _power(longest):
        y = _column(longest, "norm")
        _curve(axes, longest["step"], y, color=INK, lw=1.9, label=f"|w|, ends at {y[-1]:.4g}", zorder=3)
    of_blocks = max(series.values(), key=lambda part: len(part["step"]) if _blocks(part) else -1)
    norms = _blocks(of_blocks)
    moved = sorted(norms, key=lambda key: -np.nanmax(np.abs(np.diff(norms[key]) / norms[key][0]).cumsum(), initial=0.0))
    looks = ((PLUS, "--"), (MINUS, "-."), (THIRD, ":"), (QUIET, "-"))
    for key, (colour, dash) in zip(moved, looks):
        _curve(axes, of_blocks["step"], norms[key], color=colour, ls=dash, lw=1.4, label=f"block {short(key, 26)}")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    more = f" ({len(moved) - len(looks)} more)" if len(moved) > len(looks) else ""
    axes.set_title(f"Norm of w, and of blocks{more}", loc="left")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** 0.35)  # room for the legend
    legend(axes, "upper left", columns=2)


def _draw_fan(axes: Axes, series: Mapping[str, np.ndarray], main: str) -> None:
    """Quantiles of the margins over the examples, in units of |w|^L where it is known."""
    power, step = _power(series), series["step"]
    scale = np.ones(len(step))
    if power:  # in logarithms: |w|^L may leave floating point
        degree, norm = _column(series, "degree"), _column(series, "norm")
        scale = np.exp(np.clip(-degree * np.log(np.where(norm > 0, norm, np.nan)), -700, 700))
    levels = sorted(float(key.removeprefix("margin_q")) for key in series if key.startswith("margin_q"))
    q = {level: _column(series, f"margin_q{level:g}") * scale for level in levels}
    bands = [(level, 100 - level) for level in levels if 0 < level < 50 and 100 - level in q][-2:]
    for (low, high), alpha in zip(bands, (0.16, 0.32)[-len(bands) :]):
        x, a, b = _few(step, q[low], q[high])
        axes.fill_between(x, a, b, color=PLUS, alpha=alpha, lw=0, label=f"{low:g} % to {high:g} %")
    _curve(axes, step, q[50], color=PLUS, lw=1.9, label="median")
    if 0 in q:
        _curve(axes, step, q[0], color=MINUS, lw=1.5, ls="--", label="smallest")
    axes.axhline(0, color=QUIET, lw=0.6, zorder=0)
    axes.set_title(f"Margins of the examples{f' over ${power}$' if power else ''}, {short(main, 12)}", loc="left")
    legend(axes, "best", columns=2)


def _draw_effective(axes: Axes, series: Mapping[str, np.ndarray], main: str) -> None:
    """exp of the entropy of the dual variables, and the examples close to the smallest margin."""
    n = _column(series, "n")
    _curve(axes, series["step"], n, color=QUIET, lw=0.9, label="all examples")
    _curve(axes, series["step"], _column(series, "effective"), color=PLUS, lw=1.9, label="effective number of examples")
    near = _column(series, "at_minimum")
    if np.isfinite(near).any():
        _curve(axes, series["step"], near, color=MINUS, ls="--", lw=1.4, label="within 1 % of the smallest margin")
    axes.set_yscale("log")
    axes.set_ylim(0.7, 1.6 * float(n[np.isfinite(n)].max(initial=1.0)))
    axes.set_title(f"Examples that drive training, {short(main, 12)}", loc="left")
    legend(axes, "best")
