"""Values of Python, numpy and torch as JSON has them: the one place where they are turned into lists, numbers and texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any


def plain_json(
    value: Any,
    *,
    not_finite: Callable[[float], Any] = lambda number: None,
    unknown: Callable[[Any], Any] = lambda thing: thing,
) -> Any:
    """Mappings, lists, arrays and numbers as dictionaries, lists and numbers of Python, at every depth.

    JSON has no infinities and no NaN: `not_finite` says what stands there, null unless told. `unknown` is asked of all else.
    Numbers as keys become texts; other keys that are no texts are left for `json` to refuse.

    >>> import math
    >>> import numpy as np
    >>> from widemargin.json_values import plain_json
    >>> plain_json({"a": np.array([1.5, np.inf]), 2: (np.int64(3), "b")})
    {'a': [1.5, None], '2': [3, 'b']}
    >>> plain_json([math.nan, {1}], not_finite=str, unknown=sorted)
    ['nan', [1]]
    """

    def turned(value: Any) -> Any:
        if hasattr(value, "tolist"):  # arrays and numbers of numpy and torch
            value = value.tolist()
        if isinstance(value, Mapping):
            return {str(key) if isinstance(key, int | float) else key: turned(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [turned(item) for item in value]
        if isinstance(value, float) and not math.isfinite(value):
            return not_finite(value)
        return value if value is None or isinstance(value, bool | int | float | str) else unknown(value)

    return turned(value)
