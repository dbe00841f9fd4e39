"""The search for homogeneous parameters on networks whose answer is known."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from checks import repeated
from widemargin.monitor import check_homogeneous, euler, find_homogeneous, scaling
from widemargin.types import InputError

pytestmark = pytest.mark.usefixtures("one_thread")

DIM, CLASSES = 6, 5


def linear(d: int, k: int, bias: bool = False) -> nn.Linear:
    return nn.Linear(d, k, bias=bias)


class Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.relu().square()


class RMSNorm(nn.Module):
    def __init__(self, d: int):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


class Residual(nn.Module):
    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None, last: nn.Module | None = None):
        super().__init__()
        self.body, self.shortcut, self.last = body, shortcut or nn.Identity(), last or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.shortcut(x) + self.body(x))


class Product(nn.Module):
    """a * b * F(x): two gains in series before the sum (UH-2)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(linear(DIM, 16, True), nn.Tanh())
        self.a, self.b = nn.Parameter(torch.rand(16) + 0.5), nn.Parameter(torch.rand(16) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return (self.a * self.b * self.features(x)).sum(-1)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = linear(DIM, 16), linear(DIM, 16), linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.gate(x).sigmoid() * self.up(x))


class Bilinear(Gated):
    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.gate(x) * self.up(x))


class Temperature(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.t, self.body, self.head = nn.Parameter(torch.zeros(())), linear(DIM, 16, True), linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.t.exp() * self.head(self.body(x).tanh())


class TwoHeads(nn.Module):
    """W_1 h_1 + W_2 h_2: homogeneous in both heads together and in neither alone."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = linear(DIM, 16, True), linear(DIM, 16, True)
        self.one, self.two = linear(16, CLASSES), linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(self.left(x).tanh()) + self.two(self.right(x).sin())


class Experts(nn.Module):
    """The best of three experts answers, weighted by the router."""

    def __init__(self) -> None:
        super().__init__()
        self.router = linear(DIM, 3)
        self.experts = nn.ModuleList(nn.Sequential(linear(DIM, 8), nn.ReLU(), linear(8, CLASSES)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        answers = torch.stack([expert(x) for expert in self.experts], 1)
        best = weights.argmax(-1)
        return answers[torch.arange(len(x)), best] * weights.gather(1, best[:, None])


class Quotient(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.scale = (
            linear(DIM, 16, True),
            linear(16, CLASSES),
            nn.Parameter(torch.full((16,), 2.0)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).tanh() / self.scale)


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.idle, self.head = linear(DIM, 16, True), linear(DIM, 3, True), linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).tanh())


class Tied(nn.Module):
    """The same square matrix twice, and a head: degree 2 + 1."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.head = linear(DIM, DIM), linear(DIM, CLASSES)
        self.two = linear(DIM, DIM)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.two(self.one(x).relu()).relu())


def mlp(*, first: bool = False, others: bool = False, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    return nn.Sequential(linear(DIM, 16, first), act(), linear(16, 16, others), act(), linear(16, CLASSES, others))


def normed(norm: nn.Module, head_bias: bool = False) -> nn.Sequential:
    return nn.Sequential(linear(DIM, 16, True), nn.GELU(), linear(16, 16), norm, linear(16, CLASSES, head_bias))


def cnn(pool: type[nn.Module] = nn.MaxPool2d) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.ReLU(), pool(2), nn.Conv2d(4, 8, 2, bias=False), nn.ReLU(),
        nn.Flatten(), linear(32, CLASSES),
    )  # fmt: skip


def conv_bn(a: int, b: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)]


def resnet(bias: bool = False, downsample: bool = False) -> nn.Sequential:
    """Stem, a block with an identity or a projected shortcut, pooling, head."""
    body = nn.Sequential(*conv_bn(4, 4), nn.ReLU(), *conv_bn(4, 4))
    shortcut = nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4)) if downsample else None
    return nn.Sequential(
        *conv_bn(1, 4), nn.ReLU(), Residual(body, shortcut, nn.ReLU()), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        linear(4, CLASSES, bias),
    )  # fmt: skip


def plain_residual() -> nn.Sequential:
    block = Residual(nn.Sequential(linear(16, 16), nn.ReLU(), linear(16, 16)))
    return nn.Sequential(linear(DIM, 16, True), nn.ReLU(), block, linear(16, CLASSES))


def fixup() -> nn.Sequential:
    net = nn.Sequential(linear(DIM, 16, True), nn.Tanh(), linear(16, 16), nn.ReLU(), linear(16, CLASSES))
    nn.init.zeros_(net[4].weight)
    return net


def with_frozen(net: nn.Module, *names: str) -> nn.Module:
    for name in names:
        net.get_parameter(name).requires_grad_(False)
    return net


def zero_frozen_bias() -> nn.Module:
    net = nn.Sequential(linear(DIM, 16, True), nn.Tanh(), linear(16, CLASSES, True))
    nn.init.zeros_(net[2].bias)
    return with_frozen(net, "2.bias")


def last_norm_of(layers: int, norm_first: bool, bias: bool = True) -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True, norm_first=norm_first, bias=bias)
    final = nn.LayerNorm(16, bias=bias) if norm_first else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about nested tensors
        encoder = nn.TransformerEncoder(layer, layers, final, enable_nested_tensor=False)
    return nn.Sequential(linear(DIM, 16, True), nn.Unflatten(-1, (1, 16)), encoder, nn.Flatten(), linear(16, CLASSES))


ZOO: dict[str, tuple[Callable[[], nn.Module], str, int]] = {
    "mlp": (mlp, "0.weight 2.weight 4.weight", 3),
    "mlp, leaky": (lambda: mlp(act=nn.LeakyReLU), "0.weight 2.weight 4.weight", 3),
    "mlp, bias in the first layer": (lambda: mlp(first=True), "0.weight 0.bias 2.weight 4.weight", 3),
    "mlp, biases": (lambda: mlp(first=True, others=True), "4.weight 4.bias", 1),
    "mlp, gelu": (lambda: mlp(act=nn.GELU), "4.weight", 1),
    "mlp, silu": (lambda: mlp(act=nn.SiLU), "4.weight", 1),
    "mlp, tanh": (lambda: mlp(act=nn.Tanh), "4.weight", 1),
    "mlp, relu6: capped": (lambda: mlp(act=nn.ReLU6), "4.weight", 1),
    "mlp, squared relu": (lambda: mlp(act=Square), "0.weight 2.weight 4.weight", 7),
    "linear": (lambda: nn.Sequential(linear(DIM, CLASSES)), "0.weight", 1),
    "residual without norms": (plain_residual, "0.weight 0.bias 3.weight", 2),
    "layer norm": (lambda: normed(nn.LayerNorm(16)), "3.weight 3.bias 4.weight", 2),
    "layer norm, no shift": (lambda: normed(nn.LayerNorm(16, bias=False)), "3.weight 4.weight", 2),
    "layer norm, no gain": (lambda: normed(nn.LayerNorm(16, elementwise_affine=False)), "4.weight", 1),
    "layer norm, head with bias": (lambda: normed(nn.LayerNorm(16), True), "4.weight 4.bias", 1),
    "rms norm": (lambda: normed(RMSNorm(16)), "3.gain 4.weight", 2),
    "torch's rms norm": (lambda: normed(nn.RMSNorm(16)), "3.weight 4.weight", 2),
    "group norm": (lambda: normed(nn.GroupNorm(4, 16)), "3.weight 3.bias 4.weight", 2),
    "batch norm": (lambda: normed(nn.BatchNorm1d(16)), "3.weight 3.bias 4.weight", 2),
    "pre-norm encoder": (lambda: last_norm_of(2, True), "2.norm.weight 2.norm.bias 4.weight", 2),
    "pre-norm encoder, no biases": (lambda: last_norm_of(2, True, False), "2.norm.weight 4.weight", 2),
    "post-norm encoder": (lambda: last_norm_of(2, False), "2.layers.1.norm2.weight 2.layers.1.norm2.bias 4.weight", 2),
    "product": (Product, "a b", 2),
    "gate": (Gated, "up.weight down.weight", 2),
    "bilinear": (Bilinear, "gate.weight up.weight down.weight", 3),
    "temperature": (Temperature, "head.weight", 1),
    "two heads": (TwoHeads, "one.weight two.weight", 1),
    "experts": (Experts, " ".join(f"experts.{k}.{j}.weight" for k in range(3) for j in (0, 2)), 2),
    "quotient": (Quotient, "head.weight", 1),
    "unused": (Unused, "head.weight", 1),
    "tied, but homogeneous": (Tied, "one.weight head.weight", 3),
    "zero head": (fixup, "2.weight 4.weight", 2),
    "frozen first layer": (lambda: with_frozen(mlp(first=True), "0.weight", "0.bias"), "2.weight 4.weight", 2),
    "frozen head": (lambda: with_frozen(mlp(first=True), "4.weight"), "0.weight 0.bias 2.weight", 2),
    "frozen bias at 0": (zero_frozen_bias, "2.weight", 1),
    "frozen bias": (lambda: with_frozen(mlp(first=True, others=True), "4.bias"), "", 0),
}  # fmt: skip

IMAGES: dict[str, tuple[Callable[[], nn.Module], str, int]] = {
    "cnn, max": (cnn, "0.weight 3.weight 6.weight", 3),
    "cnn, mean": (lambda: cnn(nn.AvgPool2d), "0.weight 3.weight 6.weight", 3),
    "resnet": (resnet, "6.weight", 1),
    "resnet, head with bias": (lambda: resnet(True), "6.weight 6.bias", 1),
    "resnet, projected shortcut": (
        lambda: resnet(downsample=True),
        "3.body.4.weight 3.body.4.bias 3.shortcut.1.weight 3.shortcut.1.bias 6.weight",
        2,
    ),
}


def check_found(net: nn.Module, batch: Any, names: str, degree: int, **options: Any) -> Any:
    """The names and the degree are the expected ones, the definition holds, and every parameter is in one list, with a reason."""
    found = find_homogeneous(net, batch, **options)
    assert sorted(found.names) == sorted(names.split())
    assert found.degree == degree
    every = [name for name, _ in net.named_parameters()]
    assert sorted([*found.names, *found.excluded]) == sorted(every)
    assert all(found.excluded.values())
    assert all(probe.passed for probe in found.evidence)
    return found


@repeated("kind", [torch.float32, torch.float64, torch.bfloat16], 0, 2, ids=str)
@pytest.mark.parametrize("name", ZOO)
def test_zoo(name: str, kind: torch.dtype) -> None:
    make, names, degree = ZOO[name]
    torch.manual_seed(0)
    net, x = make().to(kind), torch.randn(40, DIM).to(kind)
    if name == "two heads" and kind == torch.bfloat16:
        names, degree = "", 0  # sets across modules are looked for in float32 and float64 only
    check_found(net, x, names, degree)
    if names and kind == torch.float64:  # the definition, by hand, at a factor that the search does not use
        chosen = names.split()
        net.eval()
        scaled = copy.deepcopy(net)
        for one in chosen:
            scaled.get_parameter(one).data.mul_(3.7)
        torch.testing.assert_close(scaled(x), 3.7**degree * net(x), rtol=1e-9, atol=1e-9 * 3.7**degree)


@pytest.mark.parametrize("state", ["fresh", "trained"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", IMAGES)
def test_images(name: str, training: bool, state: str) -> None:
    make, names, degree = IMAGES[name]
    torch.manual_seed(1)
    net, x = make(), torch.randn(64, 1, 8, 8)
    if state == "trained":
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), torch.arange(64) % CLASSES).backward()
            optimizer.step()
    net.train(training)
    check_found(net, x, names, degree)
    assert net.training is training


# ---------------------------------------------------------------- transformers


def llama(**options: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**TINY, num_key_value_heads=2, tie_word_embeddings=False, **options))


def gemma(cap: float | None) -> nn.Module:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    sizes = TINY | {"num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
    return Gemma2ForCausalLM(Gemma2Config(**sizes, final_logit_softcapping=cap, tie_word_embeddings=False))


def olmo(version: int) -> nn.Module:
    import transformers

    config, model = ("OlmoConfig", "OlmoForCausalLM") if version == 1 else ("Olmo2Config", "Olmo2ForCausalLM")
    sizes = TINY | {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
    return getattr(transformers, model)(getattr(transformers, config)(**sizes, tie_word_embeddings=False))


def gpt2(**options: Any) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=16, **ends, **options))


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(**TINY, num_labels=3))


def distilbert() -> nn.Module:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    config = DistilBertConfig(vocab_size=40, dim=16, hidden_dim=32, n_layers=2, n_heads=2, num_labels=3)
    return DistilBertForSequenceClassification(config)


TINY = {
    "vocab_size": 40, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 32,
}  # fmt: skip

TEXT: dict[str, tuple[Callable[[], nn.Module], str, int]] = {
    "llama": (llama, "model.norm.weight lm_head.weight", 2),
    "gemma2 without a cap": (lambda: gemma(None), "lm_head.weight", 1),  # its gain is 1 + weight
    "gemma2": (lambda: gemma(30.0), "", 0),
    "olmo": (lambda: olmo(1), "lm_head.weight", 1),  # its norms have no gain
    "olmo2": (lambda: olmo(2), "model.norm.weight lm_head.weight", 2),
    "gpt2": (gpt2, "transformer.ln_f.weight transformer.ln_f.bias", 1),
    "gpt2, head of its own": (
        lambda: gpt2(tie_word_embeddings=False),
        "transformer.ln_f.weight transformer.ln_f.bias lm_head.weight",
        2,
    ),
    "bert": (bert, "classifier.weight classifier.bias", 1),
    "distilbert": (distilbert, "classifier.weight classifier.bias", 1),
}


@pytest.mark.parametrize("name", TEXT)
def test_text(name: str) -> None:
    make, names, degree = TEXT[name]
    torch.manual_seed(0)
    net, ids = make(), torch.randint(1, 40, (12, 10))
    check_found(net, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, names, degree)


def test_vit() -> None:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    sizes = {key: value for key, value in TINY.items() if key not in ("vocab_size", "max_position_embeddings")}
    net = ViTForImageClassification(ViTConfig(**sizes, image_size=8, patch_size=4, num_channels=1, num_labels=CLASSES))
    batch = {"pixel_values": torch.randn(30, 1, 8, 8), "labels": torch.zeros(30, dtype=torch.long)}
    found = check_found(net, batch, "classifier.weight classifier.bias", 1)
    (note,) = found.notes  # the head's bias is 0 at the start, so it breaks nothing yet, and will
    assert "without classifier.bias the output would be homogeneous of degree 2 in vit.layernorm.weight" in note
    assert "vit.layernorm.bias, classifier.weight;" in note and "by 0 %" in note


def test_a_shared_head_is_not_free() -> None:
    torch.manual_seed(0)
    found = find_homogeneous(gpt2(), torch.randint(1, 40, (6, 8)))
    assert found.notes == ("transformer.wte.weight is also lm_head.weight: a shared weight is not a free head",)
    assert found.excluded["transformer.wte.weight"].startswith("one tensor with lm_head.weight")
    with pytest.raises(InputError, match=r"lm_head\.weight is the same tensor as transformer\.wte\.weight"):
        check_homogeneous(gpt2(), ["lm_head.weight"], torch.randint(1, 40, (6, 8)))


def test_capped_logits_are_found_although_far_from_the_cap() -> None:
    """30 tanh(z / 30) is z up to 3e-11 for the logits here: scaling far up shows the cap."""
    torch.manual_seed(0)
    body = nn.Sequential(linear(DIM, 16, True), nn.Tanh(), linear(16, CLASSES))
    body[2].weight.data.mul_(1e-4)
    x = torch.randn(20, DIM)
    capped = find_homogeneous(Capped(body), x)
    assert capped.names == () and capped.degree == 0
    assert set(capped.excluded) == {"body.0.weight", "body.0.bias", "body.2.weight"}
    assert "in no parameters" in capped.summary
    assert find_homogeneous(body, x).names == ("2.weight",)


class Capped(nn.Module):
    def __init__(self, body: nn.Module):
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return 30 * (self.body(x) / 30).tanh()


# ---------------------------------------------------------------- reasons and notes


def test_by_how_much_a_bias_breaks_the_degree() -> None:
    """Head with bias after a gain: doubling gain and head turns W(g h) + b into 4 W(g h) + b, so it misses by 3/4 b."""
    torch.manual_seed(0)
    net = normed(nn.LayerNorm(16, bias=False), True).double()
    x = torch.randn(20, DIM).double()
    with torch.no_grad():
        rows = x[:12]  # 64 outputs of 5 classes
        expected = 0.75 * net[4].bias.abs().max() / net(rows).abs().max()
    found = find_homogeneous(net, x)
    (note,) = found.notes
    assert note.startswith("without 4.bias the output would be homogeneous of degree 2 in 3.weight, 4.weight;")
    assert f"misses the power 2^2 by {100 * expected:.2g} % of the largest output" in note


def test_what_a_network_would_be_without_biases() -> None:
    torch.manual_seed(0)
    found = find_homogeneous(mlp(first=True, others=True), torch.randn(20, DIM))
    assert "without 4.bias the output would be homogeneous of degree 2 in 2.weight, 2.bias, 4.weight" in found.notes[0]
    every = "without 0.bias, 2.bias, 4.bias the output would be homogeneous of degree 3 in 0.weight, 2.weight, 4.weight"
    assert every in found.notes[1]


REASONS = {
    "frozen first layer": ("0.weight", "frozen: it is not trained"),
    "unused": ("idle.weight", "of degree 0: the output does not depend on it, on these examples"),
    "quotient": ("scale", "of degree -1: the output shrinks as it grows"),
    "temperature": ("t", "in a Temperature: the output follows no power of its scale; the best degree, "),
    "mlp, gelu": ("0.weight", "in a Linear: the output follows no power of its scale; the best degree, "),
    "layer norm": (
        "2.weight",
        "in a Linear, of degree 0 nearly: its scale is divided out by a normalisation, up to the eps",
    ),
    "rms norm": (
        "2.weight",
        "in a Linear, of degree 0 nearly: its scale is divided out by a normalisation, up to the eps",
    ),
}


@pytest.mark.parametrize("name", REASONS)
def test_reasons(name: str) -> None:
    torch.manual_seed(0)
    found = find_homogeneous(ZOO[name][0](), torch.randn(30, DIM))
    parameter, reason = REASONS[name]
    assert found.excluded[parameter].startswith(reason)
    assert reason.partition(";")[0] in str(found)
    assert found.as_dict()["excluded"][parameter] == found.excluded[parameter]


def test_weight_norm_and_spectral_norm() -> None:
    torch.manual_seed(0)
    body = [linear(DIM, 16, True), nn.Tanh()]
    x = torch.randn(30, DIM)
    net = nn.Sequential(*body, parametrizations.weight_norm(linear(16, CLASSES)))
    found = check_found(net, x, "2.parametrizations.weight.original0", 1)
    assert "depends on its direction only" in found.excluded["2.parametrizations.weight.original1"]
    net = nn.Sequential(*body, parametrizations.spectral_norm(linear(16, CLASSES)))
    before = copy.deepcopy(net.state_dict())
    found = check_found(net, x, "", 0)
    assert "depends on its direction only" in found.excluded["2.parametrizations.weight.original"]
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


# ---------------------------------------------------------------- what looks homogeneous and is not


@pytest.mark.parametrize("size", [0.0, 1e-9, 1e-4])
def test_tiny_biases_are_seen(size: float) -> None:
    torch.manual_seed(0)
    net = mlp(first=True, others=True)
    for k in (0, 2, 4):
        net[k].bias.data.normal_().mul_(size)
    check_found(net, torch.randn(30, DIM), "4.weight 4.bias", 1)


def test_a_constant_in_a_buffer_is_seen() -> None:
    torch.manual_seed(0)

    class Shifted(nn.Module):
        def __init__(self, shift: float) -> None:
            super().__init__()
            self.head = linear(DIM, CLASSES)
            self.register_buffer("shift", torch.full((CLASSES,), shift))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x) + self.shift

    for shift in (0.0, 1e-3):
        check_found(Shifted(shift), torch.randn(30, DIM), "", 0)


def test_a_branch_that_sleeps_on_the_first_examples() -> None:
    """The second branch is 0 on the first examples: one head looks homogeneous there, and not on the next ones."""

    class Sleeper(TwoHeads):
        def forward(self, x: Tensor) -> Tensor:
            return self.one(self.left(x).tanh()) + self.two(self.right(x).sin()) * (x[:, :1] > 10)

    torch.manual_seed(0)
    x = torch.randn(64, DIM)
    x[32:, 0] = 20
    found = check_found(Sleeper().double(), x.double(), "", 0)
    assert found.excluded["one.weight"].startswith("homogeneous at one point and not at another")
    assert "does not depend on it, on these examples" in found.excluded["two.weight"]


def test_only_powers_of_two_are_not_enough() -> None:
    class Odd(nn.Module):
        """c -> f(c w) = c f(w) for powers of 2 alone."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(DIM, CLASSES))

        def forward(self, x: Tensor) -> Tensor:
            return x @ (self.weight * (2 + torch.sin(2 * torch.pi * self.weight.abs().log2())))

    torch.manual_seed(0)
    net, x = Odd().double(), torch.randn(20, DIM).double()
    check_found(net, x, "", 0)
    with pytest.raises(InputError, match="not homogeneous in weight: the best degree, 1, is"):
        check_homogeneous(net, ["weight"], x)


# ---------------------------------------------------------------- nothing is changed


def state_of(net: nn.Module) -> dict[str, Any]:
    parameters = {name: (p.detach().clone(), p.requires_grad, p._version) for name, p in net.named_parameters()}
    return {
        "parameters": parameters,
        "buffers": {name: b.clone() for name, b in net.named_buffers()},
        "modes": [module.training for module in net.modules()],
        "random": torch.random.get_rng_state(),
        "grad": {name: None if p.grad is None else p.grad.clone() for name, p in net.named_parameters()},
    }


def assert_same(one: Any, two: Any) -> None:
    assert type(one) is type(two)
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        for key in one:
            assert_same(one[key], two[key])
    elif isinstance(one, tuple):
        for a, b in zip(one, two, strict=True):
            assert_same(a, b)
    elif isinstance(one, Tensor):
        assert torch.equal(one, two)
    else:
        assert one == two


def dropping_resnet() -> nn.Module:
    net = resnet(True, True)
    net[4] = nn.Sequential(net[4], nn.Dropout(0.5))
    net[3].train(False)
    net[0].weight.requires_grad_(False)
    return net


def test_state_and_gradients_are_as_before() -> None:
    """Forward, search, backward: the gradients are those without the search."""
    x, y = torch.randn(20, 1, 8, 8), torch.arange(20) % CLASSES
    grads = []
    for search in (False, True):
        torch.manual_seed(3)
        net = dropping_resnet()
        nn.functional.cross_entropy(net(x), y).backward()
        loss = nn.functional.cross_entropy(net(x), y)
        if search:
            before = state_of(net)
            assert find_homogeneous(net, (x, y)).names
            assert_same(state_of(net), before)
        loss.backward()
        grads.append({name: p.grad for name, p in net.named_parameters() if p.requires_grad})
    assert_same(*grads)


@pytest.mark.parametrize("calls", [1, 2, 5, 12, 25])
def test_state_is_as_before_when_the_model_fails(calls: int) -> None:
    torch.manual_seed(0)
    net, count = dropping_resnet(), 0

    def forward(model: nn.Module, batch: Tensor) -> Tensor:
        nonlocal count
        count += 1
        torch.rand(3)
        if count == calls:
            raise RuntimeError("enough")
        return model(batch)

    x = torch.randn(20, 1, 8, 8)
    before = state_of(net)
    with pytest.raises(RuntimeError, match="enough"):
        find_homogeneous(net, x, forward=forward)
    assert_same(state_of(net), before)


def test_buffers_that_move_in_eval_mode() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = linear(DIM, CLASSES)
            self.register_buffer("calls", torch.zeros((), dtype=torch.long))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.head(x)

    net = Counting()
    check_found(net, torch.randn(8, DIM), "head.weight", 1)
    assert int(net.calls) == 0


# ---------------------------------------------------------------- wrappers, precision, batches


def test_compiled_and_wrapped_models() -> None:
    torch.manual_seed(0)
    net, x = normed(nn.LayerNorm(16)), torch.randn(20, DIM)
    expected = find_homogeneous(net, x)
    assert find_homogeneous(torch.compile(net, backend="eager"), x) == expected
    assert find_homogeneous(nn.DataParallel(net), x) == expected
    assert expected.names == ("3.weight", "3.bias", "4.weight")


def test_autocast() -> None:
    torch.manual_seed(0)
    net, x = normed(nn.LayerNorm(16)), torch.randn(20, DIM)
    with torch.autocast("cpu", torch.bfloat16):
        check_found(net, x, "3.weight 3.bias 4.weight", 2)


def test_high_degree_does_not_overflow() -> None:
    """2^511 is no float32, 1.0625^511 is."""
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (linear(8, 8), Square())]
    net = nn.Sequential(*layers, linear(8, CLASSES))
    for layer in layers[::2]:
        nn.init.uniform_(layer.weight, 0.11, 0.14)
    found = find_homogeneous(net, 1 + 0.1 * torch.rand(20, 8))
    assert found.degree == 511 and len(found.names) == 9
    assert [probe.degree for probe in found.evidence] == [256, 128, 64, 32, 16, 8, 4, 2, 1, 511]


def test_kinds_of_batches() -> None:
    torch.manual_seed(0)
    net, x, y = mlp(), torch.randn(20, DIM), torch.zeros(20, dtype=torch.long)
    expected = find_homogeneous(net, x)
    assert find_homogeneous(net, (x, y)) == expected
    assert find_homogeneous(net, [x]) == expected
    assert find_homogeneous(net, {"input": x}) == expected
    assert find_homogeneous(net, {"input": x, "labels": y}) == expected
    assert find_homogeneous(net, {"a": x}, forward=lambda model, batch: model(batch["a"])) == expected
    assert find_homogeneous(net, {"a": x}, forward=lambda model, batch: (model(batch["a"]), y)) == expected
    assert find_homogeneous(net, x[:1]).names == expected.names


def test_only_a_few_examples_are_used() -> None:
    seen = []

    def forward(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        seen.append(len(batch[0]))
        assert len(batch[1]) == len(batch[0])
        return model(batch[0])

    find_homogeneous(mlp(), (torch.randn(500, DIM), torch.zeros(500)), forward=forward)
    assert max(seen) <= scaling.ROWS[1]


def test_one_forward_pass_for_each_parameter() -> None:
    """Cost: about one for each parameter, and a few for each that is homogeneous."""
    torch.manual_seed(0)
    net, count = last_norm_of(6, True), 0

    def forward(model: nn.Module, batch: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return model(batch)

    found = find_homogeneous(net, torch.randn(64, DIM), forward=forward)
    assert found.degree == 2
    assert count < 3 * len(list(net.parameters()))


# ---------------------------------------------------------------- complaints


def test_bad_models() -> None:
    x = torch.randn(8, DIM)
    with pytest.raises(InputError, match="lazy parameter"):
        find_homogeneous(nn.Sequential(nn.LazyLinear(4)), x)
    with pytest.raises(InputError, match="meta device"):
        find_homogeneous(nn.Linear(DIM, 4, device="meta"), x)
    with pytest.raises(InputError, match="not function"):
        find_homogeneous(lambda x: x, x)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="answers differently each time"):
        find_homogeneous(mlp(), x, forward=lambda model, batch: model(batch) + torch.rand(CLASSES))
    with pytest.raises(InputError, match="all 0, or not finite"):
        find_homogeneous(mlp(), x * torch.nan)
    with pytest.raises(InputError, match="all 0, or not finite"):
        find_homogeneous(mlp(), x[:0])
    with pytest.raises(InputError, match="and not logits"):
        find_homogeneous(mlp(), x, forward=lambda model, batch: [model(batch)])


def test_check() -> None:
    torch.manual_seed(0)
    net, x = normed(nn.LayerNorm(16)), torch.randn(30, DIM)
    found = check_homogeneous(net, ["3.weight", "3.bias", "4.weight"], x, degree=2)
    assert found.degree == 2 and found.names == ("3.weight", "3.bias", "4.weight")
    assert set(found.excluded) == {"0.weight", "0.bias", "2.weight"}
    assert check_homogeneous(net, ["4.weight"], x).degree == 1
    with pytest.raises(InputError, match=r"not homogeneous of degree 3 in 4\.weight: .* degree 1"):
        check_homogeneous(net, ["4.weight"], x, degree=3)
    with pytest.raises(InputError, match=r"not homogeneous in 3.weight, 4.weight: the best degree, \d, is .* off"):
        check_homogeneous(net, ["3.weight", "4.weight"], x)
    with pytest.raises(InputError, match="no parameter 'head'"):
        check_homogeneous(net, ["head"], x)
    for names in ([], "4.weight"):
        with pytest.raises(InputError, match="names of the parameters as a list"):
            check_homogeneous(net, names, x)
    with pytest.raises(InputError, match="degree 0"):
        check_homogeneous(Unused(), ["idle.weight"], x)


def test_a_batch_that_is_silent_without_the_biases() -> None:
    """All neurons are dead once their biases are left out: nothing can be said about that, and the rest is found all the same."""
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3, bias=False))
    with torch.no_grad():
        model[0].weight.fill_(-1.0)
        model[0].bias.fill_(3.0)
    assert not model[2](model[0].weight.mv(torch.ones(2)).relu()).any()
    found = find_homogeneous(model, torch.ones(8, 2))
    assert found.degree == 2 and set(found.names) == {"0.weight", "0.bias", "2.weight"}
    deeper = nn.Sequential(model[0], nn.ReLU(), nn.Linear(4, 3))
    assert find_homogeneous(deeper, torch.ones(8, 2)).degree == 1


# ---------------------------------------------------------------- what it costs


class Pixels:
    """How much a model has had to do, in forward passes of the whole batch; a backward pass counts as two."""

    def __init__(self, net: nn.Module, whole: Tensor):
        self.passes, self.whole = 0.0, whole.numel()
        net.register_forward_pre_hook(self.see)

    def see(self, net: nn.Module, args: tuple[Tensor, ...]) -> None:
        self.passes += args[0].numel() / self.whole * (1 + 2 * euler.GRADIENTS * torch.is_grad_enabled())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["resnet", "gpt"])
def test_a_search_costs_less_than_ten_passes(kind: str) -> None:
    torch.manual_seed(0)
    if kind == "resnet":
        net, x = resnet(True, True), torch.randn(32, 1, 32, 32)
    else:
        net, x = gpt2(), torch.randint(1, 40, (32, 16))
    work = Pixels(net, x)
    find_homogeneous(net, x)
    assert 0 < work.passes < 10


def test_what_holds_for_small_pictures_alone_is_searched_again() -> None:
    """A constant is added where pictures are large: on small ones the head looks homogeneous."""

    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = linear(1, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x.mean((-2, -1))) + (x.shape[-1] > scaling.SIDES[-1])

    torch.manual_seed(0)
    x = torch.randn(8, 1, 40, 40)
    assert find_homogeneous(Large(), x[..., :20, :20]).names == ("head.weight",)
    assert find_homogeneous(Large(), x).names == ()
    with pytest.raises(InputError, match="not homogeneous"):
        check_homogeneous(Large(), ["head.weight"], x)


def test_a_model_of_one_size_is_searched_at_that_size() -> None:
    seen = set()
    net = nn.Sequential(nn.Flatten(), linear(100, CLASSES))
    net.register_forward_pre_hook(lambda module, args: seen.add(args[0].shape[-1]))
    assert find_homogeneous(net, torch.randn(6, 1, 10, 10)).names == ("1.weight",)
    assert 10 in seen


def test_a_detached_part_is_found_without_gradients() -> None:
    """Gradients are not those of the outputs: the search goes by forward passes."""

    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = linear(DIM, 8), linear(8, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.two(self.one(x).relu().detach())

    torch.manual_seed(0)
    check_found(Detached(), torch.randn(20, DIM), "one.weight two.weight", 2)


def test_where_the_scale_of_the_others_is_free() -> None:
    torch.manual_seed(0)
    x = torch.randn(20, DIM)
    deep = nn.Sequential(linear(DIM, 16, True), nn.ReLU(), linear(16, 16, True), nn.ReLU(), linear(16, CLASSES, True))
    found = find_homogeneous(deep, x)
    assert found.names == ("4.weight", "4.bias") and found.free and found.growth > 5
    assert "the scale of the others is free" in found.summary and "means little" in found.summary
    # The growth is that of the definition.
    before = deep(x).abs().max()
    assert check_homogeneous(deep, ["4.weight", "4.bias"], x).free
    for p in deep[:3].parameters():
        p.data.mul_(10)
    assert deep(x).abs().max() > 5 * before
    held = nn.Sequential(linear(DIM, 16, True), nn.ReLU(), nn.LayerNorm(16, bias=False), linear(16, CLASSES))
    found = find_homogeneous(held, x)
    assert found.names == ("2.weight", "3.weight") and not found.free and 0.3 < found.growth < 2
    assert "free" not in found.summary
    assert find_homogeneous(nn.Sequential(linear(DIM, 8), nn.ReLU(), linear(8, CLASSES)), x).growth == 1


@pytest.mark.parametrize("kind", ["parameter", "module", "module before"])
def test_hooks_on_backward_passes_do_not_see_the_search(kind: str) -> None:
    torch.manual_seed(0)
    net, seen = mlp(), []
    first = net[2]
    if kind == "parameter":
        first.weight.register_hook(lambda grad: seen.append(1))
    elif kind == "module":
        first.register_full_backward_hook(lambda *_: seen.append(1))
    else:
        first.register_full_backward_pre_hook(lambda *_: seen.append(1))
    found = find_homogeneous(net, torch.randn(20, DIM))
    assert found.degree == find_homogeneous(mlp(), torch.randn(20, DIM)).degree and not seen
    net(torch.randn(4, DIM)).sum().backward()
    assert seen
