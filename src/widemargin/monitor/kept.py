"""Answers of the search for homogeneous parameters on disk, by a key of the architecture.

A search that took a second or more is kept in `$WIDEMARGIN_CACHE` (by default `widemargin` in the user's cache folder; empty:
not at all). The key is a hash of all that the answer can depend on but values: modules with their settings and, where they
are not torch's own, their source, names, shapes and types of parameters, shapes of the inputs. What was kept is scaled again
before it is used, so it can be wrong in one way alone: a larger set may be homogeneous by now.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from widemargin.disk import make_folders, read_json
from widemargin.types import InputError, write_atomically

from .homogeneous import Homogeneous, check_homogeneous, find_homogeneous
from .model import is_sharded, unwrap
from .scaling import Probe

SEARCH = 1  # of the search: what another one found is not looked for
LONG = 1.0  # seconds of a search from which on its answer is kept, and before which it says that it begins


def from_plain(state: Mapping[str, Any]) -> Homogeneous:
    """What `dataclasses.asdict` made of it, as it was; lists may have taken the place of tuples."""
    known = dict(state)
    known["evidence"] = tuple(Probe(**{**probe, "names": tuple(probe["names"])}) for probe in known["evidence"])
    return Homogeneous(**{**known, "names": tuple(known["names"]), "notes": tuple(known["notes"])})


def find_or_recall(model: nn.Module, batch: Any, forward: Callable[[nn.Module, Any], Any] | None) -> Homogeneous:
    """`find_homogeneous`, or its answer for this architecture from the disk, scaled again."""
    path = None if is_sharded(model) else _place(model, batch, forward)
    known = None if path is None else _read(path)
    if known is not None:
        with contextlib.suppress(InputError):  # it is not so any more: a search
            check_homogeneous(model, known.names, batch, degree=known.degree, forward=forward)
            return known
    began = time.perf_counter()
    answer = find_homogeneous(model, batch, forward=forward, progress=announce)
    if path is not None and answer.names and time.perf_counter() - began >= LONG:
        with contextlib.suppress(OSError, ValueError):  # no place for it is no trouble
            make_folders(path.parent)
            write_atomically(path, json.dumps(asdict(answer)).encode())
    return answer


def announce(seconds: float, count: int) -> None:
    """Where the search will be felt, say so: it is in the middle of the first step."""
    if seconds >= LONG:
        print(
            f"widemargin: looking for the parameters (of {count}) that the outputs are homogeneous in, once, about "
            f"{seconds:.0f} s",
            file=sys.stderr,
            flush=True,
        )


def folder() -> Path | None:
    """Where answers are kept; None where they are not to be."""
    asked = os.environ.get("WIDEMARGIN_CACHE")
    if asked is not None:
        return Path(asked) if asked else None
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(home) if home else Path.home() / ".cache") / "widemargin"
    except RuntimeError:  # nobody's home
        return None


def _read(path: Path) -> Homogeneous | None:
    try:
        answer = from_plain(read_json(path))
        good = answer.names and all(isinstance(name, str) for name in answer.names) and isinstance(answer.degree, int)
        return answer if good else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None  # damaged, or of another version: as if it were not there


def _place(model: nn.Module, batch: Any, forward: Callable[[nn.Module, Any], Any] | None) -> Path | None:
    where = folder()
    key = None if where is None else architecture(model, batch, forward)
    return None if where is None or key is None else where / "homogeneous" / f"{key}.json"


def architecture(model: nn.Module, batch: Any, forward: Callable[[nn.Module, Any], Any] | None) -> str | None:
    """A hash of the architecture, the kind of the inputs and the function of the logits; None where code has no source."""
    inner = unwrap(model)
    kinds = {type(module) for module in inner.modules() if not type(module).__module__.startswith("torch.")}
    try:
        sources = sorted(inspect.getsource(kind) for kind in kinds)
        sources.append("" if forward is None else inspect.getsource(forward))
    except (OSError, TypeError):
        return None
    first = {id(p): name for name, p in inner.named_parameters()}
    parameters = [
        (name, first[id(p)], list(p.shape), str(p.dtype), p.requires_grad)
        for name, p in inner.named_parameters(remove_duplicate=False)
    ]
    modules = [(name, type(module).__qualname__, module.extra_repr()) for name, module in inner.named_modules()]
    device = next((p.device.type for p in inner.parameters()), "cpu")
    cast = str(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else ""
    versions = [SEARCH, torch.__version__, device, cast]
    text = json.dumps([versions, modules, parameters, sources, _shapes(batch)])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _shapes(part: Any) -> Any:
    """Shapes without the number of examples, and types."""
    if isinstance(part, Tensor):
        return [list(part.shape[1:]), str(part.dtype)]
    if isinstance(part, Mapping):
        return {str(key): _shapes(value) for key, value in part.items()}
    if isinstance(part, tuple | list):
        return [_shapes(value) for value in part]
    return type(part).__name__
