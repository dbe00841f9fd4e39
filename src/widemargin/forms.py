"""What a file may hold, checked at the door: a form is a function that takes a value and its place, and complains or not.

    person = table({"name": text(100), "age": whole(0, 200)}, optional={"shoes": listed(number(), most=2)})
    person(found, "person")        # Misfit: "person.age is no integer from 0 to 200"

Readers turn a `Misfit` into one sentence with the name of the file; what is behind them trusts what they return.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Form = Callable[[Any, str], None]


class Misfit(ValueError):
    """A value that does not have its form. The message names the place."""


def need(condition: bool, where: str, what: str) -> None:
    """A Misfit "`where` `what`" unless the condition holds."""
    if not condition:
        raise Misfit(f"{where} {what}")


def anything(value: Any, where: str) -> None:
    """No complaint."""


def text(most: int = 1000, least: int = 0) -> Form:
    """A text of so many characters, none of them half of one."""

    def check(value: Any, where: str) -> None:
        need(isinstance(value, str), where, "is no text")
        need(least <= len(value) <= most, where, f"has {len(value)} characters, not {least} to {most}")
        need(not any("\ud800" <= c <= "\udfff" for c in value), where, "has half of a character")

    return check


def word(*known: Any) -> Form:
    """One of these values."""

    def check(value: Any, where: str) -> None:
        fits = isinstance(value, str | bool | None) and value in known
        need(fits, where, f"is none of {', '.join(map(str, known))}")

    return check


def truth(value: Any, where: str) -> None:
    """true or false."""
    need(isinstance(value, bool), where, "is not true or false")


def whole(low: int = 0, high: int = 2**63 - 1) -> Form:
    """An integer in this range."""

    def check(value: Any, where: str) -> None:
        fits = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        need(fits, where, f"is no integer from {low} to {high}")

    return check


def number(low: float = -math.inf, high: float = math.inf, finite: bool = True) -> Form:
    """A number in this range; also infinities and NaN where it need not be `finite`."""

    def check(value: Any, where: str) -> None:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1 << 1024
        if isinstance(value, float) and not math.isfinite(value):
            fits = not finite
        need(fits and not (value < low or value > high), where, "is no number" + _range(low, high))

    return check


def _range(low: float, high: float) -> str:
    return "" if (low, high) == (-math.inf, math.inf) else f" from {low:g} to {high:g}"


def pair_of(first: Form, second: Form) -> Form:
    """A list of two values."""

    def check(value: Any, where: str) -> None:
        need(isinstance(value, list) and len(value) == 2, where, "is no pair")
        first(value[0], f"{where}[0]")
        second(value[1], f"{where}[1]")

    return check


def maybe(form: Form) -> Form:
    """null, or that."""

    def check(value: Any, where: str) -> None:
        if value is not None:
            form(value, where)

    return check


def either(*forms: Form) -> Form:
    """One of these forms; the complaint is that of the last."""

    def check(value: Any, where: str) -> None:
        for form in forms[:-1]:
            try:
                return form(value, where)
            except Misfit:
                continue
        forms[-1](value, where)

    return check


def listed(form: Form, least: int = 0, most: int = 10**7) -> Form:
    """A list (or tuple) of values of one form."""

    def check(value: Any, where: str) -> None:
        need(isinstance(value, list | tuple), where, "is no list")
        need(least <= len(value) <= most, where, f"has {len(value)} entries, not {least} to {most}")
        for k, entry in enumerate(value):
            form(entry, f"{where}[{k}]")

    return check


def table(
    needed: Mapping[str, Form], optional: Mapping[str, Form] | None = None, others: Form | None = anything
) -> Form:
    """An object with these keys, each of its form; `others` is the form of further keys, None where there may be none."""
    may = dict(optional or {})

    def check(value: Any, where: str) -> None:
        need(isinstance(value, Mapping), where, "is no object")
        for key, form in needed.items():
            need(key in value, f"{where}.{key}".removeprefix("."), "is missing")
            form(value[key], f"{where}.{key}".removeprefix("."))
        for key, entry in value.items():
            need(isinstance(key, str), where, "has a key that is no text")
            if key in needed:
                continue
            place = f"{where}.{key[:60]}".removeprefix(".")
            form_ = may.get(key, others)
            if form_ is None:
                raise Misfit(f"{place} is unknown")
            form_(entry, place)

    return check


def numbers(*shape: int | None) -> Form:
    """Nested lists of finite numbers of this shape; None is any length."""

    def check(value: Any, where: str) -> None:
        array_of(value, shape, where)

    return check


def array_of(value: Any, shape: tuple[int | None, ...], where: str) -> np.ndarray:
    """Nested lists of finite numbers as an array (float64) of this shape."""
    need(isinstance(value, list | tuple), where, "is no list")
    if len(shape) > 1 and not len(value):
        value = np.zeros((0, *(0 if size is None else size for size in shape[1:])))
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError):
        raise Misfit(f"{where} has rows of different lengths, or what is no number") from None
    need(array.dtype.kind in "iuf" or not array.size, where, "has entries that are no numbers")
    fits = array.ndim == len(shape) and all(size in (None, there) for size, there in zip(shape, array.shape))
    asked = " x ".join("any" if size is None else str(size) for size in shape)
    need(fits, where, f"has the shape {' x '.join(map(str, array.shape))}, not {asked}")
    entries = value if array.ndim < 2 else itertools.chain.from_iterable(value)
    need(bool not in set(map(type, entries)), where, "has entries that are no numbers")  # numpy takes true for 1
    array = array.astype(np.float64)
    need(bool(np.isfinite(array).all()), where, "has entries that are no finite numbers")
    return array
