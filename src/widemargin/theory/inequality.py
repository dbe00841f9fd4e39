"""What a check gives: the two sides of an inequality along a run, where its hypotheses hold, and the smallest slack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .track import Track

ROUNDING = 1e-9  # relative to the sizes of both sides


@dataclass(frozen=True)
class Inequality:
    """left <= right at every record and trial where `applies`.

    For a quantity that must not fall, left is its running maximum and right the quantity itself. For an identity, left is
    the absolute difference and right the accuracy it is known to. `allowance` is what the discretisation of the run may
    cost (steps of finite size, integrals from finitely many records), an absolute number per entry; it is stated, never
    hidden: `slack` is right - left without it.
    """

    id: str
    statement: str
    reference: str
    t: np.ndarray  # (T,)
    left: np.ndarray  # (T, B)
    right: np.ndarray  # (T, B)
    applies: np.ndarray  # (T, B) bool
    allowance: np.ndarray | float = 0.0
    note: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def slack(self) -> np.ndarray:
        """right - left (T, B), NaN where the hypotheses do not hold."""
        return np.where(self.applies, self.right - self.left, np.nan)

    @property
    def checked(self) -> int:
        """Number of entries at which the hypotheses hold and both sides are numbers."""
        return int(np.isfinite(self.slack).sum())

    @property
    def holds(self) -> bool | None:
        """None where nothing was checked."""
        if not self.checked:
            return None
        room = self.allowance + ROUNDING * (np.abs(self.left) + np.abs(self.right))
        return bool((~np.isfinite(self.slack) | (self.slack >= -room)).all())

    @property
    def violated(self) -> bool:
        """Whether an inequality that is proved fails; forms as printed in a paper, with an error in them, are not proved."""
        return self.holds is False and "printed" not in self.id

    @property
    def smallest(self) -> dict[str, float] | None:
        """The smallest slack with its time and trial."""
        if not self.checked:
            return None
        k, b = np.unravel_index(np.nanargmin(np.where(np.isfinite(self.slack), self.slack, np.nan)), self.slack.shape)
        return {
            "slack": float(self.slack[k, b]),
            "left": float(self.left[k, b]),
            "right": float(self.right[k, b]),
            "allowance": float(np.broadcast_to(self.allowance, self.slack.shape)[k, b]),
            "t": float(self.t[k]),
            "trial": int(b),
        }

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "statement": self.statement,
            "reference": self.reference,
            "holds": {True: "yes", False: "no", None: "not checked"}[self.holds],
            "checked": self.checked,
            "smallest": self.smallest,
            "note": self.note,
            "numbers": dict(self.numbers),
        }

    def __str__(self) -> str:
        if self.smallest is None:
            return f"{self.id}: {self.statement}: not checked{' (' + self.note + ')' if self.note else ''}"
        least = self.smallest
        word = "holds" if self.holds else "VIOLATED"
        return (
            f"{self.id}: {self.statement}: {word} at {self.checked} records, smallest slack {least['slack']:.3g}"
            f" at t = {least['t']:.6g} (trial {least['trial']})"
        )


@dataclass(frozen=True)
class Check:
    """An entry of the registry: what is checked, and the function that does it on a Track (None: it says nothing there)."""

    id: str
    name: str
    says: str
    reference: str
    function: Callable[[Track], Inequality | list[Inequality] | None]
    claims: tuple[str, ...]


CHECKS: dict[str, Check] = {}


def check(*claims: str, says: str, reference: str) -> Callable[[Any], Any]:
    """Register a check under the first of its ids."""

    def register(function: Any) -> Any:
        if claims[0] in CHECKS:
            raise ValueError(f"{claims[0]} is registered twice")
        CHECKS[claims[0]] = Check(claims[0], function.__name__, says, reference, function, claims)
        return function

    return register
