"""BN: Figure 1 (margins of batch-normalised networks against width), Proposition 1.1 (dyadic data), how far training moves."""

# In the order of the paper, which is that of the registry.
# isort: off
from . import figure_1, dyadic, movement
# isort: on

__all__ = ["dyadic", "figure_1", "movement"]
