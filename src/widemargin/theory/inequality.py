"""What a check gives: the two sides of an inequality along a run, where its hypotheses hold, and the smallest slack."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from widemargin.errors import NotRecorded, brief

from .arguments import said

if TYPE_CHECKING:
    from .track import Track

SMALLEST = 1e-300  # below it numbers lose their digits
ROUNDING = 1e-9  # relative to the sizes of both sides
SHARE = 0.5  # of the size of what is compared: what is known less well than that decides nothing


@dataclass(frozen=True)
class Inequality:
    """left <= right at every record and trial where `applies`.

    For a quantity that must not fall, left is its running maximum and right the quantity itself. For an identity, left is
    the absolute difference and right the accuracy it is known to. `allowance` is what the discretisation of the run may
    cost (steps of finite size, integrals from finitely many records), an absolute number per entry; it is stated, never
    hidden: `slack` is right - left without it. `rounding` is what floating point numbers may cost beside ROUNDING of both
    sides: their precision times the size of the terms that were added to get the sides.

    An entry whose allowance and rounding exceed SHARE of `scale` is undecided, whatever its slack: a failure as large as half of
    what is compared would not be told from the cost of a step there. `scale` is the larger of |left| and |right| unless it is
    given. For an identity it is the size of what is equal, and the accuracy counts as an allowance; one without a scale is known
    up to rounding.

    `id`, `statement` and `reference` say what it is; t (T,) are the times of the records, left, right and applies are (T, B).
    `note` and `numbers` say more. `estimated`: the allowance is no bound, and an entry that exceeds it is undecided too. `proved`
    is False for forms with an error of a paper in them, and for what a paper only pictures.

    >>> import numpy as np
    >>> from widemargin.theory import Inequality
    >>> t, everywhere = np.array([0.0, 1.0]), np.ones((2, 1), bool)  # T = 2 records of B = 1 trial
    >>> one = Inequality("X-1", "f <= 2", "here", t, np.array([[1.0], [1.5]]), np.full((2, 1), 2.0), everywhere)
    >>> one.word, one.checked, one.smallest["slack"], one.smallest["t"]
    ('yes', 2, 0.5, 1.0)
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
    rounding: np.ndarray | float = 0.0
    scale: np.ndarray | float | None = None
    identity: bool = False
    estimated: bool = False  # the allowance is no bound: an entry that exceeds it is undecided too
    proved: bool = True  # False for forms with an error of a paper in them, and for what a paper only pictures

    __repr__ = brief

    @property
    def slack(self) -> np.ndarray:
        """right - left (T, B), NaN where the hypotheses do not hold."""
        return np.where(self.applies, self.right - self.left, np.nan)

    @property
    def _decides(self) -> np.ndarray:
        """Where the hypotheses hold, both sides are numbers, and the allowance is small enough to tell (T, B)."""
        known = np.isfinite(self.slack)
        if self.estimated:
            known = known & ~self._below(self.allowance)
        if self.scale is None and self.identity:
            return known
        scale = np.maximum(np.abs(self.left), np.abs(self.right)) if self.scale is None else self.scale
        return known & (self.allowance + self.rounding + (self.right if self.identity else 0.0) <= SHARE * scale)

    def _below(self, room: np.ndarray | float) -> np.ndarray:
        """Where left exceeds right by more than rounding and `room` (T, B)."""
        return self.slack < -(room + self.rounding + ROUNDING * (np.abs(self.left) + np.abs(self.right)) + SMALLEST)

    @property
    def _fails(self) -> np.ndarray:
        return self._decides & self._below(self.allowance)

    @property
    def checked(self) -> int:
        """Number of entries at which the hypotheses hold, both sides are numbers and the answer is known."""
        return int(self._decides.sum())

    @property
    def undecided(self) -> int:
        """Number of entries at which the hypotheses hold and the allowance is too large to tell."""
        return int((np.isfinite(self.slack) & ~self._decides).sum())

    @property
    def holds(self) -> bool | None:
        """False if it fails at an entry; None where nothing was decided, or where left exceeds right at an entry that is
        undecided (`word` says which of the two); otherwise True."""
        if self._fails.any():
            return False
        return None if not self.checked or (self._below(0.0) & ~self._decides).any() else True

    @property
    def word(self) -> str:
        """yes, no, undecided or not checked."""
        if self.holds is None:
            return "undecided" if self.undecided else "not checked"
        return "yes" if self.holds else "no"

    @property
    def violated(self) -> bool:
        """Whether an inequality that is proved fails."""
        return self.holds is False and self.proved

    @property
    def smallest(self) -> dict[str, float] | None:
        """The smallest slack, of the entries that fail if there are any, with its allowance, time and trial."""
        slack = np.where(self._fails, self.slack, np.nan) if self._fails.any() else self.slack
        if not np.isfinite(slack).any():
            return None
        k, b = np.unravel_index(np.nanargmin(np.where(np.isfinite(slack), slack, np.nan)), slack.shape)
        return {
            "slack": float(self.slack[k, b]),
            "left": float(self.left[k, b]),
            "right": float(self.right[k, b]),
            "allowance": float(np.broadcast_to(self.allowance, self.slack.shape)[k, b]),
            "t": float(self.t[k]),
            "trial": int(b),
        }

    def to_dict(self) -> dict[str, Any]:
        """As JSON, without the sides."""
        named = (
            "id",
            "statement",
            "reference",
            "holds",
            "proved",
            "checked",
            "undecided",
            "smallest",
            "note",
            "numbers",
        )
        return {name: getattr(self, name) for name in named} | {"holds": self.word, "numbers": dict(self.numbers)}

    def __str__(self) -> str:
        least, more = self.smallest, f" ({self.note})" if self.note else ""
        if least is None:
            return f"{self.id}: {self.statement}: not checked{more}"
        said = {"yes": "holds", "no": "VIOLATED" if self.proved else "does not hold"}.get(self.word, self.word)
        where = f" at {self.checked} records" if self.holds is not None else ""
        unsure = f", undecided at {self.undecided}" if self.undecided and where else ""
        return (
            f"{self.id}: {self.statement}: {said}{where}{unsure}, smallest slack {least['slack']:.3g}"
            f" (allowance {least['allowance']:.3g}) at t = {least['t']:.6g} (trial {least['trial']})"
        )


# ---------------------------------------------------------------- from the records of a run


def worst(left: Any, right: Any, allowance: Any = 0.0, scale: Any = None) -> dict[str, np.ndarray]:
    """Of inequalities (T, B, ...) the one nearest to fail at each record, as what `entry` takes (T, B); NaN counts last."""
    given = {"left": left, "right": right, "allowance": allowance} | ({} if scale is None else {"scale": scale})
    sides = np.broadcast_arrays(*(np.asarray(side, float) for side in given.values()))
    flat = [side.reshape(*side.shape[:2], -1) for side in sides]
    room = flat[1] + flat[2] - flat[0]
    at = np.where(np.isfinite(room), room, np.inf).argmin(2)[:, :, None]
    return {name: np.take_along_axis(side, at, 2)[:, :, 0] for name, side in zip(given, flat)}


def entry(
    track: Track,
    id: str,
    statement: str,
    reference: str,
    left: Any,
    right: Any,
    applies: Any = True,
    allowance: Any = 0.0,
    scale: Any = None,
    terms: Any = 0.0,
    **more: Any,
) -> Inequality:
    """An Inequality at every record of the track, all sides broadcast to (T, B); they are 0 where it does not apply.

    Sides with more axes, over neurons or points, are many inequalities: the one nearest to fail at each record stands for them.
    `terms` is the size of what was added to get the sides, where that is more than the sides: 1 for logarithms, whose error is
    the relative one of their argument, and the summands of sums that may cancel. Rounding is counted with it.
    """
    if max(np.ndim(left), np.ndim(right)) > 2:
        nearest = worst(left, right, allowance, scale)
        left, right, allowance, scale = (nearest.get(name) for name in ("left", "right", "allowance", "scale"))
    sides = [np.broadcast_to(np.asarray(side, float), track.shape) for side in (left, right, allowance)]
    where = np.broadcast_to(np.asarray(applies, bool), track.shape) & np.isfinite(sides).all(0)
    low, high, room = (np.where(where, side, 0.0) for side in sides)
    added = np.where(where, np.abs(np.nan_to_num(np.broadcast_to(terms, track.shape))), 0.0)
    rounding = precision(track) * (added + np.abs(low) + np.abs(high))
    if scale is not None:
        scale = np.where(where, np.broadcast_to(scale, track.shape), 0.0)
    return Inequality(
        id, statement, reference, track.t, low, high, where, allowance=room, rounding=rounding, scale=scale, **more
    )


def eps(track: Track) -> float:
    """Of the floating point numbers of the run."""
    return float(np.finfo(track.run.config.get("dtype", "float64")).eps)


def precision(track: Track) -> float:
    """Relative accuracy of sums over neurons and points in the floating point numbers of the run."""
    return 1e4 * eps(track)


# ---------------------------------------------------------------- checks

Part = dict[str, Any]  # what `entry` takes beside the track


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


def part(statement: str, left: Any, right: Any, applies: Any = True, **more: Any) -> Part:
    """One inequality of a check; `more` is what else `entry` takes, `id` and `reference` only where they are not the check's."""
    return {"statement": statement, "left": left, "right": right, "applies": applies, **more}


def check(
    *claims_and_reference: str, reads: Callable[[Track], Any] | None = None
) -> Callable[[Callable[..., Any]], Callable[[Track], Any]]:
    """Register a check: its ids, then where it stands in the paper. The first paragraph of its docstring is what it says.

    The decorated function is given what `reads` makes of the track (without it, the track itself) and what its other arguments
    name: records, or W, p and psi of the track. Where one of these is None, or a record that is asked for on the way was not
    made, the check does not apply. The function returns one `part`, or yields several (or inequalities that it made itself);
    nothing where it does not apply.
    """
    *claims, reference = claims_and_reference

    def register(function: Callable[..., Any]) -> Callable[[Track], Any]:
        if claims[0] in CHECKS:
            raise ValueError(f"{claims[0]} is registered twice")
        needs = [*inspect.signature(function).parameters][1:]

        def made(track: Track, said: Part | Inequality) -> Inequality:
            named = {"id": claims[0], "reference": reference}
            return said if isinstance(said, Inequality) else entry(track, **named | said)

        @functools.wraps(function)
        def checked(track: Track) -> Inequality | list[Inequality] | None:
            # Runs end at infinite norms and margins of 0; what is no number is not checked.
            with np.errstate(all="ignore"), contextlib.suppress(NotRecorded):
                view = track if reads is None else reads(track)
                given = [] if view is None else [track.known(name) for name in needs]
                if view is None or any(part is None for part in given):
                    return None
                parts = function(view, *given)
                if isinstance(parts, Iterator):
                    return [made(track, part) for part in parts] or None
                return None if parts is None else made(track, parts)
            return None

        CHECKS[claims[0]] = Check(claims[0], function.__name__, said(function)[0], reference, checked, tuple(claims))
        return checked

    return register
