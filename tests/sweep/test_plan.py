"""What a sweep is: combinations, draws, keys, batches, and what is refused."""

import itertools
import json
import math
import tracemalloc

import numpy as np
import pytest
import torch

from widemargin import flows
from widemargin.sweep import Sweep, tasks
from widemargin.sweep import plan as planning
from widemargin.types import InputError

DATA = "parity:d=4,n=10,seed={trial}"
FIXED = {"data": DATA, "steps": 5}


def test_every_combination_and_trial_once():
    plan = Sweep("train", fixed=FIXED, grid={"width": [4, 8, 16], "lr": [0.1, 0.2]}, repeats=5)
    runs = list(plan.runs("1"))
    found = {(run.params["width"], run.params["lr"], run.trial) for run in runs}
    assert found == set(itertools.product([4, 8, 16], [0.1, 0.2], range(5)))
    assert len(runs) == len(plan) == 30 and len({run.key for run in runs}) == 30
    assert all(run.params["data"] == f"parity:d=4,n=10,seed={run.trial}" for run in runs)


def test_a_key_depends_on_function_parameters_seed_trial_and_version_and_on_nothing_else():
    def key(plan, version="1"):
        return next(iter(plan.runs(version))).key

    base = Sweep("train", fixed=FIXED, grid={"width": [4, 8]}, repeats=2)
    same = Sweep("train", name="other", fixed={"width": 4, **FIXED}, repeats=7, keep=["risk"], pack=3)
    assert key(base) == key(same)
    others = [
        key(base, "2"),
        key(Sweep("train", fixed=FIXED, grid={"width": [4, 8]}, seed=1)),
        key(Sweep("train", fixed=FIXED | {"steps": 6}, grid={"width": [4, 8]})),
        key(Sweep("margin", fixed=FIXED, grid={"width": [4, 8]})),
        list(base.runs("1"))[1].key,
    ]
    assert len({key(base), *others}) == 6


def test_draws_follow_their_law_and_depend_on_the_seed_alone():
    laws = {
        "a": {"low": 1e-3, "high": 1.0, "log": True},
        "b": {"low": -1.0, "high": 3.0},
        "c": {"low": 1, "high": 4, "integer": True},
        "e": {"low": 1, "high": 100, "integer": True, "log": True},
        "f": {"choices": ["x", "y"]},
    }
    plan = Sweep("mine:f", random=laws, samples=4000)
    drawn = list(plan.combinations())
    a, b = (np.array([one[name] for one in drawn]) for name in "ab")
    # Uniform laws have mean and variance known; 4000 draws are within 5 standard errors.
    assert abs(np.log10(a).mean() + 1.5) < 5 * 3 / np.sqrt(12 * 4000) and a.min() >= 1e-3 and a.max() <= 1
    assert abs(b.mean() - 1) < 5 * 4 / np.sqrt(12 * 4000) and abs(b.var() - 16 / 12) < 0.1
    c, e = (np.array([one[name] for one in drawn]) for name in "ce")
    counts = np.bincount(c)[1:]
    assert len(counts) == 4 and (abs(counts - 1000) < 5 * np.sqrt(750)).all()
    # P(e <= 9) = log(10) / log(101)
    assert abs((e <= 9).mean() - np.log(10) / np.log(101)) < 0.04 and e.min() == 1 and e.max() <= 100
    assert {one["f"] for one in drawn} == {"x", "y"}
    alone = Sweep("mine:f", random={"b": laws["b"]}, samples=10)  # a further law changes no other's draws
    assert [one["b"] for one in alone.combinations()] == list(b[:10])
    assert list(Sweep("mine:f", random=laws, samples=3, seed=1).combinations()) != drawn[:3]


def test_integers_drawn_by_their_logarithm():
    """k is drawn with probability log((k + 1) / k) / log((high + 1) / low)."""
    law = {"low": 1, "high": 2, "integer": True, "log": True}
    drawn = [one["n"] for one in Sweep("mine:f", random={"n": law}, samples=4000).combinations()]
    p = math.log(2) / math.log(3)
    assert set(drawn) == {1, 2} and abs(drawn.count(1) / 4000 - p) < 5 * math.sqrt(p * (1 - p) / 4000)


@pytest.mark.parametrize(
    "law",
    [
        {"low": 0.1, "high": 0.1, "log": True},  # exp(log(0.1)) = 0.10000000000000002
        {"low": 0.3, "high": 0.3, "log": True},
        {"low": 5e-324, "high": 1e308, "log": True},
        {"low": 0.1, "high": 0.1},
        {"low": 5, "high": 5, "integer": True, "log": True},  # the floor of exp(log(5)) is 4
        {"low": 7, "high": 8, "integer": True, "log": True},
    ],
)
def test_draws_stay_in_their_interval(law, monkeypatch):
    class Ends:
        """Draws the end that it is asked for."""

        def __init__(self, k):
            self.k = k

        def uniform(self, *ends):
            return ends[self.k]

    kind = int if law.get("integer") else float
    plan = Sweep("mine:f", random={"x": law}, samples=50)
    found = [one["x"] for one in plan.combinations()] + [planning._draw(law, Ends(k)) for k in (0, 1)]
    assert all(type(x) is kind and law["low"] <= x <= law["high"] for x in found)


def test_plans_that_may_share_runs():
    def plan(**keys):
        return Sweep(**{"function": "mine:f", "fixed": {"a": 1}, "grid": {"b": [1, 2]}} | keys)

    law = {"low": 0, "high": 1}
    drawn = plan(random={"c": law}, samples=2)
    for one, two, same in [
        (plan(), plan(repeats=3, keep=["x"], name="other"), True),
        (plan(), plan(grid={"b": [2, 3]}), True),
        (plan(), plan(fixed={"b": 2}, grid={"a": [0, 1]}), True),
        (plan(), plan(grid={}, random={"b": {"choices": [5, 2]}}, samples=1), True),
        (drawn, plan(random={"c": law}, samples=5), True),
        (plan(), plan(grid={"b": [3]}), False),
        (plan(), plan(fixed={"a": 1.0}), False),
        (plan(), plan(fixed={}), False),
        (plan(), plan(seed=1), False),
        (plan(), plan(function="mine:g"), False),
        (drawn, plan(random={"c": {"low": 0, "high": 2}}, samples=2), False),
    ]:
        assert one.shares_runs(json.loads(two.text())) == two.shares_runs(json.loads(one.text())) == same
        assert bool({run.key for run in one.runs("1")} & {run.key for run in two.runs("1")}) <= same
    assert {run.key for run in plan().runs("1")} & {run.key for run in plan(grid={"b": [2, 3]}).runs("1")}


def test_a_batch_holds_what_is_trained_together():
    grid = {"sep": [2.0, 3.0], "width": [4, 8], "data": ["clusters:n=10,sep={sep},seed={trial}", "parity:d=2,n=4"]}
    plan = Sweep("train", fixed={"steps": 5}, grid=grid, repeats=5, pack=8)
    found = list(tasks.batches(plan, "1"))
    assert [len(batch) for batch in found] == [8, 8, 4] * 2  # 20 runs of each width; data and sep do not matter
    assert all(len({run.params["width"] for run in batch}) == 1 for batch in found)
    keys = [run.key for batch in found for run in batch]
    assert sorted(keys) == sorted(run.key for run in plan.runs("1"))


@pytest.mark.parametrize("function", ["mine:f", "train"])
def test_a_batch_fits_into_memory_whatever_pack_says(function, monkeypatch):
    monkeypatch.setattr(tasks, "LARGEST", 7)
    plan = Sweep(function, fixed={"data": "parity:d=2,n=4"}, repeats=10**12, pack=10**12)
    assert [len(batch) for batch in itertools.islice(tasks.batches(plan, "1"), 3)] == [7, 7, 7]


def test_a_plan_reads_itself_again():
    plan = Sweep("train", fixed=FIXED, grid={"width": np.array([4, 8]), "lr": (0.1,)}, repeats=2, keep=["risk"])
    again = Sweep(**json.loads(plan.text()))
    assert [run.key for run in again.runs("1")] == [run.key for run in plan.runs("1")] and again == plan


def test_the_mark_that_windows_writes_first_is_left_out(tmp_path):
    (tmp_path / "a.toml").write_text('\ufefffunction = "train"\nrepeats = 3\n', encoding="utf-8")
    assert len(Sweep.load(tmp_path / "a.toml")) == 3


def test_a_million_runs_are_not_in_memory_at_once():
    plan = Sweep("mine:f", grid={"a": list(range(100)), "b": list(range(100))}, repeats=100, pack=50)
    assert len(plan) == 10**6
    tracemalloc.start()
    count = sum(len(batch) for batch in itertools.islice(tasks.batches(plan, "1"), 400))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 20_000 and peak < 1e6  # 20,000 runs at once would take 20 MB


BAD = [
    ('fuction = "train"', "unknown key 'fuction'"),
    ("name = [", "is no TOML file"),
    ("name = 'x'", "does not say what to run"),
    ("function = 3", "function must be"),
    ("function = 'train'\nname = 3", "name must be a text"),
    ("function = 'train'\nrepeats = 0", "repeats must be an integer of at least 1"),
    ("function = 'train'\nrepeats = true", "repeats must be an integer"),
    ("function = 'train'\nseed = 1.5", "seed must be an integer"),
    ("function = 'train'\nkeep = 'risk'", "keep must be a list"),
    ("function = 'train'\nkeep = []", "keep must be a list"),
    ("function = 'train'\ngrid = 3", "[grid] must be a table"),
    ("function = 'train'\n[grid]\nwidth = []", "the grid of 'width' is empty"),
    ("function = 'train'\n[grid]\nwidth = 3", "the grid of 'width' is empty or no list"),
    ("function = 'train'\n[grid]\nwidth = [3, 3]", "has a value twice"),
    ("function = 'train'\n[fixed]\nwidth = 3\n[grid]\nwidth = [3]", "given twice"),
    ("function = 'train'\n[fixed]\nWidth = 3\n[grid]\nwidth = [3]", "in case only"),
    ("function = 'train'\n[fixed]\nseed = 3", "set repeats, and seed at the top"),
    ("function = 'train'\n[fixed]\nkey = 3", "a column of the table itself"),
    ("function = 'train'\n[fixed]\nlr = nan", "give a finite number"),
    ("function = 'train'\n[fixed]\nlr = 2020-01-01", "a value of type date"),
    ("function = 'train'\n[fixed]\nlr = { low = 1, high = 2 }", "a value of type dict"),
    ("function = 'train'\n[random]\nlr = { low = 1, high = 2 }", "needs samples"),
    ("function = 'train'\nsamples = 3", "[random], which is missing"),
    ("function = 'train'\nsamples = 3\n[random]\nlr = { low = 2, high = 1 }", "the law of 'lr'"),
    ("function = 'train'\nsamples = 3\n[random]\nlr = { low = 0, high = 1, log = true }", "low must be above 0"),
    ("function = 'train'\nsamples = 3\n[random]\nlr = { low = 0.5, high = 1, integer = true }", "must be integers"),
    ("function = 'train'\nsamples = 3\n[random]\nlr = { low = 1, high = 2, log = 'yes' }", "true or false"),
    ("function = 'train'\nseed = " + "1" * 5000, "thousands of digits"),
    ("function = " + "[" * 3000, "lists too deep"),
    ("function = 'train'\n[fixed]\nx = " + "[" * 30 + "]" * 30, "more than 20 deep"),
    (f"function = 'train'\nrepeats = {10**19}", "repeats is beyond 2^63 - 1"),
    (f"function = 'train'\nsamples = {10**19}", "samples is beyond 2^63 - 1"),
    (f"function = 'train'\nseed = {2**63}", "seed is beyond 2^63 - 1"),
    (f"function = 'train'\npack = {2**63}", "pack is beyond 2^63 - 1"),
    (f"function = 'train'\nrepeats = {2**62}\n[grid]\nx = [1, 2]", "more than 2^63 - 1 runs"),
    (f"function = 'train'\n[fixed]\nx = {10**400}", "'x' has an integer beyond"),
    (f"function = 'train'\n[grid]\nx = [[1, {-(2**63)}]]", "'x' has an integer beyond"),
    (f"function = 'train'\nsamples = 3\n[random]\nx = {{ choices = [{2**63}] }}", "'x' has an integer beyond"),
    (f"function = 'train'\nsamples = 3\n[random]\nx = {{ low = 1, high = {2**70}, integer = true }}", "is too wide"),
    (f"function = 'train'\nsamples = 3\n[random]\nx = {{ low = 1, high = {10**400} }}", "is too wide"),
    ("function = 'train'\nsamples = 3\n[random]\nx = { low = -1e308, high = 1e308 }", "is too wide"),
    ("a" + ".a" * 11 + " = 1", "a key with more than 10 dots"),
    ("a" + " . 'b.c'" * 11 + " = 1", "a key with more than 10 dots"),
    ("[" + "a." * 11 + "a]", "a key with more than 10 dots"),
    ("x = {" + "a." * 11 + "a = 1}", "a key with more than 10 dots"),
    ('x = """\n\\""" \\\n"""\n' + "a." * 11 + "a = 1", "a key with more than 10 dots"),
    ("#" * (1 << 20) + "#", "at most 1048576 are read"),
]


@pytest.mark.parametrize("text, words", BAD, ids=[f"{k}: {words}" for k, (_, words) in enumerate(BAD)])
def test_bad_files(text, words, tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        Sweep.load(path)
    assert words in str(error.value) and "a.toml" in str(error.value) and "\n" not in str(error.value)
    assert len(str(error.value)) < 600  # and no number of 400 digits


def test_the_largest_integers_are_taken():
    most = 2**63 - 1
    law = {"low": -most, "high": most, "integer": True}
    plan = Sweep("mine:f", fixed={"x": most, "y": -most}, random={"z": law}, samples=1, repeats=most, seed=most)
    assert len(plan) == most and -most <= next(plan.runs("1")).params["z"] <= most
    log = Sweep("mine:f", random={"z": {"low": most, "high": most, "integer": True, "log": True}}, samples=5)
    assert {one["z"] for one in log.combinations()} == {most}


def test_names_of_half_characters_are_refused():
    for keys in ({"fixed": {"z\ud800": 1}}, {"name": "z\ud800"}):
        with pytest.raises(InputError, match="must be a text"):
            Sweep("mine:f", **keys)


BRACES = [
    ("{y:{zz}}", 1, "asks for 'zz'"),
    ("{y:{text}}", 1, "asks for 'text'"),
    ("{y:d}", [1], "unsupported format string"),
    ("{y:d}", "a", "Unknown format code 'd'"),
    ("{y:c}", 10**9, "mend what stands in braces"),
    ("{y[0]}", [1], "asks for 'y[0]'"),
    ("{y", 1, "mend what stands in braces"),
    ("{}", 1, "asks for ''"),
    ("{y:101}", 1, "more than 100 characters"),
    ("{y:3000000}", 1, "more than 100 characters"),
    ("{y:.101f}", 1, "more than 100 characters"),
    ("{y:\u0663\u0660\u0660}", 1, "more than 100 characters"),
    ("{trial:{y}}", 3_000_000, "more than 100 characters"),
    ("{trial:{y:101}}", 1, "more than 100 characters"),
    ("{y}" * 30, "x" * 40_000, "more than 1048576 characters"),
]


@pytest.mark.parametrize("text, y, words", BRACES)
def test_bad_braces(text, y, words):
    plan = Sweep("mine:f", fixed={"text": text, "y": y})
    with pytest.raises(InputError) as error:
        next(plan.runs("1"))
    assert words in str(error.value)


def test_dots_in_texts_numbers_and_comments_are_no_keys(tmp_path):
    dots = ".".join("abcdefghijklmno")
    lines = ["function = 'mine:f'", f"name = '{dots}' # {dots}", "[fixed]", f'a = """\n{dots}\n"""', f'b = "{dots}"']
    lines += [f"c = '''\n\"{dots}''''", "[grid]", f"x = {[k / 8 for k in range(50)]}"]
    (tmp_path / "a.toml").write_text("\n".join(lines))
    plan = Sweep.load(tmp_path / "a.toml", trust=True)
    assert plan.name == plan.fixed["b"] == plan.fixed["a"].strip() == dots and len(plan) == 50
    assert plan.fixed["c"] == f"\"{dots}'"


def test_braces_within_a_format_ask_for_parameters_too():
    plan = Sweep("mine:f", fixed={"text": "{y:0{w}d}-{trial}", "y": 7, "w": 3})
    assert next(plan.runs("1")).params["text"] == "007-0" and plan.mentioned() == {"y", "w"}


WRONG = [
    ("trian", {}, "unknown function 'trian'"),
    ("train", {"steps": 5}, "needs data"),
    ("train", {"data": 3, "steps": 5}, "needs data"),
    ("train", {"data": "pairty:d=3,n=4", "steps": 5}, "unknown data set"),
    ("train", {"data": "nowhere.csv", "steps": 5}, "nowhere.csv"),
    ("train", {"data": "parity:d=3,n={m}", "steps": 5}, "asks for 'm'"),
    ("train", {"data": "parity:d=3,n={", "steps": 5}, "data ="),
    ("train", {"data": DATA}, "nothing ends this training"),
    ("train", {"data": DATA, "steps": 5, "depth": 3}, "no parameter 'depth'"),
    ("train", {"data": DATA, "steps": 5, "widht": 3}, "no parameter 'widht'"),
    ("train", {"data": DATA, "steps": 5, "width": "big"}, "width must be a positive integer"),
    ("train", {"data": DATA, "steps": 5, "width": 0}, "width must be a positive integer"),
    ("train", {"data": DATA, "steps": 2.5}, "steps must be a positive integer"),
    ("train", {"data": DATA, "steps": 5, "lr": "0.1"}, "lr must be a positive number"),
    ("train", {"data": DATA, "steps": 5, "bias": 1}, "bias must be true or false"),
    ("train", {"data": DATA, "steps": 5, "net": "rleu"}, "unknown network 'rleu'"),
    ("train", {"data": DATA, "steps": 5, "algorithm": "gdd"}, "gdd"),
    ("train", {"data": DATA, "time": 5, "algorithm": "gf", "lr": 0.1}, "no learning rate"),
    ("train", {"data": DATA, "steps": 5, "law": "lrr"}, "law 'lrr'"),
    ("train", {"data": DATA, "steps": 5, "law_scale": -1.0}, "law_scale must be a positive number"),
    ("train", {"data": DATA, "steps": 5, "law_scale": "x"}, "law_scale"),
    ("margin", {"data": DATA, "kind": "f3"}, "unknown kind of margin"),
    ("margin", {"data": DATA, "steps": 3}, "no parameter 'steps'"),
    ("bound", {"data": DATA, "steps": 3}, "no parameter 'steps'"),
    ("bound", {"data": DATA, "theorems": ["XX-1"]}, "theorems must be a list"),
    ("reproduce", {"id": "XX"}, "no reproduction 'XX'"),
    ("reproduce", {"id": "all"}, "stands for several"),
    ("reproduce", {}, "needs id"),
    ("nowhere_at_all:f", {}, "cannot be imported"),
    ("math:nothing", {}, "cannot be imported"),
    ("math:pi", {}, "is no function"),
]  # fmt: skip


@pytest.mark.parametrize("function, fixed, words", WRONG, ids=[words for _, _, words in WRONG])
def test_what_the_function_does_not_know_is_refused_before_anything_runs(function, fixed, words):
    with pytest.raises(InputError) as error:
        tasks.check(Sweep(function, fixed=fixed))
    assert words in str(error.value)


def test_a_bad_value_anywhere_in_a_grid_is_refused():
    for grid in ({"width": [4, 8, -1]}, {"width": [4], "net": ["relu", "rleu"]}):
        with pytest.raises(InputError):
            tasks.check(Sweep("train", fixed=FIXED, grid=grid))
    with pytest.raises(InputError, match="no parameter 'law'"):  # batchnorm has none
        tasks.check(Sweep("train", fixed=FIXED | {"law": "lr"}, grid={"net": ["relu", "batchnorm"]}))
    with pytest.raises(InputError, match="lr must be a positive number"):
        tasks.check(Sweep("train", fixed=FIXED, random={"lr": {"low": -1.0, "high": 1.0}}, samples=3))


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_the_check_before_a_sweep_trains_on_one_thread_and_records_little(monkeypatch, two_threads):
    """Several threads on these small tensors, and all records, took seconds."""
    seen, real = [], flows.train

    def train(*args, **keys):
        seen.append((torch.get_num_threads(), keys["record"].observe))
        return real(*args, **keys)

    monkeypatch.setattr(flows, "train", train)
    tasks.check(Sweep("train", fixed=FIXED, grid={"lr": [0.1, 0.2]}))
    assert len(seen) >= 2 and all(one == (1, ["log_risk"]) for one in seen)
    assert torch.get_num_threads() == 2


def test_numbers_of_numpy_are_as_good():
    plain = Sweep("train", grid={"width": [4, 8]}, repeats=2, seed=3, pack=5)
    same = Sweep("train", grid={"width": np.array([4, 8])}, repeats=np.int64(2), seed=np.uint8(3), pack=np.int32(5))
    assert same.text() == plain.text() and same == plain
