"""Feature spaces: the neurons a margin may use."""

from .base import Space, sphere
from .relu import ReLU, SReLU

__all__ = ["ReLU", "SReLU", "Space", "sphere"]
