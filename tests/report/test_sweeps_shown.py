"""Sections of sweeps: means and deviations to the last digits, no two values drawn as one, nothing averaged in silence."""

import json
import re

import numpy as np
import pytest

from widemargin import report, sweep
from widemargin.report import sweeps

pytestmark = pytest.mark.usefixtures("one_thread")


def fill(folder, plan, result):
    """A store with what `result(params, trial)` says of every run."""
    store = sweep.Store(folder)
    store.note(plan.name, plan.text(), "0")
    every = list(plan.runs("0"))
    store.add(plan.name, plan.function, "0", plan.seed, every, [result(run.params, run.trial) for run in every], 1.0)
    store.close()


def table(folder, *plans):
    there = sweep.query(folder, "select * from runs limit 0")[0]
    return sweeps.aggregate(folder, "1", there, [json.loads(plan.text()) for plan in plans])


def figures(section):
    """Figures by title."""
    found = re.findall(
        r'aria-label="([^"]*)".*?<script type="application/json" data-figure="[^"]*">(.*?)</script>', section.render()
    )
    return {title: json.loads(text) for title, text in found}


def test_results_that_span_decades(tmp_path):
    plan = sweep.Sweep("m:f", grid={"a": [-20, -12, -6, 0, 6]}, repeats=4)
    fill(tmp_path, plan, lambda params, trial: {"risk": 10.0 ** params["a"] * (1 + 0.1 * trial), "same": -2.1})
    found = table(tmp_path, plan)
    for (a,), (n, mean, deviation, _, _), same in zip(found.cells, found.stats["risk"].T, found.stats["same"].T):
        own = 10.0**a * (1 + 0.1 * np.arange(4))
        np.testing.assert_allclose([n, mean, deviation], [4, own.mean(), own.std(ddof=1)], rtol=1e-12)
        assert same[2] < 1e-15
    section = report.build([tmp_path]).sections[0]
    low, high = (figures(section)["Along a"]["data"][k]["y"] for k in (0, 1))
    np.testing.assert_allclose(high[-1] - low[-1], 2 * (1e6 * (1 + 0.1 * np.arange(4))).std(ddof=1), rtol=1e-4)


def test_infinite_and_missing_results_are_told_apart(tmp_path):
    plan = sweep.Sweep("m:f", grid={"a": [1, 2, 3]}, repeats=2)
    values = {1: [np.inf, np.inf], 2: [np.inf, -np.inf], 3: [None, None]}
    fill(tmp_path, plan, lambda params, trial: {"v": values[params["a"]][trial], "w": 1.0})
    text = report.build([tmp_path]).sections[0].render()
    assert [cell for cell in re.findall(r'data-name="v">([^<]*)<', text)][:3] == ["inf", "inf, -inf", "-"]


def test_values_that_look_alike_stay_apart(tmp_path):
    long = "x" * 80
    plan = sweep.Sweep("m:f", grid={"b": [f"{long}1", f"{long}2"], "a": [1, 2, 3]})
    fill(tmp_path / "s", plan, lambda params, trial: {"v": float(params["b"][-1])})
    heat = figures(report.build([tmp_path / "s"]).sections[0])["Heat map"]["data"][0]
    assert len(set(heat["y"])) == 2 and heat["z"] == [[1.0] * 3, [2.0] * 3]
    law = {"low": 0.9, "high": 0.901}
    plan = sweep.Sweep("m:f", random={"c": law}, samples=200, grid={"a": [1, 2]})
    fill(tmp_path / "r", plan, lambda params, trial: {"v": params["c"]})
    heat = figures(report.build([tmp_path / "r"]).sections[0])["Heat map"]["data"][0]
    assert len(set(heat["y"])) == sweeps.BINS == len(heat["z"])
    assert heat["y"][0] == "0.90002" and heat["y"] == sorted(heat["y"])


def test_integers_drawn_at_random_are_shown_as_they_are(tmp_path):
    plan = sweep.Sweep("m:f", random={"k": {"low": 5, "high": 8, "integer": True}}, samples=60)
    fill(tmp_path, plan, lambda params, trial: {"v": float(params["k"])})
    found = table(tmp_path, plan)
    assert [cell[0] for cell in found.cells] == [5, 6, 7, 8]
    np.testing.assert_array_equal(found.stats["v"][1], [5, 6, 7, 8])


def test_what_is_averaged_over_is_said_and_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(sweeps, "CELLS", 10)
    plan = sweep.Sweep("m:f", grid={"a": [1, 2, 3], "b": [1, 2, 3], "c": [1, 2]})
    fill(tmp_path, plan, lambda params, trial: {"v": params["a"] + 10.0 * params["b"] + 100.0 * params["c"]})
    section = report.build([tmp_path]).sections[0]
    text = section.render()
    assert "Means over trials and c at each combination" in text and "over trials, c; bins" in text
    heat = figures(section)["Heat map"]["data"][0]
    assert heat["z"] == [[a + 10.0 * b + 150 for a in (1, 2, 3)] for b in (1, 2, 3)]  # means over c
    assert {"table": "By c"} in section.contents
    assert "122 +- 8.7" in text  # mean 2 + 20 + 100 over the nine runs with c = 1
    values = np.array([a + 10 * b + 100 for a in (1, 2, 3) for b in (1, 2, 3)])
    assert (values.mean(), f"{values.std(ddof=1):.2g}") == (122, "8.7")


def test_plans_of_one_name_are_put_together_by_function_and_values(tmp_path):
    for grid in ([1, 2, 5], [50]):
        fill(tmp_path, sweep.Sweep("m:f", name="s", grid={"a": grid}), lambda params, trial: {"v": params["a"]})
    fill(tmp_path, sweep.Sweep("m:g", name="s", grid={"w": [1, 2]}), lambda params, trial: {"z": 1.0})
    section = report.build([tmp_path]).sections[0]
    shown = figures(section)
    assert {"Along a", "Along w"} <= set(shown) and shown["Along a"]["data"][2]["x"] == [1, 2, 5, 50]
    text = section.render()
    assert "2 plans of this name have added runs" in text and text.count("a = [50]") == 1
    assert text.index("a = [50]") < text.index("w = [1, 2]")


def test_a_failure_is_told_once_and_until_it_is_mended(tmp_path):
    (tmp_path / "mine.py").write_text("def f(x):\n    return {'y': 1 / x}\n")
    plan = sweep.Sweep("mine:f", grid={"x": [0, 1]}, folder=tmp_path)
    for _ in range(3):
        assert sweep.sweep(plan, tmp_path / "s", engine="inline").failed == 1
    text = report.build([tmp_path / "s"]).sections[0].render()
    assert "1 run failed; running the sweep again tries it again" in text and text.count("ZeroDivisionError") == 1
    (tmp_path / "mine.py").write_text("def f(x):\n    return {'y': 1 / (x + 1)}\n")
    assert sweep.sweep(plan, tmp_path / "s", engine="inline").failed == 0
    assert "Runs that failed" not in report.build([tmp_path / "s"]).sections[0].render()


def test_texts_of_a_plan_come_back(tmp_path):
    import tomllib

    plan = sweep.Sweep("m:f", fixed={"name": "caf\u00e9 \U0001f600"}, grid={"a": [1, 2]})
    assert sweep.Sweep(**tomllib.loads(sweeps.toml(json.loads(plan.text())))) == plan
