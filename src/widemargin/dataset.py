"""Points with labels or targets: the `Dataset`, and the one way in for what people have (arrays, tensors, tables, words)."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike

from widemargin.errors import InputError, did_you_mean, show

LABEL_COLUMNS = ("y", "label")  # of a table, where nothing is said
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
        y, classes = _targets(labels, self.name)
        X = _points(points, columns, self.name)
        if X.ndim != 2:
            raise InputError(f"{self.name}: X must have two dimensions (points, features), not {X.ndim}")
        if y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]
        if y.ndim not in (1, 2) or len(y) != len(X) or (y.ndim == 2 and y.shape[1] < 2):
            raise InputError(f"{self.name}: X has {len(X)} rows but y has shape {y.shape}; give one target per row")
        if X.size == 0:
            raise InputError(
                f"{self.name}: the data set is empty (shape {X.shape}); give at least one point and feature"
            )
        for what, values in (("X", X), ("y", y)):
            bad = np.argwhere(~np.isfinite(values))
            if len(bad):
                row, *column = bad[0]
                where = f"row {row}, column {column[0]}" if column else f"row {row}"
                raise InputError(f"{self.name}: {what} has NaN or infinity at {where}; remove or impute it")
        X.setflags(write=False)
        y.setflags(write=False)
        settled: dict[str, Any] = {"X": X, "y": y}
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
        classes = self.classes if words else tuple(_plain(value) for value in values)
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
            names["labels"] = [[label, number] for label, number in zip(self.classes, numbers)]
        if self.label:
            names["label"] = self.label
        if self.columns:
            names["columns"] = list(self.columns)
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


def class_numbers(y: np.ndarray) -> tuple[np.ndarray, tuple[Any, ...]]:
    """Labels as 0, 1, ... in sorted order, and what they were."""
    values, index = np.unique(y, return_inverse=True)
    return index.reshape(y.shape), tuple(_plain(value) for value in values)


def listed(classes: Sequence[Any]) -> str:
    """The labels for a sentence."""
    return ", ".join(map(show, classes[:4])) + (", ..." if len(classes) > 4 else "")


def told(classes: Sequence[Any], y: np.ndarray | None = None) -> str:
    """What became of labels."""
    if len(classes) == 2 and (y is None or y.min() < 0):
        return f"label {show(classes[0])} -> -1, {show(classes[1])} -> +1"
    return f"labels {listed(classes)} -> 0, 1, ..."


def _plain(value: Any) -> Any:
    """A numpy scalar as a Python value, whole floats as int."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else value


# ---------------------------------------------------------------- what people have


def to_numpy(values: Any) -> Any:
    """A torch tensor, on whatever device, as an array; anything else as it is."""
    if not hasattr(values, "detach"):
        return values
    values = values.detach().cpu()
    if str(values.dtype) == "torch.bfloat16":  # which numpy does not have
        values = values.float()
    return values.resolve_conj().resolve_neg().numpy()


def _array(values: Any) -> Any:
    """`to_numpy`, and a sparse matrix with its zeros."""
    if not hasattr(values, "toarray"):
        return to_numpy(values)
    rows, columns = values.shape
    if rows * columns > DENSE:
        raise InputError(
            f"X is sparse, with {rows} x {columns} entries; at most {DENSE} are taken, so use fewer features"
        )
    return values.toarray()


def _no_numbers(name: str, error: Exception) -> InputError:
    said = " ".join(str(error).split())[:120] or type(error).__name__
    return InputError(f"{name}: X and y must hold numbers only ({said})")


def _table(X: Any, y: Any, name: str) -> tuple[Any, Any, tuple[str, ...], str]:
    """Points and labels, and the names of columns where X and y are tables; y may name a column of X."""
    columns = getattr(X, "columns", None)
    if isinstance(y, str):
        if columns is None:
            raise InputError(f"{name}: y is the name {show(y)}, but X is no table with columns; give the labels")
        if y not in columns:
            near = did_you_mean(y, map(str, columns))
            raise InputError(
                f"{name}: there is no column {show(y)}{near}; the columns are {listed([*map(str, columns)])}"
            )
        X, y = X.drop(columns=[y]), X[y]
        columns = X.columns
    label = getattr(y, "name", None)
    if hasattr(y, "columns"):  # a table of one column is a column
        label = y.columns[0] if len(y.columns) == 1 else None
    names = () if columns is None else tuple(map(str, columns))
    return X, y, names, "" if label is None or isinstance(y, np.ndarray) else str(label)


def _points(values: Any, columns: Sequence[str], name: str) -> np.ndarray:
    try:
        return np.array(_array(values), dtype=np.float64)
    except InputError:
        raise
    except Exception as error:  # objects may raise anything when they are made an array
        for column in columns:
            try:
                np.asarray(values[column], dtype=np.float64)
            except Exception:
                raise InputError(
                    f"{name}: the column {show(column)} holds no numbers; drop it, or code it as numbers"
                ) from None
        raise _no_numbers(name, error) from None


def _targets(values: Any, name: str) -> tuple[np.ndarray, tuple[Any, ...] | None]:
    """y as numbers, and where it was of words or truth values what these were."""
    try:
        y = np.asarray(_array(values))
        if y.dtype.kind == "O":
            if all(isinstance(label, str | bytes | bool | np.bool_) for label in y.ravel().tolist()):
                y = np.array([str(label) if isinstance(label, str) else label for label in y.ravel().tolist()]).reshape(
                    y.shape
                )
            else:
                y = np.array(y, dtype=np.float64)
        if y.dtype.kind not in "USb":
            return np.array(y, dtype=np.float64), None
    except InputError:
        raise
    except Exception as error:
        raise _no_numbers(name, error) from None
    if y.ndim == 2 and y.shape[1] > 1:
        raise InputError(f"{name}: y has {y.shape[1]} columns of labels; give one label for each point")
    index, classes = class_numbers(y)
    if y.dtype.kind == "b" and len(classes) == 1:
        return np.where(y, 1.0, -1.0), (False, True)
    if len(classes) == 1:
        raise InputError(f"{name}: y has only one class ({show(classes[0])}); give points of at least two")
    return (2.0 * index - 1 if len(classes) == 2 else index.astype(np.float64)), classes


_MISSING: Any = inspect.Parameter.empty


def as_dataset(data: Any, y: Any = None) -> Dataset:
    """A Dataset of what was given: one, (X, y), X and y, or a table with its label column, by default y or label."""
    if isinstance(data, Dataset) and y is None:
        return data
    if y is None and _pair(data):
        data, y = data
    if y is None and hasattr(data, "columns"):
        y = next((column for column in LABEL_COLUMNS if column in data.columns), None)
    if isinstance(data, Dataset) or y is None:
        arrays = hasattr(data, "shape") or isinstance(data, list | tuple)
        what = "y, the labels, is missing" if arrays else f"data must be a Dataset, not {type(data).__name__}"
        if isinstance(data, Dataset):
            what = "a Dataset has its own y"
        raise InputError(f"{what}; give widemargin.Dataset(X, y), X and y, or widemargin.data.load(...)")
    return Dataset(data, y)


def _pair(data: Any) -> bool:
    return isinstance(data, tuple | list) and len(data) == 2 and not _row(data[0])


def _row(value: Any) -> bool:
    """Whether this is a point, not a matrix of points."""
    if hasattr(value, "shape") or hasattr(value, "columns"):
        return len(value.shape) < 2
    return not isinstance(value, list | tuple) or not (len(value) and isinstance(value[0], list | tuple | np.ndarray))


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

    @functools.wraps(function)
    def taking(*args: Any, **keys: Any) -> Any:
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
            if y is None and rest and not isinstance(data, Dataset) and not _pair(data):
                y = rest.pop(0)
            given = as_dataset(data, y)
        if isinstance(labels, str):
            how = labels
        else:
            bound = signature.bind_partial(*before, *((given, *rest) if positional else ()), **keys)
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
    return isinstance(data, list | tuple) and all(isinstance(item, Dataset) for item in data)
