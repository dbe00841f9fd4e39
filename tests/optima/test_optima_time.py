"""Optima of points with so many columns that the time is over before their span is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from widemargin import Dataset, InputError, optima
from widemargin.margins import door as doors
from widemargin.pricing import points as pricing

rng = np.random.default_rng(0)
LOSSES = ("logistic", "hinge", "cross-entropy", "squared")


def drawn(n: int, d: int, loss: str, rank: int = 99) -> Dataset:
    r = min(n, d, rank)
    X = rng.standard_normal((n, r)) @ rng.standard_normal((r, d))
    y = {"cross-entropy": np.arange(n) % 3, "squared": np.abs(X[:, :2])}.get(
        loss, np.where(X[:, 0] > np.median(X[:, 0]), 1, -1)
    )
    return Dataset(X, y, "many columns")


@pytest.fixture
def slow(monkeypatch):
    """A machine without time for singular values."""

    def refuse(*args, **keys):
        raise AssertionError("a decomposition without time for it")

    monkeypatch.setattr(doors, "speed", lambda: 1.0)
    for name in ("reduce_rank", "whitening"):
        monkeypatch.setattr(f"widemargin.optima.problem.{name}", refuse)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("n", "d", "rank"), [(12, 30, 99), (12, 9, 99), (12, 9, 2)])
def test_no_time_for_the_span(loss, n, d, rank, slow):
    """Three times as many columns as points: nothing but the constant. Fewer: all columns are coordinates."""
    data = drawn(n, d, loss, rank)
    cert = optima.f1(data, loss=loss, weight_decay=0.01, time_limit=1.0)
    verdict = cert.verify(data)
    assert verdict.failed is None and 0 <= cert.lower <= cert.upper, verdict
    if d > 2 * n:
        assert cert.status == "time-limit" and cert.atoms == 0


@pytest.mark.parametrize("loss", LOSSES)
def test_a_largest_decay_without_time_for_the_span(loss, request):
    data = drawn(8, 30, loss)
    known = optima.largest_decay(data, loss=loss, time_limit=5.0)
    request.getfixturevalue("slow")
    found = optima.largest_decay(data, loss=loss, time_limit=1.0)
    assert found.lower <= known.upper and known.lower <= found.upper < np.inf
    with pytest.raises(InputError, match="time was over"):
        optima.path(data, decays=3, loss=loss, time_limit=1.0)


def test_a_gap_without_time_for_the_span(slow):
    data = drawn(8, 30, "logistic")
    net = {"0.weight": torch.ones(2, 30), "2.weight": torch.ones(1, 2)}
    found = optima.gap(net, data, weight_decay=0.01, time_limit=1.0)
    assert found.certificate.verify(data).failed is None and found.objective >= found.certificate.lower


def test_points_that_span_as_much_as_they_can_are_decomposed_once(monkeypatch):
    seen, svd = [], np.linalg.svd
    monkeypatch.setattr(np.linalg, "svd", lambda *args, **keys: seen.append(1) or svd(*args, **keys))
    X, basis = pricing.reduce_rank(rng.standard_normal((5, 9)))
    assert X.shape == (5, 5) and basis.shape == (9, 5) and len(seen) == 1
