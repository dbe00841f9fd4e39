"""UH: margins of parities, margins that never fall, the mirror flow, the constants C1 and C2. The paper has no figures."""

# In the order of the paper, which is that of the registry.
# isort: off
from . import parity, monotone, mirror, constants
# isort: on

__all__ = ["constants", "mirror", "monotone", "parity"]
