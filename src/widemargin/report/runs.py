"""A run: curves over time with the certified line, and a slider over time where weights were recorded."""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from widemargin import flows
from widemargin.flows.nets import KINDS
from widemargin.flows.plan import log_steps
from widemargin.flows.runs import CERTIFICATE, read_config
from widemargin.types import Certificate, Dataset, InputError, Trajectory

from . import certificates, guarantees, players
from .checking import Checked, foreign, recheck
from .clocks import OVERFLOW, clock, convention, largest
from .section import (
    COLOURS,
    LINES,
    Digits,
    Figure,
    Section,
    above,
    band,
    label,
    layout,
    level,
    line,
    number,
    words,
)


def read(folder: Path) -> tuple[Trajectory, list[Dataset], Certificate | None]:
    """Trajectory, data, and the certificate if the run has one; a note where that is damaged."""
    path, traj, cert = folder / CERTIFICATE, flows.load(folder), None
    if path.is_file():
        try:
            cert = certificates.read(path)
        except InputError as error:
            traj = dataclasses.replace(
                traj, notes=(*traj.notes, f"The certificate beside this run is not drawn: {error}.")
            )
    return traj, flows.load_data(folder), cert


def foreign_data(config: Mapping[str, Any], sets: Sequence[Dataset]) -> str:
    """Why data is not what a run was trained on; empty where it is."""
    if [data.sha256() for data in sets] == config["data"]["sha256"]:
        return ""
    return f"the data {sets[0].name} ({len(sets)} of {len(config['data']['sha256'])} sets) is not what the run was trained on"


def title(traj: Trajectory, name: str) -> str:
    config = traj.config
    what = f"{_kind_of_net(config['net'])} network, {config['rule']['class']}, on {config['data']['names'][0]}"
    return f"Run {name}: {what}" if name else f"Run: {what}"


def show(
    section: Section,
    traj: Trajectory,
    sets: Sequence[Dataset],
    cert: Certificate | None,
    folder: str = "",
    bounds: bool = False,
    checks: bool = False,
    trial: int = 0,
    time_limit: float = 60.0,
) -> None:
    if not 0 <= trial < traj.trials:
        raise InputError(f"the run {folder} has trials 0 to {traj.trials - 1}, not {trial}")
    if not len(traj.t):
        raise InputError(f"the run {folder} has no records yet; resume it, or wait")
    wrong, checked = "", Checked(None, "")
    if cert is not None:
        checked = recheck(cert, next((data for data in sets if data.sha256() == cert.data_sha256), None))
        wrong = foreign(traj.config, cert) or (checked.words if checked.refused else "")
    if wrong:
        section.paragraph(f"The certificate beside this run is not drawn: {wrong}.", "quiet")
        cert = None
    elif cert is not None and cert.proved and checked.holds is None:
        section.paragraph(
            f"The certificate beside this run was {checked.words}; the command verify checks it.", "quiet"
        )
    section.summary = summary(traj, cert, checked)
    facts(section, traj, cert)
    x, name, log = clock(traj)
    axis = {"x": name, "xlog": log}
    section.open_grid()
    moves = any(record.startswith("W_") for record in traj.records)
    timed: dict[str, int] = {}  # figures over time, and the place of the shape that the slider moves
    for drawn in (
        margins(traj, x, axis, cert),
        losses(traj, x, axis),
        norms(traj, x, axis),
        optimality(traj, x, axis),
        rotations(traj, x, axis),
    ):
        if drawn is None:
            continue
        what, figure, caption = drawn
        shapes = figure["layout"].setdefault("shapes", [])
        when = float(x[-1, trial])
        if moves and math.isfinite(when):
            shapes.append(level(when, "now", "x", "@quiet", "solid"))
        place = section.figure(what, figure, caption)
        if moves and math.isfinite(when):
            timed[place] = len(shapes) - 1
    section.close_grid()
    players.show(section, traj, sets, cert, trial, timed)
    ends(section, traj, cert)
    for note in traj.notes:
        section.paragraph(note, "quiet")
    command, note = again(traj, folder, cert)
    section.settings(command, dict(traj.config), note)
    if bounds:
        data = sets[min(trial, len(sets) - 1)]
        if not _guaranteed(traj.config):
            section.paragraph(
                "Guarantees are about networks with one output and labels -1, +1; this run has others.", "quiet"
            )
        else:
            try:
                guarantees.show(section, data, traj if len(sets) == 1 else None, trial, time_limit)
            except InputError as error:
                section.paragraph(f"The guarantees were not evaluated: {error}.", "quiet")
    if checks:
        guarantees.show_checks(section, traj, sets)


def _guaranteed(config: Mapping[str, Any]) -> bool:
    return config["loss"] != "squared" and config["net"]["outputs"] == 1


def covered(kind: str, run: Any) -> list[str]:
    """Hashes of the data whose guarantees stand with a run (a folder, or a triple), which adds its own to them."""
    if kind not in ("run", "trajectory"):
        return []
    config = read_config(run) if kind == "run" else run[0].config
    shas = config["data"]["sha256"]
    return shas if _guaranteed(config) and len(shas) == 1 else []


def facts(section: Section, traj: Trajectory, cert: Certificate | None) -> None:
    config, counts = traj.config, {word: traj.status.count(word) for word in dict.fromkeys(traj.status)}
    others = len(config["data"]["names"]) - 1
    said = {
        "data": config["data"]["names"][0] + (f" and {others} more" if others else ""),
        "points": config["data"]["n"], "width": config["net"].get("m"), "loss": config["loss"],
        "trials": ", ".join(f"{count} {word}" for word, count in counts.items()),
        "records": len(traj.t), "steps": traj.stats.get("steps"),
    }  # fmt: skip
    key = convention(traj)
    if key:
        last = traj[f"margin_{key}"][-1]
        said[f"margin ({key}) at the end"] = _range(last)
        best = largest(cert, key)
        if best is not None:
            low, high = best
            said[f"largest possible ({key})"] = f"[{number(low, 7)}, {number(high, 7)}]"
            said["share reached"] = _share(last, high)
    section.facts(said)


def summary(traj: Trajectory, cert: Certificate | None, checked: Checked) -> str:
    """The largest margin that is possible, and what training reached."""
    key = convention(traj)
    many = f"{traj.trials} networks" if traj.trials > 1 else "the network"
    if not key:
        return f"{many[:1].upper()}{many[1:]} ended after {len(traj.t)} records; no margin was recorded."
    last = traj[f"margin_{key}"][-1]
    best = largest(cert, key)
    if cert is None or best is None or best[1] <= 0:
        return f"Training ended with a margin ({key}) of {_range(last, '{:.4g}')}; nothing is certified to compare it with."
    share = _share(last, best[1]) or "-"
    reached = "no positive margin" if share.startswith("none") else f"{share} of it"
    said = certificates.found(cert, checked)
    return f"{said[:1].upper()}{said[1:]}; training reached {reached}."


def ends(section: Section, traj: Trajectory, cert: Certificate | None) -> None:
    """Where the first trials ended."""
    key = convention(traj)
    names = [name for name in ("step", "t_mean", "risk", "train_error", "test_error", "norm") if name in traj.records]
    names += [f"margin_{key}"] if key else []
    best = largest(cert, key)
    rows = []
    for trial in range(min(traj.trials, LINES)):
        last = traj.last(trial)
        row = [trial, last["status"], *(Digits(number(last[name], 5)) for name in names)]
        if best and best[1] > 0:
            row.append(Digits(f"{last[names[-1]] / best[1]:.2%}" if last[names[-1]] >= 0 else "none"))
        rows.append(row)
    head = ["trial", "status", *names, *(["share of the largest"] if best and best[1] > 0 else [])]
    more = f" The first {LINES} of {traj.trials} trials." if traj.trials > LINES else ""
    section.table("Last records", head, rows, f"Where each trial ended.{more}", folded=len(rows) > 6)


def _range(values: np.ndarray, form: str = "{:.5g}") -> str:
    known = values[np.isfinite(values)]
    if not len(known):
        return "-"
    low, high = form.format(known.min()), form.format(known.max())
    return low if low == high else f"{low} to {high}"


def _share(margins: np.ndarray, most: float) -> str | None:
    """Which shares of the largest margin were reached."""
    if most <= 0:
        return None
    if (margins < 0).all():
        return "none: the margin is negative"
    return _range(np.maximum(margins, 0.0) / most, "{:.1%}").replace("%", " %")


# ---------------------------------------------------------------- curves


def curves(x: np.ndarray, y: np.ndarray, name: str, colour: str, dash: str = "solid") -> list[Figure]:
    """One thin line for each of a few trials, and a thick one for the median where all trials have the same clock."""
    y = np.where(np.isfinite(y), y, np.nan)
    seen = np.isfinite(y).any(axis=1)
    x, y = x[seen], y[seen]
    if not len(y):
        return []
    if y.shape[1] == 1:
        return [line(x[:, 0], y[:, 0], name, colour, dash=dash)]
    largest = max(1e-300, float(np.nanmax(np.abs(np.where(np.isfinite(x), x, np.nan)))))
    apart = np.ptp(np.where(np.isfinite(x), x, 0.0), axis=1).max() > 1e-6 * largest
    thin = [
        line(x[:, b], y[:, b], f"{name}, trial {b}", f"{colour}/{0.7 if apart else 0.35}", dash=dash, width=1.2 if apart else 0.8,
             legendgroup=name, showlegend=bool(apart and b == 0))
        for b in range(min(y.shape[1], LINES))
    ]  # fmt: skip
    if apart:
        thin[0]["name"] = name
        return thin
    return [*thin, line(x[:, 0], np.nanmedian(y, axis=1), f"{name} (median)", colour, dash=dash, legendgroup=name)]


def margins(
    traj: Trajectory, x: np.ndarray, axis: Mapping[str, Any], cert: Certificate | None = None
) -> tuple[str, Figure, str] | None:
    key = convention(traj)
    if not key:
        return None
    y = traj[f"margin_{key}"]
    traces, named = curves(x, y, "smallest margin", "@plus"), {"smallest margin": y}
    if "margin_partial" in traj.records and "psi_normalized" in traj.records and np.allclose(traj["margin_partial"], y):
        named["smooth margin psi"] = traj["psi_normalized"]
        traces += curves(x, traj["psi_normalized"], "smooth margin psi", "@minus", "dash")
    top, shapes, said = float(np.max(y, initial=-np.inf, where=np.isfinite(y))), [], ""
    best = largest(cert, key)
    if best is not None:
        low, high = best
        shapes = [level(high, "largest"), {**level(low, "at least"), "line": {"color": "@ink/0.4", "width": 1}}]
        top = max(top, high)
        traces.append(
            {"type": "scatter", "mode": "lines", "x": [None], "y": [None], "name": f"largest possible, at most {high:.4g}",
             "line": {"color": "@ink", "width": 1.5, "dash": "dot"}}
        )  # fmt: skip
        said = (
            f" Dotted: no network of this kind has a margin above {high:.7g}, certified (one has at least {low:.7g})."
        )
    y_axis, hidden = above(top, named)
    unit = key if key != "partial" else "over the norm of the homogeneous part"
    form = layout(axis["x"], f"margin ({unit})", xlog=axis["xlog"], yaxis=y_axis, shapes=shapes)
    caption = f"The smallest margin over the size of the network (convention {unit}), over time.{said}{hidden}"
    return "Normalised margin", {"data": traces, "layout": form}, caption


def losses(traj: Trajectory, x: np.ndarray, axis: Mapping[str, Any]) -> tuple[str, Figure, str] | None:
    if "log_risk" not in traj.records:
        return None
    log_risk = traj["log_risk"]
    if np.nanmin(log_risk) < -OVERFLOW:
        digits = -log_risk / math.log(10)
        traces, name = (
            curves(x, np.where(digits > 0, digits, np.nan), "risk", "@plus"),
            "zeros behind the point, -log10",
        )
    else:
        with np.errstate(over="ignore"):  # what overflows is not drawn
            traces, name = curves(x, np.exp(log_risk), "risk", "@plus"), "mean loss, errors"
        for record, colour in (("train_error", "@ink"), ("test_error", "@minus")):
            if record in traj.records:
                y = traj[record]
                traces += curves(x, np.where(y > 0, y, np.nan), record.replace("_", " "), colour, "dot")
    form = layout(axis["x"], name, xlog=axis["xlog"], ylog=True)
    return (
        "Loss",
        {"data": traces, "layout": form},
        "The mean loss on the training data, and errors where they are above 0.",
    )


def norms(traj: Trajectory, x: np.ndarray, axis: Mapping[str, Any]) -> tuple[str, Figure, str] | None:
    traces = curves(x, traj["norm"], "|W|", "@ink") if "norm" in traj.records else []
    for name, colour in zip((record for record in traj.records if record.startswith("moved_")), COLOURS):
        y = traj[name]
        traces += curves(
            x, np.where(y > 0, y, np.nan), f"moved: {label(name.removeprefix('moved_'), 20)}", colour, "dash"
        )
    if not traces:
        return None
    form = layout(axis["x"], "Euclidean norm", xlog=axis["xlog"], ylog=True)
    return (
        "Norms",
        {"data": traces, "layout": form},
        "The norm of the weights, and how far each layer is from where it began.",
    )


def optimality(traj: Trajectory, x: np.ndarray, axis: Mapping[str, Any]) -> tuple[str, Figure, str] | None:
    traces: list[Figure] = []
    if "gap_estimate" in traj.records:
        with np.errstate(all="ignore"):
            gap = traj["gap_estimate"] / np.where(traj["dual_estimate"] > 0, traj["dual_estimate"], np.nan)
        traces += curves(x, np.where(gap > 0, gap, np.nan), "gap to the bound of its dual (estimate)", "@plus")
    if "kkt_residual" in traj.records:
        y = traj["kkt_residual"]
        traces += curves(x, np.where(y > 0, y, np.nan), "KKT residual", "@minus", "dash")
    if not traces:
        return None
    form = layout(axis["x"], "relative distance", xlog=axis["xlog"], ylog=True)
    caption = (
        "Two measures of how far the network is from one of largest margin: 0 where it is optimal, or a KKT point."
    )
    return "Distance from optimality", {"data": traces, "layout": form}, caption


def rotations(traj: Trajectory, x: np.ndarray, axis: Mapping[str, Any]) -> tuple[str, Figure, str] | None:
    if "rotation" not in traj.records:
        return None
    cosine = traj["rotation"].reshape(len(traj.t), -1)
    seen = np.isfinite(cosine).any(axis=1) & np.isfinite(x).any(axis=1)
    cosine, middle = cosine[seen], np.nanmedian(np.where(np.isfinite(x), x, np.nan)[seen], axis=1)
    if not len(cosine):
        return None
    shares = np.nanquantile(cosine, (0.05, 0.25, 0.5, 0.75, 0.95), axis=1)
    traces = [
        *band(middle, shares[0], shares[4], "90 % of the neurons", "@plus/0.15"),
        *band(middle, shares[1], shares[3], "half of them", "@plus/0.3"),
        line(middle, shares[2], "median", "@plus"),
    ]
    form = layout(axis["x"], "cosine to the first direction", xlog=axis["xlog"], yaxis={"range": [-1.05, 1.05]})
    return "Rotation", {"data": traces, "layout": form}, "How far neurons have turned since the start (1: not at all)."


# ---------------------------------------------------------------- again


def again(traj: Trajectory, folder: str, cert: Certificate | None = None) -> tuple[str, str]:
    """The command line of the run, and a remark where it is not all of it."""
    config = traj.config
    net, rule, missing = config["net"], config["rule"], []
    algorithm, default = _algorithm(rule["class"])
    kind = _kind_of_net(net)
    parts = ["widemargin", "train", config["data"]["names"][0], "--net", kind, "--width", str(net.get("m"))]
    parts += ["--algorithm", algorithm or rule["class"], "--loss", config["loss"]]
    if len(config["data"]["names"]) > 1:
        missing.append("every trial had data of its own")
    if not algorithm:
        missing.append(f"the rule {rule['class']} is one's own")
    for name in KINDS[kind][2] if kind in KINDS else ():
        value = net.get(name)
        if name in ("data", "directions", "signs", "feature_map"):
            usual = value is None or value == _usual(kind, net, name) or (name == "signs" and value == "random")
            missing += [] if usual else [f"{name} is one's own"]
        elif value is not None and value != _usual(kind, net, name):
            parts += ["--option", f"{name}={value}"]
    for name, value in rule.items():
        if name in ("class", "seed") or value == default.get(name) or isinstance(value, list | dict):
            missing += [f"{name} of the rule is more than a number"] if isinstance(value, dict) else []
        elif name in ("lr", "eta") and name == next((k for k in ("lr", "eta") if k in rule), ""):
            parts += ["--lr", repr(value)]
        else:
            parts += ["--option", f"{name}={value}"]
    if config["time"] is not None:
        parts += ["--time", repr(config["time"])]
        parts += ["--clock", config["clock"]]
    elif config["steps"] is not None:
        parts += ["--steps", str(config["steps"])]
    parts += ["--until", config["until"]] if config["until"] else []
    if isinstance(config["trials"], int):
        parts += ["--trials", str(config["trials"])]
    else:
        missing.append(f"only the trials {', '.join(map(str, config['trials']))} were trained")
    parts += ["--seed", str(config["seed"])] + ["--bias"] * bool(config["bias"])
    points = _points(config)
    if points is None:
        missing.append("records were taken at moments of one's own")
    elif points != 200:
        parts += ["--points", str(points)]
    parts += ["--weights"] if "weights" in config["observe"] else []
    parts += ["--device", config["device"]] if config["device"] != "cpu" else []
    parts += ["--dtype", config["dtype"]] if config["dtype"] != "float64" else []
    lost = ["--test DATA"] if config["test"] else []
    if cert is not None and "margin_M1" in traj.records:
        parts += ["--certify"]
        lost += ["--time-limit of the certificate"] if cert.status != "certified" else []
    if certificates.is_file(config["data"]["names"][0]):
        column = [] if cert is None else certificates.label_option(cert)
        parts += column
        lost += ["the folder of the file"] if column else [certificates.LABEL]
    parts += ["--out", folder or "RUN"]
    notes = [f"Not all of it can be told by a command: {'; '.join(missing)}. The settings below have it."] * bool(
        missing
    )
    notes += [certificates.ADD.format(", ".join(lost))] * bool(lost)
    return words(*parts), " ".join(notes)


def _algorithm(name: str) -> tuple[str, dict[str, Any]]:
    """The name on the command line of a rule's class, and the defaults of its fields."""
    for word, kind in flows.rule_kinds().items():
        if kind.__name__ == name:
            rule = kind()
            return word, {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}
    return "", {}


def _kind_of_net(net: Mapping[str, Any]) -> str:
    """The name on the command line: `net` of the configuration, or what it is with other defaults."""
    if net["net"] != "relu":
        return net["net"]
    if net.get("train") == "output":
        return "output"
    return str(net.get("activation", "relu")).partition(":")[0]


def _usual(kind: str, net: Mapping[str, Any], name: str) -> Any:
    """What the option would be if it were not given."""
    try:
        law = {"law": net["law"]} if name == "mean_field" else {}  # which depends on the law
        return flows.make_net(kind, net["d"], net["m"], **law).config().get(name)
    except InputError:
        return None


def _points(config: Mapping[str, Any]) -> int | None:
    """--points of a run, from the moments of its records."""
    times = np.asarray(config["times"])
    if config["time"] is not None:
        inner = times[1:]
        even = len(inner) > 1 and np.allclose(np.diff(np.log(inner)), math.log(inner[-1] / inner[0]) / (len(inner) - 1))
        return len(times) if times[0] == 0 and even else None
    if np.array_equal(log_steps(config["steps"], 200), times):
        return 200
    # Rounding joins records, so that fewer are left than were asked for; asking for more does not leave fewer.
    counts = range(max(len(times), 2), 20 * len(times) + 100)
    first = bisect.bisect_left(counts, len(times), key=lambda count: len(log_steps(config["steps"], count)))
    for count in counts[first:]:
        tried = log_steps(config["steps"], count)
        if np.array_equal(tried, times):
            return count
        if len(tried) > len(times):
            break
    return None
