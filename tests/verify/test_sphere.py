"""The proof `enumeration` in three dimensions: F(v) = sum_i c_i relu(v . x_i) <= upper |v| for all v."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from corpus import hand_made

from checks import dual_values, seal, unit
from widemargin import verify
from widemargin.verify import sphere
from widemargin.verify.exact import integers
from widemargin.verify.neuron import enumeration
from widemargin.verify.reading import Problem, Refused


def refusal(X, c, upper, degree=1):
    """None if the checker accepts `upper`, else its words."""
    grid, k = integers(np.asarray(X, dtype=float))
    weights, kc = integers(np.asarray(c, dtype=float))
    problem = Problem(grid, k, [1] * len(grid), degree)
    try:
        enumeration(problem, [int(w) for w in weights.tolist()], 1 << kc, Fraction(upper), {}, "e")
    except Refused as refused:
        return refused.item
    return None


TOO_LARGE = "e: the maximum is larger than upper"


def by_patterns(X, c, active=None, near=None):
    """The maximum from its definition, without geometry: the gradients of all patterns of active points (or those given),
    each also projected to the plane of each point (or those near), and the lines in which two planes meet."""
    if active is None:
        active = np.array(list(itertools.product([0.0, 1.0], repeat=len(X))))
    g = active @ (c[:, None] * X)
    U = X if near is None else X[near]
    U = unit(U[U.any(axis=1)])
    V = [g, -g]
    for u in U:
        V.append(g - (g @ u)[:, None] * u)
        V += [np.cross(u, U), -np.cross(u, U)]
    V = np.concatenate(V)
    V = V[V.any(axis=1)]
    return max(0.0, float(dual_values(unit(V), X, c).max(initial=0.0)))


def by_search(X, c, rng):
    """A lower bound of the maximum, and the maximum itself unless the search misses it: a grid, ever smaller steps from its
    best places, then the patterns and the points that are almost zero there."""
    V = unit(rng.standard_normal((4000, 3)))
    best = V[np.argsort(-dual_values(V, X, c))[:12]]
    size = 0.1
    while size > 1e-6:
        V = unit((best[:, None] + size * rng.standard_normal((len(best), 60, 3))).reshape(-1, 3))
        V = np.concatenate([best[:, None], V.reshape(len(best), -1, 3)], axis=1)
        values = dual_values(V.reshape(-1, 3), X, c).reshape(len(best), -1)
        best = V[np.arange(len(best)), values.argmax(axis=1)]
        size *= 0.7
    most = 0.0
    for v in best:
        V = unit(v + 1e-4 * rng.standard_normal((400, 3)))
        near = np.abs(unit(X) @ v) < 1e-3
        most = max(most, by_patterns(X, c, np.unique(V @ X.T > 0, axis=0), near))
    return most


def general(rng, n):
    return rng.standard_normal((n, 3))


def repeated(rng, n):
    """Equal points, opposite points and points on one ray."""
    X = rng.standard_normal((n, 3))
    return X[rng.integers(0, (n + 1) // 2, n)] * rng.choice([1.0, -1.0, 2.0, -0.25], n)[:, None]


def small_integers(rng, n):
    """Many circles through one vertex, points on the axes and in coordinate planes, zeros."""
    return rng.integers(-1, 2, (n, 3)).astype(float)


def odd_plane(rng, n):
    """All in one plane that is exact in doubles and lies across the axes."""
    a, b = rng.integers(-(2**20), 2**20, (2, n)).astype(float)
    return np.column_stack([a, b, 3 * a - 7 * b])


def coordinate_plane(rng, n):
    return rng.standard_normal((n, 3)) * [1.0, 0.0, 1.0]


def one_line(rng, n):
    return rng.choice([-3.0, -1.0, 0.5, 2.0], n)[:, None] * [0.1, -0.7, 0.3]


def scales(rng, n):
    return rng.standard_normal((n, 3)) * 10.0 ** rng.integers(-9, 3, 3)


def nearly_one_line(rng, n):
    """Lines that are equal in float64, and circles that meet at almost the same place: signs need integers."""
    return np.column_stack([np.ones(n), *(rng.integers(-5, 6, (2, n)) * 2.0**-55)])


def nearly_one_plane(rng, n):
    return rng.standard_normal((n, 3)) * [1.0, 1.0, 2.0**-58]


def almost_repeated(rng, n):
    X = rng.integers(-3, 4, (n, 3)).astype(float)
    return X[rng.integers(0, n, n)] + rng.integers(-1, 2, (n, 3)) * 2.0**-52


SETS = [
    *(general, repeated, small_integers, odd_plane, coordinate_plane, one_line, scales),
    *(nearly_one_line, nearly_one_plane, almost_repeated),
]


def weights(rng, n):
    return rng.uniform(-1, 1, n) * rng.choice([1.0, 1.0, 0.0, 30.0], n) + rng.choice([0.0, 0.5, -0.5])


@pytest.mark.parametrize("make", SETS)
def test_few_points_against_all_patterns(make):
    shown = 0
    for seed in range(25):
        rng = np.random.default_rng([seed, 1])
        n = int(rng.integers(1, 7))
        X = make(rng, n)
        c = weights(rng, n)
        most = by_patterns(X, c)
        size = float(np.abs(c) @ np.linalg.norm(X, axis=1))
        assert refusal(X, c, most * (1 + 1e-9) + 1e-13 * size) is None
        if most > 1e-5 * size:
            assert refusal(X, c, most * (1 - 1e-9)) == TOO_LARGE
            shown += 1
    assert shown >= 8


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("make", [general, repeated, small_integers, odd_plane])
def test_more_points_against_a_search(make, positive):
    """Positive weights: the maximum is inside a cell, and with so many circles in one that no axis touches."""
    for seed in range(4):
        rng = np.random.default_rng([seed, 2])
        n = int(rng.integers(10, 41))
        X = make(rng, n)
        c = np.abs(weights(rng, n)) if positive else weights(rng, n)
        most = by_search(X, c, rng)
        assert most > 0
        assert refusal(X, c, most * (1 + 1e-9)) is None
        assert refusal(X, c, most * (1 - 1e-9)) == TOO_LARGE


@pytest.mark.parametrize(
    "X,c,most",
    [
        ([[2, 3, 6]], [1], 7),  # inside a cell
        ([[3, 4, 1], [0, 0, 1]], [1, -10], 5),  # inside an arc: (3, 4, 0)
        ([[1, 1, 7], [1, 0, 0], [0, 1, 0]], [1, -10, -10], 7),  # at a vertex: (0, 0, 1)
        ([[-1, 2, -2], [-2, -2, -1], [2, 1, 2]], [1, -10, 0], 3),
        ([[1, 2, 2], [-1, -2, -2], [2, 4, 4]], [1, 0, -0.25], 1.5),  # one line
        ([[1, 2, 2], [-1, -2, -2]], [-1, 1], 3),  # only against the line's own direction
        ([[0, 0, 0]], [1], 0),
        ([[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1]], [-1] * 6, 0),  # negative everywhere
    ],
)
@pytest.mark.parametrize("turn", range(3))
def test_the_maximum_itself_is_accepted_and_nothing_less(X, c, most, turn):
    """Integers decide: 2^-300 of the bound, far below a float's resolution."""
    X = np.roll(np.array(X, dtype=float), turn, axis=1)
    for size in (1.0, 2.0**-400, 2.0**400):
        assert refusal(X * size, c, Fraction(most) * Fraction(size)) is None
        if most:
            assert refusal(X * size, c, Fraction(most) * Fraction(size) * (1 - Fraction(1, 2**300))) == TOO_LARGE


def test_a_maximum_in_a_cell_of_size_1e_20():
    """Only integers see that p is in the triangle cut out by three circles that pass it at a distance of 1e-20 or so (with the
    signs that float64 sees, one seed in thirty misses it); at
    its corners F is smaller by 1e-40 or so."""
    for seed in range(120):
        rng = np.random.default_rng([seed, 4])
        p = np.array([*rng.integers(2**20, 2**25, 2), 1])
        a, b = np.cross(p, rng.integers(-(2**20), 2**20, (2, 3)))
        X = np.array([p, *(z - [0, 0, 1] for z in (a, b, -a - b))])  # p . x = -1
        c = [1.0, *[-(2.0**-20)] * 3]
        root = Fraction(math.isqrt(int(p @ p) << 600), 1 << 300)
        assert refusal(X, c, root + Fraction(1, 1 << 300)) is None
        assert refusal(X, c, root * (1 - Fraction(1, 1 << 200))) == TOO_LARGE


def test_a_maximum_in_a_cell_as_thin_as_1e_20():
    """p is in a triangle whose corners v_k are far apart and have the determinant 1: the three circles are the same in
    float64, even where they meet."""
    tried = 0
    for seed in range(60):
        rng = np.random.default_rng([seed, 6])
        v1, v2 = (np.array(v.tolist(), dtype=object) for v in rng.integers(2**10, 2**24, (2, 3)))
        normal = np.cross(v1, v2)
        g = math.gcd(int(normal[0]), int(normal[1]))
        if math.gcd(g, int(normal[2])) > 1:
            continue
        k = pow(int(normal[2]), -1, g)  # k normal[2] = 1 modulo g, and the first two have all multiples of g
        l = pow(int(normal[0]) // g, -1, int(normal[1]) // g) * ((1 - k * normal[2]) // g)
        v3 = np.array([l, ((1 - k * normal[2]) // g - l * (normal[0] // g)) // (normal[1] // g), k], dtype=object)
        assert normal @ v3 == 1
        for v, other in ((v1, v2), (v2, v1)):  # v3 plus multiples of v1 and v2: between them
            across = np.cross(other, normal)
            v3 = v3 - (v3 @ across * 2 - v @ across) // (v @ across * 2) * v
        corners, p = (v1, v2, v3), v1 + v2 + v3
        X = [p, *(-np.cross(corners[i - 2], corners[i - 1]) for i in range(3))]
        assert all(p @ x == -1 for x in X[1:]) and max(abs(x).max() for x in X) < 2**53
        c = [1.0, *[-(2.0**-24)] * 3]
        root = Fraction(math.isqrt(int(p @ p) << 1200), 1 << 600)
        assert refusal(X, c, root + Fraction(1, 1 << 600)) is None
        assert refusal(X, c, root * (1 - Fraction(1, 1 << 500))) == TOO_LARGE
        tried += 1
    assert tried > 10


@pytest.mark.parametrize("make", [general, small_integers, odd_plane])
@pytest.mark.parametrize("block", [1, 1 << 20])
def test_all_vertices_arcs_and_cells_are_met(make, block, monkeypatch):
    """With eps so large that nothing is decided in float64. Euler: cells = arcs - vertices + 2."""
    rng = np.random.default_rng(3)
    grid, k = integers(make(rng, 9))
    lines = sphere.lines_of(Problem(grid, k, [1] * 9, 1), [1] * 9)
    lines = {u: [int(w) for w in rng.integers(1, 2**40, 2)] for u in lines}  # so that all gradients differ
    monkeypatch.setattr(sphere, "BLOCK", block)
    one = sphere.Sphere(lines, Fraction(0), "e")
    one.eps = 1e9
    met: dict[int, set] = {0: set(), 1: set(), 2: set()}
    exact = one.candidate

    def candidate(v, i, end, way, side):
        w = exact(v, i, end, way, side)
        met[2 if side else 1].add(w if side else (i, w))
        return None

    monkeypatch.setattr(one, "candidate", candidate)
    monkeypatch.setattr(one, "compare", lambda w: w and met[0].add(w))
    one.run()
    U, on = list(lines), {}
    for i, j in itertools.permutations(range(len(U)), 2):  # both signs of the product
        v = np.cross(np.array(U[i], dtype=object), np.array(U[j], dtype=object))
        on.setdefault(tuple((v // np.gcd.reduce(v)).tolist()), set()).update((i, j))
    arcs = sum(map(len, on.values()))  # a circle has as many arcs as vertices
    assert met[0] == set(on)
    assert len(met[1]) == arcs and len(met[2]) == arcs - len(on) + 2


def test_a_maximum_far_below_the_weights():
    """relu(a) - relu(a + e b) has the maximum e / sqrt(1 + e^2) = e (1 - 2^-121 + ...) at (e, -1, 0), e = 2^-60."""
    X, c, e = [[1, 0, 0], [1, 2.0**-60, 0]], [1, -1], Fraction(1, 2**60)
    assert refusal(X, c, e * (1 - Fraction(1, 2**122))) is None
    assert refusal(X, c, e * (1 - Fraction(1, 2**120))) == TOO_LARGE


def test_signs_of_integers_beyond_the_doubles():
    """Three circles through one vertex whose angles are 2^-1070: their sides are decided by integers above 2^1024."""
    X = [[2.0**600, k * 2.0**-470, 0] for k in (1, 2, 3)] + [[0, 2.0**-470, 2.0**600]]
    c = [1, 1, -1, 0.5]
    true = Fraction(2**600)  # nearly: at (1, 0, 0); the last point adds less than half of its own length
    assert refusal(X, c, true * 2) is None
    assert refusal(X, c, true * Fraction(99, 100)) == TOO_LARGE


def test_other_activations_more_circles_and_hopeless_cases_are_refused_in_words(monkeypatch):
    rng = np.random.default_rng(0)
    X, c = rng.standard_normal((20, 3)), rng.standard_normal(20)
    assert refusal(X, c, 1e9) is None
    assert "three for relu" in refusal(X, c, 1e9, degree=2)
    assert "three for relu" in refusal(rng.standard_normal((20, 4)), c, 1e9)
    assert refusal(X, c, Fraction(-1, 10**9)) == "e: upper is negative"
    same = np.tile(X, (100, 1))  # 2000 points on 20 lines
    assert refusal(same, np.tile(c, 100), 1e9) is None
    monkeypatch.setattr(sphere, "LINES", 22)
    assert refusal(X, c, 1e9) == "e: 23 great circles, more than 22 are not looked at in three dimensions"
    assert refusal(X[1:], c[1:], 1e9) is None
    monkeypatch.setattr(sphere, "STEPS", 1000)
    for column in range(3):  # columns of different size are no trouble: all signs v . x would be close to 0
        flat = X * np.where(np.arange(3) == column, 2.0**-80, 1.0)
        assert refusal(flat[1:], c[1:], 1e9) is None
    monkeypatch.setattr(sphere, "STEPS", 100)
    tiny = [[1, 0, 0], [1, 2.0**-60, 0], [1, 0, 2.0**-60]]
    assert refusal(tiny, [1, -0.5, -0.5], 2.0**-58).startswith("e: not decided")
    monkeypatch.undo()
    assert refusal(tiny, [1, -0.5, -0.5], 2.0**-58) is None


@pytest.mark.parametrize("block", [1, 400])
def test_blocks_of_vertices_change_nothing(block, monkeypatch):
    rng = np.random.default_rng(5)
    X, c = np.concatenate([general(rng, 8), small_integers(rng, 12)]), weights(rng, 20)
    most = by_search(X, c, rng)
    monkeypatch.setattr(sphere, "BLOCK", block)
    assert refusal(X, c, most * (1 + 1e-9)) is None
    assert refusal(X, c, most * (1 - 1e-9)) == TOO_LARGE


def test_certificates_by_enumeration_in_three_dimensions():
    """Trees of the corpus proved these bounds; enumeration proves them too, and sharper ones up to the margin itself."""
    found = {name: rest for name, *rest in hand_made() if name.endswith("sphere")}
    assert len(found) == 3
    for name, (payload, X, y) in found.items():
        verdict = verify.check(payload, X, y)
        assert verdict.ok, (name, str(verdict))
        assert "vertices" in str(verdict) or payload["kind"] != "f1"
        low, high = payload["lower"], payload["upper"]
        if payload["kind"] == "f1":
            false = payload | {"upper": low * (1 - 1e-9), "lower": 0.0, "status": "rounding"}
        else:
            false = payload | {"lower": high * (1 + 1e-9), "upper": 1e300, "status": "rounding"}
            false["proof"] = payload["proof"] | {"maximum": payload["proof"]["maximum"] * (low / high) * (1 - 1e-6)}
        assert verify.check(seal(false), X, y).failed.endswith("the maximum is larger than upper"), name
