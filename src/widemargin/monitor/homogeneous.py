"""Which parameters is the output homogeneous in, and of which degree? Found by scaling them, never assumed.

f is homogeneous of degree L in a set of parameters if f(c w_hat, theta) = c^L f(w_hat, theta) for every c > 0 and every value of
the other parameters (UH-4). Three facts make the search short and its answer safe:

- Multiplying by a power of 2 is exact in floating point, so a homogeneous network answers with exactly 2^(kL) times its outputs
  in any precision. Factors far from 1 show what is small now: a bias that has hardly moved, a cap that is not reached yet.
- If f is homogeneous in A, of degree a, and in A and B together, of degree l, then in B alone, of degree l - a. So sets that
  are homogeneous can be taken away one after the other, the smallest first, and their degrees add up.
- Euler: sum over the set of <p, df/dp> = L f. This is linear in the choice of the set. A few backward passes tell which sets are
  worth a probe (euler.py); a linear program finds some that lie in no one module.

Probes are made near the present parameters, not at them: shifts that are still 0, gains and running variances that are still 1
get some noise first, otherwise a bias would hide until it has moved. Frozen parameters stay as they are. What was found is
scaled once more at other noise and on other examples, and everything is put back afterwards. Pictures and texts are cut to the
smallest that the model takes (scaling.py) and the answer is scaled at the size that was given; where it does not hold there, the
search is made at that size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from widemargin.errors import show
from widemargin.types import InputError

from .euler import Euler
from .scaling import FREE, LITTLE, SCREEN, NoOutput, Probe, Prober, probing, some_names

USUAL = 60  # forward passes of a search, backward ones counted twice
OTHERS = 10.0  # what the other parameters are multiplied by to see whether outputs grow with them,
MOST = 1e30  # growth beyond, or beyond floating point


@dataclass(frozen=True)
class Homogeneous:
    """The output is homogeneous of degree `degree` in `names` together; `excluded` says why each other parameter is not in.

    `evidence` are the probes that show it: sets that are homogeneous each by itself and cannot be made smaller by modules, and
    at the end, if there are several, all of them together.

    `notes` are sentences about what was special. `growth` is by how much the largest output grows when all other trained
    parameters are multiplied by 10: about 1 where a normalisation holds them, and 1 where there are none. Where it is more,
    `free`, their scale costs nothing, and a margin over |w|^L means little.

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
    growth: float = 1.0

    @property
    def free(self) -> bool:
        """Whether outputs, and margins over |w|^L with them, grow with the scale of the other parameters."""
        return bool(self.names) and self.growth > FREE

    @property
    def summary(self) -> str:
        """One sentence."""
        if not self.names:
            return "the output is homogeneous in no parameters that were tried; see excluded for the reason of each"
        said = f"the output is homogeneous of degree {self.degree} in {some_names(self.names)}"
        if not self.free:
            return said
        return (
            f"{said}, and the scale of the others is free: multiplied by {OTHERS:g} they make outputs {self.growth:.3g} "
            "times as large, and margins over the norm with them, whatever the error; so normalised means little here "
            "(heuristics=True has margins that it does not change)"
        )

    def __str__(self) -> str:
        lines = [self.summary, *self.notes]
        lines += [f"  scaled: {probe}" for probe in self.evidence]
        reasons: dict[str, list[str]] = {}
        for name, why in self.excluded.items():
            reasons.setdefault(why.partition(";")[0], []).append(name)
        lines += [f"  not in: {some_names(names)}: {why}" for why, names in reasons.items()]
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
            "growth": self.growth,
        }


def find_homogeneous(
    model: nn.Module,
    batch: Any,
    *,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    tol: float | None = None,
    progress: Callable[[float, int], None] | None = None,
) -> Homogeneous:
    """The parameters that are trained and that the logits are homogeneous in, jointly, as far as scaling shows it.

    Single parameters are looked at first, then those of every module together (a gain with its shift, a head with its bias, a
    branch), from the smallest to the whole model, then sets across modules (the ends of two branches). `batch` is what the model
    is called with, or a pair or mapping with targets; `forward` maps model and batch to logits, or to logits and targets. Costs
    less than ten forward passes of an ordinary batch (`python benchmarks/monitor.py --find`): few examples are used, and pictures
    and texts are cut as far as the model takes them.

    `tol` is how far outputs may be off, relative to the largest (by default what the model's precision allows). `progress` is
    called once, before the search, with the seconds that it may take and the number of parameters.

    >>> from torch import manual_seed, nn, randn
    >>> from widemargin.monitor import find_homogeneous
    >>> rng = manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8, bias=False), nn.Linear(8, 3, bias=False))
    >>> found = find_homogeneous(model, randn(8, 4))  # the gain and the head; what is before is normalised away
    >>> found.degree, sorted(found.names)
    (2, ['1.weight', '2.weight'])
    """
    if not (progress is None or callable(progress)):
        raise InputError(f"progress must be a function of seconds and a number, or None, not {show(progress)}")
    with probing(model, batch, forward, tol) as prober:
        if progress is not None:
            progress(USUAL * prober.seconds, len(prober.trained))
        answer = _search(prober)
        if not prober.cut or _holds_at_full_size(prober, answer):
            return answer
    with probing(model, batch, forward, tol, small=False) as prober:
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
    several = isinstance(names, Iterable) and not isinstance(names, str) and getattr(names, "ndim", 1) == 1
    names = tuple(names) if several else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise InputError("give the names of the parameters as a list with at least one name")
    with probing(model, batch, forward, tol) as prober:
        for name in names:
            if name in prober.alias:
                raise InputError(f"{name} is the same tensor as {prober.alias[name]}; give that name")
            if name not in prober.parameters:
                raise InputError(f"the model has no parameter {name!r}")
        probe = prober.scale(names)
        for place in (1, 2) if prober.cut else (1,):
            if probe.passed:
                with prober.elsewhere(place):
                    probe = _worse(probe, prober.scale(names))
        sides = [name for name in prober.trained if name not in names]
        growth = _growth(prober, names) if probe.passed else 1.0
    if not probe.passed or probe.degree < 1 or degree not in (None, probe.degree):
        asked = "" if degree is None else f" of degree {degree}"
        how = (
            f"they are of degree {probe.degree}"
            if probe.passed
            else f"the best degree, {probe.degree}, is {probe.error:.1e} of the largest output off"
        )
        raise InputError(
            f"the output is not homogeneous{asked} in {some_names(names)}: {how}; "
            f'leave homogeneous="auto" to have the parameters found'
        )
    reasons = {
        name: "not among the names given" if name in sides else "frozen: it is not trained"
        for name in prober.parameters
    }
    others = {name: why for name, why in reasons.items() if name not in names}
    return Homogeneous(names, probe.degree, (probe,), others, growth=growth)


# ---------------------------------------------------------------- searching


@dataclass
class _Chosen:
    euler: Euler
    units: list[Probe]  # homogeneous of degree >= 1, each by itself, disjoint
    alone: dict[str, Probe]
    neutral: dict[str, Probe]  # parameters of sets of degree 0 or less

    @property
    def degree(self) -> int:
        return sum(unit.degree for unit in self.units)

    @property
    def names(self) -> list[str]:
        return [name for unit in self.units for name in unit.names]


def _choose(prober: Prober, euler: Euler) -> _Chosen:
    """Sets that are homogeneous by themselves, from single parameters to the whole model; each is taken away when found."""
    chosen = _Chosen(euler, [], {}, {})
    left = dict.fromkeys(prober.trained)
    tried: set[tuple[str, ...]] = set()

    def attempt(names: Sequence[str]) -> bool:
        names = tuple(name for name in names if name in left)
        if not names or names in tried:
            return False
        tried.add(names)
        probe = euler.fit(names)
        if euler.fits(probe):
            probe = prober.scale(names)
        if len(names) == 1:
            chosen.alone[names[0]] = probe
        if probe.passed:
            for name in names:
                del left[name]
                if probe.degree < 1:
                    chosen.neutral[name] = probe
            if probe.degree >= 1:
                chosen.units.append(probe)
        return probe.passed

    for name in prober.trained:
        attempt([name])
    for members in _modules(prober.model, prober.trained):
        attempt(members)
    while prober.kind in LITTLE and attempt(euler.across(list(left))):
        pass
    return chosen


def _modules(model: nn.Module, names: Sequence[str]) -> list[list[str]]:
    """The parameters of every module, the smallest first."""
    groups = [[name for name in names if not path or name.startswith(path + ".")] for path, _ in model.named_modules()]
    return sorted((members for members in groups if len(members) > 1), key=len)


def _search(prober: Prober) -> Homogeneous:
    chosen = _choose(prober, Euler.of(prober))
    dropped, evidence = _confirm(prober, chosen) if chosen.units else ({}, [])
    reasons = {name: dropped.get(name) or _reason(prober, name, chosen) for name in prober.parameters}
    names = set(chosen.names)
    return Homogeneous(
        tuple(name for name in prober.parameters if name in names),
        chosen.degree,
        tuple(evidence),
        {name: why for name, why in reasons.items() if name not in names},
        tuple(_notes(prober, chosen)),
        _growth(prober, chosen.names),
    )


def _growth(prober: Prober, names: Sequence[str]) -> float:
    """The largest output when all other trained parameters are multiplied by OTHERS, over what it is; 1 without any."""
    others = [name for name in prober.trained if name not in names]
    if not (names and others):
        return 1.0
    growth = prober.largest(prober.scaled(others, OTHERS)) / prober.size
    return growth if growth < MOST else MOST


def _holds_at_full_size(prober: Prober, answer: Homogeneous) -> bool:
    """Whether what was found on small pictures or texts is so on those that were given."""
    if not answer.names:
        return True
    with prober.elsewhere(2):
        return prober.off(answer.names, answer.degree) <= prober.tolerance


def _confirm(prober: Prober, chosen: _Chosen) -> tuple[dict[str, str], list[Probe]]:
    """Scale every set again at another point, and all of them together. Those that fail are dropped, and it is said why."""
    dropped: dict[str, str] = {}
    evidence: list[Probe] = []
    with prober.elsewhere():
        for unit in list(chosen.units):
            again = prober.scale(unit.names)
            if again.passed and again.degree == unit.degree:
                evidence.append(_worse(unit, again))
            else:
                chosen.units.remove(unit)
                why = f"homogeneous at one point and not at another; off by {_percent(again.error)} there"
                dropped |= dict.fromkeys(unit.names, why)
        while len(chosen.units) > 1:
            joint = prober.scale(chosen.names)
            if joint.passed and joint.degree == chosen.degree:
                evidence.append(joint)
                break
            dropped |= dict.fromkeys(chosen.units.pop().names, "homogeneous alone, but not together with the others")
            evidence.pop()
    return dropped, evidence


def _worse(first: Probe, second: Probe) -> Probe:
    return max(first, second, key=lambda probe: (not probe.passed, probe.error))


def _reason(prober: Prober, name: str, chosen: _Chosen) -> str:
    p, kind = prober.parameters[name], _kind(prober.model, name)
    if name in chosen.names:
        return ""
    if not p.requires_grad:
        return "frozen: it is not trained"
    if not p.is_floating_point():
        return "not floating point: it cannot be scaled"
    if name in chosen.neutral:
        probe = chosen.neutral[name]
        whom = (
            ""
            if len(probe.names) == 1
            else " together with " + some_names([other for other in probe.names if other != name])
        )
        if probe.degree:
            return f"of degree {probe.degree}{whom}: the output shrinks as it grows"
        if whom or _moved(prober, name, chosen) > prober.tolerance:
            return f"of degree 0{whom}: its scale is divided out, the output depends on its direction only"
        return "of degree 0: the output does not depend on it, on these examples"
    others = [alias for alias, first in prober.alias.items() if first == name]
    if others:
        return f"one tensor with {', '.join(others)}: scaling it moves every place it is used at, so it is not free"
    probe = chosen.alone[name]
    if probe.degree == 0 and probe.error < SCREEN and probe.error < SCREEN * _moved(prober, name, chosen):
        return f"in {kind}, of degree 0 nearly: its scale is divided out by a normalisation, up to the eps in there"
    return (
        f"in {kind}: the output follows no power of its scale; the best degree, {probe.degree}, "
        f"misses by {_percent(probe.error)}"
    )


def _moved(prober: Prober, name: str, chosen: _Chosen) -> float:
    """How much the outputs depend on the direction of a parameter."""
    return prober.turned(name) if chosen.euler.moved is None else chosen.euler.moved[name]


def _kind(model: nn.Module, name: str) -> str:
    kind = type(model.get_submodule(name.rpartition(".")[0])).__name__
    return f"an {kind}" if kind[0] in "AEIOU" else f"a {kind}"


def _percent(error: float) -> str:
    return f"{100 * error:.2g} % of the largest output" if math.isfinite(error) else "more than can be told"


def _notes(prober: Prober, chosen: _Chosen) -> Iterator[str]:
    """What stands in the way of a higher degree: shared weights, and shifts that are scaled with the rest."""
    for name in dict.fromkeys(prober.alias.values()):
        if name not in chosen.names:
            others = [alias for alias, first in prober.alias.items() if first == name]
            yield f"{name} is also {', '.join(others)}: a shared weight is not a free head"
    for unit in chosen.units:
        for bias in [name for name in unit.names if _is_shift(name) and len(unit.names) > 1]:
            better = None
            with suppress(NoOutput), prober.without([bias]):
                better = _choose(prober, chosen.euler.without(bias, prober))
            if better is not None and better.degree > chosen.degree:
                yield _without(prober, [bias], better.names, better.degree)
    biases = [name for name in prober.trained if _is_shift(name)]
    rest = [name for name in prober.trained if not _is_shift(name)]
    if len(biases) > 1 and rest:
        probe = None
        with suppress(NoOutput), prober.without(biases):
            probe = prober.scale(rest)
        if probe is not None and probe.passed and probe.degree > chosen.degree:
            yield _without(prober, biases, rest, probe.degree)


def _is_shift(name: str) -> bool:
    return name.rpartition(".")[2] == "bias"


def _without(prober: Prober, biases: Sequence[str], names: Sequence[str], degree: int) -> str:
    names = [name for name in prober.parameters if name in names]
    with prober.without_noise():
        off = prober.off(names, degree)
    return (
        f"without {some_names(biases)} the output would be homogeneous of degree {degree} in {some_names(names)}; as things are, "
        f"scaling these by 2 misses the power 2^{degree} by {_percent(off)}"
    )
