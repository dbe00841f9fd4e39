"""The saved form of a certificate (docs/certificates.md), read and checked at the door: types, shapes, ranges.

What passes has every field that a page, a picture or a function needs, in its type and shape. Nothing is proved by that: whether
the numbers are right is for `verify` to say.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from widemargin import kinds
from widemargin import verify as exact
from widemargin.errors import InputError, show
from widemargin.forms import (
    Form,
    Misfit,
    anything,
    array_of,
    either,
    listed,
    maybe,
    need,
    number,
    numbers,
    pair_of,
    table,
    text,
    truth,
    whole,
    word,
)
from widemargin.spaces import as_space

FORMAT = "widemargin-certificate-1"
STATUSES = (
    "certified", "time-limit", "stalled", "interrupted", "not-separable", "rounding", "no-interpolation", "found", "not-found",
)  # fmt: skip
LOSSES = ("logistic", "squared", "hinge", "squared-hinge", "exp", "cross-entropy")
LARGE = 10**9  # points, features, neurons

BOUND = table({"lower": number(), "upper": number()})
LABEL = either(text(4000), truth, number())
CALLED = {  # what the data were called where they came from
    "labels": listed(pair_of(LABEL, number())),
    "label": text(4000),
    "columns": listed(text(4000)),
    "standardized": table({"mean": listed(number()), "scale": listed(number())}),
}
FRAME = table(
    {
        "kind": text(40),
        "lower": number(),
        "upper": number(),
        "gap": number(),
        "status": word(*STATUSES),
        "proved": truth,
        "bound": text(200),
        "convention": text(40),
        "n": whole(1, LARGE),
        "d": whole(1, LARGE),
        "bias": truth,
        "activation": text(40),
        "data": table({"name": text(4000), "sha256": text(64)}, CALLED),
        "dual": listed(anything),
        "primal": maybe(table({"theta": listed(anything), "mass": listed(anything)})),
        "proof": table({}),
        "extra": table({}),
    },
    {
        "seconds": maybe(number(0)),
        "seed": maybe(whole()),
        "reason": text(4000),
        "atoms": whole(0, LARGE),
        "tol": maybe(number(0)),
        "run": table({}, {"version": text(80), "date": text(40)}),
    },
)


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The payload of a certificate that is complete, unchanged since it was saved, and of the right form; else an InputError."""
    where = Path(path)
    try:
        certificate = exact.load(where)
    except ValueError as error:
        why = str(error).removeprefix(f"{path}: ").split(";")[0]
        raise InputError(
            f"{path} is no certificate or cannot be read ({why}); give what the commands of widemargin wrote"
        ) from None
    form = certificate.get("format") if isinstance(certificate, dict) else None
    if not str(form).startswith("widemargin-certificate"):
        raise InputError(f"{path} is no certificate; give a file that Certificate.save or --save wrote")
    if form != FORMAT:
        raise InputError(f"{path} is of the form {str(form)[:40]}, and this version reads {FORMAT}")
    wrong = misfit(certificate)
    if not wrong and certificate.get("digest") != exact.digest(certificate):
        wrong = "its digest is not that of its content"
    if wrong:
        raise InputError(f"{path}: the certificate is damaged or was changed ({wrong}); save it again")
    return certificate


def says_certificate(path: str | os.PathLike[str]) -> bool | None:
    """Whether JSON calls itself a certificate; None where it cannot be read."""
    try:
        value = exact.load(Path(path))
    except ValueError:
        return None
    return isinstance(value, dict) and str(value.get("format", "")).startswith("widemargin-certificate")


def misfit(certificate: Mapping[str, Any]) -> str:
    """What is wrong with the form of a payload; empty where nothing is."""
    try:
        FRAME(certificate, "")
        _fits(certificate)
    except Misfit as error:
        return str(error)
    except InputError as error:  # of an activation
        return str(error).split(";")[0]
    except RecursionError:
        return "lists within lists, too deep to be read"
    return ""


def _fits(certificate: Mapping[str, Any]) -> None:
    """What depends on the kind."""
    kind, n, extra = certificate["kind"], certificate["n"], certificate["extra"]
    need(kind in kinds.KINDS, "kind", f"is {show(kind)}, which this version does not know")
    need(certificate["convention"] in kinds.KINDS[kind].conventions, "convention", f"is none of kind {kind}")
    as_space(certificate["activation"])
    D = certificate["d"] + certificate["bias"]
    count, least = {"classes": ("classes", 2), "several values": ("targets", 1)}.get(kinds.KINDS[kind].targets, ("", 0))
    K = extra.get(count)  # outputs
    if K is not None:
        whole(least, LARGE)(K, f"extra.{count}")
    _dual(certificate["dual"], n, K, bool(count))
    columns = {"columns": certificate["data"].get("columns"), **certificate["data"].get("standardized", {})}
    for name, values in columns.items():
        need(
            values is None or len(values) == certificate["d"],
            f"data.{name}",
            f"does not have {certificate['d']} entries",
        )
    if certificate["primal"] is not None:
        mass = array_of(certificate["primal"]["mass"], (None,), "primal.mass")
        if len(mass):
            array_of(certificate["primal"]["theta"], (len(mass), D), "primal.theta")
    for name, form in _extra(kind, n, certificate["d"], D, K).items():
        if name in extra:
            form(extra[name], f"extra.{name}")
    for name in _needed(certificate):
        need(name in extra, f"extra.{name}", "is missing")
    for first, other in PAIRS.get(kind, ()):
        if first in extra and other in extra:
            need(len(extra[first]) == len(extra[other]), f"extra.{other}", f"is not as long as extra.{first}")
    if kind == "bn":
        _bn(extra, certificate["d"])
    if kinds.quantity(certificate["convention"]) == "objective":
        _objective(certificate)


def _dual(dual: Any, n: int, K: int | None, several: bool) -> None:
    """A weight for each point (of several classes K); those of a relation may be large integers."""
    need(len(dual) in (0, n), "dual", f"has {len(dual)} entries, not {n}")
    if several and dual and isinstance(dual[0], list):
        array_of(dual, (n, K), "dual")
    elif any(type(w) is int and abs(w) > 2**53 for w in dual):
        for k, w in enumerate(dual):
            fits = type(w) is int or (isinstance(w, float) and math.isfinite(w))
            need(fits and abs(w) < 10**400, f"dual[{k}]", "is no number")
    else:
        array_of(dual, (len(dual),), "dual")


# Lists of `extra` with an entry for each neuron both.
PAIRS = {
    "rf": [("directions", "a")],
    "f1-multiclass": [("theta", "outer")],
    "f1-multiclass-optimum": [("theta", "outer")],
    "f1-multitarget-optimum": [("theta", "outer")],
    "collapse": [("beta", "signs")],
    "bn": [("directions", "a")],
}


def _extra(kind: str, n: int, d: int, D: int, K: int | None) -> dict[str, Form]:
    """The forms of what may stand in `extra`."""
    rows, each, some = numbers(None, D), numbers(n), numbers(None)
    real = number()
    known: dict[str, Form] = {
        "kernel": text(40), "gram": numbers(n, n), "alpha": each, "classes": whole(2, LARGE), "targets": whole(1, LARGE),
    }  # fmt: skip
    if kinds.KINDS[kind].room == "optima":
        losses = {"f1-multiclass-optimum": ("cross-entropy",), "f1-multitarget-optimum": ("squared",)}
        known |= {
            "loss": word(*losses.get(kind, LOSSES[:-1])),
            "weight_decay": number(5e-324), "output_bias": word(None, "free", "decayed"), "weights": maybe(each),
            "scale": number(0), "trained": maybe(table({
                "objective": number(0), "loss": number(), "balanced": number(0), "width": whole(1, LARGE)
            })),
            "offset": real if K is None else numbers(K), "theta": rows, "outer": numbers(None, K),
        }  # fmt: skip
        return known
    return known | {
        "linear": {"u": numbers(D), "norm": word(*kinds.VECTOR_NORMS)},
        "tangent": {"jacobian": numbers(n, None), "u": some},
        "linear-multiclass": {"U": numbers(K, D), "norm": word(*kinds.MATRIX_NORMS)},
        "frozen": {"directions": rows},
        "rf": {"directions": rows, "a": some},
        "f1-multiclass": {"theta": rows, "outer": numbers(None, K), "gamma_star": numbers(2)},
        "collapse": {
            "strict": truth, "beta": rows, "signs": some, "gamma_nc": real, "eps": real, "r": whole(0, LARGE), "gap": real,
        },
        "ntk": {
            "part": word("total", "outer", "inner"), "transport": word("sup", "l2"), "samples": whole(1, LARGE),
            "confidence": number(0, 1), "bins": whole(1, 64), "seed": whole(0, 2**128),
        },
        "projected": {"rank": whole(1, LARGE), "frame": rows, "relaxation": maybe(real)},
        "bn": {
            "part": word("a", "c", "sum"), "eps": number(0), "displacement": number(0), "width": whole(1, 10**7),
            "seed": whole(0, 2**128), "trial": whole(0, 2**128), "eps_N": maybe(real), "gamma_a": BOUND, "gamma_c": BOUND,
            "weights_a": some, "weights_c": some, "dual_c": each, "directions": numbers(None, d), "a": some,
            "move": maybe(either(word("omitted"), numbers(None, d))),
        },
    }.get(kind, {})  # type: ignore[operator]  # fmt: skip


def _needed(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """What a function, a page or a picture takes for granted."""
    kind, extra = certificate["kind"], certificate["extra"]
    if kind == "bn":
        drawn = () if "directions" in extra else ("seed", "trial")
        return ("part", "eps", "width", *drawn, *(("a",) if "directions" in extra else ()))
    if kinds.KINDS[kind].room == "optima":
        network = ("theta", "outer", "offset")
        more = {
            "f2-optimum": ("alpha",),
            "f1-multiclass-optimum": (*network, "classes"),
            "f1-multitarget-optimum": (*network, "targets"),
        }
        return ("loss", "weight_decay", *more.get(kind, ()))
    if not certificate["lower"] > 0:
        return ("part", "transport") if kind == "ntk" else ()
    return {
        "linear": ("u",), "linear-multiclass": ("U",), "rf": ("directions", "a"), "f1-multiclass": ("theta", "outer"),
        "collapse": ("beta", "signs"), "f2": ("alpha",),
        "ntk": ("part", "transport") + ("alpha",) * (certificate["bound"] != "confidence"),
    }.get(kind, ())  # fmt: skip


def _bn(extra: Mapping[str, Any], d: int) -> None:
    width = extra["width"]
    for name in ("directions", "a", "weights_a", "weights_c"):
        if name in extra:
            need(len(extra[name]) == width, f"extra.{name}", f"does not have an entry for each of {width} neurons")
    if isinstance(extra.get("move"), list):
        need(len(extra["move"]) == width, "extra.move", f"does not have a row for each of {width} neurons")


def _objective(certificate: Mapping[str, Any]) -> None:
    extra = certificate["extra"]
    need(0 <= certificate["lower"] <= certificate["upper"], "lower", "and upper are no bounds of an objective")
    weights = extra.get("weights")
    need(weights is None or (min(weights) >= 0 and sum(weights) > 0), "extra.weights", "are no weights of points")
    if certificate["kind"] == "f1-optimum":
        need(certificate["primal"] is not None, "primal", "is missing")
    trained = extra.get("trained")
    if trained is not None:
        slack = 1e-9 * trained["objective"]
        fits = certificate["lower"] - slack <= trained["balanced"] <= trained["objective"] + slack
        need(fits, "extra.trained", "is below the proved bound, or better before its layers are balanced")
