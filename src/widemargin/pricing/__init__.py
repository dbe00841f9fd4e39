"""The pricing problem: max over |v| = 1 of sum_i c_i relu(v . x_i), with a value that is met and a bound that is proved.

A leaky ReLU is relu and a linear term, which all ways take along (`Points.as_relu`).

`price` chooses between three ways to a bound: a complete list of directions (up to three dimensions), a tree over cones (few
dimensions, any number of points), a tree over the signs of v . x_i (any dimension, few points or a good relaxation).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from . import cones, pairing, products, signs, writing
from .enumeration import enumerate3
from .enumeration import seconds as list_seconds
from .moments import QUADRATIC_RANK as QUADRATIC_RANK
from .points import Points, Priced

STRAIGHT_NODES = 200_000  # nodes of linear bounds tried before the tree over signs turns to quadratic ones
NEAR_ROOT = 1.1  # quadratic root bound over target up to which that is near
ROOT_RANK = 1100  # largest rank for a quadratic bound at the root of a tree
QUADRATIC_ROOT_SIZE = 400  # n * rank below which a quadratic bound at the root is not worth its time
CONES_FIRST = 4  # rank up to which cones have the first turn
# Points with positive weight from which cones have all turns there: others take a second for one node.
CONES_ALONE = 500
SLICE = 0.3  # seconds of the first turn where cones and signs take turns; each later turn has four times as many
FAIR = 4.0  # seconds of a turn up to which both have one, whoever is ahead
LISTED = 300  # points with weight up to which all directions are listed in three dimensions
ALL_SIGNS, ALL_PATTERNS = 13, 15_000  # points with positive weight, or sign patterns, of which all may be looked at
PARALLEL = 30.0  # condition number of the points above which they count as nearly parallel


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
        # A leaky ReLU is relu(t) - slope relu(-t): each point is there with its opposite.
        a, X, weights = points.slope, points.X0, c
        if a:
            X, weights = np.concatenate([X, -X]), np.concatenate([c, -a * c])
        value, bound, directions = enumerate3(X, weights)
        return Priced(value, bound, 0, points.tensor(directions @ points.basis), "enumeration")
    gpu, until = points.device.type == "cuda", time.monotonic() + seconds
    folded, linear = points.folded(c)
    tensor = points.tensor

    over_cones: cones.Cones | None = None  # goes on in each of its turns where it stopped in the last

    def look(stage: Stage) -> Any:
        nonlocal over_cones
        deadline = min(until, time.monotonic() + stage.seconds)
        options: dict[str, Any] = {"deadline": deadline, "target": target, "give_up": give_up, "beat": points.beat}
        if stage.way == "cones":
            if over_cones is None:
                assert points.frame is not None
                frame = points.frame.astype(np.float64) @ points.basis
                frame = frame / np.abs(frame).max()
                over_cones = cones.Cones(points.Xt, tensor(folded), tensor(frame), tensor(linear @ points.X))
            return over_cones.run(known, tol, batch=65536 if gpu else 512, **options)
        roots = tensor(points.roots @ points.basis) if len(points.roots) else None
        quadratic = stage.way == "quadratic"
        batch = (65536 if gpu else 1024) // (4 if quadratic else 1)
        sizes = points.X0.shape[1], points.memory
        over_signs = signs.Tree(points.Xt, tensor(folded), roots, tensor(linear @ points.X), *sizes)
        options |= {"max_nodes": stage.most, "quadratic": quadratic, "empties": points.flat}
        return over_signs.run(known, tol, batch=batch, **options)

    best, goal = Priced(0.0, math.inf, 0, points.Xt.new_zeros(0, points.r), None), 0.0
    turns: dict[str, list[tuple[float, float]]] = {}  # seconds and bound of each way after each of its turns
    for stage in plan(points, folded, seconds, root, hard):
        if stage.if_far and best.bound < NEAR_ROOT * goal:
            continue
        began = time.monotonic()
        if stage.seconds > FAIR and len(turns) > 1:
            left = until - began
            ends = {way: outlook(past, max(known, target), left) for way, past in turns.items()}
            if ends[stage.way] > min(ends.values()) or (stage.way != "cones" and left < turns[stage.way][-1][0]):
                continue  # the other way will end lower, or this one would not come as far as before
            if (
                stage.way != "cones"
            ):  # which go on where they stopped; a tree over signs begins again, so it has all the rest
                stage = replace(stage, seconds=left)
        result = look(stage)
        if stage.most == math.inf:  # not a mere look at the root
            past = turns.setdefault(stage.way, [])
            before = past[-1][0] if past and stage.way == "cones" else 0.0
            past.append((before + time.monotonic() - began, result.bound))
        known = max(known, result.value)
        if result.bound < best.bound:
            best.bound, best.log = result.bound, result.log
        best.value, best.aborted = max(best.value, result.value), result.aborted
        best.nodes, best.directions = best.nodes + result.nodes, torch.cat([result.directions, best.directions])
        goal = max(target, known * (1 + tol)) * (1 + 1e-9)
        if best.bound <= goal or result.aborted or time.monotonic() > until:
            break
        best.hard |= stage.way == "linear"
    return best


def outlook(past: list[tuple[float, float]], least: float, seconds: float) -> float:
    """The bound that a way will have after `seconds`: what is open above `least` goes by the power law of its last two turns.

    Cones of rank r leave about count^(-2 / (r - 1)) open, so that they may begin far behind a tree over signs and end far ahead.
    """
    (t1, open1), (t2, open2) = [(t, bound - least) for t, bound in (past * 2)[-2:]]
    if not (0 < open2 < open1 and t1 < t2 < seconds):
        return least + open2
    return least + open2 * (open2 / open1) ** (math.log(seconds / t2) / math.log(t2 / t1))


@dataclass(frozen=True)
class Stage:
    way: str  # "cones", or "linear" or "quadratic" bounds of signs
    seconds: float
    most: float = math.inf  # nodes
    if_far: bool = False  # not where the bound before it is near: a tree of that kind will be small


def plan(points: Points, folded: np.ndarray, seconds: float, root: bool, hard: bool) -> list[Stage]:
    """What to try, in order (docs/pricing.md has the measurements behind it)."""
    quadratic = points.r <= (ROOT_RANK if root else QUADRATIC_RANK) and points.quadratic
    if root:
        return [
            Stage("quadratic" if quadratic and points.n * points.r >= QUADRATIC_ROOT_SIZE else "linear", seconds, 1)
        ]
    last = Stage("quadratic" if quadratic else "linear", seconds)
    plus = np.count_nonzero(folded > 0)
    # Sign patterns that some direction has. Where points are nearly parallel these are counted out, as no relaxation is tight.
    patterns = 2 * sum(math.comb(plus - 1, k) for k in range(points.r)) if plus else 1
    if points.r <= signs.NEWTON_RANK and (
        plus <= ALL_SIGNS or (patterns <= ALL_PATTERNS and points.condition > PARALLEL)
    ):
        return [Stage("linear", seconds), last]  # the whole tree is small
    if points.r <= cones.LARGEST_RANK and not len(points.roots) and points.frame is not None:
        turns = [SLICE]
        while turns[-1] < 0.5 * min(seconds, 1e6):
            turns.append(4 * turns[-1])
        if points.r <= CONES_FIRST and plus > CONES_ALONE:
            return [Stage("cones", seconds)]
        ways = ["cones", last.way] if points.r <= CONES_FIRST else [last.way, "cones"]
        return [Stage(way, turn) for turn in turns for way in ways]
    if not quadratic or hard:
        return [last]
    # Quadratic bounds close trees in few nodes, linear ones are a hundred times cheaper. So look at the quadratic root, and let
    # linear bounds try first where it is far off.
    many = STRAIGHT_NODES * (10 if points.device.type == "cuda" else 0.1 if points.r <= signs.NEWTON_RANK else 1)
    return [Stage("quadratic", seconds, 1), Stage("linear", seconds, many, if_far=True), last]


def listing(points: Points, c: np.ndarray) -> float:
    """Seconds, more or less, that a complete list takes, which does not look at the clock."""
    return list_seconds(int(np.count_nonzero(c)), points.X0.shape[1])


def listed(points: Points, c: np.ndarray) -> bool:
    """Whether a complete list of directions solves the problem at once."""
    D = points.X0.shape[1]
    return D <= 2 or (D == 3 and int(np.count_nonzero(c)) <= LISTED)


def worth_products(n: int, r: int) -> bool:
    """Whether bounds from products are worth a try beside trees, for n points of rank r."""
    return r >= products.LEAST_RANK and 2 <= n <= min(products.MOST_POINTS, products.POINTS_PER_RANK * r)


@dataclass
class Own:
    """An upper bound with the weights q (n,) that it was made for, and its proof."""

    upper: float
    q: np.ndarray
    proof: dict[str, Any]
    said: str


def own(way: str, points: Points, names: np.ndarray, until: float, enough: float) -> Iterator[Own]:
    """Better and better bounds of the margin of labelled points with weights of their own, by `pairing` or `products`.

    `until` is a time of perf_counter; below `enough` no better one is needed.
    """
    if points.y is None or points.far or points.slope or points.r > ROOT_RANK:
        return
    y, scale = points.tensor(points.y), 2.0**points.shift
    if way == "products":
        if (points.y > 0).all() or (points.y < 0).all():
            return
        for solved in products.solve(points.Xt, products.Goal.margin(y), until, enough):
            proof, upper = products.write(solved, names, scale)
            if proof:
                yield Own(upper / scale, solved.q.cpu().numpy(), proof, f"{len(solved.sides[0].N)} products")
        return
    paired = pairing.solve(points.Xt, y, until)
    if paired is not None:
        proof, upper = paired.write(points.Xt, scale)
        if proof:
            proof["pairs"] = [[int(names[i]), int(names[j]), *rest] for i, j, *rest in proof["pairs"]]
            yield Own(upper, paired.weights(points.n), proof, f"{len(paired.T)} pairs")


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
            side = {"type": "cones", **writing.cones_side(points.X0, points.frame.tolist(), priced.log)}
            weight = float(np.abs(weights) @ np.linalg.norm(points.X0, axis=1))
            bound = priced.bound * (1 + 1e-6) + 1e-9 * weight  # what a checker may lose that searches for itself
        else:
            side, bound = writing.write(
                priced.log, points.X0, folded, linear @ points.X0, points.roots, points.scale, enough=enough
            )
            side |= {"type": "tree", "points": names[side["points"]].tolist(), "roots": points.roots.tolist()}
            if len(points.roots):
                assert points.symmetry is not None
                side["rho"] = [int(v) for v in points.symmetry.rho]
        written.append(side | {"sign": sign, "mirrors": mirrors})
        upper = max(upper, bound)
    kinds = {side["type"] for side in written}
    return {"type": kinds.pop() if len(kinds) == 1 else "mixed", "sides": written}, upper
