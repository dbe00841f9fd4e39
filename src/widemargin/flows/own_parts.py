"""A rule and a network of one's own, held to the contract: one sentence says what they left out or returned in another form.

What they raise themselves goes through as it is, with a note that says in which part of training it happened.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from widemargin.types import InputError

from .contract import Rule, State
from .fields import check_fields
from .nets import Net, Params
from .problem import Problem

SMALL = 1e8  # bytes that there always are
CLOCKS = ("mean", "cb")
COUNTED = ("t_cb", "log_t_mean", "status", "taken")  # tensors (B,) of every state


@contextlib.contextmanager
def during(what: str) -> Iterator[None]:
    """An exception on the way is noted to have come from `what`."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, InputError):
            error.add_note(f"raised {what}")
        raise


def lacks(thing: Any, base: type, *methods: str) -> list[str]:
    """Which of these methods a class does not replace."""
    return [name for name in methods if getattr(type(thing), name) is getattr(base, name)]


# ---------------------------------------------------------------- networks


def check_net(problem: Problem, numbers: Sequence[int], seed: int) -> tuple[float, float]:
    """Draw a trial, evaluate it and pull weights back; an InputError where what comes is not what `Net` promises.

    Bytes that the parameters of a trial take, and those that `pull` needs for each point.
    """
    net = problem.net
    if missing := lacks(net, Net, "evaluate", "pull") + (["draw"] if len(lacks(net, Net, "draw", "init")) == 2 else []):
        raise InputError(f"the network {net.name} has no {' and no '.join(sorted(missing))}; see `flows.Net`")
    try:
        drawn = net.init(numbers[:1], seed)
    except InputError:  # a net that differs between trials is drawn for all of them
        drawn = net.init(numbers, seed)
    W = {name: torch.tensor(value).to(problem.X) for name, value in drawn.items()}
    if odd := [name for name in (*net.trained, *net.homogeneous) if name not in W]:
        raise InputError(f"the network {net.name} names the parameter {odd[0]}, but it draws only {', '.join(W)}")
    trials = len(next(iter(W.values())))
    X = problem.X[:trials]
    with torch.no_grad(), during(f"by evaluate of the network {net.name}"):
        result = net.evaluate(W, X)
    shape = (trials, problem.n) if net.outputs == 1 else (trials, problem.n, net.outputs)
    if not isinstance(result, tuple) or len(result) != 2:
        raise InputError(f"evaluate of the network {net.name} must return outputs and what pull can use, or None")
    f, saved = result
    if not isinstance(f, Tensor) or f.shape != shape or f.dtype != X.dtype:
        raise InputError(
            f"evaluate of the network {net.name} returned {_form(f)}; outputs are {_wanted(shape, X.dtype)}"
        )
    with torch.no_grad(), during(f"by pull of the network {net.name}"):
        pulled = net.pull(W, X, torch.ones_like(f), saved)
    _check_params(f"pull of the network {net.name}", pulled, {name: W[name] for name in net.trained})
    points = _bytes((f, saved), but=(problem.X, *W.values()))
    return _bytes(W) / trials, points / (trials * problem.n)


def check_room(problem: Problem, rule: Rule, trials: int, parameters: float, point: float) -> None:
    """An InputError where this many trials take more memory than there is, with what `check_net` has found."""
    if problem.X.is_cuda:  # which says so itself
        return
    examples = rule.looks_at(problem.n)
    drawn = 0 if examples == problem.n else problem.X.shape[2] * problem.X.element_size()
    need = trials * (rule.copies * parameters + examples * (point + drawn))
    if need < SMALL:
        return
    from widemargin.margins.door import bytes_in_words, free_memory  # which opens a room that small runs do not need

    free = free_memory()
    if need > free:
        raise InputError(
            f"a step of {trials} trials, {examples} examples each, takes at least {bytes_in_words(need)} of memory, and "
            f"{bytes_in_words(free)} are free; use fewer trials, fewer neurons or smaller batches"
        )


def _bytes(value: Any, but: Iterable[Tensor] = ()) -> int:
    """Bytes of all tensors in here, each memory counted once; 0 for views of those in `but`."""
    seen = {one.untyped_storage().data_ptr() for one in but}
    total = 0
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, Tensor):
            storage = one.untyped_storage()
            if storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                total += storage.nbytes()
        elif isinstance(one, Mapping):
            left += one.values()
        elif isinstance(one, tuple | list):
            left += one
    return total


# ---------------------------------------------------------------- rules


def check_rule(rule: Rule) -> None:
    """An InputError where a rule cannot do what the loop asks of it."""
    name = type(rule).__name__
    if lacks(rule, Rule, "step"):
        raise InputError(f"the rule {name} has no step(problem, W, state); see `flows.Rule`")
    if type(rule).__module__.startswith("widemargin."):  # fields of others are theirs
        check_fields(type(rule), vars(rule), name)
    if rule.clock not in CLOCKS:
        raise InputError(f"the clock of the rule {name} must be {' or '.join(CLOCKS)}, not {rule.clock!r}")


def begun(rule: Rule, problem: Problem, W: Params) -> State:
    """The state that the rule begins with."""
    name = f"init of the rule {type(rule).__name__}"
    with during(f"by {name}"):
        state = rule.init(problem, W)
    _check_state(name, state, len(next(iter(W.values()))))
    for field, value in vars(state).items():
        if not _plain(value):
            raise InputError(
                f"{name} put {_form(value)} into {field}; a state has tensors, dictionaries of them, numbers, texts and None, "
                "so that it can be saved"
            )
    return state


def stepped(rule: Rule, problem: Problem, W: Params, state: State) -> tuple[Params, State]:
    """A step of the rule. Costs a few microseconds more than the step itself."""
    versions = [value._version for value in W.values()]
    try:
        result = rule.step(problem, W, state)
    except InputError:
        raise
    except Exception as error:
        error.add_note(f"raised by step {state.step + 1} of the rule {type(rule).__name__}")
        raise
    if type(result) is not tuple or len(result) != 2:
        raise InputError(
            f"step of the rule {type(rule).__name__} must return parameters and state, not {_form(result)}"
        )
    moved, after = result
    if versions != [value._version for value in W.values()]:
        raise InputError(f"step of the rule {type(rule).__name__} changed W in place; it must return new tensors")
    if not _same_form(moved, W, rule.grows):
        _check_params(f"step of the rule {type(rule).__name__}", moved, W, rule.grows)
    if type(after) is not type(state) or after.step != state.step + 1:
        _check_state(f"step of the rule {type(rule).__name__}", after, len(state.status), type(state))
        raise InputError(
            f"step of the rule {type(rule).__name__} must return a state whose step is {state.step + 1}, not {after.step!r}"
        )
    if any(getattr(getattr(after, name), "shape", None) != getattr(state, name).shape for name in COUNTED):
        _check_state(f"step of the rule {type(rule).__name__}", after, len(state.status), type(state))
    return moved, after


def _same_form(moved: Any, W: Params, grows: bool) -> bool:
    """Whether parameters are as before; where it is False, `_check_params` says why, or finds that they only grew."""
    if type(moved) is not dict or moved.keys() != W.keys() or grows:
        return False
    return all(
        isinstance(new := moved[name], Tensor) and new.shape == old.shape and new.dtype == old.dtype
        for name, old in W.items()
    )


def _check_params(who: str, given: Any, W: Params, grows: bool = False) -> None:
    if not isinstance(given, Mapping):
        raise InputError(f"{who} must return tensors by name, not {_form(given)}")
    if missing := [name for name in W if name not in given]:
        raise InputError(f"{who} returned no {missing[0]}")
    if more := [name for name in given if name not in W]:
        raise InputError(
            f"{who} returned {more[0]!r}, which is no parameter that it may move; there are {', '.join(W)}"
        )
    for name, old in W.items():
        new = given[name]
        fits = isinstance(new, Tensor) and new.dtype == old.dtype
        if not fits or (new.shape[:1] != old.shape[:1] if grows else new.shape != old.shape):
            raise InputError(f"{who} returned {_form(new)} as {name}; it is {_wanted(tuple(old.shape), old.dtype)}")


def _check_state(who: str, state: Any, trials: int, kind: type[State] = State) -> None:
    if not isinstance(state, kind):
        raise InputError(
            f"{who} must return a {kind.__name__}, a dataclass that extends flows.State, not {_form(state)}"
        )
    for name in COUNTED:
        value = getattr(state, name)
        if not isinstance(value, Tensor) or value.shape != (trials,):
            raise InputError(
                f"{who} returned {_form(value)} as {name}; it must have a number for each of {trials} trials"
            )


def _plain(value: Any) -> bool:
    """Whether checkpoints, batches cut into pieces and recorded steps can deal with it."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _plain(part) for key, part in value.items())
    return value is None or isinstance(value, Tensor | bool | int | float | str)


def _form(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)} of {_word(value.dtype)}"
    return "None" if value is None else f"a {type(value).__name__}"


def _wanted(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"a tensor {shape} of {_word(dtype)}"


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
