"""The networks of the five papers, batched over trials, with gradients in closed form where they are shallow.

Parameters are a dictionary of tensors with a leading dimension B, one entry per trial. A net knows its initial law, its outputs
and the pull-back of weights on the points, sum_i g_i df(x_i)/dW, which is all that a training rule needs. X is (1, n, d) or
(B, n, d). The ReLU has derivative 0 at 0 (LR-3 allows any fixed value in [0, 1]), a leaky one its slope; `flow` says what the
gradient flow does there.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from widemargin.spaces import Space, as_space
from widemargin.types import InputError, Measure, content_hash

from . import _kernels

Params = dict[str, Tensor]


def trial_numbers(trials: int | Sequence[int]) -> Sequence[int]:
    return range(trials) if isinstance(trials, int | np.integer) else trials


@dataclass(frozen=True)
class Net:
    """What every net has. Subclasses are frozen dataclasses with the sizes and choices as fields."""

    d: int  # features, bias coordinate included where the data has one
    m: int  # neurons

    name = "net"
    trained: tuple[str, ...] = field(default=(), init=False)  # parameters that training moves
    homogeneous: tuple[str, ...] = field(default=(), init=False)  # the subset in which the output is homogeneous
    degree: int = field(default=2, init=False)  # and its degree
    outputs: int = field(default=1, init=False)  # classes, or 1

    def __post_init__(self) -> None:
        if self.d < 1 or self.m < 1:
            raise InputError(f"{self.name}: a network needs at least one feature and one neuron (width {self.m})")

    def config(self) -> dict[str, Any]:
        """The fields, ready for JSON: arrays as their hashes, modules as text."""
        return {"net": self.name} | {one.name: _plain(getattr(self, one.name)) for one in dataclasses.fields(self)}

    def init(self, trials: int | Sequence[int], seed: int) -> dict[str, np.ndarray]:
        """Initial parameters of trials 0..B-1, or of the trials of these numbers; trial b depends on (seed, b) alone."""
        each = [self.draw(np.random.default_rng([seed, trial])) for trial in trial_numbers(trials)]
        return {name: np.stack([one[name] for one in each]) for name in each[0]}

    def draw(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def evaluate(self, W: Params, X: Tensor) -> tuple[Tensor, Any]:
        """Outputs (B, n), or (B, n, K) with several classes, and what `pull` can use again (activations)."""
        raise NotImplementedError

    def forward(self, W: Params, X: Tensor) -> Tensor:
        return self.evaluate(W, X)[0]

    def pull(self, W: Params, X: Tensor, g: Tensor, saved: Any = None) -> Params:
        """sum_i g_i df(x_i)/dW for the trained parameters, g (B, n) or (B, n, K); `saved` from `evaluate` at the same W."""
        raise NotImplementedError

    def gram(self, W: Params, X: Tensor) -> Tensor:
        """<df(x_i)/dW, df(x_j)/dW> over the trained parameters (B, n, n)."""
        raise NotImplementedError

    def push(self, W: Params, X: Tensor, V: Params) -> Tensor:
        """Derivative of the outputs (B, n) along the direction V in the trained parameters."""
        raise NotImplementedError

    def features(self, W: Params, X: Tensor) -> Tensor:
        """What the outer weights multiply (B, n, m): f = features @ outer."""
        raise InputError(f"{self.name}: this network has no outer weights on features")

    def outer(self, W: Params) -> Tensor:
        """Outer weights (B, m), prefactor included."""
        raise InputError(f"{self.name}: this network has no outer weights on features")

    def neurons(self, W: Params) -> tuple[Tensor, Tensor] | None:
        """Signed mass (B, m) on unit directions (B, m, d): the network as a measure, if it is one."""
        return None

    def measure(self, W: Params, trial: int, bias: bool = False) -> Measure | None:
        """Trial `trial` as a Measure; `bias` says that the last of the d features is the constant 1."""
        parts = self.neurons(W)
        if parts is None:
            return None
        mass, theta = (part[trial].detach().double().cpu().numpy() for part in parts)
        return Measure(theta, mass, getattr(self, "activation", "relu"), bias)

    def norm2(self, W: Params) -> Tensor:
        """Squared Euclidean norm (B,) of the homogeneous parameters."""
        return sum(_square(W[name]) for name in self.homogeneous)  # type: ignore[return-value]

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


@dataclass(frozen=True)
class TwoLayer(Net):
    """f(x) = scale sum_j a_j phi(v_j . x), phi = relu, leaky or not, or its square (LR-1, CB-1, CB-17).

    `law`: "lr" a ~ N(0, 1/m), V ~ N(0, 1/d); "cb" all coordinates N(0, 1); "sphere" v uniform on the sphere, a = +-1;
    `law_scale` multiplies it. `mean_field` puts CB's 1/m in front. `train`: "both" layers or the "output" layer alone
    (with CB's laws the output weights then start at 0, as in Proposition 7). Squared ReLU follows CB-1: outer weights are
    signs and stay, only V is trained, and the network is 2-homogeneous in V.
    `widths` gives each trial a width of its own, at most m: the other neurons are zero and stay so, since both their gradients
    vanish (but rules that draw neurons anew would revive them).

    Margins: M1 (mass on unit directions), M2 (squared norm; in mean field its mean over neurons, which is CB's M3 when the
    data has a bias coordinate). Output layer alone: M7 is the L2 norm of the weights on unit directions, M7_raw the same on
    the features as they stand (sqrt(m) ||a|| of Proposition 7), which is what training maximises; equal for unit v.
    """

    activation: str = "relu"
    law: str = "lr"
    law_scale: float = 1.0
    mean_field: bool = False
    train: str = "both"
    widths: tuple[int, ...] | None = None

    name = "relu"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of(law=("lr", "cb", "sphere"), train=("both", "output"))
        self._set(activation=_space(self).activation)
        self._positive("law_scale")
        if self.widths is not None:
            if self.mean_field or self.train == "output":
                raise InputError("two-layer network: widths per trial need both layers trained and no 1/m in front")
            if not all(1 <= width <= self.m for width in self.widths):
                raise InputError(f"two-layer network: every one of widths must be from 1 to the width {self.m}")
        moving = ("a",) if self.train == "output" else ("V",) if _space(self).degree == 2 else ("a", "V")
        self._set(trained=moving, homogeneous=moving, degree=1 if self.train == "output" else 2)

    @property
    def factor(self) -> float:
        return 1 / self.m if self.mean_field else 1.0

    def init(self, trials: int | Sequence[int], seed: int) -> dict[str, np.ndarray]:
        if self.widths is None:
            return super().init(trials, seed)
        numbers = trial_numbers(trials)
        if len(self.widths) != len(numbers):
            raise InputError(
                f"two-layer network: there are {len(self.widths)} widths for {len(numbers)} trials; give one for each"
            )
        each = []
        for trial, width in zip(numbers, self.widths):
            one = dataclasses.replace(self, m=width, widths=None).draw(np.random.default_rng([seed, trial]))
            each.append({k: np.concatenate([v, np.zeros((self.m - width, *v.shape[1:]))]) for k, v in one.items()})
        return {name: np.stack([one[name] for one in each]) for name in each[0]}

    def draw(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        a, V = rng.standard_normal(self.m), rng.standard_normal((self.m, self.d))
        if self.law == "lr":
            a, V = a / np.sqrt(self.m), V / np.sqrt(self.d)
        if self.law == "sphere" or _space(self).degree == 2:
            a = np.where(a >= 0, 1.0, -1.0)
        if self.law == "sphere":
            V = _unit(V)
        if self.train == "output" and self.law != "lr":
            a = np.zeros_like(a)
        grown = self.law_scale
        return {"a": a * (1.0 if _space(self).degree == 2 else grown), "V": V * grown}

    def evaluate(self, W: Params, X: Tensor) -> tuple[Tensor, Tensor | None]:
        if self._fused(X):
            f = _kernels.forward(X, W["V"].contiguous(), W["a"].contiguous())
            return (f if self.factor == 1 else self.factor * f), None
        H = _rectified(X @ W["V"].mT, self)  # (B, n, m)
        return self.factor * _mix(_powered(H, self), W["a"]), H

    def _fused(self, X: Tensor) -> bool:
        """Whether the kernels that never write the activations out apply."""
        return X.is_cuda and self.activation == "relu" and _kernels.usable(X)

    def pull(self, W: Params, X: Tensor, g: Tensor, saved: Tensor | None = None) -> Params:
        if self.factor != 1:
            g = self.factor * g
        if saved is None and self._fused(X):
            a, V = _kernels.backward(X, W["V"].contiguous(), W["a"].contiguous(), g.contiguous())
            return {name: grad for name, grad in (("a", a), ("V", V)) if name in self.trained}
        H = _rectified(X @ W["V"].mT, self) if saved is None else saved
        out: Params = {}
        if "a" in self.trained:
            out["a"] = (g[:, None, :] @ _powered(H, self))[:, 0]
        if "V" in self.trained:
            slope = _slopes(H, self)
            out["V"] = W["a"][:, :, None] * (slope.mT @ (g[:, :, None] * X))  # (B, m, d)
        return out

    def gram(self, W: Params, X: Tensor) -> Tensor:
        phi, slope = self._features(W, X)
        K = X.new_zeros(())
        if "a" in self.trained:
            K = K + phi @ phi.mT
        if "V" in self.trained:
            slope = slope * W["a"][:, None, :]
            K = K + (X @ X.mT) * (slope @ slope.mT)
        return self.factor**2 * K  # (B, n, n)

    def push(self, W: Params, X: Tensor, V: Params) -> Tensor:
        phi, slope = self._features(W, X)
        change = X.new_zeros(phi.shape[:2])
        if "a" in self.trained:
            change = change + _mix(phi, V["a"])
        if "V" in self.trained:
            change = change + _mix(slope * (X @ V["V"].mT), W["a"])
        return self.factor * change

    def _features(self, W: Params, X: Tensor) -> tuple[Tensor, Tensor]:
        H = _rectified(X @ W["V"].mT, self)
        return _powered(H, self), _slopes(H, self)

    def features(self, W: Params, X: Tensor) -> Tensor:
        return self._features(W, X)[0]

    def outer(self, W: Params) -> Tensor:
        return self.factor * W["a"]

    def neurons(self, W: Params) -> tuple[Tensor, Tensor]:
        size, theta = _polar(W["V"])
        return self.factor * W["a"] * size ** _space(self).degree, theta

    def _conventions(self, W: Params) -> dict[str, Tensor]:
        mass = self.neurons(W)[0]
        found = {"M1": mass.abs().sum(1)}
        if self.train == "output":
            return found | {"M7": math.sqrt(self.m) * mass.norm(dim=1), "M7_raw": self._spread(W["a"])}
        found["M2"] = self.factor * self.norm2(W)
        return found | ({"M3": found["M2"]} if self.mean_field else {})

    def _spread(self, a: Tensor) -> Tensor:
        return math.sqrt(self.m) * self.factor * a.norm(dim=1)


@dataclass(frozen=True)
class Frozen(Net):
    """f(x) = (1/m) sum_j r_j^2 z_j(x), only r is trained, r(0) = r0 (CB-13).

    z_j(x) = b_j relu(v_j . x) with theta_j = (v_j, b_j) on one unit sphere, so that M6, the margin over (1/m) sum_j r_j^2, is
    CB's gamma_1^(m). `law`: "sphere" theta uniform there; "balanced" |b_j| = ||v_j|| = 1/sqrt(2), v uniform, random sign;
    "paired" the same with both signs of each of m/2 directions: z is then half of the unit features, and the best M6 is half
    of the M1 margin of these directions (`margins.frozen`); "features" takes the points themselves as z (d = m). Squared ReLU:
    z_j = b_j relu(v_j . x)^2, b_j = +-1 and unit v_j (CB-1), where M6 is M1.

    `directions` (m, d), with `signs` (m,) or random ones, or (m/2, d) for both signs of each, replace drawn ones (balanced).
    """

    law: str = "paired"
    activation: str = "relu"
    r0: float = 1.0
    directions: np.ndarray | None = field(default=None, compare=False, repr=False)
    signs: np.ndarray | None = field(default=None, compare=False, repr=False)

    name = "frozen"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of(law=("sphere", "balanced", "paired", "features"))
        self._set(activation=_space(self).activation)
        self._positive("r0")
        self._set(trained=("r",), homogeneous=("r",))
        if self.law == "features" and self.d != self.m:
            raise InputError(f"frozen: the points are the features here, so the width {self.m} must be {self.d}")
        if self.law == "features" and self.directions is not None:
            raise InputError("frozen: the points are the features here; leave the directions out")
        if self.directions is not None:
            self._check_directions(_numbers("frozen: directions", self.directions))
        elif self.signs is not None:
            raise InputError("frozen: signs come with given directions; give both or neither")
        elif self.law == "paired" and self.m % 2:
            raise InputError(f"frozen: width {self.m} must be even, because directions come with both signs")

    def _check_directions(self, V: np.ndarray) -> None:
        rows = (self.m,) if self.signs is not None or self.m % 2 else (self.m, self.m // 2)
        if V.ndim != 2 or V.shape[1] != self.d or len(V) not in rows:
            raise InputError(f"frozen: directions must have shape ({self.m}, {self.d}), not {V.shape}")
        if not (np.isfinite(V).all() and V.any(axis=1).all()):
            raise InputError("frozen: a direction is zero or not finite; remove it")
        self._set(directions=V)
        if self.signs is not None:
            signs = _numbers("frozen: signs", self.signs)
            if signs.shape != (self.m,) or not np.isin(signs, (-1.0, 1.0)).all():
                raise InputError(f"frozen: signs must be {self.m} numbers -1 or +1")
            self._set(signs=signs)

    def draw(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        r = np.full(self.m, float(self.r0))
        if self.law == "features":
            return {"r": r}
        if self.directions is not None:
            V, paired = self.directions, len(self.directions) < self.m
        elif self.law == "sphere" and _space(self).degree == 1:
            theta = _unit(rng.standard_normal((self.m, self.d + 1)))
            return {"r": r, "b": theta[:, -1], "V": theta[:, :-1]}
        else:
            paired = self.law == "paired"
            V = rng.standard_normal((self.m // 2 if paired else self.m, self.d))
        if paired:
            V, b = np.vstack([V, V]), np.repeat([1.0, -1.0], len(V))
        else:
            b = self.signs if self.signs is not None else rng.choice([-1.0, 1.0], self.m)
        V, half = _unit(V), np.sqrt(0.5) if _space(self).degree == 1 else 1.0
        return {"r": r, "b": half * b, "V": half * V}

    def features(self, W: Params, X: Tensor) -> Tensor:
        if self.law == "features":
            return X
        H = _rectified(X @ W["V"].mT, self)  # (B, n, m)
        return _powered(H, self) * W["b"][:, None, :]

    def outer(self, W: Params) -> Tensor:
        return W["r"] ** 2 / self.m

    def evaluate(self, W: Params, X: Tensor) -> tuple[Tensor, Tensor]:
        z = self.features(W, X)
        return _mix(z, self.outer(W)), z

    def pull(self, W: Params, X: Tensor, g: Tensor, saved: Tensor | None = None) -> Params:
        z = self.features(W, X) if saved is None else saved
        return {"r": 2 / self.m * W["r"] * (g[:, None, :] @ z)[:, 0]}

    def gram(self, W: Params, X: Tensor) -> Tensor:
        J = self._slopes(W, X)
        return J @ J.mT

    def push(self, W: Params, X: Tensor, V: Params) -> Tensor:
        return _mix(self._slopes(W, X), V["r"])

    def _slopes(self, W: Params, X: Tensor) -> Tensor:
        return 2 / self.m * self.features(W, X) * W["r"][:, None, :]

    def neurons(self, W: Params) -> tuple[Tensor, Tensor] | None:
        if self.law == "features":
            return None
        size, theta = _polar(W["V"])
        return self.outer(W) * W["b"] * size ** _space(self).degree, theta

    def _conventions(self, W: Params) -> dict[str, Tensor]:
        parts = self.neurons(W)
        return {"M6": self.outer(W).sum(1)} | ({} if parts is None else {"M1": parts[0].abs().sum(1)})


@dataclass(frozen=True)
class Scalar(Net):
    """f(x) = sum_j a_j relu(b_j v_j . x), unit v_j stay, a and b are trained, both uniform on +-m^(-1/4) (LR-29).

    Margins: M4 over ||a||^2 + ||b||^2, M5 = M1 over sum_j |a_j b_j|.
    """

    name = "scalar"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(trained=("a", "b"), homogeneous=("a", "b"))

    def draw(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        a, b = rng.choice([-1.0, 1.0], (2, self.m)) * self.m**-0.25
        return {"a": a, "b": b, "V": _unit(rng.standard_normal((self.m, self.d)))}

    def evaluate(self, W: Params, X: Tensor) -> tuple[Tensor, Tensor]:
        H = X @ W["V"].mT  # (B, n, m)
        return _mix((H * W["b"][:, None, :]).clamp_min_(0), W["a"]), H

    def pull(self, W: Params, X: Tensor, g: Tensor, saved: Tensor | None = None) -> Params:
        H = self._active(W, X, saved)
        pulled = (g[:, None, :] @ H)[:, 0]  # (B, m)
        return {"a": W["b"] * pulled, "b": W["a"] * pulled}

    def gram(self, W: Params, X: Tensor) -> Tensor:
        H = self._active(W, X)
        return (H * (W["a"] ** 2 + W["b"] ** 2)[:, None, :]) @ H.mT

    def push(self, W: Params, X: Tensor, V: Params) -> Tensor:
        return _mix(self._active(W, X), W["b"] * V["a"] + W["a"] * V["b"])

    def _active(self, W: Params, X: Tensor, H: Tensor | None = None) -> Tensor:
        """v_j . x_i where the unit is on, else 0: b_j times it is the feature of a_j, a_j times it that of b_j."""
        H = X @ W["V"].mT if H is None else H
        return H * (H * W["b"][:, None, :] > 0)

    def features(self, W: Params, X: Tensor) -> Tensor:
        return ((X @ W["V"].mT) * W["b"].sign()[:, None, :]).clamp_min_(0)

    def outer(self, W: Params) -> Tensor:
        return W["a"] * W["b"].abs()

    def u(self, W: Params) -> Tensor:
        return (W["a"] * W["b"]).abs()

    def beta(self, W: Params) -> Tensor:
        """Signs of the outer weights; b's sign turns the direction instead."""
        return W["a"].sign()

    def neurons(self, W: Params) -> tuple[Tensor, Tensor]:
        size, theta = _polar(W["V"])
        return self.outer(W) * size, theta * W["b"].sign()[:, :, None]

    def _conventions(self, W: Params) -> dict[str, Tensor]:
        mass = self.neurons(W)[0].abs().sum(1)
        return {"M1": mass, "M4": self.norm2(W), "M5": self.u(W).sum(1)}


@dataclass(frozen=True)
class Head(Net):
    """h(x) = <a * b, F(x; V)>: what the product nets share. a_j, b_j uniform on +-1/sqrt(m), so u(0) = 1/m (UH-1).

    2-homogeneous in (a, b). Margins: M4 over ||a||^2 + ||b||^2, M5 over ||u||_1, u = |a * b|.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(trained=("a", "b"), homogeneous=("a", "b"))

    def outer(self, W: Params) -> Tensor:
        return W["a"] * W["b"]

    def u(self, W: Params) -> Tensor:
        """|a * b| (B, m): the mirror variable of UH-9."""
        return self.outer(W).abs()

    def beta(self, W: Params) -> Tensor:
        """Signs of a * b (B, m)."""
        return self.outer(W).sign()

    def _draw_outer(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        a, b = rng.choice([-1.0, 1.0], (2, self.m)) / np.sqrt(self.m)
        return {"a": a, "b": b}

    def _pull_outer(self, W: Params, F: Tensor, g: Tensor) -> Params:
        pulled = (g[:, None, :] @ F)[:, 0]  # (B, m)
        return {"a": W["b"] * pulled, "b": W["a"] * pulled}

    def _gram_outer(self, W: Params, F: Tensor) -> Tensor:
        return (F * (W["a"] ** 2 + W["b"] ** 2)[:, None, :]) @ F.mT

    def _push_outer(self, W: Params, F: Tensor, V: Params) -> Tensor:
        return _mix(F, W["b"] * V["a"] + W["a"] * V["b"])

    def _conventions(self, W: Params) -> dict[str, Tensor]:
        return {"M4": self.norm2(W), "M5": self.u(W).sum(1)}


@dataclass(frozen=True)
class Normalized(Head):
    """The product head on F_j(x; V) = relu(<v_j / ||v_j||, x>), a, b and V trained, v uniform on the sphere (UH-2)."""

    name = "normalized"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(trained=("a", "b", "V"))

    def draw(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return self._draw_outer(rng) | {"V": _unit(rng.standard_normal((self.m, self.d)))}

    def features(self, W: Params, X: Tensor) -> Tensor:
        return (X @ _polar(W["V"])[1].mT).clamp_min_(0)  # (B, n, m)

    def evaluate(self, W: Params, X: Tensor) -> tuple[Tensor, Tensor]:
        F = self.features(W, X)
        return _mix(F, self.outer(W)), F

    def pull(self, W: Params, X: Tensor, g: Tensor, saved: Tensor | None = None) -> Params:
        F = self.features(W, X) if saved is None else saved
        size, theta = _polar(W["V"])
        G = (F > 0).to(F.dtype).mT @ (g[:, :, None] * X)  # (B, m, d)
        out = self._pull_outer(W, F, g)
        radial = (g[:, None, :] @ F)[:, 0]  # <G_j, theta_j>
        out["V"] = (self.outer(W) / size)[:, :, None] * (G - radial[:, :, None] * theta)
        return out

    def gram(self, W: Params, X: Tensor) -> Tensor:
        F = self.features(W, X)
        weight = (self.outer(W) / _polar(W["V"])[0])[:, None, :]
        S, R = (F > 0) * weight, F * weight
        return self._gram_outer(W, F) + (X @ X.mT) * (S @ S.mT) - R @ R.mT

    def push(self, W: Params, X: Tensor, V: Params) -> Tensor:
        F = self.features(W, X)
        size, theta = _polar(W["V"])
        turned = V["V"] - (V["V"] * theta).sum(2, keepdim=True) * theta
        return self._push_outer(W, F, V) + _mix((F > 0) * (X @ turned.mT), self.outer(W) / size)

    def neurons(self, W: Params) -> tuple[Tensor, Tensor]:
        return self.outer(W), _polar(W["V"])[1]

    def _conventions(self, W: Params) -> dict[str, Tensor]:
        found = super()._conventions(W)
        return found | {"M1": found["M5"]}


def normalized_features(d: int, m: int) -> nn.Module:
    """A simple feature map for the product head: RMSNorm(relu(V x)), bounded by sqrt(m)."""
    return nn.Sequential(nn.Linear(d, m, bias=False), nn.ReLU(), nn.RMSNorm(m, elementwise_affine=False))


@dataclass(frozen=True)
class Product(Head):
    """The product head over any torch feature map (n, d) -> (n, m) (UH-1); by default RMSNorm(relu(V x)).

    The map's parameters are "V.<name>" here, one copy per trial, drawn by the `reset_parameters` of its layers (parameters
    of layers without one start as given). `train_features` says whether they move. The map runs in evaluation mode.
    """

    feature_map: nn.Module | None = field(default=None, compare=False, repr=False)
    train_features: bool = True

    name = "product"

    def __post_init__(self) -> None:
        super().__post_init__()
        given = normalized_features(self.d, self.m) if self.feature_map is None else self.feature_map
        if not isinstance(given, nn.Module):
            raise InputError(f"product: the feature map must be a torch module, not {given!r}")
        if any(getattr(one, "track_running_stats", False) for one in given.modules()):
            raise InputError("product: the feature map keeps running statistics; set track_running_stats=False in it")
        made = copy.deepcopy(given).double().eval().requires_grad_(False)
        shape = tuple(made(torch.zeros(2, self.d, dtype=torch.float64)).shape)
        if shape != (2, self.m):
            raise InputError(f"product: the feature map turns 2 points into shape {shape}, but the width is {self.m}")
        moving = tuple(f"V.{name}" for name, _ in made.named_parameters()) if self.train_features else ()
        self._set(feature_map=made, trained=("a", "b", *moving))

    @property
    def _module(self) -> nn.Module:
        assert self.feature_map is not None
        return self.feature_map

    def draw(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        out = self._draw_outer(rng)
        fresh = copy.deepcopy(self._module)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(2**63)))
            for layer in fresh.modules():
                if callable(getattr(layer, "reset_parameters", None)):
                    layer.reset_parameters()  # type: ignore[operator]
        state = [*fresh.named_parameters(), *((k, v) for k, v in fresh.named_buffers() if v.is_floating_point())]
        return out | {f"V.{name}": value.numpy().copy() for name, value in state}

    def _map(self, P: Params, X: Tensor) -> Tensor:
        """F(x; V) (B, n, m) at parameters P, keys "V.<name>"."""

        def one(P: Params, x: Tensor) -> Tensor:
            return torch.func.functional_call(self._module, {name[2:]: value for name, value in P.items()}, (x,))

        if not P:  # a map without parameters
            return torch.vmap(lambda x: one({}, x))(X)
        return torch.vmap(one, (0, None))(P, X[0]) if len(X) == 1 else torch.vmap(one)(P, X)

    def _parts(self, W: Params) -> tuple[Params, Params]:
        """The map's parameters that move, and those that stay."""
        inner = {name: value for name, value in W.items() if name.startswith("V.")}
        return {k: v for k, v in inner.items() if k in self.trained}, {
            k: v for k, v in inner.items() if k not in self.trained
        }

    def features(self, W: Params, X: Tensor) -> Tensor:
        moving, still = self._parts(W)
        return self._map(moving | still, X)

    def forward(self, W: Params, X: Tensor) -> Tensor:
        return _mix(self.features(W, X), self.outer(W))

    def evaluate(self, W: Params, X: Tensor) -> tuple[Tensor, tuple[Tensor, Callable[..., Any] | None]]:
        moving, still = self._parts(W)
        if not moving:
            F = self._map(still, X)
            return _mix(F, self.outer(W)), (F, None)
        F, back, *_ = torch.func.vjp(lambda P: self._map(P | still, X), moving)
        return _mix(F, self.outer(W)), (F, back)

    def pull(self, W: Params, X: Tensor, g: Tensor, saved: Any = None) -> Params:
        F, back = self.evaluate(W, X)[1] if saved is None else saved
        out = self._pull_outer(W, F, g)
        return out if back is None else out | back(self._to_features(W, F, g))[0]

    def _to_features(self, W: Params, F: Tensor, g: Tensor) -> Tensor:
        return (g[..., None] * self.outer(W)[:, None, :]).expand_as(F)

    def gram(self, W: Params, X: Tensor) -> Tensor:
        """Rows of the Jacobian in V are formed one by one: memory n x parameters per trial."""
        F, back = self.evaluate(W, X)[1]
        K = self._gram_outer(W, F)
        if back is None:
            return K
        picks = torch.eye(F.shape[1], dtype=F.dtype, device=F.device)
        rows = torch.vmap(lambda e: back(self._to_features(W, F, e[None]))[0])(picks)
        J = torch.cat([row.flatten(2) for row in rows.values()], 2).transpose(0, 1)  # (B, n, parameters)
        return K + J @ J.mT

    def push(self, W: Params, X: Tensor, V: Params) -> Tensor:
        moving, still = self._parts(W)
        if not moving:
            return self._push_outer(W, self._map(still, X), V)
        F, back, *_ = torch.func.vjp(lambda P: self._map(P | still, X), moving)
        _, along, *_ = torch.func.vjp(lambda u: back(u)[0], torch.zeros_like(F))  # the transpose of the transpose
        turned = along({k: V[k] for k in moving})[0]
        return self._push_outer(W, F, V) + _mix(turned, self.outer(W))


@dataclass(frozen=True)
class BatchNorm(Net):
    """f(x) = sum_j a_j relu(c_j <v_j / N(v_j), x - mu>), N(v)^2 = v' Sigma v + eps (BN-1 to BN-3).

    a ~ N(0, 1/m), c = 1, V ~ N(0, 1/d); all are trained. mu and Sigma are those of the whole data and stay fixed
    (`BatchNorm.with_data`), for one data set or one per trial; Sigma is kept as root' root, never as a matrix d x d when
    n < d. `minibatch` takes them from the points passed in instead, as is done in practice.

    2-homogeneous in (a, c). Margin: M10 over ||a|| ||c||. A unit with N(v) = 0 (possible only if eps = 0) gives 0.
    """

    eps: float = 0.0
    minibatch: bool = False
    mean: np.ndarray | None = field(default=None, compare=False, repr=False)  # (S, d), S = 1 or one per trial
    root: np.ndarray | None = field(default=None, compare=False, repr=False)  # (S, k, d), Sigma = root' root

    name = "batchnorm"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.eps) and self.eps >= 0):
            raise InputError(f"batchnorm: eps must be zero or positive, not {self.eps!r}")
        if not self.minibatch and (self.mean is None or self.root is None):
            raise InputError("batchnorm: give the data whose statistics are used, BatchNorm.with_data(X, m)")
        if self.mean is not None and np.shape(self.mean)[-1] != self.d:
            raise InputError(f"batchnorm: the statistics have {np.shape(self.mean)[-1]} features, the network {self.d}")
        self._set(trained=("a", "c", "V"), homogeneous=("a", "c"), _ready={})

    @classmethod
    def with_data(cls, X: ArrayLike, m: int, eps: float = 0.0) -> BatchNorm:
        """The network with the statistics of X (n, d), or of X (B, n, d) with one data set per trial."""
        points = _numbers("batchnorm: the data", X)
        if points.ndim not in (2, 3) or 0 in points.shape or not np.isfinite(points).all():
            raise InputError(f"batchnorm: the data must be finite numbers of shape (n, d), not {points.shape}")
        points = points.reshape(-1, *points.shape[-2:])
        n, d = points.shape[1:]
        mean = points.mean(axis=1)
        centred = (points - mean[:, None, :]) / np.sqrt(n)
        root = centred if n <= d else np.asarray(np.linalg.qr(centred, mode="r"))
        return cls(d, m, eps=eps, mean=mean, root=root)

    def draw(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        a, V = rng.standard_normal(self.m) / np.sqrt(self.m), rng.standard_normal((self.m, self.d)) / np.sqrt(self.d)
        return {"a": a, "c": np.ones(self.m), "V": V}

    def init(self, trials: int | Sequence[int], seed: int) -> dict[str, np.ndarray]:
        """Statistics that differ between trials travel with the parameters, so that trials can be taken apart."""
        drawn = super().init(trials, seed)
        if self.minibatch or self.mean is None or self.root is None or len(self.mean) == 1:
            return drawn
        count = len(trial_numbers(trials))
        if len(self.mean) != count:
            raise InputError(f"batchnorm: there are statistics of {len(self.mean)} data sets for {count} trials")
        return drawn | {"mean": self.mean.copy(), "root": self.root.copy()}

    def _statistics(self, W: Params, X: Tensor) -> tuple[Tensor, Tensor]:
        """mu (S, 1, d) and the root of Sigma (S, k, d), like X."""
        if self.minibatch:
            if X.shape[1] < 2:
                raise InputError("batchnorm: statistics of a minibatch need at least two points")
            mean = X.mean(1, keepdim=True)
            return mean, (X - mean) / math.sqrt(X.shape[1])
        if "root" in W:
            return W["mean"][:, None, :], W["root"]
        ready: dict[Any, tuple[Tensor, Tensor]] = self._ready  # type: ignore[attr-defined]
        key = (X.dtype, X.device)
        if key not in ready:
            mean, root = (torch.as_tensor(one, dtype=X.dtype, device=X.device) for one in (self.mean, self.root))
            ready[key] = mean[:, None, :], root
        return ready[key]

    def _normalized(self, W: Params, X: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """<v_j / N_j, xbar_i> (B, n, m); 1 / N_j (B, m); Sigma v_j / N_j (B, m, d); xbar."""
        mean, root = self._statistics(W, X)
        Xbar = X - mean
        image = W["V"] @ root.mT  # (B, m, k)
        N = ((image**2).sum(2) + self.eps).sqrt()
        scale = torch.where(N > 0, 1 / N, 0.0)  # (B, m)
        tilt = (image * scale[:, :, None]) @ root  # (B, m, d)
        return (Xbar @ W["V"].mT) * scale[:, None, :], scale, tilt, Xbar

    def evaluate(self, W: Params, X: Tensor) -> tuple[Tensor, Any]:
        saved = self._normalized(W, X)
        return _mix((saved[0] * W["c"][:, None, :]).clamp_min_(0), W["a"]), saved

    def pull(self, W: Params, X: Tensor, g: Tensor, saved: Any = None) -> Params:
        P, scale, tilt, Xbar = self._normalized(W, X) if saved is None else saved
        on = (P * W["c"][:, None, :] > 0).to(P.dtype)
        pulled = (g[:, None, :] @ (P * on))[:, 0]  # (B, m), also <v_j, G_j> / N_j
        G = on.mT @ (g[:, :, None] * Xbar)  # (B, m, d)
        turned = (W["a"] * W["c"] * scale)[:, :, None] * (G - pulled[:, :, None] * tilt)
        return {"a": W["c"] * pulled, "c": W["a"] * pulled, "V": turned}

    def gram(self, W: Params, X: Tensor) -> Tensor:
        P, scale, tilt, Xbar = self._normalized(W, X)
        on = (P * W["c"][:, None, :] > 0).to(P.dtype)
        active = P * on
        K = (active * (W["a"] ** 2 + W["c"] ** 2)[:, None, :]) @ active.mT
        k = on * (W["a"] * W["c"] * scale)[:, None, :]  # (B, n, m); df/dv_j = k_ij (xbar_i - P_ij tilt_j)
        kP, kT = k * P, k * (Xbar @ tilt.mT)
        cross = kT @ kP.mT
        return (
            K + (Xbar @ Xbar.mT) * (k @ k.mT) - cross - cross.mT + (kP * (tilt**2).sum(2)[:, None, :]) @ kP.mT
        )  # (B, n, n)

    def push(self, W: Params, X: Tensor, V: Params) -> Tensor:
        P, scale, tilt, Xbar = self._normalized(W, X)
        on = (P * W["c"][:, None, :] > 0).to(P.dtype)
        change = _mix(P * on, W["c"] * V["a"] + W["a"] * V["c"])
        shrink = (V["V"] * tilt).sum(2) * scale  # relative growth of N_j
        turned = (Xbar @ V["V"].mT) * scale[:, None, :] - P * shrink[:, None, :]
        return change + _mix(on * turned, W["a"] * W["c"])

    def features(self, W: Params, X: Tensor) -> Tensor:
        return (self._normalized(W, X)[0] * W["c"].sign()[:, None, :]).clamp_min_(0)

    def outer(self, W: Params) -> Tensor:
        return W["a"] * W["c"].abs()

    def measure(self, W: Params, trial: int, bias: bool = False) -> Measure | None:
        """Trial `trial` on points with a bias coordinate, which carries -<w_j, mu>; none with minibatch statistics."""
        if self.minibatch:
            return None
        mean, root = self._statistics(W, W["V"])
        one = {name: W[name][trial] for name in ("a", "c", "V")}
        mean, root = mean[trial % len(mean), 0], root[trial % len(root)]
        N = (((one["V"] @ root.mT) ** 2).sum(1) + self.eps).sqrt()
        inner = one["V"] * torch.where(N > 0, one["c"] / N, 0.0)[:, None]  # (m, d)
        shift = -(inner @ mean)[:, None]
        theta = torch.cat([inner[:, :-1], inner[:, -1:] + shift] if bias else [inner, shift], 1)
        theta, mass = theta.detach().double().cpu(), one["a"].detach().double().cpu()
        return Measure(theta.numpy(), mass.numpy(), "relu", True).normalized()

    def _conventions(self, W: Params) -> dict[str, Tensor]:
        return {"M10": W["a"].norm(dim=1) * W["c"].norm(dim=1)}


@dataclass(frozen=True)
class MLP(Net):
    """Deep ReLU network without biases: `depth` weight matrices W1 .. WL, hidden layers of width m (MT-1, MT-2).

    `outputs` = 1 gives a binary classifier (B, n), K >= 2 gives scores (B, n, K). Homogeneous of degree L in all parameters;
    margin MT2 over ||W||^L. `law`: "lr" entries N(0, 1/inputs), which is LR's law at depth 2, or "he" N(0, 2/inputs);
    `law_scale` multiplies it.
    """

    outputs: int = 1
    depth: int = 3
    law: str = "lr"
    law_scale: float = 1.0

    name = "mlp"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of(law=("lr", "he"))
        self._positive("law_scale")
        if self.depth < 1 or self.outputs < 1:
            raise InputError(f"mlp: depth {self.depth} and {self.outputs} outputs; both must be at least 1")
        names = tuple(f"W{layer}" for layer in range(1, self.depth + 1))
        self._set(trained=names, homogeneous=names, degree=self.depth)

    def draw(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        sizes = [self.d, *[self.m] * (self.depth - 1), self.outputs]
        gain = self.law_scale * (np.sqrt(2) if self.law == "he" else 1)
        return {
            name: gain * rng.standard_normal((out, inputs)) / np.sqrt(inputs)
            for name, inputs, out in zip(self.trained, sizes[:-1], sizes[1:])
        }

    def evaluate(self, W: Params, X: Tensor) -> tuple[Tensor, list[Tensor]]:
        layers = [X]  # inputs of every layer
        for name in self.trained[:-1]:
            layers.append((layers[-1] @ W[name].mT).clamp_min_(0))
        f = layers[-1] @ W[self.trained[-1]].mT  # (B, n, K)
        return (f[:, :, 0] if self.outputs == 1 else f), layers

    def pull(self, W: Params, X: Tensor, g: Tensor, saved: list[Tensor] | None = None) -> Params:
        layers = self.evaluate(W, X)[1] if saved is None else saved
        signals = self._backward(W, g[:, :, None] if self.outputs == 1 else g, layers)
        return {name: signal.mT @ layer for name, signal, layer in zip(self.trained, signals, layers)}

    def _backward(self, W: Params, g: Tensor, layers: list[Tensor]) -> list[Tensor]:
        """Derivatives with respect to the preactivations of every layer (B, n, width), first layer first."""
        signals = [g]
        for name, layer in zip(self.trained[:0:-1], layers[:0:-1]):
            signals.append((signals[-1] @ W[name]) * (layer > 0))
        return signals[::-1]

    def gram(self, W: Params, X: Tensor) -> Tensor:
        if self.outputs > 1:
            raise InputError(f"mlp: the Gram matrix of gradients needs one output, not {self.outputs}")
        f, layers = self.evaluate(W, X)
        signals = self._backward(W, torch.ones_like(f)[:, :, None], layers)
        return sum((A @ A.mT) * (S @ S.mT) for A, S in zip(layers, signals))  # type: ignore[return-value]

    def push(self, W: Params, X: Tensor, V: Params) -> Tensor:
        layer, change = X, torch.zeros_like(X)
        for name in self.trained[:-1]:
            change = layer @ V[name].mT + change @ W[name].mT
            layer = (layer @ W[name].mT).clamp_min_(0)
            change = change * (layer > 0)
        last = self.trained[-1]
        change = layer @ V[last].mT + change @ W[last].mT
        return change[:, :, 0] if self.outputs == 1 else change

    def neurons(self, W: Params) -> tuple[Tensor, Tensor] | None:
        if self.depth != 2 or self.outputs > 1:
            return None
        size, theta = _polar(W["W1"])
        return W["W2"][:, 0] * size, theta

    def _conventions(self, W: Params) -> dict[str, Tensor]:
        found = {"MT2": self.norm2(W) ** (self.depth / 2)}
        parts = self.neurons(W)
        if parts is not None:
            found |= {"M1": parts[0].abs().sum(1), "M2": found["MT2"]}
        return found | ({"M11": found["MT2"]} if self.depth == self.outputs == 1 else {})


def _two_layer(d: int, m: int, **options: Any) -> TwoLayer:
    """CB's laws belong to the mean-field form, LR's to the plain one, unless said otherwise."""
    options.setdefault("mean_field", options.get("law", "lr") != "lr")
    return TwoLayer(d, m, **options)


def _batch_norm(d: int, m: int, **options: Any) -> BatchNorm:
    if options.get("minibatch"):
        options.pop("data", None)
        return BatchNorm(d, m, **options)
    if "data" not in options:
        raise InputError("batchnorm: give the data whose statistics are used, or take those of minibatches")
    net = BatchNorm.with_data(options.pop("data"), m, **{k: v for k, v in options.items() if k != "minibatch"})
    if net.d != d:
        raise InputError(f"batchnorm: the network takes {d} features but the data has {net.d}")
    return net


LAYERS = ("law", "law_scale", "mean_field")
KINDS: dict[str, tuple[Callable[..., Net], dict[str, Any], tuple[str, ...]]] = {  # how, defaults, options
    "relu": (_two_layer, {}, LAYERS),
    "srelu": (_two_layer, {"activation": "srelu", "law": "cb"}, LAYERS),
    "leaky": (_two_layer, {"activation": "leaky"}, (*LAYERS, "activation")),
    "output": (_two_layer, {"train": "output", "law": "sphere"}, (*LAYERS, "activation")),
    "frozen": (Frozen, {}, ("law", "activation", "r0", "directions", "signs")),
    "scalar": (Scalar, {}, ()),
    "product": (Product, {}, ("feature_map", "train_features")),
    "normalized": (Normalized, {}, ()),
    "batchnorm": (_batch_norm, {}, ("eps", "minibatch", "data")),
    "mlp": (MLP, {}, ("depth", "outputs", "law", "law_scale")),
}


def make_net(kind: str, d: int, m: int, **options: Any) -> Net:
    """The network of a name: relu, srelu, leaky, output, frozen, scalar, product, normalized, batchnorm or mlp.

    `options` are fields of its class (for batchnorm also `data`, the points X); None means the default.
    """
    if kind not in KINDS:
        raise InputError(f"unknown network {kind!r}; choose {', '.join(KINDS)}")
    make, defaults, known = KINDS[kind]
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in known:
            choices = f"it takes {', '.join(known)}" if known else "it takes no options"
            raise InputError(f"{name} does not apply to the network {kind}; {choices}")
    return make(d, m, **(defaults | given))


def rebuild_net(config: Mapping[str, Any], points: Sequence[np.ndarray] | None = None) -> Net:
    """The network of `Net.config()`; batch normalisation takes its statistics from `points`, one (n, d) or one per trial.

    Arrays are kept there as hashes only: directions given by hand, or a feature map of the user's own, cannot be rebuilt.
    """
    kept = {name: value for name, value in config.items() if value is not None}
    name, d, m = kept.pop("net"), kept.pop("d"), kept.pop("m")
    classes = {"relu": TwoLayer, "frozen": Frozen, "scalar": Scalar, "normalized": Normalized, "mlp": MLP}
    if name == "batchnorm" and not kept.get("minibatch"):
        if points is None:
            raise InputError("batchnorm: the statistics are those of the data; give the points too")
        return BatchNorm.with_data(np.stack(points) if len(points) > 1 else points[0], m, kept["eps"])
    classes["batchnorm"] = BatchNorm
    if name not in classes or "directions" in kept:
        raise InputError(
            f"a network {name!r} with parts of your own cannot be built from its configuration; give net too"
        )
    make = classes[name]
    known = {one.name for one in dataclasses.fields(make) if one.init}
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in kept.items() if key in known}
    return make(d, m, **options)


def _space(net: TwoLayer | Frozen) -> Space:
    return as_space(net.activation)


def _rectified(T: Tensor, net: TwoLayer | Frozen) -> Tensor:
    """H in the place of T: phi(T) where phi has degree 1, and relu(T), whose square is phi(T), where it has degree 2."""
    slope = _space(net).slope
    return nn.functional.leaky_relu_(T, slope) if slope else T.clamp_min_(0)


def _powered(H: Tensor, net: TwoLayer | Frozen) -> Tensor:
    """phi(T) from H."""
    return H if _space(net).degree == 1 else H * H


def _slopes(H: Tensor, net: TwoLayer | Frozen) -> Tensor:
    """phi'(T) from H."""
    space = _space(net)
    if space.degree == 2:
        return 2 * H
    return (H > 0).to(H.dtype).clamp_min_(space.slope) if space.slope else H.sign()


def _mix(features: Tensor, a: Tensor) -> Tensor:
    """sum_j features_ij a_j (B, n)."""
    return (features @ a[:, :, None])[:, :, 0]


def _polar(V: Tensor) -> tuple[Tensor, Tensor]:
    """Lengths (B, m), at least the smallest number, and unit directions (B, m, d); zero vectors stay zero."""
    size = V.norm(dim=2).clamp_min(torch.finfo(V.dtype).tiny)
    return size, V / size[:, :, None]


def _square(W: Tensor) -> Tensor:
    return (W.flatten(1) ** 2).sum(1)


def _unit(V: np.ndarray) -> np.ndarray:
    return V / np.linalg.norm(V, axis=1, keepdims=True)


def _numbers(what: str, values: ArrayLike) -> np.ndarray:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{what} must hold numbers only") from None


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return content_hash(value)
    return str(value) if isinstance(value, nn.Module) else value
