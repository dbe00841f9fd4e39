"""Normalised margins of any PyTorch model while it trains, from forward passes and norms alone (docs/monitor.md)."""

import widemargin.needs_torch  # noqa: F401  first: it says what to install where torch is missing

from .homogeneous import Homogeneous, check_homogeneous, find_homogeneous
from .late import vanishing_margin
from .monitor import MarginMonitor
from .own_norm import Geometry, own_geometry
from .record import Falls, Record, falls
from .scaling import Probe
from .store import config, is_monitor, load, series

__all__ = [
    "Falls",
    "Geometry",
    "Homogeneous",
    "MarginMonitor",
    "Probe",
    "Record",
    "check_homogeneous",
    "config",
    "falls",
    "find_homogeneous",
    "is_monitor",
    "load",
    "own_geometry",
    "series",
    "vanishing_margin",
]
