"""The one exception for bad input, and how values are shown in it. Every room has them."""

import difflib
import os
from collections.abc import Iterable
from typing import Any


class InputError(ValueError):
    """Bad input. The message is one sentence that says what is wrong, where, and what to do.

    >>> import widemargin as wm
    >>> wm.Dataset([[1.0], [2.0]], [1.0, -1.0, 1.0])
    Traceback (most recent call last):
    widemargin.errors.InputError: data: X has 2 rows but y has shape (3,); give one target per row
    """


class NotRecorded(InputError):
    """A run has no record of that name."""


def show(value: Any, most: int = 60) -> str:
    """repr, on one line and short enough for one sentence."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # an int of thousands of digits, or an object that cannot be shown
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= most else text[: most - 3] + "..."


def as_path(path: Any) -> str:
    """The path of a file as text; an InputError for anything else."""
    try:
        text = os.fspath(path)
    except TypeError:
        text = b""
    if not isinstance(text, str):
        raise InputError(f"{show(path)}: the path must be text")
    return text


def brief(self: Any, most: int = 300) -> str:
    """A `__repr__` of one short line, whatever arrays are inside: the first line of `str`, or the fields with shapes alone."""
    name = type(self).__name__
    if type(self).__str__ is not object.__str__:
        said = next(iter(str(self).splitlines()), "")
        return f"<{name}: {said if len(said) <= most else said[: most - 3] + '...'}>"
    parts = [f"{key}={_size(getattr(self, key))}" for key in getattr(self, "__dataclass_fields__", {})]
    said = ", ".join(parts)
    return f"<{name}: {said if len(said) <= most else said[: most - 3] + '...'}>"


def _size(value: Any) -> str:
    """A value in few words: of arrays and tensors the shape, of what holds others their number."""
    if hasattr(value, "shape"):
        return f"{type(value).__name__} {tuple(value.shape)}"
    if isinstance(value, dict | list | tuple | set) and len(value) > 3:
        return f"{len(value)} in a {type(value).__name__}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{str(key)[:20]}: {_size(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "(" + ", ".join(map(_size, value)) + ")"
    return show(value, 40)


def did_you_mean(word: Any, known: Iterable[Any]) -> str:
    """ " (did you mean NAME?)" for a name that is nearly one of those that are known; empty where none is near."""
    if not isinstance(word, str):
        return ""
    near = difflib.get_close_matches(word.lower()[:60], names := {str(name).lower(): str(name) for name in known}, 1)
    if not near:
        return ""
    meant = names[near[0]]
    return f" (did you mean {meant if meant.replace('-', '_').replace('.', '_').isidentifier() else show(meant)}?)"
