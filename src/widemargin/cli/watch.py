"""`widemargin watch`: the records of a monitor in the terminal, while a model trains and afterwards."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from widemargin.json_values import plain_json
from widemargin.types import InputError

from .options import Command, legal, number
from .screen import plain, say, terminal

BLOCKS, LETTERS = "▁▂▃▄▅▆▇█", "_.-=+*%#"  # of a curve, low to high; letters where blocks cannot be printed
WIDEST = 110  # columns: longer lines are hard to read
CURVE = 36  # columns of a curve
STALE = 60.0  # seconds without a record after which a monitor on another machine is called stale
ROUNDING = 1e-12  # relative: a smaller fall is none
WORST = 8  # classes shown
NUMBERS = ("error", "loss", "margin", "psi", "norm", "margin_normalized", "psi_normalized", "effective", "wall")
ENDED = ("ended", "killed")

Columns = Mapping[str, np.ndarray]


def watch(options: argparse.Namespace) -> int:
    """Show a monitor's records: once, or again and again until training has ended."""
    if not (options.run_folder and legal(options.run_folder)):
        raise InputError(f"{options.run_folder[:80]!r} is no legal folder name; give the folder of a monitor")
    folder = Path(options.run_folder)
    reader = _Reader(folder, options.name, options.classes)
    if options.once:
        _check(folder, wait=False)
        state, curves = reader.look()
        missing = [name for name in options.name if name not in state["series"]]
        if missing and state["records"]:
            raise InputError(f"{folder} has no records called {missing[0]!r}, only {', '.join(reader.names)}")
        _print(state, curves, options.json)
        return 0
    if options.json or not terminal().is_terminal:
        return _again(folder, reader, options)
    return _live(folder, reader, options)


def _again(folder: Path, reader: _Reader, options: argparse.Namespace) -> int:
    """Off a terminal: print when there is something new."""
    before, said = None, False
    while True:
        if _check(folder, wait=True):
            state, curves = reader.look()
            now = (state["records"], state["state"])
            if now != before:
                before = now
                _print(state, curves, options.json)
                sys.stdout.flush()
            if state["state"] in ENDED:
                return 0
        elif not said:
            said = True
            say(_waiting(folder))
        time.sleep(options.every)


def _live(folder: Path, reader: _Reader, options: argparse.Namespace) -> int:
    from rich.live import Live

    console = terminal()
    with _keyboard() as pressed_q, Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
        while True:
            if _check(folder, wait=True):
                state, curves = reader.look()
                ended = state["state"] in ENDED
                live.update(_frame(state, curves, console, "" if ended else "q ends watching"), refresh=True)
                if ended:
                    return 0
            else:
                live.update(plain(f"{_waiting(folder)}; q ends watching"), refresh=True)
            if pressed_q(options.every):
                return 0


def _waiting(folder: Path) -> str:
    there = "" if folder.exists() else ": there is no such folder yet"
    return f"waiting for records in {folder}{there}"


def _check(folder: Path, wait: bool) -> bool:
    """Whether the folder is a monitor's; complains where it will never be one, and where nobody waits."""
    from widemargin import monitor

    if monitor.is_monitor(folder):
        return True
    if (folder / "config.json").is_file():
        raise InputError(f"{folder} holds a run of `widemargin train`; draw it with `widemargin plot {folder}`")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give the folder that MarginMonitor(out=...) writes to")
    others = [name for name in os.listdir(folder) if name[0] != "." and name != "lock"] if folder.exists() else []
    if others or not wait:
        hint = "" if others else ", or leave --once out to wait for it"
        raise InputError(
            f"{folder} holds no records of a monitor; give the folder that MarginMonitor(out=...) writes to{hint}"
        )
    return False


@contextlib.contextmanager
def _keyboard() -> Iterator[Callable[[float], bool]]:
    """A function that waits some seconds, or until a key is pressed, and says whether the key was q."""

    def sleep(seconds: float) -> bool:
        time.sleep(seconds)
        return False

    try:
        import select
        import termios
        import tty

        file = sys.stdin.fileno()
        before = termios.tcgetattr(file)
        ours = os.tcgetpgrp(file) == os.getpgrp()  # the keyboard is not for jobs in the background
    except (ImportError, OSError, ValueError, AttributeError, termios.error):
        ours = False
    if not ours:
        yield sleep
        return

    def wait(seconds: float) -> bool:
        ready, _, _ = select.select([file], [], [], seconds)
        return bool(ready) and os.read(file, 1) in (b"q", b"Q", b"")

    tty.setcbreak(file)
    try:
        yield wait
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)


# ---------------------------------------------------------------- what there is


class _Reader:
    """Reads the records again where they have changed."""

    def __init__(self, folder: Path, wanted: Sequence[str], classes: bool):
        self.folder, self.wanted, self.classes = folder, wanted, classes
        self.names: list[str] = []
        self._records = 0
        self._stamps: Any = None
        self._series: dict[str, dict[str, np.ndarray]] = {}

    def look(self) -> tuple[dict[str, Any], dict[str, Columns]]:
        """What --json prints, and the columns of each series."""
        from widemargin.monitor import store
        from widemargin.plots.monitors import FREE

        state = store.state(self.folder)  # before the records: those of an ended monitor are all there
        stamps = [_stamp(self.folder / name) for name in (store.NEWEST, store.RECORDS)]
        if stamps != self._stamps:
            self._series, self.names, self._records = store.shown(self.folder, self.wanted)
            self._stamps = stamps
        config, age = store.config(self.folder), store.age(self.folder)
        if state == "unknown" and age is not None:
            state = "running" if age < STALE else "stale"
        asked = [name for name in self.names if name in self.wanted] if self.wanted else self.names
        homogeneous = config.get("homogeneous") or {}
        summary = {
            "run": str(self.folder),
            "model": config.get("model"),
            "parameters": config.get("parameters"),
            "loss": config.get("loss"),
            "homogeneous": homogeneous.get("names"),
            "degree": homogeneous.get("degree") if homogeneous.get("names") else None,
            "free": bool((homogeneous.get("growth") or 1.0) > FREE),
            "notes": homogeneous.get("notes", []),
            "state": state,
            "age": age,
            "records": self._records,
            "left_out": len(asked) - len(self._series),
            "series": {name: _summary(series, self.classes) for name, series in self._series.items()},
        }
        return summary, dict(self._series)


def _stamp(path: Path) -> tuple[int, ...] | None:
    with contextlib.suppress(OSError):
        status = path.stat()
        return status.st_mtime_ns, status.st_size, status.st_ino  # a clock may stand still, or be set back
    return None


def _summary(columns: Columns, classes: bool) -> dict[str, Any]:
    """The last record, and how psi / |w_hat|^L has moved since psi > 0."""
    from widemargin.monitor import store

    def last(name: str) -> float | None:
        return float(columns[name][-1]) if name in columns else None

    said: dict[str, Any] = {
        "records": len(columns["step"]),
        "whole": bool(columns["whole"][-1]),
        "step": int(columns["step"][-1]),
        "n": int(columns["n"][-1]),
        **{name: last(name) for name in NUMBERS},
        **_since_fitted(columns),
    }
    if classes:
        tables = [text for text in columns.get("classes", ()) if text]
        rows = store.classes(tables[-1]) if tables else []
        said["classes"] = sorted(rows, key=lambda row: (row["margin"], -row["error"]))
    return said


def _since_fitted(columns: Columns) -> dict[str, Any]:
    """From the first record with psi > 0: psi / |w_hat|^L then and now, and its largest fall below its highest so far."""
    from widemargin.plots.monitors import how_far

    said: dict[str, Any] = dict.fromkeys(
        ("fitted_step", "psi_normalized_fitted", "falls", "largest_fall", "largest_fall_share", "largest_fall_step")
    )
    first = _first_fitted(columns)
    said["fitted"] = bool(columns["psi"][-1] > 0)
    said["how_far"] = None if said["fitted"] else how_far(columns)
    if first is None:
        return said
    said["fitted_step"] = int(columns["step"][first])
    values = columns.get("psi_normalized", np.full(len(columns["step"]), np.nan))[first:].astype(float)
    steps = columns["step"][first:][np.isfinite(values)]
    values = values[np.isfinite(values)]
    if not len(values):
        return said
    highest = np.maximum.accumulate(values)
    fall = highest - values
    fall[fall <= ROUNDING * highest] = 0
    worst = int(fall.argmax())
    said["psi_normalized_fitted"] = float(values[0])
    said["falls"] = int((np.diff(values) < -ROUNDING * highest[:-1]).sum())
    said["largest_fall"] = float(fall[worst])
    if fall[worst] > 0:
        said["largest_fall_share"] = float(fall[worst] / highest[worst])
        said["largest_fall_step"] = int(steps[worst])
    return said


def _first_fitted(columns: Columns) -> int | None:
    fitted = np.flatnonzero(columns["psi"] > 0)
    return int(fitted[0]) if len(fitted) else None


# ---------------------------------------------------------------- how it looks


def _print(state: Mapping[str, Any], curves: Mapping[str, Columns], as_json: bool) -> None:
    if as_json:
        print(json.dumps(plain_json(state), allow_nan=False))
        return
    console = terminal()
    with console.capture() as captured:
        console.print(_frame(state, curves, console))
    print(captured.get(), end="")


def _frame(state: Mapping[str, Any], curves: Mapping[str, Columns], console: Any, hint: str = "") -> Any:
    from rich.console import Group

    width = min(console.width, WIDEST)
    parts: list[Any] = [*_header(state, width), *([_dim(hint)] if hint else [])]
    names = list(state["series"])
    if not names:
        parts.append(plain("no records yet" if not state["records"] else "no records of this name yet"))
    if state["left_out"]:
        parts.append(plain(f"{state['left_out']} names with fewer records are left out; give --name NAME to see one"))
    most = max(1, (width - 16) // 13)  # series side by side
    for k in range(0, len(names), most):
        parts += [plain(""), _table(state, names[k : k + most])]
    letters = _blocks(console)
    for name in names:
        parts += [plain(""), *_curves(name, curves[name], state, letters, width)]
    for name in names:
        rows = state["series"][name].get("classes")
        if rows:
            parts += [plain(""), _classes(name, rows)]
    return Group(*parts)


def _header(known: Mapping[str, Any], width: int) -> Iterator[Any]:
    from rich.text import Text

    state = known["state"] + ("" if known["age"] is None else f", last record {_ago(known['age'])}")
    yield Text.assemble((_fitting(known["run"], width - len(state) - 2), "bold"), "  ", state)
    yield plain(f"{known['model']}, {known['parameters']} parameters, loss {known['loss']}")
    names, degree = known["homogeneous"], known["degree"]
    if names is None:
        yield plain("homogeneous parameters: not looked for yet")
    elif degree is None:
        yield plain("no homogeneous parameters were found: margins are not normalised")
    else:
        some = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        yield plain(f"w: {len(names)} parameters, homogeneous of degree {degree}: {some}")
        if known["free"]:
            yield plain(
                "the scale of other parameters is free, so that margins over |w| mean little; heuristics=True has others"
            )
    for note in known["notes"]:
        yield _dim(note)


def _table(state: Mapping[str, Any], names: Sequence[str]) -> Any:
    from rich.table import Table

    L = state["degree"]
    rows = {"step": "step", "n": "examples", "error": "error", "loss": "loss", "margin": "margin", "psi": "psi"}
    if L is not None:
        power = "|w|" if L == 1 else f"|w|^{L}"
        rows |= {"norm": "|w|", "margin_normalized": f"margin/{power}", "psi_normalized": f"psi/{power}"}
        rows |= {"change": "since fitted", "fitted_step": "fitted at"}
    else:
        rows["fitted_step"] = "fitted at"
    rows["effective"] = "effective n"
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("", no_wrap=True, min_width=15)
    for name in names:
        table.add_column(plain(_fitting(name, 11)), justify="right", no_wrap=True, min_width=11)
    for key, label in rows.items():
        cells = []
        for name in names:
            series = state["series"][name]
            if key == "change":
                start, end = series["psi_normalized_fitted"], series["psi_normalized"]
                cells.append("-" if start is None or end is None else _signed(end - start))
            else:
                cells.append(_cell(key, series[key]))
        table.add_row(plain(label), *(plain(cell) for cell in cells), style="bold" if key == "psi_normalized" else "")
    return table


def _curves(name: str, columns: Columns, state: Mapping[str, Any], letters: str, width: int) -> Iterator[Any]:
    """A line each for the normalised margin, the norm and the error, and a sentence on falls."""
    from rich.text import Text

    L = state["degree"]
    power = "|w|" if L == 1 else f"|w|^{L}"
    rows = {"margin_normalized": f"margin/{power}", "psi_normalized": f"psi/{power}", "norm": "|w|", "error": "error"}
    if L is None:
        rows = {"margin": "margin", "psi": "psi", "error": "error"}
    series = state["series"][name]
    if name != next(iter(state["series"])):
        rows.pop("norm", None)  # the same for all
    yield Text.assemble((_fitting(name, 40), "bold"), "" if series["whole"] else "  (one batch each)")
    room = max(8, min(CURVE, width - 52))
    for key, said in rows.items():
        if key not in columns:
            continue
        steps, values = columns["step"], columns[key].astype(float)
        start = 0
        if key not in ("norm", "error"):
            # Margins are far below 0 at first, which would leave nothing to see of what comes after they are above it.
            above = np.flatnonzero(values > 0)
            start = int(above[0]) if len(above) and len(values) - above[0] > 1 else 0
        steps, values = steps[start:], values[start:]
        known = values[np.isfinite(values)]
        if not len(known):
            continue
        drawn = sparkline(steps, values, room, letters, floor=0.0 if start or known.min() >= 0 else 0.1)
        ends = f"{known.min():.3g} to {known.max():.3g}" + (f", from {steps[0]} on" if start else "")
        yield Text.assemble("  ", said.ljust(13), (drawn.ljust(room), "blue"), "  ", ends)
    if L is not None or series["fitted_step"] is None:
        yield plain(f"  {_falls(series, power)}")


def _falls(series: Mapping[str, Any], power: str) -> str:
    if series["fitted_step"] is None:
        return f"not fitted: psi is not above 0 yet; {series['how_far']}"
    if series["falls"] is None or series["records"] < 2:
        return f"fitted at step {series['fitted_step']}"
    if not series["largest_fall"]:
        return f"psi/{power} has not fallen since it was fitted"
    differ = "" if series["whole"] else "; batches differ"
    return (
        f"psi/{power} fell {_times(series['falls'])} since it was fitted, at most {series['largest_fall']:.2g} "
        f"({100 * series['largest_fall_share']:.3g} %) at step {series['largest_fall_step']}{differ}"
    )


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def sparkline(steps: Any, values: Any, width: int, letters: str = BLOCKS, floor: float = 0.0) -> str:
    """Means of the values in equal parts of the steps, one letter each; a part without values is like the one before.

    The share `floor` of the means that are lowest gets the lowest letter, so that an outlier does not flatten the rest.
    """
    values = np.asarray(values, dtype=float)
    x = np.asarray(steps, dtype=float)
    if len(x) and x[-1] == x[0]:
        x = np.arange(len(x), dtype=float)
    x, values = x[np.isfinite(values)], values[np.isfinite(values)]
    if not len(values):
        return ""
    width = min(width, len(values))
    place = np.minimum(((x - x[0]) / (x[-1] - x[0] or 1.0) * width).astype(int), width - 1)
    count = np.bincount(place, minlength=width)
    size = float(np.abs(values).max()) or 1.0  # so that sums do not overflow
    mean = np.bincount(place, values / size, minlength=width) / np.maximum(count, 1)
    for k in range(1, width):
        if not count[k]:
            mean[k] = mean[k - 1]
    low, high = float(np.quantile(mean, floor)), float(mean.max())
    level = np.zeros(width, dtype=int)
    if high > low:
        level = ((mean - low) / (high - low) * len(letters)).clip(0, len(letters) - 1).astype(int)
    return "".join(letters[k] for k in level)


def _classes(name: str, rows: Sequence[Mapping[str, Any]]) -> Any:
    from rich.table import Table

    more = f" ({len(rows) - WORST} more)" if len(rows) > WORST else ""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title=plain(f"{name}: smallest margins first{more}"))
    table.title_justify, table.title_style = "left", "bold"
    for label in ("class", "examples", "error", "margin", "mean margin", "dual share"):
        table.add_column(label, justify="right", no_wrap=True)
    for row in rows[:WORST]:
        keys = ("class", "n", "error", "margin", "margin_mean", "dual_share")
        table.add_row(*(plain(_cell(key, row.get(key))) for key in keys))
    return table


def _cell(key: str, value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return str(int(value)) if key in ("step", "n", "class", "fitted_step") else f"{value:.4g}"


def _signed(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:+.4g}"


def _ago(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} seconds ago"


def _blocks(console: Any) -> str:
    try:
        BLOCKS.encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        return LETTERS
    return BLOCKS


def _fitting(text: str, most: int) -> str:
    text = plain(text).plain
    return text if len(text) <= most else "..." + text[3 - max(most, 4) :]


def _dim(text: str) -> Any:
    shown = plain(text)
    shown.stylize("dim")
    return shown


def add(command: Command) -> None:
    parser = command("watch", watch, "show the records of a monitor while a model trains")
    parser.add_argument("run_folder", metavar="RUN", help="the folder that MarginMonitor(out=...) writes to")
    parser.add_argument("--once", action="store_true", help="print what there is, and end")
    parser.add_argument("--json", action="store_true", help="print one object, and another when there are new records")
    parser.add_argument(
        "--every",
        metavar="SECONDS",
        type=number(0, 86_400, "a positive number of seconds"),
        default=1.0,
        help="look again after this time [1]",
    )
    parser.add_argument(
        "--name", metavar="NAME", action="append", default=[], help="only records of this name; may be repeated [all]"
    )
    parser.add_argument("--classes", action="store_true", help="also the classes with the smallest margins")
