"""Each generator against its definition."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import linprog

from widemargin import InputError, data

SQRT_HALF = math.sqrt(0.5)


def plane_margin(dataset, steps=720):
    """Best ReLU margin over unit neurons on a grid of angles, for d = 2: a lower bound, close to the truth."""
    angle = 2 * np.pi * np.arange(steps) / steps
    H = (dataset.X @ np.array([np.cos(angle), np.sin(angle)])).clip(0)  # (n, steps)
    A = -dataset.y[:, None] * np.hstack([H, -H])
    lp = linprog(
        np.r_[np.zeros(2 * steps), -1],
        A_ub=np.hstack([A, np.ones((dataset.n, 1))]),
        b_ub=np.zeros(dataset.n),
        A_eq=np.r_[np.ones(2 * steps), 0][None],
        b_eq=[1],
        bounds=[(0, None)] * (2 * steps) + [(None, None)],
    )
    return -lp.fun


def test_uniform_parity_is_the_published_draw():
    drawn = data.parity(20, 64, k=2, seed=0)
    X = np.random.default_rng(0).choice([-1, 1], size=(64, 20)) / np.sqrt(20)
    assert_array_equal(drawn.X, X)
    assert_array_equal(drawn.y, np.sign(X[:, 0] * X[:, 1]))
    assert drawn.name == "parity:d=20,n=64,k=2,seed=0"


@pytest.mark.parametrize(
    "marginal", ["uniform", "biased", "subset", "full", lambda rng, n, d: rng.choice([-1, 1], (n, d))]
)
@pytest.mark.parametrize("S", [None, (1, 3, 4)])
def test_parity_lies_on_corners_and_labels_by_the_product(marginal, S):
    drawn = data.parity(6, 40, k=4, seed=3, marginal=marginal, S=S)
    assert_allclose(np.abs(drawn.X), 1 / np.sqrt(6), rtol=1e-15)
    chosen = drawn.X[:, S if S else range(4)]
    assert_allclose(drawn.y, 6 ** (chosen.shape[1] / 2) * chosen.prod(axis=1), rtol=1e-12)


def test_parity_marginals():
    full = data.parity(5, marginal="full")
    assert len(np.unique(full.X, axis=0)) == full.n == 32
    for d in (7, 70):
        subset = data.parity(d, 100, marginal="subset", seed=2)
        assert len(np.unique(subset.X, axis=0)) == subset.n == 100
    biased = data.parity(50, 400, marginal="biased", p=0.9)
    assert abs((biased.X > 0).mean() - 0.9) < 0.01


def test_full_parity_in_the_plane_has_margin_one_quarter():
    assert_allclose(plane_margin(data.parity(2, marginal="full")), 1 / math.sqrt(16), rtol=1e-6)


@pytest.mark.parametrize(
    "wrong, word",
    [
        ({"d": 0, "n": 4}, "d must be"),
        ({"d": 4, "n": 0}, "n must be"),
        ({"d": 4, "n": 2.5}, "n must be"),
        ({"d": 4, "n": True}, "n must be"),
        ({"d": 4, "n": 10**7 + 1}, "n must be"),
        ({"d": 10**6, "n": 10**6}, "too large"),
        ({"d": 4}, "n is missing"),
        ({"d": 4, "n": 10**5000}, "n must be"),
        ({"d": 4, "n": 8, "k": 5}, "k must be"),
        ({"d": 4, "n": 8, "seed": -1}, "seed must be"),
        ({"d": 4, "n": 8, "S": (0, 0)}, "different coordinates"),
        ({"d": 4, "n": 8, "S": ()}, "different coordinates"),
        ({"d": 4, "n": 8, "S": (4,)}, "S must be"),
        ({"d": 4, "n": 17, "marginal": "subset"}, "n <= 16"),
        ({"d": 21, "marginal": "full"}, "d must be"),
        ({"d": 4, "n": 8, "marginal": "odd"}, "marginal must be one of uniform"),
        ({"d": 4, "n": 8, "marginal": lambda rng, n, d: np.zeros((n, d))}, "marginal must return"),
        ({"d": 4, "n": 8, "p": math.nan}, "p must be"),
    ],
)
def test_parity_refuses(wrong, word):
    with pytest.raises(InputError, match=word):
        data.parity(**wrong)


@pytest.mark.parametrize("alpha, margin", [(SQRT_HALF, 0.5), (0.3, 0.4927087), (0.1, 0.4850349), (0.01, 0.4807303)])
def test_bad_kkt_plane(alpha, margin):
    drawn = data.bad_kkt_plane(alpha)
    assert_array_equal(drawn.y, 1)
    assert_allclose(np.linalg.norm(drawn.X, axis=1), 1)
    assert_allclose(drawn.X[0] @ drawn.X[1], -SQRT_HALF)
    assert_allclose(drawn.X[2], [-math.sqrt(1 - alpha**2), alpha], atol=1e-15)
    angle = np.linspace(0, 2 * np.pi, 200_001)
    linear = (drawn.X @ np.array([np.cos(angle), np.sin(angle)])).min(axis=0).max()
    assert_allclose(linear, math.sin(math.asin(alpha) / 2), atol=2e-5)
    assert_allclose(plane_margin(drawn), margin, atol=2e-5)


@pytest.mark.parametrize("d, half_angle, alpha", [(2, 0.1, 0.1), (3, 0.0, 0.5), (8, 0.19, SQRT_HALF)])
def test_bad_kkt_cones(d, half_angle, alpha):
    drawn = data.bad_kkt_cones(d, 12, 7, half_angle, alpha, seed=1)
    S1, S2, z = drawn.X[:12], drawn.X[12:19], drawn.X[19]
    v1, v2 = S1[0], S2[0]
    assert drawn.n == 20
    assert_array_equal(drawn.y, 1)
    assert_allclose(np.linalg.norm(drawn.X, axis=1), 1)
    assert (S1 @ S2.T).max() <= -SQRT_HALF + 1e-12
    # v1 and v2 are the support vectors of u = v1 + v2, which is therefore the max-margin direction of S1 and S2.
    u = (v1 + v2) / np.linalg.norm(v1 + v2)
    support = v1 @ u
    assert support > 0
    assert_allclose(v2 @ u, support)
    assert (np.vstack([S1, S2]) @ u).min() >= support - 1e-12
    v0 = u - (u @ v1) * v1
    assert_allclose(z, alpha * v0 / np.linalg.norm(v0) - math.sqrt(1 - alpha**2) * v1, atol=1e-12)
    two_relus = ((drawn.X @ -v1).clip(0) + (drawn.X @ -v2).clip(0)) / 2
    assert two_relus.min() >= 1 / (2 * math.sqrt(2)) - 1e-12
    # Points stay in their cones; with an opening they differ.
    assert (S1 @ np.eye(d)[0]).min() >= math.cos(half_angle) - 1e-12
    assert len(np.unique(S1.round(9), axis=0)) == (1 if half_angle == 0 else 12)


def test_planar_cones_without_opening_are_the_plane_family():
    assert_allclose(data.bad_kkt_cones(2, 1, 1, 0.0, 0.2).X, data.bad_kkt_plane(0.2).X, atol=1e-12)


@pytest.mark.parametrize(
    "key, value", [("d", 1), ("half_angle", 0.2), ("alpha", 0.0), ("alpha", 0.8), ("alpha", math.nan), ("n1", 0)]
)
def test_bad_kkt_refuses(key, value):
    with pytest.raises(InputError, match="n must be" if key == "n1" else f"{key} must be"):
        data.bad_kkt_cones(**{key: value})


@pytest.mark.parametrize("r, d", [(1, 1), (2, 1), (3, 2), (4, 3), (4, 9), (11, 10)])
def test_simplex_directions(r, d):
    beta = data.simplex_directions(r, d)
    gram = np.full((r, r), -1 / max(r - 1, 1))
    np.fill_diagonal(gram, 1)
    assert beta.shape == (r, d)
    assert_allclose(beta @ beta.T, gram, atol=1e-12)


@pytest.mark.parametrize("labels", [None, "++-", (-1, -1, -1)])
def test_neural_collapse_satisfies_its_assumption(labels):
    drawn = data.neural_collapse(4, 3, 50, gamma_nc=0.7, eps=0.2, labels=labels, seed=5)
    signs = {None: (1, -1, 1), "++-": (1, 1, -1)}.get(labels, labels)
    beta = data.simplex_directions(3, 4)
    assert data.check_nc(drawn.X, drawn.y, beta, signs, 0.7, 0.2)
    assert_array_equal(drawn.y[:3], signs)
    # Each clause of the assumption is looked at.
    assert not data.check_nc(drawn.X, -drawn.y, beta, signs, 0.7, 0.2)
    assert not data.check_nc(drawn.X, drawn.y, beta, signs, 0.99, 0.2)
    assert not data.check_nc(drawn.X, drawn.y, beta, signs, 0.7, 1e-6)
    assert not data.check_nc(drawn.X, drawn.y, beta, signs, 0.7, 0.8)
    assert not data.check_nc(drawn.X, drawn.y, 1.1 * beta, signs, 0.7, 0.2)
    assert not data.check_nc(
        [[1.0, 0.0], [-1.0, 0.0]], [1, 1], [[1.0, 0.0]], [1], 0.7, 0.2
    )  # -e1 has no cone, margin 0
    shifted = drawn.X + 0.3 * beta[0]
    assert not data.check_nc(shifted, drawn.y, beta, signs, 0.7, 0.2)


@pytest.mark.parametrize("labels", ["+++", "+-+", "--+"])
def test_collapsed_simplex_has_margin_one_third(labels):
    drawn = data.neural_collapse(2, 3, 3, gamma_nc=1.0, eps=0.5, labels=labels, noise=0)
    assert_allclose(drawn.X, data.simplex_directions(3, 2), atol=1e-15)
    assert_allclose(plane_margin(drawn), 1 / 3, rtol=1e-6)


def test_neural_collapse_on_the_line():
    drawn = data.neural_collapse(1, 2, 6, gamma_nc=0.5, eps=0.1)
    assert data.check_nc(drawn.X, drawn.y, data.simplex_directions(2, 1), (1, -1), 0.5, 0.1)


@pytest.mark.parametrize(
    "key, value, word",
    [
        ("r", 4, "r must"),
        ("eps", 0.5, "eps must"),
        ("eps", 0, "eps must"),
        ("labels", "+-", "r = 3 signs"),
        ("labels", (1, 0, 1), "r = 3 signs"),
    ],
)
def test_neural_collapse_refuses(key, value, word):
    with pytest.raises(InputError, match=word):
        data.neural_collapse(**{key: value})


def test_xor_with_noise():
    drawn = data.xor_with_noise(12, 3000, seed=4)
    assert_array_equal(np.abs(drawn.X[:, :2]), 1)
    assert_array_equal(drawn.y, drawn.X[:, 0] * drawn.X[:, 1])
    corner, count = np.unique(drawn.X[:, :2], axis=0, return_counts=True)
    assert len(corner) == 4
    assert (abs(count / 3000 - 0.25) < 0.04).all()
    assert abs(drawn.X[:, 2:].mean()) < 0.02
    assert abs(drawn.X[:, 2:].std() - 1) < 0.02


def test_mt_rejection():
    # n = 4: about half the points have a squared norm above d log n.
    limit = 10 * math.log(4)
    kept = [data.xor_with_noise(10, 4, seed=s) for s in range(50)]
    free = [data.xor_with_noise(10, 4, reject=False, seed=s) for s in range(50)]
    assert max((each.X**2).sum(axis=1).max() for each in kept) <= limit
    assert max((each.X**2).sum(axis=1).max() for each in free) > limit
    with pytest.raises(InputError, match="reject=false"):
        data.xor_with_noise(5, 1)
    assert data.xor_with_noise(2, 3).n == 3
    assert data.xor_with_noise(5, 1, reject=False).n == 1


def test_relu_teacher():
    W, a = data.teacher_network(20, 6, seed=2)
    assert_allclose(np.linalg.norm(W, axis=1), 1)
    drawn = data.relu_teacher(n=500, margin=0.4, seed=2)
    f = (drawn.X @ W.T).clip(0) @ a
    assert np.abs(f).min() >= 0.4
    assert_array_equal(drawn.y, np.sign(f))
    assert 0.2 < (drawn.y > 0).mean() < 0.8
    test = data.relu_teacher(n=500, margin=0.4, seed=2, sample=1)
    assert_array_equal(test.y, np.sign((test.X @ W.T).clip(0) @ a))
    assert not np.isin(test.X[:, 0], drawn.X[:, 0]).any()
    values = data.relu_teacher(n=300, seed=2, regression=True)
    f = (values.X @ W.T).clip(0) @ a
    assert_allclose(values.y, f, atol=1e-12)
    assert np.abs(f).min() < 0.1
    with pytest.raises(InputError, match="smaller margin"):
        data.relu_teacher(margin=1000)


def test_three_intervals():
    drawn = data.three_intervals(300, seed=1)
    x = drawn.X[:, 0]
    assert np.abs(x).max() <= 1
    assert_array_equal(drawn.y, np.where(np.abs(x) > 1 / 3, 1, -1))
    assert np.abs(np.abs(x) - 1 / 3).min() >= 0.05
    assert {(-1, 1), (1, -1), (1, 1)} == set(zip(drawn.y, np.sign(x))) - {(-1, -1)}


def test_one_relu():
    drawn = data.one_relu(4, 400, seed=0)
    active = drawn.y > 0
    u = np.linalg.lstsq(drawn.X[active], drawn.y[active])[0]
    assert_allclose(np.linalg.norm(u), 1)
    assert_allclose(drawn.y, (drawn.X @ u).clip(0), atol=1e-12)


@pytest.mark.parametrize("d, margin", [(1, 0.5), (2, 0.2236068), (4, 0.0542326)])
def test_dyadic(d, margin):
    drawn = data.dyadic(d)
    for j in range(1, d + 1):
        for sign in (1, -1):
            row = sign * 2.0**-j * np.eye(d)[j - 1]
            assert [tuple(row), sign] in [[tuple(x), y] for x, y in zip(drawn.X, drawn.y)]
    assert drawn.n == 2 * d
    u = 2.0 ** np.arange(1, d + 1)
    assert_allclose(drawn.y * (drawn.X @ u) / np.linalg.norm(u), margin, rtol=1e-6)
    assert_allclose(margin, math.sqrt(3 / (4 ** (d + 1) - 4)), rtol=1e-6)


@pytest.mark.parametrize("reading, first", [("text", 0), ("code", 1)])
def test_disks(reading, first):
    k, n, d = 3, 4000, 5
    drawn = data.disks(k, d, n, seed=6, reading=reading)
    assert drawn.X.shape == (n, d)
    if first:
        assert_array_equal(drawn.X[:, 0], 1)
    plane, rest = drawn.X[:, first : first + 2], drawn.X[:, first + 2 :]
    centres = data.disk_centres(k)
    assert_allclose(centres.reshape(3, 3, 2)[:, 0, 0], [-3 / 8, 0, 3 / 8])
    distance = np.linalg.norm(plane[:, None] - centres, axis=2)  # (n, k^2)
    cluster = distance.argmin(axis=1)
    share = distance.min(axis=1) * (3 * k - 1)
    assert share.max() <= 1 + 1e-12
    assert np.abs(drawn.X[:, first:]).max() <= 0.5 + 1e-12
    # P(radius <= half of the largest) is 1/4 by area and 1/2 by radius.
    assert abs((share < 0.5).mean() - (0.25 if reading == "text" else 0.5)) < 0.03
    assert (np.abs(np.bincount(cluster) / n - 1 / 9) < 0.02).all()
    assert abs(rest.std() - 1 / math.sqrt(12)) < 0.01
    labels = [set(drawn.y[cluster == c]) for c in range(9)]
    assert all(len(each) == 1 for each in labels)
    negative = sum(each == {-1.0} for each in labels)
    assert negative == 4 if reading == "code" else 0 < negative < 9
    test = data.disks(k, d, n, seed=6, reading=reading, sample=1)
    distance = np.linalg.norm(test.X[:, None, first : first + 2] - centres, axis=2)
    assert_array_equal(test.y, np.array([each.copy().pop() for each in labels])[distance.argmin(axis=1)])
    assert not np.isin(test.X[:, -1], drawn.X[:, -1]).any()


def test_disks_always_have_both_classes():
    # With four disks, one labelling in eight is constant and must be drawn again.
    assert all(len(set(data.disks(k=2, n=200, seed=seed).y)) == 2 for seed in range(60))
    counts = {int((data.disks(k=3, n=400, seed=seed).y > 0).mean() * 9 + 0.5) for seed in range(20)}
    assert len(counts) > 2


@pytest.mark.parametrize(
    "wrong, word", [({"k": 1}, "k must"), ({"reading": "x"}, "text, code"), ({"d": 2, "reading": "code"}, "d must")]
)
def test_disks_refuse(wrong, word):
    with pytest.raises(InputError, match=word):
        data.disks(**wrong)


def test_clusters():
    drawn = data.clusters(n=3000, d=3, k=1, sep=5, seed=1)
    assert_array_equal(np.bincount((drawn.y > 0).astype(int)), [1500, 1500])
    low, high = drawn.X[drawn.y < 0], drawn.X[drawn.y > 0]
    spread = np.r_[low - low.mean(axis=0), high - high.mean(axis=0)].std()
    assert_allclose(np.linalg.norm(low.mean(axis=0) - high.mean(axis=0)), 2 * 5 * spread, rtol=0.03)
    tight = data.clusters(n=400, d=2, k=4, sep=1e6, seed=2)
    assert len(np.unique(tight.X.round(3), axis=0)) == 8


@pytest.mark.parametrize(
    "spec",
    [
        "parity:d=20,n=64,k=2,seed=0",
        "parity:d=6,n=9,k=3,seed=2,marginal=biased,p=0.25",
        "parity:d=6,n=9,k=2,seed=2,marginal=subset,S=1-4",
        "parity:d=3,k=2,marginal=full",
        "bad_kkt:d=5,n1=3,n2=4,half_angle=0.125,alpha=0.1,seed=7",
        "bad_kkt_plane:alpha=0.3",
        "collapse:d=4,r=3,n=8,gamma_nc=0.5,eps=0.125,labels=--+,seed=1,noise=0.5",
        "mt:d=5,n=20,reject=false,seed=3",
        "teacher:d=4,n=10,units=3,margin=0.25,seed=5,sample=2",
        "teacher:d=4,n=10,units=3,seed=5,regression=true",
        "mt1d:n=7,seed=1",
        "mt_regression:d=3,n=6,seed=2",
        "dyadic:d=3",
        "disks:d=5,n=80,k=3,seed=6",
        "disks:d=5,n=80,k=3,seed=6,reading=code,sample=1",
        "clusters:n=20,d=3,k=2,sep=2.5,seed=4",
        "digits:classes=3-8,n=60,seed=0",
    ],
)
def test_a_name_draws_the_same_data_again(spec):
    first, again = data.load(spec), data.load(spec)
    assert first.name == spec
    assert_array_equal(first.X, again.X)
    assert_array_equal(first.y, again.y)
    if "seed" in spec:
        other = data.load(spec.replace("seed=", "seed=1"))
        assert not np.array_equal(first.X, other.X)
