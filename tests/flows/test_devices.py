"""Every network under a rule, and every rule, on a GPU: the numbers of the CPU, recorded steps included."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from widemargin import flows
from widemargin.data import parity

DATA = parity(d=6, n=16, seed=1)
PAIRS = [
    ("relu", "gd", "logistic", {}),
    ("srelu", "gd", "logistic", {}),
    ("output", "prop7", "exp", {}),
    ("frozen", "prop6", "exp", {}),
    ("scalar", "gd", "exp", {}),
    ("product", "gd", "logistic", {}),
    ("normalized", "mirror", "logistic", {}),
    ("batchnorm", "sgd", "logistic", {"batch": 4}),
    ("mlp", "gd", "logistic", {}),
    ("relu", "ngd", "logistic", {}),
    ("relu", "cb", "exp", {}),
    ("relu", "wgf", "logistic", {}),
    ("relu", "pwgf", "logistic", {"sigma": 0.2, "eta": 0.1}),
    ("relu", "adam", "logistic", {}),
    ("relu", "two-phase", "logistic", {}),
    ("relu", "adamw", "logistic", {}),
    ("relu", "sign", "logistic", {}),
    ("mlp", "sign", "exp", {}),
    ("relu", "coordinate", "logistic", {}),
    ("mlp", "spectral", "logistic", {}),
    ("relu", "spectral", "exp", {}),
]


def run(kind: str, rule: str, loss: str, options: dict, device: str):
    extra = {"data": DATA.X} if kind == "batchnorm" else {}
    if rule in ("cb", "wgf", "pwgf"):
        extra["law"] = "cb"
    net = flows.make_net(kind, DATA.d, 10, **extra)
    return flows.train(
        DATA,
        net,
        flows.make_rule(rule, **options),
        loss=loss,
        stop=25,
        trials=3,
        device=device,
        record=["risk", "margin"],
    )


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "rule", "loss", "options"), PAIRS, ids=[f"{k}-{r}" for k, r, _, _ in PAIRS])
def test_a_gpu_gives_the_numbers_of_the_cpu(kind: str, rule: str, loss: str, options: dict):
    there, here = (run(kind, rule, loss, options, device) for device in ("cuda", "cpu"))
    assert there.status == here.status
    for name in ("risk", "margin"):
        assert_allclose(there[name], here[name], rtol=1e-7, atol=1e-9)
    for name, value in here.final.items():
        assert_allclose(there.final[name], value, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("kind", "rule", "loss", "options"), PAIRS, ids=[f"{k}-{r}" for k, r, _, _ in PAIRS])
def test_every_pair_trains(kind: str, rule: str, loss: str, options: dict):
    """Finite, moving, and reproducible."""
    first, again = (run(kind, rule, loss, options, "cpu") for _ in range(2))
    assert np.isfinite(first["risk"]).all() and first.status == ("finished",) * 3
    assert (first["risk"][0] != first["risk"][-1]).all()
    assert np.array_equal(first["risk"], again["risk"])


@pytest.mark.gpu
def test_gradient_flow_on_a_gpu():
    data = parity(d=4, n=16, seed=0)
    net = flows.make_net("relu", 4, 40)
    there, here = (
        flows.train(data, net, flows.GradientFlow(), stop=80, trials=3, device=device, record=["risk", "margin"])
        for device in ("cuda", "cpu")
    )
    # 80 adaptive steps with an error of at most 1e-4 each: which step crosses a kink first is a matter of rounding
    assert_allclose(there["margin"][-1], here["margin"][-1], rtol=1e-2)
