"""Proofs on paper: a tree over cones as it grew becomes a side of a certificate (docs/certificates.md, `cones`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from .cones import Shape


def cones_side(X0: np.ndarray, frame: Sequence[Sequence[int]], shape: Shape) -> dict[str, Any]:
    """The frame (r rows of integers, as many as X0 (n, D) has columns) and the tree in preorder, as JSON-ready values.

    The two children of a cut follow each other in the order of creation, the first before the second, whatever came between.
    """
    r, D = len(frame), X0.shape[1]
    if any(len(row) != D for row in frame):
        raise ValueError(f"a frame for points in {D} dimensions needs rows of {D} integers")
    parent, edge = torch.cat(shape.parent).numpy(), torch.cat(shape.edge).numpy()
    if (parent[: 1 << r] >= 0).any() or (parent[1 << r :] < 0).any():
        raise ValueError(f"the tree does not start from the {1 << r} orthants of {r} dimensions")
    children = (1 << r) + np.argsort(parent[1 << r :], kind="stable")  # pairs, by parent
    first, second = children[::2], children[1::2]
    codes = np.full(len(parent), -1)
    codes[parent[first]] = edge[first]
    left, right = np.zeros((2, len(parent)), dtype=np.int64)
    left[parent[first]], right[parent[first]] = first, second
    cut, below, after = codes.tolist(), left.tolist(), right.tolist()
    tree: list[int] = []
    stack = list(range((1 << r) - 1, -1, -1))
    while stack:
        node = stack.pop()
        tree.append(cut[node])
        if cut[node] >= 0:
            stack += [after[node], below[node]]
    return {"frame": [[int(v) for v in row] for row in frame], "tree": tree}
