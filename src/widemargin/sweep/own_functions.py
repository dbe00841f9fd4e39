"""Functions of one's own, swept by name: where they are found, what they take, and how they are called, on one thread."""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from widemargin.types import InputError

from .plan import Run


@contextlib.contextmanager
def one_thread(with_scipy: bool = True) -> Iterator[None]:
    """Workers share the cores, and sums must not depend on how many there are. Else scipy is not looked at."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _pools(with_scipy).limit(limits=1):
            yield
    finally:
        torch.set_num_threads(before)


@functools.cache
def _pools(with_scipy: bool) -> Any:
    if with_scipy:
        import scipy.linalg  # noqa: F401  its library is to be found below
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def own_function(function: str, folder: Path | str | None) -> Callable[..., Any]:
    module, _, name = function.partition(":")
    if folder is not None and str(folder) not in sys.path and not _is_ours(module):
        sys.path.insert(0, str(folder))
    try:
        own = getattr(module_of(module, folder), name)
    except (Exception, SystemExit) as error:
        raise InputError(
            f"{function} cannot be imported: {error}; module:function must be importable from the file's folder"
        ) from None
    if not callable(own):
        raise InputError(f"{function} is no function")
    return own


def _is_ours(module: str) -> bool:
    """Whether it is a module of widemargin: a file of that name beside the plan is none."""
    return module.partition(".")[0] == "widemargin"


def signature(function: str, folder: Path | str | None) -> inspect.Signature:
    try:
        return inspect.signature(own_function(function, folder))
    except (ValueError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{function} does not tell its parameters; write a function of your own around it") from None


def module_of(name: str, folder: Path | str | None) -> Any:
    """By its path where it lies in the folder, so that modules of one name in two folders are two."""
    path = None if folder is None or _is_ours(name) else Path(folder) / f"{name}.py"
    if path is None or not path.is_file():
        return importlib.import_module(name)
    return _file_module(name, str(path.resolve()), path.stat().st_mtime_ns)


@functools.cache
def _file_module(name: str, path: str, changed: int) -> Any:
    alias = f"_{name}_{hashlib.sha256(path.encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(alias, path)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules[alias] = module  # dataclasses and pickle look there
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def _own_args(
    function: str, folder: Path | str | None, params: Mapping[str, Any], seed: int, trial: int
) -> dict[str, Any]:
    """Its parameters, and `seed` (of this run alone) and `trial` where the function takes them."""
    given = signature(function, folder).parameters
    every = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in given.values())
    offered = {**params, "seed": seed, "trial": trial}
    return {name: value for name, value in offered.items() if every or name in given}


def check_own(function: str, folder: Path | str | None, params: Mapping[str, Any], asked: set[str]) -> None:
    args = _own_args(function, folder, params, 0, 0)
    unknown = [name for name in params if name not in args and name not in asked]
    given = signature(function, folder)
    if unknown:
        raise InputError(f"{function} has no parameter {unknown[0]!r}; there are {', '.join(given.parameters)}")
    try:
        given.bind(**args)
    except TypeError as error:
        raise InputError(f"{function} cannot be called: {error}; give it in [fixed], [grid] or [random]") from None


def call_own(function: str, folder: str | None, run: Run, seed: int) -> dict[str, Any]:
    # Combinations that share a trial share its seed: what differs between them is then the parameters alone.
    own_seed = int(np.random.SeedSequence([seed, run.trial]).generate_state(1)[0])
    params = copy.deepcopy(dict(run.params))  # a function may change what it is given
    with one_thread():  # also after a run that has set another number
        result = own_function(function, folder)(**_own_args(function, folder, params, own_seed, run.trial))
    if not isinstance(result, Mapping):
        raise InputError(f"{function} returned a {type(result).__name__}; it must return a mapping of names to numbers")
    return dict(result)
