"""widemargin: certified margins of neural networks."""

from widemargin import data, margins, spaces, verify
from widemargin.types import Certificate, Dataset, InputError, Measure

__version__ = "0.1.0"
__all__ = ["Certificate", "Dataset", "InputError", "Measure", "data", "margins", "spaces", "verify"]
