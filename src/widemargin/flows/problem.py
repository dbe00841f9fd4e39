"""A net on data with a loss: margins of a batch of trials, and the pull-back of weights on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from widemargin.dataset import takes_data, takes_data_second
from widemargin.errors import brief, show
from widemargin.spaces import extend
from widemargin.types import Dataset, InputError, check_device

from .losses import Loss, as_loss, class_margin
from .nets import Net, Params


@dataclass(frozen=True)
class Problem:
    """B trials of one net. X (1, n, d) shared by all trials or (B, n, d); y (1, n) or (B, n): signs, targets or classes.

    `net` is the network and `loss` the loss of margins (`pose` makes it from a name), None for the squared loss on real targets.

    >>> import torch
    >>> from widemargin import flows
    >>> from widemargin.types import Dataset
    >>> problem = flows.pose(flows.MLP(1, 1, depth=1), Dataset([[1.0], [-2.0]], [1.0, -1.0]), "exp")
    >>> W = {"W1": torch.full((1, 1, 1), 3.0, dtype=torch.float64)}
    >>> problem.margins(W).tolist()  # y_i w x_i
    [[3.0, 6.0]]
    >>> problem.pull(W, torch.ones(1, 2, dtype=torch.float64))["W1"].item()  # sum_i y_i x_i
    3.0
    """

    net: Net
    X: Tensor
    y: Tensor
    loss: Loss | None  # none: squared loss on real targets

    __repr__ = brief

    @property
    def n(self) -> int:
        """Number of points."""
        return self.X.shape[1]

    def look(self, W: Params) -> tuple[Tensor, Any]:
        """p (B, n): y f, or f_y - log sum_{j != y} exp f_j, or the residuals y - f; and what `pull` can use again."""
        f, saved = self.net.evaluate(W, self.X)
        if self.loss is None:
            return self.y - f, (saved, None)
        if self.net.outputs > 1:
            p, slopes = class_margin(f, self.y.expand(f.shape[:2]))
            return p, (saved, slopes)
        return self.y * f, (saved, None)

    def margins(self, W: Params) -> Tensor:
        """p (B, n), see `look`."""
        return self.look(W)[0]

    def pull(self, W: Params, weights: Tensor, saved: Any = None) -> Params:
        """sum_i weights_i dp_i/dW, weights (B, n); for the squared loss sum_i weights_i df_i/dW. `saved` from `look` at W."""
        if saved is None:
            saved = self.look(W)[1]
        activations, slopes = saved
        if self.loss is None:
            return self.net.pull(W, self.X, weights, activations)
        g = weights * self.y if slopes is None else weights[:, :, None] * slopes
        return self.net.pull(W, self.X, g, activations)

    def gram(self, W: Params) -> Tensor:
        """<dp_i/dW, dp_j/dW> (B, n, n), for nets with one output."""
        return self.y[:, :, None] * self.net.gram(W, self.X) * self.y[:, None, :]

    def push(self, W: Params, V: Params) -> Tensor:
        """Derivative of p (B, n) along V."""
        return self.y * self.net.push(W, self.X, V)


def as_outputs(keys: Mapping[str, Any]) -> str:
    """How a loss and a network take labels (`Dataset.labelled`): targets, classes 0 and 1, or signs."""
    loss = keys.get("loss")
    if isinstance(loss, str) and loss == "squared":  # arrays compare entry by entry
        return "values"
    return "numbers" if getattr(keys.get("net"), "outputs", 1) > 1 else "signs"


@takes_data()
def as_classes(data: Dataset) -> Dataset:
    """The data with its labels -1, +1 as the classes 0 and 1 that nets with several outputs take.

    >>> from widemargin.flows import as_classes
    >>> from widemargin.types import Dataset
    >>> as_classes(Dataset([[1.0], [2.0]], [-1, 1])).y.tolist()
    [0.0, 1.0]
    """
    if not isinstance(data, Dataset):
        raise InputError(f"data must be a Dataset, not {show(data)}")
    return Dataset(data.X, (data.signs() + 1) / 2, data.name, data.classes)


@takes_data_second(as_outputs)
def pose(
    net: Net,
    data: Dataset | list[Dataset],
    loss: str,
    *,
    bias: bool = False,
    device: str = "cpu",
    dtype: str = "float64",
) -> Problem:
    """The problem of a net on one data set, or on one data set per trial (same n and d).

    `loss` is "logistic" (also "ce"), "exp" or "squared"; `bias` appends a coordinate 1 to the points;
    `device` and `dtype` ("float64" or "float32") are those of the tensors X (1, n, d) or (B, n, d).

    >>> from widemargin import flows
    >>> from widemargin.types import Dataset
    >>> one, other = Dataset([[1.0], [2.0]], [1, -1]), Dataset([[3.0], [4.0]], [1, -1])
    >>> flows.pose(flows.TwoLayer(2, 5), [one, other], "logistic", bias=True).X[1].tolist()
    [[3.0, 1.0], [4.0, 1.0]]
    """
    if not isinstance(net, Net):
        raise InputError(f"net must be a net, such as those of widemargin.flows, not {show(net)}")
    sets = data if isinstance(data, list) else [data]
    if not sets or not all(isinstance(data, Dataset) for data in sets):
        raise InputError(f"data must be a Dataset, or a list of them, not {show(data)}")
    if not isinstance(dtype, str) or dtype not in ("float32", "float64"):
        raise InputError(f"dtype must be float32 or float64, not {show(dtype)}")
    check_device(device)
    if len({(data.n, data.d) for data in sets}) != 1:
        raise InputError("data sets of one batch must have the same number of points and features")
    kind = getattr(torch, dtype)
    X = np.stack([extend(data.X, bias=bias) for data in sets])
    if X.shape[2] != net.d:
        raise InputError(f"the network takes {net.d} features but the data has {X.shape[2]}")
    if isinstance(loss, str) and loss == "squared":
        for each in sets:
            if each.y.ndim > 1:
                raise InputError(
                    f"{each.name}: y has {each.y.shape[1]} columns, and training takes one target for each point; train on one "
                    "column, or see optima.f1 for the least objective of several"
                )
        targets, kind_y, law = np.stack([data.y for data in sets]), kind, None
    elif net.outputs > 1:
        for each in sets:
            bad = np.flatnonzero((each.y != np.floor(each.y)) | (each.y < 0) | (each.y >= net.outputs))
            if len(bad):
                raise InputError(
                    f"{each.name}: label {each.y[bad[0]]:g} of row {bad[0]} is not one of the classes 0 to {net.outputs - 1}; "
                    "number the classes from 0 or give the network more outputs"
                )
        targets, kind_y, law = np.stack([data.y for data in sets]).astype(np.int64), torch.int64, as_loss(loss)
    else:
        targets, kind_y, law = np.stack([data.signs() for data in sets]), kind, as_loss(loss)
    points, labels = torch.tensor(X, dtype=kind, device=device), torch.tensor(targets, dtype=kind_y, device=device)
    return Problem(net, points, labels, law)
