"""torch, scipy and the rooms that need torch, imported when they are first used.

The theorems can be listed, and most of them evaluated on numbers, without torch; and the list opens at once.
"""

from typing import TYPE_CHECKING

from widemargin.extras import Later

if TYPE_CHECKING:
    import torch as torch
    from scipy import optimize as optimize
    from scipy import special as special
    from scipy.spatial import distance as distance

    from widemargin import flows as flows
    from widemargin import margins as margins
    from widemargin.flows import losses as losses
    from widemargin.flows import names as names
    from widemargin.flows import rules as rules
    from widemargin.margins import programs as programs
    from widemargin.margins import qp as qp
    from widemargin.pricing import enumeration as enumeration
else:
    torch = Later("torch")
    optimize, special, distance = Later("scipy.optimize"), Later("scipy.special"), Later("scipy.spatial.distance")
    flows, losses, rules = Later("widemargin.flows"), Later("widemargin.flows.losses"), Later("widemargin.flows.rules")
    names = Later("widemargin.flows.names")
    margins, programs = Later("widemargin.margins"), Later("widemargin.margins.programs")
    qp, enumeration = Later("widemargin.margins.qp"), Later("widemargin.pricing.enumeration")
