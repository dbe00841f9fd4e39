import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose

from checks import changed, repeated
from widemargin import Dataset, InputError, verify
from widemargin.data import disks
from widemargin.margins import projected
from widemargin.types import Certificate


def gaussian(n: int, d: int, seed: int) -> Dataset:
    rng = np.random.default_rng(seed)
    return Dataset(rng.standard_normal((n, d)), np.where(np.arange(n) % 2, 1, -1))


def star(d: int) -> Dataset:
    """The origin against e_1..e_d: min_j P_jj <= r/d, and by Schur and Horn some projection has a constant diagonal."""
    return Dataset(np.vstack([np.zeros(d), np.eye(d)]), np.append(1, -np.ones(d)))


def differences(data: Dataset) -> np.ndarray:
    return (data.X[data.y > 0][:, None] - data.X[data.y < 0]).reshape(-1, data.d)


def distance(data: Dataset, frame: np.ndarray) -> float:
    """min ||P z|| straight from the definition, P the projection to the rows of `frame`."""
    P = np.linalg.pinv(frame) @ frame
    return float(np.linalg.norm(differences(data) @ P, axis=1).min())


def assert_sound(certificate: Certificate, data: Dataset, samples: int = 300) -> None:
    """It verifies, its frame reaches lower, and no random projection beats upper."""
    verdict = certificate.verify(data)
    assert verdict.ok and str(verdict).startswith("verified exactly"), str(verdict)
    assert certificate.kind == "projected" and certificate.convention == "distance" and certificate.proved
    frame = np.array(certificate.extra["frame"])
    assert frame.shape == (certificate.extra["rank"], data.d)
    assert_allclose(distance(data, frame), certificate.lower, rtol=1e-9)
    rng = np.random.default_rng(1)
    for F in rng.standard_normal((samples, len(frame), data.d)):
        assert distance(data, F) <= certificate.upper * (1 + 1e-12)


@pytest.mark.parametrize("d, r", [(2, 1), (3, 1), (3, 2), (4, 1), (4, 3), (6, 2), (9, 3)])
def test_the_origin_and_the_axes(d: int, r: int):
    data = star(d)
    certificate = projected(data, r)
    assert_sound(certificate, data, samples=50)
    assert certificate.lower <= np.sqrt(r / d) * (1 + 1e-12) and np.sqrt(r / d) <= certificate.upper * (1 + 1e-12)
    assert_allclose(certificate.extra["relaxation"], np.sqrt(r / d), rtol=1e-3)
    assert certificate.status == "certified" and certificate.gap <= 1e-3


def test_all_dimensions_is_the_least_distance():
    for n, d, seed in ((12, 4, 0), (40, 3, 1), (30, 1, 2)):
        data = gaussian(n, d, seed)
        certificate = projected(data, d)
        assert certificate.status == "certified" and certificate.gap < 1e-13
        assert_allclose(certificate.upper, np.linalg.norm(differences(data), axis=1).min(), rtol=1e-13)
        assert_sound(certificate, data, samples=10)
    two = Dataset([[3.0, 0.0, 1.0], [0.0, 4.0, 1.0]], [1, -1])  # one difference, of rank 1
    for r in (1, 2, 3):
        certificate = projected(two, r)
        assert_allclose([certificate.lower, certificate.upper], 5, rtol=1e-13)
        assert certificate.verify(two)


@repeated("seed", range(4), 0)
def test_a_line_in_the_plane_is_solved_exactly(seed: int):
    data = gaussian(16, 2, seed)
    certificate = projected(data, 1)
    assert certificate.status == "certified" and certificate.gap <= 1e-3
    assert_sound(certificate, data)
    Z = differences(data)
    angle = np.linspace(0, np.pi, 200_001)
    best = max(
        float(np.abs(part @ Z.T).min(axis=1).max())
        for part in np.array_split(np.column_stack([np.cos(angle), np.sin(angle)]), 50)
    )
    slope = np.linalg.norm(Z, axis=1).max() * np.pi / 200_000  # more than the grid can miss
    assert certificate.lower <= best + slope and best <= certificate.upper * (1 + 1e-12)


def test_a_line_in_three_dimensions_needs_the_tree():
    data = gaussian(12, 3, 0)
    certificate = projected(data, 1)
    assert certificate.bound == "signs" and certificate.status == "certified"
    assert certificate.upper < 0.95 * certificate.extra["relaxation"]  # the relaxation has a gap here
    assert_sound(certificate, data, samples=3000)
    # all sign patterns of the pairs that a direction can have, by brute force over triples of pairs
    Z = differences(data)
    best = 0.0
    for three in itertools.combinations(range(0, len(Z)), 3):
        A = Z[list(three)]
        if abs(np.linalg.det(A)) < 1e-9:
            continue
        for signs in ((1, 1, 1), (1, 1, -1), (1, -1, 1), (1, -1, -1)):
            v = np.linalg.solve(A, signs)  # |v . z| equal on these pairs, as at a strict optimum
            best = max(best, float(np.abs(Z @ v).min() / np.linalg.norm(v)))
    assert best <= certificate.upper * (1 + 1e-9)
    assert certificate.lower >= best * (1 - 2e-3)


@pytest.mark.parametrize("n, d, r, seed", [(20, 4, 2, 0), (16, 8, 2, 2)])
def test_the_relaxation_against_another_solver(n: int, d: int, r: int, seed: int):
    import cvxpy

    data = gaussian(n, d, seed)
    certificate = projected(data, r, restarts=4)
    M, t = cvxpy.Variable((d, d), PSD=True), cvxpy.Variable()
    limits = [
        np.eye(d) - M >> 0,
        cvxpy.trace(M) == r,
        cvxpy.sum(cvxpy.multiply(differences(data) @ M, differences(data)), axis=1) >= t,
    ]
    value = float(cvxpy.Problem(cvxpy.Maximize(t), limits).solve(solver="SCS", eps=1e-7, max_iters=100_000))
    assert_allclose(certificate.extra["relaxation"], np.sqrt(value), rtol=1e-3)
    assert certificate.upper >= np.sqrt(value) * (1 - 1e-5)  # no weights prove less than the relaxation
    assert certificate.lower <= np.sqrt(value) * (1 + 1e-5)
    assert_sound(certificate, data)


def test_more_dimensions_keep_more():
    data = gaussian(14, 4, 3)
    found = [projected(data, r, restarts=4) for r in range(1, 5)]
    for fewer, more in itertools.pairwise(found):
        assert fewer.lower <= more.upper
        assert fewer.upper <= more.upper * (1 + 1e-3)
        assert fewer.verify(data)
    assert found[-1].gap < 1e-12


@pytest.mark.parametrize("d", [2, 6])
def test_disks_stay_apart_in_their_plane(d: int):
    data = disks(k=3, d=d, n=60)
    certificate = projected(data, 2, restarts=4)
    plane = distance(data, np.eye(2, d))
    assert plane >= 1 / 8  # CB Section 7: 1 / (3 k - 1)
    assert plane <= certificate.upper * (1 + 1e-12)
    assert certificate.lower >= 1 / 8
    assert_sound(certificate, data)


def test_invariances():
    data = gaussian(16, 3, 4)
    base = projected(data, 2, restarts=4)
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    order = rng.permutation(16)
    others = {
        "rotated": Dataset(data.X @ rotation, data.y),
        "shifted": Dataset(data.X + 7.0, data.y),
        "mirrored": Dataset(data.X, -data.y),
        "sorted": Dataset(data.X[order], data.y[order]),
        "repeated": Dataset(np.vstack([data.X, data.X[:3]]), np.append(data.y, data.y[:3])),
    }
    for name, other in others.items():
        found = projected(other, 2, restarts=4)
        assert found.verify(other), name
        assert found.lower <= base.upper * (1 + 1e-9) and base.lower <= found.upper * (1 + 1e-9), name
        assert_allclose(found.extra["relaxation"], base.extra["relaxation"], rtol=1e-3, err_msg=name)
    more = Dataset(np.vstack([data.X, rng.standard_normal((2, 3))]), np.append(data.y, [1, -1]))
    assert projected(more, 2, restarts=4).lower <= base.upper
    for c in (1e-200, 1e200):
        scaled = Dataset(c * data.X, data.y)
        found = projected(scaled, 2, restarts=4)
        assert found.verify(scaled)
        assert_allclose([found.lower / c, found.upper / c], [base.lower, base.upper], rtol=1e-3)


def test_fewer_points_than_features():
    data = gaussian(8, 60, 5)
    certificate = projected(data, 2, restarts=4)
    assert certificate.proof["type"] == "fantope-pairs" and certificate.stats["dimensions"] == 7
    assert_sound(certificate, data, samples=50)
    least = np.linalg.norm(differences(data), axis=1).min()
    for r in (7, 20, 60):  # the differences span 7 dimensions
        certificate = projected(data, r)
        assert certificate.verify(data) and certificate.status == "certified"
        assert_allclose([certificate.lower, certificate.upper], least, rtol=1e-10)


def test_changed_certificates_are_refused():
    cases = [(gaussian(12, 3, 6), 1), (gaussian(14, 5, 7), 2), (gaussian(8, 30, 8), 2), (gaussian(8, 3, 8), 3)]
    seen = set()
    for data, r in cases:
        certificate = projected(data, r, restarts=2)
        kind = certificate.proof["type"]
        seen.add(kind)
        frame = np.array(certificate.extra["frame"])
        proof = dict(certificate.proof)
        wrong = [
            {"lower": certificate.lower * 1.001, "upper": certificate.upper * 1.01},
            {"lower": 0.0, "upper": certificate.upper * 0.999},
            {"extra": {**certificate.extra, "frame": (0 * frame).tolist()}},
            {"extra": {**certificate.extra, "rank": r + 1}},
            {"proof": {**proof, "pairs": []}},
            {"proof": {**proof, "type": "dual"}},
        ]
        stretched = frame.copy()
        stretched[0] *= 2  # longer rows must not lengthen distances
        wrong.append(
            {
                "lower": certificate.lower * 1.5,
                "upper": certificate.upper * 2,
                "extra": {**certificate.extra, "frame": stretched.tolist()},
            }
        )
        if kind.startswith("fantope"):
            wrong += [
                {"proof": {**proof, "t": proof["t"] * 0.99}},
                {"proof": {**proof, "B": (0.99 * np.array(proof["B"])).tolist()}},
                {"proof": {**proof, "t": -1.0}},
                {"proof": {**proof, "shift": proof["shift"] - 1}},
            ]
        if kind == "signs":
            wrong += [
                {"proof": {**proof, "tree": proof["tree"][:-1]}},
                {"proof": {**proof, "leaves": proof["leaves"][::-1]}},
                {"proof": {**proof, "tree": [-1], "leaves": [[1.0]]}},
            ]
        for fields in wrong:
            verdict = verify.check(changed(certificate, **fields), data.X, data.y)
            assert not verdict.ok, (kind, fields.keys())
        same = np.flatnonzero(data.y == data.y[0])[:2].tolist()
        entry = [*same, 1] if kind != "signs" else same
        verdict = verify.check(
            changed(certificate, proof={**proof, "pairs": [entry, *proof["pairs"][1:]]}), data.X, data.y
        )
        assert not verdict.ok and "equal labels" in str(verdict)
    assert seen == {"signs", "fantope", "fantope-pairs", "trace"}


def test_one_point_with_both_labels():
    data = Dataset([[1.0, 2.0], [1.0, 2.0], [0.0, 1.0]], [1, -1, 1])
    certificate = projected(data, 1)
    assert certificate.status == "not-separable" and certificate.lower == certificate.upper == 0
    assert "points 0 and 1 are equal" in certificate.reason
    assert certificate.verify(data)


def test_a_time_limit_leaves_valid_bounds():
    data = gaussian(40, 8, 9)
    certificate = projected(data, 2, time_limit=1e-9)
    assert certificate.status == "time-limit" and certificate.verify(data)
    better = projected(data, 2, restarts=2)
    assert certificate.lower <= better.upper and better.lower <= certificate.upper


def test_bad_input_is_refused_in_one_sentence():
    data = gaussian(6, 3, 0)
    for message, call in (
        ("labels -1 and", lambda: projected(Dataset(data.X, np.arange(6.0)))),
        ("both labels", lambda: projected(Dataset(data.X, np.ones(6)))),
        ("rank must lie between 1 and d = 3", lambda: projected(data, 4)),
        ("rank must be an integer", lambda: projected(data, 1.5)),
        ("restarts", lambda: projected(data, restarts=0)),
        ("tol", lambda: projected(data, tol=0)),
        ("time_limit", lambda: projected(data, time_limit=-1)),
    ):
        with pytest.raises(InputError, match=message):
            call()
