"""What the theorems guarantee, with their assumptions, and whether a run obeys the papers' inequalities."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from widemargin import theory
from widemargin.types import Dataset, InputError, Trajectory

from .formulas import typeset
from .section import Digits, Html, Section, badge, escape, number


def show(
    section: Section, data: Dataset, run: Trajectory | str | Path | None, trial: int = 0, time_limit: float = 60.0
) -> None:
    """Every guarantee that could be evaluated, the useful ones first."""
    section.heading("Guarantees")
    with np.errstate(all="ignore"):
        guarantees = theory.guarantees(data, run, trial=trial, time_limit=time_limit)
    best = guarantees.best
    if best is None:
        section.paragraph(
            "No bound on the test error says anything here: all are at least 1, up to a constant, or an assumption fails."
        )
    else:
        about = f" of the {best.about}" if best.about else ""
        section.paragraph(
            f"Best bound on the test error{about}: {float(best.value):.4g} ({best.id}, {best.reference})."
        )
    groups: dict[str, list[Any]] = {"shown": [], "vacuous": [], "fails": []}
    for guarantee in sorted(guarantees, key=lambda g: g.applies is None):  # stable: else the papers' order
        empty = guarantee.explicit and guarantee.vacuous
        groups["fails" if guarantee.applies is False else "vacuous" if empty else "shown"].append(guarantee)
    probably = f"With probability at least 1 - {guarantees.facts.delta:g}, or a multiple of that as each says."
    if groups["shown"]:
        _table(
            section,
            "Guarantees and their assumptions",
            groups["shown"],
            "Green: every assumption was checked and holds. Grey: some could not be checked. A number up to a constant says how "
            f"a bound grows; of the constant the paper says nothing. {probably}",
            folded=False,
        )
    if groups["vacuous"]:
        what = "Vacuous here: bounds no better than what is trivial"
        _table(section, what, groups["vacuous"], f"None of these numbers says anything about this data. {probably}")
    if groups["fails"]:
        what = "What does not apply: an assumption fails"
        _table(section, what, groups["fails"], "Red: an assumption fails, so the number guarantees nothing here.")


def _table(section: Section, title: str, guarantees: Sequence[Any], caption: str, folded: bool = True) -> None:
    rows = []
    for guarantee in guarantees:
        marks = ["vacuous"] if guarantee.explicit and guarantee.vacuous else []
        marks += ["as printed"] if guarantee.convention == "printed" else []
        unit = f" ({guarantee.unit})" if guarantee.unit else ""
        word = {True: "applies", False: "does not apply", None: "not all checked"}[guarantee.applies]
        about = f" (about the {guarantee.about})" if guarantee.about else ""
        said = Html(f"{typeset(guarantee.statement)}{escape(about)}{_assumptions(guarantee.assumptions)}")
        shown = guarantee.shown + (f" [{', '.join(marks)}]" if marks else "")
        rows.append(
            [badge(guarantee.applies, word), guarantee.id, guarantee.quantity + unit, shown, said, guarantee.reference]
        )
    names = ["", "id", "quantity", "value", "statement and assumptions", "reference"]
    section.table(title, names, rows, caption, folded=folded)


def offer(section: Section, data: Dataset | None, time_limit: float) -> None:
    """The guarantees of the data of a certificate, where it is here and has labels."""
    if data is None or data.y.ndim == 2 or not set(np.unique(data.y)) <= {-1.0, 1.0}:
        section.paragraph("No guarantees were evaluated, since the data is not here or has no labels -1, +1.", "quiet")
    else:
        show(section, data, None, 0, time_limit)


def _assumptions(given: Sequence[Any]) -> str:
    lines = []
    for assumption in given:
        detail = f" ({assumption.detail})" if assumption.detail else ""
        lines.append(f"<li>{badge(assumption.holds)} {typeset(assumption.text + detail)}</li>")
    if not lines:
        return ""
    held, failed = (sum(one.holds is word for one in given) for word in (True, False))
    said = [f"{held} hold{'s' * (held == 1)}"] * bool(held) + [f"{failed} fail{'s' * (failed == 1)}"] * bool(failed)
    rest = len(lines) - held - failed
    said += [f"{rest} not checked"] * bool(rest)
    count = f"{len(lines)} assumption{'s' * (len(lines) != 1)}: {', '.join(said)}"
    return f'<details><summary>{count}</summary><ul class="assumptions">{"".join(lines)}</ul></details>'


def show_checks(section: Section, run: Trajectory | str | Path, data: Sequence[Dataset]) -> None:
    """Every inequality that the records of a run allow."""
    section.heading("Inequalities along the run")
    try:
        checks = theory.check(run, list(data))
    except InputError as error:
        section.paragraph(f"The inequalities were not checked: {error}.", "quiet")
        return
    broken = [check.id for check in checks if check.violated]
    unsure = sum(check.word == "undecided" for check in checks)
    said = f"Violated: {', '.join(broken)}." if broken else "None that is proved is violated."
    said += f" Undecided: {unsure}." if unsure else ""
    held = sum(check.word == "yes" for check in checks)
    said = f"{held} of {len(checks)} inequalities hold at every record that was checked. {said}"
    section.paragraph(said)
    for words, title, folded in (
        (("no", "undecided"), "Inequalities that do not hold or are undecided", False),
        (("yes",), "Inequalities that hold", True),
        (("not checked",), "Inequalities that were not checked", True),
    ):
        some = [check for check in checks if check.word in words]
        rows = [_check(check) for check in sorted(some, key=lambda check: words.index(check.word))]
        if rows:
            names = ["", "id", "statement", "records", "undecided", "smallest slack", "allowance", "at t", "note"]
            section.table(title, names, rows, SLACK, folded=folded)


SLACK = (
    "Slack is right side minus left side, at the records where the hypotheses hold; the allowance is what finite steps and "
    "integrals from records may cost. A record is undecided where that exceeds half of what is compared. Forms with a printed "
    "error may fail."
)


def _check(check: Any) -> list[Any]:
    least = check.smallest or {}
    word = {"yes": "holds", "no": "violated" if check.violated else "does not hold"}.get(check.word, check.word)
    sides = [Digits(number(least[k], 3)) if least else None for k in ("slack", "allowance", "t")]
    counts, note = (check.checked, check.undecided), check.note or "-"
    return [badge(check.holds, word), check.id, typeset(check.statement), *counts, *sides, note]
