"""The one way in: what people have in their hands becomes the same Dataset everywhere, and what cannot gets one sentence."""

from __future__ import annotations

import importlib
import inspect

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from scipy import sparse
from sklearn.datasets import load_iris

import widemargin as wm
from test_public import PUBLIC
from widemargin.types import Dataset, InputError

X = np.array([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0], [2.0, 1.5]])
SIGNS = np.array([1.0, 1.0, -1.0, -1.0, 1.0])
ONES = (SIGNS + 1) / 2
TABLE = pd.DataFrame(X, columns=["u", "v"])
WORDS = np.where(SIGNS > 0, "yes", "no")
KNOWN = Dataset(X, SIGNS)

GIVEN = {
    "arrays": (X, ONES),
    "a pair": ((X, SIGNS),),
    "a list of two": ([X, ONES],),
    "lists": (X.tolist(), ONES.astype(int).tolist()),
    "tuples": (tuple(map(tuple, X.tolist())), tuple(SIGNS.tolist())),
    "truth values": (X, SIGNS > 0),
    "words": (X, WORDS),
    "words in a list": (X, WORDS.tolist()),
    "objects": (X, WORDS.astype(object)),
    "other numbers": (X, np.where(SIGNS > 0, 7, 3)),
    "a column of labels": (X, ONES[:, None]),
    "tensors": (torch.tensor(X, requires_grad=True), torch.tensor(ONES)),
    "float32 and int64": (torch.tensor(X).float(), torch.tensor(ONES).long()),
    "bfloat16": (torch.tensor(X).bfloat16(), torch.tensor(SIGNS > 0)),
    "a table and a column": (TABLE, pd.Series(WORDS, name="answer")),
    "a table and a table": (TABLE, pd.DataFrame({"answer": ONES})),
    "tables of other rows": (TABLE, pd.Series(ONES, index=range(5, 10))),
    "rows of several kinds": (TABLE.set_axis([0, "a", 1, "b", 2]), pd.Series(ONES, index=["a", 0, "b", 1, 2])),
    "the name of a column": (TABLE.assign(answer=WORDS), "answer"),
    "a table with a column y": (TABLE.assign(y=ONES),),
    "categories": (TABLE, pd.Series(pd.Categorical(WORDS))),
    "a sparse matrix": (sparse.csr_matrix(X), ONES),
    "a sparse tensor": (torch.tensor(X).to_sparse(), torch.tensor(ONES)),
    "eight bits": (torch.tensor(X).to(torch.float8_e4m3fn), torch.tensor(ONES).to(torch.int8)),
    "tensors with gaps": (torch.tensor(X.T.copy()).T, torch.tensor(ONES.repeat(2))[::2]),
    "a list of tensors": ([torch.tensor(row, requires_grad=True) for row in X], list(torch.tensor(ONES))),
    "a pair with a list of tensors": (([torch.tensor(row) for row in X], ONES),),
    "a TensorDataset": (torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(ONES)),),
    "the number of a column": (pd.DataFrame(np.c_[X, ONES]), 2),
    "a column below two names": (TABLE.assign(y=WORDS).set_axis([("a", 1), ("a", 2), ("t", "y")], axis=1), ("t", "y")),
    "an arrow table": (pa.table({"u": X[:, 0], "answer": WORDS, "v": X[:, 1]}), "answer"),
    "nullable": (TABLE.astype("Float64"), pd.Series(ONES, dtype="Int64")),
    "nullable truth values": (TABLE, pd.Series(SIGNS > 0, dtype="boolean")),
    "written signs": (X, ["+1", "+1", "-1", "-1", "+1"]),  # sorted as words, +1 would be the first
    "intervals": (TABLE, pd.cut(pd.Series(SIGNS), 2)),
    "nothing masked": (np.ma.masked_array(X, mask=False), ONES),
    "views": (memoryview(X), memoryview(ONES)),
    "a data set of 0 and 1": (Dataset(X, ONES),),
    "a data set": (KNOWN,),
}


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_what_people_have(given):
    cert = wm.margins.f2(*given)
    assert cert.data_sha256 == KNOWN.sha256()
    assert cert.verify(*given).ok and cert.verify(KNOWN).ok


KEYS = {"weight_decay": 0.1, "jacobian": X, "stop": 3, "theorems": ["CB-22"]}
NETWORK = {"0.weight": torch.ones(3, 2), "2.weight": torch.ones(1, 3)}


def answered(answer: object) -> str:
    """What a function said, without seconds."""
    if isinstance(answer, wm.Certificate):
        return f"{answer.lower!r} {answer.upper!r} {answer.data_sha256}"
    if isinstance(answer, wm.Trajectory):
        return str(answer)
    return str(getattr(answer, "facts", answer)).partition(", stats")[0][:200]


BEFORE = {  # what comes before the data, and behind it
    "margins.frozen": ((), (30,)),
    "margins.random_features": ((), (30,)),
    "margins.width_margin_curve": ((), ([1, 4],)),
    "margins.transport_margin": ((), (wm.margins.parity_transport(2),)),
    "margins.batchnorm": ((), (16,)),
    "margins.of": ((NETWORK,), ()),
    "margins.prune": ((wm.Measure(X, SIGNS),), ()),
    "optima.gap": ((NETWORK,), ()),
    "flows.train": ((), (wm.flows.TwoLayer(2, 4), wm.flows.GD())),
    "flows.pose": ((wm.flows.TwoLayer(2, 4),), ("logistic",)),
    "plots.decision": ((wm.margins.f2(KNOWN),), ()),
    "data.save_dataset": ((), ("some.npz",)),
}
RUN = {"theory.check", "theory.follow"}


def takes_data() -> list[str]:
    return [
        str(one)
        for one in PUBLIC
        if not isinstance(one.item, type) and "data" in inspect.signature(one.item).parameters
    ]


@pytest.mark.parametrize("name", takes_data())
def test_every_function_of_a_data_set_takes_points_and_labels(name: str, tmp_path, monkeypatch, one_thread):
    """f(X, y), f((X, y)) and f(Dataset) answer the same."""
    monkeypatch.chdir(tmp_path)
    room, _, called = name.partition(".")
    function = getattr(importlib.import_module(f"widemargin.{room}"), called)
    before, behind = BEFORE.get(name, ((), ()))
    keys = {key: value for key, value in KEYS.items() if key in inspect.signature(function).parameters}
    if name in RUN:
        before = (wm.flows.train(KNOWN, wm.flows.TwoLayer(2, 4), wm.flows.GD(), stop=3, record=["weights", "risk"]),)
    if "time_limit" in inspect.signature(function).parameters:
        keys["time_limit"] = 20.0
    targets = SIGNS if called.startswith(("min_norm", "save")) else ONES
    expected = answered(function(*before, Dataset(X, targets), *behind, **keys))
    assert answered(function(*before, X, targets, *behind, **keys)) == expected
    assert answered(function(*before, (X, targets), *behind, **keys)) == expected
    assert "X, y" in str(inspect.signature(function))


def test_a_list_of_functions_was_found():
    assert {"margins.f1", "optima.path", "flows.train", "theory.guarantees", "plots.decision"} <= set(takes_data())
    assert len(takes_data()) > 30


WRONG = {
    "no labels": ((X,), "y, the labels, is missing"),
    "too few labels": ((X, SIGNS[:3]), "X has 5 rows but y has shape (3,); give one target per row"),
    "a number": ((X, 3), "y has shape ()"),
    "a flat X": ((X[:, 0], SIGNS), "X must have two dimensions"),
    "a path": (("data.csv",), "data must be a Dataset, not str; read a file with widemargin.data.load('data.csv')"),
    "nothing": ((None,), "data must be a Dataset, not NoneType"),
    "a column that is not there": ((TABLE, "u_"), "there is no column 'u_'"),
    "a misspelt column": ((TABLE.assign(answer=WORDS), "anwser"), "did you mean answer?"),
    "a name without a table": ((X, "answer"), "X is no table with columns"),
    "words among the features": ((TABLE.assign(w="red"), SIGNS), "the column 'w' holds no numbers; drop it"),
    "three classes": (
        (X, ["a", "b", "c", "a", "b"]),
        "y has 3 ('a', 'b', 'c'); choose two, or take margins.multiclass_f1",
    ),
    "three numbers": ((X, [0, 1, 2, 0, 1]), "labels -1 and +1, but y has values 0, 1, 2; choose two classes"),
    "one class": ((X, ["a"] * 5), "y has only one class ('a')"),
    "a missing value": ((TABLE, pd.Series([1, 0, None, 1, 0])), "y has NaN or infinity at row 2"),
    "labels twice": ((Dataset(X, SIGNS), SIGNS), "space must be one of widemargin.spaces"),
    "rows of other lengths": (([[1.0], [1.0, 2.0]], [0, 1]), "must hold numbers only"),
    "a missing word": ((X, ["a", None, "b", "a", "b"]), "y is missing at row 1; remove that row"),
    "missing words": ((TABLE, pd.Series(["a", None, None, "a", "b"], dtype="string")), "remove those 2 rows"),
    "missing truth values": ((TABLE, pd.Series([True, None, False, True, False], dtype="boolean")), "missing at row 1"),
    "a missing number in a table": (
        (TABLE.assign(**{"t [C]": pd.array([1, 2, None, None, 5], dtype="Int64")}), SIGNS),
        "X has NaN or infinity at row 2, column 't [C]'; remove or impute it (2 rows have some)",
    ),
    "a masked number": ((np.ma.masked_array(X, mask=X > 1.7), SIGNS), "X has NaN or infinity at row 4, column 0"),
    "masked labels": ((X, np.ma.masked_array(ONES, mask=SIGNS < 0)), "y is missing at row 2; remove those 2 rows"),
    "dates": ((TABLE.assign(day=pd.date_range("2020", periods=5)), SIGNS), "the column 'day' holds dates; drop them"),
    "dates alone": ((pd.DataFrame({"day": pd.date_range("2020", periods=5)}), SIGNS), "X holds dates"),
    "complex numbers": ((X + 1j, SIGNS), "X holds complex numbers"),
    "complex labels": ((X, torch.tensor(ONES).to(torch.complex64)), "y holds complex numbers"),
    "a dictionary": (
        ({"u": X[:, 0]}, SIGNS),
        "X is of type dict; give an array, a list, a tensor, or pandas.DataFrame",
    ),
    "a generator": ((X, map(int, ONES)), "y is of type map; give an array"),
    "no values": ((torch.tensor(X, device="meta"), SIGNS), "a tensor on the meta device holds no numbers"),
    "images": ((np.ones((5, 3, 3)), SIGNS), "flatten the points with X.reshape(len(X), -1)"),
    "swapped": ((SIGNS, X), "X and y may be swapped"),
    "turned": ((X.T, SIGNS), "X has 2 rows but y has shape (5,); X has a column for each: give X.T"),
    "empty": (([], []), "the data set is empty"),
    "one number": ((X, np.zeros(5)), "y has only one class (0); give points of two"),
    "a table without labels": ((TABLE.assign(target=ONES),), "as in f1(table, 'target'), of 'u', 'v', 'target'"),
    "a table without labels, and words": (
        (TABLE.assign(answer=WORDS)[["u", "answer", "v"]],),
        "as in f1(table, 'answer'), of 'u', 'answer', 'v'",
    ),
    "a misspelt column with spaces": ((TABLE.assign(**{" buys? ": WORDS}), "buys?"), "(did you mean ' buys? '?)"),
    "two columns of labels": ((TABLE.assign(y=ONES, label=ONES),), "the table has a column y and a column label"),
    "labels that stayed in X": ((TABLE.assign(w=ONES), pd.Series(ONES, name="w")), "so that X holds the labels"),
    "a name twice": ((pd.DataFrame(np.c_[X, ONES], columns=["u", "y", "y"]), "y"), "2 columns are named 'y'"),
    "a row index of a file": ((TABLE.assign(**{"Unnamed: 0": range(5)}), SIGNS), "'Unnamed: 0' has no name of its own"),
    "rows in another order": (
        (TABLE, pd.Series(ONES)[::-1]),
        "the same index in different orders; give y.loc[X.index]",
    ),
    "what scikit-learn loads": ((load_iris(),), "not Bunch; give its .data and .target"),
    "a huge sparse tensor": (
        (torch.sparse_coo_tensor(torch.zeros(2, 0).long(), [], (10**6, 10**6), check_invariants=True), SIGNS),
        "X is sparse, with 1000000 x 1000000 entries",
    ),
    "a huge sparse matrix": ((sparse.csr_matrix((10**6, 10**6)), SIGNS), "X is sparse"),
}


@pytest.mark.parametrize(("given", "said"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_taken_gets_one_sentence(given, said: str):
    with pytest.raises(InputError) as error:
        wm.margins.f1(*given)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_labels_are_kept():
    data = Dataset(TABLE.assign(answer=WORDS), "answer")
    assert (data.classes, data.columns, data.label) == (("no", "yes"), ("u", "v"), "answer")
    assert data.notes == ("label 'no' -> -1, 'yes' -> +1",) and data.y.tolist() == SIGNS.tolist()
    ones = Dataset(X, ONES)
    assert ones.y.tolist() == ONES.tolist()  # they might be targets: only a function can say
    assert ones.labelled("signs").classes == (0, 1) and ones.labelled("values") is ones
    assert KNOWN.labelled("signs") is KNOWN and KNOWN.labelled("classes").y.tolist() == ONES.tolist()


@pytest.mark.parametrize("labels", [[5, 7, 9, 5, 7], ["a", "b", "c", "a", "b"], [0, 1, 2, 0, 1]], ids=str)
def test_several_classes_of_any_name(labels, one_thread):
    known = Dataset(X, [0, 1, 2, 0, 1])
    assert wm.margins.multiclass_linear(X, labels).data_sha256 == known.sha256()
    cert = wm.optima.f1(X, labels, loss="cross-entropy", weight_decay=0.3, time_limit=5.0)
    assert cert.data_sha256 == known.sha256() and cert.verify(X, labels).ok


def test_targets_stay_targets(one_thread):
    y = np.array([0.0, 1.0, 1.0, 0.0, 1.0])
    for cert in (wm.margins.min_norm_l2(X, y), wm.optima.f1(X, y, loss="squared", weight_decay=0.3)):
        assert cert.data_sha256 == Dataset(X, y).sha256() and cert.verify(X, y).ok


def test_a_run_is_checked_on_what_it_was_given():
    run = wm.flows.train(
        X, ONES, wm.flows.TwoLayer(2, 4), wm.flows.GD(), stop=3, record=wm.flows.Record(test=(X, WORDS))
    )
    assert run["test_error"].shape == run["train_error"].shape
    assert wm.theory.follow(run, X, WORDS).problem.y.tolist() == [SIGNS.tolist()]
    several = wm.flows.train(X, ONES, wm.flows.MLP(2, 4, outputs=2, depth=2), wm.flows.GD(), stop=3)
    assert wm.theory.follow(several, X, ONES).problem.y.tolist() == [ONES.tolist()]


class Polars:
    """As much of polars' DataFrame as is used, whose `drop` has no `columns=`."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.table, self.shape, self.columns = table, table.shape, list(table.columns)

    def drop(self, names):
        return Polars(self.table.drop(columns=names))

    def __getitem__(self, name):
        return self.table[name]

    def __array__(self, dtype=None, copy=None):
        return self.table.to_numpy(dtype=dtype)


def test_a_table_of_another_house():
    data = Dataset(Polars(TABLE.assign(answer=WORDS)), "answer")
    assert (data.sha256(), data.columns, data.label) == (KNOWN.sha256(), ("u", "v"), "answer")


def test_written_targets_stay_targets():
    """Targets out of a text file are no classes 0, 1, 2."""
    assert Dataset(X, ["1.5", "2.5", "9", "-3", "0"]).y.tolist() == [1.5, 2.5, 9.0, -3.0, 0.0]
    assert Dataset(X, ["1.5", "2.5", "nine", "-3", "0"]).classes == ("-3", "0", "1.5", "2.5", "nine")


def test_a_y_that_is_none_is_none():
    for given in ((KNOWN, None), ((X, SIGNS), None)):
        assert wm.margins.f2(*given).data_sha256 == KNOWN.sha256()
        assert wm.optima.f2(*given, weight_decay=1.0).data_sha256 == KNOWN.sha256()
    with pytest.raises(TypeError, match=r"^f2\(\): too many positional arguments"):
        wm.optima.f2(KNOWN, SIGNS, weight_decay=1.0)


def test_misspelt_arguments_and_rooms():
    with pytest.raises(TypeError, match=r"f1\(\) has no argument 'timelimit' \(did you mean time_limit\?\)"):
        wm.margins.f1(X, ONES, timelimit=3)
    with pytest.raises(TypeError, match=r"f1\(\) has no argument 'label' \(did you mean y\?\)"):
        wm.margins.f1(TABLE.assign(answer=WORDS), label="answer")
    with pytest.raises(TypeError, match=r"train\(\) has no argument 'zzz'$"):
        wm.flows.train(X, ONES, wm.flows.TwoLayer(2, 4), zzz=3)
    with pytest.raises(AttributeError, match=r"no attribute 'margin' \(did you mean margins\?\)"):
        wm.margin.f1(X, ONES)  # type: ignore[attr-defined]


@pytest.mark.parametrize("word", ["\udcff", "n" * 5000, "new\nline"])
def test_what_is_kept_of_names_can_be_read_again(word, tmp_path):
    """Names of files may hold what is no text, and texts of any length may be labels."""
    table = pd.DataFrame(X, columns=[word.replace("\udcff", "u"), "v"])
    data = Dataset(table, np.where(SIGNS > 0, word, "no"), word)
    cert = wm.margins.f2(data)
    cert.save(tmp_path / "cert.json")
    assert wm.Certificate.load(tmp_path / "cert.json").verify(data).ok
    wm.flows.train(data, wm.flows.TwoLayer(2, 3), wm.flows.GD(), stop=2, keep=tmp_path / "run")
    assert wm.flows.load(tmp_path / "run").config["data"]["names"] == [data.name]
    wm.report.write(wm.report.build([tmp_path / "cert.json", tmp_path / "run"]), tmp_path / "page.html")
