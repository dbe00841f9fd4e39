"""Arguments of another type, or numbers that no float holds, end in one sentence that names them."""

import numpy as np
import pytest
import torch

from widemargin import Dataset, InputError, margins, spaces, theory

DATA = Dataset([[1.0, 2.0], [2.0, -1.0], [-1.0, 0.5], [0.5, 0.5]], [1, -1, 1, -1])
HUGE = 10**400
ODD = [
    None,
    "x",
    b"x",
    1j,
    [],
    [1.0],
    {},
    np.array([1.0, 2.0]),
    np.array("x"),
    object(),
    torch.zeros(2),
    print,
    Dataset,
]
NO_TRUTH = [2, -1, 1.5, np.float64(1.0), np.int8(2), HUGE, *ODD]
NO_NUMBER = [True, -1.0, float("nan"), float("inf"), HUGE, -HUGE, *ODD]
NO_COUNT = [True, -1, 0, 1.5, float("nan"), HUGE, *ODD]


@pytest.mark.parametrize(
    ("name", "argument", "values"),
    [
        *(
            (name, "bias", [value for value in NO_TRUTH if value is not None or name not in ("f1", "f2")])
            for name in ("linear", "multiclass_linear", "f1", "f2", "frozen", "ntk", "multiclass_f1", "min_norm_l2")
        ),
        ("collapse", "strict", NO_TRUTH),
        *((name, "memory", [0, *NO_NUMBER[:6], *ODD[1:]]) for name in ("linear", "f1", "f2", "collapse")),
        ("batchnorm", "eps", NO_NUMBER),
        ("batchnorm", "displacement", NO_NUMBER),
        ("collapse", "eps", [0.0, *NO_NUMBER[:6], *ODD[1:]]),
        ("collapse", "gamma_nc", [0.0, *NO_NUMBER[:6], *ODD[1:]]),
        ("ntk", "confidence", [0, 1, *NO_NUMBER]),
        ("projected", "restarts", NO_COUNT),
        ("collapse", "most_cones", NO_COUNT),
        ("batchnorm", "width", NO_COUNT),
        ("collapse", "seed", [True, -1, 1.5, HUGE, *ODD]),
        ("projected", "seed", [True, -1, 1.5, HUGE, *ODD]),
        ("f1", "activation", [3, HUGE, *ODD[1:]]),
    ],
)
def test_one_sentence_names_the_argument(name, argument, values):
    needed = {"frozen": {"directions": 4}}.get(name, {})
    for value in values:
        with pytest.raises(InputError, match=rf"{argument} must (be|lie) .*, not ") as caught:
            getattr(margins, name)(DATA, **needed | {argument: value})
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize("name", ["linear", "multiclass_linear", "f1", "f2"])
def test_truth_values_of_numpy_and_numbers(name):
    """Such as a comparison of arrays gives; what is saved has those of Python."""
    for value in (np.True_, np.array([2.0])[0] > 1, 1, np.int8(1)):
        cert = getattr(margins, name)(DATA, bias=value)
        assert cert.bias is True and cert.verify(DATA).ok
        assert cert.lower == getattr(margins, name)(DATA, bias=True).lower
    assert spaces.ReLU(bias=np.False_).bias is False
    assert spaces.as_space("leaky", bias=np.True_).bias is True


def test_sizes_that_are_numbers_of_any_kind():
    for memory in (10**9, 1e9, np.float32(1e9), np.int64(10**9)):
        assert margins.linear(DATA, memory=memory).proved


@pytest.mark.parametrize("value", [3, *(value for value in ODD if not isinstance(value, str))])
def test_ids_are_texts(value):
    for ask in (theory.theorem, theory.order, lambda id: theory.guarantees(DATA, theorems=[id])):
        with pytest.raises(InputError, match="an id is a text such as 'MT-7', not"):
            ask(value)


def test_ids_come_in_a_list():
    for value in (3, "MT-7", object()):
        with pytest.raises(InputError, match="give ids as a list"):
            theory.guarantees(DATA, theorems=value)
