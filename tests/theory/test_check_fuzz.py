"""Random short runs of every kind of network and rule, with steps that are far too large too: no proved inequality may fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from checks import grouped
from widemargin import Dataset, InputError, flows, theory

pytestmark = pytest.mark.usefixtures("one_thread")

# Each gave a false alarm once: sums that cancel, weights without digits, kinks between records, float32, margins of 10^10.
ALARMS = [37, 76, 111, 116, 1138, 1259, 1337, 2141, 2420, 2434, 3239]


def trained(seed: int) -> tuple[Dataset, flows.Net, Any]:
    """A data set of 1 to 8 points, a network, and its run; InputError where the rule is not for the network."""
    r = np.random.default_rng(seed)
    n, d = int(r.integers(1, 9)), int(r.integers(1, 5))
    X = r.standard_normal((n, d)) * float(r.choice([0.05, 0.5, 1, 1, 1, 4, 30]))
    if r.random() < 0.3:
        X /= np.linalg.norm(X, axis=1).max()
    y = np.sign(r.standard_normal(n))
    if r.random() < 0.3:
        y = np.where(X @ r.standard_normal(d) > 0, 1.0, -1.0)
    bias = bool(r.random() < 0.2)
    seen, D = (np.hstack([X, np.ones((n, 1))]), d + 1) if bias else (X, d)
    m = int(r.choice([1, 2, 5, 12, 40]))
    mean = {"law": "cb", "mean_field": True}
    nets = [
        lambda: flows.TwoLayer(D, m),
        lambda: flows.TwoLayer(D, m, **mean),
        lambda: flows.TwoLayer(D, m, activation="srelu"),
        lambda: flows.TwoLayer(D, m, train="output"),
        lambda: flows.TwoLayer(D, m, train="output", **mean),
        lambda: flows.Normalized(D, m),
        lambda: flows.Scalar(D, m),
        lambda: flows.Frozen(D, m),
        lambda: flows.BatchNorm.with_data(seen, m),
        lambda: flows.BatchNorm.with_data(seen, m, eps=0.1),
        lambda: flows.Product(D, m),
        lambda: flows.MLP(D, m, depth=int(r.integers(2, 4))),
        lambda: flows.TwoLayer(D, m, law="sphere"),
    ]
    net = nets[int(r.integers(len(nets)))]
    lr = float(10 ** r.uniform(-3, 1.5))
    rules = [
        *[lambda: flows.GD(lr=lr)] * 4,
        *[lambda: flows.GradientFlow(rtol=float(10 ** r.uniform(-6, -2)))] * 4,
        lambda: flows.SGD(lr=lr),
        lambda: flows.SGD(lr=lr, batch=2, order="epochs"),
        lambda: flows.SmoothMarginAscent(lr=lr),
        lambda: flows.NeuronNormAscent(),
        lambda: flows.OutputLayerAscent(),
        lambda: flows.NormalizedGD(lr=lr),
        lambda: flows.WassersteinFlow(eta=lr / 10, lam=float(10 ** r.uniform(-5, -1))),
        lambda: flows.PerturbedWassersteinFlow(eta=lr / 10, lam=1e-2, sigma=0.05),
        lambda: flows.GD(lr=lr, weight_decay=0.01),
    ]
    rule = rules[int(r.integers(len(rules)))]
    keys: dict[str, Any] = {"loss": "exp" if r.random() < 0.45 else "logistic", "seed": seed, "bias": bias}
    keys["steps"] = int(r.choice([1, 3, 20, 80, 250]))
    every = r.random() < 0.5
    keys["trials"] = int(r.integers(1, 3))
    keys["observe"] = ["default", "weights"] if r.random() < 0.8 else "default"
    keys["dtype"] = "float32" if r.random() < 0.1 else "float64"
    keys |= {"times": list(range(keys["steps"] + 1))} if every else {"points": int(r.integers(2, 40))}
    data, made = Dataset(X, y, f"random {seed}"), net()
    return data, made, flows.train(data, made, rule(), **grouped(**keys))


def alarms(seeds: range | list[int]) -> tuple[int, list[str]]:
    """How many runs there were, and what failed in them."""
    count, found = 0, []
    for seed in seeds:
        try:
            data, net, run = trained(seed)
        except InputError:
            continue
        count += 1
        found += [f"{seed}: {one}" for one in theory.check(run, data, net=net) if one.violated]
    return count, found


@pytest.mark.slow
def test_no_alarm_where_there_was_one():
    count, found = alarms(ALARMS)
    assert count == len(ALARMS) and not found


@pytest.mark.slow
def test_no_alarm_on_random_runs():
    count, found = alarms(range(5000, 5007))
    assert count > 2 and not found


@pytest.mark.long
def test_no_alarm_on_many_random_runs():
    count, found = alarms(range(6000, 6300))
    assert count > 150 and not found


def checked(data: Dataset, net: flows.Net, rule: Any, ids: list[str], **options: Any) -> list[theory.Inequality]:
    run = flows.train(data, net, rule, record=["default", "weights"], **options)
    return theory.check(run, data, ids=ids)


def test_the_margin_of_the_first_signs_bounds_no_later_ones():
    """LR-29 is about features that stay: a step that flips the sign of the only neuron has another gamma."""
    line = Dataset(np.array([[1.0], [-1.0], [0.5]]), np.array([-1.0, -1.0, -1.0]), "line")
    options: dict[str, Any] = {"loss": "exp", "stop": 4, "bias": True}
    bound = "min_i p_i / |W|^2 <= gamma / 2"
    for seed in range(5):
        flipped = checked(line, flows.Scalar(2, 1), flows.GD(lr=50.0), ["LR-29"], seed=seed, **options)
        assert not [str(one) for one in flipped if one.violated], seed
        kept = checked(line, flows.Scalar(2, 1), flows.GD(lr=0.01), ["LR-29"], seed=seed, **options)
        assert next(one for one in kept if one.statement == bound).applies.all(), seed


def test_neurons_that_all_but_died():
    """LR-7, 2|a||v| <= |w|^2: the product of squares of 1e-164 is no number with digits."""
    point = Dataset(np.array([[0.6, 0.8]]), np.array([1.0]), "point")
    record = flows.Record(["default", "weights"], times=list(range(31)))
    run = flows.train(point, flows.Normalized(2, 30), flows.Mirror(lr=18.0), loss="logistic", stop=30, record=record)
    assert (np.abs(run["W_a"]) < 1e-80).any()
    found = theory.check(run, point, ids=["LR-7"])
    assert next(one for one in found if one.statement.startswith("2 |a_j| |v_j|")).holds


def test_paths_in_single_precision():
    """MT-4 with one point: the objective is its two bounds, up to the rounding of float32."""
    point = Dataset(np.array([[1.0, 0.5]]), np.array([1.0]), "point")
    rule = flows.WeaklyRegularized(inner=30)
    found = checked(point, flows.TwoLayer(2, 4), rule, ["MT-4"], stop=200, trials=2, dtype="float32")
    assert [one.word for one in found] == ["yes", "yes", "yes"]
    assert all(np.nanmin(one.slack) < -1e-8 for one in found if one.id != "MT-4 upper")  # float64 rounding is less
    assert all(np.nanmax(one.rounding) < 0.05 * np.nanmax(abs(one.left)) for one in found[:2])


def test_losses_far_below_the_penalty_are_not_compared():
    """MT-4's hypothesis is looked at up to rounding; where the penalty hides the loss in it, it says nothing of the loss."""
    point = Dataset(np.array([[20.0, 10.0]]), np.array([1.0]), "far point")
    net = flows.TwoLayer(2, 4, activation="srelu")
    found = checked(point, net, flows.WeaklyRegularized(inner=30), ["MT-4"], stop=200, trials=2, dtype="float32")
    last = next(one for one in found if one.id == "MT-4")
    assert not last.violated and np.nanmin(last.slack) < -10


def test_a_point_without_features():
    origin = Dataset(np.zeros((1, 2)), np.array([1.0]), "origin")
    found = checked(origin, flows.make_net("output", 2, 4), flows.SmoothMarginAscent(), ["CB-32"], loss="exp", stop=10)
    assert found and not any(one.violated for one in found)
