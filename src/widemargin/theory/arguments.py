"""What an argument of a theorem may be, stated once, in its annotation: `gamma: Positive`, `delta: Probability`.

`checked` refuses everything else with one sentence before the body runs: what is not of the kind, or, where there is none, of
the type that the annotation names.
"""

from __future__ import annotations

import functools
import inspect
import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import numpy as np
from numpy.typing import ArrayLike

from widemargin.errors import show
from widemargin.types import InputError


@dataclass(frozen=True)
class Kind:
    """`must` ends the sentence "gamma must ..."; `called` is what the argument is, where its name does not say it."""

    must: str
    holds: Callable[[Any], bool]
    called: str = ""

    def check(self, where: str, name: str, value: Any) -> None:
        if not self.holds(value):
            raise InputError(f"{where}: {self.called or name} must {self.must}, not {show(value)}")


def _number(value: Any) -> bool:
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        float(value)
    except OverflowError:  # an integer beyond floating point
        return False
    return True


def _numbers(value: Any) -> bool:
    """Whether these are numbers, or rows of numbers of one length."""
    try:
        found = np.asarray(value)
        return found.dtype.kind in "fiub" and np.asarray(found, dtype=float).size > 0
    except Exception:  # numpy and torch have an exception for each thing that is no array
        return False


def not_below(least: float, called: str = "") -> Kind:
    return Kind(f"be a number of at least {least:g}", lambda value: _number(value) and value >= least, called)


def one_of(*allowed: str) -> Kind:
    return Kind(f"be {' or '.join(allowed)}", lambda value: isinstance(value, str) and value in allowed)


CONVENTIONS = ("derived", "printed")
POSITIVE = Kind("be a positive number", lambda value: _number(value) and 0 < value < math.inf)
PROBABILITY = Kind("lie strictly between 0 and 1", lambda value: _number(value) and 0 < value < 1)
SHARE = Kind("lie between 0 and 1", lambda value: _number(value) and 0 <= value <= 1)

Positive = Annotated[float, POSITIVE]
Count = Annotated[int, POSITIVE]
Nonnegative = Annotated[float, not_below(0)]
Finite = Annotated[
    float, Kind("be a finite number of at least 0", lambda value: _number(value) and 0 <= value < math.inf)
]
Probability = Annotated[float, PROBABILITY]
Share = Annotated[float, SHARE]
Factor = Annotated[float, Kind("be a number of at least 1", lambda value: _number(value) and 1 <= value < math.inf)]
Ratio = Annotated[float, Kind("be greater than 1", lambda value: _number(value) and value > 1)]
Classes = Annotated[int, not_below(2)]
Convention = Annotated[str, one_of(*CONVENTIONS)]
Loss = Annotated[str, one_of("logistic", "exp")]
Space = Annotated[str, one_of("f1", "f2")]

EXAMPLE = ">>> "
WORDS = {float: "a number", int: "an integer", bool: "True or False", str: "a word"}
PLAIN: dict[Any, Callable[[Any], bool]] = {
    float: _number,
    int: _number,
    bool: lambda value: isinstance(value, bool | np.bool_),
}

F = TypeVar("F", bound=Callable[..., Any])


def kinds(function: Callable[..., Any]) -> dict[str, Kind]:
    """The kinds of its arguments that have one; an argument that may be None is free to be."""
    wanted = {}
    for name, hint in get_type_hints(function, include_extras=True).items():
        for part in (hint, *get_args(hint)):
            for kind in getattr(part, "__metadata__", ()):
                free = type(None) in get_args(hint)
                wanted[name] = replace(kind, holds=_or_none(kind.holds)) if free else kind
    return wanted


def types(function: Callable[..., Any]) -> dict[str, Kind]:
    """What its arguments without a kind must be, by their types."""
    found = {}
    for name, hint in get_type_hints(function).items():
        if hint == ArrayLike or np.ndarray in get_args(hint):
            found[name] = Kind("be an array of numbers", _numbers)
            continue
        parts = get_args(hint) or (hint,)
        if all(isinstance(part, type) for part in parts):
            words = ["None" if part is type(None) else WORDS.get(part, f"a {part.__name__}") for part in parts]
            found[name] = Kind(f"be {' or '.join(words)}", functools.partial(_is_one_of, parts))
    return found


def _is_one_of(parts: tuple[type, ...], value: Any) -> bool:
    return any(PLAIN[part](value) if part in PLAIN else isinstance(value, part) for part in parts)


def _or_none(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or holds(value)


def checked(function: F) -> F:
    """The function, refusing arguments that are not of their kinds."""
    signature, wanted = inspect.signature(function), kinds(function)
    wanted |= {name: kind for name, kind in types(function).items() if name not in wanted}

    @functools.wraps(function)
    def door(*args: Any, **keys: Any) -> Any:
        given = signature.bind(*args, **keys)
        for name, kind in wanted.items():
            if name in given.arguments:
                kind.check(function.__name__, name, given.arguments[name])
                value = given.arguments[name]
                if isinstance(value, np.generic):  # which overflow without a word
                    given.arguments[name] = value.item()
                elif isinstance(value, Fraction):  # formats of numbers know none
                    given.arguments[name] = float(value)
        try:
            return function(*given.args, **given.kwargs)
        except ArithmeticError as error:
            trouble: Exception = error
        except ValueError as error:
            if str(error) != "math domain error":  # the logarithm of what became 0
                raise
            trouble = error
        raise InputError(
            f"{function.__name__}: the numbers leave the range of floating point on the way ({trouble}); give less extreme ones"
        )

    return door  # type: ignore[return-value]


def said(function: Callable[..., Any]) -> tuple[str, str]:
    """The first paragraph of its docstring on one line, and the rest up to the example."""
    first, _, rest = (inspect.getdoc(function) or "").partition(EXAMPLE)[0].partition("\n\n")
    return " ".join(first.split()), rest.rstrip()


def shown(function: Callable[..., Any]) -> str:
    """The example of its docstring, which the tests run."""
    _, begin, rest = (inspect.getdoc(function) or "").partition(EXAMPLE)
    return begin + rest


def explained(function: Callable[..., Any]) -> dict[str, str]:
    """What each argument must be, in words: its kind, or its type where it has none."""
    wanted = kinds(function)
    return {name: _words(hint, wanted.get(name)) for name, hint in get_type_hints(function).items() if name != "return"}


def _words(hint: Any, kind: Kind | None) -> str:
    optional = type(None) in get_args(hint)
    if kind is not None:
        text = f"{kind.called}, must {kind.must}" if kind.called else f"must {kind.must}"
    elif hint == ArrayLike:
        text = "an array"
    else:
        text = " or ".join(
            WORDS.get(part, f"a {part.__name__}") for part in get_args(hint) or (hint,) if part is not type(None)
        )
    return f"{text}, or None where it is not known" if optional else text
