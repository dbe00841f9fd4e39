"""`MarginMonitor`: two lines in a training loop."""

from __future__ import annotations

import itertools
import math
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from widemargin.errors import show
from widemargin.flows import losses
from widemargin.types import InputError

from . import ranks, tally
from .first_look import Look, disagreement, doubts
from .held import (
    SPANS,
    Batch,
    Gathering,
    Held,
    check_names,
    check_number,
    check_step,
    joined_margins,
    late_numbers,
    late_table,
    length,
    numbers,
    read_numbers,
    reduced,
)
from .heuristics import LAYERS, OverGradient, over_layers
from .homogeneous import Homogeneous, check_homogeneous
from .kept import find_or_recall
from .late import Late
from .loggers import as_logger, named
from .model import (
    LEFT,
    Forward,
    Norms,
    as_it_is,
    bare,
    batches_of,
    blocks,
    check_model,
    check_settings,
    check_switches,
    device_of,
    evaluating,
    is_causal,
    is_encoder_decoder,
    is_sharded,
    lengths,
    logits_and_targets,
    logits_of,
    names_of,
    norms,
    place_of,
    reshard,
    same_draws,
    shares_examples,
    squares,
    to_device,
    unwrap,
)
from .own_norm import Geometry, OwnNorm, own_geometry
from .record import STEP, Record, from_rows, from_tally
from .store import Store, row
from .turns import Turn, close_aside, close_at_exit, held_again, in_turn

LOSSES = {"ce": losses.LOGISTIC, "bce": losses.LOGISTIC, "exp": losses.EXP}
LEVELS = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9)
HELD = 1 << 22  # margins of training batches held back before they are reduced: 64 MB
FLUSH = 128  # steps held back: one wait for the device in as many steps
PAUSE = 1.0  # seconds after which they are flushed all the same, so that a killed process loses no more
KEPT = 100_000  # records kept in memory
END = object()  # of a loader


class MarginMonitor:
    """Normalised margins of any model, from forward passes and norms alone.

        monitor = MarginMonitor(model, out="run")
        ...
        monitor.step(logits=logits, targets=targets)     # in the loop: uses the training forward, costs next to nothing
        monitor.measure(loader, name="test")             # now and then: one forward pass over the data

    homogeneous   "auto": found by scaling the parameters (`find_homogeneous`) on the first batch seen; or names of parameters,
                  a function of the model that returns names, or what `find_homogeneous` returned
    degree        of homogeneity, where names are given; found by scaling if it is left out
    loss          "ce" cross-entropy, "bce" one output and labels 0, 1 or -1, 1, "exp" the same with the exponential loss
    forward       (model, batch) -> (logits, targets), for batches that are neither (inputs, targets) nor a mapping with labels
    out           folder for records.parquet; `widemargin watch` shows it
    log           where scalars go as well: TensorBoard writers, anything with log(dict), functions of (dict, step)
    everything    log all scalars, not the few that matter most
    every         measure every so many calls of `step`
    class_axis    axis of the classes in the logits, -1 or 1; needed only where both fit the targets (`tally.margins`)
    levels        of the quantiles of `measure`
    optimizer     what trains it, or a list: records then have psi / N(w)^L in the norm N that it moves in (docs/steepest.md)
    norm          that norm itself: "l2", "linf" or "spectral"
    heuristics    True: `measure` adds margins that no scale of parameters changes, for models where |w|^L means little
                  (docs/monitor.md, What normalised means); one more pass, with gradients
    late          True, or the dtype of the softmax: the shares of examples whose gradients round to zero, and of updates along w
    group         the process group whose ranks have different examples: needed only where ranks share them (tensor parallelism)

    Under torch.distributed all ranks call the same methods; what they return is of all ranks together, and rank 0 writes.
    `logits` are (n, K), `targets` (n,). `ignore_index` marks targets that do not count, `resume` goes on in `out`.

    >>> import torch
    >>> from widemargin.monitor import MarginMonitor
    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> model.weight.data = torch.tensor([[3.0, 0.0], [0.0, 4.0]])  # |w| = 5
    >>> record = MarginMonitor(model).measure((torch.eye(2), torch.tensor([0, 1])))
    >>> record.margin, record.degree, round(record.margin_normalized, 6)
    (3.0, 1, 0.6)
    """

    @ranks.together(lambda self: self._alike())
    def __init__(
        self,
        model: nn.Module,
        homogeneous: str | Sequence[str] | Callable[[nn.Module], Sequence[str]] | Homogeneous = "auto",
        loss: str = "ce",
        *,
        degree: int | None = None,
        optimizer: Any = None,
        norm: str | None = None,
        late: bool | torch.dtype = False,
        heuristics: bool = False,
        forward: Forward | None = None,
        out: str | Path | None = None,
        log: Any = (),
        everything: bool = False,
        every: int = 1,
        ignore_index: int = -100,
        class_axis: int | None = None,
        levels: Sequence[float] = LEVELS,
        resume: bool = False,
        group: Any = None,
    ):
        if not isinstance(loss, str) or loss not in LOSSES:
            raise InputError(f"unknown loss {show(loss)}; choose {', '.join(LOSSES)}")
        check_switches(class_axis, late, heuristics=heuristics, everything=everything, resume=resume)
        check_settings(every, levels, degree, has_names=not isinstance(homogeneous, (str, Homogeneous)))
        check_model(model)
        self._group, self._sharded = group, is_sharded(model)
        if group is None and self.world > 1 and shares_examples(model):
            raise InputError(
                "ranks with tensor-parallel parameters have the same examples, which would count several times; give group=, "
                "the process group over which the examples are split"
            )
        self.model, self.loss, self.kind = model, LOSSES[loss], loss
        self.class_axis = -1 if class_axis is None and is_causal(model) else class_axis
        self.forward = logits_and_targets if forward is None else forward
        self.everything, self.every, self.ignore_index, self.levels = everything, every, ignore_index, tuple(levels)
        self.named = dict(unwrap(model).named_parameters())
        self.homogeneous: Homogeneous | None = None
        # Where the homogeneous parameters are found: a layer in the one that it is part of, which may replace it, and a name.
        self._owners: list[tuple[Mapping[str, Any], str, str]] = []
        self._optimizer, self._norm = optimizer, norm
        self._own: OwnNorm | None = None
        if optimizer is not None or norm is not None:  # what is wrong with them is said at once
            own_geometry(optimizer, self.named, (), norm)
        if heuristics and self.world > 1:
            raise InputError("heuristics are computed in one process; leave heuristics= out with several ranks")
        self.heuristics = heuristics
        self._late = None if late is False else Late(late if isinstance(late, torch.dtype) else None)
        self._asked, self._degree, self._growth = homogeneous, degree, 1.0
        if isinstance(homogeneous, Homogeneous):
            if homogeneous.names:
                names_of(homogeneous.names, model)
            self._settle(homogeneous)
        elif not isinstance(homogeneous, str) or homogeneous != "auto":
            self._asked = names_of(homogeneous, model)
        loggers = log if isinstance(log, (list, tuple)) else [log]
        self._loggers = [as_logger(logger) for logger in loggers]
        self._store = Store(out, self._config(), resume) if out is not None and self.rank == 0 else None
        self._turn = Turn()
        self._records: list[Record] = []
        self._held: list[Held] = []
        self._parts: list[tally.Margins] = []
        self._calls = self._count = 0
        self._looked = self._disagreed = False  # whether the first batch was looked at, and another loss told of
        self._began = self._flushed = time.perf_counter()
        if self._store is not None and resume:  # steps and seconds go on where the records end
            self._count, seconds = self._store.last
            self._began -= seconds
        self._look = Look()  # at the first training batch, which the parameters are scaled on
        self._hook: Any = None
        if self.homogeneous is None:
            self._hook = model.register_forward_pre_hook(self._look, with_kwargs=True)
        self._made = close_at_exit(self)  # for loops that end without close()

    # ------------------------------------------------------------ measuring

    @in_turn
    def step(
        self,
        *,
        logits: Tensor,
        targets: Tensor,
        loss: Tensor | float | None = None,
        step: int | None = None,
        accumulate: bool = False,
        before: Norms | None = None,
    ) -> None:
        """Margins of the training batch, from the logits that training has computed anyway. Call it before optimizer.step(), and
        best after loss.backward(), while the device still works on that.

        `accumulate=True` for all but the last of the batches whose gradients are added up: they make one record. `loss` is
        kept with the record as `objective`, in case it is something else than the mean of these losses (with a penalty, say).
        The logits must be the model's outputs, or some of them: where they are made from several calls of the model
        (similarities of two views), give forward= and use `measure`. Where it can only be called after optimizer.step(), give
        what `norms_now()` was before it: the margins belong to those parameters.
        """
        if not accumulate:
            self._count = self._count + 1 if step is None else check_step(step)
            self._calls += 1
        if (self._calls - (not accumulate)) % self.every:
            return
        logits = getattr(logits, "logits", logits)  # what models of `transformers` return
        # What torch.no_grad() does, without its two objects, which take 20 of a step's 140 microseconds within training.
        graph = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        try:
            self._hold(logits, targets, loss, accumulate, before)
        finally:
            torch._C._set_grad_enabled(graph)
        # Ranks must flush at once, whatever the sizes of their batches; one process alone may look at its clock too.
        if len(self._held) >= FLUSH or (time.perf_counter() - self._flushed > PAUSE and self.world == 1):
            self.flush()

    def _hold(
        self, logits: Tensor, targets: Tensor, loss: Tensor | float | None, accumulate: bool, before: Norms | None
    ) -> None:
        """Keep what a record needs of this step, on the device; copies, since buffers may be used again."""
        parts, self._parts = self._parts, []
        if loss is not None:
            loss = check_number(loss)
        batch: Batch | None = None
        if self.kind == "ce" and not accumulate and not parts:
            batch = tally.raw(logits, targets, self.class_axis) or tally.rows(logits, targets, self.class_axis)
        else:
            parts.append(self._margins(logits, targets))
        if not self._looked:
            self._look_at(logits, targets, self._look.seen)
        if self.homogeneous is None:
            self._find_from_training(logits)
        if accumulate:
            self._parts = parts
            return
        if batch is None:
            batch = joined_margins(parts)
        vanishes, along = None, None
        if self._late is not None:
            vanishes, along = self._late.vanishes(logits), self._late.along(self._subset(), self.world)
        if length(batch) > HELD // FLUSH:  # too many to hold back: a row of numbers is
            batch = numbers([batch], [vanishes], self.loss, self.ignore_index)[0]
        norms = self.norms_now() if before is None else before
        alone = len(parts) <= 1  # of one of several batches a loss says nothing of all
        self._held.append(Held(batch, norms, self._count, loss, alone, vanishes, along))

    @in_turn
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

        In eval mode, or with `evaluate=False` in the modes that the modules are in. Modes, buffers and random states (torch's,
        numpy's, Python's and the loader's generator) are as before afterwards. `batches` ends after so many; `extra` is kept
        with the record. A single batch of another kind than (inputs, targets) or a mapping is given in a list.
        """
        if batches is not None and batches < 1:
            raise InputError(f"batches must be at least 1, not {batches}")
        step = self._count if step is None else check_step(step)
        more = check_names(name, extra)
        self.flush()
        reshard(self.model)
        self.named = dict(unwrap(self.model).named_parameters())  # load_state_dict(assign=True) puts new ones in place
        margins = tally.Tally(self.loss, seed=self.rank)
        if self.world > 1:
            ranks.send_buffers(self.model)
        over = OverGradient() if self.heuristics else None
        with same_draws(data), evaluating(self.model) if evaluate else as_it_is(self.model):
            problem = self._pass(data, margins, batches, over)
        reshard(self.model)
        if self.world > 1:
            margins = self._gathered(margins, problem)
        elif problem is not None:
            raise problem
        if margins.numbers is None:
            raise InputError(f"{name}: there is no batch to measure; the loader is empty (a generator may be used up)")
        norms = self._norms()
        if over is not None:
            more[LAYERS] = over_layers(self.model, self.homogeneous, margins.numbers[tally.LEAST].item())
            more |= over.numbers()
        if self._own is not None:
            share = torch.full((1, 7), math.nan, dtype=torch.float64)
            share[:, SPANS["own"]] = torch.tensor(self._own.exactly(self._subset(), self.world), dtype=torch.float64)
            gather = self._everyones if self.world > 1 else None
            more |= late_numbers(share, [["own"]], self._own.geometry.joined, gather)[0]
        record = from_tally(
            margins,
            self.loss,
            self.levels,
            name,
            step=step,
            name=name,
            norm=norms.pop(""),
            degree=self._degree,
            growth=self._growth,
            blocks=norms,
            wall=time.perf_counter() - self._began,
            extra=dict(zip(more, read_numbers(list(more.values())))),
        )
        if self.world > 1:
            record = replace(record, hardest=())  # positions within a rank's own part mean nothing outside
        self._add([record])
        return record

    @in_turn
    def flush(self) -> None:
        """Turn the steps held back into records."""
        held, self._held = self._held, []
        self._flushed = time.perf_counter()
        if not held:
            return
        with held_again(self, held):
            # On the CPU, where they are read; ranks exchange them from their devices.
            world = self.world
            device = device_of(self.model) if world > 1 else torch.device("cpu")
            rows = reduced(held, self.loss, self.ignore_index, device, world)  # (S, COLUMNS + 2)
            objectives = read_numbers([math.nan if kept.objective is None else kept.objective for kept in held])
            joined = "max" if self._own is None else self._own.geometry.joined
            gather = self._everyones if world > 1 else None
            late = late_numbers(*late_table(held, rows, self._own, world), joined, gather)
            if world > 1:
                rows, objectives = self._merged(rows, objectives)
            wall = time.perf_counter() - self._began
            every = STEP | {"name": "step", "degree": self._degree, "growth": self._growth, "wall": wall}
            table = rows.numpy(force=True)
            known = []
            for kept, square, objective, more in zip(held, table[:, -1].tolist(), objectives, late):
                if kept.objective is not None:
                    more = {"objective": objective} | more
                known.append(every | {"step": kept.step, "norm": math.sqrt(square), "extra": more})
            answers = from_rows(table, self.loss, [f"step {kept.step}" for kept in held], known)
            records = [answer for answer in answers if isinstance(answer, Record)]
            flat = [row(record) for record in records] if self._store is not None else []
        self._add(records, flat)  # good steps are kept, also those after a bad one, and whatever becomes of warnings
        for record in records if self._late is not None else ():
            self._late.see(record.step, record.extra.get("lost", 0.0))  # type: ignore[union-attr]
        if world == 1 and not self._disagreed:
            self._compare(answers, held, objectives)
        for answer in answers:
            if isinstance(answer, InputError):
                raise answer

    @in_turn
    def close(self) -> None:
        """Flush, write what is left and stop looking at the model."""
        try:
            self.flush()
        finally:
            self._unhook()
            if self._store is not None:
                self._store.close()

    def __enter__(self) -> MarginMonitor:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None and self.world > 1:
            self._held = []  # to flush would be to wait for the other ranks, which are elsewhere
        self.close()

    def __del__(self) -> None:
        """Dropped without close(), by a function that has ended, say: what is held back is written, and the folder let go."""
        if getattr(self, "_made", None) == (os.getpid(), id(self)):  # no copy, and not half made
            self._held = self._held if self.world == 1 else []  # as in __exit__
            if (self._held and self._loggers) or (self._store is not None and not self._store.closed):
                close_aside(self)

    @property
    def records(self) -> list[Record]:
        """The latest hundred thousand records; `out` has them all. With several ranks, where one alone may be looking, those of
        the steps up to the last flush.
        """
        if self.world == 1:
            self.flush()
        return self._records

    @property
    def last(self) -> Record | None:
        """The newest record, None before the first."""
        records = self.records
        return records[-1] if records else None

    # ------------------------------------------------------------ the homogeneous parameters

    @in_turn
    def find(self, batch: Any) -> Homogeneous:
        """Find the homogeneous parameters now, on this batch, where that has not been done yet."""
        if self.homogeneous is None:
            with evaluating(self.model):
                self._find_together(to_device(batch, device_of(self.model)))
        assert self.homogeneous is not None
        return self.homogeneous

    def norms_now(self) -> Norms:
        """Norms of the homogeneous parameters at this moment, on the device: nothing waits for them."""
        if torch.is_grad_enabled():
            with torch.no_grad():
                return self.norms_now()
        subset = self._subset()
        own = ((), ()) if self._own is None else self._own.now(subset)
        if self._sharded:
            return Norms(*norms(subset, self.world)[:2], *own)
        return Norms(lengths(subset, 2), (), *own)

    def _unhook(self) -> None:
        self._look.seen = None
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _find_from_training(self, logits: Tensor) -> None:
        """Scale the parameters on the inputs that the model has just had."""
        other_ways = "call measure(loader) first, or give homogeneous=find_homogeneous(model, batch)"
        if self._look.seen is None:
            raise InputError(
                "the monitor has not seen a forward pass of its model yet, so it cannot find the homogeneous parameters; "
                f"make it before the forward pass, of the model that is called (the compiled one, say), {other_ways}"
            )
        args, kwargs = self._look.seen
        kwargs = {key: value for key, value in kwargs.items() if key not in ("labels", "label")}

        def call(model: nn.Module, inputs: Any) -> Tensor:
            try:
                outputs = logits_of(model(*inputs[0], **inputs[1]))
            except InputError as error:
                raise InputError(f"{error}; with it {other_ways}") from None
            if self.kind == "ce" and not set(outputs.shape[1:]) & set(logits.shape[-1:] + logits.shape[1:2]):
                raise InputError(
                    f"logits {tuple(logits.shape)} are not the model's outputs, {tuple(outputs.shape[1:])} for each example, so "
                    f"their degree is unknown; give forward= that makes them and {other_ways}"
                )
            return outputs

        with evaluating(self.model):
            self._find_together((args, kwargs), call)

    def _find(self, batch: Any, call: Callable[[nn.Module, Any], Any] | None = None) -> Homogeneous:
        run = call or self.forward  # of the model under its wrappers: one rank alone must not wait for the others
        if self._asked == "auto":
            return find_or_recall(self.model, batch, run)
        return check_homogeneous(self.model, self._asked, batch, degree=self._degree, forward=run)  # type: ignore[arg-type]

    def _settle(self, homogeneous: Homogeneous) -> None:
        self._unhook() if hasattr(self, "_hook") else None
        self.homogeneous, self._degree = homogeneous, homogeneous.degree if homogeneous.names else None
        self._growth = homogeneous.growth
        inner = unwrap(self.model)
        self._owners = [place_of(inner, name) for name in homogeneous.names]  # once, not at every step
        if homogeneous.names and (self._optimizer is not None or self._norm is not None):
            geometry = own_geometry(self._optimizer, self.named, homogeneous.names, self._norm)
            if self._sharded and any(part.norm == "spectral" for part in geometry.parts):
                raise InputError(
                    "the spectral norm of a matrix that ranks hold in parts is not computed; give norm= l2 or linf, or leave "
                    "optimizer= out"
                )
            self._own = OwnNorm(geometry)
        if not homogeneous.names:
            warnings.warn(f"margins are not normalised: {homogeneous.summary}", stacklevel=3)
        if getattr(self, "_store", None) is not None:
            self._store.configure(self._config())  # type: ignore[union-attr]

    def _subset(self) -> list[Tensor]:
        """The homogeneous parameters as they are now; nothing before they are known."""
        if self._sharded and self.homogeneous is not None:
            return [self.named[name] for name in self.homogeneous.names]  # the module may hold whole ones just now
        try:
            return [layers[layer]._parameters[name] for layers, layer, name in self._owners]
        except KeyError:
            raise InputError(LEFT) from None

    @property
    def geometry(self) -> Geometry | None:
        """The norm that the optimiser moves the homogeneous parameters in; None where nobody asked, or not yet."""
        return None if self._own is None else self._own.geometry

    @property
    def half_lost(self) -> int | None:
        """The first step at which the gradients of half of the examples round to zero; None before it, and without `late`."""
        return None if self._late is None else self._late.half

    def _look_at(self, logits: Tensor, targets: Tensor, inputs: Any) -> None:
        """Warn, once, where logits or targets look like something else."""
        self._looked = True
        if is_encoder_decoder(self.model):  # whose outputs may well repeat its inputs
            inputs = None
        known: dict[str, Any] = {"kind": self.kind, "class_axis": self.class_axis, "ignore_index": self.ignore_index}
        for said in doubts(self.model, logits, targets, inputs, **known):
            warnings.warn(said, stacklevel=4)

    def _compare(
        self, answers: Sequence[Record | InputError], held: Sequence[Held], objectives: Sequence[float]
    ) -> None:
        """Warn, once, where training minimises another loss than the measured one."""
        for record, kept, objective in zip(answers, held, objectives):
            if kept.objective is None or not kept.alone or isinstance(record, InputError):
                continue
            if said := disagreement(record.step, objective, record.loss, record.n):
                self._disagreed = True
                warnings.warn(said, stacklevel=4)
                return

    def _margins(self, logits: Tensor, targets: Tensor) -> tally.Margins:
        kind = "ce" if self.kind == "ce" else "bce"
        return tally.margins(logits, targets, kind, self.ignore_index, self.class_axis)

    def _call(self, batch: Any) -> tuple[Tensor, Tensor]:
        pair = self.forward(bare(self.model), batch)
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and all(isinstance(part, Tensor) for part in pair)):
            raise InputError("forward must return a pair of tensors: logits and targets")
        tally.check_floating(pair[0])
        return pair[0], pair[1]

    # ------------------------------------------------------------ reducing

    def _norms(self) -> dict[str, float]:
        """Norm of the homogeneous parameters, under "", and of every block."""
        groups = {"": self._subset()} | {
            name: [self.named[p] for p in names] for name, names in blocks(list(self.named)).items()
        }
        device = device_of(self.model)
        values = torch.stack([squares(group, self.world).to(device) for group in groups.values()])
        if self.world > 1:
            values = ranks.stacked(values).sum(0)
        return dict(zip(groups, values.sqrt().tolist()))

    # ------------------------------------------------------------ ranks

    @property
    def world(self) -> int:
        """How many ranks there are; 1 without torch.distributed."""
        return ranks.world()

    @property
    def rank(self) -> int:
        """This process among them, from 0."""
        return ranks.rank()

    @property
    def _data_ranks(self) -> list[int]:
        """Ranks with different examples."""
        if self._group is None:
            return list(range(self.world))
        return torch.distributed.get_process_group_ranks(self._group)

    def _alike(self) -> dict[str, Any]:
        """What must be the same on all ranks."""
        given = {name: getattr(self, name) for name in ("kind", "every", "ignore_index", "class_axis", "levels")}
        names = self._asked.names if isinstance(self._asked, Homogeneous) else self._asked
        given |= {"homogeneous": names, "degree": self._degree}
        return given | {"parameters": {name: tuple(p.shape) for name, p in self.named.items()}}

    def _everyones(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """A table of every rank, and of those with different examples."""
        every = ranks.stacked(table.to(device_of(self.model))).cpu()
        return every, every[self._data_ranks]

    def _merged(self, rows: Tensor, objectives: Sequence[float]) -> tuple[Tensor, list[float]]:
        """Rows and objectives of all ranks together. The objective is the mean over ranks: training follows its gradient."""
        every = ranks.stacked(torch.cat([rows, rows.new_tensor(objectives)[:, None]], 1))
        mine = every[self._data_ranks]
        merged = torch.cat([tally.merge(mine[..., : tally.COLUMNS]), every[..., -2:-1].sum(0)], 1)
        return merged, mine[..., -1].mean(0).tolist()

    def _gathered(self, own: tally.Tally, problem: Exception | None) -> tally.Tally:
        """The tally of all ranks. A rank that failed makes all of them fail."""
        ranks.fail_together(problem)
        part = own.portable()
        counts = ranks.everyone(0.0 if part.numbers is None else float(part.numbers[tally.COUNT]))
        total = sum(counts[k] for k in self._data_ranks)
        if part.sample is not None:
            # All ranks together send as many as one keeps: margins below a common priority are a sample as well.
            part.sample = part.sample[:, part.sample[0] <= tally.SAMPLE / max(total, tally.SAMPLE)]
        every = ranks.everyone(part)
        whole = tally.Tally(self.loss)
        for k in self._data_ranks:
            whole.merge(every[k])
        return whole

    def _pass(
        self, data: Any, into: tally.Tally, most: int | None, over: OverGradient | None = None
    ) -> Exception | None:
        """Add the margins of the batches to `into`; return what went wrong, for the other ranks to hear of it.

        Where a forward pass needs every rank, those whose batches are used up repeat their last one, which does not count.
        """
        device = device_of(self.model)
        problem: Exception | None = None
        batches: Any = None
        last: Any = None
        gathering = Gathering(into, self.ignore_index)
        for k in itertools.count():
            batch = None
            try:
                batches = iter(batches_of(data)) if batches is None else batches
                if problem is None and k != most:
                    batch = next(batches, END)
                    if batch is None:
                        raise InputError("a batch must be a pair (inputs, targets) or a mapping with labels, not None")
                    batch = None if batch is END else to_device(batch, device)
            except Exception as error:
                problem, batch = error, None
            has, failed = [batch is not None], [problem is not None]
            if self.world > 1 and (self._sharded or (k == 0 and self.homogeneous is None)):
                has, failed = map(list, zip(*ranks.everyone((batch is not None, problem is not None))))
            if batch is None and problem is None:
                gathering.end()
            if any(failed) or not any(has):
                return problem
            if k == 0:
                source = has.index(True)
                if self._sharded and not all(has):
                    last = to_device(ranks.one_for_all(to_device(batch, torch.device("cpu")), source), device)
                if self.homogeneous is None:
                    self._find_together(last if batch is None else batch, source=source)
            if batch is None and not self._sharded:
                return problem
            try:
                logits, targets = self._call(last if batch is None else batch)
                if batch is not None:
                    if not self._looked:
                        self._look_at(logits, targets, batch[0] if isinstance(batch, tuple | list) else batch)
                    small = tally.raw(logits, targets, self.class_axis) if self.kind == "ce" else None
                    gathering.add(small, partial(self._margins, logits, targets))
                    if over is not None:
                        over.add(self._call, batch, self._margins)
            except Exception as error:
                problem = error
            if self._sharded and batch is not None:
                last = batch
        raise AssertionError("not reached")

    def _find_together(self, batch: Any, call: Callable[[nn.Module, Any], Any] | None = None, source: int = 0) -> None:
        """A sharded model is scaled by all ranks at once; else one rank does it and tells the others."""
        homogeneous: Homogeneous | None = None
        problem: Exception | None = None
        if self._sharded or self.rank == source:
            try:
                homogeneous = self._find(batch, call)
            except Exception as error:
                problem = error
        ranks.fail_together(problem)
        self._settle(ranks.one_for_all(homogeneous, source))

    # ------------------------------------------------------------ keeping

    def _add(self, records: Sequence[Record], rows: list[dict[str, Any]] | None = None) -> None:
        self._records.extend(records)
        if len(self._records) > KEPT:
            del self._records[:-KEPT]
        if self.rank:
            return
        if self._store is not None:
            self._store.append(records, rows)
        for record in records:
            for logger in self._loggers:
                logger(named(record, self.everything), record.step)

    def _config(self) -> dict[str, Any]:
        homogeneous = self.homogeneous
        return {
            "model": type(unwrap(self.model)).__name__,
            "loss": self.kind,
            "parameters": sum(p.numel() for p in self.named.values()),
            "homogeneous": None if homogeneous is None else homogeneous.as_dict(),
            **({} if self._own is None else {"geometry": self._own.geometry.as_dict()}),
        }
