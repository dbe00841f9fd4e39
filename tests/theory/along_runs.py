"""What the tests of checks along runs share: the parts of a check, what must hold, and runs whose records were changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from widemargin.theory import CHECKS, Inequality, Track

Results = Inequality | list[Inequality] | None
Change = Callable[[np.ndarray], np.ndarray | None]


def parts(found: Results) -> dict[str, Inequality]:
    assert found is not None
    return {each.id: each for each in (found if isinstance(found, list) else [found])}


def check_holds(found: Results, *ids: str) -> dict[str, Inequality]:
    every = parts(found)
    for id in ids:
        assert every[id].checked > 0, id
        assert every[id].holds is True, str(every[id])
    return every


def check_fails(found: Results, *ids: str) -> None:
    every = parts(found)
    for id in ids:
        assert every[id].holds is False, str(every[id])


def results(track: Track, id: str) -> list[Inequality]:
    found = CHECKS[id].function(track)
    return [] if found is None else found if isinstance(found, list) else [found]


def proved(track: Track, id: str) -> list[Inequality]:
    return [each for each in results(track, id) if "printed" not in each.id]


def check_proved(tracks: dict[str, Track], id: str) -> None:
    """What is proved fails on none of the runs, and is decided somewhere."""
    checked = 0
    for name, track in tracks.items():
        for each in proved(track, id):
            assert each.holds is not False, f"{name}: {each} {each.smallest}"
            assert np.isfinite(each.left).all() and np.isfinite(each.right).all()
            checked += each.checked
    assert checked > 0


def spoil(track: Track, **changes: Change) -> Track:
    """The same track with some records changed, by functions that return the new values or write into them."""
    records = dict(track.run.records)
    for name, change in changes.items():
        values = records[name].copy()
        new = change(values)
        records[name] = values if new is None else new
    return replace(track, run=replace(track.run, records=records))


def at(k: int | slice, change: float | Callable[[np.ndarray], np.ndarray]) -> Change:
    """Replaces record k, all trials, by a multiple or a function of it."""

    def apply(values: np.ndarray) -> None:
        values[k] = change(values[k]) if callable(change) else change * values[k]

    return apply


def bare(track: Track) -> Track:
    """The same track without the parameters."""
    kept = {name: values for name, values in track.run.records.items() if not name.startswith("W_")}
    return replace(track, run=replace(track.run, records=kept))
