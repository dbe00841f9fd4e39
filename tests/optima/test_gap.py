"""How far a network is from the best of any width: the objective is PyTorch's, the sentence is right, other forms are refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn

from widemargin import Dataset, InputError, optima

LOSSES = ("logistic", "squared", "hinge", "squared-hinge", "exp")
rng = np.random.default_rng(0)
X = rng.standard_normal((24, 2))
Y = np.where(X[:, 0] * X[:, 1] + 0.4 * rng.standard_normal(24) > 0, 1.0, -1.0)
WEIGHTS = rng.uniform(0.2, 2, 24)


def network(m=5, first=True, last=True, seed=0, dtype=torch.float64, d=2, outputs=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(d, m, bias=first), nn.ReLU(), nn.Linear(m, outputs, bias=last)).to(dtype)


def torch_objective(model, loss, decay, decayed, weights=None):
    """Each loss as docs/optima.md names it in PyTorch."""
    t, y = model(torch.tensor(X))[:, 0], torch.tensor(Y)
    each = {
        "logistic": lambda: nn.BCEWithLogitsLoss(reduction="none")(t, (y + 1) / 2),
        "squared": lambda: nn.MSELoss(reduction="none")(t, y) / 2,
        "hinge": lambda: torch.relu(1 - y * t),
        "squared-hinge": lambda: 0.5 * torch.relu(1 - y * t).square(),
        "exp": lambda: torch.exp(-y * t),
    }[loss]()
    w = torch.ones(24, dtype=torch.float64) if weights is None else torch.tensor(weights)
    value = (w * each).sum() / w.sum() + decay / 2 * sum(p.square().sum() for p in decayed)
    return float(value.detach())


@pytest.mark.parametrize("loss", LOSSES)
def test_the_objective_is_that_of_pytorch(loss):
    """Every bias setting; one weight_decay for all parameters, or none for the last bias."""
    for first, last, mode in ((True, True, None), (True, True, "free"), (True, False, None), (False, False, None)):
        model = network(first=first, last=last)
        decayed = [p for name, p in model.named_parameters() if mode != "free" or name != "2.bias"]
        weights = WEIGHTS if mode == "free" else None
        found = optima.gap(model, X, Y, loss=loss, weight_decay=0.03, output_bias=mode, weights=weights, tol=0.01)
        assert_allclose(found.objective, torch_objective(model, loss, 0.03, decayed, weights), rtol=1e-12)
        cert = found.certificate
        assert cert.bias == first and cert.extra["output_bias"] == (mode or ("decayed" if last else None))
        assert cert.verify(Dataset(X, Y)).ok
        usual = optima.f1(Dataset(X, Y), loss=loss, weight_decay=0.03, bias=first, output_bias=cert.extra["output_bias"],
                          weights=weights, tol=0.01)  # fmt: skip
        assert cert.lower <= usual.upper and usual.lower <= cert.upper
        assert found.objective > cert.lower and found.above >= found.at_least >= 0


def test_the_best_scaling_of_its_neurons():
    """Scaling layers by s and 1/s leaves `balanced` as it is; at the best scaling, found by a search, it is the objective."""
    model = network(m=4)
    before = optima.gap(model, X, Y, weight_decay=0.05)
    with torch.no_grad():
        model[0].weight *= 3
        model[0].bias *= 3
        model[2].weight /= 3
    after = optima.gap(model, X, Y, weight_decay=0.05)
    assert_allclose(after.balanced, before.balanced, rtol=1e-12)
    assert_allclose(after.loss, before.loss, rtol=1e-12)
    assert after.objective > before.objective > before.balanced
    assert_allclose(after.unbalanced, (after.objective - after.balanced) / after.certificate.lower, rtol=1e-9)
    with torch.no_grad():
        inner = torch.sqrt(model[0].weight.square().sum(1) + model[0].bias.square())
        outer = model[2].weight[0].abs()
        # The best factor of each neuron by brute force: s^2 inner^2 + outer^2 / s^2.
        grid = torch.logspace(-3, 3, 20001, dtype=torch.float64)[:, None]
        s = grid[((grid * inner) ** 2 + (outer / grid) ** 2).argmin(0), 0]
        model[0].weight *= s[:, None]
        model[0].bias *= s
        model[2].weight /= s
    best = optima.gap(model, X, Y, weight_decay=0.05)
    assert_allclose(best.objective, before.balanced, rtol=1e-6)
    assert best.unbalanced < 1e-5


def test_a_best_network_is_at_the_optimum():
    """The certificate's own network as a PyTorch model, and the solver is not asked to find it again."""
    data = Dataset(X, Y)
    cert = optima.f1(data, weight_decay=0.01, output_bias="decayed", tol=1e-7, bias=True)
    W, a = cert.primal.to_network()
    model = network(m=len(a))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor(W[:, :2]))
        model[0].bias.copy_(torch.tensor(W[:, 2]))
        model[2].weight.copy_(torch.tensor(a[None]))
        model[2].bias.fill_(cert.extra["offset"])
    found = optima.gap(model, X, Y, weight_decay=0.01, tol=1e-7)
    assert found.above < 2e-7 and found.at_least < 1e-9 and found.unbalanced < 1e-9
    assert "at most" in str(found) and "balanced" not in str(found)
    # Stopped at once the solver has found nothing itself, and still does not say that the best is worse than this.
    early = optima.gap(model, X, Y, weight_decay=0.01, time_limit=1e-9)
    assert early.certificate.status == "time-limit" and early.certificate.verify(data).ok
    assert_allclose(early.certificate.upper, cert.upper, rtol=1e-9)


@pytest.mark.slow
def test_a_network_that_was_trained():
    torch.manual_seed(1)
    model = network(m=30, seed=1)
    decayed = list(model.parameters())
    rule = torch.optim.SGD(decayed, lr=0.2, weight_decay=0.02)
    inputs, targets = torch.tensor(X), torch.tensor((Y + 1) / 2)
    start = optima.gap(model, X, Y, weight_decay=0.02)
    for _ in range(600):
        rule.zero_grad()
        nn.BCEWithLogitsLoss()(model(inputs)[:, 0], targets).backward()
        rule.step()
    end = optima.gap(model, inputs, targets[:, None] * 2 - 1, weight_decay=0.02)  # tensors, and targets in a column
    assert 0 <= end.at_least <= end.above < 0.02 < start.at_least
    assert end.unbalanced < 1e-3 < start.unbalanced  # weight decay balances the layers


def test_single_precision_and_names():
    model = network(dtype=torch.float32)
    usual = optima.gap(model, X, Y, weight_decay=0.02)
    assert_allclose(usual.objective, torch_objective(model.double(), "logistic", 0.02, model.parameters()), rtol=1e-12)
    state = model.state_dict()
    W, b, a, c = (state[name].numpy() for name in ("0.weight", "0.bias", "2.weight", "2.bias"))
    for names in (
        state,
        {"fc2.bias": c, "fc2.weight": a, "fc1.bias": b, "fc1.weight": W},
        {"W": W, "a": a, "b": b, "c": c},
    ):
        assert optima.gap(names, X, Y, weight_decay=0.02).objective == usual.objective
    one = {"in.weight": W[:1], "in.bias": b[:1], "out.weight": a[:, :1], "out.bias": c}  # one neuron: names decide
    found = optima.gap(one, X, Y, weight_decay=0.02)
    assert found.width == 1 and found.certificate.extra["output_bias"] == "decayed"
    assert optima.gap({"u": W, "v": a}, X, Y, weight_decay=0.02).certificate.bias is False


def test_the_sentence():
    cert = optima.f1(Dataset(X, Y), weight_decay=0.01, bias=True)
    cert = replace(cert, lower=0.28031, upper=0.28039)
    assert str(optima.Gap(0.28412, 0.2, 0.28412, 9, cert)) == (
        "objective 0.2841; the best of any width is between 0.2803 and 0.2804: between 1.3 % and 1.4 % above"
    )
    cert = replace(cert, lower=0.2803503, upper=0.2803597)
    assert str(optima.Gap(0.2841, 0.2, 0.2822, 9, cert)) == (
        "objective 0.2841; the best of any width is between 0.2803 and 0.2804: 1.3 % above, "
        "and at most 0.66 % if its layers were balanced"
    )
    cert = replace(cert, lower=0.2803404)
    assert str(optima.Gap(0.2803597, 0.2, 0.2803597, 9, cert)) == (
        "objective 0.280360; the best of any width is between 0.280340 and 0.280360: at most 0.0069 % above"
    )
    nothing = optima.Gap(0.3, 0.2, 0.3, 9, replace(cert, lower=0.0))
    assert nothing.above == math.inf and str(nothing).endswith("between 0.0000 and 0.2804")


@pytest.mark.parametrize("size", [1e15, 1e24, 1e27, 1e100, 1e300])
def test_the_sentence_of_huge_decays(size):
    """Numbers that have more digits than decimals are taken to, beside others that have few; bounds are rounded outward."""
    cert = optima.f1(Dataset(X, Y), weight_decay=0.01, bias=True)
    far = optima.Gap(1.2345678 * size, 0.2, 1.1 * size, 9, replace(cert, lower=0.69, upper=0.6932))
    assert str(far).startswith(
        f"objective {1.2345678 * size:.6g}; the best of any width is between 0.6899 and 0.6933: "
    )
    cert = replace(cert, lower=1.23456789 * size, upper=1.23456781 * 2 * size)
    said = str(optima.Gap(3 * size, 0.2, 3 * size, 9, cert))
    low, high = (float(word) for word in said.split(" between ")[1].split(":")[0].split(" and "))
    assert low <= cert.lower < cert.upper <= high < 1.001 * cert.upper


class Other(nn.Module):
    def forward(self, x):
        return x


@pytest.mark.parametrize(
    ("model", "keys", "words"),
    [
        (network(outputs=3), {}, "the network has 3 outputs"),
        (network(d=5), {}, "takes 5 features, but X has 2"),
        (nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)), {}, "not Sequential\\(Linear, Tanh, Linear\\)"),
        (nn.Sequential(nn.Linear(2, 3), nn.ReLU()), {}, "not Sequential\\(Linear, ReLU\\)"),
        (nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(4, 1)), {}, "shapes of the layers do not fit"),
        (nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 3)), nn.ReLU(), nn.Linear(3, 1)), {}, "must be"),
        (nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Dropout(), nn.Linear(3, 1)), {}, "Linear\\); to compare .* state_dict"),
        (nn.Sequential(nn.Linear(2, 3), nn.GELU(), nn.Dropout(), nn.Linear(3, 1)), {}, "GELU, Dropout, Linear\\)$"),
        (Other(), {}, "not Other; if it computes the same, give its state_dict"),
        (3, {}, "not int"),
        ("model.pt", {}, "not str"),
        ({}, {}, "has nothing"),
        ({"a": np.ones((3, 2))}, {}, "two weight matrices"),
        ({"a": np.ones((3, 2)), "b": np.ones((2, 3))}, {}, "has 2 outputs, but the loss logistic needs 1"),
        ({"a": np.ones((3, 2)), "b": np.ones((4, 5))}, {}, "with K outputs has \\(m, d\\) and \\(K, m\\)"),
        ({"a": np.ones((3, 2)), "b": np.ones((1, 3)), "c": np.ones(2)}, {}, "c of shape \\(2,\\) is no bias"),
        ({"a": np.ones((3, 2)), "b": np.ones((1, 3)), "c": np.ones(3), "d": np.ones(3)}, {}, "d of shape"),
        ({"a": np.ones((1, 2)), "b": np.ones((1, 1)), "c": np.ones(1)}, {}, "it fits both layers"),
        ({"a": np.ones((3, 2)), "b": np.ones((1, 3)), "c": np.ones(())}, {}, "two weight matrices"),
        ({"a": "text", "b": np.ones((1, 3))}, {}, "a of the state dict is no array of numbers"),
        ({"a": np.full((3, 2), np.nan), "b": np.ones((1, 3))}, {}, "NaN or infinite"),
        ({"a": np.ones((0, 2)), "b": np.ones((1, 0))}, {}, "no neurons"),
        ({"a": np.full((3, 2), 1e200), "b": np.ones((1, 3))}, {}, "not a finite number"),
        (network(last=False), {"output_bias": "free"}, "the last layer of the network has no bias"),
        (network(), {"output_bias": "no"}, "output_bias must be"),
        (network(), {"weight_decay": 0}, "weight_decay must be a positive number"),
        (network(), {"loss": "cubic"}, "loss must be one of"),
        (network(), {"device": "tpu"}, "device must be"),
        (network(), {"y": Y[:5]}, "one target per row"),
        (network(), {"y": 0 * Y}, "needs labels -1 and \\+1, but y has 0, and .* give 2 \\* y - 1"),
    ],
)  # fmt: skip
def test_one_sentence(model, keys, words):
    y = keys.pop("y", Y)
    with pytest.raises(InputError, match=words) as caught:
        optima.gap(model, X, y, **{"weight_decay": 0.1} | keys)
    text = str(caught.value)
    assert "\n" not in text and text.count(". ") == 0 and len(text) < 220


def test_checkpoints_are_looked_into():
    """As Lightning and the tutorials of PyTorch save them."""
    state = network().state_dict()
    usual = optima.gap(state, X, Y, weight_decay=0.1)
    named = {"state_dict": {f"model.{name}": value for name, value in state.items()}, "epoch": 3}
    for checkpoint in (named, {"model_state_dict": state, "loss": 0.3}, {"model": state}):
        assert optima.gap(checkpoint, X, Y, weight_decay=0.1).objective == usual.objective
