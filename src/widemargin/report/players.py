"""The network of a run at moments that a slider goes through: decision, neurons and margins."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from widemargin.theory.track import Track, follow
from widemargin.types import Certificate, Dataset, InputError, Trajectory

from . import certificates, neurons
from .clocks import clock, convention, largest
from .section import Figure, Section, layout, level, numbers

FRAMES = 41  # moments of the slider, at most
SIDE = 51  # points along each side of a decision picture that moves
NEURONS = 300  # that move
EXAMPLES = 1_000  # margins in a distribution
TRIALS = 4  # that can be chosen


@dataclass(frozen=True)
class Still:
    """One network at one moment: margins (n,) over its size, its neurons, and its values on a grid of the plane."""

    margins: np.ndarray
    mass: np.ndarray | None  # (m,), shares of the norm
    theta: np.ndarray | None  # (m, d)
    plane: np.ndarray | None  # (SIDE * SIDE,)

    @property
    def usable(self) -> bool:
        parts = (self.margins, self.mass, self.theta, self.plane)
        return all(part is None or bool(np.isfinite(part).all()) for part in parts)


def still(track: Track, W: Mapping[str, Tensor], trial: int, key: str, where: np.ndarray | None) -> Still:
    """`W` are the parameters (1, ...) of the trial; `where` points of the plane (k, 2)."""
    net, problem = track.net, track.problem
    W = {name: value.double() for name, value in W.items()}
    own = min(trial, len(problem.X) - 1)
    X, y = problem.X[own : own + 1], problem.y[own : own + 1]
    with torch.no_grad():
        sizes = net.normalizers(W) if key else {}
        size = float(sizes[key][0]) if key in sizes else 1.0
        p = _margins(net.forward(W, X), y, problem.loss is None)
        neurons, plane = net.neurons(W), None
        mass, theta = (None, None) if neurons is None else (part[0].numpy() for part in neurons)
        if where is not None:
            points = torch.as_tensor(np.hstack([where, np.ones((len(where), X.shape[2] - 2))]))[None]
            out = net.forward(W, points)
            plane = (out[0] if out.ndim == 2 else out[0, :, 1] - out[0, :, 0]).numpy()
    with np.errstate(all="ignore"):  # a network of size 0 has no normalised margins
        share = None if mass is None else mass / np.abs(mass).sum()
        return Still(p[0].numpy() / size, share, theta, None if plane is None else plane / size)


def _margins(f: Tensor, y: Tensor, residuals: bool) -> Tensor:
    """y f; own score minus the largest other with several classes; y - f for the squared loss."""
    if residuals:
        return y - f
    if f.ndim == 2:
        return y * f
    own = f.gather(2, y[:, :, None])[:, :, 0]
    return own - f.scatter(2, y[:, :, None], -torch.inf).amax(2)


def show(
    section: Section,
    traj: Trajectory,
    sets: Sequence[Dataset],
    cert: Certificate | None,
    trial: int,
    timed: Mapping[str, int],
) -> None:
    """Decision, neurons and margins of one network, at moments where weights were recorded, or at the end.

    `timed` are figures over time, with the place of the shape that marks the moment.
    """
    try:
        track = follow(traj, list(sets))
    except InputError as error:
        section.paragraph(f"Neurons and decisions are not shown: {error}.", "quiet")
        return
    data, key, several = sets[min(trial, len(sets) - 1)], convention(traj), track.net.outputs
    where = None
    if data.d == 2 and track.problem.loss is not None and several <= 2:
        g, h, where = certificates.box(data, SIDE)
    if track.W is None:
        section.paragraph(
            "Weights were not recorded on the way (train with --weights), so neurons and margins are shown at the end only.",
            "quiet",
        )
        end = {name: value[trial : trial + 1] for name, value in track.start.items()}
        end |= {name: torch.as_tensor(value[trial : trial + 1]) for name, value in traj.final.items()}
        networks = {len(traj.t) - 1: still(track, end, trial, key, where)}
    else:
        rows = np.unique(np.linspace(0, len(traj.t) - 1, FRAMES).round()).astype(int).tolist()
        parts = {k: {name: value[trial : trial + 1] for name, value in track.W[k].items()} for k in rows}
        networks = {k: still(track, W, trial, key, where) for k, W in parts.items()}
    networks = {k: network for k, network in networks.items() if network.usable}
    if not networks:
        section.paragraph("The weights of this run are not finite, so there is nothing to draw of them.", "quiet")
        return
    others: dict[int, list[Still]] = {}
    if track.W is not None and len(sets) == 1:  # with data of its own each trial would need pictures of its own
        for other in [b for b in range(traj.trials) if b != trial][: TRIALS - 1]:
            each = [
                still(track, {name: v[other : other + 1] for name, v in track.W[k].items()}, other, key, where)
                for k in networks
            ]
            if all(one.usable for one in each):
                others[other] = each
    x, clock_name, log = clock(traj)
    which = f"Networks of {len(others) + 1} trials" if others else f"Network of trial {trial}"
    section.heading(f"{which} {'over time' if len(networks) > 1 else 'at the end'}")
    if len(networks) > 1:
        left = traj.trials - 1 - len(others)
        unseen = (
            f" {left} more trials are not here; --trial chooses the first that is." if left and len(sets) == 1 else ""
        )
        section.paragraph(f"{MOMENTS}{unseen}", "quiet")
    films = [
        Film(
            stills,
            [{"label": f"{clock_name.partition(' (')[0]} {x[k, b]:.4g}, record {k}", "figures": {}} for k in networks],
        )
        for b, stills in {trial: list(networks.values()), **others}.items()
    ]
    place, stills = len(section.parts), films[0].stills
    section.open_grid()
    if where is not None:
        _show_decisions(section, films, data, (g, h), cert)
    if stills[-1].mass is not None and stills[-1].theta is not None and stills[-1].theta.shape[1] > 1:
        _show_neurons(section, films, data, cert)
    _show_margins(section, films, largest(cert, key), key, track.problem.loss is None)
    section.close_grid()
    last = stills[-1]
    if last.mass is not None and last.theta is not None:
        neurons.show_images(section, last.theta, last.mass, data.d, data.name, data)
    if len(networks) == 1:
        return
    for b, film in zip([trial, *others], films):
        for k, scene in zip(networks, film.scenes):
            when = float(x[k, b])
            for name, shape in timed.items():
                mark = f"shapes[{shape}]"
                seen = math.isfinite(when) and (when > 0 or not log)  # a logarithmic axis has no place for 0
                moved = {f"{mark}.x0": when, f"{mark}.x1": when} if seen else {}
                scene["figures"][name] = [{"traces": [], "layout": {f"{mark}.visible": seen, **moved}}]
    more = {f"trial {b}": film.scenes for b, film in zip(others, films[1:])}
    section.slider("time", films[0].scenes, len(networks) - 1, place, more, f"trial {trial}")


MOMENTS = (
    "A step is one update of the weights. A record is a moment at which the run was measured: records are fewer than steps, and "
    "are numbered from 0, the start. The slider goes through records."
)


@dataclass(frozen=True)
class Film:
    """One trial: its network at every moment, and the scenes of the slider that show it."""

    stills: list[Still]
    scenes: list[dict[str, Any]]


def _show_decisions(
    section: Section,
    films: Sequence[Film],
    data: Dataset,
    sides: tuple[np.ndarray, np.ndarray],
    cert: Certificate | None,
) -> None:
    if set(np.unique(data.y)) <= {0.0, 1.0}:  # classes 0 and 1
        data = Dataset(data.X, 2 * data.y - 1, data.name, (0, 1))
    every = [one.plane for film in films for one in film.stills if one.plane is not None]
    top = max(float(np.abs(plane).max()) for plane in every) or 1.0
    end = films[0].stills[-1]
    assert end.plane is not None
    first = certificates.surface(*sides, end.plane.reshape(SIDE, SIDE), float(end.margins.min()))
    traces = [*first, *certificates.labelled(data)]
    traces[0] |= {"zmin": -top, "zmax": top, "zsmooth": "fast", "showscale": False}
    said, at = "", len(traces)
    lines = _kinks(end, end, sides)
    if lines:
        traces += neurons.kink_traces(lines)
        said = " Thin lines: where a neuron switches, by the sign of its mass."
    more, words_ = _certified(cert, data)
    name = section.figure(
        "Decision",
        {"data": [*traces, *more], "layout": _still_room(certificates.plane_of_data(*sides), 85)},
        "Shading is f(x) over the size of the network, blue positive and orange negative. Solid: f = 0. Dashed: |f| equal to "
        f"the smallest margin, where that is positive.{said}{words_}",
        430,
    )
    for drawn, last, scene in _moments(films):
        assert drawn.plane is not None
        grid = drawn.plane.reshape(SIDE, SIDE)
        dashed = certificates.ends_of(float(drawn.margins.min()))
        scene["figures"][name] = [
            {"traces": [0], "set": {"z": numbers(grid, 3)}},
            {"traces": [1], "set": certificates.levels(*sides, grid, 0.0)},
            {"traces": [2], "set": certificates.levels(*sides, grid, *dashed)},
            *({"traces": [at + k], "set": one} for k, one in enumerate(_kinks(drawn, last, sides))),
        ]


def _still_room(form: Figure, below: int) -> Figure:
    """Margins that stay: plotly would measure all labels again at every moment, a third of its time."""
    axes = {name: {**form[name], "automargin": False} for name in ("xaxis", "yaxis")}
    return form | axes | {"margin": {"l": 55, "r": 15, "t": 32, "b": below}}


def _moments(films: Sequence[Film]) -> Iterator[tuple[Still, Still, dict[str, Any]]]:
    """Every network, that of the end of its trial, and its scene."""
    for film in films:
        for drawn, scene in zip(film.stills, film.scenes):
            yield drawn, film.stills[-1], scene


def _kinks(drawn: Still, last: Still, sides: tuple[np.ndarray, np.ndarray]) -> list[dict[str, Any]]:
    """Of the neurons with most mass at the end, at one moment."""
    if drawn.mass is None or drawn.theta is None or last.mass is None or drawn.theta.shape[1] not in (2, 3):
        return []
    order = np.argsort(-np.abs(last.mass), kind="stable")[: neurons.KINKS]
    return neurons.kinks(drawn.theta[order], drawn.mass[order], *sides)


def _certified(cert: Certificate | None, data: Dataset) -> tuple[list[Figure], str]:
    """The boundary of the certified predictor and its support points, over those of a trained one."""
    f = None if cert is None else certificates.function_of(cert, data)
    if cert is None or f is None or cert.lower <= 0:
        return [], ""
    g, h, where = certificates.box(data)  # finer than what moves: it stays
    line = certificates.levels(g, h, f(where).reshape(len(h), len(g)), 0.0)
    traces: list[Figure] = [
        {
            "type": "scatter", "mode": "lines", **line, "hoverinfo": "skip", "showlegend": False,
            "line": {"color": "@third", "width": 3, "dash": "longdash"}, "name": "certified boundary",
        }
    ]  # fmt: skip
    weights = neurons.support(cert.dual, data.n)
    said = " Green, dashed: the boundary of the predictor of certified margin."
    if weights is None:
        return traces, said
    return [
        *traces,
        neurons.rings(data.X, weights),
    ], f"{said} Rings: its support points, larger with their dual weight."


def _show_neurons(
    section: Section,
    films: Sequence[Film],
    data: Dataset,
    cert: Certificate | None,
) -> None:
    last = films[0].stills[-1]
    assert last.mass is not None and last.theta is not None
    chosen = np.argsort(-np.abs(last.mass), kind="stable")[:NEURONS]
    hidden = len(last.mass) - len(chosen)
    more = f" The {len(chosen)} with most mass at the end; {hidden} more are not drawn." if hidden else ""
    seen = neurons.view(data, last.theta.shape[1])
    traces = neurons.directions(last.theta[chosen], last.mass[chosen], seen)
    behind, said = neurons.background(data, seen, None if cert is None else cert.dual)
    name = section.figure(
        "Neurons",
        {"data": [*traces, *behind], "layout": _still_room(neurons.plane(seen), 45)},
        f"Directions of the neurons in {seen.said}; area is the share of the norm, blue positive, orange negative. The circle "
        f"has unit length.{said}{more}",
        430,
    )
    for drawn, last, scene in _moments(films):
        assert drawn.mass is not None and drawn.theta is not None and last.mass is not None
        chosen = np.argsort(-np.abs(last.mass), kind="stable")[:NEURONS]
        now = neurons.points(drawn.theta[chosen], drawn.mass[chosen], seen)
        sets = {"x": now["x"], "y": now["y"], "text": now["text"]}
        sets |= {"marker.size": now["marker"]["size"], "marker.color": now["marker"]["color"]}
        scene["figures"][name] = [{"traces": [1], "set": sets}]


def _show_margins(
    section: Section,
    films: Sequence[Film],
    best: tuple[float, float] | None,
    key: str,
    residuals: bool,
) -> None:
    """The distribution function of the margins: at m, the share of points with a margin of at most m."""
    each = [np.sort(drawn.margins) for drawn, _, _ in _moments(films)]
    shown = len(films[0].stills) - 1
    if len(each[0]) > EXAMPLES:
        each = [np.quantile(values, np.linspace(0, 1, EXAMPLES)) for values in each]
    share = np.arange(1, len(each[0]) + 1) / len(each[0])
    low, high = min(float(values[0]) for values in each), max(float(values[-1]) for values in each)
    shapes = [level(0.0, "zero", "x", "@quiet", "solid")]
    said = ""
    if best is not None:
        shapes.append(level(best[1], "largest smallest margin", "x"))
        high, said = max(high, best[1]), " Dotted: the largest value that the smallest margin can have, certified."
    pad = 0.04 * (high - low) or 0.1
    what = "residual y - f" if residuals else f"margin ({key})" if key else "margin"
    form = layout(what, "share of the points", shapes=shapes, xaxis={"range": [low - pad, high + pad]})
    form["yaxis"]["range"] = [0, 1.03]
    trace = {
        "type": "scatter", "mode": "lines", "x": numbers(each[shown], 5), "y": numbers(share, 4), "showlegend": False,
        "line": {"shape": "hv", "color": "@plus", "width": 2},
        "hovertemplate": "%{y:.1%} of the points have at most %{x:.4g}<extra></extra>",
    }  # fmt: skip
    name = section.figure(
        "Residuals" if residuals else "Distribution of margins",
        {"data": [trace], "layout": _still_room(form, 45)},
        f"For each value, the share of training points with at most that {'residual' if residuals else 'margin'}.{said}",
        430,
    )
    for values, (_, _, scene) in zip(each, _moments(films)):
        scene["figures"][name] = [{"traces": [0], "set": {"x": numbers(values, 5)}}]
