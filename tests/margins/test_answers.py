"""Advice where bounds stay far apart, in Python and in the shell; silence where they do not."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
import warnings

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.exceptions import ConvergenceWarning

import widemargin as wm
from widemargin import cli
from widemargin.margins.answers import FAR, advice
from widemargin.types import Dataset

POINTS, LABELS = load_wine(return_X_y=True)
WINE = Dataset(POINTS[LABELS < 2], LABELS[LABELS < 2], "wine")


def test_a_wide_gap_at_the_time_limit_warns(one_thread):
    with pytest.warns(ConvergenceWarning, match="What would help: standardise the columns") as told:
        line = inspect.currentframe().f_lineno + 1
        cert = wm.margins.f1(WINE, time_limit=0.2)
    assert cert.status == "time-limit" and cert.gap > FAR and cert.stats["tol"] == 1e-3
    (one,) = told
    assert (one.filename, one.lineno) == (__file__, line)  # the line of whoever called
    said = str(one.message)
    assert said.startswith("wine: after") and "Dataset(X, y).standardize()" in said and "fewer than 13 features" in said
    assert "time_limit" in said and "optima.f1" in said


def test_standardised_data_is_not_told_to_be(one_thread):
    scaled = WINE.standardize()
    open_ = dataclasses.replace(wm.margins.linear(scaled, bias=True), status="time-limit", lower=1e-9)
    assert "standardise" not in advice(open_, scaled) and "fewer than 13" in advice(open_, scaled)
    assert "standardise" in advice(open_, WINE) and "--standardize" in advice(open_, WINE, shell=True)
    assert "widemargin fit" in advice(open_, WINE, shell=True)


def test_nothing_is_said_where_the_bounds_are_close():
    cert = wm.margins.linear(WINE, bias=True)
    for status in ("certified", "time-limit", "interrupted", "not-separable"):
        one = dataclasses.replace(cert, status=status)
        assert one.gap < FAR and advice(one, WINE) == ""
    wide = dataclasses.replace(cert, lower=0.0, status="not-separable")
    assert advice(wide, WINE) == ""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wm.margins.f1([[1.0, 2.0], [2.0, 1.0]], ["a", "b"])


def test_in_the_shell(tmp_path, monkeypatch, capsys, one_thread):
    monkeypatch.chdir(tmp_path)
    wm.data.save_dataset(WINE, "wine.csv")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert cli.main(["margin", "wine.csv", "--time-limit", "0.2"]) == 0
    out, _ = capsys.readouterr()
    assert "What would help: standardise the columns" in out and "(--standardize)" in out and "--time-limit" in out
    assert not told  # the sentence comes once


@pytest.mark.long
def test_wine(one_thread):
    """As it is the interval stays open, the upper end at twice the lower one and more; standardised, it closes."""
    with pytest.warns(ConvergenceWarning):
        wm.margins.f1(WINE, bias=True, time_limit=0.5)
    raw = wm.margins.f1(WINE, bias=True, time_limit=20.0)
    assert raw.upper > 2 * raw.lower
    assert wm.margins.f1(WINE.standardize(), bias=True, time_limit=200.0).status == "certified"


def test_constant_and_huge_columns():
    data = Dataset(np.column_stack([np.full(6, 7.0), np.arange(6.0)]), [1, -1] * 3)
    assert data.standardize().X[:, 0].tolist() == [0.0] * 6
    with pytest.raises(wm.InputError, match="too large to be standardised"):
        Dataset([[1e200], [-1e200]], [1, -1]).standardize()


UNASKED = """
import sys, warnings
import numpy as np
from widemargin import Dataset, margins
X = np.random.default_rng(0).standard_normal((300, 9))
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    margins.f1(Dataset(X, np.where(X[:, 0] * X[:, 1] > 0, 1, -1)), time_limit=1e-6)
print([one.category.__name__ for one in said], "sklearn" in sys.modules)
"""


def test_a_warning_does_not_wait_for_scikit_learn():
    """Its import takes a second, after the time limit; who has imported it gets its own class (the tests above)."""
    said = subprocess.run([sys.executable, "-c", UNASKED], capture_output=True, text=True, check=True).stdout
    assert said == "['ConvergenceWarning'] False\n"
