"""Where scalars go besides the file: TensorBoard writers, Lightning's loggers, wandb, mlflow and the like, functions.

A logger that fails is warned about once and asked again at the next record; the run goes on, and records and files are complete.
Values that are not finite (a margin that cannot be normalised, say) are no points of a curve: they are in the records only.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

from widemargin.types import InputError

from .record import Record

Logger = Callable[[dict[str, float], int], None]


def named(record: Record, everything: bool = False) -> dict[str, float]:
    """The record's finite scalars under the names they are logged by: margin/psi of a step, margin/test/psi of a data set."""
    prefix = "margin/" if record.name == "step" else f"margin/{record.name}/"
    return {prefix + key: value for key, value in record.scalars(everything).items() if math.isfinite(value)}


def as_logger(target: Any) -> Logger:
    """A function of (scalars, step) that never raises.

    `target`: TensorBoard's SummaryWriter, anything with log_metrics(dict), log_dict(dict) or log(dict) (Lightning's loggers and
    Fabric, wandb, mlflow), or a function. The step is passed where one is taken, and is among the scalars where it is not.
    wandb takes no step that lies behind its own: call `monitor.flush()` before your own wandb.log, or steps are dropped.
    """
    return _warning_once(_sender(target), target)


def _sender(target: Any) -> Logger:
    if inspect.isclass(target):
        raise InputError(f"{target.__name__} is a class; make a logger of it first: log={target.__name__}(...)")
    if callable(getattr(target, "add_scalar", None)):

        def to_writer(scalars: dict[str, float], step: int) -> None:
            for name, value in scalars.items():
                target.add_scalar(name, value, step)

        return to_writer
    for name in ("log_metrics", "log_dict", "log"):
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
    given: list[inspect.Parameter] = []
    with contextlib.suppress(TypeError, ValueError):
        given = list(inspect.signature(method).parameters.values())
    for name in ("step", "global_step"):
        if any(p.name == name and p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) for p in given):
            return lambda scalars, step: method(scalars, **{name: step})
    needed = [p for p in given if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty]
    if len(needed) == 2:
        return lambda scalars, step: method(scalars, step)
    if any(p.kind is p.VAR_KEYWORD for p in given):
        return lambda scalars, step: method(scalars, step=step)
    return lambda scalars, step: method({**scalars, "step": step})


def _warning_once(send: Logger, target: Any) -> Logger:
    """Training does not end because a server is away."""
    failed = False

    def logger(scalars: dict[str, float], step: int) -> None:
        nonlocal failed
        try:
            send(scalars, step)
        except Exception as error:
            if not failed:
                failed = True
                kind = getattr(target, "__name__", type(target).__name__)
                warnings.warn(
                    f"logging to {kind} failed at step {step} ({type(error).__name__}: {error}); the records are kept, and it is "
                    "tried again at the next one without another warning",
                    stacklevel=4,
                )

    return logger
