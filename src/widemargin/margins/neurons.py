"""What margins of ReLU networks keep between rounds: the neurons met, one for each activation pattern, with their program."""

from __future__ import annotations

import numpy as np

from ._columns import ColumnLP, ScipyLP, column_lp, new_directions
from .engine import Engine


class Neurons(Engine):
    """Neurons of points X (n, r) with labels or targets y (n,), which a problem sets before it calls `widen`."""

    equal = False  # whether a network must meet f(x_i) = t y_i, not only y_i f(x_i) >= t: then weights have any signs
    X: np.ndarray
    y: np.ndarray
    n: int

    def no_neurons(self, r: int) -> None:
        if r <= 3:  # maxima are exact there, and steady enough
            self.step = min(self.step, 0.1 * self.tol)
        self.V, self.s = np.zeros((0, r)), np.zeros(0)  # all neurons met
        # Their activation patterns, as they were met. A neuron that moves often ends on the boundary of its pattern's cone, where
        # some x_i . v is zero up to rounding: the pattern read off it there may be another, and its own would be lost for good.
        self.patterns = np.zeros((0, 0), dtype=bool)
        self.columns = (self.V, self.s)  # of the linear program
        self.support = np.zeros(0, dtype=int)  # the neurons of the last cone program's network
        self.q = np.zeros(0)  # the last dual

    def widen(self, old: int) -> None:
        """There are new points, all but the first `old`."""
        new = self.X[old:] @ self.V.T > 0  # (new rows, neurons)
        self.patterns = np.hstack([self.patterns.reshape(len(self.V), old), new.T])
        self.seen = {key(p, s): k for k, (p, s) in enumerate(zip(self.patterns, self.s))}
        self.outside = np.zeros(0, dtype=bool)  # which of the neurons the last cone program did without,
        self.recalled: set[int] = set()  # and those that it should not have
        if not old:
            self.lp, self.known, self.scale = self.empty_lp(), 0, 1.0  # it has seen the first `known` neurons
        else:
            self.lp.add_points(self.features(*self.columns)[old:] / self.scale)

    def most(self) -> int:
        """How many patterns a cone program may have."""
        raise NotImplementedError

    def empty_lp(self) -> ColumnLP | ScipyLP:
        return column_lp(self.n, self.y if self.equal else None)

    def features(self, V: np.ndarray, s: np.ndarray) -> np.ndarray:
        """What neurons add to the constraints, (n, k)."""
        return (1.0 if self.equal else self.y[:, None]) * self.phi(self.X @ V.T) * s

    def weights(self, q: np.ndarray) -> np.ndarray:
        """The weights c of the pricing problem at q."""
        return q if self.equal else q * self.y

    def add(self, V: np.ndarray, s: float, most: int) -> int:
        """Take up to `most` of the unit neurons V (best first) whose activation pattern is new.

        A pattern that is known but was left out of the last cone program is recalled: it counts as new, and v stands for it.
        """
        taken: list[int] = []
        recalled = 0
        patterns = V @ self.X.T > 0
        for i, pattern in enumerate(patterns):
            at = self.seen.get(key(pattern, s), -1)
            if 0 <= at < len(self.outside) and self.outside[at] and at not in self.recalled:
                self.V[at] = V[i]
                self.recalled.add(at)
                recalled += 1
            elif at < 0 and (pattern.any() or self.slope > 0):
                self.seen[key(pattern, s)] = len(self.V) + len(taken)
                taken.append(i)
            if len(taken) + recalled == most:
                break
        self.V, self.s = np.vstack([self.V, V[taken]]), np.append(self.s, np.full(len(taken), s))
        self.patterns = np.vstack([self.patterns, patterns[taken]])
        return len(taken) + recalled

    def choose(self) -> np.ndarray:
        """Indices of the patterns worth having in the master: the network's own, then the best at the last duals."""
        Z = self.features(self.V, self.s)
        value = np.maximum(self.q @ Z, self.centre @ Z)
        value[list(self.recalled)] = np.finfo(float).max
        value[self.support] = np.inf
        return np.sort(np.argsort(-value)[: self.most()])

    def leave_out_all_but(self, chosen: np.ndarray) -> None:
        """The next cone program has the patterns `chosen`."""
        self.outside, self.recalled = np.ones(len(self.V), dtype=bool), set()
        self.outside[chosen] = False

    def add_all(self, V: np.ndarray, s: float, most: int) -> int:
        """Take the neurons V, exact maxima, best first. A known pattern may have its maximum elsewhere by now: to the linear
        program that is another neuron.
        """
        count = len(self.V)
        new = self.add(V, s, most)
        known = np.vstack([self.columns[0][self.columns[1] == s], self.V[count:]])
        near = (0.01 * self.tol * self.lower / self.door.size.max()) ** 2 + 1e-24
        moved = new_directions(V, known, near, near, most)
        self.add_columns(moved, np.full(len(moved), s))
        return new + len(moved)

    def add_columns(self, V: np.ndarray, s: np.ndarray) -> None:
        # Tolerances of the program are absolute: keep the margin near 1.
        if self.lower > 0 and not 0.1 < self.lower / self.scale < 10:
            self.lp, self.scale = self.empty_lp(), self.lower
            self.lp.add(self.features(*self.columns) / self.scale)
        self.lp.add(self.features(V, s) / self.scale)
        self.columns = (np.vstack([self.columns[0], V]), np.append(self.columns[1], s))  # copies: neurons move later


def key(pattern: np.ndarray, s: float) -> bytes:
    return np.packbits(pattern).tobytes() + (b"+" if s > 0 else b"-")
