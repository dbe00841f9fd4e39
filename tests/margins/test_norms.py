"""Linear margins in every norm: closed forms by hand, another solver, symmetries, hostile data, bent certificates."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from test_hostile import interrupt_at
from test_linear import separable
from test_multiclass import random_classes, simplex

from checks import seal
from widemargin import Dataset, InputError, verify
from widemargin.cli.margin import solve
from widemargin.margins import MaxMarginClassifier, barrier, linear, multiclass_linear, norms
from widemargin.verify.norms import singular

TWO, SEVERAL = ("l1", "linf"), ("max", "l1", "spectral", "nuclear")


def size(A, norm):
    """The definition."""
    if norm in ("linf", "max"):
        return np.abs(A).max()
    if norm == "l1":
        return np.abs(A).sum()
    values = np.linalg.svd(A, compute_uv=False)
    return {"l2": np.linalg.norm(A), "frobenius": np.linalg.norm(A), "spectral": values.max(), "nuclear": values.sum()}[
        norm
    ]


def encloses(cert, data, exact, tol=1e-6):
    """Whether a certificate is proved, and its interval is short and around `exact`."""
    proved = cert.status == "certified" and cert.verify(data).ok
    return proved and cert.lower <= exact * (1 + 1e-12) and exact * (1 - 1e-12) <= cert.upper and cert.gap < tol


# ---------------------------------------------------------------- by hand


@pytest.mark.parametrize("d", [2, 4, 8, 20])
def test_the_dyadic_set(d):
    """x_j = 2^-j e_j, all labels 1: u_j 2^-j >= t. With |u_j| <= 1 that is t = 2^-d, with sum |u_j| = 1 it is 1 / sum 2^j."""
    data = Dataset(np.diag(0.5 ** np.arange(1, d + 1)), np.ones(d))
    assert encloses(linear(data, norm="linf"), data, 2.0**-d, 1e-9)
    assert encloses(linear(data, norm="l1"), data, 1 / (2.0 ** (d + 1) - 2), 1e-9)


def test_one_point_has_the_dual_norm_of_it_as_margin():
    data = Dataset([[3.0, -4.0, 0.5], [-3.0, 4.0, -0.5]], [1, -1])
    for norm, exact in (("l1", 4.0), ("linf", 7.5), ("l2", np.sqrt(25.25))):
        assert encloses(linear(data, norm=norm), data, exact, 1e-9)
    assert encloses(linear(data, norm="linf", bias=True), data, 7.5, 1e-9)  # the two points want opposite offsets


@pytest.mark.parametrize("K", [2, 3, 5, 9])
def test_the_simplex(K):
    """x_k = e_k: by symmetry U = a I + b 11', of margin a, with the eigenvalues a (K - 1 times) and a + K b."""
    data = simplex(K)
    exact = {"max": 2.0, "l1": 1 / K, "spectral": 1.0, "nuclear": 1 / (K - 1), "frobenius": (K - 1) ** -0.5}
    for norm, value in exact.items():
        assert encloses(multiclass_linear(data, norm=norm), data, value)


def test_two_classes_are_a_vector():
    """U = (u, -u): U_0 - U_1 has twice its largest entry and the same sum; its singular value is |u| sqrt(2)."""
    data = separable(40, 6, seed=1)
    two = Dataset(data.X, (data.y + 1) / 2)
    pairs = {"max": ("linf", 2.0), "l1": ("l1", 1.0), "spectral": ("l2", np.sqrt(2)), "nuclear": ("l2", np.sqrt(2))}
    for norm, (vector, factor) in pairs.items():
        one, other = linear(data, norm=vector), multiclass_linear(two, norm=norm, tol=1e-8)
        assert other.verify(two).ok
        assert factor * one.lower <= other.upper * (1 + 1e-9) and other.lower <= factor * one.upper * (1 + 1e-9)


def test_diagonal_points_of_four_classes():
    """The margin that is stated is the one of U over its norm, by the definition."""
    data = Dataset([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0]], [0, 1, 2, 3])
    for norm in SEVERAL:
        cert = multiclass_linear(data, norm=norm, tol=1e-7)
        U = np.array(cert.extra["U"])
        assert cert.verify(data).ok and cert.status == "certified"
        scores = data.X @ U.T / size(U, norm)
        least = min(scores[i, i] - np.delete(scores[i], i).max() for i in range(4))
        assert_allclose(least, cert.lower, rtol=1e-9)


# ---------------------------------------------------------------- another solver


def by_cvxpy(data, norm):
    cp = pytest.importorskip("cvxpy")
    options = {"solver": "CLARABEL", "tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11}
    if norm in ("linf",) or set(data.y) == {-1.0, 1.0}:
        u = cp.Variable(data.d)
        problem = cp.Problem(
            cp.Maximize(cp.min((data.X * data.y[:, None]) @ u)), [(cp.norm1 if norm == "l1" else cp.norm_inf)(u) <= 1]
        )
    else:
        y = data.y.astype(int)
        U, t = cp.Variable((y.max() + 1, data.d)), cp.Variable()
        sizes = {"max": lambda: cp.max(cp.abs(U)), "l1": lambda: cp.sum(cp.abs(U)),
                 "spectral": lambda: cp.sigma_max(U), "nuclear": lambda: cp.normNuc(U)}  # fmt: skip
        others = [(U[y[i]] - U[j]) @ data.X[i] >= t for i in range(data.n) for j in range(y.max() + 1) if j != y[i]]
        problem = cp.Problem(cp.Maximize(t), [sizes[norm]() <= 1, *others])
    problem.solve(**options)
    return problem.value


@pytest.mark.filterwarnings("ignore")  # cvxpy's own, where it cannot reach the accuracy that is asked for
@pytest.mark.parametrize("norm", TWO)
@pytest.mark.parametrize("n, d", [(30, 3), (80, 10), (12, 30)])
def test_another_solver_finds_the_same_of_two_classes(n, d, norm):
    data = separable(n, d, seed=2, gap=0.5)
    cert = linear(data, norm=norm)
    assert cert.status == "certified" and cert.gap < 1e-9 and cert.verify(data).ok
    assert_allclose(by_cvxpy(data, norm), cert.lower, rtol=1e-7)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("norm", SEVERAL)
@pytest.mark.parametrize("n, d, K", [(12, 5, 3), (24, 30, 4)])
def test_another_solver_finds_the_same_of_several_classes(n, d, K, norm):
    data = random_classes(n, d, K, seed=3)
    cert = multiclass_linear(data, norm=norm, tol=1e-8, bias=False)
    assert cert.status in ("certified", "not-separable") and cert.verify(data).ok
    assert_allclose(by_cvxpy(data, norm), cert.lower, rtol=1e-7, atol=1e-9)


def test_many_points_need_few_rows():
    data = separable(5000, 12, seed=5, gap=0.3)
    for norm in TWO:
        cert = linear(data, norm=norm)
        assert cert.status == "certified" and cert.verify(data).ok and cert.stats["rows"] < 1500
    data = random_classes(1200, 12, 4, seed=5)
    data = Dataset(data.X + 6 * np.eye(4, 12)[data.y.astype(int)], data.y)
    for norm in SEVERAL:
        cert = multiclass_linear(data, norm=norm)
        assert cert.status == "certified" and cert.verify(data).ok and cert.stats["pairs"] < 1500, cert


# ---------------------------------------------------------------- symmetries


@pytest.mark.parametrize("norm", SEVERAL)
def test_scale_rotation_repeated_and_added_points(norm):
    data = random_classes(18, 12, 3, seed=7)
    cert = multiclass_linear(data, norm=norm, tol=1e-8)
    assert cert.lower > 0
    for scale in (1e-150, 1e-9, 3e7, 1e140):
        other = Dataset(scale * data.X, data.y)
        again = multiclass_linear(other, norm=norm, tol=1e-8)
        assert again.verify(other).ok
        assert_allclose(again.lower / scale, cert.lower, rtol=1e-7)
    twice = Dataset(np.vstack([data.X, data.X[:5]]), np.append(data.y, data.y[:5]))
    assert_allclose(multiclass_linear(twice, norm=norm, tol=1e-8).lower, cert.lower, rtol=1e-7)
    fewer = Dataset(data.X[:-2], data.y[:-2])
    assert multiclass_linear(fewer, norm=norm, tol=1e-8).upper >= cert.lower
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((12, 12)))[0]
    turned = multiclass_linear(Dataset(data.X @ turn, data.y), norm=norm, tol=1e-8)
    same = abs(turned.lower / cert.lower - 1) < 1e-6
    assert same == (norm in ("spectral", "nuclear"))


def test_the_order_of_the_norms():
    """|A|_max <= |A|_2 <= |A|_F <= |A|_* and |A|_F <= |A|_1, so that margins go the other way."""
    data = random_classes(30, 20, 4, seed=8)
    found = {norm: multiclass_linear(data, norm=norm) for norm in (*SEVERAL, "frobenius")}
    for large, small in (("max", "spectral"), ("spectral", "frobenius"), ("frobenius", "nuclear"), ("nuclear", "l1")):
        assert found[small].lower <= found[large].upper * (1 + 1e-9)


# ---------------------------------------------------------------- hostile data


@pytest.mark.parametrize("norm", TWO)
def test_sets_that_no_line_parts(norm):
    xor = Dataset([[1.0, 1], [-1, -1], [1, -1], [-1, 1]], [1, 1, -1, -1])
    cert = linear(xor, norm=norm)
    assert cert.status == "not-separable" and cert.upper == 0 and cert.verify(xor).ok
    both = Dataset([[1.0, 2.0], [1.0, 2.0]], [1, -1])
    assert linear(both, norm=norm).status == "not-separable" and linear(both, norm=norm).verify(both).ok
    rng = np.random.default_rng(3)
    cloud = Dataset(rng.standard_normal((60, 3)), np.resize([1.0, -1.0], 60))
    cert = linear(cloud, norm=norm)
    assert cert.status == "not-separable" and cert.verify(cloud).ok


@pytest.mark.parametrize("norm", SEVERAL)
def test_classes_that_no_matrix_parts(norm):
    rng = np.random.default_rng(4)
    cloud = Dataset(rng.standard_normal((60, 3)), np.resize([0.0, 1.0, 2.0], 60))
    cert = multiclass_linear(cloud, norm=norm)
    assert cert.lower == 0 and cert.status == "not-separable" and cert.verify(cloud).ok, cert
    ray = Dataset([[1.0, 2.0], [2.0, 4.0], [0.0, 1.0]], [0, 1, 2])
    cert = multiclass_linear(ray, norm=norm)
    assert cert.status == "not-separable" and cert.verify(ray).ok


@pytest.mark.parametrize("spread", [1e3, 1e6, 1e9])
@pytest.mark.parametrize("norm", [*TWO, *SEVERAL])
def test_columns_and_points_of_very_different_sizes(norm, spread):
    rng = np.random.default_rng(6)
    X = rng.standard_normal((24, 6)) * np.geomspace(1, spread, 6)
    X[0] *= spread
    y = np.arange(24) % 2
    for points in (X, X + 2.0 * spread * np.outer(2 * y - 1, np.ones(6))):
        if norm in TWO:
            data = Dataset(points, 2.0 * y - 1)
            cert = linear(data, norm=norm, time_limit=5)
        else:
            data = Dataset(points, np.arange(24) % 3)
            cert = multiclass_linear(data, norm=norm, time_limit=5)
        assert cert.verify(data).failed is None, (cert, cert.verify(data))
        assert cert.lower <= cert.upper


@pytest.mark.parametrize("norm", SEVERAL)
def test_an_interrupt_or_no_time_leaves_bounds_that_verify(norm):
    data = random_classes(40, 15, 4, seed=9)
    for options in ({"time_limit": 1e-9}, {"progress": interrupt_at(0)}):
        cert = multiclass_linear(data, norm=norm, tol=1e-12, **options)
        assert cert.verify(data).ok


# ---------------------------------------------------------------- the checker


@pytest.mark.parametrize("norm", [*TWO, *SEVERAL])
def test_a_bound_that_is_moved_is_refused(norm):
    if norm in TWO:
        data = separable(20, 4, seed=3)
        cert = linear(data, norm=norm)
    else:
        data = random_classes(15, 8, 3, seed=3)
        cert = multiclass_linear(data, norm=norm, tol=1e-8)
    body = cert.payload()
    assert verify.check(body, data.X, data.y).ok
    for field, factor, said in (("lower", 1.001, "lower bound"), ("upper", 0.999, "upper bound")):
        moved = {field: body[field] * factor}
        moved |= {"upper": moved["lower"]} if field == "lower" else {"lower": moved["upper"] * 0.99}
        verdict = verify.check(seal(body | moved), data.X, data.y)
        assert not verdict.ok and verdict.failed.startswith(said), verdict
    wrong = seal(body | {"extra": body["extra"] | {"norm": "l1" if norm != "l1" else "max"}})
    assert "norm" in verify.check(wrong, data.X, data.y).failed
    bare = seal(body | {"extra": {k: v for k, v in body["extra"].items() if k != "norm"}})
    assert "convention" in verify.check(bare, data.X, data.y).failed


def test_singular_values_are_bounded_from_above_and_closely():
    rng = np.random.default_rng(11)
    for shape in ((1, 1), (3, 5), (5, 3), (10, 80), (4, 4)):
        for rank in (1, min(shape)):
            A = rng.standard_normal((shape[0], rank)) @ rng.standard_normal((rank, shape[1]))
            for scale in (20, 50, 1200):
                whole = np.array(
                    [[int(v) << max(0, scale - 50) for v in row] for row in np.rint(np.ldexp(A, min(scale, 50)))],
                    dtype=object,
                )
                top, total = singular(whole)
                values = np.linalg.svd(np.rint(np.ldexp(A, min(scale, 50))), compute_uv=False)
                factor = 1 << max(0, scale - 50)
                assert 1 - 1e-14 <= float(top / factor) / values[0] < 1 + 1e-12
                assert 1 - 1e-14 <= float(total / factor) / values.sum() < 1 + 1e-12
    assert singular(np.zeros((2, 3), dtype=object)) == (0, 0)
    # exact cases from above: the identity, and a matrix of rank one with a whole length
    assert singular(np.eye(3, dtype=int))[0] >= 1 and singular(np.eye(3, dtype=int))[1] >= 3
    assert singular(np.outer([3, 4], [5, 12]))[0] >= 65


def test_a_bad_guess_of_the_decomposition_is_no_bound_below(monkeypatch):
    real = np.linalg.svd

    def spoiled(A, **keys):
        L, s, R = real(A, **keys)
        return L, 0.5 * s, R

    monkeypatch.setattr(np.linalg, "svd", spoiled)
    top, total = singular(np.diag([3, 2, 1]))
    assert top >= 3 and total >= 6


# ---------------------------------------------------------------- doors


def test_bad_norms_are_refused_with_a_sentence():
    data, classes = separable(10, 3, seed=0), random_classes(9, 3, 3, seed=0)
    for call, word in (
        (lambda: linear(data, norm="spectral"), "spectral is a norm of the matrix U of several classes"),
        (lambda: multiclass_linear(classes, norm="linf"), "linf is a norm of the vector u of two classes"),
        (lambda: linear(data, norm="L1"), "one of l2, l1, linf"),
        (lambda: linear(data, norm=2), "one of l2, l1, linf"),
        (lambda: MaxMarginClassifier("f1", norm="l1", bias=True).fit(data.X, data.y), "norm"),
    ):
        with pytest.raises(InputError, match=word):
            call()


@pytest.mark.parametrize("norm", ["l2", *TWO])
def test_the_classifier_has_the_norm(norm):
    data = separable(30, 5, seed=4)
    fitted = MaxMarginClassifier("linear", norm=norm, bias=False).fit(data.X, data.y)
    cert = linear(data, norm=norm)
    assert_allclose(fitted.margin_, cert.lower, rtol=1e-6)
    assert_allclose((data.y * fitted.decision_function(data.X)).min(), cert.lower, rtol=1e-6)
    assert (fitted.predict(data.X) == data.y).all()


def test_the_function_of_a_certificate_has_norm_one():
    data = random_classes(18, 12, 3, seed=7)
    for norm in (*SEVERAL, "frobenius"):
        cert = multiclass_linear(data, norm=norm, bias=True)
        scores = cert.function(data.X)
        own = scores[np.arange(18), data.y.astype(int)]
        others = np.where(np.eye(3)[data.y.astype(int)] > 0, -np.inf, scores).max(axis=1)
        assert_allclose((own - others).min(), cert.lower, rtol=1e-9)


def test_the_two_paths_agree():
    """The interior point method on its own: |U| <= 1 on the path, and its answers do not depend on how many rows there are."""
    rng = np.random.default_rng(12)
    Z = rng.standard_normal((9, 3, 4)) + np.array([2.0, 0, -2.0])[:, None]
    Z -= Z.mean(axis=1, keepdims=True)  # rows of pairs sum to 0
    for norm in ("spectral", "nuclear"):
        found = []
        for rows in (Z, np.repeat(Z, 20, axis=0)):
            flat = rows.reshape(len(rows), -1)
            gaps = []

            def done(U, q, flat=flat, gaps=gaps, norm=norm):
                low = (flat @ U.ravel()).min() / size(U, norm)
                high = size((q @ flat).reshape(3, 4), {"spectral": "nuclear", "nuclear": "spectral"}[norm])
                gaps.append((1 - low / high, high))
                return gaps[-1][0] < 1e-7

            barrier.solve(flat, 3, norm, done)
            found.append(min(gaps))
        assert found[0][0] < 1e-6 and found[1][0] < 1e-4
        assert_allclose(found[0][1], found[1][1], rtol=1e-4)


def test_the_command_line_has_the_norm():
    from argparse import Namespace

    data = separable(10, 3, seed=0)
    usual = {"bias": False, "tol": None, "time_limit": None, "multiclass": False}
    cert = solve("linear", data, Namespace(**usual, norm="linf"))
    assert cert.convention == "M11-linf" and cert.extra["norm"] == "linf"
    with pytest.raises(InputError, match="--norm does not apply to f2"):
        solve("f2", data, Namespace(**usual, norm="linf", activation="relu"))
    assert norms.DUAL["spectral"] == "nuclear"


def timestamps(n):
    """Seconds since 1970 beside a flag, which is the label: the margin is about 1/2, 3e-10 of the points."""
    rng = np.random.default_rng(n)
    flag = np.arange(n) % 2
    return np.column_stack([1.7e9 + np.rint(100 * rng.random(n)), flag]), flag


@pytest.mark.parametrize("n", [4, 40, 700])
def test_what_the_euclidean_norm_separates_no_other_calls_inseparable(n):
    """A program of float64 found weights that cancel up to rounding, and said so; u of the quadratic program separates."""
    X, flag = timestamps(n)
    two, several = Dataset(X, 2.0 * flag - 1), Dataset(X, flag.astype(float))
    for norm in TWO:
        cert = linear(two, norm=norm)
        assert cert.status != "not-separable" and cert.lower > 0.49 and cert.upper < 0.51 and cert.verify(two).ok, cert
    for norm in SEVERAL:
        cert = multiclass_linear(several, norm=norm, time_limit=20.0)
        assert cert.status != "not-separable" and cert.lower > 0.9 * cert.upper and cert.verify(several).ok, cert


def test_a_bound_that_is_small_is_no_proof_that_nothing_separates():
    cloud = Dataset(np.random.default_rng(0).standard_normal((40, 3)), np.tile([1.0, -1.0], 20))
    cert = linear(cloud)
    assert cert.status == "not-separable" and cert.upper > 0 and cert.status_in_words.endswith(", up to rounding")
    exact = linear(Dataset([[1.0], [1.0]], [1, -1]))
    assert exact.upper == 0 and exact.status_in_words == "nothing of this kind separates the data"
