"""How good the margin of a network of one's own is: its normalised margin as a share of the certified largest one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from widemargin import notebooks
from widemargin.dataset import listed, plain, takes_data_second
from widemargin.errors import brief, show
from widemargin.spaces import extend
from widemargin.types import Certificate, Dataset, InputError, Measure, Trajectory, neurons

from .door import Progress, check_data
from .models import Layers, layers, of_run
from .multiclass import margins as class_margins
from .multiclass import multiclass_f1
from .wide_networks import f1


@dataclass(frozen=True)
class Share:
    """The margin of a network and the largest of any width: certificate.lower <= largest <= certificate.upper.

    `margin` is min_i y_i f(x_i) / |f|, with |f| = sum_j |a_j| |(w_j, b_j)| over its `width` neurons (convention M1; of several
    classes own output minus the largest other). `errors` counts the points on the wrong side. `share` encloses the margin as a
    part of the largest.

    >>> import widemargin as wm
    >>> xor = wm.Dataset([[1, 1], [-1, -1], [1, -1], [-1, 1]], [1, 1, -1, -1])
    >>> found = wm.margins.of(wm.Measure(xor.X, xor.y), xor)  # a neuron at each point: the best there is
    >>> found.errors, found.width, found.share[0] > 0.999
    (0, 4, True)
    """

    margin: float
    errors: int
    width: int
    certificate: Certificate

    @property
    def share(self) -> tuple[float, float]:
        """At least and at most this part of the largest margin; (0, 0) where the network has no positive margin."""
        lower, upper = max(self.certificate.lower, self.margin), self.certificate.upper
        if not self.margin > 0 or not upper > 0:
            return 0.0, 0.0
        return min(self.margin / upper, 1.0), self.margin / lower

    def summary(self) -> dict[str, Any]:
        """What `widemargin margin --model --json` prints."""
        own = {name: getattr(self, name) for name in ("margin", "errors", "width")}
        return own | {"share": list(self.share), "certificate": self.certificate.summary()}

    def __str__(self) -> str:
        cert = self.certificate
        best = f"{cert.lower:.4g}" if cert.gap <= 1e-3 else f"between {cert.lower:.4g} and {cert.upper:.4g}"
        largest = f"the largest of any width is {best} ({cert.proof_in_words})"
        if cert.upper <= 0 or cert.status == "not-separable":
            return f"no network of this kind separates the data; this one errs at {self.errors} of {cert.n} points"
        if self.margin <= 0:
            return f"this network errs at {self.errors} of {cert.n} points, so that it has no margin yet; {largest}"
        least, most = (100 * value for value in self.share)
        shown = f"{least:.1f} %" if most - least < 0.1 else f"between {least:.1f} % and {most:.1f} %"
        return f"normalised margin {self.margin:.4g}, {shown} of the largest; {largest}"

    __repr__ = brief

    def _repr_html_(self) -> str:
        """What notebooks show: the margin in the interval of the largest."""
        cert = self.certificate
        picture = notebooks.interval(cert.lower, cert.upper, max(self.margin, 0.0), "this network")
        facts = {
            "network": f"{neurons(self.width)}, {self.errors} of {cert.n} points on the wrong side",
            "largest margin": f"{cert.lower:.7g} to {cert.upper:.7g}, {cert.proof_in_words}",
            "search": cert.status_in_words,
        }
        return notebooks.card(str(self), picture, facts, 'save the proof: found.certificate.save("certificate.json")')


def _labels(keys: Mapping[str, Any]) -> str:
    """More than two outputs are for classes, which have numbers already, one or two for labels of two."""
    model, trial = keys.get("model"), keys.get("trial", 0)
    if isinstance(model, Measure | Certificate):
        return "signs"
    return "values" if len(_layers(model, trial).a) > 2 else "signs"


@takes_data_second(_labels)
def of(
    model: Any,
    data: Dataset,
    *,
    trial: int = 0,
    tol: float = 1e-3,
    time_limit: float | None = 60.0,
    memory: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Share:
    """Is the margin of my network good? Its normalised margin, as a share of the certified largest one of any width.

    `model` is torch.nn.Sequential(Linear, ReLU, Linear) or its state dict, a fitted MLPClassifier of scikit-learn with one
    hidden layer of ReLUs, a `Measure`, a `Certificate`, or a run of `flows.train` (`trial` says which of its networks). `data`
    is a Dataset, or X (n, d) and y (n,), labels of two classes, or of as many as the network has outputs: their numbers 0, 1,
    ..., or words in sorted order.

    Biases are folded in: f(x) = sum_j a_j relu(w_j . x + b_j) + c is a network on the points (x, 1), whose last neuron is the
    constant c, and networks with biases are what it is compared with; without any, networks without. Of two outputs their
    difference counts; of more the part that all have in common is taken out, since it changes no margin. Both margins are in
    convention M1: f over sum_j |a_j| |(w_j, b_j)|, which is the same for all scalings of a neuron's two layers.

    `tol`, `time_limit`, `memory`, `seed` and `progress` are those of the search for the largest margin.

    >>> import torch
    >>> import widemargin as wm
    >>> X, y = [[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]], ["same", "same", "other", "other"]
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 4, bias=False), torch.nn.ReLU(), torch.nn.Linear(4, 1, bias=False))
    >>> with torch.no_grad():
    ...     weights = [torch.tensor(X), torch.tensor([[1.0, 1.0, -1.0, -2.0]])]
    ...     _ = [layer.weight.copy_(weight) for layer, weight in zip(net[::2], weights)]
    ...
    >>> print(str(wm.margins.of(net, X, y))[:50])
    normalised margin 0.2828, 80.0 % of the largest; t
    """
    check_data(data)
    search: dict[str, Any] = {
        "tol": tol, "time_limit": time_limit, "memory": memory, "seed": seed, "progress": progress,
    }  # fmt: skip
    if isinstance(model, Certificate):
        if model.primal is None:
            raise InputError(f"this certificate of kind {model.kind} holds no network of neurons; give a network")
        model = model.primal
    if isinstance(model, Measure):
        _fits(model.theta.shape[1] - model.bias, data)
        return _single(model, len(model.mass), data, search)
    net = _layers(model, trial)
    _fits(net.W.shape[1], data)
    theta, outer = _sized(*folded(net))  # (m, D), (m, K)
    bias = theta.shape[1] > data.d
    if outer.shape[1] <= 2:
        mass = outer[:, -1] - (outer[:, 0] if outer.shape[1] == 2 else 0.0)
        if hasattr(model, "classes_"):
            data.signs()
            swapped = (2 * _among(model.classes_, data) - 1) @ data.y < 0  # "10" < "9", as words are sorted
            mass = -mass if swapped else mass
        return _single(Measure(theta, mass, "relu", bias), len(net.W), data, search)
    data.single()
    y = _among(model.classes_, data) if hasattr(model, "classes_") else _outputs(data, outer.shape[1])
    outer = outer - outer.mean(axis=1, keepdims=True)
    reached = class_margins((extend(data.X, bias=bias) @ theta.T).clip(0) @ outer, y)  # (n,)
    norm = float(np.linalg.norm(theta, axis=1) @ np.linalg.norm(outer, axis=1))
    best = multiclass_f1(data, bias=bias, **search)
    return Share(_over(reached, norm), int((reached <= 0).sum()), len(net.W), best)


def _sized(theta: np.ndarray, outer: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same network (m, D), (m, K) up to a factor, of weights of size 1: products of them neither overflow nor vanish.

    Sizes are divided by powers of two, so nothing is rounded and a share of the largest margin stays what it is.
    """
    outer = np.where(theta.any(axis=1, keepdims=True), outer, 0.0)  # a neuron that is 0 has no size
    e = np.frexp(np.abs(theta).max(axis=1))[1]  # (m,)
    f = np.frexp(np.abs(outer).max(axis=1))[1] + e
    most = f[outer.any(axis=1)].max(initial=np.iinfo(f.dtype).min) if outer.any() else 0
    return np.ldexp(theta, -e[:, None]), np.ldexp(outer, (e - most)[:, None])


def _among(known: Any, data: Dataset) -> np.ndarray:
    """The numbers (n,) of the labels among the classes that an estimator was fitted on, or of as many others in their order."""
    numbers = {_key(label): k for k, label in enumerate(known)}
    written = _written(data)
    found = [numbers.get(_key(label)) for label in written]
    values, place = np.unique(data.y, return_inverse=True)
    words = any(isinstance(label, str) for label in written) and any(k is not None for k in found)
    if None not in found:
        return np.array(found, dtype=np.int64)
    if len(values) != len(known) or words:
        label = written[found.index(None)]
        raise InputError(
            f"the network was fitted on the classes {listed([*map(plain, known)])}, but y has {show(label)}; "
            "give labels that it knows"
        )
    return place


def _outputs(data: Dataset, outputs: int) -> np.ndarray:
    """The output (n,) that belongs to each label: its number, or its place where there are as many labels as outputs."""
    written = _written(data)
    if all(type(label) is int and 0 <= label < outputs for label in written):
        return np.array(written)
    values, place = np.unique(data.y, return_inverse=True)
    if len(values) == outputs:
        return place
    raise InputError(
        f"the network has {outputs} outputs, but y has {len(values)} classes ({listed(sorted(set(written), key=str))}); "
        f"give points of all classes, or numbers from 0 to {outputs - 1} as labels"
    )


def _written(data: Dataset) -> list[Any]:
    """The labels (n) as they were given."""
    if data.classes == (-1, 1):
        return [plain(value) for value in data.y]
    index = (data.y + 1) / 2 if len(data.classes) == 2 and data.y.min() < 0 else data.y
    return [data.classes[int(k)] for k in index]


def _key(label: Any) -> Any:
    """Equal for labels that a Dataset takes for equal: 1, 1.0, True and "1"."""
    try:
        return float(label)
    except (TypeError, ValueError):
        return str(label)


def _single(network: Measure, width: int, data: Dataset, search: Mapping[str, Any]) -> Share:
    reached = data.signs() * network(data.X)
    best = f1(data, bias=network.bias, activation=network.activation, **search)
    return Share(_over(reached, network.norm), int((reached <= 0).sum()), width, best)


def _over(reached: np.ndarray, norm: float) -> float:
    margin = float(reached.min()) / norm if norm > 0 else 0.0
    if not math.isfinite(margin):
        raise InputError("the margin of the network is not a finite number; it may have diverged in training")
    return margin


def _layers(model: Any, trial: int) -> Layers:
    return of_run(model, trial) if isinstance(model, Trajectory) else layers(model)


def _fits(d: int, data: Dataset) -> None:
    if d != data.d:
        raise InputError(f"the network takes {d} features, but X has {data.d}; give the X it was trained on")


def folded(net: Layers) -> tuple[np.ndarray, np.ndarray]:
    """(theta (m, D), outer (m, K)): D = d without biases, else d + 1, and the output bias is a neuron of its own."""
    if net.b is None and net.c is None:
        return net.W, net.a.T
    b = np.zeros(len(net.W)) if net.b is None else net.b
    theta = np.hstack([net.W, b[:, None]])
    if net.c is None or not net.c.any():
        return theta, net.a.T
    constant = np.append(np.zeros(net.W.shape[1]), 1.0)
    return np.vstack([theta, constant]), np.vstack([net.a.T, net.c])
