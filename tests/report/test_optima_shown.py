"""Optima on the page: intervals of objectives, paths, trained networks; and that nothing calls an objective a margin."""

import json
import shlex
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from test_page import Parsed

from widemargin import cli, margins, optima, plots, report, verify
from widemargin import data as datasets
from widemargin.optima.paths import point
from widemargin.optima.trained_networks import of
from widemargin.report import certificates
from widemargin.types import Certificate, Dataset, InputError

pytestmark = pytest.mark.usefixtures("one_thread")

SPEC = "clusters:n=16,d=2,k=2,sep=1,seed=0"
DATA = datasets.load(SPEC)


@pytest.fixture(scope="module")
def path():
    return optima.path(DATA, [0.1, 0.01, 0.001], bias=True)


@pytest.fixture(scope="module")
def gap():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 6), torch.nn.ReLU(), torch.nn.Linear(6, 1))
    return optima.gap(model, DATA.X, DATA.y, weight_decay=0.01)


@pytest.fixture(scope="module")
def folder(path, gap, tmp_path_factory):
    """Files of a path, of a trained network and of the kernel, as the commands save them, and four that are damaged."""
    place = tmp_path_factory.mktemp("optima")
    for k, one in enumerate(path, 1):
        one.certificate.save(place / f"c.{k}.json")
    replace(gap.certificate, data_name=DATA.name).save(place / "gap.json.gz")
    optima.f2(DATA, weight_decay=0.01, bias=True).save(place / "kernel.json")
    cert = path[0].certificate
    lost = {key: value for key, value in cert.extra.items() if key != "loss"}
    replace(cert, extra=lost).save(place / "x1.json")
    replace(cert, extra={**cert.extra, "trained": {"objective": 0.01, "loss": 0, "balanced": 0.01, "width": 3}}).save(
        place / "x2.json"
    )
    replace(cert, primal=replace(cert.primal, theta=cert.primal.theta[:, :1])).save(place / "x3.json")
    (place / "x4.json").write_text((place / "c.1.json").read_text().replace('"lower": 0.', '"lower": 0.1', 1))
    return place


def parsed(page):
    return Parsed("".join(one.render() for one in page.sections))


def figures(page):
    names = [one["figure"] for section in page.sections for one in section.contents if "figure" in one]
    return dict(zip(names, parsed(page).figures.values()))


def test_a_folder_of_optima_is_one_page_and_damaged_files_are_lines(folder, path, gap):
    page = report.build(folder)
    *rest, first = page.sections
    titles = sorted(one.title for one in rest)
    assert first.title == f"Least training objectives: {DATA.name}"
    assert [title.split(" is not shown: ")[0] for title in titles] == ["x1.json", "x2.json", "x3.json", "x4.json"]
    for title, said in zip(
        titles, ("loss is missing", "below the proved bound", "primal.theta has the shape", "changed")
    ):
        assert "the certificate is damaged" in title and said in title, title
    text = " ".join(parsed(page).text)
    assert f"{gap}." in text and "width 6" in text
    assert "the command verify checks the bounds and not that number" in text  # the file does not hold the network

    drawn = figures(page)
    along = {trace.get("name"): trace for trace in drawn["The least objective along the path"]["data"]}
    for name, column in (
        ("objective of the network (upper)", "upper"),
        ("proved for every width (lower)", "lower"),
        ("mean loss of the network", "loss"),
    ):
        assert_allclose(along[name]["x"], path.column("weight_decay"), rtol=1e-5)
        assert_allclose(along[name]["y"], path.column(column), rtol=1e-5)
    for title, column in (
        ("Norm", "norm"), ("Margin", "margin"), ("Neurons", "neurons"), ("Training error", "error")
    ):  # fmt: skip
        assert_allclose(drawn[f"{title} along the path"]["data"][0]["y"], path.column(column), rtol=1e-5, atol=1e-9)
    bars = drawn["Certified objectives"]
    assert bars["layout"]["xaxis"]["title"]["text"] == "objective"
    assert bars["data"][0]["x"] == [gap.certificate.lower, gap.certificate.upper]
    assert bars["data"][-1]["x"] == [gap.objective] and bars["data"][-1]["y"] == bars["data"][0]["y"][:1]
    assert gap.objective <= bars["layout"]["xaxis"]["range"][1]


def test_the_table_holds_what_the_functions_do(folder):
    one = optima.f2(DATA, weight_decay=0.01, bias=True)
    at = point(one, DATA)
    f = one.function(DATA.X, DATA)
    assert_allclose(at.loss, np.logaddexp(0, -DATA.y * f).mean(), rtol=1e-12)
    assert_allclose(at.loss + 0.01 / 2 * at.norm**2, one.upper, rtol=1e-9)  # the objective, put together again
    text = parsed(report.build(folder / "kernel.json")).text
    assert certificates.number(at.loss, 5) in text and certificates.number(at.norm, 5) in text


def test_several_classes_are_shown_like_two(tmp_path, monkeypatch):
    """Decay, mean loss, norm and error of the network, the sentence of the gap, and the command; without the data, too."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((18, 2)), np.arange(18) % 3
    rows = [f"{a!r},{b!r},{'bgr'[k]}" for (a, b), k in zip(X.tolist(), y.tolist())]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,y", *rows]))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    torch.save(model.state_dict(), "m.pt")
    asked = ["t.csv", "--loss", "cross-entropy", "--weight-decay", "0.05", "--tol", "0.05", "--time-limit", "10"]
    assert cli.main(["gap", "m.pt", *asked, "--save", "g.json"]) == 0
    assert cli.main(["fit", *asked, "--bias", "--save", "c.json"]) == 0
    found = of(Certificate.load("g.json"))
    page = report.build(["g.json"])
    assert f"{found}." in " ".join(parsed(page).text) and "width 5" in " ".join(parsed(page).text)
    cert = Certificate.load("c.json")
    f, norm = (
        cert.function(X),
        sum(np.linalg.norm(a) * np.linalg.norm(v) for a, v in zip(*map(cert.extra.get, ("outer", "theta")))),
    )
    loss = (np.log(np.exp(f).sum(axis=1)) - f[np.arange(18), y]).mean()
    assert_allclose(loss + 0.05 * norm, cert.upper, rtol=1e-9)
    page = report.build(["c.json"])
    command = next(one["settings"] for one in page.sections[0].contents if "settings" in one).splitlines()[0]
    assert command.startswith("widemargin fit t.csv --loss cross-entropy --weight-decay 0.05")
    here = parsed(page).text
    (tmp_path / "t.csv").unlink()
    gone = parsed(report.build("c.json")).text
    for said in (certificates.number(loss, 5), certificates.number(norm, 5)):
        assert said in here and said in gone
    assert f"{100 * (f.argmax(axis=1) != y).mean():.3g} %" in here
    replace(cert, extra={**cert.extra, "outer": [[1.0]] * cert.atoms}).save("x.json")
    with pytest.raises(InputError, match=r"extra\.outer has the shape"):
        report.build("x.json")


def test_without_its_data_the_loss_is_what_the_decay_leaves(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((12, 2))
    datasets.save_dataset(Dataset(X, X[:, 0] * X[:, 1]), "t.csv")
    assert cli.main(["fit", "t.csv", "--bias", "--loss", "squared", "--weight-decay", "0.05", "--save", "c.json"]) == 0
    here = parsed(report.build("c.json")).text
    (tmp_path / "t.csv").unlink()
    gone = parsed(report.build("c.json")).text
    assert any("are not found" in text for text in gone) and not any("are not found" in text for text in here)
    cert = Certificate.load("c.json")
    loss = 0.5 * ((cert.function(X) - X[:, 0] * X[:, 1]) ** 2).mean()
    said = certificates.number(loss, 5)
    assert said in here and said in gone


def test_the_commands_that_are_shown_give_the_same_bounds(folder, tmp_path, monkeypatch, path):
    monkeypatch.chdir(folder)
    page = report.build([f"c.{k}.json" for k in (1, 2, 3)])
    command = next(one["settings"] for one in page.sections[0].contents if "settings" in one).splitlines()
    assert len(command) == 4 and command[0].startswith("widemargin fit") and "--save c.json" in command[0]
    monkeypatch.chdir(tmp_path)
    for line in command:
        assert cli.main(shlex.split(line)[1:]) == 0
    again = [Certificate.load(f"c.{k}.json") for k in (1, 2, 3)]
    assert [(one.lower, one.upper) for one in again] == [(one.lower, one.upper) for one in path]
    page = report.build("c.2.json")
    single = next(one["settings"] for one in page.sections[0].contents if "settings" in one).splitlines()[0]
    assert "--weight-decay 0.01" in single and cli.main([*shlex.split(single)[1:], "--json"]) == 0


def test_margins_and_objectives_of_one_data_set_are_apart(path):
    certs = [margins.linear(DATA, bias=True), path[1].certificate]
    titles = [one.title for one in report.build(certs).sections]
    assert titles == [f"Certified margin: {DATA.name}", f"Least training objective: {DATA.name}"]


def test_pictures_and_sentences_say_objective(path):
    cert = path[1].certificate
    axes = plots.intervals([cert]).axes[0]
    words = [axes.get_xlabel(), axes.get_title("left"), *(tick.get_text() for tick in axes.get_yticklabels())]
    assert "objective" in words[0] and "logistic loss, decay 0.01" in words[2]
    figure = plots.decision(cert, DATA)
    words += [axes.get_title("left") for axes in figure.axes] + [axes.get_ylabel() for axes in figure.axes]
    words += [str(cert), str(cert.verify(DATA))]
    assert not any("margin" in word for word in words), words
    assert "lower bound not proved" in str(replace(cert, proved=False))
    # dashed lines are where |f| is the margin, which an objective is not
    assert (
        len(figure.axes[0].collections)
        == len(plots.decision(margins.f2(DATA, bias=True), DATA).axes[0].collections) - 1
    )
    mixed = plots.intervals([cert, margins.linear(DATA, bias=True)]).axes[0]
    assert mixed.get_xlabel() == "objective or margin, as in brackets"
    payload = json.loads(json.dumps(replace(cert, lower=-2.0, upper=-1.0).payload()))
    assert "objectives are at least 0" in str(verify.check(payload, DATA.X, DATA.y))


def test_a_gap_that_was_saved_says_the_same(gap):
    found = of(gap.certificate)
    assert str(found) == str(gap) and found == gap
    assert gap.certificate.verify(DATA).ok


def test_a_damaged_file_that_was_asked_for_is_refused_in_a_sentence(folder):
    with pytest.raises(InputError, match="the certificate is damaged"):
        report.build(folder / "x1.json")
