"""Parameters are scaled in place, the outputs are looked at, and everything is put back (the facts are in homogeneous.py)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from widemargin.errors import show
from widemargin.types import InputError

from .model import call, check_model, evaluating, logits_of, reshard, sharded_modules, unwrap
from .tally import check_floating

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}  # relative to the largest output, for powers of 2
COARSE = 2e-2  # in bfloat16 and float16, and for factors whose products are rounded
LITTLE = {torch.float64: 2.0**-20, torch.float32: 2.0**-10}  # relative step of the derivatives in Euler's identity,
LARGE = 2.0**-2  # and in bfloat16 and float16
SCREEN = 0.05  # Euler's identity must hold as well as that before a set is scaled,
LOOSE = 0.25  # and in bfloat16 and float16
GENTLE = 1.0625  # where 2 to the degree leaves the floating point range
ROUNDED = 1.5  # no power of 2
FAR = 20  # far factors multiply the output by 2^20 or so
NOISE = 0.1
ROWS = (4, 32)  # examples of the batch that are used at a point, at least and at most
SIDES = (8, 32)  # pictures are cut to so many pixels if the model takes them,
LENGTHS = (4, 16)  # and texts to so many tokens
PICKS = 1024  # outputs at which Euler's identity is looked at
FREE = 2.0  # growth of the outputs with the other parameters from which on their scale is called free
HIGHEST = 512  # degree looked for


_Old = list[tuple[Tensor, Tensor]]  # tensors and their values before


class NoOutput(InputError):
    """Nothing to scale. Where only biases were left out, nothing can be said about how it would be without them."""


@dataclass(frozen=True)
class Probe:
    """Parameters scaled together: the degree that fits best, and how far the outputs are from it, relative to the largest.

    `names` were scaled; the output is of degree `degree` up to `error`, which is small enough where `passed`.

    >>> from widemargin.monitor import Probe
    >>> print(Probe(("head.weight",), degree=1, error=2e-7, passed=True))
    head.weight: degree 1, off by 2.0e-07
    """

    names: tuple[str, ...]
    degree: int
    error: float
    passed: bool

    def __str__(self) -> str:
        what = self.names[0] if len(self.names) == 1 else f"{len(self.names)} parameters ({some_names(self.names)})"
        return f"{what}: degree {self.degree}, off by {self.error:.1e}" + ("" if self.passed else " (not homogeneous)")


class Prober:
    """Scales parameters of a model and looks at what its outputs do. Made by `probing`, which puts everything back."""

    def __init__(self, model: nn.Module, run: Callable[..., Tensor], tolerance: float | None, old: _Old):
        self.model, self._run, self._old, self._place = model, run, old, 0
        self.parameters = dict(model.named_parameters())
        self.trained = [name for name, p in self.parameters.items() if p.requires_grad and p.is_floating_point()]
        first = {id(p): name for name, p in self.parameters.items()}
        everywhere = model.named_parameters(remove_duplicate=False)
        self.alias = {name: first[id(p)] for name, p in everywhere if name not in self.parameters}
        self.cut = False  # whether examples are smaller than they were given
        self.sharded = any(hasattr(p, "placements") for p in self.parameters.values())
        self._start()
        self.kind = self._precision()
        self.tolerance = tolerance or TOLERANCE.get(self.kind, COARSE)
        if self._off(self.run(), 1.0) > self.tolerance:
            raise InputError(
                "the model answers differently each time in eval mode; make it deterministic to look for homogeneity"
            )

    def _start(self) -> None:
        began = time.perf_counter()
        self.base = self.run()
        self.seconds = time.perf_counter() - began  # of a forward pass
        self.size = self._largest(self.base.double().abs().max()) if self.base.numel() else 0.0
        if not math.isfinite(self.size) or not self.size:
            raise NoOutput(
                "the logits of the probe batch are all 0, or not finite; give another batch, or train for a step first"
            )

    def _precision(self) -> torch.dtype:
        """The coarsest floating point format that is in sight."""
        kinds = {p.dtype for p in self.parameters.values() if p.is_floating_point()} | {self.base.dtype}
        if torch.is_autocast_enabled(self.base.device.type):
            kinds.add(torch.get_autocast_dtype(self.base.device.type))
        return max(kinds, key=lambda kind: torch.finfo(kind).eps * (1 if kind != torch.float16 else 100))

    def run(self, graph: bool = False) -> Tensor:
        """The outputs here; with `graph` they can be differentiated."""
        return self._run(self._place, graph)

    def scaled(self, names: Sequence[str], factor: float) -> Tensor:
        with self._changed(names, lambda p: p.mul_(factor)):
            return self.run()

    def scale(self, names: Sequence[str]) -> Probe:
        """Scale these together by 2, and then by other factors as long as the outputs follow the same power."""
        for first in (2.0, GENTLE):
            outputs = self.scaled(names, first)
            grown = math.sqrt(self._square(outputs) / self._square(self.base))
            if 0 < grown < math.inf:
                break
        else:
            return Probe(tuple(names), 0, math.inf, False)
        degree = max(-HIGHEST, min(HIGHEST, round(math.log(grown) / math.log(first))))
        exact, rounded = 0.0, 0.0  # products with other factors are rounded, to bfloat16 perhaps somewhere inside
        for factor in (first, *self._others(first, degree)):
            off = self._off(outputs if factor == first else self.scaled(names, factor), factor**degree)
            if math.frexp(factor)[0] == 0.5:
                exact = max(exact, off)
            else:
                rounded = max(rounded, off)
            if exact > self.tolerance or rounded > max(COARSE, self.tolerance):
                return Probe(tuple(names), degree, off, False)
        return Probe(tuple(names), degree, exact if first == 2 else rounded, True)

    def off(self, names: Sequence[str], degree: int) -> float:
        """How far the outputs are from 2^degree times the old ones when these are doubled, relative to the largest of those."""
        return self._off(self.scaled(names, 2.0), 2.0**degree)

    def _others(self, first: float, degree: int) -> tuple[float, ...]:
        if first != 2:
            return (1 / first,)
        far = 2.0 ** ((6 if self.kind == torch.float16 else FAR) // max(1, abs(degree)))
        return (0.5, far, 1 / far, ROUNDED) if far > 2 else (0.5, ROUNDED)

    def turned(self, name: str) -> float:
        """By how much the outputs change when every other entry of the parameter changes its sign."""

        def turn(p: Tensor) -> None:
            _local(p).view(-1)[::2].neg_()

        with self._changed([name], turn):
            return self._off(self.run(), 1.0)

    @contextmanager
    def without(self, names: Sequence[str]) -> Iterator[None]:
        """These at 0."""
        with self._changed(names, lambda p: p.zero_()), self._restarted(self._place):
            yield

    @contextmanager
    def elsewhere(self, place: int = 1) -> Iterator[None]:
        """Other examples, and more noise; at place 2 they are as large as they were given."""
        with _noisy(self.model, place), self._restarted(place):
            yield

    @contextmanager
    def without_noise(self) -> Iterator[None]:
        """At the parameters as they really are."""
        now = [(value, value.clone()) for value, _ in self._old]
        try:
            for value, old in self._old:
                value.copy_(old)
            with self._restarted(self._place):
                yield
        finally:
            for value, old in now:
                value.copy_(old)

    @contextmanager
    def _restarted(self, place: int) -> Iterator[None]:
        before = self.base, self.size, self._place
        try:
            self._place = place
            self._start()
            yield
        finally:
            self.base, self.size, self._place = before

    @contextmanager
    def _changed(self, names: Sequence[str], change: Callable[[Tensor], Any]) -> Iterator[None]:
        """Change parameters in place. `.data`: a backward pass of the caller's may be under way, and finds the old values."""
        kept = {name: self.parameters[name].data.clone() for name in names}
        try:
            for name in names:
                change(self.parameters[name].data)
            yield
        finally:
            for name, old in kept.items():
                self.parameters[name].data.copy_(old)

    # Ranks that hold a sharded model together must take the same way, or they wait for each other: they agree on every number.

    def _off(self, outputs: Tensor, power: float) -> float:
        """How far these outputs are from `power` times the old ones, relative to the largest of those."""
        error = self._largest((outputs.double() / power - self.base.double()).abs().max()) / self.size
        return error if math.isfinite(error) else math.inf

    def largest(self, outputs: Tensor) -> float:
        """The largest entry in absolute value, infinite where one is not finite."""
        size = self._largest(outputs.double().abs().max())
        return size if math.isfinite(size) else math.inf

    def _largest(self, number: Tensor) -> float:
        if self.sharded:
            torch.distributed.all_reduce(number, torch.distributed.ReduceOp.MAX)
        return float(number)

    def _square(self, values: Tensor) -> float:
        number = values.double().square().sum()
        if self.sharded:
            torch.distributed.all_reduce(number)
        return float(number)

    def some(self, values: Tensor) -> Tensor:
        """Some entries of the outputs, the same ones each time, of all ranks."""
        flat = values.double().reshape(-1)
        where = torch.linspace(0, len(flat) - 1, PICKS, dtype=torch.float64, device=flat.device).round().long()
        entries = flat[where]
        if self.sharded:
            parts = [torch.empty_like(entries) for _ in range(torch.distributed.get_world_size())]
            torch.distributed.all_gather(parts, entries)
            entries = torch.cat(parts)
        return entries.cpu()


@contextmanager
def probing(
    model: nn.Module,
    batch: Any,
    forward: Callable[[nn.Module, Any], Any] | None,
    tolerance: float | None,
    small: bool = True,
) -> Iterator[Prober]:
    """A prober on a few examples of the batch, with `small` cut to the smallest pictures and texts that the model takes."""
    check_model(model)
    if not (forward is None or callable(forward)):
        raise InputError(f"forward must be a function of model and batch, or None, not {show(forward)}")
    if not (tolerance is None or (isinstance(tolerance, Real) and 0 < tolerance < math.inf)):
        raise InputError(f"tol must be a positive number, or None, not {show(tolerance)}")
    inner = unwrap(model)  # not the wrapper: it would compile anew, or wait for other ranks

    def run(examples: Any, graph: bool = False) -> Tensor:
        with torch.set_grad_enabled(graph):
            out = call(inner, examples) if forward is None else forward(inner, examples)
        if forward is not None and isinstance(out, tuple) and len(out) == 2:
            out = out[0]  # logits and targets
        logits = logits_of(out)
        check_floating(logits)
        if graph:
            return logits
        logits = logits.detach().clone()
        reshard(inner, sharded)
        return logits

    sharded = sharded_modules(inner)
    reshard(inner, sharded)  # FSDP2 may keep whole parameters after a forward pass; what is scaled are the shards
    with evaluating(model), _noisy(inner, 0) as old:
        # As many examples as make Euler's identity tell all parameters apart.
        least, most = ROWS
        first = run(_rows(batch, least))
        outputs = max(1, first.numel() // least)
        rows = min(max(least, max(64, 2 * len(list(inner.parameters()))) // outputs), most)
        cut = _cut(batch, first.shape, run) if small else batch
        places = [_rows(cut, rows), _rows(cut, rows, last=True), _rows(batch, 2, last=True)]
        prober = Prober(inner, lambda place, graph: run(places[place], graph), tolerance, old)
        prober.cut = cut is not batch
        yield prober


@contextmanager
def _noisy(model: nn.Module, seed: int) -> Iterator[_Old]:
    """Noise on what may still be special: shifts, gains, matrices that are 0, running statistics; gives the old values.

    The noise is a tenth of what there is; on values that are tiny, as large as parameters usually are. Frozen parameters do not
    move, so they stay. Other matrices are as good as random anyway, and a copy of all of them would be large.
    """
    kept: _Old = []
    parameters = [p for p in model.parameters() if p.requires_grad]
    try:
        for k, value in enumerate([*parameters, *model.buffers()]):
            local = _local(value.data)
            if not local.is_floating_point() or not local.numel():
                continue
            constant = bool((local == local.reshape(-1)[0]).all())
            if k >= len(parameters) and not (constant and local.ndim):
                continue  # statistics that have moved are random enough; a single number may be a switch
            size = float(local.double().square().mean().sqrt())
            usual = NOISE if local.ndim < 2 else local[0].numel() ** -0.5
            tiny = size <= NOISE * usual
            if not math.isfinite(size) or (local.ndim > 1 and not (constant or tiny)):
                continue
            kept.append((local, local.clone()))
            generator = torch.Generator(local.device).manual_seed(2 * k + seed)
            draw = torch.randn(local.shape, generator=generator, device=local.device).clamp(-3, 3)
            local.add_(((usual if tiny else NOISE * size) * draw).to(local.dtype))
        yield kept
    finally:
        for local, old in reversed(kept):
            local.copy_(old)


def _local(p: Tensor) -> Tensor:
    """What this rank holds of it."""
    return p.to_local() if hasattr(p, "to_local") else p  # type: ignore[no-any-return]


def _rows(batch: Any, number: int, last: bool = False) -> Any:
    """The first or last few examples of every tensor that has as many as the first one."""
    count: list[int] = []

    def cut(part: Any) -> Any:
        if isinstance(part, Tensor) and part.ndim:
            if not count:
                count.append(len(part))
            if len(part) != count[0]:
                return part
            return part[-number:] if last else part[:number]
        if isinstance(part, Mapping):
            return {key: cut(value) for key, value in part.items()}
        if type(part) in (tuple, list):
            return type(part)(cut(value) for value in part)
        return part

    return cut(batch)


def _cut(batch: Any, shape: torch.Size, run: Callable[[Any], Tensor]) -> Any:
    """The batch with pictures (n, ..., h, w) and texts (n, t) cut to a corner, the smallest that the model has outputs for.

    The search asks hundreds of times, and what it finds is scaled once more at the size that was given.
    """
    for side, length in zip(SIDES, LENGTHS):
        some = _smaller(batch, side, length)
        if some is batch:
            continue
        with suppress(Exception):  # models of one size say it in many ways
            outputs = run(_rows(some, ROWS[0]))
            texts = len(outputs.shape) == len(shape) and outputs.shape[-1] == shape[-1]
            if (outputs.shape == shape or texts) and bool(outputs.isfinite().all()) and bool(outputs.any()):
                return some
    return batch


def _smaller(batch: Any, side: int, length: int) -> Any:
    """The corner of every picture and the beginning of every text in a batch; the batch itself where there is none."""
    tokens: list[int] = []
    changed = False

    def find(part: Any) -> None:
        if isinstance(part, Tensor) and part.ndim == 2 and not (part.is_floating_point() or tokens):
            tokens.append(part.shape[1])
        for value in part.values() if isinstance(part, Mapping) else part if type(part) in (tuple, list) else ():
            find(value)

    def cut(part: Any) -> Any:
        nonlocal changed
        if isinstance(part, Tensor):
            new = part
            if part.ndim >= 4 and part.is_floating_point():
                new = part[..., :side, :side]
            elif part.ndim == 2 and tokens and part.shape[1] == tokens[0]:
                new = part[:, :length]
            changed = changed or new.shape != part.shape
            return new
        if isinstance(part, Mapping):
            return {key: cut(value) for key, value in part.items()}
        if type(part) in (tuple, list):
            return type(part)(cut(value) for value in part)
        return part

    find(batch)
    smaller = cut(batch)
    return smaller if changed else batch


def some_names(names: Sequence[str], most: int = 6) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
