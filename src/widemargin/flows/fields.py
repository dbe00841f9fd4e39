"""Values for the fields of nets and rules that came as text or from a file: each must be of the type that the field has."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from widemargin.types import InputError, show

TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "float": ((int, float), "a number"),
    "int": ((int,), "an integer"),
    "bool": ((bool,), "true or false"),
    "str": ((str,), "a word"),
}


def check_fields(kind: type, given: Mapping[str, Any], what: str) -> None:
    """An InputError where a plain field (number, integer, truth value, word, or several of one) of the dataclass `kind` gets
    another type.

    `what` names the net or rule in the sentence. Fields that hold objects of Python are left to the class.
    """
    for field in dataclasses.fields(kind):
        if field.name not in given:
            continue
        name, _, empty = str(field.type).partition(" | ")
        value = given[field.name]
        each = name.removeprefix("tuple[").removesuffix(", ...]")
        if each not in TYPES or (value is None and empty == "None"):
            continue
        if each == name:
            if not _fits(value, name):
                size = " below 2^63, or have a decimal point" if is_beyond(value) else ""
                raise InputError(f"{what}: {field.name} must be {TYPES[name][1]}{size}, not {show(value)}")
        elif (
            not isinstance(value, list | tuple | np.ndarray)
            or np.ndim(value) == 0
            or not all(_fits(entry, each) for entry in value)
        ):
            raise InputError(f"{what}: {field.name} must be a list, each entry {TYPES[each][1]}, not {show(value)}")


def _fits(value: Any, name: str) -> bool:
    kinds, _ = TYPES[name]
    if isinstance(value, bool) and bool not in kinds:
        return False
    return not is_beyond(value) and (isinstance(value, kinds) or _of_numpy(value, name))


def take_plain_numbers(frozen: Any) -> None:
    """Numbers of numpy in the fields of a frozen object become those of Python: they go into JSON, and never overflow."""
    for name, value in vars(frozen).items():
        if isinstance(value, np.generic):
            object.__setattr__(frozen, name, value.item())


def is_beyond(value: Any) -> bool:
    """Whether this is an integer that no tensor holds."""
    return isinstance(value, int) and abs(value) >= 2**63


def _of_numpy(value: Any, name: str) -> bool:
    """Numbers of numpy are as good."""
    return isinstance(value, np.generic) and value.dtype.kind in {"float": "fiu", "int": "iu", "bool": "b"}.get(
        name, ""
    )


def only_plain(kind: type, given: Mapping[str, Any], what: str) -> dict[str, Any]:
    """`given`, where all are of the fields' types; an InputError for a field that only Python can give a value.

    Words for several names are separated by commas.
    """
    values = dict(given)
    for field in dataclasses.fields(kind):
        if field.name not in given or given[field.name] is None:
            continue
        name, value = str(field.type).partition(" | ")[0], given[field.name]
        words = value.split(",") if isinstance(value, str) else value
        if name == "tuple[str, ...]" and isinstance(words, list) and all(isinstance(word, str) for word in words):
            values[field.name] = tuple(words)
        elif name not in TYPES and not (name == "np.ndarray" and isinstance(value, list)):  # the class looks at lists
            raise InputError(
                f"{what}: {field.name} is an object, which only a program in Python can give; leave it out"
            )
    check_fields(kind, values, what)
    return values
