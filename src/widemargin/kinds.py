"""The kinds of certificates, in one table: what solves them, in which convention, with which options, how they are drawn.

The command line, sweeps, the report and pictures read it, so that a new kind is a row here, a function in `margins` or
`optima` and a rule of the checker. The checker keeps a list of its own (`verify.KINDS`): it trusts nothing from here.

What the functions in `margins` have in common. Points come first, as a `Dataset`; what a kind cannot do without (`directions`,
`width`, `rank`, a `space`) may follow by position; everything else goes by keyword, `bias` above all. Six keywords mean the same
in all of them, and a function has those that can have an effect there:

    tol         the relative gap at which it stops; everywhere
    time_limit  seconds after which it returns what it has; everywhere
    memory      bytes that its matrices may take; half of what is free where it is left out; everywhere but in width_margin_curve
    seed        of all that is random; where nothing is (f2, both linear ones, tangent, min_norm_l2) there is none
    progress    progress(seconds, lower, upper, message), called after every round, or once where there is one; everywhere
    device      of the search, cpu or cuda; in f1 and in width_margin_curve, whose solver can use a GPU
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Kind:
    """One row. `options` are those of the command line besides tol and time_limit, with the argument each becomes and the key of
    the certificate's `extra` that keeps it ("" where it stands elsewhere)."""

    name: str  # in certificates, and after --kind
    function: str  # in its room
    conventions: tuple[str, ...]  # the first is the usual one
    label: str  # in pictures and on pages
    options: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    shown: tuple[str, ...] = ()  # keys of `extra` that belong to a summary
    drawn: tuple[str, ...] = ()  # besides its interval: "neurons", "decision" (its function in the plane)
    targets: str = "signs"  # or "classes" 0..K-1, or "values", or "several values" for each point
    needs: str = ""  # an argument that only Python can give
    room: str = "margins"


ENDED = {  # how a search ended, in words
    "certified": "certified",
    "time-limit": "stopped at the time limit",
    "stalled": "stalled",
    "interrupted": "interrupted",
    "not-separable": "nothing of this kind separates the data",
    "rounding": "as close as rounding allows",
    "no-interpolation": "nothing of this kind meets all targets",
    "found": "cones were found",
    "not-found": "no cones were found",
}
# The norms of linear predictors and their conventions: of a vector u (two classes), of a matrix U (several).
VECTOR_NORMS = {"l2": "M11", "l1": "M11-l1", "linf": "M11-linf"}
MATRIX_NORMS = {"frobenius": "MT2-linear"} | {
    norm: f"MT2-linear-{norm}" for norm in ("max", "spectral", "nuclear", "l1")
}


def _same(*names: str) -> dict[str, tuple[str, str]]:
    """Options that have the name of their argument and stand in the frame of a certificate."""
    return {name: (name, "") for name in names}


_KINDS = (
    Kind(
        "f1",
        "f1",
        ("M1",),
        "F1",
        _same("bias", "activation", "seed", "device"),
        drawn=("neurons", "decision"),
    ),
    Kind("f2", "f2", ("M7", "gram"), "F2", _same("bias", "activation"), drawn=("decision",)),
    Kind(
        "linear",
        "linear",
        tuple(VECTOR_NORMS.values()),
        "linear",
        {"norm": ("norm", "norm"), **_same("bias")},
        shown=("norm",),
        drawn=("decision",),
    ),
    Kind(
        "frozen",
        "frozen",
        ("M1",),
        "frozen neurons",
        {"width": ("directions", "directions"), **_same("bias", "activation", "seed")},
        drawn=("neurons", "decision"),
    ),
    Kind(
        "rf",
        "random_features",
        ("M7",),
        "random features",
        {"width": ("directions", "directions"), **_same("bias", "activation", "seed")},
        drawn=("decision",),
    ),
    Kind(
        "ntk",
        "ntk",
        ("M8", "M8-l2"),
        "NTK",
        {name: (name, name) for name in ("part", "transport", "samples", "confidence")} | _same("bias", "seed"),
        shown=("samples", "confidence", "part", "transport"),
        drawn=("decision",),
    ),
    Kind(
        "bn",
        "batchnorm",
        ("M9",),
        "batch normalisation",
        {name: (name, name) for name in ("width", "eps", "displacement")} | _same("seed"),
        shown=("gamma_a", "gamma_c", "width", "eps_N", "displacement"),
        drawn=("decision",),
    ),
    Kind(
        "collapse",
        "collapse",
        ("NC",),
        "neural collapse",
        _same("seed"),
        shown=("r", "gamma_nc", "eps"),
        drawn=("decision",),
    ),
    Kind(
        "projected",
        "projected",
        ("distance",),
        "projected distance",
        {"rank": ("rank", "rank"), **_same("seed")},
        shown=("rank",),
    ),
    Kind("tangent", "tangent", ("tangent",), "tangent kernel", needs="jacobian"),
    Kind(
        "f1-multiclass",
        "multiclass_f1",
        ("M1",),
        "F1, several classes",
        _same("bias", "seed"),
        targets="classes",
    ),
    Kind(
        "linear-multiclass",
        "multiclass_linear",
        tuple(MATRIX_NORMS.values()),
        "linear, several classes",
        {"norm": ("norm", "norm"), **_same("bias")},
        shown=("norm",),
        targets="classes",
    ),
    Kind(
        "l1-regression",
        "min_norm_l1",
        ("norm",),
        "smallest F1 norm",
        _same("bias", "seed"),
        drawn=("neurons",),
        targets="values",
    ),
    Kind("l2-regression", "min_norm_l2", ("norm",), "smallest F2 norm", _same("bias", "activation"), targets="values"),
    Kind(
        "f1-optimum",
        "f1",
        ("objective",),
        "least training objective",
        _same("bias", "seed", "device"),
        shown=("loss", "weight_decay", "output_bias"),
        drawn=("neurons", "decision"),
        needs="weight_decay",
        room="optima",
    ),
    Kind(
        "f2-optimum",
        "f2",
        ("objective",),
        "least F2 objective",
        _same("bias"),
        shown=("loss", "weight_decay", "output_bias"),
        drawn=("decision",),
        needs="weight_decay",
        room="optima",
    ),
    Kind(
        "f1-multiclass-optimum",
        "f1",
        ("objective",),
        "least training objective, several classes",
        _same("bias", "seed", "device"),
        shown=("loss", "weight_decay", "output_bias"),
        targets="classes",
        needs="weight_decay",
        room="optima",
    ),
    Kind(
        "f1-multitarget-optimum",
        "f1",
        ("objective",),
        "least training objective, several targets",
        _same("bias", "seed", "device"),
        shown=("loss", "weight_decay", "output_bias"),
        targets="several values",
        needs="weight_decay",
        room="optima",
    ),
)
KINDS = {kind.name: kind for kind in _KINDS}
# What `--kind` and sweeps offer; with --multiclass the kind of the same name for several classes.
OFFERED = tuple(kind.name for kind in _KINDS if kind.targets == "signs" and not kind.needs)
SEVERAL = {
    name.removesuffix("-multiclass"): name
    for name, kind in KINDS.items()
    if kind.targets == "classes" and not kind.needs
}


def labels_for_loss(keys: Mapping[str, Any]) -> str:
    """How the loss among the keywords of a function takes labels (`Dataset.labelled`)."""
    loss = keys.get("loss")
    return {"squared": "values", "cross-entropy": "classes"}.get(loss, "signs") if isinstance(loss, str) else "signs"


def labels(name: str, extra: Mapping[str, Any]) -> str:
    """How a certificate of a kind takes the labels of its data."""
    if name not in KINDS:
        return "values"
    return labels_for_loss(extra) if KINDS[name].room == "optima" else KINDS[name].targets


def quantity(convention: str) -> str:
    """What bounds in a convention are about: a margin, a norm or an objective."""
    return convention if convention in ("norm", "objective") else "margin"


def argued(convention: str) -> str:
    """The bound that a proof is needed for; the other one is evaluated."""
    return "upper" if quantity(convention) == "margin" else "lower"


def label(name: str) -> str:
    """What a kind is called in pictures; its own name where the table has none."""
    return KINDS[name].label if name in KINDS else name


def detail(name: str, extra: Mapping[str, Any]) -> str:
    """What tells certificates of one kind and one data set apart, as the end of a name: the loss and the decay of optima."""
    if name not in KINDS or KINDS[name].room != "optima":
        return ""
    return f", {extra.get('loss')} loss, decay {extra.get('weight_decay', math.nan):.4g}"
