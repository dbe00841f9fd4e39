"""What can be swept: each task computes a batch of runs and returns a row for each.

Runs of `train` that differ in their data or trial alone are trained together as one batch of flows; the others are computed one
after the other in the same process, which saves the cost of sending them one by one.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import math
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

import widemargin
from widemargin import data as datasets
from widemargin.types import InputError, write_atomically

from .plan import Run, Sweep

Row = dict[str, Any]
CERTIFICATES = "certificates"
TRAIN = (
    "data", "label", "test", "net", "width", "algorithm", "lr", "loss", "bias", "steps", "time", "clock", "until", "points",
    "check_every", "device", "dtype", "certify",
)  # fmt: skip


def version(sweep: Sweep) -> str:
    """Of the code that a run depends on: the package's, and the source of a function of one's own."""
    if ":" not in sweep.function:
        return widemargin.__version__
    function = _own(sweep.function, sweep.folder)
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        text = repr(function)
    return f"{widemargin.__version__}+{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def check(sweep: Sweep) -> None:
    """Complain before anything runs where the function or a parameter is not known."""
    if ":" in sweep.function:
        _own(sweep.function, sweep.folder)
        return
    if sweep.function not in TASKS:
        raise InputError(f'unknown function {sweep.function!r}; choose {", ".join(TASKS)} or "module:function"')
    for params in sweep.combinations():
        TASKS[sweep.function][0](params)


def batches(sweep: Sweep, runs: Sequence[Run]) -> list[list[Run]]:
    """Runs that are computed together: those alike in all that must be alike, at most `pack` of them, in order.

    Which runs are together depends on the sweep alone, not on workers or on what is done already: a batch is computed and
    stored as a whole, so that stopping and going on changes no bit.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        alike = {k: v for k, v in run.params.items() if k not in ("data", "test")} if sweep.function == "train" else {}
        groups.setdefault(json.dumps(alike, sort_keys=True), []).append(run)
    return [group[k : k + sweep.pack] for group in groups.values() for k in range(0, len(group), sweep.pack)]


def compute(
    function: str, folder: str | None, runs: Sequence[Run], seed: int, keep: Sequence[str] | None, store: str | None,
    device: str | None = None,
) -> list[tuple[Row | None, str]]:  # fmt: skip
    """(row, "") of each run, or (None, traceback) of one that failed. This is what a worker executes."""
    import torch

    torch.set_num_threads(1)  # workers share the cores
    if ":" in function:
        task: Callable[..., list[Row]] = lambda some, *_: [_call_own(function, folder, run, seed) for run in some]  # noqa: E731
    else:
        task = TASKS[function][1]
    if device is not None:
        runs = [Run(run.key, {**run.params, "device": device}, run.trial) for run in runs]
    found: list[tuple[Row | None, str]] = []
    try:
        rows = task(runs, seed, store)
        return [(_chosen(row, keep), "") for row in rows]
    except Exception:
        if len(runs) == 1:
            return [(None, traceback.format_exc())]
    for run in runs:  # one of them failed: which?
        found += compute(function, folder, [run], seed, keep, store)
    return found


def _chosen(row: Row, keep: Sequence[str] | None) -> Row:
    plain = {name: _plain(value) for name, value in row.items()}
    if keep is None:
        return plain
    missing = [name for name in keep if name not in plain]
    if missing:
        raise InputError(f"there is no result {missing[0]!r} to keep; there are {', '.join(plain)}")
    return {name: plain[name] for name in keep}


def _plain(value: Any) -> Any:
    """Numbers, texts and truth values as they are, everything else as JSON."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return json.dumps(value, default=str)


# ---------------------------------------------------------------- functions of one's own


def _own(function: str, folder: Path | str | None) -> Callable[..., Any]:
    module, _, name = function.partition(":")
    if folder is not None and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"{function} cannot be imported: {error}; module:function must be importable from the file's folder"
        ) from None
    if not callable(found):
        raise InputError(f"{function} is no function")
    return found


def _call_own(function: str, folder: str | None, run: Run, seed: int) -> Row:
    """Called with the parameters, and with `seed` (of this run alone) and `trial` where the function takes them."""
    found = _own(function, folder)
    given = inspect.signature(found).parameters
    every = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in given.values())
    more = {"seed": int(np.random.SeedSequence([seed, run.trial]).generate_state(1)[0]), "trial": run.trial}
    result = found(**run.params, **{name: value for name, value in more.items() if every or name in given})
    if not isinstance(result, Mapping):
        raise InputError(f"{function} returned a {type(result).__name__}; it must return a mapping of names to numbers")
    return dict(result)


# ---------------------------------------------------------------- training


def _check_train(params: Mapping[str, Any]) -> None:
    from widemargin.flows import nets

    if "data" not in params:
        raise InputError('a sweep of train needs data, like data = "parity:d=10,n=64"')
    kind = params.get("net", "relu")
    if kind not in nets.KINDS:
        raise InputError(f"unknown network {kind!r}; choose {', '.join(nets.KINDS)}")
    known = (*TRAIN, *nets.KINDS[kind][2], *_rule_fields(params))
    for name in params:
        if name not in known:
            raise InputError(f"train has no parameter {name!r} here; there are {', '.join(dict.fromkeys(known))}")
    if not any(name in params for name in ("steps", "time", "until")):
        raise InputError("nothing ends this training; set steps, time or until")


def _rule_class(params: Mapping[str, Any]) -> type:
    from widemargin.flows import flow, rules

    name = params.get("algorithm", "gf")
    return flow.GradientFlow if name == "gf" else type(rules.make_rule(name))


def _rule_fields(params: Mapping[str, Any]) -> list[str]:
    return [one.name for one in fields(_rule_class(params))]


def _train(runs: Sequence[Run], seed: int, store: str | None) -> list[Row]:
    """Train runs that differ in data and trial alone, as one batch for each size of data."""
    loaded = [datasets.load(run.params["data"], run.params.get("label")) for run in runs]
    rows: dict[str, Row] = {}
    sizes: dict[tuple[int, int], list[int]] = {}
    for k, one in enumerate(loaded):
        sizes.setdefault(one.X.shape, []).append(k)
    for members in sizes.values():
        found = _train_alike([runs[k] for k in members], [loaded[k] for k in members], seed, store)
        rows |= {runs[k].key: row for k, row in zip(members, found)}
    return [rows[run.key] for run in runs]


def _train_alike(runs: Sequence[Run], data: Sequence[Any], seed: int, store: str | None) -> list[Row]:
    from widemargin import flows
    from widemargin.flows import nets

    params = dict(runs[0].params)
    kind, make = params.get("net", "relu"), _rule_class(params)
    names = _rule_fields(params)
    for_net = {k: params[k] for k in nets.KINDS[kind][2] if k in params and k not in TRAIN}
    for_rule = {k: params[k] for k in names if k in params and k not in TRAIN} | (
        {"seed": seed} if "seed" in names else {}
    )
    if "lr" in params:
        rate = next((name for name in ("lr", "eta") if name in names), None)
        if rate is None:
            raise InputError(f"the algorithm {params.get('algorithm', 'gf')} has no learning rate; leave lr out")
        for_rule[rate] = params["lr"]
    bias = bool(params.get("bias", False))
    if kind == "batchnorm" and not for_net.get("minibatch"):
        for_net["data"] = data[0].X if len(data) == 1 else np.stack([one.X for one in data])
    net = nets.make_net(kind, data[0].d + int(bias), int(params.get("width", 50)), **for_net)
    same = len({one.sha256() for one in data}) == 1
    test = params.get("test")
    if test is not None and len({run.params["test"] for run in runs}) > 1:
        return [row for run, one in zip(runs, data) for row in _train_alike([run], [one], seed, store)]
    keys = {
        k: params[k]
        for k in ("loss", "steps", "time", "clock", "until", "points", "check_every", "device", "dtype")
        if k in params
    }
    keys.setdefault("points", 2)  # rows hold the last records alone, so those on the way would be for nothing
    traj = flows.train(
        data[0] if same else list(data),
        net,
        make(**for_rule),
        trials=[run.trial for run in runs],
        seed=seed,
        bias=bias,
        test=None if test is None else datasets.load(test, params.get("label")),
        **keys,
    )
    rows = []
    for k, (run, one) in enumerate(zip(runs, data)):
        row = traj.last(k) | {"trial": run.trial}
        if params.get("certify"):
            row |= _share(row, one, bias, getattr(net, "activation", "relu"), float(params["certify"]), store)
        row.pop("trial")
        rows.append(row)
    return rows


def _share(row: Row, data: Any, bias: bool, activation: str, limit: float, store: str | None) -> Row:
    """Certified bounds of the F1 margin, and the share of it that was reached (of half of it in the convention M2)."""
    lower, upper = _certificate(data, bias, activation, limit, store)
    if row.get("margin_M2") is not None:
        reached = 2 * row["margin_M2"]
    else:
        reached = row.get("margin_M1", math.nan)
    return {"certified_lower": lower, "certified_upper": upper, "fraction": reached / upper if upper > 0 else math.nan}


def _certificate(data: Any, bias: bool, activation: str, limit: float, store: str | None) -> tuple[float, float]:
    """From the store's folder where another run has been here already."""
    from widemargin.margins.f1 import f1

    name = hashlib.sha256(json.dumps([data.sha256(), bias, activation, limit]).encode()).hexdigest()[:24]
    path = None if store is None else Path(store) / CERTIFICATES / f"{name}.json"
    if path is not None and path.is_file():
        kept = json.loads(path.read_text())
        return kept["lower"], kept["upper"]
    cert = f1(data, bias=bias, activation=activation, time_limit=limit)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {"data": data.name, "sha256": data.sha256(), "lower": cert.lower, "upper": cert.upper}
        write_atomically(path, json.dumps(content).encode())
    return cert.lower, cert.upper


# ---------------------------------------------------------------- margins, bounds, reproductions


def _margin_function(params: Mapping[str, Any]) -> Callable[..., Any]:
    from widemargin import margins

    kinds: dict[str, Callable[..., Any]] = {
        "f1": margins.f1, "f2": margins.f2, "linear": margins.linear, "frozen": margins.frozen, "ntk": margins.ntk,
        "rf": margins.random_features, "bn": margins.batchnorm, "collapse": margins.collapse, "projected": margins.projected,
    }  # fmt: skip
    kind = params.get("kind", "f1")
    if kind not in kinds:
        raise InputError(f"unknown kind of margin {kind!r}; choose {', '.join(kinds)}")
    return kinds[kind]


def _check_margin(params: Mapping[str, Any]) -> None:
    if "data" not in params:
        raise InputError('a sweep of margin needs data, like data = "parity:d=10,n=64"')
    known = ["kind", "label", *inspect.signature(_margin_function(params)).parameters]
    for name in params:
        if name not in known:
            raise InputError(f"this margin has no parameter {name!r}; there are {', '.join(known)}")


def _margin(runs: Sequence[Run], seed: int, store: str | None) -> list[Row]:
    rows = []
    for run in runs:
        keys = {k: v for k, v in run.params.items() if k not in ("data", "kind", "label")}
        function = _margin_function(run.params)
        if "seed" in inspect.signature(function).parameters:
            keys.setdefault("seed", seed + run.trial)
        cert = function(datasets.load(run.params["data"], run.params.get("label")), **keys)
        names = ("lower", "upper", "gap", "status", "proved", "convention")
        said = cert.summary()
        rows.append({name: said[name] for name in names})
    return rows


def _check_bound(params: Mapping[str, Any]) -> None:
    from widemargin import theory

    if "data" not in params:
        raise InputError('a sweep of bound needs data, like data = "parity:d=10,n=64"')
    known = ["label", *inspect.signature(theory.guarantees).parameters]
    for name in params:
        if name not in known:
            raise InputError(f"bound has no parameter {name!r}; there are {', '.join(known)}")


def _bound(runs: Sequence[Run], seed: int, store: str | None) -> list[Row]:
    from widemargin import theory

    rows = []
    for run in runs:
        keys = {k: v for k, v in run.params.items() if k not in ("data", "label")}
        found = theory.guarantees(
            datasets.load(run.params["data"], run.params.get("label")), seed=seed + run.trial, **keys
        )
        row: Row = {}
        for one in found.to_dict()["guarantees"]:
            row[one["id"]], row[f"{one['id']} applies"] = one["value"], one["applies"]
        rows.append(row)
    return rows


def _check_reproduce(params: Mapping[str, Any]) -> None:
    from widemargin import papers

    if set(params) - {"id", "scale", "device"} or "id" not in params:
        raise InputError("a sweep of reproduce needs id, and takes scale and device")
    papers.find([params["id"]])


def _reproduce(runs: Sequence[Run], seed: int, store: str | None) -> list[Row]:
    import tempfile

    from widemargin import papers

    rows = []
    for run in runs:
        with tempfile.TemporaryDirectory() as folder:
            keys = {k: v for k, v in run.params.items() if k != "id"}
            verdicts = papers.run(papers.find([run.params["id"]])[0], folder, seed=seed + run.trial, **keys)
        holds = [one.holds for one in verdicts]
        rows.append(
            {
                "true": holds.count(True),
                "false": holds.count(False),
                "inconclusive": holds.count(None),
                "verdicts": [{"claim": one.claim, "measured": one.measured, "holds": one.holds} for one in verdicts],
            }
        )
    return rows


TASKS: dict[str, tuple[Callable[[Mapping[str, Any]], None], Callable[[Sequence[Run], int, str | None], list[Row]]]] = {
    "train": (_check_train, _train),
    "margin": (_check_margin, _margin),
    "bound": (_check_bound, _bound),
    "reproduce": (_check_reproduce, _reproduce),
}
