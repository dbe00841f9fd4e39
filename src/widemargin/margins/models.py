"""Two-layer ReLU networks as people have them: their layers, out of PyTorch, scikit-learn, a state dict or a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from widemargin.dataset import to_numpy
from widemargin.types import InputError, Trajectory, show

FORM = "Sequential(Linear, ReLU, Linear)"
INSIDE = ("state_dict", "model_state_dict", "model")  # where checkpoints keep a state dict
MOST = 2**28  # numbers in an array of weights
OURS = {"net": "relu", "activation": "relu", "mean_field": False, "train": "both"}  # what a run must have trained


@dataclass(frozen=True)
class Layers:
    """f(x) = sum_j a_j relu(W_j . x + b_j) + c, in float64; what is None is not there."""

    W: np.ndarray  # (m, d)
    b: np.ndarray | None  # (m,)
    a: np.ndarray  # (K, m)
    c: np.ndarray | None  # (K,)


def layers(model: Any) -> Layers:
    """The weights of a two-layer ReLU network; an InputError for anything else."""
    if isinstance(model, Mapping):
        return _from_names(inner(model))
    if hasattr(model, "hidden_layer_sizes"):
        return _of_sklearn(model)
    from torch import nn

    if hasattr(model, "_orig_mod") or isinstance(model, nn.DataParallel):  # compiled, or on several devices
        model = getattr(model, "_orig_mod", None) or model.module
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be {FORM}, its state dict or an MLPClassifier, not {type(model).__name__}")
    if not isinstance(model, nn.Sequential):
        raise InputError(
            f"model must be {FORM}, not {type(model).__name__}; if it computes the same, give its state_dict()"
        )
    parts = list(_in_a_row(model))
    kinds = [type(layer) for layer in parts]
    wanted: list[type] = [nn.Linear, nn.ReLU, nn.Linear]
    if any(kind is nn.LazyLinear for kind in kinds):
        raise InputError("the model has lazy layers, which have no weights yet; call it on X once")
    if kinds != wanted:
        names = ", ".join(kind.__name__ for kind in kinds)
        like = [kind for kind in kinds if kind not in (nn.Dropout, nn.Flatten)]
        same = "; to compare it without the other layers, give its state_dict()" if like == wanted else ""
        raise InputError(f"model must be {FORM}, not Sequential({names}){same}")
    first, last = parts[0], parts[2]
    for layer in (first, last):
        if set(dict(layer.named_parameters())) - {"weight", "bias"} or not hasattr(layer, "weight"):
            raise InputError("a layer of the model has parameters besides weight and bias; remove its parametrization")
    return _checked(first.weight, first.bias, last.weight, last.bias)


def inner(state: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """The weights in what training has saved beside other things."""
    for key in INSIDE:
        if isinstance(state.get(key), Mapping):
            state = state[key]
    return state


def _in_a_row(model: Any) -> Iterator[Any]:
    """The layers of a Sequential and of those in it, less those that leave a matrix of points as it is."""
    from torch import nn

    for layer in model:
        if type(layer) is nn.Sequential:
            yield from _in_a_row(layer)
        elif type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1):
            pass  # points are rows of X already
        elif type(layer) is not nn.Identity:
            yield layer


def _from_names(state: Mapping[Any, Any]) -> Layers:
    """The layers of a state dict: two matrices whose shapes fit, and at most one vector for each."""
    arrays = {str(name): _tensor(name, value) for name, value in state.items()}
    matrices = [name for name, value in arrays.items() if value.ndim == 2]
    vectors = [name for name, value in arrays.items() if value.ndim == 1]
    if len(matrices) != 2 or len(matrices) + len(vectors) != len(arrays):
        shapes = ", ".join(f"{name[:40]} {value.shape}" for name, value in list(arrays.items())[:6])
        raise InputError(
            f"a state dict of {FORM} has two weight matrices and their biases, but this one has {shapes or 'nothing'}"
        )
    fits = [
        (first, second) for first, second in (matrices, matrices[::-1]) if arrays[second].shape[1] == len(arrays[first])
    ]
    if not fits:
        shapes = " and ".join(str(arrays[name].shape) for name in matrices)
        raise InputError(f"the weights have shapes {shapes}, but a network with K outputs has (m, d) and (K, m)")
    # (m, d) and (d, m) fit both ways: rather one output, and else in their order, as torch saves them.
    first, second = min(fits, key=lambda pair: len(arrays[pair[1]]) != 1)
    width, biases = len(arrays[first]), {}
    for name in vectors:
        if name.rpartition(".")[2] in ("weight", "running_mean", "running_var"):  # of a norm, or of PReLU
            raise InputError(f"{name[:40]} of shape {arrays[name].shape} is of a layer that {FORM} does not have")
        stem = name.removesuffix("bias")
        owners = [k for k, matrix in enumerate((first, second)) if stem != name and matrix == f"{stem}weight"]
        owners = owners or [k for k, size in enumerate((width, len(arrays[second]))) if arrays[name].shape == (size,)]
        if len(owners) != 1 or owners[0] in biases:
            why = "it fits both layers" if len(owners) == 2 else "it fits no layer, or one that has a bias"
            raise InputError(f"{name[:40]} of shape {arrays[name].shape} is no bias of this network: {why}")
        biases[owners[0]] = arrays[name]
    return _checked(arrays[first], biases.get(0), arrays[second], biases.get(1))


def _tensor(name: Any, value: Any) -> np.ndarray:
    try:
        # A file of a few bytes may hold views of any shape, so the size is looked at before anything is copied.
        if math.prod(getattr(value, "shape", ())) > MOST:  # a RuntimeError where a tensor is of several others
            raise InputError(
                f"{str(name)[:40]} of the state dict has more than {MOST:.0e} numbers; this is no two-layer network"
            )
        if "complex" in str(getattr(value, "dtype", "")):
            raise TypeError
        return np.array(to_numpy(value), dtype=np.float64)
    except InputError:
        raise
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"{str(name)[:40]} of the state dict is no array of numbers, but {type(value).__name__}; give the weights alone, or "
            f"under one of the names {', '.join(INSIDE)}"
        ) from None


def _checked(W: Any, b: Any, a: Any, c: Any) -> Layers:
    weights = [None if value is None else _tensor("a weight", value) for value in (W, b, a, c)]
    W, b, a, c = weights
    if a.shape[1] != len(W) or (b is not None and b.shape != (len(W),)) or (c is not None and c.shape != (len(a),)):
        shapes = ", ".join(str(value.shape) for value in weights if value is not None)
        raise InputError(f"the shapes of the layers do not fit: {shapes}")
    if not W.size or not a.size:
        raise InputError("the network has no neurons or no features")
    if not all(np.isfinite(value).all() for value in weights if value is not None):
        raise InputError("the network has weights that are NaN or infinite; it may have diverged in training")
    return Layers(W, b, a, c)


def _of_sklearn(model: Any) -> Layers:
    """The layers of a fitted MLPClassifier."""
    name = type(model).__name__
    if not hasattr(type(model), "predict_proba"):
        raise InputError(f"{name} is no classifier, and margins are about those; give an MLPClassifier")
    weights, offsets = getattr(model, "coefs_", None), getattr(model, "intercepts_", None)
    if weights is None or offsets is None:
        raise InputError(f"this {name} is not fitted yet; call its fit(X, y) first")
    if len(weights) != 2:
        raise InputError(
            f"this {name} has {len(weights) - 1} hidden layers, and margins are known for one; fit it with one"
        )
    if len(offsets[1]) > 1 and getattr(model, "out_activation_", "softmax") != "softmax":
        raise InputError(f"this {name} tells several labels for each point; give one that was fitted on one")
    if model.activation != "relu":
        raise InputError(f"this {name} has the activation {model.activation!r}; fit it with activation='relu'")
    return _checked(weights[0].T, offsets[0], weights[1].T, offsets[1])


def of_run(run: Trajectory, trial: int) -> Layers:
    """The layers at the end of one trial."""
    net = run.config.get("net", {})
    if any(net.get(key) != value for key, value in OURS.items()):
        raise InputError(
            "the network of this run is not sum_j a_j relu(v_j . x) with both layers trained and no factor in front"
        )
    if not {"a", "V"} <= set(run.final):
        raise InputError(
            f"the run ends with the parameters {', '.join(run.final) or 'of nothing'}, not a and V; train it again"
        )
    a, V = np.asarray(run.final["a"]), np.asarray(run.final["V"])  # (B, m), (B, m, d) or (B, m, d + 1)
    whole = isinstance(trial, int | np.integer) and not isinstance(trial, bool)
    if not whole or not 0 <= trial < len(a):
        raise InputError(f"the run has the trials 0 to {len(a) - 1}, so there is no trial {show(trial)}")
    if a.ndim != 2 or V.ndim != 3:
        raise InputError(f"the weights of the run have the shapes {a.shape} and {V.shape}; train it again")
    bias = bool(run.config["bias"])
    W, b = (V[trial, :, :-1], V[trial, :, -1]) if bias else (V[trial], None)
    return _checked(W, b, a[trial][None], None)
