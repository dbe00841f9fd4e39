"""A run on disk: a folder that a killed process can be continued from.

    config.json            what was asked for; written first, never changed
    data.npz               the points (one set, or one per trial), and the test points
    records/00000.npz ...  rows of records, in order; a part is written once, and says of which run it is
    checkpoint-0, -1       parameters, state of the rule and of the loop; the two take turns
    certificate.json.gz    the F1 certificate of the data, if it was asked for

Every file is written under another name first and then renamed, so a process that dies leaves whole files only. A checkpoint
begins with the hash of the rest and names the number of parts that belong to it; parts beyond are written again on resuming.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from widemargin.disk import (
    SETTINGS_BYTES,
    as_folder,
    check_archive,
    check_sums,
    fits_memory,
    identity,
    make_folders,
    open_lock,
    read_file,
    read_json,
    show_path,
)
from widemargin.errors import show
from widemargin.forms import (
    Misfit,
    either,
    listed,
    maybe,
    need,
    number,
    table,
    text,
    truth,
    whole,
    word,
)
from widemargin.types import Certificate, Dataset, InputError, Trajectory, write_atomically

from .contract import State
from .plan import differences

FORMAT = "widemargin-run-1"
MAGIC = b"widemargin checkpoint 1\n"
CERTIFICATE = "certificate.json.gz"
LOCK = ".lock"
FOREIGN = "belongs to a run of another configuration; it was put here from elsewhere"
FORMERLY = {  # what classes of rules were called when a folder was written
    "CB": "SmoothMarginAscent",
    "Prop6": "NeuronNormAscent",
    "Prop7": "OutputLayerAscent",
    "WGF": "WassersteinFlow",
    "PerturbedWGF": "PerturbedWassersteinFlow",
}

MOST = 1 << 34  # bytes of a checkpoint, of the data or of a part of the records
STATUSES = ("running", "finished", "reached", "diverged")

Row = dict[str, np.ndarray]

# What the files hold; a point is what a checkpoint keeps, whose tensors all have an entry for each trial.
CONFIG = table(
    {
        "data": table({"names": listed(text(4000), 1), "sha256": listed(text(64), 1), "n": whole(1)}),
        "test": maybe(text(64)),
        "net": table({"net": text(40), "d": maybe(whole(1)), "m": maybe(whole(1))}),
        "rule": table({"class": text(200)}),
        "loss": text(40),
        "steps": maybe(whole(1)),
        "time": maybe(number(0)),
        "clock": word("mean", "cb"),
        "until": maybe(text()),
        "trials": either(listed(whole(), 1), whole(1, 10**8)),
        "seed": whole(),
        "bias": truth,
        "observe": listed(text(200)),
        "times": listed(number(0), 1),
        "device": text(40),
        "dtype": word("float32", "float64"),
    },
    {"check_every": maybe(whole(1))},
)


def _tensor(value: Any, where: str) -> None:
    need(isinstance(value, torch.Tensor) and not value.is_quantized, where, "is no tensor")
    # Sparse ones, those of several others, and those of the device "meta", which hold no numbers.
    plain = value.layout == torch.strided and not value.is_nested and value.device.type == "cpu"
    need(plain, where, "is no plain tensor")
    need(value.dtype in (torch.float64, torch.float32, torch.int64, torch.int32, torch.int8, torch.bool, torch.uint8),
         where, f"holds {value.dtype}")  # fmt: skip


def _state(value: Any, where: str) -> None:
    """A field of a rule's state: a tensor, a dictionary of them, a number, or nothing."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            need(isinstance(key, str), where, "has a key that is no text")
            _state(part, f"{where}.{key[:60]}")
    elif not (value is None or isinstance(value, bool | int | float)):
        _tensor(value, where)


def _pending(value: Any, where: str) -> None:
    need(isinstance(value, Mapping), where, "is no object")
    for key, row in value.items():
        whole()(key, f"{where}: a key")
        table({}, others=_tensor)(row, f"{where}[{key}]")


WEIGHTS = table({}, others=_tensor)


def _parts_of(value: Any, where: str) -> None:
    need(isinstance(value, list) and len(value) == 2, where, "is no pair")
    WEIGHTS(value[0], f"{where}[0]")
    table({}, others=_state)(value[1], f"{where}[1]")


POINT = table(
    {
        "step": whole(),
        "seconds": number(0),
        "status": listed(word(*STATUSES), 1),
        "ended": listed(whole(-1), 1),
        "cursor": listed(whole(), 1),
        "closed": truth,
        "latest": table({}, others=number(finite=False)),
        "pending": _pending,
        "final": WEIGHTS,
        "start": WEIGHTS,
        "now": _parts_of,
        "aside": maybe(_parts_of),
        "good": maybe(_parts_of),
        "on_host": listed(text(200)),
        "config": text(64),
        "parts": whole(0, 10**9),
        "turn": whole(),
    },
)


def config_digest(config: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def current(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with the names of today; checkpoints go by the digest of the one that was written."""
    rule = config["rule"]
    return config | {"rule": rule | {"class": FORMERLY.get(rule["class"], rule["class"])}}


@dataclass
class Run:
    """An open run folder. `parts` and `turn` count what has been written."""

    folder: Path
    config: dict[str, Any]
    parts: int = 0
    turn: int = 0
    notes: list[str] = field(default_factory=list)
    lock: tuple[int, int] | None = None  # which file `held` has locked

    # ------------------------------------------------------------ opening

    @staticmethod
    def create(folder: Path, config: Mapping[str, Any], data: Sequence[Dataset], test: Dataset | None) -> Run:
        check_free(folder)
        try:
            CONFIG(config, "")
        except Misfit as error:  # names of one's own are longer than any reader takes
            raise InputError(f"this run could not be read again: {error}; change that, or keep no folder") from None
        run = Run(folder, dict(config))
        try:
            with _write_errors_in_a_sentence(folder):
                make_folders(folder)
                (folder / "records").mkdir(exist_ok=True)
                arrays = {"X": np.stack([each.X for each in data]), "y": np.stack([each.y for each in data])}
                if test is not None:
                    arrays |= {"X_test": test.X, "y_test": test.y}
                write_atomically(folder / "data.npz", _npz(arrays))
                # Last, so that a folder with a configuration has everything that goes with it.
                write_atomically(folder / "config.json", json.dumps(dict(config), indent=1).encode())
        except Exception:
            run.discard()
            raise
        return run

    @staticmethod
    def reopen(folder: Path, config: Mapping[str, Any]) -> tuple[Run, dict[str, Any] | None]:
        """The run and its newest whole checkpoint (none if it was killed before the first)."""
        kept = read_config(folder)
        differs = differences(current(kept), config)
        if differs:
            raise InputError(
                f"{folder} holds a run of another configuration: {'; '.join(differs)}; ask for the same, or choose another folder"
            )
        run = Run(folder, kept)
        point, run.notes = _newest(folder, kept)
        run.parts = point["parts"] if point else 0
        run.turn = point["turn"] + 1 if point else 0
        return run, point

    def mend(self) -> None:
        """Remove what a killed process left: parts beyond the checkpoint, and files that it was writing."""
        with _write_errors_in_a_sentence(self.folder):
            (self.folder / "records").mkdir(exist_ok=True)
            for path in _parts(self.folder)[self.parts :]:
                path.unlink()
            # What a killed process was writing has a name that begins with a dot.
            for where in (self.folder, self.folder / "records"):
                for path in where.glob(".*.*"):
                    path.unlink()

    def discard(self) -> None:
        """Take away what `create` and the first checkpoint wrote, so that a refused start does not block its folder."""
        if not self.is_there():
            return
        written = [self.folder / name for name in ("config.json", "data.npz", "checkpoint-0", "checkpoint-1")]
        with contextlib.suppress(OSError):
            for path in (*written, *_parts(self.folder)):
                path.unlink(missing_ok=True)
            (self.folder / "records").rmdir()

    def is_there(self) -> bool:
        """Whether the folder is still the one that was opened: in its place there may be another, with the run of another."""
        return self.lock is None or identity(self.folder / LOCK) in (None, self.lock)

    # ------------------------------------------------------------ writing

    def save(self, rows: Sequence[Row], point: Mapping[str, Any]) -> None:
        """Append rows, then a checkpoint that counts them. On an error the run on disk is as it was before."""
        if not self.is_there():
            raise InputError(
                f"cannot write {self.folder}: it was removed or replaced while this run was training in it"
            )
        with _write_errors_in_a_sentence(self.folder):
            parts = self.parts
            if rows:
                stacked = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
                write_atomically(self.folder / "records" / f"{parts:05d}.npz", _npz(stacked, self.config))
                parts += 1
            body = io.BytesIO()
            torch.save({**point, "config": config_digest(self.config), "parts": parts, "turn": self.turn}, body)
            content = body.getvalue()
            head = MAGIC + hashlib.sha256(content).hexdigest().encode() + b"\n"
            write_atomically(self.folder / f"checkpoint-{self.turn % 2}", head + content)
        self.parts, self.turn = parts, self.turn + 1

    def rows(self) -> list[Row]:
        """The rows written so far."""
        return _rows(self.folder, self.parts, self.config)


def check_free(folder: Path) -> None:
    """An InputError where a run cannot begin in this folder, because of what lies there."""
    if os.path.exists(folder / "config.json"):
        raise InputError(f"{folder} already holds a run; resume it, or choose another folder")
    with _write_errors_in_a_sentence(folder):
        # What a process leaves that was killed before it had written its configuration is no obstacle.
        others = {name for name in os.listdir(folder) if name[0] != "."} if folder.exists() else set()
    if others - {"data.npz", "records"}:
        raise InputError(f"{folder} is a folder with other files in it; choose a new one")


@contextlib.contextmanager
def held(folder: Path) -> Iterator[tuple[int, int] | None]:
    """Keep other processes from writing to this folder; the lock goes with the process, however it ends. Gives its identity.

    Where what is done meanwhile fails, the lock's file and the folders that were made for it are taken away again.
    """
    from filelock import FileLock, Timeout

    path = folder / LOCK
    new = [] if os.path.lexists(path) else [path]
    folders = [place for place in (folder, *folder.parents) if not os.path.lexists(place)]
    lock, which = FileLock(path, timeout=0), None
    try:
        with _write_errors_in_a_sentence(folder):
            make_folders(folder)
            handle = open_lock(path)  # a pipe in its place is refused
            which = identity(handle)
            os.close(handle)
            try:
                lock.acquire()
                if identity(path) != which:  # who held it has failed meanwhile and taken it away
                    raise Timeout(str(path))
            except (Timeout, FileNotFoundError):
                new, folders = [], []
                raise InputError(f"another process is training in {folder}; wait for it") from None
        yield which
    except BaseException:
        with contextlib.suppress(OSError):
            for place in new:
                if identity(place) == which:  # the folder may be another by now
                    place.unlink()  # while it is held, so that it is no other's
        lock.release()
        with contextlib.suppress(OSError):  # what is not empty stays
            for place in folders:
                place.rmdir()
        raise
    finally:
        lock.release()


@contextlib.contextmanager
def _write_errors_in_a_sentence(folder: Path) -> Iterator[None]:
    """Trouble with the disk as one sentence."""
    try:
        yield
    except OSError as error:
        where = show_path(error.filename or folder)
        raise InputError(
            f"cannot write {where}: {error.strerror or error}; free space or choose another folder"
        ) from None


# ---------------------------------------------------------------- reading


def is_run(folder: Path) -> bool:
    return os.path.isfile(folder / "config.json")


def read_config(folder: Path) -> dict[str, Any]:
    """What was asked for; an InputError where the folder is no run, or the file is damaged."""
    path = folder / "config.json"
    try:
        config = read_json(path, SETTINGS_BYTES)
    except OSError as error:
        raise InputError(
            f"{folder} is not a run: config.json: {error.strerror}; give a folder written by train"
        ) from None
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is damaged ({error}); start the run again") from None
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise InputError(f"{path} is not of the form {FORMAT}; give a folder written by train")
    with _whole(path, "records and parameters are still there, but what they mean is lost: start the run again"):
        CONFIG(config, "")
        sets, trials = config["data"], trials_of(config)
        need(len(sets["names"]) == len(sets["sha256"]), "data", "does not have a hash for each name")
        need(len(sets["names"]) in (1, trials), "data", f"has {len(sets['names'])} sets for {trials} trials")
        need(config["times"] == sorted(config["times"]), "times", "are not in order")
    return config


def trials_of(config: Mapping[str, Any]) -> int:
    """How many networks are trained."""
    return config["trials"] if isinstance(config["trials"], int) else len(config["trials"])


@contextlib.contextmanager
def _whole(path: Path, can: str) -> Iterator[None]:
    """What does not have its form, as one sentence; `can` says what can still be done."""
    try:
        yield
    except (Misfit, InputError) as error:
        raise InputError(f"{path} is damaged ({error}); {can}") from None


def load(folder: str | os.PathLike[str]) -> Trajectory:
    """The trajectory of a run, finished or not, as far as it has been written.

    `folder` is the one that `flows.train` was told to `keep`.

    >>> from widemargin import flows
    >>> from widemargin.types import Dataset
    >>> data = Dataset([[1.0], [-1.0]], [1, -1], "two points")
    >>> run = flows.train(data, flows.TwoLayer(1, 4), flows.GD(), stop=5, keep="run")
    >>> again = flows.load("run")
    >>> bool((again.records["risk"] == run.records["risk"]).all()), again.stats["steps"]
    (True, 5)
    """
    path = as_folder(folder, "the run")
    config = read_config(path)
    point, notes = _newest(path, config)
    if point is None:
        raise InputError(f"{path} has no checkpoint yet; resume the run, or wait for its first one")
    return trajectory(_rows(path, point["parts"], config), point, current(config), tuple(notes))


def trajectory(
    rows: Sequence[Row], point: Mapping[str, Any], config: dict[str, Any], notes: tuple[str, ...]
) -> Trajectory:
    """Rows and a checkpoint as the user sees them."""
    records = {name: np.stack([row[name] for row in rows]) for name in rows[0]} if rows else {}
    t = records.pop("t", np.zeros(0))
    final = {name: value.cpu().double().numpy() for name, value in point["final"].items()}
    stats = {"seconds": point["seconds"], "steps": point["step"]}
    return Trajectory(t, records, final, tuple(point["status"]), config, notes, stats)


def load_data(folder: str | os.PathLike[str]) -> list[Dataset]:
    """The training data of a run in `folder`: a list of one set, or of one per trial.

    >>> from widemargin import flows
    >>> from widemargin.types import Dataset
    >>> data = Dataset([[1.0], [-1.0]], [1, -1], "two points")
    >>> run = flows.train(data, flows.TwoLayer(1, 4), flows.GD(), stop=5, keep="run")
    >>> [(one.name, one.y.tolist()) for one in flows.load_data("run")]
    [('two points', [1.0, -1.0])]
    """
    path = as_folder(folder, "the run")
    config = read_config(path)
    file, kept = path / "data.npz", config["data"]
    arrays = _read_npz(file)
    can = "the records can still be drawn (widemargin plot), but not checked: start the run again"
    with _whole(file, can):
        for name, ndim in (("X", 3), ("y", 2)):
            need(name in arrays, name, "is missing")
            need(
                arrays[name].ndim == ndim and arrays[name].dtype.kind in "fiu",
                name,
                f"has no {ndim} dimensions of numbers",
            )
        need(
            len(arrays["X"]) == len(arrays["y"]) == len(kept["names"]), "X", f"does not have {len(kept['names'])} sets"
        )
        sets = [Dataset(X, y, name) for X, y, name in zip(arrays["X"], arrays["y"], kept["names"])]
        need([data.sha256() for data in sets] == kept["sha256"], "X, y:", "these are not the points of the run")
        features, own = config["net"].get("d"), sets[0].d + int(config["bias"])
        need(features in (None, own), "X", f"has {own} features, and the network takes {features}")
    return sets


def load_certificate(folder: str | os.PathLike[str]) -> Certificate | None:
    """The F1 certificate that was saved with the run in `folder`, None if there is none.

    >>> from widemargin import flows, margins
    >>> from widemargin.types import Dataset
    >>> data = Dataset([[1.0], [-1.0]], [1, -1])
    >>> run = flows.train(data, flows.TwoLayer(1, 4), flows.GD(), stop=5, keep="run")
    >>> flows.load_certificate("run") is None
    True
    >>> flows.save_certificate("run", margins.f1(data))
    >>> flows.load_certificate("run").kind
    'f1'
    """
    path = as_folder(folder, "the run") / CERTIFICATE
    if not path.is_file():
        return None
    try:
        return Certificate.load(path)
    except InputError as error:
        raise InputError(f"{error}, or remove it: the run itself does not need it") from None


def save_certificate(folder: str | os.PathLike[str], cert: Certificate) -> None:
    """Put a certificate `cert` of the data into the `folder` of a run, where plots and reports look for it.

    >>> from widemargin import flows, margins
    >>> from widemargin.types import Dataset
    >>> data = Dataset([[1.0], [-1.0]], [1, -1])
    >>> run = flows.train(data, flows.TwoLayer(1, 4), flows.GD(), stop=5, keep="run")
    >>> flows.save_certificate("run", margins.f1(data))
    >>> round(flows.load_certificate("run").lower, 3) == round(margins.f1(data).lower, 3)
    True
    """
    if not isinstance(cert, Certificate):
        raise InputError(f"cert must be a certificate, not {show(cert)}; compute one by widemargin.margins.f1")
    cert.save(as_folder(folder, "the run") / CERTIFICATE)


def _newest(folder: Path, config: Mapping[str, Any]) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest whole checkpoint, if there is one, and a sentence about each that is not whole."""
    whole: list[dict[str, Any]] = []
    damaged: dict[str, str] = {}
    for name in ("checkpoint-0", "checkpoint-1"):
        path = folder / name
        if not path.exists():
            continue
        try:
            point = _read_checkpoint(path)
            _of_trials(point, trials_of(config))
            _of_plan(point, config)
        except Misfit as error:
            damaged[name] = str(error)
            continue
        if point["config"] != config_digest(config):
            raise InputError(f"{path} {FOREIGN}")
        lost = any(point["cursor"]) and not (point["parts"] or point["pending"])
        if lost or len(_parts(folder)) < point["parts"]:
            damaged[name] = "its records are missing"
        else:
            whole.append(point)
    if damaged and not whole:
        what = " and ".join(f"{name} ({why})" for name, why in damaged.items())
        raise InputError(f"{folder}: {what} damaged and there is no other checkpoint; remove the folder, start again")
    if not whole:
        return None, []
    point = max(whole, key=lambda each: each["turn"])
    notes = [f"{name} is damaged ({why}): the other checkpoint, of step {point['step']}, was used"
             for name, why in damaged.items()]  # fmt: skip
    return point, notes


def _read_checkpoint(path: Path) -> dict[str, Any]:
    """What a checkpoint keeps; a Misfit where it is damaged."""
    raw = read_file(path, MOST)
    head = len(MAGIC)
    whole_ = raw[:head] == MAGIC and raw[head : head + 64] == hashlib.sha256(raw[head + 65 :]).hexdigest().encode()
    need(whole_, "its content", "is not what was written")
    body = io.BytesIO(raw[head + 65 :])
    try:
        check_archive(body, path.name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            point = torch.load(body, map_location="cpu", weights_only=True)
    except MemoryError:  # which says nothing of the file
        raise
    except Exception as error:  # what is no checkpoint raises nearly anything
        raise Misfit(f"no tensors: {' '.join(str(error).split())[:80] or type(error).__name__}") from None
    try:
        POINT(point, "")
        need(fits_memory(_taken(point), len(raw)), "a tensor", "is far larger than what it holds")
    except RecursionError:
        raise Misfit("it has objects within objects, too deep to be read") from None
    return point


def _taken(value: Any) -> int:
    """Bytes of the tensors in a checkpoint as numbers: a view of one number may be of any shape."""
    if isinstance(value, torch.Tensor):
        return 8 * value.numel()
    return sum(map(_taken, value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()))


def _of_trials(point: Mapping[str, Any], trials: int) -> None:
    for name in ("status", "ended", "cursor"):
        need(len(point[name]) == trials, name, f"has {len(point[name])} entries for {trials} trials")
    for name in ("final", "start"):
        for key, value in point[name].items():
            need(value.ndim > 0 and len(value) == trials, f"{name}.{key[:60]}", f"is not of {trials} trials")


def _of_plan(point: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Whether it is where a loop of this plan can be: one that has passed its last step would go on for ever."""
    step, limit, marks = point["step"], config["steps"], len(config["times"])
    need(limit is None or step <= limit, "step", f"is {step}, after the last one, {limit}")
    for name, most in (("ended", step), ("cursor", marks)):
        need(max(point[name]) <= most, name, f"has {max(point[name])}, and {most} is the largest that there can be")
    running = [word == "running" for word in point["status"]]
    need([at < 0 for at in point["ended"]] == running, "ended", "does not say when the trials that have ended did")
    need(not (any(running) and step == limit), "status", f"is running after the last step, {limit}")
    need(not (any(running) and point["closed"]), "closed", "is true of a run that goes on")
    need((point["aside"] is None) == all(running), "aside", "does not hold the trials that have ended")
    need(all(k < marks for k in point["pending"]), "pending", f"has a row after the last one, {marks - 1}")


def check_shapes(
    point: Mapping[str, Any], like: Mapping[str, np.ndarray], state: State, grows: bool, X: torch.Tensor
) -> None:
    """Whether the parameters of a checkpoint are those of the net, `like`, and its state is one of the rule's, like `state`.

    An InputError else. A rule that `grows` may have added neurons, the second dimension. X (S, n, d) are the points.
    """
    fresh, tensors = vars(state), {part.name for part in fields(state) if str(part.type).startswith("Tensor")}
    try:
        step = point["now"][1].get("step")
        need(type(step) is int and step == point["step"], "now.step", f"is not the checkpoint's, {point['step']}")
        for name in ("start", "final"):
            _alike(point[name], like, name, grows and name == "final")
        for name in ("now", "aside", "good"):
            if point[name] is None:
                continue
            _alike(point[name][0], like, name, grows)
            for key, value in point[name][0].items():
                need(value.dtype == X.dtype, f"{name}.{key}", f"is not of type {X.dtype}")
            for key, value in point[name][1].items():
                if key in fresh and fresh[key] is not None:
                    _as_fresh(value, fresh[key], f"{name}.{key[:60]}", grows)
                elif value is not None:  # what a rule knows after its first step only
                    fits = key not in tensors or isinstance(value, torch.Tensor)
                    need(fits, f"{name}.{key[:60]}", "is no tensor")
                    _later(value, key, len(point["status"]), X.shape[1], f"{name}.{key[:60]}")
    except Misfit as error:
        raise InputError(
            f"the checkpoint does not fit the network and the rule ({error}); remove it to go on from the other one, or "
            "start again in a new folder"
        ) from None


def _alike(given: Mapping[str, Any], like: Mapping[str, np.ndarray], where: str, grows: bool) -> None:
    need(
        set(given) == set(like),
        where,
        f"has the parameters {', '.join(sorted(given))[:100]}, not {', '.join(sorted(like))}",
    )
    widths = set()
    for name, value in given.items():
        want, there = like[name].shape, tuple(value.shape)
        if grows and len(there) > 1 and len(want) > 1:
            widths.add(there[1] - want[1])
            want, there = (want[0], *want[2:]), (there[0], *there[2:])
        need(want == there, f"{where}.{name}", f"has the shape {tuple(value.shape)}, not {like[name].shape}")
        need(value.is_floating_point(), f"{where}.{name}", "does not hold numbers with a point")
    need(len(widths) <= 1, where, "has layers of different widths")


def _as_fresh(value: Any, fresh: Any, where: str, grows: bool) -> None:
    if isinstance(fresh, torch.Tensor):
        need(isinstance(value, torch.Tensor) and value.dtype == fresh.dtype, where, f"is not of type {fresh.dtype}")
        fits = value.ndim == fresh.ndim and (grows or value.shape == fresh.shape) and len(value) == len(fresh)
        need(fits, where, f"has the shape {tuple(value.shape)}, not {tuple(fresh.shape)}")
    elif isinstance(fresh, Mapping):
        need(isinstance(value, Mapping) and set(value) == set(fresh), where, "has other entries than the rule's")
        for key in fresh:
            _as_fresh(value[key], fresh[key], f"{where}.{key}", grows)
    elif isinstance(fresh, bool | int | float):
        need(isinstance(value, int | float), where, "is no number")


LATER = {"log_scale": 1, "drift": 1, "dual": 2, "gates": 3}  # dimensions: trials, points, neurons


def _later(value: Any, key: str, trials: int, points: int, where: str) -> None:
    if isinstance(value, Mapping):
        for name, part in value.items():
            _later(part, "", trials, points, f"{where}.{name[:60]}")
        return
    fits = isinstance(value, torch.Tensor) and value.ndim > 0 and len(value) == trials
    need(fits, where, f"is no tensor of {trials} trials")
    if key in LATER:
        need(value.ndim == LATER[key] and value.is_floating_point(), where, f"does not have {LATER[key]} dimensions")
        need(value.ndim < 2 or value.shape[1] == points, where, f"is not of {points} points")


def _parts(folder: Path) -> list[Path]:
    return sorted((folder / "records").glob("*.npz"))


def _rows(folder: Path, parts: int, config: Mapping[str, Any]) -> list[Row]:
    """The rows of the first parts, all of this run, with the same records, of the same shapes."""
    rows: list[Row] = []
    trials = trials_of(config)
    for path in _parts(folder)[:parts]:
        arrays = _read_npz(path, config)
        with _whole(path, "the parameters at the end are still there; start the run again to have its records"):
            need("t" in arrays and arrays["t"].ndim == 1, "t", "is missing, or no list")
            for name, values in arrays.items():
                need(values.dtype.kind == "f", name, "does not hold numbers with a point")
                need(values.ndim > 0 and len(values) == len(arrays["t"]), name, "is not as long as t")
                need(name == "t" or (values.ndim > 1 and values.shape[1] == trials), name, f"is not of {trials} trials")
                if rows:
                    fits = name in rows[0] and rows[0][name].shape == values.shape[1:]
                    need(fits, name, "is not of the shape that it has in the parts before")
            need(not rows or len(arrays) == len(rows[0]), "it", "has not all records that the parts before have")
            need(bool(np.isfinite(arrays["t"]).all()), "t", "is not finite")
        rows += [{name: values[i] for name, values in arrays.items()} for i in range(len(arrays["t"]))]
    return rows


def _read_npz(path: Path, config: Mapping[str, Any] | None = None) -> Row:
    """The arrays of a file; with `config`, of one that the run of this configuration wrote."""
    try:
        content = io.BytesIO(read_file(path, MOST))
        check_archive(content, str(path))
        with zipfile.ZipFile(content) as archive:
            whose = archive.comment.decode()
        if config is not None and whose not in ("", config_digest(config)):  # older parts do not say it
            raise InputError(f"{path} {FOREIGN}")
        check_sums(content)
        with np.load(content, allow_pickle=False) as file:
            return {name: np.asarray(file[name]) for name in file.files}
    except (InputError, MemoryError):  # the latter says nothing of the file
        raise
    except Exception as error:  # damaged archives raise nearly anything
        said = " ".join(str(error).split())[:120] or type(error).__name__
        raise InputError(f"{path} is damaged ({said}); remove the folder and start the run again") from None


def _npz(arrays: Mapping[str, np.ndarray], config: Mapping[str, Any] | None = None) -> bytes:
    """An archive of arrays; where a run has parts that look alike, `config` says of which one they are."""
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    if config is not None:
        with zipfile.ZipFile(content, "a") as archive:
            archive.comment = config_digest(config).encode()
    return content.getvalue()
