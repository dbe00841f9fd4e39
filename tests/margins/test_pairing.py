"""The bound from pairs of points of the two classes: above the truth, tight where pairs are all there is, checked exactly."""

from __future__ import annotations

import copy
import math
import time

import numpy as np
import pytest
import torch

from checks import ascended, changed, check_certificate, directions, dual_values
from widemargin.margins import f1, wide_networks
from widemargin.pricing import pairing
from widemargin.types import Certificate, Dataset
from widemargin.verify import check


def images(n: int = 40, d: int = 60, seed: int = 0) -> Dataset:
    """Points that are far from 0 and near each other, as images are."""
    rng = np.random.default_rng(seed)
    X = 5 + rng.standard_normal((n, d)) / np.arange(1, d + 1) ** 0.5
    return Dataset(X, np.resize([1.0, -1.0], n), "images")


def tensors(data: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(data.X), torch.tensor(data.y)


@pytest.mark.gpu
def test_a_gpu_gives_the_same_bound():
    cpu, cuda = (
        pairing.solve(*(part.to(device) for part in tensors(images())), math.inf, steps=30)
        for device in ("cpu", "cuda")
    )
    assert cpu is not None and cuda is not None
    assert cuda.bound == pytest.approx(cpu.bound, rel=1e-6)


@pytest.fixture
def large(monkeypatch):
    """Small problems are treated as large ones."""
    monkeypatch.setattr(wide_networks, "CONE_LIMIT", 0)
    monkeypatch.setattr(wide_networks, "QUADRATIC_RANK", 0)
    monkeypatch.setattr(wide_networks, "worth_products", lambda n, r: False)  # it would be better


@pytest.fixture(scope="module")
def proof() -> tuple[Dataset, Certificate]:
    data = images()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wide_networks, "CONE_LIMIT", 0)
        patch.setattr(wide_networks, "QUADRATIC_RANK", 0)
        patch.setattr(wide_networks, "worth_products", lambda n, r: False)  # it would be better
        certificate = f1(data, time_limit=1)
    check_certificate(certificate, data)
    assert certificate.bound == "pairing"
    return data, certificate


def test_the_bound_is_above_every_neuron_at_its_weights():
    data = images()
    found = pairing.solve(*tensors(data), math.inf, steps=100)
    assert found is not None
    q = found.weights(data.n)
    assert q.sum() == pytest.approx(1) and (q >= 0).all()
    for side in (1, -1):
        c = side * q * data.y
        V = ascended(data.X, c, directions(data.X, 2000, 1))
        assert dual_values(V, data.X, c).max() <= found.bound
    T, a, D = found.T, found.a, data.X[found.i] - data.X[found.j]
    by_hand = (T**2 / (16 * a)).sum() + np.linalg.eigvalsh((D.T * a) @ D)[-1] + np.linalg.norm(T @ D) / 2
    assert found.bound <= by_hand * (1 + 1e-9)


def test_one_pair_is_half_its_distance():
    """x and z with opposite labels and q = 1/2 each: |relu(v . x) - relu(v . z)| / 2 <= |x - z| / 2, reached far from 0."""
    data = Dataset([[10.0, 0.0, 1.0], [10.0, 1.0, 0.0]], [1, -1])
    found = pairing.solve(*tensors(data), math.inf)
    assert found is not None and found.bound == pytest.approx(math.sqrt(2) / 2, rel=1e-3)


def test_it_is_far_better_than_the_root_of_the_tree(large, monkeypatch):
    data = images(60, 80)
    paired = f1(data, time_limit=1)
    monkeypatch.setattr(wide_networks.Solver, "own_bound", lambda *_: None)
    rooted = f1(data, time_limit=1)
    check_certificate(paired, data)
    assert paired.bound == "pairing" and 3 * paired.upper < rooted.upper
    assert rooted.lower <= paired.upper


@pytest.mark.parametrize(
    ("power", "bias"),
    [(-12, True), (9, False), *(pytest.param(*case, marks=pytest.mark.long) for case in ((-12, False), (9, True)))],
)
def test_other_units_and_a_bias(large, power: int, bias: bool):
    data = images(24, 30)
    data = Dataset(np.vstack([data.X, data.X[:3]]) * 2.0**power, np.append(data.y, data.y[:3]))  # and repeated points
    certificate = f1(data, bias=bias, time_limit=0.8)
    check_certificate(certificate, data)
    assert certificate.bound == "pairing" and certificate.proved


def test_one_class_has_no_pairs(large):
    data = Dataset(images(10, 12).X, np.ones(10))
    assert pairing.solve(*tensors(data), math.inf) is None
    check_certificate(f1(data, time_limit=0.5), data)


def test_a_deadline_is_kept():
    began = time.perf_counter()
    assert pairing.solve(*tensors(images(80, 90)), began, steps=10**6) is not None  # no time at all: one step
    assert pairing.solve(*tensors(images(80, 90)), time.perf_counter() + 0.3, steps=10**6) is not None
    assert time.perf_counter() - began < 5


def edited(certificate: Certificate, path: tuple, value: object) -> dict:
    """The saved form with one thing in its proof changed, and a digest that fits."""
    body = copy.deepcopy(certificate.proof)
    place = body
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed(certificate, proof=body)


def test_a_changed_proof_is_found(proof):
    data, certificate = proof
    first = certificate.proof["pairs"][0]
    plus, minus = first[:2]
    for path, value, reason in (
        (("pairs", 0), [minus, plus, *first[2:]], "label"),
        (("pairs", 0), [plus, plus, *first[2:]], "label"),
        (("pairs", 0, 0), data.n, "pairs"),
        (("pairs", 0, 2), -1, "pairs"),
        (("pairs", 0, 3), 0, "pairs"),
        (("pairs", 0), first[:3], "pairs"),
        (("pairs", 0, 2), first[2] * 2 + 2**50, "larger than upper"),  # no longer the weights q
        (("pairs", 0, 3), first[3] * 10**6, "larger than upper"),
        (("pairs",), [], "larger than upper"),
        (("lam",), certificate.proof["lam"] // 2, "larger than upper"),
        (("lam",), -1, "lam"),
        (("shift",), 1.0, "shift"),
    ):
        verdict = check(edited(certificate, path, value), data.X, data.y)
        assert not verdict and reason in verdict.failed, (path, verdict.failed)
    assert not check(changed(certificate, upper=0.9 * certificate.upper), data.X, data.y)
