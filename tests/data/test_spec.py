"""Specs: one line of text to a data set, or one sentence that names the key."""

import inspect

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from widemargin import Dataset, InputError, data


def test_a_spec_calls_the_function():
    assert_array_equal(data.load("disks:d=5,n=80,k=3,seed=6").X, data.disks(3, 5, 80, 6).X)
    assert_array_equal(data.load(" parity : d = 6, n=8 ,S=0-3".replace(" :", ":")).y, data.parity(6, 8, S=(0, 3)).y)
    assert_array_equal(data.load("digits:classes=1-7,n=10").X, data.digits((1, 7), 10).X)
    assert data.load("bad_kkt_plane").n == 3


@pytest.mark.parametrize("name", data.SOURCES)
def test_every_parameter_has_a_key(name):
    make, kinds = data.SOURCES[name]
    assert set(kinds) == set(inspect.signature(make).parameters)


@pytest.mark.parametrize(
    "spec, words",
    [
        ("", ["parity", ".csv"]),
        ("pairty:d=3", ["pairty", "parity", "mnist"]),
        ("unknown", ["unknown", "parity"]),
        ("unknown:x=a.csv", ["unknown", "parity"]),
        ("parity:n=3", ["key d is missing", "marginal"]),
        ("parity:d=3", ["n is missing"]),
        ("parity:d=3,n=3,q=1", ["'q'", "marginal"]),
        ("parity:d=3,n=3,", ["unknown key ''"]),
        ("parity:d=3,n", ["key n has no value"]),
        ("parity:d=3,n=", ["key n has no value"]),
        ("parity:d=3,n=4,n=5", ["n is given twice"]),
        ("parity:d=3,n=4.5", ["n must be an integer", "4.5"]),
        ("parity:d=3,n=" + "9" * 5000, ["n must be an integer"]),
        ("parity:d=3,n=10000001", ["n must be", "10000000"]),
        ("parity:d=3,n=4,S=0-", ["S must be integers"]),
        ("parity:d=3,n=4,p=x", ["p must be a number"]),
        ("parity:d=3,n=4,p=inf", ["p must be a number"]),
        ("mt:d=3,n=40,reject=maybe", ["reject must be true or false"]),
        ("digits:classes=3", ["classes must be two"]),
        ("digits:classes=three-four", ["classes must be integers"]),
        ("mnist:path=/absent/images.npz", ["No such file"]),
        ("dyadic:d=1001", ["d must be", "1000"]),
        ("clusters:n=1,d=10000000,k=1000", ["too large"]),
        ("teacher:n=10000000,d=1,units=1000", ["too large"]),
    ],
)
def test_bad_specs(spec, words):
    with pytest.raises(InputError) as caught:
        data.load(spec)
    for word in words:
        assert word in str(caught.value)
    assert len(str(caught.value)) < 400


def test_files_through_load(tmp_path, monkeypatch):
    data.save_dataset(Dataset([[1.0], [2.0]], [1, -1]), tmp_path / "a.csv")
    assert data.load(str(tmp_path / "a.csv")).n == 2
    assert_array_equal(data.load(str(tmp_path / "a.csv"), "x0", targets=True).y, [1, 2])
    monkeypatch.chdir(tmp_path)
    assert data.load("a.csv").n == 2
    assert data.load(tmp_path / "a.csv").n == data.load_for_loss(tmp_path / "a.csv", loss="squared").n == 2
    with pytest.raises(InputError, match="folder"):
        data.load(str(tmp_path))
    with pytest.raises(InputError, match="No such file"):
        data.load("absent.npz")
    with pytest.raises(InputError, match="label='y' only applies to files"):
        data.load("dyadic:d=2", label="y")
    with pytest.raises(InputError, match="must be text"):
        data.load(None)


NAMES = st.sampled_from(sorted(data.SOURCES))
VALUES = st.one_of(
    st.integers(-2, 30).map(str),
    st.floats(width=16).map(str),
    st.sampled_from(["", "full", "code", "text", "test", "3-8", "+-+", "true", "no", "1e9", str(10**20), "/", "\0"]),
    st.text(max_size=5),
)


@st.composite
def near_specs(draw):
    name = draw(NAMES)
    keys = st.sampled_from([*data.SOURCES[name][1], "x"])
    parts = draw(st.lists(st.tuples(keys, VALUES), max_size=6))
    return f"{name}:" + ",".join(f"{key}={value}" for key, value in parts)


@settings(max_examples=400, deadline=None)
@given(
    spec=st.one_of(
        near_specs(), near_specs(), st.text(max_size=20), st.builds("{}:{}".format, NAMES, st.text(max_size=20))
    )
)
def test_random_specs(spec):
    try:
        drawn = data.load(spec)
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert np.isfinite(drawn.X).all()


@pytest.mark.parametrize("one", [np.int64(1), np.array(1), torch.tensor(1)])
def test_integers_of_other_libraries_name_the_same_data(one):
    for make, sizes in (
        (data.disks, {"n": 5}),
        (data.relu_teacher, {"n": 5}),
        (data.clusters, {"n": 5}),
        (data.parity, {"d": 3, "n": 5}),
    ):
        drawn = make(**sizes, seed=one)
        assert drawn.name == make(**sizes, seed=1).name
        assert_array_equal(drawn.X, make(**sizes, seed=1).X)
    assert data.relu_teacher(n=5, units=one).name == data.relu_teacher(n=5, units=1).name
