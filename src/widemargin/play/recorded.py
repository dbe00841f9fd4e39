"""A run folder of `flows.train` as the page replays it."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from widemargin.types import InputError

from .links import FARTHEST, POINTS, STEP

NEURONS = 500
FRAMES = 200


def replay(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What the page needs of the first trial in `folder`: points (n, 3) with labels, and the neurons at every record.

    The run is one of a two-layer ReLU network on points of the plane, with its weights recorded. The page rounds points to
    multiples of 1/64, and measures the networks on these.

    >>> from widemargin import flows
    >>> from widemargin.play import replay
    >>> from widemargin.types import Dataset
    >>> data = Dataset([[1.0, 0.5], [-1.0, 0.25]], [1, -1])
    >>> run = flows.train(data, flows.TwoLayer(3, 4), flows.GD(), stop=5, keep="run", bias=True, record=["weights"])
    >>> found = replay("run")
    >>> found["points"], found["steps"], len(found["mass"][0])
    ([[1.0, 0.5, 1.0], [-1.0, 0.25, -1.0]], [0, 1, 2, 3, 4, 5], 4)
    """
    from widemargin import flows  # torch, which the page alone does not need

    run, data = flows.load(folder), flows.load_data(folder)[0]
    net, loss, bias = run.config["net"], run.config["loss"], bool(run.config["bias"])
    if data.d != 2 or data.n > POINTS or float(np.abs(data.X).max()) > FARTHEST:
        raise InputError(f"{folder}: the playground shows up to {POINTS} points of the plane; this run has others")
    if net["net"] != "relu" or net["activation"] != "relu" or net["m"] > NEURONS or loss == "squared":
        raise InputError(
            f"{folder}: the playground replays two-layer ReLU networks of up to {NEURONS} neurons; this is another"
        )
    if "W_V" not in run.records:
        raise InputError(f"{folder}: the weights were not recorded; train again with --weights")
    some = np.unique(np.linspace(0, len(run.t) - 1, min(FRAMES, len(run.t))).round().astype(int))
    V, a = run["W_V"][some, 0], run["W_a"][some, 0]  # (T, m, D), (T, m)
    size = np.linalg.norm(V, axis=2)
    theta = np.zeros((*a.shape, 3))
    theta[:, :, : V.shape[2]] = V / np.maximum(size, np.finfo(float).tiny)[:, :, None]
    grid = np.round(data.X * STEP) / STEP + 0.0
    steps = run["step"][some, 0] if "step" in run.records else np.arange(len(some))
    return {
        "name": os.fspath(folder),
        "points": np.column_stack([grid, data.signs()]).tolist(),
        "bias": bias,
        "loss": "exp" if loss == "exp" else "logistic",
        "steps": steps.astype(int).tolist(),
        "theta": theta.reshape(len(some), -1).tolist(),
        "mass": (a * size / (net["m"] if net["mean_field"] else 1)).tolist(),
    }
