"""Quadratic bounds of tree nodes: against the semidefinite program they solve, and as leaves of a proof."""

from __future__ import annotations

import copy
import json
import math

import cvxpy as cp
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from checks import repeated
from widemargin import pricing
from widemargin.data import disks, parity
from widemargin.margins import f1
from widemargin.pricing import Stage
from widemargin.pricing.moments import FrankWolfe, Splitting, project, project_triangle, trust_region
from widemargin.pricing.signs import ACTIVE, FREE, INACTIVE, Tree
from widemargin.types import Dataset
from widemargin.verify import check, digest


def semidefinite(X: np.ndarray, c: np.ndarray, sign: np.ndarray, strong: bool, linear: np.ndarray) -> float:
    """The program of `moments` written down again for an interior-point solver; c > 0 first."""
    n, d = X.shape
    size = np.linalg.norm(X, axis=1)
    Z = cp.Variable((d + 1, d + 1), PSD=True)
    m, V = Z[:d, d], Z[:d, :d]
    t = X @ m
    q = (X[:, :, None] * X[:, None, :]).reshape(n, -1) @ cp.vec(V, order="C")
    rules, total = [Z[d, d] == 1, cp.trace(V) <= 1], linear @ m
    for i in range(n):
        s = {ACTIVE: 1.0, INACTIVE: -1.0}.get(sign[i]) if i < len(sign) else None
        if c[i] < 0:
            total += c[i] * cp.maximum(0, t[i], (t[i] + q[i] / size[i]) / 2)
        elif s is None:
            total += c[i] * (t[i] + cp.sqrt(q[i])) / 2
        else:
            total += c[i] * t[i] * (s > 0)
            rules.append(s * t[i] >= 0)
            if strong:
                rules.append(s * size[i] * t[i] >= q[i])
                for j in range(i):
                    if sign[j] != FREE:
                        rules.append((1 if sign[i] == sign[j] else -1) * (X[i] @ V @ X[j]) >= 0)
    problem = cp.Problem(cp.Maximize(total), rules)
    problem.solve(solver="CLARABEL")
    return float(problem.value)


def example(seed: int, d: int = 5):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((14, d)) * rng.uniform(0.3, 3, (14, 1))
    c = np.append(rng.random(8), -rng.random(6))
    v = rng.standard_normal(d)
    sign = np.where(X[:8] @ v > 0, ACTIVE, INACTIVE)
    sign[rng.permutation(8)[: rng.integers(0, 9)]] = FREE
    return X, c, sign, 0.1 * rng.standard_normal(d)


@repeated("seed", range(4), 0)
def test_both_solvers_reach_the_value_of_the_program(seed: int):
    X, c, sign, linear = example(seed)
    tree = Tree(torch.as_tensor(X), torch.as_tensor(c), None, torch.as_tensor(linear))
    nodes = torch.as_tensor(sign.astype(np.int8))[None]
    value = semidefinite(X, c, sign, True, linear)
    for dtype, rtol in ((torch.float64, 3e-4), (torch.float32, 6e-4)):
        solver = Splitting(tree, dtype)
        bounds = [float(solver.solve(nodes, solver.start(), steps)[0].bound) for steps in (1, 10, 600)]
        assert min(bounds) >= value * (1 - 1e-6)
        assert_allclose(bounds[-1], value, rtol=rtol)
    weak, slow = semidefinite(X, c, sign, False, linear), FrankWolfe(tree)
    slow.root_steps = 300
    bound = float(slow.solve(nodes, slow.start(), 300)[0].bound)
    assert weak * (1 - 1e-6) <= bound <= weak * 1.2  # its smoothing costs up to a sixth
    assert value <= weak * (1 + 1e-6)


@pytest.mark.long
def test_ten_steps_from_the_parent_are_nearly_enough():
    """What the tree relies on: a child solved from its parent's state by the default number of steps is within 3 %."""
    data = disks(k=3, d=15, n=64, seed=0, reading="code")
    rng = np.random.default_rng(0)
    c = data.y * rng.dirichlet(np.ones(64))
    tree = Tree(torch.tensor(data.X), torch.as_tensor(c))
    solver = Splitting(tree)
    sign = torch.full((1, tree.positive), FREE, dtype=torch.int8)
    _, state, v = solver.solve(sign, solver.start(), solver.root_steps)
    for i in rng.permutation(tree.positive)[:8]:
        sign = sign.clone()
        sign[0, i] = ACTIVE if float(v[0] @ tree.X[i]) > 0 else INACTIVE
        quadratic, state, v = solver.solve(sign, state, solver.steps)
        exact = solver.solve(sign, state, 1000)[0].bound
        assert float(exact) * (1 - 1e-9) <= float(quadratic.bound) <= float(exact) * 1.03


def test_a_batch_is_a_loop():
    X, c, _, _ = example(3)
    rng = np.random.default_rng(0)
    sign = torch.as_tensor(rng.integers(-1, 2, (9, 8)).astype(np.int8))
    solver = Splitting(Tree(torch.as_tensor(X), torch.as_tensor(c)))
    start = solver.start().expand(9, -1)
    together, states, _ = solver.solve(sign, start, 20)
    for i in range(9):
        alone, state, _ = solver.solve(sign[i : i + 1], start[i : i + 1], 20)
        assert_allclose(alone.bound, together.bound[i], rtol=1e-9)
        assert_allclose(state[0], states[i], atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("steps", [1, 10, 120])
def test_a_gpu_gives_the_same_bounds(steps: int):
    data = disks(k=3, d=15, n=64, seed=0, reading="code")
    c = torch.as_tensor(data.y * np.random.default_rng(0).dirichlet(np.ones(64)))
    sign = torch.as_tensor(np.random.default_rng(1).integers(-1, 2, (50, int((c > 0).sum()))).astype(np.int8))
    found = []
    for device in ("cpu", "cuda"):
        solver = Splitting(Tree(torch.tensor(data.X, device=device), c.to(device)))
        quadratic, _, v = solver.solve(sign.to(device), solver.start().expand(50, -1), steps)
        assert quadratic.bound.device.type == v.device.type == device
        found.append((quadratic.bound.cpu(), quadratic.lam.cpu()))
    for cpu, cuda in zip(*found):
        assert_allclose(cuda, cpu, rtol=1e-6)


def test_projections():
    rng = np.random.default_rng(0)
    x, y, size = rng.normal(0, 2, 300), rng.normal(0, 2, 300), rng.uniform(0.5, 2, 300)
    px, py = (a.numpy() for a in project_triangle(*map(torch.as_tensor, (x, y, size))))
    corners = np.array([[0, 0], [1, 0], [0.5, 0.5]])
    mix = rng.dirichlet(np.ones(3), 4000) @ corners
    for i in range(300):
        there = mix * size[i]
        least = np.hypot(x[i] - there[:, 0], y[i] - there[:, 1]).min()
        own = np.hypot(x[i] - px[i], y[i] - py[i])
        assert own <= least + 1e-12 and own >= least - 0.05 * size[i]
        assert py[i] >= -1e-12 and py[i] <= px[i] + 1e-12 and px[i] + py[i] <= size[i] + 1e-12
    Z = rng.standard_normal((50, 6, 6))
    Z = torch.as_tensor(Z + Z.transpose(0, 2, 1))
    P = project(Z)
    assert float(torch.linalg.eigvalsh(P).min()) >= -1e-9
    assert float(P.diagonal(dim1=1, dim2=2).sum(1).max()) <= 2 + 1e-9
    for _ in range(20):  # the nearest point of a convex set: no obtuse angle
        A = rng.standard_normal((50, 6, 6))
        A = torch.as_tensor(A @ A.transpose(0, 2, 1))
        A = A * (2 * torch.rand(50, 1, 1) / A.diagonal(dim1=1, dim2=2).sum(1)[:, None, None])
        assert float(((Z - P) * (A - P)).sum((1, 2)).max()) <= 1e-9


def test_trust_region_against_a_scan():
    rng = np.random.default_rng(1)
    M, g = rng.standard_normal((40, 2, 2)), rng.standard_normal((40, 2))
    M = M + M.transpose(0, 2, 1)
    angle = np.linspace(0, 2 * np.pi, 4001)
    v = np.concatenate([r * np.stack([np.cos(angle), np.sin(angle)], 1) for r in np.linspace(0, 1, 41)])
    best = (np.einsum("ki,bij,kj->bk", v, M, v) + g @ v.T).max(1)
    value = trust_region(torch.as_tensor(M), torch.as_tensor(g))[0].numpy()
    assert (value >= best - 1e-9).all()
    assert_allclose(value, best, atol=2e-3)


@pytest.fixture(scope="module")
def proof() -> tuple[Dataset, dict]:
    """A certificate whose leaves need quadratic bounds with pairs."""
    data = disks(k=3, d=8, n=40, seed=0, reading="code")
    before = pricing.plan
    pricing.plan = lambda points, folded, seconds, root, hard: [Stage("quadratic", seconds, 1 if root else math.inf)]
    try:
        certificate = f1(data, tol=5e-2, time_limit=60)
    finally:
        pricing.plan = before
    return data, json.loads(json.dumps(certificate.payload()))


def bent_leaves(payload: dict):
    for side in payload["proof"]["sides"]:
        for leaf in side["leaves"]:
            if isinstance(leaf, dict) and leaf.get("pairs"):
                yield side, leaf


def test_leaves_with_pairs_verify(proof):
    data, payload = proof
    assert payload["status"] == "certified"
    assert sum(1 for _ in bent_leaves(payload)) >= 5
    assert check(payload, data.X, data.y)


def test_a_changed_pair_is_found(proof):
    data, payload = proof
    for change, reason in (
        (lambda side, leaf: leaf["pairs"][0].__setitem__(2, -1), "pairs"),
        (lambda side, leaf: leaf["pairs"][0].__setitem__(2, leaf["pairs"][0][2] * 1000), "its bound is larger"),
        (lambda side, leaf: leaf["pairs"][0].__setitem__(1, leaf["pairs"][0][0]), "not fixed"),
        (lambda side, leaf: leaf["pairs"][0].__setitem__(0, len(side["points"])), "pairs"),
        (lambda side, leaf: leaf["pairs"][0].append(1), "pairs"),
    ):
        bad = copy.deepcopy(payload)
        change(*next(bent_leaves(bad)))
        del bad["digest"]
        verdict = check(bad | {"digest": digest(bad)}, data.X, data.y)
        assert not verdict and reason in verdict.failed, verdict.failed


def test_parity_in_a_few_nodes():
    """n=96, d=16: linear bounds need millions of nodes for 1 %; the certificate is small and checks exactly."""
    data = parity(d=16, n=96, seed=0)
    certificate = f1(data, tol=1e-2, time_limit=120)
    assert certificate.status == "certified" and certificate.stats["nodes"] < 1000
    assert certificate.verify(data)
