"""Small data of all kinds closes: few points, few features, columns of any scale, small integers, with and without bias."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from checks import repeated
from widemargin.margins import f1

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "frontier.py"


@pytest.fixture(scope="module")
def small():
    """The generator of the benchmark, so that the test and the numbers of the documentation mean the same sets."""
    spec = importlib.util.spec_from_file_location("frontier", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["frontier"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module.small


@pytest.mark.slow
@repeated("first", range(40_000, 40_040, 10), 3)
def test_forty_small_sets_are_certified_and_verify(small, first: int):
    for seed in range(first, first + 10):
        data, bias = small(seed)
        certificate = f1(data, bias=bias, tol=1e-3, time_limit=None)
        assert certificate.status in ("certified", "not-separable"), (seed, str(certificate))
        assert certificate.verify(data), seed
