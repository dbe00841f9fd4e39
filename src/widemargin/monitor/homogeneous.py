"""Which parameters is the output homogeneous in, and of which degree? Found by scaling them, never assumed.

f is homogeneous of degree L in a set of parameters if f(c w_hat, theta) = c^L f(w_hat, theta) for every c > 0 and every value of
the other parameters (UH-4). Three facts make the search short and its answer safe:

- Multiplying by a power of 2 is exact in floating point, so a homogeneous network answers with exactly 2^(kL) times its outputs
  in any precision. Factors far from 1 show what is small now: a bias that has hardly moved, a cap that is not reached yet.
- If f is homogeneous in A, of degree a, and in A and B together, of degree l, then in B alone, of degree l - a. So sets that
  are homogeneous can be taken away one after the other, the smallest first, and their degrees add up.
- Euler: sum over the set of <p, df/dp> = L f. This is linear in the choice of the set. One forward pass for each parameter,
  scaled by a little more than 1, tells which sets are worth a probe; a linear program finds some that lie in no one module.

Probes are made near the present parameters, not at them: shifts that are still 0, gains and running variances that are still 1
get some noise first, otherwise a bias would hide until it has moved. Frozen parameters stay as they are. What was found is
scaled once more at other noise and on other examples, and everything is put back afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from widemargin.types import InputError

from .model import call, check_model, evaluating, logits_of, reshard, unwrap
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
PICKS = 1024  # outputs at which Euler's identity is looked at
HIGHEST = 512  # degree looked for


_Old = list[tuple[Tensor, Tensor]]  # tensors and their values before


class _NoOutput(InputError):
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
        what = self.names[0] if len(self.names) == 1 else f"{len(self.names)} parameters ({_some(self.names)})"
        return f"{what}: degree {self.degree}, off by {self.error:.1e}" + ("" if self.passed else " (not homogeneous)")


@dataclass(frozen=True)
class Homogeneous:
    """The output is homogeneous of degree `degree` in `names` together; `excluded` says why each other parameter is not in.

    `evidence` are the probes that show it: sets that are homogeneous each by itself and cannot be made smaller by modules, and
    at the end, if there are several, all of them together.

    `notes` are sentences about what was special.

    >>> from torch import manual_seed, nn, randn
    >>> from widemargin.monitor import find_homogeneous
    >>> rng = manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3, bias=False))
    >>> found = find_homogeneous(model, randn(8, 2))
    >>> found.degree, sorted(found.names)
    (2, ['0.bias', '0.weight', '2.weight'])
    """

    names: tuple[str, ...]
    degree: int
    evidence: tuple[Probe, ...] = ()
    excluded: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """One sentence."""
        if not self.names:
            return "the output is homogeneous in no parameters that were tried; see excluded for the reason of each"
        return f"the output is homogeneous of degree {self.degree} in {_some(self.names)}"

    def __str__(self) -> str:
        lines = [self.summary, *self.notes]
        lines += [f"  scaled: {probe}" for probe in self.evidence]
        reasons: dict[str, list[str]] = {}
        for name, why in self.excluded.items():
            reasons.setdefault(why.partition(";")[0], []).append(name)
        lines += [f"  not in: {_some(names)}: {why}" for why, names in reasons.items()]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """All of it in plain Python types; probes in words."""
        return {
            "names": list(self.names),
            "degree": self.degree,
            "summary": self.summary,
            "notes": list(self.notes),
            "evidence": [str(probe) for probe in self.evidence],
            "excluded": dict(self.excluded),
        }


def find_homogeneous(
    model: nn.Module, batch: Any, *, forward: Callable[[nn.Module, Any], Any] | None = None, tol: float | None = None
) -> Homogeneous:
    """The parameters that are trained and that the logits are homogeneous in, jointly, as far as scaling shows it.

    Single parameters are looked at first, then those of every module together (a gain with its shift, a head with its bias, a
    branch), from the smallest to the whole model, then sets across modules (the ends of two branches). `batch` is what the model
    is called with, or a pair or mapping with targets; `forward` maps model and batch to logits, or to logits and targets. Costs
    about a forward pass of a few examples for each parameter.

    `tol` is how far outputs may be off, relative to the largest (by default what the model's precision allows).

    >>> from torch import manual_seed, nn, randn
    >>> from widemargin.monitor import find_homogeneous
    >>> rng = manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8, bias=False), nn.Linear(8, 3, bias=False))
    >>> found = find_homogeneous(model, randn(8, 4))  # the gain and the head; what is before is normalised away
    >>> found.degree, sorted(found.names)
    (2, ['1.weight', '2.weight'])
    """
    with _prober(model, batch, forward, tol) as prober:
        return _search(prober)


def check_homogeneous(
    model: nn.Module,
    names: Sequence[str],
    batch: Any,
    *,
    degree: int | None = None,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    tol: float | None = None,
) -> Homogeneous:
    """Whether the output is homogeneous in these parameters together, of this degree if one is given; complains if not.

    `names` are parameters of `model`; `batch`, `forward` and `tol` are those of `find_homogeneous`. An InputError says how
    far off they are.

    >>> from torch import manual_seed, nn, randn
    >>> from widemargin.monitor import check_homogeneous
    >>> rng = manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(2, 16, bias=False), nn.ReLU(), nn.Linear(16, 3, bias=False))
    >>> check_homogeneous(model, ["0.weight", "2.weight"], randn(8, 2), degree=2).degree
    2
    """
    if isinstance(names, str) or not names:
        raise InputError("give the names of the parameters as a list with at least one name")
    names = tuple(names)
    with _prober(model, batch, forward, tol) as prober:
        for name in names:
            if name in prober.alias:
                raise InputError(f"{name} is the same tensor as {prober.alias[name]}; give that name")
            if name not in prober.parameters:
                raise InputError(f"the model has no parameter {name!r}")
        probe = prober.scale(names)
        if probe.passed:
            with prober.elsewhere():
                probe = _worse(probe, prober.scale(names))
        sides = [name for name in prober.trained if name not in names]
    if not probe.passed or probe.degree < 1 or degree not in (None, probe.degree):
        asked = "" if degree is None else f" of degree {degree}"
        how = (
            f"they are of degree {probe.degree}"
            if probe.passed
            else f"the best degree, {probe.degree}, is {probe.error:.1e} of the largest output off"
        )
        raise InputError(
            f"the output is not homogeneous{asked} in {_some(names)}: {how}; "
            f'leave homogeneous="auto" to have the parameters found'
        )
    reasons = {
        name: "not among the names given" if name in sides else "frozen: it is not trained"
        for name in prober.parameters
    }
    return Homogeneous(names, probe.degree, (probe,), {name: why for name, why in reasons.items() if name not in names})


# ---------------------------------------------------------------- scaling


class _Prober:
    """Scales parameters of a model and looks at what its outputs do. Made by `_prober`, which puts everything back."""

    def __init__(self, model: nn.Module, run: Callable[[int], Tensor], tolerance: float | None, old: _Old):
        self.model, self._run, self._old, self._place = model, run, old, 0
        self.parameters = dict(model.named_parameters())
        self.trained = [name for name, p in self.parameters.items() if p.requires_grad and p.is_floating_point()]
        first = {id(p): name for name, p in self.parameters.items()}
        everywhere = model.named_parameters(remove_duplicate=False)
        self.alias = {name: first[id(p)] for name, p in everywhere if name not in self.parameters}
        self.sharded = any(hasattr(p, "placements") for p in self.parameters.values())
        self._start()
        self.kind = self._precision()
        self.tolerance = tolerance or TOLERANCE.get(self.kind, COARSE)
        if self._off(self.run(), 1.0) > self.tolerance:
            raise InputError(
                "the model answers differently each time in eval mode; make it deterministic to look for homogeneity"
            )

    def _start(self) -> None:
        self.base = self.run()
        self.size = self._largest(self.base.double().abs().max()) if self.base.numel() else 0.0
        if not math.isfinite(self.size) or not self.size:
            raise _NoOutput(
                "the logits of the probe batch are all 0, or not finite; give another batch, or train for a step first"
            )

    def _precision(self) -> torch.dtype:
        """The coarsest floating point format that is in sight."""
        kinds = {p.dtype for p in self.parameters.values() if p.is_floating_point()} | {self.base.dtype}
        if torch.is_autocast_enabled(self.base.device.type):
            kinds.add(torch.get_autocast_dtype(self.base.device.type))
        return max(kinds, key=lambda kind: torch.finfo(kind).eps * (1 if kind != torch.float16 else 100))

    def run(self) -> Tensor:
        return self._run(self._place)

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
    def elsewhere(self) -> Iterator[None]:
        """Other examples, and more noise."""
        with _noisy(self.model, 1), self._restarted(1):
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

    def _off(self, found: Tensor, power: float) -> float:
        """How far these outputs are from `power` times the old ones, relative to the largest of those."""
        error = self._largest((found.double() / power - self.base.double()).abs().max()) / self.size
        return error if math.isfinite(error) else math.inf

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
def _prober(
    model: nn.Module, batch: Any, forward: Callable[[nn.Module, Any], Any] | None, tolerance: float | None
) -> Iterator[_Prober]:
    check_model(model)
    inner = unwrap(model)  # not the wrapper: it would compile anew, or wait for other ranks

    def run(examples: Any) -> Tensor:
        out = call(inner, examples) if forward is None else forward(inner, examples)
        if forward is not None and isinstance(out, tuple) and len(out) == 2:
            out = out[0]  # logits and targets
        logits = logits_of(out).detach().clone()
        check_floating(logits)
        reshard(inner)
        return logits

    reshard(inner)  # FSDP2 may keep whole parameters after a forward pass; what is scaled are the shards
    with evaluating(model), _same_buffers(inner), _noisy(inner, 0) as old:
        # As many examples as make Euler's identity tell all parameters apart.
        least, most = ROWS
        outputs = max(1, run(_rows(batch, least)).numel() // least)
        rows = min(max(least, max(64, 2 * len(list(inner.parameters()))) // outputs), most)
        places = [_rows(batch, rows), _rows(batch, rows, last=True)]
        yield _Prober(inner, lambda place: run(places[place]), tolerance, old)


@contextmanager
def _same_buffers(model: nn.Module) -> Iterator[None]:
    """A forward pass may change buffers, even in eval mode."""
    kept = [(b, b.clone()) for b in model.buffers()]
    try:
        yield
    finally:
        for b, old in kept:
            b.data.copy_(old)


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


# ---------------------------------------------------------------- searching


@dataclass
class _Euler:
    """Euler's identity as a sieve: outputs f, and <p, df/dp> of every parameter there."""

    f: Tensor
    terms: dict[str, Tensor]
    screen: float

    @classmethod
    def of(cls, prober: _Prober) -> _Euler:
        step = LITTLE.get(prober.kind, LARGE)
        f = prober.some(prober.base)
        terms = {name: (prober.some(prober.scaled([name], 1 + step)) - f) / step for name in prober.trained}
        return cls(f, terms, SCREEN if prober.kind in LITTLE else LOOSE)

    def without(self, name: str, prober: _Prober) -> _Euler:
        """The same where this parameter is 0. If it only adds to the outputs, nothing need be computed anew."""
        f = prober.some(prober.base)
        if float((self.f - self.terms[name] - f).abs().max()) > self.screen * float(f.abs().max()):
            return _Euler.of(prober)
        return _Euler(f, self.terms | {name: torch.zeros_like(f)}, self.screen)

    def fit(self, names: Sequence[str]) -> Probe:
        """The degree that the sum of these terms fits best, and how well."""
        total = torch.stack([self.terms[name] for name in names]).sum(0)
        ratio = float(total @ self.f / (self.f @ self.f))
        degree = round(ratio) if math.isfinite(ratio) else 0
        error = float((total - degree * self.f).abs().max() / (max(1, abs(degree)) * self.f.abs().max()))
        return Probe(tuple(names), degree, error if math.isfinite(error) else math.inf, False)

    def across(self, names: Sequence[str]) -> list[str]:
        """Few parameters whose terms sum to a multiple of the outputs, wherever in the model they are; a guess, none if none do.

        A linear program for weights between 0 and 1: those of a set that is homogeneous and has no smaller one in it are alike.
        """
        import numpy as np
        from scipy.optimize import linprog

        names = [name for name in names if bool(self.terms[name].isfinite().all())]
        if not 1 < len(names) < len(self.f.unique()):  # too few outputs to tell
            return []
        f = (self.f / self.f.abs().max()).numpy()
        terms = torch.stack([self.terms[name] for name in names], 1).numpy() / float(self.f.abs().max())
        best = np.linalg.lstsq(terms, f, rcond=None)[0]
        if np.linalg.norm(terms @ best - f) > self.screen * np.linalg.norm(f):  # not with any weights
            return []
        some = np.random.default_rng(0).permutation(len(f))[: 2 * len(names) + 16]
        terms, f, ones = terms[some], f[some], np.ones((len(some), 1))
        solution = linprog(  # the largest error, and then the sum of the weights
            [1e-4] * len(names) + [1.0],
            A_ub=np.block([[terms, -ones], [-terms, -ones]]),
            b_ub=np.concatenate([f, -f]),
            bounds=[(0, 1)] * len(names) + [(0, self.screen)],
        )
        return (
            [] if solution.x is None else [name for name, x in zip(names, solution.x) if x > max(solution.x[:-1]) / 2]
        )


@dataclass
class _Found:
    euler: _Euler
    units: list[Probe]  # homogeneous of degree >= 1, each by itself, disjoint
    alone: dict[str, Probe]
    neutral: dict[str, Probe]  # parameters of sets of degree 0 or less

    @property
    def degree(self) -> int:
        return sum(unit.degree for unit in self.units)

    @property
    def names(self) -> list[str]:
        return [name for unit in self.units for name in unit.names]


def _choose(prober: _Prober, euler: _Euler) -> _Found:
    """Sets that are homogeneous by themselves, from single parameters to the whole model; each is taken away when found."""
    found = _Found(euler, [], {}, {})
    left = dict.fromkeys(prober.trained)
    tried: set[tuple[str, ...]] = set()

    def attempt(names: Sequence[str]) -> bool:
        names = tuple(name for name in names if name in left)
        if not names or names in tried:
            return False
        tried.add(names)
        probe = euler.fit(names)
        if probe.error <= euler.screen:
            probe = prober.scale(names)
        if len(names) == 1:
            found.alone[names[0]] = probe
        if probe.passed:
            for name in names:
                del left[name]
                if probe.degree < 1:
                    found.neutral[name] = probe
            if probe.degree >= 1:
                found.units.append(probe)
        return probe.passed

    for name in prober.trained:
        attempt([name])
    for members in _modules(prober.model, prober.trained):
        attempt(members)
    while prober.kind in LITTLE and attempt(euler.across(list(left))):
        pass
    return found


def _modules(model: nn.Module, names: Sequence[str]) -> list[list[str]]:
    """The parameters of every module, the smallest first."""
    groups = [[name for name in names if not path or name.startswith(path + ".")] for path, _ in model.named_modules()]
    return sorted((members for members in groups if len(members) > 1), key=len)


def _search(prober: _Prober) -> Homogeneous:
    found = _choose(prober, _Euler.of(prober))
    dropped, evidence = _confirm(prober, found) if found.units else ({}, [])
    reasons = {name: dropped.get(name) or _reason(prober, name, found) for name in prober.parameters}
    names = set(found.names)
    return Homogeneous(
        tuple(name for name in prober.parameters if name in names),
        found.degree,
        tuple(evidence),
        {name: why for name, why in reasons.items() if name not in names},
        tuple(_notes(prober, found)),
    )


def _confirm(prober: _Prober, found: _Found) -> tuple[dict[str, str], list[Probe]]:
    """Scale every set again at another point, and all of them together. Those that fail are dropped, and it is said why."""
    dropped: dict[str, str] = {}
    evidence: list[Probe] = []
    with prober.elsewhere():
        for unit in list(found.units):
            again = prober.scale(unit.names)
            if again.passed and again.degree == unit.degree:
                evidence.append(_worse(unit, again))
            else:
                found.units.remove(unit)
                why = f"homogeneous at one point and not at another; off by {_percent(again.error)} there"
                dropped |= dict.fromkeys(unit.names, why)
        while len(found.units) > 1:
            joint = prober.scale(found.names)
            if joint.passed and joint.degree == found.degree:
                evidence.append(joint)
                break
            dropped |= dict.fromkeys(found.units.pop().names, "homogeneous alone, but not together with the others")
            evidence.pop()
    return dropped, evidence


def _worse(one: Probe, two: Probe) -> Probe:
    return max(one, two, key=lambda probe: (not probe.passed, probe.error))


def _reason(prober: _Prober, name: str, found: _Found) -> str:
    p, kind = prober.parameters[name], _kind(prober.model, name)
    if name in found.names:
        return ""
    if not p.requires_grad:
        return "frozen: it is not trained"
    if not p.is_floating_point():
        return "not floating point: it cannot be scaled"
    if name in found.neutral:
        probe = found.neutral[name]
        whom = "" if len(probe.names) == 1 else " together with " + _some([one for one in probe.names if one != name])
        if probe.degree:
            return f"of degree {probe.degree}{whom}: the output shrinks as it grows"
        if whom or prober.turned(name) > prober.tolerance:
            return f"of degree 0{whom}: its scale is divided out, the output depends on its direction only"
        return "of degree 0: the output does not depend on it, on these examples"
    others = [alias for alias, first in prober.alias.items() if first == name]
    if others:
        return f"one tensor with {', '.join(others)}: scaling it moves every place it is used at, so it is not free"
    probe = found.alone[name]
    if probe.degree == 0 and probe.error < SCREEN and probe.error < SCREEN * prober.turned(name):
        return f"in {kind}, of degree 0 nearly: its scale is divided out by a normalisation, up to the eps in there"
    return (
        f"in {kind}: the output follows no power of its scale; the best degree, {probe.degree}, "
        f"misses by {_percent(probe.error)}"
    )


def _kind(model: nn.Module, name: str) -> str:
    kind = type(model.get_submodule(name.rpartition(".")[0])).__name__
    return f"an {kind}" if kind[0] in "AEIOU" else f"a {kind}"


def _percent(error: float) -> str:
    return f"{100 * error:.2g} % of the largest output" if math.isfinite(error) else "more than can be told"


def _notes(prober: _Prober, found: _Found) -> Iterator[str]:
    """What stands in the way of a higher degree: shared weights, and shifts that are scaled with the rest."""
    for name in dict.fromkeys(prober.alias.values()):
        if name not in found.names:
            others = [alias for alias, first in prober.alias.items() if first == name]
            yield f"{name} is also {', '.join(others)}: a shared weight is not a free head"
    for unit in found.units:
        for bias in [name for name in unit.names if _is_shift(name) and len(unit.names) > 1]:
            better = None
            with suppress(_NoOutput), prober.without([bias]):
                better = _choose(prober, found.euler.without(bias, prober))
            if better is not None and better.degree > found.degree:
                yield _without(prober, [bias], better.names, better.degree)
    biases = [name for name in prober.trained if _is_shift(name)]
    rest = [name for name in prober.trained if not _is_shift(name)]
    if len(biases) > 1 and rest:
        probe = None
        with suppress(_NoOutput), prober.without(biases):
            probe = prober.scale(rest)
        if probe is not None and probe.passed and probe.degree > found.degree:
            yield _without(prober, biases, rest, probe.degree)


def _is_shift(name: str) -> bool:
    return name.rpartition(".")[2] == "bias"


def _without(prober: _Prober, biases: Sequence[str], names: Sequence[str], degree: int) -> str:
    names = [name for name in prober.parameters if name in names]
    with prober.without_noise():
        off = prober.off(names, degree)
    return (
        f"without {_some(biases)} the output would be homogeneous of degree {degree} in {_some(names)}; as things are, scaling "
        f"these by 2 misses the power 2^{degree} by {_percent(off)}"
    )


def _some(names: Sequence[str], most: int = 6) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
