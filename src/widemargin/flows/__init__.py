"""How training reaches a margin: batched networks, losses in the log domain, algorithms, records."""

import widemargin.needs_torch  # noqa: F401  first: it says what to install where torch is missing

from .flow import GradientFlow, kkt_residual, parse_until
from .names import make_rule, rule_kinds
from .nets import MLP, BatchNorm, Frozen, Net, Normalized, Product, Scalar, TwoLayer, make_net, rebuild_net
from .observe import OBSERVERS, View
from .paths import WeaklyRegularized
from .potentials import divergence, growth
from .problem import Problem, as_classes, pose
from .rules import (
    CB,
    GD,
    SGD,
    WGF,
    Adam,
    Mirror,
    NormalizedGD,
    PerturbedWGF,
    Prop6,
    Prop7,
    Rule,
    TwoPhase,
)
from .runs import load, load_certificate, load_data, save_certificate
from .streams import LawStream, ParityStream
from .train import train

__all__ = [
    "CB",
    "GD",
    "MLP",
    "OBSERVERS",
    "SGD",
    "WGF",
    "Adam",
    "BatchNorm",
    "Frozen",
    "GradientFlow",
    "LawStream",
    "Mirror",
    "Net",
    "Normalized",
    "NormalizedGD",
    "ParityStream",
    "PerturbedWGF",
    "Problem",
    "Product",
    "Prop6",
    "Prop7",
    "Rule",
    "Scalar",
    "TwoLayer",
    "TwoPhase",
    "View",
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
