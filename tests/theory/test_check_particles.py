"""MT's checks hold on small runs of particles and of the weakly regularised path, and fail on changed records."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from along_runs import at, check_holds, parts, spoil

from checks import grouped
from widemargin import flows
from widemargin.flows.rules import distributional_objective
from widemargin.theory import check_particles as checks
from widemargin.theory.inequality import CHECKS
from widemargin.theory.track import Track, follow
from widemargin.types import Dataset, InputError

ALL = ["default", "weights"]
STEPS = 150
EVERY = ("E.6", "E.7", "E.8", "E.9", "E.10", "E.11", "E.12", "E.13", "E.14", "E.15", "E.20", "(E.13)")


def square() -> Dataset:
    rng = np.random.default_rng(2)
    X = rng.uniform(-1, 1, (6, 2))
    return Dataset(X, np.sign(X[:, 0] - 0.2), "square")


def run(rule: flows.Rule, m: int = 30, data: Dataset | None = None, **options: object) -> Track:
    data, net = data or square(), flows.make_net("relu", 2, m, law="sphere")
    options = {"steps": STEPS, "times": range(STEPS + 1), "trials": 2, "observe": ["step", "weights"]} | options
    traj = flows.train(data, net, rule, loss="logistic", seed=5, **grouped(**options))
    return follow(traj, data)


@pytest.fixture(scope="module")
def plain() -> Track:
    return run(flows.WassersteinFlow(eta=0.02, lam=0.02))


@pytest.fixture(scope="module")
def heun() -> Track:
    return run(flows.WassersteinFlow(eta=0.05, lam=0.02, scheme="continuous", reduction="mean"))


@pytest.fixture(scope="module")
def noisy() -> Track:
    return run(flows.PerturbedWassersteinFlow(eta=0.02, lam=0.1, sigma=0.05))


@pytest.fixture(scope="module")
def path() -> Track:
    data, net = square(), flows.make_net("relu", 2, 8)
    rule = flows.WeaklyRegularized(last=1e-5, inner=80)
    traj = flows.train(data, net, rule, loss="logistic", stop=1000, record=flows.Record(ALL, points=5), trials=2)
    return follow(traj, data)


# ---------------------------------------------------------------- what the checks compute


@pytest.mark.parametrize("name", ["plain", "heun"])
def test_particles_against_the_rule_and_autodiff(name: str, request: pytest.FixtureRequest) -> None:
    track = request.getfixturevalue(name)
    P, k = checks.Particles(track), 40
    W = {one: value.clone().requires_grad_() for one, value in track.W[k].items()}
    L = distributional_objective(track.problem, W, 0.02, track.options["reduction"])
    np.testing.assert_allclose(P.L[k], L.detach(), rtol=1e-12)
    g = torch.autograd.grad(L.sum(), [W["a"], W["V"]])
    np.testing.assert_allclose(P.v[k][..., 0], -30 * g[0].numpy(), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(P.v[k][..., 1:], -30 * g[1].numpy(), rtol=1e-9, atol=1e-12)
    # L' is the derivative of L by the mass of a particle: of mass 1/m + h instead of 1/m
    h, b, j = 1e-6, 1, 3
    grown = {one: value.detach().clone() for one, value in W.items()}
    for value in grown.values():
        value[b, j] *= np.sqrt(1 + 30 * h)
    change = distributional_objective(track.problem, grown, 0.02, track.options["reduction"]) - L
    assert float(change.detach()[b]) / h == pytest.approx(P.slope[k, b, j], rel=1e-3, abs=1e-5)


def test_mean_slope_on_the_sphere_is_lambda(plain: Track) -> None:
    P = checks.Particles(plain)
    error = P.slope_on_sphere.std() / np.sqrt(checks.POINTS)
    assert np.abs(P.slope_on_sphere.mean(2) - 0.02).max() < 5 * error


# ---------------------------------------------------------------- particles


@pytest.mark.parametrize("name", ["plain", "heun", "noisy"])
def test_particles_move_along_the_velocity(name: str, request: pytest.FixtureRequest) -> None:
    track = request.getfixturevalue(name)
    found = check_holds(checks.particle_steps(track), "MT-25")
    assert (sum(found["MT-25"].numbers["births"]) > 0) == (name == "noisy")
    assert parts(checks.particle_steps(spoil(track, W_V=at(60, 1.001))))["MT-25"].holds is False


def test_number_of_births(noisy: Track) -> None:
    check_holds(checks.particle_steps(noisy), "MT-26")
    more = {**noisy.run.config, "rule": {**noisy.options, "sigma": 1.0}}
    assert parts(checks.particle_steps(replace(noisy, run=replace(noisy.run, config=more))))["MT-26"].holds is False


@pytest.mark.parametrize("name", ["plain", "heun", "noisy"])
def test_inequalities_of_the_perturbed_flow(name: str, request: pytest.FixtureRequest) -> None:
    track = request.getfixturevalue(name)
    found = check_holds(checks.perturbed_flow(track), *(f"MT-30 {part}" for part in EVERY))
    assert ("MT-30 E.16" in found) == (name == "noisy")
    if name != "noisy":  # E.7 is an identity: what is allowed is a small part of what happened
        P = checks.Particles(track)
        assert found["MT-30 E.7"].right.max() < 0.3 * (P.L[0] - P.L[-1]).max()


def test_changed_weights_are_noticed(plain: Track, noisy: Track) -> None:
    for track in (plain, noisy):
        jumped = spoil(track, W_a=at(70, 3.0), W_V=at(70, 3.0))
        found = parts(checks.perturbed_flow(jumped))
        assert found["MT-30 E.7"].holds is False
    grown = spoil(plain, W_a=at(70, 30.0), W_V=at(70, 30.0))
    assert parts(checks.perturbed_flow(grown))["MT-30 E.9"].holds is False
    assert parts(checks.perturbed_flow(grown))["MT-30 E.10"].holds is False


CONSTANTS = [("B_L", "E.6"), ("B_L", "E.8"), ("sizes", "E.11"), ("B_Phi", "E.12"), ("c_2", "E.13"), ("c_2", "E.14")]


@pytest.mark.parametrize(("constant", "part"), CONSTANTS)
def test_constants_that_are_too_small_are_noticed(
    constant: str, part: str, noisy: Track, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = checks.Particles(noisy)
    known = {name: getattr(true.constants, name) for name in ("C_R", "B_Phi", "B_L", "c_1", "c_2")}
    if constant in known:
        small = SimpleNamespace(**known | {constant: 1e-3 * known[constant]})
        monkeypatch.setattr(checks.Particles, "constants", property(lambda self: small))
    else:
        sizes = 1e-3 * true.sizes
        monkeypatch.setattr(checks.Particles, "sizes", property(lambda self: sizes))
    assert parts(checks.perturbed_flow(noisy))[f"MT-30 {part}"].holds is False


@pytest.mark.parametrize("part", ["E.15", "E.20", "(E.13)"])
def test_wrong_slopes_are_noticed(part: str, plain: Track, monkeypatch: pytest.MonkeyPatch) -> None:
    true = checks.Particles(plain).slope
    wrong = true - 5.0 if part == "(E.13)" else 3 * true
    monkeypatch.setattr(checks.Particles, "slope", property(lambda self: wrong))
    assert parts(checks.perturbed_flow(plain))[f"MT-30 {part}"].holds is False


def test_descent_after_the_time_of_e16(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rate of births so small that its cost is below tau / 4, and a run longer than the time of the lemma."""
    # One label: L' is steep, and the lemma's time short.
    X = np.array([[2.0, 0.1], [2.0, -0.1], [1.9, 0.2], [2.1, 0.0]])
    rule = flows.PerturbedWassersteinFlow(eta=0.02, lam=0.1, sigma=1e-9)
    track = run(rule, 8, Dataset(X, np.ones(4), "one"), steps=1200, times=range(0, 1201, 4), trials=1)
    check_holds(checks.perturbed_flow(track), "MT-30 E.16")
    rising = checks.Particles(track).L + 0.05 * np.arange(len(track.t))[:, None]
    monkeypatch.setattr(checks.Particles, "L", property(lambda self: rising))
    assert parts(checks.perturbed_flow(track))["MT-30 E.16"].holds is False


# ---------------------------------------------------------------- the path


def test_weak_path(path: Track) -> None:
    found = check_holds(checks.weak_path(path), "MT-4", "MT-4 lower", "MT-4 upper")
    assert found["MT-4"].t[0] == pytest.approx(1e-3) and found["MT-4"].t[-1] == pytest.approx(1e-5)
    assert found["MT-4"].numbers["shortfall"][0] >= 0
    assert parts(checks.weak_path(spoil(path, path_loss=lambda v: v - 1)))["MT-4 lower"].holds is False
    assert parts(checks.weak_path(spoil(path, path_loss=lambda v: v + 5)))["MT-4 upper"].holds is False
    assert parts(checks.weak_path(spoil(path, path_margin=lambda v: v * 0.3)))["MT-4"].holds is False


def test_records_of_a_path_in_a_run_of_another_rule(path: Track) -> None:
    """Parts of two runs, put together."""
    config = path.run.config | {"rule": {"class": "CoordinateDescent", "lr": 0.01}}
    other = replace(path, run=replace(path.run, config=config))
    assert not checks.weak_path(other)
    with pytest.raises(InputError, match="of a rule with first, which CoordinateDescent has not"):
        other.options["first"]


def test_weak_path_of_sums_is_that_of_means() -> None:
    data, net = square(), flows.make_net("relu", 2, 8)
    rule = flows.WeaklyRegularized(first=6e-3, last=6e-5, reduction="sum", inner=60)
    traj = flows.train(data, net, rule, loss="logistic", stop=1000, trials=1, record=flows.Record(points=5))
    found = check_holds(checks.weak_path(follow(traj, data)), "MT-4", "MT-4 lower", "MT-4 upper")
    np.testing.assert_allclose(found["MT-4"].t, [1e-3, 1e-4, 1e-5])


def test_checks_say_nothing_elsewhere() -> None:
    data = square()
    traj = flows.train(data, flows.make_net("relu", 2, 6), flows.GD(lr=0.1), stop=3, record=ALL, trials=1)
    track = follow(traj, data)
    own = [one for one in CHECKS.values() if one.function.__module__ == checks.__name__]
    assert {one.id for one in own} == {"MT-4", "MT-25", "MT-30"}
    assert all(one.function(track) is None for one in own)
