"""What a theorem gives: a number, what it says, and whether its assumptions hold. The registry of all theorems.

A theorem is a function of numbers with explicit constants that returns a `Guarantee`. The decorator `states` puts it into
THEOREMS under its id (docs/claims.md), refuses arguments that are not of their kinds (`arguments`) and writes id, reference,
convention and probability into what it returns; `applied` adds how to evaluate it on data and a network, from `Facts`.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from widemargin.errors import brief
from widemargin.json_values import plain_json

from .arguments import checked, explained, said, shown

if TYPE_CHECKING:
    from .known_facts import Facts

QUANTITIES = {
    "test error": 1.0,  # value from which an upper bound says nothing
    "test error of iterates": 1.0,  # of the best of them, or on average
    "population risk": math.inf,
    "training risk": math.inf,
    "margin": 0.0,  # value up to which a lower bound says nothing
    "width": None,
    "steps": None,
    "time": None,
    "step size": None,
    "samples": None,
    "movement": math.inf,
    "norm": math.inf,
    "output": math.inf,
    "constant": None,
}

HOLDS = {True: "yes", False: "no", None: "not checked"}
UP_TO = "up to a constant"  # stands behind every number of which a paper gives the order only
NETWORK = "trained network"  # what a guarantee can be about


@dataclass(frozen=True, order=True)
class Huge:
    """The number exp(exp(loglog)): numbers such as the doubly exponential times, which no float holds.

    >>> from widemargin.theory import Huge
    >>> print(Huge(3.0), Huge(1000.0))
    exp(20.0855) exp(exp(1000))
    >>> Huge(5.0) < Huge(6.0), float(Huge(1000.0))
    (True, inf)
    """

    loglog: float

    @property
    def log(self) -> float:
        """ln of the number, infinite where that is beyond floating point too."""
        return math.exp(self.loglog) if self.loglog < 709 else math.inf

    def __float__(self) -> float:
        return math.exp(self.log) if self.log < 709 else math.inf

    def __str__(self) -> str:
        return f"exp({self.log:.6g})" if self.loglog < 14 else f"exp(exp({self.loglog:.6g}))"

    def to_dict(self) -> dict[str, float]:
        """As JSON."""
        return {"loglog": self.loglog}


Value = float | Huge


def from_log(log: float) -> Value:
    """exp(log) as a float where it fits, otherwise as a Huge."""
    return math.exp(log) if log < 700 else Huge(math.log(log))


def from_loglog(loglog: float) -> Value:
    """exp(exp(loglog)) likewise."""
    return from_log(math.exp(loglog)) if loglog < 700 else Huge(loglog)


def log_of(value: Value) -> float:
    return value.log if isinstance(value, Huge) else math.log(value) if value > 0 else -math.inf


@dataclass(frozen=True)
class Assumption:
    """One hypothesis of a theorem, on the data that it was evaluated on.

    `text` says it; `holds` is True, False, or None where it was not or cannot be checked; `detail` has the numbers.

    >>> from widemargin.theory import Assumption
    >>> Assumption("the margin is positive", True, "gamma = 0.5").word
    'yes'
    """

    text: str
    holds: bool | None
    detail: str = ""

    @property
    def word(self) -> str:
        """yes, no or not checked."""
        return HOLDS[self.holds]

    def to_dict(self) -> dict[str, Any]:
        """As JSON, with the word for `holds`."""
        return {"text": self.text, "holds": self.word, "detail": self.detail}


@dataclass(frozen=True)
class Guarantee:
    """A theorem with numbers put in.

    `statement` says it in symbols, `assumptions` are its hypotheses. `value` is the guaranteed number of the quantity
    `quantity`: an upper bound, or a lower bound for margins, or what is required (width, steps, samples). It is computed whether
    or not the assumptions hold; `applies` says if they do.
    `id`, `reference` and `convention` are written by the decorator `states`, and also `quantity`, `unit` and `probability` where
    they are the same for all arguments, up to delta. `convention`: "derived" where a printed constant was corrected, "printed"
    for the variant as printed, "" where both agree. `unit` is the convention of a margin (M2, M5, ...). `explicit` is False where
    the paper gives an order only and a constant was supplied: then the value is known up to a constant, which `shown` and
    `to_dict` say. `probability` is that with which it holds. `about` says whose bound it is: the trained network, or a predictor
    of largest margin. `numbers` are further results by name.

    >>> from widemargin.theory import Assumption, Guarantee
    >>> one = Guarantee("P(y f(x) < 0) <= 2", 2.0, (Assumption("the points are independent", None),), id="X-1", reference="here")
    >>> one.applies, one.vacuous
    (None, True)
    >>> print(one)
    X-1: test error 2, not all assumptions checked, vacuous [here]
    """

    statement: str
    value: Value
    assumptions: tuple[Assumption, ...]
    id: str = ""
    reference: str = ""
    quantity: str = "test error"
    unit: str = ""
    convention: str = ""
    explicit: bool = True
    probability: float | None = None
    about: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)

    __repr__ = brief

    def __post_init__(self) -> None:
        if self.quantity not in QUANTITIES:
            raise ValueError(f"unknown quantity {self.quantity!r}")
        if isinstance(self.value, float) and math.isnan(self.value):
            raise ValueError(f"{self.id}: the guaranteed value is not a number")

    @property
    def applies(self) -> bool | None:
        """False if an assumption fails, True if all were checked and hold, otherwise None."""
        words = [note.holds for note in self.assumptions]
        return False if False in words else None if None in words else True

    @property
    def vacuous(self) -> bool:
        """Whether the number says nothing (an error of at least 1, a margin of at most 0, an infinite bound, or any number up to
        a constant that nobody knows)."""
        if not self.explicit:
            return True
        limit = QUANTITIES[self.quantity]
        if limit is None:
            return False
        value = float(self.value)
        return value <= limit if self.quantity == "margin" else value >= limit

    @property
    def shown(self) -> str:
        """The value as it is printed everywhere."""
        value = str(self.value) if isinstance(self.value, Huge) else f"{self.value:.5g}"
        return value if self.explicit else f"{value} {UP_TO}"

    def to_dict(self) -> dict[str, Any]:
        """JSON: a Huge is {"loglog": x}, a value of which only the order is known {"up_to_a_constant": x}."""
        named = (
            "id", "statement", "quantity", "value", "unit", "about", "applies", "vacuous", "explicit", "convention",
            "probability", "assumptions", "reference", "numbers",
        )  # fmt: skip
        return {name: getattr(self, name) for name in named} | {
            "value": _plain(self.value) if self.explicit else {UP_TO.replace(" ", "_"): _plain(self.value)},
            "applies": HOLDS[self.applies],
            "assumptions": [note.to_dict() for note in self.assumptions],
            "numbers": {name: _plain(value) for name, value in self.numbers.items()},
        }

    def __str__(self) -> str:
        unit = f" ({self.unit})" if self.unit else ""
        applies = {True: "applies", False: "does not apply", None: "not all assumptions checked"}[self.applies]
        vacuous = ", vacuous" if self.explicit and self.vacuous else ""
        return f"{self.id}: {self.quantity}{unit} {self.shown}, {applies}{vacuous} [{self.reference}]"


def _plain(value: Any) -> Any:
    """Infinities stay, since they are values of theorems; the command line writes null for them."""
    return plain_json(value, not_finite=float, unknown=lambda v: v.to_dict() if isinstance(v, Huge) else v)


# ---------------------------------------------------------------- the registry


@dataclass(frozen=True)
class Theorem:
    """An entry of the registry, to be called with the arguments of the theorem; printed, it says how.

    `claims` are the ids it covers; `apply` evaluates it on Facts, if there is a way.

    `id` is that of docs/claims.md, `name` that of its `function`, `says` is one sentence, `assumes` are its hypotheses,
    `reference` is where it stands in the paper.

    >>> from widemargin import theory
    >>> one = theory.theorem("CB-22")
    >>> one.paper, one.theme, one.name
    ('CB', 'generalization', 'class_margin_bound')
    >>> one(rademacher=0.05, gamma=0.5, C=1.0, n=1000).quantity
    'test error'
    """

    id: str
    name: str
    says: str  # one sentence, in our words
    assumes: tuple[str, ...]
    reference: str
    function: Callable[..., Guarantee]
    claims: tuple[str, ...]
    apply: Callable[[Facts], Guarantee | list[Guarantee] | None] | None = None

    def __call__(self, *args: Any, **keys: Any) -> Guarantee:
        return self.function(*args, **keys)

    @property
    def paper(self) -> str:
        """The short name of the paper; WM for our own bounds."""
        return self.id.partition("-")[0]

    @property
    def theme(self) -> str:
        """The module of `theory` that it is in."""
        return self.function.__module__.rpartition(".")[2]

    @property
    def formula(self) -> str:
        """The statement in symbols, with what the numbers besides the value mean."""
        return said(self.function)[1]

    @property
    def call(self) -> str:
        """The signature: arguments and defaults, without types, which `arguments` explains."""
        bare = [
            argument.replace(annotation=inspect.Parameter.empty)
            for argument in inspect.signature(self.function).parameters.values()
        ]
        return f"theory.{self.theme}.{self.name}{inspect.Signature(bare)}"

    @property
    def arguments(self) -> dict[str, str]:
        """What each argument must be."""
        return explained(self.function)

    @property
    def example(self) -> str:
        """A call with numbers and what it prints, as in the docstring, where a test runs it."""
        return shown(self.function)

    @property
    def tested(self) -> str:
        """The file of the tests of its theme; docs/claims.md names the tests of every id."""
        return f"tests/theory/test_{self.theme}.py"

    def __str__(self) -> str:
        lines = [f"{self.id}  {self.says} [{self.reference}]", "", self.formula, ""]
        lines += [f"assumes {text}" for text in self.assumes]
        lines += ["", f"call {self.call}", f'  or theory.theorem("{self.id}") with the same arguments']
        lines += [f"    {name}: {text}" for name, text in self.arguments.items()]
        return "\n".join([*lines, "", self.example, "", f"tested in {self.tested}"])

    def usage(self) -> dict[str, Any]:
        """How to call it and where it is tested; beside `to_dict`."""
        return {name: getattr(self, name) for name in ("formula", "call", "arguments", "example", "tested")}

    def to_dict(self) -> dict[str, Any]:
        """What it says, as JSON."""
        return {
            "id": self.id,
            "name": self.name,
            "statement": self.says,
            "assumptions": list(self.assumes),
            "reference": self.reference,
            "claims": list(self.claims),
            "on_data": self.apply is not None,
        }


THEOREMS: dict[str, Theorem] = {}

F = TypeVar("F", bound=Callable[..., Guarantee])
A = TypeVar("A", bound=Callable[..., Any])


def states(*claims_and_reference: str, **fixed: Any) -> Callable[[F], F]:
    """Register a theorem: its ids, then where it stands in the paper; `fixed` as in `version`.

    The first paragraph of the docstring is what it says, the rest its formula. `assuming` stands below.
    """
    *claims, reference = claims_and_reference

    def register(function: F) -> F:
        if claims[0] in THEOREMS:
            raise ValueError(f"{claims[0]} is registered twice")
        says, _ = said(function)
        signed = version(claims[0], reference, **fixed)(function)
        assumes = getattr(function, "assumes", ())
        THEOREMS[claims[0]] = Theorem(claims[0], function.__name__, says, assumes, reference, signed, tuple(claims))
        return signed

    return register


def assuming(*hypotheses: str) -> Callable[[F], F]:
    """The hypotheses of a theorem, in words; what it returns says of each whether it holds, where it can by `holding`."""

    def name(function: F) -> F:
        function.assumes = hypotheses  # type: ignore[attr-defined]
        return function

    return name


def holding(*known: Assumption | bool | tuple[bool | None, str] | None) -> tuple[Assumption, ...]:
    """Whether the hypotheses of `assuming` hold, in their order, each alone or with the numbers that decide it.

    The decorator of the theorem writes their words, so that they stand in one place. An Assumption has words of its own.
    """
    pairs = [each if isinstance(each, tuple | Assumption) else (each, "") for each in known]
    return tuple(pair if isinstance(pair, Assumption) else Assumption("", *pair) for pair in pairs)


def version(
    id: str, reference: str, quantity: str | None = None, unit: str | None = None, fails: int | Mapping[str, int] = 1
) -> Callable[[F], F]:
    """Another form of a theorem: not registered, otherwise as `states`.

    What it returns has id, reference and convention, and `quantity` and `unit` where they are always the same. A theorem with an
    argument delta holds with probability 1 - `fails` delta, by convention where it depends on that.
    """

    def sign(function: F) -> F:
        inner, signature, assumes = checked(function), inspect.signature(function), getattr(function, "assumes", ())
        always = {name: value for name, value in (("quantity", quantity), ("unit", unit)) if value is not None}

        @functools.wraps(function)
        def signed(*args: Any, **keys: Any) -> Guarantee:
            result = inner(*args, **keys)
            given = signature.bind(*args, **keys)
            given.apply_defaults()
            filled = always | {name: value for name, value in given.arguments.items() if name == "convention"}
            times = fails if isinstance(fails, int) else fails.get(given.arguments["convention"])
            if times is not None and "delta" in given.arguments:
                filled["probability"] = max(0.0, 1 - times * given.arguments["delta"])
            notes = [note if note.text else replace(note, text=assumes[k]) for k, note in enumerate(result.assumptions)]
            return replace(result, id=id, reference=reference, assumptions=tuple(notes), **filled)

        return signed  # type: ignore[return-value]

    return sign


def applied(
    id: str, reads: Callable[[Facts], tuple[Any, ...] | None] | None = None, two_classes: bool | None = None
) -> Callable[[A], A]:
    """Register how a theorem is evaluated on Facts; return None, or no guarantee, where it has nothing to say about them.

    The function is also given what `reads` makes of the facts, and is not called where that is None. `two_classes`: only for
    labels that are all -1 or +1 (True), or are not (False).
    """

    def register(function: A) -> A:
        def apply(facts: Facts) -> Guarantee | list[Guarantee] | None:
            if two_classes not in (None, facts.two_classes):
                return None
            read = () if reads is None else reads(facts)
            return None if read is None else function(facts, *read) or None

        THEOREMS[id] = replace(THEOREMS[id], apply=apply)
        return function

    return register
