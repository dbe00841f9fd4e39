"""Which clock and which margin of a run are drawn, and the certified bounds of that margin."""

from __future__ import annotations

import math

import numpy as np

from widemargin.spaces import as_space
from widemargin.types import Certificate, Trajectory

OVERFLOW = 230.0  # ln of the largest number on an axis: beyond 1e100 it says nothing, and soon overflows
# The first that was recorded is drawn.
CONVENTIONS = ("M2", "M1", "M4", "M5", "M6", "M10", "M7", "M3", "MT2", "partial")
COMPARED = ("M1", "M2", "M4", "M5")  # with the certified largest margin; M3 and M6 would need to know of the bias


def convention(traj: Trajectory) -> str:
    return next((key for key in CONVENTIONS if f"margin_{key}" in traj.records), "")


def largest(cert: Certificate | None, key: str) -> tuple[float, float] | None:
    """Certified bounds of the largest margin in a convention, from those in M1; none where nothing is known above."""
    if cert is None or as_space(cert.activation).degree != 1 or not math.isfinite(cert.upper):
        return None
    known = key in COMPARED and (key == cert.convention or key in cert.conversions)
    return cert.bounds(key) if known else None


def clock(traj: Trajectory) -> tuple[np.ndarray, str, bool]:
    """Time of every record and trial (T, B), its name, and whether its axis is logarithmic."""
    if "log_t_mean" in traj.records and "t_cb" in traj.records:
        if np.nanmax(traj["log_t_mean"]) > OVERFLOW:
            return traj["t_cb"], "time (CB's clock)", False
        if np.isfinite(traj["log_t_mean"][-1]).any():
            return np.exp(traj["log_t_mean"]), "time (clock of the mean risk)", True
    return np.broadcast_to(traj.t[:, None], (len(traj.t), traj.trials)), "step or time", True
