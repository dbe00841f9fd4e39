"""Normalised margins of any PyTorch model while it trains, from forward passes and norms alone (docs/monitor.md)."""

from .homogeneous import Homogeneous, Probe, check_homogeneous, find_homogeneous
from .monitor import MarginMonitor
from .record import Falls, Record, falls
from .store import config, is_monitor, load, series

__all__ = [
    "Falls",
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
    "series",
]
