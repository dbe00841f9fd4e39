"""The F1 margin: closed forms, independent solvers, invariances, and stops of all kinds."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import signal
import time

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from checks import (
    assert_encloses,
    assert_overlap,
    changed,
    check_certificate,
    circle,
    features,
    lp_margin,
    noise,
    reference_margin,
    repeated,
    unit,
)
from widemargin import Certificate, Dataset, InputError, Measure, verify
from widemargin.data import bad_kkt_plane, parity, simplex_directions, xor_with_noise
from widemargin.margins import f1, f2, frozen, linear, random_features
from widemargin.spaces import ReLU, sphere

XOR = Dataset([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]], [1, 1, -1, -1], "xor")
slow = pytest.mark.slow


def check_certified(data: Dataset, value: float, *, slack: float = 1e-12, **options) -> Certificate:
    """Solve, and check the certificate and that it encloses the value to 1e-6."""
    certificate = f1(data, **({"tol": 1e-6} | options))
    check_certificate(certificate, data, tol=1e-6, status="certified")
    assert_encloses(certificate, value, slack)
    return certificate


# ---------------------------------------------------------------------- closed forms


@repeated("d", [2, 3, 4, 5, 6, 7, 8], 0, 3, 5)
def test_parity_of_two_bits(d: int):
    check_certified(parity(d, k=2, marginal="full"), 1 / math.sqrt(8 * d), tol=1e-6 if d >= 6 else 1e-7)


@pytest.mark.gpu
def test_a_gpu_gives_a_certificate_that_checks():
    data = parity(10, k=2, n=64, seed=0)
    certificate = f1(data, tol=1e-3, device="cuda")
    check_certificate(certificate, data, tol=1e-3, status="certified")
    assert_overlap(certificate, f1(data, tol=1e-3))


@repeated("k, d", [(4, 4), (4, 6), (6, 6)], 0, 1)
def test_parity_of_an_even_number_of_bits(k: int, d: int):
    value = math.comb(k - 2, k // 2 - 1) / (2 ** (k - 1) * math.sqrt(k * d))
    check_certified(parity(d, k=k, marginal="full"), value)


@pytest.mark.parametrize(("k", "d"), [(3, 3), (3, 5), (5, 5)])
def test_parity_of_an_odd_number_of_bits_needs_a_bias(k: int, d: int):
    data = parity(d, k=k, marginal="full")
    certificate = f1(data)
    check_certificate(certificate, data, status="not-separable")
    assert certificate.lower == certificate.upper == 0 and certificate.primal is None
    assert "bias" in certificate.reason


@pytest.mark.parametrize(("k", "value"), [(3, 0.0790569), pytest.param(5, 0.0367719, marks=slow)])
def test_parity_of_an_odd_number_of_bits_with_a_bias(k: int, value: float):
    formula = math.comb(k - 1, (k - 1) // 2) * 2.0**-k / math.sqrt(k * k + 1)
    assert round(formula, 7) == round(value, 7) or abs(formula - value) < 2e-7
    check_certified(parity(k, k=k, marginal="full"), formula, bias=True)


@pytest.mark.parametrize("k", [2, 4])
def test_a_bias_does_not_help_an_even_parity(k: int):
    data = parity(4, k=k, marginal="full")
    check_certified(data, math.comb(k - 2, k // 2 - 1) / (2 ** (k - 1) * math.sqrt(4 * k)), bias=True)


def test_four_points_and_the_distribution_they_stand_for():
    certificate = check_certified(XOR, math.sqrt(2) / 4, tol=1e-7)
    assert certificate.conversions["M2"]["lower"] <= math.sqrt(2) / 8 <= certificate.conversions["M2"]["upper"]
    sample = xor_with_noise(4, 20, seed=0)  # a subset of the support in R^4: its margin is at least sqrt(2) / 4
    other = f1(sample, tol=1e-3, time_limit=20)
    check_certificate(other, sample)
    assert other.upper >= math.sqrt(2) / 4


@pytest.mark.parametrize(
    ("alpha", "value"), [(math.sqrt(0.5), 0.5), (0.3, 0.4927087), (0.1, 0.4850349), (0.01, 0.4807303)]
)
def test_the_plane_with_a_bad_kkt_point(alpha: float, value: float):
    data = bad_kkt_plane(alpha)
    certificate = check_certified(data, value, slack=1.1e-7, tol=1e-7)
    assert certificate.upper > math.cos(math.pi / 8) / (1 + math.cos(math.pi / 8))
    assert_encloses(linear(data), math.sin(math.asin(alpha) / 2), 1e-9)


@pytest.mark.parametrize("labels", list(itertools.product([-1, 1], repeat=3)))
def test_the_regular_simplex_has_margin_one_third_for_every_labelling(labels: tuple[int, ...]):
    check_certified(Dataset(circle(90, 210, 330), labels), 1 / 3, slack=1e-14, tol=1e-7)


def test_the_simplex_in_higher_dimension():
    """r directions with inner products -1/(r - 1): one neuron per direction gives 1/r (LR Assumption 3.1)."""
    data = Dataset(simplex_directions(4, 3), [1, -1, 1, -1])
    certificate = f1(data, tol=1e-6)
    check_certificate(certificate, data, tol=1e-6, status="certified")
    assert certificate.upper >= 1 / 4


def test_two_antipodal_points():
    for scale in (1.0, 0.3):
        data = Dataset([[scale, 0.0], [-scale, 0.0]], [1, -1])
        certificate = check_certified(data, scale / 2)
        assert_encloses(linear(data), scale, 1e-9)
        assert_allclose(certificate.conversions["M2"]["upper"], scale / 4, rtol=1e-6)
    same = Dataset([[1.0, 0.0], [-1.0, 0.0]], [1, 1])
    check_certified(same, 0.5)


@pytest.mark.parametrize("x", [[1.0], [3.0, 4.0], [-0.1, 0.2, -0.3, 0.4], [1e-9, 0.0], [5e7, -1.0]])
def test_the_margin_of_one_point_is_its_length(x: list[float]):
    for label in (1, -1):
        certificate = check_certified(Dataset([x], [label]), float(np.linalg.norm(x)))
        assert certificate.atoms == 1
        assert_allclose(certificate.conversions["M2"]["upper"], np.linalg.norm(x) / 2, rtol=1e-6)


def test_points_of_a_line():
    """x_1 > 0 > x_2 in one dimension: two neurons share the mass, 1 / (1/x_1 + 1/|x_2|), whatever the labels."""
    for labels in itertools.product([-1, 1], repeat=2):
        check_certified(Dataset([[2.0], [-1.0]], labels), 2 / 3)
    check_certified(Dataset([[2.0], [5.0]], [1, 1]), 2.0)


def test_orthogonal_points_of_one_label():
    """e_1, ..., e_d, all +1: one neuron at (1, ..., 1) / sqrt(d)."""
    check_certified(Dataset(np.eye(5), np.ones(5)), 1 / math.sqrt(5))


# ---------------------------------------------------------------------- margin 0


@pytest.mark.parametrize(
    ("reason", "X", "y"),
    [
        ("points 0 and 2 are equal but have different labels", [[1.0, 2.0], [0.5, 1.0], [1.0, 2.0]], [1, 1, -1]),
        ("points 0 and 1 are equal", [[0.0, 1.0], [-0.0, 1.0]], [1, -1]),
        ("point 1 is the origin", [[1.0, 2.0], [0.0, 0.0]], [1, 1]),
        ("point 0 is the origin", [[-0.0, 0.0]], [-1]),
        ("points 0 and 1", [[1.0, 1.0], [2.0, 2.0]], [1, -1]),
        ("points 0 and 2 lie on one ray", [[1.0, 0.0], [-1.0, 0.0], [2.0, 0.0], [-2.0, 0.0]], [1, -1, -1, 1]),
    ],
)
def test_margin_zero_comes_with_its_reason(reason: str, X, y):
    data = Dataset(X, y)
    certificate = f1(data)
    check_certificate(certificate, data, status="not-separable")
    assert certificate.lower == certificate.upper == 0 == certificate.gap
    assert reason in certificate.reason and "\n" not in certificate.reason


def test_opposite_labels_on_one_ray_are_never_separable():
    """relu(v . 0.37) = 0.37 relu(v . 1): no network without a bias has both signs on a ray."""
    data = Dataset([[0.37], [1.0]], [1, -1])
    certificate = f1(data, time_limit=5)
    check_certificate(certificate, data, status="not-separable")
    assert f1(data, bias=True).lower > 0


def test_a_bias_separates_the_origin_and_points_of_a_ray():
    for X, y in (([[0.0, 0.0], [1.0, 0.0]], [1, -1]), ([[1.0, 1.0], [2.0, 2.0]], [1, -1])):
        data = Dataset(X, y)
        certificate = f1(data, bias=True, tol=1e-6)
        check_certificate(certificate, data, tol=1e-6, status="certified")
        assert certificate.lower > 0
    twins = Dataset([[1.0], [1.0]], [1, -1])
    check_certificate(f1(twins, bias=True), twins, status="not-separable")


# ---------------------------------------------------------------------- independent solvers


def test_a_linear_program_on_a_fine_grid_of_the_plane():
    """2000 angles and the 2 n directions orthogonal to a point.

    With these every relu is linear between neighbours u, w of the grid, at most h apart. A unit v between them is
    a u + b w with a + b <= 1 / cos(h / 2), so any measure moves to the grid and keeps its function, with a norm larger
    by that factor: grid <= margin <= grid / cos(h / 2) = grid (1 + h^2 / 8 + ...).
    """
    N = 2000
    for seed, n in enumerate([3, 5, 7, 9, 12]):
        data = noise(n, 2, seed + 40)
        kinks = np.degrees(np.arctan2(data.X[:, 1], data.X[:, 0]))
        V = circle(*np.concatenate([np.arange(N) * 360 / N, kinks + 90, kinks - 90]))
        low, high, _ = lp_margin(data.y[:, None] * features(V, data.X))
        certificate = f1(data, tol=1e-6)
        check_certificate(certificate, data, tol=1e-6, status="certified")
        assert low <= certificate.upper * (1 + 1e-10)
        assert certificate.lower <= high / math.cos(math.pi / N) * (1 + 1e-10)
        assert high / math.cos(math.pi / N) - low <= 3e-6 * high  # so the comparison is a sharp one


@repeated("n, d", [(4, 2), (7, 2), (5, 3), (7, 3), (6, 4)], 1, 3)
def test_column_generation_with_brute_force_over_sign_patterns(n: int, d: int):
    for seed in (50, 51):
        data = noise(n, d, seed)
        low, high = reference_margin(data.X, data.y)
        assert high - low <= 1e-6 * high
        certificate = f1(data, tol=1e-6)
        check_certificate(certificate, data, tol=1e-6, status="certified")
        assert certificate.lower <= high * (1 + 1e-10) and low <= certificate.upper * (1 + 1e-10)


@pytest.mark.parametrize("bias", [False, True])
def test_random_directions_in_space_stay_below(bias: bool):
    for seed in (60, 61):
        data = noise(10, 3, seed)
        certificate = f1(data, tol=1e-5, bias=bias)
        check_certificate(certificate, data, tol=1e-5, status="certified")
        V = sphere(3000, 3 + bias, seed)
        Z = data.y[:, None] * ReLU(bias=bias).features(V, data.X)
        low, _, _ = lp_margin(Z)
        assert 0.8 * certificate.lower <= low <= certificate.upper * (1 + 1e-10)
        assert certificate.primal is not None  # with the network's own neurons the linear program is exact
        Z = np.hstack([Z, data.y[:, None] * ReLU(bias=bias).features(certificate.primal.theta, data.X)])
        low, _, _ = lp_margin(Z)
        assert certificate.lower * (1 - 1e-8) <= low <= certificate.upper * (1 + 1e-10)


# ---------------------------------------------------------------------- invariances


@pytest.fixture(scope="module")
def base() -> Dataset:
    return noise(9, 3, seed=70)


@pytest.fixture(scope="module")
def margin(base: Dataset) -> Certificate:
    certificate = f1(base, tol=1e-6)
    check_certificate(certificate, base, tol=1e-6, status="certified")
    return certificate


def solved(X: np.ndarray, y: np.ndarray, **options) -> Certificate:
    data = Dataset(X, y)
    certificate = f1(data, **({"tol": 1e-6} | options))
    check_certificate(certificate, data, tol=1e-6, status="certified")
    return certificate


def test_rotations_and_reflections(base: Dataset, margin: Certificate):
    for seed in range(2):
        Q = np.linalg.qr(np.random.default_rng(seed).standard_normal((3, 3)))[0]
        assert_overlap(solved(base.X @ Q, base.y), margin, slack=1e-12)
    assert_overlap(solved(-base.X, base.y), margin)
    assert_overlap(solved(base.X, -base.y), margin)


def test_permutations_of_points_and_features(base: Dataset, margin: Certificate):
    order = np.random.default_rng(0).permutation(base.n)
    assert_overlap(solved(base.X[order], base.y[order]), margin)
    assert_overlap(solved(base.X[:, [2, 0, 1]], base.y), margin)


@repeated("c", [1e-200, 0.1, 3.0, 1e200, 2.0**-1000, 2.0**1000], 0, 3)
def test_scaling(base: Dataset, margin: Certificate, c: float):
    assert_overlap(solved(c * base.X, base.y), margin, c)


def test_a_symmetric_set_at_any_scale():
    for c in (1e-150, 1e7):
        data = Dataset(c * XOR.X, XOR.y)
        check_certified(data, c * math.sqrt(2) / 4)


def test_embedding_in_more_dimensions(base: Dataset, margin: Certificate):
    Q = np.linalg.qr(np.random.default_rng(1).standard_normal((8, 3)))[0]  # (8, 3)
    assert_overlap(solved(base.X @ Q.T, base.y), margin, slack=1e-12)
    assert_overlap(solved(np.hstack([base.X, np.zeros((base.n, 2))]), base.y), margin)


def test_duplicates_change_nothing(base: Dataset, margin: Certificate):
    again = [0, 0, 3, 8]
    assert_overlap(solved(np.vstack([base.X, base.X[again]]), np.append(base.y, base.y[again])), margin)


def test_another_point_never_raises_the_margin(base: Dataset, margin: Certificate):
    rng = np.random.default_rng(2)
    for _ in range(3):
        more = Dataset(np.vstack([base.X, rng.standard_normal((1, 3))]), np.append(base.y, rng.choice([-1.0, 1.0])))
        certificate = f1(more, tol=1e-6)
        check_certificate(certificate, more, tol=1e-6, status="certified")
        assert certificate.lower <= margin.upper
    # a point that the network classifies with room to spare changes nothing: x, moved out along its ray
    far = Dataset(np.vstack([base.X, 3 * base.X[:2]]), np.append(base.y, base.y[:2]))
    assert_overlap(f1(far, tol=1e-6), margin)


@pytest.mark.parametrize("seed", [80, 81])
def test_a_bias_is_a_column_of_ones(seed: int):
    data = noise(8, 2, seed)
    extended = Dataset(np.hstack([data.X, np.ones((8, 1))]), data.y)
    with_bias, with_ones = f1(data, bias=True, tol=1e-6), f1(extended, tol=1e-6)
    check_certificate(with_bias, data, tol=1e-6, status="certified")
    check_certificate(with_ones, extended, tol=1e-6, status="certified")
    assert_overlap(with_bias, with_ones)
    assert_overlap(f1(data, ReLU(bias=True), tol=1e-6), with_bias)
    assert with_bias.bias and with_bias.primal is not None and with_bias.primal.theta.shape[1] == 3


# ---------------------------------------------------------------------- relations to other margins


@pytest.mark.parametrize("seed", [90, 92])
def test_the_chain_of_margins(seed: int):
    """gamma_2 <= gamma_gl; gamma_2^(m) <= gamma_gl^(m) <= gamma_gl; gamma_gl >= linear / 2, linear for equal labels."""
    data = noise(8, 5, seed)
    margin = f1(data, tol=1e-5)
    check_certificate(margin, data, tol=1e-5, status="certified")
    V = sphere(80, 5, seed)
    kernel, sampled, fixed, line = f2(data), random_features(data, V), frozen(data, V), linear(data)
    assert all(certificate.verify(data) for certificate in (kernel, sampled, fixed, line))
    assert 0 < kernel.lower <= margin.upper
    assert sampled.lower <= fixed.upper and fixed.lower <= margin.upper
    assert line.lower / 2 <= margin.upper
    flipped = Dataset(data.y[:, None] * data.X, np.ones(8))  # the same linear problem with equal labels
    same, line = f1(flipped, tol=1e-5), linear(flipped)
    check_certificate(same, flipped, tol=1e-5)
    assert line.lower > 0, "the draw should be linearly separable for this test to say something"
    assert line.lower <= same.upper


def test_half_the_linear_margin_is_reached():
    """Tight for opposite pairs: (x, +1), (-x, -1)."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((4, 3)) + 2
    data = Dataset(np.vstack([X, -X]), np.repeat([1, -1], 4))
    margin, line = f1(data, tol=1e-6), linear(data)
    check_certificate(margin, data, tol=1e-6, status="certified")
    assert line.lower / 2 <= margin.upper


@pytest.mark.parametrize("bias", [False, True])
def test_the_balanced_network_has_half_the_margin(bias: bool):
    """Convention M2: min_i y_i f(x_i) / (||W||^2 + ||a||^2) lies in conversions["M2"]."""
    data = noise(8, 3, seed=95)
    certificate = f1(data, bias=bias, tol=1e-6)
    assert certificate.primal is not None
    W, a = certificate.primal.to_network()
    X = np.hstack([data.X, np.ones((8, 1))]) if bias else data.X
    M2 = (data.y * ((X @ W.T).clip(0) @ a)).min() / ((W * W).sum() + (a * a).sum())
    assert certificate.conversions["M2"]["lower"] * (1 - 1e-12) <= M2 <= certificate.conversions["M2"]["upper"]
    # no other scaling of the layers does better
    for scale in (0.5, 0.9, 1.1, 2.0):
        V, b = W * scale, a / scale
        assert (data.y * ((X @ V.T).clip(0) @ b)).min() / ((V * V).sum() + b @ b) < M2
    back = Measure.from_network(W, a, bias=bias)
    assert_allclose(back.margin(data), 2 * M2, rtol=1e-11)


def test_no_random_network_beats_the_bound():
    data = noise(10, 3, seed=96)
    certificate = f1(data, tol=1e-4)
    rng = np.random.default_rng(4)
    best = 0.0
    for _ in range(300):
        V = unit(rng.standard_normal((40, 3)))
        Z = data.y[:, None] * features(V, data.X)
        a = np.linalg.lstsq(Z, np.ones(10), rcond=None)[0]
        best = max(best, float((Z @ a).min() / np.abs(a).sum()))
    assert 0 < best <= certificate.upper


# ---------------------------------------------------------------------- stopping, progress, seeds


@pytest.fixture(scope="module")
def hard() -> Dataset:
    return noise(100, 15, seed=0)


def test_the_time_limit_is_kept(hard: Dataset):
    started = time.perf_counter()
    certificate = f1(hard, time_limit=0.5)
    assert time.perf_counter() - started < 10
    check_certificate(certificate, hard, status="time-limit")
    assert certificate.upper < np.linalg.norm(hard.X, axis=1).min()  # which one neuron at that point would allow


@pytest.mark.parametrize("seconds", [1e-6, 0.05])
def test_hardly_any_time_still_gives_a_proved_bound(hard: Dataset, seconds: float):
    certificate = f1(hard, time_limit=seconds)
    check_certificate(certificate, hard, status="time-limit")
    # the bound of such a certificate comes from the root of the tree alone, and that proof shows nothing better
    forged = changed(certificate, upper=0.999 * certificate.upper)
    assert not verify.check(forged, hard.X, hard.y)


@pytest.mark.parametrize("call", [1, 2, 4])
def test_an_interrupt_leaves_a_valid_certificate(hard: Dataset, call: int):
    calls = []

    def progress(*state) -> None:
        calls.append(state)
        if len(calls) == call:
            raise KeyboardInterrupt

    try:
        certificate = f1(hard, time_limit=30, progress=progress)
    except KeyboardInterrupt:
        pytest.fail("the interrupt came through")
    assert len(calls) == call
    check_certificate(certificate, hard, status="interrupted")
    _, lower, upper, _ = calls[-1]
    assert certificate.upper <= upper * (1 + 1e-6) and certificate.lower >= lower * (1 - 1e-9)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")
def test_an_interrupt_before_the_first_bound(hard: Dataset):
    """Ctrl-C in the first moments: a certificate that can be saved and verified, or the interrupt itself."""

    def ring(*_) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, ring)
    try:
        for seconds in (0.02, 0.1):
            signal.setitimer(signal.ITIMER_REAL, seconds)
            try:
                certificate = f1(hard, time_limit=20)
            except KeyboardInterrupt:
                continue
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            assert certificate.status == "interrupted"
            assert certificate.gap == 1 or certificate.lower > 0
            verdict = certificate.verify(hard)
            assert verdict.ok, str(verdict)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_progress_is_monotone_and_ends_at_the_certificate():
    for data, tol in ((noise(12, 3, seed=1), 1e-6), (XOR, 1e-7), (Dataset(1e-150 * XOR.X, XOR.y), 1e-6)):
        calls: list[tuple[float, float, float, str]] = []
        certificate = f1(data, tol=tol, progress=lambda *state, calls=calls: calls.append(state))
        check_certificate(certificate, data, tol=1e-6, status="certified")
        assert calls
        for before, after in itertools.pairwise(calls):
            assert before[0] <= after[0]
            assert before[1] <= after[1] and after[2] <= before[2]
        for seconds, lower, upper, message in calls:
            assert seconds >= 0 and 0 <= lower <= upper * (1 + 1e-9) and isinstance(message, str) and message
            assert lower <= certificate.upper * (1 + 1e-9) and certificate.lower <= upper * (1 + 1e-9)
        assert_allclose(calls[-1][1], certificate.lower, rtol=1e-6)
        assert_allclose(calls[-1][2], certificate.upper, rtol=1e-6)


def test_the_same_seed_gives_the_same_certificate():
    for data in (noise(10, 3, seed=2), parity(3, marginal="full")):
        first, second = f1(data, tol=1e-5, seed=3), f1(data, tol=1e-5, seed=3)
        assert (first.lower, first.upper, first.status) == (second.lower, second.upper, second.status)
        assert_array_equal(first.dual, second.dual)
        assert first.primal is not None and second.primal is not None
        assert_array_equal(first.primal.theta, second.primal.theta)
        assert_array_equal(first.primal.mass, second.primal.mass)
        assert first.proof == second.proof
        other = f1(data, tol=1e-5, seed=4)
        assert_overlap(other, first)
        assert other.stats["seed"] == 4


def test_a_larger_tolerance_is_a_looser_certificate():
    data = noise(15, 4, seed=3)
    for tol in (0.1, 1e-2, 1e-4):
        certificate = f1(data, tol=tol)
        check_certificate(certificate, data, tol=tol, status="certified")


# ---------------------------------------------------------------------- certificates that must fail


@pytest.fixture(scope="module")
def sealed() -> tuple[Certificate, Dataset]:
    data = noise(8, 4, seed=5)  # four dimensions: in three nothing is stored that could be changed
    certificate = f1(data, tol=1e-6)
    assert certificate.verify(data) and certificate.gap < 1e-5
    return certificate, data


def test_better_bounds_than_proved_do_not_verify(sealed: tuple[Certificate, Dataset]):
    certificate, data = sealed
    low, high = certificate.lower, certificate.upper
    for field, value in (("upper", 0.999 * low), ("lower", 1.001 * high), ("upper", low / 2), ("upper", -1.0)):
        verdict = verify.check(changed(certificate, **{field: value}), data.X, data.y)
        assert not verdict, f"{field}={value} was accepted"
    both = changed(certificate, upper=0.999 * high, lower=0.99 * low)
    assert not verify.check(both, data.X, data.y)
    both = changed(certificate, upper=1.01 * high, lower=1.001 * low)
    assert not verify.check(both, data.X, data.y)
    weaker = changed(certificate, upper=1.01 * high, lower=0.99 * low)
    assert verify.check(weaker, data.X, data.y)


def test_changed_parts_do_not_verify(sealed: tuple[Certificate, Dataset]):
    certificate, data = sealed
    payload = certificate.payload()
    mass, theta = np.array(payload["primal"]["mass"]), np.array(payload["primal"]["theta"])
    dual = np.array(certificate.dual)
    heavy = int(dual.argmax())
    moved = dual.copy()
    moved[heavy] *= 0.9
    wrong = {
        "a sign of the mass": {"primal": {"theta": theta.tolist(), "mass": (-mass).tolist()}},
        "a direction": {"primal": {"theta": (-theta).tolist(), "mass": mass.tolist()}},
        "no network": {"primal": None},
        "another dual": {"dual": moved.tolist()},
        "a negative dual": {"dual": np.where(np.arange(8) == heavy, -dual, dual).tolist()},
        "uniform dual": {"dual": [0.125] * 8},
        "no proof": {"proof": {"type": "none"}},
        "an empty proof": {"proof": {}},
        "another kind": {"kind": "frozen"},
        "another convention": {"convention": "M2"},
        "another activation": {"activation": "srelu"},
        "a bias": {"bias": True},
        "another size": {"n": 7},
    }
    for what, fields in wrong.items():
        assert not verify.check(changed(certificate, **fields), data.X, data.y), f"{what} was accepted"


def test_every_number_of_a_proof_counts(sealed: tuple[Certificate, Dataset]):
    """Replace the lists of a proof, one by one, by zeros, shorter or shuffled lists: none may prove a lower bound."""
    certificate, data = sealed
    goal = 0.9 * certificate.lower

    def paths(value, path=()):
        if isinstance(value, list) and value:
            yield path
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, item in itertools.islice(items, 6):
            yield from paths(item, (*path, key))

    def edited(path, change):
        proof = copy.deepcopy(payload["proof"])
        place = proof
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = change(place[path[-1]])
        return proof

    payload = changed(certificate)
    edits = [
        lambda v: [0] * len(v),
        lambda v: v[:-1],
        lambda v: v[::-1],
        lambda v: [],
        lambda v: [v] * 2,
        lambda v: [2 * i if isinstance(i, int) else i for i in v],
        lambda v: None,
    ]
    tried = 0
    for path in paths(payload["proof"]):
        for change in edits:
            forged = changed(certificate, proof=edited(path, change), upper=goal, lower=0.5 * goal)
            assert not verify.check(forged, data.X, data.y), f"an edit of {path} proves a wrong bound"
            tried += 1
    assert tried > 20


def test_other_data_does_not_verify(sealed: tuple[Certificate, Dataset]):
    certificate, data = sealed
    for X, y in ((data.X * 2, data.y), (data.X[::-1], data.y[::-1]), (data.X, -data.y), (data.X[:, ::-1], data.y)):
        assert not certificate.verify(Dataset(X, y))
        forged = changed(certificate, data={"name": "data", "sha256": verify.data_hash(X, y)})
        assert not verify.check(forged, X, y)
    claim = dataclasses.replace(certificate, status="certified", upper=0.9 * certificate.lower)
    assert not claim.verify(data)


# ---------------------------------------------------------------------- the door


def test_bad_arguments_are_refused_in_one_sentence():
    data = noise(4, 2, seed=0)
    for message, options in (
        ("tol must lie between 0 and 1", {"tol": 0.0}),
        ("tol must lie between 0 and 1", {"tol": 1.5}),
        ("tol must lie between 0 and 1", {"tol": math.nan}),
        ("time_limit must be a positive", {"time_limit": 0.0}),
        ("time_limit must be a positive", {"time_limit": -1.0}),
        ("activation must be", {"activation": "tanh"}),
    ):
        with pytest.raises(InputError, match=message) as caught:
            f1(data, **options)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="labels -1 and \\+1"):
        f1(Dataset([[1.0], [2.0], [3.0]], [0.0, 1.0, 2.0]))
    with pytest.raises(InputError, match="1e150"):
        f1(Dataset([[1.0, 0.0], [1e-200, 1e-200]], [1, -1]))


def test_no_time_limit():
    data = noise(6, 2, seed=7)
    certificate = f1(data, time_limit=None, tol=1e-6)
    check_certificate(certificate, data, tol=1e-6, status="certified")
