"""Limits in the width: how close networks of finite width are to the flow of infinitely many particles (CB Theorem 2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from widemargin.dataset import takes_data
from widemargin.types import Dataset, InputError

from ._rooms import flows, torch


@takes_data()
def width_limit_error(
    data: Dataset,
    widths: Sequence[int],
    *,
    steps: int = 40,
    lr: float = 0.1,
    trials: int = 10,
    reference: int | None = None,
    bias: bool = False,
    seed: int = 0,
) -> np.ndarray:
    """Distance of networks of some `widths` from the flow of infinitely many particles after `steps` steps of CB's ascent (CB-9).

    The outputs (1/m) sum_j phi(w_j, x_i) on the points are compared with those of one network of `reference` neurons (by
    default 16 times the largest width): root mean square over points and trials, one number per width. CB's Theorem 2 says that
    it tends to 0 at any fixed time; independent initial particles make it of order m^(-1/2). `lr` is the step, `trials` the
    number of networks of each width, `bias` appends a coordinate 1 to the points.

    >>> from widemargin.theory import limits
    >>> from widemargin.types import Dataset
    >>> xor = Dataset([[1, 1], [-1, -1], [1, -1], [-1, 1]], [1, 1, -1, -1])
    >>> narrow, wide = limits.width_limit_error(xor, [10, 640], steps=5)
    >>> bool(wide < narrow / 2)
    True
    """
    sizes = [int(m) for m in widths]
    if not sizes or min(sizes) < 1:
        raise InputError("widths must be a list of positive integers")

    def outputs(m: int, count: int, seed: int) -> np.ndarray:
        net = flows.TwoLayer(data.d + int(bias), m, law="cb", mean_field=True)
        X = flows.pose(net, data, "exp", bias=bias).X
        traj = flows.train(
            data,
            net,
            flows.SmoothMarginAscent(lr=lr),
            loss="exp",
            stop=steps,
            record=flows.Record(["risk"], times=[steps]),
            trials=count,
            seed=seed,
            bias=bias,
        )
        if traj.interrupted:  # half a run is none
            raise KeyboardInterrupt
        return net.forward(
            {name: torch.as_tensor(value) for name, value in traj.final.items()}, X
        ).numpy()  # (count, n)

    limit = outputs(16 * max(sizes) if reference is None else reference, 1, seed + 1)
    return np.array([np.sqrt(((outputs(m, trials, seed) - limit) ** 2).mean()) for m in sizes])
