"""What an argument of a theorem may be, stated once, in its annotation: `gamma: Positive`, `delta: Probability`.

`checked` refuses everything else with one sentence before the body runs.
"""

from __future__ import annotations

import functools
import inspect
import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from numpy.typing import ArrayLike

from widemargin.types import InputError


@dataclass(frozen=True)
class Kind:
    """`must` ends the sentence "gamma must ..."; `called` is what the argument is, where its name does not say it."""

    must: str
    holds: Callable[[Any], bool]
    called: str = ""

    def check(self, where: str, name: str, value: Any) -> None:
        if not self.holds(value):
            raise InputError(f"{where}: {self.called or name} must {self.must}, not {value!r}")


def _number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


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


def _or_none(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or holds(value)


def checked(function: F) -> F:
    """The function, refusing arguments that are not of their kinds."""
    signature, wanted = inspect.signature(function), kinds(function)

    @functools.wraps(function)
    def door(*args: Any, **keys: Any) -> Any:
        given = signature.bind(*args, **keys).arguments
        for name, kind in wanted.items():
            if name in given:
                kind.check(function.__name__, name, given[name])
        return function(*args, **keys)

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
