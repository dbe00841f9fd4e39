"""A rule, a network and an observer of one's own that break the contract get one sentence; what they raise is noted."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from widemargin import InputError, data, flows, sweep
from widemargin.flows.own_parts import stepped

POINTS = data.parity(4, marginal="full")


def train(net: Any = None, rule: Any = None, **keys: Any) -> flows.training.Trajectory:
    asked = {"stop": 5, "trials": 3, "record": ["risk"]} | keys
    return flows.train(POINTS, net or flows.TwoLayer(4, 6), rule or Still(), **asked)


def counted(state: flows.State, **more: Any) -> flows.State:
    return replace(state, step=state.step + 1, taken=state.taken + 1, **more)


class Still(flows.Rule):
    """Moves nothing, and keeps the contract."""

    def step(self, problem, W, state):
        return dict(W), counted(state)


@dataclass(frozen=True, kw_only=True)
class Carrying(flows.State):
    carried: Any


class Looks:
    """Has the fields of a state, and is none."""

    def __init__(self, state):
        self.__dict__.update(vars(state))


def rule(**methods: Any) -> flows.Rule:
    return type("Mine", (Still,), methods)()


def carrying(value: Any) -> flows.Rule:
    return rule(init=lambda self, problem, W: Carrying(**vars(Still().init(problem, W)), carried=value))


def stepping(change: Any) -> flows.Rule:
    return rule(step=lambda self, problem, W, state: change(W, state))


RULES = {
    "the rule Mine has no step": type("Mine", (flows.Rule,), {})(),
    "the clock of the rule Mine must be mean or cb, not 'wall'": rule(clock="wall"),
    "init of the rule Mine must return a State, .* not a dict": rule(init=lambda *_: {"step": 0}),
    "init of the rule Mine must return a State, .* not None": rule(init=lambda *_: None),
    "init of the rule Mine must return a State, .* not a Looks": rule(
        init=lambda self, problem, W: Looks(Still().init(problem, W))
    ),
    "init of the rule Mine put a function into carried; .* can be saved": carrying(lambda: 3),
    "init of the rule Mine put a list into carried": carrying([torch.zeros(3)]),
    "init of the rule Mine put a ndarray into carried": carrying(np.zeros(3)),
    "init of the rule Mine put a dict into carried": carrying({"a": object()}),
    "init of the rule Mine put a Generator into carried": carrying(torch.Generator()),
    "init of the rule Mine returned a tensor .2,. of int8 as status": rule(
        init=lambda self, problem, W: replace(Still().init(problem, W), status=torch.zeros(2, dtype=torch.int8))
    ),
    "step of the rule Mine must return parameters and state, not a dict": stepping(lambda W, state: W),
    "step of the rule Mine must return parameters and state, not None": stepping(lambda W, state: None),
    "step of the rule Mine must return parameters and state, not a tuple": stepping(lambda W, state: (W, state, 1)),
    "step of the rule Mine must return tensors by name, not a list": stepping(lambda W, s: ([*W.values()], counted(s))),
    "step of the rule Mine returned no V": stepping(lambda W, state: ({"a": W["a"]}, counted(state))),
    "step of the rule Mine returned 'b', which is no parameter": stepping(lambda W, s: (W | {"b": W["a"]}, counted(s))),
    "step of the rule Mine returned a tensor .1, 6. of float64 as a; it is a tensor .3, 6. of float64": stepping(
        lambda W, state: ({name: value[:1] for name, value in W.items()}, counted(state))
    ),
    "step of the rule Mine returned a tensor .3, 6. of float32 as a": stepping(
        lambda W, state: ({name: value.float() for name, value in W.items()}, counted(state))
    ),
    "step of the rule Mine returned a ndarray as a": stepping(
        lambda W, state: ({name: value.numpy() for name, value in W.items()}, counted(state))
    ),
    "step of the rule Mine changed W in place": stepping(
        lambda W, state: ({name: value.mul_(2) for name, value in W.items()}, counted(state))
    ),
    "step of the rule Mine must return a State, .* not a dict": stepping(lambda W, state: (W, vars(state))),
    "step of the rule Mine must return a state whose step is 1, not 0": stepping(lambda W, state: (W, state)),
    "step of the rule Mine returned a float as t_cb": stepping(lambda W, state: (W, counted(state, t_cb=0.5))),
    "step of the rule Mine returned a tensor .2,. of float32 as status": stepping(
        lambda W, state: (W, counted(state, status=torch.zeros(2)))
    ),
}


@pytest.mark.parametrize("says", RULES)
def test_a_rule_that_breaks_the_contract(says: str):
    with pytest.raises(InputError, match=f"^{says}"):
        train(rule=RULES[says])


def test_a_rule_that_breaks_it_in_the_middle():
    """In any step, not in the first alone."""
    late = stepping(lambda W, state: (W if state.step < 3 else {"a": W["a"]}, counted(state)))
    with pytest.raises(InputError, match=r"^step of the rule Mine returned no V$"):
        train(rule=late)


def test_a_rule_may_grow_where_it_says_so():
    more = stepping(lambda W, state: ({name: torch.cat([v, v[:, :1]], 1) for name, v in W.items()}, counted(state)))
    problem = flows.pose(flows.TwoLayer(4, 6), POINTS, "logistic")
    W = {name: torch.tensor(value) for name, value in problem.net.init(3, 0).items()}
    with pytest.raises(InputError, match=r"returned a tensor .3, 7. of float64 as a"):
        stepped(more, problem, W, more.init(problem, W))
    more = type("Mine", (type(more),), {"grows": True})()
    assert stepped(more, problem, W, more.init(problem, W))[0]["a"].shape == (3, 7)
    fewer = rule(grows=True, step=lambda s, p, W, state: ({k: v[:1] for k, v in W.items()}, counted(state)))
    with pytest.raises(InputError, match=r"returned a tensor .1, 6. of float64 as a"):
        stepped(fewer, problem, W, fewer.init(problem, W))


# ---------------------------------------------------------------- networks


@dataclass(frozen=True)
class Linear(flows.Net):
    """f(x) = w . x."""

    trained: tuple[str, ...] = field(default=("w",), init=False)
    homogeneous: tuple[str, ...] = field(default=("w",), init=False)
    degree: int = field(default=1, init=False)

    name = "mine"

    def draw(self, rng):
        return {"w": rng.standard_normal(self.d)}

    def evaluate(self, W, X):
        return (X @ W["w"][:, :, None])[:, :, 0], None

    def pull(self, W, X, g, saved=None):
        return {"w": (g[:, None, :] @ X)[:, 0]}


def linear(**methods: Any) -> flows.Net:
    return dataclass(frozen=True)(type("Wrong", (Linear,), methods))(4, 1)


NETS = {
    "the network net has no draw and no evaluate and no pull": type("Empty", (flows.Net,), {})(4, 1),
    "the network mine has no pull": linear(pull=flows.Net.pull),
    "draw of the network mine must return arrays by name, not list": linear(draw=lambda self, rng: [1.0]),
    "draw of the network mine must return arrays by name, not dict": linear(draw=lambda self, rng: {}),
    "draw of the network mine must return arrays of numbers": linear(draw=lambda s, rng: {"w": np.array(["x"] * s.d)}),
    "the network mine names the parameter w, but it draws only v": linear(draw=lambda s, rng: {"v": np.ones(s.d)}),
    "evaluate of the network mine must return outputs and what pull can use": linear(
        evaluate=lambda self, W, X: Linear.evaluate(self, W, X)[0]
    ),
    "evaluate of the network mine returned a tensor .16,. of float64; outputs are a tensor .1, 16.": linear(
        evaluate=lambda self, W, X: (Linear.evaluate(self, W, X)[0][0], None)
    ),
    "evaluate of the network mine returned a ndarray": linear(
        evaluate=lambda self, W, X: (Linear.evaluate(self, W, X)[0].numpy(), None)
    ),
    "pull of the network mine returned no w": linear(pull=lambda self, W, X, g, saved=None: {}),
    "pull of the network mine returned a tensor .1, 4, 1. of float64 as w": linear(
        pull=lambda self, W, X, g, saved=None: {"w": W["w"][:, :, None]}
    ),
    "pull of the network mine must return tensors by name, not None": linear(
        pull=lambda self, W, X, g, saved=None: None
    ),
}


@pytest.mark.parametrize("says", NETS)
def test_a_network_that_breaks_the_contract(says: str):
    with pytest.raises(InputError, match=f"^{says}"):
        train(NETS[says])


def test_a_network_must_draw_the_same_shapes_in_all_trials():
    class Uneven(Linear):
        def draw(self, rng):
            return {"w": rng.standard_normal(4), "more": np.zeros(rng.integers(1, 1000))}

    with pytest.raises(InputError, match=r"^draw of the network mine returned .* and then .*; trials must have equal"):
        train(Uneven(4, 1))


def test_a_network_with_anything_in_its_fields_is_kept_and_resumed(tmp_path):
    @dataclass(frozen=True)
    class Odd(Linear):
        start: Any = None
        how: Any = print

    net, keys = Odd(4, 1, start=np.arange(4.0)), {"rule": flows.GD(), "stop": 40}
    whole = train(net, keep=tmp_path / "run", **keys)
    again = train(net, keep=flows.Keep(tmp_path / "run", resume=True), **keys)
    assert np.array_equal(whole.final["w"], again.final["w"]) and whole.status == again.status
    with pytest.raises(InputError, match="net"):
        train(Odd(4, 1, start=np.ones(4)), keep=flows.Keep(tmp_path / "run", resume=True), **keys)


# ---------------------------------------------------------------- observers


OBSERVERS = {
    "returned a NoneType, not numbers": lambda view: None,
    "returned a str, not numbers": lambda view: "x",
    "returned a list, not numbers": lambda view: [[1], [1, 2], [3]],
    "returned complex numbers": lambda view: torch.zeros(3, dtype=torch.complex128),
    "returned shape .2,.; it must have one row per trial": lambda view: torch.zeros(2),
    "returned a record called 't'": lambda view: {"t": torch.zeros(3)},
    "returned a record called 3": lambda view: {3: torch.zeros(3)},
    "returned {'mine': .3, 2.} after {'mine': .3, 1.}; names": lambda view: torch.zeros(3, 1 + view.state.step),
    "returned {'k1': .3,.} after {'k0': .3,.}; names": lambda view: {f"k{view.state.step}": torch.zeros(3)},
    "changed the parameters in place": lambda view: view.params["a"].mul_(2)[:, 0],
}


@pytest.mark.parametrize("says", OBSERVERS)
def test_an_observer_that_breaks_the_contract(says: str):
    with pytest.raises(InputError, match=f"^the observer 'mine' {says}"):
        train(record={"mine": OBSERVERS[says]})


@pytest.mark.parametrize("record", [{3: len}, [len]], ids=["a number", "none"])
def test_an_observer_has_a_name(record: Any):
    with pytest.raises(InputError, match=r"^an observer has a name, which is a text"):
        train(record=record)


# ---------------------------------------------------------------- what they raise themselves


def fails(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("mine alone")


@pytest.mark.parametrize(
    ("keys", "note"),
    [
        ({"rule": rule(init=fails)}, "raised by init of the rule Mine"),
        (
            {"rule": stepping(lambda W, s: fails() if s.step == 2 else (W, counted(s)))},
            "raised by step 3 of the rule M",
        ),
        ({"net": linear(evaluate=fails)}, "raised by evaluate of the network mine"),
        ({"net": linear(pull=fails)}, "raised by pull of the network mine"),
        ({"record": {"mine": fails}}, "raised by the observer 'mine'"),
    ],
    ids=["init", "step", "evaluate", "pull", "observer"],
)
def test_their_own_exceptions_go_through_with_a_note(keys: dict[str, Any], note: str):
    with pytest.raises(ZeroDivisionError, match="mine alone") as caught:
        train(**keys)
    (said,) = caught.value.__notes__
    assert said.startswith(note)


@pytest.mark.slow
def test_a_run_whose_rule_raised_goes_on_from_its_last_checkpoint(tmp_path):
    class Once(flows.GD):
        broken = True

        def step(self, problem, W, state):
            if Once.broken and state.step == 7:
                fails()
            return super().step(problem, W, state)

    keep = flows.Keep(tmp_path / "run", seconds=0)
    keys: dict[str, Any] = {"rule": Once(), "stop": 20, "record": ["risk", "margin"]}
    with pytest.raises(ZeroDivisionError):
        train(keep=keep, **keys)
    Once.broken = False
    resumed, straight = train(keep=replace(keep, resume=True), **keys), train(**keys)
    assert all(np.array_equal(resumed[name], straight[name]) for name in straight.records)


def test_a_sweep_says_of_each_run_what_was_wrong(tmp_path):
    """Runs that keep the contract are done, the others failed with their sentence."""
    code = """
    from dataclasses import replace
    from widemargin import data, flows

    class Halved(flows.Rule):
        def step(self, problem, W, state):
            return {name: value / 2 for name, value in W.items()}, replace(state, step=state.step + 1)

    class Shrunk(Halved):
        def step(self, problem, W, state):
            moved, after = super().step(problem, W, state)
            return {name: value[:, 1:] for name, value in moved.items()}, after

    class Raising(Halved):
        def step(self, problem, W, state):
            raise ValueError("mine alone")

    RULES = {"halved": Halved, "shrunk": Shrunk, "raising": Raising}

    def trained(rule, seed, trial):
        run = flows.train(data.parity(4, marginal="full"), flows.TwoLayer(4, 6), RULES[rule](), stop=3, record=["norm"],
                          trials=[trial], seed=seed)
        return {"norm": run["norm"][-1, 0]}
    """
    (tmp_path / "mine_broken.py").write_text(textwrap.dedent(code))
    plan = sweep.Sweep("mine_broken:trained", grid={"rule": ["halved", "shrunk", "raising"]}, folder=tmp_path)
    done = sweep.sweep(plan, tmp_path / "results", engine="inline")
    assert (done.done, done.failed) == (1, 2)
    _, rows = sweep.query(tmp_path / "results", "select params, traceback from failures")
    said = {json.loads(params)["rule"]: error for params, error in rows}
    assert "step of the rule Shrunk returned a tensor (1, 5) of float64 as a" in said["shrunk"]
    assert "ValueError: mine alone" in said["raising"] and "raised by step 1 of the rule Raising" in said["raising"]
    _, rows = sweep.query(tmp_path / "results", "select rule from runs")
    assert [*rows] == [("halved",)]
