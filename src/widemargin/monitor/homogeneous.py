"""Which parameters is the output homogeneous in, and of which degree? Found by scaling them, never assumed.

f is homogeneous of degree L in a set of parameters if f(c w_hat, theta) = c^L f(w_hat, theta) for every c > 0 (UH-4). The probe
multiplies by 2 and 1/2: in floating point that is exact, so a homogeneous network answers with exactly 2^L times its outputs in
any precision. Probes are made near the present parameters, not at them: biases that are still 0, gains and running variances
that are still 1 get some noise first, otherwise a bias would hide until it has moved. Everything is put back afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from widemargin.types import InputError

from .model import check_model, evaluating, logits_and_targets, logits_of, unwrap

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}  # relative to the largest output
COARSE = 2e-2  # bfloat16 and float16
FACTORS = (2.0, 0.5)
GENTLE = (1.0625, 1 / 1.0625)  # where a power of 2 to the degree leaves the floating point range
NOISE = 0.1
ROWS = 8  # examples of the batch that are used
HIGHEST = 512  # degree looked for


@dataclass(frozen=True)
class Probe:
    """Parameters scaled together: the degree that fits best, and how far the outputs are from it, relative to the largest."""

    names: tuple[str, ...]
    degree: int
    error: float
    passed: bool

    def __str__(self) -> str:
        what = self.names[0] if len(self.names) == 1 else f"{len(self.names)} parameters ({_some(self.names)})"
        return f"{what}: degree {self.degree}, off by {self.error:.1e}" + ("" if self.passed else " (not homogeneous)")


@dataclass(frozen=True)
class Homogeneous:
    """The output is homogeneous of degree `degree` in `names` together; `excluded` says why each other parameter is not."""

    names: tuple[str, ...]
    degree: int
    evidence: tuple[Probe, ...] = ()
    excluded: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        if not self.names:
            return "the output is homogeneous in no parameters that were tried; see excluded for the reason of each"
        return f"the output is homogeneous of degree {self.degree} in {_some(self.names)}"

    def __str__(self) -> str:
        lines = [self.summary, *self.notes]
        lines += [f"  scaled: {probe}" for probe in self.evidence]
        reasons: dict[str, list[str]] = {}
        for name, why in self.excluded.items():
            reasons.setdefault(why, []).append(name)
        lines += [f"  not in: {_some(names)}: {why}" for why, names in reasons.items()]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        return {
            "names": list(self.names),
            "degree": self.degree,
            "summary": self.summary,
            "notes": list(self.notes),
            "evidence": [str(probe) for probe in self.evidence],
            "excluded": dict(self.excluded),
        }


def find_homogeneous(
    model: nn.Module,
    batch: Any,
    *,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    tolerance: float | None = None,
) -> Homogeneous:
    """The largest set of trained parameters that the logits are homogeneous in, as far as scaling shows it.

    Every parameter is scaled alone, then every module's parameters together (a gain with its shift, a head with its bias, a
    branch), from the whole model downwards; what is homogeneous is scaled together in the end. `batch` is what the model is
    called with, or a pair or mapping with targets; `forward` maps model and batch to logits. Costs two forward passes of a
    few examples for each parameter and module.
    """
    with _prober(model, batch, forward, tolerance) as prober:
        return _search(prober)


def check_homogeneous(
    model: nn.Module,
    names: Sequence[str],
    batch: Any,
    *,
    degree: int | None = None,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    tolerance: float | None = None,
) -> Homogeneous:
    """Whether the output is homogeneous in these parameters together, of this degree if one is given; complains if not."""
    with _prober(model, batch, forward, tolerance) as prober:
        unknown = [name for name in names if name not in prober.parameters]
        if unknown:
            raise InputError(f"the model has no parameter {unknown[0]!r}")
        probe = prober.scale(names)
    if not probe.passed or probe.degree < 1 or degree not in (None, probe.degree):
        asked = "" if degree is None else f" of degree {degree}"
        raise InputError(
            f"the output is not homogeneous{asked} in {_some(tuple(names))}: scaled by 2 it is {probe.error:.1e} off "
            f'the best power, 2^{probe.degree}; leave homogeneous="auto" to have the parameters found'
        )
    others = {name: "not among the names given" for name in prober.parameters if name not in names}
    return Homogeneous(tuple(names), probe.degree, (probe,), others)


# ---------------------------------------------------------------- scaling


class _Prober:
    def __init__(self, model: nn.Module, run: Callable[[], Tensor], tolerance: float | None):
        self.model, self.run = model, run
        inner = unwrap(model)
        self.parameters = dict(inner.named_parameters())
        self.shared: dict[str, list[str]] = {}
        for name, p in inner.named_parameters(remove_duplicate=False):
            first = next(k for k, v in self.parameters.items() if v is p)
            if first != name:
                self.shared.setdefault(first, []).append(name)
        self.outputs = run()
        self.tolerance = tolerance or TOLERANCE.get(self.outputs.dtype, COARSE)
        self.size = float(self.outputs.double().abs().max()) if self.outputs.numel() else 0.0
        if not math.isfinite(self.size) or not self.size:
            raise InputError(
                "the logits of the probe batch are all 0, or not finite; give another batch, or train for a step first"
            )
        if self._distance(run(), 1.0, 0) > self.tolerance:
            raise InputError(
                "the model answers differently each time in eval mode; make it deterministic to look for homogeneity"
            )

    def scale(self, names: Sequence[str], at: Mapping[str, float] | None = None) -> Probe:
        """Scale these together; `at` multiplies others by fixed factors meanwhile."""
        with self._multiplied(dict(at or {})):
            base = self.outputs if not at else self.run()
            size = float(base.double().abs().max())
            for factors in (FACTORS, GENTLE):
                found = []
                for factor in factors:
                    with self._multiplied(dict.fromkeys(names, factor)):
                        found.append(self.run())
                if all(bool(f.isfinite().all()) for f in found):
                    break
            grown = float(found[0].double().norm() / base.double().norm().clamp_min(1e-300))
            raw = math.log(grown) / math.log(factors[0]) if grown > 0 and math.isfinite(grown) else 0.0
            degree = max(-HIGHEST, min(HIGHEST, round(raw)))
            error = max(
                float((f.double() - factor**degree * base.double()).abs().max()) / (factor**degree * max(size, 1e-300))
                for f, factor in zip(found, factors)
            )
        if not math.isfinite(error):
            error = math.inf
        return Probe(tuple(names), degree, error, error <= self.tolerance)

    def _distance(self, found: Tensor, factor: float, degree: int) -> float:
        return float((found.double() - factor**degree * self.outputs.double()).abs().max()) / (
            factor**degree * self.size
        )

    @contextmanager
    def _multiplied(self, factors: Mapping[str, float]) -> Iterator[None]:
        """Multiply parameters in place. `.data`: a backward pass of the caller's may be under way, and finds the old values."""
        kept = {name: self.parameters[name].data.clone() for name in factors}
        try:
            for name, factor in factors.items():
                self.parameters[name].data.mul_(factor)
            yield
        finally:
            for name, old in kept.items():
                self.parameters[name].data.copy_(old)


@contextmanager
def _prober(
    model: nn.Module, batch: Any, forward: Callable[[nn.Module, Any], Any] | None, tolerance: float | None
) -> Iterator[_Prober]:
    check_model(model)
    few = _rows(batch)

    def run() -> Tensor:
        out = _default(model, few) if forward is None else forward(model, few)
        return logits_of(out).detach().clone()

    with evaluating(model), _noisy(unwrap(model)):
        yield _Prober(model, run, tolerance)


def _default(model: nn.Module, batch: Any) -> Any:
    return model(batch) if isinstance(batch, Tensor) else logits_and_targets(model, batch)[0]


@contextmanager
def _noisy(model: nn.Module) -> Iterator[None]:
    """Noise on what is constant: parameters and buffers as they are at the start hide what they can do."""
    generator = torch.Generator().manual_seed(0)
    kept: list[tuple[Tensor, Tensor]] = []
    try:
        for value in [*model.parameters(), *model.buffers()]:
            value = value.data
            local = value.to_local() if hasattr(value, "to_local") else value
            if not local.is_floating_point() or not local.numel() or not bool((local == local.reshape(-1)[0]).all()):
                continue
            level = float(local.reshape(-1)[0])
            if not math.isfinite(level):
                continue
            kept.append((local, local.clone()))
            draw = torch.randn(local.shape, generator=generator, dtype=torch.float64).clamp(-3, 3)
            width = NOISE if local.ndim < 2 else 1 / math.sqrt(local[0].numel())
            noisy = width * draw if level == 0 else level * (1 + NOISE * draw)
            local.copy_(noisy.to(local.dtype))
        yield
    finally:
        for local, old in kept:
            local.copy_(old)


def _rows(batch: Any) -> Any:
    """The first few examples of every tensor that has as many as the first one."""
    count: list[int] = []

    def cut(part: Any) -> Any:
        if isinstance(part, Tensor) and part.ndim:
            count or count.append(len(part))  # type: ignore[func-returns-value]
            return part[:ROWS] if len(part) == count[0] else part
        if isinstance(part, Mapping):
            return {key: cut(value) for key, value in part.items()}
        if type(part) in (tuple, list):
            return type(part)(cut(value) for value in part)
        return part

    return cut(batch)


# ---------------------------------------------------------------- searching


def _search(prober: _Prober) -> Homogeneous:
    names = list(prober.parameters)
    trained = {name for name in names if prober.parameters[name].requires_grad}
    alone = {name: prober.scale([name]) for name in names if prober.parameters[name].is_floating_point()}
    chosen: list[Probe] = []  # disjoint, each homogeneous by itself
    for name in names:
        if name in trained and name in alone and alone[name].passed and alone[name].degree >= 1:
            chosen = _with(prober, chosen, alone[name])
    for _, members in _groups(unwrap(prober.model), names):
        taken = {name for probe in chosen for name in probe.names}
        if set(members) <= taken or not set(members) <= trained:
            continue
        probe = prober.scale(members)
        if probe.passed and probe.degree >= 1:
            apart = [one for one in chosen if not set(one.names) & set(members)]
            larger = _with(prober, apart, probe)
            if _degree(larger) >= _degree(chosen) and len(larger) > len(apart):
                chosen = larger
    within = {name for probe in chosen for name in probe.names}
    final = tuple(name for name in names if name in within)
    evidence = list(chosen)
    if len(chosen) > 1:
        evidence.append(prober.scale(final))
    excluded = {name: _reason(prober, name, alone.get(name), name in trained) for name in names if name not in within}
    return Homogeneous(final, _degree(chosen), tuple(evidence), excluded, tuple(_notes(prober, final, _degree(chosen))))


def _degree(probes: Sequence[Probe]) -> int:
    return sum(probe.degree for probe in probes)


def _with(prober: _Prober, chosen: Sequence[Probe], more: Probe) -> list[Probe]:
    """`chosen` and `more`, if they are homogeneous together; else `chosen`."""
    if not chosen:
        return [more]
    every = [name for probe in [*chosen, more] for name in probe.names]
    joint = prober.scale(every)
    return [*chosen, more] if joint.passed and joint.degree == _degree(chosen) + more.degree else list(chosen)


def _groups(model: nn.Module, names: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The parameters of every module that has several, the whole model first."""
    found: list[tuple[str, list[str]]] = []
    for path, _ in model.named_modules():
        members = [name for name in names if not path or name.startswith(path + ".")]
        if len(members) > 1 and (not found or found[-1][1] != members):
            found.append((path, members))
    return sorted(found, key=lambda one: -len(one[1]))


def _reason(prober: _Prober, name: str, probe: Probe | None, trained: bool) -> str:
    if name in prober.shared:
        return f"shared with {', '.join(prober.shared[name])}: scaling it moves every place it is used at, so it is not free"
    if not trained:
        return "frozen: it is not trained"
    if probe is None:
        return "not floating point: it cannot be scaled"
    if probe.passed and probe.degree == 0:
        return "its scale does not change the output (degree 0)"
    if probe.passed:
        return "homogeneous alone, but not together with the others"
    return "scaling it changes the output by no power of the factor"


def _notes(prober: _Prober, names: Sequence[str], degree: int) -> Iterator[str]:
    """What stands in the way of a higher degree: biases of the modules chosen, and shared heads."""
    for name, others in prober.shared.items():
        yield f"{name} is also {', '.join(others)}: a shared weight is not a free head"
    for bias in [name for name in names if name.rpartition(".")[2] == "bias"]:
        rest = [name for name in prober.parameters if name != bias]
        more = [name for name in rest if name not in names and prober.parameters[name].requires_grad]
        without = {bias: 0.0}
        for _, members in [*_groups(unwrap(prober.model), more), *(("", [name]) for name in more)]:
            probe = prober.scale(members, without)
            if not (probe.passed and probe.degree >= 1):
                continue
            whole = [name for name in names if name != bias] + members
            joint = prober.scale(whole, without)
            if joint.passed and joint.degree > degree:
                off = prober.scale(whole)
                yield (
                    f"without {bias} the output would be homogeneous of degree {joint.degree} in {_some(tuple(whole))}; "
                    f"the bias puts it {off.error:.1e} off"
                )
                break


def _some(names: Sequence[str], most: int = 6) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
