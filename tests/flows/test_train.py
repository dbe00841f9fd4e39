"""The loop: where it records, when trials end, and that a run survives its process."""

import errno
import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from checks import grouped
from widemargin import Dataset, InputError, Trajectory, data, flows, monitor, theory
from widemargin.flows import GD, SGD, Keep, Record, Stop, TwoLayer, own_parts, runs, train, training
from widemargin.flows.rules import Rule
from widemargin.margins import door

PARITY = data.parity(d=4, n=12, seed=0)
NET = TwoLayer(4, 6)
SCALARS = ["step", "t_mean", "t_cb", "risk", "margin", "margins", "norm", "moved"]


@dataclass(frozen=True)
class Counter(Rule):
    """Adds 1 to every weight per step; trial b's clocks run at rate b + 1, and trial `bad` explodes at step 7."""

    bad: int = -1
    done: int = -1

    def step(self, problem, W, state):
        W = {name: value + 1 for name, value in W.items()}
        step = state.step + 1
        trials = len(state.t_cb)
        if step == 7 and self.bad >= 0:
            W["a"] = W["a"].clone()
            W["a"][self.bad] = torch.nan
        status = state.status.clone()
        if step == 5 and self.done >= 0:
            status[self.done] = 2
        t = torch.arange(1, trials + 1) * float(step)
        return W, replace(state, step=step, t_cb=t, log_t_mean=t.log(), status=status)


@dataclass(frozen=True)
class At(flows.Event):
    """Trial b reaches this event at step 3 + 2 b."""

    def reached(self, problem, W, state, start):
        return state.step >= 3 + 2 * torch.arange(len(state.t_cb))


def first(view):
    return view.params["a"][:, 0]


def count(rule, **keys):
    return train(PARITY, NET, rule, **grouped(observe={"step": None, "first": first}, **keys))


def assert_same(one: Trajectory, two: Trajectory):
    """Identical to the last bit."""
    assert_array_equal(one.t, two.t)
    assert list(one.records) == list(two.records)
    for name in one.records:
        assert_array_equal(one[name], two[name], err_msg=name)
    for name in one.final:
        assert_array_equal(one.final[name], two.final[name], err_msg=name)
    assert one.status == two.status


# ---------------------------------------------------------------- where records are taken


def test_records_at_given_steps():
    traj = count(Counter(), times=[0, 2, 5], steps=9, trials=2)
    assert_array_equal(traj.t, [0, 2, 5, 9])
    assert_allclose(traj["first"] - traj["first"][0], np.array([0, 2, 5, 9])[:, None] * [1, 1])
    assert traj.status == ("finished", "finished") and traj.stats["steps"] == 9


def test_log_spaced_records_begin_at_0_and_end_at_the_end():
    traj = count(Counter(), steps=1000, points=20)
    assert traj.t[0] == 0 and traj.t[-1] == 1000 and 12 < len(traj.t) <= 20
    ratios = traj.t[8:][1:] / traj.t[8:][:-1]
    assert ratios.max() < 1.15 * ratios.min()


def test_times_are_those_of_each_trial_s_own_clock():
    traj = count(Counter(), time=12.0, clock="cb", times=[0, 6, 7], trials=3)
    assert_array_equal(traj.t, [0, 6, 7, 12])
    # Trial b is at time (b + 1) step: the first step at or after each time.
    assert_allclose(traj["first"] - traj["first"][0], [[0, 0, 0], [6, 3, 2], [7, 4, 3], [12, 6, 4]])
    assert traj.status == ("finished",) * 3


def test_an_event_ends_each_trial_by_itself_and_keeps_its_values():
    traj = count(Counter(), steps=20, until=At(), trials=3, times=[0, 4, 6])
    assert traj.status == ("reached",) * 3
    assert_allclose(traj["first"] - traj["first"][0], [[0, 0, 0], [3, 4, 4], [3, 5, 6], [3, 5, 7]])
    assert traj.t[-1] == 7  # where the last one ended
    assert_allclose(traj.final["a"][:, 0] - traj["first"][0], [3, 5, 7])


def test_a_diverged_trial_goes_back_and_the_others_go_on():
    traj = count(Counter(bad=1), steps=20, times=[0, 6, 10], trials=3)
    assert traj.status == ("finished", "diverged", "finished")
    assert_allclose(traj["first"] - traj["first"][0], [[0, 0, 0], [6, 6, 6], [10, 6, 10], [20, 6, 20]])
    assert np.isfinite(traj.final["a"]).all()
    assert any("trial 1 diverged" in note for note in traj.notes)


def test_a_rule_may_end_a_trial():
    traj = count(Counter(done=0), steps=8, times=[0, 6], trials=2)
    assert traj.status == ("finished", "finished")
    assert_allclose(traj["first"] - traj["first"][0], [[0, 0], [6, 6], [6, 8]])


def test_a_learning_rate_that_diverges_is_a_status():
    far = Dataset(1e200 * PARITY.X, PARITY.y)
    traj = train(far, NET, GD(lr=1e200), stop=30, trials=2)
    assert traj.status == ("diverged", "diverged") and "smaller step" in traj.notes[0]
    assert len(traj.t) and all(np.isfinite(value).all() for value in traj.final.values())


# ---------------------------------------------------------------- trials


def test_a_batch_is_a_loop():
    other = data.parity(d=4, n=12, seed=5)
    batch = train([PARITY, other], NET, GD(lr=0.3), stop=40, record=SCALARS)
    single = train(PARITY, NET, GD(lr=0.3), stop=40, record=SCALARS)
    for name in single.records:
        assert_allclose(batch[name][:, :1], single[name], rtol=1e-10, err_msg=name)
    shared = train(PARITY, NET, GD(lr=0.3), stop=40, trials=3, record=SCALARS)
    assert_allclose(shared["risk"][:, 0], single["risk"][:, 0], rtol=1e-10)
    assert not np.allclose(shared["risk"][:, 1], shared["risk"][:, 0])


def test_gd_is_gd():
    traj = train(PARITY, NET, GD(lr=0.2), stop=3, record=Record(["weights", "risk"], times=[0, 1, 2, 3]))
    W = {name: torch.tensor(traj[f"W_{name}"][0]) for name in ("a", "V")}
    X, y = torch.tensor(PARITY.X.copy()), torch.tensor(PARITY.y.copy())
    for k in range(3):
        W = {name: value.clone().requires_grad_() for name, value in W.items()}
        f = ((X @ W["V"][0].T).clamp_min(0) @ W["a"][0][:, None])[:, 0]
        risk = torch.log1p(torch.exp(-y * f)).mean()
        assert_allclose(traj["risk"][k, 0], risk.item(), rtol=1e-12)
        risk.backward()
        W = {name: (value - 0.2 * value.grad).detach() for name, value in W.items()}
        for name in W:
            assert_allclose(traj[f"W_{name}"][k + 1], W[name].numpy(), rtol=1e-12, atol=1e-15)


def test_float32_stays_near_float64():
    one = train(PARITY, NET, GD(lr=0.3), stop=50, dtype="float32", record=SCALARS)
    two = train(PARITY, NET, GD(lr=0.3), stop=50, record=SCALARS)
    assert_allclose(one["risk"], two["risk"], rtol=1e-4)


def test_the_same_seed_is_the_same_result():
    keys = {"stop": 30, "trials": 2, "record": SCALARS}
    assert_same(train(PARITY, NET, SGD(lr=0.3), **keys), train(PARITY, NET, SGD(lr=0.3), **keys))
    assert not np.array_equal(
        train(PARITY, NET, GD(), seed=1, **keys)["risk"], train(PARITY, NET, GD(), **keys)["risk"]
    )


# ---------------------------------------------------------------- run folders


def whole_and_broken(tmp_path, rule, stop_after=(3, 9, 2), **keys):
    """The same training, once in one go and once interrupted several times."""
    keys = {"observe": SCALARS, **keys}
    whole = train(PARITY, NET, rule, **grouped(**keys))
    out = tmp_path / "run"
    for turns in stop_after:
        left = turns

        def halt(seconds, share, now):
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(training, "BLINK", -1.0)  # asked after every step
            part = train(PARITY, NET, rule, **grouped(out=out, resume=True, progress=halt, **keys))
        assert part.interrupted
    return whole, train(PARITY, NET, rule, **grouped(out=out, resume=True, **keys)), out


@pytest.mark.parametrize(
    ("rule", "keys"),
    [
        (GD(lr=0.5), {"steps": 40, "trials": 3}),
        (SGD(lr=0.5, batch=3, order="epochs"), {"steps": 40, "trials": 2}),
        (GD(lr=0.5), {"time": 20.0, "until": "fitted", "trials": 3}),
        (GD(lr=0.1), {"time": 3.0, "clock": "cb", "trials": 3, "points": 15}),
        (flows.GradientFlow(), {"steps": 25, "trials": 2}),
        (flows.Adam(), {"steps": 30, "trials": 2, "dtype": "float32"}),
    ],
    ids=["gd", "sgd", "event", "cb-clock", "flow", "adam"],
)
def test_interrupted_and_resumed_is_uninterrupted(tmp_path, rule, keys):
    whole, resumed, out = whole_and_broken(tmp_path, rule, **keys)
    assert_same(whole, resumed)
    assert_same(whole, flows.load(out))  # and what is on the disk is the same again
    again = train(PARITY, NET, rule, **grouped(observe=SCALARS, out=out, resume=True, **keys))  # nothing left to do
    assert_same(whole, again)


KILLED = """
    import sys
    from widemargin import data, flows
    out, resume, pause = sys.argv[1], sys.argv[2] == "1", float(sys.argv[3])
    flows.train(data.parity(d=4, n=12, seed=0), flows.TwoLayer(4, 6), flows.SGD(lr=0.5), stop=STEPS, trials=3,
                record=NAMES, keep=flows.Keep(out, resume, pause))
    print("done")
"""


@pytest.mark.long  # fuzz/test_crashes.py kills, too
def test_kill_9_loses_nothing_but_time(tmp_path):
    steps, out, rng = 3000, tmp_path / "run", np.random.default_rng()
    script = textwrap.dedent(KILLED).replace("STEPS", str(steps)).replace("NAMES", repr(SCALARS))
    kills = 0
    for turn in range(3):
        command = [sys.executable, "-c", script, str(out), str(int(turn > 0)), "0.01"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        before = checkpoint_time(out)
        while process.poll() is None and checkpoint_time(out) == before:
            time.sleep(0.005)
        time.sleep(float(rng.uniform(0, 0.4)))
        process.send_signal(signal.SIGKILL)
        _, error = process.communicate()
        kills += process.returncode == -signal.SIGKILL
        assert process.returncode in (0, -signal.SIGKILL), error.decode()
    assert kills
    resumed = train(PARITY, NET, SGD(lr=0.5), stop=steps, trials=3, record=SCALARS, keep=Keep(out, resume=True))
    whole = train(PARITY, NET, SGD(lr=0.5), stop=steps, trials=3, record=SCALARS)
    assert_same(whole, resumed)
    assert_same(whole, flows.load(out))


def checkpoint_time(out):
    return max((path.stat().st_mtime_ns for path in out.glob("checkpoint-*")), default=0)


@pytest.fixture
def stopped(tmp_path):
    """A run that was interrupted half way, with two checkpoints."""
    out = tmp_path / "run"
    calls = 0

    def halt(seconds, share, now):
        nonlocal calls
        calls += 1
        if calls > 20:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "BLINK", -1.0)
        run_it(out, seconds=0, progress=halt)
    assert (out / "checkpoint-0").exists() and (out / "checkpoint-1").exists()
    return out


def run_it(out, steps=40, rule=None, **keys):
    return train(PARITY, NET, rule or GD(lr=0.5), **grouped(steps=steps, trials=2, observe=SCALARS, out=out, **keys))


def newest(out):
    return max(out.glob("checkpoint-*"), key=lambda path: runs._read_checkpoint(path)["turn"])


@pytest.mark.parametrize("harm", ["cut", "flip", "empty"])
def test_a_corrupt_checkpoint_falls_back_to_the_other_and_says_so(stopped, harm):
    path = newest(stopped)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes({"cut": raw[: len(raw) // 2], "flip": raw, "empty": b""}[harm])
    resumed = run_it(stopped, resume=True)
    assert any(path.name in note and "damaged" in note for note in resumed.notes)
    assert_same(run_it(None), resumed)


def test_two_corrupt_checkpoints_are_refused(stopped):
    for path in stopped.glob("checkpoint-*"):
        path.write_bytes(b"nonsense")
    with pytest.raises(InputError, match="damaged and there is no other checkpoint"):
        run_it(stopped, resume=True)
    with pytest.raises(InputError, match="damaged"):
        flows.load(stopped)


def test_a_run_from_before_its_rule_was_renamed_goes_on(tmp_path, monkeypatch):
    """The folder says CB, as folders did; the digest in its checkpoints is that of the configuration as it was written."""

    class CB(flows.SmoothMarginAscent):
        pass

    def half(seconds, share, now):
        if share > 0.5:
            raise KeyboardInterrupt

    monkeypatch.setattr(training, "BLINK", -1.0)
    train(PARITY, NET, CB(), stop=20, record=Record(SCALARS, progress=half), keep=tmp_path / "run")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["rule"]["class"] == "CB"
    assert flows.load(tmp_path / "run").config["rule"]["class"] == "SmoothMarginAscent"
    rule, keep = flows.SmoothMarginAscent(), Keep(tmp_path / "run", resume=True)
    resumed = train(PARITY, NET, rule, stop=20, record=SCALARS, keep=keep)
    assert_same(resumed, train(PARITY, NET, rule, stop=20, record=SCALARS))


def test_a_run_that_could_not_be_read_again_is_not_begun(tmp_path):
    class Named(TwoLayer):
        name = "a network of two layers, with a very long name of its own"

    with pytest.raises(InputError, match=r"could not be read again: net\.net has 57 characters"):
        train(PARITY, Named(PARITY.d, 3), GD(), stop=5, keep=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_another_configuration_is_refused(stopped, tmp_path):
    with pytest.raises(InputError, match=r"another configuration: steps was 40 and is 50; .*; ask for the same"):
        run_it(stopped, steps=50, resume=True)
    with pytest.raises(InputError, match=r"rule\.lr was 0\.5 and is 0\.1"):
        train(PARITY, NET, GD(lr=0.1), stop=40, trials=2, record=SCALARS, keep=Keep(stopped, resume=True))
    # Lists that begin alike are told from where they differ.
    with pytest.raises(InputError, match=r'observe was \[\.\.\.\] and is \[\.\.\., "weights"\];'):
        train(PARITY, NET, GD(lr=0.5), stop=40, trials=2, record=[*SCALARS, "weights"], keep=Keep(stopped, resume=True))
    other = tmp_path / "other"
    run_it(other, steps=10)
    (stopped / "checkpoint-0").write_bytes((other / "checkpoint-0").read_bytes())
    with pytest.raises(InputError, match="belongs to a run of another configuration"):
        run_it(stopped, resume=True)


def test_records_of_another_run_are_refused(stopped, tmp_path):
    """They have the same names and shapes: those of a run with another learning rate were shown as this run's."""
    other = tmp_path / "other"
    train(PARITY, NET, GD(lr=0.1), stop=40, trials=2, record=SCALARS, keep=other)
    part = stopped / "records" / "00000.npz"
    mine = part.read_bytes()
    part.write_bytes((other / "records" / "00000.npz").read_bytes())
    with pytest.raises(InputError, match=r"records/00000\.npz belongs to a run of another configuration"):
        flows.load(stopped)
    with np.load(io.BytesIO(mine)) as arrays:  # as older versions wrote them
        np.savez(part, **arrays)
    assert_array_equal(flows.load(stopped).records["risk"][0] > 0, True)


def test_a_test_set_of_other_columns_or_labels_is_refused():
    """Columns in another order, and labels of which the second is now the first, gave test errors without a word."""
    X, y = [[1.0, 0.0], [0.0, 1.0]], ["cat", "dog"]

    def trained(test):
        data = Dataset(X, y, "mine", columns=("a", "b"))
        return train(data, TwoLayer(2, 3), GD(), stop=2, record=Record(["test_error"], test=test))

    assert "test_error" in trained(Dataset(X, y, columns=("a", "b"))).records
    assert "test_error" in trained(Dataset(X, y)).records
    with pytest.raises(InputError, match="the test set has the column 'b' where mine has 'a'"):
        trained(Dataset(X, y, columns=("b", "a")))
    with pytest.raises(InputError, match="the test set has the labels 'dog', 'fox', and mine has 'cat', 'dog'"):
        trained(Dataset(X, ["dog", "fox"]))
    with pytest.raises(InputError, match="the test set has the labels 1, 2, and mine has 0, 1"):
        train(Dataset(X, [0, 1], "mine"), TwoLayer(2, 3), GD(), stop=2, record=Record(test=Dataset(X, [1, 2])))
    train(Dataset(X, [0, 1], "mine"), TwoLayer(2, 3), GD(), stop=2, record=Record(test=Dataset(X, [-1, 1])))


def test_a_run_is_not_overwritten(stopped, tmp_path):
    with pytest.raises(InputError, match="already holds a run"):
        run_it(stopped)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match="other files"):
        run_it(tmp_path / "mine")
    with pytest.raises(InputError, match="nothing to resume"):
        run_it(None, resume=True)


def test_a_damaged_part_or_configuration_is_one_sentence(stopped):
    part = sorted((stopped / "records").glob("*.npz"))[0]
    part.write_bytes(b"no zip")
    with pytest.raises(InputError, match="damaged"):
        flows.load(stopped)
    (stopped / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"config\.json is damaged"):
        flows.load(stopped)


def test_missing_records_are_noticed(stopped):
    part = sorted((stopped / "records").glob("*.npz"))[-1]
    part.unlink()
    resumed = run_it(stopped, resume=True)
    assert_same(run_it(None), resumed)


def test_only_one_process_at_a_time(stopped):
    with runs.held(stopped), pytest.raises(InputError, match="another process"):
        run_it(stopped, resume=True)


def test_an_unwritable_place_is_refused_before_training(tmp_path):
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(InputError, match="cannot write"):
            run_it(place)


class RefusesToStep(GD):
    def step(self, problem, W, state):
        raise InputError("not today")


def test_a_rule_that_refuses_its_first_step_leaves_no_run(tmp_path):
    with pytest.raises(InputError, match="not today"):
        run_it(tmp_path / "new" / "run", rule=RefusesToStep(lr=0.5))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError, match="not today"):
        run_it(tmp_path / "mine", rule=RefusesToStep(lr=0.5))
    assert list((tmp_path / "mine").iterdir()) == []  # a folder that was there stays


def test_a_disk_that_is_full_at_the_start_leaves_no_run(tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(runs, "write_atomically", full)
    with pytest.raises(InputError, match="No space left"):
        run_it(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_goes_on_and_is_refused_stays(stopped):
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="another configuration"):
        run_it(stopped, resume=True, rule=RefusesToStep(lr=0.5))
    assert {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()} == before


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    out = tmp_path / "run"
    write, full = runs.write_atomically, True

    def scarce(path, content):
        if full and path.name.startswith("checkpoint") and run_steps(content) > 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, content)

    def run_steps(content):
        import io

        return torch.load(io.BytesIO(content[len(runs.MAGIC) + 65 :]), weights_only=True)["step"]

    monkeypatch.setattr(runs, "write_atomically", scarce)
    traj = run_it(out, seconds=0)
    assert traj.status == ("finished", "finished") and traj.t[-1] == 40
    assert any("No space left" in note for note in traj.notes)
    full = False
    assert_same(run_it(None), run_it(out, resume=True))  # once there is space again


def test_a_run_killed_before_its_first_checkpoint_begins_again(tmp_path):
    out = tmp_path / "run"
    (out / "records").mkdir(parents=True)
    (out / "data.npz").write_bytes(b"half")
    traj = run_it(out, resume=True)
    assert "begins at step 0" in traj.notes[0]
    assert_same(run_it(None), traj)


def test_the_folder_holds_what_is_needed_to_run_it_again(tmp_path):
    out = tmp_path / "run"
    traj = run_it(out)
    config = json.loads((out / "config.json").read_text())
    assert config == json.loads(json.dumps(dict(traj.config)))
    assert config["rule"] == {"class": "GD"} | config["rule"] and config["rule"]["lr"] == 0.5
    assert config["net"]["m"] == 6 and config["seed"] == 0
    (again,) = flows.load_data(out)
    assert_array_equal(again.X, PARITY.X)
    assert again.sha256() == PARITY.sha256() and flows.load_certificate(out) is None
    assert not [path for path in out.rglob(".*") if path.name != ".lock"]


def test_ctrl_c_returns_what_there_is(tmp_path):
    out = tmp_path / "run"

    def interrupt(seconds, share, now):
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "BLINK", -1.0)
        traj = run_it(out, progress=interrupt)
    assert traj.interrupted and len(traj.t) >= 1 and signal.getsignal(signal.SIGINT) is before
    assert_same(run_it(None), run_it(out, resume=True))


@pytest.mark.parametrize("name", ["look", "advance"])
def test_a_second_ctrl_c_before_a_record_was_taken_loses_none(tmp_path, name):
    """Checkpoints said that there was one: runs were called damaged, or went on without it."""
    work = getattr(training._Loop, name)

    def pressed(loop):
        rows = work(loop)
        if loop.step > 3 or name == "look":
            raise KeyboardInterrupt
        return rows

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training._Loop, name, pressed)
        assert run_it(tmp_path / "run").interrupted
    assert_same(run_it(None), run_it(tmp_path / "run", resume=True))


def test_a_job_that_ignores_ctrl_c_is_trained_to_its_end(tmp_path, monkeypatch):
    """Shells have jobs in the background ignore it, and send it to them all the same."""
    monkeypatch.setattr(training, "BLINK", -1.0)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        traj = run_it(None, progress=lambda *_: os.kill(os.getpid(), signal.SIGINT))
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert not traj.interrupted


# ---------------------------------------------------------------- the door


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({}, "nothing ends this training"),
        ({"steps": 0}, "steps must be an integer"),
        ({"steps": 2.5}, "steps must be an integer"),
        ({"time": -1.0}, "time must be a positive number"),
        ({"steps": 5, "trials": 0}, "trials must be an integer"),
        ({"steps": 5, "points": 1}, "points must be an integer"),
        ({"steps": 5, "dtype": "int8"}, "dtype must be"),
        ({"steps": 5, "device": "abacus"}, "device must be"),
        ({"steps": 5, "clock": "sun"}, "two clocks"),
        ({"steps": 5, "times": [9]}, "after the end"),
        ({"steps": 5, "times": [0.5]}, "must be integers"),
        ({"steps": 5, "times": "often"}, "times must be"),
        ({"steps": 5, "loss": "hinge"}, "unknown loss"),
        ({"steps": 5, "until": "tired"}, "choose fitted"),
        ({"steps": 5, "until": 3}, "until must be an event"),
        ({"steps": 5, "seconds": -1}, "seconds between checkpoints must not be negative"),
        ({"steps": 5, "resume": True}, "nothing to resume without a run folder"),
        ({"steps": 5, "observe": "weather"}, "no observer 'weather'"),
        ({"steps": 5, "observe": "test_error"}, "needs test data"),
        ({"steps": 5, "observe": {"x": lambda view: torch.zeros(7)}}, "one row per trial"),
        ({"steps": 5, "observe": {"x": lambda: 0}}, "must take"),
        ({"steps": 5, "observe": {"x": lambda t, params: t}}, "must take one argument, a View"),
        ({"steps": 5, "bias": True}, "takes 4 features but the data has 5"),
    ],
)
def test_bad_input_is_one_sentence(keys, sentence):
    with pytest.raises(InputError, match=sentence):
        train(PARITY, NET, GD(), **grouped(**keys))


def test_a_plain_value_is_the_first_field_of_what_ends_records_and_keeps_a_run(tmp_path):
    """And what is given there but is no such field is refused in a sentence."""
    short = train(PARITY, NET, GD(), stop=7, record=["risk"], keep=str(tmp_path / "short"))
    whole = train(PARITY, NET, GD(), stop=Stop(steps=7), record=Record(observe=["risk"]), keep=Keep(tmp_path / "whole"))
    assert_same(short, whole)
    assert_same(flows.load(tmp_path / "short"), flows.load(tmp_path / "whole"))
    for keys, sentence in (
        ({"stop": "fitted"}, "steps must be an integer"),
        ({"stop": 5, "record": 12}, "what is observed must be"),
        ({"stop": 5, "record": Keep("run")}, "what is observed must be"),
        ({"stop": 5, "keep": True}, "out must be the path"),
        ({"stop": 5, "keep": Stop(3)}, "out must be the path"),
    ):
        with pytest.raises(InputError, match=sentence):
            train(PARITY, NET, GD(), **keys)


def test_bad_things_are_refused():
    with pytest.raises(InputError, match="data must be"):
        train([], NET, GD(), stop=5)
    with pytest.raises(InputError, match="2 data sets but trials=3"):
        train([PARITY, PARITY], NET, GD(), stop=5, trials=3)
    with pytest.raises(InputError, match="net must be"):
        train(PARITY, "relu", GD(), stop=5)
    with pytest.raises(InputError, match="rule must be"):
        train(PARITY, NET, "gd", stop=5)
    with pytest.raises(InputError, match="at least one feature and one neuron"):
        TwoLayer(4, 0)
    with pytest.raises(InputError, match="y has 2 columns, and training takes one target for each point"):
        train(Dataset(PARITY.X, np.ones((PARITY.n, 2))), NET, GD(), stop=5, loss="squared")


def test_a_trajectory_prints_as_one_line():
    traj = train(PARITY, NET, GD(), stop=5, trials=2)
    assert str(traj).startswith("2 trials (2 finished), ") and "\n" not in str(traj)
    with pytest.raises(InputError, match="nothing called 'weather' was recorded; there is step"):
        traj["weather"]
    assert json.loads(json.dumps(traj.summary()))["trials"][1]["status"] == "finished"


@pytest.mark.gpu
@pytest.mark.parametrize(
    "rule", [GD(lr=0.5), SGD(lr=0.5, batch=3), flows.GradientFlow()], ids=lambda rule: type(rule).__name__
)
def test_on_a_gpu_a_resumed_run_is_the_same_and_near_that_of_the_cpu(tmp_path, rule):
    keys = {"steps": 60, "trials": 3, "device": "cuda"}
    whole, resumed, _ = whole_and_broken(tmp_path, rule, **keys)
    assert_same(whole, resumed)
    compared = slice(None)
    if isinstance(rule, flows.GradientFlow):
        # Its steps end where rounding puts them, so what is compared is one moment that it hits exactly.
        rule, keys = flows.GradientFlow(rtol=1e-6, until=flows.events.Time(0.5)), {"steps": 100, "trials": 3}
        whole = train(PARITY, NET, rule, **grouped(observe=SCALARS, device="cuda", **keys))
        assert whole.status == ("finished",) * 3
        compared = slice(-1, None)
    host = train(PARITY, NET, rule, **grouped(observe=SCALARS, **{**keys, "device": "cpu"}))
    assert_allclose(whole["risk"][compared], host["risk"][compared], rtol=1e-6)


@pytest.mark.gpu
def test_on_a_gpu_trials_end_by_themselves():
    traj = train(
        PARITY, TwoLayer(4, 20), GD(lr=1.0), stop=Stop(2000, until="fitted", check_every=1), trials=5, device="cuda"
    )
    host = train(PARITY, TwoLayer(4, 20), GD(lr=1.0), stop=Stop(2000, until="fitted"), trials=5)
    assert traj.status == host.status == ("reached",) * 5
    assert_array_equal(traj["step"][-1], host["step"][-1])
    for name, value in host.final.items():
        assert_allclose(traj.final[name], value, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("rule", [GD(0.1), SGD(0.1, batch=3, seed=5)], ids=["gd", "sgd"])
def test_some_trials_by_their_numbers_are_those_of_the_whole_batch(rule):
    whole = train(PARITY, NET, rule, stop=20, trials=5, seed=7, record=Record(points=4))
    some = train(PARITY, NET, rule, stop=20, trials=[4, 1], seed=7, record=Record(points=4))
    for name in ("a", "V"):
        assert_allclose(some.final[name], whole.final[name][[4, 1]], rtol=1e-12)
    assert some.config["trials"] == [4, 1] and whole.config["trials"] == 5
    with pytest.raises(InputError, match="numbers of trials"):
        train(PARITY, NET, rule, stop=2, trials=[-1])


@pytest.mark.parametrize("keys", [{"steps": 10**400}, {"steps": 10**5000}, {"time": 10**400}, {"steps": 2**53 + 1}])
def test_ends_that_no_number_holds_are_refused(keys):
    with pytest.raises(InputError, match=r"^(steps|time) must be .{,120}$"):
        flows.Stop(**keys)


READERS = [
    flows.load,
    flows.load_data,
    flows.load_certificate,
    monitor.load,
    monitor.config,
    theory.check,
    theory.follow,
]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("given", [3, None, b"run", [3]])
def test_a_folder_that_is_no_path_is_one_sentence(read, given):
    with pytest.raises(InputError, match="must be a path, not"):
        read(given)


@pytest.mark.parametrize(
    ("rule", "trials"),
    [
        (flows.GD(), 10**12),
        (flows.SGD(batch=10**12), 1),
        (flows.TwoPhase(batch2=10**12), 1),
        (flows.WeaklyRegularized(memory=10**12), 1),
    ],
)
def test_what_does_not_fit_into_memory_is_one_sentence(rule, trials):
    """The library was asked for all of it, and said so in a traceback; where it got it, the process was killed."""
    points = Dataset([[1.0, 0.5], [-1.0, 0.5]], [1, -1])
    with pytest.raises(InputError, match=r"takes at least [\d.e+]+ TB of memory, and .* are free"):
        flows.train(points, flows.TwoLayer(2, 4), rule, stop=2, trials=trials)


def test_a_network_is_as_large_as_its_outputs_for_all_points(monkeypatch):
    """Parameters of a trial are 12 numbers, and a point has 4 pre-activations and one output."""
    points = Dataset(np.random.default_rng(0).standard_normal((50, 2)), np.ones(50))
    net, trials = flows.TwoLayer(2, 4), 10**5
    problem = flows.pose(net, points, "logistic")
    parameters, point = own_parts.check_net(problem, range(1), 0)
    assert parameters == 12 * 8 and 8 * 5 <= point <= 8 * 20
    need = trials * (2 * parameters + 50 * point)
    monkeypatch.setattr(door, "free_memory", lambda: 1.01 * need)
    own_parts.check_room(problem, flows.GD(), trials, parameters, point)
    monkeypatch.setattr(door, "free_memory", lambda: 0.99 * need)
    with pytest.raises(InputError, match="100000 trials, 50 examples each"):
        flows.train(points, net, flows.GD(), stop=1, trials=trials)


def test_a_folder_that_was_replaced_is_not_written_to(tmp_path, monkeypatch):
    """In the place of a folder that was moved away there may be the run of another process."""
    monkeypatch.setattr(training, "BLINK", 0.0)
    run, moved = tmp_path / "run", tmp_path / "moved"

    def replace(*_):
        if not moved.exists():
            run.rename(moved)
            run_it(run, seed=9)

    done = run_it(run, seconds=1e-9, progress=replace)
    assert any("removed or replaced" in note for note in done.notes)
    assert_same(run_it(None, seed=9), flows.load(run))
    assert_same(run_it(None), run_it(moved, resume=True))


def test_data_of_another_network_are_damage(tmp_path):
    """Configuration and data that agree with themselves, but not with each other: the folder is named, not the network."""
    train(PARITY, TwoLayer(5, 4), GD(), bias=True, stop=2, keep=tmp_path / "run")
    assert flows.load_data(tmp_path / "run")[0].d == 4
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["net"]["d"] = 9
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"data\.npz is damaged \(X has 5 features, and the network takes 9\)"):
        flows.load_data(tmp_path / "run")


@pytest.mark.parametrize(
    "changed",
    [
        {"stop": np.int64(3)},
        {"stop": Stop(np.int32(3), check_every=np.uint8(1))},
        {"seed": np.int64(0), "bias": np.False_},
        {"net": TwoLayer(np.uint8(4), np.uint8(6), law_scale=np.float32(1), mean_field=np.False_)},
        {"record": np.str_("default")},
        {"rule": SGD(lr=np.float32(0.5), batch=np.int64(2), seed=np.int64(0), epoch=np.int16(1))},
        {"rule": SGD(lr=np.float64(0.5), batch=np.uint8(2), weight_decay=np.int64(0))},
    ],
)
def test_numbers_of_numpy_are_as_good(changed, tmp_path):
    """They ended in exceptions of JSON and of C, or were said to be no numbers."""
    plain = {"net": NET, "rule": SGD(lr=0.5, batch=2), "stop": 3}
    run = train(PARITY, **(plain | changed), keep=tmp_path / "run")
    assert_array_equal(run.records["risk"], train(PARITY, **plain).records["risk"])
    assert flows.load(tmp_path / "run").config == run.config
    assert Stop(time=np.float32(2)) == Stop(time=np.int64(2)) == Stop(time=2.0)
