"""`margins.of`: the normalised margin of a network of one's own, as a share of the certified largest one."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.neural_network import MLPClassifier, MLPRegressor

import widemargin as wm
from checks import repeated
from widemargin import cli
from widemargin.types import Dataset, InputError

DATA = wm.data.clusters(n=20, seed=0)
X, Y = DATA.X, DATA.y
CLASSES = np.arange(20) % 3


def network(
    first: bool = True, last: bool = True, outputs: int = 1, width: int = 12, d: int = 2
) -> torch.nn.Sequential:
    """Random weights, without training: what is tested is what they are called."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(d, width, bias=first), torch.nn.ReLU(), torch.nn.Linear(width, outputs, bias=last)
    return torch.nn.Sequential(*layers).double()


def trained(net: torch.nn.Sequential, steps: int = 400) -> torch.nn.Sequential:
    optimizer = torch.optim.Adam(net.parameters(), 0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.softplus(-torch.tensor(Y) * net(torch.tensor(X))[:, 0]).mean().backward()
        optimizer.step()
    return net


def from_the_definition(net: torch.nn.Sequential) -> float:
    """min y f / (sum |a_j| |(w_j, b_j)| + |c|), neuron by neuron."""
    f = net(torch.tensor(X)).detach().numpy()[:, 0]
    known = {name: value.numpy() for name, value in net.state_dict().items()}
    norm = float(np.abs(known.get("2.bias", np.zeros(1))).sum())
    for j, w in enumerate(known["0.weight"]):
        b = known["0.bias"][j] if "0.bias" in known else 0.0
        norm += abs(known["2.weight"][0, j]) * float(np.sqrt(w @ w + b * b))
    return float((Y * f).min() / norm)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_biases_are_folded_in(first: bool, last: bool, one_thread):
    net = trained(network(first, last))
    found = wm.margins.of(net, X, Y)
    assert_allclose(found.margin, from_the_definition(net), rtol=1e-10)
    assert found.certificate.bias is (first or last) and found.width == 12 and found.certificate.verify(X, Y).ok
    least, most = found.share
    assert 0 <= least <= most <= 1 and (least > 0) == (found.errors == 0)
    assert_allclose(least, max(found.margin, 0.0) / found.certificate.upper)
    assert found.errors == 0 or not first  # without biases this network does not get there in so few steps
    for same in (net.state_dict(), {"model": net.state_dict()}):
        assert wm.margins.of(same, (X, (Y + 1) / 2)).margin == found.margin


def test_scaling_of_the_layers_changes_nothing():
    net = trained(network())
    before = wm.margins.of(net, DATA).margin
    with torch.no_grad():
        net[0].weight *= 10
        net[0].bias *= 10
        net[2].weight *= 3
        net[2].bias *= 30
    assert_allclose(wm.margins.of(net, DATA).margin, before, rtol=1e-10)


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_weights_whose_products_leave_the_floats_have_the_same_margin(size: float):
    """They came to 0, or to infinity: errors at all points, or no number."""
    weights = {"0.weight": np.array([[1.0, 2.0], [-1.0, 0.5], [0.0, 0.0]]), "2.weight": np.array([[1.0, -1.0, 2.0]])}
    before = wm.margins.of(weights, X, Y)
    after = wm.margins.of({name: size * value for name, value in weights.items()}, X, Y)
    assert_allclose(after.margin, before.margin, rtol=1e-14)
    assert after.errors == before.errors and np.isfinite(before.margin)
    unbalanced = {"0.weight": size * weights["0.weight"], "2.weight": weights["2.weight"] / size}
    assert_allclose(wm.margins.of(unbalanced, X, Y).margin, before.margin, rtol=1e-14)


def test_a_neuron_of_zeros_does_not_count_however_large_its_output():
    """Beside it the weights of all others came to 0, and the network was said to err at all points."""
    weights = {"0.weight": np.array([[1.0, 2.0], [-1.0, 0.5], [0.0, 0.0]]), "2.weight": np.array([[1.0, -1.0, 2.0]])}
    large = {"0.weight": 1e-10 * weights["0.weight"], "2.weight": 1e-10 * weights["2.weight"]}
    large["2.weight"][0, 2] = 1.7e308
    before, after = wm.margins.of(weights, X, Y), wm.margins.of(large, X, Y)
    assert_allclose(after.margin, before.margin, rtol=1e-14)
    assert after.errors == before.errors


def test_two_outputs_are_their_difference():
    two = network(outputs=2)
    one = network()
    with torch.no_grad():
        one[0].load_state_dict(two[0].state_dict())
        one[2].weight.copy_(two[2].weight[1:] - two[2].weight[:1])
        one[2].bias.copy_(two[2].bias[1:] - two[2].bias[:1])
    assert_allclose(wm.margins.of(two, DATA).margin, wm.margins.of(one, DATA).margin, rtol=1e-10)


def test_several_classes(one_thread):
    points = np.eye(3)[CLASSES] + 0.1 * X[:, :1]
    model = MLPClassifier((8,), max_iter=2000, random_state=0).fit(points, CLASSES)
    found = wm.margins.of(model, points, np.array(["a", "b", "c"])[CLASSES], time_limit=20.0)
    scores = np.maximum(points @ model.coefs_[0] + model.intercepts_[0], 0) @ model.coefs_[1] + model.intercepts_[1]
    own = scores[np.arange(20), CLASSES]
    scores[np.arange(20), CLASSES] = -np.inf
    assert found.errors == int((own <= scores.max(axis=1)).sum()) == 0
    assert found.certificate.kind == "f1-multiclass" and 0 < found.margin <= found.certificate.upper


def by_hand(net: torch.nn.Sequential, points: np.ndarray, y: np.ndarray) -> float:
    """The definition: own output minus the largest other, over the norm of the network less what all outputs share."""
    W, b, a, c = (value.detach().double().numpy() for value in net.parameters())
    scores = np.maximum(points @ W.T + b, 0) @ a.T + c
    least = min(row[k] - np.delete(row, k).max() for row, k in zip(scores, y))
    a, c = a - a.mean(axis=0), c - c.mean()
    return least / (np.linalg.norm(np.c_[W, b], axis=1) @ np.linalg.norm(a, axis=0) + np.linalg.norm(c))


@repeated("kept", [(0, 2, 3), (0, 3), (0, 1, 2)], 0, 1, ids=str)
def test_labels_are_numbers_of_outputs_where_a_class_has_no_points(kept, one_thread):
    """Class 3 stays the output 3: numbering those that are there would compare with other outputs."""
    torch.manual_seed(1)
    net, y = network(outputs=4), np.arange(20) % 4
    has = np.isin(y, kept)
    found = wm.margins.of(net, X[has], y[has], time_limit=2.0)
    assert_allclose(found.margin, by_hand(net, X[has], y[has]), rtol=1e-10)
    read = Dataset(X[has], y[has]).labelled("classes")  # as a file of several classes is read
    assert wm.margins.of(net, read, time_limit=2.0).margin == found.margin
    words = np.array(["a", "b", "c", "d"])[y]
    with pytest.raises(InputError, match=f"has 4 outputs, but y has {len(kept)} classes"):
        wm.margins.of(net, X[has], words[has])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MLPClassifier((8,), max_iter=5, random_state=0).fit(X, words)
    with torch.no_grad():
        for value, known in zip(net.parameters(), [model.coefs_[0].T, model.intercepts_[0], model.coefs_[1].T]):
            value.set_(torch.tensor(known))
        net[2].bias.copy_(torch.tensor(model.intercepts_[1]))
    found = wm.margins.of(model, X[has], words[has], time_limit=2.0)
    assert_allclose(found.margin, by_hand(net.double(), X[has], y[has]), rtol=1e-10)


def test_classes_that_were_fitted(one_thread):
    """Words are sorted as words by scikit-learn, and as the numbers that they are by a Dataset."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MLPClassifier((12,), max_iter=500, random_state=0).fit(X, np.where(Y > 0, "10", "9"))
    found = wm.margins.of(model, X, np.where(Y > 0, "10", "9"))
    assert found.errors == int((model.predict(X) != np.where(Y > 0, "10", "9")).sum()) < 10
    other = wm.margins.of(model, X, np.where(Y > 0, "many", "nine"))  # others, but as many
    assert (other.margin, other.errors) == (found.margin, found.errors)
    with pytest.raises(InputError, match="was fitted on the classes '10', '9', but y has 'nine'"):
        wm.margins.of(model, X, np.where(Y > 0, "10", "nine"))


def test_layers_that_change_nothing():
    net = network()
    nested = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Sequential(net[0], torch.nn.Identity(), net[1]), torch.nn.Sequential(net[2])
    )
    for same in (nested, torch.nn.DataParallel(net)):
        assert wm.margins.of(same, DATA).margin == wm.margins.of(net, DATA).margin
    half = network().bfloat16()
    assert_allclose(wm.margins.of(half, DATA).margin, wm.margins.of(half.double(), DATA).margin, rtol=1e-12)


def test_sklearn_agrees_with_torch():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MLPClassifier((12,), max_iter=50, random_state=0).fit(X, Y)
    net = network()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor(model.coefs_[0].T))
        net[0].bias.copy_(torch.tensor(model.intercepts_[0]))
        net[2].weight.copy_(torch.tensor(model.coefs_[1].T))
        net[2].bias.copy_(torch.tensor(model.intercepts_[1]))
    one, other = wm.margins.of(model, X, Y), wm.margins.of(net, X, Y)
    assert_allclose(one.margin, other.margin, rtol=1e-10)
    assert one.errors == int((model.predict(X) != Y).sum())


def test_our_own_networks(one_thread):
    best = wm.margins.f1(DATA)
    found = wm.margins.of(best, DATA)
    assert found.share[0] > 0.998 and found.width == best.atoms
    assert wm.margins.of(best.primal, DATA).margin == found.margin
    run = wm.flows.train(DATA, wm.flows.TwoLayer(2, 20), wm.flows.GD(lr=0.5), stop=300, trials=2)
    for trial in range(2):
        share = wm.margins.of(run, DATA, trial=trial)
        assert_allclose(share.margin, run["margin_M1"][-1, trial], rtol=1e-9)
    assert wm.margins.of(run, DATA, trial=np.int64(1)).margin == share.margin
    for trial in (2, -1, True, 1.0, "1", None):
        with pytest.raises(InputError, match="has the trials 0 to 1, so there is no trial"):
            wm.margins.of(run, DATA, trial=trial)


def test_what_it_says():
    good, bad = wm.margins.of(trained(network()), DATA), wm.margins.of(network(), DATA)
    assert "% of the largest" in str(good) and "proved" in str(good) and len(repr(good)) < 400
    assert bad.errors > 0 and bad.share == (0.0, 0.0) and f"errs at {bad.errors} of 20 points" in str(bad)
    card = good._repr_html_()
    assert "<svg" in card and "this network" in card and len(card) < 6000
    clash = Dataset([[1.0, 2.0], [1.0, 2.0], [0.0, 1.0]], [1, -1, 1])
    assert "no network of this kind separates the data" in str(wm.margins.of(network(), clash))


class Odd:
    pass


WRONG = {
    "features": (lambda: network(d=3), "the network takes 3 features, but X has 2"),
    "not two layers": (lambda: torch.nn.Linear(2, 1), "model must be Sequential(Linear, ReLU, Linear), not Linear"),
    "another activation": (
        lambda: torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)),
        "not Sequential(Linear, Tanh, Linear)",
    ),
    "no model": (Odd, "its state dict or an MLPClassifier, not Odd"),
    "not fitted": (MLPClassifier, "this MLPClassifier is not fitted yet"),
    "too deep": (
        lambda: MLPClassifier((4, 4), max_iter=2).fit(X, Y),
        "has 2 hidden layers, and margins are known for one",
    ),
    "tanh": (lambda: MLPClassifier((4,), activation="tanh", max_iter=2).fit(X, Y), "fit it with activation='relu'"),
    "a regressor": (
        lambda: MLPRegressor(hidden_layer_sizes=(4,), max_iter=2).fit(X, Y),
        "MLPRegressor is no classifier",
    ),
    "a certificate of a kernel": (lambda: wm.margins.f2(DATA), "holds no network of neurons"),
    "nothing": (lambda: {}, "has two weight matrices"),
    "a norm between the layers": (
        lambda: {"0.weight": np.ones((3, 2)), "1.weight": np.ones(3), "3.weight": np.ones((1, 3))},
        "1.weight of shape (3,) is of a layer that Sequential(Linear, ReLU, Linear) does not have",
    ),
    "several labels for each point": (
        lambda: MLPClassifier((4,), max_iter=2).fit(X, np.c_[Y > 0, Y < 0]),
        "tells several labels for each point",
    ),
    "no weights": (lambda: network().to("meta"), "a tensor on the meta device holds no numbers"),
    "no weights yet": (
        lambda: torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.ReLU(), torch.nn.Linear(3, 1)),
        "lazy layers, which have no weights yet; call it on X once",
    ),
}


@pytest.mark.parametrize(("make", "said"), WRONG.values(), ids=WRONG)
def test_one_sentence(make, said: str):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make()
    with pytest.raises(InputError) as error:
        wm.margins.of(model, X, Y)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_too_few_outputs():
    with pytest.raises(InputError, match="y has 3"):
        wm.margins.of(network(outputs=1), X, np.array(["a", "b", "c"])[CLASSES])
    with pytest.raises(InputError, match="has 3 outputs, but y has 4 classes"):
        wm.margins.of(network(outputs=3), X, np.arange(20) % 4)


def test_the_command(tmp_path, monkeypatch, capsys, one_thread):
    monkeypatch.chdir(tmp_path)
    wm.data.save_dataset(DATA, "data.csv")
    net = trained(network())
    torch.save(net.state_dict(), "net.pt")
    assert cli.main(["margin", "data.csv", "--model", "net.pt", "--json", "--save", "c.json"]) == 0
    said, found = json.loads(capsys.readouterr().out), wm.margins.of(net, DATA)
    assert_allclose([said["margin"], *said["share"]], [found.margin, *found.share], rtol=1e-6)
    assert cli.main(["verify", "c.json", "data.csv"]) == 0
    capsys.readouterr()
    assert cli.main(["margin", "data.csv", "--model", "net.pt"]) == 0
    assert "% of the largest" in capsys.readouterr().out
    argv = ["train", "data.csv", "--width", "12", "--steps", "300", "--lr", "0.5", "--trials", "2", "--out", "run"]
    assert cli.main(argv) == 0
    assert cli.main(["margin", "--model", "run", "--trial", "1"]) == 0
    assert "of the largest" in capsys.readouterr().out
    for argv, words in (
        (["margin", "--model", "net.pt"], "there is no DATA"),
        (["margin", "data.csv", "--model", "none.pt"], "there is no such file"),
        (["margin", "data.csv", "--model", "net.pt", "--kind", "f2"], "--model compares with ReLU networks"),
        (["margin", "--model", "run", "--trial", "7"], "so there is no trial 7"),
        (["margin", "data.csv", "--model", "net.pt", "--trial", "0"], "--trial is for runs"),
        (["margin", "data.csv", "--trial", "0"], "--trial is for runs"),
        (
            ["margin", "data.csv", "--model", "net.pt", "--norm", "l1"],
            "leave --kind, --activation, --norm and --bias out",
        ),
        (
            ["margin", "--model", "run", "--label", "z"],
            "run is a run and has its own points and labels; leave --label out",
        ),
        (["margin", "--model", "run", "--standardize"], "leave --standardize out"),
        (["gap", "run", "--weight-decay", "1", "--standardize"], "leave --standardize out"),
    ):
        assert cli.main(argv) == 2
        assert words in capsys.readouterr().err
