"""What a check may say: it fails only where an inequality fails, and is undecided where it could not have failed."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

from checks import OBSERVE
from widemargin import Dataset, cli, flows, theory
from widemargin.theory import _records as records
from widemargin.theory import check_mirror as mirror
from widemargin.theory.inequality import CHECKS, SHARE, Inequality, check, entry, part, worst

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def attack() -> tuple[theory.Track, list[Inequality]]:
    """Descent with a step so large that a fit is undone again and again."""
    rng = np.random.default_rng(7)
    X, y = rng.standard_normal((8, 3)), np.sign(rng.standard_normal(8))
    data = Dataset(X, y, "r")
    observe = ["default", "weights"]
    run = flows.train(data, flows.Normalized(3, 30), flows.GD(lr=2.0), stop=300, record=observe, seed=7)
    return theory.follow(run, data), theory.check(run, data, ids=["LR-23", "UH-18", "UH-19"])


def test_a_fit_that_is_undone_is_not_used(attack):
    """The points are fitted at record 51 and not at record 58, where <w, w'> < 0: that is no violation of LR-23."""
    track, found = attack
    total = track.n * np.exp(track.log_risk[:, 0]) / math.log(2)
    assert total[51] < 1 < total[58]
    assert not any(one.violated for one in found), [str(one) for one in found]
    assert track.fitted[51, 0] and not track.fitted[58, 0]
    (growth,) = [one for one in found if "<w, w'>" in one.statement]
    assert (growth.applies == track.fitted).all() and growth.checked > 5
    for one in found:
        if one.statement != "psi never falls":
            assert not one.applies[~track.fitted].any(), one.id


def test_an_allowance_that_hides_everything_is_undecided(attack):
    """psi falls by 4.8; steps of that size may cost it hundreds, so nothing is known."""
    (one,) = [one for one in attack[1] if one.statement == "psi never falls"]
    assert one.smallest is not None and one.smallest["slack"] < -4 and one.smallest["allowance"] > 50
    assert one.word == "undecided" and one.holds is None and not one.violated
    assert "undecided" in str(one) and f"allowance {one.smallest['allowance']:.3g}" in str(one)
    assert one.to_dict()["holds"] == "undecided" and one.to_dict()["undecided"] == one.undecided > 0
    json.dumps(one.to_dict())


def made(left: list[float], right: list[float], **more: object) -> Inequality:
    shape = (len(left), 1)
    t, yes = np.arange(len(left), dtype=float), np.ones(shape, bool)
    return Inequality("X-1", "x", "x", t, np.reshape(left, shape), np.reshape(right, shape), yes, **more)


@pytest.mark.parametrize(
    ("slack", "allowance", "word"),
    [(0.1, 0.0, "yes"), (-0.1, 0.0, "no"), (-0.1, 0.2, "yes"), (-0.3, 0.2, "no"), (-0.3, 0.6, "undecided"),
     (-3.0, 2.1, "undecided"), (0.3, 0.9, "undecided")],
)  # fmt: skip
def test_the_answers(slack, allowance, word):
    one = made([1.0], [1.0 + slack], allowance=allowance)
    assert one.word == word and one.violated is (word == "no")
    assert dataclasses.replace(one, proved=False).violated is False
    assert one.holds is {"yes": True, "no": False}.get(word)


def test_an_entry_that_cannot_fail_does_not_spoil_the_others():
    """An undecided entry counts only where the measured sides speak against the inequality."""
    room = np.array([[0.0], [5.0]])
    assert made([1.0, 1.0], [1.1, 1.1], allowance=room).word == "yes"
    assert made([1.0, 1.0], [1.1, 1.1], allowance=room).checked == 1
    assert made([1.0, 1.0], [1.1, 0.9], allowance=room).word == "undecided"
    assert made([1.0, 1.0], [0.9, 0.9], allowance=room).word == "no"
    nothing = made([1.0], [2.0])
    assert dataclasses.replace(nothing, applies=np.zeros((1, 1), bool)).word == "not checked"


def test_the_share_is_half_of_the_scale():
    assert SHARE == 0.5
    for scale, word in ((None, "yes"), (1.9, "undecided"), (2.1, "yes")):
        assert made([2.0], [2.0], allowance=1.0, scale=scale).word == word
    assert made([0.1], [1.0], identity=True).word == "yes"  # no scale: known to rounding
    assert made([0.1], [1.0], identity=True, scale=1.9).word == "undecided"


def test_stretches_restart_where_a_hypothesis_fails():
    yes = np.array([1, 1, 0, 1, 1, 1], bool)[:, None]
    assert records.stretch(yes)[:, 0].tolist() == [0, 0, 3, 3, 3, 3]
    apart = np.array([1, 1, 1, 1, 0, 1], bool)[:, None]
    assert records.stretch(yes, apart)[:, 0].tolist() == [0, 0, 3, 3, 4, 4]
    flags = np.array([1, 0, 0, 0, 1, 0], bool)[:, None]
    assert records.ever(flags, records.stretch(yes))[:, 0].tolist() == [True, True, False, False, True, True]
    sums = np.arange(6.0)[:, None] ** 2
    assert records.since(sums, records.stretch(yes))[:, 0].tolist() == [0, 1, -5, 0, 7, 16]


def test_a_fall_across_a_gap_is_no_fall(attack):
    track = attack[0]
    f = np.linspace(1, 2, len(track.t))[:, None]
    f[10:] -= 0.5
    owed, yes = np.zeros_like(f), np.ones(f.shape, bool)
    assert entry(track, "x", "x", "x", **records.never_falls(f, owed, yes)).word == "no"
    yes[10] = False
    assert entry(track, "x", "x", "x", **records.never_falls(f, owed, yes)).word == "yes"
    yes[10], joined = True, np.ones(f.shape, bool)
    joined[10] = False
    assert entry(track, "x", "x", "x", **records.never_falls(f, owed, yes, joined)).word == "yes"


def test_rounding_has_a_floor_where_both_sides_are_near_0():
    """UH-6 with one point: G = |l'(psi)| = 1 - 1e-16 and the logarithms are rounded differently. Eps times what was added is the
    floor; a thousandth is not rounding."""
    data, net = Dataset(np.array([[40.0]]), np.array([-1.0]), "far"), flows.TwoLayer(1, 3)
    run = flows.train(data, net, flows.GD(lr=1e-3), stop=20, record=OBSERVE, seed=1)
    track = theory.follow(run, data)
    assert all(one.word in ("yes", "undecided") for one in mirror.derivative_sandwich(track) or [])
    for shift, word in ((-1e-16, "yes"), (-1e-3, "no")):
        left = np.zeros(track.shape)
        left[3] = -shift
        one = entry(track, "X-1", "x", "x", left, 0.0, terms=1.0, scale=1.0)
        assert one.word == word, shift
    assert entry(track, "X-1", "x", "x", 1e-16 * np.ones(track.shape), 0.0).word == "no"  # terms are given, not guessed


def test_an_alarm_between_sparse_records_is_looked_at_with_every_step():
    """Descent crosses a kink in a step that was not recorded, and psi falls by more than the steps at the records suggest."""
    X, y = [[-0.2], [1.2], [-3.46], [0.02], [-1.73], [0.76]], [1.0, 1.0, -1.0, -1.0, -1.0, -1.0]
    data, net = Dataset(np.array(X), np.array(y), "kink"), flows.Product(2, 2)
    keys = {"loss": "exp", "bias": True, "seed": 1259, "stop": 20}
    run = flows.train(
        data, net, flows.GD(lr=0.68), record=flows.Record(OBSERVE, times=[*range(10), 11, 13, 15, 17, 20]), **keys
    )
    direct = theory.CHECKS["UH-18"].function(theory.follow(run, data, net))[2]
    assert direct.statement == "psi never falls" and direct.violated
    assert dataclasses.replace(direct, estimated=True).word == "undecided"
    one = theory.check(run, data, net=net, ids=["UH-18"])[2]
    assert not one.violated and "made again" in one.note and one.checked + one.undecided == 20
    # a record that the run does not pass stays an alarm
    psi = run["psi"].copy()
    psi[5] += 1
    wrong = dataclasses.replace(run, records=run.records | {"psi": psi})
    assert theory.check(wrong, data, net=net, ids=["UH-18"])[2].violated


def test_a_run_that_is_too_long_to_make_again_leaves_an_alarm_undecided(monkeypatch):
    data = Dataset(np.array([[1.0, 0.2], [-0.3, 1.0]]), np.array([1.0, -1.0]), "two")
    run = flows.train(data, flows.TwoLayer(2, 8), flows.GD(lr=0.1), stop=60, record=flows.Record(OBSERVE, points=12))
    psi = run["psi"].copy()
    psi[-1] -= 1
    wrong = dataclasses.replace(run, records=run.records | {"psi": psi})
    assert any(one.violated for one in theory.check(wrong, data, ids=["UH-18"]))
    monkeypatch.setattr("widemargin.theory.track.MOST_STEPS", 10)
    found = theory.check(wrong, data, ids=["UH-18"])
    assert not any(one.violated for one in found) and found[2].word == "undecided"


def test_the_command_says_undecided_and_returns_0(attack, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(theory, "check", lambda *_, **__: attack[1])
    assert cli.main(["check", str(tmp_path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["violated"] == [] and "UH-18" in said["undecided"]
    assert {"holds", "undecided", "proved"} <= set(said["checks"][0]) and "allowance" in said["checks"][0]["smallest"]
    assert cli.main(["check", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "allowance" in out and "undecided" in out
    wrong = dataclasses.replace(attack[1][0], right=attack[1][0].left - 1e6, allowance=0.0, scale=None)
    monkeypatch.setattr(theory, "check", lambda *_, **__: [wrong])
    assert cli.main(["check", str(tmp_path)]) == 1


def test_what_the_decorator_of_checks_does(attack, monkeypatch):
    """It fills in id and reference, gives the records that are named, and says nothing where one is missing."""
    track = attack[0]
    for id in ("X-1", "X-2", "X-3", "X-4"):
        monkeypatch.setitem(CHECKS, id, None)
        del CHECKS[id]

    @check("X-1", "Section 1", reads=lambda track: track if track.rule == "GD" else None)
    def two(view, log_norm):
        yield part("first", log_norm, log_norm + 1)
        yield part("second", np.log(log_norm * 0), 0.0, id="X-1 printed", reference="Section 2")  # ln 0: no warning

    @check("X-2", "X-5", "Section 3")
    def one(track, p):
        """The worst
        point.

        More of it.
        """
        return part("worst point", p, p.max(2, keepdims=True), scale=1 + np.abs(p))

    @check("X-3", "Section 4")
    def lacking(track, nothing):
        raise AssertionError("called without its records")

    @check("X-4", "Section 5")
    def never(track):
        yield from ()

    first, second = two(track)
    assert (first.id, first.reference, first.word) == ("X-1", "Section 1", "yes")
    assert (second.id, second.reference, second.word) == ("X-1 printed", "Section 2", "not checked")
    found = one(track)
    nearest = worst(track.p, track.p.max(2, keepdims=True), 0.0, 1 + np.abs(track.p))
    assert (found.left == nearest["left"]).all() and (found.scale == nearest["scale"]).all()
    assert (found.id, found.word) == ("X-2", "yes") and CHECKS["X-2"].function is one
    assert (CHECKS["X-2"].says, CHECKS["X-2"].claims) == ("The worst point.", ("X-2", "X-5"))
    assert lacking(track) is None and never(track) is None
    config = track.run.config | {"rule": track.run.config["rule"] | {"class": "SGD"}}
    assert two(dataclasses.replace(track, run=dataclasses.replace(track.run, config=config))) is None
    with pytest.raises(ValueError, match="twice"):
        check("X-1", "Section 1")(lacking)


@pytest.mark.parametrize("rule", [flows.SmoothMarginAscent(), flows.GD(lr=0.1), flows.GradientFlow()], ids=str)
def test_a_check_whose_records_were_not_made_does_not_apply(rule):
    """One of them asks for the norm on the way, which was not recorded here: that must not end all others."""
    rng = np.random.default_rng(3)
    data = Dataset(rng.standard_normal((8, 3)), np.resize([1, -1], 8), "r")
    observe = ["weights", "step", "t_mean", "log_risk", "psi", "log_norm"]
    run = flows.train(data, flows.TwoLayer(3, 12), rule, stop=20, record=flows.Record(observe, points=8))
    found = theory.check(run, data)
    assert found and not any(one.violated for one in found)
