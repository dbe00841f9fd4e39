"""Rank 1 of the projected distance: a tree over the signs of v . (x_i - x_k)."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import qp
from .door import EPS, Limits
from .pairs import Pairs

NODES, TREE_DIMENSIONS = 2000, 12


@dataclass
class SignTree:
    """Rank 1: for every pair v . z >= t or -v . z >= t. With some signs s fixed, t <= ||sum q s z|| for weights q on these pairs.

    Best first: the largest bound is branched on the pair that its best v sees least. The first sign is +1, by symmetry.
    """

    pairs: Pairs
    v: np.ndarray  # (k,) the best direction so far, and
    low: float  # its distance
    tol: float
    limits: Limits
    stopped: str = field(default="", init=False)
    nodes: list[Node] = field(default_factory=list, init=False)

    def grow(self) -> None:
        root = self._node(self.pairs.order(self.pairs.squares(), 1)[0][None], (1.0,))
        queue = [(-root.value, 0)]
        try:
            while queue:
                bound, index = heapq.heappop(queue)
                if self.low >= (1 - 0.5 * self.tol) * -bound:
                    break
                if self.limits.late():
                    self.stopped = "time-limit"
                    break
                if len(self.nodes) > NODES:
                    self.stopped = "stalled"
                    break
                node = self.nodes[index]
                at = np.vstack([node.at, node.blind[None]])
                for sign in (1.0, -1.0):
                    child = self._node(at, (*node.signs, sign))
                    node.children.append(len(self.nodes) - 1)
                    heapq.heappush(queue, (-child.value, len(self.nodes) - 1))
        except KeyboardInterrupt:
            self.stopped = "interrupted"

    def _node(self, at: np.ndarray, signs: tuple[float, ...]) -> Node:
        S = self.pairs.z(at) * np.array(signs)[:, None]
        q = qp.solve_factor(S, 1e-10, self.limits.deadline).q
        v = q @ S
        size = float(np.linalg.norm(v))
        value = size / float(q.sum())
        v = v / size if size > 0 else self.v
        squares = self.pairs.squares(v[None])
        squares[tuple(at.T)] = math.inf  # fixed already
        blind = np.array(np.unravel_index(squares.argmin(), squares.shape))
        least = min(float(squares.min()), float((S @ v).min()) ** 2 if size > 0 else 0.0)
        if least > self.low**2:
            self.v, self.low = v, math.sqrt(least)
        if not np.isfinite(squares).any():
            value = min(value, self.low)  # all pairs are fixed
        node = Node(at, signs, q, value, blind)
        self.nodes.append(node)
        return node

    def proof(self, pairs: Pairs) -> tuple[float, dict[str, Any]]:
        """The bound in scaled units, rounding included, and the tree in preorder."""
        number: dict[tuple[int, int], int] = {}
        tree: list[int] = []
        leaves: list[list[float]] = []
        worst = 0.0

        def place(pair: np.ndarray) -> int:
            return number.setdefault((int(pair[0]), int(pair[1])), len(number))

        place(self.nodes[0].at[0])
        stack = [0]
        while stack:
            node = self.nodes[stack.pop()]
            if node.children and len(node.children) == 2:
                tree.append(place(node.blind))
                stack += node.children[::-1]
                continue
            tree.append(-1)
            leaves.append(node.q.tolist())
            Z = pairs.X[pairs.plus[node.at[:, 0]]] - pairs.X[pairs.minus[node.at[:, 1]]]
            size = float(np.abs(Z).max()) * math.sqrt(Z.shape[1])
            value = float(np.linalg.norm((node.q * np.array(node.signs)) @ Z)) / float(node.q.sum())
            worst = max(worst, value * (1 + 1e-14) + 4 * EPS * (len(Z) + Z.shape[1]) * size)
        names = [list(name) for name in pairs.names(np.array(list(number)))]
        return worst, {"type": "signs", "pairs": names, "tree": tree, "leaves": leaves}


@dataclass
class Node:
    at: np.ndarray  # the fixed pairs (m, 2), in the order of the path
    signs: tuple[float, ...]
    q: np.ndarray  # (m,)
    value: float
    blind: np.ndarray  # the pair to branch on
    children: list[int] = field(default_factory=list)
