"""Feature spaces: the neurons a margin may use."""

from .base import Space, extend, sphere
from .leaky import LeakyReLU
from .names import as_space
from .relu import ReLU, SReLU

__all__ = ["LeakyReLU", "ReLU", "SReLU", "Space", "as_space", "extend", "sphere"]
