"""A run on disk: a folder that a killed process can be continued from.

    config.json            what was asked for; written first, never changed
    data.npz               the points (one set, or one per trial), and the test points
    records/00000.npz ...  rows of records, in order; a part is written once
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
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from widemargin.types import Certificate, Dataset, InputError, Trajectory, write_atomically

FORMAT = "widemargin-run-1"
MAGIC = b"widemargin checkpoint 1\n"
CERTIFICATE = "certificate.json.gz"
FORMERLY = {  # what classes of rules were called when a folder was written
    "CB": "SmoothMarginAscent",
    "Prop6": "NeuronNormAscent",
    "Prop7": "OutputLayerAscent",
    "WGF": "WassersteinFlow",
    "PerturbedWGF": "PerturbedWassersteinFlow",
}

Row = dict[str, np.ndarray]


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

    # ------------------------------------------------------------ opening

    @staticmethod
    def create(folder: Path, config: Mapping[str, Any], data: Sequence[Dataset], test: Dataset | None) -> Run:
        if (folder / "config.json").exists():
            raise InputError(f"{folder} already holds a run; resume it, or choose another folder")
        with _spoken(folder):
            # What a process leaves that was killed before it had written its configuration is no obstacle.
            others = {name for name in os.listdir(folder) if name[0] != "."} if folder.exists() else set()
            if others - {"data.npz", "records"}:
                raise InputError(f"{folder} is a folder with other files in it; choose a new one")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "records").mkdir(exist_ok=True)
            arrays = {"X": np.stack([one.X for one in data]), "y": np.stack([one.y for one in data])}
            if test is not None:
                arrays |= {"X_test": test.X, "y_test": test.y}
            write_atomically(folder / "data.npz", _npz(arrays))
            # Last, so that a folder with a configuration has everything that goes with it.
            write_atomically(folder / "config.json", json.dumps(dict(config), indent=1).encode())
        return Run(folder, dict(config))

    @staticmethod
    def reopen(folder: Path, config: Mapping[str, Any]) -> tuple[Run, dict[str, Any] | None]:
        """The run and its newest whole checkpoint (none if it was killed before the first)."""
        kept = read_config(folder)
        was, now = _flat(current(kept)), _flat(config)
        differs = [
            f"{key} was {_short(was.get(key))} and is {_short(now.get(key))}"
            for key in dict.fromkeys([*now, *was])
            if was.get(key) != now.get(key)
        ]
        if differs:
            raise InputError(f"{folder} holds a run of another configuration: {'; '.join(differs)}")
        run = Run(folder, kept)
        point, run.notes = _newest(folder, config_digest(kept))
        run.parts = point["parts"] if point else 0
        run.turn = point["turn"] + 1 if point else 0
        with _spoken(folder):
            (folder / "records").mkdir(exist_ok=True)
            for path in _parts(folder)[run.parts :]:
                path.unlink()
            # What a killed process was writing has a name that begins with a dot.
            for where in (folder, folder / "records"):
                for path in where.glob(".*.*"):
                    path.unlink()
        return run, point

    # ------------------------------------------------------------ writing

    def save(self, rows: Sequence[Row], point: Mapping[str, Any]) -> None:
        """Append rows, then a checkpoint that counts them. On an error the run on disk is as it was before."""
        with _spoken(self.folder):
            parts = self.parts
            if rows:
                stacked = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
                write_atomically(self.folder / "records" / f"{parts:05d}.npz", _npz(stacked))
                parts += 1
            body = io.BytesIO()
            torch.save({**point, "config": config_digest(self.config), "parts": parts, "turn": self.turn}, body)
            content = body.getvalue()
            head = MAGIC + hashlib.sha256(content).hexdigest().encode() + b"\n"
            write_atomically(self.folder / f"checkpoint-{self.turn % 2}", head + content)
        self.parts, self.turn = parts, self.turn + 1

    def rows(self) -> list[Row]:
        """The rows written so far."""
        return _rows(self.folder, self.parts)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other processes from writing to this folder; the lock goes with the process, however it ends."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / ".lock", timeout=0)
    with _spoken(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout:
            raise InputError(f"another process is training in {folder}; wait for it") from None
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _spoken(folder: Path) -> Iterator[None]:
    """Trouble with the disk as one sentence."""
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        raise InputError(
            f"cannot write {where}: {error.strerror or error}; free space or choose another folder"
        ) from None


# ---------------------------------------------------------------- reading


def is_run(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except OSError as error:
        raise InputError(
            f"{folder} is not a run: config.json: {error.strerror}; give a folder written by train"
        ) from None
    except ValueError as error:
        raise InputError(f"{folder / 'config.json'} is damaged ({error}); start the run again") from None
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise InputError(f"{folder / 'config.json'} is not of the form {FORMAT}; give a folder written by train")
    return config


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
    path = Path(folder)
    config = read_config(path)
    point, notes = _newest(path, config_digest(config))
    if point is None:
        raise InputError(f"{path} has no checkpoint yet; resume the run, or wait for its first one")
    return trajectory(_rows(path, point["parts"]), point, current(config), tuple(notes))


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
    path = Path(folder)
    config = read_config(path)
    arrays = _read_npz(path / "data.npz")
    return [Dataset(X, y, name) for X, y, name in zip(arrays["X"], arrays["y"], config["data"]["names"])]


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
    path = Path(folder) / CERTIFICATE
    return Certificate.load(path) if path.is_file() else None


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
    cert.save(Path(folder) / CERTIFICATE)


def _newest(folder: Path, digest: str) -> tuple[dict[str, Any] | None, list[str]]:
    found: list[dict[str, Any]] = []
    damaged: list[str] = []
    for name in ("checkpoint-0", "checkpoint-1"):
        path = folder / name
        if not path.exists():
            continue
        point = _read_checkpoint(path)
        if point is None:
            damaged.append(name)
        elif point["config"] != digest:
            raise InputError(f"{path} belongs to a run of another configuration; it was put here from elsewhere")
        elif len(_parts(folder)) < point["parts"]:
            damaged.append(f"{name} (its records are missing)")
        else:
            found.append(point)
    if damaged and not found:
        what = " and ".join(damaged)
        raise InputError(f"{folder}: {what} damaged and there is no other checkpoint; remove the folder, start again")
    if not found:
        return None, []
    point = max(found, key=lambda one: one["turn"])
    notes = [f"{name} is damaged: the other checkpoint, of step {point['step']}, was used" for name in damaged]
    return point, notes


def _read_checkpoint(path: Path) -> dict[str, Any] | None:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    head = len(MAGIC)
    if raw[:head] != MAGIC or raw[head : head + 64] != hashlib.sha256(raw[head + 65 :]).hexdigest().encode():
        return None
    return torch.load(io.BytesIO(raw[head + 65 :]), map_location="cpu", weights_only=True)


def _parts(folder: Path) -> list[Path]:
    return sorted((folder / "records").glob("*.npz"))


def _rows(folder: Path, parts: int) -> list[Row]:
    rows: list[Row] = []
    for path in _parts(folder)[:parts]:
        arrays = _read_npz(path)
        rows += [{name: values[i] for name, values in arrays.items()} for i in range(len(arrays["t"]))]
    return rows


def _read_npz(path: Path) -> Row:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is damaged ({error}); remove the folder and start the run again") from None


def _npz(arrays: Mapping[str, np.ndarray]) -> bytes:
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    return content.getvalue()


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """{"net": {"m": 5}} as {"net.m": 5}."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= {f"{key}.{sub}": item for sub, item in value.items()} if isinstance(value, Mapping) else {key: value}
    return flat


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
