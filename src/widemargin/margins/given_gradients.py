"""The tangent margin of a network: that of the gradients of its outputs, which are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from widemargin.spaces import ReLU, as_numbers
from widemargin.types import Certificate, Dataset, InputError
from widemargin.verify.kernels import GIVEN

from .answers import solves
from .door import Door, Progress, enter
from .kernel_machines import MATRICES, in_space
from .linear_classifiers import euclidean

STORED = 2**20  # numbers of a jacobian that a certificate keeps where their products say too little
# How the linear margin of gradients speaks of points.
GRADIENTS = {
    "is the origin, where every function of this space vanishes": "has the gradient 0",
    "are equal but have": "have equal gradients but",
    "of the points y_i x_i": "of the gradients times their labels",
}


@solves()
def tangent(
    data: Dataset,
    *,
    jacobian: ArrayLike | Callable[[np.ndarray], ArrayLike] | None = None,
    gram: ArrayLike | Callable[[np.ndarray], ArrayLike] | None = None,
    tol: float = 1e-6,
    time_limit: float | None = None,
    memory: float | None = None,
    progress: Progress | None = None,
) -> Certificate:
    """The tangent margin of a network at one point W: max_{|theta| <= 1} min_i y_i <theta, df(x_i; W)>.

    `jacobian` (n, P) holds the gradients df(x_i; W) of the outputs with respect to all parameters, without labels, or is a
    function of X that returns it; `gram` (n, n) their inner products instead. The margin is the hard margin
    min_{q in simplex} |sum_i q_i y_i df(x_i; W)|. Bounds hold for what is stored: the gradients where they have no more than n
    entries each, or where there is no time for their products, or where these vanish; otherwise the Gram matrix in float64.

    Reference: LR Assumption 1.3 at finite width (LR-9); compare sqrt(m) times `ntk`.

    >>> import numpy as np
    >>> import widemargin as wm
    >>> data = wm.Dataset([[1.0], [2.0]], [1, -1])
    >>> cert = wm.margins.tangent(data, jacobian=np.eye(2))  # min_q |q| of two weights
    >>> abs(cert.lower - 0.5**0.5) < 1e-6, cert.verify(data).answer
    (True, 'proved exactly')
    """
    if (jacobian is None) == (gram is None):
        raise InputError("tangent needs either jacobian (n, P) or gram (n, n), and not both")
    door = enter(data, ReLU(bias=False), tol, time_limit, progress, memory=memory)
    J = None
    if jacobian is not None:
        J = _jacobian(data, jacobian)
        n, P = J.shape
        if n >= P or door.limits.largest(GIVEN, lambda k: float(k) * k * P, lambda k: MATRICES * float(k) * k) < n:
            return _of_gradients(door, J)
        given: ArrayLike = J @ J.T
    else:
        given = gram(data.X) if callable(gram) else gram  # type: ignore[assignment]
    cert = in_space(door, given)
    if J is not None and cert.status == "not-separable" and cert.upper > 0 and J.size <= STORED:
        other = _of_gradients(door, J)  # their products lose half of the digits
        if other.status != "not-separable":
            return other
    return replace(cert, kind="tangent", convention="tangent", reason=cert.reason.replace("F2", "the tangent space"))


def _jacobian(data: Dataset, jacobian: ArrayLike | Callable[[np.ndarray], ArrayLike]) -> np.ndarray:
    values = jacobian(data.X) if callable(jacobian) else jacobian
    J = np.array(as_numbers("the jacobian", values))
    if J.ndim != 2 or len(J) != data.n or J.shape[1] == 0:
        raise InputError(f"the jacobian must have shape ({data.n}, P), one row per point, not {J.shape}")
    size = np.maximum(J.max(axis=1), -J.min(axis=1))
    if not np.isfinite(size).all():
        raise InputError("the jacobian has NaN or infinity")
    if size.max() > 1e120 or size[size > 0].min(initial=1.0) < 1e-120:
        raise InputError("the jacobian has rows of a size beyond 1e-120..1e120; multiply it by a constant")
    return J


def _of_gradients(door: Door, J: np.ndarray) -> Certificate:
    """The linear margin of the gradients, which is stated of the data."""
    data = door.data
    there = enter(Dataset(J, data.y, data.name), False, door.tol, None, door.progress)
    cert = euclidean(replace(there, limits=door.limits))
    reason = cert.reason
    for words, own in GRADIENTS.items():
        reason = reason.replace(words, own)
    return replace(
        cert,
        kind="tangent",
        convention="tangent",
        d=data.d,
        data_sha256=data.sha256(),
        data_called=data.called(),
        reason=reason,
        extra={"kernel": "jacobian", "jacobian": J, "u": cert.extra["u"]},
    )
