"""Every public function and class says what it solves, has an example that runs, and uses the common keywords.

The examples of all files of the package run here, those of methods and of private functions too.
"""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import numpy as np
import pytest
from numpy.typing import ArrayLike

import widemargin
from widemargin import cli, kinds, theory
from widemargin.types import Certificate, Dataset

SRC = Path(widemargin.__file__).parent
ROOT = Path(__file__).parents[1]
ROOMS = (
    "data",
    "flows",
    "margins",
    "monitor",
    "optima",
    "papers",
    "play",
    "plots",
    "report",
    "spaces",
    "sweep",
    "theory",
    "types",
    "verify",
)
# Explained once, in the docstring of the room, or where they are used.
COMMON = ("activation", "bias", "data", "device", "memory", "progress", "seed", "time_limit", "tol")
KEYWORDS = ("bias", "device", "progress", "time_limit", "tol")  # never positional; a data set's seed may be
DEFAULTS = {"device": ["cpu"], "progress": [None], "seed": [0], "bias": [False]}
OTHER_WORDS = {  # for a tolerance, a time limit, a seed, progress, a device, a bias
    *("tolerance", "rtol", "atol", "precision"),
    *("timeout", "max_time", "limit"),
    *("random_state", "rng", "generator"),
    *("callback", "verbose"),
    *("cuda", "gpu", "fit_intercept", "intercept"),
}
FITTING = {  # other words that say what they mean there
    ("draw", "rng"),  # of a net: the generator itself, which `init` made from a seed
    ("GradientFlow", "rtol"),  # the error of a step relative to |W|, not when a search ends; saved runs have it
}
RECORDS = {"Certificate", "Estimate", "Measure", "Progress", "Record"}  # their fields have an order
CONVENTIONS = {  # of what a function returns, by its room and name
    ("optima" if "objective" in kind.conventions else "margins", kind.function): kind.conventions
    for kind in kinds.KINDS.values()
}
SHAPE = re.compile(r"\([\w ^+*.-]+,(?: ?[\w ^+*.-]+,?)*\)")  # (n, d), (n,), (T, B, ...)


class Public(NamedTuple):
    room: str
    name: str
    item: Any

    def __str__(self) -> str:
        return f"{self.room}.{self.name}"


def public() -> Iterator[Public]:
    for room in ROOMS:
        module = importlib.import_module(f"widemargin.{room}")
        for name in module.__all__:
            if callable(getattr(module, name)):
                yield Public(room, name, getattr(module, name))


PUBLIC = list(public())
THEOREMS = list(theory.THEOREMS.values())
PAGES = " ".join(
    page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
)


def named_on_pages() -> Iterator[Public]:
    """What the pages call by room, file and name, such as `theory.comparators.kl`, is public, too. Theorems have a walk below."""
    theorems = [theorem.function for theorem in THEOREMS]
    for place, name in sorted(set(re.findall(rf"\b((?:{'|'.join(ROOMS)})\.[a-z_]+)\.([a-z]\w*)\b", PAGES))):
        try:
            item = getattr(importlib.import_module(f"widemargin.{place}"), name)
        except (ModuleNotFoundError, AttributeError):  # a method, or the field of an object
            continue
        if inspect.isfunction(item) and item.__module__ == f"widemargin.{place}" and item not in theorems:
            yield Public(place, name, item)


INNER = list(named_on_pages())


def parameters(item: Any) -> dict[str, inspect.Parameter]:
    if isinstance(item, type) and issubclass(item, BaseException):
        return {}
    return dict(inspect.signature(item).parameters)


def annotations(item: Any) -> list[str]:
    """Of the arguments (fields of a dataclass are), and of what a function returns."""
    there = [str(one.annotation) for one in parameters(item).values()]
    return there if isinstance(item, type) else [*there, str(inspect.signature(item).return_annotation)]


def unsaid(item: Any, room: str, conventions: Sequence[str] = ()) -> list[str]:
    """What the docstring of a function or class leaves out."""
    doc = inspect.cleandoc(item.__doc__ or "")
    if not doc or (dataclasses.is_dataclass(item) and doc.startswith(f"{item.__name__}(")):
        return ["it has no docstring"]
    prose, found = doc.partition(">>>")[0], []
    if len(prose.split()) < 8:
        found.append("it does not say what it solves")
    for name in parameters(item):
        where = prose + room if name in COMMON else prose
        if not re.search(rf"(?<!\w){name}(?!\w)", where):
            found.append(f"it does not speak of {name}")
    if any(re.search("ArrayLike|ndarray", text) for text in annotations(item)) and not SHAPE.search(prose):
        found.append("it does not say the shapes of arrays")
    for convention in conventions:
        if not re.search(rf"(?<![\w-]){convention}(?![\w-])", prose):
            found.append(f"it does not name its convention {convention}")
    if not any(example.want for example in doctest.DocTestParser().get_examples(doc)):
        found.append("it has no example that shows something")
    return found


def misnamed(item: Any) -> list[str]:
    """Arguments that are not called, or not given, as everywhere."""
    found, there = [], parameters(item)
    record = isinstance(item, type) and item.__name__ in RECORDS
    for name, one in there.items():
        if name in OTHER_WORDS and (item.__name__, name) not in FITTING:
            found.append(f"{name} has another name elsewhere")
        if name in KEYWORDS and one.kind is not one.KEYWORD_ONLY and not record:
            found.append(f"{name} can be given by its place")
        told = name == "bias" and "space" in there and one.default is None  # where a space may say it; else it is False
        if name in DEFAULTS and one.default is not one.empty and one.default not in DEFAULTS[name] and not told:
            found.append(f"{name} is {one.default!r} where it is left out")
        if name == "time_limit" and not (one.default is None or one.default > 0):
            found.append("time_limit is neither None nor positive where it is left out")
    if not isinstance(item, type) and inspect.signature(item).return_annotation in ("Certificate", Certificate):
        wanted = {"tol", "time_limit", "progress"}
        found += [f"it has no {name}" for name in sorted(wanted - set(there))]
    return found


@pytest.mark.parametrize("one", [*PUBLIC, *INNER], ids=str)
def test_a_public_name_says_all_that_is_needed(one: Public):
    room = inspect.getdoc(importlib.import_module(f"widemargin.{one.room.partition('.')[0]}")) or ""
    assert not unsaid(one.item, room, CONVENTIONS.get((one.room, one.name), ()))


@pytest.mark.parametrize("one", [*PUBLIC, *INNER], ids=str)
def test_a_public_name_uses_the_common_keywords(one: Public):
    assert not misnamed(one.item)


@pytest.mark.parametrize("theorem", THEOREMS, ids=lambda theorem: theorem.id)
def test_a_theorem_says_all_that_is_needed(theorem: theory.Theorem):
    """Statement in words and in symbols, hypotheses, every argument, shapes, the quantity with its convention, an example."""
    assert len(theorem.says.split()) >= 8 and theorem.formula and theorem.assumes
    assert list(theorem.arguments) == list(parameters(theorem.function)) and all(theorem.arguments.values())
    if any(hint == ArrayLike for hint in get_type_hints(theorem.function).values()):
        assert SHAPE.search(theorem.formula)
    assert not misnamed(theorem.function)
    examples = doctest.DocTestParser().get_examples(theorem.function.__doc__ or "")
    assert any(f"theory.{theorem.theme}.{theorem.name}(" in one.source and one.want for one in examples)
    assert theorem.example.startswith(">>> ") and theorem.example in str(theorem) and ">>>" not in theorem.formula


def test_every_room_is_walked():
    """A room that is added, or a theme of theorems, is looked at."""
    assert {*ROOMS} == {name for name in widemargin.__all__ if name.islower()} | {"types"}
    assert {theorem.theme for theorem in THEOREMS} <= {*theory.__all__} and len(THEOREMS) > 60
    assert {"theory.comparators.kl", "flows.losses.psi", "margins.widths.width_margin_curve"} <= {*map(str, INNER)}


def test_there_is_no_bias_where_none_is_asked_for():
    """In functions, in estimators and on the command line alike."""
    asked = [
        one
        for one in PUBLIC
        if "bias" in parameters(one.item) and parameters(one.item)["bias"].default is not inspect.Parameter.empty
    ]
    assert len(asked) > 20 and not [str(one) for one in asked if parameters(one.item)["bias"].default]
    data = widemargin.Dataset([[1.0, 2.0], [2.0, -1.0], [-1.0, 0.5]], [1, -1, 1])
    assert not widemargin.margins.f1(data).bias and not widemargin.margins.f2(data).bias
    commands = cli.parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr, attr-defined]
    known = {name: one.get_default("bias") for name, one in commands.items() if "--bias" in one.format_help()}
    assert len(known) >= 5 and not any(known.values()), known


def methods(item: Any) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that a class defines itself; none of a function."""
    for name, value in vars(item).items() if isinstance(item, type) else ():
        function = value.fget if isinstance(value, property) else inspect.unwrap(getattr(value, "__func__", value))
        if not name.startswith("_") and inspect.isfunction(function):
            yield name, function


@pytest.mark.parametrize("one", [one for one in PUBLIC if isinstance(one.item, type)], ids=str)
def test_methods_of_public_classes(one: Public):
    """Each has a docstring, its own or that of the method it replaces; the example is that of the class."""
    for name, function in methods(one.item):
        assert inspect.getdoc(getattr(one.item, name)), f"{one}.{name} has no docstring"
        if name != "load":  # reads what a solver returned
            assert not misnamed(function), f"{one}.{name}"


EXAMPLES = sorted(
    ".".join(("widemargin", *file.relative_to(SRC).with_suffix("").parts)).removesuffix(".__init__")
    for file in SRC.rglob("*.py")
    if ">>> " in file.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_in_docstrings(name: str, tmp_path, monkeypatch, one_thread):
    """With nothing imported before, each in an empty folder."""
    said: list[str] = []
    for test in doctest.DocTestFinder().find(importlib.import_module(name), globs={"__name__": "__main__"}):
        (tmp_path / test.name).mkdir()
        monkeypatch.chdir(tmp_path / test.name)
        doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    assert not said, "".join(said)


def test_all_examples_of_public_names_are_run():
    """What is defined elsewhere than where it is looked for would be left out."""
    found = {
        test.name
        for name in EXAMPLES
        for test in doctest.DocTestFinder().find(importlib.import_module(name))
        if test.examples
    }
    walked = [*(one.item for one in (*PUBLIC, *INNER)), *(theorem.function for theorem in THEOREMS)]
    missing = {f"{item.__module__}.{item.__name__}" for item in walked} - found
    assert not missing and len(PUBLIC) > 100


# ---------------------------------------------------------------- the walk can fail


def silent(X: ArrayLike, tolerance: float = 1e-3) -> np.ndarray: ...  # type: ignore[empty-body]


def vague(X: ArrayLike, k: int = 2, tol: float = 1e-3) -> np.ndarray:  # type: ignore[empty-body]
    """A function of X and of nothing else that anybody knows.

    >>> import math
    """


def solver(data: Dataset, *, bias: bool = True, time_limit: float = -1.0, seed: int = 1) -> Certificate:  # type: ignore[empty-body]
    """The largest margin of all, with the common keywords.

    >>> 1 + 1
    2
    """


def test_the_walk_finds_what_is_missing():
    assert unsaid(silent, "") == ["it has no docstring"]
    assert unsaid(vague, "tol") == [
        "it does not speak of k",
        "it does not say the shapes of arrays",
        "it has no example that shows something",
    ]
    assert unsaid(solver, "data bias time_limit seed", ["M1"]) == ["it does not name its convention M1"]
    assert unsaid(solver, "data time_limit seed") == ["it does not speak of bias"]
    assert misnamed(silent) == ["tolerance has another name elsewhere"]
    assert misnamed(vague) == ["tol can be given by its place"]
    assert misnamed(solver) == [
        "bias is True where it is left out",
        "time_limit is neither None nor positive where it is left out",
        "seed is 1 where it is left out",
        "it has no progress",
        "it has no tol",
    ]
    assert CONVENTIONS["margins", "ntk"] == ("M8", "M8-l2") and CONVENTIONS["optima", "f1"] == ("objective",)
    assert {room for room, _ in CONVENTIONS} == {"margins", "optima"}
    assert all(any((one.room, one.name) == key for one in PUBLIC) for key in CONVENTIONS)
