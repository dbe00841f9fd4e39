"""Width to infinity, then time to infinity: CB's Theorems 2 and 3, as far as numbers show them."""

from __future__ import annotations

import numpy as np
import pytest

from widemargin import data, flows, margins, theory
from widemargin.types import InputError

pytestmark = pytest.mark.usefixtures("one_thread")


def test_widths_approach_each_other():
    found = data.disks(n=12, d=2, k=2, seed=0)
    widths = [16, 64, 256, 1024]
    error = theory.limits.width_limit_error(found, widths, trials=12, bias=True)
    assert (np.diff(error) < 0).all()
    slope = np.polyfit(np.log(widths), np.log(error), 1)[0]
    assert -0.6 < slope < -0.4


def test_bad_widths():
    with pytest.raises(InputError, match="positive integers"):
        theory.limits.width_limit_error(data.disks(n=4, d=2, seed=0), [])


def test_the_dual_gap_closes_along_the_flow():
    """Theorem 3 as seen from outside: the bound that the weights of the points give on all margins meets the margin."""
    found = data.parity(d=3, k=2, n=8, marginal="full")
    traj = flows.train(
        found, flows.TwoLayer(3, 60), flows.GradientFlow(), loss="exp", stop=120, record=flows.Record(points=8)
    )
    gap, best = traj["gap_estimate"][:, 0], margins.f1(found).upper
    seen = gap[np.isfinite(gap)]
    assert seen[-1] < 0.05 * best < 0.2 * seen[0]
