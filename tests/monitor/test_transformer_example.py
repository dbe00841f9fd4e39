"""The example with a transformer on modular addition, in a size that takes seconds, and the benchmark of the monitor's cost."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from checks import repeated
from widemargin.monitor import _kernels, tally

pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = Path(__file__).parents[2]


def script(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"script_{Path(path).stem}", ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for the module they are in
    spec.loader.exec_module(module)
    return module


example = script("examples/monitor_transformer.py")
TINY = ["--prime", "5", "--width", "16", "--heads", "2", "--steps", "12", "--every", "3"]


def run(folder: Path, *words: str) -> dict[str, Any]:
    assert example.main([*TINY, "--out", str(folder), *words]) == 0
    return json.loads((folder / "run.json").read_text())


def test_pairs_are_split_with_their_mirror_images_and_only_the_answer_has_a_label():
    parts = example.pairs(7, 0.6, 3)
    both = {name: {tuple(row[:2].tolist()) for row in part["input_ids"]} for name, part in parts.items()}
    assert not both["train"] & both["test"]
    assert both["train"] | both["test"] == {(a, b) for a in range(7) for b in range(7)}
    for name, part in parts.items():
        assert {(b, a) for a, b in both[name]} == both[name]
        assert len(part["labels"]) == len(both[name])  # none twice
        assert (part["labels"][:, :2] == -100).all() and (part["input_ids"][:, 2] == 7).all()
        assert (part["labels"][:, 2] == (part["input_ids"][:, 0] + part["input_ids"][:, 1]) % 7).all()


def test_the_norm_put_in_is_the_one_of_transformers_and_keeps_double_precision():
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    model = example.llama(5, 16, 1, 2, 0, torch.float64)
    assert not any(isinstance(module, LlamaRMSNorm) for module in model.modules())
    norm, theirs = model.model.norm, LlamaRMSNorm(16, eps=model.model.norm.eps)
    x = torch.randn(3, 16, dtype=torch.float64)
    assert_allclose(norm(x).detach().numpy(), theirs(x).detach().double().numpy(), rtol=1e-5)
    exact = x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    assert_allclose(norm(x).detach().numpy(), exact.numpy(), rtol=1e-13)


@repeated("optimizer", ["adamw", "adam", "muon", "sign", "gd", "sgd", "ngd"], 0, 2, 5)
def test_a_tiny_run_measures_what_it_says(tmp_path: Path, optimizer: str):
    found = run(tmp_path / "run", "--optimizer", optimizer, "--dtype", "float64")
    assert found["homogeneous"]["degree"] == 2
    assert found["homogeneous"]["names"] == ["model.norm.weight", "lm_head.weight"]
    curves = found["curves"]
    assert curves["step"] == [0, 3, 6, 9, 12]
    assert_allclose(curves["psi_normalized"], np.array(curves["psi"]) / np.array(curves["norm"]) ** 2, rtol=1e-12)
    assert (tmp_path / "run" / "monitor_transformer.png").stat().st_size < 150_000
    # The last row again, from the saved parameters and the definition: psi = -ln(exp(sum of cross-entropies) - 1).
    model = example.llama(5, 16, 1, 2, 0, torch.float64)
    model.load_state_dict(torch.load(tmp_path / "run" / "state.pt", weights_only=True)["model"])
    data = example.pairs(5, example.arguments([]).share, 0)
    with torch.no_grad():
        logits = model(input_ids=data["train"]["input_ids"]).logits[:, -1]
        total = torch.nn.functional.cross_entropy(logits, data["train"]["labels"][:, -1], reduction="sum")
        test = model(input_ids=data["test"]["input_ids"]).logits[:, -1].argmax(-1)
        square = model.model.norm.weight.square().sum() + model.lm_head.weight.square().sum()
    assert_allclose(curves["psi"][-1], -float(torch.log(torch.expm1(total))), rtol=1e-8)
    assert_allclose(curves["norm"][-1], float(square.sqrt()), rtol=1e-12)
    assert_allclose(curves["test_accuracy"][-1], float((test == data["test"]["labels"][:, -1]).double().mean()))


def test_ngd_goes_along_gd(tmp_path: Path):
    """Its gradient is gd's divided by the loss."""
    gradients = {}
    for optimizer in ("gd", "ngd"):
        options = example.arguments([*TINY, "--optimizer", optimizer, "--dtype", "float64"])
        model = example.llama(5, 16, 1, 2, 0, torch.float64)
        trainer = example.Trainer(model, example.pairs(5, 0.5, 0)["train"], options)
        trainer.first(0)
        gradients[optimizer] = (trainer.now[2], [p.grad.clone() for p in model.parameters()])
    loss, plain = gradients["gd"]
    log_loss, rescaled = gradients["ngd"]
    assert_allclose(float(log_loss), float(loss.log()), rtol=1e-12)
    for one, other in zip(plain, rescaled):
        assert_allclose((one / loss).numpy(), other.numpy(), rtol=1e-9, atol=1e-14)


def test_a_stopped_run_goes_on_as_if_it_had_not_been_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = run(tmp_path / "whole")
    real = example.Trainer.next

    def interrupted(self: Any, step: int) -> None:
        if step == 7:
            os.kill(os.getpid(), signal.SIGINT)  # Ctrl-C in the middle of a step
        real(self, step)

    monkeypatch.setattr(example.Trainer, "next", interrupted)
    half = run(tmp_path / "parts")
    assert half["curves"]["step"] == [0, 3, 6]
    monkeypatch.setattr(example.Trainer, "next", real)
    parts = run(tmp_path / "parts", "--resume")
    assert parts["curves"] == whole["curves"]
    assert parts["findings"] == whole["findings"]
    assert example.main([*TINY, "--out", str(tmp_path / "parts")]) == 2  # not over what is there


def test_falls_are_counted_from_where_psi_is_positive():
    normalized = np.array([-1.0, 5.0, -0.5, 0.1, 0.4, 0.2, 0.3, 0.5, 0.45])
    psi = np.array([-1.0, -1.0, -1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    found = example.falls(normalized, psi)
    assert (found["steps_after"], found["falls"]) == (5, 2)
    assert_allclose([found["largest_fall"], found["deepest"]], [0.2 / 0.5, 0.2 / 0.5])
    assert example.falls(normalized[:2], psi[:2])["steps_after"] == 0


def test_lead_and_rank_correlation():
    rows = [
        {
            "step": k,
            "psi_normalized": p,
            "margin_normalized": p**2,
            "psi": p,
            "test_accuracy": a,
            "error": 0.0 if k else 0.5,
        }
        for k, (p, a) in enumerate([(-1, 0), (0.1, 0), (0.6, 0.1), (0.7, 0.2), (0.8, 0.7), (1.0, 1.0), (2.0, 1.0)])
    ]
    found = example.findings({"step": [], "every": rows})
    assert (found["fitted"], found["loss_below_ln2"], found["generalises"]) == (1, 1, 5)
    assert found["rank_correlation"] == pytest.approx(1.0) and found["measurements_between"] == 5
    assert (found["psi_half_way"], found["margin_half_way"], found["test_half_way"]) == (2, 4, 4)
    assert found["falls"] == 0


def test_the_benchmark_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    benchmark = script("benchmarks/monitor.py")
    threads = torch.get_num_threads()
    benchmark.main(["--quick", "--rounds", "2", "--steps", "3", "--json", str(tmp_path / "cost.json")])
    torch.set_num_threads(threads)
    found = json.loads((tmp_path / "cost.json").read_text())
    for name in ("resnet", "llama"):
        assert set(found[name]["training"]) == {"none", "none, again", "every step", "before backward", "every=10"}
        assert found[name]["training"]["none"]["wall_ratio"] == [1.0, 1.0, 1.0]
        assert found[name]["measuring"]["measure"]["cpu_ratio"][1] > 0
        assert found[name]["calls"]["every step"]["step_calls"] <= 30  # a step waits for these; a GPU needs fewer
    assert "every step" in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(50, 10), (4, 9, 33), (3, 7, 5000)])
def test_the_kernel_gives_the_margins_of_plain_torch(dtype: torch.dtype, shape: tuple[int, ...]):
    generator = torch.Generator().manual_seed(0)
    logits = (5 * torch.randn(*shape, generator=generator)).to(dtype)
    labels = torch.randint(shape[-1], shape[:-1], generator=generator)
    flat, own = logits.view(-1, shape[-1]), labels.view(-1)
    flat[1], flat[2], flat[3] = -torch.inf, torch.nan, -torch.inf
    flat[3, own[3]] = 1.0  # all other classes masked out
    flat[4, own[4]], flat[5, (own[5] + 1) % shape[-1]] = torch.inf, torch.inf
    flat[6, own[6]] = -torch.inf
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    views = [(logits, labels)] if len(shape) == 2 else [(logits, labels), (logits[:, :-1], labels[:, 1:])]
    for some, targets in views:  # the second is a shifted view, as causal language models have it
        want = tally._in_pieces(some, targets)
        found = _kernels.rows(some.cuda() if some is logits else logits.cuda()[:, :-1], targets.cuda())
        assert found is not None, "the kernel did not compile or gave a wrong answer in its trial"
        torch.testing.assert_close(found.cpu(), want, rtol=tolerance, atol=tolerance, equal_nan=True)
