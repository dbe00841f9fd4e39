"""One small certificate for every step of a rule that a proof could do without: each is refused for that step alone.

Found by breaking the checker on purpose, one step at a time.
"""

import copy
import itertools
import json
import math
from fractions import Fraction

import numpy as np
import pytest
from corpus import written_before
from test_attacks import PLANE, sampled, verdict

from checks import seal
from widemargin import margins, verify
from widemargin.types import Dataset
from widemargin.verify import batchnorm, check, exact, kernels, multiclass, networks, reading, regression
from widemargin.verify.transport import ntk_radial, sample_key


def tree_sides(plus, n=1):
    minus = {"sign": -1, "shift": 0, "points": list(range(n)), "tree": [-1], "leaves": [[0] * n]}
    return {"type": "tree", "sides": [{"sign": 1, "shift": 0} | plus, minus]}


def f1(X, y, upper, dual, plus):
    return verdict("f1", X, y, 0.0, upper, dual=dual, proof=tree_sides(plus, len(X)))


# ------------------------------------------------------------ products


# x = 4 in one dimension: with t = 4 v = w - s, 2 + 2 v^2 - w + w s / 4 = (w - 4)^2 / 8 + s^2 / 8, so relu(t) <= 4
FOUR = {"sign": 1, "points": [0], "shift": 2, "lam": 8, "free": [1], "pairs": []}
NONE = {"sign": -1, "points": [0], "shift": 0, "lam": 0, "free": [0], "pairs": [[0, 1, 1]]}


def multiplied(upper, X=((4.0,),), y=(1,), dual=(1.0,), minus=NONE, **plus):
    proof = {"type": "products", "sides": [FOUR | plus, minus]}
    return verdict("f1", np.array(X), list(y), 0.0, upper, dual=list(dual), proof=proof).failed


def test_the_corner_of_products_is_rounded_down():
    assert multiplied(4.0) is None
    assert multiplied(4.0 - 1 / 16) == "products side +1: the bound is larger than upper"  # half a unit of 2^-3


@pytest.mark.parametrize(
    "fields,failed",
    [
        ({"pairs": [[0, 1, -1]], "lam": 0, "free": [0], "shift": 0}, "pairs: not an integer"),  # 0 - w + w
        ({"lam": -8}, "lam: not an integer"),
        ({"pairs": [[-1, 1, 1]]}, "pairs: not an integer"),
        ({"pairs": [[1, 3, 1]]}, "pairs: not an integer"),
        ({"pairs": [[1, 1, 1]]}, "not of two different parts"),
        ({"pairs": [[1, 0, 1]]}, "not of two different parts"),
        ({"pairs": [[0, 1, True]]}, "pairs: not an integer"),
        ({"free": [1.0]}, "free: not an integer"),
        ({"points": [], "free": []}, "a point with weight is missing"),
    ],
)
def test_products_have_signs_and_places(fields, failed):
    assert failed in multiplied(3.0, **fields)


def test_a_point_of_products_comes_once():
    """x = 4 with +1/2 and x = 2 with -1/2 have the maximum 1; with the second one twice it would be 0."""
    X, y, dual = [[4.0], [2.0]], [1, -1], [0.5, 0.5]
    minus = {"sign": -1, "points": [0, 1], "shift": 2, "lam": 1, "free": [0, 1], "pairs": [[0, 1, 2]]}
    assert multiplied(1.0, X, y, dual, minus) == "products side +1: a point with weight is missing"
    twice = {"points": [0, 1, 1], "free": [0, 0, 0], "pairs": [], "lam": 0, "shift": 0}
    assert multiplied(0.5, X, y, dual, minus, **twice) == "products side +1: points are not increasing"
    assert (
        multiplied(0.5, X, y, dual, minus, points=[1, 0], free=[0, 0]) == "products side +1: points are not increasing"
    )


# ------------------------------------------------------------ trees


def test_a_length_is_rounded_up_where_its_slope_is_positive():
    X, leaf = [[2.0**70, 1.0]], {"a": [0], "b": [0], "lam": 0}  # |x| is above 2^70, by less than the grid shows
    side = {"points": [0], "tree": [-1], "leaves": [leaf]}
    assert f1(X, [1], 2.0**70, [1.0], side).failed.startswith("tree side +1, leaf 0: its bound")
    assert f1(X, [1], math.nextafter(2.0**70, math.inf), [1.0], side)


def test_every_point_with_positive_weight_is_in_the_tree():
    side = {"points": [1], "tree": [-1], "leaves": [[0]]}
    found = f1(PLANE, [1, -1], 0.1, [0.5, 0.5], side)
    assert found.failed == "tree side +1: point 0 has positive weight and is not among points"


def test_a_tree_ends_with_its_last_leaf():
    side = {"points": [0, 1], "tree": [-1, -1], "leaves": [[0, 0], [0, 0]]}
    assert f1(PLANE, [1, -1], 9.0, [0.5, 0.5], side).failed == "tree side +1: the tree goes on after its last leaf"


def test_what_free_points_have_is_below_upper():
    """e_1 is free: 1/2, and a vector of length 1/2 for what is left, which is -1/2 with upper = 0."""
    side = {"points": [0], "tree": [-1], "leaves": [[0]]}
    assert f1([[1.0, 0.0]], [1], 0.0, [1.0], side).failed == "tree side +1, leaf 0: its bound is larger than upper"


def test_a_reflection_moves_the_points_exactly():
    """That of (0, -1) in (3, 2) is (12, -5) / 13, which rounded down is (0, -1) again: the maximum is at v = (0, -1)."""
    side = {"points": [0], "tree": [-1], "leaves": [[0, 0]], "roots": [[3, 2]], "rho": [3.0, 2.0]}
    assert (
        f1([[0.0, -1.0]], [1], 9.0, [1.0], side).failed
        == "tree side +1: root 0 is not a symmetry of the weighted points"
    )


def test_a_symmetry_is_one_of_the_points_before_they_are_folded():
    """(relu(v_1) + relu(-v_2)) / 2 has the maximum sqrt(1/2), at v_1 = -v_2; folded, both points weigh the same."""
    X, dual = [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], [0.5, 0.0, 0.0, 0.5]
    side = {"points": [0, 2], "tree": [-1], "shift": 2, "leaves": [[0, 0, 1]], "mirrors": [[0, 1], [2, 3]]}
    side |= {"roots": [[-1, 1]], "rho": [-1.0, 1.0]}
    assert f1(X, [1] * 4, 0.5, dual, side).failed == "tree side +1: root 0 is not a symmetry of the weighted points"


def test_a_negative_weight_counts_once_at_most():
    """relu(t) >= w t for w in [0, 1]: with w = 2 the two points of one ray would cancel."""
    X, dual = [[2.0, 0.0], [1.0, 0.0]], [0.5, 0.5]
    side = {"points": [0, 1], "tree": [0, -1, -1], "leaves": [[0, 2**33], [0, 0]]}
    assert f1(X, [1, -1], 0.0, dual, side).failed.endswith("a multiplier of a negative weight exceeds 2^32")
    side["leaves"][0][1] = 2**32
    assert f1(X, [1, -1], 0.5, dual, side)


def test_mirrors_are_opposite():
    side = {"points": [0, 1], "tree": [-1], "leaves": [[0, 0]], "mirrors": [[0, 1]]}
    found = f1([[1.0, 0.0], [1.0, 0.0]], [1, -1], 0.5, [0.5, 0.5], side)
    assert found.failed == "tree side +1: points 0 and 1 are not opposite"
    assert f1([[1.0, 0.0], [-1.0, 0.0]], [1, -1], 0.5, [0.5, 0.5], side)


def test_quadratic_leaves_have_signs():
    """One point x = e_1 with margin 1, bounds of 0.5."""
    X, side = [[1.0, 0.0]], {"points": [0], "tree": [0, -1, -1]}
    for leaf, failed in (
        ({"a": [0], "b": [1], "lam": -1}, "leaf 0: lam"),
        ({"a": [0], "b": [0], "lam": 0, "pairs": [[0, 0, 1]]}, "leaf 0: pairs name a point"),
        ({"a": [0], "b": [1], "lam": 0, "pairs": [[0, 0, -1]]}, "leaf 0: pairs"),
    ):
        assert failed in f1(X, [1], 0.5, [1.0], side | {"leaves": [leaf, [0]]}).failed
    both = {"points": [0, 1], "tree": [0, 1, -1, -1, -1], "leaves": [leaf | {"a": [0, 0], "b": [0, 0]}, [0, 0], [0, 0]]}
    both["leaves"][0] |= {"lam": 0, "pairs": [[0, 1, -1]]}
    assert "leaf 0: pairs: not an integer" in f1(PLANE, [1, 1], 0.5, [0.5, 0.5], both).failed
    free = {"points": [0, 1], "tree": [0, -1, -1], "leaves": [{"a": [0, 0], "b": [0, 0], "lam": 0}, [0, 0]]}
    free["leaves"][0]["pairs"] = [[0, 1, 1]]
    assert "leaf 0: pairs name a point" in f1(PLANE, [1, 1], 0.5, [0.5, 0.5], free).failed
    roots = {"roots": [[1, 0]], "rho": [1.0, 0.0], "points": [0, 1], "tree": [-1]}
    leaf = {"a": [0, 0], "b": [0, 0, -1], "lam": 1}
    found = f1([[1.0, 0.0], [-1.0, 0.0]], [1, 1], 9.0, [0.5, 0.5], roots | {"leaves": [leaf]})
    assert found.failed.endswith("leaf 0: a root has a negative multiplier")


def test_the_linear_rest_of_a_leaky_neuron_is_in_the_span():
    """e_1 with +3/4 and e_2 with -1/4, slope 1/4: the maximum is |(3/4, -1/16)|, of which the points of the tree have 3/4."""
    X, dual, activation = [[1.0, 0.0], [0.0, 1.0]], [0.75, 0.25], "leaky:0.25"
    leaf = {"a": [0], "b": [9], "lam": 6}  # in sixteenths: (1 - 1/4) 3/4, and half of 3/4
    plus = {"sign": 1, "shift": 4, "points": [0], "tree": [0, -1, -1], "leaves": [leaf, [0]]}
    minus = {"sign": -1, "shift": 4, "points": [1], "tree": [0, -1, -1], "leaves": [[0], [0]]}
    proof = {"type": "tree", "sides": [plus, minus]}
    for upper, failed in ((0.7527, None), (0.7513, "tree side +1, leaf 0: its bound is larger than upper")):
        found = verdict("f1", X, [1, -1], 0.0, upper, dual=dual, proof=proof, activation=activation)
        assert found.failed == failed


def test_triples_of_an_eigen_tree_use_fixed_points():
    """x = e_1 with margin 1: a negative product would bring the bound down."""
    side = {"shift": 0, "points": [0, 1], "tree": [0, -1, -1], "leaves": [[[0, 1, 1]], []]}
    proof = {"type": "eigen-tree", "sides": [{"sign": s} | side for s in (1, -1)]}
    found = verdict("f1", [[1.0, 0.0], [-1.0, 0.0]], [1, 1], 0.0, 9.0, activation="srelu", proof=proof)
    assert found.failed == "eigen-tree side +1, leaf 0: a triple uses a free point"
    side["leaves"][0] = [[0, 0, -1]]
    assert (
        "multiplier" in verdict("f1", [[1.0, 0.0], [-1.0, 0.0]], [1, 1], 0, 9, activation="srelu", proof=proof).failed
    )


def test_what_the_pairs_leave_is_paid_for():
    empty = {"type": "pairing", "shift": 0, "lam": 0, "pairs": []}
    for upper, good in ((0.999, False), (1.0, True)):
        assert bool(verdict("f1", PLANE, [1, -1], 0.0, upper, dual=[0.5, 0.5], proof=empty)) is good


# ------------------------------------------------------------ distances and cones


def test_every_pair_has_its_distance():
    X, y = [[0.0], [3.0], [1.0]], [1, 1, -1]
    extra, trace = {"rank": 1, "frame": [[1.0]]}, {"type": "trace", "pairs": [[0, 2, 1.0]]}
    half = {"dual": [0.5, 0.0, 0.5], "extra": extra, "proof": trace}
    assert verdict("projected", X, y, 1.0, 1.0, **half)
    X[1] = [1.5]
    assert verdict("projected", X, y, 1.0, 1.0, **half).failed == "lower bound: points 1 and 2"


@pytest.mark.parametrize("kind", ["fantope", "fantope-pairs"])
def test_both_halves_of_a_fantope_bound(kind):
    """Two pairs with differences e_1 and e_2, weights 1/2: the largest eigenvalue of A is 1/2."""
    X, y = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [1, -1, -1]
    pairs = [[0, 1, 0.5], [0, 2, 0.5]]

    def found(t, B, upper):
        proof = {"type": kind, "pairs": pairs, "t": t, "B": B, "shift": 0}
        return verdict("projected", X, y, 0.0, upper, dual=[0.5, 0.25, 0.25], extra={"rank": 1}, proof=proof)

    none, half = [[0.0], [0.0]], math.sqrt(0.5) * (1 + 1e-15)
    assert found(0.5, none, half)
    assert found(0.5, none, 0.7).failed == "upper bound: rank t + tr B B' is larger"
    assert found(0.48, none, 0.7).failed.startswith("upper bound: t I + B B' is not shown")
    full = [[1.0, 0.0], [0.0, 1.0]]
    assert found(0.0, full, 0.7).failed == "upper bound: rank t + tr B B' is larger"
    assert found(0.0, full, 1.5)


@pytest.mark.parametrize("weights", [[0.0], [-1.0]])
def test_weights_of_signs_are_positive(weights):
    proof = {"type": "signs", "pairs": [[0, 1]], "tree": [-1], "leaves": [weights]}
    half = {"dual": [0.5, 0.5], "extra": {"rank": 1}, "proof": proof}
    found = verdict("projected", [[0.0], [1.0]], [1, -1], 0.0, 0.5, **half)
    assert found.failed == "signs, leaf 0: its weights are not nonnegative"
    proof["leaves"] = [[1.0]]
    assert verdict("projected", [[0.0], [1.0]], [1, -1], 0.0, 1.0, **half)


def test_every_condition_of_a_cone():
    """x = e_1, e_2 with different labels, and two cones of gamma_nc = 1."""
    good = {"beta": [[1, -0.5], [-0.5, 1]], "signs": [1, -1], "gamma_nc": 0.75, "eps": 0.25, "strict": False}
    X, y = [[1.0, -0.5], [-0.5, 1.0]], [1, -1]
    cone = {"type": "cone", "point": 0, "weights": [1, 0], "clique": [0]}

    def found(**more):
        return verdict("collapse", X, y, 0.25, 9.0, proof=cone, extra=good | more)

    assert found()
    assert found(eps=0.74, gamma_nc=0.75)  # beta . x = -0.89 for the other point
    assert found(eps=0.9, gamma_nc=1.0).failed == "lower bound: point 0 is neither in cone 1 nor in its polar"
    assert found(signs=[-1, 1]).failed.startswith("lower bound: point 0 is neither in cone 0")
    assert found(signs=[1, 1]).failed.startswith("lower bound: point 1 is neither in cone 1")
    assert found(gamma_nc=1.2).failed.startswith("lower bound: point 0 is neither in cone 0")
    assert found(beta=[[1, 0], [0, 1]], eps=0.01).failed.startswith(
        "lower bound: point 0 is neither in cone 0"
    )  # too wide
    assert found(eps=0.75).failed == "lower bound: not 0 < eps < gamma_nc"
    assert found(gamma_nc=0.49).failed == "lower bound: gamma_nc / r is smaller"
    same = {"type": "cone", "point": 0, "weights": [1, 1], "clique": [0]}
    flat = verdict("collapse", [[1.0], [1.0]], [1, 1], 0.0, 0.0, proof=same, extra={"strict": False}, dual=[0.5, 0.5])
    assert flat.failed == "upper bound: a point of the same label has a weight"
    twice = {"type": "cone", "point": 0, "weights": [1, 0], "clique": [0, 1]}
    near = verdict("collapse", [[1.0], [1.0]], [1, 1], 0.0, 0.5, proof=twice, extra={"strict": False}, dual=[0.5, 0.5])
    assert near.failed == "upper bound: points 1 and 0 could be in one cone"


# ------------------------------------------------------------ several classes


def test_no_weight_on_the_own_class():
    """It would count in the sum, and nowhere else."""
    dual = [[0.5, 0.5], [0.0, 0.0]]
    for kind, proof in (("linear-multiclass", {"type": "dual"}), ("f1-multiclass", {"type": "norm"})):
        found = verdict(kind, PLANE, [0, 1], 0.0, 1.0, dual=dual, proof=proof)
        assert found.failed == "dual: row 0 has a weight on its own class"


def test_the_nearest_other_class_counts():
    X = np.eye(3)
    extra = {"U": [[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]]}
    dual = [[0.0, 1.0, 0.0], [0.0] * 3, [0.0] * 3]
    for lower, good in ((0.5 / math.sqrt(3.25) * (1 - 1e-12), True), (0.5, False)):
        assert bool(verdict("linear-multiclass", X, [0, 1, 2], lower, 9.0, extra=extra, dual=dual)) is good
    network = {"theta": np.eye(3).tolist(), "outer": np.array(extra["U"]).T.tolist()}
    for lower, good in ((0.15, True), (0.25, False)):
        proof = {"type": "norm"}
        found = verdict("f1-multiclass", X, [0, 1, 2], lower, 9.0, extra=network, dual=dual, proof=proof)
        assert bool(found) is good


def test_copositive_matrices():
    rng = np.random.default_rng(0)
    for _ in range(200):
        C = rng.integers(-3, 5, (3, 3)).astype(object)
        C = C + C.T
        a = np.array(list(itertools.product(range(6), repeat=3)), dtype=object)
        if exact.copositive(C):
            assert min((a @ C * a).sum(axis=1)) >= 0
    assert not exact.copositive(np.array([[1, -2], [-2, 1]], dtype=object))
    assert exact.copositive(np.array([[1, 2], [2, 1]], dtype=object))


def least_accepted(problem, g, proof, most):
    """The least bound that `cones` shows, by bisection."""
    low, high = 0.0, most
    for _ in range(40):
        middle = (low + high) / 2
        try:
            multiclass._vector_cones(problem, g, 1, Fraction(middle), proof)
            high = middle
        except reading.Refused:
            low = middle
    return high


@pytest.mark.parametrize("seed", range(12))
def test_cones_never_show_less_than_the_maximum(seed):
    rng = np.random.default_rng(seed)
    n, D, K = 4, 2, 3
    X = rng.integers(-4, 5, (n, D))
    labels = [i % K for i in range(n)]
    q = rng.integers(0, 5, (n, K)).astype(object)
    for i, k in enumerate(labels):
        q[i, k] = 0
    problem = reading.Problem(X, 0, labels, 1)
    g = multiclass.dual_vectors(problem, q.ravel().tolist())
    angle = np.linspace(0, 2 * np.pi, 4001)
    F = np.maximum(np.column_stack([np.cos(angle), np.sin(angle)]) @ X.T, 0) @ g.astype(float)
    true = np.linalg.norm(F, axis=1).max()
    for _ in range(3):
        leaves = [[[i, int(rng.integers(65))] for i in range(n) if g[i].any()] for _ in range(4)]
        found = least_accepted(problem, g, {"tree": [-1] * 4, "leaves": leaves}, 1e4)
        assert true * (1 - 1e-6) <= found < 1e4


def test_every_vertex_of_a_cover_is_proved():
    name, payload, X, y = next(case for case in written_before() if case[1]["proof"]["type"] == "cover")
    for k, vertex in enumerate(payload["proof"]["vertices"]):
        if not vertex["maximum"]:
            continue
        false = copy.deepcopy(payload)
        false["proof"]["vertices"][k]["maximum"] *= 0.5
        assert check(seal(false), X, y).failed.startswith(f"cover, vertex {k}, leaf"), name


# ------------------------------------------------------------ batch normalisation


@pytest.fixture(scope="module")
def moved():
    rng = np.random.default_rng(3)
    data = Dataset(rng.standard_normal((6, 3)), [1, -1, 1, -1, 1, 1])
    cert = margins.batchnorm(data, 30, displacement=0.3)
    assert cert.verify(data)
    return json.loads(json.dumps(cert.payload())), data


def bn_found(moved, **more):
    payload, data = moved
    return check(seal(payload | {"status": "rounding"} | {"extra": payload["extra"] | more}), data.X, data.y)


def test_each_part_of_a_batch_normalised_margin(moved):
    payload, data = moved
    extra = payload["extra"]
    assert extra["part"] == "sum" and extra["displacement"] > 0
    for name in ("a", "c"):
        both = extra[f"gamma_{name}"]
        lower = both | {"upper": both["upper"] * 0.999}
        assert (
            bn_found(moved, **{f"gamma_{name}": lower}).failed
            == f"upper bound: gamma_{name} is not shown to be that small"
        )
        higher = both | {"lower": both["upper"] * 1.001}
        assert bn_found(moved, **{f"gamma_{name}": higher}).failed.startswith("lower bound: point")
    q = list(extra["dual_c"])
    q[0] = -q[0] - 1e-3
    assert bn_found(moved, dual_c=q).failed == "dual of gamma_c: negative or zero"
    less = payload | {"upper": payload["upper"] * 0.999, "lower": 0.0, "status": "rounding"}
    assert check(seal(less), data.X, data.y).failed == "upper bound: smaller than those of its parts together"
    more = payload | {"lower": payload["lower"] * 1.001, "upper": 1e9, "status": "rounding"}
    assert check(seal(more), data.X, data.y).failed == "lower bound: larger than those of its parts together"


def test_weights_move_by_the_displacement_at_most(moved):
    extra = moved[0]["extra"]
    if extra.get("move") is None:
        pytest.skip("no move was stored")
    far = (2 * np.array(extra["move"])).tolist()
    assert bn_found(moved, move=far).failed == "lower bound: the weights moved by more than displacement"


# ------------------------------------------------------------ the sample


def test_a_kernel_function_is_no_transport():
    data = Dataset(PLANE, [1.0, -1.0])
    cert = margins.ntk(data, transport="l2")
    extra = dict(cert.extra) | {"transport": "sup"}
    payload = json.loads(json.dumps(cert.payload())) | {"extra": extra, "convention": "M8", "status": "rounding"}
    found = check(seal(json.loads(json.dumps(payload))), data.X, data.y)
    assert found.failed == "lower bound: a kernel function is no proof for transports in the sup norm"


@pytest.mark.parametrize("part", ["total", "outer", "inner"])
def test_both_bounds_of_a_sample_are_those_of_the_rule(part):
    """The rule of docs/certificates.md once more, word by word and in units of the points."""
    X, y = np.array([[0.875, 0.25], [-0.5, 0.75], [0.5, -0.5]]), np.array([1.0, -1.0, 1.0])  # largest entry in [1/2, 1)
    q = np.array([0.5, 0.25, 0.25])
    bins = 3 if part == "total" else 1
    a, b = {"total": (0.25, 0.5), "outer": (0.25, 0.0), "inner": (0.0, 0.5)}[part]
    extra = {"part": part, "transport": "sup", "samples": 400, "confidence": 0.75, "seed": 5, "bins": bins, "key": 2}
    extra |= {"control": [a, b], "floor": [0.0625] * bins}
    (n, D), N, c = X.shape, 400, q * y
    rng = np.random.default_rng(sample_key(verify.data_hash(X, y), q.tolist(), extra))
    s = rng.standard_normal((N, D))
    s /= np.linalg.norm(s, axis=1)[:, None]
    S, C, P, R = ntk_radial(D, bins, part)
    z, Y = np.zeros((N, n)), np.zeros(N)
    for k, one in itertools.product(range(N), (1, -1)):
        t = X @ (one * s[k])
        u, g = c @ np.maximum(t, 0), (c * (t > 0)) @ X
        f = np.maximum(0.0625, np.sqrt(S**2 * u**2 + C**2 * (g @ g)))
        A, B = (S**2 / f).sum(), (C**2 / f).sum()
        z[k] += y * ((A - a) * u * np.maximum(t, 0) + (B - b) * (t > 0) * (X @ g)) / 2
        Y[k] += (np.sqrt(P**2 * u**2 + R**2 * (g @ g)).sum() - (a * u**2 + b * (g @ g)) / 2) / 2
    size = np.linalg.norm(X, axis=1)
    t = np.arccos(np.clip(X @ X.T / np.outer(size, size), -1, 1))
    outer = np.outer(size, size) * (np.sin(t) + (np.pi - t) * np.cos(t)) / (2 * np.pi * D)
    inner = X @ X.T * (np.pi - t) / (2 * np.pi)
    e = y * ((a * outer + b * inner) @ c)
    G = (np.linalg.norm(c @ X) + np.linalg.norm(np.sqrt(q)[:, None] * X, 2)) / 2
    L = math.log(2 * (n + 1) / (1 - 0.75))
    lengths = size * (np.sqrt(S**2 + C**2).sum() + (a + b) * G)
    length = G * np.sqrt(P**2 + R**2).sum() + (a + b) * G**2 / 2
    lower = (e + z.mean(0) - np.sqrt(2 * z.var(0, ddof=1) * L / N) - 7 * lengths * L / (3 * (N - 1))).min()
    upper = q @ e / 2 + Y.mean() + math.sqrt(2 * Y.var(ddof=1) * L / N) + 7 * length * L / (3 * (N - 1))
    most = max(lower, 0.0)

    def found(low, high):
        keys = {"dual": q.tolist(), "proved": False, "extra": extra, "proof": {"type": "samples"}}
        return verdict("ntk", X, y, low, high, **keys)

    assert found(most * (1 - 1e-7), upper * (1 + 1e-7)).answer == verify.CHANCE
    assert found(0.0, upper * (1 - 1e-7)).failed == "upper bound: the evaluation sample gives more"
    assert found(lower + 1e-7 if lower > 0 else 1e-7, 9.0).failed == "lower bound: the evaluation sample gives less"
    # one point in one dimension: nothing varies, and the rule is C / 2 - 7 L C / (3 (N - 1))
    C = float(ntk_radial(1, 1, "inner")[1, 0])
    lower = C / 2 - 7 * math.log(4 / (1 - 0.99)) * C / (3 * 1999)
    for factor, answer in ((1 - 1e-9, verify.CHANCE), (1 + 1e-9, verify.REFUSED)):
        assert sampled([[1.0]], [1.0], lower * factor, 9.0, part="inner").answer == answer


# ------------------------------------------------------------ regression


def test_the_repair_pays_for_an_inverse_that_is_none(monkeypatch):
    """One point x = 1, neuron 1, residual 1: the network costs 1, whatever matrix is taken for the inverse."""
    problem = reading.Problem(np.array([[1]]), 0, [1], 1)
    inverse = np.linalg.inv
    for factor in (1.0, 0.5, 1.5):
        monkeypatch.setattr(np.linalg, "inv", lambda S, factor=factor: factor * inverse(S))
        cost = regression._repair(problem, [0], [Fraction(1)], {"frame": [[1.0]]})
        assert cost >= 4  # S = 2^-4, r = 2^-2
    monkeypatch.setattr(np.linalg, "inv", lambda S: 0 * S)
    with pytest.raises(reading.Refused):
        regression._repair(problem, [0], [Fraction(1)], {"frame": [[1.0]]})


def test_a_stored_matrix_has_its_own_relations():
    """x_1 = 2 x_0 is a relation of relu features, and none of a matrix that says otherwise."""
    X, y = [[1.0], [2.0]], [1.0, 2.0]
    extra = {"kernel": "given", "gram": [[1.0, 0.0], [0.0, 1.0]], "smallest": 0.5}
    extra["relations"] = [{"point": 1, "weights": [[1, 1], [0, -2]]}]
    found = verdict("l2-regression", X, y, 0.0, 9.0, dual=[1.0, 2.0], extra=extra)
    assert found.failed == "upper bound: relation 0: it does not hold for all functions"


# ------------------------------------------------------------ ends of enclosures

# They are so narrow that doubles do not tell one end from the other: here they are made wide.


def test_the_ends_of_pi_are_taken_against_the_bound(monkeypatch):
    """k(x, x) = pi |x|^2 / (2 pi D) = 1 for |x| = 2 in the plane; with 3 <= pi <= 4 below the line, between pi/4 and pi/3."""
    unit = 1 << exact.PRECISION
    monkeypatch.setattr(kernels, "pi", lambda: (3 * unit, 4 * unit))
    X, extra = [[2.0, 0.0]], {"kernel": "relu", "alpha": [1.0], "smallest": 0.5}
    low, high = math.sqrt(math.pi / 4), math.sqrt(math.pi / 3)
    assert verdict("f2", X, [1], low * 0.999, high * 1.001, extra=extra)
    assert verdict("f2", X, [1], low * 1.001, 9.0, extra=extra).failed == "lower bound: point 0"
    assert verdict("f2", X, [1], 0.0, high * 0.999, extra=extra).failed.startswith("upper bound: the norm")
    # regression: f = k(x, .) has a norm of at most `high`, and misses y = 1 by at most pi/3 - 1 or 1 - pi/4
    assert verdict("l2-regression", X, [1], 0.999 / high, 9.0, dual=[1.0], extra=extra)
    assert verdict("l2-regression", X, [1], 1.001 / high, 9.0, dual=[1.0], extra=extra).failed.startswith("lower bound")
    most = high + (1 - math.pi / 4) / math.sqrt(0.5)
    assert verdict("l2-regression", X, [1], 0.0, most * 1.001, dual=[1.0], extra=extra)
    assert verdict("l2-regression", X, [1], 0.0, most * 0.999, dual=[1.0], extra=extra).failed.startswith("upper bound")
    large = extra | {"smallest": 0.79}  # above pi / 4
    found = verdict("l2-regression", X, [1], 0.0, 9.0, dual=[1.0], extra=large)
    assert found.failed == "upper bound: extra.smallest is not shown to bound the eigenvalues"


def test_the_ends_of_a_kernel_are_taken_against_the_bound(monkeypatch):
    """Any matrix between [[8, 0], [0, 8]] and [[8, 7], [7, 8]] may be the kernel's."""
    unit = 1 << exact.PRECISION

    def wide(X, Z):
        same = (X[:, None, :] == Z[None, :, :]).all(axis=2).astype(object)
        return same * 8 * unit, (same * 8 + (1 - same) * 7) * unit

    monkeypatch.setitem(kernels.KERNELS, "relu", wide)
    monkeypatch.setattr(kernels, "pi", lambda: (unit, unit))
    scale = 2 * 2  # 2 D, of the kernel
    extra, half = {"kernel": "relu", "alpha": [1.0, 1.0], "smallest": 0.1}, {"dual": [0.5, 0.5]}
    low, high = 8 / math.sqrt(30 * scale), math.sqrt(30 / 4 / scale)  # (K alpha)_i >= 8, alpha' K alpha <= 30
    assert verdict("f2", PLANE, [1, 1], low * 0.999, high * 1.001, extra=extra, **half)
    assert verdict("f2", PLANE, [1, 1], low * 1.001, 9.0, extra=extra, **half).failed == "lower bound: point 0"
    assert verdict("f2", PLANE, [1, 1], 0.0, high * 0.999, extra=extra, **half).failed.startswith("upper bound")
    low, high = 1 / math.sqrt(16 * scale), math.sqrt(16 / 4 / scale)  # labels differ: 8 - 7, and 16
    assert verdict("f2", PLANE, [1, -1], low * 0.999, high * 1.001, extra=extra, **half)
    assert verdict("f2", PLANE, [1, -1], low * 1.001, 9.0, extra=extra, **half).failed == "lower bound: point 0"
    assert verdict("f2", PLANE, [1, -1], 0.0, high * 0.999, extra=extra, **half).failed.startswith("upper bound")
    for smallest, good in ((0.24, True), (0.26, False)):  # 1 / 4 is the least eigenvalue of them all
        one = {"dual": [1.0, 1.0], "extra": extra | {"smallest": smallest}}
        assert bool(verdict("l2-regression", PLANE, [3.0, 3.0], 0.0, 1e9, **one)) is good


def test_the_ends_of_lengths_are_taken_against_the_bound(monkeypatch):
    """rf and bn, with few bits after the point: no more is accepted than with many."""
    rng = np.random.default_rng(1)
    data = Dataset(rng.standard_normal((5, 3)), [1, -1, 1, -1, 1])
    cases = [(margins.random_features(data, 12), "INVERSE", networks, bits) for bits in range(-60, -40)]
    cases += [(margins.batchnorm(data, 12), "GRID", batchnorm, bits) for bits in range(1, 9)]
    for cert, name, module, bits in cases:
        payload = json.loads(json.dumps(cert.payload())) | {"status": "rounding"}
        assert check(seal(payload), data.X, data.y)
        with monkeypatch.context() as patch:
            patch.setattr(module, name, bits)
            wide = [check(seal(payload | pair), data.X, data.y) for pair in ({"upper": 1e9}, {"lower": 0.0})]
            assert not all(wide)  # the ends do matter
            for key, other, factor in (("lower", 1e9, 1 + 1e-6), ("upper", 0.0, 1 - 1e-6)):
                false = copy.deepcopy(payload) | {key: payload[key] * factor}
                false["upper" if key == "lower" else "lower"] = other
                for part in ("gamma_a", "gamma_c"):
                    if part in payload["extra"]:
                        false["extra"][part][key] = payload["extra"][part][key] * factor
                assert not check(seal(false), data.X, data.y), (cert.kind, key, bits)


def test_a_factor_is_only_a_guess(monkeypatch):
    """A matrix with the eigenvalue -1e-12, and a factor of one that has none: the rest is looked at."""
    n, unit = 14, 1 << 60
    S = np.array([[unit * (i == j) for j in range(n)] for i in range(n)], dtype=object)
    S[0, 1] = S[1, 0] = unit + unit // 10**12
    near = np.eye(n)
    near[0, 1] = near[1, 0] = 1 - 1e-13
    factor = np.linalg.cholesky(near / 4)  # S is scaled to a diagonal of 1/4
    monkeypatch.setattr(np.linalg, "cholesky", lambda A: factor)
    assert not exact.positive_semidefinite(S)


@pytest.mark.parametrize("seed", range(10))
def test_the_slope_is_a_lipschitz_constant(seed):
    """The gradient of v -> sum_i c_i relu(v . b_i) is sum_{v . b_i > 0} c_i b_i; equal points are one."""
    rng = np.random.default_rng(seed)
    B = rng.integers(-5, 6, (6, 2)).astype(object)
    B[5] = B[0]
    y, q = [1, -1, 1, 1, -1, -1], [int(v) for v in rng.integers(0, 9, 6)]
    angle = np.linspace(0, 2 * np.pi, 2001) + 1e-4
    active = np.column_stack([np.cos(angle), np.sin(angle)]) @ B.T.astype(float) > 0
    true = np.linalg.norm((active * (np.array(y) * q)) @ B.astype(float), axis=1).max()
    found = batchnorm._bn_slope(B, y, q) / 2 ** (exact.ROOT_BITS + 1)
    assert true * (1 - 1e-12) <= found <= np.array(q) @ np.linalg.norm(B.astype(float), axis=1) + 1e-9


def test_the_slope_of_small_integers_is_as_exact_as_that_of_large_ones():
    """The fourth root was taken of a square root that was rounded up to an integer: 1e-5 of it for integers of one digit."""
    B = np.array([[1, 2], [3, -1], [-2, -2]], dtype=object)
    small, large = (batchnorm._bn_slope(k * B, [1, -1, 1], [1, 2, 1]) for k in (1, 10**9))
    assert 0 <= small * 10**9 - large <= 2 * 10**9
