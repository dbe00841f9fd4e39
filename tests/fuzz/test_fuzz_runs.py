"""Run folders that were damaged: whatever reads them gives an answer or one sentence, and changes nothing."""

import hashlib
import io
import json
import math
import random
import shutil

import numpy as np
import pytest
import torch
from harm import VALUES, check_memory, command, draw, ends, harmed_bytes, harmed_value, share, snapshot

from widemargin import flows, margins
from widemargin.flows import runs
from widemargin.margins.models import of_run
from widemargin.types import Dataset, InputError

TRAIN = ("train", "DATA", "--width", "6", "--steps", "40", "--trials", "2", "--weights", "--points", "12")
RULES = sorted(flows.rule_kinds())


def trained(folder, more=()):
    """A run with weights and a certificate, and the words that made it; None where the words do not go together."""
    data = Dataset([[1.0, 2.0], [2.0, -1.0], [-1.0, 0.5], [0.5, 0.5]], [1, -1, 1, -1])
    np.savez(folder / "points.npz", X=data.X, y=data.y)
    words = [str(folder / "points.npz") if word == "DATA" else word for word in (*TRAIN, *more)]
    status, _, said = command(*words, "--out", folder / "run", "--checkpoint-seconds", "0.001")
    if status == 2:
        return None
    assert status == 0, said
    flows.save_certificate(folder / "run", margins.f1(flows.load_data(folder / "run")[0]))
    return folder / "run", words


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A run of any net, rule and loss."""
    return any_run(draw("what is run"), tmp_path_factory)


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """Runs to take parts from."""
    rng = draw("what else is run")
    return [any_run(rng, tmp_path_factory)[0] for _ in range(3)]


def any_run(rng, tmp_path_factory):
    while True:
        more = ["--net", rng.choice(sorted(flows.nets.KINDS)), "--algorithm", rng.choice(RULES)]
        more += [
            "--loss",
            rng.choice(("exp", "logistic", "ce", "squared")),
            "--dtype",
            rng.choice(("float64", "float32")),
        ]
        more += rng.choice(([], ["--bias"], ["--time", "0.5"], ["--until", "fitted"]))
        if made := trained(tmp_path_factory.mktemp("drawn"), more):
            return made


def rewritten(folder, config):
    """Put a configuration into a run, and its digest into the checkpoints."""
    (folder / "config.json").write_text(json.dumps(config))
    for path in folder.glob("checkpoint-*"):
        point = runs._read_checkpoint(path)
        point["config"] = runs.config_digest(config) if isinstance(config, dict) else ""
        put_checkpoint(path, point)


def put_checkpoint(path, point):
    """With the hash that belongs to it."""
    body = io.BytesIO()
    try:
        torch.save(point, body)
    except RecursionError:  # that harm cannot be done
        return
    content = body.getvalue()
    path.write_bytes(runs.MAGIC + hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def harm_config(rng, folder):
    config = json.loads((folder / "config.json").read_text())
    rewritten(folder, harmed_value(rng, config))


def harm_checkpoint(rng, folder):
    """Both checkpoints, so that there is no other to use."""
    tensors = [
        torch.zeros(()),
        torch.zeros(2, 3),
        torch.ones(2, 6, 2),
        torch.zeros(0),
        torch.ones(2, dtype=torch.int64),
    ]
    for path in folder.glob("checkpoint-*"):
        point = harmed_value(rng, runs._read_checkpoint(path), tensors)
        put_checkpoint(path, point)


def harm_arrays(rng, folder):
    path = rng.choice([*sorted((folder / "records").glob("*.npz")), folder / "data.npz"])
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    name = rng.choice(sorted(arrays))
    value = arrays[name]
    how = rng.randrange(9)
    if how == 0:
        del arrays[name]
    elif how == 1:
        arrays[name] = value[..., :-1] if value.ndim else value
    elif how == 2:
        with np.errstate(all="ignore"):
            arrays[name] = value.astype(rng.choice(["int8", "complex128", "U8", "bool", "float32"]))
    elif how == 3:
        arrays[name] = np.full_like(value, rng.choice([np.nan, np.inf, -np.inf, 1e308, 0.0]))
    elif how == 4:
        arrays[name] = value[None]
    elif how == 5:
        arrays[name] = value.reshape(-1)
    elif how == 6:
        arrays["W_extra"] = value
    elif how == 7:
        arrays[name] = np.zeros((0, *value.shape[1:]))
    else:
        arrays[name] = value[:1]
    np.savez(path, **arrays)


def harm_bytes(rng, folder):
    path = rng.choice([path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"])
    path.write_bytes(harmed_bytes(rng, path.read_bytes()))


def harm_names(rng, folder):
    """Files that are gone, empty, folders, or one in place of another."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"]
    one, other = rng.choice(files), rng.choice(files)
    how = rng.randrange(4)
    content = other.read_bytes()
    one.unlink()
    if how == 0:
        one.mkdir()
    elif how == 1:
        one.write_bytes(b"")
    elif how == 2:
        one.write_bytes(content)


def harm_shapes(rng, folder):
    """Some weights of both checkpoints in another shape or type, or a view of few numbers; their trials stay as they were."""
    part, seed = rng.choice(("final", "final", "final", "start", "now", "aside", "good")), rng.random()
    for path in folder.glob("checkpoint-*"):
        point, same = runs._read_checkpoint(path), random.Random(seed)
        weights = point[part] if part in ("final", "start") else (point[part] or [{}])[0]
        for name in same.sample(sorted(weights), same.randint(min(1, len(weights)), len(weights))):
            old = weights[name]
            flat = old.reshape(len(old), -1)
            weights[name] = same.choice(
                [flat, flat[:, 0], flat[:, :0], old[..., None], torch.cat([old, old], -1), old.transpose(0, -1), old > 0,
                 old.float(), old * math.nan, old[:, :1], torch.zeros(1).expand(len(old), 10**6, 7)]
            )  # fmt: skip
        put_checkpoint(path, point)


HARMS = [harm_config, harm_checkpoint, harm_arrays, harm_bytes, harm_names, harm_shapes]


def put_parts(rng, folder, others):
    """Parts of other runs, or an end that no training has, each of its form and with the hashes that belong to it."""
    other = rng.choice(others)
    config, theirs = (json.loads((run / "config.json").read_text()) for run in (folder, other))
    point = runs._read_checkpoint(rng.choice(sorted(other.glob("checkpoint-*"))))
    points = {path: runs._read_checkpoint(path) for path in sorted(folder.glob("checkpoint-*"))}
    how = rng.randrange(7)
    if how == 0:
        config |= {key: theirs[key] for key in rng.sample(sorted(config), rng.choice((1, 2, 6)))}
    elif how == 1:
        keys = rng.sample(sorted(point), rng.choice((1, 2, 6)))
        points = {path: own | {key: point[key] for key in keys} for path, own in points.items()}
    elif how == 2:
        shutil.rmtree(folder / "records")
        shutil.copytree(other / "records", folder / "records")
    elif how == 3:
        shutil.copy(other / "data.npz", folder / "data.npz")
        config["data"] = theirs["data"]
    elif how == 4:
        shutil.copy(other / runs.CERTIFICATE, folder)
    elif how == 5:
        step = rng.choice((0, 7, 2**62))
        for own in points.values():
            own["step"] = own["now"][1]["step"] = step
    else:
        key, words = rng.choice((("status", runs.STATUSES), ("ended", (-1, 0, 5, 2**62)), ("cursor", (0, 3, 2**62))))
        for own in points.values():
            own[key] = [rng.choice(words) for _ in own[key]]
    (folder / "config.json").write_text(json.dumps(config))
    for path, own in points.items():
        put_checkpoint(path, own | {"config": runs.config_digest(config)})


def readers(folder):
    """What every command begins with."""
    for read in (flows.load, flows.load_data, flows.load_certificate, lambda folder: of_run(flows.load(folder), 0)):
        try:
            with ends():
                read(folder)
        except InputError as error:
            assert "\n" not in str(error) and len(str(error)) < 3000


def test_readers(run, drawn, tmp_path):
    rng = draw("runs")
    for k in range(share(190)):
        folder = tmp_path / "run"
        shutil.copytree(rng.choice([run, drawn])[0], folder)
        HARMS[k % len(HARMS)](rng, folder)
        before = snapshot(folder)
        readers(folder)
        assert snapshot(folder) == before
        shutil.rmtree(folder)
    check_memory()


def asked_of(words, tmp_path):
    return [
        lambda folder: ("plot", folder, "--out", tmp_path / "p.png"),
        lambda folder: ("check", folder, "--json"),
        lambda folder: ("bound", words[1], "--run", folder, "--theorem", "UH-8", "--json"),
        lambda folder: ("report", folder, "--out", tmp_path / "r.html"),
        lambda folder: ("gap", folder, "--weight-decay", "0.1", "--tol", "0.5"),
        lambda folder: (*words, "--out", folder, "--resume"),
    ]


def test_commands(drawn, others, tmp_path):
    """Those that draw, check and go on."""
    rng, (whole, words) = draw("commands on runs"), drawn
    asked = asked_of(words, tmp_path)
    for k in range(share(60)):
        folder = tmp_path / "run"
        shutil.copytree(whole, folder)
        if rng.random() < 0.4:
            put_parts(rng, folder, others)
        else:
            rng.choice(HARMS)(rng, folder)
        before, argv = snapshot(folder), asked[k % len(asked)](folder)
        status, _, said = command(*argv)
        if status == 2:
            after = {path: content for path, content in snapshot(folder).items() if path.name != ".lock"}
            assert after == {path: content for path, content in before.items() if path.name != ".lock"}, (argv, said)
        shutil.rmtree(folder)
    check_memory()


def test_resuming(drawn, tmp_path):
    """A checkpoint with the right hash and anything in it is refused and nothing changed, or goes on to a run of this plan."""
    rng, (whole, words) = draw("resume"), drawn
    meant, answers = flows.load(whole), []
    for _ in range(share(30)):
        folder = tmp_path / "run"
        shutil.copytree(whole, folder)
        harm_checkpoint(rng, folder)
        before = snapshot(folder)
        status, _, said = command(*words, "--out", folder, "--resume")
        answers.append(status)
        if status == 2:
            after = {path: content for path, content in snapshot(folder).items() if path.name != ".lock"}
            assert after == {path: content for path, content in before.items() if path.name != ".lock"}, said
        else:
            got = flows.load(folder)
            assert status == 0 and got.config == meant.config and set(got.records) == set(meant.records), said
            assert {name: value.shape for name, value in got.final.items()} == {
                name: value.shape for name, value in meant.final.items()
            }
        shutil.rmtree(folder)
    assert 2 in answers


def test_options_of_any_type(run):
    from dataclasses import fields

    rng, (_, words) = draw("options"), run
    nets = flows.nets.KINDS
    for k in range(share(150)):
        algorithm, net = RULES[k % len(RULES)], rng.choice(sorted(nets))
        names = [one.name for one in fields(flows.rule_kinds()[algorithm])] + list(nets[net][2])
        given = [
            f"{rng.choice(names)}={rng.choice([*map(str, VALUES), 'true', '3', '1e-3', '-2', 'fitted'])}"
            for _ in range(2)
        ]
        given = [text for text in given if "\x00" not in text]
        more = [part for text in given for part in ("--option", text)]
        command("train", words[1], "--net", net, "--algorithm", algorithm, "--width", "4", "--steps", "2", *more)
    check_memory()


@pytest.mark.parametrize(
    ("algorithm", "option", "words"),
    [
        ("gf", "smallest=x", "smallest must be a number"),
        ("gf", "until=0", "until is an object"),
        ("sgd", "sampler=x", "sampler is an object"),
        ("adam", "unit=1", "unit is an object"),
        ("two-phase", "reset=2", "reset must be true or false"),
        ("gd", "lr=[1]", "lr must be a number"),
        ("weakreg", "per_decade=1e308", "more than 100000 values"),
    ],
)
def test_an_option_of_another_type(run, algorithm, option, words):
    status, out, said = command("train", run[1][1], "--algorithm", algorithm, "--steps", "2", "--option", option)
    assert (status, out) == (2, "") and words in said


def test_words_for_objects_are_understood(run):
    for algorithm, option in (("gf", "until=time=0.5"), ("adam", "unit=V"), ("adam", "only=V,a")):
        status, _, said = command(
            "train", run[1][1], "--algorithm", algorithm, "--width", "4", "--steps", "3", "--option", option
        )
        assert status == 0, said


def test_a_run_without_records_is_no_run_to_check(run, tmp_path):
    """One that was killed before its first, or whose later checkpoints are damaged."""
    folder = tmp_path / "run"
    shutil.copytree(run[0], folder)
    for path in folder.glob("checkpoint-*"):
        put_checkpoint(path, runs._read_checkpoint(path) | {"parts": 0, "cursor": [0, 0]})
    status, out, said = command("check", folder)
    assert (status, out) == (2, "") and "no records yet" in said


def test_a_run_whose_checkpoint_counts_no_records_is_damaged(run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run[0], folder)
    for path in folder.glob("checkpoint-*"):
        put_checkpoint(path, runs._read_checkpoint(path) | {"parts": 0})
    status, out, said = command(*run[1], "--out", folder, "--resume")
    assert (status, out) == (2, "") and "its records are missing" in said


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"log_scale": {}}, "now.log_scale is no tensor"),
        # training would go on from there, for a billion steps
        ({"step": -(10**9)}, "now.step is not the checkpoint's"),
        ({"step": torch.zeros(2)}, "now.step is not the checkpoint's"),
    ],
)
def test_a_state_that_no_rule_left_is_damage(run, tmp_path, wrong, said):
    folder = tmp_path / "run"
    shutil.copytree(run[0], folder)
    for path in folder.glob("checkpoint-*"):
        point = runs._read_checkpoint(path)
        put_checkpoint(path, point | {"now": [point["now"][0], point["now"][1] | wrong]})
    status, out, answer = command(*run[1], "--out", folder, "--resume")
    assert (status, out) == (2, "") and said in answer


def test_parameters_of_another_type_are_damage(run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run[0], folder)
    for path in folder.glob("checkpoint-*"):
        point = runs._read_checkpoint(path)
        narrow = {name: value.float() for name, value in point["now"][0].items()}
        put_checkpoint(path, point | {"now": [narrow, point["now"][1]]})
    status, out, answer = command(*run[1], "--out", folder, "--resume")
    assert (status, out) == (2, "") and "is not of type torch.float64" in answer


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        # training would go on from there, and never meet its end
        ({"status": ["running", "finished"], "ended": [-1, 40]}, "status is running after the last step, 40"),
        ({"status": ["running", "finished"]}, "ended does not say when"),
        ({"step": 41}, "step is 41, after the last one, 40"),
        ({"ended": [40, 2**62]}, "ended has 4611686018427387904, and 40 is the largest"),
        ({"cursor": [0, 10**6]}, "cursor has 1000000"),
        (
            {"step": 40, "status": ["finished"] * 2, "ended": [40, 40], "aside": None},
            "aside does not hold the trials that have ended",
        ),
        ({"pending": {10**6: {}}}, "pending has a row after the last one"),
    ],
)
def test_an_end_that_no_training_has_is_damage(run, tmp_path, wrong, said):
    folder = tmp_path / "run"
    shutil.copytree(run[0], folder)
    for path in folder.glob("checkpoint-*"):
        put_checkpoint(path, runs._read_checkpoint(path) | wrong)
    status, out, answer = command(*run[1], "--out", folder, "--resume")
    assert (status, out) == (2, "") and said in answer


@pytest.mark.parametrize("words", [("report", "--out", "page.html"), ("check",)])
def test_weights_of_another_network_are_damage(run, tmp_path, words):
    """Of records, for points with more features: torch cannot multiply them with these, nor numpy those of more points."""
    folder = tmp_path / "run"
    shutil.copytree(run[0], folder)
    for path in sorted((folder / "records").glob("*.npz")):
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        np.savez(path, **arrays | {"W_V": np.concatenate([arrays["W_V"]] * 2, axis=-1)})
    command_of = (words[0], folder, *([words[1], tmp_path / words[2]] if words[1:] else []))
    status, _, said = command(*command_of)
    if words[0] == "report":  # the other figures need no weights
        assert status == 0 and "of another network or of other points" in (tmp_path / words[2]).read_text()
    else:
        assert status == 2 and "its parameters V are of another network" in said
        for path in sorted((folder / "records").glob("*.npz")):
            with np.load(path) as file:
                arrays = {name: file[name] for name in file.files}
            np.savez(path, **arrays | {"q": np.concatenate([arrays["q"]] * 2, axis=-1)})
        assert "its records q are of another network or of other points" in command("check", folder)[2]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("part", ["final", "start", "now"])
def test_tensors_that_hold_no_numbers_of_their_own_are_damage(run, tmp_path, part):
    """They came to an error of torch, or to an array of any size."""
    folder = tmp_path / "run"
    shutil.copytree(run[0], folder)
    for kind in ("meta", "nested", "sparse", "view"):
        for path, whole in ((path, path.read_bytes()) for path in sorted(run[0].glob("checkpoint-*"))):
            path = folder / path.name
            path.write_bytes(whole)
            point = runs._read_checkpoint(path)
            weights = point["now"][0] if part == "now" else point[part]
            name = min(weights)
            weights[name] = {
                "meta": lambda old: torch.zeros(old.shape, dtype=old.dtype, device="meta"),
                "nested": lambda old: torch.nested.as_nested_tensor([old[0], old[0]]),
                "sparse": lambda old: torch.eye(3, dtype=old.dtype).to_sparse_csr(),
                "view": lambda old: torch.zeros(1, dtype=torch.float32).expand(len(old), 10**12),
            }[kind](weights[name])
            put_checkpoint(path, point)
        command_of = {"now": (*run[1], "--out", folder, "--resume")}.get(part, ("gap", folder, "--weight-decay", "0.1"))
        status, out, said = command(*command_of)
        assert (status, out) == (2, "") and ("is no plain tensor" in said or "is far larger than" in said), (kind, said)


def test_weights_of_another_shape_are_damage(run, tmp_path):
    """`gap` takes them from the end of a run, which nobody compares with its network."""
    folder = tmp_path / "run"
    shutil.copytree(run[0], folder)
    for path in folder.glob("checkpoint-*"):
        point = runs._read_checkpoint(path)
        point["final"] = {name: value.reshape(len(value), -1)[:, 0] for name, value in point["final"].items()}
        put_checkpoint(path, point)
    status, out, said = command("gap", folder, "--weight-decay", "0.1")
    assert (status, out) == (2, "") and f"{folder}: the weights of the run have the shapes" in said


def test_many_views_of_a_few_numbers_are_damage(run, tmp_path):
    """Each was allowed half a gigabyte."""
    folder = tmp_path / "run"
    shutil.copytree(run[0], folder)
    for path in folder.glob("checkpoint-*"):
        point = runs._read_checkpoint(path)
        view = torch.zeros(1, dtype=torch.float32).expand(2, 10**6)
        put_checkpoint(path, point | {"final": point["final"] | {f"more{k}": view for k in range(30)}})
    status, out, said = command("plot", folder, "--out", tmp_path / "p.png")
    assert (status, out) == (2, "") and "is far larger than what it holds" in said


def test_points_that_are_none_are_said_to_be_of_the_run(run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run[0], folder)
    with np.load(folder / "data.npz") as file:
        arrays = {name: file[name] for name in file.files}
    arrays["X"][0, 0] = np.nan
    np.savez(folder / "data.npz", **arrays)
    for words in (("gap", folder, "--weight-decay", "0.1"), ("report", folder, "--out", tmp_path / "r.html")):
        status, out, said = command(*words)
        assert (status, out) == (2, "") and f"{folder / 'data.npz'} is damaged" in said
