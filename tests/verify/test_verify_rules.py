"""The exact checker: its arithmetic, certificates with known answers, and certificates that must fail."""

import copy
import itertools
import json
import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from corpus import paths
from hypothesis import given, settings
from hypothesis import strategies as st

from checks import seal
from widemargin import verify
from widemargin.verify import check, exact, integers, matmul, positive_semidefinite, sqrt_up
from widemargin.verify.exact import ROOT_BITS
from widemargin.verify.tree import _constants

XOR = np.array([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]])
XOR_Y = np.array([1.0, 1.0, -1.0, -1.0])
ROOT = math.sqrt(2) / 4
CONVENTIONS = {"f1": "M1", "frozen": "M1", "f2": "M7", "rf": "M7", "linear": "M11"} | dict.fromkeys(
    ("l1-regression", "l2-regression"), "norm"
)
quick = settings(deadline=None, max_examples=40)


def up(x, times=4):
    for _ in range(times):
        x = math.nextafter(x, math.inf)
    return x


def down(x, times=4):
    for _ in range(times):
        x = math.nextafter(x, -math.inf)
    return x


def certificate(X, y, kind="f1", **fields):
    X, y = np.asarray(X, float), np.asarray(y, float)
    body = {
        "format": "widemargin-certificate-1",
        "kind": kind,
        "convention": CONVENTIONS[kind],
        "lower": 0.0,
        "upper": 0.0,
        "status": "time-limit",  # says nothing about the bounds
        "proved": True,
        "bound": "test",
        "reason": "",
        "n": len(X),
        "d": X.shape[1],
        "bias": False,
        "activation": "relu",
        "data": {"name": "data", "sha256": verify.data_hash(X, y)},
        "primal": None,
        "dual": [1.0 / len(X)] * len(X),
        "proof": {"type": "dual"},
        "extra": {},
    }
    return seal(json.loads(json.dumps(body | fields)))


def changed(payload, **fields):
    return seal(copy.deepcopy(payload) | fields)


XOR_MEASURE = {"theta": XOR.tolist(), "mass": [1, 1, -1, -1]}


def xor_side(sign, tree, leaves, **more):
    return {"sign": sign, "shift": 30, "points": [0, 1, 2, 3], "tree": tree, "leaves": leaves} | more


def xor_tree(deep=True):
    sides = []
    for sign, (a, b) in ((1, (0, 1)), (-1, (2, 3))):
        tree = [a, b, -1, -1, b, -1, -1] if deep else [a, -1, -1]
        sides.append(xor_side(sign, tree, [[0, 0, 0, 0] for _ in range(tree.count(-1))]))
    return {"type": "tree", "sides": sides}


def known():
    """(name, payload, X, y, true margin) for every kind and proof."""
    one = np.array([[3.0, 4.0]])
    pair = np.array([[1.0, 0.0], [-1.0, 0.0]])
    out = []

    def add(name, X, y, margin, kind="f1", **fields):
        out.append((name, certificate(X, y, kind, **fields), np.asarray(X, float), np.asarray(y, float), margin))

    add("one point", one, [1], 5, lower=5, upper=5, primal={"theta": [[3, 4]], "mass": [0.1]}, proof={"type": "norm"})
    add(
        "antipodal",
        pair,
        [1, -1],
        0.5,
        lower=0.5,
        upper=0.5,
        primal={"theta": pair.tolist(), "mass": [1, -1]},
        proof={"type": "norm"},
    )
    twice = np.array([[0.1, 0.7], [0.1, 0.7], [0.3, 0.2]])
    add("contradiction", twice, [1, -1, 1], 0, status="not-separable", dual=[1, 1, 0], proof={"type": "norm"})
    bounds = {"lower": down(ROOT), "upper": up(ROOT), "primal": XOR_MEASURE}
    for name, proof in (
        ("norm", {"type": "norm"}),
        ("enumeration", {"type": "enumeration"}),
        ("tree", xor_tree()),
        ("shallow tree", xor_tree(False)),
    ):
        add(f"xor {name}", XOR, XOR_Y, ROOT, **bounds, proof=proof)
    # squared relu: f(x) = sum of squares, value 4 at one atom of size 2, mass 1/4 each: margin 1/2
    square = {"lower": 0.5, "upper": 0.5, "primal": XOR_MEASURE, "activation": "srelu"}
    leaf = {
        "type": "eigen-tree",
        "sides": [{"sign": s, "shift": 0, "points": [], "tree": [-1], "leaves": [[]]} for s in (1, -1)],
    }
    add("srelu eigen-tree root", XOR, XOR_Y, 0.5, **square | {"upper": 1}, proof=leaf)
    eigen = {"type": "eigen", "sides": [{"sign": s, "lam": 1} for s in (1, -1)]}
    add("srelu eigen", XOR, XOR_Y, 0.5, **square | {"upper": 1}, proof=eigen)
    add("srelu enumeration", XOR, XOR_Y, 0.5, **square, proof={"type": "enumeration"})
    add("linear", [[3, 4], [-3, -4]], [1, -1], 5, "linear", lower=5, upper=5, extra={"u": [0.3, 0.4]} | {"u": [3, 4]})
    add("frozen", XOR, XOR_Y, ROOT, "frozen", **bounds, extra={"directions": XOR.tolist()})
    add(
        "rf",
        XOR,
        XOR_Y,
        ROOT,
        "rf",
        lower=down(ROOT),
        upper=up(ROOT),
        extra={"directions": XOR.tolist(), "a": [1, 1, -1, -1]},
    )
    add("f2", [[2, 0]], [1], 1, "f2", lower=down(1), upper=up(1), extra={"alpha": [3.0], "kernel": "relu"})
    gram = {"alpha": [1, 1], "kernel": "given", "gram": [[1, 0], [0, 1]]}
    half = math.sqrt(0.5)
    add("f2 given", pair, [1, -1], half, "f2", convention="gram", lower=down(half), upper=up(half), extra=gram)
    # k(x, x) = |x|^4 3 / (2 D (D + 2)) for the squared relu: |x| = 2 in the plane gives 3
    three = {"lower": down(math.sqrt(3)), "upper": up(math.sqrt(3)), "activation": "srelu"}
    add("f2 srelu", [[2, 0]], [1], math.sqrt(3), "f2", **three, extra={"alpha": [3.0], "kernel": "srelu"})
    return out


KNOWN = known()
NAMES = [case[0] for case in KNOWN]


# ------------------------------------------------------------ arithmetic

sizes = st.integers(0, 900)


def random_integers(rng, shape, bits):
    """Integers of up to `bits` bits, often at the edges of the range."""
    flat = []
    for _ in range(math.prod(shape)):
        kind = rng.integers(5)
        k = int(rng.integers(bits + 1))
        value = [
            0,
            (1 << bits) - 1,
            1 << k,
            (1 << k) - 1,
            int.from_bytes(rng.bytes(bits // 8 + 1), "big") >> 8 - bits % 8,
        ][kind]
        flat.append(-value if rng.integers(2) else value)
    out = np.empty(len(flat), dtype=object)
    out[:] = flat
    return out.reshape(shape)


@quick
@given(st.integers(0, 2**32), sizes, sizes, st.integers(1, 18), st.integers(1, 40), st.integers(1, 18))
def test_matmul_is_exact(seed, bits_a, bits_b, m, inner, n):
    rng = np.random.default_rng(seed)
    A, B = random_integers(rng, (m, inner), bits_a), random_integers(rng, (inner, n), bits_b)
    want = [[sum(a * b for a, b in zip(row, column)) for column in B.T] for row in A]
    assert matmul(A, B).tolist() == want
    if max(bits_a, bits_b) <= 62:
        assert matmul(A.astype(np.int64), B.astype(np.int64)).tolist() == want


@pytest.mark.parametrize("inner", [4096, 4097, 9000])
def test_matmul_extremes_over_a_long_inner_dimension(inner):
    for value in (2**62, 2**63 - 1, -(2**63), 2**20 - 1, 2**21, -(2**100), 2**120 - 1):
        A = np.full((2, inner), value, dtype=object)
        assert matmul(A, A.T).tolist() == [[inner * value**2] * 2] * 2
        assert matmul(A, -A.T).tolist() == [[-inner * value**2] * 2] * 2
    assert matmul(np.zeros((2, 0), dtype=object), np.zeros((0, 3), dtype=object)).tolist() == [[0] * 3] * 2


@quick
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=12))
def test_integers_are_the_doubles(values):
    grid, k = integers(np.array(values))
    assert [Fraction(int(g), 1 << k) for g in grid] == [Fraction(v) for v in values]


@quick
@given(st.integers(0, 2**300), st.integers(0, 80))
def test_square_roots_round_up(n, bits):
    r = sqrt_up(n, bits)
    assert r * r >= n << 2 * bits
    assert r == 0 or (r - 1) ** 2 < n << 2 * bits


@quick
@given(st.integers(0, 2**32), st.integers(1, 16), st.integers(1, 16), st.integers(0, 200))
def test_positive_semidefinite(seed, n, rank, spread):
    rng = np.random.default_rng(seed)
    A = random_integers(rng, (n, rank), 40)
    scale = np.array([1 << int(rng.integers(spread + 1)) for _ in range(n)], dtype=object)
    S = matmul(A, A.T) * scale[:, None] * scale[None, :]
    if n <= 12:
        assert positive_semidefinite(S)  # also when it is singular
        if rank < n:
            T = 4 * S
            T[0, 0] -= 1  # below a singular matrix: indefinite unless the first row is independent of the others
            v = rng.integers(-3, 4, n).astype(object)
            assert not positive_semidefinite(T) or v @ T @ v >= 0
    regular = S.copy()
    for i in range(n):
        regular[i, i] += 1 + S[i, i] // 2**20
    assert positive_semidefinite(regular)
    v = np.array([int(x) for x in rng.integers(-9, 10, n)], dtype=object)
    v[0] = 1
    value = int(v @ regular @ v)
    broken = regular.copy()
    broken[0, 0] -= value + 1  # v' broken v = -1
    assert not positive_semidefinite(broken)


def test_positive_semidefinite_at_the_edge_and_at_size():
    assert positive_semidefinite(np.zeros((3, 3), dtype=object))
    assert not positive_semidefinite(np.array([[0, 1], [1, 5]], dtype=object))
    hilbert = [[Fraction(1, i + j + 1) for j in range(9)] for i in range(9)]
    common = math.lcm(*range(1, 18))
    H = np.array([[int(v * common) for v in row] for row in hilbert], dtype=object)
    assert positive_semidefinite(H)
    inverse_corner = 81  # H^-1[0, 0] = n^2: H - t e1 e1' stays positive semidefinite up to t = 1 / 81
    for t, good in ((1, True), (2, False)):
        T = H * inverse_corner
        T[0, 0] -= common * t
        assert positive_semidefinite(T) is good
    rng = np.random.default_rng(0)
    A = rng.integers(-1000, 1000, (150, 150))
    lam = np.linalg.eigvalsh(A @ A.T.astype(float))[-1]
    for factor, good in ((1 + 1e-9, True), (1 - 1e-9, False)):
        S = -matmul(A, A.T)
        for i in range(150):
            S[i, i] += int(lam * factor)
        assert positive_semidefinite(S) is good


def test_relu_kernel_is_enclosed():
    mp = pytest.importorskip("mpmath")
    mp.mp.prec = 300
    X = np.array(
        [[1, 0], [0, 1], [-1, 0], [3, 4], [6, 8], [-3, -4], [0, 0], [1, 10**9], [1, 1], [-1, 10**6], [7, 10**9 + 1]]
    )
    low, high = verify.relu_kernel(X)
    for i, j in itertools.product(range(len(X)), repeat=2):
        a, b = [int(v) for v in X[i]], [int(v) for v in X[j]]
        size = mp.sqrt(a[0] ** 2 + a[1] ** 2) * mp.sqrt(b[0] ** 2 + b[1] ** 2)
        dot, cross = a[0] * b[0] + a[1] * b[1], abs(a[0] * b[1] - a[1] * b[0])
        t = mp.atan2(cross, dot) if size else mp.mpf(0)
        true = (cross + (mp.pi - t) * dot) * mp.mpf(2) ** exact.PRECISION
        error = size * mp.mpf(2) ** -60  # of the 300-bit reference
        assert low[i, j] - error <= true <= high[i, j] + error
        assert high[i, j] - low[i, j] <= max(1, abs(dot)) * 2**18 + 2
    assert low[0, 2] == high[0, 2] == 0 and low[3, 5] == high[3, 5] == 0 and high[6, 3] == 0
    pi = exact.pi()
    assert pi[0] <= mp.pi * mp.mpf(2) ** exact.PRECISION <= pi[1]
    assert abs(4 * exact._atan_table()[64] - pi[0]) < 10 * exact.SLACK


# ------------------------------------------------------------ known certificates and their mutations


@pytest.mark.parametrize("case", KNOWN, ids=NAMES)
def test_known(case):
    _, payload, X, y, _ = case
    verdict = check(payload, X, y)
    assert verdict, verdict
    assert verdict.failed is None and "verified exactly" in str(verdict) and "\n" not in str(verdict)
    names = [name for name, _ in verdict.checks]
    assert names == [
        "format",
        "digest",
        "shape",
        "data hash",
        "lower <= upper",
        "lower bound",
        "dual",
        "upper bound",
        "status",
    ]
    assert verdict.to_dict()["ok"] is True and verdict.answer == verify.PROVED
    assert json.loads(json.dumps(verdict.to_dict()))["failed"] is None


@pytest.mark.parametrize("case", KNOWN, ids=NAMES)
def test_a_changed_digit_a_raised_lower_and_a_lowered_upper_fail(case):
    _, payload, X, y, margin = case
    assert check(payload | {"bound": "other"}, X, y).failed == "digest"
    assert check(payload | {"upper": payload["upper"] + 1}, X, y).failed == "digest"
    high = changed(payload, lower=float(margin) * (1 + 1e-9) + 1e-300, upper=9, status="time-limit")
    verdict = check(high, X, y)
    assert not verdict and verdict.failed.startswith("lower bound"), verdict
    if margin:
        low = changed(payload, upper=float(margin) * (1 - 1e-9), lower=0)
        verdict = check(low, X, y)
        assert not verdict and "NOT verified" in str(verdict)
        assert verdict.failed.startswith(("upper bound", payload["proof"]["type"])), verdict
    assert check(payload, X + 1, y).failed == "data hash"
    assert check(payload, X, -y).failed == "data hash"
    assert check(payload, X[:, :1], y).failed == "shape: d"
    assert check(payload, X, y * 2).failed.startswith("labels: row 0")
    assert check(changed(payload, dual=[-1.0, *payload["dual"][1:]]), X, y).failed == "dual: entry 0 is negative"
    assert check(changed(payload, dual=[0] * len(y)), X, y).failed == "dual: all entries are zero"
    assert check(changed(payload, lower=-1, upper=-1), X, y).failed.startswith("lower <= upper")
    for missing in ({"type": "omitted"}, None, {}):
        wanted = "upper bound: the proof is not stored in this certificate"
        assert check(changed(payload, proof=missing), X, y).failed == wanted
    estimate = check(changed(payload, proved=False, proof={}), X, y)
    if not margin:
        assert estimate.failed.startswith("status: not-separable")
        return
    assert estimate.answer == verify.UNPROVED and not estimate and not estimate.ok and estimate.failed is None
    assert "estimate and was not checked" in str(estimate) and str(estimate).startswith("NOT proved")


def case(name):
    return next(c for c in KNOWN if c[0] == name)[1:4]


def edit(payload, path, value):
    payload = copy.deepcopy(payload)
    at = payload
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return seal(payload)


SIDE = ("proof", "sides", 0)


@pytest.mark.parametrize(
    ("name", "path", "value", "failed"),
    [
        ("xor tree", ("primal", "mass", 2), 1, "lower bound: point"),
        ("xor tree", ("primal", "mass"), [0, 0, 0, 0], "lower bound: the primal is zero"),
        ("xor tree", ("primal", "theta", 0), [1, 1.001], "lower bound: point"),
        ("xor tree", ("dual",), [0.4, 0.1, 0.4, 0.1], "tree side"),
        ("xor tree", ("dual",), [0.25, 0.25, 0.25, 0.2501], "dual: the entries do not sum to one"),
        ("xor tree", (*SIDE, "leaves", 1, 0), 1 << 20, "tree side +1, leaf 1"),
        ("xor tree", (*SIDE, "leaves", 1, 0), 1 << 90, "tree side +1, leaf 1"),
        ("xor tree", (*SIDE, "leaves", 1, 0), -1, "tree side +1, leaf 1"),
        ("xor tree", (*SIDE, "leaves", 1, 0), 1.0, "tree side +1, leaf 1"),
        ("xor tree", (*SIDE, "leaves", 1, 2), 1 << 22, "tree side +1, leaf 1"),
        ("xor tree", (*SIDE, "leaves", 0, 2), (1 << 32) + 1, "tree side +1, leaf 0"),
        ("xor shallow tree", (*SIDE, "leaves", 0, 1), 1, "tree side +1, leaf 0: a free point"),
        ("xor tree", (*SIDE, "leaves", 0), [0, 0, 0], "tree side +1, leaf 0: needs 4"),
        ("xor tree", (*SIDE, "tree"), [0, 1, -1, -1, 1, -1], "tree side +1"),
        ("xor tree", (*SIDE, "tree"), [0, 1, -1, -1, -1, -1, -1], "tree side +1"),
        ("xor tree", (*SIDE, "tree"), [0, 0, -1, -1, 1, -1, -1], "tree side +1: tree entry 1 branches twice"),
        ("xor tree", (*SIDE, "tree"), [0, 2, -1, -1, 1, -1, -1], "tree side +1: tree entry 1 branches on"),
        ("xor tree", (*SIDE, "tree"), [0, 4, -1, -1, 1, -1, -1], "tree side +1: tree entry 1 is no"),
        ("xor tree", (*SIDE, "tree"), [], "tree side +1: the tree is not complete"),
        ("xor tree", (*SIDE, "points"), [0, 0, 2, 3], "tree side +1: a point is listed twice"),
        ("xor tree", (*SIDE, "points"), [0, 2, 3], "tree side +1"),
        ("xor tree", (*SIDE, "sign"), -1, "tree: sides"),
        ("xor tree", (*SIDE, "roots"), [[1, 0]], "tree side +1"),
        ("srelu eigen", (*SIDE, "lam"), 1 - 2.0**-50, "eigen side +1: lam is not"),
        ("srelu eigen", (*SIDE, "lam"), 1 + 2.0**-50, "eigen side +1: lam is negative or larger"),
        ("srelu enumeration", ("proof",), {"type": "norm"}, "upper bound: no such proof type"),
        ("linear", ("extra", "u"), [3, 4.001], "lower bound: point 0"),
        ("linear", ("extra", "u"), [0, 0], "lower bound: u is zero"),
        ("linear", ("dual",), [0.25, 0.75], None),
        ("frozen", ("extra", "directions", 0), [1, 1.5], "lower bound: neuron 0"),
        ("frozen", ("dual",), [0.5, 0, 0.25, 0.25], "upper bound: direction 0"),
        ("rf", ("extra", "a", 0), 2, "lower bound: point 1"),
        ("rf", ("extra", "a"), [0, 0, 0, 0], "lower bound: a is zero"),
        ("rf", ("dual",), [0.5, 0, 0.25, 0.25], "upper bound"),
        ("f2", ("extra", "alpha"), [0], "lower bound: alpha is zero"),
        ("f2", ("extra", "kernel"), "other", "format: extra.kernel"),
        ("f2 given", ("extra", "alpha"), [1, 2], "lower bound: point 0"),
        ("f2 given", ("extra", "gram"), [[1, 0], [0.1, 1]], "format: extra.gram is not symmetric"),
        ("f2 given", ("dual",), [0.75, 0.25], "upper bound"),
        ("xor norm", ("convention",), "M2", "format: kind f1"),
        ("xor norm", ("status",), "not-separable", "lower <= upper: status"),
        ("xor norm", ("n",), 4.0, "shape: n"),
        ("xor norm", ("bias",), True, "lower bound: primal.theta"),
    ],
)
def test_mutations(name, path, value, failed):
    payload, X, y = case(name)
    verdict = check(edit(payload, path, value), X, y)
    if failed is None:
        assert verdict, verdict
    else:
        assert not verdict and verdict.failed.startswith(failed), verdict


def test_a_stored_gram_matrix_is_reported():
    assert "taken as given" in str(check(*case("f2 given")))


def test_symmetries_of_a_tree():
    payload, X, y = case("xor shallow tree")
    symmetric = {"roots": [[1, 1]], "rho": [2, 0.5], "leaves": [[0, 0, 0, 0, 0], [0, 0, 0, 0, 1 << 27]]}
    good = edit(payload, SIDE, payload["proof"]["sides"][0] | symmetric)
    assert check(good, X, y)
    assert not check(edit(good, (*SIDE, "leaves", 1, 4), 1 << 30), X, y)
    for change, failed in (
        ({"rho": [-1, 0]}, "root 0 is not on the side of rho"),
        ({"roots": [[1, 0]]}, "root 0 is not a symmetry"),
        ({"roots": [[0, 0]]}, "root 0 is not on the side of rho"),
        ({"roots": [[1.0, 1]]}, "root 0: not an integer"),
        ({"roots": [[1, 1, 0]]}, "root 0: has 3 entries"),
    ):
        bad = edit(good, SIDE, good["proof"]["sides"][0] | change)
        assert failed in check(bad, X, y).failed
    # points with different weights are no orbit: (0.3, 0.2) on +-(1, 1)
    assert "is not a symmetry" in check(changed(good, dual=[0.3, 0.2, 0.25, 0.25]), X, y).failed


def test_a_symmetry_that_is_needed():
    """(+-3, 4) with weights 1/2: a leaf with one active, one free point proves 4.25 for v1 >= 0, else only 4.34."""
    X, y = np.array([[3.0, 4.0], [-3.0, 4.0]]), np.array([1.0, 1.0])
    plus = {"sign": 1, "shift": 4, "points": [0, 1], "roots": [[1, 0]], "rho": [1, 0]}
    plus |= {"tree": [1, -1, -1], "leaves": [[0, 0, 12], [0, 0, 0]]}
    minus = {"sign": -1, "shift": 0, "points": [], "tree": [-1], "leaves": [[]]}
    payload = certificate(X, y, upper=4.25, proof={"type": "tree", "sides": [plus, minus]})
    assert check(payload, X, y)
    assert check(edit(payload, (*SIDE, "leaves", 0, 2), 0), X, y).failed.startswith("tree side +1, leaf 0")
    without = edit(payload, SIDE, plus | {"roots": [], "leaves": [[0, 0], [0, 0]]})
    assert check(without, X, y).failed.startswith("tree side +1, leaf 0")
    assert check(edit(without, ("upper",), 4.35), X, y)


def test_bias_appends_one():
    X, y = np.array([[0.75]]), np.array([1.0])  # (0.75, 1) has norm 1.25
    payload = certificate(
        X, y, bias=True, lower=1.25, upper=1.25, primal={"theta": [[3, 4]], "mass": [1]}, proof={"type": "norm"}
    )
    assert check(payload, X, y)
    assert check(changed(payload, proof={"type": "enumeration"}), X, y)
    assert not check(changed(payload, bias=False), X, y)


def test_wide_dynamic_range():
    X, y = np.array([[1e300, 1e-300], [-1e-300, 5e-324]]), np.array([1.0, 1.0])
    primal = {"theta": [[1.0, 1e-290], [-1.0, 0.0]], "mass": [1e-300, 1.0]}
    payload = certificate(X, y, lower=1e-301, upper=1e300, primal=primal, proof={"type": "norm"})
    assert check(payload, X, y), check(payload, X, y)
    assert check(changed(payload, lower=1e-299), X, y).failed == "lower bound: point 1"
    tree = {"shift": 3, "points": [0, 1], "tree": [0, -1, -1], "leaves": [[0, 0], [0, 0]]}
    none = {"shift": 3, "points": [0, 1], "tree": [-1], "leaves": [[0, 0]]}
    proof = {"type": "tree", "sides": [tree | {"sign": 1}, none | {"sign": -1}]}
    assert check(changed(payload, proof=proof), X, y)
    assert not check(changed(payload, proof=proof, upper=0.49e300), X, y)
    assert check(changed(payload, proof={"type": "enumeration"}), X, y)


# ------------------------------------------------------------ random proofs


def objective(X, c, V, degree=1):
    return (np.maximum(V @ X.T, 0) ** degree) @ c


def sphere(rng, d, count=4000):
    V = rng.standard_normal((count, d))
    return V / np.linalg.norm(V, axis=1)[:, None]


def random_data(rng, d=None):
    n, d = int(rng.integers(1, 7)), d or int(rng.integers(1, 4))
    X = rng.standard_normal((n, d)) if rng.integers(2) else rng.integers(-2, 3, (n, d)).astype(float)
    q = rng.random(n) * rng.integers(0, 2, n)
    q = np.ones(n) if not q.any() else q
    return X, rng.choice([-1.0, 1.0], n), q / q.sum()


def sampled(rng, X, y, q, degree=1):
    V = np.vstack([sphere(rng, X.shape[1]), *(s * X[np.any(X, axis=1)] for s in (1, -1))])
    V /= np.linalg.norm(V, axis=1)[:, None]
    return max(objective(X, s * q * y, V, degree).max() for s in (1, -1))


def branch(rng, choices, depth, tree, leaves, state, leaf):
    """A random tree in preorder; `leaf(state)` makes the multipliers."""
    left = [p for p in choices if p not in state]
    if left and depth and rng.random() < 0.8:
        p = int(rng.choice(left))
        tree.append(p)
        for side in (1, -1):
            branch(rng, choices, depth - 1, tree, leaves, state | {p: side}, leaf)
    else:
        tree.append(-1)
        leaves.append(leaf(state))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32))
def test_random_relu_trees(seed):
    rng = np.random.default_rng(seed)
    X, y, q = random_data(rng)
    shift, sides, bounds = int(rng.integers(0, 40)), [], [0.0]
    for sign in (1, -1):
        c = sign * q * y
        points = [int(i) for i in rng.permutation(len(X)) if c[i] != 0]
        if rng.integers(2):
            points = [i for i in points if c[i] > 0]

        def leaf(state, c=c, points=points):
            k, r, const = [], np.zeros(X.shape[1]), 0.0
            for p, i in enumerate(points):
                if c[i] < 0:
                    k.append(int(rng.integers(0, 2**32 + 1)))
                    r += c[i] * k[-1] / 2**32 * X[i]
                elif p in state:
                    k.append(int(rng.integers(0, 2 + 2**shift // 2)) * int(rng.integers(2)))
                    r += (c[i] * (state[p] > 0) + state[p] * k[-1] / 2**shift) * X[i]
                else:
                    k.append(0)
                    r += c[i] / 2 * X[i]
                    const += c[i] / 2 * np.linalg.norm(X[i])
            bounds.append(const + float(np.linalg.norm(r)))
            return k

        tree, leaves = [], []
        branch(rng, [p for p, i in enumerate(points) if c[i] > 0], 3, tree, leaves, {}, leaf)
        sides.append({"sign": sign, "shift": shift, "points": points, "tree": tree, "leaves": leaves})
    upper = max(bounds)
    payload = certificate(
        X, y, dual=q.tolist(), upper=upper * (1 + 1e-12) + 1e-300, proof={"type": "tree", "sides": sides}
    )
    verdict = check(payload, X, y)
    assert verdict, verdict
    value = sampled(rng, X, y, q)
    assert value <= upper * (1 + 1e-9) + 1e-12
    if upper > 1e-9:
        assert not check(changed(payload, upper=upper * (1 - 1e-9)), X, y)
    if value > 1e-6:
        below = value * (1 - 1e-9)
        assert not check(changed(payload, upper=below), X, y)
        # any other multipliers and trees cannot prove a false bound either
        for _ in range(3):
            other = copy.deepcopy(payload["proof"])
            for side in other["sides"]:
                for row in side["leaves"]:
                    for p, k in enumerate(row):
                        row[p] = int(k * rng.random()) if rng.integers(2) else k
            assert not check(changed(payload, upper=below, proof=other), X, y)
        assert not check(changed(payload, upper=below, proof={"type": "norm"}), X, y)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32))
def test_random_eigen_trees(seed):
    rng = np.random.default_rng(seed)
    X, y, q = random_data(rng)
    n, d = X.shape
    shift, sides, bounds = int(rng.integers(0, 20)), [], [0.0]
    for sign in (1, -1):
        c = sign * q * y
        points = [int(i) for i in rng.permutation(n) if c[i] != 0][: int(rng.integers(0, n + 1))]

        def leaf(state, c=c, points=points):
            fixed = {points[p]: s for p, s in state.items()}
            M = sum(
                (c[i] * np.outer(X[i], X[i]) for i in range(n) if fixed.get(i, 1 if c[i] > 0 else -1) > 0),
                np.zeros((d, d)),
            )
            triples = []
            for _ in range(int(rng.integers(0, 4)) if state else 0):
                p, r = (int(v) for v in rng.choice(list(state), 2))
                k = int(rng.integers(0, 2 + 2**shift))
                outer = np.outer(X[points[p]], X[points[r]])
                M = M + k / 2**shift * state[p] * state[r] * (outer + outer.T) / 2
                triples.append([p, r, k])
            bounds.append(float(np.linalg.eigvalsh(M)[-1]))
            return triples

        tree, leaves = [], []
        branch(rng, list(range(len(points))), 3, tree, leaves, {}, leaf)
        sides.append({"sign": sign, "shift": shift, "points": points, "tree": tree, "leaves": leaves})
    upper = max(bounds)
    payload = certificate(
        X,
        y,
        activation="srelu",
        dual=q.tolist(),
        upper=upper * (1 + 1e-10) + 1e-290,
        proof={"type": "eigen-tree", "sides": sides},
    )
    verdict = check(payload, X, y)
    assert verdict, verdict
    value = sampled(rng, X, y, q, degree=2)
    assert value <= upper * (1 + 1e-9) + 1e-12
    if value > 1e-6:
        below = value * (1 - 1e-9)
        assert not check(changed(payload, upper=below), X, y)
        lam = [{"sign": s, "lam": below} for s in (1, -1)]
        assert not check(changed(payload, upper=below, proof={"type": "eigen", "sides": lam}), X, y)
    tops = []
    for s in (1, -1):
        plus = s * y * q > 0
        tops.append(float(np.linalg.eigvalsh((X[plus] * q[plus, None]).T @ X[plus])[-1]) * (1 + 1e-12) + 1e-300)
    proof = {"type": "eigen", "sides": [{"sign": s, "lam": t} for s, t in zip((1, -1), tops)]}
    assert check(changed(payload, upper=max(tops), proof=proof), X, y)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.sampled_from(["relu", "srelu"]), st.booleans())
def test_enumeration_finds_the_maximum(seed, activation, bias):
    rng = np.random.default_rng(seed)
    X, y, q = random_data(rng, d=1 if bias else int(rng.integers(1, 3)))
    Z = np.hstack([X, np.ones((len(X), 1))]) if bias else X
    degree = 1 if activation == "relu" else 2
    if Z.shape[1] == 1:
        V = np.array([[1.0], [-1.0]])
    else:
        angle = np.linspace(0, 2 * np.pi, 20001)
        V = np.column_stack([np.cos(angle), np.sin(angle)])
        turned = Z[Z.any(axis=1)][:, ::-1] * [1.0, -1.0]  # the kinks
        turned /= np.linalg.norm(turned, axis=1)[:, None]
        V = np.vstack([V, turned, -turned])
    value = max(0.0, max(objective(Z, s * q * y, V, degree).max() for s in (1, -1)))
    size = max(1.0, float(np.abs(Z).max())) ** degree
    payload = certificate(
        X,
        y,
        bias=bias,
        activation=activation,
        dual=q.tolist(),
        upper=value + 2e-6 * size,
        proof={"type": "enumeration"},
    )
    assert check(payload, X, y), check(payload, X, y)
    if value > 1e-6:
        assert not check(changed(payload, upper=value * (1 - 1e-9)), X, y)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32))
def test_random_eigen_proofs(seed):
    rng = np.random.default_rng(seed)
    X, y, q = random_data(rng)
    if rng.integers(2):  # more points than dimensions, beyond exact elimination
        X, y, q = rng.standard_normal((30, 14)), rng.choice([-1.0, 1.0], 30), np.full(30, 1 / 30)
    sides = []
    for sign in (1, -1):
        c = sign * q * y
        M = (X[c > 0] * c[c > 0][:, None]).T @ X[c > 0]
        sides.append({"sign": sign, "lam": float(np.linalg.eigvalsh(M)[-1].clip(0)) * (1 + 1e-10) + 1e-290})
    upper, proof = max(side["lam"] for side in sides), {"type": "eigen", "sides": sides}
    payload = certificate(X, y, dual=q.tolist(), upper=upper, proof=proof, activation="srelu")
    verdict = check(payload, X, y)
    assert verdict, verdict
    assert sampled(rng, X, y, q, 2) <= upper
    for k, side in enumerate(sides):
        if side["lam"] > 1e-6:
            smaller = edit(payload, ("proof", "sides", k, "lam"), side["lam"] * (1 - 1e-6))
            assert "lam" in check(smaller, X, y).failed


def test_f2_agrees_with_floating_point():
    rng = np.random.default_rng(5)
    X, y = np.vstack([rng.standard_normal((9, 3)), np.zeros((1, 3))]), rng.choice([-1.0, 1.0], 10)
    X[1], X[2] = 3 * X[0], -X[0]
    norm = np.linalg.norm(X, axis=1)
    cos = np.clip(X @ X.T / np.maximum(np.outer(norm, norm), 1e-300), -1, 1)
    t = np.arccos(cos)
    k = np.outer(norm, norm) * (np.sin(t) + (np.pi - t) * cos) / (2 * np.pi * 3)
    q = rng.random(10)
    q /= q.sum()
    K = k * np.outer(y, y)
    upper = math.sqrt(q @ K @ q)
    payload = certificate(
        X, y, "f2", dual=q.tolist(), upper=upper * (1 + 1e-7), extra={"kernel": "relu", "alpha": q.tolist()}
    )
    assert check(payload, X, y)
    assert not check(changed(payload, upper=upper * (1 - 1e-7)), X, y)
    X, y = X[:1], y[:1]  # one point: margin ||x|| / sqrt(2 d)
    margin = float(norm[0] / math.sqrt(6))
    one = certificate(
        X, y, "f2", lower=margin * (1 - 1e-15), upper=margin * (1 + 1e-15), extra={"kernel": "relu", "alpha": [2]}
    )
    assert check(one, X, y)


# ------------------------------------------------------------ malformed certificates

JUNK = [
    None,
    True,
    False,
    "x",
    "1",
    "",
    math.nan,
    math.inf,
    -math.inf,
    10**400,
    -(10**400),
    10**5000,
    2**64,
    1e308,
    5e-324,
    -1,
    0,
    1,
    0.5,
    -0.0,
    [],
    [[]],
    {},
    [1, [2]],
    [[1, 2], [3]],
    [True, False],
    {"type": "tree"},
    {"type": ["tree"]},
    {"type": "norm"},
    object(),
    1 + 2j,
    (1, 2),
    b"bytes",
]


ALL_PATHS = [(k, path) for k, entry in enumerate(KNOWN) for path in paths(entry[1]) if path]


def malformed(data, payload, path, actions):
    """A copy of which one place is replaced, left out or repeated, with the digest that belongs to it if it has one."""
    payload = copy.deepcopy(payload)
    at = payload
    for key in path[:-1]:
        at = at[key]
    action = data.draw(st.sampled_from(actions))
    if action == "replace":
        at[path[-1]] = data.draw(st.sampled_from(JUNK) | st.integers(-3, 9) | st.floats())
    elif action == "delete":
        del at[path[-1]]
    elif isinstance(at, list):
        at.append(copy.deepcopy(at[path[-1]]))
    if path[-1] != "digest":
        try:
            return seal(payload)
        except (TypeError, ValueError):
            payload["digest"] = "0" * 64
    return payload


@settings(deadline=None, max_examples=500)
@given(st.data())
def test_malformed_payloads_never_raise_and_never_prove_anything_false(data):
    k, path = data.draw(st.sampled_from(ALL_PATHS))
    _, payload, X, y, margin = KNOWN[k]
    payload = malformed(data, payload, path, ["replace", "replace", "replace", "delete", "repeat"])
    verdict = check(payload, X, y)
    assert isinstance(verdict, verify.Verdict) and isinstance(str(verdict), str)
    assert (verdict.answer == verify.REFUSED) == (verdict.failed is not None)
    json.dumps(verdict.to_dict())
    # a changed Gram matrix or another set of directions, activation or bias changes the question
    if verdict.failed is None and not {"gram", "directions", "activation", "bias"} & set(path):
        assert payload["lower"] <= margin * (1 + 1e-12) + 1e-300
        assert not payload["proved"] or payload["upper"] >= margin * (1 - 1e-12)


# ------------------------------------------------------------ regression


def regression():
    """(name, payload, X, y, smallest norm) for both kinds."""
    one, line = [[3.0, 4.0]], [[1.0], [-2.0], [3.0], [0.0]]
    largest = float(np.finfo(float).max)
    out = []

    def add(name, X, y, norm, kind, **fields):
        X, y = np.asarray(X, float), np.asarray(y, float)
        out.append((name, certificate(X, y, kind, **fields), X, y, norm))

    # f(x) = 0.4 relu(3 x_1 + 4 x_2): norm 2, exactly 10 at (3, 4)
    exact = {"lower": 2, "upper": 2, "primal": {"theta": one, "mass": [0.4]}, "dual": [0.5]}
    exact["primal"]["mass"], y = [0.5], 12.5
    proof = {"type": "norm", "maximum": 2.5}
    add("l1 point", one, [y], 2.5, "l1-regression", **exact | {"lower": 2.5, "upper": 2.5}, proof=proof)
    rounded = exact | {"lower": 2.5, "upper": 2.5 + 1e-9, "primal": {"theta": one, "mass": [0.5 - 1e-12]}}
    add("l1 repaired", one, [y], 2.5, "l1-regression", **rounded, proof=proof, extra={"frame": [[1, 2]]})
    # on the line: 3 relu(x) - 0.5 relu(-x); x_2 = 3 x_0 and x_3 = 0 are bound by relations
    relations = [{"point": 2, "weights": [[2, 1], [0, -3]]}, {"point": 3, "weights": [[3, 1]]}]
    add(
        "l1 relations",
        line,
        [3, -1, 9, 0],
        3.5,
        "l1-regression",
        lower=3.5,
        upper=3.5,
        primal={"theta": [[1], [-1]], "mass": [3, -0.5]},
        dual=[1, -0.5, 0, 0],
        proof={"type": "enumeration", "maximum": 1},
        extra={"relations": relations},
    )
    none = {"status": "no-interpolation", "upper": largest, "lower": largest, "proof": {"type": "relation"}}
    add("l1 none", line, [3, -1, 8, 0], math.inf, "l1-regression", **none, dual=[-3, 0, 1, 0])
    for name, activation, weight in (("l2 none", "relu", -3), ("l2 none srelu", "srelu", -9)):
        keys = {"activation": activation, "extra": {"kernel": activation}, "dual": [weight, 0, 1, 0]}
        add(name, line, [3, -1, 8, 0], math.inf, "l2-regression", **none, **keys)
    # k(x, x) = |x|^2 / 4 in the plane: f = k(x, .) has f(x) = 6.25 and norm 2.5
    bounds = {"lower": down(2.5), "upper": 2.5 + 1e-12, "dual": [1]}
    add("l2", one, [6.25], 2.5, "l2-regression", **bounds, extra={"kernel": "relu", "smallest": 6})
    given = {"kernel": "given", "gram": [[1, 0], [0, 4]]}
    pair = [[1.0, 0.0], [0.0, 1.0]]
    root = math.sqrt(8)
    add(
        "l2 given",
        pair,
        [2, 4],
        root,
        "l2-regression",
        lower=down(root),
        upper=up(root),
        dual=[2, 1],
        extra=given,
        activation="srelu",
    )
    return out


NORMS = regression()
NORM_PATHS = [(k, path) for k, entry in enumerate(NORMS) for path in paths(entry[1]) if path]


@pytest.mark.parametrize("entry", NORMS, ids=[entry[0] for entry in NORMS])
def test_known_norms(entry):
    _, payload, X, y, norm = entry
    verdict = check(payload, X, y)
    given = (
        payload["extra"].get("kernel") == "given"
    )  # a matrix that was not computed from the data proves nothing about them
    assert verdict.failed is None and verdict.answer == (verify.UNPROVED if given else verify.PROVED), verdict
    assert check(payload | {"upper": payload["upper"] / 2}, X, y).failed == "digest"
    assert check(payload, X, y + 1).failed == "data hash"
    assert check(changed(payload, convention="M1"), X, y).failed.startswith("format")
    if math.isinf(norm):
        assert "infinity" in str(verdict)
        assert check(changed(payload, upper=9.0, lower=0), X, y).failed.startswith("lower <= upper")
        assert check(changed(payload, dual=[0] * len(y)), X, y).failed.startswith("lower bound: the targets")
        assert check(changed(payload, dual=[1] * len(y)), X, y).failed.startswith("lower bound: the weights")
        return
    high = check(changed(payload, lower=norm * (1 + 1e-9), upper=99), X, y)
    assert not high and high.failed.startswith("lower bound"), high
    low = check(changed(payload, lower=0, upper=norm * (1 - 1e-9)), X, y)
    assert not low and low.failed.startswith("upper bound"), low
    assert check(changed(payload, proof={"type": "omitted"}), X, y).failed.startswith("lower bound: the proof")
    estimate = check(changed(payload, proved=False, upper=99), X, y)
    assert estimate.answer == verify.UNPROVED and "estimate and was not checked" in str(estimate)


@pytest.mark.parametrize(
    ("name", "path", "value", "failed"),
    [
        ("l1 point", ("proof", "maximum"), 2.4999, "norm side +1"),
        ("l1 point", ("proof", "maximum"), 0, "lower bound: proof.maximum"),
        ("l1 point", ("proof", "maximum"), 2.6, "lower bound: y . lam"),
        ("l1 point", ("proof", "type"), "eigen", "lower bound: no such proof"),
        ("l1 point", ("primal", "mass"), [0.5 - 1e-12], "upper bound: extra.frame"),
        ("l1 point", ("primal",), None, "upper bound: no primal"),
        ("l1 point", ("activation",), "srelu", "format: no rule"),
        ("l1 repaired", ("extra", "frame"), [[-1, 0]], "upper bound: the frame is singular"),
        ("l1 repaired", ("extra", "frame"), [[1, 2], [1, 3]], "upper bound: extra.frame"),
        ("l1 repaired", ("primal", "mass"), [0.4], "upper bound: the norm"),
        (
            "l1 relations",
            ("extra", "relations", 0, "weights"),
            [[2, 1], [0, -2]],
            "upper bound: relation 0: the targets",
        ),
        (
            "l1 relations",
            ("extra", "relations", 0, "weights"),
            [[2, 1], [1, 9]],
            "upper bound: relation 0: it does not",
        ),
        ("l1 relations", ("extra", "relations", 0, "point"), 3, "upper bound: relation 0: its point has no weight"),
        ("l1 relations", ("extra", "relations", 1, "point"), 2, "upper bound: relation 1: its point has one"),
        (
            "l1 relations",
            ("extra", "relations", 0, "weights"),
            [[2, 1], [0, -3], [3, 1]],
            "upper bound: relation 0: it uses",
        ),
        ("l1 relations", ("primal", "mass"), [3, -0.25], "upper bound: extra.frame"),
        ("l2", ("extra", "smallest"), 6.26, "upper bound: extra.smallest is not shown"),
        ("l2", ("extra", "smallest"), -1, "upper bound: extra.smallest is not positive"),
        ("l2", ("extra", "kernel"), "other", "format: extra.kernel"),
        ("l2 given", ("dual",), [2, 2], "lower bound"),
        ("l2 given", ("extra", "gram"), [[1, 0], [0.5, 4]], "format: extra.gram"),
    ],
)
def test_mutated_norms(name, path, value, failed):
    _, payload, X, y, _ = next(entry for entry in NORMS if entry[0] == name)
    verdict = check(edit(payload, path, value), X, y)
    assert not verdict and verdict.failed.startswith(failed), verdict


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_malformed_norms_never_raise_and_never_prove_anything_false(data):
    k, path = data.draw(st.sampled_from(NORM_PATHS))
    _, payload, X, y, norm = NORMS[k]
    payload = malformed(data, payload, path, ["replace", "delete"])
    verdict = check(payload, X, y)
    json.dumps(verdict.to_dict())
    if verdict.failed is None and not {"gram", "activation", "bias"} & set(path):
        assert payload["lower"] <= norm * (1 + 1e-12)
        assert not payload["proved"] or payload["upper"] >= min(norm, 1e308) * (1 - 1e-12)


@pytest.mark.parametrize("payload", [None, [], "text", 3, {}, {"format": "widemargin-certificate-1"}, {1: 2, "a": 3}])
def test_not_a_certificate(payload):
    assert check(payload, XOR, XOR_Y).failed.startswith("format")


@pytest.mark.parametrize(
    ("X", "y"),
    [
        (None, XOR_Y),
        (XOR, None),
        (XOR[0], XOR_Y),
        (XOR, XOR_Y[:2]),
        ([[1, 2], [3]], XOR_Y),
        (XOR * np.nan, XOR_Y),
        (np.zeros((0, 2)), []),
        ("x", "y"),
    ],
)
def test_bad_data_never_raise(X, y):
    assert not check(KNOWN[3][1], X, y)


def test_certificate_objects_verify():
    types = pytest.importorskip("widemargin.types")
    data = types.Dataset(XOR, XOR_Y)
    made = types.Certificate(
        "f1",
        down(ROOT),
        up(ROOT),
        np.full(4, 0.25),
        "certified",
        True,
        "norm",
        4,
        2,
        types.Measure(XOR, XOR_Y),
        data_sha256=data.sha256(),
        proof={"type": "norm"},
    )
    assert made.verify(data)
    assert check(made.payload(), data.X, data.y)


@pytest.mark.parametrize("seed", range(5))
def test_the_constants_of_quadratic_leaves_are_the_largest_values_rounded_up(seed):
    """kappa = max over the allowed t of c relu(t) - a t^2 - b t: never below its values on a fine grid of t, and near them."""
    rng = np.random.default_rng(seed)
    s, k, total, P = 20, 3, int(rng.integers(1, 50)), 12
    grid = rng.integers(-30, 31, (P, 2)).astype(object)
    square = [int(x @ x) for x in grid]
    above = [sqrt_up(v) for v in square]
    lengths = [(root - (root * root != v << (2 * ROOT_BITS)), root) for v, root in zip(square, above)]
    flat = SimpleNamespace(squares=square, lengths=lengths)
    a = [int(v) for v in rng.integers(-(1 << s), 1 << s, P)]
    b = [int(v) for v in rng.integers(-(1 << s), 1 << s, P)]
    c = [int(v) for v in rng.integers(-20, 21, P)]
    state = rng.integers(-1, 2, P)
    unit = (total * total) << (s + 2 * k + ROOT_BITS)
    kappa = _constants(a, b, flat, state, c, total, s, k) / unit
    expected = 0.0
    for i in range(P):
        size = square[i] ** 0.5 / 2**k
        A, B, C = a[i] / 2**s, b[i] / 2**s, c[i] / total
        # where a > 0 the rule ignores |t| <= |x|: the vertex of the parabola may lie beyond
        reach = max(size, abs(C - B) / (2 * A), abs(B) / (2 * A)) if A > 0 else size
        t = np.linspace(-reach if state[i] <= 0 else 0, reach if state[i] >= 0 else 0, 200_001)
        expected += (C * np.maximum(t, 0) - A * t**2 - B * t).max()
    assert expected <= kappa + 1e-9 and kappa <= expected * (1 + 1e-6) + 1e-6


@pytest.mark.parametrize("b,c", [(3, 1), (-2, 1)])  # slope -2 at t = |x| = sqrt 5, then slope 3
def test_the_constants_of_quadratic_leaves_round_lengths_by_the_sign_of_the_slope(b, c):
    flat = SimpleNamespace(squares=[5], lengths=[(sqrt_up(5) - 1, sqrt_up(5))])
    kappa = Fraction(_constants([-2], [b], flat, np.array([1]), [c], 1, 0, 0), 1 << ROOT_BITS)
    rest = (kappa - 10) / (c - b)  # |x| as the rule has it: kappa = slope |x| + 2 |x|^2
    assert rest**2 < 5 if c < b else rest**2 > 5


@pytest.mark.parametrize("a", [3, 7, 48])
def test_the_constants_of_quadratic_leaves_are_never_below_the_parabola(a):
    """slope^2 / (4 a) is rounded up where it is no multiple of the unit: 5^2 2^(2k + 64) / (4 a) is none for these a."""
    s, k, total = 1, 1, 1
    flat = SimpleNamespace(squares=[1], lengths=[(1 << ROOT_BITS, 1 << ROOT_BITS)])
    kappa = Fraction(_constants([a], [-3], flat, np.array([1]), [1], total, s, k), 1 << (s + 2 * k + ROOT_BITS))
    exact = Fraction(5, 2) ** 2 / (4 * Fraction(a, 2))  # slope c - b = 1 + 3/2
    assert exact < kappa < exact + Fraction(1, 1 << ROOT_BITS)
