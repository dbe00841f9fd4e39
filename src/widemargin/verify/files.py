"""Certificates and data in files, read with numpy alone. What is wrong with a file is said in one sentence, as a
ValueError.
"""

from __future__ import annotations

import csv
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from .reading import MULTICLASS, REGRESSION

ALWAYS = 1 << 26  # bytes that a gzipped certificate may unpack to, whatever its own size,
RATIO = 100  # and how many times its own size on top of that; proofs pack 3 to 30 times


def load(path: str | Path) -> Any:
    """The JSON of a certificate, gzipped or not. A gzip file that would unpack to far more than it holds is refused."""
    try:
        raw = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"cannot read the certificate {str(path)[:200]!r}: {why}; check the path") from None
    if raw[:2] == b"\x1f\x8b":
        raw = _unpack(raw, ALWAYS + RATIO * len(raw), path)
    try:
        return json.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: this is not JSON ({error}); give a file written by --save") from None


def _unpack(raw: bytes, most: int, path: str | Path) -> bytes:
    """gzip, one member after the other, up to `most` bytes."""
    out = b""
    while raw:
        unpacker = zlib.decompressobj(wbits=31)
        try:
            out += unpacker.decompress(raw, most + 1 - len(out))
        except zlib.error as error:
            raise ValueError(f"{path}: the gzip file is damaged ({error}); save the certificate again") from None
        if len(out) > most:
            raise ValueError(
                f"{path}: the gzip file unpacks to more than {most >> 20} MB; unpack it yourself if you trust it"
            )
        if not unpacker.eof:
            raise ValueError(f"{path}: the gzip file is damaged (it ends early); save the certificate again")
        raw = unpacker.unused_data
    return out


def read_data(path: str, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """X (n, d) and y (n,) of a .npz file with arrays X and y, or of a .csv file with a header and a column y or label.

    Two labels become -1 and +1 in sorted order, several classes 0, 1, ...; targets of regression stay as they are.
    """
    suffix = Path(path).suffix.lower()
    try:
        if suffix == ".npz":
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
                X, y = np.asarray(arrays["X"], dtype=np.float64), np.asarray(arrays["y"])
        elif suffix == ".csv":
            X, y = _csv(path)
        else:
            raise ValueError("the name must end in .npz or .csv (`widemargin data SPEC --out FILE.npz` writes one)")
    except Exception as error:  # damaged archives raise nearly anything
        raise ValueError(f"{path[:200]}: cannot read the data: {str(error)[:200] or type(error).__name__}") from None
    if kind in REGRESSION:
        return X, y.astype(np.float64)
    values, index = np.unique(y, return_inverse=True)
    if kind in MULTICLASS:
        return X, index.reshape(y.shape).astype(np.float64)
    if len(values) == 2:
        return X, 2.0 * index.reshape(y.shape) - 1
    return X, y.astype(np.float64)


def _csv(path: str) -> tuple[np.ndarray, np.ndarray]:
    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = [row for row in csv.reader(file) if row]
    if not rows:
        raise ValueError("the file is empty; give a header line and one line per point")
    header = [cell.strip() for cell in rows[0]]
    target = [j for j, name in enumerate(header) if name in ("y", "label")]
    if len(target) != 1:
        raise ValueError("there must be one column y or label")
    y = np.array([row[target[0]].strip() for row in rows[1:]])
    X = np.array([[float(v) for j, v in enumerate(row) if j != target[0]] for row in rows[1:]], dtype=np.float64)
    try:
        return X, y.astype(np.float64)
    except ValueError:
        return X, y
