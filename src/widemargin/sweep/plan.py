"""What a sweep is: a function, the values its parameters take, and how often.

    name = "widths"
    function = "train"                 # train, margin, bound, reproduce, or "module:function" of one's own
    repeats = 8                        # trials 0..7 of every combination, independent of each other
    keep = ["margin_M2", "status"]     # columns of the result; all of them if left out

    [fixed]
    data = "clusters:n=60,k=3,seed={trial}"   # {name} is replaced by that parameter
    algorithm = "gf"
    time = 1e4

    [grid]
    width = [8, 32, 128]

    [random]                           # instead of a grid, or beside it: `samples` draws of all of them together
    lr = { low = 1e-3, high = 1.0, log = true }

A run is one combination and one trial. Its key is a hash of function, parameters, seed, trial and code version.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import string
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from widemargin.types import InputError

KEYS = ("name", "function", "repeats", "seed", "keep", "samples", "pack", "fixed", "grid", "random")
PACK = 64  # runs computed together, at most
Value = str | int | float | bool | list | None


@dataclass(frozen=True)
class Run:
    """One combination of parameters and one trial."""

    key: str
    params: Mapping[str, Any]
    trial: int


@dataclass(frozen=True)
class Sweep:
    function: str
    name: str = "sweep"
    fixed: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    random: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    samples: int = 0
    repeats: int = 1
    seed: int = 0
    keep: Sequence[str] | None = None
    pack: int = PACK
    folder: Path | None = None  # where the file lies: "module:function" is looked for there too

    def __post_init__(self) -> None:
        for what, low in (("repeats", 1), ("seed", 0), ("pack", 1), ("samples", 0)):
            value = getattr(self, what)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise InputError(f"{what} must be an integer of at least {low}, not {value!r}")
        if not isinstance(self.function, str) or not self.function:
            raise InputError('function must be train, margin, bound, reproduce or "module:function"')
        for what in ("fixed", "grid", "random"):
            if not isinstance(getattr(self, what), Mapping):
                raise InputError(f"[{what}] must be a table of parameters")
        seen: set[str] = set()
        for name in [*self.fixed, *self.grid, *self.random]:
            if name in seen:
                raise InputError(f"the parameter {name!r} is given twice; it can be fixed, in the grid or random")
            if name in ("trial", "seed"):
                raise InputError(f"{name!r} is no parameter of a sweep; set repeats, and seed at the top")
            seen.add(name)
        for name, values in self.grid.items():
            if not isinstance(values, list | tuple) or not values:
                raise InputError(f"the grid of {name!r} is empty or no list; give at least one value")
            texts = [json.dumps(value) for value in values]
            if len(set(texts)) < len(texts):
                raise InputError(f"the grid of {name!r} has a value twice")
        for name, law in self.random.items():
            _check_law(name, law)
        if self.random and not self.samples:
            raise InputError("[random] needs samples, the number of draws, at the top")
        if self.samples and not self.random:
            raise InputError("samples is the number of draws of [random], which is missing")
        if self.keep is not None and (not self.keep or not all(isinstance(one, str) for one in self.keep)):
            raise InputError("keep must be a list of names of columns")

    @staticmethod
    def load(path: str | Path) -> Sweep:
        """Read a TOML file."""
        try:
            found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(f"there is no file {path}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path} cannot be read: {error}") from None
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{path} is no TOML file: {error}") from None
        unknown = [key for key in found if key not in KEYS]
        if unknown:
            raise InputError(f"{path}: unknown key {unknown[0]!r}; there are {', '.join(KEYS)}")
        if "function" not in found:
            raise InputError(f'{path} does not say what to run; set function = "train", say')
        try:
            return Sweep(**{"name": Path(path).stem} | found, folder=Path(path).resolve().parent)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    def combinations(self) -> Iterator[dict[str, Any]]:
        """Every combination of the grid with every draw, without trials."""
        for values in itertools.product(*self.grid.values()):
            for draw in self._draws():
                yield {**self.fixed, **dict(zip(self.grid, values)), **draw}

    def _draws(self) -> Iterator[dict[str, Any]]:
        if not self.random:
            yield {}
            return
        for k in range(self.samples):  # a draw depends on (seed, its number, the parameter's name) alone
            yield {name: _draw(law, _generator(self.seed, k, name)) for name, law in self.random.items()}

    def runs(self, version: str) -> Iterator[Run]:
        """Every run, in order. `version` is that of the code."""
        for params in self.combinations():
            for trial in range(self.repeats):
                filled = {name: _filled(name, value, params, trial, self.seed) for name, value in params.items()}
                yield Run(self.key(filled, trial, version), filled, trial)

    def __len__(self) -> int:
        return math.prod(len(values) for values in self.grid.values()) * max(1, self.samples) * self.repeats

    def key(self, params: Mapping[str, Any], trial: int, version: str) -> str:
        text = json.dumps([self.function, params, self.seed, trial, version], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def _filled(name: str, value: Any, params: Mapping[str, Any], trial: int, seed: int) -> Any:
    """A text with its {names} replaced."""
    if not isinstance(value, str) or "{" not in value:
        return value
    known = {**params, "trial": trial, "seed": seed}
    try:
        asked = [part for _, part, _, _ in string.Formatter().parse(value) if part is not None]
        missing = [part for part in asked if part not in known or part == name]
        if missing:
            raise InputError(f"{name} = {value!r} asks for {missing[0]!r}; there are {', '.join(sorted(known))}")
        return value.format(**known)
    except (ValueError, IndexError) as error:
        raise InputError(f"{name} = {value!r}: {error}") from None


def _check_law(name: str, law: Any) -> None:
    if isinstance(law, Mapping) and set(law) == {"choices"} and isinstance(law["choices"], list) and law["choices"]:
        return
    numbers = isinstance(law, Mapping) and {"low", "high"} <= set(law) <= {"low", "high", "log", "integer"}
    if not numbers or not all(isinstance(law[end], int | float) for end in ("low", "high")) or law["low"] > law["high"]:
        raise InputError(
            f"the law of {name!r} must be {{ low = .., high = .., log = true, integer = true }} (the last two if wanted) "
            "or { choices = [..] }"
        )
    if law.get("log") and law["low"] <= 0:
        raise InputError(f"the law of {name!r} is logarithmic, so low must be above 0")


def _generator(seed: int, draw: int, name: str) -> np.random.Generator:
    return np.random.default_rng([seed, draw, *name.encode()])


def _draw(law: Mapping[str, Any], rng: np.random.Generator) -> Any:
    if "choices" in law:
        return law["choices"][int(rng.integers(len(law["choices"])))]
    low, high = law["low"], law["high"]
    if law.get("integer"):
        if law.get("log"):
            return int(min(high, math.floor(math.exp(rng.uniform(math.log(low), math.log(high + 1))))))
        return int(rng.integers(low, high + 1))
    return float(math.exp(rng.uniform(math.log(low), math.log(high))) if law.get("log") else rng.uniform(low, high))
