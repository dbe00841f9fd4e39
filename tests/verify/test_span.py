"""A matrix of size D that is made of few points is looked at in their span. That is the same statement: true bounds are
accepted and slightly smaller ones refused, in the span and in all D dimensions alike.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
import torch

from widemargin.pricing import writing
from widemargin.pricing.points import Points, reduce_rank
from widemargin.pricing.signs import Tree
from widemargin.verify import span as span_module
from widemargin.verify.exact import integers
from widemargin.verify.neuron import pairing
from widemargin.verify.reading import Problem, Refused
from widemargin.verify.tree import eigen_tree, relu_tree

D, SHIFT = 12, 20
UNIT = 1 << SHIFT
ABOVE, BELOW = 1 + 1e-8, 1 - 1e-8


def problem(X, y, degree: int = 1) -> Problem:
    grid, k = integers(np.asarray(X, dtype=float))
    return Problem(grid, k, list(y), degree)


def holds(rule, *arguments) -> bool:
    try:
        rule(*arguments)
    except Refused as refused:
        assert "bound" in refused.item
        return False
    return True


@dataclass
class Seen:
    whole: bool
    sizes: list[int]

    def used(self, rank: int) -> bool:
        return bool(self.sizes) and set(self.sizes) == {D if self.whole else rank}


@pytest.fixture(params=("span", "whole"))
def seen(request, monkeypatch) -> Seen:
    """The sizes of the spaces that were used, with the span and with all dimensions."""
    found = Seen(request.param == "whole", [])
    if found.whole:
        monkeypatch.setattr(span_module, "SPAN", -1)
    real = span_module.Span

    def record(size, *rest):
        found.sizes.append(size)
        return real(size, *rest)

    monkeypatch.setattr(span_module, "Span", record)
    return found


def points(kind: str) -> np.ndarray:
    X = np.random.default_rng(3).standard_normal((3, D))
    if kind == "nearly dependent":  # as centred data are: their sum is zero up to rounding
        X = X - X.mean(axis=0)
        assert 0 < np.linalg.svd(X)[1][-1] < 1e-14
    return X


@pytest.mark.parametrize("kind", ("plain", "nearly dependent", "mirrors"))
def test_quadratic_leaves_in_the_span(seen: Seen, kind: str):
    """Two signs are fixed in the four leaves, with a pair; the bound is worked out in D dimensions, in doubles."""
    X = points(kind)
    if kind == "mirrors":
        X = np.vstack([X, -X[2]])
    c = np.array([2, 1, 1, 1])[: len(X)]
    total = int(c.sum())
    folded, linear = c / total, np.zeros(D)
    if kind == "mirrors":  # relu(-t) = relu(t) - t
        folded, linear = np.array([2, 1, 2]) / total, X[3] / total
    leaves, most = [], 0.0
    for signs in ((1, 1, 0), (1, -1, 0), (-1, 1, 0), (-1, -1, 0)):
        a, b, pi = np.array([0.5, 0.75, 0.25]), np.array([0.125, 0.0, 0.25]), 0.5
        M = (X[:3].T * a) @ X[:3]
        M = M + pi * signs[0] * signs[1] * (np.outer(X[0], X[1]) + np.outer(X[1], X[0])) / 2
        lam = np.ceil(np.linalg.eigvalsh(M)[-1] + 0.5)
        g = b @ X[:3] + linear
        kappa = 0.0
        for i, s in enumerate(signs):
            gains = [folded[i] - b[i]] * (s >= 0) + [b[i]] * (s <= 0)
            kappa += max(max(gain, 0) ** 2 / (4 * a[i]) for gain in gains)
        most = max(most, kappa + lam + g @ np.linalg.solve(lam * np.eye(D) - M, g) / 4)
        whole = {"a": a, "b": b, "lam": np.array([lam])}
        leaf = {name: [int(v * UNIT) for v in values] for name, values in whole.items()}
        leaves.append(leaf | {"lam": leaf["lam"][0], "pairs": [[0, 1, int(pi * UNIT)]]})
    side = {"shift": SHIFT, "points": [0, 1, 2], "tree": [0, 1, -1, -1, 1, -1, -1], "leaves": leaves}
    if kind == "mirrors":
        side["mirrors"] = [[2, 3]]
    given = problem(X, [1] * len(X))
    for factor, good in ((ABOVE, True), (BELOW, False)):
        assert holds(relu_tree, given, c.tolist(), total, Fraction(most * factor), side, "tree") is good
    assert seen.used(3)


def test_linear_leaves_of_few_points():
    """|r|^2 by the Gram matrix of the points: sum c_i |x_i| / 2 + |r| at the root, r = sum c_i x_i / 2 and the mirrors'."""
    x = points("plain")
    X, c = np.array([x[0], x[1], x[2], -x[2]]), np.array([2, 1, 1, -1])
    side = {"shift": 0, "points": [0, 1], "mirrors": [[2, 3]], "tree": [-1], "leaves": [[0, 0]]}
    r = (x[0] + x[1] / 2 + x[2]) / 5
    value = (2 * np.linalg.norm(x[0]) + np.linalg.norm(x[1])) / 10 + np.linalg.norm(r)
    for factor, good in ((ABOVE, True), (BELOW, False)):
        assert (
            holds(relu_tree, problem(X, [1, 1, 1, -1]), c.tolist(), 5, Fraction(value * factor), side, "tree") is good
        )


def test_mirrored_points_that_the_tree_does_not_list_are_in_the_span(seen: Seen):
    """x_1 and -x_1 with weights 1/4 and -1/4 fold into the linear term t_1 / 4 alone, whose vector is not that of x_0."""
    x = points("plain")
    X, c, total = np.array([x[0], x[1], -x[1]]), [2, 1, -1], 4
    a, g = 0.5, x[0] / 4 + x[1] / 4
    M = a * np.outer(x[0], x[0])
    lam = np.ceil(a * x[0] @ x[0] + 0.5)
    value = 0.25**2 / (4 * a) + lam + g @ np.linalg.solve(lam * np.eye(D) - M, g) / 4
    leaf = {"a": [int(a * UNIT)], "b": [UNIT // 4], "lam": int(lam * UNIT)}
    side = {"shift": SHIFT, "points": [0], "mirrors": [[1, 2]], "tree": [-1], "leaves": [leaf]}
    for factor, good in ((ABOVE, True), (BELOW, False)):
        assert holds(relu_tree, problem(X, [1, 1, -1]), c, total, Fraction(value * factor), side, "tree") is good
    assert seen.used(2)


@pytest.mark.parametrize("kind", ("plain", "nearly dependent"))
def test_an_eigen_tree_in_the_span(seen: Seen, kind: str):
    X, c = points(kind), np.array([2, 1, 1])
    side = {"shift": SHIFT, "points": [0, 1], "tree": [0, 1, -1, -1, -1], "leaves": [[[0, 1, UNIT]], [], []]}
    total, most = int(c.sum()), 0.0
    for use, pair in (((2, 1, 1), 1.0), ((2, 0, 1), 0.0), ((0, 1, 1), 0.0)):
        A = (X.T * (np.array(use) / total)) @ X + pair * (np.outer(X[0], X[1]) + np.outer(X[1], X[0])) / 2
        most = max(most, np.linalg.eigvalsh(A)[-1])
    given = problem(X, [1, 1, 1], degree=2)
    for factor, good in ((ABOVE, True), (BELOW, False)):
        assert holds(eigen_tree, given, c.tolist(), total, Fraction(most * factor), side, "eigen-tree") is good
    assert seen.used(3)


def test_pairs_in_the_span(seen: Seen):
    X, y = points("plain"), [1, -1, -1]
    T, a = np.array([0.25, 0.25]), np.array([0.125, 0.25])
    d = X[0] - X[1:]
    M, g = (d.T * a) @ d, (T / 2) @ d
    lam = np.ceil(np.linalg.eigvalsh(M)[-1] + 0.5)
    value = (T * T / (16 * a)).sum() + lam + g @ np.linalg.solve(lam * np.eye(D) - M, g) / 4
    rows = [[0, j + 1, int(T[j] * UNIT), int(a[j] * UNIT)] for j in range(2)]
    proof = {"shift": SHIFT, "lam": int(lam * UNIT), "pairs": rows}
    for factor, good in ((ABOVE, True), (BELOW, False)):
        assert holds(pairing, problem(X, y), [2, 1, 1], 4, Fraction(value * factor), proof) is good
    assert seen.used(3)


def test_the_basis_spans_the_rows():
    """Multiples and zeros are left out; rows that depend on each other otherwise are looked at in all dimensions."""
    X = np.zeros((5, D))
    X[0, :2], X[1, :2], X[2, 5] = (1, 2), (-2, -4), 3
    given = problem(X, [1] * 5)
    found = span_module.span(given, given.grid, 0, "test")
    assert found.size == 2 and np.linalg.matrix_rank(np.vstack([found.basis.T.astype(float), X])) == 2
    assert (found.norm(3) == 3 * (found.basis.T @ found.basis)).all()
    X[3] = X[0] + X[2]
    given = problem(X, [1] * 5)
    assert span_module.span(given, given.grid, 0, "test").basis is None
    nothing = problem(np.zeros((2, D)), [1, -1])
    assert span_module.span(nothing, nothing.grid, 0, "test").size == 0


def test_proofs_of_few_points_in_many_dimensions_are_written_in_their_span(monkeypatch):
    """No leaf costs an eigenvalue problem of size D, and what is written down is what the checker accepts."""
    n, wide = 30, 600
    rng = np.random.default_rng(0)
    X0 = rng.standard_normal((n, wide)) / wide**0.5
    y = np.resize([1, -1], n)
    X, _ = reduce_rank(X0)
    c = y / n
    tree = Tree(torch.as_tensor(X), torch.as_tensor(c))
    log = tree.run(0.0, 1e-6, deadline=np.inf, batch=8, max_nodes=31).log
    sizes, real = [], torch.linalg.eigh

    def eigh(A):
        sizes.append(A.shape[-1])
        return real(A)

    monkeypatch.setattr(torch.linalg, "eigh", eigh)
    side, upper = writing.write(log, X0, c, np.zeros(wide), np.zeros((0, wide), dtype=int), 1.0)
    bent = [leaf for leaf in side["leaves"] if isinstance(leaf, dict)]
    assert len(bent) >= 4 and len(sizes) >= 4 and max(sizes) <= n + 1
    weights = [int(v) for v in y]
    assert holds(relu_tree, problem(X0, y), weights, n, Fraction(upper), side, "tree")
    assert not holds(relu_tree, problem(X0, y), weights, n, Fraction(0.999 * upper), side, "tree")


WIDE = 4200  # columns, of which a matrix is too large for few points


def test_points_that_are_sums_of_others_are_seen_in_the_span_of_the_others():
    """30 points of rank 12 in 5000 dimensions had certificates that were refused: no basis of their span was found."""
    rng = np.random.default_rng(0)
    some = rng.integers(-9, 10, (3, WIDE)).astype(float)
    some[:, 0] = 0.0
    X = np.vstack([some, some[0] + 2 * some[1], some[1] - some[2], 3 * some[0] - some.sum(axis=0)])
    seen = span_module.span(problem(X, [1.0] * 6), X.astype(int), 1, "leaf")
    assert seen.size == 3 and seen.gram.shape == (3, 3)
    # all rows are sums of the basis: their lengths are those of their shadows on it
    products, gram = seen.products(X.astype(int)), seen.gram
    for row, p in zip(X.astype(int).tolist(), products.tolist()):
        bordered = [[*line, v] for line, v in zip(gram.tolist(), p)] + [[*p, sum(v * v for v in row)]]
        assert determinant(bordered) == 0 != determinant(gram.tolist())
    near = X.copy()
    near[3, 0] = 2.0**-200  # no sum any more, and too near to one to be told apart
    with pytest.raises(Refused, match="too large"):
        span_module.span(problem(near, [1.0] * 6), integers(near)[0], 1, "leaf")


def determinant(rows: list[list[int]]) -> Fraction:
    left, product = [[Fraction(v) for v in row] for row in rows], Fraction(1)
    while left:
        pivot = next((row for row in left if row[0]), None)
        if pivot is None:
            return Fraction(0)
        left.remove(pivot)  # the sign does not matter here
        product *= pivot[0]
        left = [[v - row[0] / pivot[0] * u for u, v in zip(pivot[1:], row[1:])] for row in left]
    return product


def test_quadratic_bounds_are_left_out_where_no_span_would_be_found():
    rng = np.random.default_rng(1)
    few, flat = rng.standard_normal((4, WIDE)), rng.integers(-9, 10, (4, WIDE)) @ np.eye(WIDE)
    flat = np.vstack([flat, flat[0] + flat[1]])
    near = np.hstack([1e-170 * few, np.ones((4, 1))])
    for X, taken in ((few, True), (flat, True), (near, False), (near[:, -9:], True)):
        basis = reduce_rank(X)[1]
        assert Points(X, None, 0, torch.device("cpu"), basis).quadratic == taken


def test_elimination_ends_where_it_would_take_hours():
    """140 points in thousands of dimensions, of which one depends on others, were looked at for seconds, 512 for hours."""
    rng = np.random.default_rng(2)
    some = rng.integers(-99, 100, (139, WIDE))
    rows = np.vstack([some, some[0] + some[1]])
    with pytest.raises(Refused, match="too large"):
        span_module.span(problem(rows[:1], [1.0]), rows, 1, "leaf")


@pytest.mark.parametrize("seed", range(5))
def test_the_rows_that_are_kept_are_independent_and_span_all(seed: int):
    rng = np.random.default_rng(seed)
    n, r = int(rng.integers(2, 9)), int(rng.integers(1, 5))
    R = (rng.integers(-2, 3, (n, r)) @ rng.integers(-9, 10, (r, 12))).astype(object)
    R = R[(R != 0).any(axis=1)] * 2 ** int(rng.integers(0, 60))
    R[: len(R) // 2] *= 3**20
    kept = span_module._independent(R @ R.T)
    rank = np.linalg.matrix_rank(
        np.array([[float(Fraction(v, max(map(abs, row)))) for v in row] for row in R.tolist()])
    )
    assert len(kept) == rank
    assert determinant((R[kept] @ R[kept].T).tolist()) != 0
