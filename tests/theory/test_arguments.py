"""Theorems are stated once: arguments are refused by what their annotations say, ids and references come from the decorator."""

from __future__ import annotations

import ast
import inspect
import math
import re
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
from numpy.typing import ArrayLike

from widemargin import InputError, theory
from widemargin.theory import arguments, guarantee
from widemargin.theory.arguments import (
    Classes,
    Convention,
    Count,
    Factor,
    Finite,
    Nonnegative,
    Positive,
    Probability,
    Ratio,
    Share,
)

SOURCES = sorted(Path(theory.__file__).parent.glob("*.py"))
GOOD = (0.3, 3, "derived", "printed", "logistic", "f1", "outer", "early", "hull", "l1", "global")  # one of every kind


@arguments.checked
def example(
    gamma: Positive = 1.0,
    n: Count | None = None,
    delta: Probability = 0.5,
    size: Nonnegative = 0.0,
    sum_: Finite = 0.0,
    part: Share = 0.0,
    l: Classes = 2,
    factor: Factor = 1.0,
    ratio: Ratio = 2.0,
    convention: Convention = "derived",
    total: Annotated[float, arguments.not_below(0, "the sum of the losses")] = 0.0,
    free: float = 0.0,
    known: bool | None = None,
    points: ArrayLike = (0.0,),
) -> str:
    """Nothing."""
    return convention


@pytest.mark.parametrize(
    ("name", "good", "bad", "says"),
    [
        (
            "gamma",
            (1e-300, 3, np.float64(2), np.int64(2)),
            (0, -1.0, math.inf, math.nan, True, "1", None),
            "a positive",
        ),
        ("n", (None, 3), (0, -2, "3"), "be a positive number"),
        ("delta", (0.1, 1e-9), (0, 1, -0.1, math.nan), "lie strictly between 0 and 1"),
        ("size", (0, 2.0, math.inf), (-1e-9, math.nan, None), "be a number of at least 0"),
        ("sum_", (0, 2.0), (-1e-9, math.inf, math.nan), "be a finite number of at least 0"),
        ("part", (0, 1, 0.5), (-0.1, 1.1), "lie between 0 and 1"),
        ("l", (2, 10), (1, 0), "be a number of at least 2"),
        ("factor", (1, 1.5), (0.9, math.inf), "be a number of at least 1"),
        ("ratio", (1.1, 2), (1, 0.5, math.nan, "2"), "be greater than 1"),
        ("convention", ("derived", "printed"), ("sharp", 1, None), "be derived or printed"),
        ("free", (0, -math.inf, math.nan), ("x", None, 1j, 10**400, np.ones(3)), "be a number"),
        ("known", (None, True, np.bool_(False)), (1, "x", np.ones(3), ()), "be True or False or None"),
        ("points", ([[1, 2]], np.ones(3)), ("x", [[1], [1, 2]], None, [1j], [], [10**400]), "be an array of numbers"),
        ("gamma", (Fraction(1, 3),), (10**400, np.eye(30)), "be a positive number"),
    ],
)
def test_kinds_of_arguments(name, good, bad, says):
    for value in good:
        assert example(**{name: value}) in ("derived", "printed")
    for value in bad:
        with pytest.raises(InputError, match=f"^example: {name} must .*{says}.*, not ") as told:
            example(**{name: value})
        assert len(str(told.value)) < 150


def test_numbers_that_leave_the_range_on_the_way_are_one_sentence():
    @arguments.checked
    def log_of_square(gamma: Positive) -> float:
        return math.log(gamma**2)

    assert log_of_square(Fraction(1, 2)) == math.log(0.25)
    assert log_of_square(np.uint8(100)) == math.log(10_000)  # 16 in eight bits
    for gamma in (1e-300, 1e300):
        with pytest.raises(InputError, match=r"^log_of_square: the numbers leave the range of floating point"):
            log_of_square(gamma)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: theory.theorem("MT-19")(1.0, 1.0), "K has shape"),
        (lambda: theory.theorem("MT-19")(np.eye(2), np.eye(2)), "K has shape"),
        (lambda: theory.theorem("BN-13")([1.0, 2.0], [1.0], np.eye(2)), "u has shape"),
        (lambda: theory.theorems(np.ones(3)), "there is no paper"),  # type: ignore[arg-type]
        (lambda: theory.guarantees(([[1.0], [-1.0]], [1, -1]), progress="x"), "progress must be a function"),  # type: ignore[arg-type]
    ],
)
def test_arguments_that_do_not_fit_are_one_sentence(call, says):
    with pytest.raises(InputError, match=says):
        call()


def test_an_argument_is_called_what_it_is():
    with pytest.raises(InputError, match=r"^example: the sum of the losses must be a number of at least 0, not -1$"):
        example(total=-1)
    with pytest.raises(InputError, match=r"^example: gamma must be"):
        example(-1)  # by place, too
    with pytest.raises(TypeError, match="unexpected"):
        example(nothing=1)
    words = arguments.explained(example)
    assert words["total"] == "the sum of the losses, must be a number of at least 0" and words["free"] == "a number"
    assert words["n"] == "must be a positive number, or None where it is not known" and next(iter(words)) == "gamma"


@pytest.mark.parametrize("id", theory.THEOREMS)
def test_every_argument_of_a_theorem_is_explained_and_checked(id):
    one = theory.theorem(id)
    assert list(one.arguments) == list(inspect.signature(one.function).parameters)
    assert all(one.arguments.values()) and one.formula and one.name in one.call and one.says in str(one)
    kinds = arguments.kinds(one.function)
    good = {
        name: next(value for value in GOOD if name not in kinds or kinds[name].holds(value)) for name in one.arguments
    }
    assert {"gamma", "delta", "convention"} & set(one.arguments) <= set(kinds)
    for name, kind in kinds.items():
        with pytest.raises(InputError, match=rf"^{one.name}: {re.escape(kind.called or name)} must .*, not -1\.0$"):
            one(**good | {name: -1.0})


def test_ids_references_and_conventions_come_from_the_decorator():
    found = theory.theorem("CB-22")(0.05, 0.5, 1.0, 1000, convention="printed")
    assert (found.id, found.reference, found.convention) == ("CB-22", "CB Theorem 22", "printed")
    assert found == theory.generalization.class_margin_bound(0.05, 0.5, 1.0, 1000, convention="printed")
    assert theory.theorem("CB-22")(0.05, 0.5, 1.0, 1000).convention == "derived"
    other = theory.mirror.margin_from_risk(-9.0, 4, 2.0)  # another form of a theorem
    assert (other.id, other.reference, other.convention) == ("UH-7", "UH Lemma A.1 (1)", "")


def test_words_of_hypotheses_come_from_the_decorator():
    @guarantee.version("X-1", "here")
    @guarantee.assuming("there are points", "they are many", "they are few")
    def counted(n: int) -> theory.Guarantee:
        own = theory.Assumption("they are counted", True)
        return theory.Guarantee("n", float(n), guarantee.holding(None, (n > 3, f"n = {n}"), own, *[True] * (n - 3)))

    notes = [(note.text, note.holds, note.detail) for note in counted(3).assumptions]
    assert notes == [
        ("there are points", None, ""),
        ("they are many", False, "n = 3"),
        ("they are counted", True, ""),
    ]
    with pytest.raises(IndexError):  # more than there are words for
        counted(4)


def test_no_body_repeats_what_its_decorator_says():
    """No Guarantee is built with an id, a reference or a convention, and no body names an id of its own."""
    seen = 0
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Guarantee":
                seen += 1
                names = {keyword.arg for keyword in node.keywords}
                assert len(node.args) == 3 and not names & {"id", "reference", "convention"}, (
                    f"{file.name}:{node.lineno}"
                )
    assert seen > 60


def test_theorems_are_reached_by_id_and_by_theme():
    assert len(theory.__all__) <= 30
    for one in theory.THEOREMS.values():
        assert getattr(getattr(theory, one.theme), one.name) is one.function and theory.theorem(one.id) is one
    assert [one.id for one in theory.theorems()] == sorted(theory.THEOREMS, key=theory.order)
    assert sum(len(theory.theorems(paper)) for paper in theory.PAPERS) == len(theory.THEOREMS)
    with pytest.raises(InputError, match=r"^there is no theorem 'LR-99'; the nearest are LR-28, LR-29, LR-31$"):
        theory.theorem("LR-99")
    with pytest.raises(
        InputError, match=r"^there is no theorem 'CB-25', but there is a check of that along runs .*; the n"
    ):
        theory.theorem("CB-25")
    with pytest.raises(InputError, match="there is no paper 'XX'; there are UH, LR"):
        theory.theorems("XX")
