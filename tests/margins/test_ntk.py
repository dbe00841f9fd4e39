import copy
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize

from checks import moved, noise
from widemargin import Certificate, Dataset, InputError, data, verify
from widemargin.margins import f1, f2, linear
from widemargin.margins.tangent_kernels import (
    _radial,
    linear_transports,
    ntk,
    ntk_kernel,
    parity_transport,
    positive_transport,
    transport_margin,
)


def weights(N: int, D: int, seed: int) -> np.ndarray:
    """Rows (a, v): (N, D + 1)."""
    W = np.random.default_rng(seed).standard_normal((N, D + 1))
    W[:, 1:] /= np.sqrt(D)
    return W


def gradients(W: np.ndarray, points: Dataset) -> np.ndarray:
    """dp_i(w) from the definition: (N, n, D + 1)."""
    P = W[:, 1:] @ points.X.T
    inner = (W[:, :1] * (P > 0))[:, :, None] * points.X
    return points.y[:, None] * np.concatenate([P.clip(0)[:, :, None], inner], axis=2)


def assert_meet(a: Certificate, low: float, high: float) -> None:
    """The interval of a meets [low, high]."""
    assert a.lower <= high and low <= a.upper, (a.lower, a.upper, low, high)


# --- the kernel and the L2 version -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
def test_the_kernel_is_the_expectation_of_the_gradients(bias: bool):
    points, others = noise(4, 3, seed=1), noise(3, 3, seed=2)
    X, Z = ([np.hstack([p.X, np.ones((p.n, 1))]) if bias else p.X for p in (points, others)])[:2]
    W = weights(150_000, X.shape[1], seed=3)
    G, H = (gradients(W, Dataset(A, np.ones(len(A)))) for A in (X, Z))
    for part, cut in (("outer", slice(0, 1)), ("inner", slice(1, None)), ("total", slice(None))):
        products = np.einsum("kid,kjd->ijk", G[:, :, cut], H[:, :, cut])
        error = products.std(axis=2) / np.sqrt(len(W))
        K = ntk_kernel(points.X, others.X, part=part, bias=bias)
        assert (np.abs(K - products.mean(axis=2)) <= 5 * error).all(), part
    assert_allclose(
        ntk_kernel(points.X), ntk_kernel(points.X, part="outer") + ntk_kernel(points.X, part="inner"), rtol=1e-14
    )


def test_the_kernel_is_exact_near_equal_and_opposite_points():
    x = np.array([0.6, 0.8])
    for angle in (0.0, 1e-9, math.pi - 1e-9, math.pi):
        z = np.array(
            [[x[0] * math.cos(angle) - x[1] * math.sin(angle), x[0] * math.sin(angle) + x[1] * math.cos(angle)]]
        )
        value = ntk_kernel(x[None], 3 * z, part="inner")[0, 0]
        assert_allclose(value, 3 * math.cos(angle) * (math.pi - angle) / (2 * math.pi), rtol=1e-12, atol=3e-16)


@pytest.mark.parametrize(
    ("d", "part", "value"),
    [
        (4, "total", 0.184632),
        (6, "total", 0.113575),
        (8, "total", 0.080238),
        (4, "outer", 0.053281),
        (6, "outer", 0.028478),
    ],
)
def test_golden_values_of_the_l2_margin_of_parity(d: int, part: str, value: float):
    cube = data.parity(d=d, marginal="full")
    certificate = ntk(cube, part=part, transport="l2")
    assert certificate.status == "certified" and certificate.proved and certificate.convention == "M8-l2"
    assert certificate.gap < 1e-6 and certificate.verify(cube)
    assert_allclose(certificate.lower, value, atol=6e-7)


def test_the_l2_margin_agrees_with_f2_of_the_same_kernel():
    points = noise(9, 3, seed=4)
    for part in ("total", "outer", "inner"):
        own = ntk(points, part=part, transport="l2", bias=True)
        given = f2(points, kernel=ntk_kernel(points.X, part=part, bias=True))
        assert own.verify(points) and own.gap < 1e-6
        assert own.lower <= given.upper * (1 + 1e-12) and given.lower <= own.upper * (1 + 1e-12)
    assert_meet(ntk(points, part="outer", transport="l2"), f2(points).lower, f2(points).upper)


def test_odd_parity_and_twins_have_margin_zero():
    odd = data.parity(d=4, k=3, marginal="full")  # sum of f(x) - f(-x) is linear
    for transport in ("sup", "l2"):
        certificate = ntk(odd, transport=transport)
        assert certificate.status == "not-separable" and certificate.lower == 0 and certificate.upper < 1e-6
        assert certificate.verify(odd)
    twice = Dataset([[1.0, 2.0], [1.0, 2.0], [0.0, 1.0]], [1, -1, 1])
    certificate = ntk(twice)
    assert (
        certificate.status == "not-separable" and certificate.upper < 1e-6 and "different labels" in certificate.reason
    )
    assert certificate.verify(twice)


# --- the sup version -------------------------------------------------------------------------------------------------


def test_the_law_of_the_radii():
    rng = np.random.default_rng(5)
    for D in (1, 3, 30):
        a, r = np.abs(rng.standard_normal(400_000)), np.sqrt(rng.chisquare(D, 400_000) / D)
        inside = np.hypot(a, r) < 2
        angle, rho = np.arctan2(r, a), np.hypot(a, r)
        table = _radial(D, "total")
        for k in (5, 11):
            here = inside & (angle >= k * math.pi / 32) & (angle < (k + 1) * math.pi / 32)
            means = [
                (here * rho * g).mean()
                for g in (np.sin(angle), np.cos(angle), 1, np.sin(angle) ** 2, np.cos(angle) ** 2)
            ]
            expected = [means[0], means[1], math.sqrt(means[2] * means[3]), math.sqrt(means[2] * means[4])]
            assert_allclose(table[:, k], expected, rtol=0.05, atol=2e-4)
        assert_allclose(_radial(D, "outer")[0], (inside * r).mean(), rtol=5e-3)
        assert_allclose(_radial(D, "inner")[1], (inside * a).mean(), rtol=5e-3)
    for D in (1, 2, 7, 60):
        for part, bins in (("total", 16), ("outer", 1), ("inner", 1)):
            assert_allclose(_radial(D, part), verify.transport.ntk_radial(D, bins, part), rtol=1e-9, atol=1e-13)


def plane_margin(points: Dataset, part: str) -> float:
    """min_q E 1[|w| < 2] |sum_i q_i dp_i(w)| for points of the plane, by quadrature of the definition over (s, a, r)."""
    nodes, mass = np.polynomial.legendre.leggauss(16)
    rho, t = 1 + nodes, (1 + nodes) * math.pi / 4  # |w| < 2, (|a|, |v|) = rho (cos t, sin t)
    a, r = np.outer(rho, np.cos(t)), np.outer(rho, np.sin(t))
    density = (
        np.outer(mass * rho, mass * math.pi / 4)
        * math.sqrt(2 / math.pi)
        * np.exp(-(a**2) / 2)
        * 2
        * r
        * np.exp(-(r**2))
    )
    angle = (np.arange(1000) + 0.5) * 2 * math.pi / 1000
    P = np.column_stack([np.cos(angle), np.sin(angle)]) @ points.X.T
    outer, inner = part != "inner", part != "outer"

    def value(z: np.ndarray) -> float:
        c = np.exp(z - z.max()) / np.exp(z - z.max()).sum() * points.y
        u, g = P.clip(0) @ c * outer, np.linalg.norm((P > 0) @ (c[:, None] * points.X), axis=1) * inner
        ratios, counts = np.unique(np.round(np.column_stack([u, g]), 6), axis=0, return_counts=True)
        f = np.sqrt(r[:, :, None] ** 2 * ratios[:, 0] ** 2 + a[:, :, None] ** 2 * ratios[:, 1] ** 2)
        return float(np.tensordot(density, f, 2) @ counts / len(P))

    return min(
        minimize(value, z, method="Nelder-Mead", options={"xatol": 1e-3, "fatol": 1e-6}).fun for z in (np.zeros(3),)
    )


@pytest.mark.slow
@pytest.mark.parametrize("part", ["total", "inner", "outer"])
def test_intervals_cover_the_margin_of_a_plane_problem(part: str):
    points = Dataset([[1.0, 0.2], [-0.5, 1.0], [0.3, -0.8]], [1, -1, 1])
    truth = plane_margin(points, part)
    certificates = [ntk(points, part=part, samples=3000, confidence=0.9, seed=seed) for seed in range(12)]
    # truth is a quadrature, right to about 1e-4
    covered = [c.lower <= truth * (1 + 3e-4) and truth * (1 - 3e-4) <= c.upper for c in certificates]
    assert np.mean(covered) >= 0.9
    assert len({c.upper for c in certificates}) == 12  # another seed is another sample
    sharp = ntk(points, part=part, samples=200_000, seed=1)
    assert_meet(sharp, truth * (1 - 3e-4), truth * (1 + 3e-4))
    assert sharp.gap < 0.03 and sharp.verify(points).answer == verify.CHANCE


def test_a_second_order_cone_program_on_other_samples_agrees():
    cp = pytest.importorskip("cvxpy")
    points = noise(5, 3, seed=6)
    certificate = ntk(points, samples=200_000)
    W = weights(4000, 3, seed=7)
    G = gradients(W[np.linalg.norm(W, axis=1) < 2], points)  # (N, n, d + 1)
    q = cp.Variable(5, nonneg=True)
    rows = cp.hstack([cp.reshape(G[:, :, k] @ q, (len(G), 1), order="C") for k in range(4)])
    problem = cp.Problem(cp.Minimize(cp.sum(cp.norm(rows, axis=1)) / 4000), [cp.sum(q) == 1])
    problem.solve(solver="CLARABEL")
    spread = np.linalg.norm(G.transpose(0, 2, 1) @ q.value, axis=1)
    error = 4 * np.append(spread, np.zeros(4000 - len(G))).std() / math.sqrt(4000)
    assert_meet(certificate, problem.value - error, problem.value + error)
    assert certificate.verify(points).answer == verify.CHANCE


def test_both_bounds_against_the_definition_with_plain_samples():
    points = data.parity(d=5, n=14, seed=3, marginal="subset")
    certificate = ntk(points)
    q = np.asarray(certificate.dual)

    def theta(W: np.ndarray) -> np.ndarray:
        mixed = np.tensordot(gradients(W, points), q, axes=(1, 0))
        return mixed / np.linalg.norm(mixed, axis=1, keepdims=True).clip(1e-12)

    plain = transport_margin(points, theta, 200_000, seed=9)
    assert certificate.status == "certified" and not certificate.proved and certificate.bound == "confidence"
    assert plain.total.margin[0] <= certificate.upper
    # sum_i q_i <theta_q, dp_i> = |sum_i q_i dp_i|: the value at q, an upper bound of the margin
    low, high = q @ plain.total.lower, q @ plain.total.upper
    assert low <= certificate.upper and certificate.lower <= high
    assert certificate.upper <= high * 1.02


def test_the_chain_of_margins():
    points = data.parity(d=6, n=20, seed=1, marginal="subset")
    parts = {part: ntk(points, part=part, samples=60_000) for part in ("total", "outer", "inner")}
    for part, certificate in parts.items():
        assert certificate.verify(points).answer == verify.CHANCE
        assert certificate.lower <= ntk(points, part=part, transport="l2").upper
        assert certificate.lower <= parts["total"].upper
    assert parts["outer"].lower <= f2(points).upper


def test_the_margin_scales_with_the_points():
    points = noise(4, 2, seed=8)
    base = ntk(points, samples=20_000)
    for c in (3.0, 2.0**-900, 2.0**900):
        scaled = Dataset(c * points.X, points.y)
        certificate = ntk(scaled, samples=20_000)
        assert_meet(certificate, c * base.lower, c * base.upper)
        assert certificate.gap < 2 * base.gap + 0.05 and certificate.verify(scaled).answer == verify.CHANCE


def test_what_a_certificate_says_and_that_it_can_be_repeated():
    points = noise(5, 3, seed=10)
    certificate = ntk(points, samples=5000, confidence=0.95, seed=4, tol=0.5)
    assert certificate.extra["samples"] == 5000 and certificate.extra["confidence"] == 0.95
    assert "probability at least 0.95" in certificate.reason and certificate.convention == "M8"
    again = ntk(points, samples=5000, confidence=0.95, seed=4, tol=0.5)
    assert again.lower == certificate.lower and again.upper == certificate.upper
    verdict = certificate.verify(points)
    assert not verdict and not verdict.ok and verdict.failed is None
    assert verdict.answer == verify.CHANCE and verdict.probability == 0.95
    assert "NOT a proof, holds with probability at least 0.95" in str(verdict) and "exactly" not in str(verdict)
    for word in ("transport sup", "part total", "samples 5000", "confidence 0.95", "seed 4"):
        assert word in verdict.about
    wide = ntk(points, samples=300, tol=1e-2)
    assert wide.status == "stalled" and "more samples" in wide.reason and wide.verify(points).answer == verify.CHANCE
    hurried = ntk(noise(40, 6, seed=11), time_limit=1e-3)
    assert hurried.status == "time-limit" and hurried.lower <= hurried.upper


def test_more_points_than_a_sample_is_for_are_no_lack_of_time(monkeypatch):
    """It said "stopped at the time limit" after a second of sixty, and asked for a longer one."""
    monkeypatch.setattr("widemargin.margins.tangent_kernels.MOST_POINTS", 4)
    certificate = ntk(noise(5, 3, seed=10))
    assert certificate.status == "stalled" and "4 points at most" in certificate.reason and certificate.lower == 0
    assert certificate.verify(noise(5, 3, seed=10)).ok


@pytest.mark.parametrize("part", ["total", "outer", "inner"])
def test_the_checker_refuses_changed_certificates(part: str):
    points = data.parity(d=4, n=10, seed=2, marginal="subset")
    for certificate in (ntk(points, part=part, samples=20_000), ntk(points, part=part, transport="l2")):
        assert verify.check(moved(certificate), points.X, points.y).failed is None
        lower, upper = certificate.lower, certificate.upper
        assert verify.check(moved(certificate, lower=lower * 1.001), points.X, points.y).answer == verify.REFUSED
        assert verify.check(moved(certificate, upper=upper * 0.999), points.X, points.y).answer == verify.REFUSED
        assert verify.check(moved(certificate, convention="M7"), points.X, points.y).answer == verify.REFUSED
        assert (
            verify.check(moved(certificate, proved=not certificate.proved), points.X, points.y).answer == verify.REFUSED
        )
        other = "inner" if part == "total" else "total"
        assert verify.check(moved(certificate, part=other), points.X, points.y).answer == verify.REFUSED
    sampled = ntk(points, part=part, samples=20_000)
    negative = copy.deepcopy(list(sampled.dual))
    negative[0] = -0.1
    for changes in (
        {"samples": 100},
        {"confidence": 0.9999999},
        {"confidence": 1.0},
        {"samples": 2.5},
        {"dual": negative},
        {"control": [-1.0, 0.0]},
        {"transport": "l2"},
        {"proof": {"type": "dual"}},
    ):
        assert verify.check(moved(sampled, **changes), points.X, points.y).answer == verify.REFUSED, changes


def test_a_kernel_function_proves_nothing_below_for_sup_transports():
    points = data.parity(d=4, n=10, seed=2, marginal="subset")
    certificate = ntk(points, transport="l2")
    assert verify.check(moved(certificate, transport="sup"), points.X, points.y).answer == verify.REFUSED


# --- transports ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "times_d"), [(4, 0.2821), (10, 0.2633)])
def test_golden_values_of_the_parity_transport(d: int, times_d: float):
    cube = data.parity(d=d, n=12, seed=5, marginal="subset")
    exact = math.sqrt(2 / d) * math.sqrt(2 / math.pi) / 2 * math.asin(math.sqrt(2 / d)) / math.pi
    assert_allclose(exact * d, times_d, atol=1e-4)
    theta = parity_transport(d)
    free = transport_margin(cube, theta, 300_000, radius=math.inf)
    assert (free.total.lower <= exact).all() and (exact <= free.total.upper).all()
    assert (free.outer.mean == 0).all() and free.total.upper[0] - free.total.lower[0] < 0.2 / d
    cut = transport_margin(cube, theta, 300_000)
    assert cut.total.margin[0] > 1 / (50 * d)
    assert_allclose(cut.total.mean * d, 0.20, atol=0.025)
    printed = transport_margin(cube, parity_transport(d, convention="printed"), 300_000, radius=math.inf)
    assert (cube.y < 0).any() and (printed.total.upper[cube.y < 0] < 0).all()
    assert_allclose(printed.total.mean[cube.y < 0] * d, -times_d, atol=0.05)


def test_the_parity_transport_of_other_coordinates_and_its_network():
    moved_pair = data.parity(d=5, S=(1, 3), marginal="full")
    assert transport_margin(moved_pair, parity_transport(5, (1, 3)), 40_000).total.margin[0] > 0
    assert transport_margin(moved_pair, parity_transport(5), 40_000).total.margin[1] < 0
    assert transport_margin(moved_pair, parity_transport(5, (1, 3), part="outer"), 100_000).outer.mean.min() > 0.01


def test_at_the_initialisation_of_the_network_only_the_outer_part_grows_with_the_width():
    d, m = 6, 10**6
    cube = data.parity(d=d, n=4, seed=3, marginal="subset")
    rng = np.random.default_rng(12)
    a, V = rng.standard_normal(m) / math.sqrt(m), rng.standard_normal((m, d)) / math.sqrt(d)
    W = np.column_stack([math.sqrt(m) * a, V])
    inside = np.linalg.norm(W, axis=1) < 2
    for part, wrong in (("inner", 34.3), ("outer", 16.0)):
        theta = parity_transport(d, part=part)
        bar = theta(W) * inside[:, None] / math.sqrt(m)
        P = V @ cube.X.T
        aligned = cube.y * (bar[:, 0] @ P.clip(0) + ((bar[:, 1:] @ cube.X.T) * (P > 0) * a[:, None]).sum(axis=0))
        found = transport_margin(cube, theta, 400_000)
        expected = found.at_width(m)
        sampling = 1.5 if part == "outer" else 1.5 / math.sqrt(m)  # the sum itself is random
        assert (aligned >= expected.lower - sampling).all() and (aligned <= expected.upper + sampling).all()
        if part == "inner":
            assert_allclose(aligned, 0.034, atol=0.006)  # and not 34.3
            assert_allclose(math.sqrt(m) * found.inner.mean, wrong, rtol=0.1)
        else:
            assert_allclose(math.sqrt(m) * found.outer.mean, wrong, rtol=0.15)
            assert_allclose(aligned, wrong, rtol=0.15)


@pytest.mark.parametrize("d", [2, 6])
def test_the_transports_of_linear_data(d: int):
    rng = np.random.default_rng(13)
    u = rng.standard_normal(d)
    X = rng.standard_normal((15, d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    X = X[np.abs(X @ u) > 0.15 * np.linalg.norm(u)]
    points = Dataset(X, np.sign(X @ u))
    best = linear(points)
    direction = np.asarray(best.extra["u"])
    inner, outer, network = linear_transports(direction)
    first, second = transport_margin(points, inner, 200_000), transport_margin(points, outer, 200_000)
    assert first.total.margin[0] >= best.lower / 32 and (first.outer.mean == 0).all()
    assert second.total.margin[0] >= best.lower / (16 * math.sqrt(d)) and (second.inner.mean == 0).all()
    assert network.norm == pytest.approx(1) and network.margin(points) >= best.lower / 2 * (1 - 1e-9)
    # a transport is a lower bound of the best one
    assert first.total.margin[0] <= ntk(points, part="inner", samples=20_000).upper
    assert second.total.margin[0] <= ntk(points, part="outer", samples=20_000).upper


def test_the_transport_of_a_positive_network():
    cones = data.bad_kkt_cones(d=3, n1=4, n2=4)
    best = f1(cones, tol=0.05)
    primal = best.primal
    assert primal is not None
    keep = primal.mass > 1e-9
    alpha, beta = primal.mass[keep], primal.theta[keep]
    alpha = alpha / alpha.sum()
    gamma = float((alpha @ (beta @ cones.X.T).clip(0)).min())
    assert gamma > 0.3
    found = transport_margin(cones, positive_transport(alpha, beta), 200_000)
    assert found.total.margin[0] >= gamma / (8 * math.sqrt(3)) and (found.inner.mean == 0).all()


def test_the_intervals_of_a_transport_cover_its_value():
    point = Dataset([[3.0, 4.0]], [1])
    # theta = (0, sgn(a) x / |x|): E |a| 1[v.x > 0] |x|, untruncated sqrt(2/pi) |x| / 2
    theta = linear_transports([3.0, 4.0])[0]
    exact = math.sqrt(2 / math.pi) * 5 / 2
    covered = 0
    for seed in range(40):
        found = transport_margin(point, theta, 2000, confidence=0.9, radius=math.inf, seed=seed)
        covered += found.total.lower[0] <= exact <= found.total.upper[0]
    assert covered >= 36
    assert "outer" in str(found) and found.samples == 2000


# --- bad input -------------------------------------------------------------------------------------------------------


def test_bad_input_is_refused_in_one_sentence():
    points = noise(4, 3, seed=0)
    for message, options in (
        ("part must be", {"part": "both"}),
        ("transport must be", {"transport": "l1"}),
        ("samples must be", {"samples": 1}),
        ("samples must be", {"samples": 10.0}),
        ("confidence must lie", {"confidence": 1.0}),
        ("tol must lie", {"tol": 0}),
        ("seed must be", {"seed": -1}),
        ("time_limit must be", {"time_limit": 0}),
    ):
        with pytest.raises(InputError, match=message):
            ntk(points, **options)
    for message, theta in (
        ("norm 2", lambda W: np.eye(1, 4) * np.full((len(W), 1), 2.0)),
        ("one row per row", lambda W: W[:, 1:]),
        ("norm nan", lambda W: np.full_like(W, np.nan)),
        ("what theta returns must hold real numbers only", lambda W: [["a"]]),
    ):
        with pytest.raises(InputError, match=message):
            transport_margin(points, theta, 100)
    with pytest.raises(InputError, match="samples"):
        transport_margin(points, parity_transport(3), 1)
    with pytest.raises(InputError, match="radius"):
        transport_margin(points, parity_transport(3), 100, radius=0)
    for message, make in (
        ("u is zero", lambda: linear_transports([0.0, 0.0])),
        ("two different coordinates", lambda: parity_transport(4, (1, 1))),
        ("two different coordinates", lambda: parity_transport(4, (1, 4))),
        ("part must be", lambda: parity_transport(4, part="total")),
        ("convention must be", lambda: parity_transport(4, convention="original")),
        ("positive numbers", lambda: positive_transport([1.0, -0.5], np.eye(2))),
        ("positive numbers", lambda: positive_transport([1.0, 0.5], np.eye(2))),
        ("one row", lambda: positive_transport([0.5, 0.5], np.eye(3))),
    ):
        with pytest.raises(InputError, match=message):
            make()
    with pytest.raises(InputError, match="part must be"):
        ntk_kernel(points.X, part="both")
