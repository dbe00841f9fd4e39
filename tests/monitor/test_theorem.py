"""UH-18 for cross-entropy, as docs/monitor.md derives it: each line of the derivation, then the theorem under gradient descent.

Gradients come from autograd and entropies from their definition; psi / |w_hat|^L comes from MarginMonitor.
"""

import copy
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor, nn
from torch.nn import functional as F

from widemargin.monitor import Homogeneous, MarginMonitor, find_homogeneous

pytestmark = pytest.mark.usefixtures("one_thread")
N, CLASSES = 20, 5


# ---------------------------------------------------------------- networks


class Branch(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(torch.relu(self.norm2(self.conv1(torch.relu(self.norm1(x))))))


class ResNet(nn.Module):
    """Pre-activation: 2-homogeneous in the last BatchNorm (gain and shift) and the head, in nothing else."""

    def __init__(self, width: int = 6):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.Sequential(Branch(width), Branch(width))
        self.norm = nn.BatchNorm2d(width)
        self.head = nn.Linear(width, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.blocks(self.stem(x)))).mean((2, 3)))


class Transformer(nn.Module):
    """One causal block, biases everywhere inside; 2-homogeneous in the last gain and the head."""

    def __init__(self, width: int = 12, words: int = 7, length: int = 6):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(0.3 * torch.randn(length, width))
        self.norm1, self.norm2, self.norm = nn.RMSNorm(width), nn.LayerNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x) + self.places  # (n, T, D)
        n, T, D = h.shape
        q, k, v = (z.reshape(n, T, 2, D // 2).transpose(1, 2) for z in self.qkv(self.norm1(h)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.out(mixed.transpose(1, 2).reshape(n, T, D))
        h = h + self.down(F.gelu(self.up(self.norm2(h))))
        return self.head(self.norm(h[:, -1]))


def mlp(*widths: int, bias: bool = False) -> nn.Sequential:
    layers = [[nn.ReLU(), nn.Linear(a, b, bias=bias)] for a, b in pairwise(widths)]
    return nn.Sequential(*[one for pair in layers for one in pair][1:]).double()


def problem(kind: str, seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    """A network and N examples with random labels of CLASSES classes: fitting them takes all parameters."""
    torch.manual_seed(seed)
    labels = torch.randint(0, CLASSES, (N,))
    if kind == "mlp":
        return mlp(6, 16, 16, CLASSES), torch.randn(N, 6).double(), labels
    if kind == "transformer":
        return Transformer().double(), torch.randint(0, 7, (N, 6)), labels
    net, x = ResNet().double(), torch.randn(N, 3, 5, 5).double()
    with torch.no_grad():
        for _ in range(30):  # running statistics of these examples
            net(x)
    return net.train(kind == "resnet, train mode"), x, labels


EXPECTED = {
    "mlp": (("0.weight", "2.weight", "4.weight"), 3),
    "resnet": (("norm.weight", "norm.bias", "head.weight"), 2),
    "resnet, train mode": (("norm.weight", "norm.bias", "head.weight"), 2),
    "transformer": (("norm.weight", "head.weight"), 2),
}


def fit(net: nn.Module, x: Tensor, labels: Tensor, only: str = "") -> None:
    """Adam until the sum of losses is below 0.6 < ln 2, where the theorem begins. It does not speak of the way there."""
    rule = torch.optim.Adam([p for name, p in net.named_parameters() if only in name], lr=5e-3)
    for _ in range(3000):
        risk = F.cross_entropy(net(x), labels, reduction="sum")
        if risk < 0.6:
            return
        rule.zero_grad()
        risk.backward()
        rule.step()
    raise AssertionError(f"not fitted: {float(risk)}")


# ---------------------------------------------------------------- definitions


def soft_margins(f: Tensor, labels: Tensor) -> Tensor:
    """ln of the odds of the label: p = f_y - ln sum_{j != y} e^{f_j}, from the definition."""
    rows = []
    for row, y in zip(f, labels.tolist()):
        rows.append(row[y] - torch.stack([value for j, value in enumerate(row) if j != y]).exp().sum().log())
    return torch.stack(rows)


def entropy(probabilities: Tensor) -> Tensor:
    return torch.special.entr(probabilities).sum(-1)


def wrong_entropy(f: Tensor, labels: Tensor) -> Tensor:
    """H: of the softmax over the wrong classes."""
    wrong = torch.stack([torch.cat([row[:y], row[y + 1 :]]) for row, y in zip(f, labels.tolist())])
    return entropy(torch.softmax(wrong, -1))


def psi_of(risk: Tensor) -> Tensor:
    """l_log^{-1}(sum of losses) = -ln(e^s - 1)."""
    return -risk - torch.log(-torch.expm1(-risk))


def slope(p: Tensor) -> Tensor:
    """|l_log'(p)| = 1 / (1 + e^p)."""
    return torch.sigmoid(-p)


def dot(a, b) -> Tensor:
    return torch.stack([(u * v).sum() for u, v in zip(a, b)]).sum()


def outputs(depth: int, classes: int, seed: int) -> tuple[nn.Sequential, Tensor, Tensor]:
    torch.manual_seed(seed)
    net = mlp(4, *[8] * (depth - 1), classes)
    x = torch.randn(6, 4).double()
    return net, x, net(x).argmax(1)


# ---------------------------------------------------------------- the derivation


@pytest.mark.parametrize("classes", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_euler_for_the_soft_margin(classes, depth):
    """<dp, w> = L (p + H), and not L p unless there is one wrong class."""
    net, x, _ = outputs(depth, classes, seed=classes)
    labels = torch.arange(len(x)) % classes  # right and wrong ones
    f = net(x)
    p, H = soft_margins(f, labels), wrong_entropy(f, labels).detach()
    w = list(net.parameters())
    found = torch.stack([dot(torch.autograd.grad(one, w, retain_graph=True), w) for one in p]).detach()
    p = p.detach()
    assert_allclose(found, depth * (p + H), rtol=1e-12, atol=1e-12)
    assert_allclose(F.cross_entropy(f, labels, reduction="none").detach(), torch.log1p(torch.exp(-p)), rtol=1e-12)
    assert_allclose(F.softmax(f.detach(), 1)[range(6), labels], torch.sigmoid(p), rtol=1e-12)  # p: ln odds of the label
    if classes == 2:
        assert_allclose(H, 0, atol=1e-15)
    else:
        assert float((found - depth * p).min()) > 0.05 * depth
        assert float(H.max()) <= math.log(classes - 1)


def test_euler_in_a_part_of_the_parameters():
    """The same in the last gain and the head alone; in a bias of the block, and in all parameters, no degree fits."""
    net, x, labels = problem("transformer")
    f = net(x)
    p, H = soft_margins(f, labels), wrong_entropy(f, labels).detach()
    named = dict(net.named_parameters())

    def degrees(names):
        w = [named[name] for name in names]
        return torch.stack(
            [dot(torch.autograd.grad(one, w, retain_graph=True), w) for one in p]
        ) / (p + H).detach()  # fmt: skip

    assert_allclose(degrees(["norm.weight", "head.weight"]).detach(), 2, rtol=1e-9)
    assert_allclose(degrees(["head.weight"]).detach(), 1, rtol=1e-9)
    for names in (["down.bias"], ["up.weight", "up.bias"], list(named)):
        assert float(degrees(names).detach().std()) > 0.01


def test_two_classes_are_one_output():
    """K = 2: p is the difference of the outputs with the label's sign, and every number is that of one output."""
    torch.manual_seed(0)
    net = mlp(4, 8, 2)
    x, labels = torch.randn(9, 4).double(), torch.randint(0, 2, (9,))
    single = nn.Sequential(net[0], net[1], nn.Linear(8, 1, bias=False).double())
    with torch.no_grad():
        single[2].weight.copy_(net[2].weight[1:] - net[2].weight[:1])
    two = MarginMonitor(net).measure((x, labels))
    one = MarginMonitor(single, loss="bce").measure((x, labels))
    for name in ("margin", "psi", "loss", "error", "log_loss_sum", "dual_entropy", "margin_mean"):
        assert_allclose(getattr(two, name), getattr(one, name), rtol=1e-12)
    assert_allclose(two.margin, float(((2 * labels - 1) * single(x)[:, 0].detach()).min()), rtol=1e-12)


@pytest.mark.parametrize("loss", ["logistic", "exp"])
def test_slopes_add_up_to_at_least_the_slope_at_psi(loss):
    """sum |l'(p_i)| >= |l'(psi)|: g(s) = |l'(l^{-1}(s))| is concave with g(0) = 0. For the exponential loss it is s: equal."""
    rng = np.random.default_rng(0)
    for scale in (0.1, 1.0, 10.0):
        p = torch.as_tensor(scale * rng.standard_normal((200, 7)))
        if loss == "exp":
            s = torch.exp(-p).sum(1)
            psi, slopes, at_psi = -s.log(), torch.exp(-p), s
            assert_allclose(slopes.sum(1), torch.exp(-psi), rtol=1e-12)
            q = slopes / at_psi[:, None]
            assert_allclose((q * p).sum(1), psi + entropy(q), rtol=1e-9, atol=1e-9)  # any sign of psi
        else:
            psi = psi_of(F.softplus(-p).sum(1))
            slopes, at_psi = slope(p), slope(psi)
            assert_allclose(at_psi, 1 - torch.sigmoid(p).prod(1), rtol=1e-9)
            assert bool((slopes.sum(1) >= at_psi * (1 - 1e-12)).all())
            assert float((slopes.sum(1) / at_psi).max()) > 1.01
        assert bool((psi[:, None] <= p + 1e-12).all())


def test_psi_is_at_most_the_margin_and_not_far_below():
    """psi <= min p <= min hard margin <= psi + ln n - ln ln 2 + ln(K - 1) where psi >= 0; the bound on p is nearly reached."""
    n, K = 50, 4
    worst = 0.0
    for seed in range(40):
        torch.manual_seed(seed)
        f = torch.randn(n, K).double() * (1 + seed % 5)
        labels = torch.zeros(n, dtype=torch.long)
        f[:, 0] += 12 + 4 * (seed % 5)
        p = soft_margins(f, labels)
        psi = float(psi_of(F.cross_entropy(f, labels, reduction="sum")))
        hard = float((f[:, 0] - f[:, 1:].amax(1)).min())
        if psi >= 0:
            assert psi <= float(p.min()) <= hard <= psi + math.log(n) - math.log(math.log(2)) + math.log(K - 1)
            worst = max(worst, hard - psi)
    assert worst > 0.1
    even = torch.full((n,), -math.log(2 ** (1 / n) - 1), dtype=torch.float64)  # psi = 0, all alike
    gap = float(even.min() - psi_of(F.softplus(-even).sum()))
    assert math.log(n) - math.log(math.log(2)) - 0.01 < gap < math.log(n) - math.log(math.log(2))


@pytest.mark.parametrize("classes", [2, 3, 6])
@pytest.mark.parametrize("margin", [0.01, 0.5, 4.0, 12.0])
@pytest.mark.parametrize("right", [True, False])
def test_euler_for_psi(classes, margin, right):
    """<dpsi, w> = L sum q_i (p_i + H_i) = L (sum_i Ent(pi_i) - s) / |l'(psi)| >= L psi, s the sum of losses, for any sign of psi.

    The network is scaled so that it decides with this margin; all labels are as it says, or some of them not.
    """
    depth = 3
    net, x, labels = outputs(depth, classes, seed=classes)
    with torch.no_grad():
        best = net(x).topk(2, dim=1).values
        for value in net.parameters():
            value *= (margin / (best[:, 0] - best[:, 1]).min()) ** (1 / depth)
    labels = labels if right else torch.arange(len(x)) % classes
    w = list(net.parameters())
    f = net(x)
    risk = F.cross_entropy(f, labels, reduction="sum")
    psi = psi_of(risk)
    B = float(dot(torch.autograd.grad(psi, w), w).detach())
    f, psi, s = f.detach(), float(psi.detach()), float(risk.detach())
    p, H, at_psi = soft_margins(f, labels), wrong_entropy(f, labels), -math.expm1(-s)
    q = slope(p) / at_psi
    assert_allclose(B, depth * float((q * (p + H)).sum()), rtol=1e-9)
    drawn = float(entropy(torch.softmax(f, -1)).sum())
    assert_allclose(B, depth * (drawn - s) / at_psi, rtol=1e-8)
    all_right = float(
        entropy(torch.tensor([math.exp(-s), at_psi], dtype=torch.float64))
    )  # whether every label is drawn
    assert_allclose(psi * at_psi, all_right - s, rtol=1e-8)
    assert drawn >= all_right * (1 - 1e-9)  # entropy of the labels drawn, and of one function of them
    assert depth * psi <= B + 1e-9 * abs(B)
    assert float(q.sum()) >= 1 - 1e-9
    if right and margin >= 4:
        assert psi > 0 and depth * psi * float(q.sum()) <= B * (1 + 1e-9)  # the short way, which needs psi >= 0
    if not right:
        assert psi < 0


def rates(net: nn.Module, x: Tensor, labels: Tensor, found: Homogeneous) -> dict[str, float]:
    """At one point, along gradient flow of the mean loss: the rate of psi / |w_hat|^L by autograd, and what it is made of."""
    named = dict(net.named_parameters())
    hat = [named[name] for name in found.names]
    rest = [p for name, p in named.items() if name not in found.names]
    L = found.degree
    risk = F.cross_entropy(net(x), labels, reduction="sum")
    psi = psi_of(risk)
    size = torch.stack([p.square().sum() for p in hat]).sum().sqrt()
    w = [*hat, *rest]
    velocity = [-g / len(x) for g in torch.autograd.grad(risk, w, retain_graph=True)]
    d_psi = torch.autograd.grad(psi, w, retain_graph=True)
    d_quotient = torch.autograd.grad(psi / size**L, w, allow_unused=True)
    direct = sum(float((g * v).sum()) for g, v in zip(d_quotient, velocity) if g is not None)
    with torch.no_grad():
        k = len(hat)
        B = dot(d_psi[:k], hat)
        across = dot(d_psi[:k], d_psi[:k]) - (B / size) ** 2  # of the direction of w_hat
        others = dot(d_psi[k:], d_psi[k:]) if rest else torch.zeros(())
        c = slope(psi) / len(x)
        parts = [others, across, B * (B - L * psi) / size**2]
        speed, hat_speed = dot(velocity, velocity).sqrt(), dot(velocity[:k], velocity[:k]).sqrt()
        return {
            "value": float(psi / size**L),
            "rate": direct,
            "parts": float(c / size**L * sum(parts)),
            "least_part": float(min(parts)) / float(dot(d_psi, d_psi)),
            "paper": float(L * psi * size ** (-L - 1) * (speed - hat_speed)),
            "B": float(B),
            "psi": float(psi),
            "norm_rate": float(dot(velocity[:k], hat) / size),
            "norm_bound": float(L * psi * c / size),
        }


@pytest.mark.parametrize("kind", EXPECTED)
def test_the_rate_and_its_three_parts(kind):
    """d/dt psi / |w_hat|^L = (|l'(psi)| / n) / |w_hat|^L (|d_theta|^2 + |d_across|^2 + B (B - L psi) / |w_hat|^2), all >= 0."""
    net, x, labels = problem(kind)
    fit(net, x, labels)
    found = rates(net, x, labels, find_homogeneous(net, (x, labels)))
    assert found["psi"] > 0
    if kind != "resnet, train mode":
        assert_allclose(MarginMonitor(net).measure((x, labels)).psi_normalized, found["value"], rtol=1e-10)
    assert_allclose(found["rate"], found["parts"], rtol=1e-9)
    assert found["least_part"] >= 0
    assert found["rate"] >= found["paper"] - 1e-15  # UH's bound, from the speeds alone
    assert found["norm_rate"] >= found["norm_bound"] > 0  # UH-19


def test_it_begins_as_soon_as_the_norm_grows():
    """Where psi < 0 the rate still is >= 0 if B >= 0, that is if entropies exceed losses on average; if not, it may be < 0."""
    early = []
    for seed in range(3):
        net, x, labels = problem("mlp", seed)
        rule = torch.optim.SGD(net.parameters(), lr=0.5)
        found = find_homogeneous(net, (x, labels))
        for step in range(300):
            risk = F.cross_entropy(net(x), labels)
            if step % 25 == 0:
                one = rates(net, x, labels, found)
                if one["psi"] < 0 <= one["B"]:
                    early.append(one["rate"])
            rule.zero_grad()
            risk.backward()
            rule.step()
    assert len(early) > 10 and min(early) > 0
    torch.manual_seed(
        0
    )  # one wrong example of a linear network with a long weight: turning takes time, shrinking helps at once
    net, x = nn.Linear(2, 2, bias=False).double(), torch.tensor([[1.0, 0.0], [1.0, 0.0]]).double()
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[3.0, 0.0], [-3.0, 0.0]]))
    one = rates(net, x, torch.tensor([0, 1]), Homogeneous(("weight",), 1))
    assert one["psi"] < 0 and one["B"] < 0 and one["rate"] < 0


# ---------------------------------------------------------------- the theorem under gradient descent


def series(records) -> np.ndarray:
    return np.array([one.psi_normalized for one in records])


def fall(values: np.ndarray) -> float:
    """The largest fall below an earlier value, relative to it."""
    top = np.maximum.accumulate(values)
    return float(((top - values) / np.abs(top)).max())


def train(net, x, labels, monitors, rule, steps: int, raise_by: float = 0.0) -> list[np.ndarray]:
    """Full batches. With `raise_by` = h the step raises -ln(sum of losses) by h to first order: fast where the loss is small."""
    for _ in range(steps):
        f = net(x)
        risk = F.cross_entropy(f, labels)
        for monitor in monitors:
            monitor.step(logits=f, targets=labels)
        rule.zero_grad()
        risk.backward()
        if raise_by:
            square = torch.stack([p.grad.square().sum() for p in net.parameters()]).sum()
            rule.param_groups[0]["lr"] = float(raise_by * risk.detach() / square)
        rule.step()
    return [series(monitor.records) for monitor in monitors]


def descend(net, x, labels, homogeneous, steps: int, lr: float = 0.0, raise_by: float = 0.0) -> list[np.ndarray]:
    """Gradient descent of a copy, watched once for each entry of `homogeneous`."""
    net = copy.deepcopy(net)
    monitors = [MarginMonitor(net, one) for one in homogeneous]
    return train(net, x, labels, monitors, torch.optim.SGD(net.parameters(), lr=lr), steps, raise_by)


STEPS = {"mlp": (0.4, 20.0), "resnet": (0.008, 0.24), "resnet, train mode": (0.01, 0.3), "transformer": (0.05, 2.0)}


@pytest.mark.parametrize("kind", EXPECTED)
def test_psi_over_the_norm_never_falls_under_small_steps(kind):
    """From the same fitted point over the same time with steps h, h/2, h/4: it rises at every step, alike."""
    net, x, labels = problem(kind)
    fit(net, x, labels)
    h, time = STEPS[kind]
    ends = []
    for lr in (h, h / 2, h / 4):
        model = copy.deepcopy(net)
        monitor = MarginMonitor(model)  # homogeneous="auto"
        (values,) = train(model, x, labels, [monitor], torch.optim.SGD(model.parameters(), lr=lr), round(time / lr) + 1)
        assert (monitor.homogeneous.names, monitor.homogeneous.degree) == EXPECTED[kind]
        assert all(one.fitted and one.n == N for one in monitor.records)
        assert np.diff(values).min() > 0
        assert np.diff([one.norm for one in monitor.records]).min() > 0
        ends.append(values[-1])
    assert ends[-1] > 1.2 * values[0]
    assert_allclose(ends, ends[-1], rtol=0.01)  # one flow


@pytest.mark.parametrize("kind", ["mlp", "resnet", "transformer"])
def test_a_step_errs_by_its_square(kind):
    """psi / |w_hat|^L grows by h times its rate, which is >= 0, up to c h^2. So no dip is deeper than c h^2."""
    net, x, labels = problem(kind)
    fit(net, x, labels)
    found = find_homogeneous(net, (x, labels))
    rate = rates(net, x, labels, found)["rate"]
    errors = []
    for h in STEPS[kind][0] * np.array([0.02, 0.01, 0.005]):
        before, after = descend(net, x, labels, [found], 2, lr=h)[0]
        errors.append(abs(after - before - h * rate) / before)
    assert rate > 0
    assert 1e-9 < errors[0] < 1e-2
    assert_allclose(np.array(errors[:2]) / errors[1:], 4, rtol=0.1)


DIPS = {"mlp": (1.6, 8.0, 16.0, 0.02), "resnet": (0.2, 4.0, 8.0, 0.02), "transformer": (0.1, 4.0, 8.0, 0.01)}


@pytest.mark.parametrize("kind", DIPS)
def test_dips_come_from_the_step_and_vanish_with_it(kind):
    """Later, with steps so long that there are dips: a quarter of the step leaves less than a sixteenth of them."""
    net, x, labels = problem(kind)
    fit(net, x, labels)
    found = find_homogeneous(net, (x, labels))
    h, before, time, small = DIPS[kind]
    rule = torch.optim.SGD(net.parameters(), lr=0.0)
    (start,) = train(net, x, labels, [MarginMonitor(net, found)], rule, round(before / small), small)
    assert fall(start) < 1e-12
    falls = [
        fall(descend(net, x, labels, [found], round(time / one) + 1, raise_by=one)[0]) for one in (h, h / 2, h / 4)
    ]
    assert falls[0] > 0.01
    assert falls[0] > 4 * falls[1] and falls[1] >= 4 * falls[2] and falls[0] > 16 * falls[2]


# ---------------------------------------------------------------- where it does not hold


def test_a_wrong_degree_breaks_it():
    """The bias-free MLP has degree 3: psi / |w|^3 rises, psi / |w|^5 and psi / |w|^8 fall."""
    net, x, labels = problem("mlp")
    fit(net, x, labels)
    right = find_homogeneous(net, (x, labels))
    wrong = [Homogeneous(right.names, degree) for degree in (5, 8)]
    values = descend(net, x, labels, [right, *wrong], 500, raise_by=0.05)
    assert fall(values[0]) == 0
    assert fall(values[1]) > 0.02 and fall(values[2]) > 0.3


def test_a_set_that_is_not_homogeneous_breaks_it():
    """Biases that are still small when the weights have fitted: psi over their norm, to any power, falls."""
    torch.manual_seed(0)
    net, x, labels = mlp(6, 16, 16, CLASSES, bias=True), torch.randn(N, 6).double(), torch.randint(0, CLASSES, (N,))
    biases = tuple(name for name, _ in net.named_parameters() if "bias" in name)
    with torch.no_grad():
        for name, p in net.named_parameters():
            if name in biases:
                p.normal_(0, 0.003)
    fit(net, x, labels, only="weight")
    right = find_homogeneous(net, (x, labels))
    values = descend(net, x, labels, [right, *(Homogeneous(biases, degree) for degree in (1, 3))], 200, lr=0.1)
    assert right.names == ("4.weight", "4.bias") and fall(values[0]) == 0
    assert fall(values[1]) > 0.1 and fall(values[2]) > 0.5


def test_with_weight_decay_it_can_fall():
    """However small the step, and with all examples fitted: what is lost over the same time is the same with half the step."""
    net, x, labels = problem("mlp")
    fit(net, x, labels)
    found = find_homogeneous(net, (x, labels))
    train(net, x, labels, [], torch.optim.SGD(net.parameters(), lr=0.0), 80, raise_by=0.1)
    lost = []
    for h in (0.8, 0.4):
        model = copy.deepcopy(net)
        monitor = MarginMonitor(model, found)
        rule = torch.optim.SGD(model.parameters(), lr=h, weight_decay=1e-3)
        lost.append(fall(train(model, x, labels, [monitor], rule, round(160 / h))[0]))
        assert all(one.fitted for one in monitor.records)
    assert lost[0] > 0.05
    assert_allclose(lost[0], lost[1], rtol=0.05)


def test_with_adam_it_can_fall():
    """One example x, two classes, a linear network with the best direction (x, -x): psi / |W| = sqrt(2) |x|. Adam goes along the
    signs of x, where psi / |W| = sqrt(2 / d) |x|_1, and there it ends; gradient descent stays. With any small step."""
    x, labels = torch.tensor([[8.0, 1.0, 0.5]]).double(), torch.tensor([0])
    best, signs = math.sqrt(2) * float(x.norm()), math.sqrt(2 / 3) * float(x.abs().sum())
    lost = []
    for lr in (2e-2, 1e-2, 5e-3):
        net = nn.Linear(3, 2, bias=False).double()
        with torch.no_grad():
            net.weight.copy_(torch.cat([x, -x]) * 0.001)
        (kept,) = descend(net, x, labels, [Homogeneous(("weight",), 1)], 100, lr=lr)
        assert_allclose(kept, best, rtol=1e-12)
        monitor = MarginMonitor(net)
        rule = torch.optim.Adam(net.parameters(), lr=lr, betas=(0.0, 0.0), eps=1e-300)
        (values,) = train(
            net, x, labels, [monitor], rule, round(1.5 / lr)
        )  # until p = 29: from 37 on the softmax of the label is 1
        assert_allclose(values[0], best, rtol=1e-12)
        assert np.diff(values).max() < 1e-9 * best
        assert signs < values[-1] < 1.01 * signs
        lost.append(fall(values))
    assert_allclose(lost, 1 - signs / best, rtol=0.05)
