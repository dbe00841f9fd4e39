"""Values of numpy and torch as JSON has them."""

import json
import math

import numpy as np
import pytest
import torch

from widemargin.json_values import plain_json


def test_everything_that_results_hold_can_be_written_and_read_back():
    value = {
        "array": np.arange(4.0).reshape(2, 2),
        "number": np.float32(0.5),
        "truth": np.bool_(True),
        "torch": torch.tensor([1, 2]),
        "pair": (np.int64(3), None),
        7: {"deep": [np.array(2.5)]},
    }
    found = json.loads(json.dumps(plain_json(value), allow_nan=False))
    assert found == {
        "array": [[0.0, 1.0], [2.0, 3.0]],
        "number": 0.5,
        "truth": True,
        "torch": [1, 2],
        "pair": [3, None],
        "7": {"deep": [2.5]},
    }
    assert type(plain_json(np.bool_(True))) is bool and type(plain_json(np.int64(3))) is int


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, np.float64("inf"), np.float32("nan")])
def test_what_json_has_not(value):
    assert plain_json([value, np.array([1.0, value])]) == [None, [1.0, None]]
    assert plain_json({"a": value}, not_finite=str) == {"a": str(float(value))}


def test_unknown_things_and_keys():
    with pytest.raises(TypeError):
        json.dumps(plain_json({(1, 2): 3}))
    with pytest.raises(TypeError):
        json.dumps(plain_json(object()))
    assert plain_json({1, 2}, unknown=sorted) == [1, 2]
