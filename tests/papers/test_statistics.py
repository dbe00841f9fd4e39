"""Means over trials and their intervals, against scipy and closed forms."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from widemargin.papers import statistics

VALUES = np.random.default_rng(0).lognormal(size=(3, 7))


def test_standard_errors_are_those_of_scipy():
    assert_allclose(statistics.standard_error(VALUES), stats.sem(VALUES, axis=-1), rtol=1e-14)
    assert_allclose(statistics.two_errors(VALUES), 2 * stats.sem(VALUES, axis=-1), rtol=1e-14)
    assert_allclose(statistics.mean_error(VALUES[0]), (VALUES[0].mean(), stats.sem(VALUES[0])), rtol=1e-14)


def test_intervals_are_those_of_student_and_of_the_jackknife_for_a_mean():
    one = VALUES[1]
    expected = stats.t.interval(0.95, len(one) - 1, one.mean(), stats.sem(one))
    assert_allclose(statistics.interval(one)[1:], expected, rtol=1e-12)
    assert_allclose(statistics.over_trials(np.mean, one), statistics.interval(one), rtol=1e-12)


def test_one_trial_says_nothing_of_others():
    one = np.array([3.0])
    assert statistics.mean_error(one) == (3.0, math.inf) and statistics.half_width(one) == math.inf
    assert statistics.standard_error(np.ones((4, 1))).tolist() == [math.inf] * 4
    assert statistics.interval(one) == (3.0, -math.inf, math.inf)
    assert np.isnan(statistics.over_trials(np.mean, one)[1:]).all()


@pytest.mark.parametrize("power", [-1.5, 0.0, 2.0])
def test_exponents_of_powers_are_found(power: float):
    x = np.array([2, 5, 11, 30])
    factors = np.array([0.1, 1.0, 40.0])
    values = factors[:, None] * x**power  # (trials, k)
    assert_allclose(statistics.exponents(x, values), [power] * 3, atol=1e-12)
    mean, half = statistics.mean_exponent(x, values.T)
    assert_allclose((mean, half), (power, 0), atol=1e-12)
    noisy = values * np.exp(0.1 * np.random.default_rng(1).standard_normal(values.shape))
    each = [stats.linregress(np.log(x), np.log(row)).slope for row in noisy]
    assert_allclose(statistics.exponents(x, noisy), each, rtol=1e-12)
