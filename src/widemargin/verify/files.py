"""Certificates and data in files, read with numpy alone. What is wrong with a file is said in one sentence, as a
ValueError.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
import stat
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from .reading import MULTICLASS, OPTIMA, REGRESSION, SEVERAL

MOST = 1 << 29  # bytes of a certificate, unpacked: 512 MB
DATA = 1 << 32  # bytes of a file of data
ALWAYS = 1 << 22  # bytes that a gzipped certificate may unpack to, whatever its own size,
RATIO = 60  # and how many times its own size on top of that; proofs pack 3 to 30 times
PARTS = 1 << 20  # lists, texts and objects that a certificate may hold, whatever its size,
EACH = (
    2  # and how many for each byte of a gzipped one on top of that: an empty list is 2 bytes of text and 64 of memory
)
BYTES = 8  # of JSON that there must be for each, gzipped or not; certificates have 30 and more
ENTRIES = 1 << 28  # bytes that the arrays of a .npz file may take as doubles, whatever its own size,
TIMES = 64  # and how many times its own size on top of that
LABELS = ("y", "label")  # names of the column of a .csv file that holds the targets


def load(path: str | Path) -> Any:
    """The JSON of a certificate, gzipped or not. A gzip file that would unpack to far more than it holds is refused.

    `path` is a file that `Certificate.save` wrote. Nothing is checked by reading it: `check` does that. A ValueError says what is
    wrong with a file that cannot be read.

    >>> import widemargin as wm
    >>> data = wm.Dataset([[3.0, 4.0], [-3.0, -4.0]], [1, -1])
    >>> wm.margins.linear(data).save("cert.json.gz")
    >>> wm.verify.load("cert.json.gz")["convention"]
    'M11'
    """
    try:
        raw = _read(path)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"cannot read the certificate {str(path)[:200]!r}: {why}; check the path") from None
    if raw[:2] == b"\x1f\x8b":
        packed = len(raw)
        raw = _unpack(raw, min(MOST, ALWAYS + RATIO * packed), path)
        most = min(EACH * packed, len(raw) // BYTES)
    else:
        most = len(raw) // BYTES
    parts = raw.count(b"[") + raw.count(b'"') // 2 + 3 * raw.count(b"{")  # an object takes as much as three lists
    if parts > PARTS + most:
        raise ValueError(f"{path}: it holds far more lists than its size lets expect; give a file written by --save")
    try:
        return json.loads(raw.decode(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: this is not JSON ({error}); give a file written by --save") from None


def _read(path: str | Path, most: int = MOST) -> bytes:
    """The bytes of a regular file that is not too large; a pipe or a device might have no end."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_size > most:
        os.close(handle)
        raise ValueError(
            f"it has more than {most >> 20} MB" if stat.S_ISREG(status.st_mode) else "it is no regular file"
        )
    with os.fdopen(handle, "rb") as file:
        return file.read(status.st_size)  # Python takes as much memory as it is asked to read, not as there is


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, if no key comes twice: readers would differ about which value counts."""
    out = dict(pairs)
    if len(out) < len(pairs):
        raise ValueError("a key comes twice in one object")
    return out


def _unpack(raw: bytes, most: int, path: str | Path) -> bytes:
    """gzip, one member after the other, up to `most` bytes."""
    out = io.BytesIO()
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
            while piece := file.read(1 << 20):
                if out.tell() + len(piece) > most:
                    raise ValueError(
                        f"{path}: the gzip file unpacks to more than {most >> 20} MB; unpack it yourself if you trust it"
                    )
                out.write(piece)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: the gzip file is damaged ({error}); save the certificate again") from None
    return out.getvalue()


def read_data(path: str, kind: str, loss: str = "", label: str = "") -> tuple[np.ndarray, np.ndarray]:
    """X (n, d) and y (n,) of a .npz file with arrays X and y, or of a .csv file with a header and a column y or label, or the one
    that is called `label`; of several targets y (n, K).

    Two labels become -1 and +1 in sorted order, several classes 0, 1, ...; targets of regression stay as they are, and numbers
    do where the loss of a least objective is the squared one. What `widemargin.data.load_file` refuses is refused here, so
    that both read the same numbers from the same file.
    """
    suffix = Path(path).suffix.lower()
    try:
        if suffix == ".npz":
            raw = _read(path, DATA)
            _check_entries(raw)
            with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
                X, y = _numbers(arrays["X"], "X"), np.asarray(arrays["y"])
        elif suffix == ".csv":
            X, y = _csv(path, kind in REGRESSION, label)
        else:
            raise ValueError("the name must end in .npz or .csv (`widemargin data SPEC --out FILE.npz` writes one)")
        y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
        if kind in OPTIMA and loss == "squared" and y.dtype.kind not in "USb":
            return X, _numbers(y, "y")
        return X, _targets(y, kind)
    except MemoryError:  # which says nothing of the file
        raise
    except Exception as error:  # damaged archives raise nearly anything
        said = " ".join(str(error).split())[:200]
        raise ValueError(f"{path[:200]}: cannot read the data: {said or type(error).__name__}") from None


def _check_entries(raw: bytes) -> None:
    """A ValueError where the arrays of an archive would take far more memory than it has bytes; only their heads are read."""
    whole = 0
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        for member in archive.infolist():
            with archive.open(member) as file:
                if file.read(6) != b"\x93NUMPY":  # whatever it is called, it is read as an array where it begins so,
                    whole += member.file_size  # and else as bytes
                    continue
            with archive.open(member) as file:
                version = np.lib.format.read_magic(file)
                head = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                try:
                    shape, _, kind = head(file)
                except (MemoryError, RecursionError):  # of thousands of signs before a number; a head is short
                    raise ValueError("the head of an array is none") from None
            whole += math.prod(shape) * max(8, kind.itemsize)
    if whole > ENTRIES + TIMES * len(raw):
        raise ValueError(f"its arrays take {whole} bytes, far more than its own {len(raw)}; write it with numpy.savez")


def _numbers(array: np.ndarray, what: str) -> np.ndarray:
    """Real numbers as float64; text, complex numbers, dates and records are none."""
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{what} does not hold real numbers")
    with np.errstate(over="ignore"):
        array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{what} has NaN or infinity")
    return array


def _targets(y: np.ndarray, kind: str) -> np.ndarray:
    if kind in (*REGRESSION, *SEVERAL):
        return _numbers(y, "y")
    if y.dtype.kind not in "USbiu":  # integers stay: two of 17 digits may be the same float64
        y = _numbers(y, "y")
    values, index = np.unique(y, return_inverse=True)
    index = index.reshape(y.shape)
    if kind in MULTICLASS:
        return index.astype(np.float64)
    if len(values) == 2:
        return 2.0 * index - 1
    return _numbers(y, "y")  # one class, or labels that `check` refuses


def _csv(path: str, targets: bool, label: str) -> tuple[np.ndarray, np.ndarray]:
    file = io.StringIO(_read(path, DATA).decode("utf-8-sig"), newline="")
    rows = [[cell.strip() for cell in row] for row in csv.reader(file)]
    rows = [row for row in rows if row not in ([], [""])]  # empty lines, and lines of spaces
    if not rows:
        raise ValueError("the file is empty; give a header line and one line per point")
    header, rows = rows[0], rows[1:]
    if len(set(header)) < len(header) or not all(header):
        raise ValueError("two columns have one name, or one has none")
    at = [j for j, name in enumerate(header) if name in ((label,) if label in header else LABELS)]
    if len(at) != 1:
        raise ValueError("there must be one column y or label, with commas between columns")
    if any(len(row) != len(header) for row in rows):
        raise ValueError("a line has not as many fields as the header")
    cells = [row.pop(at[0]) for row in rows]
    X = [[_number(cell) for cell in row] for row in rows]
    y = [_number(cell) for cell in cells]
    if any(v is None for row in X for v in row):
        raise ValueError("a cell is not a number")
    if all(v is not None for v in y):
        long = not targets and any(abs(v) >= 2.0**53 for v in y if v is not None)
        whole = _long_integers(cells) if long else None  # two of 17 digits may be the same float64
        return _numbers(np.array(X, dtype=np.float64), "X"), np.array(y, dtype=np.float64) if whole is None else whole
    if targets or "" in cells:
        raise ValueError("a target is missing or not a number")
    longest = max(map(len, cells))  # which numpy makes all others as long as
    if 4 * longest * len(cells) > ENTRIES + TIMES * sum(map(len, cells)):
        raise ValueError(f"a label has {longest} characters")
    return _numbers(np.array(X, dtype=np.float64), "X"), np.array(cells)


def _long_integers(cells: list[str]) -> np.ndarray | None:
    """Labels as integers, where all are some of 64 bits."""
    try:
        return np.array([int(cell) for cell in cells], dtype=np.int64)
    except (ValueError, OverflowError):
        return None


def column_of(path: str, label: str) -> str:
    """`label` where `read_data` takes the targets of a .csv file from it and nobody would without being told; else nothing."""
    if not label or Path(path).suffix.lower() != ".csv":
        return ""
    with open(path, encoding="utf-8-sig", newline="") as file:
        header = [cell.strip() for cell in next((row for row in csv.reader(file) if "".join(row).strip()), [])]
    usual = [name for name in header if name in LABELS]
    return label if label in header and usual != [label] else ""


def _number(cell: str) -> float | None:
    """The number written in a cell; None for text. Python's 1_000 counts as text."""
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None
