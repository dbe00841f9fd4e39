"""A run of a batch-normalised network as BN's proofs look at it: normalisers, slopes, the reference and its terms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ._rooms import qp, torch
from .track import Track


@dataclass(frozen=True)
class BatchNormed:
    """The run as numpy arrays: P_ij = <v_j / N_j, x_i - mu>, derivatives of p_i, constants and comparator at the start."""

    track: Track

    # ------------------------------------------------------------ at the start

    @cached_property
    def statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """Centred points (1 or B, n, d) and Sigma (1 or B, d, d)."""
        mean, root = self.track.net._statistics(dict(self.track.start), self.track.problem.X)  # type: ignore[attr-defined]
        centred = (self.track.problem.X - mean).double().numpy()
        return centred, (root.mT @ root).double().numpy()

    @cached_property
    def y(self) -> np.ndarray:
        return self.track.problem.y.double().numpy()

    @cached_property
    def eps(self) -> float:
        return float(self.track.net.eps)  # type: ignore[attr-defined]

    @cached_property
    def first(self) -> dict[str, np.ndarray]:
        return {name: self.track.start[name].double().numpy() for name in ("a", "c", "V")}

    def N(self, V: np.ndarray) -> np.ndarray:
        """N(v_j) (..., B, m)."""
        return np.sqrt(((V @ self.statistics[1]) * V).sum(-1) + self.eps)

    @cached_property
    def N0(self) -> np.ndarray:
        return self.N(self.first["V"])

    @cached_property
    def P0(self) -> np.ndarray:
        """(B, n, m)."""
        return self.statistics[0] @ (self.first["V"] / self.N0[..., None]).swapaxes(1, 2)

    @cached_property
    def eps_N(self) -> np.ndarray:
        return (1 / self.N0).max(1)

    @cached_property
    def eps_V(self) -> np.ndarray:
        return np.linalg.norm(self.first["V"], axis=2).max(1)

    @cached_property
    def small(self) -> np.ndarray:
        """Whether |x_i - mu| <= 1 and the start is regular (B,): the hypotheses of every lemma."""
        inside = np.linalg.norm(self.statistics[0], axis=2).max(1) <= 1 + 1e-9
        return inside & np.isfinite(self.eps_N) & (self.first["c"] == 1).all(1)

    @cached_property
    def comparator(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """avec, cvec (B, m) of norm 1 (or 0) and gamma_a, gamma_c (B,): hard margins on the features at the start (BN-7)."""
        on = (self.P0 * self.first["c"][:, None, :] > 0).astype(float)
        features = (self.P0 * self.first["c"][:, None, :] * on, self.first["a"][:, None, :] * self.P0 * on)
        columns: list[list[Any]] = [[], [], [], []]
        for k, Z in enumerate(features):
            for z, y in zip(Z, np.broadcast_to(self.y, (len(Z), self.track.n))):
                u, gamma = unit_direction(z * y[:, None])
                columns[k].append(u)
                columns[2 + k].append(gamma)
        return tuple(np.stack(column) for column in columns)  # type: ignore[return-value]

    @property
    def length(self) -> np.ndarray:
        """|Uvec| (B,): sqrt 2 where both margins are positive."""
        return np.sqrt((self.comparator[2] > 0).astype(float) + (self.comparator[3] > 0))

    @property
    def gamma(self) -> np.ndarray:
        """gamma_a + gamma_c (B,)."""
        return self.comparator[2] + self.comparator[3]

    @cached_property
    def root(self) -> np.ndarray:
        """gamma sqrt(m) (B,)."""
        return self.gamma * math.sqrt(self.track.net.m)

    @cached_property
    def R(self) -> np.ndarray:
        return np.cbrt(self.gamma) * self.track.net.m ** (1 / 6) / (27 * self.eps_N)

    @property
    def beta_V(self) -> np.ndarray:
        return 1 / (2 * self.eps_N)

    @property
    def alpha(self) -> np.ndarray:
        return (self.R / self.beta_V) ** 2

    # ------------------------------------------------------------ movement, from default records

    def moved(self, name: str) -> np.ndarray:
        return self.track.run[f"moved_{name}"]

    @cached_property
    def moved_U(self) -> np.ndarray:
        return np.hypot(self.moved("a"), self.moved("c"))

    @cached_property
    def inside(self) -> np.ndarray:
        """Whether the run was in the ball sqrt(|U - U_0|^2 + alpha |V - V_0|^2) < R until now (T, B)."""
        out = self.moved_U**2 + self.alpha * self.moved("V") ** 2 < self.R**2
        return np.logical_and.accumulate(out, axis=0) & self.small

    @cached_property
    def c(self) -> np.ndarray:
        """The smallest c of Lemma B.2, |V - V_0| eps_N (T, B); the lemmas need c < 1."""
        return self.moved("V") * self.eps_N

    @cached_property
    def near(self) -> np.ndarray:
        return (self.c < 1) & self.small

    @cached_property
    def rho_N(self) -> np.ndarray:
        return 1 / np.where(self.c < 1, 1 - self.c, np.nan)

    @cached_property
    def K(self) -> np.ndarray:
        """rho_N eps_N + beta_N eps_V (T, B): change of a preactivation per change of v_j (E-BN-7)."""
        return self.rho_N * self.eps_N + self.rho_N * self.eps_N**2 * self.eps_V

    @property
    def ratio(self) -> np.ndarray:
        """eps_ratio: bound of the preactivations at the start (B,)."""
        return self.eps_V * self.eps_N

    @cached_property
    def beta_Pi(self) -> np.ndarray:
        return np.maximum(2, 2 * (self.eps_V + self.moved("V")) * self.rho_N * self.eps_N)

    @cached_property
    def loss_of_alignment(self) -> np.ndarray:
        """What (33) subtracts from gamma sqrt(m), with measured movements (T, B).

        The units of the c-features can switch without a change of sign of v_j only where c_j <= 0, which |c - c_0| < 1 excludes:
        then the last eps_ratio of Lemma D.1.5 is not needed.
        """
        D, wide = self.moved("V"), self.K * self.moved("V") + self.ratio
        size = np.linalg.norm(self.first["a"], axis=1)
        switch = np.where(self.moved("c") < 1, 0.0, self.ratio)
        of_a = self.moved("c") * wide + self.K * D
        of_c = self.moved("a") * wide + size * (self.K * D + switch)
        return of_a * (self.comparator[2] > 0) + of_c * (self.comparator[3] > 0)

    # ------------------------------------------------------------ at every record, from the weights

    @cached_property
    def W(self) -> dict[str, np.ndarray]:
        """a, c (T, B, m) and V (T, B, m, d)."""
        return {
            name: np.stack([Wt[name].numpy() for Wt in self.track.W or []]).astype(float) for name in ("a", "c", "V")
        }

    @cached_property
    def Nt(self) -> np.ndarray:
        return self.N(self.W["V"])

    @cached_property
    def P(self) -> np.ndarray:
        """(T, B, n, m)."""
        return self.statistics[0] @ (self.W["V"] / self.Nt[..., None]).swapaxes(2, 3)

    @cached_property
    def on(self) -> np.ndarray:
        return (self.P * self.W["c"][..., None, :] > 0).astype(float)

    @cached_property
    def d_a(self) -> np.ndarray:
        """dp_i/da_j (T, B, n, m)."""
        return self.y[..., None] * self.W["c"][..., None, :] * self.P * self.on

    @cached_property
    def d_c(self) -> np.ndarray:
        return self.y[..., None] * self.W["a"][..., None, :] * self.P * self.on

    @cached_property
    def outer(self) -> np.ndarray:
        """y_i a_j c_j o_ij / N_j (T, B, n, m): the factor of dp_i/dv_j."""
        return self.y[..., None] * (self.W["a"] * self.W["c"] / self.Nt)[..., None, :] * self.on

    @cached_property
    def tilt(self) -> np.ndarray:
        """Sigma v_j / N_j (T, B, m, d)."""
        return self.W["V"] @ self.statistics[1] / self.Nt[..., None]

    @cached_property
    def projected2(self) -> np.ndarray:
        """|(I - Sigma v_j v_j' / N_j^2) xbar_i|^2 (T, B, n, m)."""
        X = self.statistics[0]
        cross = X @ self.tilt.swapaxes(2, 3)
        long = (X**2).sum(-1)[..., None]
        return np.maximum(long - 2 * self.P * cross + self.P**2 * (self.tilt**2).sum(-1)[..., None, :], 0)

    @cached_property
    def norm2_V(self) -> np.ndarray:
        """|dp_i/dV|^2 (T, B, n)."""
        return (self.outer**2 * self.projected2).sum(3)

    def along_V(self, direction: np.ndarray) -> np.ndarray:
        """<direction, dp_i/dV> (T, B, n) for (T, B, m, d)."""
        X = self.statistics[0]
        turned = X @ direction.swapaxes(2, 3) - self.P * (direction * self.tilt).sum(-1)[..., None, :]
        return (self.outer * turned).sum(3)

    @cached_property
    def p(self) -> np.ndarray:
        return (self.d_a * self.W["a"][..., None, :]).sum(3)

    @cached_property
    def slope(self) -> np.ndarray:
        """|l'(p_i)| (T, B, n)."""
        return self.track.problem.loss.log_slope(torch.as_tensor(self.p)).exp().numpy()  # type: ignore[union-attr]

    def value(self, p: np.ndarray) -> np.ndarray:
        return self.track.problem.loss.log(torch.as_tensor(p)).exp().numpy()  # type: ignore[union-attr]

    @cached_property
    def alignment(self) -> np.ndarray:
        """<Uvec, dp_i/dU> (T, B, n)."""
        avec, cvec, _, _ = self.comparator
        return (self.d_a * avec[:, None, :] + self.d_c * cvec[:, None, :]).sum(3)

    @cached_property
    def good(self) -> np.ndarray:
        """X_i - p_i = <Ubar, dp_i/dU> - p_i + alpha <V_0 - V, dp_i/dV> (T, B, n), Ubar = U_0 + (R / 8) Uvec (Lemma D.3)."""
        first = (self.d_a * self.first["a"][:, None, :] + self.d_c * self.first["c"][:, None, :]).sum(3)
        back = self.along_V(self.first["V"] - self.W["V"])
        return first + (self.R / 8)[:, None] * self.alignment - self.p + self.alpha[:, None] * back

    @cached_property
    def gradient(self) -> tuple[np.ndarray, np.ndarray]:
        """|grad_U mean risk|^2 and |grad_V mean risk|^2 (T, B)."""
        weights = torch.as_tensor(self.slope / self.track.n)
        U2, V2 = [], []
        for W, weight in zip(self.track.W or [], weights):
            F = self.track.problem.pull(W, weight)
            U2.append((F["a"] ** 2).sum(1).numpy() + (F["c"] ** 2).sum(1).numpy())
            V2.append((F["V"] ** 2).sum((1, 2)).numpy())
        return np.stack(U2), np.stack(V2)


def unit_direction(Z: np.ndarray) -> tuple[np.ndarray, float]:
    """The unit vector u with the largest min_i (Z u)_i and that minimum over sqrt(m); 0 where it is not positive."""
    m = Z.shape[1]
    if not (np.linalg.norm(Z, axis=1) > 0).all():
        return np.zeros(m), 0.0
    u = qp.direction(Z, qp.solve_factor(Z, 1e-10), 1e-10)
    size = float(np.linalg.norm(u))
    least = float((Z @ u).min()) / size if size > 0 else 0.0
    return (u / size, least / math.sqrt(m)) if least > 0 else (np.zeros(m), 0.0)


def batch_normed(track: Track, weights: bool = True) -> BatchNormed | None:
    """None for other networks, statistics of minibatches, other losses than the logistic, and where weights are missing."""
    net = track.net
    if net.name != "batchnorm" or getattr(net, "minibatch", False) or track.loss != "logistic" or not len(track.t):
        return None
    if any(track.get(f"moved_{name}") is None for name in ("a", "c", "V")) or (weights and track.W is None):
        return None
    return BatchNormed(track)
