"""What the theorems guarantee, with their assumptions, and whether a run obeys the papers' inequalities."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from widemargin import theory
from widemargin.types import Dataset, InputError, Trajectory

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
    rank = {True: 0, None: 1, False: 2}
    rows = []
    for guarantee in sorted(guarantees, key=lambda g: (rank[g.applies], g.vacuous)):  # stable: else the papers' order
        marks = ["vacuous"] if guarantee.explicit and guarantee.vacuous else []
        marks += ["as printed"] if guarantee.convention == "printed" else []
        unit = f" ({guarantee.unit})" if guarantee.unit else ""
        word = {True: "applies", False: "does not apply", None: "not all checked"}[guarantee.applies]
        about = f" (about the {guarantee.about})" if guarantee.about else ""
        said = Html(f"{escape(guarantee.statement)}{escape(about)}{_assumptions(guarantee.assumptions)}")
        shown = guarantee.shown + (f" [{', '.join(marks)}]" if marks else "")
        rows.append(
            [badge(guarantee.applies, word), guarantee.id, guarantee.quantity + unit, shown, said, guarantee.reference]
        )
    section.table(
        "Guarantees and their assumptions",
        ["", "id", "quantity", "value", "statement and assumptions", "reference"],
        rows,
        "Green: every assumption was checked and holds. Red: one fails, so the number guarantees nothing here. Grey: some could "
        "not be checked. A number up to a constant says how a bound grows; of the constant the paper says nothing. "
        f"With probability at least 1 - {guarantees.facts.delta:g}, or a multiple of that as each says.",
    )


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
        lines.append(f"<li>{badge(assumption.holds)} {escape(assumption.text + detail)}</li>")
    return f'<ul class="assumptions">{"".join(lines)}</ul>' if lines else ""


def show_checks(section: Section, run: Trajectory | str | Path, data: Sequence[Dataset]) -> None:
    """Every inequality that the records of a run allow."""
    section.heading("Inequalities along the run")
    try:
        checks = theory.check(run, list(data))
    except InputError as error:
        section.paragraph(f"The inequalities were not checked: {error}.", "quiet")
        return
    rank = {"no": 0, "undecided": 1, "yes": 2, "not checked": 3}
    rows = []
    for check in sorted(checks, key=lambda check: rank[check.word]):
        least = check.smallest or {}
        word = {"yes": "holds", "no": "violated" if check.violated else "does not hold"}.get(check.word, check.word)
        sides = [Digits(number(least[k], 3)) if least else None for k in ("slack", "allowance", "t")]
        counts, note = (check.checked, check.undecided), check.note or "-"
        rows.append([badge(check.holds, word), check.id, check.statement, *counts, *sides, note])
    broken = [check.id for check in checks if check.violated]
    unsure = sum(check.word == "undecided" for check in checks)
    said = f"Violated: {', '.join(broken)}." if broken else "None that is proved is violated."
    said += f" Undecided: {unsure}." if unsure else ""
    section.paragraph(said)
    section.table(
        "Inequalities",
        ["", "id", "statement", "records", "undecided", "smallest slack", "allowance", "at t", "note"],
        rows,
        "Slack is right side minus left side, at the records where the hypotheses hold; the allowance is what finite steps "
        "and integrals from records may cost. A record is undecided where that exceeds half of what is compared. Forms with a "
        "printed error may fail.",
    )
