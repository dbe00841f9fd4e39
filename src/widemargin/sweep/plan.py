"""What a sweep is: a function, the values its parameters take, and how often.

    name = "widths"
    function = "train"                 # train, margin, fit, bound, reproduce, or "module:function" of one's own
    repeats = 8                        # trials 0..7 of every combination, independent of each other
    keep = ["margin_M2", "status"]     # columns of the result; all of them if left out

    [fixed]
    data = "clusters:n={n},k=3,seed={trial}"   # {name} is replaced by that parameter
    algorithm = "gd"
    steps = 1000

    [grid]
    width = [8, 32, 128]
    n = [20, 60]                       # not known to train, but asked for by data

    [random]                           # instead of a grid, or beside it; samples = 100 at the top draws all of them 100 times
    lr = { low = 1e-3, high = 1.0, log = true }

A run is one combination and one trial. Its key is a hash of function, parameters, seed, trial and code version.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import itertools
import json
import math
import re
import string
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from widemargin.disk import read_file
from widemargin.forms import Form, Misfit, anything, listed, maybe, need, number, table, truth, whole
from widemargin.forms import text as text_of
from widemargin.types import InputError, show

KEYS = ("name", "function", "repeats", "seed", "keep", "samples", "pack", "fixed", "grid", "random")
PACK = {"train": 64, "margin": 1, "fit": 1, "bound": 1, "reproduce": 1}  # runs handed out together, at most
OWN_PACK = 8  # of functions of one's own
LARGEST_INTEGER = 2**63 - 1  # integer that SQLite holds
DEEPEST = 20  # lists within lists
LARGEST_FILE = 1 << 20  # bytes of a TOML file, which people write
DOTS = 10  # in one key of it
WIDEST = 100  # characters that a {name:format} may ask for
LONGEST_TEXT = 1 << 20  # characters of a text with its {names} replaced
# Texts and comments of TOML. What is begun and not ended goes to the end of its line or file: no place is looked at twice.
TEXT = re.compile(
    r'''"""(?:[^\\"]|\\.|"(?!""))*+(?:"""|\Z)|\'{3}(?:[^']|'(?!''))*+(?:\'{3}|\Z)|"(?:[^"\\\n]|\\.)*+"?|'[^'\n]*+'?|#[^\n]*+''',
    re.DOTALL,
)
ROOMS = ("data", "margins", "optima", "spaces", "theory")  # whose functions compute
WRITES = {"path", "out", "folder", "file", "save", "store"}  # parameters of those that write what they are told to
OWN = ("key", "sweep", "function", "version", "seed", "trial")  # columns of the table that are no parameters


@dataclass(frozen=True)
class Run:
    """One combination of parameters and one trial.

    `params` are its parameters by name, `trial` counts from 0, and `key` is a hash of both, of the function, seed and code
    version.

    >>> from widemargin.sweep import Run, Sweep
    >>> runs = list(Sweep("train", grid={"width": [4, 8]}, repeats=2).runs("version 1"))
    >>> [(run.params, run.trial) for run in runs]
    [({'width': 4}, 0), ({'width': 4}, 1), ({'width': 8}, 0), ({'width': 8}, 1)]
    """

    key: str
    params: Mapping[str, Any]
    trial: int


@dataclass(frozen=True)
class Sweep:
    """A plan: a `function`, the values that its parameters take, and how often.

    function   "train", "margin", "fit", "bound", "reproduce", or "module:function" of one's own, looked for in `folder` too
    name       of the sweep, in the table
    fixed      parameters with one value; {other} in a text is replaced by another parameter, {trial} by the number of the trial
    grid       parameters with a list of values: every combination is run
    random     parameters with a law, {"low": 1e-3, "high": 1.0, "log": True} say; `samples` is how often all of them are drawn
    repeats    trials of every combination, independent of each other
    seed       of draws and trials
    keep       columns of the result that are stored; all of them where left out
    pack       runs handed out together, at most; of train: trained together

    >>> from widemargin.sweep import Sweep
    >>> plan = Sweep("margin", fixed={"data": "parity:d={d},n=8"}, grid={"d": [2, 3], "kind": ["f1", "f2"]}, repeats=5)
    >>> len(plan)
    20
    """

    function: str
    name: str = "sweep"
    fixed: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    random: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    samples: int = 0
    repeats: int = 1
    seed: int = 0
    keep: Sequence[str] | None = None
    pack: int | None = None  # runs handed out together, at most; of train: trained together
    folder: Path | None = None  # where the file lies: "module:function" is looked for there too

    def __post_init__(self) -> None:
        for what in ("fixed", "grid", "random"):
            if not isinstance(getattr(self, what), Mapping):
                raise InputError(f"[{what}] must be a table of parameters")
            plain = {str(name): _listed(value) for name, value in getattr(self, what).items()}
            object.__setattr__(self, what, plain)
        for what, low in (("repeats", 1), ("seed", 0), ("pack", 1), ("samples", 0)):
            value = getattr(self, what)
            if isinstance(value, np.integer):  # which JSON does not take
                value = int(value)
                object.__setattr__(self, what, value)
            if what == "pack" and value is None:
                continue
            if _beyond(value):
                raise InputError(f"{what} is beyond 2^63 - 1; give a smaller integer")
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise InputError(f"{what} must be an integer of at least {low}, not {value!r}")
        if not isinstance(self.name, str) or not self.name or not encodable(self.name):
            raise InputError(f"name must be a text, not {self.name!r}")
        if not isinstance(self.function, str) or not self.function:
            raise InputError('function must be train, margin, fit, bound, reproduce or "module:function"')
        if self.pack is None:
            object.__setattr__(self, "pack", PACK.get(self.function, OWN_PACK))
        seen: set[str] = set()
        lowered: set[str] = set()
        for name in [*self.fixed, *self.grid, *self.random]:
            if name in seen:
                raise InputError(f"the parameter {name!r} is given twice; it can be fixed, in the grid or random")
            if name.lower() in ("trial", "seed"):
                raise InputError(f"{name!r} is no parameter of a sweep; set repeats, and seed at the top")
            if name.lower() in OWN:
                raise InputError(f"{name!r} is a column of the table itself; call the parameter something else")
            if name.lower() in lowered:
                raise InputError(f"two parameters differ from {name!r} in case only; rename one of them")
            if not name or "\0" in name or len(name) > 200 or not encodable(name):
                raise InputError(f"a parameter is called {name[:200]!r}; a name must be a text of 1 to 200 characters")
            seen.add(name)
            lowered.add(name.lower())
        for name, value in self._values():
            _check_value(name, value)
        for name, values in self.grid.items():
            if not isinstance(values, list | tuple) or not values:
                raise InputError(f"the grid of {name!r} is empty or no list; give at least one value")
            texts = [json.dumps(value, default=str) for value in values]
            if len(set(texts)) < len(texts):
                raise InputError(f"the grid of {name!r} has a value twice")
        for name, law in self.random.items():
            _check_law(name, law)
        if self.random and not self.samples:
            raise InputError("[random] needs samples, the number of draws, at the top")
        if self.samples and not self.random:
            raise InputError("samples is the number of draws of [random], which is missing")
        if self.keep is not None and (
            not isinstance(self.keep, list | tuple)
            or not self.keep
            or not all(isinstance(column, str) for column in self.keep)
            or len(set(self.keep)) < len(self.keep)
        ):
            raise InputError("keep must be a list of names of results, each once")
        try:
            len(self)
        except OverflowError:
            raise InputError("the sweep has more than 2^63 - 1 runs; give fewer values, samples or repeats") from None

    @staticmethod
    def load(path: str | Path, *, trust: bool = False) -> Sweep:
        """Read a TOML file. Only with `trust` may it name a function that is none of widemargin, or one that writes."""
        try:
            text = read_file(path, LARGEST_FILE).decode("utf-8-sig")
        except FileNotFoundError:
            raise InputError(f"there is no file {path}") from None
        except ValueError as error:
            raise error if isinstance(error, InputError) else InputError(f"{path} cannot be read: {error}") from None
        # The parser takes time and memory like the square of a key's parts.
        if any(part.count(".") > DOTS for part in re.split(r"[=,\[\]{}\n]", TEXT.sub("", text))):
            raise InputError(
                f"{path} has a key with more than {DOTS} dots; a plan needs one or two, as in random.lr.low"
            )
        try:
            table = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{path} is no TOML file: {error}") from None
        except (ValueError, RecursionError):
            raise InputError(f"{path} has a number of thousands of digits or lists too deep; write less") from None
        unknown = [key for key in table if key not in KEYS]
        if unknown:
            raise InputError(f"{path}: unknown key {unknown[0]!r}; there are {', '.join(KEYS)}")
        if "function" not in table:
            raise InputError(f'{path} does not say what to run; set function = "train", say')
        asked = table["function"]
        if not trust and isinstance(asked, str) and ":" in asked and not computes(asked):
            raise InputError(
                f"{path} asks to run the function {show(asked, 200)}, which is none of widemargin or may write files; look at "
                "it, and if you trust the file say so with --trust (in Python trust=True)"
            )
        try:
            return Sweep(**{"name": Path(path).stem} | table, folder=Path(path).resolve().parent)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    def combinations(self, inner: Collection[str] = ()) -> Iterator[dict[str, Any]]:
        """Every combination of the grid with every draw, without trials; the parameters `inner` vary fastest."""
        slow = {name: values for name, values in self.grid.items() if name not in inner}
        fast = {name: values for name, values in self.grid.items() if name in inner}
        for values in itertools.product(*slow.values()):
            for draw in self._draws():
                for last in itertools.product(*fast.values()):
                    chosen = {**self.fixed, **dict(zip(slow, values)), **draw, **dict(zip(fast, last))}
                    yield {name: chosen[name] for name in (*self.fixed, *self.grid, *self.random)}

    def _draws(self) -> Iterator[dict[str, Any]]:
        if not self.random:
            yield {}
            return
        for k in range(self.samples):  # a draw depends on (seed, its number, the parameter's name) alone
            yield {name: _draw(law, _generator(self.seed, k, name)) for name, law in self.random.items()}

    def _values(self) -> Iterator[tuple[str, Any]]:
        """Every value that is written down, with its parameter."""
        yield from self.fixed.items()
        for name, values in self.grid.items():
            yield from ((name, value) for value in (values if isinstance(values, list | tuple) else ()))
        for name, law in self.random.items():
            if isinstance(law, Mapping) and isinstance(law.get("choices"), list):
                yield from ((name, value) for value in law["choices"])

    def extremes(self) -> Iterator[tuple[str, Any]]:
        """Every value that is written down, and the ends of every law: enough to check what a parameter takes."""
        yield from self._values()
        for name, law in self.random.items():
            if "choices" not in law:
                kind = int if law.get("integer") else float
                yield from ((name, kind(law[end])) for end in ("low", "high"))

    def text(self) -> str:
        """The plan as JSON, ready to be read again."""
        parts = {key: getattr(self, key) for key in KEYS}
        return json.dumps({key: value for key, value in parts.items() if value is not None}, sort_keys=True)

    def shares_runs(self, other: Mapping[str, Any]) -> bool:
        """Whether a plan, as `text` writes it, may have runs in common with this one (of one version)."""
        mine = json.loads(self.text())
        if any(mine[what] != other[what] for what in ("function", "seed")):
            return False
        these, those = _possible(mine), _possible(other)
        return these.keys() == those.keys() and all(these[name] & those[name] for name in these)

    def runs(self, version: str, inner: Collection[str] = ()) -> Iterator[Run]:
        """Every run, in order. `version` is that of the code."""
        for params in self.combinations(inner):
            for trial in range(self.repeats):
                filled = self.filled(params, trial)
                yield Run(self.key(filled, trial, version), filled, trial)

    def filled(self, params: Mapping[str, Any], trial: int) -> dict[str, Any]:
        """Parameters with {names} in texts replaced."""
        return {name: _filled(name, value, params, trial, self.seed) for name, value in params.items()}

    def mentioned(self) -> set[str]:
        """Parameters that stand in braces in a text of another."""
        asked: set[str] = set()
        for _, value in self._values():
            if isinstance(value, str) and "{" in value:
                with contextlib.suppress(ValueError):  # `filled` will say what is wrong
                    asked |= set(_asked(value))
        return asked & {*self.fixed, *self.grid, *self.random}

    def __len__(self) -> int:
        return math.prod(len(values) for values in self.grid.values()) * max(1, self.samples) * self.repeats

    def key(self, params: Mapping[str, Any], trial: int, version: str) -> str:
        """The key of one run, 32 hexadecimal digits."""
        text = json.dumps([self.function, params, self.seed, trial, version], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def _law(value: Any, where: str) -> None:
    if isinstance(value, Mapping) and "choices" in value:
        return table({"choices": listed(anything, 1)})(value, where)
    table({"low": number(), "high": number()}, {"log": truth, "integer": truth})(value, where)
    need(value["low"] <= value["high"], where, "goes from high to low")


PLAN: Form = table(
    {
        "name": text_of(10_000),
        "function": text_of(10_000),
        "seed": whole(),
        "fixed": table({}),
        "grid": table({}, others=listed(anything, 1)),
        "random": table({}, others=_law),
    },
    {"keep": maybe(listed(text_of())), "repeats": whole(1), "samples": whole(), "pack": maybe(whole(1))},
)


def read_plan(text: Any) -> dict[str, Any]:
    """A plan as `Sweep.text` writes it; a ValueError where it is none."""
    if not isinstance(text, str):
        raise Misfit("a plan is no text")
    try:
        plan = json.loads(text)
    except RecursionError:
        raise Misfit("a plan has lists within lists, too deep to be read") from None
    PLAN(plan, "")
    try:
        _listed(plan)
    except InputError as error:  # it is a sentence of its own
        raise Misfit(str(error)) from None
    return plan


def _possible(plan: Mapping[str, Any]) -> dict[str, set[str]]:
    """What each parameter may be, as JSON; draws from an interval are alike where their laws are."""
    lists = {name: [value] for name, value in plan["fixed"].items()} | plan["grid"]
    lists |= {name: law.get("choices", [law]) for name, law in plan["random"].items()}
    return {name: {json.dumps(value, sort_keys=True) for value in values} for name, values in lists.items()}


def computes(function: str) -> bool:
    """Whether "module:function" is a public function of widemargin that writes nothing: a file from anyone may name it."""
    module, _, name = function.partition(":")
    room = module.removeprefix("widemargin.")
    if not module.startswith("widemargin.") or room not in ROOMS:
        return False
    imported = importlib.import_module(module)
    public = getattr(imported, name) if name in getattr(imported, "__all__", ()) else None
    return inspect.isfunction(public) and not WRITES & set(inspect.signature(public).parameters)


def encodable(text: str) -> bool:
    """Whether a text is one: half of a character (a lone surrogate) is none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _beyond(value: Any) -> bool:
    return isinstance(value, int) and abs(value) > LARGEST_INTEGER


def _listed(value: Any, depth: int = 0) -> Any:
    """Arrays and numbers of numpy as those of Python."""
    if depth > DEEPEST:
        raise InputError(f"a parameter has lists within lists, more than {DEEPEST} deep; write flatter ones")
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, range):
        return list(value)
    if isinstance(value, list | tuple):
        return [_listed(entry, depth + 1) for entry in value]
    return {key: _listed(entry, depth + 1) for key, entry in value.items()} if isinstance(value, Mapping) else value


def _check_value(name: str, value: Any) -> None:
    """Numbers, texts, truth values and lists of them can be written into a key, and read back."""
    if isinstance(value, list | tuple):
        for entry in value:
            _check_value(name, entry)
    elif isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"the parameter {name!r} has the value {value}; give a finite number")
    elif _beyond(value):
        raise InputError(
            f"the parameter {name!r} has an integer beyond 2^63 - 1; write it with a point or as 1e20, say"
        )
    elif value is not None and not isinstance(value, bool | int | float | str):
        raise InputError(
            f"the parameter {name!r} has a value of type {type(value).__name__}; give numbers, texts, truth values or lists"
        )


def _asked(text: str) -> Iterator[str]:
    """What stands in braces in a text, also within a format: n and w of {n:{w}}. There, Python goes no deeper."""
    for _, part, form, _ in string.Formatter().parse(text):
        if part is not None:
            yield part
            yield from (inner for _, inner, _, _ in string.Formatter().parse(form or "") if inner is not None)


class _Formatter(string.Formatter):
    """`str.format`, but no longer than LONGEST_TEXT and no number wider than WIDEST: either could ask for all memory there is."""

    def __init__(self) -> None:
        self.length = 0

    def format_field(self, value: Any, format_spec: str) -> str:
        """Formats come here with what is in braces within them replaced; numbers in them may have digits of any script."""
        if any(int(digits) > WIDEST for digits in re.findall(r"\d+", format_spec)):
            raise ValueError(f"a format asks for more than {WIDEST} characters")
        text = super().format_field(value, format_spec)
        self.length += len(text)
        if self.length > LONGEST_TEXT:
            raise ValueError(f"the text would have more than {LONGEST_TEXT} characters")
        return text


def _filled(name: str, value: Any, params: Mapping[str, Any], trial: int, seed: int) -> Any:
    """A text with its {names} replaced."""
    if not isinstance(value, str) or "{" not in value:
        return value
    known = {**params, "trial": trial, "seed": seed}
    try:
        missing = [part for part in _asked(value) if part not in known or part == name]
        if missing:
            raise InputError(
                f"{name} = {show(value, 200)} asks for {missing[0]!r}; there are {', '.join(sorted(known))}"
            )
        return _Formatter().vformat(value, (), known)
    except InputError:
        raise
    except (ValueError, LookupError, TypeError, OverflowError) as error:
        raise InputError(f"{name} = {show(value, 200)}: {error}; mend what stands in braces") from None


def _check_law(name: str, law: Any) -> None:
    if isinstance(law, Mapping) and set(law) == {"choices"} and isinstance(law["choices"], list) and law["choices"]:
        return
    numbers = isinstance(law, Mapping) and {"low", "high"} <= set(law) <= {"low", "high", "log", "integer"}
    if not numbers or not all(_finite(law[end]) for end in ("low", "high")) or law["low"] > law["high"]:
        raise InputError(
            f"the law of {name!r} must be {{ low = .., high = .., log = true, integer = true }} (the last two if wanted) "
            "or { choices = [..] }"
        )
    if any(_beyond(law[end]) for end in ("low", "high")) or not math.isfinite(law["high"] - law["low"]):
        raise InputError(
            f"the law of {name!r} is too wide; integers go to 2^63 - 1, and high - low must be a floating-point number"
        )
    if not all(isinstance(law.get(flag, False), bool) for flag in ("log", "integer")):
        raise InputError(f"the law of {name!r}: log and integer are true or false")
    if law.get("integer") and not all(isinstance(law[end], int) for end in ("low", "high")):
        raise InputError(f"the law of {name!r} is of integers, so low and high must be integers")
    if law.get("log") and law["low"] <= 0:
        raise InputError(f"the law of {name!r} is logarithmic, so low must be above 0")


def _finite(value: Any) -> bool:
    if isinstance(value, int):  # of any size, which math.isfinite does not take
        return not isinstance(value, bool)
    return isinstance(value, float) and math.isfinite(value)


def _generator(seed: int, draw: int, name: str) -> np.random.Generator:
    return np.random.default_rng([seed, draw, *name.encode()])


def _draw(law: Mapping[str, Any], rng: np.random.Generator) -> Any:
    if "choices" in law:
        return law["choices"][int(rng.integers(len(law["choices"])))]
    low, high = law["low"], law["high"]
    if law.get("integer") and not law.get("log"):
        return int(rng.integers(low, high + 1))
    if law.get("integer"):
        value: float = math.floor(math.exp(rng.uniform(math.log(low), math.log(high + 1))))
    elif law.get("log"):
        value = math.exp(rng.uniform(math.log(low), math.log(high)))
    else:
        value = rng.uniform(low, high)
    value = min(high, max(low, value))  # exp(log(0.1)) is above 0.1, and the floor of exp(log(5)) is 4
    return int(value) if law.get("integer") else float(value)
