"""`MarginMonitor`: two lines in a training loop."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from widemargin.flows import losses
from widemargin.types import InputError

from . import tally
from .homogeneous import Homogeneous, check_homogeneous, find_homogeneous
from .loggers import as_logger
from .model import (
    Forward,
    blocks,
    check_model,
    device_of,
    evaluating,
    logits_and_targets,
    quick_squares,
    squares,
    to_device,
    unwrap,
)
from .record import Record, from_numbers
from .store import Store

LOSSES = {"ce": losses.LOGISTIC, "bce": losses.LOGISTIC, "exp": losses.EXP}
LEVELS = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9)
HELD = 1 << 20  # margins of training batches held back before they are reduced
FLUSH = 20  # steps held back: one wait for the device in as many steps


class MarginMonitor:
    """Normalised margins of any model, from forward passes and norms alone.

        monitor = MarginMonitor(model, out="run")
        ...
        monitor.step(logits=logits, targets=targets)     # in the loop: uses the training forward, costs next to nothing
        monitor.measure(loader, name="test")             # now and then: one forward pass over the data

    homogeneous   "auto": found by scaling the parameters (`find_homogeneous`) on the first batch seen; or names of parameters,
                  a function of the model that returns names, or what `find_homogeneous` returned
    degree        of homogeneity, where names are given; found by scaling if it is left out
    loss          "ce" cross-entropy (one class per example or token), "bce" one output and labels 0, 1 or -1, 1, "exp" the same
                  with the exponential loss
    forward       (model, batch) -> (logits, targets), for batches that are neither (inputs, targets) nor a mapping with labels
    out           folder for records.parquet; `widemargin watch` shows it
    log           where scalars go as well: TensorBoard writers, anything with log(dict), functions of (dict, step)
    everything    log all scalars, not the few that matter most
    every         measure every so many calls of `step`

    Under torch.distributed all ranks call the same methods; what they return is of all ranks together, and rank 0 writes.
    """

    def __init__(
        self,
        model: nn.Module,
        homogeneous: str | Sequence[str] | Callable[[nn.Module], Sequence[str]] | Homogeneous = "auto",
        loss: str = "ce",
        *,
        degree: int | None = None,
        forward: Forward | None = None,
        out: str | Path | None = None,
        log: Any = (),
        everything: bool = False,
        every: int = 1,
        ignore_index: int = -100,
        levels: Sequence[float] = LEVELS,
        resume: bool = False,
    ):
        if loss not in LOSSES:
            raise InputError(f"unknown loss {loss!r}; choose {', '.join(LOSSES)}")
        if every < 1:
            raise InputError(f"every must be at least 1, not {every}")
        check_model(model)
        self.model, self.loss, self.kind = model, LOSSES[loss], loss
        self.forward = logits_and_targets if forward is None else forward
        self.everything, self.every, self.ignore_index, self.levels = everything, every, ignore_index, tuple(levels)
        self.named = dict(unwrap(model).named_parameters())
        self.homogeneous: Homogeneous | None = None
        self._asked, self._degree = homogeneous, degree
        if isinstance(homogeneous, Homogeneous):
            self._settle(homogeneous)
        elif homogeneous != "auto" or isinstance(homogeneous, (list, tuple)):
            self._asked = self._names(homogeneous)
        loggers = log if isinstance(log, (list, tuple)) else [log]
        self._loggers = [as_logger(one) for one in loggers]
        self._store = Store(out, self._config(), resume) if out is not None and self.rank == 0 else None
        self._records: list[Record] = []
        self._held: list[tuple[tally.Margins, Tensor, int, Mapping[str, Any]]] = []
        self._parts: list[tally.Margins] = []
        self._calls = self._count = 0
        self._began = time.perf_counter()
        self._seen: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._hook: Any = None
        if self.homogeneous is None:  # the first training batch is what the parameters are scaled on
            self._hook = model.register_forward_pre_hook(self._look, with_kwargs=True)

    # ------------------------------------------------------------ measuring

    def step(
        self,
        *,
        logits: Tensor,
        targets: Tensor,
        loss: Tensor | float | None = None,
        step: int | None = None,
        accumulate: bool = False,
    ) -> None:
        """Margins of the training batch, from the logits that training has computed anyway. Call it before optimizer.step().

        `accumulate=True` for all but the last of the batches whose gradients are added up: they make one record. `loss` is
        kept with the record where it is something else than the mean of these losses (with a penalty, say).
        """
        if not accumulate:
            self._count = self._count + 1 if step is None else step
            self._calls += 1
        if (self._calls - (not accumulate)) % self.every:
            self._parts.clear()
            return
        if self.homogeneous is None:
            self._find_from_training()
        with torch.no_grad():
            self._parts.append(tally.margins(logits, targets, self._margin_kind, self.ignore_index))
            if accumulate:
                return
            found = _joined(self._parts)
            self._parts = []
            extra = {} if loss is None else {"objective": loss.detach() if isinstance(loss, Tensor) else loss}
            self._held.append((found, quick_squares(self._subset(), self.world), self._count, extra))
        if len(self._held) >= FLUSH or len(self._held) * len(found.hard) > HELD:
            self.flush()

    def measure(
        self,
        data: Any,
        name: str = "measure",
        *,
        step: int | None = None,
        batches: int | None = None,
        evaluate: bool = True,
        extra: Mapping[str, float] | None = None,
    ) -> Record:
        """Margins of a whole data set (a loader, or one batch) at the present parameters: one forward pass, no gradients.

        In eval mode, unless `evaluate` is false. The model's modes and torch's random state are as before afterwards.
        `batches` ends after so many; `extra` is kept with the record.
        """
        self.flush()
        found, problem = tally.Tally(self.loss, seed=self.rank), ""
        device = device_of(self.model)
        try:
            with evaluating(self.model):
                if not evaluate:
                    self.model.train()
                for k, batch in enumerate(_batches(data)):
                    if batches is not None and k >= batches:
                        break
                    batch = to_device(batch, device)
                    if self.homogeneous is None:
                        self._settle(self._find(batch))
                    logits, targets = self._call(batch)
                    found.add(tally.margins(logits, targets, self._margin_kind, self.ignore_index))
        except InputError as error:
            if self.world == 1:
                raise
            problem = str(error)  # the other ranks wait for this one
        if self.world > 1:
            found = self._gathered(found, problem)
        if found.numbers is None:
            raise InputError(f"{name}: there is no batch to measure; the loader is empty (a generator may be used up)")
        numbers = found.numbers.tolist()
        norms = self._norms()
        record = from_numbers(
            numbers,
            self.loss,
            what=name,
            tally=found,
            levels=self.levels,
            step=self._count if step is None else step,
            name=name,
            norm=norms.pop(""),
            degree=self._degree,
            blocks=norms,
            wall=time.perf_counter() - self._began,
            extra=dict(extra or {}),
        )
        if self.world > 1:
            from dataclasses import replace

            record = replace(record, hardest=())  # positions within a rank's own part mean nothing outside
        self._add([record])
        return record

    def flush(self) -> None:
        """Turn the steps held back into records."""
        held, self._held = self._held, []
        if not held:
            return
        same = len({(len(found.hard), found.hard.dtype) for found, *_ in held}) == 1
        groups = [held] if same else [[one] for one in held]
        rows = torch.cat([self._reduced(group) for group in groups])  # (S, COLUMNS + 1)
        if self.world > 1:
            rows = self._merged(rows)
        wall = time.perf_counter() - self._began
        records = []
        for row, (_, _, step, extra) in zip(rows.tolist(), held):
            records.append(
                from_numbers(
                    row[:-1],
                    self.loss,
                    what=f"step {step}",
                    step=step,
                    name="step",
                    norm=math.sqrt(row[-1]),
                    degree=self._degree,
                    wall=wall,
                    extra={key: float(value) for key, value in extra.items()},
                )
            )
        self._add(records)

    def close(self) -> None:
        """Flush, write what is left and stop looking at the model."""
        self.flush()
        self._unhook()
        if self._store is not None:
            self._store.close()

    def __enter__(self) -> MarginMonitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def records(self) -> list[Record]:
        self.flush()
        return self._records

    @property
    def last(self) -> Record | None:
        found = self.records
        return found[-1] if found else None

    # ------------------------------------------------------------ the homogeneous parameters

    @property
    def _margin_kind(self) -> str:
        return "ce" if self.kind == "ce" else "bce"

    def _names(self, asked: Any) -> tuple[str, ...]:
        names = asked(unwrap(self.model)) if callable(asked) else asked
        if isinstance(names, str) or not names:
            raise InputError('homogeneous must be "auto", a list of names of parameters or a function of the model')
        unknown = [name for name in names if name not in self.named]
        if unknown:
            some = ", ".join(list(self.named)[-3:])
            raise InputError(f"the model has no parameter {unknown[0]!r}; its last ones are {some}")
        return tuple(names)

    def _look(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._seen = (args, kwargs)

    def _unhook(self) -> None:
        self._seen = None
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _find_from_training(self) -> None:
        """Scale the parameters on the inputs that the model has just had."""
        if self._seen is None:
            raise InputError(
                "the monitor has not seen a forward pass of its model yet, so it cannot find the homogeneous parameters; "
                "make it before the forward pass, call measure(loader) first, or give homogeneous= names and degree="
            )
        args, kwargs = self._seen
        kwargs = {key: value for key, value in kwargs.items() if key not in ("labels", "label")}
        with evaluating(self.model):
            self._settle(self._find((args, kwargs), call=lambda model, inputs: model(*inputs[0], **inputs[1])))

    def _find(self, batch: Any, call: Callable[[nn.Module, Any], Any] | None = None) -> Homogeneous:
        run = call or (lambda model, inputs: self._call(inputs)[0])
        if self._asked == "auto":
            return find_homogeneous(self.model, batch, forward=run)
        return check_homogeneous(self.model, self._asked, batch, degree=self._degree, forward=run)  # type: ignore[arg-type]

    def _settle(self, found: Homogeneous) -> None:
        self._unhook() if hasattr(self, "_hook") else None
        self.homogeneous, self._degree = found, found.degree if found.names else None
        if not found.names:
            warnings.warn(f"margins are not normalised: {found.summary}", stacklevel=3)
        if getattr(self, "_store", None) is not None:
            self._store.configure(self._config())  # type: ignore[union-attr]

    def _subset(self) -> list[Tensor]:
        return [] if self.homogeneous is None else [self.named[name] for name in self.homogeneous.names]

    def _call(self, batch: Any) -> tuple[Tensor, Tensor]:
        found = self.forward(self.model, batch)
        if not (isinstance(found, tuple) and len(found) == 2 and all(isinstance(one, Tensor) for one in found)):
            raise InputError("forward must return a pair of tensors: logits and targets")
        return found

    # ------------------------------------------------------------ reducing

    def _reduced(self, group: Sequence[tuple[tally.Margins, Tensor, int, Mapping[str, Any]]]) -> Tensor:
        """(S, COLUMNS + 1): summaries, and the sum of squares of the homogeneous parameters."""
        soft, hard, keep, bad = (
            torch.stack([getattr(found, what) for found, *_ in group]) for what in ("soft", "hard", "keep", "bad")
        )
        norms = torch.stack([norm.to(soft.device) for _, norm, *_ in group])
        return torch.cat([tally.summary(soft, hard, keep, bad, self.loss), norms[:, None]], 1)

    def _norms(self) -> dict[str, float]:
        """Norm of the homogeneous parameters, under "", and of every block."""
        groups = {"": self._subset()} | {
            name: [self.named[p] for p in names] for name, names in blocks(list(self.named)).items()
        }
        device = device_of(self.model)
        values = torch.stack([squares(group, self.world).to(device) for group in groups.values()])
        if self.world > 1:
            torch.distributed.all_reduce(values)
        return dict(zip(groups, values.sqrt().tolist()))

    @property
    def world(self) -> int:
        ready = torch.distributed.is_available() and torch.distributed.is_initialized()
        return torch.distributed.get_world_size() if ready else 1

    @property
    def rank(self) -> int:
        return torch.distributed.get_rank() if self.world > 1 else 0

    def _merged(self, rows: Tensor) -> Tensor:
        """(S, COLUMNS + 1) of all ranks together."""
        parts = [torch.empty_like(rows) for _ in range(self.world)]
        torch.distributed.all_gather(parts, rows.contiguous())
        every = torch.stack(parts)
        return torch.cat([tally.merge(every[..., :-1]), every[..., -1:].sum(0)], -1)

    def _gathered(self, found: tally.Tally, problem: str) -> tally.Tally:
        """The tally of all ranks. A rank whose data was bad makes all of them say so."""
        parts: list[Any] = [None] * self.world
        torch.distributed.all_gather_object(parts, (problem, found.portable()))
        for said, _ in parts:
            if said:
                raise InputError(said)
        whole = tally.Tally(self.loss)
        for _, part in parts:
            whole.merge(part)
        return whole

    # ------------------------------------------------------------ keeping

    def _add(self, records: Sequence[Record]) -> None:
        self._records.extend(records)
        if self.rank:
            return
        for record in records:
            for logger in self._loggers:
                prefix = "" if record.name == "step" else f"{record.name}/"
                logger(
                    {f"margin/{prefix}{key}": value for key, value in record.scalars(self.everything).items()},
                    record.step,
                )
        if self._store is not None:
            self._store.append(records)

    def _config(self) -> dict[str, Any]:
        found = self.homogeneous
        return {
            "model": type(unwrap(self.model)).__name__,
            "loss": self.kind,
            "parameters": sum(p.numel() for p in self.named.values()),
            "homogeneous": None if found is None else found.as_dict(),
        }


def _batches(data: Any) -> Iterable[Any]:
    """A loader's batches, or the one batch given: a mapping, or a pair whose second part is a tensor."""
    if isinstance(data, Mapping) or (isinstance(data, tuple | list) and len(data) == 2 and isinstance(data[1], Tensor)):
        return [data]
    if isinstance(data, Tensor) or not isinstance(data, Iterable):
        raise InputError(f"measure needs a loader or a batch with targets, not a {type(data).__name__}")
    return data


def _joined(parts: Sequence[tally.Margins]) -> tally.Margins:
    if len(parts) == 1:
        return parts[0]
    joined = {what: torch.cat([getattr(one, what) for one in parts]) for what in ("soft", "hard", "keep", "labels")}
    return tally.Margins(**joined, bad=torch.stack([one.bad for one in parts]).sum(), classes=parts[0].classes)
