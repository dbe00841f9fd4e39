"""The names of the training rules on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from widemargin.errors import did_you_mean, show
from widemargin.types import InputError

from . import rules
from .contract import Rule
from .events import parse_until
from .fields import check_fields, only_plain


def rule_kinds() -> dict[str, type[Rule]]:
    """The classes of all training rules by their names on the command line.

    >>> from widemargin import flows
    >>> flows.rule_kinds()["gd"] is flows.GD
    True
    """
    return {
        "gf": rules.GradientFlow,
        "gd": rules.GD,
        "ngd": rules.NormalizedGD,
        "sgd": rules.SGD,
        "cb": rules.SmoothMarginAscent,
        "prop6": rules.NeuronNormAscent,
        "prop7": rules.OutputLayerAscent,
        "mirror": rules.Mirror,
        "wgf": rules.WassersteinFlow,
        "pwgf": rules.PerturbedWassersteinFlow,
        "weakreg": rules.WeaklyRegularized,
        "two-phase": rules.TwoPhase,
        "adam": rules.Adam,
        "adamw": rules.AdamW,
        "steepest": rules.Steepest,
        "sign": rules.SignDescent,
        "coordinate": rules.CoordinateDescent,
        "spectral": rules.Spectral,
    }


def rule_kind(name: str) -> type[Rule]:
    kinds = rule_kinds()
    if not isinstance(name, str) or name not in kinds:
        raise InputError(f"unknown algorithm {show(name)}{did_you_mean(name, kinds)}; choose among {', '.join(kinds)}")
    return kinds[name]


def rate_field(kind: type[Rule]) -> str | None:
    """What a rule calls its learning rate, if it has one."""
    names = [field.name for field in fields(kind)]
    return next((name for name in ("lr", "eta") if name in names), None)


def make_rule(name: str, **options: Any) -> Rule:
    """The rule of a `name` of the command line. `options` are fields of its class; those that are None count as not given.

    Refusals are one sentence.

    >>> from widemargin.flows import make_rule
    >>> make_rule("ngd", lr=0.25, shrink=None)
    NormalizedGD(lr=0.25, grow=1.148698354997035, shrink=0.5, decrease=0.1)
    """
    kind = rule_kind(name)
    known = [field.name for field in fields(kind)]
    given = {key: value for key, value in options.items() if value is not None}
    for key in given:
        if key not in known:
            raise InputError(f"the algorithm {name} has no option {key!r}; it knows {', '.join(known)}")
    check_fields(kind, given, f"the algorithm {name}")
    return kind(**given)


def rule_from_words(name: str, given: Mapping[str, Any]) -> Rule:
    """The rule of a name, with fields as a command line or a file gives them: `until` is the text of an event."""
    kind = rule_kind(name)
    events = {
        field.name: parse_until(given[field.name])
        for field in fields(kind)
        if str(field.type).startswith("Event") and isinstance(given.get(field.name), str)
    }
    plain = {key: value for key, value in given.items() if key not in events}
    return kind(**only_plain(kind, plain, f"the algorithm {name}"), **events)


def check_kept(rule: Mapping[str, Any]) -> None:
    """An InputError where a run keeps a rule of ours with a field missing, or with a value that the rule does not take."""
    name = rule["class"]
    kind = next((kind for kind in rule_kinds().values() if kind.__name__ == name), None)
    if kind is None:  # the user's own, with fields of its own
        return
    lost = [field.name for field in fields(kind) if field.name not in rule]
    if lost:
        raise InputError(
            f"the run is damaged: its rule {name} has no {lost[0]}; train it again (a rule of your own needs another name)"
        )
    objects = ("Event", "Sampler")  # kept by their names only
    plain = {field.name: rule[field.name] for field in fields(kind) if not str(field.type).startswith(objects)}
    try:
        check_fields(kind, plain, name)
        kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in plain.items()})
    except InputError as error:
        raise InputError(f"the run is damaged: {error}; train it again") from None
