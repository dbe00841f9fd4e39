"""Dataset, Measure and Certificate: what they accept, how they convert, how they are saved."""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from checks import changed, noise, unit
from widemargin import Certificate, Dataset, InputError, Measure, verify
from widemargin.margins import frozen, linear
from widemargin.types import F1_CONVERSIONS, content_hash, write_atomically


def network(m: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights (W, a) of very different sizes, far from balanced."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((m, d)) * 10 ** rng.uniform(-3, 3, (m, 1)), rng.standard_normal(m)


def output(W: np.ndarray, a: np.ndarray, X: np.ndarray) -> np.ndarray:
    return (X @ W.T).clip(0) @ a


# ---------------------------------------------------------------------- Dataset


@pytest.mark.parametrize(
    ("message", "X", "y"),
    [
        ("two dimensions", [1.0, 2.0], [1, 1]),
        ("two dimensions", np.zeros((2, 2, 2)), [1, 1]),
        ("3 rows but y has shape", np.ones((3, 2)), [1, -1]),
        ("one target per row", np.ones((2, 2)), [[], []]),
        ("empty", np.zeros((0, 2)), []),
        ("empty", np.zeros((2, 0)), [1, -1]),
        ("numbers only", [["a", "b"]], [1]),
        ("only one class", [[1.0, 2.0]], ["x"]),
        ("numbers only", [[1.0], [1.0, 2.0]], [1, 1]),
        ("row 1, column 0", [[0.0, 1.0], [np.nan, 1.0]], [1, 1]),
        ("row 0, column 1", [[0.0, -np.inf]], [1]),
        ("y has NaN or infinity at row 1", [[0.0], [1.0]], [1, np.inf]),
    ],
)
def test_bad_data_is_refused_in_one_sentence_with_its_place(message: str, X, y):
    with pytest.raises(InputError, match=message) as caught:
        Dataset(X, y, "mine")
    assert str(caught.value).startswith("mine: ") and "\n" not in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_a_data_set_is_a_frozen_copy_in_float64():
    X, y = np.array([[1, 2], [3, 4]]), np.array([1, -1])
    data = Dataset(X, y)
    X[0, 0] = y[0] = 7
    assert data.X.dtype == data.y.dtype == np.float64
    assert_array_equal(data.X, [[1, 2], [3, 4]])
    assert_array_equal(data.y, [1, -1])
    for array in (data.X, data.y):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.name = "other"  # type: ignore[misc]
    assert (data.n, data.d) == (2, 2) and str(data) == "data: n=2, d=2"


def test_lists_and_other_types_of_numbers_are_the_same_data():
    same = [
        Dataset([[1, 2], [3, 4]], [1, -1]),
        Dataset(np.array([[1, 2], [3, 4]], dtype=np.float32), np.array([True, False]) * 2 - 1),
        Dataset(np.asfortranarray([[1.0, 2.0], [3.0, 4.0]]), (1.0, -1.0)),
    ]
    assert len({data.sha256() for data in same}) == 1
    assert same[0].sha256() == verify.data_hash(same[0].X, same[0].y)
    assert Dataset([[1, 2], [3, 4]], [1, 1]).sha256() != same[0].sha256()
    assert Dataset([[1, 2, 3, 4]], [1]).sha256() != Dataset([[1], [2], [3], [4]], [1, 1, 1, 1]).sha256()


def test_signs_need_two_classes():
    assert_array_equal(Dataset([[1.0], [2.0]], [1, -1]).signs(), [1, -1])
    assert_array_equal(Dataset([[1.0], [2.0]], [1, 1]).signs(), [1, 1])
    for y, message in (([0, 1], "values 0, 1"), ([1, 2], "values 1, 2"), ([1, -1.0000001], "-1 and \\+1")):
        with pytest.raises(InputError, match=message):
            Dataset([[1.0], [2.0]], y).signs()
    with pytest.raises(InputError, match="9 different values"):
        Dataset(np.ones((9, 1)), np.arange(9)).signs()


# ---------------------------------------------------------------------- Measure and network


@pytest.mark.parametrize("bias", [False, True])
def test_a_measure_is_what_its_formula_says(bias: bool):
    theta, mass = network(5, 3 + bias, seed=0)
    X = np.random.default_rng(1).standard_normal((7, 3))
    for activation, degree in (("relu", 1), ("srelu", 2)):
        measure = Measure(theta, mass, activation, bias)
        points = [np.append(x, 1.0) if bias else x for x in X]
        by_hand = [sum(m * max(t @ x, 0.0) ** degree for t, m in zip(theta, mass)) for x in points]
        assert_allclose(measure(X), by_hand, rtol=1e-12)
        assert_allclose(measure.norm, sum(abs(m) * (t @ t) ** (degree / 2) for t, m in zip(theta, mass)), rtol=1e-13)
        data = Dataset(X, np.where(measure(X) >= 0, 1, -1))
        assert_allclose(measure.margin(data), np.abs(by_hand).min() / measure.norm, rtol=1e-12)
        normal = measure.normalized()
        assert_allclose(np.linalg.norm(normal.theta, axis=1), 1, rtol=1e-14)
        assert_allclose(normal(X), measure(X), rtol=1e-11)
        assert_allclose(normal.norm, measure.norm, rtol=1e-13)
        assert_allclose(normal.margin(data), measure.margin(data), rtol=1e-11)


def test_zero_atoms_are_dropped():
    measure = Measure([[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]], [1.0, 5.0, 0.0])
    normal = measure.normalized()
    assert_array_equal(normal.theta, [[1, 0]])
    assert_array_equal(normal.mass, [1])
    assert measure.norm == normal.norm == 1
    assert str(normal) == "1 neuron, norm 1"


@pytest.mark.parametrize("bias", [False, True])
def test_measure_to_balanced_network_halves_the_margin(bias: bool):
    """MT Theorem 3.3, CB Proposition 9: |a_j| = ||W_j||, so ||W||^2 + ||a||^2 = 2 norm and M2 = M1 / 2."""
    theta, mass = network(6, 4 + bias, seed=2)
    measure = Measure(theta, mass, "relu", bias)
    X = np.random.default_rng(3).standard_normal((9, 4))
    data = Dataset(X, np.where(measure(X) >= 0, 1, -1))
    W, a = measure.to_network()
    points = np.hstack([X, np.ones((9, 1))]) if bias else X
    assert_allclose(output(W, a, points), measure(X), rtol=1e-10)
    assert_allclose(np.abs(a), np.linalg.norm(W, axis=1), rtol=1e-14)
    assert_allclose((W * W).sum() + a @ a, 2 * measure.norm, rtol=1e-13)
    M2 = (data.y * output(W, a, points)).min() / ((W * W).sum() + a @ a)
    assert_allclose(M2, F1_CONVERSIONS["M2"] * measure.margin(data), rtol=1e-10)
    assert F1_CONVERSIONS["M2"] == F1_CONVERSIONS["M3"] == F1_CONVERSIONS["M4"] == F1_CONVERSIONS["M6"] == 0.5
    assert F1_CONVERSIONS["M5"] == 1


@pytest.mark.parametrize("bias", [False, True])
def test_network_to_measure_and_back(bias: bool):
    """Mass a_j ||W_j|| at W_j / ||W_j||: the same function, and M2 of the network at most half of M1."""
    W, a = network(12, 4 + bias, seed=4)
    measure = Measure.from_network(W, a, bias=bias)
    X = np.random.default_rng(5).standard_normal((9, 4))
    points = np.hstack([X, np.ones((9, 1))]) if bias else X
    assert_allclose(measure(X), output(W, a, points), rtol=1e-10)
    assert_allclose(measure.mass, a * np.linalg.norm(W, axis=1), rtol=1e-13)
    assert_allclose(measure.theta, unit(W), rtol=1e-13)
    size = (W * W).sum() + a @ a
    assert 2 * measure.norm <= size
    data = Dataset(X, np.where(measure(X) >= 0, 1, -1))
    assert (data.y * output(W, a, points)).min() / size <= measure.margin(data) / 2
    again = Measure.from_network(*measure.to_network(), bias=bias)
    assert_allclose(again.theta, measure.theta, atol=1e-14)
    assert_allclose(again.mass, measure.mass, rtol=1e-13)


def test_half_of_each_atom_makes_a_network_of_unit_size():
    """The papers' map m, theta -> sgn(m) sqrt(|m| / 2), sqrt(|m| / 2) theta: ||(W, a)||^2 = norm, output f / 2."""
    theta, mass = network(5, 3, seed=6)
    measure = Measure(theta, mass).normalized()
    W, a = (part / math.sqrt(2) for part in measure.to_network())
    X = np.random.default_rng(7).standard_normal((8, 3))
    assert_allclose((W * W).sum() + a @ a, measure.norm, rtol=1e-13)
    assert_allclose(output(W, a, X), measure(X) / 2, rtol=1e-10)


def test_a_squared_relu_has_no_balanced_network():
    with pytest.raises(InputError, match="relu"):
        Measure([[1.0, 0.0]], [1.0], "srelu").to_network()


# ---------------------------------------------------------------------- Certificate


@pytest.fixture(scope="module")
def data() -> Dataset:
    return noise(6, 3, seed=2)


@pytest.fixture(scope="module")
def certificate(data: Dataset) -> Certificate:
    certificate = frozen(data, 60, seed=1)
    assert certificate.verify(data) and certificate.lower > 0
    return certificate


def test_gap_and_conversions(certificate: Certificate, data: Dataset):
    assert_allclose(certificate.gap, (certificate.upper - certificate.lower) / certificate.upper, rtol=1e-12)
    assert dataclasses.replace(certificate, lower=0.0, upper=0.0).gap == 0
    assert set(certificate.conversions) == {"M2", "M3", "M4", "M5", "M6"}
    for name, factor in F1_CONVERSIONS.items():
        both = {"lower": factor * certificate.lower, "upper": factor * certificate.upper}
        assert certificate.conversions[name] == both
    assert dataclasses.replace(certificate, activation="srelu").conversions == {}
    assert dataclasses.replace(certificate, kind="f2").conversions == {}
    assert certificate.primal is not None
    W, a = certificate.primal.to_network()
    M2 = (data.y * output(W, a, data.X)).min() / ((W * W).sum() + a @ a)
    low, high = certificate.conversions["M2"].values()
    assert low * (1 - 1e-12) <= M2 <= high * (1 + 1e-12)


def test_without_an_upper_bound_the_gap_is_whole(certificate: Certificate):
    unknown = dataclasses.replace(certificate, upper=math.inf, proved=False)
    assert unknown.gap == 1
    assert dataclasses.replace(unknown, lower=0.0).gap == 1


def test_a_summary_is_json_and_the_text_is_one_line(certificate: Certificate):
    summary = json.loads(json.dumps(certificate.summary(), allow_nan=False))
    assert summary["lower"] == certificate.lower and summary["atoms"] == certificate.atoms
    assert summary["conversions"]["M2"] == certificate.lower / 2
    text = str(certificate)
    assert "\n" not in text and text.startswith("largest margin (frozen neurons) in [") and "not proved" not in text
    assert repr(certificate) == f"<Certificate: {text}>"  # what a notebook shows: no array of n weights
    assert "upper bound not proved" in str(dataclasses.replace(certificate, proved=False))
    assert dataclasses.replace(certificate, primal=None).atoms == 0


@pytest.mark.parametrize("name", ["certificate.json", "certificate.json.gz"])
def test_what_is_saved_verifies_after_loading(certificate: Certificate, data: Dataset, tmp_path: Path, name: str):
    path = tmp_path / name
    certificate.save(path)
    certificate.save(str(path))  # over itself
    raw = path.read_bytes()
    assert (raw[:2] == b"\x1f\x8b") == name.endswith(".gz")
    payload = json.loads(gzip.decompress(raw) if name.endswith(".gz") else raw)
    assert payload == json.loads(json.dumps(certificate.payload()))
    assert payload["digest"] == verify.digest(payload)
    assert verify.check(payload, data.X, data.y)
    assert payload["lower"] == certificate.lower  # doubles survive
    assert certificate.primal is not None
    assert_array_equal(payload["primal"]["theta"], certificate.primal.theta)
    assert sorted(file.name for file in tmp_path.iterdir()) == [name]
    assert path.stat().st_mode & 0o777 == 0o644


def test_neurons_without_a_mass_are_none(certificate: Certificate, tmp_path: Path):
    payload = certificate.payload() | {"primal": {"theta": [[1.0], [1.0, 2.0]], "mass": []}}
    payload["digest"] = verify.digest(payload)
    (path := tmp_path / "odd.json").write_text(json.dumps(payload))
    loaded = Certificate.load(path)
    assert loaded.primal is not None and loaded.primal.theta.shape == (0, certificate.d + certificate.bias)


def test_a_changed_file_does_not_verify(certificate: Certificate, data: Dataset):
    payload = json.loads(json.dumps(certificate.payload()))
    verdict = verify.check(payload | {"lower": payload["lower"] * 0.5}, data.X, data.y)
    assert not verdict and verdict.failed == "digest"
    for field, value in (("lower", 1.001 * certificate.upper), ("upper", 0.999 * certificate.lower)):
        assert not verify.check(changed(certificate, **{field: value}), data.X, data.y)
    moved = Dataset(data.X + np.eye(data.n, data.d) * 1e-15, data.y)
    verdict = certificate.verify(moved)
    assert not verdict and verdict.failed == "data hash"
    assert not certificate.verify(Dataset(data.X, -data.y))
    assert not certificate.verify(Dataset(data.X[:-1], data.y[:-1]))


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "file.json"
    write_atomically(path, b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space left"):
            write_atomically(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new" and list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_said_in_one_sentence(certificate: Certificate, tmp_path: Path):
    with pytest.raises(InputError, match="choose another folder"):
        certificate.save(tmp_path / "absent" / "certificate.json")
    assert list(tmp_path.iterdir()) == []


def test_a_relative_name_is_written_in_the_current_folder(
    certificate: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    certificate.save("here.json")
    assert json.loads(Path("here.json").read_text())["kind"] == "frozen"


def test_content_hash_sees_shapes_and_values():
    A = np.arange(6.0)
    assert content_hash(A) == content_hash(A.copy()) != content_hash(A.reshape(2, 3))
    assert content_hash(A.reshape(2, 3)) == content_hash(np.asfortranarray(A.reshape(2, 3)))
    assert content_hash(A) != content_hash(A + 1e-15 * (A == 1))
    assert content_hash(A, A) != content_hash(A)


def test_columns_in_another_order_are_not_taken_for_others():
    table = pd.DataFrame([[1.0, 2.0], [-1.0, 0.5]], columns=["a", "b"])
    cert = linear(table, [1, -1])
    assert_array_equal(cert.function(table), cert.function(table.to_numpy()))
    assert_array_equal(cert.function(table.to_numpy()), cert.function(table.set_axis([0, 1], axis=1)))
    with pytest.raises(InputError, match="X has the columns 'b', 'a', and this certificate 'a', 'b'"):
        cert.function(table[["b", "a"]])


def test_points_of_another_type_are_a_sentence():
    data = Dataset([[1.0, 2.0], [-1.0, 0.5]], [1, -1])
    cert = linear(data)
    for wrong in (data, [["a", "b"]], [[1.0, 2.0], [3.0]], None):
        with pytest.raises(InputError, match=r"\(n, 2\)"):
            cert.function(wrong)
