"""Data and settings that a fuzzer found: every answer is honest and every certificate that says so is proved."""

import time
import warnings

import numpy as np
import pytest

import widemargin as wm
from checks import repeated
from widemargin.margins import squared
from widemargin.margins.multiclass import Solver as Classes
from widemargin.pricing import several
from widemargin.pricing.enumeration import enumerate3


def interrupt_at(call: int):
    """A progress callback that is interrupted at this call, counted from 0."""
    calls = []

    def progress(*_):
        calls.append(1)
        if len(calls) > call:
            raise KeyboardInterrupt

    return progress


def normal(n: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)), np.resize([1.0, -1.0], n)


@pytest.mark.parametrize(
    "margin", [wm.margins.f2, wm.margins.linear, lambda *a, **k: wm.margins.random_features(a[0], 9, **k)]
)
def test_an_interrupt_at_any_call_of_progress_gives_a_certificate_that_verifies(margin):
    data = wm.Dataset(*normal(12, 20, 90001))
    for call in range(30):
        cert = margin(data, tol=1e-9, progress=interrupt_at(call))
        assert cert.verify(data).ok
        if cert.status == "certified":
            break
        assert cert.status == "interrupted"
    assert cert.status == "certified" and call > 0


def test_an_interrupt_of_a_linear_margin_of_several_classes_gives_a_certificate_that_verifies():
    X, _ = normal(12, 20, 90002)
    data = wm.Dataset(X, np.arange(12) % 3)
    cert = wm.margins.multiclass_linear(data, progress=interrupt_at(0))
    assert cert.verify(data).ok


def test_weights_that_cancel_on_their_only_line_leave_nothing_to_list():
    # one line up to rounding, weights 1 and -1: F = 0
    X = np.array([[1e-150, 0.0, 1.0], [0.0, 1e-150, 1.0]])
    value, bound, _ = enumerate3(X, np.array([0.5, -0.5]))
    assert 0 <= value <= bound < 1e-12


@pytest.mark.parametrize("tiny", [1e-200, 1e-300, 5e-324])
def test_a_coordinate_of_any_size_is_listed_without_overflow(tiny):
    X, c = normal(6, 2, 90008)
    value = enumerate3(X, c)[0]  # in the plane
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*What would help")  # advice, where the time was short
        beside = enumerate3(np.column_stack([X, tiny * np.arange(1, 7)]), c)
    assert beside[0] == pytest.approx(value, rel=1e-12) and beside[1] >= value


def test_kernel_weights_beyond_float64_are_refused_with_a_sentence():
    X, y = normal(6, 3, 90003)
    for scale in (1e120, 1e250, 1e-160):
        with pytest.raises(wm.InputError, match="multiply X"):
            wm.margins.min_norm_l2(wm.Dataset(X * scale, y), activation="srelu")
    for scale in (1e60, 1e-60):
        data = wm.Dataset(X * scale, y)
        cert = wm.margins.min_norm_l2(data, activation="srelu")
        assert cert.status == "certified" and cert.verify(data).ok


def test_bounds_that_float64_cannot_tell_from_zero_are_not_called_certified_or_zero():
    X, y = normal(5, 3, 90004)
    data = wm.Dataset(X * 1e-310, y)
    cert = wm.margins.f2(data, activation="srelu", tol=1e-3)  # the margin is about 1e-620
    assert (cert.lower, cert.status) == (0.0, "rounding") and cert.verify(data).ok
    data = wm.Dataset([[1.234567e-310], [3.141592e-310], [-2e-310]], [1, -1, 1])
    cert = wm.margins.f1(data, activation="srelu")  # margin 0, by weights that are right up to rounding
    assert cert.lower == 0 and cert.status == "rounding" and cert.verify(data).ok


def test_squared_relu_beside_one_large_point_has_a_network():
    # A large point costs the others nothing: its row of the program has room. The margin is that of the others, at most.
    X, y = normal(12, 4, 90005)
    others = wm.margins.f1(wm.Dataset(X[1:], y[1:]), activation="srelu", time_limit=1)
    X[0] *= 1e5
    data = wm.Dataset(X, y)
    cert = wm.margins.f1(data, activation="srelu", time_limit=1)
    assert cert.verify(data).ok
    assert 0.1 * others.upper < cert.lower <= others.upper


def test_a_tree_of_squared_relu_tells_its_bound_at_any_scale(monkeypatch):
    monkeypatch.setattr(squared, "TELL", -1.0)
    X, y = normal(14, 5, 90007)
    told = []
    data = wm.Dataset(X * 1e150, y)  # 2^(2 shift) is about 1e300, and 4^shift of the next set is beyond all doubles
    for scale in (1.0, 1e10):
        try:
            wm.margins.f1(
                wm.Dataset(data.X * scale, y), activation="srelu", time_limit=1, progress=lambda *a: told.append(a[3])
            )
        except wm.InputError as error:  # the margin is not a double
            assert scale > 1 and "largest float" in str(error)
    assert any(message.startswith("tree, ") for message in told)


@repeated("noise", [1e-12, 1e-13, 1e-14], 0, 2)
def test_squared_relu_counts_what_points_have_beside_the_span_that_is_worked_in(noise):
    rng = np.random.default_rng(90225)
    X = rng.standard_normal((3, 7))[[0, 1, 1, 2, 2, 0, 0]] + noise * rng.standard_normal((7, 7))
    data = wm.Dataset(X, [1, 1, -1, 1, -1, -1, 1])
    cert = wm.margins.f1(data, activation="srelu", bias=True, time_limit=0.3, tol=1e-7)
    assert cert.verify(data).ok


def test_points_that_lost_entries_in_scaling_are_not_proved_by_cones():
    """Beside a bias of 1 the least floats are gone, and with them on which side of a cone its points lie."""
    X, classes = np.array([[0, -5e-324, 0], [0, 0, -5e-324], [0, 5e-324, 0]]), [0, 1, 0]
    for scale, ways in ((1.0, ["cover"]), (2.0**1020, ["cover", "cones"])):
        door = wm.margins.multiclass._enter(wm.Dataset(scale * X, classes), wm.spaces.ReLU(bias=True), 1e-3, 5.0, None)
        solver = Classes(*door, 1e-3, 0)
        soon = time.perf_counter() + 1
        found = several.price(solver.points, solver.dual.g, 1e-3, soon, solver.rng, lambda bound: bound)
        assert [proof.bound for proof in found] == ways


def test_a_proof_for_several_classes_tries_one_way_where_time_is_up(monkeypatch):
    X, _ = normal(20, 4, 90006)
    data, tried = wm.Dataset(X, np.arange(20) % 4), []
    for way in ("cones", "cover"):
        whole = getattr(several, way)
        monkeypatch.setattr(several, way, lambda *a, way=way, whole=whole, **k: (tried.append(way), whole(*a, **k))[1])
    late = time.perf_counter() - 1
    door = wm.margins.multiclass._enter(data, wm.spaces.ReLU(), 1e-3, 1.0, None)
    solver = Classes(*door, 1e-3, 0)
    found = several.price(solver.points, solver.dual.g, 1e-3, late, solver.rng, lambda bound: bound)
    assert len(list(found)) == 1 and tried == ["cones"]


def test_the_checker_lists_directions_of_points_with_a_bias_far_smaller_than_it():
    # v . x of such points are integers beyond all doubles; they lie on one line up to 1e-150
    X, y = normal(20, 2, 90432)
    data = wm.Dataset(1e-150 * X, y)
    cert = wm.margins.f1(data, bias=True, activation="leaky", time_limit=0.3)
    assert cert.bound == "enumeration" and cert.verify(data).ok


def test_arguments_of_the_wrong_kind_end_in_a_sentence():
    X, y = normal(4, 2, 0)
    data, several_classes = wm.Dataset(X, y), wm.Dataset(X, [0, 1, 2, 1])
    for wrong, said in (
        (lambda: wm.margins.f1(X), "Dataset"),
        (lambda: wm.margins.f1("data.csv"), "data.load"),
        (lambda: wm.margins.f1(data, True), "goes by its name"),
        (lambda: wm.margins.f1(data, "leaky"), "goes by its name"),
        (lambda: wm.margins.f1(data, tol="1e-3"), "tol must lie"),
        (lambda: wm.margins.f1(data, tol=None), "tol must lie"),
        (lambda: wm.margins.f2(data, time_limit="3"), "positive number of seconds"),
        (lambda: wm.margins.f1(data, seed=-1), "seed must be an integer"),
        (lambda: wm.margins.f1(data, seed=1.5, activation="srelu"), "seed must be an integer"),
        (lambda: wm.margins.multiclass_f1(several_classes, seed=-1), "seed must be an integer"),
        (lambda: wm.margins.min_norm_l1(data, seed="a"), "seed must be an integer"),
    ):
        with pytest.raises(wm.InputError, match=said):
            wrong()
