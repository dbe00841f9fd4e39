"""Bad input: one sentence each."""

import numpy as np
import pytest
import torch

from widemargin import Dataset, InputError, optima

X = np.array([[2.0, 0.5], [1.5, -0.4], [1.0, 1.9], [-1.0, 1.2]])
DATA, VALUES, ONE = Dataset(X, [1, -1, 1, -1]), Dataset(X, [0.5, 1.0, 2.0, 3.0]), Dataset(X, np.ones(4))


@pytest.mark.parametrize(
    ("data", "keys", "words"),
    [
        (DATA, {"weight_decay": 0.0}, "weight_decay must be a positive number, not 0.0; without decay there is no"),
        (DATA, {"weight_decay": -1}, "weight_decay must be a positive number"),
        (DATA, {"weight_decay": float("nan")}, "weight_decay must be a positive number, not nan"),
        (DATA, {"weight_decay": float("inf")}, "weight_decay must be a positive number"),
        (DATA, {"weight_decay": "much"}, "weight_decay must be a positive number, not 'much'"),
        (DATA, {"weight_decay": 1e-300}, "out of all proportion"),
        (DATA, {"loss": "cubic"}, "loss must be one of logistic, .*, exp, cross-entropy, not 'cubic'$"),
        (DATA, {"loss": "bce"}, "not 'bce'; BCEWithLogitsLoss is 'logistic' with labels -1 and \\+1"),
        (DATA, {"loss": torch.nn.CrossEntropyLoss()}, "; write 'cross-entropy'$"),
        (DATA, {"loss": "MSE"}, "'squared' is half of MSELoss"),
        (DATA, {"loss": None}, "loss must be one of"),
        (DATA, {"output_bias": "yes"}, "output_bias must be 'free', 'decayed' or None, not 'yes'"),
        (DATA, {"bias": "no"}, "bias must be True or False"),
        (VALUES, {"loss": "logistic"}, "the loss logistic needs labels -1 and \\+1"),
        (VALUES, {"loss": "hinge"}, "y has 4 other values; choose two classes, or loss='squared'"),
        (Dataset(X, [0, 0, 0, 0]), {"loss": "logistic"}, "but y has 0, and .* give 2 \\* y - 1"),
        ((X, [1, -1, 1]), {}, "X has 4 rows but y has shape \\(3,\\)"),
        (X, {"loss": "cross-entropy"}, "y, the labels, is missing; give widemargin.Dataset\\(X, y\\)"),
        (ONE, {"loss": "logistic"}, "all labels are equal"),
        (ONE, {"loss": "exp", "output_bias": "free"}, "no minimum; use output_bias=None or 'decayed'"),
        (DATA, {"weights": [1, 0, 1, 0]}, "all labels are equal"),
        (DATA, {"weights": [1, 1, 1]}, "weights must have shape \\(4,\\)"),
        (DATA, {"weights": [1, -1, 1, 1]}, "none negative"),
        (DATA, {"weights": [0, 0, 0, 0]}, "not all zero"),
        (DATA, {"weights": [1, np.nan, 1, 1]}, "weights must be finite"),
        (DATA, {"weights": ["a", "b", "c", "d"]}, "weights must be numbers"),
        (DATA, {"weights": [1, 1e-200, 1, 1]}, "differ by more than 1e100"),
        (DATA, {"tol": 0}, "tol must lie between 0 and 1"),
        (DATA, {"time_limit": -1}, "time_limit must be a positive number"),
        (DATA, {"device": "tpu"}, "device must be"),
    ],
)
def test_one_sentence(data, keys, words):
    with pytest.raises(InputError, match=words) as caught:
        optima.f1(data, **({"bias": True} | {"weight_decay": 0.1} | keys))
    text = str(caught.value)
    assert "\n" not in text and text.count(". ") == 0 and len(text) < 200
    if "weight_decay" not in keys:
        with pytest.raises(InputError, match=words):
            optima.largest_decay(data, **({"bias": True} | keys))


def test_a_decayed_output_bias_has_no_largest_decay():
    with pytest.raises(InputError, match="largest_decay needs output_bias 'free' or None"):
        optima.largest_decay(DATA, output_bias="decayed", bias=True)


@pytest.mark.parametrize("loss", ["logistic", "squared", "hinge", "squared-hinge", "exp"])
def test_one_class_is_a_problem_like_others(loss):
    for mode in (None, "decayed") if loss in ("logistic", "exp") else (None, "free", "decayed"):
        cert = optima.f1(ONE, loss=loss, weight_decay=0.1, output_bias=mode, bias=True)
        assert cert.verify(ONE).ok
        assert cert.status == "certified" or mode == "free", (
            loss,
            mode,
            cert,
        )  # there the objective is 0, up to rounding
        assert mode != "free" or cert.upper < 1e-20
