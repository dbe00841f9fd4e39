"""widemargin: certified margins of neural networks, and the training that reaches them."""

from widemargin import data, flows, margins, monitor, spaces, theory, verify
from widemargin.types import Certificate, Dataset, InputError, Measure, Trajectory

__version__ = "0.1.0"
__all__ = [
    "Certificate",
    "Dataset",
    "InputError",
    "Measure",
    "Trajectory",
    "data",
    "flows",
    "margins",
    "monitor",
    "spaces",
    "theory",
    "verify",
]
