"""The pricing problem: max over |v| = 1 of sum_i c_i relu(v . x_i), with a value that is met and a bound that is proved.

`price` chooses between three ways to a bound: a complete list of directions (up to three dimensions), a tree over cones (few
dimensions, any number of points), a tree over the signs of v . x_i (any dimension, few points or a good relaxation).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from . import cones, signs, writing
from .enumeration import enumerate3
from .points import Points
from .proofs import cones_side

STRAIGHT_NODES = 200_000  # nodes of linear bounds tried before the tree over signs turns to quadratic ones
NEAR_ROOT = 1.1  # quadratic root bound over target up to which linear bounds are not tried
CURVED_RANK, ROOT_RANK = 150, 1100  # largest rank for quadratic bounds in the tree, and at its root
SMALL = 400  # n * rank below which a quadratic bound at the root is not worth its time
CONES_FIRST = 4  # rank up to which cones have the first turn
SLICE = 0.3  # seconds of the first turn where cones and signs take turns; each later turn has four times as many
LISTED = 300  # points with weight up to which all directions are listed in three dimensions
ALL_SIGNS = 13  # points with positive weight up to which the tree over signs has at most 2^14 nodes


@dataclass
class Priced:
    """What is known about one side: value <= maximum <= bound."""

    value: float
    bound: float
    nodes: int
    found: torch.Tensor  # (k, r) good unit directions
    log: Any  # what `write` needs; None where the proof was too large to keep
    aborted: bool = False
    hard: bool = False  # whether linear bounds of the signs were not enough


def price(
    points: Points,
    c: np.ndarray,
    *,
    known: float,
    tol: float,
    seconds: float,
    target: float = 0.0,
    give_up: float = math.inf,
    root: bool = False,
    hard: bool = False,
) -> Priced:
    """Bound the maximum by max(target, max(known, best found) (1 + tol)), or as far as `seconds` allow.

    `known` is a value that need not be met on this side. Past `give_up` a value found ends it. `root`: only what costs next to
    nothing. `hard`: linear bounds of signs are known not to be enough.
    """
    if listed(points, c):
        value, bound, found = enumerate3(points.X0, c)
        return Priced(value, bound, 0, points.tensor(found @ points.basis), "enumeration")
    gpu = points.device.type == "cuda"
    folded, linear = points.folded(c)
    tensor = points.tensor
    until = time.monotonic() + seconds
    limits: dict[str, Any] = {"target": target, "give_up": give_up}

    def over_cones(seconds: float) -> Priced:
        assert points.frame is not None
        frame = points.frame.astype(np.float64) @ points.basis
        tree = cones.Cones(points.Xt, tensor(folded), tensor(frame / np.abs(frame).max()), tensor(linear @ points.X))
        batch = 65536 if gpu else 512
        found = tree.run(known, tol, deadline=min(until, time.monotonic() + seconds), batch=batch, **limits)
        return Priced(found.value, found.bound, found.nodes, found.found, found.shape, found.aborted)

    def over_signs(seconds: float, curved: bool, most: float) -> Priced:
        roots = tensor(points.roots @ points.basis) if len(points.roots) else None
        tree = signs.Tree(points.Xt, tensor(folded), roots, tensor(linear @ points.X))
        batch, memory = (65536, 8e10) if gpu else (1024, 4e9)
        deadline = min(until, time.monotonic() + seconds)
        batch = batch // 4 if curved else batch
        found = tree.run(
            known, tol, deadline=deadline, batch=batch, memory=memory, max_nodes=most, curved=curved, **limits
        )
        return Priced(found.value, found.bound, found.nodes, found.found, found.log, found.aborted)

    curved = points.r <= (ROOT_RANK if root else CURVED_RANK) and not points.far
    if root:
        return over_signs(seconds, curved and points.n * points.r >= SMALL, 1)
    straight = STRAIGHT_NODES * (10 if gpu else 1)
    few = points.r <= cones.RANK and not len(points.roots) and points.frame is not None
    stages: list[Any] = [lambda: over_signs(seconds, curved, math.inf)]
    if np.count_nonzero(folded > 0) <= ALL_SIGNS and points.r <= signs.NEWTON_RANK:
        stages = [lambda: over_signs(seconds, False, math.inf), *stages]  # the whole tree is small
    elif few:
        stages = []
        for turn in (SLICE * 4.0**k for k in range(30) if k == 0 or SLICE * 4.0 ** (k - 1) < 0.5 * seconds):
            pair = [lambda turn=turn: over_cones(turn)]
            pair += [lambda turn=turn: over_signs(turn, True, math.inf)] if curved else []
            stages += pair if points.r <= CONES_FIRST else pair[::-1]
    elif curved and not hard:
        stages = [lambda: over_signs(seconds, True, 1), lambda: over_signs(seconds, False, straight), *stages]
    best: Priced | None = None
    nodes, number = 0, 0
    while number < len(stages):
        found = stages[number]()
        nodes += found.nodes
        known = max(known, found.value)
        if best is None or found.bound < best.bound:
            best = Priced(
                max(found.value, best.value if best else 0.0), found.bound, nodes, found.found, found.log, found.aborted
            )
        best.nodes, best.aborted = nodes, found.aborted
        best.hard |= (
            number == 1 and not few and len(stages) == 3 and found.bound > max(target, known * (1 + tol)) * (1 + 1e-9)
        )
        reached = max(target, known * (1 + tol)) * (1 + 1e-9)
        if best.bound <= reached or found.aborted or time.monotonic() > until:
            break
        if not few and curved and number == 0 and len(stages) == 3 and found.bound < NEAR_ROOT * reached:
            number += 1
        number += 1
    assert best is not None
    return best


def listed(points: Points, c: np.ndarray) -> bool:
    """Whether a complete list of directions solves the problem at once."""
    return points.X0.shape[1] <= 2 or (points.X0.shape[1] == 3 and np.count_nonzero(c) <= LISTED)


def write(
    points: Points, weights: np.ndarray, sides: tuple[Priced, ...], names: np.ndarray, enough: float
) -> tuple[dict[str, Any], float]:
    """The proof of both sides, weights and -weights, as it is saved, and the bound that it shows (rounded up).

    `names` are the places of the points in the data.
    """
    if any(priced.log is None for priced in sides):
        return {"type": "omitted"}, enough * (1 + 1e-12)
    if all(priced.log == "enumeration" for priced in sides):
        return {"type": "enumeration"}, max(priced.bound for priced in sides)
    written, upper = [], 0.0
    for sign, priced in zip((1, -1), sides):
        folded, linear = points.folded(sign * weights)
        mirrors = names[points.mirrors].tolist()
        if isinstance(priced.log, cones.Shape):
            assert points.frame is not None
            side = {"type": "cones", **cones_side(points.X0, points.frame, priced.log)}
            weight = float(np.abs(weights) @ np.linalg.norm(points.X0, axis=1))
            bound = priced.bound * (1 + 1e-6) + 1e-9 * weight  # what a checker may lose that searches for itself
        else:
            side, bound = writing.write(
                priced.log, points.X0, folded, linear @ points.X0, points.roots, points.scale, enough=enough
            )
            side["points"] = names[side["points"]].tolist()
            side |= {"roots": points.roots.tolist()}
            if len(points.roots):
                assert points.symmetry is not None
                side["rho"] = [int(v) for v in points.symmetry.rho]
            side = {"type": "tree", **side}
        written.append(side | {"sign": sign, "mirrors": mirrors})
        upper = max(upper, bound)
    kinds = {side["type"] for side in written}
    return {"type": kinds.pop() if len(kinds) == 1 else "mixed", "sides": written}, upper
