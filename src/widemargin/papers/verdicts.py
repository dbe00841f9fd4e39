"""A verdict on one claim of a paper: what was measured, and whether the claim holds; and how verdicts are counted and written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from widemargin.errors import InputError, show
from widemargin.json_values import plain_json

UNDECIDED = "undecided"  # could have come out true or false, and the numbers do not say which


NOT_INFORMATIVE = "not informative"  # could not have come out false, or is not a test of what the paper says


Holds = bool | str  # one of HOLDS


HOLDS: tuple[Holds, ...] = (True, False, UNDECIDED, NOT_INFORMATIVE)


@dataclass(frozen=True)
class Verdict:
    """One claim: what was measured, how sure that is, what the paper says, and whether it holds.

    `chosen_after` says which setting was chosen after a look at what, "" where none was. Such a reproduction is run on another
    seed too, and `again` has what this verdict says there.

    `claim` is the sentence, `measured` a number or words with its `uncertainty`, `paper` what the paper says. `holds` is True,
    False, UNDECIDED or NOT_INFORMATIVE, and `reason` says why where it is not True.

    >>> from widemargin.papers import UNDECIDED, Verdict
    >>> one = Verdict("wider is better", 0.02, "yes", UNDECIDED, uncertainty=0.03, reason="the error is larger")
    >>> one.to_dict()["holds"]
    'undecided'
    """

    claim: str
    measured: float | str
    paper: str
    holds: Holds
    uncertainty: float | str | None = None
    reason: str = ""  # why it is not decided or not informative, or why it fails
    chosen_after: str = ""
    again: Mapping[str, Any] | None = None  # seed, measured, uncertainty, holds

    def __post_init__(self) -> None:
        if not (isinstance(self.holds, bool) or (isinstance(self.holds, str) and self.holds in HOLDS)):
            raise InputError(f"a verdict is true, false, undecided or not informative, not {show(self.holds)}")

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {name: plain(value) for name, value in asdict(self).items()}


def count(verdicts: Iterable[Mapping[str, Any] | Verdict]) -> dict[str, int]:
    """How many of the `verdicts`, objects or dictionaries, are true, false, undecided and not informative.

    >>> from widemargin.papers import UNDECIDED, Verdict, count
    >>> count([Verdict("a", 1, "1", True), Verdict("b", 1, "2", False), {"holds": UNDECIDED}])
    {'true': 1, 'false': 1, 'undecided': 1, 'not informative': 0}
    """
    if not isinstance(verdicts, Iterable) or not getattr(verdicts, "ndim", 1):
        raise InputError(f"verdicts must be a list of verdicts, not {show(verdicts)}")
    verdicts = list(verdicts)
    for one in verdicts:
        if not (isinstance(one, Verdict) or (isinstance(one, Mapping) and "holds" in one)):
            raise InputError(
                f"a verdict is one of papers.Verdict, or a dictionary that says whether it holds, not {show(one)}"
            )
    answers = [verdict.holds if isinstance(verdict, Verdict) else verdict["holds"] for verdict in verdicts]
    return {str(word).lower(): sum(answer == word for answer in answers) for word in HOLDS}


def table(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """Verdicts as a table in markdown."""
    lines = ["| claim | measured | paper | holds |", "|---|---|---|---|"]
    for verdict in verdicts:
        holds = word(verdict["holds"]) + (f": {verdict['reason']}" if verdict["reason"] else "")
        if verdict.get("chosen_after"):
            holds += (
                f" (chosen after: {verdict['chosen_after']}{'; ' + other(verdict) if verdict.get('again') else ''})"
            )
        lines.append(f"| {verdict['claim']} | {measured(verdict)} | {verdict['paper']} | {holds} |")
    return "\n".join(lines) + "\n"


def word(holds: Holds) -> str:
    return holds if isinstance(holds, str) else "yes" if holds else "no"


def measured(verdict: Mapping[str, Any]) -> str:
    """What a verdict (as a dictionary) measured, with its uncertainty, in words."""
    shown = verdict["measured"] if isinstance(verdict["measured"], str) else f"{verdict['measured']:.4g}"
    more = verdict.get("uncertainty")
    if more is None:
        return shown
    return shown + (f" ({more})" if isinstance(more, str) else f" +- {more:.2g}")


def other(verdict: Mapping[str, Any]) -> str:
    """What a verdict says at the seed that was not looked at."""
    again = verdict["again"]
    return f"at seed {again['seed']}: {measured(again)}, {word(again['holds'])}"


def plain(value: Any) -> Any:
    """As JSON has it; numbers that are not finite, and everything else, become text."""
    return plain_json(value, not_finite=str, unknown=str)


def either(yes: Any, no: Any) -> Holds:
    """True where `yes`, False where `no`, undecided between: both ends of an interval against what is claimed."""
    return True if yes else False if no else UNDECIDED


def own(fine: Any) -> Holds:
    """Of what the paper does not say, or of what only an error of ours can break: false where it breaks, else not informative."""
    return NOT_INFORMATIVE if fine else False
