"""Neurons in pictures: directions in the plane where the data is widest, kinks in the plane of the data, weights as images."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from widemargin import data as datasets
from widemargin.plots.style import DRAWN_SHARE
from widemargin.types import Dataset, Measure

from .section import Figure, Section, layout, numbers

MOST_DRAWN = 400  # neurons drawn
POINTS = 400  # of the data, behind them
ROWS = 2_000  # of the data, from which the plane is found
KINKS = 40  # neurons with most mass
IMAGES = 24
PIXELS = 88  # of the side of an image, about
SUPPORT = 1e-6  # of the largest dual weight
SHAPES = {64: (8, 1), 784: (28, 1), 1024: (32, 1), 3072: (32, 3)}  # features, and the side and colours of an image
PHOTOGRAPHED = ("digits", "mnist", "cifar")  # sources whose points are images


# ---------------------------------------------------------------- the plane of directions


@dataclass(frozen=True)
class View:
    """The plane that directions are seen in: two orthonormal rows (2, d), and the points (n, 2) where the data is here."""

    axes: np.ndarray
    names: tuple[str, str]
    said: str
    points: np.ndarray | None = None

    def of(self, theta: np.ndarray) -> np.ndarray:
        """Places (m, 2) of directions (m, d), or (m, d + 1) with a bias, which is not seen."""
        return theta[:, : self.axes.shape[1]] @ self.axes.T


def view(data: Dataset | None, size: int) -> View:
    """For directions of `size` coordinates: the two principal axes of the data, or the coordinates where there are two."""
    if data is None or size not in (data.d, data.d + 1) or data.d < 2:
        return View(np.eye(2, max(size, 2)), ("coordinate 1", "coordinate 2"), "the plane of the first two coordinates")
    around = data.X - data.X.mean(axis=0)
    axes, names, said = np.eye(2), ("coordinate 1", "coordinate 2"), "the plane of the data"
    if data.d > 2:
        some = around[np.linspace(0, data.n - 1, min(data.n, ROWS)).astype(int)]
        _, spread, rows = np.linalg.svd(some, full_matrices=False)
        if len(rows) < 2:
            return view(None, size)
        axes = (
            rows[:2] * np.sign(rows[[0, 1], np.abs(rows[:2]).argmax(axis=1)])[:, None]
        )  # its largest entry is positive
        part = (spread[:2] ** 2).sum() / max(float((spread**2).sum()), 1e-300)
        names = ("principal axis 1", "principal axis 2")
        said = f"the principal plane of the data ({part:.0%} of its variance)".replace("%", " %")
    seen = around @ axes.T
    return View(axes, names, said, 0.95 * seen / max(float(np.linalg.norm(seen, axis=1).max()), 1e-300))


def plane(seen: View) -> Figure:
    axis = {"range": [-1.12, 1.12], "tickvals": [-1, 0, 1]}
    square = {**axis, "scaleanchor": "x", "constrain": "domain"}
    return layout(*seen.names, xaxis={**axis, "constrain": "domain"}, yaxis=square)


def directions(theta: np.ndarray, share: np.ndarray, seen: View) -> list[Figure]:
    """The unit circle, and the neurons as points of areas ~ |share|."""
    turn = np.linspace(0, 2 * np.pi, 181)
    circle = {
        "type": "scatter", "mode": "lines", "x": numbers(np.cos(turn), 4), "y": numbers(np.sin(turn), 4),
        "line": {"color": "@quiet", "width": 1}, "hoverinfo": "skip", "showlegend": False,
    }  # fmt: skip
    return [circle, {"type": "scatter", "mode": "markers", "showlegend": False, **points(theta, share, seen)}]


def points(theta: np.ndarray, share: np.ndarray, seen: View) -> Figure:
    largest = max(float(np.abs(share).max(initial=0.0)), 1e-300)
    places = seen.of(theta)
    return {
        "x": numbers(places[:, 0], 4),
        "y": numbers(places[:, 1], 4),
        "marker": {
            "size": numbers(5 + 25 * np.sqrt(np.abs(share) / largest * min(1.0, 4 * largest)), 3),
            "color": ["@plus/0.65" if mass > 0 else "@minus/0.65" for mass in share],
            "line": {"color": "@paper", "width": 1},
        },
        "text": [f"share {mass:+.4g} of the norm" for mass in share],
        "hovertemplate": "(%{x:.3f}, %{y:.3f})<br>%{text}<extra></extra>",
    }


def background(data: Dataset | None, seen: View, dual: Any = None) -> tuple[list[Figure], str]:
    """The points, lightly, rings around those with dual weights, and what to say of them."""
    if data is None or seen.points is None:
        return [], ""
    weights = support(dual, data.n)
    kept = np.linspace(0, data.n - 1, min(data.n, POINTS)).astype(int)
    signs = data.y.ndim == 1 and set(np.unique(data.y)) <= {-1.0, 1.0}
    groups = (
        ((data.y == 1, "@plus/0.3"), (data.y == -1, "@minus/0.3"))
        if signs
        else ((np.ones(data.n, bool), "@quiet/0.3"),)
    )
    traces: list[Figure] = []
    for member, colour in groups:
        some = kept[member[kept]]
        if len(some):
            traces.append(
                {
                    "type": "scatter", "mode": "markers", "x": numbers(seen.points[some, 0], 4),
                    "y": numbers(seen.points[some, 1], 4), "marker": {"size": 4, "color": colour}, "showlegend": False,
                    "text": [f"point {i}" for i in some], "hovertemplate": "%{text}<extra></extra>",
                }
            )  # fmt: skip
    said = " Small dots: the points around their mean, scaled into the circle."
    if weights is not None:
        traces.append(rings(seen.points, weights))
        said += " Rings: points of positive dual weight."
    return traces, said


def support(dual: Any, n: int) -> np.ndarray | None:
    """Dual weights (n,) where there is one for each point; what is below a millionth of the largest is 0."""
    if dual is None:
        return None
    weights = np.asarray(dual)
    if weights.shape != (n,) or weights.dtype.kind != "f" or not np.isfinite(weights).all():
        return None
    weights = np.abs(weights)
    weights = np.where(weights > SUPPORT * weights.max(initial=0.0), weights, 0.0)
    return weights if weights.any() else None


def rings(places: np.ndarray, weights: np.ndarray) -> Figure:
    """Around the points (n, 2) of positive weight, those with most first."""
    some = np.argsort(-weights, kind="stable")[: min(POINTS, int((weights > 0).sum()))]
    return {
        "type": "scatter", "mode": "markers", "x": numbers(places[some, 0], 5), "y": numbers(places[some, 1], 5),
        "name": "support points", "showlegend": False,
        "marker": {"symbol": "circle-open", "color": "@ink", "line": {"width": 1.5},
                   "size": numbers(11 + 9 * np.sqrt(weights[some] / weights.max()), 3)},
        "text": [f"point {i}, dual weight {weights[i]:.4g}" for i in some], "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip


def show(section: Section, measure: Measure, data: Dataset | None = None, dual: Any = None) -> None:
    """Directions, masses, and images where the points are images."""
    unit = measure.normalized()
    total = max(float(np.abs(unit.mass).sum()), 1e-300)
    order = np.argsort(-np.abs(unit.mass), kind="stable")
    order = order[np.abs(unit.mass[order]) >= DRAWN_SHARE * total][:MOST_DRAWN]
    hidden = len(unit.mass) - len(order)
    more = f" {hidden} more, with smaller masses, are not drawn." if hidden else ""
    share = unit.mass[order] / total
    if unit.theta.shape[1] > 1:
        seen = view(data, unit.theta.shape[1])
        behind, said = background(data, seen, dual)
        section.figure(
            "Directions",
            {"data": [*directions(unit.theta[order], share, seen), *behind], "layout": plane(seen)},
            f"Unit inner weights in {seen.said}; area is mass, blue positive, orange negative. The circle has unit length: "
            f"neurons inside it point out of the plane.{said}{more}",
            400,
        )
    rank = np.arange(1, len(order) + 1)
    bars = [
        {
            "type": "bar", "x": rank[chosen].tolist(), "y": numbers(np.abs(share[chosen])), "name": name,
            "marker": {"color": colour}, "hovertemplate": "neuron %{x}: %{y:.4g} of the norm<extra></extra>",
        }
        for name, chosen, colour in (("positive mass", share > 0, "@plus"), ("negative mass", share < 0, "@minus"))
        if chosen.any()
    ]  # fmt: skip
    ticks = {"tick0": 1, "dtick": 1} if len(order) <= 12 else {}
    axes = layout("neuron, by mass", "share of the norm", bargap=0.15, xaxis=ticks)
    caption = f"The share of each of {len(order)} neurons in the norm of f.{more}"
    section.figure("Masses", {"data": bars, "layout": axes}, caption, 400)


# ---------------------------------------------------------------- kinks


def kinks(theta: np.ndarray, share: np.ndarray, g: np.ndarray, h: np.ndarray) -> list[dict[str, Any]]:
    """x and y of the lines where neurons (m, 2 or 3) switch, within the box: those of positive and those of negative mass."""
    drawn = []
    for chosen in (share > 0, share < 0):
        x: list[float | None] = []
        y: list[float | None] = []
        for ends in (_segment(v, g, h) for v in theta[chosen]):
            if ends is not None:
                x += [*numbers(ends[:, 0], 4), None]
                y += [*numbers(ends[:, 1], 4), None]
        drawn.append({"x": x, "y": y})
    return drawn


def kink_traces(lines: Sequence[dict[str, Any]]) -> list[Figure]:
    return [
        {
            "type": "scatter", "mode": "lines", **line, "line": {"color": colour, "width": 1}, "hoverinfo": "skip",
            "name": name, "showlegend": False,
        }
        for line, colour, name in zip(lines, ("@plus/0.4", "@minus/0.4"), ("kinks, positive", "kinks, negative"))
    ]  # fmt: skip


def _segment(v: np.ndarray, g: np.ndarray, h: np.ndarray) -> np.ndarray | None:
    """Both ends (2, 2) of the line v_0 x + v_1 y + v_2 = 0 within the box; None where it is not in there."""
    normal, bias = v[:2], float(v[2]) if len(v) > 2 else 0.0
    size = float(normal @ normal)
    if not size > 0:
        return None
    start, along = -bias * normal / size, np.array([-normal[1], normal[0]]) / np.sqrt(size)
    low, high = -np.inf, np.inf
    for k, side in enumerate((g, h)):
        a, b = float(side[0] - start[k]), float(side[-1] - start[k])
        if along[k] == 0:
            if a > 0 or b < 0:
                return None
            continue
        low, high = max(low, min(a / along[k], b / along[k])), min(high, max(a / along[k], b / along[k]))
    return start + np.array([[low], [high]]) * along if low < high and np.isfinite([low, high]).all() else None


# ---------------------------------------------------------------- images


def show_images(
    section: Section, theta: np.ndarray, share: np.ndarray, d: int, name: str, data: Dataset | None
) -> None:
    """Inner weights (m, d or d + 1) of the neurons with most mass as images, where the points are images."""
    source = name.partition(":")[0]
    if (
        d not in SHAPES
        or theta.shape[1] not in (d, d + 1)
        or (source in datasets.SOURCES and source not in PHOTOGRAPHED)
    ):
        return
    side, colours = SHAPES[d]
    order = np.argsort(-np.abs(share), kind="stable")[:IMAGES]
    order = order[np.abs(share[order]) >= DRAWN_SHARE]
    first = colours > 1 and _colours_first(theta[order, :d] if data is None else data.X[:100], side)
    pictures = [(picture(theta[k, :d], side, colours, first), f"{100 * share[k]:+.3g} %") for k in order]
    how = "blue positive, orange negative, white 0" if colours == 1 else "grey is 0, each colour of a pixel by itself"
    more = f"; the {len(order)} with most mass of {len(share)}" if len(share) > len(order) else ""
    section.gallery(
        "Neurons as images",
        pictures,
        f"Inner weights of the neurons by mass, {d} features read as {side} x {side} pixels{' x 3' * (colours > 1)}: {how}, each "
        f"to the scale of its largest entry. Below each its share of the norm, with the sign of its outer weight{more}.",
    )


def _colours_first(rows: np.ndarray, side: int) -> bool:
    """Whether (3, side, side) is smoother than (side, side, 3): files have both."""
    first, last = rows.reshape(-1, 3, side, side), rows.reshape(-1, side, side, 3)
    return bool(np.abs(np.diff(first, axis=3)).mean() < np.abs(np.diff(last, axis=2)).mean())


def picture(weights: np.ndarray, side: int, colours: int, first: bool = False) -> bytes:
    """One image as PNG, pixels enlarged."""
    unit = weights / max(float(np.abs(weights).max()), 1e-300)
    if colours == 1:
        end = np.where(unit[:, None] > 0, [31, 111, 180], [217, 102, 31])
        pixels = (255 + np.abs(unit)[:, None] * (end - 255)).reshape(side, side, 3)
    else:
        grid = unit.reshape(3, side, side).transpose(1, 2, 0) if first else unit.reshape(side, side, 3)
        pixels = 127.5 * (1 + grid)
    return png(np.kron(pixels.round().astype(np.uint8), np.ones((max(1, PIXELS // side),) * 2 + (1,), dtype=np.uint8)))


def png(pixels: np.ndarray) -> bytes:
    """Pixels (height, width, 3) of bytes as a PNG file."""
    tall, wide, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in np.ascontiguousarray(pixels))

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", wide, tall, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
