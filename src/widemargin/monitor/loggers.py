"""Where scalars go besides the file: TensorBoard writers, anything with `log(dict)`, functions."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

from widemargin.types import InputError

Logger = Callable[[dict[str, float], int], None]


def as_logger(target: Any) -> Logger:
    """A function of (scalars, step). TensorBoard's SummaryWriter, wandb and the like, `mlflow`-style modules, or a function."""
    if hasattr(target, "add_scalar"):

        def to_writer(scalars: dict[str, float], step: int) -> None:
            for name, value in scalars.items():
                target.add_scalar(name, value, step)

        return to_writer
    for name in ("log", "log_metrics"):
        method = getattr(target, name, None)
        if callable(method):
            return _with_step(method)
    if callable(target):
        return _with_step(target)
    raise InputError(
        f"cannot log to a {type(target).__name__}; give a TensorBoard SummaryWriter, "
        "anything with log(dict), or a function of (dict, step)"
    )


def _with_step(method: Callable[..., Any]) -> Logger:
    """Pass the step if the method takes one, else put it among the scalars."""
    given: dict[str, inspect.Parameter] = {}
    with contextlib.suppress(TypeError, ValueError):
        given = dict(inspect.signature(method).parameters)
    if "step" in given or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in given.values()):
        return lambda scalars, step: method(scalars, step=step)
    if len([p for p in given.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]) >= 2:
        return lambda scalars, step: method(scalars, step)
    return lambda scalars, step: method({**scalars, "step": step})
