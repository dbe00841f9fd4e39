"""What can be swept: each task computes a batch of runs and returns a row for each.

Runs of `train` that differ in their data or trial alone are trained together as one batch of flows; the others are computed one
after the other in the same process, which saves the cost of sending them one by one.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import itertools
import json
import math
import os
import stat
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import widemargin
from widemargin import data as datasets
from widemargin import kinds
from widemargin.disk import read_json
from widemargin.errors import did_you_mean
from widemargin.forms import number, table
from widemargin.spaces import as_space
from widemargin.types import F1_CONVERSIONS, Dataset, InputError, write_atomically

from .own_functions import call_own, check_own, module_of, one_thread, own_function, signature
from .plan import Run, Sweep
from .store import as_json, cells, check_size

Row = dict[str, Any]
KEPT = table({"lower": number(), "upper": number()})  # of a certificate in a store
CERTIFICATES = "certificates"
LARGEST = 50_000  # runs of a batch, which are all in memory
TRIED = 200  # values of a parameter that are tried before a sweep begins
MOST_KINDS = 1_000  # combinations of SELECT
LIMIT = 60.0  # seconds for a certificate with certify = true
SELECT = ("net", "algorithm", "kind", "id")  # on what these are depends which other parameters there are
INTEGERS = ("width", "steps", "points", "check_every")
NUMBERS = ("lr", "time")
TEXTS = ("data", "label", "test", "net", "algorithm", "loss", "clock", "until", "device", "dtype")
TRAIN = (*TEXTS, *INTEGERS, *NUMBERS, "bias", "certify")
FIT = ("data", "label", "loss", "weight_decay", "share", "bias", "output_bias", "tol", "time_limit", "device")
BOUND = ("data", "label", "run_or_net", "delta", "theorems", "time_limit")


class Late(BaseException):
    """Time is up for a dry run. No Exception, which functions might take for one of their own."""


class Outcome(NamedTuple):
    """Of one run: its row, or the traceback of its failure; `complaint` where the sweep itself is at fault."""

    row: Row | None
    traceback: str = ""
    complaint: str = ""


@dataclass(frozen=True)
class Work:
    """A batch on its way to a worker."""

    function: str
    runs: Sequence[Run]
    seed: int
    keep: Sequence[str] | None = None
    folder: str | None = None  # of the sweep's file: functions and data files are looked for there too
    store: str | None = None
    device: str | None = None
    tell: Callable[[float], None] | None = None  # given the share of a training that is over, in this process only


def version(sweep: Sweep) -> str:
    """Of the code that runs depend on: the package's, with a hash of the module of one's own function."""
    if ":" not in sweep.function:
        return widemargin.__version__
    own_function(sweep.function, sweep.folder)  # complains where there is none
    source = getattr(module_of(sweep.function.partition(":")[0], sweep.folder), "__file__", None)
    content = Path(source).read_bytes() if source else b""
    return f"{widemargin.__version__}+{hashlib.sha256(content).hexdigest()[:12]}"


def key(sweep: Sweep, run: Run, version: str) -> str:
    """Of a run: that of the plan, where the content of the data files that it reads counts too."""
    files = [run.params[name] for name in ("data", "test") if isinstance(run.params.get(name), str)]
    stamps = "".join(f"+{stamp}" for text in files if (stamp := _stamp(_found(text, sweep.folder))))
    return sweep.key(run.params, run.trial, version + stamps) if stamps else run.key


def _stamp(path: str) -> str:
    """A hash of a file; nothing where there is none."""
    try:
        now = os.stat(path)
    except (OSError, ValueError):
        return ""
    # Tools that copy files set their times as they like, but not the last one.
    which = (now.st_ino, now.st_mtime_ns, now.st_size, now.st_ctime_ns)
    return _file_stamp(path, which) if stat.S_ISREG(now.st_mode) else ""


@functools.lru_cache(1000)
def _file_stamp(path: str, which: tuple[int, ...]) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


def check(sweep: Sweep) -> None:
    """Complain before anything runs where the function, a parameter or a value is not known.

    Looked at are all combinations of what decides on other parameters (SELECT), and every value of every parameter once.
    """
    if ":" not in sweep.function and sweep.function not in TASKS:
        raise InputError(f'unknown function {sweep.function!r}; choose {", ".join(TASKS)} or "module:function"')
    asked = sweep.mentioned()
    base = next(sweep.combinations())
    values: dict[str, list[Any]] = {name: [] for name in base}
    for name, value in sweep.extremes():
        values[name].append(value)
    others = [{name: value} for name in values if name not in SELECT for value in _some(values[name])]
    for choice in [*_kinds(sweep), *others]:
        params = sweep.filled({**base, **choice}, 0)
        if ":" in sweep.function:
            check_own(sweep.function, sweep.folder, params, asked)
        else:
            TASKS[sweep.function][0](params, asked, sweep.folder)


def _some(values: list[Any]) -> list[Any]:
    """At most TRIED of the values, evenly spread: trying each of very many would take as long as the sweep."""
    return values if len(values) <= TRIED else [values[k * (len(values) - 1) // (TRIED - 1)] for k in range(TRIED)]


def _kinds(sweep: Sweep) -> Iterator[dict[str, Any]]:
    """Every combination of the parameters on which others depend."""
    values: dict[str, list[Any]] = {}
    for name, value in sweep.extremes():
        if name in SELECT:
            values.setdefault(name, []).append(value)
    many = math.prod(map(len, values.values()))
    if many > MOST_KINDS:
        raise InputError(
            f"there are {many} combinations of {', '.join(values)}, on which other parameters depend; give at most {MOST_KINDS}"
        )
    return (dict(zip(values, some)) for some in itertools.product(*values.values()))


def takes_device(sweep: Sweep) -> bool:
    if ":" in sweep.function:
        given = signature(sweep.function, sweep.folder).parameters.values()
        return any(parameter.name == "device" or parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in given)
    if sweep.function == "margin":
        return all("device" in _margin_names(params) for params in _kinds(sweep))
    return sweep.function in ("train", "fit", "reproduce")


def batches(sweep: Sweep, version: str) -> Iterator[list[Run]]:
    """Runs that are handed out together, at most `pack` and LARGEST; of train, those that are trained together.

    Which runs are together depends on the sweep alone, not on workers or on what is done already: a batch is computed and
    stored as a whole, so that stopping and going on changes no bit. One batch at a time is in memory.
    """
    most = min(sweep.pack or 1, LARGEST)
    if sweep.function != "train":
        runs = _keyed(sweep, version)
        while some := list(itertools.islice(runs, most)):
            yield some
        return
    # What only the text of data mentions (n, sep, ...) varies fastest, so that runs that can be trained together come together.
    known = {name for params in _kinds(sweep) for name in _train_names(params)}
    loose = {"data", "test"} | (sweep.mentioned() - known)

    def alike(run: Run) -> str:  # as a text, since 1 == True
        return json.dumps({name: value for name, value in run.params.items() if name not in loose})

    for _, group in itertools.groupby(_keyed(sweep, version, loose), alike):
        while some := list(itertools.islice(group, most)):
            yield some


def _keyed(sweep: Sweep, version: str, inner: Collection[str] = ()) -> Iterator[Run]:
    for run in sweep.runs(version, inner):
        yield Run(key(sweep, run, version), run.params, run.trial)


def compute(work: Work) -> list[Outcome]:
    """What a worker executes. What a function prints goes where messages go."""
    trains = work.function == "train"
    parts = [work.runs] if trains else [[run] for run in work.runs]
    with_scipy = not trains or any("certify" in run.params for run in work.runs)  # training itself never calls it
    with one_thread(with_scipy), contextlib.redirect_stdout(sys.stderr):
        complaint, outcomes = _stale(work), []
        if not complaint:
            outcomes = [outcome for part in parts for outcome in _attempt(work, part)]
            complaint = _stale(work)  # it may have happened in between
    return [Outcome(None, complaint=complaint)] * len(work.runs) if complaint else outcomes


def _stale(work: Work) -> str:
    """A complaint where code or data files are not those that the driver has seen: rows would stand under wrong keys."""
    folder = None if work.folder is None else Path(work.folder)
    plan = Sweep(work.function, seed=work.seed, folder=folder)
    now = version(plan)
    for run in work.runs:
        plain = Run(plan.key(run.params, run.trial, now), run.params, run.trial)
        if key(plan, plain, now) != run.key:
            what = f"the file of {work.function}" if ":" in work.function else f"widemargin or {run.params.get('data')}"
            return (
                f"{what} is not the one that this sweep began with (changed on the way, or another on this node); "
                "run the same command again"
            )
    return ""


def _attempt(work: Work, runs: Sequence[Run]) -> list[Outcome]:
    """Compute runs together; if that fails, one by one, to see which is to blame."""
    there = runs
    if work.device is not None:
        there = [Run(run.key, {**run.params, "device": work.device}, run.trial) for run in runs]
    try:
        if ":" in work.function:
            rows = [call_own(work.function, work.folder, run, work.seed) for run in there]
        else:
            rows = TASKS[work.function][1](there, work.seed, work)
    except (KeyboardInterrupt, Late):
        raise
    except BaseException:  # also of asyncio, or of a library in Rust that panics, which are none of Python's usual kind
        if len(runs) == 1:
            return [Outcome(None, traceback.format_exc())]
        return [outcome for run in runs for outcome in _attempt(work, [run])]
    return [_chosen(run, row, work.keep) for run, row in zip(runs, rows)]


def _chosen(run: Run, row: Row, keep: Sequence[str] | None) -> Outcome:
    try:
        plain = {name: _plain(value) for name, value in row.items()}
        cells(run.params, plain)  # what the table cannot hold is the function's fault
    except Exception:
        return Outcome(None, traceback.format_exc())
    missing = [name for name in keep or () if name not in plain]
    if missing:
        there = ", ".join(map(str, plain))
        return Outcome(
            None, complaint=f"keep: there is no result {missing[0]!r} of {dict(run.params)}; there are {there}"
        )
    chosen = plain if keep is None else {name: plain[name] for name in keep}
    try:
        check_size(cells(run.params, chosen))
    except InputError:
        return Outcome(None, traceback.format_exc())
    return Outcome(chosen)


def _plain(value: Any) -> Any:
    """Numbers, texts and truth values as they are, without classes of one's own; everything else as JSON."""
    if hasattr(value, "tolist"):  # of numpy and torch
        value = value.tolist()
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return None if value is None else as_json(value)


def _found(path: str, folder: Path | str | None) -> str:
    """A file's path as it is, or beside the sweep's file."""
    if folder is not None and not Path(path).exists() and (Path(folder) / path).is_file():
        return str(Path(folder) / path)
    return path


def _load(params: Mapping[str, Any], folder: Path | str | None, what: str = "data") -> Dataset:
    path = _found(params[what], folder)
    return _loaded(path, params.get("label"), params.get("loss") == "squared", _stamp(path))


@functools.lru_cache(8)  # neighbouring runs often have the same
def _loaded(path: str, label: str | None, targets: bool, stamp: str) -> Dataset:
    return datasets.load(path, label, targets=targets)


# ---------------------------------------------------------------- training


def _train_names(params: Mapping[str, Any]) -> list[str]:
    from widemargin.flows import nets

    kind = params.get("net", "relu")
    if not isinstance(kind, str) or kind not in nets.KINDS:
        raise InputError(f"unknown network {kind!r}; choose {', '.join(nets.KINDS)}")
    return list(
        dict.fromkeys((*TRAIN, *(name for name in nets.KINDS[kind][2] if name != "data"), *_rule_fields(params)))
    )


def _check_train(params: Mapping[str, Any], asked: set[str], folder: Path | None) -> None:
    _check_data("train", params)
    known = _train_names(params)
    for name, value in params.items():
        if name not in known and name not in asked:
            raise InputError(f"train has no parameter {name!r} here; there are {', '.join(known)}")
        _check_kind(name, value)
    if not _rule_kind(params).ends and not any(name in params for name in ("steps", "time", "until")):
        raise InputError("nothing ends this training; set steps, time or until")
    try:
        data = _load(params, folder)
        if params.get("certify") and (
            params.get("loss") == "squared" or "M1" not in _net(params, [data]).conventions()
        ):
            raise InputError("certify is about margins of two-layer networks on the points themselves; leave it out")
        # One step of it shows whether loss, events and rule are known and fit together. Of what is recorded the risk is enough.
        once = {name: value for name, value in params.items() if name not in ("certify", "device")} | {"steps": 1}
        place = None if folder is None else str(folder)
        with one_thread(with_scipy=False):
            _train_alike([Run("", once, 0)], [data], 0, Work("train", (), 0, folder=place), ["log_risk"])
    except TypeError as error:
        raise InputError(f"train cannot use {dict(params)}: {error}") from None


def _check_data(function: str, params: Mapping[str, Any]) -> None:
    if not isinstance(params.get("data"), str):
        raise InputError(f'a sweep of {function} needs data, a text like data = "parity:d=10,n=64"')


def _check_kind(name: str, value: Any) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    number = whole or isinstance(value, float)
    if name in INTEGERS and not (whole and value > 0):
        raise InputError(f"{name} must be a positive integer, not {value!r}")
    if name in NUMBERS:
        _check_positive({name: value}, name)
    if name in TEXTS and not isinstance(value, str):
        raise InputError(f"{name} must be a text, not {value!r}")
    if name == "bias" and not isinstance(value, bool):
        raise InputError(f"bias must be true or false, not {value!r}")
    if name == "certify" and not (isinstance(value, bool) or (number and value > 0)):
        raise InputError(f"certify must be true, or seconds for the certificate, not {value!r}")


def _rule_kind(params: Mapping[str, Any]) -> Any:
    from widemargin.flows.names import rule_kind

    kind = params.get("algorithm", "gd")
    if not isinstance(kind, str):
        raise InputError(f"algorithm must be a text, not {kind!r}")
    return rule_kind(kind)


def _rule_fields(params: Mapping[str, Any]) -> list[str]:
    return [field.name for field in fields(_rule_kind(params)) if field.init and field.name != "seed"]


def _rule(params: Mapping[str, Any], seed: int) -> Any:
    from widemargin.flows.names import rate_field, rule_from_words

    make = _rule_kind(params)
    keys = {name: params[name] for name in _rule_fields(params) if name in params and name not in TRAIN}
    if "seed" in [field.name for field in fields(make)]:
        keys["seed"] = seed
    if "lr" in params:
        rate = rate_field(make)
        if rate is None:
            raise InputError(f"the algorithm {params.get('algorithm', 'gd')} has no learning rate; leave lr out")
        keys[rate] = params["lr"]
    return rule_from_words(params.get("algorithm", "gd"), keys)


def _net(params: Mapping[str, Any], data: Sequence[Dataset]) -> Any:
    from widemargin.flows import nets
    from widemargin.flows.fields import only_plain

    kind = params.get("net", "relu")
    keys = {name: params[name] for name in nets.KINDS[kind][2] if name in params and name not in TRAIN}
    keys = only_plain(nets.CLASSES[kind], keys, f"the network {kind}")
    if kind == "batchnorm" and not keys.get("minibatch"):
        keys["data"] = data[0].X if len(data) == 1 else np.stack([each.X for each in data])
    return nets.make_net(kind, data[0].d + int(params.get("bias", False)), int(params.get("width", 100)), **keys)


def _train(runs: Sequence[Run], seed: int, work: Work) -> list[Row]:
    """Train runs that differ in data and trial alone, as one batch for each size of data."""
    loaded = {text: _load(run.params, work.folder) for text, run in {run.params["data"]: run for run in runs}.items()}
    rows: dict[str, Row] = {}
    sizes: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        sizes.setdefault((*loaded[run.params["data"]].X.shape, run.params.get("test")), []).append(run)
    for members in sizes.values():
        trained = _train_alike(members, [loaded[run.params["data"]] for run in members], seed, work)
        rows |= {run.key: row for run, row in zip(members, trained)}
    return [rows[run.key] for run in runs]


def _train_alike(
    runs: Sequence[Run], data: Sequence[Dataset], seed: int, work: Work, observe: str | Sequence[str] = "default"
) -> list[Row]:
    from widemargin import flows

    params = dict(runs[0].params)
    net = _net(params, data)
    test = None if "test" not in params else _load(params, work.folder, "test")
    if net.outputs > 1:
        data, test = [flows.as_classes(each) for each in data], None if test is None else flows.as_classes(test)
    same = len({each.sha256() for each in data}) == 1
    bias = bool(params.get("bias", False))

    def asked(*names: str) -> dict[str, Any]:
        return {name: params[name] for name in names if name in params}

    traj = flows.train(
        data[0] if same else list(data),
        net,
        _rule(params, seed),
        stop=flows.Stop(**asked("steps", "time", "clock", "until", "check_every")),
        # rows hold the last records alone, so those on the way would be for nothing
        record=flows.Record(
            observe, points=params.get("points", 2), test=test, progress=_shares(work, params, len(data))
        ),
        trials=[run.trial for run in runs],
        seed=seed,
        bias=bias,
        **asked("loss", "device", "dtype"),
    )
    if traj.interrupted:  # Ctrl-C in this very process: half a run is none
        raise KeyboardInterrupt
    rows = []
    for k, each in enumerate(data):
        row = traj.last(k)
        row.pop("trial")
        if params.get("certify"):
            row |= _share(row, each, bias, getattr(net, "activation", "relu"), params["certify"], work.store)
        rows.append(row)
    return rows


def _shares(work: Work, params: Mapping[str, Any], count: int) -> Callable[..., None] | None:
    """What hears how far a training is; nothing where it may end long before its last step, or where others follow it."""
    tell = work.tell
    if tell is None or "until" in params or "certify" in params or count < len(work.runs):
        return None
    return lambda seconds, share, medians: tell(share)


def _share(row: Row, data: Dataset, bias: bool, activation: str, limit: float, store: str | None) -> Row:
    """Certified bounds of the F1 margin (convention M1), and the share of the upper one that was reached.

    The margin of a ReLU network, leaky or not, is recorded in the convention M2, so it is compared with the bound there.
    """
    lower, upper = _certificate(data, bias, activation, LIMIT if limit is True else float(limit), store)
    converted = as_space(activation).degree == 1 and row.get("margin_M2") is not None
    reached = row["margin_M2"] / F1_CONVERSIONS["M2"] if converted else row["margin_M1"]
    return {"certified_lower": lower, "certified_upper": upper, "fraction": reached / upper if upper > 0 else math.nan}


def _certificate(data: Dataset, bias: bool, activation: str, limit: float, store: str | None) -> tuple[float, float]:
    """From the store's folder where another run has been here already; a worker on another machine may not see that folder."""
    from widemargin.margins.wide_networks import f1

    asked = [data.sha256(), bias, activation, limit, widemargin.__version__]
    name = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:24]
    path = Path(store) / CERTIFICATES / f"{name}.json" if store is not None and Path(store).is_dir() else None
    if path is not None and path.is_file():
        with contextlib.suppress(OSError, ValueError):  # what is damaged is computed again
            kept = read_json(path)
            KEPT(kept, "")
            return kept["lower"], kept["upper"]
    cert = f1(data, bias=bias, activation=activation, time_limit=limit)
    if cert.status == "interrupted":
        raise KeyboardInterrupt
    if path is not None:
        path.parent.mkdir(exist_ok=True)
        content = {"data": data.name, "sha256": data.sha256(), "lower": cert.lower, "upper": cert.upper}
        write_atomically(path, json.dumps(content).encode())
    return cert.lower, cert.upper


# ---------------------------------------------------------------- margins, bounds, reproductions


def _margin_function(params: Mapping[str, Any]) -> Callable[..., Any]:
    from widemargin import margins

    kind = params.get("kind", "f1")
    if not isinstance(kind, str) or kind not in kinds.OFFERED:
        raise InputError(
            f"unknown kind of margin {kind!r}{did_you_mean(kind, kinds.OFFERED)}; choose {', '.join(kinds.OFFERED)}"
        )
    return getattr(margins, kinds.KINDS[kind].function)


def _margin_names(params: Mapping[str, Any]) -> list[str]:
    hidden = ("space", "progress", "seed")
    return [
        "kind",
        "label",
        *(name for name in inspect.signature(_margin_function(params)).parameters if name not in hidden),
    ]


def _check_margin(params: Mapping[str, Any], asked: set[str], folder: Path | None) -> None:
    _check_data("margin", params)
    known = _margin_names(params)
    for name in params:
        if name not in known and name not in asked:
            raise InputError(f"this margin has no parameter {name!r}; there are {', '.join(known)}")
    _check_positive(params, "tol", "time_limit")
    _load(params, folder)


def _margin(runs: Sequence[Run], seed: int, work: Work) -> list[Row]:
    rows = []
    for run in runs:
        function, known = _margin_function(run.params), _margin_names(run.params)
        keys = {k: v for k, v in run.params.items() if k in known and k not in ("data", "kind", "label")}
        if "seed" in inspect.signature(function).parameters:
            keys["seed"] = seed + run.trial
        said = function(_load(run.params, work.folder), **keys).summary()
        if said["status"] == "interrupted":
            raise KeyboardInterrupt
        rows.append({name: said[name] for name in ("lower", "upper", "gap", "status", "proved", "convention")})
    return rows


def _check_fit(params: Mapping[str, Any], asked: set[str], folder: Path | None) -> None:
    from widemargin.optima import problem

    _check_data("fit", params)
    for name, value in params.items():
        if name not in FIT and name not in asked:
            raise InputError(f"fit has no parameter {name!r}; there are {', '.join(FIT)}")
        _check_kind(name, value)
    _check_positive(params, "weight_decay", "share", "tol", "time_limit")
    if ("weight_decay" in params) == ("share" in params):
        raise InputError("a sweep of fit needs one of weight_decay and share, the share of the largest decay")
    keys = _fit_keys(params)
    if "share" in params and keys["output_bias"] == "decayed":
        raise InputError("with a decayed output bias there is no largest decay; give weight_decay instead of share")
    data = _load_for_loss(params, folder)
    decay = params.get("weight_decay", 1.0)
    problem.enter(data, keys["loss"], decay, keys["bias"], keys["output_bias"], None, 1e-3, 60.0)


def _fit_keys(params: Mapping[str, Any]) -> dict[str, Any]:
    """What the largest decay depends on, too. TOML has no null, so that none is a word."""
    mode = params.get("output_bias", "free")
    return {
        "loss": params.get("loss", "logistic"),
        "bias": params.get("bias", False),
        "output_bias": None if mode == "none" else mode,
    }


def _load_for_loss(params: Mapping[str, Any], folder: Path | str | None) -> Dataset:
    return datasets.load_for_loss(
        _found(params["data"], folder), params.get("label"), loss=params.get("loss", "logistic")
    )


def _fit(runs: Sequence[Run], seed: int, work: Work) -> list[Row]:
    """The least objective of training with weight decay, and what its network does."""
    from widemargin import optima

    rows = []
    for run in runs:
        params, data = run.params, _load_for_loss(run.params, work.folder)
        keys = _fit_keys(params) | {"seed": seed + run.trial}
        keys |= {name: params[name] for name in ("tol", "time_limit", "device") if name in params}
        decay = params.get("weight_decay")
        if decay is None:
            decay = params["share"] * optima.largest_decay(data, **keys).upper
        said = optima.path(data, [decay], **keys)[0].summary()
        if said["status"] == "interrupted":
            raise KeyboardInterrupt
        names = ("lower", "upper", "gap", "status", "proved", "mean_loss", "norm", "margin", "error")
        rows.append({"decay": decay, "neurons": said["atoms"]} | {name: said[name] for name in names})
    return rows


def _check_bound(params: Mapping[str, Any], asked: set[str], folder: Path | None) -> None:
    from widemargin import theory

    _check_data("bound", params)
    for name in params:
        if name not in BOUND and name not in asked:
            raise InputError(f"bound has no parameter {name!r}; there are {', '.join(BOUND)}")
    theorems = params.get("theorems", [])
    if not isinstance(theorems, list) or any(theorem not in [*theory.THEOREMS] for theorem in theorems):
        raise InputError(f"theorems must be a list of ids of `widemargin claims`, not {theorems!r}")
    _check_positive(params, "delta", "time_limit")
    if params.get("delta", 0.5) >= 1:
        raise InputError(f"delta must lie between 0 and 1, not {params['delta']!r}")
    theory.facts(_load(params, folder), params.get("run_or_net"))


def _check_positive(params: Mapping[str, Any], *names: str) -> None:
    for name in names:
        value = params.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise InputError(f"{name} must be a positive number, not {value!r}")


def _bound(runs: Sequence[Run], seed: int, work: Work) -> list[Row]:
    """For every guarantee: its value, and whether it applies.

    Names are ids with _ for -, and a number where an id occurs again. A value beyond floating point is inf, and NAME_loglog is
    the logarithm of its logarithm. What is known up to a constant is called NAME_up_to_a_constant.
    """
    from widemargin import theory

    rows = []
    for run in runs:
        keys = {k: v for k, v in run.params.items() if k in BOUND and k not in ("data", "label")}
        given = theory.guarantees(_load(run.params, work.folder), seed=seed + run.trial, **keys)
        row: Row = {}
        count: dict[str, int] = {}
        for guarantee in given.to_dict()["guarantees"]:
            name = guarantee["id"].replace("-", "_")
            count[name] = count.get(name, 0) + 1
            name += f"_{count[name]}" * (count[name] > 1)
            value, named = guarantee["value"], name
            if isinstance(value, Mapping) and "loglog" not in value:
                ((order, value),) = value.items()
                named = f"{name}_{order}"
            if isinstance(value, Mapping):
                row[named], row[f"{named}_loglog"] = math.inf, value["loglog"]
            else:
                row[named] = value
            row[f"{name}_applies"] = guarantee["applies"]
        rows.append(row)
    return rows


def _check_reproduce(params: Mapping[str, Any], asked: set[str], folder: Path | None) -> None:
    from widemargin import papers

    if set(params) - {"id", "scale", "device"} - asked or "id" not in params:
        raise InputError("a sweep of reproduce needs id, and takes scale and device")
    if params.get("scale", "quick") not in ("quick", "paper"):
        raise InputError(f"scale must be quick or paper, not {params['scale']!r}")
    if len(papers.find([params["id"]])) != 1:
        raise InputError(f"id = {params['id']!r} stands for several; give ids of `widemargin reproduce list`")


def _reproduce(runs: Sequence[Run], seed: int, work: Work) -> list[Row]:
    import tempfile

    from widemargin import papers

    rows = []
    for run in runs:
        with tempfile.TemporaryDirectory() as folder:
            keys = {k: v for k, v in run.params.items() if k in ("scale", "device")}
            verdicts = papers.run(papers.find([run.params["id"]])[0], folder, seed=seed + run.trial, **keys)
        rows.append(papers.count(verdicts) | {"verdicts": [verdict.to_dict() for verdict in verdicts]})
    return rows


Check = Callable[[Mapping[str, Any], set[str], Path | None], None]
TASKS: dict[str, tuple[Check, Callable[[Sequence[Run], int, Work], list[Row]]]] = {
    "train": (_check_train, _train),
    "margin": (_check_margin, _margin),
    "fit": (_check_fit, _fit),
    "bound": (_check_bound, _bound),
    "reproduce": (_check_reproduce, _reproduce),
}
