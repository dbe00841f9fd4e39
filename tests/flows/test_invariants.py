"""What the papers prove along every gradient flow, for every network that is homogeneous in some of its parameters."""

from __future__ import annotations

import math

import numpy as np
import pytest

from widemargin import flows
from widemargin.data import parity

DATA = parity(d=4, n=14, seed=0)
NETS = {
    "relu": flows.TwoLayer(4, 12),
    "relu, mean field": flows.TwoLayer(4, 12, law="cb", mean_field=True),
    "srelu": flows.make_net("srelu", 4, 12),
    "output": flows.make_net("output", 4, 60),
    "scalar": flows.Scalar(4, 40),
    "frozen": flows.make_net("frozen", 4, 60),
    "normalized": flows.Normalized(4, 16),
    "product": flows.Product(4, 10),
    "batchnorm": flows.BatchNorm.with_data(DATA.X, 12),
    "mlp": flows.MLP(4, 10, depth=3, law="he"),
}


# Networks whose kinks the integrator does not slide along would need many steps: small explicit steps of one length instead.
SMALL_STEPS = {
    "normalized": (flows.GD(lr=0.5), 3000),
    "product": (flows.NormalizedGD(lr=0.005, grow=1.0), 1000),
    "batchnorm": (flows.NormalizedGD(lr=0.005, grow=1.0), 1500),
    "mlp": (flows.NormalizedGD(lr=0.002, grow=1.0), 2000),
}
HONEST = (
    -25.0
)  # ln risk down to which steps of that length follow the flow: the dual is a softmax at temperature 1 / |w|^L


@pytest.fixture(scope="module")
def runs():
    """One flow of each network, until well after the data is fitted."""
    made = {}

    def run(name: str):
        if name not in made:
            rule, steps = SMALL_STEPS.get(name, (flows.GradientFlow(), 220))
            observe = ["log_risk", "psi", "margin", "log_norm"]
            times = list(range(0, steps + 1, max(2, steps // 150)))
            made[name] = flows.train(
                DATA, NETS[name], rule, loss="exp", stop=steps, trials=2, record=flows.Record(observe, times=times)
            )
        return made[name]

    return run


@pytest.mark.parametrize("name", NETS)
def test_the_normalised_smooth_margin_and_the_norm_grow_once_the_data_is_fitted(runs, name: str):
    """UH-18, LR-23: psi / |w|^L is nondecreasing and |w| increases where the sum of losses is below l(0)."""
    traj, net = runs(name), NETS[name]
    log_norm, psi = traj["log_norm"], traj["psi"]
    for trial in range(2):
        after = traj["log_risk"][:, trial] < -math.log(DATA.n)
        if name in SMALL_STEPS:
            after &= traj["log_risk"][:, trial] > HONEST
        assert after.sum() > 10, "the flow did not fit the data"
        share = psi[after, trial] * np.exp(-net.degree * log_norm[after, trial])
        assert (np.diff(share) >= -2e-4 * np.abs(share[1:]) - 1e-9).all()
        assert share[-1] > share[0]
        assert (np.diff(log_norm[after, trial]) > -1e-9).all()
        assert (np.diff(psi[:, trial]) >= -1e-6 * np.abs(psi[1:, trial]) - 1e-9).all()  # psi itself, always


@pytest.mark.parametrize("name", NETS)
def test_the_hard_margin_is_sandwiched(runs, name: str):
    """exp loss: psi <= min p <= psi + ln n at every time."""
    traj = runs(name)
    low, high = traj["psi"], traj["psi"] + math.log(DATA.n)
    room = 1e-9 * np.abs(high) + 1e-9
    assert (traj["margin"] >= low - room).all() and (traj["margin"] <= high + room).all()
