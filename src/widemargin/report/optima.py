"""Optima of training: the certified objective, what its network does, paths over decays, and trained networks beside them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from widemargin import kinds
from widemargin.optima import Gap
from widemargin.optima.paths import norm_of, point
from widemargin.optima.trained_networks import of as gap_of
from widemargin.types import CONVENTIONS, FORMAT, Certificate, Dataset

from . import certificates, guarantees, neurons
from .checking import Checked, chosen, load_data, recheck
from .intervals import height, intervals
from .section import Digits, Figure, Section, band, layout, line, number, spread, words

SEVERAL = {
    "f1-multiclass-optimum": "classes",
    "f1-multitarget-optimum": "targets",
}  # and what there is an output for each of
NETWORKS = ("f1-optimum", *SEVERAL)  # which the command fit computes
KINDS = ("f2-optimum", *NETWORKS)


@dataclass(frozen=True)
class Shown:
    """An optimum, and of its function what is known: all of it where its data is here; nan where it is not."""

    cert: Certificate
    gap: Gap | None
    decay: float
    loss: float
    norm: float
    margin: float
    error: float

    @property
    def neurons(self) -> int | None:
        return self.cert.atoms if self.cert.kind in NETWORKS else None

    @property
    def family(self) -> str:
        """Equal for those that differ in their decay alone."""
        extra = self.cert.extra
        kept = [extra["loss"], self.cert.bias, extra.get("output_bias"), extra.get("weights")]
        return json.dumps([self.cert.kind, *kept])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def show(section: Section, certs: Sequence[Certificate], bounds: bool = False, time_limit: float = 60.0) -> None:
    """Optima of one data set: paths, then single ones, then everything in one table."""
    first = certs[0]
    data = load_data(first)
    if data is not None and any((cert.n, cert.d) != (data.n, data.d) for cert in certs):  # one of the files is wrong
        data = None
    optima = [shown(cert, data) for cert in certs]
    checked = {id(cert): recheck(cert, data) for cert in certs}
    section.summary = certificates.summary(certs, [checked[id(cert)] for cert in certs])
    facts = {"data": first.data_name, "points": first.n, "features": first.d}
    section.facts(facts | _targets(certs) | chosen(certs, data))
    if data is None:
        section.paragraph(
            f"The points of {first.data_name} are not found, so margins, training errors and pictures of decisions are "
            "missing; mean losses are what the decay leaves of the objective.",
            "quiet",
        )
    families: dict[str, list[Shown]] = {}
    for optimum in optima:
        families.setdefault(optimum.family if optimum.gap is None else f"gap {len(families)}", []).append(optimum)
    paths = [members for members in families.values() if len({member.decay for member in members}) > 1]
    single = [optimum for members in families.values() if members not in paths for optimum in members]
    for optimum in single:
        if optimum.gap is not None:
            section.paragraph(
                f"A trained network of width {optimum.gap.width}, {setting(optimum.cert)}: {optimum.gap}."
            )
    if any(optimum.gap is not None for optimum in single):
        section.paragraph(
            "The objective of a trained network is what was measured when its file was saved. The network is not in the file, so "
            "the command verify checks the bounds and not that number.",
            "quiet",
        )
    for members in paths:
        show_path(section, sorted(members, key=lambda member: -member.decay))
    if single:
        drawn = intervals([optimum.cert for optimum in single], [checked[id(optimum.cert)] for optimum in single])
        marks = trained(single, drawn)
        said = "; the diamond is the objective of the trained network" if marks else ""
        section.figure(
            "Certified objectives",
            {**drawn, "data": [*drawn["data"], *marks]},
            "Each bar goes from the bound that is proved, below which no network of any width has an objective (lower), to the "
            f"objective of a network that was found (upper){said}; grey: the lower bound is not proved.",
            height([optimum.cert for optimum in single]),
        )
    table(section, optima, checked)
    for optimum in single:
        network = optimum.cert.primal
        if optimum.cert.atoms and network is not None:
            section.heading(f"{name(optimum.cert)}: neurons")
            section.open_grid()
            neurons.show(section, network, data)
            section.close_grid()
    if first.d == 2 and data is not None and single:
        show_decisions(section, single, data)
    known = [
        {**cert.summary(), "format": FORMAT, "data": {"name": cert.data_name, "sha256": cert.data_sha256}}
        | {key: cert.extra.get(key) for key in ("loss", "weight_decay", "output_bias")}
        | ({"path": cert.stats["path"]} if "path" in cert.stats else {})
        for cert in certs
    ]
    commands = [again_path(members) for members in paths] + [again(optimum) for optimum in single]
    more = certificates.not_kept(first)
    section.settings("\n".join(commands), known, certificates.AGAIN + more)
    if bounds:
        guarantees.offer(section, data, time_limit)


def _targets(certs: Sequence[Certificate]) -> dict[str, int]:
    """How many real targets each point has, where it has several."""
    targets = [cert.extra["targets"] for cert in certs if cert.kind == "f1-multitarget-optimum"]
    return {"targets": targets[0]} if targets else {}


def shown(cert: Certificate, data: Dataset | None) -> Shown:
    gap, decay = gap_of(cert), float(cert.extra["weight_decay"])
    if data is not None:
        at = point(cert, data)
        return Shown(cert, gap, decay, at.loss, at.norm, at.margin, at.error)
    if cert.kind not in NETWORKS:
        return Shown(cert, gap, decay, math.nan, math.nan, math.nan, math.nan)
    norm, b = norm_of(cert), np.asarray(cert.extra.get("offset", 0.0), dtype=np.float64)
    taken = decay * (norm + (float((b * b).sum()) / 2 if cert.extra.get("output_bias") == "decayed" else 0.0))
    return Shown(cert, gap, decay, max(0.0, cert.upper - taken), norm, math.nan, math.nan)


def name(cert: Certificate) -> str:
    return kinds.label(cert.kind) + kinds.detail(cert.kind, cert.extra)


def setting(cert: Certificate) -> str:
    """What is trained, in words."""
    last = {"free": "free output bias", "decayed": "decayed output bias"}.get(
        str(cert.extra.get("output_bias")), "no output bias"
    )
    bias = "biases" if cert.bias else "no biases"
    weights = ", weights of points" if cert.extra.get("weights") is not None else ""
    return f"{cert.extra['loss']} loss, decay {cert.extra['weight_decay']:.6g}, {bias}, {last}{weights}"


def trained(single: Sequence[Shown], drawn: Figure) -> list[Figure]:
    """Marks of the trained networks in a picture of intervals, whose axis is made to hold them."""
    marks: list[Figure] = []
    rows = [trace["y"][0] for trace in drawn["data"]]
    for row, optimum in zip(rows, single):
        if optimum.gap is None:
            continue
        said = f"trained, width {optimum.gap.width}: {number(optimum.gap.objective, 7)}"
        marks.append(
            {
                "type": "scatter", "mode": "markers", "x": [optimum.gap.objective], "y": [row], "showlegend": False,
                "marker": {"symbol": "diamond", "size": 13, "color": "@minus"},
                "hovertemplate": f"{said}<extra></extra>",
            }
        )  # fmt: skip
    axis = drawn["layout"]["xaxis"]
    if marks:
        top = max(mark["x"][0] for mark in marks)
        axis["range"][1] = max(axis["range"][1], math.log10(top) + 0.1 if axis["type"] == "log" else 1.06 * top)
    return marks


def table(section: Section, optima: Sequence[Shown], checked: Mapping[int, Checked]) -> None:
    names = ["kind", "decay", "lower", "upper", "gap", "status", "proved", "bound", "mean loss", "norm", "margin",
             "training error", "neurons", "seconds"]  # fmt: skip
    rows: list[list[Any]] = []
    for optimum in sorted(optima, key=lambda optimum: (optimum.family, -optimum.decay)):
        cert, seconds = optimum.cert, optimum.cert.stats.get("seconds")
        ends = ((optimum.decay, 5), (cert.lower, 9), (cert.upper, 9), (cert.gap, 2))
        digits = [Digits(number(v, n)) for v, n in ends]
        proved = checked[id(cert)].badge
        does = [None if math.isnan(v) else Digits(number(v, 5)) for v in (optimum.loss, optimum.norm, optimum.margin)]
        error = None if math.isnan(optimum.error) else Digits(f"{100 * optimum.error:.3g} %")
        took = Digits(number(seconds, 3)) if _is_number(seconds) else None
        kind = f"{kinds.label(cert.kind)}, {cert.extra['loss']} loss"
        rows.append([kind, *digits, cert.status, proved, cert.bound, *does, error, optimum.neurons, took])
    section.table(
        "Optima",
        names,
        rows,
        "lower <= least objective of any width <= upper, the objective of the network; gap = (upper - lower) / upper. "
        f"objective: {CONVENTIONS['objective']}. Mean loss, norm (half of the squared weights), margin (the smallest label times "
        "output, of several classes the own output minus the largest other one, over the norm), training error and neurons are "
        f"those of that network. {certificates.RECHECKED}",
    )
    for optimum in optima:
        if optimum.cert.reason:
            section.paragraph(f"{name(optimum.cert)}: {optimum.cert.reason}.")


# ---------------------------------------------------------------- paths


def show_path(section: Section, members: Sequence[Shown]) -> None:
    """From the largest decay to the smallest: both bounds, and what the networks do."""
    first = members[0].cert
    what = setting(first).split(", ")
    ends = f"{members[-1].decay:.4g} to {members[0].decay:.4g}"
    section.heading(f"Path over {len(members)} decays, {ends}: {', '.join([what[0], *what[2:]])}")
    decay, lower, upper, loss, norm, margin, error = (
        np.array([value(member) for member in members], dtype=np.float64)
        for value in (
            lambda member: member.decay,
            lambda member: member.cert.lower,
            lambda member: member.cert.upper,
            lambda member: member.loss,
            lambda member: member.norm,
            lambda member: member.margin,
            lambda member: member.error,
        )
    )
    objective = {
        "data": [
            *band(decay, lower, upper, "between the bounds", "@plus/0.25"),
            line(decay, upper, "objective of the network (upper)", "@plus"),
            line(decay, lower, "proved for every width (lower)", "@ink", dash="dash"),
            *([line(decay, loss, "mean loss of the network", "@minus")] if np.isfinite(loss).any() else []),
        ],
        "layout": layout("weight decay", "objective", xlog=True, ylog=spread(np.append(lower, loss))),
    }
    largest = max(member.cert.gap for member in members)
    section.figure(
        "The least objective along the path",
        objective,
        "Both bounds at every decay; what is between mean loss and objective is the decay's share. "
        f"The largest gap is {number(largest, 2)}.",
    )
    section.open_grid()
    neurons = np.array([math.nan if member.neurons is None else member.neurons for member in members])
    for named, values, said, more in (
        ("Norm", norm, "Half of the squared weights of the network, at the best scaling of its layers.", {"ylog": spread(norm)}),
        ("Margin", margin, "The smallest label times output, over the norm: negative where a point is on the wrong side.", {}),
        ("Training error", error, "The share of points on the wrong side.", {"yaxis": {"rangemode": "tozero"}}),
        ("Neurons", neurons, "Of the network of each decay.", {"yaxis": {"rangemode": "tozero"}}),
    ):  # fmt: skip
        if np.isfinite(values).any():
            curve = line(decay, values, named.lower(), "@plus")
            curve["mode"] = "lines+markers"
            drawn = {"data": [curve], "layout": layout("weight decay", named.lower(), xlog=True, **more)}
            section.figure(f"{named} along the path", drawn, said, 300)
    section.close_grid()
    section.paragraph("Networks of a path are not drawn; a page of one of its files shows its network.", "quiet")


def show_decisions(section: Section, single: Sequence[Shown], data: Dataset) -> None:
    """What the networks decide in the plane."""
    if data.y.ndim == 2 or not set(np.unique(data.y)) <= {-1.0, 1.0}:
        return
    section.open_grid()
    for optimum in single:
        f = certificates.function_of(optimum.cert, data)
        if f is not None:
            section.figure(
                f"{name(optimum.cert)}: decision",
                certificates.decision(f, data, 0.0),
                "Shading is f(x), the output bias included, blue positive and orange negative. Solid: f = 0.",
                430,
            )
    section.close_grid()


# ---------------------------------------------------------------- again


def again(optimum: Shown) -> str:
    """The commands that compute and check it again."""
    cert, extra = optimum.cert, optimum.cert.extra
    path = str(cert.stats.get("path") or f"{cert.kind}.json.gz")
    check = words("widemargin", "verify", path, cert.data_name, *certificates.label_option(cert))
    if cert.kind not in NETWORKS or extra.get("weights") is not None:
        return f"# computed in Python, by widemargin.optima.{kinds.KINDS[cert.kind].function}: {setting(cert)}\n{check}"
    decay = ["--weight-decay", repr(optimum.decay)]
    if optimum.gap is None:
        return f"{_fit(cert, decay, path)}\n{check}"
    mode = ["--output-bias", extra["output_bias"]] if extra.get("output_bias") else []
    named = [cert.data_name, *certificates.label_option(cert)]
    parts = ["widemargin", "gap", "MODEL.pt", *named, "--loss", extra["loss"], *decay, *mode]
    parts += [*certificates.precision(cert), "--save", path]
    return f"# MODEL.pt is the trained network, or leave the data out and give its run\n{words(*parts)}\n{check}"


def again_path(members: Sequence[Shown]) -> str:
    """One command where the decays are evenly spaced, as --path has them."""
    ordered = sorted(members, key=lambda member: -member.decay)
    decays = [member.decay for member in ordered]
    even = np.geomspace(decays[-1], decays[0], len(decays))[::-1]
    cert = ordered[0].cert
    files = [str(member.cert.stats.get("path") or "") for member in ordered]
    stems = {_stem(file, len(files), k) for k, file in enumerate(files, 1)}
    fits = cert.kind in NETWORKS and cert.extra.get("weights") is None
    if not fits or not np.allclose(decays, even, rtol=1e-9) or len(stems) > 1 or None in stems:
        return "\n".join(again(member) for member in ordered)
    asked = ["--path", f"{decays[-1]!r}:{decays[0]!r}:{len(decays)}"]
    checks = [words("widemargin", "verify", file, cert.data_name, *certificates.label_option(cert)) for file in files]
    return "\n".join([_fit(cert, asked, stems.pop() or ""), *checks])


def _stem(file: str, count: int, k: int) -> str | None:
    """What --save was, if `file` is how it named the k-th of its files."""
    mark = f".{k:0{len(str(count))}d}"
    path = Path(file)
    ending = "".join(s for s in path.suffixes[-2:] if s in (".json", ".gz"))
    stem = path.name.removesuffix(ending)
    return str(path.with_name(stem.removesuffix(mark) + ending)) if file and stem.endswith(mark) else None


def _fit(cert: Certificate, decay: Sequence[str], path: str) -> str:
    named = [cert.data_name, *certificates.label_option(cert), *certificates.scale_option(cert)]
    parts = ["widemargin", "fit", *named, "--loss", cert.extra["loss"], *decay]
    parts += ["--bias"] if cert.bias else []
    parts += ["--output-bias", cert.extra.get("output_bias") or "none"]
    seed = cert.stats.get("seed")
    return words(*parts, *(["--seed", str(seed)] if seed else []), *certificates.precision(cert), "--save", path)
