"""Theorems by their ids: finding one, listing those of a paper, and what to read before calling one."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from widemargin.types import InputError, show

from .guarantee import THEOREMS, Theorem
from .inequality import CHECKS

PAPERS = ("UH", "LR", "MT", "BN", "CB", "WM")  # WM: bounds of our own
FEW = 3  # ids named where one is unknown


def order(id: str) -> tuple[int, int, str]:
    """What the `id` of a claim is sorted by: the order of the papers, then that of the numbers.

    >>> from widemargin.theory import order
    >>> sorted(["CB-22", "MT-7", "MT-34", "MT-4"], key=order)
    ['MT-4', 'MT-7', 'MT-34', 'CB-22']
    """
    paper, number = _parts(id)
    return (PAPERS.index(paper) if paper in PAPERS else len(PAPERS), number, id)


def _parts(id: str) -> tuple[str, int]:
    if not isinstance(id, str):
        raise InputError(f"an id is a text such as 'MT-7', not {show(id)}")
    paper, _, number = id.partition("-")
    return paper, int("".join(c for c in number if c in "0123456789")[:9] or 0)


def find(id: str, registry: Mapping[str, Any] = THEOREMS, what: str = "theorem") -> Any:
    """The entry of a registry that has this id or covers it beside its own."""
    _parts(id)  # is a text
    covers = {claim: entry for entry in registry.values() for claim in entry.claims}
    if id not in covers:
        run = registry is THEOREMS and any(id in check.claims for check in CHECKS.values())
        but = ", but there is a check of that along runs (`widemargin check`)" if run else ""
        known = "" if _parts(id.upper())[0] in PAPERS else f", and the papers are {', '.join(PAPERS)}"
        raise InputError(f"there is no {what} {id!r}{but}; the nearest are {', '.join(nearest(id, covers))}{known}")
    return registry.get(id, covers[id])


def nearest(id: str, known: Mapping[str, Any]) -> list[str]:
    """Those of the same paper with the nearest numbers, or else those with the most similar names."""
    paper, number = _parts(id.upper())
    same = [other for other in known if _parts(other)[0] == paper]
    if same:
        near = sorted(same, key=lambda other: (abs(_parts(other)[1] - number), order(other)))[:FEW]
    else:
        near = difflib.get_close_matches(id.upper(), known, FEW, 0.0)
    return sorted(near, key=order)


def theorem(id: str) -> Theorem:
    """The theorem with this id: call it with its arguments, or print it to see how.

    An id is that of docs/claims.md, such as MT-7; `widemargin theorems` lists them.

    >>> from math import log, log2, sqrt
    >>> from widemargin import theory
    >>> given = theory.theorem("CB-22")(rademacher=0.05, gamma=0.5, C=1.0, n=1000, convention="printed")
    >>> printed = 4 * 0.05 / 0.5 + sqrt(log(log2(4 / 0.5)) / 1000) + sqrt(log(1 / 0.05) / 2000)
    >>> round(given.value, 6) == round(printed, 6)
    True
    """
    return find(id)


def theorems(paper: str | None = None) -> list[Theorem]:
    """All theorems, or those of one paper (UH, LR, MT, BN, CB; WM for our own), in the order of their numbers.

    >>> from widemargin import theory
    >>> [one.id for one in theory.theorems("CB")][:3]
    ['CB-14', 'CB-16', 'CB-18']
    """
    if paper is not None and not (isinstance(paper, str) and paper in PAPERS):
        raise InputError(f"there is no paper {show(paper)}; there are {', '.join(PAPERS)}")
    return [THEOREMS[id] for id in sorted(THEOREMS, key=order) if paper in (None, THEOREMS[id].paper)]
