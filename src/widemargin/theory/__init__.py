"""What a margin guarantees: theorems as functions, inequalities as checks along runs.

Theorems are reached by id, `theory.theorem("CB-22")(...)`, or by theme, `theory.generalization.class_margin_bound(...)`.
The words that are shared:

data         a `Dataset`: points X (n, d) and labels y (n,) of -1 and +1
time_limit   seconds for each margin that a theorem needs
seed         of random starts of the searches for these margins
progress     a function (id, share done) that is called before each theorem or check
"""

# All of them are imported: theorems and checks register themselves then.
from . import (  # noqa: F401
    ascent,
    check_ascent,
    check_frozen,
    check_homogeneous,
    check_lazy,
    check_mirror,
    check_normalized,
    check_particles,
    check_potentials,
    check_steepest,
    comparators,
    complexity,
    generalization,
    generalization_on_data,
    lazy,
    lazy_on_runs,
    limits,
    mirror,
    mirror_on_runs,
    normalized,
    regularization,
    selection,
    steepest,
    wasserstein,
)
from .catalogue import PAPERS, order, theorem, theorems
from .evaluate import Guarantees, check, guarantees
from .guarantee import THEOREMS, Assumption, Guarantee, Huge, Theorem
from .inequality import CHECKS, Inequality
from .known_facts import Facts, facts
from .track import Track, follow

__all__ = [
    "CHECKS",
    "PAPERS",
    "THEOREMS",
    "Assumption",
    "Facts",
    "Guarantee",
    "Guarantees",
    "Huge",
    "Inequality",
    "Theorem",
    "Track",
    "ascent",
    "check",
    "comparators",
    "complexity",
    "facts",
    "follow",
    "generalization",
    "guarantees",
    "lazy",
    "limits",
    "mirror",
    "normalized",
    "order",
    "regularization",
    "selection",
    "steepest",
    "theorem",
    "theorems",
    "wasserstein",
]
