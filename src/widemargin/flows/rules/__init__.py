"""Training rules: what one step does to a batch of trials. One file per rule; `contract` says what a rule is."""

from ..contract import DIVERGED, FINISHED, RUNNING, Rule, State
from .adam import Adam
from .adamw import AdamW
from .coordinate_descent import CoordinateDescent
from .descent import GD, SGD, learning_rate_schedule, weight_decay_schedule
from .feature_ascent import FeatureAscent, feature_size
from .gradient_flow import GradientFlow
from .mirror import Mirror
from .neuron_norm_ascent import NeuronNormAscent, neuron_norm_bound
from .normalized_descent import NormalizedGD
from .output_layer_ascent import OutputLayerAscent, output_layer_bound
from .sign_descent import SignDescent
from .smooth_margin_ascent import SmoothMarginAscent
from .spectral import Spectral
from .steepest import Steepest
from .steps import ascent_scale, check_numbers, choose, guard, mean_field, move, require, slopes, tick, tick_log
from .two_phase import TwoPhase
from .wasserstein import PerturbedWassersteinFlow, WassersteinFlow, distributional_objective
from .weakly_regularized import WeaklyRegularized, follow_path

__all__ = [
    "DIVERGED",
    "FINISHED",
    "GD",
    "RUNNING",
    "SGD",
    "Adam",
    "AdamW",
    "CoordinateDescent",
    "FeatureAscent",
    "GradientFlow",
    "Mirror",
    "NeuronNormAscent",
    "NormalizedGD",
    "OutputLayerAscent",
    "PerturbedWassersteinFlow",
    "Rule",
    "SignDescent",
    "SmoothMarginAscent",
    "Spectral",
    "State",
    "Steepest",
    "TwoPhase",
    "WassersteinFlow",
    "WeaklyRegularized",
    "ascent_scale",
    "check_numbers",
    "choose",
    "distributional_objective",
    "feature_size",
    "follow_path",
    "guard",
    "learning_rate_schedule",
    "mean_field",
    "move",
    "neuron_norm_bound",
    "output_layer_bound",
    "require",
    "slopes",
    "tick",
    "tick_log",
    "weight_decay_schedule",
]
