"""The worked example, at a small size."""

import dataclasses
import runpy
import sys
from pathlib import Path

import pytest

from widemargin import data as datasets
from widemargin import margins, sweep
from widemargin.sweep import Sweep

pytestmark = pytest.mark.usefixtures("one_thread")
EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_phase_diagram(tmp_path, monkeypatch, capsys):
    plan = Sweep.load(EXAMPLES / "sweep_phase.toml")
    assert len(plan) == 6 * 6 * 4
    fixed = plan.fixed | {"data": "disks:k=2,d=2,n=8,seed={trial}", "until": "risk=1e-2", "time": 1e3}
    small = dataclasses.replace(plan, fixed=fixed, grid={"width": [20, 40], "law_scale": [0.3, 10.0]}, repeats=2)
    state = sweep.sweep(small, tmp_path / "s", engine="inline")
    assert state.done == 8 and not state.failed, state.errors
    found = sweep.load(tmp_path / "s")
    certificates = [margins.f1(datasets.load(f"disks:k=2,d=2,n=8,seed={k}"), bias=True) for k in range(2)]
    upper = found["trial"].map(lambda k: certificates[k].upper)
    assert (found["margin_M2"] * 2 <= upper * (1 + 1e-9)).all() and (found["certified_lower"] <= upper + 1e-9).all()
    share = found.groupby("law_scale")["fraction"].median()
    assert share[0.3] > 0.5 > share[10.0]  # small weights get further
    picture = tmp_path / "phase.png"
    monkeypatch.setattr(sys, "argv", ["phase_diagram.py", str(tmp_path / "s"), str(picture)])
    runpy.run_path(str(EXAMPLES / "phase_diagram.py"), run_name="__main__")
    assert picture.read_bytes()[:4] == b"\x89PNG"
    said = capsys.readouterr().out
    assert f"m=40: {found[(found.width == 40) & (found.law_scale == 10)]['fraction'].median():.2f}" in said
