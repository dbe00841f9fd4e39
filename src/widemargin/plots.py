"""Pictures of certificates, paths, measures and runs. Each function returns a matplotlib Figure; nothing global is touched."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from widemargin import kinds
from widemargin.types import F1_CONVERSIONS, Certificate, Dataset, InputError, Measure, Trajectory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Blue and orange stay apart for colour-blind readers and in print.
PLUS, MINUS, INK, QUIET = "#1f6fb4", "#d9661f", "#222222", "#8a8a8a"
SMALL = 1e-3  # neurons with a smaller share of the norm are counted, not drawn
THIRD = "#2f8f5b"
OVERFLOW = 230.0  # ln of the largest time drawn on its own clock: beyond 1e100 an axis says nothing, and soon overflows
LINES = 40  # trials drawn one by one, thinly; the median is thick
POINTS = 2_000  # of one curve
LOG_RATIO = 20  # margins further apart than this are drawn on a logarithmic axis

Record = tuple[float, float, float, str]  # seconds, lower, upper, message: what a solver reports


def intervals(certs: Sequence[Certificate], marks: Mapping[str, float] | None = None) -> Figure:
    """The certified interval [lower, upper] of each certificate, in its own convention; `marks` are named values."""
    if not certs:
        raise InputError("there is no certificate to draw; give at least one")
    known = dict(marks or {})
    figure, (axes,) = _figure(8.0, 1.9 + 0.62 * len(certs))
    values = [v for c in certs for v in (c.lower, c.upper) if math.isfinite(v)] + list(known.values())
    positive = [v for v in values if v > 0]
    top = max(positive, default=1.0)
    log = len(positive) == len(values) and top > LOG_RATIO * min(positive)
    left = min(positive) / 2 if log else 0.0
    right = top * (top / left) ** 0.08 if log else 1.05 * top
    for row, cert in enumerate(certs):
        colour = INK if cert.proved else QUIET
        upper = min(cert.upper, right)
        axes.plot([max(cert.lower, left), upper], [row, row], color=colour, lw=5, solid_capstyle="butt", zorder=2)
        axes.plot([max(cert.lower, left), upper], [row, row], "|", color=colour, ms=16, mew=2, zorder=3, clip_on=False)
        unproved = f", {kinds.argued(cert.convention)} bound not proved"
        said = f"[{cert.lower:.6g}, {cert.upper:.6g}]" + ("" if cert.proved else unproved)
        start = max(cert.lower, left)
        on_left = start > (math.sqrt(left * right) if log else 0.5 * right)
        # Text on the left ends before a mark that is close, so that it does not cover the mark's line.
        near = [m for m in known.values() if 0.75 * start < m < upper] if on_left and not log else []
        axes.annotate(
            f"{said}, {cert.status}",
            (min([upper, *near]) if on_left else start, row - 0.3),
            (-6 if on_left else 4, 0),
            "data",
            "offset points",
            ha="right" if on_left else "left",
            va="center",
            fontsize=9.5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
        )
    for (name, value), style in zip(known.items(), ("--", ":", "-.") * len(known)):
        axes.axvline(value, color=PLUS, ls=style, lw=1.4, zorder=1, label=name)
    if known:
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), frameon=False, fontsize=9.5, borderpad=0)
    axes.set_yticks(range(len(certs)), [_kind(c) for c in certs])
    axes.set_ylim(len(certs) - 0.5, -0.65)
    axes.tick_params(axis="y", length=0)
    axes.set_xscale("log" if log else "linear")
    axes.set_xlim(left, right)
    what = list(dict.fromkeys(kinds.quantity(c.convention) for c in certs))
    one = {"margin": "margin, each in the convention in brackets", "norm": "smallest norm"}
    axes.set_xlabel(one.get(what[0], what[0]) if len(what) == 1 else f"{' or '.join(what)}, as in brackets")
    title = f"Certified {' and '.join(f'{word}s' for word in what)}, {_short(certs[0].data_name)}"
    axes.set_title(title, loc="left", pad=26 if known else 10)
    return figure


def neurons(measure: Measure, axes: tuple[int, int] = (0, 1)) -> Figure:
    """The neurons of a measure: their directions in the plane of two coordinates (counted from 0), and their masses."""
    unit = measure.normalized()
    i, j = axes
    D = unit.theta.shape[1]
    if i == j or not (0 <= i < D and 0 <= j < D):
        raise InputError(f"axes must be two different coordinates from 0 to {D - 1}, not {axes!r}")
    figure, (plane, bars) = _figure(9.6, 4.7, 2, [1.0, 1.15])
    order = np.argsort(-np.abs(unit.mass), kind="stable")
    total = max(float(np.abs(unit.mass).sum()), 1e-300)
    order = order[np.abs(unit.mass[order]) >= SMALL * total]
    theta, mass = unit.theta[order], unit.mass[order]
    share = np.abs(mass) / total
    largest = max(float(share.max(initial=0)), 1e-300)
    colours = np.where(mass > 0, PLUS, MINUS)

    turn = np.linspace(0, 2 * np.pi, 361)
    plane.plot(np.cos(turn), np.sin(turn), color=QUIET, lw=0.8, zorder=1)
    for line in (plane.axhline, plane.axvline):
        line(0, color=QUIET, lw=0.5, zorder=0)
    size = 8 + 600 * share / largest * min(1.0, 4 * largest)
    plane.scatter(theta[:, i], theta[:, j], s=size, c=colours, alpha=0.62, edgecolors="white", linewidths=0.7, zorder=2)
    plane.set_xlim(-1.12, 1.12)
    plane.set_ylim(-1.12, 1.12)
    plane.set_box_aspect(1)
    plane.set_xticks([-1, 0, 1])
    plane.set_yticks([-1, 0, 1])
    plane.set_xlabel(f"direction, coordinate {i + 1}")
    plane.set_ylabel(f"direction, coordinate {j + 1}", labelpad=-4)
    plane.set_title("Directions (area ~ mass, circle: unit length)", loc="left", fontsize=10.5)

    rank = np.arange(1, len(mass) + 1)
    for name, chosen, colour in (("positive", mass > 0, PLUS), ("negative", mass < 0, MINUS)):
        bars.bar(rank[chosen], share[chosen], color=colour, width=0.85, label=f"{name} mass ({int(chosen.sum())})")
    hidden = len(unit.mass) - len(mass)
    bars.set_xlim(0.3, max(len(mass), 4) + 0.7)
    bars.set_ylim(0, 1.25 * largest)
    bars.set_box_aspect(0.87)
    bars.xaxis.get_major_locator().set_params(integer=True)
    bars.set_xlabel("neuron, by mass")
    bars.set_ylabel("share of the norm")
    said = f" ({hidden} more below {SMALL:.1%} of the norm)" if hidden else ""
    bars.set_title(f"{len(mass)} neurons{said}", loc="left", fontsize=10.5)
    bars.legend(frameon=False, fontsize=9.5, loc="upper right")
    return figure


def progress(records: Sequence[Record], title: str = "Bounds over time", ylabel: str = "margin") -> Figure:
    """Lower and upper bound against seconds, from what a solver reported."""
    rows = [(float(s), float(lower), float(upper)) for s, lower, upper, *_ in records]
    if not rows:
        raise InputError("there are no records to draw; collect them with the progress callback of the solver")
    figure, (axes, gaps) = _figure(9.6, 4.0, 2, [1.25, 1.0])
    t, lower, upper = (np.array(column) for column in zip(*sorted(rows)))
    # Bounds only improve; a solver may report the current round's instead of the best one.
    lower = np.maximum.accumulate(np.where(np.isfinite(lower), lower, 0.0))
    upper = np.minimum.accumulate(np.where(np.isfinite(upper), upper, np.inf))
    known = np.isfinite(upper)
    if known.any():
        axes.fill_between(t[known], lower[known], upper[known], step="post", color=PLUS, alpha=0.12, lw=0)
        axes.step(t[known], upper[known], where="post", color=MINUS, lw=1.8, label=f"upper bound {upper[-1]:.6g}")
    axes.step(t, lower, where="post", color=PLUS, lw=1.8, label=f"lower bound {lower[-1]:.6g}")
    axes.plot(t[-1:][known[-1:]], upper[-1:][known[-1:]], "o", color=MINUS, ms=4)
    axes.plot(t[-1:], lower[-1:], "o", color=PLUS, ms=4)
    # The first bounds may be far off: show six times the final one at most.
    end = float(upper[-1]) if known[-1] else float(lower[-1])
    highest = min(float(upper[known].max()) if known.any() else end, 6 * end) if end > 0 else 1.0
    axes.set_ylim(0, 1.08 * highest)
    axes.set_ylabel(ylabel)
    axes.set_title(title, loc="left")
    axes.legend(frameon=False, loc="lower right", fontsize=9.5)

    gap = np.where(known & (upper > 0), 1 - lower / np.where(known & (upper > 0), upper, 1.0), np.nan)
    drawn = gap > 0
    if drawn.any():
        gaps.step(t[drawn], gap[drawn], where="post", color=INK, lw=1.8)
        gaps.plot(t[drawn], gap[drawn], "o", color=INK, ms=3)
        gaps.set_yscale("log")
        gaps.set_ylim(min(0.5 * float(gap[drawn].min()), 0.1), 1.5)
    else:
        gaps.text(0.5, 0.5, "no gap to show", ha="center", va="center", color=QUIET, transform=gaps.transAxes)
        gaps.set_yticks([])
    gaps.set_ylabel("(upper - lower) / upper")
    gaps.set_title("Relative gap", loc="left")
    for one in (axes, gaps):
        one.set_xlim(min(0.0, float(t[0])), max(1.04 * float(t[-1]), 1e-3))
        one.set_xlabel("seconds")
    return figure


def decision(cert: Certificate, data: Dataset, f: Callable[[np.ndarray], np.ndarray] | None = None) -> Figure:
    """Points of a data set in the plane, the certificate's function as shading, and where it is zero.

    The function is `cert.function`, of norm 1 where the certificate is of a margin; where it holds none, give `f`.
    """
    if data.d != 2:
        raise InputError(f"{data.name}: a picture of the decision needs 2 features, not {data.d}; choose two columns")
    f = f or (lambda X: cert.function(X, data))
    y = data.signs()
    (x0, z0), (x1, z1) = data.X.min(axis=0), data.X.max(axis=0)
    pad = 0.12 * max(x1 - x0, z1 - z0) or 1.0
    g, h = np.linspace(x0 - pad, x1 + pad, 301), np.linspace(z0 - pad, z1 + pad, 301)
    values = f(np.stack(np.meshgrid(g, h), axis=-1).reshape(-1, 2)).reshape(len(h), len(g))
    top = float(np.abs(values).max()) or 1.0
    figure, (axes,) = _figure(6.6, 5.4)
    from matplotlib.colors import LinearSegmentedColormap

    shade = LinearSegmentedColormap.from_list("signs", [MINUS, "white", PLUS])
    image = axes.pcolormesh(g, h, values, cmap=shade, vmin=-top, vmax=top, alpha=0.45, shading="auto", rasterized=True)
    if values.min() < 0 < values.max():
        axes.contour(g, h, values, [0.0], colors=INK, linewidths=1.6)
    margin = kinds.quantity(cert.convention) == "margin"
    if margin and cert.lower > 0 and values.min() < cert.lower < values.max():
        axes.contour(g, h, np.abs(values), [cert.lower], colors=INK, linewidths=0.7, linestyles="dashed")
    for sign, colour, marker in ((1, PLUS, "o"), (-1, MINUS, "s")):
        x, z = data.X[y == sign].T
        name = f"label {data.classes[(sign + 1) // 2]}"
        axes.scatter(x, z, s=34, c=colour, marker=marker, edgecolors="white", linewidths=0.8, label=name, zorder=3)
    axes.set_xlim(g[0], g[-1])
    axes.set_ylim(h[0], h[-1])
    axes.set_xlabel("feature 1")
    axes.set_ylabel("feature 2")
    interval = f"[{cert.lower:.5g}, {cert.upper:.5g}]"
    what = f"{kinds.label(cert.kind)} margin ({cert.convention})"
    if not margin:
        what = kinds.label(cert.kind) + kinds.detail(cert.kind, cert.extra)
    axes.set_title(f"{what} in {interval}", loc="left", pad=28, fontsize=None if margin else 10)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, borderpad=0.2)
    said = "f(x), norm 1; solid: f = 0, dashed: |f| = margin" if margin else "f(x); solid: f = 0"
    figure.colorbar(image, ax=axes, label=said, shrink=0.92)
    return figure


def trajectory(traj: Trajectory, reference: tuple[float, float] | Certificate | None = None) -> Figure:
    """Margins, loss, norms, and where they were recorded optimality and rotations, against time.

    `reference` is the certified largest margin in convention M1 (a pair of bounds, or an f1 certificate); it is drawn in the
    convention of the margins. Thick lines are medians over trials; where trials have clocks of their own there are none.
    """
    if len(traj.t) == 0:
        raise InputError("this trajectory has no records to draw")
    x, name, log = _time(traj)
    has = traj.records.__contains__
    lower_row = has("rotation") and has("neuron_norm")
    figure, axes = _grid(2 if lower_row else 1)
    _draw_margins(axes[0], traj, x, reference)
    _draw_loss(axes[1], traj, x)
    _draw_norms(axes[2], traj, x)
    timed = list(axes[:3])
    if lower_row:
        _draw_optimality(axes[3], traj, x)
        _draw_rotations(axes[4], traj, x)
        _draw_neurons(axes[5], traj)
        timed += [axes[3], axes[4]]
    for one in timed:
        shown = x[np.isfinite(x) & (x > 0)] if log else x[np.isfinite(x)]
        if log:
            one.set_xscale("log")
        if shown.size and shown.max() > shown.min():
            one.set_xlim(shown.min(), shown.max())
        one.set_xlabel(name)
    config = traj.config
    what = ", ".join(str(config[key].get(sub, "")) for key, sub in (("net", "net"), ("rule", "class")) if key in config)
    width = f", width {config['net']['m']}" if "m" in config.get("net", {}) else ""
    where = config.get("data", {}).get("names", [""])[0]
    trials = f"{traj.trials} trial{'s' * (traj.trials > 1)}"
    figure.suptitle(_short(f"{where}: {what}{width}, {trials}", 110), x=0.01, ha="left", fontsize=12)
    return figure


def records(series: Mapping[str, Mapping[str, Any]], title: str = "") -> Figure:
    """What a monitor has recorded, against the step: `widemargin.monitor.series(folder)`, columns by name for every data set.

    The margins are those of "train" where it was measured, otherwise of the first data set that was, otherwise of the training
    batches. A dotted line marks where the data is fitted: psi > 0, from where on psi / |w|^L does not fall along gradient flow.
    """
    series = {name: {key: np.asarray(v) for key, v in one.items()} for name, one in series.items() if len(one["step"])}
    if not series:
        raise InputError("there are no records to draw")
    whole = [name for name, one in series.items() if bool(one["whole"][-1])]
    main = "train" if "train" in whole else [*whole, *series][0]
    styles = _styles(series, main)
    panels: list[Callable[[Axes], None]] = [
        lambda axes: _draw_normalized(axes, series[main], main),
        lambda axes: _draw_error(axes, series, styles),
        lambda axes: _draw_losses(axes, series, styles),
    ]
    if any(_power(one) or _blocks(one) for one in series.values()):
        panels.append(lambda axes: _draw_weights(axes, series))
    if "margin_q50" in series[main]:
        panels.append(lambda axes: _draw_fan(axes, series[main], main))
    panels.append(lambda axes: _draw_effective(axes, series[main], main))
    figure, axes = _grid(2)
    steps = np.concatenate([one["step"] for one in series.values()]).astype(float)
    shown = steps[steps > 0]
    log = len(shown) > 0 and shown.max() >= LOG_RATIO * shown.min()
    fitted = np.flatnonzero(_column(series[main], "psi") > 0)
    for draw, one in zip(panels, axes):
        draw(one)
        if log:
            one.set_xscale("log")
        left, right = (shown.min(), shown.max()) if log else (steps.min(), steps.max())
        one.set_xlim(left, right if right > left else left + 1)
        one.set_xlabel("step")
        if len(fitted):
            one.axvline(series[main]["step"][fitted[0]], color=INK, lw=0.9, ls=":", zorder=1)
    for one in axes[len(panels) :]:
        one.set_visible(False)
    said = f"{main}: fitted (psi > 0, dotted line) at step {series[main]['step'][fitted[0]]}" if len(fitted) else ""
    said = said or f"{main}: not fitted (psi is never above 0)"
    figure.suptitle(_short(f"{title}. {said}" if title else said, 150), x=0.01, ha="left", fontsize=12)
    return figure


def path(columns: Mapping[str, np.ndarray], title: str = "") -> Figure:
    """Certified optima along decays, from `optima.Path.columns()`: objective, norm and neurons, margin.

    With the columns that `theory.regularization.guaranteed_along` puts beside them, the largest margin of any network and the
    margin that is guaranteed at each decay are drawn, too. Targets that are no labels have no margins.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    decay = np.asarray(columns["weight_decay"], dtype=np.float64)
    if not len(decay):
        raise InputError("there are no points to draw; a path has at least one decay")
    known = {name: np.where(np.isfinite(values), values, np.nan) for name, values in columns.items()}
    labels = bool(np.isfinite(known["margin"]).any())
    figure, panels = _figure(13.2 if labels else 9.2, 4.0, 3 if labels else 2)
    left, middle = panels[:2]
    left.fill_between(decay, known["lower"], known["upper"], color=PLUS, alpha=0.35, lw=0)
    left.plot(decay, known["upper"], "o-", color=PLUS, lw=1.8, ms=4, label="least objective, certified")
    left.plot(
        decay,
        np.where(known["loss"] > 0, known["loss"], np.nan),
        "s--",
        color=MINUS,
        lw=1.4,
        ms=3.5,
        label="mean loss in it",
    )
    error = np.where(known["error"] > 0, known["error"], np.nan)
    if np.isfinite(error).any():
        left.plot(decay, error, "^:", color=INK, lw=1.2, ms=4, label="training error, where not 0")
    left.set_yscale("log")
    left.set_title(_short(title, 44) or "Objective", loc="left")
    left.legend(frameon=False, fontsize=8.5, loc="upper left")
    norm = np.where(known["norm"] > 0, known["norm"], np.nan)
    middle.plot(decay, norm, "o-", color=PLUS, lw=1.8, ms=4, label="norm |nu|")
    middle.plot(
        decay,
        np.where(known["neurons"] > 0, known["neurons"], np.nan),
        "s--",
        color=MINUS,
        lw=1.4,
        ms=3.5,
        label="neurons",
    )
    middle.set_yscale("log")
    low, high = middle.get_ylim()
    middle.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1e3 * low else (1,)))
    middle.yaxis.set_major_formatter("{x:g}")
    middle.yaxis.set_minor_formatter(NullFormatter())
    middle.set_title("Network", loc="left")
    middle.legend(frameon=False, fontsize=8.5, loc="upper right")
    if labels:
        _draw_path_margins(panels[2], decay, known)
    for axes in panels:
        axes.set_xscale("log")
        axes.set_xlabel("weight decay")
    return figure


def _draw_path_margins(axes: Axes, decay: np.ndarray, known: Mapping[str, np.ndarray]) -> None:
    margin = known["margin"]
    top = float(np.nanmax(margin))
    if "largest" in known:
        largest = float(np.nanmax(known["largest"]))
        axes.axhline(largest, color=INK, ls="--", lw=1.3, label=f"largest, no output bias: {largest:.4g}")
        top = max(top, largest)
    axes.plot(decay, margin, "o-", color=PLUS, lw=1.8, ms=4, label=f"margin, ends at {margin[-1]:.4g}")
    if "guaranteed" in known:
        told = np.where(known["guaranteed"] > 0, known["guaranteed"], np.nan)
        said = (
            f"guaranteed (WM-4), ends at {told[-1]:.4g}" if np.isfinite(told[-1]) else "guaranteed (WM-4): nothing here"
        )
        axes.plot(decay, told, "s:", color=THIRD, lw=1.6, ms=3.5, label=said)
        axes.fill_between(decay, told, 0, color=THIRD, alpha=0.1, lw=0)
    if top > 0:
        axes.set_ylim(-0.15 * top, 1.5 * top)  # margins of large decays may be far below 0
    axes.axhline(0, color=QUIET, lw=0.6, zorder=0)
    axes.set_title("Normalised margin (M1)", loc="left")
    axes.legend(frameon=False, fontsize=8.5, loc="upper right")


def _column(one: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Floats; nan where there are none, and instead of infinities."""
    values = one[name].astype(float) if name in one else np.full(len(one["step"]), np.nan)
    return np.where(np.isfinite(values), values, np.nan)


def _styles(series: Mapping[str, Any], main: str) -> dict[str, dict[str, Any]]:
    """A colour and a dash for every name; training batches, which scatter, in thin grey behind."""
    rest = [(MINUS, "--"), (THIRD, "-."), (INK, ":"), (QUIET, "-"), (MINUS, ":"), (THIRD, "--")]
    found: dict[str, dict[str, Any]] = {main: {"color": PLUS, "ls": "-", "lw": 1.9, "zorder": 3}}
    others = [name for name in series if name not in (main, "step")]
    for k, name in enumerate(others):
        colour, dash = rest[k % len(rest)]
        found[name] = {"color": colour, "ls": dash, "lw": 1.9, "zorder": 3}
    if "step" in series and main != "step":
        found["step"] = {"color": QUIET, "ls": "-", "lw": 0.7, "alpha": 0.6, "zorder": 2}
    return found


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


def _power(one: Mapping[str, np.ndarray]) -> str:
    """|w|^L in mathematics, empty where margins are not normalised."""
    degree = _column(one, "degree")
    if not np.isfinite(degree[-1]) or not np.isfinite(_column(one, "margin_normalized")).any():
        return ""
    return "|w|" if degree[-1] == 1 else f"|w|^{{{degree[-1]:.0f}}}"


def _blocks(one: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {key.removeprefix("norm/"): _column(one, key) for key in one if key.startswith("norm/")}


def _draw_normalized(axes: Axes, one: Mapping[str, np.ndarray], main: str) -> None:
    power = _power(one)
    over, ending = (f"/{power}", "_normalized") if power else ("", "")
    smooth, hard = _column(one, f"psi{ending}"), _column(one, f"margin{ending}")
    label = f"smallest margin{f'${over}$' if over else ''}"
    _curve(axes, one["step"], hard, color=MINUS, ls="--", lw=1.9, label=f"{label}, ends at {hard[-1]:.4g}", zorder=3)
    label = rf"smooth margin $\psi{over}$, ends at {smooth[-1]:.4g}"
    top = float(np.nanmax(np.concatenate([smooth, hard, [-1e300]])))
    if top > 0:
        _curve(axes, one["step"], smooth, color=PLUS, lw=1.9, label=label, zorder=4)
        axes.set_ylim(-0.15 * top, 1.35 * top)  # the start, far below, would flatten the rest
    else:  # psi is a sum over examples, not to be compared with a margin below 0
        axes.plot([], [], color=PLUS, lw=1.9, label=label + " (not drawn)")
        axes.margins(y=0.25)
    axes.axhline(0, color=QUIET, lw=0.6, zorder=0)
    axes.set_title(f"{'Normalised margins' if power else 'Margins (not normalised)'}, {_short(main, 24)}", loc="left")
    axes.legend(frameon=False, fontsize=8.5, loc="upper left")


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
    axes.legend(frameon=False, fontsize=8.5, loc="best")


def _draw_losses(axes: Axes, series: Mapping[str, Any], styles: Mapping[str, Any]) -> None:
    least, most = _several(axes, series, styles, "loss")
    if most >= LOG_RATIO * least:
        axes.set_yscale("log")
    axes.set_title("Loss (mean)", loc="left")
    axes.legend(frameon=False, fontsize=8.5, loc="best")


def _several(axes: Axes, series: Mapping[str, Any], styles: Mapping[str, Any], column: str) -> tuple[float, float]:
    """Draw a column of every data set; its smallest positive value and its largest."""
    every = [np.zeros(0)]
    for name, style in styles.items():
        y = _column(series[name], column)
        label = f"{_short(name, 24)}{' (batches)' * (name == 'step')}, ends at {y[-1]:.3g}"
        _curve(axes, series[name]["step"], y, label=label, **style)
        every.append(y[y > 0])
    positive = np.concatenate(every)
    return float(positive.min(initial=np.inf)), float(positive.max(initial=0.0))


def _draw_weights(axes: Axes, series: Mapping[str, Any]) -> None:
    """The norm of the homogeneous parameters, and of the blocks whose norms changed most."""
    from matplotlib.ticker import LogLocator, NullFormatter

    longest = max(series.values(), key=lambda one: len(one["step"]))
    if _power(longest):
        y = _column(longest, "norm")
        _curve(axes, longest["step"], y, color=INK, lw=1.9, label=f"|w|, ends at {y[-1]:.4g}", zorder=3)
    of_blocks = max(series.values(), key=lambda one: len(one["step"]) if _blocks(one) else -1)
    norms = _blocks(of_blocks)
    moved = sorted(norms, key=lambda key: -np.nanmax(np.abs(np.diff(norms[key]) / norms[key][0]).cumsum(), initial=0.0))
    looks = ((PLUS, "--"), (MINUS, "-."), (THIRD, ":"), (QUIET, "-"))
    for key, (colour, dash) in zip(moved, looks):
        _curve(axes, of_blocks["step"], norms[key], color=colour, ls=dash, lw=1.4, label=f"block {_short(key, 26)}")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    more = f" ({len(moved) - len(looks)} more)" if len(moved) > len(looks) else ""
    axes.set_title(f"Norm of w, and of blocks{more}", loc="left")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** 0.35)  # room for the legend
    axes.legend(frameon=False, fontsize=8.5, loc="upper left", ncols=2)


def _draw_fan(axes: Axes, one: Mapping[str, np.ndarray], main: str) -> None:
    """Quantiles of the margins over the examples, in units of |w|^L where it is known."""
    power, step = _power(one), one["step"]
    scale = np.ones(len(step))
    if power:  # in logarithms: |w|^L may leave floating point
        degree, norm = _column(one, "degree"), _column(one, "norm")
        scale = np.exp(np.clip(-degree * np.log(np.where(norm > 0, norm, np.nan)), -700, 700))
    levels = sorted(float(key.removeprefix("margin_q")) for key in one if key.startswith("margin_q"))
    q = {level: _column(one, f"margin_q{level:g}") * scale for level in levels}
    bands = [(level, 100 - level) for level in levels if 0 < level < 50 and 100 - level in q][-2:]
    for (low, high), alpha in zip(bands, (0.16, 0.32)[-len(bands) :]):
        x, a, b = _few(step, q[low], q[high])
        axes.fill_between(x, a, b, color=PLUS, alpha=alpha, lw=0, label=f"{low:g} % to {high:g} %")
    _curve(axes, step, q[50], color=PLUS, lw=1.9, label="median")
    if 0 in q:
        _curve(axes, step, q[0], color=MINUS, lw=1.5, ls="--", label="smallest")
    axes.axhline(0, color=QUIET, lw=0.6, zorder=0)
    axes.set_title(f"Margins of the examples{f' over ${power}$' if power else ''}, {_short(main, 12)}", loc="left")
    axes.legend(frameon=False, fontsize=8.5, loc="best", ncols=2)


def _draw_effective(axes: Axes, one: Mapping[str, np.ndarray], main: str) -> None:
    """exp of the entropy of the dual variables, and the examples close to the smallest margin."""
    n = _column(one, "n")
    _curve(axes, one["step"], n, color=QUIET, lw=0.9, label="all examples")
    _curve(axes, one["step"], _column(one, "effective"), color=PLUS, lw=1.9, label="effective number of examples")
    near = _column(one, "at_minimum")
    if np.isfinite(near).any():
        _curve(axes, one["step"], near, color=MINUS, ls="--", lw=1.4, label="within 1 % of the smallest margin")
    axes.set_yscale("log")
    axes.set_ylim(0.7, 1.6 * float(n.max()))
    axes.set_title(f"Examples that drive training, {_short(main, 12)}", loc="left")
    axes.legend(frameon=False, fontsize=8.5, loc="best")


def _time(traj: Trajectory) -> tuple[np.ndarray, str, bool]:
    """Time of every record and trial (T, B), its name, and whether its axis is logarithmic."""
    shape = (len(traj.t), traj.trials)
    if "log_t_mean" in traj.records and "t_cb" in traj.records:
        if np.nanmax(traj["log_t_mean"]) > OVERFLOW:
            return traj["t_cb"], "time (CB's clock)", False
        if np.isfinite(traj["log_t_mean"][-1]).any():
            return np.exp(traj["log_t_mean"]), "time (clock of the mean risk)", True
    return np.broadcast_to(traj.t[:, None], shape), "step or time", True


def _lines(axes: Axes, x: np.ndarray, y: np.ndarray, colour: str, label: str, style: str = "-") -> None:
    """One thin line per trial, and a thick one for the median where all trials have the same clock."""
    y = np.where(np.isfinite(y), y, np.nan)
    seen = np.isfinite(y).any(axis=1)
    x, y = x[seen], y[seen]
    if not len(y):
        return
    spread = np.ptp(np.where(np.isfinite(x), x, 0.0), axis=1).max() > 1e-6 * max(1e-300, float(np.nanmax(np.abs(x))))
    width, alpha = (1.2, 0.9 if y.shape[1] <= 3 else 0.5) if spread else (0.6, 0.35)
    if y.shape[1] > 1:
        for trial in range(min(y.shape[1], LINES)):
            known = np.isfinite(y[:, trial])
            said = label if spread and trial == 0 else None
            axes.plot(
                x[known, trial], y[known, trial], color=colour, lw=width, alpha=alpha, ls=style, label=said, zorder=2
            )
    if not spread:
        axes.plot(x[:, 0], np.nanmedian(y, axis=1), color=colour, lw=1.9, ls=style, label=label, zorder=3)


def _largest(reference: tuple[float, float] | Certificate | None, key: str) -> tuple[float, float] | None:
    """The certified bounds in a convention; None where nothing is known."""
    factor = {"M1": 1.0, **F1_CONVERSIONS}.get(key)
    if reference is None or factor is None or key in ("M3", "M6"):  # these would need to know of the bias
        return None
    if isinstance(reference, Certificate):
        return reference.bounds(key) if key == "M1" or key in reference.conversions else None
    return factor * reference[0], factor * reference[1]


def _draw_margins(
    axes: Axes, traj: Trajectory, x: np.ndarray, reference: tuple[float, float] | Certificate | None
) -> None:
    names = [f"M{number}" for number in (2, 1, 4, 5, 6, 10, 7, 3)]
    conventions = [key for key in (*names, "MT2", "partial") if f"margin_{key}" in traj.records]
    if not conventions:
        axes.text(0.5, 0.5, "this loss has no margins", ha="center", va="center", color=QUIET, transform=axes.transAxes)
        axes.set_title("Margin", loc="left")
        return
    key = conventions[0]
    y = traj[f"margin_{key}"]
    _lines(axes, x, y, PLUS, f"smallest margin, ends at {np.nanmedian(y[-1]):.4g}")
    top = np.nanmax(y)
    homogeneous = key in ("M2", "M4", "MT2", "partial") and "psi_normalized" in traj.records
    same = homogeneous and np.allclose(traj["margin_partial"], y) if "margin_partial" in traj.records else False
    if same:
        _lines(axes, x, traj["psi_normalized"], MINUS, "smooth margin psi, same norm", "--")
    best = _largest(reference, key)
    if best is not None:
        low, high = best
        axes.axhspan(low, high, color=INK, alpha=0.25, lw=0, zorder=1)
        axes.axhline(high, color=INK, lw=1.3, ls=":", zorder=1, label=f"largest possible, at most {high:.4g}")
        top = max(top, high)
    if np.isfinite(top) and top > 0:
        axes.set_ylim(-0.12 * top, 1.3 * top)
    axes.axhline(0, color=QUIET, lw=0.6, zorder=0)
    unit = f"convention {key}" if key != "partial" else "over the norm of the homogeneous part"
    axes.set_title(f"Normalised margin ({unit})", loc="left")
    axes.legend(frameon=False, fontsize=8.5, loc="upper left")


def _draw_loss(axes: Axes, traj: Trajectory, x: np.ndarray) -> None:
    if "log_risk" not in traj.records:
        axes.set_title("Risk (not recorded)", loc="left")
        return
    log_risk = traj["log_risk"]
    if np.nanmin(log_risk) < -OVERFLOW:
        digits = -log_risk / math.log(10)
        _lines(axes, x, np.where(digits > 0, digits, np.nan), PLUS, "risk")
        axes.set_title("Risk: zeros behind the point, -log10", loc="left")
    else:
        _lines(axes, x, np.exp(log_risk), PLUS, "risk")
        axes.set_title("Risk (mean loss)", loc="left")
    axes.set_yscale("log")
    for name, colour in (("train_error", INK), ("test_error", MINUS)):
        if name in traj.records and np.nanmin(log_risk) >= -OVERFLOW:
            y = traj[name]
            _lines(axes, x, np.where(y > 0, y, np.nan), colour, name.replace("_", " "), ":")
    axes.legend(frameon=False, fontsize=8.5, loc="best")


def _draw_norms(axes: Axes, traj: Trajectory, x: np.ndarray) -> None:
    if "norm" in traj.records:
        _lines(axes, x, traj["norm"], INK, "|W|")
    layers = [name for name in traj.records if name.startswith("moved_")]
    for name, colour in zip(layers, (PLUS, MINUS, THIRD, QUIET)):
        y = traj[name]
        _lines(axes, x, np.where(y > 0, y, np.nan), colour, f"moved: {name.removeprefix('moved_')}", "--")
    axes.set_yscale("log")
    axes.set_title("Norm, and distance from the start", loc="left")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8.5, loc="best")


def _draw_optimality(axes: Axes, traj: Trajectory, x: np.ndarray) -> None:
    if "gap_estimate" in traj.records:
        gap = traj["gap_estimate"] / np.where(traj["dual_estimate"] > 0, traj["dual_estimate"], np.nan)
        _lines(axes, x, np.where(gap > 0, gap, np.nan), PLUS, "gap to the bound of its own dual (estimate)")
    if "kkt_residual" in traj.records:
        _lines(axes, x, traj["kkt_residual"], MINUS, "KKT residual", "--")
    axes.set_yscale("log")
    axes.set_title("Distance from optimality", loc="left")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8.5, loc="lower left")


def _draw_rotations(axes: Axes, traj: Trajectory, x: np.ndarray) -> None:
    """Quantiles over the neurons of all trials."""
    cosine = traj["rotation"].reshape(len(traj.t), -1)
    middle = np.nanmedian(np.where(np.isfinite(x), x, np.nan), axis=1)
    shares = np.nanquantile(cosine, (0.05, 0.25, 0.5, 0.75, 0.95), axis=1)
    axes.fill_between(middle, shares[0], shares[4], color=PLUS, alpha=0.15, lw=0, label="90 % of the neurons")
    axes.fill_between(middle, shares[1], shares[3], color=PLUS, alpha=0.3, lw=0, label="half of them")
    axes.plot(middle, shares[2], color=PLUS, lw=1.9, label="median")
    axes.set_ylim(-1.05, 1.05)
    axes.axhline(0, color=QUIET, lw=0.6, zorder=0)
    axes.set_title("Rotation: cosine to the first direction", loc="left")
    axes.legend(frameon=False, fontsize=8.5, loc="lower left")


def _draw_neurons(axes: Axes, traj: Trajectory) -> None:
    """Norm and rotation of every neuron at the end."""
    size, cosine = traj["neuron_norm"][-1], traj["rotation"][-1]
    largest = np.maximum(np.nanmax(size, axis=1, keepdims=True), 1e-300)
    share = np.where(np.isfinite(size), size / largest, np.nan)
    axes.scatter(share.ravel(), cosine.ravel(), s=14, color=PLUS, alpha=0.5, edgecolors="none")
    axes.set_xscale("log")
    axes.set_xlim(max(1e-6, 0.7 * float(np.nanmin(np.where(share > 0, share, np.nan)))), 1.4)
    axes.set_ylim(-1.05, 1.05)
    axes.set_xlabel("norm |a_j| |v_j| over the largest")
    axes.set_title("Neurons at the end: norm and rotation", loc="left")


def _grid(rows: int) -> tuple[Figure, Sequence[Axes]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.2, 0.6 + 3.7 * rows), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, 3, squeeze=False).ravel())
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.tick_params(labelsize=9)
    return figure, axes


def _figure(width: float, height: float, columns: int = 1, ratios: list[float] | None = None) -> tuple[Figure, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes: Sequence[Axes] = figure.subplots(1, columns, squeeze=False, width_ratios=ratios)[0]
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.tick_params(labelsize=9.5)
    return figure, axes


def _kind(cert: Certificate) -> str:
    word = {"srelu": ", squared ReLU", "relu": ""}.get(cert.activation, f", {cert.activation} ReLU")
    if kinds.quantity(cert.convention) == "objective":
        return f"{kinds.label(cert.kind)}\n{kinds.detail(cert.kind, cert.extra).removeprefix(', ')}"
    return f"{kinds.label(cert.kind)}{word if cert.kind != 'linear' else ''} ({cert.convention})"


def _short(name: str, most: int = 60) -> str:
    """The name without anything that matplotlib would read as mathematics."""
    name = name.replace("$", r"\$")
    return name if len(name) <= most else name[: most - 3] + "..."
