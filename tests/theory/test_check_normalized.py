"""BN's checks hold on small runs of batch-normalised networks, and fail on runs whose records were changed."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from along_runs import bare, check_fails, check_holds, parts, spoil

from checks import grouped
from widemargin import flows
from widemargin.theory import check_normalized as checks
from widemargin.theory import normalized_run
from widemargin.theory.inequality import CHECKS
from widemargin.theory.track import Track, follow
from widemargin.types import Dataset

STEPS = 120
ALL = ["default", "weights"]


def small() -> Dataset:
    """Points with |x - mu| <= 1."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((10, 3))
    X /= np.linalg.norm(X - X.mean(0), axis=1).max()
    return Dataset(X, np.sign(X[:, 0] * X[:, 1]), "small")


def run(rule: flows.Rule, eps: float, **options: object) -> Track:
    data = small()
    net = flows.make_net("batchnorm", 3, 40, data=data.X, eps=eps)
    options = {"steps": STEPS, "times": range(STEPS + 1), "observe": ALL, "trials": 2, "seed": 3} | options
    traj = flows.train(data, net, rule, loss="logistic", **grouped(**options))
    return follow(traj, data)


@pytest.fixture(scope="module")
def descent() -> Track:
    return run(flows.GD(lr=1e-3), 0.02)


@pytest.fixture(scope="module")
def stochastic() -> Track:
    return run(flows.SGD(lr=1e-3), 0.02)


@pytest.fixture(scope="module")
def fast() -> Track:
    return run(flows.GD(lr=0.1), 0.0)


def still(track: Track) -> Track:
    """Records that say that nothing has moved, while the weights have."""
    return spoil(track, moved_a=np.zeros_like, moved_c=np.zeros_like, moved_V=np.zeros_like)


# ---------------------------------------------------------------- what the checks compute


def test_derivatives_against_autodiff(descent: Track) -> None:
    B = normalized_run.BatchNormed(descent)
    k = STEPS
    assert descent.W is not None
    W = {name: descent.W[k][name].clone().requires_grad_() for name in ("a", "c", "V")}
    p = descent.problem.margins(W)
    np.testing.assert_allclose(B.p[k], p.detach().numpy(), rtol=1e-12)
    direction = torch.randn(W["V"].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for i in (0, 7):
        g = torch.autograd.grad(p[:, i].sum(), list(W.values()), retain_graph=True)
        np.testing.assert_allclose(B.d_a[k][:, i], g[0], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(B.d_c[k][:, i], g[1], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(B.norm2_V[k][:, i], (g[2] ** 2).sum((1, 2)), rtol=1e-9)
        turned = np.broadcast_to(direction.numpy(), B.W["V"].shape)
        np.testing.assert_allclose(B.along_V(turned)[k][:, i], (g[2] * direction).sum((1, 2)), rtol=1e-9, atol=1e-12)


def test_comparator_is_the_hard_margin(descent: Track) -> None:
    B = normalized_run.BatchNormed(descent)
    avec, cvec, gamma_a, gamma_c = B.comparator
    np.testing.assert_allclose(np.linalg.norm(avec, axis=1), 1)
    on = B.P0 > 0
    for u, gamma, Z in ((avec, gamma_a, B.P0 * on), (cvec, gamma_c, B.first["a"][:, None, :] * B.P0 * on)):
        for b in range(2):
            scores = B.y[0] * (Z[b] @ u[b])
            assert scores.min() == pytest.approx(gamma[b] * np.sqrt(40), rel=1e-8)
            # weak duality: any weights bound the margin from above; a few steps of Frank and Wolfe come close
            q, signed = np.full(10, 0.1), B.y[0][:, None] * Z[b]
            for k in range(5000):
                q += 2 / (k + 2) * (np.eye(10)[np.argmin(signed @ (signed.T @ q))] - q)
            bound = np.linalg.norm(signed.T @ q) / np.sqrt(40)
            assert gamma[b] <= bound * (1 + 1e-9) and bound <= 1.02 * gamma[b] + 1e-4
    assert (gamma_c < gamma_a).all()


# ---------------------------------------------------------------- the checks


@pytest.mark.parametrize("name", ["descent", "fast"])
def test_euler_identities(name: str, request: pytest.FixtureRequest) -> None:
    track = request.getfixturevalue(name)
    check_holds(checks.euler(track), "BN-3", "BN-3 a", "BN-3 c")
    B = normalized_run.BatchNormed(track)
    assert (B.eps == 0) == (name == "fast")

    class Wrong(normalized_run.BatchNormed):  # the check notices a wrong epsilon
        eps = 0.01  # type: ignore[assignment]

    before = normalized_run.BatchNormed
    normalized_run.BatchNormed = Wrong  # type: ignore[misc]
    try:
        check_fails(checks.euler(track), "BN-3")
    finally:
        normalized_run.BatchNormed = before  # type: ignore[misc]


def test_sigma_norms(descent: Track, fast: Track) -> None:
    for track in (descent, fast):
        check_holds(checks.sigma_norms(track), "BN-13", "BN-13 norm", "BN-13 Sigma", "BN-13 N")
    B = normalized_run.BatchNormed(fast)
    x, Sigma = B.statistics
    np.testing.assert_allclose(Sigma[0], x[0].T @ x[0] / 10, atol=1e-14)


def test_points_outside_the_unit_ball_are_not_checked(descent: Track) -> None:
    data = small()
    wide = Dataset(2 * data.X, data.y, "wide")
    net = flows.make_net("batchnorm", 3, 20, data=wide.X)
    track = follow(flows.train(wide, net, flows.GD(lr=1e-3), stop=3, record=ALL, trials=1), wide)
    assert parts(checks.sigma_norms(track))["BN-13 norm"].holds is None
    assert parts(checks.alignment(track))["BN-19"].holds is None


def test_normalizers_near_the_start(descent: Track) -> None:
    ids = ("BN-14", "BN-14 difference", "BN-14 projection", "BN-14 ratio")
    found = check_holds(checks.normalizers_near(descent), *ids)
    assert found["BN-14"].checked > 50
    check_fails(checks.normalizers_near(still(descent)), "BN-14")
    check_fails(checks.normalizers_near(spoil(descent, W_V=lambda V: 0.5 * V)), "BN-14")


def test_preactivations(descent: Track) -> None:
    ids = ("BN-17", "BN-17 (2)", "BN-17 (5)", "BN-17 printed")
    check_holds(checks.preactivations(descent), *ids)

    class Close(normalized_run.BatchNormed):  # a constant K that is too small is noticed
        K = property(lambda self: 0.02 * self.rho_N * self.eps_N)  # type: ignore[assignment]

    before = normalized_run.BatchNormed
    normalized_run.BatchNormed = Close  # type: ignore[misc]
    try:
        check_fails(checks.preactivations(descent), "BN-17")
    finally:
        normalized_run.BatchNormed = before  # type: ignore[misc]


def test_small_terms(descent: Track) -> None:
    found = check_holds(checks.small_terms(descent), "BN-18", "BN-18 polynomial")
    assert found["BN-18 printed"].note == checks.PRINTED and found["BN-18 printed"].holds is False
    check_fails(checks.small_terms(still(spoil(descent, W_a=lambda a: a + 30))), "BN-18")


def test_alignment(descent: Track, fast: Track) -> None:
    found = check_holds(checks.alignment(descent), "BN-19", "BN-19 (1)")
    assert found["BN-19"].smallest["slack"] == pytest.approx(0, abs=1e-9)  # equality at the start
    assert found["BN-19 (2)"].holds is None  # needs a width far beyond this one
    check_holds(checks.alignment(fast), "BN-19")
    check_fails(checks.alignment(still(spoil(descent, W_c=lambda c: -c))), "BN-19", "BN-19 (1)")


def test_gradient_norms(descent: Track) -> None:
    found = check_holds(checks.gradient_norms(descent), "BN-20", "BN-20 V", "BN-20 risk U", "BN-20 risk V")
    for id in ("BN-20 (E.1)", "BN-20 (F.3)", "BN-20 (F.3) V"):
        assert found[id].holds is not False
    grown = still(spoil(descent, W_c=lambda c: 1e3 * c))
    check_fails(checks.gradient_norms(grown), "BN-20", "BN-20 V")


def test_perceptron_argument(descent: Track, stochastic: Track, fast: Track) -> None:
    for track in (descent, stochastic, fast):
        check_holds(checks.perceptron(track), "BN-21", "BN-21 measured")
    few = spoil(stochastic, moved_a=lambda a: 1e-3 * a, moved_c=lambda c: 1e-3 * c)
    check_fails(checks.perceptron(few), "BN-21", "BN-21 measured")
    without = bare(stochastic)
    assert parts(checks.perceptron(without))["BN-21"].holds is not False
    assert (
        checks.perceptron(replace(descent, run=replace(descent.run, records=without.run.records | {"slopes": None})))
        is None
    )


def test_potential(descent: Track, stochastic: Track, fast: Track) -> None:
    for track in (descent, stochastic, fast):
        found = check_holds(checks.potential(track), "BN-12")
        assert found["BN-12"].checked == 2 * (STEPS + 1)
    # GD: the sum of the exact first-order terms and squares is the potential itself, so the bound is not far above
    gd = parts(checks.potential(descent))["BN-12"]
    assert gd.slack[-1].max() < 20 * np.abs(gd.left[-1]).max() + 1
    check_fails(checks.potential(spoil(descent, moved_a=lambda a: a + 10)), "BN-12")


def test_martingale(stochastic: Track, descent: Track) -> None:
    check_holds(checks.martingale(stochastic), "BN-22")
    check_fails(checks.martingale(spoil(stochastic, slopes=lambda s: 1e-3 * s)), "BN-22")
    assert checks.martingale(descent) is None


def test_trapped(descent: Track, fast: Track) -> None:
    found = check_holds(checks.trapped(descent), "BN-25")["BN-25"]
    assert found.numbers["largest_moved_U"][0] > found.numbers["largest_moved_V"][0]
    check_holds(checks.trapped(fast), "BN-25")
    unit = normalized_run.BatchNormed(descent)
    assert (unit.R < 8).all()  # the theorem's own radius needs another width (E-BN-3)
    check_fails(checks.trapped(still(fast)), "BN-25")


def test_checks_say_nothing_elsewhere() -> None:
    data = small()
    traj = flows.train(data, flows.make_net("relu", 3, 6), flows.GD(lr=0.1), stop=3, record=ALL, trials=1)
    track = follow(traj, data)
    own = [one for one in CHECKS.values() if one.function.__module__ == checks.__name__]
    ids = {"BN-3", "BN-12", "BN-13", "BN-14", "BN-17", "BN-18", "BN-19", "BN-20", "BN-21", "BN-22", "BN-25"}
    assert {one.id for one in own} == ids
    assert all(one.function(track) is None for one in own)
