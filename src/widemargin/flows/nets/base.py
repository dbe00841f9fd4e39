"""What every network has: an initial law, outputs, the pull-back of weights on the points, and its sizes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from widemargin.types import InputError, Measure, content_hash, show

from ..fields import check_fields, take_plain_numbers

Params = dict[str, Tensor]
LARGEST = 10**9  # features, neurons, outputs


def trial_numbers(trials: int | Sequence[int]) -> Sequence[int]:
    return range(trials) if isinstance(trials, int | np.integer) else [int(trial) for trial in trials]


@dataclass(frozen=True)
class Net:
    """What every net has. Subclasses are frozen dataclasses with the sizes and choices as fields.

    A net of your own has `draw`, `evaluate` and `pull`, and `push` for checks of theorems. It takes d features, the bias
    coordinate included, and has m neurons. Its parameters W are tensors by name, each with a leading dimension B of trials.

    >>> import numpy as np
    >>> from widemargin import flows
    >>> net = flows.TwoLayer(d=3, m=4)
    >>> W = net.init(2, seed=0)
    >>> {name: value.shape for name, value in W.items()}
    {'a': (2, 4), 'V': (2, 4, 3)}
    >>> np.array_equal(net.init([1], seed=0)["V"][0], W["V"][1])
    True
    >>> net.trained, net.degree, net.conventions()
    (('a', 'V'), 2, ('M1', 'M2'))
    """

    d: int  # features, bias coordinate included where the data has one
    m: int  # neurons

    name = "net"
    trained: tuple[str, ...] = field(default=(), init=False)  # parameters that training moves
    homogeneous: tuple[str, ...] = field(default=(), init=False)  # the subset in which the output is homogeneous
    degree: int = field(default=2, init=False)  # and its degree
    outputs: int = field(default=1, init=False)  # classes, or 1

    def __post_init__(self) -> None:
        take_plain_numbers(self)
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.init}
        for size in ("d", "m", "outputs"):
            value = getattr(self, size)
            if isinstance(value, int) and value > LARGEST:  # numpy has no words for arrays beyond what can be addressed
                raise InputError(f"{self.name}: {size} is {show(value)}; at most {LARGEST} is possible")
        check_fields(type(self), given, f"the network {self.name}")
        if self.d < 1 or self.m < 1:
            raise InputError(f"{self.name}: a network needs at least one feature and one neuron (width {self.m})")

    def config(self) -> dict[str, Any]:
        """The fields, ready for JSON: arrays as their hashes, modules as text."""
        return {"net": self.name} | {
            field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)
        }

    def init(self, trials: int | Sequence[int], seed: int) -> dict[str, np.ndarray]:
        """Initial parameters of trials 0..B-1, or of the trials of these numbers; trial b depends on (seed, b) alone."""
        with np.errstate(over="ignore"):  # where the size of a start was asked for; such a trial diverges
            each = [self.draw(np.random.default_rng([seed, trial])) for trial in trial_numbers(trials)]
        for trial in each:
            self._check_draw(trial, each[0])
        return {name: np.stack([trial[name] for trial in each]) for name in each[0]}

    def _check_draw(self, drawn: Any, first: Any) -> None:
        if not isinstance(drawn, Mapping) or not drawn:
            raise InputError(f"draw of the network {self.name} must return arrays by name, not {type(drawn).__name__}")
        if any(np.asarray(value).dtype.kind not in "fiub" for value in drawn.values()):
            raise InputError(f"draw of the network {self.name} must return arrays of numbers")
        shapes = [{name: np.shape(value) for name, value in trial.items()} for trial in (drawn, first)]
        if shapes[0] != shapes[1]:
            raise InputError(
                f"draw of the network {self.name} returned {shapes[1]} and then {shapes[0]}; trials must have equal shapes"
            )

    def draw(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Initial parameters of one trial by name, without the trial dimension; `init` makes the generator from the seed."""
        raise self._missing("draw(rng)")

    def evaluate(self, W: Params, X: Tensor) -> tuple[Tensor, Any]:
        """Outputs (B, n), or (B, n, K) with several classes, and what `pull` can use again (activations)."""
        raise self._missing("evaluate(W, X)")

    def forward(self, W: Params, X: Tensor) -> Tensor:
        """Outputs (B, n), or (B, n, K) with several classes, on points X (1, n, d) or (B, n, d)."""
        return self.evaluate(W, X)[0]

    def pull(self, W: Params, X: Tensor, g: Tensor, saved: Any = None) -> Params:
        """sum_i g_i df(x_i)/dW for the trained parameters, g (B, n) or (B, n, K); `saved` from `evaluate` at the same W."""
        raise self._missing("pull(W, X, g, saved)")

    def gram(self, W: Params, X: Tensor) -> Tensor:
        """<df(x_i)/dW, df(x_j)/dW> over the trained parameters (B, n, n); from n pull-backs, unless a net knows better."""
        if self.outputs > 1:
            raise InputError(f"{self.name}: the Gram matrix of gradients needs one output, not {self.outputs}")
        f, saved = self.evaluate(W, X)
        rows = []
        for unit in torch.eye(X.shape[1], dtype=f.dtype, device=f.device):
            row = self.pull(W, X, unit.expand(f.shape), saved)
            rows.append(torch.cat([part.flatten(1) for part in row.values()], 1))
        A = torch.stack(rows, 1)  # (B, n, P)
        return A @ A.mT

    def push(self, W: Params, X: Tensor, V: Params) -> Tensor:
        """Derivative of the outputs (B, n) along the direction V in the trained parameters."""
        raise self._missing("push(W, X, V)")

    def features(self, W: Params, X: Tensor) -> Tensor:
        """What the outer weights multiply (B, n, m): f = features @ outer."""
        raise InputError(f"{self.name}: this network has no outer weights on features")

    def outer(self, W: Params) -> Tensor:
        """Outer weights (B, m), prefactor included."""
        raise InputError(f"{self.name}: this network has no outer weights on features")

    def neurons(self, W: Params) -> tuple[Tensor, Tensor] | None:
        """Signed mass (B, m) on unit directions (B, m, d): the network as a measure, if it is one."""
        return None

    def measure(self, W: Params, trial: int, *, bias: bool = False) -> Measure | None:
        """Trial `trial` as a Measure; `bias` says that the last of the d features is the constant 1."""
        parts = self.neurons(W)
        if parts is None:
            return None
        mass, theta = (part[trial].detach().double().cpu().numpy() for part in parts)
        return Measure(theta, mass, getattr(self, "activation", "relu"), bias)

    def norm2(self, W: Params) -> Tensor:
        """Squared Euclidean norm (B,) of the homogeneous parameters."""
        return sum(square(W[name]) for name in self.homogeneous)  # type: ignore[return-value]

    def normalizers(self, W: Params) -> dict[str, Tensor]:
        """Sizes (B,) by which min_i p_i is divided, for every convention that applies (docs/notation.md).

        "partial" is UH's ||w_hat||^L over the homogeneous subset, without any prefactor of the network.
        """
        return {"partial": self.norm2(W) ** (self.degree / 2)} | self._conventions(W)

    def conventions(self) -> tuple[str, ...]:
        """Names of the margins of M1 to M11 that apply; none with several outputs."""
        drawn = {name: torch.tensor(value) for name, value in self.init(1, 0).items()}
        return tuple(self._conventions(drawn)) if self.outputs == 1 else ()

    def _conventions(self, W: Params) -> dict[str, Tensor]:
        return {}

    def _missing(self, method: str) -> InputError:
        return InputError(f"the network {self.name} has no {method}; see `flows.Net`")

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _one_of(self, **choices: tuple[str, ...]) -> None:
        for what, allowed in choices.items():
            if getattr(self, what) not in allowed:
                raise InputError(f"{self.name}: {what} {getattr(self, what)!r} is not one of {', '.join(allowed)}")

    def _positive(self, *names: str) -> None:
        for what in names:
            if not (math.isfinite(getattr(self, what)) and getattr(self, what) > 0):
                raise InputError(f"{self.name}: {what} must be a positive number, not {getattr(self, what)!r}")


def mix(features: Tensor, a: Tensor) -> Tensor:
    """sum_j features_ij a_j (B, n)."""
    return (features @ a[:, :, None])[:, :, 0]


def polar(V: Tensor) -> tuple[Tensor, Tensor]:
    """Lengths (B, m), at least the smallest number, and unit directions (B, m, d); zero vectors stay zero."""
    size = V.norm(dim=2).clamp_min(torch.finfo(V.dtype).tiny)
    return size, V / size[:, :, None]


def square(W: Tensor) -> Tensor:
    return (W.flatten(1) ** 2).sum(1)


def unit(V: np.ndarray) -> np.ndarray:
    return V / np.linalg.norm(V, axis=1, keepdims=True)


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return content_hash(value)
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str | list | tuple | dict):
        return value
    return str(value) if isinstance(value, nn.Module) else getattr(value, "__qualname__", type(value).__qualname__)
