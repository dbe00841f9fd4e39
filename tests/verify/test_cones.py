"""Proofs by cones: true trees are accepted down to the best bound the rule gives, and nothing below it."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from corpus import cone_sides
from scipy.optimize import lsq_linear
from test_attacks import forged, limited, verdict

from checks import repeated
from widemargin.pricing.cones import Shape
from widemargin.pricing.writing import cones_side
from widemargin.verify import cones, exact
from widemargin.verify.reading import Problem, Refused


def shown(X, c, upper, side):
    """Whether the checker accepts sum_i c_i relu(x_i . v) <= upper |v|."""
    (grid, k), (weights, bits) = exact.integers(X), exact.integers(np.asarray(c, float))
    problem = Problem(grid, k, [1] * len(X), 1)
    try:
        cones.relu_cones(problem, [int(v) for v in weights], 1 << bits, Fraction(upper), side, "side")
    except Refused as refused:
        assert refused.item.endswith("its bound is larger than upper"), refused.item
        return False
    return True


def leaves(tree, r):
    """The cones of a tree, r rows of integers each, as docs/certificates.md says it and nothing else."""
    signs = list(itertools.product([1, -1], repeat=r))
    waiting, found, codes = [np.diag(np.array(s, dtype=object)) for s in signs[::-1]], [], iter(tree)
    while waiting:
        cone, code = waiting.pop(), next(codes)
        if code == -1:
            found.append(cone)
            continue
        i, j = divmod(code, r)
        bits = [max(abs(v) for v in cone[k]).bit_length() for k in (i, j)]
        m = cone[i] * 2 ** (max(bits) - bits[0]) + cone[j] * 2 ** (max(bits) - bits[1])
        m = m // (math.gcd(*m) & -math.gcd(*m))
        first, second = cone.copy(), cone.copy()
        first[i], second[j] = m, m
        waiting += [second, first]
    assert next(codes, None) is None
    return found


def best(lam, frame, X, c):
    """The least |p| that the rule allows at a leaf: p = G^+ (w0 - T beta + s), beta in a box, s >= 0. Bounded least squares."""
    G = (lam @ np.array(frame, dtype=object)).astype(float)
    G /= np.linalg.norm(G, axis=1, keepdims=True)
    T, minus = G @ X.T, c < 0
    A = np.linalg.pinv(G)  # (D, r)
    start = A @ np.maximum(T[:, ~minus], 0) @ c[~minus]
    M = np.hstack([A @ T[:, minus] * c[minus], A])
    high = np.r_[np.ones(minus.sum()), np.full(len(G), np.inf)]
    x = lsq_linear(M, -start, (0, high), method="bvls", tol=1e-15, max_iter=2000).x
    return np.linalg.norm(start + M @ x)


def climbed(X, c, rng, starts=200, steps=300):
    """The largest value of sum_i c_i relu(x_i . v) / |v| that gradient steps find, in coordinates v = a S^-power V."""
    _, S, V = np.linalg.svd(X, full_matrices=False)
    r = np.linalg.matrix_rank(X, tol=1e-9 * S[0])
    S, V = S[:r], V[:r]
    most = 0.0
    for power in (0.0, 0.5, 1.0):
        size = S**-power
        Z = X @ V.T * size  # x . v = Z . a, |v| = |size a|
        a = rng.standard_normal((starts, len(S)))
        for step in range(steps):
            a /= np.linalg.norm(a, axis=1, keepdims=True)
            T, length = a @ Z.T, np.linalg.norm(a * size, axis=1)
            value = np.maximum(T, 0) @ c / length
            most = max(most, value.max())
            slope = (((T > 0) * c) @ Z) / length[:, None] - (value / length**2)[:, None] * a * size**2
            slope /= np.maximum(np.linalg.norm(slope, axis=1, keepdims=True), 1e-300)
            a = a + 0.3 * 0.97**step * slope
    return most


def example(seed):
    """Points, weights, a basis of their span and opposite pairs; all kinds in turn."""
    rng = np.random.default_rng(seed)
    r, kind = 1 + seed % 6, seed // 6 % 4
    n = int(rng.integers(max(3, r), 41 if r < 5 else 16))
    if kind == 0:
        X = rng.integers(-3, 4, (n, r)).astype(float)
    else:
        X = rng.standard_normal((n, r)) * 10 ** (rng.uniform(-2, 2, r) if kind > 1 else np.zeros(r))
    X[:r] += np.eye(r)  # so that they span
    mirrors = []
    if kind in (1, 2):
        X = np.vstack([X, -X[: n // 2]])
        mirrors = [[i, n + i] if i % 2 else [n + i, i] for i in range(n // 2)]
    basis = None
    if kind in (0, 2):
        X = np.rint(X * 2**20) / 2**20
        X = np.hstack([X, X.sum(axis=1, keepdims=True)])  # a column that depends on the others, exactly
        basis = np.hstack([np.eye(r, dtype=int), np.ones((r, 1), dtype=int)])
    y = rng.choice([-1.0, 1.0], len(X))
    q = rng.dirichlet(np.ones(len(X)))
    return X, y, q, basis, mirrors, rng


@repeated("seed", range(24), 0, 1, 2, 3, 4, 5)
def test_true_trees_are_accepted_and_false_bounds_refused(seed):
    X, y, q, basis, mirrors, rng = example(seed)
    sides, bounds, _ = cone_sides(X, q * y, tol=0.02, basis=basis)
    sides = [side | {"mirrors": mirrors} for side in sides] if mirrors else sides
    most = max(climbed(X, s * q * y, rng) for s in (1, -1))
    upper = max(bounds)
    assert most <= upper * (1 + 1e-9) and upper <= 1.03 * most  # the solver's tree is good, and so is the search
    proof = {"type": "cones", "sides": sides}
    found = verdict("f1", X, y, 0.0, upper * (1 + 1e-6), dual=q.tolist(), proof=proof)
    assert found and f"side -1: {sum(v < 0 for v in sides[1]['tree'])} cones" in str(found), found
    found = verdict("f1", X, y, 0.0, 0.999 * most, dual=q.tolist(), proof=proof)
    assert not found and found.failed.endswith("its bound is larger than upper"), found


@repeated("seed", range(24), 0, 1, 2, 3, 4, 5)
def test_leaves_are_bounded_as_well_as_the_rule_allows_and_never_better(seed):
    """Random trees, most of them with a bound far from the maximum: the checker finds what bounded least squares finds."""
    X, y, q, basis, _, rng = example(100 + seed)
    c = q * y
    sides, _, _ = cone_sides(X, c, tol=10.0, basis=basis)  # only the frame is of interest
    frame, r = sides[0]["frame"], len(sides[0]["frame"])
    tree = []
    for _ in range(2**r):
        waiting = 1
        while waiting:
            cut = r > 1 and rng.random() < 0.4
            tree.append(int(rng.choice([i * r + j for i in range(r) for j in range(i + 1, r)])) if cut else -1)
            waiting += 1 if cut else -1
    for s in (1, -1):
        exactly = max(best(lam, frame, X, s * c) for lam in leaves(tree, r))
        side = {"frame": frame, "tree": tree}
        assert shown(X, s * c, exactly * (1 + 1e-6) + 1e-12, side)
        assert exactly < 1e-9 or not shown(X, s * c, exactly * (1 - 1e-7), side)


@pytest.mark.parametrize("r", [1, 2, 3])
def test_every_orthant_counts(r):
    """One point: the maximum |x| lies in its orthant, and in the others there is less."""
    for signs in itertools.product([1.0, -1.0], repeat=r):
        x = np.array([signs]) * (2.0 + np.arange(r))
        side = {"frame": np.eye(r, dtype=int).tolist(), "tree": [-1] * 2**r}
        size = float(np.linalg.norm(x))
        assert shown(x, [1.0], size * (1 + 1e-9), side)
        assert not shown(x, [1.0], size * (1 - 1e-9), side)


@pytest.mark.parametrize("frame", [[[1]], [[-3]], [[2**60 + 1]]])
@pytest.mark.parametrize("weights", [[1.0], [1.0, -0.5], [-1.0]])
def test_roundings_go_to_the_safe_side(frame, weights):
    """Points that need more bits than the checker takes, a bound that is false by less than that."""
    tiny = 2.0**-40
    x = np.array([[1.0 + tiny], [1.0 - tiny]])[: len(weights)]
    true = max(Fraction(0), sum((Fraction(a) * Fraction(b) for a, b in zip(weights, x[:, 0])), Fraction(0)))
    side = {"frame": frame, "tree": [-1, -1]}
    if true:
        assert not shown(x, weights, true - Fraction(1, 2**42), side)
    assert shown(x, weights, true + Fraction(1, 2**30), side)
    assert shown(-x, weights, true + Fraction(1, 2**30), side)


def test_points_with_negative_weight_are_rounded_down():
    """The negative weight is the larger one; the third point only makes the checker round at all."""
    x = np.array([[1.9375], [1.0], [1.0 + 2.0**-40]])
    weights = [0.625, -1.0, 2.0**-60]
    true = Fraction(0.625 * 1.9375 - 1.0)
    side = {"frame": [[1]], "tree": [-1, -1]}
    assert not shown(x, weights, true - Fraction(1, 2**36), side)
    assert shown(x, weights, true + Fraction(1, 2**30), side)


def test_small_integers_and_nothing_at_all():
    """Without rounding: the bound itself is accepted, and what is 0 is shown to be 0."""
    side = {"frame": [[1, 0], [0, 1]], "tree": [-1] * 4}
    assert shown(np.array([[3.0, 4.0]]), [1.0], 5, side)
    assert not shown(np.array([[3.0, 4.0]]), [1.0], 5 - Fraction(1, 2**40), side)
    assert shown(np.array([[3.0, 4.0], [0.0, 0.0]]), [-1.0, 1.0], 0, side)
    assert shown(np.array([[3.0, 4.0], [1.0, 1.0]]), [0.0, 0.0], 0, side)
    for upper, good in ((5e-324, False), (1e-300, False), (1e300, True), (1.7e308, True)):
        assert shown(np.array([[3.0, 4.0], [1.0, -1.0], [2.0, -1.0]]), [0.5, -1.0, 1.0], upper, side) == good
    mirrors = {"mirrors": [[0, 1]]}  # relu(t) - relu(-t) = t, without a chord
    X = np.array([[3.0, 4.0], [-3.0, -4.0]])
    assert shown(X, [1.0, -1.0], 5, side | mirrors)
    assert not shown(X, [1.0, -1.0], 5 - Fraction(1, 2**40), side | mirrors)


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1e30, 1e300])
def test_scales_do_not_matter(scale):
    X = np.array([[3.0, 1.0], [1.0, -2.0], [-1.0, -1.0]])
    c = np.array([0.5, -0.25, 0.25])
    sides, bounds, _ = cone_sides(X, c, tol=1e-4)
    assert shown(X * scale, c, Fraction(bounds[0] * (1 + 1e-6)) * Fraction(scale), sides[0])
    assert not shown(X * scale, c, Fraction(bounds[0] * (1 - 1e-3)) * Fraction(scale), sides[0])
    weights = c * scale
    assert shown(X, weights, Fraction(bounds[0] * (1 + 1e-6)) * Fraction(scale), sides[0])
    assert not shown(X, weights, Fraction(bounds[0] * (1 - 1e-3)) * Fraction(scale), sides[0])


# ------------------------------------------------------------ wrong trees and frames

SQUARE = np.array([[1.0, 2.0], [-1.0, 1.0], [2.0, -1.0]])
LABELS = [1.0, 1.0, -1.0]
GOOD = {"frame": [[1, 0], [0, 1]], "tree": [-1, 1, -1, -1, -1, -1]}


def said(X=SQUARE, y=LABELS, upper=99.0, **fields):
    proof = {"type": "cones", "sides": [GOOD | {"sign": s} | fields for s in (1, -1)]}
    return verdict("f1", X, y, 0.0, upper, dual=[0.5, 0.25, 0.25][: len(y)], proof=proof).failed


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ([-1, 1, -1, -1, -1], "the tree is not complete"),
        ([-1, 1, -1, 1, -1, -1, -1], "the tree is not complete"),
        ([-1, 1, -1, -1, -1, -1, -1], "the tree goes on after its last leaf"),
        ([-1, -1, -1], "the tree has 3 entries for 4 orthants"),
        ([], "the tree has 0 entries for 4 orthants"),
        (None, "tree: missing or not a list"),
        *(
            ([-1, code, -1, -1, -1, -1], "tree entry 1 is no edge and no leaf")
            for code in (0, 2, 3, 4, 5, -2, 1.0, True, "1", None, [1], 2**70)
        ),
        ([1] * 30 + [-1] * 34, "makes a generator with entries above 2^24"),
    ],
)
def test_wrong_trees_are_refused(tree, words):
    assert said() is None
    assert words in said(tree=tree)


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        ([], "the frame has 0 rows"),
        ([[1, 0], [0, 1], [1, 1]], "the frame has 3 rows"),
        ([[1, 2], [2, 4]], "linearly dependent"),
        ([[0, 0], [0, 1]], "linearly dependent"),
        ([[1, 0], [0, 1.0]], "not an integer in the allowed range"),
        ([[1, 0], [0, True]], "not an integer in the allowed range"),
        ([[1, 0], [0, 2**512 + 1]], "not an integer in the allowed range"),
        ([[1, 0], [0]], "has 1 entries, expected 2"),
        ([[1, 0], 7], "missing or not a list"),
        (None, "missing or not a list"),
    ],
)
def test_wrong_frames_are_refused(frame, words):
    assert words in said(frame=frame)


def test_large_frames_are_no_trouble_and_skew_ones_prove_nothing():
    assert said(frame=[[2**512, 1], [0, -(2**512)]]) is None
    assert said(frame=[[2**20, 1], [0, 1]]) is None
    # determinant 1: independent, but the cones are so thin or so flat that no number of bits is enough
    assert said(frame=[[2**500, 2**500 - 1], [2**500 + 1, 2**500]]).endswith("its bound is larger than upper")


def least(X, y, low, high, **fields):
    """The least upper bound that is accepted, to 1e-9."""
    assert said(X, y, high, **fields) is None and said(X, y, low, **fields) is not None
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (low, middle) if said(X, y, middle, **fields) is None else (middle, high)
    return high


def test_what_points_have_beside_the_span_is_added():
    X = np.hstack([SQUARE, SQUARE.sum(axis=1, keepdims=True)])
    plane = {"frame": [[1, 0, 1], [0, 1, 1]]}
    exact = least(X, LABELS, 0.0, 99.0, **plane)
    # Point 1, with weight 1/4, moves along the normal (1, 1, -1) / sqrt 3 of the plane: its distance counts a quarter.
    for far in (2.0**-50, 2.0**-10, 0.5):
        off = X.copy()
        off[1] += far * np.array([1.0, 1.0, -1.0])
        assert least(off, LABELS, 0.0, 99.0, **plane) == pytest.approx(exact + 0.25 * far * np.sqrt(3), abs=1e-8)
    # A wrong plane proves no more than what is true.
    rng = np.random.default_rng(0)
    for _ in range(5):
        frame = rng.integers(-3, 4, (2, 3)).tolist()
        if np.linalg.matrix_rank(frame) == 2:
            assert least(X, LABELS, 0.0, 99.0, frame=frame) >= exact - 1e-6
    assert "too far from the span" in said(X, upper=0.01, frame=[[1, 0, 0], [0, 0, 1]])
    # Weights that vanish when an opposite pair is folded leave a linear part, whose distance counts in the same way.
    Z = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    line = {"frame": [[1, 0]], "tree": [-1, -1], "mirrors": [[1, 2]]}
    assert least(Z, [1.0, 1.0, -1.0], 0.0, 9.0, **line) == pytest.approx(0.5 + 0.25, abs=1e-8)
    assert said(Z, [1.0, 1.0, 1.0], mirrors=[[0, 1]]).endswith("points 0 and 1 are not opposite")


@pytest.mark.slow
def test_long_trees_and_many_points_stay_small():
    """A million entries of a chain; 8,192 cones with 3,000 points, of which no state for each pair is held: within 0.8 GB."""
    chain = [1] * 500_000 + [-1] * 500_004
    proof = {"type": "cones", "sides": [GOOD | {"sign": s, "tree": chain} for s in (1, -1)]}
    keys = {"dual": [0.5, 0.25, 0.25], "proof": proof}
    assert limited(forged("f1", SQUARE, LABELS, 0.0, 9.0, **keys), SQUARE, LABELS)[0].endswith("above 2^24")
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((3000, 3)), rng.choice([-1.0, 1.0], 3000)
    tree = []
    for _ in range(8):
        grow = [10]
        while grow:
            level = grow.pop()
            tree.append([1, 5, 2][level % 3] if level else -1)
            grow += [level - 1] * 2 if level else []
    sides = [{"sign": s, "frame": np.eye(3, dtype=int).tolist(), "tree": tree} for s in (1, -1)]
    keys = {"dual": [1 / 3000] * 3000, "proof": {"type": "cones", "sides": sides}}
    assert limited(forged("f1", X, y, 0.0, 9.0, **keys), X, y)[0] is None


# ------------------------------------------------------------ the writer


def test_a_tree_is_written_in_preorder():
    """Orthants 0-3; 1 is cut into 4 and 5; then 5 and 0 in one batch: first children 6 and 7, second ones 8 and 9."""
    parent, edge = [[-1] * 4, [1, 1], [5, 0, 5, 0]], [[-1] * 4, [1, 1], [1, 1, 1, 1]]
    shape = Shape([torch.tensor(p) for p in parent], [torch.tensor(e) for e in edge])
    side = cones_side(SQUARE, np.eye(2, dtype=int).tolist(), shape)
    assert side == {"frame": [[1, 0], [0, 1]], "tree": [1, -1, -1, 1, -1, 1, -1, -1, -1, -1]}
    with pytest.raises(ValueError, match="rows of 2 integers"):
        cones_side(SQUARE, [[1, 0, 0]], shape)
    with pytest.raises(ValueError, match="8 orthants of 3"):
        cones_side(np.eye(3), np.eye(3, dtype=int).tolist(), shape)


def test_a_written_tree_has_the_cones_of_the_solver():
    X, y, q, basis, _, _ = example(8)
    sides, bounds, _ = cone_sides(X, q * y, tol=1e-3, basis=basis)
    assert len(sides[0]["tree"]) > 20
    for sign, side, bound in zip((1, -1), sides, bounds):
        r = len(side["frame"])
        exactly = max(best(lam, side["frame"], X, sign * q * y) for lam in leaves(side["tree"], r))
        assert exactly <= bound * (1 + 1e-9) and exactly > 0.99 * bound


def test_a_frame_that_doubles_cannot_invert_is_no_error():
    """Its rows are independent, and one up to rounding: what is found may be poor, and is still a proof or none."""
    X = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 2.0], [2.0, 1.0]])
    c = np.array([1.0, -0.5, -0.7, 0.3])
    side = {"frame": [[1, 1 << 200], [0, 1 << 200]], "tree": [-1] * 4}
    assert not shown(X, c, 1.0, side)


def test_points_of_few_digits_lose_none_beside_one_of_many():
    """The least objective of 56 points of eight bits each was certified, and the checker called the bound of a cone too small."""
    X = np.array([[1 + 2.0**-40], *[[2.0**-20]] * 10])
    c = np.array([2.0**-40, *[1.0, -1.0] * 5])
    most, side = c[0] * X[0, 0], {"frame": [[1]], "tree": [-1, -1], "mirrors": []}
    assert shown(X, c, most * (1 + 1e-9), side) and not shown(X, c, most * (1 - 1e-12), side)
