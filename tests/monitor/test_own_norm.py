"""The optimiser's own norm: which one it is, how large parameters are in it, that psi / N(w)^L never falls in it (WM-5), and late
training."""

import copy
import math
import warnings

import pytest
import torch
from numpy.testing import assert_allclose
from test_theorem import EXPECTED, fit, mlp, problem
from torch import nn
from torch.nn import functional as F

from checks import repeated
from widemargin.monitor import Homogeneous, MarginMonitor, Record, falls, own_geometry, own_norm, vanishing_margin
from widemargin.monitor.model import Norms
from widemargin.monitor.own_norm import OwnNorm
from widemargin.types import InputError

pytestmark = pytest.mark.usefixtures("one_thread")


class SignSGD(torch.optim.Optimizer):
    """w <- w - lr sign(gradient)."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p -= group["lr"] * p.grad.sign()


class SingleDeviceMuonWithAuxAdam(torch.optim.Optimizer):
    """Matrices move by lr sqrt(max(1, rows / columns)) times their polar factor, the others by lr times their signs."""

    def __init__(self, groups):
        super().__init__(groups, {})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if group["use_muon"]:
                    U, _, V = torch.linalg.svd(p.grad.flatten(1), full_matrices=False)
                    scale = max(1.0, p.shape[0] / math.prod(p.shape[1:])) ** 0.5
                    p -= group["lr"] * scale * (U @ V).reshape(p.shape)
                else:
                    p -= group["lr"] * p.grad.sign()


def muon(net, lr, ratio=0.5):
    matrices = [p for p in net.parameters() if p.ndim > 1]
    others = [p for p in net.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "lr": lr, "use_muon": True}]
    return SingleDeviceMuonWithAuxAdam(
        groups + ([{"params": others, "lr": ratio * lr, "use_muon": False}] if others else [])
    )


def followed(net, x, labels, make, steps, lr, names=None, degree=None):
    """Records of every step of full-batch training."""
    net = copy.deepcopy(net)
    rule = make(net, lr)
    found = (names, degree) if names else EXPECTED[net.kind]
    monitor = MarginMonitor(net, Homogeneous(found[0], found[1]), optimizer=rule)
    records = []
    for _ in range(steps):
        records.append(monitor.measure((x, labels), evaluate=False))
        rule.zero_grad()
        F.cross_entropy(net(x), labels, reduction="sum").backward()
        rule.step()
    return records, monitor


def fitted(kind):
    net, x, labels = problem(kind)
    if kind == "resnet":
        net.eval()
    fit(net, x, labels)
    net.kind = kind
    return net, x, labels


# ---------------------------------------------------------------- what must hold


RATES = {
    ("mlp", "sign"): 1e-4, ("resnet", "sign"): 5e-5, ("transformer", "sign"): 5e-5,
    ("mlp", "muon"): 5e-4, ("resnet", "muon"): 2e-4, ("transformer", "muon"): 2e-4,
}  # fmt: skip


@pytest.mark.parametrize("way", ["sign", "muon"])
@repeated("kind", ["mlp", "resnet", "transformer"], 0, 2)
def test_the_own_norm_margin_never_falls_beyond_what_shrinks_with_the_step(kind, way):
    net, x, labels = fitted(kind)
    make = {"sign": lambda net, lr: SignSGD(net.parameters(), lr), "muon": muon}[way]
    lr = RATES[kind, way]
    deep = []
    for k in (1, 2):
        records, monitor = followed(net, x, labels, make, 60 * k, lr / k)
        found = falls(records, monitor.geometry)
        assert all(record.fitted for record in records) and found.own.pairs == 60 * k - 1
        deep.append(found.own.deepest)
        assert records[-1].psi_own > records[0].psi_own
    assert deep[1] <= 0.6 * deep[0] + 1e-9 and deep[0] < 1e-2, deep


def test_the_wrong_norm_and_the_wrong_subset_fall_and_are_told_apart():
    """A linear model at the best Euclidean direction of one example: signs leave it, at any step."""
    for lr in (2e-2, 1e-2):
        net = nn.Linear(3, 2, bias=False).double()
        x, y = torch.tensor([[8.0, 1.0, 0.5]]).double(), torch.tensor([0])
        with torch.no_grad():
            net.weight.copy_(0.05 * torch.stack([x[0], -x[0]]))
        records, monitor = followed(
            net, x, y, lambda net, lr: SignSGD(net.parameters(), lr), int(0.6 / lr), lr, ("weight",), 1
        )
        found = falls(records, monitor.geometry)
        assert found.count and not found.own.count and found.cause.startswith("the wrong norm"), found
    torch.manual_seed(0)
    net, (_, x, labels) = mlp(6, 16, 16, 5, bias=True), problem("mlp")
    biases = tuple(name for name, p in net.named_parameters() if p.ndim == 1)
    with torch.no_grad():
        for name in biases:
            net.get_parameter(name).fill_(1e-4)
    fit(net, x, labels, only="weight")

    def signs(net, lr):
        return SignSGD(net.parameters(), lr)

    wrong, _ = followed(net, x, labels, signs, 20, 1e-4, biases, 1)  # the output is homogeneous in no biases
    assert falls(wrong).own.deepest > 0.5
    net, x, labels = fitted("mlp")
    wrong, _ = followed(net, x, labels, signs, 60, 1e-4, EXPECTED["mlp"][0], 200)  # nor of this degree in the weights
    assert falls(wrong).own.deepest > 0.1


def test_falls_from_momentum_decay_and_long_steps_are_told_apart():
    net, x, labels = fitted("mlp")

    def decayed(net, lr):
        return torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9, weight_decay=0.3)

    records, monitor = followed(net, x, labels, decayed, 60, 1e-3)
    found = falls(records, monitor.geometry)
    assert found.own.count and found.cause.startswith("momentum 0.9 or weight decay 0.3"), found

    def signs(net, lr):
        return SignSGD(net.parameters(), lr)

    long, monitor = followed(net, x, labels, signs, 40, 2e-2)
    half, _ = followed(net, x, labels, signs, 80, 1e-2)
    assert falls(long).own.count and "momentum, decay or long steps" in falls(long).cause
    assert "halve the step" in falls(long, monitor.geometry).cause
    assert falls(long, monitor.geometry, half).cause.startswith("long steps"), falls(long, monitor.geometry, half)
    same = falls(long, monitor.geometry, long)
    assert "it is not the step" in same.cause


# ---------------------------------------------------------------- geometries


def test_the_geometry_is_read_from_the_optimiser():
    net = mlp(6, 16, 16, 5)
    named = dict(net.named_parameters())

    def groups():  # optimisers write their defaults into them
        rest = [named["2.weight"], named["4.weight"]]
        return [{"params": [named["0.weight"]], "lr": 1e-2}, {"params": rest, "lr": 2.5e-3}]

    for make in (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.Adamax):
        found = own_geometry(make(groups()), named)
        assert [part.norm for part in found.parts] == ["linf"] * 3 and found.joined == "max"
        assert_allclose([part.weight for part in found.parts], [1, 0.25, 0.25])
        size = OwnNorm(found).exactly(list(named.values()))[0]
        each = [named["0.weight"].abs().max(), 4 * named["2.weight"].abs().max(), 4 * named["4.weight"].abs().max()]
        assert_allclose(size, max(one.item() for one in each))
    found = own_geometry(torch.optim.AdamW(groups(), betas=(0.8, 0.9), weight_decay=0.3), named)
    assert (found.momentum, found.decay, found.rate) == (0.8, 0.3, 1e-2)
    found = own_geometry(torch.optim.SGD(groups(), momentum=0.9), named)
    assert found.joined == "l2" and found.momentum == 0.9
    total = sum(p.square().sum() / (1 if name == "0.weight" else 0.25) for name, p in named.items())
    assert_allclose(OwnNorm(found).exactly(list(named.values()))[0], total.sqrt().item())
    plain = own_geometry(torch.optim.SGD(net.parameters(), lr=0.1), named)
    assert_allclose(
        OwnNorm(plain).exactly(list(named.values()))[0], sum(p.square().sum() for p in named.values()).sqrt().item()
    )
    rule = torch.optim.AdamW(groups())
    schedule = torch.optim.lr_scheduler.LambdaLR(rule, lambda step: step / 10)  # begins at 0
    assert_allclose([part.weight for part in own_geometry(rule, named).parts], [1, 0.25, 0.25])
    assert schedule is not None


def test_muon_with_its_adam_part_is_a_mixed_maximum():
    net = nn.Sequential(nn.Linear(4, 9, bias=False), nn.LayerNorm(9, bias=False), nn.Linear(9, 3, bias=False))
    named = dict(net.named_parameters())
    found = own_geometry(muon(net, 0.02), named)
    assert [part.norm for part in found.parts] == ["spectral", "linf", "spectral"]
    assert_allclose([part.weight for part in found.parts], [1, 0.5 / 1.5, 1 / 1.5])  # 9 rows by 4 columns: sqrt(9 / 4)
    values = [torch.linalg.matrix_norm(p, 2).item() if p.ndim == 2 else p.abs().max().item() for p in named.values()]
    assert_allclose(
        OwnNorm(found).exactly(list(named.values()))[0],
        max(v / part.weight for v, part in zip(values, found.parts)),
        rtol=1e-6,
    )
    if hasattr(torch.optim, "Muon"):
        pair = [
            torch.optim.Muon([named["0.weight"], named["2.weight"]], lr=0.02),
            torch.optim.AdamW([named["1.weight"]], lr=0.01),
        ]
        assert [part.norm for part in own_geometry(pair, named).parts] == ["spectral", "linf", "spectral"]


def test_the_power_iteration_follows_the_spectral_norm_and_states_its_error():
    torch.manual_seed(0)
    W = nn.Parameter(torch.randn(60, 30, dtype=torch.float64))
    own = OwnNorm(own_geometry(None, {"W": W}, norm="spectral"))
    for _ in range(50):
        [[size, error]] = own.sizes([Norms([], [], *own.now([W]))]).tolist()
        values = torch.linalg.svdvals(W)
        assert size <= values[0].item() * (1 + 1e-12)
        assert (values - size).abs().min().item() <= error * size * (1 + 1e-9)  # what the residual promises
        assert size > 0.97 * values[0].item()
        with torch.no_grad():
            W += 0.01 * torch.randn_like(W)
    exact, error = own.exactly([W])
    assert_allclose(exact, torch.linalg.svdvals(W)[0].item())
    assert error == 0


def test_a_measurement_beyond_decompositions_states_its_own_error(monkeypatch: pytest.MonkeyPatch):
    """Two singular values that are nearly equal: after 60 rounds the error is far above rounding, and said as it is."""
    monkeypatch.setattr(own_norm, "EXACT", 1)
    net = nn.Sequential(nn.Linear(2, 2, bias=False)).double()
    with torch.no_grad():
        net[0].weight.copy_(torch.diag(torch.tensor([1.0, 1 - 1e-3])))
    monitor = MarginMonitor(net, Homogeneous(("0.weight",), 1), norm="spectral")
    record = monitor.measure((torch.randn(8, 2, dtype=torch.float64), torch.arange(8) % 2))
    own = OwnNorm(monitor.geometry)
    top, back = own._power("0.weight", net[0].weight.detach(), own_norm.LONG)
    want = math.sqrt((back / own.scales["0.weight"] / top**2) ** 2 - 1)
    assert 1e-5 < want < 1e-3 and record.extra["own_error"] == pytest.approx(want, rel=1e-6)
    assert record.extra["own_norm"] == pytest.approx(1, abs=1e-3)


def test_norms_taken_before_a_step_have_the_own_norm_and_nan_is_not_hidden():
    for rule, size in ((torch.optim.Adam, lambda w: w.abs().max()), (torch.optim.SGD, lambda w: w.norm())):
        net, x, labels = problem("mlp")
        monitor = MarginMonitor(net, optimizer=rule(net.parameters(), lr=1e-3))
        monitor.find((x, labels))
        sizes, before, logits = size(torch.cat([p.flatten() for p in net.parameters()])), monitor.norms_now(), net(x)
        with torch.no_grad():
            for p in net.parameters():
                p.mul_(3)
        monitor.step(logits=logits, targets=labels, before=before)
        assert_allclose(monitor.last.extra["own_norm"], sizes.item())
        with torch.no_grad():
            next(net.parameters())[0, 0] = math.nan
        monitor.step(logits=logits, targets=labels)
        assert math.isnan(monitor.last.extra["own_norm"])


def test_norms_taken_before_there_is_a_norm_have_none():
    net, x, labels = problem("mlp")
    monitor = MarginMonitor(net, optimizer=torch.optim.Adam(net.parameters(), lr=1e-3))
    before, logits = monitor.norms_now(), net(x)
    monitor.step(logits=logits, targets=labels, before=before)
    assert "own_norm" not in monitor.last.extra
    monitor.step(logits=logits, targets=labels)
    assert monitor.last.extra["own_norm"] > 0


def five_steps(net, x, labels, rule, monitor) -> None:
    for _ in range(5):
        logits = net(x)
        monitor.step(logits=logits, targets=labels)
        rule.zero_grad()
        F.cross_entropy(logits, labels).backward()
        rule.step()


def test_records_of_steps_and_measurements_have_the_own_norm(tmp_path):
    net, x, labels = problem("mlp")
    rule = torch.optim.Adam(net.parameters(), lr=1e-3)
    with MarginMonitor(net, optimizer=rule, out=tmp_path / "run") as monitor:
        five_steps(net, x, labels, rule, monitor)
        record = monitor.measure((x, labels))
        assert str(monitor.geometry) == "the largest of max|0.weight|, max|2.weight|, max|4.weight| (Adam)"
    top = max(p.abs().max().item() for p in net.parameters())
    assert_allclose(record.extra["own_norm"], top)
    assert_allclose(record.psi_own, record.psi / top**3)
    steps = [one for one in monitor.records if one.name == "step"]
    assert len(steps) == 5 and all(one.extra["own_norm"] > 0 for one in steps)
    from widemargin import monitor as room

    kept = room.load(tmp_path / "run")
    assert_allclose(kept.column("own_norm").to_pylist(), [one.extra["own_norm"] for one in monitor.records])
    assert room.config(tmp_path / "run")["geometry"]["joined"] == "max"


@pytest.mark.gpu
@pytest.mark.parametrize("matrices", [False, True])
def test_on_a_gpu_the_numbers_are_the_same(matrices: bool):
    """Some of what a step keeps is on the host: counts of examples, errors of a power iteration."""
    last = []
    for device in ("cpu", "cuda"):
        net, x, labels = problem("mlp")
        net, x, labels = net.to(device), x.to(device), labels.to(device)
        rule = torch.optim.AdamW(net.parameters(), lr=1e-3)
        monitor = MarginMonitor(net, optimizer=rule, late=True, norm="spectral" if matrices else None)
        five_steps(net, x, labels, rule, monitor)
        monitor.flush()
        last.append(monitor.records[-1].extra)
    assert last[0].keys() == last[1].keys() >= {"own_norm", "lost", "along"}
    for name in ("own_norm", "lost", "along"):
        assert_allclose(last[1][name], last[0][name], rtol=1e-3)


def test_without_an_optimiser_nothing_changes():
    net, x, labels = problem("mlp")
    record = MarginMonitor(net).measure((x, labels))
    assert record.extra == {} and math.isnan(record.psi_own) and falls([record, record]).own is None


# ---------------------------------------------------------------- bad input


class Adagrad2(torch.optim.Adagrad):
    pass


def test_bad_input_is_refused_with_a_sentence():
    net = nn.Sequential(nn.Linear(4, 9, bias=False), nn.LayerNorm(9, bias=False), nn.Linear(9, 3, bias=False))
    named = dict(net.named_parameters())
    rule = torch.optim.Adam(net.parameters())
    rule.param_groups[0].pop("lr")
    zero = torch.optim.SGD(net.parameters(), lr=0.0)
    partly = torch.optim.Adam([named["0.weight"]])
    both = [torch.optim.SGD([named["0.weight"]], lr=0.1), torch.optim.Adam([named["1.weight"], named["2.weight"]])]
    for call, said in (
        (lambda: own_geometry(Adagrad2(net.parameters()), named), "does not know in which norm Adagrad2 moves"),
        (lambda: own_geometry(rule, named), "group 0 of Adam has no learning rate"),
        (lambda: own_geometry(zero, named), "group 0 of SGD has the learning rate 0"),
        (lambda: own_geometry(None, named, norm="spectral"), "does not fit 1.weight, a vector of 9 entries"),
        (lambda: own_geometry(partly, named), "'1.weight' is in no group"),
        (lambda: own_geometry(both, named), "in no norm"),
        (lambda: own_geometry("adam", named), "with parameter groups, not str"),
        (lambda: own_geometry(None, named), "neither an optimizer nor a norm"),
        (lambda: MarginMonitor(net, norm="max"), "one of l2, linf, spectral"),
        (lambda: MarginMonitor(net, optimizer=Adagrad2(net.parameters())), "Adagrad2"),
    ):
        with pytest.raises(InputError, match=said):
            call()
    assert own_geometry(Adagrad2(net.parameters()), named, norm="linf").parts[0].norm == "linf"
    # what does not fit is said of the homogeneous parameters, not of the others
    head = MarginMonitor(net, Homogeneous(("2.weight",), 1), norm="spectral")
    assert str(head.geometry) == "|2.weight|_op (norm=)"
    with pytest.raises(InputError, match=r"does not fit 1\.weight"):
        MarginMonitor(net, Homogeneous(("1.weight", "2.weight"), 2), norm="spectral")


# ---------------------------------------------------------------- late training


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_margin_at_which_a_gradient_is_lost_is_that_of_torch(dtype):
    edge = vanishing_margin(dtype)
    for p, lost in ((edge * 0.98, False), (edge * 1.02, True)):
        z = torch.tensor([[p, 0.0]], dtype=dtype, requires_grad=True)
        F.cross_entropy(z, torch.tensor([0])).backward()
        assert (z.grad[0, 0] == 0).item() == lost


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_run_that_collapses_at_a_known_step(dtype):
    """Outputs (s w, -s w) with w = 1, 2, ...: half of the examples have s = 1, the others 0.1; p = 2 s w."""
    net = nn.Linear(1, 2, bias=False)
    x, y = torch.tensor([[1.0], [1.0], [0.1], [0.1]]), torch.zeros(4, dtype=torch.int64)
    known = math.ceil(vanishing_margin(dtype) / 2 + 1e-9)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        monitor = MarginMonitor(net, Homogeneous(("weight",), 1), late=True)
        for step in range(1, known + 4):
            with torch.no_grad():
                net.weight.copy_(torch.tensor([[float(step)], [-float(step)]]))
            monitor.step(logits=net(x).to(dtype), targets=y)
        records = monitor.records
    assert monitor.half_lost == known
    assert [record.extra["lost"] for record in records] == [0.5 if k >= known else 0.0 for k in range(1, known + 4)]
    said = [str(one.message) for one in caught if "round to zero" in str(one.message)]
    wide = "float32 (logits.float())" if dtype == torch.float16 else "float64 (logits.double())"
    assert len(said) == 1 and f"step {known}: the gradients of 50%" in said[0] and wide in said[0]
    # the weights only grow: the whole update lies along them
    assert math.isnan(records[0].extra["along"])
    assert_allclose([record.extra["along"] for record in records[1:]], 1.0)


def test_an_update_across_the_weights_is_not_along_them():
    net = nn.Linear(2, 2, bias=False).double()
    x, y = torch.eye(2).double(), torch.tensor([0, 1])
    monitor = MarginMonitor(net, Homogeneous(("weight",), 1), late=torch.float32)
    for W in ([[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [-1.0, 1.0]]):  # by a rotation's generator: across
        with torch.no_grad():
            net.weight.copy_(torch.tensor(W))
        monitor.step(logits=net(x), targets=y)
    assert_allclose(monitor.records[1].extra["along"], 0.0, atol=1e-15)
    assert isinstance(monitor.records[1], Record) and monitor.half_lost is None


def test_decay_that_the_theorem_does_not_cover_is_a_reason():
    """WM-6 is about decay that is decoupled and shrinks all parameters alike; anything else may let the margin fall."""
    net = nn.Sequential(nn.Linear(2, 3, bias=False), nn.Linear(3, 2, bias=False))
    named = dict(net.named_parameters())
    one, two = named.values()
    adam, adamw = torch.optim.Adam, torch.optim.AdamW
    for optimizer, even in (
        (adamw(net.parameters(), weight_decay=0.1), True),
        (adam(net.parameters(), weight_decay=0.1), False),  # through the gradient
        (adam(net.parameters()), True),
        (adamw([{"params": [one], "weight_decay": 0.1}, {"params": [two], "weight_decay": 0.0}]), False),
        (adamw([{"params": [one], "lr": 1e-3}, {"params": [two], "lr": 1e-4}], weight_decay=0.1), False),
        (adamw([{"params": [one], "lr": 1e-3}, {"params": [two], "lr": 1e-4}], weight_decay=0.0), True),
    ):
        assert own_geometry(optimizer, named).even == even, optimizer
    falling = [fake(psi, own_norm=1.0) for psi in (1.0, 0.5)]  # N is far below 1 / decay
    geometry = own_geometry(adam(net.parameters(), weight_decay=0.1, betas=(0.0, 0.9)), named)
    assert "weight decay 0.1" in falls(falling, geometry).cause
    geometry = own_geometry(adamw(net.parameters(), weight_decay=0.1, betas=(0.0, 0.9)), named)
    assert "halve the step" in falls(falling, geometry).cause


def fake(psi: float, own_norm: float, name: str = "train") -> Record:
    return Record(
        step=int(10 / psi), name=name, whole=True, n=2, error=0.0, loss=0.1, margin=psi, margin_mean=psi, quantiles={},
        exact=True, psi=psi, log_loss_sum=-1.0, norm=1.0, degree=1, at_minimum=1, dual_entropy=0.0, extra={"own_norm": own_norm},
    )  # fmt: skip


def test_falls_are_of_one_name_and_half_must_say_something():
    falling = [fake(psi, own_norm=1.0) for psi in (1.0, 0.5)]
    with pytest.raises(InputError, match="records of train, test, which are not to be compared"):
        falls([*falling, fake(0.4, 1.0, "test")])
    with pytest.raises(InputError, match="half has no two records after fitting"):
        falls(falling, half=falling[:1])
    assert falls(falling, half=[fake(1.0, 1.0), fake(0.9, 1.0)]).cause.startswith("long steps")


def test_wrapped_optimisers_and_two_of_one_parameter():
    net = nn.Linear(2, 2, bias=False)
    named = dict(net.named_parameters())
    adam = torch.optim.Adam(net.parameters())

    class AcceleratedOptimizer:
        def __init__(self, optimizer):
            self.optimizer, self.param_groups = optimizer, optimizer.param_groups

    assert str(own_geometry(AcceleratedOptimizer(adam), named)) == "max|weight| (Adam)"
    with pytest.raises(InputError, match="'weight' is moved by two optimisers"):
        own_geometry([adam, torch.optim.SGD(net.parameters(), lr=0.1)], named)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_matrix_of_zeros_does_not_stop_the_power_iteration(dtype: torch.dtype):
    """Heads often start at 0: the vector that a product with 0 leaves would be 0 for ever, and so would the norm."""
    W = torch.zeros(5, 7, dtype=dtype)
    own = OwnNorm(own_geometry(None, {"W": W}, norm="spectral"))
    sizes = []
    for k in range(40):
        sizes.append(own.sizes([Norms([], [], *own.now([W]))])[0].tolist())
        if k == 2:
            W.copy_(torch.randn(5, 7, generator=torch.Generator().manual_seed(0)))
    assert sizes[:3] == [[0.0, 0.0]] * 3
    assert_allclose(sizes[-1][0], torch.linalg.svdvals(W)[0].item(), rtol=1e-3)


def test_weights_that_were_not_finite_and_are_again():
    W = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    own, good = OwnNorm(own_geometry(None, {"W": W}, norm="spectral")), W.clone()
    for value in (math.nan, math.inf):
        W[2, 3] = value
        assert not math.isfinite(own.sizes([Norms([], [], *own.now([W]))])[0, 0].item())
        W.copy_(good)
        [[size, error]] = own.sizes([Norms([], [], *own.now([W]))]).tolist()
        assert_allclose(size, torch.linalg.svdvals(W)[0].item(), rtol=1e-3)
        assert error < 0.1


@pytest.mark.parametrize("size", [1e-9, 1e-3, 1e11])
def test_the_power_iteration_at_other_scales(size: float):
    """In float32, where squares of 1e-18 and 1e22 times others are none."""
    W = size * torch.randn(30, 40, generator=torch.Generator().manual_seed(0))
    own = OwnNorm(own_geometry(None, {"W": W}, norm="spectral"))
    for _ in range(30):
        [[top, error]] = own.sizes([Norms([], [], *own.now([W]))]).tolist()
    assert_allclose(top, torch.linalg.svdvals(W)[0].item(), rtol=1e-3)
    assert error < 0.05


def test_norms_taken_before_a_flush_that_began_a_vector_anew():
    """Callbacks take norms at the start of a batch, and a flush may come between."""
    W = nn.Parameter(torch.full((3, 4), math.nan))
    own = OwnNorm(own_geometry(None, {"W": W}, norm="spectral"))
    with torch.no_grad():
        early = Norms([], [], *own.now([W]))
        own.sizes([early])
        assert math.isnan(own.sizes([early])[0, 0].item())


@pytest.mark.parametrize("late", [False, True])
def test_a_spectral_norm_under_autocast_is_that_without(late: bool):
    head = nn.Linear(4, 3, bias=False)
    X, y = torch.randn(8, 4), torch.arange(8) % 3
    monitor = MarginMonitor(head, norm="spectral", late=late)
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(30):
            monitor.step(logits=head(X), targets=y)
    assert_allclose(monitor.last.extra["own_norm"], torch.linalg.svdvals(head.weight)[0].item(), rtol=1e-4)


def test_updates_of_a_model_without_homogeneous_parameters_or_of_another_type():
    X, y = torch.randn(8, 4), torch.arange(8) % 3
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    with pytest.warns(UserWarning, match="not normalised"):
        monitor = MarginMonitor(net, Homogeneous((), 0), late=True)
    monitor.step(logits=net(X), targets=y)
    assert math.isnan(monitor.last.extra["along"])

    head = nn.Linear(4, 3, bias=False)
    monitor = MarginMonitor(head, late=True)
    with torch.inference_mode():
        monitor.step(logits=head(X), targets=y)
    for change in (lambda: head, head.double):
        change()
        head.weight.data.mul_(2)
        monitor.step(logits=head(X.to(head.weight.dtype)), targets=y)
    assert_allclose([record.extra["along"] for record in monitor.records[1:]], 1.0, rtol=1e-5)
