"""UH's inequalities along runs: they hold where their hypotheses do, and a run that is not a flow is found out."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from along_runs import at, bare, check_proved, proved, results, spoil
from numpy.testing import assert_allclose

from checks import OBSERVE, grouped
from widemargin import flows, margins
from widemargin.data import parity
from widemargin.theory import CHECKS, Track, follow
from widemargin.theory import _records as records
from widemargin.theory import check_mirror as mirror
from widemargin.theory.inequality import entry

DATA = parity(d=3, n=8, seed=0)
NETS = {
    "scalar": flows.Scalar(3, 30),
    "normalized": flows.Normalized(3, 30),
    "frozen": flows.Frozen(3, 30),
    "product": flows.Product(3, 20),
    "relu": flows.TwoLayer(3, 30),
    "mlp": flows.MLP(3, 10, depth=3),
}
IDS = ["UH-6", "UH-8", "UH-9", "UH-10", "UH-11", "UH-12", "UH-13", "UH-14", "UH-17", "UH-18", "UH-19", "UH-22", "UH-26"]


pytestmark = pytest.mark.usefixtures("one_thread")


def trained(name: str, rule: flows.Rule, **keys: object) -> Track:
    return follow(flows.train(DATA, NETS[name], rule, **grouped(observe=OBSERVE, **keys)), DATA, NETS[name])


@pytest.fixture(scope="module")
def tracks() -> dict[str, Track]:
    """Descent and flow, both losses, all networks with partial homogeneity; one runs far into the asymptotic phase."""
    every = {"times": list(range(0, 121, 2)), "steps": 120}
    far = {"times": list(range(0, 91, 2)), "steps": 90}
    return {
        "scalar descent": trained("scalar", flows.GD(lr=0.05), loss="exp", steps=400, points=45, trials=2),
        "scalar flow": trained("scalar", flows.GradientFlow(rtol=1e-4), loss="exp", **every),
        "normalized descent": trained("normalized", flows.GD(lr=0.2), loss="logistic", steps=1500, points=45),
        "scalar, far": trained("scalar", flows.GradientFlow(rtol=1e-3), loss="logistic", **far),
        "normalized flow": trained("normalized", flows.GradientFlow(rtol=1e-4), loss="logistic", **every),
        "frozen descent": trained("frozen", flows.GD(lr=2.0), loss="logistic", steps=1000, points=40),
        "product descent": trained("product", flows.GD(lr=0.01), loss="logistic", steps=600, points=30),
        "relu descent": trained("relu", flows.GD(lr=0.1), loss="logistic", steps=500, points=45),
        "relu flow": trained("relu", flows.GradientFlow(), loss="exp", steps=80, times=list(range(0, 81, 2))),
        "mlp descent": trained("mlp", flows.GD(lr=0.05), loss="logistic", steps=600, points=40),
    }


def only_the_worst(values: np.ndarray) -> None:
    """Nearly no weight at late records, but on one neuron."""
    values[18:, :, 1:] *= 1e-9


def test_all_are_registered():
    assert set(IDS) <= set(CHECKS)


@pytest.mark.parametrize("id", IDS)
def test_they_hold_on_every_run(tracks, id):
    check_proved(tracks, id)


# the run, and what is changed in it
SABOTAGE = {
    "UH-6": ("relu descent", {"psi": at(-1, lambda psi: psi - 3)}),
    "UH-9": ("scalar descent", {"W_a": at(20, lambda a: 1.05 * a)}),
    "UH-10": ("normalized descent", {"W_a": at(10, lambda a: 1.3 * a), "W_b": at(10, lambda b: 1.3 * b)}),
    "UH-11": ("frozen descent", {"t_cb": at(-1, lambda s: 1000 * s)}),
    "UH-12": ("scalar flow", {"t_cb": at(-1, lambda s: 1000 * s)}),
    "UH-13": ("scalar, far", {"W_a": only_the_worst}),
    "UH-14": ("scalar, far", {"psi": at(30, lambda psi: 1e-3 * psi)}),
    "UH-17": ("normalized descent", {"W_V": at(1, lambda V: -V)}),
    "UH-18": ("mlp descent", {"psi": at(-1, lambda psi: 0.9 * psi)}),
    "UH-19": ("relu flow", {"log_norm": at(-1, lambda norm: norm - 1.0)}),
    "UH-22": ("normalized flow", {"W_V": at(-1, lambda V: 0.5 * V)}),
    "UH-26": ("normalized descent", {"W_a": at(-5, lambda a: 100 * a), "W_b": at(-5, lambda b: 100 * b)}),
}


@pytest.mark.parametrize("id", SABOTAGE)
def test_a_wrong_run_is_found_out(tracks, id):
    name, changes = SABOTAGE[id]
    assert all(one.holds is not False for one in proved(tracks[name], id))
    broken = proved(spoil(tracks[name], **changes), id)
    assert any(one.holds is False for one in broken), [str(one) for one in broken]


def test_a_wrong_divergence_is_found_out(tracks, monkeypatch):
    """UH-8 is about any two vectors, so no run can break it; a divergence without its linear part does."""
    assert all(one.holds for one in proved(tracks["scalar descent"], "UH-8"))
    whole = mirror.kl
    monkeypatch.setattr(mirror, "kl", lambda r, q: whole(r, q) - (q - r).sum(-1))
    assert any(one.holds is False for one in proved(tracks["scalar descent"], "UH-8"))


def test_weights_of_a_cold_flow_are_those_it_solved_for(tracks):
    """Far out, margins are large numbers known to rtol, and their softmax is not the dual; without q UH-9 stops there."""
    track = tracks["scalar, far"]
    kept = {key: value for key, value in track.run.records.items() if key != "q"}
    blind = follow(dataclasses.replace(track.run, records=kept), DATA, track.net)
    known, unknown = results(track, "UH-9")[2], results(blind, "UH-9")[2]
    assert known.holds and unknown.holds
    assert unknown.checked < known.checked - 5


@pytest.mark.parametrize("name", ["mlp descent", "relu flow"])
def test_psi_and_norm_suffice_for_partial_homogeneity(tracks, name):
    """Without the parameters the costs come from the records, and a lower psi is still found out."""
    track = bare(tracks[name])
    assert track.W is None
    for id in ("UH-18", "UH-19"):
        assert all(one.holds and one.checked > 10 for one in results(track, id))
    fallen = spoil(track, psi=at(-1, lambda psi: 0.9 * psi))
    assert results(fallen, "UH-18")[0].holds is False
    assert all(CHECKS[id].function(track) is None for id in IDS if id not in ("UH-18", "UH-19"))


def test_the_printed_rate_of_lemma_a3_says_less_and_less(tracks):
    """E-UH-8: its right side falls towards -gamma, where the corrected one rises."""
    fixed, _, printed = results(tracks["scalar, far"], "UH-14")
    assert printed.id == "UH-14 printed" and printed.note
    gamma = fixed.numbers["gamma"][0]
    late = np.flatnonzero(fixed.applies[:, 0])[-1]
    assert fixed.left[late, 0] > 0.1 * gamma
    assert printed.left[late, 0] < -gamma


def test_mirror_clock_of_frozen_directions(tracks):
    """d ln u_j / dt = (2/n) sum |l'_i| z_ij in the clock that is 2/m times that of r: against central differences."""
    track = tracks["frozen descent"]
    view = mirror._mirror(track)
    assert view is not None
    u, s = np.log(view.u[:, 0]), view.s[:, 0]
    k = 30
    slope = (u[k + 1] - u[k - 1]) / (s[k + 1] - s[k - 1])
    assert_allclose(slope, 2 * view.pull[k, 0], rtol=0.05, atol=0.02)
    assert_allclose(view.s[:, 0], np.concatenate([[0], track.run["t_cb"][1:, 0]]) * 2 / 30)


def test_comparator_against_the_frozen_margin(tracks):
    """Directions with both signs: the best mixture of z is half the margin of the directions."""
    track = tracks["frozen descent"]
    view = mirror._mirror(track)
    assert view is not None
    certificate = margins.frozen(DATA, track.start["V"][0, :15].numpy())
    assert_allclose(2 * view.gamma[-1, 0], certificate.lower, rtol=1e-6)
    assert_allclose(view.comparator.sum(1), 1)


def test_divergence_is_its_definition(tracks):
    track = tracks["scalar descent"]
    view = mirror._mirror(track)
    assert view is not None
    c = np.array([2.5, 4.0])
    for b in range(2):
        v, u = c[b] * view.comparator[b], view.u[7, b]
        expected = sum((x * np.log(x / y) if x > 0 else 0.0) - x + y for x, y in zip(v, u))
        assert_allclose(view.divergence(c)[7, b], expected, rtol=1e-10)
        assert_allclose(mirror.kl(v, u), expected, rtol=1e-10)


def test_constants_of_the_features(tracks):
    """UH-22 by hand: grad F_j(x) = 1[v.x > 0] (I - v v') x / |v|."""
    track = tracks["normalized flow"]
    V = track.W[5]["V"][0].numpy()
    X = DATA.X
    largest = 0.0
    for v in V:
        w = v / np.linalg.norm(v)
        grads = (X @ w > 0)[:, None] * (X - np.outer(X @ w, w)) / np.linalg.norm(v)
        largest = max(largest, np.abs(grads @ grads.T).max())
    C1, C2 = mirror._constants(track, track.W[5])
    assert_allclose(C1, largest, rtol=1e-12)
    assert C2 == 0


# ---------------------------------------------------------------- what steps cost


def test_cost_of_descent_is_the_second_order_of_its_steps():
    """One neuron a b on one point, every step recorded: |u| changes by lr^2 g^2 u beyond first order, balance not at all."""
    data = dataclasses.replace(DATA, X=DATA.X[:1], y=DATA.y[:1])
    net = flows.Scalar(3, 1)
    lr = 0.1
    run = flows.train(
        data, net, flows.GD(lr=lr), loss="exp", stop=6, record=flows.Record(OBSERVE, times=list(range(7))), seed=3
    )
    track = follow(run, data, net)
    assert track.W is not None
    owed = records.cost(track, lambda W: (W["a"] * W["b"]).abs().sum(1))
    a, b = (np.stack([W[name].numpy()[:, 0] for W in track.W]) for name in ("a", "b"))
    z = (np.maximum(np.sign(b) * (data.X @ track.start["V"][0].numpy().T)[0], 0) * data.y[0] * np.sign(a))[:, 0]
    u = np.abs(a * b)[:, 0]
    each = (lr * np.exp(-u * z) * z) ** 2 * u
    pair = np.maximum(each[:-1], each[1:])
    near = np.maximum(pair, np.maximum(np.append(pair[1:], 0), np.append(0, pair[:-1])))
    assert z[0] != 0
    assert_allclose(owed[:, 0], np.append(0, np.cumsum(near)), rtol=1e-9)
    assert_allclose(records.cost(track, lambda W: (W["a"] ** 2 - W["b"] ** 2).sum(1)), 0, atol=1e-16)


def test_cost_of_the_flow_is_its_tolerance_times_the_gradient(tracks):
    track = tracks["scalar flow"]
    assert track.W is not None
    owed = records.cost(track, lambda W: (W["a"] ** 2 + W["b"] ** 2).sum(1))
    norm = track.run["norm"][:, 0]
    pair = np.maximum(norm[:-1], norm[1:])
    near = np.maximum(pair, np.maximum(np.append(pair[1:], 0), np.append(0, pair[:-1])))
    taken = np.diff(track.run["step"][:, 0])
    assert_allclose(np.diff(owed[:, 0]), taken * 1e-4 * 2 * near**2, rtol=1e-9)


def test_integral_brackets_what_is_monotone():
    s = np.array([0.0, 0.1, 0.5, 1.0, 3.0, 4.0])[:, None]
    value, off = records.integral(s, np.exp(-s))
    exact = 1 - np.exp(-s)
    assert (np.abs(value - exact) <= off).all()
    assert off[-1, 0] < 2


def test_never_falls_allows_only_what_was_lost_since_the_top(tracks):
    track = tracks["scalar flow"]
    f = np.zeros(track.shape)
    f[5], f[6], f[7:] = 1.0, 0.9, 2.0
    owed = np.arange(len(f))[:, None] * 0.05
    yes = np.ones(track.shape, bool)
    one = entry(track, "x", "x", "x", **records.never_falls(f, owed, yes))
    assert one.holds is False
    assert_allclose([one.left[6, 0], one.right[6, 0], one.allowance[6, 0]], [1.0, 0.9, 0.05])
    f[6] = 0.96
    assert entry(track, "x", "x", "x", **records.never_falls(f, owed, yes)).holds is True
    assert (
        one.checked + one.undecided == len(f) - 1 and one.undecided == 4
    )  # f is 0 there, and what it may have lost is not


# ---------------------------------------------------------------- runs they say nothing about


def runs_of_other_kinds() -> dict[str, Track]:
    classes = dataclasses.replace(DATA, y=(DATA.y > 0).astype(float))
    short = {"steps": 5, "times": [0, 1, 3, 5], "observe": ["default", "weights"]}
    made = {
        "squared": (DATA, NETS["relu"], flows.GD(lr=0.01), {"loss": "squared"}),
        "decay": (DATA, NETS["normalized"], flows.GD(lr=0.01, weight_decay=0.1), {}),
        "ascent": (DATA, NETS["scalar"], flows.SmoothMarginAscent(lr=0.1), {"loss": "exp"}),
        "mirror": (DATA, NETS["scalar"], flows.Mirror(lr=0.1), {}),
        "sgd": (DATA, NETS["normalized"], flows.SGD(lr=0.1), {}),
        "particles": (DATA, flows.TwoLayer(3, 10, law="cb", mean_field=True), flows.WassersteinFlow(), {}),
        "batchnorm": (DATA, flows.BatchNorm.with_data(DATA.X, 10), flows.GD(lr=0.01), {}),
        "output": (DATA, flows.TwoLayer(3, 10, train="output"), flows.GD(lr=0.1), {}),
        "classes": (classes, flows.MLP(3, 8, outputs=2), flows.GD(lr=0.1), {"loss": "ce"}),
        "squared relu": (DATA, flows.TwoLayer(3, 10, activation="srelu", law="cb"), flows.GD(lr=0.01), {}),
        "widths": (DATA, flows.TwoLayer(3, 10, widths=(4, 10)), flows.GD(lr=0.1), {"trials": 2, "observe": OBSERVE}),
    }
    return {
        name: follow(flows.train(data, net, rule, **grouped(**{**short, **keys})), data, net)
        for name, (data, net, rule, keys) in made.items()
    }


def test_other_runs_are_passed_over_or_hold():
    seen = set()
    for name, track in runs_of_other_kinds().items():
        for id in CHECKS:
            if id.startswith(("UH", "LR")):
                for one in proved(track, id):
                    assert one.holds is not False, f"{name}: {one}"
                    seen.add(name)
    assert {"batchnorm", "output", "classes", "widths"} <= seen
    assert "squared" not in seen
