"""What the tests of networks with several outputs share: their certificates against PyTorch, and false ones."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from checks import seal
from widemargin import optima, verify
from widemargin.types import Certificate, Dataset

# What makes a certificate of 15 points and 3 outputs false.
CHANGES: list[Callable[[dict[str, Any]], Any]] = [
    lambda p: p.update(lower=p["upper"], upper=p["upper"]),
    lambda p: p.update(upper=p["lower"]),
    lambda p: p["extra"].update(weight_decay=1.01 * p["extra"]["weight_decay"]),
    lambda p: p["extra"].update(weight_decay=0.99 * p["extra"]["weight_decay"]),
    lambda p: p["extra"].update(offset=[1.0, 0.0, 0.0]),
    lambda p: p["extra"].update(output_bias=None),
    lambda p: p["extra"].update(loss="logistic"),
    lambda p: p["extra"]["outer"].pop(),
    lambda p: p["extra"]["outer"][0].reverse(),
    lambda p: p["extra"].update(weights=[2.0] + [1.0] * 14),
    lambda p: p["proof"].update(maximum=0.99 * p["proof"]["maximum"]),
    lambda p: p["proof"].update(type="norm"),
    lambda p: p["proof"].update(type="tree"),
    lambda p: p.update(kind="f1-optimum"),
    lambda p: p.update(activation="srelu"),
]


def verified(data: Dataset, certificate: Certificate) -> tuple[Dataset, dict[str, Any]]:
    """The data and a payload that is true."""
    assert verify.check(certificate.payload(), data.X, data.y).ok
    return data, certificate.payload()


def check_refused(data: Dataset, payload: dict[str, Any], change: Callable[[dict[str, Any]], Any]) -> None:
    payload = copy.deepcopy(payload)
    change(payload)
    assert not verify.check(seal(payload), data.X, data.y).ok


def as_module(cert: Certificate) -> torch.nn.Sequential:
    """The network of a certificate as PyTorch trains it, its layers of one size."""
    theta, outer = (np.array(cert.extra[name]) for name in ("theta", "outer"))
    unit = np.sqrt(np.linalg.norm(outer, axis=1))[:, None]
    theta, outer = theta * unit, outer / unit
    (m, K), offset = outer.shape, cert.extra["output_bias"] is not None
    first, last = torch.nn.Linear(cert.d, m, bias=cert.bias), torch.nn.Linear(m, K, bias=offset)
    model = torch.nn.Sequential(first, torch.nn.ReLU(), last).double()
    with torch.no_grad():
        first.weight.copy_(torch.tensor(theta[:, : cert.d]))
        last.weight.copy_(torch.tensor(outer.T))
        if cert.bias:
            first.bias.copy_(torch.tensor(theta[:, cert.d]))
        if offset:
            last.bias.copy_(torch.tensor(cert.extra["offset"], dtype=torch.float64))
    return model


def check_upper(data: Dataset, cert: Certificate, loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """The upper bound is what PyTorch says of the network, and `optima.gap` says so too; `loss` is that of the outputs."""
    model, mode, decay = as_module(cert), cert.extra["output_bias"], cert.extra["weight_decay"]
    with torch.no_grad():
        t = model(torch.tensor(data.X))
        decayed = [p for name, p in model.named_parameters() if name != "2.bias" or mode == "decayed"]
        objective = float(loss(t) + decay / 2 * sum((p**2).sum() for p in decayed))
    assert np.abs(cert.function(data.X) - t.numpy()).max() < 1e-12
    assert objective == pytest.approx(cert.upper, rel=1e-11) and objective <= cert.upper
    keys = {"loss": cert.extra["loss"], "weight_decay": decay, "output_bias": mode, "tol": 0.05, "time_limit": 30}
    gap = optima.gap(model, data.X, data.y, **keys)
    assert gap.objective == pytest.approx(objective, rel=1e-12) and gap.width == len(cert.extra["outer"])
    assert gap.certificate.upper <= objective * (1 + 1e-9) and gap.certificate.lower <= cert.upper


def least_by_adam(
    data: Dataset, K: int, decay: float, seed: int, loss: Callable[[torch.Tensor], torch.Tensor]
) -> float:
    """The least objective of a thousand steps on a network of 60 neurons; all its parameters decay."""
    X = torch.tensor(data.X)
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(data.d, 60), torch.nn.ReLU(), torch.nn.Linear(60, K)).double()
    rule = torch.optim.Adam(model.parameters(), lr=0.02)
    best = math.inf
    for step in range(1000):
        rule.param_groups[0]["lr"] = 0.02 * (1 - step / 1000)
        rule.zero_grad()
        value = loss(model(X)) + decay / 2 * sum((p**2).sum() for p in model.parameters())
        value.backward()
        rule.step()
        best = min(best, float(value.detach()))
    return best
