"""Reproductions of CB at a tiny scale: files, verdicts, and that wrong input makes verdicts false."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from widemargin import flows, margins
from widemargin.data import disks
from widemargin.papers import REPRODUCTIONS, UNDECIDED, Job, Outcome, Verdict, cb, run
from widemargin.papers.reproduction import HOLDS

TINY: dict[str, dict[str, Any]] = {
    "cb-1": {"k": 2, "n": 10, "m": 40, "steps": 1500, "lr": 0.5, "lr_output": 4.0, "sets": 1, "tol": 0.02, "grid": 61},
    "cb-2a": {"k": 3, "n": 1000},
    "cb-2b": {"ns": (32, 64), "d": 12, "m": 64, "steps": 1500, "lr": 1.0, "lr_output": 2.0, "trials": 4, "test": 500},
    "cb-2c": {"ds": (4, 10), "n": 40, "m": 50, "steps": 300, "lr": 0.5, "lr_output": 2.0, "trials": 4, "test": 500},
    "cb-2d": {
        "ms": (2, 16),
        "n": 12,
        "d": 4,
        "steps": 300,
        "lr": 0.5,
        "trials": 3,
        "certified": 1,
        "tol": 0.02,
        "seconds": 10,
    },
    "cb-3": {"n": 8, "m": 40, "scale": 40.0, "step": 4.0, "steps": 2000, "tol": 0.02, "grid": 41},
    "cb-4": {"n": 12, "m": 60, "steps": 500, "step": 8e-3, "ratio": 3.0},
    "cb-rates": {"d": 2, "n": 4, "m": 16, "r0": 10.0, "steps": 300, "trials": 2},
}
LONG = ("cb-1", "cb-2b", "cb-2d", "cb-3", "cb-rates")

pytestmark = pytest.mark.usefixtures("one_thread", "tiny")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cb, "SIZES", {id: {"quick": size, "paper": size} for id, size in TINY.items()})


def claim(verdicts: Any, part: str) -> Verdict:
    (found,) = (one for one in verdicts if part in one.claim)
    return found


def outcome(id: str) -> Outcome:
    return REPRODUCTIONS[id].function(Job())


def test_every_size_has_both_scales():
    assert set(cb.SIZES) == {id for id, one in REPRODUCTIONS.items() if one.paper == "CB"}


@pytest.mark.parametrize("id", [pytest.param(id, marks=pytest.mark.slow) if id in LONG else id for id in sorted(TINY)])
def test_files_and_verdicts(id: str, tmp_path: Path):
    verdicts = run(REPRODUCTIONS[id], tmp_path)
    folder = tmp_path / id
    for name in ("figure.png", "figure.pdf", "data.npz", "settings.json", "verdict.json", "README.md"):
        assert (folder / name).stat().st_size > 0
    written = json.loads((folder / "verdict.json").read_text())
    assert len(written) == len(verdicts) >= 3
    assert {one["holds"] for one in written} <= set(HOLDS)
    assert all(one.reason for one in verdicts if one.holds == UNDECIDED)
    with np.load(folder / "data.npz") as data:
        assert data.files


def test_a_second_run_computes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = run(REPRODUCTIONS["cb-2c"], tmp_path)

    def never(*args: Any, **keys: Any) -> Any:
        raise AssertionError("trained again")

    monkeypatch.setattr(flows, "train", never)
    assert run(REPRODUCTIONS["cb-2c"], tmp_path) == first


def test_output_layer_passed_off_as_both_is_noticed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(cb.ARMS, "both", "output")
    size = TINY["cb-2b"] | {"steps": 100, "lr": 2.0}
    monkeypatch.setitem(cb.SIZES["cb-2b"], "quick", size)
    wrong = claim(outcome("cb-2b").verdicts, "below that of the output layer")
    assert wrong.holds is False
    assert wrong.measured == 0


@pytest.mark.slow
def test_both_layers_are_better_where_they_are_both_layers():
    assert claim(outcome("cb-2b").verdicts, "below that of the output layer").holds is True


@pytest.mark.parametrize("margin, sound", [(1.0, True), (1e-3, False)])
def test_a_wrong_certificate_is_noticed(margin: float, sound: bool, monkeypatch: pytest.MonkeyPatch):
    bounds = SimpleNamespace(lower=0.99 * margin, upper=margin, proved=True)
    monkeypatch.setattr(cb, "certified_f1", lambda *args: bounds)
    assert claim(outcome("cb-2d").verdicts, "exceeds the certified").holds is sound


@pytest.mark.slow
def test_output_layer_in_the_plane_is_noticed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(cb.ARMS, "both", "output")
    verdicts = outcome("cb-1").verdicts
    assert claim(verdicts, "Solutions in F1 are sparse").holds is False
    assert claim(verdicts, "over the certified maximum").holds is False
    assert claim(outcome("cb-2d").verdicts, "Corollary 4").holds is False


def test_bounds_of_the_propositions_can_be_broken(monkeypatch: pytest.MonkeyPatch):
    verdicts = outcome("cb-rates").verdicts
    assert claim(verdicts, "Proposition 6: the bound").holds is True
    assert claim(verdicts, "Proposition 7: the bound").holds is True
    for name in ("frozen_ascent_margin", "output_ascent_margin"):
        right = getattr(cb, name)

        def raised(*args: Any, right: Any = right, **keys: Any) -> Any:
            found = right(*args, **keys)
            object.__setattr__(found, "value", found.value + 100)
            return found

        monkeypatch.setattr(cb, name, raised)
    verdicts = outcome("cb-rates").verdicts
    assert claim(verdicts, "Proposition 6: the bound").holds is False
    assert claim(verdicts, "Proposition 7: the bound").holds is False


def test_off_the_cone_is_noticed(monkeypatch: pytest.MonkeyPatch):
    draw = flows.TwoLayer.init

    def unbalanced(self: Any, trials: int, seed: int) -> Any:
        drawn = draw(self, trials, seed)
        drawn["a"] *= 2
        return drawn

    assert claim(outcome("cb-4").verdicts, "stays there").holds is True
    monkeypatch.setattr(flows.TwoLayer, "init", unbalanced)
    assert claim(outcome("cb-4").verdicts, "stays there").holds is False


def test_bend_share_of_a_polygon_and_of_a_circle():
    line = np.linspace(-0.65, 0.65, 261)
    x, y = np.meshgrid(line, line)
    square = np.maximum(np.abs(x), np.abs(y)) - 0.4
    circle = np.hypot(x, y) - 0.4
    assert cb.bend_share(line, square) > 0.95
    assert cb.bend_share(line, circle) < 0.35


def test_effective_directions_counts_equal_masses():
    unit = np.array([[1.0, 0], [1.0, 1e-4], [0, 1], [-1, 0]])
    assert cb.effective_directions(np.array([1.0, 1, 2, -2]), unit) == pytest.approx(3, rel=1e-6)
    assert cb.effective_directions(np.array([1.0, -1, 0, 0]), unit) == pytest.approx(2, rel=1e-6)


def test_field_is_the_gradient_of_its_potential():
    rng = np.random.default_rng(0)
    X, c, w = rng.standard_normal((6, 3)), rng.standard_normal(6), rng.standard_normal((5, 4))

    def potential(w: np.ndarray) -> np.ndarray:
        return w[:, 3] * ((w[:, :3] @ X.T).clip(0) @ c)

    for k in range(4):
        shift = 1e-6 * np.eye(4)[k]
        slope = (potential(w + shift) - potential(w - shift)) / 2e-6
        np.testing.assert_allclose(cb.field_at(w, X, c)[:, k], slope, atol=1e-8)


def test_tangent_and_feature_classifiers_have_their_margins():
    """Divided by their norms in parameters, they reach the certified margins on the training points."""
    data = disks(k=2, d=3, n=10, seed=1, reading="code")
    rng = np.random.default_rng(0)
    a, V = rng.standard_normal(30), rng.standard_normal((30, 3))
    f, cert = cb.tangent_classifier(a, V, data, np.vstack([data.X] * 2))
    # f = J theta with theta = sum_i alpha_i y_i J_i, so |theta|^2 = sum_i alpha_i y_i f(x_i)
    size = math.sqrt(np.asarray(cert.extra["alpha"]) @ (data.y * f[: data.n]))
    np.testing.assert_allclose((data.y * f[: data.n]).min() / size, cert.lower, rtol=1e-5)
    unit = V / np.linalg.norm(V, axis=1, keepdims=True)
    g = cb.feature_classifier(data, unit, data.X)
    rf = margins.random_features(data, unit)
    weight = np.linalg.lstsq((data.X @ unit.T).clip(0), g, rcond=None)[0]  # of least norm, as g is in the row space
    assert (data.y * g).min() / (math.sqrt(len(unit)) * np.linalg.norm(weight)) == pytest.approx(rf.lower, rel=1e-4)


def test_constant_step_is_the_ascent_of_the_definition():
    """W + lr m grad S, S = -log mean exp(-y f), by finite differences."""
    data = disks(k=2, d=3, n=5, seed=0, reading="code")
    net = cb.two_layer(3, 4, "both")
    start = net.init(1, 0)
    lr = 1e-3
    traj = flows.train(data, net, cb.ConstantStep(lr), loss="exp", steps=1, observe=["step"])

    def smooth(a: np.ndarray, V: np.ndarray) -> float:
        p = data.y * ((data.X @ V.T).clip(0) @ a) / len(a)
        return float(-np.log(np.exp(-p).mean()))

    a, V = start["a"][0], start["V"][0]
    for j in range(4):
        shift = 1e-6 * np.eye(4)[j]
        slope = (smooth(a + shift, V) - smooth(a - shift, V)) / 2e-6
        assert traj.final["a"][0, j] - a[j] == pytest.approx(lr * 4 * slope, rel=1e-5)
        for k in range(3):
            move = np.zeros((4, 3))
            move[j, k] = 1e-6
            slope = (smooth(a, V + move) - smooth(a, V - move)) / 2e-6
            assert traj.final["V"][0, j, k] - V[j, k] == pytest.approx(lr * 4 * slope, rel=1e-5, abs=1e-12)
