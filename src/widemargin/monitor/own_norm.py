"""The norm that an optimiser moves in: which one it is, and how large the homogeneous parameters are in it (docs/steepest.md).

An optimiser whose every block b moves by h c_b s_b, s_b steepest in a norm N_b, is steepest descent in max_b N_b / c_b:
Adam, AdamW, Lion and signSGD with the largest entry, Muon with the spectral norm of each matrix, both with the learning rate of
the group as c_b. SGD moves by h c_b times the gradient, which is steepest descent in sqrt(sum_b |w_b|^2 / c_b). Only ratios of
learning rates matter; c_b = 1 is that of the largest rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from widemargin.types import InputError, show

from .model import WIDE, Norms, lengths, local_part, on_host, squared

NORMS = ("l2", "linf", "spectral")
SIGNS = ("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Lion", "SignSGD", "signSGD", "SignDescent", "Signum")
MATRICES = ("Muon", "MuonWithAuxAdam", "SingleDeviceMuon", "SingleDeviceMuonWithAuxAdam")
DECOUPLED = ("AdamW", "Lion", "SignSGD", "signSGD", "SignDescent", *MATRICES)  # where the groups do not say it
KNOWN = f"SGD, {', '.join(SIGNS[:7])} and Muon"
EXACT = 1024  # rows or columns up to which `measure` takes the exact spectral norm
LONG = 60  # power iterations of `measure` beyond it
SHIFT = 1e-15  # of W'W / N(W)^2
SHORT = 1  # of a step, each with two products; it goes on where the last step ended


@dataclass(frozen=True)
class Part:
    """One parameter: its norm, and the weight c that it is divided by."""

    name: str
    norm: str
    weight: float


@dataclass(frozen=True)
class Geometry:
    """The norm of an optimiser on some parameters, and what keeps its steps from being steepest.

    `parts` have a norm and a weight for each parameter, `joined` is "max" or "l2". `momentum` and `decay` are the largest of all
    groups, `rate` the largest learning rate, `source` what the norm was read from. `even`: decay is decoupled from the gradient
    and shrinks all of these parameters alike, as WM-6 asks.

    >>> import torch
    >>> from widemargin.monitor import own_geometry
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3, bias=False), torch.nn.Linear(3, 2, bias=False))
    >>> groups = [{"params": model[0].parameters(), "lr": 1e-3}, {"params": model[1].parameters(), "lr": 5e-4}]
    >>> found = own_geometry(torch.optim.Adam(groups), dict(model.named_parameters()))
    >>> print(found)
    the largest of max|0.weight|, max|1.weight| / 0.5 (Adam)
    """

    parts: tuple[Part, ...]
    joined: str
    source: str
    momentum: float = 0.0
    decay: float = 0.0
    rate: float = math.nan
    even: bool = True

    def __str__(self) -> str:
        words = {"l2": "|{}|", "linf": "max|{}|", "spectral": "|{}|_op"}
        each = []
        for part in self.parts:
            weight = part.weight**0.5 if self.joined == "l2" else part.weight
            each.append(words[part.norm].format(part.name) + ("" if weight == 1 else f" / {weight:.4g}"))
        start = "the length of " if self.joined == "l2" else "the largest of " if len(each) > 1 else ""
        return f"{start}{', '.join(each)} ({self.source})"

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        parts = [{"name": part.name, "norm": part.norm, "weight": part.weight} for part in self.parts]
        return {
            "parts": parts,
            "joined": self.joined,
            "source": self.source,
            "momentum": self.momentum,
            "decay": self.decay,
        }

    def only(self, names: Iterable[str]) -> Geometry:
        """The same for some of the parameters."""
        wanted = set(names)

        return replace(self, parts=tuple(part for part in self.parts if part.name in wanted))


def own_geometry(
    optimizer: Any, named: Mapping[str, Tensor], names: Sequence[str] | None = None, norm: str | None = None
) -> Geometry:
    """The geometry of an `optimizer` (or a list of them) on the parameters `names` (all) of a model, `named` by name.

    `norm` is "l2", "linf" or "spectral" and takes the place of what the optimiser says. An InputError, one sentence, where the
    optimiser is not known, a group has no learning rate, a parameter is in no group, or a norm does not fit a parameter.

    >>> import torch
    >>> from widemargin.monitor import own_geometry
    >>> head = torch.nn.Linear(3, 2, bias=False)
    >>> print(own_geometry(torch.optim.SGD(head.parameters(), lr=0.1), dict(head.named_parameters())))
    the length of |weight| (SGD)
    >>> print(own_geometry(None, dict(head.named_parameters()), norm="spectral"))
    |weight|_op (norm=)
    """
    if not isinstance(named, Mapping):
        raise InputError(
            f"named must be a dictionary of parameters, such as dict(model.named_parameters()), not {show(named)}"
        )
    names = list(named) if names is None else list(names)
    if norm is not None and not (isinstance(norm, str) and norm in NORMS):
        raise InputError(f"norm must be one of {', '.join(NORMS)}, not {show(norm)}")
    if optimizer is None:
        if norm is None:
            raise InputError("there is neither an optimizer nor a norm; give one of them")
        parts = tuple(Part(name, norm, 1.0) for name in names)
        return _checked(Geometry(parts, "l2" if norm == "l2" else "max", "norm="), named)
    many = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
    rates: dict[str, tuple[str, float]] = {}
    shrinks: dict[str, float] = {}  # what a step takes away of each parameter; NaN where it goes through the gradient
    momentum = decay = 0.0
    by = {id(p): name for name, p in named.items()}
    for each in map(_inner, many):
        kind = type(each).__name__
        groups = getattr(each, "param_groups", None)
        if not isinstance(groups, list):
            raise InputError(f"optimizer must be a torch optimiser with parameter groups, not {kind}")
        for k, group in enumerate(groups):
            own = norm or _norm_of(kind, group)
            rate = _rate(kind, k, group)
            momentum = max(momentum, _momentum(kind, group))
            own_decay = float(group.get("weight_decay", 0.0) or 0.0)
            decay = max(decay, own_decay)
            decoupled = group.get("decoupled_weight_decay", kind in DECOUPLED)
            for p in group["params"]:
                name = by.get(id(p))
                if name in rates:
                    raise InputError(
                        f"the parameter {name!r} is moved by two optimisers, which is steepest descent in no norm"
                    )
                if name is not None:
                    shrinks[name] = rate * own_decay if decoupled or not own_decay else math.nan
                    rates[name] = own, rate * (_adjusted(kind, group, p) if own == "spectral" else 1.0)
    for name in names:
        if name not in rates:
            raise InputError(
                f"the parameter {name!r} is in no group of the optimiser, so it does not move with the others; "
                "give homogeneous= without it, or all optimisers in a list"
            )
    kinds = {rates[name][0] for name in names}
    if "l2" in kinds and len(kinds) > 1:
        raise InputError(
            "SGD and an optimiser of another geometry together are steepest descent in no norm; give norm="
        )
    top = max((rates[name][1] for name in names), default=1.0)
    parts = tuple(Part(name, rates[name][0], rates[name][1] / top) for name in names)
    source = " and ".join(dict.fromkeys(type(_inner(optimizer)).__name__ for optimizer in many))
    even = len({shrinks[name] for name in names}) <= 1 and not any(math.isnan(shrinks[name]) for name in names)
    return _checked(Geometry(parts, "l2" if kinds == {"l2"} else "max", source, momentum, decay, top, even), named)


def _inner(optimizer: Any) -> Any:
    """The optimiser in a wrapper of accelerate, Lightning or the like, which has another name and the same groups."""
    inner = getattr(optimizer, "optimizer", None)
    return inner if isinstance(inner, torch.optim.Optimizer) else optimizer


def _norm_of(kind: str, group: Mapping[str, Any]) -> str:
    if kind == "SGD":
        return "l2"
    if kind in SIGNS:
        return "linf"
    if kind in MATRICES:
        return "spectral" if group.get("use_muon", True) else "linf"
    raise InputError(
        f"the monitor does not know in which norm {kind} moves; it knows {KNOWN}; give norm=, one of {', '.join(NORMS)}"
    )


def _rate(kind: str, k: int, group: Mapping[str, Any]) -> float:
    """The learning rate of a group; that before a schedule, which multiplies all of them alike."""
    value = group.get("initial_lr", group.get("lr"))
    rate = math.nan if value is None else float(value)
    if not rate > 0 or math.isinf(rate):
        said = "has no learning rate" if value is None else f"has the learning rate {rate:g}"
        raise InputError(
            f"group {k} of {kind} {said}; the weights of the norm are learning rates above 0, or give norm="
        )
    return rate


def _momentum(kind: str, group: Mapping[str, Any]) -> float:
    """The larger of the rates at which gradients are averaged; that of squares does not move the direction by itself."""
    betas = group.get("betas")
    return max(float(group.get("momentum", 0.0) or 0.0), float(betas[0]) if betas else 0.0)


def _adjusted(kind: str, group: Mapping[str, Any], p: Tensor) -> float:
    """What Muon multiplies the learning rate of a matrix by."""
    rows, columns = p.shape[0], math.prod(p.shape[1:])
    if group.get("adjust_lr_fn") == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1.0, rows / columns))


def _checked(geometry: Geometry, named: Mapping[str, Tensor]) -> Geometry:
    for part in geometry.parts:
        if part.norm == "spectral" and named[part.name].ndim < 2:
            raise InputError(
                f"the spectral norm does not fit {part.name}, a vector of {named[part.name].numel()} entries; give it to another "
                "optimiser (Muon leaves vectors to Adam), or norm= l2 or linf"
            )
    return geometry


# ---------------------------------------------------------------- sizes


@dataclass
class OwnNorm:
    """The norm of parameters at every step; spectral norms by a power iteration that goes on from step to step.

    Of `world` ranks each has its share, of what it holds: over all of them shares are joined as parts are (`joined`).
    """

    geometry: Geometry
    vectors: dict[str, Tensor] = field(default_factory=dict)  # right singular vectors so far
    scales: dict[str, float] = field(default_factory=dict)  # 1 / N(W)^2 of each matrix, as far as the host knows

    def now(self, tensors: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[float]]:
        """Scalars on the device from which `sizes` has N(w), and what some were multiplied by: nothing waits for them.

        |W v| and scale |W'W v| of each matrix of the power iteration, then the largest entries of the other parameters. All else
        is left to the host, since each call into a GPU is a noticeable part of a short step; that of l2 has the lengths already.
        `tensors` are those of the geometry's parts, in order. Call it without gradients.
        """
        if self.geometry.joined == "l2":
            return (), ()
        kept: list[Tensor] = []
        entries: list[Tensor] = []
        scales: list[float] = []
        for part, tensor in zip(self.geometry.parts, tensors):
            p, _ = local_part(tensor, 1)
            if part.norm == "spectral":
                kept += self._power(part.name, p, SHORT)
                scales.append(self.scales[part.name])
            else:
                entries.append(p if p.numel() else p.new_zeros(1))  # a shard may have none
        return [*kept, *lengths(entries, math.inf)], scales

    def sizes(self, held: Sequence[Norms], world: int = 1, squares: Tensor | None = None) -> Tensor:
        """(S, 2): N(w) and the largest error of the spectral norms (or 0) of steps, from what they hold.

        `squares` are the sums of squares, where they are known.
        """
        parts = self.geometry.parts
        if self.geometry.joined == "l2":
            known = squares is not None and all(part.weight == 1 for part in parts)
            size = (squares if known else squared(held, [part.weight for part in parts], world)).sqrt()  # type: ignore[union-attr]
            return torch.stack([size, torch.zeros_like(size)], 1)
        matrices = [part for part in parts if part.norm == "spectral"]
        others = [part for part in parts if part.norm != "spectral"]
        values = on_host([value for norms in held for value in norms.own]).view(len(held), -1)
        top, back = values[:, : 2 * len(matrices)].unflatten(1, (-1, 2)).unbind(2)  # (S, matrices)
        back = back / torch.tensor([norms.scales for norms in held], dtype=torch.float64)
        weights = torch.tensor([part.weight for part in (*matrices, *others)], dtype=torch.float64)
        size = (torch.cat([top, values[:, 2 * len(matrices) :]], 1) / weights).amax(1)
        if not matrices:
            return torch.stack([size, torch.zeros_like(size)], 1)
        eps = [torch.finfo(value.dtype).eps for value in held[-1].own[: 2 * len(matrices) : 2]]
        for part, last, product in zip(matrices, top[-1].tolist(), back[-1].tolist()):
            if not math.isfinite(product):  # weights that are not finite may be mended: the vector begins anew
                self.vectors.pop(part.name, None)
            else:
                self.scales[part.name] = _scale(last)
        return torch.stack([size, residual(top, back, torch.tensor(eps, dtype=torch.float64)).amax(1)], 1)

    def exactly(self, tensors: Sequence[Tensor], world: int = 1) -> tuple[float, float]:
        """N(w) in float64, and the relative residual where a matrix is too large for a decomposition."""
        values, error = [], 0.0
        for part, tensor in zip(self.geometry.parts, tensors):
            p, copies = local_part(tensor.detach(), world)
            p = p.double()
            if part.norm == "spectral":
                matrix = p.flatten(1)
                if min(matrix.shape) <= EXACT:
                    small = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
                    value = torch.linalg.eigvalsh(small)[-1].clamp_min(0).sqrt().item()
                else:
                    top, back = on_host(self._power(part.name, p, LONG))
                    back = back / self.scales[part.name]
                    value, error = top.item(), max(error, residual(top, back, torch.finfo(p.dtype).eps).item())
            else:
                value = (p.norm() if part.norm == "l2" or not p.numel() else p.abs().max()).item()
            values.append(value / self._weight(part, copies))
        return (math.hypot(*values) if self.geometry.joined == "l2" else max(values)), error

    def _weight(self, part: Part, copies: float) -> float:
        """What a part is divided by; in a sum of squares over ranks each of its copies counts as a share."""
        return math.sqrt(part.weight * copies) if self.geometry.joined == "l2" else part.weight

    def _power(self, name: str, p: Tensor, rounds: int) -> Sequence[Tensor]:
        """|W v| for a unit v, and |W'W v| times the scale of W, from which `residual` has its error.

        The first is never above the largest singular value. That it is near the largest and not another one is what starting at
        random and going on from the last step make likely; `measure` computes it. Scaled, W'W v neither leaves floating point
        nor is small beside the shift of W'W, which keeps v from vanishing with a matrix of zeros (heads may start there).
        """
        if torch.is_autocast_enabled(p.device.type):  # it would take the products in half precision
            with torch.autocast(p.device.type, enabled=False):
                return self._power(name, p, rounds)
        W = p.flatten(1).float() if p.dtype not in WIDE else p.flatten(1)
        v = self.vectors.get(name)
        if v is None or v.shape[0] != W.shape[1]:
            v = torch.randn(W.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
            v, rounds = v / v.norm(), max(rounds, LONG)
            self.scales[name] = _scale(
                W.norm(dtype=torch.float64).item()
            )  # the only time that the device is waited for
        v = v.to(W.device, W.dtype)
        scale = self.scales[name]
        found: Sequence[Tensor] = ()
        for _ in range(rounds):
            u = W @ v
            back = torch.addmv(v, W.T, u, beta=SHIFT, alpha=scale)
            found = torch._foreach_norm([u, back])
            v = back / found[1]
        self.vectors[name] = v
        return found


def _scale(size: float) -> float:
    """1 / size^2, within what float32 holds; 1 where it says nothing."""
    return min(max(size, 1e-15), 1e15) ** -2 if 0 < size < math.inf else 1.0


def residual(size: Tensor, back: Tensor, eps: float | Tensor) -> Tensor:
    """|W'u - s v| / s with s = |W v|, u = W v / s and |v| = 1, of s and |W'W v|: a singular value lies that near to s.

    As <W'u, v> = s it is sqrt(e^2 - 1) with e = |W'W v| / s^2; what rounding by `eps` hides is added. For s = 0 it is 0.

    >>> import torch
    >>> from widemargin.monitor.own_norm import residual
    >>> residual(torch.tensor([2.0, 0.0]), torch.tensor([5.0, 0.0]), 1e-16)
    tensor([0.7500, 0.0000])
    """
    excess = back / size / size
    return ((excess.square() - 1).clamp_min(0) + 16 * eps).sqrt().where(size > 0, 0.0)
