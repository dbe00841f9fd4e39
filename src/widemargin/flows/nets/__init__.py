"""The networks of the five papers, batched over trials, with gradients in closed form where they are shallow.

Parameters are a dictionary of tensors with a leading dimension B, one entry per trial. A net knows its initial law, its outputs
and the pull-back of weights on the points, sum_i g_i df(x_i)/dW, which is all that a training rule needs. X is (1, n, d) or
(B, n, d). The ReLU has derivative 0 at 0 (LR-3 allows any fixed value in [0, 1]), a leaky one its slope; `rules.gradient_flow`
says what the gradient flow does there.
"""

from .base import Net, Params, trial_numbers
from .batchnorm import BatchNorm
from .frozen import Frozen
from .mlp import MLP
from .names import CLASSES, KINDS, make_net, rebuild_net
from .products import Head, Normalized, Product, normalized_features
from .scalar import Scalar
from .two_layer import TwoLayer

__all__ = [
    "CLASSES",
    "KINDS",
    "MLP",
    "BatchNorm",
    "Frozen",
    "Head",
    "Net",
    "Normalized",
    "Params",
    "Product",
    "Scalar",
    "TwoLayer",
    "make_net",
    "normalized_features",
    "rebuild_net",
    "trial_numbers",
]
