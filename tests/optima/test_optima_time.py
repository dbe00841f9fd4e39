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


@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_a_gap_without_time_for_the_span(loss, slow):
    """The network that is compared is known all the same, and it is far better than the best constant."""
    data = drawn(8, 30, loss)
    y = data.y.reshape(8, -1)  # (n, K)
    w, outer = (
        (np.linalg.pinv(data.X) @ y).T,
        np.eye(y.shape[1]) * (1 if loss == "squared" else 9),
    )  # f(x_i) = y_i, or 9 y_i
    net = {"0.weight": torch.tensor(np.vstack([w, -w])), "2.weight": torch.tensor(np.hstack([outer, -outer]))}
    found = optima.gap(net, data, loss=loss, weight_decay=1e-6, time_limit=1.0)
    cert = found.certificate
    assert cert.verify(data).failed is None and cert.lower <= cert.upper <= found.balanced * (1 + 1e-9)
    constant = optima.f1(data, loss=loss, weight_decay=1e-6, time_limit=1.0)
    assert constant.upper > cert.upper
    worse = optima.gap(
        {name: 100 * value for name, value in net.items()}, data, loss=loss, weight_decay=1.0, time_limit=1.0
    )
    assert worse.certificate.verify(data).failed is None and worse.certificate.atoms == 0


def test_points_that_span_as_much_as_they_can_are_decomposed_once(monkeypatch):
    seen, svd = [], np.linalg.svd
    monkeypatch.setattr(np.linalg, "svd", lambda *args, **keys: seen.append(1) or svd(*args, **keys))
    X, basis = pricing.reduce_rank(rng.standard_normal((5, 9)))
    assert X.shape == (5, 5) and basis.shape == (9, 5) and len(seen) == 1
