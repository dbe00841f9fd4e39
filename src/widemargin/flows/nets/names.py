"""The names of the networks on the command line, and networks from their configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from widemargin.errors import did_you_mean, show
from widemargin.types import InputError

from .base import Net
from .batchnorm import BatchNorm
from .frozen import Frozen
from .mlp import MLP
from .products import Normalized, Product
from .scalar import Scalar
from .two_layer import TwoLayer


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


CLASSES: dict[str, type[Net]] = {
    "relu": TwoLayer, "srelu": TwoLayer, "leaky": TwoLayer, "output": TwoLayer, "frozen": Frozen, "scalar": Scalar,
    "product": Product, "normalized": Normalized, "batchnorm": BatchNorm, "mlp": MLP,
}  # fmt: skip


def make_net(kind: str, d: int, m: int, **options: Any) -> Net:
    """The network of a name: relu, srelu, leaky, output, frozen, scalar, product, normalized, batchnorm or mlp.

    `options` are fields of its class (for batchnorm also `data`, the points X); None means the default.

    `kind` is the name, d the number of features (with a bias its coordinate too), m the number of neurons.

    >>> from widemargin import flows
    >>> flows.make_net("relu", 3, 10) == flows.TwoLayer(d=3, m=10)
    True
    >>> flows.make_net("mlp", 3, 10, depth=4).degree
    4
    """
    if not isinstance(kind, str) or kind not in KINDS:
        raise InputError(f"unknown network {show(kind)}{did_you_mean(kind, KINDS)}; choose {', '.join(KINDS)}")
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

    >>> from widemargin import flows
    >>> net = flows.TwoLayer(d=3, m=10, law="cb", mean_field=True)
    >>> flows.rebuild_net(net.config()) == net
    True
    """
    if not isinstance(config, Mapping):
        raise InputError(f"a configuration is what Net.config() returns, a dictionary, not {show(config)}")
    kept = {name: value for name, value in config.items() if value is not None}
    name, d, m = kept.pop("net", None), kept.pop("d", None), kept.pop("m", None)
    classes: dict[Any, type[Net]] = {
        "relu": TwoLayer,
        "frozen": Frozen,
        "scalar": Scalar,
        "normalized": Normalized,
        "mlp": MLP,
    }
    if name == "batchnorm" and not kept.get("minibatch"):
        if points is None:
            raise InputError("batchnorm: the statistics are those of the data; give the points too")
        return BatchNorm.with_data(np.stack(points) if len(points) > 1 else points[0], m, kept.get("eps", 0.0))
    classes["batchnorm"] = BatchNorm
    if not isinstance(name, str) or name not in classes or "directions" in kept:
        raise InputError(
            f"a network {name!r} with parts of your own cannot be built from its configuration; give net too"
        )
    make = classes[name]
    known = {field.name for field in dataclasses.fields(make) if field.init}
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in kept.items() if key in known}
    return make(d, m, **options)
