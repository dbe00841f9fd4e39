"""Margins of wide networks for more points than one solve can have: some of them are solved for, all are judged.

Weights on some points prove a bound for all of them. The network of those is judged at all points, and the points where it does
worst join in for the next turn.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from widemargin.types import Certificate, Dataset

from .door import Door, Late, about, twins
from .rows import first_rows

# Operations between two looks at the clock, by the degree of the neurons, and numbers in memory, for each entry of X in a solve.
WORK, NUMBERS = {1: 4e3, 2: 8e4}, 60.0
FIRST, GROW = 0.25, 2.0  # share of the time left for a turn, and how many times as many points the next one may have
START, FEWEST = 500, 20  # points of the first turn, and the fewest of one that comes after a turn without a network
PATIENCE = 2  # turns without anything better

Judge = Callable[
    [Certificate, slice], np.ndarray
]  # at least what the network's margins are, rounding included, of a block


def in_turns(door: Door, most: int, solve: Callable[[Dataset, float | None], Certificate], judge: Judge) -> Certificate:
    """The certificate of all points from solves of at most `most` of them."""
    data, labels, n = door.data, door.data.y, door.data.n
    rows = first_rows(labels, min(START, most))
    twin = twins(door)
    if twin is not None:
        rows = np.union1d(rows, np.flatnonzero(twin[0]))
    best: Certificate | None = None  # with the best bound
    network: Certificate | None = None
    lower, stuck, turns, status = 0.0, 0, 0, "time-limit"
    while True:
        turns += 1
        left = door.limits.left()
        seconds = None if math.isinf(left) else max(FIRST * left, 0.0) if len(rows) < most else max(0.5 * left, 0.0)
        part = Dataset(data.X[rows], labels[rows], data.name, data.classes)
        cert = solve(part, None if seconds is None else max(seconds, 1e-3))
        better = best is None or cert.upper < best.upper * (1 - 1e-6)
        if best is None or cert.upper < best.upper or cert.status == "not-separable":
            best = dataclasses.replace(cert, dual=_spread(cert.dual, rows, n), proof=renamed(cert.proof, rows))
        if cert.status in ("not-separable", "interrupted"):
            status = cert.status
            break
        margins = _judged(door, cert, judge)
        if margins is None:
            break
        if (least := float(margins.min())) > lower:
            better |= least > lower * (1 + 1e-6)
            lower, network = least, cert
        stuck = 0 if better else stuck + 1
        if lower >= (1 - door.tol) * best.upper:
            status = "certified"
            break
        if door.limits.late():
            break
        if not cert.lower > 0:  # no network in its time: fewer points are easier
            if len(rows) <= FEWEST or stuck > PATIENCE:
                status = "stalled" if cert.status != "time-limit" else "time-limit"
                break
            order = np.argsort(-_weight(cert.dual), kind="stable")
            rows = _with_all(np.sort(rows[order[: len(rows) // 2]]), labels)
            continue
        below = np.setdiff1d(np.flatnonzero(margins < max(float(margins[rows].min()), 0.0)), rows)
        below = below[np.argsort(margins[below], kind="stable")]
        if (len(below) == 0 and cert.status != "time-limit") or stuck > PATIENCE:
            status = "stalled"
            break
        kept = rows[np.argsort(-_weight(cert.dual), kind="stable")]
        count = int(min(most, max(GROW * len(rows), START)))
        join = below[: max(count - len(kept), count // 3)]
        rows = _with_all(np.sort(np.append(kept[: count - len(join)], join)), labels)
    return _together(door, best, network, lower, status, turns)


def _with_all(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """`rows`, and a point of each label that has none among them."""
    missing = np.setdiff1d(labels, labels[rows])
    return np.union1d(rows, [np.flatnonzero(labels == label)[0] for label in missing]).astype(int)


def _weight(dual: np.ndarray) -> np.ndarray:
    q = np.asarray(dual, dtype=np.float64)
    return q if q.ndim == 1 else q.sum(axis=1)


def _judged(door: Door, cert: Certificate, judge: Judge) -> np.ndarray | None:
    if not cert.lower > 0:
        return np.zeros(door.data.n)
    margins, width = np.empty(door.data.n), max(cert.atoms, len(cert.extra.get("outer", ())), 1) * 2
    try:
        for block in door.limits.blocks(door.data.n, width + door.X.shape[1]):
            margins[block] = judge(cert, block)
    except Late:
        return None
    return margins


def _spread(dual: np.ndarray, rows: np.ndarray, n: int) -> np.ndarray:
    q = np.asarray(dual)
    out = np.zeros((n, *q.shape[1:]), dtype=q.dtype)
    out[rows] = q
    return out


def renamed(proof: Any, names: np.ndarray) -> dict[str, Any]:
    """A proof about some points as one about all: `names` are their places (docs/certificates.md has the fields)."""
    proof = dict(proof)
    if proof["type"] == "pairing":
        proof["pairs"] = [[int(names[i]), int(names[j]), *rest] for i, j, *rest in proof["pairs"]]
    elif proof["type"] == "cones" and "leaves" in proof:  # of several classes
        proof["leaves"] = [[[int(names[i]), share] for i, share in leaf] for leaf in proof["leaves"]]
    elif proof["type"] == "cover":
        proof["vertices"] = [vertex | {"side": _side(vertex["side"], names)} for vertex in proof["vertices"]]
    elif "sides" in proof:
        proof["sides"] = [_side(side, names) for side in proof["sides"]]
    return proof


def _side(side: Any, names: np.ndarray) -> dict[str, Any]:
    side = dict(side)
    if "points" in side:
        side["points"] = [int(names[i]) for i in side["points"]]
    if "mirrors" in side:
        side["mirrors"] = [[int(names[i]), int(names[j])] for i, j in side["mirrors"]]
    return side


def _together(
    door: Door, best: Certificate, network: Certificate | None, lower: float, status: str, turns: int
) -> Certificate:
    reason = "" if status == "certified" else best.reason if status == "not-separable" else ""
    if status not in ("certified", "not-separable"):
        reason = "stopped before the gap reached tol; both bounds hold"
    if status == "certified" and not best.upper - lower <= door.tol * best.upper:
        status, reason = "rounding", "float64 cannot close the gap to tol; both bounds hold"
    keep = network if network is not None else dataclasses.replace(best, primal=None)
    extra = dict(keep.extra)
    if network is None and "outer" in extra:
        extra |= {"theta": [], "outer": []}
    if "gamma_star" in extra:
        extra["gamma_star"] = [lower / 2, best.upper / 2]
    stats = dict(best.stats) | {"seconds": time.perf_counter() - door.started, "turns": turns}
    return dataclasses.replace(
        best,
        lower=min(lower, best.upper),
        status=status,
        reason=reason,
        primal=keep.primal,
        extra=extra,
        stats=stats,
        **about(door.data),
    )
