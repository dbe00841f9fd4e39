"""Bounds from products of the parts of v . x_i: against another solver, above the truth, and checked exactly."""

from __future__ import annotations

import copy
import itertools
import json
import math
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from checks import check_certificate, repeated
from widemargin.margins import f1
from widemargin.pricing import products, worth_products
from widemargin.types import Certificate, Dataset
from widemargin.verify import check


def images(n: int, d: int, seed: int) -> Dataset:
    """Nonnegative points with much in common, as images are."""
    rng = np.random.default_rng(seed)
    return Dataset(np.abs(1 + rng.standard_normal((n, d))), np.where(rng.random(n) < 0.5, 1.0, -1.0), "images")


def best(data: Dataset, seconds: float = math.inf) -> products.Products:
    goal = products.Goal.margin(torch.tensor(data.signs()))
    *_, found = products.solve(torch.tensor(data.X), goal, time.perf_counter() + seconds)
    return found


def by_clarabel(X: np.ndarray, y: np.ndarray, cuts: bool) -> float:
    """The relaxation with all products in play, and with all cuts or none, as a program over moments, by another solver.

    maximise gamma over moments Y (of 1, v, w) of both signs: positive semidefinite, the products of (1, w, s) >= 0, w_i s_i = 0,
    tr Y_vv = Y_00, the Y_00 sum to one, and y_i (Y+_{0 w_i} - Y-_{0 w_i}) >= gamma. Cuts: |Y_{z v}| <= Y_{z 0} for all z of w, s.
    """
    import clarabel
    from scipy import sparse

    n, r = X.shape
    N = 1 + r + n
    size = N * (N + 1) // 2
    Z = np.zeros((1 + 2 * n, N))
    Z[0, 0], Z[1 : 1 + n, 1 + r :], Z[1 + n :, 1 + r :], Z[1 + n :, 1 : 1 + r] = 1, np.eye(n), np.eye(n), -X
    upper = [(i, j) for j in range(N) for i in range(j + 1)]  # column by column, off the diagonal times sqrt 2

    def row(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """a' Y b as a row of coefficients."""
        M = (np.outer(a, b) + np.outer(b, a)) / 2
        return np.array([M[i, j] * (1 if i == j else math.sqrt(2)) for i, j in upper])

    trace = sum(row(e, e) for e in np.eye(N)[1 : 1 + r]) - row(np.eye(N)[0], np.eye(N)[0])
    nothing = np.zeros(size)
    equal, least, within = [], [], []
    for left in (True, False):

        def put(one: np.ndarray, gamma: float = 0.0, left: bool = left) -> np.ndarray:
            return np.concatenate([one, nothing, [gamma]] if left else [nothing, one, [gamma]])

        equal += [put(trace)] + [put(row(Z[1 + i], Z[1 + n + i])) for i in range(n)]
        least += [put(row(Z[a], Z[b])) for a in range(1 + 2 * n) for b in range(a)]
        within += [put(row(z, e)) for z in Z[1:] for e in np.eye(N)[: 1 + r]] if cuts else []
    one = row(np.eye(N)[0], np.eye(N)[0])
    total = np.concatenate([one, one, [0.0]])
    margins = [
        y[i] * np.concatenate([row(Z[0], Z[1 + i]), -row(Z[0], Z[1 + i]), [0.0]]) - np.eye(2 * size + 1)[-1]
        for i in range(n)
    ]
    inside = -np.array(within).reshape(-1, 2 * size + 1)
    blocks = [np.array([*equal, total]), -np.array(least + margins), inside, -np.eye(2 * size + 1)[: 2 * size]]
    right = np.zeros(sum(map(len, blocks)))
    right[len(equal)] = 1.0
    cones = [
        clarabel.ZeroConeT(len(equal) + 1),
        clarabel.NonnegativeConeT(len(blocks[1])),
        *[clarabel.SecondOrderConeT(1 + r)] * (len(within) // (1 + r)),
        clarabel.PSDTriangleConeT(N),
        clarabel.PSDTriangleConeT(N),
    ]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    cost = np.zeros(2 * size + 1)
    cost[-1] = -1.0
    A = sparse.csc_matrix(np.vstack(blocks))
    solution = clarabel.DefaultSolver(
        sparse.csc_matrix((2 * size + 1, 2 * size + 1)), cost, A, right, cones, settings
    ).solve()
    assert "Solved" in str(solution.status)
    return -solution.obj_val


@repeated("seed", range(4), 0)
def test_another_solver_finds_the_same_relaxation(seed: int, monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(seed)
    n, r = (6, 4) if seed % 2 else (5, 5)
    X, y = rng.standard_normal((n, r)) * rng.choice([0.3, 1.0, 4.0], (n, 1)), np.resize([1.0, -1.0, 1.0], n)
    found, with_cuts = best(Dataset(X, y)), by_clarabel(X, y, cuts=True)
    assert (
        with_cuts * (1 - 1e-6) <= found.bound <= with_cuts * (1 + 1e-2)
    )  # solved to 2e-3, from above; cuts are tangents
    monkeypatch.setattr(products, "CUTS_AFTER", math.inf)
    plain, without = best(Dataset(X, y)), by_clarabel(X, y, cuts=False)
    assert without * (1 - 1e-6) <= plain.bound <= without * (1 + 5e-3)


@repeated("scale", [1e-6, 1.0, 3e4], 0)
def test_cuts_lower_the_bound_and_are_checked(scale: float, monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(8)
    data = Dataset(scale * rng.standard_normal((20, 10)), np.where(rng.random(20) < 0.5, 1.0, -1.0), "noise")
    found = best(data)
    certificate = certified(data, found)
    check_certificate(certificate, data)
    rows = certificate.proof["sides"][0]["cuts"]["rows"]
    assert len(rows) == len(found.program.cuts) > 0
    assert certificate.upper <= found.bound * (1 + 1e-6)  # next to nothing is lost in writing
    monkeypatch.setattr(products, "CUTS_AFTER", math.inf)
    plain = best(data)
    assert not len(plain.program.cuts) and found.bound < 0.99 * plain.bound


def test_a_part_of_cuts_is_nonnegative_on_the_ball():
    """What the checker takes for p is the least integer that is at least |u|."""
    from widemargin.verify.products import _lengths

    assert _lengths(np.array([[3, 4], [0, 0], [6, 8], [6, 9], [1, 0]], dtype=object), 0) == [5, 0, 10, 11, 1]
    assert _lengths(np.array([[6, 8], [6, 9], [1, 0]], dtype=object), 1) == [5, 6, 1]  # u is half of that


@pytest.mark.parametrize(
    "change",
    [
        lambda side: side["cuts"]["rows"][0].append(1),
        lambda side: side["cuts"]["base"].append(side["cuts"]["base"][0]),
        lambda side: side["cuts"].update(base=[99, *side["cuts"]["base"][1:]]),
        lambda side: side["cuts"].pop("base"),
        lambda side: side["cuts"].update(rows=side["cuts"]["rows"][:-1]),  # a pair names the last one
        lambda side: side["cuts"].update(rows=side["cuts"]["rows"] * 50),
        lambda side: side.update(cuts=[1]),
        lambda side: side["cuts"]["rows"][0].__setitem__(0, 0.5),
        lambda side: side["cuts"]["rows"].__setitem__(0, [-v for v in side["cuts"]["rows"][0]]),
        lambda side: [row.__setitem__(slice(None), [2 * v for v in row]) for row in side["cuts"]["rows"]],
    ],
)
def test_damaged_cuts_are_refused(noisy, change):
    data, certificate = noisy
    payload = copy.deepcopy(certificate.payload())
    change(payload["proof"]["sides"][0])
    payload.pop("digest")
    from widemargin.verify import digest

    assert not check(payload | {"digest": digest(payload)}, data.X, data.y).ok


@pytest.fixture(scope="module")
def noisy() -> tuple[Dataset, Certificate]:
    rng = np.random.default_rng(8)
    data = Dataset(rng.standard_normal((20, 10)), np.where(rng.random(20) < 0.5, 1.0, -1.0), "noise")
    return data, certified(data, best(data))


@repeated("seed", range(10, 14), 3)
def test_it_is_above_every_network(seed: int):
    rng = np.random.default_rng(seed)
    data = Dataset(rng.standard_normal((18, 4)) * [1, 1, 1, 20], np.where(rng.random(18) < 0.4, 1.0, -1.0))
    certificate = f1(data, tol=1e-3)
    assert certificate.status == "certified"
    assert best(data).bound >= certificate.lower


def certified(data: Dataset, found: products.Products, scale: float = 1.0, bias: bool = False) -> Certificate:
    certificate = f1(data, bias=bias, tol=0.1)
    proof, upper = products.write(found, np.arange(data.n), scale)
    high = math.nextafter(upper, math.inf)
    return replace(
        certificate,
        lower=min(certificate.lower, high),
        upper=high,
        dual=found.q.numpy(),
        proof=json.loads(json.dumps(proof)),
        bound="products",
        status="time-limit",
    )


@pytest.fixture(scope="module")
def proved() -> tuple[Dataset, Certificate]:
    data = images(16, 20, 0)
    return data, certified(data, best(data))


def test_the_checker_accepts_it(proved):
    data, certificate = proved
    check_certificate(certificate, data)
    assert certificate.gap < 0.05  # where points are few against dimensions it is nearly tight


@pytest.mark.slow
@pytest.mark.parametrize("power", [-9, pytest.param(7, marks=pytest.mark.long)])
def test_units_repeated_points_and_a_bias(power: int):
    """Through f1, where trees have no time at all and points come twice."""
    data = images(40, 30, 1)
    X = np.vstack([data.X, data.X[:4]]) * 2.0**power
    data = Dataset(X, np.append(data.y, data.y[:4]))
    certificate = f1(data, bias=True, time_limit=2)
    check_certificate(certificate, data)
    assert certificate.bound in ("products", "tree")


def changed(certificate: Certificate, data: Dataset, **values) -> str:
    """What the checker says of a certificate whose first side has other values."""
    payload = json.loads(json.dumps(certificate.payload()))
    side = copy.deepcopy(payload["proof"]["sides"][0])
    side |= values
    payload["proof"]["sides"][0] = side
    forged = replace(certificate, proof=payload["proof"])
    return str(check(forged.payload(), data.X, data.y).failed)


def test_forged_multipliers_are_refused(proved):
    data, certificate = proved
    side = certificate.proof["sides"][0]
    pairs, free = side["pairs"], side["free"]
    assert "larger than upper" in changed(certificate, data, lam=side["lam"] * 9 // 10)
    assert "larger than upper" in changed(certificate, data, free=[0] * len(free))
    assert "larger than upper" in changed(certificate, data, pairs=[[a, b, 3 * N] for a, b, N in pairs])
    assert "pairs" in changed(certificate, data, pairs=[[pairs[0][0], pairs[0][1], -1], *pairs[1:]])
    assert "in order" in changed(certificate, data, pairs=[[5, 5, 1]])
    assert "increasing" in changed(certificate, data, points=[1, 0, *side["points"][2:]])
    assert "missing" in changed(certificate, data, points=side["points"][:-1], free=free[:-1], pairs=[])
    assert "lam" in changed(certificate, data, lam=-1)
    low = replace(certificate, upper=certificate.lower, proof=dict(certificate.proof))
    if certificate.upper > certificate.lower:
        assert check(low.payload(), data.X, data.y).failed


def test_no_time_is_no_error():
    data = images(30, 20, 2)
    goal = products.Goal.margin(torch.tensor(data.y))
    found = list(products.solve(torch.tensor(data.X), goal, time.perf_counter()))
    assert len(found) <= 1  # nothing, or a poor bound that holds
    assert not worth_products(1000, 900) and not worth_products(100, 3)


@repeated("wrong", [0.4, 1.0, 2.0], 0, 2)
def test_a_bound_comes_out_as_its_limit(wrong: float):
    """The least |x - x0|^2 / 2 + price * bound has some bound; asked for that one, any price to begin with leads back to it."""
    data = images(10, 9, 0)
    X, x0 = torch.tensor(data.X), torch.tensor(data.signs() / data.n)
    far, price = torch.full_like(x0, math.inf), 1e-3

    def solved(price: float, limit: float | None) -> tuple[products.Products, float]:
        slopes = lambda x: (x - x0, torch.ones_like(x))  # noqa: E731
        goal = products.Goal(torch.ones_like(x0), 0.1 * x0, -far, far, None, price, limit, slopes, size=1e-4)
        *_, last = itertools.islice(products.solve(X, goal, math.inf), 3)
        return last, goal.price

    paid, _ = solved(price, None)
    found, back = solved(wrong * price, paid.bound)
    assert found.bound == pytest.approx(paid.bound, rel=2 * products.OFF)
    assert back == pytest.approx(price, rel=0.05)
    assert float((found.q - paid.q).norm() / (paid.q - x0).norm()) < 0.05


@pytest.mark.gpu
def test_a_gpu_gives_the_same_bound():
    data = images(40, 50, 4)
    X, y = torch.tensor(data.X), torch.tensor(data.y)
    *_, cuda = products.solve(X.cuda(), products.Goal.margin(y.cuda()), math.inf)
    assert cuda.bound == pytest.approx(best(data).bound, rel=1e-2)


def test_orthogonal_points():
    """A point of which fewer than NEAR others are not orthogonal is no neighbour of its own: that pair is no part of a proof."""
    X = np.array(
        [
            [-2.0, 1, 1, 1, -2, 2, 2, 1],
            [0, 0, 0, 0, 2, 2, -2, 1],
            [2, -2, 0, -1, 2, 2, -1, -1],
            [-1, -2, 1, 2, 0, -2, 2, 2],
            [-1, -2, 0, -2, 1, -1, -1, 2],
            [-2, 0, -2, 1, 1, 1, -2, 2],  # orthogonal to the first
        ]
    )
    data = Dataset(X, [1.0, 1, 1, -1, -1, -1])
    found = best(data)
    assert all((side.a != side.b).all() for side in found.sides)
    check_certificate(certified(data, found), data)
