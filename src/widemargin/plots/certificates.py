"""Pictures of certificates, of the measures that reach them, of decisions, of solvers at work, and of paths of optima."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

from widemargin import kinds
from widemargin.dataset import as_dataset, takes_data_second
from widemargin.types import Certificate, Dataset, InputError, Measure, show

from .style import DRAWN_SHARE, INK, LOG_RATIO, MINUS, PLUS, QUIET, THIRD, figure_of, legend, logarithmic, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Record = tuple[float, float, float, str]  # seconds, lower, upper, message: what a solver reports


def intervals(certs: Sequence[Certificate], marks: Mapping[str, float] | None = None) -> Figure:
    """The certified interval [lower, upper] of each certificate, in its own convention; `marks` are named values.

    `certs` are drawn one below the other.

    >>> import widemargin as wm
    >>> data = wm.data.dyadic(3)
    >>> figure = wm.plots.intervals([wm.margins.linear(data)], marks={"closed form": (3 / 252) ** 0.5})
    >>> len(figure.axes)
    1
    """
    certs = [certs] if isinstance(certs, Certificate) else list(certs) if isinstance(certs, Sequence) else [certs]
    if not certs:
        raise InputError("there is no certificate to draw; give at least one")
    for cert in certs:
        if not isinstance(cert, Certificate):
            raise InputError(f"certs must be certificates, such as margins.f1 returns, not {show(cert)}")
    if not (marks is None or (isinstance(marks, Mapping) and all(isinstance(v, Real) for v in marks.values()))):
        raise InputError(f"marks must be a dictionary of names and numbers, not {show(marks)}")
    known = dict(marks or {})
    figure, (axes,) = figure_of(8.0, 1.9 + 0.62 * len(certs))
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
    shared = {"margin": "margin, each in the convention in brackets", "norm": "smallest norm"}
    axes.set_xlabel(shared.get(what[0], what[0]) if len(what) == 1 else f"{' or '.join(what)}, as in brackets")
    title = f"Certified {' and '.join(f'{word}s' for word in what)}, {short(certs[0].data_name)}"
    axes.set_title(title, loc="left", pad=26 if known else 10)
    return figure


def neurons(measure: Measure, axes: tuple[int, int] = (0, 1)) -> Figure:
    """The neurons of a measure: their directions in the plane of two coordinates (counted from 0), and their masses.

    `axes` are the two coordinates.

    >>> import widemargin as wm
    >>> figure = wm.plots.neurons(wm.Measure([[1.0, 0.0], [0.0, -1.0]], [0.25, -0.75]))
    >>> len(figure.axes)  # directions and masses
    2
    """
    if not isinstance(measure, Measure):
        raise InputError(f"measure must be a widemargin.Measure, such as cert.primal, not {show(measure)}")
    unit = measure.normalized()
    D = unit.theta.shape[1]
    two = isinstance(axes, tuple | list) and len(axes) == 2 and all(isinstance(k, Integral) for k in axes)
    if not two or axes[0] == axes[1] or not all(0 <= k < D for k in axes):
        raise InputError(f"axes must be two different coordinates from 0 to {D - 1}, not {show(axes)}")
    i, j = axes
    figure, (plane, bars) = figure_of(9.6, 4.7, 2, [1.0, 1.15])
    order = np.argsort(-np.abs(unit.mass), kind="stable")
    total = max(float(np.abs(unit.mass).sum()), 1e-300)
    order = order[np.abs(unit.mass[order]) >= DRAWN_SHARE * total]
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
    said = f" ({hidden} more below {DRAWN_SHARE:.1%} of the norm)" if hidden else ""
    bars.set_title(f"{len(mass)} neurons{said}", loc="left", fontsize=10.5)
    bars.legend(frameon=False, fontsize=9.5, loc="upper right")
    return figure


def progress(records: Sequence[Record], title: str = "Bounds over time", ylabel: str = "margin") -> Figure:
    """Lower and upper bound against seconds, from what a solver reported.

    `records` are (seconds, lower, upper, message) as `progress` of a solver is called; `title` and `ylabel` stand in the picture.

    >>> import widemargin as wm
    >>> seen = [(0.1, 0.0, 0.5, "first network"), (0.4, 0.2, 0.3, "more neurons")]
    >>> figure = wm.plots.progress(seen, ylabel="margin (M1)")
    >>> len(figure.axes)  # the bounds, and their gap
    2
    """
    try:
        rows = [(float(s), float(lower), float(upper)) for s, lower, upper, *_ in records]
    except (TypeError, ValueError):
        raise InputError(
            f"records must be a list of (seconds, lower, upper, message), as progress of a solver is called, not {show(records)}"
        ) from None
    if not rows:
        raise InputError("there are no records to draw; collect them with the progress callback of the solver")
    figure, (axes, gaps) = figure_of(9.6, 4.0, 2, [1.25, 1.0])
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
    for panel in (axes, gaps):
        panel.set_xlim(min(0.0, float(t[0])), max(1.04 * float(t[-1]), 1e-3))
        panel.set_xlabel("seconds")
    return figure


@takes_data_second("signs")
def decision(cert: Certificate, data: Dataset, f: Callable[[np.ndarray], np.ndarray] | None = None) -> Figure:
    """Points of a data set in the plane, the certificate's function as shading, and where it is zero.

    The function is `cert.function`, of norm 1 where the certificate is of a margin; where it holds none, give `f`.

    `data` has two features, and `f` maps points (k, 2) to values (k,).

    >>> import widemargin as wm
    >>> data = wm.data.clusters(n=20)
    >>> figure = wm.plots.decision(wm.margins.f2(data, bias=True), data)
    >>> len(figure.axes)  # the plane, and the scale of the shading
    2
    """
    if not isinstance(cert, Certificate):
        raise InputError(
            f"a picture of the decision is of a certificate, such as margins.f1 returns, not {type(cert).__name__}; "
            "give f= beside one for a function of your own"
        )
    data = as_dataset(data)
    if data.d != 2:
        raise InputError(f"{data.name}: a picture of the decision needs 2 features, not {data.d}; choose two columns")
    f = f or (lambda X: cert.function(X, data))
    y = data.signs()
    (x0, z0), (x1, z1) = data.X.min(axis=0), data.X.max(axis=0)
    pad = 0.12 * max(x1 - x0, z1 - z0) or 1.0
    g, h = np.linspace(x0 - pad, x1 + pad, 301), np.linspace(z0 - pad, z1 + pad, 301)
    values = f(np.stack(np.meshgrid(g, h), axis=-1).reshape(-1, 2)).reshape(len(h), len(g))
    top = float(np.abs(values).max()) or 1.0
    figure, (axes,) = figure_of(6.6, 5.4)
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
        name = f"label {short(str(data.classes[(sign + 1) // 2]), 40)}"
        axes.scatter(x, z, s=34, c=colour, marker=marker, edgecolors="white", linewidths=0.8, label=name, zorder=3)
    axes.set_xlim(g[0], g[-1])
    axes.set_ylim(h[0], h[-1])
    axes.set_xlabel(short(data.columns[0], 40) if data.columns else "feature 1")
    axes.set_ylabel(short(data.columns[1], 40) if data.columns else "feature 2")
    interval = f"[{cert.lower:.5g}, {cert.upper:.5g}]"
    what = f"{kinds.label(cert.kind)} margin ({cert.convention})"
    if not margin:
        what = kinds.label(cert.kind) + kinds.detail(cert.kind, cert.extra)
    axes.set_title(f"{what} in {interval}", loc="left", pad=28, fontsize=None if margin else 10)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, borderpad=0.2)
    said = "f(x), norm 1; solid: f = 0, dashed: |f| = margin" if margin else "f(x); solid: f = 0"
    figure.colorbar(image, ax=axes, label=said, shrink=0.92)
    return figure


def path(columns: Mapping[str, np.ndarray], title: str = "") -> Figure:
    """Certified optima along decays, from `optima.Path.columns()`: objective, norm and neurons, margin.

    With the columns that `theory.regularization.guaranteed_along` puts beside them, the largest margin of any network and the
    margin that is guaranteed at each decay are drawn, too. Targets that are no labels have no margins.

    Every column is (k,) for k decays; `title` stands above.

    >>> import widemargin as wm
    >>> along = wm.optima.path(wm.data.clusters(n=8), [0.1, 0.01], loss="logistic", tol=0.1, bias=True)
    >>> figure = wm.plots.path(along.columns(), title="eight points")
    >>> len(figure.axes)  # objective, norm, margin
    3
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    if not isinstance(columns, Mapping) or not {"weight_decay", "margin"} <= set(columns):
        raise InputError(f"columns must be those of optima.path(...).columns(), not {show(columns)}")
    decay = np.asarray(columns["weight_decay"], dtype=np.float64)
    if not len(decay):
        raise InputError("there are no points to draw; a path has at least one decay")
    known = {name: np.where(np.isfinite(values), values, np.nan) for name, values in columns.items()}
    labels = bool(np.isfinite(known["margin"]).any())
    figure, panels = figure_of(13.2 if labels else 9.2, 4.0, 3 if labels else 2)
    left, middle = panels[:2]
    left.fill_between(decay, known["lower"], known["upper"], color=PLUS, alpha=0.35, lw=0)
    left.plot(decay, known["upper"], "o-", color=PLUS, lw=1.8, ms=4, label="least objective, certified")
    positive = {name: np.where(known[name] > 0, known[name], np.nan) for name in ("loss", "error", "norm", "neurons")}
    second: dict[str, Any] = {"color": MINUS, "lw": 1.4, "ms": 3.5}
    left.plot(decay, positive["loss"], "s--", label="mean loss in it", **second)
    error = positive["error"]
    if np.isfinite(error).any():
        left.plot(decay, error, "^:", color=INK, lw=1.2, ms=4, label="training error, where not 0")
    logarithmic(left)
    left.set_title(short(title, 44) or "Objective", loc="left")
    legend(left, "upper left")
    network = positive if np.isfinite(positive["norm"]).any() else known  # zero networks alone are drawn at 0
    middle.plot(decay, network["norm"], "o-", color=PLUS, lw=1.8, ms=4, label="norm |nu|")
    middle.plot(decay, network["neurons"], "s--", label="neurons", **second)
    logarithmic(middle)
    if middle.get_yscale() == "log":
        low, high = middle.get_ylim()
        middle.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1e3 * low else (1,)))
        middle.yaxis.set_major_formatter("{x:g}")
        middle.yaxis.set_minor_formatter(NullFormatter())
    middle.set_title("Network", loc="left")
    legend(middle, "upper right")
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
    legend(axes, "upper right")


def _kind(cert: Certificate) -> str:
    word = {"srelu": ", squared ReLU", "relu": ""}.get(cert.activation, f", {cert.activation} ReLU")
    if kinds.quantity(cert.convention) == "objective":
        return f"{kinds.label(cert.kind)}\n{kinds.detail(cert.kind, cert.extra).removeprefix(', ')}"
    return f"{kinds.label(cert.kind)}{word if cert.kind != 'linear' else ''} ({cert.convention})"
