"""The networks and rules that several figures of CB train, and what is read from them.

Data and training are those of the authors' code (CB-27, E-CB-10): points [1, x] in disks whose radius is drawn uniformly,
labels of disks balanced, d counts the constant coordinate, all weights N(0, 1), ascent of the smooth margin of the
exponential loss by m grad S with steps 0.5 / sqrt(t + 2). Margins are in CB's convention M3, half of M1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from widemargin import flows, margins
from widemargin.flows import rules
from widemargin.papers.jobs import Job
from widemargin.types import F1_CONVERSIONS, Certificate, Dataset, Trajectory

# What is trained under each name of the figures; a test swaps them to see the verdicts fail.
ARMS = {"both": "both", "output": "output"}


@dataclass(frozen=True)
class ConstantStep(flows.Rule):
    """W <- W + lr m grad S with a constant lr, as in CB's Figure 3 (CB-30)."""

    lr: float = 1e-3

    def step(self, problem: flows.Problem, W: dict[str, Tensor], state: Any) -> Any:
        p, saved = problem.look(W)
        weights, log_risk = rules.slopes(problem, p, "soft_margin")
        rate = torch.full_like(log_risk, self.lr * rules.ascent_scale(problem.net))
        moved = rules.move(W, problem.pull(W, weights, saved), rate)
        return rules.guard(W, state, moved, rules.tick_log(state, rate.log() - log_risk, log_risk, rate), log_risk)


def two_layer(d: int, m: int, train: str) -> flows.TwoLayer:
    return flows.TwoLayer(d, m, law="cb", mean_field=True, train=train)


def authors_ascent(size: dict[str, Any]) -> flows.SmoothMarginAscent:
    """The authors' ascent, lr = 0.5. At the quick scale fewer steps are larger, up to lr sqrt(steps) as theirs.

    Margins are the more exact the smaller the last step is, so figure 2d, which shows margins, does not go that far.
    """
    return flows.SmoothMarginAscent(size["lr"], "code")


def evaluate(a: np.ndarray, V: np.ndarray, X: np.ndarray, device: str = "cpu") -> np.ndarray:
    """f(x) = (1/m) sum_j a_j relu(v_j . x)."""

    def there(array: np.ndarray) -> Tensor:
        return torch.as_tensor(array, dtype=torch.float64, device=device)

    outer, inner = there(a), there(V)
    parts = [there(part) for part in np.array_split(X, 1 + len(X) // 20_000)]
    return torch.cat([(part @ inner.T).clamp_min_(0) @ outer / len(outer) for part in parts]).cpu().numpy()


def outputs(job: Job, traj: Trajectory, trial: int, X: np.ndarray) -> np.ndarray:
    """f at the end of a trial."""
    return evaluate(traj.final["a"][trial], traj.final["V"][trial], X, job.device)


def f1_margin(traj: Trajectory) -> np.ndarray:
    """CB's margin M3 (T, B). A network whose output layer alone was trained has none; half of M1 is what balancing would make."""
    return traj["margin_M3"] if "margin_M3" in traj.records else traj["margin_M1"] * F1_CONVERSIONS["M3"]


def certified_f1(job: Job, data: Dataset, tol: float, seconds: float) -> Certificate:
    return margins.f1(data, tol=tol, time_limit=seconds, seed=job.seed, device=job.device)


def feature_certificate(data: Dataset, V: np.ndarray) -> Certificate:
    """The largest margin of fixed features relu(v_j . x) with mean_j a_j^2 <= 1; v_j have the lengths they were drawn with."""
    H = (data.X @ V.T).clip(0)  # (n, m)
    return margins.f2(data, kernel=H @ H.T / len(V))


def feature_classifier(data: Dataset, V: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Its classifier, the limit of ascent on the output layer (Proposition 7)."""
    weights = np.asarray(feature_certificate(data, V).extra["alpha"]) * data.y
    return (points @ V.T).clip(0) @ ((data.X @ V.T).clip(0).T @ weights)


def ladder(steps: int, points: int = 80) -> list[float]:
    return [float(t) for t in np.unique(np.geomspace(1, steps, points).round())]
