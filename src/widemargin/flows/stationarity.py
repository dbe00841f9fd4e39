"""How far parameters are from a KKT point of the margin problem (LR-19)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from widemargin.errors import show
from widemargin.types import InputError

from . import losses
from .contract import State
from .implicit import Gates, gram, implicit_weights, per_trial
from .nets import Params
from .problem import Problem


def clarke_min_norm(problem: Problem, W: Params, weights: Tensor, sweeps: int = 2000) -> Params:
    """The element of least norm among sum_i weights_i dp_i, p_i in Clarke's sense: units with v_j . x_i = 0 have any derivative
    in [0, 1]. For two-layer ReLU nets; W are the parameters themselves, or Y (B, ...).

    The flow of UH and LR moves along it. With v_j = 0 it is 0: a neuron without a direction never starts.
    """
    if not Gates.apply_to(problem):
        return problem.pull(W, weights)
    start = torch.zeros_like(problem.X @ W["V"].mT)
    zero = start.new_zeros(len(start))  # no other kink is reachable in no time
    kinks = Gates(problem, W, start)
    exact = kinks.t == 0
    C = (kinks.net.factor * weights * kinks.y)[:, :, None] * kinks.a
    reach = kinks.XX.abs() @ (C.abs() * exact)
    turn = torch.where(exact & (reach > 0), -C.sign() / reach.clamp_min(1e-300), torch.zeros_like(C))
    S = kinks.on
    for _ in range(sweeps):
        S = torch.where(exact, (S + turn * (kinks.XX @ (C * S))).clamp(0, 1), S)
    F = kinks.pull(weights, zero, 0)[0]
    return F | {"V": (C * S).mT @ problem.X}


def kkt_residual(problem: Problem, W: Params, state: State | None = None) -> Tensor:
    """Sine of the angle (B,) between W and the direction in which the hard margin grows fastest; 1 if it points back (LR-19).

    W is a KKT point of min |W| s.t. p_i >= 1 if and only if W is a nonnegative combination of the dp_i of the points with the
    smallest margin. The combination tried is the dual of an implicit step at very low temperature, with the derivatives of units
    on their kinks as free as Clarke allows. It does not depend on the size of W. `state` gives the gates of a flow.

    `problem` has a net with one output, W are its parameters, (B, ...) each.

    >>> import torch
    >>> from widemargin import flows
    >>> from widemargin.types import Dataset
    >>> problem = flows.pose(flows.MLP(2, 1, depth=1), Dataset([[1.0, 0.0], [0.0, 1.0]], [1, 1]), "exp")
    >>> W = {"W1": torch.tensor([[[1.0, 1.0]], [[2.0, 1.0]]], dtype=torch.float64)}  # the optimum, and w at an angle to e_2
    >>> flows.kkt_residual(problem, W).round(decimals=3).tolist()  # the sine for (2, 1) and e_2 is 2 / sqrt 5
    [0.0, 0.894]
    """
    if not isinstance(problem, Problem):
        raise InputError(f"problem must be what flows.pose makes, not {show(problem)}")
    net, loss = problem.net, problem.loss
    if not isinstance(W, Mapping) or not set(net.trained) <= set(W):
        raise InputError(f"W must be a dictionary of tensors {', '.join(net.trained)}, not {show(W)}")
    if loss is None or net.outputs > 1:
        raise InputError("the KKT residual needs one output and a loss of margins")
    size = net.norm2(W).sqrt()
    Y = W | {name: W[name] / per_trial(size.clamp_min(1e-300), W[name]) for name in net.homogeneous}
    gates = None if state is None else state.gates
    kinks = None
    if Gates.apply_to(problem):
        kinks = Gates(problem, Y, problem.X @ Y["V"].mT if gates is None else gates)
        p, K = kinks.p, kinks.gram()
    else:
        p, saved = problem.look(Y)
        K = gram(problem, Y, saved)
    top = K.diagonal(dim1=1, dim2=2).amax(1).clamp_min(1e-300)
    h = 0.1 / top.sqrt()  # a step a tenth as long as Y at most
    w, _ = implicit_weights(losses.EXP, p, K, h, 1e7 / (h * top))
    F = problem.pull(Y, w) if kinks is None else kinks.pull(w, h, 200)[0]
    dot = sum((F[name] * Y[name]).flatten(1).sum(1) for name in net.homogeneous)
    length = sum((F[name] ** 2).flatten(1).sum(1) for name in net.homogeneous)
    cosine = dot / length.clamp_min(1e-300).sqrt()  # type: ignore[union-attr, operator]
    return torch.where(cosine > 0, (1 - cosine.clamp_max(1) ** 2).clamp_min(0).sqrt(), torch.ones_like(size))
