"""Statements whose hypotheses ordinary runs do not meet, on instances that meet them: wide networks, and flows in closed form."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.optimize import brentq

from widemargin import Dataset, flows
from widemargin.theory import Inequality, Track, follow, normalized_run
from widemargin.theory import check_lazy as lazy
from widemargin.theory import check_mirror as mirror
from widemargin.theory import check_normalized as normalized

pytestmark = pytest.mark.usefixtures("one_thread")


def named(found: list[Inequality] | None, words: str) -> Inequality:
    (one,) = [one for one in found or [] if words in one.statement]
    return one


def cumulative(x: np.ndarray, log_f: np.ndarray) -> np.ndarray:
    """ln of the integral of exp(log_f) over x from the first point, by trapezoids; -inf at the first."""
    parts = np.logaddexp(log_f[1:], log_f[:-1]) + np.log(np.diff(x) / 2)
    return np.append(-np.inf, np.logaddexp.accumulate(parts))


def made(net: flows.Net, loss: str, start: dict[str, np.ndarray], records: dict[str, np.ndarray]) -> Track:
    """A run of gradient flow with these records (T,) or (T, ...), of one trial, on the point x = 1 with label 1."""
    data = Dataset(np.ones((1, 1)), np.ones(1), "one")
    kept = {name: np.asarray(value, float)[:, None] for name, value in records.items()}
    count = len(next(iter(kept.values())))
    template = flows.train(data, type(net)(1, 2), flows.GradientFlow(), loss=loss, stop=1, record=["step"])
    kept |= {"step": np.arange(count, dtype=float)[:, None], "honest": np.ones((count, 1))}
    run = dataclasses.replace(template, t=np.arange(count, dtype=float), records=kept)
    begin = {name: torch.as_tensor(np.asarray(value, float))[None] for name, value in start.items()}
    return dataclasses.replace(follow(run, data, net), start=begin)


# ---------------------------------------------------------------- UH-26

GOOD, BAD, FIRST = 1.0, 0.05, (1e-60, 1.0)  # features z_1 and z_2 of one point, and u(0)


def two_phases(last: float) -> Track:
    """One point, the exponential loss, two products with fixed features: in CB's clock s, u_j = u_j(0) exp(2 z_j s), and the
    margin is p = z . u, so dt = e^p ds. The neuron with the large feature begins at 1e-60."""
    s = np.linspace(0, last, 1500)
    u = np.column_stack([FIRST[j] * np.exp(2 * z * s) for j, z in enumerate((GOOD, BAD))])  # (T, 2)
    p = u @ (GOOD, BAD)
    records = {
        "t_cb": s,
        "t_mean": np.exp(np.minimum(cumulative(s, p), 700)),
        "log_risk": -p,
        "psi": p,
        "W_a": np.sqrt(u),
        "W_b": np.sqrt(u),
    }
    start = {"a": np.sqrt(FIRST), "b": np.sqrt(FIRST), "V": np.array([[GOOD], [BAD]])}
    return made(flows.Scalar(1, 2), "exp", start, records)


def ratio(s: float) -> float:
    """|u| over 8 |ubar| - 1, |ubar| = ln t (gamma = 1, n = 1), from the closed form alone."""
    grid = np.linspace(0, s, 20_001)
    p = FIRST[0] * GOOD * np.exp(2 * GOOD * grid) + FIRST[1] * BAD * np.exp(2 * BAD * grid)
    size = FIRST[0] * math.exp(2 * GOOD * s) + FIRST[1] * math.exp(2 * BAD * s)
    return size / (8 * cumulative(grid, p)[-1]) - 1


def test_the_asymptotic_phase_begins_once_and_can_end():
    """UH Section 3.3 pictures one switch. The norm passes 8 |ubar| while a neuron of small feature carries the margin; when the
    better one, which began at 1e-60, takes over, the norm per margin falls and the early phase is back, far below t = 1e250."""
    begins, ends = brentq(ratio, 25, 45), brentq(ratio, 69, 72)
    once = mirror.phases(two_phases((begins + ends) / 2))
    assert once is not None and once.word == "yes" and once.checked > 300
    s = two_phases((begins + ends) / 2).run["t_cb"][:, 0]
    t = two_phases((begins + ends) / 2).t_mean[:, 0]
    assert abs(np.interp(once.numbers["switch time"][0], t, s) - begins) <= 1.1 * s[1]
    assert once.numbers["ratio"][0] > 8
    both = mirror.phases(two_phases(ends + 0.5))
    assert both is not None and both.word == "no" and not both.violated  # a picture, not a theorem
    assert both.numbers["switch time"] is not None and both.numbers["ratio"][0] < 8


def test_the_made_flow_of_two_products_is_the_flow():
    track = two_phases(30.0)
    one = {j.statement: j for j in mirror.mirror_form(track) or []}
    assert all(j.word == "yes" for j in one.values()) and len(one) == 3
    assert_allclose(track.p[:, 0, 0], track.run["psi"][:, 0], rtol=1e-12)


def test_a_time_beyond_floating_point_has_no_phase():
    """Every record past t = 1e250 is undecided, and no ratio of a made-up |ubar| is reported."""
    track = two_phases(90.0)
    assert (track.t_mean > 1e250).sum() > 100
    one = mirror.phases(track)
    assert one is not None and one.undecided == (track.t_mean >= 1e250).sum() and one.numbers["ratio"][0] < 8
    late = dataclasses.replace(track.run, t=track.t[-50:], records={k: v[-50:] for k, v in track.run.records.items()})
    only = mirror.phases(dataclasses.replace(track, run=late))
    assert only is not None and only.word == "undecided" and only.numbers == {"switch time": [None], "ratio": [None]}


# ---------------------------------------------------------------- LR-16, LR-17


def one_point(m: int, last: float, count: int = 200) -> Track:
    """One point x = 1, v_j = 2, a_j = 0: with xi the integral of |l'|, a_j = 2 sinh xi, v_j = 2 cosh xi, p = 2m sinh 2 xi."""
    p = np.concatenate([[0.0], np.geomspace(1e-3, last / 2, count), np.linspace(last / 2, last, 80)[1:]])
    fine = np.concatenate([np.linspace(a, b, 200, endpoint=False) for a, b in itertools.pairwise(p)] + [p[-1:]])
    xi = np.arcsinh(fine / (2 * m)) / 2
    log_t = cumulative(xi, np.logaddexp(0, fine))[::200]  # dt = dxi / |l'(p)| = (1 + e^p) dxi
    xi = xi[::200]
    a, v, slope = 2 * np.sinh(xi), 2 * np.cosh(xi), np.logaddexp(0, -p)
    records = {
        "t_mean": np.exp(log_t),
        "t_cb": np.append(0, np.cumsum((slope[1:] + slope[:-1]) / 2 * np.diff(np.exp(log_t)))),
        "log_risk": np.log(slope),
        "psi": p,
        "norm": np.sqrt(m * (a**2 + v**2)),
        "log_norm": np.log(m * (a**2 + v**2)) / 2,
        "moved_a": np.sqrt(m) * a,
        "moved_V": np.sqrt(m) * (v - 2),
    }
    start = {"a": np.zeros(m), "V": np.full((m, 1), 2.0)}
    return made(flows.TwoLayer(1, m), "logistic", start, records)


def test_the_closed_form_of_one_point_is_the_flow():
    """Against the library's own descent from the same start, four neurons."""
    track = one_point(4, 3.0)
    W = {name: value.clone() for name, value in track.start.items()}
    h, t, seen = 1e-4, 0.0, []
    for _ in range(3000):
        seen.append((t, float(track.problem.margins(W)[0, 0])))
        p, saved = track.problem.look(W)
        g = track.problem.pull(W, 1 / (1 + p.exp()), saved)
        W, t = {name: W[name] + h * g[name] for name in W}, t + h
    times, margins = np.array(seen).T
    inside = times < track.t_mean[-1, 0]
    assert inside.sum() > 500
    assert_allclose(margins[inside], np.interp(times[inside], track.t_mean[:, 0], track.psi[:, 0]), atol=5e-3)


def test_training_error_at_the_width_of_the_lemma():
    """LR-16 at m = 1.7 10^6 >= (640 ln(t/delta)/gamma)^2, gamma = 2, t from n = 1 to 2.7: risk <= 1/(5t), movement <= gamma
    sqrt(m)/80."""
    m = 1_700_000
    track = one_point(m, 18.0)

    def see(track: Track) -> None:
        """The transport of one point in closed form: a linear program of this size takes minutes."""
        view = track.__dict__["_lazy"] = lazy._Lazy(track)
        view.__dict__["theta"] = np.full((1, m), 1 / math.sqrt(m))
        assert_allclose(view.gamma, 2)

    see(track)
    needed = (640 * np.log(np.maximum(track.t_mean, 1) / 0.05) / 2) ** 2
    meets = ((track.t_mean >= 1) & (needed <= m)).sum()
    assert meets >= 5
    found = lazy.training_error(track)
    for words in ("risk <=", "|W_t - W_0| <= gamma"):
        one = named(found, words)
        assert one.checked == meets and one.word == "yes"
    slow = dataclasses.replace(track.run, records=track.run.records | {"log_risk": track.run["log_risk"] + 18})
    wrong = dataclasses.replace(track, run=slow)
    see(wrong)
    assert named(lazy.training_error(wrong), "risk <=").violated


@pytest.fixture(scope="module")
def moved() -> Track:
    """A flow that is fitted at its start and moves beyond R = gamma sqrt(m)/32."""
    data = Dataset(np.array([[1.0, 0.0], [0.8, 0.6]]), np.ones(2), "near")
    net = flows.TwoLayer(2, 60)
    observe = "step t_cb t_mean log_risk psi margin norm log_norm moved honesty q weights".split()  # noqa: SIM905
    run = flows.train(data, net, flows.GradientFlow(), stop=40, record=observe, seed=25)
    assert run["psi"][0, 0] > 0
    return follow(run, data, net)


def test_margin_after_moving_from_a_fit(moved):
    one = named(lazy.margin_at_radius(moved), "gamma^2 / 4096")
    # all labels and features are positive: the best transport is 1/sqrt(m) everywhere
    gamma = ((moved.problem.X[0] @ moved.start["V"][0].T).clamp_min(0).sum(1).min() / 60).item()
    assert one.checked > 20 and one.word == "yes"
    assert_allclose(one.left[one.applies], gamma**2 / 4096, rtol=1e-9)
    psi, norm = moved.psi, moved.run["norm"]
    assert_allclose(one.right[one.applies], (psi / norm**2)[one.applies])
    first = int(np.flatnonzero(one.applies[:, 0])[0])
    away = np.hypot(moved.run["moved_a"], moved.run["moved_V"])[:, 0]
    R = gamma * math.sqrt(60) / 32
    assert away[first] >= R > away[first - 1] and away[0] <= R / 2


def test_margin_after_moving_is_not_used_where_the_fit_is_lost(moved):
    """Records that say that the points are not fitted any more end the stretch; those after it have not been near the start."""
    one = named(lazy.margin_at_radius(moved), "gamma^2 / 4096")
    k = int(np.flatnonzero(one.applies[:, 0])[3])
    risk, psi = (moved.run[name].copy() for name in ("log_risk", "psi"))
    risk[k], psi[k] = 1.0, -2.0
    records = moved.run.records | {"log_risk": risk, "psi": psi}
    lost = dataclasses.replace(moved, run=dataclasses.replace(moved.run, records=records))
    other = named(lazy.margin_at_radius(lost), "gamma^2 / 4096")
    assert other.checked == 3 and not other.applies[k:].any()


# ---------------------------------------------------------------- BN-19


def test_the_second_part_of_the_alignment_at_a_width_that_allows_it():
    """BN-19 (2) needs |p(W_0)| <= R gamma sqrt(m)/32, of the order m^(2/3): 10^5 neurons will do. Its right side is the
    derivative of p_i along (Ubar, alpha (V_0 - V)) minus p_i, here by differences of the network itself."""
    X, y, m = np.array([[0.9, 0.0], [-0.9, 0.1]]), np.array([1.0, -1.0]), 100_000
    data, net = Dataset(X, y, "two"), flows.BatchNorm.with_data(X, m, eps=1.0)
    run = flows.train(
        data,
        net,
        flows.GD(lr=5e-3),
        stop=8,
        record=flows.Record(["step", "moved", "weights", "log_risk"], times=[0, 8]),
        seed=0,
    )
    track = follow(run, data, net)
    (one,) = [one for one in normalized.alignment(track) or [] if one.id == "BN-19 (2)"]
    assert one.checked == 2 and one.word == "yes" and run["moved_V"][-1, 0] > 5e-4
    B = normalized_run.batch_normed(track)
    assert B is not None and track.W is not None
    avec, cvec, _, _ = B.comparator
    R, alpha = float(B.R[0]), float(B.alpha[0])
    assert_allclose(one.left[:, 0], R / 16 * float(B.gamma[0]) * math.sqrt(m))
    W, first = track.W[-1], track.start
    toward = {
        "a": first["a"] + R / 8 * torch.as_tensor(avec),
        "c": first["c"] + R / 8 * torch.as_tensor(cvec),
        "V": alpha * (first["V"] - W["V"]),
    }
    h = 1e-6
    ahead, behind = (track.problem.margins(W | {k: W[k] + s * toward[k] for k in toward}) for s in (h, -h))
    slope = ((ahead - behind) / (2 * h) - track.problem.margins(W))[0]
    assert_allclose(one.right[-1, 0], float(slope.min()), rtol=1e-5)
    assert float(slope.min()) > one.left[-1, 0]
