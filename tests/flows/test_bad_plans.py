"""What `flows.train` and its parts are given of another type ends in one sentence."""

import numpy as np
import pytest
import torch

from widemargin import Dataset, InputError, flows

DATA = Dataset([[1.0, 2.0], [2.0, -1.0], [-1.0, 0.5]], [1, -1, 1])
NET = flows.TwoLayer(2, 3)
HUGE = 10**400
ODD = [b"x", 1j, {"a": 1}, np.array([1, 2, 3]), np.array(5), torch.tensor([1.0, 2.0]), object(), DATA]


def refusal(ask, value):
    """What is said of it, where that is one sentence that can be read; else nothing."""
    with pytest.raises(InputError) as caught:
        ask(value)
    said = str(caught.value)
    return said if "\n" not in said and len(said) < 300 else ""


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("loss", ["x", HUGE, [], *ODD]),
        ("dtype", [None, "x", HUGE, *ODD]),
        ("bias", [None, "x", 2, HUGE, *ODD]),
        ("seed", [None, "x", True, -1, 1.5, *ODD]),
        ("trials", ["x", True, 0, 1.5, HUGE, *ODD[:3], *ODD[4:]]),
        ("keep", [3, HUGE, *ODD]),
    ],
)
def test_arguments_of_train(name, values):
    said = "out" if name == "keep" else name  # a plain value is the first field of `flows.Keep`
    for value in values:
        assert said in refusal(lambda value: flows.train(DATA, NET, flows.GD(), **{"stop": 2, name: value}), value)


@pytest.mark.parametrize(
    ("part", "field", "values"),
    [
        (flows.Stop, "clock", ["x", 3, HUGE, *ODD]),
        (flows.Stop, "check_every", ["x", -1, 1.5, HUGE, *ODD]),
        (flows.Record, "observe", [3, HUGE, np.array(5)]),
        (flows.Record, "points", [None, "x", 1, HUGE, *ODD]),
        (flows.Record, "progress", ["x", 3, HUGE, *ODD]),
        (flows.Keep, "out", [3, HUGE, *ODD]),
        (flows.Keep, "resume", [None, "x", 2, HUGE, *ODD]),
        (flows.Keep, "seconds", [None, "x", -1, float("nan"), *ODD]),
    ],
)
def test_fields_of_the_plan(part, field, values):
    given = {"out": "run"} if part is flows.Keep else {}
    for value in values:
        assert field in refusal(lambda value: part(**given | {field: value}), value)


@pytest.mark.parametrize(
    ("rule", "field", "values"),
    [
        (flows.GD, "schedule", ["x", 3, HUGE, *ODD]),
        (flows.SGD, "order", ["x", 3, HUGE, *ODD]),
        (flows.SGD, "seed", ["x", 1.5, HUGE, *ODD]),
        (flows.SGD, "sampler", ["x", 3, *ODD]),
        (flows.Adam, "only", [None, 3, [1], HUGE, *ODD]),
        (flows.Adam, "unit", [None, 3, [1], HUGE, *ODD]),
        (flows.GradientFlow, "rtol", [None, "x", -1.0, HUGE, *ODD]),
        (flows.GradientFlow, "order", [None, "x", 4, HUGE, *ODD]),
        (flows.GradientFlow, "until", ["fitted", 3, HUGE, *ODD]),
    ],
)
def test_fields_of_rules(rule, field, values):
    for value in values:
        assert field in refusal(lambda value: flows.train(DATA, NET, rule(**{field: value}), stop=2), value)


def test_names_of_rules_and_times():
    for value in (3, HUGE, *ODD):
        assert "algorithm" in refusal(flows.make_rule, value)
    for value in (b"x", {"a": 1}, 1j, ["a"]):
        times = flows.Record(times=value)
        assert "times" in refusal(lambda times: flows.train(DATA, NET, flows.GD(), stop=2, record=times), times)


def test_numbers_of_trials_as_an_array():
    run = flows.train(DATA, NET, flows.GD(), stop=2, trials=np.array([3, 7]))
    one = flows.train(DATA, NET, flows.GD(), stop=2, trials=[7])
    assert np.array_equal(run["risk"][:, 1], one["risk"][:, 0])


@pytest.mark.parametrize(
    ("ask", "values"),
    [
        (flows.parse_until, [3, None, b"risk=1", *ODD]),
        (lambda value: flows.rebuild_net(value), [None, 3, "relu", ODD[1], *ODD[3:]]),
        (lambda value: flows.make_net(value, 2, 3), [None, [], *ODD]),
        (lambda value: flows.kkt_residual(value, {}), [None, NET, *ODD]),
        (lambda value: flows.kkt_residual(flows.pose(NET, DATA, "exp"), value), [None, *ODD]),
        (lambda value: flows.pose(value, DATA, "exp"), [None, 3, *ODD]),
        (lambda value: flows.pose(NET, DATA, "exp", dtype=value), [None, "int64", "nn", *ODD]),
        (flows.as_classes, [None, 3]),
        (flows.growth, ["x", None, HUGE, [[1], [1, 2]], torch.ones(2, requires_grad=True), 1j, DATA]),
        (lambda value: flows.save_certificate("run", value), [None, "x", *ODD]),
        (lambda value: flows.train(DATA, NET, flows.GD(), stop=2, trials=value), [[[1], [1, 2]], [None]]),
        (lambda value: flows.WassersteinFlow(reduction=value), [np.array([]), 3]),
        (lambda value: flows.Mirror(clock=value), [np.array([]), 3]),
        (lambda value: flows.Steepest(nesterov=value), [np.ones((30, 30)), 3]),
    ],
)
def test_arguments_of_the_parts_that_train_uses(ask, values):
    for value in values:
        assert refusal(ask, value)
