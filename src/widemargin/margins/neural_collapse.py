"""Neural collapse: the points lie in narrow cones, each of one label, and outside each other's half-spaces."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist

from widemargin.spaces import as_truth
from widemargin.types import Certificate, Dataset, InputError

from . import qp
from .answers import solves
from .door import (
    EPS,
    Door,
    Late,
    Limits,
    Progress,
    about,
    check_count,
    check_number,
    check_seed,
    enter,
    integer_weights,
    vanishes,
)

AT_ONCE, START = (
    500,
    200,
)  # points up to which cones are looked for with all of them, and with how many of more at first
UPPER_SHARE = 0.4  # of the time, for the bound
CLIQUE_POINTS = 2000  # of which points are looked for that cannot share a cone
LEAST_EPS = 1e-3  # eps is at least this part of what is allowed: the width in LR Theorem 3.2 grows with 1 / eps


@solves()
def collapse(
    data: Dataset,
    *,
    beta: ArrayLike | None = None,
    signs: ArrayLike | None = None,
    eps: float | None = None,
    gamma_nc: float | None = None,
    strict: bool = False,
    most_cones: int = 64,
    tol: float = 1e-3,
    seed: int = 0,
    time_limit: float | None = None,
    memory: float | None = None,
    progress: Progress | None = None,
) -> Certificate:
    """The margin gamma_nc / r of neural collapse data (convention "NC"): LR Assumption 3.1 (LR-27), read as E-LR-13 says.

    Unit vectors beta_1..r with signs, and 0 < eps < gamma_nc, such that each point i, for each k, is in cone k or in its polar:

        cone k:     sign_k = y_i,  beta_k . x_i >= gamma_nc,  ||(I - beta_k beta_k') x_i|| <= gamma_nc sqrt(eps / 2);
        its polar:  beta_k . x_i <= -eps;

    and every point is in a cone. Then (1/r) sum_k sign_k relu(beta_k . x) has margin gamma_nc / r, so gamma_gl >= gamma_nc / r.
    With `strict` the cones are narrower, gamma_nc eps / 2 for gamma_nc sqrt(eps / 2), as LR Theorem 3.2 needs (E-LR-14).

    With `beta` (r, d) and `signs` (r,) the assumption is checked, for the given `gamma_nc` and `eps` or the best ones. Without
    them cones are searched for: classes are split into clusters of directions, and each beta is a hard-margin problem.
    The structure found with the largest (gamma_nc - eps) / r is kept; LR Theorem 3.2 guarantees an eighth of that.

    `lower` is gamma_nc / r of the stored cones, 0 with status "not-found" if there are none. `upper` holds for all structures:
    gamma_nc is at most the distance of any x_i to the cone spanned by the other class, and r at least the number of points no two
    of which can share a cone. upper = 0 proves that there are none. The status is "certified" if the two agree up to `tol`, else
    "found". `extra` holds beta, signs, gamma_nc, eps, r, gap = gamma_nc - eps, strict, and cluster, a cone of each point.

    `most_cones` is the largest r that the search tries.

    >>> import widemargin as wm
    >>> beta = wm.data.simplex_directions(3, 2)
    >>> data = wm.Dataset(beta, [1, -1, 1])  # every point on the axis of its cone
    >>> cert = wm.margins.collapse(data, beta=beta, signs=[1, -1, 1])
    >>> abs(cert.lower - 1 / 3) < 1e-6, cert.verify(data).ok
    (True, True)
    """
    door = enter(data, False, tol, time_limit, progress, memory=memory)
    X, y, limits = data.X, door.y, door.limits
    largest = float(np.abs(X).max())
    if not 1e-100 < largest < 1e100:
        raise InputError(f"{data.name}: the largest entry is {largest:g}; rescale the points to a size near 1")
    least = math.ldexp(float(door.size[door.size > 0].min()), door.shift)
    if least < 1e-120:
        raise InputError(f"{data.name}: the smallest point has size {least:g}; rescale or remove the tiny ones")
    check_count("most_cones", most_cones, 1)
    seed, strict = check_seed("collapse", seed), as_truth("strict", strict)
    if (beta is None) != (signs is None):
        raise InputError("give beta and signs together, or neither")
    for name, value in (("eps", eps), ("gamma_nc", gamma_nc)):
        if value is not None:
            check_number(name, value, "be a positive number", lambda size: 0 < size < math.inf)
    if eps is not None and gamma_nc is not None and not eps < gamma_nc:
        raise InputError(f"eps must be smaller than gamma_nc, but eps = {eps:g} and gamma_nc = {gamma_nc:g}")

    def tell(lower: float, message: str) -> None:
        if progress is not None:
            progress(time.perf_counter() - limits.started, lower, upper, message)

    upper, proof, none = _upper(door, np.random.default_rng(seed))
    stopped = False
    cones: Cones | None = None
    if beta is not None:
        B, s = np.atleast_2d(np.asarray(beta, dtype=float)), np.atleast_1d(np.asarray(signs, dtype=float))
        if B.ndim != 2 or B.shape[1] != data.d or not np.isfinite(B).all() or not B.any(axis=1).all():
            raise InputError(f"beta must be r rows of d = {data.d} numbers, none of them zero")
        if s.shape != (len(B),) or not np.isin(s, (-1, 1)).all():
            raise InputError(f"signs must be {len(B)} numbers -1 or +1, one per row of beta")
        cones, reason = _judge(X, y, _unit(B), s, Wanted(eps, gamma_nc, strict, most_cones))
    elif none:
        reason = none
    else:
        cones, reason, stopped = _found(door, Wanted(eps, gamma_nc, strict, most_cones), tell)
    q = np.array(proof["weights"], dtype=float)
    extra: dict[str, Any] = {"strict": strict}
    lower, status = 0.0, "time-limit" if stopped else "not-found"
    if cones is not None:
        r = len(cones.beta)
        lower = cones.gamma / r * (1 - 4 * EPS)
        if lower >= (1 - tol) * upper:
            status, reason = "certified", ""
        else:
            status = "time-limit" if stopped else "found"
            reason = "these cones are checked; upper bounds what any others could give"
        extra |= {
            "beta": cones.beta.tolist(),
            "signs": [int(v) for v in cones.signs],
            "gamma_nc": cones.gamma,
            "eps": cones.eps,
            "r": r,
            "gap": cones.gamma - cones.eps,
            "cluster": cones.cluster.tolist(),
        }
    tell(lower, status)
    return Certificate(
        kind="collapse",
        lower=lower,
        upper=upper,
        dual=q / q.sum(),
        status=status,
        proved=True,
        bound="cone",
        convention="NC",
        **about(data),
        reason=reason,
        proof=proof,
        extra=extra,
        stats={"seconds": time.perf_counter() - limits.started, "seed": seed},
    )


@dataclass(frozen=True)
class Cones:
    beta: np.ndarray  # (r, d)
    signs: np.ndarray  # (r,)
    gamma: float
    eps: float
    cluster: np.ndarray  # (n,) the first cone that holds each point

    @property
    def value(self) -> float:
        return (self.gamma - self.eps) / len(self.beta)


def _unit(V: np.ndarray) -> np.ndarray:
    V = V / np.abs(V).max(axis=1, keepdims=True)  # squares of small entries are 0
    return V / np.linalg.norm(V, axis=1, keepdims=True)


@dataclass(frozen=True)
class Wanted:
    """What the user fixed."""

    eps: float | None
    gamma_nc: float | None
    strict: bool
    most_cones: int


def _judge(
    X: np.ndarray, y: np.ndarray, beta: np.ndarray, signs: np.ndarray, wanted: Wanted
) -> tuple[Cones | None, str]:
    """The cones with these directions, with the best gamma_nc and eps (or those given), or the reason why they fail.

    Given beta, positive products must be those of cones. So gamma_nc = min beta_k . x_i over them is best, as a larger one allows
    a smaller eps; and eps lies between what the widths need and what the polar points allow. Rounding goes against us.
    """
    eps, gamma_nc, strict = wanted.eps, wanted.gamma_nc, wanted.strict
    inner = X @ beta.T  # (n, r)
    own = inner > 0
    size = np.linalg.norm(X, axis=1)
    for i, k in np.argwhere(own & (signs != y[:, None]))[:1]:
        return None, f"point {i} has beta_{k} . x = {inner[i, k]:g} > 0 but not the label of cone {k}"
    for i in np.flatnonzero(~own.any(axis=1))[:1]:
        return None, f"point {i} is in no cone: all beta_k . x are at most {inner[i].max():g}"
    slip = 8 * EPS * (X.shape[1] + 4) * float(size.max())
    width = max(
        float(np.linalg.norm(X[own[:, k]] - inner[own[:, k], k, None] * beta[k], axis=1).max(initial=0.0))
        for k in range(len(beta))
    )
    width += slip
    most = float(inner[own].min()) - slip  # of gamma_nc
    room = float((-inner[~own]).min(initial=math.inf)) - slip  # of eps
    if room <= 0:
        i, k = np.argwhere(~own & (-inner <= slip))[0]
        return None, f"point {i} lies on the boundary of the half-space of beta_{k}"
    if gamma_nc is not None and gamma_nc > most * (1 + 1e-12) + 2 * slip:
        i, k = np.argwhere(own & (inner <= most + slip))[0]
        return None, f"gamma_nc = {gamma_nc:g} is too large: beta_{k} . x is {inner[i, k]:g} at point {i}"
    gamma = most if gamma_nc is None else min(gamma_nc, most)
    if gamma <= 0:
        return None, "gamma_nc is 0 up to rounding"
    ratio = width / gamma
    need = (2 * ratio if strict else 2 * ratio * ratio) * (1 + 1e-13)
    if eps is None:
        eps = max(need, LEAST_EPS * min(room, gamma))
    elif eps < need <= eps * (1 + 1e-9) + 8 * slip:
        eps = need  # rounding
    if eps < need:
        what = "gamma_nc eps / 2" if strict else "gamma_nc sqrt(eps / 2)"
        return None, f"eps = {eps:g} is too small: a point is {width:g} away from the axis of its cone, above {what}"
    if room < eps <= room * (1 + 1e-12) + 4 * slip:
        eps = room
    if eps > room or eps >= gamma or eps < need:
        at = f"the polar points allow at most {room:g} and gamma_nc = {gamma:g}"
        return None, f"cones this wide need eps >= {need:g}, but {at}" if need >= min(
            room, gamma
        ) else f"eps = {eps:g}: {at}"
    return Cones(beta, signs, gamma, eps, own.argmax(axis=1)), ""


# ---------------------------------------------------------------- finding cones


def _found(door: Door, wanted: Wanted, tell: Callable[[float, str], None]) -> tuple[Cones | None, str, bool]:
    """Cones of all points, the reason where there are none, and whether the time was over. They are found for some of the points;
    those that do not fit join in."""
    X, y, limits = door.data.X, door.y, door.limits
    rng = np.random.default_rng(0)
    most = limits.largest(len(y), lambda k: 200.0 * k * k, lambda k: 8.0 * k * k)
    rows = np.arange(len(y))
    if len(y) > min(AT_ONCE, most):
        rows = np.sort(rng.permutation(len(y))[: min(START, most)])
        rows = np.union1d(rows, [np.flatnonzero(y == label)[0] for label in np.unique(y)])
    while True:
        cones, reason, stopped = _search(X[rows], y[rows], wanted, limits, tell)
        if len(rows) == len(y) or cones is None:
            return cones, reason, stopped
        judged, why = _judge(X, y, cones.beta, cones.signs, wanted)
        if judged is not None:
            return judged, why, stopped
        if stopped or limits.late() or len(rows) >= most:
            return None, "the time was over before cones were found that hold all points", True
        bad = np.setdiff1d(np.flatnonzero(_beside(X, y, cones)), rows)
        if len(bad) == 0:
            bad = np.setdiff1d(np.arange(len(y)), rows)
        rows = np.union1d(rows, rng.permutation(bad)[: min(len(rows), most - len(rows))])


def _beside(X: np.ndarray, y: np.ndarray, cones: Cones) -> np.ndarray:
    """(n,) which points are neither in a cone of their label nor in all other polars."""
    inner = X @ cones.beta.T  # (n, r)
    inside = (inner >= cones.gamma) & (cones.signs == y[:, None])
    return ~(inside | (inner <= -cones.eps)).all(axis=1) | ~inside.any(axis=1)


def _search(
    X: np.ndarray, y: np.ndarray, wanted: Wanted, limits: Limits, tell: Callable[[float, str], None]
) -> tuple[Cones | None, str, bool]:
    best: Cones | None = None
    least = float(np.linalg.norm(X, axis=1).min())
    tried = 0
    try:
        for cluster in _partitions(X, y, wanted.most_cones):
            r = int(cluster.max()) + 1
            if best is not None and best.value >= least / r:
                break  # gamma_nc <= min ||x||: more cones give less
            limits.check()
            tried += 1
            for fitted in _fit(X, y, cluster, wanted, limits):
                if best is None or fitted.value > best.value:
                    best = fitted
                    tell(best.gamma / r, f"{r} cones")
    except Late:
        return best, "the time was over before all partitions were tried", True
    return best, f"none of {tried} partitions of the points into clusters has such cones; others were not tried", False


def _partitions(X: np.ndarray, y: np.ndarray, most: int) -> Iterator[np.ndarray]:
    """Cluster numbers (n,) of the points, each cluster of one label: complete linkage of directions, few clusters first."""
    U = _unit(X)
    links, heights = {}, [2.1]
    for label in np.unique(y):
        index = np.flatnonzero(y == label)
        if len(index) > 1:
            links[label] = linkage(pdist(U[index]), "complete")  # of rows linkage guesses whether they are distances
            heights += links[label][:, 2].tolist()
    for height in [*sorted(set(heights), reverse=True), -1.0]:
        cluster, count = np.zeros(len(X), dtype=int), 0
        for label in np.unique(y):
            index = np.flatnonzero(y == label)
            # strictly below: the merge at this height is undone
            part = fcluster(links[label], height * (1 - 1e-12), "distance") if label in links and height >= 0 else None
            part = np.arange(1, len(index) + 1) if part is None else part
            cluster[index] = count + part - 1
            count += int(part.max())
        if count > most:
            return
        yield cluster


def _fit(X: np.ndarray, y: np.ndarray, cluster: np.ndarray, wanted: Wanted, limits: Limits) -> Iterator[Cones]:
    """Better and better cones for a partition. For given gamma_nc and eps the cones of all clusters are hard-margin problems:

        beta . x_i >= h_i = max(gamma_nc, sqrt(||x_i||^2 - width^2)) in the cluster,  -beta . x_j >= eps outside,  ||beta|| <= 1,

    solvable if and only if the margin of the points x_i / h_i, -x_j / eps is at least 1 (a longer beta is then better still).
    """
    r, eps, gamma_nc, strict = int(cluster.max()) + 1, wanted.eps, wanted.gamma_nc, wanted.strict
    signs = np.array([y[cluster == k][0] for k in range(r)])
    size = np.linalg.norm(X, axis=1)
    best: Cones | None = None
    if size.min() <= 2 and any((X[cluster == k] @ X[cluster == k].T).min() <= 0 for k in range(r)):
        return  # in one cone x_i . x_j >= gamma_nc^2 (1 - eps / 2), and eps < gamma_nc <= min ||x||

    def directions(h: np.ndarray, e: float) -> np.ndarray | None:
        """beta_k with the largest least ratio of products to h (inside) and e (outside); None if a cluster cannot be cut off."""
        rows = []
        for k in range(r):
            limits.check()
            inside = cluster == k
            Z = X * np.where(inside, 1 / h, -1 / e)[:, None]
            u = qp.direction(Z, qp.solve_factor(Z, 1e-7, limits.deadline), 1e-6)
            if not u.any() or (Z @ u).min() <= 0:
                return None
            rows.append(u / np.linalg.norm(u))
        return np.array(rows)

    def offer(beta: np.ndarray) -> Cones | None:
        nonlocal best
        cones, _ = _judge(X, y, beta, signs, wanted)
        if cones is not None and (best is None or cones.value > best.value):
            best = cones
        return cones

    def balls() -> np.ndarray:
        """Mean directions: the narrowest cones, nearly."""
        return np.array([(X[cluster == k] / size[cluster == k, None]).sum(axis=0) for k in range(r)])

    if (middle := balls()).any(axis=1).all():
        offer(_unit(middle))
    if best is not None:
        yield best
    least = float(size.min())
    first = directions(size, float(np.median(size)))
    if first is None:
        return
    offer(first)

    def attempt(gamma: float, e: float) -> None:
        for _ in range(2):  # gamma and the width depend on each other
            width = gamma * (e / 2 if strict else math.sqrt(e / 2))
            beta = directions(np.maximum(gamma, np.sqrt((size**2 - width**2).clip(0))), e)
            cones = offer(beta) if beta is not None else None
            if cones is None or gamma_nc is not None:
                return
            gamma = cones.gamma

    def enough() -> bool:
        return best is not None and best.gamma - best.eps >= (1 - 2 * LEAST_EPS) * least

    # The trade-off of own and polar points: a grid, then closer to the best.
    asked = [eps] if eps is not None else list(least * np.geomspace(2e-3, 0.9, 8))
    for gamma in [gamma_nc] if gamma_nc is not None else [0.95 * least, 0.8 * least, 0.6 * least]:
        for e in asked:
            if not enough() and e < gamma:
                attempt(gamma, e)
        if best is not None:
            yield best
            break
    for factors in ((0.5, 0.7, 0.85, 1.0, 1.2), (0.9, 0.95, 1.0, 1.05)):
        if best is None or eps is not None or enough():
            break
        start = best
        for f in factors:
            attempt(start.gamma, start.eps * f)
        yield best


# ---------------------------------------------------------------- what any cones could give


def _upper(door: Door, rng: np.random.Generator) -> tuple[float, dict[str, Any], str]:
    """A bound of gamma_nc / r over all structures, its proof, and a reason where there are provably none.

    If i is in a cone with beta and q >= 0 lives on i and the other class, then with z = q_i x_i - sum_j q_j x_j
    q_i gamma_nc + (sum_j q_j) eps <= beta . z <= ||z||. Two points share a cone only if they have one label and
    x_i . x_j >= gamma_nc^2 (1 - eps / 2), which is positive if eps < 2, and so if eps < gamma_nc <= min ||x|| <= 2.
    """
    X, y, n = door.data.X, door.y, door.data.n
    size = np.linalg.norm(X, axis=1)
    i = int(size.argmin())
    early = replace(door.limits, deadline=door.started + UPPER_SHARE * (door.deadline - door.started))
    q, distance = np.eye(1, n, i)[0], float(size[i])

    def impossible(point: int, weights: np.ndarray, why: str) -> tuple[float, dict[str, Any], str]:
        proof = {"type": "cone", "point": point, "weights": weights.tolist(), "clique": [point]}
        return 0.0, proof, f"there are no such cones: {why}"

    if distance == 0:
        return impossible(i, q, f"point {i} is the origin")
    each = {label: np.flatnonzero(y == label) for label in np.unique(y)}
    most = early.largest(n, lambda k: 20.0 * k * X.shape[1] ** 2, lambda k: 4.0 * k * X.shape[1])
    # Of many points of a class some are looked at: weights on these are weights on all.
    some = {label: own if len(own) <= most else np.sort(rng.permutation(own)[:most]) for label, own in each.items()}
    for label, own in each.items():
        # one class alone: 0 in its convex hull leaves no half-space for the cones of the other label
        if len(own) < n:
            own = some[label]
            Z = X[own] / size[own, None]
            weights = qp.solve_factor(Z, 1e-10, early.deadline).q
            if np.linalg.norm(weights @ Z) < 1e-7:
                whole = _relation(door, own, weights / size[own])
                if whole is not None:
                    point = int(np.flatnonzero(y != label)[0])
                    return impossible(point, whole, f"0 lies in the convex hull of the points of label {label:g}")
    order = np.arange(n) if n <= most else rng.permutation(n)
    for j in order if len(each) == 2 else ():
        if early.late():
            break
        others = some[-y[j]]
        weights, far = optimize.nnls(X[others].T, X[j])
        if far <= 1e-9 * size[j]:
            whole = _relation(door, np.append(j, others), np.append(1.0, weights), minus=True)
            if whole is not None:
                return impossible(int(j), whole, f"point {j} lies in the cone of the other class")
        if far < distance * (1 - 1e-9):
            i, distance, q = int(j), float(far), np.zeros(n)
            q[j], q[others] = 1.0, weights
    c = np.where(np.arange(n) == i, q, -q)
    slip = 8 * EPS * (n + X.shape[1]) * float(q @ size)
    distance = (float(np.linalg.norm(c @ X)) + slip) / float(q[i])
    clique = _clique(door, rng, signs_matter=distance < 2 and float(size.min()) < 2 * (1 - 1e-9))
    upper = distance / len(clique) * (1 + 8 * EPS)
    none = f"up to rounding point {i} lies in the cone of the other class" if distance < 1e-9 * size[i] else ""
    return upper, {"type": "cone", "point": i, "weights": q.tolist(), "clique": clique}, none


def _relation(door: Door, index: np.ndarray, weights: np.ndarray, minus: bool = False) -> np.ndarray | None:
    """Small integers (n,) proportional to the weights for which sum +-q x = 0 exactly, if there are any."""
    whole = integer_weights(weights)
    if whole is None or not whole.any():
        return None
    q, c = np.zeros(len(door.y)), np.zeros(len(door.y))
    q[index] = whole
    c[index] = np.where(np.arange(len(index)) == 0, whole, -whole) if minus else whole
    return q if vanishes(door, c, linear=True) else None


def _clique(door: Door, rng: np.random.Generator, signs_matter: bool) -> list[int]:
    """Points no two of which can share a cone: different labels, or x_i . x_j <= 0. Greedy, from a few orders."""
    n, limits = len(door.y), door.limits
    chosen_points = np.arange(n)
    if n > (most := min(CLIQUE_POINTS, limits.largest(n, lambda k: 200.0 * k * k, lambda k: 4.0 * k * k))):
        chosen_points = np.sort(rng.permutation(n)[:most])
    X, y = door.data.X[chosen_points], door.y[chosen_points]
    G = X @ X.T
    size = np.linalg.norm(X, axis=1)
    apart = y[:, None] != y
    if signs_matter:
        apart |= -16 * EPS * X.shape[1] * size[:, None] * size > G  # certainly negative in spite of rounding
        whole = np.abs(X).max() < 2**20 and bool((np.rint(X) == X).all())
        apart |= (G == 0) & whole  # integers have no rounding
    np.fill_diagonal(apart, False)
    best: list[int] = []
    for start in range(min(len(X), 20)):
        if start and limits.late():
            break
        free = np.ones(len(X), dtype=bool)
        chosen: list[int] = []
        order = rng.permutation(len(X))
        while free.any():
            degree = np.where(free, (apart & free).sum(axis=1), -1)
            pick = int(order[degree[order].argmax()]) if chosen or start else int(degree.argmax())
            if not chosen and start:
                pick = int(order[0])
            chosen.append(pick)
            free &= apart[pick]
        if len(chosen) > len(best):
            best = chosen
    return sorted(int(chosen_points[k]) for k in best)
