import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from checks import changed, repeated
from widemargin import Dataset, InputError, verify
from widemargin.data import check_nc, neural_collapse, parity, simplex_directions
from widemargin.margins import collapse, f1
from widemargin.types import Certificate


def assert_holds(certificate: Certificate, data: Dataset) -> None:
    """The cones, recomputed from the definition, hold all points; gamma_nc / r is the stated bound; it verifies."""
    extra = certificate.extra
    beta, signs, gamma, eps = (np.array(extra[key]) for key in ("beta", "signs", "gamma_nc", "eps"))
    assert check_nc(data.X, data.y, beta, signs, float(gamma), float(eps), tol=1e-12)
    inner = data.X @ beta.T
    assert (inner.max(axis=1) >= gamma - 1e-12).all()
    across = np.linalg.norm(data.X[:, None] - inner[:, :, None] * beta, axis=2)
    if extra["strict"]:
        assert (across[inner > 0] <= gamma * eps / 2 + 1e-12).all()
    assert_allclose(extra["gap"], gamma - eps)
    assert extra["r"] == len(beta)
    rows = np.arange(data.n)
    assert (inner[rows, extra["cluster"]] > 0).all() and (signs[extra["cluster"]] == data.y).all()
    assert_allclose(certificate.lower, gamma / len(beta), rtol=1e-12)
    # the network with one ReLU per cone has this margin
    margin = (data.y * (inner.clip(0) @ signs)).min() / len(beta)
    assert margin >= certificate.lower * (1 - 1e-12)
    verdict = certificate.verify(data)
    assert verdict.ok and str(verdict).startswith("verified exactly"), str(verdict)


GENERATED = [
    {"d": 2, "r": 3, "n": 30, "gamma_nc": 0.8, "eps": 0.1},
    {"d": 5, "r": 6, "n": 36, "gamma_nc": 0.8, "eps": 0.1},
    {"d": 3, "r": 2, "n": 40, "gamma_nc": 0.5, "eps": 0.2},
    {"d": 4, "r": 5, "n": 40, "gamma_nc": 0.6, "eps": 0.05},
    {"d": 1, "r": 2, "n": 10, "gamma_nc": 0.8, "eps": 0.1},
]


@repeated("how", GENERATED, 0, 2, 4, ids=str)
def test_generated_cones_are_found_again(how: dict):
    data = neural_collapse(seed=1, **how)
    certificate = collapse(data)
    assert certificate.status in ("certified", "found"), certificate.reason
    assert_holds(certificate, data)
    assert certificate.extra["r"] == how["r"]
    assert certificate.extra["gap"] >= how["gamma_nc"] - how["eps"]
    assert certificate.extra["gamma_nc"] >= how["gamma_nc"] * (1 - 1e-6)
    truth = np.arange(data.n) % how["r"]
    cluster = np.array(certificate.extra["cluster"])
    assert len(set(zip(truth.tolist(), cluster.tolist()))) == how["r"]  # the same clusters
    assert certificate.gap < 0.05  # no other cones could be much better


@repeated("how", GENERATED, 1, 2, 4, ids=str)
def test_given_cones_are_checked(how: dict):
    data = neural_collapse(seed=2, **how)
    beta, signs = simplex_directions(how["r"], how["d"]), 1 - 2 * (np.arange(how["r"]) % 2)
    certificate = collapse(data, beta=beta, signs=signs, gamma_nc=how["gamma_nc"], eps=how["eps"])
    assert_holds(certificate, data)
    assert_allclose([certificate.extra["gamma_nc"], certificate.extra["eps"]], [how["gamma_nc"], how["eps"]], rtol=1e-9)
    best = collapse(data, beta=3 * beta, signs=signs)  # lengths of beta do not matter
    assert_holds(best, data)
    assert best.extra["gap"] >= how["gamma_nc"] - how["eps"]
    assert_allclose(best.extra["gamma_nc"], (data.X @ beta.T)[data.X @ beta.T > 0].min(), rtol=1e-12)
    searched = collapse(data)
    assert searched.extra["gap"] / searched.extra["r"] >= best.extra["gap"] / best.extra["r"] * (1 - 1e-9)


@pytest.mark.parametrize("labels", [(1, -1, 1), (1, 1, 1), (-1, -1, 1)])
def test_the_simplex_of_three_points(labels: tuple[int, ...]):
    angle = np.radians([90, 210, 330])
    data = Dataset(np.column_stack([np.cos(angle), np.sin(angle)]), labels)
    certificate = collapse(data)
    assert certificate.status == "certified"
    assert_holds(certificate, data)
    assert_allclose([certificate.lower, certificate.upper], 1 / 3, rtol=1e-12)  # gamma_gl = gamma_nc / r here
    best = f1(data)
    assert_allclose([best.lower, best.upper], 1 / 3, rtol=1e-6)


def test_the_best_network_is_at_least_as_good():
    for seed, how in enumerate((GENERATED[0], GENERATED[2], GENERATED[4])):
        data = neural_collapse(seed=seed, **how | {"n": 12})
        certificate = collapse(data)
        assert_holds(certificate, data)
        best = f1(data, tol=1e-2)
        assert best.upper >= certificate.lower and best.lower >= 0.99 * certificate.lower


def test_parity_has_no_cones():
    # (1, 1) needs a half-space that leaves out both (1, -1) and (-1, 1), which are opposite
    for d in (2, 3, 4):
        data = parity(d=d, marginal="full")
        certificate = collapse(data)
        assert certificate.status == "not-found" and certificate.lower == certificate.upper == 0
        assert "there are no such cones" in certificate.reason
        assert certificate.verify(data)
        assert certificate.extra == {"strict": False}


def test_where_there_are_none():
    rng = np.random.default_rng(0)
    noise = Dataset(rng.standard_normal((40, 3)), rng.choice([-1.0, 1.0], 40))
    twins = Dataset([[1.0, 2.0], [1.0, 2.0]], [1, -1])
    origin = Dataset([[1.0, 0.0], [0.0, 0.0]], [1, -1])
    inside = Dataset([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [1, 1, -1])  # x_2 = x_0 + x_1
    for data in (noise, twins, origin, inside):
        certificate = collapse(data)
        assert certificate.status == "not-found" and certificate.lower == 0 and certificate.upper < 1e-12
        assert certificate.verify(data)
    right = Dataset(np.eye(2), [1, -1])  # cones exist only with beta_k . x_j < 0: tilted away
    assert collapse(right).extra["r"] == 2 and collapse(right).verify(right)


def test_two_orthogonal_points_by_hand():
    """beta = (cos t, -sin t): gamma_nc = cos t, width = sin t <= gamma_nc sqrt(eps/2), eps <= sin t. So tan(t)^2 <= eps/2 and the
    best gap is that of the smallest eps = 2 tan(t)^2 <= sin t: any small t will do, and gamma_nc - eps tends to 1."""
    data = Dataset(np.eye(2), [1, -1])
    certificate = collapse(data)
    assert_holds(certificate, data)
    assert certificate.extra["gap"] > 0.98
    t = 0.1
    beta = np.array([[math.cos(t), -math.sin(t)], [-math.sin(t), math.cos(t)]])
    given = collapse(data, beta=beta, signs=[1, -1])
    assert_holds(given, data)
    assert_allclose([given.extra["gamma_nc"], given.extra["eps"]], [math.cos(t), 2 * math.tan(t) ** 2], rtol=1e-9)
    wide = collapse(data, beta=_at(0.6), signs=[1, -1])  # 2 tan(0.6)^2 = 0.936 > sin(0.6)
    assert wide.status == "not-found" and "eps" in wide.reason and wide.lower == 0
    assert wide.verify(data)
    strict = collapse(data, beta=beta, signs=[1, -1], strict=True)  # eps >= 2 tan t > sin t: never, for any t
    assert strict.status == "not-found"
    assert collapse(data, strict=True).status == "not-found"


def _at(t: float) -> list[list[float]]:
    return [[math.cos(t), -math.sin(t)], [-math.sin(t), math.cos(t)]]


def test_points_that_look_like_distances():
    """As many points of a label as columns, in a symmetric matrix without a diagonal: e_2 and e_1."""
    data = Dataset(np.array([[0.0, 1.0], [1.0, 0.0], [-1.0, -1.0]]), np.array([1.0, 1.0, -1.0]), "distances")
    assert_holds(collapse(data), data)


def test_why_the_strict_version_exists():
    """E-LR-14: with threshold 1 - eps a captured neuron may see polar points; with 1 - eps^2/2 and narrow cones it does not."""
    eps, beta = 0.1, np.array([1.0, 0.0])
    x = np.array([-eps, math.sqrt(1 - eps**2)])
    v = np.array([1 - eps, math.sqrt(1 - (1 - eps) ** 2)])
    data = Dataset([[1.0, 0.0], x], [1, -1])
    signs = [1, -1]
    both = collapse(data, beta=[beta, x], signs=signs, eps=eps)
    assert_holds(both, data)  # the assumption as printed holds,
    assert v @ beta >= 1 - eps and v @ x > 0.3  # and a captured neuron sees the other point
    rng = np.random.default_rng(0)
    near = beta + 1.2 * eps * rng.standard_normal((20_000, 2))
    near /= np.linalg.norm(near, axis=1, keepdims=True)
    captured = near[near @ beta >= 1 - eps**2 / 2]
    assert len(captured) > 1000 and (captured @ x).max() <= 1e-12
    # then beta . x - (1 - eps^2/2) v . x >= 0 in the cone needs the narrow width gamma_nc eps / 2
    gamma, threshold = 0.9, 1 - eps**2 / 2
    for width, fine in ((gamma * eps / 2, True), (gamma * math.sqrt(eps / 2), False)):
        own = np.array([gamma, width])
        assert bool((own @ beta - threshold * captured @ own >= 0).all()) == fine


def test_strict_cones_are_narrower():
    gamma, eps = 0.9, 0.2
    middle = 0.5 * (gamma * eps / 2 + gamma * math.sqrt(eps / 2))
    for width, strict_too in ((0.9 * gamma * eps / 2, True), (middle, False)):
        data = Dataset([[gamma, width], [-gamma, width]], [1, -1])
        cones = {"beta": [[1.0, 0.0], [-1.0, 0.0]], "signs": [1, -1], "gamma_nc": gamma, "eps": eps}
        assert_holds(collapse(data, **cones), data)
        strict = collapse(data, **cones, strict=True)
        assert (strict.status != "not-found") == strict_too
        if strict_too:
            assert_holds(strict, data)
        else:
            assert "too small" in strict.reason
    data = neural_collapse(d=3, r=4, n=24, gamma_nc=0.8, eps=0.2, noise=0.3)
    strict = collapse(data, strict=True)
    assert_holds(strict, data)
    assert collapse(data).extra["gap"] >= strict.extra["gap"] * (1 - 1e-9)


def test_every_point_needs_a_cone():
    data = Dataset([[1.0, 0.0], [-1.0, 0.0]], [1, 1])  # the second lies in the polar of the only cone
    assert not check_nc(data.X, data.y, [[1.0, 0.0]], [1], 1.0, 0.5)
    certificate = collapse(data, beta=[[1.0, 0.0]], signs=[1])
    assert certificate.status == "not-found" and "point 1 is in no cone" in certificate.reason
    other = collapse(Dataset(data.X, [1, -1]), beta=[[1.0, 0.0], [1.0, 0.1]], signs=[1, -1])
    assert other.status == "not-found" and "label" in other.reason


def test_one_cone_and_rotations():
    rng = np.random.default_rng(3)
    one = Dataset(np.array([0.0, 1.0, 0.0]) + 0.02 * rng.standard_normal((12, 3)), np.ones(12))
    certificate = collapse(one)
    assert certificate.extra["r"] == 1 and certificate.gap < 0.02
    assert_holds(certificate, one)
    data = neural_collapse(d=4, r=3, n=21)
    rotation = np.linalg.qr(rng.standard_normal((4, 4)))[0]
    turned = Dataset(data.X @ rotation, data.y)
    a, b = collapse(data), collapse(turned)
    assert_holds(b, turned)
    assert_allclose([a.lower, a.upper, a.extra["gap"]], [b.lower, b.upper, b.extra["gap"]], rtol=1e-3)


def test_the_upper_bound_holds_for_every_structure_tried():
    rng = np.random.default_rng(4)
    for seed in range(3):
        data = neural_collapse(d=3, r=3, n=12, seed=seed)
        upper = collapse(data).upper
        assert upper <= np.linalg.norm(data.X, axis=1).min() / 2 * (1 + 1e-12)  # two labels need two cones
        for _ in range(15):
            beta = simplex_directions(3, 3) + 0.1 * rng.standard_normal((3, 3))
            tried = collapse(data, beta=beta, signs=[1, -1, 1])
            assert tried.lower <= upper


def test_changed_certificates_are_refused():
    data = neural_collapse(d=3, r=3, n=15, noise=0.5)
    certificate = collapse(data)
    extra, proof = dict(certificate.extra), dict(certificate.proof)
    beta = np.array(extra["beta"])
    clique = proof["clique"]
    same = np.flatnonzero(data.y == data.y[0])
    friends = [int(i) for i in same if data.X[i] @ data.X[same[0]] > 0][:2]
    wrong = [
        {"lower": certificate.lower * 1.001, "upper": 1.0},
        {"lower": 0.0, "upper": certificate.upper * 0.999},
        {"extra": extra | {"gamma_nc": extra["gamma_nc"] * 1.001}},
        {"extra": extra | {"eps": extra["eps"] * 0.999}},
        {"extra": extra | {"eps": extra["gamma_nc"]}},
        {"extra": extra | {"eps": -0.1}},
        {"extra": extra | {"strict": True}},
        {"extra": extra | {"strict": 0}},
        {"extra": extra | {"signs": [-s for s in extra["signs"]]}},
        {"extra": extra | {"beta": beta[:2].tolist(), "signs": extra["signs"][:2]}},
        {"extra": extra | {"beta": (beta * [[1], [0], [1]]).tolist()}},
        {"extra": extra | {"beta": (beta + 0.3).tolist()}},
        {"proof": proof | {"weights": [-w for w in proof["weights"]]}},
        {"proof": proof | {"weights": [1.0] * data.n}},
        {"proof": proof | {"clique": friends}},
        {"proof": proof | {"clique": clique + clique[:1]}},
        {"proof": proof | {"clique": clique[:1]}},
        {"proof": proof | {"type": "dual"}},
    ]
    for fields in wrong:
        assert not verify.check(changed(certificate, **fields), data.X, data.y).ok, fields
    # a certificate with no cones cannot claim upper = 0 without a relation
    assert not verify.check(changed(certificate, lower=0.0, upper=0.0), data.X, data.y).ok


def test_points_longer_than_two_need_different_labels_for_different_cones():
    """eps < gamma_nc may exceed 2 there, and then a cone is wider than a half-space's pairs of acute angles."""
    data = neural_collapse(d=3, r=4, n=16, gamma_nc=5.0, eps=0.5)
    certificate = collapse(data)
    assert len(certificate.proof["clique"]) == 2
    assert certificate.verify(data)
    whole = changed(certificate, proof={**certificate.proof, "clique": [0, 1, 2, 3]})
    assert not verify.check(whole, data.X, data.y).ok


def test_a_time_limit_and_bad_input():
    data = neural_collapse(d=3, r=3, n=12)
    short = collapse(data, time_limit=1e-9)
    assert short.verify(data) and short.status in ("not-found", "time-limit")
    beta, signs = np.eye(3), [1, -1, 1]
    for message, call in (
        ("labels -1 and", lambda: collapse(Dataset(data.X, np.arange(12.0)))),
        ("together", lambda: collapse(data, beta=beta)),
        ("rows of d = 3", lambda: collapse(data, beta=np.eye(2), signs=[1, 1])),
        ("rows of d = 3", lambda: collapse(data, beta=0 * beta, signs=signs)),
        ("-1 or", lambda: collapse(data, beta=beta, signs=[1, 0, 1])),
        ("eps must be a positive", lambda: collapse(data, eps=-1)),
        ("gamma_nc must be a positive", lambda: collapse(data, gamma_nc=math.nan)),
        ("smaller than gamma_nc", lambda: collapse(data, eps=0.5, gamma_nc=0.4)),
        ("most_cones", lambda: collapse(data, most_cones=0)),
        ("tol", lambda: collapse(data, tol=2.0)),
        ("time_limit", lambda: collapse(data, time_limit=0)),
        ("rescale", lambda: collapse(Dataset(1e200 * data.X, data.y))),
    ):
        with pytest.raises(InputError, match=message):
            call()
