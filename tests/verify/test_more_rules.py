"""More certificates that a forger wrote, the words and the sizes of verdicts, and what is read from files."""

import gzip
import hashlib
import math

import numpy as np
import pytest
from corpus import hand_made, written_before, written_now
from test_attacks import PLANE, forged, limited, sampled, verdict

from checks import seal
from widemargin import verify
from widemargin.data import load_file
from widemargin.types import InputError
from widemargin.verify import batchnorm, check, files, kernels, multiclass, projected, reading, regression, tree
from widemargin.verify.transport import ntk_radial

# ------------------------------------------------------------ the constants of the sample


@pytest.mark.parametrize("D", [1, 2, 100, 1000, 20000])
@pytest.mark.parametrize("bins", [1, 2, 4, 16])
def test_the_constants_of_a_sample_are_right_for_every_number_of_bins(D, bins):
    """sum_k S_k = E |v| and sum_k C_k = E |a| over a^2 + |v|^2 < 4. With one bin S was 0.4 % too small in 1000
    dimensions, so that an upper bound below the rule's was accepted."""
    nodes, weights = np.polynomial.legendre.leggauss(400)
    ends = max(0.0, 1 - 12 / math.sqrt(2 * D)), min(2.0, 1 + 12 / math.sqrt(2 * D))  # of |v|
    r = ends[0] + (nodes + 1) / 2 * (ends[1] - ends[0])
    log_density = math.log(2) + D / 2 * math.log(D / 2) - math.lgamma(D / 2) + (D - 1) * np.log(r) - D * r * r / 2
    density = np.exp(log_density) * weights / 2 * (ends[1] - ends[0])
    cut = np.sqrt(4 - r * r)  # |a| is below it
    S = (density * r * [math.erf(c / math.sqrt(2)) for c in cut]).sum()
    C = (density * math.sqrt(2 / math.pi) * (1 - np.exp(-(cut**2) / 2))).sum()
    table = ntk_radial(D, bins, "total")
    assert table.shape == (4, bins)
    np.testing.assert_allclose(table[0].sum(), S, rtol=1e-7)
    np.testing.assert_allclose(table[1].sum(), C, rtol=1e-7)
    assert (table[2] >= table[0] * (1 - 1e-9)).all() and (table[3] >= table[1] * (1 - 1e-9)).all()  # Cauchy-Schwarz
    np.testing.assert_allclose(ntk_radial(D, 1, "outer")[0, 0], S, rtol=1e-7)
    np.testing.assert_allclose(ntk_radial(D, 1, "inner")[1, 0], C, rtol=1e-7)


def test_the_seed_is_a_number_and_the_words_are_what_was_read():
    for seed in ("0)\nverified exactly: f1 margin", "\ud800", None, [0], 0.0, -1, True):
        found = sampled(PLANE, [1.0, -1.0], 0.0, 9.0, seed=seed)
        assert found.failed.startswith("format: extra.seed"), seed
    assert "seed 7" in sampled(PLANE, [1.0, -1.0], 0.0, 9.0, seed=7).about
    # a kernel margin has no sample: what `extra` says of one was not read
    extra = {"part": "total", "transport": "l2", "kernel": "ntk", "samples": "all", "confidence": 1, "seed": "\ud800"}
    found = verdict("ntk", PLANE, [1.0, -1.0], 0.0, 9.0, convention="M8-l2", dual=[0.5, 0.5], extra=extra)
    assert found.about == "ntk margin (M8-l2, activation relu, no bias, transport l2, part total)" and found
    cone = {"type": "cone", "point": 0, "weights": [1, 0], "clique": [0]}
    found = verdict("collapse", PLANE, [1, -1], 0.0, 9.0, extra={"strict": "yes; the margin is 7"}, proof=cone)
    assert found.failed == "format: extra.strict is not true or false"
    found = verdict("rf", PLANE, [1, -1], 0.0, 9.0, dual=[0.5, 0.5], extra={"directions": [[1, 0], [0, 1], [1, 1]]})
    assert found and "for the 3 directions of the certificate" in found.about
    none = {"dual": [1, -1], "proof": {"type": "relation"}, "status": "no-interpolation", "activation": "srelu"}
    found = verdict("l2-regression", [[1.0], [1.0]], [1, 2], 0.0, verify.LARGEST, extra={"kernel": "relu"}, **none)
    assert found and "kernel srelu" in found.about


def bn_extra(V, a, **more):
    text = np.array(a, float).tobytes() + np.array(V, float).tobytes()
    extra = {"part": "a", "width": len(a), "eps": 0.5, "displacement": 0.0, "directions": V, "a": a}
    extra |= {"gamma_a": {"lower": 0.0, "upper": 9.0}, "weights_a": [1.0] * len(a)}
    return extra | {"weights_sha256": hashlib.sha256(text).hexdigest()} | more


def test_weights_that_need_rounding_are_refused():
    """The hash is one of doubles: 2^53 + 1 would have been taken for 2^53."""
    good = verdict("bn", PLANE, [1, -1], 0.0, 9.0, dual=[0.5, 0.5], extra=bn_extra([[2**53, 1]], [1]))
    assert good and "for the 1 directions of the certificate" in good.about
    for V, a in (([[2**53 + 1, 1]], [1]), ([[1, 1]], [2**53 + 1]), ([[2**1099, 1]], [1])):
        extra = bn_extra([[1, 1]], [1]) | {"directions": V, "a": a}
        found = verdict("bn", PLANE, [1, -1], 0.0, 9.0, dual=[0.5, 0.5], extra=extra)
        assert found.failed.endswith("a number is not a double"), found
    large = verdict("bn", PLANE, [1, -1], 0.0, 9.0, dual=[0.5, 0.5], extra=bn_extra([[1, 1]], [1], eps=10**60))
    assert large and "eps 1e+60" in large.about  # not its first digits


# ------------------------------------------------------------ the word not-separable


def test_not_separable_is_not_said_of_points_that_are():
    """Each upper bound is true, and each margin is positive; the word was accepted."""
    far = [[1e10], [1.0]]  # one class: the margin is 1
    none = {"status": "not-separable"}
    failed = "status: not-separable, but only that the margin is at most upper is shown"
    found = verdict("f1", far, [1, 1], 0.0, 1.0, dual=[0.0, 1.0], proof={"type": "norm"}, **none)
    assert found.failed == failed
    found = verdict("f1", far, [1, 1], 0.0, 2.0, dual=[1e-10, 1.0], proof={"type": "norm"}, **none)
    assert found.failed == failed
    for kind in ("linear", "tangent"):  # ||x||^2 was taken for ||x||
        extra = {"kernel": "given", "gram": [[1e20]]}
        found = verdict(kind, [[1e10]], [1], 0.0, 1e10, activation="srelu", extra=extra, **none)
        assert found.failed == failed
    dual = [[0.0, 1.0], [0.0, 0.0]]
    found = verdict("linear-multiclass", 1e10 * PLANE, [0, 1], 0.0, 2e10, activation="srelu", dual=dual, **none)
    assert found.failed == failed
    pairs = {"type": "trace", "pairs": [[0, 1, 1.0]]}  # far from the origin, at distance 1
    shifted = [[1e10], [1e10 + 1]]
    found = verdict("projected", shifted, [1, -1], 0.0, 1.0, dual=[0.5, 0.5], proof=pairs, extra={"rank": 1}, **none)
    assert found.failed == failed
    cone = {"type": "cone", "point": 0, "weights": [1, -0.0], "clique": [0]}
    found = verdict("collapse", PLANE, [1, -1], 0.0, 1.0, proof=cone, extra={"strict": False}, **none)
    assert found.failed == "status: 'not-separable' is no status of kind collapse"
    # two points with one place and both labels, and what rounding leaves of them
    twins = [[1e10], [1.0], [1.0]]
    found = verdict("f1", twins, [1, 1, -1], 0.0, 1e-9, dual=[0, 1, 1], proof={"type": "norm"}, **none)
    assert found and "not separable, up to rounding" in found.checks[-1][1]


def test_a_lower_bound_below_zero_is_a_bound():
    twins, half = [[1.0], [1.0]], {"dual": [0.5, 0.5], "proof": {"type": "norm"}}
    for lower, upper in ((-1, 0), (-1e308, 5e-324), (-1.0, 1.0)):
        assert verdict("f1", twins, [1, -1], lower, upper, **half).answer == verify.PROVED
    none = {"dual": [0.0], "proof": {"type": "norm"}, "primal": {"theta": [], "mass": []}}
    assert verdict("l1-regression", [[1.0]], [0.0], -1.0, 0.0, **none).answer == verify.PROVED


# ------------------------------------------------------------ sizes


@pytest.fixture(scope="module")
def whole():
    """Certificates, what is said of them, the same with a bound that is too low, and why those are refused: in one block."""
    corpus = [case for case in (*written_before(), *hand_made(), *written_now()) if "3" not in case[0]]
    want = [check(payload, X, y) for _, payload, X, y in corpus]
    lower = [seal(payload | {"upper": payload["upper"] * 0.999, "status": "rounding"}) for _, payload, _, _ in corpus]
    refused = [check(payload, X, y).failed for payload, (_, _, X, y) in zip(lower, corpus)]
    return corpus, want, lower, refused


@pytest.mark.slow
@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.long), 7])
def test_blocks_of_any_size_give_the_same_verdict(size, whole, monkeypatch):
    """Leaves, atoms, directions, pairs, neurons and rows of kernels are worked through in blocks."""
    corpus, want, lower, refused = whole
    for module in (reading, kernels, batchnorm, projected, multiclass):
        monkeypatch.setattr(module, "BLOCK", size)
    monkeypatch.setattr(tree, "LEAF_BLOCK", size)
    monkeypatch.setattr(tree, "TABLE", 0)
    most = []
    block = kernels.relu_kernel
    monkeypatch.setitem(kernels.KERNELS, "relu", lambda X, Z: most.append(len(X)) or block(X, Z))
    for (name, payload, X, y), expected, less, failed in zip(corpus, want, lower, refused):
        assert check(payload, X, y) == expected, name
        assert check(less, X, y).failed == failed, name
    assert max(most) <= size


def sides(side, **other):
    return [{"sign": 1} | side, {"sign": -1} | side | other]


def test_a_short_file_does_not_ask_for_a_large_matrix():
    """D is 20,000 for a few points: matrices of 4 10^8 entries, where the points' span is not used: they are nearly dependent."""
    D = 20000
    X = np.zeros((3, D))
    X[0, 0], X[1, 1], X[2, :3] = 1, 1, (1, 1, 2.0**-200)
    leaf = {"a": [0, 0, 0], "b": [0, 0, 0], "lam": 10}
    quadratic = {"shift": 0, "points": [0, 1, 2], "tree": [-1], "leaves": [leaf]}
    empty = {"shift": 0, "points": [], "tree": [-1], "leaves": [[]]}
    half = {"dual": [0.5, 0.25, 0.25]}
    proofs = [
        ("f1", "relu", {"type": "pairing", "shift": 0, "lam": 10, "pairs": []}),
        ("f1", "relu", {"type": "tree", "sides": sides(quadratic)}),
        ("f1", "srelu", {"type": "eigen-tree", "sides": sides(empty)}),
        ("projected", "relu", {"type": "fantope", "pairs": [[0, 1, 1]], "t": 10, "B": [[]] * D, "shift": 0}),
        ("projected", "relu", {"type": "fantope-pairs", "pairs": [[0, 1, 1]] * D, "t": 10, "B": [[]] * D, "shift": 0}),
    ]
    for kind, activation, proof in proofs:
        found = verdict(kind, X, [1, -1, -1], 0.0, 1e9, activation=activation, proof=proof, extra={"rank": 1}, **half)
        assert "is too large for 3 points in 20000 dimensions" in found.failed, found
    frame = {"frame": [[1.0]] * 2049}
    line = np.arange(1.0, 2050.0)[:, None]
    zero = {"dual": [0.0] * 2049, "primal": {"theta": [], "mass": []}, "proof": {"type": "norm"}}
    found = verdict("l1-regression", line, np.ones(2049), 0.0, 1e9, extra=frame, **zero)
    assert found.failed == "upper bound: exact values at more than 2048 points are not checked"


def test_kernels_of_many_points_are_refused_at_once():
    n = 16385
    X, dual = np.ones((n, 1)), {"dual": [1.0] + [0.0] * (n - 1)}
    many = {"dual": [2.0**-14] * (n - 1) + [2.0**-60]}
    found = verdict("f2", X, np.ones(n), 0.0, 9.0, extra={"kernel": "relu"}, **many)
    assert found.failed == "format: extra.kernel: more than 16384^2 pairs are not looked at"
    assert verdict("f2", X, np.ones(n), 0.0, 9.0, extra={"kernel": "relu"}, **dual).failed is None  # one has a weight
    found = verdict("l2-regression", X, np.ones(n), 0.0, 9.0, extra={"kernel": "relu"}, **many)
    assert found.failed == "format: extra.kernel: more than 16384^2 pairs are not looked at"
    assert sampled(X, np.ones(n), 0.0, 9.0).failed.endswith("all pairs of more than 16384 points are not looked at")


def test_points_and_dimensions_are_not_squared():
    """Each asked for more than 0.8 GB."""
    n = 12000
    X, y = np.arange(1.0, n + 1)[:, None], np.where(np.arange(n) % 2, 1.0, -1.0)
    even = {"dual": [1 / n] * n}
    pairing = {"type": "pairing", "shift": 0, "lam": 10**9, "pairs": [[1, 0, 1, 1]]}
    assert "verified exactly" in limited(forged("f1", X, y, 0.0, 1e10, proof=pairing, **even), X, y)[1]
    cone = {"type": "cone", "point": 0, "weights": [1] + [0] * (n - 1), "clique": list(range(n))}
    payload = forged("collapse", X, np.ones(n), 0.0, 1e9, proof=cone, extra={"strict": False}, **even)
    assert limited(payload, X, np.ones(n))[0] == "upper bound: points 1 and 0 could be in one cone"
    X = np.column_stack([np.arange(1.0, n + 1), np.ones(n)])
    classes = np.arange(n) % 3.0
    dual = [[0.0 if j == i % 3 else 1 / (2 * n) for j in range(3)] for i in range(n)]
    payload = forged("f1-multiclass", X, classes, 0.0, 1e9, dual=dual, proof={"type": "enumeration"})
    assert "verified exactly" in limited(payload, X, classes)[1]
    X, y = np.ones((2, 5000)), [1.0, 2.0]
    none = {"status": "no-interpolation", "proof": {"type": "relation"}, "dual": [1, -1], "activation": "srelu"}
    payload = forged("l2-regression", X, y, 0.0, verify.LARGEST, extra={"kernel": "srelu"}, **none)
    assert "infinity" in limited(payload, X, y)[1]


def test_a_cover_is_counted_before_its_basis_is_eliminated(monkeypatch):
    K = 40
    monkeypatch.setattr(multiclass, "independent", None)
    dual = [[0] * K for _ in range(K)]
    dual[0][1] = 1.0
    basis = [[1] + [-(j == i) for j in range(1, K)] for i in range(1, K)]
    proof = {"type": "cover", "basis": basis, "tree": [-1] * 999, "vertices": []}
    found = verdict("f1-multiclass", np.eye(K), np.arange(K), 0.0, 1.0, dual=dual, proof=proof)
    assert found.failed == "cover: the tree ends too early"


def test_products_of_points_are_summed():
    rng = np.random.default_rng(0)
    grid = rng.integers(-9, 9, (6, 4)).astype(object)
    products = {(i, j): int(rng.integers(-5, 5)) for i in range(6) for j in range(6)}
    want = sum(w * (np.outer(grid[i], grid[j]) + np.outer(grid[j], grid[i])) for (i, j), w in products.items())
    assert (tree._mixed(grid, products) == want).all() and not tree._mixed(grid, {}).any()


@pytest.mark.parametrize("D", [2, 40])
def test_relations_of_squares_in_few_and_many_dimensions(D):
    """e1^2 + e2^2 = ((e1 + e2)^2 + (e1 - e2)^2) / 2 with both signs of each point; more and fewer points than D."""
    base = np.zeros((4, D), dtype=np.int64)
    base[:, :2] = [[1, 0], [0, 1], [1, 1], [1, -1]]
    problem = reading.Problem(np.vstack([base, -base]), 0, [0] * 8, 2)
    good = dict(enumerate([2, 2, -1, -1] * 2))
    assert regression._vanishes(problem, good)
    for i in range(8):
        assert not regression._vanishes(problem, good | {i: good[i] + 1})
    assert not regression._vanishes(problem, dict(enumerate([4, 4, -2, -2])))  # the odd parts stay
    assert not regression._vanishes(problem, {0: 1, 4: 1})  # x and -x: the even part stays
    problem = reading.Problem(problem.grid, 0, [0] * 8, 1)
    assert not regression._vanishes(problem, {0: 1, 4: -1}) and not regression._vanishes(problem, {0: 1, 4: 1})
    assert regression._vanishes(problem, {0: 1, 1: 1, 4: -1, 5: -1, 2: -1, 6: 1})  # t_1 + t_2 - (t_1 + t_2)
    assert regression._vanishes(problem, {})


# ------------------------------------------------------------ files


def test_a_key_that_comes_twice_is_refused(tmp_path):
    path = tmp_path / "cert.json"
    path.write_text('{"lower": 0.5, "extra": {"a": 1, "a": 2}}')
    with pytest.raises(ValueError, match="a key comes twice"):
        verify.load(path)


def test_a_gzip_of_little_does_not_become_much(tmp_path):
    path = tmp_path / "cert.json.gz"
    path.write_bytes(gzip.compress(b"[" + b"[]," * 3_000_000 + b"0]"))  # 9 kB, and 3 million lists
    with pytest.raises(ValueError, match="unpacks to more than"):
        verify.load(path)
    junk = np.random.default_rng(0).bytes(10**5).hex().encode()
    for part in (b"[],", b"{},"):  # as much text as may be, all of it empty lists or objects
        path.write_bytes(gzip.compress(b'["' + junk + b'",' + part * 2_000_000 + b"0]"))
        with pytest.raises(ValueError, match="far more lists"):
            verify.load(path)
    path.write_bytes(gzip.compress(b"") * 3000 + gzip.compress(b"{}"))
    assert verify.load(path) == {}
    for content in (gzip.compress(b"{}") + b"rest", b"\x1f\x8b\x08", gzip.compress(b"{}")[:-1]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="damaged"):
            verify.load(path)


CSV = {
    "plain": "x,y\n1,0\n2,1\n",
    "quoted, spaces, blank lines": '\ufeff x , y \n\n"1", 0 \n 2e0,1\n\n',
    "lines of spaces": "  \nx,y\n1,0\n \t\n2,1\n   \n",
    "17 digits": "x,y\n1,9007199254740992\n2,9007199254740993\n3,9007199254740992\n",
    "17 digits, three": "x,y\n1,9007199254740992\n2,9007199254740993\n3,5\n",
    "17 digits and a point": "x,y\n1,9007199254740993\n2,5.0\n3,5\n",
    "20 digits": "x,y\n1,90071992547409930000\n2,5\n3,5\n",
    "target first": "label,a,b\n3,1,2\n9,3,4\n",
    "underscore is text": "x,y\n1,1_0\n2,9\n",
    "underscore in a feature": "x,y\n1_0,1\n2,-1\n",
    "texts": "x,y\n1,10\n2,9\n3,cat\n",
    "two texts": "x,y\n1,b\n2,a\n3,b\n",
    "empty label": "x,y\n1,a\n2,\n",
    "nan label": "x,y\n1,1\n2,nan\n",
    "infinite label": "x,y\n1,1\n2,inf\n",
    "nan feature": "x,y\nnan,1\n2,-1\n",
    "more fields": "x,y\n1,1,5\n2,-1,5\n",
    "fewer fields": "x,z,y\n1,1\n2,-1\n",
    "a name twice": "x,x,y\n1,2,1\n3,4,-1\n",
    "no name": "x,,y\n1,2,1\n3,4,-1\n",
    "two targets": "x,y,label\n1,1,1\n3,-1,-1\n",
    "no target": "x,z\n1,1\n",
    "empty": "",
    "header only": "x,y\n",
    "target only": "y\n1\n-1\n",
    "three": "x,y\n1,0\n2,1\n3,2\n",
    "other digits": "x,y\n١,1\n2,-1\n",
}


def arrays():
    X = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    ok = np.array([1.0, -1.0, 1.0])
    return {
        "plain": (X, ok),
        "column": (X, ok[:, None]),
        "bool": (X, ok > 0),
        "text": (X, np.array(["10", "9", "10"])),
        "bytes": (X, np.array([b"b", b"a", b"b"])),
        "integers": (X.astype(int), np.array([3, 7, 3])),
        "single": (X.astype(np.float32), ok),
        "complex": (X + 1j, ok),
        "complex labels": (X, ok + 1j),
        "text features": (X.astype(str), ok),
        "nan": (X, np.array([1.0, np.nan, 1.0])),
        "dates": (X, np.array(["2020-01-01", "2021-01-01", "2020-01-01"], dtype="M8[D]")),
        "records": (X, np.zeros(3, dtype=[("a", "f8"), ("b", "f8")])),
        "infinite": (X * np.array([[1], [np.inf], [1]]), ok),
        "long": (X, ok[:2]),
        "three": (X, np.array([0, 1, 2])),
    }


def both(path, kind):
    """What the checker and `widemargin.data` read: (X, y), or None where it is refused."""
    out = []
    try:
        X, y = files.read_data(str(path), kind)
        good = X.ndim == 2 and X.size > 0 and y.shape == (len(X),)
        if kind == "f1":  # what `check` accepts
            good = good and bool(np.isin(y, (-1, 1)).all()) and len(set(y.tolist())) == 2
        out.append((X, y) if good else None)
    except ValueError as error:
        assert "\n" not in str(error)
        out.append(None)
    try:
        data = load_file(path, targets=kind == "l1-regression", multiclass=kind == "f1-multiclass")
        out.append((data.X, data.y))
    except InputError:
        out.append(None)
    return out


@pytest.mark.parametrize("kind", ["f1", "l1-regression", "f1-multiclass"])
def test_the_checker_reads_data_as_the_library_does(kind, tmp_path):
    read = 0
    cases = [(name, "data.csv", text) for name, text in CSV.items()]
    cases += [(name, "data.npz", pair) for name, pair in arrays().items()]
    for name, file, content in cases:
        path = tmp_path / file
        if file.endswith(".csv"):
            path.write_text(content, encoding="utf-8")
        else:
            np.savez(path, X=content[0], y=content[1])
        ours, theirs = both(path, kind)
        assert (ours is None) == (theirs is None), (name, file, ours, theirs)
        if ours is not None:
            read += 1
            assert (ours[0] == theirs[0]).all() and (ours[1] == theirs[1]).all(), (name, file)
    assert read > 8
