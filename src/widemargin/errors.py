"""The one exception for bad input, and how values are shown in it. Every room has them."""

from typing import Any


class InputError(ValueError):
    """Bad input. The message is one sentence that says what is wrong, where, and what to do.

    >>> import widemargin as wm
    >>> wm.Dataset([[1.0], [2.0]], [1.0])
    Traceback (most recent call last):
    widemargin.errors.InputError: data: X has 2 rows but y has shape (1,); give one target per row
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
