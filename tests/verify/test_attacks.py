"""Certificates that a forger wrote: each was accepted by an earlier version, or asks for more memory than there is."""

import gzip
import json
import math
import os
import subprocess
import sys
import textwrap
from fractions import Fraction

import numpy as np
import pytest
from corpus import written_before

from checks import seal
from widemargin import data as datasets
from widemargin import margins, optima, verify
from widemargin.types import Dataset
from widemargin.verify import check, sqrt_up

PLANE = np.array([[1.0, 0.0], [0.0, 1.0]])


def forged(kind, X, y, lower, upper, **fields):
    X, y = np.asarray(X, float), np.asarray(y, float)
    body = {
        "format": verify.FORMAT,
        "kind": kind,
        "activation": "relu",
        "convention": verify.CONVENTION[kind],
        "proved": True,
        "status": "time-limit",
        "n": len(X),
        "d": X.shape[1],
        "bias": False,
        "data": {"name": "x", "sha256": verify.data_hash(X, y)},
        "lower": lower,
        "upper": upper,
        "extra": {},
        "primal": None,
        "dual": [1.0] + [0.0] * (len(X) - 1),
        "proof": {"type": "dual"},
    }
    return seal(json.loads(json.dumps(body | fields)))


def verdict(kind, X, y, lower, upper, **fields):
    return check(forged(kind, X, y, lower, upper, **fields), np.asarray(X, float), np.asarray(y, float))


# ------------------------------------------------------------ a kernel of another kind


def test_an_f2_margin_with_the_kernel_of_another_kind_is_refused():
    data = Dataset(PLANE, [1.0, -1.0])
    true, other = margins.f2(data), margins.ntk(data, transport="l2")
    assert other.lower > true.upper
    q = np.asarray(other.dual).tolist()
    found = verdict("f2", data.X, data.y, other.lower, other.upper, dual=q, extra={"alpha": q, "kernel": "ntk"})
    assert found.failed == "format: extra.kernel is not relu or given"


@pytest.mark.parametrize("kind", ["f2", "l2-regression", "ntk", "tangent"])
@pytest.mark.parametrize("activation", ["relu", "srelu"])
def test_each_kernel_is_allowed_for_its_kinds_only(kind, activation):
    allowed = {
        "f2": [activation, "given"],
        "l2-regression": [activation, "given"],
        "ntk": ["ntk"],
        "tangent": ["given"],
    }
    for kernel in ("relu", "srelu", "ntk", "given", "linear", None, ["relu"]):
        extra = {
            "kernel": kernel,
            "alpha": [1.0, 1.0],
            "gram": [[1.0, 0.0], [0.0, 1.0]],
            "part": "total",
            "transport": "l2",
        }
        found = verdict(kind, PLANE, [1.0, -1.0], 0.0, 9.0, activation=activation, dual=[0.5, 0.5], extra=extra)
        refused = found.failed is not None and found.failed.startswith(("format: extra.kernel", "format: kind ntk"))
        assert refused == (kernel not in allowed[kind] or (kind == "ntk" and activation == "srelu")), (kernel, found)


def test_an_l2_norm_with_the_tangent_kernel_is_refused():
    y = np.array([1.0, -2.0])
    true = margins.min_norm_l2(Dataset(PLANE, y))
    K = margins.ntk_kernel(PLANE)
    b = np.linalg.solve(K, y)
    norm = float(np.sqrt(y @ b))
    assert norm * (1 + 1e-9) < true.lower
    extra = {"kernel": "ntk", "part": "total", "smallest": float(np.linalg.eigvalsh(K)[0] * 0.9)}
    bounds = norm * (1 - 1e-9), norm * (1 + 1e-9)
    assert verdict("l2-regression", PLANE, y, *bounds, dual=b.tolist(), extra=extra).failed.startswith(
        "format: extra.kernel"
    )


# ------------------------------------------------------------ a stored Gram matrix

IDENTITY = [[1.0, 0.0], [0.0, 1.0]]
LINE = [[1.0], [2.0]]


@pytest.mark.parametrize("activation", ["relu", "srelu"])
def test_a_relation_of_the_features_is_none_of_a_stored_matrix(activation):
    ratio = 2 if activation == "relu" else 4
    relation = {"point": 1, "weights": [[0, ratio], [1, -1]]}
    extra = {"kernel": "given", "gram": IDENTITY, "relations": [relation]}
    keys = {"dual": [1.0, 0.0], "extra": extra, "activation": activation}
    found = verdict("l2-regression", LINE, [1.0, float(ratio)], 0.0, 1.0000001, **keys)
    assert found.failed == "upper bound: relation 0: it does not hold for all functions"
    singular = extra | {"gram": [[1.0, float(ratio)], [float(ratio), float(ratio**2)]]}
    found = verdict("l2-regression", LINE, [1.0, float(ratio)], 0.9, 1.0000001, **keys | {"extra": singular})
    assert (
        found.answer == verify.UNPROVED and found.failed is None
    )  # right for that matrix, which nobody computed from the data


def test_no_interpolation_needs_a_kernel_and_a_relation_of_it():
    none = {"status": "no-interpolation", "dual": [2.0, -1.0]}
    found = verdict(
        "l2-regression", LINE, [1.0, 3.0], 0.0, verify.LARGEST, **none, extra={"kernel": "given", "gram": IDENTITY}
    )
    assert found.failed == "lower bound: the weights are not a relation of the points"
    found = verdict("l2-regression", LINE, [1.0, 3.0], 0.0, verify.LARGEST, **none, extra={})
    assert found.failed.startswith("format: extra.kernel")
    found = verdict("l2-regression", LINE, [1.0, 3.0], 0.0, verify.LARGEST, **none, extra={"kernel": "relu"})
    assert found.answer == verify.PROVED


def test_a_stored_matrix_proves_nothing_about_the_data():
    n = 30
    data = datasets.load(f"clusters:n={n}")
    extra = {"kernel": "given", "gram": (1e6 * np.eye(n)).tolist(), "alpha": [1.0] * n}
    found = verdict("f2", data.X, data.y, 100.0, 1e6, dual=[1 / n] * n, extra=extra)
    assert found.answer == verify.UNPROVED and not found and "exactly" not in str(found)
    extra = {"kernel": "given", "gram": [[1.0, -1.0], [-1.0, 1.0]], "alpha": [0.5, 0.5]}
    found = verdict("f2", LINE, [1.0, -1.0], 1.0, 1.0, dual=[0.5, 0.5], extra=extra)
    assert found.answer == verify.UNPROVED
    indefinite = extra | {"gram": [[1.0, 100.0], [100.0, 1.0]]}
    for convention in ("M7", "gram"):
        found = verdict("f2", LINE, [1.0, -1.0], 0.0, 0.0, dual=[0.5, 0.5], extra=indefinite, convention=convention)
        assert found.failed.startswith("format: extra.gram is not shown to be positive semidefinite")
    found = verdict("f2", LINE, [1.0, -1.0], 1.0, 1.0, dual=[0.5, 0.5], extra=extra, convention="gram")
    assert found.answer == verify.PROVED and "gram" in found.about  # a question about the matrix itself
    found = verdict("f2", LINE, [1.0, -1.0], 0.0, 9.0, extra={"kernel": "relu"}, convention="gram")
    assert found.failed == "format: convention gram needs extra.kernel = given"


# ------------------------------------------------------------ rounding


def test_a_length_is_rounded_by_the_sign_of_its_slope():
    """One point x = (2^70, 1) with margin |x| > 2^70. With a slope c - b < 0, |x| rounded up hid the rest."""
    E, s = 70, 1000
    X, U, square = [[2.0**E, 1.0]], 2**E, 4**E + 1
    above = Fraction(sqrt_up(square), 1 << 64)
    A = (1 << s) // (2 * U)
    a = Fraction(A, 1 << s)
    B = math.ceil((1 + a * square / above) * (1 << s))
    lam = (U - a * square) / 2
    leaf = {"a": [-A], "b": [B], "lam": int(lam * (1 << s))}
    plus = {"sign": 1, "shift": s, "points": [0], "tree": [0, -1, -1], "leaves": [leaf, [0]]}
    minus = {"sign": -1, "shift": 0, "points": [0], "tree": [-1], "leaves": [[0]]}
    proof = {"type": "tree", "sides": [plus, minus]}
    assert square > U * U
    assert verdict("f1", X, [1.0], 0.0, float(U), dual=[1.0], proof=proof).failed.startswith("tree side +1, leaf 0")
    enough = math.nextafter(math.nextafter(float(U), math.inf), math.inf)
    assert verdict("f1", X, [1.0], 0.0, enough, dual=[1.0], proof=proof).answer == verify.PROVED


def sampled(X, y, lower, upper, **more):
    extra = {"part": "total", "transport": "sup", "samples": 2000, "confidence": 0.99, "seed": 0, "bins": 1, "key": 2}
    extra |= {"control": [0.0, 0.0], "floor": [0.0]} | more
    n = len(X)
    keys = {"dual": [0.0] * (n - 1) + [1.0], "proved": False, "extra": extra, "proof": {"type": "samples"}}
    return verdict("ntk", X, y, lower, upper, **keys)


def test_squares_that_underflow_prove_nothing():
    """The margin is at most 2 |x_2|; with t = 1e-170, u * u underflows."""
    found = sampled([[1.0, 0.5], [1e-170, 1e-170]], [1.0, 1.0], 1e-41, 1e-41)
    assert found.failed == "shape: the sizes of the points differ by more than 1e100"
    for t in (1e-90, 1e-60, 1e-5):
        X = [[1.0, 0.5], [t, t]]
        assert sampled(X, [1.0, 1.0], 3 * t, 9 * t).answer == verify.REFUSED
        assert sampled(X, [1.0, 1.0], 0.05 * t, 9 * t).answer == verify.CHANCE
        assert sampled(X, [1.0, 1.0], 0.0, 0.1 * t).answer == verify.REFUSED
    # a point with a tiny weight: u of the directions that see this point alone is tiny
    extra = {"dual": [1 - 1e-12, 1e-12]}
    X, y = np.array([[1.0, 0.0], [-1.0, 0.01]]), np.array([1.0, 1.0])
    tiny = forged("ntk", X, y, 0.5, 9.0, proved=False, proof={"type": "samples"}, **extra)
    tiny["extra"] = {"part": "total", "transport": "sup", "samples": 2000, "confidence": 0.99, "seed": 0, "bins": 1}
    tiny["extra"] |= {"control": [0.0, 0.0], "floor": [0.0], "key": 2}
    tiny["dual"] = [1.0, 1e-300]
    assert check(seal(tiny), X, y).answer == verify.REFUSED


# ------------------------------------------------------------ words


def test_what_is_not_proved_reads_and_exits_differently():
    data = datasets.load("clusters:n=30")
    found = verdict("f1", data.X, data.y, 0.0, 1e-9, proved=False, proof={"type": "omitted"})
    assert found.answer == verify.UNPROVED and not found.ok and not found and found.to_dict()["ok"] is False
    assert str(found).startswith("NOT proved") and verify.EXIT[found.answer] not in (0, 1, 2)


@pytest.mark.parametrize(
    ("fields", "failed"),
    [
        ({"status": "not-separable", "dual": [1] * 30}, "status: not-separable"),
        ({"status": "certified"}, "status: certified, but nothing is shown from below"),
        ({"status": "certified", "proved": False}, "status: certified, but upper is not proved"),
        ({"status": "no-interpolation"}, "status: 'no-interpolation' is no status of kind f1"),
        ({"status": "found"}, "status: 'found' is no status of kind f1"),
        ({"status": "proved beyond doubt"}, "status: 'proved beyond doubt' is no status"),
    ],
)
def test_status_words_are_checked(fields, failed):
    data = datasets.load("clusters:n=30")
    found = verdict("f1", data.X, data.y, 0.0, 100.0, **{"proof": {"type": "norm"}} | fields)
    assert found.failed.startswith(failed), found


def test_a_regression_that_is_not_proved_is_not_certified():
    found = verdict("l1-regression", LINE, [1.0, 5.0], 0.0, 1e-5, proved=False, dual=[0.0, 0.0], status="certified")
    assert found.failed == "status: certified, but upper is not proved"


def test_one_class_has_no_distance():
    found = verdict("projected", LINE, [1.0, 1.0], 1e300, 1e300, proved=False, extra={"rank": 1, "frame": [[1.0]]})
    assert found.failed.startswith("labels: both classes are needed")


def test_both_transports_have_their_own_convention():
    data = Dataset(PLANE, [1.0, -1.0])
    l2, sup = margins.ntk(data, transport="l2"), margins.ntk(data, samples=500)
    assert (l2.convention, sup.convention) == ("M8-l2", "M8")
    assert "transport l2, part total" in l2.verify(data).about and "M8-l2" in str(l2.verify(data))
    assert "transport sup" in sup.verify(data).about
    wrong = sup.payload() | {"convention": "M8-l2"}
    assert check(seal(wrong), data.X, data.y).failed == "format: convention M8-l2 is for transport l2"


@pytest.mark.parametrize("confidence", [0.9999999, 1 - 2**-53, 0.5])
def test_a_confidence_is_shown_as_it_is(confidence):
    found = sampled(PLANE, [1.0, -1.0], 0.0, 9.0, confidence=confidence)
    assert found.answer == verify.CHANCE and repr(confidence) in str(found) and "at least 1 " not in str(found)


def test_samples_and_confidence_are_in_the_key_of_the_sample():
    """Otherwise both could be chosen after a look at the sample."""
    from widemargin.verify.transport import sample_key

    extra = {"part": "total", "seed": 0, "bins": 1, "control": [0, 0], "floor": [0], "samples": 9, "confidence": 0.9}
    keys = {
        sample_key("0", [1.0], extra | change) for change in ({}, {"samples": 10}, {"confidence": 0.8}, {"seed": 1})
    }
    assert len(keys) == 4
    assert sampled(PLANE, [1.0, -1.0], 0.0, 9.0, key=1).failed.startswith("format: extra.key is not 2")


# ------------------------------------------------------------ bombs

LIMITED = """
    import json, resource, sys
    import numpy as np
    from widemargin import verify
    resource.setrlimit(resource.RLIMIT_AS, (3 * 2**28, 3 * 2**28))
    payload, X, y = json.load(sys.stdin)
    verdict = verify.check(payload, np.array(X), np.array(y))
    print(json.dumps([verdict.failed, str(verdict)]))
"""


def limited(payload, X, y):
    """The first failing item and the words of a verdict, from a process that may use 0.8 GB."""
    text = json.dumps([payload, np.asarray(X).tolist(), np.asarray(y).tolist()])
    keys = {"input": text, "capture_output": True, "text": True, "check": True}
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LIMITED)], env=os.environ | {"OMP_NUM_THREADS": "1"}, **keys
    )
    return json.loads(run.stdout)


def test_bins_and_samples_are_bounded():
    for more, failed in (
        ({"bins": 10**4, "floor": [0] * 10**4}, "format: extra.bins"),
        ({"samples": 10**10}, "format: extra.samples"),
        ({"samples": 10**9, "bins": 64, "floor": [0] * 64}, None),
        ({"control": [1e200, 0.0]}, "format: an entry of extra.floor"),
    ):
        if failed is not None:
            assert sampled(PLANE, [1.0, -1.0], 0.0, 1.0, **more).failed.startswith(failed)
    wide = np.ones((1, 200))
    assert sampled(wide, [1.0], 0.0, 99.0, samples=10**9).failed == "format: extra.samples: too many for so many points"


def test_bins_need_little_memory():
    extra = {"part": "total", "transport": "sup", "samples": 70000, "confidence": 0.99, "seed": 0, "bins": 64, "key": 2}
    extra |= {"control": [0.0, 0.0], "floor": [0.0] * 64}
    payload = forged(
        "ntk", PLANE, [1.0, -1.0], 0.0, 9.0, proved=False, dual=[0.5, 0.5], extra=extra, proof={"type": "samples"}
    )
    assert "NOT a proof" in limited(payload, PLANE, [1.0, -1.0])[1]


def test_a_cover_has_an_entry_for_every_orthant():
    K = 30
    X, y = np.eye(K), np.arange(K).astype(float)
    basis = [[1] + [-(j == i) for j in range(1, K)] for i in range(1, K)]
    dual = [[0] * K for _ in range(K)]
    dual[0][1] = 1.0
    proof = {"type": "cover", "basis": basis, "tree": [], "vertices": []}
    payload = forged("f1-multiclass", X, y, 0.0, 1.0, dual=dual, proof=proof)
    assert limited(payload, X, y)[0] == "cover: the tree ends too early"


def test_the_numbers_of_a_cone_stay_small():
    X, y = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), np.array([0.0, 1.0, 2.0])
    tree = [[(i + 1) % 2, i % 2, 1000] for i in range(20000)] + [-1]
    payload = forged("f1-multiclass", X, y, 0.0, 1.0, dual=[[0, 1.0, 0], [0, 0, 0], [0, 0, 0]])
    payload["proof"] = {"type": "cones", "tree": tree, "leaves": []}
    assert limited(seal(payload), X, y)[0] == "cones: the numbers of a vertex are too large"


def test_many_leaves_and_many_points_do_not_multiply():
    """An eigen-tree has leaves without content: 33,000 of them and 40,000 points would be 1.3 GB of states."""
    n = 40000
    X, y = np.ones((n, 1)), np.ones(n)
    depth = 15
    tree = []

    def grow(level):
        tree.extend([level] if level < depth else [-1])
        if level < depth:
            grow(level + 1)
            grow(level + 1)

    grow(0)
    leaves = [[] for _ in range(2**depth)]
    side = {"shift": 0, "points": list(range(n)), "tree": tree, "leaves": leaves}
    proof = {"type": "eigen-tree", "sides": [side | {"sign": s} for s in (1, -1)]}
    payload = forged("f1", X, y, 0.0, 1e-9, activation="srelu", dual=[1 / n] * n, proof=proof)
    assert limited(payload, X, y)[0].startswith("eigen-tree side +1, leaf 0")


def test_many_directions_and_many_points_do_not_multiply():
    m = n = 2500
    X, y = np.linspace(1, 2, n)[:, None], np.ones(n)
    extra = {"directions": [[1.0]] * m}
    payload = forged("frozen", X, y, 0.0, 1.0, dual=[1.0] + [0.0] * (n - 1), extra=extra)
    assert "exactly" in limited(payload, X, y)[1]


def test_a_deep_tree_of_signs_stays_small():
    depth = 60000
    X, y = np.array([[0.0], [1.0]]), np.array([1.0, -1.0])
    tree = [0] * depth + [-1] * (depth + 1)
    proof = {"type": "signs", "pairs": [[0, 1]], "tree": tree, "leaves": [[1.0]]}
    payload = forged("projected", X, y, 0.0, 1.0, dual=[0.5, 0.5], extra={"rank": 1}, proof=proof)
    assert limited(payload, X, y)[0].startswith("signs, leaf 0")


def test_gzip_is_unpacked_up_to_a_bound(tmp_path):
    good = next(payload for name, payload, _, _ in written_before() if name == "f1 cube")
    path = tmp_path / "cert.json.gz"
    path.write_bytes(gzip.compress(json.dumps(good).encode()))
    assert verify.load(path) == good
    text = json.dumps(good).encode()
    path.write_bytes(gzip.compress(text[:100]) + gzip.compress(text[100:]))  # two members are one file
    assert verify.load(path) == good
    path.write_bytes(gzip.compress(b" " * (1 << 27), 1))
    with pytest.raises(ValueError, match="unpacks to more than"):
        verify.load(path)
    path.write_bytes(gzip.compress(text)[:-20])
    with pytest.raises(ValueError, match="damaged"):
        verify.load(path)
    for content in (b"", b"[" * 10**5, b"\x1f\x8b", b"\xff\xfe", b"1" * 10**5):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"JSON|damaged"):
            verify.load(path)


# ------------------------------------------------------------ by itself


def test_the_checker_runs_where_only_numpy_is_installed(tmp_path):
    """A copy of the package beside numpy alone: no torch, no scipy, no other room."""
    import shutil
    from pathlib import Path

    import widemargin

    source = Path(widemargin.__file__).parent
    shutil.copytree(source / "verify", tmp_path / "widemargin" / "verify")
    shutil.copy(source / "__init__.py", tmp_path / "widemargin")
    code = textwrap.dedent(
        f"""
        import sys
        class Only:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] not in {{"numpy", "widemargin"}} | sys.stdlib_module_names:
                    raise ImportError(name)
        sys.meta_path.insert(0, Only())
        sys.path.insert(0, {str(tmp_path)!r})
        import runpy
        runpy.run_module("widemargin.verify", run_name="__main__", alter_sys=True)
        """
    )
    by_name = {name: (payload, X, y) for name, payload, X, y in written_before()}
    for name, status in (
        ("f1 cube", 0),
        ("l1-regression", 0),
        ("f1-multiclass plane", 0),
        ("f2 srelu", 4),
        ("ntk sup", 1),
    ):
        payload, X, y = by_name[name]
        (tmp_path / "cert.json").write_text(json.dumps(payload))
        np.savez(tmp_path / "data.npz", X=X, y=y)
        rows = [",".join([*(f"x{j}" for j in range(X.shape[1])), "y"])]
        rows += [",".join(map(repr, [*x, t])) for x, t in zip(X.tolist(), y.tolist())]
        (tmp_path / "data.csv").write_text("\n".join(rows))
        for file in ("data.npz", "data.csv") if name == "f1 cube" else ("data.csv",):
            arguments = [sys.executable, "-c", code, str(tmp_path / "cert.json"), str(tmp_path / file)]
            run = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path, check=False)
            assert run.returncode == status, (name, run.stdout, run.stderr)
    for arguments in (["missing.json", "data.npz"], ["cert.json", "cert.json"]):
        run = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert run.returncode == 2 and len(run.stderr.splitlines()) == 1 and "Traceback" not in run.stderr, run.stderr


# ------------------------------------------------------------ empty leaves


def with_empty(entries, upper=1.0, points=(0, 1, 2, 3), X=None, second=None):
    """Weights +1/4 at e1, -e1, e2 and 0, four leaves by the signs at e1 and -e1; side +1 has the maximum sqrt(2) / 4."""
    X = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]) if X is None else X
    tree, none = [0, 1, -1, -1, 1, -1, -1], [0] * len(points)
    plus = {
        "sign": 1,
        "shift": 0,
        "points": list(points),
        "tree": tree,
        "leaves": [entries, second or none, none, {"empty": [[0, 1], [1, 1]]}],
    }
    minus = {"sign": -1, "shift": 0, "points": [], "tree": [-1], "leaves": [[]]}
    proof = {"type": "tree", "sides": [plus, minus]}
    return verdict("f1", X, [1.0] * 4, 0.0, upper, dual=[0.25] * 4, proof=proof).failed


def test_empty_leaves():
    """On the first leaf v . e1 >= 0 and -v . e1 >= 0. The others are bounded by 1/8 + sqrt(5) / 8, with e2 free."""
    high = (1 + math.sqrt(5)) / 8
    assert with_empty({"empty": [[0, 1], [1, 1]]}, high * (1 + 1e-12)) is None
    assert with_empty({"empty": [[0, 2], [1, 1], [1, 1]]}) is None  # what comes twice is added
    good = {"empty": [[0, 1], [1, 1]]}
    assert "do not add up to zero" in with_empty(good, second=good)  # there e1 is active and -e1 is not
    assert "larger than upper" in with_empty({"empty": [[0, 1], [1, 1]]}, high * (1 - 1e-12))
    for entries, word in (
        ([[0, 1]], "do not add up to zero"),
        ([[0, 1], [1, 2]], "do not add up to zero"),
        ([], "do not add up to zero"),
        ([[0, 1], [1, 1], [2, 1]], "not fixed"),
        ([[3, 1]], "not fixed"),
        ([[0, 0], [1, 0]], "allowed range"),
        ([[0, -1], [1, -1]], "allowed range"),
        ([[0, True], [1, True]], "allowed range"),
        ([[0, 1.0], [1, 1.0]], "allowed range"),
        ([[0, 1], [-3, 1]], "allowed range"),
        ({"0": 1}, "not a list"),
    ):
        assert word in with_empty({"empty": entries}), entries


def test_zero_points_do_not_make_a_leaf_empty():
    X = np.array([[0.0, 0.0], [0.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    assert "are zero" in with_empty({"empty": [[0, 1], [1, 1]]}, X=X)
    assert "are zero" in with_empty({"empty": [[0, 1]]}, X=X)


# ------------------------------------------------------------ other data than they look


STANDARDISES = ", of points that the certificate standardises"


def test_the_verdict_says_that_points_were_replaced():
    """With a thousandth as the scale the margin is a thousand times that of the data: true, but of other points."""
    data = Dataset(PLANE, [1.0, -1.0])
    large = margins.linear(Dataset(1024 * data.X, data.y))
    scaled = {"mean": [0.0, 0.0], "scale": [2.0**-10, 2.0**-10]}
    body = large.payload()
    body = seal(json.loads(json.dumps(body | {"data": body["data"] | {"standardized": scaled}})))
    found = check(body, data.X, data.y)
    assert found and found.about.endswith(STANDARDISES) and found.about in str(found)
    assert found.to_dict()["about"] == found.about
    own = check(body, 1024 * data.X, data.y)  # of these the certificate speaks without a word more
    assert own and not own.about.endswith(STANDARDISES)
    for mean, scale in (
        ([0.0, 0.0], [math.inf, math.inf]),  # all points are 0, and all data are
        ([0.0, 0.0], ["0.0009765625", "0.0009765625"]),
        ([False, False], [2.0**-10, 2.0**-10]),
        ([0.0], [2.0**-10]),
        (0.0, 2.0**-10),
    ):
        other = seal(body | {"data": body["data"] | {"standardized": {"mean": mean, "scale": scale}}})
        assert check(other, data.X, data.y).failed == "data hash", (mean, scale)


def test_infinite_scales_do_not_make_all_data_one():
    zero = Dataset(np.zeros((2, 2)), [1.0, -1.0])
    body = margins.linear(zero).payload()
    scaled = {"mean": [0.0, 0.0], "scale": [math.inf, math.inf]}
    body = seal(json.loads(json.dumps(body | {"data": body["data"] | {"standardized": scaled}})))
    assert check(body, PLANE, zero.y).failed == "data hash" and check(body, zero.X, zero.y)


def test_the_verdict_names_a_column_of_labels_that_the_certificate_chose(tmp_path):
    """The file has a column y, but the certificate takes it for a feature and another for the labels."""
    table = tmp_path / "d.csv"
    table.write_text("a,b,y\n1,2,-1\n-1,1,1\n1,-3,1\n")
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    for label, words in (("a", ", labels from column 'a'"), ("y", "")):
        cert = margins.linear(datasets.load(str(table), label), bias=True)
        cert.save(tmp_path / "c.json")
        for module in (["widemargin.verify"], ["widemargin", "verify"]):
            argv = [sys.executable, "-m", *module, str(tmp_path / "c.json"), str(table), "--json"]
            done = subprocess.run(argv, capture_output=True, text=True, env=env, check=False)
            found = json.loads(done.stdout)
            assert done.returncode == 0 and found["about"] == "linear margin (M11, bias)" + words
    table.write_text("label,b,y\n1,2,-1\n-1,1,1\n1,-3,1\n")  # of these two nobody knows which, unless told
    for label in ("label", "y"):
        margins.linear(datasets.load(str(table), label)).save(tmp_path / "c.json")
        argv = [sys.executable, "-m", "widemargin.verify", str(tmp_path / "c.json"), str(table)]
        done = subprocess.run(argv, capture_output=True, text=True, env=env, check=False)
        assert f"labels from column '{label}'" in done.stdout, done


def test_the_verdict_says_where_two_numbers_became_signs(tmp_path):
    """Two certificates of one file were both proved, in the same words, with bounds that have no number in common."""
    table = tmp_path / "d.csv"
    table.write_text("a,b,y\n1,2,0\n-1,1,1\n1,-3,1\n")
    loaded = datasets.load(str(table))
    numbers = datasets.load_for_loss(str(table), loss="squared")
    words = ", targets -1 and +1 in place of the two numbers of the file"
    replaced = ", of points that the certificate standardises"
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    for data, said in (
        (numbers, ""),
        (loaded, words),
        (numbers.standardize(), replaced),
        (loaded.standardize(), words + replaced),  # which was refused
    ):
        optima.f2(data, loss="squared", weight_decay=0.1).save(tmp_path / "c.json")
        for module in (["widemargin.verify"], ["widemargin", "verify"]):
            argv = [sys.executable, "-m", *module, str(tmp_path / "c.json"), str(table), "--json"]
            done = subprocess.run(argv, capture_output=True, text=True, env=env, check=False)
            found = json.loads(done.stdout)
            assert done.returncode == 0 and found["about"].partition(")")[2] == said, found


def test_complex_data_are_refused():
    """numpy drops the imaginary part with a warning."""
    body = margins.linear(Dataset(PLANE, [1.0, -1.0])).payload()
    assert check(body, PLANE + 0j, np.array([1.0, -1.0])).failed == "shape: the data hold complex numbers"
    assert check(body, PLANE, np.array([1.0, -1.0])).ok
