"""Certificates: the certified interval, its other conventions, the neurons that reach it, what they decide in the plane."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from contourpy import contour_generator

from widemargin import kinds
from widemargin.dataset import LABEL_COLUMNS
from widemargin.saved import says_certificate
from widemargin.types import CONVENTIONS, FORMAT, Certificate, Dataset, InputError

from . import guarantees, neurons
from .checking import PROOF, Checked, chosen, load_data, recheck
from .formulas import typeset
from .intervals import UNREACHED, height, inseparable, intervals
from .section import Digits, Figure, Html, Section, badge, label, layout, number, numbers, words

GRID = 101  # points along each side of a picture of the decision
TOLD = 3  # certificates in a summary
CLOSE = 0.01  # relative gap up to which a summary gives one number


def is_certificate(path: Path) -> bool:
    """Whether a JSON file is a certificate; one that cannot be read is taken for one where it ends in .gz."""
    known = says_certificate(path)
    return path.suffix == ".gz" if known is None else known


def read(path: Path) -> Certificate:
    """A saved certificate, complete and unchanged since it was saved; without its proof where that is too large to check."""
    try:
        cert = Certificate.load(path)
        return cert if path.stat().st_size <= PROOF else replace(cert, proof={})
    except InputError as error:
        said = str(error)
    # The error is gone now, and with it what was read: a second reading beside it would take twice the memory.
    if says_certificate(path) is not False:
        raise InputError(said)
    raise InputError(f"{path} is no certificate, run, store, monitor or reproduction; give what the commands wrote")


def grouped(certs: Sequence[Certificate]) -> list[list[Certificate]]:
    """Those of the same data together; margins, norms and objectives apart, as they have no axis in common."""
    groups: dict[tuple[Any, ...], list[Certificate]] = {}
    for cert in certs:
        about = (cert.data_sha256 or cert.data_name, cert.n, cert.d)
        groups.setdefault((*about, kinds.quantity(cert.convention)), []).append(cert)
    return list(groups.values())


def title(certs: Sequence[Certificate]) -> str:
    named = {"norm": "Smallest norm", "objective": "Least training objective", "margin": "Certified margin"}
    what = named[kinds.quantity(certs[0].convention)]
    return f"{what}{'s' * (len(certs) > 1)}: {certs[0].data_name}"


def show(section: Section, certs: Sequence[Certificate], bounds: bool = False, time_limit: float = 60.0) -> None:
    first = certs[0]
    data = load_data(first)
    checked = [recheck(cert, data) for cert in certs]
    section.summary = summary(certs, checked)
    section.facts({"data": first.data_name, "points": first.n, "features": first.d} | chosen(certs, data))
    section.figure(
        "Certified intervals",
        intervals(certs, checked),
        "Each bar goes from the margin of a predictor that was found (lower) to the bound that is proved (upper). Conventions "
        "measure in different units, so each has an axis of its own. Grey: the upper bound is not proved."
        if kinds.quantity(first.convention) == "margin"
        else f"Each bar goes from the bound that is proved (lower) to the {kinds.quantity(first.convention)} of a function "
        "that was found (upper).",
        height(certs),
    )
    table(section, certs, checked)
    names = [f"{kinds.label(cert.kind)} ({cert.convention})" for cert in certs]
    for cert, name in zip(certs, names):
        if cert.atoms and cert.primal is not None and "neurons" in _row(cert).drawn:
            section.heading(f"{name}: neurons")
            section.open_grid()
            neurons.show(section, cert.primal, data, cert.dual)
            section.close_grid()
            unit = cert.primal.normalized()
            share = unit.mass / max(float(np.abs(unit.mass).sum()), 1e-300)
            neurons.show_images(section, unit.theta, share, cert.d, cert.data_name, data)
    if first.d == 2:
        show_decisions(section, certs, names, data)
    commands = [again(cert) for cert in certs]
    known = [
        {**cert.summary(), "format": FORMAT, "data": {"name": cert.data_name, "sha256": cert.data_sha256}}
        | ({"path": cert.stats["path"]} if "path" in cert.stats else {})
        for cert in certs
    ]
    more = not_kept(first)
    section.settings("\n".join(commands), known, AGAIN + more)
    if bounds:
        guarantees.offer(section, data, time_limit)


def summary(certs: Sequence[Certificate], checked: Sequence[Checked]) -> str:
    """What is known of the first of them, in a sentence."""
    said = [found(cert, known) for cert, known in list(zip(certs, checked))[:TOLD]]
    more = f" (and {len(certs) - TOLD} more)" if len(certs) > TOLD else ""
    text = "; ".join(said)
    return f"{text[:1].upper()}{text[1:]}{more}."


def found(cert: Certificate, known: Checked) -> str:
    what, named = kinds.quantity(cert.convention), kinds.label(cert.kind)
    if known.refused:
        return f"the checker refuses the {named} certificate"
    if inseparable(cert) or (cert.status == "not-separable" and not cert.upper):
        return f"nothing of the kind {named} separates the data" + ", up to rounding" * inseparable(cert)
    best = {"margin": "largest", "norm": "smallest"}.get(what, "least")
    # The label of an objective says itself that it is the least.
    whole = named.partition(",")[0] if what == "objective" else f"{best} {named} {what}"
    low, high = number(cert.lower, 4), number(cert.upper, 4)
    if not cert.proved:
        end = "most" if what != "margin" else "least"
        return f"the {whole} is at {end} {high if what != 'margin' else low}, and how far from that is not proved"
    sure = "proved" if known.holds else "not re-checked here"
    if cert.gap > CLOSE:
        return f"the {whole} is between {low} and {high} ({sure})"
    unit = 10.0 ** math.floor(math.log10(cert.gap)) if cert.gap > 0 else 1.0
    gap = number(math.ceil(cert.gap / unit) * unit, 1)  # rounded up: it is what is proved
    near = f"{sure} to {gap}" if known.holds else f"to {gap}, {sure}"
    return f"the {whole} is {low if what == 'margin' else high} ({near if cert.gap > 0 else sure})"


RECHECKED = (
    "Re-checked: the proof was verified for this page, in exact arithmetic. Not re-checked: what the file says of itself; the "
    "command verify checks it."
)
ADD = "Not kept, so to be added: {}."
LABEL = "the folder of the file, and --label NAME if one was given"


def not_kept(one: Certificate) -> str:
    """What a command cannot tell of the data of a certificate, as a sentence; empty where nothing is missing."""
    if not is_file(one.data_name):
        return ""
    known = "label" in one.data_called or one.data_name.lower().endswith(".npy")
    return f" {ADD.format('the folder of the file' if known else LABEL)}"


AGAIN = (
    "The time limit is not kept in a certificate, nor the tolerance in older ones. The command verify checks the saved proof in "
    "exact arithmetic."
)


def show_decisions(section: Section, certs: Sequence[Certificate], names: Sequence[str], data: Dataset | None) -> None:
    """What the predictors of positive margin decide in the plane."""
    if data is None:
        said = certs[0].data_name
        section.paragraph(f"There is no picture of the decision, since the points of {said} are not found.", "quiet")
        return
    if not set(np.unique(data.y)) <= {-1.0, 1.0}:
        return
    section.open_grid()
    for cert, name in zip(certs, names):
        f = function_of(cert, data)
        if f is not None and cert.lower > 0:
            section.figure(
                f"{name}: decision",
                decision(f, data, cert.lower, cert),
                "Shading is f(x) of norm 1, blue positive and orange negative. Solid: f = 0. Dashed: |f| equal to the certified "
                f"margin; no point has less.{marked(cert, data)}",
                430,
            )
    section.close_grid()


def table(section: Section, certs: Sequence[Certificate], checked: Sequence[Checked]) -> None:
    names = ["kind", "convention", "lower", "upper", "gap", "status", "proved", "bound", "neurons", "seconds"]
    rows: list[list[Any]] = []
    for cert, known in zip(certs, checked):
        seconds = cert.stats.get("seconds")
        lower, upper, gap = (
            Digits(number(getattr(cert, key), n)) for key, n in (("lower", 9), ("upper", 9), ("gap", 2))
        )
        took = None if seconds is None else Digits(number(seconds, 3))
        kind, atoms = kinds.label(cert.kind), cert.atoms or None
        rows.append(
            [kind, cert.convention, lower, upper, gap, cert.status, _proved(cert, known), cert.bound, atoms, took]
        )
    said = "; ".join(
        f"{key}: {CONVENTIONS.get(key, 'see the notation page')}" for key in dict.fromkeys(r[1] for r in rows)
    )
    what = kinds.quantity(certs[0].convention)
    section.table(
        "Certificates",
        names,
        rows,
        typeset(f"lower <= {what} <= upper; gap = (upper - lower) / upper. {said}. {RECHECKED}"),
    )
    for cert, known in zip(certs, checked):
        if inseparable(cert) and not known.refused:
            section.paragraph(
                f"{kinds.label(cert.kind)} ({cert.convention}): {UNREACHED}. Its bound, "
                f"{number(cert.upper, 3)}, is {known.words}."
            )
        if cert.reason:
            section.paragraph(typeset(f"{cert.kind}: {cert.reason}."))
    for cert in certs:
        if cert.conversions:
            rows = [[name, *(Digits(number(value, 9)) for value in cert.bounds(name))] for name in cert.conversions]
            section.table(
                f"The {kinds.label(cert.kind)} margin in the papers' conventions",
                ["convention", "lower", "upper"],
                rows,
                "The same margin, divided by other sizes of the network (M3 and M6: with the bias of the certificate).",
                folded=True,
            )


def _proved(cert: Certificate, known: Checked) -> Html:
    """A bound of 0 up to rounding is no proof that nothing separates the data, so it is neither green nor red."""
    if not inseparable(cert) or known.refused:
        return known.badge
    return badge(None, "not separable, up to rounding")


# ---------------------------------------------------------------- functions and neurons


def function_of(cert: Certificate, data: Dataset | None) -> Callable[[np.ndarray], np.ndarray] | None:
    """f of norm 1 in the certificate's convention, where the certificate (for kernels: with its data) gives it."""
    if "decision" not in _row(cert).drawn:
        return None
    with contextlib.suppress(InputError):
        cert.function(np.zeros((1, cert.d)), data)
        return lambda X: cert.function(X, data)
    return None


def _row(cert: Certificate) -> kinds.Kind:
    return kinds.KINDS.get(cert.kind, kinds.Kind(cert.kind, "", (cert.convention,), cert.kind))


# ---------------------------------------------------------------- the plane


def box(data: Dataset, side: int = GRID) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Coordinates along both sides, and all points (side * side, 2) of a grid around the data."""
    (x0, z0), (x1, z1) = data.X.min(axis=0), data.X.max(axis=0)
    pad = 0.12 * max(x1 - x0, z1 - z0) or 1.0
    g, h = np.linspace(x0 - pad, x1 + pad, side), np.linspace(z0 - pad, z1 + pad, side)
    return g, h, np.stack(np.meshgrid(g, h), axis=-1).reshape(-1, 2)


def decision(
    f: Callable[[np.ndarray], np.ndarray], data: Dataset, margin: float, cert: Certificate | None = None
) -> Figure:
    """Of a certificate also where its neurons switch, and rings around the points of its proof."""
    g, h, where = box(data)
    values = f(where).reshape(len(h), len(g))
    traces = [*surface(g, h, values, margin), *labelled(data)]
    if cert is not None:
        lines, weights = kinks_of(cert, g, h), neurons.support(cert.dual, data.n)
        traces += [*neurons.kink_traces(lines), *([] if weights is None else [neurons.rings(data.X, weights)])]
    return {"data": traces, "layout": plane_of_data(g, h)}


def kinks_of(cert: Certificate, g: np.ndarray, h: np.ndarray) -> list[dict[str, Any]]:
    """Of the neurons with most mass, where the certificate has neurons over the plane."""
    if cert.primal is None or "neurons" not in _row(cert).drawn or cert.primal.theta.shape[1] not in (2, 3):
        return []
    order = np.argsort(-np.abs(cert.primal.normalized().mass), kind="stable")[: neurons.KINKS]
    return neurons.kinks(cert.primal.theta[order], cert.primal.mass[order], g, h)


def marked(cert: Certificate, data: Dataset) -> str:
    """What else is in the picture of a decision, in words."""
    thin = cert.primal is not None and "neurons" in _row(cert).drawn
    said = " Thin lines: where a neuron switches, by the sign of its mass." if thin else ""
    rings = neurons.support(cert.dual, data.n) is not None
    return said + " Rings: support points, larger with their dual weight." * rings


def surface(g: np.ndarray, h: np.ndarray, values: np.ndarray, margin: float) -> list[Figure]:
    """Shading, the line f = 0, and the lines |f| = margin."""
    top = float(np.abs(values).max()) or 1.0
    lines = {"type": "scatter", "mode": "lines", "hoverinfo": "skip", "showlegend": False}
    every = {"color": "@ink", "simplify": False}  # all vertices, as page.js draws them while the slider moves
    return [
        {
            "type": "heatmap", "x": numbers(g, 5), "y": numbers(h, 5), "z": numbers(values, 4), "zmin": -top, "zmax": top,
            "zsmooth": "best", "opacity": 0.5, "colorscale": [[0, "@minus"], [0.5, "@paper"], [1, "@plus"]],
            "colorbar": {"thickness": 12, "title": {"text": "f"}, "exponentformat": "power"},
            "hovertemplate": "(%{x:.3g}, %{y:.3g}): f = %{z:.3g}<extra></extra>",
        },
        {**lines, **levels(g, h, values, 0.0), "name": "f = 0", "line": {**every, "width": 2}},
        {
            **lines, **levels(g, h, values, *ends_of(margin)), "name": "|f| = margin",
            "line": {**every, "width": 1, "dash": "dash"},
        },
    ]  # fmt: skip


def ends_of(margin: float) -> tuple[float, ...]:
    """The values of f at the ends of the margin, which is none where it is not positive."""
    return (-margin, margin) if margin > 0 else ()


def levels(g: np.ndarray, h: np.ndarray, values: np.ndarray, *at: float) -> Figure:
    """x and y of the lines where values (len(h), len(g)) on a grid are one of `at`, straight between the sides of its cells."""
    found = contour_generator(g, h, np.ma.masked_invalid(values))
    x: list[float | None] = []
    y: list[float | None] = []
    for line in (np.asarray(line, dtype=np.float64) for value in at for line in found.lines(value)):
        x += [*numbers(line[:, 0], 4), None]
        y += [*numbers(line[:, 1], 4), None]
    return {"x": x, "y": y}


def labelled(data: Dataset) -> list[Figure]:
    """The points, by label."""
    marks = ((1, "@plus", "circle"), (-1, "@minus", "square"))
    return [
        {
            "type": "scatter", "mode": "markers", "x": numbers(data.X[data.y == sign, 0], 5),
            "y": numbers(data.X[data.y == sign, 1], 5), "name": f"label {label(data.classes[(sign + 1) // 2], 20)}",
            "marker": {"color": colour, "symbol": symbol, "size": 8, "line": {"color": "@paper", "width": 1}},
            "text": [f"point {i}" for i in np.flatnonzero(data.y == sign)],
            "hovertemplate": "%{text}<extra></extra>",
        }
        for sign, colour, symbol in marks
    ]  # fmt: skip


def plane_of_data(g: np.ndarray, h: np.ndarray) -> Figure:
    x = {"range": [float(g[0]), float(g[-1])], "constrain": "domain"}
    y = {"range": [float(h[0]), float(h[-1])], "constrain": "domain", "scaleanchor": "x"}
    return layout("feature 1", "feature 2", xaxis=x, yaxis=y)


# ---------------------------------------------------------------- again


def is_file(name: str) -> bool:
    """Whether data of this name comes from a file."""
    return name.lower().endswith((".csv", ".npz", ".npy")) or os.path.isfile(name)  # of any length: Path raises


def label_option(one: Certificate) -> list[str]:
    """The option that names the column of labels, where the certificate knows it and it is not the usual one."""
    label = str(one.data_called.get("label", ""))
    return ["--label", label] if label and label not in LABEL_COLUMNS and is_file(one.data_name) else []


def scale_option(one: Certificate) -> list[str]:
    return ["--standardize"] if "standardized" in one.data_called else []


def precision(one: Certificate) -> list[str]:
    tol = one.stats.get("tol")
    return ["--tol", repr(tol)] if tol is not None else []


def again(cert: Certificate) -> str:
    """The commands that compute and check it again."""
    row, path = _row(cert), str(cert.stats.get("path") or f"{cert.kind}.json.gz")
    check = words("widemargin", "verify", path, cert.data_name, *label_option(cert))
    name = next((word for word, kind in kinds.SEVERAL.items() if kind == cert.kind), cert.kind)
    if name not in kinds.OFFERED:
        return f"# computed in Python, by widemargin.{row.room}.{row.function}\n{check}"
    parts = ["widemargin", "margin", cert.data_name, *label_option(cert), *scale_option(cert), "--kind", name]
    parts += ["--multiclass"] * (row.targets == "classes") + ["--bias"] * bool(cert.bias)
    parts += ["--activation", cert.activation] if cert.activation != "relu" and "activation" in row.options else []
    if cert.stats.get("seed"):
        parts += ["--seed", str(cert.stats["seed"])]
    for option, (_, key) in row.options.items():
        value = cert.extra.get(key) if key else None
        value = len(value) if key == "directions" and value is not None else value
        parts += [f"--{option}", str(value)] if value is not None else []
    return f"{words(*parts, *precision(cert), '--save', path)}\n{check}"
