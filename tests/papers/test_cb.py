"""Reproductions of CB at a tiny scale: files, verdicts, and that wrong input makes verdicts false."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from checks import resize
from widemargin import flows, margins
from widemargin.data import disks, parity
from widemargin.papers import REPRODUCTIONS, UNDECIDED, Job, Outcome, Verdict, cb, run
from widemargin.papers.statistics import interval
from widemargin.papers.verdicts import HOLDS, NOT_INFORMATIVE

TINY: dict[str, dict[str, Any]] = {
    "cb-1": {
        "k": 2,
        "n": 8,
        "m": 30,
        "m_output": 30,
        "rtol": 1e-2,
        "flow": 120,
        "fine": 20,
        "sets": 2,
        "tol": 0.05,
        "grid": 41,
    },
    "cb-2a": {"k": 3, "n": 1000},
    "cb-2b": {"ns": (48, 96), "d": 8, "m": 120, "steps": 400, "lr": 2.0, "trials": 6, "test": 500},
    "cb-2c": {"ds": (4, 10), "n": 40, "m": 50, "steps": 300, "lr": 0.5, "trials": 4, "test": 500},
    "cb-2d": {
        "ms": (2, 16),
        "n": 12,
        "d": 4,
        "steps": 100,
        "lr": 0.5,
        "trials": 3,
        "rtol": 1e-2,
        "flow": 20,
        "certified": 1,
        "tol": 0.02,
        "seconds": 10,
    },
    "cb-3": {
        "sets": 2,
        "n": 8,
        "m": 40,
        "scale": 40.0,
        "step": 4.0,
        "steps": 150,
        "rtol": 1e-2,
        "flow": 20,
        "tol": 0.02,
        "grid": 21,
    },
    "cb-4": {"sets": 3, "n": 12, "m": 60, "steps": 250, "step": 8e-3, "ratio": 3.0},
    "cb-rates": {"d": 2, "m": 16, "r0": 10.0, "steps": 100, "trials": 3},
}
LONG = ("cb-1", "cb-2b", "cb-2d", "cb-3", "cb-4", "cb-rates")

pytestmark = pytest.mark.usefixtures("one_thread", "tiny")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    resize(monkeypatch, TINY, ("quick", "paper"))


def claim(verdicts: Any, part: str) -> Verdict:
    (found,) = (one for one in verdicts if part in one.claim)
    return found


def outcome(id: str) -> Outcome:
    return REPRODUCTIONS[id].function(Job())


@pytest.mark.parametrize("id", [pytest.param(id, marks=pytest.mark.slow) if id in LONG else id for id in sorted(TINY)])
def test_files_and_verdicts(id: str, tmp_path: Path):
    verdicts = run(REPRODUCTIONS[id], tmp_path)
    folder = tmp_path / id
    for name in ("figure.png", "figure.pdf", "data.npz", "settings.json", "verdict.json", "README.md"):
        assert (folder / name).stat().st_size > 0
    written = json.loads((folder / "verdict.json").read_text())
    assert len(written) == len(verdicts) >= 3
    assert {one["holds"] for one in written} <= set(HOLDS)
    assert all(one.reason for one in verdicts if one.holds in (UNDECIDED, NOT_INFORMATIVE))
    assert all(one.again for one in verdicts if one.chosen_after)  # the claim is found at the other seed
    with np.load(folder / "data.npz") as data:
        assert data.files


def test_a_second_run_computes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = run(REPRODUCTIONS["cb-2c"], tmp_path)

    def never(*args: Any, **keys: Any) -> Any:
        raise AssertionError("trained again")

    monkeypatch.setattr(flows, "train", never)
    assert run(REPRODUCTIONS["cb-2c"], tmp_path) == first


def test_output_layer_passed_off_as_both_is_noticed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(cb.networks.ARMS, "both", "output")
    size = TINY["cb-2b"] | {"steps": 100, "lr": 2.0}
    resize(monkeypatch, {"cb-2b": size})
    wrong = claim(outcome("cb-2b").verdicts, "stopped after the same steps")
    assert wrong.holds == UNDECIDED
    assert wrong.measured == 0


@pytest.mark.slow
def test_both_layers_are_better_where_they_are_both_layers():
    assert claim(outcome("cb-2b").verdicts, "in the limit of its training").holds is True


def test_a_wrong_certificate_is_noticed(monkeypatch: pytest.MonkeyPatch):
    bounds = SimpleNamespace(lower=0.99e-3, upper=1e-3, proved=True)
    monkeypatch.setattr(cb.figure_2d, "certified_f1", lambda *args: bounds)
    assert claim(outcome("cb-2d").verdicts, "exceeds the certified").holds is False


@pytest.mark.slow
def test_output_layer_in_the_plane_is_noticed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(cb.networks.ARMS, "both", "output")
    verdicts = outcome("cb-1").verdicts
    assert claim(verdicts, "Solutions in F1 are sparse").holds is False
    assert claim(verdicts, "Both layers: margin at the end").holds is False
    assert claim(outcome("cb-2d").verdicts, "Corollary 4").holds is False


def test_bounds_of_the_propositions_can_be_broken(monkeypatch: pytest.MonkeyPatch):
    verdicts = outcome("cb-rates").verdicts  # so few steps that the bounds are negative
    for name in ("Proposition 6", "Proposition 7"):
        assert claim(verdicts, f"{name}: the bound").holds == NOT_INFORMATIVE
        assert claim(verdicts, f"{name}: the bound").measured == 0
    for name in ("frozen_ascent_margin", "output_ascent_margin"):
        right = getattr(cb.rates, name)

        def raised(*args: Any, right: Any = right, **keys: Any) -> Any:
            found = right(*args, **keys)
            object.__setattr__(found, "value", found.value + 100)
            return found

        monkeypatch.setattr(cb.rates, name, raised)
    verdicts = outcome("cb-rates").verdicts
    assert claim(verdicts, "Proposition 6: the bound").holds is False
    assert claim(verdicts, "Proposition 7: the bound").holds is False


@pytest.mark.slow
def test_off_the_cone_is_noticed(monkeypatch: pytest.MonkeyPatch):
    draw = flows.TwoLayer.init

    def unbalanced(self: Any, trials: int, seed: int) -> Any:
        drawn = draw(self, trials, seed)
        drawn["a"] *= 2
        return drawn

    found = outcome("cb-4").verdicts
    assert claim(found, "stays there").holds is True
    assert claim(found, "On D neurons").holds is True
    monkeypatch.setattr(flows.TwoLayer, "init", unbalanced)
    found = outcome("cb-4").verdicts
    assert claim(found, "stays there").holds is False
    assert claim(found, "On D neurons").holds is False


def test_bend_share_of_a_polygon_and_of_a_circle():
    line = np.linspace(-0.65, 0.65, 261)
    x, y = np.meshgrid(line, line)
    square = np.maximum(np.abs(x), np.abs(y)) - 0.4
    circle = np.hypot(x, y) - 0.4
    assert cb.figure_1.bend_share(line, square) > 0.95
    assert cb.figure_1.bend_share(line, circle) < 0.35


def test_effective_directions_counts_equal_masses():
    unit = np.array([[1.0, 0], [1.0, 1e-4], [0, 1], [-1, 0]])
    assert cb.figure_1.effective_directions(np.array([1.0, 1, 2, -2]), unit) == pytest.approx(3, rel=1e-6)
    assert cb.figure_1.effective_directions(np.array([1.0, -1, 0, 0]), unit) == pytest.approx(2, rel=1e-6)


def test_field_is_the_gradient_of_its_potential():
    rng = np.random.default_rng(0)
    X, c, w = rng.standard_normal((6, 3)), rng.standard_normal(6), rng.standard_normal((5, 4))

    def potential(w: np.ndarray) -> np.ndarray:
        return w[:, 3] * ((w[:, :3] @ X.T).clip(0) @ c)

    for k in range(4):
        shift = 1e-6 * np.eye(4)[k]
        slope = (potential(w + shift) - potential(w - shift)) / 2e-6
        np.testing.assert_allclose(cb.figure_4.field_at(w, X, c)[:, k], slope, atol=1e-8)


def test_tangent_and_feature_classifiers_have_their_margins():
    """Divided by their norms in parameters, they reach the certified margins on the training points."""
    data = disks(k=2, d=3, n=10, seed=1, reading="code")
    rng = np.random.default_rng(0)
    a, V = rng.standard_normal(30), rng.standard_normal((30, 3))
    f, cert = cb.figure_3.tangent_classifier(a, V, data, np.vstack([data.X] * 2))
    # f = J theta with theta = sum_i alpha_i y_i J_i, so |theta|^2 = sum_i alpha_i y_i f(x_i)
    size = math.sqrt(np.asarray(cert.extra["alpha"]) @ (data.y * f[: data.n]))
    np.testing.assert_allclose((data.y * f[: data.n]).min() / size, cert.lower, rtol=1e-5)
    unit = V / np.linalg.norm(V, axis=1, keepdims=True)
    g = cb.networks.feature_classifier(data, unit, data.X)
    rf = margins.random_features(data, unit)
    weight = np.linalg.lstsq((data.X @ unit.T).clip(0), g, rcond=None)[0]  # of least norm, as g is in the row space
    assert (data.y * g).min() / (math.sqrt(len(unit)) * np.linalg.norm(weight)) == pytest.approx(rf.lower, rel=1e-4)


def test_constant_step_is_the_ascent_of_the_definition():
    """W + lr m grad S, S = -log mean exp(-y f), by finite differences."""
    data = disks(k=2, d=3, n=5, seed=0, reading="code")
    net = cb.networks.two_layer(3, 4, "both")
    start = net.init(1, 0)
    lr = 1e-3
    traj = flows.train(data, net, cb.networks.ConstantStep(lr), loss="exp", stop=1, record=["step"])

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


# ---------------------------------------------------------------- every verdict can be false

Made = dict[str, Any]
CLOSE, WIDE = np.array([-1.0, 1, -1, 1, -1, 1]) * 1e-6, np.array([-1.0, 1, -1, 1, -1, 1])


def around(centre: float, wide: bool = False) -> np.ndarray:
    """Six trials whose interval is close around `centre`, or has everything near it inside."""
    return centre + (WIDE if wide else CLOSE)


def plane_result(**change: Any) -> list[Verdict]:
    """Verdicts of Figure 1 for results in which all of them are true, changed in one place."""
    made: Made = {
        "wrong": np.zeros(6),
        "bends": around(0.5),
        "neurons": around(0.1),
        "both": around(0.05),
        "output": around(0.05),
        "rf": np.full(6, 0.999),
        "margin": np.full(6, 0.99),
        "lower": 0.98,
    } | change
    both = {
        "wrong": made["wrong"],
        "margin": made["margin"][None] / 2,
        "margin_then": np.full(6, 0.4),
        "neurons": made["neurons"],
        "neurons_start": np.ones(6),
    }
    output = {"wrong": np.zeros(6), "margin": made["rf"][None], "neurons": np.ones(6), "neurons_start": np.ones(6)}
    found = {"both": both, "output": output}
    best = {"lower": np.full(6, made["lower"]), "upper": np.ones(6), "rf": np.ones(6)}
    zero = np.zeros(6)
    away = {"both_f2": made["both"], "both_f1": zero, "output_f1": made["output"], "output_f2": zero}
    return cb.figure_1.judge_figure_1(found, best, {"both": made["bends"], "output": zero}, away)


PLANE = [
    ("fit every training point", {"wrong": np.eye(6)[0]}, False),
    ("piecewise affine", {"bends": around(0.0)}, False),
    ("piecewise affine", {"bends": around(0.1, True)}, UNDECIDED),
    ("piecewise affine", {"bends": around(math.nan)}, UNDECIDED),  # no boundary in the square
    ("sparse", {"neurons": around(0.8)}, False),
    ("sparse", {"neurons": around(0.5, True)}, UNDECIDED),
    ("that of F1, not of F2", {"both": around(-0.05)}, False),
    ("that of F1, not of F2", {"both": around(0.05, True)}, UNDECIDED),
    ("that of F2, not of F1", {"output": around(-0.05)}, False),
    ("that of F2, not of F1", {"output": around(0.05, True)}, UNDECIDED),
    ("max margin of its random neurons", {"rf": np.full(6, 0.97)}, False),
    ("Both layers: margin", {"margin": np.full(6, 0.7)}, False),
    ("Both layers: margin", {"margin": np.full(6, 0.89), "lower": 0.5}, UNDECIDED),
]


def others_hold(verdicts: list[Verdict], part: str, always: dict[str, Any] | None = None) -> bool:
    """Whether all but one have the values of results that are as the paper says."""
    expected = [next((value for key, value in (always or {}).items() if key in one.claim), True) for one in verdicts]
    return all(one.holds == value for one, value in zip(verdicts, expected) if part not in one.claim)


@pytest.mark.parametrize("part, change, holds", PLANE)
def test_verdicts_of_figure_1(part: str, change: Made, holds: bool | str):
    assert claim(plane_result(), part).holds is True
    found = plane_result(**change)
    assert claim(found, part).holds == holds
    assert others_hold(found, part)


def errors_result(judge: Any, **change: Any) -> list[Verdict]:
    """Three values of n or d, six trials: the test error of both layers rises or falls, others lie above it."""
    level = np.array([0.1, 0.2, 0.3])[:, None] if judge is cb.figure_2c.judge_2c else np.array([0.3, 0.2, 0.1])[:, None]
    made: Made = {
        "both": level + CLOSE,
        "output": level + 0.1 - CLOSE,
        "stopped": level + 0.2 - CLOSE,
        "both_train": np.zeros((3, 6)),
        "output_train": np.zeros((3, 6)),
        "stopped_train": np.full((3, 6), 0.04),
    }
    for key, value in change.items():
        made[key] = made[key] + value
    return judge((5, 10, 15), made)


LAST = np.array([0.0, 0, 1])[:, None]  # change the last of three values
ERRORS = [
    ("the output layer in the limit of its training", {"output": -0.2 * LAST}, False),
    ("the output layer in the limit of its training", {"output": LAST * WIDE}, UNDECIDED),
    ("stopped after", {"stopped": -0.4 * LAST}, False),
    ("stopped after", {"stopped": LAST * WIDE}, UNDECIDED),
    ("fit every training point", {"both_train": LAST * 0.01}, False),
    ("fit every training point", {"output_train": LAST * 0.01}, False),
]
FALLS = {"both": 0.3 * LAST, "output": 0.3 * LAST, "stopped": 0.3 * LAST}
BLURS = {"both": LAST * WIDE, "output": LAST * WIDE, "stopped": LAST * WIDE}
RISES = {"both": -0.3 * LAST, "output": -0.3 * LAST, "stopped": -0.3 * LAST}


@pytest.mark.parametrize("judge", [cb.figure_2b.judge_2b, cb.figure_2c.judge_2c])
@pytest.mark.parametrize("part, change, holds", ERRORS)
def test_verdicts_of_figures_2b_and_2c(judge: Any, part: str, change: Made, holds: bool | str):
    assert claim(errors_result(judge), part).holds is True
    found = errors_result(judge, **change)
    assert claim(found, part).holds == holds
    assert others_hold(found, part) or "output" in change  # which the trend of 2c is about


@pytest.mark.parametrize(
    "judge, change, holds",
    [
        (cb.figure_2b.judge_2b, FALLS, False),
        (cb.figure_2b.judge_2b, BLURS, UNDECIDED),
        (cb.figure_2c.judge_2c, RISES, False),
        (cb.figure_2c.judge_2c, BLURS, UNDECIDED),
    ],
)
def test_trends_of_figures_2b_and_2c(judge: Any, change: Made, holds: bool | str):
    parts = ["falls from"] if judge is cb.figure_2b.judge_2b else ["both layers grows", "in the limit, grows"]
    for part in parts:
        assert claim(errors_result(judge), part).holds is True
        assert claim(errors_result(judge, **change), part).holds == holds


def widths_result(scale: str = "paper", **change: Any) -> list[Verdict]:
    made: Made = {
        "best": np.array([0.002, 0.008, 0.0081, 0.0082])[:, None] + CLOSE,
        "limit": np.array([0.0085, 0.0086]),
        "lower": np.full(2, 0.0088),
        "upper": np.full(2, 0.0090),
        "proved": True,
    }
    for key, value in change.items():
        made[key] = made[key] + value if key == "best" else value
    size = {"ms": (8, 32, 64, 128)}
    return cb.figure_2d.judge_2d(
        Job(scale), size, made["best"], made["limit"], made["lower"], made["upper"], made["proved"]
    )


END = np.array([0.0, 0, 0, 1])[:, None]
WIDTHS = [
    ("rises with the width", {"best": np.array([0.01, 0, 0, 0])[:, None]}, False),
    ("rises with the width", {"best": np.array([1.0, 0, 0, 0])[:, None] * WIDE}, UNDECIDED),
    ("still rises late", {"best": np.array([0, 0, 0.0003, 0])[:, None]}, False),
    ("still rises late", {"best": np.array([0, 0, 1.0, 0])[:, None] * WIDE}, UNDECIDED),
    ("saturates", {"best": np.array([0, -0.002, 0, 0])[:, None]}, False),
    ("saturates", {"best": np.array([0, 1.0, 0, 0])[:, None] * WIDE}, UNDECIDED),
    ("Corollary 4", {"limit": np.array([0.0085, 0.0075])}, False),
    ("Corollary 4", {"lower": np.full(2, 0.005), "limit": np.array([0.0085, 0.0075])}, UNDECIDED),
    ("Corollary 4", {"proved": False}, UNDECIDED),
    ("exceeds the certified", {"limit": np.array([0.0085, 0.0091])}, False),
    ("Size of the margin", {"best": 0.03 + 0 * END}, False),
    ("Size of the margin", {"best": END * WIDE}, UNDECIDED),
]


@pytest.mark.parametrize("part, change, holds", WIDTHS)
def test_verdicts_of_figure_2d(part: str, change: Made, holds: bool | str):
    always = {"exceeds the certified": NOT_INFORMATIVE}
    assert others_hold(widths_result(), "nothing", always)
    found = widths_result(**change)
    assert claim(found, part).holds == holds
    assert others_hold(found, part, always) or "best" in change  # several verdicts read the same margins


def test_the_size_of_the_margin_says_nothing_where_n_and_d_are_smaller():
    assert claim(widths_result("quick"), "Size of the margin").holds == NOT_INFORMATIVE


def lazy_result(**change: Any) -> list[Verdict]:
    """Five records, six sets, both starts: near the tangent classifier in the middle, at F1's in the end."""
    made: Made = {
        "tangent": np.array([1.0, 0.6, 0.2, 0.4, 0.5])[:, None, None] + np.zeros((5, 6, 2)),
        "f1": np.array([1.0, 0.8, 0.4, 0.2, 0.01])[:, None, None] + np.zeros((5, 6, 2)),
        "margin": np.full((6, 2), 0.49),
        "lower": np.full(6, 0.99),
    }
    for key, value in change.items():
        made[key] = made[key] + value if key != "lower" else value
    return cb.figure_3.judge_3(
        {
            "t": np.arange(5.0),
            "to_tangent": made["tangent"],
            "to_f1": made["f1"],
            "signs_differ": np.zeros((6, 2)),
            "margin": made["margin"],
            "lower": made["lower"],
            "upper": np.ones(6),
        }
    )


def at(k: int, b: int, values: np.ndarray | float) -> np.ndarray:
    """A change of the records k, starts b of all sets."""
    change = np.zeros((5, 6, 2))
    change[k, :, b] = values
    return change


SOME = np.array([0.0, 0, 0, 1, 1, 1])
LAZY = (
    [
        (f"{name}: {part}", change, holds)
        for b, name in enumerate(cb.figure_3.STARTS)
        for part, change, holds in [
            ("the distance to the tangent", {"tangent": at(4, b, -0.4)}, False),  # the minimum is at the end
            ("the distance to the tangent", {"tangent": at(4, b, -0.28)}, False),  # it hardly leaves again
            ("the distance to the tangent", {"f1": at(2, b, -0.3)}, False),  # it was nearer to F1 then
            ("the distance to the tangent", {"f1": at(2, b, -0.3 * SOME)}, UNDECIDED),
            ("at the end the classifier", {"f1": at(4, b, 0.2)}, False),
            ("at the end the classifier", {"f1": at(4, b, 0.2 * SOME)}, UNDECIDED),
        ]
    ]
    + [
        ("Margin at the end", {"margin": -0.1 * np.eye(6)[:, :2]}, False),
        ("Margin at the end", {"margin": -0.05 * np.eye(6)[:, :2], "lower": np.full(6, 0.9)}, UNDECIDED),
    ]
)


@pytest.mark.parametrize("part, change, holds", LAZY)
def test_verdicts_of_figure_3(part: str, change: Made, holds: bool | str):
    assert claim(lazy_result(), part).holds is True
    found = lazy_result(**change)
    assert claim(found, part).holds == holds
    assert others_hold(found, part)
    assert all(one.chosen_after for one in found)


def cone_result(**change: Any) -> list[Verdict]:
    made: Made = {
        "leaving": 1e-15,
        "drift": around(0.01),
        "finer": around(0.005),
        "on": 0.7,
        "off": around(0.1),
    } | change
    inner = np.empty((2, 12, 2))
    inner[:, ::2, 0], inner[:, 1::2, 0] = made["on"], 0.3
    inner[1, 1::2, 0] = made["off"]
    inner[:, ::2, 1], finer = made["drift"], np.zeros((2, 12, 2))
    finer[:, ::2, 1] = made["finer"]
    return cb.figure_4.judge_4(made["leaving"], inner, finer, 3.0)


@pytest.mark.parametrize(
    "part, change, holds",
    [
        ("along the field", {"leaving": 1e-3}, False),
        ("stays there", {"finer": around(0.01)}, False),
        ("stays there", {"finer": 0.01 * (1 + 0.9 * WIDE)}, UNDECIDED),
        ("On D neurons", {"on": 0.6}, False),
        ("Off D", {"off": around(0.29)}, False),
        ("Off D", {"off": 0.15 + 0.14 * WIDE}, UNDECIDED),
    ],
)
def test_verdicts_of_figure_4(part: str, change: Made, holds: bool | str):
    always = {"along the field": NOT_INFORMATIVE}
    assert others_hold(cone_result(), "nothing", always)
    found = cone_result(**change)
    assert claim(found, part).holds == holds
    assert others_hold(found, part, always)


STEPS = np.unique(np.geomspace(1, 1e5, 80).round())


def rates_result(**change: Any) -> list[Verdict]:
    """Gaps c t^e of six trials; the largest margin is 1 and the bound is 1 - 50/sqrt t."""
    made: Made = {
        "six": around(-0.5),
        "seven": around(-0.5),
        "decay": around(-0.5),
        "constant": 0.3,
        "bound": 1.0,
    } | change

    def gaps(slopes: np.ndarray, constant: float) -> np.ndarray:
        return constant * STEPS[:, None] ** slopes

    bound = made["bound"] - 50 * STEPS[:, None] ** -0.5 + np.zeros((1, 6))
    six, seven = (
        {"t": STEPS, "gap": gap, "best": 1 - gap, "bound": bound, "width": np.full(6, 1e-12)}
        for gap in (gaps(made["six"], 0.3), gaps(made["seven"], 0.3))
    )
    seven |= {"decay_t": STEPS, "decay_gap": gaps(made["decay"], made["constant"])}
    return cb.rates.judge_rates(six, seven)


RATES = [
    ("Proposition 6: the bound", {"bound": 2.0}, False),
    ("Proposition 7: the bound", {"bound": 2.0}, False),
    ("Proposition 6: the bound", {"bound": -1.0}, NOT_INFORMATIVE),
    ("Proposition 7: the bound", {"bound": -1.0}, NOT_INFORMATIVE),
    ("Proposition 6: the gap", {"six": around(-0.2)}, False),
    ("Proposition 6: the gap", {"six": -0.4 + 0.2 * WIDE}, UNDECIDED),
    ("Proposition 7: the gap", {"seven": around(-0.3)}, False),
    ("Proposition 7: the gap", {"seven": -0.5 + 0.2 * WIDE}, UNDECIDED),
    ("Output layer, steps", {"decay": around(-0.2)}, False),
    ("Output layer, steps", {"decay": -0.4 + 0.2 * WIDE}, UNDECIDED),
    ("the rates", {"seven": around(-0.8)}, False),
    ("the rates", {"seven": -0.5 + 0.2 * WIDE}, UNDECIDED),
    ("with constants", {"constant": 3.0}, False),
    ("with constants", {"constant": 0.03}, False),
]


@pytest.mark.parametrize("part, change, holds", RATES)
def test_verdicts_of_the_rates(part: str, change: Made, holds: bool | str):
    assert others_hold(rates_result(), "nothing")
    found = rates_result(**change)
    assert claim(found, part).holds == holds


def test_gaps_that_the_certificate_leaves_open_are_not_fitted():
    """A gap that ends in a floor of the certificate's width has the exponent from before the floor, or none."""
    gap = STEPS[:, None] ** -0.5 + np.array([0.0, 1e-2])
    width = np.array([1e-12, 1e-2])
    found = cb.rates.exponents(STEPS, gap, width)
    assert found[0] == pytest.approx(-0.5)
    assert math.isnan(found[1])


@pytest.mark.parametrize(
    "part, change",
    [
        ("Distance of the classes", lambda X, y: (X, np.roll(y, 1))),
        ("Largest norm", lambda X, y: (10 * X, y)),
        ("The text's disks", lambda X, y: (np.sign(X) * np.abs(X) ** 0.5 / 10, y)),
    ],
)
def test_verdicts_of_figure_2a(part: str, change: Any, monkeypatch: pytest.MonkeyPatch):
    right = cb.figure_2a.disks

    def wrong(**keys: Any) -> Any:
        data = right(**keys)
        return type(data)(*change(data.X, data.y))

    found = claim(outcome("cb-2a").verdicts, part).holds
    assert found in (True, NOT_INFORMATIVE)
    monkeypatch.setattr(cb.figure_2a, "disks", wrong)
    assert claim(outcome("cb-2a").verdicts, part).holds is False


def test_the_code_would_pass_if_it_filled_its_disks(monkeypatch: pytest.MonkeyPatch):
    right = cb.figure_2a.disks

    def filled(**keys: Any) -> Any:
        data = right(**({key: value for key, value in keys.items() if key != "reading"} | {"d": 14}))
        return type(data)(np.column_stack([np.ones(data.n), data.X]), data.y) if "reading" in keys else data

    assert claim(outcome("cb-2a").verdicts, "The code's disks").holds is False
    monkeypatch.setattr(cb.figure_2a, "disks", filled)
    assert claim(outcome("cb-2a").verdicts, "The code's disks").holds is True


# ---------------------------------------------------------------- what the verdicts stand on


def test_intervals_are_students():
    values = np.array([1.0, 2.0, 4.0])
    mean, low, high = interval(values)
    half = 4.302652729911275 * values.std(ddof=1) / math.sqrt(3)  # the 0.975 quantile for 2 degrees of freedom
    assert (mean, high - mean, mean - low) == pytest.approx((7 / 3, half, half))
    assert interval(np.array([3.0])) == (3.0, -math.inf, math.inf)


def test_the_time_of_the_authors_steps():
    assert sum(0.5 / math.sqrt(t + 2) for t in range(300_000)) == pytest.approx(cb.figure_1.THEIR_TIME, rel=1e-3)


def cosine(f: np.ndarray, g: np.ndarray) -> float:
    return float(f @ g / np.linalg.norm(f) / np.linalg.norm(g))


@pytest.mark.parametrize(
    "rule, steps, close",
    [(flows.GradientFlow(rtol=1e-2), 150, 1e-6), (flows.SmoothMarginAscent(0.5, "code"), 4000, 1e-3)],
    ids=["flow", "authors"],
)
def test_training_the_output_layer_ends_in_its_limit(rule: Any, steps: int, close: float):
    """The classifier of the trained output layer is the max-margin one of its neurons, where training gets there."""
    data = parity(d=2, marginal="full")
    net = cb.networks.two_layer(2, 32, "output")
    traj = flows.train(data, net, rule, loss="exp", stop=steps, record=flows.Record(["margins"], times=[steps]), seed=3)
    V = net.init(1, 3)["V"][0]
    points = np.random.default_rng(0).uniform(-1, 1, (300, 2))
    np.testing.assert_array_equal(traj.final["V"][0], V)
    f, limit = cb.networks.outputs(Job(), traj, 0, points), cb.networks.feature_classifier(data, V, points)
    assert cosine(f, limit) > 1 - close
    cert = cb.networks.feature_certificate(data, V)
    assert (1 - math.sqrt(close)) * cert.lower < traj["margin_M7_raw"][-1, 0] <= cert.upper * (1 + 1e-9)


def test_many_random_neurons_are_f2():
    data = disks(k=2, d=3, n=8, seed=2, reading="code")
    points = np.column_stack([np.ones(50), np.random.default_rng(1).uniform(-0.5, 0.5, (50, 2))])
    V = np.random.default_rng(0).standard_normal((200_000, 3))
    assert cosine(cb.networks.feature_classifier(data, V, points), cb.figure_1.kernel_classifier(data, points)) > 0.999


def test_the_rates_are_measured_on_both_classes():
    (data,) = cb.rates._rate_sets(Job(), TINY["cb-rates"] | {"trials": 1})
    assert len(np.unique(data.X, axis=0)) == data.n == 4
    assert sorted(data.y) == [-1, -1, 1, 1]


def test_steps_with_and_without_beta_are_those_of_the_paper():
    """r + eta m grad F, eta = sqrt 2 beta / (|z| sqrt(t + 1)) or without beta, and the best normalised margin before."""
    data, steps = parity(d=2, marginal="full"), 60
    net = flows.TwoLayer(2, 6, law="sphere", mean_field=True, train="output")
    V = net.init(1, 4)["V"][0]
    Z = data.y[:, None] * (data.X @ V.T).clip(0)  # (n, m)
    for rule, grows in ((flows.OutputLayerAscent(), True), (cb.rates.Decaying(), False)):
        r, beta, best = np.zeros(6), 1.0, -math.inf
        for t in range(steps):
            p = Z @ r / 6
            beta = max(beta, np.linalg.norm(r) / math.sqrt(6))
            best = max(best, p.min() / beta)
            q = np.exp(-(p - p.min()))
            eta = math.sqrt(2) * (beta if grows else 1.0) / (np.abs(Z).max() * math.sqrt(t + 1))
            r = r + eta * Z.T @ (q / q.sum())
        traj = flows.train(
            data,
            net,
            rule,
            loss="exp",
            stop=steps,
            record=flows.Record({"best": cb.rates.Read("best")}, times=[steps]),
            seed=4,
        )
        np.testing.assert_allclose(traj.final["a"][0], r, rtol=1e-9)
        assert traj["best"][-1, 0] == pytest.approx(best, rel=1e-9)
        assert beta > 1.5  # the two differ


def test_starts_go_by_the_number_of_the_trial():
    lazy = cb.figure_3.LargeStart(3, 4, law="cb", law_scale=40.0, mean_field=True)
    whole, some = lazy.init(4, 0), lazy.init([1, 2], 0)
    for b, odd in ((0, False), (1, True), (2, False), (3, True)):
        a, V = whole["a"][b], whole["V"][b]
        assert (bool((a[:2] == -a[2:]).all()), bool((V[:2] == V[2:]).all())) == (odd, odd)
    np.testing.assert_array_equal(some["a"], whole["a"][1:3])
    size = cb.figure_4.Cone(3, 5, law="sphere", mean_field=True, ratio=3.0).init([1, 2], 0)["a"]
    np.testing.assert_allclose(np.abs(size), [[3.0] * 5, [1.0] * 5])


def test_distance_of_classifiers_does_not_depend_on_their_scale():
    f, g = np.array([3.0, 4.0]), np.array([4.0, -3.0])
    for scale in (1.0, 1e200, 1e-200):
        assert cb.figure_3._distance(scale * f, g) == pytest.approx(math.sqrt(2))
        assert cb.figure_3._distance(scale * f, f) == pytest.approx(0, abs=1e-12)
        assert cb.figure_3._distance(scale * f, -f) == pytest.approx(2)


@pytest.mark.slow
def test_constant_steps_go_over_into_the_flow():
    """Before the switch the steps are the constant ones; after it margins rise as those of the flow, and time goes on."""
    data = disks(k=2, d=3, n=6, seed=0, reading="code")
    net = cb.figure_3.LargeStart(3, 20, law="cb", law_scale=40.0, mean_field=True)
    keys: dict[str, Any] = {"loss": "exp", "trials": 2}
    seen = ["margins", "t_cb", "weights"]
    rule = cb.figure_3.ThenFlow(1e-2, lr=2e-3, steps=200)
    plain = flows.train(
        data, net, cb.networks.ConstantStep(2e-3), stop=200, record=flows.Record(seen, times=[100, 200]), **keys
    )
    both = flows.train(data, net, rule, stop=320, record=flows.Record(seen, times=[100, 200, 201, 320]), **keys)
    for name in ("W_a", "W_V", "t_cb", "margin_M3"):
        np.testing.assert_allclose(both[name][:2], plain[name], rtol=1e-12)
    np.testing.assert_allclose(both["t_cb"][1], 200 * 2e-3 * net.m)
    assert (np.diff(both["t_cb"], axis=0) > 0).all()
    upper = margins.f1(data, tol=0.02).upper / 2
    assert (both["margin_M3"][-1] <= upper).all()
    assert (both["margin_M3"][-1] >= 0.95 * upper).all()
    assert (both["margin_M3"][1] < 0.95 * upper).any()  # so that the flow had something to do


def test_the_fine_end_is_the_flow_with_a_tenth_of_the_tolerance():
    data, net = disks(k=2, d=3, n=8, seed=0, reading="code"), cb.networks.two_layer(3, 10, "both")

    def times(rule: flows.Rule) -> np.ndarray:
        return flows.train(data, net, rule, loss="exp", stop=12, record=flows.Record(["t_cb"], times=range(13)))[
            "t_cb"
        ][:, 0]

    coarse, fine = times(flows.GradientFlow(1e-2)), times(flows.GradientFlow(1e-3))
    assert abs(coarse[-1] / fine[-1] - 1) > 0.1  # the tolerances are told apart
    assert times(cb.figure_1.FineEnd(1e-2, fine_from=12)) == pytest.approx(coarse, rel=1e-12)
    assert times(cb.figure_1.FineEnd(1e-2, fine_from=0)) == pytest.approx(fine, rel=1e-12)
    later = times(cb.figure_1.FineEnd(1e-2, fine_from=6))
    assert later[:7] == pytest.approx(coarse[:7], rel=1e-12) and later[-1] != pytest.approx(coarse[-1], rel=1e-3)


def test_evaluate_is_the_network():
    rng = np.random.default_rng(0)
    a, V, X = rng.standard_normal(5), rng.standard_normal((5, 3)), rng.standard_normal((40_001, 3))
    f = cb.networks.evaluate(a, V, X)
    assert f.shape == (40_001,)
    for i in (0, 20_000, 40_000):
        assert f[i] == pytest.approx(sum(a[j] * max(0.0, V[j] @ X[i]) for j in range(5)) / 5)
