"""Points with labels or targets: the `Dataset`, and the one way in for what people have (arrays, tensors, tables, words)."""

from __future__ import annotations

import functools
import hashlib
import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike

from widemargin.errors import InputError, did_you_mean, show

LABEL_COLUMNS = ("y", "label")  # of a table, where nothing is said
CALLED_Y = ("label", "labels", "target", "targets")  # what others call it
NAME = 1000  # characters of a name that files keep
DENSE = 10**8  # numbers that a sparse matrix may have once its zeros are written down
P = ParamSpec("P")
R = TypeVar("R", covariant=True)
First = TypeVar("First", contravariant=True)


@dataclass(frozen=True)
class Dataset:
    """Points X (n, d) with targets y (n,): labels -1, +1 for margins, real values for regression.

    y (n, K), K > 1, are K real targets for each point, which `optima.f1` takes with the squared loss.

    X and y are arrays, lists, tensors, sparse matrices or tables of pandas; y may be the name of a column of X. Words and truth
    values in y become -1 and +1 in sorted order, or 0, 1, ... where there are more than two.

    `classes` are the labels as the user wrote them, in the order (-1, +1) or 0, 1, ...; `columns` (d) are the names of the
    features and `label` that of y, where they have some; `notes` say what was changed on the way, and `standardized` the means
    and scales (2, d) that were taken out.

    `name` stands in messages and pictures. Bad shapes, NaN and infinities raise an `InputError`.

    >>> import widemargin as wm
    >>> data = wm.Dataset([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], ["yes", "no", "yes"], "three points")
    >>> print(data, data.y, data.notes[0])
    three points: n=3, d=2 [ 1. -1.  1.] label 'no' -> -1, 'yes' -> +1
    """

    X: np.ndarray
    y: np.ndarray
    name: str = "data"
    classes: tuple[Any, ...] = (-1, 1)
    notes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    label: str = ""
    standardized: np.ndarray | None = None

    def __post_init__(self) -> None:
        points, labels, columns, label = _table(self.X, self.y, self.name)
        X = _points(points, columns, self.name)
        if X.ndim != 2:
            raise InputError(
                f"{self.name}: X must have two dimensions (points, features), not {X.ndim}{_reshaped(X, labels)}"
            )
        y, classes = _targets(labels, self.name, X.shape)
        if X.size == 0:
            raise InputError(
                f"{self.name}: the data set is empty (shape {X.shape}); give at least one point and feature"
            )
        for what, values in (("X", X), ("y", y)):
            bad = np.argwhere(~np.isfinite(values))
            if len(bad):
                row, *column = bad[0]
                names = columns or self.columns
                where = f"row {row}" + "".join(
                    f", column {show(names[j]) if what == 'X' and len(names) == X.shape[1] else j}" for j in column
                )
                rows = len(np.unique(bad[:, 0]))
                them = f"it ({rows} rows have some)" if rows > 1 else "it"
                raise InputError(f"{self.name}: {what} has NaN or infinity at {where}; remove or impute {them}")
        X.setflags(write=False)
        y.setflags(write=False)
        settled: dict[str, Any] = {"X": X, "y": y, "name": kept(str(self.name))}
        if classes is not None:
            settled |= {"classes": classes, "notes": (*self.notes, told(classes))}
        if columns and not self.columns:
            settled["columns"] = columns
        if label and not self.label:
            settled["label"] = label
        for key, value in settled.items():
            object.__setattr__(self, key, value)

    @property
    def n(self) -> int:
        """Number of points."""
        return len(self.X)

    @property
    def d(self) -> int:
        """Number of features."""
        return self.X.shape[1]

    def single(self) -> np.ndarray:
        """y (n,); an InputError if the points have several targets."""
        if self.y.ndim == 2:
            why = "but one label or target for each point is needed; give one (optima.f1 with loss='squared' takes several)"
            raise InputError(f"{self.name}: y has {self.y.shape[1]} columns, {why}")
        return self.y

    def signs(self) -> np.ndarray:
        """y as -1.0 / +1.0; an InputError if these are not labels of two classes."""
        self.single()
        if not np.isin(self.y, (-1.0, 1.0)).all():
            values = np.unique(self.y)
            if len(self.classes) == len(values) > 2:
                raise InputError(
                    f"{self.name}: margins need two classes, but y has {len(values)} ({listed(self.classes)}); choose two, or "
                    "take margins.multiclass_f1 or multiclass_linear"
                )
            if len(values) == 1:
                raise InputError(f"{self.name}: y has only one class ({values[0]:g}); give points of two")
            what = (
                f"{len(values)} different values"
                if len(values) > 4
                else "values " + ", ".join(f"{v:g}" for v in values)
            )
            raise InputError(f"{self.name}: margins need labels -1 and +1, but y has {what}; choose two classes")
        return self.y

    def labelled(self, how: str) -> Dataset:
        """The same points with labels as a function takes them; as they are where that cannot be said.

        `how`: "signs" makes any two values -1 and +1, "binary" only 0 and 1 (others might be targets), "classes" makes whole
        numbers 0, ..., K-1, and "numbers" makes -1 and +1 the classes 0 and 1. Anything else ("values") leaves y alone.
        """
        if how not in ("signs", "binary", "classes", "numbers") or self.y.ndim == 2:
            return self
        values, index = np.unique(self.y, return_inverse=True)
        signs = set(values) <= {-1.0, 1.0}
        if how in ("signs", "binary"):
            if signs or len(values) != 2 or (how == "binary" and values.tolist() != [0.0, 1.0]):
                return self
            y: np.ndarray = 2.0 * index - 1
        else:
            if not (values == np.floor(values)).all() or (not signs and how == "numbers") or len(values) < 2:
                return self
            if np.array_equal(values, np.arange(len(values))):
                return self
            y = index.astype(np.float64)
        words = self.classes != (-1, 1) and len(self.classes) == len(values)
        classes = self.classes if words else tuple(plain(value) for value in values)
        notes = self.notes if words else (*self.notes, told(classes, y))
        return replace(self, y=y, classes=classes, notes=notes)

    def standardize(self) -> Dataset:
        """The points with mean 0 and standard deviation 1 in every column; a constant column becomes 0.

        `standardized` (2, d) keeps the means and the scales, and so does a certificate: `verify` then takes the data as they
        were, or as they are.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            mean, scale = self.X.mean(axis=0), self.X.std(axis=0)
            constant = ~(scale > 1e-12 * np.abs(self.X).max(axis=0))
        if not (np.isfinite(mean).all() and np.isfinite(scale).all()):
            raise InputError(f"{self.name}: the columns are too large to be standardised; divide X by a constant")
        return self.rescale(mean, np.where(constant, 1.0, scale))

    def rescale(self, mean: ArrayLike, scale: ArrayLike) -> Dataset:
        """(X - mean) / scale, with `mean` and `scale` (d,): the data as a certificate had them, to the last bit."""
        if self.standardized is not None:
            raise InputError(f"{self.name}: the data are standardised already; leave it out")
        known = np.array([mean, scale], dtype=np.float64)
        if known.shape != (2, self.d):
            raise InputError(f"{self.name}: means and scales of {known.shape[-1]} columns do not fit X of {self.d}")
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            X = (self.X - known[0]) / known[1]
        return replace(self, X=X, notes=(*self.notes, "columns standardised"), standardized=known)

    def called(self) -> dict[str, Any]:
        """What labels and columns are called, and what was taken out of the columns, as certificates keep it."""
        names: dict[str, Any] = {}
        if self.classes != (-1, 1) and self.y.ndim == 1:
            numbers = (-1, 1) if len(self.classes) == 2 and self.y.min() < 0 else range(len(self.classes))
            names["labels"] = [[kept(label), number] for label, number in zip(self.classes, numbers)]
        if self.label:
            names["label"] = kept(self.label)
        if self.columns:
            names["columns"] = list(map(kept, self.columns))
        if self.standardized is not None:
            names["standardized"] = dict(zip(("mean", "scale"), self.standardized.tolist()))
        return names

    def sha256(self) -> str:
        """The hash by which certificates know the data (`verify.data_hash`)."""
        state = hashlib.sha256(f"{self.n} {self.d}\n".encode())
        for numbers in (self.X, self.y):
            state.update(np.ascontiguousarray(numbers, dtype="<f8").tobytes())
        return state.hexdigest()

    def __str__(self) -> str:
        return f"{self.name}: n={self.n}, d={self.d}" + (", standardised" if self.standardized is not None else "")

    def __repr__(self) -> str:
        """One line, as notebooks and prompts show it."""
        return f"<Dataset {self}>"


# ---------------------------------------------------------------- labels


def kept(name: Any) -> Any:
    """A text as certificates and runs keep it, so that they can be read again: the beginning of a long one, and "?" for what is
    no character, as in names of files in another encoding; any other value as it is."""
    return name.encode(errors="replace").decode()[:NAME] if isinstance(name, str) else name


def class_numbers(y: np.ndarray) -> tuple[np.ndarray, tuple[Any, ...]]:
    """Labels as 0, 1, ... in sorted order, and what they were."""
    values, index = np.unique(y, return_inverse=True)
    return index.reshape(y.shape), tuple(plain(value) for value in values)


def listed(classes: Sequence[Any]) -> str:
    """The labels for a sentence."""
    return ", ".join(map(show, classes[:4])) + (", ..." if len(classes) > 4 else "")


def told(classes: Sequence[Any], y: np.ndarray | None = None) -> str:
    """What became of labels."""
    if len(classes) == 2 and (y is None or y.min() < 0):
        return f"label {show(classes[0])} -> -1, {show(classes[1])} -> +1"
    return f"labels {listed(classes)} -> 0, 1, ..."


def plain(value: Any) -> Any:
    """A numpy scalar as a Python value, whole floats as int."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else value


# ---------------------------------------------------------------- what people have


def to_numpy(values: Any) -> Any:
    """A torch tensor, on whatever device and of whatever layout, as an array; anything else as it is."""
    if not hasattr(values, "detach"):
        return values
    values = values.detach()
    if values.is_meta:
        raise InputError("a tensor on the meta device holds no numbers; give one that does")
    if values.is_quantized:
        values = values.dequantize()
    elif str(values.layout) != "torch.strided":
        _check_dense(values.shape)
        values = values.to_dense()
    values = values.cpu()
    if values.is_floating_point() and values.itemsize < 4:  # of these numpy has few
        values = values.float()
    return values.resolve_conj().resolve_neg().numpy()


def _check_dense(shape: Sequence[int]) -> None:
    if math.prod(shape) > DENSE:
        raise InputError(
            f"X is sparse, with {' x '.join(map(str, shape))} entries; at most {DENSE} are taken, so use fewer features"
        )


def _array(values: Any) -> np.ndarray:
    """An array of arrays, tensors and lists of them, and of sparse matrices with their zeros; what is missing is NaN."""
    if hasattr(values, "toarray"):
        _check_dense(values.shape)
        values = values.toarray()
    if isinstance(values, list | tuple) and any(hasattr(one, "detach") for one in values):
        values = [to_numpy(one) for one in values]
    values = to_numpy(values)
    if isinstance(values, np.ma.MaskedArray):
        values = _without(values.data, np.ma.getmaskarray(values))
    array = np.asarray(values)
    if array.dtype.kind == "O" and array.ndim:
        gone = np.array([_missing(one) for one in array.flat], dtype=bool).reshape(array.shape)
        array = _without(array, gone)
    return array


def _without(array: np.ndarray, gone: np.ndarray) -> np.ndarray:
    """The array with None where `gone`."""
    if not gone.any():
        return array
    array = array.astype(object)
    array[gone] = None
    return array


def _missing(value: Any) -> bool:
    """None, NaN, and what pandas has in their place."""
    return (
        value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    )


NO_NUMBERS = {"c": "complex numbers", "M": "dates", "m": "durations", "V": "records"}


def _no_numbers(name: str, error: Exception) -> InputError:
    said = " ".join(str(error).split())[:120] or type(error).__name__
    return InputError(f"{name}: X and y must hold numbers only ({said})")


def _check_kind(array: np.ndarray, what: str, whole: Any) -> None:
    """An InputError where numpy would make numbers of what is none, or has nothing but an object."""
    kind = NO_NUMBERS.get(array.dtype.kind)
    if kind is not None:
        raise InputError(f"{what} holds {kind}; drop them, or code them as real numbers")
    if array.dtype.kind == "O" and not array.ndim:
        table = ", or pandas.DataFrame of it" if isinstance(whole, Mapping) else ""
        raise InputError(f"{what} is of type {type(whole).__name__}; give an array, a list, a tensor{table}")


def _columns(table: Any) -> list[Any] | None:
    """The names of the columns of a table of pandas, polars or pyarrow; None for anything else."""
    names = getattr(table, "column_names", None)
    if names is None:
        names = getattr(table, "columns", None)
    return None if names is None else list(names)


def _table(X: Any, y: Any, name: str) -> tuple[Any, Any, tuple[str, ...], str]:
    """Points and labels, and the names of columns where X and y are tables; y may name a column of X."""
    if hasattr(X, "collect_schema") and hasattr(X, "lazy") and not hasattr(X, "to_numpy"):
        X = X.collect()  # a query of polars
    columns = _columns(X)
    named = columns is not None and isinstance(y, int | np.integer | tuple) and any(one == y for one in columns)
    if isinstance(y, str) or named:
        if columns is None:
            raise InputError(f"{name}: y is the name {show(y)}, but X is no table with columns; give the labels")
        if y not in columns:
            near = did_you_mean(y, map(str, columns))
            raise InputError(
                f"{name}: there is no column {show(y)}{near}; the columns are {listed([*map(str, columns)])}"
            )
        if columns.count(y) > 1:
            raise InputError(f"{name}: {columns.count(y)} columns are named {show(y)}; give each a different name")
        label: Any = y
        X, y = (X.drop(columns=[y]) if hasattr(X, "iloc") else X.drop([y])), X[y]
        columns = _columns(X)
    else:
        if _moved(X, y):
            raise InputError(
                f"{name}: X and y have the same index in different orders; give y.loc[X.index], or y.to_numpy() where the "
                "index says nothing"
            )
        of_y = _columns(y)
        label = getattr(y, "name", None) if of_y is None else of_y[0] if len(of_y) == 1 else None
        if isinstance(y, np.ndarray) or not isinstance(label, str | int | tuple):
            label = None
        if label is not None and columns is not None and columns.count(label) == 1 and _same(X[label], y):
            raise InputError(
                f"{name}: y is the column {show(label)} of X, so that X holds the labels; give X without it, or its name as y"
            )
    unnamed = next((key for key in columns or () if str(key).startswith("Unnamed: ")), None)
    if unnamed is not None:  # as pandas calls a column without a name in a file
        raise InputError(f"{name}: the column {show(unnamed)} has no name of its own; give it one, or drop a row index")
    return X, y, tuple(map(str, columns or ())), "" if label is None else str(label)


def _moved(X: Any, y: Any) -> bool:
    """Whether these are tables of pandas with the same rows, but in another order."""
    rows: Any = getattr(X, "index", None)
    others: Any = getattr(y, "index", None)
    if not (hasattr(rows, "equals") and hasattr(others, "equals")) or rows.equals(others):
        return False
    try:
        return bool(rows.sort_values().equals(others.sort_values()))
    except TypeError:  # of several kinds, which have no order
        return False


def _same(column: Any, y: Any) -> bool:
    one, other = (np.asarray(values, dtype=object).ravel() for values in (column, y))
    return len(one) == len(other) and all(a is b or a == b for a, b in zip(one.tolist(), other.tolist()))


def _points(values: Any, columns: Sequence[str], name: str) -> np.ndarray:
    try:
        array = _array(values)
        _check_kind(array, f"{name}: X", values)
        return np.array(array, dtype=np.float64)
    except (InputError, MemoryError):
        raise
    except Exception as error:  # objects may raise anything when they are made an array
        for j, column in enumerate(columns):
            try:
                part = _array(values.iloc[:, j] if hasattr(values, "iloc") else values[column])
                _check_kind(part, f"{name}: the column {show(column)}", part)
                np.array(part, dtype=np.float64)
            except InputError:
                raise
            except Exception:
                raise InputError(
                    f"{name}: the column {show(column)} holds no numbers; drop it, or code it as numbers"
                ) from None
        raise _no_numbers(name, error) from None


def _reshaped(X: np.ndarray, y: Any) -> str:
    """What to do about an X that is no matrix."""
    if not X.size:
        return ": the data set is empty; give at least one point and feature"
    if X.ndim > 2:
        return "; flatten the points with X.reshape(len(X), -1)"
    if X.ndim == 1:
        return "; X and y may be swapped" if np.ndim(y) == 2 else "; a single feature is X.reshape(-1, 1)"
    return "; give a row for each point"


def _targets(values: Any, name: str, shape: tuple[int, ...]) -> tuple[np.ndarray, tuple[Any, ...] | None]:
    """y as numbers, one or more for each row of X of that shape, and where it was of words or truth values what these were."""
    try:
        y = _array(values)
        _check_kind(y, f"{name}: y", values)
        if y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]
        if y.ndim not in (1, 2) or len(y) != shape[0] or (y.ndim == 2 and y.shape[1] < 2):
            turned = "; X has a column for each: give X.T" if y.shape[:1] == shape[1:] and y.ndim == 1 else ""
            raise InputError(
                f"{name}: X has {shape[0]} rows but y has shape {y.shape}{turned or '; give one target per row'}"
            )
        if y.dtype.kind == "O":
            y = _plain_labels(y, name)
        if y.dtype.kind in "US":
            y = _written_numbers(y)
        if y.dtype.kind not in "USb":
            return np.array(y, dtype=np.float64), None
    except (InputError, MemoryError):
        raise
    except Exception as error:
        raise _no_numbers(name, error) from None
    if y.ndim == 2:
        raise InputError(f"{name}: y has {y.shape[1]} columns of labels; give one label for each point")
    index, classes = class_numbers(y)
    if y.dtype.kind == "b" and len(classes) == 1:
        return np.where(y, 1.0, -1.0), (False, True)
    if len(classes) == 1:
        raise InputError(f"{name}: y has only one class ({show(classes[0])}); give points of at least two")
    return (2.0 * index - 1 if len(classes) == 2 else index.astype(np.float64)), classes


def _plain_labels(y: np.ndarray, name: str) -> np.ndarray:
    """Objects as numbers, truth values or words; an InputError where one is missing."""
    values = y.ravel().tolist()
    gone = [k for k, one in enumerate(values) if one is None]
    words = any(isinstance(one, str | bytes) for one in values)
    if gone and (words or len(gone) < len(values)):
        rows = len({k // (y.size // len(y)) for k in gone})
        them = f"those {rows} rows" if rows > 1 else "that row"
        raise InputError(f"{name}: y is missing at row {gone[0] // (y.size // len(y))}; remove {them}")
    if all(isinstance(one, bool | np.bool_) for one in values):
        return y.astype(bool)
    if not words:
        try:
            return y.astype(np.float64)
        except (TypeError, ValueError):  # intervals, periods, members of an enumeration
            pass
    return np.array([one if isinstance(one, bytes) else str(one) for one in values]).reshape(y.shape)


def _written_numbers(y: np.ndarray) -> np.ndarray:
    """Words that are numbers, all of them, as numbers: "-1" and "+1" are not sorted as words are, and targets stay targets."""
    try:
        numbers = y.astype(np.float64)
    except ValueError:
        return y
    return numbers if np.isfinite(numbers).all() else y


_MISSING: Any = inspect.Parameter.empty


def as_dataset(data: Any, y: Any = None) -> Dataset:
    """A Dataset of what was given: one, (X, y), X and y, or a table with its label column, by default y or label."""
    if isinstance(data, Dataset) and y is None:
        return data
    if isinstance(data, list | tuple) and not data:
        raise InputError("data must be a Dataset, or X and y with at least one point, and the data set is empty")
    if y is None and hasattr(data, "tensors"):  # a TensorDataset
        data = data.tensors
    if y is None and _pair(data):
        data, y = data
    columns = _columns(data)
    if y is None and columns is not None:
        found = [one for one in LABEL_COLUMNS if one in columns]
        if len(found) != 1:
            why = "has a column y and a column label" if found else "has no column y or label"
            words = [one for one in columns if np.asarray(data[one]).dtype.kind in "OUSbT"]
            example = [*found, *map(str, words), *map(str, columns[::-1]), "y"][0]
            raise InputError(
                f"y, the labels, is missing: the table {why}; give the name of the one that holds them, as in "
                f"f1(table, {show(example)}), of {listed([*map(str, columns)])}"
            )
        y = found[0]
    if isinstance(data, Dataset) or y is None:
        arrays = hasattr(data, "shape") or isinstance(data, list | tuple)
        what = "y, the labels, is missing" if arrays else f"data must be a Dataset, not {type(data).__name__}"
        if isinstance(data, Dataset):
            what = "a Dataset has its own y"
        elif isinstance(data, str | os.PathLike):
            raise InputError(f"{what}; read a file with widemargin.data.load({show(os.fspath(data), 200)})")
        elif hasattr(data, "target"):  # what scikit-learn's loaders return
            raise InputError(f"{what}; give its .data and .target")
        raise InputError(f"{what}; give widemargin.Dataset(X, y), X and y, or widemargin.data.load(...)")
    return Dataset(data, y)


def _pair(data: Any) -> bool:
    return isinstance(data, tuple | list) and len(data) == 2 and not _row(data[0])


def _row(value: Any) -> bool:
    """Whether this is a point, not a matrix of points."""
    if hasattr(value, "shape") or hasattr(value, "columns"):
        return len(value.shape) < 2
    if not isinstance(value, list | tuple) or not value:
        return True
    return not isinstance(value[0], list | tuple) and getattr(value[0], "ndim", 0) == 0


class TakesData(Protocol[P, R]):
    """A function of `data` and more: a Dataset, (X, y), or X and y."""

    @overload
    def __call__(self, data: Dataset | Sequence[Any], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __call__(self, X: ArrayLike, y: ArrayLike | str, /, *args: P.args, **kwargs: P.kwargs) -> R: ...


class TakesDataSecond(Protocol[First, P, R]):
    """The same where something comes before the data."""

    @overload
    def __call__(
        self, first: First, data: Dataset | Sequence[Any] | None = None, /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    def __call__(self, first: First, X: ArrayLike, y: ArrayLike | str, /, *args: P.args, **kwargs: P.kwargs) -> R: ...


Labels = str | Callable[[Mapping[str, Any]], str]


def takes_data(
    labels: Labels = "signs",
) -> Callable[[Callable[Concatenate[Any, P], R]], TakesData[P, R]]:
    """A decorator for functions whose first argument is `data`: they are given a Dataset, whatever came in its place.

    `labels` is what they take (`Dataset.labelled`), or a function that says it of their keywords.
    """

    def decorate(function: Callable[Concatenate[Any, P], R]) -> TakesData[P, R]:
        return _taking(function, 0, labels)

    return decorate


def takes_data_second(
    labels: Labels = "signs",
) -> Callable[[Callable[Concatenate[First, Any, P], R]], TakesDataSecond[First, P, R]]:
    """`takes_data` for functions whose second argument it is."""

    def decorate(function: Callable[Concatenate[First, Any, P], R]) -> TakesDataSecond[First, P, R]:
        return _taking(function, 1, labels)

    return decorate


def _taking(function: Any, place: int, labels: Labels) -> Any:
    signature = inspect.signature(function)
    name = list(signature.parameters)[place]  # data
    known = {*signature.parameters, "X", "y"}
    some = any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())  # of any name

    @functools.wraps(function)
    def taking(*args: Any, **keys: Any) -> Any:
        wrong = next((key for key in keys if key not in known), None)
        if wrong is not None and not some:
            near = " (did you mean y?)" if wrong in CALLED_Y else did_you_mean(wrong, known)
            raise TypeError(f"{function.__name__}() has no argument {wrong!r}{near}")
        before, rest = args[:place], list(args[place + 1 :])
        positional = len(args) > place
        data = args[place] if positional else keys.pop(name, keys.pop("X", _MISSING))
        y = keys.pop("y", None)
        if data is _MISSING or data is None:  # `function` says what is missing, or can do without
            return (
                function(*args, **keys) if positional or data is _MISSING else function(*args, **{name: None}, **keys)
            )
        if _sets(data):
            given: Any = list(data)
        else:
            whole = isinstance(data, Dataset) or _pair(data)
            if y is None and rest and (not whole or rest[0] is None):
                y = rest.pop(0)
            given = as_dataset(data, y)
        if isinstance(labels, str):
            how = labels
        else:
            try:
                bound = signature.bind_partial(*before, *((given, *rest) if positional else ()), **keys)
            except TypeError as error:
                raise TypeError(f"{function.__name__}(): {error}") from None
            bound.apply_defaults()
            how = labels(bound.arguments)
        given = [one.labelled(how) for one in given] if isinstance(given, list) else given.labelled(how)
        if positional:
            return function(*before, given, *rest, **keys)
        return function(*before, **{name: given}, **keys)

    shown = signature.parameters[name].replace(annotation=f"{signature.parameters[name].annotation} | X, y")
    taking.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[shown if one.name == name else one for one in signature.parameters.values()]
    )
    return taking


def _sets(data: Any) -> bool:
    """Whether these are several data sets, one for each trial."""
    return isinstance(data, list | tuple) and len(data) > 0 and all(isinstance(item, Dataset) for item in data)
