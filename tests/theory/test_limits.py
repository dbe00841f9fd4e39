"""Width to infinity, then time to infinity: CB's Theorems 2 and 3, as far as numbers show them."""

from __future__ import annotations

import numpy as np
import pytest

from widemargin import data, flows, margins, theory
from widemargin.cli import demo
from widemargin.theory.track import every_step, follow
from widemargin.types import InputError, Trajectory

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


@pytest.mark.parametrize("what", ["limit", "every step", "demo"])
def test_half_a_run_is_none(tmp_path, monkeypatch, what):
    """Ctrl-C ends a training, and what was asked for went on with what it had, as if it were all."""
    points = data.disks(n=4, d=2, seed=0)
    track = follow(flows.train(points, flows.TwoLayer(2, 3), flows.GD(), stop=5), points)
    cert = margins.f1(points)
    monkeypatch.setattr(Trajectory, "interrupted", True)
    with pytest.raises(KeyboardInterrupt):
        if what == "limit":
            theory.limits.width_limit_error(points, [4], steps=2)
        elif what == "every step":
            every_step(track)
        else:
            demo._demo_training(tmp_path, points, cert)


def test_the_dual_gap_closes_along_the_flow():
    """Theorem 3 as seen from outside: the bound that the weights of the points give on all margins meets the margin."""
    found = data.parity(d=3, k=2, n=8, marginal="full")
    traj = flows.train(
        found, flows.TwoLayer(3, 60), flows.GradientFlow(), loss="exp", stop=120, record=flows.Record(points=8)
    )
    gap, best = traj["gap_estimate"][:, 0], margins.f1(found).upper
    seen = gap[np.isfinite(gap)]
    assert seen[-1] < 0.05 * best < 0.2 * seen[0]
