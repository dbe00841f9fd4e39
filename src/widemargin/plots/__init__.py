"""Pictures of certificates, paths, measures and runs. Each function returns a matplotlib Figure; nothing global is touched."""

from .certificates import decision, intervals, neurons, path, progress
from .monitors import records
from .runs import trajectory
from .style import INK, MINUS, PLUS, QUIET, THIRD

__all__ = [
    "INK",
    "MINUS",
    "PLUS",
    "QUIET",
    "THIRD",
    "decision",
    "intervals",
    "neurons",
    "path",
    "progress",
    "records",
    "trajectory",
]
