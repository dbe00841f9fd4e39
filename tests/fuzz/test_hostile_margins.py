"""Every kind of the table on hostile data: an answer that says it is certified verifies, and no answer is refused.

WIDEMARGIN_FUZZ=1000 asks for so many solves of each kind, WIDEMARGIN_FUZZ_SEED for other ones.
"""

from __future__ import annotations

import inspect
import os
from typing import Any

import hostile
import numpy as np
import pytest
from harm import count

import widemargin
from widemargin import Dataset, InputError, kinds

SOLVES = int(os.environ.get("WIDEMARGIN_FUZZ", "12"))
SEED = int(os.environ.get("WIDEMARGIN_FUZZ_SEED", "0"))
LINE = np.array([[1.0, 0.5], [-0.3, 1.0], [0.2, -1.0], [-1.0, -0.4], [0.7, 0.1]])
# Points that are bad each in one way, whatever the seed.
SETS = {
    "tiny": 1e-300 * LINE,
    "small": 1e-160 * LINE,
    "large": 1e300 * LINE,
    "denormal": 5e-324 * np.rint(4 * LINE),
    "near-duplicates": np.vstack([LINE, LINE * (1 + 1e-15), LINE + 1e-9]),
    "one large row": np.vstack([LINE, [[1e20, 1e20]]]),
    "one small row": np.vstack([LINE, [[1e-20, 1e-20]]]),
    "constant columns": np.hstack([LINE, np.ones((5, 1)), np.zeros((5, 1))]),
    "duplicates": np.repeat(LINE, 2, axis=0),
    "opposites": np.vstack([LINE, -LINE]),
    "one point": LINE[:1],
}


def wrong(name: str, data: Dataset, keys: dict) -> str:
    """What is wrong with the answer to this; empty where it verifies, or is a sentence."""
    count(1)
    try:
        said = hostile.complaint(hostile.answer(name, data, keys), data)
    except InputError as error:
        said = "a complaint of several lines" if "\n" in str(error) else ""
    return said and f"{name} of {data.X.tolist()}, {data.y.tolist()} with {keys}: {said}"


@pytest.mark.parametrize("name", kinds.KINDS)
@pytest.mark.parametrize("bad", SETS)
def test_every_kind_on_bad_points(name: str, bad: str):
    rng, X = np.random.default_rng(len(name)), SETS[bad]
    row = kinds.KINDS[name]
    for limit in (1e-6, 0.1):
        data = Dataset(X, hostile.targets(rng, X, row.targets), bad)
        keys = hostile.settings(rng, row, X)
        assert not wrong(name, data, keys | ({"time_limit": limit} if "time_limit" in keys else {}))


@pytest.mark.slow
@pytest.mark.parametrize("name", kinds.KINDS)
def test_every_kind_on_drawn_points(name: str):
    for seed in range(SOLVES):
        assert not wrong(*hostile.draw(SEED + seed, (name,)))


# Draws that a long run of the test above has found: objectives beyond floats and below what a checker resolves, an eps of batch
# normalisation beside which points are nothing.
@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("f1-multitarget-optimum", 900019),
        ("f1-multitarget-optimum", 900422),
        ("f1-optimum", 900160),
        ("bn", 900050),
        ("bn", 900213),
        ("bn", 900435),
        ("bn", 910366),
        ("f1-multiclass", 910087),
        ("f1-multiclass", 910457),
        ("l1-regression", 930191),
        ("l1-regression", 950014),
        ("l2-regression", 970159),
        ("f2", 990096),
        ("linear-multiclass", 995010),
        ("l2-regression", 1020003),
        ("collapse", 1030044),
        ("projected", 1030082),
        ("f2", 1070353),
        ("linear-multiclass", 3000348),
    ],
)
def test_draws_that_went_wrong(name: str, seed: int):
    assert not wrong(*hostile.draw(seed, (name,)))


@pytest.mark.slow
@pytest.mark.parametrize("name", kinds.KINDS)
def test_every_kind_on_nearly_parallel_points(name: str):
    for seed in range(SOLVES):
        assert not wrong(name, *bundles(name, SEED + seed))


def bundles(name: str, seed: int) -> tuple[Dataset, dict[str, Any]]:
    row = kinds.KINDS[name]
    rng = np.random.default_rng([seed, 2])
    X = hostile.bundles(rng)
    return Dataset(X, hostile.targets(rng, X, row.targets), f"bundles {seed}"), hostile.settings(rng, row, X)


@pytest.mark.slow
@pytest.mark.parametrize("name", kinds.KINDS)
def test_every_kind_on_varied_points(name: str):
    for seed in range(SOLVES):
        assert not wrong(name, *varied(name, SEED + seed))


def varied(name: str, seed: int) -> tuple[Dataset, dict[str, Any]]:
    row = kinds.KINDS[name]
    rng = np.random.default_rng([seed, 3])
    X = hostile.varied(rng)
    y = hostile.varied_targets(rng, X, row.targets)
    return Dataset(X, y, f"varied {seed}"), hostile.varied_settings(rng, row, X)


@pytest.mark.slow
@pytest.mark.parametrize("name", kinds.KINDS)
def test_every_kind_on_tables(name: str):
    for seed in range(SOLVES):
        rng, row = np.random.default_rng([SEED + seed, 4]), kinds.KINDS[name]
        X = hostile.tables(rng)
        y = hostile.varied_targets(rng, X, row.targets)
        assert not wrong(name, Dataset(X, y, f"tables {seed}"), hostile.varied_settings(rng, row, X))


SEPARATED = ("f1", "f2", "linear", "ntk", "f1-multiclass", "linear-multiclass", "tangent")  # by linear functions


@pytest.mark.parametrize("name", SEPARATED)
def test_nothing_that_a_column_tells_is_called_inseparable(name: str):
    """Its flags are the labels. Beside 1.7e9 their difference is smaller than what used to be called rounding."""
    for seed in range(SOLVES):
        rng, row = np.random.default_rng([SEED + seed, 5]), kinds.KINDS[name]
        X = hostile.tables(rng)
        flag = rng.integers(2, size=len(X)).astype(float)
        flag[:2] = 0, 1
        X = np.column_stack([X, flag])
        keys = hostile.varied_settings(rng, row, X) | {"bias": True, "activation": "relu", "tol": 1e-3}
        if name == "tangent":
            keys["jacobian"] = np.column_stack([X, np.ones(len(X))])
        own = inspect.signature(getattr(widemargin.margins, row.function)).parameters
        keys = {key: value for key, value in keys.items() if key in own}
        data = Dataset(X, flag if row.targets == "classes" else 2 * flag - 1, f"flags {seed}")
        cert = hostile.answer(name, data, keys)
        assert cert.status != "not-separable" and not hostile.complaint(cert, data), (seed, cert)
        count(1)


def test_a_ray_is_not_cut():
    """A long run of the test above has found it: beside a bias the points were nothing, and cones of one dimension were cut."""
    assert not wrong("f1", *varied("f1", 1080054))


def test_the_loss_of_a_point_without_weight_may_be_beyond_every_double():
    """A long run of the test above has found it."""
    data, keys = Dataset([[1.0], [-1.0], [1e6]], [1, -1, -1]), {"weights": [1.0, 1.0, 0.0], "weight_decay": 1e-3}
    for name, loss in (("f1-optimum", "exp"), ("f2-optimum", "exp"), ("f1-multiclass-optimum", "cross-entropy")):
        there = Dataset(data.X, (data.y > 0).astype(float)) if loss == "cross-entropy" else data
        assert not wrong(name, there, keys | {"loss": loss})


def test_slacks_that_vanish_exactly():
    """A long run of the test above has found it: the products of an interior point's parts were 0, and divided by."""
    assert not wrong("f2-optimum", *bundles("f2-optimum", 940202))


def test_a_false_claim_is_noticed():
    """What the tests above rest on."""
    data = Dataset(LINE, [1, 1, -1, -1, 1])
    cert = hostile.answer("linear", data, {"bias": True})
    from dataclasses import replace

    assert not hostile.complaint(cert, data)
    assert "larger" in hostile.complaint(replace(cert, lower=0.0, upper=1e-9 * cert.upper), data)
    assert hostile.complaint(replace(cert, status="certified", proved=False), data)
    assert hostile.complaint(replace(cert, lower=2 * cert.upper), data)
