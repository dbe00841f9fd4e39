"""Pictures of certificates and measures. Each function returns a matplotlib Figure; nothing global is touched."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from widemargin.types import Certificate, Dataset, InputError, Measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Blue and orange stay apart for colour-blind readers and in print.
PLUS, MINUS, INK, QUIET = "#1f6fb4", "#d9661f", "#222222", "#8a8a8a"
KINDS = {"f1": "F1", "f2": "F2", "linear": "linear", "frozen": "frozen neurons", "rf": "random features"}
SMALL = 1e-3  # neurons with a smaller share of the norm are counted, not drawn
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
        said = f"[{cert.lower:.6g}, {cert.upper:.6g}]" + ("" if cert.proved else ", upper bound not proved")
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
    axes.set_xlabel("margin, each in the convention in brackets")
    axes.set_title(f"Certified margins, {_short(certs[0].data_name)}", loc="left", pad=26 if known else 10)
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

    The function comes from the certificate where it holds one (f1, frozen, linear, rf); for f2 give `f`, for
    example the `decision_function` of a fitted `MaxMarginClassifier`.
    """
    if data.d != 2:
        raise InputError(f"{data.name}: a picture of the decision needs 2 features, not {data.d}; choose two columns")
    f = f or _function(cert)
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
    if cert.lower > 0 and values.min() < cert.lower < values.max():
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
    axes.set_title(f"{KINDS.get(cert.kind, cert.kind)} margin ({cert.convention}) in {interval}", loc="left", pad=28)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, borderpad=0.2)
    figure.colorbar(image, ax=axes, label="f(x), norm 1; solid: f = 0, dashed: |f| = margin", shrink=0.92)
    return figure


def _function(cert: Certificate) -> Callable[[np.ndarray], np.ndarray]:
    """f of norm 1, where the certificate alone gives it."""
    if cert.primal is not None:
        measure, norm = cert.primal, cert.primal.norm
    elif cert.kind == "rf":
        unit = np.asarray(cert.extra["directions"], dtype=np.float64)
        unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
        a = np.asarray(cert.extra["a"], dtype=np.float64)
        measure = Measure(unit, a, cert.activation, cert.bias)
        norm = math.sqrt(len(a)) * float(np.linalg.norm(a))
    elif cert.kind == "linear":
        u = np.asarray(cert.extra["u"], dtype=np.float64)
        measure = Measure(np.stack([u, -u]), np.array([1.0, -1.0]), "relu", cert.bias)  # t = relu(t) - relu(-t)
        norm = float(np.linalg.norm(u))
    else:
        raise InputError(f"a {cert.kind} certificate holds no function ({cert.status}); give f")
    if not norm > 0:
        raise InputError(f"the function of this {cert.kind} certificate is zero ({cert.status}); give f")
    return lambda X: measure(X) / norm


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
    squared = ", squared ReLU" if cert.activation == "srelu" and cert.kind != "linear" else ""
    return f"{KINDS.get(cert.kind, cert.kind)}{squared} ({cert.convention})"


def _short(name: str, most: int = 60) -> str:
    """The name without anything that matplotlib would read as mathematics."""
    name = name.replace("$", r"\$")
    return name if len(name) <= most else name[: most - 3] + "..."
