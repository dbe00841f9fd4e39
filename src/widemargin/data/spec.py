"""One line of text that names a data set: a spec like "parity:d=20,n=64,seed=0", or a file."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from widemargin.errors import did_you_mean
from widemargin.types import Dataset, InputError

from . import checks, files, real, synthetic


def integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("-"))


def flag(text: str) -> bool:
    return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]


KINDS: dict[Callable[[str], Any], str] = {
    int: "an integer",
    float: "a number",
    str: "a word",
    flag: "true or false",
    integers: "integers joined by -, like 3-8",
}

IMAGES: dict[str, Callable[[str], Any]] = {
    "path": str,
    "n": int,
    "seed": int,
    "split": str,
    "center": flag,
    "unit": flag,
}

# Every data set a spec can name: its function, and how the value of each key is read.
SOURCES: dict[str, tuple[Callable[..., Dataset], dict[str, Callable[[str], Any]]]] = {
    "parity": (
        synthetic.parity,
        {"d": int, "n": int, "k": int, "seed": int, "marginal": str, "S": integers, "p": float},
    ),
    "bad_kkt": (
        synthetic.bad_kkt_cones,
        {"d": int, "n1": int, "n2": int, "half_angle": float, "alpha": float, "seed": int},
    ),
    "bad_kkt_plane": (synthetic.bad_kkt_plane, {"alpha": float}),
    "collapse": (
        synthetic.neural_collapse,
        {
            "d": int,
            "r": int,
            "n": int,
            "gamma_nc": float,
            "eps": float,
            "labels": str,
            "seed": int,
            "noise": float,
        },
    ),
    "mt": (synthetic.xor_with_noise, {"d": int, "n": int, "reject": flag, "seed": int}),
    "teacher": (
        synthetic.relu_teacher,
        {
            "d": int,
            "n": int,
            "units": int,
            "margin": float,
            "seed": int,
            "regression": flag,
            "sample": int,
        },
    ),
    "mt1d": (synthetic.three_intervals, {"n": int, "seed": int}),
    "mt_regression": (synthetic.one_relu, {"d": int, "n": int, "seed": int}),
    "dyadic": (synthetic.dyadic, {"d": int}),
    "disks": (
        synthetic.disks,
        {"k": int, "d": int, "n": int, "seed": int, "reading": str, "sample": int},
    ),
    "clusters": (synthetic.clusters, {"n": int, "d": int, "k": int, "sep": float, "seed": int}),
    "digits": (real.digits, {"classes": integers, "n": int, "seed": int}),
    "cifar": (real.cifar_cats_dogs, IMAGES),
    "mnist": (real.mnist, {"classes": integers} | IMAGES),
}


def load(
    source: str | os.PathLike[str], label: str | None = None, *, targets: bool = False, multiclass: bool = False
) -> Dataset:
    """A data set from one line of text.

    `source` is a spec `name:key=value,key=value` with a name and keys of `SOURCES` (values have no commas), or the
    path of a file, read by `load_file` with `label` and `targets`. A name alone takes every default; a file whose
    path looks like a spec can be given as ./path.

    With `multiclass`, y holds class numbers 0, ..., K-1: of files with any number of labels, of digits with any
    `classes` (all ten by default), and 0 and 1 for the other data sets with labels -1 and +1.

    >>> import widemargin as wm
    >>> print(wm.data.load("parity:d=4,n=10,seed=1"))
    parity:d=4,n=10,k=2,seed=1: n=10, d=4
    >>> sorted(wm.data.load("digits:classes=0-1-2,n=6", multiclass=True).y.tolist())
    [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]
    """
    if isinstance(source, os.PathLike):
        return files.load_file(source, label, targets=targets, multiclass=multiclass)
    if not isinstance(source, str):
        raise InputError(f"the data source must be text, a spec or a path, not {checks.show(source)}")
    name, colon, rest = source.strip().partition(":")
    if name not in SOURCES:
        is_path = re.search(r"\.(csv|npz|npy)$", source, re.IGNORECASE) and not re.match(r"\w+:\w+=", source)
        if is_path or os.path.exists(source):
            return files.load_file(source, label, targets=targets, multiclass=multiclass)
        what = f"unknown data set {checks.show(name)}" if colon else f"{checks.show(source)} is no data set"
        raise InputError(
            f"{what}{did_you_mean(name, SOURCES)}; choose one of {', '.join(SOURCES)}, or a .csv, .npz or .npy file"
        )
    if label is not None:
        raise InputError(f"{name}: label={checks.show(label)} only applies to files; leave it out")
    make, kinds = SOURCES[name]
    values = _values(name, rest, kinds)
    for key, parameter in inspect.signature(make).parameters.items():
        if parameter.default is inspect.Parameter.empty and key not in values:
            raise InputError(f"{name}: the key {key} is missing; give {key}=..., the keys are {', '.join(kinds)}")
    if not multiclass:
        return make(**values)
    if make is real.digits:
        return real.several_digits(**values)
    data = make(**values)
    return Dataset(data.X, (data.signs() + 1) / 2, data.name, data.classes, data.notes)


def load_for_loss(source: str | os.PathLike[str], label: str | None = None, *, loss: str) -> Dataset:
    r"""A data set as a loss takes it: with the squared loss numbers in a file are targets, as they are, even if only two.

    Words and truth values are classes, which become -1 and +1 for every loss, and for other losses two numbers do so as well.
    With the cross-entropy labels of any kind are classes 0, ..., K-1. `Dataset.notes` say what was taken for what.

    `source` and `label` are those of `load`, `loss` is one of `optima.f1`. X is (n, d), y (n,), or (n, K) where an .npz or .npy
    file has K targets for each point.

    >>> from pathlib import Path
    >>> import widemargin as wm
    >>> size = Path("doses.csv").write_text("dose,y\n1,10\n2,20\n")
    >>> [wm.data.load_for_loss("doses.csv", loss=loss).y.tolist() for loss in ("squared", "logistic", "cross-entropy")]
    [[10.0, 20.0], [-1.0, 1.0], [0.0, 1.0]]
    """
    if loss == "cross-entropy":
        return load(source, label, multiclass=True)
    try:
        data = load(source, label)
    except InputError as error:
        try:  # one value, or more than two: numbers, which losses of labels refuse later, and say so
            data = load(source, label, targets=True)
        except InputError as other:
            if isinstance(error, files.ManyColumns) and loss == "squared":
                raise other from None
            with contextlib.suppress(InputError):
                if len(load(source, label, multiclass=True).classes) > 2:
                    error = InputError(f"{error}, or take the loss cross-entropy")
            raise error from None
    if loss != "squared":
        return data
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in data.classes):
        return data
    numbers = load(source, label, targets=True)
    values = np.unique(numbers.y)
    if set(values) <= {-1.0, 1.0} and numbers.y.ndim == 1:
        return numbers
    many = f"{numbers.y.shape[1]} targets for each point," if numbers.y.ndim == 2 else "targets"
    listed = " and ".join(f"{v:g}" for v in values) if len(values) <= 2 else f"from {values[0]:g} to {values[-1]:g}"
    return dataclasses.replace(
        numbers, notes=(*numbers.notes, f"squared loss: {many} {listed}, as they are in the data")
    )


def _values(name: str, text: str, kinds: dict[str, Callable[[str], Any]]) -> dict[str, Any]:
    """The keys and values of a spec, each read as its kind."""
    values: dict[str, Any] = {}
    for part in text.split(",") if text.strip() else []:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key not in kinds:
            raise InputError(
                f"{name}: unknown key {checks.show(key)}{did_you_mean(key, kinds)}; the keys are {', '.join(kinds)}"
            )
        if not equals or not value:
            raise InputError(f"{name}: the key {key} has no value; write {key}=..., the keys are {', '.join(kinds)}")
        if key in values:
            raise InputError(f"{name}: the key {key} is given twice; keep one")
        try:
            values[key] = kinds[key](value)
        except (KeyError, ValueError):
            raise InputError(f"{name}: {key} must be {KINDS[kinds[key]]}, not {checks.show(value)}") from None
    return values
