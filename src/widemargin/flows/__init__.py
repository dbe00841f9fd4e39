"""How training reaches a margin: batched networks, losses in the log domain, algorithms, records.

B trials are trained at once: every tensor begins with a dimension B. The words that are shared:

data         a `Dataset`: points X (n, d), labels y (n,) of two classes, or more, or targets; or X and y in its place, or a
             list of data sets, one per trial
activation   "relu", "srelu", "leaky" (slope 0.01) or "leaky:SLOPE"
bias         every point is extended by a last coordinate 1: a network then takes d + 1 features
seed         of initial parameters and random examples; trial b of a seed is always the same, alone or in a batch
device       where training runs: "cpu", "cuda" or "cuda:NUMBER"
tol          when a search along the way ends
progress     a function (seconds, share done, medians of the last record) that is called on the way
"""

import widemargin.needs_torch  # noqa: F401  first: it says what to install where torch is missing

from .contract import Rule, State
from .events import Event, parse_until
from .names import make_rule, rule_kinds
from .nets import MLP, BatchNorm, Frozen, Net, Normalized, Product, Scalar, TwoLayer, make_net, rebuild_net
from .observe import OBSERVERS, View
from .plan import Keep, Record, Stop
from .potentials import divergence, growth
from .problem import Problem, as_classes, pose
from .rules import (
    GD,
    SGD,
    Adam,
    AdamW,
    CoordinateDescent,
    GradientFlow,
    Mirror,
    NeuronNormAscent,
    NormalizedGD,
    OutputLayerAscent,
    PerturbedWassersteinFlow,
    SignDescent,
    SmoothMarginAscent,
    Spectral,
    Steepest,
    TwoPhase,
    WassersteinFlow,
    WeaklyRegularized,
)
from .runs import load, load_certificate, load_data, save_certificate
from .stationarity import kkt_residual
from .streams import LawStream, ParityStream
from .training import train

__all__ = [
    "GD",
    "MLP",
    "OBSERVERS",
    "SGD",
    "Adam",
    "AdamW",
    "BatchNorm",
    "CoordinateDescent",
    "Event",
    "Frozen",
    "GradientFlow",
    "Keep",
    "LawStream",
    "Mirror",
    "Net",
    "NeuronNormAscent",
    "Normalized",
    "NormalizedGD",
    "OutputLayerAscent",
    "ParityStream",
    "PerturbedWassersteinFlow",
    "Problem",
    "Product",
    "Record",
    "Rule",
    "Scalar",
    "SignDescent",
    "SmoothMarginAscent",
    "Spectral",
    "State",
    "Steepest",
    "Stop",
    "TwoLayer",
    "TwoPhase",
    "View",
    "WassersteinFlow",
    "WeaklyRegularized",
    "as_classes",
    "divergence",
    "growth",
    "kkt_residual",
    "load",
    "load_certificate",
    "load_data",
    "make_net",
    "make_rule",
    "parse_until",
    "pose",
    "rebuild_net",
    "rule_kinds",
    "save_certificate",
    "train",
]
