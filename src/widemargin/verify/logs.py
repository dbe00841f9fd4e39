"""exp and log between rational numbers: series in integers over 2^PRECISION, every rounding counted.

`log_ends` encloses; `exp_above` and `softplus_above` bound from above, by rounding every step up.
"""

from __future__ import annotations

from functools import lru_cache

from .exact import PRECISION
from .reading import Refused

ONE = 1 << PRECISION
SLACK = 1 << 10  # more than the error of a series below, in units of 2^-PRECISION
FAR = 112  # exp(-112) < 2^-161
LIMIT = 1000  # exp of more is beyond every double


def _atanh(numerator: int, denominator: int) -> int:
    """2^P atanh(z) for z = numerator / denominator in [0, 1/3], with an error below 2 (P / 3 + 4) < SLACK / 4.

    z, its square and the powers are rounded down. With z <= 1/3 each power is off by less than 1.5 and each quotient by less than
    2; there are at most P / 3 + 1 terms, as each power is at most 1/9 of the one before, and the tail is below 1.
    """
    u = (numerator << PRECISION) // denominator
    square, term, total, j = u * u >> PRECISION, u, 0, 1
    while term:
        total += term // j
        term = term * square >> PRECISION
        j += 2
    return total


@lru_cache(maxsize=1)
def log2_ends() -> tuple[int, int]:
    """An enclosure of 2^P log 2 = 2^P 2 atanh(1/3)."""
    value = 2 * _atanh(1, 3)
    return value - SLACK, value + SLACK


def log_ends(a: int, b: int) -> tuple[int, int]:
    """An enclosure of 2^P log(a / b), a, b > 0: a / b = 2^k m with m in [2/3, 4/3], log m = 2 atanh((m - 1) / (m + 1))."""
    k = a.bit_length() - b.bit_length()
    a, b = (a, b << k) if k >= 0 else (a << -k, b)  # a / b in (1/2, 2)
    if 3 * a > 4 * b:
        b, k = 2 * b, k + 1
    elif 3 * a < 2 * b:
        a, k = 2 * a, k - 1
    small = 2 * _atanh(abs(a - b), a + b)
    small = small if a >= b else -small
    low, high = log2_ends()
    if k < 0:
        low, high = high, low
    return small - SLACK + k * low, small + SLACK + k * high


def rest_below(w: int, u: int) -> int:
    """At most 2^P (w - u) log(w / (w - u)), 0 <= u <= w, and for small u close in relative terms: log(1 / (1 - x)) >= x."""
    if u == w:
        return 0
    return max((w - u) * log_ends(w, w - u)[0], ((w - u) * u << PRECISION) // w)


def exp_above(x: int) -> int:
    """At least 2^P exp(x / 2^P): x = k log 2 + r with r in [0, 1), whose series is summed with every term rounded up."""
    if x <= -FAR * ONE:
        return 1
    if x > LIMIT * ONE:
        raise Refused("upper bound: the loss at a point is beyond every double")
    low, high = log2_ends()
    k = x // high
    r = x - k * (low if k >= 0 else high)  # not below the true rest, and below log 2 + 2000 SLACK 2^-P
    total, term, j = 0, ONE, 0
    while term > 1:
        total += term
        j += 1
        term = -((-term * r) // (j * ONE))
    total += 2  # the tail: less than twice its first term, which is at most 1, and the ratio is below 1/2 by then
    return total << k if k >= 0 else -((-total) >> -k)


def softplus_above(x: int) -> int:
    """At least 2^P log(1 + exp(x / 2^P))."""
    return max(x, 0) + max(0, log_ends(ONE + exp_above(-abs(x)), ONE)[1])
