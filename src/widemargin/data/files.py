"""Data sets in files: .csv, .npz and pairs of .npy.

Whatever is wrong with a file ends in one InputError that names the place and says what to do.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from widemargin.dataset import LABEL_COLUMNS, as_dataset, class_numbers, listed, takes_data, told
from widemargin.disk import check_archive, check_array, check_sums, fits_memory
from widemargin.errors import as_path, did_you_mean
from widemargin.types import Dataset, InputError, write_atomically

from .checks import MOST_POINTS, show

SUFFIXES = (".csv", ".npz", ".npy")
MOST = 1 << 32  # bytes of a file
MARKS = {",": "commas", ";": "semicolons", "\t": "tabs"}  # between columns; the first that the header has
GONE = ("", "na", "n/a", "nan", "null", "none", "?", "-", ".")  # how people write that a number is missing


class ManyColumns(InputError):
    """y has several columns, where labels are asked for."""


def load_file(
    path: str | os.PathLike[str], label: str | None = None, *, targets: bool = False, multiclass: bool = False
) -> Dataset:
    r"""Read a data set from a file.

    - `.csv`: a header line, commas, numbers in UTF-8. The target is column `label`, by default the one named y or
      label; all other columns are features. Where the header has no comma, semicolons or tabs separate columns, and a
      comma is a decimal point; `Dataset.notes` says so.
    - `.npz`: arrays X (n, d) and y (n,), or y (n, K) with `targets`; `label` names another array than y.
    - `.npy`: two files with a comma between their paths, "X.npy,y.npy". A single path "foo.npy" is X and expects y in
      "foo_y.npy" beside it ("y.npy" beside "X.npy").

    Labels may be any two different numbers, booleans or texts; they become -1 and +1 in sorted order, and
    `Dataset.notes` says so. With `targets`, y stays as it is: numbers for regression, or labels -1 and +1 of one
    class only. With `multiclass`, labels may have any number of different values, and y holds the class numbers
    0, ..., K-1 in sorted order. Object arrays are refused, since reading them could run code.

    >>> from pathlib import Path
    >>> import widemargin as wm
    >>> size = Path("plants.csv").write_text("height,y\n1.5,oak\n0.2,fern\n")
    >>> data = wm.data.load_file("plants.csv")
    >>> data.X.tolist(), data.y.tolist(), data.classes
    ([[1.5], [0.2]], [1.0, -1.0], ('fern', 'oak'))
    """
    if targets and multiclass:
        raise InputError("targets are numbers and multiclass means labels; choose one of them")
    text = as_path(path)
    if os.path.isdir(text):
        raise InputError(f"{show(text, 200)}: this is a folder; give the path of a data file")
    pair = text.lower().endswith(".npy") and not os.path.isfile(text)
    parts = text.split(",") if pair else [text]
    if len(parts) > 2 or not (len(parts) == 1 or parts[0].lower().endswith(".npy")):
        raise InputError(f"{show(text, 200)}: give two .npy paths with a comma between them, as in X.npy,y.npy")
    suffix = Path(parts[0]).suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(
            f"{show(text, 200)}: the file name must end in {', '.join(SUFFIXES)}; save it as .csv, or give Python the table that "
            "pandas reads"
        )
    name = Path(parts[0]).name
    if suffix == ".csv":
        return _from_csv(parts[0], name, label, targets, multiclass)
    if suffix == ".npz":
        key = "y" if label is None else label
        arrays = read_npz(parts[0], ("X", key))
        X, y = arrays["X"], arrays[key]
    else:
        if label is not None:
            raise InputError(f"{name}: .npy files have no named labels, so leave label={show(label)} out")
        X, y = _read_npy(parts[0]), _read_npy(parts[1] if len(parts) == 2 else partner(parts[0]))
    return _dataset(_numbers(X, name, "X"), y, name, targets, multiclass)


@takes_data("values")
def save_dataset(data: Dataset, path: str | os.PathLike[str]) -> None:
    """Write X and y to a `.npz` or `.csv` file, whole or not at all; `load_file` gives the same numbers back.

    Labels are written as -1 and +1.

    `path` ends in one of the two. In a `.csv` file the columns of X are called x0, x1, ...; X is (n, d).

    >>> import widemargin as wm
    >>> data = wm.data.clusters(n=10)
    >>> wm.data.save_dataset(data, "ten.csv")
    >>> wm.data.load("ten.csv").sha256() == data.sha256()
    True
    """
    path = Path(as_path(path))
    data = as_dataset(data)
    if path.suffix.lower() == ".npz":
        binary = io.BytesIO()
        np.savez_compressed(binary, X=data.X, y=data.y)
        if not fits_memory(
            data.X.nbytes + data.y.nbytes, binary.tell()
        ):  # so small that `load_file` would not trust it
            binary = io.BytesIO()
            np.savez(binary, X=data.X, y=data.y)
        content = binary.getvalue()
    elif path.suffix.lower() == ".csv":
        if data.y.ndim == 2:
            raise InputError(f"{path}: a .csv file has one column of targets, not {data.y.shape[1]}; choose .npz")
        lines = [",".join([f"x{j}" for j in range(data.d)] + ["y"])]
        lines += [",".join(map(repr, [*row, target])) for row, target in zip(data.X.tolist(), data.y.tolist())]
        content = ("\n".join(lines) + "\n").encode()
    else:
        raise InputError(f"{path}: the file name must end in .npz or .csv")
    try:
        write_atomically(path, content)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose another name") from None


def read_npz(path: str | os.PathLike[str], names: Sequence[str]) -> dict[str, np.ndarray]:
    """The named arrays of an .npz file."""
    name = _regular_file(path).name
    try:
        # np.load on a path leaves the file open when it is no zip file.
        with open(path, "rb") as file:
            if file.read(4) not in (b"PK\x03\x04", b"PK\x05\x06"):  # the second is an empty archive
                raise InputError(f"{name}: this is not an .npz archive; write it with numpy.savez")
            check_archive(file, name)
            check_sums(file)
            archive: Any
            with np.load(file, allow_pickle=False) as archive:
                for key in names:
                    if key not in archive.files:
                        has = show(", ".join(archive.files))
                        raise InputError(
                            f"{name}: there is no array {show(key)} in the file, which has {has}; rename one"
                        )
                return {key: np.asarray(archive[key]) for key in names}
    except (InputError, MemoryError):  # the latter says nothing of the file
        raise
    except Exception as error:  # damaged archives raise nearly anything
        raise _unreadable(name, error) from None


def _read_npy(path: str | os.PathLike[str]) -> np.ndarray:
    name = _regular_file(path).name
    try:
        with open(path, "rb") as file:
            if file.read(6) != b"\x93NUMPY":
                raise InputError(f"{name}: this is not an .npy array; write it with numpy.save")
            check_array(file, name)
            return np.load(file, allow_pickle=False)
    except (InputError, MemoryError):  # the latter says nothing of the file
        raise
    except Exception as error:  # damaged files raise nearly anything
        raise _unreadable(name, error) from None


def _unreadable(name: str, error: Exception) -> InputError:
    if "allow_pickle=False" in str(error):
        return InputError(f"{name}: object arrays and pickles are refused; store plain numbers")
    why = " ".join(str(error).split())[:120] or type(error).__name__
    return InputError(f"{name}: the file is damaged, truncated or unreadable ({why}); write it again with numpy")


def partner(path: str) -> Path:
    """The .npy file of labels that belongs to one of points."""
    file = Path(path)
    return file.with_name(f"y{file.suffix}" if file.stem == "X" else f"{file.stem}_y{file.suffix}")


def _regular_file(path: str | os.PathLike[str]) -> Path:
    """`path`, if a file can be read there."""
    text = as_path(path)
    try:
        status = os.stat(text)
        mode, size = status.st_mode, status.st_size
    except OSError as error:
        raise InputError(f"{show(text, 200)}: {error.strerror}; check the path") from None
    except ValueError:
        raise InputError(f"{show(text, 200)}: this is no legal path; check it") from None
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise InputError(f"{show(text, 200)}: this is {what}; give the path of a data file")
    if size > MOST:
        raise InputError(f"{show(text, 200)}: the file has {size} bytes; at most {MOST} are read")
    return Path(text)


def _numbers(array: np.ndarray, name: str, what: str) -> np.ndarray:
    """`array` as float64, if it holds real numbers."""
    if array.dtype.kind not in "biuf":
        kinds = {"c": "complex numbers", "U": "text", "S": "text", "O": "objects", "M": "dates", "m": "durations"}
        raise InputError(f"{name}: {what} holds {kinds.get(array.dtype.kind, 'records')}; store real numbers")
    with np.errstate(over="ignore"):  # long doubles; Dataset refuses the infinity
        return array.astype(np.float64)


def _dataset(X: np.ndarray, y: np.ndarray, name: str, targets: bool, multiclass: bool) -> Dataset:
    """A Dataset from checked features and raw targets."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if len(X.shape) and len(X) > MOST_POINTS:
        raise InputError(f"{name}: {len(X)} rows is too many; keep at most {MOST_POINTS}")
    if targets:
        return Dataset(X, _numbers(y, name, "y"), name)
    if y.ndim == 2:
        raise ManyColumns(
            f"{name}: y has {y.shape[1]} columns, but labels are one for each point; give class numbers, or several targets with "
            "the squared loss"
        )
    Dataset(X, np.ones(y.shape), name)  # shapes first: a wrong length explains more than a wrong label
    index, classes = _class_numbers(y, name)
    if multiclass:
        if len(classes) == 1:
            raise InputError(f"{name}: y has only one class ({show(classes[0])}); give points of at least two")
        same = classes == tuple(range(len(classes)))
        return Dataset(X, index, name, classes, () if same else (f"labels {listed(classes)} -> 0, 1, ...",))
    signs, notes = _two_labels(index, classes, name)
    return Dataset(X, signs, name, classes, notes)


def _class_numbers(y: np.ndarray, name: str) -> tuple[np.ndarray, tuple[Any, ...]]:
    """Labels as 0, 1, ... in sorted order, and what they were."""
    if y.dtype.kind not in "USbiu":  # integers stay: two of 17 digits may be the same float64
        y = _numbers(y, name, "y")
        bad = np.flatnonzero(~np.isfinite(y))
        if len(bad):
            raise InputError(f"{name}: y has NaN or infinity at row {bad[0]}; remove or impute it")
    return class_numbers(y)


def _two_labels(index: np.ndarray, classes: tuple[Any, ...], name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels as -1, +1, and a note if they were others."""
    if len(classes) != 2:
        if len(classes) == 1:
            raise InputError(f"{name}: y has only one class ({show(classes[0])}); give points of at least two")
        raise InputError(
            f"{name}: y has {len(classes)} classes ({listed(classes)}); keep two classes, or read y with multiclass=True or "
            "targets=True"
        )
    notes = () if classes == (-1, 1) else (told(classes),)
    return 2.0 * index - 1, notes


def _from_csv(path: str, name: str, label: str | None, targets: bool, multiclass: bool) -> Dataset:
    _regular_file(path)
    header: list[str] = []
    rows: list[list[str]] = []
    lines: list[int] = []
    mark = ","
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            mark = _mark(file)
            reader = csv.reader(file, delimiter=mark)
            for row in reader:
                if len(row) < 2 and not "".join(row).strip():  # an empty line, or one of spaces
                    continue
                if not header:
                    header = _header(row, name)
                    continue
                if len(row) != len(header):
                    raise InputError(
                        f"{name}: line {reader.line_num} has {len(row)} fields but the header has {len(header)}; "
                        "give every line the same number"
                    )
                if len(rows) == MOST_POINTS:
                    raise InputError(f"{name}: there are too many rows; keep at most {MOST_POINTS}")
                rows.append(row)
                lines.append(reader.line_num)
    except csv.Error as error:
        raise InputError(f"{name}: line {reader.line_num} is no line of a table ({error}); mend or remove it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{name}: the file is no readable UTF-8 text ({' '.join(str(error).split())[:120]}); save it as CSV in UTF-8"
        ) from None
    if not header:
        raise InputError(f"{name}: the file is empty; give a header line and one line per point")
    target = _label_column(header, label, name)
    if not rows:
        raise InputError(f"{name}: the data set is empty (a header but no rows); give at least one point")
    if len(header) == 1:
        raise InputError(f"{name}: the only column is {show(target)}; give at least one feature column")
    columns = {key: [row[j].strip() for row in rows] for j, key in enumerate(header)}
    notes: tuple[str, ...] = ()
    if mark != ",":
        notes = (f"columns separated by {MARKS[mark]}, and a comma is a decimal point",)
        _check_marks(columns, name)
        columns = {key: [_decimal(cell) for cell in cells] for key, cells in columns.items()}
    features = {key: cells for key, cells in columns.items() if key != target}
    _check_cells(features, lines, name)
    X = np.column_stack([_csv_numbers(cells, key, lines, name) for key, cells in features.items()])
    data = _dataset(X, _csv_target(columns[target], target, lines, name, targets), name, targets, multiclass)
    return dataclasses.replace(data, columns=tuple(features), label=target, notes=(*notes, *data.notes))


def _mark(file: IO[str]) -> str:
    """What separates the columns: a comma, and where the first line has none a semicolon or a tab."""
    first = next((line for line in iter(file.readline, "") if line.strip()), "")
    file.seek(0)
    return next(
        (mark for mark in MARKS if len(next(csv.reader([first[: csv.field_size_limit()]], delimiter=mark), ())) > 1),
        ",",
    )


def _decimal(cell: str) -> str:
    """12,5 as 12.5; anything else as it is."""
    pointed = cell.replace(",", ".", 1)
    return pointed if "." not in cell and _number(pointed) is not None else cell


def _check_marks(columns: dict[str, list[str]], name: str) -> None:
    """An InputError where both commas and points stand in numbers: one of the two separates thousands."""
    numbers = [cell for cells in columns.values() for cell in cells if _number(_decimal(cell)) is not None]
    comma, point = (next((cell for cell in numbers if mark in cell), "") for mark in ",.")
    if comma and point:
        raise InputError(
            f"{name}: some numbers have a comma, {show(comma)}, and others a point, {show(point)}; write all of them with the "
            "same decimal mark, and thousands with none"
        )


def _check_cells(columns: dict[str, list[str]], lines: list[int], name: str) -> None:
    """An InputError that tells all columns of words at once, or else how many rows lack a number."""
    texts = [key for key, cells in columns.items() if any(_number(cell) is None and not _gone(cell) for cell in cells)]
    if len(texts) > 1:
        raise InputError(
            f"{name}: {len(texts)} columns hold text ({listed(texts)}); remove these columns or code them as numbers, and "
            "name the one that holds labels with label="
        )
    if not texts:
        gone = {key: [i for i, cell in enumerate(cells) if _gone(cell)] for key, cells in columns.items()}
        rows = len(set().union(*gone.values()))
        if rows > 1:
            key, (i, *_) = next((key, found) for key, found in gone.items() if found)
            what = f"is empty, {show(columns[key][i])}" if columns[key][i] else "is empty"
            raise InputError(
                f"{name}: column {show(key)} at row {i} (line {lines[i]}) {what}; remove such rows ({rows} of "
                f"{len(lines)} lack a number) or impute numbers"
            )


def _gone(cell: str) -> bool:
    return cell.lower() in GONE


def _header(row: list[str], name: str) -> list[str]:
    header = [cell.strip() for cell in row]
    if all(_number(cell) is not None for cell in header):
        raise InputError(f"{name}: the first line has numbers only; put a header with column names first")
    seen: set[str] = set()
    for j, key in enumerate(header):
        if not key or key.startswith("Unnamed: "):  # as pandas calls a column without a name
            if header == ["sep=", ""]:  # of a spreadsheet that says what separates columns
                raise InputError(f"{name}: the first line only says what separates columns; remove it")
            raise InputError(f"{name}: column {j} has no name in the header; name it, or remove a row index")
        if key in seen:
            raise InputError(f"{name}: two columns are named {show(key)}; give each a different name")
        seen.add(key)
    return header


def _label_column(header: list[str], label: str | None, name: str) -> str:
    columns = [key for key in ((label,) if label is not None else LABEL_COLUMNS) if key in header]
    if len(columns) > 1:
        raise InputError(f"{name}: there is a column y and a column label; say which holds the labels with label=")
    if not columns:
        wanted = "y or label" if label is None else f"{show(label)}{did_you_mean(label, header)}"
        has = ", ".join(" ".join(key.split()) for key in header[:20]) + (", ..." if len(header) > 20 else "")
        raise InputError(
            f"{name}: there is no label column {wanted}; the columns are {has[:400]}, so name one with label="
        )
    return columns[0]


def _long_integers(cells: list[str], values: np.ndarray) -> np.ndarray:
    """Labels of 17 digits as integers, where all are some: two of them may be the same float64."""
    try:
        return np.array([int(cell) for cell in cells], dtype=np.int64)
    except (ValueError, OverflowError):
        return values


def _number(cell: str) -> float | None:
    """The number written in a cell; None for text. Python's 1_000 counts as text."""
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None


def _csv_numbers(cells: list[str], column: str, lines: list[int], name: str) -> np.ndarray:
    values = np.empty(len(cells))
    for i, cell in enumerate(cells):
        value = _number(cell)
        if value is None or not math.isfinite(value):
            where = f"column {show(column)} at row {i} (line {lines[i]})"
            if _gone(cell) and value is None:
                what = f"is empty, {show(cell)}" if cell else "is empty"
                raise InputError(f"{name}: {where} {what}; remove the row or impute a number")
            if value is None:
                raise InputError(f"{name}: {where} holds text, {show(cell)}; remove the column or code it as numbers")
            raise InputError(f"{name}: {where} has NaN or infinity, {show(cell)}; remove or impute it")
        values[i] = value
    return values


def _csv_target(cells: list[str], column: str, lines: list[int], name: str, targets: bool) -> np.ndarray:
    """Numbers if all cells are numbers (or `targets` asks for them), otherwise text."""
    if targets or all(_number(cell) is not None for cell in cells):
        values = _csv_numbers(cells, column, lines, name)
        return values if targets or np.abs(values).max() < 2.0**53 else _long_integers(cells, values)
    here = [cell for cell in cells if not _gone(cell)]
    empty = _gone if here and all(_number(cell) is not None for cell in here) else "".__eq__  # of words NA may be one
    if (i := next((i for i, cell in enumerate(cells) if empty(cell)), None)) is not None:
        what = f"is empty, {show(cells[i])}" if cells[i] else "is empty"
        raise InputError(f"{name}: column {show(column)} at row {i} (line {lines[i]}) {what}; give every row a label")
    longest = max(map(len, cells))
    if not fits_memory(4 * longest * len(cells), sum(map(len, cells))):  # numpy makes all as long as the longest
        raise InputError(
            f"{name}: column {show(column)} has a label of {longest} characters; name the classes in a few words"
        )
    return np.array(cells)
