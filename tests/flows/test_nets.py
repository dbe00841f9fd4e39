"""Every net against autograd, finite differences and the identities that define it."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor, nn
from torch.testing import assert_close

from widemargin import flows
from widemargin.data import parity
from widemargin.flows.nets import (
    KINDS,
    MLP,
    BatchNorm,
    Frozen,
    Head,
    Net,
    Normalized,
    Params,
    Product,
    Scalar,
    TwoLayer,
    make_net,
)
from widemargin.types import InputError

B, n, d, m = 3, 6, 4, 5


def points(batched: bool, seed: int = 0, n: int = n, d: int = d) -> Tensor:
    return torch.tensor(np.random.default_rng(seed).standard_normal((B if batched else 1, n, d)))


DATA = points(True, 9, n=11).numpy()
deep_map = nn.Sequential(nn.Linear(d, 7), nn.Tanh(), nn.Linear(7, m), nn.LayerNorm(m))
NETS: dict[str, Net] = {
    "lr": TwoLayer(d, m),
    "cb": TwoLayer(d, m, law="cb", mean_field=True),
    "cb40": TwoLayer(d, m, law="cb", mean_field=True, law_scale=40.0),
    "sphere": TwoLayer(d, m, law="sphere", mean_field=True),
    "srelu": TwoLayer(d, m, activation="srelu", law="cb", mean_field=True),
    "srelu-plain": TwoLayer(d, m, activation="srelu", law="lr"),
    "leaky": TwoLayer(d, m, activation="leaky:0.3"),
    "leaky-cb": TwoLayer(d, m, activation="leaky", law="cb", mean_field=True),
    "output": TwoLayer(d, m, train="output", law="lr"),
    "output-leaky": TwoLayer(d, m, train="output", activation="leaky:0.3", law="lr"),
    "output-srelu": TwoLayer(d, m, train="output", activation="srelu", law="lr", mean_field=True),
    "frozen": Frozen(d, 2 * m),
    "frozen-sphere": Frozen(d, m, law="sphere", r0=0.5),
    "frozen-srelu": Frozen(d, m, law="balanced", activation="srelu"),
    "frozen-leaky": Frozen(d, 2 * m, activation="leaky:0.3"),
    "frozen-features": Frozen(d, d, law="features"),
    "scalar": Scalar(d, m),
    "normalized": Normalized(d, m),
    "product": Product(d, m),
    "product-deep": Product(d, m, feature_map=deep_map),
    "product-still": Product(d, m, feature_map=deep_map, train_features=False),
    "batchnorm": BatchNorm.with_data(DATA[0], m, eps=0.1),
    "batchnorm-each": BatchNorm.with_data(DATA, m),
    "batchnorm-wide": BatchNorm.with_data(DATA[0, :3], m, eps=0.01),
    "batchnorm-mini": BatchNorm(d, m, eps=0.05, minibatch=True),
    "mlp-1": MLP(d, m, depth=1),
    "mlp-2": MLP(d, m, depth=2),
    "mlp-4": MLP(d, m, depth=4, law="he"),
    "mlp-3-classes": MLP(d, m, depth=3, outputs=3),
}
ACTIVATIONS = {
    "relu": nn.ReLU(),
    "srelu": lambda t: torch.relu(t) ** 2,
    "leaky": nn.LeakyReLU(),
    "leaky:0.3": nn.LeakyReLU(0.3),
}
ALL = pytest.mark.parametrize("name", NETS)
ONE = pytest.mark.parametrize("name", [name for name, net in NETS.items() if net.outputs == 1])


def params(net: Net, trials: int = B, seed: int = 1, rough: bool = True) -> Params:
    """Initial parameters; `rough` moves the trained ones away from special values."""
    W = {name: torch.tensor(value) for name, value in net.init(trials, seed).items()}
    torch.manual_seed(seed)
    moved = {k: W[k] + 0.3 * torch.randn_like(W[k]) for k in net.trained}
    return W | moved if rough else W


def weights(net: Net, seed: int = 2) -> Tensor:
    torch.manual_seed(seed)
    return torch.randn((B, n) if net.outputs == 1 else (B, n, net.outputs), dtype=torch.float64)


def leaves(net: Net, W: Params) -> Params:
    return W | {k: W[k].clone().requires_grad_() for k in net.trained}


def plain_output(net: Net, W: Params, X: Tensor) -> Tensor:
    """The outputs from the definition, in plain torch: (B, n) or (B, n, K)."""
    X = X.expand(B, *X.shape[1:])
    if isinstance(net, TwoLayer):
        H = ACTIVATIONS[net.activation](torch.einsum("bnd,bmd->bnm", X, W["V"]))
        return torch.einsum("bnm,bm->bn", H, W["a"]) * net.factor
    if isinstance(net, Frozen):
        if net.law == "features":
            return (X * W["r"][:, None] ** 2).mean(2)
        H = ACTIVATIONS[net.activation](torch.einsum("bnd,bmd->bnm", X, W["V"]))
        return (H * (W["b"] * W["r"] ** 2)[:, None]).mean(2)
    if isinstance(net, Scalar):
        return (torch.relu(torch.einsum("bnd,bmd,bm->bnm", X, W["V"], W["b"])) * W["a"][:, None]).sum(2)
    if isinstance(net, Normalized):
        unit = W["V"] / W["V"].norm(dim=2, keepdim=True)
        return (torch.relu(torch.einsum("bnd,bmd->bnm", X, unit)) * (W["a"] * W["b"])[:, None]).sum(2)
    if isinstance(net, Product):
        assert net.feature_map is not None
        rows = []
        for b in range(B):
            P = {name[2:]: value[b] for name, value in W.items() if name.startswith("V.")}
            F = torch.func.functional_call(net.feature_map, P, (X[b],))
            rows.append(F @ (W["a"][b] * W["b"][b]))
        return torch.stack(rows)
    if isinstance(net, BatchNorm):
        rows = []
        for b in range(B):
            data = X[b]
            if not net.minibatch:
                sets = {"batchnorm": DATA[0], "batchnorm-each": DATA[b], "batchnorm-wide": DATA[0, :3]}
                data = torch.tensor(next(v for k, v in sets.items() if NETS[k] is net))
            mu = data.mean(0)
            Sigma = (data - mu).T @ (data - mu) / len(data)
            N = torch.sqrt(torch.einsum("md,de,me->m", W["V"][b], Sigma, W["V"][b]) + net.eps)
            inner = W["V"][b] / N[:, None]
            rows.append(torch.relu(W["c"][b] * ((X[b] - mu) @ inner.T)) @ W["a"][b])
        return torch.stack(rows)
    assert isinstance(net, MLP)
    H = X
    for name in net.trained[:-1]:
        H = torch.relu(H @ W[name].mT)
    f = H @ W[net.trained[-1]].mT
    return f[:, :, 0] if net.outputs == 1 else f


def jacobian(net: Net, W: Params, X: Tensor) -> Tensor:
    """df_i/dW over the trained parameters, row by row with `pull`: (B, n, P)."""
    rows = []
    for i in range(X.shape[1]):
        g = torch.zeros(B, X.shape[1], dtype=X.dtype)
        g[:, i] = 1
        rows.append(torch.cat([part.flatten(1) for part in net.pull(W, X, g).values()], 1))
    return torch.stack(rows, 1)


# Outputs and gradients


@pytest.mark.parametrize("batched", [False, True])
@ALL
def test_outputs_and_gradients_agree_with_autograd_of_the_definition(name: str, batched: bool):
    net, X = NETS[name], points(batched)
    W, g = leaves(net, params(net)), weights(net)
    f = plain_output(net, W, X)
    expected = torch.autograd.grad((f * g).sum(), [W[k] for k in net.trained])
    W = {k: v.detach() for k, v in W.items()}
    got, saved = net.evaluate(W, X)
    assert_close(got, f.detach(), rtol=1e-11, atol=1e-11)
    assert_close(net.forward(W, X), got)
    for pulled in (net.pull(W, X, g, saved), net.pull(W, X, g)):
        assert set(pulled) == set(net.trained)
        for k, value in zip(net.trained, expected):
            assert pulled[k].shape == W[k].shape
            assert_close(pulled[k], value, rtol=1e-10, atol=1e-10)


@ALL
def test_gradients_agree_with_central_differences(name: str):
    net, X, h = NETS[name], points(True), 1e-6  # small, so that no kink lies between
    W, g = params(net), weights(net)
    pulled = net.pull(W, X, g)
    torch.manual_seed(4)
    for k in net.trained:
        way = torch.randn_like(W[k])
        both = [(net.forward(W | {k: W[k] + s * h * way}, X) * g).flatten(1).sum(1) for s in (1, -1)]
        slope = (both[0] - both[1]) / (2 * h)
        assert_close((pulled[k] * way).flatten(1).sum(1), slope, rtol=1e-5, atol=1e-6 * float(slope.abs().max()) + 1e-8)


@pytest.mark.parametrize("batched", [False, True])
@ONE
def test_gram_and_push_agree_with_the_jacobian(name: str, batched: bool):
    net, X = NETS[name], points(batched)
    W = params(net)
    J = jacobian(net, W, X)
    K = net.gram(W, X)
    assert_close(Net.gram(net, W, X), K, rtol=1e-9, atol=1e-10)  # what a net that has none of its own gets
    assert K.shape == (B, n, n)
    assert_close(K, J @ J.mT, rtol=1e-10, atol=1e-10 * float(J.abs().max()) ** 2 + 1e-13)
    torch.manual_seed(5)
    way = {k: torch.randn_like(W[k]) for k in net.trained}
    flat = torch.cat([way[k].flatten(1) for k in net.pull(W, X, torch.zeros(B, n, dtype=X.dtype))], 1)
    pushed = net.push(W, X, way)
    assert pushed.shape == (B, n)
    assert_close(pushed, (J @ flat[:, :, None])[:, :, 0], rtol=1e-10, atol=1e-10 * float(J.abs().max()))


def test_push_of_several_classes_and_no_gram():
    net, X, h = NETS["mlp-3-classes"], points(False), 1e-6
    W = params(net)
    way = {k: torch.randn_like(v) for k, v in W.items()}
    both = [net.forward({k: W[k] + s * h * way[k] for k in W}, X) for s in (1, -1)]
    assert_close(net.push(W, X, way), (both[0] - both[1]) / (2 * h), rtol=1e-6, atol=1e-7)
    with pytest.raises(InputError, match="one output"):
        net.gram(W, X)


@ALL
def test_float32_follows_float64_and_points_can_be_fewer_or_more(name: str):
    net = NETS[name]
    W, g = params(net), weights(net)
    X = points(False)
    f, wide = net.forward(W, X), net.pull(W, X, g)
    low = {k: v.float() for k, v in W.items()}
    f32, narrow = net.forward(low, X.float()), net.pull(low, X.float(), g.float())
    assert f32.dtype == torch.float32 and all(part.dtype == torch.float32 for part in narrow.values())
    assert_close(f32.double(), f, rtol=1e-3, atol=1e-4 * float(f.abs().max()))
    for k in net.trained:
        assert_close(narrow[k].double(), wide[k], rtol=1e-3, atol=1e-4 * float(wide[k].abs().max()))
    if net.outputs == 1:
        assert net.gram(low, X.float()).dtype == net.push(low, X.float(), narrow).dtype == torch.float32
    assert net.forward(W, points(False, n=2)).shape[:2] == (B, 2)


@ALL
def test_a_batch_is_a_loop(name: str):
    net, X, g = NETS[name], points(True), weights(NETS[name])
    W = params(net)
    f, saved = net.evaluate(W, X)
    pulled = net.pull(W, X, g, saved)
    for b in range(B):
        one = {k: v[b : b + 1] for k, v in W.items()}
        assert_close(net.forward(one, X[b : b + 1]), f[b : b + 1], rtol=1e-12, atol=1e-12 * float(f.abs().max()))
        for k, v in net.pull(one, X[b : b + 1], g[b : b + 1]).items():
            assert_close(v, pulled[k][b : b + 1], rtol=1e-11, atol=1e-12 * float(v.abs().max()) + 1e-14)
        for k, v in net.normalizers(W).items():
            assert_close(net.normalizers(one)[k], v[b : b + 1], rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", [name for name in NETS if name != "batchnorm-each"])  # it has three trials, always
def test_a_trial_depends_on_seed_and_number_alone(name: str):
    net = NETS[name]
    few, many, other = net.init(2, 5), net.init(4, 5), net.init(2, 6)
    state = torch.random.get_rng_state()
    again = net.init(2, 5)
    assert torch.equal(torch.random.get_rng_state(), state), "drawing touched the global generator"
    for k in few:
        assert few[k].dtype == np.float64
        np.testing.assert_array_equal(few[k], many[k][:2])
        np.testing.assert_array_equal(few[k], again[k])
    if name != "frozen-features":
        assert any(not np.array_equal(few[k], other[k]) for k in few)
        assert any(not np.array_equal(few[k][0], few[k][1]) for k in few)


# Homogeneity


@ALL
def test_homogeneous_of_the_stated_degree_in_the_stated_subset(name: str):
    net, X = NETS[name], points(True)
    W = params(net)
    f = net.forward(W, X)
    for c in (0.0, 0.37, 2.5):
        scaled = W | {k: c * W[k] for k in net.homogeneous}
        assert_close(net.forward(scaled, X), c**net.degree * f, rtol=1e-11, atol=1e-11 * float(f.abs().max()))
        if c:
            grown = net.normalizers(scaled)
            for k, size in net.normalizers(W).items():
                assert_close(grown[k], c**net.degree * size, rtol=1e-11, atol=0)


@ALL
def test_euler(name: str):
    net, X, g = NETS[name], points(True), weights(NETS[name])
    W = params(net)
    f, saved = net.evaluate(W, X)
    pulled = net.pull(W, X, g, saved)
    inner = sum((W[k] * pulled[k]).flatten(1).sum(1) for k in net.homogeneous)
    assert_close(inner, net.degree * (g * f).flatten(1).sum(1), rtol=1e-10, atol=1e-10 * float(f.abs().max()))


def test_euler_of_each_layer():
    for name in ("lr", "cb", "scalar", "normalized", "product", "batchnorm", "batchnorm-mini", "mlp-4"):
        net, X, g = NETS[name], points(False), weights(NETS[name])
        W = params(net)
        total, pulled = (g * net.forward(W, X)).sum(1), net.pull(W, X, g)
        for k in net.homogeneous if name not in ("lr", "cb") else ("a", "V"):
            assert_close((W[k] * pulled[k]).flatten(1).sum(1), total, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", ["batchnorm", "batchnorm-each"])
def test_batch_norm_identity_in_the_inner_weights(name: str):
    net, X = NETS[name], points(True)
    assert isinstance(net, BatchNorm)
    W = params(net)
    i = 2
    g = torch.zeros(B, n, dtype=X.dtype)
    g[:, i] = 1
    left = (W["V"] * net.pull(W, X, g)["V"]).sum(2)  # (B, m)
    for b in range(B):
        data = torch.tensor(DATA[0 if name == "batchnorm" else b])
        mu = data.mean(0)
        N = (((data - mu) @ W["V"][b].T) ** 2).mean(0).add(net.eps).sqrt()
        score = W["V"][b] @ (X[b, i] - mu)
        right = W["a"][b] * W["c"][b] * (W["c"][b] * score > 0) * score * net.eps / N**3
        assert_close(left[b], right, rtol=1e-10, atol=1e-12)
    if net.eps == 0:
        assert_close(left, torch.zeros_like(left), rtol=0, atol=1e-12)
        assert_close(net.forward(W | {"V": 3 * W["V"]}, X), net.forward(W, X), rtol=1e-12, atol=1e-12)


def test_batch_norm_of_several_data_sets_is_one_net_per_set():
    many, X = BatchNorm.with_data(DATA, m), points(True)
    W = params(many)
    f = many.forward(W, X)
    for b in range(B):
        alone = BatchNorm.with_data(DATA[b], m)
        mine = {k: torch.tensor(v[b : b + 1]) for k, v in many.init(B, 0).items()}
        for k, v in alone.init(B, 0).items():
            np.testing.assert_array_equal(mine[k][0].numpy(), v[b])
        one = {k: v[b : b + 1] for k, v in W.items() if k in alone.trained}
        assert_close(alone.forward(one, X[b : b + 1]), f[b : b + 1], rtol=1e-12, atol=1e-12)
    with pytest.raises(InputError, match="3 data sets for 2 trials"):
        many.init(2, 0)


def test_batch_norm_does_not_see_shifts_and_scales_of_the_data():
    X = points(False)
    shift, scale = torch.randn(d, dtype=torch.float64), 7.0
    net, moved = BatchNorm.with_data(X[0].numpy(), m), BatchNorm.with_data((scale * X[0] + shift).numpy(), m)
    mini = BatchNorm(d, m, minibatch=True)
    W = params(net)
    assert_close(moved.forward(W, scale * X + shift), net.forward(W, X), rtol=1e-11, atol=1e-11)
    assert_close(mini.forward(W, X), net.forward(W, X), rtol=1e-11, atol=1e-11)  # one batch that is all the data
    assert_close(mini.gram(W, X), net.gram(W, X), rtol=1e-10, atol=1e-10)


def test_batch_norm_gives_zero_on_a_direction_without_spread():
    flat = np.hstack([np.random.default_rng(0).standard_normal((8, 2)), np.ones((8, 1))])  # Sigma e3 = 0
    net = BatchNorm.with_data(flat, 2)
    W = {"a": torch.ones(1, 2), "c": torch.ones(1, 2), "V": torch.tensor([[[0.0, 0, 1], [1, 0, 0]]])}
    W = {k: v.double() for k, v in W.items()}
    X = torch.tensor(flat)[None]
    pulled = net.pull(W, X, torch.ones(1, 8, dtype=torch.float64))
    assert net.forward(W, X).isfinite().all() and all(v.isfinite().all() for v in pulled.values())
    assert pulled["a"][0, 0] == 0 and pulled["V"][0, 0].abs().max() == 0


def test_normalized_does_not_see_the_lengths_of_v():
    net, X, g = NETS["normalized"], points(True), weights(NETS["normalized"])
    W = params(net)
    lengths = torch.rand(B, m, 1, dtype=torch.float64) * 5 + 0.1
    scaled = W | {"V": lengths * W["V"]}
    assert_close(net.forward(scaled, X), net.forward(W, X), rtol=1e-12, atol=1e-12)
    assert_close(net.pull(scaled, X, g)["V"], net.pull(W, X, g)["V"] / lengths, rtol=1e-10, atol=1e-12)
    radial = (W["V"] * net.pull(W, X, g)["V"]).sum(2)
    assert_close(radial, torch.zeros_like(radial), rtol=0, atol=1e-12)


def test_the_product_head_on_normalized_relu_is_the_normalized_net():
    class UnitReLU(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(m, d))

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x @ nn.functional.normalize(self.weight, dim=1).mT)

    general, special, X = Product(d, m, feature_map=UnitReLU()), Normalized(d, m), points(True)
    W, g = params(special), weights(special)
    same = {"a": W["a"], "b": W["b"], "V.weight": W["V"]}
    assert_close(general.forward(same, X), special.forward(W, X), rtol=1e-12, atol=1e-12)
    for one, other in zip(general.pull(same, X, g).values(), special.pull(W, X, g).values()):
        assert_close(one, other, rtol=1e-11, atol=1e-12)
    assert_close(general.gram(same, X), special.gram(W, X), rtol=1e-10, atol=1e-11)


def test_the_mlp_of_depth_two_is_the_two_layer_net():
    deep, shallow, X = MLP(d, m, depth=2), TwoLayer(d, m), points(True)
    W, g = params(shallow), weights(shallow)
    same = {"W1": W["V"], "W2": W["a"][:, None]}
    assert_close(deep.forward(same, X), shallow.forward(W, X), rtol=1e-12, atol=1e-12)
    assert_close(deep.gram(same, X), shallow.gram(W, X), rtol=1e-11, atol=1e-11)
    pulled, expected = deep.pull(same, X, g), shallow.pull(W, X, g)
    assert_close(pulled["W1"], expected["V"], rtol=1e-11, atol=1e-12)
    assert_close(pulled["W2"][:, 0], expected["a"], rtol=1e-11, atol=1e-12)
    for k in ("M1", "M2", "partial"):
        assert_close(deep.normalizers(same)[k], shallow.normalizers(W)[k])


# Measures and margins


@ONE
def test_the_measure_is_the_network(name: str):
    net, X = NETS[name], points(True)
    W = params(net)
    f = net.forward(W, X)
    none = isinstance(net, Product) or name in ("frozen-features", "batchnorm-mini", "mlp-1", "mlp-4")
    for b in range(B):
        measure = net.measure(W, b)
        assert (measure is None) == none
        if measure is not None:
            np.testing.assert_allclose(measure(X[b].numpy()), f[b].numpy(), rtol=1e-10, atol=1e-11)
            np.testing.assert_allclose(np.linalg.norm(measure.theta, axis=1), 1, rtol=1e-12)
            if "M1" in net.normalizers(W):
                np.testing.assert_allclose(measure.norm, float(net.normalizers(W)["M1"][b]), rtol=1e-12)


@pytest.mark.parametrize("name", ["lr", "batchnorm"])
def test_the_measure_of_data_with_a_bias_coordinate(name: str):
    rng = np.random.default_rng(0)
    raw = rng.standard_normal((n, d))
    X = np.hstack([raw, np.ones((n, 1))])
    net = TwoLayer(d + 1, m) if name == "lr" else BatchNorm.with_data(X, m, eps=0.1)
    W = params(net)
    measure = net.measure(W, 1, bias=True)
    assert measure is not None and measure.bias
    np.testing.assert_allclose(measure(raw), net.forward(W, torch.tensor(X)[None])[1].numpy(), rtol=1e-11, atol=1e-12)


@ONE
def test_outputs_are_features_times_outer_weights(name: str):
    net, X = NETS[name], points(False)
    W = params(net)
    if isinstance(net, MLP):
        with pytest.raises(InputError):
            net.features(W, X)
        with pytest.raises(InputError):
            net.outer(W)
    else:
        both = (net.features(W, X) @ net.outer(W)[:, :, None])[:, :, 0]
        assert_close(both, net.forward(W, X), rtol=1e-11, atol=1e-11)


def test_sizes_of_every_convention():
    W = {name: params(net) for name, net in NETS.items()}
    size = {name: net.normalizers(W[name]) for name, net in NETS.items()}
    a, V = W["cb"]["a"], W["cb"]["V"]
    square = (a**2).sum(1) + (V**2).sum((1, 2))
    assert_close(size["cb"]["M1"], (a.abs() * V.norm(dim=2)).mean(1))
    assert_close(size["cb"]["M2"], square / m)
    assert_close(size["cb"]["M3"], square / m)
    assert_close(size["cb"]["partial"], square)
    assert_close(size["lr"]["M2"], NETS["lr"].norm2(W["lr"]))
    assert "M3" not in size["lr"] and set(size["output"]) == {"partial", "M1", "M7", "M7_raw"}
    assert_close(size["srelu"]["M1"], (W["srelu"]["V"] ** 2).sum((1, 2)) / m)
    assert_close(size["srelu"]["M2"], size["srelu"]["M1"])
    assert_close(size["frozen"]["M6"], (W["frozen"]["r"] ** 2).mean(1))
    assert_close(size["frozen"]["M6"], 2 * size["frozen"]["M1"])  # balanced: z is half of the unit features
    assert (size["frozen-sphere"]["M6"] > 2 * size["frozen-sphere"]["M1"]).all()
    assert_close(size["frozen-srelu"]["M6"], size["frozen-srelu"]["M1"])
    for name in ("scalar", "normalized", "product"):
        a, b = W[name]["a"], W[name]["b"]
        assert_close(size[name]["M4"], (a**2 + b**2).sum(1))
        assert_close(size[name]["M5"], (a * b).abs().sum(1))
        assert (size[name]["M4"] >= 2 * size[name]["M5"]).all()
        balanced = NETS[name].normalizers(params(NETS[name], rough=False))
        assert_close(balanced["M4"], 2 * balanced["M5"])
    a, c = W["batchnorm"]["a"], W["batchnorm"]["c"]
    assert_close(size["batchnorm"]["M10"], a.norm(dim=1) * c.norm(dim=1))
    total = sum((v**2).sum((1, 2)) for v in W["mlp-4"].values())
    assert_close(size["mlp-4"]["MT2"], total**2)
    assert_close(size["mlp-1"]["M11"], W["mlp-1"]["W1"][:, 0].norm(dim=1))


def test_balanced_two_layer_weights_have_half_the_margin_in_m2():
    net = NETS["lr"]
    W = params(net)
    W["V"] = W["V"] / W["V"].norm(dim=2, keepdim=True) * W["a"].abs()[:, :, None]
    size = net.normalizers(W)
    assert_close(size["M2"], 2 * size["M1"])


def test_m7_measures_the_weights_on_unit_directions():
    for mean_field in (True, False):
        net = TwoLayer(d, m, train="output", law="cb", mean_field=mean_field)
        W = params(net)
        g = W["a"] * W["V"].norm(dim=2) * (1 if mean_field else m)  # f = E_tau[g relu(theta . x)]
        size = net.normalizers(W)
        assert_close(size["M7"], (g**2).mean(1).sqrt())
        assert_close(size["M7_raw"], math.sqrt(m) * net.outer(W).norm(dim=1))
        unit = W | {"V": W["V"] / W["V"].norm(dim=2, keepdim=True)}
        assert_close(net.normalizers(unit)["M7"], net.normalizers(unit)["M7_raw"])
        assert (size["M1"] <= size["M7"] * (1 + 1e-12)).all()  # Jensen


# Initial laws


def test_lr_law():
    W = TwoLayer(50, 2000).init(4, 0)
    assert abs(W["a"].var() * 2000 - 1) < 0.05 and abs(W["a"].mean()) * math.sqrt(2000) < 0.05
    assert abs(W["V"].var() * 50 - 1) < 0.02
    deep = MLP(50, 400, depth=3, law="he", law_scale=3.0).init(2, 0)
    for k, inputs in (("W1", 50), ("W2", 400), ("W3", 400)):
        assert abs(deep[k].var() * inputs / 18 - 1) < 0.15, k
    assert deep["W3"].shape == (2, 1, 400)


def test_cb_laws():
    both = TwoLayer(20, 3000, law="cb", mean_field=True).init(2, 0)
    large = TwoLayer(20, 3000, law="cb", mean_field=True, law_scale=40.0).init(2, 0)
    assert abs(both["a"].std() - 1) < 0.03 and abs(both["V"].std() - 1) < 0.01
    for k in both:
        np.testing.assert_allclose(large[k], 40 * both[k], rtol=1e-15)
    ball = TwoLayer(20, 3000, law="sphere", mean_field=True).init(2, 0)
    np.testing.assert_allclose(np.linalg.norm(ball["V"], axis=2), 1, rtol=1e-14)
    assert set(np.unique(ball["a"])) == {-1.0, 1.0} and abs(ball["a"].mean()) < 0.05
    assert np.abs((ball["V"] ** 2).mean((0, 1)) * 20 - 1).max() < 0.1
    squared = TwoLayer(20, 300, activation="srelu", law="cb", law_scale=40.0).init(2, 0)
    assert set(np.unique(squared["a"])) == {-1.0, 1.0} and abs(squared["V"].std() / 40 - 1) < 0.05
    for law in ("cb", "sphere"):
        assert not TwoLayer(20, 30, law=law, train="output").init(2, 0)["a"].any()
    assert TwoLayer(20, 30, law="lr", train="output").init(2, 0)["a"].all()


def test_frozen_laws():
    W = Frozen(3, 4000, law="sphere", r0=2.0).init(2, 0)
    assert (W["r"] == 2).all()
    np.testing.assert_allclose((W["V"] ** 2).sum(2) + W["b"] ** 2, 1, rtol=1e-13)
    assert abs((W["b"] ** 2).mean() - 1 / 4) < 0.02  # b is one of 4 coordinates
    for law in ("balanced", "paired"):
        W = Frozen(3, 400, law=law).init(2, 0)
        np.testing.assert_allclose(np.abs(W["b"]), math.sqrt(0.5), rtol=1e-15)
        np.testing.assert_allclose(np.linalg.norm(W["V"], axis=2), math.sqrt(0.5), rtol=1e-14)
    np.testing.assert_array_equal(W["V"][:, :200], W["V"][:, 200:])
    np.testing.assert_array_equal(W["b"][:, :200], -W["b"][:, 200:])


def test_frozen_on_given_directions():
    V = np.random.default_rng(0).standard_normal((m, d))
    X = points(False)
    unit = torch.relu(X[0] @ torch.tensor(V / np.linalg.norm(V, axis=1, keepdims=True)).T)  # (n, m)
    both = Frozen(d, 2 * m, directions=V)
    W = params(both, rough=False)
    assert_close(both.features(W, X)[0], torch.hstack([unit, -unit]) / 2)
    assert_close(both.forward(W, X), torch.zeros(B, n, dtype=torch.float64))
    signs = np.array([1.0, -1, 1, 1, -1])
    one = Frozen(d, m, directions=V, signs=signs)
    assert_close(one.features(params(one), X)[2], unit * torch.tensor(signs) / 2)
    drawn = Frozen(d, m, directions=V).init(20, 0)["b"]
    assert len(np.unique(drawn, axis=0)) > 1 and (np.abs(drawn) == math.sqrt(0.5)).all()


def test_product_laws():
    for net in (Normalized(d, 64), Product(d, 64)):
        W = params(net, rough=False)
        assert_close(net.u(W), torch.full((B, 64), 1 / 64, dtype=torch.float64), rtol=1e-15, atol=0)
        assert_close(net.u(W).sum(1), torch.ones(B, dtype=torch.float64), rtol=1e-14, atol=0)
        assert_close(net.norm2(W), torch.full((B,), 2.0, dtype=torch.float64), rtol=1e-14, atol=0)
        assert set(net.beta(W).unique().tolist()) == {-1.0, 1.0}
        assert_close(net.u(W) * net.beta(W), W["a"] * W["b"])
        assert abs(float(torch.sign(W["a"]).mean())) < 0.3 and abs(float(torch.sign(W["b"]).mean())) < 0.3
    scalar = Scalar(d, 81)
    W = params(scalar, rough=False)
    assert_close(W["a"].abs(), torch.full((B, 81), 1 / 3, dtype=torch.float64), rtol=1e-14, atol=0)
    assert_close(scalar.norm2(W), torch.full((B,), 18.0, dtype=torch.float64), rtol=1e-13, atol=0)  # 2 sqrt(m)
    assert_close(W["V"].norm(dim=2), torch.ones(B, 81, dtype=torch.float64))
    assert W["a"].sign().unique().tolist() == W["b"].sign().unique().tolist() == [-1.0, 1.0]


def test_batch_norm_law():
    net = BatchNorm.with_data(np.random.default_rng(0).standard_normal((10, 30)), 2000)
    W = net.init(3, 0)
    assert (W["c"] == 1).all()
    assert abs(W["a"].var() * 2000 - 1) < 0.1 and abs(W["V"].var() * 30 - 1) < 0.02
    assert net.root is not None and net.root.shape == (1, 10, 30)  # not 30 x 30


def test_feature_maps_are_drawn_by_their_layers():
    W = Product(40, 300).init(2, 0)
    bound = 1 / math.sqrt(40)  # torch's law for linear layers
    assert W["V.0.weight"].shape == (2, 300, 40)
    assert 0.95 * bound < np.abs(W["V.0.weight"]).max() <= bound
    still = NETS["product-still"]
    assert still.trained == ("a", "b") and "V.0.weight" in still.init(1, 0)


def test_feature_maps_with_buffers():
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(d, m, bias=False)
            self.register_buffer("shift", torch.ones(m))

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.linear(x) + self.shift)

    net, X = Product(d, m, feature_map=Shifted()), points(True)
    W = params(net)
    assert net.trained == ("a", "b", "V.linear.weight") and "V.shift" in W
    J = jacobian(net, W, X)
    assert_close(net.gram(W, X), J @ J.mT)
    bare = Product(d, d, feature_map=nn.Tanh())
    W = params(bare)
    assert_close(bare.forward(W, X), (torch.tanh(X) @ (W["a"] * W["b"])[:, :, None])[:, :, 0])
    assert set(bare.pull(W, X[:1], torch.ones(B, n, dtype=X.dtype))) == {"a", "b"}


# The door


def test_every_kind_can_be_made_and_written_down():
    for kind in KINDS:
        options = {"data": DATA[0]} if kind == "batchnorm" else {}
        net = make_net(kind, d, 6, law=None, **options)
        assert net.d == d and net.m == 6
        json.dumps(net.config())
        assert net.forward(params(net), points(False)).shape == (B, n)
    assert make_net("relu", d, m, law="cb").mean_field and not make_net("relu", d, m).mean_field  # type: ignore[attr-defined]
    assert not make_net("relu", d, m, law="cb", mean_field=False).mean_field  # type: ignore[attr-defined]
    assert make_net("output", d, m).trained == ("a",)
    assert make_net("srelu", d, m).trained == ("V",)
    assert make_net("mlp", d, m, depth=4, outputs=3).degree == 4
    assert make_net("batchnorm", d, m, minibatch=True, eps=0.1).config()["minibatch"]
    assert make_net("batchnorm", d, m, data=DATA).config() != make_net("batchnorm", d, m, data=DATA[:2]).config()
    assert isinstance(make_net("product", d, m), Head)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: make_net("conv", d, m), "unknown network"),
        (lambda: make_net("relu", d, 0), "width 0"),
        (lambda: make_net("mlp", 0, m), "at least one feature"),
        (lambda: make_net("relu", d, 9 * 10**18), "m is 9000000000000000000; at most 1000000000"),
        (lambda: make_net("frozen", d, 10**400), "m is .*; at most 1000000000"),
        (lambda: make_net("mlp", 10**10, m), "d is 10000000000; at most"),
        (lambda: make_net("mlp", d, m, outputs=2**63), "outputs is 9223372036854775808; at most"),
        (lambda: make_net("relu", d, m, depth=3), "depth does not apply"),
        (lambda: make_net("scalar", d, m, law="cb"), "no options"),
        (lambda: make_net("relu", d, m, law="he"), "is not one of lr, cb, sphere"),
        (lambda: make_net("relu", d, m, law_scale=-1.0), "positive"),
        (lambda: make_net("relu", d, m, law_scale=math.nan), "positive"),
        (lambda: make_net("mlp", d, m, depth=0), "depth 0"),
        (lambda: make_net("mlp", d, m, outputs=0), "0 outputs"),
        (lambda: make_net("frozen", d, 5), "even"),
        (lambda: make_net("frozen", d, 5, law="features"), "must be 4"),
        (lambda: Frozen(d, m, directions=np.ones((3, d))), "shape"),
        (lambda: Frozen(d, m, directions=np.zeros((m, d))), "zero"),
        (lambda: Frozen(d, m, directions=np.ones((m, d)), signs=np.zeros(m)), "signs"),
        (lambda: Frozen(d, m, signs=np.ones(m)), "both or neither"),
        (lambda: Frozen(d, d, law="features", directions=np.ones((d, d))), "leave the directions out"),
        (lambda: make_net("frozen", d, m, directions="all"), "numbers only"),
        (lambda: make_net("product", d, m, feature_map="deep"), "torch module"),
        (lambda: make_net("batchnorm", d, m, data="file"), "numbers only"),
        (lambda: make_net("batchnorm", d, m), "give the data"),
        (lambda: BatchNorm(d, m), "give the data"),
        (lambda: make_net("batchnorm", d + 1, m, data=DATA[0]), "takes 5 features but the data has 4"),
        (lambda: BatchNorm.with_data(DATA[0], m, eps=-1.0), "eps"),
        (lambda: BatchNorm.with_data(np.full((3, 2), np.nan), m), "finite"),
        (lambda: BatchNorm(d, m, minibatch=True).forward(params(NETS["batchnorm"]), points(False, n=1)), "two points"),
        (lambda: Product(d, m + 1, feature_map=deep_map), "width is 6"),
        (lambda: Product(d, m, feature_map=nn.Sequential(nn.Linear(d, m), nn.BatchNorm1d(m))), "running statistics"),
        (lambda: TwoLayer("4", m), "d must be an integer, not '4'"),
        (lambda: TwoLayer(d, m, widths=3), "widths must be a list, each entry an integer, not 3"),
        (lambda: TwoLayer(d, m, widths=(3, True)), "widths must be a list"),
        (lambda: flows.rebuild_net({"net": "relu", "d": d, "m": m, "widths": [3, "4"]}), "widths must be a list"),
        (lambda: flows.rebuild_net({"net": ["relu"], "d": d, "m": m}), "cannot be built"),
        (lambda: flows.rebuild_net({"net": "mlp", "d": d}), "m must be an integer, not None"),
    ],
)
def test_bad_choices_get_a_sentence(make, words: str):
    with pytest.raises(InputError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("activation", ["relu", "srelu"])
def test_widths_of_their_own(activation: str):
    """Trials of different widths in one batch are the trials of these widths alone."""
    data = parity(d=5, n=12, seed=0)
    widths = (3, 8, 5)
    together = flows.train(
        data, TwoLayer(5, 8, activation=activation, widths=widths), flows.GD(lr=0.5), stop=40, trials=3, record=["risk"]
    )
    for trial, width in enumerate(widths):
        alone = flows.train(
            data, TwoLayer(5, width, activation=activation), flows.GD(lr=0.5), stop=40, trials=3, record=["risk"]
        )
        assert_allclose(together["risk"][:, trial], alone["risk"][:, trial], rtol=1e-10)
        assert_allclose(together.final["V"][trial, :width], alone.final["V"][trial], rtol=1e-9, atol=1e-12)
        assert (together.final["V"][trial, width:] == 0).all()
    for bad, text in (({"widths": (9,)}, "from 1 to the width 8"), ({"widths": (3,), "mean_field": True}, "no 1/m")):
        with pytest.raises(InputError, match=text):
            TwoLayer(5, 8, **bad)
    with pytest.raises(InputError, match="2 widths for 3 trials"):
        TwoLayer(5, 8, widths=(1, 2)).init(3, 0)
