"""Margin bounds against measured test errors and the printed formulas."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from widemargin import Dataset, InputError, cli, data, flows, margins, theory
from widemargin.cli import theory as command
from widemargin.report import guarantees as report_guarantees
from widemargin.report import section
from widemargin.spaces import ReLU
from widemargin.theory import THEOREMS, Facts, Guarantees, facts, guarantees
from widemargin.theory import generalization as g

TEST = 4000  # fresh points for a test error


# ---------------------------------------------------------------- laws with independent points


def two_gaussians(n: int, seed: int, shift: float = 1.2, d: int = 3) -> Dataset:
    rng = np.random.default_rng(seed)
    y = rng.choice([-1.0, 1.0], n)
    return Dataset(rng.standard_normal((n, d)) + shift * y[:, None], y, "two gaussians")


def xor(n: int, seed: int) -> Dataset:
    return data.xor_with_noise(2, n, reject=False, seed=seed)


def disks(n: int, seed: int) -> Dataset:
    return data.disks(2, 2, n, seed=4, sample=seed)


def parity(n: int, seed: int) -> Dataset:
    return data.parity(4, n, 2, seed=seed)


def sectors(n: int, seed: int, gap: float = 0.2) -> Dataset:
    """Unit vectors of the plane with the label of their quadrant, none within gap of a boundary."""
    rng = np.random.default_rng(seed)
    part = rng.integers(0, 4, n)
    angle = part * np.pi / 2 + rng.uniform(gap, np.pi / 2 - gap, n)
    return Dataset(np.column_stack([np.cos(angle), np.sin(angle)]), 1.0 - 2 * (part % 2), "sectors")


LAWS = {"gaussians": two_gaussians, "xor": xor, "disks": disks, "parity": parity, "sectors": sectors}


def classifiers(known: Facts) -> dict[str, Any]:
    """The max-margin classifiers of a sample, as functions of points."""
    found: dict[str, Any] = {}
    train, hull, ball, flat = known.data, known.margin("f1"), known.margin("f2"), known.margin("linear")
    if hull.lower > 0:
        found["f1"] = hull.primal
    if ball.lower > 0:
        b = np.asarray(ball.extra["alpha"]) * train.y
        found["f2"] = lambda X: ReLU().kernel(X, train.X) @ b
    if flat.lower > 0:
        found["linear"] = lambda X: X @ np.asarray(flat.extra["u"])
    return found


def kind_of(one) -> str:
    who = one.about
    if one.id == "WM-3" or one.id == "WM-2":
        return "linear" if "linear" in who else "f2"
    return "f2" if one.id == "MT-14" else "f1"


BOUNDS = ("MT-7", "MT-14", "CB-22", "WM-1", "WM-2", "WM-3")


@pytest.mark.parametrize(("law", "n"), [(law, n) for law in LAWS for n in (25, 120)])
def test_no_bound_is_below_the_measured_test_error(law: str, n: int):
    checked = 0
    for seed in range(2):
        known, fresh = facts(LAWS[law](n, seed), time_limit=0.4), LAWS[law](TEST, 1000 + seed)
        errors = {name: float((fresh.y * f(fresh.X) <= 0).mean()) for name, f in classifiers(known).items()}
        for id in BOUNDS:
            for one in THEOREMS[id].apply(known) or []:
                assert one.applies is not False, (id, one.assumptions)
                assert one.value >= errors[kind_of(one)] - 3 * math.sqrt(0.25 / TEST), (id, law, errors)
                checked += 1
    assert checked > 0


def test_linear_bounds_cover_the_error_in_many_samples():
    """A law with errors: two wide Gaussians in the plane; exact error of u is Phi(-shift . u)."""
    from scipy.special import ndtr

    least = math.inf
    for seed in range(60):
        train = two_gaussians(60, seed, shift=1.6, d=2)
        cert = margins.linear(train)
        if not cert.lower > 0:
            continue
        u = np.asarray(cert.extra["u"])
        error = float(ndtr(-1.6 * u.sum() / np.linalg.norm(u)))
        size = np.linalg.norm(train.X, axis=1)
        m = train.y * (train.X @ u) / np.linalg.norm(u)
        sharp = g.pac_bayes_margin_bound(m / size, 60)
        loose = g.ball_margin_bound(cert.lower, float((size**2).sum()), 60, unit="M11")
        assert error <= min(float(sharp.value), float(loose.value))
        least = min(least, float(sharp.value))
    assert least < 0.9  # not vacuous even here


def test_bounds_that_say_something():
    """XOR in the plane with n = 2000 (MT's D, d = 2): hull, kernel and PAC-Bayes bounds are below 1, the error is 0."""
    known = facts(xor(2000, 1))
    found = {id: THEOREMS[id].apply(known)[0] for id in ("WM-1", "WM-2", "WM-3", "CB-22", "MT-14", "MT-7")}
    assert not any(found[id].vacuous for id in ("WM-1", "WM-2", "WM-3", "CB-22", "MT-14"))
    assert found["WM-3"].value < 0.08 and found["WM-1"].value < 0.45
    assert found["WM-1"].value < found["CB-22"].value < found["MT-7"].value


def test_a_trained_network_gets_its_own_bound():
    train = sectors(50, 0)
    net = flows.TwoLayer(2, 30)
    run = flows.train(train, net, flows.GD(lr=0.3), loss="logistic", stop=300, seed=1)
    known = facts(train, run, time_limit=5)
    reached = known.normalized("M1")
    assert reached is not None and reached > 0
    for id in ("MT-7", "CB-22", "WM-1", "UH-24", "LR-18"):
        ideal, own = THEOREMS[id].apply(known)
        assert own.about == "trained network" and own.value >= ideal.value
    assert_allclose(THEOREMS["WM-1"].apply(known)[1].numbers["gamma"], reached)
    ramp = THEOREMS["MT-15"].apply(known)
    assert ramp.value <= g.class_margin_bound(ramp.numbers["rademacher"], reached, known.radius, 50).value + 1e-12


# ---------------------------------------------------------------- formulas


def test_printed_formulas():
    n, delta, gamma, C, D = 1000, 0.1, 0.2, 1.5, 1.1
    tail = math.sqrt(math.log(math.log2(4 * C / gamma)) / n) + math.sqrt(math.log(10) / (2 * n))
    found = g.network_margin_bound(gamma, n, D, C, delta, convention="printed")
    assert_allclose(found.value, 6 / gamma * math.sqrt(D / n) + tail)
    rad = 3 * math.sqrt(n * D) / n
    assert_allclose(g.class_margin_bound(rad, gamma, C, n, delta, convention="printed").value, 4 * rad / gamma + tail)
    assert_allclose(
        g.ramp_margin_bound(0.25, rad, gamma, C, n, delta, convention="printed").value, 0.25 + 4 * rad / gamma + tail
    )
    double = 2 * math.log(math.log2(8 * C / gamma))
    mean = math.sqrt(double / (2 * n)) + math.sqrt(math.log(10) / (2 * n))
    assert_allclose(g.class_margin_bound(rad, gamma, C, n, delta, empirical=False).value, 4 * rad / gamma + mean)
    sample = 3 * math.sqrt((math.log(20) + double) / (2 * n))
    assert_allclose(g.class_margin_bound(rad, gamma, C, n, delta).value, 4 * rad / gamma + sample)
    # (6/gamma) sqrt(D/n) is 4 Rad/gamma_alpha at gamma_alpha = 2 gamma (E-MT-6)
    assert_allclose(found.numbers["leading"], 4 * rad / (2 * gamma))
    kernel = g.kernel_margin_bound(gamma, n, 5, D, C, delta)
    assert_allclose(kernel.numbers["leading"], 2 * math.sqrt(2) / gamma * math.sqrt(D / (5 * n)))
    assert not g.kernel_margin_bound(gamma, n, 5, D, C, delta, convention="printed").explicit
    assert_allclose(
        g.fast_rate_l1(gamma, n, delta, 3.0).value, 3 * (math.log(n) ** 3 / (n * gamma**2) + math.log(10) / n)
    )
    assert_allclose(g.fast_rate_l2(gamma / 2, n, delta).value, g.fast_rate_l1(gamma, n, delta).value)


def test_regression_formula_and_conventions():
    printed = g.regression_bound(0.1, 2.0, 30.0, 400, 5, 0.1, c=2.0, M=1.5, convention="printed")
    assert_allclose(printed.value, 0.1 + 12 * 1.5 * 60 / 400 + 2 * math.sqrt((math.log(10) + math.log(120)) / 800))
    ours = g.regression_bound(0.1, 2.0, 30.0, 400, 5, 0.1, c=2.0, M=1.5)
    assert_allclose(ours.value, 0.1 + 2 * 1.5 * 1.5 * 2 * 30 / 400 + 12 * math.sqrt(math.log(2 * 4 / 0.1) / 800))
    kernel = g.regression_bound(0.0, 2.0, 30.0, 400, 5, kind="l2")
    assert_allclose(kernel.numbers["leading"], 2 * 2 * 30 / (400 * math.sqrt(10)))
    assert g.regression_bound(0.0, 2.0, 30.0, 400, 5, lipschitz=False).applies is False
    with pytest.raises(InputError, match="mean_loss"):
        g.regression_bound(3.0, 2.0, 30.0, 400, 5)


def test_regression_bound_covers_the_loss_of_the_interpolant():
    """One ReLU as target: the interpolant of least norm, loss min(1, |f - y|), against fresh points."""
    train = data.one_relu(2, 40, seed=2)
    known = facts(train, time_limit=20)
    both = THEOREMS["MT-22"].apply(known)
    assert both and both[0].about.startswith("interpolant")
    cert = known.margin("min_norm_l1")
    assert cert.lower <= 1 and cert.upper <= (1 + 1e-3)  # the target itself has norm 1, and tol is 1e-3
    u = np.random.default_rng(2).standard_normal(2)
    X = np.random.default_rng(9).standard_normal((TEST, 2))
    loss = np.minimum(1, np.abs(cert.primal(X) - (X @ u / np.linalg.norm(u)).clip(0))).mean()
    assert loss <= both[0].value


def test_the_union_over_margins():
    """The shares of delta add up to 1, the grid margin is the largest below gamma, and derived terms follow from the union."""
    j = np.arange(-(10**6), 10**6 + 1)
    assert_allclose((2 / (3 * (np.abs(j) + 1.0) * (np.abs(j) + 2))).sum(), 1, rtol=1e-5)
    for gamma in (1.0, 0.99, 1.2, 0.3, 7.3, 1e-6):
        m, share = g.grid_margin(gamma, 1.0, 1.2)
        assert gamma / 1.2 < m * (1 + 1e-12) and m <= gamma and 0 < share <= 1 / 3
    # margins C 2^(1-j) with shares 1/(j(j+1)): the one used for gamma, term by term, is at most what is claimed
    for gamma in np.geomspace(1e-4, 1, 50):
        C, n, delta, rad = 1.0, 500, 0.05, 0.01
        j = 1 + math.ceil(math.log2(C / gamma) - 1e-12)
        m, share = C * 2.0 ** (1 - j), delta / (j * (j + 1))
        exact = 2 * rad / m + g.deviation(n, share)
        assert exact <= g.class_margin_bound(rad, gamma, C, n, delta).value + 1e-12
        mean = 2 * rad / m + g.deviation(n, share, empirical=False)
        assert mean <= g.class_margin_bound(rad, gamma, C, n, delta, empirical=False).value + 1e-12
    assert sum(1 / k**2 for k in range(1, 1000)) > 1.6  # the shares that the printed 4C would need


def test_bounds_fall_with_n_and_margin():
    for make in (
        lambda gamma, n: g.network_margin_bound(gamma, n, 1.0, 1.0).value,
        lambda gamma, n: g.kernel_margin_bound(gamma, n, 3, 1.0, 1.0).value,
        lambda gamma, n: g.fast_rate_l1(gamma, n).value,
        lambda gamma, n: g.fast_rate_l2(gamma, n).value,
        lambda gamma, n: g.hull_margin_bound(gamma, math.sqrt(n), n).value,
        lambda gamma, n: g.ball_margin_bound(gamma, float(n), n).value,
        lambda gamma, n: g.pac_bayes_margin_bound(gamma, n).value,
    ):
        assert make(0.2, 4000) < make(0.2, 400) and make(0.3, 400) < make(0.1, 400)
    fixed = g.hull_margin_bound(0.2, 20.0, 400, fixed=True)
    grid = g.hull_margin_bound(0.2, 20.0, 400)
    known = g.hull_margin_bound(0.2, 20.0, 400, radius=1.0)
    assert fixed.value < grid.value and known.value < grid.value


def test_kl_inverse():
    for p, c in ((0.0, 0.1), (0.1, 0.05), (0.5, 0.3), (0.9, 1e-3)):
        q = g.kl_inverse(p, c)
        first = p * math.log(p / q) if p else 0.0
        assert q >= p and abs(first + (1 - p) * math.log((1 - p) / (1 - q)) - c) < 1e-9
    assert_allclose(g.kl_inverse(0.0, 0.1), -math.expm1(-0.1))
    assert g.kl_inverse(0.3, 0.0) == 0.3 and g.kl_inverse(1.0, 0.5) == 1.0


def test_pac_bayes_gibbs_classifier():
    """The Gaussian classifier errs with probability Phi(-mu m); where w errs, with at least 1/2."""
    rng = np.random.default_rng(0)
    w, psi = rng.standard_normal(4), rng.standard_normal((200, 4))
    w, psi = w / np.linalg.norm(w), psi / np.linalg.norm(psi, axis=1, keepdims=True)
    drawn = 3.0 * w + rng.standard_normal((20_000, 4))
    often = (drawn @ psi.T < 0).mean(axis=0)
    from scipy.special import ndtr

    assert np.abs(often - ndtr(-3 * psi @ w)).max() < 5 * math.sqrt(0.25 / 20_000)
    with pytest.raises(InputError, match="between -1 and 1"):
        g.pac_bayes_margin_bound(2.0, 10)


def test_ramp_loss():
    assert_allclose(g.ramp_loss([-1, 0, 0.5, 1, 2], 1.0), [1, 1, 0.5, 0, 0])


def test_projected_distance():
    found = g.projected_distance_bound(0.5, 2.0, 2, 400, 0.1, eps=0.5, C_eps=3.0, C_2=1.5)
    B = math.log2(4 * 3 * 1.5) + 4 * math.log2(4)
    expected = 3 / 20 * 4 ** (5 / 1.5) + math.sqrt(math.log(B) / 400) + math.sqrt(math.log(10) / 800)
    assert_allclose(found.value, expected)
    assert not found.explicit and found.applies is None
    assert g.projected_distance_bound(0.5, 2.0, 2, 400, space="f2", d=3).applies is False
    assert g.projected_distance_bound(1e-30, 1.0, 60, 400).value == math.inf  # beyond every float
    margin = g.projected_distance_margin(0.5, 2.0, 2, C_eps=3.0, radius=2.5)
    assert_allclose(margin.value, min(1, 3 * 0.25 ** (5 / 1.5)))
    assert margin.applies is False and margin.unit == "M3"
    known = facts(disks(60, 0))
    X, y = known.data.X, known.data.y
    nearest = min(np.linalg.norm(a - b) for a in X[y > 0] for b in X[y < 0])
    for id in ("CB-20", "CB-21"):
        found = THEOREMS[id].apply(known)
        assert [one.numbers["r"] for one in found] == [*range(1, min(2, known.d - 1) + 1), known.d]
        assert all(f"r = {one.numbers['r']}" in one.statement for one in found)
        assert_allclose(found[-1].numbers["Delta"], nearest)
        for one in found[:-1]:  # a low rank keeps less distance, and its exponent costs less
            cert = margins.projected(known.data, one.numbers["r"])
            assert 0.9 * cert.lower <= one.numbers["Delta"] <= cert.upper <= nearest * (1 + 1e-9)
            assert one.numbers["exponent"] == (one.numbers["r"] + 3) / 1.5


ORDERS = {"CB-20", "CB-21", "UH-24", "LR-18"}


def refuted() -> list[tuple[Dataset, list[Any]]]:
    """Cubes with the parity of two bits, turned and with a few corners left out, and their orders. The classes are at least as
    far apart as the points are long, so CB-21 with constant 1 says 1; the certified margin is below a half."""
    found = []
    for d, seed in ((2, 0), (2, 1), (3, 2), (3, 3)):
        rng = np.random.default_rng(seed)
        turn, _ = np.linalg.qr(rng.standard_normal((d, d)))
        cube = data.parity(d=d, k=2, n=2**d, marginal="full")
        kept = rng.permutation(2**d)[: 2**d - seed % 2]
        points = Dataset(cube.X[kept] @ turn, cube.y[kept], f"cube {d} {seed}")
        given = guarantees(points, theorems=sorted(ORDERS), time_limit=5)
        top = margins.f1(points, bias=True, time_limit=5).upper
        assert any(one.quantity == "margin" and one.value > 2 * top for one in given)
        found.append((points, list(given)))
    return found


def test_an_order_is_never_shown_as_a_number(monkeypatch, capsys):
    """A certificate refutes the margin that CB-21 gives with constant 1; so nothing shows it as it stands, or calls it useful."""
    for points, given in refuted():
        assert {one.id for one in given} >= {"CB-20", "CB-21"}
        whole = Guarantees(facts(points), tuple(given))
        assert whole.best is None
        for one in given:
            assert not one.explicit and one.vacuous
            bare = f"{one.value:.5g}"
            assert f"{bare} up to a constant" in str(one) and one.shown == f"{bare} up to a constant"
            said = one.to_dict()
            assert said["value"] == {"up_to_a_constant": one.value} and said["vacuous"] is True
        part = section.Section("order", "", 1)
        monkeypatch.setattr(theory, "guarantees", lambda *_, whole=whole, **__: whole)
        report_guarantees.show(part, points, None)
        page = part.render()
        monkeypatch.setattr(command.datasets, "load", lambda *_, points=points: points)
        assert cli.main(["bound", "x"]) == 0
        table = capsys.readouterr().out
        assert cli.main(["bound", "x", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["guarantees"] == [one.to_dict() for one in given]
        for text, each in ((page, "</td>"), (table, "\u2502")):
            cells = [cell for cell in text.split(each) if "up to a constant" in cell]
            for one in given:
                assert any(one.shown in " ".join(cell.split()) for cell in cells), one
                own = [cell for cell in text.split(each) if f"{one.value:.5g}" == cell.rsplit(">", 1)[-1].strip()]
                assert not own, one
        assert (
            "No bound on the test error says anything here: all are at least 1, up to a constant, or" in table
            and "No bound on the test error" in page
        )


def test_a_grid_through_the_margin_was_not_fixed_before_the_data():
    """With scale = gamma the union bound pays for one margin only, which the sample chose."""
    words = [
        (g.hull_margin_bound(0.2, 20.0, 400), "yes"),
        (g.hull_margin_bound(0.2, 20.0, 400, scale=0.2), "no"),
        (g.hull_margin_bound(0.2, 20.0, 400, scale=0.5), "not checked"),
        (g.hull_margin_bound(0.2, 20.0, 400, ratio=1.01), "not checked"),
        (g.hull_margin_bound(0.2, 20.0, 400, fixed=True), "yes"),
        (g.ball_margin_bound(0.2, 400.0, 400, scale=0.2), "no"),
        (g.ball_margin_bound(1.0, 400.0, 400), "yes"),  # a margin of 1 on a grid through 1
        (g.regression_bound(0.0, 3.0, 20.0, 400, 2), "yes"),
        (g.regression_bound(0.0, 3.0, 20.0, 400, 2, scale=3.0), "no"),
        (g.regression_bound(0.0, 3.0, 20.0, 400, 2, convention="printed"), "no"),
    ]
    for one, word in words:
        (grid,) = [each for each in one.assumptions if "before the data" in each.text]
        assert grid.word == word, one
        assert (one.applies is False) == (word == "no")
    # What the choice saves is what the union would have cost: a share of 1/3 instead of that of the grid's entry.
    honest, cheat = words[0][0], words[1][0]
    _, share = g.grid_margin(0.2, 1.0, g.GRID)
    assert_allclose(honest.numbers["deviation"], g.deviation(400, 0.05 * share))
    assert_allclose(cheat.numbers["deviation"], g.deviation(400, 0.05 / 3))
    assert cheat.value < honest.value


@pytest.mark.parametrize(
    "found",
    [
        g.network_margin_bound(0.9, 100, 1.0, 1.0),  # an M1 margin of 1.8 above C = 1
        g.kernel_margin_bound(0.9, 100, 2, 1.0, 1.0),
        g.class_margin_bound(0.1, 2.0, 1.0, 100),
        g.ramp_margin_bound(0.0, 0.1, 2.0, 1.0, 100),
        g.fast_rate_l1(0.1, 100, radius=2.0),
        g.fast_rate_l2(0.1, 100, radius=2.0),
        g.hull_margin_bound(0.1, 30.0, 100, radius=1.0),  # the sample is longer than the radius
        g.ball_margin_bound(0.1, 900.0, 100, radius=1.0),
    ],
    ids=lambda one: one.id,
)
def test_a_failed_assumption_is_said(found):
    assert found.applies is False


def test_bad_input():
    with pytest.raises(InputError, match="gamma must be a positive number"):
        g.network_margin_bound(-0.1, 100, 1.0, 1.0)
    with pytest.raises(InputError, match="strictly between 0 and 1"):
        g.class_margin_bound(0.1, 0.1, 1.0, 100, delta=1.5)
    with pytest.raises(InputError, match="derived or printed"):
        g.network_margin_bound(0.1, 100, 1.0, 1.0, convention="other")
    with pytest.raises(InputError, match="ratio"):
        g.hull_margin_bound(0.1, 10.0, 100, ratio=1.0)


def test_regression_data_have_no_test_error_bound():
    known = facts(data.one_relu(2, 10))
    assert all(THEOREMS[id].apply(known) is None for id in (*BOUNDS, "MT-15", "UH-24", "LR-18", "CB-20"))
