"""Margins in the Trainer of `transformers`: `Trainer(..., callbacks=[TrainerMargins()])`."""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from widemargin.types import InputError

from .loggers import named
from .model import LABELS, device_of, is_causal, is_encoder_decoder, logits_of, same_draws, shifted, unwrap
from .monitor import MarginMonitor
from .record import Record

try:
    from transformers import TrainerCallback
except ImportError:
    raise InputError("transformers is not installed; pip install 'widemargin[transformers]'") from None

PROBE = 8  # batches of the trainer's own data sets


class TrainerMargins(TrainerCallback):
    """A `MarginMonitor` of the trainer's model. Hooks see no logits, so batches are run through the model for it.

        trainer = Trainer(..., callbacks=[TrainerMargins(out="run")])

    data         a loader, a data set, or a mapping of names to them: measured in whole, each time. If it is left out: the first
                 batches of the trainer's training data ("train"), the same each time, and at evaluations those of "eval"
    every        measure every so many optimiser steps; if it is left out, at every evaluation, and at every log where the trainer
                 does not evaluate. The last step is always measured
    batches      at most so many batches; 8 of the trainer's own data
    collator     makes batches of data sets given; the trainer's own if it is left out
    batch_size   for them; the trainer's for evaluation if it is left out
    options      what `MarginMonitor` takes: homogeneous, loss, degree, forward, out, log, everything, ignore_index, ...

    The scalars are in trainer.state.log_history, as margin/eval/psi_normalized and so on, and with the prefix eval_ among the
    metrics of an evaluation: metric_for_best_model="margin/eval/psi_normalized". A callback does not know its trainer, so
    `attach(trainer)` is needed for them to be printed and sent where `report_to` says. `monitor` is the MarginMonitor of the
    present run, `records` has all records. Until the first record is made bad input raises InputError; after that it is a
    warning, and training goes on.
    """

    def __init__(
        self,
        data: Any = None,
        *,
        every: int | None = None,
        batches: int | None = None,
        collator: Any = None,
        batch_size: int | None = None,
        resume: bool = False,
        **options: Any,
    ):
        for name, value in {"every": every, "batches": batches, "batch_size": batch_size}.items():
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, not {value}")
        self.data, self.every, self.batches = data, every, batches
        self.collator, self.batch_size, self.resume, self.options = collator, batch_size, resume, options
        self.monitor: MarginMonitor | None = None
        self._earlier: list[Record] = []  # of former calls of train
        self._running = self._reporting = False
        self._measured: dict[str, int] = {}  # step of the last measurement
        self._probes: dict[str, list[Any]] = {}
        self._trainer: Any = None
        self._kind: torch.dtype | None = None  # of mixed precision

    @property
    def records(self) -> list[Record]:
        return self._earlier + ([] if self.monitor is None else self.monitor.records)

    def attach(self, trainer: Any) -> TrainerMargins:
        """Log through this trainer, and be one of its callbacks."""
        self._trainer = trainer
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)
        return self

    # ------------------------------------------------------------ hooks

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model, again, options = kwargs["model"], self.monitor, dict(self.options)
        _check_classes(model, options.get("loss", "ce"))
        if getattr(args, "label_smoothing_factor", 0):
            warnings.warn(
                f"label_smoothing_factor={args.label_smoothing_factor:g}: training minimises another loss than psi has, whose "
                "best margins are finite; margins are those of the plain labels, and the theorem does not speak of them",
                stacklevel=2,
            )
        if again is not None:
            self._earlier += again.records
            if again.model is model and again.homogeneous is not None:
                options["homogeneous"] = again.homogeneous
                options.pop("degree", None)
        options.setdefault("forward", _forward(args.label_names))
        options.setdefault("class_axis", -1)  # as models of `transformers` have it
        resume = self.resume or again is not None or state.global_step > 0
        self.monitor = MarginMonitor(model, resume=resume, **options)
        self._running, self._measured, self._probes = True, {}, {}
        self._kind = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else None
        if self.data is None and kwargs.get("train_dataloader") is not None:
            self._probe("train", kwargs["train_dataloader"], args.per_device_train_batch_size)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        due = self.every is not None and state.global_step % self.every == 0
        if due or state.global_step >= state.max_steps or control.should_training_stop:
            self._measure(args, state, kwargs)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        last = "train_runtime" in (kwargs.get("logs") or {})
        if self.every is None and args.eval_strategy == "no" and not last and not self._reporting:
            self._measure(args, state, kwargs)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self._running:
            return
        metrics = kwargs.get("metrics") or {}
        if self.data is None and kwargs.get("eval_dataloader") is not None:
            ending = "_runtime"
            name = next((key.removesuffix(ending) for key in metrics if key.endswith(ending)), "eval")
            self._probe(name, kwargs["eval_dataloader"], args.per_device_eval_batch_size)
            self._measure(args, state, kwargs, only=name, metrics=metrics)
        if self.every is None:
            self._measure(args, state, kwargs, metrics=metrics)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._running, self._probes = False, {}
        if self.monitor is not None:
            self._spared(self.monitor.close)

    # ------------------------------------------------------------ measuring

    def _measure(
        self, args: Any, state: Any, kwargs: Mapping[str, Any], only: str = "", metrics: dict[str, float] | None = None
    ) -> None:
        """Measure what has not been measured at this step; `only` one of the trainer's own data sets."""
        if not self._running:
            return
        scalars: dict[str, float] = {}
        for name, data in self._data(args, kwargs, only).items():
            if self._measured.get(name) != state.global_step:
                self._measured[name] = state.global_step
                self._spared(lambda: scalars.update(self._one(name, data, state.global_step)))  # noqa: B023, run at once
        if not scalars:
            return
        if metrics is not None:
            metrics.update({f"eval_{key}": value for key, value in scalars.items()})
        if self._trainer is None:
            state.log_history.append({**scalars, "epoch": state.epoch, "step": state.global_step})
            return
        self._reporting = True
        try:
            self._trainer.log(scalars)
        finally:
            self._reporting = False

    def _one(self, name: str, data: Any, step: int) -> dict[str, float]:
        assert self.monitor is not None
        # accelerate hides autocast inside the model; the search for homogeneous parameters must know of it.
        with torch.autocast(
            device_of(self.monitor.model).type, self._kind, self._kind is not None, cache_enabled=False
        ):
            record = self.monitor.measure(data, name, step=step, batches=self.batches)
        return named(record, self.monitor.everything)

    def _data(self, args: Any, kwargs: Mapping[str, Any], only: str) -> dict[str, Any]:
        if self.data is None:
            names = [only] if only else [name for name in self._probes if name == "train"]
            return {name: self._probes[name] for name in names}
        given = self.data if isinstance(self.data, Mapping) else {"data": self.data}
        trains_on = kwargs.get("train_dataloader")
        collator = self.collator or getattr(trains_on, "collate_fn", None)
        size = self.batch_size or args.per_device_eval_batch_size
        return {name: _part(_batches(part, collator, size)) for name, part in given.items()}

    def _probe(self, name: str, loader: Any, size: int) -> None:
        """Keep the first batches of a loader's data set, in its order: the same examples are measured each time.

        The trainer's loader itself is left alone: it counts its batches, and training may be in the middle of it.
        """
        if name in self._probes:
            return
        if isinstance(loader, DataLoader):
            loader = _part(DataLoader(loader.dataset, batch_size=size, collate_fn=loader.collate_fn))
        with same_draws(loader), torch.random.fork_rng(devices=[]):  # collators may draw; training must not notice
            self._probes[name] = list(itertools.islice(loader, self.batches or PROBE))

    def _spared(self, act: Any) -> None:
        """Once there are records, a bad batch does not end a run."""
        try:
            act()
        except InputError as error:
            if not self.records:
                raise
            warnings.warn(f"margins were not measured: {error}", stacklevel=3)


class _Part:
    """This rank's batches."""

    def __init__(self, batches: Iterable[Any], rank: int, world: int):
        self.batches, self.rank, self.world = batches, rank, world

    def __iter__(self) -> Any:
        return itertools.islice(self.batches, self.rank, None, self.world)


def _part(batches: Iterable[Any]) -> Iterable[Any]:
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    rank, world = (torch.distributed.get_rank(), torch.distributed.get_world_size()) if ready else (0, 1)
    return batches if world == 1 else _Part(batches, rank, world)


def _batches(data: Any, collator: Any, size: int) -> Iterable[Any]:
    """Batches of a data set; what is a loader, or a list, has batches already."""
    is_set = isinstance(data, Dataset) or (hasattr(data, "__getitem__") and not isinstance(data, list | tuple))
    return DataLoader(data, batch_size=size, collate_fn=collator) if is_set else data


def _check_classes(model: nn.Module, loss: str) -> None:
    config = getattr(unwrap(model), "config", None)
    single = getattr(config, "num_labels", None) == 1 and type(unwrap(model)).__name__.endswith("Classification")
    if loss == "ce" and (single or getattr(config, "problem_type", None) == "regression"):
        raise InputError(
            "the model has one label, which is regression and has no margins; for two classes and one output give loss='bce', "
            "else num_labels of at least 2"
        )
    if loss == "ce" and getattr(config, "problem_type", None) == "multi_label_classification":
        raise InputError(
            "the model has several labels for each example; give loss='bce', which takes each as a decision"
        )


def _forward(label_names: Any) -> Any:
    """(model, batch) -> (logits, targets) for models of `transformers`: the labels under the trainer's name for them."""
    names = tuple(label_names or LABELS)

    def forward(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        if not isinstance(batch, Mapping):
            raise InputError(
                f"a batch must be a mapping, not a {type(batch).__name__}; give forward=, a function of model and batch that "
                "returns logits and targets"
            )
        key = next((name for name in names if name in batch), None)
        if key is None:
            raise InputError(
                f"the batch has no {' or '.join(names)}, only {', '.join(map(str, batch))}; set label_names of the "
                "TrainingArguments, or give forward=, a function of model and batch that returns logits and targets"
            )
        inner = unwrap(model)
        labels = batch[key]
        whole = is_encoder_decoder(model)
        known = inspect.signature(type(inner).forward).parameters
        takes_all = any(p.kind is p.VAR_KEYWORD for p in known.values())
        # Decoders make their inputs from the labels; elsewhere these would only have a loss computed.
        inputs = {k: v for k, v in batch.items() if (takes_all or k in known) and (whole or k != key)}
        torch.clear_autocast_cache()  # accelerate's autocast keeps casts of weights, which may have been scaled since
        logits = logits_of(model(**inputs))
        generates = type(inner).__name__.endswith("ForConditionalGeneration") and not whole
        return shifted(logits, labels) if is_causal(model) or generates else (logits, labels)

    return forward
