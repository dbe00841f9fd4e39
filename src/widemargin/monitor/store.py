"""Records on disk: a folder with records.parquet, one row a record, and monitor.json, what was watched."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from widemargin.types import InputError, write_atomically

from .record import Record

FORMAT = "widemargin-monitor-1"
RECORDS, CONFIG = "records.parquet", "monitor.json"
PAUSE = 1.0  # seconds between two writings, at least
SHARE = 50  # a writing may take 1 / SHARE of the time


class Store:
    """Appends records. The file is written anew now and then, under another name first: a killed process leaves a whole file,
    without at most the last second's records (a fiftieth of the running time, where writing takes long).
    """

    def __init__(self, folder: str | os.PathLike[str], config: Mapping[str, Any], resume: bool = False):
        self.folder = Path(folder)
        self.rows: list[dict[str, Any]] = []
        if (self.folder / RECORDS).exists() or (self.folder / CONFIG).exists():
            if not resume:
                raise InputError(
                    f"{self.folder} already holds records; choose another folder, or resume=True to go on with it"
                )
            self.rows = load(self.folder).to_pylist()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.next = time.monotonic() + PAUSE
        self.fresh = False
        self.configure(config)

    def configure(self, config: Mapping[str, Any]) -> None:
        text = json.dumps({"format": FORMAT, **config}, indent=1, allow_nan=False)
        write_atomically(self.folder / CONFIG, text.encode())

    def append(self, records: Sequence[Record]) -> None:
        self.rows += [row(record) for record in records]
        self.fresh = True
        if time.monotonic() >= self.next:
            self.write()

    def write(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        began = time.monotonic()
        names = list(dict.fromkeys(name for one in self.rows for name in one))
        columns = {name: [one.get(name) for one in self.rows] for name in names}
        content = io.BytesIO()
        pq.write_table(pa.table(columns), content)
        write_atomically(self.folder / RECORDS, content.getvalue())
        self.fresh = False
        took = time.monotonic() - began
        self.next = time.monotonic() + max(PAUSE, SHARE * took)

    def close(self) -> None:
        if self.fresh:
            self.write()


def row(record: Record) -> dict[str, Any]:
    """A flat row: all scalars, and the table of classes as JSON."""
    return {
        "step": record.step,
        "name": record.name,
        "whole": record.whole,
        "degree": record.degree,
        "exact": record.exact,
        "wall": record.wall,
        **record.scalars(everything=True),
        "classes": json.dumps(record.classes) if record.classes else None,
        "hardest": list(record.hardest) or None,
    }


def is_monitor(folder: str | os.PathLike[str]) -> bool:
    return (Path(folder) / CONFIG).is_file()


def load(folder: str | os.PathLike[str]) -> Any:
    """The records of a folder, a pyarrow table; empty where nothing has been written yet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(folder) / RECORDS
    if not is_monitor(folder):
        raise InputError(
            f"{folder} holds no records of a monitor; give the folder that MarginMonitor(out=...) writes to"
        )
    if not path.exists():
        return pa.table({})
    try:
        return pq.read_table(io.BytesIO(path.read_bytes()))
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path} cannot be read ({error}); it is damaged or no parquet file") from None


def config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What was watched."""
    try:
        found = json.loads((Path(folder) / CONFIG).read_text())
    except (OSError, ValueError):
        raise InputError(f"{folder} holds no records of a monitor") from None
    if found.get("format") != FORMAT:
        raise InputError(f"{folder} was written by another version ({found.get('format')}); this one reads {FORMAT}")
    return found
