"""The monitor's examples at a small size: they run, write what they promise, and their parts are right."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from widemargin.monitor import config, load

pytestmark = pytest.mark.usefixtures("one_thread")
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WIDEMARGIN_MNIST", raising=False)
    monkeypatch.delenv("WIDEMARGIN_CIFAR10", raising=False)


def example(name: str) -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name=name))


def run(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Path:
    """Run an example; its folder."""
    monkeypatch.setattr(sys, "argv", [name, "--out", "out", *arguments])
    assert example(name).main() == 0
    return Path("out")


def columns(folder: Path, part: str) -> dict[str, np.ndarray]:
    rows = [row for row in load(folder).to_pylist() if row["name"] == part]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def check_records(folder: Path, degree: int, names: list[str], epochs: int) -> dict[str, np.ndarray]:
    """Every epoch of training is there, and what is derived agrees with what it is derived from."""
    found = config(folder)["homogeneous"]
    assert found["names"] == names and found["degree"] == degree
    train = columns(folder, "train")
    assert train["step"].tolist() == list(range(epochs + 1))
    assert_allclose(train["psi_normalized"], train["psi"] / train["norm"] ** degree, rtol=1e-10)
    total = train["n"] * train["loss"]  # psi = l^{-1}(sum of losses) for l(p) = ln(1 + exp(-p))
    assert_allclose(train["psi"], -np.log(np.expm1(np.minimum(total, 600))) - np.maximum(total - 600, 0), rtol=1e-9)
    assert (train["psi"] <= train["margin"]).all() and ((train["margin"] > 0) == (train["error"] == 0)).all()
    return train


def cats_and_dogs(path: Path, n: int = 60) -> None:
    """Images of the shape of CIFAR-10's whose brightness tells the class, mostly."""
    rng = np.random.default_rng(0)
    labels = np.where(np.arange(n) % 2, 3, 5).astype(np.uint8)
    images = (rng.integers(0, 150, (n, 32, 32, 3)) + 20 * labels[:, None, None, None]).astype(np.uint8)
    np.savez(path, train_images=images, train_labels=labels, test_images=images[:30], test_labels=labels[:30])


def test_mlp(monkeypatch, capsys):
    out = run("monitor_mlp", monkeypatch, "--n", "30", "--epochs", "60")
    said = capsys.readouterr().out
    assert "homogeneous of degree 3" in said
    for folder in ("sgd", "sgd-momentum", "adam", "adam-weight-decay"):
        train = check_records(out / folder, 3, ["0.weight", "2.weight", "4.weight"], 60)
        test = columns(out / folder, "test")
        assert train["loss"][-1] < 0.5 * train["loss"][0]
        assert test["step"][-1] == 60 and (test["error"] > 0).all()
    assert columns(out / "adam", "train")["psi_normalized"][-1] > 0
    assert (out / "monitor_mlp.png").stat().st_size > 20_000


def test_resnet(monkeypatch, capsys):
    cats_and_dogs(Path("images.npz"))
    monkeypatch.setenv("WIDEMARGIN_CIFAR10", "images.npz")
    out = run("monitor_resnet", monkeypatch, "--n", "20", "--epochs", "25", "--width", "4")
    assert "degree 2 in norm.weight, norm.bias, head.weight" in capsys.readouterr().out
    for folder in ("no-weight-decay", "weight-decay-0.0005"):
        train = check_records(out / folder, 2, ["norm.weight", "norm.bias", "head.weight"], 25)
        assert train["loss"][-1] < 0.5 * train["loss"][0]
    assert (out / "monitor_resnet.png").stat().st_size > 20_000


def test_resnet_without_images_says_what_to_do(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["monitor_resnet"])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(EXAMPLES / "monitor_resnet.py"), run_name="__main__")
    said = capsys.readouterr()
    assert left.value.code == 2 and not said.out
    assert "WIDEMARGIN_CIFAR10" in said.err and said.err.count("\n") == 1


def test_a_folder_with_records_is_not_overwritten(monkeypatch, capsys):
    run("monitor_mlp", monkeypatch, "--n", "20", "--epochs", "1")
    before = Path("out/sgd/records.parquet").read_bytes()
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(EXAMPLES / "monitor_mlp.py"), run_name="__main__")
    assert left.value.code == 2 and "already holds records" in capsys.readouterr().err
    assert Path("out/sgd/records.parquet").read_bytes() == before


def test_text(monkeypatch, capsys):
    out = run("monitor_text", monkeypatch, "--n", "90", "--epochs", "25")
    assert "degree 2 in norm.weight, norm.bias, head.weight" in capsys.readouterr().out
    for folder in ("adam", "adam-weight-decay"):
        train = check_records(out / folder, 2, ["norm.weight", "norm.bias", "head.weight"], 25)
        assert train["error"][-1] == 0 and json.loads(train["classes"][-1])[0]["n"] > 0
    assert (out / "monitor_text.png").stat().st_size > 20_000


def test_sentences_are_used_once_and_all_libraries_are_there():
    text = example("monitor_text")
    texts, labels, test_texts, test_labels = text.data(120, 1)
    assert len(set(texts) | set(test_texts)) == len(texts) + len(test_texts)
    assert set(labels) == set(test_labels) == set(range(len(text.LIBRARIES)))
    assert all(4 <= len(one) <= text.LENGTH for one in texts)
    files = [set(file) for library in text.LIBRARIES for file in text.sentences(library, 80, 1)]
    both = [file for file in files if file & set(texts) and file & set(test_texts)]
    repeated = {one for k, file in enumerate(files) for other in files[:k] for one in file & other}
    assert all(file & set(texts) <= repeated or file & set(test_texts) <= repeated for file in both)


def test_padding_is_ignored():
    """What lies at the padded places does not reach the logits: a sentence alone, cut to its words, has the same ones."""
    text = example("monitor_text")
    torch.manual_seed(0)
    model = text.Reader(50, 3).double().eval()
    tokens = text.numbers([("a", "b", "c", "a", "d")], {"a": 2, "b": 3, "c": 4, "d": 5})
    assert tokens.tolist() == [[2, 3, 4, 2, 5] + [text.PADDING] * (text.LENGTH - 5)]
    with torch.no_grad():
        padded = model(tokens)
        words = model.word(tokens[:, :5]) + model.place[:5]
        short = model.head(model.norm(model.block(words).mean(1)))
        model.word.weight[text.PADDING] = 7.0
        torch.testing.assert_close(padded, short, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(model(tokens), padded, rtol=1e-12, atol=1e-12)


def test_blocks_of_the_resnet_have_the_shapes_of_their_stages():
    resnet = example("monitor_resnet")
    torch.manual_seed(0)
    for blocks, depth in ((1, 8), (2, 14)):
        model = resnet.ResNet(blocks, 4)
        weights = [p for n, p in model.named_parameters() if "conv" in n or n in ("stem.weight", "head.weight")]
        assert len(weights) == depth
        assert model.stages(model.stem(torch.randn(2, 3, 32, 32))).shape == (2, 16, 8, 8)
        assert model(torch.randn(2, 3, 32, 32)).shape == (2,)
