"""Pictures of training runs: margins, losses, norms, optimality, neurons."""

from __future__ import annotations

import math
from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np

from widemargin.types import F1_CONVERSIONS, Certificate, InputError, Trajectory, show

from .style import INK, LARGEST, MINUS, PLUS, QUIET, THIRD, drawable, grid_of, legend, logarithmic, quietly, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


OVERFLOW = 230.0  # ln of the largest time drawn on its own clock: beyond 1e100 an axis says nothing, and soon overflows
LINES = 40  # trials drawn one by one, thinly; the median is thick


@quietly
def trajectory(traj: Trajectory, reference: tuple[float, float] | Certificate | None = None) -> Figure:
    """Margins, loss, norms, and where they were recorded optimality and rotations, against time.

    `reference` is the certified largest margin in convention M1 (a pair of bounds, or an f1 certificate); it is drawn in the
    convention of the margins. Thick lines are medians over trials; where trials have clocks of their own there are none.

    `traj` is what `flows.train` returns.

    >>> import numpy as np
    >>> import widemargin as wm
    >>> columns = {"margin_M2": [[0.01], [0.04]], "risk": [[0.7], [0.2]], "norm": [[1.0], [3.0]]}  # two records of one trial
    >>> columns = {name: np.array(values) for name, values in columns.items()}
    >>> run = wm.Trajectory(np.array([1, 10]), columns, {}, ("finished",))
    >>> figure = wm.plots.trajectory(run, reference=(0.1, 0.2))
    >>> len(figure.axes)
    3
    """
    if not isinstance(traj, Trajectory):
        raise InputError(f"a picture of a run is of what flows.train or flows.load returns, not {show(traj)}")
    pair = isinstance(reference, tuple | list) and len(reference) == 2 and all(isinstance(v, Real) for v in reference)
    if not (reference is None or pair or isinstance(reference, Certificate)):
        raise InputError(f"reference must be a certificate, or a pair of bounds, not {show(reference)}")
    if len(traj.t) == 0:
        raise InputError("this trajectory has no records to draw")
    traj = replace(traj, records={name: drawable(values) for name, values in traj.records.items()})
    x, name, log = _time(traj)
    x = drawable(x)
    has = traj.records.__contains__
    lower_row = has("rotation") and has("neuron_norm")
    figure, axes = grid_of(2 if lower_row else 1)
    _draw_margins(axes[0], traj, x, reference)
    _draw_loss(axes[1], traj, x)
    _draw_norms(axes[2], traj, x)
    timed = list(axes[:3])
    if lower_row:
        _draw_optimality(axes[3], traj, x)
        _draw_rotations(axes[4], traj, x)
        _draw_neurons(axes[5], traj)
        timed += [axes[3], axes[4]]
    for panel in timed:
        shown = x[np.isfinite(x) & (x > 0)] if log else x[np.isfinite(x)]
        if log and shown.size:
            panel.set_xscale("log")
        if shown.size and shown.max() > shown.min():
            panel.set_xlim(shown.min(), shown.max())
        elif shown.size and log:
            panel.set_xlim(shown.min() / 2, 2 * shown.min())
        panel.set_xlabel(name)
    config = traj.config
    what = ", ".join(str(config[key].get(sub, "")) for key, sub in (("net", "net"), ("rule", "class")) if key in config)
    width = f", width {config['net']['m']}" if "m" in config.get("net", {}) else ""
    where = config.get("data", {}).get("names", [""])[0]
    trials = f"{traj.trials} trial{'s' * (traj.trials > 1)}"
    figure.suptitle(short(f"{where}: {what}{width}, {trials}", 110), x=0.01, ha="left", fontsize=12)
    return figure


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
    if best is not None and np.abs(best).max() <= LARGEST:
        low, high = best
        axes.axhspan(low, high, color=INK, alpha=0.25, lw=0, zorder=1)
        axes.axhline(high, color=INK, lw=1.3, ls=":", zorder=1, label=f"largest possible, at most {high:.4g}")
        top = max(top, high)
    if np.isfinite(top) and top > 0:
        axes.set_ylim(-0.12 * top, 1.3 * top)
    axes.axhline(0, color=QUIET, lw=0.6, zorder=0)
    unit = f"convention {key}" if key != "partial" else "over the norm of the homogeneous part"
    axes.set_title(f"Normalised margin ({unit})", loc="left")
    legend(axes, "upper left")


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
        _lines(axes, x, drawable(np.exp(log_risk)), PLUS, "risk")
        axes.set_title("Risk (mean loss)", loc="left")
    logarithmic(axes)
    for name, colour in (("train_error", INK), ("test_error", MINUS)):
        if name in traj.records and np.nanmin(log_risk) >= -OVERFLOW:
            y = traj[name]
            _lines(axes, x, np.where(y > 0, y, np.nan), colour, name.replace("_", " "), ":")
    legend(axes, "best")


def _draw_norms(axes: Axes, traj: Trajectory, x: np.ndarray) -> None:
    if "norm" in traj.records:
        _lines(axes, x, traj["norm"], INK, "|W|")
    layers = [name for name in traj.records if name.startswith("moved_")]
    for name, colour in zip(layers, (PLUS, MINUS, THIRD, QUIET)):
        y = traj[name]
        _lines(axes, x, np.where(y > 0, y, np.nan), colour, f"moved: {name.removeprefix('moved_')}", "--")
    logarithmic(axes)
    axes.set_title("Norm, and distance from the start", loc="left")
    legend(axes, "best")


def _draw_optimality(axes: Axes, traj: Trajectory, x: np.ndarray) -> None:
    if {"gap_estimate", "dual_estimate"} <= traj.records.keys():
        gap = traj["gap_estimate"] / np.where(traj["dual_estimate"] > 0, traj["dual_estimate"], np.nan)
        _lines(axes, x, np.where(gap > 0, gap, np.nan), PLUS, "gap to the bound of its own dual (estimate)")
    if "kkt_residual" in traj.records:
        _lines(axes, x, traj["kkt_residual"], MINUS, "KKT residual", "--")
    logarithmic(axes)
    axes.set_title("Distance from optimality", loc="left")
    legend(axes, "lower left")


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
    legend(axes, "lower left")


def _draw_neurons(axes: Axes, traj: Trajectory) -> None:
    """Norm and rotation of every neuron at the end."""
    size, cosine = traj["neuron_norm"][-1], traj["rotation"][-1]
    largest = np.maximum(np.nanmax(size, axis=1, keepdims=True), 1e-300)
    share = np.where(np.isfinite(size), size / largest, np.nan)
    known = (share > 0) & np.isfinite(cosine)
    axes.scatter(share[known], cosine[known], s=14, color=PLUS, alpha=0.5, edgecolors="none")
    if known.any():
        axes.set_xscale("log")
        axes.set_xlim(max(1e-6, 0.7 * float(share[known].min())), 1.4)
    axes.set_ylim(-1.05, 1.05)
    axes.set_xlabel("norm |a_j| |v_j| over the largest")
    axes.set_title("Neurons at the end: norm and rotation", loc="left")
