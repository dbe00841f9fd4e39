"""Margins in Lightning: `Trainer(callbacks=[LightningMargins()])`, of `lightning.pytorch` or `pytorch_lightning`."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import math
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from torch.utils.data.distributed import DistributedSampler

from widemargin.types import InputError

from .homogeneous import Homogeneous
from .kept import from_plain
from .loggers import named
from .monitor import MarginMonitor
from .record import Record

PACKAGES = ("lightning.pytorch", "pytorch_lightning")  # the same code twice, with classes that do not know each other
TARGETS = ("targets", "target", "labels", "label", "y")


def _callbacks() -> tuple[type, ...]:
    """Callback of the package that is in use, which a trainer's own checks ask for; of both if that is unknown."""
    loaded = [name for name in PACKAGES if sys.modules.get(name) is not None]
    callbacks = []
    for name in loaded or PACKAGES:
        with contextlib.suppress(ModuleNotFoundError):
            callbacks.append(importlib.import_module(name).Callback)
    if not callbacks:
        raise InputError("neither lightning nor pytorch_lightning is installed; pip install 'widemargin[lightning]'")
    return tuple(callbacks)


class LightningMargins(*_callbacks()):  # type: ignore[misc]
    """A `MarginMonitor` of the LightningModule.

        trainer = Trainer(callbacks=[LightningMargins(out="run")])

    data            a loader, or a mapping of names to loaders; the validation loaders if it is left out. Measured after every
                    validation, at the end of the epoch where there is none; under DDP each rank takes its part of the batches
    every_n_epochs  in every so many epochs
    every_n_steps   instead, every so many optimiser steps
    batches         at most so many batches of each loader; Lightning's own limits hold for validation loaders
    every           use so many of the optimiser steps whose training_step returns a mapping with "logits" and "targets", which
                    belong to each other (for language models: already shifted); log_every_n_steps if it is left out
    options         what `MarginMonitor` takes: homogeneous, loss, degree, forward, out, log, everything, ignore_index, ...
                    forward is a function of (module, batch); by default the module is called with the batch's inputs

    Scalars go to the trainer's loggers, and those of measurements to trainer.callback_metrics, for ModelCheckpoint and the like:
    monitor="margin/val/psi_normalized". `monitor` is the MarginMonitor of the present run, `records` has all records. Until the
    first record is made bad input raises InputError; after that it is a warning, and training goes on.
    """

    def __init__(
        self,
        data: Any = None,
        *,
        every_n_epochs: int = 1,
        every_n_steps: int | None = None,
        batches: int | None = None,
        every: int | None = None,
        log: Any = (),
        resume: bool = False,
        **options: Any,
    ):
        for name, value in {"every_n_epochs": every_n_epochs, "every_n_steps": every_n_steps, "every": every}.items():
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, not {value}")
        self.data, self.every_n_epochs, self.every_n_steps = data, every_n_epochs, every_n_steps
        self.batches, self.every, self.resume, self.options = batches, every, resume, options
        # Lightning puts its own method `log` on callbacks.
        self.log_to = list(log) if isinstance(log, list | tuple) else [log]
        self.monitor: MarginMonitor | None = None
        self._earlier: list[Record] = []  # of former calls of fit
        self._found: Homogeneous | None = None
        self._measured = self._before = -1  # optimiser step of the last measurement, and at the start of the batch
        self._norm: Any = None
        self._reuse = True  # whether training_step returns logits; true until it has not

    @property
    def records(self) -> list[Record]:
        return self._earlier + ([] if self.monitor is None else self.monitor.records)

    @property
    def state_key(self) -> str:
        names = list(self.data) if isinstance(self.data, Mapping) else None if self.data is None else "data"
        return f"LightningMargins{{'data': {names}, 'out': {str(self.options.get('out', ''))!r}}}"

    def state_dict(self) -> dict[str, Any]:
        homogeneous = self._found if self.monitor is None else self.monitor.homogeneous
        return {"homogeneous": None if homogeneous is None else asdict(homogeneous)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the same homogeneous parameters, and in the same folder. Steps are counted by the trainer."""
        self.resume = True
        if state["homogeneous"] is not None and self.options.get("homogeneous", "auto") == "auto":
            self._found = from_plain(state["homogeneous"])

    # ------------------------------------------------------------ a run

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        options, again = dict(self.options), self.monitor
        if again is not None:
            self._earlier += again.records
            self._found = again.homogeneous if again.model is pl_module else None
        if self._found is not None:
            options["homogeneous"] = self._found
            options.pop("degree", None)

        def to_loggers(scalars: dict[str, float], step: int) -> None:
            for logger in trainer.loggers:
                logger.log_metrics(scalars, step)

        resume = self.resume or again is not None
        self.monitor = MarginMonitor(pl_module, log=[*self.log_to, to_loggers], resume=resume, **options)
        self._reuse, self._before, self._measured = True, -1, -1

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self.monitor is None:
            return
        self._spared(self.monitor.close)
        if not self.records:
            warnings.warn(
                "no margins were measured: there was no validation loader, and training_step returned no mapping with logits "
                "and targets; give LightningMargins(data=loader)",
                stacklevel=2,
            )

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self.monitor is not None and self.monitor.world == 1:  # other ranks may not be there to flush with
            self._spared(self.monitor.close, always=True)

    def _spared(self, act: Any, always: bool = False) -> None:
        """Once there are records, a bad batch does not end a run."""
        try:
            act()
        except InputError as error:
            if not (always or self.records):
                raise
            warnings.warn(f"margins were not measured: {error}", stacklevel=3)

    # ------------------------------------------------------------ the training forward

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Take the norm: at the end of the batch the optimiser will have moved the parameters."""
        first, self._before = self._before != trainer.global_step, trainer.global_step
        if not first or self.monitor is None:  # a further batch whose gradients are added up
            return
        self._norm, every = None, self.every or max(1, trainer.log_every_n_steps)
        if not self._reuse or trainer.global_step % every:
            return
        try:
            with trainer.precision_plugin.train_step_context():
                self.monitor.find(batch)
            self._norm = self.monitor.norms_now()
        except InputError as error:
            self._norm = error  # of no importance if training_step returns no logits

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        pair = _logits_and_targets(outputs)
        self._reuse = self._reuse and (pair is not None or outputs is None)
        stepped = trainer.global_step != self._before
        if pair is not None and self._norm is not None:
            self._spared(lambda: self._step(*pair, step=trainer.global_step, accumulate=not stepped))
        if stepped and self.every_n_steps and trainer.global_step % self.every_n_steps == 0:
            self._measure(trainer, pl_module, on_step=True)

    def _step(self, logits: Any, targets: Any, step: int, accumulate: bool) -> None:
        if isinstance(self._norm, InputError):
            raise self._norm
        assert self.monitor is not None
        self.monitor.step(
            logits=logits, targets=targets, step=step, accumulate=accumulate, before=self._norm
        )  # fmt: skip
        if not accumulate and self.every != 1:
            self.monitor.flush()  # records are few, so they may as well be seen at once

    # ------------------------------------------------------------ data sets

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking and trainer.state.fn == "fit":
            self._at_epoch(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self.data is not None:
            self._at_epoch(trainer, pl_module)

    def _at_epoch(self, trainer: Any, pl_module: Any) -> None:
        if not self.every_n_steps and (trainer.current_epoch + 1) % self.every_n_epochs == 0:
            self._measure(trainer, pl_module, on_step=False)

    def _measure(self, trainer: Any, pl_module: Any, on_step: bool) -> None:
        """Measure all loaders, once at a step."""
        if self.monitor is None or self._measured == trainer.global_step:
            return
        self._measured = trainer.global_step
        scalars: dict[str, float] = {}
        for index, (name, loader, batches) in enumerate(self._loaders(trainer)):
            split = isinstance(getattr(loader, "sampler", None), DistributedSampler)
            data = _Batches(loader, trainer, index, sharded=self.data is not None and not split)
            self._spared(lambda: scalars.update(self._one(trainer, name, data, batches)))  # noqa: B023, run at once
        if scalars:  # all ranks have the same numbers; the loggers have had theirs from the monitor
            pl_module.log_dict(
                scalars, on_step=on_step, on_epoch=not on_step, logger=False, sync_dist=True, batch_size=1
            )

    def _one(self, trainer: Any, name: str, data: Any, batches: int | None) -> dict[str, float]:
        assert self.monitor is not None
        with trainer.precision_plugin.val_step_context():
            record = self.monitor.measure(data, name, step=trainer.global_step, batches=batches)
        return named(record)

    def _loaders(self, trainer: Any) -> Iterator[tuple[str, Any, int | None]]:
        """Names, loaders, and how many batches of them."""
        if self.data is not None:
            given = self.data if isinstance(self.data, Mapping) else {"data": self.data}
            yield from ((name, loader, self.batches) for name, loader in given.items())
            return
        loaders, limits = trainer.val_dataloaders, trainer.num_val_batches
        loaders = getattr(loaders, "flattened", loaders)  # a CombinedLoader
        if isinstance(loaders, Mapping):
            loaders = {f"val_{key}": loader for key, loader in loaders.items()}
        elif isinstance(loaders, list | tuple):
            loaders = {"val" if len(loaders) == 1 else f"val_{k}": loader for k, loader in enumerate(loaders)}
        else:
            loaders = {} if loaders is None else {"val": loaders}
        for (name, loader), limit in zip(loaders.items(), limits):
            most = min(limit, self.batches or limit)
            yield name, loader, int(most) if math.isfinite(most) else None


class _Batches:
    """A loader's batches as validation_step gets them; `sharded`: only this rank's part."""

    def __init__(self, loader: Any, trainer: Any, index: int, sharded: bool):
        self.loader, self.trainer, self.index, self.sharded = loader, trainer, index, sharded

    def __getattr__(self, name: str) -> Any:  # its sampler and generator, whose state the monitor puts back
        return getattr(self.loader, name)

    def __iter__(self) -> Iterator[Any]:
        trainer, module = self.trainer, self.trainer.lightning_module
        rank, world = (trainer.global_rank, trainer.world_size) if self.sharded else (0, 1)
        for batch in itertools.islice(self.loader, rank, None, world):
            batch = trainer.precision_plugin.convert_input(batch)
            batch = module._on_before_batch_transfer(batch, dataloader_idx=self.index)
            yield trainer.strategy.batch_to_device(batch, dataloader_idx=self.index)


def _logits_and_targets(outputs: Any) -> tuple[Any, Any] | None:
    if not isinstance(outputs, Mapping) or "logits" not in outputs:
        return None
    return next(((outputs["logits"], outputs[key]) for key in TARGETS if key in outputs), None)
